/* The loop: drives calls on the calling thread's multi handle. */
#ifndef BELAY_TRANSPORT_CURL_CURL_LOOP_H
#define BELAY_TRANSPORT_CURL_CURL_LOOP_H

#include "transport_curl/curl_call.h"

/* A call that call_init has begun: from now on libcurl works at it, and its cancel wakes the loop.
 */
void loop_add(struct call *c);
/* The end of that; a call that is not done is given up, and its connection reset. Nothing happens
 * to a call that was never added. */
void loop_remove(struct call *c);
/* Libcurl failed at this hop outside of loop_step. */
void loop_hop_failed(struct call *c, CURLcode rc);

/* Do what can be done without waiting. Returns how long to wait then, -1 if all calls are done. */
int64_t loop_step(struct curl_slot *slot, struct call *calls, size_t n);
/* Until something happens to one of the calls, or wait_ms passed. */
void loop_wait(struct curl_slot *slot, const struct call *calls, size_t n, int64_t wait_ms);

#endif
