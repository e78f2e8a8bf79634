/* The operating system's clocks behind effect/clock.h.
 *
 * mono is CLOCK_BOOTTIME, but condition variables can only wait on CLOCK_MONOTONIC (or REALTIME),
 * which stands still while the machine is suspended. So one wait is cut at WAIT_SLICE_MS: after a
 * resume a passed deadline is noticed within that time, however long the wait was meant to be. */
#include <time.h>

#include "base/must.h"
#include "effect/clock.h"

#define WAIT_SLICE_MS INT64_C(1000)

static int64_t clock_read_ns(clockid_t id)
{
    struct timespec ts;
    must(clock_gettime(id, &ts) == 0);
    return (int64_t)ts.tv_sec * NS_PER_SEC + ts.tv_nsec;
}

static struct mono clock_os_mono(struct clock *c)
{
    (void)c;
    return (struct mono){clock_read_ns(CLOCK_BOOTTIME)};
}

static struct wall clock_os_wall(struct clock *c)
{
    (void)c;
    return (struct wall){clock_read_ns(CLOCK_REALTIME)};
}

static void clock_os_wait(struct clock *c, struct cond *cond, struct mtx *m, struct mono deadline)
{
    struct mono now = clock_os_mono(c);
    if (!mono_before(now, deadline)) {
        return;
    }
    /* Rounded up: a wait of 0 ms for the last half millisecond would spin. */
    int64_t left_ms = mono_diff_ms(deadline, now);
    cond_wait_ms(cond, m, left_ms < WAIT_SLICE_MS ? left_ms + 1 : WAIT_SLICE_MS);
}

struct clock *clock_os(void)
{
    static const struct clock_ops ops = {
        .mono = clock_os_mono, .wall = clock_os_wall, .wait = clock_os_wait};
    static struct clock instance = {.ops = &ops};
    return &instance;
}
