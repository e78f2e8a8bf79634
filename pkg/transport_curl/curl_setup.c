#include "transport_curl/curl_setup.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "effect/clock.h"

#define CONNECT_TIMEOUT_MS   INT64_C(10000)
#define USER_TIMEOUT_MIN_MS  INT64_C(1000) /* one retransmission must have its chance */
#define KEEPALIVE_IDLE_S     30L
#define KEEPALIVE_INTERVAL_S 10L
#define CONNECTION_LIFETIME_MAX_S                                                                  \
    300L /* so that load spreads over API servers that come and go                                 \
          */
/* Go's API server closes a connection that was idle for 90 s; one that we found idle so long would
 * be a race, and a write that loses it has an unknown outcome. */
#define CONNECTION_IDLE_MAX_S 60L
#define CA_CACHE_S            300L /* a CA file that was replaced is noticed within this */
#define HEADER_VALUE_MAX      8192

/* libcurl calls this each time it is about to send, on a connection that stands (TLS included). */
static int on_send(void *clientp, char *remote_ip, char *local_ip, int remote_port, int local_port)
{
    (void)remote_ip;
    (void)local_ip;
    (void)remote_port;
    (void)local_port;
    struct call *c = clientp;
    if (c->is_write && c->sends > 0) {
        c->resend_denied = true;
        return CURL_PREREQFUNC_ABORT;
    }
    /* Connecting may have taken until now, or this process was stopped meanwhile. */
    c->late = !mono_before(clock_mono(clock_os()), call_deadline(c));
    if (c->late) {
        return CURL_PREREQFUNC_ABORT;
    }
    if (c->sends == 0) {
        c->res->sent = clock_mono(clock_os());
    }
    c->sends++;
    c->left_us = true;
    return CURL_PREREQFUNC_OK;
}

static void header_copy(char *dst, size_t cap, const char *value, size_t len)
{
    size_t n = len < cap ? len : cap - 1;
    memcpy(dst, value, n);
    dst[n] = '\0';
}

/* "HTTP/1.1 200 OK" starts a reply: forget what an interim (1xx) one said. 0 if line is no status
 * line. */
static int status_of_line(const char *line, size_t len)
{
    const char *space = memchr(line, ' ', len);
    if (len < 12 || strncasecmp(line, "HTTP/", 5) != 0 || space == NULL ||
        (size_t)(space - line) + 4 > len) {
        return 0;
    }
    int status = 0;
    for (int i = 1; i <= 3; i++) {
        if (space[i] < '0' || space[i] > '9') {
            return 0;
        }
        status = status * 10 + (space[i] - '0');
    }
    return status;
}

static void reply_begins(struct call *c, int status)
{
    struct http_response *r = c->res;
    r->status = status;
    r->date[0] = r->etag[0] = r->last_modified[0] = '\0';
    r->content_type[0] = r->retry_after[0] = '\0';
    r->date_unreliable = false;
    free_cstr(&c->location);
    buf_reset(&r->body);
    c->headers_done = false;
}

/* Does this header say that the reply may be a cache's, and its Date as old as that? Warnings 1xx
 * are caches' (RFC 9111 5.5); the API server itself says 299 of deprecated APIs. */
static bool is_of_cache(const char *name, size_t name_len, const char *value, size_t len)
{
    static const char *const signs[] = {"Age", "X-Cache", "Warning"};
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
        if (strlen(signs[i]) == name_len && strncasecmp(signs[i], name, name_len) == 0) {
            return i < 2 || (len > 0 && value[0] == '1');
        }
    }
    return false;
}

static void take_header(struct call *c, const char *name, size_t name_len, const char *value,
                        size_t len)
{
    struct http_response *r = c->res;
    const struct {
        const char *name;
        char *dst;
        size_t cap;
    } wanted[] = {
        {"Date", r->date, sizeof(r->date)},
        {"ETag", r->etag, sizeof(r->etag)},
        {"Last-Modified", r->last_modified, sizeof(r->last_modified)},
        {"Content-Type", r->content_type, sizeof(r->content_type)},
        {"Retry-After", r->retry_after, sizeof(r->retry_after)},
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        if (strlen(wanted[i].name) == name_len &&
            strncasecmp(wanted[i].name, name, name_len) == 0) {
            header_copy(wanted[i].dst, wanted[i].cap, value, len);
        }
    }
    if (is_of_cache(name, name_len, value, len)) {
        r->date_unreliable = true;
    }
    if (name_len == 8 && strncasecmp("Location", name, 8) == 0 && len <= HEADER_VALUE_MAX) {
        free(c->location);
        c->location = xstrndup(value, len);
    }
}

static void hand_over_header(const struct call *c, const char *name, size_t name_len,
                             const char *value, size_t len)
{
    if (c->req->on_header == NULL || c->res->status < 200) {
        return;
    }
    _cleanup_(free_cstr)
    char *name_text = xstrndup(name, name_len);
    _cleanup_(free_cstr)
    char *value_text = xstrndup(value, len);
    c->req->on_header(c->req->ctx, name_text, value_text);
}

static size_t on_header(char *line, size_t size, size_t n, void *userdata)
{
    struct call *c = userdata;
    size_t whole = size * n;
    size_t len = whole;
    c->last_byte = clock_mono(clock_os());
    while (len > 0 && (line[len - 1] == '\r' || line[len - 1] == '\n' || line[len - 1] == ' ')) {
        len--;
    }
    /* Trailers come through here too: after the head is complete, nothing of it changes any more.
     */
    if (c->headers_done) {
        return whole;
    }
    int status = status_of_line(line, len);
    if (status != 0) {
        reply_begins(c, status);
        return whole;
    }
    if (len == 0) {
        c->headers_done = c->res->status >= 200;
        c->res->received = c->last_byte;
        return whole;
    }
    const char *colon = memchr(line, ':', len);
    if (colon != NULL) {
        const char *value = colon + 1;
        while (value < line + len && (*value == ' ' || *value == '\t')) {
            value++;
        }
        size_t value_len = (size_t)(line + len - value);
        take_header(c, line, (size_t)(colon - line), value, value_len);
        hand_over_header(c, line, (size_t)(colon - line), value, value_len);
    }
    return whole;
}

/* At most CURL_MAX_WRITE_SIZE bytes come at once, so an empty buffer takes any piece. */
static size_t keep_for_reader(struct call *c, const char *bytes, size_t len)
{
    _Static_assert(TRANSPORT_STREAM_BYTES >= CURL_MAX_WRITE_SIZE, "or it would pause for ever");
    c->paused = len > c->pull->max_len - c->pull->len;
    if (c->paused) {
        return CURL_WRITEFUNC_PAUSE;
    }
    buf_add(c->pull, bytes, len);
    return len;
}

static size_t on_body(char *bytes, size_t size, size_t n, void *userdata)
{
    struct call *c = userdata;
    size_t len = size * n;
    c->last_byte = clock_mono(clock_os());
    if (c->pull != NULL) {
        return keep_for_reader(c, bytes, len);
    }
    if (c->req->on_data != NULL && c->res->status / 100 == 2) {
        c->stopped = !c->req->on_data(c->req->ctx, bytes, len);
        return c->stopped ? 0 : len;
    }
    buf_add(&c->res->body, bytes, len);
    c->over_limit = c->res->body.overflow;
    return c->over_limit ? 0 : len;
}

#define SET(option, value) must(curl_easy_setopt(easy, option, value) == CURLE_OK)

static void set_blob(CURL *easy, CURLoption option, const char *text)
{
    /* COPY: the certificate may be exchanged while connections are made. */
    struct curl_blob blob = {
        .data = (void *)(uintptr_t)text, .len = strlen(text), .flags = CURL_BLOB_COPY};
    must(curl_easy_setopt(easy, option, &blob) == CURLE_OK);
}

static void set_tls(struct call *c)
{
    CURL *easy = c->easy;
    const struct transport_curl_options *o = &c->t->options;
    if (o->ca_data != NULL) {
        set_blob(easy, CURLOPT_CAINFO_BLOB, o->ca_data);
        SET(CURLOPT_CAPATH, NULL);
    } else if (o->ca_file != NULL) {
        SET(CURLOPT_CAINFO, o->ca_file);
        SET(CURLOPT_CAPATH, NULL);
    }
    SET(CURLOPT_CA_CACHE_TIMEOUT, CA_CACHE_S);
    SET(CURLOPT_SSL_VERIFYPEER, o->insecure ? 0L : 1L);
    SET(CURLOPT_SSL_VERIFYHOST, o->insecure ? 0L : 2L);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    MTX_GUARD(&c->t->lock);
    if (c->t->cert_data != NULL) {
        set_blob(easy, CURLOPT_SSLCERT_BLOB, c->t->cert_data);
        set_blob(easy, CURLOPT_SSLKEY_BLOB, c->t->key_data);
    } else if (o->cert_file != NULL) {
        SET(CURLOPT_SSLCERT, o->cert_file);
        SET(CURLOPT_SSLKEY, o->key_file);
    }
}

static void set_proxy(struct call *c)
{
    CURL *easy = c->easy;
    const char *proxy = "";
    switch (c->t->options.proxy) {
    case TRANSPORT_CURL_PROXY_NONE:
        break;
    case TRANSPORT_CURL_PROXY_URL:
        proxy = c->t->options.proxy_url;
        break;
    case TRANSPORT_CURL_PROXY_ENVIRONMENT:
        proxy = proxy_env_for(&c->t->proxy_env, c->url.scheme, c->url.host, c->url.port);
        break;
    }
    /* Both are set always: "" for the proxy keeps libcurl from looking at the environment, "" for
     * the exceptions too. */
    SET(CURLOPT_PROXY, proxy);
    SET(CURLOPT_NOPROXY, "");
    SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
}

static bool names_header(const struct http_request *req, const char *name)
{
    for (size_t i = 0; i < req->header_count; i++) {
        if (strcasecmp(req->headers[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static void add_line(struct call *c, const char *line)
{
    struct curl_slist *longer = curl_slist_append(c->headers, line);
    must(longer != NULL);
    c->headers = longer;
}

static void add_header(struct call *c, const char *name, const char *value)
{
    _cleanup_(free_cstr)
    char *line = value[0] != '\0' ? xasprintf("%s: %s", name, value) : xasprintf("%s;", name);
    add_line(c, line);
}

static bool is_credential(const char *header)
{
    return strcasecmp(header, "Authorization") == 0 || strcasecmp(header, "Cookie") == 0 ||
           strcasecmp(header, "Proxy-Authorization") == 0;
}

/* The certificate is checked against the URL's host, so that becomes the wanted name, and the
 * connection and the Host header keep what it was. Only for the first origin. */
static void set_server_name(struct call *c)
{
    CURL *easy = c->easy;
    const char *name = c->t->options.tls_server_name;
    if (name == NULL || c->left_origin || strcmp(c->url.scheme, "https") != 0) {
        return;
    }
    bool v6 = strchr(c->url.host, ':') != NULL;
    _cleanup_(free_cstr)
    char *address = xasprintf("%s%s%s:%s", v6 ? "[" : "", c->url.host, v6 ? "]" : "", c->url.port);
    _cleanup_(free_cstr)
    char *rule = xasprintf("::%s", address);
    c->connect_to = curl_slist_append(NULL, rule);
    must(c->connect_to != NULL);
    CURLU *u = curl_url();
    must(u != NULL && curl_url_set(u, CURLUPART_URL, c->url.whole, 0) == CURLUE_OK);
    if (curl_url_set(u, CURLUPART_HOST, name, 0) == CURLUE_OK) {
        char *text = NULL;
        must(curl_url_get(u, CURLUPART_URL, &text, 0) == CURLUE_OK);
        SET(CURLOPT_URL, text);
        curl_free(text);
        SET(CURLOPT_CONNECT_TO, c->connect_to);
        add_header(c, "Host", address);
    }
    curl_url_cleanup(u);
}

static void set_method(struct call *c)
{
    CURL *easy = c->easy;
    const struct http_request *req = c->req;
    if (strcmp(req->method, "HEAD") == 0) {
        SET(CURLOPT_NOBODY, 1L);
        return;
    }
    if (req->body != NULL || (c->is_write && strcmp(req->method, "DELETE") != 0)) {
        SET(CURLOPT_POSTFIELDS, req->body != NULL ? req->body : "");
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)(req->body != NULL ? req->body_len : 0));
        /* No waiting for "100 Continue", which costs a second where a server does not know it. */
        add_line(c, "Expect:");
        if (!names_header(req, "Content-Type")) {
            add_line(c, "Content-Type:"); /* or it would be called a web form */
        }
    }
    SET(CURLOPT_CUSTOMREQUEST, req->method);
}

static void set_headers(struct call *c)
{
    CURL *easy = c->easy;
    const struct http_request *req = c->req;
    for (size_t i = 0; i < req->header_count; i++) {
        if (!c->left_origin || !is_credential(req->headers[i].name)) {
            add_header(c, req->headers[i].name, req->headers[i].value);
        }
    }
    SET(CURLOPT_HTTPHEADER, c->headers);
    const char *userpwd = req->userpwd != NULL ? req->userpwd : c->first.userpwd;
    if (userpwd != NULL && !c->left_origin) {
        SET(CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
        SET(CURLOPT_USERPWD, userpwd);
    }
    if (c->t->options.user_agent != NULL) {
        SET(CURLOPT_USERAGENT, c->t->options.user_agent);
    }
    /* Who sees the headers gets the body that belongs to them. */
    bool as_it_is = req->on_data != NULL || req->on_header != NULL || c->pull != NULL ||
                    names_header(req, "Accept-Encoding");
    if (c->t->options.accept_gzip && !as_it_is) {
        SET(CURLOPT_ACCEPT_ENCODING, "gzip");
    }
}

static void set_timeouts(struct call *c, struct mono now)
{
    CURL *easy = c->easy;
    /* The total deadline is kept by the loop, on CLOCK_BOOTTIME; libcurl counts on CLOCK_MONOTONIC.
     */
    int64_t left_ms = mono_diff_ms(call_deadline(c), now);
    SET(CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
    SET(CURLOPT_NOSIGNAL, 1L);
    /* A name look-up that hangs must not hold up a call that was given up. */
    SET(CURLOPT_QUICK_EXIT, 1L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    SET(CURLOPT_TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    SET(CURLOPT_MAXLIFETIME_CONN, CONNECTION_LIFETIME_MAX_S);
    SET(CURLOPT_MAXAGE_CONN, CONNECTION_IDLE_MAX_S);
    /* The least of all calls that run together counts. */
    curl_slot_lower_user_timeout(c->slot,
                                 left_ms < USER_TIMEOUT_MIN_MS ? USER_TIMEOUT_MIN_MS : left_ms);
}

void call_setup_hop(struct call *c, struct mono now)
{
    CURL *easy = c->easy;
    must(!c->in_multi);
    curl_easy_reset(easy);
    curl_slist_free_all(c->headers);
    curl_slist_free_all(c->connect_to);
    c->headers = NULL;
    c->connect_to = NULL;
    c->why[0] = '\0';
    SET(CURLOPT_PRIVATE, c);
    SET(CURLOPT_ERRORBUFFER, c->why);
    SET(CURLOPT_URL, c->url.whole);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_OPENSOCKETFUNCTION, curl_slot_open_socket);
    SET(CURLOPT_OPENSOCKETDATA, c->slot);
    SET(CURLOPT_CLOSESOCKETFUNCTION, curl_slot_close_socket);
    SET(CURLOPT_CLOSESOCKETDATA, c->slot);
    SET(CURLOPT_PREREQFUNCTION, on_send);
    SET(CURLOPT_PREREQDATA, c);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, c);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, c);
    set_tls(c);
    set_proxy(c);
    set_server_name(c);
    set_method(c);
    set_headers(c);
    set_timeouts(c, now);
}
