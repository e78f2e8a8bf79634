/* Who goes first (docs/lock.md 9): the replicas know one another by a coordination.k8s.io Lease
 * each, and order themselves per object by rendezvous hashing, so that they do not all race for
 * each lock. Economy only: safety never rests on it, and without any membership (RBAC forbids
 * Leases) everybody is first, with more lost PATCHes.
 *
 * A member is alive while its Lease keeps changing, by this machine's monotonic clock; no wall
 * clock is compared. Members that serve something else (another --allow-namespace or selector) are
 * not in the order. Threads: members_run is the main function of one; members_rank from any. */
#ifndef BELAY_MEMBER_MEMBER_H
#define BELAY_MEMBER_MEMBER_H

#include <stdint.h>

#include "effect/clock.h"
#include "effect/rng.h"
#include "kube/kube.h"

struct members;
struct members_options {
    struct kube *kube;
    struct clock *clock;
    struct rng *rng;
    const char *ns;        /* where the Leases are: the pod's own namespace */
    const char *identity;  /* pod/uid/incarnation */
    const char *scope;     /* what this replica serves; equals are in one order */
    struct cancel *cancel; /* ends the run; our Lease is deleted then */
};
struct members *members_new(const struct members_options *options);
void members_free(struct members *m);
void members_run(struct members *m);

/* Our place in the order for this object: 0 = first. failures moves the order on, so that a retry
 * goes to another replica. */
int members_rank(struct members *m, const char *uid, int64_t failures);
/* Members that are alive as far as we know, ourselves included. */
int members_count(struct members *m);

/* The weight of a member for an object (rendezvous hashing, Thaler and Ravishankar 1998): the
 * highest goes first. Equal in every process. Pure. */
uint64_t member_weight(const char *identity, const char *uid, int64_t failures);

#endif
