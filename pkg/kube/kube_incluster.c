/* The pod's own way to the API server: two variables and three files that kubelet keeps
 * (client-go's InClusterConfig). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "kube/kube_config.h"

#define SERVICE_ACCOUNT_DIR "/var/run/secrets/kubernetes.io/serviceaccount"

static const char *env_or_empty(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? value : "";
}

bool kube_incluster_is_set(void)
{
    return env_or_empty("KUBERNETES_SERVICE_HOST")[0] != '\0' &&
           env_or_empty("KUBERNETES_SERVICE_PORT")[0] != '\0';
}

enum err_kind kube_incluster_load(const char *service_account_dir, struct kube_config *c,
                                  struct err *err)
{
    const char *dir = service_account_dir != NULL ? service_account_dir : SERVICE_ACCOUNT_DIR;
    const char *host = env_or_empty("KUBERNETES_SERVICE_HOST");
    const char *port = env_or_empty("KUBERNETES_SERVICE_PORT");
    int64_t number;
    if (!text_to_int64(port, 1, 65535, &number) || strpbrk(host, "/?#@ []") != NULL) {
        return err_set(err, ERR_INVALID,
                       "in-cluster: KUBERNETES_SERVICE_HOST must be a name or an address, "
                       "KUBERNETES_SERVICE_PORT "
                       "1 to 65535");
    }
    /* An IPv6 address needs brackets in a URL (case 16). */
    bool v6 = strchr(host, ':') != NULL;
    c->origin = xstrdup("in-cluster");
    c->server =
        xasprintf("https://%s%s%s:%lld", v6 ? "[" : "", host, v6 ? "]" : "", (long long)number);
    c->ca_file = kube_path_join(dir, "ca.crt");
    c->token_file = kube_path_join(dir, "token");
    if (access(c->ca_file, R_OK) != 0) {
        (void)err_set(err, ERR_UNAVAILABLE, "in-cluster: %s cannot be read", c->ca_file);
        err_hint(
            err,
            "mount the ServiceAccount's token (automountServiceAccountToken) or give --kubeconfig");
        return err->kind;
    }
    _cleanup_(free_cstr)
    char *ns_file = kube_path_join(dir, "namespace");
    char *ns = NULL;
    struct err ignored = ERR_INIT;
    if (kube_file_read(ns_file, &ns, &ignored) == ERR_NONE) {
        ns[strcspn(ns, " \r\n")] = '\0';
        c->ns = ns;
    }
    return ERR_NONE;
}
