/* The heartbeat: one thread renews all held locks, and a second one, which does no I/O and so can
 * never be late for it, owns their deadlines (docs/lock.md 4).
 *
 * renew  a third of the lease after the last confirmed grant, in rounds: all locks that are due go
 * out together, each on its own connection. A round ends with its slowest request, so locks that
 * are nearly due go along (lease_early_ms), and the object of a renewal that failed is read back in
 * the next round, not in this one: then one slow reply costs the others at most a request's time,
 * for which the lease has room. soft   too late for another renewal: SIGINT to helm, which then
 * notes "failed" by itself. hard   expiry - guard: SIGKILL, the lock counts as lost. */
#include <signal.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "jsonx/jsonx.h"
#include "lock/lock_internal.h"

/* Locks renewed in one go; more go in the next round, at once. Workers are at most 64. */
#define RENEW_BATCH 64
/* After a renewal that failed and a look at the object: the next try comes this much later. */
#define RENEW_PAUSE_MS 250

struct renewal {
    struct held *held; /* its turn is taken: it cannot go away */
    json_t *body;      /* NULL: this is a look at the object, after a renewal that failed */
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

void locks_signal_all(struct locks *l, int signo)
{
    MTX_GUARD(&l->lock);
    l->interrupt_all = true;
    for (struct held *h = l->first; h != NULL; h = h->next) {
        if (h->child != NULL) {
            h->interrupted = true;
            proc_signal(l->options.proc, h->child, signo);
        }
    }
}

static bool renewable(const struct held *h)
{
    return !h->lost && !h->unlocked && !h->turn_taken;
}

static struct mono renewal_due(const struct held *h, int64_t lease_ms)
{
    if (h->renew_now || h->look_first) {
        return h->renew_after; /* zero if nothing has failed */
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

/* When is the next renewal due? */
static struct mono next_renewal_locked(struct locks *l)
{
    mtx_must_hold(&l->lock);
    struct mono next = MONO_NEVER;
    for (struct held *h = l->first; h != NULL; h = h->next) {
        if (renewable(h)) {
            next = mono_min(next, renewal_due(h, l->options.lease_ms));
        }
    }
    return next;
}

static struct kube_request request_of(const struct held *h, struct mono now, json_t *body)
{
    int64_t lease_ms = h->locks->options.lease_ms;
    struct mono hard = lease_deadlines_of(h->granted, lease_ms).hard;
    struct kube_request req = {.method = "GET",
                               .gvr = &KUBE_HELMRELEASES,
                               .ns = h->ns,
                               .name = h->name,
                               .deadline =
                                   mono_min(hard, mono_add_ms(now, lease_request_ms(lease_ms)))};
    if (body != NULL) {
        req.method = "PATCH";
        req.subresource = "status";
        req.query = "fieldManager=belay";
        req.body = body;
        req.content_type = KUBE_JSON_PATCH;
    }
    return req;
}

/* What the next round does for h; false if the lock is lost. */
static bool renewal_of_locked(struct held *h, struct mono now, struct srvtime now_srv,
                              struct renewal *ret)
{
    struct lease_grant grant = held_grant(h);
    int64_t moved_ns = ns_add_ms(h->stamp_ns, 1000);
    grant.stamp_ns =
        lease_stamp_ns(now_srv, moved_ns > h->sent_stamp_ns ? moved_ns : h->sent_stamp_ns);
    json_t *body = h->look_first ? NULL : lease_renew_patch(h->object, &grant);
    if (body == NULL && !h->look_first) {
        held_lose_locked(h, "the object does not show it as ours any more");
        return false;
    }
    if (body != NULL) {
        held_note_try_locked(h, now, grant.stamp_ns);
    }
    *ret = (struct renewal){.held = h,
                            .body = body,
                            .stamp_ns = grant.stamp_ns,
                            .sent = now,
                            .request = request_of(h, now, body)};
    return true;
}

/* If a lock is due: take its turn, and those of the others that go along, and make their requests.
 */
static size_t collect_locked(struct locks *l, struct mono now, struct renewal *batch)
{
    mtx_must_hold(&l->lock);
    struct srvtime now_srv;
    if (mono_before(now, next_renewal_locked(l)) || !kube_server_time(l->options.kube, &now_srv)) {
        return 0;
    }
    struct mono ahead = mono_add_ms(now, lease_early_ms(l->options.lease_ms));
    size_t n = 0;
    for (struct held *h = l->first; h != NULL && n < RENEW_BATCH; h = h->next) {
        bool goes = renewable(h) && !mono_before(ahead, renewal_due(h, l->options.lease_ms)) &&
                    !mono_before(now, h->renew_after);
        if (goes && renewal_of_locked(h, now, now_srv, &batch[n])) {
            h->turn_taken = true;
            n++;
        }
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

/* A renewal was refused, or its outcome is unknown: that says too little. */
static void settle_failure(struct renewal *r, const struct kube_call *call)
{
    struct held *h = r->held;
    metrics_add(h->locks->options.metrics, METRICS_LOCK_UNKNOWN,
                call->result == ERR_UNKNOWN_OUTCOME ? 1 : 0);
    log_debug("heartbeat", "renewal failed, looking", LOG_S("ns", h->ns), LOG_S("name", h->name),
              LOG_S("err", call->err.msg));
    MTX_GUARD(&h->locks->lock);
    h->look_first = true;
    h->renew_after = (struct mono){0};
}

/* The object was read back, or could not be. If it is ours still, or nothing was learned (an edit
 * moved the conditions, or the server hiccuped), the renewal is tried again until the deadline. */
static void settle_look(struct renewal *r, const struct kube_call *call)
{
    struct held *h = r->held;
    struct locks *l = h->locks;
    bool gone = call->result == ERR_NOT_FOUND;
    if (call->result == ERR_NONE) {
        held_note_object(h, call->reply.object);
        gone = !held_is_mine(h, call->reply.object);
    }
    MTX_GUARD(&l->lock);
    if (gone) {
        held_lose_locked(h, call->result == ERR_NOT_FOUND ? "the object is gone"
                                                          : "the lock is not ours any more");
    }
    h->look_first = false;
    h->renew_after = mono_add_ms(clock_mono(l->options.clock), RENEW_PAUSE_MS);
}

static void settle(struct renewal *r, struct kube_call *call)
{
    if (call->result == ERR_NONE && !json_is_object(call->reply.object)) {
        /* Something on the way has eaten the object: nothing is known. */
        kube_reply_release(&call->reply);
        call->result =
            err_set(&call->err, ERR_UNKNOWN_OUTCOME, "the server's reply holds no object");
    }
    if (r->body == NULL) {
        settle_look(r, call);
    } else if (call->result == ERR_NONE) {
        settle_success(r, call);
    } else {
        settle_failure(r, call);
    }
    if (call->result == ERR_NONE) {
        kube_reply_release(&call->reply);
    }
    json_decref(r->body);
    held_give_turn(r->held);
}

static void renew_batch(struct locks *l, struct renewal *batch, size_t n)
{
    struct kube_call calls[RENEW_BATCH] = {0};
    for (size_t i = 0; i < n; i++) {
        calls[i].request = &batch[i].request;
    }
    kube_do_many(l->options.kube, calls, n);
    for (size_t i = 0; i < n; i++) {
        settle(&batch[i], &calls[i]);
    }
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
