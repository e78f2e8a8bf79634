#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/mtx.h"
#include "base/must.h"
#include "base/strmap.h"
#include "base/text.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- err ---- */

static void an_error_carries_its_kind_and_text_and_forgets_the_last_hint(void **state)
{
    (void)state;
    struct err err = {.kind = ERR_LIMIT, .code = 7, .retry_after_ms = 5, .hint = "old"};
    assert_int_equal(err_set(&err, ERR_CONFLICT, "put %s: %d", "x", 409), ERR_CONFLICT);
    assert_int_equal(err.kind, ERR_CONFLICT);
    assert_string_equal(err.msg, "put x: 409");
    assert_string_equal(err.hint, "");
    assert_int_equal(err.code, 0);
    assert_int_equal(err.retry_after_ms, 0);
    err_hint(&err, "raise %s", "--limit");
    assert_string_equal(err.hint, "raise --limit");
    /* Its own text may be among the arguments. */
    assert_int_equal(err_set(&err, ERR_GONE, "again: %s", err.msg), ERR_GONE);
    assert_string_equal(err.msg, "again: put x: 409");
}

static void wrapping_puts_the_step_in_front_and_keeps_the_rest(void **state)
{
    (void)state;
    struct err err = ERR_INIT;
    (void)err_set(&err, ERR_DENIED, "no right");
    err.code = 403;
    err_hint(&err, "grant it");
    assert_int_equal(err_wrap(&err, "list %s", "Secrets"), ERR_DENIED);
    assert_int_equal(err_wrap(&err, "sync a/b"), ERR_DENIED);
    assert_string_equal(err.msg, "sync a/b: list Secrets: no right");
    assert_int_equal(err.code, 403);
    assert_string_equal(err.hint, "grant it");
}

/* Every byte of s belongs to a whole character. */
static void assert_utf8(const char *s)
{
    for (size_t n; *s != '\0'; s += n) {
        n = text_utf8_len(s, strlen(s));
        assert_true(n > 0);
    }
}

static void a_long_message_is_cut_between_characters(void **state)
{
    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        char text[2000] = "";
        size_t at = shift;
        memset(text, 'x', shift);
        for (; at + 3 < sizeof(text) - 1; at += 3) {
            memcpy(text + at, "\xE2\x82\xAC", 4);
        }
        struct err err = ERR_INIT;
        (void)err_set(&err, ERR_INVALID, "%s", text);
        assert_true(strlen(err.msg) >= sizeof(err.msg) - 4);
        assert_utf8(err.msg);
        (void)err_wrap(&err, "%s", text);
        assert_true(strlen(err.msg) >= sizeof(err.msg) - 4);
        assert_utf8(err.msg);
        err_hint(&err, "%s", text);
        assert_true(strlen(err.hint) >= sizeof(err.hint) - 4);
        assert_utf8(err.hint);
    }
}

static void kinds_have_names_and_say_whether_a_retry_can_help(void **state)
{
    (void)state;
    assert_string_equal(err_kind_name(ERR_NONE), "NONE");
    assert_string_equal(err_kind_name(ERR_UNKNOWN_OUTCOME), "UNKNOWN_OUTCOME");
    for (int kind = 0; kind < ERR_KIND_COUNT; kind++) {
        assert_true(err_kind_name((enum err_kind)kind)[0] != '\0');
    }
    static const enum err_kind never[] = {ERR_NONE, ERR_INVALID, ERR_LIMIT, ERR_BUG};
    size_t retryable = 0;
    for (int kind = 0; kind < ERR_KIND_COUNT; kind++) {
        retryable += err_kind_retryable((enum err_kind)kind) ? 1 : 0;
    }
    for (size_t i = 0; i < COUNT(never); i++) {
        assert_false(err_kind_retryable(never[i]));
    }
    assert_int_equal(retryable, ERR_KIND_COUNT - COUNT(never));
}

/* ---- buf ---- */

static void a_buffer_grows_and_is_always_a_string(void **state)
{
    (void)state;
    struct buf b = BUF_INIT(100000);
    assert_string_equal(buf_str(&b), "");
    for (int i = 0; i < 10000; i++) {
        buf_add_char(&b, (char)('a' + i % 26));
        assert_int_equal(buf_str(&b)[b.len], '\0');
    }
    assert_int_equal(b.len, 10000);
    assert_int_equal(b.data[9999], 'a' + 9999 % 26);
    buf_reset(&b);
    assert_string_equal(buf_str(&b), "");
    buf_addf(&b, "%s=%d", "x", 7);
    buf_add(&b, "\0y", 2);
    buf_add(&b, NULL, 0);
    assert_int_equal(b.len, 5);
    assert_memory_equal(b.data, "x=7\0y", 6);
    buf_release(&b);
    assert_string_equal(buf_str(&b), "");
}

static void a_buffer_over_its_ceiling_says_so_and_drops_the_whole_addition(void **state)
{
    (void)state;
    struct buf b = BUF_INIT(5);
    buf_add_str(&b, "12345");
    assert_false(b.overflow);
    buf_add_str(&b, "");
    assert_false(b.overflow);
    buf_add_char(&b, '6');
    assert_true(b.overflow);
    assert_string_equal(buf_str(&b), "12345");
    buf_reset(&b);
    assert_false(b.overflow);
    buf_add_str(&b, "123");
    buf_add_str(&b, "456");
    buf_add_str(&b, "4");
    assert_true(b.overflow);
    assert_string_equal(buf_str(&b), "123");
    buf_release(&b);
}

static void what_is_consumed_or_taken_leaves_the_rest_usable(void **state)
{
    (void)state;
    struct buf b = BUF_INIT(100);
    buf_consume(&b, 0);
    buf_add_str(&b, "hello world");
    buf_consume(&b, 6);
    assert_string_equal(buf_str(&b), "world");
    buf_consume(&b, 5);
    assert_string_equal(buf_str(&b), "");
    buf_add_str(&b, "x");
    _cleanup_(free_cstr)
    char *taken = buf_take(&b);
    assert_string_equal(taken, "x");
    _cleanup_(free_cstr)
    char *nothing = buf_take(&b);
    assert_string_equal(nothing, "");
    buf_add_str(&b, "again");
    assert_string_equal(buf_str(&b), "again");
    buf_release(&b);
}

static void json_strings_and_url_parts_are_escaped(void **state)
{
    (void)state;
    static const struct {
        const char *text, *json, *uri;
    } rows[] = {
        {"", "\"\"", ""},
        {"a-b_c.d~9", "\"a-b_c.d~9\"", "a-b_c.d~9"},
        {"a/b c", "\"a/b c\"", "a%2Fb%20c"},
        {"\"\\\n\t", "\"\\\"\\\\\\n\\t\"", "%22%5C%0A%09"},
        {"\r\x01\x7F", "\"???\"", "%0D%01%7F"},
        {"\xC3\xA9", "\"\xC3\xA9\"", "%C3%A9"},
        {"\xFF\xC3", "\"??\"", "%FF%C3"},
        {"owner=helm,a!=b&c", "\"owner=helm,a!=b&c\"", "owner%3Dhelm%2Ca%21%3Db%26c"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct buf b = BUF_INIT(1000);
        buf_add_json_str(&b, rows[i].text);
        assert_string_equal(buf_str(&b), rows[i].json);
        buf_reset(&b);
        buf_add_uri(&b, rows[i].text);
        assert_string_equal(buf_str(&b), rows[i].uri);
        buf_release(&b);
    }
}

/* ---- text ---- */

static void only_whole_characters_count_as_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *name, *bytes;
        size_t len, want;
    } rows[] = {
        {"nothing", "", 0, 0},
        {"ASCII", "ab", 2, 1},
        {"NUL", "\0", 1, 1},
        {"two bytes", "\xC3\xA9", 2, 2},
        {"three bytes", "\xE2\x82\xAC", 3, 3},
        {"four bytes", "\xF0\x9F\x98\x80", 4, 4},
        {"the last one", "\xF4\x8F\xBF\xBF", 4, 4},
        {"cut", "\xE2\x82", 2, 0},
        {"cut to one", "\xC3", 1, 0},
        {"an end without a beginning", "\x80", 1, 0},
        {"broken off by ASCII", "\xC3x", 2, 0},
        {"the first of two bytes", "\xC2\x80", 2, 2},
        {"the last of two bytes", "\xDF\xBF", 2, 2},
        {"the first of three bytes", "\xE0\xA0\x80", 3, 3},
        {"the last of three bytes", "\xEF\xBF\xBF", 3, 3},
        {"the first of four bytes", "\xF0\x90\x80\x80", 4, 4},
        {"ends alone, many", "\x80\x80\x80\x80", 4, 0},
        {"overlong, two", "\xC0\x80", 2, 0},
        {"overlong, the last of two", "\xC1\xBF", 2, 0},
        {"a lead byte too high", "\xF5\x80\x80\x80", 4, 0},
        {"overlong, three", "\xE0\x9F\xBF", 3, 0},
        {"overlong, four", "\xF0\x8F\xBF\xBF", 4, 0},
        {"the last before surrogates", "\xED\x9F\xBF", 3, 3},
        {"a surrogate", "\xED\xA0\x80", 3, 0},
        {"beyond Unicode", "\xF4\x90\x80\x80", 4, 0},
        {"no lead byte", "\xFF\x80", 2, 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  %s\n", rows[i].name);
        assert_int_equal(text_utf8_len(rows[i].bytes, rows[i].len), rows[i].want);
    }
}

static void a_cut_end_is_trimmed_and_a_whole_one_kept(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"", ""},
        {"abc", "abc"},
        {"a\xC3\xA9", "a\xC3\xA9"},
        {"a\xC3", "a"},
        {"a\xE2\x82", "a"},
        {"a\xE2", "a"},
        {"a\xF0\x9F\x98", "a"},
        {"a\xF0\x9F\x98\x80", "a\xF0\x9F\x98\x80"},
        {"\xE2\x82", ""},
        {"\x80\x80", ""},
        {"\xC3", ""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char s[16];
        (void)snprintf(s, sizeof(s), "%s", rows[i].text);
        text_trim_utf8(s);
        assert_string_equal(s, rows[i].want);
    }
}

static void cleaned_text_is_utf8_of_bounded_length(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t max;
        const char *want;
    } rows[] = {
        {"", 4, ""},
        {"abcd", 4, "abcd"},
        {"abcde", 4, "a..."},
        {"abcdefgh", 7, "abcd..."},
        {"a\nb\tc", 9, "a\nb\tc"},
        {"a\rb\x1B[0m", 9, "a?b?[0m"},
        {"\xFF\xC3\xA9\x80", 9, "?\xC3\xA9?"},
        {"\xE2\x82\xAC\xE2\x82\xAC", 5, "..."},
        {"\xE2\x82\xAC\xE2\x82\xAC", 6, "\xE2\x82\xAC\xE2\x82\xAC"},
        {"\xE2\x82\xAC\xE2\x82\xACx", 6, "\xE2\x82\xAC..."},
        {"ab\xE2\x82\xAC", 4, "a..."},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        _cleanup_(free_cstr)
        char *got = text_clean(rows[i].text, strlen(rows[i].text), rows[i].max);
        assert_string_equal(got, rows[i].want);
        assert_true(strlen(got) <= rows[i].max);
    }
    _cleanup_(free_cstr)
    char *nul = text_clean("a\0b", 3, 9);
    assert_string_equal(nul, "a?b");
}

static void whole_numbers_are_read_within_their_bounds(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t min, max;
        bool ok;
        int64_t value;
    } rows[] = {
        {"0", 0, 9, true, 0},
        {"9", 0, 9, true, 9},
        {"10", 0, 9, false, 0},
        {"007", 0, 9, true, 7},
        {"-1", 0, 9, false, 0},
        {"-1", -1, 9, true, -1},
        {"9223372036854775807", INT64_MIN, INT64_MAX, true, INT64_MAX},
        {"9223372036854775808", INT64_MIN, INT64_MAX, false, 0},
        {"-9223372036854775808", INT64_MIN, INT64_MAX, true, INT64_MIN},
        {"-9223372036854775809", INT64_MIN, INT64_MAX, false, 0},
        {"99999999999999999999999", INT64_MIN, INT64_MAX, false, 0},
        {"", 0, 9, false, 0},
        {"-", -9, 9, false, 0},
        {"+1", 0, 9, false, 0},
        {" 1", 0, 9, false, 0},
        {"1 ", 0, 9, false, 0},
        {"1x", 0, 9, false, 0},
        {"1/", INT64_MIN, INT64_MAX, false, 0},
        {"1:", INT64_MIN, INT64_MAX, false, 0},
        {"--1", INT64_MIN, INT64_MAX, false, 0},
        {"1-", INT64_MIN, INT64_MAX, false, 0},
        {"0x1", 0, 9, false, 0},
        {"1.0", 0, 9, false, 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("  '%s'\n", rows[i].text);
        int64_t v = 42;
        assert_int_equal(text_to_int64(rows[i].text, rows[i].min, rows[i].max, &v), rows[i].ok);
        assert_int_equal(v, rows[i].ok ? rows[i].value : 42);
    }
}

static void small_helpers_on_text_hold(void **state)
{
    (void)state;
    assert_true(text_has_prefix("abc", "ab"));
    assert_true(text_has_prefix("abc", ""));
    assert_false(text_has_prefix("ab", "abc"));
    assert_true(text_has_suffix("abc", "bc"));
    assert_true(text_has_suffix("bc", "bc"));
    assert_true(text_has_suffix("bc", ""));
    assert_false(text_has_suffix("bc", "abc"));
    assert_false(text_has_suffix("abd", "bc"));
    assert_true(text_eq("a", "a"));
    assert_false(text_eq("a", "b"));
    assert_false(text_eq(NULL, ""));
    assert_false(text_eq("", NULL));
    assert_true(text_eq(NULL, NULL));
    char hex[7];
    text_hex((const uint8_t[]){0x00, 0xAF, 0x10}, 3, hex);
    assert_string_equal(hex, "00af10");
    _cleanup_(free_cstr)
    char *s = xasprintf("%d-%s", 5, "x");
    assert_string_equal(s, "5-x");
    char *moved = take_ptr(&s);
    assert_null(s);
    free(moved);
    free(xmalloc(0));
    free(xcalloc(0, 8));
    free(xrealloc(NULL, 0));
}

/* ---- strmap ---- */

static size_t freed;

static void count_free(void *value)
{
    assert_non_null(value);
    freed++;
    free(value);
}

static void a_map_finds_replaces_and_removes(void **state)
{
    (void)state;
    struct strmap m = STRMAP_INIT;
    int one = 1;
    int two = 2;
    assert_null(strmap_get(&m, "a"));
    assert_false(strmap_has(&m, "a"));
    assert_false(strmap_remove(&m, "a"));
    assert_null(strmap_take(&m, "a"));
    strmap_put(&m, "a", &one);
    strmap_put(&m, "", &two);
    strmap_put(&m, "null", NULL);
    assert_int_equal(m.count, 3);
    assert_ptr_equal(strmap_get(&m, "a"), &one);
    assert_ptr_equal(strmap_get(&m, ""), &two);
    assert_true(strmap_has(&m, "null"));
    assert_null(strmap_get(&m, "null"));
    strmap_put(&m, "a", &two);
    assert_int_equal(m.count, 3);
    assert_ptr_equal(strmap_take(&m, "a"), &two);
    assert_false(strmap_has(&m, "a"));
    assert_true(strmap_remove(&m, ""));
    assert_int_equal(m.count, 1);
    strmap_release(&m);
    assert_int_equal(m.count, 0);
    assert_null(strmap_get(&m, "null"));
    strmap_put(&m, "again", &one);
    assert_ptr_equal(strmap_get(&m, "again"), &one);
    strmap_release(&m);
}

static void values_are_freed_exactly_once_if_the_map_owns_them(void **state)
{
    (void)state;
    struct strmap m = {.free_value = count_free};
    freed = 0;
    char *kept = xstrdup("kept");
    strmap_put(&m, "a", xstrdup("1"));
    strmap_put(&m, "a", xstrdup("2"));
    assert_int_equal(freed, 1);
    strmap_put(&m, "same", kept);
    strmap_put(&m, "same", kept);
    assert_int_equal(freed, 1);
    strmap_put(&m, "nothing", NULL);
    strmap_put(&m, "nothing", xstrdup("3"));
    strmap_put(&m, "nothing", NULL);
    assert_int_equal(freed, 2);
    assert_true(strmap_remove(&m, "a"));
    assert_true(strmap_remove(&m, "nothing"));
    assert_int_equal(freed, 3);
    free(strmap_take(&m, "same"));
    assert_int_equal(freed, 3);
    strmap_put(&m, "b", xstrdup("4"));
    strmap_put(&m, "n", NULL);
    strmap_release(&m);
    assert_int_equal(freed, 4);
}

static char *name_of(int i)
{
    return xasprintf("key-%d", i);
}

static void order_of_insertion_survives_growth_and_removal(void **state)
{
    (void)state;
    enum { N = 3000 };
    struct strmap m = STRMAP_INIT;
    static int numbers[N];
    for (int i = 0; i < N; i++) {
        numbers[i] = i;
        _cleanup_(free_cstr)
        char *name = name_of(i);
        strmap_put(&m, name, &numbers[i]);
        if (i % 3 == 1) {
            _cleanup_(free_cstr)
            char *earlier = name_of(i - 1);
            assert_true(strmap_remove(&m, earlier));
        }
    }
    assert_int_equal(m.count, N - N / 3);
    int expected = 1;
    const char *key;
    void *value;
    for (size_t it = 0; strmap_next(&m, &it, &key, &value);) {
        _cleanup_(free_cstr)
        char *name = name_of(expected);
        assert_string_equal(key, name);
        assert_int_equal(*(int *)value, expected);
        /* The current entry may be removed. */
        assert_true(strmap_remove(&m, key));
        expected += expected % 3 == 1 ? 1 : 2;
    }
    assert_int_equal(m.count, 0);
    size_t it = 0;
    assert_false(strmap_next(&m, &it, NULL, NULL));
    strmap_release(&m);
}

static void a_map_that_only_turns_over_does_not_grow(void **state)
{
    (void)state;
    struct strmap m = STRMAP_INIT;
    int x = 0;
    for (int i = 0; i < 100000; i++) {
        _cleanup_(free_cstr)
        char *name = name_of(i);
        strmap_put(&m, name, &x);
        if (i >= 10) {
            _cleanup_(free_cstr)
            char *old = name_of(i - 10);
            assert_true(strmap_remove(&m, old));
        }
    }
    assert_int_equal(m.count, 10);
    assert_true(m.entry_cap < 100);
    assert_true(m.slot_count < 200);
    strmap_release(&m);
}

static void keys_are_hashed_by_siphash_1_3(void **state)
{
    (void)state;
    /* From another implementation, which was checked with the vector of SipHash-2-4's paper. */
    static const struct {
        const char *key;
        uint64_t hash;
    } rows[] = {
        {"", UINT64_C(0x358b9aa5aba22c50)},
        {"a", UINT64_C(0xb97984a455687137)},
        {"abcdefg", UINT64_C(0x1932f5de4a068f07)},
        {"abcdefgh", UINT64_C(0x5855c03d4e07c216)},
        {"abcdefghi", UINT64_C(0x266b0aad31b2d4d2)},
        {"default/podinfo-of-the-shop", UINT64_C(0xfe32f5dc704858ec)},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_true(strmap_hash(rows[i].key) == rows[i].hash);
    }
}

static void hashes_depend_on_each_byte_of_the_key(void **state)
{
    (void)state;
    static const char *const keys[] = {"",
                                       "a",
                                       "b",
                                       "ab",
                                       "ba",
                                       "abcdefg",
                                       "abcdefgh",
                                       "abcdefghi",
                                       "abcdefgi",
                                       "bbcdefgh",
                                       "abcdefghabcdefgh",
                                       "abcdefghabcdefgi"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        _cleanup_(free_cstr)
        char *copy = xstrdup(keys[i]);
        assert_true(strmap_hash(copy) == strmap_hash(keys[i]));
        for (size_t k = 0; k < i; k++) {
            assert_true(strmap_hash(keys[i]) != strmap_hash(keys[k]));
        }
    }
    uint64_t before = strmap_hash("a");
    strmap_seed(12345);
    assert_true(strmap_hash("a") != before);
}

/* ---- must (log has its own tests) ---- */

/* What fn writes to stderr. Owner: the caller. */
static char *stderr_of(void (*fn)(void))
{
    (void)fflush(stderr);
    FILE *file = tmpfile();
    assert_non_null(file);
    int saved = dup(STDERR_FILENO);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
    fn();
    (void)fflush(stderr);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    rewind(file);
    char *text = xcalloc(1, 200000);
    size_t n = fread(text, 1, 199999, file);
    text[n] = '\0';
    (void)fclose(file);
    return text;
}

static void (*fault)(void);
static int fault_status;

static void run_fault(void)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        /* The child shares nothing with the tests but stderr; cmocka's own handler must not see its
         * end. */
        (void)signal(SIGABRT, SIG_DFL);
        fault();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &fault_status, 0), child);
}

/* What fn writes to stderr; it must end in abort(). Owner: the caller. */
static char *assert_aborts(void (*fn)(void))
{
    fault = fn;
    char *line = stderr_of(run_fault);
    assert_true(WIFSIGNALED(fault_status));
    assert_int_equal(WTERMSIG(fault_status), SIGABRT);
    return line;
}

static void fail_an_assertion(void)
{
    const char *text = "x";
    must(strcmp(text, "\"y\\") == 0);
}

static void a_broken_assertion_aborts_with_one_json_line(void **state)
{
    (void)state;
    must(fault_status == 0);
    _cleanup_(free_cstr)
    char *line = assert_aborts(fail_an_assertion);
    json_t *j = json_loads(line, 0, NULL);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "level")), "fatal");
    assert_true(text_has_suffix(json_string_value(json_object_get(j, "file")), "base_test.c"));
    assert_true(json_integer_value(json_object_get(j, "line")) > 0);
    json_decref(j);
}

/* ---- mtx, cancel ---- */

struct shared {
    struct mtx lock;
    struct cond changed;
    struct cancel cancel;
    int counter; /* guarded by lock */
    bool woken;  /* guarded by lock */
};

static void shared_init(struct shared *s)
{
    *s = (struct shared){0};
    mtx_init(&s->lock, "test");
    cond_init(&s->changed);
    cancel_init(&s->cancel);
}

static void shared_release(struct shared *s)
{
    cancel_release(&s->cancel);
    cond_release(&s->changed);
    mtx_release(&s->lock);
}

static void *count_up(void *arg)
{
    struct shared *s = arg;
    for (int i = 0; i < 10000; i++) {
        MTX_GUARD(&s->lock);
        mtx_must_hold(&s->lock);
        s->counter++;
    }
    return NULL;
}

static void a_mutex_excludes_and_knows_its_holder(void **state)
{
    (void)state;
    struct shared s;
    shared_init(&s);
    pthread_t threads[4];
    for (size_t i = 0; i < COUNT(threads); i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, count_up, &s), 0);
    }
    for (size_t i = 0; i < COUNT(threads); i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(s.counter, 40000);
    {
        MTX_GUARD(&s.lock);
        mtx_must_hold(&s.lock);
    }
    assert_int_equal(s.lock.holder, 0);
    shared_release(&s);
}

static void lock_twice(void)
{
    struct mtx m;
    mtx_init(&m, "test");
    mtx_lock(&m);
    mtx_lock(&m);
}

static void unlock_what_is_free(void)
{
    struct mtx m;
    mtx_init(&m, "test");
    mtx_unlock(&m);
}

static void release_what_is_held(void)
{
    struct mtx m;
    mtx_init(&m, "test");
    mtx_lock(&m);
    mtx_release(&m);
}

static void wait_without_the_mutex(void)
{
    struct mtx m;
    struct cond c;
    mtx_init(&m, "test");
    cond_init(&c);
    cond_wait_ms(&c, &m, 0);
}

static void never_wake(void *ctx)
{
    (void)ctx;
}

static void release_with_a_waker(void)
{
    struct cancel c;
    cancel_init(&c);
    struct cancel_waker w = {.wake = never_wake};
    cancel_add(&c, &w);
    cancel_release(&c);
}

static void remove_a_stranger(void)
{
    struct cancel c;
    cancel_init(&c);
    struct cancel_waker w = {.wake = never_wake};
    cancel_remove(&c, &w);
}

static void wrap_no_error(void)
{
    struct err err = ERR_INIT;
    (void)err_wrap(&err, "x");
}

static void set_no_error(void)
{
    struct err err = ERR_INIT;
    (void)err_set(&err, ERR_NONE, "x");
}

static void consume_too_much(void)
{
    struct buf b = BUF_INIT(10);
    buf_add_str(&b, "x");
    buf_consume(&b, 2);
}

static void add_without_a_ceiling(void)
{
    struct buf b = {0};
    buf_add_str(&b, "x");
}

static void misuse_aborts(void **state)
{
    (void)state;
    static void (*const faults[])(void) = {
        lock_twice,           unlock_what_is_free,   release_what_is_held, wait_without_the_mutex,
        release_with_a_waker, remove_a_stranger,     wrap_no_error,        set_no_error,
        consume_too_much,     add_without_a_ceiling,
    };
    for (size_t i = 0; i < COUNT(faults); i++) {
        print_message("  fault %zu\n", i);
        _cleanup_(free_cstr)
        char *line = assert_aborts(faults[i]);
        assert_non_null(strstr(line, "\"level\":\"fatal\""));
    }
}

static void *answer(void *arg)
{
    struct shared *s = arg;
    MTX_GUARD(&s->lock);
    while (s->counter == 0) {
        cond_wait_ms(&s->changed, &s->lock, 60000);
        mtx_must_hold(&s->lock);
    }
    s->counter = 2;
    cond_broadcast(&s->changed);
    return NULL;
}

static void a_waiter_is_woken_and_holds_the_mutex_again(void **state)
{
    (void)state;
    struct shared s;
    shared_init(&s);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, answer, &s), 0);
    mtx_lock(&s.lock);
    s.counter = 1;
    cond_signal(&s.changed);
    while (s.counter != 2) {
        /* Of all times the longest. */
        cond_wait_ms(&s.changed, &s.lock, INT64_MAX);
    }
    /* A wait without time ends at once. */
    cond_wait_ms(&s.changed, &s.lock, 0);
    mtx_must_hold(&s.lock);
    mtx_unlock(&s.lock);
    assert_int_equal(pthread_join(thread, NULL), 0);
    shared_release(&s);
}

static int64_t monotonic_ns(void)
{
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &t), 0);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void a_wait_that_nobody_ends_lasts_its_time(void **state)
{
    (void)state;
    struct shared s;
    shared_init(&s);
    mtx_lock(&s.lock);
    /* The second one nearly always ends in the next second of the clock. */
    static const int64_t waits_ms[] = {5, 999};
    for (size_t i = 0; i < COUNT(waits_ms); i++) {
        /* It may end early, for no reason, but not each time. */
        bool lasted = false;
        for (int tries = 0; tries < 20 && !lasted; tries++) {
            int64_t began = monotonic_ns();
            cond_wait_ms(&s.changed, &s.lock, waits_ms[i]);
            lasted = monotonic_ns() - began >= waits_ms[i] * 1000000;
        }
        assert_true(lasted);
    }
    mtx_unlock(&s.lock);
    shared_release(&s);
}

static void note_wake(void *ctx)
{
    (*(int *)ctx)++;
}

static void a_cancel_wakes_all_who_wait_and_those_who_come_later(void **state)
{
    (void)state;
    struct cancel c;
    cancel_init(&c);
    int a = 0;
    int b = 0;
    int late = 0;
    struct cancel_waker of_a = {.wake = note_wake, .ctx = &a};
    struct cancel_waker of_b = {.wake = note_wake, .ctx = &b};
    struct cancel_waker of_late = {.wake = note_wake, .ctx = &late};
    cancel_add(&c, &of_a);
    cancel_add(&c, &of_b);
    cancel_remove(&c, &of_a);
    assert_false(cancel_is_raised(&c));
    cancel_raise(&c);
    assert_true(cancel_is_raised(&c));
    assert_int_equal(a, 0);
    assert_int_equal(b, 1);
    cancel_add(&c, &of_late);
    assert_int_equal(late, 1);
    cancel_remove(&c, &of_b);
    cancel_remove(&c, &of_late);
    cancel_release(&c);
    /* No cancel at all is one that never comes. */
    assert_false(cancel_is_raised(NULL));
    cancel_add(NULL, &of_a);
    cancel_remove(NULL, &of_a);
    assert_int_equal(a, 0);
}

static void poke(void *ctx)
{
    struct shared *s = ctx;
    MTX_GUARD(&s->lock);
    s->woken = true;
    cond_broadcast(&s->changed);
}

static void *raise_it(void *arg)
{
    struct shared *s = arg;
    cancel_raise(&s->cancel);
    return NULL;
}

static void a_cancel_from_another_thread_ends_a_wait(void **state)
{
    (void)state;
    struct shared s;
    shared_init(&s);
    struct cancel_waker w = {.wake = poke, .ctx = &s};
    cancel_add(&s.cancel, &w);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, raise_it, &s), 0);
    mtx_lock(&s.lock);
    while (!s.woken) {
        cond_wait_ms(&s.changed, &s.lock, 60000);
    }
    mtx_unlock(&s.lock);
    assert_true(cancel_is_raised(&s.cancel));
    assert_int_equal(pthread_join(thread, NULL), 0);
    cancel_remove(&s.cancel, &w);
    shared_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_carries_its_kind_and_text_and_forgets_the_last_hint),
        cmocka_unit_test(wrapping_puts_the_step_in_front_and_keeps_the_rest),
        cmocka_unit_test(a_long_message_is_cut_between_characters),
        cmocka_unit_test(kinds_have_names_and_say_whether_a_retry_can_help),
        cmocka_unit_test(a_buffer_grows_and_is_always_a_string),
        cmocka_unit_test(a_buffer_over_its_ceiling_says_so_and_drops_the_whole_addition),
        cmocka_unit_test(what_is_consumed_or_taken_leaves_the_rest_usable),
        cmocka_unit_test(json_strings_and_url_parts_are_escaped),
        cmocka_unit_test(only_whole_characters_count_as_utf8),
        cmocka_unit_test(a_cut_end_is_trimmed_and_a_whole_one_kept),
        cmocka_unit_test(cleaned_text_is_utf8_of_bounded_length),
        cmocka_unit_test(whole_numbers_are_read_within_their_bounds),
        cmocka_unit_test(small_helpers_on_text_hold),
        cmocka_unit_test(a_map_finds_replaces_and_removes),
        cmocka_unit_test(values_are_freed_exactly_once_if_the_map_owns_them),
        cmocka_unit_test(order_of_insertion_survives_growth_and_removal),
        cmocka_unit_test(a_map_that_only_turns_over_does_not_grow),
        cmocka_unit_test(keys_are_hashed_by_siphash_1_3),
        cmocka_unit_test(hashes_depend_on_each_byte_of_the_key),
        cmocka_unit_test(a_broken_assertion_aborts_with_one_json_line),
        cmocka_unit_test(a_mutex_excludes_and_knows_its_holder),
        cmocka_unit_test(misuse_aborts),
        cmocka_unit_test(a_waiter_is_woken_and_holds_the_mutex_again),
        cmocka_unit_test(a_wait_that_nobody_ends_lasts_its_time),
        cmocka_unit_test(a_cancel_wakes_all_who_wait_and_those_who_come_later),
        cmocka_unit_test(a_cancel_from_another_thread_ends_a_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
