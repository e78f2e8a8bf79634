#include "apicache/trim.h"

#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "jsonx/jsonx.h"

#define PARAMETER "\"fieldValidation\""

/* A stretch of the document: a JSON value, a string with its quotes, or what is left to read. p is
 * NULL if there is none. */
struct span {
    const char *p;
    const char *end;
};

/* ---- reading forward; false: this is no JSON ---- */

static void skip_space(struct span *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\r' || *s->p == '\n')) {
        s->p++;
    }
}

static bool take_char(struct span *s, char c)
{
    skip_space(s);
    if (s->p == s->end || *s->p != c) {
        return false;
    }
    s->p++;
    return true;
}

static bool skip_string(struct span *s)
{
    for (s->p++; s->p < s->end; s->p++) {
        if (*s->p == '"') {
            s->p++;
            return true;
        }
        if (*s->p == '\\' && s->p + 1 < s->end) {
            s->p++; /* a \uXXXX goes on with letters and digits */
        }
    }
    return false;
}

static bool skip_container(struct span *s)
{
    size_t depth = 0;
    while (s->p < s->end) {
        char c = *s->p;
        if (c == '"') {
            if (!skip_string(s)) {
                return false;
            }
            continue;
        }
        s->p++;
        if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && --depth == 0) {
            return true;
        }
    }
    return false;
}

/* Of numbers and literals. */
static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '+' || c == '.';
}

static bool take_value(struct span *s, struct span *ret)
{
    skip_space(s);
    struct span value = {s->p, s->p};
    if (s->p == s->end) {
        return false;
    }
    if (*s->p == '"') {
        if (!skip_string(s)) {
            return false;
        }
    } else if (*s->p == '{' || *s->p == '[') {
        if (!skip_container(s)) {
            return false;
        }
    } else {
        while (s->p < s->end && is_word(*s->p)) {
            s->p++;
        }
    }
    value.end = s->p;
    *ret = value;
    return value.end > value.p;
}

/* The next element of an array or member of an object (ret_key, NULL for an array); s stands behind
 * the opening bracket at first. *ret_more is false at the closing one. */
static bool next_item(struct span *s, bool *first, struct span *ret_key, struct span *ret_value,
                      bool *ret_more)
{
    *ret_more = false;
    if (take_char(s, ret_key != NULL ? '}' : ']')) {
        return true;
    }
    if (!*first && !take_char(s, ',')) {
        return false;
    }
    *first = false;
    if (ret_key != NULL) {
        skip_space(s);
        if (s->p == s->end || *s->p != '"' || !take_value(s, ret_key) || !take_char(s, ':')) {
            return false;
        }
    }
    *ret_more = true;
    return take_value(s, ret_value);
}

static bool is(struct span s, const char *text)
{
    size_t len = strlen(text);
    return s.p != NULL && (size_t)(s.end - s.p) == len && memcmp(s.p, text, len) == 0;
}

/* The values of some members of one object; of a name that stands there twice, the last, as Go
 * reads it. A value that is no object has none. */
struct member {
    const char *name; /* with quotes */
    struct span value;
};

static bool find_members(struct span object, struct member *members, size_t n)
{
    if (!take_char(&object, '{')) {
        return true;
    }
    bool first = true, more;
    struct span key, value;
    for (;;) {
        if (!next_item(&object, &first, &key, &value, &more)) {
            return false;
        }
        if (!more) {
            return true;
        }
        for (size_t i = 0; i < n; i++) {
            if (is(key, members[i].name)) {
                members[i].value = value;
            }
        }
    }
}

/* ---- writing ---- */

static void add_span(struct buf *b, struct span s)
{
    buf_add(b, s.p, (size_t)(s.end - s.p));
}

/* ,"name":value, without the comma at first */
static void add_member(struct buf *b, bool *first, const struct member *m)
{
    if (m->value.p == NULL) {
        return;
    }
    buf_addf(b, "%s%s:", *first ? "" : ",", m->name);
    add_span(b, m->value);
    *first = false;
}

static bool trim_parameter(struct span parameter, bool *first, struct buf *out)
{
    struct member m[] = {{.name = "\"name\""}, {.name = "\"in\""}, {.name = "\"$ref\""}};
    size_t n = sizeof(m) / sizeof(m[0]);
    if (!find_members(parameter, m, n)) {
        return false;
    }
    if (is(m[0].value, PARAMETER) || m[2].value.p != NULL) {
        buf_add_str(out, *first ? "{" : ",{");
        *first = false;
        bool first_member = true;
        for (size_t i = 0; i < n; i++) {
            add_member(out, &first_member, &m[i]);
        }
        buf_add_char(out, '}');
    }
    return true;
}

static bool trim_parameters(struct span array, struct buf *out)
{
    buf_add_str(out, "\"parameters\":[");
    bool first_in = true, first_out = true, more = array.p != NULL && take_char(&array, '[');
    while (more) {
        struct span parameter;
        if (!next_item(&array, &first_in, NULL, &parameter, &more) ||
            (more && !trim_parameter(parameter, &first_out, out))) {
            return false;
        }
    }
    buf_add_char(out, ']');
    return true;
}

static bool trim_path(struct span name, struct span path, bool *first, struct buf *out)
{
    struct member patch[] = {{.name = "\"patch\""}};
    struct member of_patch[] = {{.name = "\"x-kubernetes-group-version-kind\""},
                                {.name = "\"parameters\""}};
    if (!find_members(path, patch, 1)) {
        return false;
    }
    if (patch[0].value.p == NULL) {
        return true;
    }
    if (!find_members(patch[0].value, of_patch, 2)) {
        return false;
    }
    if (of_patch[0].value.p == NULL) {
        return true; /* of no kind */
    }
    buf_add_str(out, *first ? "" : ",");
    *first = false;
    add_span(out, name);
    buf_add_str(out, ":{\"patch\":{");
    bool first_member = true;
    add_member(out, &first_member, &of_patch[0]);
    buf_add_char(out, ',');
    if (!trim_parameters(of_patch[1].value, out)) {
        return false;
    }
    buf_add_str(out, "}}");
    return true;
}

static bool trim_paths(struct span paths, struct buf *out)
{
    buf_add_str(out, "\"paths\":{");
    bool first_in = true, first_out = true, more = take_char(&paths, '{');
    if (!more) {
        return false;
    }
    while (more) {
        struct span name, path;
        if (!next_item(&paths, &first_in, &name, &path, &more) ||
            (more && !trim_path(name, path, &first_out, out))) {
            return false;
        }
    }
    buf_add_char(out, '}');
    return true;
}

static bool trim_whole(struct span text, struct buf *out)
{
    struct member top[] = {{.name = "\"openapi\""},
                           {.name = "\"info\""},
                           {.name = "\"paths\""},
                           {.name = "\"components\""}};
    struct member shared = {.name = "\"parameters\""};
    struct span whole;
    if (!take_value(&text, &whole) || !find_members(whole, top, 4)) {
        return false;
    }
    skip_space(&text);
    if (text.p != text.end || top[2].value.p == NULL) {
        return false;
    }
    bool first = true;
    buf_add_char(out, '{');
    add_member(out, &first, &top[0]);
    add_member(out, &first, &top[1]);
    buf_add_str(out, first ? "" : ",");
    if (!trim_paths(top[2].value, out)) {
        return false;
    }
    if (top[3].value.p != NULL && !find_members(top[3].value, &shared, 1)) {
        return false;
    }
    if (shared.value.p != NULL) {
        bool only = true;
        buf_add_str(out, ",\"components\":{");
        add_member(out, &only, &shared);
        buf_add_char(out, '}');
    }
    buf_add_char(out, '}');
    return true;
}

enum err_kind trim_openapi(const char *text, size_t len, char **ret, size_t *ret_len,
                           struct err *err)
{
    _cleanup_(buf_release)
    struct buf out = BUF_INIT(TRIMMED_BYTES_MAX);
    if (!trim_whole((struct span){text, text + len}, &out)) {
        return err_set(err, ERR_INVALID, "no OpenAPI document");
    }
    if (out.overflow) {
        return err_set(err, ERR_LIMIT, "an OpenAPI document with too many paths");
    }
    /* Only lengths and brackets were looked at so far. */
    _cleanup_json_ json_t *valid = NULL;
    if (jsonx_parse(buf_str(&out), out.len, &valid, err)) {
        return err_wrap(err, "an OpenAPI document");
    }
    *ret_len = out.len;
    *ret = buf_take(&out);
    return ERR_NONE;
}
