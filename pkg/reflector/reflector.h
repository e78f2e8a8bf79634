/* LIST, then WATCH, for ever: the cache follows the API server (client-go's tools/cache/reflector).
 *
 * Paged LIST (LIMIT_LIST_PAGE, resourceVersion="" so a quorum read; an expired continue token
 * restarts the list without paging), then WATCH with allowWatchBookmarks from the list's
 * resourceVersion, timeoutSeconds random in 5..10 min, a silence limit of 90 s (the API server
 * sends a bookmark about each minute; a half-open stream ends so, case 12).
 *
 * HTTP 410, an ERROR event with code 410 and an event beyond the limit list afresh; other failures
 * back off 0.8 s to 30 s with jitter, reset after 2 healthy minutes; 429 honours Retry-After. So do
 * a watch that ends at once without a word and a 410 right after a LIST: they would go in circles.
 *
 * A LIST replaces: what is in the cache and not in the list is a DELETE, unless an item of it could
 * not be told by name. An item that cannot be parsed becomes a snap with .bad set and costs the
 * others nothing.
 *
 * One thread each: reflector_run is its main function. on_event runs on that thread, after the
 * cache has changed. */
#ifndef BELAY_REFLECTOR_REFLECTOR_H
#define BELAY_REFLECTOR_REFLECTOR_H

#include "cache/cache.h"
#include "effect/clock.h"
#include "effect/rng.h"
#include "kube/kube.h"

enum reflector_event { REFLECTOR_ADDED, REFLECTOR_MODIFIED, REFLECTOR_DELETED };

struct reflector_options {
    struct kube *kube;
    struct clock *clock;
    struct rng *rng;
    const struct kube_gvr *gvr;
    const char *ns;             /* NULL = all */
    const char *label_selector; /* NULL = none */
    const char *field_selector; /* NULL = none */
    bool metadata_only;         /* PartialObjectMetadata */
    struct cache *cache;
    struct cancel *cancel; /* ends the run */
    /* Borrowed snaps. before is NULL for ADDED, after is NULL for DELETED. MODIFIED only if
     * resourceVersion changed. */
    void (*on_event)(void *ctx, enum reflector_event event, struct snap *before,
                     struct snap *after);
    void *ctx;
    const char *name; /* for logs: "helmreleases" */
};

struct reflector;
struct reflector *reflector_new(const struct reflector_options *options);
/* Blocks until cancel is raised. */
void reflector_run(struct reflector *r);
void reflector_free(struct reflector *r);
/* Milliseconds since the last byte of a healthy list or watch; for /readyz and metrics. */
int64_t reflector_silence_ms(struct reflector *r);

#endif
