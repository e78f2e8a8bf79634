/* The lock on a real API server: our transport, client and pkg/lock against what kube-apiserver
 * really does with its PATCHes, and what the CRD refuses. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "fixture.h"
#include "lock/lock.h"

#define LEASE_MS    5000
#define RACES       20
#define STORM_MS    5000
#define STORM_PACE  20  /* milliseconds between two edits */
#define STORM_EDITS 100 /* at least so many */

/* ---- a replica ---- */

struct child {
    atomic_int sigint, sigkill;
};

static void count_signal(struct child *c, int signo)
{
    must(signo == SIGINT || signo == SIGKILL);
    atomic_fetch_add(signo == SIGKILL ? &c->sigkill : &c->sigint, 1);
}

struct replica {
    struct client client;
    struct proc proc;
    struct metrics *metrics;
    struct cancel stopping;
    struct locks *locks;
    pthread_t heartbeat, watchdog;
};

static void *heartbeat_main(void *arg)
{
    locks_run(arg);
    return NULL;
}

static void *watchdog_main(void *arg)
{
    locks_watchdog_run(arg);
    return NULL;
}

static void replica_open(struct replica *r, const char *identity)
{
    static const struct proc_ops ops = {.signal = count_signal};
    *r = (struct replica){.proc.ops = &ops};
    client_open(&r->client);
    r->metrics = metrics_new();
    cancel_init(&r->stopping);
    r->locks = locks_new(&(struct locks_options){.kube = r->client.kube,
                                                 .clock = clock_os(),
                                                 .proc = &r->proc,
                                                 .metrics = r->metrics,
                                                 .identity = identity,
                                                 .lease_ms = LEASE_MS,
                                                 .stopping = &r->stopping});
    must(pthread_create(&r->heartbeat, NULL, heartbeat_main, r->locks) == 0);
    must(pthread_create(&r->watchdog, NULL, watchdog_main, r->locks) == 0);
}

static void replica_close(struct replica *r)
{
    locks_stop(r->locks);
    must(pthread_join(r->heartbeat, NULL) == 0);
    must(pthread_join(r->watchdog, NULL) == 0);
    locks_free(r->locks);
    cancel_release(&r->stopping);
    metrics_free(r->metrics);
    client_close(&r->client);
}

static enum err_kind try_acquire(struct replica *r, const json_t *object, struct held **ret,
                                 struct err *err)
{
    return lock_acquire(
        r->locks,
        &(struct lock_request){.object = object, .reason = "Upgrading", .doing = "upgrades it"},
        ret, err);
}

static struct held *acquire(struct replica *r, const char *ns, const char *name)
{
    _cleanup_json_ json_t *object = get(&r->client, ns, name);
    struct held *held = NULL;
    struct err err = ERR_INIT;
    if (try_acquire(r, object, &held, &err)) {
        fail_msg("acquire %s: %s", name, err.msg);
    }
    return held;
}

/* held_build: a result, or progress if *ctx is NULL. */
static json_t *build(void *ctx, const json_t *object, const char *now, bool minimal)
{
    const char *const *status = ctx;
    const json_t *old = jsonx_at(object, "status.conditions");
    json_t *conditions = json_is_array(old) ? json_deep_copy(old) : json_array();
    (void)minimal;
    if (*status != NULL) {
        hr_conditions_edit(conditions, &(struct hr_condition_edit){.type = "Released",
                                                                   .status = *status,
                                                                   .reason = "Succeeded",
                                                                   .message = "done",
                                                                   .observed_generation = 1,
                                                                   .now = now});
    }
    return json_pack("{s:o,s:s}", "conditions", conditions, "phase",
                     *status != NULL ? "Succeeded" : "Upgrading");
}

static enum err_kind unlock(struct held *held, struct err *err)
{
    const char *status = "True";
    return held_unlock(held, build, (void *)&status, err);
}

static void unlock_ok(struct held *held)
{
    struct err err = ERR_INIT;
    if (unlock(held, &err)) {
        fail_msg("unlock: %s", err.msg);
    }
    held_free(held);
}

static bool has_renewed(void *ctx)
{
    struct replica *r = ctx;
    return metrics_get(r->metrics, METRICS_LOCK_RENEWALS) >= 2;
}

static bool is_lost(void *ctx)
{
    return held_is_lost(ctx);
}

/* ---- one replica ---- */

static void a_new_object_reads_as_not_yet_observed(void **state)
{
    struct scene *s = *state;
    _cleanup_json_ json_t *object = create(&s->client, s->ns, "fresh");
    assert_int_equal(jsonx_int(object, "metadata.generation", 0), 1);
    assert_int_equal(jsonx_int(object, "status.observedGeneration", 0), -1);
}

static void a_lock_is_taken_renewed_and_freed(void **state)
{
    struct scene *s = *state;
    struct replica r;
    replica_open(&r, "pod-a/uid-a/round");
    json_decref(create(&s->client, s->ns, "round"));
    struct held *held = acquire(&r, s->ns, "round");
    _cleanup_json_ json_t *taken = get(&s->client, s->ns, "round");
    _cleanup_json_ json_t *replied = held_object(held);
    assert_true(jsonx_equal(taken, replied));
    assert_int_equal(jsonx_int(taken, "status.observedGeneration", 0), 1);
    assert_int_equal(jsonx_int(taken, "status.lease.leaseTransitions", 0), 1);
    assert_string_equal(released_text(taken, "status"), "Unknown");

    assert_true(wait_for(has_renewed, &r));
    _cleanup_json_ json_t *renewed = get(&s->client, s->ns, "round");
    assert_true(strcmp(released_text(renewed, "lastTransitionTime"),
                       released_text(taken, "lastTransitionTime")) > 0);
    struct hr *hr = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(hr_parse(renewed, &hr, &err), ERR_NONE);
    assert_true(hr->status.managed_ns > 0); /* the server's own stamp of our writes */
    hr_free(hr);

    unlock_ok(held);
    _cleanup_json_ json_t *freed = get(&s->client, s->ns, "round");
    assert_string_equal(released_text(freed, "status"), "True");
    assert_string_equal(jsonx_str(freed, "status.phase", ""), "Succeeded");
    assert_string_equal(jsonx_str(freed, "status.lease.holderIdentity", ""), "pod-a/uid-a/round");
    struct held *again = acquire(&r, s->ns, "round");
    assert_int_equal(held_epoch(again), 2);
    unlock_ok(again);
    replica_close(&r);
}

static void another_clients_status_survives_our_next_write(void **state)
{
    struct scene *s = *state;
    struct replica r;
    replica_open(&r, "pod-a/uid-a/between");
    json_decref(create(&s->client, s->ns, "between"));
    struct held *held = acquire(&r, s->ns, "between");
    struct err err = ERR_INIT;
    const char *none = NULL;
    assert_int_equal(held_write(held, build, (void *)&none, &err), ERR_NONE);
    patch_status(&s->client, s->ns, "between", "{'status': {'releaseName': 'by-another'}}");
    assert_int_equal(held_write(held, build, (void *)&none, &err), ERR_NONE);
    patch_status(&s->client, s->ns, "between", "{'status': {'revision': '9.9.9'}}");
    unlock_ok(held);
    _cleanup_json_ json_t *object = get(&s->client, s->ns, "between");
    assert_string_equal(jsonx_str(object, "status.releaseName", ""), "by-another");
    assert_string_equal(jsonx_str(object, "status.revision", ""), "9.9.9");
    assert_string_equal(released_text(object, "status"), "True");
    replica_close(&r);
}

/* An edit of the spec during the sync: the result speaks of what was synced. */
static void a_result_keeps_the_generation_that_was_synced(void **state)
{
    struct scene *s = *state;
    struct replica r;
    replica_open(&r, "pod-a/uid-a/edited");
    json_decref(create(&s->client, s->ns, "edited"));
    struct held *held = acquire(&r, s->ns, "edited");
    call_do(&s->client, &(struct call){.method = "PATCH",
                                       .ns = s->ns,
                                       .name = "edited",
                                       .type = KUBE_MERGE_PATCH,
                                       .body = "{'spec': {'values': {'a': 1}}}"});
    unlock_ok(held);
    _cleanup_json_ json_t *object = get(&s->client, s->ns, "edited");
    assert_int_equal(jsonx_int(object, "metadata.generation", 0), 2);
    assert_int_equal(jsonx_int(object, "status.observedGeneration", 0), 1);
    replica_close(&r);
}

/* ---- finalizer ---- */

static void a_deleted_object_keeps_its_lock_until_the_finalizer_goes(void **state)
{
    struct scene *s = *state;
    struct replica r;
    struct child child = {0};
    replica_open(&r, "pod-a/uid-a/deleted");
    json_decref(create(&s->client, s->ns, "deleted"));
    struct held *held = acquire(&r, s->ns, "deleted");
    struct err err = ERR_INIT;
    assert_int_equal(held_add_finalizer(held, HR_FINALIZER, &err), ERR_NONE);
    held_set_child(held, &child);
    struct call delete = {.method = "DELETE", .ns = s->ns, .name = "deleted"};
    call_do(&s->client, &delete);
    assert_true(wait_for(has_renewed, &r));
    assert_false(held_is_lost(held));
    held_set_child(held, NULL);
    assert_int_equal(atomic_load(&child.sigkill) + atomic_load(&child.sigint), 0);
    assert_int_equal(held_remove_finalizer(held, HR_FINALIZER, &err), ERR_NONE);
    held_free(held);
    delete.method = "GET";
    assert_int_equal(call_kind(&s->client, &delete), ERR_NOT_FOUND);
    replica_close(&r);
}

static void a_finalizer_that_came_meanwhile_is_kept(void **state)
{
    struct scene *s = *state;
    struct replica r;
    replica_open(&r, "pod-a/uid-a/shared");
    json_decref(create(&s->client, s->ns, "shared"));
    struct held *held = acquire(&r, s->ns, "shared");
    struct call theirs = {.method = "PATCH",
                          .ns = s->ns,
                          .name = "shared",
                          .type = KUBE_MERGE_PATCH,
                          .body = "{'metadata': {'finalizers': ['example.com/theirs']}}"};
    call_do(&s->client, &theirs);
    struct err err = ERR_INIT;
    assert_int_equal(held_add_finalizer(held, HR_FINALIZER, &err), ERR_NONE);
    _cleanup_json_ json_t *both = get(&s->client, s->ns, "shared");
    assert_int_equal(json_array_size(jsonx_at(both, "metadata.finalizers")), 2);
    assert_int_equal(held_remove_finalizer(held, HR_FINALIZER, &err), ERR_NONE);
    _cleanup_json_ json_t *one = get(&s->client, s->ns, "shared");
    const json_t *left = jsonx_at(one, "metadata.finalizers");
    assert_int_equal(json_array_size(left), 1);
    assert_string_equal(json_string_value(json_array_get(left, 0)), "example.com/theirs");
    held_free(held);
    theirs.body = "{'metadata': {'finalizers': null}}"; /* or the namespace would never go */
    call_do(&s->client, &theirs);
    replica_close(&r);
}

/* ---- losing it ---- */

static void whoever_loses_the_object_is_stopped(void **state)
{
    struct scene *s = *state;
    struct replica r;
    struct child child = {0};
    replica_open(&r, "pod-a/uid-a/gone");
    json_decref(create(&s->client, s->ns, "gone"));
    struct held *held = acquire(&r, s->ns, "gone");
    held_set_child(held, &child);
    call_do(&s->client, &(struct call){.method = "DELETE", .ns = s->ns, .name = "gone"});
    assert_true(wait_for(is_lost, held));
    assert_true(cancel_is_raised(held_cancel(held)));
    assert_int_equal(atomic_load(&child.sigkill), 1);
    held_set_child(held, NULL);
    struct err err = ERR_INIT;
    assert_int_equal(unlock(held, &err), ERR_LEASE_LOST);
    held_free(held);
    replica_close(&r);
}

static void a_hand_that_unlocks_takes_the_lock(void **state)
{
    struct scene *s = *state;
    struct replica r;
    struct child child = {0};
    replica_open(&r, "pod-a/uid-a/hand");
    json_decref(create(&s->client, s->ns, "hand"));
    struct held *held = acquire(&r, s->ns, "hand");
    held_set_child(held, &child);
    patch_status(&s->client, s->ns, "hand",
                 "{'status': {'conditions': [{'type': 'Released', 'status': 'False', 'reason': "
                 "'ByHand'}]}}");
    assert_true(wait_for(is_lost, held));
    assert_int_equal(atomic_load(&child.sigkill), 1);
    held_set_child(held, NULL);
    struct err err = ERR_INIT;
    assert_int_equal(unlock(held, &err), ERR_LEASE_LOST);
    held_free(held);
    _cleanup_json_ json_t *object = get(&s->client, s->ns, "hand");
    assert_string_equal(released_text(object, "reason"), "ByHand");
    replica_close(&r);
}

/* ---- two replicas ---- */

struct racer {
    struct replica replica;
    const char *ns;
    pthread_barrier_t *start;
    struct held *held[RACES];
    enum err_kind kinds[RACES];
};

static void *race_main(void *arg)
{
    struct racer *r = arg;
    for (int i = 0; i < RACES; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "race-%d", i);
        _cleanup_json_ json_t *object = get(&r->replica.client, r->ns, name);
        (void)pthread_barrier_wait(r->start); /* both have read the same version */
        struct err err = ERR_INIT;
        r->kinds[i] = try_acquire(&r->replica, object, &r->held[i], &err);
        (void)pthread_barrier_wait(r->start);
    }
    return NULL;
}

static void of_two_replicas_exactly_one_takes_each_lock(void **state)
{
    struct scene *s = *state;
    struct racer racers[2] = {0};
    static const char *const names[] = {"pod-a/uid-a/race", "pod-b/uid-b/race"};
    pthread_barrier_t start;
    must(pthread_barrier_init(&start, NULL, 2) == 0);
    for (int i = 0; i < RACES; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "race-%d", i);
        json_decref(create(&s->client, s->ns, name));
    }
    pthread_t threads[2];
    for (size_t k = 0; k < 2; k++) {
        replica_open(&racers[k].replica, names[k]);
        racers[k].ns = s->ns;
        racers[k].start = &start;
    }
    for (size_t k = 0; k < 2; k++) {
        must(pthread_create(&threads[k], NULL, race_main, &racers[k]) == 0);
    }
    for (size_t k = 0; k < 2; k++) {
        must(pthread_join(threads[k], NULL) == 0);
    }
    for (int i = 0; i < RACES; i++) {
        size_t winner = racers[0].held[i] != NULL ? 0 : 1;
        assert_non_null(racers[winner].held[i]);
        assert_null(racers[1 - winner].held[i]);
        assert_int_equal(racers[1 - winner].kinds[i], ERR_CONFLICT);
        _cleanup_json_ json_t *object = held_object(racers[winner].held[i]);
        assert_string_equal(jsonx_str(object, "status.lease.holderIdentity", ""), names[winner]);
        unlock_ok(racers[winner].held[i]);
    }
    replica_close(&racers[0].replica);
    replica_close(&racers[1].replica);
    (void)pthread_barrier_destroy(&start);
}

/* ---- what the CRD refuses ---- */

static void the_epoch_never_falls_and_its_holder_never_changes(void **state)
{
    struct scene *s = *state;
    json_decref(create(&s->client, s->ns, "epochs"));
    patch_status(&s->client, s->ns, "epochs",
                 "{'status': {'lease': {'holderIdentity': 'a', 'leaseTransitions': 5}}}");
    static const struct {
        const char *name, *body;
        enum err_kind kind;
    } rows[] = {
        {"a lower epoch", "{'status': {'lease': {'leaseTransitions': 4}}}", ERR_INVALID},
        {"no epoch", "{'status': {'lease': {'leaseTransitions': null}}}", ERR_INVALID},
        {"no lease", "{'status': {'lease': null}}", ERR_INVALID},
        {"another holder", "{'status': {'lease': {'holderIdentity': 'b'}}}", ERR_INVALID},
        {"no holder", "{'status': {'lease': {'holderIdentity': null}}}", ERR_INVALID},
        {"a condition of an unknown type",
         "{'status': {'conditions': [{'type': 'Other', 'status': 'True'}]}}", ERR_INVALID},
        {"the same epoch and holder", "{'status': {'lease': {'leaseDurationSeconds': 30}}}",
         ERR_NONE},
        {"a higher epoch of another",
         "{'status': {'lease': {'holderIdentity': 'b', 'leaseTransitions': 6}}}", ERR_NONE},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct err err = ERR_INIT;
        enum err_kind kind = call(&s->client,
                                  &(struct call){.method = "PATCH",
                                                 .ns = s->ns,
                                                 .name = "epochs",
                                                 .subresource = "status",
                                                 .type = KUBE_MERGE_PATCH,
                                                 .body = rows[i].body},
                                  NULL, &err);
        if (kind != rows[i].kind) {
            fail_msg("%s: %s (%s)", rows[i].name, err_kind_name(kind), err.msg);
        }
    }
    /* An operator that knows no lease writes its whole status. */
    _cleanup_json_ json_t *object = get(&s->client, s->ns, "epochs");
    must(json_object_set_new(object, "status", json_pack("{s:s}", "phase", "Succeeded")) == 0);
    struct kube_request put = {.method = "PUT",
                               .gvr = &KUBE_HELMRELEASES,
                               .ns = s->ns,
                               .name = "epochs",
                               .subresource = "status",
                               .body = object,
                               .deadline = soon()};
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_do(s->client.kube, &put, &reply, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "leaseTransitions"));
}

/* ---- a storm ---- */

struct storm {
    struct client client;
    const char *ns;
    atomic_bool over;
    atomic_int edits;
};

static void *storm_main(void *arg)
{
    struct storm *s = arg;
    while (!atomic_load(&s->over)) {
        _cleanup_(free_cstr)
        char *body = xasprintf("{'metadata': {'labels': {'edit': 'n%d'}}}", atomic_load(&s->edits));
        struct mono next = mono_add_ms(clock_mono(clock_os()), STORM_PACE);
        must(call_kind(&s->client, &(struct call){.method = "PATCH",
                                                  .ns = s->ns,
                                                  .name = "storm",
                                                  .type = KUBE_MERGE_PATCH,
                                                  .body = body}) == ERR_NONE);
        atomic_fetch_add(&s->edits, 1);
        (void)clock_sleep_until(clock_os(), next, NULL);
    }
    return NULL;
}

static bool has_stormed(void *ctx)
{
    struct storm *s = ctx;
    return atomic_load(&s->edits) >= STORM_EDITS; /* a slow machine takes longer for them */
}

static void edits_in_quick_succession_starve_neither_renewal_nor_result(void **state)
{
    struct scene *s = *state;
    struct replica r;
    struct child child = {0};
    replica_open(&r, "pod-a/uid-a/storm");
    json_decref(create(&s->client, s->ns, "storm"));
    struct held *held = acquire(&r, s->ns, "storm");
    held_set_child(held, &child);
    struct storm storm = {.ns = s->ns};
    client_open(&storm.client);
    pthread_t thread;
    must(pthread_create(&thread, NULL, storm_main, &storm) == 0);
    (void)clock_sleep_until(clock_os(), mono_add_ms(clock_mono(clock_os()), STORM_MS),
                            held_cancel(held));
    assert_true(wait_for(has_stormed, &storm));
    assert_false(held_is_lost(held));
    held_set_child(held, NULL);
    assert_int_equal(atomic_load(&child.sigint) + atomic_load(&child.sigkill), 0);
    assert_true(metrics_get(r.metrics, METRICS_LOCK_RENEWALS) >= 2);
    struct err err = ERR_INIT;
    const char *none = NULL;
    assert_int_equal(held_write(held, build, (void *)&none, &err), ERR_NONE);
    unlock_ok(held);
    atomic_store(&storm.over, true);
    must(pthread_join(thread, NULL) == 0);
    client_close(&storm.client);
    replica_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_object_reads_as_not_yet_observed),
        cmocka_unit_test(a_lock_is_taken_renewed_and_freed),
        cmocka_unit_test(another_clients_status_survives_our_next_write),
        cmocka_unit_test(a_result_keeps_the_generation_that_was_synced),
        cmocka_unit_test(a_deleted_object_keeps_its_lock_until_the_finalizer_goes),
        cmocka_unit_test(a_finalizer_that_came_meanwhile_is_kept),
        cmocka_unit_test(whoever_loses_the_object_is_stopped),
        cmocka_unit_test(a_hand_that_unlocks_takes_the_lock),
        cmocka_unit_test(of_two_replicas_exactly_one_takes_each_lock),
        cmocka_unit_test(the_epoch_never_falls_and_its_holder_never_changes),
        cmocka_unit_test(edits_in_quick_succession_starve_neither_renewal_nor_result),
    };
    return cmocka_run_group_tests(tests, scene_open, scene_close);
}
