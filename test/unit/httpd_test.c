/* The listener, asked over real sockets on the loopback. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "httpd/httpd.h"

struct handlers {
    atomic_int ready_status, synced;
    size_t mebibytes; /* of metrics */
};

static int healthz(void *ctx, struct buf *body)
{
    (void)ctx;
    buf_add_str(body, "OK\n");
    return 200;
}

static int readyz(void *ctx, struct buf *body)
{
    struct handlers *h = ctx;
    buf_add_str(body, "the caches\n");
    return atomic_load(&h->ready_status);
}

static void metrics(void *ctx, struct buf *body)
{
    const struct handlers *h = ctx;
    buf_add_str(body, "a_total 1\n");
    char *mebibyte = xcalloc(1, (1U << 20) + 1);
    memset(mebibyte, 'x', 1U << 20);
    for (size_t i = 0; i < h->mebibytes; i++) {
        buf_add_str(body, mebibyte);
    }
    free(mebibyte);
}

static void sync_git(void *ctx)
{
    struct handlers *h = ctx;
    atomic_fetch_add(&h->synced, 1);
}

static struct httpd *start(struct handlers *h, const char *listen)
{
    struct httpd *ret = NULL;
    struct err err = ERR_INIT;
    if (httpd_start(&(struct httpd_options){.listen = listen,
                                            .healthz = healthz,
                                            .readyz = readyz,
                                            .metrics = metrics,
                                            .sync_git = sync_git,
                                            .ctx = h},
                    &ret, &err) != ERR_NONE) {
        fail_msg("%s", err.msg);
    }
    assert_in_range(httpd_port(ret), 1, 65535);
    return ret;
}

/* ---- a client ---- */

/* -1 if nobody listens. */
static int dial_addr(const struct sockaddr *from, const struct sockaddr *to, socklen_t len)
{
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    /* A bound on a hang, not a measurement. */
    struct timeval limit = {.tv_sec = 10};
    must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    must(from == NULL || bind(fd, from, len) == 0);
    if (connect(fd, to, len) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static int dial(int family, int port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
                              .sin6_port = htons((uint16_t)port),
                              .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    return family == AF_INET ? dial_addr(NULL, (const struct sockaddr *)&v4, sizeof(v4))
                             : dial_addr(NULL, (const struct sockaddr *)&v6, sizeof(v6));
}

/* From one of the many addresses of the loopback. */
static int dial_from(const char *host, int port)
{
    struct sockaddr_in from = {.sin_family = AF_INET};
    must(inet_pton(AF_INET, host, &from.sin_addr) == 1);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    return dial_addr((const struct sockaddr *)&from, (const struct sockaddr *)&to, sizeof(to));
}

static void say(int fd, const char *text)
{
    size_t len = strlen(text);
    while (len > 0) {
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
        must(n > 0);
        text += n;
        len -= (size_t)n;
    }
}

/* Everything until the server closes; closes fd. */
static char *hear(int fd)
{
    struct buf b = BUF_INIT(64U << 20);
    char piece[65536];
    ssize_t n;
    while ((n = recv(fd, piece, sizeof(piece), 0)) > 0) {
        buf_add(&b, piece, (size_t)n);
    }
    if (n != 0) {
        fail_msg("no end: %s after %s", strerror(errno), buf_str(&b));
    }
    (void)close(fd);
    return buf_take(&b);
}

static char *ask(int port, const char *method, const char *path)
{
    int fd = dial(AF_INET, port);
    must(fd >= 0);
    _cleanup_(free_cstr)
    char *text = xasprintf("%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", method, path);
    say(fd, text);
    return hear(fd);
}

static int status_of(const char *reply)
{
    int status = 0;
    (void)sscanf(reply, "HTTP/1.1 %d ", &status);
    return status;
}

static const char *body_of(const char *reply)
{
    const char *body = strstr(reply, "\r\n\r\n");
    return body != NULL ? body + 4 : "(none)";
}

/* ---- routes ---- */

static void routes_and_methods(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path;
        int status;
        const char *body, *allow;
    } rows[] = {
        {"GET", "/healthz", 200, "OK\n", NULL},
        {"POST", "/healthz", 200, "OK\n", NULL}, /* any method, as helm-operator's */
        {"HEAD", "/healthz", 200, "", NULL},
        {"GET", "/readyz", 503, "the caches\n", NULL},
        {"HEAD", "/readyz", 503, "", NULL},
        {"PUT", "/readyz", 405, "method not allowed: GET, HEAD\n", "GET, HEAD"},
        {"GET", "/metrics", 200, "a_total 1\n", NULL},
        {"GET", "/metrics?name=x", 200, "a_total 1\n", NULL},
        {"HEAD", "/metrics", 200, "", NULL},
        {"POST", "/metrics", 405, "method not allowed: GET, HEAD\n", "GET, HEAD"},
        {"DELETE", "/metrics", 405, "method not allowed: GET, HEAD\n", "GET, HEAD"},
        {"POST", "/api/v1/sync-git", 200, "OK\n", NULL},
        {"GET", "/api/v1/sync-git", 405, "method not allowed: POST\n", "POST"},
        {"GET", "/", 404, NULL, NULL},
        {"GET", "/metrics/", 404, NULL, NULL},
        {"POST", "/api/v1/sync-gitx", 404, NULL, NULL},
        {"GET", "/../healthz", 404, NULL, NULL},
    };
    struct handlers h = {.ready_status = 503};
    struct httpd *d = start(&h, "127.0.0.1:0");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_(free_cstr)
        char *reply = ask(httpd_port(d), rows[i].method, rows[i].path);
        _cleanup_(free_cstr)
        char *allow = rows[i].allow != NULL ? xasprintf("\r\nAllow: %s\r\n", rows[i].allow) : NULL;
        bool ok = status_of(reply) == rows[i].status &&
                  (rows[i].body == NULL || strcmp(body_of(reply), rows[i].body) == 0) &&
                  (allow != NULL ? strstr(reply, allow) != NULL : strstr(reply, "Allow:") == NULL);
        if (!ok) {
            fail_msg("%s %s: %s", rows[i].method, rows[i].path, reply);
        }
    }
    assert_int_equal(atomic_load(&h.synced), 1);
    atomic_store(&h.ready_status, 200);
    _cleanup_(free_cstr)
    char *ready = ask(httpd_port(d), "GET", "/readyz");
    assert_int_equal(status_of(ready), 200);
    _cleanup_(free_cstr)
    char *text = ask(httpd_port(d), "GET", "/metrics");
    assert_non_null(strstr(text, "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    httpd_stop(d);
}

static void without_git_its_route_is_not_implemented(void **state)
{
    (void)state;
    struct handlers h = {0};
    struct httpd *d = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(httpd_start(&(struct httpd_options){.listen = "127.0.0.1:0",
                                                         .healthz = healthz,
                                                         .readyz = readyz,
                                                         .metrics = metrics,
                                                         .ctx = &h},
                                 &d, &err),
                     ERR_NONE);
    _cleanup_(free_cstr)
    char *reply = ask(httpd_port(d), "POST", "/api/v1/sync-git");
    assert_int_equal(status_of(reply), 501);
    httpd_stop(d);
    httpd_stop(NULL);
}

static void a_body_that_nobody_wants_is_dropped(void **state)
{
    (void)state;
    struct handlers h = {0};
    struct httpd *d = start(&h, "127.0.0.1:0");
    int fd = dial(AF_INET, httpd_port(d));
    say(fd, "POST /api/v1/sync-git HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
            "200000\r\n\r\n");
    char *body = xcalloc(1, 200001);
    memset(body, 'b', 200000);
    say(fd, body);
    free(body);
    _cleanup_(free_cstr)
    char *reply = hear(fd);
    assert_int_equal(status_of(reply), 200);
    assert_int_equal(atomic_load(&h.synced), 1);
    httpd_stop(d);
}

/* Half of the metrics would look like series that have vanished. */
static void an_answer_beyond_the_limit_is_an_error(void **state)
{
    (void)state;
    struct handlers h = {.mebibytes = 40};
    struct httpd *d = start(&h, "127.0.0.1:0");
    _cleanup_(free_cstr)
    char *reply = ask(httpd_port(d), "GET", "/metrics");
    assert_int_equal(status_of(reply), 500);
    assert_string_equal(body_of(reply), "the answer is too large\n");
    httpd_stop(d);
}

/* ---- slow and bad clients ---- */

static void half_a_request_blocks_nobody(void **state)
{
    (void)state;
    struct handlers h = {0};
    struct httpd *d = start(&h, "127.0.0.1:0");
    int slow[4];
    for (size_t i = 0; i < 4; i++) {
        slow[i] = dial(AF_INET, httpd_port(d));
        say(slow[i], i % 2 == 0 ? "GET /heal"
                                : "POST /api/v1/sync-git HTTP/1.1\r\nContent-Length: 9\r\n\r\nb");
    }
    for (int i = 0; i < 3; i++) {
        _cleanup_(free_cstr)
        char *reply = ask(httpd_port(d), "GET", "/healthz");
        assert_int_equal(status_of(reply), 200);
    }
    say(slow[0], "thz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    _cleanup_(free_cstr)
    char *late = hear(slow[0]);
    assert_int_equal(status_of(late), 200);
    for (size_t i = 1; i < 4; i++) {
        (void)close(slow[i]);
    }
    httpd_stop(d);
}

/* Opens a connection whose request the server has read: its interim answer says so. */
static int dial_seen(const char *from, int port)
{
    int fd = dial_from(from, port);
    must(fd >= 0);
    say(fd, "POST /api/v1/sync-git HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            "Content-Length: 9\r\n\r\n");
    char line[26] = {0};
    assert_int_equal(recv(fd, line, 25, MSG_WAITALL), 25);
    assert_string_equal(line, "HTTP/1.1 100 Continue\r\n\r\n");
    return fd;
}

static bool is_closed(int fd)
{
    char c;
    ssize_t n = recv(fd, &c, 1, 0);
    return n == 0 || (n < 0 && errno == ECONNRESET);
}

/* True if the server closes it without an answer. */
static bool is_shut_out(const char *from, int port)
{
    int fd = dial_from(from, port);
    must(fd >= 0);
    bool shut = is_closed(fd);
    (void)close(fd);
    return shut;
}

static void one_address_cannot_take_all_connections(void **state)
{
    (void)state;
    struct handlers h = {0};
    struct httpd *d = start(&h, "0.0.0.0:0");
    int held[32];
    for (size_t i = 0; i < 16; i++) {
        held[i] = dial_seen("127.0.0.1", httpd_port(d));
    }
    assert_true(is_shut_out("127.0.0.1", httpd_port(d)));
    for (size_t i = 16; i < 31; i++) {
        held[i] = dial_seen("127.0.0.2", httpd_port(d));
    }
    held[31] = dial_seen("127.0.0.3", httpd_port(d));
    /* All are taken: the next one waits until one is free. */
    int fd = dial_from("127.0.0.3", httpd_port(d));
    must(fd >= 0);
    say(fd, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    /* Somebody else is answered meanwhile, so the server has been through its loop. */
    say(held[1], "123456789");
    char line[16] = {0};
    assert_int_equal(recv(held[1], line, 15, MSG_WAITALL), 15);
    assert_string_equal(line, "HTTP/1.1 200 OK");
    char c;
    assert_int_equal(recv(fd, &c, 1, MSG_DONTWAIT), -1);
    (void)close(held[0]);
    _cleanup_(free_cstr)
    char *reply = hear(fd);
    assert_int_equal(status_of(reply), 200);
    for (size_t i = 1; i < 32; i++) {
        (void)close(held[i]);
    }
    httpd_stop(d);
}

/* Readers that do not read hold memory: up to a limit, and the probes do not mind. */
static void replies_that_nobody_reads_are_bounded(void **state)
{
    (void)state;
    struct handlers h = {.mebibytes = 30};
    struct httpd *d = start(&h, "127.0.0.1:0");
    int held[4];
    for (size_t i = 0; i < 4; i++) {
        held[i] = dial(AF_INET, httpd_port(d));
        say(held[i], "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        char c;
        assert_int_equal(recv(held[i], &c, 1, 0), 1); /* the answer is under way */
    }
    _cleanup_(free_cstr)
    char *fifth = ask(httpd_port(d), "GET", "/metrics");
    assert_int_equal(status_of(fifth), 503);
    _cleanup_(free_cstr)
    char *health = ask(httpd_port(d), "GET", "/healthz");
    assert_int_equal(status_of(health), 200);
    for (size_t i = 0; i < 4; i++) {
        _cleanup_(free_cstr)
        char *rest = hear(held[i]);
        assert_true(strlen(rest) > 30U << 20);
    }
    _cleanup_(free_cstr)
    char *after = ask(httpd_port(d), "HEAD", "/metrics");
    assert_int_equal(status_of(after), 200);
    httpd_stop(d);
}

static void stopping_ends_those_who_wait(void **state)
{
    (void)state;
    struct handlers h = {.mebibytes = 30};
    struct httpd *d = start(&h, "127.0.0.1:0");
    int half = dial_seen("127.0.0.1", httpd_port(d));
    int reader = dial(AF_INET, httpd_port(d));
    say(reader, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    char c;
    assert_int_equal(recv(reader, &c, 1, 0), 1);
    httpd_stop(d);
    assert_true(is_closed(half));
    (void)close(half);
    (void)close(reader);
}

static void nothing_of_a_request_is_logged(void **state)
{
    (void)state;
    struct handlers h = {0};
    struct httpd *d = start(&h, "127.0.0.1:0");
    int log = memfd_create("log", MFD_CLOEXEC);
    int kept[2] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    (void)fflush(stdout);
    must(log >= 0 && dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0);
    static const char *const requests[] = {
        "GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer s3cr3t\r\nConnection: "
        "close\r\n\r\n",
        "GET /s3cr3t HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "s3cr3t\r\n\r\n",
        "GET / HTTP/9.s3cr3t\r\nContent-Length: s3cr3t\r\n\r\n",
    };
    bool leaked = false;
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        int fd = dial(AF_INET, httpd_port(d));
        must(fd >= 0);
        say(fd, requests[i]);
        must(shutdown(fd, SHUT_WR) == 0);
        _cleanup_(free_cstr)
        char *reply = hear(fd);
        leaked = leaked || strstr(reply, "s3cr3t") != NULL;
    }
    httpd_stop(d);
    (void)fflush(stdout);
    off_t written = lseek(log, 0, SEEK_END);
    must(dup2(kept[0], STDOUT_FILENO) >= 0 && dup2(kept[1], STDERR_FILENO) >= 0);
    (void)close(kept[0]);
    (void)close(kept[1]);
    (void)close(log);
    assert_int_equal(written, 0);
    assert_false(leaked);
}

static void nonsense_and_endless_headers_end_only_their_connection(void **state)
{
    (void)state;
    struct handlers h = {0};
    struct httpd *d = start(&h, "127.0.0.1:0");
    int fd = dial(AF_INET, httpd_port(d));
    say(fd, "\x16\x03\x01\x02 what is this\r\n\r\n");
    _cleanup_(free_cstr)
    char *first = hear(fd);
    assert_int_not_equal(status_of(first), 200);
    fd = dial(AF_INET, httpd_port(d));
    say(fd, "GET /healthz HTTP/1.1\r\nHost: x\r\n");
    ssize_t n = 1;
    for (int i = 0; n > 0 && i < 100000; i++) { /* until the server has had enough */
        n = send(fd, "X-Fill: 0123456789012345678901234567890123456789\r\n", 50, MSG_NOSIGNAL);
        char c;
        if (recv(fd, &c, 1, MSG_DONTWAIT) == 0) {
            break;
        }
    }
    (void)close(fd);
    _cleanup_(free_cstr)
    char *reply = ask(httpd_port(d), "GET", "/healthz");
    assert_int_equal(status_of(reply), 200);
    httpd_stop(d);
}

/* ---- addresses ---- */

static void bad_addresses_are_refused_with_what_is_legal(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "",
        "3030",
        ":",
        ":x",
        ":-1",
        ":65536",
        ":99999999999",
        "host:80",
        "1.2.3:80",
        "1.2.3.4",
        "[::1]",
        "[::1:80",
        "::1:80",
        "[]:80",
        "[1.2.3.4]:80",
        "[::g]:80",
        " :80",
        "1.2.3.4:80 ",
        "http://1.2.3.4:80",
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct httpd *d = NULL;
        struct err err = ERR_INIT;
        enum err_kind kind =
            httpd_start(&(struct httpd_options){.listen = rows[i], .healthz = healthz}, &d, &err);
        if (kind != ERR_INVALID || strstr(err.msg, "use HOST:PORT") == NULL || d != NULL) {
            fail_msg("\"%s\": %s", rows[i], err.msg);
        }
    }
}

static void a_taken_port_is_told(void **state)
{
    (void)state;
    static const char *const forms[] = {"127.0.0.1:%d", ":%d", "0.0.0.0:%d"};
    struct handlers h = {0};
    struct httpd *d = start(&h, "0.0.0.0:0");
    for (size_t i = 0; i < 3; i++) {
        char text[32];
        struct httpd *second = NULL;
        struct err err = ERR_INIT;
        (void)snprintf(text, sizeof(text),
                       i == 0   ? forms[0]
                       : i == 1 ? forms[1]
                                : forms[2],
                       httpd_port(d));
        assert_int_equal(
            httpd_start(&(struct httpd_options){.listen = text, .healthz = healthz}, &second, &err),
            ERR_UNAVAILABLE);
        assert_non_null(strstr(err.msg, text));
        assert_null(second);
    }
    httpd_stop(d);
}

static bool have_v6(void)
{
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof(any)) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return ok;
}

static void assert_healthy(int family, int port, bool want)
{
    int fd = dial(family, port);
    assert_int_equal(fd >= 0, want);
    if (want) {
        say(fd, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        _cleanup_(free_cstr)
        char *reply = hear(fd);
        assert_int_equal(status_of(reply), 200);
    }
}

static void it_listens_where_it_was_told_to(void **state)
{
    (void)state;
    static const struct {
        const char *listen;
        bool v4, v6;
    } rows[] = {
        {":0", true, true},           {"[::]:0", true, true},     {"[::1]:0", false, true},
        {"127.0.0.1:0", true, false}, {"0.0.0.0:0", true, false},
    };
    bool v6 = have_v6();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (!v6 && rows[i].listen[0] == '[') {
            continue;
        }
        struct handlers h = {0};
        struct httpd *d = start(&h, rows[i].listen);
        assert_healthy(AF_INET, httpd_port(d), rows[i].v4);
        assert_healthy(AF_INET6, httpd_port(d), rows[i].v6 && v6);
        httpd_stop(d);
    }
    if (!v6) {
        print_message("no IPv6 here: its rows were left out\n");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_and_methods),
        cmocka_unit_test(without_git_its_route_is_not_implemented),
        cmocka_unit_test(a_body_that_nobody_wants_is_dropped),
        cmocka_unit_test(an_answer_beyond_the_limit_is_an_error),
        cmocka_unit_test(half_a_request_blocks_nobody),
        cmocka_unit_test(one_address_cannot_take_all_connections),
        cmocka_unit_test(replies_that_nobody_reads_are_bounded),
        cmocka_unit_test(stopping_ends_those_who_wait),
        cmocka_unit_test(nothing_of_a_request_is_logged),
        cmocka_unit_test(nonsense_and_endless_headers_end_only_their_connection),
        cmocka_unit_test(bad_addresses_are_refused_with_what_is_legal),
        cmocka_unit_test(a_taken_port_is_told),
        cmocka_unit_test(it_listens_where_it_was_told_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
