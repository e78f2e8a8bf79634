/* Taking a lock: one PATCH, and what its answers mean. */
#include "lock/lock_internal.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

struct attempt {
    struct lease_grant grant;
    struct mono sent;
    char stamp[RFC3339_LEN];
};

static enum err_kind settle_unknown_acquire(struct locks *l, const json_t *object,
                                            const struct attempt *a, json_t **ret, struct err *err)
{
    metrics_add(l->options.metrics, METRICS_LOCK_UNKNOWN, 1);
    json_t *fresh = NULL;
    struct err read_err = ERR_INIT;
    if (locks_read_back(l, jsonx_str(object, "metadata.namespace", ""),
                        jsonx_str(object, "metadata.name", ""), &fresh, &read_err)) {
        return err->kind; /* the first error says more; the cache will show what became of it */
    }
    /* "Not mine" is no proof, the PATCH may still land: then the cache shows our name on it, and a
     * pass takes it anew. */
    if (!lease_is_mine(fresh, a->grant.holder, a->grant.epoch, a->stamp)) {
        json_decref(fresh);
        return err->kind;
    }
    /* Never sync a generation that observedGeneration does not name. */
    if (jsonx_int(fresh, "metadata.generation", -1) !=
        jsonx_int(fresh, "status.observedGeneration", -2)) {
        json_decref(fresh);
        return err_set(err, ERR_CONFLICT,
                       "the spec was edited while the lock's PATCH had no answer");
    }
    *ret = fresh;
    return ERR_NONE;
}

static enum err_kind send_acquire(struct locks *l, const json_t *object, struct attempt *a,
                                  json_t **ret, struct err *err)
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
    /* The holder's lease counts from the reading that made the stamp, not from just before the
     * send. */
    struct kube_reply reply = KUBE_REPLY_INIT;
    switch (locks_patch(l, &req, &reply, err)) {
    case ERR_NONE:
        *ret = json_incref(reply.object);
        a->grant.stamp_ns =
            reply.have_date && reply.date_ns > a->grant.stamp_ns ? INT64_MIN : a->grant.stamp_ns;
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

/* The API server kept only a part of the lock: put the conditions back, so that nobody waits for a
 * lease that no one holds, and observedGeneration, which would call a generation done that nobody
 * has looked at. The epoch stays where it is: it never falls. Best effort; the error that is
 * reported is the dropped field. */
static void undo_half_lock(struct locks *l, const json_t *before, const json_t *reply)
{
    json_t *conditions = jsonx_at(before, "status.conditions");
    json_t *observed = jsonx_at(before, "status.observedGeneration");
    _cleanup_json_ json_t *body =
        json_pack("{s:{s:s},s:{s:o,s:o}}", "metadata", "resourceVersion",
                  jsonx_str(reply, "metadata.resourceVersion", ""), "status", "conditions",
                  json_is_array(conditions) ? json_incref(conditions) : json_array(),
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
                               .deadline = mono_add_ms(clock_mono(l->options.clock),
                                                       lease_request_ms(l->options.lease_ms))};
    struct kube_reply undone = KUBE_REPLY_INIT;
    struct err ignored = ERR_INIT;
    if (kube_do(l->options.kube, &req, &undone, &ignored) == ERR_NONE) {
        kube_reply_release(&undone);
    }
}

/* Read the object again: an expired lock must still be the very same before it is taken. */
static enum err_kind confirm_expired(struct locks *l, const json_t *object, json_t **ret,
                                     struct err *err)
{
    json_t *fresh = NULL;
    if (locks_read_back(l, jsonx_str(object, "metadata.namespace", ""),
                        jsonx_str(object, "metadata.name", ""), &fresh, err)) {
        return err->kind;
    }
    const char *holder = jsonx_str(object, "status.lease.holderIdentity", "");
    const json_t *released =
        hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", NULL);
    const json_t *fresh_released =
        hr_conditions_find(jsonx_at(fresh, "status.conditions"), "Released", NULL);
    bool same = text_eq(jsonx_str(fresh, "status.lease.holderIdentity", ""), holder) &&
                jsonx_int(fresh, "status.lease.leaseTransitions", 0) ==
                    jsonx_int(object, "status.lease.leaseTransitions", 0) &&
                text_eq(jsonx_str(fresh_released, "lastTransitionTime", ""),
                        jsonx_str(released, "lastTransitionTime", "")) &&
                text_eq(jsonx_str(fresh_released, "status", ""), jsonx_str(released, "status", ""));
    if (!same) {
        json_decref(fresh);
        return err_set(err, ERR_CONFLICT, "the lock that had expired has changed meanwhile");
    }
    *ret = fresh;
    return ERR_NONE;
}

static enum err_kind prepare_grant(struct locks *l, const struct lock_request *request,
                                   const json_t *object, struct attempt *a, struct err *err)
{
    struct srvtime now_srv;
    a->sent = clock_mono(l->options.clock);
    if (!kube_server_time(l->options.kube, &now_srv)) {
        return err_set(err, ERR_UNAVAILABLE, "no reply of the API server has told its time yet");
    }
    int64_t old_epoch = jsonx_int(object, "status.lease.leaseTransitions", 0);
    if (old_epoch == INT64_MAX || request->epoch_noted == INT64_MAX) {
        err_set(err, ERR_INVALID,
                "status.lease.leaseTransitions is the greatest number there is: no epoch can "
                "follow it");
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

enum err_kind lock_acquire(struct locks *l, const struct lock_request *request, struct held **ret,
                           struct err *err)
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
    if (!mono_before(clock_mono(l->options.clock),
                     lease_deadlines_of(a.sent, l->options.lease_ms).hard)) {
        /* A reply that came this late is no lock: whoever waits for the lease may begin before we
         * would have stopped. */
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
