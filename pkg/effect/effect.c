/* What every implementation of the interfaces shares: releases and small derived calls. */
#include "base/must.h"
#include "effect/clock.h"
#include "effect/proc.h"
#include "effect/rng.h"
#include "effect/transport.h"

void http_response_release(struct http_response *r)
{
    buf_release(&r->body);
}

void proc_result_release(struct proc_result *r)
{
    buf_release(&r->out);
    buf_release(&r->err);
}

struct sleeper {
    struct mtx lock;
    struct cond cond;
    bool woken; /* guarded by lock */
};

static void sleeper_wake(void *ctx)
{
    struct sleeper *s = ctx;
    MTX_GUARD(&s->lock);
    s->woken = true;
    cond_broadcast(&s->cond);
}

bool clock_sleep_until(struct clock *c, struct mono deadline, struct cancel *cancel)
{
    struct sleeper s = {.woken = false};
    mtx_init(&s.lock, "sleeper");
    cond_init(&s.cond);
    struct cancel_waker w = {.wake = sleeper_wake, .ctx = &s};
    cancel_add(cancel, &w);
    mtx_lock(&s.lock);
    while (!s.woken && mono_before(clock_mono(c), deadline)) {
        clock_wait(c, &s.cond, &s.lock, deadline);
    }
    mtx_unlock(&s.lock);
    cancel_remove(cancel, &w);
    bool slept = !s.woken;
    cond_release(&s.cond);
    mtx_release(&s.lock);
    return slept;
}

uint64_t rng_below(struct rng *r, uint64_t bound)
{
    must(bound > 0);
    /* Rejection keeps it uniform: values above the last whole multiple of bound are drawn again. */
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    uint64_t v;
    do {
        rng_fill(r, &v, sizeof(v));
    } while (v >= limit);
    return v % bound;
}

int64_t rng_jitter_ms(struct rng *r, int64_t value_ms, int percent)
{
    must(value_ms >= 0 && percent >= 0 && percent <= 100);
    int64_t span = value_ms / 100 * percent;
    return span == 0 ? value_ms : value_ms - span + (int64_t)rng_below(r, (uint64_t)(2 * span + 1));
}
