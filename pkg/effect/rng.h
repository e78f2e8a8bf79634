/* Randomness as an interface: identities and jitter. The simulator seeds its own. Thread-safe. */
#ifndef BELAY_EFFECT_RNG_H
#define BELAY_EFFECT_RNG_H

#include <stddef.h>
#include <stdint.h>

struct rng;
struct rng_ops {
    void (*fill)(struct rng *r, void *bytes, size_t len);
};
struct rng {
    const struct rng_ops *ops;
};

static inline void rng_fill(struct rng *r, void *bytes, size_t len)
{
    r->ops->fill(r, bytes, len);
}
/* Uniform in [0, bound); bound > 0. */
uint64_t rng_below(struct rng *r, uint64_t bound);
/* value plus or minus up to percent of it. */
int64_t rng_jitter_ms(struct rng *r, int64_t value_ms, int percent);

/* The operating system's (getrandom); one static instance. */
struct rng *rng_os(void);

#endif
