/* Runs what pkg/lease decides: takes, renews and frees locks on HelmReleases, and stops what runs
 * under a lock that cannot be kept.
 *
 *   locks_new -> threads: locks_run (the heartbeat), locks_watchdog_run (the deadlines)
 *   worker: lock_acquire -> [held_object, held_write ...] -> held_unlock -> held_free
 *
 * A held lock is used by one worker; the heartbeat renews it meanwhile. They never write at the
 * same time: each takes the lock's write turn. No mutex is held across I/O. When a lock is lost
 * (another took it, a hand unlocked it, or its hard deadline passed without a renewal)
 * held_cancel() is raised, the child's group is killed, and nothing more is written in its name. */
#ifndef BELAY_LOCK_LOCK_H
#define BELAY_LOCK_LOCK_H

#include <jansson.h>

#include "effect/clock.h"
#include "effect/proc.h"
#include "effect/rng.h"
#include "kube/kube.h"
#include "lease/lease.h"
#include "metrics/metrics.h"

struct locks;
struct held;

struct locks_options {
    struct kube *kube;
    struct clock *clock;
    struct proc *proc;
    struct metrics *metrics;
    const char *identity; /* pod/uid/incarnation */
    int64_t lease_ms;
    struct cancel *stopping; /* raised at SIGTERM: no lock is taken any more, and what runs before
                                helm is given up */
};
struct locks *locks_new(const struct locks_options *options);
void locks_free(struct locks *l); /* no lock may be held */
/* Two threads' main functions, until locks_stop; both must run for as long as locks are held. The
 * heartbeat renews; the watchdog interrupts and kills what runs under a lock that could not be
 * renewed, and never waits for I/O. */
void locks_run(struct locks *l);
void locks_watchdog_run(struct locks *l);
void locks_stop(struct locks *l);
/* Send SIGINT (the end of the shutdown grace) or SIGKILL (helm did not listen) to every helm that
 * runs under a lock of ours, and from now on SIGINT to each that starts. */
void locks_signal_all(struct locks *l, int signo);
size_t locks_count(struct locks *l);
/* Is the lock of this object held here, under this epoch? */
bool locks_hold(struct locks *l, const char *ns, const char *name, int64_t epoch);
const char *locks_identity(const struct locks *l);
int64_t locks_lease_ms(const struct locks *l);

struct lock_request {
    const json_t *object; /* what was decided on; its resourceVersion guards the PATCH */
    bool expired; /* the lock in it is expired: the object is read afresh first and must show the
                     same lock */
    int64_t epoch_noted; /* highest epoch in this owner's Helm records; 0 if none */
    const char *reason;  /* Installing, Upgrading, Uninstalling */
    const char *doing;   /* the message's middle: "upgrades podinfo" */
};
/* One try. CONFLICT: the race is lost (the watch will tell more). INVALID: the API server dropped
 * lock fields. CANCELLED: stopping. UNKNOWN_OUTCOME that reading back could not settle, NOT_FOUND,
 * DENIED, ...: as they come. Blocks for at most two request times of the lease. */
enum err_kind lock_acquire(struct locks *l, const struct lock_request *request, struct held **ret,
                           struct err *err) MUST_CHECK;

/* The newest version of the object under the lock: a new reference. */
json_t *held_object(struct held *h);
int64_t held_epoch(const struct held *h);
int64_t
held_generation(const struct held *h); /* the generation that the lock named: the one to sync */
bool held_is_lost(struct held *h);
/* Raised when the lock is lost, or when this process is told to stop. Give it to everything but
 * helm that blocks. */
struct cancel *held_cancel(struct held *h);
struct mono held_deadline(struct held *h); /* hard deadline as of now; moves with each renewal */
/* Raised when the lock is lost, and only then. */
struct cancel *held_lost(struct held *h);
/* When the lease is out by the API server's clock, less the guard: from the newest stamp of ours.
 */
int64_t held_lease_end_ns(struct held *h);
/* Read the object afresh: does it show the lock as ours? *ret_sent: when it was asked. LEASE_LOST:
 * no, and the lock counts as lost. Others: it could not be read. */
enum err_kind held_confirm(struct held *h, struct mono *ret_sent, struct err *err) MUST_CHECK;
/* SIGKILL to the child that runs, if there is one: the gate refused it something. */
void held_kill_child(struct held *h);
/* Tell the heartbeat which child runs under this lock (NULL: none any more). */
void held_set_child(struct held *h, struct child *child);
bool held_was_interrupted(struct held *h); /* a SIGINT or SIGKILL of ours went to the child */

/* Build the new status: object is the newest version, now an RFC 3339 time in the API server's
 * clock. Returns the fragment of status to merge (new reference); it must bring its whole
 * "conditions" array if it changes any. May be called again after a conflict. minimal: the API
 * refused a first try; keep messages short. */
typedef json_t *(*held_build)(void *ctx, const json_t *object, const char *now, bool minimal);

/* Write progress; the lock stays and the write counts as a renewal. LEASE_LOST: it is not ours any
 * more. */
enum err_kind held_write(struct held *h, held_build build, void *ctx, struct err *err) MUST_CHECK;
/* Write the result and free the lock in one PATCH: build's conditions must hold Released True or
 * False. Tries again after a conflict or an unknown outcome for as long as the lock is certainly
 * ours. LEASE_LOST: the result is dropped; Helm's records tell the next holder. */
enum err_kind held_unlock(struct held *h, held_build build, void *ctx, struct err *err) MUST_CHECK;
/* Put finalizer on (append) or take it off (its removal ends the object's life while it is being
 * deleted): JSON Patch with tests. After a removal the lock is gone with the object: only held_free
 * is left to call. */
enum err_kind held_add_finalizer(struct held *h, const char *finalizer, struct err *err) MUST_CHECK;
enum err_kind held_remove_finalizer(struct held *h, const char *finalizer,
                                    struct err *err) MUST_CHECK;
/* Forget it. A lock that was not unlocked runs out by itself. */
void held_free(struct held *h);

#endif
