/* Running helm under the lock: through the gate, or, with --gate=false, straight to the API server.
 */
#include "worker/worker_internal.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "jsonx/jsonx.h"

/* helm's --timeout is per operation, and a run has several (hooks, waits): ten of them and a minute
 * end any hang (case 10). */
#define HELM_TIMEOUTS_MAX 10
#define HELM_EXTRA_S      60

struct child_run {
    struct sync *s;
    struct gate_run *gate; /* NULL: there is none */
};

static void on_child(void *ctx, struct child *child)
{
    struct child_run *r = ctx;
    held_set_child(r->s->held, child);
    /* It may have been refused something before anybody knew whom to kill. */
    if (child != NULL && r->gate != NULL && gate_is_latched(r->gate)) {
        held_kill_child(r->s->held);
    }
}

static void add_record(struct gate_run *run, const struct helmrec_meta *m)
{
    struct fence_claim claim = {
        .digest = m->digest, .owner = m->owner, .owner_name = m->owner_name, .epoch = m->epoch};
    gate_add_record(run, m->revision, m->resource_version, &claim);
}

/* Let this run, and nothing else, through the gate. */
static struct gate_run *admit(struct sync *s, const struct helmargs_options *args)
{
    bool upgrades = args->verb == HELM_UPGRADE_INSTALL;
    _cleanup_(free_cstr)
    char *owner_name = xasprintf("%s/%s", s->hr->ns, s->hr->name);
    const char *was = s->newest != NULL ? s->newest->digest : "";
    struct gate_run_options options = {
        .held = s->held,
        .fence = {.ns = s->hr->spec.target_ns,
                  .release = s->hr->spec.release_name,
                  .makes_revision = upgrades,
                  .may_delete_all = args->verb == HELM_UNINSTALL,
                  .newest = s->newest != NULL ? s->newest->revision : 0,
                  .claim = {.digest = upgrades ? s->in.digest : (char *)(uintptr_t)was,
                            .owner = s->hr->uid,
                            .owner_name = owner_name,
                            .epoch = held_epoch(s->held)}}};
    struct gate_run *run = gate_admit(s->w->options.gate, &options);
    if (s->newest != NULL) {
        add_record(run, s->newest);
    }
    for (size_t i = 0; i < s->older.count; i++) {
        add_record(run, s->older.items[i]);
    }
    return run;
}

static enum err_kind write_kubeconfig(struct sync *s, const struct child_run *r, const char *path,
                                      struct err *err)
{
    enum err_kind kind = r->gate != NULL
                             ? gate_write_kubeconfig(r->gate, path, err)
                             : kube_config_write_for_child(s->w->options.kube_config, path, err);
    return kind == ERR_NONE ? ERR_NONE : err_wrap(err, "write helm's kubeconfig");
}

static enum err_kind run_child(struct child_run *r, const struct helmargs_options *args,
                               const char *kubeconfig, struct helm_result *ret, struct err *err)
{
    struct sync *s = r->s;
    struct worker *w = s->w;
    bool with_values = args->verb == HELM_UPGRADE_INSTALL;
    _cleanup_(free_cstr)
    char *values = with_values ? jsonx_dump(s->in.values) : NULL;
    int64_t limit_ms = (s->hr->spec.timeout_s * HELM_TIMEOUTS_MAX + HELM_EXTRA_S) * 1000;
    struct helm_run_options run = {
        .args = *args,
        .kubeconfig = kubeconfig,
        .values = values,
        .values_len = values != NULL ? strlen(values) : 0,
        .redact = s->in.secret_values,
        .deadline = mono_add_ms(clock_mono(w->options.clock), limit_ms),
        .on_child = on_child,
        .ctx = r,
    };
    metrics_add(w->options.metrics, METRICS_HELM_RUNS, 1);
    return helm_run(w->options.helm, &run, ret, err);
}

/* helm is gone. What did it do, and is any of it still under way? */
static enum err_kind dismiss(struct child_run *r, enum err_kind kind, struct helm_result *ret,
                             struct err *err)
{
    struct sync *s = r->s;
    gate_report_release(&s->wrote);
    gate_dismiss(r->gate, &s->wrote);
    s->unanswered = s->unanswered || s->wrote.unanswered;
    log_debug("gate", "helm's requests", LOG_I("requests", s->wrote.requests),
              LOG_I("bytes", s->wrote.bytes_to_child), LOG_I("created", s->wrote.created),
              LOG_I("changed", s->wrote.changed), LOG_I("deleted", s->wrote.deleted));
    if (!s->wrote.latched) {
        return kind;
    }
    /* Whatever helm made of the refusal: an uninstall may well have exited 0. */
    free(ret->message);
    ret->message = xasprintf("helm was stopped: %s", s->wrote.why);
    err_set(err, ERR_CONFLICT, "%s", ret->message);
    return err->kind;
}

enum err_kind sync_helm(struct sync *s, const struct helmargs_options *args,
                        struct helm_result *ret, struct err *err)
{
    struct worker *w = s->w;
    if (held_is_lost(s->held)) {
        return err_set(err, ERR_LEASE_LOST, "the lock is lost");
    }
    struct child_run r = {.s = s, .gate = w->options.gate != NULL ? admit(s, args) : NULL};
    _cleanup_(free_cstr)
    char *kubeconfig = xasprintf("%s/kubeconfig-%lld", w->options.work_dir,
                                 (long long)atomic_fetch_add(&w->helms, 1));
    enum err_kind kind = write_kubeconfig(s, &r, kubeconfig, err);
    if (kind == ERR_NONE) {
        kind = run_child(&r, args, kubeconfig, ret, err);
    }
    if (r.gate != NULL) {
        kind = dismiss(&r, kind, ret, err);
    }
    /* Not before helm is gone: without it, it would look for another way to the API server. */
    (void)unlink(kubeconfig);
    return kind;
}
