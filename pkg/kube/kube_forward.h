/* Requests that somebody else made, sent on with our credentials: what pkg/gate does for helm. The
 * bytes pass as they are; only Authorization is ours. Replies' Date headers feed the server clock
 * as everywhere. A 401 makes the credentials be read afresh and is tried once more (it is decided
 * before any effect). Threads: any; a stream belongs to the thread that opened it. */
#ifndef BELAY_KUBE_KUBE_FORWARD_H
#define BELAY_KUBE_KUBE_FORWARD_H

#include "kube/kube.h"

#define KUBE_FORWARD_HEADERS_MAX 32

struct kube_forward {
    const char *method;
    const char
        *target; /* path and query as they stand in the request line: "/api/v1/pods?limit=5" */
    const struct http_header *headers; /* no Authorization, Host, Connection, Content-Length or
                                          Transfer-Encoding among them */
    size_t header_count;
    const char *body; /* NULL: none */
    size_t body_len;
    size_t body_max; /* of the reply, for kube_forward; as in http_request */
    /* As in http_request. */
    struct mono deadline;
    int64_t idle_ms;
    struct cancel *cancel;
    struct mono (*deadline_now)(void *ctx);
    void (*on_header)(void *ctx, const char *name, const char *value);
    void *ctx;
    int hangup_fd;
};

struct kube_forward_date {
    bool have; /* a Date that is the server's own */
    int64_t ns;
};

/* The whole reply, with any status. INVALID: a target that is no absolute path, or that would not
 * arrive as it stands (a fragment, a "." or ".." segment, blanks, control bytes). Errors as for
 * transport_perform. on_header is called once the reply is known to be the last one, before this
 * function returns. */
enum err_kind kube_forward(struct kube *k, const struct kube_forward *req,
                           struct http_response *ret, struct kube_forward_date *ret_date,
                           struct err *err) MUST_CHECK;

/* The reply's head now, its body by kube_stream_read; see transport_open. What *req points to, and
 * its callbacks' ctx, are borrowed until the close; *req itself is not. */
struct kube_stream;
enum err_kind kube_stream_open(struct kube *k, const struct kube_forward *req,
                               struct http_response *ret_head, struct kube_forward_date *ret_date,
                               struct kube_stream **ret, struct err *err) MUST_CHECK;
enum err_kind kube_stream_read(struct kube_stream *s, char *bytes, size_t cap, size_t *ret_len,
                               struct err *err) MUST_CHECK;
/* NULL is allowed. */
void kube_stream_close(struct kube_stream *s);

#endif
