/* What a scalar means is found from its text: the words of YAML 1.1, then Go's integers (any base,
 * with underscores), then decimal reals, else it is a string. Timestamps stay strings, as helm's
 * reader leaves them; a !!timestamp tag is not checked for more than that. */
#include "yamlx/scalar.h"

#include <math.h>
#include <openssl/evp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

/* What the text of a scalar says it is. */
enum kind { KIND_STRING, KIND_NULL, KIND_BOOL, KIND_INT, KIND_UINT64, KIND_FLOAT };

struct meaning {
    enum kind kind;
    bool truth;
    int64_t integer;
    double real; /* KIND_UINT64 and KIND_FLOAT; may be infinite or no number */
};

static const struct {
    const char *word;
    struct meaning means;
} words[] = {
    {"", {.kind = KIND_NULL}},
    {"~", {.kind = KIND_NULL}},
    {"null", {.kind = KIND_NULL}},
    {"Null", {.kind = KIND_NULL}},
    {"NULL", {.kind = KIND_NULL}},
    {"y", {.kind = KIND_BOOL, .truth = true}},
    {"Y", {.kind = KIND_BOOL, .truth = true}},
    {"yes", {.kind = KIND_BOOL, .truth = true}},
    {"Yes", {.kind = KIND_BOOL, .truth = true}},
    {"YES", {.kind = KIND_BOOL, .truth = true}},
    {"true", {.kind = KIND_BOOL, .truth = true}},
    {"True", {.kind = KIND_BOOL, .truth = true}},
    {"TRUE", {.kind = KIND_BOOL, .truth = true}},
    {"on", {.kind = KIND_BOOL, .truth = true}},
    {"On", {.kind = KIND_BOOL, .truth = true}},
    {"ON", {.kind = KIND_BOOL, .truth = true}},
    {"n", {.kind = KIND_BOOL}},
    {"N", {.kind = KIND_BOOL}},
    {"no", {.kind = KIND_BOOL}},
    {"No", {.kind = KIND_BOOL}},
    {"NO", {.kind = KIND_BOOL}},
    {"false", {.kind = KIND_BOOL}},
    {"False", {.kind = KIND_BOOL}},
    {"FALSE", {.kind = KIND_BOOL}},
    {"off", {.kind = KIND_BOOL}},
    {"Off", {.kind = KIND_BOOL}},
    {"OFF", {.kind = KIND_BOOL}},
    {".nan", {.kind = KIND_FLOAT, .real = NAN}},
    {".NaN", {.kind = KIND_FLOAT, .real = NAN}},
    {".NAN", {.kind = KIND_FLOAT, .real = NAN}},
    {".inf", {.kind = KIND_FLOAT, .real = INFINITY}},
    {".Inf", {.kind = KIND_FLOAT, .real = INFINITY}},
    {".INF", {.kind = KIND_FLOAT, .real = INFINITY}},
    {"+.inf", {.kind = KIND_FLOAT, .real = INFINITY}},
    {"+.Inf", {.kind = KIND_FLOAT, .real = INFINITY}},
    {"+.INF", {.kind = KIND_FLOAT, .real = INFINITY}},
    {"-.inf", {.kind = KIND_FLOAT, .real = -INFINITY}},
    {"-.Inf", {.kind = KIND_FLOAT, .real = -INFINITY}},
    {"-.INF", {.kind = KIND_FLOAT, .real = -INFINITY}},
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static unsigned digit_of(char c)
{
    if (is_digit(c)) {
        return (unsigned)(c - '0');
    }
    char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? (unsigned)(lower - 'a') + 10 : 99;
}

/* Sign, and a prefix that names the base; a leading 0 is octal. *ret_sign is '+', '-' or 0. */
static unsigned base_and_sign(const char **p, char *ret_sign)
{
    *ret_sign = **p == '-' || **p == '+' ? *(*p)++ : (char)0;
    if ((*p)[0] != '0' || (*p)[1] == '\0') {
        return 10;
    }
    char c = (*p)[1];
    switch (c | 0x20) {
    case 'x':
        *p += 2;
        return 16;
    case 'o':
        *p += 2;
        return 8;
    case 'b':
        *p += 2;
        /* "0b-1" is -1 to go-yaml, by an accident that is kept. */
        if (*ret_sign == 0 && c == 'b' && (**p == '-' || **p == '+')) {
            *ret_sign = *(*p)++;
        }
        return 2;
    default:
        *p += 1;
        return 8;
    }
}

static bool read_integer(const char *p, struct meaning *ret)
{
    char sign;
    unsigned base = base_and_sign(&p, &sign);
    if (*p == '\0') {
        return false;
    }
    uint64_t value = 0;
    for (; *p != '\0'; p++) {
        unsigned digit = digit_of(*p);
        if (digit >= base || __builtin_mul_overflow(value, base, &value) ||
            __builtin_add_overflow(value, digit, &value)) {
            return false;
        }
    }
    uint64_t most = (uint64_t)INT64_MAX + (sign == '-' ? 1 : 0);
    if (value <= most) {
        *ret = (struct meaning){.kind = KIND_INT,
                                .integer = (int64_t)(sign == '-' ? 0 - value : value)};
        return true;
    }
    *ret = (struct meaning){.kind = KIND_UINT64, .real = (double)value};
    return sign == 0;
}

static const char *skip_digits(const char *p)
{
    while (is_digit(*p)) {
        p++;
    }
    return p;
}

/* Sign, digits with at most one dot and at least one digit, exponent. */
static bool looks_real(const char *p)
{
    p += *p == '-' || *p == '+' ? 1 : 0;
    const char *whole_end = skip_digits(p);
    bool any = whole_end != p;
    p = whole_end;
    if (*p == '.') {
        const char *fraction_end = skip_digits(p + 1);
        any = any || fraction_end != p + 1;
        p = fraction_end;
    }
    if (any && (*p == 'e' || *p == 'E')) {
        p += p[1] == '-' || p[1] == '+' ? 2 : 1;
        const char *end = skip_digits(p);
        any = end != p;
        p = end;
    }
    return any && *p == '\0';
}

/* False too for what is out of a double's range: go-yaml leaves that a string. */
static bool read_real(const char *text, struct meaning *ret)
{
    if (!looks_real(text)) {
        return false;
    }
    double d = strtod(text, NULL);
    *ret = (struct meaning){.kind = KIND_FLOAT, .real = d};
    return isfinite(d);
}

/* Underscores part digits. Where a text begins with a dot go-yaml is strict about their place. */
static bool underscores_ok(const char *text)
{
    for (const char *p = text; text[0] == '.' && *p != '\0'; p++) {
        if (*p == '_' && (p == text || !is_digit(p[-1]) || !is_digit(p[1]))) {
            return false;
        }
    }
    return true;
}

static bool read_number(const char *text, struct meaning *ret)
{
    char first = text[0];
    bool may_be = is_digit(first) || first == '-' || first == '+' || first == '.';
    if (!may_be || !underscores_ok(text)) {
        return false;
    }
    _cleanup_(free_cstr)
    char *plain = xmalloc(strlen(text) + 1);
    size_t n = 0;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p != '_') {
            plain[n++] = *p;
        }
    }
    plain[n] = '\0';
    return (first != '.' && read_integer(plain, ret)) || read_real(plain, ret);
}

static struct meaning meaning_of(const char *text, size_t len)
{
    struct meaning m = {.kind = KIND_STRING};
    if (strlen(text) != len) {
        return m; /* a NUL inside */
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(text, words[i].word) == 0) {
            return words[i].means;
        }
    }
    struct meaning number;
    return read_number(text, &number) ? number : m;
}

/* May a scalar with this tag mean that? Converts an integer that is tagged as a real. */
static bool fits_tag(const char *tag, struct meaning *m)
{
    if (strcmp(tag, "!!int") == 0) {
        return m->kind == KIND_INT || m->kind == KIND_UINT64;
    }
    if (strcmp(tag, "!!float") == 0) {
        if (m->kind == KIND_INT) {
            *m = (struct meaning){.kind = KIND_FLOAT, .real = (double)m->integer};
        }
        return m->kind == KIND_FLOAT;
    }
    return m->kind == (strcmp(tag, "!!bool") == 0   ? KIND_BOOL
                       : strcmp(tag, "!!null") == 0 ? KIND_NULL
                                                    : KIND_STRING);
}

/* A real as go-yaml writes it for a key: the fewest digits of a 32-bit float, with an exponent
 * below 1e-4 and from 1e6 on. */
static char *real_key(double d)
{
    /* From half way between the largest float and the next one would be. */
    const double float_end = 3.4028235677973366e38;
    if (isnan(d)) {
        return xstrdup(".nan");
    }
    if (fabs(d) >= float_end) {
        return xstrdup(d < 0 ? "-.inf" : ".inf");
    }
    float f = (float)d;
    char text[32];
    int digits = 1;
    for (; digits <= 9; digits++) {
        (void)snprintf(text, sizeof(text), "%.*e", digits - 1, (double)f);
        if (strtof(text, NULL) == f) {
            break;
        }
    }
    const char *e = strchr(text, 'e');
    must(e != NULL);
    int64_t exponent = 0;
    must(text_to_int64(e + (e[1] == '+' ? 2 : 1), -100, 100, &exponent));
    if (exponent >= -4 && exponent < 6) {
        int decimals = digits - 1 - (int)exponent;
        (void)snprintf(text, sizeof(text), "%.*f", decimals > 0 ? decimals : 0, (double)f);
    }
    return xstrdup(text);
}

static struct scalar of_string(const char *text, size_t len)
{
    struct scalar s = {0};
    if (strlen(text) == len) {
        s.value = json_stringn(text, len);
    }
    if (s.value == NULL) {
        s.why = "a string that is no UTF-8 or holds a NUL";
    } else {
        s.key = xstrdup(text);
    }
    return s;
}

/* Go's strict base64: line ends are skipped, nothing else is. Bytes that are no UTF-8 become U+FFFD
 * each, as in Go's JSON. */
static struct scalar of_base64(const char *text, size_t len)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    _cleanup_(free_cstr)
    char *in = xmalloc(len + 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] != '\n' && text[i] != '\r') {
            in[n++] = text[i];
        }
    }
    in[n] = '\0';
    size_t data = strspn(in, alphabet);
    size_t pad = strspn(in + data, "=");
    if (n % 4 != 0 || data + pad != n || pad > 2) {
        return (struct scalar){.why = "!!binary is no base64"};
    }
    _cleanup_(free_cstr)
    char *out = xmalloc(n / 4 * 3 + 1);
    int decoded = EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)in, (int)n);
    must(decoded >= (int)pad);
    size_t out_len = (size_t)decoded - pad;
    struct buf clean = BUF_INIT(3 * n + 1);
    for (size_t i = 0; i < out_len;) {
        size_t one = text_utf8_len(out + i, out_len - i);
        if (one == 0) {
            buf_add_str(&clean, "\xEF\xBF\xBD");
        } else {
            buf_add(&clean, out + i, one);
        }
        i += one == 0 ? 1 : one;
    }
    struct scalar s = of_string(buf_str(&clean), clean.len);
    buf_release(&clean);
    return s;
}

static struct scalar of_real(double d)
{
    struct scalar s = {.key = real_key(d)};
    if (isfinite(d)) {
        s.value = json_real(d);
    } else {
        s.why = ".inf and .nan have no place in JSON";
    }
    return s;
}

struct scalar scalar_resolve(const char *text, size_t len, const char *tag, bool plain)
{
    if (strcmp(tag, "!!binary") == 0) {
        return of_base64(text, len);
    }
    static const char *const typed[] = {"!!int", "!!float", "!!bool", "!!null", "!!timestamp"};
    bool is_typed = false;
    for (size_t i = 0; i < sizeof(typed) / sizeof(typed[0]); i++) {
        is_typed = is_typed || strcmp(tag, typed[i]) == 0;
    }
    if (!is_typed && (!plain || tag[0] != '\0')) {
        return of_string(text, len); /* quoted, !!str, or a tag of somebody's own */
    }
    struct meaning m = meaning_of(text, len);
    if (is_typed && !fits_tag(tag, &m)) {
        return (struct scalar){.why = "the value does not fit its tag"};
    }
    switch (m.kind) {
    case KIND_STRING:
        return of_string(text, len);
    case KIND_NULL:
        return (struct scalar){.value = json_null()};
    case KIND_BOOL:
        return (struct scalar){.value = json_boolean(m.truth),
                               .key = xstrdup(m.truth ? "true" : "false")};
    case KIND_INT:
        return (struct scalar){.value = json_integer(m.integer),
                               .key = xasprintf("%lld", (long long)m.integer)};
    case KIND_UINT64:
        return (struct scalar){.value = json_real(m.real)}; /* no key: helm refuses it */
    case KIND_FLOAT:
        return of_real(m.real);
    }
    return (struct scalar){.why = "a scalar of no known kind"};
}
