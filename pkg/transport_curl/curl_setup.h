/* Preparing one hop of a call: its URL, its options, its callbacks. */
#ifndef BELAY_TRANSPORT_CURL_CURL_SETUP_H
#define BELAY_TRANSPORT_CURL_CURL_SETUP_H

#include "transport_curl/curl_call.h"

/* Take url apart, relative to base (NULL: it must be absolute). NULL, or what is wrong with it:
 * then *ret is all NULL. A userinfo that came by a redirect is dropped: a server does not choose
 * credentials. */
const char *call_url_parse(const char *url, const char *base, struct call_url *ret);
void call_url_copy(const struct call_url *from, struct call_url *to);
void call_url_release(struct call_url *u);
bool call_url_same_origin(const struct call_url *a, const struct call_url *b);

/* All options of c->easy for c->url. */
void call_setup_hop(struct call *c, struct mono now);

#endif
