#include "member/member.h"

#include <openssl/evp.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/strmap.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "lease/lease.h"

#define BEAT_MS      INT64_C(5000)
#define ALIVE_MS     INT64_C(15000) /* three missed beats */
#define CALL_MS      INT64_C(4000)
#define FAREWELL_MS  INT64_C(1000)
#define LITTER_MS    INT64_C(300000) /* a Lease that stood for so long was left by a kill -9 */
#define FORBIDDEN_MS INT64_C(60000)  /* rights may be granted later */

#define LABEL      "belay.helm.fluxcd.io/member"
#define ANNOTATION "belay.helm.fluxcd.io/scope"

/* One other member. */
struct member {
    char *name; /* of its Lease */
    char *resource_version;
    struct mono changed; /* when it was last seen to change */
    bool same_scope;
    bool listed; /* in the newest list */
};

struct members {
    struct members_options options;
    char *name; /* of our Lease */
    struct mtx lock;
    struct strmap all; /* identity -> struct member *, without ourselves; guarded by lock */
    bool told;         /* of a refusal, once */
};

static void free_member(void *value)
{
    struct member *m = value;
    free(m->name);
    free(m->resource_version);
    free(m);
}

uint64_t member_weight(const char *identity, const char *uid, int64_t failures)
{
    _cleanup_(free_cstr)
    char *text = xasprintf("%s|%s|%lld", identity, uid, (long long)failures);
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    must(EVP_Digest(text, strlen(text), hash, &len, EVP_sha256(), NULL) == 1);
    uint64_t weight = 0;
    for (size_t i = 0; i < sizeof(weight); i++) {
        weight = weight << 8 | hash[i];
    }
    return weight;
}

struct members *members_new(const struct members_options *options)
{
    struct members *m = xcalloc(1, sizeof(*m));
    m->options = *options;
    /* The incarnation is unique and all hex; a pod's name may be too long for a suffix. */
    const char *incarnation = strrchr(options->identity, '/');
    m->name = xasprintf("belay-%.32s", incarnation != NULL ? incarnation + 1 : options->identity);
    mtx_init(&m->lock, "members");
    m->all.free_value = free_member;
    return m;
}

void members_free(struct members *m)
{
    if (m == NULL) {
        return;
    }
    strmap_release(&m->all);
    mtx_release(&m->lock);
    free(m->name);
    free(m);
}

static bool is_alive(const struct member *o, struct mono now)
{
    return o->same_scope && mono_diff_ms(now, o->changed) < ALIVE_MS;
}

int members_rank(struct members *m, const char *uid, int64_t failures)
{
    uint64_t ours = member_weight(m->options.identity, uid, failures);
    struct mono now = clock_mono(m->options.clock);
    MTX_GUARD(&m->lock);
    int rank = 0;
    const char *identity;
    void *value;
    for (size_t it = 0; strmap_next(&m->all, &it, &identity, &value);) {
        /* An earlier life of our own pod is none of the others, however fresh its Lease. */
        bool other = is_alive(value, now) && !lease_same_pod(identity, m->options.identity);
        bool before = other && member_weight(identity, uid, failures) > ours;
        rank += before ? 1 : 0;
    }
    return rank;
}

int members_count(struct members *m)
{
    struct mono now = clock_mono(m->options.clock);
    MTX_GUARD(&m->lock);
    int n = 1;
    void *value;
    for (size_t it = 0; strmap_next(&m->all, &it, NULL, &value);) {
        n += is_alive(value, now) ? 1 : 0;
    }
    return n;
}

/* ---- our Lease ---- */

static json_t *lease_body(struct members *m)
{
    char now[RFC3339_LEN];
    rfc3339_format_micro(clock_wall(m->options.clock).ns, now); /* for people: nobody compares it */
    json_t *body = json_pack("{s:s,s:s,s:{s:s,s:{s:s},s:{s:s}},s:{s:s,s:i,s:s}}", "apiVersion",
                             "coordination.k8s.io/v1", "kind", "Lease", "metadata", "name", m->name,
                             "labels", LABEL, "true", "annotations", ANNOTATION, m->options.scope,
                             "spec", "holderIdentity", m->options.identity, "leaseDurationSeconds",
                             (int)(ALIVE_MS / 1000), "renewTime", now);
    must(body != NULL);
    return body;
}

static enum err_kind call(struct members *m, struct kube_request *req, struct err *err)
{
    struct kube_reply reply = KUBE_REPLY_INIT;
    req->gvr = &KUBE_LEASES;
    req->ns = m->options.ns;
    enum err_kind kind = kube_do(m->options.kube, req, &reply, err);
    kube_reply_release(&reply);
    return kind;
}

static enum err_kind beat(struct members *m, struct err *err)
{
    _cleanup_json_ json_t *body = lease_body(m);
    struct mono deadline = mono_add_ms(clock_mono(m->options.clock), CALL_MS);
    struct kube_request patch = {.method = "PATCH",
                                 .name = m->name,
                                 .body = body,
                                 .content_type = KUBE_MERGE_PATCH,
                                 .deadline = deadline,
                                 .cancel = m->options.cancel};
    struct err missing = ERR_INIT;
    if (call(m, &patch, &missing) == ERR_NONE) {
        return ERR_NONE;
    }
    if (missing.kind != ERR_NOT_FOUND) {
        *err = missing;
        return err->kind;
    }
    struct kube_request post = {
        .method = "POST", .body = body, .deadline = deadline, .cancel = m->options.cancel};
    return call(m, &post, err);
}

static void farewell(struct members *m)
{
    struct err ignored = ERR_INIT;
    struct kube_request req = {.method = "DELETE",
                               .name = m->name,
                               .deadline = mono_add_ms(clock_mono(m->options.clock), FAREWELL_MS)};
    (void)call(m, &req, &ignored);
}

/* ---- the others ---- */

static void note_other(struct members *m, const json_t *lease, struct mono now)
{
    const char *identity = jsonx_str(lease, "spec.holderIdentity", "");
    if (identity[0] == '\0' || strcmp(identity, m->options.identity) == 0) {
        return;
    }
    const char *version = jsonx_str(lease, "metadata.resourceVersion", "");
    const json_t *annotations = jsonx_at(lease, "metadata.annotations");
    MTX_GUARD(&m->lock);
    struct member *o = strmap_get(&m->all, identity);
    if (o == NULL) {
        o = xcalloc(1, sizeof(*o));
        o->name = xstrdup(jsonx_str(lease, "metadata.name", ""));
        strmap_put(&m->all, identity, o);
    }
    if (!text_eq(o->resource_version, version)) {
        free(o->resource_version);
        o->resource_version = xstrdup(version);
        o->changed = now;
    }
    o->same_scope =
        text_eq(json_string_value(json_object_get(annotations, ANNOTATION)), m->options.scope);
    o->listed = true;
}

static void forget_unlisted(struct members *m)
{
    MTX_GUARD(&m->lock);
    const char *identity;
    void *value;
    for (size_t it = 0; strmap_next(&m->all, &it, &identity, &value);) {
        struct member *o = value;
        if (!o->listed) {
            (void)strmap_remove(&m->all, identity);
        } else {
            o->listed = false;
        }
    }
}

/* Take one Lease away that a dead member has left. Whoever still writes it makes it anew. */
static void sweep_litter(struct members *m, struct mono now)
{
    _cleanup_(free_cstr)
    char *name = NULL;
    _cleanup_(free_cstr)
    char *version = NULL;
    mtx_lock(&m->lock);
    void *value;
    for (size_t it = 0; name == NULL && strmap_next(&m->all, &it, NULL, &value);) {
        const struct member *o = value;
        if (mono_diff_ms(now, o->changed) >= LITTER_MS) {
            name = xstrdup(o->name);
            version = xstrdup(o->resource_version);
        }
    }
    mtx_unlock(&m->lock);
    if (name == NULL) {
        return;
    }
    _cleanup_json_ json_t *body =
        json_pack("{s:s, s:s, s:{s:s}}", "apiVersion", "v1", "kind", "DeleteOptions",
                  "preconditions", "resourceVersion", version);
    must(body != NULL);
    struct err ignored = ERR_INIT;
    struct kube_request req = {.method = "DELETE",
                               .name = name,
                               .body = body,
                               .deadline = mono_add_ms(now, CALL_MS),
                               .cancel = m->options.cancel};
    (void)call(m, &req, &ignored);
}

static enum err_kind look_around(struct members *m, struct err *err)
{
    struct mono now = clock_mono(m->options.clock);
    struct kube_request req = {.method = "GET",
                               .gvr = &KUBE_LEASES,
                               .ns = m->options.ns,
                               .query = "labelSelector=belay.helm.fluxcd.io%2Fmember%3Dtrue",
                               .deadline = mono_add_ms(now, CALL_MS),
                               .cancel = m->options.cancel};
    struct kube_reply reply = KUBE_REPLY_INIT;
    if (kube_do(m->options.kube, &req, &reply, err)) {
        return err->kind;
    }
    size_t i;
    json_t *lease;
    json_array_foreach(json_object_get(reply.object, "items"), i, lease)
    {
        note_other(m, lease, now);
    }
    kube_reply_release(&reply);
    forget_unlisted(m);
    sweep_litter(m, now);
    return ERR_NONE;
}

void members_run(struct members *m)
{
    while (!cancel_is_raised(m->options.cancel)) {
        struct err err = ERR_INIT;
        int64_t next_ms = rng_jitter_ms(m->options.rng, BEAT_MS, 10);
        if (beat(m, &err) || look_around(m, &err)) {
            if (!m->told && !cancel_is_raised(m->options.cancel)) {
                log_warn("member",
                         "the replicas cannot agree on who goes first; all race for each lock "
                         "until they can",
                         LOG_S("ns", m->options.ns), LOG_S("err", err.msg));
                m->told = true;
            }
            next_ms = err.kind == ERR_DENIED ? FORBIDDEN_MS : next_ms;
        } else {
            m->told = false;
        }
        (void)clock_sleep_until(m->options.clock,
                                mono_add_ms(clock_mono(m->options.clock), next_ms),
                                m->options.cancel);
    }
    farewell(m);
}
