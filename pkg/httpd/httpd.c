#include "httpd/httpd.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

#define CONNECTIONS_MAX        32
#define CONNECTIONS_PER_IP_MAX 16
#define TIMEOUT_S              15
#define MEMORY_PER_CONNECTION  (32U << 10)
#define BODY_BYTES_MAX         (32U << 20) /* /metrics of tens of thousands of releases */

struct httpd {
    struct httpd_options options;
    struct MHD_Daemon *daemon;
    int port;
};

static enum MHD_Result reply(struct MHD_Connection *c, int status, const struct buf *body, const char *allow)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(body->len, (void *)(uintptr_t)buf_str(body), MHD_RESPMEM_MUST_COPY);
    if (r == NULL) {
        return MHD_NO;
    }
    (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    if (allow != NULL) {
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, allow);
    }
    enum MHD_Result ok = MHD_queue_response(c, (unsigned)status, r);
    MHD_destroy_response(r);
    return ok;
}

static int sync_git(const struct httpd *h, struct buf *body)
{
    if (h->options.sync_git == NULL) {
        buf_add_str(body, "git charts are not served yet\n");
        return MHD_HTTP_NOT_IMPLEMENTED;
    }
    h->options.sync_git(h->options.ctx);
    buf_add_str(body, "OK\n");
    return MHD_HTTP_OK;
}

/* Fill body; returns the status. *ret_allow is set for 405. */
static int route(const struct httpd *h, const char *method, const char *path, struct buf *body, const char **ret_allow)
{
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (strcmp(path, "/healthz") == 0) {
        return h->options.healthz(h->options.ctx, body);
    }
    bool post_path = strcmp(path, "/api/v1/sync-git") == 0;
    bool get_path = strcmp(path, "/readyz") == 0 || strcmp(path, "/metrics") == 0;
    if (!post_path && !get_path) {
        buf_add_str(body, "not found: /healthz /readyz /metrics, POST /api/v1/sync-git\n");
        return MHD_HTTP_NOT_FOUND;
    }
    if (post_path ? strcmp(method, "POST") != 0 : !get) {
        *ret_allow = post_path ? "POST" : "GET, HEAD";
        buf_addf(body, "method not allowed: %s\n", *ret_allow);
        return MHD_HTTP_METHOD_NOT_ALLOWED;
    }
    if (post_path) {
        return sync_git(h, body);
    }
    if (strcmp(path, "/readyz") == 0) {
        return h->options.readyz(h->options.ctx, body);
    }
    h->options.metrics(h->options.ctx, body);
    return MHD_HTTP_OK;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                  const char *upload, size_t *upload_len, void **state)
{
    static int seen; /* an address only */
    (void)version;
    (void)upload;
    if (*state == NULL) {
        *state = &seen; /* headers are there; the body comes, and is dropped */
        return MHD_YES;
    }
    if (*upload_len != 0) {
        *upload_len = 0;
        return MHD_YES;
    }
    struct buf body = BUF_INIT(BODY_BYTES_MAX);
    const char *allow = NULL;
    int status = route(cls, method, url, &body, &allow);
    enum MHD_Result ok = reply(c, status, &body, allow);
    buf_release(&body);
    return ok;
}

/* "HOST:PORT", ":PORT", "[V6]:PORT" into addr. */
static bool parse_listen(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len)
{
    const char *colon = strrchr(text, ':');
    int64_t port = 0;
    if (colon == NULL || !text_to_int64(colon + 1, 0, 65535, &port)) {
        return false;
    }
    _cleanup_(free_cstr) char *host = xstrndup(text, (size_t)(colon - text));
    size_t len = strlen(host);
    bool bracketed = len >= 2 && host[0] == '[' && host[len - 1] == ']';
    if (bracketed) {
        host[len - 1] = '\0';
    }
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    bool is_v6 = bracketed && inet_pton(AF_INET6, host + 1, &v6.sin6_addr) == 1;
    bool is_v4 = !bracketed && (host[0] == '\0' || inet_pton(AF_INET, host, &v4.sin_addr) == 1);
    if (is_v6) {
        memcpy(ret, &v6, sizeof(v6));
        *ret_len = sizeof(v6);
    } else if (is_v4) {
        memcpy(ret, &v4, sizeof(v4));
        *ret_len = sizeof(v4);
    }
    return is_v6 || is_v4;
}

enum err_kind httpd_start(const struct httpd_options *options, struct httpd **ret, struct err *err)
{
    struct sockaddr_storage addr = {0};
    socklen_t addr_len = 0;
    if (!parse_listen(options->listen, &addr, &addr_len)) {
        return err_set(err, ERR_INVALID, "\"%s\" is not legal: use HOST:PORT with an IP address, :PORT or [V6]:PORT",
                       options->listen);
    }
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO;
    flags |= addr.ss_family == AF_INET6 ? MHD_USE_IPv6 | MHD_USE_DUAL_STACK : 0U;
    struct httpd *h = xcalloc(1, sizeof(*h));
    h->options = *options;
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&addr,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
                                 (unsigned)CONNECTIONS_PER_IP_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_PER_CONNECTION, MHD_OPTION_END);
    const union MHD_DaemonInfo *info = h->daemon != NULL ? MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT) : NULL;
    if (info == NULL) {
        free(h);
        return err_set(err, ERR_UNAVAILABLE, "cannot listen on %s: the address is taken or not ours", options->listen);
    }
    h->port = info->port;
    *ret = h;
    return ERR_NONE;
}

int httpd_port(const struct httpd *h)
{
    return h->port;
}

void httpd_stop(struct httpd *h)
{
    if (h == NULL) {
        return;
    }
    MHD_stop_daemon(h->daemon);
    free(h);
}
