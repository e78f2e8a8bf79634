#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "jsonx/jsonx.h"
#include "yamlx/yamlx.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct row {
    const char *name, *yaml, *json;
};

static void assert_reads(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        print_message("  %s\n", rows[i].name);
        struct err err = ERR_INIT;
        _cleanup_json_ json_t *j = NULL;
        if (yamlx_parse(rows[i].yaml, strlen(rows[i].yaml), &j, &err)) {
            fail_msg("%s", err.msg);
        }
        assert_int_equal(err.kind, ERR_NONE);
        _cleanup_(free_cstr)
        char *text = jsonx_dump(j);
        assert_string_equal(text, rows[i].json);
    }
}

static void plain_scalars_mean_what_they_mean_to_helm(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"nulls", "[null, Null, NULL, ~, nULL]", "[null,null,null,null,\"nULL\"]"},
        {"a value left out", "a:\nb: [{c: }]", "{\"a\":null,\"b\":[{\"c\":null}]}"},
        {"true", "[y, Y, yes, Yes, YES, true, True, TRUE, on, On, ON]",
         "[true,true,true,true,true,true,true,true,true,true,true]"},
        {"false", "[n, N, no, No, NO, false, False, FALSE, off, Off, OFF]",
         "[false,false,false,false,false,false,false,false,false,false,false]"},
        {"almost", "[yEs, tRUE, oN, yess, nope]", "[\"yEs\",\"tRUE\",\"oN\",\"yess\",\"nope\"]"},
        {"decimal",
         "[0, -0, +7, -7, 1000000, 1_000, 1_, 9223372036854775807, -9223372036854775808]",
         "[0,0,7,-7,1000000,1000,1,9223372036854775807,-9223372036854775808]"},
        {"other bases", "[0x1F, -0x1f, 0b101, 0o17, 017, -017, 0x_F, 0b-1]",
         "[31,-31,5,15,15,-15,15,-1]"},
        {"beyond int64",
         "[9223372036854775808, 18446744073709551615, 0xFFFFFFFFFFFFFFFF, "
         "18446744073709551616, -9223372036854775809]",
         "[9.223372036854776e+18,1.8446744073709552e+19,1.8446744073709552e+19,"
         "1.8446744073709552e+19,-9223372036854775808]"},
        {"no integers", "[08, 0x, 0b2, 0o8, 0x1FFFFFFFFFFFFFFFFF, _1, --1, 1 2]",
         "[8,\"0x\",\"0b2\",\"0o8\",\"0x1FFFFFFFFFFFFFFFFF\",\"_1\",\"--1\",\"1 2\"]"},
        {"reals", "[1.5, .5, -.5, 5., 1e3, 1E-3, 1_0.5, .5_5, -0.0]",
         "[1.5,0.5,-0.5,5,1000,0.001,10.5,0.55,-0.0]"},
        {"no reals", "[., 1e, 1e+, ._5, .5_, 1.2.3, 1e309, NaN, inf, 0x1p3, 12:30:45]",
         "[\".\",\"1e\",\"1e+\",\"._5\",\".5_\",\"1.2.3\",\"1e309\",\"NaN\",\"inf\",\"0x1p3\","
         "\"12:30:45\"]"},
        {"timestamps stay strings", "[2001-12-14, 2001-12-14T21:59:43Z]",
         "[\"2001-12-14\",\"2001-12-14T21:59:43Z\"]"},
        {"quotes make strings", "['yes', \"1\", '~', \"\", '']", "[\"yes\",\"1\",\"~\",\"\",\"\"]"},
        {"the mode of a file", "mode: 0755", "{\"mode\":493}"},
    };
    assert_reads(rows, COUNT(rows));
}

static void tags_decide(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"!!str", "[!!str 1, !!str yes, !!str , !!str .inf]", "[\"1\",\"yes\",\"\",\".inf\"]"},
        {"!!int", "[!!int \"3\", !!int 0x10]", "[3,16]"},
        {"!!float", "[!!float 3, !!float 1.5]", "[3,1.5]"},
        {"!!bool, !!null", "[!!bool \"yes\", !!null '', !!null ~]", "[true,null,null]"},
        {"!!binary", "[!!binary aGVsbG8=, !!binary \"\"]", "[\"hello\",\"\"]"},
        {"!!binary in lines", "a: !!binary |\n  aGVs\n  bG8=\n", "{\"a\":\"hello\"}"},
        {"!!binary that is no text", "!!binary gGGC",
         "\"\xEF\xBF\xBD"
         "a\xEF\xBF\xBD\""},
        {"! is a private tag", "[! 12, ! yes]", "[\"12\",\"yes\"]"},
        {"private tags are strings", "[!own 12, !!own yes, !<x> ~]", "[\"12\",\"yes\",\"~\"]"},
        {"tags of containers do not matter", "{a: !own {x: 1}, b: !!set {z}, c: !!seq [1]}",
         "{\"a\":{\"x\":1},\"b\":{\"z\":null},\"c\":[1]}"},
    };
    assert_reads(rows, COUNT(rows));
}

static void keys_become_the_strings_that_helm_makes(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"case 23", "a: on\nb: \"on\"\nc: yes\noff: 1\n",
         "{\"a\":true,\"b\":\"on\",\"c\":true,\"false\":1}"},
        {"numbers", "{1: a, 0x10: b, 1.5: c, -7: d}",
         "{\"1\":\"a\",\"16\":\"b\",\"1.5\":\"c\",\"-7\":\"d\"}"},
        {"the least integer", "{-9223372036854775808: a}", "{\"-9223372036854775808\":\"a\"}"},
        {"reals as 32 bits",
         "{1e6: a, 123456.0: b, 1234567.0: c, 123456789.5: d, 0.0001: e, 1e-5: f}",
         "{\"1e+06\":\"a\",\"123456\":\"b\",\"1.234567e+06\":\"c\",\"1.2345679e+08\":\"d\","
         "\"0.0001\":\"e\",\"1e-05\":\"f\"}"},
        {"out of range", "{1e300: a, -1e300: b}", "{\".inf\":\"a\",\"-.inf\":\"b\"}"},
        {"no numbers", "{.Inf: a, -.INF: b, .NaN: c}",
         "{\".inf\":\"a\",\"-.inf\":\"b\",\".nan\":\"c\"}"},
        {"strings", "{\"\": a, a.b/c: b, 'null': c, 2001-12-14: d}",
         "{\"\":\"a\",\"a.b/c\":\"b\",\"null\":\"c\",\"2001-12-14\":\"d\"}"},
        {"explicit", "? a\n: b\n? c\n", "{\"a\":\"b\",\"c\":null}"},
        {"by alias", "a: &x 0x10\nb: {*x : 1}\n", "{\"a\":16,\"b\":{\"16\":1}}"},
        {"the last of equals wins, whole (case 24)", "image: {tag: 1, pull: x}\nimage: {tag: 2}\n",
         "{\"image\":{\"tag\":2}}"},
        {"equal once they are read", "{yes: 1, true: 2, 0x1: 3, 1: 4}", "{\"true\":2,\"1\":4}"},
    };
    assert_reads(rows, COUNT(rows));
}

static void anchors_and_merge_keys_are_written_out(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"case 25", "base: &b {p: 1, q: 2}\na: {<<: *b, q: 3}\n",
         "{\"base\":{\"p\":1,\"q\":2},\"a\":{\"p\":1,\"q\":3}}"},
        {"a merge that comes later replaces", "b: &b {q: 2}\na: {q: 3, <<: *b}\n",
         "{\"b\":{\"q\":2},\"a\":{\"q\":2}}"},
        {"in a list the first wins", "x: &x {p: x}\nz: &z {p: z, r: z}\na: {<<: [*x, *z]}\n",
         "{\"x\":{\"p\":\"x\"},\"z\":{\"p\":\"z\",\"r\":\"z\"},\"a\":{\"p\":\"x\",\"r\":\"z\"}}"},
        {"a map in place", "{<<: {a: 1}, b: 2}", "{\"a\":1,\"b\":2}"},
        {"a quoted << is a key", "{'<<': {a: 1}}", "{\"<<\":{\"a\":1}}"},
        {"so is one by alias", "a: &m <<\nb: {*m : {x: 1}}",
         "{\"a\":\"<<\",\"b\":{\"<<\":{\"x\":1}}}"},
        {"<< as a value", "a: <<", "{\"a\":\"<<\"}"},
        {"an anchor that is set again", "[&a 1, *a, &a 2, *a]", "[1,1,2,2]"},
        {"also inside of itself", "[&a {x: &a 1, z: *a}, *a]", "[{\"x\":1,\"z\":1},1]"},
        {"an anchor of nothing", "a: &x\nb: *x\n", "{\"a\":null,\"b\":null}"},
    };
    assert_reads(rows, COUNT(rows));
}

static void text_is_folded_and_kept_as_yaml_says(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"literal", "a: |\n  one\n    two\n\n  three\n", "{\"a\":\"one\\n  two\\n\\nthree\\n\"}"},
        {"stripped, kept", "a: |-\n  x\nb: |+\n  y\n\nc: 1",
         "{\"a\":\"x\",\"b\":\"y\\n\\n\",\"c\":1}"},
        {"folded", "a: >-\n  one\n  two\n\n  three\n", "{\"a\":\"one two\\nthree\"}"},
        {"plain over lines", "a: one\n  two\n", "{\"a\":\"one two\"}"},
        {"double quoted", "\"a\\x41\\u00e9\\n\\\n  b\"", "\"aA\xC3\xA9\\nb\""},
        {"a byte order mark (case 27)",
         "\xEF\xBB\xBF"
         "a: 1\n",
         "{\"a\":1}"},
        {"CRLF (case 27)", "a: 1\r\nb: |\r\n  x\r\n  y\r\n", "{\"a\":1,\"b\":\"x\\ny\\n\"}"},
        {"JSON", "{\"a\":[1,true,null,\"x\\u0041\"]}", "{\"a\":[1,true,null,\"xA\"]}"},
    };
    assert_reads(rows, COUNT(rows));
}

static void only_the_first_document_counts(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"case 26", "a: 1\n---\nb: 2\n", "{\"a\":1}"},
        {"the second is broken", "a: 1\n---\nb: {\n", "{\"a\":1}"},
        {"an empty first", "---\n---\nb: 2\n", "null"},
        {"nothing", "", "null"},
        {"blanks", " \n\n", "null"},
        {"a comment", "# x\n", "null"},
        {"a null", "~", "null"},
        {"a list, which is for the caller to judge", "- 1\n", "[1]"},
        {"a text", "x", "\"x\""},
    };
    assert_reads(rows, COUNT(rows));
}

static void what_is_refused_is_named_by_its_line_and_not_quoted(void **state)
{
    (void)state;
    static const struct {
        const char *name, *yaml, *want;
    } rows[] = {
        {"a tab as indentation (case 27)", "a:\n\tb: s3cr3t\n",
         "line 2: found character that cannot start any token"},
        {"a map that is none (case 58)", "a: 1\ns3cr3t\nb: 2\n",
         "line 3: could not find expected ':'"},
        {"two colons", "a: s3cr3t: x\n", "line 1: mapping values are not allowed in this context"},
        {"cut in a flow", "a: [1, s3cr3t", "line 2: did not find expected ',' or ']'"},
        {"cut in quotes", "x: y\na: \"s3cr3t", "line 2: found unexpected end of stream"},
        {"no UTF-8", "a: 1\nb: 2\nc: s3cr3t\xFF\n", "line 3: invalid leading UTF-8 octet"},
        {"a control character", "a: 1\nb: s3cr3t\x01\n",
         "line 2: control characters are not allowed"},
        {"an alias to nowhere", "a: 1\nb: *s3cr3t\n",
         "line 2: an alias to an anchor that is not in this document"},
        {"an alias to an earlier document", "--- \na: *s3cr3t\n---\n",
         "line 2: an alias to an anchor that is not in this document"},
        {"a list that holds itself", "&s3cr3t [*s3cr3t]",
         "line 1: an alias to a container that holds it"},
        {"a map that is its own key", "&s3cr3t {*s3cr3t : 1}",
         "line 1: an alias to a container that holds it"},
        {"merging a scalar", "<<: s3cr3t\n", "line 1: << merges a map, or a list of maps"},
        {"merging nothing", "<<:\n", "line 1: << merges a map, or a list of maps"},
        {"merging a list of scalars", "<<: [{a: 1}, s3cr3t]\n",
         "line 1: << merges a map, or a list of maps"},
        {"merging a list by alias", "x: &x [{s3cr3t: 1}]\n<<: *x\n",
         "line 2: << merges a map, or a list of maps"},
        {"a null key", "~: s3cr3t\n",
         "line 1: a map's key must be a string, a number, true or false"},
        {"a list as key", "[s3cr3t]: 1\n",
         "line 1: a map's key must be a string, a number, true or false"},
        {"a map as key by alias", "a: &x {b: 1}\n*x : s3cr3t\n",
         "line 2: a map's key must be a string, a number, true or false"},
        {"a key that fits no int64", "18446744073709551615: s3cr3t\n",
         "line 1: a map's key must be a string, a number, true or false"},
        {"infinity", "a: .inf\n", "line 1: .inf and .nan have no place in JSON"},
        {"no number", "- 1\n- .NaN\n", "line 2: .inf and .nan have no place in JSON"},
        {"a key's infinity as a value", "&x .inf: 1\ny: *x\n",
         "line 2: .inf and .nan have no place in JSON"},
        {"the document is infinite", ".inf", "line 1: .inf and .nan have no place in JSON"},
        {"no integer", "!!int s3cr3t", "line 1: the value does not fit its tag"},
        {"a real tagged as integer", "!!int 1.5", "line 1: the value does not fit its tag"},
        {"no real", "!!float 18446744073709551615", "line 1: the value does not fit its tag"},
        {"no bool", "!!bool 1", "line 1: the value does not fit its tag"},
        {"no null", "!!null s3cr3t", "line 1: the value does not fit its tag"},
        {"a number tagged as time", "!!timestamp 1", "line 1: the value does not fit its tag"},
        {"base64 cut", "!!binary aGVsbG8", "line 1: !!binary is no base64"},
        {"base64 with a blank", "!!binary \"aGVs bG8=\"", "line 1: !!binary is no base64"},
        {"base64 of padding", "!!binary ====", "line 1: !!binary is no base64"},
        {"base64 padded inside", "!!binary aG=sbG8=", "line 1: !!binary is no base64"},
        {"a NUL by escape", "a: \"s3cr3t\\0\"", "line 1: a string that is no UTF-8 or holds a NUL"},
        {"a NUL in a key", "\"s3cr3t\\0\": 1", "line 1: a string that is no UTF-8 or holds a NUL"},
        {"a NUL by base64", "!!binary AAAA", "line 1: a string that is no UTF-8 or holds a NUL"},
        {"a NUL in a number", "!!int \"1\\0\"", "line 1: the value does not fit its tag"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].name);
        struct err err = ERR_INIT;
        json_t *j = NULL;
        assert_int_equal(yamlx_parse(rows[i].yaml, strlen(rows[i].yaml), &j, &err), ERR_INVALID);
        assert_null(j);
        assert_string_equal(err.msg, rows[i].want);
    }
}

static enum err_kind kind_of(const struct buf *text)
{
    struct err err = ERR_INIT;
    _cleanup_json_ json_t *j = NULL;
    enum err_kind kind = yamlx_parse(buf_str(text), text->len, &j, &err);
    assert_int_equal(kind, err.kind);
    assert_int_equal(j != NULL, kind == ERR_NONE);
    return kind;
}

static void repeat(struct buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        buf_add_str(b, s);
    }
}

static void nesting_is_bounded_also_through_aliases(void **state)
{
    (void)state;
    for (size_t depth = LIMIT_DEPTH; depth <= LIMIT_DEPTH + 1; depth++) {
        enum err_kind want = depth == LIMIT_DEPTH ? ERR_NONE : ERR_LIMIT;
        struct buf b = BUF_INIT(1U << 20);
        repeat(&b, "[", depth);
        buf_add_str(&b, "x");
        repeat(&b, "]", depth);
        assert_int_equal(kind_of(&b), want);
        buf_reset(&b);
        repeat(&b, "{a: ", depth);
        repeat(&b, "}", depth);
        assert_int_equal(kind_of(&b), want);
        /* 32 levels, and an alias to them at level 32 or 33. */
        buf_reset(&b);
        buf_add_str(&b, "- &x ");
        repeat(&b, "[", LIMIT_DEPTH / 2);
        repeat(&b, "]", LIMIT_DEPTH / 2);
        buf_add_str(&b, "\n- ");
        repeat(&b, "[", depth - LIMIT_DEPTH / 2 - 1);
        buf_add_str(&b, "*x");
        repeat(&b, "]", depth - LIMIT_DEPTH / 2 - 1);
        assert_int_equal(kind_of(&b), want);
        buf_release(&b);
    }
    struct buf b = BUF_INIT(4U << 20);
    repeat(&b, "[", 1000000);
    assert_int_equal(kind_of(&b), ERR_LIMIT);
    buf_reset(&b);
    repeat(&b, "? ", 1000000);
    assert_int_equal(kind_of(&b), ERR_INVALID);
    buf_release(&b);
}

/* Each level is ten aliases of the one before it: a list of them, or the values (or the merges) of
 * a map. */
static void add_bomb(struct buf *b, const char *leaf, bool map, const char *before,
                     const char *after, int levels)
{
    buf_addf(b, "a0: &a0 %s\n", leaf);
    for (int level = 1; level <= levels; level++) {
        buf_addf(b, "a%d: &a%d %s", level, level, map ? "{" : "[");
        for (int i = 0; i < 10; i++) {
            if (map) {
                buf_addf(b, "k%d: ", i);
            }
            buf_addf(b, "%s*a%d%s, ", before, level - 1, after);
        }
        buf_add_str(b, map ? "}\n" : "]\n");
    }
}

/* jansson's memory, counted. The size stands in front of each block. */
static size_t used_bytes, used_bytes_max;

static void *count_malloc(size_t len)
{
    size_t *p = xmalloc(len + 2 * sizeof(size_t));
    p[0] = len;
    used_bytes += len;
    used_bytes_max = used_bytes > used_bytes_max ? used_bytes : used_bytes_max;
    return p + 2;
}

static void count_free(void *block)
{
    size_t *p = block;
    if (p != NULL) {
        used_bytes -= p[-2];
        free(p - 2);
    }
}

static void an_alias_bomb_is_refused_before_it_costs_anything(void **state)
{
    (void)state;
    json_set_alloc_funcs(count_malloc, count_free);
    static const struct {
        const char *name, *leaf;
        bool map;
        const char *before, *after;
    } rows[] = {
        {"lists (case 25)", "[x, x, x, x, x, x, x, x, x, x]", false, "", ""},
        {"maps", "{x: 1}", true, "", ""},
        {"merges of maps", "{x: {y: 1}, z: {y: 1}}", true, "{<<: ", "}"},
        {"scalars alone", "xxxxxxxxxxxxxxxx", false, "", ""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].name);
        struct buf b = BUF_INIT(1U << 20);
        add_bomb(&b, rows[i].leaf, rows[i].map, rows[i].before, rows[i].after, 3);
        assert_int_equal(kind_of(&b), ERR_NONE);
        buf_reset(&b);
        add_bomb(&b, rows[i].leaf, rows[i].map, rows[i].before, rows[i].after, 9);
        used_bytes_max = 0;
        assert_int_equal(kind_of(&b), ERR_LIMIT);
        assert_true(used_bytes_max > 0);
        assert_true(used_bytes_max < 200000);
        assert_int_equal(used_bytes, 0);
        buf_release(&b);
    }
    json_set_alloc_funcs(malloc, free);
}

static void a_document_is_bounded_in_bytes_with_its_aliases_written_out(void **state)
{
    (void)state;
    struct buf b = BUF_INIT(16U << 20);
    /* Aliases of 100 KB each, then text alone. */
    buf_add_str(&b, "a: &a ");
    repeat(&b, "0123456789", 10000);
    buf_add_str(&b, "\nb: [");
    repeat(&b, "*a, ", 30);
    size_t fits = b.len;
    buf_add_str(&b, "]");
    assert_int_equal(kind_of(&b), ERR_NONE);
    b.len = fits;
    repeat(&b, "*a, ", 15);
    buf_add_str(&b, "]");
    assert_int_equal(kind_of(&b), ERR_LIMIT);
    buf_reset(&b);
    /* 1,000 nodes, and 100 or 101 times the same by alias. */
    buf_add_str(&b, "a: &a [");
    repeat(&b, "x,", 999);
    buf_add_str(&b, "]\nb: [");
    repeat(&b, "*a, ", 100);
    fits = b.len;
    buf_add_str(&b, "]");
    assert_int_equal(kind_of(&b), ERR_NONE);
    b.len = fits;
    buf_add_str(&b, "*a]");
    assert_int_equal(kind_of(&b), ERR_LIMIT);
    buf_reset(&b);
    repeat(&b, "# 3456789 123456\n", LIMIT_VALUES_BYTES / 17);
    assert_int_equal(kind_of(&b), ERR_NONE);
    repeat(&b, "# 3456789 123456\n", 17);
    assert_int_equal(kind_of(&b), ERR_LIMIT);
    buf_reset(&b);
    for (int i = 0; i < 1001; i++) {
        buf_addf(&b, "%%TAG !t%d! x\n", i);
        if (i == 999) {
            buf_add_str(&b, "---\na: 1\n...\n");
            assert_int_equal(kind_of(&b), ERR_NONE);
        }
    }
    assert_int_equal(kind_of(&b), ERR_LIMIT);
    buf_reset(&b);
    buf_add_str(&b, "a: ");
    repeat(&b, "x%TAG ", 2000);
    assert_int_equal(kind_of(&b), ERR_NONE);
    buf_reset(&b);
    /* Many small nodes cost more memory than their text. */
    buf_add_str(&b, "[");
    repeat(&b, "1,", 499000);
    fits = b.len;
    buf_add_str(&b, "]");
    assert_int_equal(kind_of(&b), ERR_NONE);
    b.len = fits;
    repeat(&b, "1,", 2000);
    buf_add_str(&b, "]");
    assert_int_equal(kind_of(&b), ERR_LIMIT);
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_scalars_mean_what_they_mean_to_helm),
        cmocka_unit_test(tags_decide),
        cmocka_unit_test(keys_become_the_strings_that_helm_makes),
        cmocka_unit_test(anchors_and_merge_keys_are_written_out),
        cmocka_unit_test(text_is_folded_and_kept_as_yaml_says),
        cmocka_unit_test(only_the_first_document_counts),
        cmocka_unit_test(what_is_refused_is_named_by_its_line_and_not_quoted),
        cmocka_unit_test(nesting_is_bounded_also_through_aliases),
        cmocka_unit_test(an_alias_bomb_is_refused_before_it_costs_anything),
        cmocka_unit_test(a_document_is_bounded_in_bytes_with_its_aliases_written_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
