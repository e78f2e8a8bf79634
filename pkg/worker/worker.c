/* From events and timers to passes, and from a pass to the lock. */
#include "worker/worker_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "chartref/chartref.h"
#include "jsonx/jsonx.h"

/* While the CRD is bad every key looks again this often; the CRD's watch is what ends it. */
#define CRD_BAD_RETRY_MS INT64_C(5000)

/* The k-th replica in an object's order takes it only if it still needs a sync k of these later. */
#define TURN_MS INT64_C(300)
/* Nobody waits for more than so many others: replicas that were killed stay in the order for a
 * while. */
#define RANK_MAX 4
/* The lock of an earlier life of this pod: is the last of its processes gone? */
#define OWN_POD_POLL_MS INT64_C(200)
/* Between two syncs of one generation by this replica, at least. */
#define BREATHER_MS INT64_C(1000)
/* Longer than a healthy watch ever lags behind our own writes. */
#define WATCH_LAG_MS INT64_C(5000)
/* A record that changed is looked at this much later. */
#define RECORD_SETTLE_MS INT64_C(1000)

static void free_sighting(void *value)
{
    lease_sighting_release(value);
    free(value);
}

struct worker *worker_new(const struct worker_options *options)
{
    struct worker *w = xcalloc(1, sizeof(*w));
    w->options = *options;
    mtx_init(&w->lock, "worker");
    w->sightings.free_value = free_sighting;
    w->unlocked.free_value = free;
    w->turns.free_value = free;
    atomic_init(&w->passes, 0);
    return w;
}

void worker_free(struct worker *w)
{
    if (w == NULL) {
        return;
    }
    strmap_release(&w->sightings);
    strmap_release(&w->unlocked);
    strmap_release(&w->turns);
    mtx_release(&w->lock);
    free(w);
}

void worker_set_crd_problem(struct worker *w, const struct err *bad)
{
    MTX_GUARD(&w->lock);
    w->crd_bad = bad != NULL;
    (void)snprintf(w->crd_why, sizeof(w->crd_why), "%.*s", (int)sizeof(w->crd_why) - 1,
                   bad != NULL ? bad->msg : "");
}

bool worker_crd_problem(struct worker *w, char *out, size_t size)
{
    MTX_GUARD(&w->lock);
    (void)snprintf(out, size, "%s", w->crd_why);
    return w->crd_bad;
}

/* ---- events ---- */

char *worker_release_index(const struct snap *s)
{
    struct hr *hr = NULL;
    struct err ignored = ERR_INIT;
    if (s->object == NULL || hr_parse(s->object, &hr, &ignored)) {
        return NULL;
    }
    char *index = hr->spec.release_name != NULL && hr->spec.target_ns != NULL
                      ? xasprintf("%s/%s", hr->spec.target_ns, hr->spec.release_name)
                      : NULL;
    hr_free(hr);
    return index;
}

char *worker_record_index(const struct snap *s)
{
    return s->object != NULL ? helmrec_index(s->object) : NULL;
}

static void note_sighting(struct worker *w, const char *key, const struct hr *hr,
                          const struct snap *snap)
{
    MTX_GUARD(&w->lock);
    struct lease_sighting *seen = strmap_get(&w->sightings, key);
    if (seen == NULL) {
        seen = xcalloc(1, sizeof(*seen));
        strmap_put(&w->sightings, key, seen);
    }
    lease_sighting_note(seen, &hr->status, snap->seen, snap->live);
}

static void note_conditions(struct worker *w, const struct hr *hr)
{
    const struct {
        const char *type;
        const struct hr_condition *condition;
    } all[] = {
        {"ChartFetched", &hr->status.chart_fetched},
        {"Deployed", &hr->status.deployed},
        {"Released", &hr->status.released},
        {"RolledBack", &hr->status.rolled_back},
        {"Tested", &hr->status.tested},
        {"Ready", &hr->status.ready},
        {"Reconciling", &hr->status.reconciling},
        {"Stalled", &hr->status.stalled},
    };
    if (hr->spec.release_name == NULL || hr->spec.target_ns == NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        enum hr_truth truth = all[i].condition->status;
        if (truth == HR_ABSENT) {
            metrics_condition_gone(w->options.metrics, hr->spec.target_ns, hr->spec.release_name,
                                   all[i].type);
        } else {
            int value = truth == HR_TRUE ? 1 : truth == HR_FALSE ? -1 : 0;
            metrics_condition(w->options.metrics, hr->spec.target_ns, hr->spec.release_name,
                              all[i].type, value);
        }
    }
}

static bool is_settled(const struct hr *hr)
{
    return !hr->deleting && hr->status.released.status == HR_TRUE &&
           hr->status.observed_generation == hr->generation;
}

/* Milliseconds until the lock in hr may be taken; 0 = now. */
static enum lease_verdict judge_lease(struct worker *w, const char *key, const struct hr *hr,
                                      int64_t *ret_wait_ms)
{
    struct srvtime now_srv = {0};
    bool have = kube_server_time(w->options.kube, &now_srv);
    bool locked = hr->status.released.status == HR_UNKNOWN;
    bool predecessor_dead = locked && w->options.predecessor_dead != NULL &&
                            w->options.predecessor_dead(w->options.predecessor_ctx);
    MTX_GUARD(&w->lock);
    struct lease_sighting *seen = strmap_get(&w->sightings, key);
    struct lease_sighting never = {.holder = NULL, .first_seen = clock_mono(w->options.clock)};
    return lease_decide(&(struct lease_question){.status = &hr->status,
                                                 .sighting = seen != NULL ? seen : &never,
                                                 .now = clock_mono(w->options.clock),
                                                 .have_server_time = have,
                                                 .server_now = now_srv,
                                                 .self = locks_identity(w->options.locks),
                                                 .own_lease_ms = locks_lease_ms(w->options.locks),
                                                 .predecessor_dead = predecessor_dead},
                        ret_wait_ms);
}

static int64_t next_resync_ms(struct worker *w)
{
    return rng_jitter_ms(w->options.rng, w->options.interval_ms, 5);
}

/* Take the condition gauges of the release that s names away: it is gone, or named otherwise now.
 */
static void forget_series(struct worker *w, const struct snap *s)
{
    struct hr *hr = NULL;
    struct err ignored = ERR_INIT;
    if (s->object == NULL || hr_parse(s->object, &hr, &ignored)) {
        return;
    }
    if (hr->spec.release_name != NULL && hr->spec.target_ns != NULL) {
        metrics_condition_gone(w->options.metrics, hr->spec.target_ns, hr->spec.release_name, NULL);
    }
    hr_free(hr);
}

static bool names_another_release(const struct snap *before, const struct snap *after)
{
    _cleanup_(free_cstr)
    char *old = worker_release_index(before);
    _cleanup_(free_cstr)
    char *new = worker_release_index(after);
    return !text_eq(old, new);
}

static void release_gone(struct worker *w, const struct snap *before)
{
    queue_drop(w->options.queue, before->key);
    mtx_lock(&w->lock);
    (void)strmap_remove(&w->sightings, before->key);
    (void)strmap_remove(&w->unlocked, before->key);
    (void)strmap_remove(&w->turns, before->key);
    mtx_unlock(&w->lock);
    forget_series(w, before);
}

void worker_on_release(void *ctx, enum reflector_event event, struct snap *before,
                       struct snap *after)
{
    struct worker *w = ctx;
    if (event == REFLECTOR_DELETED) {
        release_gone(w, before);
        return;
    }
    _cleanup_(hr_free_ptr)
    struct hr *hr = NULL;
    struct err err = ERR_INIT;
    if (after->object == NULL || hr_parse(after->object, &hr, &err)) {
        log_warn("worker", "a HelmRelease cannot be read, it is left alone until it changes",
                 LOG_S("key", after->key),
                 LOG_S("err", after->object == NULL ? after->bad.msg : err.msg));
        return;
    }
    note_sighting(w, after->key, hr, after);
    if (event == REFLECTOR_MODIFIED && names_another_release(before, after)) {
        forget_series(w, before);
    }
    note_conditions(w, hr);
    int64_t wait_ms = 0;
    if (event == REFLECTOR_ADDED) {
        queue_add(w->options.queue, after->key, QUEUE_LOW);
    } else if (judge_lease(w, after->key, hr, &wait_ms) == LEASE_WAIT) {
        queue_add_after(w->options.queue, after->key, wait_ms, QUEUE_HIGH);
    } else if (hr->status.released.status == HR_UNKNOWN &&
               locks_hold(w->options.locks, hr->ns, hr->name, hr->status.lease.transitions)) {
        return; /* our own lock's writes */
    } else if (is_settled(hr)) {
        queue_add_after(w->options.queue, after->key, next_resync_ms(w), QUEUE_LOW);
    } else {
        queue_add(w->options.queue, after->key, QUEUE_HIGH);
    }
}

/* Is this record one that a settled HelmRelease must look at: the newest, and not ours as it
 * stands? */
static bool record_matters(struct worker *w, const struct hr *hr)
{
    int64_t epoch = 0;
    int64_t age_ms = 0;
    _cleanup_(records_meta_free_ptr)
    struct helmrec_meta *newest = records_newest_cached(w, hr, &epoch, &age_ms);
    return newest == NULL || newest->status != HELMREC_DEPLOYED || newest->digest[0] == '\0';
}

void worker_on_record(void *ctx, enum reflector_event event, struct snap *before,
                      struct snap *after)
{
    struct worker *w = ctx;
    (void)event;
    const struct snap *record = after != NULL ? after : before;
    _cleanup_(free_cstr)
    char *index = record->object != NULL ? helmrec_index(record->object) : NULL;
    if (index == NULL || !cache_is_synced(w->options.records)) {
        return;
    }
    struct snap **snaps = NULL;
    size_t n = cache_by_index(w->options.releases, index, &snaps);
    for (size_t i = 0; i < n; i++) {
        struct hr *hr = NULL;
        struct err ignored = ERR_INIT;
        if (snaps[i]->object != NULL && hr_parse(snaps[i]->object, &hr, &ignored) == ERR_NONE) {
            /* A record that changes under a lock is the holder's own work: its unlocking is what
             * wakes us. */
            if (hr->status.released.status != HR_UNKNOWN && record_matters(w, hr)) {
                /* Not at once: the annotation that makes a new record ours comes by a stream of its
                 * own, right behind. */
                queue_add_after(w->options.queue, snaps[i]->key, RECORD_SETTLE_MS, QUEUE_HIGH);
            }
            hr_free(hr);
        }
        snap_unref(snaps[i]);
    }
    free(snaps);
}

/* ---- a pass ---- */

struct pass {
    struct worker *w;
    const char *key;
    struct snap *snap;
    struct hr *hr;
    struct helmrec_meta *newest;
    int64_t epoch_noted;
};

/* The chart as far as it is known without its bytes. If the repository cannot be asked, an exact
 * version that was resolved before is what it was. */
static enum err_kind chart_of_pass(struct pass *p, struct mono fresh_after, struct mono deadline,
                                   struct inputs *in, struct err *err)
{
    struct err cause = ERR_INIT;
    if (inputs_chart(p->w, p->hr, fresh_after, false, deadline, p->w->options.stopping, in,
                     &cause) == ERR_NONE) {
        return ERR_NONE;
    }
    const struct hr_source *known = &p->hr->status.source;
    const char *version = p->hr->spec.chart_version;
    bool same = known->digest != NULL && known->digest[0] != '\0' && version != NULL &&
                semver_is_exact(version) && text_eq(version, known->revision);
    if (!same) {
        *err = cause;
        return err->kind;
    }
    (void)snprintf(in->chart_digest, sizeof(in->chart_digest), "%s", known->digest);
    return ERR_NONE;
}

/* The desired digest by what is known no longer than fresh_after. */
static enum err_kind desired_digest(struct pass *p, struct mono fresh_after, char *out,
                                    struct err *err)
{
    struct worker *w = p->w;
    struct mono deadline = mono_add_ms(clock_mono(w->options.clock), WORKER_READ_MS);
    struct inputs in = {0};
    enum err_kind kind =
        inputs_values(w, p->hr, deadline, w->options.stopping, &in.values, &in.secret_values, err);
    if (kind == ERR_NONE) {
        kind = chart_of_pass(p, fresh_after, deadline, &in, err);
    }
    if (kind == ERR_NONE) {
        inputs_digest(p->hr, &in);
        (void)snprintf(out, RELEASE_DIGEST_LEN, "%s", in.digest);
    }
    inputs_release(w, &in);
    return kind;
}

/* Settle a RELEASE_COMPARE: NOT_DUE or DUE. */
static enum release_due compare(struct pass *p, const struct release_answer *answer,
                                const char **ret_why)
{
    struct worker *w = p->w;
    struct mono now = clock_mono(w->options.clock);
    char digest[RELEASE_DIGEST_LEN];
    struct err err = ERR_INIT;
    bool released = p->hr->status.released.status == HR_TRUE;
    enum err_kind kind = desired_digest(p, mono_add_ms(now, -w->options.interval_ms), digest, &err);
    if (kind == ERR_NONE && strcmp(digest, answer->against) == 0) {
        return RELEASE_NOT_DUE;
    }
    if (kind == ERR_NONE) {
        /* Before an object is called due for its chart, the repository is asked afresh: a replica
         * with an older index would upgrade what another has just released, and the other way
         * round. */
        kind = desired_digest(p, now, digest, &err);
        *ret_why = answer->why;
        return kind == ERR_NONE && strcmp(digest, answer->against) == 0 ? RELEASE_NOT_DUE
                                                                        : RELEASE_DUE;
    }
    /* The inputs cannot be read. A released object says so once, under the lock, if it is the
     * inputs' own fault; a hiccup of the API server is nothing to report. A failed object has said
     * it. */
    bool inputs_fault = kind == ERR_NOT_FOUND || kind == ERR_INVALID || kind == ERR_LIMIT;
    *ret_why = "the inputs cannot be read";
    log_at(released ? LOG_WARN : LOG_DEBUG, "pass",
           "the desired state is not known, what is released stays", LOG_S("err", err.msg));
    return released && inputs_fault ? RELEASE_DUE : RELEASE_NOT_DUE;
}

/* Milliseconds until it is our turn to take a lock that is due; 0 = now. Those before us get a head
 * start; if they are dead or busy, it is soon over. Others' turns are waited for with low priority,
 * so that each replica does its own share first. */
static int64_t turn_wait_ms(struct pass *p)
{
    struct worker *w = p->w;
    int rank = w->options.members != NULL
                   ? members_rank(w->options.members, p->hr->uid, p->hr->status.attempt.failures)
                   : 0;
    rank = rank < RANK_MAX ? rank : RANK_MAX;
    struct mono now = clock_mono(w->options.clock);
    MTX_GUARD(&w->lock);
    struct mono *since = strmap_get(&w->turns, p->key);
    if (rank == 0) {
        (void)strmap_remove(&w->turns, p->key);
        return 0;
    }
    if (since == NULL) {
        since = xmalloc(sizeof(*since));
        *since = now;
        strmap_put(&w->turns, p->key, since);
    }
    int64_t left_ms = rank * TURN_MS - mono_diff_ms(now, *since);
    if (left_ms <= 0) {
        (void)strmap_remove(&w->turns, p->key);
        return 0;
    }
    return left_ms;
}

static void forget_turn(struct worker *w, const char *key)
{
    MTX_GUARD(&w->lock);
    (void)strmap_remove(&w->turns, key);
}

static const char *verb_of(const struct pass *p)
{
    if (p->hr->deleting) {
        return "Uninstalling";
    }
    bool absent = p->newest == NULL || p->newest->status == HELMREC_UNINSTALLED;
    return absent ? "Installing" : "Upgrading";
}

static void note_unlocked(struct worker *w, const char *key, struct held *held,
                          struct mono runs_out)
{
    struct unlocked *u = xmalloc(sizeof(*u));
    *u = (struct unlocked){.epoch = held_epoch(held),
                           .generation = held_generation(held),
                           .when = clock_mono(w->options.clock),
                           .runs_out = runs_out};
    MTX_GUARD(&w->lock);
    strmap_put(&w->unlocked, key, u);
}

/* Milliseconds until this replica may lock the object again for the same generation; 0 = now.
 * Whatever makes an object due at once after each result (a fault of ours), it makes one write a
 * second and no storm. */
static int64_t breather_ms(struct worker *w, const char *key, const struct hr *hr)
{
    struct mono now = clock_mono(w->options.clock);
    MTX_GUARD(&w->lock);
    const struct unlocked *u = strmap_get(&w->unlocked, key);
    if (u == NULL || u->generation != hr->generation) {
        return 0;
    }
    int64_t since_ms = mono_diff_ms(now, u->when);
    return since_ms < BREATHER_MS ? BREATHER_MS - since_ms : 0;
}

/* Our own cache may be behind our own writes: then it shows a lock that we have freed, or a state
 * from before it. Deciding on that would only lose a race against ourselves (the PATCH's
 * resourceVersion sees to it); the watch will wake us. For a short time only: a status that
 * somebody has wiped shows an older epoch too, and stays like that. */
static bool cache_is_behind(struct worker *w, const char *key, const struct hr *hr)
{
    struct mono now = clock_mono(w->options.clock);
    MTX_GUARD(&w->lock);
    const struct unlocked *u = strmap_get(&w->unlocked, key);
    bool older =
        u != NULL &&
        (hr->status.lease.transitions < u->epoch ||
         (hr->status.lease.transitions == u->epoch && hr->status.released.status == HR_UNKNOWN));
    return older && mono_diff_ms(now, u->when) < WATCH_LAG_MS;
}

/* A lock of ours that must run out by itself, since a write of its helm has no answer yet: how long
 * still? 0: it is none. */
static int64_t left_to_run_out_ms(struct worker *w, const char *key, const struct hr *hr)
{
    struct mono now = clock_mono(w->options.clock);
    MTX_GUARD(&w->lock);
    const struct unlocked *u = strmap_get(&w->unlocked, key);
    bool left = u != NULL && hr->status.lease.transitions == u->epoch &&
                hr->status.released.status == HR_UNKNOWN && mono_before(now, u->runs_out);
    return left ? mono_diff_ms(u->runs_out, now) + 1 : 0;
}

static void run_sync(struct pass *p, struct held *held, bool from_own_pod)
{
    struct sync s = {.w = p->w,
                     .held = held,
                     .started = clock_mono(p->w->options.clock),
                     .from_own_pod = from_own_pod};
    _cleanup_json_ json_t *object = held_object(held);
    struct err err = ERR_INIT;
    log_ctx_put(LOG_I("generation", held_generation(held)));
    log_ctx_put(LOG_I("epoch", held_epoch(held)));
    if (hr_parse(object, &s.hr, &err)) {
        log_error("sync", "the locked object cannot be read, its lease runs out",
                  LOG_S("err", err.msg));
    } else {
        sync_run(&s);
    }
    if (s.unlocked) {
        note_unlocked(p->w, p->key, held, (struct mono){0});
    } else if (s.unanswered) {
        int64_t guard_ms = lease_guard_ms(locks_lease_ms(p->w->options.locks));
        note_unlocked(p->w, p->key, held, mono_add_ms(held_deadline(held), 2 * guard_ms));
    }
    if (!s.unlocked) {
        /* The lock stands there until its lease is out, and nothing may change meanwhile: no event
         * will wake us. */
        queue_add_after(p->w->options.queue, p->key, locks_lease_ms(p->w->options.locks),
                        QUEUE_HIGH);
    }
    gate_report_release(&s.wrote);
    inputs_release(p->w, &s.in);
    helmrec_meta_free(s.newest);
    record_list_release(&s.older);
    hr_free(s.hr);
    held_free(held);
}

/* The object cannot be locked as it stands: its status holds something absurd, or its lock was not
 * kept. That is this object's own trouble; a CRD that keeps nobody's lock is noticed by its watch.
 */
static void tell_refusal(struct pass *p, const struct err *err)
{
    event_emit(p->w->options.events, &(struct event){.ns = p->hr->ns,
                                                     .name = p->hr->name,
                                                     .uid = p->hr->uid,
                                                     .resource_version = p->hr->resource_version,
                                                     .warning = true,
                                                     .reason = "LockRefused",
                                                     .action = "Lock",
                                                     .note = err->msg});
}

static void take_and_sync(struct pass *p, bool expired, const char *why)
{
    struct worker *w = p->w;
    const char *verb = verb_of(p);
    const char *release = p->hr->spec.release_name != NULL ? p->hr->spec.release_name : p->hr->name;
    const char *does = strcmp(verb, "Installing") == 0  ? "installs"
                       : strcmp(verb, "Upgrading") == 0 ? "upgrades"
                                                        : "uninstalls";
    _cleanup_(free_cstr)
    char *doing = xasprintf("%s %s", does, release);
    struct lock_request request = {.object = p->snap->object,
                                   .expired = expired,
                                   .epoch_noted = p->epoch_noted,
                                   .reason = verb,
                                   .doing = doing};
    struct held *held = NULL;
    struct err err = ERR_INIT;
    enum err_kind kind = lock_acquire(w->options.locks, &request, &held, &err);
    if (kind == ERR_NONE) {
        log_info("lock", expired ? "took over an expired lock" : "took the lock", LOG_S("why", why),
                 LOG_I("epoch", held_epoch(held)), LOG_I("generation", held_generation(held)));
        bool from_own_pod =
            expired && p->hr->status.lease.present &&
            lease_same_pod(p->hr->status.lease.holder, locks_identity(w->options.locks));
        run_sync(p, held, from_own_pod);
        queue_forget(w->options.queue, p->key);
        return;
    }
    if (kind == ERR_CONFLICT || kind == ERR_NOT_FOUND || kind == ERR_CANCELLED) {
        /* Somebody was faster, or changed the object: the watch tells what came of it. The timer is
         * for a watch in trouble. */
        log_debug("lock", "not taken", LOG_S("err", err.msg));
        queue_add_after(w->options.queue, p->key, locks_lease_ms(w->options.locks), QUEUE_HIGH);
        return;
    }
    if (kind == ERR_INVALID) {
        tell_refusal(p, &err);
    }
    log_warn("lock", "the lock could not be taken, trying again",
             LOG_S("kind", err_kind_name(kind)), LOG_S("err", err.msg));
    queue_add_rate_limited(w->options.queue, p->key);
}

/* Is the lock somebody's still? Then the key is queued for when it may not be. */
static bool is_locked(struct pass *p, bool of_own_pod, enum lease_verdict *ret_verdict)
{
    struct worker *w = p->w;
    int64_t wait_ms = 0;
    *ret_verdict = judge_lease(w, p->key, p->hr, &wait_ms);
    if (*ret_verdict == LEASE_WAIT && of_own_pod && wait_ms > OWN_POD_POLL_MS) {
        wait_ms = OWN_POD_POLL_MS;
    }
    if (cache_is_behind(w, p->key, p->hr)) {
        *ret_verdict = LEASE_WAIT;
        wait_ms = WATCH_LAG_MS;
    }
    int64_t left_ms = left_to_run_out_ms(w, p->key, p->hr);
    if (left_ms > 0) {
        *ret_verdict = LEASE_WAIT;
        wait_ms = left_ms;
    }
    if (*ret_verdict != LEASE_WAIT) {
        return false;
    }
    forget_turn(w, p->key);
    queue_add_after(w->options.queue, p->key, wait_ms, QUEUE_HIGH);
    return true;
}

static void run_pass(struct pass *p)
{
    struct worker *w = p->w;
    char why_bad[512];
    if (worker_crd_problem(w, why_bad, sizeof(why_bad))) {
        queue_add_after(w->options.queue, p->key, CRD_BAD_RETRY_MS, QUEUE_LOW);
        return;
    }
    enum lease_verdict verdict;
    bool of_own_pod = p->hr->status.lease.present &&
                      lease_same_pod(p->hr->status.lease.holder, locks_identity(w->options.locks));
    if (is_locked(p, of_own_pod, &verdict)) {
        return;
    }
    int64_t age_ms = 0;
    p->newest = records_newest_cached(w, p->hr, &p->epoch_noted, &age_ms);
    struct release_question q = {.hr = p->hr,
                                 .newest = p->newest,
                                 .newest_age_ms = age_ms,
                                 .foreign_pending_ms = w->options.foreign_pending_ms};
    q.have_server_time = kube_server_time(w->options.kube, &q.server_now);
    struct release_answer answer = release_is_due(&q);
    const char *why = answer.why;
    enum release_due due = answer.due == RELEASE_COMPARE ? compare(p, &answer, &why) : answer.due;
    if (due != RELEASE_DUE) {
        metrics_add(w->options.metrics, METRICS_SYNC_NOOP, 1);
        int64_t resync_ms = next_resync_ms(w);
        bool soon = answer.wait_ms > 0 && answer.wait_ms < resync_ms;
        queue_add_after(w->options.queue, p->key, soon ? answer.wait_ms : resync_ms, QUEUE_LOW);
        log_debug("pass", "nothing to do", LOG_S("why", answer.why),
                  LOG_I("wait_ms", answer.wait_ms));
        forget_turn(w, p->key);
        return;
    }
    int64_t breather = breather_ms(w, p->key, p->hr);
    if (breather > 0) {
        queue_add_after(w->options.queue, p->key, breather, QUEUE_HIGH);
        return;
    }
    /* A lock of an earlier life of this pod is ours to take over, and nobody else's yet. */
    int64_t turn_ms = verdict == LEASE_EXPIRED && of_own_pod ? 0 : turn_wait_ms(p);
    if (turn_ms > 0) {
        queue_add_after(w->options.queue, p->key, turn_ms, QUEUE_LOW);
        return;
    }
    take_and_sync(p, verdict == LEASE_EXPIRED, why);
}

static void pass_key(struct worker *w, const char *key)
{
    struct pass p = {.w = w, .key = key, .snap = cache_get(w->options.releases, key)};
    if (p.snap == NULL) {
        queue_drop(w->options.queue, key);
        return;
    }
    struct err err = ERR_INIT;
    if (p.snap->object != NULL && hr_parse(p.snap->object, &p.hr, &err) == ERR_NONE) {
        log_ctx_set((struct log_field[]){LOG_S("key", key),
                                         LOG_S("holder", locks_identity(w->options.locks)),
                                         LOG_I("pass", atomic_fetch_add(&w->passes, 1) + 1)},
                    3);
        run_pass(&p);
        log_ctx_clear();
    }
    helmrec_meta_free(p.newest);
    hr_free(p.hr);
    snap_unref(p.snap);
}

void worker_run(struct worker *w)
{
    char *key;
    while ((key = queue_get(w->options.queue)) != NULL) {
        if (!cancel_is_raised(w->options.stopping)) {
            pass_key(w, key);
        }
        queue_done(w->options.queue, key);
        free(key);
    }
}
