/* What each outcome of a sync leaves in the status: conditions as kstatus and helm-operator's users
 * read them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "jsonx/jsonx.h"
#include "worker/worker_internal.h"

#define NOW "2026-12-01T12:00:31Z"

/* An object whose lock is held, as the lock's PATCH left it. */
static const char *const locked_text =
    "{\"metadata\":{\"generation\":7,\"resourceVersion\":\"9\"},\"status\":{\"observedGeneration\":"
    "7,\"rollbackCount\":2,"
    "\"conditions\":[{\"type\":\"Released\",\"status\":\"Unknown\",\"reason\":\"Upgrading\","
    "\"lastTransitionTime\":\"2026-12-01T12:"
    "00:01Z\"},{\"type\":\"Ready\",\"status\":\"Unknown\",\"reason\":\"Upgrading\"},{\"type\":"
    "\"Reconciling\",\"status\":\"True\","
    "\"reason\":\"Upgrading\"},{\"type\":\"RolledBack\",\"status\":\"True\",\"reason\":"
    "\"RolledBack\"},{\"type\":\"Tested\",\"status\":"
    "\"True\",\"reason\":\"Tested\",\"observedGeneration\":6}],\"attempt\":{\"digest\":\"1:old\","
    "\"generation\":6,\"failures\":3,"
    "\"upgrades\":5,\"windowStart\":\"2026-12-01T11:50:00Z\"}}}";

static json_t *locked(void)
{
    json_t *j = NULL;
    struct err err = ERR_INIT;
    if (jsonx_parse(locked_text, strlen(locked_text), &j, &err)) {
        fail_msg("%s", err.msg);
    }
    return j;
}

static const char *condition(const json_t *status, const char *type, const char *field)
{
    return jsonx_str(hr_conditions_find(json_object_get(status, "conditions"), type, NULL), field,
                     "-");
}

static struct outcome outcome_of(const char *released, const char *reason)
{
    return (struct outcome){.phase = "Failed",
                            .released = released,
                            .reason = reason,
                            .release_name = "x",
                            .target_ns = "ns",
                            .digest = "1:new",
                            .not_before_ns = INT64_MIN};
}

static void each_outcome_reads_right(void **state)
{
    (void)state;
    static const struct {
        const char *name, *released, *reason;
        bool terminal, interrupted;
        const char *ready, *reconciling, *stalled; /* "-" = the condition is gone */
    } rows[] = {
        {"done", "True", "Succeeded", false, false, "True", "-", "-"},
        {"failed, tried again", "False", "DeployFailed", false, false, "False", "True", "-"},
        {"failed for good", "False", "Failed", true, false, "False", "-", "True"},
        {"interrupted", "False", "Interrupted", false, true, "Unknown", "True", "-"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct outcome o = outcome_of(rows[i].released, rows[i].reason);
        char message[] = "why";
        o.message = message;
        o.terminal = rows[i].terminal;
        o.interrupted = rows[i].interrupted;
        _cleanup_json_ json_t *object = locked();
        _cleanup_json_ json_t *status = outcome_build_result(&o, object, NOW, false);
        bool ok = strcmp(condition(status, "Released", "status"), rows[i].released) == 0 &&
                  strcmp(condition(status, "Released", "reason"), rows[i].reason) == 0 &&
                  strcmp(condition(status, "Released", "message"), "why") == 0 &&
                  strcmp(condition(status, "Released", "lastTransitionTime"), NOW) == 0 &&
                  strcmp(condition(status, "Ready", "status"), rows[i].ready) == 0 &&
                  strcmp(condition(status, "Reconciling", "status"), rows[i].reconciling) == 0 &&
                  strcmp(condition(status, "Stalled", "status"), rows[i].stalled) == 0;
        if (!ok) {
            char *text = jsonx_dump(status);
            fail_msg("%s: %s", rows[i].name, text);
        }
        /* What the sync does not speak of stays as it was. */
        assert_string_equal(condition(status, "Tested", "status"), "True");
    }
}

static void only_a_success_forgets_the_rollbacks(void **state)
{
    (void)state;
    _cleanup_json_ json_t *object = locked();
    struct outcome failed = outcome_of("False", "DeployFailed");
    _cleanup_json_ json_t *after_failure = outcome_build_result(&failed, object, NOW, false);
    assert_string_equal(condition(after_failure, "RolledBack", "status"), "True");
    assert_null(json_object_get(after_failure, "rollbackCount"));
    struct outcome done = outcome_of("True", "Succeeded");
    _cleanup_json_ json_t *after_success = outcome_build_result(&done, object, NOW, false);
    assert_string_equal(condition(after_success, "RolledBack", "status"), "-");
    assert_true(json_is_null(json_object_get(after_success, "rollbackCount")));
}

static void the_attempt_is_what_every_replica_backs_off_by(void **state)
{
    (void)state;
    _cleanup_json_ json_t *object = locked();
    struct outcome o = outcome_of("False", "DeployFailed");
    o.failures = 2;
    o.not_before_ns = INT64_C(1796126451) * NS_PER_SEC;
    _cleanup_json_ json_t *status = outcome_build_result(&o, object, NOW, false);
    const json_t *attempt = json_object_get(status, "attempt");
    assert_string_equal(jsonx_str(attempt, "digest", ""), "1:new");
    assert_int_equal(jsonx_int(attempt, "generation", 0), 7);
    assert_int_equal(jsonx_int(attempt, "failures", 0), 2);
    assert_string_equal(jsonx_str(attempt, "notBefore", ""), "2026-12-01T12:00:51Z");
    /* The ceiling's count was another generation's. */
    assert_true(json_is_null(json_object_get(attempt, "upgrades")));
    /* An interruption is no failure: the attempt stays what it was. */
    o.interrupted = true;
    _cleanup_json_ json_t *interrupted = outcome_build_result(&o, object, NOW, false);
    assert_null(json_object_get(interrupted, "attempt"));
}

static void a_release_that_does_not_exist_is_not_named(void **state)
{
    (void)state;
    _cleanup_json_ json_t *object = locked();
    struct outcome o = outcome_of("False", "Failed");
    _cleanup_json_ json_t *never_ran = outcome_build_result(&o, object, NOW, false);
    assert_null(json_object_get(never_ran, "releaseName"));
    o.deployed = "False";
    _cleanup_json_ json_t *ran = outcome_build_result(&o, object, NOW, false);
    assert_string_equal(jsonx_str(ran, "releaseName", ""), "x");
    assert_string_equal(condition(ran, "Deployed", "status"), "False");
}

static void a_huge_message_is_cut_and_a_refused_one_is_cut_to_the_bone(void **state)
{
    (void)state;
    char *huge = xmalloc(2000001);
    memset(huge, 'x', 2000000);
    huge[2000000] = '\0';
    _cleanup_json_ json_t *object = locked();
    struct outcome o = outcome_of("False", "DeployFailed");
    o.message = huge;
    _cleanup_json_ json_t *status = outcome_build_result(&o, object, NOW, false);
    assert_in_range(strlen(condition(status, "Released", "message")), 1000, LIMIT_MESSAGE_BYTES);
    _cleanup_json_ json_t *minimal = outcome_build_result(&o, object, NOW, true);
    assert_in_range(strlen(condition(minimal, "Released", "message")), 10, 200);
    free(huge);
}

static void progress_says_what_runs_and_frees_nothing(void **state)
{
    (void)state;
    _cleanup_json_ json_t *object = locked();
    struct outcome o = {.phase = "Upgrading",
                        .deployed = "Unknown",
                        .chart_fetched = "True",
                        .attempted = "1.2.0",
                        .release_name = "x",
                        .target_ns = "ns"};
    _cleanup_json_ json_t *status = outcome_build_progress(&o, object, NOW, false);
    assert_string_equal(condition(status, "Released", "status"), "Unknown");
    assert_string_equal(condition(status, "Deployed", "status"), "Unknown");
    assert_string_equal(condition(status, "Deployed", "message"),
                        "Running upgrade for Helm release 'x' in 'ns'.");
    assert_string_equal(condition(status, "ChartFetched", "status"), "True");
    assert_string_equal(jsonx_str(status, "lastAttemptedRevision", ""), "1.2.0");
    assert_string_equal(jsonx_str(status, "phase", ""), "Upgrading");
    assert_null(json_object_get(status, "attempt"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_outcome_reads_right),
        cmocka_unit_test(only_a_success_forgets_the_rollbacks),
        cmocka_unit_test(the_attempt_is_what_every_replica_backs_off_by),
        cmocka_unit_test(a_release_that_does_not_exist_is_not_named),
        cmocka_unit_test(a_huge_message_is_cut_and_a_refused_one_is_cut_to_the_bone),
        cmocka_unit_test(progress_says_what_runs_and_frees_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
