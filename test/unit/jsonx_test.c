#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "jsonx/jsonx.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static json_t *parsed(const char *text)
{
    struct err err = ERR_INIT;
    json_t *j = NULL;
    if (jsonx_parse(text, strlen(text), &j, &err)) {
        fail_msg("%s: %s", text, err.msg);
    }
    assert_int_equal(err.kind, ERR_NONE);
    return j;
}

static void assert_dump(const char *text, const char *plain, const char *canonical)
{
    _cleanup_json_ json_t *j = parsed(text);
    _cleanup_(free_cstr)
    char *dumped = jsonx_dump(j);
    _cleanup_(free_cstr)
    char *sorted = jsonx_dump_canonical(j);
    assert_string_equal(dumped, plain);
    assert_string_equal(sorted, canonical);
    _cleanup_json_ json_t *back = parsed(dumped);
    assert_true(jsonx_equal(j, back));
}

static void numbers_are_written_shortest_and_exactly(void **state)
{
    (void)state;
    static const struct {
        const char *text, *plain, *canonical;
    } rows[] = {
        {"0", "0", "0"},
        {"-0.0", "-0.0", "0"},
        {"0.1", "0.1", "0.1"},
        {"0.10000000000000001", "0.1", "0.1"},
        {"0.30000000000000004", "0.30000000000000004", "0.30000000000000004"},
        {"123456789.123456789", "123456789.12345679", "123456789.12345679"},
        {"5e-324", "4.94065645841247e-324", "4.94065645841247e-324"},
        {"1.7976931348623157e308", "1.7976931348623157e+308", "1.7976931348623157e+308"},
        {"1e0", "1", "1"},
        {"1.0", "1", "1"},
        {"-1.50", "-1.5", "-1.5"},
        {"1e6", "1000000", "1000000"},
        {"1000000", "1000000", "1000000"},
        {"1e16", "10000000000000000", "10000000000000000"},
        {"9007199254740991", "9007199254740991", "9007199254740991"},
        {"9007199254740993", "9007199254740993", "9007199254740992"},
        {"9223372036854775807", "9223372036854775807", "9.223372036854776e+18"},
        {"-9223372036854775808", "-9223372036854775808", "-9223372036854775808"},
        {"9223372036854775808", "9.223372036854776e+18", "9.223372036854776e+18"},
        {"-9223372036854775809", "-9223372036854775808", "-9223372036854775808"},
        {"18446744073709551615", "1.8446744073709552e+19", "1.8446744073709552e+19"},
        {"123456789012345678901234567890", "1.2345678901234568e+29", "1.2345678901234568e+29"},
        {"1e21", "1e+21", "1e+21"},
        {"1e300", "1e+300", "1e+300"},
        {"1e-7", "1e-07", "1e-07"},
        {"9007199254740992", "9007199254740992", "9007199254740992"},
        {"-9223372036854775807", "-9223372036854775807", "-9223372036854775808"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].text);
        assert_dump(rows[i].text, rows[i].plain, rows[i].canonical);
    }
}

static void one_integer_too_long_leaves_its_neighbours_exact(void **state)
{
    (void)state;
    assert_dump("{\"a\":9223372036854775807,\"b\":[92233720368547758070,\"18446744073709551616\"],"
                "\"\\\"99999999999999999999\":-99999999999999999999, \"c\":9007199254740993}",
                "{\"a\":9223372036854775807,\"b\":[9.223372036854776e+19,\"18446744073709551616\"],"
                "\"\\\"99999999999999999999\":-1e+20,\"c\":9007199254740993}",
                "{\"\\\"99999999999999999999\":-1e+20,\"a\":9.223372036854776e+18,"
                "\"b\":[9.223372036854776e+19,\"18446744073709551616\"],\"c\":9007199254740992}");
}

static void strings_are_escaped_so_that_yaml_readers_keep_them(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *want;
    } rows[] = {
        {"plain", "\"a b\"", "\"a b\""},
        {"quote, backslash, slash", "\"\\\"\\\\\\/\"", "\"\\\"\\\\/\""},
        {"line feed, return, tab", "\"\\n\\r\\t\"", "\"\\n\\r\\t\""},
        {"other controls", "\"\\b\\f\\u0001\\u001f\"", "\"\\u0008\\u000c\\u0001\\u001f\""},
        {"DEL is no printable character of YAML", "\"a\x7F\"", "\"a\\u007f\""},
        {"nor are C1 controls", "\"\xC2\x80\xC2\x9F\"", "\"\\u0080\\u009f\""},
        {"the first character after them is", "\"\xC2\xA0\"", "\"\xC2\xA0\""},
        {"NEL, LS and PS fold", "\"a \xC2\x85 \xE2\x80\xA8 \xE2\x80\xA9\"",
         "\"a \\u0085 \\u2028 \\u2029\""},
        {"their neighbours do not", "\"\xE2\x80\xA7\xE2\x80\xAA\"", "\"\xE2\x80\xA7\xE2\x80\xAA\""},
        {"a byte order mark", "\"\xEF\xBB\xBFx\"", "\"\\ufeffx\""},
        {"no characters", "\"\xEF\xBF\xBE\xEF\xBF\xBF\"", "\"\\ufffe\\uffff\""},
        {"the replacement character", "\"\xEF\xBF\xBD\"", "\"\xEF\xBF\xBD\""},
        {"four bytes", "\"\xF0\x9F\x98\x80\"", "\"\xF0\x9F\x98\x80\""},
        {"a pair of surrogates", "\"\\ud83d\\ude00\"", "\"\xF0\x9F\x98\x80\""},
        {"a truncated look-alike at the end", "\"\xC2\xA0x\"", "\"\xC2\xA0x\""},
        {"a key", "{\"\xC2\x85\":1}", "{\"\\u0085\":1}"},
        {"empty", "\"\"", "\"\""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].name);
        assert_dump(rows[i].text, rows[i].want, rows[i].want);
    }
}

static void order_is_kept_or_sorted(void **state)
{
    (void)state;
    assert_dump(" { \"b\" : 1 , \"a\" : { \"z\" : [ ] , \"y\" : { } } , \"A\" : null } ",
                "{\"b\":1,\"a\":{\"z\":[],\"y\":{}},\"A\":null}",
                "{\"A\":null,\"a\":{\"y\":{},\"z\":[]},\"b\":1}");
    assert_dump("{\"a\":1,\"a\":{\"b\":2}}", "{\"a\":{\"b\":2}}", "{\"a\":{\"b\":2}}");
    assert_dump("[true,false,null]", "[true,false,null]", "[true,false,null]");
}

static void what_is_no_json_is_refused_by_its_place_without_its_content(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
        const char *want;
    } rows[] = {
        {"nothing", "", "line 1"},
        {"blanks", " \n ", "line"},
        {"a value cut off", "{\"s3cr3t\":", "line 1"},
        {"a word", "s3cr3t", "line 1"},
        {"two values", "{} s3cr3t", "line 1"},
        {"on the second line", "{\"a\":1,\n\"b\":s3cr3t}", "line 2"},
        {"a leading zero", "01", "line 1"},
        {"a long leading zero", "000000000000000000000000001", "line 1"},
        {"a minus alone", "-", "line 1"},
        {"a number with a letter", "99999999999999999999s3cr3t", "line 1"},
        {"a number out of a double's range", "1e999", "line 1"},
        {"an integer out of a double's range",
         "10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
         "00"
         "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
         "00"
         "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
         "00"
         "00000000000000000000000000000000000000000000000000",
         "line 1"},
        {"a lone surrogate", "\"s3cr3t\\ud800\"", "line 1"},
        {"a lone low surrogate", "\"s3cr3t\\udc00\"", "line 1"},
        {"surrogates the wrong way round", "\"s3cr3t\\ude00\\ud83d\"", "line 1"},
        {"a surrogate and no other", "\"\\ud83ds3cr3t\"", "line 1"},
        {"a NUL in a string", "{\"s3cr3t\":\"s3cr3t\\u0000\"}", "line 1"},
        {"a NUL in a key", "{\"s3cr3t\\u0000\":1}", "line 1"},
        {"no UTF-8", "\"\xFF\xFEs3cr3t\"", "line 1"},
        {"a control character", "\"s3cr3t\n\"", "line 1"},
        {"a string that does not end", "\"s3cr3t", "line 1"},
        {"a string that ends in a backslash", "\"s3cr3t\\", "line 1"},
        {"the wrong bracket", "[1}", "line 1"},
        {"a comma at the end", "[1,]", "line 1"},
        {"a byte order mark", "\xEF\xBB\xBF{}", "line 1"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].name);
        struct err err = ERR_INIT;
        json_t *j = NULL;
        assert_int_equal(jsonx_parse(rows[i].text, strlen(rows[i].text), &j, &err), ERR_INVALID);
        assert_null(j);
        assert_non_null(strstr(err.msg, rows[i].want));
        assert_null(strstr(err.msg, "s3cr3t"));
    }
    struct err err = ERR_INIT;
    json_t *j = NULL;
    assert_int_equal(jsonx_parse("[1]\0", 4, &j, &err), ERR_INVALID);
    assert_int_equal(jsonx_parse("[1]\0", 3, &j, &err), ERR_NONE);
    json_decref(j);
}

static void nesting_is_bounded(void **state)
{
    (void)state;
    char text[2 * (LIMIT_DEPTH + 1) + 1];
    for (size_t depth = LIMIT_DEPTH; depth <= LIMIT_DEPTH + 1; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        struct err err = ERR_INIT;
        json_t *j = NULL;
        enum err_kind kind = jsonx_parse(text, 2 * depth, &j, &err);
        assert_int_equal(kind, depth == LIMIT_DEPTH ? ERR_NONE : ERR_INVALID);
        json_decref(j);
    }
    /* Brackets in a string do not count, and many beside one another do not either. */
    char wide[4 * LIMIT_DEPTH + 8] = "[\"";
    memset(wide + 2, '[', 3 * LIMIT_DEPTH);
    memcpy(wide + 2 + 3 * LIMIT_DEPTH, "\"]", 3);
    json_decref(parsed(wide));
    json_decref(parsed("[[],[],[],{\"a\":[]},{}]"));
    /* A flood of brackets is refused before anything recurses. */
    size_t n = 1000000;
    _cleanup_(free_cstr)
    char *flood = xmalloc(n);
    memset(flood, '[', n);
    struct err err = ERR_INIT;
    json_t *j = NULL;
    assert_int_equal(jsonx_parse(flood, n, &j, &err), ERR_INVALID);
}

struct items {
    struct buf text;
    size_t count, stop_after;
};

static bool note_item(void *ctx, const char *item, size_t len)
{
    struct items *items = ctx;
    buf_add_str(&items->text, "<");
    buf_add(&items->text, item, len);
    buf_add_str(&items->text, ">");
    items->count++;
    return items->count != items->stop_after;
}

static void a_list_is_split_into_its_items(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *items, *rest;
    } rows[] = {
        {"none", "{\"items\":[]}", "", "{\"items\":[]}"},
        {"null, as Go writes an empty list", "{\"kind\":\"L\",\"items\":null}", "",
         "{\"kind\":\"L\",\"items\":null}"},
        {"no items at all", "{\"kind\":\"L\"}", "", "{\"kind\":\"L\"}"},
        {"two", "{\"items\":[{\"a\":1},{\"b\":2}]}", "<{\"a\":1}><{\"b\":2}>", "{\"items\":[]}"},
        {"blanks everywhere", " { \"items\" : [ {\"a\" : 1} ,\n\t{} ] , \"k\" : 1 } ",
         "<{\"a\" : 1}><{}>", "{\"items\":[],\"k\":1}"},
        {"metadata before and after",
         "{\"metadata\":{\"resourceVersion\":\"7\",\"items\":[9]},\"items\":[{}],\"kind\":\"L\"}",
         "<{}>",
         "{\"metadata\":{\"resourceVersion\":\"7\",\"items\":[9]},\"items\":[],\"kind\":\"L\"}"},
        {"brackets and quotes in strings",
         "{\"a\":\"\\\"items\\\":[\",\"items\":[{\"s\":\"]}\\\"[\"},[1]]}",
         "<{\"s\":\"]}\\\"[\"}><[1]>", "{\"a\":\"\\\"items\\\":[\",\"items\":[]}"},
        {"one item that jansson refuses",
         "{\"items\":[{\"a\":\"\\u0000\"},{\"n\":99999999999999999999}]}",
         "<{\"a\":\"\\u0000\"}><{\"n\":99999999999999999999}>", "{\"items\":[]}"},
        {"literals", "{\"items\":[1,\"x\",null]}", "<1><\"x\"><null>", "{\"items\":[]}"},
        {"a long integer beside the items", "{\"n\":99999999999999999999,\"items\":[]}", "",
         "{\"n\":1e+20,\"items\":[]}"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].name);
        struct items items = {.text = BUF_INIT(4096)};
        struct err err = ERR_INIT;
        _cleanup_json_ json_t *rest = NULL;
        assert_int_equal(
            jsonx_split_items(rows[i].text, strlen(rows[i].text), note_item, &items, &rest, &err),
            ERR_NONE);
        assert_string_equal(buf_str(&items.text), rows[i].items);
        _cleanup_(free_cstr)
        char *text = jsonx_dump(rest);
        assert_string_equal(text, rows[i].rest);
        buf_release(&items.text);
    }
}

static void a_list_that_is_damaged_is_an_error_and_never_a_shorter_list(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
    } rows[] = {
        {"nothing", ""},
        {"an array", "[]"},
        {"items that are no list", "{\"items\":{}}"},
        {"items that are text", "{\"items\":\"[]\"}"},
        {"cut between items", "{\"items\":[{\"a\":1},"},
        {"cut in an item", "{\"items\":[{\"a\":1},{\"b\":"},
        {"cut after an item", "{\"items\":[{\"a\":1}"},
        {"cut after the items", "{\"items\":[{\"a\":1}]"},
        {"cut in what follows", "{\"items\":[{\"a\":1}],\"k\""},
        {"a hole", "{\"items\":[{},,{}]}"},
        {"a comma first", "{\"items\":[,{}]}"},
        {"a comma last", "{\"items\":[{},]}"},
        {"something else than a comma", "{\"items\":[{}x{}]}"},
        {"no comma", "{\"items\":[{} {}]}"},
        {"something after it", "{\"items\":[]}x"},
        {"damage before it", "{\"a\":tru,\"items\":[]}"},
        {"no colon", "{\"items\"[]}"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].name);
        struct items items = {.text = BUF_INIT(4096)};
        struct err err = ERR_INIT;
        json_t *rest = NULL;
        assert_int_equal(
            jsonx_split_items(rows[i].text, strlen(rows[i].text), note_item, &items, &rest, &err),
            ERR_INVALID);
        assert_null(rest);
        assert_int_equal(err.kind, ERR_INVALID);
        buf_release(&items.text);
    }
}

static void splitting_stops_when_told_and_needs_no_rest(void **state)
{
    (void)state;
    struct items items = {.text = BUF_INIT(4096), .stop_after = 2};
    struct err err = ERR_INIT;
    const char *text = "{\"items\":[1,2,3]}";
    assert_int_equal(jsonx_split_items(text, strlen(text), note_item, &items, NULL, &err),
                     ERR_NONE);
    assert_string_equal(buf_str(&items.text), "<1><2>");
    buf_release(&items.text);
}

static void one_bad_object_does_not_lose_the_others(void **state)
{
    (void)state;
    const char *text = "{\"items\":[{\"n\":1},{\"n\":\"\\u0000\"},{\"n\":18446744073709551616}]}";
    struct items items = {.text = BUF_INIT(4096)};
    struct err err = ERR_INIT;
    assert_int_equal(jsonx_split_items(text, strlen(text), note_item, &items, NULL, &err),
                     ERR_NONE);
    assert_int_equal(items.count, 3);
    buf_release(&items.text);
    json_t *j = NULL;
    assert_int_equal(jsonx_parse("{\"n\":\"\\u0000\"}", 14, &j, &err), ERR_INVALID);
    json_decref(parsed("{\"n\":18446744073709551616}"));
}

static void digests_are_what_they_were_in_every_version(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sha256;
    } rows[] = {
        {"null", "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"},
        {"{}", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
        {"1", "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"},
        {"1.0", "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"},
        {"10e-1", "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"},
        {"{\"b\":[true,null,\"x\"],\"a\":1.0}",
         "eca8cfb31ab74533e1eb2f4c74d2d55dfe3c79ac704787e54be8647ea7777eb1"},
        {"{\"d\":\"\xC2\x85\\\"\\n\xC3\xA9\",\"a\":{\"c\":1e300,\"b\":0.1}}",
         "f7f15eb3cefa0fe3961eba49090152b983a699d998f34f2ad9ff618f08a3b7ba"},
        {"9007199254740992.0", "c681da39d7273a6a24c15c9cac3a75526ff2ecf8ba4ee60346a0c70c8163bdb2"},
        {"9007199254740993", "c681da39d7273a6a24c15c9cac3a75526ff2ecf8ba4ee60346a0c70c8163bdb2"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].text);
        _cleanup_json_ json_t *j = parsed(rows[i].text);
        char hex[65];
        jsonx_digest(j, hex);
        assert_string_equal(hex, rows[i].sha256);
    }
}

static void values_are_equal_exactly_if_their_digests_are(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        bool equal;
    } rows[] = {
        {"1", "1.0", true},
        {"1", "1e0", true},
        {"0", "-0.0", true},
        {"0.1", "0.10000000000000001", true},
        {"9007199254740992", "9007199254740993", true},
        {"9223372036854775807", "9223372036854775808", true},
        {"9223372036854775807", "9223372036854775807.0", true},
        {"18446744073709551615", "18446744073709551616", true},
        {"{\"a\":1,\"b\":2}", "{\"b\":2.0,\"a\":1}", true},
        {"[{\"a\":[{}]}]", "[{\"a\":[{}]}]", true},
        {"\"\\u00e9\"", "\"\xC3\xA9\"", true},
        {"1", "2", false},
        {"1", "\"1\"", false},
        {"1", "true", false},
        {"null", "false", false},
        {"0", "null", false},
        {"[1,2]", "[2,1]", false},
        {"[1]", "[1,1]", false},
        {"[]", "{}", false},
        {"{\"a\":1}", "{\"a\":1,\"b\":null}", false},
        {"{\"a\":null,\"b\":1}", "{\"c\":null,\"b\":1}", false},
        {"{\"a\":{\"b\":1}}", "{\"a\":{\"b\":1.5}}", false},
        {"\"a\"", "\"A\"", false},
        {"0.1", "0.10000000000000002", false},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s and %s\n", rows[i].a, rows[i].b);
        _cleanup_json_ json_t *a = parsed(rows[i].a);
        _cleanup_json_ json_t *b = parsed(rows[i].b);
        char of_a[65];
        char of_b[65];
        jsonx_digest(a, of_a);
        jsonx_digest(b, of_b);
        assert_int_equal(jsonx_equal(a, b), rows[i].equal);
        assert_int_equal(jsonx_equal(b, a), rows[i].equal);
        assert_int_equal(strcmp(of_a, of_b) == 0, rows[i].equal);
    }
}

static void members_are_read_by_path_and_by_type(void **state)
{
    (void)state;
    _cleanup_json_ json_t *j =
        parsed("{\"a\":{\"s\":\"x\",\"i\":7,\"r\":7.0,\"half\":7.5,\"big\":1e300,\"t\":true,\"f\":"
               "false,\"n\":null,\"l\":[{\"s\":\"no\"}]},\"top\":1}");
    assert_ptr_equal(jsonx_at(j, ""), j);
    assert_string_equal(jsonx_str(j, "a.s", NULL), "x");
    assert_null(jsonx_str(j, "a.i", NULL));
    assert_string_equal(jsonx_str(j, "a.n", "d"), "d");
    assert_string_equal(jsonx_str(j, "a.missing.s", "d"), "d");
    assert_string_equal(jsonx_str(j, "a.s.s", "d"), "d");
    assert_string_equal(jsonx_str(j, "a.l.s", "d"), "d");
    assert_string_equal(jsonx_str(NULL, "a", "d"), "d");
    assert_null(jsonx_at(NULL, "a"));
    assert_null(jsonx_at(j, "a.l.0"));
    assert_int_equal(jsonx_int(j, "a.i", -1), 7);
    assert_int_equal(jsonx_int(j, "a.r", -1), 7);
    assert_int_equal(jsonx_int(j, "a.half", -1), -1);
    assert_int_equal(jsonx_int(j, "a.big", -1), -1);
    assert_int_equal(jsonx_int(j, "a.s", -1), -1);
    assert_int_equal(jsonx_int(j, "a.t", -1), -1);
    assert_int_equal(jsonx_int(j, "top", -1), 1);
    assert_true(jsonx_bool(j, "a.t", false));
    assert_false(jsonx_bool(j, "a.f", true));
    assert_true(jsonx_bool(j, "a.n", true));
    assert_false(jsonx_bool(j, "a.i", false));
    assert_true(json_is_null(jsonx_at(j, "a.n")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_written_shortest_and_exactly),
        cmocka_unit_test(one_integer_too_long_leaves_its_neighbours_exact),
        cmocka_unit_test(strings_are_escaped_so_that_yaml_readers_keep_them),
        cmocka_unit_test(order_is_kept_or_sorted),
        cmocka_unit_test(what_is_no_json_is_refused_by_its_place_without_its_content),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(a_list_is_split_into_its_items),
        cmocka_unit_test(a_list_that_is_damaged_is_an_error_and_never_a_shorter_list),
        cmocka_unit_test(splitting_stops_when_told_and_needs_no_rest),
        cmocka_unit_test(one_bad_object_does_not_lose_the_others),
        cmocka_unit_test(digests_are_what_they_were_in_every_version),
        cmocka_unit_test(values_are_equal_exactly_if_their_digests_are),
        cmocka_unit_test(members_are_read_by_path_and_by_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
