/* The API server's clock, seen through replies: each reply's Date says what the server's clock read
 * at some instant between sending and receiving. No replica's wall clock takes part (docs/lock.md
 * 5). Pure; the owner guards it with a lock. */
#ifndef BELAY_TIMEVAL_SRVCLOCK_H
#define BELAY_TIMEVAL_SRVCLOCK_H

#include "timeval/timeval.h"

#define SRVCLOCK_SAMPLES 64
/* Two machines' clock rates differ by less than this: documented assumption (1 in 10). */
#define SRVCLOCK_DRIFT_DIVISOR 10

struct srvclock_sample {
    struct mono sent, received;
    int64_t date_ns; /* Date is floor(server now) in whole seconds */
};

struct srvclock {
    /* A ring, spaced so that it spans at least 10 minutes. */
    struct srvclock_sample samples[SRVCLOCK_SAMPLES];
    size_t count, next;
};

/* Note a reply (sent <= received). Replies whose Date may be a cache's must not be given. A Date
 * outside of the years 1970 to 2200 is ignored. */
void srvclock_note(struct srvclock *c, struct mono sent, struct mono received, int64_t date_ns);
/* The hull of what all kept samples say about now: disagreement between servers widens it, age
 * widens it by drift. False if there is no sample yet. */
bool srvclock_now(const struct srvclock *c, struct mono now, struct srvtime *ret);

#endif
