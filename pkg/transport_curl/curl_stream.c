/* One call whose body waits in a small buffer for its reader. libcurl runs only while the reader
 * waits in open or read; a buffer that is full pauses the transfer, so what follows stays in the
 * sockets and then at the server. */
#include "transport_curl/curl_stream.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "effect/clock.h"
#include "transport_curl/curl_call.h"
#include "transport_curl/curl_loop.h"
#include "transport_curl/curl_slots.h"

struct http_stream {
    struct call call;
    struct http_response head;
    struct err err;
    struct buf body; /* filled only when it is empty */
    size_t taken;    /* bytes of body that the reader has */
};

static bool head_or_end(const struct http_stream *s)
{
    return s->call.headers_done || s->call.done;
}

static bool bytes_or_end(const struct http_stream *s)
{
    return s->body.len > 0 || s->call.done;
}

static void drive_until(struct http_stream *s, bool (*enough)(const struct http_stream *s))
{
    struct call *c = &s->call;
    while (!c->done) {
        int64_t wait_ms = loop_step(c->slot, c, 1);
        if (enough(s)) {
            return;
        }
        loop_wait(c->slot, c, 1, wait_ms);
    }
}

enum err_kind curl_stream_open(struct transport *base, const struct http_request *req,
                               struct http_response *ret_head, struct http_stream **ret,
                               struct err *err)
{
    struct transport_curl *t = (struct transport_curl *)base;
    struct curl_slot *slot = curl_slot_get(t);
    must(!slot->busy);
    slot->busy = true;
    curl_slot_reserve(slot, 1);
    curl_slot_reset_user_timeout(slot);
    struct http_stream *s = xcalloc(1, sizeof(*s));
    s->body = (struct buf)BUF_INIT(TRANSPORT_STREAM_BYTES);
    if (call_init(&s->call, t, slot, slot->easies[0], req, &s->head, &s->body, &s->err)) {
        loop_add(&s->call);
        drive_until(s, head_or_end);
    }
    if (!s->call.headers_done) {
        enum err_kind kind = s->call.result;
        must(kind != ERR_NONE);
        *err = s->err;
        curl_stream_close(s);
        return kind;
    }
    *ret_head = s->head;
    ret_head->body = (struct buf)BUF_INIT(1);
    *ret = s;
    return ERR_NONE;
}

/* The buffer is empty and somebody waits for it. */
static void refill(struct http_stream *s)
{
    struct call *c = &s->call;
    buf_reset(&s->body);
    s->taken = 0;
    /* Until now the silence was ours. */
    c->last_byte = clock_mono(clock_os());
    if (c->paused) {
        c->paused = false;
        /* Hands over what it had kept, at once. */
        CURLcode rc = curl_easy_pause(c->easy, CURLPAUSE_CONT);
        if (rc != CURLE_OK) {
            loop_hop_failed(c, rc);
            return;
        }
    }
    drive_until(s, bytes_or_end);
}

enum err_kind curl_stream_read(struct http_stream *s, char *bytes, size_t cap, size_t *ret_len,
                               struct err *err)
{
    must(cap > 0);
    if (s->taken == s->body.len && !s->call.done) {
        refill(s);
    }
    size_t left = s->body.len - s->taken;
    if (left == 0 && s->call.result != ERR_NONE) {
        *err = s->err;
        return s->call.result;
    }
    *ret_len = left < cap ? left : cap;
    if (*ret_len > 0) {
        memcpy(bytes, s->body.data + s->taken, *ret_len);
        s->taken += *ret_len;
    }
    return ERR_NONE;
}

void curl_stream_close(struct http_stream *s)
{
    struct curl_slot *slot = s->call.slot;
    loop_remove(&s->call);
    call_release(&s->call);
    buf_release(&s->body);
    http_response_release(&s->head);
    free(s);
    slot->busy = false;
}
