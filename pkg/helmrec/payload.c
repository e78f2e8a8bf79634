/* The payload: Secret.data.release is base64 (the API's own), of base64 (helm's), of gzip, of JSON.
 */
#include "helmrec/helmrec_internal.h"

#include <limits.h>
#include <string.h>
#include <zlib.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "jsonx/jsonx.h"

void helmrec_bytes_release(struct helmrec_bytes *b)
{
    free(b->data);
    *b = (struct helmrec_bytes){.data = NULL, .len = 0};
}

static int sextet(unsigned char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* RFC 4648 base64 with its padding and nothing else in it, as Go's StdEncoding writes it. */
static bool base64_decode(const unsigned char *in, size_t len, struct helmrec_bytes *ret)
{
    size_t pad = len > 0 && in[len - 1] == '=' ? (len > 1 && in[len - 2] == '=' ? 2 : 1) : 0;
    if (len % 4 != 0) {
        return false;
    }
    _cleanup_bytes_ struct helmrec_bytes out = {.data = xmalloc(len / 4 * 3 + 1), .len = 0};
    uint32_t word = 0;
    for (size_t i = 0; i < len; i++) {
        int v = i >= len - pad ? 0 : sextet(in[i]);
        if (v < 0) {
            return false;
        }
        word = word << 6 | (uint32_t)v;
        if (i % 4 == 3) {
            out.data[out.len++] = (unsigned char)(word >> 16);
            out.data[out.len++] = (unsigned char)(word >> 8);
            out.data[out.len++] = (unsigned char)word;
            word = 0;
        }
    }
    out.len -= pad;
    *ret = out;
    out.data = NULL;
    return true;
}

/* One or more gzip members, up to LIMIT_RECORD_BYTES together. */
static enum err_kind gunzip(const struct helmrec_bytes *in, struct helmrec_bytes *ret,
                            struct err *err)
{
    if (in->len > UINT_MAX) {
        return err_set(err, ERR_LIMIT, "payload of %zu bytes", in->len);
    }
    z_stream z = {.next_in = in->data, .avail_in = (unsigned)in->len};
    must(inflateInit2(&z, 16 + MAX_WBITS) == Z_OK); /* 16: gzip framing only */
    _cleanup_bytes_ struct helmrec_bytes out = {.data = NULL, .len = 0};
    size_t cap = 0;
    int rc = Z_OK;
    /* One byte more than allowed, so that a payload of exactly the limit is told from a longer one.
     */
    while (rc == Z_OK && out.len <= LIMIT_RECORD_BYTES) {
        if (out.len == cap) {
            cap = cap == 0 ? 64U << 10 : cap * 2;
            cap = cap > LIMIT_RECORD_BYTES + 1 ? LIMIT_RECORD_BYTES + 1 : cap;
            out.data = xrealloc(out.data, cap);
        }
        z.next_out = out.data + out.len;
        z.avail_out = (unsigned)(cap - out.len);
        rc = inflate(&z, Z_NO_FLUSH);
        out.len = cap - z.avail_out;
        if (rc == Z_STREAM_END && z.avail_in > 0) {
            rc = inflateReset(&z);
        }
    }
    must(inflateEnd(&z) == Z_OK);
    if (out.len > LIMIT_RECORD_BYTES) {
        return err_set(err, ERR_LIMIT, "payload unpacks to more than %u bytes", LIMIT_RECORD_BYTES);
    }
    if (rc != Z_STREAM_END) {
        return err_set(err, ERR_INVALID, "payload is no whole gzip stream");
    }
    *ret = out;
    out.data = NULL;
    return ERR_NONE;
}

enum err_kind helmrec_unpack(const json_t *secret, struct helmrec_bytes *ret, struct err *err)
{
    const json_t *text = jsonx_at(secret, "data.release");
    if (!json_is_string(text)) {
        return err_set(err, ERR_INVALID, "there is no data.release");
    }
    _cleanup_bytes_ struct helmrec_bytes inner = {.data = NULL, .len = 0};
    _cleanup_bytes_ struct helmrec_bytes packed = {.data = NULL, .len = 0};
    if (!base64_decode((const unsigned char *)json_string_value(text), json_string_length(text),
                       &inner) ||
        !base64_decode(inner.data, inner.len, &packed)) {
        return err_set(err, ERR_INVALID, "data.release is not base64 of base64");
    }
    /* As helm does: records from before it compressed them are plain JSON. */
    if (packed.len < 4 || memcmp(packed.data, "\x1f\x8b\x08", 3) != 0) {
        if (packed.len > LIMIT_RECORD_BYTES) {
            return err_set(err, ERR_LIMIT, "payload is longer than %u bytes", LIMIT_RECORD_BYTES);
        }
        *ret = packed;
        packed.data = NULL;
        return ERR_NONE;
    }
    return gunzip(&packed, ret, err);
}

static enum err_kind decode(const json_t *secret, struct helmrec_payload **ret, struct err *err)
{
    _cleanup_bytes_ struct helmrec_bytes text = {.data = NULL, .len = 0};
    if (helmrec_unpack(secret, &text, err) != ERR_NONE) {
        return err->kind;
    }
    _cleanup_json_ json_t *release = NULL;
    struct err cause = ERR_INIT;
    if (jsonx_parse((const char *)text.data, text.len, &release, &cause) != ERR_NONE) {
        /* Not the parser's own words: they may quote values. */
        return err_set(err, cause.kind, "payload is not JSON");
    }
    const char *status = jsonx_str(release, "info.status", NULL);
    int64_t revision = jsonx_int(release, "version", 0);
    if (status == NULL || revision < 1) {
        return err_set(err, ERR_INVALID, "payload has no info.status or no version");
    }
    struct helmrec_payload *p = xcalloc(1, sizeof(*p));
    p->status = helmrec_status_of(status);
    p->revision = revision;
    p->description = xstrdup(jsonx_str(release, "info.description", ""));
    p->chart_name = xstrdup(jsonx_str(release, "chart.metadata.name", ""));
    p->chart_version = xstrdup(jsonx_str(release, "chart.metadata.version", ""));
    json_t *config = json_object_get(release, "config");
    p->config = json_is_object(config) ? json_incref(config) : json_object();
    must(p->config != NULL);
    p->manifest = xstrdup(jsonx_str(release, "manifest", ""));
    json_t *hooks = json_object_get(release, "hooks");
    p->hooks = json_is_array(hooks) ? json_incref(hooks) : json_array();
    must(p->hooks != NULL);
    *ret = p;
    return ERR_NONE;
}

enum err_kind helmrec_payload_decode(const json_t *secret, struct helmrec_payload **ret,
                                     struct err *err)
{
    if (decode(secret, ret, err) != ERR_NONE) {
        return err_wrap(err, "read Helm record %s",
                        jsonx_str(secret, "metadata.name", "without a name"));
    }
    return ERR_NONE;
}

void helmrec_payload_free(struct helmrec_payload *p)
{
    if (p == NULL) {
        return;
    }
    free(p->description);
    free(p->chart_name);
    free(p->chart_version);
    json_decref(p->config);
    free(p->manifest);
    json_decref(p->hooks);
    free(p);
}
