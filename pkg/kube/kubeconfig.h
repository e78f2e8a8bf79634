/* How the API server and the credentials are found, as client-go does it:
 * --kubeconfig PATH, else $KUBECONFIG (a colon list: first file that exists; full merging is not
 * done and said in the docs), else in-cluster (KUBERNETES_SERVICE_HOST/PORT, IPv6 hosts get
 * brackets, /var/run/secrets/kubernetes.io/serviceaccount/ {token,ca.crt,namespace}), else
 * ~/.kube/config. Users: token, tokenFile (re-read at least each minute and on 401, case 15),
 * client-certificate(-data)/client-key(-data), username/password, exec plugins
 * (client.authentication.k8s.io v1 and v1beta1, cached until expirationTimestamp, run through
 * effect/proc.h with a 30 s deadline). Clusters: certificate-authority(-data),
 * insecure-skip-tls-verify, tls-server-name, proxy-url. Anything else that would change who we are
 * (impersonation: "as", auth-provider) is ERR_INVALID naming the field. Credentials are sent over
 * https only, as client-go does. Errors are one line: file, field, what is legal. The API host is
 * never sent through a proxy found in the environment unless proxy-url says so (case 17). */
#ifndef BELAY_KUBE_KUBECONFIG_H
#define BELAY_KUBE_KUBECONFIG_H

#include "kube/kube.h"

struct kube_config_options {
    const char *path;    /* --kubeconfig; NULL or "" = search as above */
    const char *context; /* --context; NULL or "" = current-context */
    struct proc *proc;   /* for exec plugins */
    struct clock *clock;
    const char *service_account_dir; /* NULL = the real one; for tests */
};

enum err_kind kube_config_load(const struct kube_config_options *options, struct kube_config **ret,
                               struct err *err) MUST_CHECK;
void kube_config_free(struct kube_config *c);

/* For logs: "in-cluster" or the file's path. */
const char *kube_config_origin(const struct kube_config *c);
/* The namespace of the context or of the service account; "default" if none. */
const char *kube_config_namespace(const struct kube_config *c);

/* What a transport to this server has to be told. All borrowed from the config, NULL if not given;
 * data is PEM. */
struct kube_tls {
    const char *ca_file;
    const char *ca_data;
    const char *cert_file;
    const char *key_file;
    const char *cert_data;
    const char *key_data;
    const char *server_name;
    const char *proxy_url;
    bool insecure;
};
void kube_config_tls(const struct kube_config *c, struct kube_tls *ret);
/* Exec plugins may hand out client certificates: fn is told of each new one (PEM), on the thread
 * whose call needed it, before that call is sent. Once, before threads. */
void kube_config_on_client_cert(struct kube_config *c,
                                void (*fn)(void *ctx, const char *cert_pem, const char *key_pem),
                                void *ctx);

/* Write a kubeconfig for a child (helm) to path, mode 0600, atomically: same server, CA, TLS name
 * and credentials; a rotating token goes as tokenFile when it is a file, so that a long child sees
 * the new one (case 15). Credentials from an exec plugin are written as they are now. */
enum err_kind kube_config_write_for_child(struct kube_config *c, const char *path,
                                          struct err *err) MUST_CHECK;
/* The same for a child behind belay's gate: server is the gate's, "http://127.0.0.1:PORT", and the
 * one credential is token, sent as Impersonate-User. */
enum err_kind kube_config_write_for_gate(const char *server, const char *token, const char *path,
                                         struct err *err) MUST_CHECK;

#endif
