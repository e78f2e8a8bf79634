/* A HelmRelease as belay reads it: the spec with its defaults and faults, the status, edits of the
 * conditions, and whether a CRD keeps what the lock writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/text.h"
#include "hr/hr.h"
#include "jsonx/jsonx.h"
#include "timeval/timeval.h"
#include "yamlx/yamlx.h"

#define T0_NS (INT64_C(1796126400) * NS_PER_SEC) /* 2026-12-01T12:00:00Z */

/* YAML, for its brevity. */
static json_t *yaml(const char *text)
{
    struct err err = ERR_INIT;
    json_t *j = NULL;
    if (yamlx_parse(text, strlen(text), &j, &err)) {
        fail_msg("%s: %s", text, err.msg);
    }
    return j;
}

static struct hr *parse(const json_t *object)
{
    struct err err = ERR_INIT;
    struct hr *hr = NULL;
    if (hr_parse(object, &hr, &err)) {
        fail_msg("%s", err.msg);
    }
    return hr;
}

#define METADATA "metadata: {namespace: ns, name: x, uid: u, resourceVersion: '5', generation: 3}\n"
#define CHART    "chart: {repository: 'http://h/', name: c, version: 1.0.0}"

/* The object whose spec is that YAML flow map, without its braces. */
static struct hr *parse_spec(const char *spec)
{
    _cleanup_(free_cstr)
    char *text = xasprintf(METADATA "spec: {%s}\n", spec);
    _cleanup_json_ json_t *object = yaml(text);
    return parse(object);
}

/* ---- the spec ---- */

static void a_spec_of_a_chart_alone_has_helm_operators_defaults(void **state)
{
    (void)state;
    _cleanup_(hr_free_ptr)
    struct hr *hr = parse_spec(CHART);
    const struct hr_spec *s = &hr->spec;
    assert_int_equal(hr->spec_err.kind, ERR_NONE);
    assert_string_equal(s->release_name, "ns-x");
    assert_string_equal(s->target_ns, "ns");
    assert_string_equal(s->chart_repository, "http://h/");
    assert_string_equal(s->chart_name, "c");
    assert_string_equal(s->chart_version, "1.0.0");
    assert_null(s->chart_git);
    assert_null(s->chart_pull_secret);
    assert_null(s->helm_version);
    assert_int_equal(s->timeout_s, 300);
    assert_int_equal(s->max_history, 10);
    assert_true(s->reset_values);
    assert_false(s->wait);
    assert_false(s->force_upgrade);
    assert_false(s->skip_crds);
    assert_false(s->disable_openapi_validation);
    assert_int_equal(s->values_from_count, 0);
    assert_int_equal(json_object_size(s->values), 0);
    assert_false(s->rollback.enable);
    assert_int_equal(s->rollback.max_retries, 5);
    assert_int_equal(s->rollback.timeout_s, 300);
    assert_false(s->test.enable);
    assert_true(s->test.cleanup);
    assert_int_equal(s->test.timeout_s, 300);
}

static void every_field_of_a_spec_is_read(void **state)
{
    (void)state;
    _cleanup_(hr_free_ptr)
    struct hr *hr = parse_spec(
        "chart: {repository: 'http://h/', name: c, version: ^1.2, chartPullSecret: {name: pull}, "
        "git: 'g@h:o/r', ref: main, secretRef: {namespace: sn, name: sec}, skipDepUpdate: true},"
        "releaseName: rel, targetNamespace: other, helmVersion: v3, timeout: 7, wait: false,"
        "forceUpgrade: true, resetValues: false, maxHistory: 0, skipCRDs: true,"
        "disableOpenAPIValidation: true, values: {a: {b: 1}},"
        "rollback: {enable: true, retry: true, maxRetries: 0, force: true, recreate: true,"
        "  disableHooks: true, timeout: 8, wait: true},"
        "test: {enable: true, ignoreFailures: true, timeout: 9, cleanup: false}");
    const struct hr_spec *s = &hr->spec;
    assert_string_equal(hr->spec_err.msg, "");
    assert_string_equal(s->release_name, "rel");
    assert_string_equal(s->target_ns, "other");
    assert_string_equal(s->chart_version, "^1.2");
    assert_string_equal(s->chart_pull_secret, "pull");
    assert_string_equal(s->chart_git, "g@h:o/r");
    assert_string_equal(s->chart_ref, "main");
    assert_string_equal(s->chart_secret_ns, "sn");
    assert_string_equal(s->chart_secret_name, "sec");
    assert_true(s->skip_dep_update);
    assert_string_equal(s->helm_version, "v3");
    assert_int_equal(s->timeout_s, 7);
    assert_false(s->wait);
    assert_true(s->force_upgrade);
    assert_false(s->reset_values);
    assert_int_equal(s->max_history, 0);
    assert_true(s->skip_crds);
    assert_true(s->disable_openapi_validation);
    assert_int_equal(jsonx_int(s->values, "a.b", 0), 1);
    const struct hr_rollback *r = &s->rollback;
    assert_true(r->enable && r->retry && r->force && r->recreate && r->disable_hooks && r->wait);
    assert_int_equal(r->max_retries, 0);
    assert_int_equal(r->timeout_s, 8);
    assert_true(s->test.enable && s->test.ignore_failures && !s->test.cleanup);
    assert_int_equal(s->test.timeout_s, 9);
}

static void waiting_is_on_by_itself_where_its_result_is_needed(void **state)
{
    static const struct {
        const char *spec;
        bool wait;
    } rows[] = {
        {CHART, false},
        {CHART ", rollback: {enable: true}", true},
        {CHART ", test: {enable: true}", true},
        {CHART ", test: {enable: true}, wait: false", false},
        {CHART ", wait: true", true},
        {CHART ", wait: null", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_(hr_free_ptr)
        struct hr *hr = parse_spec(rows[i].spec);
        if (hr->spec.wait != rows[i].wait || hr->spec_err.kind != ERR_NONE) {
            fail_msg("%s: wait %d, %s", rows[i].spec, hr->spec.wait, hr->spec_err.msg);
        }
    }
}

/* A fault never costs more than itself: the object can still be locked, reported and deleted. */
static void a_fault_in_the_spec_names_its_field(void **state)
{
    static const struct {
        const char *spec, *field;
    } rows[] = {
        {"chart: {name: c, version: 1.0.0}", "spec.chart.repository"},
        {"chart: {repository: 'http://h', version: 1.0.0}", "spec.chart.name"},
        {"chart: {repository: 'http://h', name: c}", "spec.chart.version"},
        {"chart: {repository: 'http://h', name: c, version: ''}", "spec.chart.version"},
        {"chart: {repository: 'http://h', name: c, version: 1.5}", "spec.chart.version"},
        {"chart: {repository: [], name: c, version: 1.0.0}", "spec.chart.repository"},
        {"chart: c", "spec.chart"},
        {"chart: {git: 'g@h:o/r', path: p}", "spec.chart.git"},
        {"chart: {git: 'g@h:o/r', path: p, repository: 'http://h', name: c, version: 1.0.0}",
         "spec.chart.git"}, /* git wins, as in helm-operator */
        {"chart: {git: 'g@h:o/r'}", "spec.chart.git"},
        {"chart: {git: 'g@h:o/r', name: c}", "spec.chart.git"},
        {"timeout: 5", "spec.chart"},
        {CHART ", chart: {secretRef: s}", "spec.chart"},
        {"chart: {repository: 'http://h', name: c, version: 1.0.0, chartPullSecret: s}",
         "spec.chart.chartPullSecret"},
        {"chart: {repository: 'http://h', name: c, version: 1.0.0, chartPullSecret: {name: 1}}",
         "spec.chart.chartPullSecret.name"},
        {CHART ", releaseName: 5", "spec.releaseName"},
        {CHART ", targetNamespace: {}", "spec.targetNamespace"},
        {CHART ", helmVersion: v2", "spec.helmVersion"},
        {CHART ", helmVersion: v4", "spec.helmVersion"},
        {CHART ", helmVersion: 3", "spec.helmVersion"},
        {CHART ", timeout: -1", "spec.timeout"},
        {CHART ", timeout: 86401", "spec.timeout"},
        {CHART ", timeout: 1.5", "spec.timeout"},
        {CHART ", timeout: 5m", "spec.timeout"},
        {CHART ", wait: 'true'", "spec.wait"},
        {CHART ", forceUpgrade: 1", "spec.forceUpgrade"},
        {CHART ", resetValues: 'no'", "spec.resetValues"},
        {CHART ", maxHistory: -1", "spec.maxHistory"},
        {CHART ", skipCRDs: {}", "spec.skipCRDs"},
        {CHART ", disableOpenAPIValidation: []", "spec.disableOpenAPIValidation"},
        {CHART ", values: [1]", "spec.values"},
        {CHART ", values: text", "spec.values"},
        {CHART ", rollback: true", "spec.rollback"},
        {CHART ", rollback: {enable: 'yes'}", "spec.rollback.enable"},
        {CHART ", rollback: {maxRetries: x}", "spec.rollback.maxRetries"},
        {CHART ", rollback: {timeout: -5}", "spec.rollback.timeout"},
        {CHART ", test: []", "spec.test"},
        {CHART ", test: {cleanup: 1}", "spec.test.cleanup"},
        {CHART ", test: {timeout: x}", "spec.test.timeout"},
        {CHART ", valuesFrom: {}", "spec.valuesFrom"},
        {CHART ", valuesFrom: [{}]", "spec.valuesFrom[0]"},
        {CHART ", valuesFrom: [text]", "spec.valuesFrom[0]"},
        {CHART ", valuesFrom: [{configMapKeyRef: null, secretKeyRef: null}]", "spec.valuesFrom[0]"},
        {CHART ", valuesFrom: [{configMapKeyRef: text}]", "spec.valuesFrom[0]"},
        {CHART ", valuesFrom: [{configMapKeyRef: {name: a}}, {secretKeyRef: {}}]",
         "spec.valuesFrom[1]"},
        {CHART ", valuesFrom: [{configMapKeyRef: {name: a, key: 1}}]", "spec.valuesFrom[0].key"},
        {CHART ", valuesFrom: [{configMapKeyRef: {name: a, optional: 'yes'}}]",
         "spec.valuesFrom[0].optional"},
        {CHART ", valuesFrom: [{secretKeyRef: {name: a, namespace: []}}]",
         "spec.valuesFrom[0].namespace"},
        {CHART ", valuesFrom: [{externalSourceRef: {url: 'ftp://h'}}]", "spec.valuesFrom[0]"},
        {CHART ", valuesFrom: [{externalSourceRef: {}}]", "spec.valuesFrom[0]"},
        {CHART ", valuesFrom: [{chartFileRef: {path: ''}}]", "spec.valuesFrom[0]"},
        {CHART ", valueFileSecrets: [{}]", "spec.valueFileSecrets"},
        {CHART ", valueFileSecrets: text", "spec.valueFileSecrets"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_(hr_free_ptr)
        struct hr *hr = parse_spec(rows[i].spec);
        _cleanup_(free_cstr)
        char *begins = xasprintf("%s: ", rows[i].field);
        bool named = text_has_prefix(hr->spec_err.msg, begins) ||
                     (strcmp(rows[i].field, "spec.chart") == 0 &&
                      text_has_prefix(hr->spec_err.msg, "spec.chart"));
        if (hr->spec_err.kind != ERR_INVALID || !named) {
            fail_msg("%s: %s \"%s\"", rows[i].spec, err_kind_name(hr->spec_err.kind),
                     hr->spec_err.msg);
        }
        assert_string_equal(hr->name, "x");
        assert_non_null(hr->spec.target_ns);
    }
}

static void without_a_spec_the_object_is_still_one(void **state)
{
    static const char *const texts[] = {METADATA, METADATA "spec: 5\n", METADATA "spec: null\n"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        _cleanup_json_ json_t *object = yaml(texts[i]);
        _cleanup_(hr_free_ptr)
        struct hr *hr = parse(object);
        assert_int_equal(hr->spec_err.kind, ERR_INVALID);
        assert_true(text_has_prefix(hr->spec_err.msg, "spec: "));
    }
}

static void release_names_are_helms(void **state)
{
#define TEN "abcdefghij"
    static const struct {
        const char *given, *target, *resolved;
        bool ok;
    } rows[] = {
        {"''", "''", "ns-x", true},
        {"''", "other", "ns-other-x", true},
        {"''", "ns", "ns-x", true},
        {"a", "''", "a", true},
        {"a.b-c.0", "''", "a.b-c.0", true},
        {TEN TEN TEN TEN TEN "abc", "''", NULL, true},
        {TEN TEN TEN TEN TEN "abcd", "''", NULL, false},
        {"''", TEN TEN TEN TEN TEN "abc", NULL, false}, /* made of parts, and too long */
        {"Upper", "''", NULL, false},
        {"under_score", "''", NULL, false},
        {"-a", "''", NULL, false},
        {"a-", "''", NULL, false},
        {"a.", "''", NULL, false},
        {".a", "''", NULL, false},
        {"a..b", "''", NULL, false},
        {"a.-b", "''", NULL, false},
        {"a-.b", "''", NULL, false},
        {"'a b'", "''", NULL, false},
        {"'a/b'", "''", NULL, false},
        {"\"\\u00e4\"", "''", NULL, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_(free_cstr)
        char *spec = xasprintf(CHART ", releaseName: %s, targetNamespace: %s", rows[i].given,
                               rows[i].target);
        _cleanup_(hr_free_ptr)
        struct hr *hr = parse_spec(spec);
        bool ok = hr->spec_err.kind == ERR_NONE;
        if (ok != rows[i].ok) {
            fail_msg("%s: %s", spec, hr->spec_err.msg);
        }
        if (!ok) {
            assert_true(text_has_prefix(hr->spec_err.msg, "spec.releaseName: "));
        }
        if (rows[i].resolved != NULL) {
            assert_string_equal(hr->spec.release_name, rows[i].resolved);
        }
    }
}

/* Whoever reads the condition must not have to look anything up (case 40). */
static void a_bad_release_name_is_told_with_what_to_do(void **state)
{
    static const struct {
        const char *spec;
        const char *words[5];
    } rows[] = {
        {CHART ", releaseName: " TEN TEN TEN TEN TEN "abcd",
         {TEN TEN TEN TEN TEN "abcd", "54 characters", "at most 53", "set spec.releaseName to"}},
        {CHART ", targetNamespace: " TEN TEN TEN TEN TEN TEN TEN,
         {"made of namespaces and name", "\"ns-" TEN TEN TEN, "...\"", "75 characters",
          "set spec.releaseName to at most 53 characters"}},
        {CHART ", releaseName: Upper", {"\"Upper\"", "lower-case", "set spec.releaseName to"}},
        {CHART ", targetNamespace: Bad",
         {"\"ns-Bad-x\"", "made of namespaces and name", "set spec.releaseName to"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_(hr_free_ptr)
        struct hr *hr = parse_spec(rows[i].spec);
        assert_int_equal(hr->spec_err.kind, ERR_INVALID);
        for (size_t k = 0; k < 5 && rows[i].words[k] != NULL; k++) {
            if (strstr(hr->spec_err.msg, rows[i].words[k]) == NULL) {
                fail_msg("\"%s\" does not say %s", hr->spec_err.msg, rows[i].words[k]);
            }
        }
    }
}

/* The longest text still ends with what to do: it must not be cut off. */
static void the_advice_survives_a_name_of_any_length(void **state)
{
    (void)state;
    static const char *const pieces[] = {"a", "\\u20ac"};
    for (size_t k = 0; k < 2; k++) {
        _cleanup_(free_cstr)
        char *name = xcalloc(6 * 500 + 1, 1);
        for (size_t i = 0; i < 500; i++) {
            memcpy(name + i * strlen(pieces[k]), pieces[k], strlen(pieces[k]));
        }
        _cleanup_(free_cstr)
        char *spec = xasprintf(CHART ", targetNamespace: \"%s\"", name);
        _cleanup_(hr_free_ptr)
        struct hr *hr = parse_spec(spec);
        assert_int_equal(hr->spec_err.kind, ERR_INVALID);
        assert_true(text_has_suffix(hr->spec_err.msg, "to at most 53 characters"));
        _cleanup_(free_cstr)
        char *clean = text_clean(hr->spec_err.msg, strlen(hr->spec_err.msg), sizeof(hr->spec_err));
        assert_string_equal(clean, hr->spec_err.msg); /* no half of a character */
    }
}

static void sources_of_values_keep_their_order_after_the_old_form(void **state)
{
    (void)state;
    _cleanup_(hr_free_ptr)
    struct hr *hr = parse_spec(
        CHART ", valuesFrom: [{configMapKeyRef: {name: cm}}, {secretKeyRef: {name: sec, namespace: "
              "other, key: k, optional: true}}, {externalSourceRef: {url: 'https://u', optional: "
              "true}}, {chartFileRef: {path: 'p/v.yaml'}}, {secretKeyRef: {name: loses}, "
              "configMapKeyRef: {name: wins}}, {configMapKeyRef: null, secretKeyRef: {name: "
              "only}}], valueFileSecrets: [{name: old1}, {name: old2}]");
    static const struct {
        enum hr_values_kind kind;
        const char *ns, *name, *key, *location;
        bool optional;
    } rows[] = {
        {HR_VALUES_SECRET, "ns", "old1", "values.yaml", NULL, false},
        {HR_VALUES_SECRET, "ns", "old2", "values.yaml", NULL, false},
        {HR_VALUES_CONFIGMAP, "ns", "cm", "values.yaml", NULL, false},
        {HR_VALUES_SECRET, "other", "sec", "k", NULL, true},
        {HR_VALUES_URL, NULL, NULL, NULL, "https://u", true},
        {HR_VALUES_CHART_FILE, NULL, NULL, NULL, "p/v.yaml", false},
        {HR_VALUES_CONFIGMAP, "ns", "wins", "values.yaml", NULL, false},
        {HR_VALUES_SECRET, "ns", "only", "values.yaml", NULL, false},
    };
    assert_string_equal(hr->spec_err.msg, "");
    assert_int_equal(hr->spec.values_from_count, sizeof(rows) / sizeof(rows[0]));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct hr_values_source *v = &hr->spec.values_from[i];
        bool same = v->kind == rows[i].kind && text_eq(v->ns, rows[i].ns) &&
                    text_eq(v->name, rows[i].name) && text_eq(v->key, rows[i].key) &&
                    text_eq(v->location, rows[i].location) && v->optional == rows[i].optional;
        if (!same) {
            fail_msg("source %zu is another", i);
        }
    }
}

/* ---- metadata and status ---- */

static void what_lacks_a_name_is_no_helm_release(void **state)
{
    static const char *const texts[] = {
        "{}",
        "metadata: {name: x, uid: u}",
        "metadata: {namespace: ns, uid: u}",
        "metadata: {namespace: ns, name: x}",
        "metadata: {namespace: 1, name: x, uid: u}",
        "metadata: text",
        "[]",
        "null",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        _cleanup_json_ json_t *object = yaml(texts[i]);
        struct hr *hr = NULL;
        struct err err = ERR_INIT;
        if (hr_parse(object, &hr, &err) != ERR_INVALID || hr != NULL) {
            fail_msg("%s was taken for one", texts[i]);
        }
    }
}

static void an_object_without_status_reads_as_untouched(void **state)
{
    (void)state;
    _cleanup_(hr_free_ptr)
    struct hr *hr = parse_spec(CHART);
    assert_string_equal(hr->resource_version, "5");
    assert_int_equal(hr->generation, 3);
    assert_false(hr->deleting);
    assert_false(hr->has_finalizer);
    const struct hr_status *s = &hr->status;
    assert_int_equal(s->observed_generation, -1);
    assert_int_equal(s->released.status, HR_ABSENT);
    assert_int_equal(s->released.observed_generation, -1);
    assert_true(s->released.last_transition_ns == INT64_MIN);
    assert_string_equal(s->released.last_transition, "");
    assert_false(s->lease.present);
    assert_false(s->attempt.present);
    assert_string_equal(s->attempt.digest, "");
    assert_true(s->attempt.not_before_ns == INT64_MIN);
    assert_string_equal(s->source.revision, "");
    assert_true(s->source.resolved_ns == INT64_MIN);
    assert_string_equal(s->phase, "");
    assert_true(s->managed_ns == INT64_MIN);
}

static const char *const full_status =
    "metadata:\n"
    "  {namespace: ns, name: x, uid: u, deletionTimestamp: '2026-12-01T12:00:00Z',"
    "   finalizers: [other, " HR_FINALIZER "]}\n"
    "status:\n"
    "  observedGeneration: 7\n"
    "  phase: Upgrading\n"
    "  releaseName: r\n"
    "  releaseStatus: deployed\n"
    "  revision: 1.0.0\n"
    "  lastAttemptedRevision: 1.1.0\n"
    "  rollbackCount: 2\n"
    "  conditions:\n"
    "  - {type: Tested, status: 'False', reason: TestFailed}\n"
    "  - {type: Released, status: Unknown, reason: Upgrading, observedGeneration: 7,\n"
    "     lastTransitionTime: '2026-12-01T12:00:31Z'}\n"
    "  - {type: Ready, status: nonsense}\n"
    "  - {type: Reconciling, status: 'True', lastTransitionTime: yesterday}\n"
    "  lease: {holderIdentity: p/u/i, leaseDurationSeconds: 30,\n"
    "          acquireTime: '2026-12-01T12:00:01.250000Z', leaseTransitions: 12}\n"
    "  attempt: {digest: '1:9f', generation: 7, failures: 3, notBefore: '2026-12-01T12:05:00Z',\n"
    "            upgrades: 4, windowStart: '2026-12-01T12:00:03Z'}\n"
    "  source: {revision: 1.1.0, digest: 'sha256:aa', resolvedAt: '2026-12-01T12:00:02Z'}\n";

static void every_field_of_a_status_is_read(void **state)
{
    (void)state;
    _cleanup_json_ json_t *object = yaml(full_status);
    _cleanup_(hr_free_ptr)
    struct hr *hr = parse(object);
    const struct hr_status *s = &hr->status;
    assert_true(hr->deleting);
    assert_true(hr->has_finalizer);
    assert_int_equal(hr->finalizer_index, 1);
    assert_int_equal(s->observed_generation, 7);
    assert_int_equal(s->released.status, HR_UNKNOWN);
    assert_int_equal(s->released.index, 1);
    assert_int_equal(s->released.observed_generation, 7);
    assert_string_equal(s->released.last_transition, "2026-12-01T12:00:31Z");
    assert_true(s->released.last_transition_ns == T0_NS + 31 * NS_PER_SEC);
    assert_string_equal(s->released.reason, "Upgrading");
    assert_int_equal(s->tested.status, HR_FALSE);
    assert_int_equal(s->ready.status, HR_UNKNOWN); /* what is neither True nor False */
    assert_int_equal(s->reconciling.status, HR_TRUE);
    assert_true(s->reconciling.last_transition_ns == INT64_MIN);
    assert_int_equal(s->stalled.status, HR_ABSENT);
    assert_true(s->lease.present);
    assert_string_equal(s->lease.holder, "p/u/i");
    assert_int_equal(s->lease.duration_s, 30);
    assert_true(s->lease.acquire_ns == T0_NS + 1250 * NS_PER_MS);
    assert_int_equal(s->lease.transitions, 12);
    assert_true(s->attempt.present);
    assert_string_equal(s->attempt.digest, "1:9f");
    assert_int_equal(s->attempt.generation, 7);
    assert_int_equal(s->attempt.failures, 3);
    assert_true(s->attempt.not_before_ns == T0_NS + 300 * NS_PER_SEC);
    assert_int_equal(s->attempt.upgrades, 4);
    assert_true(s->attempt.window_ns == T0_NS + 3 * NS_PER_SEC);
    assert_string_equal(s->source.revision, "1.1.0");
    assert_string_equal(s->source.digest, "sha256:aa");
    assert_true(s->source.resolved_ns == T0_NS + 2 * NS_PER_SEC);
    assert_string_equal(s->phase, "Upgrading");
    assert_string_equal(s->release_name, "r");
    assert_string_equal(s->release_status, "deployed");
    assert_string_equal(s->revision, "1.0.0");
    assert_string_equal(s->last_attempted_revision, "1.1.0");
    assert_int_equal(s->rollback_count, 2);
}

static void a_lease_that_makes_no_sense_promises_nothing(void **state)
{
    static const char *const leases[] = {"{holderIdentity: a, leaseDurationSeconds: 0}",
                                         "{holderIdentity: a, leaseDurationSeconds: -30}",
                                         "{holderIdentity: a, leaseDurationSeconds: soon}",
                                         "{holderIdentity: a}"};
    (void)state;
    for (size_t i = 0; i < sizeof(leases) / sizeof(leases[0]); i++) {
        _cleanup_(free_cstr)
        char *text = xasprintf(METADATA "status: {lease: %s}\n", leases[i]);
        _cleanup_json_ json_t *object = yaml(text);
        _cleanup_(hr_free_ptr)
        struct hr *hr = parse(object);
        assert_true(hr->status.lease.present);
        assert_string_equal(hr->status.lease.holder, "a");
        assert_int_equal(hr->status.lease.duration_s, 0);
        assert_true(hr->status.lease.acquire_ns == INT64_MIN);
    }
}

static void a_status_of_any_shape_is_survived(void **state)
{
    static const char *const statuses[] = {
        "5",
        "[]",
        "{conditions: text}",
        "{conditions: [1, {}, {type: 5}, null]}",
        "{lease: text, attempt: 5, source: []}",
        "{lease: {holderIdentity: 5, leaseTransitions: x}, observedGeneration: x}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        _cleanup_(free_cstr)
        char *text = xasprintf(METADATA "status: %s\n", statuses[i]);
        _cleanup_json_ json_t *object = yaml(text);
        _cleanup_(hr_free_ptr)
        struct hr *hr = parse(object);
        assert_int_equal(hr->status.released.status, HR_ABSENT);
        assert_int_equal(hr->status.lease.transitions, 0);
        assert_int_equal(hr->status.observed_generation, -1);
    }
}

static void belays_own_newest_write_is_known_by_managed_fields(void **state)
{
    (void)state;
    _cleanup_json_ json_t *object =
        yaml("metadata: {namespace: ns, name: x, uid: u, managedFields: [\n"
             "  {manager: kubectl, subresource: status, time: '2026-12-01T12:09:00Z'},\n"
             "  {manager: belay, time: '2026-12-01T12:08:00Z'},\n" /* the object, not its status */
             "  {manager: belay, subresource: status, time: '2026-12-01T12:00:10Z'},\n"
             "  {manager: belay, subresource: status, time: '2026-12-01T12:00:05Z'},\n"
             "  {manager: belay, subresource: status}]}\n");
    _cleanup_(hr_free_ptr)
    struct hr *hr = parse(object);
    assert_true(hr->status.managed_ns == T0_NS + 10 * NS_PER_SEC);
}

/* ---- conditions ---- */

static json_t *conditions(void)
{
    return yaml("[{type: A, status: 'True', extra: kept, lastTransitionTime: t0},\n"
                " {type: Released, status: 'True', reason: R, message: m, observedGeneration: 3,\n"
                "  lastTransitionTime: t0, lastUpdateTime: t0},\n"
                " {type: Z, status: 'False', observedGeneration: 2}]");
}

static const char *at(const json_t *list, size_t i, const char *field)
{
    return jsonx_str(json_array_get(list, i), field, "");
}

static struct hr_condition_edit edit_of(const char *type, const char *status)
{
    return (struct hr_condition_edit){.type = type,
                                      .status = status,
                                      .reason = "New",
                                      .message = "words",
                                      .observed_generation = 4,
                                      .now = "t1"};
}

static void an_edited_condition_keeps_its_place(void **state)
{
    (void)state;
    _cleanup_json_ json_t *list = conditions();
    struct hr_condition_edit edit = edit_of("Released", "False");
    hr_conditions_edit(list, &edit);
    assert_int_equal(json_array_size(list), 3);
    assert_string_equal(at(list, 1, "type"), "Released");
    assert_string_equal(at(list, 1, "status"), "False");
    assert_string_equal(at(list, 1, "reason"), "New");
    assert_string_equal(at(list, 1, "message"), "words");
    assert_string_equal(at(list, 1, "lastTransitionTime"), "t1");
    assert_string_equal(at(list, 1, "lastUpdateTime"), "t1");
    assert_int_equal(jsonx_int(json_array_get(list, 1), "observedGeneration", 0), 4);
    assert_string_equal(at(list, 0, "extra"), "kept");
    assert_string_equal(at(list, 0, "lastTransitionTime"), "t0");
}

static void a_new_condition_goes_to_the_end(void **state)
{
    (void)state;
    _cleanup_json_ json_t *list = conditions();
    struct hr_condition_edit edit = edit_of("Ready", "True");
    edit.observed_generation = -1;
    edit.reason = NULL;
    edit.message = NULL;
    hr_conditions_edit(list, &edit);
    size_t index = 0;
    assert_non_null(hr_conditions_find(list, "Ready", &index));
    assert_int_equal(index, 3);
    assert_string_equal(at(list, 3, "lastTransitionTime"), "t1");
    assert_string_equal(at(list, 3, "message"), "");
    assert_string_not_equal(at(list, 3, "reason"), ""); /* metav1.Condition wants one */
    assert_null(json_object_get(json_array_get(list, 3), "observedGeneration"));
    _cleanup_json_ json_t *empty = json_array();
    hr_conditions_edit(empty, &edit);
    assert_int_equal(json_array_size(empty), 1);
}

static void a_transition_is_stamped_if_it_is_one_or_is_asked_for(void **state)
{
    static const struct {
        const char *type, *status;
        bool restamp;
        const char *stamp;
    } rows[] = {
        {"Released", "True", false, "t0"},
        {"Released", "True", true, "t1"},
        {"Released", "Unknown", false, "t1"},
        {"Z", "False", false, "t1"}, /* it had none */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_json_ json_t *list = conditions();
        struct hr_condition_edit edit = edit_of(rows[i].type, rows[i].status);
        edit.restamp = rows[i].restamp;
        hr_conditions_edit(list, &edit);
        const json_t *c = hr_conditions_find(list, rows[i].type, NULL);
        assert_string_equal(jsonx_str(c, "lastTransitionTime", ""), rows[i].stamp);
        assert_string_equal(jsonx_str(c, "lastUpdateTime", ""), "t1");
    }
}

static void a_condition_without_status_is_removed(void **state)
{
    (void)state;
    _cleanup_json_ json_t *list = conditions();
    struct hr_condition_edit edit = edit_of("Released", NULL);
    hr_conditions_edit(list, &edit);
    hr_conditions_edit(list, &edit); /* nothing to remove any more */
    assert_int_equal(json_array_size(list), 2);
    assert_null(hr_conditions_find(list, "Released", NULL));
    assert_string_equal(at(list, 1, "type"), "Z");
}

static void a_long_message_is_cut_to_valid_text(void **state)
{
    (void)state;
    static const char *const pieces[] = {"a", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    for (size_t k = 0; k < 4; k++) {
        size_t len = strlen(pieces[k]);
        for (size_t count = LIMIT_MESSAGE_BYTES / len - 2; count < LIMIT_MESSAGE_BYTES / len + 3;
             count++) {
            _cleanup_(free_cstr)
            char *text = xcalloc(count * len + 1, 1);
            for (size_t i = 0; i < count; i++) {
                memcpy(text + i * len, pieces[k], len);
            }
            _cleanup_json_ json_t *list = conditions();
            struct hr_condition_edit edit = edit_of("Released", "False");
            edit.message = text;
            hr_conditions_edit(list, &edit);
            const char *cut = at(list, 1, "message"); /* jansson refuses what is no UTF-8 */
            assert_true(strlen(cut) <= LIMIT_MESSAGE_BYTES);
            assert_true(strlen(cut) > LIMIT_MESSAGE_BYTES - 8 - 2 * len);
            assert_true(count * len <= LIMIT_MESSAGE_BYTES ? strcmp(cut, text) == 0
                                                           : text_has_suffix(cut, "..."));
        }
    }
}

static void a_message_that_is_no_text_becomes_one(void **state)
{
    (void)state;
    _cleanup_json_ json_t *list = conditions();
    struct hr_condition_edit edit = edit_of("Released", "False");
    edit.message = "a\xff\x01z\nend";
    hr_conditions_edit(list, &edit);
    assert_string_equal(at(list, 1, "message"), "a??z\nend");
}

static void old_conditions_get_the_generation_that_they_were_about(void **state)
{
    (void)state;
    static const char *const skip[] = {"Released", "Ready"};
    _cleanup_json_ json_t *list =
        yaml("[{type: A, status: 'True'}, {type: Released, status: 'True'},\n"
             " {type: Z, status: 'False', observedGeneration: 2}, {type: Tested, status: 'True'}]");
    hr_conditions_stamp_legacy(list, 6, skip, 2);
    assert_int_equal(jsonx_int(json_array_get(list, 0), "observedGeneration", -1), 6);
    assert_null(json_object_get(json_array_get(list, 1), "observedGeneration"));
    assert_int_equal(jsonx_int(json_array_get(list, 2), "observedGeneration", -1), 2);
    assert_int_equal(jsonx_int(json_array_get(list, 3), "observedGeneration", -1), 6);
    _cleanup_json_ json_t *unknown = yaml("[{type: A, status: 'True'}]");
    hr_conditions_stamp_legacy(unknown, -1, skip, 2); /* it is not known either */
    assert_null(json_object_get(json_array_get(unknown, 0), "observedGeneration"));
}

/* ---- the CRD ---- */

/* api/crd.yaml, from here or from a directory above. */
static json_t *read_crd(void)
{
    char path[128] = "api/crd.yaml";
    for (int up = 0; access(path, R_OK) != 0; up++) {
        if (up == 8) {
            fail_msg("api/crd.yaml is neither here nor above");
        }
        _cleanup_(free_cstr)
        char *above = xasprintf("../%s", path);
        (void)snprintf(path, sizeof(path), "%s", above);
    }
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    static char text[256 << 10];
    size_t len = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    text[len] = '\0';
    return yaml(text);
}

static json_t *schema_of(const json_t *crd)
{
    return jsonx_at(json_array_get(jsonx_at(crd, "spec.versions"), 0), "schema.openAPIV3Schema");
}

/* The "properties" that hold the last name of path, which goes to *ret_last. */
static json_t *properties_of(json_t *crd, const char *path, const char **ret_last)
{
    json_t *schema = schema_of(crd);
    const char *dot;
    while ((dot = strchr(path, '.')) != NULL) {
        _cleanup_(free_cstr)
        char *name = xstrndup(path, (size_t)(dot - path));
        schema = json_object_get(json_object_get(schema, "properties"), name);
        assert_non_null(schema);
        json_t *items = json_object_get(schema, "items");
        schema = items != NULL ? items : schema;
        path = dot + 1;
    }
    *ret_last = path;
    return json_object_get(schema, "properties");
}

static void the_crd_of_this_version_is_taken(void **state)
{
    (void)state;
    _cleanup_json_ json_t *crd = read_crd();
    struct err err = ERR_INIT;
    if (hr_crd_check(crd, &err)) {
        fail_msg("%s", err.msg);
    }
}

/* kubectl explain has to say something about each field. */
static void check_described(const json_t *schema, const char *path, int depth)
{
    assert_true(depth < 12);
    const char *name;
    json_t *field;
    json_object_foreach(json_object_get(schema, "properties"), name, field)
    {
        _cleanup_(free_cstr)
        char *below = xasprintf("%s.%s", path, name);
        if (jsonx_str(field, "description", "")[0] == '\0') {
            fail_msg("%s has no description", below);
        }
        check_described(field, below, depth + 1);
    }
    const json_t *items = json_object_get(schema, "items");
    if (items != NULL) {
        check_described(items, path, depth + 1);
    }
}

static void every_field_is_described(void **state)
{
    (void)state;
    _cleanup_json_ json_t *crd = read_crd();
    const json_t *top = json_object_get(schema_of(crd), "properties");
    check_described(json_object_get(top, "spec"), "spec", 0);
    check_described(json_object_get(top, "status"), "status", 0);
}

static void a_crd_without_a_field_that_we_write_is_refused_by_its_name(void **state)
{
    static const char *const paths[] = {
        "status",
        "status.observedGeneration",
        "status.phase",
        "status.releaseName",
        "status.releaseStatus",
        "status.revision",
        "status.lastAttemptedRevision",
        "status.conditions",
        "status.conditions.type",
        "status.conditions.status",
        "status.conditions.reason",
        "status.conditions.message",
        "status.conditions.observedGeneration",
        "status.conditions.lastUpdateTime",
        "status.conditions.lastTransitionTime",
        "status.lease",
        "status.lease.holderIdentity",
        "status.lease.leaseDurationSeconds",
        "status.lease.acquireTime",
        "status.lease.leaseTransitions",
        "status.attempt",
        "status.attempt.digest",
        "status.attempt.generation",
        "status.attempt.failures",
        "status.attempt.notBefore",
        "status.attempt.upgrades",
        "status.attempt.windowStart",
        "status.source",
        "status.source.revision",
        "status.source.digest",
        "status.source.resolvedAt",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        _cleanup_json_ json_t *crd = read_crd();
        const char *last = NULL;
        json_t *properties = properties_of(crd, paths[i], &last);
        assert_int_equal(json_object_del(properties, last), 0);
        struct err err = ERR_INIT;
        if (hr_crd_check(crd, &err) != ERR_INVALID || strstr(err.msg, paths[i]) == NULL ||
            err.hint[0] == '\0') {
            fail_msg("without %s: %s", paths[i], err.msg);
        }
        /* What keeps everything keeps this as well. */
        assert_int_equal(json_object_set_new(json_object_get(schema_of(crd), "properties"),
                                             "status",
                                             json_pack("{s:s,s:b}", "type", "object",
                                                       "x-kubernetes-preserve-unknown-fields", 1)),
                         0);
        struct err kept = ERR_INIT;
        assert_int_equal(hr_crd_check(crd, &kept), ERR_NONE);
    }
}

static void drop_from_enum(json_t *crd, const char *path, const char *word)
{
    const char *last = NULL;
    json_t *properties = properties_of(crd, path, &last);
    json_t *list = json_object_get(json_object_get(properties, last), "enum");
    size_t i = 0;
    while (!text_eq(json_string_value(json_array_get(list, i)), word)) {
        i++;
        assert_true(i < json_array_size(list));
    }
    assert_int_equal(json_array_remove(list, i), 0);
}

static void a_crd_that_refuses_a_word_that_we_write_is_refused_by_it(void **state)
{
    static const struct {
        const char *path, *word;
    } rows[] = {
        {"status.conditions.type", "Ready"},
        {"status.conditions.type", "Reconciling"},
        {"status.conditions.type", "Stalled"},
        {"status.conditions.type", "Released"},
        {"status.conditions.type", "ChartFetched"},
        {"status.conditions.type", "Deployed"},
        {"status.phase", "Upgrading"},
        {"status.phase", "Installing"},
        {"status.phase", "Succeeded"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_json_ json_t *crd = read_crd();
        drop_from_enum(crd, rows[i].path, rows[i].word);
        struct err err = ERR_INIT;
        if (hr_crd_check(crd, &err) != ERR_INVALID || strstr(err.msg, rows[i].word) == NULL) {
            fail_msg("without %s: %s", rows[i].word, err.msg);
        }
        /* A list of words that is not there refuses none. */
        const char *last = NULL;
        json_t *properties = properties_of(crd, rows[i].path, &last);
        assert_int_equal(json_object_del(json_object_get(properties, last), "enum"), 0);
        struct err free_word = ERR_INIT;
        assert_int_equal(hr_crd_check(crd, &free_word), ERR_NONE);
    }
}

/* The API server's own rule (structural schemas): a place that keeps unknown fields keeps those
 * below it too, but prunes and checks again wherever its schema does name the field. */
static void what_keeps_unknown_fields_keeps_only_what_is_not_named_below_it(void **state)
{
    static const struct {
        const char *name, *crd; /* YAML of spec, with one version v1 */
        const char *fault;      /* in the message; NULL if the CRD will do */
    } rows[] = {
        {"the root keeps all, and nothing is named",
         "{versions: [{name: v1, served: true, subresources: {status: {}}, schema: "
         "{openAPIV3Schema: {x-kubernetes-preserve-unknown-fields: true}}}]}",
         NULL},
        {"the root keeps all, but the status is named without the lease",
         "{versions: [{name: v1, served: true, subresources: {status: {}}, schema: "
         "{openAPIV3Schema: {x-kubernetes-preserve-unknown-fields: true, properties: {status: "
         "{properties: {observedGeneration: {type: integer}}}}}}}]}",
         "status.phase"},
        {"the status keeps all, but a list of condition types is named",
         "{versions: [{name: v1, served: true, subresources: {status: {}}, schema: "
         "{openAPIV3Schema: {properties: {status: {x-kubernetes-preserve-unknown-fields: true, "
         "properties: {conditions: {items: {x-kubernetes-preserve-unknown-fields: true, "
         "properties: {type: {enum: [Released]}}}}}}}}}}]}",
         "condition type"},
        {"the status keeps all, but a list of phases is named",
         "{versions: [{name: v1, served: true, subresources: {status: {}}, schema: "
         "{openAPIV3Schema: {properties: {status: {x-kubernetes-preserve-unknown-fields: true, "
         "properties: {phase: {enum: [Failed]}}}}}}}]}",
         "phase "},
        {"any name is taken in the lease",
         "{versions: [{name: v1, served: true, subresources: {status: {}}, schema: "
         "{openAPIV3Schema: {properties: {status: {x-kubernetes-preserve-unknown-fields: true, "
         "properties: {lease: {additionalProperties: {}}}}}}}}]}",
         NULL},
        {"no more names are taken in the lease",
         "{versions: [{name: v1, served: true, subresources: {status: {}}, schema: "
         "{openAPIV3Schema: {properties: {status: {x-kubernetes-preserve-unknown-fields: true, "
         "properties: {lease: {additionalProperties: false}}}}}}}]}",
         "status.lease.holderIdentity"},
        {"a CRD from the days of v1beta1 that prunes nothing",
         "{preserveUnknownFields: true, versions: [{name: v1, served: true, subresources: "
         "{status: {}}, schema: {openAPIV3Schema: {properties: {status: {properties: "
         "{phase: {type: string}}}}}}}]}",
         NULL},
        {"a CRD without any schema, from those days",
         "{preserveUnknownFields: true, versions: [{name: v1, served: true, subresources: "
         "{status: {}}}]}",
         NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_(free_cstr)
        char *text = xasprintf("spec: %s\n", rows[i].crd);
        _cleanup_json_ json_t *crd = yaml(text);
        struct err err = ERR_INIT;
        enum err_kind kind = hr_crd_check(crd, &err);
        bool right = rows[i].fault == NULL
                         ? kind == ERR_NONE
                         : kind == ERR_INVALID && strstr(err.msg, rows[i].fault) != NULL;
        if (!right) {
            fail_msg("%s: %s \"%s\"", rows[i].name, err_kind_name(kind), err.msg);
        }
    }
}

static void a_crd_without_its_frame_is_refused(void **state)
{
    (void)state;
    _cleanup_json_ json_t *plain = read_crd();
    json_t *version = json_array_get(jsonx_at(plain, "spec.versions"), 0);
    assert_int_equal(json_object_del(version, "subresources"), 0);
    struct err err = ERR_INIT;
    assert_int_equal(hr_crd_check(plain, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "status subresource"));

    _cleanup_json_ json_t *unserved = read_crd();
    version = json_array_get(jsonx_at(unserved, "spec.versions"), 0);
    assert_int_equal(json_object_set_new(version, "served", json_false()), 0);
    assert_int_equal(hr_crd_check(unserved, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "v1"));

    _cleanup_json_ json_t *nothing = json_object();
    assert_int_equal(hr_crd_check(nothing, &err), ERR_INVALID);
    assert_int_equal(hr_crd_check(NULL, &err), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_spec_of_a_chart_alone_has_helm_operators_defaults),
        cmocka_unit_test(every_field_of_a_spec_is_read),
        cmocka_unit_test(waiting_is_on_by_itself_where_its_result_is_needed),
        cmocka_unit_test(a_fault_in_the_spec_names_its_field),
        cmocka_unit_test(without_a_spec_the_object_is_still_one),
        cmocka_unit_test(release_names_are_helms),
        cmocka_unit_test(a_bad_release_name_is_told_with_what_to_do),
        cmocka_unit_test(the_advice_survives_a_name_of_any_length),
        cmocka_unit_test(sources_of_values_keep_their_order_after_the_old_form),
        cmocka_unit_test(what_lacks_a_name_is_no_helm_release),
        cmocka_unit_test(an_object_without_status_reads_as_untouched),
        cmocka_unit_test(every_field_of_a_status_is_read),
        cmocka_unit_test(a_lease_that_makes_no_sense_promises_nothing),
        cmocka_unit_test(a_status_of_any_shape_is_survived),
        cmocka_unit_test(belays_own_newest_write_is_known_by_managed_fields),
        cmocka_unit_test(an_edited_condition_keeps_its_place),
        cmocka_unit_test(a_new_condition_goes_to_the_end),
        cmocka_unit_test(a_transition_is_stamped_if_it_is_one_or_is_asked_for),
        cmocka_unit_test(a_condition_without_status_is_removed),
        cmocka_unit_test(a_long_message_is_cut_to_valid_text),
        cmocka_unit_test(a_message_that_is_no_text_becomes_one),
        cmocka_unit_test(old_conditions_get_the_generation_that_they_were_about),
        cmocka_unit_test(the_crd_of_this_version_is_taken),
        cmocka_unit_test(every_field_is_described),
        cmocka_unit_test(a_crd_without_a_field_that_we_write_is_refused_by_its_name),
        cmocka_unit_test(a_crd_that_refuses_a_word_that_we_write_is_refused_by_it),
        cmocka_unit_test(what_keeps_unknown_fields_keeps_only_what_is_not_named_below_it),
        cmocka_unit_test(a_crd_without_its_frame_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
