/* Fibers under one seed: every thread of every simulated machine is a fiber of this one thread, and
 * the seed picks who goes on at each effect. Simulated time moves only when nobody can go on.
 *
 * A machine has a clock of its own (offset and rate), can be paused (its fibers stand, its clock
 * goes on: SIGSTOP) and can die (its fibers are never run again; their heap is leaked, as after a
 * kill -9). No mutex may be held where a fiber waits, but for the one that clock_wait() gives back.
 *
 * Link with --wrap=cond_signal,--wrap=cond_broadcast: the code under test wakes fibers by them. */
#ifndef BELAY_TEST_SIM_FIBER_H
#define BELAY_TEST_SIM_FIBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "effect/clock.h"
#include "effect/rng.h"

struct machine {
    struct clock clock; /* first: the vtable's instance */
    int64_t base_ns;    /* what its clock shows at time 0 */
    int64_t rate_ppk;   /* parts per thousand of the true rate */
    int64_t paused_until_ns;
    bool dead;
};
void machine_init(struct machine *m, int64_t base_ns, int64_t rate_ppk);

void sim_seed(uint64_t seed);
uint64_t sim_random(void);
/* True once in n. */
bool sim_chance(unsigned n);
/* Uniform in [low, high]. */
int64_t sim_between(int64_t low, int64_t high);
struct rng *sim_rng(void);

int64_t sim_now_ns(void); /* true time since the start */
uint64_t sim_steps(void);
/* Of all that happened so far, in its order: equal seeds give equal hashes. */
uint64_t sim_hash(void);
void sim_note(const char *what, int64_t number);

/* Start a fiber on m. */
void sim_spawn(struct machine *m, void (*main)(void *arg), void *arg);
/* Call fn(ctx) at a time, outside of any fiber. */
void sim_at(int64_t at_ns, void (*fn)(void *ctx), void *ctx);
/* Run until time until_ns, or until nothing is left to do. */
void sim_run(int64_t until_ns);

/* For effects: wait until sim_wake(token) or the deadline of the fiber's own clock. Several may
 * wait for one token. */
void sim_wait(const void *token, struct mono deadline);
void sim_wake(const void *token);
struct machine *sim_machine(void); /* whose fiber this is */
/* The true time at which the machine's clock shows t. */
int64_t machine_true_ns(const struct machine *m, struct mono t);

#endif
