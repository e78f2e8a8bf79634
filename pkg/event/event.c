/* Events in the background. A series is what happened again: same object, reason, action and note
 * within 6 minutes. The first occurrence is a POST; later ones raise the series' count, which is
 * written at most once a minute as a PATCH. */
#include "event/event.h"

#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/strmap.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

#define QUEUE_MAX       1000
#define SERIES_MAX      4096 /* remembered at once; beyond it each occurrence is its own Event */
#define SERIES_MS       INT64_C(360000)
#define SERIES_WRITE_MS INT64_C(60000)
#define SEND_TIMEOUT_MS INT64_C(5000)
#define FAREWELL_MS     INT64_C(2000)
#define INSTANCE_MAX    128 /* the API's limit on reportingInstance */
#define NAME_PREFIX_MAX 200 /* so that the event's name stays below 253 */

/* A copy of struct event that lives in the queue. */
struct pending {
    char *ns, *name, *uid, *resource_version, *reason, *action, *note;
    bool warning;
    int64_t happened_ns;
    struct pending *next;
};

struct series {
    char *ns, *event_name;
    int64_t count;
    int64_t last_ns;
    struct mono first, written;
    bool dirty;
};

struct events {
    struct events_options options;
    char *instance;
    struct mtx lock;
    struct cond changed;
    struct pending *first, *last; /* guarded by lock, as are the next three */
    size_t queued;
    int64_t dropped;
    bool woken;
    struct strmap series; /* the sender's own, as is the next */
    struct mono farewell; /* no request goes on for longer; MONO_NEVER until cancelled */
};

static void free_pending(struct pending *p)
{
    char *texts[] = {p->ns, p->name, p->uid, p->resource_version, p->reason, p->action, p->note};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        free(texts[i]);
    }
    free(p);
}

static void free_series(void *value)
{
    struct series *s = value;
    free(s->ns);
    free(s->event_name);
    free(s);
}

struct events *events_new(const struct events_options *options)
{
    struct events *e = xcalloc(1, sizeof(*e));
    must(options->reporting_instance[0] != '\0'); /* the API refuses Events without one */
    e->options = *options;
    e->instance =
        text_clean(options->reporting_instance, strlen(options->reporting_instance), INSTANCE_MAX);
    mtx_init(&e->lock, "events");
    cond_init(&e->changed);
    e->series.free_value = free_series;
    e->farewell = MONO_NEVER;
    return e;
}

void events_free(struct events *e)
{
    if (e == NULL) {
        return;
    }
    while (e->first != NULL) {
        struct pending *p = e->first;
        e->first = p->next;
        free_pending(p);
    }
    strmap_release(&e->series);
    cond_release(&e->changed);
    mtx_release(&e->lock);
    free(e->instance);
    free(e);
}

int64_t events_dropped(struct events *e)
{
    MTX_GUARD(&e->lock);
    return e->dropped;
}

static char *text_or(const char *s, const char *fallback)
{
    return xstrdup(s != NULL && s[0] != '\0' ? s : fallback);
}

void event_emit(struct events *e, const struct event *ev)
{
    struct pending *p = xcalloc(1, sizeof(*p));
    p->ns = text_or(ev->ns, "default");
    p->name = text_or(ev->name, "unknown");
    p->uid = text_or(ev->uid, "");
    p->resource_version = text_or(ev->resource_version, "");
    p->reason = text_or(ev->reason, "Unknown");
    p->action = text_or(ev->action, "Sync");
    p->note = text_clean(ev->note, strlen(ev->note), LIMIT_MESSAGE_BYTES);
    p->warning = ev->warning;
    p->happened_ns = clock_wall(e->options.clock).ns;
    MTX_GUARD(&e->lock);
    if (e->queued == QUEUE_MAX) {
        struct pending *oldest = e->first;
        e->first = oldest->next;
        free_pending(oldest);
        e->queued--;
        e->dropped++;
    }
    if (e->first == NULL) {
        e->last = NULL;
    }
    if (e->last != NULL) {
        e->last->next = p;
    } else {
        e->first = p;
    }
    e->last = p;
    e->queued++;
    cond_broadcast(&e->changed);
}

static void count_dropped(struct events *e, const struct err *err)
{
    /* A namespace that is being terminated takes no Events: nobody will read them there. */
    if (strstr(err->msg, "being terminated") == NULL) {
        log_debug("event", "dropped", LOG_S("err", err->msg));
    }
    MTX_GUARD(&e->lock);
    e->dropped++;
}

/* True if it arrived; what did not is counted. */
static bool send(struct events *e, struct kube_request *req)
{
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    req->deadline =
        mono_min(mono_add_ms(clock_mono(e->options.clock), SEND_TIMEOUT_MS), e->farewell);
    enum err_kind kind = kube_do(e->options.kube, req, &reply, &err);
    kube_reply_release(&reply);
    if (kind) {
        count_dropped(e, &err);
    }
    return kind == ERR_NONE;
}

static bool post_first(struct events *e, const struct pending *p, const struct series *s)
{
    char now[RFC3339_LEN];
    rfc3339_format_micro(p->happened_ns, now);
    _cleanup_json_ json_t *body = json_pack(
        "{s:s,s:s,s:{s:s,s:s},s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:{s:s,s:s,s:s,s:s,s:s,s:s}}",
        "apiVersion", "events.k8s.io/v1", "kind", "Event", "metadata", "name", s->event_name,
        "namespace", p->ns, "eventTime", now, "reportingController", "belay", "reportingInstance",
        e->instance, "action", p->action, "reason", p->reason, "note", p->note, "type",
        p->warning ? "Warning" : "Normal", "regarding", "apiVersion", "helm.fluxcd.io/v1", "kind",
        "HelmRelease", "namespace", p->ns, "name", p->name, "uid", p->uid, "resourceVersion",
        p->resource_version);
    must(body != NULL);
    struct kube_request req = {.method = "POST", .gvr = &KUBE_EVENTS, .ns = p->ns, .body = body};
    return send(e, &req);
}

static void patch_series(struct events *e, struct series *s)
{
    char last[RFC3339_LEN];
    rfc3339_format_micro(s->last_ns, last);
    _cleanup_json_ json_t *body = json_pack("{s:{s:I,s:s}}", "series", "count",
                                            (json_int_t)s->count, "lastObservedTime", last);
    must(body != NULL);
    struct kube_request req = {.method = "PATCH",
                               .gvr = &KUBE_EVENTS,
                               .ns = s->ns,
                               .name = s->event_name,
                               .body = body,
                               .content_type = KUBE_MERGE_PATCH};
    (void)send(e, &req);
    s->written = clock_mono(e->options.clock);
    s->dirty = false;
}

/* "NAME.0123456789abcdef". A name that is cut must not end in what may stand only inside of one. */
static char *event_name(struct events *e, const char *of)
{
    uint64_t bits = 0;
    rng_fill(e->options.rng, &bits, sizeof(bits));
    size_t len = strnlen(of, NAME_PREFIX_MAX);
    while (len > 0 && (of[len - 1] == '.' || of[len - 1] == '-')) {
        len--;
    }
    return xasprintf("%.*s.%016llx", (int)len, of, (unsigned long long)bits);
}

static struct series *new_series(struct events *e, const struct pending *p)
{
    struct series *s = xcalloc(1, sizeof(*s));
    s->ns = xstrdup(p->ns);
    s->event_name = event_name(e, p->name);
    s->count = 1;
    s->first = clock_mono(e->options.clock);
    s->written = s->first;
    return s;
}

static void handle(struct events *e, const struct pending *p)
{
    _cleanup_(free_cstr)
    char *key = xasprintf("%s/%s/%s/%s/%s", p->ns, p->uid, p->reason, p->action, p->note);
    struct series *s = strmap_get(&e->series, key);
    struct mono now = clock_mono(e->options.clock);
    if (s != NULL && mono_diff_ms(now, s->first) < SERIES_MS) {
        s->count++;
        s->last_ns = p->happened_ns;
        s->dirty = true;
        return;
    }
    if (s != NULL && s->dirty) {
        patch_series(e, s);
    }
    s = new_series(e, p);
    /* What did not arrive cannot be counted up: the next occurrence is a first one again. */
    if (post_first(e, p, s) && e->series.count < SERIES_MAX) {
        strmap_put(&e->series, key, s);
    } else {
        (void)strmap_remove(&e->series, key);
        free_series(s);
    }
}

/* Write series that have waited long enough (or all, at the end) and forget old ones; returns when
 * to look again. */
static struct mono tend_series(struct events *e, bool all)
{
    struct mono next = MONO_NEVER;
    const char *key;
    void *value;
    for (size_t it = 0; strmap_next(&e->series, &it, &key, &value);) {
        struct series *s = value;
        struct mono now = clock_mono(e->options.clock);
        struct mono due = mono_add_ms(s->written, SERIES_WRITE_MS);
        if (!mono_before(now, e->farewell)) {
            break;
        }
        if (s->dirty && (all || !mono_before(now, due))) {
            patch_series(e, s);
        }
        struct mono end = mono_add_ms(s->first, SERIES_MS);
        if (s->dirty) {
            next = mono_min(next, due);
        } else if (mono_before(now, end)) {
            next = mono_min(next, end);
        } else {
            (void)strmap_remove(&e->series, key);
        }
    }
    return next;
}

static struct pending *take_first(struct events *e)
{
    MTX_GUARD(&e->lock);
    struct pending *p = e->first;
    if (p != NULL) {
        e->first = p->next;
        e->queued--;
    }
    return p;
}

static void wake(void *ctx)
{
    struct events *e = ctx;
    MTX_GUARD(&e->lock);
    e->woken = true;
    cond_broadcast(&e->changed);
}

static void wait_for_work(struct events *e, struct mono until)
{
    MTX_GUARD(&e->lock);
    while (e->first == NULL && !e->woken && mono_before(clock_mono(e->options.clock), until)) {
        clock_wait(e->options.clock, &e->changed, &e->lock, until);
    }
}

void events_run(struct events *e)
{
    struct cancel_waker w = {.wake = wake, .ctx = e};
    cancel_add(e->options.cancel, &w);
    for (;;) {
        bool ending = cancel_is_raised(e->options.cancel);
        struct mono now = clock_mono(e->options.clock);
        if (ending && e->farewell.ns == INT64_MAX) {
            e->farewell = mono_add_ms(now, FAREWELL_MS);
        }
        struct pending *p = mono_before(now, e->farewell) ? take_first(e) : NULL;
        if (p != NULL) {
            handle(e, p);
            free_pending(p);
            continue;
        }
        struct mono next = tend_series(e, ending);
        if (ending) {
            break;
        }
        wait_for_work(e, next);
    }
    cancel_remove(e->options.cancel, &w);
}
