#include "helm/helm.h"

#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "helm/message.h"

/* `helm version` takes 0.1 s; a cold page cache on a small machine that starts everything at once,
 * far more. */
#define VERSION_TIMEOUT_MS 30000
#define ENV_MAX            16
#define PATH_DEFAULT       "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

struct helm {
    struct proc *proc;
    struct clock *clock;
    char *path; /* absolute */
    char *dir;  /* path's directory */
    char *home_dir;
    char *version;
    int major;
    int inherit_fd; /* <= 2: none */
};

/* ---- the environment ---- */

struct env {
    char *vars[ENV_MAX + 1]; /* NULL-terminated, heap */
    size_t count;
};

static void env_release(struct env *e)
{
    for (size_t i = 0; i < e->count; i++) {
        free(e->vars[i]);
    }
}

/* var: on the heap, ownership moves in. */
static void env_add(struct env *e, char *var)
{
    must(e->count < ENV_MAX);
    e->vars[e->count++] = var;
}

/* Built from nothing. Not in it, on purpose:
 * - KUBERNETES_*: with a kubeconfig that is missing, helm would go to the API server as our pod;
 * - HELM_*: HELM_NAMESPACE, HELM_KUBETOKEN, HELM_DRIVER=sql and the like change what a command line
 * means;
 * - HTTPS_PROXY, NO_PROXY in either case: the chart is a file already, all that is left to reach is
 * the API server, and that directly;
 * - GOGC, GOMEMLIMIT: GOGC=off saved 0.03 s of 0.23 s CPU and cost 17 MB of 75 MB in a child
 * (helm 3.22.0, 4.3.1). */
static void env_fill(struct env *e, const struct helm *h, const char *kubeconfig)
{
    env_add(e, xasprintf("PATH=%s:/usr/bin:/bin", h->dir));
    env_add(e, xasprintf("HOME=%s", h->home_dir));
    env_add(e, xasprintf("TMPDIR=%s", h->home_dir));
    env_add(e, xasprintf("XDG_CACHE_HOME=%s/.cache", h->home_dir));
    env_add(e, xasprintf("XDG_CONFIG_HOME=%s/.config", h->home_dir));
    env_add(e, xasprintf("XDG_DATA_HOME=%s/.local/share", h->home_dir));
    env_add(e, xstrdup("HELM_DRIVER=secret"));
    /* Never without: helm would fall back to $HOME/.kube/config, then to localhost:8080. */
    env_add(e, xasprintf("KUBECONFIG=%s", kubeconfig != NULL ? kubeconfig : "/nonexistent"));
}

/* ---- open ---- */

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* Absolute path of name on path_var; NULL if it is not there. */
static char *find_on(const char *path_var, const char *name)
{
    const char *p = path_var;
    while (*p != '\0') {
        size_t len = strcspn(p, ":");
        /* An empty or relative entry would make the result depend on the working directory. */
        if (len > 0 && p[0] == '/') {
            char *path = xasprintf("%.*s/%s", (int)len, p, name);
            if (is_program(path)) {
                return path;
            }
            free(path);
        }
        p += len + (p[len] == ':' ? 1 : 0);
    }
    return NULL;
}

static enum err_kind find_helm(const char *given, char **ret, struct err *err)
{
    const char *name = given == NULL || given[0] == '\0' ? "helm" : given;
    if (strchr(name, '/') == NULL) {
        const char *path_var = getenv("PATH");
        path_var = path_var != NULL ? path_var : PATH_DEFAULT;
        char *found = find_on(path_var, name);
        if (found == NULL) {
            err_set(err, ERR_INVALID, "no program %s on PATH (%s)", name, path_var);
            err_hint(err, "install helm 3 or 4, or give --helm PATH");
            return err->kind;
        }
        *ret = found;
        return ERR_NONE;
    }
    if (name[0] == '/') {
        *ret = xstrdup(name);
        return ERR_NONE;
    }
    char absolute[PATH_MAX];
    if (realpath(name, absolute) == NULL) {
        return err_set(err, ERR_INVALID, "no helm at %s: %m", name);
    }
    *ret = xstrdup(absolute);
    return ERR_NONE;
}

/* "v3.22.0\n" -> 3 and "v3.22.0"; 0 if it is nothing like that. */
static int parse_version(const char *out, char **ret_version)
{
    size_t len = strcspn(out, " \t\r\n");
    bool ours = out[0] == 'v' && (out[1] == '3' || out[1] == '4') && out[2] == '.';
    if (!ours || len > 64) {
        return 0;
    }
    *ret_version = text_clean(out, len, 64);
    return out[1] - '0';
}

static enum err_kind read_version(struct helm *h, struct err *err)
{
    __attribute__((cleanup(env_release))) struct env env = {.count = 0};
    env_fill(&env, h, NULL);
    const char *argv[] = {h->path, "version", "--template", "{{.Version}}", NULL};
    struct proc_spec spec = {.argv = argv,
                             .envp = (const char *const *)env.vars,
                             .output_max = 4096,
                             .deadline = mono_add_ms(clock_mono(h->clock), VERSION_TIMEOUT_MS)};
    struct child *child = NULL;
    if (proc_start(h->proc, &spec, &child, err)) {
        return err_wrap(err, "run %s", h->path);
    }
    __attribute__((cleanup(proc_result_release))) struct proc_result result = PROC_RESULT_INIT;
    enum err_kind kind = proc_wait(h->proc, child, &result, err);
    proc_free(h->proc, child);
    if (kind != ERR_NONE) {
        return err_wrap(err, "run %s version", h->path);
    }
    if (result.timed_out) {
        return err_set(err, ERR_TIMEOUT, "%s version did not answer within %d s", h->path,
                       VERSION_TIMEOUT_MS / 1000);
    }
    int major = result.exit_code == 0 ? parse_version(buf_str(&result.out), &h->version) : 0;
    if (major == 0) {
        const struct buf *said = result.out.len > 0 ? &result.out : &result.err;
        _cleanup_(free_cstr)
        char *words = text_clean(buf_str(said), strcspn(buf_str(said), "\n"), 80);
        return err_set(
            err, ERR_INVALID,
            "%s is neither helm 3 nor helm 4: \"version\" ended with status %d and said \"%s\"",
            h->path, result.exit_code, words);
    }
    h->major = major;
    return ERR_NONE;
}

enum err_kind helm_open(const struct helm_options *options, struct helm **ret, struct err *err)
{
    must(options->proc != NULL && options->clock != NULL);
    must(options->home_dir != NULL && options->home_dir[0] == '/');
    char *path = NULL;
    if (find_helm(options->path, &path, err)) {
        return err->kind;
    }
    must(path != NULL && path[0] == '/');
    struct helm *h = xcalloc(1, sizeof(*h));
    h->proc = options->proc;
    h->clock = options->clock;
    h->path = path;
    h->inherit_fd = options->inherit_fd;
    const char *slash = strrchr(path, '/');
    must(slash != NULL);
    h->dir = slash == path ? xstrdup("/") : xstrndup(path, (size_t)(slash - path));
    h->home_dir = xstrdup(options->home_dir);
    if (read_version(h, err)) {
        helm_close(h);
        return err->kind;
    }
    *ret = h;
    return ERR_NONE;
}

void helm_close(struct helm *h)
{
    if (h == NULL) {
        return;
    }
    free(h->path);
    free(h->dir);
    free(h->home_dir);
    free(h->version);
    free(h);
}

int helm_major(const struct helm *h)
{
    return h->major;
}

const char *helm_version(const struct helm *h)
{
    return h->version;
}

const char *helm_path(const struct helm *h)
{
    return h->path;
}

/* ---- run ---- */

void helm_result_release(struct helm_result *r)
{
    free(r->message);
    *r = (struct helm_result){.message = NULL};
}

/* Both majors say on stdout, of an install or upgrade that SIGINT or SIGTERM ended: Release NAME
 * has been cancelled. */
static bool says_cancelled(const struct buf *out, const char *release)
{
    _cleanup_(free_cstr)
    char *words = xasprintf("Release %s has been cancelled.", release);
    return strstr(buf_str(out), words) != NULL;
}

/* How helm ended, when it said nothing itself. */
static char *ending(const struct proc_result *p, int64_t duration_ms)
{
    if (p->timed_out) {
        return xasprintf("helm did not end within %lld s and was killed",
                         (long long)(duration_ms / 1000));
    }
    if (p->signal > 0) {
        return xasprintf("helm was ended by signal %d%s", p->signal,
                         p->signal == SIGKILL ? " (out of memory, if nobody killed it)" : "");
    }
    return xasprintf("helm ended with status %d and gave no reason", p->exit_code);
}

static void read_result(const struct helm_run_options *o, const struct proc_result *p,
                        int64_t duration_ms, struct helm_result *ret)
{
    const struct hr_spec *spec = o->args.spec;
    const char *const keep[] = {spec->release_name, spec->target_ns, spec->chart_name, NULL};
    const struct message_source source = {.text = buf_str(&p->err),
                                          .len = p->err.len,
                                          .truncated = p->err.len >= LIMIT_HELM_OUTPUT,
                                          .secrets = o->redact,
                                          .keep = keep};
    bool cancelled = false;
    char *message = message_read(&source, &cancelled);
    if (message[0] == '\0' || p->timed_out) {
        free(message);
        message = ending(p, duration_ms);
    }
    /* SIGKILL is not counted: the kernel sends it too, and a child that memory cannot hold must not
     * be retried at once. Who killed it knows. */
    bool stopped = p->signal == SIGINT || p->signal == SIGTERM;
    *ret = (struct helm_result){
        .message = message,
        .interrupted =
            !p->timed_out && (stopped || cancelled || says_cancelled(&p->out, spec->release_name)),
        .timed_out = p->timed_out,
        .duration_ms = duration_ms,
    };
}

static enum err_kind run_child(struct helm *h, const struct helm_run_options *o,
                               const struct proc_spec *spec, struct proc_result *ret,
                               struct err *err)
{
    struct child *child = NULL;
    if (proc_start(h->proc, spec, &child, err)) {
        return err_wrap(err, "run %s", h->path);
    }
    if (o->on_child != NULL) {
        o->on_child(o->ctx, child);
    }
    enum err_kind kind = proc_wait(h->proc, child, ret, err);
    /* Before it is freed: until then whoever was told of it may signal it. */
    if (o->on_child != NULL) {
        o->on_child(o->ctx, NULL);
    }
    proc_free(h->proc, child);
    return kind == ERR_NONE ? ERR_NONE : err_wrap(err, "wait for %s", h->path);
}

enum err_kind helm_run(struct helm *h, const struct helm_run_options *o, struct helm_result *ret,
                       struct err *err)
{
    must(o->kubeconfig != NULL && o->kubeconfig[0] == '/');
    struct helmargs_options args_options = o->args;
    args_options.helm_major = h->major;
    args_options.helm_path = h->path;
    __attribute__((cleanup(helmargs_release))) struct helmargs args;
    helmargs_build(&args_options, &args);
    __attribute__((cleanup(env_release))) struct env env = {.count = 0};
    env_fill(&env, h, o->kubeconfig);

    struct proc_spec spec = {.argv = (const char *const *)args.argv,
                             .envp = (const char *const *)env.vars,
                             .input = o->values,
                             .input_len = o->values != NULL ? o->values_len : 0,
                             .output_max = LIMIT_HELM_OUTPUT,
                             .deadline = o->deadline,
                             .inherit_fds = &h->inherit_fd,
                             .inherit_fd_count = h->inherit_fd > 2 ? 1 : 0};
    __attribute__((cleanup(proc_result_release))) struct proc_result result = PROC_RESULT_INIT;
    struct mono started = clock_mono(h->clock);
    if (run_child(h, o, &spec, &result, err)) {
        return err->kind;
    }
    int64_t duration_ms = mono_diff_ms(clock_mono(h->clock), started);
    if (result.exit_code == 0) {
        *ret = (struct helm_result){.message = xstrdup(""), .duration_ms = duration_ms};
        return ERR_NONE;
    }
    read_result(o, &result, duration_ms, ret);
    err_set(err, ERR_HELM_FAILED, "%s", ret->message);
    err->code = result.exit_code > 0 ? result.exit_code : 0;
    return err->kind;
}
