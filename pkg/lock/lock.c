/* Taking a lock and writing under it. heartbeat.c keeps it meanwhile; what each PATCH says is pkg/lease. */
#include "lock/lock_internal.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

/* A write that ends in a conflict is decided anew each time, for as long as the lock is ours: another client's edits may come
 * fast. This only bounds a fault that we did not think of. */
#define WRITE_TRIES_MAX 1000
/* Between tries while the server or the way to it is in trouble; it grows by as much each time. */
#define WRITE_PAUSE_MS     100
#define WRITE_PAUSE_MAX_MS 1000
/* A finalizer's JSON Patch is not starved by edits; one that is refused this often is refused for good. */
#define FINALIZER_TRIES_MAX 20

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

static struct held *held_new(struct locks *l, const struct lease_grant *grant, struct mono sent, const json_t *object)
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
    metrics_lock_held(l->options.metrics, (double)mono_diff_ms(clock_mono(l->options.clock), h->acquired) / 1000.0);
    cancel_remove(l->options.stopping, &h->stop_waker);
    cancel_release(&h->cancel);
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
    metrics_add(h->locks->options.metrics, METRICS_LOCK_LOST, 1);
    log_warn("lock", "lock lost, what ran under it is stopped", LOG_S("ns", h->ns), LOG_S("name", h->name),
             LOG_I("epoch", h->epoch), LOG_S("why", why));
    if (h->child != NULL) {
        h->interrupted = true;
        proc_signal(h->locks->options.proc, h->child, SIGKILL);
    }
    cancel_raise(&h->cancel);
}

static void held_lose(struct held *h, const char *why)
{
    MTX_GUARD(&h->locks->lock);
    held_lose_locked(h, why);
}

static struct kube_request status_request(const struct held *h, const json_t *body, const char *content_type)
{
    struct locks *l = h->locks;
    struct mono now = clock_mono(l->options.clock);
    struct mono hard = lease_deadlines_of(h->granted, l->options.lease_ms).hard;
    return (struct kube_request){.method = "PATCH",
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
static enum err_kind patch(struct locks *l, const struct kube_request *req, struct kube_reply *ret, struct err *err)
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
static enum err_kind read_back(struct locks *l, const char *ns, const char *name, json_t **ret, struct err *err)
{
    struct mono deadline = mono_add_ms(clock_mono(l->options.clock), lease_request_ms(l->options.lease_ms));
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

/* ---- acquire ---- */

struct attempt {
    struct lease_grant grant;
    struct mono sent;
    char stamp[RFC3339_LEN];
};

static enum err_kind settle_unknown_acquire(struct locks *l, const json_t *object, const struct attempt *a, json_t **ret,
                                            struct err *err)
{
    metrics_add(l->options.metrics, METRICS_LOCK_UNKNOWN, 1);
    json_t *fresh = NULL;
    struct err read_err = ERR_INIT;
    if (read_back(l, jsonx_str(object, "metadata.namespace", ""), jsonx_str(object, "metadata.name", ""), &fresh, &read_err)) {
        return err->kind; /* the first error says more; the cache will show what became of it */
    }
    /* "Not mine" is no proof, the PATCH may still land: then the cache shows our name on it, and a pass takes it anew. */
    if (!lease_is_mine(fresh, a->grant.holder, a->grant.epoch, a->stamp)) {
        json_decref(fresh);
        return err->kind;
    }
    /* Never sync a generation that observedGeneration does not name. */
    if (jsonx_int(fresh, "metadata.generation", -1) != jsonx_int(fresh, "status.observedGeneration", -2)) {
        json_decref(fresh);
        return err_set(err, ERR_CONFLICT, "the spec was edited while the lock's PATCH had no answer");
    }
    *ret = fresh;
    return ERR_NONE;
}

static enum err_kind send_acquire(struct locks *l, const json_t *object, struct attempt *a, json_t **ret, struct err *err)
{
    _cleanup_json_ json_t *body = lease_acquire_patch(object, &a->grant);
    struct mono now = clock_mono(l->options.clock);
    struct kube_request req = {.method = "PATCH",
                               .gvr = &KUBE_HELMRELEASES,
                               .ns = jsonx_str(object, "metadata.namespace", ""),
                               .name = jsonx_str(object, "metadata.name", ""),
                               .subresource = "status",
                               .query = "fieldManager=belay",
                               .body = body,
                               .content_type = KUBE_MERGE_PATCH,
                               .deadline = mono_add_ms(now, lease_request_ms(l->options.lease_ms))};
    /* The holder's lease counts from the reading that made the stamp, not from just before the send. */
    struct kube_reply reply = KUBE_REPLY_INIT;
    switch (patch(l, &req, &reply, err)) {
    case ERR_NONE:
        *ret = json_incref(reply.object);
        a->grant.stamp_ns = reply.have_date && reply.date_ns > a->grant.stamp_ns ? INT64_MIN : a->grant.stamp_ns;
        kube_reply_release(&reply);
        return ERR_NONE;
    case ERR_UNKNOWN_OUTCOME:
        return settle_unknown_acquire(l, object, a, ret, err);
    case ERR_CONFLICT:
        metrics_add(l->options.metrics, METRICS_LOCK_CONFLICTS, 1);
        return err->kind;
    default:
        return err->kind;
    }
}

/* The API server kept only a part of the lock: put the conditions back, so that nobody waits for a lease that no one holds, and
 * observedGeneration, which would call a generation done that nobody has looked at. The epoch stays where it is: it never
 * falls. Best effort; the error that is reported is the dropped field. */
static void undo_half_lock(struct locks *l, const json_t *before, const json_t *reply)
{
    json_t *conditions = jsonx_at(before, "status.conditions");
    json_t *observed = jsonx_at(before, "status.observedGeneration");
    _cleanup_json_ json_t *body =
        json_pack("{s:{s:s},s:{s:o,s:o}}", "metadata", "resourceVersion", jsonx_str(reply, "metadata.resourceVersion", ""),
                  "status", "conditions", json_is_array(conditions) ? json_incref(conditions) : json_array(),
                  "observedGeneration", observed != NULL ? json_incref(observed) : json_null());
    must(body != NULL);
    struct kube_request req = {.method = "PATCH",
                               .gvr = &KUBE_HELMRELEASES,
                               .ns = jsonx_str(reply, "metadata.namespace", ""),
                               .name = jsonx_str(reply, "metadata.name", ""),
                               .subresource = "status",
                               .query = "fieldManager=belay",
                               .body = body,
                               .content_type = KUBE_MERGE_PATCH,
                               .deadline = mono_add_ms(clock_mono(l->options.clock), lease_request_ms(l->options.lease_ms))};
    struct kube_reply undone = KUBE_REPLY_INIT;
    struct err ignored = ERR_INIT;
    if (kube_do(l->options.kube, &req, &undone, &ignored) == ERR_NONE) {
        kube_reply_release(&undone);
    }
}

/* Read the object again: an expired lock must still be the very same before it is taken. */
static enum err_kind confirm_expired(struct locks *l, const json_t *object, json_t **ret, struct err *err)
{
    json_t *fresh = NULL;
    if (read_back(l, jsonx_str(object, "metadata.namespace", ""), jsonx_str(object, "metadata.name", ""), &fresh, err)) {
        return err->kind;
    }
    const char *holder = jsonx_str(object, "status.lease.holderIdentity", "");
    const json_t *released = hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", NULL);
    const json_t *fresh_released = hr_conditions_find(jsonx_at(fresh, "status.conditions"), "Released", NULL);
    bool same = text_eq(jsonx_str(fresh, "status.lease.holderIdentity", ""), holder) &&
                jsonx_int(fresh, "status.lease.leaseTransitions", 0) ==
                    jsonx_int(object, "status.lease.leaseTransitions", 0) &&
                text_eq(jsonx_str(fresh_released, "lastTransitionTime", ""), jsonx_str(released, "lastTransitionTime", "")) &&
                text_eq(jsonx_str(fresh_released, "status", ""), jsonx_str(released, "status", ""));
    if (!same) {
        json_decref(fresh);
        return err_set(err, ERR_CONFLICT, "the lock that had expired has changed meanwhile");
    }
    *ret = fresh;
    return ERR_NONE;
}

static enum err_kind prepare_grant(struct locks *l, const struct lock_request *request, const json_t *object,
                                   struct attempt *a, struct err *err)
{
    struct srvtime now_srv;
    a->sent = clock_mono(l->options.clock);
    if (!kube_server_time(l->options.kube, &now_srv)) {
        return err_set(err, ERR_UNAVAILABLE, "no reply of the API server has told its time yet");
    }
    int64_t old_epoch = jsonx_int(object, "status.lease.leaseTransitions", 0);
    if (old_epoch == INT64_MAX || request->epoch_noted == INT64_MAX) {
        err_set(err, ERR_INVALID, "status.lease.leaseTransitions is the greatest number there is: no epoch can follow it");
        err_hint(err, "a hand has set it; only a new object has a new epoch");
        return err->kind;
    }
    a->grant = (struct lease_grant){
        .holder = l->identity,
        .epoch = (old_epoch > request->epoch_noted ? old_epoch : request->epoch_noted) + 1,
        .lease_ms = l->options.lease_ms,
        .stamp_ns = lease_stamp_ns(now_srv, INT64_MIN),
        .acquire_ns = now_srv.latest_ns,
        .reason = request->reason,
        .doing = request->doing,
    };
    rfc3339_format(a->grant.stamp_ns, a->stamp);
    return ERR_NONE;
}

enum err_kind lock_acquire(struct locks *l, const struct lock_request *request, struct held **ret, struct err *err)
{
    if (cancel_is_raised(l->options.stopping)) {
        return err_set(err, ERR_CANCELLED, "stopping: no new lock is taken");
    }
    _cleanup_json_ json_t *object = NULL;
    if (!request->expired) {
        object = json_incref((json_t *)request->object);
    } else if (confirm_expired(l, request->object, &object, err)) {
        return err->kind;
    }
    struct attempt a = {0};
    if (prepare_grant(l, request, object, &a, err)) {
        return err->kind;
    }
    int64_t stamp_ns = a.grant.stamp_ns;
    _cleanup_json_ json_t *reply = NULL;
    if (send_acquire(l, object, &a, &reply, err)) {
        return err->kind;
    }
    bool stamped_too_early = a.grant.stamp_ns == INT64_MIN;
    a.grant.stamp_ns = stamp_ns;
    if (lease_check_echo(reply, &a.grant, err)) {
        undo_half_lock(l, object, reply);
        return err->kind;
    }
    struct held *h = held_new(l, &a.grant, a.sent, reply);
    metrics_add(l->options.metrics, METRICS_LOCK_ACQUIRED, 1);
    metrics_add(l->options.metrics, METRICS_LOCK_TAKEOVERS, request->expired ? 1 : 0);
    if (!mono_before(clock_mono(l->options.clock), lease_deadlines_of(a.sent, l->options.lease_ms).hard)) {
        /* A reply that came this late is no lock: whoever waits for the lease may begin before we would have stopped. */
        held_lose(h, "the reply to the lock's PATCH came when its lease was nearly out");
        held_free(h);
        return err_set(err, ERR_LEASE_LOST, "the lock was granted too late to be used");
    }
    if (stamped_too_early) {
        locks_renew_now(h);
    }
    *ret = h;
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

/* ---- writing under the lock ---- */

void held_take_turn(struct held *h)
{
    struct locks *l = h->locks;
    MTX_GUARD(&l->lock);
    while (h->turn_taken) {
        clock_wait(l->options.clock, &h->turn_free, &l->lock, MONO_NEVER);
    }
    h->turn_taken = true;
}

void held_give_turn(struct held *h)
{
    MTX_GUARD(&h->locks->lock);
    h->turn_taken = false;
    cond_broadcast(&h->turn_free);
    cond_broadcast(&h->locks->changed);
}

/* A stamp beyond all that we ever sent is a hand's: from then on nobody could see our renewals move it. */
static bool is_mine_locked(const struct held *h, const json_t *object, int64_t *ret_stamp_ns)
{
    const json_t *released = hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", NULL);
    return lease_is_mine(object, h->locks->identity, h->epoch, NULL) &&
           rfc3339_parse(jsonx_str(released, "lastTransitionTime", ""), ret_stamp_ns) &&
           *ret_stamp_ns <= h->sent_stamp_ns;
}

bool held_is_mine(struct held *h, const json_t *object)
{
    MTX_GUARD(&h->locks->lock);
    int64_t ignored = 0;
    return is_mine_locked(h, object, &ignored);
}

/* A stamp of ours that was written without an answer and now stands in the object: a grant from its sending on. No later
 * grant may use a stamp that stands there already, whoever told us of it. */
static void note_stamp_locked(struct held *h, const json_t *object)
{
    int64_t stamp_ns = INT64_MIN;
    if (!is_mine_locked(h, object, &stamp_ns)) {
        return;
    }
    if (stamp_ns == h->tried_stamp_ns && mono_before(h->granted, h->tried)) {
        h->granted = h->tried;
    }
    if (stamp_ns > h->stamp_ns) {
        h->stamp_ns = stamp_ns;
    }
}

void held_note_object(struct held *h, json_t *object)
{
    MTX_GUARD(&h->locks->lock);
    json_decref(h->object);
    h->object = json_incref(object);
    h->look_first = false;
    note_stamp_locked(h, object);
}

void held_note_try_locked(struct held *h, struct mono sent, int64_t stamp_ns)
{
    mtx_must_hold(&h->locks->lock);
    /* The same stamp once more, the first time without an answer: if it stands there, it may be the first one's. */
    if (stamp_ns != h->tried_stamp_ns) {
        h->tried = sent;
    }
    h->tried_stamp_ns = stamp_ns;
    h->sent_stamp_ns = stamp_ns > h->sent_stamp_ns ? stamp_ns : h->sent_stamp_ns;
}

void held_note_grant(struct held *h, struct mono sent, int64_t stamp_ns)
{
    MTX_GUARD(&h->locks->lock);
    h->granted = sent;
    h->stamp_ns = stamp_ns;
    h->renew_now = false;
    h->soft_done = false;
}

static bool still_in_time(struct held *h)
{
    return !held_is_lost(h) && mono_before(clock_mono(h->locks->options.clock), held_deadline(h));
}

struct write {
    held_build build;
    void *ctx;
    bool unlocking;
    bool minimal;
    json_t *unknown; /* the Released conditions of results that got no answer: any of them may stand there */
};

/* Keep what a result said, to know it again if it was carried out after all. */
static void remember_unknown(struct write *w, const json_t *body)
{
    json_t *released = hr_conditions_find(jsonx_at(body, "status.conditions"), "Released", NULL);
    must(released != NULL);
    must(json_array_append(w->unknown, released) == 0);
}

/* Does fresh show a result of ours? Holder and epoch alone say nothing: a hand that unlocks leaves them as they are. */
static bool shows_our_result(const struct write *w, const json_t *fresh)
{
    static const char *const compared[] = {"status", "reason", "message", "lastTransitionTime"};
    const json_t *there = hr_conditions_find(jsonx_at(fresh, "status.conditions"), "Released", NULL);
    size_t i;
    const json_t *ours;
    json_array_foreach(w->unknown, i, ours)
    {
        bool same = true;
        for (size_t k = 0; k < sizeof(compared) / sizeof(compared[0]); k++) {
            same = same && text_eq(jsonx_str(there, compared[k], ""), jsonx_str(ours, compared[k], ""));
        }
        if (same) {
            return true;
        }
    }
    return false;
}

/* Look again after a conflict or an unknown outcome. ERR_NONE: the lock is still ours and h->object is fresh, or (*ret_done)
 * the object shows that a result of w (NULL: none) was carried out. */
static enum err_kind look_again(struct held *h, const struct write *w, bool *ret_done, struct err *err)
{
    json_t *fresh = NULL;
    *ret_done = false;
    if (read_back(h->locks, h->ns, h->name, &fresh, err)) {
        return err->kind;
    }
    const char *holder = h->locks->identity;
    bool mine = held_is_mine(h, fresh);
    bool same_epoch = text_eq(jsonx_str(fresh, "status.lease.holderIdentity", ""), holder) &&
                      jsonx_int(fresh, "status.lease.leaseTransitions", 0) == h->epoch;
    *ret_done = !mine && same_epoch && w != NULL && shows_our_result(w, fresh);
    held_note_object(h, fresh);
    json_decref(fresh);
    if (mine || *ret_done) {
        return ERR_NONE;
    }
    return err_set(err, ERR_LEASE_LOST, "the lock on %s/%s (epoch %lld) is not ours any more", h->ns, h->name,
                   (long long)h->epoch);
}

/* The merge patch for one try, and the stamp that it writes. */
static json_t *build_write(struct held *h, const struct write *w, const json_t *object, int64_t *ret_stamp_ns)
{
    struct srvtime now_srv = {0};
    must(kube_server_time(h->locks->options.kube, &now_srv));
    int64_t stamp_ns = lease_stamp_ns(now_srv, h->sent_stamp_ns); /* what we know of its clock may have grown narrower */
    char now[RFC3339_LEN];
    rfc3339_format(stamp_ns, now);
    json_t *status = w->build(w->ctx, object, now, w->minimal);
    must(json_is_object(status));
    if (!w->unlocking) {
        /* Progress is a grant too: the same edits as the lock's own, so that the lease starts anew with this write. */
        json_t *conditions = json_object_get(status, "conditions");
        must(json_is_array(conditions));
        struct lease_grant grant = held_grant(h);
        grant.stamp_ns = stamp_ns;
        lease_restamp(conditions, &grant, h->generation);
    }
    /* The generation that was synced, never the newest one. */
    must(json_object_set_new(status, "observedGeneration", json_integer(h->generation)) == 0);
    json_t *body = json_pack("{s:{s:s},s:o}", "metadata", "resourceVersion", jsonx_str(object, "metadata.resourceVersion", ""),
                             "status", status);
    must(body != NULL);
    *ret_stamp_ns = stamp_ns;
    return body;
}

/* One try. ERR_NONE: done. CONFLICT or UNKNOWN_OUTCOME: look again. */
static enum err_kind try_write(struct held *h, struct write *w, struct err *err)
{
    struct locks *l = h->locks;
    _cleanup_json_ json_t *object = held_object(h);
    int64_t stamp_ns = 0;
    struct mono sent = clock_mono(l->options.clock);
    _cleanup_json_ json_t *body = build_write(h, w, object, &stamp_ns);
    bool grants = !w->unlocking && stamp_ns > h->stamp_ns;
    if (grants) {
        MTX_GUARD(&l->lock);
        held_note_try_locked(h, sent, stamp_ns);
    }
    struct kube_request req = status_request(h, body, KUBE_MERGE_PATCH);
    struct kube_reply reply = KUBE_REPLY_INIT;
    enum err_kind kind = patch(l, &req, &reply, err);
    if (kind == ERR_UNKNOWN_OUTCOME && w->unlocking) {
        remember_unknown(w, body);
    }
    if (kind != ERR_NONE) {
        return kind;
    }
    held_note_object(h, reply.object);
    if (grants) {
        held_note_grant(h, sent, stamp_ns);
        if (reply.have_date && reply.date_ns > stamp_ns) {
            locks_renew_now(h);
        }
    }
    kube_reply_release(&reply);
    return ERR_NONE;
}

/* May the write be tried again after this? */
static bool may_pass(enum err_kind kind)
{
    return kind == ERR_CONFLICT || kind == ERR_UNKNOWN_OUTCOME || kind == ERR_THROTTLED || kind == ERR_UNAVAILABLE ||
           kind == ERR_TIMEOUT || kind == ERR_DENIED;
}

static void pause_after(struct held *h, int tries)
{
    struct clock *clock = h->locks->options.clock;
    int64_t ms = WRITE_PAUSE_MS * (int64_t)(tries + 1);
    ms = ms < WRITE_PAUSE_MAX_MS ? ms : WRITE_PAUSE_MAX_MS;
    (void)clock_sleep_until(clock, mono_min(mono_add_ms(clock_mono(clock), ms), held_deadline(h)), NULL);
}

static enum err_kind write_until_settled(struct held *h, struct write *w, struct err *err)
{
    int pauses = 0;
    for (int tries = 0; tries < WRITE_TRIES_MAX; tries++) {
        if (!still_in_time(h)) {
            return err_set(err, ERR_LEASE_LOST, "the lease on %s/%s (epoch %lld) is out", h->ns, h->name,
                           (long long)h->epoch);
        }
        enum err_kind kind = try_write(h, w, err);
        if (kind == ERR_NONE) {
            return ERR_NONE;
        }
        if (kind == ERR_INVALID && !w->minimal) {
            w->minimal = true; /* an over-long or refused message must never keep the lock */
            continue;
        }
        if (kind == ERR_NOT_FOUND) {
            return err_set(err, ERR_LEASE_LOST, "%s/%s is gone", h->ns, h->name);
        }
        if (!may_pass(kind)) {
            return kind;
        }
        metrics_add(h->locks->options.metrics, METRICS_LOCK_UNKNOWN, kind == ERR_UNKNOWN_OUTCOME ? 1 : 0);
        if (kind != ERR_CONFLICT) {
            pause_after(h, pauses++); /* so that the tries reach over a hiccup */
        }
        bool done = false;
        struct err look = ERR_INIT;
        enum err_kind looked = look_again(h, w, &done, &look);
        if (done) {
            return ERR_NONE;
        }
        if (looked == ERR_LEASE_LOST || looked == ERR_NOT_FOUND) {
            *err = look;
            return err->kind = ERR_LEASE_LOST;
        }
    }
    return err->kind;
}

static enum err_kind write_in_turn(struct held *h, struct write *w, struct err *err)
{
    struct err tried = ERR_INIT;
    w->unknown = json_array();
    must(w->unknown != NULL);
    held_take_turn(h);
    enum err_kind kind = write_until_settled(h, w, &tried);
    json_decref(w->unknown);
    if (kind == ERR_NONE && w->unlocking) {
        MTX_GUARD(&h->locks->lock);
        h->unlocked = true;
    }
    held_give_turn(h);
    if (kind != ERR_NONE) {
        *err = tried;
    }
    if (kind == ERR_LEASE_LOST) {
        held_lose(h, tried.msg);
    }
    return kind;
}

enum err_kind held_write(struct held *h, held_build build, void *ctx, struct err *err)
{
    struct write w = {.build = build, .ctx = ctx, .unlocking = false};
    return write_in_turn(h, &w, err);
}

enum err_kind held_unlock(struct held *h, held_build build, void *ctx, struct err *err)
{
    must(h->child == NULL);
    struct write w = {.build = build, .ctx = ctx, .unlocking = true};
    return write_in_turn(h, &w, err);
}

/* ---- finalizer ---- */

static void add_op(json_t *ops, const char *op, const char *path, json_t *value)
{
    json_t *entry = json_pack("{s:s,s:s}", "op", op, "path", path);
    must(entry != NULL);
    must(value == NULL || json_object_set_new(entry, "value", value) == 0);
    must(json_array_append_new(ops, entry) == 0);
}

/* The patch, or NULL if there is nothing to change. It tests that this is the same object and that the lock on it is ours, for
 * it may reach the server late; and what it replaces, or it would undo another controller's finalizer. */
static json_t *finalizer_patch(const struct held *h, const json_t *object, const char *finalizer, bool add)
{
    const json_t *list = jsonx_at(object, "metadata.finalizers");
    size_t i = 0;
    size_t n = json_array_size(list);
    while (i < n && !text_eq(json_string_value(json_array_get(list, i)), finalizer)) {
        i++;
    }
    if ((i < n) == add) {
        return NULL;
    }
    json_t *ops = json_array();
    must(ops != NULL);
    add_op(ops, "test", "/metadata/uid", json_string(jsonx_str(object, "metadata.uid", "")));
    add_op(ops, "test", "/status/lease/holderIdentity", json_string(h->locks->identity));
    add_op(ops, "test", "/status/lease/leaseTransitions", json_integer(h->epoch));
    if (!add) {
        char path[64];
        (void)snprintf(path, sizeof(path), "/metadata/finalizers/%zu", i);
        add_op(ops, "test", path, json_string(finalizer));
        add_op(ops, "remove", path, NULL);
    } else if (n != 0) {
        add_op(ops, "add", "/metadata/finalizers/-", json_string(finalizer));
    } else {
        /* A list that came meanwhile is not to be replaced: null is what a missing member tests as. */
        add_op(ops, "test", "/metadata/finalizers", json_null());
        add_op(ops, "add", "/metadata/finalizers", json_pack("[s]", finalizer));
    }
    return ops;
}

/* One try; ERR_NONE: it is as wanted. */
static enum err_kind try_finalizer(struct held *h, const char *finalizer, bool add, struct err *err)
{
    _cleanup_json_ json_t *object = held_object(h);
    _cleanup_json_ json_t *body = finalizer_patch(h, object, finalizer, add);
    if (body == NULL) {
        return ERR_NONE;
    }
    struct kube_request req = status_request(h, body, KUBE_JSON_PATCH);
    req.subresource = NULL;
    struct kube_reply reply = KUBE_REPLY_INIT;
    enum err_kind kind = patch(h->locks, &req, &reply, err);
    if (kind == ERR_NONE) {
        held_note_object(h, reply.object);
        kube_reply_release(&reply);
    }
    return kind;
}

static enum err_kind edit_finalizer(struct held *h, const char *finalizer, bool add, struct err *err)
{
    for (int tries = 0; tries < FINALIZER_TRIES_MAX && still_in_time(h); tries++) {
        enum err_kind kind = try_finalizer(h, finalizer, add, err);
        if (kind == ERR_NONE || (kind == ERR_NOT_FOUND && !add)) {
            return ERR_NONE;
        }
        if (kind != ERR_INVALID && kind != ERR_CONFLICT) { /* INVALID: as a rule a test that failed, so look and go on */
            pause_after(h, tries);
        }
        bool done = false;
        struct err look = ERR_INIT;
        enum err_kind looked = look_again(h, NULL, &done, &look);
        if (looked == ERR_NOT_FOUND && !add) {
            return ERR_NONE;
        }
        if (looked == ERR_LEASE_LOST || looked == ERR_NOT_FOUND) {
            *err = look;
            return err->kind = ERR_LEASE_LOST;
        }
        if (kind == ERR_DENIED) {
            return kind;
        }
    }
    return err->kind != ERR_NONE ? err->kind : err_set(err, ERR_LEASE_LOST, "the lease is out");
}

static enum err_kind edit_finalizer_in_turn(struct held *h, const char *finalizer, bool add, struct err *err)
{
    struct err tried = ERR_INIT;
    held_take_turn(h);
    enum err_kind kind = edit_finalizer(h, finalizer, add, &tried);
    if (kind == ERR_NONE && !add) {
        MTX_GUARD(&h->locks->lock);
        h->unlocked = true;
    }
    held_give_turn(h);
    if (kind != ERR_NONE) {
        *err = tried;
    }
    if (kind == ERR_LEASE_LOST) {
        held_lose(h, tried.msg);
    }
    return kind;
}

enum err_kind held_add_finalizer(struct held *h, const char *finalizer, struct err *err)
{
    return edit_finalizer_in_turn(h, finalizer, true, err);
}

enum err_kind held_remove_finalizer(struct held *h, const char *finalizer, struct err *err)
{
    return edit_finalizer_in_turn(h, finalizer, false, err);
}
