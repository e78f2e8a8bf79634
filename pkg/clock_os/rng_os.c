/* The kernel's randomness behind effect/rng.h. */
#include <errno.h>
#include <sys/random.h>

#include "base/must.h"
#include "effect/rng.h"

static void rng_os_fill(struct rng *r, void *bytes, size_t len)
{
    (void)r;
    unsigned char *at = bytes;
    while (len > 0) {
        /* Blocks only before the kernel's pool was seeded once, early at boot. */
        ssize_t got = getrandom(at, len, 0);
        if (got < 0) {
            must(errno == EINTR);
            continue;
        }
        at += got;
        len -= (size_t)got;
    }
}

struct rng *rng_os(void)
{
    static const struct rng_ops ops = {.fill = rng_os_fill};
    static struct rng instance = {.ops = &ops};
    return &instance;
}
