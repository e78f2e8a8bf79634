/* Watch bytes to event frames: newline-delimited JSON, resumable at any byte, one frame capped at
 * LIMIT_WATCH_LINE_BYTES. Pure. Fuzzed. */
#ifndef BELAY_WATCHFRAME_WATCHFRAME_H
#define BELAY_WATCHFRAME_WATCHFRAME_H

#include "base/buf.h"
#include "base/err.h"

struct watchframe {
    struct buf pending;
};

void watchframe_init(struct watchframe *w);
void watchframe_release(struct watchframe *w);
/* Feed bytes; fn gets each whole line (no newline, never empty); false from fn stops with
 * ERR_CANCELLED. A line over the cap: ERR_LIMIT, and the state is reset. */
enum err_kind watchframe_feed(struct watchframe *w, const char *bytes, size_t len,
                              bool (*fn)(void *ctx, const char *line, size_t len), void *ctx,
                              struct err *err) MUST_CHECK;

#endif
