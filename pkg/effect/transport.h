/* HTTP as an interface. The product uses transport_curl (HTTP/1.1, one connection per calling
 * thread and origin), the simulator its own network.
 *
 * Threads: any thread may call; each call uses the calling thread's own connection. Blocks until
 * the reply is complete, the deadline passes, or cancel is raised. */
#ifndef BELAY_EFFECT_TRANSPORT_H
#define BELAY_EFFECT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"
#include "timeval/timeval.h"

struct http_header {
    const char *name;
    const char *value;
};

struct http_request {
    const char *method; /* "GET", "PATCH", ... */
    const char *url;    /* absolute, http or https */
    const struct http_header *headers;
    size_t header_count;
    const char *body; /* NULL: none */
    size_t body_len;
    struct mono deadline; /* of the whole call; MONO_NEVER only with idle_ms > 0 or deadline_now */
    int64_t
        idle_ms; /* > 0: ERR_TIMEOUT (UNKNOWN_OUTCOME for a write) after this long without a byte */
    size_t
        body_max; /* cap of the reply's body, or of one on_data-less reply; 0: LIMIT_BODY_BYTES */
    struct cancel *cancel; /* may be NULL */
    bool follow_redirects; /* at most 5; credentials (Authorization, userinfo) go to the first
                              origin only */
    /* If set, the body of a 2xx reply is handed over piece by piece and not collected; false ends
     * the call with ERR_CANCELLED. Bodies of other replies are collected as usual. Runs on the
     * calling thread. */
    bool (*on_data)(void *ctx, const char *bytes, size_t len);
    void *ctx;
    const char *userpwd; /* "user:password" for HTTP basic authentication, same rule as for
                            redirects; may be NULL */
    /* For callers that forward (pkg/gate); all may be absent, ctx as above. */
    /* A deadline that moves (a lease that is renewed): asked before each step that may send, and at
     * least once a second while waiting. It counts beside deadline, the earlier one wins. */
    struct mono (*deadline_now)(void *ctx);
    /* Each header of the final reply, as it came; its body is then not unpacked either. Not
     * together with follow_redirects. */
    void (*on_header)(void *ctx, const char *name, const char *value);
    int hangup_fd; /* > 0: a socket; once its peer has closed it, a GET or HEAD ends with
                      ERR_CANCELLED. Writes wait for their answer all the same. */
};

struct http_response {
    int status;
    struct buf body;
    /* From the reply's headers; "" if absent. */
    char date[64];
    char etag[256];
    char last_modified[64];
    char content_type[128];
    char retry_after[32];
    bool date_unreliable; /* the reply had Age, Warning or X-Cache: its Date may be a cache's */
    struct mono sent;     /* just before the request was handed to the wire */
    struct mono received; /* when the reply's headers had arrived */
};

#define HTTP_RESPONSE_INIT                                                                         \
    {                                                                                              \
        .status = 0, .body = BUF_INIT(1)                                                           \
    }
void http_response_release(struct http_response *r);

struct transport;
struct http_call {
    const struct http_request *request;
    struct http_response response; /* filled if result == ERR_NONE; owner: the caller */
    struct err err;
    enum err_kind result;
};

struct http_stream; /* implementation's own: a reply that is read piece by piece */

struct transport_ops {
    enum err_kind (*perform)(struct transport *t, const struct http_request *req,
                             struct http_response *ret, struct err *err);
    void (*perform_many)(struct transport *t, struct http_call *calls, size_t n);
    enum err_kind (*open)(struct transport *t, const struct http_request *req,
                          struct http_response *ret_head, struct http_stream **ret,
                          struct err *err);
    enum err_kind (*read)(struct http_stream *s, char *bytes, size_t cap, size_t *ret_len,
                          struct err *err);
    void (*close)(struct http_stream *s);
};
struct transport {
    const struct transport_ops *ops;
};

/* ERR_NONE: a complete reply with any status. Errors: ERR_UNAVAILABLE (certainly no effect: no
 * connection, TLS refused, or a GET that failed), ERR_UNKNOWN_OUTCOME (method other than GET/HEAD,
 * bytes may have left us, no complete reply), ERR_TIMEOUT (a GET's deadline), ERR_CANCELLED (a GET,
 * or a write that never left), ERR_LIMIT (reply over body_max). In doubt it is ERR_UNKNOWN_OUTCOME.
 * *ret is owned by the caller: http_response_release. */
static inline enum err_kind transport_perform(struct transport *t, const struct http_request *req,
                                              struct http_response *ret, struct err *err)
{
    return t->ops->perform(t, req, ret, err);
}
/* All at once, each on a connection of its own; returns when every call has its result. For the
 * heartbeat: one slow renewal costs the others nothing but its own deadline. */
static inline void transport_perform_many(struct transport *t, struct http_call *calls, size_t n)
{
    t->ops->perform_many(t, calls, n);
}

/* A reply of any size, pulled by its reader: open blocks until the head is there (body of *ret_head
 * stays empty), read until at least a byte is, *ret_len = 0 at the end of the body. What the reader
 * does not take waits at the server: at most TRANSPORT_STREAM_BYTES are held here. A stream belongs
 * to the thread that opened it, which makes no other call on the same transport before the close;
 * *req and what it points to are borrowed until then. Any status is streamed. on_data, body_max and
 * follow_redirects are not used, the body is not unpacked, and idle_ms counts only while the reader
 * waits. Errors as for transport_perform; a body that is cut gives its error after its last byte.
 * close gives up what was not read. */
#define TRANSPORT_STREAM_BYTES (64U << 10)
static inline enum err_kind transport_open(struct transport *t, const struct http_request *req,
                                           struct http_response *ret_head, struct http_stream **ret,
                                           struct err *err)
{
    return t->ops->open(t, req, ret_head, ret, err);
}
static inline enum err_kind transport_read(struct transport *t, struct http_stream *s, char *bytes,
                                           size_t cap, size_t *ret_len, struct err *err)
{
    return t->ops->read(s, bytes, cap, ret_len, err);
}
static inline void transport_close(struct transport *t, struct http_stream *s)
{
    t->ops->close(s);
}

#endif
