/* Log lines: whatever bytes go in, a line comes out that its readers take back. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

/* ---- stderr for a while ---- */

static int kept_stderr;

static void capture(void)
{
    int fd = memfd_create("log", MFD_CLOEXEC);
    kept_stderr = dup(STDERR_FILENO);
    must(fd >= 0 && kept_stderr >= 0 && dup2(fd, STDERR_FILENO) == STDERR_FILENO);
    (void)close(fd);
}

/* What was written since; on the heap. */
static char *captured(void)
{
    off_t len = lseek(STDERR_FILENO, 0, SEEK_END);
    must(len >= 0);
    char *text = xcalloc(1, (size_t)len + 1);
    must(pread(STDERR_FILENO, text, (size_t)len, 0) == len);
    must(dup2(kept_stderr, STDERR_FILENO) == STDERR_FILENO);
    (void)close(kept_stderr);
    return text;
}

static int64_t fixed_time(void)
{
    return INT64_C(1796126400) * 1000000000 + 250042999;
}

static void use(enum log_format format, enum log_level level, bool with_time)
{
    log_init(&(struct log_options){
        .format = format, .level = level, .now_wall_ns = with_time ? fixed_time : NULL});
    log_ctx_clear();
}

/* One line that is one JSON object. */
static json_t *parse_line(const char *text)
{
    size_t len = strlen(text);
    if (len == 0 || text[len - 1] != '\n' || strchr(text, '\n') != text + len - 1) {
        fail_msg("not one line: %.200s", text);
    }
    json_t *j = NULL;
    struct err err = ERR_INIT;
    if (jsonx_parse(text, len, &j, &err) != ERR_NONE) {
        fail_msg("%s: %.200s", err.msg, text);
    }
    return j;
}

/* ---- JSON ---- */

static void a_json_line_has_all_that_was_said(void **state)
{
    (void)state;
    use(LOG_FORMAT_JSON, LOG_INFO, true);
    log_ctx_set((const struct log_field[]){LOG_S("key", "a/x"), LOG_I("generation", 7)}, 2);
    capture();
    log_warn("sync", "it \"failed\"", LOG_S("err", "a\nb"), LOG_I("in_ms", -5));
    _cleanup_(free_cstr)
    char *text = captured();
    assert_string_equal(
        text, "{\"ts\":\"2026-12-01T12:00:00.250042Z\",\"level\":\"warn\",\"component\":\"sync\","
              "\"msg\":\"it \\\"failed\\\"\",\"key\":\"a/x\",\"generation\":7,\"err\":\"a\\nb\","
              "\"in_ms\":-5}\n");
}

static void any_bytes_are_json(void **state)
{
    (void)state;
    use(LOG_FORMAT_JSON, LOG_DEBUG, false);
    uint64_t seed = 7;
    for (int i = 1; i < 3000; i++) {
        char bytes[24] = {0};
        bytes[0] = i < 256 ? (char)i : 'x';
        for (size_t k = 1; i >= 256 && k < sizeof(bytes) - 1; k++) {
            seed = seed * 6364136223846793005U + 1442695040888963407U;
            bytes[k] = (char)(seed >> 56);
        }
        log_ctx_set((const struct log_field[]){LOG_S("ctx", bytes)}, 1);
        capture();
        log_debug("c", bytes, LOG_S("field", bytes));
        _cleanup_(free_cstr)
        char *text = captured();
        _cleanup_json_ json_t *j = parse_line(text);
        assert_string_equal(jsonx_str(j, "msg", "?"), jsonx_str(j, "field", "!"));
        if (i >= ' ' && i < 0x7F) {
            assert_string_equal(jsonx_str(j, "msg", "?"), bytes);
            assert_string_equal(jsonx_str(j, "ctx", "?"), bytes);
        }
    }
}

static void long_lines_are_whole_lines(void **state)
{
    (void)state;
    enum { AROUND = 64 << 10 };
    char *big = xmalloc(AROUND + 100);
    memset(big, 'm', AROUND + 99);
    big[AROUND + 99] = '\0';
    for (int format = LOG_FORMAT_FMT; format <= LOG_FORMAT_JSON; format++) {
        use((enum log_format)format, LOG_INFO, true);
        log_ctx_set((const struct log_field[]){LOG_S("key", "a/x")}, 1);
        bool cut_seen = false;
        bool whole_seen = false;
        for (size_t len = AROUND - 150; len < AROUND + 90; len++) {
            capture();
            log_info("c", "the message", LOG_S("field", big + AROUND + 99 - len));
            _cleanup_(free_cstr)
            char *text = captured();
            size_t got = strlen(text);
            assert_int_equal(text[got - 1], '\n');
            assert_true(got <= AROUND + 2);
            bool cut = strstr(text, "the message") != NULL && got < 300;
            assert_true(cut || got > len);
            assert_non_null(strstr(text, "a/x"));
            cut_seen = cut_seen || cut;
            whole_seen = whole_seen || !cut;
            if (format == LOG_FORMAT_JSON) {
                _cleanup_json_ json_t *j = parse_line(text);
                assert_int_equal(jsonx_int(j, "cut", 0), cut);
            }
        }
        assert_true(cut_seen && whole_seen);
    }
    use(LOG_FORMAT_JSON, LOG_INFO, false);
    capture();
    log_info("c", big);
    _cleanup_(free_cstr)
    char *text = captured();
    _cleanup_json_ json_t *j = parse_line(text);
    assert_int_equal(strlen(jsonx_str(j, "msg", "")), 1024);
    free(big);
}

/* ---- logfmt ---- */

static void logfmt_quotes_what_needs_it(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"plain", "plain"},
        {"a/b:c,d[0]", "a/b:c,d[0]"},
        {"", "\"\""},
        {"two words", "\"two words\""},
        {"a=b", "\"a=b\""},
        {"a\"b", "\"a\\\"b\""},
        {"a\\b", "\"a\\\\b\""},
        {"a\nb\tc", "\"a\\nb\\tc\""},
        {"bell\x07", "\"bell?\""},
        {"del\x7f", "\"del?\""},
        {"bad\xff", "\"bad?\""},
        {"\xc3\xa4", "\"\xc3\xa4\""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        use(LOG_FORMAT_FMT, LOG_INFO, false);
        capture();
        log_error("c", "m", LOG_S("f", rows[i].text), LOG_I("n", i));
        _cleanup_(free_cstr)
        char *text = captured();
        _cleanup_(free_cstr)
        char *want = xasprintf("level=error component=c msg=m f=%s n=%zu\n", rows[i].want, i);
        assert_string_equal(text, want);
    }
    use(LOG_FORMAT_FMT, LOG_INFO, true);
    capture();
    log_info("c", "m");
    _cleanup_(free_cstr)
    char *text = captured();
    assert_string_equal(text, "ts=2026-12-01T12:00:00.250042Z level=info component=c msg=m\n");
}

/* A reader of logfmt as its libraries are: the value of name in a line, on the heap. It fails on
 * anything that they would refuse or cut differently. */
static char *logfmt_value(const char *line, const char *name)
{
    struct buf value = BUF_INIT(1U << 20);
    bool found = false;
    const char *p = line;
    for (;;) {
        size_t len = strcspn(p, " =\"\n");
        must(len > 0 && p[len] == '=');
        bool ours = len == strlen(name) && memcmp(p, name, len) == 0;
        must(!ours || !found);
        found = found || ours;
        p += len + 1;
        bool quoted = *p == '"';
        p += quoted ? 1 : 0;
        for (; quoted ? *p != '"' : *p != ' ' && *p != '\n'; p++) {
            must((unsigned char)*p >= ' ' && (quoted || (*p != '"' && *p != '=')));
            char c = *p;
            if (quoted && c == '\\') {
                p++;
                must(*p == '\\' || *p == '"' || *p == 'n' || *p == 't');
                c = *p == 'n' ? '\n' : *p == 't' ? '\t' : *p;
            }
            if (ours) {
                buf_add_char(&value, c);
            }
        }
        p += quoted ? 1 : 0;
        if (*p == '\n') {
            must(p[1] == '\0' && found);
            return buf_take(&value);
        }
        must(*p == ' ');
        p++;
    }
}

static void any_bytes_are_logfmt(void **state)
{
    (void)state;
    use(LOG_FORMAT_FMT, LOG_DEBUG, true);
    uint64_t seed = 11;
    for (int i = 1; i < 3000; i++) {
        char bytes[24] = {0};
        bytes[0] = i < 256 ? (char)i : 'x';
        for (size_t k = 1; i >= 256 && k < sizeof(bytes) - 1; k++) {
            seed = seed * 6364136223846793005U + 1442695040888963407U;
            bytes[k] = (char)(seed >> 56);
        }
        log_ctx_set((const struct log_field[]){LOG_S("ctx", bytes)}, 1);
        capture();
        log_debug("c", bytes, LOG_S("field", bytes), LOG_I("n", -i));
        _cleanup_(free_cstr)
        char *text = captured();
        _cleanup_(free_cstr)
        char *want = text_clean(bytes, strlen(bytes), sizeof(bytes) + 4);
        _cleanup_(free_cstr)
        char *msg = logfmt_value(text, "msg");
        _cleanup_(free_cstr)
        char *field = logfmt_value(text, "field");
        assert_string_equal(msg, want);
        assert_string_equal(field, want);
        /* A copy of the context's may have been cut, so half a character at its end goes. */
        text_trim_utf8(bytes);
        _cleanup_(free_cstr)
        char *want_ctx = text_clean(bytes, strlen(bytes), sizeof(bytes) + 4);
        _cleanup_(free_cstr)
        char *ctx = logfmt_value(text, "ctx");
        assert_string_equal(ctx, want_ctx);
    }
}

/* ---- levels and fields ---- */

static void lower_levels_are_not_written(void **state)
{
    (void)state;
    static const char *const words[] = {"debug", "info", "warn", "error"};
    for (int least = LOG_DEBUG; least <= LOG_ERROR; least++) {
        use(LOG_FORMAT_FMT, (enum log_level)least, false);
        capture();
        for (int level = LOG_DEBUG; level <= LOG_ERROR; level++) {
            log_at((enum log_level)level, "c", "m");
        }
        _cleanup_(free_cstr)
        char *text = captured();
        for (int level = LOG_DEBUG; level <= LOG_ERROR; level++) {
            assert_int_equal(log_enabled((enum log_level)level), level >= least);
            assert_int_equal(strstr(text, words[level]) != NULL, level >= least);
        }
    }
}

static void context_fields_are_replaced_bounded_and_cleared(void **state)
{
    (void)state;
    use(LOG_FORMAT_JSON, LOG_INFO, false);
    log_ctx_put(LOG_S("key", "old"));
    log_ctx_put(LOG_I("epoch", 3));
    log_ctx_put(LOG_S("key", "new"));
    char text_of_caller[] = "kept";
    log_ctx_put(LOG_S("copied", text_of_caller));
    memset(text_of_caller, 'x', 4);
    char wide[400]; /* cut inside a character of 2 bytes */
    for (size_t i = 0; i + 1 < sizeof(wide); i += 2) {
        memcpy(wide + i, "\xc3\xa4", 2);
    }
    wide[398] = '\0';
    log_ctx_put(LOG_S("wide", wide));
    static const char *const more[] = {"f5", "f6", "f7", "f8", "f9"};
    for (size_t i = 0; i < 5; i++) {
        log_ctx_put(LOG_I(more[i], i));
    }
    capture();
    log_info("c", "m");
    _cleanup_(free_cstr)
    char *text = captured();
    _cleanup_json_ json_t *j = parse_line(text);
    assert_string_equal(jsonx_str(j, "key", ""), "new");
    assert_int_equal(jsonx_int(j, "epoch", 0), 3);
    assert_string_equal(jsonx_str(j, "copied", ""), "kept");
    assert_int_equal(strlen(jsonx_str(j, "wide", "")), 254);
    assert_int_equal(jsonx_int(j, "f8", -1), 3);
    assert_null(jsonx_at(j, "f9")); /* the ninth */
    log_ctx_clear();
    capture();
    log_info("c", "m");
    _cleanup_(free_cstr)
    char *after = captured();
    assert_string_equal(after, "{\"level\":\"info\",\"component\":\"c\",\"msg\":\"m\"}\n");
}

static void *other_thread(void *arg)
{
    (void)arg;
    log_info("c", "other");
    return NULL;
}

static void context_is_each_threads_own(void **state)
{
    (void)state;
    use(LOG_FORMAT_FMT, LOG_INFO, false);
    log_ctx_put(LOG_S("key", "mine"));
    capture();
    pthread_t thread;
    must(pthread_create(&thread, NULL, other_thread, NULL) == 0);
    must(pthread_join(thread, NULL) == 0);
    _cleanup_(free_cstr)
    char *text = captured();
    assert_string_equal(text, "level=info component=c msg=other\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_json_line_has_all_that_was_said),
        cmocka_unit_test(any_bytes_are_json),
        cmocka_unit_test(long_lines_are_whole_lines),
        cmocka_unit_test(logfmt_quotes_what_needs_it),
        cmocka_unit_test(any_bytes_are_logfmt),
        cmocka_unit_test(lower_levels_are_not_written),
        cmocka_unit_test(context_fields_are_replaced_bounded_and_cleared),
        cmocka_unit_test(context_is_each_threads_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
