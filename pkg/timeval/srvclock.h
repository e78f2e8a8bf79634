/* The API server's clock, seen through replies: each reply's Date says what the server's clock read
 * at some instant between sending and receiving. No replica's wall clock takes part (docs/lock.md
 * 5). Pure; the owner guards it with a lock. */
#ifndef BELAY_TIMEVAL_SRVCLOCK_H
#define BELAY_TIMEVAL_SRVCLOCK_H

#include "timeval/timeval.h"

#define SRVCLOCK_SLOTS 64
/* Two machines' clock rates differ by less than this: documented assumption (1 in 10). */
#define SRVCLOCK_DRIFT_DIVISOR 10

struct srvclock_sample {
    struct mono sent, received;
    int64_t date_ns; /* Date is floor(server now) in whole seconds */
};

/* What the replies of ten seconds say about (server's clock - our monotonic clock). */
struct srvclock_slot {
    int64_t low_ns, high_ns;
    struct mono received; /* the last of them */
    bool alone;           /* it was one reply */
};

struct srvclock {
    struct srvclock_sample newest;              /* received last, which is not always noted last */
    struct srvclock_slot slots[SRVCLOCK_SLOTS]; /* a ring: at least 10 minutes */
    size_t count, next;
};

/* Note a reply (sent <= received). Replies whose Date may be a cache's must not be given. A Date
 * outside of the years 1970 to 2200 is ignored. */
void srvclock_note(struct srvclock *c, struct mono sent, struct mono received, int64_t date_ns);
/* The hull of what all kept replies say about now: disagreement between servers widens it, age
 * widens it by drift. False if there is no sample yet. */
bool srvclock_now(const struct srvclock *c, struct mono now, struct srvtime *ret);

#endif
