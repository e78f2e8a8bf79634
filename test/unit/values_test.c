#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "jsonx/jsonx.h"
#include "values/values.h"
#include "yamlx/yamlx.h"

static json_t *parsed(const char *text)
{
    struct err err = ERR_INIT;
    json_t *j = NULL;
    assert_int_equal(jsonx_parse(text, strlen(text), &j, &err), ERR_NONE);
    return j;
}

static void assert_text(const json_t *j, const char *want)
{
    _cleanup_(free_cstr)
    char *text = jsonx_dump_canonical(j);
    assert_string_equal(text, want);
}

static void maps_merge_and_everything_else_replaces(void **state)
{
    (void)state;
    static const struct {
        const char *name, *base, *over, *want;
    } rows[] = {
        {"into nothing", "{}", "{\"a\":{\"b\":1}}", "{\"a\":{\"b\":1}}"},
        {"nothing over something", "{\"a\":1}", "{}", "{\"a\":1}"},
        {"another key", "{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}"},
        {"a scalar replaces a scalar", "{\"a\":1}", "{\"a\":\"x\"}", "{\"a\":\"x\"}"},
        {"maps merge", "{\"a\":{\"x\":1,\"y\":2}}", "{\"a\":{\"y\":3,\"z\":4}}",
         "{\"a\":{\"x\":1,\"y\":3,\"z\":4}}"},
        {"at any depth", "{\"a\":{\"b\":{\"c\":{\"d\":1}}}}", "{\"a\":{\"b\":{\"c\":{\"e\":2}}}}",
         "{\"a\":{\"b\":{\"c\":{\"d\":1,\"e\":2}}}}"},
        {"lists do not merge", "{\"a\":[1,2,3]}", "{\"a\":[4]}", "{\"a\":[4]}"},
        {"not even lists of maps", "{\"a\":[{\"x\":1}]}", "{\"a\":[{\"y\":2}]}",
         "{\"a\":[{\"y\":2}]}"},
        {"a map replaces a scalar", "{\"a\":1}", "{\"a\":{\"b\":1}}", "{\"a\":{\"b\":1}}"},
        {"a scalar replaces a map", "{\"a\":{\"b\":1}}", "{\"a\":1}", "{\"a\":1}"},
        {"an empty map changes nothing", "{\"a\":{\"b\":1}}", "{\"a\":{}}", "{\"a\":{\"b\":1}}"},
        {"null replaces, and stays null for helm", "{\"a\":{\"b\":1},\"c\":2}",
         "{\"a\":null,\"c\":null}", "{\"a\":null,\"c\":null}"},
        {"a null deep inside survives", "{}",
         "{\"p\":{\"httpGet\":null,\"tcpSocket\":{\"port\":1}}}",
         "{\"p\":{\"httpGet\":null,\"tcpSocket\":{\"port\":1}}}"},
        {"a map replaces null", "{\"a\":null}", "{\"a\":{\"b\":1}}", "{\"a\":{\"b\":1}}"},
        {"dots in a key are part of it", "{\"a\":{\"b\":1}}", "{\"a.b\":2}",
         "{\"a\":{\"b\":1},\"a.b\":2}"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        print_message("  %s\n", rows[i].name);
        _cleanup_json_ json_t *base = parsed(rows[i].base);
        _cleanup_json_ json_t *over = parsed(rows[i].over);
        values_merge(base, over);
        assert_text(base, rows[i].want);
        _cleanup_json_ json_t *untouched = parsed(rows[i].over);
        assert_true(jsonx_equal(over, untouched));
    }
}

static void a_later_merge_does_not_reach_into_an_earlier_source(void **state)
{
    (void)state;
    _cleanup_json_ json_t *base = parsed("{}");
    _cleanup_json_ json_t *first = parsed("{\"a\":{\"b\":{\"c\":1}},\"l\":[{\"x\":1}]}");
    _cleanup_json_ json_t *second = parsed("{\"a\":{\"b\":{\"c\":2}}}");
    values_merge(base, first);
    values_merge(base, second);
    assert_text(base, "{\"a\":{\"b\":{\"c\":2}},\"l\":[{\"x\":1}]}");
    assert_text(first, "{\"a\":{\"b\":{\"c\":1}},\"l\":[{\"x\":1}]}");
    json_object_set_new(json_array_get(json_object_get(first, "l"), 0), "x", json_integer(9));
    assert_text(base, "{\"a\":{\"b\":{\"c\":2}},\"l\":[{\"x\":1}]}");
}

static void what_a_yaml_alias_shared_is_parted_by_merging(void **state)
{
    (void)state;
    const char *text = "a: &x {k: 1}\nb: *x\n";
    struct err err = ERR_INIT;
    _cleanup_json_ json_t *source = NULL;
    assert_int_equal(yamlx_parse(text, strlen(text), &source, &err), ERR_NONE);
    _cleanup_json_ json_t *base = parsed("{}");
    _cleanup_json_ json_t *over = parsed("{\"a\":{\"k\":2}}");
    values_merge(base, source);
    values_merge(base, over);
    assert_text(base, "{\"a\":{\"k\":2},\"b\":{\"k\":1}}");
    assert_text(source, "{\"a\":{\"k\":1},\"b\":{\"k\":1}}");
}

static void merging_twice_is_merging_once(void **state)
{
    (void)state;
    _cleanup_json_ json_t *base = parsed("{\"a\":{\"x\":1},\"b\":[1]}");
    _cleanup_json_ json_t *over = parsed("{\"a\":{\"y\":null},\"b\":{\"c\":{}}}");
    values_merge(base, over);
    values_merge(base, over);
    assert_text(base, "{\"a\":{\"x\":1,\"y\":null},\"b\":{\"c\":{}}}");
}

/* {"a": ... {"a": leaf}}, as deep as a parser lets anything in. */
static json_t *nested(const char *leaf)
{
    struct buf b = BUF_INIT(4096);
    for (int i = 0; i < LIMIT_DEPTH; i++) {
        buf_add_str(&b, "{\"a\":");
    }
    buf_add_str(&b, leaf);
    for (int i = 0; i < LIMIT_DEPTH; i++) {
        buf_add_char(&b, '}');
    }
    json_t *j = parsed(buf_str(&b));
    buf_release(&b);
    return j;
}

static void the_deepest_values_merge_too(void **state)
{
    (void)state;
    _cleanup_json_ json_t *base = nested("1");
    _cleanup_json_ json_t *over = nested("2,\"b\":3");
    values_merge(base, over);
    assert_true(jsonx_equal(base, over));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_merge_and_everything_else_replaces),
        cmocka_unit_test(a_later_merge_does_not_reach_into_an_earlier_source),
        cmocka_unit_test(what_a_yaml_alias_shared_is_parted_by_merging),
        cmocka_unit_test(merging_twice_is_merging_once),
        cmocka_unit_test(the_deepest_values_merge_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
