/* Proof that the process that ran in this pod before us is dead, and its helm too (docs/lock.md 6).
 *
 * Each belay binds the abstract unix socket "\0belay/<pod UID>" and lets its children inherit the
 * descriptor. Abstract sockets live in the pod's network namespace, which outlives a container; the
 * name is free again only when the last process that has the descriptor is gone. So: bound by us
 * means that no earlier belay of this pod, and no helm of one, is alive. */
#ifndef BELAY_PROC_POSIX_POD_SOCKET_H
#define BELAY_PROC_POSIX_POD_SOCKET_H

#include <stdbool.h>

struct pod_socket;
/* uid: the pod's UID as the downward API gives it; NULL or "" = none: then nothing is ever proven.
 */
struct pod_socket *pod_socket_new(const char *uid);
/* Is the name ours? Tries to bind it if it was not so far. Any thread. */
bool pod_socket_bound(struct pod_socket *s);
/* The descriptor for children to inherit; -1 without a UID. */
int pod_socket_fd(const struct pod_socket *s);
void pod_socket_free(struct pod_socket *s);

#endif
