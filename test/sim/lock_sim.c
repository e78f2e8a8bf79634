/* `make sim`: the real pkg/lease, pkg/lock and pkg/kube of three replicas over a simulated network,
 * API server and clocks, under one seed; see README.md. Around them stands a small worker and a small
 * helm behind a small gate, which keep the rules of docs/lock.md sections 3, 4, 6 and 7.
 *
 *   lock_sim SEED STEPS    seeds from SEED on until STEPS steps are done; each in a process of its own
 *   lock_sim --one SEED    this seed, here */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "hr/hr.h"
#include "jsonx/jsonx.h"
#include "kube/kubeconfig.h"
#include "lock/lock.h"
#include "wire.h"

#define LEASE_MS     5000
#define REPLICAS     3
#define OBJECTS      2
#define VALUES_MAX   1024
#define CHAOS_NS     (INT64_C(120) * NS_PER_SEC)
#define HEALING_NS   (INT64_C(60) * NS_PER_SEC) /* after the faults: all is in sync by then */
#define FRESH_MS     1000                       /* as in pkg/gate */
#define SERVER_READ_MS 2000

/* ---- rules that can be switched off, to see the invariants fail ---- */

#define MUTANTS(X)                                                                                 \
    X(NO_LEASE, "no-lease", "take a lock that is somebody's as if it were free")                   \
    X(NO_DEADLINE, "no-deadline", "the gate forwards whatever the lease says")                     \
    X(NO_LIST, "no-list", "work from the record seen before the lock")                             \
    X(EARLY_UNLOCK, "early-unlock", "unlock although a write has no answer")                       \
    X(NO_COMPARE, "no-compare", "upgrade without looking at what is deployed")                     \
    X(OWN_DURATION, "own-duration", "wait a fifth of the lease that the holder promised")          \
    X(NO_SUCCESSOR, "no-successor", "records are written whatever stands there")
enum mutant {
    NONE,
#define X(id, name, text) MUTANT_##id,
    MUTANTS(X)
#undef X
};
static const struct {
    enum mutant id;
    const char *name, *text;
} mutants[] = {
#define X(id, name, text) {MUTANT_##id, name, text},
    MUTANTS(X)
#undef X
};
static enum mutant mutant;

/* ---- what Helm's storage holds, at the server ---- */

enum record_status { RECORD_NONE, RECORD_PENDING, RECORD_FAILED, RECORD_DEPLOYED };
struct record {
    int64_t revision, value, epoch, version;
    enum record_status status;
};
struct store {
    const char *name;
    struct record newest;
    int64_t versions;
    int64_t value; /* that the user wants */
    int64_t deployed_value;
    bool deployed[VALUES_MAX];
    int revisions, takeovers;
};
static struct store stores[OBJECTS] = {{.name = "a"}, {.name = "b"}};

_Noreturn static void violated(const char *rule, const char *what, const struct store *s,
                               int64_t number)
{
    (void)printf("%s: %s (object %s, %" PRId64 ") at %.3f s, step %" PRIu64 "\n", rule, what,
                 s->name, number, (double)sim_now_ns() / 1e9, sim_steps());
    (void)fflush(stdout);
    _exit(3);
}

/* P1: what is written for a release is written by the epoch that holds its lock. */
static void check_epoch(const struct store *s, int64_t epoch)
{
    _cleanup_json_ json_t *object = wire_server_object(s->name);
    if (jsonx_int(object, "status.lease.leaseTransitions", 0) != epoch) {
        violated("P1", "a write of an epoch that does not hold the lock", s, epoch);
    }
}

enum op { OP_LIST, OP_CREATE, OP_WORKLOAD, OP_UPDATE };
struct request {
    enum op op;
    struct store *store;
    struct record record; /* to write; of OP_LIST: the answer */
    bool refused;
};

static void server_write_record(struct request *q)
{
    struct store *s = q->store;
    bool fits = q->op == OP_CREATE ? q->record.revision == s->newest.revision + 1
                                   : q->record.revision == s->newest.revision &&
                                         q->record.version == s->newest.version;
    if (!fits && mutant != MUTANT_NO_SUCCESSOR) {
        q->refused = true;
        return;
    }
    check_epoch(s, q->record.epoch);
    s->revisions += q->op == OP_CREATE ? 1 : 0;
    q->record.version = ++s->versions;
    s->newest = q->record;
    if (q->record.status == RECORD_DEPLOYED) {
        if (s->deployed[q->record.value]) {
            violated("P2", "deployed twice", s, q->record.value);
        }
        s->deployed[q->record.value] = true;
        s->deployed_value = q->record.value;
    }
}

static void server_does(void *ctx)
{
    struct request *q = ctx;
    sim_note("helm", q->op * 1000 + q->record.epoch);
    switch (q->op) {
    case OP_LIST:
        q->record = q->store->newest;
        return;
    case OP_WORKLOAD:
        check_epoch(q->store, q->record.epoch);
        return;
    case OP_CREATE:
    case OP_UPDATE:
        server_write_record(q);
        return;
    }
}

/* P5, at each new version of an object. (P6 and more: fake_check_lock in fake_api.h.) */
static void check_status(void *ctx, const json_t *before, const json_t *after)
{
    (void)ctx;
    struct store *s = stores;
    while (strcmp(s->name, jsonx_str(after, "metadata.name", "")) != 0) {
        s++;
    }
    s->takeovers += jsonx_int(before, "status.lease.leaseTransitions", 0) !=
                            jsonx_int(after, "status.lease.leaseTransitions", 0)
                        ? 1
                        : 0;
    const json_t *released =
        hr_conditions_find(jsonx_at(after, "status.conditions"), "Released", NULL);
    int64_t generation = jsonx_int(after, "metadata.generation", 0);
    if (text_eq(jsonx_str(released, "status", ""), "True") &&
        jsonx_int(after, "status.observedGeneration", -1) == generation && s->value != 0 &&
        s->deployed_value != s->value) {
        violated("P5", "Released=True for what is not deployed", s, s->value);
    }
}

/* ---- replicas ---- */

struct child {
    bool interrupted, killed;
};
struct seat; /* a replica's worker for one object */
struct replica {
    struct machine machine;
    struct wire wire;
    struct kube *kube;
    struct metrics *metrics;
    struct cancel stopping;
    struct locks *locks;
    struct mtx lock;
    struct cond changed;
    struct seat {
        struct replica *replica;
        struct store *store;
        json_t *view;                     /* guarded by lock */
        struct lease_sighting sighting;   /* guarded by lock; of view */
        struct record seen;               /* of the last pass, for no-list */
        struct mono left_until;           /* a lock of ours was left to run out */
    } seats[OBJECTS];
};
static struct kube_config *config;
static struct replica *replicas[REPLICAS];
static int64_t incarnations;

static void child_signal(struct child *c, int signo)
{
    c->interrupted = true;
    c->killed = c->killed || signo == 9;
}

static void view_arrives(void *ctx, json_t *object, bool live)
{
    struct replica *r = ctx;
    struct seat *seat = r->seats;
    while (strcmp(seat->store->name, jsonx_str(object, "metadata.name", "")) != 0) {
        seat++;
    }
    struct hr *hr = NULL;
    struct err err = ERR_INIT;
    must(hr_parse(object, &hr, &err) == ERR_NONE);
    mtx_lock(&r->lock);
    json_decref(seat->view);
    seat->view = object;
    lease_sighting_note(&seat->sighting, &hr->status, clock_mono(&r->machine.clock), live);
    cond_broadcast(&r->changed);
    mtx_unlock(&r->lock);
    hr_free(hr);
}

/* ---- the small gate and the small helm ---- */

struct run {
    struct seat *seat;
    struct held *held;
    struct child child;
    struct mono sign; /* of the last proof that the lock is ours */
    bool latched, unanswered, refused;
};

static void latch(struct run *run)
{
    run->latched = true;
    run->child.killed = true;
}

/* May a write go out now? */
static bool gate_passes(struct run *run, bool record)
{
    struct clock *clock = &run->seat->replica->machine.clock;
    if (mutant == MUTANT_NO_DEADLINE) {
        return true;
    }
    if (record || mono_diff_ms(clock_mono(clock), run->sign) > FRESH_MS) {
        struct err err = ERR_INIT;
        struct mono sent = {0};
        if (held_confirm(run->held, &sent, &err)) {
            latch(run);
            return false;
        }
        run->sign = sent;
    }
    if (run->child.killed || held_is_lost(run->held) ||
        !mono_before(clock_mono(clock), held_deadline(run->held))) {
        latch(run);
        return false;
    }
    return true;
}

static bool forward(struct run *run, struct request *q)
{
    if (run->latched || !gate_passes(run, q->op != OP_WORKLOAD)) {
        return false;
    }
    struct mono deadline = mutant == MUTANT_NO_DEADLINE
                               ? mono_add_ms(clock_mono(&run->seat->replica->machine.clock), 20000)
                               : held_deadline(run->held);
    if (wire_call(&run->seat->replica->wire, deadline, server_does, q)) {
        run->unanswered = true;
        latch(run);
        return false;
    }
    run->sign = clock_mono(&run->seat->replica->machine.clock);
    if (q->refused) {
        run->refused = true;
        latch(run);
    }
    return !q->refused;
}

static void rest(struct run *run, int64_t ms)
{
    struct clock *clock = &run->seat->replica->machine.clock;
    struct mono until = mono_add_ms(clock_mono(clock), ms);
    while (mono_before(clock_mono(clock), until)) {
        sim_wait(run, until);
    }
}

static struct request *request_of(const struct run *run, enum op op, const struct record *record)
{
    struct request *q = xcalloc(1, sizeof(*q)); /* the message may outlive us: see wire_call */
    *q = (struct request){.op = op, .store = run->seat->store, .record = *record};
    q->record.epoch = held_epoch(run->held);
    return q;
}

/* One revision after `after`; true if it became deployed. */
static bool helm_upgrade(struct run *run, const struct record *after, int64_t value)
{
    struct record record = {
        .revision = after->revision + 1, .value = value, .status = RECORD_PENDING};
    struct request *q = request_of(run, OP_CREATE, &record);
    if (!forward(run, q)) {
        return false;
    }
    record = q->record;
    int64_t objects = sim_between(0, 4);
    for (int64_t i = 0; i < objects && !run->child.interrupted; i++) {
        rest(run, sim_chance(10) ? sim_between(0, 8000) : sim_between(0, 300));
        if (run->child.killed || !forward(run, request_of(run, OP_WORKLOAD, &record))) {
            return false;
        }
    }
    record.status = run->child.interrupted || sim_chance(10) ? RECORD_FAILED : RECORD_DEPLOYED;
    return forward(run, request_of(run, OP_UPDATE, &record)) && record.status == RECORD_DEPLOYED;
}

/* ---- the small worker ---- */

struct result {
    int64_t generation;
    bool released;
};

static json_t *condition(const char *type, const char *status, const char *now, int64_t generation)
{
    json_t *c = json_pack("{s:s,s:s,s:s,s:s,s:s,s:I}", "type", type, "status", status, "reason",
                          "Simulated", "message", "", "lastTransitionTime", now,
                          "observedGeneration", (json_int_t)generation);
    must(c != NULL);
    return c;
}

static json_t *build_result(void *ctx, const json_t *object, const char *now, bool minimal)
{
    const struct result *r = ctx;
    (void)object;
    (void)minimal;
    const char *truth = r->released ? "True" : "False";
    json_t *status =
        json_pack("{s:[o,o,o]}", "conditions", condition("Released", truth, now, r->generation),
                  condition("Ready", truth, now, r->generation),
                  condition("Reconciling", "False", now, r->generation));
    must(status != NULL);
    return status;
}

/* Read the newest record; false: it could not be read. */
static bool list_records(struct seat *seat, struct record *ret)
{
    struct request *q = xcalloc(1, sizeof(*q));
    *q = (struct request){.op = OP_LIST, .store = seat->store};
    struct mono deadline = mono_add_ms(clock_mono(&seat->replica->machine.clock), SERVER_READ_MS);
    if (wire_call(&seat->replica->wire, deadline, server_does, q)) {
        return false;
    }
    *ret = q->record;
    return true;
}

/* What the lock is for. True: the release is as its spec wants it. */
static bool sync_release(struct run *run)
{
    struct record newest = run->seat->seen;
    if (mutant != MUTANT_NO_LIST && !list_records(run->seat, &newest)) {
        return false;
    }
    if (newest.status == RECORD_PENDING) {
        struct record failed = newest;
        failed.status = RECORD_FAILED;
        struct request *q = request_of(run, OP_UPDATE, &failed);
        if (!forward(run, q)) {
            return false;
        }
        newest = q->record;
    }
    _cleanup_json_ json_t *object = held_object(run->held);
    int64_t value = jsonx_int(object, "spec.values.v", 0);
    if (newest.status == RECORD_DEPLOYED && newest.value == value && mutant != MUTANT_NO_COMPARE) {
        return true;
    }
    return helm_upgrade(run, &newest, value);
}

static void run_sync(struct seat *seat, struct held *held)
{
    struct replica *r = seat->replica;
    struct run run = {.seat = seat, .held = held, .sign = {INT64_MIN / 2}};
    held_set_child(held, &run.child);
    struct result result = {.generation = held_generation(held)};
    result.released = sync_release(&run);
    held_set_child(held, NULL);
    if (run.unanswered && mutant != MUTANT_EARLY_UNLOCK) {
        seat->left_until = mono_add_ms(clock_mono(&r->machine.clock), LEASE_MS * 2);
    } else if (!held_is_lost(held)) {
        struct err err = ERR_INIT;
        if (held_unlock(held, build_result, &result, &err)) {
            sim_note("the result was dropped", err.kind);
        }
    }
    held_free(held);
}

/* Milliseconds until the object should be looked at again; 0: *ret_request says what to take. */
static int64_t decide(struct seat *seat, struct lock_request *ret_request)
{
    struct replica *r = seat->replica;
    struct mono now = clock_mono(&r->machine.clock);
    struct hr *hr = NULL;
    struct err err = ERR_INIT;
    if (seat->view == NULL) {
        return 10000;
    }
    must(hr_parse(seat->view, &hr, &err) == ERR_NONE);
    bool settled = hr->status.released.status == HR_TRUE &&
                   hr->status.observed_generation == hr->generation;
    struct lease_question q = {.status = &hr->status,
                               .sighting = &seat->sighting,
                               .now = now,
                               .self = locks_identity(r->locks),
                               .own_lease_ms = LEASE_MS};
    q.have_server_time = kube_server_time(r->kube, &q.server_now);
    if (mutant == MUTANT_OWN_DURATION && hr->status.lease.present) {
        hr->status.lease.duration_s = 1;
    }
    int64_t wait_ms = 0;
    enum lease_verdict verdict = lease_decide(&q, &wait_ms);
    if (verdict == LEASE_OURS && mono_before(now, seat->left_until)) {
        verdict = LEASE_WAIT;
        wait_ms = mono_diff_ms(seat->left_until, now) + 1;
    }
    hr_free(hr);
    if (settled) {
        return 10000;
    }
    if (verdict == LEASE_WAIT && mutant != MUTANT_NO_LEASE) {
        return wait_ms > 0 ? wait_ms : 1;
    }
    *ret_request = (struct lock_request){.object = json_incref(seat->view),
                                         .expired = verdict == LEASE_EXPIRED,
                                         .reason = "Upgrading",
                                         .doing = "simulates"};
    return 0;
}

static void pause_worker(struct seat *seat, int64_t ms)
{
    struct replica *r = seat->replica;
    struct mono until = mono_add_ms(clock_mono(&r->machine.clock), ms);
    mtx_lock(&r->lock);
    clock_wait(&r->machine.clock, &r->changed, &r->lock, until);
    mtx_unlock(&r->lock);
}

static void worker_main(void *arg)
{
    struct seat *seat = arg;
    struct replica *r = seat->replica;
    for (;;) {
        struct lock_request request = {0};
        struct record seen = {0};
        if (list_records(seat, &seen)) { /* also feeds the server clock's first sample below */
            seat->seen = seen;
        }
        struct kube_reply reply = KUBE_REPLY_INIT;
        struct err err = ERR_INIT;
        struct mono soon = mono_add_ms(clock_mono(&r->machine.clock), 1000);
        if (kube_get(r->kube, &KUBE_HELMRELEASES, "ns", seat->store->name, soon, NULL, &reply,
                     &err) == ERR_NONE) {
            kube_reply_release(&reply);
        }
        mtx_lock(&r->lock);
        int64_t wait_ms = decide(seat, &request);
        mtx_unlock(&r->lock);
        if (wait_ms > 0) {
            pause_worker(seat, wait_ms);
            continue;
        }
        struct held *held = NULL;
        enum err_kind kind = lock_acquire(r->locks, &request, &held, &err);
        json_decref((json_t *)request.object);
        sim_note("acquire", kind);
        if (kind == ERR_NONE) {
            run_sync(seat, held);
        }
        pause_worker(seat, sim_between(100, 1000)); /* the watch will tell more */
    }
}

static void heartbeat_main(void *arg)
{
    locks_run(arg);
}
static void watchdog_main(void *arg)
{
    locks_watchdog_run(arg);
}

static struct replica *replica_start(int number)
{
    static const struct proc_ops proc_ops = {.signal = child_signal};
    static struct proc proc = {.ops = &proc_ops};
    struct replica *r = xcalloc(1, sizeof(*r));
    char identity[64];
    (void)snprintf(identity, sizeof(identity), "pod-%d/uid-%" PRId64 "/%" PRId64, number,
                   incarnations, incarnations);
    incarnations++;
    machine_init(&r->machine, sim_between(1, 1000) * NS_PER_SEC, sim_between(960, 1040));
    wire_init(&r->wire, &r->machine);
    r->kube = kube_new(&(struct kube_options){.transport = &r->wire.base,
                                              .clock = &r->machine.clock,
                                              .config = config,
                                              .user_agent = "belay/sim"});
    r->metrics = metrics_new();
    cancel_init(&r->stopping);
    mtx_init(&r->lock, "sim replica");
    cond_init(&r->changed);
    r->locks = locks_new(&(struct locks_options){.kube = r->kube,
                                                 .clock = &r->machine.clock,
                                                 .proc = &proc,
                                                 .metrics = r->metrics,
                                                 .identity = identity,
                                                 .lease_ms = LEASE_MS,
                                                 .stopping = &r->stopping});
    sim_spawn(&r->machine, heartbeat_main, r->locks);
    sim_spawn(&r->machine, watchdog_main, r->locks);
    for (size_t i = 0; i < OBJECTS; i++) {
        r->seats[i].replica = r;
        r->seats[i].store = &stores[i];
        sim_spawn(&r->machine, worker_main, &r->seats[i]);
    }
    wire_follow(&r->wire, view_arrives, r);
    return r;
}

/* ---- people and trouble ---- */

static void edit_spec(json_t *object, void *ctx)
{
    struct store *s = ctx;
    s->value++;
    must(s->value < VALUES_MAX);
    json_t *meta = json_object_get(object, "metadata");
    int64_t generation = jsonx_int(object, "metadata.generation", 0) + 1;
    must(json_object_set_new(meta, "generation", json_integer(generation)) == 0);
    must(json_object_set_new(jsonx_at(object, "spec.values"), "v", json_integer(s->value)) == 0);
}

static void edit_label(json_t *object, void *ctx)
{
    (void)ctx;
    must(json_object_set_new(json_object_get(object, "metadata"), "labels",
                             json_pack("{s:I}", "n", (json_int_t)sim_between(0, 1000000))) == 0);
}

static void restart(void *ctx)
{
    struct replica **slot = ctx;
    *slot = replica_start((int)(slot - replicas));
}

static void one_trouble(void)
{
    struct replica **slot = &replicas[sim_between(0, REPLICAS - 1)];
    struct replica *r = *slot;
    int64_t now = sim_now_ns();
    int64_t kind = sim_between(0, 9);
    sim_note("trouble", kind);
    if (kind == 0 && !r->machine.dead) {
        r->machine.dead = true;
        sim_at(now + sim_between(0, 3000) * NS_PER_MS, restart, slot);
    } else if (kind <= 2) {
        r->machine.paused_until_ns = now + sim_between(100, 15000) * NS_PER_MS;
    } else if (kind <= 4) {
        r->wire.cut_until_ns = now + sim_between(100, 10000) * NS_PER_MS;
    } else if (kind == 5) {
        wire_server_down(now + sim_between(100, 5000) * NS_PER_MS);
    } else if (kind <= 7) {
        struct store *s = &stores[sim_between(0, OBJECTS - 1)];
        wire_server_edit(s->name, edit_spec, s);
    } else {
        wire_server_edit(stores[sim_between(0, OBJECTS - 1)].name, edit_label, NULL);
    }
}

static void trouble(void *ctx)
{
    (void)ctx;
    if (sim_now_ns() >= CHAOS_NS) {
        return;
    }
    one_trouble();
    sim_at(sim_now_ns() + sim_between(10, 4000) * NS_PER_MS, trouble, NULL);
}

static void heal(void)
{
    wire_server_faults(&(struct wire_faults){0});
    wire_server_down(0);
    for (size_t i = 0; i < REPLICAS; i++) {
        replicas[i]->machine.paused_until_ns = 0;
        replicas[i]->wire.cut_until_ns = 0;
    }
}

/* P3: with the faults gone, all is in sync within HEALING_NS. */
static void check_converged(void)
{
    for (size_t i = 0; i < OBJECTS; i++) {
        struct store *s = &stores[i];
        _cleanup_json_ json_t *object = wire_server_object(s->name);
        const json_t *released =
            hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", NULL);
        bool in_sync = s->newest.status == RECORD_DEPLOYED && s->newest.value == s->value &&
                       text_eq(jsonx_str(released, "status", ""), "True") &&
                       jsonx_int(object, "status.observedGeneration", -1) ==
                           jsonx_int(object, "metadata.generation", 0);
        if (!in_sync) {
            violated("P3", "not in sync long after the last fault", s, s->value);
        }
    }
}

/* ---- one seed ---- */

static void load_config(void)
{
    char path[] = "/tmp/lock_sim.XXXXXX";
    int fd = mkstemp(path);
    must(fd >= 0);
    FILE *file = fdopen(fd, "w");
    must(file != NULL);
    must(fputs("apiVersion: v1\nkind: Config\ncurrent-context: c\n"
               "clusters: [{name: c, cluster: {server: 'https://api'}}]\n"
               "users: [{name: u, user: {}}]\n"
               "contexts: [{name: c, context: {cluster: c, user: u}}]\n",
               file) >= 0);
    must(fclose(file) == 0);
    static struct machine reader;
    machine_init(&reader, 0, 1000);
    struct err err = ERR_INIT;
    must(kube_config_load(
             &(struct kube_config_options){.path = path, .clock = &reader.clock}, &config, &err) ==
         ERR_NONE);
    must(unlink(path) == 0);
}

static struct wire_faults draw_faults(void)
{
    static const unsigned chances[] = {0, 0, 100, 30, 10};
    unsigned some[8];
    for (size_t i = 0; i < 8; i++) {
        some[i] = chances[sim_random() % (sizeof(chances) / sizeof(chances[0]))];
    }
    return (struct wire_faults){.refuse = some[0],
                                .lie = some[1],
                                .lose = some[2],
                                .lose_reply = some[3],
                                .late = some[4],
                                .slow = some[5],
                                .drop_watch = some[6],
                                .twice = some[7]};
}

static void run_seed(uint64_t seed)
{
    sim_seed(seed);
    struct wire_faults faults = draw_faults();
    wire_server_init(&faults);
    wire_server_watch(check_status, NULL);
    for (size_t i = 0; i < OBJECTS; i++) {
        char text[512];
        (void)snprintf(text, sizeof(text),
                       "{\"metadata\":{\"namespace\":\"ns\",\"name\":\"%s\",\"uid\":\"uid-%s\","
                       "\"generation\":1},\"spec\":{\"values\":{\"v\":1}},"
                       "\"status\":{\"observedGeneration\":-1}}",
                       stores[i].name, stores[i].name);
        stores[i].value = 1;
        wire_server_add(text);
    }
    for (int i = 0; i < REPLICAS; i++) {
        replicas[i] = replica_start(i);
    }
    sim_at(0, trouble, NULL);
    sim_run(CHAOS_NS);
    heal();
    sim_run(CHAOS_NS + HEALING_NS);
    check_converged();
}

/* ---- many seeds ---- */

struct report {
    uint64_t steps, hash;
    int revisions, takeovers;
};

static void one(uint64_t seed, int out)
{
    log_init(&(struct log_options){.level = LOG_ERROR});
    load_config();
    run_seed(seed);
    struct report report = {.steps = sim_steps(), .hash = sim_hash()};
    for (size_t i = 0; i < OBJECTS; i++) {
        report.revisions += stores[i].revisions;
        report.takeovers += stores[i].takeovers;
    }
    must(write(out, &report, sizeof(report)) == sizeof(report));
}

/* In a process of its own: false if it did not end well. */
static bool run_apart(uint64_t seed, struct report *ret)
{
    int ends[2];
    must(pipe(ends) == 0);
    (void)fflush(stdout);
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        one(seed, ends[1]);
        _exit(0);
    }
    must(close(ends[1]) == 0);
    bool whole = read(ends[0], ret, sizeof(*ret)) == sizeof(*ret);
    must(close(ends[0]) == 0);
    int status = 0;
    must(waitpid(pid, &status, 0) == pid);
    return whole && status == 0;
}

static int run_many(uint64_t first, uint64_t steps)
{
    struct report sum = {0}, a = {0}, b = {0};
    uint64_t seeds = 0, failed = 0, said = 0;
    /* The same seed must give the same run, or no failure could be looked at. */
    bool repeats = run_apart(first, &a) && run_apart(first, &b) && a.hash == b.hash;
    if (!repeats && a.steps != 0 && b.steps != 0) {
        (void)printf("sim: seed %" PRIu64 " gave two different runs\n", first);
    }
    for (uint64_t seed = first; sum.steps < steps && failed < 5; seed++, seeds++) {
        struct report r = {0};
        if (!run_apart(seed, &r)) {
            failed++;
            (void)printf("sim: seed %" PRIu64 " failed; again: make sim SEED=%" PRIu64
                         " STEPS=1\n",
                         seed, seed);
        }
        sum.steps += r.steps;
        sum.revisions += r.revisions;
        sum.takeovers += r.takeovers;
        if (sum.steps / 250000 != said) {
            said = sum.steps / 250000;
            (void)printf("  sim: seed %" PRIu64 ", %" PRIu64 " of %" PRIu64 " steps\n", seed,
                         sum.steps, steps);
        }
    }
    (void)printf("  seeds %" PRIu64 " to %" PRIu64 ", %" PRIu64 " steps, %d epochs, %d revisions, "
                 "trace %016" PRIx64 "\n",
                 first, first + seeds - 1, sum.steps, sum.takeovers, sum.revisions, a.hash);
    failed += repeats ? 0 : 1;
    (void)printf("sim: %" PRIu64 " passed, %" PRIu64 " failed\n", seeds + 1 - failed, failed);
    return failed == 0 ? 0 : 1;
}

/* Each rule switched off: how many seeds until an invariant fails? */
static int run_mutants(uint64_t first, uint64_t most)
{
    size_t n = sizeof(mutants) / sizeof(mutants[0]), missed = 0;
    for (size_t i = 0; i < n; i++) {
        mutant = mutants[i].id;
        uint64_t seed = first;
        struct report r;
        while (seed < first + most && run_apart(seed, &r)) {
            seed++;
        }
        bool caught = seed < first + most;
        missed += caught ? 0 : 1;
        (void)printf("  [%zu/%zu] without a rule: %s (%s): %s, %" PRIu64 " seeds\n", i + 1, n,
                     mutants[i].name, mutants[i].text, caught ? "caught" : "NOT CAUGHT",
                     seed - first + (caught ? 1 : 0));
    }
    (void)printf("sim mutants: %zu passed, %zu failed\n", n - missed, missed);
    return missed == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *name = getenv("SIM_MUTANT");
    for (size_t i = 0; name != NULL && i < sizeof(mutants) / sizeof(mutants[0]); i++) {
        mutant = strcmp(name, mutants[i].name) == 0 ? mutants[i].id : mutant;
    }
    int64_t a = 0, b = 0;
    if (argc == 3 && strcmp(argv[1], "--one") == 0 && text_to_int64(argv[2], 0, INT64_MAX, &a)) {
        one((uint64_t)a, STDOUT_FILENO);
        return 0;
    }
    if (argc == 4 && strcmp(argv[1], "--mutants") == 0 &&
        text_to_int64(argv[2], 0, INT64_MAX, &a) && text_to_int64(argv[3], 1, INT64_MAX, &b)) {
        return run_mutants((uint64_t)a, (uint64_t)b);
    }
    if (argc == 3 && text_to_int64(argv[1], 0, INT64_MAX, &a) &&
        text_to_int64(argv[2], 1, INT64_MAX, &b)) {
        return run_many((uint64_t)a, (uint64_t)b);
    }
    (void)fprintf(stderr, "lock_sim SEED STEPS | --one SEED | --mutants SEED SEEDS\n");
    return 2;
}
