/* effect/transport.h over libcurl: HTTP/1.1, one connection per calling thread and origin.
 *
 *   struct transport *t = transport_curl_new(&(struct transport_curl_options){.user_agent =
 * "belay/0.1.0"});
 *   ...transport_perform(t, ...) from any thread...
 *   transport_curl_free(t);
 *
 * Threads and connections: every thread that calls has a curl multi handle of its own, and with it
 * its own connections, so a heartbeat never shares a TCP connection with a watch (HTTP/2 clients
 * sat on dead ones for minutes: kubernetes#65012, client-go#374). They are closed when the thread
 * ends, and all of them by transport_curl_free. A callback (on_data) must not call the same
 * transport again on its own thread.
 *
 * Writes (all methods but GET and HEAD): libcurl sends a request again by itself when a reused
 * connection dies before a reply. That is forbidden here for writes: the second attempt is stopped
 * before its first byte and reported as ERR_UNKNOWN_OUTCOME, so a request is on the wire at most
 * once. GETs may be sent again; "sent" is then the first time, which can only widen what is
 * concluded from the reply's Date. A call that is given up closes its connection with SO_LINGER
 * {1,0}: bytes that still wait in the socket's buffer are thrown away, or they would land after a
 * partition heals (seen: one second after, for a process that stayed alive). TCP_USER_TIMEOUT of
 * the thread's connections follows the deadline of its newest call, 1 to 30 s.
 *
 * Redirects are followed for GET and HEAD only; a write gets the 3xx reply as it is. Authorization,
 * Cookie and userinfo stay with the first origin, and once a chain has left it they are not sent
 * again, even if it comes back.
 *
 * Errors name the URL without userinfo, query and fragment. SIGPIPE must be ignored by the process
 * (OpenSSL). */
#ifndef BELAY_TRANSPORT_CURL_TRANSPORT_CURL_H
#define BELAY_TRANSPORT_CURL_TRANSPORT_CURL_H

#include <stdbool.h>

#include "effect/transport.h"

enum transport_curl_proxy {
    TRANSPORT_CURL_PROXY_NONE, /* never, whatever the environment says: for the API server (case 17)
                                */
    TRANSPORT_CURL_PROXY_URL,  /* always options.proxy_url */
    TRANSPORT_CURL_PROXY_ENVIRONMENT, /* HTTPS_PROXY, HTTP_PROXY, NO_PROXY as Go reads them, so that
                                         belay and helm agree */
};

struct transport_curl_options {
    const char *user_agent; /* NULL: none is sent */
    /* Whom to trust: ca_data (PEM) wins over ca_file; with neither the system's store. A file is
     * read again, at the latest five minutes after it changed. */
    const char *ca_file;
    const char *ca_data;
    /* Client certificate: both data (PEM) or both files; files are read for each new connection, so
     * they may rotate. */
    const char *cert_file;
    const char *key_file;
    const char *cert_data;
    const char *key_data;
    const char *tls_server_name; /* for SNI and the certificate's check instead of the URL's host;
                                    NULL: the URL's */
    bool insecure;               /* do not check the server's certificate */
    enum transport_curl_proxy proxy;
    const char
        *proxy_url; /* with PROXY_URL: "http://[user:password@]host:port", https and socks5 too */
    /* Offer Accept-Encoding: gzip for replies that are not streamed. Not for charts: a server that
     * labels a .tgz with Content-Encoding: gzip would get it unpacked here, and its digest would
     * not match (helm turns it off as well). */
    bool accept_gzip;
};

/* Options are copied; the environment is read here, once. Owner: the caller. */
struct transport *transport_curl_new(const struct transport_curl_options *options);
/* Use another client certificate for connections made from now on (PEM, both or NULL for none). Any
 * thread. */
void transport_curl_set_client_cert(struct transport *t, const char *cert_data,
                                    const char *key_data);
/* No call may be running. Other threads that used it may live on. NULL is allowed. */
void transport_curl_free(struct transport *t);

#endif
