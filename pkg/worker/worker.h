/* The controller's work: from a key to a pass, from a pass to a sync.
 *
 *   event or timer -> queue -> worker_run (N threads) -> pass -> due? -> lock -> sync -> result and
 * unlock in one PATCH
 *
 * A pass decides from the cache, without the lock, whether a sync is due; a sync decides everything
 * anew, from the object in the lock's reply and a fresh list of Helm's records. Nothing of a pass
 * is carried into its sync. */
#ifndef BELAY_WORKER_WORKER_H
#define BELAY_WORKER_WORKER_H

#include <stdatomic.h>

#include "cache/cache.h"
#include "chart/chart.h"
#include "event/event.h"
#include "gate/gate.h"
#include "helm/helm.h"
#include "kube/kube.h"
#include "kube/kubeconfig.h"
#include "lock/lock.h"
#include "member/member.h"
#include "metrics/metrics.h"
#include "queue/queue.h"
#include "reflector/reflector.h"

struct worker_options {
    struct kube *kube;
    struct kube_config *kube_config; /* for helm's kubeconfig without the gate */
    struct gate *gate;               /* helm's way to the API server; NULL: straight */
    struct clock *clock;
    struct rng *rng;
    struct transport *fetch; /* for valuesFrom URLs */
    struct cache *releases;  /* HelmReleases; index worker_release_index */
    struct cache *records;   /* Helm's records as metadata; index worker_record_index */
    struct queue *queue;
    struct locks *locks;
    struct charts *charts;
    struct helm *helm;
    struct members *members; /* who goes first; NULL: always we */
    struct events *events;
    struct metrics *metrics;
    struct cancel *stopping;
    /* Is every earlier process of this pod, and every helm of one, proven dead? NULL: never. Any
     * thread. */
    bool (*predecessor_dead)(void *ctx);
    void *predecessor_ctx;
    int64_t interval_ms;        /* --charts-sync-interval, jittered by 5 % */
    int64_t foreign_pending_ms; /* --foreign-pending-timeout; 0 = never */
    const char *work_dir;       /* private; helm's kubeconfig is written there */
};

struct worker;
struct worker *worker_new(const struct worker_options *options);
void worker_free(struct worker *w);
/* A worker thread: until the queue is shut down. */
void worker_run(struct worker *w);

/* Reflector callbacks (ctx = struct worker *). */
void worker_on_release(void *ctx, enum reflector_event event, struct snap *before,
                       struct snap *after);
void worker_on_record(void *ctx, enum reflector_event event, struct snap *before,
                      struct snap *after);
/* Cache indexes: "namespace/release" that a HelmRelease names, or that a record is of. */
char *worker_release_index(const struct snap *s);
char *worker_record_index(const struct snap *s);

/* An old CRD was found (bad != NULL: why) or a good one again (NULL): nothing is synced while it is
 * bad. Thread-safe. */
void worker_set_crd_problem(struct worker *w, const struct err *bad);
/* NULL if none; text valid until the next change. Copies into out. */
bool worker_crd_problem(struct worker *w, char *out, size_t size);

#endif
