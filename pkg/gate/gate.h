/* The gate: the one way of our helm children to the API server, on loopback (docs/lock.md 7).
 *
 *   struct gate_run *run = gate_admit(g, ...);       before the child starts
 *   gate_add_record(run, ...)                        the fresh list
 *   gate_write_kubeconfig(run, path, ...)            server http://127.0.0.1:PORT, user {as: token}
 *   ...the child runs; gate_is_latched(run): kill it...
 *   gate_dismiss(run, &report)                       after it was reaped
 *
 * A child is known by a token in Impersonate-User, which is stripped; the API server sees belay's
 * own credentials, which the child never had. Reads pass, as streams; what every helm asks first
 * comes from pkg/apicache. Writes pass as pkg/fence decides, each until its answer is there.
 *
 * Threads: libmicrohttpd's, one for each connection, and so at most one upstream connection for
 * each of a child's. The functions here may be called from any thread. */
#ifndef BELAY_GATE_GATE_H
#define BELAY_GATE_GATE_H

#include "effect/clock.h"
#include "effect/rng.h"
#include "fence/fence.h"
#include "kube/kube.h"
#include "lock/lock.h"
#include "metrics/metrics.h"

struct gate;
struct gate_options {
    struct kube *kube;
    struct clock *clock;
    struct rng *rng;
    struct metrics *metrics;
    /* Tried first: helm's discovery cache on disk is named after host and port, and a new port at
     * each start would leave a new one behind. 0: any. */
    int port;
};
/* Listens on 127.0.0.1. UNAVAILABLE if no port can be had. */
enum err_kind gate_start(const struct gate_options *options, struct gate **ret,
                         struct err *err) MUST_CHECK;
/* No run may be left. NULL is allowed. */
void gate_stop(struct gate *g);
int gate_port(const struct gate *g);

struct gate_run;
struct gate_run_options {
    struct held *held; /* the lock; outlives the run */
    struct fence_options fence;
};
struct gate_run *gate_admit(struct gate *g, const struct gate_run_options *options);
/* A record of the fresh list, before the child starts. */
void gate_add_record(struct gate_run *run, int64_t revision, const char *resource_version,
                     const struct fence_claim *claim);
/* A kubeconfig with this run's token at path (0600, atomically). It must outlive the child. */
enum err_kind gate_write_kubeconfig(const struct gate_run *run, const char *path,
                                    struct err *err) MUST_CHECK;
/* Something was refused: the child must not go on. */
bool gate_is_latched(struct gate_run *run);

#define GATE_CREATED_MAX 1000

/* What a run did. Objects are those of the chart, not Helm's records. */
struct gate_report {
    int64_t created, changed, deleted;
    int64_t requests;       /* that the child made */
    int64_t bytes_to_child; /* of reply bodies */
    bool record_written;    /* a record was created or updated */
    bool latched;
    char why[256]; /* if latched */
    /* A write was forwarded and has no answer, so it may still be carried out: the lock must not be
     * given up by hand, its lease must run out. */
    bool unanswered;
    char **created_targets; /* "/api/v1/namespaces/x/services/y"; hooks are not among them */
    size_t created_target_count;
};
void gate_report_release(struct gate_report *r);
/* The child is reaped. What it had queued is dropped; blocks until each write that was forwarded
 * has its answer, at the longest until the lock's hard deadline. Frees the run. */
void gate_dismiss(struct gate_run *run, struct gate_report *ret);

#endif
