/* Child processes as an interface. The product uses proc_posix: own process group, no shell,
 * CLOEXEC everywhere, default signals, PR_SET_PDEATHSIG=SIGKILL with the getppid() check after it
 * (so call only from threads that never end before the process does: the signal fires at the death
 * of the forking THREAD). */
#ifndef BELAY_EFFECT_PROC_H
#define BELAY_EFFECT_PROC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"
#include "timeval/timeval.h"

struct proc_spec {
    const char *const
        *argv; /* NULL-terminated; argv[0] is an absolute path; never a secret: /proc shows it */
    const char *const *envp; /* NULL-terminated, the whole environment */
    const char *cwd;         /* NULL: "/" */
    const char *input;       /* stdin; NULL: empty */
    size_t input_len;
    size_t output_max;    /* of stdout and of stderr each: the FIRST output_max bytes are kept, the
                             rest is drained */
    struct mono deadline; /* then SIGTERM-free: SIGKILL to the group */
    const int *inherit_fds; /* descriptors that the child keeps, under the same numbers (all above
                               2); NULL: none but 0, 1, 2 */
    size_t inherit_fd_count;
};

struct proc_result {
    int exit_code;  /* >= 0 if it exited, -1 if a signal ended it */
    int signal;     /* > 0 if a signal ended it */
    bool timed_out; /* killed at the deadline */
    struct buf out;
    struct buf err;
};
#define PROC_RESULT_INIT                                                                           \
    {                                                                                              \
        .out = BUF_INIT(1), .err = BUF_INIT(1)                                                     \
    }
void proc_result_release(struct proc_result *r);

struct proc;
struct child; /* implementation's own */

struct proc_ops {
    enum err_kind (*start)(struct proc *p, const struct proc_spec *spec, struct child **ret,
                           struct err *err);
    void (*signal)(struct child *c, int signo);
    enum err_kind (*wait)(struct child *c, struct proc_result *ret, struct err *err);
    void (*free)(struct child *c);
};
struct proc {
    const struct proc_ops *ops;
};

/* Start it. ERR_UNAVAILABLE (fork, pipes, limits) or ERR_INVALID (no such program). *spec is
 * borrowed until wait returns. */
static inline enum err_kind proc_start(struct proc *p, const struct proc_spec *spec,
                                       struct child **ret, struct err *err)
{
    return p->ops->start(p, spec, ret, err);
}
/* Any thread, any time between start and free: signal the whole group; nothing happens once it is
 * reaped. */
static inline void proc_signal(struct proc *p, struct child *c, int signo)
{
    p->ops->signal(c, signo);
}
/* Feed stdin, drain the outputs, reap; when it returns no process of the group is left (SIGKILL to
 * the group after the leader's end). Blocks until then, at most until the spec's deadline and the
 * kernel's time to kill. */
static inline enum err_kind proc_wait(struct proc *p, struct child *c, struct proc_result *ret,
                                      struct err *err)
{
    return p->ops->wait(c, ret, err);
}
static inline void proc_free(struct proc *p, struct child *c)
{
    p->ops->free(c);
}

struct proc *proc_posix(void);

#endif
