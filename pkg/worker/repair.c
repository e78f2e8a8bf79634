/* A record that says pending though whoever made it is dead or fenced (docs/lock.md 6). Stock helm
 * refuses such a release for ever; once the record says failed, it upgrades over it.
 *
 *   guard (only after a restart in one pod) -> Jobs of its hooks that still run -> PATCH -> told
 *
 * helm reads the payload, so that is where the word is replaced; the label follows. The PATCH
 * carries the resourceVersion of the list: whoever wrote the record since has the last word.
 * Nothing is uninstalled, and nothing of the broken revision's is deleted here (orphans.c). */
#include "worker/worker_internal.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "manifest/manifest.h"

#define POLL_MS INT64_C(1000)

static struct mono write_deadline(struct sync *s)
{
    return mono_min(mono_add_ms(clock_mono(s->w->options.clock), WORKER_READ_MS),
                    held_deadline(s->held));
}

/* False with *err: told to stop, or the lock is lost. */
static bool wait_until(struct sync *s, struct mono until, struct err *err)
{
    if (clock_sleep_until(s->w->options.clock, until, held_cancel(s->held))) {
        return true;
    }
    err_set(err, ERR_CANCELLED, "stopped");
    return false;
}

enum err_kind sync_wait_guard(struct sync *s, struct err *err)
{
    if (!s->from_own_pod) {
        return ERR_NONE;
    }
    int64_t guard_ms = lease_guard_ms(locks_lease_ms(s->w->options.locks));
    struct mono until = mono_add_ms(clock_mono(s->w->options.clock), guard_ms);
    return wait_until(s, until, err) ? ERR_NONE : err->kind;
}

/* ---- hooks that still run ---- */

struct waiting {
    const struct helmrec_meta *record;
    const char *job;
    int64_t timeout_s;
};

static json_t *build_waiting(void *ctx, const json_t *object, const char *now, bool minimal)
{
    const struct waiting *wait = ctx;
    (void)minimal;
    const json_t *old = jsonx_at(object, "status.conditions");
    json_t *conditions = json_is_array(old) ? json_deep_copy(old) : json_array();
    must(conditions != NULL);
    _cleanup_(free_cstr)
    char *message =
        xasprintf("Job %s, a hook of revision %lld whose maker died, still runs: "
                  "waiting for it, at most %lld s",
                  wait->job, (long long)wait->record->revision, (long long)wait->timeout_s);
    hr_conditions_edit(
        conditions, &(struct hr_condition_edit){
                        .type = "Deployed",
                        .status = "Unknown",
                        .reason = "Upgrading",
                        .message = message,
                        .observed_generation = jsonx_int(object, "status.observedGeneration", -1),
                        .now = now});
    json_t *status = json_pack("{s:o}", "conditions", conditions);
    must(status != NULL);
    return status;
}

/* What cannot be read for now counts as running, what may not be read as over: nobody would ever
 * tell. */
static bool job_runs(struct sync *s, const char *path)
{
    struct kube_request req = {.method = "GET",
                               .raw_path = path,
                               .deadline =
                                   mono_add_ms(clock_mono(s->w->options.clock), WORKER_READ_MS),
                               .cancel = held_cancel(s->held)};
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    enum err_kind kind = kube_do(s->w->options.kube, &req, &reply, &err);
    if (kind == ERR_NONE) {
        bool runs = jsonx_int(reply.object, "status.active", 0) > 0;
        kube_reply_release(&reply);
        return runs;
    }
    if (kind == ERR_DENIED) {
        log_warn("repair", "a Job of a hook may not be read, it is not waited for",
                 LOG_S("err", err.msg));
    }
    return kind != ERR_NOT_FOUND && kind != ERR_DENIED;
}

static enum err_kind wait_for_job(struct sync *s, const char *ns, const char *name,
                                  struct mono until, struct err *err)
{
    struct buf path = BUF_INIT(4096);
    buf_add_str(&path, "/apis/batch/v1/namespaces/");
    buf_add_uri(&path, ns);
    buf_add_str(&path, "/jobs/");
    buf_add_uri(&path, name);
    _cleanup_(free_cstr)
    char *target = buf_take(&path);
    struct clock *clock = s->w->options.clock;
    for (bool told = false; job_runs(s, target); told = true) {
        if (!mono_before(clock_mono(clock), until)) {
            log_warn("repair", "a Job of a hook still runs, going on all the same",
                     LOG_S("job", name));
            return ERR_NONE;
        }
        struct waiting wait = {
            .record = s->newest, .job = name, .timeout_s = s->hr->spec.timeout_s};
        if (!told) {
            log_info("repair", "waiting for a Job of a hook that still runs", LOG_S("job", name));
        }
        if (!told && held_write(s->held, build_waiting, &wait, err)) {
            return err->kind;
        }
        if (!wait_until(s, mono_min(until, mono_add_ms(clock_mono(clock), POLL_MS)), err)) {
            return err->kind;
        }
    }
    return ERR_NONE;
}

/* Jobs are the cluster's own: no fence stops them, and helm would run the next one beside them. */
static enum err_kind wait_for_hooks(struct sync *s, const json_t *hooks, struct err *err)
{
    struct mono until = mono_add_ms(clock_mono(s->w->options.clock), s->hr->spec.timeout_s * 1000);
    enum err_kind kind = ERR_NONE;
    size_t i;
    const json_t *hook;
    json_array_foreach(hooks, i, hook)
    {
        struct manifest m = MANIFEST_INIT;
        struct err ignored = ERR_INIT;
        if (!text_eq(jsonx_str(hook, "kind", NULL), "Job") ||
            manifest_parse(jsonx_str(hook, "manifest", ""), &m, &ignored)) {
            continue;
        }
        for (size_t k = 0; kind == ERR_NONE && k < m.count; k++) {
            const struct manifest_object *o = &m.objects[k];
            const char *ns = o->ns[0] != '\0' ? o->ns : s->hr->spec.target_ns;
            kind = strcmp(o->kind, "Job") == 0 ? wait_for_job(s, ns, o->name, until, err) : kind;
        }
        manifest_release(&m);
        if (kind != ERR_NONE) {
            return kind;
        }
    }
    return ERR_NONE;
}

/* ---- marking it failed ---- */

static json_t *text_of_number(int64_t n)
{
    _cleanup_(free_cstr)
    char *text = xasprintf("%lld", (long long)n);
    return json_string(text);
}

static json_t *patch_of(struct sync *s, const char *release)
{
    const struct helmrec_meta *record = s->newest;
    int64_t epoch = held_epoch(s->held);
    _cleanup_(free_cstr)
    char *owner_name = xasprintf("%s/%s", s->hr->ns, s->hr->name);
    json_t *digest = record->digest[0] != '\0' ? json_string(record->digest) : json_null();
    json_t *body = json_pack(
        "{s:{s:s,s:{s:s},s:{s:o,s:o,s:o,s:s,s:s,s:o}},s:{s:s}}", "metadata", "resourceVersion",
        record->resource_version, "labels", "status", helmrec_status_name(HELMREC_FAILED),
        "annotations", HELMREC_ANNOTATION_DIGEST, digest, HELMREC_ANNOTATION_EPOCH,
        text_of_number(epoch), HELMREC_ANNOTATION_REVISION, text_of_number(record->revision),
        HELMREC_ANNOTATION_OWNER, s->hr->uid, HELMREC_ANNOTATION_OWNER_NAME, owner_name,
        HELMREC_ANNOTATION_REPAIRED_BY, text_of_number(epoch), "data", "release", release);
    must(body != NULL);
    return body;
}

/* *ret: the record as it is then. */
static enum err_kind mark_failed(struct sync *s, const char *release, struct helmrec_meta **ret,
                                 struct err *err)
{
    _cleanup_json_ json_t *body = patch_of(s, release);
    struct kube_request req = {.method = "PATCH",
                               .gvr = &KUBE_SECRETS,
                               .ns = s->newest->ns,
                               .name = s->newest->secret_name,
                               .query = "fieldManager=belay",
                               .body = body,
                               .content_type = KUBE_MERGE_PATCH,
                               .accept = KUBE_ACCEPT_METADATA,
                               .deadline = write_deadline(s),
                               .cancel = held_lost(s->held)};
    struct kube_reply reply = KUBE_REPLY_INIT;
    if (kube_do(s->w->options.kube, &req, &reply, err)) {
        return err->kind;
    }
    enum err_kind kind = helmrec_meta_parse(reply.object, ret, err);
    kube_reply_release(&reply);
    return kind;
}

static void tell(struct sync *s, bool ours, const struct helmrec_meta *was)
{
    const char *word = helmrec_status_name(was->status);
    const char *since =
        ours ? "since its maker died" : "for so long that whoever did it must have given up";
    _cleanup_(free_cstr)
    char *note = xasprintf("revision %lld of release '%s' was %s %s; marked failed by epoch %lld",
                           (long long)was->revision, was->release, word, since,
                           (long long)held_epoch(s->held));
    metrics_add(s->w->options.metrics, METRICS_REPAIRS, 1);
    log_info("repair", note);
    event_emit(s->w->options.events, &(struct event){.ns = s->hr->ns,
                                                     .name = s->hr->name,
                                                     .uid = s->hr->uid,
                                                     .resource_version = s->hr->resource_version,
                                                     .reason = "ReleaseRepaired",
                                                     .action = "Repair",
                                                     .note = note});
}

static enum err_kind repair_record(struct sync *s, const json_t *secret, struct err *err)
{
    struct helmrec_payload *payload = NULL;
    if (helmrec_payload_decode(secret, &payload, err)) {
        return err->kind;
    }
    enum err_kind kind = wait_for_hooks(s, payload->hooks, err);
    helmrec_payload_free(payload);
    _cleanup_(free_cstr)
    char *release = NULL;
    if (kind != ERR_NONE || helmrec_payload_splice_status(secret, HELMREC_FAILED, &release, err)) {
        return err->kind;
    }
    struct helmrec_meta *after = NULL;
    if (mark_failed(s, release, &after, err)) {
        return err->kind;
    }
    tell(s, s->newest->owner[0] != '\0', s->newest);
    helmrec_meta_free(s->newest);
    s->newest = after;
    return ERR_NONE;
}

static enum err_kind repair(struct sync *s, struct err *err)
{
    struct kube_reply reply = KUBE_REPLY_INIT;
    if (sync_wait_guard(s, err) ||
        kube_get(s->w->options.kube, &KUBE_SECRETS, s->newest->ns, s->newest->secret_name,
                 mono_add_ms(clock_mono(s->w->options.clock), WORKER_READ_MS), held_cancel(s->held),
                 &reply, err)) {
        return err->kind;
    }
    enum err_kind kind = ERR_NONE;
    if (text_eq(jsonx_str(reply.object, "metadata.resourceVersion", ""),
                s->newest->resource_version)) {
        kind = repair_record(s, reply.object, err);
    } else {
        kind = err_set(err, ERR_CONFLICT, "somebody changed the record meanwhile");
    }
    kube_reply_release(&reply);
    return kind;
}

enum err_kind sync_repair(struct sync *s, struct err *err)
{
    if (repair(s, err) == ERR_NONE) {
        return ERR_NONE;
    }
    /* Never for good: what is wrong with a record is mended by helm, not by an edit of the spec. */
    if (!err_kind_retryable(err->kind)) {
        err->kind = ERR_HELM_FAILED;
    }
    return err_wrap(err,
                    "release '%s' in '%s' is %s (revision %lld), its maker is dead, and it "
                    "could not be repaired",
                    s->newest->release, s->newest->ns, helmrec_status_name(s->newest->status),
                    (long long)s->newest->revision);
}
