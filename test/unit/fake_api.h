/* An API server in memory for tests of pkg/lock: HelmReleases with resourceVersion, generation and
 * a status subresource; GET, merge PATCH and JSON PATCH with tests, answered over a struct
 * transport. It can be told to refuse, to lose the reply, to delay and to hang. Its clock is the
 * test's, and time moves only when the test moves it, or when the test's own thread waits.
 *
 * It checks by itself what holds for every client: one request at a time per object, epochs that
 * only grow, and a stamp that only moves forward while one epoch holds the lock. */
#ifndef BELAY_TEST_UNIT_FAKE_API_H
#define BELAY_TEST_UNIT_FAKE_API_H

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "effect/clock.h"
#include "effect/proc.h"
#include "effect/transport.h"
#include "hr/hr.h"
#include "jsonx/jsonx.h"

#define FAKE_EPOCH_NS    (INT64_C(1796126400) * NS_PER_SEC) /* 2026-12-01T12:00:00Z, a Tuesday */
#define FAKE_START_NS    (1000 * NS_PER_SEC)
#define FAKE_OBJECTS_MAX 8
#define FAKE_RULES_MAX   16
#define FAKE_REAL_MS     10000 /* a wait for another thread that takes this long has failed */

/* ---- clock ---- */

enum fake_role { FAKE_MAIN, FAKE_HEARTBEAT, FAKE_WATCHDOG, FAKE_WORKER, FAKE_ROLES };
static _Thread_local enum fake_role fake_role; /* the test's own thread is FAKE_MAIN */

struct fake_clock {
    struct clock base;
    _Atomic(int64_t) now_ns;
    atomic_int waits[FAKE_ROLES]; /* how often that role has begun to wait */
};

static struct mono fake_clock_mono(struct clock *c)
{
    return (struct mono){atomic_load(&((struct fake_clock *)c)->now_ns)};
}

static struct wall fake_clock_wall(struct clock *c)
{
    (void)c;
    return (struct wall){FAKE_EPOCH_NS};
}

static void fake_clock_set(struct fake_clock *c, struct mono t)
{
    int64_t old = atomic_load(&c->now_ns);
    while (old < t.ns && !atomic_compare_exchange_weak(&c->now_ns, &old, t.ns)) {
    }
}

static void fake_clock_advance(struct fake_clock *c, int64_t ms)
{
    atomic_fetch_add(&c->now_ns, ms * NS_PER_MS);
}

/* The test's own thread makes time pass by waiting; all others look again each millisecond. */
static void fake_clock_wait(struct clock *base, struct cond *cond, struct mtx *m,
                            struct mono deadline)
{
    struct fake_clock *c = (struct fake_clock *)base;
    atomic_fetch_add(&c->waits[fake_role], 1);
    if (!mono_before(fake_clock_mono(base), deadline)) {
        return;
    }
    if (fake_role == FAKE_MAIN && deadline.ns != MONO_NEVER.ns) {
        fake_clock_set(c, deadline);
        return;
    }
    if (fake_role == FAKE_MAIN) {
        fake_clock_advance(c, 5);
    }
    cond_wait_ms(cond, m, 1);
}

static const struct clock_ops FAKE_CLOCK_OPS = {
    .mono = fake_clock_mono, .wall = fake_clock_wall, .wait = fake_clock_wait};

/* Let other threads run for a moment; for bounded polling only. */
static void fake_yield(void)
{
    (void)usleep(300);
}

/* ---- child processes ---- */

struct child {
    atomic_int sigint, sigkill; /* how often it got one */
    struct clock *clock;
    _Atomic(int64_t) sigint_ns, sigkill_ns; /* and when first */
};

static void fake_signal(struct child *c, int signo)
{
    bool kill = signo == 9;
    must(kill || signo == 2);
    if (atomic_fetch_add(kill ? &c->sigkill : &c->sigint, 1) == 0) {
        atomic_store(kill ? &c->sigkill_ns : &c->sigint_ns, clock_mono(c->clock).ns);
    }
}

static const struct proc_ops FAKE_PROC_OPS = {.signal = fake_signal};

/* ---- the server ---- */

enum fake_fault {
    FAKE_PASS,       /* nothing wrong: for delays */
    FAKE_409,        /* refused, nothing happens */
    FAKE_422,        /* the same */
    FAKE_429,        /* the same */
    FAKE_403,        /* the same */
    FAKE_500,        /* nothing happens, and nobody can know */
    FAKE_504,        /* the same */
    FAKE_504_DONE,   /* it happens, and nobody can know */
    FAKE_CUT,        /* no reply, nothing happens */
    FAKE_CUT_DONE,   /* no reply, it happens */
    FAKE_EMPTY_DONE, /* 200 without a body, it happens */
    FAKE_HANG,       /* no reply until the request's deadline, nothing happens */
    FAKE_STUCK,      /* no reply whatever the deadline says, until fake_api.unstick */
};

struct fake_api;
struct fake_rule {
    const char *method; /* "GET", "PATCH"; NULL = any */
    const char *name;   /* the object's; NULL = any */
    int skip;           /* let so many pass first */
    int times;          /* then be in effect so often; 0 = once */
    enum fake_fault fault;
    int64_t delay_ms; /* on the fake clock, after the server has carried it out */
    /* Another client's deed just before the request is looked at. The server's lock is held. */
    void (*before)(struct fake_api *api, json_t *object);
};

struct fake_api {
    struct transport base;
    struct fake_clock *clock;
    struct mtx lock;                        /* guards all below */
    json_t *objects[FAKE_OBJECTS_MAX];      /* NULL = free or deleted */
    bool in_flight[FAKE_OBJECTS_MAX];       /* a write */
    struct fake_rule rules[FAKE_RULES_MAX]; /* in order; used up ones have times < 0 */
    size_t rule_count;
    int64_t version;
    int64_t skew_ms; /* of the server's clock */
    int gets, patches, renewals;
    bool unstick;
    bool drops_lease, drops_stamp;                      /* an old CRD */
    char last_url[256], last_type[64], last_body[4096]; /* of the last PATCH */
    uint64_t seed;                                      /* not 0: faults by chance */
    int writes_by_chance_lost;
};

static void fake_api_init(struct fake_api *api, struct fake_clock *clock);

static void fake_api_rule(struct fake_api *api, struct fake_rule rule)
{
    MTX_GUARD(&api->lock);
    must(api->rule_count < FAKE_RULES_MAX);
    rule.times = rule.times == 0 ? 1 : rule.times;
    api->rules[api->rule_count++] = rule;
}

static int64_t fake_server_ns(const struct fake_api *api)
{
    return FAKE_EPOCH_NS + fake_clock_mono(&api->clock->base).ns - FAKE_START_NS +
           api->skew_ms * NS_PER_MS;
}

static void fake_put(json_t *object, const char *member, json_t *value)
{
    must(value != NULL && json_object_set_new(object, member, value) == 0);
}

static void fake_bump(struct fake_api *api, json_t *object)
{
    char text[32];
    (void)snprintf(text, sizeof(text), "%lld", (long long)++api->version);
    fake_put(json_object_get(object, "metadata"), "resourceVersion", json_string(text));
}

/* Add the object from its JSON text. */
static void fake_api_add(struct fake_api *api, const char *text)
{
    struct err err = ERR_INIT;
    json_t *object = NULL;
    must(jsonx_parse(text, strlen(text), &object, &err) == ERR_NONE);
    MTX_GUARD(&api->lock);
    for (size_t i = 0; i < FAKE_OBJECTS_MAX; i++) {
        if (api->objects[i] == NULL) {
            fake_bump(api, object);
            api->objects[i] = object;
            return;
        }
    }
    must(false);
}

static size_t fake_find(const struct fake_api *api, const char *name)
{
    size_t i = 0;
    while (i < FAKE_OBJECTS_MAX &&
           (api->objects[i] == NULL ||
            !text_eq(jsonx_str(api->objects[i], "metadata.name", ""), name))) {
        i++;
    }
    return i;
}

/* A copy of the object as it stands, or NULL. */
static json_t *fake_api_object(struct fake_api *api, const char *name)
{
    MTX_GUARD(&api->lock);
    size_t i = fake_find(api, name);
    return i < FAKE_OBJECTS_MAX ? json_deep_copy(api->objects[i]) : NULL;
}

/* Another client's edit. */
static void fake_api_edit(struct fake_api *api, const char *name,
                          void (*edit)(struct fake_api *api, json_t *object))
{
    MTX_GUARD(&api->lock);
    size_t i = fake_find(api, name);
    must(i < FAKE_OBJECTS_MAX);
    edit(api, api->objects[i]);
    fake_bump(api, api->objects[i]);
}

static void fake_api_delete(struct fake_api *api, const char *name)
{
    MTX_GUARD(&api->lock);
    size_t i = fake_find(api, name);
    must(i < FAKE_OBJECTS_MAX);
    json_decref(api->objects[i]);
    api->objects[i] = NULL;
}

/* ---- patches ---- */

static void fake_merge(json_t *target, const json_t *patch)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)patch, key, value)
    {
        if (json_is_null(value)) {
            (void)json_object_del(target, key);
        } else if (json_is_object(value) && json_is_object(json_object_get(target, key))) {
            fake_merge(json_object_get(target, key), value);
        } else {
            fake_put(target, key, json_deep_copy(value));
        }
    }
}

/* The container of path's last member, which goes to *ret_last; NULL if there is none. */
static json_t *fake_walk(json_t *object, const char *path, char *ret_last, size_t cap)
{
    json_t *at = object;
    must(path[0] == '/');
    path++;
    for (;;) {
        size_t len = strcspn(path, "/");
        must(len < cap);
        memcpy(ret_last, path, len);
        ret_last[len] = '\0';
        if (path[len] == '\0' || at == NULL) {
            return at;
        }
        int64_t i = 0;
        at = json_is_array(at)
                 ? (text_to_int64(ret_last, 0, 1000, &i) ? json_array_get(at, (size_t)i) : NULL)
                 : json_object_get(at, ret_last);
        path += len + 1;
    }
}

static bool fake_json_op(json_t *object, const json_t *op)
{
    char last[64] = "";
    const char *verb = jsonx_str(op, "op", "");
    json_t *value = json_object_get(op, "value");
    json_t *at = fake_walk(object, jsonx_str(op, "path", ""), last, sizeof(last));
    int64_t i = -1;
    bool array = json_is_array(at);
    if (at == NULL || (array && strcmp(last, "-") != 0 && !text_to_int64(last, 0, 1000, &i))) {
        return false;
    }
    json_t *there = array ? json_array_get(at, (size_t)i) : json_object_get(at, last);
    if (strcmp(verb, "test") == 0) {
        return there == NULL ? json_is_null(value) : jsonx_equal(there, value);
    }
    if (strcmp(verb, "remove") == 0) {
        return (array ? json_array_remove(at, (size_t)i) : json_object_del(at, last)) == 0;
    }
    must(strcmp(verb, "add") == 0);
    if (array) {
        must(i < 0); /* only "-" is used */
        return json_array_append(at, value) == 0;
    }
    return json_object_set(at, last, value) == 0;
}

static bool fake_json_patch(json_t *object, const json_t *ops)
{
    size_t i;
    const json_t *op;
    json_array_foreach((json_t *)ops, i, op)
    {
        if (!fake_json_op(object, op)) {
            return false;
        }
    }
    return true;
}

static const json_t *fake_released(const json_t *object)
{
    return hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", NULL);
}

/* What no client may ever do. */
static void fake_check_lock(const json_t *before, const json_t *after)
{
    int64_t old_epoch = jsonx_int(before, "status.lease.leaseTransitions", 0);
    int64_t epoch = jsonx_int(after, "status.lease.leaseTransitions", 0);
    must(epoch >= old_epoch);
    must(jsonx_int(after, "status.observedGeneration", -1) <=
         jsonx_int(after, "metadata.generation", 0));
    if (epoch == 0 || epoch != old_epoch) {
        return;
    }
    must(text_eq(jsonx_str(before, "status.lease.holderIdentity", ""),
                 jsonx_str(after, "status.lease.holderIdentity", "")));
    int64_t old_ns = 0, ns = 0;
    if (rfc3339_parse(jsonx_str(fake_released(before), "lastTransitionTime", ""), &old_ns) &&
        rfc3339_parse(jsonx_str(fake_released(after), "lastTransitionTime", ""), &ns)) {
        must(ns >= old_ns);
    }
    /* Once freed, an epoch never locks again. */
    must(text_eq(jsonx_str(fake_released(before), "status", ""), "Unknown") ||
         !text_eq(jsonx_str(fake_released(after), "status", ""), "Unknown"));
}

static void fake_prune(struct fake_api *api, json_t *object)
{
    if (api->drops_lease) {
        (void)json_object_del(json_object_get(object, "status"), "lease");
    }
    if (api->drops_stamp) {
        (void)json_object_del((json_t *)fake_released(object), "lastTransitionTime");
    }
}

/* The new object, or NULL with *ret_status: 409 or 422. */
static json_t *fake_patched(struct fake_api *api, const json_t *old, const char *type,
                            const json_t *patch, bool status_only, int *ret_status)
{
    json_t *work = json_deep_copy(old);
    *ret_status = 409;
    if (strcmp(type, "application/merge-patch+json") == 0) {
        const char *version = jsonx_str(patch, "metadata.resourceVersion", NULL);
        if (version != NULL && !text_eq(version, jsonx_str(old, "metadata.resourceVersion", ""))) {
            json_decref(work);
            return NULL;
        }
        fake_merge(work, patch);
    } else {
        must(strcmp(type, "application/json-patch+json") == 0);
        if (!fake_json_patch(work, patch)) {
            json_decref(work);
            *ret_status = 422;
            return NULL;
        }
    }
    /* The subresource takes the status alone; the object itself all but the status. */
    json_t *next = json_deep_copy(status_only ? old : work);
    const json_t *status = json_object_get(status_only ? work : old, "status");
    if (status != NULL) {
        fake_put(next, "status", json_deep_copy(status));
    }
    if (!status_only && json_array_size(jsonx_at(next, "metadata.finalizers")) == 0) {
        (void)json_object_del(json_object_get(next, "metadata"), "finalizers");
    }
    json_decref(work);
    fake_prune(api, next);
    return next;
}

/* Carry a PATCH out; the HTTP status. *ret: the new object (new reference). */
static int fake_do_patch(struct fake_api *api, size_t at, const struct http_request *req,
                         const char *type, bool status_only, json_t **ret)
{
    struct err err = ERR_INIT;
    _cleanup_json_ json_t *patch = NULL;
    must(jsonx_parse(req->body, req->body_len, &patch, &err) == ERR_NONE);
    int status = 0;
    json_t *next = fake_patched(api, api->objects[at], type, patch, status_only, &status);
    if (next == NULL) {
        return status;
    }
    if (!api->drops_lease && !api->drops_stamp) {
        fake_check_lock(api->objects[at], next);
    }
    if (!json_equal(next, api->objects[at])) {
        fake_bump(api, next);
    }
    api->renewals += json_is_array(patch) && status_only ? 1 : 0;
    json_decref(api->objects[at]);
    api->objects[at] = next;
    *ret = json_deep_copy(next);
    bool ends = jsonx_str(next, "metadata.deletionTimestamp", NULL) != NULL &&
                json_array_size(jsonx_at(next, "metadata.finalizers")) == 0;
    if (ends) {
        json_decref(next);
        api->objects[at] = NULL;
    }
    return 200;
}

/* ---- requests ---- */

static void fake_reply(struct fake_api *api, struct mono sent, int status, json_t *object,
                       struct http_response *ret)
{
    struct http_response r = {.status = status, .body = BUF_INIT(LIMIT_BODY_BYTES), .sent = sent};
    int64_t s = (fake_server_ns(api) - FAKE_EPOCH_NS) / NS_PER_SEC;
    must(s >= 0 && s < 12 * 3600);
    (void)snprintf(r.date, sizeof(r.date), "Tue, 01 Dec 2026 %02d:%02d:%02d GMT",
                   12 + (int)(s / 3600), (int)(s / 60 % 60), (int)(s % 60));
    r.received = fake_clock_mono(&api->clock->base);
    if (object != NULL) {
        jsonx_write(&r.body, object, false);
    } else if (status != 200) {
        buf_addf(&r.body, "{\"kind\":\"Status\",\"message\":\"the fake says %d\"}", status);
    }
    *ret = r;
}

static uint64_t fake_random(struct fake_api *api)
{
    api->seed ^= api->seed << 13;
    api->seed ^= api->seed >> 7;
    api->seed ^= api->seed << 17;
    return api->seed;
}

/* What becomes of this request. */
static struct fake_rule fake_rule_for(struct fake_api *api, const char *method, const char *name)
{
    for (size_t i = 0; i < api->rule_count; i++) {
        struct fake_rule *r = &api->rules[i];
        bool meant = r->times > 0 && (r->method == NULL || strcmp(r->method, method) == 0) &&
                     (r->name == NULL || strcmp(r->name, name) == 0);
        if (meant && r->skip > 0) {
            r->skip--;
        } else if (meant) {
            r->times--;
            return *r;
        }
    }
    if (api->seed != 0 && fake_random(api) % 8 == 0) {
        static const enum fake_fault some[] = {FAKE_409, FAKE_500,      FAKE_504_DONE,
                                               FAKE_CUT, FAKE_CUT_DONE, FAKE_429};
        return (struct fake_rule){.fault = some[fake_random(api) % 6]};
    }
    return (struct fake_rule){.fault = FAKE_PASS};
}

static enum err_kind fake_no_reply(const struct http_request *req, struct err *err)
{
    bool get = strcmp(req->method, "GET") == 0;
    return err_set(err, get ? ERR_TIMEOUT : ERR_UNKNOWN_OUTCOME, "no reply");
}

static void fake_hang(struct fake_api *api, const struct http_request *req, bool stuck)
{
    for (;;) {
        mtx_lock(&api->lock);
        bool go_on = api->unstick;
        mtx_unlock(&api->lock);
        struct mono now = fake_clock_mono(&api->clock->base);
        if (go_on || (!stuck && !mono_before(now, req->deadline))) {
            return;
        }
        if (fake_role == FAKE_MAIN) {
            must(!stuck);
            fake_clock_set(api->clock, req->deadline);
        }
        fake_yield();
    }
}

static int fake_status_of(enum fake_fault fault)
{
    switch (fault) {
    case FAKE_409:
        return 409;
    case FAKE_422:
        return 422;
    case FAKE_429:
        return 429;
    case FAKE_403:
        return 403;
    case FAKE_500:
        return 500;
    case FAKE_504:
    case FAKE_504_DONE:
        return 504;
    default:
        return 0;
    }
}

struct fake_target {
    char name[64];
    bool status_only;
};

static struct fake_target fake_target_of(const char *url)
{
    struct fake_target t = {.status_only = false};
    const char *at = strstr(url, "/helmreleases/");
    must(at != NULL && strstr(url, "/namespaces/ns/") != NULL);
    at += strlen("/helmreleases/");
    size_t len = strcspn(at, "/?");
    must(len > 0 && len < sizeof(t.name));
    memcpy(t.name, at, len);
    t.status_only = strncmp(at + len, "/status", 7) == 0;
    return t;
}

static void fake_note(struct fake_api *api, const struct http_request *req, const char *type)
{
    if (strcmp(req->method, "GET") == 0) {
        api->gets++;
        return;
    }
    api->patches++;
    must(req->body_len < sizeof(api->last_body));
    (void)snprintf(api->last_url, sizeof(api->last_url), "%s", req->url);
    (void)snprintf(api->last_type, sizeof(api->last_type), "%s", type);
    (void)snprintf(api->last_body, sizeof(api->last_body), "%s", req->body);
}

static const char *fake_type_of(const struct http_request *req)
{
    for (size_t i = 0; i < req->header_count; i++) {
        if (strcmp(req->headers[i].name, "Content-Type") == 0) {
            return req->headers[i].value;
        }
    }
    return "";
}

/* Carry it out, unless the fault says that nothing happens. The server's lock is held. */
static int fake_carry_out(struct fake_api *api, const struct http_request *req,
                          const struct fake_target *t, const struct fake_rule *rule, json_t **ret)
{
    size_t at = fake_find(api, t->name);
    if (rule->before != NULL && at < FAKE_OBJECTS_MAX) {
        rule->before(api, api->objects[at]);
        fake_bump(api, api->objects[at]);
    }
    bool done = rule->fault == FAKE_PASS || rule->fault == FAKE_504_DONE ||
                rule->fault == FAKE_CUT_DONE || rule->fault == FAKE_EMPTY_DONE;
    if (!done) {
        return fake_status_of(rule->fault);
    }
    if (at == FAKE_OBJECTS_MAX) {
        return 404;
    }
    if (strcmp(req->method, "GET") == 0) {
        *ret = json_deep_copy(api->objects[at]);
        return 200;
    }
    int status = fake_do_patch(api, at, req, fake_type_of(req), t->status_only, ret);
    api->writes_by_chance_lost += rule->fault != FAKE_PASS && status == 200 ? 1 : 0;
    return status;
}

static enum err_kind fake_perform(struct transport *t, const struct http_request *req,
                                  struct http_response *ret, struct err *err)
{
    struct fake_api *api = (struct fake_api *)t;
    struct fake_target target = fake_target_of(req->url);
    bool writes = strcmp(req->method, "PATCH") == 0;
    struct mono sent = fake_clock_mono(&api->clock->base);
    mtx_lock(&api->lock);
    fake_note(api, req, fake_type_of(req));
    struct fake_rule rule = fake_rule_for(api, req->method, target.name);
    size_t at = fake_find(api, target.name);
    if (writes && at < FAKE_OBJECTS_MAX) {
        must(!api->in_flight[at]); /* heartbeat and worker take turns */
        api->in_flight[at] = true;
    }
    mtx_unlock(&api->lock);
    if (rule.fault == FAKE_HANG || rule.fault == FAKE_STUCK) {
        fake_hang(api, req, rule.fault == FAKE_STUCK);
    }
    _cleanup_json_ json_t *object = NULL;
    mtx_lock(&api->lock);
    int status = fake_carry_out(api, req, &target, &rule, &object);
    fake_clock_advance(api->clock, rule.delay_ms);
    if (writes && at < FAKE_OBJECTS_MAX) {
        api->in_flight[at] = false;
    }
    bool silent = rule.fault == FAKE_CUT || rule.fault == FAKE_CUT_DONE ||
                  rule.fault == FAKE_HANG || rule.fault == FAKE_STUCK;
    if (!silent) {
        int told = fake_status_of(rule.fault);
        bool empty = rule.fault == FAKE_EMPTY_DONE;
        fake_reply(api, sent, told != 0 ? told : status, told != 0 || empty ? NULL : object, ret);
    }
    mtx_unlock(&api->lock);
    return silent ? fake_no_reply(req, err) : ERR_NONE;
}

struct fake_thread {
    pthread_t id;
    struct transport *transport;
    struct http_call *call;
    enum fake_role role;
};

static void *fake_call_main(void *arg)
{
    struct fake_thread *t = arg;
    fake_role = t->role;
    t->call->result =
        fake_perform(t->transport, t->call->request, &t->call->response, &t->call->err);
    return NULL;
}

static void fake_perform_many(struct transport *transport, struct http_call *calls, size_t n)
{
    must(n <= FAKE_OBJECTS_MAX);
    struct fake_thread threads[FAKE_OBJECTS_MAX];
    for (size_t i = 0; i < n; i++) {
        threads[i] =
            (struct fake_thread){.transport = transport, .call = &calls[i], .role = fake_role};
        must(pthread_create(&threads[i].id, NULL, fake_call_main, &threads[i]) == 0);
    }
    for (size_t i = 0; i < n; i++) {
        must(pthread_join(threads[i].id, NULL) == 0);
    }
}

static const struct transport_ops FAKE_TRANSPORT_OPS = {.perform = fake_perform,
                                                        .perform_many = fake_perform_many};

static void fake_api_init(struct fake_api *api, struct fake_clock *clock)
{
    *api = (struct fake_api){.base.ops = &FAKE_TRANSPORT_OPS, .clock = clock, .version = 100};
    mtx_init(&api->lock, "fake api");
}

static void fake_api_release(struct fake_api *api)
{
    for (size_t i = 0; i < FAKE_OBJECTS_MAX; i++) {
        json_decref(api->objects[i]);
    }
    mtx_release(&api->lock);
}

#endif
