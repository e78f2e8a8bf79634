/* The loop: drive calls on the calling thread's multi handle until each has its result.
 *
 *   added to the multi --libcurl says done--> reply | next hop (added again)
 *          \--cancel, deadline, silence--> given up: removed, which closes its connection
 *
 * Deadlines are kept here and not by libcurl, on CLOCK_BOOTTIME, and one poll lasts a second at
 * most: so a passed deadline is noticed within a second after the machine was suspended. */
#include "transport_curl/transport_curl.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "transport_curl/curl_call.h"
#include "transport_curl/curl_setup.h"
#include "transport_curl/curl_slots.h"
#include "effect/clock.h"

#define POLL_MAX_MS INT64_C(1000)

static void wake(void *ctx)
{
    /* The one function of a multi handle that other threads may call. */
    (void)curl_multi_wakeup(ctx);
}

static void call_add(struct call *c)
{
    must(curl_multi_add_handle(c->slot->multi, c->easy) == CURLM_OK);
    c->in_multi = true;
}

static void call_remove(struct call *c, bool abort)
{
    c->slot->aborting = abort;
    must(curl_multi_remove_handle(c->slot->multi, c->easy) == CURLM_OK);
    c->slot->aborting = false;
    c->in_multi = false;
}

/* Calls that libcurl has ended. Returns how many were re-added for a redirect's next hop. */
static size_t collect_ended(struct curl_slot *slot)
{
    size_t again = 0;
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(slot->multi, &left)) != NULL;) {
        if (m->msg != CURLMSG_DONE) {
            continue;
        }
        CURLcode rc = m->data.result;
        struct call *c = NULL;
        must(curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c) == CURLE_OK && c != NULL);
        call_remove(c, /* abort= */ false);
        if (call_hop_ended(c, rc) == CALL_NEXT_HOP) {
            call_add(c);
            again++;
        }
    }
    return again;
}

/* Give up what is overdue. Returns how long to wait for the rest, -1 if none is left. */
static int64_t sweep(struct call *calls, size_t n)
{
    int64_t wait_ms = -1;
    struct mono now = clock_mono(clock_os());
    for (size_t i = 0; i < n; i++) {
        struct call *c = &calls[i];
        int64_t due_ms;
        if (c->done) {
            continue;
        }
        if (call_overdue(c, now, &due_ms)) {
            call_remove(c, /* abort= */ true);
            continue;
        }
        wait_ms = wait_ms < 0 || due_ms < wait_ms ? due_ms : wait_ms;
    }
    return wait_ms < POLL_MAX_MS ? wait_ms : POLL_MAX_MS;
}

static void drive(struct curl_slot *slot, struct call *calls, size_t n)
{
    for (;;) {
        int running;
        /* Before anything more is sent: the process may have been stopped for a long time. */
        if (sweep(calls, n) < 0) {
            return;
        }
        must(curl_multi_perform(slot->multi, &running) == CURLM_OK);
        if (collect_ended(slot) > 0) {
            continue;
        }
        int64_t wait_ms = sweep(calls, n);
        if (wait_ms < 0) {
            return;
        }
        /* Rounded up, or the last half millisecond would spin. */
        must(curl_multi_poll(slot->multi, NULL, 0, (int)wait_ms + 1, NULL) == CURLM_OK);
    }
}

static void transport_curl_perform_many(struct transport *base, struct http_call *http, size_t n)
{
    struct transport_curl *t = (struct transport_curl *)base;
    if (n == 0) {
        return;
    }
    struct curl_slot *slot = curl_slot_get(t);
    must(!slot->busy);
    slot->busy = true;
    curl_slot_reserve(slot, n);
    curl_slot_reset_user_timeout(slot);
    struct call *calls = xcalloc(n, sizeof(*calls));
    for (size_t i = 0; i < n; i++) {
        struct call *c = &calls[i];
        if (call_init(c, t, slot, slot->easies[i], http[i].request, &http[i].response,
                      &http[i].err)) {
            call_add(c);
            c->waker = (struct cancel_waker){.wake = wake, .ctx = slot->multi};
            cancel_add(c->req->cancel, &c->waker);
        }
    }
    drive(slot, calls, n);
    for (size_t i = 0; i < n; i++) {
        struct call *c = &calls[i];
        must(c->done);
        if (c->waker.wake != NULL) {
            cancel_remove(c->req->cancel, &c->waker);
        }
        http[i].result = c->result;
        call_release(c);
    }
    free(calls);
    slot->busy = false;
}

static enum err_kind transport_curl_perform(struct transport *base, const struct http_request *req,
                                            struct http_response *ret, struct err *err)
{
    struct http_call call = {.request = req};
    transport_curl_perform_many(base, &call, 1);
    if (call.result != ERR_NONE) {
        *err = call.err;
        return call.result;
    }
    *ret = call.response;
    return ERR_NONE;
}

/* ---- streams ---- */

struct http_stream {
    struct call call;
    struct http_response head;
    struct err err;
};

/* Until the head is there (want_bytes: a byte of the body), or the end. */
static void pump(struct http_stream *s, bool want_bytes)
{
    struct call *c = &s->call;
    while (!c->done && !(want_bytes ? c->held_len > 0 : c->headers_done)) {
        int running;
        if (sweep(c, 1) < 0) {
            return;
        }
        must(curl_multi_perform(c->slot->multi, &running) == CURLM_OK);
        (void)collect_ended(c->slot);
        bool ready = want_bytes ? c->held_len > 0 : c->headers_done;
        if (c->done || ready) {
            return;
        }
        int64_t wait_ms = sweep(c, 1);
        struct curl_waitfd peer = {.fd = c->req->hangup_fd, .events = 0};
        bool watch = c->req->hangup_fd > 0 && !c->is_write;
        if (wait_ms >= 0) {
            must(curl_multi_poll(c->slot->multi, watch ? &peer : NULL, watch ? 1 : 0,
                                 (int)(wait_ms < 200 ? wait_ms : 200) + 1, NULL) == CURLM_OK);
        }
    }
}

static enum err_kind transport_curl_open(struct transport *base, const struct http_request *req,
                                         struct http_response *ret_head, struct http_stream **ret,
                                         struct err *err)
{
    struct transport_curl *t = (struct transport_curl *)base;
    struct curl_slot *slot = curl_slot_get(t);
    must(!slot->busy && req->on_data == NULL && !req->follow_redirects);
    slot->busy = true;
    curl_slot_reserve(slot, 1);
    curl_slot_reset_user_timeout(slot);
    struct http_stream *s = xcalloc(1, sizeof(*s));
    struct call *c = &s->call;
    if (call_init(c, t, slot, slot->easies[0], req, &s->head, &s->err)) {
        c->streams = true;
        c->held = xmalloc(TRANSPORT_STREAM_BYTES);
        call_add(c);
        c->waker = (struct cancel_waker){.wake = wake, .ctx = slot->multi};
        cancel_add(req->cancel, &c->waker);
        pump(s, /* want_bytes= */ false);
    }
    if (c->done && c->result != ERR_NONE) {
        enum err_kind kind = c->result;
        *err = s->err;
        base->ops->close(s);
        return kind;
    }
    *ret_head = s->head;
    ret_head->body = (struct buf)BUF_INIT(1);
    *ret = s;
    return ERR_NONE;
}

static enum err_kind transport_curl_read(struct http_stream *s, char *bytes, size_t cap,
                                         size_t *ret_len, struct err *err)
{
    struct call *c = &s->call;
    if (c->paused && c->held_len < TRANSPORT_STREAM_BYTES / 2) {
        c->paused = false;
        c->last_byte = clock_mono(clock_os());
        (void)curl_easy_pause(c->easy, CURLPAUSE_CONT);
    }
    pump(s, /* want_bytes= */ true);
    if (c->held_len == 0 && c->done && c->result != ERR_NONE) {
        *err = s->err;
        return c->result;
    }
    size_t n = c->held_len < cap ? c->held_len : cap;
    memcpy(bytes, c->held, n);
    memmove(c->held, c->held + n, c->held_len - n);
    c->held_len -= n;
    *ret_len = n;
    return ERR_NONE;
}

static void transport_curl_close(struct http_stream *s)
{
    struct call *c = &s->call;
    struct curl_slot *slot = c->slot;
    if (c->in_multi) {
        call_remove(c, /* abort= */ true);
    }
    if (c->waker.wake != NULL) {
        cancel_remove(c->req->cancel, &c->waker);
    }
    call_release(c);
    slot->busy = false;
    free(s);
}

static const char *own(const char *s)
{
    return s != NULL ? xstrdup(s) : NULL;
}

static void disown(const char *s)
{
    free((void *)(uintptr_t)s);
}

static void wipe(char *s)
{
    if (s != NULL) {
        explicit_bzero(s, strlen(s));
        free(s);
    }
}

struct transport *transport_curl_new(const struct transport_curl_options *options)
{
    static const struct transport_ops ops = {.perform = transport_curl_perform,
                                             .perform_many = transport_curl_perform_many,
                                             .open = transport_curl_open,
                                             .read = transport_curl_read,
                                             .close = transport_curl_close};
    must((options->cert_data == NULL) == (options->key_data == NULL));
    must((options->cert_file == NULL) == (options->key_file == NULL));
    must(options->proxy != TRANSPORT_CURL_PROXY_URL || options->proxy_url != NULL);
    /* Counted by libcurl, and safe from several threads since 7.84. */
    must(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK);
    struct transport_curl *t = xcalloc(1, sizeof(*t));
    t->base.ops = &ops;
    t->options = *options;
    t->options.user_agent = own(options->user_agent);
    t->options.ca_file = own(options->ca_file);
    t->options.ca_data = own(options->ca_data);
    t->options.cert_file = own(options->cert_file);
    t->options.key_file = own(options->key_file);
    t->options.tls_server_name = own(options->tls_server_name);
    t->options.proxy_url = own(options->proxy_url);
    t->options.cert_data = NULL;
    t->options.key_data = NULL;
    mtx_init(&t->lock, "transport_curl");
    transport_curl_set_client_cert(&t->base, options->cert_data, options->key_data);
    proxy_env_read(&t->proxy_env);
    return &t->base;
}

void transport_curl_set_client_cert(struct transport *base, const char *cert_data,
                                    const char *key_data)
{
    struct transport_curl *t = (struct transport_curl *)base;
    must((cert_data == NULL) == (key_data == NULL));
    char *cert = cert_data != NULL ? xstrdup(cert_data) : NULL;
    char *key = key_data != NULL ? xstrdup(key_data) : NULL;
    mtx_lock(&t->lock);
    char *old_cert = t->cert_data;
    char *old_key = t->key_data;
    t->cert_data = cert;
    t->key_data = key;
    mtx_unlock(&t->lock);
    free(old_cert);
    wipe(old_key);
}

void transport_curl_free(struct transport *base)
{
    struct transport_curl *t = (struct transport_curl *)base;
    if (t == NULL) {
        return;
    }
    curl_slots_drop(t);
    disown(t->options.user_agent);
    disown(t->options.ca_file);
    disown(t->options.ca_data);
    disown(t->options.cert_file);
    disown(t->options.key_file);
    disown(t->options.tls_server_name);
    disown(t->options.proxy_url);
    free(t->cert_data);
    wipe(t->key_data);
    proxy_env_release(&t->proxy_env);
    mtx_release(&t->lock);
    free(t);
    curl_global_cleanup();
}
