/* Writing under a lock: progress and the result, by merge PATCH with resourceVersion, until it is
 * settled what became of them. */
#include "lock/lock_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

/* A write that ends in a conflict is decided anew each time, for as long as the lock is ours:
 * another client's edits may come fast. This only bounds a fault that we did not think of. */
#define WRITE_TRIES_MAX 1000
/* Between tries while the server or the way to it is in trouble; it grows by as much each time. */
#define WRITE_PAUSE_MS     100
#define WRITE_PAUSE_MAX_MS 1000

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

/* A stamp beyond all that we ever sent is a hand's: from then on nobody could see our renewals move
 * it. */
static bool is_mine_locked(const struct held *h, const json_t *object, int64_t *ret_stamp_ns)
{
    const json_t *released =
        hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", NULL);
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

/* A stamp of ours that was written without an answer and now stands in the object: a grant from its
 * sending on. No later grant may use a stamp that stands there already, whoever told us of it. */
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
    /* The same stamp once more, the first time without an answer: if it stands there, it may be the
     * first one's. */
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

bool held_in_time(struct held *h)
{
    return !held_is_lost(h) && mono_before(clock_mono(h->locks->options.clock), held_deadline(h));
}

struct write {
    held_build build;
    void *ctx;
    bool unlocking;
    bool minimal;
    json_t *unknown; /* the Released conditions of results that got no answer: any of them may stand
                        there */
};

/* Keep what a result said, to know it again if it was carried out after all. */
static void remember_unknown(struct write *w, const json_t *body)
{
    json_t *released = hr_conditions_find(jsonx_at(body, "status.conditions"), "Released", NULL);
    must(released != NULL);
    must(json_array_append(w->unknown, released) == 0);
}

/* Does fresh show a result of ours? Holder and epoch alone say nothing: a hand that unlocks leaves
 * them as they are. */
static bool shows_our_result(const struct write *w, const json_t *fresh)
{
    static const char *const compared[] = {"status", "reason", "message", "lastTransitionTime"};
    const json_t *there =
        hr_conditions_find(jsonx_at(fresh, "status.conditions"), "Released", NULL);
    size_t i;
    const json_t *ours;
    json_array_foreach(w->unknown, i, ours)
    {
        bool same = true;
        for (size_t k = 0; k < sizeof(compared) / sizeof(compared[0]); k++) {
            same = same &&
                   text_eq(jsonx_str(there, compared[k], ""), jsonx_str(ours, compared[k], ""));
        }
        if (same) {
            return true;
        }
    }
    return false;
}

/* Look again after a conflict or an unknown outcome. ERR_NONE: the lock is still ours and h->object
 * is fresh, or (*ret_done) the object shows that a result of w (NULL: none) was carried out. */
enum err_kind held_look_again(struct held *h, const struct write *w, bool *ret_done,
                              struct err *err)
{
    json_t *fresh = NULL;
    *ret_done = false;
    if (locks_read_back(h->locks, h->ns, h->name, &fresh, err)) {
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
    return err_set(err, ERR_LEASE_LOST, "the lock on %s/%s (epoch %lld) is not ours any more",
                   h->ns, h->name, (long long)h->epoch);
}

/* The merge patch for one try, and the stamp that it writes. */
static json_t *build_write(struct held *h, const struct write *w, const json_t *object,
                           int64_t *ret_stamp_ns)
{
    struct srvtime now_srv = {0};
    must(kube_server_time(h->locks->options.kube, &now_srv));
    int64_t stamp_ns = lease_stamp_ns(
        now_srv, h->sent_stamp_ns); /* what we know of its clock may have grown narrower */
    char now[RFC3339_LEN];
    rfc3339_format(stamp_ns, now);
    json_t *status = w->build(w->ctx, object, now, w->minimal);
    must(json_is_object(status));
    if (!w->unlocking) {
        /* Progress is a grant too: the same edits as the lock's own, so that the lease starts anew
         * with this write. */
        json_t *conditions = json_object_get(status, "conditions");
        must(json_is_array(conditions));
        struct lease_grant grant = held_grant(h);
        grant.stamp_ns = stamp_ns;
        lease_restamp(conditions, &grant, h->generation);
    }
    /* The generation that was synced, never the newest one. */
    must(json_object_set_new(status, "observedGeneration", json_integer(h->generation)) == 0);
    json_t *body = json_pack("{s:{s:s},s:o}", "metadata", "resourceVersion",
                             jsonx_str(object, "metadata.resourceVersion", ""), "status", status);
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
    struct kube_request req = held_request(h, body, KUBE_MERGE_PATCH);
    struct kube_reply reply = KUBE_REPLY_INIT;
    enum err_kind kind = locks_patch(l, &req, &reply, err);
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
    return kind == ERR_CONFLICT || kind == ERR_UNKNOWN_OUTCOME || kind == ERR_THROTTLED ||
           kind == ERR_UNAVAILABLE || kind == ERR_TIMEOUT || kind == ERR_DENIED;
}

void held_pause(struct held *h, int tries)
{
    struct clock *clock = h->locks->options.clock;
    int64_t ms = WRITE_PAUSE_MS * (int64_t)(tries + 1);
    ms = ms < WRITE_PAUSE_MAX_MS ? ms : WRITE_PAUSE_MAX_MS;
    (void)clock_sleep_until(clock, mono_min(mono_add_ms(clock_mono(clock), ms), held_deadline(h)),
                            NULL);
}

static enum err_kind write_until_settled(struct held *h, struct write *w, struct err *err)
{
    int pauses = 0;
    for (int tries = 0; tries < WRITE_TRIES_MAX; tries++) {
        if (!held_in_time(h)) {
            return err_set(err, ERR_LEASE_LOST, "the lease on %s/%s (epoch %lld) is out", h->ns,
                           h->name, (long long)h->epoch);
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
        metrics_add(h->locks->options.metrics, METRICS_LOCK_UNKNOWN,
                    kind == ERR_UNKNOWN_OUTCOME ? 1 : 0);
        if (kind != ERR_CONFLICT) {
            held_pause(h, pauses++); /* so that the tries reach over a hiccup */
        }
        bool done = false;
        struct err look = ERR_INIT;
        enum err_kind looked = held_look_again(h, w, &done, &look);
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
