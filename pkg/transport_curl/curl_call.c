#include "transport_curl/curl_call.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "transport_curl/curl_setup.h"
#include "effect/clock.h"

#define REDIRECTS_MAX 5

/* The one place that decides between "certainly no effect" and "may have happened"
 * (effect/transport.h). quiet is what it is called when nothing of a write can have left us. */
static void call_fail(struct call *c, enum err_kind quiet, const char *why)
{
    bool unknown = c->is_write && c->left_us;
    c->result = err_set(c->err, unknown ? ERR_UNKNOWN_OUTCOME : quiet, "%s %s: %s%s",
                        c->req->method, c->url.shown != NULL ? c->url.shown : "(no URL)", why,
                        unknown ? "; the request may have been carried out" : "");
    c->done = true;
    http_response_release(c->res);
}

static bool request_is_sane(const struct http_request *req)
{
    bool ends = req->deadline.ns != INT64_MAX || req->idle_ms > 0 || req->deadline_now != NULL;
    /* Whether a 3xx is the final reply is known too late for on_header. */
    return req->method != NULL && req->url != NULL && req->idle_ms >= 0 && ends &&
           (req->on_header == NULL || !req->follow_redirects);
}

/* A line break in a header would smuggle in headers of its own. */
static bool headers_are_lines(const struct http_request *req)
{
    for (size_t i = 0; i < req->header_count; i++) {
        const struct http_header *h = &req->headers[i];
        if (strpbrk(h->name, "\r\n") != NULL || strpbrk(h->value, "\r\n") != NULL) {
            return false;
        }
    }
    return true;
}

/* Readable once the socket's peer has closed it. Only that is asked for, so bytes that wait in the
 * socket do not wake anybody. */
static int hangup_watch(int fd)
{
    int watch = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLRDHUP};
    if (watch >= 0 && epoll_ctl(watch, EPOLL_CTL_ADD, fd, &event) != 0) {
        (void)close(watch);
        return -1;
    }
    return watch;
}

static bool has_hung_up(const struct call *c)
{
    struct pollfd p = {.fd = c->hangup, .events = POLLIN};
    return c->hangup >= 0 && poll(&p, 1, 0) > 0;
}

struct mono call_deadline(const struct call *c)
{
    const struct http_request *req = c->req;
    return req->deadline_now == NULL ? req->deadline
                                     : mono_min(req->deadline, req->deadline_now(req->ctx));
}

bool call_init(struct call *c, struct transport_curl *t, struct curl_slot *slot, CURL *easy,
               const struct http_request *req, struct http_response *res, struct buf *pull,
               struct err *err)
{
    must(request_is_sane(req) && (pull == NULL || req->on_data == NULL));
    *c = (struct call){.t = t,
                       .slot = slot,
                       .easy = easy,
                       .req = req,
                       .res = res,
                       .err = err,
                       .hangup = -1,
                       .pull = pull};
    c->is_write = strcmp(req->method, "GET") != 0 && strcmp(req->method, "HEAD") != 0;
    struct mono now = clock_mono(clock_os());
    c->last_byte = now;
    size_t body_max = req->body_max != 0 ? req->body_max : LIMIT_BODY_BYTES;
    *res = (struct http_response){.body = BUF_INIT(body_max), .sent = now, .received = now};
    const char *why = call_url_parse(req->url, /* base= */ NULL, &c->url);
    if (why == NULL && !headers_are_lines(req)) {
        why = "a header has a line break in it";
    }
    if (why != NULL) {
        call_fail(c, ERR_INVALID, why);
        return false;
    }
    call_url_copy(&c->url, &c->first);
    if (req->hangup_fd > 0 && !c->is_write) {
        c->hangup = hangup_watch(req->hangup_fd);
        if (c->hangup < 0) {
            call_fail(c, ERR_UNAVAILABLE, "the asker's socket cannot be watched");
            return false;
        }
    }
    int64_t due_ms;
    if (call_overdue(c, now, &due_ms)) {
        return false;
    }
    call_setup_hop(c, now);
    return true;
}

void call_release(struct call *c)
{
    must(!c->in_multi);
    /* The options point into what is freed here. */
    curl_easy_reset(c->easy);
    call_url_release(&c->url);
    call_url_release(&c->first);
    free(c->location);
    curl_slist_free_all(c->headers);
    curl_slist_free_all(c->connect_to);
    if (c->hangup >= 0) {
        (void)close(c->hangup);
    }
}

bool call_overdue(struct call *c, struct mono now, int64_t *ret_due_ms)
{
    if (cancel_is_raised(c->req->cancel)) {
        call_fail(c, ERR_CANCELLED, "cancelled");
        return true;
    }
    if (has_hung_up(c)) {
        call_fail(c, ERR_CANCELLED, "nobody waits for it any more");
        return true;
    }
    struct mono due = call_deadline(c);
    if (!mono_before(now, due)) {
        call_fail(c, ERR_TIMEOUT,
                  c->left_us ? "no complete reply before the deadline" : "the deadline passed");
        return true;
    }
    curl_off_t uploaded = 0;
    (void)curl_easy_getinfo(c->easy, CURLINFO_SIZE_UPLOAD_T, &uploaded);
    if (uploaded != c->uploaded) {
        c->uploaded = uploaded;
        c->last_byte = now;
    }
    if (c->req->idle_ms > 0) {
        due = mono_min(due, mono_add_ms(c->last_byte, c->req->idle_ms));
        if (!mono_before(now, due)) {
            char why[64];
            (void)snprintf(why, sizeof(why), "silent for %lld ms", (long long)c->req->idle_ms);
            call_fail(c, ERR_TIMEOUT, why);
            return true;
        }
    }
    *ret_due_ms = mono_diff_ms(due, now);
    return false;
}

/* Where to next, or NULL if the reply is the answer. A write is never sent to a second place by
 * itself. */
static const char *redirect_target(const struct call *c)
{
    int s = c->res->status;
    bool moved = s == 301 || s == 302 || s == 303 || s == 307 || s == 308;
    bool may = c->req->follow_redirects && !c->is_write && c->pull == NULL;
    return may && moved ? c->location : NULL;
}

static enum call_state next_hop(struct call *c, const char *target)
{
    if (++c->hops > REDIRECTS_MAX) {
        call_fail(c, ERR_UNAVAILABLE, "more than 5 redirects");
        return CALL_DONE;
    }
    struct call_url next;
    const char *why = call_url_parse(target, c->url.whole, &next);
    if (why != NULL) {
        call_fail(c, ERR_UNAVAILABLE, "redirected to a URL that is not http or https");
        return CALL_DONE;
    }
    call_url_release(&c->url);
    c->url = next;
    c->left_origin = c->left_origin || !call_url_same_origin(&c->url, &c->first);
    free_cstr(&c->location);
    buf_reset(&c->res->body);
    c->headers_done = false;
    c->sends = 0;
    call_setup_hop(c, clock_mono(clock_os()));
    return CALL_NEXT_HOP;
}

static const char *curl_why(const struct call *c, CURLcode rc)
{
    return c->why[0] != '\0' ? c->why : curl_easy_strerror(rc);
}

enum call_state call_hop_ended(struct call *c, CURLcode rc)
{
    must(!c->in_multi && !c->done);
    if (c->over_limit) {
        call_fail(c, ERR_LIMIT, "the reply is larger than the limit");
    } else if (c->stopped) {
        /* The reply's head is known and was good: this is the reader's wish, not a lost answer. */
        c->result = err_set(c->err, ERR_CANCELLED, "%s %s: stopped by the reader", c->req->method,
                            c->url.shown);
        c->done = true;
        http_response_release(c->res);
    } else if (c->late) {
        call_fail(c, ERR_TIMEOUT, "the deadline passed");
    } else if (c->resend_denied) {
        call_fail(c, ERR_UNAVAILABLE, "the connection died before a reply");
    } else if (rc == CURLE_UNSUPPORTED_PROTOCOL || rc == CURLE_URL_MALFORMAT) {
        call_fail(c, ERR_INVALID, curl_why(c, rc));
    } else if (rc != CURLE_OK) {
        call_fail(c, ERR_UNAVAILABLE, curl_why(c, rc));
    } else if (!c->headers_done) {
        call_fail(c, ERR_UNAVAILABLE, "no complete reply");
    } else {
        const char *target = redirect_target(c);
        if (target != NULL) {
            return next_hop(c, target);
        }
        c->result = ERR_NONE;
        c->done = true;
    }
    return CALL_DONE;
}
