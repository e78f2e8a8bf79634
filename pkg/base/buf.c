#include "base/buf.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

/* Make room for extra more bytes; false (and overflow) if that is over the ceiling. */
static bool buf_grow(struct buf *b, size_t extra)
{
    must(b->max_len > 0);
    if (b->overflow || extra > b->max_len - b->len) {
        b->overflow = true;
        return false;
    }
    size_t need = b->len + extra + 1;
    if (need > b->cap) {
        size_t cap = b->cap != 0 ? b->cap * 2 : 256;
        b->cap = cap > need ? cap : need;
        b->data = xrealloc(b->data, b->cap);
    }
    return true;
}

void buf_add(struct buf *b, const void *bytes, size_t len)
{
    if (!buf_grow(b, len)) {
        return;
    }
    if (len != 0) {
        memcpy(b->data + b->len, bytes, len);
    }
    b->len += len;
    b->data[b->len] = '\0';
}

void buf_add_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_add_char(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_vaddf(struct buf *b, const char *fmt, va_list ap)
{
    char *s = xvasprintf(fmt, ap);
    buf_add_str(b, s);
    free(s);
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_vaddf(b, fmt, ap);
    va_end(ap);
}

void buf_add_json_str(struct buf *b, const char *s)
{
    size_t len = strlen(s);
    /* Cleaning needs room for its dots; an empty string is its own clean form. */
    char *clean = text_clean(s, len, len + 4);
    buf_add_char(b, '"');
    for (const char *p = clean; *p != '\0'; p++) {
        switch (*p) {
        case '"':
            buf_add_str(b, "\\\"");
            break;
        case '\\':
            buf_add_str(b, "\\\\");
            break;
        case '\n':
            buf_add_str(b, "\\n");
            break;
        case '\t':
            buf_add_str(b, "\\t");
            break;
        default:
            buf_add_char(b, *p);
        }
    }
    buf_add_char(b, '"');
    free(clean);
}

void buf_add_uri(struct buf *b, const char *s)
{
    static const char unreserved[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (; *s != '\0'; s++) {
        if (strchr(unreserved, *s) != NULL) {
            buf_add_char(b, *s);
        } else {
            buf_addf(b, "%%%02X", (unsigned)(unsigned char)*s);
        }
    }
}

void buf_consume(struct buf *b, size_t len)
{
    must(len <= b->len);
    if (len == 0) {
        return;
    }
    memmove(b->data, b->data + len, b->len - len + 1);
    b->len -= len;
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->overflow = false;
    if (b->data != NULL) {
        b->data[0] = '\0';
    }
}

const char *buf_str(const struct buf *b)
{
    return b->data != NULL ? b->data : "";
}

char *buf_take(struct buf *b)
{
    char *s = b->data != NULL ? b->data : xstrdup("");
    b->data = NULL;
    b->len = 0;
    b->cap = 0;
    b->overflow = false;
    return s;
}

void buf_release(struct buf *b)
{
    free(b->data);
    b->data = NULL;
    b->len = 0;
    b->cap = 0;
}
