#include "app.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "chartref/chartref.h"
#include "httpd/httpd.h"
#include "hr/hr.h"
#include "kube/kubeconfig.h"
#include "proc_posix/pod_socket.h"
#include "transport_curl/transport_curl.h"
#include "worker/worker.h"

/* Below the ports that kernels give to outgoing connections. */
#define GATE_PORT_FIRST 20000
#define GATE_PORTS      10000
#define USER_AGENT      "belay/" BELAY_VERSION
#define CRD_NAME        "helmreleases.helm.fluxcd.io"
/* Without a word from a healthy watch for this long a replica is not ready: bookmarks come about
 * each minute. */
#define SILENCE_MAX_MS 300000
#define EXIT_USAGE     2

enum { REFLECT_RELEASES, REFLECT_RECORDS, REFLECT_CRD, REFLECTORS };

struct app {
    struct flags flags;
    char *identity;
    struct pod_socket *pod_socket;
    struct kube_config *kube_config;
    struct transport *api_transport, *fetch_transport;
    struct kube *kube;
    struct metrics *metrics;
    struct helm *helm;
    struct charts *charts;
    struct events *events;
    struct locks *locks;
    char *scope;
    struct members *members;
    struct queue *queue;
    struct cache *releases, *records, *crds;
    struct reflector *reflectors[REFLECTORS];
    struct gate *gate;
    struct worker *worker;
    struct httpd *httpd;
    struct cancel stopping;  /* no new work */
    struct cancel finishing; /* the rest of the threads end */
    pthread_t worker_threads[64];
    size_t worker_count;
    atomic_size_t workers_ended;
    pthread_t threads[REFLECTORS + 4];
    size_t thread_count;
};

/* ---- identity ---- */

/* pod/uid/incarnation. Without the downward API: the host's name and no UID; the 128 random bits
 * alone make it unique. */
static char *make_identity(const struct flags *flags)
{
    const char *pod = getenv("POD_NAME");
    const char *uid = getenv("POD_UID");
    char host[256] = "belay";
    (void)gethostname(host, sizeof(host) - 1);
    const char *name = flags->identity[0] != '\0'      ? flags->identity
                       : pod != NULL && pod[0] != '\0' ? pod
                                                       : host;
    uint8_t bits[16];
    rng_fill(rng_os(), bits, sizeof(bits));
    char incarnation[33];
    text_hex(bits, sizeof(bits), incarnation);
    return xasprintf("%s/%s/%s", name, uid != NULL && uid[0] != '\0' ? uid : "-", incarnation);
}

static bool predecessor_dead(void *ctx)
{
    return pod_socket_bound(ctx);
}

/* ---- the CRD ---- */

static void on_crd(void *ctx, enum reflector_event event, struct snap *before, struct snap *after)
{
    struct app *app = ctx;
    (void)before;
    struct err err = ERR_INIT;
    if (event == REFLECTOR_DELETED) {
        err_set(&err, ERR_INVALID, "the CRD " CRD_NAME " was deleted");
    } else if (after->object == NULL) {
        err = after->bad;
    } else if (hr_crd_check(after->object, &err) == ERR_NONE) {
        worker_set_crd_problem(app->worker, NULL);
        return;
    }
    worker_set_crd_problem(app->worker, &err);
    log_error("crd", "nothing is synced: the HelmRelease CRD does not keep what the lock writes",
              LOG_S("err", err.msg), LOG_S("hint", err.hint));
}

/* Read it once before anything else: a wrong CRD is told to the person who starts us. What we may
 * not read is left to the check of each lock's echo. */
static enum err_kind check_crd(struct app *app, struct err *err)
{
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct mono deadline = mono_add_ms(clock_mono(clock_os()), 30000);
    struct err why = ERR_INIT;
    enum err_kind kind =
        kube_get(app->kube, &KUBE_CRDS, NULL, CRD_NAME, deadline, NULL, &reply, &why);
    if (kind == ERR_DENIED && why.code == 403) {
        log_warn("crd", "the CRD may not be read; each lock's reply is checked instead",
                 LOG_S("err", why.msg));
        return ERR_NONE;
    }
    if (kind == ERR_NOT_FOUND) {
        err_set(err, ERR_NOT_FOUND, "the CRD " CRD_NAME " is not installed");
        err_hint(err, "apply api/crd.yaml, or install the chart");
        return err->kind;
    }
    if (kind) {
        *err = why;
        return err_wrap(err, "ask %s for the CRD", kube_server(app->kube));
    }
    kind = hr_crd_check(reply.object, err);
    kube_reply_release(&reply);
    return kind;
}

/* ---- HTTP ---- */

static int healthz(void *ctx, struct buf *body)
{
    (void)ctx;
    buf_add_str(body, "OK\n");
    return 200;
}

static int readyz(void *ctx, struct buf *body)
{
    struct app *app = ctx;
    char why[512];
    if (!cache_is_synced(app->releases) || !cache_is_synced(app->records)) {
        buf_add_str(body, "the caches are not filled yet\n");
        return 503;
    }
    if (worker_crd_problem(app->worker, why, sizeof(why))) {
        buf_addf(body, "%s\n", why);
        return 503;
    }
    for (int i = 0; i < REFLECT_CRD; i++) {
        if (reflector_silence_ms(app->reflectors[i]) > SILENCE_MAX_MS) {
            buf_add_str(body, "the API server has been silent for 5 minutes\n");
            return 503;
        }
    }
    buf_add_str(body, cancel_is_raised(&app->stopping) ? "stopping\n" : "OK\n");
    return cancel_is_raised(&app->stopping) ? 503 : 200;
}

static void write_metrics(void *ctx, struct buf *body)
{
    struct app *app = ctx;
    metrics_set_release_count(app->metrics, (int64_t)cache_count(app->releases));
    metrics_set_queue_length(app->metrics, (int64_t)queue_len(app->queue));
    int64_t dropped =
        events_dropped(app->events) - metrics_get(app->metrics, METRICS_EVENTS_DROPPED);
    metrics_add(app->metrics, METRICS_EVENTS_DROPPED, dropped);
    metrics_write(app->metrics, body);
}

/* ---- threads ---- */

static void *reflector_main(void *arg)
{
    reflector_run(arg);
    return NULL;
}

static void *heartbeat_main(void *arg)
{
    locks_run(arg);
    return NULL;
}

static void *watchdog_main(void *arg)
{
    locks_watchdog_run(arg);
    return NULL;
}

static void *members_main(void *arg)
{
    members_run(arg);
    return NULL;
}

static void *events_main(void *arg)
{
    events_run(arg);
    return NULL;
}

static void *worker_main(void *arg)
{
    struct app *app = arg;
    worker_run(app->worker);
    atomic_fetch_add(&app->workers_ended, 1);
    return NULL;
}

static void start_thread(struct app *app, void *(*fn)(void *), void *arg)
{
    must(app->thread_count < sizeof(app->threads) / sizeof(app->threads[0]));
    must(pthread_create(&app->threads[app->thread_count++], NULL, fn, arg) == 0);
}

/* ---- wiring ---- */

static void client_cert_changed(void *ctx, const char *cert_pem, const char *key_pem)
{
    transport_curl_set_client_cert(ctx, cert_pem, key_pem);
}

static enum err_kind open_api(struct app *app, struct err *err)
{
    if (kube_config_load(&(struct kube_config_options){.path = app->flags.kubeconfig,
                                                       .context = app->flags.context,
                                                       .proc = proc_posix(),
                                                       .clock = clock_os()},
                         &app->kube_config, err)) {
        return err->kind;
    }
    struct kube_tls tls = {0};
    kube_config_tls(app->kube_config, &tls);
    app->api_transport = transport_curl_new(&(struct transport_curl_options){
        .user_agent = USER_AGENT,
        .ca_file = tls.ca_file,
        .ca_data = tls.ca_data,
        .cert_file = tls.cert_file,
        .key_file = tls.key_file,
        .cert_data = tls.cert_data,
        .key_data = tls.key_data,
        .tls_server_name = tls.server_name,
        .insecure = tls.insecure,
        .proxy = tls.proxy_url != NULL ? TRANSPORT_CURL_PROXY_URL : TRANSPORT_CURL_PROXY_NONE,
        .proxy_url = tls.proxy_url,
        .accept_gzip = true,
    });
    kube_config_on_client_cert(app->kube_config, client_cert_changed, app->api_transport);
    app->kube = kube_new(&(struct kube_options){.transport = app->api_transport,
                                                .clock = clock_os(),
                                                .config = app->kube_config,
                                                .user_agent = USER_AGENT});
    return check_crd(app, err);
}

static struct transport *transport_for_tls(void *ctx, const struct transport_tls *tls)
{
    (void)ctx;
    return transport_curl_new(
        &(struct transport_curl_options){.user_agent = USER_AGENT,
                                         .ca_file = tls->ca_file,
                                         .cert_file = tls->cert_file,
                                         .key_file = tls->key_file,
                                         .insecure = tls->insecure,
                                         .proxy = TRANSPORT_CURL_PROXY_ENVIRONMENT});
}

/* --helm-repository-import v3:PATH[,v3:PATH...]; what is bad in a file costs only its own entry. */
static void import_repositories(struct app *app)
{
    _cleanup_(free_cstr)
    char *list = xstrdup(app->flags.repository_import);
    char *rest = list;
    while (*rest != '\0') {
        char *item = rest;
        char *comma = strchr(rest, ',');
        rest = comma != NULL ? comma + 1 : rest + strlen(rest);
        if (comma != NULL) {
            *comma = '\0';
        }
        const char *path = text_has_prefix(item, "v3:") ? item + 3 : item;
        struct err err = ERR_INIT;
        if (charts_import_repositories(app->charts, path, &err) || err.kind != ERR_NONE) {
            log_warn("chart", "repositories.yaml was not imported in whole", LOG_S("path", path),
                     LOG_S("err", err.msg));
        }
    }
}

static enum err_kind open_tools(struct app *app, const struct dirs *dirs, struct err *err)
{
    if (helm_open(&(struct helm_options){.proc = proc_posix(),
                                         .clock = clock_os(),
                                         .inherit_fd = pod_socket_fd(app->pod_socket),
                                         .path = app->flags.helm,
                                         .home_dir = dirs->home},
                  &app->helm, err)) {
        err->code = EXIT_USAGE;
        return err_wrap(err, "--helm");
    }
    app->fetch_transport = transport_curl_new(&(struct transport_curl_options){
        .user_agent = USER_AGENT, .proxy = TRANSPORT_CURL_PROXY_ENVIRONMENT});
    if (charts_open(&(struct charts_options){.clock = clock_os(),
                                             .rng = rng_os(),
                                             .transport = app->fetch_transport,
                                             .transport_for = transport_for_tls,
                                             .cache_dir = dirs->cache,
                                             .user_agent = USER_AGENT},
                    &app->charts, err)) {
        return err->kind;
    }
    import_repositories(app);
    return ERR_NONE;
}

/* Only the API server knows what a selector may be: asked once, or its watch would be refused again
 * and again. What else goes wrong here is the watch's to report. */
static enum err_kind check_selector(const struct app *app, struct err *err)
{
    if (app->flags.selector[0] == '\0') {
        return ERR_NONE;
    }
    struct buf query = BUF_INIT(16384);
    buf_add_str(&query, "limit=1&labelSelector=");
    buf_add_uri(&query, app->flags.selector);
    struct kube_request req = {.method = "GET",
                               .gvr = &KUBE_HELMRELEASES,
                               .ns = app->flags.allow_namespace,
                               .query = buf_str(&query),
                               .accept = KUBE_ACCEPT_METADATA_LIST,
                               .raw_body = true,
                               .deadline = mono_add_ms(clock_mono(clock_os()), 30000)};
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err why = ERR_INIT;
    enum err_kind kind = kube_do(app->kube, &req, &reply, &why);
    kube_reply_release(&reply);
    buf_release(&query);
    if (kind != ERR_INVALID || why.code != 400) {
        return ERR_NONE;
    }
    err_set(err, ERR_INVALID, "--watch-label-selector: \"%s\" is not legal: %s",
            app->flags.selector, why.msg);
    err->code = EXIT_USAGE;
    return err->kind;
}

/* The port is the same at each start, if it is free: helm's discovery cache on disk is named after
 * it. Not the same for two API servers: what one knows must not be taken for the other's. */
static int gate_port_wanted(const struct app *app, const struct dirs *dirs)
{
    uint32_t hash = 2166136261U; /* FNV-1a: strmap's hash differs from process to process */
    const char *texts[] = {kube_server(app->kube), dirs->home};
    for (size_t i = 0; i < 2; i++) {
        for (const char *at = texts[i]; *at != '\0'; at++) {
            hash = (hash ^ (uint8_t)*at) * 16777619U;
        }
    }
    return GATE_PORT_FIRST + (int)(hash % GATE_PORTS);
}

static enum err_kind start_gate(struct app *app, const struct dirs *dirs, struct err *err)
{
    if (!app->flags.gate) {
        log_warn("main", "--gate=false: helm goes straight to the API server; what a lost lock's "
                         "helm still writes is not fenced");
        return ERR_NONE;
    }
    return gate_start(&(struct gate_options){.kube = app->kube,
                                             .clock = clock_os(),
                                             .rng = rng_os(),
                                             .metrics = app->metrics,
                                             .port = gate_port_wanted(app, dirs)},
                      &app->gate, err);
}

static void make_parts(struct app *app, const struct dirs *dirs)
{
    const struct flags *flags = &app->flags;
    app->queue = queue_new(clock_os());
    app->releases = cache_new(&(struct cache_options){.index_of = worker_release_index});
    app->records = cache_new(&(struct cache_options){.index_of = worker_record_index});
    app->crds = cache_new(&(struct cache_options){.index_of = NULL});
    app->events = events_new(&(struct events_options){.kube = app->kube,
                                                      .clock = clock_os(),
                                                      .rng = rng_os(),
                                                      .reporting_instance = app->identity,
                                                      .cancel = &app->finishing});
    app->locks = locks_new(&(struct locks_options){.kube = app->kube,
                                                   .clock = clock_os(),
                                                   .proc = proc_posix(),
                                                   .metrics = app->metrics,
                                                   .identity = app->identity,
                                                   .lease_ms = flags->lease_ms,
                                                   .stopping = &app->stopping});
    const char *ns = getenv("POD_NAMESPACE");
    app->scope = xasprintf("namespace=%s selector=%s", flags->allow_namespace, flags->selector);
    app->members = members_new(&(struct members_options){
        .kube = app->kube,
        .clock = clock_os(),
        .rng = rng_os(),
        .ns = ns != NULL && ns[0] != '\0' ? ns : kube_config_namespace(app->kube_config),
        .identity = app->identity,
        .scope = app->scope,
        .cancel = &app->stopping});
    app->worker =
        worker_new(&(struct worker_options){.kube = app->kube,
                                            .kube_config = app->kube_config,
                                            .gate = app->gate,
                                            .clock = clock_os(),
                                            .rng = rng_os(),
                                            .fetch = app->fetch_transport,
                                            .releases = app->releases,
                                            .records = app->records,
                                            .queue = app->queue,
                                            .locks = app->locks,
                                            .charts = app->charts,
                                            .helm = app->helm,
                                            .members = app->members,
                                            .events = app->events,
                                            .metrics = app->metrics,
                                            .stopping = &app->stopping,
                                            .predecessor_dead = predecessor_dead,
                                            .predecessor_ctx = app->pod_socket,
                                            .interval_ms = flags->interval_ms,
                                            .foreign_pending_ms = flags->foreign_pending_ms,
                                            .work_dir = dirs->work});
}

static void make_reflectors(struct app *app)
{
    const char *ns = app->flags.allow_namespace[0] != '\0' ? app->flags.allow_namespace : NULL;
    const char *selector = app->flags.selector[0] != '\0' ? app->flags.selector : NULL;
    struct reflector_options all = {.kube = app->kube,
                                    .clock = clock_os(),
                                    .rng = rng_os(),
                                    .cancel = &app->finishing,
                                    .ctx = app->worker};
    struct reflector_options releases = all;
    releases.gvr = &KUBE_HELMRELEASES;
    releases.ns = ns;
    releases.label_selector = selector;
    releases.cache = app->releases;
    releases.on_event = worker_on_release;
    releases.name = "helmreleases";
    app->reflectors[REFLECT_RELEASES] = reflector_new(&releases);
    struct reflector_options records = all;
    records.gvr = &KUBE_SECRETS;
    records.ns = ns;
    records.label_selector = "owner=helm";
    records.metadata_only = true;
    records.cache = app->records;
    records.on_event = worker_on_record;
    records.name = "records";
    app->reflectors[REFLECT_RECORDS] = reflector_new(&records);
    struct reflector_options crd = all;
    crd.gvr = &KUBE_CRDS;
    crd.field_selector = "metadata.name=" CRD_NAME;
    crd.cache = app->crds;
    crd.on_event = on_crd;
    crd.ctx = app;
    crd.name = "crd";
    app->reflectors[REFLECT_CRD] = reflector_new(&crd);
}

/* The workers start when both caches are filled: a pass over a half-known world would call
 * everything absent. */
static void start_workers(struct app *app)
{
    while (!(cache_is_synced(app->releases) && cache_is_synced(app->records))) {
        sigset_t pending;
        must(sigpending(&pending) == 0);
        if (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1) {
            return;
        }
        (void)clock_sleep_until(clock_os(), mono_add_ms(clock_mono(clock_os()), 20), NULL);
    }
    log_info("main", "caches are filled", LOG_I("helmreleases", cache_count(app->releases)),
             LOG_I("records", cache_count(app->records)));
    for (int64_t i = 0; i < app->flags.workers; i++) {
        must(pthread_create(&app->worker_threads[app->worker_count++], NULL, worker_main, app) ==
             0);
    }
}

static enum err_kind start_http(struct app *app, struct err *err)
{
    if (httpd_start(&(struct httpd_options){.listen = app->flags.listen,
                                            .healthz = healthz,
                                            .readyz = readyz,
                                            .metrics = write_metrics,
                                            .ctx = app},
                    &app->httpd, err)) {
        err->code = err->kind == ERR_INVALID ? EXIT_USAGE : 0;
        return err_wrap(err, "--listen");
    }
    return ERR_NONE;
}

static void app_free(struct app *app)
{
    httpd_stop(app->httpd);
    for (size_t i = 0; i < REFLECTORS; i++) {
        reflector_free(app->reflectors[i]);
    }
    worker_free(app->worker);
    gate_stop(app->gate);
    members_free(app->members);
    free(app->scope);
    locks_free(app->locks);
    events_free(app->events);
    queue_free(app->queue);
    cache_free(app->releases);
    cache_free(app->records);
    cache_free(app->crds);
    charts_close(app->charts);
    helm_close(app->helm);
    metrics_free(app->metrics);
    kube_free(app->kube);
    transport_curl_free(app->api_transport);
    transport_curl_free(app->fetch_transport);
    kube_config_free(app->kube_config);
    cancel_release(&app->stopping);
    cancel_release(&app->finishing);
    pod_socket_free(app->pod_socket);
    free(app->identity);
    free(app);
}

enum err_kind app_start(const struct flags *flags, const struct dirs *dirs, struct app **ret,
                        struct err *err)
{
    struct app *app = xcalloc(1, sizeof(*app));
    app->flags = *flags;
    app->metrics = metrics_new();
    app->identity = make_identity(flags);
    app->pod_socket = pod_socket_new(getenv("POD_UID"));
    (void)pod_socket_bound(app->pod_socket); /* ours from the first moment, if it is free */
    cancel_init(&app->stopping);
    cancel_init(&app->finishing);
    if (open_tools(app, dirs, err) || open_api(app, err) || check_selector(app, err) ||
        start_gate(app, dirs, err)) {
        app_free(app);
        return err->kind;
    }
    make_parts(app, dirs);
    make_reflectors(app);
    if (start_http(app, err)) {
        app_free(app);
        return err->kind;
    }
    log_info("main", "starting", LOG_S("version", BELAY_VERSION), LOG_S("identity", app->identity),
             LOG_S("api", kube_server(app->kube)),
             LOG_S("config", kube_config_origin(app->kube_config)),
             LOG_S("helm", helm_version(app->helm)), LOG_I("lease_ms", flags->lease_ms),
             LOG_I("port", httpd_port(app->httpd)));
    start_thread(app, heartbeat_main, app->locks);
    start_thread(app, watchdog_main, app->locks);
    start_thread(app, events_main, app->events);
    start_thread(app, members_main, app->members);
    for (size_t i = 0; i < REFLECTORS; i++) {
        start_thread(app, reflector_main, app->reflectors[i]);
    }
    start_workers(app);
    *ret = app;
    return ERR_NONE;
}

void app_stop_begin(struct app *app)
{
    cancel_raise(&app->stopping);
    queue_shutdown(app->queue);
}

bool app_is_idle(struct app *app)
{
    return atomic_load(&app->workers_ended) == app->worker_count;
}

void app_interrupt(struct app *app)
{
    locks_signal_all(app->locks, SIGINT);
}

void app_kill(struct app *app)
{
    locks_signal_all(app->locks, SIGKILL);
}

void app_stop(struct app *app)
{
    for (size_t i = 0; i < app->worker_count; i++) {
        must(pthread_join(app->worker_threads[i], NULL) == 0);
    }
    locks_stop(app->locks);
    cancel_raise(&app->finishing);
    for (size_t i = 0; i < app->thread_count; i++) {
        must(pthread_join(app->threads[i], NULL) == 0);
    }
    app_free(app);
}
