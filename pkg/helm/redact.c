/* The text is searched in two views: as it is, and in a canonical form in which every level of
 * quoting is gone, whitespace is one space, and each byte knows where in the text it comes from.
 * Secrets are brought into the same form, so one search finds "p\\\"w" for p"w whatever the depth.
 */
#include "helm/redact.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"

#define BASE64_MIN_BYTES 6    /* fewer would match by chance */
#define URI_MAX_BYTES    4096 /* a secret in a URL is no longer */
#define YAML_SHORT_MAX   12   /* go-yaml cuts a scalar to 7 bytes and "...", in backticks */
#define GRAMS            (1U << 16)

/* ---- views ---- */

struct view {
    char *bytes;
    uint32_t *from, *to; /* bytes[i] stands for text[from[i]..to[i]) */
    size_t len;
    uint8_t *grams; /* which 4 bytes in a row occur, by hash */
};

static void view_release(struct view *v)
{
    free(v->bytes);
    free(v->from);
    free(v->to);
    free(v->grams);
}

static unsigned gram_at(const char *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof(word));
    return (word * UINT32_C(2654435761)) >> 16;
}

static void view_index(struct view *v)
{
    v->grams = xcalloc(GRAMS / 8, 1);
    for (size_t i = 0; i + 4 <= v->len; i++) {
        unsigned g = gram_at(v->bytes + i);
        v->grams[g / 8] = (uint8_t)(v->grams[g / 8] | 1U << g % 8);
    }
}

static bool is_space(unsigned char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void view_add(struct view *v, unsigned char c, size_t from, size_t to)
{
    if (is_space(c)) {
        c = ' ';
        if (v->len > 0 && v->bytes[v->len - 1] == ' ') {
            v->to[v->len - 1] = (uint32_t)to;
            return;
        }
    }
    v->bytes[v->len] = (char)c;
    v->from[v->len] = (uint32_t)from;
    v->to[v->len] = (uint32_t)to;
    v->len++;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* -1 if text[at..at+digits) is not hexadecimal. */
static int hex_number(const char *text, size_t len, size_t at, size_t digits)
{
    int n = 0;
    for (size_t i = 0; i < digits; i++) {
        int d = at + i < len ? hex_digit(text[at + i]) : -1;
        if (d < 0) {
            return -1;
        }
        n = n * 16 + d;
    }
    return n;
}

/* Code points of an escape are below 0x10000; halves of a surrogate pair are kept apart, the same
 * on both sides. */
static void view_add_code(struct view *v, unsigned code, size_t from, size_t to)
{
    if (code < 0x80) {
        view_add(v, (unsigned char)code, from, to);
        return;
    }
    if (code < 0x800) {
        view_add(v, (unsigned char)(0xC0 | code >> 6), from, to);
    } else {
        view_add(v, (unsigned char)(0xE0 | code >> 12), from, to);
        view_add(v, (unsigned char)(0x80 | (code >> 6 & 0x3F)), from, to);
    }
    view_add(v, (unsigned char)(0x80 | (code & 0x3F)), from, to);
}

/* text[at] is a backslash: the escape that it begins, however many backslashes deep. Returns where
 * it ends. */
static size_t view_add_escape(struct view *v, const char *text, size_t len, size_t at)
{
    size_t i = at;
    while (i < len && text[i] == '\\') {
        i++;
    }
    if (i == len) {
        return i;
    }
    if (text[i] == 'n' || text[i] == 't' || text[i] == 'r') {
        view_add(v, ' ', at, i + 1);
        return i + 1;
    }
    size_t digits = text[i] == 'u' ? 4 : text[i] == 'x' ? 2 : 0;
    int code = digits > 0 ? hex_number(text, len, i + 1, digits) : -1;
    if (code < 0) {
        return i; /* what follows stands for itself */
    }
    if (digits == 2) {
        view_add(v, (unsigned char)code, at, i + 3);
    } else {
        view_add_code(v, (unsigned)code, at, i + 5);
    }
    return i + 1 + digits;
}

static struct view view_new(const char *text, size_t len, bool canonical)
{
    /* An escape of four or more bytes becomes at most three. */
    struct view v = {.bytes = xmalloc(len + 1),
                     .from = xmalloc((len + 1) * sizeof(uint32_t)),
                     .to = xmalloc((len + 1) * sizeof(uint32_t)),
                     .len = 0};
    must(len < UINT32_MAX);
    for (size_t i = 0; i < len;) {
        if (canonical && text[i] == '\\') {
            i = view_add_escape(&v, text, len, i);
        } else if (canonical) {
            view_add(&v, (unsigned char)text[i], i, i + 1);
            i++;
        } else {
            v.bytes[i] = text[i];
            v.from[i] = (uint32_t)i;
            v.to[i] = (uint32_t)i + 1;
            v.len = ++i;
        }
    }
    must(v.len <= len);
    return v;
}

/* ---- the search ---- */

struct redactor {
    const struct redact_options *options;
    struct view plain, canonical;
    int32_t *depth; /* a difference array over the text: > 0 when summed up = secret */
    bool too_deep;
};

/* Of a view, [first, last]. */
static void cut(struct redactor *r, const struct view *v, size_t first, size_t last)
{
    must(first <= last && last < v->len);
    r->depth[v->from[first]]++;
    r->depth[v->to[last]]--;
}

static bool is_base64(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '/' || c == '=';
}

/* Of needle, for Knuth, Morris and Pratt's search: memmem over a text of one letter would take for
 * ever. Heap. */
static uint32_t *failure_table(const char *needle, size_t len)
{
    uint32_t *fail = xcalloc(len, sizeof(uint32_t));
    for (size_t i = 1, k = 0; i < len; i++) {
        while (k > 0 && needle[i] != needle[k]) {
            k = fail[k - 1];
        }
        k += needle[i] == needle[k] ? 1 : 0;
        fail[i] = (uint32_t)k;
    }
    return fail;
}

/* widen: take neighbours that belong to the same base64 text along. */
static void cut_match(struct redactor *r, const struct view *v, size_t first, size_t last,
                      bool widen)
{
    while (widen && first > 0 && is_base64(v->bytes[first - 1])) {
        first--;
    }
    while (widen && last + 1 < v->len && is_base64(v->bytes[last + 1])) {
        last++;
    }
    cut(r, v, first, last);
}

static void search(struct redactor *r, const struct view *v, const char *needle, size_t len,
                   bool widen)
{
    must(len >= 4);
    unsigned g = gram_at(needle);
    bool may_occur = len <= v->len && (v->grams[g / 8] & 1U << g % 8) != 0;
    if (!may_occur && !r->options->truncated) {
        return;
    }
    uint32_t *fail = failure_table(needle, len);
    size_t k = 0; /* so many bytes of needle end here */
    for (size_t i = may_occur || v->len < len ? 0 : v->len - (len - 1); i < v->len; i++) {
        while (k > 0 && v->bytes[i] != needle[k]) {
            k = fail[k - 1];
        }
        k += v->bytes[i] == needle[k] ? 1 : 0;
        if (k == len) {
            cut_match(r, v, i + 1 - len, i, widen);
            k = fail[k - 1];
        }
    }
    if (r->options->truncated && k > 0) {
        cut(r, v, v->len - k, v->len - 1);
    }
    free(fail);
}

static bool is_kept(const struct redactor *r, const char *s, size_t len)
{
    for (const char *const *k = r->options->keep; k != NULL && *k != NULL; k++) {
        if (strlen(*k) == len && memcmp(*k, s, len) == 0) {
            return true;
        }
    }
    return false;
}

static void find(struct redactor *r, const char *s, size_t len)
{
    while (len > 0 && is_space((unsigned char)s[len - 1])) {
        len--;
    }
    while (len > 0 && is_space((unsigned char)s[0])) {
        s++;
        len--;
    }
    if (len < REDACT_MIN_BYTES || is_kept(r, s, len)) {
        return;
    }
    search(r, &r->plain, s, len, false);
    struct view v = view_new(s, len, true);
    if (v.len >= 4) {
        search(r, &r->canonical, v.bytes, v.len, false);
    }
    view_release(&v);
}

/* What base64 of any text that contains s must contain: one form for each of the three places where
 * s can begin. */
static void find_base64(struct redactor *r, const char *s, size_t len)
{
    for (size_t skip = 0; skip < 3; skip++) {
        size_t n = len > skip ? (len - skip) / 3 * 3 : 0;
        if (n < BASE64_MIN_BYTES || n > INT32_MAX / 2) {
            continue;
        }
        char *code = xmalloc(n / 3 * 4 + 1);
        int code_len =
            EVP_EncodeBlock((unsigned char *)code, (const unsigned char *)s + skip, (int)n);
        search(r, &r->canonical, code, (size_t)code_len, true);
        free(code);
    }
}

static void find_uri(struct redactor *r, const char *s, size_t len)
{
    if (len > URI_MAX_BYTES) {
        return;
    }
    struct buf b = BUF_INIT(3 * URI_MAX_BYTES + 1);
    buf_add_uri(&b, s);
    if (b.len != len) {
        find(r, buf_str(&b), b.len);
    }
    buf_release(&b);
}

/* The VALUE of KEY=VALUE and KEY: VALUE, without quotes around it. */
static void find_assigned(struct redactor *r, const char *line, size_t len)
{
    const char *end = line + len;
    const char *p = line;
    while (p < end && *p != '=' && !(*p == ':' && p + 1 < end && is_space((unsigned char)p[1]))) {
        p++;
    }
    p = p < end ? p + 1 : end;
    while (p < end && (is_space((unsigned char)*p) || *p == '"' || *p == '\'')) {
        p++;
    }
    while (end > p && (is_space((unsigned char)end[-1]) || end[-1] == '"' || end[-1] == '\'')) {
        end--;
    }
    find(r, p, (size_t)(end - p));
}

static void find_string(struct redactor *r, const char *s, size_t len)
{
    if (len < REDACT_MIN_BYTES || is_kept(r, s, len)) {
        return;
    }
    find(r, s, len);
    find_base64(r, s, len);
    find_uri(r, s, len);
    const char *end = s + len;
    while (s < end) {
        const char *nl = memchr(s, '\n', (size_t)(end - s));
        size_t line = (size_t)((nl != NULL ? nl : end) - s);
        find(r, s, line);
        find_assigned(r, s, line);
        s += line + 1;
    }
}

/* As helm prints it: in full, or as Go's %v of a float64 (1.2345678e+07). */
static void find_integer(struct redactor *r, json_int_t n)
{
    uint64_t magnitude = n < 0 ? (uint64_t)0 - (uint64_t)n : (uint64_t)n;
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%" PRIu64, magnitude);
    if (len < REDACT_MIN_BYTES) {
        return;
    }
    find(r, digits, (size_t)len);
    int kept = len;
    while (kept > 1 && digits[kept - 1] == '0') {
        kept--;
    }
    char text[40];
    int text_len = snprintf(text, sizeof(text), "%c%s%.*se+%02d", digits[0], kept > 1 ? "." : "",
                            kept - 1, digits + 1, len - 1);
    find(r, text, (size_t)text_len);
}

static void find_tree(struct redactor *r, const json_t *j, int depth)
{
    if (depth > 2 * LIMIT_DEPTH) {
        r->too_deep = true;
        return;
    }
    const char *key;
    json_t *v;
    size_t i;
    switch (json_typeof(j)) {
    case JSON_STRING:
        find_string(r, json_string_value(j), json_string_length(j));
        break;
    case JSON_INTEGER:
        find_integer(r, json_integer_value(j));
        break;
    case JSON_OBJECT:
        json_object_foreach((json_t *)(uintptr_t)j, key, v)
        {
            find_tree(r, v, depth + 1);
        }
        break;
    case JSON_ARRAY:
        json_array_foreach(j, i, v)
        {
            find_tree(r, v, depth + 1);
        }
        break;
    case JSON_REAL:
    case JSON_TRUE:
    case JSON_FALSE:
    case JSON_NULL:
        break;
    }
}

/* ---- what goes without being known ---- */

/* A number 0..255, decimal or 0x..; returns its length, 0 if there is none. */
static size_t byte_number(const char *s, size_t len)
{
    size_t i = 0;
    int value = 0;
    bool hex = len > 2 && s[0] == '0' && s[1] == 'x';
    for (i = hex ? 2 : 0; i < len && value < 256; i++) {
        int d = hex_digit(s[i]);
        if (d < 0 || (!hex && d > 9)) {
            break;
        }
        value = value * (hex ? 16 : 10) + d;
    }
    return i > (hex ? 2U : 0U) && value < 256 ? i : 0;
}

static void cut_byte_lists(struct redactor *r)
{
    const struct view *v = &r->canonical;
    for (size_t i = 0; i < v->len; i++) {
        if (v->bytes[i] != '[' && v->bytes[i] != '{') {
            continue;
        }
        size_t end = i + 1;
        size_t count = 0;
        for (size_t n = 0; (n = byte_number(v->bytes + end, v->len - end)) > 0; count++) {
            end += n;
            while (end < v->len && (v->bytes[end] == ' ' || v->bytes[end] == ',')) {
                end++;
            }
        }
        if (count >= REDACT_MIN_BYTES) {
            cut(r, v, i,
                end < v->len && (v->bytes[end] == ']' || v->bytes[end] == '}') ? end : end - 1);
        }
    }
}

/* From the first word on to the last closing bracket of the text: where the data ends cannot be
 * told for sure, since in this view quotes inside it look like its own. */
static void cut_object_data(struct redactor *r)
{
    static const char *const words[] = {
        "\"data\":", "\"stringData\":", "\"binaryData\":", "Data:map["};
    const struct view *v = &r->canonical;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const char *p = memmem(v->bytes, v->len, words[i], strlen(words[i]));
        if (p == NULL) {
            continue;
        }
        size_t first = (size_t)(p - v->bytes) + strlen(words[i]);
        size_t last = v->len;
        while (!r->options->truncated && last > first && v->bytes[last - 1] != '}' &&
               v->bytes[last - 1] != ']') {
            last--;
        }
        last = last > first ? last : v->len;
        if (last > first) {
            cut(r, v, first, last - 1);
        }
    }
}

static void cut_userinfo(struct redactor *r)
{
    const struct view *v = &r->canonical;
    for (size_t i = 0; i + 3 < v->len; i++) {
        if (memcmp(v->bytes + i, "://", 3) != 0) {
            continue;
        }
        size_t at = 0;
        static const char ends[] = {'/', ' ', '"', '\'', '`', '<', '>'};
        for (size_t end = i + 3; end < v->len && memchr(ends, v->bytes[end], sizeof(ends)) == NULL;
             end++) {
            at = v->bytes[end] == '@' ? end : at;
        }
        if (at > i + 3) {
            cut(r, v, i + 3, at - 1);
        }
    }
}

static void cut_short_scalars(struct redactor *r)
{
    const struct view *v = &r->canonical;
    size_t open = SIZE_MAX;
    for (size_t i = 0; i < v->len; i++) {
        if (v->bytes[i] != '`') {
            continue;
        }
        if (open != SIZE_MAX && i - open - 1 > 3 && i - open - 1 <= YAML_SHORT_MAX &&
            memcmp(v->bytes + i - 3, "...", 3) == 0) {
            cut(r, v, open + 1, i - 1);
        }
        open = i;
    }
}

/* ---- */

static char *write_out(const struct redactor *r, const char *text, size_t len)
{
    struct buf out = BUF_INIT(len * sizeof(REDACT_WORD) + 1);
    int32_t depth = 0;
    bool in_secret = false;
    for (size_t i = 0; i < len; i++) {
        depth += r->depth[i];
        if (depth == 0) {
            buf_add_char(&out, text[i]);
        } else if (!in_secret) {
            buf_add_str(&out, REDACT_WORD);
        }
        in_secret = depth > 0;
    }
    must(!out.overflow);
    return buf_take(&out);
}

char *redact_text(const char *text, size_t len, const struct redact_options *options)
{
    must(len <= REDACT_TEXT_MAX);
    struct redactor r = {.options = options,
                         .plain = view_new(text, len, false),
                         .canonical = view_new(text, len, true),
                         .depth = xcalloc(len + 1, sizeof(int32_t))};
    view_index(&r.plain);
    view_index(&r.canonical);
    if (options->secrets != NULL) {
        find_tree(&r, options->secrets, 0);
    }
    cut_byte_lists(&r);
    cut_object_data(&r);
    cut_userinfo(&r);
    cut_short_scalars(&r);
    /* Not everything was looked for, so nothing may be shown. */
    char *out = r.too_deep ? xstrdup(REDACT_WORD) : write_out(&r, text, len);
    view_release(&r.plain);
    view_release(&r.canonical);
    free(r.depth);
    return out;
}
