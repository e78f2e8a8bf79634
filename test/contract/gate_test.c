/* The gate on a real API server: this program plays helm, by requests with a run's token, and
 * judges by what the server holds afterwards. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "fixture.h"
#include "gate/gate.h"
#include "helmrec/helmrec.h"

#define LEASE_MS 5000
#define DIGEST   "1:0000000000000000000000000000000000000000000000000000000000000000"

struct child {
    atomic_int sigint, sigkill;
};

static void count_signal(struct child *c, int signo)
{
    must(signo == SIGINT || signo == SIGKILL);
    atomic_fetch_add(signo == SIGKILL ? &c->sigkill : &c->sigint, 1);
}

/* One lock, its gate and a run of it. */
struct stage {
    struct scene *scene;
    const char *name;
    struct client client;
    struct proc proc;
    struct metrics *metrics;
    struct cancel stopping;
    struct locks *locks;
    pthread_t heartbeat, watchdog;
    bool beats;
    struct gate *gate;
    struct held *held;
    struct child child;
    struct gate_run *run;
    char token[64];
    struct transport *wire; /* helm's */
};

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

static void lock_it(struct stage *t)
{
    static const struct proc_ops ops = {.signal = count_signal};
    t->proc.ops = &ops;
    t->metrics = metrics_new();
    cancel_init(&t->stopping);
    t->locks = locks_new(&(struct locks_options){.kube = t->client.kube,
                                                 .clock = clock_os(),
                                                 .proc = &t->proc,
                                                 .metrics = t->metrics,
                                                 .identity = "pod/uid/one",
                                                 .lease_ms = LEASE_MS,
                                                 .stopping = &t->stopping});
    /* By the same client: its replies tell the server's time. */
    _cleanup_json_ json_t *object = create(&t->client, t->scene->ns, t->name);
    struct err err = ERR_INIT;
    if (lock_acquire(
            t->locks,
            &(struct lock_request){.object = object, .reason = "Upgrading", .doing = "upgrades it"},
            &t->held, &err)) {
        fail_msg("acquire: %s", err.msg);
    }
    held_set_child(t->held, &t->child);
    must(pthread_create(&t->watchdog, NULL, watchdog_main, t->locks) == 0);
    if (t->beats) {
        must(pthread_create(&t->heartbeat, NULL, heartbeat_main, t->locks) == 0);
    }
}

/* The token, as helm finds it: in the kubeconfig. */
static void read_token(struct stage *t)
{
    char path[128];
    struct err err = ERR_INIT;
    (void)snprintf(path, sizeof(path), "/tmp/gate_test.%d", (int)getpid());
    assert_int_equal(gate_write_kubeconfig(t->run, path, &err), ERR_NONE);
    FILE *f = fopen(path, "r");
    char text[4096] = "";
    must(f != NULL && fread(text, 1, sizeof(text) - 1, f) > 0);
    (void)fclose(f);
    (void)unlink(path);
    const char *as = strstr(text, "\"as\":\"");
    must(as != NULL);
    (void)snprintf(t->token, sizeof(t->token), "%.32s", as + strlen("\"as\":\""));
    assert_null(strstr(text, "certificate"));
}

static void admit(struct stage *t, bool upgrades, int64_t newest)
{
    t->run = gate_admit(
        t->gate,
        &(struct gate_run_options){.held = t->held,
                                   .fence = {.ns = t->scene->ns,
                                             .release = t->name,
                                             .makes_revision = upgrades,
                                             .may_delete_all = !upgrades,
                                             .newest = newest,
                                             .claim = {.digest = (char *)(uintptr_t)DIGEST,
                                                       .owner = (char *)(uintptr_t) "uid-1",
                                                       .owner_name = (char *)(uintptr_t) "ns/name",
                                                       .epoch = held_epoch(t->held)}}});
    read_token(t);
}

static void stage_open(struct stage *t, struct scene *scene, const char *name, bool beats)
{
    *t = (struct stage){.scene = scene, .name = name, .beats = beats};
    client_open(&t->client);
    lock_it(t);
    struct err err = ERR_INIT;
    if (gate_start(&(struct gate_options){.kube = t->client.kube,
                                          .clock = clock_os(),
                                          .rng = rng_os(),
                                          .metrics = t->metrics},
                   &t->gate, &err)) {
        fail_msg("%s", err.msg);
    }
    t->wire = transport_curl_new(&(struct transport_curl_options){.user_agent = "helm"});
}

static struct gate_report stage_dismiss(struct stage *t)
{
    struct gate_report report;
    gate_dismiss(t->run, &report);
    t->run = NULL;
    return report;
}

static void stage_close(struct stage *t)
{
    if (t->run != NULL) {
        struct gate_report report = stage_dismiss(t);
        gate_report_release(&report);
    }
    held_set_child(t->held, NULL);
    transport_curl_free(t->wire);
    gate_stop(t->gate);
    locks_stop(t->locks);
    must(pthread_join(t->watchdog, NULL) == 0);
    if (t->beats) {
        must(pthread_join(t->heartbeat, NULL) == 0);
    }
    held_free(t->held);
    locks_free(t->locks);
    cancel_release(&t->stopping);
    metrics_free(t->metrics);
    client_close(&t->client);
}

/* ---- helm's requests ---- */

/* The status; the body into *ret_body (may be NULL). path is below the namespace if it starts
 * without a slash. */
static int ask(struct stage *t, const char *method, const char *path, const char *body,
               char **ret_body)
{
    _cleanup_(free_cstr)
    char *url = path[0] == '/' ? xasprintf("http://127.0.0.1:%d%s", gate_port(t->gate), path)
                               : xasprintf("http://127.0.0.1:%d/api/v1/namespaces/%s/%s",
                                           gate_port(t->gate), t->scene->ns, path);
    _cleanup_(free_cstr)
    char *text = xstrdup(body != NULL ? body : "");
    for (char *p = text; *p != '\0'; p++) {
        *p = *p == '\'' ? '"' : *p;
    }
    bool patch = strcmp(method, "PATCH") == 0;
    const struct http_header headers[] = {
        {"Impersonate-User", t->token},
        {"Accept", "application/json"},
        {"Content-Type", patch ? KUBE_MERGE_PATCH : "application/json"},
        {"Authorization", "Bearer nobody"}};
    struct http_request req = {.method = method,
                               .url = url,
                               .headers = headers,
                               .header_count = 4,
                               .body = body != NULL ? text : NULL,
                               .body_len = strlen(text),
                               .deadline = soon()};
    struct http_response res = HTTP_RESPONSE_INIT;
    struct err err = ERR_INIT;
    if (transport_perform(t->wire, &req, &res, &err)) {
        print_message("    %s %s: %s\n", method, path, err.msg);
        return -1;
    }
    int status = res.status;
    if (ret_body != NULL) {
        *ret_body = buf_take(&res.body);
    }
    http_response_release(&res);
    return status;
}

static char *record_body(const struct stage *t, int revision, const char *release)
{
    return xasprintf("{'apiVersion': 'v1', 'kind': 'Secret', 'type': 'helm.sh/release.v1', "
                     "'metadata': {'name': 'sh.helm.release.v1.%s.v%d', 'labels': {'owner': "
                     "'helm', 'name': '%s', 'status': 'deployed', 'version': '%d'}}, 'data': "
                     "{'release': '%s'}}",
                     t->name, revision, t->name, revision, release);
}

static int post_record(struct stage *t, int revision, const char *release)
{
    _cleanup_(free_cstr)
    char *body = record_body(t, revision, release);
    return ask(t, "POST", "secrets", body, NULL);
}

static int put_record(struct stage *t, int revision, const char *release)
{
    _cleanup_(free_cstr)
    char *body = record_body(t, revision, release);
    _cleanup_(free_cstr)
    char *path = xasprintf("secrets/sh.helm.release.v1.%s.v%d", t->name, revision);
    return ask(t, "PUT", path, body, NULL);
}

static int post_config_map(struct stage *t, const char *name, const char *more)
{
    _cleanup_(free_cstr)
    char *body = xasprintf(
        "{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': '%s'%s}}", name, more);
    return ask(t, "POST", "configmaps", body, NULL);
}

/* As it stands on the server; NULL if it does not. */
static json_t *look(struct stage *t, const struct kube_gvr *gvr, const char *name)
{
    struct err err = ERR_INIT;
    json_t *object = NULL;
    enum err_kind kind =
        call(&t->scene->client,
             &(struct call){.method = "GET", .gvr = gvr, .ns = t->scene->ns, .name = name}, &object,
             &err);
    assert_true(kind == ERR_NONE || kind == ERR_NOT_FOUND);
    return object;
}

static json_t *look_record(struct stage *t, int revision)
{
    _cleanup_(free_cstr)
    char *name = xasprintf("sh.helm.release.v1.%s.v%d", t->name, revision);
    return look(t, &KUBE_SECRETS, name);
}

static struct helmrec_meta *look_meta(struct stage *t, int revision)
{
    _cleanup_json_ json_t *object = look_record(t, revision);
    assert_non_null(object);
    struct helmrec_meta *meta = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(helmrec_meta_parse(object, &meta, &err), ERR_NONE);
    return meta;
}

static bool exists(struct stage *t, const char *config_map)
{
    _cleanup_json_ json_t *object = look(t, &KUBE_CONFIGMAPS, config_map);
    return object != NULL;
}

/* ---- tests ---- */

static void a_stranger_gets_nothing(void **state)
{
    struct stage t;
    stage_open(&t, *state, "stranger", true);
    admit(&t, true, 0);
    char *body = NULL;
    assert_int_equal(ask(&t, "GET", "configmaps", NULL, NULL), 200);
    char token[64];
    memcpy(token, t.token, sizeof(token));
    t.token[0] ^= 1;
    assert_int_equal(ask(&t, "GET", "configmaps", NULL, &body), 401);
    assert_null(strstr(body, "kube-root-ca"));
    free(body);
    memcpy(t.token, token, sizeof(token));
    struct gate_report report = stage_dismiss(&t);
    gate_report_release(&report);
    assert_int_equal(ask(&t, "GET", "configmaps", NULL, NULL), 401); /* and it is one-use */
    stage_close(&t);
}

static void an_upgrade_passes_and_its_record_says_whose_it_is(void **state)
{
    struct stage t;
    stage_open(&t, *state, "upgrade", true);
    admit(&t, true, 0);
    assert_int_equal(post_record(&t, 1, "cGVuZGluZw=="), 201);
    struct helmrec_meta *pending = look_meta(&t, 1); /* before helm has done anything else */
    assert_string_equal(pending->digest, DIGEST);
    assert_string_equal(pending->owner, "uid-1");
    assert_int_equal(pending->epoch, held_epoch(t.held));
    helmrec_meta_free(pending);
    assert_int_equal(post_config_map(&t, "up-a", ""), 201);
    assert_int_equal(post_config_map(&t, "up-hook", ", 'annotations': {'helm.sh/hook': 'x'}"), 201);
    assert_int_equal(ask(&t, "GET", "configmaps/up-a", NULL, NULL), 200);
    assert_int_equal(ask(&t, "PATCH", "configmaps/up-a", "{'data': {'a': 'b'}}", NULL), 200);
    assert_int_equal(ask(&t, "PATCH", "configmaps/up-a", "{'data': {'a': 'b'}}", NULL), 200);
    assert_int_equal(ask(&t, "DELETE", "configmaps/up-hook", NULL, NULL), 200);
    assert_int_equal(put_record(&t, 1, "ZGVwbG95ZWQ="), 200);
    struct helmrec_meta *deployed = look_meta(&t, 1);
    assert_string_equal(deployed->digest, DIGEST);
    helmrec_meta_free(deployed);
    struct gate_report report = stage_dismiss(&t);
    assert_false(report.latched);
    assert_false(report.unanswered);
    assert_true(report.record_written);
    assert_int_equal(report.created, 2);
    assert_int_equal(report.changed, 1); /* the second PATCH changed nothing */
    assert_int_equal(report.deleted, 1);
    assert_int_equal(report.created_target_count, 1); /* the hook is not the release's */
    assert_non_null(strstr(report.created_targets[0], "/configmaps/up-a"));
    gate_report_release(&report);
    assert_int_equal(atomic_load(&t.child.sigkill), 0);
    stage_close(&t);
}

static void nothing_comes_before_the_record(void **state)
{
    struct stage t;
    stage_open(&t, *state, "before", true);
    admit(&t, true, 0);
    assert_int_equal(post_config_map(&t, "too-early", ""), 409);
    assert_false(exists(&t, "too-early"));
    assert_int_equal(atomic_load(&t.child.sigkill), 1);
    /* Latched: what would have been good is refused too. Reads go on. */
    assert_int_equal(post_record(&t, 1, "eA=="), 409);
    assert_null(look_record(&t, 1));
    assert_int_equal(ask(&t, "GET", "configmaps", NULL, NULL), 200);
    struct gate_report report = stage_dismiss(&t);
    assert_true(report.latched);
    assert_non_null(strstr(report.why, "before the record"));
    gate_report_release(&report);
    stage_close(&t);
}

/* A record of somebody else's, made past the gate. */
static void plant_record(struct stage *t, int revision, const char *release)
{
    _cleanup_(free_cstr)
    char *body = record_body(t, revision, release);
    call_do(
        &t->scene->client,
        &(struct call){.method = "POST", .gvr = &KUBE_SECRETS, .ns = t->scene->ns, .body = body});
}

static void whoever_makes_the_revision_second_is_shut_out(void **state)
{
    struct stage t;
    stage_open(&t, *state, "second", true);
    admit(&t, true, 0);
    plant_record(&t, 1, "cGVyc29u");
    assert_int_equal(post_record(&t, 1, "eA=="), 409);
    assert_int_equal(atomic_load(&t.child.sigkill), 1);
    assert_int_equal(post_config_map(&t, "second", ""), 409);
    assert_false(exists(&t, "second"));
    struct gate_report report = stage_dismiss(&t);
    assert_non_null(strstr(report.why, "somebody else made this revision"));
    gate_report_release(&report);
    stage_close(&t);
}

static void label_record(struct stage *t, int revision)
{
    _cleanup_(free_cstr)
    char *name = xasprintf("sh.helm.release.v1.%s.v%d", t->name, revision);
    call_do(&t->scene->client, &(struct call){.method = "PATCH",
                                              .gvr = &KUBE_SECRETS,
                                              .ns = t->scene->ns,
                                              .name = name,
                                              .type = KUBE_MERGE_PATCH,
                                              .body = "{'metadata': {'labels': {'backup': 'x'}}}"});
}

static void an_older_record_keeps_its_claim_and_a_relabelling_costs_nothing(void **state)
{
    struct stage t;
    stage_open(&t, *state, "older", true);
    plant_record(&t, 1, "b25l");
    struct helmrec_meta *meta = look_meta(&t, 1);
    struct fence_claim claim = {.digest = (char *)(uintptr_t) "1:old",
                                .owner = (char *)(uintptr_t) "uid-1",
                                .owner_name = (char *)(uintptr_t) "ns/name",
                                .epoch = 1};
    admit(&t, true, 1);
    gate_add_record(t.run, 1, meta->resource_version, &claim);
    helmrec_meta_free(meta);
    assert_int_equal(ask(&t, "GET", "secrets?labelSelector=owner%3Dhelm", NULL, NULL), 200);
    assert_int_equal(post_record(&t, 2, "dHdv"), 201);
    label_record(&t, 1);
    label_record(&t, 2);
    assert_int_equal(put_record(&t, 1, "c3VwZXJzZWRlZA=="), 200);
    assert_int_equal(put_record(&t, 2, "dHdvLWRlcGxveWVk"), 200);
    meta = look_meta(&t, 1);
    assert_string_equal(meta->digest, "1:old");
    assert_int_equal(meta->epoch, 1);
    helmrec_meta_free(meta);
    assert_false(gate_is_latched(t.run));
    stage_close(&t);
}

static void a_record_that_somebody_rewrote_is_not_overwritten(void **state)
{
    struct stage t;
    stage_open(&t, *state, "rewritten", true);
    admit(&t, true, 0);
    assert_int_equal(post_record(&t, 1, "b25l"), 201);
    _cleanup_(free_cstr)
    char *name = xasprintf("sh.helm.release.v1.%s.v1", t.name);
    call_do(&t.scene->client, &(struct call){.method = "PATCH",
                                             .gvr = &KUBE_SECRETS,
                                             .ns = t.scene->ns,
                                             .name = name,
                                             .type = KUBE_MERGE_PATCH,
                                             .body = "{'data': {'release': 'cGVyc29u'}}"});
    assert_int_equal(put_record(&t, 1, "b3Vycw=="), 409);
    _cleanup_json_ json_t *record = look_record(&t, 1);
    assert_string_equal(jsonx_str(record, "data.release", ""), "cGVyc29u");
    assert_int_equal(atomic_load(&t.child.sigkill), 1);
    stage_close(&t);
}

static void a_lock_that_a_hand_took_stops_the_next_record(void **state)
{
    struct stage t;
    stage_open(&t, *state, "hand", false); /* no heartbeat: nobody has noticed yet */
    admit(&t, true, 0);
    patch_status(&t.scene->client, t.scene->ns, t.name,
                 "{'status': {'conditions': [{'type': 'Released', 'status': 'False', 'reason': "
                 "'Hand', 'message': '', 'lastTransitionTime': '2026-01-01T00:00:00Z'}]}}");
    assert_int_equal(post_record(&t, 1, "eA=="), 409);
    assert_null(look_record(&t, 1));
    assert_true(held_is_lost(t.held));
    assert_int_equal(atomic_load(&t.child.sigkill) > 0, 1);
    stage_close(&t);
}

static bool is_lost(void *ctx)
{
    return held_is_lost(ctx);
}

static void a_lease_that_is_not_renewed_shuts_the_gate(void **state)
{
    struct stage t;
    stage_open(&t, *state, "out", false);
    admit(&t, true, 0);
    assert_int_equal(post_record(&t, 1, "eA=="), 201);
    assert_true(wait_for(is_lost, t.held));
    assert_int_equal(post_config_map(&t, "out", ""), 409);
    assert_false(exists(&t, "out"));
    assert_int_equal(put_record(&t, 1, "eQ=="), 409);
    stage_close(&t);
}

static void too_large_a_body_is_told_in_the_api_servers_words(void **state)
{
    struct stage t;
    stage_open(&t, *state, "large", true);
    admit(&t, true, 0);
    char *release = xmalloc((4U << 20) + 1);
    memset(release, 'A', 4U << 20);
    release[4U << 20] = '\0';
    _cleanup_(free_cstr)
    char *body = record_body(&t, 1, release);
    char *said = NULL;
    assert_int_equal(ask(&t, "POST", "secrets", body, &said), 413);
    assert_non_null(strstr(said, "limit is 3145728"));
    free(said);
    release[2400000] = '\0'; /* over etcd's limit: the server's own word, and nothing latches */
    _cleanup_(free_cstr)
    char *less = record_body(&t, 1, release);
    assert_true(ask(&t, "POST", "secrets", less, NULL) >= 400);
    assert_false(gate_is_latched(t.run));
    release[900000] = '\0';
    _cleanup_(free_cstr)
    char *good = record_body(&t, 1, release);
    assert_int_equal(ask(&t, "POST", "secrets", good, NULL), 201);
    free(release);
    stage_close(&t);
}

/* ---- streams ---- */

struct watcher {
    struct stage *t;
    atomic_bool seen, ended;
};

static bool on_watch(void *ctx, const char *bytes, size_t len)
{
    struct watcher *w = ctx;
    if (memmem(bytes, len, "watched-one", strlen("watched-one")) != NULL) {
        atomic_store(&w->seen, true);
    }
    return true;
}

static void *watch_main(void *arg)
{
    struct watcher *w = arg;
    _cleanup_(free_cstr)
    char *url = xasprintf("http://127.0.0.1:%d/api/v1/namespaces/%s/configmaps?watch=true",
                          gate_port(w->t->gate), w->t->scene->ns);
    const struct http_header headers[] = {{"Impersonate-User", w->t->token}};
    struct http_request req = {.method = "GET",
                               .url = url,
                               .headers = headers,
                               .header_count = 1,
                               .deadline = mono_add_ms(clock_mono(clock_os()), 2 * WAIT_MS),
                               .on_data = on_watch,
                               .ctx = w};
    struct http_response res = HTTP_RESPONSE_INIT;
    struct err err = ERR_INIT;
    (void)transport_perform(w->t->wire, &req, &res, &err);
    http_response_release(&res);
    atomic_store(&w->ended, true);
    return NULL;
}

static bool has_seen(void *ctx)
{
    struct watcher *w = ctx;
    return atomic_load(&w->seen);
}

static bool has_ended(void *ctx)
{
    struct watcher *w = ctx;
    return atomic_load(&w->ended);
}

static void a_watch_streams_and_ends_with_its_run(void **state)
{
    struct stage t;
    stage_open(&t, *state, "watch", true);
    admit(&t, true, 0);
    struct watcher w = {.t = &t};
    pthread_t thread;
    must(pthread_create(&thread, NULL, watch_main, &w) == 0);
    assert_int_equal(post_record(&t, 1, "eA=="), 201);
    assert_int_equal(post_config_map(&t, "watched-one", ""), 201);
    assert_true(wait_for(has_seen, &w));
    assert_false(atomic_load(&w.ended));
    struct gate_report report = stage_dismiss(&t);
    gate_report_release(&report);
    assert_true(wait_for(has_ended, &w));
    must(pthread_join(thread, NULL) == 0);
    stage_close(&t);
}

/* ---- real helm ---- */

/* helm's exit status; what it said into *ret_out. */
static int run_helm(struct stage *t, const char *major, const char *verb, const char *const *more,
                    char **ret_out)
{
    char dir[] = "/tmp/gate_test.XXXXXX";
    must(mkdtemp(dir) != NULL);
    const char *tools = getenv("TOOLS");
    _cleanup_(free_cstr)
    char *program = xasprintf("%s/%s", tools != NULL ? tools : "build/bin", major);
    char *absolute = realpath(program, NULL);
    must(absolute != NULL);
    _cleanup_(free_cstr)
    char *config = xasprintf("%s/config", dir);
    _cleanup_(free_cstr)
    char *env_config = xasprintf("KUBECONFIG=%s", config);
    _cleanup_(free_cstr)
    char *env_home = xasprintf("HOME=%s", dir);
    struct err err = ERR_INIT;
    assert_int_equal(gate_write_kubeconfig(t->run, config, &err), ERR_NONE);
    const char *argv[12] = {absolute, verb, t->name, "-n", t->scene->ns};
    for (size_t i = 5; *more != NULL; i++) {
        argv[i] = *more++;
    }
    const char *envp[] = {env_config, env_home, "PATH=/usr/bin:/bin", NULL};
    struct proc_spec spec = {.argv = argv,
                             .envp = envp,
                             .output_max = 65536,
                             .deadline = mono_add_ms(clock_mono(clock_os()), 120000)};
    struct child *child = NULL;
    struct proc_result result = PROC_RESULT_INIT;
    assert_int_equal(proc_start(proc_posix(), &spec, &child, &err), ERR_NONE);
    assert_int_equal(proc_wait(proc_posix(), child, &result, &err), ERR_NONE);
    proc_free(proc_posix(), child);
    free(absolute);
    int status = result.exit_code;
    *ret_out = xasprintf("%s%s", buf_str(&result.out), buf_str(&result.err));
    proc_result_release(&result);
    _cleanup_(free_cstr)
    char *rm = xasprintf("rm -rf %s", dir);
    must(system(rm) == 0);
    return status;
}

static void real_helm_installs_and_tests_with_logs(void **state)
{
    static const char *const majors[] = {"helm3", "helm4"};
    for (size_t i = 0; i < 2; i++) {
        struct stage t;
        _cleanup_(free_cstr)
        char *name = xasprintf("real-%s", majors[i]);
        _cleanup_(free_cstr)
        char *out = NULL;
        char *chart = realpath("test/charts/podinfo-like", NULL);
        must(chart != NULL);
        stage_open(&t, *state, name, true);
        admit(&t, true, 0);
        const char *install[] = {chart, "--wait", NULL};
        if (run_helm(&t, majors[i], "install", install, &out) != 0) {
            fail_msg("%s install: %s", majors[i], out);
        }
        free_cstr(&out);
        struct gate_report report = stage_dismiss(&t);
        assert_int_equal(report.created, 3);
        gate_report_release(&report);
        struct helmrec_meta *meta = look_meta(&t, 1);
        assert_int_equal(meta->status, HELMREC_DEPLOYED);
        struct fence_claim claim = {.digest = meta->digest,
                                    .owner = meta->owner,
                                    .owner_name = meta->owner_name,
                                    .epoch = meta->epoch};
        admit(&t, false, 1);
        gate_add_record(t.run, 1, meta->resource_version, &claim);
        helmrec_meta_free(meta);
        const char *test[] = {"--logs", NULL};
        int status = run_helm(&t, majors[i], "test", test, &out);
        print_message("    %s test --logs: status %d: %s\n", majors[i], status, out);
        assert_false(gate_is_latched(t.run));
        assert_non_null(strstr(out, "Phase:          Succeeded"));
        /* Where no kubelet is, the API server says that it finds none, and helm passes that on: the
         * words must be those, not the gate's. */
        assert_int_equal(status == 0, strstr(out, "POD LOGS: ") != NULL);
        assert_true(status == 0 || strstr(out, "/containerLogs/") != NULL);
        meta = look_meta(&t, 1);
        assert_string_equal(meta->digest, DIGEST); /* stock helm's PUT alone would have wiped it */
        helmrec_meta_free(meta);
        free(chart);
        stage_close(&t);
    }
}

/* ---- a slow reader ---- */

static int64_t rss_kib(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    long pages = 0;
    long resident = 0;
    must(f != NULL && fscanf(f, "%ld %ld", &pages, &resident) == 2);
    (void)fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* 320 MB if all was held. The sanitizers keep a shadow of each thread and of what was freed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW_READERS_KIB 200000
#else
#define SLOW_READERS_KIB 32768
#endif

/* 20 MB of ConfigMaps, asked for by 16 readers that take nothing. */
static void readers_that_do_not_read_cost_no_memory(void **state)
{
    struct stage t;
    stage_open(&t, *state, "slow", true);
    admit(&t, true, 0);
    assert_int_equal(post_record(&t, 1, "eA=="), 201);
    char *text = xmalloc(1U << 20);
    memset(text, 'x', 1U << 20);
    text[(1U << 20) - 200] = '\0';
    for (int i = 0; i < 20; i++) {
        _cleanup_(free_cstr)
        char *name = xasprintf("big-%d", i);
        _cleanup_(free_cstr)
        char *body = xasprintf("{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': "
                               "'%s'}, 'data': {'a': '%s'}}",
                               name, text);
        assert_int_equal(ask(&t, "POST", "configmaps", body, NULL), 201);
    }
    free(text);
    int64_t before = rss_kib();
    int fds[16];
    for (int i = 0; i < 16; i++) {
        struct sockaddr_in addr = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)gate_port(t.gate)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        must(fds[i] >= 0 && connect(fds[i], (struct sockaddr *)&addr, sizeof(addr)) == 0);
        _cleanup_(free_cstr)
        char *request = xasprintf("GET /api/v1/namespaces/%s/configmaps HTTP/1.1\r\nHost: x\r\n"
                                  "Impersonate-User: %s\r\nAccept: application/json\r\n\r\n",
                                  t.scene->ns, t.token);
        must(write(fds[i], request, strlen(request)) == (ssize_t)strlen(request));
        char first[16]; /* the reply is under way */
        must(read(fds[i], first, sizeof(first)) > 0);
    }
    (void)clock_sleep_until(clock_os(), mono_add_ms(clock_mono(clock_os()), 1000), NULL);
    int64_t grown = rss_kib() - before;
    print_message("    16 readers of 20 MB that read nothing: %lld KiB\n", (long long)grown);
    assert_true(grown < SLOW_READERS_KIB);
    assert_int_equal(ask(&t, "GET", "/version", NULL, NULL), 200); /* the others go on */
    for (int i = 0; i < 16; i++) {
        (void)close(fds[i]);
    }
    stage_close(&t);
}

/* ---- many at once ---- */

#define CHILDREN 32

struct busy {
    struct stage *t;
    atomic_int bad;
};

static void *busy_main(void *arg)
{
    struct busy *b = arg;
    for (int i = 0; i < 5; i++) {
        bool good = ask(b->t, "GET", "configmaps", NULL, NULL) == 200 &&
                    ask(b->t, "GET", "/openapi/v3", NULL, NULL) == 200 &&
                    ask(b->t, "GET", "/api/v1", NULL, NULL) == 200;
        atomic_fetch_add(&b->bad, !good);
    }
    return NULL;
}

static void many_readers_at_once_all_get_their_answers(void **state)
{
    struct stage t;
    stage_open(&t, *state, "busy", true);
    admit(&t, true, 0);
    struct busy busy = {.t = &t};
    pthread_t threads[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        must(pthread_create(&threads[i], NULL, busy_main, &busy) == 0);
    }
    for (int i = 0; i < CHILDREN; i++) {
        must(pthread_join(threads[i], NULL) == 0);
    }
    assert_int_equal(atomic_load(&busy.bad), 0);
    stage_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stranger_gets_nothing),
        cmocka_unit_test(an_upgrade_passes_and_its_record_says_whose_it_is),
        cmocka_unit_test(nothing_comes_before_the_record),
        cmocka_unit_test(whoever_makes_the_revision_second_is_shut_out),
        cmocka_unit_test(an_older_record_keeps_its_claim_and_a_relabelling_costs_nothing),
        cmocka_unit_test(a_record_that_somebody_rewrote_is_not_overwritten),
        cmocka_unit_test(a_lock_that_a_hand_took_stops_the_next_record),
        cmocka_unit_test(a_lease_that_is_not_renewed_shuts_the_gate),
        cmocka_unit_test(too_large_a_body_is_told_in_the_api_servers_words),
        cmocka_unit_test(a_watch_streams_and_ends_with_its_run),
        cmocka_unit_test(real_helm_installs_and_tests_with_logs),
        cmocka_unit_test(readers_that_do_not_read_cost_no_memory),
        cmocka_unit_test(many_readers_at_once_all_get_their_answers),
    };
    return cmocka_run_group_tests(tests, scene_open, scene_close);
}
