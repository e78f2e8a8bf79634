/* Reads: from the cache that all children share, or as a stream from the API server, pulled by the
 * child: what it does not read waits at the server. On the way by, the gate reads what it needs to
 * know: Helm's records, and the versions of objects. */
#include "gate/gate_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "recwire/recwire.h"

/* Of one discovery or OpenAPI document. */
#define DISCOVERY_MS INT64_C(30000)
#define BLOCK_BYTES  (32U << 10)
/* A single object up to this size is looked at for its version. */
#define PEEK_BYTES ((size_t)256 << 10)

/* A reply on its way to the child. */
struct reading {
    struct exchange *x;   /* gone before us: libmicrohttpd gives a reply up last */
    struct gate_run *run; /* a reference: the stream hangs on its cancel */
    struct kube_stream *stream;
    struct kube_forward forward; /* borrowed by the stream */
    struct recwire_list *records;
    struct buf whole; /* of one record or one small object */
    bool is_record, peek;
    char content_type[128];
};

static struct mono never(void *ctx)
{
    (void)ctx;
    return MONO_NEVER; /* a watch lasts as long as its child */
}

static void saw_record(void *ctx, const struct kpb_secret *s)
{
    struct exchange *x = ctx;
    MTX_GUARD(&x->gate->lock);
    fence_saw_record(&x->run->fence, s);
}

void exchange_note_date(struct exchange *x, const struct kube_forward_date *date, struct mono sent)
{
    struct gate_run *run = x->run;
    MTX_GUARD(&x->gate->lock);
    if (!date->have || run->closed) {
        return;
    }
    bool before = run->fence.latched;
    fence_note_date(&run->fence, date->ns, held_lease_end_ns(run->held), sent);
    if (run->fence.latched && !before) {
        held_kill_child(run->held);
    }
}

static char *path_of(const char *target)
{
    return xstrndup(target, strcspn(target, "?#"));
}

void exchange_note_version(struct exchange *x, const char *text, size_t len)
{
    _cleanup_json_ json_t *object = NULL;
    struct err ignored = ERR_INIT;
    if (jsonx_parse(text, len, &object, &ignored)) {
        return;
    }
    const char *version = jsonx_str(object, "metadata.resourceVersion", "");
    if (version[0] == '\0' || jsonx_str(object, "metadata.name", "")[0] == '\0') {
        return; /* a list, or no object at all */
    }
    _cleanup_(free_cstr)
    char *path = path_of(x->target);
    MTX_GUARD(&x->gate->lock);
    strmap_put(&x->run->versions, path, xstrdup(version));
}

/* All of the body went by. */
static void at_end(struct reading *r)
{
    if (r->whole.overflow || r->whole.len == 0) {
        return;
    }
    struct kpb_secret secret = {0};
    struct err ignored = ERR_INIT;
    if (r->peek) {
        exchange_note_version(r->x, buf_str(&r->whole), r->whole.len);
    } else if (r->is_record && recwire_parse(r->content_type, buf_str(&r->whole), r->whole.len,
                                             &secret, &ignored) == ERR_NONE) {
        saw_record(r->x, &secret);
        kpb_secret_release(&secret);
    }
}

/* libmicrohttpd wants more of the body. */
static ssize_t pull(void *cls, uint64_t pos, char *bytes, size_t cap)
{
    (void)pos;
    struct reading *r = cls;
    struct err err = ERR_INIT;
    size_t len = 0;
    if (kube_stream_read(r->stream, bytes, cap, &len, &err)) {
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    if (len == 0) {
        at_end(r);
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    if (r->records != NULL) {
        (void)recwire_list_feed(r->records, bytes, len);
    }
    if ((r->peek || r->is_record) && !r->whole.overflow) {
        buf_add(&r->whole, bytes, len);
        if (r->x->reply_length >= 0 && r->whole.len == (size_t)r->x->reply_length) {
            at_end(r); /* nobody asks again once all that was announced is there */
            r->peek = r->is_record = false;
        }
    }
    mtx_lock(&r->x->gate->lock);
    r->x->run->report.bytes_to_child += (int64_t)len;
    mtx_unlock(&r->x->gate->lock);
    return (ssize_t)len;
}

static void reading_free(void *cls)
{
    struct reading *r = cls;
    kube_stream_close(r->stream);
    recwire_list_free(r->records);
    buf_release(&r->whole);
    gate_run_unref(r->run);
    free(r);
}

/* A Secret or a list of Secrets of this run's namespace: are they, or may they be, its records? */
static void look_for_records(struct reading *r, const struct http_response *head)
{
    struct exchange *x = r->x;
    _cleanup_(free_cstr)
    char *path = path_of(x->target);
    _cleanup_(free_cstr)
    char *secrets = xasprintf("/api/v1/namespaces/%s/secrets", x->run->fence.ns);
    size_t len = strlen(secrets);
    bool good = head->status == MHD_HTTP_OK && strcmp(x->method, MHD_HTTP_METHOD_GET) == 0;
    bool watches = strstr(x->target, "watch=") != NULL;
    if (good && !watches && strcmp(path, secrets) == 0) {
        r->records = recwire_list_new(head->content_type, saw_record, x);
    } else if (good && strncmp(path, secrets, len) == 0 &&
               text_has_prefix(path + len, "/sh.helm.release.v1.")) {
        r->is_record = true;
        r->whole.max_len = GATE_REPLY_MAX;
    } else {
        r->peek = good && !watches && text_has_prefix(head->content_type, "application/json") &&
                  x->reply_length < (int64_t)PEEK_BYTES;
    }
}

static enum MHD_Result stream(struct exchange *x)
{
    struct reading *r = xcalloc(1, sizeof(*r));
    r->x = x;
    r->whole = (struct buf)BUF_INIT(PEEK_BYTES);
    r->forward = (struct kube_forward){.method = x->method,
                                       .target = x->target,
                                       .headers = x->headers,
                                       .header_count = x->header_count,
                                       .deadline = MONO_NEVER,
                                       .deadline_now = never,
                                       .cancel = &x->run->cancel,
                                       .on_header = exchange_on_reply_header,
                                       .ctx = x,
                                       .hangup_fd = x->client_fd};
    struct http_response head = HTTP_RESPONSE_INIT;
    struct kube_forward_date date = {0};
    struct err err = ERR_INIT;
    if (kube_stream_open(x->gate->options.kube, &r->forward, &head, &date, &r->stream, &err)) {
        free(r);
        return exchange_fail_upstream(x, &err);
    }
    r->run = gate_run_ref(x->run);
    (void)snprintf(r->content_type, sizeof(r->content_type), "%s", head.content_type);
    exchange_note_date(x, &date, head.sent);
    look_for_records(r, &head);
    int status = head.status;
    http_response_release(&head);
    uint64_t size = x->reply_length >= 0 ? (uint64_t)x->reply_length : MHD_SIZE_UNKNOWN;
    return exchange_queue(
        x, status, MHD_create_response_from_callback(size, BLOCK_BYTES, pull, r, reading_free));
}

/* ---- what all children ask ---- */

static void free_reply(void *cls)
{
    struct apicache_reply *reply = cls;
    apicache_reply_release(reply);
    free(reply);
}

static enum MHD_Result from_cache(struct exchange *x)
{
    struct apicache_request req = {
        .target = x->target,
        .accept = exchange_header(x, MHD_HTTP_HEADER_ACCEPT),
        .if_none_match = exchange_header(x, MHD_HTTP_HEADER_IF_NONE_MATCH),
        .deadline = mono_add_ms(clock_mono(x->gate->options.clock), DISCOVERY_MS),
        .cancel = &x->run->cancel};
    struct apicache_reply *reply = xcalloc(1, sizeof(*reply));
    struct err err = ERR_INIT;
    if (apicache_get(x->gate->cache, &req, reply, &err)) {
        free(reply);
        /* A document that is too large to be kept passes as it is. */
        return err.kind == ERR_LIMIT ? stream(x) : exchange_fail_upstream(x, &err);
    }
    const struct http_header headers[] = {{"Content-Type", reply->content_type},
                                          {"ETag", reply->etag},
                                          {"Cache-Control", reply->cache_control}};
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        if (headers[i].value[0] != '\0') {
            exchange_on_reply_header(x, headers[i].name, headers[i].value);
        }
    }
    mtx_lock(&x->gate->lock);
    x->run->report.bytes_to_child += (int64_t)reply->len;
    mtx_unlock(&x->gate->lock);
    return exchange_queue(x, reply->status,
                          MHD_create_response_from_buffer_with_free_callback_cls(
                              reply->len, (void *)(uintptr_t)reply->bytes, free_reply, reply));
}

enum MHD_Result exchange_read(struct exchange *x)
{
    bool shared = strcmp(x->method, MHD_HTTP_METHOD_GET) == 0 && apicache_serves(x->target);
    return shared ? from_cache(x) : stream(x);
}
