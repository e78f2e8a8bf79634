/* The work queue by a clock that only moves when somebody waits, and under real threads. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <malloc.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/must.h"
#include "queue/queue.h"

/* Waiting until a time makes it that time. */
struct fake_clock {
    struct clock clock;
    struct mono now;
};

static struct mono fake_mono(struct clock *c)
{
    return ((struct fake_clock *)c)->now;
}

static void fake_wait(struct clock *c, struct cond *cond, struct mtx *m, struct mono deadline)
{
    (void)cond;
    mtx_must_hold(m);
    if (deadline.ns == INT64_MAX) {
        fail_msg("the queue would wait for ever");
    }
    ((struct fake_clock *)c)->now = deadline;
}

static const struct clock_ops fake_ops = {.mono = fake_mono, .wait = fake_wait};

static struct fake_clock fake(void)
{
    return (struct fake_clock){.clock = {.ops = &fake_ops}, .now = {1}};
}

static void expect(struct queue *q, const char *key)
{
    char *got = queue_get(q);
    assert_string_equal(got, key);
    queue_done(q, got);
    free(got);
}

static void edits_go_before_resyncs_and_each_in_order(void **state)
{
    (void)state;
    struct fake_clock c = fake();
    struct queue *q = queue_new(&c.clock);
    queue_add(q, "low-1", QUEUE_LOW);
    queue_add(q, "low-2", QUEUE_LOW);
    queue_add(q, "high-1", QUEUE_HIGH);
    queue_add(q, "high-2", QUEUE_HIGH);
    queue_add(q, "high-1", QUEUE_HIGH); /* in it once */
    queue_add(q, "low-2", QUEUE_HIGH);  /* becomes urgent */
    assert_int_equal(queue_len(q), 4);
    expect(q, "high-1");
    expect(q, "high-2");
    expect(q, "low-2");
    expect(q, "low-1");
    assert_int_equal(queue_len(q), 0);
    queue_free(q);
}

static void a_change_during_work_is_not_lost_and_not_worked_on_twice_at_once(void **state)
{
    (void)state;
    struct fake_clock c = fake();
    struct queue *q = queue_new(&c.clock);
    queue_add(q, "a", QUEUE_HIGH);
    char *a = queue_get(q);
    queue_add(q, "a", QUEUE_LOW);
    queue_add(q, "a", QUEUE_HIGH);
    queue_add(q, "b", QUEUE_LOW);
    assert_int_equal(queue_len(q), 1); /* b alone: a is being worked on */
    expect(q, "b");
    queue_done(q, a);
    free(a);
    expect(q, "a");
    assert_int_equal(queue_len(q), 0);
    queue_free(q);
}

static void the_earliest_delay_of_a_key_counts(void **state)
{
    (void)state;
    struct fake_clock c = fake();
    struct queue *q = queue_new(&c.clock);
    queue_add_after(q, "a", 500, QUEUE_LOW);
    queue_add_after(q, "b", 300, QUEUE_LOW);
    queue_add_after(q, "a", 100, QUEUE_LOW);
    queue_add_after(q, "a", 900, QUEUE_LOW);
    queue_add_after(q, "now", 0, QUEUE_LOW);
    expect(q, "now");
    assert_int_equal(c.now.ns, 1);
    expect(q, "a");
    assert_int_equal(c.now.ns, 1 + 100 * NS_PER_MS);
    expect(q, "b");
    assert_int_equal(c.now.ns, 1 + 300 * NS_PER_MS);
    queue_free(q);
}

/* An edit that waits for its time does not become a resync because a resync comes sooner. */
static void the_more_urgent_of_two_delays_wins_whichever_is_earlier(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t first_ms, second_ms;
        enum queue_priority first, second;
    } rows[] = {
        {"urgent, then an earlier one", 500, 100, QUEUE_HIGH, QUEUE_LOW},
        {"urgent, then a later one", 100, 500, QUEUE_HIGH, QUEUE_LOW},
        {"then an earlier urgent one", 500, 100, QUEUE_LOW, QUEUE_HIGH},
        {"then a later urgent one", 100, 500, QUEUE_LOW, QUEUE_HIGH},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct fake_clock c = fake();
        struct queue *q = queue_new(&c.clock);
        queue_add_after(q, "a", rows[i].first_ms, rows[i].first);
        queue_add_after(q, "a", rows[i].second_ms, rows[i].second);
        c.now = mono_add_ms(c.now, 100);
        queue_add(q, "resync", QUEUE_LOW);
        char *key = queue_get(q);
        if (strcmp(key, "a") != 0) {
            fail_msg("%s: got %s", rows[i].name, key);
        }
        queue_done(q, key);
        free(key);
        /* The earlier urgency does not stay with the key. */
        queue_add_after(q, "a", 100, QUEUE_LOW);
        c.now = mono_add_ms(c.now, 100);
        expect(q, "resync");
        queue_free(q);
    }
}

#define MANY 300

/* Against a plain table of what is due when: a heap that is wrong would hand a key out late, as the
 * clock of this test moves to whatever time the queue waits for. */
static void many_delays_come_out_each_at_its_time(void **state)
{
    (void)state;
    struct fake_clock c = fake();
    struct queue *q = queue_new(&c.clock);
    int64_t due_ms[MANY] = {0}; /* 0: none */
    size_t pending = 0;
    uint64_t seed = 3;
    for (int i = 0; i < 3000; i++) {
        char key[32];
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        size_t k = (size_t)(seed >> 33) % MANY;
        int64_t ms = (int64_t)(seed >> 45) % 10000 + 1;
        (void)snprintf(key, sizeof(key), "%zu", k);
        if (seed >> 62 == 0) {
            queue_drop(q, key);
            pending -= due_ms[k] != 0 ? 1 : 0;
            due_ms[k] = 0;
        } else {
            queue_add_after(q, key, ms, i % 2 == 0 ? QUEUE_HIGH : QUEUE_LOW);
            pending += due_ms[k] == 0 ? 1 : 0;
            due_ms[k] = due_ms[k] == 0 || ms < due_ms[k] ? ms : due_ms[k];
        }
    }
    assert_in_range(pending, MANY / 2, MANY);
    for (; pending > 0; pending--) {
        char *key = queue_get(q);
        size_t k = (size_t)strtoul(key, NULL, 10);
        assert_int_equal(c.now.ns, 1 + due_ms[k] * NS_PER_MS);
        due_ms[k] = 0;
        queue_done(q, key);
        free(key);
    }
    queue_free(q);
}

static void failures_back_off_until_they_are_forgotten(void **state)
{
    (void)state;
    struct fake_clock c = fake();
    struct queue *q = queue_new(&c.clock);
    int64_t want_ms = 5;
    for (int i = 0; i < 20; i++) {
        struct mono before = c.now;
        queue_add_rate_limited(q, "a");
        expect(q, "a");
        assert_int_equal(mono_diff_ms(c.now, before), want_ms);
        want_ms = want_ms * 2 < 60000 ? want_ms * 2 : 60000;
    }
    queue_forget(q, "a");
    struct mono before = c.now;
    queue_add_rate_limited(q, "a");
    expect(q, "a");
    assert_int_equal(mono_diff_ms(c.now, before), 5);
    queue_free(q);
}

static void a_dropped_key_does_not_come_back(void **state)
{
    (void)state;
    struct fake_clock c = fake();
    struct queue *q = queue_new(&c.clock);
    queue_add_after(q, "gone", 100, QUEUE_HIGH);
    queue_add_after(q, "kept", 200, QUEUE_HIGH);
    queue_drop(q, "gone");
    expect(q, "kept");
    queue_drop(q, "never-known");
    queue_free(q);
}

static void after_shutdown_nothing_is_handed_out(void **state)
{
    (void)state;
    struct fake_clock c = fake();
    struct queue *q = queue_new(&c.clock);
    queue_add(q, "a", QUEUE_HIGH);
    queue_shutdown(q);
    assert_null(queue_get(q));
    queue_free(q);
}

static void a_delay_of_a_key_in_work_waits_for_its_end(void **state)
{
    (void)state;
    struct fake_clock c = fake();
    struct queue *q = queue_new(&c.clock);
    queue_add(q, "a", QUEUE_HIGH);
    char *a = queue_get(q);
    queue_add_after(q, "a", 100, QUEUE_HIGH);
    queue_add_after(q, "b", 200, QUEUE_HIGH);
    expect(q, "b"); /* a fell due before it, but a is being worked on */
    queue_done(q, a);
    free(a);
    expect(q, "a");
    assert_int_equal(c.now.ns, 1 + 200 * NS_PER_MS);
    queue_free(q);
}

static size_t heap_in_use(void)
{
    return mallinfo2().uordblks;
}

/* Names come and go for months. (A sanitizer's allocator says 0 twice; the plain build is the
 * test.) */
static void idle_keys_are_forgotten(void **state)
{
    (void)state;
    struct fake_clock c = fake();
    struct queue *q = queue_new(&c.clock);
    size_t before = 0;
    for (int i = 0; i < 20000; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "namespace-%d/name", i);
        if (i % 2 == 0) {
            queue_add(q, key, QUEUE_LOW);
            expect(q, key);
        } else {
            queue_add_rate_limited(q, key);
            queue_drop(q, key);
        }
        before = i == 2000 ? heap_in_use() : before;
    }
    size_t after = heap_in_use();
    assert_true(after < before + 16384); /* 18,000 keys would be megabytes */
    queue_free(q);
}

/* ---- threads ---- */

/* A clock that says, with the queue's mutex held, that somebody waits: whoever takes the mutex
 * after that finds the waiter asleep. Its time stands still, so that only a signal ends a wait. */
struct still_clock {
    struct clock clock;
    struct mtx lock;
    struct cond changed;
    int waits;                 /* guarded by lock, as is the next */
    struct mono last_deadline; /* of the last wait */
};

static struct mono still_mono(struct clock *c)
{
    (void)c;
    return (struct mono){1};
}

static void still_wait(struct clock *c, struct cond *cond, struct mtx *m, struct mono deadline)
{
    struct still_clock *still = (struct still_clock *)c;
    mtx_lock(&still->lock);
    still->waits++;
    still->last_deadline = deadline;
    cond_broadcast(&still->changed);
    mtx_unlock(&still->lock);
    cond_wait_ms(cond, m, INT64_C(3600000));
}

static const struct clock_ops still_ops = {.mono = still_mono, .wait = still_wait};

#define PATIENCE_S 20 /* a bound on a hang, not a measurement */

/* The deadline of the count-th wait, once it has come. */
static struct mono wait_number(struct still_clock *c, int count)
{
    MTX_GUARD(&c->lock);
    for (int tries = 0; c->waits < count && tries < PATIENCE_S; tries++) {
        cond_wait_ms(&c->changed, &c->lock, 1000);
    }
    if (c->waits < count) {
        fail_msg("nobody woke the waiter: %d waits, not %d", c->waits, count);
    }
    return c->last_deadline;
}

static void *get_one(void *arg)
{
    return queue_get(arg);
}

/* What the thread got; on the heap, or NULL. */
static char *join(pthread_t thread)
{
    struct timespec until;
    void *got = NULL;
    assert_int_equal(clock_gettime(CLOCK_REALTIME, &until), 0);
    until.tv_sec += PATIENCE_S;
    if (pthread_timedjoin_np(thread, &got, &until) != 0) {
        fail_msg("nobody woke the waiter");
    }
    return got;
}

static void whoever_waits_is_woken(void **state)
{
    (void)state;
    struct still_clock c = {.clock = {.ops = &still_ops}};
    mtx_init(&c.lock, "test");
    cond_init(&c.changed);
    struct queue *q = queue_new(&c.clock);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, get_one, q), 0);
    }
    assert_int_equal(wait_number(&c, 2).ns, INT64_MAX);
    /* A delay: both look again, and wait for less; so at an earlier one. */
    queue_add_after(q, "later", 3600000, QUEUE_LOW);
    assert_int_equal(wait_number(&c, 4).ns, 1 + 3600000 * NS_PER_MS);
    queue_add_after(q, "sooner", 1000, QUEUE_LOW);
    assert_int_equal(wait_number(&c, 6).ns, 1 + 1000 * NS_PER_MS);
    /* Two keys, two threads. */
    queue_add(q, "a", QUEUE_LOW);
    queue_add(q, "b", QUEUE_LOW);
    for (int i = 0; i < 2; i++) {
        char *key = join(threads[i]);
        assert_non_null(key);
        queue_done(q, key);
        free(key);
    }
    queue_free(q);
    cond_release(&c.changed);
    mtx_release(&c.lock);
}

static void the_end_of_work_wakes_a_waiter_if_the_key_is_dirty(void **state)
{
    (void)state;
    struct still_clock c = {.clock = {.ops = &still_ops}};
    mtx_init(&c.lock, "test");
    cond_init(&c.changed);
    struct queue *q = queue_new(&c.clock);
    queue_add(q, "a", QUEUE_HIGH);
    char *a = queue_get(q);
    queue_add(q, "a", QUEUE_HIGH);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, get_one, q), 0);
    (void)wait_number(&c, 1);
    queue_done(q, a);
    free(a);
    a = join(thread);
    assert_string_equal(a, "a");
    queue_done(q, a);
    free(a);
    queue_free(q);
    cond_release(&c.changed);
    mtx_release(&c.lock);
}

static void shutdown_wakes_all_who_wait(void **state)
{
    (void)state;
    struct still_clock c = {.clock = {.ops = &still_ops}};
    mtx_init(&c.lock, "test");
    cond_init(&c.changed);
    struct queue *q = queue_new(&c.clock);
    queue_add_after(q, "a", 3600000, QUEUE_LOW);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, get_one, q), 0);
    }
    (void)wait_number(&c, 2);
    queue_shutdown(q);
    for (int i = 0; i < 2; i++) {
        assert_null(join(threads[i]));
    }
    queue_free(q);
    cond_release(&c.changed);
    mtx_release(&c.lock);
}

#define KEYS    50
#define ADDS    10000
#define WORKERS 4

struct stress {
    struct queue *q;
    atomic_int busy[KEYS];
    atomic_int
        asked[KEYS]; /* raised before each add, taken by the worker: the last add must be seen */
    atomic_int twice;
};

static void *stress_worker(void *arg)
{
    struct stress *s = arg;
    char *key;
    while ((key = queue_get(s->q)) != NULL) {
        int i = (int)strtol(key + 1, NULL, 10);
        if (atomic_fetch_add(&s->busy[i], 1) != 0) {
            atomic_fetch_add(&s->twice, 1);
        }
        atomic_store(&s->asked[i], 0);
        atomic_fetch_sub(&s->busy[i], 1);
        queue_done(s->q, key);
        free(key);
    }
    return NULL;
}

static bool all_taken(struct stress *s)
{
    for (int i = 0; i < KEYS; i++) {
        if (atomic_load(&s->asked[i]) != 0) {
            return false;
        }
    }
    return true;
}

static void no_key_is_on_two_threads_and_no_add_is_lost(void **state)
{
    (void)state;
    struct stress s = {.q = queue_new(clock_os())};
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, stress_worker, &s), 0);
    }
    for (int i = 0; i < ADDS; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "k%d", i * 7 % KEYS);
        atomic_store(&s.asked[i * 7 % KEYS], 1);
        if (i % 3 == 0) {
            queue_add_after(s.q, key, 1, QUEUE_LOW);
        } else {
            queue_add(s.q, key, i % 2 == 0 ? QUEUE_HIGH : QUEUE_LOW);
        }
    }
    /* A bound on a hang, not a measurement. */
    struct mono end = mono_add_ms(clock_mono(clock_os()), 20000);
    while (!all_taken(&s) && mono_before(clock_mono(clock_os()), end)) {
        (void)clock_sleep_until(clock_os(), mono_add_ms(clock_mono(clock_os()), 5), NULL);
    }
    assert_true(all_taken(&s));
    queue_shutdown(s.q);
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(atomic_load(&s.twice), 0);
    queue_free(s.q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edits_go_before_resyncs_and_each_in_order),
        cmocka_unit_test(a_change_during_work_is_not_lost_and_not_worked_on_twice_at_once),
        cmocka_unit_test(the_earliest_delay_of_a_key_counts),
        cmocka_unit_test(the_more_urgent_of_two_delays_wins_whichever_is_earlier),
        cmocka_unit_test(many_delays_come_out_each_at_its_time),
        cmocka_unit_test(failures_back_off_until_they_are_forgotten),
        cmocka_unit_test(a_dropped_key_does_not_come_back),
        cmocka_unit_test(after_shutdown_nothing_is_handed_out),
        cmocka_unit_test(a_delay_of_a_key_in_work_waits_for_its_end),
        cmocka_unit_test(idle_keys_are_forgotten),
        cmocka_unit_test(whoever_waits_is_woken),
        cmocka_unit_test(the_end_of_work_wakes_a_waiter_if_the_key_is_dirty),
        cmocka_unit_test(shutdown_wakes_all_who_wait),
        cmocka_unit_test(no_key_is_on_two_threads_and_no_add_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
