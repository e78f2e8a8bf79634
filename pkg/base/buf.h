/* A growing byte buffer with a ceiling, always NUL-terminated.
 *
 *   struct buf b = BUF_INIT(LIMIT_BODY_BYTES);
 *   buf_add_str(&b, "x"); if (b.overflow) ...
 *   buf_release(&b);
 *
 * Going over max_len sets the sticky flag overflow and drops the whole addition: check once, at the
 * end. */
#ifndef BELAY_BASE_BUF_H
#define BELAY_BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data; /* "" when nothing was added yet: never NULL through buf_str() */
    size_t len;
    size_t cap;
    size_t max_len; /* bytes of content; must be > 0 */
    bool overflow;
};

#define BUF_INIT(max)                                                                              \
    {                                                                                              \
        .data = NULL, .len = 0, .cap = 0, .max_len = (max), .overflow = false                      \
    }

void buf_add(struct buf *b, const void *bytes, size_t len);
void buf_add_str(struct buf *b, const char *s);
void buf_add_char(struct buf *b, char c);
void buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vaddf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
/* s as a JSON string with its quotes; invalid UTF-8 becomes '?'. */
void buf_add_json_str(struct buf *b, const char *s);
/* s with everything but RFC 3986 "unreserved" percent-encoded: for one path segment or query value.
 */
void buf_add_uri(struct buf *b, const char *s);
/* Drop the first len bytes. */
void buf_consume(struct buf *b, size_t len);
/* Empty it, keep the memory, clear overflow. */
void buf_reset(struct buf *b);
/* The content as a C string, valid until the next change. */
const char *buf_str(const struct buf *b);
/* The content moves to the caller (free it); the buffer is empty again. */
char *buf_take(struct buf *b);
void buf_release(struct buf *b);

#endif
