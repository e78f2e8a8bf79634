/* Stock helm as a child process. It is told everything by argv, stdin, one kubeconfig and an
 * environment built from nothing (no KUBERNETES_*, no HELM_* of ours or the user's but
 * HELM_DRIVER=secret; or it would walk past that kubeconfig). Threads: any; helm_run blocks the
 * calling worker. */
#ifndef BELAY_HELM_HELM_H
#define BELAY_HELM_HELM_H

#include "effect/clock.h"
#include "effect/proc.h"
#include "helmargs/helmargs.h"

struct helm;
struct helm_options {
    struct proc *proc;
    struct clock *clock;
    int inherit_fd;       /* a descriptor that children keep (the pod socket); <= 2: none */
    const char *path;     /* NULL or "": "helm"; without a slash: looked up on PATH */
    const char *home_dir; /* absolute; private directory (0700) for HOME, shared by all children:
                             discovery cache */
};
/* Find helm and read its version once. INVALID: none found, or neither major 3 nor 4, with what was
 * looked for. */
enum err_kind helm_open(const struct helm_options *options, struct helm **ret,
                        struct err *err) MUST_CHECK;
void helm_close(struct helm *h);
int helm_major(const struct helm *h);
const char *helm_version(const struct helm *h); /* "v3.22.0" */
const char *helm_path(const struct helm *h);

struct helm_run_options {
    struct helmargs_options args; /* helm_major and helm_path are filled in */
    const char *kubeconfig;       /* absolute path; must outlive the run */
    const char *values;           /* JSON text for "-f -"; NULL = none */
    size_t values_len;
    const json_t *redact; /* values tree: its strings of >= 6 bytes that came from Secrets are
                             blanked in messages; NULL = none */
    struct mono deadline;
    /* Called on the calling thread as soon as the child runs, and (child = NULL) once it is reaped:
     * the heartbeat uses it to interrupt or kill the group. */
    void (*on_child)(void *ctx, struct child *child);
    void *ctx;
};

struct helm_result {
    char *message; /* helm's own last words, cleaned, redacted, at most LIMIT_MESSAGE_BYTES; "" on
                      success */
    bool interrupted; /* SIGINT or SIGTERM ended it, or it said that it was cancelled. Not SIGKILL:
                         the kernel sends that too (memory), so who sent one must remember it. */
    bool timed_out;
    int64_t duration_ms;
};
void helm_result_release(struct helm_result *r);

/* ERR_NONE: helm exited 0. ERR_HELM_FAILED: it ran and failed; ret is filled in that case too (the
 * one exception to the contract of outputs). Other kinds: it could not be run. */
enum err_kind helm_run(struct helm *h, const struct helm_run_options *options,
                       struct helm_result *ret, struct err *err) MUST_CHECK;

#endif
