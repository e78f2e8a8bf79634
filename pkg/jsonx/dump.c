/* Writing JSON: our own, because jansson 2.14 writes 0.1 as 0.10000000000000001, and a digest must not depend on its version. */
#include "jsonx/jsonx.h"

#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

/* Twice what an API object can have: a bound for our own mistakes only. */
#define DUMP_BYTES_MAX (2U * LIMIT_BODY_BYTES)
/* Whole doubles below 2^53 are exact, and are written as integers. */
#define EXACT_MAX 9007199254740992.0

static void write_string(struct buf *out, const char *s, size_t len)
{
    buf_add_char(out, '"');
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        switch (c) {
        case '"':
            buf_add_str(out, "\\\"");
            break;
        case '\\':
            buf_add_str(out, "\\\\");
            break;
        case '\n':
            buf_add_str(out, "\\n");
            break;
        case '\r':
            buf_add_str(out, "\\r");
            break;
        case '\t':
            buf_add_str(out, "\\t");
            break;
        default:
            if (c < 0x20 || c == 0x7F) {
                buf_addf(out, "\\u%04x", c);
            } else {
                buf_add_char(out, (char)c);
            }
        }
    }
    buf_add_char(out, '"');
}

static void write_real(struct buf *out, double d)
{
    must(isfinite(d));
    if (d == trunc(d) && fabs(d) < EXACT_MAX) {
        buf_addf(out, "%lld", (long long)d);
        return;
    }
    char text[40];
    for (int precision = 15; precision <= 17; precision++) {
        (void)snprintf(text, sizeof(text), "%.*g", precision, d);
        if (strtod(text, NULL) == d) {
            break;
        }
    }
    buf_add_str(out, text);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void write_at(struct buf *out, const json_t *j, bool canonical, int depth);

static void write_object(struct buf *out, const json_t *j, bool canonical, int depth)
{
    size_t n = json_object_size(j);
    const char **keys = xcalloc(n, sizeof(const char *));
    const char *key;
    json_t *value;
    size_t i = 0;
    json_object_foreach((json_t *)j, key, value)
    {
        keys[i++] = key;
    }
    if (canonical && n > 1) {
        qsort(keys, n, sizeof(const char *), compare_keys);
    }
    buf_add_char(out, '{');
    for (i = 0; i < n; i++) {
        buf_add_str(out, i > 0 ? "," : "");
        write_string(out, keys[i], strlen(keys[i]));
        buf_add_char(out, ':');
        write_at(out, json_object_get(j, keys[i]), canonical, depth - 1);
    }
    buf_add_char(out, '}');
    free(keys);
}

static void write_at(struct buf *out, const json_t *j, bool canonical, int depth)
{
    must(depth > 0);
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        write_object(out, j, canonical, depth);
        break;
    case JSON_ARRAY:
        buf_add_char(out, '[');
        for (size_t i = 0; i < json_array_size(j); i++) {
            buf_add_str(out, i > 0 ? "," : "");
            write_at(out, json_array_get(j, i), canonical, depth - 1);
        }
        buf_add_char(out, ']');
        break;
    case JSON_STRING:
        write_string(out, json_string_value(j), json_string_length(j));
        break;
    case JSON_INTEGER:
        buf_addf(out, "%lld", (long long)json_integer_value(j));
        break;
    case JSON_REAL:
        write_real(out, json_real_value(j));
        break;
    case JSON_TRUE:
        buf_add_str(out, "true");
        break;
    case JSON_FALSE:
        buf_add_str(out, "false");
        break;
    case JSON_NULL:
        buf_add_str(out, "null");
        break;
    }
}

void jsonx_write(struct buf *out, const json_t *j, bool canonical)
{
    write_at(out, j, canonical, 4 * LIMIT_DEPTH);
}

static char *dump(const json_t *j, bool canonical)
{
    struct buf out = BUF_INIT(DUMP_BYTES_MAX);
    jsonx_write(&out, j, canonical);
    must(!out.overflow);
    return buf_take(&out);
}

char *jsonx_dump(const json_t *j)
{
    return dump(j, false);
}

char *jsonx_dump_canonical(const json_t *j)
{
    return dump(j, true);
}

void jsonx_digest(const json_t *j, char *out)
{
    _cleanup_(free_cstr) char *text = jsonx_dump_canonical(j);
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    must(EVP_Digest(text, strlen(text), hash, &len, EVP_sha256(), NULL) == 1);
    must(len == 32);
    text_hex(hash, len, out);
}
