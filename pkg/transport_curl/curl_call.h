/* One HTTP call on one easy handle, over all its redirects: setting up, collecting the reply,
 * judging how it ended. The loop that drives it is in transport_curl.c. */
#ifndef BELAY_TRANSPORT_CURL_CURL_CALL_H
#define BELAY_TRANSPORT_CURL_CURL_CALL_H

#include <curl/curl.h>

#include "base/mtx.h"
#include "transport_curl/curl_slots.h"
#include "effect/transport.h"
#include "transport_curl/proxy_env.h"
#include "transport_curl/transport_curl.h"

struct transport_curl {
    struct transport base;
    struct transport_curl_options options; /* all strings owned, but for the two below */
    struct proxy_env proxy_env;
    struct mtx lock;
    char *cert_data; /* guarded by lock; NULL if none */
    char *key_data;  /* guarded by lock */
};

/* A URL taken apart, without userinfo; all owned. */
struct call_url {
    char *whole;   /* what libcurl gets */
    char *shown;   /* for errors: no query, no fragment */
    char *scheme;  /* lower case */
    char *host;    /* without brackets */
    char *port;    /* always a number */
    char *userpwd; /* from its userinfo, decoded; NULL if none */
};

enum call_state { CALL_RUNNING, CALL_NEXT_HOP, CALL_DONE };

struct call {
    struct transport_curl *t;
    struct curl_slot *slot;
    CURL *easy;
    const struct http_request *req;
    struct http_response *res; /* filled as it comes */
    struct err *err;
    enum err_kind result; /* valid when done */
    bool done;
    bool in_multi;

    struct call_url url; /* of this hop */
    struct call_url first;
    bool left_origin; /* no credentials any more */
    int hops;
    char *location; /* of this hop's reply, NULL if none */
    struct curl_slist *headers, *connect_to;
    char why[CURL_ERROR_SIZE];

    bool is_write;
    int sends;          /* how often this hop's request was begun */
    bool left_us;       /* of any hop: bytes may be on the wire */
    bool headers_done;  /* the final status line and its headers are in */
    bool over_limit;    /* the body passed body_max */
    bool stopped;       /* on_data said so */
    bool resend_denied; /* libcurl wanted to send a write again */
    bool late;          /* the deadline passed just before the request would have been sent */
    struct mono last_byte;
    curl_off_t uploaded; /* at last_byte */
    struct cancel_waker waker;
    int hangup; /* an epoll that is readable once the peer of hangup_fd has closed it; -1: none */

    struct buf *pull; /* the body waits here for a reader who takes it piece by piece; NULL: none */
    bool paused;      /* pull is full: libcurl keeps the rest, and reads no more */
};

/* Begin: check the URL, set up the first hop. False: it is done already, with an error. res, err
 * and pull (NULL: the reply is not streamed) are the caller's. */
bool call_init(struct call *c, struct transport_curl *t, struct curl_slot *slot, CURL *easy,
               const struct http_request *req, struct http_response *res, struct buf *pull,
               struct err *err);
/* Free everything but what res and err hold; the handle must be out of the multi. */
void call_release(struct call *c);

/* The earlier one of the request's two deadlines, as of now. */
struct mono call_deadline(const struct call *c);

/* libcurl is through with this hop. The handle is out of the multi. */
enum call_state call_hop_ended(struct call *c, CURLcode rc);
/* Must it be given up at now? Then it is done, with the error. Else *ret_due_ms is when to ask
 * again at the latest. */
bool call_overdue(struct call *c, struct mono now, int64_t *ret_due_ms);

#endif
