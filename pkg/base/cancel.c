#include "base/cancel.h"

#include <stddef.h>

#include "base/must.h"

void cancel_init(struct cancel *c)
{
    mtx_init(&c->lock, "cancel");
    atomic_init(&c->raised, false);
    c->wakers = NULL;
}

void cancel_release(struct cancel *c)
{
    must(c->wakers == NULL);
    mtx_release(&c->lock);
}

void cancel_raise(struct cancel *c)
{
    MTX_GUARD(&c->lock);
    atomic_store(&c->raised, true);
    for (struct cancel_waker *w = c->wakers; w != NULL; w = w->next) {
        w->wake(w->ctx);
    }
}

bool cancel_is_raised(struct cancel *c)
{
    return c != NULL && atomic_load(&c->raised);
}

void cancel_add(struct cancel *c, struct cancel_waker *w)
{
    if (c == NULL) {
        return;
    }
    MTX_GUARD(&c->lock);
    w->next = c->wakers;
    c->wakers = w;
    if (atomic_load(&c->raised)) {
        w->wake(w->ctx);
    }
}

void cancel_remove(struct cancel *c, struct cancel_waker *w)
{
    if (c == NULL) {
        return;
    }
    MTX_GUARD(&c->lock);
    struct cancel_waker **at = &c->wakers;
    while (*at != w) {
        must(*at != NULL);
        at = &(*at)->next;
    }
    *at = w->next;
}
