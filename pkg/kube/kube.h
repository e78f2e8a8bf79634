/* A small typed client for the Kubernetes API over effect/transport.h.
 *
 * Threads: any thread may call any function on one struct kube. Replies' Date headers feed the
 * server clock. Error kinds, by HTTP status (api-conventions.md): 400/405/406/413/415/422 INVALID,
 * 401/403 DENIED, 404 NOT_FOUND, 409 CONFLICT (reason AlreadyExists: EXISTS), 410 GONE, 429
 * THROTTLED (retry_after_ms). Any 5xx, or no complete reply: a GET gives UNAVAILABLE or TIMEOUT,
 * anything that writes gives UNKNOWN_OUTCOME (6 of 29 "504 Timeout" had been committed). err.code =
 * the HTTP status, err.msg = the Status' own message. 401: credentials are read afresh and a GET is
 * tried once more (a write too: 401 is decided before any effect). No other retry. */
#ifndef BELAY_KUBE_KUBE_H
#define BELAY_KUBE_KUBE_H

#include <jansson.h>
#include <stdbool.h>

#include "effect/clock.h"
#include "effect/proc.h"
#include "effect/transport.h"
#include "timeval/timeval.h"

/* Where the API is and who we are; see kubeconfig.h for how it is found. Immutable but for rotating
 * credentials. */
struct kube_config;

struct kube_gvr {
    const char *group; /* "" = core */
    const char *version;
    const char *resource; /* plural */
    bool namespaced;
};
extern const struct kube_gvr KUBE_HELMRELEASES, KUBE_SECRETS, KUBE_CONFIGMAPS, KUBE_EVENTS,
    KUBE_CRDS, KUBE_NAMESPACES, KUBE_LEASES;

struct kube;
struct kube_options {
    struct transport *transport;
    struct clock *clock;
    struct kube_config *config; /* borrowed */
    const char *user_agent;     /* "belay/VERSION" */
};
struct kube *kube_new(const struct kube_options *options);
void kube_free(struct kube *k);

/* Accept values. A PartialObjectMetadata request that is answered with another kind is refused with
 * ERR_INVALID: the payload would have come (there is no fallback type in Accept). */
#define KUBE_ACCEPT_JSON          "application/json"
#define KUBE_ACCEPT_METADATA      "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
#define KUBE_ACCEPT_METADATA_LIST "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
#define KUBE_MERGE_PATCH          "application/merge-patch+json"
#define KUBE_JSON_PATCH           "application/json-patch+json"

struct kube_request {
    const char *method;
    const struct kube_gvr *gvr;
    const char *ns;           /* NULL or "" = cluster-wide or all namespaces */
    const char *name;         /* NULL = the collection */
    const char *subresource;  /* NULL = none; "status" */
    const char *query;        /* "a=b&c=d", already encoded; NULL = none */
    const char *raw_path;     /* instead of gvr/ns/name, e.g. "/version"; NULL otherwise */
    const json_t *body;       /* borrowed; NULL = none */
    const char *content_type; /* of the body; NULL = application/json */
    const char *accept;       /* NULL = KUBE_ACCEPT_JSON */
    struct mono deadline;
    int64_t idle_ms;
    struct cancel *cancel;
    /* Raw streaming (watch): see http_request.on_data. The reply then has no object. */
    bool (*on_data)(void *ctx, const char *bytes, size_t len);
    void *ctx;
    bool raw_body; /* keep the reply as text in kube_reply.text instead of parsing it (lists are
                      split by the caller) */
};

struct kube_reply {
    json_t *object; /* new reference or NULL */
    char *text;     /* if raw_body */
    size_t text_len;
    int status;
    struct mono sent, received;
    bool have_date; /* a Date that is the server's own */
    int64_t date_ns;
};
#define KUBE_REPLY_INIT                                                                            \
    {                                                                                              \
        0                                                                                          \
    }
void kube_reply_release(struct kube_reply *r);

enum err_kind kube_do(struct kube *k, const struct kube_request *req, struct kube_reply *ret,
                      struct err *err) MUST_CHECK;

struct kube_call {
    const struct kube_request *request;
    struct kube_reply reply; /* filled if result == ERR_NONE; release it */
    struct err err;
    enum err_kind result;
};
/* All at once, see transport_perform_many. No 401 retry inside. */
void kube_do_many(struct kube *k, struct kube_call *calls, size_t n);

/* Short form of the commonest call: GET one object afresh (no resourceVersion: a quorum read). */
enum err_kind kube_get(struct kube *k, const struct kube_gvr *gvr, const char *ns, const char *name,
                       struct mono deadline, struct cancel *cancel, struct kube_reply *ret,
                       struct err *err) MUST_CHECK;

/* The API server's clock as an interval; false before the first reply. */
bool kube_server_time(struct kube *k, struct srvtime *ret);

/* "https://host:port" */
const char *kube_server(const struct kube *k);

#endif
