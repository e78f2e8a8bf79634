/* Exec credential plugins: client.authentication.k8s.io v1 and v1beta1 (KEP-541). The plugin gets
 * KUBERNETES_EXEC_INFO, prints an ExecCredential, and is never given a terminal. Its stdout is
 * secret; of its stderr a short piece goes into the error, as kubectl shows it to the user. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/must.h"
#include "base/text.h"
#include "effect/clock.h"
#include "effect/proc.h"
#include "jsonx/jsonx.h"
#include "kube/kube_config.h"

#define EXEC_DEADLINE_MS  INT64_C(30000)
#define EXEC_ARGS_MAX     256
#define EXEC_STDERR_SHOWN 200 /* bytes */

extern char **environ;

static enum err_kind bad(const char *where, const char *field, const char *legal, struct err *err)
{
    return err_set(err, ERR_INVALID, "%s.%s %s", where, field, legal);
}

static void free_strv(char **v)
{
    for (size_t i = 0; v != NULL && v[i] != NULL; i++) {
        free(v[i]);
    }
    free(v);
}

void kube_exec_free(struct kube_exec *e)
{
    if (e == NULL) {
        return;
    }
    free(e->api_version);
    free_strv(e->argv);
    free_strv(e->envp);
    free(e->install_hint);
    free(e);
}

static void kube_exec_free_ptr(struct kube_exec **e)
{
    kube_exec_free(*e);
}

void kube_exec_result_release(struct kube_exec_result *r)
{
    kube_wipe(r->token);
    free(r->cert_data);
    kube_wipe(r->key_data);
    *r = (struct kube_exec_result){0};
}

/* The program's absolute path: absolute as it is, with a slash relative to the kubeconfig, else
 * searched in PATH. NULL if PATH has none. */
static char *find_program(const char *command, const char *dir)
{
    if (strchr(command, '/') != NULL) {
        return kube_path_join(dir, command);
    }
    const char *path = getenv("PATH");
    for (const char *at = path != NULL ? path : ""; *at != '\0';) {
        size_t len = strcspn(at, ":");
        /* Relative entries of PATH are skipped: Go refuses to run what they find. */
        if (len > 0 && at[0] == '/') {
            _cleanup_(free_cstr)
            char *full = xasprintf("%.*s/%s", (int)len, at, command);
            if (access(full, X_OK) == 0) {
                return take_ptr(&full);
            }
        }
        at += len + (at[len] == ':' ? 1 : 0);
    }
    return NULL;
}

static enum err_kind parse_args(const json_t *spec, const char *where, const char *program,
                                char ***ret, struct err *err)
{
    const json_t *args = json_object_get(spec, "args");
    if (args != NULL && !json_is_null(args) && !json_is_array(args)) {
        return bad(where, "args", "must be a list of strings", err);
    }
    size_t n = json_array_size(args);
    if (n > EXEC_ARGS_MAX) {
        return bad(where, "args", "must have at most 256 entries", err);
    }
    char **argv = xcalloc(n + 2, sizeof(char *));
    argv[0] = xstrdup(program);
    for (size_t i = 0; i < n; i++) {
        const char *arg = json_string_value(json_array_get(args, i));
        if (arg == NULL) {
            free_strv(argv);
            return bad(where, "args", "must be a list of strings", err);
        }
        argv[i + 1] = xstrdup(arg);
    }
    *ret = argv;
    return ERR_NONE;
}

static bool overridden(const json_t *env, const char *ours)
{
    size_t name_len = strcspn(ours, "=");
    size_t i;
    json_t *entry;
    json_array_foreach(env, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name != NULL && strlen(name) == name_len && strncmp(name, ours, name_len) == 0) {
            return true;
        }
    }
    return strncmp(ours, "KUBERNETES_EXEC_INFO", name_len) == 0 &&
           name_len == strlen("KUBERNETES_EXEC_INFO");
}

static enum err_kind parse_env(const json_t *spec, const char *where, char ***ret, struct err *err)
{
    const json_t *env = json_object_get(spec, "env");
    if (env != NULL && !json_is_null(env) && !json_is_array(env)) {
        return bad(where, "env", "must be a list of {name, value}", err);
    }
    size_t ours = 0;
    while (environ[ours] != NULL) {
        ours++;
    }
    char **envp = xcalloc(ours + json_array_size(env) + 1, sizeof(char *));
    size_t n = 0;
    for (size_t i = 0; i < ours; i++) {
        if (!overridden(env, environ[i])) {
            envp[n++] = xstrdup(environ[i]);
        }
    }
    size_t i;
    json_t *entry;
    json_array_foreach(env, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const char *value = json_string_value(json_object_get(entry, "value"));
        if (name == NULL || value == NULL || name[0] == '\0' || strchr(name, '=') != NULL) {
            free_strv(envp);
            return bad(where, "env", "must be a list of {name, value}", err);
        }
        envp[n++] = xasprintf("%s=%s", name, value);
    }
    *ret = envp;
    return ERR_NONE;
}

enum err_kind kube_exec_parse(const json_t *spec, const char *where, const char *dir,
                              struct kube_exec **ret, struct err *err)
{
    const char *version = jsonx_str(spec, "apiVersion", "");
    const char *command = jsonx_str(spec, "command", "");
    if (!text_eq(version, "client.authentication.k8s.io/v1") &&
        !text_eq(version, "client.authentication.k8s.io/v1beta1")) {
        return bad(
            where, "apiVersion",
            "must be client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1", err);
    }
    if (command[0] == '\0') {
        return bad(where, "command", "must name a program", err);
    }
    if (text_eq(jsonx_str(spec, "interactiveMode", NULL), "Always")) {
        return bad(where, "interactiveMode",
                   "must be Never or IfAvailable: there is no terminal here", err);
    }
    _cleanup_(kube_exec_free_ptr)
    struct kube_exec *e = xcalloc(1, sizeof(*e));
    e->api_version = xstrdup(version);
    e->provide_cluster_info = jsonx_bool(spec, "provideClusterInfo", false);
    e->install_hint = kube_dup(jsonx_str(spec, "installHint", NULL));
    _cleanup_(free_cstr)
    char *program = find_program(command, dir);
    if (program == NULL || access(program, X_OK) != 0) {
        (void)bad(where, "command", "must be a program in PATH, or a path to one", err);
        if (e->install_hint != NULL) {
            err_hint(err, "%s", e->install_hint);
        }
        return err->kind;
    }
    enum err_kind kind;
    if ((kind = parse_args(spec, where, program, &e->argv, err)) != ERR_NONE ||
        (kind = parse_env(spec, where, &e->envp, err)) != ERR_NONE) {
        return kind;
    }
    *ret = take_ptr(&e);
    return ERR_NONE;
}

/* "KUBERNETES_EXEC_INFO={...}" */
static char *exec_info(const struct kube_exec *e, const struct kube_config *c)
{
    _cleanup_json_ json_t *info = json_pack("{s:s, s:s, s:{s:b}}", "kind", "ExecCredential",
                                            "apiVersion", e->api_version, "spec", "interactive", 0);
    must(info != NULL);
    if (e->provide_cluster_info) {
        json_t *cluster = json_pack("{s:s}", "server", c->server);
        json_t *spec = json_object_get(info, "spec");
        must(cluster != NULL && json_object_set_new(spec, "cluster", cluster) == 0);
        _cleanup_(free_cstr)
        char *ca = c->ca_data != NULL ? kube_base64_encode(c->ca_data) : NULL;
        if (ca != NULL) {
            must(json_object_set_new(cluster, "certificate-authority-data", json_string(ca)) == 0);
        }
        if (c->tls_server_name != NULL) {
            must(json_object_set_new(cluster, "tls-server-name", json_string(c->tls_server_name)) ==
                 0);
        }
        if (c->insecure) {
            must(json_object_set_new(cluster, "insecure-skip-tls-verify", json_true()) == 0);
        }
    }
    _cleanup_(free_cstr)
    char *text = jsonx_dump(info);
    return xasprintf("KUBERNETES_EXEC_INFO=%s", text);
}

static enum err_kind run(const struct kube_exec *e, const struct kube_config *c,
                         struct mono deadline, struct proc_result *ret, struct err *err)
{
    size_t n = 0;
    while (e->envp[n] != NULL) {
        n++;
    }
    _cleanup_(free_cstr)
    char *info = exec_info(e, c);
    char **envp = xcalloc(n + 2, sizeof(char *));
    memcpy(envp, e->envp, n * sizeof(char *));
    envp[n] = info;
    struct proc_spec spec = {
        .argv = (const char *const *)e->argv,
        .envp = (const char *const *)envp,
        .output_max = LIMIT_CREDENTIAL_BYTES,
        .deadline = mono_min(deadline, mono_add_ms(clock_mono(c->clock), EXEC_DEADLINE_MS))};
    struct child *child = NULL;
    enum err_kind kind = proc_start(c->proc, &spec, &child, err);
    if (kind == ERR_NONE) {
        kind = proc_wait(c->proc, child, ret, err);
        proc_free(c->proc, child);
    }
    free(envp);
    return kind;
}

static enum err_kind parse_answer(const struct kube_exec *e, const struct buf *out,
                                  struct kube_exec_result *ret, struct err *err)
{
    _cleanup_json_ json_t *answer = NULL;
    struct err parse = ERR_INIT; /* not shown: it could quote the answer */
    if (jsonx_parse(buf_str(out), out->len, &answer, &parse) != ERR_NONE ||
        !text_eq(jsonx_str(answer, "kind", NULL), "ExecCredential") ||
        !text_eq(jsonx_str(answer, "apiVersion", NULL), e->api_version)) {
        return err_set(err, ERR_DENIED, "its output is no ExecCredential of %s", e->api_version);
    }
    const char *token = jsonx_str(answer, "status.token", NULL);
    const char *cert = jsonx_str(answer, "status.clientCertificateData", NULL);
    const char *key = jsonx_str(answer, "status.clientKeyData", NULL);
    if ((token == NULL && cert == NULL) || (cert == NULL) != (key == NULL)) {
        return err_set(err, ERR_DENIED,
                       "its ExecCredential has neither a token nor a certificate with its key");
    }
    if (token != NULL && strpbrk(token, "\r\n") != NULL) {
        return err_set(err, ERR_DENIED, "its token has a line break in it");
    }
    const char *expires = jsonx_str(answer, "status.expirationTimestamp", NULL);
    int64_t expires_ns = 0;
    if (expires != NULL && !rfc3339_parse(expires, &expires_ns)) {
        return err_set(err, ERR_DENIED, "its expirationTimestamp is no RFC 3339 time");
    }
    *ret = (struct kube_exec_result){.token = kube_dup(token),
                                     .cert_data = kube_dup(cert),
                                     .key_data = kube_dup(key),
                                     .expires = expires != NULL,
                                     .expires_ns = expires_ns};
    return ERR_NONE;
}

static enum err_kind judge(const struct kube_exec *e, const struct proc_result *r,
                           struct kube_exec_result *ret, struct err *err)
{
    if (r->timed_out) {
        return err_set(err, ERR_UNAVAILABLE, "it did not end in time");
    }
    if (r->exit_code != 0) {
        _cleanup_(free_cstr)
        char *said = text_clean(buf_str(&r->err), r->err.len, EXEC_STDERR_SHOWN);
        for (char *p = said; *p != '\0'; p++) {
            *p = *p == '\n' ? ' ' : *p;
        }
        return r->signal > 0 ? err_set(err, ERR_DENIED, "signal %d ended it: %s", r->signal, said)
                             : err_set(err, ERR_DENIED, "exit status %d: %s", r->exit_code, said);
    }
    return parse_answer(e, &r->out, ret, err);
}

enum err_kind kube_exec_run(const struct kube_exec *exec, const struct kube_config *c,
                            struct mono deadline, struct kube_exec_result *ret, struct err *err)
{
    must(c->proc != NULL);
    struct proc_result r = PROC_RESULT_INIT;
    enum err_kind kind = run(exec, c, deadline, &r, err);
    if (kind == ERR_NONE) {
        kind = judge(exec, &r, ret, err);
        if (r.out.data != NULL) {
            explicit_bzero(r.out.data, r.out.len);
        }
        proc_result_release(&r);
    }
    if (kind != ERR_NONE) {
        (void)err_wrap(err, "exec credential plugin %s", exec->argv[0]);
        if (exec->install_hint != NULL && err->kind == ERR_INVALID) {
            err_hint(err, "%s", exec->install_hint);
        }
    }
    return kind;
}
