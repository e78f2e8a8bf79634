/* What every helm asks the API server first, answered once for all of them: /version, discovery,
 * and the OpenAPI v3 documents, trimmed to what helm reads of them. Each answer is what the API
 * server says now: an entry is used only after its ETag was confirmed by If-None-Match, or if its
 * URL names the document's own hash. Thread-safe; no lock is held across I/O. */
#ifndef BELAY_APICACHE_APICACHE_H
#define BELAY_APICACHE_APICACHE_H

#include "kube/kube.h"

struct apicache;
struct apicache *apicache_new(struct kube *kube, struct clock *clock);
void apicache_free(struct apicache *c);

/* Is this target ("/openapi/v3/apis/apps/v1?hash=...") one that the cache answers? GET only. */
bool apicache_serves(const char *target);

struct apicache_request {
    const char *target;
    const char *accept;        /* "" if the client sent none */
    const char *if_none_match; /* "" if none */
    struct mono deadline;
    struct cancel *cancel; /* may be NULL */
};
struct apicache_body; /* shared bytes; counted */
struct apicache_reply {
    int status; /* 200, 304, or whatever the API server said */
    char content_type[128];
    char etag[256];
    char cache_control[64];
    const char *bytes; /* of body; valid until apicache_reply_release */
    size_t len;
    struct apicache_body *body;
    bool fetched;    /* bytes came from the API server for this one */
    size_t requests; /* that were made to the API server for it */
};
enum err_kind apicache_get(struct apicache *c, const struct apicache_request *req,
                           struct apicache_reply *ret, struct err *err) MUST_CHECK;
void apicache_reply_release(struct apicache_reply *r);

#endif
