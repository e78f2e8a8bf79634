/* A kubeconfig for helm. JSON is YAML, so it is written as JSON. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/must.h"
#include "jsonx/jsonx.h"
#include "kube/kube_config.h"

static void put_str(json_t *object, const char *field, const char *value)
{
    if (value != NULL) {
        json_t *s = json_string(value);
        must(s != NULL && json_object_set_new(object, field, s) == 0);
    }
}

static void put_pem(json_t *object, const char *field, const char *path, const char *data)
{
    if (data != NULL) {
        _cleanup_(free_cstr)
        char *data_field = xasprintf("%s-data", field);
        _cleanup_(kube_wipe_ptr)
        char *packed = kube_base64_encode(data);
        put_str(object, data_field, packed);
    } else {
        put_str(object, field, path);
    }
}

static json_t *cluster_of(const struct kube_config *c)
{
    json_t *cluster = json_object();
    must(cluster != NULL);
    put_str(cluster, "server", c->server);
    put_pem(cluster, "certificate-authority", c->ca_file, c->ca_data);
    put_str(cluster, "tls-server-name", c->tls_server_name);
    put_str(cluster, "proxy-url", c->proxy_url);
    if (c->insecure) {
        must(json_object_set_new(cluster, "insecure-skip-tls-verify", json_true()) == 0);
    }
    return cluster;
}

static enum err_kind user_of(struct kube_config *c, json_t *user, struct err *err)
{
    if (c->token_file != NULL) {
        put_str(user, "tokenFile", c->token_file);
    } else {
        _cleanup_(kube_wipe_ptr)
        char *token = NULL;
        enum err_kind kind = kube_config_token(c, &token, err);
        if (kind != ERR_NONE) {
            return kind;
        }
        put_str(user, "token", token);
    }
    put_str(user, "username", c->username);
    put_str(user, "password", c->password);
    MTX_GUARD(&c->lock);
    bool from_exec = c->exec_cert != NULL;
    put_pem(user, "client-certificate", c->cert_file, from_exec ? c->exec_cert : c->cert_data);
    put_pem(user, "client-key", c->key_file, from_exec ? c->exec_key : c->key_data);
    return ERR_NONE;
}

static enum err_kind write_all(int fd, const char *text, const char *path, struct err *err)
{
    for (size_t len = strlen(text); len > 0;) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return err_set(err, ERR_UNAVAILABLE, "write %s: %s", path, strerrordesc_np(errno));
        }
        text += n;
        len -= (size_t)n;
    }
    return ERR_NONE;
}

/* A file of that content is at path, or what was there before; never a part. */
static enum err_kind write_file(const char *path, const char *text, struct err *err)
{
    _cleanup_(free_cstr)
    char *temp = xasprintf("%s.XXXXXX", path);
    int fd = mkostemp(temp, O_CLOEXEC); /* 0600 */
    if (fd < 0) {
        return err_set(err, ERR_UNAVAILABLE, "create %s: %s", temp, strerrordesc_np(errno));
    }
    enum err_kind kind = write_all(fd, text, temp, err);
    if (close(fd) != 0 && kind == ERR_NONE) {
        kind = err_set(err, ERR_UNAVAILABLE, "write %s: %s", temp, strerrordesc_np(errno));
    }
    if (kind == ERR_NONE && rename(temp, path) != 0) {
        kind = err_set(err, ERR_UNAVAILABLE, "rename to %s: %s", path, strerrordesc_np(errno));
    }
    if (kind != ERR_NONE) {
        (void)unlink(temp);
    }
    return kind;
}

enum err_kind kube_config_write_for_child(struct kube_config *c, const char *path, struct err *err)
{
    _cleanup_json_ json_t *user = json_object();
    must(user != NULL);
    enum err_kind kind = user_of(c, user, err);
    if (kind != ERR_NONE) {
        return err_wrap(err, "kubeconfig for helm");
    }
    _cleanup_json_ json_t *root = json_pack(
        "{s:s, s:s, s:s, s:[{s:s, s:o}], s:[{s:s, s:O}], s:[{s:s, s:{s:s, s:s, s:s}}]}",
        "apiVersion", "v1", "kind", "Config", "current-context", "belay", "clusters", "name",
        "belay", "cluster", cluster_of(c), "users", "name", "belay", "user", user, "contexts",
        "name", "belay", "context", "cluster", "belay", "user", "belay", "namespace", c->ns);
    must(root != NULL);
    _cleanup_(kube_wipe_ptr)
    char *text = jsonx_dump(root);
    kind = write_file(path, text, err);
    return kind == ERR_NONE ? ERR_NONE : err_wrap(err, "kubeconfig for helm");
}

enum err_kind kube_config_write_for_gate(const char *server, const char *token, const char *path,
                                         struct err *err)
{
    /* Impersonate-User is sent over plain HTTP; a bearer token is not (client-go drops it). */
    _cleanup_json_ json_t *root = json_pack(
        "{s:s, s:s, s:s, s:[{s:s, s:{s:s}}], s:[{s:s, s:{s:s}}], s:[{s:s, s:{s:s, s:s}}]}",
        "apiVersion", "v1", "kind", "Config", "current-context", "belay", "clusters", "name",
        "belay", "cluster", "server", server, "users", "name", "belay", "user", "as", token,
        "contexts", "name", "belay", "context", "cluster", "belay", "user", "belay");
    must(root != NULL);
    _cleanup_(kube_wipe_ptr)
    char *text = jsonx_dump(root);
    enum err_kind kind = write_file(path, text, err);
    return kind == ERR_NONE ? ERR_NONE : err_wrap(err, "kubeconfig for helm");
}
