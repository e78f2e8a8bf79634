/* What one request does, by its entry:
 *
 *   entry                    asked of the API server       its answer     the client gets
 *   hash in the URL = ETag   nothing                                      the entry
 *   with ETag                GET with If-None-Match        304            the entry
 *                                                          200            it; replaces the entry
 *   none                     GET                           200 with ETag  it; becomes an entry
 *                                                          200 without    it
 *   any                                                    else           that; the entry stays
 *
 * OpenAPI documents are asked for by one thread at a time for each key, since the big ones cost:
 * who waited looks again from the top. */
#include "apicache/apicache.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "apicache/trim.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/strmap.h"
#include "base/text.h"
#include "kube/kube_forward.h"

/* All entries together, and how many. A cluster's whole discovery and all its trimmed documents
 * have well under 1 MiB. */
#define APICACHE_BYTES_MAX   (8U << 20)
#define APICACHE_ENTRIES_MAX 256
/* One answer as it comes (the OpenAPI of core/v1: 1.6 MB); an OpenAPI document only until it is
 * trimmed. */
#define DOCUMENT_BYTES_MAX (32U << 20)
/* An OpenAPI document that cannot be trimmed and goes to the client as it is. */
#define UNTRIMMED_BYTES_MAX (4U << 20)

struct apicache_body {
    atomic_size_t refs;
    size_t len;
    char *bytes;
};

/* An answer with an ETag; immutable but for used. */
struct entry {
    char content_type[128];
    char etag[256];
    char cache_control[64];
    struct apicache_body *body;
    bool by_hash;  /* the URL names this very ETag: nothing to confirm */
    size_t size;   /* counted in bytes of the cache */
    uint64_t used; /* tick of the last use */
};

struct apicache {
    struct kube *kube;
    struct clock *clock;
    struct mtx lock;
    struct cond changed;   /* a key is busy no more, or a waiter is told to stop */
    struct strmap entries; /* guarded by lock, and all below */
    struct strmap busy;    /* keys of documents that a thread asks for now */
    size_t bytes;
    uint64_t tick;
};

/* One request to the cache. */
struct ask {
    struct apicache *cache;
    const struct apicache_request *req;
    const char *target;
    char *key;
    const char *hash; /* in target; NULL if it names none */
    size_t hash_len;
    bool document; /* an OpenAPI document: trimmed, one fetch at a time */
};

/* ---- bodies ---- */

/* Takes bytes over. */
static struct apicache_body *body_new(char *bytes, size_t len)
{
    struct apicache_body *b = xcalloc(1, sizeof(*b));
    atomic_init(&b->refs, 1);
    b->bytes = xrealloc(bytes, len + 1);
    b->len = len;
    return b;
}

static struct apicache_body *body_ref(struct apicache_body *b)
{
    size_t before = atomic_fetch_add(&b->refs, 1);
    must(before > 0);
    return b;
}

static void body_unref(struct apicache_body *b)
{
    if (b != NULL && atomic_fetch_sub(&b->refs, 1) == 1) {
        free(b->bytes);
        free(b);
    }
}

void apicache_reply_release(struct apicache_reply *r)
{
    body_unref(r->body);
    *r = (struct apicache_reply){0};
}

/* ---- targets ---- */

/* "/segment/segment" of letters, digits, '.', '-' and '_', each beginning with no dot: no segment
 * means something else than it says. Counts them; 0 if it is none of these. */
static size_t count_segments(const char *path, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = path[i];
        bool letter = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool starts = i == 0 || path[i - 1] == '/';
        if (c == '/' ? i + 1 == len || (i > 0 && starts)
                     : !letter && (starts || strchr(".-_", c) == NULL)) {
            return 0;
        }
        n += c == '/';
    }
    return path[0] == '/' ? n : 0;
}

bool apicache_serves(const char *target)
{
    size_t len = strcspn(target, "?");
    size_t segments = count_segments(target, len);
    if (text_has_prefix(target, "/openapi/v3")) {
        return segments >= 2 && (len == strlen("/openapi/v3") || target[11] == '/');
    }
    if (text_has_prefix(target, "/apis/")) {
        return segments == 2 || segments == 3;
    }
    if (text_has_prefix(target, "/api/")) {
        return segments == 2;
    }
    return (len == 4 && memcmp(target, "/api", len) == 0) ||
           (len == 5 && memcmp(target, "/apis", len) == 0) ||
           (len == 8 && memcmp(target, "/version", len) == 0);
}

/* The value of the first hash= in the query; NULL if there is none or an empty one. */
static const char *hash_of(const char *target, size_t *ret_len)
{
    const char *at = strchr(target, '?');
    while (at != NULL) {
        at++;
        if (text_has_prefix(at, "hash=")) {
            at += strlen("hash=");
            *ret_len = strcspn(at, "&");
            return *ret_len > 0 ? at : NULL;
        }
        at = strchr(at, '&');
    }
    return NULL;
}

/* A target without its hash, which stands in it. */
static char *without_hash(const char *target)
{
    size_t len = 0;
    const char *hash = hash_of(target, &len);
    must(hash != NULL);
    const char *rest = hash + len;
    size_t before = (size_t)(hash - target) - strlen("hash=");
    if (*rest == '&') {
        rest++;
    } else {
        before--; /* the '?' or '&' that led to it */
    }
    return xasprintf("%.*s%s", (int)before, target, rest);
}

/* ---- entries ---- */

static void entry_free(void *value)
{
    struct entry *e = value;
    body_unref(e->body);
    free(e);
}

struct apicache *apicache_new(struct kube *kube, struct clock *clock)
{
    must(kube != NULL && clock != NULL);
    struct apicache *c = xcalloc(1, sizeof(*c));
    c->kube = kube;
    c->clock = clock;
    c->entries.free_value = entry_free;
    mtx_init(&c->lock, "apicache");
    cond_init(&c->changed);
    return c;
}

void apicache_free(struct apicache *c)
{
    if (c == NULL) {
        return;
    }
    must(c->busy.count == 0);
    strmap_release(&c->entries);
    strmap_release(&c->busy);
    cond_release(&c->changed);
    mtx_release(&c->lock);
    free(c);
}

static void remove_locked(struct apicache *c, const char *key)
{
    const struct entry *e = strmap_get(&c->entries, key);
    if (e != NULL) {
        must(c->bytes >= e->size);
        c->bytes -= e->size;
        (void)strmap_remove(&c->entries, key);
    }
}

static void remove_oldest_locked(struct apicache *c)
{
    const char *key, *oldest_key = NULL;
    const struct entry *oldest = NULL;
    void *value;
    for (size_t it = 0; strmap_next(&c->entries, &it, &key, &value);) {
        const struct entry *e = value;
        if (oldest == NULL || e->used < oldest->used) {
            oldest = e;
            oldest_key = key;
        }
    }
    must(oldest_key != NULL);
    _cleanup_(free_cstr)
    char *copy = xstrdup(oldest_key);
    remove_locked(c, copy);
}

/* Keep what r answers. */
static void store(const struct ask *a, const struct apicache_reply *r)
{
    struct apicache *c = a->cache;
    size_t size = sizeof(struct entry) + r->len + strlen(a->key);
    MTX_GUARD(&c->lock);
    remove_locked(c, a->key);
    if (size > APICACHE_BYTES_MAX) {
        return;
    }
    while (c->bytes + size > APICACHE_BYTES_MAX || c->entries.count >= APICACHE_ENTRIES_MAX) {
        remove_oldest_locked(c);
    }
    struct entry *e = xcalloc(1, sizeof(*e));
    memcpy(e->content_type, r->content_type, sizeof(e->content_type));
    memcpy(e->etag, r->etag, sizeof(e->etag));
    memcpy(e->cache_control, r->cache_control, sizeof(e->cache_control));
    e->body = body_ref(r->body);
    size_t etag_len = strlen(r->etag);
    e->by_hash = a->hash != NULL && etag_len == a->hash_len + 2 && r->etag[0] == '"' &&
                 memcmp(r->etag + 1, a->hash, a->hash_len) == 0;
    e->size = size;
    e->used = ++c->tick;
    c->bytes += size;
    strmap_put(&c->entries, a->key, e);
}

/* The entry of this key as a reply of its own; false if there is none. */
static bool look_up_locked(const struct ask *a, struct apicache_reply *ret, bool *ret_by_hash)
{
    struct apicache *c = a->cache;
    mtx_must_hold(&c->lock);
    struct entry *e = strmap_get(&c->entries, a->key);
    if (e == NULL) {
        return false;
    }
    e->used = ++c->tick;
    *ret = (struct apicache_reply){
        .status = 200, .bytes = e->body->bytes, .len = e->body->len, .body = body_ref(e->body)};
    memcpy(ret->content_type, e->content_type, sizeof(ret->content_type));
    memcpy(ret->etag, e->etag, sizeof(ret->etag));
    memcpy(ret->cache_control, e->cache_control, sizeof(ret->cache_control));
    *ret_by_hash = e->by_hash;
    return true;
}

/* ---- asking the API server ---- */

static void on_header(void *ctx, const char *name, const char *value)
{
    struct apicache_reply *r = ctx;
    if (strcasecmp(name, "Cache-Control") == 0) {
        (void)snprintf(r->cache_control, sizeof(r->cache_control), "%s", value);
    }
}

static bool is_json(const char *content_type)
{
    size_t len = strcspn(content_type, "; ");
    return len == strlen("application/json") &&
           strncasecmp(content_type, "application/json", len) == 0;
}

/* The body of a 200 becomes that of *r; *ret_keep: it is worth keeping. */
static enum err_kind take_document(struct http_response *http, struct apicache_reply *r,
                                   bool *ret_keep, struct err *err)
{
    char *trimmed = NULL;
    size_t len = 0;
    struct err ignored = ERR_INIT;
    if (is_json(http->content_type) &&
        trim_openapi(buf_str(&http->body), http->body.len, &trimmed, &len, &ignored) == ERR_NONE) {
        r->body = body_new(trimmed, len);
        *ret_keep = true;
        /* A big document comes and goes: give its memory back. */
        buf_release(&http->body);
        (void)malloc_trim(0);
        return ERR_NONE;
    }
    if (http->body.len > UNTRIMMED_BYTES_MAX) {
        return err_set(err, ERR_LIMIT,
                       "%zu bytes that are no OpenAPI document in JSON; at most %u would pass",
                       http->body.len, UNTRIMMED_BYTES_MAX);
    }
    *ret_keep = false;
    len = http->body.len;
    r->body = body_new(buf_take(&http->body), len);
    return ERR_NONE;
}

/* Any complete answer but the 304 that was asked for. */
static enum err_kind take_answer(const struct ask *a, struct http_response *http,
                                 struct apicache_reply *r, struct err *err)
{
    r->status = http->status;
    r->fetched = true;
    (void)snprintf(r->content_type, sizeof(r->content_type), "%s", http->content_type);
    (void)snprintf(r->etag, sizeof(r->etag), "%s", http->etag);
    bool keep = r->etag[0] != '\0';
    if (a->document && r->status == 200) {
        bool trimmed = false;
        if (take_document(http, r, &trimmed, err)) {
            return err_wrap(err, "GET %.200s", a->target);
        }
        keep = keep && trimmed;
    } else {
        size_t len = http->body.len;
        r->body = body_new(buf_take(&http->body), len);
    }
    r->bytes = r->body->bytes;
    r->len = r->body->len;
    if (keep && r->status == 200) {
        store(a, r);
    }
    return ERR_NONE;
}

/* Ask, with what *r holds as the thing to confirm; *r becomes the answer. */
static enum err_kind fetch(const struct ask *a, struct apicache_reply *r, struct err *err)
{
    struct http_header headers[2];
    size_t n = 0;
    if (a->req->accept[0] != '\0') {
        headers[n++] = (struct http_header){"Accept", a->req->accept};
    }
    if (r->body != NULL) {
        headers[n++] = (struct http_header){"If-None-Match", r->etag};
    }
    struct apicache_reply fresh = {0};
    struct kube_forward f = {.method = "GET",
                             .target = a->target,
                             .headers = headers,
                             .header_count = n,
                             .body_max = DOCUMENT_BYTES_MAX,
                             .deadline = a->req->deadline,
                             .cancel = a->req->cancel,
                             .on_header = on_header,
                             .ctx = &fresh};
    struct http_response http = HTTP_RESPONSE_INIT;
    struct kube_forward_date date = {0};
    if (kube_forward(a->cache->kube, &f, &http, &date, err)) {
        return err->kind;
    }
    enum err_kind kind = ERR_NONE;
    if (http.status == 304 && r->body != NULL) {
        r->requests++;
    } else if (http.status == 304) {
        kind = err_set(err, ERR_UNAVAILABLE, "GET %.200s: 304 to a request without a condition",
                       a->target);
    } else {
        kind = take_answer(a, &http, &fresh, err);
        if (kind == ERR_NONE) {
            fresh.requests = r->requests + 1;
            apicache_reply_release(r);
            *r = fresh;
        }
    }
    http_response_release(&http);
    return kind;
}

/* ---- one fetch of a document at a time ---- */

static void wake(void *ctx)
{
    struct apicache *c = ctx;
    MTX_GUARD(&c->lock);
    cond_broadcast(&c->changed);
}

/* Until the key is ours to ask for, or needs no asking: *ret_done, *r is the answer then. */
static enum err_kind claim_locked(const struct ask *a, struct apicache_reply *r, bool *ret_done,
                                  struct err *err)
{
    struct apicache *c = a->cache;
    mtx_must_hold(&c->lock);
    for (;;) {
        bool by_hash = false;
        if (look_up_locked(a, r, &by_hash) && by_hash) {
            *ret_done = true;
            return ERR_NONE;
        }
        if (!strmap_has(&c->busy, a->key)) {
            strmap_put(&c->busy, a->key, NULL);
            *ret_done = false;
            return ERR_NONE;
        }
        apicache_reply_release(r); /* by now another may be there */
        if (cancel_is_raised(a->req->cancel)) {
            return err_set(err, ERR_CANCELLED, "told to stop while waiting for %.200s", a->target);
        }
        if (!mono_before(clock_mono(c->clock), a->req->deadline)) {
            return err_set(err, ERR_TIMEOUT,
                           "no time left for %.200s, which another thread has asked for",
                           a->target);
        }
        clock_wait(c->clock, &c->changed, &c->lock, a->req->deadline);
    }
}

static enum err_kind get_document(const struct ask *a, struct apicache_reply *r, struct err *err)
{
    struct apicache *c = a->cache;
    struct cancel_waker waker = {.wake = wake, .ctx = c};
    bool done = false;
    cancel_add(a->req->cancel, &waker);
    mtx_lock(&c->lock);
    enum err_kind kind = claim_locked(a, r, &done, err);
    mtx_unlock(&c->lock);
    cancel_remove(a->req->cancel, &waker);
    if (kind != ERR_NONE || done) {
        return kind;
    }
    kind = fetch(a, r, err);
    mtx_lock(&c->lock);
    (void)strmap_remove(&c->busy, a->key);
    cond_broadcast(&c->changed);
    mtx_unlock(&c->lock);
    return kind;
}

/* ---- the whole ---- */

static enum err_kind get(struct apicache *c, const struct apicache_request *req, const char *target,
                         struct apicache_reply *r, struct err *err)
{
    _cleanup_(free_cstr)
    char *key = xasprintf("%s %s", target, req->accept); /* a target has no space */
    struct ask a = {.cache = c, .req = req, .target = target, .key = key};
    a.document = text_has_prefix(target, "/openapi/v3/");
    a.hash = a.document ? hash_of(target, &a.hash_len) : NULL;
    if (a.document) {
        return get_document(&a, r, err);
    }
    bool ignored;
    mtx_lock(&c->lock);
    (void)look_up_locked(&a, r, &ignored);
    mtx_unlock(&c->lock);
    return fetch(&a, r, err);
}

enum err_kind apicache_get(struct apicache *c, const struct apicache_request *req,
                           struct apicache_reply *ret, struct err *err)
{
    must(apicache_serves(req->target));
    must(req->accept != NULL && req->if_none_match != NULL);
    struct apicache_reply r = {0};
    size_t len = 0;
    enum err_kind kind = get(c, req, req->target, &r, err);
    if (kind == ERR_NONE && r.status / 100 == 3 && hash_of(req->target, &len) != NULL) {
        /* The API server has a newer document than the URL's hash and redirects to it. The client
         * gets it right away, as it would have after following. */
        size_t requests = r.requests;
        apicache_reply_release(&r);
        _cleanup_(free_cstr)
        char *target = without_hash(req->target);
        kind = get(c, req, target, &r, err);
        r.requests += requests;
    }
    if (kind != ERR_NONE) {
        apicache_reply_release(&r);
        return kind;
    }
    if (r.status == 200 && r.etag[0] != '\0' && strcmp(r.etag, req->if_none_match) == 0) {
        r.status = 304;
        r.content_type[0] = '\0';
        r.bytes = "";
        r.len = 0;
    }
    *ret = r;
    return ERR_NONE;
}
