/* The HTTP listener: /healthz /readyz /metrics and POST /api/v1/sync-git, by libmicrohttpd
 * (connection, memory and time limits are its options; the port is open to every pod). Listens on
 * HOST:PORT, :PORT (all addresses, IPv6 too where there is any) or [v6]:PORT (a wildcard takes IPv4
 * too). /healthz answers any method, as helm-operator's did. Handlers run on the server's own
 * thread and must not block. */
#ifndef BELAY_HTTPD_HTTPD_H
#define BELAY_HTTPD_HTTPD_H

#include "base/buf.h"
#include "base/err.h"

struct httpd;
struct httpd_options {
    const char *listen; /* "0.0.0.0:3030", ":3030", "[::]:3030", port 0 = any */
    /* Fill body; return the HTTP status. What metrics writes is sent whole or, if body overflowed,
     * not at all (500). */
    int (*healthz)(void *ctx, struct buf *body);
    int (*readyz)(void *ctx, struct buf *body);
    void (*metrics)(void *ctx, struct buf *body);
    void (*sync_git)(void *ctx); /* may be NULL: 501 */
    void *ctx;
};
/* options is copied, what it points to must live until httpd_stop. INVALID: a bad address (what is
 * legal); UNAVAILABLE: the port is taken, the address is not ours, no right. */
enum err_kind httpd_start(const struct httpd_options *options, struct httpd **ret,
                          struct err *err) MUST_CHECK;
int httpd_port(const struct httpd *h);
/* Closes all connections, waits for a handler that is under way. h may be NULL. */
void httpd_stop(struct httpd *h);

#endif
