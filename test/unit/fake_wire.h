/* A transport that answers from a script and keeps what it was asked, and a clock that moves when
 * somebody waits or an answer takes its time; for tests of what stands on pkg/kube. One thread. */
#ifndef BELAY_TEST_UNIT_FAKE_WIRE_H
#define BELAY_TEST_UNIT_FAKE_WIRE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "effect/clock.h"
#include "effect/rng.h"
#include "effect/transport.h"
#include "kube/kube.h"
#include "kube/kubeconfig.h"

#define WIRE_ASKED_MAX 2048
#define WIRE_DATE      "Tue, 01 Dec 2026 12:00:00 GMT"
#define WIRE_DATE_NS   (INT64_C(1796126400) * NS_PER_SEC)
#define WIRE_START     ((struct mono){1000 * NS_PER_SEC})

struct wire_answer {
    enum err_kind fails; /* ERR_NONE: a reply */
    int status;          /* 0: 200 */
    const char *body;
    const char *retry_after;
    int64_t takes_ms;
    size_t piece; /* > 0: on_data, or a stream's read, gets pieces of this many bytes */
};

struct wire {
    struct clock clock; /* first: the clock's functions find the rest by it */
    struct mono now;
    int64_t slept_ms[WIRE_ASKED_MAX]; /* what passed by waiting before each request */
    int64_t waited_ms;
    /* Called at each wait, without the waiter's lock. If it moves the clock, the wait is over. */
    void (*on_wait)(void *ctx);
    void *wait_ctx;
    struct transport transport;
    struct rng rng;
    uint64_t random;
    const struct wire_answer *answers;
    size_t answer_count;
    bool repeat_last;     /* the last answer is for all that follow */
    struct cancel cancel; /* raised when the script is at its end */
    size_t asked;
    char *seen[WIRE_ASKED_MAX];          /* "METHOD path?query\nAccept: ...\n\nbody" */
    int64_t deadline_ms[WIRE_ASKED_MAX]; /* left at the time of asking */
    int64_t idle_ms[WIRE_ASKED_MAX];
    char dir[32];
    struct kube_config *config;
    struct kube *kube;
};

static struct wire *wire_of_transport(struct transport *t)
{
    return (struct wire *)(void *)((char *)t - offsetof(struct wire, transport));
}

static struct mono wire_mono(struct clock *c)
{
    return ((struct wire *)c)->now;
}

static struct wall wire_wall(struct clock *c)
{
    return (struct wall){WIRE_DATE_NS + ((struct wire *)c)->now.ns - WIRE_START.ns};
}

static void wire_wait(struct clock *c, struct cond *cond, struct mtx *m, struct mono deadline)
{
    struct wire *w = (struct wire *)c;
    (void)cond;
    mtx_must_hold(m);
    struct mono before = w->now;
    if (w->on_wait != NULL) {
        mtx_unlock(m);
        w->on_wait(w->wait_ctx);
        mtx_lock(m);
    }
    if (deadline.ns == INT64_MAX || w->now.ns != before.ns) {
        must(w->on_wait != NULL); /* or this would be for ever */
        return;
    }
    w->waited_ms += mono_diff_ms(deadline, w->now);
    w->now = deadline;
}

static void wire_fill(struct rng *r, void *bytes, size_t len)
{
    struct wire *w = (struct wire *)(void *)((char *)r - offsetof(struct wire, rng));
    for (size_t i = 0; i < len; i++) {
        w->random = w->random * 6364136223846793005U + 1442695040888963407U;
        ((unsigned char *)bytes)[i] = (unsigned char)(w->random >> 56);
    }
}

static void wire_note(struct wire *w, const struct http_request *req)
{
    must(w->asked < WIRE_ASKED_MAX);
    struct buf b = BUF_INIT(4U << 20);
    const char *path = strstr(req->url, "://");
    path = path != NULL ? strchr(path + 3, '/') : NULL;
    buf_addf(&b, "%s %s\n", req->method, path != NULL ? path : req->url);
    for (size_t i = 0; i < req->header_count; i++) {
        if (strcmp(req->headers[i].name, "Accept") == 0 ||
            strcmp(req->headers[i].name, "Content-Type") == 0) {
            buf_addf(&b, "%s: %s\n", req->headers[i].name, req->headers[i].value);
        }
    }
    buf_add_char(&b, '\n');
    if (req->body != NULL) {
        buf_add(&b, req->body, req->body_len);
    }
    w->slept_ms[w->asked] = w->waited_ms;
    w->waited_ms = 0;
    w->deadline_ms[w->asked] = mono_diff_ms(req->deadline, w->now);
    w->idle_ms[w->asked] = req->idle_ms;
    w->seen[w->asked++] = buf_take(&b);
}

static enum err_kind wire_stream(const struct http_request *req, const struct wire_answer *a,
                                 struct err *err)
{
    size_t len = strlen(a->body);
    size_t piece = a->piece != 0 ? a->piece : len;
    for (size_t at = 0; at < len; at += piece) {
        if (!req->on_data(req->ctx, a->body + at, len - at < piece ? len - at : piece)) {
            return err_set(err, ERR_CANCELLED, "the reader stopped");
        }
    }
    return ERR_NONE;
}

/* What the next request is answered with, and the head of that; NULL at the end of the script. */
static const struct wire_answer *wire_next(struct wire *w, const struct http_request *req,
                                           struct http_response *ret_head, struct err *err)
{
    size_t at = w->asked;
    wire_note(w, req);
    if (at >= w->answer_count && w->repeat_last) {
        at = w->answer_count - 1;
    }
    if (at >= w->answer_count) {
        cancel_raise(&w->cancel);
        (void)err_set(err, ERR_CANCELLED, "the end of the script");
        return NULL;
    }
    const struct wire_answer *a = &w->answers[at];
    *ret_head = (struct http_response){.status = a->status != 0 ? a->status : 200,
                                       .body = BUF_INIT(LIMIT_BODY_BYTES),
                                       .sent = w->now};
    w->now = mono_add_ms(w->now, a->takes_ms);
    ret_head->received = w->now;
    (void)snprintf(ret_head->date, sizeof(ret_head->date), "%s", WIRE_DATE);
    (void)snprintf(ret_head->retry_after, sizeof(ret_head->retry_after), "%s",
                   a->retry_after != NULL ? a->retry_after : "");
    return a;
}

static enum err_kind wire_perform(struct transport *t, const struct http_request *req,
                                  struct http_response *ret, struct err *err)
{
    struct http_response r;
    const struct wire_answer *a = wire_next(wire_of_transport(t), req, &r, err);
    if (a == NULL) {
        return err->kind;
    }
    if (a->body != NULL && req->on_data != NULL && r.status / 100 == 2) {
        if (wire_stream(req, a, err) != ERR_NONE) {
            return err->kind;
        }
    } else if (a->body != NULL) {
        buf_add_str(&r.body, a->body);
    }
    if (a->fails != ERR_NONE) {
        buf_release(&r.body);
        return err_set(err, a->fails, "the wire");
    }
    *ret = r;
    return ERR_NONE;
}

struct http_stream {
    const struct wire_answer *answer;
    size_t at;
};

/* An answer that fails does so at once if it has no body, else at the body's end. */
static enum err_kind wire_open(struct transport *t, const struct http_request *req,
                               struct http_response *ret_head, struct http_stream **ret,
                               struct err *err)
{
    struct http_response head;
    const struct wire_answer *a = wire_next(wire_of_transport(t), req, &head, err);
    if (a == NULL) {
        return err->kind;
    }
    if (a->fails != ERR_NONE && a->body == NULL) {
        return err_set(err, a->fails, "the wire");
    }
    *ret_head = head;
    *ret = xcalloc(1, sizeof(**ret));
    (*ret)->answer = a;
    return ERR_NONE;
}

static enum err_kind wire_read(struct http_stream *s, char *bytes, size_t cap, size_t *ret_len,
                               struct err *err)
{
    const struct wire_answer *a = s->answer;
    const char *rest = a->body != NULL ? a->body + s->at : "";
    size_t left = strlen(rest);
    if (left == 0 && a->fails != ERR_NONE) {
        return err_set(err, a->fails, "the wire");
    }
    size_t piece = a->piece != 0 && a->piece < cap ? a->piece : cap;
    *ret_len = left < piece ? left : piece;
    memcpy(bytes, rest, *ret_len);
    s->at += *ret_len;
    return ERR_NONE;
}

static void wire_close(struct http_stream *s)
{
    free(s);
}

static void wire_file(const struct wire *w, const char *name, const char *text)
{
    _cleanup_(free_cstr)
    char *path = xasprintf("%s/%s", w->dir, name);
    if (text == NULL) {
        (void)unlink(path);
        return;
    }
    FILE *file = fopen(path, "we");
    must(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static struct wire *wire_new(const struct wire_answer *answers, size_t count)
{
    static const struct clock_ops clock_ops = {
        .mono = wire_mono, .wall = wire_wall, .wait = wire_wait};
    static const struct transport_ops transport_ops = {
        .perform = wire_perform, .open = wire_open, .read = wire_read, .close = wire_close};
    static const struct rng_ops rng_ops = {.fill = wire_fill};
    struct wire *w = xcalloc(1, sizeof(*w));
    w->clock.ops = &clock_ops;
    w->transport.ops = &transport_ops;
    w->rng.ops = &rng_ops;
    w->now = WIRE_START;
    w->answers = answers;
    w->answer_count = count;
    cancel_init(&w->cancel);
    (void)snprintf(w->dir, sizeof(w->dir), "/tmp/wire.XXXXXX");
    must(mkdtemp(w->dir) != NULL);
    wire_file(w, "token", "t");
    wire_file(w, "ca.crt", "");
    wire_file(w, "namespace", "flux");
    must(unsetenv("KUBECONFIG") == 0 && setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1) == 0 &&
         setenv("KUBERNETES_SERVICE_PORT", "443", 1) == 0);
    struct err err = ERR_INIT;
    must(kube_config_load(
             &(struct kube_config_options){.clock = &w->clock, .service_account_dir = w->dir},
             &w->config, &err) == ERR_NONE);
    w->kube = kube_new(&(struct kube_options){.transport = &w->transport,
                                              .clock = &w->clock,
                                              .config = w->config,
                                              .user_agent = "belay/test"});
    return w;
}

static void wire_free(struct wire *w)
{
    for (size_t i = 0; i < w->asked; i++) {
        free(w->seen[i]);
    }
    kube_free(w->kube);
    kube_config_free(w->config);
    wire_file(w, "token", NULL);
    wire_file(w, "ca.crt", NULL);
    wire_file(w, "namespace", NULL);
    (void)rmdir(w->dir);
    cancel_release(&w->cancel);
    free(w);
}

#endif
