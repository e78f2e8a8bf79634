/* One round: LIST until complete, then WATCH until it fails, resuming where it stopped.
 *
 *   list --ok--> watch --ended, silent, cut--> watch again from the last resourceVersion
 *    ^              |
 *    +--410, ERROR 410, an event beyond the limit
 *
 * Every failure backs off, and so does what looks healthy but would turn in a circle: a watch that
 * ends at once without a word, a 410 right after a LIST. */
#include "reflector/reflector.h"

#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/strmap.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "reflector/peek.h"
#include "watchframe/watchframe.h"

#define LIST_TIMEOUT_MS  INT64_C(60000)
#define SILENCE_MS       INT64_C(90000) /* bookmarks come about each minute */
#define WATCH_MIN_S      300 /* the server ends the watch after 5 to 10 min: replicas spread out */
#define WATCH_SPREAD_S   300
#define BACKOFF_FIRST_MS INT64_C(800)
#define BACKOFF_MAX_MS   INT64_C(30000)
#define HEALTHY_MS       INT64_C(120000) /* after this long the back-off starts anew */
#define SHORT_WATCH_MS   INT64_C(1000)   /* asking at once after less would be a storm */
#define QUERY_BYTES_MAX  (64U << 10)     /* selectors and a continue token */

struct reflector {
    struct reflector_options options;
    char *resource_version; /* last seen; NULL = list first */
    int64_t backoff_ms;     /* next */
    struct mono healthy_since;
    struct mono listed_at; /* the end of the last whole LIST */
    struct mtx lock;
    struct mono last_word; /* guarded by lock */
};

struct reflector *reflector_new(const struct reflector_options *options)
{
    struct reflector *r = xcalloc(1, sizeof(*r));
    r->options = *options;
    r->backoff_ms = BACKOFF_FIRST_MS;
    mtx_init(&r->lock, "reflector");
    r->last_word = clock_mono(options->clock);
    return r;
}

void reflector_free(struct reflector *r)
{
    if (r == NULL) {
        return;
    }
    free(r->resource_version);
    mtx_release(&r->lock);
    free(r);
}

static void heard(struct reflector *r)
{
    MTX_GUARD(&r->lock);
    r->last_word = clock_mono(r->options.clock);
}

int64_t reflector_silence_ms(struct reflector *r)
{
    MTX_GUARD(&r->lock);
    return mono_diff_ms(clock_mono(r->options.clock), r->last_word);
}

static void set_resource_version(struct reflector *r, const char *version)
{
    if (version == NULL || !text_eq(version, r->resource_version)) {
        free(r->resource_version);
        r->resource_version = version != NULL && version[0] != '\0' ? xstrdup(version) : NULL;
    }
}

/* ---- objects into snaps ---- */

/* Half of an object is bookkeeping of other writers. The lock needs the time of belay's own entry,
 * nothing else. */
static void strip(json_t *object)
{
    json_t *metadata = json_object_get(object, "metadata");
    json_t *fields = json_object_get(metadata, "managedFields");
    for (size_t i = json_array_size(fields); i > 0; i--) {
        json_t *entry = json_array_get(fields, i - 1);
        if (!text_eq(jsonx_str(entry, "manager", ""), "belay")) {
            (void)json_array_remove(fields, i - 1);
        } else {
            (void)json_object_del(entry, "fieldsV1");
        }
    }
    (void)json_object_del(json_object_get(metadata, "annotations"),
                          "kubectl.kubernetes.io/last-applied-configuration");
}

static char *key_of(const json_t *object)
{
    const char *ns = jsonx_str(object, "metadata.namespace", "");
    const char *name = jsonx_str(object, "metadata.name", NULL);
    if (name == NULL || name[0] == '\0') {
        return NULL;
    }
    return ns[0] != '\0' ? xasprintf("%s/%s", ns, name) : xstrdup(name);
}

/* A snap of object (a reference is taken), or NULL if it has no name. */
static struct snap *snap_of(struct reflector *r, json_t *object, bool live)
{
    char *key = key_of(object);
    if (key == NULL) {
        log_warn("reflector", "an object has no name, it is left out",
                 LOG_S("of", r->options.name));
        return NULL;
    }
    strip(object);
    struct snap *s = xcalloc(1, sizeof(*s));
    atomic_init(&s->refs, 1);
    s->key = key;
    s->uid = xstrdup(jsonx_str(object, "metadata.uid", ""));
    s->resource_version = xstrdup(jsonx_str(object, "metadata.resourceVersion", ""));
    s->object = json_incref(object);
    s->seen = clock_mono(r->options.clock);
    s->live = live;
    return s;
}

/* A snap of an object whose text cannot be parsed, or NULL if not even its name can be read. Where
 * an event's object stands inside the text is said by in_event. */
static struct snap *bad_snap(struct reflector *r, const char *text, size_t len,
                             const struct err *why, bool in_event)
{
    static const char *const paths[][3] = {{"object", "metadata", "namespace"},
                                           {"object", "metadata", "name"},
                                           {"object", "metadata", "uid"},
                                           {"object", "metadata", "resourceVersion"}};
    char *found[4];
    size_t skip = in_event ? 0 : 1;
    for (size_t i = 0; i < 4; i++) {
        found[i] = peek_str(text, len, paths[i] + skip, 3 - skip);
        found[i] = found[i] != NULL ? found[i] : xstrdup("");
    }
    log_warn("reflector", "an object cannot be read, it is left out", LOG_S("of", r->options.name),
             LOG_S("ns", found[0]), LOG_S("name", found[1]), LOG_S("err", why->msg));
    struct snap *s = NULL;
    if (found[1][0] != '\0') {
        s = xcalloc(1, sizeof(*s));
        atomic_init(&s->refs, 1);
        s->key = found[0][0] != '\0' ? xasprintf("%s/%s", found[0], found[1]) : xstrdup(found[1]);
        s->uid = take_ptr(&found[2]);
        s->resource_version = take_ptr(&found[3]);
        s->seen = clock_mono(r->options.clock);
        s->live = in_event;
        s->bad = *why;
    }
    for (size_t i = 0; i < 4; i++) {
        free(found[i]);
    }
    return s;
}

/* ---- changes ---- */

static void tell(struct reflector *r, enum reflector_event event, struct snap *before,
                 struct snap *after)
{
    if (r->options.on_event != NULL) {
        r->options.on_event(r->options.ctx, event, before, after);
    }
}

/* Put s (its reference is taken over) and tell what changed. */
static void upsert(struct reflector *r, struct snap *s)
{
    struct snap *known = cache_get(r->options.cache, s->key);
    if (known != NULL && strcmp(known->resource_version, s->resource_version) == 0 &&
        strcmp(known->uid, s->uid) == 0) {
        /* The same version again (a relist): first sight stays what it was. */
        snap_unref(known);
        snap_unref(s);
        return;
    }
    snap_unref(known);
    snap_ref(s);
    struct snap *before = cache_put(r->options.cache, s);
    bool replaced = before != NULL && strcmp(before->uid, s->uid) != 0;
    if (replaced) {
        tell(r, REFLECTOR_DELETED, before, NULL);
    }
    if (before == NULL || replaced) {
        tell(r, REFLECTOR_ADDED, NULL, s);
    } else {
        tell(r, REFLECTOR_MODIFIED, before, s);
    }
    snap_unref(before);
    snap_unref(s);
}

static void drop(struct reflector *r, const char *key)
{
    struct snap *before = cache_remove(r->options.cache, key);
    if (before != NULL) {
        tell(r, REFLECTOR_DELETED, before, NULL);
        snap_unref(before);
    }
}

/* ---- LIST ---- */

struct listing {
    struct reflector *r;
    struct strmap seen; /* keys */
    bool nameless; /* an item could not even be told by name: what is missing may be that one */
};

static bool list_item(void *ctx, const char *item, size_t len)
{
    struct listing *l = ctx;
    struct err why = ERR_INIT;
    json_t *object = NULL;
    struct snap *s = jsonx_parse(item, len, &object, &why) ? bad_snap(l->r, item, len, &why, false)
                                                           : snap_of(l->r, object, false);
    json_decref(object);
    if (s == NULL) {
        l->nameless = true;
        return true;
    }
    strmap_put(&l->seen, s->key, NULL);
    upsert(l->r, s);
    return true;
}

static void add_query(struct buf *q, const char *name, const char *value)
{
    if (value != NULL && value[0] != '\0') {
        buf_addf(q, "%s%s=", q->len > 0 ? "&" : "", name);
        buf_add_uri(q, value);
    }
}

/* A query with a part missing would ask for something else, so it is not sent. */
static enum err_kind query_too_long(struct err *err)
{
    return err_set(err, ERR_LIMIT, "the query is longer than %u bytes", QUERY_BYTES_MAX);
}

/* One page. *cont is the continue token of the next one, "" at the end; owner: the caller. */
static enum err_kind list_page(struct listing *l, bool paged, char **cont, char **version,
                               struct err *err)
{
    struct reflector *r = l->r;
    struct buf query = BUF_INIT(QUERY_BYTES_MAX);
    add_query(&query, "labelSelector", r->options.label_selector);
    add_query(&query, "fieldSelector", r->options.field_selector);
    add_query(&query, "continue", *cont);
    if (paged) {
        buf_addf(&query, "%slimit=%d", query.len > 0 ? "&" : "", LIMIT_LIST_PAGE);
    }
    struct kube_request req = {
        .method = "GET",
        .gvr = r->options.gvr,
        .ns = r->options.ns,
        .query = buf_str(&query),
        .accept = r->options.metadata_only ? KUBE_ACCEPT_METADATA_LIST : NULL,
        .deadline = mono_add_ms(clock_mono(r->options.clock), LIST_TIMEOUT_MS),
        .cancel = r->options.cancel,
        .raw_body = true};
    struct kube_reply reply = KUBE_REPLY_INIT;
    enum err_kind kind =
        query.overflow ? query_too_long(err) : kube_do(r->options.kube, &req, &reply, err);
    buf_release(&query);
    if (kind) {
        return kind;
    }
    _cleanup_json_ json_t *rest = NULL;
    kind = jsonx_split_items(reply.text, reply.text_len, list_item, l, &rest, err);
    kube_reply_release(&reply);
    if (kind) {
        return kind;
    }
    heard(r);
    if (jsonx_str(rest, "metadata.resourceVersion", "")[0] == '\0') {
        return err_set(err, ERR_INVALID,
                       "the list has no resourceVersion, so nothing can be watched");
    }
    free(*cont);
    free(*version);
    *cont = xstrdup(jsonx_str(rest, "metadata.continue", ""));
    *version = xstrdup(jsonx_str(rest, "metadata.resourceVersion", ""));
    return ERR_NONE;
}

static enum err_kind list_pages(struct listing *l, char **version, struct err *err)
{
    _cleanup_(free_cstr)
    char *cont = xstrdup("");
    bool paged = true;
    do {
        struct err why = ERR_INIT;
        enum err_kind kind = list_page(l, paged, &cont, version, &why);
        if (kind == ERR_GONE && cont[0] != '\0') {
            /* The continue token has expired: what was read is no one state of the world. Once
             * more, in one piece. */
            paged = false;
            free(cont);
            cont = xstrdup("");
            strmap_release(&l->seen);
            kind = list_page(l, paged, &cont, version, &why);
        }
        if (kind) {
            *err = why;
            return kind;
        }
    } while (cont[0] != '\0');
    return ERR_NONE;
}

/* Make the cache what the API server has. */
static enum err_kind list_all(struct reflector *r, struct err *err)
{
    struct listing l = {.r = r};
    _cleanup_(free_cstr)
    char *version = NULL;
    enum err_kind kind = list_pages(&l, &version, err);
    if (kind == ERR_NONE) {
        struct snap **known = NULL;
        size_t n = cache_all(r->options.cache, &known);
        for (size_t i = 0; i < n; i++) {
            if (!l.nameless && !strmap_has(&l.seen, known[i]->key)) {
                drop(r, known[i]->key);
            }
            snap_unref(known[i]);
        }
        free(known);
        set_resource_version(r, version);
        r->listed_at = clock_mono(r->options.clock);
        cache_set_synced(r->options.cache);
    }
    strmap_release(&l.seen);
    return kind;
}

/* ---- WATCH ---- */

struct watching {
    struct reflector *r;
    struct watchframe frames;
    bool heard;     /* a byte at least */
    struct err err; /* what an event or a frame said; kind NONE = nothing */
};

static void on_error_event(struct watching *w, const json_t *status)
{
    int64_t code = jsonx_int(status, "code", 0);
    err_set(&w->err, code == 410 ? ERR_GONE : ERR_UNAVAILABLE, "watch: %s",
            jsonx_str(status, "message", "an ERROR event"));
    w->err.code = (int)code;
}

/* An event that does not parse: the object is noted as bad; where the watch stands is known from
 * the next event. */
static void on_bad_line(struct watching *w, const char *line, size_t len, const struct err *why)
{
    static const char *const path[] = {"type"};
    _cleanup_(free_cstr)
    char *type = peek_str(line, len, path, 1);
    struct snap *s = bad_snap(w->r, line, len, why, true);
    if (s != NULL && text_eq(type, "DELETED")) {
        drop(w->r, s->key);
        snap_unref(s);
    } else if (s != NULL) {
        upsert(w->r, s);
    }
}

static bool on_line(void *ctx, const char *line, size_t len)
{
    struct watching *w = ctx;
    struct reflector *r = w->r;
    struct err why = ERR_INIT;
    _cleanup_json_ json_t *event = NULL;
    if (jsonx_parse(line, len, &event, &why)) {
        on_bad_line(w, line, len, &why);
        return true;
    }
    const char *type = jsonx_str(event, "type", "");
    json_t *object = json_object_get(event, "object");
    if (strcmp(type, "ERROR") == 0) {
        on_error_event(w, object);
        return false;
    }
    if (r->options.metadata_only &&
        strcmp(jsonx_str(object, "kind", ""), "PartialObjectMetadata") != 0) {
        err_set(&w->err, ERR_INVALID,
                "watch: the server sends whole objects where metadata was asked for");
        return false;
    }
    if (strcmp(type, "BOOKMARK") != 0) {
        struct snap *s = snap_of(r, object, true);
        if (s != NULL && strcmp(type, "DELETED") == 0) {
            drop(r, s->key);
            snap_unref(s);
        } else if (s != NULL) {
            upsert(r, s);
        }
    }
    set_resource_version(r, jsonx_str(object, "metadata.resourceVersion", r->resource_version));
    return true;
}

static bool on_bytes(void *ctx, const char *bytes, size_t len)
{
    struct watching *w = ctx;
    w->heard = true;
    heard(w->r);
    struct err err = ERR_INIT;
    if (watchframe_feed(&w->frames, bytes, len, on_line, w, &err)) {
        if (w->err.kind == ERR_NONE) {
            w->err = err;
        }
        return false;
    }
    return true;
}

/* Until it ends. ERR_NONE: the server ended it as planned. */
static enum err_kind watch(struct reflector *r, struct err *err)
{
    struct watching w = {.r = r};
    watchframe_init(&w.frames);
    struct buf query = BUF_INIT(QUERY_BYTES_MAX);
    add_query(&query, "labelSelector", r->options.label_selector);
    add_query(&query, "fieldSelector", r->options.field_selector);
    add_query(&query, "resourceVersion", r->resource_version);
    buf_addf(&query, "%swatch=true&allowWatchBookmarks=true&timeoutSeconds=%d",
             query.len > 0 ? "&" : "",
             WATCH_MIN_S + (int)rng_below(r->options.rng, WATCH_SPREAD_S));
    struct kube_request req = {.method = "GET",
                               .gvr = r->options.gvr,
                               .ns = r->options.ns,
                               .query = buf_str(&query),
                               .accept = r->options.metadata_only ? KUBE_ACCEPT_METADATA : NULL,
                               .deadline = MONO_NEVER,
                               .idle_ms = SILENCE_MS,
                               .cancel = r->options.cancel,
                               .on_data = on_bytes,
                               .ctx = &w};
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct mono began = clock_mono(r->options.clock);
    enum err_kind kind =
        query.overflow ? query_too_long(err) : kube_do(r->options.kube, &req, &reply, err);
    kube_reply_release(&reply);
    buf_release(&query);
    watchframe_release(&w.frames);
    if (w.err.kind != ERR_NONE) {
        *err = w.err;
        return err->kind;
    }
    if (kind == ERR_NONE && !w.heard &&
        mono_diff_ms(clock_mono(r->options.clock), began) < SHORT_WATCH_MS) {
        return err_set(err, ERR_UNAVAILABLE, "the watch ended at once, without a word");
    }
    return kind;
}

/* ---- the loop ---- */

static void back_off(struct reflector *r, const struct err *err)
{
    struct mono now = clock_mono(r->options.clock);
    if (mono_diff_ms(now, r->healthy_since) > HEALTHY_MS) {
        r->backoff_ms = BACKOFF_FIRST_MS;
    }
    int64_t ms = rng_jitter_ms(r->options.rng, r->backoff_ms, 30);
    if (err->retry_after_ms > ms) {
        ms = err->retry_after_ms;
    }
    log_warn("reflector", "list or watch failed, trying again", LOG_S("of", r->options.name),
             LOG_S("kind", err_kind_name(err->kind)), LOG_S("err", err->msg), LOG_I("in_ms", ms));
    r->backoff_ms = r->backoff_ms * 2 < BACKOFF_MAX_MS ? r->backoff_ms * 2 : BACKOFF_MAX_MS;
    (void)clock_sleep_until(r->options.clock, mono_add_ms(now, ms), r->options.cancel);
    r->healthy_since = clock_mono(r->options.clock);
}

void reflector_run(struct reflector *r)
{
    r->healthy_since = clock_mono(r->options.clock);
    while (!cancel_is_raised(r->options.cancel)) {
        struct err err = ERR_INIT;
        bool listed = r->resource_version != NULL;
        enum err_kind kind = listed ? watch(r, &err) : list_all(r, &err);
        if (kind == ERR_NONE) {
            continue;
        }
        if (cancel_is_raised(r->options.cancel)) {
            return;
        }
        if (kind == ERR_GONE && listed) {
            set_resource_version(r, NULL);
            log_info("reflector", "the watch's position is gone, listing afresh",
                     LOG_S("of", r->options.name));
            if (mono_diff_ms(clock_mono(r->options.clock), r->listed_at) >= SHORT_WATCH_MS) {
                continue;
            }
        }
        if (kind == ERR_LIMIT && listed) {
            /* The event would come again and again; a LIST holds more. */
            set_resource_version(r, NULL);
        }
        if (kind == ERR_TIMEOUT && listed) {
            log_info("reflector", "the watch fell silent, watching anew",
                     LOG_S("of", r->options.name));
            continue;
        }
        back_off(r, &err);
    }
}
