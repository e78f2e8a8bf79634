/* A flag that ends blocking calls early. One thread raises it, any number look at it or are woken
 * by it.
 *
 * A blocking call registers a waker for as long as it blocks:
 *   struct cancel_waker w = {.wake = fn, .ctx = x};  cancel_add(c, &w);  ...block...
 * cancel_remove(c, &w); wake() runs on the raising thread, under the cancel's own mutex: it must
 * only poke (write an eventfd, broadcast a condition, curl_multi_wakeup), never block or take a
 * lock that is held while calling into this file. If the flag is up already, cancel_add calls wake
 * at once. A cancel never comes down again. */
#ifndef BELAY_BASE_CANCEL_H
#define BELAY_BASE_CANCEL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/mtx.h"

struct cancel_waker {
    void (*wake)(void *ctx);
    void *ctx;
    struct cancel_waker *next; /* owned by the cancel while added */
};

struct cancel {
    struct mtx lock;
    atomic_bool raised;
    struct cancel_waker *wakers; /* guarded by lock */
};

void cancel_init(struct cancel *c);
/* No waker may be left. */
void cancel_release(struct cancel *c);
void cancel_raise(struct cancel *c);
/* c may be NULL: never cancelled. */
bool cancel_is_raised(struct cancel *c);
/* c may be NULL. */
void cancel_add(struct cancel *c, struct cancel_waker *w);
void cancel_remove(struct cancel *c, struct cancel_waker *w);

#endif
