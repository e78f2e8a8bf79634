#include "kube/kube_forward.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "kube/kube_config.h"
#include "kube/kube_wire.h"

/* How long fresh credentials may be waited for (a plugin). */
#define CREDENTIALS_MS INT64_C(30000)

/* One request as it goes out; the transport borrows it until its end. */
struct outgoing {
    struct http_request http;
    struct http_header headers[KUBE_FORWARD_HEADERS_MAX + 1];
    char *url;
    char *authorization;
    uint64_t generation; /* of the credentials */
};

struct kube_stream {
    struct transport *transport;
    struct http_stream *http;
    struct outgoing out;
};

static void outgoing_release(struct outgoing *o)
{
    free(o->url);
    kube_wipe(o->authorization);
    *o = (struct outgoing){0};
}

/* *o is not to be moved afterwards. */
static enum err_kind prepare(struct kube *k, const struct kube_forward *req, struct outgoing *o,
                             struct err *err)
{
    must(req->header_count <= KUBE_FORWARD_HEADERS_MAX);
    *o = (struct outgoing){0};
    if (req->target[0] != '/') {
        return err_set(err, ERR_INVALID, "%s: the target is no absolute path", req->method);
    }
    struct mono deadline = mono_add_ms(clock_mono(k->clock), CREDENTIALS_MS);
    enum err_kind kind = kube_config_authorization(k->config, mono_min(deadline, req->deadline),
                                                   &o->authorization, &o->generation, err);
    if (kind != ERR_NONE) {
        return kind;
    }
    o->url = xasprintf("%s%s", kube_server(k), req->target);
    size_t n = req->header_count;
    if (n > 0) {
        memcpy(o->headers, req->headers, n * sizeof(o->headers[0]));
    }
    if (o->authorization[0] != '\0') {
        o->headers[n++] = (struct http_header){"Authorization", o->authorization};
    }
    o->http = (struct http_request){.method = req->method,
                                    .url = o->url,
                                    .headers = o->headers,
                                    .header_count = n,
                                    .body = req->body,
                                    .body_len = req->body_len,
                                    .body_max = req->body_max,
                                    .deadline = req->deadline,
                                    .idle_ms = req->idle_ms,
                                    .cancel = req->cancel,
                                    .ctx = req->ctx,
                                    .deadline_now = req->deadline_now,
                                    .on_header = req->on_header,
                                    .hangup_fd = req->hangup_fd};
    return ERR_NONE;
}

/* True: the credentials were refused, and fresh ones may do better. */
static bool note_head(struct kube *k, const struct http_response *head, uint64_t generation,
                      struct kube_forward_date *ret_date)
{
    *ret_date = (struct kube_forward_date){0};
    ret_date->have = kube_note_date(k, head, &ret_date->ns);
    if (head->status != 401) {
        return false;
    }
    kube_config_reject(k->config, generation);
    return kube_config_rotates(k->config);
}

enum err_kind kube_forward(struct kube *k, const struct kube_forward *req,
                           struct http_response *ret, struct kube_forward_date *ret_date,
                           struct err *err)
{
    for (bool again = false;; again = true) {
        struct outgoing out;
        enum err_kind kind = prepare(k, req, &out, err);
        if (kind != ERR_NONE) {
            return kind;
        }
        struct http_response head = HTTP_RESPONSE_INIT;
        kind = transport_perform(k->transport, &out.http, &head, err);
        uint64_t generation = out.generation;
        outgoing_release(&out);
        if (kind != ERR_NONE) {
            return kind;
        }
        if (!note_head(k, &head, generation, ret_date) || again) {
            *ret = head;
            return ERR_NONE;
        }
        http_response_release(&head);
    }
}

enum err_kind kube_stream_open(struct kube *k, const struct kube_forward *req,
                               struct http_response *ret_head, struct kube_forward_date *ret_date,
                               struct kube_stream **ret, struct err *err)
{
    for (bool again = false;; again = true) {
        struct kube_stream *s = xcalloc(1, sizeof(*s));
        s->transport = k->transport;
        enum err_kind kind = prepare(k, req, &s->out, err);
        struct http_response head = HTTP_RESPONSE_INIT;
        if (kind == ERR_NONE) {
            kind = transport_open(k->transport, &s->out.http, &head, &s->http, err);
        }
        if (kind != ERR_NONE) {
            outgoing_release(&s->out);
            free(s);
            return kind;
        }
        if (!note_head(k, &head, s->out.generation, ret_date) || again) {
            *ret_head = head;
            *ret = s;
            return ERR_NONE;
        }
        http_response_release(&head);
        kube_stream_close(s);
    }
}

enum err_kind kube_stream_read(struct kube_stream *s, char *bytes, size_t cap, size_t *ret_len,
                               struct err *err)
{
    return transport_read(s->transport, s->http, bytes, cap, ret_len, err);
}

void kube_stream_close(struct kube_stream *s)
{
    if (s == NULL) {
        return;
    }
    transport_close(s->transport, s->http);
    outgoing_release(&s->out);
    free(s);
}
