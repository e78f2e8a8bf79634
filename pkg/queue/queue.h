/* The work queue, with client-go's semantics (util/workqueue): three sets (queued, dirty,
 * processing), so a key is never worked on by two workers at once and a change during work is never
 * lost; a delay heap that keeps the earliest time of a key; per-key exponential back-off. Two
 * priorities: an edit never waits behind a resync. Bounded by the number of keys.
 *
 * Threads: any. get() blocks on the clock's wait. */
#ifndef BELAY_QUEUE_QUEUE_H
#define BELAY_QUEUE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "effect/clock.h"

enum queue_priority { QUEUE_HIGH, QUEUE_LOW }; /* edits and wake-ups; resyncs */

struct queue;
struct queue *queue_new(struct clock *clock);
void queue_free(struct queue *q);

void queue_add(struct queue *q, const char *key, enum queue_priority priority);
/* Add when after_ms have passed; an earlier pending time of the same key wins; <= 0 adds now. */
void queue_add_after(struct queue *q, const char *key, int64_t after_ms,
                     enum queue_priority priority);
/* add_after with 5 ms * 2^n, capped at 60 s, n = calls since the last forget. */
void queue_add_rate_limited(struct queue *q, const char *key);
void queue_forget(struct queue *q, const char *key);
/* The next key, on the heap (the caller frees it after done); NULL once shut down. Marks it as
 * processing. */
char *queue_get(struct queue *q);
/* The work on key has ended; if it was added meanwhile it is queued again. */
void queue_done(struct queue *q, const char *key);
/* Drop a key's pending delays and back-off (object deleted). */
void queue_drop(struct queue *q, const char *key);
/* get() returns NULL from now on, at once for the waiting ones. */
void queue_shutdown(struct queue *q);
/* Keys queued now (not delayed, not processing). */
size_t queue_len(struct queue *q);

#endif
