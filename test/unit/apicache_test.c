/* The trimming as a table and on a real document; the cache over an API server that knows ETags. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "apicache/apicache.h"
#include "apicache/trim.h"
#include "fake_wire.h"
#include "jsonx/jsonx.h"

#define DISCOVERY "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
#define DOC       "/openapi/v3/apis/apps/v1"
#define HASHED    DOC "?hash=AB12&timeout=32s"
#define THREADS   8

/* ---- trim ---- */

#define GVK         "\"x-kubernetes-group-version-kind\":{\"group\":\"g\",\"version\":\"v\",\"kind\":\"K\"}"
#define PARAM       "{\"name\":\"fieldValidation\",\"in\":\"query\"}"
#define ONE(params) "{\"paths\":{\"/k\":{\"patch\":{" GVK ",\"parameters\":[" params "]}}}}"

static const struct {
    const char *name, *in, *out; /* out NULL: refused */
} trims[] = {
    {"the parameter stays, its schema goes",
     "{\"paths\":{\"/k\":{\"patch\":{\"parameters\":[{\"name\":\"fieldValidation\",\"in\":"
     "\"query\",\"schema\":{\"type\":\"string\"}}]," GVK "}}}}",
     ONE(PARAM)},
    {"a PATCH without the parameter stays, or the kind would seem unknown",
     "{\"paths\":{\"/k\":{\"patch\":{" GVK ",\"parameters\":[{\"name\":\"force\"}]}}}}", ONE("")},
    {"so does one without parameters", "{\"paths\":{\"/k\":{\"patch\":{" GVK "}}}}", ONE("")},
    {"references to shared parameters stay, and those",
     "{\"components\":{\"schemas\":{\"A\":{}},\"parameters\":{\"p\":" PARAM
     "}},\"paths\":{\"/k\":{\"patch\":{" GVK
     ",\"parameters\":[{\"name\":\"x\"},{\"$ref\":\"#/parameters/p\"},{}]}}}}",
     "{\"paths\":{\"/k\":{\"patch\":{" GVK ",\"parameters\":[{\"$ref\":\"#/parameters/p\"}]}}},"
     "\"components\":{\"parameters\":{\"p\":" PARAM "}}}"},
    {"where the parameter stands is helm's to judge",
     "{\"paths\":{\"/k\":{\"patch\":{" GVK
     ",\"parameters\":[{\"in\":\"body\",\"name\":\"fieldValidation\"}]}}}}",
     ONE("{\"name\":\"fieldValidation\",\"in\":\"body\"}")},
    {"version and info stay", "{\"openapi\":\"3.0.0\",\"info\":{\"a\":[1,{}]},\"paths\":{}}",
     "{\"openapi\":\"3.0.0\",\"info\":{\"a\":[1,{}]},\"paths\":{}}"},
    {"other verbs and PATCHes of no kind go",
     "{\"paths\":{\"/a\":{\"get\":{" GVK "}},\"/b\":{\"patch\":{}},\"/c\":{\"patch\":null},"
     "\"/d\":null,\"/e\":{}}}",
     "{\"paths\":{}}"},
    {"several paths",
     "{\"paths\":{\"/a\":{\"patch\":{" GVK "}},\"/b\":{},\"/c\":{\"patch\":{" GVK "}}}}",
     "{\"paths\":{\"/a\":{\"patch\":{" GVK ",\"parameters\":[]}},\"/c\":{\"patch\":{" GVK
     ",\"parameters\":[]}}}}"},
    {"brackets and quotes in texts are texts",
     "{\"x\":\"}]\\\"{\\\\\",\"paths\":{\"/\\\"k\":{\"get\":[\"]}\"],\"patch\":{" GVK "}}}}",
     "{\"paths\":{\"/\\\"k\":{\"patch\":{" GVK ",\"parameters\":[]}}}}"},
    {"a name that stands twice counts as Go reads it: the last",
     "{\"paths\":{\"/old\":{\"patch\":{" GVK "}}},\"paths\":{}}", "{\"paths\":{}}"},
    {"space anywhere", " {\n\t\"paths\" : { \"/k\" : { \"patch\" : { " GVK " } } } }\r\n", ONE("")},
    {"no paths", "{\"openapi\":\"3.0.0\"}", NULL},
    {"paths that are no object", "{\"paths\":[]}", NULL},
    {"no object", "[]", NULL},
    {"nothing", "", NULL},
    {"no JSON", "<html>", NULL},
    {"cut short", "{\"paths\":{}", NULL},
    {"cut in a text", "{\"paths\":{},\"a\":\"b", NULL},
    {"cut in an escape", "{\"paths\":{},\"a\":\"\\", NULL},
    {"something behind the end", "{\"paths\":{}}{}", NULL},
    {"a comma too many", "{\"paths\":{},}", NULL},
    {"a comma too few", "{\"paths\":{}\"a\":1}", NULL},
    {"no value", "{\"paths\":}", NULL},
    {"what stays must be JSON", "{\"info\":{]},\"paths\":{}}", NULL},
    {"words too", "{\"info\":nil,\"paths\":{}}", NULL},
};

static void openapi_is_trimmed_to_what_helm_reads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(trims) / sizeof(trims[0]); i++) {
        struct err err = ERR_INIT;
        char *out = NULL;
        size_t len = 0;
        enum err_kind kind = trim_openapi(trims[i].in, strlen(trims[i].in), &out, &len, &err);
        if (kind != (trims[i].out != NULL ? ERR_NONE : ERR_INVALID) ||
            (out != NULL && (strcmp(out, trims[i].out) != 0 || len != strlen(out)))) {
            fail_msg("%s: %s %s", trims[i].name, out != NULL ? out : "(none)", err.msg);
        }
        free(out);
    }
}

static char *fixture(size_t *ret_len)
{
    struct buf b = BUF_INIT(1U << 20);
    buf_add(&b, __FILE__, strlen(__FILE__) - strlen("apicache_test.c"));
    buf_add_str(&b, "data/openapi-apps-v1.json");
    FILE *file = fopen(buf_str(&b), "re");
    assert_non_null(file);
    buf_reset(&b);
    char block[4096];
    for (size_t n; (n = fread(block, 1, sizeof(block), file)) > 0;) {
        buf_add(&b, block, n);
    }
    assert_int_equal(fclose(file), 0);
    *ret_len = b.len;
    return buf_take(&b);
}

static void real_document_keeps_its_kinds_and_loses_the_rest(void **state)
{
    (void)state;
    size_t len = 0, trimmed_len = 0;
    struct err err = ERR_INIT;
    _cleanup_(free_cstr)
    char *text = fixture(&len), *trimmed = NULL;
    assert_int_equal(trim_openapi(text, len, &trimmed, &trimmed_len, &err), ERR_NONE);
    assert_string_equal(
        trimmed,
        "{\"openapi\":\"3.0.0\",\"info\":{\"title\":\"Kubernetes\",\"version\":\"1.37\"},\"paths\":"
        "{"
        "\"/apis/apps/v1/namespaces/{namespace}/deployments/{name}\":{\"patch\":{"
        "\"x-kubernetes-group-version-kind\":{\"group\":\"apps\",\"version\":\"v1\",\"kind\":"
        "\"Deployment\"},\"parameters\":[" PARAM "]}},"
        "\"/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale\":{\"patch\":{"
        "\"x-kubernetes-group-version-kind\":{\"group\":\"autoscaling\",\"version\":\"v1\","
        "\"kind\":"
        "\"Scale\"},\"parameters\":[" PARAM "]}}}}");
    /* Cut anywhere it is refused, never half taken. */
    while (len > 0 && text[len - 1] != '}') {
        len--;
    }
    for (size_t cut = 0; cut < len; cut++) {
        char *none = NULL;
        char *copy = xmalloc(cut + 1); /* a byte read too far is the sanitizer's */
        memcpy(copy, text, cut);
        copy = xrealloc(copy, cut > 0 ? cut : 1);
        assert_int_not_equal(trim_openapi(copy, cut, &none, &trimmed_len, &err), ERR_NONE);
        free(copy);
    }
}

static void dropped_parts_may_be_nested_at_any_depth(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    struct buf b = BUF_INIT(1U << 20);
    buf_add_str(&b, "{\"x\":");
    for (int i = 0; i < DEPTH; i++) {
        buf_add_char(&b, '[');
    }
    for (int i = 0; i < DEPTH; i++) {
        buf_add_char(&b, ']');
    }
    buf_add_str(&b, ",\"paths\":{}}");
    char *out = NULL;
    size_t len = 0;
    struct err err = ERR_INIT;
    assert_int_equal(trim_openapi(buf_str(&b), b.len, &out, &len, &err), ERR_NONE);
    assert_string_equal(out, "{\"paths\":{}}");
    free(out);
    buf_release(&b);
}

static void too_many_paths_are_no_trimmed_document(void **state)
{
    (void)state;
    struct buf b = BUF_INIT(8U << 20);
    buf_add_str(&b, "{\"paths\":{");
    for (int i = 0; b.len < TRIMMED_BYTES_MAX; i++) {
        buf_addf(&b, "%s\"/%d\":{\"patch\":{" GVK "}}", i > 0 ? "," : "", i);
    }
    buf_add_str(&b, "}}");
    char *out = NULL;
    size_t len = 0;
    struct err err = ERR_INIT;
    assert_int_equal(trim_openapi(buf_str(&b), b.len, &out, &len, &err), ERR_LIMIT);
    buf_release(&b);
}

/* ---- which targets ---- */

static void discovery_and_openapi_are_served_and_nothing_else(void **state)
{
    (void)state;
    static const struct {
        const char *target;
        bool served;
    } rows[] = {
        {"/version", true},
        {"/version?timeout=32s", true},
        {"/api", true},
        {"/apis?timeout=32s", true},
        {"/api/v1", true},
        {"/apis/apps", true},
        {"/apis/cert-manager.io/v1?timeout=32s", true},
        {"/openapi/v3", true},
        {HASHED, true},
        {"/openapi/v3/api/v1", true},
        {"/openapi/v3/.well-known/x", false},
        {"", false},
        {"/", false},
        {"/ap", false},
        {"/api/", false},
        {"/apis/", false},
        {"/apiserver", false},
        {"/version/x", false},
        {"/versions", false},
        {"/healthz", false},
        {"/openapi/v2", false},
        {"/openapi/v33", false},
        {"/openapi/v3/", false},
        {"/api/v1/namespaces", false},
        {"/api/v1/namespaces/default/secrets", false},
        {"/apis/apps/v1/deployments", false},
        {"/apis/apps//v1", false},
        {"/apis/../api", false},
        {"/apis/apps/..", false},
        {"/apis/%2e%2e/api", false},
        {"/apis/a b", false},
        {"/apis#x", false},
        {"apis/apps", false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (apicache_serves(rows[i].target) != rows[i].served) {
            fail_msg("%s", rows[i].target);
        }
    }
}

/* ---- an API server ---- */

struct page {
    const char *target;
    int status; /* 0: 200 */
    const char *type, *etag, *cache_control, *body;
    enum err_kind fails;
};

struct server {
    struct clock clock; /* first */
    struct wire *wire;
    struct apicache *cache;
    struct mtx lock;
    struct cond changed;
    struct page pages[4]; /* guarded by lock, and all below */
    size_t asked, bodies;
    size_t waiting;                   /* calls of the clock's wait so far */
    char accept[256], condition[256]; /* of the last request */
    size_t hold_until;                /* the first answer waits for that many calls of wait */
    struct mono now;
    bool wait_jumps; /* waiting takes the time until the deadline at once */
    void (*on_ask)(struct server *s);
    struct cancel cancel;
    bool waiter_is_back;
};

static struct server *server_of(struct transport *t)
{
    struct wire *w = wire_of_transport(t);
    return w->wait_ctx;
}

static const char *header_of(const struct http_request *req, const char *name)
{
    for (size_t i = 0; i < req->header_count; i++) {
        if (strcmp(req->headers[i].name, name) == 0) {
            return req->headers[i].value;
        }
    }
    return "(none)";
}

static enum err_kind answer(const struct http_request *req, const struct page *page, bool same,
                            struct http_response *ret, struct err *err)
{
    if (page->fails != ERR_NONE) {
        return err_set(err, page->fails, "the wire");
    }
    struct http_response r = {.status = same ? 304 : page->status, .body = BUF_INIT(32U << 20)};
    if (page->etag != NULL) {
        (void)snprintf(r.etag, sizeof(r.etag), "%s", page->etag);
    }
    if (!same) {
        (void)snprintf(r.content_type, sizeof(r.content_type), "%s",
                       page->type != NULL ? page->type : "application/json");
        buf_add_str(&r.body, page->body);
    }
    r.status = r.status != 0 ? r.status : 200;
    if (page->cache_control != NULL && req->on_header != NULL) {
        req->on_header(req->ctx, "cache-control", page->cache_control);
    }
    *ret = r;
    return ERR_NONE;
}

static enum err_kind serve(struct transport *t, const struct http_request *req,
                           struct http_response *ret, struct err *err)
{
    struct server *s = server_of(t);
    const char *target = strchr(strstr(req->url, "://") + 3, '/');
    mtx_lock(&s->lock);
    bool first = s->asked++ == 0;
    (void)snprintf(s->accept, sizeof(s->accept), "%s", header_of(req, "Accept"));
    (void)snprintf(s->condition, sizeof(s->condition), "%s", header_of(req, "If-None-Match"));
    while (first && s->waiting < s->hold_until) {
        cond_wait_ms(&s->changed, &s->lock, 1000);
    }
    struct page page = {.status = 404, .body = "{\"kind\":\"Status\"}"};
    for (size_t i = 0; i < sizeof(s->pages) / sizeof(s->pages[0]); i++) {
        if (s->pages[i].target != NULL && strcmp(s->pages[i].target, target) == 0) {
            page = s->pages[i];
        }
    }
    bool same = page.etag != NULL && strcmp(page.etag, header_of(req, "If-None-Match")) == 0;
    s->bodies += !same;
    void (*on_ask)(struct server *) = s->on_ask;
    s->on_ask = NULL;
    mtx_unlock(&s->lock);
    if (on_ask != NULL) {
        on_ask(s);
    }
    return answer(req, &page, same, ret, err);
}

static struct mono server_mono(struct clock *c)
{
    struct server *s = (struct server *)c;
    MTX_GUARD(&s->lock);
    return s->now;
}

static void server_wait(struct clock *c, struct cond *cond, struct mtx *m, struct mono deadline)
{
    struct server *s = (struct server *)c;
    mtx_lock(&s->lock);
    s->waiting++;
    bool jumps = s->wait_jumps;
    if (jumps) {
        s->now = deadline;
    }
    cond_broadcast(&s->changed);
    mtx_unlock(&s->lock);
    if (!jumps) {
        cond_wait_ms(cond, m, 3600000);
    }
}

static int setup(void **state)
{
    static const struct clock_ops clock_ops = {.mono = server_mono, .wait = server_wait};
    static const struct transport_ops transport_ops = {.perform = serve};
    struct server *s = xcalloc(1, sizeof(*s));
    s->clock.ops = &clock_ops;
    s->now = WIRE_START;
    mtx_init(&s->lock, "server");
    cond_init(&s->changed);
    cancel_init(&s->cancel);
    s->wire = wire_new(NULL, 0);
    s->wire->transport.ops = &transport_ops;
    s->wire->wait_ctx = s;
    s->cache = apicache_new(s->wire->kube, &s->clock);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct server *s = *state;
    apicache_free(s->cache);
    wire_free(s->wire);
    cancel_release(&s->cancel);
    cond_release(&s->changed);
    mtx_release(&s->lock);
    free(s);
    return 0;
}

static struct apicache_request request(const char *target)
{
    return (struct apicache_request){.target = target,
                                     .accept = "application/json",
                                     .if_none_match = "",
                                     .deadline = mono_add_ms(WIRE_START, 30000)};
}

static struct apicache_reply must_get(struct server *s, const struct apicache_request *req)
{
    struct apicache_reply r = {0};
    struct err err = ERR_INIT;
    enum err_kind kind = apicache_get(s->cache, req, &r, &err);
    if (kind != ERR_NONE) {
        fail_msg("%s: %s", req->target, err.msg);
    }
    return r;
}

static struct apicache_reply get(struct server *s, const char *target)
{
    struct apicache_request req = request(target);
    return must_get(s, &req);
}

static enum err_kind try_get(struct server *s, const struct apicache_request *req)
{
    struct apicache_reply r = {0};
    struct err err = ERR_INIT;
    enum err_kind kind = apicache_get(s->cache, req, &r, &err);
    apicache_reply_release(&r);
    return kind;
}

/* Status, whole body, and how many requests it cost. */
static void expect(struct server *s, const char *target, int status, const char *body,
                   size_t requests)
{
    size_t before = s->asked;
    struct apicache_reply r = get(s, target);
    assert_int_equal(r.status, status);
    assert_int_equal(r.len, strlen(body));
    assert_memory_equal(r.bytes, body, r.len);
    assert_int_equal(r.requests, requests);
    assert_int_equal(s->asked - before, requests);
    apicache_reply_release(&r);
}

/* ---- the cache ---- */

static void entry_is_used_only_after_the_server_confirmed_it(void **state)
{
    struct server *s = *state;
    s->pages[0] = (struct page){.target = "/apis",
                                .etag = "\"1\"",
                                .body = "{\"n\":1}",
                                .type = DISCOVERY,
                                .cache_control = "public"};
    struct apicache_reply first = get(s, "/apis");
    assert_true(first.fetched);
    assert_string_equal(s->condition, "(none)");
    struct apicache_reply second = get(s, "/apis");
    assert_string_equal(s->condition, "\"1\"");
    assert_int_equal(second.status, 200);
    assert_ptr_equal(second.bytes, first.bytes);
    assert_false(second.fetched);
    assert_int_equal(second.requests, 1);
    assert_string_equal(second.etag, "\"1\"");
    assert_string_equal(second.content_type, DISCOVERY);
    assert_string_equal(second.cache_control, "public");
    assert_int_equal(s->bodies, 1);
    apicache_reply_release(&first);
    apicache_reply_release(&second);
}

static void new_etag_replaces_the_entry_at_once(void **state)
{
    struct server *s = *state;
    s->pages[0] = (struct page){.target = "/apis", .etag = "\"1\"", .body = "{\"n\":1}"};
    expect(s, "/apis", 200, "{\"n\":1}", 1);
    s->pages[0] = (struct page){.target = "/apis", .etag = "\"2\"", .body = "{\"n\":22}"};
    expect(s, "/apis", 200, "{\"n\":22}", 1);
    expect(s, "/apis", 200, "{\"n\":22}", 1);
    assert_string_equal(s->condition, "\"2\"");
    assert_int_equal(s->bodies, 2);
}

static void answer_without_etag_is_fetched_each_time(void **state)
{
    struct server *s = *state;
    s->pages[0] = (struct page){.target = "/openapi/v3", .body = "{\"n\":1}"};
    expect(s, "/openapi/v3", 200, "{\"n\":1}", 1);
    s->pages[0].body = "{\"n\":2}";
    expect(s, "/openapi/v3", 200, "{\"n\":2}", 1);
    assert_string_equal(s->condition, "(none)");
}

static void entry_whose_server_stopped_sending_etags_does_not_come_back(void **state)
{
    struct server *s = *state;
    s->pages[0] = (struct page){.target = "/apis", .etag = "\"1\"", .body = "{\"n\":1}"};
    expect(s, "/apis", 200, "{\"n\":1}", 1);
    s->pages[0] = (struct page){.target = "/apis", .body = "{\"n\":2}"};
    expect(s, "/apis", 200, "{\"n\":2}", 1);
    expect(s, "/apis", 200, "{\"n\":2}", 1);
}

static void document_of_a_hash_is_trimmed_and_asked_for_once(void **state)
{
    struct server *s = *state;
    s->pages[0] = (struct page){.target = HASHED,
                                .etag = "\"AB12\"",
                                .cache_control = "public, immutable",
                                .body = "{\"paths\":{},\"components\":{\"schemas\":{}}}"};
    expect(s, HASHED, 200, "{\"paths\":{}}", 1);
    expect(s, HASHED, 200, "{\"paths\":{}}", 0);
    struct apicache_reply r = get(s, HASHED);
    assert_string_equal(r.etag, "\"AB12\"");
    assert_string_equal(r.cache_control, "public, immutable");
    assert_string_equal(r.content_type, "application/json");
    apicache_reply_release(&r);
}

static void hash_that_is_not_the_etag_proves_nothing(void **state)
{
    struct server *s = *state;
    static const char *const etags[] = {"\"AB1\"", "\"AB123\"", "\"XX12\"", "W/\"AB12\"", "AB12"};
    for (size_t i = 0; i < sizeof(etags) / sizeof(etags[0]); i++) {
        s->pages[0] = (struct page){.target = HASHED, .etag = etags[i], .body = "{\"paths\":{}}"};
        expect(s, HASHED, 200, "{\"paths\":{}}", 1);
        expect(s, HASHED, 200, "{\"paths\":{}}", 1);
        assert_string_equal(s->condition, etags[i]);
    }
}

static void document_without_a_hash_is_confirmed_each_time(void **state)
{
    struct server *s = *state;
    static const char *const targets[] = {DOC, DOC "?hash=", DOC "?xhash=AB12"};
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        s->pages[0] = (struct page){
            .target = targets[i], .etag = "\"AB12\"", .body = "{\"paths\":{},\"x\":1}"};
        s->bodies = 0;
        expect(s, targets[i], 200, "{\"paths\":{}}", 1);
        expect(s, targets[i], 200, "{\"paths\":{}}", 1);
        assert_int_equal(s->bodies, 1);
    }
}

static void redirect_from_an_old_hash_ends_at_the_newest_document(void **state)
{
    struct server *s = *state;
    static const struct {
        int status;
        const char *asked, *then;
    } rows[] = {{301, HASHED, DOC "?timeout=32s"},
                {302, DOC "?timeout=32s&hash=AB12", DOC "?timeout=32s"},
                {308, DOC "?hash=AB12", DOC}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        s->pages[0] = (struct page){
            .target = rows[i].asked, .status = rows[i].status, .etag = "\"CD34\"", .body = ""};
        s->pages[1] = (struct page){
            .target = rows[i].then, .etag = "\"CD34\"", .body = "{\"paths\":{},\"x\":1}"};
        expect(s, rows[i].asked, 200, "{\"paths\":{}}", 2);
        struct apicache_reply r = get(s, rows[i].asked);
        assert_int_equal(r.requests, 2);
        assert_string_equal(r.etag, "\"CD34\"");
        apicache_reply_release(&r);
    }
    /* Where the URL names no hash, or two, a redirect is just an answer. */
    s->pages[0] = (struct page){.target = DOC, .status = 301, .body = ""};
    s->pages[1] = (struct page){0};
    expect(s, DOC, 301, "", 1);
    s->pages[0] = (struct page){.target = DOC "?hash=1&hash=2", .status = 301, .body = ""};
    s->pages[1] = (struct page){.target = DOC "?hash=2", .status = 301, .body = ""};
    expect(s, DOC "?hash=1&hash=2", 301, "", 2);
}

static void client_that_has_it_gets_a_304(void **state)
{
    struct server *s = *state;
    s->pages[0] = (struct page){.target = "/apis", .etag = "\"1\"", .body = "{\"n\":1}"};
    struct apicache_request req = request("/apis");
    req.if_none_match = "\"1\"";
    for (int i = 0; i < 2; i++) { /* cold and warm */
        struct apicache_reply r = must_get(s, &req);
        assert_int_equal(r.status, 304);
        assert_int_equal(r.len, 0);
        assert_string_equal(r.etag, "\"1\"");
        apicache_reply_release(&r);
    }
    req.if_none_match = "\"0\"";
    struct apicache_reply r = must_get(s, &req);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.len, 7);
    apicache_reply_release(&r);
}

static void other_accept_is_another_answer(void **state)
{
    struct server *s = *state;
    s->pages[0] = (struct page){.target = "/apis", .etag = "\"1\"", .body = "{\"n\":1}"};
    expect(s, "/apis", 200, "{\"n\":1}", 1);
    struct apicache_request req = request("/apis");
    req.accept = DISCOVERY ",application/json";
    assert_int_equal(try_get(s, &req), ERR_NONE);
    assert_string_equal(s->accept, DISCOVERY ",application/json");
    assert_string_equal(s->condition, "(none)");
    req.accept = "";
    assert_int_equal(try_get(s, &req), ERR_NONE);
    assert_string_equal(s->accept, "(none)");
    assert_string_equal(s->condition, "(none)");
}

static void errors_pass_and_are_not_kept(void **state)
{
    struct server *s = *state;
    static const char *const targets[] = {"/apis", HASHED};
    for (size_t i = 0; i < 2; i++) {
        const char *target = targets[i];
        static const int codes[] = {403, 404, 429, 500, 503};
        for (size_t k = 0; k < sizeof(codes) / sizeof(codes[0]); k++) {
            s->pages[0] = (struct page){.target = target,
                                        .status = codes[k],
                                        .etag = "\"AB12\"",
                                        .body = "{\"kind\":\"Status\"}"};
            expect(s, target, codes[k], "{\"kind\":\"Status\"}", 1);
            assert_string_equal(s->condition, "(none)");
        }
        s->pages[0] = (struct page){.target = target, .fails = ERR_UNAVAILABLE};
        struct apicache_request req = request(target);
        assert_int_equal(try_get(s, &req), ERR_UNAVAILABLE);
        s->pages[0] = (struct page){.target = target, .etag = "\"AB12\"", .body = "{\"paths\":{}}"};
        expect(s, target, 200, "{\"paths\":{}}", 1);
    }
    /* What was there before is still there to be confirmed, and only then used. */
    s->pages[0] = (struct page){.target = "/apis", .status = 503, .body = "no"};
    expect(s, "/apis", 503, "no", 1);
    assert_string_equal(s->condition, "\"AB12\"");
    s->pages[0] = (struct page){.target = "/apis", .etag = "\"AB12\"", .body = "{}"};
    expect(s, "/apis", 200, "{\"paths\":{}}", 1);
}

static void unasked_304_is_no_answer(void **state)
{
    struct server *s = *state;
    s->pages[0] = (struct page){.target = "/apis", .status = 304, .body = ""};
    struct apicache_request req = request("/apis");
    assert_int_equal(try_get(s, &req), ERR_UNAVAILABLE);
}

static void what_is_no_openapi_document_passes_as_it_is(void **state)
{
    struct server *s = *state;
    s->pages[0] = (struct page){.target = HASHED, .etag = "\"AB12\"", .body = "{\"swagger\":2}"};
    expect(s, HASHED, 200, "{\"swagger\":2}", 1);
    expect(s, HASHED, 200, "{\"swagger\":2}", 1);
    s->pages[0].body = "{\"paths\":{},\"x\":1}";
    s->pages[0].type = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
    expect(s, HASHED, 200, "{\"paths\":{},\"x\":1}", 1);
    assert_int_equal(s->bodies, 3);
}

/* A text of len bytes that is no JSON. */
static char *long_text(size_t len)
{
    char *text = xmalloc(len + 1);
    memset(text, 'x', len);
    text[len] = '\0';
    return text;
}

static void big_thing_that_cannot_be_trimmed_is_refused(void **state)
{
    struct server *s = *state;
    _cleanup_(free_cstr)
    char *text = long_text((4U << 20) + 1);
    s->pages[0] = (struct page){.target = HASHED, .etag = "\"AB12\"", .body = text};
    struct apicache_request req = request(HASHED);
    assert_int_equal(try_get(s, &req), ERR_LIMIT);
    text[4U << 20] = '\0';
    struct apicache_reply r = get(s, HASHED);
    assert_int_equal(r.len, 4U << 20);
    apicache_reply_release(&r);
}

static void bytes_are_bounded_and_the_oldest_goes(void **state)
{
    struct server *s = *state;
    _cleanup_(free_cstr)
    char *text = long_text(3U << 20);
    static const char *const targets[] = {"/apis/a", "/apis/b", "/apis/c"};
    for (size_t i = 0; i < 3; i++) {
        s->pages[i] = (struct page){.target = targets[i], .etag = "\"1\"", .body = text};
    }
    struct apicache_reply a = get(s, "/apis/a"), b = get(s, "/apis/b");
    apicache_reply_release(&a);
    a = get(s, "/apis/a"); /* used after b */
    assert_false(a.fetched);
    struct apicache_reply c = get(s, "/apis/c");
    assert_true(c.fetched);
    assert_memory_equal(b.bytes, text, b.len); /* whoever has it keeps it */
    apicache_reply_release(&a);
    apicache_reply_release(&b);
    apicache_reply_release(&c);
    size_t bodies = s->bodies;
    a = get(s, "/apis/a");
    c = get(s, "/apis/c");
    assert_int_equal(s->bodies, bodies);
    b = get(s, "/apis/b");
    assert_int_equal(s->bodies, bodies + 1);
    apicache_reply_release(&a);
    apicache_reply_release(&b);
    apicache_reply_release(&c);
}

static void replaced_entries_do_not_count(void **state)
{
    struct server *s = *state;
    _cleanup_(free_cstr)
    char *text = long_text(3U << 20);
    s->pages[1] = (struct page){.target = "/api", .etag = "\"1\"", .body = "{}"};
    expect(s, "/api", 200, "{}", 1);
    static const char *const etags[] = {"\"1\"", "\"2\"", "\"3\"", "\"4\""};
    for (size_t i = 0; i < sizeof(etags) / sizeof(etags[0]); i++) {
        s->pages[0] = (struct page){.target = "/apis", .etag = etags[i], .body = text};
        struct apicache_reply r = get(s, "/apis");
        apicache_reply_release(&r);
    }
    size_t bodies = s->bodies;
    expect(s, "/api", 200, "{}", 1);
    assert_int_equal(s->bodies, bodies);
}

static void answer_over_the_whole_bound_is_not_kept(void **state)
{
    struct server *s = *state;
    _cleanup_(free_cstr)
    char *text = long_text(8U << 20);
    s->pages[0] = (struct page){.target = "/apis", .etag = "\"1\"", .body = text};
    s->pages[1] = (struct page){.target = "/api", .etag = "\"1\"", .body = "{}"};
    expect(s, "/api", 200, "{}", 1);
    for (int i = 0; i < 2; i++) {
        struct apicache_reply r = get(s, "/apis");
        assert_true(r.fetched);
        assert_int_equal(r.len, 8U << 20);
        apicache_reply_release(&r);
    }
    size_t bodies = s->bodies;
    expect(s, "/api", 200, "{}", 1);
    assert_int_equal(s->bodies, bodies);
}

static void number_of_entries_is_bounded(void **state)
{
    struct server *s = *state;
    enum { ENTRIES = 256 };
    char target[32];
    for (int i = 0; i <= ENTRIES; i++) { /* one more than fit: the first goes */
        (void)snprintf(target, sizeof(target), "/apis/g%d", i);
        s->pages[0] = (struct page){.target = target, .etag = "\"1\"", .body = "{}"};
        expect(s, target, 200, "{}", 1);
    }
    s->bodies = 0;
    (void)snprintf(target, sizeof(target), "/apis/g1");
    expect(s, target, 200, "{}", 1);
    assert_int_equal(s->bodies, 0);
    (void)snprintf(target, sizeof(target), "/apis/g0");
    expect(s, target, 200, "{}", 1);
    assert_int_equal(s->bodies, 1);
}

/* ---- many at once ---- */

struct asker {
    struct server *server;
    const char *target;
    struct cancel *cancel;
    enum err_kind kind;
    struct apicache_reply reply;
    pthread_t thread;
};

static void *asker_main(void *arg)
{
    struct asker *a = arg;
    struct apicache_request req = request(a->target);
    struct err err = ERR_INIT;
    req.cancel = a->cancel;
    a->kind = apicache_get(a->server->cache, &req, &a->reply, &err);
    mtx_lock(&a->server->lock);
    a->server->waiter_is_back = a->cancel != NULL;
    cond_broadcast(&a->server->changed);
    mtx_unlock(&a->server->lock);
    return NULL;
}

static void start(struct server *s, struct asker *askers, size_t n, const char *target)
{
    for (size_t i = 0; i < n; i++) {
        askers[i] = (struct asker){.server = s, .target = target};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, asker_main, &askers[i]), 0);
    }
}

static void join(struct asker *askers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(pthread_join(askers[i].thread, NULL), 0);
    }
}

static void one_fetch_serves_all_who_wait_for_a_document(void **state)
{
    struct server *s = *state;
    struct asker askers[THREADS];
    s->pages[0] =
        (struct page){.target = HASHED, .etag = "\"AB12\"", .body = "{\"paths\":{},\"x\":1}"};
    s->hold_until = THREADS - 1;
    start(s, askers, THREADS, HASHED);
    join(askers, THREADS);
    assert_int_equal(s->asked, 1);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(askers[i].kind, ERR_NONE);
        assert_int_equal(askers[i].reply.status, 200);
        assert_ptr_equal(askers[i].reply.bytes, askers[0].reply.bytes);
        assert_string_equal(askers[i].reply.bytes, "{\"paths\":{}}");
    }
    for (size_t i = 0; i < THREADS; i++) {
        apicache_reply_release(&askers[i].reply);
    }
}

static void without_a_hash_each_who_waited_confirms_for_itself(void **state)
{
    struct server *s = *state;
    struct asker askers[THREADS];
    s->pages[0] =
        (struct page){.target = DOC, .etag = "\"AB12\"", .body = "{\"paths\":{},\"x\":1}"};
    s->hold_until = THREADS - 1;
    start(s, askers, THREADS, DOC);
    join(askers, THREADS);
    assert_int_equal(s->asked, THREADS);
    assert_int_equal(s->bodies, 1);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(askers[i].kind, ERR_NONE);
        assert_string_equal(askers[i].reply.bytes, "{\"paths\":{}}");
        apicache_reply_release(&askers[i].reply);
    }
}

static void mend(struct server *s)
{
    s->pages[0] = (struct page){.target = HASHED, .etag = "\"AB12\"", .body = "{\"paths\":{}}"};
}

static void failed_fetch_is_taken_over_by_who_waits(void **state)
{
    struct server *s = *state;
    struct asker askers[THREADS];
    s->pages[0] = (struct page){.target = HASHED, .fails = ERR_UNAVAILABLE};
    s->hold_until = THREADS - 1;
    s->on_ask = mend;
    start(s, askers, THREADS, HASHED);
    join(askers, THREADS);
    assert_int_equal(s->asked, 2);
    size_t failed = 0;
    for (size_t i = 0; i < THREADS; i++) {
        failed += askers[i].kind == ERR_UNAVAILABLE;
        apicache_reply_release(&askers[i].reply);
    }
    assert_int_equal(failed, 1);
}

static void ask_again_meanwhile(struct server *s)
{
    struct apicache_request req = request(HASHED);
    s->wait_jumps = true;
    assert_int_equal(try_get(s, &req), ERR_TIMEOUT);
    assert_int_equal(s->waiting, 1);
    req.deadline = mono_add_ms(s->now, 30000);
    req.cancel = &s->cancel;
    cancel_raise(&s->cancel);
    assert_int_equal(try_get(s, &req), ERR_CANCELLED);
    /* What is not busy does not wait. */
    s->pages[1] = (struct page){.target = "/version", .body = "{}"};
    expect(s, "/version", 200, "{}", 1);
    s->pages[2] = (struct page){.target = DOC, .body = "{\"paths\":{}}"};
    struct apicache_request other = request(DOC);
    assert_int_equal(try_get(s, &other), ERR_NONE);
    assert_int_equal(s->waiting, 1);
}

static void waiting_ends_with_the_deadline_or_when_told_to_stop(void **state)
{
    struct server *s = *state;
    s->pages[0] = (struct page){.target = HASHED, .etag = "\"AB12\"", .body = "{\"paths\":{}}"};
    s->on_ask = ask_again_meanwhile;
    struct apicache_request req = request(HASHED);
    assert_int_equal(try_get(s, &req), ERR_NONE);
    assert_null(s->on_ask);
}

/* The waiter is told to stop while the fetch that it waits for has not ended. */
static void stop_the_waiter(struct server *s)
{
    mtx_lock(&s->lock);
    while (s->waiting < 1) {
        cond_wait_ms(&s->changed, &s->lock, 1000);
    }
    mtx_unlock(&s->lock);
    cancel_raise(&s->cancel);
    mtx_lock(&s->lock);
    while (!s->waiter_is_back) {
        cond_wait_ms(&s->changed, &s->lock, 1000);
    }
    mtx_unlock(&s->lock);
}

static void start_and_stop_a_waiter(struct server *s)
{
    struct asker waiter = {.server = s, .target = HASHED, .cancel = &s->cancel};
    assert_int_equal(pthread_create(&waiter.thread, NULL, asker_main, &waiter), 0);
    stop_the_waiter(s);
    join(&waiter, 1);
    assert_int_equal(waiter.kind, ERR_CANCELLED);
}

static void cancel_wakes_a_waiter_at_once(void **state)
{
    struct server *s = *state;
    s->pages[0] = (struct page){.target = HASHED, .etag = "\"AB12\"", .body = "{\"paths\":{}}"};
    s->on_ask = start_and_stop_a_waiter;
    struct apicache_request req = request(HASHED);
    assert_int_equal(try_get(s, &req), ERR_NONE);
    assert_true(s->waiter_is_back);
    assert_int_equal(s->asked, 1);
}

#define WITH_SERVER(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(openapi_is_trimmed_to_what_helm_reads),
        cmocka_unit_test(real_document_keeps_its_kinds_and_loses_the_rest),
        cmocka_unit_test(dropped_parts_may_be_nested_at_any_depth),
        cmocka_unit_test(too_many_paths_are_no_trimmed_document),
        cmocka_unit_test(discovery_and_openapi_are_served_and_nothing_else),
        WITH_SERVER(entry_is_used_only_after_the_server_confirmed_it),
        WITH_SERVER(new_etag_replaces_the_entry_at_once),
        WITH_SERVER(answer_without_etag_is_fetched_each_time),
        WITH_SERVER(entry_whose_server_stopped_sending_etags_does_not_come_back),
        WITH_SERVER(document_of_a_hash_is_trimmed_and_asked_for_once),
        WITH_SERVER(hash_that_is_not_the_etag_proves_nothing),
        WITH_SERVER(document_without_a_hash_is_confirmed_each_time),
        WITH_SERVER(redirect_from_an_old_hash_ends_at_the_newest_document),
        WITH_SERVER(client_that_has_it_gets_a_304),
        WITH_SERVER(other_accept_is_another_answer),
        WITH_SERVER(errors_pass_and_are_not_kept),
        WITH_SERVER(unasked_304_is_no_answer),
        WITH_SERVER(what_is_no_openapi_document_passes_as_it_is),
        WITH_SERVER(big_thing_that_cannot_be_trimmed_is_refused),
        WITH_SERVER(bytes_are_bounded_and_the_oldest_goes),
        WITH_SERVER(replaced_entries_do_not_count),
        WITH_SERVER(answer_over_the_whole_bound_is_not_kept),
        WITH_SERVER(number_of_entries_is_bounded),
        WITH_SERVER(one_fetch_serves_all_who_wait_for_a_document),
        WITH_SERVER(without_a_hash_each_who_waited_confirms_for_itself),
        WITH_SERVER(failed_fetch_is_taken_over_by_who_waits),
        WITH_SERVER(waiting_ends_with_the_deadline_or_when_told_to_stop),
        WITH_SERVER(cancel_wakes_a_waiter_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
