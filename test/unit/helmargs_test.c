#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "helmargs/helmargs.h"

static struct hr_spec spec_plain(void)
{
    return (struct hr_spec){
        .release_name = (char *)"web",
        .target_ns = (char *)"shop",
        .timeout_s = 300,
        .reset_values = true,
        .max_history = 10,
        .rollback = {.timeout_s = 301},
        .test = {.timeout_s = 302},
    };
}

static struct hr_spec spec_full(void)
{
    struct hr_spec s = spec_plain();
    s.wait = s.force_upgrade = s.skip_crds = s.disable_openapi_validation = true;
    s.reset_values = false;
    s.max_history = 0;
    s.rollback.wait = s.rollback.recreate = s.rollback.disable_hooks = s.rollback.force = true;
    return s;
}

static char *line_of(const struct helmargs_options *o)
{
    struct helmargs a;
    helmargs_build(o, &a);
    struct buf b = BUF_INIT(4096);
    for (size_t i = 0; i < a.count; i++) {
        buf_addf(&b, "%s%s", i == 0 ? "" : "|", a.argv[i]);
    }
    assert_null(a.argv[a.count]);
    helmargs_release(&a);
    return buf_take(&b);
}

static const struct {
    const char *name;
    int major;
    bool full;
    struct helmargs_options o;
    const char *want; /* without "/bin/helm|" */
} rows[] = {
    {"v3 upgrade, defaults",
     3,
     false,
     {.verb = HELM_UPGRADE_INSTALL},
     "upgrade|--install|--namespace|shop|-f|-|--timeout|300s|--reset-values|--history-max|10|--|"
     "web|/c.tgz"},
    {"v4 upgrade, defaults",
     4,
     false,
     {.verb = HELM_UPGRADE_INSTALL},
     "upgrade|--install|--namespace|shop|-f|-|--timeout|300s|--server-side=false|--reset-values|--"
     "history-max|10|--|web|/c.tgz"},
    {"v3 upgrade, everything",
     3,
     true,
     {.verb = HELM_UPGRADE_INSTALL, .description = "belay x", .no_hooks = true},
     "upgrade|--install|--namespace|shop|-f|-|--timeout|300s|--wait|--force|--reuse-values|--"
     "history-max|0|--skip-crds|"
     "--description|belay x|--no-hooks|--|web|/c.tgz"},
    {"v4 upgrade, everything",
     4,
     true,
     {.verb = HELM_UPGRADE_INSTALL, .description = "belay x", .no_hooks = true},
     "upgrade|--install|--namespace|shop|-f|-|--timeout|300s|--wait=legacy|--server-side=false|--"
     "force-replace|"
     "--reuse-values|--history-max|0|--skip-crds|--description|belay x|--no-hooks|--|web|/c.tgz"},
    {"v3 first install: no force, no validation",
     3,
     true,
     {.verb = HELM_UPGRADE_INSTALL, .first_install = true},
     "upgrade|--install|--namespace|shop|-f|-|--timeout|300s|--wait|--reuse-values|--history-max|0|"
     "--skip-crds|"
     "--disable-openapi-validation|--|web|/c.tgz"},
    {"v3 rollback to the one before",
     3,
     false,
     {.verb = HELM_ROLLBACK},
     "rollback|--namespace|shop|--timeout|301s|--history-max|10|--|web"},
    {"v3 rollback, everything",
     3,
     true,
     {.verb = HELM_ROLLBACK, .revision = 7},
     "rollback|--namespace|shop|--timeout|301s|--wait|--history-max|0|--no-hooks|--recreate-pods|--"
     "|web|7"},
    {"v4 rollback has no --recreate-pods",
     4,
     true,
     {.verb = HELM_ROLLBACK, .revision = 7},
     "rollback|--namespace|shop|--timeout|301s|--wait=legacy|--server-side=false|--history-max|0|--"
     "no-hooks|--|web|7"},
    {"uninstall",
     3,
     true,
     {.verb = HELM_UNINSTALL},
     "uninstall|--namespace|shop|--timeout|300s|--|web"},
    {"uninstall without hooks, history kept",
     4,
     false,
     {.verb = HELM_UNINSTALL, .no_hooks = true, .keep_history = true},
     "uninstall|--namespace|shop|--timeout|300s|--no-hooks|--keep-history|--|web"},
    {"test", 4, true, {.verb = HELM_TEST}, "test|--namespace|shop|--timeout|302s|--|web"},
};

static void each_verb_gives_the_command_line_of_its_major(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hr_spec spec = rows[i].full ? spec_full() : spec_plain();
        struct helmargs_options o = rows[i].o;
        o.helm_major = rows[i].major;
        o.helm_path = "/bin/helm";
        o.chart_path = "/c.tgz";
        o.spec = &spec;
        _cleanup_(free_cstr)
        char *got = line_of(&o);
        _cleanup_(free_cstr)
        char *want = xasprintf("/bin/helm|%s", rows[i].want);
        if (strcmp(got, want) != 0) {
            fail_msg("%s:\n got %s\nwant %s", rows[i].name, got, want);
        }
    }
}

static const struct {
    const char *name;
    int64_t timeout_s, max_history;
    const char *want_timeout, *want_history;
} number_rows[] = {
    {"nothing means the default", 0, -1, "|--timeout|300s|", "|--history-max|10|"},
    {"negative means the default", -5, -9, "|--timeout|300s|", "|--history-max|10|"},
    {"the largest Go duration", INT64_MAX, INT64_MAX, "|--timeout|9223372036s|",
     "|--history-max|0|"},
    {"as given", 1, 1, "|--timeout|1s|", "|--history-max|1|"},
};

static void numbers_stay_within_what_helm_takes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(number_rows) / sizeof(number_rows[0]); i++) {
        struct hr_spec spec = spec_plain();
        spec.timeout_s = number_rows[i].timeout_s;
        spec.max_history = number_rows[i].max_history;
        struct helmargs_options o = {.helm_major = 3,
                                     .verb = HELM_UPGRADE_INSTALL,
                                     .spec = &spec,
                                     .helm_path = "/bin/helm",
                                     .chart_path = "/c.tgz"};
        _cleanup_(free_cstr)
        char *got = line_of(&o);
        if (strstr(got, number_rows[i].want_timeout) == NULL ||
            strstr(got, number_rows[i].want_history) == NULL) {
            fail_msg("%s: got %s", number_rows[i].name, got);
        }
    }
}

static void what_could_read_as_a_flag_stands_behind_the_double_dash(void **state)
{
    (void)state;
    struct hr_spec spec = spec_plain();
    spec.release_name = (char *)"--post-renderer=/bin/sh";
    struct helmargs_options o = {.helm_major = 4,
                                 .verb = HELM_UPGRADE_INSTALL,
                                 .spec = &spec,
                                 .helm_path = "/bin/helm",
                                 .chart_path = "/-c.tgz"};
    struct helmargs a;
    helmargs_build(&o, &a);
    assert_true(a.count > 3);
    assert_string_equal(a.argv[a.count - 3], "--");
    assert_string_equal(a.argv[a.count - 2], "--post-renderer=/bin/sh");
    assert_string_equal(a.argv[a.count - 1], "/-c.tgz");
    helmargs_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_verb_gives_the_command_line_of_its_major),
        cmocka_unit_test(numbers_stay_within_what_helm_takes),
        cmocka_unit_test(what_could_read_as_a_flag_stands_behind_the_double_dash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
