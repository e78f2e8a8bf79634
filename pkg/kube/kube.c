#include "kube/kube.h"

#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "kube/kube_client.h"
#include "kube/kube_config.h"
#include "kube/kube_wire.h"

#define HEADERS_MAX 4

/* One request, ready for the transport; http points into the rest. */
struct prepared {
    struct http_request http;
    struct http_header headers[HEADERS_MAX];
    char *url;
    char *authorization;
    char *body;
    uint64_t generation; /* of the credentials */
};

static void prepared_release(struct prepared *p)
{
    free(p->url);
    kube_wipe(p->authorization);
    free(p->body);
    *p = (struct prepared){0};
}

struct kube *kube_new(const struct kube_options *options)
{
    must(options->transport != NULL && options->clock != NULL && options->config != NULL);
    struct kube *k = xcalloc(1, sizeof(*k));
    k->transport = options->transport;
    k->clock = options->clock;
    k->config = options->config;
    k->user_agent = xstrdup(options->user_agent != NULL ? options->user_agent : "belay");
    mtx_init(&k->lock, "kube");
    return k;
}

void kube_free(struct kube *k)
{
    if (k == NULL) {
        return;
    }
    mtx_release(&k->lock);
    free(k->user_agent);
    free(k);
}

const char *kube_server(const struct kube *k)
{
    return k->config->server;
}

void kube_reply_release(struct kube_reply *r)
{
    jsonx_decref_ptr(&r->object);
    free(r->text);
    *r = (struct kube_reply){0};
}

bool kube_server_time(struct kube *k, struct srvtime *ret)
{
    struct mono now = clock_mono(k->clock);
    MTX_GUARD(&k->lock);
    return srvclock_now(&k->server_clock, now, ret);
}

static void add_header(struct prepared *p, const char *name, const char *value)
{
    must(p->http.header_count < HEADERS_MAX);
    p->headers[p->http.header_count++] = (struct http_header){name, value};
}

/* *p is not to be moved afterwards. */
static enum err_kind prepare(struct kube *k, const struct kube_request *req, struct prepared *p,
                             struct err *err)
{
    *p = (struct prepared){0};
    enum err_kind kind = kube_url(kube_server(k), req, &p->url, err);
    if (kind != ERR_NONE) {
        return kind;
    }
    kind =
        kube_config_authorization(k->config, req->deadline, &p->authorization, &p->generation, err);
    if (kind != ERR_NONE) {
        prepared_release(p);
        return kind;
    }
    add_header(p, "Accept", req->accept != NULL ? req->accept : KUBE_ACCEPT_JSON);
    add_header(p, "User-Agent", k->user_agent);
    if (p->authorization[0] != '\0') {
        add_header(p, "Authorization", p->authorization);
    }
    p->body = req->body != NULL ? jsonx_dump(req->body) : NULL;
    if (p->body != NULL) {
        add_header(p, "Content-Type",
                   req->content_type != NULL ? req->content_type : "application/json");
    }
    p->http.method = req->method;
    p->http.url = p->url;
    p->http.headers = p->headers;
    p->http.body = p->body;
    p->http.body_len = p->body != NULL ? strlen(p->body) : 0;
    p->http.deadline = req->deadline;
    p->http.idle_ms = req->idle_ms;
    p->http.cancel = req->cancel;
    p->http.on_data = req->on_data;
    p->http.ctx = req->ctx;
    return ERR_NONE;
}

/* Feed the server clock; true if the reply's Date is the server's own. */
bool kube_note_date(struct kube *k, const struct http_response *http, int64_t *ret_date_ns)
{
    int64_t date_ns;
    if (http->date_unreliable || !httpdate_parse(http->date, &date_ns)) {
        return false;
    }
    MTX_GUARD(&k->lock);
    srvclock_note(&k->server_clock, http->sent, http->received, date_ns);
    *ret_date_ns = date_ns;
    return true;
}

/* From a complete HTTP reply, which is used up. */
static enum err_kind finish(struct kube *k, const struct kube_request *req, uint64_t generation,
                            struct http_response *http, struct kube_reply *ret, struct err *err)
{
    int64_t date_ns = 0;
    bool have_date = kube_note_date(k, http, &date_ns);
    if (http->status == 401) {
        kube_config_reject(k->config, generation);
    }
    enum err_kind kind = kube_judge(req, http, ret, err);
    if (kind == ERR_NONE) {
        ret->sent = http->sent;
        ret->received = http->received;
        ret->have_date = have_date;
        ret->date_ns = date_ns;
    }
    http_response_release(http);
    return kind;
}

/* One try. Credentials that got a 401 are read afresh before the next one. */
static enum err_kind attempt(struct kube *k, const struct kube_request *req, struct kube_reply *ret,
                             struct err *err)
{
    struct prepared p;
    struct http_response http = HTTP_RESPONSE_INIT;
    enum err_kind kind = prepare(k, req, &p, err);
    if (kind != ERR_NONE) {
        return kind;
    }
    kind = transport_perform(k->transport, &p.http, &http, err);
    uint64_t generation = p.generation;
    prepared_release(&p);
    return kind == ERR_NONE ? finish(k, req, generation, &http, ret, err) : kind;
}

enum err_kind kube_do(struct kube *k, const struct kube_request *req, struct kube_reply *ret,
                      struct err *err)
{
    struct err first = ERR_INIT;
    enum err_kind kind = attempt(k, req, ret, &first);
    if (kind == ERR_DENIED && first.code == 401 && kube_config_rotates(k->config)) {
        /* 401 is decided before anything is done, so a write may be sent again too. */
        return attempt(k, req, ret, err);
    }
    if (kind != ERR_NONE) {
        *err = first;
    }
    return kind;
}

void kube_do_many(struct kube *k, struct kube_call *calls, size_t n)
{
    if (n == 0) {
        return;
    }
    struct prepared *prepared = xcalloc(n, sizeof(*prepared));
    struct http_call *http = xcalloc(n, sizeof(*http));
    size_t *which = xcalloc(n, sizeof(*which)); /* http[i] is of calls[which[i]] */
    size_t sent = 0;
    for (size_t i = 0; i < n; i++) {
        calls[i].result = prepare(k, calls[i].request, &prepared[i], &calls[i].err);
        if (calls[i].result == ERR_NONE) {
            http[sent].request = &prepared[i].http;
            which[sent++] = i;
        }
    }
    if (sent > 0) {
        transport_perform_many(k->transport, http, sent);
    }
    for (size_t i = 0; i < sent; i++) {
        struct kube_call *call = &calls[which[i]];
        call->result = http[i].result;
        if (call->result == ERR_NONE) {
            call->result = finish(k, call->request, prepared[which[i]].generation,
                                  &http[i].response, &call->reply, &call->err);
        } else {
            call->err = http[i].err;
        }
    }
    for (size_t i = 0; i < n; i++) {
        prepared_release(&prepared[i]);
    }
    free(which);
    free(http);
    free(prepared);
}

enum err_kind kube_get(struct kube *k, const struct kube_gvr *gvr, const char *ns, const char *name,
                       struct mono deadline, struct cancel *cancel, struct kube_reply *ret,
                       struct err *err)
{
    struct kube_request req = {.method = "GET",
                               .gvr = gvr,
                               .ns = ns,
                               .name = name,
                               .deadline = deadline,
                               .cancel = cancel};
    return kube_do(k, &req, ret, err);
}
