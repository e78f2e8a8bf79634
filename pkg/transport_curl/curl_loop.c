/* The life of a call:
 *
 *   added to the multi --libcurl says done--> reply | next hop (added again)
 *          \--cancel, deadline, silence, hang-up--> given up: removed, which resets its connection
 *
 * Deadlines are kept here and not by libcurl, on CLOCK_BOOTTIME, and one wait lasts a second at
 * most: so a passed deadline is noticed within a second after the machine was suspended. They are
 * looked at before libcurl runs, not after: whoever was stopped while it waited sends nothing more
 * when it is woken. */
#include "transport_curl/curl_loop.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/must.h"
#include "effect/clock.h"

#define WAIT_MAX_MS INT64_C(1000)

static void wake(void *ctx)
{
    /* The one function of a multi handle that other threads may call. */
    (void)curl_multi_wakeup(ctx);
}

static void multi_add(struct call *c)
{
    must(curl_multi_add_handle(c->slot->multi, c->easy) == CURLM_OK);
    c->in_multi = true;
}

static void multi_remove(struct call *c, bool abort)
{
    c->slot->aborting = abort;
    must(curl_multi_remove_handle(c->slot->multi, c->easy) == CURLM_OK);
    c->slot->aborting = false;
    c->in_multi = false;
}

void loop_add(struct call *c)
{
    multi_add(c);
    c->waker = (struct cancel_waker){.wake = wake, .ctx = c->slot->multi};
    cancel_add(c->req->cancel, &c->waker);
}

void loop_remove(struct call *c)
{
    if (c->waker.wake != NULL) {
        cancel_remove(c->req->cancel, &c->waker);
    }
    if (c->in_multi) {
        multi_remove(c, /* abort= */ true);
    }
}

void loop_hop_failed(struct call *c, CURLcode rc)
{
    must(rc != CURLE_OK);
    multi_remove(c, /* abort= */ true);
    must(call_hop_ended(c, rc) == CALL_DONE);
}

/* Calls that libcurl has ended. Returns how many were re-added for a redirect's next hop. */
static size_t collect_ended(struct curl_slot *slot)
{
    size_t again = 0;
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(slot->multi, &left)) != NULL;) {
        if (m->msg != CURLMSG_DONE) {
            continue;
        }
        CURLcode rc = m->data.result;
        struct call *c = NULL;
        must(curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c) == CURLE_OK && c != NULL);
        multi_remove(c, /* abort= */ false);
        if (call_hop_ended(c, rc) == CALL_NEXT_HOP) {
            multi_add(c);
            again++;
        }
    }
    return again;
}

/* Give up what is overdue. Returns how long to wait for the rest, -1 if none is left. */
static int64_t sweep(struct call *calls, size_t n)
{
    int64_t wait_ms = -1;
    struct mono now = clock_mono(clock_os());
    for (size_t i = 0; i < n; i++) {
        struct call *c = &calls[i];
        int64_t due_ms;
        if (c->done) {
            continue;
        }
        if (call_overdue(c, now, &due_ms)) {
            multi_remove(c, /* abort= */ true);
            continue;
        }
        wait_ms = wait_ms < 0 || due_ms < wait_ms ? due_ms : wait_ms;
    }
    return wait_ms < WAIT_MAX_MS ? wait_ms : WAIT_MAX_MS;
}

int64_t loop_step(struct curl_slot *slot, struct call *calls, size_t n)
{
    do {
        if (sweep(calls, n) < 0) {
            return -1;
        }
        int running;
        must(curl_multi_perform(slot->multi, &running) == CURLM_OK);
    } while (collect_ended(slot) > 0);
    return sweep(calls, n);
}

void loop_wait(struct curl_slot *slot, const struct call *calls, size_t n, int64_t wait_ms)
{
    struct curl_waitfd *watches = xcalloc(n, sizeof(*watches));
    unsigned count = 0;
    for (size_t i = 0; i < n; i++) {
        if (!calls[i].done && calls[i].hangup >= 0) {
            watches[count++] =
                (struct curl_waitfd){.fd = calls[i].hangup, .events = CURL_WAIT_POLLIN};
        }
    }
    /* Rounded up, or the last half millisecond would spin. */
    must(curl_multi_poll(slot->multi, watches, count, (int)wait_ms + 1, NULL) == CURLM_OK);
    free(watches);
}
