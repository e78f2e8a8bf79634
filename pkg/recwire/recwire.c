/* Which encoding is it? */
#include "recwire/recwire.h"

#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "recwire/recwire_internal.h"

enum encoding { UNKNOWN, PROTOBUF, JSON };

static bool type_is(const char *type, size_t len, const char *name)
{
    return len == strlen(name) && strncasecmp(type, name, len) == 0;
}

static enum encoding encoding_of(const char *content_type)
{
    if (content_type == NULL) {
        return UNKNOWN;
    }
    content_type += strspn(content_type, " \t");
    size_t len = strcspn(content_type, "; \t");
    const char *rest = content_type + len;
    rest += strspn(rest, " \t");
    if (*rest != '\0' && *rest != ';') {
        return UNKNOWN;
    }
    return type_is(content_type, len, KPB_CONTENT_TYPE)     ? PROTOBUF
           : type_is(content_type, len, "application/json") ? JSON
                                                            : UNKNOWN;
}

static enum err_kind unknown(struct err *err)
{
    return err_set(err, ERR_INVALID, "a Secret that is neither JSON nor Kubernetes protobuf");
}

enum err_kind recwire_parse(const char *content_type, const char *bytes, size_t len,
                            struct kpb_secret *ret, struct err *err)
{
    switch (encoding_of(content_type)) {
    case PROTOBUF:
        return kpb_secret_parse(bytes, len, ret, err);
    case JSON:
        return recwire_json_parse(bytes, len, ret, err);
    case UNKNOWN:
        break;
    }
    return unknown(err);
}

enum err_kind recwire_amend(const char *content_type, const char *bytes, size_t len,
                            const char *resource_version, const struct kpb_annotation *annotations,
                            size_t n, struct buf *ret, struct err *err)
{
    switch (encoding_of(content_type)) {
    case PROTOBUF:
        return kpb_secret_amend(bytes, len, resource_version, annotations, n, ret, err);
    case JSON:
        return recwire_json_amend(bytes, len, resource_version, annotations, n, ret, err);
    case UNKNOWN:
        break;
    }
    return unknown(err);
}

/* One of the two. */
struct recwire_list {
    struct kpb_list *protobuf;
    struct recwire_json_list *json;
};

struct recwire_list *recwire_list_new(const char *content_type,
                                      void (*on_item)(void *ctx, const struct kpb_secret *s),
                                      void *ctx)
{
    enum encoding encoding = encoding_of(content_type);
    if (encoding == UNKNOWN) {
        return NULL;
    }
    struct recwire_list *l = xcalloc(1, sizeof(*l));
    if (encoding == PROTOBUF) {
        l->protobuf = kpb_list_new(on_item, ctx);
    } else {
        l->json = recwire_json_list_new(on_item, ctx);
    }
    return l;
}

bool recwire_list_feed(struct recwire_list *l, const char *bytes, size_t len)
{
    return l->protobuf != NULL ? kpb_list_feed(l->protobuf, bytes, len)
                               : recwire_json_list_feed(l->json, bytes, len);
}

void recwire_list_free(struct recwire_list *l)
{
    if (l != NULL) {
        kpb_list_free(l->protobuf);
        recwire_json_list_free(l->json);
        free(l);
    }
}
