/* What the files of pkg/gate share. */
#ifndef BELAY_GATE_GATE_INTERNAL_H
#define BELAY_GATE_GATE_INTERNAL_H

#include <microhttpd.h>

#include "apicache/apicache.h"
#include "base/cancel.h"
#include "base/strmap.h"
#include "gate/gate.h"
#include "kube/kube_forward.h"

/* A request's body: the API server takes 3 MiB. */
#define GATE_BODY_MAX (3U << 20)
/* Of a reply to a write, which is held whole. */
#define GATE_REPLY_MAX (4U << 20)
/* Bodies of all children that are held at the same time; who comes later waits. */
#define GATE_BODIES_MAX (64U << 20)
#define GATE_TOKEN_LEN  33

struct gate {
    struct gate_options options;
    struct apicache *cache;
    struct MHD_Daemon *daemon;
    int port;
    struct mtx lock;
    struct cond changed;   /* a run's forwarded writes, or the bodies held, became fewer */
    struct gate_run *runs; /* guarded by lock, as is all below */
    size_t body_bytes;
};

struct gate_run {
    struct gate *gate;
    struct held *held; /* only under gate->lock while not closed, or while counted in active */
    char token[GATE_TOKEN_LEN];
    struct cancel cancel;  /* raised at the dismissal: ends reads */
    struct gate_run *next; /* guarded by gate->lock, as is all below */
    struct fence fence;
    size_t refs;   /* the registry's, and one for each exchange */
    size_t active; /* writes being judged or forwarded */
    bool closed;
    struct strmap versions; /* path -> char *: resourceVersion of objects as helm read them */
    struct gate_report report;
};

/* One request of a child and its reply. Used by its connection's thread only. */
struct exchange {
    struct gate *gate;
    struct gate_run *run; /* a reference; NULL until it is known who asks */
    char *target;         /* as in the request line */
    const char *method;   /* libmicrohttpd's, valid for the exchange */
    struct MHD_Connection *connection;
    int client_fd;
    bool begun, too_large;
    struct buf body;
    size_t reserved; /* of gate->body_bytes */
    struct http_header headers[KUBE_FORWARD_HEADERS_MAX];
    size_t header_count;
    struct http_header *reply_headers; /* heap, as are their texts */
    size_t reply_header_count;
    int64_t reply_length; /* Content-Length of the reply, -1: none */
    struct mono hard;     /* of a write: the lock's hard deadline as last asked */
};

/* ---- gate.c ---- */

struct gate_run *gate_run_find(struct gate *g, const char *token); /* a reference, or NULL */
struct gate_run *gate_run_ref(struct gate_run *run);
void gate_run_unref(struct gate_run *run);

/* ---- exchange.c ---- */

void *exchange_new(void *gate, const char *target, struct MHD_Connection *c);
enum MHD_Result exchange_handle(void *gate, struct MHD_Connection *c, const char *url,
                                const char *method, const char *version, const char *upload,
                                size_t *upload_len, void **state);
void exchange_done(void *gate, struct MHD_Connection *c, void **state,
                   enum MHD_RequestTerminationCode code);
/* Headers of the request by name, "" if absent. */
const char *exchange_header(const struct exchange *x, const char *name);
/* For kube_forward: http_request's callbacks; ctx = struct exchange *. */
void exchange_on_reply_header(void *ctx, const char *name, const char *value);
void exchange_forget_reply_headers(struct exchange *x);
/* Put the reply's headers and its Content-Type on r, queue it, and give r up. */
enum MHD_Result exchange_queue(struct exchange *x, int status, struct MHD_Response *r);
/* A metav1.Status of our own. */
enum MHD_Result exchange_fail(struct exchange *x, int code, const char *reason,
                              const char *message);
/* The API server could not be asked, as an answer that client-go knows. */
enum MHD_Result exchange_fail_upstream(struct exchange *x, const struct err *err);

/* ---- read.c, write.c ---- */

enum MHD_Result exchange_read(struct exchange *x);
enum MHD_Result exchange_write(struct exchange *x);
/* The reply's Date against the lease; latches and kills if it is out. */
void exchange_note_date(struct exchange *x, const struct kube_forward_date *date, struct mono sent);
/* metadata.resourceVersion of a JSON object's text, under its path; for "changed". */
void exchange_note_version(struct exchange *x, const char *text, size_t len);

#endif
