/* The reflector over the real client and a scripted wire: what it asks, when, and what it tells. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fake_wire.h"
#include "jsonx/jsonx.h"
#include "reflector/peek.h"
#include "reflector/reflector.h"

#define HR_PATH "GET /apis/helm.fluxcd.io/v1/helmreleases?"
#define JSON    "Accept: application/json\n\n"

struct scene {
    struct wire *wire;
    struct cache *cache;
    struct buf told; /* "ADDED a/x uid=1 rv=5 list; " */
};

static const char *event_name(enum reflector_event event)
{
    switch (event) {
    case REFLECTOR_ADDED:
        return "ADDED";
    case REFLECTOR_MODIFIED:
        return "MODIFIED";
    case REFLECTOR_DELETED:
        return "DELETED";
    }
    return "?";
}

static void on_event(void *ctx, enum reflector_event event, struct snap *before, struct snap *after)
{
    struct scene *s = ctx;
    assert_true((event == REFLECTOR_ADDED) == (before == NULL));
    assert_true((event == REFLECTOR_DELETED) == (after == NULL));
    const struct snap *snap = after != NULL ? after : before;
    struct snap *cached = cache_get(s->cache, snap->key);
    if (event != REFLECTOR_DELETED) {
        assert_ptr_equal(cached, after); /* the cache has changed before anybody is told */
    }
    snap_unref(cached);
    buf_addf(&s->told, "%s %s uid=%s rv=%s %s%s; ", event_name(event), snap->key, snap->uid,
             snap->resource_version, snap->live ? "live" : "listed",
             snap->object == NULL ? " bad" : "");
}

/* Run a reflector against the answers until they are used up. fit may change its options. */
static struct scene *run_with(const struct wire_answer *answers, size_t count,
                              void (*fit)(struct reflector_options *))
{
    struct scene *s = xcalloc(1, sizeof(*s));
    s->wire = wire_new(answers, count);
    s->cache = cache_new(&(struct cache_options){.index_of = NULL});
    s->told = (struct buf)BUF_INIT(1U << 20);
    struct reflector_options options = {.kube = s->wire->kube,
                                        .clock = &s->wire->clock,
                                        .rng = &s->wire->rng,
                                        .gvr = &KUBE_HELMRELEASES,
                                        .cache = s->cache,
                                        .cancel = &s->wire->cancel,
                                        .on_event = on_event,
                                        .ctx = s,
                                        .name = "test"};
    if (fit != NULL) {
        fit(&options);
    }
    struct reflector *r = reflector_new(&options);
    reflector_run(r);
    reflector_free(r);
    return s;
}

#define RUN(answers) run_with((answers), sizeof(answers) / sizeof((answers)[0]), NULL)

static void end(struct scene *s)
{
    buf_release(&s->told);
    cache_free(s->cache);
    wire_free(s->wire);
    free(s);
}

static void assert_told(struct scene *s, const char *text)
{
    assert_string_equal(buf_str(&s->told), text);
}

/* The i-th request begins so. */
static void assert_asked(struct scene *s, size_t i, const char *prefix)
{
    assert_true(i < s->wire->asked);
    if (!text_has_prefix(s->wire->seen[i], prefix)) {
        fail_msg("request %zu: %s", i, s->wire->seen[i]);
    }
}

static void assert_watch(struct scene *s, size_t i, const char *version)
{
    _cleanup_(free_cstr)
    char *prefix = xasprintf(
        HR_PATH "resourceVersion=%s&watch=true&allowWatchBookmarks=true&timeoutSeconds=", version);
    assert_asked(s, i, prefix);
    int seconds = atoi(s->wire->seen[i] + strlen(prefix));
    assert_in_range(seconds, 300, 600);
    assert_int_equal(s->wire->idle_ms[i], 90000);
}

static void assert_list(struct scene *s, size_t i)
{
    assert_asked(s, i, HR_PATH "limit=500\n" JSON);
}

#define META(name, uid, rv)                                                                        \
    "\"metadata\":{\"namespace\":\"a\",\"name\":\"" name "\",\"uid\":\"" uid                       \
    "\",\"resourceVersion\":\"" rv "\"}"
#define OBJECT(name, uid, rv) "{\"kind\":\"HelmRelease\"," META(name, uid, rv) "}"
#define LIST(rv, items)                                                                            \
    "{\"kind\":\"HelmReleaseList\",\"metadata\":{\"resourceVersion\":\"" rv                        \
    "\"},\"items\":[" items "]}"
#define EVENT(type, object) "{\"type\":\"" type "\",\"object\":" object "}\n"
#define BOOKMARK(rv)                                                                               \
    EVENT("BOOKMARK", "{\"kind\":\"HelmRelease\",\"metadata\":{\"resourceVersion\":\"" rv "\"}}")

/* ---- list and watch ---- */

static void a_watch_follows_the_list_and_each_event_moves_it(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST("10", OBJECT("x", "1", "5") "," OBJECT("y", "2", "6"))},
        {.body = EVENT("MODIFIED", OBJECT("x", "1", "11")) EVENT("ADDED", OBJECT("z", "3", "12"))
             EVENT("DELETED", OBJECT("y", "2", "13")),
         .piece = 7},
        {.body = EVENT("BOOKMARK", OBJECT("no-object", "9", "20"))},
    };
    struct scene *s = RUN(answers);
    assert_told(s, "ADDED a/x uid=1 rv=5 listed; ADDED a/y uid=2 rv=6 listed; "
                   "MODIFIED a/x uid=1 rv=11 live; ADDED a/z uid=3 rv=12 live; "
                   "DELETED a/y uid=2 rv=6 listed; ");
    assert_int_equal(s->wire->asked, 4);
    assert_list(s, 0);
    assert_watch(s, 1, "10");
    assert_watch(s, 2, "13");
    assert_watch(s, 3, "20"); /* a bookmark moves it too */
    assert_int_equal(s->wire->slept_ms[3], 0);
    assert_true(cache_is_synced(s->cache));
    assert_int_equal(cache_count(s->cache), 2);
    end(s);
}

static void pages_are_one_list(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body =
             "{\"metadata\":{\"resourceVersion\":\"9\",\"continue\":\"a/b=\"},\"items\":[" OBJECT(
                 "x", "1", "5") "]}"},
        {.body = LIST("9", OBJECT("y", "2", "6"))},
    };
    struct scene *s = RUN(answers);
    assert_told(s, "ADDED a/x uid=1 rv=5 listed; ADDED a/y uid=2 rv=6 listed; ");
    assert_list(s, 0);
    assert_asked(s, 1, HR_PATH "continue=a%2Fb%3D&limit=500\n");
    assert_watch(s, 2, "9");
    end(s);
}

static void an_expired_continue_token_lists_again_in_one_piece(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST("3", OBJECT("old", "1", "1"))},
        {.status = 410, .body = "{}", .takes_ms = 2000},
        {.body = "{\"metadata\":{\"resourceVersion\":\"9\",\"continue\":\"c\"},\"items\":[" OBJECT(
             "x", "2", "5") "]}"},
        {.status = 410, .body = "{\"kind\":\"Status\",\"reason\":\"Expired\"}"},
        {.body = LIST("12", OBJECT("y", "3", "6"))},
    };
    struct scene *s = RUN(answers);
    /* x was on the first page, but in the list that counts it is not. */
    assert_true(text_has_suffix(buf_str(&s->told), "ADDED a/y uid=3 rv=6 listed; "
                                                   "DELETED a/old uid=1 rv=1 listed; "
                                                   "DELETED a/x uid=2 rv=5 listed; "));
    assert_asked(s, 3, HR_PATH "continue=c&limit=500\n");
    assert_asked(s, 4, "GET /apis/helm.fluxcd.io/v1/helmreleases\n");
    assert_watch(s, 5, "12");
    assert_int_equal(s->wire->slept_ms[4], 0);
    assert_int_equal(cache_count(s->cache), 1);
    end(s);
}

static void a_failed_page_deletes_nothing(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST("3", OBJECT("x", "1", "1") "," OBJECT("y", "2", "2"))},
        {.status = 410, .body = "{}", .takes_ms = 2000},
        {.body = "{\"metadata\":{\"resourceVersion\":\"9\",\"continue\":\"c\"},\"items\":[" OBJECT(
             "x", "1", "1") "]}"},
        {.fails = ERR_UNAVAILABLE},
    };
    struct scene *s = RUN(answers);
    assert_told(s, "ADDED a/x uid=1 rv=1 listed; ADDED a/y uid=2 rv=2 listed; ");
    assert_list(s, 4);
    end(s);
}

static void what_a_relist_lacks_was_deleted_and_what_it_repeats_is_no_news(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body =
             LIST("10", OBJECT("x", "1", "5") "," OBJECT("y", "2", "6") "," OBJECT("z", "3", "7"))},
        {.status = 410, .body = "{}", .takes_ms = 2000},
        {.body = LIST("30", OBJECT("x", "1", "5") "," OBJECT("z", "3", "29"))},
    };
    struct scene *s = RUN(answers);
    assert_told(s, "ADDED a/x uid=1 rv=5 listed; ADDED a/y uid=2 rv=6 listed; ADDED a/z uid=3 rv=7 "
                   "listed; MODIFIED a/z uid=3 rv=29 listed; DELETED a/y uid=2 rv=6 listed; ");
    struct snap *x = cache_get(s->cache, "a/x");
    assert_int_equal(x->seen.ns, WIRE_START.ns); /* first sight stays what it was */
    snap_unref(x);
    end(s);
}

static void a_recreated_object_is_another_one(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST("10", OBJECT("x", "1", "5"))},
        {.body = EVENT("MODIFIED", OBJECT("x", "2", "11")), .takes_ms = 2000},
        {.status = 410, .body = "{}"},
        {.body = LIST("20", OBJECT("x", "3", "19"))},
    };
    struct scene *s = RUN(answers);
    assert_told(s, "ADDED a/x uid=1 rv=5 listed; "
                   "DELETED a/x uid=1 rv=5 listed; ADDED a/x uid=2 rv=11 live; "
                   "DELETED a/x uid=2 rv=11 live; ADDED a/x uid=3 rv=19 listed; ");
    end(s);
}

/* An unreadable object may hide its version: then its UID alone tells two of one name apart. */
static void a_recreated_bad_object_is_another_one(void **state)
{
    (void)state;
#define NO_VERSION(uid) "{\"metadata\":{\"name\":\"x\",\"uid\":\"" uid "\"},\"spec\":\"\\ud800\"}"
    static const struct wire_answer answers[] = {
        {.body = LIST("10", NO_VERSION("1"))},
        {.status = 410, .body = "{}", .takes_ms = 2000},
        {.body = LIST("20", NO_VERSION("2"))},
    };
    struct scene *s = RUN(answers);
    assert_told(s, "ADDED x uid=1 rv= listed bad; DELETED x uid=1 rv= listed bad; "
                   "ADDED x uid=2 rv= listed bad; ");
    end(s);
}

static void selectors_and_the_namespace_are_asked_for(struct reflector_options *options)
{
    options->ns = "b";
    options->label_selector = "a=b,c in (d)";
    options->field_selector = "metadata.name=x";
}

static void a_narrow_reflector_asks_narrowly(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {{.body = LIST("10", "")}};
    struct scene *s = run_with(answers, 1, selectors_and_the_namespace_are_asked_for);
#define NARROW                                                                                     \
    "GET /apis/helm.fluxcd.io/v1/namespaces/b/"                                                    \
    "helmreleases?labelSelector=a%3Db%2Cc%20in%20%28d%29&fieldSelector=metadata.name%3Dx&"
    assert_asked(s, 0, NARROW "limit=500\n");
    assert_asked(s, 1, NARROW "resourceVersion=10&watch=true");
    assert_true(cache_is_synced(s->cache)); /* an empty list is a list */
    end(s);
}

static void raise_cancel(void *ctx)
{
    cancel_raise(ctx);
}

/* A query without its selector would be a query for everything. */
static void a_query_that_does_not_fit_is_not_sent_in_part(void **state)
{
    (void)state;
    struct wire *w = wire_new(NULL, 0);
    struct cache *cache = cache_new(&(struct cache_options){.index_of = NULL});
    _cleanup_(free_cstr)
    char *selector = xmalloc(70001);
    memset(selector, 'a', 70000);
    selector[70000] = '\0';
    struct reflector *r = reflector_new(&(struct reflector_options){.kube = w->kube,
                                                                    .clock = &w->clock,
                                                                    .rng = &w->rng,
                                                                    .gvr = &KUBE_HELMRELEASES,
                                                                    .label_selector = selector,
                                                                    .cache = cache,
                                                                    .cancel = &w->cancel,
                                                                    .name = "test"});
    w->on_wait = raise_cancel; /* in the back-off */
    w->wait_ctx = &w->cancel;
    reflector_run(r);
    assert_int_equal(w->asked, 0);
    assert_true(w->waited_ms > 0);
    reflector_free(r);
    cache_free(cache);
    wire_free(w);
}

/* ---- 410, silence, refusals ---- */

static void gone_lists_afresh_whichever_way_it_is_said(void **state)
{
    (void)state;
    static const char *const error_event = EVENT(
        "ERROR", "{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\",\"message\":\"old\"}");
    for (int i = 0; i < 2; i++) {
        const struct wire_answer answers[] = {
            {.body = LIST("10", "")},
            {.body = BOOKMARK("11"), .takes_ms = 60000},
            i == 0 ? (struct wire_answer){.status = 410, .body = "{}"}
                   : (struct wire_answer){.body = error_event},
            {.body = LIST("50", "")},
        };
        struct scene *s = RUN(answers);
        assert_watch(s, 2, "11");
        assert_list(s, 3);
        assert_int_equal(s->wire->slept_ms[3], 0);
        assert_watch(s, 4, "50");
        end(s);
    }
}

/* An API server whose watch cache has nothing to offer must not be asked for list after list. */
static void gone_right_after_a_list_backs_off(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST("10", "")},      {.status = 410, .body = "{}"}, {.body = LIST("10", "")},
        {.status = 410, .body = "{}"}, {.body = LIST("10", "")},
    };
    struct scene *s = RUN(answers);
    assert_list(s, 2);
    assert_in_range(s->wire->slept_ms[2], 560, 1040);
    assert_list(s, 4);
    assert_in_range(s->wire->slept_ms[4], 1120, 2080);
    end(s);
}

static void another_error_event_backs_off_and_watches_on(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST("10", "")},
        {.body = EVENT("ERROR", "{\"kind\":\"Status\",\"code\":500,\"message\":\"etcd\"}")},
    };
    struct scene *s = RUN(answers);
    assert_watch(s, 2, "10");
    assert_in_range(s->wire->slept_ms[2], 560, 1040);
    end(s);
}

static void silence_watches_again_from_the_last_version(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST("10", "")},
        {.body = BOOKMARK("15"), .fails = ERR_TIMEOUT, .takes_ms = 90000},
    };
    struct scene *s = RUN(answers);
    assert_watch(s, 2, "15");
    assert_int_equal(s->wire->slept_ms[2], 0);
    end(s);
}

static void a_watch_that_ends_at_once_without_a_word_backs_off(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST("10", "")}, {.body = ""}, {.body = "", .takes_ms = 300000}, {.body = ""}};
    struct scene *s = RUN(answers);
    assert_in_range(s->wire->slept_ms[2], 560, 1040);
    assert_int_equal(s->wire->slept_ms[3], 0); /* a long quiet one is a planned end */
    assert_true(s->wire->slept_ms[4] > 0);
    assert_watch(s, 4, "10");
    end(s);
}

static void back_off_doubles_to_30_s_and_starts_anew_after_two_healthy_minutes(void **state)
{
    (void)state;
    struct wire_answer answers[12];
    for (size_t i = 0; i < 10; i++) {
        answers[i] = (struct wire_answer){.fails = ERR_UNAVAILABLE};
    }
    answers[10] = (struct wire_answer){.body = LIST("1", ""), .takes_ms = 120001};
    answers[11] = (struct wire_answer){.status = 500};
    struct scene *s = RUN(answers);
    int64_t ms = 800;
    for (size_t i = 1; i <= 10; i++) {
        assert_in_range(s->wire->slept_ms[i], ms * 7 / 10, ms * 13 / 10);
        ms = ms * 2 < 30000 ? ms * 2 : 30000;
    }
    assert_int_equal(s->wire->slept_ms[11], 0);
    assert_in_range(s->wire->slept_ms[12], 560, 1040);
    end(s);
}

static void retry_after_is_honoured(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.status = 429, .retry_after = "7", .body = "{}"},
        {.body = LIST("10", "")},
        {.status = 429, .retry_after = "11", .body = "{}"},
    };
    struct scene *s = RUN(answers);
    assert_list(s, 1);
    assert_int_equal(s->wire->slept_ms[1], 7000);
    assert_watch(s, 3, "10");
    assert_int_equal(s->wire->slept_ms[3], 11000);
    end(s);
}

static void a_list_without_a_version_backs_off(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {{.body = "{\"metadata\":{},\"items\":[]}"}};
    struct scene *s = RUN(answers);
    assert_list(s, 1);
    assert_in_range(s->wire->slept_ms[1], 560, 1040);
    assert_false(cache_is_synced(s->cache));
    end(s);
}

/* The same event would come again for ever. */
static void an_event_beyond_the_limit_lists_afresh(void **state)
{
    (void)state;
    char *big = xmalloc(LIMIT_WATCH_LINE_BYTES + 2);
    memset(big, ' ', LIMIT_WATCH_LINE_BYTES + 1);
    big[LIMIT_WATCH_LINE_BYTES + 1] = '\0';
    const struct wire_answer answers[] = {
        {.body = LIST("10", "")}, {.body = big}, {.body = LIST("12", "")}};
    struct scene *s = RUN(answers);
    assert_list(s, 2);
    assert_true(s->wire->slept_ms[2] > 0);
    assert_watch(s, 3, "12");
    end(s);
    free(big);
}

/* ---- bad items ---- */

#define BAD_SPEC "\"spec\":{\"values\":{\"x\":\"\\ud800\"}}"
/* As the API server writes a custom resource: sorted, labels before the name. */
#define BAD(name, uid, rv)                                                                         \
    "{\"kind\":\"HelmRelease\",\"metadata\":{\"annotations\":{\"namespace\":\"other\"},"           \
    "\"labels\":{\"name\":\"victim\"},\"name\":\"" name "\",\"namespace\":\"a\",\"uid\":\"" uid    \
    "\",\"resourceVersion\":\"" rv "\"}," BAD_SPEC "}"

static void one_bad_item_costs_the_others_nothing(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST("10",
                      OBJECT("victim", "1", "5") "," BAD("x", "2", "6") "," OBJECT("z", "3", "7"))},
        {.body = EVENT("MODIFIED", OBJECT("x", "2", "11")) EVENT("MODIFIED", BAD("x", "2", "12"))
             EVENT("ADDED", OBJECT("y", "4", "13"))},
    };
    struct scene *s = RUN(answers);
    assert_told(s, "ADDED a/victim uid=1 rv=5 listed; ADDED a/x uid=2 rv=6 listed bad; "
                   "ADDED a/z uid=3 rv=7 listed; MODIFIED a/x uid=2 rv=11 live; "
                   "MODIFIED a/x uid=2 rv=12 live bad; ADDED a/y uid=4 rv=13 live; ");
    struct snap *x = cache_get(s->cache, "a/x");
    assert_null(x->object);
    assert_int_equal(x->bad.kind, ERR_INVALID);
    assert_true(x->bad.msg[0] != '\0');
    snap_unref(x);
    assert_watch(s, 2, "13");
    end(s);
}

static void a_bad_object_can_be_deleted(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST("10", BAD("x", "2", "6"))},
        {.body = EVENT("DELETED", BAD("x", "2", "12"))},
    };
    struct scene *s = RUN(answers);
    assert_told(s, "ADDED a/x uid=2 rv=6 listed bad; DELETED a/x uid=2 rv=6 listed bad; ");
    assert_int_equal(cache_count(s->cache), 0);
    end(s);
}

/* If it cannot be told which object an item is, then what seems to be missing may be that one. */
static void a_list_with_a_nameless_item_deletes_nothing(void **state)
{
    (void)state;
    static const char *const nameless[] = {
        LIST("20", "{\"metadata\":{}," BAD_SPEC "}," OBJECT("y", "2", "6")),
        LIST("20", "{\"metadata\":{\"name\":\"\"}}," OBJECT("y", "2", "6")),
        LIST("20", "null," OBJECT("y", "2", "6")),
    };
    for (size_t i = 0; i < sizeof(nameless) / sizeof(nameless[0]); i++) {
        const struct wire_answer answers[] = {
            {.body = LIST("10", OBJECT("x", "1", "5"))},
            {.status = 410, .body = "{}", .takes_ms = 2000},
            {.body = nameless[i]},
        };
        struct scene *s = RUN(answers);
        assert_told(s, "ADDED a/x uid=1 rv=5 listed; ADDED a/y uid=2 rv=6 listed; ");
        end(s);
    }
}

static void a_name_is_found_only_where_it_belongs(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"{\"metadata\":{\"name\":\"x\"}}", "x"},
        {" {\"a\":[{\"metadata\":{\"name\":\"no\"}}],\"metadata\" : { \"name\" : \"x\" } }", "x"},
        {"{\"a\":\"\\\"metadata\\\":{\\\"name\\\":\",\"metadata\":{\"name\":\"x\"}}", "x"},
        {"{\"metadata\":{\"labels\":{\"name\":\"no\"},\"name\":\"x\"}}", "x"},
        {"{\"spec\":{\"metadata\":{\"name\":\"no\"}}}", NULL},
        {"{\"metadata\":{\"name\":\"a\\\"b\"}}", NULL},
        {"{\"metadata\":{\"name\":\"cut", NULL},
        {"{\"metadata\":{\"name\":\"", NULL},
        {"{\"metadata\":{\"name\":", NULL},
        {"{\"metadata\":{\"name\":5}}", NULL},
        {"{\"metadata\":\"name\"}", NULL},
        {"{\"metadata\":{\"name\"", NULL},
        {"{\"a\":]],\"metadata\":{\"name\":\"x\"}}", NULL},
        {"[]", NULL},
        {"", NULL},
    };
    static const char *const path[] = {"metadata", "name"};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        /* On the heap and without a NUL, so that a sanitizer sees a step too far. */
        size_t len = strlen(rows[i].text);
        char *text = xmalloc(len);
        memcpy(text, rows[i].text, len);
        _cleanup_(free_cstr)
        char *got = peek_str(text, len, path, 2);
        if (!text_eq(got, rows[i].want)) {
            fail_msg("%s: %s", rows[i].text, got != NULL ? got : "NULL");
        }
        free(text);
    }
}

/* ---- what is kept of an object ---- */

static void bookkeeping_is_left_out_but_our_own_entry_stays(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST(
             "10",
             "{\"metadata\":{\"name\":\"x\",\"annotations\":{\"keep\":\"1\",\"kubectl.kubernetes."
             "io/"
             "last-applied-configuration\":\"{}\"},\"managedFields\":[{\"manager\":\"kubectl\","
             "\"fieldsV1\":{}},{\"manager\":\"belay\",\"time\":\"t\",\"subresource\":\"status\","
             "\"fieldsV1\":{\"f:a\":{}}},{\"manager\":\"helm\"}]}}")},
    };
    struct scene *s = RUN(answers);
    struct snap *x = cache_get(s->cache, "x"); /* cluster-wide: no namespace in its key */
    _cleanup_(free_cstr)
    char *text = jsonx_dump(x->object);
    assert_string_equal(text, "{\"metadata\":{\"name\":\"x\",\"annotations\":{\"keep\":\"1\"},"
                              "\"managedFields\":[{\"manager\":\"belay\",\"time\":\"t\","
                              "\"subresource\":\"status\"}]}}");
    snap_unref(x);
    end(s);
}

static void metadata_only(struct reflector_options *options)
{
    options->gvr = &KUBE_SECRETS;
    options->metadata_only = true;
}

#define PARTIAL(name, uid, rv) "{\"kind\":\"PartialObjectMetadata\"," META(name, uid, rv) "}"
#define PARTIAL_LIST(rv, items)                                                                    \
    "{\"kind\":\"PartialObjectMetadataList\",\"metadata\":{\"resourceVersion\":\"" rv              \
    "\"},\"items\":[" items "]}"

static void metadata_is_asked_for_and_whole_objects_are_refused(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = "{\"kind\":\"SecretList\",\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[]}"},
        {.body = PARTIAL_LIST("10", PARTIAL("x", "1", "5"))},
        {.body = EVENT("ADDED", PARTIAL("y", "2", "11"))
             EVENT("ADDED", "{\"kind\":\"Secret\"," META("z", "3", "12") ",\"data\":{}}")},
    };
    struct scene *s = run_with(answers, 3, metadata_only);
    assert_told(s, "ADDED a/x uid=1 rv=5 listed; ADDED a/y uid=2 rv=11 live; ");
    assert_asked(s, 0,
                 "GET /api/v1/secrets?limit=500\nAccept: "
                 "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1\n");
    assert_true(s->wire->slept_ms[1] > 0);
    assert_asked(s, 2, "GET /api/v1/secrets?resourceVersion=10&watch=true");
    assert_non_null(
        strstr(s->wire->seen[2],
               "\nAccept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1\n"));
    assert_true(s->wire->slept_ms[3] > 0);
    assert_asked(s, 3, "GET /api/v1/secrets?resourceVersion=11&");
    end(s);
}

/* ---- the end ---- */

static void stop_at_first(void *ctx, enum reflector_event event, struct snap *before,
                          struct snap *after)
{
    (void)event;
    (void)before;
    (void)after;
    cancel_raise(ctx);
}

static void cancel_ends_the_run(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool in_back_off;
        struct wire_answer answer;
    } rows[] = {
        {"between list and watch", false, {.body = LIST("10", OBJECT("x", "1", "5"))}},
        {"in a back-off", true, {.status = 500}},
    };
    for (size_t i = 0; i < 2; i++) {
        struct wire *w = wire_new(&rows[i].answer, 1);
        struct cache *cache = cache_new(&(struct cache_options){.index_of = NULL});
        struct reflector *r = reflector_new(&(struct reflector_options){.kube = w->kube,
                                                                        .clock = &w->clock,
                                                                        .rng = &w->rng,
                                                                        .gvr = &KUBE_HELMRELEASES,
                                                                        .cache = cache,
                                                                        .cancel = &w->cancel,
                                                                        .on_event = stop_at_first,
                                                                        .ctx = &w->cancel,
                                                                        .name = "test"});
        w->on_wait = rows[i].in_back_off ? raise_cancel : NULL;
        w->wait_ctx = &w->cancel;
        reflector_run(r);
        if (w->asked != 1) {
            fail_msg("%s: asked %zu times", rows[i].name, w->asked);
        }
        reflector_free(r);
        cache_free(cache);
        wire_free(w);
    }
}

static void silence_is_counted_from_the_last_byte(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.body = LIST("10", ""), .takes_ms = 1000},
        {.body = BOOKMARK("11"), .takes_ms = 50000},
        {.fails = ERR_TIMEOUT, .takes_ms = 90000},
    };
    struct wire *w = wire_new(answers, 3);
    struct cache *cache = cache_new(&(struct cache_options){.index_of = NULL});
    struct reflector *r = reflector_new(&(struct reflector_options){.kube = w->kube,
                                                                    .clock = &w->clock,
                                                                    .rng = &w->rng,
                                                                    .gvr = &KUBE_HELMRELEASES,
                                                                    .cache = cache,
                                                                    .cancel = &w->cancel,
                                                                    .name = "test"});
    reflector_run(r);
    assert_int_equal(reflector_silence_ms(r), 90000);
    reflector_free(r);
    cache_free(cache);
    wire_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_watch_follows_the_list_and_each_event_moves_it),
        cmocka_unit_test(pages_are_one_list),
        cmocka_unit_test(an_expired_continue_token_lists_again_in_one_piece),
        cmocka_unit_test(a_failed_page_deletes_nothing),
        cmocka_unit_test(what_a_relist_lacks_was_deleted_and_what_it_repeats_is_no_news),
        cmocka_unit_test(a_recreated_object_is_another_one),
        cmocka_unit_test(a_recreated_bad_object_is_another_one),
        cmocka_unit_test(a_narrow_reflector_asks_narrowly),
        cmocka_unit_test(a_query_that_does_not_fit_is_not_sent_in_part),
        cmocka_unit_test(gone_lists_afresh_whichever_way_it_is_said),
        cmocka_unit_test(gone_right_after_a_list_backs_off),
        cmocka_unit_test(another_error_event_backs_off_and_watches_on),
        cmocka_unit_test(silence_watches_again_from_the_last_version),
        cmocka_unit_test(a_watch_that_ends_at_once_without_a_word_backs_off),
        cmocka_unit_test(back_off_doubles_to_30_s_and_starts_anew_after_two_healthy_minutes),
        cmocka_unit_test(retry_after_is_honoured),
        cmocka_unit_test(a_list_without_a_version_backs_off),
        cmocka_unit_test(an_event_beyond_the_limit_lists_afresh),
        cmocka_unit_test(one_bad_item_costs_the_others_nothing),
        cmocka_unit_test(a_bad_object_can_be_deleted),
        cmocka_unit_test(a_list_with_a_nameless_item_deletes_nothing),
        cmocka_unit_test(a_name_is_found_only_where_it_belongs),
        cmocka_unit_test(bookkeeping_is_left_out_but_our_own_entry_stays),
        cmocka_unit_test(metadata_is_asked_for_and_whole_objects_are_refused),
        cmocka_unit_test(cancel_ends_the_run),
        cmocka_unit_test(silence_is_counted_from_the_last_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
