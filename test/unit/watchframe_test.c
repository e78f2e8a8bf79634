/* Bytes to lines, wherever the network cuts them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "watchframe/watchframe.h"

struct lines {
    struct buf text;          /* "[line][line]" */
    size_t count, stop_after; /* 0: never */
};

static bool on_line(void *ctx, const char *line, size_t len)
{
    struct lines *l = ctx;
    assert_true(len > 0);
    assert_int_equal(line[len], '\0');
    buf_add_char(&l->text, '[');
    buf_add(&l->text, line, len);
    buf_add_char(&l->text, ']');
    l->count++;
    return l->count != l->stop_after;
}

#define LINES                                                                                      \
    {                                                                                              \
        .text = BUF_INIT(16U << 20)                                                                \
    }

static const char stream[] = "{\"a\":1}\n\n{\"b\":\"\xc3\xa4\"}\r\n \t\r\n{}\n\n\nlast\nhalf";
static const char want[] = "[{\"a\":1}][{\"b\":\"\xc3\xa4\"}\r][{}][last]";

static enum err_kind feed(struct watchframe *w, struct lines *l, const char *bytes, size_t len)
{
    struct err err = ERR_INIT;
    /* A copy without a NUL, so that a sanitizer sees a step too far. */
    char *copy = xmalloc(len);
    memcpy(copy, bytes, len);
    enum err_kind kind = watchframe_feed(w, copy, len, on_line, l, &err);
    free(copy);
    assert_int_equal(kind, err.kind);
    return kind;
}

static void every_cut_gives_the_same_lines(void **state)
{
    (void)state;
    size_t len = sizeof(stream) - 1;
    for (size_t one = 0; one <= len; one++) {
        for (size_t two = one; two <= len; two++) {
            struct lines l = LINES;
            struct watchframe w;
            watchframe_init(&w);
            assert_int_equal(feed(&w, &l, stream, one), ERR_NONE);
            assert_int_equal(feed(&w, &l, stream + one, two - one), ERR_NONE);
            assert_int_equal(feed(&w, &l, stream + two, len - two), ERR_NONE);
            if (strcmp(buf_str(&l.text), want) != 0) {
                fail_msg("cut at %zu and %zu: %s", one, two, buf_str(&l.text));
            }
            watchframe_release(&w);
            buf_release(&l.text);
        }
    }
}

static void byte_by_byte_gives_the_same_lines(void **state)
{
    (void)state;
    struct lines l = LINES;
    struct watchframe w;
    watchframe_init(&w);
    for (size_t i = 0; i < sizeof(stream) - 1; i++) {
        assert_int_equal(feed(&w, &l, stream + i, 1), ERR_NONE);
    }
    assert_string_equal(buf_str(&l.text), want);
    assert_int_equal(feed(&w, &l, " and its end\n", 13), ERR_NONE);
    assert_string_equal(buf_str(&l.text) + sizeof(want) - 1, "[half and its end]");
    watchframe_release(&w);
    buf_release(&l.text);
}

static void a_line_at_the_limit_passes_and_one_beyond_it_does_not(void **state)
{
    (void)state;
    char *big = xmalloc(LIMIT_WATCH_LINE_BYTES + 2);
    memset(big, 'x', LIMIT_WATCH_LINE_BYTES + 1);
    for (int over = 0; over < 2; over++) {
        struct lines l = LINES;
        struct watchframe w;
        watchframe_init(&w);
        size_t len = LIMIT_WATCH_LINE_BYTES + (size_t)over;
        /* In two pieces, so that neither is too long by itself. */
        enum err_kind kind = feed(&w, &l, big, len / 2);
        assert_int_equal(kind, ERR_NONE);
        kind = feed(&w, &l, big + len / 2, len - len / 2);
        if (over == 0) {
            assert_int_equal(kind, ERR_NONE);
            assert_int_equal(feed(&w, &l, "\n", 1), ERR_NONE);
            assert_int_equal(l.text.len, len + 2);
        } else {
            assert_int_equal(kind, ERR_LIMIT);
            assert_int_equal(l.count, 0);
            /* The state was reset: what follows is read on its own. */
            assert_int_equal(feed(&w, &l, "next\n", 5), ERR_NONE);
            assert_string_equal(buf_str(&l.text), "[next]");
        }
        watchframe_release(&w);
        buf_release(&l.text);
    }
    free(big);
}

static void the_reader_can_stop(void **state)
{
    (void)state;
    struct lines l = LINES;
    l.stop_after = 2;
    struct watchframe w;
    watchframe_init(&w);
    assert_int_equal(feed(&w, &l, "a\nb\nc\nd", 7), ERR_CANCELLED);
    assert_string_equal(buf_str(&l.text), "[a][b]");
    watchframe_release(&w);
    buf_release(&l.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_gives_the_same_lines),
        cmocka_unit_test(byte_by_byte_gives_the_same_lines),
        cmocka_unit_test(a_line_at_the_limit_passes_and_one_beyond_it_does_not),
        cmocka_unit_test(the_reader_can_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
