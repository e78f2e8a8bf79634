/* kubeconfig files from tables, the search for one, exec plugins through a proc of this file's own,
 * and the child's file. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "effect/clock.h"
#include "jsonx/jsonx.h"
#include "kube/kube_config.h"
#include "kube/kubeconfig.h"

#define WALL_NS (INT64_C(1796126400) * NS_PER_SEC) /* 2026-12-01T12:00:00Z */
/* base64 of "-----BEGIN X-----\n" and of "-----BEGIN Y-----\n" */
#define PEM_X "LS0tLS1CRUdJTiBYLS0tLS0K"
#define PEM_Y "LS0tLS1CRUdJTiBZLS0tLS0K"

/* ---- a clock that stands still ---- */

struct fake_clock {
    struct clock base;
    struct mono now;
    struct wall wall;
};

static struct mono fake_mono(struct clock *c)
{
    return ((struct fake_clock *)c)->now;
}

static struct wall fake_wall(struct clock *c)
{
    return ((struct fake_clock *)c)->wall;
}

static void fake_wait(struct clock *c, struct cond *cond, struct mtx *m, struct mono deadline)
{
    (void)c;
    (void)cond;
    (void)m;
    (void)deadline;
    fail_msg("nothing waits here");
}

static const struct clock_ops CLOCK_OPS = {.mono = fake_mono, .wall = fake_wall, .wait = fake_wait};

/* ---- a proc that answers ---- */

struct fake_proc {
    struct proc base;
    struct proc_result answer; /* out and err are not used */
    const char *out, *err;
    int runs;
    char *argv; /* joined by blanks */
    char *envp; /* joined by line breaks */
    int64_t deadline_ms;
    struct fake_clock *clock;
};

struct child {
    struct fake_proc *p;
};

static char *join(const char *const *v, char sep)
{
    struct buf b = BUF_INIT(1 << 20);
    for (size_t i = 0; v[i] != NULL; i++) {
        buf_add_str(&b, v[i]);
        buf_add_char(&b, sep);
    }
    return buf_take(&b);
}

static enum err_kind fake_start(struct proc *p, const struct proc_spec *spec, struct child **ret,
                                struct err *err)
{
    (void)err;
    struct fake_proc *f = (struct fake_proc *)p;
    f->runs++;
    free(f->argv);
    free(f->envp);
    f->argv = join(spec->argv, ' ');
    f->envp = join(spec->envp, '\n');
    f->deadline_ms = mono_diff_ms(spec->deadline, f->clock->now);
    *ret = xcalloc(1, sizeof(**ret));
    (*ret)->p = f;
    return ERR_NONE;
}

static enum err_kind fake_proc_wait(struct child *c, struct proc_result *ret, struct err *err)
{
    (void)err;
    *ret = c->p->answer;
    ret->out = (struct buf)BUF_INIT(1 << 20);
    ret->err = (struct buf)BUF_INIT(1 << 20);
    buf_add_str(&ret->out, c->p->out != NULL ? c->p->out : "");
    buf_add_str(&ret->err, c->p->err != NULL ? c->p->err : "");
    return ERR_NONE;
}

static void fake_signal(struct child *c, int signo)
{
    (void)c;
    (void)signo;
}

static void fake_free(struct child *c)
{
    free(c);
}

static const struct proc_ops PROC_OPS = {
    .start = fake_start, .signal = fake_signal, .wait = fake_proc_wait, .free = fake_free};

/* ---- the fixture ---- */

struct fixture {
    char dir[40];
    struct fake_clock clock;
    struct fake_proc proc;
};

static int setup(void **state)
{
    struct fixture *f = xcalloc(1, sizeof(*f));
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/kubeconfig_test.XXXXXX");
    must(mkdtemp(f->dir) != NULL);
    f->clock = (struct fake_clock){.base.ops = &CLOCK_OPS, .now = {NS_PER_SEC}, .wall = {WALL_NS}};
    f->proc = (struct fake_proc){.base.ops = &PROC_OPS, .clock = &f->clock};
    must(unsetenv("KUBECONFIG") == 0 && unsetenv("KUBERNETES_SERVICE_HOST") == 0 &&
         unsetenv("KUBERNETES_SERVICE_PORT") == 0 && setenv("HOME", f->dir, 1) == 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    static const char *const files[] = {".kube/config", ".kube",     "config", "second", "token",
                                        "ca.crt",       "namespace", "child",  "plugin"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        _cleanup_(free_cstr)
        char *path = xasprintf("%s/%s", f->dir, files[i]);
        (void)remove(path);
    }
    assert_int_equal(rmdir(f->dir), 0); /* nothing else was left behind */
    free(f->proc.argv);
    free(f->proc.envp);
    free(f);
    return 0;
}

static char *path_of(const struct fixture *f, const char *name)
{
    return xasprintf("%s/%s", f->dir, name);
}

static void put_file(const struct fixture *f, const char *name, const char *text)
{
    _cleanup_(free_cstr)
    char *path = path_of(f, name);
    FILE *file = fopen(path, "we");
    must(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Load f->dir/config. */
static enum err_kind load(struct fixture *f, const char *context, struct kube_config **ret,
                          struct err *err)
{
    _cleanup_(free_cstr)
    char *path = path_of(f, "config");
    struct kube_config_options o = {
        .path = path, .context = context, .proc = &f->proc.base, .clock = &f->clock.base};
    return kube_config_load(&o, ret, err);
}

/* One cluster, one user, one context, from the two inner mappings (flow style). */
static char *config_of(const char *cluster, const char *user)
{
    return xasprintf("{\"current-context\": \"c\", \"contexts\": [{\"name\": \"c\", \"context\": "
                     "{\"cluster\": \"k\", \"user\": "
                     "\"u\"}}],\n \"clusters\": [{\"name\": \"k\", \"cluster\": %s}],\n \"users\": "
                     "[{\"name\": \"u\", \"user\": "
                     "%s}]}\n",
                     cluster, user);
}

static char *header_of(struct kube_config *c)
{
    char *header = NULL;
    uint64_t generation;
    struct err err = ERR_INIT;
    if (kube_config_authorization(c, MONO_NEVER, &header, &generation, &err) != ERR_NONE) {
        return xasprintf("%s: %s", err_kind_name(err.kind), err.msg);
    }
    return header;
}

/* ---- files ---- */

static const char PLAIN[] = "apiVersion: v1\n"
                            "kind: Config\n"
                            "preferences: {}\n"
                            "current-context: prod\n"
                            "contexts:\n"
                            "- name: dev\n"
                            "  context: {cluster: dev, user: dev}\n"
                            "- name: prod\n"
                            "  context:\n"
                            "    cluster: prod\n"
                            "    user: bob\n"
                            "    namespace: apps\n"
                            "clusters:\n"
                            "- name: dev\n"
                            "  cluster:\n"
                            "    server: http://127.0.0.1:8001\n"
                            "- name: prod\n"
                            "  cluster:\n"
                            "    certificate-authority: pki/ca.crt\n"
                            "    server: https://api.test:6443/k8s/clusters/x/\n"
                            "    tls-server-name: kubernetes\n"
                            "    proxy-url: socks5://127.0.0.1:1080\n"
                            "users:\n"
                            "- name: dev\n"
                            "  user: {token: not-sent}\n"
                            "- name: bob\n"
                            "  user:\n"
                            "    client-certificate: /abs/bob.crt\n"
                            "    client-key: bob.key\n"
                            "    token: s3cr3t\n";

static void file_is_read_with_paths_relative_to_it(void **state)
{
    struct fixture *f = *state;
    put_file(f, "config", PLAIN);
    struct kube_config *c = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(load(f, NULL, &c, &err), ERR_NONE);
    struct kube_tls tls;
    kube_config_tls(c, &tls);
    _cleanup_(free_cstr)
    char *ca = path_of(f, "pki/ca.crt");
    _cleanup_(free_cstr)
    char *key = path_of(f, "bob.key");
    _cleanup_(free_cstr)
    char *origin = path_of(f, "config");
    assert_string_equal(c->server, "https://api.test:6443/k8s/clusters/x");
    assert_string_equal(tls.ca_file, ca);
    assert_string_equal(tls.cert_file, "/abs/bob.crt");
    assert_string_equal(tls.key_file, key);
    assert_string_equal(tls.server_name, "kubernetes");
    assert_string_equal(tls.proxy_url, "socks5://127.0.0.1:1080");
    assert_null(tls.ca_data);
    assert_false(tls.insecure);
    assert_string_equal(kube_config_namespace(c), "apps");
    assert_string_equal(kube_config_origin(c), origin);
    _cleanup_(free_cstr)
    char *header = header_of(c);
    assert_string_equal(header, "Bearer s3cr3t");
    kube_config_free(c);
}

static void context_can_be_chosen_and_plain_http_gets_no_credentials(void **state)
{
    struct fixture *f = *state;
    put_file(f, "config", PLAIN);
    struct kube_config *c = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(load(f, "dev", &c, &err), ERR_NONE);
    assert_string_equal(c->server, "http://127.0.0.1:8001");
    assert_string_equal(kube_config_namespace(c), "default");
    _cleanup_(free_cstr)
    char *header = header_of(c);
    assert_string_equal(header, "");
    kube_config_free(c);
    assert_int_equal(load(f, "missing", &c, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "\"missing\""));
}

static void every_kind_of_user_is_understood(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *name, *user, *header;
    } rows[] = {
        {"nobody", "{}", ""},
        {"token", "{\"token\": \"t\"}", "Bearer t"},
        {"basic", "{\"username\": \"u\", \"password\": \"p:w\"}", "Basic dTpwOnc="},
        {"basic without a password", "{\"username\": \"u\"}", "Basic dTo="},
        {"token file wins over a token", "{\"token\": \"t\", \"tokenFile\": \"token\"}",
         "Bearer from-file"},
        {"token wins over exec", "{\"token\": \"t\", \"exec\": {\"command\": \"x\"}}", "Bearer t"},
        {"certificate data",
         "{\"client-certificate-data\": \"" PEM_X "\", \"client-key-data\": \"" PEM_Y "\"}", ""},
        {"null fields are no fields", "{\"as\": null, \"auth-provider\": null, \"token\": \"t\"}",
         "Bearer t"},
    };
    put_file(f, "token", "from-file\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_(free_cstr)
        char *text = config_of("{\"server\": \"https://h\"}", rows[i].user);
        put_file(f, "config", text);
        struct kube_config *c = NULL;
        struct err err = ERR_INIT;
        if (load(f, NULL, &c, &err) != ERR_NONE) {
            fail_msg("%s: %s", rows[i].name, err.msg);
        }
        _cleanup_(free_cstr)
        char *header = header_of(c);
        if (strcmp(header, rows[i].header) != 0) {
            fail_msg("%s: %s", rows[i].name, header);
        }
        kube_config_free(c);
    }
}

static void data_wins_over_paths_and_is_decoded(void **state)
{
    struct fixture *f = *state;
    _cleanup_(free_cstr)
    char *text = config_of("{\"server\": \"https://h\", \"certificate-authority\": \"/x\", "
                           "\"certificate-authority-data\": \"" PEM_X "\\n\"}",
                           "{\"client-certificate-data\": \"" PEM_X
                           "\", \"client-key-data\": \"" PEM_Y "\", \"client-key\": \"/y\"}");
    put_file(f, "config", text);
    struct kube_config *c = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(load(f, NULL, &c, &err), ERR_NONE);
    struct kube_tls tls;
    kube_config_tls(c, &tls);
    assert_string_equal(tls.ca_data, "-----BEGIN X-----\n");
    assert_null(tls.ca_file);
    assert_string_equal(tls.cert_data, "-----BEGIN X-----\n");
    assert_string_equal(tls.key_data, "-----BEGIN Y-----\n");
    assert_null(tls.key_file);
    kube_config_free(c);
}

#define OK_CLUSTER "{\"server\": \"https://h\"}"

static const struct {
    const char *name, *cluster, *user, *says;
} WRONG[] = {
    {"no server", "{}", "{}", "clusters[k].cluster.server must be"},
    {"server without scheme", "{\"server\": \"h:6443\"}", "{}",
     "clusters[k].cluster.server must be"},
    {"server with a password", "{\"server\": \"https://u:s3cr3t@h\"}", "{}",
     "clusters[k].cluster.server must be"},
    {"server with a query", "{\"server\": \"https://h?x=s3cr3t\"}", "{}",
     "clusters[k].cluster.server must be"},
    {"server that is no text", "{\"server\": 5}", "{}",
     "clusters[k].cluster.server must be a string"},
    {"proxy", "{\"server\": \"https://h\", \"proxy-url\": \"ftp://u:s3cr3t@p\"}", "{}",
     "proxy-url must begin"},
    {"insecure and CA",
     "{\"server\": \"https://h\", \"insecure-skip-tls-verify\": true, "
     "\"certificate-authority\": \"x\"}",
     "{}", "insecure-skip-tls-verify must be false"},
    {"insecure is a string", "{\"server\": \"https://h\", \"insecure-skip-tls-verify\": \"true\"}",
     "{}", "insecure-skip-tls-verify must be true or false"},
    {"CA is no base64", "{\"server\": \"https://h\", \"certificate-authority-data\": \"%\"}", "{}",
     "certificate-authority-data must be base64"},
    {"CA is no PEM", "{\"server\": \"https://h\", \"certificate-authority-data\": \"aGVsbG8=\"}",
     "{}", "certificate-authority-data must be base64 of a PEM"},
    {"impersonation", OK_CLUSTER, "{\"token\": \"s3cr3t\", \"as\": \"root\"}",
     "users[u].user.as is not supported"},
    {"impersonated groups", OK_CLUSTER, "{\"as-groups\": [\"x\"]}",
     "users[u].user.as-groups is not supported"},
    {"auth-provider", OK_CLUSTER, "{\"auth-provider\": {\"name\": \"gcp\"}}",
     "users[u].user.auth-provider is not supported"},
    {"certificate without key", OK_CLUSTER, "{\"client-certificate\": \"x\"}",
     "client-certificate and client-key"},
    {"key without certificate", OK_CLUSTER, "{\"client-key-data\": \"" PEM_X "\"}",
     "client-certificate and client-key"},
    {"basic and token", OK_CLUSTER, "{\"username\": \"u\", \"token\": \"s3cr3t\"}",
     "username and a token"},
    {"token is a number", OK_CLUSTER, "{\"token\": 12345}", "users[u].user.token must be a string"},
    {"exec version", OK_CLUSTER,
     "{\"exec\": {\"apiVersion\": \"client.authentication.k8s.io/v1alpha1\", \"command\": "
     "\"sh\"}}",
     "users[u].user.exec.apiVersion must be"},
    {"exec without command", OK_CLUSTER,
     "{\"exec\": {\"apiVersion\": \"client.authentication.k8s.io/v1\"}}",
     "users[u].user.exec.command must name"},
    {"exec that is not there", OK_CLUSTER,
     "{\"exec\": {\"apiVersion\": \"client.authentication.k8s.io/v1\", \"command\": "
     "\"no-such-plugin\"}}",
     "users[u].user.exec.command must be a program"},
    {"exec that wants a terminal", OK_CLUSTER,
     "{\"exec\": {\"apiVersion\": \"client.authentication.k8s.io/v1\", \"command\": \"sh\", "
     "\"interactiveMode\": "
     "\"Always\"}}",
     "users[u].user.exec.interactiveMode must be"},
    {"exec args", OK_CLUSTER,
     "{\"exec\": {\"apiVersion\": \"client.authentication.k8s.io/v1\", \"command\": \"sh\", "
     "\"args\": [1]}}",
     "users[u].user.exec.args must be"},
    {"exec env", OK_CLUSTER,
     "{\"exec\": {\"apiVersion\": \"client.authentication.k8s.io/v1\", \"command\": \"sh\", "
     "\"env\": [{\"name\": \"A\"}]}}",
     "users[u].user.exec.env must be"},
};

static void what_is_wrong_is_named(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof(WRONG) / sizeof(WRONG[0]); i++) {
        _cleanup_(free_cstr)
        char *text = config_of(WRONG[i].cluster, WRONG[i].user);
        put_file(f, "config", text);
        struct kube_config *c = NULL;
        struct err err = ERR_INIT;
        if (load(f, NULL, &c, &err) != ERR_INVALID || strstr(err.msg, WRONG[i].says) == NULL ||
            strstr(err.msg, f->dir) == NULL || strstr(err.msg, "s3cr3t") != NULL) {
            fail_msg("%s: %s", WRONG[i].name, err.msg);
        }
        assert_null(c);
    }
}

static void documents_that_are_no_kubeconfig_are_refused(void **state)
{
    struct fixture *f = *state;
    static const char *const rows[] = {
        "",
        "[]",
        "\"text\"",
        "{}",
        "{\"current-context\": \"c\"}",
        "{\"current-context\": 5}",
        "{",
        "{\"current-context\": \"c\", \"contexts\": {\"name\": \"c\"}}",
        "{\"current-context\": \"c\", \"contexts\": [5, {\"name\": \"c\"}]}",
        "{\"current-context\": \"c\", \"contexts\": [{\"name\": \"c\", \"context\": {}}]}"};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        put_file(f, "config", rows[i]);
        struct kube_config *c = NULL;
        struct err err = ERR_INIT;
        if (load(f, NULL, &c, &err) != ERR_INVALID) {
            fail_msg("row %zu was taken", i);
        }
    }
    _cleanup_(free_cstr)
    char *path = path_of(f, "config");
    (void)unlink(path);
    struct kube_config *c = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(load(f, NULL, &c, &err), ERR_UNAVAILABLE);
    assert_non_null(strstr(err.msg, "No such file"));
}

/* ---- the search ---- */

static void search_goes_from_flag_to_variable_to_pod_to_home(void **state)
{
    struct fixture *f = *state;
    static const char *const hosts[] = {"https://flag", "https://variable", "https://home"};
    _cleanup_(free_cstr)
    char *dot_kube = path_of(f, ".kube");
    must(mkdir(dot_kube, 0700) == 0);
    static const char *const names[] = {"config", "second", ".kube/config"};
    for (size_t i = 0; i < 3; i++) {
        _cleanup_(free_cstr)
        char *cluster = xasprintf("{\"server\": \"%s\"}", hosts[i]);
        _cleanup_(free_cstr)
        char *text = config_of(cluster, "{}");
        put_file(f, names[i], text);
    }
    put_file(f, "token", "t");
    put_file(f, "ca.crt", "");
    put_file(f, "namespace", "pod-ns\n");
    _cleanup_(free_cstr)
    char *flag = path_of(f, "config");
    _cleanup_(free_cstr)
    char *list = xasprintf("/no/such/file::%s/second:%s/config", f->dir, f->dir);
    static const struct {
        bool flag, variable, pod;
        const char *server, *ns;
    } rows[] = {
        {true, true, true, "https://flag", "default"},
        {false, true, true, "https://variable", "default"},
        {false, false, true, "https://[fd00::1]:6443", "pod-ns"},
        {false, false, false, "https://home", "default"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        must((rows[i].variable ? setenv("KUBECONFIG", list, 1) : unsetenv("KUBECONFIG")) == 0);
        must((rows[i].pod ? setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1)
                          : unsetenv("KUBERNETES_SERVICE_HOST")) == 0);
        must(setenv("KUBERNETES_SERVICE_PORT", "6443", 1) == 0);
        struct kube_config_options o = {.path = rows[i].flag ? flag : NULL,
                                        .clock = &f->clock.base,
                                        .service_account_dir = f->dir};
        struct kube_config *c = NULL;
        struct err err = ERR_INIT;
        assert_int_equal(kube_config_load(&o, &c, &err), ERR_NONE);
        assert_string_equal(c->server, rows[i].server);
        assert_string_equal(kube_config_namespace(c), rows[i].ns);
        kube_config_free(c);
    }
}

static void search_does_not_slip_into_another_identity(void **state)
{
    struct fixture *f = *state;
    must(setenv("KUBECONFIG", "/no/such/file", 1) == 0);
    must(setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1) == 0 &&
         setenv("KUBERNETES_SERVICE_PORT", "443", 1) == 0);
    put_file(f, "token", "t");
    put_file(f, "ca.crt", "");
    struct kube_config_options o = {.clock = &f->clock.base, .service_account_dir = f->dir};
    struct kube_config *c = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(kube_config_load(&o, &c, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "KUBECONFIG"));
}

static void pod_addresses_become_urls(void **state)
{
    struct fixture *f = *state;
    put_file(f, "ca.crt", "");
    static const struct {
        const char *host, *port, *server; /* NULL: refused */
    } rows[] = {
        {"10.96.0.1", "443", "https://10.96.0.1:443"},
        {"::1", "6443", "https://[::1]:6443"},
        {"api.test", "443", "https://api.test:443"},
        {"api.test/x", "443", NULL},
        {"u@api.test", "443", NULL},
        {"api.test", "0", NULL},
        {"api.test", "https", NULL},
        {"api.test", "65536", NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        must(setenv("KUBERNETES_SERVICE_HOST", rows[i].host, 1) == 0);
        must(setenv("KUBERNETES_SERVICE_PORT", rows[i].port, 1) == 0);
        struct kube_config_options o = {.clock = &f->clock.base, .service_account_dir = f->dir};
        struct kube_config *c = NULL;
        struct err err = ERR_INIT;
        enum err_kind kind = kube_config_load(&o, &c, &err);
        assert_int_equal(kind, rows[i].server != NULL ? ERR_NONE : ERR_INVALID);
        if (kind == ERR_NONE) {
            assert_string_equal(c->server, rows[i].server);
            kube_config_free(c);
        }
    }
}

/* ---- exec plugins ---- */

static struct kube_config *load_with_plugin(struct fixture *f, const char *more)
{
    put_file(f, "plugin", "#!/bin/sh\n");
    _cleanup_(free_cstr)
    char *plugin = path_of(f, "plugin");
    must(chmod(plugin, 0700) == 0);
    _cleanup_(free_cstr)
    char *user = xasprintf("{\"exec\": {\"apiVersion\": \"client.authentication.k8s.io/v1\", "
                           "\"command\": \"./plugin\"%s}}",
                           more);
    _cleanup_(free_cstr)
    char *text = config_of(
        "{\"server\": \"https://h\", \"certificate-authority-data\": \"" PEM_X "\"}", user);
    put_file(f, "config", text);
    struct kube_config *c = NULL;
    struct err err = ERR_INIT;
    if (load(f, NULL, &c, &err) != ERR_NONE) {
        fail_msg("%s", err.msg);
    }
    return c;
}

#define CREDENTIAL(status)                                                                         \
    "{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/"                  \
    "v1\",\"status\":{" status "}}"

static void plugin_is_told_what_it_needs(void **state)
{
    struct fixture *f = *state;
    must(setenv("KUBERNETES_EXEC_INFO", "stale", 1) == 0 && setenv("BELAY_TEST_A", "ours", 1) == 0);
    struct kube_config *c = load_with_plugin(
        f, ", \"args\": [\"get\", \"token\"], \"env\": [{\"name\": \"BELAY_TEST_A\", "
           "\"value\": \"theirs\"}], \"provideClusterInfo\": true");
    f->proc.out = CREDENTIAL("\"token\":\"t\"");
    _cleanup_(free_cstr)
    char *header = header_of(c);
    assert_string_equal(header, "Bearer t");
    _cleanup_(free_cstr)
    char *argv = xasprintf("%s/./plugin get token ", f->dir);
    assert_string_equal(f->proc.argv, argv);
    assert_int_equal(f->proc.deadline_ms, 30000);
    assert_non_null(strstr(f->proc.envp, "BELAY_TEST_A=theirs\n"));
    assert_null(strstr(f->proc.envp, "BELAY_TEST_A=ours\n"));
    assert_null(strstr(f->proc.envp, "KUBERNETES_EXEC_INFO=stale"));
    assert_non_null(strstr(f->proc.envp, "\nHOME="));
    const char *info_text =
        strstr(f->proc.envp, "KUBERNETES_EXEC_INFO=") + strlen("KUBERNETES_EXEC_INFO=");
    _cleanup_json_ json_t *info = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(jsonx_parse(info_text, strcspn(info_text, "\n"), &info, &err), ERR_NONE);
    assert_string_equal(jsonx_str(info, "kind", ""), "ExecCredential");
    assert_string_equal(jsonx_str(info, "apiVersion", ""), "client.authentication.k8s.io/v1");
    assert_false(jsonx_bool(info, "spec.interactive", true));
    assert_string_equal(jsonx_str(info, "spec.cluster.server", ""), "https://h");
    assert_string_equal(jsonx_str(info, "spec.cluster.certificate-authority-data", ""), PEM_X);
    kube_config_free(c);
    must(unsetenv("KUBERNETES_EXEC_INFO") == 0 && unsetenv("BELAY_TEST_A") == 0);
}

static void plugin_runs_again_when_its_answer_expired_or_was_rejected(void **state)
{
    struct fixture *f = *state;
    struct kube_config *c = load_with_plugin(f, "");
    static const struct {
        const char *name;
        int64_t wait_ms;
        bool rejected;
        int runs;
    } rows[] = {
        {"first", 0, false, 1},      {"again", 0, false, 1}, {"before it expires", 59999, false, 1},
        {"it expires", 1, false, 2}, {"a 401", 0, true, 3},  {"after the 401", 0, false, 3},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        f->clock.wall.ns = ns_add_ms(f->clock.wall.ns, rows[i].wait_ms);
        f->proc.out =
            rows[i].runs == 1
                ? CREDENTIAL("\"token\":\"t\",\"expirationTimestamp\":\"2026-12-01T12:01:00Z\"")
                : CREDENTIAL("\"token\":\"t\",\"expirationTimestamp\":\"2026-12-01T13:00:00Z\"");
        if (rows[i].rejected) {
            kube_config_reject(c, (uint64_t)f->proc.runs);
            kube_config_reject(c, 1); /* an old one says nothing */
        }
        _cleanup_(free_cstr)
        char *header = header_of(c);
        if (f->proc.runs != rows[i].runs || strcmp(header, "Bearer t") != 0) {
            fail_msg("%s: %d runs, %s", rows[i].name, f->proc.runs, header);
        }
    }
    kube_config_free(c);
}

static void *authorize(void *config)
{
    return header_of(config);
}

static void plugin_runs_once_for_all_threads_that_need_it(void **state)
{
    struct fixture *f = *state;
    struct kube_config *c = load_with_plugin(f, "");
    c->clock = clock_os(); /* those that come second wait */
    f->proc.out = CREDENTIAL("\"token\":\"t\"");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        must(pthread_create(&threads[i], NULL, authorize, c) == 0);
    }
    for (int i = 0; i < 4; i++) {
        void *header;
        must(pthread_join(threads[i], &header) == 0);
        assert_string_equal(header, "Bearer t");
        free(header);
    }
    assert_int_equal(f->proc.runs, 1);
    kube_config_free(c);
}

struct cert_seen {
    char cert[64], key[64];
    int calls;
};

static void see_cert(void *ctx, const char *cert, const char *key)
{
    struct cert_seen *s = ctx;
    (void)snprintf(s->cert, sizeof(s->cert), "%s", cert);
    (void)snprintf(s->key, sizeof(s->key), "%s", key);
    s->calls++;
}

static void plugin_certificates_are_handed_on(void **state)
{
    struct fixture *f = *state;
    struct kube_config *c = load_with_plugin(f, "");
    struct cert_seen seen = {.calls = 0};
    kube_config_on_client_cert(c, see_cert, &seen);
    f->proc.out = CREDENTIAL("\"clientCertificateData\":\"cert\",\"clientKeyData\":\"key\"");
    for (int i = 0; i < 2; i++) {
        _cleanup_(free_cstr)
        char *header = header_of(c);
        assert_string_equal(header, "");
    }
    assert_int_equal(seen.calls, 1);
    assert_string_equal(seen.cert, "cert");
    assert_string_equal(seen.key, "key");
    kube_config_free(c);
}

static void plugin_that_fails_says_so_without_secrets(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *name;
        int exit_code, signal;
        bool timed_out;
        const char *out, *err, *says;
    } rows[] = {
        {"exit status", 1, 0, false, "s3cr3t", "not logged in\n", "exit status 1: not logged in"},
        {"signal", -1, 9, false, "s3cr3t", "", "signal 9"},
        {"deadline", -1, 9, true, "s3cr3t", "", "did not end in time"},
        {"no JSON", 0, 0, false, "s3cr3t", "", "no ExecCredential"},
        {"other kind", 0, 0, false, "{\"kind\":\"s3cr3t\"}", "", "no ExecCredential"},
        {"other version", 0, 0, false,
         "{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/"
         "v1beta1\",\"status\":{\"token\":\"s3cr3t\"}}",
         "", "no ExecCredential"},
        {"nothing in it", 0, 0, false, CREDENTIAL(""), "", "neither a token nor a certificate"},
        {"certificate without key", 0, 0, false,
         CREDENTIAL("\"token\":\"s3cr3t\",\"clientCertificateData\":\"x\""), "",
         "neither a token nor a certificate"},
        {"line break", 0, 0, false, CREDENTIAL("\"token\":\"s3cr3t\\r\\nX: y\""), "", "line break"},
        {"bad expiry", 0, 0, false,
         CREDENTIAL("\"token\":\"s3cr3t\",\"expirationTimestamp\":\"soon\""), "", "RFC 3339"},
    };
    struct kube_config *c = load_with_plugin(f, "");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        f->proc.answer = (struct proc_result){.exit_code = rows[i].exit_code,
                                              .signal = rows[i].signal,
                                              .timed_out = rows[i].timed_out};
        f->proc.out = rows[i].out;
        f->proc.err = rows[i].err;
        _cleanup_(free_cstr)
        char *header = header_of(c);
        if (strstr(header, rows[i].says) == NULL || strstr(header, "s3cr3t") != NULL ||
            strstr(header, "/plugin") == NULL) {
            fail_msg("%s: %s", rows[i].name, header);
        }
    }
    assert_int_equal(f->proc.runs, sizeof(rows) / sizeof(rows[0]));
    kube_config_free(c);
}

/* ---- for the child ---- */

static json_t *child_file(struct fixture *f, struct kube_config *c)
{
    _cleanup_(free_cstr)
    char *path = path_of(f, "child");
    struct err err = ERR_INIT;
    for (int i = 0; i < 2; i++) { /* over an old one, too */
        if (kube_config_write_for_child(c, path, &err) != ERR_NONE) {
            fail_msg("%s", err.msg);
        }
    }
    struct stat st;
    must(stat(path, &st) == 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    _cleanup_(free_cstr)
    char *text = NULL;
    json_t *root = NULL;
    must(kube_file_read(path, &text, &err) == ERR_NONE);
    must(jsonx_parse(text, strlen(text), &root, &err) == ERR_NONE);
    return root;
}

static const json_t *first(const json_t *root, const char *list, const char *member)
{
    return json_object_get(json_array_get(json_object_get(root, list), 0), member);
}

static void child_gets_the_same_server_and_credentials(void **state)
{
    struct fixture *f = *state;
    put_file(f, "config", PLAIN);
    struct kube_config *c = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(load(f, NULL, &c, &err), ERR_NONE);
    _cleanup_json_ json_t *root = child_file(f, c);
    const json_t *cluster = first(root, "clusters", "cluster");
    const json_t *user = first(root, "users", "user");
    _cleanup_(free_cstr)
    char *ca = path_of(f, "pki/ca.crt");
    _cleanup_(free_cstr)
    char *key = path_of(f, "bob.key");
    assert_string_equal(jsonx_str(cluster, "server", ""), "https://api.test:6443/k8s/clusters/x");
    assert_string_equal(jsonx_str(cluster, "certificate-authority", ""), ca);
    assert_string_equal(jsonx_str(cluster, "tls-server-name", ""), "kubernetes");
    assert_string_equal(jsonx_str(cluster, "proxy-url", ""), "socks5://127.0.0.1:1080");
    assert_string_equal(jsonx_str(user, "token", ""), "s3cr3t");
    assert_string_equal(jsonx_str(user, "client-certificate", ""), "/abs/bob.crt");
    assert_string_equal(jsonx_str(user, "client-key", ""), key);
    assert_string_equal(jsonx_str(first(root, "contexts", "context"), "namespace", ""), "apps");
    kube_config_free(c);
    /* What we wrote, we read. */
    _cleanup_(free_cstr)
    char *path = path_of(f, "child");
    struct kube_config_options o = {.path = path, .clock = &f->clock.base};
    assert_int_equal(kube_config_load(&o, &c, &err), ERR_NONE);
    _cleanup_(free_cstr)
    char *header = header_of(c);
    assert_string_equal(header, "Bearer s3cr3t");
    kube_config_free(c);
}

static void child_gets_a_rotating_token_as_a_file(void **state)
{
    struct fixture *f = *state;
    put_file(f, "token", "s3cr3t");
    put_file(f, "ca.crt", "");
    must(setenv("KUBERNETES_SERVICE_HOST", "::1", 1) == 0 &&
         setenv("KUBERNETES_SERVICE_PORT", "443", 1) == 0);
    struct kube_config_options o = {.clock = &f->clock.base, .service_account_dir = f->dir};
    struct kube_config *c = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(kube_config_load(&o, &c, &err), ERR_NONE);
    _cleanup_json_ json_t *root = child_file(f, c);
    _cleanup_(free_cstr)
    char *token = path_of(f, "token");
    const json_t *user = first(root, "users", "user");
    assert_string_equal(jsonx_str(user, "tokenFile", ""), token);
    assert_null(json_object_get(user, "token"));
    assert_string_equal(jsonx_str(first(root, "clusters", "cluster"), "server", ""),
                        "https://[::1]:443");
    kube_config_free(c);
}

static void child_gets_what_the_plugin_said(void **state)
{
    struct fixture *f = *state;
    struct kube_config *c = load_with_plugin(f, "");
    f->proc.out = CREDENTIAL("\"token\":\"t\",\"clientCertificateData\":\"-----BEGIN "
                             "X-----\\n\",\"clientKeyData\":\"-----BEGIN Y-----\\n\"");
    _cleanup_json_ json_t *root = child_file(f, c);
    const json_t *user = first(root, "users", "user");
    assert_string_equal(jsonx_str(user, "token", ""), "t");
    assert_string_equal(jsonx_str(user, "client-certificate-data", ""), PEM_X);
    assert_string_equal(jsonx_str(user, "client-key-data", ""), PEM_Y);
    assert_null(json_object_get(user, "exec"));
    kube_config_free(c);
}

#define WITH_DIR(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DIR(file_is_read_with_paths_relative_to_it),
        WITH_DIR(context_can_be_chosen_and_plain_http_gets_no_credentials),
        WITH_DIR(every_kind_of_user_is_understood),
        WITH_DIR(data_wins_over_paths_and_is_decoded),
        WITH_DIR(what_is_wrong_is_named),
        WITH_DIR(documents_that_are_no_kubeconfig_are_refused),
        WITH_DIR(search_goes_from_flag_to_variable_to_pod_to_home),
        WITH_DIR(search_does_not_slip_into_another_identity),
        WITH_DIR(pod_addresses_become_urls),
        WITH_DIR(plugin_is_told_what_it_needs),
        WITH_DIR(plugin_runs_again_when_its_answer_expired_or_was_rejected),
        WITH_DIR(plugin_runs_once_for_all_threads_that_need_it),
        WITH_DIR(plugin_certificates_are_handed_on),
        WITH_DIR(plugin_that_fails_says_so_without_secrets),
        WITH_DIR(child_gets_the_same_server_and_credentials),
        WITH_DIR(child_gets_a_rotating_token_as_a_file),
        WITH_DIR(child_gets_what_the_plugin_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
