/* For tests on a real kube-apiserver: clients made of the product's own parts, a namespace for each
 * test program, and short forms of the requests that tests make. $KUBECONFIG says which server; its
 * user must be cluster admin, and the CRD must be there (test/with-cluster sees to both).
 *
 * Waiting is bounded and polls the server; nothing here sleeps to make a race unlikely. */
#ifndef BELAY_TEST_CONTRACT_FIXTURE_H
#define BELAY_TEST_CONTRACT_FIXTURE_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "effect/clock.h"
#include "effect/proc.h"
#include "hr/hr.h"
#include "jsonx/jsonx.h"
#include "kube/kube.h"
#include "kube/kubeconfig.h"
#include "transport_curl/transport_curl.h"

#define CALL_MS 30000 /* a request that takes this long has failed */
#define WAIT_MS 30000 /* so has a fact that does not come true in this time */
#define POLL_MS 10

/* ---- a client ---- */

struct client {
    struct kube_config *config;
    struct transport *transport;
    struct kube *kube;
};

/* path: a kubeconfig; NULL = $KUBECONFIG. */
static inline void client_open_at(struct client *c, const char *path)
{
    (void)signal(SIGPIPE, SIG_IGN);
    struct err err = ERR_INIT;
    if (kube_config_load(
            &(struct kube_config_options){.path = path, .proc = proc_posix(), .clock = clock_os()},
            &c->config, &err)) {
        fail_msg("KUBECONFIG: %s", err.msg);
    }
    struct kube_tls tls = {0};
    kube_config_tls(c->config, &tls);
    c->transport =
        transport_curl_new(&(struct transport_curl_options){.user_agent = "belay/contract",
                                                            .ca_file = tls.ca_file,
                                                            .ca_data = tls.ca_data,
                                                            .cert_file = tls.cert_file,
                                                            .key_file = tls.key_file,
                                                            .cert_data = tls.cert_data,
                                                            .key_data = tls.key_data,
                                                            .tls_server_name = tls.server_name,
                                                            .insecure = tls.insecure,
                                                            .proxy = TRANSPORT_CURL_PROXY_NONE,
                                                            .accept_gzip = true});
    c->kube = kube_new(&(struct kube_options){.transport = c->transport,
                                              .clock = clock_os(),
                                              .config = c->config,
                                              .user_agent = "belay/contract"});
}

static inline void client_open(struct client *c)
{
    client_open_at(c, NULL);
}

static inline void client_close(struct client *c)
{
    kube_free(c->kube);
    transport_curl_free(c->transport);
    kube_config_free(c->config);
}

static inline struct mono soon(void)
{
    return mono_add_ms(clock_mono(clock_os()), CALL_MS);
}

/* ---- requests ---- */

struct call {
    const char *method;
    const struct kube_gvr *gvr; /* NULL = HelmReleases */
    const char *ns, *name, *subresource, *query, *type;
    const char *body; /* JSON; single quotes stand for double ones */
};

static inline json_t *json_of(const char *text)
{
    _cleanup_(free_cstr)
    char *quoted = xstrdup(text);
    for (char *p = quoted; *p != '\0'; p++) {
        *p = *p == '\'' ? '"' : *p;
    }
    struct err err = ERR_INIT;
    json_t *j = NULL;
    if (jsonx_parse(quoted, strlen(quoted), &j, &err)) {
        fail_msg("%s: %s", text, err.msg);
    }
    return j;
}

/* *ret_object (may be NULL): the reply's object, a new reference, if it succeeds. */
static inline enum err_kind call(struct client *c, const struct call *what, json_t **ret_object,
                                 struct err *err)
{
    _cleanup_json_ json_t *body = what->body != NULL ? json_of(what->body) : NULL;
    struct kube_request req = {.method = what->method,
                               .gvr = what->gvr != NULL ? what->gvr : &KUBE_HELMRELEASES,
                               .ns = what->ns,
                               .name = what->name,
                               .subresource = what->subresource,
                               .query = what->query,
                               .body = body,
                               .content_type = what->type,
                               .deadline = soon()};
    struct kube_reply reply = KUBE_REPLY_INIT;
    enum err_kind kind = kube_do(c->kube, &req, &reply, err);
    if (kind == ERR_NONE && ret_object != NULL) {
        *ret_object = json_incref(reply.object);
    }
    if (kind == ERR_NONE) {
        kube_reply_release(&reply);
    }
    return kind;
}

/* The kind alone. */
static inline enum err_kind call_kind(struct client *c, const struct call *what)
{
    struct err err = ERR_INIT;
    return call(c, what, NULL, &err);
}

/* It must succeed; the reply's object. */
static inline json_t *call_ok(struct client *c, const struct call *what)
{
    struct err err = ERR_INIT;
    json_t *object = NULL;
    if (call(c, what, &object, &err)) {
        fail_msg("%s %s/%s: HTTP %d, %s", what->method, what->ns != NULL ? what->ns : "",
                 what->name != NULL ? what->name : "", err.code, err.msg);
    }
    return object;
}

static inline void call_do(struct client *c, const struct call *what)
{
    json_decref(call_ok(c, what));
}

static inline json_t *get(struct client *c, const char *ns, const char *name)
{
    return call_ok(c, &(struct call){.method = "GET", .ns = ns, .name = name});
}

static inline void patch_status(struct client *c, const char *ns, const char *name,
                                const char *body)
{
    call_do(c, &(struct call){.method = "PATCH",
                              .ns = ns,
                              .name = name,
                              .subresource = "status",
                              .type = KUBE_MERGE_PATCH,
                              .body = body});
}

static inline json_t *create(struct client *c, const char *ns, const char *name)
{
    _cleanup_(free_cstr)
    char *body =
        xasprintf("{'apiVersion': 'helm.fluxcd.io/v1', 'kind': 'HelmRelease', 'metadata': {'name': "
                  "'%s'}, 'spec': {'chart': {'repository': 'http://127.0.0.1:1', 'name': 'one', "
                  "'version': '1.0.0'}}}",
                  name);
    return call_ok(c, &(struct call){.method = "POST", .ns = ns, .body = body});
}

static inline const char *released_text(const json_t *object, const char *field)
{
    return jsonx_str(hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", NULL),
                     field, "");
}

/* ---- waiting ---- */

/* Poll until true; false after WAIT_MS. */
static inline bool wait_for(bool (*is_true)(void *ctx), void *ctx)
{
    struct mono deadline = mono_add_ms(clock_mono(clock_os()), WAIT_MS);
    while (!is_true(ctx)) {
        struct mono now = clock_mono(clock_os());
        if (!mono_before(now, deadline)) {
            return false;
        }
        (void)clock_sleep_until(clock_os(), mono_add_ms(now, POLL_MS), NULL);
    }
    return true;
}

/* ---- a namespace ---- */

struct scene {
    struct client client;
    char ns[64];
};

/* cmocka group set-up: *state is a struct scene. */
static inline int scene_open(void **state)
{
    struct scene *s = xcalloc(1, sizeof(*s));
    client_open(&s->client);
    /* Process ids come back, boot time does not. */
    (void)snprintf(s->ns, sizeof(s->ns), "contract-%d-%lld", (int)getpid(),
                   (long long)(clock_mono(clock_os()).ns / NS_PER_MS));
    _cleanup_(free_cstr)
    char *body =
        xasprintf("{'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': '%s'}}", s->ns);
    call_do(&s->client, &(struct call){.method = "POST", .gvr = &KUBE_NAMESPACES, .body = body});
    *state = s;
    return 0;
}

static inline int scene_close(void **state)
{
    struct scene *s = *state;
    call_do(&s->client, &(struct call){.method = "DELETE", .gvr = &KUBE_NAMESPACES, .name = s->ns});
    client_close(&s->client);
    free(s);
    return 0;
}

#endif
