#include <stdio.h>

#include "chart/chart_internal.h"

static void waiter_wake(void *ctx)
{
    struct charts *c = ctx;
    MTX_GUARD(&c->lock);
    cond_broadcast(&c->changed);
}

void waiter_init(struct waiter *w, struct charts *c, struct mono deadline, struct cancel *cancel)
{
    *w = (struct waiter){.charts = c,
                         .deadline = deadline,
                         .cancel = cancel,
                         .waker = {.wake = waiter_wake, .ctx = c}};
    cancel_add(cancel, &w->waker);
}

void waiter_release(struct waiter *w)
{
    cancel_remove(w->cancel, &w->waker);
}

enum err_kind flight_join_locked(struct flight *f, struct waiter *w, const char *what,
                                 bool *ret_mine, struct err *err)
{
    struct charts *c = w->charts;
    mtx_must_hold(&c->lock);
    if (w->waited_for != 0 && f->failed >= w->waited_for) {
        *err = f->err;
        return err->kind;
    }
    if (cancel_is_raised(w->cancel)) {
        return err_set(err, ERR_CANCELLED, "told to stop while waiting for %s", what);
    }
    if (!mono_before(clock_mono(c->options.clock), w->deadline)) {
        return err_set(err, ERR_TIMEOUT, "no time left for %s%s", what,
                       f->busy ? ", which another thread has begun" : "");
    }
    if (f->busy) {
        w->waited_for = f->started;
        clock_wait(c->options.clock, &c->changed, &c->lock, w->deadline);
        *ret_mine = false;
        return ERR_NONE;
    }
    f->busy = true;
    f->started++;
    *ret_mine = true;
    return ERR_NONE;
}

void flight_land_locked(struct flight *f, struct waiter *w, const struct err *err)
{
    mtx_must_hold(&w->charts->lock);
    f->busy = false;
    /* That this thread had no time left, or was told to stop, is no news about the thing. */
    bool own = err != NULL && (err->kind == ERR_CANCELLED || err->kind == ERR_TIMEOUT);
    if (err != NULL && !own) {
        f->failed = f->started;
        f->err = *err;
    }
    cond_broadcast(&w->charts->changed);
}
