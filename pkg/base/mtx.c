#include "base/mtx.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/must.h"

static long thread_id(void)
{
    static _Thread_local long id;
    if (id == 0) {
        id = syscall(SYS_gettid);
    }
    return id;
}

void mtx_init(struct mtx *m, const char *name)
{
    must(pthread_mutex_init(&m->raw, NULL) == 0);
    m->name = name;
    atomic_init(&m->holder, 0);
}

void mtx_release(struct mtx *m)
{
    must(atomic_load(&m->holder) == 0);
    must(pthread_mutex_destroy(&m->raw) == 0);
}

void mtx_lock(struct mtx *m)
{
    must(atomic_load(&m->holder) != thread_id());
    must(pthread_mutex_lock(&m->raw) == 0);
    atomic_store(&m->holder, thread_id());
}

void mtx_unlock(struct mtx *m)
{
    mtx_must_hold(m);
    atomic_store(&m->holder, 0);
    must(pthread_mutex_unlock(&m->raw) == 0);
}

void mtx_must_hold(const struct mtx *m)
{
    must(atomic_load(&m->holder) == thread_id());
}

void cond_init(struct cond *c)
{
    pthread_condattr_t attr;
    must(pthread_condattr_init(&attr) == 0);
    must(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    must(pthread_cond_init(&c->raw, &attr) == 0);
    must(pthread_condattr_destroy(&attr) == 0);
}

void cond_release(struct cond *c)
{
    must(pthread_cond_destroy(&c->raw) == 0);
}

void cond_signal(struct cond *c)
{
    must(pthread_cond_signal(&c->raw) == 0);
}

void cond_broadcast(struct cond *c)
{
    must(pthread_cond_broadcast(&c->raw) == 0);
}

void cond_wait_ms(struct cond *c, struct mtx *m, int64_t max_ms)
{
    must(max_ms >= 0);
    mtx_must_hold(m);
    struct timespec until;
    must(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    until.tv_sec += max_ms / 1000;
    until.tv_nsec += (max_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    atomic_store(&m->holder, 0);
    int rc = pthread_cond_timedwait(&c->raw, &m->raw, &until);
    must(rc == 0 || rc == ETIMEDOUT);
    atomic_store(&m->holder, thread_id());
}
