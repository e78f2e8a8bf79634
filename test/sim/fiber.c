#include "fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "base/mem.h"
#include "base/must.h"

#define STACK_BYTES ((size_t)256 << 10)
#define FIBERS_MAX  256
#define EVENTS_MAX  4096

enum fiber_state { FREE, READY, WAITING };
struct fiber {
    enum fiber_state state;
    struct machine *machine;
    ucontext_t context;
    char *stack;
    void (*main)(void *arg);
    void *arg;
    const void *token;
    int64_t deadline_ns; /* true time; INT64_MAX: never */
};
struct event {
    int64_t at_ns;
    uint64_t order;
    void (*fn)(void *ctx);
    void *ctx;
};

static struct {
    uint64_t random, hash, steps, order;
    int64_t now_ns;
    struct fiber fibers[FIBERS_MAX];
    size_t fiber_end;
    struct fiber *running;
    ucontext_t scheduler;
    struct event events[EVENTS_MAX]; /* a heap by (at_ns, order) */
    size_t event_count;
} sim;

/* ---- chance ---- */

void sim_seed(uint64_t seed)
{
    must(sim.fiber_end == 0);
    sim.random = seed * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0x632BE59BD9B4E019);
    sim.hash = UINT64_C(0xcbf29ce484222325);
}

/* splitmix64, public domain (Vigna). */
uint64_t sim_random(void)
{
    uint64_t z = (sim.random += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

bool sim_chance(unsigned n)
{
    return sim_random() % n == 0;
}

int64_t sim_between(int64_t low, int64_t high)
{
    must(low <= high);
    return low + (int64_t)(sim_random() % (uint64_t)(high - low + 1));
}

static void rng_sim_fill(struct rng *r, void *bytes, size_t len)
{
    (void)r;
    for (size_t i = 0; i < len; i++) {
        ((unsigned char *)bytes)[i] = (unsigned char)sim_random();
    }
}

struct rng *sim_rng(void)
{
    static const struct rng_ops ops = {.fill = rng_sim_fill};
    static struct rng rng = {.ops = &ops};
    return &rng;
}

/* ---- time and trace ---- */

int64_t sim_now_ns(void)
{
    return sim.now_ns;
}

uint64_t sim_steps(void)
{
    return sim.steps;
}

uint64_t sim_hash(void)
{
    return sim.hash;
}

static void hash_bytes(const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        sim.hash = (sim.hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    }
}

void sim_note(const char *what, int64_t number)
{
    hash_bytes(what, strlen(what));
    hash_bytes(&number, sizeof(number));
    if (getenv("SIM_TRACE") != NULL) {
        (void)printf("%12.3f %s %lld\n", (double)sim.now_ns / 1e9, what, (long long)number);
    }
}

static struct mono machine_mono(struct clock *c)
{
    const struct machine *m = (const struct machine *)c;
    return (struct mono){m->base_ns + sim.now_ns / 1000 * m->rate_ppk};
}

int64_t machine_true_ns(const struct machine *m, struct mono t)
{
    return t.ns == INT64_MAX ? INT64_MAX : ((t.ns - m->base_ns) / m->rate_ppk + 1) * 1000;
}

static struct wall machine_wall(struct clock *c)
{
    return (struct wall){machine_mono(c).ns}; /* far off, and nothing may care */
}

static void machine_wait(struct clock *c, struct cond *cond, struct mtx *m, struct mono deadline)
{
    (void)c;
    mtx_unlock(m);
    sim_wait(cond, deadline);
    mtx_lock(m);
}

void machine_init(struct machine *m, int64_t base_ns, int64_t rate_ppk)
{
    static const struct clock_ops ops = {
        .mono = machine_mono, .wall = machine_wall, .wait = machine_wait};
    *m = (struct machine){.clock.ops = &ops, .base_ns = base_ns, .rate_ppk = rate_ppk};
}

/* ---- fibers ---- */

static void fiber_main(void)
{
    struct fiber *f = sim.running;
    f->main(f->arg);
    f->state = FREE;
    (void)swapcontext(&f->context, &sim.scheduler);
    must(false);
}

void sim_spawn(struct machine *m, void (*main)(void *arg), void *arg)
{
    size_t i = 0;
    while (i < sim.fiber_end && sim.fibers[i].state != FREE) {
        i++;
    }
    must(i < FIBERS_MAX);
    sim.fiber_end = i == sim.fiber_end ? i + 1 : sim.fiber_end;
    struct fiber *f = &sim.fibers[i];
    char *stack = f->stack != NULL ? f->stack : xmalloc(STACK_BYTES);
    *f = (struct fiber){.state = READY, .machine = m, .stack = stack, .main = main, .arg = arg};
    must(getcontext(&f->context) == 0);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
}

struct machine *sim_machine(void)
{
    must(sim.running != NULL);
    return sim.running->machine;
}

void sim_wait(const void *token, struct mono deadline)
{
    struct fiber *f = sim.running;
    must(f != NULL);
    f->state = WAITING;
    f->token = token;
    f->deadline_ns = machine_true_ns(f->machine, deadline);
    must(swapcontext(&f->context, &sim.scheduler) == 0);
}

void sim_wake(const void *token)
{
    for (size_t i = 0; i < sim.fiber_end; i++) {
        if (sim.fibers[i].state == WAITING && sim.fibers[i].token == token) {
            sim.fibers[i].state = READY;
        }
    }
}

void __wrap_cond_signal(struct cond *c);
void __wrap_cond_broadcast(struct cond *c);
void __wrap_cond_signal(struct cond *c)
{
    sim_wake(c);
}
void __wrap_cond_broadcast(struct cond *c)
{
    sim_wake(c);
}

/* ---- events ---- */

static bool earlier(const struct event *a, const struct event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

void sim_at(int64_t at_ns, void (*fn)(void *ctx), void *ctx)
{
    must(sim.event_count < EVENTS_MAX);
    size_t i = sim.event_count++;
    struct event e = {.at_ns = at_ns < sim.now_ns ? sim.now_ns : at_ns,
                      .order = sim.order++,
                      .fn = fn,
                      .ctx = ctx};
    while (i > 0 && earlier(&e, &sim.events[(i - 1) / 2])) {
        sim.events[i] = sim.events[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    sim.events[i] = e;
}

static struct event pop_event(void)
{
    struct event top = sim.events[0];
    struct event last = sim.events[--sim.event_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < sim.event_count && earlier(&sim.events[child + 1], &sim.events[child])) {
            child++;
        }
        if (child >= sim.event_count || !earlier(&sim.events[child], &last)) {
            break;
        }
        sim.events[i] = sim.events[child];
        i = child;
    }
    sim.events[i] = last;
    return top;
}

/* ---- the scheduler ---- */

/* Who can go on now? Dead machines' fibers are freed on the way. *ret_next: when that may change. */
static size_t find_ready(struct fiber **ret, int64_t *ret_next_ns)
{
    size_t n = 0;
    *ret_next_ns = sim.event_count > 0 ? sim.events[0].at_ns : INT64_MAX;
    for (size_t i = 0; i < sim.fiber_end; i++) {
        struct fiber *f = &sim.fibers[i];
        if (f->state != FREE && f->machine->dead) {
            f->state = FREE;
        }
        if (f->state == FREE) {
            continue;
        }
        int64_t at = f->state == READY ? sim.now_ns : f->deadline_ns;
        at = at < f->machine->paused_until_ns ? f->machine->paused_until_ns : at;
        if (at <= sim.now_ns) {
            ret[n++] = f;
        } else if (at < *ret_next_ns) {
            *ret_next_ns = at;
        }
    }
    return n;
}

static void run_fiber(struct fiber *f)
{
    f->state = READY;
    sim.running = f;
    int64_t number = f - sim.fibers;
    hash_bytes(&number, sizeof(number));
    must(swapcontext(&sim.scheduler, &f->context) == 0);
    sim.running = NULL;
}

void sim_run(int64_t until_ns)
{
    static struct fiber *ready[FIBERS_MAX];
    for (;;) {
        int64_t next_ns = 0;
        size_t n = find_ready(ready, &next_ns);
        bool due = sim.event_count > 0 && sim.events[0].at_ns <= sim.now_ns;
        if (n == 0 && !due) {
            if (next_ns >= until_ns) {
                sim.now_ns = until_ns;
                return;
            }
            sim.now_ns = next_ns;
            continue;
        }
        sim.steps++;
        hash_bytes(&sim.now_ns, sizeof(sim.now_ns));
        size_t pick = (size_t)(sim_random() % (n + (due ? 1 : 0)));
        if (pick == n) {
            struct event e = pop_event();
            e.fn(e.ctx);
        } else {
            run_fiber(ready[pick]);
        }
    }
}
