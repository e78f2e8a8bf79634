/* client-go's three sets in one map: a key is idle, queued, processing, or processing and dirty.
 *
 *   idle --add--> queued --get--> processing --done--> idle
 *                                    |  add ^
 *                                    v      |
 *                              processing+dirty --done--> queued
 * Apart from that a key may have one pending delay (the earliest asked for) and a count of
 * failures. */
#include "queue/queue.h"

#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/strmap.h"

#define BACKOFF_FIRST_MS INT64_C(5)
#define BACKOFF_MAX_MS   INT64_C(60000)
#define NOT_DELAYED      SIZE_MAX

struct item {
    char *key;
    bool queued, processing, dirty;
    enum queue_priority priority; /* of the queued or dirty add: the more urgent one wins */
    struct item *next;            /* in its priority's list while queued */
    struct mono due;              /* while in the heap */
    enum queue_priority due_priority;
    size_t heap_index; /* NOT_DELAYED = not in the heap */
    int failures;
};

struct list {
    struct item *first, *last;
};

struct queue {
    struct clock *clock;
    struct mtx lock;
    struct cond changed;
    struct strmap items;  /* key -> struct item; guarded by lock, as is all below */
    struct list lists[2]; /* by priority */
    size_t queued;
    struct item **heap; /* by due, earliest first */
    size_t heap_len, heap_cap;
    bool shut_down;
};

static void free_item(void *value)
{
    struct item *item = value;
    free(item->key);
    free(item);
}

struct queue *queue_new(struct clock *clock)
{
    struct queue *q = xcalloc(1, sizeof(*q));
    q->clock = clock;
    mtx_init(&q->lock, "queue");
    cond_init(&q->changed);
    q->items.free_value = free_item;
    return q;
}

void queue_free(struct queue *q)
{
    if (q == NULL) {
        return;
    }
    strmap_release(&q->items);
    free(q->heap);
    cond_release(&q->changed);
    mtx_release(&q->lock);
    free(q);
}

/* ---- heap ---- */

static void heap_put(struct queue *q, size_t i, struct item *item)
{
    q->heap[i] = item;
    item->heap_index = i;
}

static void heap_up(struct queue *q, size_t i)
{
    struct item *item = q->heap[i];
    while (i > 0 && mono_before(item->due, q->heap[(i - 1) / 2]->due)) {
        heap_put(q, i, q->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_put(q, i, item);
}

static void heap_down(struct queue *q, size_t i)
{
    struct item *item = q->heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= q->heap_len) {
            break;
        }
        if (child + 1 < q->heap_len && mono_before(q->heap[child + 1]->due, q->heap[child]->due)) {
            child++;
        }
        if (!mono_before(q->heap[child]->due, item->due)) {
            break;
        }
        heap_put(q, i, q->heap[child]);
        i = child;
    }
    heap_put(q, i, item);
}

static void heap_add(struct queue *q, struct item *item)
{
    if (q->heap_len == q->heap_cap) {
        q->heap_cap = q->heap_cap * 2 + 16;
        q->heap = xrealloc(q->heap, q->heap_cap * sizeof(struct item *));
    }
    heap_put(q, q->heap_len++, item);
    heap_up(q, item->heap_index);
}

static void heap_remove(struct queue *q, struct item *item)
{
    if (item->heap_index == NOT_DELAYED) {
        return;
    }
    size_t i = item->heap_index;
    item->heap_index = NOT_DELAYED;
    struct item *last = q->heap[--q->heap_len];
    if (last == item) {
        return;
    }
    heap_put(q, i, last);
    heap_up(q, i);
    heap_down(q, last->heap_index);
}

/* ---- sets ---- */

static struct item *item_of(struct queue *q, const char *key)
{
    struct item *item = strmap_get(&q->items, key);
    if (item == NULL) {
        item = xcalloc(1, sizeof(*item));
        item->key = xstrdup(key);
        item->heap_index = NOT_DELAYED;
        strmap_put(&q->items, key, item);
    }
    return item;
}

/* Nothing is known of an idle key without delay and failures: so the map is bounded by what is
 * really going on. */
static void forget_if_idle(struct queue *q, struct item *item)
{
    bool idle = !item->queued && !item->processing && item->heap_index == NOT_DELAYED &&
                item->failures == 0;
    if (idle) {
        (void)strmap_remove(&q->items, item->key);
    }
}

static void list_append(struct queue *q, struct item *item)
{
    struct list *list = &q->lists[item->priority];
    item->next = NULL;
    if (list->last != NULL) {
        list->last->next = item;
    } else {
        list->first = item;
    }
    list->last = item;
}

static void list_unlink(struct queue *q, struct item *item)
{
    struct list *list = &q->lists[item->priority];
    struct item *before = NULL;
    for (struct item *i = list->first; i != item; i = i->next) {
        must(i != NULL);
        before = i;
    }
    if (before != NULL) {
        before->next = item->next;
    } else {
        list->first = item->next;
    }
    if (list->last == item) {
        list->last = before;
    }
}

static void add_locked(struct queue *q, struct item *item, enum queue_priority priority)
{
    mtx_must_hold(&q->lock);
    if (item->processing) {
        item->priority = item->dirty && item->priority < priority ? item->priority : priority;
        item->dirty = true;
        return;
    }
    if (item->queued) {
        if (priority < item->priority) {
            list_unlink(q, item);
            item->priority = priority;
            list_append(q, item);
        }
        return;
    }
    item->queued = true;
    item->priority = priority;
    q->queued++;
    list_append(q, item);
    cond_signal(&q->changed);
}

void queue_add(struct queue *q, const char *key, enum queue_priority priority)
{
    MTX_GUARD(&q->lock);
    add_locked(q, item_of(q, key), priority);
}

static void add_after_locked(struct queue *q, struct item *item, int64_t after_ms,
                             enum queue_priority priority)
{
    if (after_ms <= 0) {
        add_locked(q, item, priority);
        return;
    }
    struct mono due = mono_add_ms(clock_mono(q->clock), after_ms);
    if (item->heap_index != NOT_DELAYED) {
        priority = priority < item->due_priority ? priority : item->due_priority;
        if (!mono_before(due, item->due)) {
            item->due_priority = priority;
            return;
        }
    }
    heap_remove(q, item);
    item->due = due;
    item->due_priority = priority;
    heap_add(q, item);
    cond_broadcast(&q->changed); /* whoever waits may have to wait for less */
}

void queue_add_after(struct queue *q, const char *key, int64_t after_ms,
                     enum queue_priority priority)
{
    MTX_GUARD(&q->lock);
    add_after_locked(q, item_of(q, key), after_ms, priority);
}

void queue_add_rate_limited(struct queue *q, const char *key)
{
    MTX_GUARD(&q->lock);
    struct item *item = item_of(q, key);
    int64_t ms = BACKOFF_FIRST_MS;
    for (int i = 0; i < item->failures && ms < BACKOFF_MAX_MS; i++) {
        ms *= 2;
    }
    item->failures++;
    add_after_locked(q, item, ms < BACKOFF_MAX_MS ? ms : BACKOFF_MAX_MS, QUEUE_HIGH);
}

void queue_forget(struct queue *q, const char *key)
{
    MTX_GUARD(&q->lock);
    struct item *item = strmap_get(&q->items, key);
    if (item != NULL) {
        item->failures = 0;
        forget_if_idle(q, item);
    }
}

void queue_drop(struct queue *q, const char *key)
{
    MTX_GUARD(&q->lock);
    struct item *item = strmap_get(&q->items, key);
    if (item != NULL) {
        heap_remove(q, item);
        item->failures = 0;
        forget_if_idle(q, item);
    }
}

/* Move what is due from the heap into the queue. */
static void promote_locked(struct queue *q, struct mono now)
{
    while (q->heap_len > 0 && !mono_before(now, q->heap[0]->due)) {
        struct item *item = q->heap[0];
        heap_remove(q, item);
        add_locked(q, item, item->due_priority);
    }
}

static struct item *pop_locked(struct queue *q)
{
    for (int p = QUEUE_HIGH; p <= QUEUE_LOW; p++) {
        struct item *item = q->lists[p].first;
        if (item != NULL) {
            list_unlink(q, item);
            item->queued = false;
            q->queued--;
            return item;
        }
    }
    return NULL;
}

char *queue_get(struct queue *q)
{
    MTX_GUARD(&q->lock);
    while (!q->shut_down) {
        promote_locked(q, clock_mono(q->clock));
        struct item *item = pop_locked(q);
        if (item != NULL) {
            item->processing = true;
            return xstrdup(item->key);
        }
        clock_wait(q->clock, &q->changed, &q->lock, q->heap_len > 0 ? q->heap[0]->due : MONO_NEVER);
    }
    return NULL;
}

void queue_done(struct queue *q, const char *key)
{
    MTX_GUARD(&q->lock);
    struct item *item = strmap_get(&q->items, key);
    must(item != NULL && item->processing);
    item->processing = false;
    if (item->dirty) {
        item->dirty = false;
        add_locked(q, item, item->priority);
    }
    forget_if_idle(q, item);
}

void queue_shutdown(struct queue *q)
{
    MTX_GUARD(&q->lock);
    q->shut_down = true;
    cond_broadcast(&q->changed);
}

size_t queue_len(struct queue *q)
{
    MTX_GUARD(&q->lock);
    return q->queued;
}
