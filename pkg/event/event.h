/* Events (events.k8s.io/v1) about HelmReleases: sent in the background, aggregated into a series
 * when the same thing happens again within 6 minutes (its count is written at most once a minute);
 * dropped (counted) when the API refuses, or the oldest when the queue is full: an Event never
 * delays or fails a sync. Bodies: note <= 1024 bytes, cut by bytes at a character; action and
 * reason never empty. "being terminated" refusals are counted too, but not logged. Threads:
 * event_emit from any; events_run is the sender thread's main function. */
#ifndef BELAY_EVENT_EVENT_H
#define BELAY_EVENT_EVENT_H

#include <jansson.h>

#include "effect/clock.h"
#include "effect/rng.h"
#include "kube/kube.h"

struct events;
struct events_options {
    struct kube *kube;
    struct clock *clock;
    struct rng *rng;
    const char *reporting_instance; /* pod name; not empty, cut to 128 bytes */
    struct cancel *cancel;
};
struct events *events_new(const struct events_options *options);
void events_free(struct events *e);
/* Until cancel; then what is queued is tried for at most 2 s. (A request that is under way then
 * ends by its own 5 s.) */
void events_run(struct events *e);

struct event {
    const char *ns, *name, *uid, *resource_version; /* of the HelmRelease */
    bool warning;
    const char *reason; /* "ReleaseSynced", "FailedReleaseSync", ... */
    const char *action; /* "Install", "Upgrade", ... */
    const char *note;
};
void event_emit(struct events *e, const struct event *ev);
/* Events dropped so far. */
int64_t events_dropped(struct events *e);

#endif
