/* One request of a child: who asks, what, and the reply's way back. */
#include "gate/gate_internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

/* The end of helm's connections is its exit; these are of one hop, or none of a child's business.
 * Accept-Encoding: replies are read here (records), and loopback is no place to spend CPU on gzip.
 */
static const char *const hop_headers[] = {
    "Connection",
    "Content-Length",
    "Transfer-Encoding",
    "Keep-Alive",
    "TE",
    "Trailer",
    "Upgrade",
    "Host",
    "Authorization",
    "Cookie",
    "Set-Cookie",
    "Expect",
    "Accept-Encoding",
    "Proxy-Connection",
    "Impersonate-User",
    "Impersonate-Uid",
    "Impersonate-Group",
    "Proxy-Authorization",
};

static bool is_of_one_hop(const char *name)
{
    for (size_t i = 0; i < sizeof(hop_headers) / sizeof(hop_headers[0]); i++) {
        if (strcasecmp(name, hop_headers[i]) == 0) {
            return true;
        }
    }
    return strncasecmp(name, "Impersonate-", strlen("Impersonate-")) == 0;
}

void *exchange_new(void *gate, const char *target, struct MHD_Connection *c)
{
    struct exchange *x = xcalloc(1, sizeof(*x));
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    *x = (struct exchange){.gate = gate,
                           .target = xstrdup(target),
                           .connection = c,
                           .client_fd = info != NULL ? info->connect_fd : 0,
                           .body = BUF_INIT(GATE_BODY_MAX)};
    return x;
}

static void give_room(struct exchange *x)
{
    if (x->reserved > 0) {
        MTX_GUARD(&x->gate->lock);
        x->gate->body_bytes -= x->reserved;
        x->reserved = 0;
        cond_broadcast(&x->gate->changed);
    }
}

void exchange_done(void *gate, struct MHD_Connection *c, void **state,
                   enum MHD_RequestTerminationCode code)
{
    (void)gate;
    (void)c;
    (void)code;
    struct exchange *x = take_ptr(state);
    if (x == NULL) {
        return;
    }
    give_room(x);
    buf_release(&x->body);
    exchange_forget_reply_headers(x);
    if (x->run != NULL) {
        gate_run_unref(x->run);
    }
    free(x->target);
    free(x);
}

const char *exchange_header(const struct exchange *x, const char *name)
{
    const char *value = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
    return value != NULL ? value : "";
}

/* ---- replies ---- */

void exchange_on_reply_header(void *ctx, const char *name, const char *value)
{
    struct exchange *x = ctx;
    int64_t length;
    if (strcasecmp(name, "Content-Length") == 0 && text_to_int64(value, 0, INT64_MAX, &length)) {
        x->reply_length = length;
    }
    if (is_of_one_hop(name) || x->reply_header_count == KUBE_FORWARD_HEADERS_MAX) {
        return;
    }
    x->reply_headers =
        xrealloc(x->reply_headers, (x->reply_header_count + 1) * sizeof(*x->reply_headers));
    x->reply_headers[x->reply_header_count++] =
        (struct http_header){.name = xstrdup(name), .value = xstrdup(value)};
}

void exchange_forget_reply_headers(struct exchange *x)
{
    for (size_t i = 0; i < x->reply_header_count; i++) {
        free((void *)(uintptr_t)x->reply_headers[i].name);
        free((void *)(uintptr_t)x->reply_headers[i].value);
    }
    free(x->reply_headers);
    x->reply_headers = NULL;
    x->reply_header_count = 0;
    x->reply_length = -1;
}

enum MHD_Result exchange_queue(struct exchange *x, int status, struct MHD_Response *r)
{
    must(r != NULL);
    for (size_t i = 0; i < x->reply_header_count; i++) {
        (void)MHD_add_response_header(r, x->reply_headers[i].name, x->reply_headers[i].value);
    }
    enum MHD_Result ok = MHD_queue_response(x->connection, (unsigned)status, r);
    MHD_destroy_response(r);
    return ok;
}

enum MHD_Result exchange_fail(struct exchange *x, int code, const char *reason, const char *message)
{
    struct buf text = BUF_INIT(4096);
    buf_add_str(&text, "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":"
                       "\"Failure\",\"message\":");
    buf_add_json_str(&text, message);
    buf_addf(&text, ",\"reason\":\"%s\",\"code\":%d}\n", reason, code);
    exchange_forget_reply_headers(x);
    exchange_on_reply_header(x, "Content-Type", "application/json");
    if (code == MHD_HTTP_SERVICE_UNAVAILABLE) {
        /* client-go tries again after this many seconds: nothing was done. */
        exchange_on_reply_header(x, "Retry-After", "1");
    }
    size_t len = text.len;
    return exchange_queue(
        x, code, MHD_create_response_from_buffer(len, buf_take(&text), MHD_RESPMEM_MUST_FREE));
}

enum MHD_Result exchange_fail_upstream(struct exchange *x, const struct err *err)
{
    bool no_effect = err->kind == ERR_UNAVAILABLE;
    return no_effect
               ? exchange_fail(x, MHD_HTTP_SERVICE_UNAVAILABLE, "ServiceUnavailable", err->msg)
               : exchange_fail(x, MHD_HTTP_GATEWAY_TIMEOUT, "Timeout", err->msg);
}

/* ---- requests ---- */

static enum MHD_Result keep_header(void *ctx, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    (void)kind;
    struct exchange *x = ctx;
    if (!is_of_one_hop(name) && x->header_count < KUBE_FORWARD_HEADERS_MAX) {
        x->headers[x->header_count++] =
            (struct http_header){.name = name, .value = value != NULL ? value : ""};
    }
    return MHD_YES;
}

/* Wait until the body has room among all that are held. */
static void take_room(struct exchange *x)
{
    struct gate *g = x->gate;
    const char *announced = exchange_header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    bool chunked = exchange_header(x, MHD_HTTP_HEADER_TRANSFER_ENCODING)[0] != '\0';
    int64_t length = 0;
    if (chunked || !text_to_int64(announced, 0, (int64_t)GATE_BODY_MAX, &length)) {
        length = chunked ? (int64_t)GATE_BODY_MAX : 0;
    }
    MTX_GUARD(&g->lock);
    while (g->body_bytes + (size_t)length > GATE_BODIES_MAX && !x->run->closed) {
        clock_wait(g->options.clock, &g->changed, &g->lock, MONO_NEVER);
    }
    x->reserved = (size_t)length;
    g->body_bytes += x->reserved;
}

/* The head of the request is there. */
static enum MHD_Result begin(struct exchange *x, const char *method)
{
    x->method = method;
    x->begun = true;
    x->reply_length = -1;
    const char *token = exchange_header(x, "Impersonate-User");
    x->run = gate_run_find(x->gate, token);
    if (x->run == NULL) {
        return exchange_fail(x, MHD_HTTP_UNAUTHORIZED, "Unauthorized",
                             "this is belay's gate for the helm that it runs itself");
    }
    (void)MHD_get_connection_values(x->connection, MHD_HEADER_KIND, keep_header, x);
    take_room(x);
    mtx_lock(&x->gate->lock);
    x->run->report.requests++;
    mtx_unlock(&x->gate->lock);
    metrics_add(x->gate->options.metrics, METRICS_GATE_REQUESTS, 1);
    return MHD_YES;
}

static enum MHD_Result respond(struct exchange *x)
{
    if (x->too_large) {
        return exchange_fail(x, MHD_HTTP_CONTENT_TOO_LARGE, "RequestEntityTooLarge",
                             "Request entity too large: limit is 3145728");
    }
    if (exchange_header(x, MHD_HTTP_HEADER_UPGRADE)[0] != '\0') {
        return exchange_fail(x, MHD_HTTP_NOT_IMPLEMENTED, "MethodNotAllowed",
                             "belay's gate passes no upgraded connections (exec, port-forward)");
    }
    struct fence_request r;
    fence_classify(x->method, x->target, NULL, &r);
    return r.kind == FENCE_READ ? exchange_read(x) : exchange_write(x);
}

enum MHD_Result exchange_handle(void *gate, struct MHD_Connection *c, const char *url,
                                const char *method, const char *version, const char *upload,
                                size_t *upload_len, void **state)
{
    (void)gate;
    (void)c;
    (void)url; /* decoded, without the query: the target is what counts */
    (void)version;
    struct exchange *x = *state;
    if (!x->begun) {
        return begin(x, method);
    }
    if (*upload_len > 0) {
        /* Swallowed to its end all the same: an answer in the middle of an upload is often lost. */
        if (!x->too_large) {
            buf_add(&x->body, upload, *upload_len);
            x->too_large = x->body.overflow;
        }
        *upload_len = 0;
        return MHD_YES;
    }
    return respond(x);
}
