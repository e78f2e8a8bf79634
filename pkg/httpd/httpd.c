/* What an outsider can hold here is bounded on every side: connections, connections of one address,
 * bytes of a request's headers, seconds without progress, and bytes of replies that are not read.
 * One thread serves all by epoll, so a slow client costs the others nothing. */
#include "httpd/httpd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

#define CONNECTIONS_MAX        32
#define CONNECTIONS_PER_IP_MAX 16
#define TIMEOUT_S              15
#define MEMORY_PER_CONNECTION  (32U << 10)
#define BODY_BYTES_MAX         (32U << 20)  /* one reply: /metrics of some 8000 releases */
#define UNREAD_BYTES_MAX       (128U << 20) /* of all replies that clients have not taken yet */
#define SHORT_TYPE             "text/plain; charset=utf-8"
#define METRICS_TYPE           "text/plain; version=0.0.4; charset=utf-8"

struct httpd {
    struct httpd_options options;
    struct MHD_Daemon *daemon;
    int port;
    atomic_size_t unread_bytes; /* the last of them may go in httpd_stop's thread */
};

/* A reply on its way. */
struct unread {
    struct httpd *httpd;
    char *bytes;
    size_t len;
};

struct answer {
    int status;
    const char *type;
    const char *allow; /* for 405; NULL otherwise */
    struct buf body;
};

static void free_unread(void *cls)
{
    struct unread *u = cls;
    (void)atomic_fetch_sub(&u->httpd->unread_bytes, u->len);
    free(u->bytes);
    free(u);
}

/* Takes the body. */
static enum MHD_Result reply(struct httpd *h, struct MHD_Connection *c, struct answer *a)
{
    struct unread *u = xcalloc(1, sizeof(*u));
    *u = (struct unread){.httpd = h, .len = a->body.len};
    u->bytes = buf_take(&a->body);
    (void)atomic_fetch_add(&h->unread_bytes, u->len);
    struct MHD_Response *r =
        MHD_create_response_from_buffer_with_free_callback_cls(u->len, u->bytes, free_unread, u);
    if (r == NULL) {
        free_unread(u);
        return MHD_NO;
    }
    (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, a->type);
    if (a->allow != NULL) {
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, a->allow);
    }
    enum MHD_Result ok = MHD_queue_response(c, (unsigned)a->status, r);
    MHD_destroy_response(r);
    return ok;
}

static void sync_git(const struct httpd *h, struct answer *a)
{
    if (h->options.sync_git == NULL) {
        a->status = MHD_HTTP_NOT_IMPLEMENTED;
        buf_add_str(&a->body, "git charts are not served yet\n");
        return;
    }
    h->options.sync_git(h->options.ctx);
    buf_add_str(&a->body, "OK\n");
}

/* Half an exposition would read as if the rest were gone, so it is all or nothing. */
static void metrics(const struct httpd *h, struct answer *a)
{
    h->options.metrics(h->options.ctx, &a->body);
    a->type = METRICS_TYPE;
    const char *why = NULL;
    if (a->body.overflow) {
        a->status = MHD_HTTP_INTERNAL_SERVER_ERROR;
        why = "the answer is too large\n";
    } else if (atomic_load(&h->unread_bytes) + a->body.len > UNREAD_BYTES_MAX) {
        a->status = MHD_HTTP_SERVICE_UNAVAILABLE;
        why = "too many answers that nobody reads\n";
    }
    if (why != NULL) {
        buf_reset(&a->body);
        buf_add_str(&a->body, why);
        a->type = SHORT_TYPE;
    }
}

static void route(const struct httpd *h, const char *method, const char *path, struct answer *a)
{
    if (strcmp(path, "/healthz") == 0) {
        a->status = h->options.healthz(h->options.ctx, &a->body);
        return;
    }
    bool is_sync_git = strcmp(path, "/api/v1/sync-git") == 0;
    bool is_metrics = strcmp(path, "/metrics") == 0;
    if (!is_sync_git && !is_metrics && strcmp(path, "/readyz") != 0) {
        a->status = MHD_HTTP_NOT_FOUND;
        buf_add_str(&a->body, "not found: /healthz /readyz /metrics, POST /api/v1/sync-git\n");
        return;
    }
    bool is_get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (is_sync_git ? strcmp(method, "POST") != 0 : !is_get) {
        a->status = MHD_HTTP_METHOD_NOT_ALLOWED;
        a->allow = is_sync_git ? "POST" : "GET, HEAD";
        buf_addf(&a->body, "method not allowed: %s\n", a->allow);
    } else if (is_sync_git) {
        sync_git(h, a);
    } else if (is_metrics) {
        metrics(h, a);
    } else {
        a->status = h->options.readyz(h->options.ctx, &a->body);
    }
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_len, void **state)
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
    struct answer a = {.status = MHD_HTTP_OK, .type = SHORT_TYPE, .body = BUF_INIT(BODY_BYTES_MAX)};
    route(cls, method, url, &a);
    return reply(cls, c, &a);
}

/* "HOST:PORT", ":PORT", "[V6]:PORT" into addr; a port alone is every address, by IPv6's [::]. */
static bool parse_listen(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len)
{
    const char *colon = strrchr(text, ':');
    int64_t port = 0;
    if (colon == NULL || !text_to_int64(colon + 1, 0, 65535, &port)) {
        return false;
    }
    _cleanup_(free_cstr)
    char *host = xstrndup(text, (size_t)(colon - text));
    size_t len = strlen(host);
    bool bracketed = len >= 2 && host[0] == '[' && host[len - 1] == ']';
    if (bracketed) {
        host[len - 1] = '\0';
    }
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (len == 0 || (bracketed && inet_pton(AF_INET6, host + 1, &v6.sin6_addr) == 1)) {
        memcpy(ret, &v6, sizeof(v6));
        *ret_len = sizeof(v6);
        return true;
    }
    if (!bracketed && inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
        memcpy(ret, &v4, sizeof(v4));
        *ret_len = sizeof(v4);
        return true;
    }
    return false;
}

/* A listening socket or -1 with errno. */
static int listen_on(const struct sockaddr_storage *addr, socklen_t len)
{
    int fd = socket(addr->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    int on = 1;
    int off = 0; /* [::] takes IPv4 as well, whatever net.ipv6.bindv6only says */
    bool ok = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0;
    ok = ok && (addr->ss_family != AF_INET6 ||
                setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0);
    ok = ok && bind(fd, (const struct sockaddr *)addr, len) == 0 && listen(fd, SOMAXCONN) == 0;
    if (!ok) {
        int why = errno;
        (void)close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

/* A kernel without IPv6 has no [::]; a port alone then is every IPv4 address. */
static int listen_on_text(const char *text, const struct sockaddr_storage *addr, socklen_t len)
{
    int fd = listen_on(addr, len);
    if (fd < 0 && text[0] == ':' && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) {
        struct sockaddr_in6 v6;
        memcpy(&v6, addr, sizeof(v6));
        struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = v6.sin6_port};
        struct sockaddr_storage any = {0};
        memcpy(&any, &v4, sizeof(v4));
        fd = listen_on(&any, sizeof(v4));
    }
    return fd;
}

static int port_of(int fd)
{
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof(addr);
    must(getsockname(fd, (struct sockaddr *)&addr, &len) == 0);
    /* The port stands at the same place in both families. */
    struct sockaddr_in v4;
    memcpy(&v4, &addr, sizeof(v4));
    return ntohs(v4.sin_port);
}

enum err_kind httpd_start(const struct httpd_options *options, struct httpd **ret, struct err *err)
{
    struct sockaddr_storage addr = {0};
    socklen_t addr_len = 0;
    if (!parse_listen(options->listen, &addr, &addr_len)) {
        return err_set(err, ERR_INVALID,
                       "\"%s\" is not legal: use HOST:PORT with an IP address, :PORT or [V6]:PORT",
                       options->listen);
    }
    int fd = listen_on_text(options->listen, &addr, addr_len);
    if (fd < 0) {
        return err_set(err, ERR_UNAVAILABLE, "cannot listen on %s: %s", options->listen,
                       strerrordesc_np(errno));
    }
    struct httpd *h = xcalloc(1, sizeof(*h));
    h->options = *options;
    h->port = port_of(fd);
    h->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO, 0, NULL, NULL, on_request, h,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)CONNECTIONS_PER_IP_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)MEMORY_PER_CONNECTION, MHD_OPTION_END);
    if (h->daemon == NULL) {
        /* The socket is the library's by now. */
        free(h);
        return err_set(err, ERR_UNAVAILABLE, "cannot start a thread that listens on %s",
                       options->listen);
    }
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
