/* Helm's records: the cached view before the lock, the fresh list under it. */
#include "worker/worker_internal.h"

#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

void records_meta_free_ptr(struct helmrec_meta **m)
{
    helmrec_meta_free(*m);
}

struct helmrec_meta *records_newest_cached(struct worker *w, const struct hr *hr,
                                           int64_t *ret_epoch, int64_t *ret_age_ms)
{
    *ret_epoch = 0;
    *ret_age_ms = 0;
    if (hr->spec.release_name == NULL || hr->spec.target_ns == NULL) {
        return NULL;
    }
    _cleanup_(free_cstr)
    char *index = xasprintf("%s/%s", hr->spec.target_ns, hr->spec.release_name);
    struct snap **snaps = NULL;
    size_t n = cache_by_index(w->options.records, index, &snaps);
    struct helmrec_meta *newest = NULL;
    for (size_t i = 0; i < n; i++) {
        struct helmrec_meta *m = NULL;
        struct err ignored = ERR_INIT;
        if (snaps[i]->object != NULL &&
            helmrec_meta_parse(snaps[i]->object, &m, &ignored) == ERR_NONE) {
            if (strcmp(m->owner, hr->uid) == 0 && m->epoch > *ret_epoch) {
                *ret_epoch = m->epoch;
            }
            if (newest == NULL || m->revision > newest->revision) {
                helmrec_meta_free(newest);
                newest = take_ptr(&m);
                *ret_age_ms = mono_diff_ms(clock_mono(w->options.clock), snaps[i]->seen);
            }
            helmrec_meta_free(m);
        }
        snap_unref(snaps[i]);
    }
    free(snaps);
    return newest;
}

void record_list_release(struct record_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        helmrec_meta_free(l->items[i]);
    }
    free(l->items);
    *l = (struct record_list){0};
}

struct pick {
    const char *owner_uid;
    struct helmrec_meta *newest;
    struct record_list older;
    int64_t epoch;
};

/* Takes m, which may be NULL. */
static void add_older(struct record_list *l, struct helmrec_meta *m)
{
    if (m != NULL) {
        l->items = xrealloc(l->items, (l->count + 1) * sizeof(void *));
        l->items[l->count++] = m;
    }
}

/* Keep the newest of the list's records apart, and the highest epoch that this owner's name. */
static bool pick_record(void *ctx, const char *item, size_t len)
{
    struct pick *p = ctx;
    struct err ignored = ERR_INIT;
    _cleanup_json_ json_t *object = NULL;
    struct helmrec_meta *m = NULL;
    if (jsonx_parse(item, len, &object, &ignored) || helmrec_meta_parse(object, &m, &ignored)) {
        return true; /* a Secret that only looks like a record */
    }
    if (strcmp(m->owner, p->owner_uid) == 0 && m->epoch > p->epoch) {
        p->epoch = m->epoch;
    }
    if (p->newest == NULL || m->revision > p->newest->revision) {
        add_older(&p->older, p->newest);
        p->newest = take_ptr(&m);
    }
    add_older(&p->older, m);
    return true;
}

enum err_kind records_newest(struct worker *w, const struct hr *hr, struct mono deadline,
                             struct cancel *cancel, struct helmrec_meta **ret_newest,
                             struct record_list *ret_older, int64_t *ret_epoch, struct err *err)
{
    struct buf query = BUF_INIT(1024);
    buf_add_str(&query, "labelSelector=");
    _cleanup_(free_cstr)
    char *selector = xasprintf("owner=helm,name=%s", hr->spec.release_name);
    buf_add_uri(&query, selector);
    struct kube_request req = {.method = "GET",
                               .gvr = &KUBE_SECRETS,
                               .ns = hr->spec.target_ns,
                               .query = buf_str(&query),
                               .accept = KUBE_ACCEPT_METADATA_LIST,
                               .deadline = deadline,
                               .cancel = cancel,
                               .raw_body = true};
    struct kube_reply reply = KUBE_REPLY_INIT;
    enum err_kind kind = kube_do(w->options.kube, &req, &reply, err);
    buf_release(&query);
    if (kind) {
        return err_wrap(err, "list Helm's records of %s/%s", hr->spec.target_ns,
                        hr->spec.release_name);
    }
    struct pick p = {.owner_uid = hr->uid};
    kind = jsonx_split_items(reply.text, reply.text_len, pick_record, &p, NULL, err);
    kube_reply_release(&reply);
    if (kind) {
        helmrec_meta_free(p.newest);
        record_list_release(&p.older);
        return err_wrap(err, "read the list of Helm's records");
    }
    if (ret_older != NULL) {
        record_list_release(ret_older);
        *ret_older = p.older;
    } else {
        record_list_release(&p.older);
    }
    *ret_newest = p.newest;
    *ret_epoch = p.epoch;
    return ERR_NONE;
}

enum err_kind records_payload(struct worker *w, const struct helmrec_meta *record,
                              struct mono deadline, struct cancel *cancel,
                              struct helmrec_payload **ret, struct err *err)
{
    struct kube_reply reply = KUBE_REPLY_INIT;
    if (kube_get(w->options.kube, &KUBE_SECRETS, record->ns, record->secret_name, deadline, cancel,
                 &reply, err)) {
        return err_wrap(err, "read Helm's record %s/%s", record->ns, record->secret_name);
    }
    enum err_kind kind = helmrec_payload_decode(reply.object, ret, err);
    kube_reply_release(&reply);
    return kind ? err_wrap(err, "Helm's record %s/%s", record->ns, record->secret_name) : ERR_NONE;
}

enum err_kind records_annotate(struct worker *w, const struct helmrec_meta *record,
                               const struct records_claim *claim, struct mono deadline,
                               struct err *err)
{
    _cleanup_(free_cstr)
    char *epoch = xasprintf("%lld", (long long)claim->epoch);
    _cleanup_(free_cstr)
    char *revision = xasprintf("%lld", (long long)record->revision);
    _cleanup_json_ json_t *body = json_pack(
        "{s:{s:s,s:{s:s,s:s,s:s,s:s,s:s}}}", "metadata", "resourceVersion",
        record->resource_version, "annotations", HELMREC_ANNOTATION_DIGEST, claim->digest,
        HELMREC_ANNOTATION_EPOCH, epoch, HELMREC_ANNOTATION_OWNER, claim->owner,
        HELMREC_ANNOTATION_OWNER_NAME, claim->owner_name, HELMREC_ANNOTATION_REVISION, revision);
    must(body != NULL);
    struct kube_request req = {
        .method = "PATCH",
        .gvr = &KUBE_SECRETS,
        .ns = record->ns,
        .name = record->secret_name,
        .query = "fieldManager=belay",
        .body = body,
        .content_type = KUBE_MERGE_PATCH,
        /* The payload would come back with the reply; its metadata is enough. */
        .accept = KUBE_ACCEPT_METADATA,
        .deadline = deadline};
    struct kube_reply reply = KUBE_REPLY_INIT;
    if (kube_do(w->options.kube, &req, &reply, err)) {
        return err_wrap(err, "annotate Helm's record %s/%s", record->ns, record->secret_name);
    }
    kube_reply_release(&reply);
    return ERR_NONE;
}

bool records_owner_lives(struct worker *w, const struct helmrec_meta *record, struct mono deadline,
                         struct cancel *cancel)
{
    const char *slash = strchr(record->owner_name, '/');
    if (slash == NULL) {
        return true;
    }
    _cleanup_(free_cstr)
    char *ns = xstrndup(record->owner_name, (size_t)(slash - record->owner_name));
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    if (kube_get(w->options.kube, &KUBE_HELMRELEASES, ns, slash + 1, deadline, cancel, &reply,
                 &err)) {
        return err.kind != ERR_NOT_FOUND;
    }
    bool lives = text_eq(jsonx_str(reply.object, "metadata.uid", ""), record->owner);
    kube_reply_release(&reply);
    return lives;
}
