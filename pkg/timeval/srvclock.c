/* A reply whose Date says D was sent by the server at some instant between our sending and receiving, when its clock read
 * [D, D + 1 s). So the offset (server's clock - our monotonic clock) lies in
 *     [D - received, D + 1 s - sent].
 * Kept samples give one such interval each. "Now" is our clock plus the hull of these offsets, widened by what the clocks may
 * have drifted apart since the newest sample (1 in 10).
 *
 * Why the hull of offsets and not of the samples' own guesses: an old sample would drag its drift along and widen the result
 * without telling anything new. Why not the intersection: API servers disagree, and which one a thief or a holder talks to is
 * chance; the hull is as wide as their disagreement, and width can only delay a takeover or post-date a stamp. Drift between
 * an older sample and the newest one is inside the hull as well: both offsets are in it as they were measured.
 *
 * Samples are kept at least 10 minutes: a server that has not answered lately must not be forgotten at once. The ring holds
 * 64, and takes one about every 10 s, or earlier if it says something new (an offset outside of the hull). */
#include "timeval/srvclock.h"

#include "base/must.h"

#define KEEP_EVERY_MS 10000
/* Older than this says nothing any more: with 64 slots of 10 s the ring spans at least 10 minutes anyway. */
#define FORGET_MS 1800000

struct offsets {
    int64_t low_ns, high_ns;
};

static struct offsets offsets_of(const struct srvclock_sample *s)
{
    return (struct offsets){.low_ns = s->date_ns - s->received.ns, .high_ns = s->date_ns + NS_PER_SEC - s->sent.ns};
}

static const struct srvclock_sample *newest(const struct srvclock *c)
{
    return c->count == 0 ? NULL : &c->samples[(c->next + SRVCLOCK_SAMPLES - 1) % SRVCLOCK_SAMPLES];
}

/* The hull over samples younger than FORGET_MS (the newest always counts). */
static struct offsets hull(const struct srvclock *c)
{
    const struct srvclock_sample *last = newest(c);
    must(last != NULL);
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

/* Would s widen the hull, and not merely because its reply took long? Then it shows another server, or a step. */
static bool says_something_new(const struct srvclock *c, const struct srvclock_sample *s)
{
    struct offsets h = hull(c);
    struct offsets o = offsets_of(s);
    return o.high_ns < h.low_ns || o.low_ns > h.high_ns;
}

void srvclock_note(struct srvclock *c, struct mono sent, struct mono received, int64_t date_ns)
{
    must(sent.ns <= received.ns);
    struct srvclock_sample s = {.sent = sent, .received = received, .date_ns = date_ns};
    const struct srvclock_sample *last = newest(c);
    if (last != NULL && mono_diff_ms(received, last->received) < KEEP_EVERY_MS && !says_something_new(c, &s)) {
        return;
    }
    c->samples[c->next] = s;
    c->next = (c->next + 1) % SRVCLOCK_SAMPLES;
    c->count += c->count < SRVCLOCK_SAMPLES ? 1 : 0;
}

bool srvclock_now(const struct srvclock *c, struct mono now, struct srvtime *ret)
{
    const struct srvclock_sample *last = newest(c);
    if (last == NULL) {
        return false;
    }
    struct offsets h = hull(c);
    int64_t age_ns = now.ns > last->received.ns ? now.ns - last->received.ns : 0;
    int64_t drift_ns = age_ns / SRVCLOCK_DRIFT_DIVISOR;
    *ret = (struct srvtime){.earliest_ns = now.ns + h.low_ns - drift_ns, .latest_ns = now.ns + h.high_ns + drift_ns};
    must(ret->earliest_ns <= ret->latest_ns);
    return true;
}
