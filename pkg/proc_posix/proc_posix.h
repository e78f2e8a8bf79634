/* effect/proc.h over fork and exec; proc_posix() is declared there. Linux only.
 *
 * Rules of a child's life:
 * 1. It is registered under the registry's lock in the same breath as it is forked, and leaves the
 * registry in the same breath as it is reaped. So "registered" means "its pid is ours": signals and
 * reaping never hit a reused pid.
 * 2. It leads a process group of its own from before proc_start returns, has default signals, an
 * empty mask, no descriptors but 0, 1, 2 and the ones that were named, and dies with the thread
 * that started it.
 * 3. Only proc_wait or proc_free reap it. Before that the group gets SIGKILL, while the zombie
 * leader still pins the id.
 * 4. Processes that left the group (setsid) are not waited for: cgroup.kill, or the end of the
 * container, is for them. */
#ifndef BELAY_PROC_POSIX_PROC_POSIX_H
#define BELAY_PROC_POSIX_PROC_POSIX_H

#include <stddef.h>

#include "effect/proc.h"

/* Reap processes that were re-parented to this process (it is PID 1 of its container or a child
 * subreaper), and nothing that proc_start started: exit statuses of those are not stolen (case 55).
 * Call it now and then, or on SIGCHLD; any thread, does not block. Returns how many it reaped. */
size_t proc_posix_reap_orphans(void);

#endif
