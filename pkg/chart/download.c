#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "chart/chart_internal.h"
#include "chartref/chartref.h"

#define ERROR_BODY_BYTES  65536 /* of a reply that is no 2xx; nobody looks at it */
#define IDLE_MS           INT64_C(60000)
#define RETRY_AFTER_MAX_S INT64_C(86400)

struct sink {
    const struct disk *disk;
    const struct download *download;
    struct temp temp;
    struct err err; /* why writing stopped */
};

static bool sink_write(void *ctx, const char *bytes, size_t len)
{
    struct sink *s = ctx;
    if (s->temp.path == NULL &&
        temp_open(s->disk, s->download->with_stamp, &s->temp, &s->err) != ERR_NONE) {
        return false;
    }
    if (len > s->download->bytes_max - s->temp.bytes) {
        (void)err_set(&s->err, ERR_LIMIT, "it is larger than %" PRIu64 " bytes",
                      s->download->bytes_max);
        return false;
    }
    return temp_write(s->disk, &s->temp, bytes, len, &s->err) == ERR_NONE;
}

static enum err_kind refuse_status(const struct http_response *res, struct err *err)
{
    int64_t seconds = 0;
    switch (res->status) {
    case 401:
    case 403:
        (void)err_set(err, ERR_DENIED, "HTTP %d", res->status);
        err_hint(err,
                 "give user name and password in the imported repositories.yaml, for the same URL");
        break;
    case 404:
    case 410:
        (void)err_set(err, ERR_NOT_FOUND, "HTTP %d", res->status);
        break;
    case 429:
        (void)err_set(err, ERR_THROTTLED, "HTTP 429");
        break;
    default:
        (void)err_set(err, ERR_UNAVAILABLE, "HTTP %d", res->status);
    }
    err->code = res->status;
    if (text_to_int64(res->retry_after, 1, RETRY_AFTER_MAX_S, &seconds)) {
        err->retry_after_ms = seconds * 1000;
    }
    return err->kind;
}

/* The reply is here; move what it brought to *ret. */
static enum err_kind take_reply(struct sink *s, const struct http_response *res,
                                struct downloaded *ret, struct err *err)
{
    struct downloaded d = {.sent = res->sent};
    if (res->status == 304 && s->download->known != NULL) {
        d.not_modified = true;
        *ret = d;
        return ERR_NONE;
    }
    if (res->status != 200) {
        return refuse_status(res, err);
    }
    if (s->temp.path == NULL) {
        return err_set(err, ERR_UNAVAILABLE, "the reply is empty");
    }
    d.temp = s->temp;
    s->temp = (struct temp){0};
    d.stamp.bytes = d.temp.bytes;
    temp_digest(&d.temp, d.stamp.sha256);
    (void)snprintf(d.stamp.etag, sizeof(d.stamp.etag), "%s", res->etag);
    (void)snprintf(d.stamp.last_modified, sizeof(d.stamp.last_modified), "%s", res->last_modified);
    char *type =
        text_clean(res->content_type, strlen(res->content_type), sizeof(d.content_type) - 1);
    (void)snprintf(d.content_type, sizeof(d.content_type), "%s", type);
    free(type);
    *ret = d;
    return ERR_NONE;
}

static size_t add_validators(const struct stamp *known, struct http_header *headers)
{
    size_t n = 0;
    if (known != NULL && known->etag[0] != '\0') {
        headers[n++] = (struct http_header){"If-None-Match", known->etag};
    }
    if (known != NULL && known->last_modified[0] != '\0') {
        headers[n++] = (struct http_header){"If-Modified-Since", known->last_modified};
    }
    return n;
}

enum err_kind download(struct charts *c, const struct download *d, struct downloaded *ret,
                       struct err *err)
{
    struct http_header headers[3];
    size_t header_count = add_validators(d->known, headers);
    if (c->options.user_agent != NULL) {
        headers[header_count++] = (struct http_header){"User-Agent", c->options.user_agent};
    }
    _cleanup_(free_cstr)
    char *own = url_userpwd(d->url);
    _cleanup_(free_cstr)
    char *url = url_without_userinfo(d->url);
    _cleanup_(free_cstr)
    char *shown = url_redact(d->url);
    must(url != NULL);
    bool shown_already = false; /* a transport's own errors name the URL */
    struct sink sink = {.disk = &c->disk, .download = d};
    struct http_request req = {
        .method = "GET",
        .url = url,
        .headers = headers,
        .header_count = header_count,
        .deadline = d->deadline,
        .idle_ms = IDLE_MS,
        .body_max = ERROR_BODY_BYTES,
        .cancel = d->cancel,
        .follow_redirects = true,
        .on_data = sink_write,
        .ctx = &sink,
        .userpwd = own != NULL ? own : d->userpwd,
    };
    struct http_response res = HTTP_RESPONSE_INIT;
    enum err_kind kind = transport_perform(d->transport, &req, &res, err);
    if (kind == ERR_NONE) {
        kind = take_reply(&sink, &res, ret, err);
        http_response_release(&res);
    } else if (sink.err.kind != ERR_NONE) {
        *err = sink.err;
        kind = err->kind;
    } else {
        shown_already = true;
    }
    temp_discard(&sink.temp);
    return kind == ERR_NONE || shown_already ? kind : err_wrap(err, "GET %s", shown);
}
