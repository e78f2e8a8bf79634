#include "watchframe/watchframe.h"

#include <string.h>

#include "base/limits.h"

void watchframe_init(struct watchframe *w)
{
    w->pending = (struct buf)BUF_INIT(LIMIT_WATCH_LINE_BYTES);
}

void watchframe_release(struct watchframe *w)
{
    buf_release(&w->pending);
}

static bool is_blank(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') {
            return false;
        }
    }
    return true;
}

enum err_kind watchframe_feed(struct watchframe *w, const char *bytes, size_t len,
                              bool (*fn)(void *ctx, const char *line, size_t len), void *ctx,
                              struct err *err)
{
    while (len > 0) {
        const char *newline = memchr(bytes, '\n', len);
        size_t take = newline != NULL ? (size_t)(newline - bytes) : len;
        buf_add(&w->pending, bytes, take);
        if (w->pending.overflow) {
            buf_reset(&w->pending);
            return err_set(err, ERR_LIMIT, "a watch event is larger than %u bytes",
                           LIMIT_WATCH_LINE_BYTES);
        }
        if (newline == NULL) {
            return ERR_NONE;
        }
        bool go_on = is_blank(buf_str(&w->pending), w->pending.len) ||
                     fn(ctx, w->pending.data, w->pending.len);
        buf_reset(&w->pending);
        if (!go_on) {
            return err_set(err, ERR_CANCELLED, "the reader of the watch stopped it");
        }
        bytes += take + 1;
        len -= take + 1;
    }
    return ERR_NONE;
}
