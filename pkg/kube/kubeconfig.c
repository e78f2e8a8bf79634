/* Finding and reading a kubeconfig. What is not understood and could change who we are is refused;
 * what is not understood and could not (extensions, preferences) is ignored, as client-go ignores
 * it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "kube/kube_config.h"
#include "yamlx/yamlx.h"

/* A place in the file, for error texts. */
struct place {
    const char *file;
    const char *what; /* "clusters[prod].cluster" */
};

static enum err_kind bad(const struct place *at, const char *field, const char *legal,
                         struct err *err)
{
    return err_set(err, ERR_INVALID, "%s: %s.%s %s", at->file, at->what, field, legal);
}

static bool is_set(const json_t *object, const char *field)
{
    const json_t *v = json_object_get(object, field);
    return v != NULL && !json_is_null(v) && !(json_is_string(v) && json_string_length(v) == 0);
}

/* A string field into *ret, NULL if it is absent or empty. */
static enum err_kind take_str(const json_t *object, const char *field, const struct place *at,
                              char **ret, struct err *err)
{
    const json_t *v = json_object_get(object, field);
    if (v != NULL && !json_is_null(v) && !json_is_string(v)) {
        return bad(at, field, "must be a string (quote it)", err);
    }
    *ret = is_set(object, field) ? xstrdup(json_string_value(v)) : NULL;
    return ERR_NONE;
}

/* field-data (base64 of PEM) into *ret_data, else field (a path) into *ret_path, as client-go
 * prefers. */
static enum err_kind take_pem(const json_t *object, const char *field, const struct place *at,
                              const char *dir, char **ret_path, char **ret_data, struct err *err)
{
    _cleanup_(free_cstr)
    char *data_field = xasprintf("%s-data", field);
    _cleanup_(kube_wipe_ptr)
    char *data = NULL;
    _cleanup_(free_cstr)
    char *path = NULL;
    enum err_kind kind;
    if ((kind = take_str(object, data_field, at, &data, err)) != ERR_NONE ||
        (kind = take_str(object, field, at, &path, err)) != ERR_NONE) {
        return kind;
    }
    if (data != NULL) {
        char *pem = kube_base64_decode(data);
        if (pem == NULL || strstr(pem, "-----BEGIN ") == NULL) {
            kube_wipe(pem);
            return bad(at, data_field, "must be base64 of a PEM text", err);
        }
        *ret_data = pem;
    } else if (path != NULL) {
        *ret_path = kube_path_join(dir, path);
    }
    return ERR_NONE;
}

/* The object of the entry named name in list `list` of root: root.clusters[].{name, cluster}. */
static enum err_kind find_entry(const json_t *root, const char *file, const char *list,
                                const char *member, const char *name, const json_t **ret,
                                struct err *err)
{
    const json_t *entries = json_object_get(root, list);
    size_t i;
    json_t *entry;
    json_array_foreach(entries, i, entry)
    {
        const json_t *inner = json_object_get(entry, member);
        if (text_eq(json_string_value(json_object_get(entry, "name")), name) &&
            json_is_object(inner)) {
            *ret = inner;
            return ERR_NONE;
        }
    }
    return err_set(err, ERR_INVALID, "%s: %s has no entry named \"%s\" with a \"%s\" in it", file,
                   list, name, member);
}

static enum err_kind check_server(const char *server, const struct place *at, struct err *err)
{
    bool http = server != NULL &&
                (text_has_prefix(server, "http://") || text_has_prefix(server, "https://"));
    const char *host = http ? strstr(server, "://") + 3 : "";
    /* Userinfo would be shown wherever the server is named. */
    bool plain = strpbrk(host, "@?#\\ \t\r\n") == NULL && host[0] != '\0' && host[0] != '/';
    return http && plain ? ERR_NONE
                         : bad(at, "server", "must be https://HOST[:PORT][/PATH] (or http)", err);
}

static enum err_kind check_proxy(const char *proxy, const struct place *at, struct err *err)
{
    if (proxy == NULL || text_has_prefix(proxy, "http://") || text_has_prefix(proxy, "https://") ||
        text_has_prefix(proxy, "socks5://")) {
        return ERR_NONE;
    }
    return bad(at, "proxy-url", "must begin with http://, https:// or socks5://", err);
}

static enum err_kind load_cluster(const json_t *cluster, const struct place *at, const char *dir,
                                  struct kube_config *c, struct err *err)
{
    enum err_kind kind;
    if ((kind = take_str(cluster, "server", at, &c->server, err)) != ERR_NONE ||
        (kind = check_server(c->server, at, err)) != ERR_NONE ||
        (kind = take_pem(cluster, "certificate-authority", at, dir, &c->ca_file, &c->ca_data,
                         err)) != ERR_NONE ||
        (kind = take_str(cluster, "tls-server-name", at, &c->tls_server_name, err)) != ERR_NONE ||
        (kind = take_str(cluster, "proxy-url", at, &c->proxy_url, err)) != ERR_NONE ||
        (kind = check_proxy(c->proxy_url, at, err)) != ERR_NONE) {
        return kind;
    }
    const json_t *insecure = json_object_get(cluster, "insecure-skip-tls-verify");
    if (insecure != NULL && !json_is_boolean(insecure) && !json_is_null(insecure)) {
        return bad(at, "insecure-skip-tls-verify", "must be true or false", err);
    }
    c->insecure = json_is_true(insecure);
    if (c->insecure && (c->ca_file != NULL || c->ca_data != NULL)) {
        return bad(at, "insecure-skip-tls-verify",
                   "must be false where a certificate-authority is given", err);
    }
    size_t len = strlen(c->server);
    while (c->server[len - 1] == '/') {
        c->server[--len] = '\0';
    }
    return ERR_NONE;
}

static enum err_kind refuse_foreign_identity(const json_t *user, const struct place *at,
                                             struct err *err)
{
    static const char *const refused[] = {"as", "as-uid", "as-groups", "as-user-extra",
                                          "auth-provider"};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (is_set(user, refused[i])) {
            return bad(at, refused[i],
                       "is not supported: use token, tokenFile, a client certificate, "
                       "username/password or exec",
                       err);
        }
    }
    return ERR_NONE;
}

static enum err_kind check_user(const struct place *at, const struct kube_config *c,
                                struct err *err)
{
    if ((c->cert_file != NULL || c->cert_data != NULL) !=
        (c->key_file != NULL || c->key_data != NULL)) {
        return bad(at, "client-certificate", "and client-key must be given together", err);
    }
    if ((c->cert_file != NULL) != (c->key_file != NULL)) {
        return bad(at, "client-certificate", "and client-key must both be paths or both be data",
                   err);
    }
    if (c->username != NULL && (c->token != NULL || c->token_file != NULL)) {
        return bad(at, "username", "and a token must not both be given", err);
    }
    if (c->username != NULL && strchr(c->username, ':') != NULL) {
        return bad(at, "username", "must not have a colon in it", err);
    }
    return ERR_NONE;
}

static enum err_kind load_user(const json_t *user, const struct place *at, const char *dir,
                               struct kube_config *c, struct err *err)
{
    _cleanup_(free_cstr)
    char *token_file = NULL;
    enum err_kind kind;
    if ((kind = refuse_foreign_identity(user, at, err)) != ERR_NONE ||
        (kind = take_str(user, "token", at, &c->token, err)) != ERR_NONE ||
        (kind = take_str(user, "tokenFile", at, &token_file, err)) != ERR_NONE ||
        (kind = take_str(user, "username", at, &c->username, err)) != ERR_NONE ||
        (kind = take_str(user, "password", at, &c->password, err)) != ERR_NONE ||
        (kind = take_pem(user, "client-certificate", at, dir, &c->cert_file, &c->cert_data, err)) !=
            ERR_NONE ||
        (kind = take_pem(user, "client-key", at, dir, &c->key_file, &c->key_data, err)) !=
            ERR_NONE) {
        return kind;
    }
    if (token_file != NULL) {
        /* The file is the one that rotates, so it wins, as in client-go. */
        c->token_file = kube_path_join(dir, token_file);
        kube_wipe(take_ptr(&c->token));
    }
    if ((kind = check_user(at, c, err)) != ERR_NONE) {
        return kind;
    }
    const json_t *exec = json_object_get(user, "exec");
    if (exec == NULL || json_is_null(exec) || c->token != NULL || c->token_file != NULL ||
        c->username != NULL) {
        return ERR_NONE;
    }
    _cleanup_(free_cstr)
    char *where = xasprintf("%s: %s.exec", at->file, at->what);
    return kube_exec_parse(exec, where, dir, &c->exec, err);
}

/* root is the parsed file. */
static enum err_kind load_context(const json_t *root, const char *file, const char *dir,
                                  const char *wanted, struct kube_config *c, struct err *err)
{
    const char *name =
        wanted != NULL && wanted[0] != '\0' ? wanted : jsonx_str(root, "current-context", "");
    if (name[0] == '\0') {
        return err_set(err, ERR_INVALID,
                       "%s: current-context is not set: set it, or name one by --context", file);
    }
    const json_t *context = NULL, *cluster = NULL, *user = NULL;
    enum err_kind kind;
    if ((kind = find_entry(root, file, "contexts", "context", name, &context, err)) != ERR_NONE) {
        return kind;
    }
    _cleanup_(free_cstr)
    char *context_what = xasprintf("contexts[%s].context", name);
    struct place at = {file, context_what};
    _cleanup_(free_cstr)
    char *cluster_name = NULL;
    _cleanup_(free_cstr)
    char *user_name = NULL;
    if ((kind = take_str(context, "cluster", &at, &cluster_name, err)) != ERR_NONE ||
        (kind = take_str(context, "user", &at, &user_name, err)) != ERR_NONE ||
        (kind = take_str(context, "namespace", &at, &c->ns, err)) != ERR_NONE) {
        return kind;
    }
    if (cluster_name == NULL) {
        return bad(&at, "cluster", "must name an entry of clusters", err);
    }
    if ((kind = find_entry(root, file, "clusters", "cluster", cluster_name, &cluster, err)) !=
        ERR_NONE) {
        return kind;
    }
    _cleanup_(free_cstr)
    char *cluster_what = xasprintf("clusters[%s].cluster", cluster_name);
    if ((kind = load_cluster(cluster, &(struct place){file, cluster_what}, dir, c, err)) !=
        ERR_NONE) {
        return kind;
    }
    if (user_name == NULL) {
        return ERR_NONE; /* nobody: an http:// server behind `kubectl proxy` */
    }
    if ((kind = find_entry(root, file, "users", "user", user_name, &user, err)) != ERR_NONE) {
        return kind;
    }
    _cleanup_(free_cstr)
    char *user_what = xasprintf("users[%s].user", user_name);
    return load_user(user, &(struct place){file, user_what}, dir, c, err);
}

static enum err_kind load_file(const char *path, const char *context, struct kube_config *c,
                               struct err *err)
{
    _cleanup_(kube_wipe_ptr)
    char *text = NULL;
    _cleanup_json_ json_t *root = NULL;
    if (kube_file_read(path, &text, err)) {
        return err_wrap(err, "kubeconfig");
    }
    if (yamlx_parse(text, strlen(text), &root, err)) {
        return err_wrap(err, "kubeconfig %s", path);
    }
    if (!json_is_object(root)) {
        return err_set(err, ERR_INVALID,
                       "kubeconfig %s: it must be a YAML mapping with clusters, users and contexts",
                       path);
    }
    c->origin = xstrdup(path);
    const char *slash = strrchr(path, '/');
    _cleanup_(free_cstr)
    char *dir = slash == NULL   ? xstrdup(".")
                : slash == path ? xstrdup("/")
                                : xstrndup(path, (size_t)(slash - path));
    enum err_kind kind = load_context(root, path, dir, context, c, err);
    return kind == ERR_NONE ? ERR_NONE : err_wrap(err, "kubeconfig");
}

/* The first file of $KUBECONFIG's list that exists. NULL if the variable is not set; "" if none
 * exists. */
static char *file_of_environment(void)
{
    const char *list = getenv("KUBECONFIG");
    if (list == NULL || list[0] == '\0') {
        return NULL;
    }
    for (const char *at = list; *at != '\0';) {
        size_t len = strcspn(at, ":");
        _cleanup_(free_cstr)
        char *path = xstrndup(at, len);
        if (len > 0 && access(path, F_OK) == 0) {
            return take_ptr(&path);
        }
        at += len + (at[len] == ':' ? 1 : 0);
    }
    return xstrdup("");
}

static enum err_kind find_and_load(const struct kube_config_options *o, struct kube_config *c,
                                   struct err *err)
{
    if (o->path != NULL && o->path[0] != '\0') {
        return load_file(o->path, o->context, c, err);
    }
    _cleanup_(free_cstr)
    char *from_env = file_of_environment();
    if (from_env != NULL && from_env[0] == '\0') {
        /* Going on to another identity than the one that was named would be a surprise. */
        return err_set(err, ERR_INVALID, "KUBECONFIG names no file that exists");
    }
    if (from_env != NULL) {
        return load_file(from_env, o->context, c, err);
    }
    if (kube_incluster_is_set()) {
        return kube_incluster_load(o->service_account_dir, c, err);
    }
    const char *home = getenv("HOME");
    if (home == NULL || home[0] == '\0') {
        return err_set(err, ERR_INVALID,
                       "no way to the API server: not in a cluster, and KUBECONFIG, HOME and "
                       "--kubeconfig are not set");
    }
    _cleanup_(free_cstr)
    char *path = xasprintf("%s/.kube/config", home);
    return load_file(path, o->context, c, err);
}

enum err_kind kube_config_load(const struct kube_config_options *options, struct kube_config **ret,
                               struct err *err)
{
    must(options->clock != NULL);
    struct kube_config *c = xcalloc(1, sizeof(*c));
    mtx_init(&c->lock, "kube_config");
    cond_init(&c->changed);
    c->clock = options->clock;
    c->proc = options->proc;
    enum err_kind kind = find_and_load(options, c, err);
    if (kind != ERR_NONE) {
        kube_config_free(c);
        return kind;
    }
    if (c->ns == NULL || c->ns[0] == '\0') {
        free(c->ns);
        c->ns = xstrdup("default");
    }
    *ret = c;
    return ERR_NONE;
}

void kube_config_free(struct kube_config *c)
{
    if (c == NULL) {
        return;
    }
    free(c->origin);
    free(c->ns);
    free(c->server);
    free(c->ca_file);
    free(c->ca_data);
    free(c->cert_file);
    free(c->key_file);
    free(c->cert_data);
    kube_wipe(c->key_data);
    free(c->tls_server_name);
    kube_wipe(c->proxy_url);
    kube_wipe(c->token);
    free(c->token_file);
    free(c->username);
    kube_wipe(c->password);
    kube_exec_free(c->exec);
    kube_wipe(c->current_token);
    free(c->exec_cert);
    kube_wipe(c->exec_key);
    cond_release(&c->changed);
    mtx_release(&c->lock);
    free(c);
}

const char *kube_config_origin(const struct kube_config *c)
{
    return c->origin;
}

const char *kube_config_namespace(const struct kube_config *c)
{
    return c->ns;
}

void kube_config_tls(const struct kube_config *c, struct kube_tls *ret)
{
    *ret = (struct kube_tls){.ca_file = c->ca_file,
                             .ca_data = c->ca_data,
                             .cert_file = c->cert_file,
                             .key_file = c->key_file,
                             .cert_data = c->cert_data,
                             .key_data = c->key_data,
                             .server_name = c->tls_server_name,
                             .proxy_url = c->proxy_url,
                             .insecure = c->insecure};
}

void kube_config_on_client_cert(struct kube_config *c,
                                void (*fn)(void *ctx, const char *cert_pem, const char *key_pem),
                                void *ctx)
{
    c->on_client_cert = fn;
    c->on_client_cert_ctx = ctx;
}
