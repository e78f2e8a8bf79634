/* The inside of struct kube_config, for this package's files only. */
#ifndef BELAY_KUBE_KUBE_CONFIG_H
#define BELAY_KUBE_KUBE_CONFIG_H

#include <stdint.h>

#include "base/mem.h"
#include "base/mtx.h"
#include "kube/kubeconfig.h"

/* An exec plugin (client.authentication.k8s.io). */
struct kube_exec {
    char *api_version;
    char **argv; /* NULL-terminated; argv[0] is absolute */
    char **envp; /* NULL-terminated "NAME=value": ours, then the config's; KUBERNETES_EXEC_INFO is
                    added when it runs */
    bool provide_cluster_info;
    char *install_hint; /* may be NULL */
};

/* What the plugin answered. */
struct kube_exec_result {
    char *token; /* NULL if it gave certificates only */
    char *cert_data, *key_data;
    bool expires;
    int64_t expires_ns; /* by the wall clock: the plugin's own word */
};

struct kube_config {
    char *origin; /* "in-cluster" or a path */
    char *ns;
    char *server; /* no slash at the end */
    struct proc *proc;
    struct clock *clock;

    char *ca_file, *ca_data, *cert_file, *key_file, *cert_data, *key_data;
    char *tls_server_name, *proxy_url;
    bool insecure;

    /* Who we are: at most one of these four. */
    char *token;
    char *token_file;
    char *username, *password;
    struct kube_exec *exec;

    void (*on_client_cert)(void *ctx, const char *cert_pem, const char *key_pem);
    void *on_client_cert_ctx;

    struct mtx lock;
    struct cond changed;
    bool refreshing; /* guarded by lock: one thread reads the file or runs the plugin, the others
                        wait */
    uint64_t generation;        /* guarded by lock: +1 each time credentials were read, 0 = never */
    bool rejected;              /* guarded by lock: the newest generation got a 401 */
    char *current_token;        /* guarded by lock; NULL if there is none */
    struct mono read_at;        /* guarded by lock */
    bool expires;               /* guarded by lock */
    int64_t expires_ns;         /* guarded by lock */
    char *exec_cert, *exec_key; /* guarded by lock; the plugin's newest */
};

/* The Authorization header's value, "" if none is to be sent. Read afresh if it is due. Blocks on a
 * file or on a plugin, until the deadline at most. Owner of *ret: the caller. */
enum err_kind kube_config_authorization(struct kube_config *c, struct mono deadline, char **ret,
                                        uint64_t *ret_generation, struct err *err) MUST_CHECK;
/* The credentials of that generation got a 401: read afresh before the next use, unless somebody
 * has done so since. */
void kube_config_reject(struct kube_config *c, uint64_t generation);
/* Could reading afresh change anything? */
bool kube_config_rotates(const struct kube_config *c);
/* The current token or NULL, for the child's kubeconfig. Owner: the caller. */
enum err_kind kube_config_token(struct kube_config *c, char **ret, struct err *err) MUST_CHECK;

/* kubeconfig.c hands over here when there is no file to use. */
enum err_kind kube_incluster_load(const char *service_account_dir, struct kube_config *c,
                                  struct err *err) MUST_CHECK;
bool kube_incluster_is_set(void);

/* Build from user.exec. where: "file: users[NAME].user.exec" for errors; dir: what a relative
 * command is relative to. */
enum err_kind kube_exec_parse(const json_t *spec, const char *where, const char *dir,
                              struct kube_exec **ret, struct err *err) MUST_CHECK;
/* Run it once; blocks until it ended or the deadline. */
enum err_kind kube_exec_run(const struct kube_exec *exec, const struct kube_config *c,
                            struct mono deadline, struct kube_exec_result *ret,
                            struct err *err) MUST_CHECK;
void kube_exec_result_release(struct kube_exec_result *r);
void kube_exec_free(struct kube_exec *exec);

/* ---- small helpers (kube_files.c) ---- */

/* A whole file of at most LIMIT_CREDENTIAL_BYTES, as a string; ERR_UNAVAILABLE, ERR_LIMIT,
 * ERR_INVALID (a NUL in it). */
enum err_kind kube_file_read(const char *path, char **ret, struct err *err) MUST_CHECK;
/* dir/path, or path if it is absolute; made absolute with the working directory. */
char *kube_path_join(const char *dir, const char *path);
/* Standard base64, blanks allowed; NULL if it is none or holds a NUL. Owner: the caller. */
char *kube_base64_decode(const char *text);
char *kube_base64_encode(const char *bytes);
/* Overwrite and free; NULL is allowed. */
void kube_wipe(char *secret);
static inline void kube_wipe_ptr(char **secret)
{
    kube_wipe(*secret);
    *secret = NULL;
}
static inline char *kube_dup(const char *s)
{
    return s != NULL ? xstrdup(s) : NULL;
}

#endif
