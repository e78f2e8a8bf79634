/* The fork: everything between "here is a spec" and "a program runs, or this is why not". For this
 * package only. */
#ifndef BELAY_PROC_POSIX_PROC_SPAWN_H
#define BELAY_PROC_POSIX_PROC_SPAWN_H

#include <sys/types.h>

#include "effect/proc.h"

struct proc_fds {
    int in;       /* we write; -1 if the child's stdin is empty */
    int out;      /* we read */
    int err;      /* we read */
    int exec;     /* we read why exec failed; end of file when it did not */
    int child[4]; /* the other ends: stdin, stdout, stderr, exec */
};

/* All descriptors are above 2, CLOEXEC; in, out and err do not block. ERR_UNAVAILABLE. */
enum err_kind proc_fds_open(const struct proc_spec *spec, struct proc_fds *ret,
                            struct err *err) MUST_CHECK;
void proc_fds_close_child(struct proc_fds *fds);
void proc_fds_close(struct proc_fds *fds);
void proc_fd_close(int *fd); /* sets it to -1; -1 is allowed */

/* Fork and exec. Returns the pid, or -1 with errno. The group exists when this returns. */
pid_t proc_fork(const struct proc_spec *spec, const struct proc_fds *fds);
/* Wait for the exec. ERR_NONE: the program runs. Else the child is about to end with status 127. */
enum err_kind proc_exec_result(const struct proc_spec *spec, int exec_fd,
                               struct err *err) MUST_CHECK;

#endif
