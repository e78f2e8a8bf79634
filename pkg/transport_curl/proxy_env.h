/* Which proxy the environment asks for, as Go's golang.org/x/net/http/httpproxy reads it: helm is a
 * Go program, and belay and helm must agree (case 17). libcurl's own reading differs: it takes
 * ALL_PROXY, refuses blanks beside commas in some places and sends loopback hosts through the
 * proxy. Pure but for proxy_env_read. */
#ifndef BELAY_TRANSPORT_CURL_PROXY_ENV_H
#define BELAY_TRANSPORT_CURL_PROXY_ENV_H

#include <stdbool.h>

struct proxy_env {
    char *http_proxy; /* "" = none; all three are owned */
    char *https_proxy;
    char *no_proxy;
};

/* Upper-case names win over lower-case ones, as in Go. Owner of the strings: the caller
 * (proxy_env_release). */
void proxy_env_read(struct proxy_env *env);
void proxy_env_release(struct proxy_env *env);

/* The proxy for a request to scheme://host:port, "" for none. Borrowed from env. host without
 * brackets. */
const char *proxy_env_for(const struct proxy_env *env, const char *scheme, const char *host,
                          const char *port);

/* Does the comma list no_proxy cover host:port? Names match themselves and what is below them,
 * ".name" and "*.name" only what is below; addresses, CIDR blocks, ":port" and "*" as in Go; blanks
 * around entries do not count. */
bool proxy_env_is_exempt(const char *no_proxy, const char *host, const char *port);

#endif
