#include "reflector/peek.h"

#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

static size_t skip_blank(const char *text, size_t len, size_t at)
{
    while (at < len && strchr(" \t\r\n", text[at]) != NULL && text[at] != '\0') {
        at++;
    }
    return at;
}

/* text[at] is '"'; the place behind the closing one, len if there is none. */
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

/* The place of the ',' or closing bracket behind the value at text[at]. */
static size_t skip_value(const char *text, size_t len, size_t at)
{
    size_t depth = 0;
    while (at < len) {
        char c = text[at];
        if (c == '"') {
            at = skip_string(text, len, at);
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}' || c == ']')) {
            return at;
        }
        depth += c == '{' || c == '[' ? 1U : 0U;
        depth -= c == '}' || c == ']' ? 1U : 0U;
        at++;
    }
    return len;
}

/* The place of the value of member name of the object that begins at text[at]; len if there is
 * none. */
static size_t find_member(const char *text, size_t len, size_t at, const char *name)
{
    size_t name_len = strlen(name);
    if (at >= len || text[at] != '{') {
        return len;
    }
    at = skip_blank(text, len, at + 1);
    while (at < len && text[at] == '"') {
        size_t end = skip_string(text, len, at);
        bool found = end - at == name_len + 2 && memcmp(text + at + 1, name, name_len) == 0;
        at = skip_blank(text, len, end);
        if (at >= len || text[at] != ':') {
            return len;
        }
        at = skip_blank(text, len, at + 1);
        if (found) {
            return at;
        }
        at = skip_value(text, len, at);
        at = at < len && text[at] == ',' ? skip_blank(text, len, at + 1) : len;
    }
    return len;
}

char *peek_str(const char *text, size_t len, const char *const *path, size_t count)
{
    size_t at = skip_blank(text, len, 0);
    for (size_t i = 0; i < count; i++) {
        at = find_member(text, len, at, path[i]);
    }
    if (at >= len || text[at] != '"') {
        return NULL;
    }
    size_t end = skip_string(text, len, at);
    bool whole = end - at >= 2 && text[end - 1] == '"';
    if (!whole || memchr(text + at, '\\', end - at) != NULL) {
        return NULL;
    }
    return xstrndup(text + at + 1, end - at - 2);
}
