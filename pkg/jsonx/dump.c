/* Writing JSON: our own, because jansson 2.14 writes 0.1 as 0.10000000000000001, and a digest must
 * not depend on its version. */
#include "jsonx/jsonx.h"

#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/number.h"

/* A bound for our own mistakes only: what came in had at most LIMIT_BODY_BYTES, and no byte is
 * written as more than six. */
#define DUMP_BYTES_MAX (6U * LIMIT_BODY_BYTES)

/* Bytes at s that JSON may hold as they are but a YAML reader (helm's) refuses or changes: DEL and
 * the C1 controls, which are no printable characters of YAML 1.1; its line breaks NEL, LS and PS,
 * which are folded together with the blanks beside them; the byte order mark; U+FFFE and U+FFFF. 0
 * if s begins with none of these, else the length and the character. */
static size_t yaml_unsafe(const unsigned char *s, size_t len, unsigned *ret_char)
{
    if (s[0] == 0x7F) {
        *ret_char = s[0];
        return 1;
    }
    if (s[0] == 0xC2 && len >= 2 && s[1] <= 0x9F) {
        *ret_char = s[1];
        return 2;
    }
    if ((s[0] != 0xE2 && s[0] != 0xEF) || len < 3) {
        return 0;
    }
    unsigned c = (s[0] & 0x0FU) << 12 | (s[1] & 0x3FU) << 6 | (s[2] & 0x3FU);
    *ret_char = c;
    return c == 0x2028 || c == 0x2029 || c == 0xFEFF || c >= 0xFFFE ? 3 : 0;
}

/* The two-character escape of c, or 0. */
static char short_escape(unsigned char c)
{
    switch (c) {
    case '"':
    case '\\':
        return (char)c;
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    default:
        return 0;
    }
}

static void write_string(struct buf *out, const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    buf_add_char(out, '"');
    size_t plain = 0; /* where what is not yet written begins */
    for (size_t i = 0; i < len;) {
        unsigned c = s[i];
        char escape = short_escape(s[i]);
        size_t n = c < 0x20 || escape != 0 ? 1 : yaml_unsafe(s + i, len - i, &c);
        if (n == 0) {
            i++;
            continue;
        }
        buf_add(out, s + plain, i - plain);
        if (escape != 0) {
            buf_add(out, (char[]){'\\', escape}, 2);
        } else {
            buf_addf(out, "\\u%04x", c);
        }
        i += n;
        plain = i;
    }
    buf_add(out, s + plain, len - plain);
    buf_add_char(out, '"');
}

static void write_real(struct buf *out, double d, bool canonical)
{
    must(isfinite(d));
    int64_t whole = 0;
    if (number_is_integer(d, &whole)) {
        /* To helm's templates -0.0 is not 0. As a number it is the same. */
        bool negative_zero = d == 0 && signbit(d) != 0 && !canonical;
        buf_addf(out, negative_zero ? "-0.0" : "%lld", (long long)whole);
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

static void write_integer(struct buf *out, int64_t i, bool canonical)
{
    if (canonical) {
        /* Beyond 2^53 many integers are one double, and so one number to jsonx_equal and to helm.
         */
        write_real(out, (double)i, canonical);
    } else {
        buf_addf(out, "%lld", (long long)i);
    }
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
        write_integer(out, json_integer_value(j), canonical);
        break;
    case JSON_REAL:
        write_real(out, json_real_value(j), canonical);
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
    _cleanup_(free_cstr)
    char *text = jsonx_dump_canonical(j);
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    must(EVP_Digest(text, strlen(text), hash, &len, EVP_sha256(), NULL) == 1);
    must(len == 32);
    text_hex(hash, len, out);
}
