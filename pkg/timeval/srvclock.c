/* A reply whose Date says D was sent by the server at some instant between our sending and
 * receiving, when its clock read [D, D + 1 s). So the offset (server's clock - our monotonic clock)
 * lies in [D - received, D + 1 s - sent]. Kept samples give one such interval each. "Now" is our
 * clock plus the hull of these offsets, widened by what the clocks may have drifted apart since the
 * newest sample (1 in 10).
 *
 * Why the hull and not the intersection: API servers disagree, and which one a thief or a holder
 * talks to is chance; the hull is as wide as their disagreement, and width can only delay a
 * takeover or post-date a stamp. The price: Date has whole seconds, so the hull of one good
 * server's replies is up to 2 s + a round trip wide, where one reply gives 1 s + a round trip.
 *
 * Why drift counts from the newest sample alone: each old sample with a drift of its own would
 * widen the result for as long as it is kept, and a clock that was asked a second ago would be
 * known to a minute. It is safe under the assumptions that are said aloud (docs: API servers agree
 * within the guard, or a live holder renews in time; clock rates differ by less than 1 in 10):
 *   - one server: the newest sample with its drift holds the truth by itself, and the hull contains
 * it;
 *   - servers that agree within the guard: the truth of each is within the guard of the newest
 * sample's, and the guard is what the caller adds; old samples are not needed;
 *   - servers that disagree by more: the disagreement as it was seen within the last 10 to 30
 * minutes is in the hull. What it grew since is not (two clocks which drift apart by minutes in
 * half an hour do not keep the first assumption either); there the second half counts: a live
 * holder renews.
 *
 * What is kept: time is cut into slots of 10 s by our clock, and the first reply in a slot is kept.
 * A later one in the slot that may be of the same server (they overlap) replaces it. In any case a
 * reply that took so long that it tells less than the newest kept one with its drift is dropped,
 * and one whose interval lies inside the newest kept one's replaces that: slowness is no
 * disagreement. A reply wholly outside of the hull is another server's, or a clock was set: it is
 * kept beside the others. So 64 samples span at least 10 minutes however many replies there are,
 * and a server that has not answered lately is not forgotten at once. */
#include "timeval/srvclock.h"

#include "base/must.h"

#define SLOT_NS (10 * NS_PER_SEC)
/* Older than this, before the newest sample, says nothing any more. */
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

/* The sample received last, which is not always the one noted last: a watch's reply is noted when
 * the watch ends. There must be one. */
static size_t newest(const struct srvclock *c)
{
    must(c->count > 0);
    size_t best = 0;
    for (size_t i = 1; i < c->count; i++) {
        best = c->samples[i].received.ns >= c->samples[best].received.ns ? i : best;
    }
    return best;
}

/* The hull over samples younger than FORGET_MS (the newest always counts). */
static struct offsets hull(const struct srvclock *c)
{
    const struct srvclock_sample *last = &c->samples[newest(c)];
    struct offsets h = offsets_of(last);
    for (size_t i = 0; i < c->count; i++) {
        if (mono_diff_ms(last->received, c->samples[i].received) > FORGET_MS) {
            continue;
        }
        struct offsets o = offsets_of(&c->samples[i]);
        h.low_ns = o.low_ns < h.low_ns ? o.low_ns : h.low_ns;
        h.high_ns = o.high_ns > h.high_ns ? o.high_ns : h.high_ns;
    }
    return h;
}

static bool overlap(struct offsets a, struct offsets b)
{
    return a.low_ns <= b.high_ns && b.low_ns <= a.high_ns;
}

static int64_t drift_ns(int64_t age_ns)
{
    return age_ns > 0 ? age_ns / SRVCLOCK_DRIFT_DIVISOR : 0;
}

enum verdict { KEEP, REPLACE_NEWEST, DROP };

/* The rule of the comment above. */
static enum verdict judge(const struct srvclock *c, const struct srvclock_sample *s)
{
    if (c->count == 0 || !overlap(hull(c), offsets_of(s))) {
        return KEEP;
    }
    const struct srvclock_sample *last = &c->samples[newest(c)];
    struct offsets o = offsets_of(s);
    struct offsets l = offsets_of(last);
    if (mono_before(s->received, last->received)) {
        return DROP;
    }
    bool new_slot = s->received.ns / SLOT_NS > last->received.ns / SLOT_NS;
    if (!overlap(o, l)) {
        return new_slot ? KEEP : DROP;
    }
    if (o.low_ns >= l.low_ns && o.high_ns <= l.high_ns) {
        return REPLACE_NEWEST;
    }
    int64_t drift = drift_ns(s->received.ns - last->received.ns);
    if (o.high_ns - o.low_ns > l.high_ns - l.low_ns + 2 * drift) {
        return DROP;
    }
    return new_slot ? KEEP : REPLACE_NEWEST;
}

void srvclock_note(struct srvclock *c, struct mono sent, struct mono received, int64_t date_ns)
{
    must(sent.ns >= 0);
    must(sent.ns <= received.ns);
    if (date_ns < 0 || date_ns > DATE_MAX_NS) {
        return;
    }
    struct srvclock_sample s = {.sent = sent, .received = received, .date_ns = date_ns};
    switch (judge(c, &s)) {
    case KEEP:
        c->samples[c->next] = s;
        c->next = (c->next + 1) % SRVCLOCK_SAMPLES;
        c->count += c->count < SRVCLOCK_SAMPLES ? 1 : 0;
        break;
    case REPLACE_NEWEST:
        c->samples[newest(c)] = s;
        break;
    case DROP:
        break;
    }
}

bool srvclock_now(const struct srvclock *c, struct mono now, struct srvtime *ret)
{
    if (c->count == 0) {
        return false;
    }
    const struct srvclock_sample *last = &c->samples[newest(c)];
    struct offsets h = hull(c);
    int64_t drift = drift_ns(now.ns - last->received.ns);
    *ret = (struct srvtime){.earliest_ns = now.ns + h.low_ns - drift,
                            .latest_ns = now.ns + h.high_ns + drift};
    must(ret->earliest_ns <= ret->latest_ns);
    return true;
}
