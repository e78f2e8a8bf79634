#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "timeval/srvclock.h"

#define SEC   NS_PER_SEC
#define MS    NS_PER_MS
#define EPOCH (INT64_C(1796126400) * SEC) /* what the servers' clocks read when ours reads 0 */

/* A reply of a server whose clock is offset_ns beside EPOCH + ours and which reads its clock half
 * way. */
static void reply(struct srvclock *c, int64_t sent_ns, int64_t took_ns, int64_t offset_ns)
{
    int64_t server_ns = EPOCH + sent_ns + took_ns / 2 + offset_ns;
    srvclock_note(c, (struct mono){sent_ns}, (struct mono){sent_ns + took_ns},
                  server_ns / SEC * SEC);
}

static struct srvtime at(const struct srvclock *c, int64_t now_ns)
{
    struct srvtime t = {0};
    assert_true(srvclock_now(c, (struct mono){now_ns}, &t));
    assert_true(t.earliest_ns <= t.latest_ns);
    return t;
}

static int64_t width(struct srvtime t)
{
    return t.latest_ns - t.earliest_ns;
}

static void assert_holds(struct srvtime t, int64_t server_ns)
{
    assert_true(t.earliest_ns <= server_ns);
    assert_true(server_ns <= t.latest_ns);
}

static void without_a_reply_there_is_no_server_time(void **state)
{
    (void)state;
    struct srvclock c = {0};
    struct srvtime t = {1, 2};
    assert_false(srvclock_now(&c, (struct mono){5 * SEC}, &t));
    assert_int_equal(t.earliest_ns, 1);
    assert_int_equal(t.latest_ns, 2);
}

static void one_reply_gives_its_bounds_to_the_nanosecond(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t sent, received, date, now, earliest, latest;
    } rows[] = {
        {"at once", 100 * SEC, 100 * SEC, EPOCH, 100 * SEC, EPOCH, EPOCH + SEC},
        {"a round trip and its drift widen the late side", 100 * SEC, 100 * SEC + 20 * MS, EPOCH,
         100 * SEC + 20 * MS, EPOCH, EPOCH + SEC + 22 * MS},
        {"a reply that took 3 s", 100 * SEC, 103 * SEC, EPOCH, 103 * SEC, EPOCH,
         EPOCH + 4 * SEC + 300 * MS},
        {"one second later, a tenth of drift on each side", 100 * SEC, 100 * SEC, EPOCH, 101 * SEC,
         EPOCH + SEC - 100 * MS, EPOCH + 2 * SEC + 100 * MS},
        {"ten minutes later", 0, 0, EPOCH, 600 * SEC, EPOCH + 540 * SEC, EPOCH + 661 * SEC},
        {"before it was received, no drift", 100 * SEC, 101 * SEC, EPOCH, 100 * SEC, EPOCH - SEC,
         EPOCH + SEC},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        print_message("  %s\n", rows[i].name);
        struct srvclock c = {0};
        srvclock_note(&c, (struct mono){rows[i].sent}, (struct mono){rows[i].received},
                      rows[i].date);
        struct srvtime t = at(&c, rows[i].now);
        assert_int_equal(t.earliest_ns, rows[i].earliest);
        assert_int_equal(t.latest_ns, rows[i].latest);
    }
}

static void one_good_server_stays_known_to_two_seconds_and_a_round_trip(void **state)
{
    (void)state;
    struct srvclock c = {0};
    for (int64_t now = SEC; now < 7200 * SEC; now += 370 * MS) {
        reply(&c, now, 15 * MS, 123 * MS);
        struct srvtime t = at(&c, now + 15 * MS);
        assert_holds(t, EPOCH + now + 15 * MS + 123 * MS);
        /* The newest kept sample may be a slot old only if no newer one told more. */
        assert_true(width(t) <= 2 * SEC + 100 * MS);
    }
}

static void age_widens_by_the_newest_sample_only(void **state)
{
    (void)state;
    struct srvclock c = {0};
    for (int64_t now = 0; now <= 600 * SEC; now += 10 * SEC) {
        reply(&c, now, 0, 0);
    }
    struct srvtime t = at(&c, 600 * SEC);
    assert_int_equal(t.earliest_ns, EPOCH + 600 * SEC);
    assert_int_equal(t.latest_ns, EPOCH + 601 * SEC);
    t = at(&c, 660 * SEC);
    assert_int_equal(t.earliest_ns, EPOCH + 654 * SEC);
    assert_int_equal(t.latest_ns, EPOCH + 667 * SEC);
}

static void two_servers_five_seconds_apart_are_both_inside(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t first_ns, second_ns;
    } rows[] = {
        {"the second is ahead", 0, 5 * SEC},
        {"the second is behind", 5 * SEC, 0},
    };
    for (size_t i = 0; i < 2; i++) {
        print_message("  %s\n", rows[i].name);
        struct srvclock c = {0};
        reply(&c, 0, 0, rows[i].first_ns);
        reply(&c, 1 * SEC, 0, rows[i].second_ns);
        struct srvtime t = at(&c, 1 * SEC);
        assert_int_equal(t.earliest_ns, EPOCH + 1 * SEC);
        assert_int_equal(t.latest_ns, EPOCH + 1 * SEC + 5 * SEC + SEC);
        /* Many replies of one of them, many a second, do not drive the other out. */
        for (int64_t now = 2 * SEC; now < 500 * SEC; now += 50 * MS) {
            reply(&c, now, 0, rows[i].first_ns);
            t = at(&c, now);
            assert_holds(t, EPOCH + now + rows[i].first_ns);
            assert_holds(t, EPOCH + now + rows[i].second_ns);
        }
    }
}

static void replies_in_turns_from_three_servers_keep_all_inside(void **state)
{
    (void)state;
    static const int64_t offsets[] = {0, -5 * SEC, 3 * SEC};
    struct srvclock c = {0};
    for (int64_t n = 0; n < 20000; n++) {
        int64_t now = n * 100 * MS;
        reply(&c, now, 10 * MS, offsets[n % 3]);
        struct srvtime t = at(&c, now + 10 * MS);
        for (int64_t s = 0; s <= n && s < 3; s++) {
            assert_holds(t, EPOCH + now + 10 * MS + offsets[s]);
        }
        assert_true(width(t) <= 8 * SEC + 2 * SEC + 120 * MS);
    }
}

static void many_replies_a_second_do_not_shorten_the_memory_below_ten_minutes(void **state)
{
    (void)state;
    static const int64_t steps[] = {20 * MS, 100 * MS, 1 * SEC, 9 * SEC, 10 * SEC, 11 * SEC};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        struct srvclock c = {0};
        reply(&c, 0, 0, 7 * SEC);
        int64_t now = 1 * SEC;
        for (; now <= 600 * SEC; now += steps[i]) {
            reply(&c, now, 0, 0);
        }
        print_message("  a reply every %d ms\n", (int)(steps[i] / MS));
        assert_holds(at(&c, now), EPOCH + now + 7 * SEC);
    }
}

static void a_server_not_seen_for_half_an_hour_is_forgotten(void **state)
{
    (void)state;
    static const int64_t steps[] = {100 * MS, 60 * SEC};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        struct srvclock c = {0};
        reply(&c, 0, 0, 3600 * SEC);
        int64_t now = 1 * SEC;
        for (; now <= 1900 * SEC; now += steps[i]) {
            reply(&c, now, 0, 0);
        }
        print_message("  a reply every %d ms\n", (int)(steps[i] / MS));
        assert_true(at(&c, now).latest_ns < EPOCH + now + 60 * SEC);
    }
}

static void a_clock_that_is_set_is_followed_at_once_and_what_it_said_is_kept(void **state)
{
    (void)state;
    static const int64_t jumps[] = {-3600 * SEC, -2 * SEC, 2 * SEC, 3600 * SEC};
    for (size_t i = 0; i < sizeof(jumps) / sizeof(jumps[0]); i++) {
        print_message("  by %d s\n", (int)(jumps[i] / SEC));
        struct srvclock c = {0};
        for (int64_t now = 0; now < 30 * SEC; now += SEC) {
            reply(&c, now, 0, 0);
        }
        reply(&c, 30 * SEC, 0, jumps[i]);
        struct srvtime t = at(&c, 30 * SEC);
        assert_holds(t, EPOCH + 30 * SEC + jumps[i]);
        assert_holds(t, EPOCH + 30 * SEC);
    }
}

static void a_slow_reply_is_no_disagreement(void **state)
{
    (void)state;
    struct srvclock c = {0};
    reply(&c, 0, 10 * MS, 0);
    /* It was under way for 20 s: next to the reply before it, it says nothing. */
    reply(&c, 1 * SEC, 20 * SEC, 0);
    assert_true(width(at(&c, 1 * SEC)) < 2 * SEC);
    /* Alone it is better than nothing, until a quick one comes. */
    struct srvclock d = {0};
    reply(&d, 1 * SEC, 20 * SEC, 0);
    assert_int_equal(width(at(&d, 21 * SEC)), 21 * SEC + 2 * SEC);
    reply(&d, 35 * SEC, 10 * MS, 0);
    assert_true(width(at(&d, 36 * SEC)) < 2 * SEC);
    assert_holds(at(&d, 36 * SEC), EPOCH + 36 * SEC);
}

static void within_a_slot_the_reply_that_tells_more_is_kept(void **state)
{
    (void)state;
    struct srvclock c = {0};
    reply(&c, 0, 2 * SEC, 0);
    assert_int_equal(width(at(&c, 2 * SEC)), 3 * SEC + 200 * MS);
    reply(&c, 3 * SEC, 10 * MS, 0);
    assert_int_equal(width(at(&c, 3 * SEC + 10 * MS)), 1 * SEC + 11 * MS);
    reply(&c, 3 * SEC + 20 * MS, 500 * MS, 0);
    assert_true(width(at(&c, 3 * SEC + 520 * MS)) <= 1 * SEC + 10 * MS + 103 * MS);
    /* 5 s later the kept one has drifted by half a second on each side: 500 ms of travel tell more.
     */
    reply(&c, 8 * SEC, 500 * MS, 0);
    assert_int_equal(width(at(&c, 8 * SEC + 500 * MS)), 1550 * MS);
}

static void a_reply_noted_late_changes_nothing_unless_it_disagrees(void **state)
{
    (void)state;
    struct srvclock c = {0};
    reply(&c, 600 * SEC, 10 * MS, 0);
    struct srvtime before = at(&c, 601 * SEC);
    /* A watch that ended now, but whose head came minutes ago, and was quicker. */
    reply(&c, 300 * SEC, 5 * MS, 0);
    struct srvtime t = at(&c, 601 * SEC);
    assert_int_equal(t.earliest_ns, before.earliest_ns);
    assert_int_equal(t.latest_ns, before.latest_ns);
    reply(&c, 300 * SEC, 5 * MS, 9 * SEC);
    t = at(&c, 601 * SEC);
    assert_holds(t, EPOCH + 601 * SEC + 9 * SEC);
    /* Drift still counts from the newest. */
    assert_int_equal(t.earliest_ns, before.earliest_ns);
}

static void a_date_that_is_no_clocks_is_ignored(void **state)
{
    (void)state;
    static const int64_t dates[] = {-1, INT64_MIN, INT64_MAX, INT64_C(7258118401) * SEC};
    struct srvclock c = {0};
    struct srvtime t;
    for (size_t i = 0; i < sizeof(dates) / sizeof(dates[0]); i++) {
        srvclock_note(&c, (struct mono){0}, (struct mono){1}, dates[i]);
        assert_false(srvclock_now(&c, (struct mono){2}, &t));
    }
    srvclock_note(&c, (struct mono){0}, (struct mono){1}, INT64_C(7258118400) * SEC);
    assert_true(srvclock_now(&c, (struct mono){2}, &t));
}

/* A fixed sequence of numbers (splitmix64). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

/* From 0 to max. */
static int64_t up_to(uint64_t *state, int64_t max)
{
    return (int64_t)(next_random(state) % ((uint64_t)max + 1));
}

/* A server whose clock was offset_ns beside EPOCH + ours when ours read 0, and runs that much
 * faster or slower. */
struct server {
    int64_t offset_ns, rate_ppm;
};

static int64_t clock_of(const struct server *s, int64_t now_ns)
{
    return EPOCH + now_ns + s->offset_ns + now_ns / 1000 * s->rate_ppm / 1000;
}

/* A reply of which only the server knows when in between it read its clock. */
static void random_reply(struct srvclock *c, const struct server *s, int64_t sent_ns,
                         int64_t took_ns, uint64_t *random)
{
    int64_t read_ns = clock_of(s, sent_ns + up_to(random, took_ns));
    srvclock_note(c, (struct mono){sent_ns}, (struct mono){sent_ns + took_ns}, read_ns / SEC * SEC);
}

static void one_server_is_inside_whatever_its_rate_and_its_way(void **state)
{
    (void)state;
    static const int64_t took_max[] = {1, 30 * MS, 5 * SEC, 60 * SEC};
    static const int64_t pause_max[] = {20 * MS, 3 * SEC, 400 * SEC};
    for (uint64_t seed = 1; seed <= 240; seed++) {
        uint64_t random = seed;
        struct server s = {.offset_ns = up_to(&random, 20000 * SEC) - 10000 * SEC,
                           .rate_ppm = up_to(&random, 199998) - 99999};
        struct srvclock c = {0};
        int64_t now = up_to(&random, 1000 * SEC);
        for (int i = 0; i < 300; i++) {
            int64_t took = up_to(&random, took_max[seed % 4]);
            random_reply(&c, &s, now, took, &random);
            now += took;
            assert_holds(at(&c, now), clock_of(&s, now));
            now += up_to(&random, pause_max[seed % 3]);
            assert_holds(at(&c, now), clock_of(&s, now));
        }
    }
}

#define SERVERS_MAX 5

/* Servers that answer in any order: each one that was heard in the last ten minutes is inside.
 * slack_ns: by how much they may be outside. */
static void assert_servers_inside(uint64_t seed, int64_t took_min, int64_t took_max,
                                  int64_t slack_ns)
{
    uint64_t random = seed;
    struct srvclock c = {0};
    struct server servers[SERVERS_MAX] = {0};
    int64_t heard[SERVERS_MAX];
    size_t n = 2 + (size_t)up_to(&random, SERVERS_MAX - 2);
    for (size_t i = 0; i < n; i++) {
        servers[i].offset_ns = up_to(&random, 8 * SEC);
        heard[i] = -3600 * SEC;
    }
    static const int64_t pauses[] = {100 * MS, 3 * SEC, 15 * SEC};
    int64_t now = up_to(&random, 100 * SEC);
    for (int i = 0; i < 3000; i++) {
        /* Some are heard rarely. */
        size_t who = (size_t)up_to(&random, up_to(&random, (int64_t)n - 1));
        int64_t took = took_min + up_to(&random, took_max - took_min);
        random_reply(&c, &servers[who], now, took, &random);
        now += took;
        heard[who] = now;
        struct srvtime t = at(&c, now);
        for (size_t k = 0; k < n; k++) {
            int64_t truth = clock_of(&servers[k], now);
            if (now - heard[k] <= 600 * SEC) {
                assert_true(t.earliest_ns - slack_ns <= truth);
                assert_true(truth <= t.latest_ns + slack_ns);
            }
        }
        now += up_to(&random, pauses[seed % 3]);
    }
}

static void all_servers_heard_in_the_last_ten_minutes_are_inside(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        assert_servers_inside(seed, 20 * MS, 20 * MS, 0);
        /* A reply that took longer than the newest and may be of the same server is no news. */
        assert_servers_inside(seed, 1 * MS, 200 * MS, SEC + 200 * MS);
    }
}

static void servers_in_a_chain_of_small_disagreements_are_all_inside(void **state)
{
    (void)state;
    struct srvclock c = {0};
    for (int64_t n = 0; n < 8000; n++) {
        int64_t now = n * 100 * MS;
        reply(&c, now, 0, n % 4 * 900 * MS);
        struct srvtime t = at(&c, now);
        for (int64_t s = 0; s <= n && s < 4; s++) {
            assert_holds(t, EPOCH + now + s * 900 * MS);
        }
    }
}

static void a_server_is_remembered_from_when_it_was_last_heard(void **state)
{
    (void)state;
    struct srvclock c = {0};
    uint64_t random = 1;
    int64_t now = 0;
    /* One server is the first to be heard in each ten seconds, the other the second. */
    for (; now < 620 * SEC; now += 10 * SEC) {
        reply(&c, now + up_to(&random, SEC), 0, 0);
        reply(&c, now + 2 * SEC, 0, 7 * SEC);
    }
    int64_t heard = now - 8 * SEC;
    for (; now <= heard + 600 * SEC; now += 10 * SEC) {
        int64_t sent = now + up_to(&random, SEC);
        reply(&c, sent, 0, 0);
        assert_holds(at(&c, sent), EPOCH + sent + 7 * SEC);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_reply_there_is_no_server_time),
        cmocka_unit_test(one_reply_gives_its_bounds_to_the_nanosecond),
        cmocka_unit_test(one_good_server_stays_known_to_two_seconds_and_a_round_trip),
        cmocka_unit_test(age_widens_by_the_newest_sample_only),
        cmocka_unit_test(two_servers_five_seconds_apart_are_both_inside),
        cmocka_unit_test(replies_in_turns_from_three_servers_keep_all_inside),
        cmocka_unit_test(many_replies_a_second_do_not_shorten_the_memory_below_ten_minutes),
        cmocka_unit_test(a_server_not_seen_for_half_an_hour_is_forgotten),
        cmocka_unit_test(a_clock_that_is_set_is_followed_at_once_and_what_it_said_is_kept),
        cmocka_unit_test(a_slow_reply_is_no_disagreement),
        cmocka_unit_test(within_a_slot_the_reply_that_tells_more_is_kept),
        cmocka_unit_test(a_reply_noted_late_changes_nothing_unless_it_disagrees),
        cmocka_unit_test(a_date_that_is_no_clocks_is_ignored),
        cmocka_unit_test(one_server_is_inside_whatever_its_rate_and_its_way),
        cmocka_unit_test(all_servers_heard_in_the_last_ten_minutes_are_inside),
        cmocka_unit_test(servers_in_a_chain_of_small_disagreements_are_all_inside),
        cmocka_unit_test(a_server_is_remembered_from_when_it_was_last_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
