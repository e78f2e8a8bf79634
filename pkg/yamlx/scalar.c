#include "yamlx/scalar.h"

#include <errno.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strcmp(text, *words) == 0) {
            return true;
        }
    }
    return false;
}

static const char *const true_words[] = {"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", NULL};
static const char *const false_words[] = {"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF", NULL};
static const char *const null_words[] = {"", "~", "null", "Null", "NULL", NULL};
static const char *const unreal_words[] = {".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf",
                                           "-.Inf", "-.INF", NULL};

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}

/* Go's ParseInt and ParseUint with base 0: optional sign, 0x 0o 0b prefixes, a leading 0 is octal. Values over int64 are
 * reals (JSON numbers that Go reads as float64); unsigned ones only without a sign. NULL if it is none of these. */
static json_t *parse_integer(const char *text)
{
    bool negative = text[0] == '-';
    bool signed_ = negative || text[0] == '+';
    const char *p = text + (signed_ ? 1 : 0);
    unsigned base = 10;
    if (p[0] == '0' && p[1] != '\0') {
        char c = (char)(p[1] | 0x20);
        base = c == 'x' ? 16 : c == 'b' ? 2 : 8;
        p += c == 'x' || c == 'b' || c == 'o' ? 2 : 1;
    }
    if (*p == '\0') {
        return NULL;
    }
    uint64_t value = 0;
    for (; *p != '\0'; p++) {
        unsigned digit = (unsigned)digit_of(*p);
        if (digit >= base || __builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) {
            return NULL;
        }
    }
    if (value <= (uint64_t)INT64_MAX) {
        return json_integer(negative ? -(json_int_t)value : (json_int_t)value);
    }
    if (negative && value == (uint64_t)INT64_MAX + 1) {
        return json_integer(INT64_MIN);
    }
    return signed_ ? NULL : json_real((double)value);
}

static const char *skip_digits(const char *p)
{
    while (*p >= '0' && *p <= '9') {
        p++;
    }
    return p;
}

/* ^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$ */
static bool is_float(const char *text)
{
    const char *p = text + (*text == '-' || *text == '+' ? 1 : 0);
    const char *begin = p;
    p = skip_digits(p);
    bool whole = p != begin;
    if (*p == '.') {
        const char *fraction = p + 1;
        p = skip_digits(fraction);
        if (!whole && p == fraction) {
            return false;
        }
    } else if (!whole) {
        return false;
    }
    if (*p == 'e' || *p == 'E') {
        p += p[1] == '-' || p[1] == '+' ? 2 : 1;
        const char *exponent = p;
        p = skip_digits(p);
        if (p == exponent) {
            return false;
        }
    }
    return *p == '\0';
}

static json_t *parse_float(const char *text)
{
    if (!is_float(text)) {
        return NULL;
    }
    double d = strtod(text, NULL);
    return isfinite(d) ? json_real(d) : NULL; /* out of range: Go reports it, and the scalar stays a string */
}

static json_t *parse_number(const char *text)
{
    char first = text[0];
    bool may_be = (first >= '0' && first <= '9') || first == '-' || first == '+' || first == '.';
    if (!may_be) {
        return NULL;
    }
    if (first == '.') {
        return parse_float(text);
    }
    /* Underscores are digit separators. */
    _cleanup_(free_cstr) char *plain = xmalloc(strlen(text) + 1);
    size_t n = 0;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p != '_') {
            plain[n++] = *p;
        }
    }
    plain[n] = '\0';
    json_t *integer = parse_integer(plain);
    return integer != NULL ? integer : parse_float(plain);
}

static json_t *parse_binary(const char *text, size_t len, const char **ret_why)
{
    _cleanup_(free_cstr) char *compact = xmalloc(len + 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] != ' ' && text[i] != '\n' && text[i] != '\t' && text[i] != '\r') {
            compact[n++] = text[i];
        }
    }
    _cleanup_(free_cstr) char *out = xmalloc(n / 4 * 3 + 4);
    int decoded = n % 4 == 0 ? EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)compact, (int)n) : -1;
    size_t pad = n >= 2 ? (size_t)(compact[n - 1] == '=') + (size_t)(compact[n - 2] == '=') : 0;
    json_t *j = decoded >= 0 ? json_stringn(out, (size_t)decoded - pad) : NULL;
    *ret_why = j == NULL ? "!!binary is no base64 of text" : NULL;
    return j;
}

json_t *scalar_resolve(const char *text, size_t len, const char *tag, bool plain, const char **ret_why)
{
    bool fixed = tag[0] != '\0';
    if (strcmp(tag, "!!binary") == 0) {
        return parse_binary(text, len, ret_why);
    }
    bool has_nul = memchr(text, '\0', len) != NULL;
    bool typed = strcmp(tag, "!!int") == 0 || strcmp(tag, "!!float") == 0 || strcmp(tag, "!!bool") == 0 ||
                 strcmp(tag, "!!null") == 0;
    json_t *j = NULL;
    if (!has_nul && (plain || typed) && !(fixed && !typed)) {
        if (is_one_of(text, unreal_words)) {
            *ret_why = ".inf and .nan have no place in JSON";
            return NULL;
        }
        j = is_one_of(text, true_words)    ? json_true()
            : is_one_of(text, false_words) ? json_false()
            : is_one_of(text, null_words)  ? json_null()
                                           : parse_number(text);
        bool fits = j != NULL && (!typed || (strcmp(tag, "!!int") == 0 && json_is_integer(j)) ||
                                  (strcmp(tag, "!!float") == 0 && json_is_number(j)) ||
                                  (strcmp(tag, "!!bool") == 0 && json_is_boolean(j)) ||
                                  (strcmp(tag, "!!null") == 0 && json_is_null(j)));
        if (typed && !fits) {
            json_decref(j);
            *ret_why = "the value does not fit its tag";
            return NULL;
        }
    }
    if (j == NULL) {
        j = has_nul ? NULL : json_stringn(text, len);
        *ret_why = j == NULL ? "a string that is no UTF-8 or holds a NUL" : NULL;
    }
    return j;
}
