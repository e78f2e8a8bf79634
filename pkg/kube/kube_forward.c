#include "kube/kube_forward.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/must.h"
#include "kube/kube_client.h"
#include "kube/kube_config.h"

/* Of a reply's header lines together; libcurl allows 100 KiB for one. A header that does not fit is
 * not handed over. */
#define REPLY_HEADERS_MAX (256U << 10)

/* How long fresh credentials (a plugin) are waited for, where the request itself has no end. */
#define CREDENTIALS_MS INT64_C(30000)

/* One try; http points into the rest, so it is not to be moved. */
struct
try {
    struct kube_forward req;
    struct http_request http;
    struct http_header headers[KUBE_FORWARD_HEADERS_MAX + 1];
    char *url;
    char *authorization;
    uint64_t generation;
    /* "name\0value\0" of each header of the reply: they are not handed over while the reply may be
     * a 401 that nobody is to see. */
    struct buf reply_headers;
};

struct kube_stream {
    struct transport *transport;
    struct http_stream *http;
    struct try try;
};

static void try_release(struct try *t)
{
    free(t->url);
    kube_wipe(t->authorization);
    buf_release(&t->reply_headers);
    *t = (struct try){0};
}

/* "." or "..", each dot possibly percent-encoded: libcurl and proxies take such segments away, and
 * what was judged here would not be what arrives. */
static bool is_dot_segment(const char *s, size_t len)
{
    int dots = 0;
    for (size_t i = 0; i < len; dots++) {
        size_t step = s[i] == '.' ? 1 : len - i >= 3 && strncasecmp(s + i, "%2e", 3) == 0 ? 3 : 0;
        if (step == 0) {
            return false;
        }
        i += step;
    }
    return dots == 1 || dots == 2;
}

static bool target_is_good(const char *target)
{
    if (target[0] != '/') {
        return false;
    }
    for (const char *c = target; *c != '\0'; c++) {
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f || *c == '#') {
            return false;
        }
    }
    size_t path_len = strcspn(target, "?");
    for (size_t at = 1; at <= path_len;) {
        size_t len = strcspn(target + at, "/?");
        if (is_dot_segment(target + at, len)) {
            return false;
        }
        at += len + 1;
    }
    return true;
}

static void keep_header(void *ctx, const char *name, const char *value)
{
    struct try *t = ctx;
    size_t name_size = strlen(name) + 1, value_size = strlen(value) + 1;
    if (name_size + value_size <= t->reply_headers.max_len - t->reply_headers.len) {
        buf_add(&t->reply_headers, name, name_size);
        buf_add(&t->reply_headers, value, value_size);
    }
}

static void hand_over_headers(const struct try *t)
{
    for (size_t at = 0; at < t->reply_headers.len;) {
        const char *name = t->reply_headers.data + at;
        const char *value = name + strlen(name) + 1;
        t->req.on_header(t->req.ctx, name, value);
        at = (size_t)(value + strlen(value) + 1 - t->reply_headers.data);
    }
}

static struct mono ask_deadline(void *ctx)
{
    const struct try *t = ctx;
    return t->req.deadline_now(t->req.ctx);
}

/* The credentials may have to be fetched, within the same deadline. */
static enum err_kind authorize(struct kube *k, struct try *t, struct err *err)
{
    struct mono deadline =
        mono_min(t->req.deadline, mono_add_ms(clock_mono(k->clock), CREDENTIALS_MS));
    if (t->req.deadline_now != NULL) {
        deadline = mono_min(deadline, ask_deadline(t));
    }
    enum err_kind kind =
        kube_config_authorization(k->config, deadline, &t->authorization, &t->generation, err);
    if (kind == ERR_NONE && t->authorization[0] != '\0') {
        t->headers[t->http.header_count++] =
            (struct http_header){"Authorization", t->authorization};
    }
    return kind;
}

static enum err_kind try_init(struct kube *k, const struct kube_forward *req, struct try *t,
                              struct err *err)
{
    must(req->header_count <= KUBE_FORWARD_HEADERS_MAX);
    *t = (struct try){.req = *req, .reply_headers = BUF_INIT(REPLY_HEADERS_MAX)};
    if (!target_is_good(req->target)) {
        return err_set(err, ERR_INVALID, "%s: its target is no plain absolute path", req->method);
    }
    t->url = xasprintf("%s%s", kube_server(k), req->target);
    for (size_t i = 0; i < req->header_count; i++) {
        t->headers[i] = req->headers[i];
    }
    t->http = (struct http_request){.method = req->method,
                                    .url = t->url,
                                    .headers = t->headers,
                                    .header_count = req->header_count,
                                    .body = req->body,
                                    .body_len = req->body_len,
                                    .deadline = req->deadline,
                                    .idle_ms = req->idle_ms,
                                    .body_max = req->body_max,
                                    .cancel = req->cancel,
                                    .ctx = t,
                                    .deadline_now = req->deadline_now != NULL ? ask_deadline : NULL,
                                    .on_header = req->on_header != NULL ? keep_header : NULL,
                                    .hangup_fd = req->hangup_fd};
    enum err_kind kind = authorize(k, t, err);
    if (kind != ERR_NONE) {
        try_release(t);
    }
    return kind;
}

/* A reply's head is in. False: it is a 401 that is to be tried again, with other credentials; a 401
 * is decided before anything is done, so a write may be sent again too. */
static bool head_is_final(struct kube *k, const struct try *t, const struct http_response *head,
                          bool again, struct kube_forward_date *ret_date)
{
    ret_date->have = kube_note_date(k, head, &ret_date->ns);
    if (head->status == 401) {
        kube_config_reject(k->config, t->generation);
        if (!again && kube_config_rotates(k->config)) {
            return false;
        }
    }
    hand_over_headers(t);
    return true;
}

enum err_kind kube_forward(struct kube *k, const struct kube_forward *req,
                           struct http_response *ret, struct kube_forward_date *ret_date,
                           struct err *err)
{
    *ret_date = (struct kube_forward_date){0};
    bool final = false;
    for (bool again = false; !final; again = true) {
        struct try t;
        enum err_kind kind = try_init(k, req, &t, err);
        if (kind != ERR_NONE) {
            return kind;
        }
        kind = transport_perform(k->transport, &t.http, ret, err);
        if (kind != ERR_NONE) {
            try_release(&t);
            return kind;
        }
        final = head_is_final(k, &t, ret, again, ret_date);
        try_release(&t);
        if (!final) {
            http_response_release(ret);
        }
    }
    return ERR_NONE;
}

enum err_kind kube_stream_open(struct kube *k, const struct kube_forward *req,
                               struct http_response *ret_head, struct kube_forward_date *ret_date,
                               struct kube_stream **ret, struct err *err)
{
    *ret_date = (struct kube_forward_date){0};
    struct kube_stream *s = xcalloc(1, sizeof(*s));
    s->transport = k->transport;
    bool final = false;
    for (bool again = false; !final; again = true) {
        enum err_kind kind = try_init(k, req, &s->try, err);
        if (kind == ERR_NONE) {
            kind = transport_open(k->transport, &s->try.http, ret_head, &s->http, err);
        }
        if (kind != ERR_NONE) {
            try_release(&s->try);
            free(s);
            return kind;
        }
        final = head_is_final(k, &s->try, ret_head, again, ret_date);
        if (!final) {
            http_response_release(ret_head);
            transport_close(k->transport, s->http);
            try_release(&s->try);
        }
    }
    *ret = s;
    return ERR_NONE;
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
    try_release(&s->try);
    free(s);
}
