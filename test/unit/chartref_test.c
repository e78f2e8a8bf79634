#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "chartref/chartref.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* want: '1' matches, '0' does not, 'E' the range is none. Every row was given to
 * Masterminds/semver 3.5.0 as well. */
static const struct {
    const char *range;
    const char *version;
    char want;
} range_rows[] = {
    {"1.2.3", "1.2.3", '1'},
    {"1.2.3", "v1.2.3", '1'},
    {"v1.2.3", "1.2.3", '1'},
    {"1.2.3", "1.2.3+build", '1'},
    {"1.2.3", "1.2.4", '0'},
    {"=1.2.3", "1.2.3", '1'},
    {"1.2", "1.2.9", '1'},
    {"1.2", "1.3.0", '0'},
    {"1", "1.9.9", '1'},
    {"1", "2.0.0", '0'},
    {"1.x", "1.9.9", '1'},
    {"1.2.X", "1.2.0", '1'},
    {"*", "0.0.0", '1'},
    {"*", "9.9.9", '1'},
    {"*", "1.0.0-rc1", '0'},
    {"*-0", "1.0.0-rc1", '1'},
    {"x.5", "1.2.3", '1'},
    {"^1.2", "1.9.0", '1'},
    {"^1.2", "1.1.9", '0'},
    {"^1.2", "2.0.0", '0'},
    {"^0.1.0", "0.1.1", '1'},
    {"^0.1.0", "0.2.0", '0'},
    {"^0.1.0", "0.2.0-rc1", '0'},
    {"^0.1.0-0", "0.1.1-rc1", '1'},
    {"^0.0.3", "0.0.3", '1'},
    {"^0.0.3", "0.0.4", '0'},
    {"^0.0", "0.0.9", '1'},
    {"^0.0", "0.1.0", '0'},
    {"^0", "0.9.9", '1'},
    {"^0", "1.0.0", '0'},
    {"^*", "1.0.0", '0'},
    {"^*", "0.0.0", '1'},
    {"^1.0.0-rc1", "1.0.0-rc2", '1'},
    {"^1.0.0", "1.1.0-rc1", '0'},
    {"~1.2.3", "1.2.9", '1'},
    {"~1.2.3", "1.2.2", '0'},
    {"~1.2.3", "1.3.0", '0'},
    {"~1", "1.9.0", '1'},
    {"~>1.2", "1.2.7", '1'},
    {"~0.0.0", "7.0.0", '1'},
    {"~0.0", "0.1.0", '0'},
    {">1", "1.0.1", '0'},
    {">1", "2.0.0", '1'},
    {">1.2", "1.2.9", '0'},
    {">1.2", "1.3.0", '1'},
    {">1.2.3", "1.2.4", '1'},
    {">0.0.0-0", "0.0.0", '1'},
    {">0.0.0-0", "1.0.0-rc1", '1'},
    {"<1.2", "1.2.0", '0'},
    {"<1.2", "1.1.9", '1'},
    {"<2", "2.0.0-rc1", '0'},
    {"<2.0.0-0", "1.9.9", '1'},
    {"<=1", "1.9.9", '1'},
    {"<=1", "2.0.0", '0'},
    {"<=1.2", "1.2.9", '1'},
    {"<=*", "0.0.9", '1'},
    {"<=*", "0.1.0", '0'},
    {"=<1.2.3", "1.2.3", '1'},
    {"=>1.2.3", "1.2.3", '1'},
    {"!=1", "1.2.3", '0'},
    {"!=1", "2.0.0", '1'},
    {"!=1.2", "1.2.9", '0'},
    {"!=1.2", "1.3.0", '1'},
    {"!=1.2-rc1", "1.2.0-rc2", '1'},
    {"!=1.2.3", "1.2.3", '0'},
    {"!=*", "0.0.0", '0'},
    {"!=*", "0.0.1", '1'},
    {">=1.0 <2.0", "1.5.0", '1'},
    {">=1.0, <2.0", "2.0.0", '0'},
    {">=1.0,<2.0", "1.0.0", '1'},
    {">= 1.0 , < 2.0", "1.0.0", '1'},
    {">=1.0 <2.0 || 3.x", "3.1.0", '1'},
    {">=1.0 <2.0 || 3.x", "2.1.0", '0'},
    {"1.0.0-rc1 || >=1", "1.5.0-rc1", '0'},
    {">=1 <2.0.0-0", "1.5.0-rc1", '1'},
    {"1.2 - 1.4", "1.4.9", '1'},
    {"1.2 - 1.4", "1.5.0", '0'},
    {"1.2.3 - 2", "2.9.9", '1'},
    {"1.2 - 1.4 || 2.0.0", "2.0.0", '1'},
    {"1||2 - 3", "1.5.0", '1'}, /* the library reads ">=1 || 2 <=3" */
    {"1||2 - 3", "9.0.0", '1'},
    {"01.02", "1.2.3", '1'},
    {"\t1.2\r\n", "1.2.3", '1'},
    {"1.2.3-rc.2", "1.2.3-rc.2", '1'},
    {">1.0.0-rc.2", "1.0.0-rc.10", '1'},
    {">1.0.0-99999999999999999999", "1.0.0-5", '0'},
    {"", "1.0.0", 'E'},
    {" ", "1.0.0", 'E'},
    {"latest", "1.0.0", 'E'},
    {"1.2.3.4", "1.0.0", 'E'},
    {"1.2.3 ||", "1.0.0", 'E'},
    {"|| 1", "1.0.0", 'E'},
    {"1 | 2", "1.0.0", 'E'},
    {"1|2", "1.0.0", 'E'},
    {"1,,2", "1.0.0", 'E'},
    {"1,", "1.0.0", 'E'},
    {">1<2", "1.0.0", 'E'},
    {"> =1", "1.0.0", 'E'},
    {"==1", "1.0.0", 'E'},
    {"<>1", "1.0.0", 'E'},
    {"1xx", "1.0.0", 'E'},
    {"V1", "1.0.0", 'E'},
    {"1.2.3-01", "1.0.0", 'E'},
    {"1.2.3-", "1.0.0", 'E'},
    {"^1 - 2", "1.0.0", 'E'},
    {"1 - 2 - 3", "1.0.0", 'E'},
    {"1 -2", "1.0.0", 'E'},
    {"18446744073709551616", "1.0.0", 'E'},
    {"18446744073709551615", "1.0.0", '0'},
};

static char range_result(const char *range, const char *version)
{
    struct semver v;
    assert_true(semver_parse(version, &v));
    struct semver_range *r = NULL;
    struct err err = ERR_INIT;
    if (semver_range_parse(range, &r, &err)) {
        assert_int_equal(err.kind, ERR_INVALID);
        assert_null(r);
        return 'E';
    }
    assert_int_equal(err.kind, ERR_NONE);
    char got = semver_range_matches(r, &v) ? '1' : '0';
    semver_range_free(r);
    return got;
}

static void range_means_what_helms_library_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(range_rows); i++) {
        char got = range_result(range_rows[i].range, range_rows[i].version);
        if (got != range_rows[i].want) {
            fail_msg("\"%s\" on %s: %c", range_rows[i].range, range_rows[i].version, got);
        }
    }
}

static char *repeated(const char *unit, size_t n)
{
    char *s = xcalloc(n, strlen(unit) + 1);
    for (size_t i = 0; i < n; i++) {
        memcpy(s + i * strlen(unit), unit, strlen(unit));
    }
    return s;
}

static void range_is_refused_beyond_512_bytes_or_32_groups(void **state)
{
    (void)state;
    static const struct {
        const char *unit;
        size_t n;
        const char *tail;
        char want;
    } rows[] = {
        {"1||", 31, "1.0.0", '1'}, {"1||", 32, "1.0.0", 'E'}, {" ", 511, "1", '1'},
        {" ", 512, "1", 'E'},      {"1 - 2 ", 80, "1", '1'},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *head = repeated(rows[i].unit, rows[i].n);
        char *range = xasprintf("%s%s", head, rows[i].tail);
        assert_int_equal(range_result(range, "1.0.0"), rows[i].want);
        free(range);
        free(head);
    }
}

static void range_error_quotes_the_text_and_says_what_is_legal(void **state)
{
    (void)state;
    struct semver_range *r = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(semver_range_parse("newest\x01!", &r, &err), ERR_INVALID);
    assert_string_equal(err.msg, "\"newest?!\" is no version and no version range");
    assert_non_null(strstr(err.hint, "^1.2"));
}

static void version_is_read_as_leniently_as_helm_does(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        struct semver want;
    } rows[] = {
        {"1.2.3", true, {1, 2, 3, "", ""}},
        {"v1.2", true, {1, 2, 0, "", ""}},
        {"1", true, {1, 0, 0, "", ""}},
        {"2021.01.05", true, {2021, 1, 5, "", ""}},
        {"1.2.3-rc.1+b.01", true, {1, 2, 3, "rc.1", "b.01"}},
        {"1-rc", true, {1, 0, 0, "rc", ""}},
        {"1.2.3---", true, {1, 2, 3, "--", ""}},
        {"18446744073709551615.0.0", true, {UINT64_MAX, 0, 0, "", ""}},
        {"18446744073709551616.0.0", false, {0}},
        {"", false, {0}},
        {"v", false, {0}},
        {"1.", false, {0}},
        {"1.2.3.4", false, {0}},
        {"1.2.3-01", false, {0}},
        {"1.2.3-", false, {0}},
        {"1.2.3+", false, {0}},
        {"1.2.3-a..b", false, {0}},
        {" 1.2.3", false, {0}},
        {"1.2.3 ", false, {0}},
        {"=1.2.3", false, {0}},
        {"latest", false, {0}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct semver v = {.major = 77};
        if (semver_parse(rows[i].text, &v) != rows[i].ok) {
            fail_msg("\"%s\"", rows[i].text);
        }
        if (!rows[i].ok) {
            assert_int_equal(v.major, 77);
            continue;
        }
        assert_int_equal(v.major, rows[i].want.major);
        assert_int_equal(v.minor, rows[i].want.minor);
        assert_int_equal(v.patch, rows[i].want.patch);
        assert_string_equal(v.pre, rows[i].want.pre);
        assert_string_equal(v.build, rows[i].want.build);
    }
    char *long_pre = repeated("a", 251);
    char *fits = xasprintf("1.0-%.252s", long_pre);
    char *over = xasprintf("1.0.0-%s", long_pre);
    struct semver v;
    assert_true(semver_parse(fits, &v));
    assert_int_equal(strlen(v.pre), 251);
    assert_false(semver_parse(over, &v));
    free(over);
    free(fits);
    free(long_pre);
}

static void versions_are_ordered_by_semver_precedence(void **state)
{
    (void)state;
    static const char *const ascending[] = {
        "0.0.0-0",    "0.0.0",        "0.9.9",         "1.0.0-1",
        "1.0.0-2",    "1.0.0-10",     "1.0.0--1",      "1.0.0-99999999999999999999",
        "1.0.0-A",    "1.0.0-alpha",  "1.0.0-alpha.1", "1.0.0-alpha.beta",
        "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1",
        "1.0.0",      "1.0.1",        "1.2.0",         "1.10.0",
        "2.0.0",
    };
    for (size_t i = 0; i < COUNT(ascending); i++) {
        for (size_t j = 0; j < COUNT(ascending); j++) {
            struct semver a;
            struct semver b;
            assert_true(semver_parse(ascending[i], &a));
            assert_true(semver_parse(ascending[j], &b));
            if (semver_compare(&a, &b) != (i > j) - (i < j)) {
                fail_msg("%s and %s", ascending[i], ascending[j]);
            }
        }
    }
    struct semver a;
    struct semver b;
    assert_true(semver_parse("1.0.0+a", &a));
    assert_true(semver_parse("1.0.0+b", &b));
    assert_int_equal(semver_compare(&a, &b), 0);
}

static void exact_is_a_whole_version_only(void **state)
{
    (void)state;
    static const char *const exact[] = {"1.2.3", "v1.2.3", "0.0.0", "1.2.3-rc.1", "1.2.3+b.1.2"};
    static const char *const other[] = {"1.2",    "1", "=1.2.3",    "1.2.x",
                                        "^1.2.3", "",  "1.2-a.b.c", "1.2.3.4"};
    for (size_t i = 0; i < COUNT(exact); i++) {
        assert_true(semver_is_exact(exact[i]));
    }
    for (size_t i = 0; i < COUNT(other); i++) {
        assert_false(semver_is_exact(other[i]));
    }
}

static void assert_text(const char *what, char *got, const char *want)
{
    if ((got == NULL) != (want == NULL) || (got != NULL && strcmp(got, want) != 0)) {
        fail_msg("%s: %s", what, got == NULL ? "NULL" : got);
    }
    free(got);
}

static void chart_url_is_joined_with_its_repository(void **state)
{
    (void)state;
    static const struct {
        const char *repository, *href, *want;
    } rows[] = {
        {"http://h/charts", "c-1.tgz", "http://h/charts/c-1.tgz"},
        {"http://h/charts/", "c-1.tgz", "http://h/charts/c-1.tgz"},
        {"http://h", "c-1.tgz", "http://h/c-1.tgz"},
        {"http://h:81/charts?token=abc", "c-1.tgz", "http://h:81/charts/c-1.tgz?token=abc"},
        {"http://h/charts/?token=abc", "c-1.tgz?x=1", "http://h/charts/c-1.tgz?token=abc"},
        {"http://h/charts/", "c-1.tgz?x=1#f", "http://h/charts/c-1.tgz?x=1"},
        {"http://u:p@h/charts", "c-1.tgz", "http://u:p@h/charts/c-1.tgz"},
        {"http://u:p@h/charts", "/c-1.tgz", "http://u:p@h/c-1.tgz"},
        {"http://u:p@h/charts?token=abc", "//other/c-1.tgz", "http://other/c-1.tgz"},
        {"http://u:p@h/charts?token=abc", "https://other/c-1.tgz?s=1", "https://other/c-1.tgz?s=1"},
        {"http://h/a/b", "../c-1.tgz", "http://h/a/c-1.tgz"},
        {"http://h/a/b", "../../../../c-1.tgz", "http://h/c-1.tgz"},
        {"http://h/a/b", "./x/./../c-1.tgz", "http://h/a/b/c-1.tgz"},
        {"http://h/a", "..", "http://h/"},
        {"http://h/a", "", "http://h/a/"},
        {"http://h/a", "my chart-1.tgz", "http://h/a/my%20chart-1.tgz"},
        {"http://h/a", "c%20d-1+b.tgz", "http://h/a/c%20d-1+b.tgz"},
        {"http://h/a", "50%.tgz", "http://h/a/50%25.tgz"},
        {"HTTPS://h/a", "c.tgz", "HTTPS://h/a/c.tgz"},
        {"http://[::1]:8080/a", "c.tgz", "http://[::1]:8080/a/c.tgz"},
        {"http://h/a", "http://x/my chart.tgz#f", "http://x/my%20chart.tgz"},
        {"http://h/a", "oci://x/c", NULL},
        {"http://h/a", "file:///etc/passwd", NULL},
        {"http://h/a", "a\nb.tgz", NULL},
        {"http://h/a", "http:///c.tgz", NULL},
        {"http://h/a", "//u@/c.tgz", NULL},
        {"oci://h/a", "c.tgz", NULL},
        {"ftp://h/a", "c.tgz", NULL},
        {"h/a", "c.tgz", NULL},
        {"http://h:0/a", "c.tgz", NULL},
        {"http://h:65536/a", "c.tgz", NULL},
        {"http://h:/a", "c.tgz", NULL},
        {"http://good\\@evil/a", "c.tgz", "http://good\\@evil/a/c.tgz"},
        {"http://good\\evil/a", "c.tgz", NULL},
        {"http://a b/", "c.tgz", NULL},
        {"", "c.tgz", NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_text(rows[i].href, chart_url_resolve(rows[i].repository, rows[i].href),
                    rows[i].want);
    }
    assert_text("index", chart_index_url("http://u@h/charts?t=1"),
                "http://u@h/charts/index.yaml?t=1");
    assert_text("index", chart_index_url("oci://h/charts"), NULL);
}

static void repository_has_one_normal_form(void **state)
{
    (void)state;
    static const struct {
        const char *url;
        bool with_query;
        const char *want;
    } rows[] = {
        {"http://h/charts", true, "http://h/charts/"},
        {"http://h/charts//", true, "http://h/charts/"},
        {"HTTP://u:p@H:80/Charts", true, "http://h/Charts/"},
        {"https://h:443", true, "https://h/"},
        {"http://h:443/", true, "http://h:443/"},
        {"http://h/c/?token=abc#f", true, "http://h/c/?token=abc"},
        {"http://h/c/?token=abc", false, "http://h/c/"},
        {"oci://h/c", false, NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_text(rows[i].url, chart_repository_normal(rows[i].url, rows[i].with_query),
                    rows[i].want);
    }
}

static void origin_is_scheme_host_and_port(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        bool same;
    } rows[] = {
        {"http://h/a", "http://u:p@H:80/b?c", true}, {"https://h", "https://h:443/x", true},
        {"http://h:81/", "http://h:81/x", true},     {"http://h", "https://h", false},
        {"http://h", "http://h:81", false},          {"http://h:81", "http://h:82", false},
        {"http://h", "http://h.evil", false},        {"http://h", "http://h@evil", false},
        {"http://h:443", "https://h:443", false},    {"oci://h", "oci://h", false},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (url_same_origin(rows[i].a, rows[i].b) != rows[i].same) {
            fail_msg("%s and %s", rows[i].a, rows[i].b);
        }
    }
}

static void userinfo_is_decoded_and_taken_off(void **state)
{
    (void)state;
    static const struct {
        const char *url, *userpwd, *rest;
    } rows[] = {
        {"http://u:p@h/c", "u:p", "http://h/c"},
        {"http://u@h/c?q", "u:", "http://h/c?q"},
        {"http://:p@h/c", ":p", "http://h/c"},
        {"http://@h/c", NULL, "http://h/c"},
        {"http://h/c#f", NULL, "http://h/c"},
        {"http://u%40x:p%3A%2f%zz%00@h/", "u@x:p:/%zz%00", "http://h/"},
        {"http://u:p:q@r@h/", "u:p:q@r", "http://h/"},
        {"no url", NULL, NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_text(rows[i].url, url_userpwd(rows[i].url), rows[i].userpwd);
        assert_text(rows[i].url, url_without_userinfo(rows[i].url), rows[i].rest);
    }
}

static void what_is_shown_holds_no_secret(void **state)
{
    (void)state;
    static const struct {
        const char *url, *want;
    } rows[] = {
        {"http://h/charts/", "http://h/charts/"},
        {"https://u:s3cr3t@host/", "https://host/"},
        {"http://h/c?token=s3cr3t&b=s3cr3t;s3cr3t", "http://h/c?token=***&b=***;***"},
        {"http://h/c?s3cr3t", "http://h/c?***"},
        {"http://h/c?s3cr3t==", "http://h/c?***"},
        {"http://h/c?", "http://h/c?"},
        {"http://h/c#s3cr3t", "http://h/c"},
        {"http://u:s3/cr3t@host/", "(a text with an @ that is no http(s) URL)"},
        {"u:s3cr3t@host", "(a text with an @ that is no http(s) URL)"},
        {"oci://h/c?s3cr3t", "oci://h/c"},
        {"charts.example.com", "charts.example.com"},
        {"bad\nline\xff", "bad\nline?"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_text(rows[i].url, url_redact(rows[i].url), rows[i].want);
    }
    char *path = repeated("a", 9000);
    char *url = xasprintf("http://h/%s", path);
    char *shown = url_redact(url);
    assert_true(strlen(shown) <= 300);
    free(shown);
    free(url);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(range_means_what_helms_library_says),
        cmocka_unit_test(range_is_refused_beyond_512_bytes_or_32_groups),
        cmocka_unit_test(range_error_quotes_the_text_and_says_what_is_legal),
        cmocka_unit_test(version_is_read_as_leniently_as_helm_does),
        cmocka_unit_test(versions_are_ordered_by_semver_precedence),
        cmocka_unit_test(exact_is_a_whole_version_only),
        cmocka_unit_test(chart_url_is_joined_with_its_repository),
        cmocka_unit_test(repository_has_one_normal_form),
        cmocka_unit_test(origin_is_scheme_host_and_port),
        cmocka_unit_test(userinfo_is_decoded_and_taken_off),
        cmocka_unit_test(what_is_shown_holds_no_secret),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
