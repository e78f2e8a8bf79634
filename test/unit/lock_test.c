/* pkg/lock over an API server in memory and a clock that the tests move (fake_api.h): taking,
 * writing, freeing and keeping locks, each with the faults that a real server shows. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_api.h"
#include "kube/kubeconfig.h"
#include "lock/lock.h"

#define SELF           "pod-a/uid-a/aaaa"
#define OTHER          "pod-b/uid-b/bbbb"
#define FINALIZER      "helm.fluxcd.io/belay"
#define LEASE_MS       5000
#define RENEW_MS       (LEASE_MS / 3)
#define SOFT_MS        3500
#define HARD_MS        4000
#define CHANCE_WORKERS 4
#define CHANCE_ROUNDS  15

struct fixture {
    char path[64];
    struct fake_clock clock;
    struct fake_api api;
    struct proc proc;
    struct kube_config *config;
    struct kube *kube;
    struct metrics *metrics;
    struct cancel stopping;
    struct locks *locks;
    bool running;
    pthread_t heartbeat, watchdog;
    struct held *held; /* freed at the end if a test leaves it */
};

/* ---- set up ---- */

static void add_object(struct fixture *f, const char *name)
{
    _cleanup_(free_cstr)
    char *text = xasprintf(
        "{\"metadata\":{\"namespace\":\"ns\",\"name\":\"%s\",\"uid\":\"uid-%s\",\"generation\":7},"
        "\"spec\":{},\"status\":{\"observedGeneration\":6,\"conditions\":["
        "{\"type\":\"Tested\",\"status\":\"True\",\"reason\":\"Tested\"},"
        "{\"type\":\"Released\",\"status\":\"True\",\"reason\":\"Succeeded\","
        "\"lastTransitionTime\":\"2026-12-01T11:00:00Z\"}],"
        "\"lease\":{\"holderIdentity\":\"%s\",\"leaseTransitions\":11,"
        "\"leaseDurationSeconds\":30}}}",
        name, name, OTHER);
    fake_api_add(&f->api, text);
}

static void write_kubeconfig(struct fixture *f)
{
    (void)snprintf(f->path, sizeof(f->path), "/tmp/lock_test.XXXXXX");
    int fd = mkstemp(f->path);
    must(fd >= 0);
    FILE *file = fdopen(fd, "w");
    must(file != NULL);
    must(fputs("apiVersion: v1\nkind: Config\ncurrent-context: c\n"
               "clusters: [{name: c, cluster: {server: 'https://api'}}]\n"
               "users: [{name: u, user: {}}]\n"
               "contexts: [{name: c, context: {cluster: c, user: u}}]\n",
               file) >= 0);
    must(fclose(file) == 0);
}

static int setup(void **state)
{
    struct fixture *f = xcalloc(1, sizeof(*f));
    write_kubeconfig(f);
    f->clock = (struct fake_clock){.base.ops = &FAKE_CLOCK_OPS};
    atomic_init(&f->clock.now_ns, FAKE_START_NS);
    fake_api_init(&f->api, &f->clock);
    f->proc.ops = &FAKE_PROC_OPS;
    struct err err = ERR_INIT;
    if (kube_config_load(&(struct kube_config_options){.path = f->path, .clock = &f->clock.base},
                         &f->config, &err)) {
        fail_msg("%s", err.msg);
    }
    f->kube = kube_new(&(struct kube_options){.transport = &f->api.base,
                                              .clock = &f->clock.base,
                                              .config = f->config,
                                              .user_agent = "belay/test"});
    f->metrics = metrics_new();
    cancel_init(&f->stopping);
    f->locks = locks_new(&(struct locks_options){.kube = f->kube,
                                                 .clock = &f->clock.base,
                                                 .proc = &f->proc,
                                                 .metrics = f->metrics,
                                                 .identity = SELF,
                                                 .lease_ms = LEASE_MS,
                                                 .stopping = &f->stopping});
    add_object(f, "x");
    *state = f;
    return 0;
}

static void *heartbeat_main(void *arg)
{
    fake_role = FAKE_HEARTBEAT;
    locks_run(arg);
    return NULL;
}

static void *watchdog_main(void *arg)
{
    fake_role = FAKE_WATCHDOG;
    locks_watchdog_run(arg);
    return NULL;
}

static void start_threads(struct fixture *f)
{
    f->running = true;
    must(pthread_create(&f->heartbeat, NULL, heartbeat_main, f->locks) == 0);
    must(pthread_create(&f->watchdog, NULL, watchdog_main, f->locks) == 0);
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    mtx_lock(&f->api.lock);
    f->api.unstick = true;
    mtx_unlock(&f->api.lock);
    if (f->held != NULL) {
        held_set_child(f->held, NULL);
        held_free(f->held);
    }
    if (f->running) {
        locks_stop(f->locks);
        must(pthread_join(f->heartbeat, NULL) == 0);
        must(pthread_join(f->watchdog, NULL) == 0);
    }
    locks_free(f->locks);
    cancel_release(&f->stopping);
    metrics_free(f->metrics);
    kube_free(f->kube);
    kube_config_free(f->config);
    fake_api_release(&f->api);
    (void)unlink(f->path);
    free(f);
    return 0;
}

/* ---- steps ---- */

/* GET the object, as the reflector would have; it tells the server's time too. */
static json_t *read_object(struct fixture *f, const char *name)
{
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    struct mono deadline = mono_add_ms(clock_mono(&f->clock.base), 1000);
    if (kube_get(f->kube, &KUBE_HELMRELEASES, "ns", name, deadline, NULL, &reply, &err)) {
        fail_msg("read %s: %s", name, err.msg);
    }
    json_t *object = json_incref(reply.object);
    kube_reply_release(&reply);
    return object;
}

static enum err_kind acquire_with(struct fixture *f, const json_t *object, bool expired,
                                  struct held **ret, struct err *err)
{
    return lock_acquire(f->locks,
                        &(struct lock_request){.object = object,
                                               .expired = expired,
                                               .reason = "Upgrading",
                                               .doing = "upgrades podinfo"},
                        ret, err);
}

static struct held *acquire(struct fixture *f, const char *name)
{
    _cleanup_json_ json_t *object = read_object(f, name);
    struct held *held = NULL;
    struct err err = ERR_INIT;
    if (acquire_with(f, object, false, &held, &err)) {
        fail_msg("acquire %s: %s", name, err.msg);
    }
    return held;
}

static void acquire_x(struct fixture *f)
{
    f->held = acquire(f, "x");
}

struct result {
    const char *status, *reason;
    int built, minimal;
};

static json_t *conditions_of(const json_t *object)
{
    const json_t *old = jsonx_at(object, "status.conditions");
    json_t *copy = json_is_array(old) ? json_deep_copy(old) : json_array();
    must(copy != NULL);
    return copy;
}

/* held_build of a result. */
static json_t *build_result(void *ctx, const json_t *object, const char *now, bool minimal)
{
    struct result *r = ctx;
    json_t *conditions = conditions_of(object);
    hr_conditions_edit(conditions, &(struct hr_condition_edit){.type = "Released",
                                                               .status = r->status,
                                                               .reason = r->reason,
                                                               .message = minimal ? "-" : "long",
                                                               .observed_generation = 7,
                                                               .now = now});
    r->built++;
    r->minimal += minimal ? 1 : 0;
    return json_pack("{s:o,s:s}", "conditions", conditions, "phase", "Succeeded");
}

static json_t *build_progress(void *ctx, const json_t *object, const char *now, bool minimal)
{
    (void)ctx;
    (void)now;
    (void)minimal;
    return json_pack("{s:o,s:s}", "conditions", conditions_of(object), "phase", "Upgrading");
}

static enum err_kind unlock(struct fixture *f, struct result *r, struct err *err)
{
    *r = (struct result){.status = "True", .reason = "Succeeded"};
    return held_unlock(f->held, build_result, r, err);
}

static enum err_kind write_progress(struct fixture *f)
{
    struct err err = ERR_INIT;
    return held_write(f->held, build_progress, NULL, &err);
}

static const char *released_text(const json_t *object, const char *field)
{
    return jsonx_str(hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", NULL),
                     field, "");
}

static void assert_released(struct fixture *f, const char *name, const char *status)
{
    _cleanup_json_ json_t *object = fake_api_object(&f->api, name);
    assert_string_equal(released_text(object, "status"), status);
}

static int64_t since_start_ms(struct fixture *f, struct mono t)
{
    (void)f;
    return mono_diff_ms(t, (struct mono){FAKE_START_NS});
}

static void fault(struct fixture *f, const char *method, enum fake_fault what)
{
    fake_api_rule(&f->api, (struct fake_rule){.method = method, .fault = what});
}

static int count(struct fixture *f, const int *counter)
{
    MTX_GUARD(&f->api.lock);
    return *counter;
}

/* ---- steps with threads ---- */

/* Until both threads have looked at the clock as it is now. stuck: the heartbeat cannot. */
static void let_threads_look(struct fixture *f, bool heartbeat_too)
{
    int watchdog = atomic_load(&f->clock.waits[FAKE_WATCHDOG]);
    int heartbeat = atomic_load(&f->clock.waits[FAKE_HEARTBEAT]);
    for (int i = 0; i < FAKE_REAL_MS * 3; i++) {
        bool seen = atomic_load(&f->clock.waits[FAKE_WATCHDOG]) >= watchdog + 2;
        seen = seen &&
               (!heartbeat_too || atomic_load(&f->clock.waits[FAKE_HEARTBEAT]) >= heartbeat + 2);
        if (seen) {
            return;
        }
        fake_yield();
    }
    fail_msg("a thread does not come to wait");
}

static void advance(struct fixture *f, int64_t ms)
{
    fake_clock_advance(&f->clock, ms);
    let_threads_look(f, true);
}

static void advance_with_stuck_heartbeat(struct fixture *f, int64_t ms)
{
    fake_clock_advance(&f->clock, ms);
    let_threads_look(f, false);
}

/* ---- taking ---- */

static void an_acquired_lock_is_what_the_status_says(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    _cleanup_json_ json_t *stands = fake_api_object(&f->api, "x");
    _cleanup_json_ json_t *held = held_object(f->held);
    assert_true(jsonx_equal(stands, held));
    assert_string_equal(released_text(held, "status"), "Unknown");
    assert_string_equal(released_text(held, "reason"), "Upgrading");
    assert_string_equal(released_text(held, "lastTransitionTime"), "2026-12-01T12:00:01Z");
    assert_string_equal(jsonx_str(held, "status.lease.holderIdentity", ""), SELF);
    assert_int_equal(jsonx_int(held, "status.lease.leaseTransitions", 0), 12);
    assert_int_equal(jsonx_int(held, "status.lease.leaseDurationSeconds", 0), LEASE_MS / 1000);
    assert_int_equal(jsonx_int(held, "status.observedGeneration", 0), 7);
    assert_int_equal(held_epoch(f->held), 12);
    assert_int_equal(held_generation(f->held), 7);
    assert_int_equal(since_start_ms(f, held_deadline(f->held)), HARD_MS);
    assert_true(locks_hold(f->locks, "ns", "x", 12));
    assert_false(locks_hold(f->locks, "ns", "x", 11));
    assert_false(held_is_lost(f->held));
    assert_non_null(strstr(f->api.last_url, "/helmreleases/x/status?fieldManager=belay"));
    assert_string_equal(f->api.last_type, "application/merge-patch+json");
    assert_non_null(strstr(f->api.last_body, "\"resourceVersion\":\"101\""));
}

static void an_epoch_exceeds_the_one_in_helms_records(void **state)
{
    struct fixture *f = *state;
    _cleanup_json_ json_t *object = read_object(f, "x");
    struct err err = ERR_INIT;
    assert_int_equal(lock_acquire(f->locks,
                                  &(struct lock_request){.object = object,
                                                         .epoch_noted = 40,
                                                         .reason = "Upgrading",
                                                         .doing = "upgrades x"},
                                  &f->held, &err),
                     ERR_NONE);
    assert_int_equal(held_epoch(f->held), 41);
}

static void relabel(struct fake_api *api, json_t *object)
{
    (void)api;
    json_t *metadata = json_object_get(object, "metadata");
    if (json_object_get(metadata, "labels") == NULL) {
        fake_put(metadata, "labels", json_object());
    }
    json_t *labels = json_object_get(metadata, "labels");
    fake_put(labels, "edits", json_integer(jsonx_int(labels, "edits", 0) + 1));
}

static void edit_spec(struct fake_api *api, json_t *object)
{
    (void)api;
    json_t *metadata = json_object_get(object, "metadata");
    fake_put(metadata, "generation", json_integer(jsonx_int(metadata, "generation", 0) + 1));
}

static void a_lost_race_is_a_conflict_and_changes_nothing(void **state)
{
    struct fixture *f = *state;
    _cleanup_json_ json_t *object = read_object(f, "x");
    fake_api_edit(&f->api, "x", relabel);
    _cleanup_json_ json_t *before = fake_api_object(&f->api, "x");
    struct err err = ERR_INIT;
    struct held *held = NULL;
    assert_int_equal(acquire_with(f, object, false, &held, &err), ERR_CONFLICT);
    _cleanup_json_ json_t *after = fake_api_object(&f->api, "x");
    assert_true(jsonx_equal(before, after));
    assert_null(held);
    assert_int_equal(locks_count(f->locks), 0);
    assert_int_equal(f->api.patches, 1); /* no retry */
    assert_int_equal(metrics_get(f->metrics, METRICS_LOCK_CONFLICTS), 1);
}

static void put_condition(json_t *object, const char *status, const char *reason, const char *stamp)
{
    json_t *conditions = jsonx_at(object, "status.conditions");
    hr_conditions_edit(conditions, &(struct hr_condition_edit){.type = "Released",
                                                               .status = status,
                                                               .reason = reason,
                                                               .message = "by another",
                                                               .observed_generation = 7,
                                                               .now = stamp,
                                                               .restamp = true});
}

static void other_takes(struct fake_api *api, json_t *object)
{
    (void)api;
    json_t *lease = jsonx_at(object, "status.lease");
    fake_put(lease, "holderIdentity", json_string(OTHER));
    fake_put(lease, "leaseTransitions", json_integer(jsonx_int(lease, "leaseTransitions", 0) + 1));
    put_condition(object, "Unknown", "Upgrading", "2026-12-01T12:00:03Z");
}

static void hand_unlocks(struct fake_api *api, json_t *object)
{
    (void)api;
    put_condition(object, "False", "ByHand", "2026-12-01T12:00:02Z");
}

/* Our name and the epoch to come, but another stamp: an older life of this protocol's own words. */
static void same_epoch_other_stamp(struct fake_api *api, json_t *object)
{
    (void)api;
    json_t *lease = jsonx_at(object, "status.lease");
    fake_put(lease, "holderIdentity", json_string(SELF));
    fake_put(lease, "leaseTransitions", json_integer(12));
    put_condition(object, "Unknown", "Upgrading", "2026-12-01T11:59:00Z");
}

static void an_unknown_outcome_is_settled_by_reading_back(void **state)
{
    static const struct {
        const char *name;
        enum fake_fault patch, get;
        void (*before_get)(struct fake_api *api, json_t *object);
        enum err_kind kind;
    } rows[] = {
        {"504, committed", FAKE_504_DONE, FAKE_PASS, NULL, ERR_NONE},
        {"cut, committed", FAKE_CUT_DONE, FAKE_PASS, NULL, ERR_NONE},
        {"200 without a body", FAKE_EMPTY_DONE, FAKE_PASS, NULL, ERR_NONE},
        {"504, not committed", FAKE_504, FAKE_PASS, NULL, ERR_UNKNOWN_OUTCOME},
        {"500, not committed", FAKE_500, FAKE_PASS, NULL, ERR_UNKNOWN_OUTCOME},
        {"no reply until the deadline", FAKE_HANG, FAKE_PASS, NULL, ERR_UNKNOWN_OUTCOME},
        {"committed, but it cannot be read back", FAKE_504_DONE, FAKE_500, NULL,
         ERR_UNKNOWN_OUTCOME},
        {"committed, read back as nothing", FAKE_504_DONE, FAKE_EMPTY_DONE, NULL,
         ERR_UNKNOWN_OUTCOME},
        {"committed, then taken by another", FAKE_504_DONE, FAKE_PASS, other_takes,
         ERR_UNKNOWN_OUTCOME},
        {"committed, but another generation came", FAKE_504_DONE, FAKE_PASS, edit_spec,
         ERR_CONFLICT},
        {"not committed, an old stamp of ours", FAKE_504, FAKE_PASS, same_epoch_other_stamp,
         ERR_UNKNOWN_OUTCOME},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        void *fresh = NULL;
        (void)setup(&fresh);
        struct fixture *f = fresh;
        _cleanup_json_ json_t *object = read_object(f, "x");
        fault(f, "PATCH", rows[i].patch);
        fake_api_rule(&f->api, (struct fake_rule){.method = "GET",
                                                  .fault = rows[i].get,
                                                  .before = rows[i].before_get});
        struct err err = ERR_INIT;
        enum err_kind kind = acquire_with(f, object, false, &f->held, &err);
        bool held = f->held != NULL && locks_count(f->locks) == 1;
        if (kind != rows[i].kind || held != (kind == ERR_NONE)) {
            fail_msg("%s: %s (%s)", rows[i].name, err_kind_name(kind), err.msg);
        }
        assert_int_equal(f->api.patches, 1);
        assert_int_equal(metrics_get(f->metrics, METRICS_LOCK_UNKNOWN), 1);
        (void)teardown(&fresh);
    }
    (void)state;
}

static void an_expired_lock_is_read_afresh_before_it_is_taken(void **state)
{
    struct fixture *f = *state;
    fake_api_edit(&f->api, "x", other_takes);
    _cleanup_json_ json_t *object = read_object(f, "x");
    fake_api_edit(&f->api, "x", relabel); /* no matter: the lock is the same */
    struct err err = ERR_INIT;
    assert_int_equal(acquire_with(f, object, true, &f->held, &err), ERR_NONE);
    assert_int_equal(f->api.gets, 2);
    assert_int_equal(held_epoch(f->held), 13);
    assert_int_equal(metrics_get(f->metrics, METRICS_LOCK_TAKEOVERS), 1);
}

static void renew_other(struct fake_api *api, json_t *object)
{
    (void)api;
    put_condition(object, "Unknown", "Upgrading", "2026-12-01T12:00:04Z");
}

static void an_expired_lock_that_moved_is_not_taken(void **state)
{
    static void (*const moves[])(struct fake_api *, json_t *) = {renew_other, other_takes,
                                                                 hand_unlocks};
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof(moves) / sizeof(moves[0]); i++) {
        fake_api_edit(&f->api, "x", other_takes);
        _cleanup_json_ json_t *object = read_object(f, "x");
        fake_api_edit(&f->api, "x", moves[i]);
        struct held *held = NULL;
        struct err err = ERR_INIT;
        assert_int_equal(acquire_with(f, object, true, &held, &err), ERR_CONFLICT);
        assert_int_equal(f->api.patches, 0);
        assert_int_equal(locks_count(f->locks), 0);
    }
}

static void a_half_kept_lock_is_undone(void **state)
{
    static const struct {
        const char *named;
        bool lease;
    } rows[] = {{"status.lease.holderIdentity", true}, {"lastTransitionTime", false}};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        void *fresh = NULL;
        (void)setup(&fresh);
        struct fixture *f = fresh;
        f->api.drops_lease = rows[i].lease;
        f->api.drops_stamp = !rows[i].lease;
        _cleanup_json_ json_t *object = read_object(f, "x");
        struct err err = ERR_INIT;
        struct held *held = NULL;
        assert_int_equal(acquire_with(f, object, false, &held, &err), ERR_INVALID);
        assert_non_null(strstr(err.msg, rows[i].named));
        assert_int_equal(locks_count(f->locks), 0);
        _cleanup_json_ json_t *after = fake_api_object(&f->api, "x");
        assert_string_equal(released_text(after, "status"), "True");
        assert_string_equal(released_text(after, "reason"), "Succeeded");
        /* Generation 7 was never looked at: it must not read as done. */
        assert_int_equal(jsonx_int(after, "status.observedGeneration", -1), 6);
        (void)teardown(&fresh);
    }
}

static void a_grant_that_comes_late_is_no_lock(void **state)
{
    struct fixture *f = *state;
    _cleanup_json_ json_t *object = read_object(f, "x");
    fake_api_rule(&f->api, (struct fake_rule){.method = "PATCH", .delay_ms = HARD_MS});
    struct held *held = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(acquire_with(f, object, false, &held, &err), ERR_LEASE_LOST);
    assert_int_equal(locks_count(f->locks), 0);
    assert_int_equal(metrics_get(f->metrics, METRICS_LOCK_LOST), 1);
}

static void whoever_stops_takes_no_lock(void **state)
{
    struct fixture *f = *state;
    _cleanup_json_ json_t *object = read_object(f, "x");
    cancel_raise(&f->stopping);
    struct held *held = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(acquire_with(f, object, false, &held, &err), ERR_CANCELLED);
    assert_int_equal(f->api.patches, 0);
}

static void stopping_reaches_what_runs_under_a_lock(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    assert_false(cancel_is_raised(held_cancel(f->held)));
    cancel_raise(&f->stopping);
    assert_true(cancel_is_raised(held_cancel(f->held)));
    assert_false(held_is_lost(f->held)); /* the result can still be written */
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_NONE);
}

static void without_the_servers_time_there_is_no_lock(void **state)
{
    struct fixture *f = *state;
    _cleanup_json_ json_t *object = fake_api_object(&f->api, "x");
    struct held *held = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(acquire_with(f, object, false, &held, &err), ERR_UNAVAILABLE);
    assert_int_equal(f->api.patches, 0);
}

static void put_epoch(struct fixture *f, int64_t epoch)
{
    MTX_GUARD(&f->api.lock);
    fake_put(jsonx_at(f->api.objects[0], "status.lease"), "leaseTransitions", json_integer(epoch));
}

/* The CRD lets a hand write any number into a new object: that must not end the process. */
static void an_absurd_epoch_is_survived(void **state)
{
    struct fixture *f = *state;
    put_epoch(f, INT64_MAX);
    _cleanup_json_ json_t *greatest = read_object(f, "x");
    struct err err = ERR_INIT;
    assert_int_equal(acquire_with(f, greatest, false, &f->held, &err), ERR_INVALID);
    assert_int_equal(f->api.patches, 0);
    put_epoch(f, -5);
    _cleanup_json_ json_t *negative = read_object(f, "x");
    assert_int_equal(acquire_with(f, negative, false, &f->held, &err), ERR_NONE);
    assert_int_equal(held_epoch(f->held), 1);
}

/* ---- writing ---- */

static void progress_is_a_grant_only_with_a_new_stamp(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    /* The stamp of this second stands there already: whoever watches counts from the first write.
     */
    assert_int_equal(write_progress(f), ERR_NONE);
    assert_int_equal(since_start_ms(f, held_deadline(f->held)), HARD_MS);
    fake_clock_advance(&f->clock, 1200);
    assert_int_equal(write_progress(f), ERR_NONE);
    assert_int_equal(since_start_ms(f, held_deadline(f->held)), 1200 + HARD_MS);
    _cleanup_json_ json_t *object = fake_api_object(&f->api, "x");
    assert_string_equal(released_text(object, "status"), "Unknown");
    assert_int_equal(
        strcmp(released_text(object, "lastTransitionTime"), "2026-12-01T12:00:02Z") >= 0, 1);
    assert_string_equal(jsonx_str(object, "status.phase", ""), "Upgrading");
    assert_int_equal(jsonx_int(object, "status.lease.leaseTransitions", 0), 12);
}

static void unanswered_progress_that_was_carried_out_counts_from_its_sending(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    fake_clock_advance(&f->clock, 1500);
    fault(f, "PATCH", FAKE_504_DONE);
    assert_int_equal(write_progress(f), ERR_NONE);
    /* Read back after a pause and written once more, with the same stamp: the first one counts. */
    assert_int_equal(since_start_ms(f, held_deadline(f->held)), 1500 + HARD_MS);
    assert_int_equal(f->api.patches, 3);
}

/* Nothing was learned after the first one, so the second had the same stamp: it may be either's. */
static void of_two_unanswered_writes_with_one_stamp_the_earlier_counts(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    fake_clock_advance(&f->clock, 1500);
    fault(f, "PATCH", FAKE_504_DONE);
    fault(f, "GET", FAKE_500);
    assert_int_equal(write_progress(f), ERR_NONE);
    assert_int_equal(since_start_ms(f, held_deadline(f->held)), 1500 + HARD_MS);
}

static void the_result_frees_the_lock(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_NONE);
    assert_int_equal(r.built, 1);
    _cleanup_json_ json_t *object = fake_api_object(&f->api, "x");
    assert_string_equal(released_text(object, "status"), "True");
    assert_string_equal(jsonx_str(object, "status.phase", ""), "Succeeded");
    assert_string_equal(jsonx_str(object, "status.lease.holderIdentity", ""), SELF);
    assert_false(held_is_lost(f->held));
}

static void a_result_after_anothers_edit_is_merged_again(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    fake_api_edit(&f->api, "x", edit_spec); /* generation 8, and our resourceVersion is old */
    fake_api_edit(&f->api, "x", relabel);
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_NONE);
    assert_int_equal(r.built, 2);
    assert_int_equal(f->api.patches, 3);
    _cleanup_json_ json_t *object = fake_api_object(&f->api, "x");
    assert_string_equal(released_text(object, "status"), "True");
    assert_int_equal(jsonx_int(object, "metadata.labels.edits", 0), 1);
    /* What was synced, not what stands there now. */
    assert_int_equal(jsonx_int(object, "status.observedGeneration", 0), 7);
    assert_int_equal(jsonx_int(object, "metadata.generation", 0), 8);
}

static void edits_in_quick_succession_do_not_keep_the_lock(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    fake_api_rule(
        &f->api,
        (struct fake_rule){.method = "PATCH", .times = 200, .fault = FAKE_409, .before = relabel});
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_NONE);
    assert_released(f, "x", "True");
}

/* Everything that takes the lock away while the result is on its way. */
static void a_result_never_overwrites_what_took_the_lock(void **state)
{
    static const struct {
        const char *name;
        enum fake_fault fault; /* of the first PATCH, which comes after the deed */
        void (*deed)(struct fake_api *api, json_t *object);
    } rows[] = {
        {"a hand, seen by 409", FAKE_PASS, hand_unlocks},
        {"a hand, after an unknown outcome", FAKE_504, hand_unlocks},
        {"another holder, seen by 409", FAKE_PASS, other_takes},
        {"another holder, after an unknown outcome", FAKE_CUT, other_takes},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        void *fresh = NULL;
        (void)setup(&fresh);
        struct fixture *f = fresh;
        acquire_x(f);
        fake_api_edit(&f->api, "x", rows[i].deed);
        fault(f, "PATCH", rows[i].fault);
        _cleanup_json_ json_t *before = fake_api_object(&f->api, "x");
        struct result r;
        struct err err = ERR_INIT;
        enum err_kind kind = unlock(f, &r, &err);
        _cleanup_json_ json_t *after = fake_api_object(&f->api, "x");
        if (kind != ERR_LEASE_LOST || !jsonx_equal(before, after)) {
            fail_msg("%s: %s (%s)", rows[i].name, err_kind_name(kind), err.msg);
        }
        assert_true(held_is_lost(f->held));
        assert_true(cancel_is_raised(held_cancel(f->held)));
        (void)teardown(&fresh);
    }
}

static void a_result_for_a_deleted_object_is_dropped(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    fake_api_delete(&f->api, "x");
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_LEASE_LOST);
    assert_true(held_is_lost(f->held));
}

static void a_refused_message_is_tried_as_a_short_one(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    fault(f, "PATCH", FAKE_422);
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_NONE);
    assert_int_equal(r.minimal, 1);
    _cleanup_json_ json_t *object = fake_api_object(&f->api, "x");
    assert_string_equal(released_text(object, "message"), "-");
}

static void what_is_refused_twice_is_invalid(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    fake_api_rule(&f->api, (struct fake_rule){.method = "PATCH", .times = 2, .fault = FAKE_422});
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_INVALID);
    assert_int_equal(f->api.patches, 3);
    assert_released(f, "x", "Unknown");
}

static void a_result_without_an_answer_is_written_once(void **state)
{
    static const struct {
        const char *name;
        enum fake_fault patch, get;
        int patches; /* with the one that took the lock */
    } rows[] = {
        {"committed and read back", FAKE_504_DONE, FAKE_PASS, 2},
        {"cut, committed and read back", FAKE_CUT_DONE, FAKE_PASS, 2},
        {"committed, read back as nothing", FAKE_EMPTY_DONE, FAKE_PASS, 2},
        {"committed, not read back: a conflict, then known again", FAKE_504_DONE, FAKE_500, 3},
        {"not committed", FAKE_504, FAKE_PASS, 3},
        {"not committed, not read back", FAKE_CUT, FAKE_500, 3},
        {"throttled", FAKE_429, FAKE_PASS, 3},
        {"denied for a moment", FAKE_403, FAKE_PASS, 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        void *fresh = NULL;
        (void)setup(&fresh);
        struct fixture *f = fresh;
        acquire_x(f);
        fault(f, "PATCH", rows[i].patch);
        fault(f, "GET", rows[i].get);
        struct result r;
        struct err err = ERR_INIT;
        enum err_kind kind = unlock(f, &r, &err);
        _cleanup_json_ json_t *object = fake_api_object(&f->api, "x");
        bool ok = kind == ERR_NONE && f->api.patches == rows[i].patches &&
                  text_eq(released_text(object, "reason"), "Succeeded") && !held_is_lost(f->held);
        if (!ok) {
            fail_msg("%s: %s (%s), %d patches", rows[i].name, err_kind_name(kind), err.msg,
                     f->api.patches);
        }
        (void)teardown(&fresh);
    }
}

static void a_result_is_tried_until_the_lease_is_out_and_no_longer(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    fake_api_rule(&f->api, (struct fake_rule){.times = 10000, .fault = FAKE_500});
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_LEASE_LOST);
    assert_true(r.built > 3);
    assert_int_equal(since_start_ms(f, clock_mono(&f->clock.base)), HARD_MS);
    assert_true(held_is_lost(f->held));
}

static void no_request_outlives_the_lease(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    fake_clock_advance(&f->clock, SOFT_MS);
    fault(f, "PATCH", FAKE_HANG);
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_LEASE_LOST);
    assert_int_equal(since_start_ms(f, clock_mono(&f->clock.base)), HARD_MS);
}

/* ---- finalizer ---- */

static void add_foreign_finalizer(struct fake_api *api, json_t *object)
{
    (void)api;
    json_t *metadata = json_object_get(object, "metadata");
    if (json_object_get(metadata, "finalizers") == NULL) {
        fake_put(metadata, "finalizers", json_array());
    }
    must(json_array_insert_new(json_object_get(metadata, "finalizers"), 0,
                               json_string("example.com/other")) == 0);
}

static void mark_deleted(struct fake_api *api, json_t *object)
{
    (void)api;
    fake_put(json_object_get(object, "metadata"), "deletionTimestamp",
             json_string("2026-12-01T12:00:00Z"));
}

static void assert_finalizers(struct fixture *f, const char *want)
{
    _cleanup_json_ json_t *object = fake_api_object(&f->api, "x");
    _cleanup_(free_cstr)
    char *text = NULL;
    const json_t *list = jsonx_at(object, "metadata.finalizers");
    text = list != NULL ? jsonx_dump(list) : xstrdup("none");
    assert_string_equal(text, want);
}

static enum err_kind add_finalizer(struct fixture *f)
{
    struct err err = ERR_INIT;
    return held_add_finalizer(f->held, FINALIZER, &err);
}

static enum err_kind remove_finalizer(struct fixture *f)
{
    struct err err = ERR_INIT;
    return held_remove_finalizer(f->held, FINALIZER, &err);
}

static void a_finalizer_is_added_once(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    assert_int_equal(add_finalizer(f), ERR_NONE);
    assert_finalizers(f, "[\"" FINALIZER "\"]");
    assert_null(strstr(f->api.last_url, "/status"));
    assert_int_equal(f->api.patches, 2);
    assert_int_equal(add_finalizer(f), ERR_NONE);
    assert_int_equal(f->api.patches, 2);
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_NONE); /* its own edit is no conflict */
    assert_int_equal(r.built, 1);
}

static void anothers_finalizer_is_kept(void **state)
{
    struct fixture *f = *state;
    acquire_x(f);
    fake_api_edit(&f->api, "x", add_foreign_finalizer); /* we still think that there is none */
    assert_int_equal(add_finalizer(f), ERR_NONE);
    assert_finalizers(f, "[\"example.com/other\",\"" FINALIZER "\"]");
}

static void a_finalizer_survives_refusals_and_lost_replies(void **state)
{
    static const enum fake_fault faults[] = {
        FAKE_409, FAKE_422, FAKE_500, FAKE_504_DONE, FAKE_CUT_DONE, FAKE_EMPTY_DONE, FAKE_429};
    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        void *fresh = NULL;
        (void)setup(&fresh);
        struct fixture *f = fresh;
        acquire_x(f);
        fault(f, "PATCH", faults[i]);
        assert_int_equal(add_finalizer(f), ERR_NONE);
        assert_finalizers(f, "[\"" FINALIZER "\"]");
        fake_api_edit(&f->api, "x", mark_deleted);
        fake_api_edit(&f->api, "x", add_foreign_finalizer); /* ours is at another place now */
        fault(f, "PATCH", faults[i]);
        assert_int_equal(remove_finalizer(f), ERR_NONE);
        assert_finalizers(f, "[\"example.com/other\"]");
        (void)teardown(&fresh);
    }
}

static void the_last_finalizer_ends_the_object(void **state)
{
    static const enum fake_fault faults[] = {FAKE_PASS, FAKE_504_DONE, FAKE_CUT_DONE};
    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        void *fresh = NULL;
        (void)setup(&fresh);
        struct fixture *f = fresh;
        acquire_x(f);
        assert_int_equal(add_finalizer(f), ERR_NONE);
        fake_api_edit(&f->api, "x", mark_deleted);
        fault(f, "PATCH", faults[i]);
        assert_int_equal(remove_finalizer(f), ERR_NONE);
        json_t *left = fake_api_object(&f->api, "x");
        assert_null(left);
        assert_false(held_is_lost(f->held));
        (void)teardown(&fresh);
    }
}

/* A later lock of this very process is not the one that we hold. */
static void next_epoch(struct fake_api *api, json_t *object)
{
    (void)api;
    fake_put(jsonx_at(object, "status.lease"), "leaseTransitions", json_integer(13));
}

static void without_the_lock_no_finalizer_is_touched(void **state)
{
    static void (*const deeds[])(struct fake_api *, json_t *) = {other_takes, next_epoch};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        void *fresh = NULL;
        (void)setup(&fresh);
        struct fixture *f = fresh;
        acquire_x(f);
        assert_int_equal(add_finalizer(f), ERR_NONE);
        fake_api_edit(&f->api, "x", mark_deleted);
        fake_api_edit(&f->api, "x", deeds[i]);
        assert_int_equal(remove_finalizer(f), ERR_LEASE_LOST);
        assert_finalizers(f, "[\"" FINALIZER "\"]");
        assert_true(held_is_lost(f->held));
        (void)teardown(&fresh);
    }
}

/* ---- keeping ---- */

static void the_heartbeat_renews_at_a_third(void **state)
{
    struct fixture *f = *state;
    start_threads(f);
    acquire_x(f);
    advance(f, RENEW_MS - 1);
    assert_int_equal(count(f, &f->api.renewals), 0);
    for (int i = 1; i <= 6; i++) {
        advance(f, i == 1 ? 2 : RENEW_MS + 1);
        assert_int_equal(count(f, &f->api.renewals), i);
        int64_t left_ms = mono_diff_ms(held_deadline(f->held), clock_mono(&f->clock.base));
        assert_in_range(left_ms, HARD_MS - 1, HARD_MS);
    }
    assert_false(held_is_lost(f->held));
    assert_string_equal(f->api.last_type, "application/json-patch+json");
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_NONE);
    advance(f, 3 * LEASE_MS);
    assert_int_equal(count(f, &f->api.renewals), 6); /* none after the result */
    assert_false(held_is_lost(f->held));
}

static void a_stamp_behind_the_servers_date_is_renewed_at_once(void **state)
{
    struct fixture *f = *state;
    start_threads(f);
    _cleanup_json_ json_t *object = read_object(f, "x");
    mtx_lock(&f->api.lock);
    f->api.skew_ms = 5000; /* the reply comes from a server that is ahead */
    mtx_unlock(&f->api.lock);
    struct err err = ERR_INIT;
    assert_int_equal(acquire_with(f, object, false, &f->held, &err), ERR_NONE);
    advance(f, 1);
    assert_int_equal(count(f, &f->api.renewals), 1);
    _cleanup_json_ json_t *after = fake_api_object(&f->api, "x");
    assert_true(strcmp(released_text(after, "lastTransitionTime"), "2026-12-01T12:00:05Z") >= 0);
}

static void a_renewal_behind_the_servers_date_is_followed_by_another(void **state)
{
    struct fixture *f = *state;
    start_threads(f);
    acquire_x(f);
    mtx_lock(&f->api.lock);
    f->api.skew_ms = 5000;
    mtx_unlock(&f->api.lock);
    advance(f, RENEW_MS + 1);
    assert_int_equal(count(f, &f->api.renewals), 2);
}

/* The lock was stamped when less was known of the server's clock: by what is known now, the renewal
 * would leave the stamp that stands there, and be no grant at all. */
static void a_renewal_always_moves_its_stamp(void **state)
{
    struct fixture *f = *state;
    add_object(f, "y");
    start_threads(f);
    struct held *y = acquire(f, "y");
    advance(f, 1410);
    _cleanup_json_ json_t *object = fake_api_object(&f->api, "x");
    struct err err = ERR_INIT;
    assert_int_equal(acquire_with(f, object, false, &f->held, &err), ERR_NONE);
    _cleanup_json_ json_t *before = fake_api_object(&f->api, "x");
    advance(f, RENEW_MS - 1410 + 1); /* y is due, and x goes along */
    assert_int_equal(count(f, &f->api.renewals), 2);
    _cleanup_json_ json_t *after = fake_api_object(&f->api, "x");
    assert_true(strcmp(released_text(after, "lastTransitionTime"),
                       released_text(before, "lastTransitionTime")) > 0);
    held_free(y);
}

/* Another client puts a condition before ours: the renewal tests the wrong index. */
static void shift_conditions(struct fake_api *api, json_t *object)
{
    (void)api;
    must(json_array_insert_new(jsonx_at(object, "status.conditions"), 0,
                               json_pack("{s:s,s:s}", "type", "Deployed", "status", "True")) == 0);
}

static void a_failed_test_with_the_lock_still_ours_goes_on(void **state)
{
    struct fixture *f = *state;
    struct child child = {.clock = &f->clock.base};
    start_threads(f);
    acquire_x(f);
    held_set_child(f->held, &child);
    fake_api_edit(&f->api, "x", shift_conditions);
    advance(f, RENEW_MS + 1);
    assert_int_equal(count(f, &f->api.renewals), 0);
    advance(f, 300);
    assert_int_equal(count(f, &f->api.renewals), 1);
    assert_false(held_is_lost(f->held));
    assert_int_equal(atomic_load(&child.sigkill) + atomic_load(&child.sigint), 0);
    held_set_child(f->held, NULL);
}

static void whoever_loses_the_lock_is_stopped_at_once(void **state)
{
    static const struct {
        const char *name;
        void (*deed)(struct fake_api *api, json_t *object); /* NULL: deleted */
    } rows[] = {{"another holder", other_takes}, {"a hand", hand_unlocks}, {"deleted", NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        void *fresh = NULL;
        (void)setup(&fresh);
        struct fixture *f = fresh;
        struct child child = {.clock = &f->clock.base};
        struct child late = {.clock = &f->clock.base};
        start_threads(f);
        acquire_x(f);
        held_set_child(f->held, &child);
        if (rows[i].deed != NULL) {
            fake_api_edit(&f->api, "x", rows[i].deed);
        } else {
            fake_api_delete(&f->api, "x");
        }
        advance(f, RENEW_MS + 1);
        if (!held_is_lost(f->held) || !cancel_is_raised(held_cancel(f->held)) ||
            atomic_load(&child.sigkill) != 1 || !held_was_interrupted(f->held)) {
            fail_msg("%s: not stopped", rows[i].name);
        }
        held_set_child(f->held, &late); /* nothing begins under a lost lock */
        assert_int_equal(atomic_load(&late.sigkill), 1);
        held_set_child(f->held, NULL);
        assert_int_equal(write_progress(f), ERR_LEASE_LOST);
        assert_int_equal(count(f, &f->api.renewals), 0);
        (void)teardown(&fresh);
    }
}

static void stamp_for_ever(struct fake_api *api, json_t *object)
{
    (void)api;
    put_condition(object, "Unknown", "Upgrading", "2100-01-01T00:00:00Z");
}

/* Nobody could see our renewals move such a stamp. */
static void a_stamp_that_we_never_sent_is_not_ours(void **state)
{
    struct fixture *f = *state;
    start_threads(f);
    acquire_x(f);
    fake_api_edit(&f->api, "x", stamp_for_ever);
    _cleanup_json_ json_t *before = fake_api_object(&f->api, "x");
    advance(f, RENEW_MS + 1);
    assert_true(held_is_lost(f->held));
    assert_int_equal(write_progress(f), ERR_LEASE_LOST);
    _cleanup_json_ json_t *after = fake_api_object(&f->api, "x");
    assert_true(jsonx_equal(before, after));
}

/* The whole time the heartbeat's request gets no reply, and does not even end at its deadline. */
static void the_watchdog_stops_the_child_while_the_heartbeat_hangs(void **state)
{
    struct fixture *f = *state;
    struct child child = {.clock = &f->clock.base};
    start_threads(f);
    acquire_x(f);
    held_set_child(f->held, &child);
    fake_api_rule(&f->api, (struct fake_rule){.times = 1000, .fault = FAKE_STUCK});
    int64_t t = 0;
    for (; t < SOFT_MS - 100; t += 100) {
        advance_with_stuck_heartbeat(f, 100);
    }
    assert_int_equal(atomic_load(&child.sigint), 0);
    for (; t < HARD_MS - 100; t += 100) {
        advance_with_stuck_heartbeat(f, 100);
    }
    assert_int_equal(atomic_load(&child.sigint), 1);
    assert_int_equal(atomic_load(&child.sigkill), 0);
    assert_false(held_is_lost(f->held));
    for (; t < HARD_MS; t += 100) {
        advance_with_stuck_heartbeat(f, 100);
    }
    assert_int_equal(atomic_load(&child.sigkill), 1);
    assert_true(held_is_lost(f->held));
    assert_true(cancel_is_raised(held_cancel(f->held)));
    /* Well before anybody else may take it: the lease, and its guard on top. */
    assert_true((atomic_load(&child.sigint_ns) - FAKE_START_NS) / NS_PER_MS < SOFT_MS + 200);
    assert_true((atomic_load(&child.sigkill_ns) - FAKE_START_NS) / NS_PER_MS < LEASE_MS);
    held_set_child(f->held, NULL);
}

static void a_child_that_starts_after_the_soft_deadline_is_interrupted_too(void **state)
{
    struct fixture *f = *state;
    struct child child = {.clock = &f->clock.base};
    start_threads(f);
    fake_api_rule(&f->api, (struct fake_rule){.skip = 2, .times = 1000, .fault = FAKE_STUCK});
    acquire_x(f);
    advance_with_stuck_heartbeat(f, SOFT_MS + 50);
    held_set_child(f->held, &child);
    let_threads_look(f, false);
    assert_int_equal(atomic_load(&child.sigint), 1);
    assert_int_equal(atomic_load(&child.sigkill), 0);
    held_set_child(f->held, NULL);
}

static void an_unanswered_renewal_that_was_carried_out_counts_from_its_sending(void **state)
{
    struct fixture *f = *state;
    start_threads(f);
    acquire_x(f);
    fault(f, "PATCH", FAKE_504_DONE);
    advance(f, RENEW_MS + 1);
    assert_int_equal(count(f, &f->api.renewals), 1);
    assert_int_equal(since_start_ms(f, held_deadline(f->held)), RENEW_MS + 1 + HARD_MS);
    _cleanup_json_ json_t *before = fake_api_object(&f->api, "x");
    /* And a write in the same second, whose stamp stands there already, is none. */
    fake_clock_advance(&f->clock, 10);
    assert_int_equal(write_progress(f), ERR_NONE);
    assert_int_equal(since_start_ms(f, held_deadline(f->held)), RENEW_MS + 1 + HARD_MS);
    _cleanup_json_ json_t *after = fake_api_object(&f->api, "x");
    assert_string_equal(released_text(before, "lastTransitionTime"),
                        released_text(after, "lastTransitionTime"));
}

static void a_hiccup_shorter_than_the_lease_costs_nothing(void **state)
{
    struct fixture *f = *state;
    struct child child = {.clock = &f->clock.base};
    start_threads(f);
    acquire_x(f);
    held_set_child(f->held, &child);
    fake_api_rule(&f->api, (struct fake_rule){.times = 8, .fault = FAKE_500});
    for (int i = 0; i < 60; i++) {
        advance(f, 100);
    }
    assert_false(held_is_lost(f->held));
    assert_int_equal(atomic_load(&child.sigint), 0);
    held_set_child(f->held, NULL);
}

/* Locks taken at odd times, and in each round a request that gets no reply until its deadline. */
static void one_slow_reply_costs_the_other_locks_nothing(void **state)
{
    struct fixture *f = *state;
    add_object(f, "y");
    add_object(f, "slow");
    struct child child = {.clock = &f->clock.base};
    struct child child_y = {.clock = &f->clock.base};
    start_threads(f);
    struct held *slow = acquire(f, "slow");
    advance(f, 700);
    acquire_x(f);
    held_set_child(f->held, &child);
    advance(f, 800);
    struct held *y = acquire(f, "y");
    held_set_child(y, &child_y);
    fake_api_rule(&f->api,
                  (struct fake_rule){.name = "slow", .skip = 0, .times = 1000, .fault = FAKE_HANG});
    for (int i = 0; i < 300; i++) { /* 15 s */
        fake_clock_advance(&f->clock, 50);
        let_threads_look(f, false);
        if (held_is_lost(slow)) {
            held_free(slow);
            mtx_lock(&f->api.lock);
            int left = f->api.rules[0].times;
            f->api.rules[0].times = 0;
            mtx_unlock(&f->api.lock);
            slow = acquire(f, "slow");
            mtx_lock(&f->api.lock);
            f->api.rules[0].times = left;
            mtx_unlock(&f->api.lock);
        }
    }
    assert_true(metrics_get(f->metrics, METRICS_LOCK_LOST) >= 2);
    assert_false(held_is_lost(f->held));
    assert_false(held_is_lost(y));
    assert_int_equal(atomic_load(&child.sigint) + atomic_load(&child.sigkill), 0);
    assert_int_equal(atomic_load(&child_y.sigint) + atomic_load(&child_y.sigkill), 0);
    held_set_child(f->held, NULL);
    held_set_child(y, NULL);
    mtx_lock(&f->api.lock);
    f->api.unstick = true;
    mtx_unlock(&f->api.lock);
    held_free(y);
    held_free(slow);
}

static void the_end_of_the_grace_interrupts_every_child(void **state)
{
    struct fixture *f = *state;
    add_object(f, "y");
    struct child children[3];
    for (size_t i = 0; i < 3; i++) {
        children[i] = (struct child){.clock = &f->clock.base};
    }
    acquire_x(f);
    struct held *y = acquire(f, "y");
    held_set_child(f->held, &children[0]);
    held_set_child(y, &children[1]);
    locks_signal_all(f->locks, SIGINT);
    assert_int_equal(atomic_load(&children[0].sigint), 1);
    assert_int_equal(atomic_load(&children[1].sigint), 1);
    assert_true(held_was_interrupted(f->held));
    held_set_child(y, &children[2]); /* and one that starts too late for it */
    assert_int_equal(atomic_load(&children[2].sigint), 1);
    locks_signal_all(f->locks, SIGKILL); /* whoever does not heed it */
    assert_int_equal(atomic_load(&children[0].sigkill), 1);
    assert_int_equal(atomic_load(&children[2].sigkill), 1);
    held_set_child(f->held, NULL);
    held_set_child(y, NULL);
    held_free(y);
}

static void a_result_waits_for_the_renewal_on_the_wire(void **state)
{
    struct fixture *f = *state;
    start_threads(f);
    acquire_x(f);
    fault(f, "PATCH", FAKE_HANG);
    fake_clock_advance(&f->clock, RENEW_MS + 1);
    while (count(f, &f->api.patches) < 2) {
        fake_yield();
    }
    struct result r;
    struct err err = ERR_INIT;
    assert_int_equal(unlock(f, &r, &err), ERR_NONE); /* the fake asserts: never two at once */
    assert_released(f, "x", "True");
}

/* ---- everything at once, by chance ---- */

struct chance {
    struct fixture *f;
    char name[8];
    int freed, lost, not_taken;
};

static void one_chance(struct chance *c)
{
    struct fixture *f = c->f;
    struct child child = {.clock = &f->clock.base};
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    struct mono deadline = mono_add_ms(clock_mono(&f->clock.base), 1000);
    if (kube_get(f->kube, &KUBE_HELMRELEASES, "ns", c->name, deadline, NULL, &reply, &err)) {
        c->not_taken++;
        return;
    }
    struct held *held = NULL;
    enum err_kind kind = acquire_with(f, reply.object, false, &held, &err);
    kube_reply_release(&reply);
    if (kind != ERR_NONE) {
        c->not_taken++;
        return;
    }
    held_set_child(held, &child);
    (void)clock_sleep_until(&f->clock.base, mono_add_ms(clock_mono(&f->clock.base), 2000), NULL);
    struct err ignored = ERR_INIT;
    enum err_kind wrote = held_write(held, build_progress, NULL, &ignored);
    enum err_kind marked = held_add_finalizer(held, FINALIZER, &ignored);
    held_set_child(held, NULL);
    struct result r = {.status = "False", .reason = "Failed"};
    kind = held_unlock(held, build_result, &r, &err);
    bool lost = held_is_lost(held);
    must(kind == ERR_NONE || kind == ERR_LEASE_LOST);
    must(kind == ERR_NONE || lost);
    must(lost || wrote == ERR_NONE);
    must(lost || marked == ERR_NONE);
    c->freed += kind == ERR_NONE ? 1 : 0;
    c->lost += lost ? 1 : 0;
    held_free(held);
}

static void *chance_main(void *arg)
{
    fake_role = FAKE_WORKER;
    for (int i = 0; i < CHANCE_ROUNDS; i++) {
        one_chance(arg);
    }
    return NULL;
}

static void workers_and_heartbeat_keep_the_rules_whatever_gets_lost(void **state)
{
    struct fixture *f = *state;
    struct chance chances[CHANCE_WORKERS];
    pthread_t threads[CHANCE_WORKERS];
    _cleanup_json_ json_t *told = read_object(f, "x"); /* the server's time */
    start_threads(f);
    mtx_lock(&f->api.lock);
    f->api.seed = 88172645463325252ULL;
    mtx_unlock(&f->api.lock);
    for (int i = 0; i < CHANCE_WORKERS; i++) {
        chances[i] = (struct chance){.f = f};
        (void)snprintf(chances[i].name, sizeof(chances[i].name), "c%d", i);
        add_object(f, chances[i].name);
        must(pthread_create(&threads[i], NULL, chance_main, &chances[i]) == 0);
    }
    int freed = 0, lost = 0;
    for (int i = 0; i < CHANCE_WORKERS; i++) {
        while (pthread_tryjoin_np(threads[i], NULL) != 0) {
            fake_clock_advance(&f->clock, 10);
            fake_yield();
        }
        freed += chances[i].freed;
        lost += chances[i].lost;
    }
    mtx_lock(&f->api.lock);
    f->api.seed = 0;
    mtx_unlock(&f->api.lock);
    assert_true(freed > CHANCE_WORKERS * CHANCE_ROUNDS / 2);
    assert_true(count(f, &f->api.renewals) > 0);
    assert_true(count(f, &f->api.writes_by_chance_lost) > 0);
    assert_int_equal(metrics_get(f->metrics, METRICS_LOCK_LOST), lost);
    assert_int_equal(locks_count(f->locks), 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(an_acquired_lock_is_what_the_status_says),
        T(an_epoch_exceeds_the_one_in_helms_records),
        T(a_lost_race_is_a_conflict_and_changes_nothing),
        T(an_unknown_outcome_is_settled_by_reading_back),
        T(an_expired_lock_is_read_afresh_before_it_is_taken),
        T(an_expired_lock_that_moved_is_not_taken),
        T(a_half_kept_lock_is_undone),
        T(a_grant_that_comes_late_is_no_lock),
        T(whoever_stops_takes_no_lock),
        T(stopping_reaches_what_runs_under_a_lock),
        T(without_the_servers_time_there_is_no_lock),
        T(an_absurd_epoch_is_survived),
        T(progress_is_a_grant_only_with_a_new_stamp),
        T(unanswered_progress_that_was_carried_out_counts_from_its_sending),
        T(of_two_unanswered_writes_with_one_stamp_the_earlier_counts),
        T(the_result_frees_the_lock),
        T(a_result_after_anothers_edit_is_merged_again),
        T(edits_in_quick_succession_do_not_keep_the_lock),
        T(a_result_never_overwrites_what_took_the_lock),
        T(a_result_for_a_deleted_object_is_dropped),
        T(a_refused_message_is_tried_as_a_short_one),
        T(what_is_refused_twice_is_invalid),
        T(a_result_without_an_answer_is_written_once),
        T(a_result_is_tried_until_the_lease_is_out_and_no_longer),
        T(no_request_outlives_the_lease),
        T(a_finalizer_is_added_once),
        T(anothers_finalizer_is_kept),
        T(a_finalizer_survives_refusals_and_lost_replies),
        T(the_last_finalizer_ends_the_object),
        T(without_the_lock_no_finalizer_is_touched),
        T(the_heartbeat_renews_at_a_third),
        T(a_stamp_behind_the_servers_date_is_renewed_at_once),
        T(a_renewal_behind_the_servers_date_is_followed_by_another),
        T(a_renewal_always_moves_its_stamp),
        T(a_failed_test_with_the_lock_still_ours_goes_on),
        T(whoever_loses_the_lock_is_stopped_at_once),
        T(a_stamp_that_we_never_sent_is_not_ours),
        T(the_watchdog_stops_the_child_while_the_heartbeat_hangs),
        T(a_child_that_starts_after_the_soft_deadline_is_interrupted_too),
        T(an_unanswered_renewal_that_was_carried_out_counts_from_its_sending),
        T(a_hiccup_shorter_than_the_lease_costs_nothing),
        T(one_slow_reply_costs_the_other_locks_nothing),
        T(the_end_of_the_grace_interrupts_every_child),
        T(a_result_waits_for_the_renewal_on_the_wire),
        T(workers_and_heartbeat_keep_the_rules_whatever_gets_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
