/* proc_posix with real children of /bin/sh. The test process is a child subreaper, as the product
 * is, so that orphans come to it. No test waits for time to pass but the one for the deadline. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "effect/clock.h"
#include "proc_posix/proc_posix.h"

#define LONG_MS  60000
#define SHORT_MS 150

static const char *const ENVP[] = {"PATH=/usr/bin:/bin", "A=1", NULL};

struct run {
    enum err_kind kind;
    struct err err;
    struct proc_result res;
};

static struct proc_spec sh_spec(const char *const *argv, int64_t deadline_ms)
{
    return (struct proc_spec){.argv = argv,
                              .envp = ENVP,
                              .output_max = 1 << 20,
                              .deadline = mono_add_ms(clock_mono(clock_os()), deadline_ms)};
}

static struct run run_spec(const struct proc_spec *spec)
{
    struct run r = {.err = ERR_INIT, .res = PROC_RESULT_INIT};
    struct child *c = NULL;
    r.kind = proc_start(proc_posix(), spec, &c, &r.err);
    if (r.kind == ERR_NONE) {
        r.kind = proc_wait(proc_posix(), c, &r.res, &r.err);
        proc_free(proc_posix(), c);
    }
    return r;
}

static struct run run_sh(const char *script, int64_t deadline_ms)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    struct proc_spec spec = sh_spec(argv, deadline_ms);
    return run_spec(&spec);
}

static pid_t pid_in(const struct buf *b)
{
    int64_t pid = 0;
    _cleanup_(free_cstr)
    char *text = xstrndup(buf_str(b), strcspn(buf_str(b), "\n"));
    must(text_to_int64(text, 2, INT32_MAX, &pid));
    return (pid_t)pid;
}

static void assert_no_children(void)
{
    /* Everything that was started is reaped, by its waiter or as an orphan. */
    (void)proc_posix_reap_orphans();
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void outputs_and_status_come_back(void **state)
{
    (void)state;
    struct run r = run_sh("echo out; echo err >&2; exit 7", LONG_MS);
    assert_int_equal(r.kind, ERR_NONE);
    assert_int_equal(r.res.exit_code, 7);
    assert_int_equal(r.res.signal, 0);
    assert_false(r.res.timed_out);
    assert_string_equal(buf_str(&r.res.out), "out\n");
    assert_string_equal(buf_str(&r.res.err), "err\n");
    proc_result_release(&r.res);
    assert_no_children();
}

static void death_by_signal_is_told(void **state)
{
    (void)state;
    struct run r = run_sh("kill -TERM $$", LONG_MS);
    assert_int_equal(r.kind, ERR_NONE);
    assert_int_equal(r.res.exit_code, -1);
    assert_int_equal(r.res.signal, SIGTERM);
    proc_result_release(&r.res);
}

static void input_of_any_size_is_fed(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4096, 65536, 300000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char *input = xmalloc(sizes[i] + 1);
        memset(input, 'x', sizes[i]);
        const char *const argv[] = {"/bin/cat", NULL};
        struct proc_spec spec = sh_spec(argv, LONG_MS);
        spec.input = input;
        spec.input_len = sizes[i];
        struct run r = run_spec(&spec);
        assert_int_equal(r.kind, ERR_NONE);
        assert_int_equal(r.res.exit_code, 0);
        assert_int_equal(r.res.out.len, sizes[i]);
        assert_true(sizes[i] == 0 || memcmp(r.res.out.data, input, sizes[i]) == 0);
        proc_result_release(&r.res);
        free(input);
    }
}

static void child_that_does_not_read_its_input_is_no_error(void **state)
{
    (void)state;
    char *input = xcalloc(1, 1 << 20);
    const char *const argv[] = {"/bin/sh", "-c", "exec 0<&-; echo done", NULL};
    struct proc_spec spec = sh_spec(argv, LONG_MS);
    spec.input = input;
    spec.input_len = 1 << 20;
    struct run r = run_spec(&spec);
    assert_int_equal(r.kind, ERR_NONE);
    assert_int_equal(r.res.exit_code, 0);
    assert_string_equal(buf_str(&r.res.out), "done\n");
    proc_result_release(&r.res);
    free(input);
    sigset_t pending;
    must(sigpending(&pending) == 0);
    assert_false(sigismember(&pending, SIGPIPE));
}

static void output_over_the_limit_is_cut_and_drained(void **state)
{
    (void)state;
    const char *const argv[] = {"/bin/sh", "-c",
                                "head -c 500000 /dev/zero | tr '\\0' y; echo e >&2; exit 3", NULL};
    static const size_t limits[] = {1, 1000};
    for (size_t i = 0; i < 2; i++) {
        struct proc_spec spec = sh_spec(argv, LONG_MS);
        spec.output_max = limits[i];
        struct run r = run_spec(&spec);
        assert_int_equal(r.kind, ERR_NONE);
        assert_int_equal(r.res.exit_code, 3);
        assert_int_equal(r.res.out.len, limits[i]);
        assert_int_equal(buf_str(&r.res.out)[0], 'y');
        proc_result_release(&r.res);
    }
}

static void what_cannot_start_says_why(void **state)
{
    (void)state;
    static const struct {
        const char *name, *program, *cwd;
        enum err_kind kind;
    } rows[] = {
        {"missing", "/no/such/program", NULL, ERR_INVALID},
        {"not executable", "/etc/passwd", NULL, ERR_INVALID},
        {"a directory", "/usr", NULL, ERR_INVALID},
        {"relative", "sh", NULL, ERR_INVALID},
        {"no such directory to run in", "/bin/sh", "/no/such/directory", ERR_UNAVAILABLE},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *const argv[] = {rows[i].program, NULL};
        struct proc_spec spec = sh_spec(argv, LONG_MS);
        spec.cwd = rows[i].cwd;
        struct run r = run_spec(&spec);
        if (r.kind != rows[i].kind || strstr(r.err.msg, rows[i].program) == NULL) {
            fail_msg("%s: %s, %s", rows[i].name, err_kind_name(r.kind), r.err.msg);
        }
    }
    assert_no_children();
}

static void environment_directory_and_descriptors_are_what_was_given(void **state)
{
    (void)state;
    int leak = open("/dev/null", O_RDONLY); /* not CLOEXEC, on purpose */
    int kept = open("/dev/null", O_RDONLY | O_CLOEXEC);
    must(leak > 2 && kept > 2);
    _cleanup_(free_cstr)
    char *script = xasprintf(
        "env; pwd; for fd in 0 1 2 %d %d; do test -e /proc/$$/fd/$fd && echo fd=$fd; done", leak,
        kept);
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    struct proc_spec spec = sh_spec(argv, LONG_MS);
    spec.inherit_fds = &kept;
    spec.inherit_fd_count = 1;
    struct run r = run_spec(&spec);
    assert_int_equal(r.kind, ERR_NONE);
    const char *out = buf_str(&r.res.out);
    assert_non_null(strstr(out, "A=1\n"));
    assert_null(strstr(out, "HOME="));
    assert_non_null(strstr(out, "\n/\nfd=0\nfd=1\nfd=2\n"));
    _cleanup_(free_cstr)
    char *leaked = xasprintf("fd=%d\n", leak);
    _cleanup_(free_cstr)
    char *inherited = xasprintf("fd=%d\n", kept);
    assert_null(strstr(out, leaked));
    assert_non_null(strstr(out, inherited));
    assert_true((fcntl(kept, F_GETFD) & FD_CLOEXEC) != 0);
    proc_result_release(&r.res);
    (void)close(leak);
    (void)close(kept);
}

static void ignored_and_blocked_signals_are_default_in_the_child(void **state)
{
    (void)state;
    struct sigaction ignore = {.sa_handler = SIG_IGN}, old;
    must(sigaction(SIGINT, &ignore, &old) == 0);
    sigset_t block, old_mask;
    must(sigemptyset(&block) == 0 && sigaddset(&block, SIGINT) == 0);
    must(pthread_sigmask(SIG_BLOCK, &block, &old_mask) == 0);
    struct run r = run_sh("kill -INT $$; echo survived", LONG_MS);
    assert_int_equal(r.kind, ERR_NONE);
    assert_int_equal(r.res.signal, SIGINT);
    assert_string_equal(buf_str(&r.res.out), "");
    proc_result_release(&r.res);
    must(pthread_sigmask(SIG_SETMASK, &old_mask, NULL) == 0);
    must(sigaction(SIGINT, &old, NULL) == 0);
}

static void deadline_kills_the_whole_group(void **state)
{
    (void)state;
    struct run r = run_sh("sleep 1000 & trap '' TERM INT; sleep 1000", SHORT_MS);
    assert_int_equal(r.kind, ERR_NONE);
    assert_true(r.res.timed_out);
    assert_int_equal(r.res.signal, SIGKILL);
    proc_result_release(&r.res);
    /* A sleep that still ran would be our child now. */
    assert_no_children();
}

static void group_ends_with_its_leader(void **state)
{
    (void)state;
    /* The one in the background holds our pipes, too. */
    struct run r = run_sh("sleep 1000 & echo $!; exit 0", LONG_MS);
    assert_int_equal(r.kind, ERR_NONE);
    assert_int_equal(r.res.exit_code, 0);
    assert_false(r.res.timed_out);
    assert_no_children(); /* a dead member may still have been a zombie */
    assert_true(kill(pid_in(&r.res.out), 0) != 0 && errno == ESRCH);
    proc_result_release(&r.res);
}

static void process_that_left_the_group_does_not_delay_the_result(void **state)
{
    (void)state;
    struct run r = run_sh("setsid sh -c 'echo $$; exec sleep 1000' & wait_for=1; "
                          "while ! grep -q sleep /proc/$!/comm; do :; done; exit 4",
                          LONG_MS);
    assert_int_equal(r.kind, ERR_NONE);
    assert_int_equal(r.res.exit_code, 4);
    pid_t escaped = pid_in(&r.res.out);
    proc_result_release(&r.res);
    assert_int_equal(kill(escaped, SIGKILL), 0);
    /* It is our child by now: we are its subreaper. */
    siginfo_t info;
    must(waitid(P_PID, (id_t)escaped, &info, WEXITED | WNOWAIT) == 0);
    assert_int_equal(proc_posix_reap_orphans(), 1);
    assert_no_children();
}

/* ---- threads ---- */

struct signaller {
    struct child *child;
    char ready[40]; /* a file that the child makes once nothing but its exec is left */
};

/* Not before the shell has forked: dash loses a SIGINT that arrives while it starts a background
 * job (19 of 500 seen, none of 5,000 for a plain exec). */
static void *signal_it(void *arg)
{
    struct signaller *s = arg;
    struct mono end = mono_add_ms(clock_mono(clock_os()), LONG_MS);
    while (access(s->ready, F_OK) != 0 && mono_before(clock_mono(clock_os()), end)) {
        (void)clock_sleep_until(clock_os(), mono_add_ms(clock_mono(clock_os()), 1), NULL);
    }
    proc_signal(proc_posix(), s->child, SIGINT);
    return NULL;
}

static void signal_reaches_the_group_while_it_lives_and_nobody_later(void **state)
{
    (void)state;
    struct signaller s = {.ready = "/tmp/proc_posix_test.XXXXXX"};
    int fd = mkstemp(s.ready);
    must(fd >= 0 && close(fd) == 0 && unlink(s.ready) == 0);
    _cleanup_(free_cstr)
    char *script = xasprintf("sleep 1000 & : >%s; exec sleep 1000", s.ready);
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    struct proc_spec spec = sh_spec(argv, LONG_MS);
    struct child *c = NULL;
    struct err err = ERR_INIT;
    struct proc_result res = PROC_RESULT_INIT;
    assert_int_equal(proc_start(proc_posix(), &spec, &c, &err), ERR_NONE);
    s.child = c;
    pthread_t thread;
    must(pthread_create(&thread, NULL, signal_it, &s) == 0);
    assert_int_equal(proc_wait(proc_posix(), c, &res, &err), ERR_NONE);
    assert_int_equal(res.signal, SIGINT);
    must(pthread_join(thread, NULL) == 0);
    (void)unlink(s.ready);
    proc_signal(proc_posix(), c, SIGKILL);
    proc_result_release(&res);
    proc_free(proc_posix(), c);
    assert_no_children();
}

static void free_without_wait_leaves_nothing(void **state)
{
    (void)state;
    const char *const argv[] = {"/bin/sleep", "1000", NULL};
    struct proc_spec spec = sh_spec(argv, LONG_MS);
    struct child *c = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(proc_start(proc_posix(), &spec, &c, &err), ERR_NONE);
    proc_free(proc_posix(), c);
    assert_no_children();
}

static void reaping_orphans_steals_no_exit_status(void **state)
{
    (void)state;
    const char *const argv[] = {"/bin/sh", "-c", "exit 7", NULL};
    struct proc_spec spec = sh_spec(argv, LONG_MS);
    struct child *c = NULL;
    struct err err = ERR_INIT;
    struct proc_result res = PROC_RESULT_INIT;
    assert_int_equal(proc_start(proc_posix(), &spec, &c, &err), ERR_NONE);
    /* It is a zombie now, and the only child. */
    siginfo_t info;
    must(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) == 0);
    assert_int_equal(proc_posix_reap_orphans(), 0);
    assert_int_equal(proc_wait(proc_posix(), c, &res, &err), ERR_NONE);
    assert_int_equal(res.exit_code, 7);
    proc_result_release(&res);
    proc_free(proc_posix(), c);
}

static void *run_many(void *arg)
{
    intptr_t base = (intptr_t)arg;
    for (int i = 0; i < 12; i++) {
        int code = (int)base + i;
        _cleanup_(free_cstr)
        char *script = xasprintf("(setsid true &); echo %d; exit %d", code, code);
        struct run r = run_sh(script, LONG_MS);
        assert_int_equal(r.kind, ERR_NONE);
        assert_int_equal(r.res.exit_code, code);
        assert_int_equal(r.res.out.len, code < 10 ? 2 : 3);
        proc_result_release(&r.res);
        (void)proc_posix_reap_orphans();
    }
    return NULL;
}

static void threads_get_each_their_own_children(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; i++) {
        must(pthread_create(&threads[i], NULL, run_many, (void *)(i * 12)) == 0);
    }
    for (int i = 0; i < 4; i++) {
        must(pthread_join(threads[i], NULL) == 0);
    }
    /* The last `setsid true` may still be running: wait for it without a clock, until there is no
     * child at all. */
    siginfo_t info;
    while (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) == 0) {
        (void)proc_posix_reap_orphans();
    }
    assert_int_equal(errno, ECHILD);
}

static void *start_and_end(void *arg)
{
    static const char *const argv[] = {"/bin/sleep", "1000", NULL};
    struct proc_spec spec = sh_spec(argv, LONG_MS);
    struct err err = ERR_INIT;
    must(proc_start(proc_posix(), &spec, arg, &err) == ERR_NONE);
    return NULL;
}

static void child_dies_with_the_thread_that_started_it(void **state)
{
    (void)state;
    struct child *c = NULL;
    struct err err = ERR_INIT;
    struct proc_result res = PROC_RESULT_INIT;
    pthread_t thread;
    must(pthread_create(&thread, NULL, start_and_end, &c) == 0);
    must(pthread_join(thread, NULL) == 0);
    assert_int_equal(proc_wait(proc_posix(), c, &res, &err), ERR_NONE);
    assert_int_equal(res.signal, SIGKILL);
    assert_false(res.timed_out);
    proc_result_release(&res);
    proc_free(proc_posix(), c);
}

int main(void)
{
    must(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_and_status_come_back),
        cmocka_unit_test(death_by_signal_is_told),
        cmocka_unit_test(input_of_any_size_is_fed),
        cmocka_unit_test(child_that_does_not_read_its_input_is_no_error),
        cmocka_unit_test(output_over_the_limit_is_cut_and_drained),
        cmocka_unit_test(what_cannot_start_says_why),
        cmocka_unit_test(environment_directory_and_descriptors_are_what_was_given),
        cmocka_unit_test(ignored_and_blocked_signals_are_default_in_the_child),
        cmocka_unit_test(deadline_kills_the_whole_group),
        cmocka_unit_test(group_ends_with_its_leader),
        cmocka_unit_test(process_that_left_the_group_does_not_delay_the_result),
        cmocka_unit_test(signal_reaches_the_group_while_it_lives_and_nobody_later),
        cmocka_unit_test(free_without_wait_leaves_nothing),
        cmocka_unit_test(reaping_orphans_steals_no_exit_status),
        cmocka_unit_test(threads_get_each_their_own_children),
        cmocka_unit_test(child_dies_with_the_thread_that_started_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
