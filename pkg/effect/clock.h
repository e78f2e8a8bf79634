/* The clock and waiting, as an interface: the product uses clock_os, the simulator its own. */
#ifndef BELAY_EFFECT_CLOCK_H
#define BELAY_EFFECT_CLOCK_H

#include "base/cancel.h"
#include "base/mtx.h"
#include "timeval/timeval.h"

struct clock;

struct clock_ops {
    struct mono (*mono)(struct clock *c);
    struct wall (*wall)(struct clock *c);
    void (*wait)(struct clock *c, struct cond *cond, struct mtx *m, struct mono deadline);
};

struct clock {
    const struct clock_ops *ops;
};

/* CLOCK_BOOTTIME: goes on while the machine is suspended. */
static inline struct mono clock_mono(struct clock *c)
{
    return c->ops->mono(c);
}
/* For log lines and for what people read; never for a decision about a lock. */
static inline struct wall clock_wall(struct clock *c)
{
    return c->ops->wall(c);
}
/* Wait on cond (m held) until it is signalled or the deadline passed; spurious returns are allowed,
 * so loop. */
static inline void clock_wait(struct clock *c, struct cond *cond, struct mtx *m,
                              struct mono deadline)
{
    c->ops->wait(c, cond, m, deadline);
}
/* Sleep until the deadline or until cancel is raised (NULL: cannot be). Returns false if cancelled.
 */
bool clock_sleep_until(struct clock *c, struct mono deadline, struct cancel *cancel);

/* The operating system's clock; one static instance. */
struct clock *clock_os(void);

#endif
