/* The life of locks and of held ones, what is asked of them, and the requests that all files here
 * make. acquire.c takes a lock, write.c writes under it, finalizer.c edits the finalizer,
 * heartbeat.c keeps it meanwhile; what each PATCH says is pkg/lease. */
#include "lock/lock_internal.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

struct locks *locks_new(const struct locks_options *options)
{
    must(options->identity != NULL);
    must(options->identity[0] != '\0');
    must(lease_timing_holds(options->lease_ms));
    struct locks *l = xcalloc(1, sizeof(*l));
    l->options = *options;
    l->identity = xstrdup(options->identity);
    mtx_init(&l->lock, "locks");
    cond_init(&l->changed);
    return l;
}

void locks_free(struct locks *l)
{
    if (l == NULL) {
        return;
    }
    must(l->first == NULL);
    free(l->identity);
    cond_release(&l->changed);
    mtx_release(&l->lock);
    free(l);
}

const char *locks_identity(const struct locks *l)
{
    return l->identity;
}

int64_t locks_lease_ms(const struct locks *l)
{
    return l->options.lease_ms;
}

size_t locks_count(struct locks *l)
{
    MTX_GUARD(&l->lock);
    return l->count;
}

bool locks_hold(struct locks *l, const char *ns, const char *name, int64_t epoch)
{
    MTX_GUARD(&l->lock);
    for (const struct held *h = l->first; h != NULL; h = h->next) {
        if (h->epoch == epoch && strcmp(h->ns, ns) == 0 && strcmp(h->name, name) == 0) {
            return true;
        }
    }
    return false;
}

static void raise_cancel(void *ctx)
{
    cancel_raise(ctx);
}

struct held *held_new(struct locks *l, const struct lease_grant *grant, struct mono sent,
                      const json_t *object)
{
    must(grant->reason != NULL && grant->doing != NULL);
    struct held *h = xcalloc(1, sizeof(*h));
    h->locks = l;
    h->ns = xstrdup(jsonx_str(object, "metadata.namespace", ""));
    h->name = xstrdup(jsonx_str(object, "metadata.name", ""));
    h->reason = xstrdup(grant->reason);
    h->doing = xstrdup(grant->doing);
    h->epoch = grant->epoch;
    h->acquire_ns = grant->acquire_ns;
    h->stamp_ns = grant->stamp_ns;
    h->generation = jsonx_int(object, "status.observedGeneration", -1);
    h->granted = sent;
    h->acquired = sent;
    h->tried_stamp_ns = INT64_MIN;
    h->sent_stamp_ns = grant->stamp_ns;
    h->object = json_incref((json_t *)object);
    cancel_init(&h->cancel);
    cancel_init(&h->lost_cancel);
    cond_init(&h->turn_free);
    h->stop_waker = (struct cancel_waker){.wake = raise_cancel, .ctx = &h->cancel};
    cancel_add(l->options.stopping, &h->stop_waker);
    mtx_lock(&l->lock);
    h->next = l->first;
    l->first = h;
    l->count++;
    cond_broadcast(&l->changed);
    mtx_unlock(&l->lock);
    return h;
}

void held_free(struct held *h)
{
    if (h == NULL) {
        return;
    }
    struct locks *l = h->locks;
    mtx_lock(&l->lock);
    while (h->turn_taken) { /* a renewal is on the wire: it points at us */
        clock_wait(l->options.clock, &h->turn_free, &l->lock, MONO_NEVER);
    }
    struct held **at = &l->first;
    while (*at != h) {
        must(*at != NULL);
        at = &(*at)->next;
    }
    *at = h->next;
    l->count--;
    must(h->child == NULL);
    cond_broadcast(&l->changed);
    mtx_unlock(&l->lock);
    if (h->lost) {
        /* Told by the worker, when nothing waits for it any more: a log that nobody reads would
         * otherwise stall the watchdog, which must never be late. */
        log_warn("lock", "lock lost, what ran under it is stopped", LOG_S("ns", h->ns),
                 LOG_S("name", h->name), LOG_I("epoch", h->epoch), LOG_S("why", h->lost_why));
    }
    metrics_lock_held(l->options.metrics,
                      (double)mono_diff_ms(clock_mono(l->options.clock), h->acquired) / 1000.0);
    cancel_remove(l->options.stopping, &h->stop_waker);
    cancel_release(&h->cancel);
    cancel_release(&h->lost_cancel);
    cond_release(&h->turn_free);
    json_decref(h->object);
    free(h->ns);
    free(h->name);
    free(h->reason);
    free(h->doing);
    free(h);
}

struct lease_grant held_grant(const struct held *h)
{
    return (struct lease_grant){.holder = h->locks->identity,
                                .epoch = h->epoch,
                                .lease_ms = h->locks->options.lease_ms,
                                .stamp_ns = h->stamp_ns,
                                .acquire_ns = h->acquire_ns,
                                .reason = h->reason,
                                .doing = h->doing};
}

void held_lose_locked(struct held *h, const char *why)
{
    mtx_must_hold(&h->locks->lock);
    if (h->lost) {
        return;
    }
    h->lost = true;
    (void)snprintf(h->lost_why, sizeof(h->lost_why), "%s", why);
    text_trim_utf8(h->lost_why);
    metrics_add(h->locks->options.metrics, METRICS_LOCK_LOST, 1);
    if (h->child != NULL) {
        h->interrupted = true;
        proc_signal(h->locks->options.proc, h->child, SIGKILL);
    }
    cancel_raise(&h->cancel);
    cancel_raise(&h->lost_cancel);
}

void held_lose(struct held *h, const char *why)
{
    MTX_GUARD(&h->locks->lock);
    held_lose_locked(h, why);
}

struct kube_request held_request(const struct held *h, const json_t *body, const char *content_type)
{
    struct locks *l = h->locks;
    struct mono now = clock_mono(l->options.clock);
    struct mono hard = lease_deadlines_of(h->granted, l->options.lease_ms).hard;
    return (struct kube_request){
        .method = "PATCH",
        .gvr = &KUBE_HELMRELEASES,
        .ns = h->ns,
        .name = h->name,
        .subresource = "status",
        .query = "fieldManager=belay",
        .body = body,
        .content_type = content_type,
        .deadline = mono_min(mono_add_ms(now, lease_request_ms(l->options.lease_ms)), hard)};
}

/* A 2xx without an object says nothing: something on the way has eaten it. */
static enum err_kind refuse_empty(enum err_kind kind, struct err *err)
{
    return err_set(err, kind, "the server's reply holds no object");
}

/* A PATCH; ERR_NONE only with the new object in *ret. */
enum err_kind locks_patch(struct locks *l, const struct kube_request *req, struct kube_reply *ret,
                          struct err *err)
{
    struct kube_reply reply = KUBE_REPLY_INIT;
    enum err_kind kind = kube_do(l->options.kube, req, &reply, err);
    if (kind != ERR_NONE) {
        return kind;
    }
    if (!json_is_object(reply.object)) {
        kube_reply_release(&reply);
        return refuse_empty(ERR_UNKNOWN_OUTCOME, err);
    }
    *ret = reply;
    return ERR_NONE;
}

/* GET afresh (a quorum read), after an answer that said too little. */
enum err_kind locks_read_back(struct locks *l, const char *ns, const char *name, json_t **ret,
                              struct err *err)
{
    struct mono deadline =
        mono_add_ms(clock_mono(l->options.clock), lease_request_ms(l->options.lease_ms));
    struct kube_reply reply = KUBE_REPLY_INIT;
    if (kube_get(l->options.kube, &KUBE_HELMRELEASES, ns, name, deadline, NULL, &reply, err)) {
        return err_wrap(err, "read %s/%s back", ns, name);
    }
    if (!json_is_object(reply.object)) {
        kube_reply_release(&reply);
        return refuse_empty(ERR_UNAVAILABLE, err);
    }
    *ret = json_incref(reply.object);
    kube_reply_release(&reply);
    return ERR_NONE;
}

/* ---- accessors ---- */

json_t *held_object(struct held *h)
{
    MTX_GUARD(&h->locks->lock);
    return json_incref(h->object);
}

int64_t held_epoch(const struct held *h)
{
    return h->epoch;
}

int64_t held_generation(const struct held *h)
{
    return h->generation;
}

bool held_is_lost(struct held *h)
{
    MTX_GUARD(&h->locks->lock);
    return h->lost;
}

struct cancel *held_cancel(struct held *h)
{
    return &h->cancel;
}

struct mono held_deadline(struct held *h)
{
    MTX_GUARD(&h->locks->lock);
    return lease_deadlines_of(h->granted, h->locks->options.lease_ms).hard;
}

struct cancel *held_lost(struct held *h)
{
    return &h->lost_cancel;
}

int64_t held_lease_end_ns(struct held *h)
{
    int64_t lease_ms = h->locks->options.lease_ms;
    MTX_GUARD(&h->locks->lock);
    return ns_add_ms(h->stamp_ns, lease_ms - lease_guard_ms(lease_ms));
}

enum err_kind held_confirm(struct held *h, struct mono *ret_sent, struct err *err)
{
    struct mono sent = clock_mono(h->locks->options.clock);
    _cleanup_json_ json_t *object = NULL;
    if (locks_read_back(h->locks, h->ns, h->name, &object, err)) {
        return err->kind;
    }
    if (!held_is_mine(h, object)) {
        held_lose(h, "the object shows another holder, or none");
        return err_set(err, ERR_LEASE_LOST, "the lock is lost: %s/%s shows another holder, or none",
                       h->ns, h->name);
    }
    *ret_sent = sent;
    return ERR_NONE;
}

void held_kill_child(struct held *h)
{
    struct locks *l = h->locks;
    MTX_GUARD(&l->lock);
    if (h->child != NULL) {
        proc_signal(l->options.proc, h->child, SIGKILL);
    }
}

void held_set_child(struct held *h, struct child *child)
{
    struct locks *l = h->locks;
    MTX_GUARD(&l->lock);
    h->child = child;
    h->soft_done = false;
    if (child != NULL && (h->lost || l->interrupt_all)) {
        h->interrupted = true;
        proc_signal(l->options.proc, child, h->lost ? SIGKILL : SIGINT);
    }
    cond_broadcast(&l->changed); /* it may have come after the soft deadline */
}

bool held_was_interrupted(struct held *h)
{
    MTX_GUARD(&h->locks->lock);
    return h->interrupted;
}
