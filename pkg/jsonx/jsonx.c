/* Parsing: jansson with what it refuses made legal beforehand (long integers). Reading by path,
 * equality. */
#include "jsonx/jsonx.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "jsonx/number.h"

/* ---- a scanner over JSON text that knows strings, depth and numbers ---- */

/* The end of the string that begins at text[at] ('"'); len if it does not end. */
static size_t skip_string(const char *text, size_t len, size_t at)
{
    for (at++; at < len; at++) {
        if (text[at] == '\\') {
            at++;
        } else if (text[at] == '"') {
            return at + 1;
        }
    }
    return len;
}

static bool is_number_char(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* Is text[0..len) an integer that does not fit int64? */
static bool is_long_integer(const char *text, size_t len)
{
    int64_t value = 0;
    size_t i = len > 0 && text[0] == '-' ? 1 : 0;
    if (i == len) {
        return false;
    }
    bool overflow = false;
    for (; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
        overflow = overflow || __builtin_mul_overflow(value, 10, &value) ||
                   __builtin_sub_overflow(value, text[i] - '0', &value);
    }
    /* Counted downwards: INT64_MIN fits, its positive twin does not. */
    return overflow || (text[0] != '-' && value == INT64_MIN);
}

struct scan {
    bool has_long_integer;
    size_t depth_max;
};

/* One walk: how deep is it, and is there an integer that jansson would refuse the whole text for?
 * If out is not NULL the text is copied with ".0" after each of those, so that they are read as
 * reals. */
static struct scan scan_text(const char *text, size_t len, struct buf *out)
{
    struct scan s = {0};
    size_t depth = 0;
    for (size_t at = 0; at < len;) {
        size_t end = at + 1;
        bool long_integer = false;
        if (text[at] == '"') {
            end = skip_string(text, len, at);
        } else if (text[at] == '{' || text[at] == '[') {
            depth++;
            s.depth_max = depth > s.depth_max ? depth : s.depth_max;
        } else if (text[at] == '}' || text[at] == ']') {
            depth -= depth > 0 ? 1 : 0;
        } else if (text[at] == '-' || (text[at] >= '0' && text[at] <= '9')) {
            while (end < len && is_number_char(text[end])) {
                end++;
            }
            long_integer = is_long_integer(text + at, end - at);
        }
        if (out != NULL) {
            buf_add(out, text + at, end - at);
            buf_add_str(out, long_integer ? ".0" : "");
        }
        s.has_long_integer = s.has_long_integer || long_integer;
        at = end;
    }
    return s;
}

enum err_kind jsonx_parse(const char *text, size_t len, json_t **ret, struct err *err)
{
    struct scan s = scan_text(text, len, NULL);
    if (s.depth_max > LIMIT_DEPTH) {
        return err_set(err, ERR_INVALID, "JSON nested deeper than %d", LIMIT_DEPTH);
    }
    struct buf patched = BUF_INIT(len * 2 + 16);
    if (s.has_long_integer) {
        (void)scan_text(text, len, &patched);
        text = buf_str(&patched);
        len = patched.len;
    }
    json_error_t why;
    json_t *j = json_loadb(text, len, JSON_DECODE_ANY, &why);
    buf_release(&patched);
    if (j == NULL) {
        /* jansson quotes what it read ("... near 'text'"): that may be a secret, so only the place
         * is told. */
        return err_set(err, ERR_INVALID, "no valid JSON at line %d, column %d", why.line,
                       why.column);
    }
    *ret = j;
    return ERR_NONE;
}

/* ---- lists ---- */

static size_t skip_blank(const char *text, size_t len, size_t at)
{
    while (at < len &&
           (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t')) {
        at++;
    }
    return at;
}

/* The end of the value that begins at text[at]. */
static size_t skip_value(const char *text, size_t len, size_t at)
{
    size_t depth = 0;
    while (at < len) {
        char c = text[at];
        if (c == '"') {
            at = skip_string(text, len, at);
        } else if (c == '{' || c == '[') {
            depth++;
            at++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) {
                return at;
            }
            depth--;
            at++;
        } else if (depth == 0 && c == ',') {
            return at;
        } else {
            at++;
            continue; /* part of a literal, or a separator inside */
        }
        if (depth == 0) {
            return at;
        }
    }
    return len;
}

/* Where the top-level array "items" begins ('[') and ends (after ']'); false if there is none. */
static bool find_items(const char *text, size_t len, size_t *ret_begin, size_t *ret_end)
{
    size_t at = skip_blank(text, len, 0);
    if (at >= len || text[at] != '{') {
        return false;
    }
    at++;
    while ((at = skip_blank(text, len, at)) < len && text[at] == '"') {
        size_t key_end = skip_string(text, len, at);
        bool is_items = key_end - at == 7 && memcmp(text + at, "\"items\"", 7) == 0;
        at = skip_blank(text, len, key_end);
        if (at >= len || text[at] != ':') {
            return false;
        }
        at = skip_blank(text, len, at + 1);
        size_t end = skip_value(text, len, at);
        if (is_items && at < len && text[at] == '[') {
            *ret_begin = at;
            *ret_end = end;
            return true;
        }
        at = skip_blank(text, len, end);
        at += at < len && text[at] == ',' ? 1 : 0;
    }
    return false;
}

/* text[at] is the '[' of an array. False if its elements are not parted as JSON parts them: then
 * some may not have been seen, and a list with a hole would look like deletions. */
static bool each_item(const char *text, size_t len, size_t at,
                      bool (*fn)(void *ctx, const char *item, size_t len), void *ctx)
{
    at = skip_blank(text, len, at + 1);
    if (at < len && text[at] == ']') {
        return true;
    }
    while (at < len) {
        size_t end = skip_value(text, len, at);
        if (end == at) {
            return false;
        }
        if (!fn(ctx, text + at, end - at)) {
            return true;
        }
        at = skip_blank(text, len, end);
        if (at < len && text[at] == ']') {
            return true;
        }
        if (at >= len || text[at] != ',') {
            return false;
        }
        at = skip_blank(text, len, at + 1);
    }
    return false;
}

enum err_kind jsonx_split_items(const char *text, size_t len,
                                bool (*fn)(void *ctx, const char *item, size_t len), void *ctx,
                                json_t **ret_rest, struct err *err)
{
    size_t begin = 0;
    size_t end = 0;
    bool found = find_items(text, len, &begin, &end);
    struct buf rest = BUF_INIT(len + 16);
    buf_add(&rest, text, found ? begin : len);
    if (found) {
        buf_add_str(&rest, "[]");
        buf_add(&rest, text + end, len - end);
    }
    json_t *list = NULL;
    enum err_kind kind = jsonx_parse(buf_str(&rest), rest.len, &list, err);
    buf_release(&rest);
    if (kind) {
        return err_wrap(err, "list");
    }
    bool is_list = json_is_object(list) && (found || json_is_null(json_object_get(list, "items")) ||
                                            json_object_get(list, "items") == NULL);
    if (!is_list) {
        json_decref(list);
        return err_set(err, ERR_INVALID, "the reply is no list");
    }
    if (found && !each_item(text, end, begin, fn, ctx)) {
        json_decref(list);
        return err_set(err, ERR_INVALID, "list: items are not parted by commas");
    }
    if (ret_rest != NULL) {
        *ret_rest = list;
    } else {
        json_decref(list);
    }
    return ERR_NONE;
}

/* ---- reading ---- */

json_t *jsonx_at(const json_t *j, const char *path)
{
    char name[128];
    while (j != NULL && *path != '\0') {
        size_t len = strcspn(path, ".");
        must(len < sizeof(name));
        memcpy(name, path, len);
        name[len] = '\0';
        j = json_object_get(j, name);
        path += len + (path[len] == '.' ? 1 : 0);
    }
    return (json_t *)j;
}

const char *jsonx_str(const json_t *j, const char *path, const char *fallback)
{
    const char *s = json_string_value(jsonx_at(j, path));
    return s != NULL ? s : fallback;
}

int64_t jsonx_int(const json_t *j, const char *path, int64_t fallback)
{
    const json_t *v = jsonx_at(j, path);
    if (json_is_integer(v)) {
        return json_integer_value(v);
    }
    int64_t whole = 0;
    return json_is_real(v) && number_is_integer(json_real_value(v), &whole) ? whole : fallback;
}

bool jsonx_bool(const json_t *j, const char *path, bool fallback)
{
    const json_t *v = jsonx_at(j, path);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

static bool equal_at(const json_t *a, const json_t *b, int depth);

static bool equal_objects(const json_t *a, const json_t *b, int depth)
{
    if (json_object_size(a) != json_object_size(b)) {
        return false;
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)a, key, value)
    {
        if (!equal_at(value, json_object_get(b, key), depth - 1)) {
            return false;
        }
    }
    return true;
}

static bool equal_at(const json_t *a, const json_t *b, int depth)
{
    must(depth > 0);
    if (json_is_number(a) && json_is_number(b)) {
        return json_number_value(a) == json_number_value(b);
    }
    if (a == NULL || b == NULL || json_typeof(a) != json_typeof(b)) {
        return false;
    }
    if (json_is_object(a)) {
        return equal_objects(a, b, depth);
    }
    if (json_is_array(a)) {
        bool same = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; same && i < json_array_size(a); i++) {
            same = equal_at(json_array_get(a, i), json_array_get(b, i), depth - 1);
        }
        return same;
    }
    return json_equal(a, b) != 0;
}

bool jsonx_equal(const json_t *a, const json_t *b)
{
    /* Merging and wrapping add a few levels to what was parsed. */
    return equal_at(a, b, 4 * LIMIT_DEPTH);
}
