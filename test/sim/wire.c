/* The fake's helpers are for many tests; this one does not use them all. */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../unit/fake_api.h"

#include "wire.h"

#define OBJECTS_MAX   4
#define FOLLOWERS_MAX 64
#define WATCHERS_MAX  4

struct call {
    struct wire *wire;
    struct http_request request; /* with copies of method, url, type and body */
    struct http_header type;
    int64_t deadline_ns; /* true time, of the sender */
    bool expires;        /* dropped when it arrives after the deadline */
    void (*fn)(void *ctx);
    void *ctx;
    enum fake_fault fault;
    bool deaf;      /* no reply */
    bool abandoned; /* nobody waits */
    bool done;
    struct mono sent;
    struct http_response response;
    enum err_kind result;
};

struct follower {
    struct wire *wire;
    wire_view fn;
    void *ctx;
    int64_t last_ns[OBJECTS_MAX]; /* when the newest event arrives: order is kept */
    int gap[OBJECTS_MAX];         /* LISTs on their way */
};
struct delivery {
    struct follower *follower;
    size_t at;
    json_t *object; /* NULL: a LIST, shows what stands there when it is answered */
};

static struct {
    struct fake_clock clock;
    struct fake_api api;
    struct wire_faults faults;
    int64_t down_until_ns;
    struct follower followers[FOLLOWERS_MAX];
    size_t follower_count;
    struct {
        wire_watcher fn;
        void *ctx;
    } watchers[WATCHERS_MAX];
    size_t watcher_count;
} server;

/* ---- the server ---- */

static void touch_clock(void)
{
    atomic_store(&server.clock.now_ns, FAKE_START_NS + sim_now_ns());
}

void wire_server_init(const struct wire_faults *faults)
{
    server.clock = (struct fake_clock){.base.ops = &FAKE_CLOCK_OPS};
    fake_api_init(&server.api, &server.clock);
    server.faults = *faults;
    touch_clock();
}

void wire_server_free(void)
{
    fake_api_release(&server.api);
}

void wire_server_faults(const struct wire_faults *faults)
{
    server.faults = *faults;
}

void wire_server_add(const char *text)
{
    fake_api_add(&server.api, text);
}

json_t *wire_server_object(const char *name)
{
    return fake_api_object(&server.api, name);
}

void wire_server_down(int64_t until_ns)
{
    server.down_until_ns = until_ns;
}

void wire_server_watch(wire_watcher fn, void *ctx)
{
    must(server.watcher_count < WATCHERS_MAX);
    server.watchers[server.watcher_count].fn = fn;
    server.watchers[server.watcher_count++].ctx = ctx;
}

static int64_t delay_ns(void)
{
    int64_t ms = server.faults.slow != 0 && sim_chance(server.faults.slow) ? sim_between(0, 3000)
                                                                           : sim_between(0, 30);
    return ms * NS_PER_MS + sim_between(1, NS_PER_MS);
}

static bool strikes(unsigned once_in)
{
    return once_in != 0 && sim_chance(once_in);
}

/* ---- watching ---- */

static void deliver(void *ctx)
{
    struct delivery *d = ctx;
    struct follower *f = d->follower;
    const struct machine *m = f->wire->machine;
    if (m->dead) {
        json_decref(d->object);
        free(d);
        return;
    }
    int64_t again_ns = f->wire->cut_until_ns > server.down_until_ns ? f->wire->cut_until_ns
                                                                    : server.down_until_ns;
    again_ns = again_ns < m->paused_until_ns ? m->paused_until_ns : again_ns;
    if (again_ns > sim_now_ns()) { /* a watch does not outlive that: its reader lists */
        json_decref(d->object);
        f->gap[d->at] += d->object != NULL ? 1 : 0;
        d->object = NULL;
        sim_at(again_ns + delay_ns(), deliver, d);
        return;
    }
    bool list = d->object == NULL;
    json_t *shown = list ? json_deep_copy(server.api.objects[d->at]) : d->object;
    f->gap[d->at] -= list ? 1 : 0;
    /* While a LIST is on its way, there is no watch. */
    if (shown != NULL && (list || f->gap[d->at] == 0)) {
        f->fn(f->ctx, shown, !list);
    } else {
        json_decref(shown);
    }
    free(d);
}

static void send_to(struct follower *f, size_t at, json_t *object)
{
    struct delivery *d = xcalloc(1, sizeof(*d));
    *d = (struct delivery){.follower = f, .at = at, .object = json_deep_copy(object)};
    int64_t when = sim_now_ns() + delay_ns();
    if (object == NULL || strikes(server.faults.drop_watch)) {
        json_decref(d->object);
        d->object = NULL;
        f->gap[at]++;
        when += sim_between(0, 3000) * NS_PER_MS;
    } else {
        when = when <= f->last_ns[at] ? f->last_ns[at] + 1 : when;
        f->last_ns[at] = when;
    }
    sim_at(when, deliver, d);
}

void wire_follow(struct wire *w, wire_view fn, void *ctx)
{
    size_t slot = 0;
    while (slot < server.follower_count && !server.followers[slot].wire->machine->dead) {
        slot++;
    }
    slot = server.follower_count; /* deliveries point to their follower: no slot is used twice */
    must(slot < FOLLOWERS_MAX);
    server.follower_count++;
    server.followers[slot] = (struct follower){.wire = w, .fn = fn, .ctx = ctx};
    for (size_t i = 0; i < OBJECTS_MAX; i++) {
        if (server.api.objects[i] != NULL) {
            send_to(&server.followers[slot], i, NULL);
        }
    }
}

static void tell_all(size_t at, const json_t *before)
{
    for (size_t i = 0; i < server.watcher_count; i++) {
        server.watchers[i].fn(server.watchers[i].ctx, before, server.api.objects[at]);
    }
    for (size_t i = 0; i < server.follower_count; i++) {
        if (!server.followers[i].wire->machine->dead) {
            send_to(&server.followers[i], at, server.api.objects[at]);
        }
    }
}

void wire_server_edit(const char *name, void (*edit)(json_t *object, void *ctx), void *ctx)
{
    size_t at = fake_find(&server.api, name);
    must(at < OBJECTS_MAX);
    json_t *before = server.api.objects[at];
    server.api.objects[at] = json_deep_copy(before);
    edit(server.api.objects[at], ctx);
    fake_bump(&server.api, server.api.objects[at]);
    tell_all(at, before);
    json_decref(before);
}

/* ---- messages ---- */

static void call_free(struct call *c)
{
    free((char *)c->request.method);
    free((char *)c->request.url);
    free((char *)c->request.body);
    free((char *)c->type.value);
    http_response_release(&c->response);
    free(c);
}

static void reply_arrives(void *ctx)
{
    struct call *c = ctx;
    if (c->abandoned || c->wire->machine->dead) {
        call_free(c);
        return;
    }
    if (sim_now_ns() < c->wire->cut_until_ns) {
        c->deaf = true;
        return;
    }
    c->done = true;
    c->response.received = clock_mono(&c->wire->machine->clock);
    sim_wake(c);
}

/* Run by the server. */
static void carry_out(struct call *c)
{
    if (c->fn != NULL) {
        c->fn(c->ctx);
        return;
    }
    struct fake_target target = fake_target_of(c->request.url);
    size_t at = fake_find(&server.api, target.name);
    struct fake_rule rule = {.fault = c->fault};
    json_t *before = at < OBJECTS_MAX ? json_incref(server.api.objects[at]) : NULL;
    _cleanup_json_ json_t *object = NULL;
    int status = fake_carry_out(&server.api, &c->request, &target, &rule, &object);
    int told = fake_status_of(c->fault);
    http_response_release(&c->response);
    fake_reply(&server.api, c->sent, told != 0 ? told : status, told != 0 ? NULL : object,
               &c->response);
    sim_note("status", c->response.status);
    if (before != NULL && !jsonx_equal(jsonx_at(before, "metadata.resourceVersion"),
                                       jsonx_at(server.api.objects[at],
                                                "metadata.resourceVersion"))) {
        tell_all(at, before);
    }
    json_decref(before);
}

static void request_arrives(void *ctx)
{
    struct call *c = ctx;
    bool dropped = c->expires && sim_now_ns() >= c->deadline_ns;
    if (sim_now_ns() < server.down_until_ns || dropped ||
        (sim_now_ns() < c->wire->cut_until_ns)) {
        c->deaf = true;
    } else {
        touch_clock();
        carry_out(c);
    }
    if (c->deaf) { /* its sender waits for the deadline; the message itself ends here */
        if (c->abandoned || c->wire->machine->dead) {
            call_free(c);
        }
        return;
    }
    sim_at(sim_now_ns() + delay_ns(), reply_arrives, c);
}

/* What becomes of it? */
static void draw_fate(struct call *c, int64_t *at_ns)
{
    static const enum fake_fault refusals[] = {FAKE_409, FAKE_429, FAKE_500, FAKE_504};
    const struct wire_faults *f = &server.faults;
    bool lock_write = c->fn == NULL && strcmp(c->request.method, "PATCH") == 0;
    if (c->fn == NULL && strikes(f->refuse)) {
        c->fault = refusals[sim_random() % 4];
    } else if (c->fn == NULL && strikes(f->lie)) {
        c->fault = FAKE_504_DONE;
    }
    if (strikes(f->lose_reply)) {
        c->deaf = true;
    }
    if (lock_write && strikes(f->late)) {
        c->deaf = true;
        *at_ns += sim_between(0, 20000) * NS_PER_MS;
    }
}

static struct call *call_new(struct wire *w, struct mono deadline)
{
    struct call *c = xcalloc(1, sizeof(*c));
    c->wire = w;
    c->fault = FAKE_PASS;
    c->sent = clock_mono(&w->machine->clock);
    c->deadline_ns = machine_true_ns(w->machine, deadline);
    c->response = (struct http_response)HTTP_RESPONSE_INIT;
    return c;
}

static void dispatch(struct call *c)
{
    int64_t at_ns = sim_now_ns() + delay_ns();
    draw_fate(c, &at_ns);
    if (strikes(server.faults.lose)) {
        c->deaf = true; /* never arrives */
    } else {
        sim_at(at_ns, request_arrives, c);
    }
}

static struct call *call_http(struct wire *w, const struct http_request *req)
{
    struct call *c = call_new(w, req->deadline);
    c->type = (struct http_header){"Content-Type", xstrdup(fake_type_of(req))};
    c->request = (struct http_request){.method = xstrdup(req->method),
                                       .url = xstrdup(req->url),
                                       .headers = &c->type,
                                       .header_count = 1,
                                       .body = req->body != NULL ? xstrdup(req->body) : NULL,
                                       .body_len = req->body_len};
    return c;
}

/* The same bytes once more, to nobody: a proxy that sends again. */
static void send_twice(struct wire *w, const struct http_request *req)
{
    struct call *c = call_http(w, req);
    c->deaf = true;
    c->abandoned = true;
    sim_at(sim_now_ns() + sim_between(0, 5000) * NS_PER_MS, request_arrives, c);
}

static void wake_call(void *ctx)
{
    sim_wake(ctx);
}

/* Until the answer, the deadline or the cancel. */
static enum err_kind await(struct call *c, struct mono deadline, struct cancel *cancel)
{
    struct clock *clock = &c->wire->machine->clock;
    struct cancel_waker waker = {.wake = wake_call, .ctx = c};
    cancel_add(cancel, &waker);
    while (!c->done && mono_before(clock_mono(clock), deadline) && !cancel_is_raised(cancel)) {
        sim_wait(c, deadline);
    }
    cancel_remove(cancel, &waker);
    if (c->done) {
        return ERR_NONE;
    }
    c->abandoned = true;
    return cancel_is_raised(cancel) ? ERR_CANCELLED : ERR_TIMEOUT;
}

static enum err_kind finish_http(struct call *c, const struct http_request *req,
                                 struct http_response *ret, struct err *err)
{
    bool reads = strcmp(req->method, "GET") == 0;
    /* A write that has left waits for its answer whatever the cancel says. */
    enum err_kind kind = await(c, req->deadline, reads ? req->cancel : NULL);
    if (kind == ERR_NONE) {
        *ret = c->response;
        c->response = (struct http_response)HTTP_RESPONSE_INIT;
        call_free(c);
        return ERR_NONE;
    }
    return err_set(err, reads ? kind : ERR_UNKNOWN_OUTCOME, "no reply");
}

static enum err_kind wire_perform(struct transport *t, const struct http_request *req,
                                  struct http_response *ret, struct err *err)
{
    struct wire *w = (struct wire *)t;
    if (cancel_is_raised(req->cancel)) {
        return err_set(err, ERR_CANCELLED, "cancelled");
    }
    struct call *c = call_http(w, req);
    dispatch(c);
    if (strcmp(req->method, "PATCH") == 0 && strikes(server.faults.twice)) {
        send_twice(w, req);
    }
    return finish_http(c, req, ret, err);
}

static void wire_perform_many(struct transport *t, struct http_call *calls, size_t n)
{
    struct call *all[OBJECTS_MAX];
    must(n <= OBJECTS_MAX);
    for (size_t i = 0; i < n; i++) {
        all[i] = call_http((struct wire *)t, calls[i].request);
        dispatch(all[i]);
    }
    for (size_t i = 0; i < n; i++) {
        calls[i].result =
            finish_http(all[i], calls[i].request, &calls[i].response, &calls[i].err);
    }
}

void wire_init(struct wire *w, struct machine *m)
{
    static const struct transport_ops ops = {.perform = wire_perform,
                                             .perform_many = wire_perform_many};
    *w = (struct wire){.base.ops = &ops, .machine = m};
}

enum err_kind wire_call(struct wire *w, struct mono deadline, void (*fn)(void *ctx), void *ctx)
{
    struct call *c = call_new(w, deadline);
    c->fn = fn;
    c->ctx = ctx;
    c->expires = true;
    dispatch(c);
    if (await(c, deadline, NULL) == ERR_NONE) {
        call_free(c);
        return ERR_NONE;
    }
    return ERR_UNKNOWN_OUTCOME;
}
