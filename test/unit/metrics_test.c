/* The exposition, text format 0.0.4: exact text, and what every line of it must keep to. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "metrics/metrics.h"

/* All of it; on the heap. */
static char *expose(struct metrics *m)
{
    struct buf out = BUF_INIT(16U << 20);
    metrics_write(m, &out);
    assert_false(out.overflow);
    return buf_take(&out);
}

static void assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("missing: %s", part);
    }
}

static void assert_lacks(const char *text, const char *part)
{
    if (strstr(text, part) != NULL) {
        fail_msg("still there: %s", part);
    }
}

/* One observation, in the bucket of the given bound. */
static void want_histogram(struct buf *want, const char *name, const char *labels, int bound,
                           const char *sum)
{
    static const int bounds[] = {1, 5, 10, 30, 60, 120, 180, 300, 600, 1800};
    const char *comma = labels[0] != '\0' ? "," : "";
    for (size_t i = 0; i < 10; i++) {
        buf_addf(want, "%s_bucket{%s%sle=\"%d\"} %d\n", name, labels, comma, bounds[i],
                 bounds[i] >= bound);
    }
    buf_addf(want, "%s_bucket{%s%sle=\"+Inf\"} 1\n", name, labels, comma);
    const char *open = labels[0] != '\0' ? "{" : "";
    const char *close = labels[0] != '\0' ? "}" : "";
    buf_addf(want, "%s_sum%s%s%s %s\n", name, open, labels, close, sum);
    buf_addf(want, "%s_count%s%s%s 1\n", name, open, labels, close);
}

static char *want_small(void)
{
    struct buf want = BUF_INIT(1U << 20);
    buf_add_str(&want,
                "# HELP belay_build_info Version of belay.\n"
                "# TYPE belay_build_info gauge\n"
                "belay_build_info{version=\"" BELAY_VERSION "\"} 1\n"
                "# HELP flux_helm_operator_release_count HelmReleases that are watched.\n"
                "# TYPE flux_helm_operator_release_count gauge\n"
                "flux_helm_operator_release_count 2\n"
                "# HELP flux_helm_operator_release_queue_length_count HelmReleases that wait for a "
                "worker.\n"
                "# TYPE flux_helm_operator_release_queue_length_count gauge\n"
                "flux_helm_operator_release_queue_length_count 1\n"
                "# HELP flux_helm_operator_release_condition_info Conditions: -1 False, 0 Unknown, "
                "1 True.\n"
                "# TYPE flux_helm_operator_release_condition_info gauge\n"
                "flux_helm_operator_release_condition_info{target_namespace=\"apps\",release_name="
                "\"web\",condition=\"Released\"} 1\n"
                "# HELP flux_helm_operator_release_action_duration_seconds Duration of actions.\n"
                "# TYPE flux_helm_operator_release_action_duration_seconds histogram\n");
    want_histogram(
        &want, "flux_helm_operator_release_action_duration_seconds",
        "action=\"sync\",success=\"true\",target_namespace=\"apps\",release_name=\"web\"", 10,
        "6.500000");
    buf_add_str(&want, "# HELP flux_helm_operator_release_duration_seconds Deprecated: duration of "
                       "syncs.\n"
                       "# TYPE flux_helm_operator_release_duration_seconds histogram\n");
    want_histogram(&want, "flux_helm_operator_release_duration_seconds",
                   "success=\"true\",namespace=\"apps\",release_name=\"web\"", 10, "6.500000");
#define COUNTER(id, name, help)                                                                    \
    buf_addf(&want, "# HELP %s %s\n# TYPE %s counter\n%s %d\n", name, help, name, name,            \
             METRICS_##id == METRICS_LOCK_ACQUIRED ? 3 : 0);
#include "metrics/counters.def"
#undef COUNTER
    buf_add_str(&want, "# HELP belay_lock_held_seconds How long locks were held.\n"
                       "# TYPE belay_lock_held_seconds histogram\n");
    want_histogram(&want, "belay_lock_held_seconds", "", 1, "0.250000");
    return buf_take(&want);
}

static void a_small_scenario_word_for_word(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    metrics_set_release_count(m, 2);
    metrics_set_queue_length(m, 1);
    metrics_condition(m, "apps", "web", "Released", -1);
    metrics_condition(m, "apps", "web", "Released", 1);
    metrics_action(m, "sync", true, "apps", "web", 6.5);
    metrics_add(m, METRICS_LOCK_ACQUIRED, 2);
    metrics_add(m, METRICS_LOCK_ACQUIRED, 1);
    metrics_lock_held(m, 0.25);
    _cleanup_(free_cstr)
    char *text = expose(m);
    char *process = strstr(text, "# HELP process_");
    assert_non_null(process);
    *process = '\0'; /* what follows is another number each time */
    _cleanup_(free_cstr)
    char *want = want_small();
    assert_string_equal(text, want);
    assert_int_equal(metrics_get(m, METRICS_LOCK_ACQUIRED), 3);
    metrics_free(m);
}

static void the_process_is_in_it(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    _cleanup_(free_cstr)
    char *text = expose(m);
    static const char *const names[] = {
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_start_time_seconds",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        _cleanup_(free_cstr)
        char *line = xasprintf("\n%s ", names[i]);
        assert_has(text, line);
        double value = strtod(strstr(text, line) + strlen(line), NULL);
        if (!(value >= 0) || (i != 0 && value < 1)) {
            fail_msg("%s %g", names[i], value);
        }
    }
    /* Within this decade or the next ones: seconds since 1970, not since boot. */
    double start = strtod(strstr(text, "\nprocess_start_time_seconds ") + 28, NULL);
    assert_true(start > 1.5e9 && start < 1e10);
    metrics_free(m);
}

static void labels_are_escaped(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    metrics_condition(m, "a\\b", "c\"d\ne\xc3\xa4", "Ready", 0);
    _cleanup_(free_cstr)
    char *text = expose(m);
    assert_has(text, "{target_namespace=\"a\\\\b\",release_name=\"c\\\"d\\ne\xc3\xa4\",condition="
                     "\"Ready\"} 0\n");
    metrics_condition_gone(m, "a\\b", "c\"d\ne\xc3\xa4", NULL);
    _cleanup_(free_cstr)
    char *after = expose(m);
    assert_lacks(after, "condition=");
    metrics_free(m);
}

/* helm-operator showed the value of the last condition for all of them. */
static void each_condition_has_its_own_value(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    metrics_condition(m, "a", "x", "Released", -1);
    metrics_condition(m, "a", "x", "Reconciling", 1);
    metrics_condition(m, "a", "x", "Ready", 0);
    _cleanup_(free_cstr)
    char *text = expose(m);
    assert_has(text, "release_name=\"x\",condition=\"Released\"} -1\n");
    assert_has(text, "release_name=\"x\",condition=\"Reconciling\"} 1\n");
    assert_has(text, "release_name=\"x\",condition=\"Ready\"} 0\n");
    metrics_free(m);
}

/* A spec that is refused has a name too: one object must not cost the others their series. */
static void a_name_of_any_length_and_bytes_is_one_label(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    char *long_name = xmalloc(20001);
    memset(long_name, '"', 20000);
    long_name[20000] = '\0';
    metrics_condition(m, long_name, "a\x01\xff", "Released", 1);
    metrics_action(m, "sync", false, long_name, long_name, 1);
    _cleanup_(free_cstr)
    char *text = expose(m);
    assert_has(text, "\\\"...\",release_name=\"a??\",condition=\"Released\"} 1\n");
    assert_has(text, "\\\"...\",release_name=\"\\\"");
    metrics_condition_gone(m, long_name, long_name, NULL);
    metrics_condition_gone(m, long_name, "a\x01\xff", NULL);
    _cleanup_(free_cstr)
    char *after = expose(m);
    assert_lacks(after, "release_name=");
    metrics_free(m);
    free(long_name);
}

static void buckets_count_up_and_their_edges_belong_to_them(void **state)
{
    (void)state;
    static const double seconds[] = {0, 1, 1.001, 5, 1800, 1800.5, 90000};
    struct metrics *m = metrics_new();
    for (size_t i = 0; i < sizeof(seconds) / sizeof(seconds[0]); i++) {
        metrics_lock_held(m, seconds[i]);
    }
    _cleanup_(free_cstr)
    char *text = expose(m);
    static const char *const rows[] = {
        "_bucket{le=\"1\"} 2\n",    "_bucket{le=\"5\"} 4\n",
        "_bucket{le=\"10\"} 4\n",   "_bucket{le=\"600\"} 4\n",
        "_bucket{le=\"1800\"} 5\n", "_bucket{le=\"+Inf\"} 7\n",
        "_sum 93607.501000\n",      "_count 7\n",
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_(free_cstr)
        char *line = xasprintf("belay_lock_held_seconds%s", rows[i]);
        assert_has(text, line);
    }
    metrics_free(m);
}

static void only_a_sync_feeds_the_deprecated_family(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    metrics_action(m, "upgrade", false, "apps", "web", 2);
    _cleanup_(free_cstr)
    char *text = expose(m);
    assert_has(text, "{action=\"upgrade\",success=\"false\",");
    assert_lacks(text, "flux_helm_operator_release_duration_seconds_count");
    metrics_free(m);
}

static void the_series_of_a_gone_release_vanish_and_no_others(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    /* Names that begin or end like the one that goes. */
    static const char *const releases[][2] = {{"apps", "web"},
                                              {"apps", "web2"},
                                              {"apps", "my-web"},
                                              {"my-apps", "web"},
                                              {"other", "web"}};
    for (size_t i = 0; i < 5; i++) {
        metrics_condition(m, releases[i][0], releases[i][1], "Released", 1);
        metrics_condition(m, releases[i][0], releases[i][1], "Ready", 1);
        metrics_action(m, "sync", true, releases[i][0], releases[i][1], 1);
        metrics_action(m, "upgrade", false, releases[i][0], releases[i][1], 1);
    }
    metrics_condition_gone(m, "apps", "web2", "Ready"); /* one condition only */
    metrics_condition_gone(m, "apps", "web", NULL);
    _cleanup_(free_cstr)
    char *text = expose(m);
    assert_lacks(text, "{target_namespace=\"apps\",release_name=\"web\"");
    assert_lacks(text, ",target_namespace=\"apps\",release_name=\"web\"");
    assert_lacks(text, ",namespace=\"apps\",release_name=\"web\"");
    assert_lacks(text, "{target_namespace=\"apps\",release_name=\"web2\",condition=\"Ready\"}");
    assert_has(text,
               "{target_namespace=\"apps\",release_name=\"web2\",condition=\"Released\"} 1\n");
    for (size_t i = 1; i < 5; i++) {
        _cleanup_(free_cstr)
        char *action = xasprintf("_count{action=\"upgrade\",success=\"false\",target_namespace="
                                 "\"%s\",release_name=\"%s\"} 1\n",
                                 releases[i][0], releases[i][1]);
        assert_has(text, action);
        _cleanup_(free_cstr)
        char *old = xasprintf("_count{success=\"true\",namespace=\"%s\",release_name=\"%s\"} 1\n",
                              releases[i][0], releases[i][1]);
        assert_has(text, old);
    }
    metrics_free(m);
}

/* ---- every line ---- */

/* Each sample belongs to the family that # HELP and # TYPE named just before, and no family comes
 * twice. */
static void every_line_keeps_to_the_format(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    metrics_condition(m, "a", "b c", "Released", 0);
    metrics_action(m, "install", true, "a", "b c", 3);
    metrics_lock_held(m, 3);
    _cleanup_(free_cstr)
    char *text = expose(m);
    char families[64][128];
    size_t count = 0;
    bool typed = false;
    for (char *line = text, *next; *line != '\0'; line = next) {
        next = strchr(line, '\n');
        assert_non_null(next);
        *next++ = '\0';
        if (text_has_prefix(line, "# HELP ")) {
            assert_true(count < 64 && sscanf(line, "# HELP %127s ", families[count]) == 1);
            for (size_t i = 0; i < count; i++) {
                assert_string_not_equal(families[i], families[count]);
            }
            count++;
            typed = false;
            continue;
        }
        assert_true(count > 0);
        const char *family = families[count - 1];
        if (line[0] == '#') {
            char name[128], type[16];
            assert_int_equal(sscanf(line, "# TYPE %127s %15s", name, type), 2);
            assert_string_equal(name, family);
            typed = true;
            continue;
        }
        if (!typed || !text_has_prefix(line, family) || strrchr(line, ' ') == NULL) {
            fail_msg("%s", line);
        }
        char *end = NULL;
        (void)strtod(strrchr(line, ' ') + 1, &end);
        assert_int_equal(*end, '\0');
    }
    assert_true(count > 10);
    metrics_free(m);
}

/* Run from the root of the tree, as make does. */
static void every_family_is_on_the_page(void **state)
{
    (void)state;
    struct buf page = BUF_INIT(1U << 20);
    FILE *f = fopen("docs/metrics.md", "re");
    assert_non_null(f);
    char piece[4096];
    for (size_t n; (n = fread(piece, 1, sizeof(piece), f)) > 0;) {
        buf_add(&page, piece, n);
    }
    (void)fclose(f);
    struct metrics *m = metrics_new();
    _cleanup_(free_cstr)
    char *text = expose(m);
    size_t count = 0;
    for (const char *p = text; (p = strstr(p, "# HELP ")) != NULL; count++) {
        p += 7;
        _cleanup_(free_cstr)
        char *name = xasprintf("`%.*s`", (int)strcspn(p, " "), p);
        assert_has(buf_str(&page), name);
    }
    assert_true(count > 15);
    buf_release(&page);
    metrics_free(m);
}

static void *adder_main(void *arg)
{
    struct metrics *m = arg;
    for (int i = 0; i < 2000; i++) {
        metrics_add(m, METRICS_HELM_RUNS, 1);
        metrics_action(m, "sync", true, "a", i % 2 == 0 ? "x" : "y", 1);
        metrics_condition(m, "a", "x", "Ready", i % 3 - 1);
        if (i % 100 == 0) {
            metrics_condition_gone(m, "a", "z", NULL);
            struct buf out = BUF_INIT(1U << 20);
            metrics_write(m, &out);
            must(!out.overflow);
            buf_release(&out);
        }
    }
    return NULL;
}

static void any_thread_may_count(void **state)
{
    (void)state;
    struct metrics *m = metrics_new();
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, adder_main, m), 0);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(metrics_get(m, METRICS_HELM_RUNS), 6000);
    _cleanup_(free_cstr)
    char *text = expose(m);
    assert_has(text, "flux_helm_operator_release_duration_seconds_count{success=\"true\",namespace="
                     "\"a\",release_name=\"x\"} 3000\n");
    metrics_free(m);
    metrics_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_scenario_word_for_word),
        cmocka_unit_test(the_process_is_in_it),
        cmocka_unit_test(labels_are_escaped),
        cmocka_unit_test(each_condition_has_its_own_value),
        cmocka_unit_test(a_name_of_any_length_and_bytes_is_one_label),
        cmocka_unit_test(buckets_count_up_and_their_edges_belong_to_them),
        cmocka_unit_test(only_a_sync_feeds_the_deprecated_family),
        cmocka_unit_test(the_series_of_a_gone_release_vanish_and_no_others),
        cmocka_unit_test(every_line_keeps_to_the_format),
        cmocka_unit_test(every_family_is_on_the_page),
        cmocka_unit_test(any_thread_may_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
