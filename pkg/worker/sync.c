/* The sync: everything that is done while the lock is held.
 *
 *   finalizer -> records afresh -> values -> chart -> desired digest -> decide
 *     NOTHING                    status only
 *     INSTALL, UPGRADE           chart archive, progress, helm, annotate, result
 *     REPAIR                     the newest record marked failed, then as UPGRADE
 *     FINISH_UNINSTALL           helm uninstall, then as INSTALL
 *     PENDING, FOREIGN           reported, nothing touched
 * Every path ends in sync_finish, which unlocks, or in a lost lock, which nobody may touch any
 * more. */
#include "worker/worker_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

static struct mono deadline_in(struct sync *s, int64_t ms)
{
    return mono_add_ms(clock_mono(s->w->options.clock), ms);
}

static const char *result_event_reason(const struct outcome *o)
{
    return strcmp(o->released, "True") == 0 ? "ReleaseSynced"
           : o->interrupted                 ? "SyncInterrupted"
                                            : "FailedReleaseSync";
}

/* Fields of helm-operator's API that this version does not act on: whoever relies on them must hear
 * of it. */
static void report_unserved(struct sync *s)
{
    const struct {
        bool set;
        const char *note;
    } fields[] = {
        {s->hr->spec.test.enable,
         "spec.test.enable is not served by this version of belay: no test is run"},
        {s->hr->spec.rollback.enable, "spec.rollback.enable is not served by this version of "
                                      "belay: a failed upgrade is retried, not rolled back"},
        {s->hr->spec.chart_pull_secret != NULL,
         "spec.chart.chartPullSecret is not served by this version of belay: give credentials by "
         "--helm-repository-import"},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (!fields[i].set) {
            continue;
        }
        event_emit(s->w->options.events,
                   &(struct event){.ns = s->hr->ns,
                                   .name = s->hr->name,
                                   .uid = s->hr->uid,
                                   .resource_version = s->hr->resource_version,
                                   .warning = true,
                                   .reason = "FieldNotServed",
                                   .action = "Sync",
                                   .note = fields[i].note});
        log_warn("sync", fields[i].note);
    }
}

/* ": 1 created, 2 changed, 0 deleted", or "" if nothing is known of it. */
static char *wrote_words(const struct sync *s)
{
    const struct gate_report *r = &s->wrote;
    return r->record_written
               ? xasprintf(": %lld created, %lld changed, %lld deleted", (long long)r->created,
                           (long long)r->changed, (long long)r->deleted)
               : xstrdup("");
}

static void report(struct sync *s, const struct outcome *o)
{
    report_unserved(s);
    bool ok = strcmp(o->released, "True") == 0;
    bool warning = !ok && !o->interrupted;
    struct hr *hr = s->hr;
    _cleanup_(free_cstr)
    char *wrote = wrote_words(s);
    _cleanup_(free_cstr)
    char *note = ok ? xasprintf("managed release '%s' in namespace '%s' synchronized%s",
                                hr->spec.release_name, hr->spec.target_ns, wrote)
                    : xasprintf("synchronization of release '%s' in namespace '%s' %s: %s",
                                hr->spec.release_name, hr->spec.target_ns,
                                o->interrupted ? "was interrupted" : "failed", o->message);
    event_emit(s->w->options.events, &(struct event){.ns = hr->ns,
                                                     .name = hr->name,
                                                     .uid = hr->uid,
                                                     .resource_version = hr->resource_version,
                                                     .warning = warning,
                                                     .reason = result_event_reason(o),
                                                     .action = o->phase != NULL ? o->phase : "Sync",
                                                     .note = note});
    log_at(warning ? LOG_WARN : LOG_INFO, "sync", ok ? "synced" : "not synced",
           LOG_S("reason", o->reason), LOG_S("message", o->message), LOG_I("failures", o->failures),
           LOG_I("created", s->wrote.created), LOG_I("changed", s->wrote.changed),
           LOG_I("deleted", s->wrote.deleted),
           LOG_I("ms", mono_diff_ms(clock_mono(s->w->options.clock), s->started)));
}

void sync_finish(struct sync *s, struct outcome *o)
{
    struct hr *hr = s->hr;
    o->release_name = hr->spec.release_name != NULL ? hr->spec.release_name : "";
    o->target_ns = hr->spec.target_ns != NULL ? hr->spec.target_ns : hr->ns;
    struct err err = ERR_INIT;
    if (s->unanswered) {
        /* Whoever comes next must not work beside a write that the server may still carry out. */
        log_warn("sync", "a write of helm has no answer: the lock is left to run out",
                 LOG_S("result", o->reason), LOG_S("message", o->message));
        free(take_ptr(&o->message));
        return;
    }
    enum err_kind kind = held_unlock(s->held, outcome_build_result, o, &err);
    bool ok = strcmp(o->released, "True") == 0;
    metrics_action(s->w->options.metrics, "sync", ok, o->target_ns, o->release_name,
                   (double)mono_diff_ms(clock_mono(s->w->options.clock), s->started) / 1000.0);
    if (kind == ERR_NONE) {
        s->unlocked = true;
        report(s, o);
    } else {
        log_error(
            "sync", "the result could not be written, the next holder finds it in Helm's records",
            LOG_S("kind", err_kind_name(kind)), LOG_S("err", err.msg), LOG_S("result", o->reason));
    }
    free(take_ptr(&o->message));
}

/* Failures in a row with these very inputs, this one included. */
static int64_t failures_so_far(const struct sync *s, const char *digest)
{
    const struct hr_attempt *a = &s->hr->status.attempt;
    bool same = a->present && a->generation == held_generation(s->held) &&
                text_eq(a->digest != NULL ? a->digest : "", digest != NULL ? digest : "");
    return same ? a->failures + 1 : 1;
}

void sync_fail_with(struct sync *s, struct outcome *o, const struct err *err)
{
    /* A lost lock has no result to write; what stops us is not the release's fault. */
    if (held_is_lost(s->held)) {
        log_warn("sync", "stopped, the lock is lost", LOG_S("err", err->msg));
        free(take_ptr(&o->message));
        return;
    }
    if (cancel_is_raised(s->w->options.stopping) && err->kind == ERR_CANCELLED) {
        free(take_ptr(&o->message));
        sync_interrupted(s);
        return;
    }
    o->digest = s->in.digest;
    /* What the digest was made of goes along: whoever compares with it later must find the same
     * chart. */
    o->source = &s->in;
    o->released = "False";
    o->terminal = !err_kind_retryable(err->kind);
    o->failures = failures_so_far(s, o->digest);
    if (o->not_before_ns == 0) { /* the caller has none of its own */
        o->not_before_ns = INT64_MIN;
    }
    struct srvtime now;
    if (!o->terminal && kube_server_time(s->w->options.kube, &now)) {
        int64_t delay_ms = rng_jitter_ms(s->w->options.rng, release_backoff_ms(o->failures), 10);
        if (err->retry_after_ms > delay_ms) {
            delay_ms = err->retry_after_ms;
        }
        o->not_before_ns = ns_add_ms(now.latest_ns, delay_ms);
    }
    if (o->message == NULL) {
        o->message =
            err->hint[0] != '\0' ? xasprintf("%s (%s)", err->msg, err->hint) : xstrdup(err->msg);
    }
    sync_finish(s, o);
}

void sync_fail(struct sync *s, const char *phase, const struct err *err)
{
    struct outcome o = {.phase = phase, .reason = phase};
    if (strcmp(phase, "ChartFetchFailed") == 0) {
        o.chart_fetched = "False";
        _cleanup_(free_cstr)
        char *why = xstrdup(err->msg);
        o.message = xasprintf("Chart fetch failed: %s", why);
    }
    sync_fail_with(s, &o, err);
}

void sync_interrupted(struct sync *s)
{
    struct outcome o = {.released = "False",
                        .reason = "Interrupted",
                        .message =
                            xstrdup("belay was told to stop; another replica goes on at once"),
                        .interrupted = true,
                        .not_before_ns = INT64_MIN};
    sync_finish(s, &o);
}

/* ---- before helm ---- */

/* Does the target namespace exist? helm's own words for it are late and unclear. What we may not
 * read counts as existing. */
static enum err_kind check_namespace(struct sync *s, struct err *err)
{
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err read_err = ERR_INIT;
    enum err_kind kind =
        kube_get(s->w->options.kube, &KUBE_NAMESPACES, NULL, s->hr->spec.target_ns,
                 deadline_in(s, WORKER_READ_MS), held_cancel(s->held), &reply, &read_err);
    if (kind == ERR_NOT_FOUND) {
        err_set(err, ERR_NOT_FOUND,
                "namespace \"%s\" does not exist: create it, or change spec.targetNamespace",
                s->hr->spec.target_ns);
        return err->kind;
    }
    if (kind == ERR_NONE) {
        kube_reply_release(&reply);
    }
    if (cancel_is_raised(held_cancel(s->held))) {
        return err_set(err, ERR_CANCELLED, "stopped");
    }
    return ERR_NONE;
}

/* Fill s->in up to the desired digest; the phase to report is in *ret_phase when it fails. */
static enum err_kind find_desired(struct sync *s, const char **ret_phase, struct err *err)
{
    struct cancel *cancel = held_cancel(s->held);
    *ret_phase = "Failed";
    if (inputs_values(s->w, s->hr, deadline_in(s, WORKER_READ_MS), cancel, &s->in.values,
                      &s->in.secret_values, err)) {
        return err->kind;
    }
    *ret_phase = "ChartFetchFailed";
    struct mono now = clock_mono(s->w->options.clock);
    struct mono deadline = deadline_in(s, WORKER_FETCH_MS);
    struct err no_digest = ERR_INIT;
    if (inputs_chart(s->w, s->hr, now, false, deadline, cancel, &s->in, &no_digest)) {
        bool need_archive = no_digest.kind == ERR_NOT_FOUND && s->in.resolved.version != NULL;
        if (!need_archive) {
            *err = no_digest;
            return err->kind;
        }
        if (inputs_chart(s->w, s->hr, now, true, deadline, cancel, &s->in, err)) {
            return err->kind;
        }
    }
    inputs_digest(s->hr, &s->in);
    return ERR_NONE;
}

/* Annotate the newest record as what this sync desires. A failure is only logged: the record's
 * description holds the claim too, and the next sync reads it there. */
static void annotate_newest(struct sync *s)
{
    struct err err = ERR_INIT;
    _cleanup_(free_cstr)
    char *owner_name = xasprintf("%s/%s", s->hr->ns, s->hr->name);
    struct records_claim claim = {.digest = s->in.digest,
                                  .owner = s->hr->uid,
                                  .owner_name = owner_name,
                                  .epoch = held_epoch(s->held)};
    if (records_annotate(s->w, s->newest, &claim,
                         mono_min(deadline_in(s, WORKER_READ_MS), held_deadline(s->held)), &err)) {
        log_warn("sync",
                 "the release record could not be annotated, its description is read next time",
                 LOG_S("err", err.msg));
    }
}

/* The newest record has no claim of ours: does its payload show what is desired? Then it is
 * adopted. */
static enum err_kind adopt(struct sync *s, bool *ret_adopted, struct err *err)
{
    struct helmrec_payload *payload = NULL;
    if (records_payload(s->w, s->newest, deadline_in(s, WORKER_READ_MS), held_cancel(s->held),
                        &payload, err)) {
        /* A payload that cannot be read is no reason to stop: helm will write a new one. */
        return err->kind == ERR_INVALID || err->kind == ERR_LIMIT ? ERR_NONE : err->kind;
    }
    *ret_adopted = release_payload_matches(payload, s->in.digest, s->hr->spec.chart_name,
                                           s->in.resolved.version, s->in.values);
    helmrec_payload_free(payload);
    if (*ret_adopted) {
        annotate_newest(s);
    }
    return ERR_NONE;
}

static void finish_in_sync(struct sync *s)
{
    sync_clean_orphans(s); /* whoever upgraded it may have died before its end */
    struct outcome o = {
        .phase = "Succeeded",
        .released = "True",
        .reason = "Succeeded",
        .message = xasprintf("Release was successful for Helm release '%s' in '%s'.",
                             s->hr->spec.release_name, s->hr->spec.target_ns),
        .chart_fetched = s->hr->status.chart_fetched.status == HR_FALSE ? "True" : NULL,
        .deployed = s->hr->status.deployed.status == HR_TRUE ? NULL : "True",
        .digest = s->in.digest,
        .not_before_ns = INT64_MIN,
        .revision = s->in.resolved.version,
        .release_status = "deployed",
        .source = &s->in};
    metrics_add(s->w->options.metrics, METRICS_SYNC_NOOP, 1);
    sync_finish(s, &o);
}

/* ---- helm ---- */

/* The gate has annotated it as it was written. */
static bool claims_this_sync(const struct sync *s, const struct helmrec_meta *m)
{
    return m->epoch == held_epoch(s->held) && strcmp(m->digest, s->in.digest) == 0 &&
           strcmp(m->owner, s->hr->uid) == 0;
}

static void finish_deployed(struct sync *s, int64_t upgrades, int64_t window_ns)
{
    struct err err = ERR_INIT;
    int64_t epoch = 0;
    struct helmrec_meta *newest = NULL;
    sync_mark_created(s);
    if (records_newest(s->w, s->hr,
                       mono_min(deadline_in(s, WORKER_READ_MS), held_deadline(s->held)), NULL,
                       &newest, &s->older, &epoch, &err)) {
        log_warn("sync",
                 "the new release record could not be read, its description is read next time",
                 LOG_S("err", err.msg));
    } else if (newest != NULL) {
        helmrec_meta_free(s->newest);
        s->newest = newest;
        if (newest->status == HELMREC_DEPLOYED && !claims_this_sync(s, newest)) {
            annotate_newest(s);
        }
        sync_clean_orphans(s);
    }
    struct outcome o = {.phase = "Succeeded",
                        .released = "True",
                        .reason = "Succeeded",
                        .message =
                            xasprintf("Release was successful for Helm release '%s' in '%s'.",
                                      s->hr->spec.release_name, s->hr->spec.target_ns),
                        .deployed = "True",
                        .digest = s->in.digest,
                        .not_before_ns = INT64_MIN,
                        .upgrades = upgrades,
                        .window_ns = window_ns,
                        .revision = s->in.resolved.version,
                        .release_status = "deployed",
                        .source = &s->in};
    sync_finish(s, &o);
}

/* The ceiling: something makes a new revision again and again for one and the same spec. */
static void finish_ceiling(struct sync *s, int64_t window_ns)
{
    struct err err = ERR_INIT;
    err_set(&err, ERR_LIMIT,
            "%lld revisions of release '%s' were made within an hour for one generation of the "
            "spec: something undoes each "
            "(another controller, a person, or a chart that changes at each look); the next one is "
            "made when the hour is over",
            (long long)RELEASE_UPGRADES_MAX, s->hr->spec.release_name);
    struct outcome o = {.phase = "Failed",
                        .reason = "TooManyRevisions",
                        .not_before_ns = ns_add_ms(window_ns, RELEASE_WINDOW_MS),
                        .upgrades = RELEASE_UPGRADES_MAX,
                        .window_ns = window_ns};
    sync_fail_with(s, &o, &err);
}

static void finish_helm_failure(struct sync *s, enum release_action action,
                                const struct helm_result *result, const struct err *err)
{
    if (held_was_interrupted(s->held) && cancel_is_raised(s->w->options.stopping) &&
        !held_is_lost(s->held)) {
        sync_interrupted(s);
        return;
    }
    const char *words =
        result->message != NULL && result->message[0] != '\0' ? result->message : err->msg;
    struct outcome o = {.phase = "DeployFailed",
                        .reason = "DeployFailed",
                        .deployed = "False",
                        .release_status = "failed",
                        .message = xasprintf("%s failed: %s",
                                             action == RELEASE_INSTALL ? "installation" : "upgrade",
                                             words),
                        .source = &s->in};
    sync_fail_with(s, &o, err);
}

static void run_helm(struct sync *s, enum release_action action)
{
    bool install = action == RELEASE_INSTALL;
    struct srvtime now = {0};
    int64_t upgrades = 0;
    int64_t window_ns = 0;
    must(kube_server_time(s->w->options.kube, &now));
    if (!release_count_upgrade(s->hr, now, &upgrades, &window_ns)) {
        finish_ceiling(s, window_ns);
        return;
    }
    struct outcome progress = {.phase = install ? "Installing" : "Upgrading",
                               .deployed = "Unknown",
                               .chart_fetched = "True",
                               .attempted = s->in.resolved.version,
                               .release_name = s->hr->spec.release_name,
                               .target_ns = s->hr->spec.target_ns,
                               .source = &s->in};
    struct err err = ERR_INIT;
    if (held_write(s->held, outcome_build_progress, &progress, &err)) {
        sync_fail(s, "Failed", &err);
        return;
    }
    log_info("sync", install ? "running installation" : "running upgrade",
             LOG_S("release", s->hr->spec.release_name),
             LOG_S("targetNamespace", s->hr->spec.target_ns),
             LOG_S("version", s->in.resolved.version));
    _cleanup_(free_cstr)
    char *claim = release_claim_format(s->in.digest, held_epoch(s->held), s->hr->uid);
    struct helmargs_options args = {.verb = HELM_UPGRADE_INSTALL,
                                    .spec = &s->hr->spec,
                                    .chart_path = s->in.archive.path,
                                    .description = claim,
                                    .first_install = s->newest == NULL};
    struct helm_result result = {0};
    struct mono began = clock_mono(s->w->options.clock);
    enum err_kind kind = sync_helm(s, &args, &result, &err);
    metrics_action(s->w->options.metrics, install ? "install" : "upgrade", kind == ERR_NONE,
                   s->hr->spec.target_ns, s->hr->spec.release_name,
                   (double)mono_diff_ms(clock_mono(s->w->options.clock), began) / 1000.0);
    if (kind == ERR_NONE) {
        log_info("sync", install ? "installation succeeded" : "upgrade succeeded",
                 LOG_I("helm_ms", result.duration_ms));
        finish_deployed(s, upgrades, window_ns);
    } else {
        finish_helm_failure(s, action, &result, &err);
    }
    helm_result_release(&result);
}

/* ---- decisions ---- */

static void finish_foreign(struct sync *s)
{
    struct err err = ERR_INIT;
    const char *uid = s->newest->owner;
    _cleanup_(free_cstr)
    char *by = uid[0] != '\0' ? xasprintf("UID %s", uid)
                              : xstrdup("so say its objects' annotations " ANNOTATION_ANTECEDENT);
    err_set(&err, ERR_CONFLICT,
            "release '%s' in '%s' belongs to HelmRelease %s (%s): change spec.releaseName or "
            "delete the other one",
            s->hr->spec.release_name, s->hr->spec.target_ns, s->newest->owner_name, by);
    struct outcome o = {.phase = "Failed", .reason = "OwnedByOther"};
    sync_fail_with(s, &o, &err);
}

static void finish_pending(struct sync *s)
{
    struct err err = ERR_INIT;
    const char *word = helmrec_status_name(s->newest->status);
    /* A first install has nothing to go back to, and an uninstall can only be finished. */
    bool undo = s->newest->revision > 1 && s->newest->status != HELMREC_UNINSTALLING;
    int64_t patience_ms = s->w->options.foreign_pending_ms;
    char patience[32];
    duration_format(patience_ms, patience);
    _cleanup_(free_cstr)
    char *promise =
        patience_ms > 0
            ? xasprintf("belay repairs it when it has stood unchanged for %s; ", patience)
            : xstrdup("");
    err_set(&err, ERR_CONFLICT,
            "release '%s' in '%s' is %s (revision %lld): another helm is at work on it, or died "
            "while it was; %sif none is, run: "
            "helm %s %s -n %s",
            s->hr->spec.release_name, s->hr->spec.target_ns, word, (long long)s->newest->revision,
            promise, undo ? "rollback" : "uninstall", s->hr->spec.release_name,
            s->hr->spec.target_ns);
    struct outcome o = {.phase = "Failed", .reason = "Pending", .release_status = word};
    sync_fail_with(s, &o, &err);
}

static void act(struct sync *s, enum release_action action)
{
    struct err err = ERR_INIT;
    switch (action) {
    case RELEASE_NOTHING:
        finish_in_sync(s);
        return;
    case RELEASE_FOREIGN:
        finish_foreign(s);
        return;
    case RELEASE_PENDING:
        finish_pending(s);
        return;
    case RELEASE_READ: {
        bool adopted = false;
        if (adopt(s, &adopted, &err)) {
            sync_fail(s, "Failed", &err);
        } else {
            act(s, adopted ? RELEASE_NOTHING : RELEASE_UPGRADE);
        }
        return;
    }
    case RELEASE_REPAIR:
        if (sync_repair(s, &err)) {
            sync_fail(s, "Failed", &err);
            return;
        }
        action = RELEASE_UPGRADE;
        break;
    case RELEASE_FINISH_UNINSTALL:
        if (sync_finish_uninstall(s, &err)) {
            sync_fail(s, "Failed", &err);
            return;
        }
        action = RELEASE_INSTALL;
        break;
    case RELEASE_INSTALL:
    case RELEASE_UPGRADE:
        break;
    }
    struct mono now = clock_mono(s->w->options.clock);
    if (inputs_chart(s->w, s->hr, now, true, deadline_in(s, WORKER_FETCH_MS), held_cancel(s->held),
                     &s->in, &err)) {
        sync_fail(s, "ChartFetchFailed", &err);
        return;
    }
    run_helm(s, action);
}

/* Before a release that no record gives to anybody is taken over: is it another HelmRelease's by
 * its objects? That one is noted as the owner then. */
static bool is_anothers(struct sync *s, enum release_action action)
{
    bool takes_over =
        action == RELEASE_READ || action == RELEASE_UPGRADE || action == RELEASE_REPAIR;
    if (!takes_over || s->newest->owner[0] != '\0') {
        return false;
    }
    char *other = sync_antecedent(s);
    if (other == NULL) {
        return false;
    }
    free(s->newest->owner_name);
    s->newest->owner_name = other;
    return true;
}

void sync_run(struct sync *s)
{
    struct err err = ERR_INIT;
    if (s->hr->deleting) {
        sync_uninstall(s);
        return;
    }
    if (s->hr->spec_err.kind != ERR_NONE) {
        sync_fail(s, "Failed", &s->hr->spec_err);
        return;
    }
    int64_t epoch = 0;
    if (check_namespace(s, &err) ||
        records_newest(s->w, s->hr, deadline_in(s, WORKER_READ_MS), held_cancel(s->held),
                       &s->newest, &s->older, &epoch, &err)) {
        sync_fail(s, "Failed", &err);
        return;
    }
    /* An owner that no longer exists is no owner. */
    if (s->newest != NULL && s->newest->owner[0] != '\0' &&
        strcmp(s->newest->owner, s->hr->uid) != 0 &&
        !records_owner_lives(s->w, s->newest, deadline_in(s, WORKER_READ_MS),
                             held_cancel(s->held))) {
        s->newest->owner[0] = '\0';
        s->newest->digest[0] = '\0';
    }
    const char *phase = NULL;
    if (find_desired(s, &phase, &err)) {
        (void)snprintf(s->in.digest, sizeof(s->in.digest), "%s", RELEASE_UNREADABLE);
        sync_fail(s, phase, &err);
        return;
    }
    struct release_situation situation = {.newest = s->newest,
                                          .desired_digest = s->in.digest,
                                          .owner_uid = s->hr->uid,
                                          .epoch = held_epoch(s->held),
                                          .foreign_pending_ms = s->w->options.foreign_pending_ms};
    situation.have_server_time = kube_server_time(s->w->options.kube, &situation.server_now);
    enum release_action action = release_decide(&situation);
    if (is_anothers(s, action)) {
        action = RELEASE_FOREIGN;
    }
    /* The finalizer stands before the first install, or a deletion in between would orphan the
     * release; and not before there is something to install, or it would hold up the deletion of an
     * object that never had a release. */
    bool needed = action != RELEASE_FOREIGN && action != RELEASE_PENDING && !s->hr->has_finalizer;
    if (needed && held_add_finalizer(s->held, HR_FINALIZER, &err)) {
        sync_fail(s, "Failed", &err);
        return;
    }
    act(s, action);
}
