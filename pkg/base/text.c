#include "base/text.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"

size_t text_utf8_len(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    if (len == 0) {
        return 0;
    }
    unsigned char c = s[0];
    if (c < 0x80) {
        return 1;
    }
    size_t need = c >= 0xC2 && c <= 0xDF   ? 2
                  : (c & 0xF0) == 0xE0     ? 3
                  : c >= 0xF0 && c <= 0xF4 ? 4
                                           : 0;
    if (need == 0 || len < need) {
        return 0;
    }
    for (size_t i = 1; i < need; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (c == 0xE0 && s[1] < 0xA0) || (c == 0xF0 && s[1] < 0x90);
    bool surrogate = c == 0xED && s[1] > 0x9F;
    bool beyond = c == 0xF4 && s[1] > 0x8F;
    return overlong || surrogate || beyond ? 0 : need;
}

void text_trim_utf8(char *s)
{
    size_t len = strlen(s);
    size_t back = 0;
    /* Step back over continuation bytes to the lead byte that they belong to. */
    while (back < len && back < 3 && ((unsigned char)s[len - 1 - back] & 0xC0) == 0x80) {
        back++;
    }
    if (back == len) {
        s[0] = '\0'; /* nothing, or nothing but the ends of something */
        return;
    }
    size_t lead = len - 1 - back;
    if ((unsigned char)s[lead] >= 0x80 && text_utf8_len(s + lead, len - lead) == 0) {
        s[lead] = '\0';
    }
}

char *text_clean(const char *s, size_t len, size_t max_bytes)
{
    must(max_bytes >= 4);
    char *out = xmalloc(max_bytes + 1);
    size_t used = 0;
    size_t i = 0;
    size_t room_for_dots = 0; /* longest prefix that leaves room for "..." */
    while (i < len) {
        size_t n = text_utf8_len(s + i, len - i);
        bool bad = n == 0 || (n == 1 && ((unsigned char)s[i] < 0x20 || s[i] == 0x7F) &&
                              s[i] != '\n' && s[i] != '\t');
        size_t take = bad ? 1 : n;
        if (used + take > max_bytes) {
            break;
        }
        if (bad) {
            out[used] = '?';
        } else {
            memcpy(out + used, s + i, n);
        }
        used += take;
        i += n == 0 ? 1 : n;
        if (used + 3 <= max_bytes) {
            room_for_dots = used;
        }
    }
    if (i < len) {
        used = room_for_dots;
        memcpy(out + used, "...", 3);
        used += 3;
    }
    out[used] = '\0';
    return out;
}

bool text_has_prefix(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool text_has_suffix(const char *s, const char *suffix)
{
    size_t len = strlen(s);
    size_t suffix_len = strlen(suffix);
    return len >= suffix_len && memcmp(s + len - suffix_len, suffix, suffix_len) == 0;
}

bool text_eq(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

void text_hex(const uint8_t *bytes, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < len; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 0xF];
    }
    out[2 * len] = '\0';
}

bool text_to_int64(const char *s, int64_t min, int64_t max, int64_t *ret_value)
{
    bool negative = s[0] == '-';
    const char *p = s + (negative ? 1 : 0);
    if (*p == '\0') {
        return false;
    }
    int64_t v = 0;
    for (; *p != '\0'; p++) {
        if (*p < '0' || *p > '9') {
            return false;
        }
        int digit = *p - '0';
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, digit, &v)) {
            return false;
        }
    }
    /* Counted downwards, because INT64_MIN has no positive twin. */
    if (!negative && __builtin_sub_overflow((int64_t)0, v, &v)) {
        return false;
    }
    if (v < min || v > max) {
        return false;
    }
    *ret_value = v;
    return true;
}
