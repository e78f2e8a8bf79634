/* helm-operator's mark of ownership on live objects: the annotation helm.fluxcd.io/antecedent =
 * NAMESPACE:helmrelease/NAME. Tools read it, and helm-operator itself leaves alone what carries
 * another's. It is put on each object that a run created; helm keeps annotations that are in none
 * of its manifests, so an object has it from then on. */
#include "worker/worker_internal.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "jsonx/jsonx.h"

/* PATCHes on the wire at the same time. */
#define BATCH 8

/* Returns how many of the n could not be marked. */
static size_t mark_batch(struct sync *s, char *const *targets, size_t n, const json_t *body,
                         struct err *ret_err)
{
    struct worker *w = s->w;
    struct kube_request requests[BATCH];
    struct kube_call calls[BATCH];
    struct mono deadline =
        mono_min(mono_add_ms(clock_mono(w->options.clock), WORKER_READ_MS), held_deadline(s->held));
    must(n <= BATCH);
    for (size_t i = 0; i < n; i++) {
        requests[i] = (struct kube_request){.method = "PATCH",
                                            .raw_path = targets[i],
                                            .query = "fieldManager=belay",
                                            .body = body,
                                            .content_type = KUBE_MERGE_PATCH,
                                            .accept = KUBE_ACCEPT_METADATA,
                                            .deadline = deadline,
                                            .cancel = held_lost(s->held)};
        calls[i] = (struct kube_call){.request = &requests[i]};
    }
    kube_do_many(w->options.kube, calls, n);
    size_t failed = 0;
    for (size_t i = 0; i < n; i++) {
        if (calls[i].result == ERR_NONE) {
            kube_reply_release(&calls[i].reply);
        } else if (calls[i].result != ERR_NOT_FOUND) { /* helm may have deleted it again */
            failed++;
            *ret_err = calls[i].err;
        }
    }
    return failed;
}

void sync_mark_created(struct sync *s)
{
    size_t n = s->wrote.created_target_count;
    if (n == 0) {
        return;
    }
    _cleanup_(free_cstr)
    char *value = xasprintf("%s:helmrelease/%s", s->hr->ns, s->hr->name);
    _cleanup_json_ json_t *body =
        json_pack("{s:{s:{s:s}}}", "metadata", "annotations", ANNOTATION_ANTECEDENT, value);
    must(body != NULL);
    size_t failed = 0;
    struct err err = ERR_INIT;
    for (size_t at = 0; at < n && !held_is_lost(s->held); at += BATCH) {
        size_t some = n - at < BATCH ? n - at : BATCH;
        failed += mark_batch(s, s->wrote.created_targets + at, some, body, &err);
    }
    if (failed > 0) {
        log_warn("sync", "objects could not be annotated with " ANNOTATION_ANTECEDENT,
                 LOG_I("objects", (int64_t)failed), LOG_S("err", err.msg));
    }
}
