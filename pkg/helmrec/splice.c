/* Replacing info.status in a payload. helm reads the payload and not the label, so a repair must
 * write it; and it must not parse and print it, for no two JSON writers agree on every number and
 * escape. The text is scanned for the place, and the rest is copied. */
#include "helmrec/helmrec_internal.h"

#include <limits.h>
#include <openssl/evp.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

#include "base/mem.h"
#include "base/must.h"
#include "jsonx/jsonx.h"

/* ---- the place ---- */

struct scan {
    const char *at, *end;
};

static void skip_space(struct scan *s)
{
    while (s->at < s->end &&
           (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) {
        s->at++;
    }
}

static bool take(struct scan *s, char c)
{
    bool there = s->at < s->end && *s->at == c;
    s->at += there ? 1 : 0;
    return there;
}

/* From its opening quote to behind its closing one. */
static bool skip_string(struct scan *s)
{
    if (!take(s, '"')) {
        return false;
    }
    while (s->at < s->end) {
        char c = *s->at++;
        if (c == '"') {
            return true;
        }
        if (c == '\\' && s->at < s->end) {
            s->at++;
        }
    }
    return false;
}

static bool skip_number_or_word(struct scan *s)
{
    const char *from = s->at;
    while (s->at < s->end && strchr(",]} \t\n\r", *s->at) == NULL) {
        s->at++;
    }
    return s->at != from;
}

/* One value of valid JSON: brackets are counted, not matched. */
static bool skip_value(struct scan *s)
{
    size_t depth = 0;
    while (s->at < s->end) {
        char c = *s->at;
        if (c == '"') {
            if (!skip_string(s)) {
                return false;
            }
        } else if (c == '{' || c == '[') {
            depth++;
            s->at++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) {
                return false;
            }
            depth--;
            s->at++;
        } else if (depth == 0) {
            return skip_number_or_word(s);
        } else {
            s->at++;
        }
        if (depth == 0) {
            return true;
        }
    }
    return false;
}

/* helm's own keys are plain words. One with an escape, or in another case or script, could be
 * "status" to Go's reader and something else here. */
static bool is_plain(const char *key, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (key[i] == '\\' || key[i] < ' ' || key[i] > '~') {
            return false;
        }
    }
    return true;
}

static const char malformed[] = "payload is not JSON";

/* The value of the one member of that name. NULL, or what is wrong. */
static const char *find_member(struct scan in, const char *name, struct scan *ret)
{
    size_t found = 0;
    skip_space(&in);
    if (!take(&in, '{')) {
        return "payload has a value of another kind where an object should be";
    }
    skip_space(&in);
    bool more = in.at < in.end && *in.at != '}';
    while (more) {
        skip_space(&in);
        const char *key = in.at + 1;
        if (!skip_string(&in)) {
            return malformed;
        }
        size_t len = (size_t)(in.at - key) - 1;
        skip_space(&in);
        bool colon = take(&in, ':');
        skip_space(&in);
        struct scan value = {.at = in.at};
        if (!colon || !skip_value(&in)) {
            return malformed;
        }
        value.end = in.at;
        if (!is_plain(key, len)) {
            return "payload has a strange key beside info or status";
        }
        if (len == strlen(name) && strncasecmp(key, name, len) == 0) {
            found += memcmp(key, name, len) == 0 ? 1 : 2;
            *ret = value;
        }
        skip_space(&in);
        more = take(&in, ',');
    }
    if (!take(&in, '}')) {
        return malformed;
    }
    return found == 1   ? NULL
           : found == 0 ? "payload has no info.status"
                        : "payload has info or status more than once";
}

/* ---- packing ---- */

static struct helmrec_bytes gzip(const struct helmrec_bytes *in)
{
    z_stream z = {.next_in = in->data, .avail_in = (unsigned)in->len};
    /* As helm packs it: a record near etcd's limit must not outgrow it. */
    must(deflateInit2(&z, Z_BEST_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY) ==
         Z_OK);
    size_t cap = deflateBound(&z, in->len);
    struct helmrec_bytes out = {.data = xmalloc(cap), .len = 0};
    z.next_out = out.data;
    z.avail_out = (unsigned)cap;
    must(deflate(&z, Z_FINISH) == Z_STREAM_END);
    out.len = cap - z.avail_out;
    must(deflateEnd(&z) == Z_OK);
    return out;
}

static char *base64(const void *bytes, size_t len)
{
    must(len < INT_MAX / 2);
    char *out = xmalloc((len + 2) / 3 * 4 + 1);
    EVP_EncodeBlock((unsigned char *)out, bytes, (int)len);
    return out;
}

static char *pack(const struct helmrec_bytes *text)
{
    _cleanup_bytes_ struct helmrec_bytes packed = gzip(text);
    _cleanup_(free_cstr)
    char *inner = base64(packed.data, packed.len);
    return base64(inner, strlen(inner));
}

static enum err_kind splice(const json_t *secret, const char *word, char **ret, struct err *err)
{
    _cleanup_bytes_ struct helmrec_bytes text = {.data = NULL, .len = 0};
    if (helmrec_unpack(secret, &text, err) != ERR_NONE) {
        return err->kind;
    }
    _cleanup_json_ json_t *whole = NULL;
    struct err cause = ERR_INIT;
    if (jsonx_parse((const char *)text.data, text.len, &whole, &cause) != ERR_NONE) {
        return err_set(err, cause.kind, "%s", malformed); /* the parser's words may quote values */
    }
    struct scan all = {.at = (const char *)text.data, .end = (const char *)text.data + text.len};
    struct scan info = {0};
    struct scan status = {0};
    const char *wrong = find_member(all, "info", &info);
    wrong = wrong == NULL ? find_member(info, "status", &status) : wrong;
    if (wrong == NULL && *status.at != '"') {
        wrong = "payload's info.status is no string";
    }
    if (wrong != NULL) {
        return err_set(err, ERR_INVALID, "%s", wrong);
    }
    size_t head = (size_t)(status.at - all.at) + 1; /* with the quote */
    size_t tail = (size_t)(all.end - status.end) + 1;
    size_t len = strlen(word);
    _cleanup_bytes_ struct helmrec_bytes out = {.data = xmalloc(head + len + tail),
                                                .len = head + len + tail};
    memcpy(out.data, all.at, head);
    memcpy(out.data + head, word, len);
    memcpy(out.data + head + len, status.end - 1, tail);
    *ret = pack(&out);
    return ERR_NONE;
}

enum err_kind helmrec_payload_splice_status(const json_t *secret, enum helmrec_status status,
                                            char **ret_release, struct err *err)
{
    if (splice(secret, helmrec_status_name(status), ret_release, err) != ERR_NONE) {
        return err_wrap(err, "edit Helm record %s",
                        jsonx_str(secret, "metadata.name", "without a name"));
    }
    return ERR_NONE;
}
