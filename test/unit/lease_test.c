/* The lock's protocol as tables: who may take what when, and what each PATCH says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "jsonx/jsonx.h"
#include "lease/lease.h"

#define SEC   NS_PER_SEC
#define T0_NS (INT64_C(1796126400) * SEC) /* 2026-12-01T12:00:00Z */
#define SELF  "pod-a/uid-a/aaaa"
#define OTHER "pod-b/uid-b/bbbb"

static void every_legal_lease_leaves_time_to_renew_and_stop(void **state)
{
    (void)state;
    for (int64_t ms = LEASE_TIMEOUT_MIN_MS; ms <= LEASE_TIMEOUT_MAX_MS; ms += 37) {
        assert_true(lease_timing_holds(ms));
        struct lease_deadlines d = lease_deadlines_of((struct mono){SEC}, ms);
        assert_true(mono_before(d.renew, d.soft));
        assert_true(mono_before(d.soft, d.hard));
        assert_true(mono_diff_ms(d.hard, (struct mono){SEC}) < ms);
        /* A renewal that just missed a round waits for that one's slowest reply, and then for its
         * own. */
        int64_t worst_ms = lease_renew_ms(ms) - lease_early_ms(ms) + 2 * lease_request_ms(ms);
        assert_true(mono_before(mono_add_ms((struct mono){SEC}, worst_ms), d.soft));
        assert_true(lease_early_ms(ms) >= 0 && lease_early_ms(ms) < lease_renew_ms(ms));
    }
}

/* One question in seconds: the lock's stamp at T0, seen at 0, asked at now_s. */
struct row {
    const char *name;
    enum hr_truth released;
    const char *holder;
    int64_t duration_s;
    double now_s;
    bool live;
    double server_earliest_s, server_latest_s; /* relative to T0; both 0 = no server time */
    double stamp_s, managed_s;                 /* relative to T0 */
    enum lease_verdict verdict;
    double wait_at_least_s, wait_at_most_s;
};

static const struct row rows[] = {
    {"unlocked is free", HR_TRUE, OTHER, 30, 0, true, 0, 0, 0, 0, LEASE_FREE, 0, 0},
    {"failed is free", HR_FALSE, OTHER, 30, 0, true, 0, 0, 0, 0, LEASE_FREE, 0, 0},
    {"no condition is free", HR_ABSENT, OTHER, 30, 0, true, 0, 0, 0, 0, LEASE_FREE, 0, 0},
    {"our own name", HR_UNKNOWN, SELF, 30, 0, true, 0, 0, 0, 0, LEASE_OURS, 0, 0},
    {"another incarnation of our pod is another", HR_UNKNOWN, "pod-a/uid-a/cccc", 30, 0, true, 0, 0,
     0, 0, LEASE_WAIT, 32, 32},
    {"seen live: a lease and the guard", HR_UNKNOWN, OTHER, 30, 31.9, true, 0, 0, 0, 0, LEASE_WAIT,
     0.09, 0.11},
    {"seen live: expired after lease and guard", HR_UNKNOWN, OTHER, 30, 32, true, 0, 0, 0, 0,
     LEASE_EXPIRED, 0, 0},
    {"seen live: a server clock far ahead changes nothing", HR_UNKNOWN, OTHER, 30, 15, true, 3600,
     3601, 0, 0, LEASE_WAIT, 17, 17},
    {"listed: expired by the server's clock, but not yet stood still", HR_UNKNOWN, OTHER, 30, 5,
     false, 3600, 3601, 0, 0, LEASE_WAIT, 7, 7},
    {"listed: expired, and stood for a third and the guard", HR_UNKNOWN, OTHER, 30, 12, false, 3600,
     3601, 0, 0, LEASE_EXPIRED, 0, 0},
    {"listed: the earliest possible time counts", HR_UNKNOWN, OTHER, 30, 12, false, 31.5, 40, 0, 0,
     LEASE_WAIT, 0.4, 0.6},
    {"listed: the server's own stamp counts if it is later", HR_UNKNOWN, OTHER, 30, 12, false, 3600,
     3601, -7200, 3599, LEASE_WAIT, 20, 20},
    {"listed: a stamp far ahead is counted from first sight", HR_UNKNOWN, OTHER, 30, 31, false, 0.5,
     1, 600, 600, LEASE_WAIT, 1, 1},
    {"listed: a stamp far ahead holds no lock for ever", HR_UNKNOWN, OTHER, 30, 32, false, 0.5, 1,
     600, 600, LEASE_EXPIRED, 0, 0},
    {"listed: no server time yet, so a whole lease", HR_UNKNOWN, OTHER, 30, 31, false, 0, 0, 0, 0,
     LEASE_WAIT, 1, 1},
    {"the holder's promise counts, not ours", HR_UNKNOWN, OTHER, 300, 32, true, 0, 0, 0, 0,
     LEASE_WAIT, 270, 270},
    {"without a promise our own lease counts", HR_UNKNOWN, OTHER, 0, 59, true, 0, 0, 0, 0,
     LEASE_WAIT, 3, 3},
    {"a promise over an hour counts as an hour", HR_UNKNOWN, OTHER, 360000, 3602, true, 0, 0, 0, 0,
     LEASE_EXPIRED, 0, 0},
    {"a short lease has a short guard", HR_UNKNOWN, OTHER, 5, 6, true, 0, 0, 0, 0, LEASE_EXPIRED, 0,
     0},
    {"a short lease 1 ms before", HR_UNKNOWN, OTHER, 5, 5.999, true, 0, 0, 0, 0, LEASE_WAIT, 0.0005,
     0.0015},
};

static int64_t at_ns(double s)
{
    return (int64_t)(s * (double)SEC);
}

static void a_lock_is_taken_only_when_certainly_free(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *r = &rows[i];
        char holder[64];
        (void)snprintf(holder, sizeof(holder), "%s", r->holder);
        struct hr_status status = {
            .released = {.status = r->released, .last_transition_ns = T0_NS + at_ns(r->stamp_s)},
            .lease = {.present = true,
                      .holder = holder,
                      .duration_s = r->duration_s,
                      .transitions = 3},
            .managed_ns = T0_NS + at_ns(r->managed_s),
        };
        struct lease_sighting seen = {0};
        lease_sighting_note(&seen, &status, (struct mono){1000 * SEC}, r->live);
        bool have = r->server_latest_s > 0;
        int64_t wait_ms = -1;
        enum lease_verdict v = lease_decide(
            &(struct lease_question){.status = &status,
                                     .sighting = &seen,
                                     .now = {1000 * SEC + at_ns(r->now_s)},
                                     .have_server_time = have,
                                     .server_now = {T0_NS + at_ns(r->server_earliest_s),
                                                    T0_NS + at_ns(r->server_latest_s)},
                                     .self = SELF,
                                     .own_lease_ms = 60000},
            &wait_ms);
        lease_sighting_release(&seen);
        bool ok = v == r->verdict && (double)wait_ms >= r->wait_at_least_s * 1000 - 1 &&
                  (double)wait_ms <= r->wait_at_most_s * 1000 + 1;
        if (!ok) {
            fail_msg("%s: verdict %d, wait %lld ms", r->name, (int)v, (long long)wait_ms);
        }
    }
}

/* Only a proof, and only about our own pod, saves the waiting (docs/lock.md 6). */
static void an_earlier_life_of_our_pod_is_replaced_at_once_if_proven_dead(void **state)
{
    (void)state;
    static const struct {
        const char *holder, *self;
        bool proven;
        enum lease_verdict verdict;
    } table[] = {
        {"pod-a/uid-a/old", SELF, true, LEASE_EXPIRED},
        {"pod-a/uid-a/old", SELF, false, LEASE_WAIT},
        {"other-name/uid-a/old", SELF, true, LEASE_EXPIRED}, /* --identity is only a name */
        {OTHER, SELF, true, LEASE_WAIT},
        {"pod-a/uid-ab/old", SELF, true, LEASE_WAIT},
        {"pod-a/-/old", "pod-a/-/new", true,
         LEASE_WAIT}, /* without the downward API nothing is known */
        {"pod-a//old", "pod-a//new", true, LEASE_WAIT},
        {"pod-a", SELF, true, LEASE_WAIT},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char holder[64];
        (void)snprintf(holder, sizeof(holder), "%s", table[i].holder);
        struct hr_status status = {
            .released = {.status = HR_UNKNOWN, .last_transition_ns = T0_NS},
            .lease = {.present = true, .holder = holder, .duration_s = 30, .transitions = 3}};
        struct lease_sighting seen = {.first_seen = {SEC}, .live = true};
        int64_t wait_ms = 0;
        enum lease_verdict v =
            lease_decide(&(struct lease_question){.status = &status,
                                                  .sighting = &seen,
                                                  .now = {SEC},
                                                  .self = table[i].self,
                                                  .own_lease_ms = 30000,
                                                  .predecessor_dead = table[i].proven},
                         &wait_ms);
        if (v != table[i].verdict) {
            fail_msg("row %zu: verdict %d", i, (int)v);
        }
    }
}

static void a_renewal_starts_the_waiting_anew(void **state)
{
    (void)state;
    char holder[] = OTHER;
    struct hr_status status = {
        .released = {.status = HR_UNKNOWN, .last_transition_ns = T0_NS, .last_transition = "a"},
        .lease = {.present = true, .holder = holder, .duration_s = 30, .transitions = 3}};
    struct lease_sighting seen = {0};
    lease_sighting_note(&seen, &status, (struct mono){1 * SEC}, false);
    lease_sighting_note(&seen, &status, (struct mono){9 * SEC}, true);
    assert_int_equal(seen.first_seen.ns, 1 * SEC); /* the same lock seen again */
    assert_false(seen.live);
    (void)snprintf(status.released.last_transition, sizeof(status.released.last_transition), "b");
    lease_sighting_note(&seen, &status, (struct mono){10 * SEC}, true);
    assert_int_equal(seen.first_seen.ns, 10 * SEC);
    assert_true(seen.live);
    status.lease.transitions = 4;
    lease_sighting_note(&seen, &status, (struct mono){11 * SEC}, true);
    assert_int_equal(seen.first_seen.ns, 11 * SEC);
    lease_sighting_release(&seen);
}

static json_t *parse(const char *text)
{
    json_t *j = NULL;
    struct err err = ERR_INIT;
    if (jsonx_parse(text, strlen(text), &j, &err)) {
        fail_msg("%s", err.msg);
    }
    return j;
}

static const char *const object_text =
    "{\"metadata\":{\"namespace\":\"ns\",\"name\":\"x\",\"uid\":\"u\",\"resourceVersion\":\"77\","
    "\"generation\":7},"
    "\"status\":{\"observedGeneration\":6,\"conditions\":["
    "{\"type\":\"Tested\",\"status\":\"True\",\"reason\":\"Tested\"},"
    "{\"type\":\"Released\",\"status\":\"True\",\"reason\":\"Succeeded\",\"lastTransitionTime\":"
    "\"2026-12-01T11:00:00Z\"},"
    "{\"type\":\"Stalled\",\"status\":\"True\",\"reason\":\"Failed\"}],"
    "\"lease\":{\"holderIdentity\":\"old\",\"leaseTransitions\":11,\"leaseDurationSeconds\":30}}}";

static const struct lease_grant grant = {.holder = SELF,
                                         .epoch = 12,
                                         .lease_ms = 30000,
                                         .stamp_ns = T0_NS + 31 * SEC,
                                         .acquire_ns = T0_NS + 30 * SEC,
                                         .reason = "Upgrading",
                                         .doing = "upgrades podinfo"};

static const char *condition_text(const json_t *conditions, const char *type, const char *field)
{
    return jsonx_str(hr_conditions_find(conditions, type, NULL), field, "");
}

static void the_lock_tells_the_truth_in_one_patch(void **state)
{
    (void)state;
    _cleanup_json_ json_t *object = parse(object_text);
    _cleanup_json_ json_t *patch = lease_acquire_patch(object, &grant);
    const json_t *conditions = jsonx_at(patch, "status.conditions");
    assert_string_equal(jsonx_str(patch, "metadata.resourceVersion", ""), "77");
    assert_int_equal(jsonx_int(patch, "status.observedGeneration", 0), 7);
    assert_string_equal(condition_text(conditions, "Released", "status"), "Unknown");
    assert_string_equal(condition_text(conditions, "Released", "lastTransitionTime"),
                        "2026-12-01T12:00:31Z");
    assert_string_equal(condition_text(conditions, "Released", "reason"), "Upgrading");
    assert_string_equal(condition_text(conditions, "Released", "message"),
                        "pod-a upgrades podinfo; the lease runs out at 12:01:01Z unless renewed");
    assert_string_equal(condition_text(conditions, "Ready", "status"), "Unknown");
    assert_string_equal(condition_text(conditions, "Reconciling", "status"), "True");
    assert_null(hr_conditions_find(conditions, "Stalled", NULL));
    /* What the lock does not speak of keeps the generation that it was about. */
    assert_string_equal(condition_text(conditions, "Tested", "status"), "True");
    assert_int_equal(
        jsonx_int(hr_conditions_find(conditions, "Tested", NULL), "observedGeneration", -1), 6);
    assert_int_equal(
        jsonx_int(hr_conditions_find(conditions, "Released", NULL), "observedGeneration", -1), 7);
    assert_string_equal(jsonx_str(patch, "status.lease.holderIdentity", ""), SELF);
    assert_int_equal(jsonx_int(patch, "status.lease.leaseTransitions", 0), 12);
    assert_int_equal(jsonx_int(patch, "status.lease.leaseDurationSeconds", 0), 30);
    assert_string_equal(jsonx_str(patch, "status.lease.acquireTime", ""),
                        "2026-12-01T12:00:30.000000Z");
}

/* The object as it stands after the lock's PATCH. */
static json_t *locked_object(void)
{
    json_t *object = parse(object_text);
    _cleanup_json_ json_t *patch = lease_acquire_patch(object, &grant);
    json_t *status = json_object_get(object, "status");
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(patch, "status"), key, value)
    {
        assert_int_equal(json_object_set(status, key, value), 0);
    }
    return object;
}

static void a_renewal_tests_what_it_replaces(void **state)
{
    (void)state;
    _cleanup_json_ json_t *object = locked_object();
    struct lease_grant next = grant;
    next.stamp_ns = T0_NS + 41 * SEC;
    _cleanup_json_ json_t *patch = lease_renew_patch(object, &next);
    assert_non_null(patch);
    static const struct {
        const char *op, *path;
    } want[] = {
        {"test", "/status/lease/holderIdentity"},
        {"test", "/status/lease/leaseTransitions"},
        {"test", "/status/conditions/1/type"},
        {"test", "/status/conditions/1/status"},
        {"test", "/status/conditions/1/lastTransitionTime"},
        {"add", "/status/conditions/1/lastTransitionTime"},
        {"add", "/status/conditions/1/lastUpdateTime"},
        {"add", "/status/conditions/1/message"},
    };
    assert_int_equal(json_array_size(patch), sizeof(want) / sizeof(want[0]));
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        const json_t *op = json_array_get(patch, i);
        assert_string_equal(jsonx_str(op, "op", ""), want[i].op);
        assert_string_equal(jsonx_str(op, "path", ""), want[i].path);
    }
    assert_string_equal(jsonx_str(json_array_get(patch, 4), "value", ""), "2026-12-01T12:00:31Z");
    assert_string_equal(jsonx_str(json_array_get(patch, 5), "value", ""), "2026-12-01T12:00:41Z");
}

static void a_lock_that_is_not_ours_is_never_renewed(void **state)
{
    (void)state;
    struct lease_grant other_epoch = grant;
    other_epoch.epoch = 13;
    _cleanup_json_ json_t *object = locked_object();
    assert_null(lease_renew_patch(object, &other_epoch));
    _cleanup_json_ json_t *unlocked = parse(object_text);
    assert_null(lease_renew_patch(unlocked, &grant));
}

static void mine_is_holder_and_epoch_and_unknown_and_stamp(void **state)
{
    (void)state;
    _cleanup_json_ json_t *object = locked_object();
    assert_true(lease_is_mine(object, SELF, 12, "2026-12-01T12:00:31Z"));
    assert_true(lease_is_mine(object, SELF, 12, NULL));
    assert_false(lease_is_mine(object, OTHER, 12, NULL));
    assert_false(lease_is_mine(object, SELF, 11, NULL));
    assert_false(lease_is_mine(object, SELF, 12, "2026-12-01T12:00:32Z"));
    /* A hand that sets Released=False has taken it. */
    json_t *released = hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", NULL);
    assert_int_equal(json_object_set_new(released, "status", json_string("False")), 0);
    assert_false(lease_is_mine(object, SELF, 12, NULL));
}

static void a_dropped_field_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *parent, *field, *says;
    } drops[] = {
        {"status", "lease", "status.lease.holderIdentity"},
        {"status.lease", "leaseTransitions", "status.lease.leaseTransitions"},
        {"status.lease", "leaseDurationSeconds", "status.lease.leaseDurationSeconds"},
        {"status", "observedGeneration", "status.observedGeneration"},
        {"status", "conditions", "status.conditions[Released]"},
    };
    struct err err = ERR_INIT;
    _cleanup_json_ json_t *whole = locked_object();
    assert_int_equal(lease_check_echo(whole, &grant, &err), ERR_NONE);
    for (size_t i = 0; i < sizeof(drops) / sizeof(drops[0]); i++) {
        _cleanup_json_ json_t *object = locked_object();
        assert_int_equal(json_object_del(jsonx_at(object, drops[i].parent), drops[i].field), 0);
        assert_int_equal(lease_check_echo(object, &grant, &err), ERR_INVALID);
        assert_non_null(strstr(err.msg, drops[i].says));
    }
    /* Without its stamp a lock could never be renewed, and with another nobody could tell whose it
     * is. */
    static const char *const stamps[] = {NULL, "2026-12-01T12:00:30Z", "soon"};
    for (size_t i = 0; i < sizeof(stamps) / sizeof(stamps[0]); i++) {
        _cleanup_json_ json_t *object = locked_object();
        json_t *released =
            hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", NULL);
        json_t *stamp = stamps[i] != NULL ? json_string(stamps[i]) : json_null();
        assert_int_equal(json_object_set_new(released, "lastTransitionTime", stamp), 0);
        assert_int_equal(lease_check_echo(object, &grant, &err), ERR_INVALID);
        assert_non_null(strstr(err.msg, "lastTransitionTime"));
    }
}

static void a_stamp_is_never_early(void **state)
{
    (void)state;
    struct srvtime now = {T0_NS + 1, T0_NS + SEC / 2};
    assert_int_equal(lease_stamp_ns(now, INT64_MIN), T0_NS + SEC);
    assert_int_equal(lease_stamp_ns((struct srvtime){T0_NS, T0_NS}, INT64_MIN), T0_NS);
    assert_int_equal(lease_stamp_ns(now, T0_NS), T0_NS + SEC);
    assert_int_equal(lease_stamp_ns(now, T0_NS + 9 * SEC), T0_NS + 9 * SEC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_legal_lease_leaves_time_to_renew_and_stop),
        cmocka_unit_test(a_lock_is_taken_only_when_certainly_free),
        cmocka_unit_test(an_earlier_life_of_our_pod_is_replaced_at_once_if_proven_dead),
        cmocka_unit_test(a_renewal_starts_the_waiting_anew),
        cmocka_unit_test(the_lock_tells_the_truth_in_one_patch),
        cmocka_unit_test(a_renewal_tests_what_it_replaces),
        cmocka_unit_test(a_lock_that_is_not_ours_is_never_renewed),
        cmocka_unit_test(mine_is_holder_and_epoch_and_unknown_and_stamp),
        cmocka_unit_test(a_dropped_field_is_named),
        cmocka_unit_test(a_stamp_is_never_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
