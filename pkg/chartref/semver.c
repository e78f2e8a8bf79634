/* Versions: reading and SemVer 2.0 precedence, as lenient as Masterminds/semver v3's NewVersion. */
#include "chartref/semver_scan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define VERSION_MAX 256 /* bytes: semver.MaxVersionLen */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_identifier_char(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
}

size_t semver_scan_identifiers(const char *s)
{
    size_t end = 0;
    for (;;) {
        size_t at = end == 0 ? 0 : end + 1;
        size_t start = at;
        while (is_identifier_char(s[at])) {
            at++;
        }
        if (at == start) {
            return end;
        }
        end = at;
        if (s[end] != '.') {
            return end;
        }
    }
}

/* A number of decimal digits alone; false if there is another byte or it does not fit. */
static bool parse_number(const char *s, size_t len, uint64_t *ret)
{
    uint64_t v = 0;
    for (size_t i = 0; i < len; i++) {
        if (!is_digit(s[i]) || __builtin_mul_overflow(v, 10U, &v) ||
            __builtin_add_overflow(v, (uint64_t)(s[i] - '0'), &v)) {
            return false;
        }
    }
    *ret = v;
    return len > 0;
}

/* SemVer item 9: a numeric identifier of a pre-release has no leading zero. */
static bool has_leading_zero(const char *pre)
{
    while (*pre != '\0') {
        size_t len = strcspn(pre, ".");
        if (len > 1 && pre[0] == '0' && strspn(pre, "0123456789") == len) {
            return true;
        }
        pre += len + (pre[len] == '.');
    }
    return false;
}

/* "-a.b" or "+a.b" at *s into out; *s moves behind it. */
static void take_suffix(const char **s, char mark, char *out)
{
    size_t len = **s == mark ? semver_scan_identifiers(*s + 1) : 0;
    if (len == 0) {
        return;
    }
    memcpy(out, *s + 1, len);
    out[len] = '\0';
    *s += len + 1;
}

bool semver_parse(const char *s, struct semver *ret)
{
    if (strnlen(s, VERSION_MAX + 1) > VERSION_MAX) {
        return false;
    }
    struct semver v = {0};
    uint64_t *parts[] = {&v.major, &v.minor, &v.patch};
    const char *at = s + (s[0] == 'v');
    for (size_t i = 0; i < 3; i++) {
        size_t dot = i > 0;
        if (i > 0 && !(at[0] == '.' && is_digit(at[1]))) {
            break;
        }
        size_t len = strspn(at + dot, "0123456789");
        if (!parse_number(at + dot, len, parts[i])) {
            return false;
        }
        at += dot + len;
    }
    take_suffix(&at, '-', v.pre);
    take_suffix(&at, '+', v.build);
    if (*at != '\0' || has_leading_zero(v.pre)) {
        return false;
    }
    *ret = v;
    return true;
}

static int compare_number(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* Item 11.4: numbers compare as numbers and are lower than words. A number that does not fit counts
 * as a word: the library does it so. */
static int compare_identifier(const char *a, size_t a_len, const char *b, size_t b_len)
{
    uint64_t a_number;
    uint64_t b_number;
    bool a_is_number = parse_number(a, a_len, &a_number);
    bool b_is_number = parse_number(b, b_len, &b_number);
    if (a_is_number && b_is_number) {
        return compare_number(a_number, b_number);
    }
    if (a_is_number != b_is_number) {
        return a_is_number ? -1 : 1;
    }
    int d = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return d != 0 ? (d > 0) - (d < 0) : compare_number(a_len, b_len);
}

static int compare_pre(const char *a, const char *b)
{
    /* A version without a pre-release is above all of its pre-releases. */
    if (*a == '\0' || *b == '\0') {
        return (*a == '\0') - (*b == '\0');
    }
    while (*a != '\0' && *b != '\0') {
        size_t a_len = strcspn(a, ".");
        size_t b_len = strcspn(b, ".");
        int d = compare_identifier(a, a_len, b, b_len);
        if (d != 0) {
            return d;
        }
        a += a_len + (a[a_len] == '.');
        b += b_len + (b[b_len] == '.');
    }
    return (*a != '\0') - (*b != '\0');
}

int semver_compare(const struct semver *a, const struct semver *b)
{
    int d = compare_number(a->major, b->major);
    if (d == 0) {
        d = compare_number(a->minor, b->minor);
    }
    if (d == 0) {
        d = compare_number(a->patch, b->patch);
    }
    return d != 0 ? d : compare_pre(a->pre, b->pre);
}

bool semver_is_exact(const char *s)
{
    struct semver v;
    if (!semver_parse(s, &v)) {
        return false;
    }
    const char *at = s + (s[0] == 'v');
    size_t dots = 0;
    for (; is_digit(*at) || *at == '.'; at++) {
        dots += *at == '.';
    }
    return dots == 2;
}
