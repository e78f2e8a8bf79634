/* Deletion is a sync of its own: the finalizer keeps the object, and so its lock, until the release
 * is gone. */
#include "worker/worker_internal.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

static struct mono deadline_in(struct sync *s, int64_t ms)
{
    return mono_add_ms(clock_mono(s->w->options.clock), ms);
}

/* Hooks cannot be created in a namespace that is going away: they would hang the uninstall for
 * ever. */
static bool target_terminating(struct sync *s)
{
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err ignored = ERR_INIT;
    if (kube_get(s->w->options.kube, &KUBE_NAMESPACES, NULL, s->hr->spec.target_ns,
                 deadline_in(s, WORKER_READ_MS), held_cancel(s->held), &reply, &ignored)) {
        return ignored.kind == ERR_NOT_FOUND;
    }
    bool terminating = jsonx_str(reply.object, "metadata.deletionTimestamp", NULL) != NULL;
    kube_reply_release(&reply);
    return terminating;
}

static void let_go(struct sync *s, const char *why)
{
    struct err err = ERR_INIT;
    if (held_remove_finalizer(s->held, HR_FINALIZER, &err)) {
        sync_fail(s, "Failed", &err);
        return;
    }
    log_info("sync", "uninstalled, the object is let go",
             LOG_S("release", s->hr->spec.release_name), LOG_S("why", why));
}

static void fail_uninstall(struct sync *s, const char *words, const struct err *err)
{
    struct outcome o = {.phase = "Failed",
                        .reason = "UninstallFailed",
                        .message = xasprintf("uninstall failed: %s", words)};
    /* Never for good: nobody can edit an object that is being deleted out of a dead end. */
    struct err retried = *err;
    retried.kind = err_kind_retryable(err->kind) ? err->kind : ERR_HELM_FAILED;
    sync_fail_with(s, &o, &retried);
}

/* helm's word alone is not enough: `helm uninstall` exits 0 in cases where the record is still
 * there, and 1 where it is gone. */
static void verify_gone(struct sync *s, enum err_kind kind, const char *words, struct err *err)
{
    struct err read_err = ERR_INIT;
    struct helmrec_meta *left = NULL;
    int64_t epoch = 0;
    if (records_newest(s->w, s->hr, deadline_in(s, WORKER_READ_MS), NULL, &left, NULL, &epoch,
                       &read_err)) {
        fail_uninstall(s, read_err.msg, &read_err);
        return;
    }
    bool gone = left == NULL || left->status == HELMREC_UNINSTALLED;
    helmrec_meta_free(left);
    if (gone) {
        let_go(s, "uninstalled");
    } else if (kind != ERR_NONE) {
        fail_uninstall(s, words, err);
    } else {
        err_set(err, ERR_HELM_FAILED, "helm reported success, and its records are still there");
        fail_uninstall(s, err->msg, err);
    }
}

/* Which release to uninstall: the spec's, or, if the spec was edited into something illegal, the
 * one that the status says was released. False: there is none. */
static bool name_release(struct hr *hr)
{
    bool legal = hr->spec_err.kind == ERR_NONE;
    if (!legal && hr->status.release_name[0] != '\0') {
        free(hr->spec.release_name);
        hr->spec.release_name = xstrdup(hr->status.release_name);
        return hr->spec.target_ns != NULL;
    }
    return legal;
}

static enum err_kind run_uninstall(struct sync *s, struct helm_result *ret, struct err *err)
{
    log_info("sync", "running uninstall", LOG_S("release", s->hr->spec.release_name));
    struct helmargs_options args = {
        .verb = HELM_UNINSTALL, .spec = &s->hr->spec, .no_hooks = target_terminating(s)};
    struct mono began = clock_mono(s->w->options.clock);
    enum err_kind kind = sync_helm(s, &args, ret, err);
    metrics_action(s->w->options.metrics, "uninstall", kind == ERR_NONE, s->hr->spec.target_ns,
                   s->hr->spec.release_name,
                   (double)mono_diff_ms(clock_mono(s->w->options.clock), began) / 1000.0);
    return kind;
}

/* helm's own word does not count, see verify_gone. */
enum err_kind sync_finish_uninstall(struct sync *s, struct err *err)
{
    if (sync_wait_guard(s, err)) {
        return err->kind;
    }
    struct helm_result result = {0};
    struct err helm_err = ERR_INIT;
    enum err_kind kind = run_uninstall(s, &result, &helm_err);
    _cleanup_(free_cstr)
    char *words = xstrdup(result.message != NULL && result.message[0] != '\0' ? result.message
                                                                              : helm_err.msg);
    helm_result_release(&result);
    if (s->unanswered) {
        return err_set(err, ERR_UNKNOWN_OUTCOME, "a write of the uninstall has no answer");
    }
    if (kind != ERR_NONE && held_was_interrupted(s->held)) {
        return err_set(err, ERR_CANCELLED, "%s", words);
    }
    struct helmrec_meta *left = NULL;
    int64_t epoch = 0;
    if (records_newest(s->w, s->hr, deadline_in(s, WORKER_READ_MS), held_cancel(s->held), &left,
                       &s->older, &epoch, err)) {
        return err->kind;
    }
    helmrec_meta_free(s->newest);
    s->newest = left;
    if (left == NULL || left->status == HELMREC_UNINSTALLED) {
        return ERR_NONE;
    }
    return err_set(err, ERR_HELM_FAILED, "an uninstall that was begun could not be finished: %s",
                   words[0] != '\0' ? words
                                    : "helm reported success, and its records are still there");
}

void sync_uninstall(struct sync *s)
{
    struct err err = ERR_INIT;
    int64_t epoch = 0;
    if (!name_release(s->hr)) {
        let_go(s, "its spec never named a release");
        return;
    }
    if (records_newest(s->w, s->hr, deadline_in(s, WORKER_READ_MS), held_cancel(s->held),
                       &s->newest, &s->older, &epoch, &err)) {
        fail_uninstall(s, err.msg, &err);
        return;
    }
    if (s->newest == NULL || s->newest->status == HELMREC_UNINSTALLED) {
        let_go(s, "there is no release");
        return;
    }
    /* Only the owner uninstalls. A record that names nobody is ours if our status says that we
     * released it. */
    bool ours = strcmp(s->newest->owner, s->hr->uid) == 0;
    bool nobodys = s->newest->owner[0] == '\0' &&
                   text_eq(s->hr->status.release_name, s->hr->spec.release_name);
    if (!ours && !nobodys) {
        let_go(s, "the release belongs to somebody else");
        return;
    }
    struct helm_result result = {0};
    enum err_kind kind = run_uninstall(s, &result, &err);
    bool stopped = kind != ERR_NONE && held_was_interrupted(s->held);
    if (stopped && !held_is_lost(s->held)) {
        sync_interrupted(s);
    } else if (!held_is_lost(s->held)) {
        verify_gone(s, kind,
                    result.message != NULL && result.message[0] != '\0' ? result.message : err.msg,
                    &err);
    }
    helm_result_release(&result);
}
