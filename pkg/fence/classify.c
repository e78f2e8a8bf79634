/* What a request is, by its method and target. */
#include "fence/fence.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

#define SEGMENTS_MAX  16
#define RECORD_PREFIX "sh.helm.release.v1."

struct target {
    const char *segment[SEGMENTS_MAX];
    size_t len[SEGMENTS_MAX];
    size_t count;
    bool odd; /* what no client of the API sends: empty or dot segments, encoded bytes, too many */
};

static void split(const char *target, struct target *t)
{
    *t = (struct target){.count = 0};
    size_t end = strcspn(target, "?#");
    if (end == 0 || target[0] != '/') {
        t->odd = true;
        return;
    }
    for (size_t at = 1; at <= end;) {
        size_t len = strcspn(target + at, "/?#");
        const char *s = target + at;
        bool dots = (len == 1 && s[0] == '.') || (len == 2 && s[0] == '.' && s[1] == '.');
        if (len == 0 || dots || memchr(s, '%', len) != NULL || t->count == SEGMENTS_MAX) {
            t->odd = true;
            return;
        }
        t->segment[t->count] = s;
        t->len[t->count++] = len;
        at += len + 1;
    }
}

static bool is(const struct target *t, size_t i, const char *word)
{
    return i < t->count && t->len[i] == strlen(word) && memcmp(t->segment[i], word, t->len[i]) == 0;
}

/* /api/v1/namespaces/NS/secrets[/NAME]; also without a namespace, which is for lists only. */
static bool is_secrets(const struct target *t, size_t *ret_at)
{
    if (!is(t, 0, "api") || !is(t, 1, "v1")) {
        return false;
    }
    *ret_at = is(t, 2, "namespaces") && t->count > 4 ? 4 : 2;
    return is(t, *ret_at, "secrets");
}

static bool is_read(const char *method)
{
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0 ||
           strcmp(method, "OPTIONS") == 0;
}

bool fence_needs_name(const char *method, const char *target)
{
    struct target t;
    size_t at = 0;
    split(target, &t);
    return strcmp(method, "POST") == 0 && !t.odd && is_secrets(&t, &at) && t.count == at + 1;
}

/* "sh.helm.release.v1.RELEASE.vN" */
static bool parse_record(const char *name, struct fence_request *ret)
{
    if (!text_has_prefix(name, RECORD_PREFIX)) {
        return false;
    }
    const char *release = name + strlen(RECORD_PREFIX);
    const char *dot = strrchr(release, '.');
    if (dot == NULL || dot[1] != 'v' || (size_t)(dot - release) >= sizeof(ret->release) ||
        !text_to_int64(dot + 2, 1, INT64_MAX, &ret->revision)) {
        return false;
    }
    (void)snprintf(ret->release, sizeof(ret->release), "%.*s", (int)(dot - release), release);
    return true;
}

static enum fence_kind classify_secret(const char *method, const struct target *t, size_t at,
                                       const char *body_name, struct fence_request *ret)
{
    char name[512] = "";
    bool named = t->count > at + 1;
    if (named) {
        (void)snprintf(name, sizeof(name), "%.*s", (int)t->len[at + 1], t->segment[at + 1]);
    } else if (body_name != NULL) {
        (void)snprintf(name, sizeof(name), "%s", body_name);
    }
    bool posts = strcmp(method, "POST") == 0;
    if (posts == named || at != 4 || (posts && body_name == NULL)) {
        return FENCE_FORBIDDEN; /* a deletecollection, or a POST whose name is not known */
    }
    if (!text_has_prefix(name, RECORD_PREFIX)) {
        return FENCE_WRITE;
    }
    if (!parse_record(name, ret) || t->count > at + 2) {
        return FENCE_FORBIDDEN;
    }
    bool updates = strcmp(method, "PUT") == 0;
    return posts                           ? FENCE_RECORD_CREATE
           : updates                       ? FENCE_RECORD_UPDATE
           : strcmp(method, "DELETE") == 0 ? FENCE_RECORD_DELETE
                                           : FENCE_FORBIDDEN; /* helm never patches a record */
}

void fence_classify(const char *method, const char *target, const char *body_name,
                    struct fence_request *ret)
{
    *ret = (struct fence_request){.kind = FENCE_WRITE};
    struct target t;
    split(target, &t);
    if (is_read(method)) {
        ret->kind = FENCE_READ;
        return;
    }
    if (t.odd) {
        ret->kind = FENCE_FORBIDDEN;
        return;
    }
    size_t at = 0;
    if (is_secrets(&t, &at)) {
        if (at == 4) {
            (void)snprintf(ret->ns, sizeof(ret->ns), "%.*s", (int)t.len[3], t.segment[3]);
        }
        ret->kind = classify_secret(method, &t, at, body_name, ret);
    } else if (is(&t, 0, "apis") && is(&t, 1, "apiextensions.k8s.io") &&
               is(&t, 3, "customresourcedefinitions")) {
        ret->kind = FENCE_CRD;
    }
}
