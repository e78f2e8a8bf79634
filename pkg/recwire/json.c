/* One Secret as JSON. Reading is jsonx's; amending splices, because a parsed and written text is
 * not the same bytes. The scanner runs over texts that jsonx has found to be valid. */
#include <openssl/evp.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "jsonx/jsonx.h"
#include "recwire/recwire_internal.h"

/* ---- where things are ---- */

/* text[begin..end) is a value; end == 0: it is not there. */
struct span {
    size_t begin, end;
};

static size_t skip_blank(const char *text, size_t at)
{
    while (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t') {
        at++;
    }
    return at;
}

/* text[at] is the quote that opens it. */
static size_t skip_string(const char *text, size_t at)
{
    for (at++; text[at] != '"'; at++) {
        must(text[at] != '\0');
        if (text[at] == '\\') {
            at++;
        }
    }
    return at + 1;
}

static size_t skip_value(const char *text, size_t at)
{
    size_t depth = 0;
    do {
        char c = text[at];
        must(c != '\0');
        if (c == '"') {
            at = skip_string(text, at);
        } else if (c == '{' || c == '[') {
            depth++;
            at++;
        } else if (c == '}' || c == ']') {
            depth--;
            at++;
        } else if (depth > 0) {
            at++; /* a separator, a blank or a part of a literal inside */
        } else {
            return at + strcspn(text + at, ",]} \n\r\t");
        }
    } while (depth > 0);
    return at;
}

/* One member of an object. */
struct member {
    const char *key; /* between its quotes, as written */
    size_t key_len;
    struct span value;
};

/* The next member: *at stands behind the brace at first. False at the object's end. */
static bool next_member(const char *text, size_t *at, struct member *ret)
{
    *at = skip_blank(text, *at);
    if (text[*at] == ',') {
        *at = skip_blank(text, *at + 1);
    }
    if (text[*at] != '"') {
        return false;
    }
    ret->key = text + *at + 1;
    *at = skip_string(text, *at);
    ret->key_len = (size_t)(text + *at - 1 - ret->key);
    *at = skip_blank(text, *at);
    *at = ret->value.begin = skip_blank(text, *at + 1); /* the colon */
    *at = ret->value.end = skip_value(text, *at);
    return true;
}

static bool key_is(const struct member *m, const char *name)
{
    return m->key_len == strlen(name) && memcmp(m->key, name, m->key_len) == 0;
}

/* The members that these names have in the object at text[at]. False: one is there twice, or a key
 * is written with escapes, so that it could be one of these without looking like it. */
static bool find_members(const char *text, size_t at, const char *const *names, size_t n,
                         struct span *ret)
{
    memset(ret, 0, n * sizeof(*ret));
    struct member m;
    for (at++; next_member(text, &at, &m);) {
        if (memchr(m.key, '\\', m.key_len) != NULL) {
            return false;
        }
        for (size_t i = 0; i < n; i++) {
            if (!key_is(&m, names[i])) {
                continue;
            }
            if (ret[i].end != 0) {
                return false;
            }
            ret[i] = m.value;
        }
    }
    return true;
}

static bool is_object(const char *text, struct span s)
{
    return s.end != 0 && text[s.begin] == '{';
}

/* A text that was read, and where in it amending looks. */
struct text {
    json_t *json;
    char *copy; /* NUL-terminated, which the caller's bytes need not be */
    struct span metadata, resource_version, annotations;
};

static void text_release(struct text *t)
{
    json_decref(t->json);
    free(t->copy);
}

static bool find_in(const char *text, struct span s, const char *const *names, size_t n,
                    struct span *ret)
{
    memset(ret, 0, n * sizeof(*ret));
    return !is_object(text, s) || find_members(text, s.begin, names, n, ret);
}

/* Every member that is read or written must be there once: of two, Go takes the last or merges
 * them, and so the server could see another Secret than this reader. t->copy is a JSON object. */
static bool find_places(struct text *t)
{
    static const char *const top[] = {"metadata", "data", "kind", "apiVersion"};
    static const char *const meta[] = {"resourceVersion", "annotations", "labels", "name",
                                       "namespace",       "uid"};
    static const char *const labels[] = {"status", "name"};
    static const char *const data[] = {"release"};
    struct span in_top[4], in_meta[6], in_labels[2], in_data[1];
    struct span whole = {skip_blank(t->copy, 0), strlen(t->copy)};
    if (!find_in(t->copy, whole, top, 4, in_top) ||
        !find_in(t->copy, in_top[0], meta, 6, in_meta) ||
        !find_in(t->copy, in_top[1], data, 1, in_data) ||
        !find_in(t->copy, in_meta[2], labels, 2, in_labels)) {
        return false;
    }
    t->metadata = in_top[0];
    t->resource_version = in_meta[0];
    t->annotations = in_meta[1];
    return true;
}

/* ---- reading ---- */

/* Standard base64 with its padding, as Go writes it. */
static bool hash_base64(const char *text, size_t len, unsigned char *ret_hash)
{
    /* EVP_DecodeBlock lets blanks at the ends pass, and padding anywhere. */
    size_t pad = len >= 2 ? (size_t)(text[len - 1] == '=') +
                                (size_t)(text[len - 1] == '=' && text[len - 2] == '=')
                          : 0;
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (len % 4 != 0 || strspn(text, digits) != len - pad) {
        return false;
    }
    must(len <= KPB_BYTES_MAX);
    unsigned char *out = xmalloc(len / 4 * 3 + 1);
    int n = len > 0 ? EVP_DecodeBlock(out, (const unsigned char *)text, (int)len) : 0;
    bool good = n >= 0;
    if (good) {
        must(EVP_Digest(out, (size_t)n - pad, ret_hash, NULL, EVP_sha256(), NULL) == 1);
    }
    free(out);
    return good;
}

/* Go decodes null as the empty value; any other type is an error there. */
static bool is_text(const json_t *j)
{
    return j == NULL || json_is_null(j) || json_is_string(j);
}

static bool is_map(const json_t *j)
{
    return j == NULL || json_is_null(j) || json_is_object(j);
}

static bool text_is_or_absent(const json_t *j, const char *want)
{
    return j == NULL || (json_is_string(j) && strcmp(json_string_value(j), want) == 0);
}

static const char *check_shape(const json_t *j)
{
    const json_t *meta = json_object_get(j, "metadata");
    const json_t *labels = json_object_get(meta, "labels");
    if (!text_is_or_absent(json_object_get(j, "kind"), "Secret") ||
        !text_is_or_absent(json_object_get(j, "apiVersion"), "v1")) {
        return "it is no v1 Secret";
    }
    bool good = is_map(meta) && is_map(labels) && is_map(json_object_get(meta, "annotations")) &&
                is_map(json_object_get(j, "data")) && is_text(json_object_get(meta, "name")) &&
                is_text(json_object_get(meta, "namespace")) &&
                is_text(json_object_get(meta, "uid")) &&
                is_text(json_object_get(meta, "resourceVersion")) &&
                is_text(json_object_get(labels, "status")) &&
                is_text(json_object_get(labels, "name")) && is_text(jsonx_at(j, "data.release"));
    return good ? NULL : "a field of it has the wrong type";
}

static enum err_kind invalid(struct err *err, const char *why)
{
    return err_set(err, ERR_INVALID, "no Secret can be read: %s", why);
}

/* *ret: release it, whatever comes back. */
static enum err_kind read_text(const char *text, size_t len, struct text *ret, struct err *err)
{
    if (len > KPB_BYTES_MAX) {
        return err_set(err, ERR_LIMIT, "a Secret of %zu bytes, over %zu", len, KPB_BYTES_MAX);
    }
    if (len > 0 && memchr(text, '\0', len) != NULL) {
        return invalid(err, "there is a NUL in it");
    }
    if (jsonx_parse(text, len, &ret->json, err)) {
        return err->kind;
    }
    if (!json_is_object(ret->json)) {
        return invalid(err, "it is no object");
    }
    ret->copy = xstrndup(text, len);
    if (!find_places(ret)) {
        return invalid(err, "a key of it is there twice, or escaped");
    }
    const char *why = check_shape(ret->json);
    return why == NULL ? ERR_NONE : invalid(err, why);
}

enum err_kind recwire_json_parse(const char *text, size_t len, struct kpb_secret *ret,
                                 struct err *err)
{
    _cleanup_(text_release)
    struct text t = {0};
    if (read_text(text, len, &t, err)) {
        return err->kind;
    }
    const json_t *release = jsonx_at(t.json, "data.release");
    unsigned char hash[KPB_HASH_LEN] = {0};
    if (release != NULL && !hash_base64(json_is_string(release) ? json_string_value(release) : "",
                                        json_string_length(release), hash)) {
        return invalid(err, "data.release is no base64");
    }
    *ret = (struct kpb_secret){
        .name = xstrdup(jsonx_str(t.json, "metadata.name", "")),
        .ns = xstrdup(jsonx_str(t.json, "metadata.namespace", "")),
        .uid = xstrdup(jsonx_str(t.json, "metadata.uid", "")),
        .resource_version = xstrdup(jsonx_str(t.json, "metadata.resourceVersion", "")),
        .label_status = xstrdup(jsonx_str(t.json, "metadata.labels.status", "")),
        .label_name = xstrdup(jsonx_str(t.json, "metadata.labels.name", "")),
        .has_release = release != NULL};
    memcpy(ret->release_hash, hash, sizeof(hash));
    return ERR_NONE;
}

/* ---- amending ---- */

/* text[begin..end) becomes these bytes. */
struct edit {
    struct span where;
    struct buf bytes;
};

struct edits {
    struct edit *list;
    size_t count;
    /* What is to be added to each object: "key":value,... */
    struct buf to_text, to_metadata, to_annotations;
    bool overflow;
};

static void edits_release(struct edits *e)
{
    for (size_t i = 0; i < e->count; i++) {
        buf_release(&e->list[i].bytes);
    }
    free(e->list);
    buf_release(&e->to_text);
    buf_release(&e->to_metadata);
    buf_release(&e->to_annotations);
}

/* A new edit; its bytes are to be added. */
static struct buf *replace(struct edits *e, struct span where)
{
    e->list = xrealloc(e->list, (e->count + 1) * sizeof(*e->list));
    e->list[e->count] = (struct edit){.where = where, .bytes = BUF_INIT(KPB_AMENDMENT_MAX)};
    return &e->list[e->count++].bytes;
}

static void add_key(struct buf *members, const char *key)
{
    buf_add_str(members, members->len > 0 ? "," : "");
    buf_add_json_str(members, key);
    buf_add_char(members, ':');
}

/* "key": "value", in place of old if that is there, else into members. */
static void put_text(struct edits *e, struct span old, struct buf *members, const char *key,
                     const char *value)
{
    if (old.end != 0) {
        buf_add_json_str(replace(e, old), value);
    } else {
        add_key(members, key);
        buf_add_json_str(members, value);
    }
}

/* Members into the object that is at old; if there is none yet, it becomes a member of the one
 * around it. */
static void put_members(struct edits *e, const char *text, struct span old, struct buf *around,
                        const char *key, const struct buf *members)
{
    e->overflow = e->overflow || members->overflow;
    if (members->len == 0) {
        return;
    }
    if (is_object(text, old)) {
        struct buf *bytes = replace(e, (struct span){old.begin + 1, old.begin + 1});
        buf_add(bytes, members->data, members->len);
        buf_add_str(bytes, text[skip_blank(text, old.begin + 1)] == '}' ? "" : ",");
        return;
    }
    if (old.end == 0) {
        must(around != NULL);
        add_key(around, key);
    }
    struct buf *bytes = old.end != 0 ? replace(e, old) : around;
    buf_add_char(bytes, '{');
    buf_add(bytes, members->data, members->len);
    buf_add_char(bytes, '}');
}

/* False: one of the annotations is there twice, or a key is escaped. */
static bool plan_edits(const struct text *t, const char *resource_version,
                       const struct kpb_annotation *annotations, size_t n, struct edits *e)
{
    must(t->copy != NULL);
    for (size_t i = 0; i < n; i++) {
        struct span old;
        if (!find_in(t->copy, t->annotations, &annotations[i].key, 1, &old)) {
            return false;
        }
        put_text(e, old, &e->to_annotations, annotations[i].key, annotations[i].value);
    }
    if (resource_version != NULL) {
        put_text(e, t->resource_version, &e->to_metadata, "resourceVersion", resource_version);
    }
    struct span whole = {skip_blank(t->copy, 0), strlen(t->copy)};
    put_members(e, t->copy, t->annotations, &e->to_metadata, "annotations", &e->to_annotations);
    put_members(e, t->copy, t->metadata, &e->to_text, "metadata", &e->to_metadata);
    put_members(e, t->copy, whole, NULL, NULL, &e->to_text);
    return true;
}

static int by_place(const void *a, const void *b)
{
    const struct edit *one = a;
    const struct edit *two = b;
    return one->where.begin < two->where.begin ? -1 : one->where.begin > two->where.begin;
}

enum err_kind recwire_json_amend(const char *text, size_t len, const char *resource_version,
                                 const struct kpb_annotation *annotations, size_t n,
                                 struct buf *ret, struct err *err)
{
    _cleanup_(text_release)
    struct text t = {0};
    if (read_text(text, len, &t, err)) {
        return err->kind;
    }
    _cleanup_(edits_release)
    struct edits e = {.to_text = BUF_INIT(KPB_AMENDMENT_MAX),
                      .to_metadata = BUF_INIT(KPB_AMENDMENT_MAX),
                      .to_annotations = BUF_INIT(KPB_AMENDMENT_MAX)};
    if (!plan_edits(&t, resource_version, annotations, n, &e)) {
        return invalid(err, "an annotation of it is there twice, or escaped");
    }
    /* No two overlap: each is within a member that no other replaces. */
    if (e.count > 0) {
        qsort(e.list, e.count, sizeof(*e.list), by_place);
    }
    size_t added = 0;
    for (size_t i = 0; i < e.count; i++) {
        added += e.list[i].bytes.len;
        e.overflow = e.overflow || e.list[i].bytes.overflow;
    }
    size_t room = ret->overflow ? 0 : ret->max_len - ret->len;
    if (e.overflow || added > KPB_AMENDMENT_MAX || len + added > room) {
        return err_set(err, ERR_LIMIT, "what is to be added to the Secret is too long");
    }
    size_t at = 0;
    for (size_t i = 0; i < e.count; i++) {
        buf_add(ret, text + at, e.list[i].where.begin - at);
        buf_add(ret, buf_str(&e.list[i].bytes), e.list[i].bytes.len);
        at = e.list[i].where.end;
    }
    buf_add(ret, text + at, len - at);
    return ERR_NONE;
}
