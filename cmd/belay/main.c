/* belay: flags, wiring, signals. All work is in pkg/.
 *
 * Threads: main (signals), three reflectors, N workers, heartbeat, watchdog, events, the HTTP
 * server's own. All start with every signal blocked; main takes them by sigtimedwait. Children are
 * forked by workers, which end only at shutdown. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "app.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/strmap.h"
#include "dirs.h"
#include "effect/clock.h"
#include "effect/rng.h"
#include "flags.h"
#include "proc_posix/proc_posix.h"

#define EXIT_USAGE 2
#define FDS_WANTED 16384
/* helm notes an interrupted run within 40 ms (seen); what has not ended after this long will not.
 */
#define PATIENCE_MS INT64_C(5000)

static int64_t now_wall_ns(void)
{
    return clock_wall(clock_os()).ns;
}

static void start_log(const struct flags *flags)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    enum log_level level = LOG_INFO;
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (strcmp(levels[i], flags->log_level) == 0) {
            level = (enum log_level)i;
        }
    }
    log_init(&(struct log_options){
        .format = strcmp(flags->log_format, "json") == 0 ? LOG_FORMAT_JSON : LOG_FORMAT_FMT,
        .level = level,
        .now_wall_ns = now_wall_ns});
    for (int i = 0; i < flags->ignored_count; i++) {
        log_warn("main", "this flag means nothing here and is ignored, take it out of the manifest",
                 LOG_S("flag", flags->ignored[i]));
    }
}

static void block_signals(sigset_t *set)
{
    (void)signal(SIGPIPE, SIG_IGN);
    must(sigemptyset(set) == 0);
    must(sigaddset(set, SIGTERM) == 0);
    must(sigaddset(set, SIGINT) == 0);
    must(sigaddset(set, SIGCHLD) == 0);
    must(pthread_sigmask(SIG_BLOCK, set, NULL) == 0);
}

/* Wait for SIGTERM or SIGINT, at most ms (< 0: for ever). 0 = none came. */
static int wait_signal(const sigset_t *set, int64_t ms)
{
    struct timespec timeout = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * NS_PER_MS};
    for (;;) {
        int signo = ms < 0 ? sigwaitinfo(set, NULL) : sigtimedwait(set, NULL, &timeout);
        if (signo == SIGCHLD) {
            proc_posix_reap_orphans(); /* grandchildren that came to us: nobody else waits for them
                                          (case 55) */
            if (ms >= 0) {
                return 0;
            }
            continue;
        }
        if (signo > 0) {
            return signo;
        }
        if (errno != EINTR) {
            return 0;
        }
    }
}

/* After the first signal: what runs may end within the grace, then helm is interrupted. A second
 * signal ends it at once. */
static void drain(struct app *app, const sigset_t *set, int64_t grace_ms)
{
    app_stop_begin(app);
    struct mono grace_end = mono_add_ms(clock_mono(clock_os()), grace_ms);
    struct mono patience_end = mono_add_ms(grace_end, PATIENCE_MS);
    bool interrupted = false;
    bool killed = false;
    while (!app_is_idle(app)) {
        struct mono now = clock_mono(clock_os());
        if (!interrupted && !mono_before(now, grace_end)) {
            log_info("main", "the grace is over, helm is interrupted");
            app_interrupt(app);
            interrupted = true;
        }
        if (!killed && !mono_before(now, patience_end)) {
            log_warn("main", "helm did not end when it was interrupted, it is killed");
            app_kill(app);
            killed = true;
        }
        /* Short steps, because a worker's end sends no signal. */
        if (wait_signal(set, 50) != 0) {
            log_warn("main", "second signal: leaving at once, what was held runs out by itself");
            _exit(1);
        }
    }
}

/* Each helm opens a connection for each object that it writes at the same time, and the gate one
 * more for each: the usual soft limit of 1024 is too low for many workers. */
static void raise_fd_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FDS_WANTED) {
        limit.rlim_cur = limit.rlim_max < FDS_WANTED ? limit.rlim_max : FDS_WANTED;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int run(const struct flags *flags)
{
    sigset_t set;
    raise_fd_limit();
    block_signals(&set);
    uint64_t seed = 0;
    rng_fill(rng_os(), &seed, sizeof(seed));
    strmap_seed(seed);
    /* Grandchildren of a helm that died come to us, to be reaped, and not to whatever is PID 1. */
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    struct err err = ERR_INIT;
    struct dirs dirs = {0};
    if (dirs_open(flags->cache_dir, &dirs, &err)) {
        (void)fprintf(stderr, "belay: %s\n", err.msg);
        return EXIT_USAGE;
    }
    struct app *app = NULL;
    int rc = 0;
    if (app_start(flags, &dirs, &app, &err)) {
        (void)fprintf(stderr, "belay: %s%s%s\n", err.msg, err.hint[0] != '\0' ? ": " : "",
                      err.hint);
        rc = err.kind == ERR_INVALID && err.code == EXIT_USAGE ? EXIT_USAGE : 1;
    } else {
        int signo = wait_signal(&set, -1);
        log_info("main", "stopping", LOG_S("signal", signo == SIGTERM ? "SIGTERM" : "SIGINT"));
        drain(app, &set, flags->shutdown_grace_ms);
        app_stop(app);
        log_info("main", "stopped");
    }
    dirs_close(&dirs);
    return rc;
}

int main(int argc, char **argv)
{
    struct flags flags;
    struct err err = ERR_INIT;
    if (flags_parse(argc, argv, &flags, &err)) {
        (void)fprintf(stderr, "belay: %s\n", err.msg);
        return EXIT_USAGE;
    }
    if (flags.help) {
        flags_usage(stdout);
        return 0;
    }
    if (flags.version) {
        (void)printf("belay %s\n", BELAY_VERSION);
        return 0;
    }
    start_log(&flags);
    return run(&flags);
}
