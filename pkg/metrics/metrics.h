/* Prometheus metrics, text format 0.0.4 (docs/metrics.md lists all series). Names: helm-operator's
 * (flux_helm_operator_*) as they were, and the lock's own (belay_lock_*). Threads: any. */
#ifndef BELAY_METRICS_METRICS_H
#define BELAY_METRICS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct metrics;
struct metrics *metrics_new(void);
void metrics_free(struct metrics *m);

/* The lock's counters. */
enum metrics_counter {
#define COUNTER(id, name, help) METRICS_##id,
#include "metrics/counters.def"
#undef COUNTER
    METRICS_COUNTER_COUNT
};
void metrics_add(struct metrics *m, enum metrics_counter id, int64_t n);
int64_t metrics_get(struct metrics *m, enum metrics_counter id);

/* belay_lock_held_seconds histogram. */
void metrics_lock_held(struct metrics *m, double seconds);
/* flux_helm_operator_release_action_duration_seconds; action: sync install upgrade rollback
 * uninstall test. Also feeds the deprecated release_duration_seconds for action "sync". */
void metrics_action(struct metrics *m, const char *action, bool success, const char *target_ns,
                    const char *release, double seconds);
/* flux_helm_operator_release_condition_info: -1 False, 0 Unknown, 1 True. */
void metrics_condition(struct metrics *m, const char *target_ns, const char *release,
                       const char *condition, int value);
/* Remove that series, or with condition NULL all of that release. */
void metrics_condition_gone(struct metrics *m, const char *target_ns, const char *release,
                            const char *condition);
void metrics_set_release_count(struct metrics *m, int64_t n);
void metrics_set_queue_length(struct metrics *m, int64_t n);
/* The whole exposition, with process_* (RSS, CPU, fds, start time) read from /proc. */
void metrics_write(struct metrics *m, struct buf *out);

#endif
