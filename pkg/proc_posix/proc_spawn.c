#include "proc_posix/proc_spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/must.h"

#define FD_SWEEP_MAX                                                                               \
    65536 /* without close_range(2), Linux before 5.11: descriptors looked at one by one */

enum spawn_stage { STAGE_PARENT_GONE, STAGE_DESCRIPTORS, STAGE_DIRECTORY, STAGE_EXEC };

struct spawn_failure {
    int stage;
    int code;
};

void proc_fd_close(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd);
        *fd = -1;
    }
}

void proc_fds_close_child(struct proc_fds *fds)
{
    for (int i = 0; i < 4; i++) {
        proc_fd_close(&fds->child[i]);
    }
}

void proc_fds_close(struct proc_fds *fds)
{
    proc_fd_close(&fds->in);
    proc_fd_close(&fds->out);
    proc_fd_close(&fds->err);
    proc_fd_close(&fds->exec);
    proc_fds_close_child(fds);
}

/* Above 2, or the child's dup2 calls would tread on one another where this process has a standard
 * stream closed. */
static bool raise_fd(int *fd)
{
    if (*fd > 2) {
        return true;
    }
    int high = fcntl(*fd, F_DUPFD_CLOEXEC, 3);
    proc_fd_close(fd);
    *fd = high;
    return high >= 0;
}

static bool open_pipe(int *read_end, int *write_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return false;
    }
    *read_end = ends[0];
    *write_end = ends[1];
    return raise_fd(read_end) && raise_fd(write_end);
}

static bool set_nonblocking(int fd)
{
    return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0;
}

enum err_kind proc_fds_open(const struct proc_spec *spec, struct proc_fds *ret, struct err *err)
{
    struct proc_fds fds = {.in = -1, .out = -1, .err = -1, .exec = -1, .child = {-1, -1, -1, -1}};
    bool ok;
    if (spec->input_len > 0) {
        ok = open_pipe(&fds.child[0], &fds.in) && set_nonblocking(fds.in);
    } else {
        fds.child[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        ok = fds.child[0] >= 0 && raise_fd(&fds.child[0]);
    }
    ok = ok && open_pipe(&fds.out, &fds.child[1]) && set_nonblocking(fds.out);
    ok = ok && open_pipe(&fds.err, &fds.child[2]) && set_nonblocking(fds.err);
    ok = ok && open_pipe(&fds.exec, &fds.child[3]);
    if (!ok) {
        (void)err_set(err, ERR_UNAVAILABLE, "pipes for %s: %s", spec->argv[0],
                      strerrordesc_np(errno));
        proc_fds_close(&fds);
        return err->kind;
    }
    *ret = fds;
    return ERR_NONE;
}

/* ---- in the child: async-signal-safe calls only ---- */

_Noreturn static void child_fails(int report_fd, enum spawn_stage stage)
{
    struct spawn_failure f = {.stage = (int)stage, .code = errno};
    ssize_t ignored = write(report_fd, &f, sizeof(f));
    (void)ignored; /* the parent then sees a child that ended with 127 */
    _exit(127);
}

static void child_resets_signals(void)
{
    /* An inherited SIG_IGN of SIGINT makes `helm rollback` run on when it is interrupted. */
    struct sigaction action = {.sa_handler = SIG_DFL};
    for (int signo = 1; signo < NSIG; signo++) {
        (void)sigaction(signo, &action, NULL); /* SIGKILL, SIGSTOP and libc's own refuse */
    }
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static bool child_arranges_fds(const struct proc_spec *spec, const struct proc_fds *fds,
                               int fd_limit)
{
    for (int i = 0; i < 3; i++) {
        if (dup2(fds->child[i], i) != i) {
            return false;
        }
    }
    if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
        for (int fd = 3; fd < fd_limit; fd++) {
            (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        }
    }
    for (size_t i = 0; i < spec->inherit_fd_count; i++) {
        if (fcntl(spec->inherit_fds[i], F_SETFD, 0) != 0) {
            return false;
        }
    }
    return true;
}

_Noreturn static void child_main(const struct proc_spec *spec, const struct proc_fds *fds,
                                 pid_t parent, int fd_limit)
{
    int report_fd = fds->child[3];
    (void)setpgid(0, 0);
    /* Set first, then look whether the parent was gone already: no moment is left in which its
     * death goes unnoticed. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        child_fails(report_fd, STAGE_PARENT_GONE);
    }
    child_resets_signals();
    if (!child_arranges_fds(spec, fds, fd_limit)) {
        child_fails(report_fd, STAGE_DESCRIPTORS);
    }
    if (chdir(spec->cwd != NULL ? spec->cwd : "/") != 0) {
        child_fails(report_fd, STAGE_DIRECTORY);
    }
    (void)execve(spec->argv[0], (char *const *)(uintptr_t)spec->argv,
                 (char *const *)(uintptr_t)spec->envp);
    child_fails(report_fd, STAGE_EXEC);
}

/* ---- in the parent ---- */

pid_t proc_fork(const struct proc_spec *spec, const struct proc_fds *fds)
{
    struct rlimit limit;
    int fd_limit = FD_SWEEP_MAX;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FD_SWEEP_MAX) {
        fd_limit = (int)limit.rlim_cur;
    }
    pid_t parent = getpid();
    /* No handler of ours may run in the child before its signals are default. */
    sigset_t all, old;
    (void)sigfillset(&all);
    must(pthread_sigmask(SIG_SETMASK, &all, &old) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        child_main(spec, fds, parent, fd_limit);
    }
    int code = errno;
    must(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
    if (pid > 0) {
        /* In both, or a signal to the group could come before the group. EACCES: it has exec'd, and
         * so done it. */
        (void)setpgid(pid, pid);
    }
    errno = code;
    return pid;
}

static enum err_kind kind_of_failure(const struct spawn_failure *f)
{
    if (f->stage != STAGE_EXEC) {
        return ERR_UNAVAILABLE;
    }
    switch (f->code) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case ENOEXEC:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case E2BIG:
        return ERR_INVALID;
    default:
        return ERR_UNAVAILABLE;
    }
}

enum err_kind proc_exec_result(const struct proc_spec *spec, int exec_fd, struct err *err)
{
    struct spawn_failure f;
    ssize_t n;
    do {
        n = read(exec_fd, &f, sizeof(f));
    } while (n < 0 && errno == EINTR);
    if (n == 0) {
        return ERR_NONE;
    }
    if (n != (ssize_t)sizeof(f)) {
        return err_set(err, ERR_UNAVAILABLE, "start %s: no word from the child", spec->argv[0]);
    }
    static const char *const stages[] = {
        [STAGE_PARENT_GONE] = "the parent ended",
        [STAGE_DESCRIPTORS] = "its descriptors",
        [STAGE_DIRECTORY] = "its working directory",
        [STAGE_EXEC] = "exec",
    };
    must(f.stage >= STAGE_PARENT_GONE && f.stage <= STAGE_EXEC);
    return err_set(err, kind_of_failure(&f), "start %s: %s: %s", spec->argv[0], stages[f.stage],
                   strerrordesc_np(f.code));
}
