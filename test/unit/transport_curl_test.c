/* transport_curl against a small HTTP server of this file's own, on loopback. The request's path
 * says how the server behaves (see serve_one). Deadlines are short where they must pass and
 * generous where they must not. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/mtx.h"
#include "base/must.h"
#include "base/text.h"
#include "effect/clock.h"
#include "transport_curl/proxy_env.h"
#include "transport_curl/transport_curl.h"

#define PEER_CONNS_MAX    64
#define PEER_REQUESTS_MAX 128
#define SHORT_MS          150   /* for deadlines that pass */
#define LONG_MS           20000 /* for deadlines that must not pass */

/* ---- the server ---- */

struct peer {
    int listener;
    int port;
    int stop_fd; /* readable when everything must end */
    pthread_t acceptor;
    struct mtx lock;
    struct cond changed;
    pthread_t conns[PEER_CONNS_MAX];
    int conn_count;   /* guarded by lock */
    int conns_closed; /* guarded by lock */
    int conns_reset;  /* of these, by RST while /slow was hanging; guarded by lock */
    char *requests[PEER_REQUESTS_MAX]; /* head and body; guarded by lock */
    int request_count;                 /* guarded by lock */
    char *other;                       /* where /elsewhere redirects to */
};

struct peer_conn {
    struct peer *peer;
    int fd;
};

static void send_text(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
        if (n <= 0) {
            return;
        }
        text += n;
        len -= (size_t)n;
    }
}

static void reply(int fd, const char *status, const char *headers, const char *body)
{
    char *text = xasprintf("HTTP/1.1 %s\r\nContent-Length: %zu\r\n%s\r\n%s", status, strlen(body),
                           headers, body);
    send_text(fd, text, strlen(text));
    free(text);
}

/* Wait until the client or the test goes away. */
static void hang(struct peer *p, int fd)
{
    struct pollfd fds[] = {{.fd = fd, .events = POLLIN | POLLRDHUP},
                           {.fd = p->stop_fd, .events = POLLIN}};
    (void)poll(fds, 2, -1);
    char byte;
    if (fds[0].revents != 0 && recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == ECONNRESET) {
        MTX_GUARD(&p->lock);
        p->conns_reset++;
    }
}

/* One whole request (head, and body by Content-Length), or NULL at the end. */
static char *read_request(struct peer *p, int fd)
{
    struct buf b = BUF_INIT(1 << 20);
    for (;;) {
        const char *end = b.len > 0 ? strstr(buf_str(&b), "\r\n\r\n") : NULL;
        if (end != NULL) {
            const char *cl = strcasestr(buf_str(&b), "\r\nContent-Length: ");
            size_t body = cl != NULL ? strtoul(cl + 18, NULL, 10) : 0;
            if (b.len >= (size_t)(end - buf_str(&b)) + 4 + body) {
                return buf_take(&b);
            }
        }
        struct pollfd fds[] = {{.fd = fd, .events = POLLIN}, {.fd = p->stop_fd, .events = POLLIN}};
        char chunk[4096];
        ssize_t n =
            poll(fds, 2, -1) > 0 && fds[0].revents != 0 ? recv(fd, chunk, sizeof(chunk), 0) : 0;
        if (n <= 0) {
            buf_release(&b);
            return NULL;
        }
        buf_add(&b, chunk, (size_t)n);
    }
}

/* gzip of "hello, gzip\n" without a name and time. */
static const unsigned char GZIPPED[] = {
    0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0xff, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 0xd7,
    0x51, 0x48, 0xaf, 0xca, 0x2c, 0xe0, 0x02, 0x00, 0x86, 0x1f, 0x82, 0xa4, 0x0c, 0x00, 0x00, 0x00};

static void serve_redirect(struct peer *p, int fd, const char *path)
{
    char *headers = NULL;
    if (strncmp(path, "/elsewhere", 10) == 0) {
        headers = xasprintf("Location: %s\r\n", p->other);
    } else if (strncmp(path, "/round", 6) == 0) {
        headers = xasprintf("Location: /round?again\r\n");
    } else if (strncmp(path, "/file", 5) == 0) {
        headers = xasprintf("Location: file:///etc/hostname\r\n");
    } else {
        headers = xasprintf("Location: ok\r\n");
    }
    reply(fd, "302 Found", headers, "moved");
    free(headers);
}

static bool is_path(const char *path, const char *wanted)
{
    return strncmp(path, wanted, strlen(wanted)) == 0;
}

/* Answer; false ends the connection. */
static bool serve_one(struct peer *p, int fd, const char *request)
{
    const char *path = strchr(request, ' ') + 1;
    if (is_path(path, "/die")) {
        return false;
    }
    if (is_path(path, "/slow")) {
        hang(p, fd);
        return false;
    }
    if (is_path(path, "/cut")) {
        static const char cut[] = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this";
        send_text(fd, cut, strlen(cut));
        return false;
    }
    if (is_path(path, "/status/")) {
        char status[16];
        (void)snprintf(status, sizeof(status), "%.3s X", path + 8);
        reply(fd, status, "Retry-After: 7\r\nContent-Type: application/json\r\n",
              "{\"kind\":\"Status\"}");
    } else if (is_path(path, "/watch")) {
        static const char head[] =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n4\r\ntwo\n\r\n";
        send_text(fd, head, strlen(head));
        hang(p, fd);
        return false;
    } else if (is_path(path, "/gzip")) {
        char head[128];
        (void)snprintf(head, sizeof(head),
                       "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %zu\r\n\r\n",
                       sizeof(GZIPPED));
        send_text(fd, head, strlen(head));
        send_text(fd, (const char *)GZIPPED, sizeof(GZIPPED));
    } else if (is_path(path, "/moved") || is_path(path, "/elsewhere") || is_path(path, "/round") ||
               is_path(path, "/file")) {
        serve_redirect(p, fd, path);
    } else if (is_path(path, "/warned")) {
        reply(fd, "200 OK", "Date: Tue, 01 Dec 2026 12:00:00 GMT\r\nWarning: 299 - \"old\"\r\n",
              "ok");
    } else if (is_path(path, "/stale")) {
        reply(fd, "200 OK", "Date: Tue, 01 Dec 2026 12:00:00 GMT\r\nWarning: 110 - \"stale\"\r\n",
              "ok");
    } else if (is_path(path, "/cached")) {
        reply(fd, "200 OK", "Date: Tue, 01 Dec 2026 12:00:00 GMT\r\nAge: 3\r\n", "ok");
    } else if (is_path(path, "/interim")) {
        static const char early[] =
            "HTTP/1.1 103 Early Hints\r\nETag: early\r\nRetry-After: 9\r\n\r\n";
        send_text(fd, early, strlen(early));
        reply(fd, "200 OK", "", "ok");
    } else {
        reply(fd, "200 OK",
              "Date: Tue, 01 Dec 2026 12:00:00 GMT\r\nETag: \"e1\"\r\nLast-Modified: Mon, 30 Nov "
              "2026 12:00:00 GMT\r\n"
              "content-type:  text/plain \r\n",
              "ok");
    }
    return true;
}

static void *conn_main(void *arg)
{
    struct peer_conn c = *(struct peer_conn *)arg;
    free(arg);
    char *request;
    bool more = true;
    while (more && (request = read_request(c.peer, c.fd)) != NULL) {
        mtx_lock(&c.peer->lock);
        must(c.peer->request_count < PEER_REQUESTS_MAX);
        c.peer->requests[c.peer->request_count++] = request;
        cond_broadcast(&c.peer->changed);
        mtx_unlock(&c.peer->lock);
        more = serve_one(c.peer, c.fd, request);
    }
    (void)close(c.fd);
    mtx_lock(&c.peer->lock);
    c.peer->conns_closed++;
    cond_broadcast(&c.peer->changed);
    mtx_unlock(&c.peer->lock);
    return NULL;
}

static void *accept_main(void *arg)
{
    struct peer *p = arg;
    for (;;) {
        struct pollfd fds[] = {{.fd = p->listener, .events = POLLIN},
                               {.fd = p->stop_fd, .events = POLLIN}};
        (void)poll(fds, 2, -1);
        if (fds[1].revents != 0) {
            return NULL;
        }
        int fd = accept(p->listener, NULL, NULL);
        must(fd >= 0);
        struct peer_conn *c = xmalloc(sizeof(*c));
        *c = (struct peer_conn){.peer = p, .fd = fd};
        mtx_lock(&p->lock);
        must(p->conn_count < PEER_CONNS_MAX);
        must(pthread_create(&p->conns[p->conn_count++], NULL, conn_main, c) == 0);
        mtx_unlock(&p->lock);
    }
}

static struct peer *peer_start(void)
{
    struct peer *p = xcalloc(1, sizeof(*p));
    mtx_init(&p->lock, "peer");
    cond_init(&p->changed);
    p->stop_fd = eventfd(0, EFD_CLOEXEC);
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    must(bind(p->listener, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(p->listener, 64) == 0);
    must(getsockname(p->listener, (struct sockaddr *)&a, &len) == 0);
    p->port = ntohs(a.sin_port);
    must(pthread_create(&p->acceptor, NULL, accept_main, p) == 0);
    return p;
}

static void peer_stop(struct peer *p)
{
    must(eventfd_write(p->stop_fd, 1) == 0);
    must(pthread_join(p->acceptor, NULL) == 0);
    for (int i = 0; i < p->conn_count; i++) {
        must(pthread_join(p->conns[i], NULL) == 0);
    }
    for (int i = 0; i < p->request_count; i++) {
        free(p->requests[i]);
    }
    (void)close(p->listener);
    (void)close(p->stop_fd);
    cond_release(&p->changed);
    mtx_release(&p->lock);
    free(p->other);
    free(p);
}

static int peer_requests(struct peer *p)
{
    MTX_GUARD(&p->lock);
    return p->request_count;
}

static int peer_conns(struct peer *p)
{
    MTX_GUARD(&p->lock);
    return p->conn_count;
}

static void peer_wait_requests(struct peer *p, int n)
{
    MTX_GUARD(&p->lock);
    while (p->request_count < n) {
        cond_wait_ms(&p->changed, &p->lock, 1000);
    }
}

static void peer_wait_closed(struct peer *p, int n)
{
    MTX_GUARD(&p->lock);
    while (p->conns_closed < n) {
        cond_wait_ms(&p->changed, &p->lock, 1000);
    }
}

/* ---- the client's side ---- */

struct fixture {
    struct peer *peer;
    struct transport *t;
};

static int setup(void **state)
{
    struct fixture *f = xcalloc(1, sizeof(*f));
    f->peer = peer_start();
    f->t = transport_curl_new(&(struct transport_curl_options){.user_agent = "belay/test"});
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    transport_curl_free(f->t);
    peer_stop(f->peer);
    free(f);
    return 0;
}

static struct mono in_ms(int64_t ms)
{
    return mono_add_ms(clock_mono(clock_os()), ms);
}

static char *url_of(const struct peer *p, const char *path)
{
    return xasprintf("http://127.0.0.1:%d%s", p->port, path);
}

struct outcome {
    enum err_kind kind;
    struct err err;
    struct http_response res;
};

static struct outcome call(struct transport *t, const struct peer *p, const char *method,
                           const char *path, int64_t deadline_ms)
{
    struct outcome o = {.err = ERR_INIT, .res = HTTP_RESPONSE_INIT};
    _cleanup_(free_cstr)
    char *url = url_of(p, path);
    struct http_request req = {.method = method,
                               .url = url,
                               .body = strcmp(method, "GET") == 0 ? NULL : "{}",
                               .body_len = 2,
                               .deadline = in_ms(deadline_ms)};
    o.kind = transport_perform(t, &req, &o.res, &o.err);
    return o;
}

static enum err_kind call_kind(struct fixture *f, const char *method, const char *path,
                               int64_t deadline_ms)
{
    struct outcome o = call(f->t, f->peer, method, path, deadline_ms);
    http_response_release(&o.res);
    return o.kind;
}

static void reply_comes_with_its_headers_and_times(void **state)
{
    struct fixture *f = *state;
    struct mono before = clock_mono(clock_os());
    struct outcome o = call(f->t, f->peer, "GET", "/ok", LONG_MS);
    struct mono after = clock_mono(clock_os());
    assert_int_equal(o.kind, ERR_NONE);
    assert_int_equal(o.res.status, 200);
    assert_string_equal(buf_str(&o.res.body), "ok");
    assert_string_equal(o.res.date, "Tue, 01 Dec 2026 12:00:00 GMT");
    assert_string_equal(o.res.etag, "\"e1\"");
    assert_string_equal(o.res.last_modified, "Mon, 30 Nov 2026 12:00:00 GMT");
    assert_string_equal(o.res.content_type, "text/plain");
    assert_string_equal(o.res.retry_after, "");
    assert_false(o.res.date_unreliable);
    assert_true(before.ns <= o.res.sent.ns && o.res.sent.ns <= o.res.received.ns &&
                o.res.received.ns <= after.ns);
    assert_non_null(strstr(f->peer->requests[0], "User-Agent: belay/test\r\n"));
    http_response_release(&o.res);
}

static void date_of_a_cached_reply_is_marked(void **state)
{
    struct fixture *f = *state;
    const struct {
        const char *path;
        bool unreliable;
    } rows[] = {{"/cached", true}, {"/stale", true}, {"/warned", false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct outcome o = call(f->t, f->peer, "GET", rows[i].path, LONG_MS);
        assert_int_equal(o.kind, ERR_NONE);
        assert_int_equal(o.res.date_unreliable, rows[i].unreliable);
        http_response_release(&o.res);
    }
}

static void interim_reply_leaves_nothing_behind(void **state)
{
    struct fixture *f = *state;
    struct outcome o = call(f->t, f->peer, "GET", "/interim", LONG_MS);
    assert_int_equal(o.kind, ERR_NONE);
    assert_int_equal(o.res.status, 200);
    assert_string_equal(o.res.etag, "");
    assert_string_equal(o.res.retry_after, "");
    http_response_release(&o.res);
}

static void every_status_is_a_reply(void **state)
{
    struct fixture *f = *state;
    static const int statuses[] = {404, 409, 410, 429, 500, 503, 504};
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        char path[32];
        (void)snprintf(path, sizeof(path), "/status/%d", statuses[i]);
        struct outcome o = call(f->t, f->peer, "PATCH", path, LONG_MS);
        assert_int_equal(o.kind, ERR_NONE);
        assert_int_equal(o.res.status, statuses[i]);
        assert_string_equal(o.res.retry_after, "7");
        assert_string_equal(buf_str(&o.res.body), "{\"kind\":\"Status\"}");
        http_response_release(&o.res);
    }
    assert_int_equal(peer_conns(f->peer), 1);
}

static void write_carries_method_headers_and_body(void **state)
{
    struct fixture *f = *state;
    _cleanup_(free_cstr)
    char *url = url_of(f->peer, "/ok");
    struct http_header headers[] = {{"Content-Type", "application/merge-patch+json"},
                                    {"X-Empty", ""}};
    struct http_request req = {.method = "PATCH",
                               .url = url,
                               .headers = headers,
                               .header_count = 2,
                               .body = "{\"a\":1}",
                               .body_len = 7,
                               .deadline = in_ms(LONG_MS)};
    struct http_response res = HTTP_RESPONSE_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(transport_perform(f->t, &req, &res, &err), ERR_NONE);
    const char *seen = f->peer->requests[0];
    assert_true(text_has_prefix(seen, "PATCH /ok HTTP/1.1\r\n"));
    assert_non_null(strstr(seen, "\r\nContent-Type: application/merge-patch+json\r\n"));
    assert_non_null(strstr(seen, "\r\nX-Empty:\r\n"));
    assert_null(strcasestr(seen, "\r\nExpect:"));
    assert_true(text_has_suffix(seen, "\r\n\r\n{\"a\":1}"));
    http_response_release(&res);
}

static void methods_without_body_are_sent_as_such(void **state)
{
    struct fixture *f = *state;
    static const char *const methods[] = {"GET", "HEAD", "DELETE", "POST", "PUT"};
    for (size_t i = 0; i < 5; i++) {
        _cleanup_(free_cstr)
        char *url = url_of(f->peer, "/ok");
        struct http_request req = {.method = methods[i], .url = url, .deadline = in_ms(LONG_MS)};
        struct http_response res = HTTP_RESPONSE_INIT;
        struct err err = ERR_INIT;
        if (strcmp(methods[i], "HEAD") == 0) {
            /* The server writes a body to it, which spoils the connection: only the request
             * matters. */
            (void)transport_perform(f->t, &req, &res, &err);
        } else {
            assert_int_equal(transport_perform(f->t, &req, &res, &err), ERR_NONE);
        }
        char start[32];
        (void)snprintf(start, sizeof(start), "%s /ok HTTP/1.1\r\n", methods[i]);
        assert_true(text_has_prefix(f->peer->requests[i], start));
        http_response_release(&res);
    }
}

/* A port that nobody listens on: bound, and so not given to anyone else. */
static int refused_port(int *ret_fd)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    *ret_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(bind(*ret_fd, (struct sockaddr *)&a, sizeof(a)) == 0);
    must(getsockname(*ret_fd, (struct sockaddr *)&a, &len) == 0);
    return ntohs(a.sin_port);
}

static void refused_connection_means_no_effect(void **state)
{
    struct fixture *f = *state;
    int fd;
    struct peer nobody = {.port = refused_port(&fd)};
    static const char *const methods[] = {"GET", "PATCH"};
    for (size_t i = 0; i < 2; i++) {
        struct outcome o = call(f->t, &nobody, methods[i], "/ok", LONG_MS);
        assert_int_equal(o.kind, ERR_UNAVAILABLE);
        assert_int_equal(o.err.kind, ERR_UNAVAILABLE);
    }
    (void)close(fd);
}

static void failed_tls_handshake_means_no_effect(void **state)
{
    struct fixture *f = *state;
    _cleanup_(free_cstr)
    char *url = xasprintf("https://127.0.0.1:%d/status/200", f->peer->port);
    struct http_request req = {
        .method = "PATCH", .url = url, .body = "{}", .body_len = 2, .deadline = in_ms(SHORT_MS)};
    struct http_response res = HTTP_RESPONSE_INIT;
    struct err err = ERR_INIT;
    /* The plain server waits for the end of a head that never comes: a handshake that hangs. */
    assert_int_equal(transport_perform(f->t, &req, &res, &err), ERR_TIMEOUT);
    assert_int_equal(peer_requests(f->peer), 0);
}

static void failures_after_sending_leave_a_write_unknown(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *name, *method, *path;
        int64_t deadline_ms;
        enum err_kind kind;
    } rows[] = {
        {"slow reply to a GET", "GET", "/slow", SHORT_MS, ERR_TIMEOUT},
        {"slow reply to a PATCH", "PATCH", "/slow", SHORT_MS, ERR_UNKNOWN_OUTCOME},
        {"slow reply to a DELETE", "DELETE", "/slow", SHORT_MS, ERR_UNKNOWN_OUTCOME},
        {"cut reply to a GET", "GET", "/cut", LONG_MS, ERR_UNAVAILABLE},
        {"cut reply to a PATCH", "PATCH", "/cut", LONG_MS, ERR_UNKNOWN_OUTCOME},
        {"no reply to a GET", "GET", "/die", LONG_MS, ERR_UNAVAILABLE},
        {"no reply to a POST", "POST", "/die", LONG_MS, ERR_UNKNOWN_OUTCOME},
        {"deadline passed before", "PATCH", "/ok", 0, ERR_TIMEOUT},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum err_kind kind = call_kind(f, rows[i].method, rows[i].path, rows[i].deadline_ms);
        if (kind != rows[i].kind) {
            fail_msg("%s: %s", rows[i].name, err_kind_name(kind));
        }
    }
}

static void call_that_is_given_up_resets_its_connection(void **state)
{
    struct fixture *f = *state;
    /* Or what still waits in the socket's buffer would arrive after all. */
    assert_int_equal(call_kind(f, "PATCH", "/slow", SHORT_MS), ERR_UNKNOWN_OUTCOME);
    peer_wait_closed(f->peer, 1);
    MTX_GUARD(&f->peer->lock);
    assert_int_equal(f->peer->conns_reset, 1);
}

static void write_is_never_sent_twice_on_a_dead_connection(void **state)
{
    struct fixture *f = *state;
    static const char *const methods[] = {"PATCH", "DELETE", "POST"};
    for (int i = 0; i < 3; i++) {
        /* The first makes a connection that is kept; the server closes it on the second without a
         * word. */
        assert_int_equal(call_kind(f, "GET", "/ok", LONG_MS), ERR_NONE);
        assert_int_equal(call_kind(f, methods[i], "/die", LONG_MS), ERR_UNKNOWN_OUTCOME);
        assert_int_equal(peer_requests(f->peer), 2 * (i + 1));
    }
}

static void get_is_sent_again_on_a_dead_connection(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(call_kind(f, "GET", "/ok", LONG_MS), ERR_NONE);
    assert_int_equal(call_kind(f, "GET", "/die", LONG_MS), ERR_UNAVAILABLE);
    assert_int_equal(peer_requests(f->peer), 3);
}

static void reply_over_the_limit_is_refused(void **state)
{
    struct fixture *f = *state;
    static const char *const methods[] = {"GET", "PATCH"};
    static const enum err_kind kinds[] = {ERR_LIMIT, ERR_UNKNOWN_OUTCOME};
    for (size_t i = 0; i < 2; i++) {
        for (size_t max = 1; max <= 2; max++) {
            _cleanup_(free_cstr)
            char *url = url_of(f->peer, "/ok");
            struct http_request req = {
                .method = methods[i], .url = url, .body_max = max, .deadline = in_ms(LONG_MS)};
            struct http_response res = HTTP_RESPONSE_INIT;
            struct err err = ERR_INIT;
            assert_int_equal(transport_perform(f->t, &req, &res, &err),
                             max == 1 ? kinds[i] : ERR_NONE);
            http_response_release(&res);
        }
    }
}

/* ---- cancel ---- */

struct canceller {
    struct peer *peer;
    int after; /* requests that the server has seen */
    struct cancel cancel;
};

static void *cancel_when_request_arrived(void *arg)
{
    struct canceller *c = arg;
    peer_wait_requests(c->peer, c->after);
    cancel_raise(&c->cancel);
    return NULL;
}

static void cancel_ends_a_call(void **state)
{
    static const char *const methods[] = {"GET", "PATCH"};
    static const enum err_kind kinds[] = {ERR_CANCELLED, ERR_UNKNOWN_OUTCOME};
    for (size_t i = 0; i < 2; i++) {
        (void)state;
        struct fixture *f;
        (void)setup((void **)&f);
        struct canceller c = {.peer = f->peer, .after = 1};
        cancel_init(&c.cancel);
        pthread_t thread;
        must(pthread_create(&thread, NULL, cancel_when_request_arrived, &c) == 0);
        _cleanup_(free_cstr)
        char *url = url_of(f->peer, "/slow");
        struct http_request req = {
            .method = methods[i], .url = url, .deadline = in_ms(LONG_MS), .cancel = &c.cancel};
        struct http_response res = HTTP_RESPONSE_INIT;
        struct err err = ERR_INIT;
        assert_int_equal(transport_perform(f->t, &req, &res, &err), kinds[i]);
        must(pthread_join(thread, NULL) == 0);
        cancel_release(&c.cancel);
        (void)teardown((void **)&f);
    }
}

static void cancelled_before_it_began_sends_nothing(void **state)
{
    struct fixture *f = *state;
    struct cancel cancel;
    cancel_init(&cancel);
    cancel_raise(&cancel);
    _cleanup_(free_cstr)
    char *url = url_of(f->peer, "/ok");
    struct http_request req = {
        .method = "PATCH", .url = url, .deadline = in_ms(LONG_MS), .cancel = &cancel};
    struct http_response res = HTTP_RESPONSE_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(transport_perform(f->t, &req, &res, &err), ERR_CANCELLED);
    assert_int_equal(peer_conns(f->peer), 0);
    cancel_release(&cancel);
}

/* ---- redirects ---- */

static enum err_kind get_following(struct fixture *f, const char *path, const char *method,
                                   const char *userpwd, struct http_response *res)
{
    _cleanup_(free_cstr)
    char *url = url_of(f->peer, path);
    struct http_header headers[] = {{"authorization", "Bearer s3cr3t"}, {"X-Kept", "1"}};
    struct http_request req = {.method = method,
                               .url = url,
                               .headers = headers,
                               .header_count = 2,
                               .follow_redirects = true,
                               .userpwd = userpwd,
                               .deadline = in_ms(LONG_MS)};
    struct err err = ERR_INIT;
    return transport_perform(f->t, &req, res, &err);
}

static void redirect_to_the_same_origin_keeps_credentials(void **state)
{
    struct fixture *f = *state;
    struct http_response res = HTTP_RESPONSE_INIT;
    assert_int_equal(get_following(f, "/moved", "GET", NULL, &res), ERR_NONE);
    assert_int_equal(res.status, 200);
    assert_string_equal(buf_str(&res.body), "ok");
    assert_int_equal(peer_requests(f->peer), 2);
    assert_true(text_has_prefix(f->peer->requests[1], "GET /ok "));
    assert_non_null(strstr(f->peer->requests[1], "Bearer s3cr3t"));
    http_response_release(&res);
}

static void redirect_to_another_origin_loses_credentials_for_good(void **state)
{
    struct fixture *f = *state;
    static const char *const userpwds[] = {NULL, "u:s3cr3t"};
    struct peer *other = peer_start();
    /* There and back again. */
    f->peer->other = url_of(other, "/elsewhere");
    other->other = url_of(f->peer, "/ok");
    for (int i = 0; i < 2; i++) {
        struct http_response res = HTTP_RESPONSE_INIT;
        assert_int_equal(get_following(f, "/elsewhere", "GET", userpwds[i], &res), ERR_NONE);
        assert_int_equal(res.status, 200);
        http_response_release(&res);
        assert_non_null(strcasestr(f->peer->requests[2 * i], "\r\nauthorization: "));
        assert_null(strcasestr(other->requests[i], "authorization"));
        assert_non_null(strstr(other->requests[i], "X-Kept: 1"));
        assert_true(text_has_prefix(f->peer->requests[2 * i + 1], "GET /ok "));
        assert_null(strcasestr(f->peer->requests[2 * i + 1], "authorization"));
    }
    peer_stop(other);
}

static void userinfo_of_the_url_stays_with_its_origin(void **state)
{
    struct fixture *f = *state;
    struct peer *other = peer_start();
    f->peer->other = xasprintf("http://evil:choice@127.0.0.1:%d/ok", other->port);
    _cleanup_(free_cstr)
    char *url = xasprintf("http://u:p%%40ss@127.0.0.1:%d/elsewhere", f->peer->port);
    struct http_request req = {
        .method = "GET", .url = url, .follow_redirects = true, .deadline = in_ms(LONG_MS)};
    struct http_response res = HTTP_RESPONSE_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(transport_perform(f->t, &req, &res, &err), ERR_NONE);
    /* base64 of "u:p@ss" */
    assert_non_null(strstr(f->peer->requests[0], "Authorization: Basic dTpwQHNz\r\n"));
    assert_null(strcasestr(other->requests[0], "authorization"));
    http_response_release(&res);
    peer_stop(other);
}

static void bad_redirects_end_the_call(void **state)
{
    struct fixture *f = *state;
    struct http_response res = HTTP_RESPONSE_INIT;
    assert_int_equal(get_following(f, "/round", "GET", NULL, &res), ERR_UNAVAILABLE);
    assert_int_equal(peer_requests(f->peer), 6);
    assert_int_equal(get_following(f, "/file", "GET", NULL, &res), ERR_UNAVAILABLE);
    /* A write is not sent anywhere else. */
    assert_int_equal(get_following(f, "/moved", "PATCH", NULL, &res), ERR_NONE);
    assert_int_equal(res.status, 302);
    http_response_release(&res);
}

/* ---- streams ---- */

struct stream {
    struct buf seen;
    size_t stop_after; /* bytes */
};

static bool stream_take(void *ctx, const char *bytes, size_t len)
{
    struct stream *s = ctx;
    buf_add(&s->seen, bytes, len);
    return s->seen.len < s->stop_after;
}

static enum err_kind stream_run(struct fixture *f, const char *path, struct stream *s,
                                struct http_response *res)
{
    _cleanup_(free_cstr)
    char *url = url_of(f->peer, path);
    struct http_request req = {.method = "GET",
                               .url = url,
                               .deadline = MONO_NEVER,
                               .idle_ms = SHORT_MS,
                               .body_max = 3, /* no cap for what is handed over */
                               .on_data = stream_take,
                               .ctx = s};
    struct err err = ERR_INIT;
    return transport_perform(f->t, &req, res, &err);
}

static void stream_is_handed_over_until_it_falls_silent(void **state)
{
    struct fixture *f = *state;
    struct stream s = {.seen = BUF_INIT(1024), .stop_after = 1024};
    struct http_response res = HTTP_RESPONSE_INIT;
    assert_int_equal(stream_run(f, "/watch", &s, &res), ERR_TIMEOUT);
    assert_string_equal(buf_str(&s.seen), "one\ntwo\n");
    buf_release(&s.seen);
}

static void stream_ends_when_the_reader_has_enough(void **state)
{
    struct fixture *f = *state;
    struct stream s = {.seen = BUF_INIT(1024), .stop_after = 1};
    struct http_response res = HTTP_RESPONSE_INIT;
    assert_int_equal(stream_run(f, "/watch", &s, &res), ERR_CANCELLED);
    buf_release(&s.seen);
}

static void refused_stream_gives_its_body_instead(void **state)
{
    struct fixture *f = *state;
    struct stream s = {.seen = BUF_INIT(1024), .stop_after = 1024};
    struct http_response res = HTTP_RESPONSE_INIT;
    /* body_max counts here, and the body is longer. */
    assert_int_equal(stream_run(f, "/status/410", &s, &res), ERR_LIMIT);
    assert_int_equal(s.seen.len, 0);
    buf_release(&s.seen);
}

/* ---- many, threads, connections ---- */

static void one_slow_call_of_many_costs_the_others_nothing(void **state)
{
    struct fixture *f = *state;
    enum { N = 5, SLOW = 1 };
    struct http_request reqs[N];
    struct http_call calls[N];
    char *urls[N];
    /* The slow one hangs until the server has all five: one after the other would wait for the
     * deadline. */
    struct canceller c = {.peer = f->peer, .after = N};
    cancel_init(&c.cancel);
    for (int i = 0; i < N; i++) {
        urls[i] = url_of(f->peer, i == SLOW ? "/slow" : i == 3 ? "/status/409" : "/ok");
        reqs[i] = (struct http_request){.method = "PATCH",
                                        .url = urls[i],
                                        .body = "[]",
                                        .body_len = 2,
                                        .cancel = i == SLOW ? &c.cancel : NULL,
                                        .deadline = in_ms(LONG_MS)};
        calls[i] = (struct http_call){.request = &reqs[i]};
    }
    pthread_t thread;
    must(pthread_create(&thread, NULL, cancel_when_request_arrived, &c) == 0);
    struct mono begin = clock_mono(clock_os());
    transport_perform_many(f->t, calls, N);
    assert_true(mono_diff_ms(clock_mono(clock_os()), begin) < LONG_MS / 2);
    must(pthread_join(thread, NULL) == 0);
    cancel_release(&c.cancel);
    for (int i = 0; i < N; i++) {
        assert_int_equal(calls[i].result, i == SLOW ? ERR_UNKNOWN_OUTCOME : ERR_NONE);
        if (i != SLOW) {
            assert_int_equal(calls[i].response.status, i == 3 ? 409 : 200);
            http_response_release(&calls[i].response);
        }
        free(urls[i]);
    }
    assert_int_equal(peer_conns(f->peer), N);
}

static void each_of_many_has_its_own_deadline(void **state)
{
    struct fixture *f = *state;
    _cleanup_(free_cstr)
    char *slow = url_of(f->peer, "/slow");
    _cleanup_(free_cstr)
    char *ok = url_of(f->peer, "/ok");
    struct http_request reqs[] = {{.method = "PATCH", .url = slow, .deadline = in_ms(SHORT_MS)},
                                  {.method = "GET", .url = ok, .deadline = in_ms(LONG_MS)}};
    struct http_call calls[] = {{.request = &reqs[0]}, {.request = &reqs[1]}};
    transport_perform_many(f->t, calls, 2);
    assert_int_equal(calls[0].result, ERR_UNKNOWN_OUTCOME);
    assert_int_equal(calls[1].result, ERR_NONE);
    http_response_release(&calls[1].response);
}

static void *two_calls(void *arg)
{
    struct fixture *f = arg;
    assert_int_equal(call_kind(f, "GET", "/ok", LONG_MS), ERR_NONE);
    assert_int_equal(call_kind(f, "PATCH", "/ok", LONG_MS), ERR_NONE);
    return NULL;
}

static void each_thread_has_one_connection_until_it_ends(void **state)
{
    struct fixture *f = *state;
    (void)two_calls(f);
    (void)two_calls(f);
    assert_int_equal(peer_conns(f->peer), 1);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        must(pthread_create(&threads[i], NULL, two_calls, f) == 0);
    }
    for (int i = 0; i < 3; i++) {
        must(pthread_join(threads[i], NULL) == 0);
    }
    assert_int_equal(peer_conns(f->peer), 4);
    peer_wait_closed(f->peer, 3);
    (void)two_calls(f);
    assert_int_equal(peer_conns(f->peer), 4);
}

struct guest {
    struct fixture *f;
    struct mtx lock;
    struct cond changed;
    int stage; /* guarded by lock: 1 = the guest has called, 2 = it may end */
};

static void *call_and_live_on(void *arg)
{
    struct guest *g = arg;
    (void)two_calls(g->f);
    MTX_GUARD(&g->lock);
    g->stage = 1;
    cond_broadcast(&g->changed);
    while (g->stage != 2) {
        cond_wait_ms(&g->changed, &g->lock, 1000);
    }
    return NULL;
}

static void transport_may_end_before_a_thread_that_used_it(void **state)
{
    struct fixture *f = *state;
    struct guest g = {.f = f};
    mtx_init(&g.lock, "guest");
    cond_init(&g.changed);
    pthread_t thread;
    must(pthread_create(&thread, NULL, call_and_live_on, &g) == 0);
    mtx_lock(&g.lock);
    while (g.stage != 1) {
        cond_wait_ms(&g.changed, &g.lock, 1000);
    }
    mtx_unlock(&g.lock);
    transport_curl_free(f->t);
    f->t = NULL;
    peer_wait_closed(f->peer, 1);
    mtx_lock(&g.lock);
    g.stage = 2;
    cond_broadcast(&g.changed);
    mtx_unlock(&g.lock);
    must(pthread_join(thread, NULL) == 0);
    cond_release(&g.changed);
    mtx_release(&g.lock);
}

/* ---- what is shown, what is asked for ---- */

static void errors_show_no_secrets_of_the_url(void **state)
{
    struct fixture *f = *state;
    static const char *const forms[] = {
        "http://user:s3cr3t@127.0.0.1:%d/die?token=s3cr3t#s3cr3t",
        "ftp://user:s3cr3t@127.0.0.1:%d/?token=s3cr3t",
        "http://user:s3cr3t@127.0.0.1:%d:s3cr3t/",
        "http://user:s3cr3t@/?token=s3cr3t&%d",
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        char url[256];
        (void)snprintf(url, sizeof(url), forms[i], f->peer->port);
        struct http_request req = {.method = "GET", .url = url, .deadline = in_ms(LONG_MS)};
        struct http_response res = HTTP_RESPONSE_INIT;
        struct err err = ERR_INIT;
        assert_int_equal(transport_perform(f->t, &req, &res, &err),
                         i == 0 ? ERR_UNAVAILABLE : ERR_INVALID);
        assert_null(strstr(err.msg, "s3cr3t"));
        assert_null(strstr(err.msg, "user"));
    }
}

static void header_with_a_line_break_is_refused(void **state)
{
    struct fixture *f = *state;
    _cleanup_(free_cstr)
    char *url = url_of(f->peer, "/ok");
    struct http_header h = {"Authorization", "Bearer x\r\nX-Evil: 1"};
    struct http_request req = {
        .method = "GET", .url = url, .headers = &h, .header_count = 1, .deadline = in_ms(LONG_MS)};
    struct http_response res = HTTP_RESPONSE_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(transport_perform(f->t, &req, &res, &err), ERR_INVALID);
    assert_int_equal(peer_conns(f->peer), 0);
}

static void gzip_is_unpacked_only_where_it_was_asked_for(void **state)
{
    struct fixture *f = *state;
    struct transport *gz =
        transport_curl_new(&(struct transport_curl_options){.accept_gzip = true});
    struct outcome plain = call(f->t, f->peer, "GET", "/gzip", LONG_MS);
    struct outcome unpacked = call(gz, f->peer, "GET", "/gzip", LONG_MS);
    assert_int_equal(plain.kind, ERR_NONE);
    assert_int_equal(plain.res.body.len, sizeof(GZIPPED));
    assert_null(strcasestr(f->peer->requests[0], "Accept-Encoding"));
    assert_int_equal(unpacked.kind, ERR_NONE);
    assert_string_equal(buf_str(&unpacked.res.body), "hello, gzip\n");
    assert_non_null(strstr(f->peer->requests[1], "Accept-Encoding: gzip\r\n"));
    http_response_release(&plain.res);
    http_response_release(&unpacked.res);
    transport_curl_free(gz);
}

/* ---- proxies ---- */

static void environment_proxy_is_used_only_where_it_may(void **state)
{
    struct fixture *f = *state;
    _cleanup_(free_cstr)
    char *proxy = xasprintf("http://127.0.0.1:%d", f->peer->port);
    must(setenv("http_proxy", proxy, 1) == 0 &&
         setenv("no_proxy", " direct.test, 10.0.0.0/8", 1) == 0);
    struct transport *env = transport_curl_new(
        &(struct transport_curl_options){.proxy = TRANSPORT_CURL_PROXY_ENVIRONMENT});
    struct transport *url = transport_curl_new(
        &(struct transport_curl_options){.proxy = TRANSPORT_CURL_PROXY_URL, .proxy_url = proxy});
    struct transport *none =
        transport_curl_new(&(struct transport_curl_options){.proxy = TRANSPORT_CURL_PROXY_NONE});
    struct {
        struct transport *t;
        const char *url;
        bool proxied;
    } rows[] = {
        {env, "http://charts.test/ok", true},   {url, "http://direct.test/ok", true},
        {url, "http://127.0.0.1:1/ok", true},   {env, "http://127.0.0.1:1/ok", false},
        {none, "http://127.0.0.1:1/ok", false},
    };
    int expected = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct http_request req = {.method = "GET", .url = rows[i].url, .deadline = in_ms(LONG_MS)};
        struct http_response res = HTTP_RESPONSE_INIT;
        struct err err = ERR_INIT;
        enum err_kind kind = transport_perform(rows[i].t, &req, &res, &err);
        assert_int_equal(kind, rows[i].proxied ? ERR_NONE : ERR_UNAVAILABLE);
        expected += rows[i].proxied ? 1 : 0;
        assert_int_equal(peer_requests(f->peer), expected);
        http_response_release(&res);
    }
    assert_true(text_has_prefix(f->peer->requests[0], "GET http://charts.test/ok HTTP/1.1\r\n"));
    transport_curl_free(env);
    transport_curl_free(url);
    transport_curl_free(none);
    must(unsetenv("http_proxy") == 0 && unsetenv("no_proxy") == 0);
}

static void no_proxy_is_read_as_go_reads_it(void **state)
{
    (void)state;
    static const struct {
        const char *name, *no_proxy, *host, *port;
        bool exempt;
    } rows[] = {
        {"empty list", "", "a.test", "443", false},
        {"star", "x.test, *", "a.test", "443", true},
        {"same name", "a.test", "a.test", "443", true},
        {"case does not count", "A.Test", "a.tESt", "443", true},
        {"below the name", "a.test", "b.a.test", "443", true},
        {"no part of a label", "a.test", "ba.test", "443", false},
        {"dot: below", ".a.test", "b.a.test", "443", true},
        {"dot: not itself", ".a.test", "a.test", "443", false},
        {"star dot: below", "*.a.test", "b.a.test", "443", true},
        {"star dot: not itself", "*.a.test", "a.test", "443", false},
        {"blank after comma", "10.96.0.0/12, .svc", "kubernetes.default.svc", "443", true},
        {"blank before comma", "x , a.test\t", "a.test", "443", true},
        {"block, first", "10.96.0.0/12", "10.96.0.0", "443", true},
        {"block, last", "10.96.0.0/12", "10.111.255.255", "443", true},
        {"block, one past", "10.96.0.0/12", "10.112.0.0", "443", false},
        {"block of 0 bits", "0.0.0.0/0", "9.9.9.9", "443", true},
        {"block of v4 does not hold v6", "0.0.0.0/0", "fd00::1", "443", false},
        {"block of v6", "fd00::/8", "fd12::1", "443", true},
        {"block of v6, outside", "fd00::/8", "fe12::1", "443", false},
        {"block does not match names", "0.0.0.0/0", "a.test", "443", false},
        {"bad block", "10.0.0.0/33", "10.0.0.1", "443", false},
        {"address", "10.1.2.3", "10.1.2.3", "443", true},
        {"address, port equal", "10.1.2.3:443", "10.1.2.3", "443", true},
        {"address, port differs", "10.1.2.3:80", "10.1.2.3", "443", false},
        {"v6 address", "fd00::1", "fd00:0::1", "443", true},
        {"v6 address with port", "[fd00::1]:443", "fd00::1", "443", true},
        {"v6 address, port differs", "[fd00::1]:80", "fd00::1", "443", false},
        {"name, port equal", "a.test:443", "a.test", "443", true},
        {"name, port differs", "a.test:80", "a.test", "443", false},
        {"name does not match an address", "2.3", "10.1.2.3", "443", false},
        {"localhost always", "", "localhost", "80", true},
        {"loopback always", "", "127.8.8.8", "80", true},
        {"v6 loopback always", "", "::1", "80", true},
        {"empty entries", ",, ,", "a.test", "443", false},
        {"port alone", ":443", "a.test", "443", false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (proxy_env_is_exempt(rows[i].no_proxy, rows[i].host, rows[i].port) != rows[i].exempt) {
            fail_msg("%s", rows[i].name);
        }
    }
}

/* ---- TLS, against openssl's own test server ---- */

struct tls_peer {
    char dir[40];
    pid_t pid;
    int port;
};

static bool run_command(const char *command)
{
    int status = system(command);
    return status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static char *read_text(const struct tls_peer *p, const char *name)
{
    char path[64], text[8192];
    (void)snprintf(path, sizeof(path), "%s/%s", p->dir, name);
    FILE *file = fopen(path, "re");
    must(file != NULL);
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    return xstrndup(text, n);
}

#define BIG_BYTES ((size_t)3 << 20)

/* Its certificate is for kubernetes.test only, and trusts itself; it wants client.crt if
 * ask_client. With files it serves its directory, in which "big" has BIG_BYTES, instead of a page.
 * False: no openssl. */
static bool tls_peer_start(struct tls_peer *p, bool ask_client, bool files)
{
    *p = (struct tls_peer){.dir = "/tmp/transport_curl_test.XXXXXX"};
    must(mkdtemp(p->dir) != NULL);
    static const char make[] =
        "cd %s && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        "-subj /CN=%s "
        "-addext subjectAltName=DNS:%s.test -keyout %s.key -out %s.crt 2>/dev/null";
    static const char *const names[] = {"kubernetes", "client"};
    for (size_t i = 0; i < 2; i++) {
        char command[512];
        (void)snprintf(command, sizeof(command), make, p->dir, names[i], names[i], names[i],
                       names[i]);
        if (!run_command(command)) {
            return false;
        }
    }
    char script[512];
    (void)snprintf(script, sizeof(script),
                   "cd %s && head -c 3145728 /dev/urandom >big && "
                   "exec openssl s_server -accept 127.0.0.1:0 -cert kubernetes.crt -key "
                   "kubernetes.key %s "
                   "%s 2>/dev/null",
                   p->dir, files ? "-WWW" : "-www",
                   ask_client ? "-Verify 1 -verify_return_error -CAfile client.crt" : "");
    int ends[2];
    must(pipe2(ends, O_CLOEXEC) == 0);
    p->pid = fork();
    if (p->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(ends[1], 1);
        (void)execl("/bin/sh", "sh", "-c", script, (char *)NULL);
        _exit(127);
    }
    (void)close(ends[1]);
    FILE *out = fdopen(ends[0], "r");
    char line[256];
    while (p->port == 0 && fgets(line, sizeof(line), out) != NULL) {
        (void)sscanf(line, "ACCEPT 127.0.0.1:%d", &p->port);
    }
    (void)fclose(out);
    must(p->port != 0);
    return true;
}

static void tls_peer_stop(struct tls_peer *p)
{
    if (p->pid > 0) {
        (void)kill(p->pid, SIGKILL);
        (void)waitpid(p->pid, NULL, 0);
    }
    char command[64];
    (void)snprintf(command, sizeof(command), "rm -r %s", p->dir);
    must(run_command(command));
}

static enum err_kind tls_call(const struct tls_peer *p, struct transport *t, const char *method)
{
    _cleanup_(free_cstr)
    char *url = xasprintf("https://127.0.0.1:%d/", p->port);
    struct http_request req = {.method = method, .url = url, .deadline = in_ms(LONG_MS)};
    struct http_response res = HTTP_RESPONSE_INIT;
    struct err err = ERR_INIT;
    enum err_kind kind = transport_perform(t, &req, &res, &err);
    if (kind == ERR_NONE) {
        assert_int_equal(res.status, 200);
    }
    http_response_release(&res);
    return kind;
}

static void server_is_trusted_only_by_its_ca_and_name(void **state)
{
    (void)state;
    struct tls_peer p;
    if (!tls_peer_start(&p, /* ask_client= */ false, /* files= */ false)) {
        tls_peer_stop(&p);
        skip();
    }
    _cleanup_(free_cstr)
    char *right = read_text(&p, "kubernetes.crt");
    _cleanup_(free_cstr)
    char *wrong = read_text(&p, "client.crt");
    _cleanup_(free_cstr)
    char *right_file = xasprintf("%s/kubernetes.crt", p.dir);
    const struct {
        const char *name;
        struct transport_curl_options options;
        bool trusted;
    } rows[] = {
        {"CA data and name", {.ca_data = right, .tls_server_name = "kubernetes.test"}, true},
        {"CA file and name", {.ca_file = right_file, .tls_server_name = "kubernetes.test"}, true},
        {"the URL's own host", {.ca_data = right}, false},
        {"another name", {.ca_data = right, .tls_server_name = "other.test"}, false},
        {"another CA", {.ca_data = wrong, .tls_server_name = "kubernetes.test"}, false},
        {"the system's CAs", {.tls_server_name = "kubernetes.test"}, false},
        {"insecure", {.insecure = true}, true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct transport *t = transport_curl_new(&rows[i].options);
        if (tls_call(&p, t, "GET") != (rows[i].trusted ? ERR_NONE : ERR_UNAVAILABLE)) {
            fail_msg("%s", rows[i].name);
        }
        /* Nothing is sent before the server is known. */
        if (!rows[i].trusted && tls_call(&p, t, "PATCH") != ERR_UNAVAILABLE) {
            fail_msg("%s, write", rows[i].name);
        }
        transport_curl_free(t);
    }
    tls_peer_stop(&p);
}

static void client_certificate_is_shown_and_can_be_exchanged(void **state)
{
    (void)state;
    struct tls_peer p;
    if (!tls_peer_start(&p, /* ask_client= */ true, /* files= */ false)) {
        tls_peer_stop(&p);
        skip();
    }
    _cleanup_(free_cstr)
    char *cert = read_text(&p, "client.crt");
    _cleanup_(free_cstr)
    char *key = read_text(&p, "client.key");
    _cleanup_(free_cstr)
    char *other_cert = read_text(&p, "kubernetes.crt");
    _cleanup_(free_cstr)
    char *other_key = read_text(&p, "kubernetes.key");
    _cleanup_(free_cstr)
    char *cert_file = xasprintf("%s/client.crt", p.dir);
    _cleanup_(free_cstr)
    char *key_file = xasprintf("%s/client.key", p.dir);
    struct transport *t = transport_curl_new(&(struct transport_curl_options){
        .insecure = true, .cert_data = other_cert, .key_data = other_key});
    assert_int_equal(tls_call(&p, t, "GET"), ERR_UNAVAILABLE);
    transport_curl_set_client_cert(t, cert, key);
    assert_int_equal(tls_call(&p, t, "GET"), ERR_NONE);
    transport_curl_set_client_cert(t, NULL, NULL);
    assert_int_equal(tls_call(&p, t, "GET"), ERR_UNAVAILABLE);
    transport_curl_free(t);
    t = transport_curl_new(&(struct transport_curl_options){
        .insecure = true, .cert_file = cert_file, .key_file = key_file});
    assert_int_equal(tls_call(&p, t, "GET"), ERR_NONE);
    transport_curl_free(t);
    tls_peer_stop(&p);
}

/* What a pause finds already decrypted must not be forgotten. */
static void stream_over_tls_comes_whole(void **state)
{
    (void)state;
    struct tls_peer p;
    if (!tls_peer_start(&p, /* ask_client= */ false, /* files= */ true)) {
        tls_peer_stop(&p);
        skip();
    }
    static const size_t caps[] = {1000, 32768};
    for (size_t i = 0; i < 2; i++) {
        struct transport *t =
            transport_curl_new(&(struct transport_curl_options){.insecure = true});
        _cleanup_(free_cstr)
        char *url = xasprintf("https://127.0.0.1:%d/big", p.port);
        struct http_request req = {.method = "GET", .url = url, .deadline = in_ms(LONG_MS)};
        struct http_response head = HTTP_RESPONSE_INIT;
        struct http_stream *s = NULL;
        struct err err = ERR_INIT;
        char bytes[32768];
        size_t len, all = 0;
        assert_int_equal(transport_open(t, &req, &head, &s, &err), ERR_NONE);
        assert_int_equal(head.status, 200);
        do {
            assert_int_equal(transport_read(t, s, bytes, caps[i], &len, &err), ERR_NONE);
            all += len;
        } while (len > 0);
        assert_int_equal(all, BIG_BYTES);
        transport_close(t, s);
        transport_curl_free(t);
    }
    tls_peer_stop(&p);
}

#define WITH_PEER(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_PEER(reply_comes_with_its_headers_and_times),
        WITH_PEER(date_of_a_cached_reply_is_marked),
        WITH_PEER(interim_reply_leaves_nothing_behind),
        WITH_PEER(every_status_is_a_reply),
        WITH_PEER(write_carries_method_headers_and_body),
        WITH_PEER(methods_without_body_are_sent_as_such),
        WITH_PEER(refused_connection_means_no_effect),
        WITH_PEER(failed_tls_handshake_means_no_effect),
        WITH_PEER(failures_after_sending_leave_a_write_unknown),
        WITH_PEER(call_that_is_given_up_resets_its_connection),
        WITH_PEER(write_is_never_sent_twice_on_a_dead_connection),
        WITH_PEER(get_is_sent_again_on_a_dead_connection),
        WITH_PEER(reply_over_the_limit_is_refused),
        cmocka_unit_test(cancel_ends_a_call),
        WITH_PEER(cancelled_before_it_began_sends_nothing),
        WITH_PEER(redirect_to_the_same_origin_keeps_credentials),
        WITH_PEER(redirect_to_another_origin_loses_credentials_for_good),
        WITH_PEER(userinfo_of_the_url_stays_with_its_origin),
        WITH_PEER(bad_redirects_end_the_call),
        WITH_PEER(stream_is_handed_over_until_it_falls_silent),
        WITH_PEER(stream_ends_when_the_reader_has_enough),
        WITH_PEER(refused_stream_gives_its_body_instead),
        WITH_PEER(one_slow_call_of_many_costs_the_others_nothing),
        WITH_PEER(each_of_many_has_its_own_deadline),
        WITH_PEER(each_thread_has_one_connection_until_it_ends),
        WITH_PEER(transport_may_end_before_a_thread_that_used_it),
        WITH_PEER(errors_show_no_secrets_of_the_url),
        WITH_PEER(header_with_a_line_break_is_refused),
        WITH_PEER(gzip_is_unpacked_only_where_it_was_asked_for),
        WITH_PEER(environment_proxy_is_used_only_where_it_may),
        cmocka_unit_test(no_proxy_is_read_as_go_reads_it),
        cmocka_unit_test(server_is_trusted_only_by_its_ca_and_name),
        cmocka_unit_test(client_certificate_is_shown_and_can_be_exchanged),
        cmocka_unit_test(stream_over_tls_comes_whole),
    };
    must(signal(SIGPIPE, SIG_IGN) != SIG_ERR); /* as the product does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
