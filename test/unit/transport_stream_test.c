/* What a forwarder needs of transport_curl: replies that are pulled, deadlines that move, askers
 * that hang up, headers as they came. Against a raw server on loopback: each test brings the
 * function that answers. Deadlines are short where they must pass and generous where they must not.
 */
#include <arpa/inet.h>
#include <errno.h>
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
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/mtx.h"
#include "base/must.h"
#include "base/text.h"
#include "effect/clock.h"
#include "transport_curl/transport_curl.h"

#define CONNS_MAX 16
#define SHORT_MS  150
#define LONG_MS   20000

/* ---- the server ---- */

struct peer {
    int listener, port, stop_fd;
    pthread_t acceptor;
    /* Answer a request, of which the head is read; false ends the connection. */
    bool (*serve)(struct peer *p, int fd, const char *head);
    void *ctx;
    struct mtx lock;
    struct cond changed;
    pthread_t conns[CONNS_MAX];
    int conn_count; /* guarded by lock, as is all below */
    int request_count;
    int reset_count; /* connections that the client ended with RST */
    int stage;       /* the test's own */
};

struct peer_conn {
    struct peer *peer;
    int fd;
};

static bool peer_wait_fd(const struct peer *p, int fd, short events)
{
    struct pollfd fds[] = {{.fd = fd, .events = events}, {.fd = p->stop_fd, .events = POLLIN}};
    (void)poll(fds, 2, -1);
    return fds[1].revents == 0;
}

/* False: the client or the test has gone. */
static bool put(const struct peer *p, int fd, const char *bytes, size_t len)
{
    while (len > 0 && peer_wait_fd(p, fd, POLLOUT)) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN) {
            return false;
        }
        bytes += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return len == 0;
}

static bool put_str(const struct peer *p, int fd, const char *text)
{
    return put(p, fd, text, strlen(text));
}

static void peer_set_stage(struct peer *p, int stage)
{
    MTX_GUARD(&p->lock);
    p->stage = stage;
    cond_broadcast(&p->changed);
}

static void peer_wait_stage(struct peer *p, int stage)
{
    MTX_GUARD(&p->lock);
    while (p->stage < stage) {
        cond_wait_ms(&p->changed, &p->lock, 1000);
    }
}

static void peer_wait_count(struct peer *p, const int *count, int n)
{
    MTX_GUARD(&p->lock);
    while (*count < n) {
        cond_wait_ms(&p->changed, &p->lock, 1000);
    }
}

static int peer_get(struct peer *p, const int *count)
{
    MTX_GUARD(&p->lock);
    return *count;
}

static void note(struct peer *p, int *count)
{
    MTX_GUARD(&p->lock);
    ++*count;
    cond_broadcast(&p->changed);
}

/* Until the client goes; what it sends is dropped. */
static bool hang(struct peer *p, int fd)
{
    char bytes[4096];
    ssize_t n;
    do {
        n = peer_wait_fd(p, fd, POLLIN) ? recv(fd, bytes, sizeof(bytes), 0) : 0;
    } while (n > 0);
    if (n < 0 && errno == ECONNRESET) {
        note(p, &p->reset_count);
    }
    return false;
}

/* Byte by byte, so that a body stays in the socket. */
static bool read_head(const struct peer *p, int fd, char *head, size_t cap)
{
    for (size_t len = 0; len + 1 < cap; len++) {
        if (!peer_wait_fd(p, fd, POLLIN) || recv(fd, head + len, 1, 0) != 1) {
            return false;
        }
        head[len + 1] = '\0';
        if (text_has_suffix(head, "\r\n\r\n")) {
            return true;
        }
    }
    return false;
}

static void *conn_main(void *arg)
{
    struct peer_conn c = *(struct peer_conn *)arg;
    free(arg);
    char head[8192];
    while (read_head(c.peer, c.fd, head, sizeof(head))) {
        note(c.peer, &c.peer->request_count);
        if (!c.peer->serve(c.peer, c.fd, head)) {
            break;
        }
    }
    (void)close(c.fd);
    return NULL;
}

static void *accept_main(void *arg)
{
    struct peer *p = arg;
    while (peer_wait_fd(p, p->listener, POLLIN)) {
        struct peer_conn *c = xmalloc(sizeof(*c));
        *c = (struct peer_conn){.peer = p, .fd = accept(p->listener, NULL, NULL)};
        must(c->fd >= 0);
        MTX_GUARD(&p->lock);
        must(p->conn_count < CONNS_MAX);
        must(pthread_create(&p->conns[p->conn_count++], NULL, conn_main, c) == 0);
    }
    return NULL;
}

static int listen_anywhere(int *ret_port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    must(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 64) == 0);
    must(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    *ret_port = ntohs(a.sin_port);
    return fd;
}

static void peer_start(struct peer *p, bool (*serve)(struct peer *p, int fd, const char *head),
                       void *ctx)
{
    *p = (struct peer){.serve = serve, .ctx = ctx};
    mtx_init(&p->lock, "peer");
    cond_init(&p->changed);
    p->stop_fd = eventfd(0, EFD_CLOEXEC);
    p->listener = listen_anywhere(&p->port);
    must(pthread_create(&p->acceptor, NULL, accept_main, p) == 0);
}

static void peer_stop(struct peer *p)
{
    must(eventfd_write(p->stop_fd, 1) == 0);
    must(pthread_join(p->acceptor, NULL) == 0);
    for (int i = 0; i < p->conn_count; i++) {
        must(pthread_join(p->conns[i], NULL) == 0);
    }
    (void)close(p->listener);
    (void)close(p->stop_fd);
    cond_release(&p->changed);
    mtx_release(&p->lock);
}

/* ---- the client's side ---- */

struct asker {
    struct transport *t;
    char *url;
    struct http_request req;
    struct http_response head;
    struct http_stream *stream;
    struct err err;
};

static struct mono in_ms(int64_t ms)
{
    return mono_add_ms(clock_mono(clock_os()), ms);
}

static void asker_init(struct asker *a, const char *method, int port)
{
    *a = (struct asker){.err = ERR_INIT, .head = HTTP_RESPONSE_INIT};
    a->t = transport_curl_new(&(struct transport_curl_options){.accept_gzip = true});
    a->url = xasprintf("http://127.0.0.1:%d/x", port);
    a->req = (struct http_request){.method = method, .url = a->url, .deadline = in_ms(LONG_MS)};
}

static enum err_kind asker_open(struct asker *a)
{
    return transport_open(a->t, &a->req, &a->head, &a->stream, &a->err);
}

static enum err_kind asker_perform(struct asker *a)
{
    enum err_kind kind = transport_perform(a->t, &a->req, &a->head, &a->err);
    http_response_release(&a->head);
    return kind;
}

static void asker_close(struct asker *a)
{
    if (a->stream != NULL) {
        transport_close(a->t, a->stream);
        a->stream = NULL;
    }
}

static void asker_release(struct asker *a)
{
    asker_close(a);
    transport_curl_free(a->t);
    free(a->url);
}

/* All of the body, in reads of cap bytes; how it ended. */
static enum err_kind asker_read_all(struct asker *a, size_t cap, struct buf *ret)
{
    char bytes[70000];
    must(cap <= sizeof(bytes));
    for (;;) {
        size_t len = 0;
        enum err_kind kind = transport_read(a->t, a->stream, bytes, cap, &len, &a->err);
        if (kind != ERR_NONE || len == 0) {
            return kind;
        }
        must(len <= cap);
        buf_add(ret, bytes, len);
    }
}

/* ---- bodies ---- */

#define PATTERN_LEN 200000

static char *pattern(void)
{
    char *bytes = xmalloc(PATTERN_LEN);
    for (size_t i = 0; i < PATTERN_LEN; i++) {
        bytes[i] = (char)('a' + i * 7 % 26 + i / 1000 % 5);
    }
    return bytes;
}

struct body_row {
    const char *name, *head;
    bool chunked, cut;
    enum err_kind get_ends, patch_ends;
};

static bool serve_body(struct peer *p, int fd, const char *head)
{
    const struct body_row *row = p->ctx;
    (void)head;
    _cleanup_(free_cstr)
    char *bytes = pattern();
    bool ok = put_str(p, fd, row->head);
    if (!row->chunked) {
        ok = ok && put(p, fd, bytes, row->cut ? PATTERN_LEN / 2 : PATTERN_LEN);
        return ok && !row->cut && strstr(row->head, "close") == NULL;
    }
    size_t chunk = PATTERN_LEN / 4;
    for (int i = 0; ok && i < (row->cut ? 2 : 4); i++) {
        char size[32];
        (void)snprintf(size, sizeof(size), "%zx\r\n", chunk);
        ok = put_str(p, fd, size) && put(p, fd, bytes + (size_t)i * chunk, chunk) &&
             put_str(p, fd, "\r\n");
    }
    return ok && !row->cut && put_str(p, fd, "0\r\nETag: trailer\r\nHTTP/1.1 500 Evil: x\r\n\r\n");
}

static const struct body_row BODIES[] = {
    {"length", "HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n", false, false, ERR_NONE,
     ERR_NONE},
    {"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true, false, ERR_NONE,
     ERR_NONE},
    {"until the end", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", false, false, ERR_NONE,
     ERR_NONE},
    {"not found", "HTTP/1.1 404 Not Found\r\nContent-Length: 200000\r\n\r\n", false, false,
     ERR_NONE, ERR_NONE},
    {"a redirect", "HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 200000\r\n\r\n", false,
     false, ERR_NONE, ERR_NONE},
    {"what is called gzip",
     "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 200000\r\n\r\n", false, false,
     ERR_NONE, ERR_NONE},
    {"length, cut", "HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n", false, true,
     ERR_UNAVAILABLE, ERR_UNKNOWN_OUTCOME},
    {"chunks, cut", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true, true,
     ERR_UNAVAILABLE, ERR_UNKNOWN_OUTCOME},
};

static void check_body(const struct body_row *row, const char *method, size_t cap)
{
    struct peer p;
    peer_start(&p, serve_body, (void *)(uintptr_t)row);
    struct asker a;
    asker_init(&a, method, p.port);
    _cleanup_(free_cstr)
    char *bytes = pattern();
    struct buf got = BUF_INIT(1 << 20);
    a.req.follow_redirects = true; /* is not used */
    assert_int_equal(asker_open(&a), ERR_NONE);
    assert_int_equal(a.head.body.len, 0);
    enum err_kind ends = strcmp(method, "GET") == 0 ? row->get_ends : row->patch_ends;
    enum err_kind kind = asker_read_all(&a, cap, &got);
    size_t want = row->cut ? PATTERN_LEN / 2 : PATTERN_LEN;
    if (kind != ends || got.len != want || memcmp(buf_str(&got), bytes, want) != 0) {
        fail_msg("%s, %s, by %zu: %s after %zu bytes", row->name, method, cap, err_kind_name(kind),
                 got.len);
    }
    /* The end stays the end. */
    assert_int_equal(asker_read_all(&a, cap, &got), ends);
    assert_int_equal(got.len, want);
    buf_release(&got);
    asker_release(&a);
    peer_stop(&p);
}

static void body_of_any_form_comes_whole_or_with_its_error(void **state)
{
    (void)state;
    static const size_t caps[] = {977, 16384, 70000};
    for (size_t i = 0; i < sizeof(BODIES) / sizeof(BODIES[0]); i++) {
        for (size_t j = 0; j < 3; j++) {
            check_body(&BODIES[i], "GET", caps[j]);
        }
        check_body(&BODIES[i], "PATCH", 16384);
    }
}

static bool serve_nothing(struct peer *p, int fd, const char *head)
{
    return put_str(p, fd,
                   strstr(head, "HEAD ") != NULL ? "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"
                                                 : "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

static void empty_body_ends_at_once(void **state)
{
    (void)state;
    struct peer p;
    peer_start(&p, serve_nothing, NULL);
    static const char *const methods[] = {"GET", "HEAD", "DELETE"};
    for (size_t i = 0; i < 3; i++) {
        struct asker a;
        asker_init(&a, methods[i], p.port);
        struct buf got = BUF_INIT(16);
        assert_int_equal(asker_open(&a), ERR_NONE);
        assert_int_equal(asker_read_all(&a, 10, &got), ERR_NONE);
        assert_int_equal(got.len, 0);
        asker_release(&a);
    }
    peer_stop(&p);
}

#define HUGE_MB 50

static bool serve_huge(struct peer *p, int fd, const char *head)
{
    (void)head;
    static const char block[1 << 16];
    bool ok = put_str(p, fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; ok && i < HUGE_MB * 16; i++) {
        ok = put_str(p, fd, "10000\r\n") && put(p, fd, block, sizeof(block)) &&
             put_str(p, fd, "\r\n");
    }
    ok = ok && put_str(p, fd, "0\r\n\r\n");
    peer_set_stage(p, 1);
    return ok;
}

static size_t resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    size_t pages = 0;
    must(f != NULL && fscanf(f, "%*u %zu", &pages) == 1);
    (void)fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void huge_body_waits_at_the_server(void **state)
{
    (void)state;
    struct peer p;
    peer_start(&p, serve_huge, NULL);
    struct asker a;
    asker_init(&a, "GET", p.port);
    assert_int_equal(asker_open(&a), ERR_NONE);
    char bytes[32768];
    size_t len, all = 0, most = 0;
    size_t before = resident_bytes();
    do {
        assert_int_equal(transport_read(a.t, a.stream, bytes, sizeof(bytes), &len, &a.err),
                         ERR_NONE);
        all += len;
        if (all < (size_t)HUGE_MB << 19) {
            /* More than half is to come, and that is more than two sockets hold. */
            assert_int_equal(peer_get(&p, &p.stage), 0);
        }
        size_t now = resident_bytes();
        most = now > most ? now : most;
    } while (len > 0);
    assert_int_equal(all, (size_t)HUGE_MB << 20);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(most < before + (1 << 20));
#else
    (void)before;
#endif
    asker_release(&a);
    peer_stop(&p);
}

/* ---- connections ---- */

static void connection_is_kept_after_the_end_and_reset_before_it(void **state)
{
    (void)state;
    struct peer p;
    peer_start(&p, serve_body, (void *)(uintptr_t)&BODIES[0]);
    struct asker a;
    asker_init(&a, "GET", p.port);
    for (int i = 0; i < 3; i++) {
        struct buf got = BUF_INIT(1 << 20);
        assert_int_equal(asker_open(&a), ERR_NONE);
        assert_int_equal(asker_read_all(&a, 70000, &got), ERR_NONE);
        asker_close(&a);
        buf_release(&got);
    }
    assert_int_equal(peer_get(&p, &p.conn_count), 1);
    asker_release(&a);
    peer_stop(&p);
    /* This one cannot be sent to its end. */
    peer_start(&p, serve_huge, NULL);
    asker_init(&a, "GET", p.port);
    for (int i = 0; i < 2; i++) {
        char byte;
        size_t len;
        assert_int_equal(asker_open(&a), ERR_NONE);
        assert_int_equal(transport_read(a.t, a.stream, &byte, 1, &len, &a.err), ERR_NONE);
        asker_close(&a);
        peer_wait_stage(&p, 1);
        peer_set_stage(&p, 0);
        peer_wait_count(&p, &p.conn_count, i + 1);
    }
    asker_release(&a);
    peer_stop(&p);
}

/* Half a body, and then nothing. */
static bool serve_half(struct peer *p, int fd, const char *head)
{
    (void)head;
    (void)put_str(p, fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
    return hang(p, fd);
}

/* No reply at all. */
static bool serve_silence(struct peer *p, int fd, const char *head)
{
    (void)head;
    return hang(p, fd);
}

static void stream_that_is_given_up_resets_its_connection(void **state)
{
    (void)state;
    struct peer p;
    peer_start(&p, serve_half, NULL);
    struct asker a;
    asker_init(&a, "GET", p.port);
    assert_int_equal(asker_open(&a), ERR_NONE);
    asker_close(&a);
    peer_wait_count(&p, &p.reset_count, 1);
    asker_release(&a);
    peer_stop(&p);
}

/* Two replies that each wait for the other's first half to be read. */
struct pair {
    struct peer peer;
    int halves; /* guarded by peer.lock */
};

static bool serve_when_both_read(struct peer *p, int fd, const char *head)
{
    (void)head;
    (void)put_str(p, fd, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
    peer_wait_count(p, &((struct pair *)p->ctx)->halves, 2);
    return put_str(p, fd, "half");
}

static void *read_one_of_two(void *arg)
{
    struct asker *a = arg;
    struct pair *pair = a->req.ctx;
    char bytes[16];
    size_t len;
    struct buf got = BUF_INIT(16);
    assert_int_equal(asker_open(a), ERR_NONE);
    assert_int_equal(transport_read(a->t, a->stream, bytes, sizeof(bytes), &len, &a->err),
                     ERR_NONE);
    note(&pair->peer, &pair->halves);
    buf_add(&got, bytes, len);
    assert_int_equal(asker_read_all(a, 16, &got), ERR_NONE);
    assert_string_equal(buf_str(&got), "halfhalf");
    buf_release(&got);
    asker_close(a);
    return NULL;
}

static void threads_stream_side_by_side(void **state)
{
    (void)state;
    struct pair pair = {0};
    peer_start(&pair.peer, serve_when_both_read, &pair);
    struct asker a;
    asker_init(&a, "GET", pair.peer.port);
    a.req.ctx = &pair;
    struct asker b = a;
    pthread_t threads[2];
    must(pthread_create(&threads[0], NULL, read_one_of_two, &a) == 0);
    must(pthread_create(&threads[1], NULL, read_one_of_two, &b) == 0);
    must(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
    asker_release(&a);
    peer_stop(&pair.peer);
}

/* ---- ends ---- */

struct ender {
    struct peer *peer;
    struct cancel cancel;
    int fds[2]; /* [0] is what is watched; [1] its peer */
};

static void *cancel_when_asked(void *arg)
{
    struct ender *e = arg;
    peer_wait_count(e->peer, &e->peer->request_count, 1);
    cancel_raise(&e->cancel);
    return NULL;
}

static void *hang_up_when_asked(void *arg)
{
    struct ender *e = arg;
    peer_wait_count(e->peer, &e->peer->request_count, 1);
    (void)poll(NULL, 0, 2 * SHORT_MS); /* the call sleeps by now, libcurl's short timers are over */
    (void)close(e->fds[1]);
    return NULL;
}

/* How a call ends that has read "half", or has not got a reply (silent), and is ended by how. */
static enum err_kind ended(const char *method, bool silent, bool by_hangup, bool pipelined)
{
    struct peer p;
    peer_start(&p, silent ? serve_silence : serve_half, NULL);
    struct ender e = {.peer = &p};
    cancel_init(&e.cancel);
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, e.fds) == 0);
    if (pipelined) {
        must(write(e.fds[1], "GET /next", 9) == 9);
    }
    struct asker a;
    asker_init(&a, method, p.port);
    a.req.cancel = &e.cancel;
    a.req.hangup_fd = e.fds[0];
    pthread_t thread;
    must(pthread_create(&thread, NULL, by_hangup ? hang_up_when_asked : cancel_when_asked, &e) ==
         0);
    struct buf got = BUF_INIT(1024);
    enum err_kind kind = asker_open(&a);
    if (kind == ERR_NONE) {
        kind = asker_read_all(&a, 16, &got);
        assert_true(got.len == 0 || strcmp(buf_str(&got), "half") == 0);
    }
    must(pthread_join(thread, NULL) == 0);
    buf_release(&got);
    asker_release(&a);
    peer_stop(&p);
    (void)close(e.fds[0]);
    if (!by_hangup) {
        (void)close(e.fds[1]);
    }
    cancel_release(&e.cancel);
    return kind;
}

static void cancel_and_hangup_wake_whoever_waits(void **state)
{
    (void)state;
    int64_t quickest_ms = INT64_MAX;
    for (int silent = 0; silent < 2; silent++) {
        assert_int_equal(ended("GET", silent, false, false), ERR_CANCELLED);
        assert_int_equal(ended("PATCH", silent, false, false), ERR_UNKNOWN_OUTCOME);
        for (int pipelined = 0; pipelined < 2; pipelined++) {
            struct mono begin = clock_mono(clock_os());
            assert_int_equal(ended("GET", silent, true, pipelined), ERR_CANCELLED);
            int64_t ms = mono_diff_ms(clock_mono(clock_os()), begin);
            quickest_ms = ms < quickest_ms ? ms : quickest_ms;
        }
    }
    /* It was the event, and not the look that is taken each second. */
    assert_true(quickest_ms < 800);
}

static struct mono count_asks(void *ctx)
{
    int *asks = ctx;
    ++*asks;
    return MONO_NEVER;
}

static bool serve_late(struct peer *p, int fd, const char *head)
{
    (void)head;
    (void)poll(&(struct pollfd){.fd = p->stop_fd, .events = POLLIN}, 1, 2 * SHORT_MS);
    return put_str(p, fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

static void write_waits_for_its_answer_when_its_asker_is_gone(void **state)
{
    (void)state;
    struct peer p;
    peer_start(&p, serve_late, NULL);
    static const char *const methods[] = {"PATCH", "DELETE", "GET"};
    for (size_t i = 0; i < 3; i++) {
        int fds[2];
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
        (void)close(fds[1]);
        struct asker a;
        asker_init(&a, methods[i], p.port);
        a.req.hangup_fd = fds[0];
        assert_int_equal(asker_perform(&a), i < 2 ? ERR_NONE : ERR_CANCELLED);
        asker_release(&a);
        (void)close(fds[0]);
    }
    peer_stop(&p);
}

static void bytes_that_the_asker_sent_ahead_cost_no_time(void **state)
{
    (void)state;
    struct peer p;
    peer_start(&p, serve_late, NULL);
    int fds[2], asks = 0;
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    must(write(fds[1], "GET /next", 9) == 9);
    struct asker a;
    asker_init(&a, "GET", p.port);
    a.req.hangup_fd = fds[0];
    a.req.deadline_now = count_asks;
    a.req.ctx = &asks;
    assert_int_equal(asker_perform(&a), ERR_NONE);
    assert_true(asks < 30); /* each round asks twice */
    asker_release(&a);
    (void)close(fds[0]);
    (void)close(fds[1]);
    peer_stop(&p);
}

static void silence_counts_only_while_somebody_reads(void **state)
{
    (void)state;
    struct peer p;
    peer_start(&p, serve_half, NULL);
    struct asker a;
    asker_init(&a, "GET", p.port);
    a.req.deadline = MONO_NEVER;
    a.req.idle_ms = SHORT_MS;
    char bytes[16];
    size_t len;
    assert_int_equal(asker_open(&a), ERR_NONE);
    (void)poll(NULL, 0, 2 * SHORT_MS);
    assert_int_equal(transport_read(a.t, a.stream, bytes, sizeof(bytes), &len, &a.err), ERR_NONE);
    (void)poll(NULL, 0, 2 * SHORT_MS);
    struct mono begin = clock_mono(clock_os());
    assert_int_equal(transport_read(a.t, a.stream, bytes, sizeof(bytes), &len, &a.err),
                     ERR_TIMEOUT);
    assert_true(mono_diff_ms(clock_mono(clock_os()), begin) >= SHORT_MS);
    asker_release(&a);
    peer_stop(&p);
}

/* ---- a deadline that moves ---- */

struct lease {
    struct mono first;
    struct mono renewed; /* from the second ask on */
    int asks;
    int past_from; /* > 0: long past from this ask on */
};

static struct mono lease_now(void *ctx)
{
    struct lease *l = ctx;
    l->asks++;
    if (l->past_from > 0 && l->asks >= l->past_from) {
        return (struct mono){0};
    }
    return l->asks == 1 ? l->first : l->renewed;
}

static void deadline_that_moves_on_keeps_a_call_alive(void **state)
{
    (void)state;
    struct peer p;
    peer_start(&p, serve_late, NULL);
    struct asker a;
    asker_init(&a, "PATCH", p.port);
    struct lease l = {.first = in_ms(SHORT_MS), .renewed = in_ms(LONG_MS)};
    a.req.deadline = MONO_NEVER;
    a.req.deadline_now = lease_now;
    a.req.ctx = &l;
    assert_int_equal(asker_perform(&a), ERR_NONE);
    assert_true(mono_before(l.first, clock_mono(clock_os())));
    /* And the fixed one counts all the same, in a stream too. */
    a.req.deadline = in_ms(SHORT_MS);
    assert_int_equal(asker_open(&a), ERR_UNKNOWN_OUTCOME);
    asker_release(&a);
    peer_stop(&p);
}

static void passed_deadline_lets_nothing_out(void **state)
{
    (void)state;
    bool looked_last_of_all = false;
    for (int from = 1; from <= 8; from++) {
        int port;
        int listener = listen_anywhere(&port);
        struct asker a;
        asker_init(&a, "PATCH", port);
        struct lease l = {.first = in_ms(LONG_MS), .renewed = in_ms(LONG_MS), .past_from = from};
        a.req.deadline_now = lease_now;
        a.req.ctx = &l;
        enum err_kind kind = asker_perform(&a);
        asker_release(&a);
        /* What the client did stands in the sockets. */
        bool stood = poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 0) == 1;
        int fd = stood ? accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;
        char byte;
        bool arrived = fd >= 0 && recv(fd, &byte, 1, 0) == 1;
        assert_int_equal(kind, arrived ? ERR_UNKNOWN_OUTCOME : ERR_TIMEOUT);
        if (from == 1) {
            assert_true(fd < 0);
        }
        looked_last_of_all = looked_last_of_all || (fd >= 0 && !arrived);
        if (fd >= 0) {
            (void)close(fd);
        }
        (void)close(listener);
    }
    /* Once at least the connection stood, and the last look stopped it. */
    assert_true(looked_last_of_all);
}

static struct mono deadline_of(void *ctx)
{
    return *(const struct mono *)ctx;
}

static char process_state(pid_t pid)
{
    char path[64], stat[512] = "";
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    must(f != NULL && fgets(stat, sizeof(stat), f) != NULL);
    (void)fclose(f);
    const char *end = strrchr(stat, ')');
    must(end != NULL && end[1] != '\0');
    return end[2];
}

/* Bytes until nothing more comes for a while, or the end. */
static size_t drain(int fd, int patience_ms, bool *ret_ended)
{
    size_t all = 0;
    char bytes[65536];
    *ret_ended = false;
    while (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, patience_ms) > 0) {
        ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
        if (n <= 0) {
            *ret_ended = true;
            break;
        }
        all += (size_t)n;
    }
    return all;
}

/* Stopped in the middle of a large body, woken after its deadline: what its kernel held is out, but
 * it adds nothing. */
static void woken_process_sends_no_further_byte(void **state)
{
    (void)state;
    int port;
    int listener = listen_anywhere(&port);
    struct mono deadline = in_ms(1000);
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        size_t size = (size_t)64 << 20;
        struct asker a;
        asker_init(&a, "PUT", port);
        a.req.body = xcalloc(1, size);
        a.req.body_len = size;
        a.req.deadline = MONO_NEVER;
        a.req.deadline_now = deadline_of;
        a.req.ctx = &deadline;
        _exit(asker_perform(&a) == ERR_UNKNOWN_OUTCOME ? 0 : 1);
    }
    int fd = accept(listener, NULL, NULL);
    char byte;
    must(recv(fd, &byte, 1, 0) == 1);
    while (process_state(pid) != 'S') { /* until both sockets are full and it waits */
        (void)sched_yield();
    }
    must(kill(pid, SIGSTOP) == 0);
    int status;
    must(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    bool over;
    size_t before = drain(fd, 200, &over);
    assert_true(before > 0 && !over);
    while (mono_before(clock_mono(clock_os()), deadline)) {
        (void)poll(NULL, 0, 20);
    }
    must(kill(pid, SIGCONT) == 0);
    assert_int_equal(drain(fd, LONG_MS, &over), 0);
    assert_true(over);
    must(waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    (void)close(fd);
    (void)close(listener);
}

/* ---- headers ---- */

static bool serve_headers(struct peer *p, int fd, const char *head)
{
    (void)head;
    return put_str(p, fd,
                   "HTTP/1.1 103 Early Hints\r\nLink: early\r\n\r\n"
                   "HTTP/1.1 200 OK\r\nWarning: 299 - \"old API\"\r\nWarning: 299 - \"older\"\r\n"
                   "etag:   W/\"1\" \r\nX-Empty:\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "2\r\nok\r\n0\r\nX-Trailer: 1\r\n\r\n");
}

static void take_header(void *ctx, const char *name, const char *value)
{
    buf_addf(ctx, "%s=%s;", name, value);
}

static void headers_are_those_of_the_final_reply(void **state)
{
    (void)state;
    struct peer p;
    peer_start(&p, serve_headers, NULL);
    for (int i = 0; i < 2; i++) {
        struct buf seen = BUF_INIT(4096), body = BUF_INIT(16);
        struct asker a;
        asker_init(&a, "GET", p.port);
        a.req.on_header = take_header;
        a.req.ctx = &seen;
        if (i == 0) {
            assert_int_equal(asker_perform(&a), ERR_NONE);
        } else {
            assert_int_equal(asker_open(&a), ERR_NONE);
            assert_int_equal(asker_read_all(&a, 16, &body), ERR_NONE);
        }
        assert_string_equal(buf_str(&seen), "Warning=299 - \"old API\";Warning=299 - \"older\";"
                                            "etag=W/\"1\";X-Empty=;Transfer-Encoding=chunked;");
        assert_string_equal(a.head.etag, "W/\"1\"");
        asker_release(&a);
        buf_release(&seen);
        buf_release(&body);
    }
    peer_stop(&p);
}

static bool serve_echo(struct peer *p, int fd, const char *head)
{
    char length[64];
    (void)snprintf(length, sizeof(length), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n",
                   strlen(head));
    return put_str(p, fd, length) && put_str(p, fd, head);
}

static void request_is_sent_as_it_was_given(void **state)
{
    (void)state;
    static const char *const targets[] = {"/",
                                          "/api/v1//x%2fy%2F..z/",
                                          "/a?labelSelector=a%3Db%2Cc+d&x=/../y?&z=[1]|{}",
                                          "/a?b=%zz&c=%",
                                          "/a%zz/b",
                                          "/a;b=c,d@e:f*(g)'!$",
                                          "/a?&&="};
    struct peer p;
    peer_start(&p, serve_echo, NULL);
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        struct asker a;
        asker_init(&a, "POST", p.port);
        free(a.url);
        a.url = xasprintf("http://127.0.0.1:%d%s", p.port, targets[i]);
        struct http_header accept = {"Accept", "a/b"};
        a.req.url = a.url;
        a.req.headers = &accept;
        a.req.header_count = 1;
        struct buf got = BUF_INIT(4096);
        assert_int_equal(asker_open(&a), ERR_NONE);
        assert_int_equal(asker_read_all(&a, 100, &got), ERR_NONE);
        _cleanup_(free_cstr)
        char *want = xasprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: a/b\r\n"
                               "Content-Length: 0\r\n\r\n",
                               targets[i], p.port);
        assert_string_equal(buf_str(&got), want);
        buf_release(&got);
        asker_release(&a);
    }
    peer_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(woken_process_sends_no_further_byte), /* first: it forks */
        cmocka_unit_test(body_of_any_form_comes_whole_or_with_its_error),
        cmocka_unit_test(empty_body_ends_at_once),
        cmocka_unit_test(huge_body_waits_at_the_server),
        cmocka_unit_test(connection_is_kept_after_the_end_and_reset_before_it),
        cmocka_unit_test(stream_that_is_given_up_resets_its_connection),
        cmocka_unit_test(threads_stream_side_by_side),
        cmocka_unit_test(cancel_and_hangup_wake_whoever_waits),
        cmocka_unit_test(write_waits_for_its_answer_when_its_asker_is_gone),
        cmocka_unit_test(bytes_that_the_asker_sent_ahead_cost_no_time),
        cmocka_unit_test(silence_counts_only_while_somebody_reads),
        cmocka_unit_test(deadline_that_moves_on_keeps_a_call_alive),
        cmocka_unit_test(passed_deadline_lets_nothing_out),
        cmocka_unit_test(headers_are_those_of_the_final_reply),
        cmocka_unit_test(request_is_sent_as_it_was_given),
    };
    must(signal(SIGPIPE, SIG_IGN) != SIG_ERR); /* as the product does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
