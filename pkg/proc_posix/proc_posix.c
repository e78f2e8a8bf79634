/* A child from fork to reaping.
 *
 *   running --exits--> zombie (pins pid and group id) --SIGKILL to the group, reap--> gone
 *      \--deadline: SIGKILL to the group--> running
 *
 * The registry (one lock, one list) is process-wide because children are: waitpid knows no
 * instances. */
#include "proc_posix/proc_posix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/mtx.h"
#include "base/must.h"
#include "base/text.h"
#include "effect/clock.h"
#include "proc_posix/proc_spawn.h"

#define POLL_MAX_MS                                                                                \
    INT64_C(1000) /* so that a passed deadline is noticed soon after the machine was suspended */
#define POLL_NO_PIDFD_MS 20 /* Linux before 5.3: look for the end by turns */
#define DRAIN_BYTES_MAX                                                                            \
    (1U << 20) /* what a pipe can still hold; a process that left the group may write for ever */
#define GROUP_END_POLL_MAX_MS 50

struct child {
    pid_t pid; /* also the group's id */
    int pidfd; /* -1 on an old kernel */
    struct proc_fds fds;
    const char *input;
    size_t input_len;
    struct mono deadline;
    struct buf out, err;
    bool timed_out;
    bool registered;           /* guarded by registry_lock: not reaped yet */
    struct child *prev, *next; /* guarded by registry_lock */
};

static struct mtx registry_lock = {.raw = PTHREAD_MUTEX_INITIALIZER, .name = "proc_posix"};
static struct child *registry; /* guarded by registry_lock */

static void register_locked(struct child *c)
{
    mtx_must_hold(&registry_lock);
    c->prev = NULL;
    c->next = registry;
    if (registry != NULL) {
        registry->prev = c;
    }
    registry = c;
    c->registered = true;
}

static void unregister_locked(struct child *c)
{
    mtx_must_hold(&registry_lock);
    must(c->registered);
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        registry = c->next;
    }
    if (c->next != NULL) {
        c->next->prev = c->prev;
    }
    c->registered = false;
}

static bool is_ours_locked(pid_t pid)
{
    mtx_must_hold(&registry_lock);
    for (const struct child *c = registry; c != NULL; c = c->next) {
        if (c->pid == pid) {
            return true;
        }
    }
    return false;
}

static void child_signal(struct child *c, int signo)
{
    MTX_GUARD(&registry_lock);
    if (c->registered) {
        (void)kill(-c->pid, signo); /* ESRCH cannot be: the leader is there, dead or alive */
    }
}

/* Blocks until the leader has exited, and takes its status; its id is free afterwards. */
static int child_reap(struct child *c)
{
    siginfo_t info;
    int rc;
    do {
        /* Without the lock: the zombie stays until it is taken below. */
        rc = waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOWAIT);
    } while (rc != 0 && errno == EINTR);
    must(rc == 0);
    int status = 0;
    MTX_GUARD(&registry_lock);
    must(waitpid(c->pid, &status, WNOHANG) == c->pid);
    unregister_locked(c);
    return status;
}

static bool child_has_exited(const struct child *c)
{
    siginfo_t info = {.si_pid = 0};
    must(waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0);
    return info.si_pid == c->pid;
}

static void child_release(struct child *c)
{
    proc_fds_close(&c->fds);
    proc_fd_close(&c->pidfd);
    buf_release(&c->out);
    buf_release(&c->err);
    free(c);
}

/* ---- the end of the group ---- */

/* Members of the group that became our children, as their own parents died. Not if the id is a new
 * child's by now. */
static void reap_adopted(pid_t group)
{
    MTX_GUARD(&registry_lock);
    while (!is_ours_locked(group) && waitpid(-group, NULL, WNOHANG) > 0) {
    }
}

/* "PID (comm) STATE PPID PGRP ..."; comm may hold anything, so count from the last parenthesis. */
static bool is_live_member(const char *stat, pid_t group)
{
    const char *end = strrchr(stat, ')');
    char state;
    int ppid, pgrp;
    return end != NULL && sscanf(end + 1, " %c %d %d", &state, &ppid, &pgrp) == 3 &&
           pgrp == group && state != 'Z' && state != 'X';
}

static bool group_is_alive(pid_t group)
{
    DIR *proc = opendir("/proc");
    if (proc == NULL) {
        return false;
    }
    bool alive = false;
    struct dirent *entry;
    while (!alive && (entry = readdir(proc)) != NULL) {
        char path[300], stat[512];
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9') {
            continue;
        }
        (void)snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd >= 0 ? read(fd, stat, sizeof(stat) - 1) : -1;
        proc_fd_close(&fd);
        if (n > 0) {
            stat[n] = '\0';
            alive = is_live_member(stat, group);
        }
    }
    (void)closedir(proc);
    return alive;
}

/* SIGKILL was sent; the kernel needs a moment for each process. Zombies that are somebody else's to
 * reap do not count. */
static void await_group_end(pid_t group)
{
    for (int pause_ms = 1;;) {
        reap_adopted(group);
        if ((kill(-group, 0) != 0 && errno == ESRCH) || !group_is_alive(group)) {
            return;
        }
        (void)poll(NULL, 0, pause_ms);
        pause_ms = pause_ms * 2 < GROUP_END_POLL_MAX_MS ? pause_ms * 2 : GROUP_END_POLL_MAX_MS;
    }
}

/* ---- starting ---- */

static enum err_kind posix_start(struct proc *p, const struct proc_spec *spec, struct child **ret,
                                 struct err *err)
{
    (void)p;
    must(spec->argv[0] != NULL && spec->envp != NULL);
    if (spec->argv[0][0] != '/') {
        return err_set(err, ERR_INVALID, "start %s: the program's path must be absolute",
                       spec->argv[0]);
    }
    struct proc_fds fds;
    enum err_kind kind = proc_fds_open(spec, &fds, err);
    if (kind != ERR_NONE) {
        return kind;
    }
    struct child *c = xcalloc(1, sizeof(*c));
    *c =
        (struct child){.pidfd = -1, .fds = fds, .input = spec->input, .input_len = spec->input_len};
    c->deadline = spec->deadline;
    c->out = (struct buf)BUF_INIT(spec->output_max > 0 ? spec->output_max : 1);
    c->err = (struct buf)BUF_INIT(spec->output_max > 0 ? spec->output_max : 1);
    mtx_lock(&registry_lock);
    c->pid = proc_fork(spec, &c->fds);
    int code = errno;
    if (c->pid > 0) {
        register_locked(c);
    }
    mtx_unlock(&registry_lock);
    proc_fds_close_child(&c->fds);
    if (c->pid < 0) {
        child_release(c);
        return err_set(err, ERR_UNAVAILABLE, "start %s: fork: %s", spec->argv[0],
                       strerrordesc_np(code));
    }
    c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
    kind = proc_exec_result(spec, c->fds.exec, err);
    proc_fd_close(&c->fds.exec);
    if (kind != ERR_NONE) {
        (void)child_reap(c);
        child_release(c);
        return kind;
    }
    *ret = c;
    return ERR_NONE;
}

/* ---- waiting ---- */

/* Keep the first max_len bytes, drop the rest. Returns how many came; 0 at the end or when nothing
 * is there. */
static size_t take_output(int *fd, struct buf *b)
{
    char chunk[16384];
    ssize_t n;
    do {
        n = read(*fd, chunk, sizeof(chunk));
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        return 0;
    }
    if (n <= 0) {
        proc_fd_close(fd);
        return 0;
    }
    size_t room = b->max_len - b->len;
    buf_add(b, chunk, (size_t)n < room ? (size_t)n : room);
    return (size_t)n;
}

/* Writing to a child that stopped reading raises SIGPIPE, which is blocked in proc_wait: take it
 * away again. */
static void swallow_sigpipe(void)
{
    sigset_t pipe_only;
    (void)sigemptyset(&pipe_only);
    (void)sigaddset(&pipe_only, SIGPIPE);
    struct timespec now = {0};
    while (sigtimedwait(&pipe_only, NULL, &now) < 0 && errno == EINTR) {
    }
}

static void feed_input(struct child *c)
{
    ssize_t n = write(c->fds.in, c->input, c->input_len);
    if (n >= 0) {
        c->input += n;
        c->input_len -= (size_t)n;
    } else if (errno == EPIPE) {
        swallow_sigpipe();
        c->input_len = 0;
    } else if (errno != EAGAIN && errno != EINTR) {
        c->input_len = 0;
    }
    if (c->input_len == 0) {
        proc_fd_close(&c->fds.in);
    }
}

static int poll_timeout_ms(struct child *c)
{
    int64_t ms = c->pidfd < 0 ? POLL_NO_PIDFD_MS : POLL_MAX_MS;
    if (!c->timed_out) {
        int64_t left_ms = mono_diff_ms(c->deadline, clock_mono(clock_os()));
        if (left_ms < 0) {
            left_ms = 0;
        }
        ms = left_ms < ms ? left_ms + 1 : ms;
    }
    return (int)ms;
}

/* Until the leader has exited: move bytes, keep the deadline. */
static void pump(struct child *c)
{
    for (;;) {
        if (!c->timed_out && !mono_before(clock_mono(clock_os()), c->deadline)) {
            c->timed_out = true;
            child_signal(c, SIGKILL);
        }
        struct pollfd fds[] = {
            {.fd = c->fds.in, .events = POLLOUT},
            {.fd = c->fds.out, .events = POLLIN},
            {.fd = c->fds.err, .events = POLLIN},
            {.fd = c->pidfd, .events = POLLIN},
        };
        int ready = poll(fds, 4, poll_timeout_ms(c));
        must(ready >= 0 || errno == EINTR);
        if (ready > 0 && fds[0].revents != 0) {
            feed_input(c);
        }
        if (ready > 0 && fds[1].revents != 0) {
            (void)take_output(&c->fds.out, &c->out);
        }
        if (ready > 0 && fds[2].revents != 0) {
            (void)take_output(&c->fds.err, &c->err);
        }
        if ((c->pidfd < 0 || (ready > 0 && fds[3].revents != 0)) && child_has_exited(c)) {
            return;
        }
    }
}

static void drain(int *fd, struct buf *b)
{
    size_t total = 0, n;
    while (*fd >= 0 && total < DRAIN_BYTES_MAX && (n = take_output(fd, b)) > 0) {
        total += n;
    }
    proc_fd_close(fd);
}

/* End the group, reap, collect what is left in the pipes. */
static int finish(struct child *c)
{
    pid_t group = c->pid;
    child_signal(c, SIGKILL);
    int status = child_reap(c);
    await_group_end(group);
    proc_fd_close(&c->fds.in);
    drain(&c->fds.out, &c->out);
    drain(&c->fds.err, &c->err);
    return status;
}

static enum err_kind posix_wait(struct child *c, struct proc_result *ret, struct err *err)
{
    (void)err;
    sigset_t pipe_only, old;
    (void)sigemptyset(&pipe_only);
    (void)sigaddset(&pipe_only, SIGPIPE);
    must(pthread_sigmask(SIG_BLOCK, &pipe_only, &old) == 0);
    pump(c);
    int status = finish(c);
    must(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
    *ret = (struct proc_result){
        .exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
        .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
        .timed_out = c->timed_out,
        .out = c->out,
        .err = c->err,
    };
    c->out = (struct buf)BUF_INIT(1);
    c->err = (struct buf)BUF_INIT(1);
    return ERR_NONE;
}

static void posix_free(struct child *c)
{
    if (c == NULL) {
        return;
    }
    mtx_lock(&registry_lock);
    bool alive = c->registered;
    mtx_unlock(&registry_lock);
    if (alive) {
        (void)finish(c);
    }
    child_release(c);
}

size_t proc_posix_reap_orphans(void)
{
    MTX_GUARD(&registry_lock);
    for (size_t reaped = 0;; reaped++) {
        siginfo_t info = {.si_pid = 0};
        bool any = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid > 0;
        /* A zombie of ours hides the ones behind it until its waiter takes it, which is soon: the
         * next call goes on. */
        if (!any || is_ours_locked(info.si_pid) ||
            waitpid(info.si_pid, NULL, WNOHANG) != info.si_pid) {
            return reaped;
        }
    }
}

struct proc *proc_posix(void)
{
    static const struct proc_ops ops = {
        .start = posix_start, .signal = child_signal, .wait = posix_wait, .free = posix_free};
    static struct proc instance = {.ops = &ops};
    return &instance;
}
