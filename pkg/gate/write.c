/* Writes: each is judged by the fence, amended if it is one of Helm's records, and forwarded with
 * the lock's own deadline. Its answer is waited for whatever the child does meanwhile. */
#include "gate/gate_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "helmrec/helmrec.h"
#include "jsonx/jsonx.h"
#include "recwire/recwire.h"

/* A record's update that got 409 because somebody relabelled the Secret is sent again so often. */
#define RESENDS_MAX 5

/* ---- the fence ---- */

static struct mono hard_of(struct held *held)
{
    return held_is_lost(held) ? (struct mono){0} : held_deadline(held);
}

/* The lock's hard deadline as it is now: renewals move it. */
static struct mono lease_deadline(void *ctx)
{
    const struct exchange *x = ctx;
    return hard_of(x->run->held); /* counted in active: held is there */
}

/* One write is being judged or forwarded; false: the run is over. */
static bool enter(struct gate_run *run)
{
    MTX_GUARD(&run->gate->lock);
    if (run->closed) {
        return false;
    }
    run->active++;
    return true;
}

static void leave(struct gate_run *run)
{
    MTX_GUARD(&run->gate->lock);
    run->active--;
    cond_broadcast(&run->gate->changed);
}

static enum fence_verdict judge(struct exchange *x, const struct fence_request *r, bool looked)
{
    struct gate_run *run = x->run;
    struct mono hard = hard_of(run->held);
    MTX_GUARD(&x->gate->lock);
    enum fence_verdict v =
        fence_judge(&run->fence, r, clock_mono(x->gate->options.clock), hard, looked);
    if (v == FENCE_FORWARD) {
        fence_sent(&run->fence, r);
    }
    return v;
}

/* FENCE_FORWARD, or FENCE_REFUSE: latched, or (*ret_err filled) the HelmRelease could not be read.
 */
static enum fence_verdict pass(struct exchange *x, const struct fence_request *r,
                               struct err *ret_err)
{
    struct gate_run *run = x->run;
    enum fence_verdict v = judge(x, r, /* looked= */ false);
    if (v != FENCE_LOOK) {
        return v;
    }
    struct mono sent;
    enum err_kind kind = held_confirm(run->held, &sent, ret_err);
    if (kind == ERR_NONE) {
        mtx_lock(&x->gate->lock);
        fence_note_sign(&run->fence, sent);
        mtx_unlock(&x->gate->lock);
        return judge(x, r, /* looked= */ true);
    }
    if (kind == ERR_LEASE_LOST) {
        *ret_err = (struct err)ERR_INIT;
        MTX_GUARD(&x->gate->lock);
        fence_latch(&run->fence, "the HelmRelease shows another holder of the lock, or none");
    }
    return FENCE_REFUSE;
}

static enum MHD_Result refuse(struct exchange *x)
{
    char why[320];
    mtx_lock(&x->gate->lock);
    (void)snprintf(why, sizeof(why), "belay refuses this write: %s", x->run->fence.why);
    mtx_unlock(&x->gate->lock);
    held_kill_child(x->run->held);
    metrics_add(x->gate->options.metrics, METRICS_GATE_REFUSED, 1);
    log_warn("gate", "a write of helm was refused", LOG_S("ns", x->run->fence.ns),
             LOG_S("release", x->run->fence.release), LOG_S("method", x->method),
             LOG_S("target", x->target), LOG_S("why", why));
    return exchange_fail(x, MHD_HTTP_CONFLICT, "Conflict", why);
}

/* ---- forwarding ---- */

struct sending {
    struct fence_request what;
    const char *bytes; /* the body as it goes out */
    size_t len;
    struct buf amended;
    struct http_response reply;
};

/* A record gets its resourceVersion and what belay claims of it. */
static enum err_kind amend(struct exchange *x, struct sending *s, struct err *err)
{
    const char *version = NULL;
    const struct fence_claim *claim = NULL;
    char epoch[24];
    char revision[24];
    buf_reset(&s->amended);
    MTX_GUARD(&x->gate->lock);
    fence_amendment(&x->run->fence, &s->what, &version, &claim);
    if (version == NULL && claim == NULL) {
        return ERR_NONE;
    }
    struct kpb_annotation notes[5];
    size_t n = 0;
    if (claim != NULL) {
        (void)snprintf(epoch, sizeof(epoch), "%lld", (long long)claim->epoch);
        (void)snprintf(revision, sizeof(revision), "%lld", (long long)s->what.revision);
        notes[n++] = (struct kpb_annotation){HELMREC_ANNOTATION_EPOCH, epoch};
        notes[n++] = (struct kpb_annotation){HELMREC_ANNOTATION_OWNER, claim->owner};
        notes[n++] = (struct kpb_annotation){HELMREC_ANNOTATION_OWNER_NAME, claim->owner_name};
        notes[n++] = (struct kpb_annotation){HELMREC_ANNOTATION_REVISION, revision};
        if (claim->digest[0] != '\0') {
            notes[n++] = (struct kpb_annotation){HELMREC_ANNOTATION_DIGEST, claim->digest};
        }
    }
    if (recwire_amend(exchange_header(x, MHD_HTTP_HEADER_CONTENT_TYPE), buf_str(&x->body),
                      x->body.len, version, notes, n, &s->amended, err)) {
        return err->kind;
    }
    s->bytes = buf_str(&s->amended);
    s->len = s->amended.len;
    return ERR_NONE;
}

static enum err_kind forward(struct exchange *x, struct sending *s, struct err *err)
{
    struct kube_forward f = {.method = x->method,
                             .target = x->target,
                             .headers = x->headers,
                             .header_count = x->header_count,
                             .body = s->len > 0 ? s->bytes : NULL,
                             .body_len = s->len,
                             .body_max = GATE_REPLY_MAX,
                             .deadline = MONO_NEVER,
                             .deadline_now = lease_deadline,
                             .cancel = held_lost(x->run->held),
                             .on_header = exchange_on_reply_header,
                             .ctx = x};
    struct kube_forward_date date = {0};
    exchange_forget_reply_headers(x);
    http_response_release(&s->reply);
    if (kube_forward(x->gate->options.kube, &f, &s->reply, &date, err)) {
        return err->kind;
    }
    exchange_note_date(x, &date, s->reply.sent);
    return ERR_NONE;
}

/* What stands at the record's place now. */
static enum err_kind read_record(struct exchange *x, struct kpb_secret *ret, struct err *err)
{
    const struct http_header accept[] = {{"Accept", KPB_CONTENT_TYPE}};
    struct kube_forward f = {.method = "GET",
                             .target = x->target,
                             .headers = accept,
                             .header_count = 1,
                             .body_max = GATE_REPLY_MAX,
                             .deadline = MONO_NEVER,
                             .deadline_now = lease_deadline,
                             .cancel = held_lost(x->run->held),
                             .ctx = x};
    struct http_response reply = HTTP_RESPONSE_INIT;
    struct kube_forward_date date = {0};
    if (kube_forward(x->gate->options.kube, &f, &reply, &date, err)) {
        return err->kind;
    }
    enum err_kind kind =
        reply.status == MHD_HTTP_OK
            ? recwire_parse(reply.content_type, buf_str(&reply.body), reply.body.len, ret, err)
            : err_set(err, ERR_CONFLICT, "the record is not there any more");
    http_response_release(&reply);
    return kind;
}

/* A record's update met 409: send again if only its metadata was changed by somebody. */
static bool may_resend(struct exchange *x, struct sending *s)
{
    struct kpb_secret current = {0};
    struct err err = ERR_INIT;
    enum err_kind kind = read_record(x, &current, &err);
    MTX_GUARD(&x->gate->lock);
    if (kind != ERR_NONE) {
        fence_latch(&x->run->fence, err.msg);
        return false;
    }
    bool may = fence_may_resend(&x->run->fence, &s->what, &current);
    kpb_secret_release(&current);
    return may;
}

/* ERR_NONE: s->reply is the answer. */
static enum err_kind settle(struct exchange *x, struct sending *s, struct err *err)
{
    for (int tries = 0;; tries++) {
        if (amend(x, s, err) || forward(x, s, err)) {
            return err->kind;
        }
        bool stale = s->what.kind == FENCE_RECORD_UPDATE && s->reply.status == MHD_HTTP_CONFLICT;
        if (!stale || tries == RESENDS_MAX || !may_resend(x, s)) {
            return ERR_NONE;
        }
    }
}

/* ---- what became of it ---- */

static bool has_text(const struct exchange *x, const char *text)
{
    return memmem(buf_str(&x->body), x->body.len, text, strlen(text)) != NULL;
}

static void add_created(struct gate_report *report, char *target)
{
    if (report->created_target_count == GATE_CREATED_MAX) {
        free(target);
        return;
    }
    report->created_targets =
        xrealloc(report->created_targets, (report->created_target_count + 1) * sizeof(char *));
    report->created_targets[report->created_target_count++] = target;
}

static void count_locked(struct exchange *x, const struct http_response *reply, const char *name,
                         const char *version)
{
    struct gate_run *run = x->run;
    mtx_must_hold(&x->gate->lock);
    _cleanup_(free_cstr)
    char *path = xstrndup(x->target, strcspn(x->target, "?#"));
    bool created = reply->status == MHD_HTTP_CREATED;
    bool posts = strcmp(x->method, MHD_HTTP_METHOD_POST) == 0;
    if (strcmp(x->method, MHD_HTTP_METHOD_DELETE) == 0) {
        run->report.deleted++;
        return;
    }
    const char *known = strmap_get(&run->versions, path);
    run->report.created += created;
    run->report.changed += !created && !posts && !text_eq(known, version);
    if (created && name != NULL && !has_text(x, "helm.sh/hook")) {
        add_created(&run->report, posts ? xasprintf("%s/%s", path, name) : xstrdup(path));
    }
    if (version != NULL && !posts) {
        strmap_put(&run->versions, path, xstrdup(version));
    }
}

/* Objects of the chart: created, changed or deleted? helm 4 applies also what is as it was. */
static void count(struct exchange *x, const struct http_response *reply)
{
    if (reply->status / 100 != 2 || strstr(x->target, "dryRun=") != NULL) {
        return;
    }
    _cleanup_json_ json_t *object = NULL;
    struct err ignored = ERR_INIT;
    if (jsonx_parse(buf_str(&reply->body), reply->body.len, &object, &ignored)) {
        object = NULL;
    }
    MTX_GUARD(&x->gate->lock);
    count_locked(x, reply, jsonx_str(object, "metadata.name", NULL),
                 jsonx_str(object, "metadata.resourceVersion", NULL));
}

static void note_answer(struct exchange *x, const struct sending *s)
{
    struct kpb_secret written = {0};
    struct err ignored = ERR_INIT;
    const struct http_response *reply = &s->reply;
    bool is_record = s->what.kind == FENCE_RECORD_CREATE || s->what.kind == FENCE_RECORD_UPDATE;
    bool parsed = is_record && reply->status / 100 == 2 &&
                  recwire_parse(reply->content_type, buf_str(&reply->body), reply->body.len,
                                &written, &ignored) == ERR_NONE;
    bool unsettled = fence_is_unsettled(reply->status, buf_str(&reply->body), reply->body.len);
    mtx_lock(&x->gate->lock);
    fence_answered(&x->run->fence, &s->what, unsettled ? 0 : reply->status,
                   parsed ? &written : NULL);
    x->run->report.unanswered = x->run->report.unanswered || unsettled;
    x->run->report.bytes_to_child += (int64_t)reply->body.len;
    mtx_unlock(&x->gate->lock);
    if (parsed) {
        kpb_secret_release(&written);
    }
    if (s->what.kind == FENCE_WRITE || s->what.kind == FENCE_CRD) {
        count(x, reply);
    }
}

/* No answer. UNAVAILABLE and INVALID: nothing was done. Else it may still be carried out. */
static void note_no_answer(struct exchange *x, const struct sending *s, const struct err *err)
{
    bool no_effect = err->kind == ERR_UNAVAILABLE || err->kind == ERR_INVALID ||
                     err->kind == ERR_DENIED || err->kind == ERR_CANCELLED;
    MTX_GUARD(&x->gate->lock);
    if (err->kind == ERR_INVALID || err->kind == ERR_LIMIT) {
        fence_latch(&x->run->fence, err->msg); /* a record that cannot be amended */
    }
    x->run->report.unanswered = x->run->report.unanswered || !no_effect;
    fence_answered(&x->run->fence, &s->what, no_effect ? MHD_HTTP_SERVICE_UNAVAILABLE : 0, NULL);
}

static enum MHD_Result forward_write(struct exchange *x, struct sending *s)
{
    struct err err = ERR_INIT;
    if (pass(x, &s->what, &err) != FENCE_FORWARD) {
        return err.kind == ERR_NONE ? refuse(x) : exchange_fail_upstream(x, &err);
    }
    if (settle(x, s, &err)) {
        note_no_answer(x, s, &err);
        return gate_is_latched(x->run) ? refuse(x) : exchange_fail_upstream(x, &err);
    }
    note_answer(x, s);
    if (gate_is_latched(x->run)) {
        return refuse(x);
    }
    size_t len = s->reply.body.len;
    int status = s->reply.status;
    return exchange_queue(
        x, status,
        MHD_create_response_from_buffer(len, buf_take(&s->reply.body), MHD_RESPMEM_MUST_FREE));
}

/* The name in a posted Secret's body; NULL if it cannot be read. */
static char *posted_name(const struct exchange *x)
{
    struct kpb_secret secret = {0};
    struct err ignored = ERR_INIT;
    if (recwire_parse(exchange_header(x, MHD_HTTP_HEADER_CONTENT_TYPE), buf_str(&x->body),
                      x->body.len, &secret, &ignored)) {
        return NULL;
    }
    char *name = take_ptr(&secret.name);
    kpb_secret_release(&secret);
    return name;
}

enum MHD_Result exchange_write(struct exchange *x)
{
    if (!enter(x->run)) {
        return exchange_fail(x, MHD_HTTP_CONFLICT, "Conflict",
                             "belay refuses this write: its helm's run is over");
    }
    struct sending s = {.bytes = buf_str(&x->body),
                        .len = x->body.len,
                        .amended = BUF_INIT(GATE_REPLY_MAX),
                        .reply = HTTP_RESPONSE_INIT};
    _cleanup_(free_cstr)
    char *name = fence_needs_name(x->method, x->target) ? posted_name(x) : NULL;
    fence_classify(x->method, x->target, name, &s.what);
    enum MHD_Result ok = forward_write(x, &s);
    leave(x->run);
    buf_release(&s.amended);
    http_response_release(&s.reply);
    return ok;
}
