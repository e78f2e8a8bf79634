/* What one thread keeps for one transport: a multi handle with its connections, a pool of easy
 * handles, its sockets.
 *
 * Lifetime: a slot is made at the thread's first call and ends with the thread or with the
 * transport, whichever comes first. Only its own thread uses it in between, so it needs no lock. */
#ifndef BELAY_TRANSPORT_CURL_CURL_SLOTS_H
#define BELAY_TRANSPORT_CURL_CURL_SLOTS_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct curl_slot {
    CURLM *multi;
    CURL **easies; /* reused from call to call: each keeps its TLS sessions */
    size_t easy_count;
    int *sockets; /* open ones, so that their timeouts can follow the deadline */
    size_t socket_count, socket_cap;
    int64_t user_timeout_ms; /* TCP_USER_TIMEOUT of sockets, open and to come */
    bool busy;               /* in a call: calling again from a callback is a bug */
    bool aborting;           /* sockets that close now throw their unsent bytes away */
};

/* The calling thread's slot for owner, made if there is none. */
struct curl_slot *curl_slot_get(const void *owner);
/* At least n easy handles in the pool. */
void curl_slot_reserve(struct curl_slot *slot, size_t n);
/* Close everything that any thread holds for owner; none may be in a call. */
void curl_slots_drop(const void *owner);

/* TCP_USER_TIMEOUT of the slot's sockets starts at 30 s with each call, and a call with less time
 * lowers it. */
void curl_slot_reset_user_timeout(struct curl_slot *slot);
void curl_slot_lower_user_timeout(struct curl_slot *slot, int64_t ms);
/* For CURLOPT_OPENSOCKETFUNCTION and CURLOPT_CLOSESOCKETFUNCTION; clientp is the slot. */
curl_socket_t curl_slot_open_socket(void *clientp, curlsocktype purpose,
                                    struct curl_sockaddr *address);
int curl_slot_close_socket(void *clientp, curl_socket_t fd);

#endif
