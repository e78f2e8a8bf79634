/* The same bytes in one piece and in many give the same lines. The first byte says how they are
 * cut. */
#include <stdint.h>
#include <string.h>

#include "base/must.h"
#include "watchframe/watchframe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool count_line(void *ctx, const char *line, size_t len)
{
    uint64_t *sum = ctx;
    must(len > 0 && memchr(line, '\n', len) == NULL);
    for (size_t i = 0; i < len; i++) {
        *sum = *sum * 31 + (uint8_t)line[i];
    }
    *sum = *sum * 31 + '\n';
    return true;
}

static uint64_t feed(const uint8_t *data, size_t size, size_t step)
{
    struct watchframe w;
    struct err err = ERR_INIT;
    uint64_t sum = 0;
    watchframe_init(&w);
    for (size_t at = 0; at < size; at += step) {
        size_t len = size - at < step ? size - at : step;
        must(watchframe_feed(&w, (const char *)data + at, len, count_line, &sum, &err) == ERR_NONE);
    }
    watchframe_release(&w);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    size_t step = data[0] % 16 + 1U;
    must(feed(data + 1, size - 1, size) == feed(data + 1, size - 1, step));
    return 0;
}
