/* The heartbeat: one thread renews all held locks, and a second one, which does no I/O and so can never be late for it,
 * owns their deadlines (docs/lock.md 4).
 *
 * renew  a third of the lease after the last confirmed grant: all locks that are due go out together, each on its own
 *        connection and with its own deadline, so that one slow reply cannot starve the others.
 * soft   too late for another renewal: SIGINT to helm, which then notes "failed" by itself.
 * hard   expiry - guard: SIGKILL, the lock counts as lost. */
#include <signal.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "jsonx/jsonx.h"
#include "lock/lock_internal.h"

/* Locks renewed in one go; more go in the next round, at once. Workers are at most 64. */
#define RENEW_BATCH 64
/* After a renewal that had no answer or a 5xx: the next try comes this much later. */
#define RENEW_PAUSE_MS 250

struct renewal {
    struct held *held; /* its turn is taken: it cannot go away */
    json_t *body;
    int64_t stamp_ns;
    struct mono sent;
    struct kube_request request;
};

void locks_renew_now(struct held *h)
{
    MTX_GUARD(&h->locks->lock);
    h->renew_now = true;
    cond_broadcast(&h->locks->changed);
}

void locks_stop(struct locks *l)
{
    MTX_GUARD(&l->lock);
    l->stop = true;
    cond_broadcast(&l->changed);
}

void locks_interrupt_all(struct locks *l)
{
    MTX_GUARD(&l->lock);
    l->interrupt_all = true;
    for (struct held *h = l->first; h != NULL; h = h->next) {
        if (h->child != NULL) {
            h->interrupted = true;
            proc_signal(l->options.proc, h->child, SIGINT);
        }
    }
}

static struct mono renewal_due(const struct held *h, int64_t lease_ms)
{
    if (h->renew_now) {
        return h->granted;
    }
    struct mono due = lease_deadlines_of(h->granted, lease_ms).renew;
    return mono_before(due, h->renew_after) ? h->renew_after : due;
}

/* Enforce soft and hard deadlines; returns when to look again. */
static struct mono enforce_locked(struct locks *l, struct mono now)
{
    mtx_must_hold(&l->lock);
    struct mono next = MONO_NEVER;
    for (struct held *h = l->first; h != NULL; h = h->next) {
        if (h->lost || h->unlocked) {
            continue;
        }
        struct lease_deadlines d = lease_deadlines_of(h->granted, l->options.lease_ms);
        if (!mono_before(now, d.hard)) {
            held_lose_locked(h, "it could not be renewed in time");
            continue;
        }
        next = mono_min(next, d.hard);
        if (mono_before(now, d.soft)) {
            next = mono_min(next, d.soft);
        } else if (h->child != NULL && !h->soft_done) {
            h->soft_done = true;
            h->interrupted = true;
            proc_signal(l->options.proc, h->child, SIGINT);
        }
    }
    return next;
}

/* Take the turn of each lock that is due and make its request. */
static size_t collect_locked(struct locks *l, struct mono now, struct renewal *batch)
{
    mtx_must_hold(&l->lock);
    struct srvtime now_srv;
    if (!kube_server_time(l->options.kube, &now_srv)) {
        return 0;
    }
    size_t n = 0;
    for (struct held *h = l->first; h != NULL && n < RENEW_BATCH; h = h->next) {
        bool due = !h->lost && !h->unlocked && !h->turn_taken && !mono_before(now, renewal_due(h, l->options.lease_ms));
        if (!due) {
            continue;
        }
        struct lease_grant grant = held_grant(h);
        grant.stamp_ns = lease_stamp_ns(now_srv, h->stamp_ns + NS_PER_SEC);
        json_t *body = lease_renew_patch(h->object, &grant);
        if (body == NULL) {
            held_lose_locked(h, "the object does not show it as ours any more");
            continue;
        }
        h->turn_taken = true;
        struct mono hard = lease_deadlines_of(h->granted, l->options.lease_ms).hard;
        batch[n++] = (struct renewal){
            .held = h,
            .body = body,
            .stamp_ns = grant.stamp_ns,
            .sent = now,
            .request = {.method = "PATCH",
                        .gvr = &KUBE_HELMRELEASES,
                        .ns = h->ns,
                        .name = h->name,
                        .subresource = "status",
                        .query = "fieldManager=belay",
                        .body = body,
                        .content_type = KUBE_JSON_PATCH,
                        .deadline = mono_min(hard, mono_add_ms(now, lease_request_ms(l->options.lease_ms)))},
        };
    }
    return n;
}

static void settle_success(struct renewal *r, struct kube_call *call)
{
    struct held *h = r->held;
    held_note_object(h, call->reply.object);
    held_note_grant(h, r->sent, r->stamp_ns);
    metrics_add(h->locks->options.metrics, METRICS_LOCK_RENEWALS, 1);
    if (call->reply.have_date && call->reply.date_ns > r->stamp_ns) {
        locks_renew_now(h);
    }
}

/* A renewal was refused, or its outcome is unknown, and look has read the object back. */
static void settle_failure(struct renewal *r, const struct err *failure, struct kube_call *look)
{
    struct held *h = r->held;
    struct locks *l = h->locks;
    bool gone = look->result == ERR_NOT_FOUND;
    if (look->result == ERR_NONE) {
        held_note_object(h, look->reply.object);
        gone = !lease_is_mine(look->reply.object, l->identity, h->epoch, NULL);
    }
    MTX_GUARD(&l->lock);
    if (gone) {
        held_lose_locked(h, failure->msg);
        return;
    }
    /* Ours still, or nothing learned: an edit moved the conditions, or the server hiccuped. Tried again until the deadline. */
    h->renew_after = mono_add_ms(clock_mono(l->options.clock), RENEW_PAUSE_MS);
    log_debug("heartbeat", "renewal failed, trying again", LOG_S("ns", h->ns), LOG_S("name", h->name),
              LOG_S("err", failure->msg));
}

/* Read all objects back whose renewal failed, at once, then settle each. */
static void settle_failures(struct locks *l, struct renewal *batch, struct kube_call *calls, size_t n)
{
    struct renewal *failed[RENEW_BATCH];
    struct err failures[RENEW_BATCH];
    struct kube_request gets[RENEW_BATCH];
    struct kube_call looks[RENEW_BATCH] = {0};
    size_t count = 0;
    struct mono deadline = mono_add_ms(clock_mono(l->options.clock), lease_request_ms(l->options.lease_ms));
    for (size_t i = 0; i < n; i++) {
        if (calls[i].result == ERR_NONE) {
            continue;
        }
        metrics_add(l->options.metrics, METRICS_LOCK_UNKNOWN, calls[i].result == ERR_UNKNOWN_OUTCOME ? 1 : 0);
        struct held *h = batch[i].held;
        gets[count] = (struct kube_request){
            .method = "GET", .gvr = &KUBE_HELMRELEASES, .ns = h->ns, .name = h->name, .deadline = deadline};
        looks[count].request = &gets[count];
        failed[count] = &batch[i];
        failures[count] = calls[i].err;
        count++;
    }
    if (count == 0) {
        return;
    }
    kube_do_many(l->options.kube, looks, count);
    for (size_t i = 0; i < count; i++) {
        settle_failure(failed[i], &failures[i], &looks[i]);
        if (looks[i].result == ERR_NONE) {
            kube_reply_release(&looks[i].reply);
        }
    }
}

static void renew_batch(struct locks *l, struct renewal *batch, size_t n)
{
    struct kube_call calls[RENEW_BATCH] = {0};
    for (size_t i = 0; i < n; i++) {
        calls[i].request = &batch[i].request;
    }
    kube_do_many(l->options.kube, calls, n);
    for (size_t i = 0; i < n; i++) {
        if (calls[i].result == ERR_NONE) {
            settle_success(&batch[i], &calls[i]);
            kube_reply_release(&calls[i].reply);
        }
    }
    settle_failures(l, batch, calls, n);
    for (size_t i = 0; i < n; i++) {
        json_decref(batch[i].body);
        held_give_turn(batch[i].held);
    }
}

/* When is the next renewal due? */
static struct mono next_renewal_locked(struct locks *l)
{
    mtx_must_hold(&l->lock);
    struct mono next = MONO_NEVER;
    for (struct held *h = l->first; h != NULL; h = h->next) {
        if (!h->lost && !h->unlocked && !h->turn_taken) {
            next = mono_min(next, renewal_due(h, l->options.lease_ms));
        }
    }
    return next;
}

void locks_run(struct locks *l)
{
    struct renewal *batch = xcalloc(RENEW_BATCH, sizeof(*batch));
    mtx_lock(&l->lock);
    while (!l->stop) {
        size_t n = collect_locked(l, clock_mono(l->options.clock), batch);
        if (n == 0) {
            clock_wait(l->options.clock, &l->changed, &l->lock, next_renewal_locked(l));
            continue;
        }
        mtx_unlock(&l->lock);
        renew_batch(l, batch, n);
        mtx_lock(&l->lock);
    }
    mtx_unlock(&l->lock);
    free(batch);
}

void locks_watchdog_run(struct locks *l)
{
    MTX_GUARD(&l->lock);
    while (!l->stop) {
        struct mono next = enforce_locked(l, clock_mono(l->options.clock));
        clock_wait(l->options.clock, &l->changed, &l->lock, next);
    }
}
