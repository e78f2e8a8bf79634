/* A reply whose Date says D was sent by the server at some instant between our sending and
 * receiving, when its clock read [D, D + 1 s). So the offset (server's clock - our monotonic clock)
 * lies in [D - received, D + 1 s - sent]. Each reply gives one such interval. "Now" is our clock
 * plus the hull of these offsets, widened by what the clocks may have drifted apart since the
 * newest reply (1 in 10).
 *
 * Why the hull and not the intersection: API servers disagree, and which one a thief or a holder
 * talks to is chance; the hull is as wide as their disagreement, and width can only delay a
 * takeover or post-date a stamp. The price: Date has whole seconds, so the hull of one good
 * server's replies is up to 2 s + a round trip wide, where one reply gives 1 s + a round trip.
 *
 * Why drift counts from the newest reply alone: each old one with a drift of its own would
 * widen the result for as long as it is kept, and a clock that was asked a second ago would be
 * known to a minute. It is safe under the assumptions that are said aloud (docs: API servers agree
 * within the guard, or a live holder renews in time; clock rates differ by less than 1 in 10):
 *   - one server: the newest reply with its drift holds the truth by itself, and the hull contains
 * it;
 *   - servers that agree within the guard: the truth of each is within the guard of the newest
 * reply's, and the guard is what the caller adds; old replies are not needed;
 *   - servers that disagree by more: the disagreement as it was seen within the last 10 to 30
 * minutes is in the hull. What it grew since is not (two clocks which drift apart by minutes in
 * half an hour do not keep the first assumption either); there the second half counts: a live
 * holder renews.
 *
 * What is kept: the newest reply, and for each slot of 10 s by our clock in which replies came the
 * hull of their offsets. So 64 slots span at least 10 minutes however many replies and servers
 * there are, and each server heard in that time is inside to the nanosecond. Two exceptions,
 * because slowness is no disagreement: a reply that may be of the newest one's server (they
 * overlap) and took so long that it tells less than that one with its drift is dropped; and one
 * whose interval lies inside the newest one's takes its place, where that stands alone in its slot.
 */
#include "timeval/srvclock.h"

#include "base/must.h"

#define SLOT_NS (10 * NS_PER_SEC)
/* Older than this, before the newest reply, says nothing any more. */
#define FORGET_MS 1800000
/* The year 2200. A Date outside of [1970, 2200] is no clock's, and its sums might not fit. */
#define DATE_MAX_NS (INT64_C(7258118400) * NS_PER_SEC)

struct offsets {
    int64_t low_ns, high_ns;
};

static struct offsets offsets_of(const struct srvclock_sample *s)
{
    return (struct offsets){.low_ns = s->date_ns - s->received.ns,
                            .high_ns = s->date_ns + NS_PER_SEC - s->sent.ns};
}

static bool overlap(struct offsets a, struct offsets b)
{
    return a.low_ns <= b.high_ns && b.low_ns <= a.high_ns;
}

static bool inside(struct offsets in, struct offsets out)
{
    return out.low_ns <= in.low_ns && in.high_ns <= out.high_ns;
}

static struct offsets hull_of(struct offsets a, struct offsets b)
{
    return (struct offsets){.low_ns = a.low_ns < b.low_ns ? a.low_ns : b.low_ns,
                            .high_ns = a.high_ns > b.high_ns ? a.high_ns : b.high_ns};
}

static int64_t drift_ns(int64_t age_ns)
{
    return age_ns > 0 ? age_ns / SRVCLOCK_DRIFT_DIVISOR : 0;
}

/* The newest reply and the slots less than FORGET_MS before it. */
static struct offsets hull(const struct srvclock *c)
{
    struct offsets h = offsets_of(&c->newest);
    for (size_t i = 0; i < c->count; i++) {
        const struct srvclock_slot *slot = &c->slots[i];
        if (mono_diff_ms(c->newest.received, slot->received) <= FORGET_MS) {
            h = hull_of(h, (struct offsets){.low_ns = slot->low_ns, .high_ns = slot->high_ns});
        }
    }
    return h;
}

/* Of the newest reply's server, maybe, and so slow that the newest one with its drift tells more.
 */
static bool tells_less(const struct srvclock *c, const struct srvclock_sample *s)
{
    struct offsets o = offsets_of(s);
    struct offsets newest = offsets_of(&c->newest);
    int64_t drift = drift_ns(s->received.ns - c->newest.received.ns);
    return overlap(o, newest) && o.high_ns - o.low_ns > newest.high_ns - newest.low_ns + 2 * drift;
}

/* The slot that was added last; there must be one. */
static struct srvclock_slot *last_slot(struct srvclock *c)
{
    must(c->count > 0);
    return &c->slots[(c->next + SRVCLOCK_SLOTS - 1) % SRVCLOCK_SLOTS];
}

static void add_slot(struct srvclock *c, const struct srvclock_slot *slot)
{
    c->slots[c->next] = *slot;
    c->next = (c->next + 1) % SRVCLOCK_SLOTS;
    c->count += c->count < SRVCLOCK_SLOTS ? 1 : 0;
}

void srvclock_note(struct srvclock *c, struct mono sent, struct mono received, int64_t date_ns)
{
    must(sent.ns >= 0);
    must(sent.ns <= received.ns);
    if (date_ns < 0 || date_ns > DATE_MAX_NS) {
        return;
    }
    struct srvclock_sample s = {.sent = sent, .received = received, .date_ns = date_ns};
    struct offsets o = offsets_of(&s);
    struct srvclock_slot alone = {
        .low_ns = o.low_ns, .high_ns = o.high_ns, .received = received, .alone = true};
    if (c->count == 0) {
        add_slot(c, &alone);
        c->newest = s;
        return;
    }
    if (tells_less(c, &s)) {
        return;
    }
    /* A watch's reply is noted when the watch ends: it may be older than the newest. */
    bool late = mono_before(received, c->newest.received);
    struct srvclock_slot *slot = last_slot(c);
    if (!late && slot->alone && inside(o, offsets_of(&c->newest))) {
        *slot = alone;
    } else if (received.ns / SLOT_NS > slot->received.ns / SLOT_NS) {
        add_slot(c, &alone);
    } else {
        struct offsets h =
            hull_of(o, (struct offsets){.low_ns = slot->low_ns, .high_ns = slot->high_ns});
        *slot = (struct srvclock_slot){.low_ns = h.low_ns,
                                       .high_ns = h.high_ns,
                                       .received = late ? slot->received : received,
                                       .alone = false};
    }
    if (!late) {
        c->newest = s;
    }
}

bool srvclock_now(const struct srvclock *c, struct mono now, struct srvtime *ret)
{
    if (c->count == 0) {
        return false;
    }
    struct offsets h = hull(c);
    /* The server read its clock between sending and receiving. Had it done so at sending, its clock
     * may have run ahead since then; for the early side the way itself leaves more room than that.
     */
    *ret = (struct srvtime){.earliest_ns =
                                now.ns + h.low_ns - drift_ns(now.ns - c->newest.received.ns),
                            .latest_ns = now.ns + h.high_ns + drift_ns(now.ns - c->newest.sent.ns)};
    must(ret->earliest_ns <= ret->latest_ns);
    return true;
}
