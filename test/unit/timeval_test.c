#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "timeval/timeval.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define T0_S     INT64_C(1796126401) /* 2026-12-01T12:00:01Z */
#define T0_NS    (T0_S * NS_PER_SEC)

static void sums_saturate_instead_of_wrapping(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t ns, ms, want;
    } rows[] = {
        {"a plain sum", 5, 2, 5 + 2 * NS_PER_MS},
        {"a negative duration", 0, -3, -3 * NS_PER_MS},
        {"never stays never", INT64_MAX, -1, INT64_MAX},
        {"never stays never, forwards", INT64_MAX, 1, INT64_MAX},
        {"a duration that is too long is never", 1, INT64_MAX, INT64_MAX},
        {"the sum is too large", INT64_MAX - 1, 1, INT64_MAX},
        {"the sum is too small", INT64_MIN + 1, -1, INT64_MIN},
        {"a duration that is too negative", -1, INT64_MIN, INT64_MIN},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].name);
        assert_int_equal(mono_add_ms((struct mono){rows[i].ns}, rows[i].ms).ns, rows[i].want);
    }
    assert_int_equal(ns_add_ms(T0_NS, 1500), T0_NS + 1500 * NS_PER_MS);
    assert_int_equal(ns_add_ms(INT64_MAX - 5, 1), INT64_MAX);
    assert_int_equal(ns_add_ms(INT64_MIN + 5, -1), INT64_MIN);
}

static void differences_round_down_and_saturate(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t later, earlier, want;
    } rows[] = {
        {"whole", 7 * NS_PER_MS, 2 * NS_PER_MS, 5},
        {"just below", 7 * NS_PER_MS - 1, 2 * NS_PER_MS, 4},
        {"a nanosecond in the past is a whole ms", 0, 1, -1},
        {"from never", INT64_MAX, 0, INT64_MAX},
        {"from never to never", INT64_MAX, INT64_MAX, INT64_MAX},
        {"too far apart", INT64_MAX - 1, INT64_MIN, INT64_MAX},
        {"too far apart, backwards", INT64_MIN, 1, INT64_MIN},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].name);
        struct mono later = {rows[i].later};
        struct mono earlier = {rows[i].earlier};
        assert_int_equal(mono_diff_ms(later, earlier), rows[i].want);
    }
}

static void the_earlier_of_two_instants_is_found(void **state)
{
    (void)state;
    struct mono a = {1};
    struct mono b = {2};
    assert_true(mono_before(a, b));
    assert_false(mono_before(b, a));
    assert_false(mono_before(a, a));
    assert_int_equal(mono_min(a, b).ns, 1);
    assert_int_equal(mono_min(MONO_NEVER, b).ns, 2);
}

static const struct {
    const char *text;
    bool ok;
    int64_t ns;
} rfc3339_rows[] = {
    {"1970-01-01T00:00:00Z", true, 0},
    {"2026-12-01T12:00:01Z", true, T0_NS},
    {"2026-12-01t12:00:01z", true, T0_NS},
    {"2026-12-01T12:00:01.25Z", true, T0_NS + 250 * NS_PER_MS},
    {"2026-12-01T12:00:01.123456789Z", true, T0_NS + 123456789},
    {"2026-12-01T12:00:01.1234567899Z", true, T0_NS + 123456789},
    {"2026-12-01T13:30:01+01:30", true, T0_NS},
    {"2026-12-01T11:00:01-01:00", true, T0_NS},
    {"2026-12-01T12:00:01-00:00", true, T0_NS},
    {"2024-02-29T00:00:00Z", true, INT64_C(1709164800) * NS_PER_SEC},
    {"2000-02-29T00:00:00Z", true, INT64_C(951782400) * NS_PER_SEC},
    {"2016-12-31T23:59:60Z", true, INT64_C(1483228799) * NS_PER_SEC},
    {"1969-12-31T23:59:59.5Z", true, -500 * NS_PER_MS},
    {"2262-04-11T23:47:16Z", true, INT64_C(9223372036) * NS_PER_SEC},
    {"2262-04-11T23:47:17Z", false, 0},
    {"0001-01-01T00:00:00Z", false, 0},
    {"9999-12-31T23:59:59Z", false, 0},
    {"0000-00-00T00:00:00Z", false, 0},
    {"2023-02-29T00:00:00Z", false, 0},
    {"1900-02-29T00:00:00Z", false, 0},
    {"2026-13-01T00:00:00Z", false, 0},
    {"2026-12-32T00:00:00Z", false, 0},
    {"2026-12-00T00:00:00Z", false, 0},
    {"2026-12-01T24:00:00Z", false, 0},
    {"2026-12-01T12:60:00Z", false, 0},
    {"2026-12-01T12:00:61Z", false, 0},
    {"2026-12-01T12:00:01", false, 0},
    {"2026-12-01T12:00:01.Z", false, 0},
    {"2026-12-01T12:00:01Zx", false, 0},
    {"2026-12-01T12:00:01 Z", false, 0},
    {"2026-12-01 12:00:01Z", false, 0},
    {"2026-12-01T12:00:01+0100", false, 0},
    {"2026-12-01T12:00:01+24:00", false, 0},
    {"2026-12-01T12:00:01+01:60", false, 0},
    {" 2026-12-01T12:00:01Z", false, 0},
    {"2026-12-01", false, 0},
    {"26-12-01T12:00:01Z", false, 0},
    {"+026-12-01T12:00:01Z", false, 0},
    {"", false, 0},
    {"2", false, 0},
};

static void an_rfc_3339_time_is_read_and_anything_else_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(rfc3339_rows); i++) {
        print_message("  %s\n", rfc3339_rows[i].text);
        int64_t ns = 42;
        assert_int_equal(rfc3339_parse(rfc3339_rows[i].text, &ns), rfc3339_rows[i].ok);
        assert_int_equal(ns, rfc3339_rows[i].ok ? rfc3339_rows[i].ns : 42);
    }
}

static void a_time_is_written_as_kubernetes_writes_it(void **state)
{
    (void)state;
    static const struct {
        int64_t ns;
        const char *seconds, *micro;
    } rows[] = {
        {0, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"},
        {T0_NS + 250 * NS_PER_MS, "2026-12-01T12:00:01Z", "2026-12-01T12:00:01.250000Z"},
        {T0_NS + 999999999, "2026-12-01T12:00:01Z", "2026-12-01T12:00:01.999999Z"},
        {-1, "1969-12-31T23:59:59Z", "1969-12-31T23:59:59.999999Z"},
        {INT64_MAX, "2262-04-11T23:47:16Z", "2262-04-11T23:47:16.854775Z"},
        {INT64_MIN, "1677-09-21T00:12:43Z", "1677-09-21T00:12:43.145224Z"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char out[RFC3339_LEN];
        rfc3339_format(rows[i].ns, out);
        assert_string_equal(out, rows[i].seconds);
        rfc3339_format_micro(rows[i].ns, out);
        assert_string_equal(out, rows[i].micro);
    }
}

static void every_day_of_five_centuries_is_read_back(void **state)
{
    (void)state;
    char last[RFC3339_LEN] = "";
    for (int64_t day = -105000; day < 106000; day++) {
        int64_t ns = (day * 86400 + 86399) * NS_PER_SEC;
        char out[RFC3339_LEN];
        rfc3339_format(ns, out);
        int64_t back = 0;
        assert_true(rfc3339_parse(out, &back));
        assert_int_equal(back, ns);
        /* Years have four digits, so text order is time order. */
        assert_true(strcmp(last, out) < 0);
        memcpy(last, out, sizeof(last));
    }
}

static void an_http_date_is_read_and_anything_else_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        int64_t sec;
    } rows[] = {
        {"Tue, 01 Dec 2026 12:00:01 GMT", true, T0_S},
        {"Sun, 06 Nov 1994 08:49:37 GMT", true, 784111777},
        {"Thu, 01 Jan 1970 00:00:00 GMT", true, 0},
        {"Sat, 31 Dec 2016 23:59:60 GMT", true, 1483228799},
        {"Sunday, 06-Nov-94 08:49:37 GMT", false, 0},
        {"Sun Nov  6 08:49:37 1994", false, 0},
        {"Sun, 6 Nov 1994 08:49:37 GMT", false, 0},
        {"Sun, 06 Nov 1994 08:49:37 UTC", false, 0},
        {"Sun, 06 Nov 1994 08:49:37 GMT ", false, 0},
        {"Sun, 06 Nov 1994 08:49:37 +0000", false, 0},
        {"Sun, 31 Feb 1994 08:49:37 GMT", false, 0},
        {"Sun, 06 nov 1994 08:49:37 GMT", false, 0},
        {"Sun, 06 Nov 1994 24:00:00 GMT", false, 0},
        {"Sun, 06 Nov 9994 08:49:37 GMT", false, 0},
        {"Sun, 06 No", false, 0},
        {"", false, 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].text);
        int64_t ns = 42;
        assert_int_equal(httpdate_parse(rows[i].text, &ns), rows[i].ok);
        assert_int_equal(ns, rows[i].ok ? rows[i].sec * NS_PER_SEC : 42);
    }
}

static void a_duration_is_read_as_go_reads_it(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t ms;
    } rows[] = {
        {"0", 0},
        {"-0", 0},
        {"+0", 0},
        {"0s", 0},
        {"30s", 30000},
        {"1m30s", 90000},
        {"1h", 3600000},
        {"1h0m0s", 3600000},
        {"0h0m30s", 30000},
        {"24h0m0s", 86400000},
        {"1.5h", 5400000},
        {"-1.5h", -5400000},
        {"-.5s", -500},
        {"300ms", 300},
        {".5s", 500},
        {"1.s", 1000},
        {"+5s", 5000},
        {"-5s", -5000},
        {"2h45m0.5s", 9900500},
        {"30s1m", 90000},
        {"00001s", 1000},
        {"1999us", 1},
        {"1999\xC2\xB5s", 1},
        {"1999\xCE\xBCs", 1},
        {"999999ns", 0},
        {"-1ns", -1},
        {"-1.0001ms", -2},
        /* Go cuts the fraction's nanoseconds, it does not round them. */
        {"0.0009999999s", 0},
        {"0.1000000000000000000000000000001h", 360000},
        {"9223372036854775807ns", INT64_C(9223372036854)},
        {"9223372036.854775807s", INT64_C(9223372036854)},
        {"-9223372036854775808ns", INT64_C(-9223372036855)},
        {"2562047h47m16.854775807s", INT64_C(9223372036854)},
        {"0.00000000000000000000000000000000000000001s", 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].text);
        struct err err = ERR_INIT;
        int64_t ms = 42;
        assert_int_equal(duration_parse(rows[i].text, &ms, &err), ERR_NONE);
        assert_int_equal(ms, rows[i].ms);
        assert_int_equal(err.kind, ERR_NONE);
    }
}

static void what_go_refuses_as_a_duration_is_refused_with_advice(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "",
        "3",
        "-",
        "+",
        "s",
        ".",
        "-.",
        ".s",
        "+.s",
        "5",
        "-1.5",
        "5x",
        "1x",
        "1d",
        "1 s",
        " 1s",
        "1s ",
        "1S",
        "--1s",
        "1m-30s",
        "1,5h",
        "1e3s",
        "0x1s",
        "00",
        "1m30",
        "1..5s",
        "9223372036854775808ns",
        "18446744073.9s",
        "3000000h",
        "9223372036854775.808us",
        "9223372036854ms775us808ns",
        "-9223372036854775809ns",
        "99999999999999999999s",
        "9223372036854775808ns9223372036854775808ns",
        "-9223372036854775808ns9223372036854775808ns",
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i]);
        struct err err = ERR_INIT;
        int64_t ms = 42;
        assert_int_equal(duration_parse(rows[i], &ms, &err), ERR_INVALID);
        assert_int_equal(ms, 42);
        assert_int_equal(err.kind, ERR_INVALID);
    }
    struct err err = ERR_INIT;
    int64_t ms = 42;
    assert_int_equal(duration_parse("5x", &ms, &err), ERR_INVALID);
    assert_string_equal(err.msg, "\"5x\" is no duration: use Go's form, such as 30s, 1m30s or 1h");
    /* A long text is cut between characters. */
    char many[201] = "x";
    for (size_t i = 1; i + 2 < sizeof(many); i += 2) {
        memcpy(many + i, "\xC3\xA9", 3);
    }
    assert_int_equal(duration_parse(many, &ms, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "\xC3\xA9...\" is no duration"));
}

static void a_duration_is_written_shortest_and_read_back(void **state)
{
    (void)state;
    static const struct {
        int64_t ms;
        const char *text;
    } rows[] = {
        {0, "0s"},          {1, "1ms"},        {250, "250ms"},
        {1000, "1s"},       {1500, "1.5s"},    {10000, "10s"},
        {30000, "30s"},     {60000, "1m"},     {60250, "1m0.25s"},
        {90000, "1m30s"},   {3600000, "1h"},   {3601000, "1h1s"},
        {5400000, "1h30m"}, {86400000, "24h"}, {-90000, "-1m30s"},
        {-1, "-1ms"},       {10010, "10.01s"}, {INT64_C(9223372036854), "2562047h47m16.854s"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char out[32];
        duration_format(rows[i].ms, out);
        assert_string_equal(out, rows[i].text);
        struct err err = ERR_INIT;
        int64_t back = 0;
        assert_int_equal(duration_parse(out, &back, &err), ERR_NONE);
        assert_int_equal(back, rows[i].ms);
    }
    char out[32];
    duration_format(INT64_MAX, out);
    assert_string_equal(out, "2562047788015h12m55.807s");
    duration_format(INT64_MIN, out);
    assert_string_equal(out, "-2562047788015h12m55.808s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_saturate_instead_of_wrapping),
        cmocka_unit_test(differences_round_down_and_saturate),
        cmocka_unit_test(the_earlier_of_two_instants_is_found),
        cmocka_unit_test(an_rfc_3339_time_is_read_and_anything_else_refused),
        cmocka_unit_test(a_time_is_written_as_kubernetes_writes_it),
        cmocka_unit_test(every_day_of_five_centuries_is_read_back),
        cmocka_unit_test(an_http_date_is_read_and_anything_else_refused),
        cmocka_unit_test(a_duration_is_read_as_go_reads_it),
        cmocka_unit_test(what_go_refuses_as_a_duration_is_refused_with_advice),
        cmocka_unit_test(a_duration_is_written_shortest_and_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
