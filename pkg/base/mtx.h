/* Mutexes that know their name and holder, condition variables, and cancellation.
 *
 * Lock order is in docs/locks.md. No lock is held across I/O. Waiting with a deadline goes through
 * the clock (effect/clock.h), so that the simulator owns time. */
#ifndef BELAY_BASE_MTX_H
#define BELAY_BASE_MTX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct mtx {
    pthread_mutex_t raw;
    const char *name;     /* static storage */
    _Atomic(long) holder; /* thread id of the holder, 0 when free */
};

struct cond {
    pthread_cond_t raw; /* on CLOCK_MONOTONIC */
};

void mtx_init(struct mtx *m, const char *name);
void mtx_release(struct mtx *m);
void mtx_lock(struct mtx *m);
void mtx_unlock(struct mtx *m);
/* Abort unless the calling thread holds m. */
void mtx_must_hold(const struct mtx *m);
void cond_init(struct cond *c);
void cond_release(struct cond *c);
void cond_signal(struct cond *c);
void cond_broadcast(struct cond *c);
/* For clock implementations only: wait at most max_ms milliseconds. Spurious returns are allowed.
 */
void cond_wait_ms(struct cond *c, struct mtx *m, int64_t max_ms);

static inline void mtx_unlock_ptr(struct mtx **m)
{
    if (*m != NULL) {
        mtx_unlock(*m);
    }
}
/* Hold m until the end of the scope. */
#define MTX_GUARD(m)                                                                               \
    __attribute__((cleanup(mtx_unlock_ptr), unused)) struct mtx *mtx_guard_ = (mtx_lock(m), (m))

#endif
