/* The client and the reflector on a real API server: what its replies mean to us, lists, watches,
 * and its clock. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "cache/cache.h"
#include "fixture.h"
#include "reflector/reflector.h"

#define MANY  520 /* more than one page of a list (LIMIT_LIST_PAGE) */
#define TURNS 8   /* requests at once */

/* ---- objects ---- */

static void an_object_lives_from_create_to_delete(void **state)
{
    struct scene *s = *state;
    struct call one = {.method = "GET", .ns = s->ns, .name = "life"};
    assert_int_equal(call_kind(&s->client, &one), ERR_NOT_FOUND);
    _cleanup_json_ json_t *made = create(&s->client, s->ns, "life");
    _cleanup_json_ json_t *got = call_ok(&s->client, &one);
    assert_true(jsonx_equal(made, got));
    assert_string_not_equal(jsonx_str(got, "metadata.uid", ""), "");
    struct err err = ERR_INIT;
    assert_int_equal(call(&s->client,
                          &(struct call){.method = "POST",
                                         .ns = s->ns,
                                         .body = "{'apiVersion': 'helm.fluxcd.io/v1', 'kind': "
                                                 "'HelmRelease', 'metadata': {'name': 'life'}, "
                                                 "'spec': {'chart': {}}}"},
                          NULL, &err),
                     ERR_EXISTS);
    assert_int_equal(err.code, 409);
    one.method = "DELETE";
    call_do(&s->client, &one);
    one.method = "GET";
    assert_int_equal(call(&s->client, &one, NULL, &err), ERR_NOT_FOUND);
    assert_int_equal(err.code, 404);
}

static void what_the_schema_forbids_is_invalid_and_says_why(void **state)
{
    struct scene *s = *state;
    struct err err = ERR_INIT;
    assert_int_equal(
        call(&s->client,
             &(struct call){.method = "POST",
                            .ns = s->ns,
                            .body = "{'apiVersion': 'helm.fluxcd.io/v1', 'kind': 'HelmRelease', "
                                    "'metadata': {'name': 'bad'}, 'spec': {'chart': {'name': 5}}}"},
             NULL, &err),
        ERR_INVALID);
    assert_int_equal(err.code, 422);
    assert_non_null(strstr(err.msg, "spec.chart.name"));
    assert_int_equal(
        call_kind(&s->client, &(struct call){.method = "GET",
                                             .name = "x",
                                             .gvr = &(struct kube_gvr){"helm.fluxcd.io", "v9",
                                                                       "helmreleases", true},
                                             .ns = s->ns}),
        ERR_NOT_FOUND);
}

static void numbers_and_text_come_back_as_they_were_sent(void **state)
{
    struct scene *s = *state;
    json_decref(create(&s->client, s->ns, "values"));
    const char *body = "{'spec': {'values': {'big': 9007199254740993, 'least': "
                       "-9223372036854775808, 'half': 0.5, 'zero': 0, 'text': '\xc3\xa4\xf0\x9f\x98"
                       "\x80 \\\\n', 'none': {}, 'list': [1, 'a', false]}}}";
    struct call patch = {
        .method = "PATCH", .ns = s->ns, .name = "values", .type = KUBE_MERGE_PATCH, .body = body};
    _cleanup_json_ json_t *got = call_ok(&s->client, &patch);
    _cleanup_json_ json_t *sent = json_of(body);
    assert_true(jsonx_equal(jsonx_at(sent, "spec.values"), jsonx_at(got, "spec.values")));
    assert_int_equal(jsonx_int(got, "spec.values.big", 0), INT64_C(9007199254740993));
}

/* ---- patches ---- */

static void a_merge_patch_with_an_old_version_is_a_conflict(void **state)
{
    struct scene *s = *state;
    _cleanup_json_ json_t *made = create(&s->client, s->ns, "stale");
    patch_status(&s->client, s->ns, "stale", "{'status': {'phase': 'Failed'}}");
    _cleanup_(free_cstr)
    char *body =
        xasprintf("{'metadata': {'resourceVersion': '%s'}, 'status': {'phase': 'Succeeded'}}",
                  jsonx_str(made, "metadata.resourceVersion", ""));
    struct call patch = {.method = "PATCH",
                         .ns = s->ns,
                         .name = "stale",
                         .subresource = "status",
                         .type = KUBE_MERGE_PATCH,
                         .body = body};
    struct err err = ERR_INIT;
    assert_int_equal(call(&s->client, &patch, NULL, &err), ERR_CONFLICT);
    assert_int_equal(err.code, 409);
    _cleanup_json_ json_t *after = get(&s->client, s->ns, "stale");
    assert_string_equal(jsonx_str(after, "status.phase", ""), "Failed");
}

static void a_json_patch_happens_only_if_its_tests_hold(void **state)
{
    static const struct {
        const char *name, *body;
        enum err_kind kind;
        int code;
    } rows[] = {
        {"another value", "[{'op': 'test', 'path': '/status/phase', 'value': 'Succeeded'}]",
         ERR_INVALID, 422},
        {"nothing there", "[{'op': 'test', 'path': '/status/revision', 'value': '1'}]", ERR_INVALID,
         422},
        {"no such element",
         "[{'op': 'test', 'path': '/status/conditions/5/type', 'value': 'Ready'}]", ERR_INVALID,
         422},
        {"a missing member tests as null",
         "[{'op': 'test', 'path': '/status/revision', 'value': null}]", ERR_NONE, 0},
        {"what stands there", "[{'op': 'test', 'path': '/status/phase', 'value': 'Failed'}]",
         ERR_NONE, 0},
        {"no patch at all", "{'status': {}}", ERR_INVALID, 400},
    };
    struct scene *s = *state;
    json_decref(create(&s->client, s->ns, "tests"));
    patch_status(&s->client, s->ns, "tests", "{'status': {'phase': 'Failed'}}");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct err err = ERR_INIT;
        enum err_kind kind = call(&s->client,
                                  &(struct call){.method = "PATCH",
                                                 .ns = s->ns,
                                                 .name = "tests",
                                                 .subresource = "status",
                                                 .type = KUBE_JSON_PATCH,
                                                 .body = rows[i].body},
                                  NULL, &err);
        if (kind != rows[i].kind || err.code != rows[i].code) {
            fail_msg("%s: %s, HTTP %d, %s", rows[i].name, err_kind_name(kind), err.code, err.msg);
        }
    }
}

static void the_status_and_the_spec_do_not_write_each_other(void **state)
{
    struct scene *s = *state;
    json_decref(create(&s->client, s->ns, "halves"));
    patch_status(&s->client, s->ns, "halves",
                 "{'spec': {'timeout': 5}, 'status': {'phase': 'Failed'}}");
    _cleanup_json_ json_t *status = get(&s->client, s->ns, "halves");
    assert_int_equal(jsonx_int(status, "spec.timeout", -1), -1);
    assert_int_equal(jsonx_int(status, "metadata.generation", 0), 1);
    call_do(&s->client, &(struct call){.method = "PATCH",
                                       .ns = s->ns,
                                       .name = "halves",
                                       .type = KUBE_MERGE_PATCH,
                                       .body = "{'spec': {'timeout': 5}, 'status': {'phase': "
                                               "'Succeeded'}}"});
    _cleanup_json_ json_t *spec = get(&s->client, s->ns, "halves");
    assert_int_equal(jsonx_int(spec, "spec.timeout", -1), 5);
    assert_int_equal(jsonx_int(spec, "metadata.generation", 0), 2);
    assert_string_equal(jsonx_str(spec, "status.phase", ""), "Failed");
}

/* ---- who we are ---- */

static void an_unknown_token_is_denied(void **state)
{
    struct scene *s = *state;
    char path[] = "/tmp/kube_test.XXXXXX";
    int fd = mkstemp(path);
    must(fd >= 0);
    FILE *file = fdopen(fd, "w");
    must(file != NULL);
    must(fprintf(file,
                 "{\"apiVersion\": \"v1\", \"kind\": \"Config\", \"current-context\": \"c\","
                 "\"clusters\": [{\"name\": \"c\", \"cluster\": {\"server\": \"%s\","
                 "\"insecure-skip-tls-verify\": true}}],"
                 "\"users\": [{\"name\": \"u\", \"user\": {\"token\": \"nobody\"}}],"
                 "\"contexts\": [{\"name\": \"c\", \"context\": {\"cluster\": \"c\", \"user\": "
                 "\"u\"}}]}\n",
                 kube_server(s->client.kube)) > 0);
    must(fclose(file) == 0);
    struct client stranger;
    client_open_at(&stranger, path);
    struct err err = ERR_INIT;
    assert_int_equal(
        call(&stranger, &(struct call){.method = "GET", .ns = s->ns, .name = "x"}, NULL, &err),
        ERR_DENIED);
    assert_int_equal(err.code, 401);
    client_close(&stranger);
    (void)unlink(path);
}

/* ---- time ---- */

static void the_servers_clock_is_inside_the_interval_that_we_give(void **state)
{
    struct scene *s = *state;
    struct srvtime before, after;
    assert_true(kube_server_time(s->client.kube, &before));
    _cleanup_json_ json_t *made = create(&s->client, s->ns, "now"); /* stamped by the server */
    assert_true(kube_server_time(s->client.kube, &after));
    int64_t made_ns = 0;
    assert_true(rfc3339_parse(jsonx_str(made, "metadata.creationTimestamp", ""), &made_ns));
    /* A stamp has whole seconds. */
    assert_true(made_ns + NS_PER_SEC >= before.earliest_ns);
    assert_true(made_ns <= after.latest_ns);
    /* And it is narrow enough to be of use: Date's own second, and the way there. */
    assert_true(after.latest_ns - after.earliest_ns < 10 * NS_PER_SEC);
    struct client fresh;
    client_open(&fresh);
    assert_false(kube_server_time(fresh.kube, &after));
    assert_int_equal(call_kind(&fresh, &(struct call){.method = "GET", .ns = s->ns, .name = "no"}),
                     ERR_NOT_FOUND);
    assert_true(kube_server_time(fresh.kube, &after)); /* a 404 tells the time as well */
    client_close(&fresh);
}

/* ---- metadata alone ---- */

static void metadata_comes_without_what_it_is_about(void **state)
{
    struct scene *s = *state;
    call_do(&s->client, &(struct call){.method = "POST",
                                       .gvr = &KUBE_SECRETS,
                                       .ns = s->ns,
                                       .body = "{'apiVersion': 'v1', 'kind': 'Secret', 'metadata': "
                                               "{'name': 'hidden', 'labels': {'owner': 'helm'}}, "
                                               "'data': {'release': 'c2VjcmV0'}}"});
    struct kube_request list = {.method = "GET",
                                .gvr = &KUBE_SECRETS,
                                .ns = s->ns,
                                .query = "labelSelector=owner%3Dhelm",
                                .accept = KUBE_ACCEPT_METADATA_LIST,
                                .raw_body = true,
                                .deadline = soon()};
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_do(s->client.kube, &list, &reply, &err), ERR_NONE);
    assert_non_null(strstr(reply.text, "hidden"));
    assert_null(strstr(reply.text, "c2VjcmV0"));
    kube_reply_release(&reply);
    struct kube_request one = {.method = "GET",
                               .gvr = &KUBE_SECRETS,
                               .ns = s->ns,
                               .name = "hidden",
                               .accept = KUBE_ACCEPT_METADATA,
                               .deadline = soon()};
    assert_int_equal(kube_do(s->client.kube, &one, &reply, &err), ERR_NONE);
    assert_string_equal(jsonx_str(reply.object, "kind", ""), "PartialObjectMetadata");
    assert_null(json_object_get(reply.object, "data"));
    kube_reply_release(&reply);
    /* Whatever answers with something else is not read. */
    struct kube_request other = {.method = "GET",
                                 .raw_path = "/apis",
                                 .accept = KUBE_ACCEPT_METADATA_LIST,
                                 .deadline = soon()};
    assert_int_not_equal(kube_do(s->client.kube, &other, &reply, &err), ERR_NONE);
}

/* ---- many at once ---- */

static void many_requests_at_once_each_get_their_own_reply(void **state)
{
    struct scene *s = *state;
    struct kube_request requests[TURNS];
    struct kube_call calls[TURNS] = {0};
    char names[TURNS][16];
    for (size_t i = 0; i < TURNS; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "many-%zu", i);
        if (i % 2 == 0) {
            json_decref(create(&s->client, s->ns, names[i]));
        }
        requests[i] = (struct kube_request){.method = "GET",
                                            .gvr = &KUBE_HELMRELEASES,
                                            .ns = s->ns,
                                            .name = names[i],
                                            .deadline = soon()};
        calls[i].request = &requests[i];
    }
    kube_do_many(s->client.kube, calls, TURNS);
    for (size_t i = 0; i < TURNS; i++) {
        assert_int_equal(calls[i].result, i % 2 == 0 ? ERR_NONE : ERR_NOT_FOUND);
        if (calls[i].result == ERR_NONE) {
            assert_string_equal(jsonx_str(calls[i].reply.object, "metadata.name", ""), names[i]);
            kube_reply_release(&calls[i].reply);
        }
    }
}

/* ---- watches ---- */

struct stream {
    struct buf text;
    /* Called once, with the first bytes; it must use a client of its own. */
    void (*at_first)(void *ctx);
    void *ctx;
};

static bool collect(void *ctx, const char *bytes, size_t len)
{
    struct stream *st = ctx;
    if (st->text.len == 0 && st->at_first != NULL) {
        st->at_first(st->ctx);
    }
    buf_add(&st->text, bytes, len);
    return true;
}

static enum err_kind watch(struct client *c, const char *ns, const char *query, struct stream *st,
                           struct err *err)
{
    struct kube_request req = {.method = "GET",
                               .gvr = &KUBE_HELMRELEASES,
                               .ns = ns,
                               .query = query,
                               .deadline = MONO_NEVER,
                               .idle_ms = CALL_MS,
                               .on_data = collect,
                               .ctx = st};
    struct kube_reply reply = KUBE_REPLY_INIT;
    return kube_do(c->kube, &req, &reply, err);
}

/* What happens elsewhere is no event of a watch, and yet it moves what "now" is. */
static void happen_elsewhere(void *ctx)
{
    const struct scene *s = ctx;
    struct client other;
    client_open(&other);
    json_decref(create(&other, "default", s->ns));
    call_do(&other, &(struct call){.method = "DELETE", .ns = "default", .name = s->ns});
    client_close(&other);
}

static void a_watch_ends_as_asked_and_says_by_bookmark_where_it_stands(void **state)
{
    struct scene *s = *state;
    _cleanup_json_ json_t *made = create(&s->client, s->ns, "marked");
    json_decref(create(&s->client, s->ns, "marked-next"));
    _cleanup_(free_cstr)
    char *query =
        xasprintf("watch=true&allowWatchBookmarks=true&timeoutSeconds=4&resourceVersion=%s",
                  jsonx_str(made, "metadata.resourceVersion", ""));
    struct stream st = {.text = BUF_INIT(1 << 20), .at_first = happen_elsewhere, .ctx = s};
    struct err err = ERR_INIT;
    enum err_kind kind = watch(&s->client, s->ns, query, &st, &err);
    bool added = strstr(buf_str(&st.text), "marked-next") != NULL;
    bool marked = strstr(buf_str(&st.text), "\"type\":\"BOOKMARK\"") != NULL;
    bool strange = strstr(buf_str(&st.text), "\"namespace\":\"default\"") != NULL;
    buf_release(&st.text);
    assert_int_equal(kind, ERR_NONE);
    assert_true(added);
    assert_true(marked);
    assert_false(strange);
}

static void a_version_that_is_too_old_is_gone(void **state)
{
    struct scene *s = *state;
    struct stream st = {.text = BUF_INIT(1 << 20)};
    struct err err = ERR_INIT;
    enum err_kind kind =
        watch(&s->client, s->ns, "watch=true&timeoutSeconds=3&resourceVersion=1", &st, &err);
    /* Either by the reply's status, or by an ERROR event; the reflector takes both. */
    bool gone = kind == ERR_GONE || (strstr(buf_str(&st.text), "\"ERROR\"") != NULL &&
                                     strstr(buf_str(&st.text), "\"code\":410") != NULL);
    if (!gone) {
        fail_msg("%s: %s %s", err_kind_name(kind), err.msg, buf_str(&st.text));
    }
    buf_release(&st.text);
}

/* ---- the reflector ---- */

struct mirror {
    struct reflector_options options;
    struct reflector *reflector;
    struct cache *cache;
    struct cancel cancel;
    pthread_t thread;
    atomic_int added, modified, deleted;
    char want_key[128]; /* for wait_for */
    char want_phase[32];
    size_t want_count;
};

static void on_event(void *ctx, enum reflector_event event, struct snap *before, struct snap *after)
{
    struct mirror *m = ctx;
    must((before == NULL) == (event == REFLECTOR_ADDED));
    must((after == NULL) == (event == REFLECTOR_DELETED));
    atomic_fetch_add(event == REFLECTOR_ADDED      ? &m->added
                     : event == REFLECTOR_MODIFIED ? &m->modified
                                                   : &m->deleted,
                     1);
}

static void *mirror_main(void *arg)
{
    reflector_run(arg);
    return NULL;
}

static bool is_synced(void *ctx)
{
    return cache_is_synced(((struct mirror *)ctx)->cache);
}

static void mirror_open(struct mirror *m, struct scene *s, const struct kube_gvr *gvr,
                        const char *label_selector, bool metadata_only)
{
    *m = (struct mirror){.cache = cache_new(&(struct cache_options){.index_of = NULL})};
    cancel_init(&m->cancel);
    m->reflector = reflector_new(&(struct reflector_options){.kube = s->client.kube,
                                                             .clock = clock_os(),
                                                             .rng = rng_os(),
                                                             .gvr = gvr,
                                                             .ns = s->ns,
                                                             .label_selector = label_selector,
                                                             .metadata_only = metadata_only,
                                                             .cache = m->cache,
                                                             .cancel = &m->cancel,
                                                             .on_event = on_event,
                                                             .ctx = m,
                                                             .name = "test"});
    must(pthread_create(&m->thread, NULL, mirror_main, m->reflector) == 0);
    assert_true(wait_for(is_synced, m));
}

static void mirror_close(struct mirror *m)
{
    struct mono began = clock_mono(clock_os());
    cancel_raise(&m->cancel);
    must(pthread_join(m->thread, NULL) == 0);
    /* Long before the watch would have ended by itself. */
    assert_true(mono_diff_ms(clock_mono(clock_os()), began) < WAIT_MS);
    reflector_free(m->reflector);
    cache_free(m->cache);
    cancel_release(&m->cancel);
}

static bool has_phase(void *ctx)
{
    struct mirror *m = ctx;
    struct snap *snap = cache_get(m->cache, m->want_key);
    bool has =
        snap != NULL && strcmp(jsonx_str(snap->object, "status.phase", ""), m->want_phase) == 0;
    snap_unref(snap);
    return has;
}

static bool is_absent(void *ctx)
{
    struct mirror *m = ctx;
    struct snap *snap = cache_get(m->cache, m->want_key);
    snap_unref(snap);
    return snap == NULL;
}

static bool has_count(void *ctx)
{
    struct mirror *m = ctx;
    return cache_count(m->cache) == m->want_count;
}

static void want(struct mirror *m, const struct scene *s, const char *name, const char *phase)
{
    (void)snprintf(m->want_key, sizeof(m->want_key), "%s/%s", s->ns, name);
    (void)snprintf(m->want_phase, sizeof(m->want_phase), "%s", phase);
}

static bool is_live(struct mirror *m)
{
    struct snap *snap = cache_get(m->cache, m->want_key);
    assert_non_null(snap);
    bool live = snap->live;
    assert_true(mono_before(snap->seen, clock_mono(clock_os())));
    snap_unref(snap);
    return live;
}

static void the_cache_follows_the_server(void **state)
{
    struct scene *s = *state;
    struct mirror m;
    json_decref(create(&s->client, s->ns, "listed"));
    mirror_open(&m, s, &KUBE_HELMRELEASES, NULL, false);
    want(&m, s, "listed", "");
    assert_true(has_phase(&m));
    assert_false(is_live(&m)); /* it may have stood there for long */
    int added = atomic_load(&m.added);
    assert_int_equal(added, (int)cache_count(m.cache));

    json_decref(create(&s->client, s->ns, "watched"));
    want(&m, s, "watched", "");
    assert_true(wait_for(has_phase, &m));
    assert_true(is_live(&m));
    assert_int_equal(atomic_load(&m.added), added + 1);

    patch_status(&s->client, s->ns, "watched", "{'status': {'phase': 'Failed'}}");
    want(&m, s, "watched", "Failed");
    assert_true(wait_for(has_phase, &m));
    assert_true(atomic_load(&m.modified) >= 1);

    patch_status(&s->client, s->ns, "listed", "{'status': {'phase': 'Failed'}}");
    want(&m, s, "listed", "Failed");
    assert_true(wait_for(has_phase, &m));
    assert_true(is_live(&m)); /* seen to change */

    call_do(&s->client, &(struct call){.method = "DELETE", .ns = s->ns, .name = "watched"});
    want(&m, s, "watched", "");
    assert_true(wait_for(is_absent, &m));
    assert_int_equal(atomic_load(&m.deleted), 1);
    assert_true(reflector_silence_ms(m.reflector) < WAIT_MS);
    mirror_close(&m);
}

static void metadata_is_watched_without_what_it_is_about(void **state)
{
    struct scene *s = *state;
    struct mirror m;
    mirror_open(&m, s, &KUBE_SECRETS, "owner=helm,round=two", true);
    assert_int_equal(cache_count(m.cache), 0);
    call_do(&s->client, &(struct call){.method = "POST",
                                       .gvr = &KUBE_SECRETS,
                                       .ns = s->ns,
                                       .body = "{'apiVersion': 'v1', 'kind': 'Secret', 'metadata': "
                                               "{'name': 'other'}, 'data': {'a': 'Yg=='}}"});
    call_do(&s->client, &(struct call){.method = "POST",
                                       .gvr = &KUBE_SECRETS,
                                       .ns = s->ns,
                                       .body = "{'apiVersion': 'v1', 'kind': 'Secret', 'metadata': "
                                               "{'name': 'record', 'labels': {'owner': 'helm', "
                                               "'round': 'two'}}, 'data': {'a': 'Yg=='}}"});
    want(&m, s, "record", "");
    assert_true(wait_for(has_phase, &m));
    assert_int_equal(cache_count(m.cache), 1); /* the selector holds for the watch as well */
    struct snap *snap = cache_get(m.cache, m.want_key);
    assert_string_equal(jsonx_str(snap->object, "metadata.labels.round", ""), "two");
    assert_null(json_object_get(snap->object, "data"));
    snap_unref(snap);
    mirror_close(&m);
}

static void a_list_of_many_pages_is_whole(void **state)
{
    struct scene *s = *state;
    struct mirror m;
    for (int i = 0; i < MANY; i++) {
        _cleanup_(free_cstr)
        char *body =
            xasprintf("{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'page-%d', "
                      "'labels': {'of': 'many'}}}",
                      i);
        call_do(
            &s->client,
            &(struct call){.method = "POST", .gvr = &KUBE_CONFIGMAPS, .ns = s->ns, .body = body});
    }
    mirror_open(&m, s, &KUBE_CONFIGMAPS, "of=many", false);
    assert_int_equal(cache_count(m.cache), MANY); /* at the moment of "synced", not later */
    assert_int_equal(atomic_load(&m.added), MANY);
    call_do(&s->client, &(struct call){.method = "DELETE",
                                       .gvr = &KUBE_CONFIGMAPS,
                                       .ns = s->ns,
                                       .query = "labelSelector=of%3Dmany"});
    m.want_count = 0;
    assert_true(wait_for(has_count, &m));
    assert_int_equal(atomic_load(&m.deleted), MANY);
    mirror_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_object_lives_from_create_to_delete),
        cmocka_unit_test(what_the_schema_forbids_is_invalid_and_says_why),
        cmocka_unit_test(numbers_and_text_come_back_as_they_were_sent),
        cmocka_unit_test(a_merge_patch_with_an_old_version_is_a_conflict),
        cmocka_unit_test(a_json_patch_happens_only_if_its_tests_hold),
        cmocka_unit_test(the_status_and_the_spec_do_not_write_each_other),
        cmocka_unit_test(an_unknown_token_is_denied),
        cmocka_unit_test(the_servers_clock_is_inside_the_interval_that_we_give),
        cmocka_unit_test(metadata_comes_without_what_it_is_about),
        cmocka_unit_test(many_requests_at_once_each_get_their_own_reply),
        cmocka_unit_test(a_watch_ends_as_asked_and_says_by_bookmark_where_it_stands),
        cmocka_unit_test(a_version_that_is_too_old_is_gone),
        cmocka_unit_test(the_cache_follows_the_server),
        cmocka_unit_test(metadata_is_watched_without_what_it_is_about),
        cmocka_unit_test(a_list_of_many_pages_is_whole),
    };
    return cmocka_run_group_tests(tests, scene_open, scene_close);
}
