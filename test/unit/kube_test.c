/* kube over a transport of this file's own, which answers from a script and keeps what it was
 * asked. The config is the in-cluster one, from a directory of the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "kube/kube.h"
#include "kube/kube_forward.h"
#include "kube/kube_wire.h"
#include "kube/kubeconfig.h"

#define SCRIPT_MAX 16
#define DATE       "Tue, 01 Dec 2026 12:00:00 GMT"
#define DATE_NS    (INT64_C(1796126400) * NS_PER_SEC)

/* ---- a clock that stands still until it is told ---- */

struct fake_clock {
    struct clock base;
    struct mono now;
};

static struct mono fake_mono(struct clock *c)
{
    return ((struct fake_clock *)c)->now;
}

static struct wall fake_wall(struct clock *c)
{
    (void)c;
    return (struct wall){DATE_NS};
}

static void fake_wait(struct clock *c, struct cond *cond, struct mtx *m, struct mono deadline)
{
    (void)c;
    (void)cond;
    (void)m;
    (void)deadline;
    fail_msg("nothing waits here");
}

/* ---- a transport with a script ---- */

struct answer {
    enum err_kind fails; /* ERR_NONE: a reply */
    int status;
    const char *body;
    const char *retry_after;
    const char *date; /* NULL: DATE */
    bool date_unreliable;
};

struct script {
    struct transport base;
    struct fake_clock *clock;
    const struct answer *answers;
    size_t answer_count;
    size_t asked;
    char *seen[SCRIPT_MAX]; /* "METHOD URL\nName: value\n...\n\nbody" */
    struct http_request last;
    int open_streams;
};

static char *render(const struct http_request *req)
{
    struct buf b = BUF_INIT(1 << 20);
    buf_addf(&b, "%s %s\n", req->method, req->url);
    for (size_t i = 0; i < req->header_count; i++) {
        buf_addf(&b, "%s: %s\n", req->headers[i].name, req->headers[i].value);
    }
    buf_add_char(&b, '\n');
    if (req->body != NULL) {
        buf_add(&b, req->body, req->body_len);
    }
    return buf_take(&b);
}

/* The next answer; *ret_head is its head, unless it fails. */
static const struct answer *script_next(struct script *s, const struct http_request *req,
                                        struct http_response *ret_head)
{
    must(s->asked < s->answer_count && s->asked < SCRIPT_MAX);
    const struct answer *a = &s->answers[s->asked];
    s->seen[s->asked++] = render(req);
    s->last = *req;
    *ret_head = (struct http_response){.status = a->status, .body = BUF_INIT(LIMIT_BODY_BYTES)};
    ret_head->date_unreliable = a->date_unreliable;
    ret_head->sent = s->clock->now;
    ret_head->received = mono_add_ms(s->clock->now, 10);
    (void)snprintf(ret_head->date, sizeof(ret_head->date), "%s", a->date != NULL ? a->date : DATE);
    (void)snprintf(ret_head->retry_after, sizeof(ret_head->retry_after), "%s",
                   a->retry_after != NULL ? a->retry_after : "");
    if (req->on_header != NULL && a->fails == ERR_NONE) {
        char try[16];
        (void)snprintf(try, sizeof(try), "%zu", s->asked);
        req->on_header(req->ctx, "X-Try", try);
        req->on_header(req->ctx, "X-Empty", "");
    }
    return a;
}

static enum err_kind script_perform(struct transport *t, const struct http_request *req,
                                    struct http_response *ret, struct err *err)
{
    struct http_response r;
    const struct answer *a = script_next((struct script *)t, req, &r);
    if (a->fails != ERR_NONE) {
        return err_set(err, a->fails, "the wire");
    }
    const char *body = a->body != NULL ? a->body : "";
    if (req->on_data != NULL && a->status / 100 == 2) {
        must(req->on_data(req->ctx, body, strlen(body)));
    } else {
        buf_add_str(&r.body, body);
    }
    *ret = r;
    return ERR_NONE;
}

/* Its body comes byte by byte. */
struct http_stream {
    struct script *script;
    const char *rest;
};

static enum err_kind script_open(struct transport *t, const struct http_request *req,
                                 struct http_response *ret_head, struct http_stream **ret,
                                 struct err *err)
{
    struct script *s = (struct script *)t;
    must(s->open_streams == 0); /* as transport.h asks */
    struct http_response head;
    const struct answer *a = script_next(s, req, &head);
    if (a->fails != ERR_NONE) {
        return err_set(err, a->fails, "the wire");
    }
    *ret_head = head;
    *ret = xcalloc(1, sizeof(**ret));
    **ret = (struct http_stream){.script = s, .rest = a->body != NULL ? a->body : ""};
    s->open_streams++;
    return ERR_NONE;
}

static enum err_kind script_read(struct http_stream *s, char *bytes, size_t cap, size_t *ret_len,
                                 struct err *err)
{
    (void)err;
    must(cap > 0);
    *ret_len = s->rest[0] != '\0' ? 1 : 0;
    bytes[0] = s->rest[0];
    s->rest += *ret_len;
    return ERR_NONE;
}

static void script_close(struct http_stream *s)
{
    s->script->open_streams--;
    free(s);
}

static void script_perform_many(struct transport *t, struct http_call *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        calls[i].result = script_perform(t, calls[i].request, &calls[i].response, &calls[i].err);
    }
}

static const struct transport_ops SCRIPT_OPS = {.perform = script_perform,
                                                .perform_many = script_perform_many,
                                                .open = script_open,
                                                .read = script_read,
                                                .close = script_close};
static const struct clock_ops CLOCK_OPS = {.mono = fake_mono, .wall = fake_wall, .wait = fake_wait};

/* ---- the fixture ---- */

struct fixture {
    char dir[32];
    struct fake_clock clock;
    struct script script;
    struct kube_config *config;
    struct kube *kube;
};

static void put_file(const struct fixture *f, const char *name, const char *text)
{
    _cleanup_(free_cstr)
    char *path = xasprintf("%s/%s", f->dir, name);
    FILE *file = fopen(path, "we");
    must(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void drop_file(const struct fixture *f, const char *name)
{
    _cleanup_(free_cstr)
    char *path = xasprintf("%s/%s", f->dir, name);
    (void)unlink(path);
}

static int setup(void **state)
{
    struct fixture *f = xcalloc(1, sizeof(*f));
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/kube_test.XXXXXX");
    must(mkdtemp(f->dir) != NULL);
    put_file(f, "token", "tok1\n");
    put_file(f, "ca.crt", "");
    put_file(f, "namespace", "flux");
    must(unsetenv("KUBECONFIG") == 0 && setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1) == 0 &&
         setenv("KUBERNETES_SERVICE_PORT", "6443", 1) == 0);
    f->clock = (struct fake_clock){.base.ops = &CLOCK_OPS, .now = {1000 * NS_PER_SEC}};
    f->script = (struct script){.base.ops = &SCRIPT_OPS, .clock = &f->clock};
    struct err err = ERR_INIT;
    must(kube_config_load(
             &(struct kube_config_options){.clock = &f->clock.base, .service_account_dir = f->dir},
             &f->config, &err) == ERR_NONE);
    f->kube = kube_new(&(struct kube_options){.transport = &f->script.base,
                                              .clock = &f->clock.base,
                                              .config = f->config,
                                              .user_agent = "belay/test"});
    *state = f;
    return 0;
}

static void forget(struct fixture *f)
{
    for (size_t i = 0; i < f->script.asked; i++) {
        free(f->script.seen[i]);
    }
    f->script.asked = 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    forget(f);
    kube_free(f->kube);
    kube_config_free(f->config);
    drop_file(f, "token");
    drop_file(f, "ca.crt");
    drop_file(f, "namespace");
    (void)rmdir(f->dir);
    free(f);
    return 0;
}

static void will_answer(struct fixture *f, const struct answer *answers, size_t n)
{
    forget(f);
    f->script.answers = answers;
    f->script.answer_count = n;
}

static struct kube_request get_request(const char *name)
{
    return (struct kube_request){.method = "GET",
                                 .gvr = &KUBE_HELMRELEASES,
                                 .ns = "a",
                                 .name = name,
                                 .deadline = {INT64_MAX},
                                 .idle_ms = 1000};
}

/* ---- requests ---- */

static void urls_address_what_is_meant(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *name;
        struct kube_request req;
        const char *path;
    } rows[] = {
        {"one object",
         {.gvr = &KUBE_HELMRELEASES, .ns = "a", .name = "n"},
         "/apis/helm.fluxcd.io/v1/namespaces/a/helmreleases/n"},
        {"its status",
         {.gvr = &KUBE_HELMRELEASES, .ns = "a", .name = "n", .subresource = "status"},
         "/apis/helm.fluxcd.io/v1/namespaces/a/helmreleases/n/status"},
        {"all namespaces", {.gvr = &KUBE_HELMRELEASES}, "/apis/helm.fluxcd.io/v1/helmreleases"},
        {"all namespaces by an empty one", {.gvr = &KUBE_SECRETS, .ns = ""}, "/api/v1/secrets"},
        {"core group", {.gvr = &KUBE_SECRETS, .ns = "a"}, "/api/v1/namespaces/a/secrets"},
        {"cluster-wide kind",
         {.gvr = &KUBE_CRDS, .name = "x.y"},
         "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x.y"},
        {"namespaces themselves", {.gvr = &KUBE_NAMESPACES, .name = "a"}, "/api/v1/namespaces/a"},
        {"query",
         {.gvr = &KUBE_CONFIGMAPS, .ns = "a", .query = "limit=5&continue=x%3D"},
         "/api/v1/namespaces/a/configmaps?limit=5&continue=x%3D"},
        {"name with everything in it",
         {.gvr = &KUBE_SECRETS, .ns = "a", .name = "x/../y?z#%"},
         "/api/v1/namespaces/a/secrets/x%2F..%2Fy%3Fz%23%25"},
        {"raw path", {.raw_path = "/version"}, "/version"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        static const struct answer ok[] = {{.status = 200, .body = "{}"}};
        will_answer(f, ok, 1);
        struct kube_request req = rows[i].req;
        req.method = "GET";
        req.deadline = MONO_NEVER;
        struct kube_reply reply = KUBE_REPLY_INIT;
        struct err err = ERR_INIT;
        assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_NONE);
        kube_reply_release(&reply);
        _cleanup_(free_cstr)
        char *line = xasprintf("GET https://[fd00::1]:6443%s\n", rows[i].path);
        if (!text_has_prefix(f->script.seen[0], line)) {
            fail_msg("%s: %s", rows[i].name, f->script.seen[0]);
        }
    }
    assert_string_equal(kube_server(f->kube), "https://[fd00::1]:6443");
    assert_string_equal(kube_config_namespace(f->config), "flux");
    assert_string_equal(kube_config_origin(f->config), "in-cluster");
}

static void names_that_address_something_else_are_refused(void **state)
{
    struct fixture *f = *state;
    static const struct kube_request rows[] = {
        {.gvr = &KUBE_SECRETS, .ns = "a", .name = ""},
        {.gvr = &KUBE_SECRETS, .ns = "a", .name = "."},
        {.gvr = &KUBE_SECRETS, .ns = "..", .name = "n"},
        {.gvr = &KUBE_SECRETS, .ns = "", .name = "n"},
        {.gvr = &KUBE_SECRETS, .name = "n"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kube_request req = rows[i];
        req.method = "GET";
        req.deadline = MONO_NEVER;
        struct kube_reply reply = KUBE_REPLY_INIT;
        struct err err = ERR_INIT;
        assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_INVALID);
    }
    assert_int_equal(f->script.asked, 0);
}

static void request_carries_its_headers_and_body(void **state)
{
    struct fixture *f = *state;
    static const struct answer ok[] = {{.status = 200, .body = "{\"a\":2}"},
                                       {.status = 200, .body = "{}"}};
    will_answer(f, ok, 2);
    _cleanup_json_ json_t *body = json_pack("{s:i}", "a", 1);
    struct kube_request req = get_request("n");
    req.method = "PATCH";
    req.body = body;
    req.content_type = KUBE_MERGE_PATCH;
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_NONE);
    assert_int_equal(jsonx_int(reply.object, "a", 0), 2);
    assert_int_equal(reply.status, 200);
    kube_reply_release(&reply);
    const char *seen = f->script.seen[0];
    assert_non_null(strstr(seen, "\nAccept: application/json\n"));
    assert_non_null(strstr(seen, "\nAuthorization: Bearer tok1\n"));
    assert_non_null(strstr(seen, "\nUser-Agent: belay/test\n"));
    assert_non_null(strstr(seen, "\nContent-Type: application/merge-patch+json\n"));
    assert_true(text_has_suffix(seen, "\n\n{\"a\":1}"));
    req = get_request("n");
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_NONE);
    kube_reply_release(&reply);
    assert_null(strstr(f->script.seen[1], "Content-Type"));
}

/* ---- replies ---- */

static void every_status_has_its_kind(void **state)
{
    struct fixture *f = *state;
    static const struct {
        int status;
        const char *reason;
        enum err_kind get, write;
    } rows[] = {
        {400, "BadRequest", ERR_INVALID, ERR_INVALID},
        {403, "Forbidden", ERR_DENIED, ERR_DENIED},
        {404, "NotFound", ERR_NOT_FOUND, ERR_NOT_FOUND},
        {405, "MethodNotAllowed", ERR_INVALID, ERR_INVALID},
        {406, "NotAcceptable", ERR_INVALID, ERR_INVALID},
        {408, "Timeout", ERR_UNAVAILABLE, ERR_UNKNOWN_OUTCOME},
        {409, "Conflict", ERR_CONFLICT, ERR_CONFLICT},
        {409, "AlreadyExists", ERR_EXISTS, ERR_EXISTS},
        {410, "Expired", ERR_GONE, ERR_GONE},
        {413, "RequestEntityTooLarge", ERR_INVALID, ERR_INVALID},
        {415, "UnsupportedMediaType", ERR_INVALID, ERR_INVALID},
        {422, "Invalid", ERR_INVALID, ERR_INVALID},
        {429, "TooManyRequests", ERR_THROTTLED, ERR_THROTTLED},
        {500, "InternalError", ERR_UNAVAILABLE, ERR_UNKNOWN_OUTCOME},
        {502, "", ERR_UNAVAILABLE, ERR_UNKNOWN_OUTCOME},
        {503, "ServiceUnavailable", ERR_UNAVAILABLE, ERR_UNKNOWN_OUTCOME},
        {504, "Timeout", ERR_UNAVAILABLE, ERR_UNKNOWN_OUTCOME},
        {302, "", ERR_UNAVAILABLE, ERR_UNAVAILABLE},
    };
    static const char *const writes[] = {"POST", "PUT", "PATCH", "DELETE"};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_(free_cstr)
        char *body = xasprintf("{\"kind\":\"Status\",\"status\":\"Failure\",\"message\":\"why "
                               "%zu\",\"reason\":\"%s\"}",
                               i, rows[i].reason);
        _cleanup_(free_cstr)
        char *why = xasprintf("why %zu", i);
        for (size_t m = 0; m < 5; m++) {
            struct answer answers[] = {{.status = rows[i].status, .body = body}};
            will_answer(f, answers, 1);
            struct kube_request req = get_request("n");
            req.method = m < 4 ? writes[m] : "GET";
            struct kube_reply reply = KUBE_REPLY_INIT;
            struct err err = ERR_INIT;
            enum err_kind kind = kube_do(f->kube, &req, &reply, &err);
            if (kind != (m < 4 ? rows[i].write : rows[i].get)) {
                fail_msg("%s %d %s: %s", req.method, rows[i].status, rows[i].reason,
                         err_kind_name(kind));
            }
            assert_int_equal(err.kind, kind);
            assert_int_equal(err.code, rows[i].status);
            assert_string_equal(err.msg, why);
        }
    }
}

static void retry_after_is_read_in_all_its_forms(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *header, *body;
        int64_t ms;
    } rows[] = {
        {"7", "", 7000},
        {"Tue, 01 Dec 2026 12:01:30 GMT", "", 90000},
        {"Tue, 01 Dec 2026 11:00:00 GMT", "", 0},
        {"", "{\"kind\":\"Status\",\"details\":{\"retryAfterSeconds\":3}}", 3000},
        {"", "", 0},
        {"-5", "", 0},
        {"99999999", "", 3600000},
        {"", "{\"kind\":\"Status\",\"details\":{\"retryAfterSeconds\":-3}}", 0},
        {"soon", "<html>", 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct answer answers[] = {
            {.status = 429, .retry_after = rows[i].header, .body = rows[i].body}};
        will_answer(f, answers, 1);
        struct kube_request req = get_request("n");
        struct kube_reply reply = KUBE_REPLY_INIT;
        struct err err = ERR_INIT;
        assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_THROTTLED);
        assert_int_equal(err.retry_after_ms, rows[i].ms);
    }
}

static void status_message_is_cut_and_clean(void **state)
{
    struct fixture *f = *state;
    struct buf body = BUF_INIT(1 << 20);
    buf_add_str(&body, "{\"kind\":\"Status\",\"message\":\"bell\\u0007");
    for (int i = 0; i < 5000; i++) {
        buf_add_str(&body, "\xc3\xa4");
    }
    buf_add_str(&body, "\"}");
    struct answer answers[] = {{.status = 422, .body = buf_str(&body)}};
    will_answer(f, answers, 1);
    struct kube_request req = get_request("n");
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_INVALID);
    assert_true(text_has_prefix(err.msg, "bell?\xc3\xa4"));
    assert_true(text_has_suffix(err.msg, "\xc3\xa4..."));
    assert_true(strlen(err.msg) <= 900);
    buf_release(&body);
}

static void foreign_error_pages_are_not_quoted(void **state)
{
    struct fixture *f = *state;
    static const struct answer answers[] = {{.status = 502, .body = "<html>s3cr3t</html>"}};
    will_answer(f, answers, 1);
    struct kube_request req = get_request("n");
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_UNAVAILABLE);
    assert_null(strstr(err.msg, "s3cr3t"));
    assert_non_null(strstr(err.msg, "502"));
}

static void missing_kind_is_told_from_a_missing_object(void **state)
{
    struct fixture *f = *state;
    static const struct answer answers[] = {
        {.status = 404, .body = "404 page not found\n"},
        {.status = 404, .body = "{\"kind\":\"Status\",\"message\":\"gone\"}"}};
    will_answer(f, answers, 2);
    struct kube_request req = get_request("n");
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.hint, "helmreleases.helm.fluxcd.io/v1"));
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_NOT_FOUND);
    assert_string_equal(err.hint, "");
}

static void success_that_cannot_be_read_leaves_a_write_unknown(void **state)
{
    struct fixture *f = *state;
    static const struct answer answers[] = {{.status = 200, .body = "<html>"}};
    static const enum err_kind kinds[] = {ERR_INVALID, ERR_UNKNOWN_OUTCOME};
    for (size_t i = 0; i < 2; i++) {
        will_answer(f, answers, 1);
        struct kube_request req = get_request("n");
        req.method = i == 0 ? "GET" : "PATCH";
        struct kube_reply reply = KUBE_REPLY_INIT;
        struct err err = ERR_INIT;
        assert_int_equal(kube_do(f->kube, &req, &reply, &err), kinds[i]);
        assert_int_equal(err.kind, kinds[i]);
    }
}

static void failure_of_the_wire_passes_through(void **state)
{
    struct fixture *f = *state;
    static const struct answer answers[] = {{.fails = ERR_UNKNOWN_OUTCOME}};
    will_answer(f, answers, 1);
    struct kube_request req = get_request("n");
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_UNKNOWN_OUTCOME);
    assert_string_equal(err.msg, "the wire");
}

static void raw_body_is_kept_as_text(void **state)
{
    struct fixture *f = *state;
    static const struct answer answers[] = {{.status = 200, .body = "{ not json"}};
    will_answer(f, answers, 1);
    struct kube_request req = get_request(NULL);
    req.raw_body = true;
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_NONE);
    assert_null(reply.object);
    assert_string_equal(reply.text, "{ not json");
    assert_int_equal(reply.text_len, 10);
    kube_reply_release(&reply);
}

static bool keep(void *ctx, const char *bytes, size_t len)
{
    buf_add(ctx, bytes, len);
    return true;
}

static void stream_is_handed_through(void **state)
{
    struct fixture *f = *state;
    static const struct answer answers[] = {{.status = 200, .body = "line\n"},
                                            {.status = 410, .body = "{\"kind\":\"Status\"}"}};
    will_answer(f, answers, 2);
    struct buf seen = BUF_INIT(100);
    struct kube_request req = get_request(NULL);
    req.accept = KUBE_ACCEPT_METADATA_LIST;
    req.on_data = keep;
    req.ctx = &seen;
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_NONE);
    assert_string_equal(buf_str(&seen), "line\n");
    kube_reply_release(&reply);
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_GONE);
    buf_release(&seen);
}

/* ---- metadata only ---- */

static void metadata_request_never_yields_payloads(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *name, *accept, *body;
        bool fits;
    } rows[] = {
        {"one", KUBE_ACCEPT_METADATA, "{\"kind\":\"PartialObjectMetadata\"}", true},
        {"list", KUBE_ACCEPT_METADATA_LIST,
         "{\"kind\": \"PartialObjectMetadataList\", \"items\":[]}", true},
        {"list, kind last", KUBE_ACCEPT_METADATA_LIST,
         "{\"items\":[{\"kind\":\"Secret\"}],\"kind\":\"PartialObjectMetadataList\"}", true},
        {"payloads", KUBE_ACCEPT_METADATA_LIST, "{\"kind\":\"SecretList\",\"items\":[]}", false},
        {"payload", KUBE_ACCEPT_METADATA,
         "{\"kind\":\"Secret\",\"data\":{\"kind\":\"PartialObjectMetadata\"}}", false},
        {"inner kind alone", KUBE_ACCEPT_METADATA,
         "{\"metadata\":{\"kind\":\"PartialObjectMetadata\"}}", false},
        {"kind in a list", KUBE_ACCEPT_METADATA, "[\"kind\",\"PartialObjectMetadata\"]", false},
        {"kind as a value", KUBE_ACCEPT_METADATA,
         "{\"a\":\"kind\",\"b\":\"PartialObjectMetadata\"}", false},
        {"kind in a string", KUBE_ACCEPT_METADATA,
         "{\"a\":\"{\\\"kind\\\":\\\"PartialObjectMetadata\\\"}\"}", false},
        {"one instead of a list", KUBE_ACCEPT_METADATA_LIST, "{\"kind\":\"PartialObjectMetadata\"}",
         false},
        {"cut", KUBE_ACCEPT_METADATA, "{\"kind\":\"PartialObjectMeta", false},
        {"nothing", KUBE_ACCEPT_METADATA, "", false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (int raw = 0; raw < 2; raw++) {
            struct answer answers[] = {{.status = 200, .body = rows[i].body}};
            will_answer(f, answers, 1);
            struct kube_request req = get_request("n");
            req.accept = rows[i].accept;
            req.raw_body = raw == 1;
            struct kube_reply reply = KUBE_REPLY_INIT;
            struct err err = ERR_INIT;
            enum err_kind kind = kube_do(f->kube, &req, &reply, &err);
            if (kind != (rows[i].fits ? ERR_NONE : ERR_INVALID)) {
                fail_msg("%s: %s", rows[i].name, err_kind_name(kind));
            }
            kube_reply_release(&reply);
        }
    }
}

/* ---- credentials ---- */

static void token_is_read_afresh_and_the_request_tried_once_more_on_401(void **state)
{
    struct fixture *f = *state;
    static const struct answer answers[] = {{.status = 401}, {.status = 200, .body = "{}"}};
    static const char *const methods[] = {"GET", "PATCH"};
    for (int i = 0; i < 2; i++) {
        will_answer(f, answers, 2);
        _cleanup_(free_cstr)
        char *before = xasprintf("before%d", i);
        _cleanup_(free_cstr)
        char *after = xasprintf("after%d", i);
        put_file(f, "token", before);
        f->clock.now = mono_add_ms(f->clock.now, 60000);
        struct kube_request req = get_request("n");
        req.method = methods[i];
        struct kube_reply reply = KUBE_REPLY_INIT;
        struct err err = ERR_INIT;
        /* The old one is in memory when the new one comes. */
        static const struct answer ok[] = {{.status = 200, .body = "{}"}};
        will_answer(f, ok, 1);
        assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_NONE);
        kube_reply_release(&reply);
        assert_non_null(strstr(f->script.seen[0], before));
        put_file(f, "token", after);
        will_answer(f, answers, 2);
        assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_NONE);
        kube_reply_release(&reply);
        assert_int_equal(f->script.asked, 2);
        assert_non_null(strstr(f->script.seen[0], before));
        assert_non_null(strstr(f->script.seen[1], after));
    }
}

static void second_401_is_the_answer(void **state)
{
    struct fixture *f = *state;
    static const struct answer answers[] = {{.status = 401}, {.status = 401}};
    will_answer(f, answers, 2);
    struct kube_request req = get_request("n");
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_DENIED);
    assert_int_equal(err.code, 401);
    assert_int_equal(f->script.asked, 2);
}

static void token_file_is_read_again_each_minute(void **state)
{
    struct fixture *f = *state;
    static const struct {
        int64_t wait_ms;
        const char *file; /* NULL: it is gone */
        const char *sent;
    } rows[] = {
        {0, "tok1\n", "Bearer tok1\n"},       {59999, "tok2", "Bearer tok1\n"},
        {1, "tok2", "Bearer tok2\n"},         {60000, NULL, "Bearer tok2\n"},
        {60000, "", "Bearer tok2\n"},         {60000, "tok3 \r\n", "Bearer tok3\n"},
        {60000, "tok\n4\n", "Bearer tok3\n"},
    };
    static const struct answer ok[] = {{.status = 200, .body = "{}"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        f->clock.now = mono_add_ms(f->clock.now, rows[i].wait_ms);
        if (rows[i].file != NULL) {
            put_file(f, "token", rows[i].file);
        } else {
            drop_file(f, "token");
        }
        will_answer(f, ok, 1);
        struct kube_request req = get_request("n");
        struct kube_reply reply = KUBE_REPLY_INIT;
        struct err err = ERR_INIT;
        assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_NONE);
        assert_int_equal(err.kind, ERR_NONE);
        kube_reply_release(&reply);
        if (strstr(f->script.seen[0], rows[i].sent) == NULL) {
            fail_msg("row %zu: %s", i, f->script.seen[0]);
        }
    }
}

static void without_any_token_nothing_is_sent(void **state)
{
    struct fixture *f = *state;
    drop_file(f, "token");
    struct kube_request req = get_request("n");
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_do(f->kube, &req, &reply, &err), ERR_UNAVAILABLE);
    assert_non_null(strstr(err.msg, "/token"));
    assert_int_equal(f->script.asked, 0);
}

/* ---- time ---- */

static void server_clock_learns_from_every_status_but_not_from_caches(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *name;
        struct answer answer;
        bool known;
    } rows[] = {
        {"no Date", {.status = 200, .body = "{}", .date = ""}, false},
        {"a cache's", {.status = 200, .body = "{}", .date_unreliable = true}, false},
        {"a conflict", {.status = 409}, true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        will_answer(f, &rows[i].answer, 1);
        struct kube_request req = get_request("n");
        struct kube_reply reply = KUBE_REPLY_INIT;
        struct err err = ERR_INIT;
        (void)!kube_do(f->kube, &req, &reply, &err);
        assert_false(reply.have_date);
        kube_reply_release(&reply);
        struct srvtime t;
        if (kube_server_time(f->kube, &t) != rows[i].known) {
            fail_msg("%s", rows[i].name);
        }
    }
    struct srvtime t;
    assert_true(kube_server_time(f->kube, &t));
    assert_true(t.earliest_ns <= DATE_NS && DATE_NS <= t.latest_ns);
    static const struct answer ok[] = {{.status = 200, .body = "{}"}};
    will_answer(f, ok, 1);
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(kube_get(f->kube, &KUBE_SECRETS, "a", "n", MONO_NEVER, NULL, &reply, &err),
                     ERR_NONE);
    assert_true(reply.have_date);
    assert_int_equal(reply.date_ns, DATE_NS);
    assert_int_equal(reply.sent.ns, f->clock.now.ns);
    assert_int_equal(reply.received.ns, mono_add_ms(f->clock.now, 10).ns);
    kube_reply_release(&reply);
}

/* ---- many ---- */

static void each_of_many_has_its_own_result(void **state)
{
    struct fixture *f = *state;
    static const struct answer answers[] = {{.status = 200, .body = "{\"n\":1}"},
                                            {.fails = ERR_UNKNOWN_OUTCOME},
                                            {.status = 409},
                                            {.status = 401}};
    will_answer(f, answers, 4);
    enum { N = 5 };
    static const enum err_kind kinds[N] = {ERR_NONE, ERR_UNKNOWN_OUTCOME, ERR_INVALID, ERR_CONFLICT,
                                           ERR_DENIED};
    struct kube_request reqs[N];
    struct kube_call calls[N];
    for (int i = 0; i < N; i++) {
        reqs[i] = get_request(i == 2 ? ".." : "n");
        reqs[i].method = "PATCH";
        calls[i] = (struct kube_call){.request = &reqs[i]};
    }
    kube_do_many(f->kube, calls, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(calls[i].result, kinds[i]);
        assert_int_equal(calls[i].err.kind, kinds[i]);
    }
    assert_int_equal(jsonx_int(calls[0].reply.object, "n", 0), 1);
    kube_reply_release(&calls[0].reply);
    assert_int_equal(f->script.asked, 4);
    /* No second try inside, but the next round goes with what is in the file by then. */
    put_file(f, "token", "fresh");
    static const struct answer ok[] = {{.status = 200, .body = "{}"}};
    will_answer(f, ok, 1);
    calls[0] = (struct kube_call){.request = &reqs[0]};
    kube_do_many(f->kube, calls, 1);
    assert_int_equal(calls[0].result, ERR_NONE);
    kube_reply_release(&calls[0].reply);
    assert_non_null(strstr(f->script.seen[0], "Bearer fresh\n"));
}

/* ---- requests that somebody else made ---- */

struct forwarded {
    enum err_kind kind;
    struct err err;
    int status;
    struct buf body, headers;
    struct kube_forward_date date;
};

static void forwarded_release(struct forwarded *r)
{
    buf_release(&r->body);
    buf_release(&r->headers);
}

static void note_header(void *ctx, const char *name, const char *value)
{
    struct forwarded *r = ctx;
    buf_addf(&r->headers, "%s=%s;", name, value);
}

static void forward_stream(struct kube *k, const struct kube_forward *req, struct forwarded *r)
{
    struct kube_stream *s = NULL;
    struct http_response head = HTTP_RESPONSE_INIT;
    r->kind = kube_stream_open(k, req, &head, &r->date, &s, &r->err);
    if (r->kind != ERR_NONE) {
        return;
    }
    r->status = head.status;
    http_response_release(&head);
    char bytes[8];
    size_t len = 1;
    while (len > 0) {
        assert_int_equal(kube_stream_read(s, bytes, sizeof(bytes), &len, &r->err), ERR_NONE);
        buf_add(&r->body, bytes, len);
    }
    kube_stream_close(s);
}

static void forward(struct kube *k, struct kube_forward req, bool streamed, struct forwarded *r)
{
    *r = (struct forwarded){
        .err = ERR_INIT, .body = BUF_INIT(1 << 20), .headers = BUF_INIT(1 << 10)};
    req.on_header = note_header;
    req.ctx = r;
    req.deadline.ns = req.deadline.ns != 0 ? req.deadline.ns : INT64_MAX;
    if (streamed) {
        forward_stream(k, &req, r);
        return;
    }
    struct http_response http = HTTP_RESPONSE_INIT;
    r->kind = kube_forward(k, &req, &http, &r->date, &r->err);
    if (r->kind == ERR_NONE) {
        r->status = http.status;
        buf_add(&r->body, buf_str(&http.body), http.body.len);
        http_response_release(&http);
    }
}

static struct mono no_deadline(void *ctx)
{
    assert_non_null(ctx);
    return MONO_NEVER;
}

static void forwarded_request_passes_byte_for_byte(void **state)
{
    struct fixture *f = *state;
    static const struct answer answers[] = {{.status = 422, .body = "no\tJSON"}};
    static const struct http_header headers[] = {
        {"Accept", "application/vnd.kubernetes.protobuf, */*"},
        {"User-Agent", "Helm/3.22"},
        {"Content-Type", "application/apply-patch+yaml"}};
    static const char body[] = "a\0b: {\r\n";
    struct kube_forward req = {.method = "PATCH",
                               .target = "/api/v1/namespaces/a/pods/x%2Fy..z?fieldManager=helm&"
                                         "force=true&a=%26/../b?",
                               .headers = headers,
                               .header_count = 3,
                               .body = body,
                               .body_len = sizeof(body) - 1,
                               .body_max = 77,
                               .deadline = {5 * NS_PER_SEC + f->clock.now.ns},
                               .idle_ms = 5,
                               .hangup_fd = 3,
                               .deadline_now = no_deadline};
    for (int streamed = 0; streamed < 2; streamed++) {
        will_answer(f, answers, 1);
        struct forwarded r;
        forward(f->kube, req, streamed, &r);
        assert_int_equal(r.kind, ERR_NONE);
        assert_int_equal(r.status, 422);
        assert_string_equal(buf_str(&r.body), "no\tJSON");
        assert_string_equal(buf_str(&r.headers), "X-Try=1;X-Empty=;");
        assert_true(r.date.have && r.date.ns == DATE_NS);
        static const char want[] =
            "PATCH https://[fd00::1]:6443/api/v1/namespaces/a/pods/x%2Fy..z?fieldManager=helm&"
            "force=true&a=%26/../b?\n"
            "Accept: application/vnd.kubernetes.protobuf, */*\n"
            "User-Agent: Helm/3.22\n"
            "Content-Type: application/apply-patch+yaml\n"
            "Authorization: Bearer tok1\n\na";
        assert_string_equal(f->script.seen[0], want); /* the body has a NUL in it */
        const struct http_request *last = &f->script.last;
        assert_ptr_equal(last->body, body);
        assert_int_equal(last->body_len, sizeof(body) - 1);
        assert_int_equal(last->body_max, 77);
        assert_int_equal(last->deadline.ns, req.deadline.ns);
        assert_int_equal(last->idle_ms, 5);
        assert_int_equal(last->hangup_fd, 3);
        assert_non_null(last->deadline_now);
        assert_false(last->follow_redirects);
        forwarded_release(&r);
    }
    struct srvtime t;
    assert_true(kube_server_time(f->kube, &t));
}

static void forwarded_401_is_tried_again_once_with_a_fresh_token(void **state)
{
    struct fixture *f = *state;
    static const struct answer then_ok[] = {{.status = 401}, {.status = 201, .body = "ok"}};
    static const struct answer then_401[] = {{.status = 401}, {.status = 401, .body = "no"}};
    for (int i = 0; i < 4; i++) {
        struct kube_forward req = {.method = "POST", .target = "/api"};
        bool ok = i < 2, streamed = i % 2 == 1;
        char token[16];
        (void)snprintf(token, sizeof(token), "fresh%d", i);
        put_file(f, "token", token);
        will_answer(f, ok ? then_ok : then_401, 2);
        struct forwarded r;
        forward(f->kube, req, streamed, &r);
        assert_int_equal(r.kind, ERR_NONE);
        assert_int_equal(r.status, ok ? 201 : 401);
        assert_string_equal(buf_str(&r.body), ok ? "ok" : "no");
        assert_string_equal(buf_str(&r.headers), "X-Try=2;X-Empty=;");
        assert_int_equal(f->script.asked, 2);
        assert_int_equal(f->script.open_streams, 0);
        assert_non_null(strstr(f->script.seen[1], token));
        forwarded_release(&r);
    }
}

static void forwarded_failures_and_dates_are_handed_over(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *name;
        struct answer answer;
        enum err_kind kind;
        bool have_date;
    } rows[] = {
        {"no answer", {.fails = ERR_UNKNOWN_OUTCOME}, ERR_UNKNOWN_OUTCOME, false},
        {"a server's error", {.status = 504}, ERR_NONE, true},
        {"a redirect", {.status = 302}, ERR_NONE, true},
        {"a cache's Date", {.status = 200, .date_unreliable = true}, ERR_NONE, false},
        {"no Date", {.status = 200, .date = ""}, ERR_NONE, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (int streamed = 0; streamed < 2; streamed++) {
            will_answer(f, &rows[i].answer, 1);
            struct forwarded r;
            forward(f->kube, (struct kube_forward){.method = "PUT", .target = "/x"}, streamed, &r);
            if (r.kind != rows[i].kind || r.err.kind != rows[i].kind ||
                r.date.have != rows[i].have_date || r.status != rows[i].answer.status) {
                fail_msg("%s", rows[i].name);
            }
            forwarded_release(&r);
        }
    }
}

static void targets_that_would_not_arrive_as_they_stand_are_refused(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[] = {"",
                                      "api",
                                      "http://other.test/",
                                      "@other.test/",
                                      "/a#b",
                                      "/a b",
                                      "/a\tb",
                                      "/\xc3\xa4",
                                      "/a/../b",
                                      "/a/./b",
                                      "/..",
                                      "/.",
                                      "/a/.?x",
                                      "/%2e/b",
                                      "/a/.%2E/b",
                                      "/a/%2e%2e"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        for (int streamed = 0; streamed < 2; streamed++) {
            struct forwarded r;
            forward(f->kube, (struct kube_forward){.method = "GET", .target = bad[i]}, streamed,
                    &r);
            if (r.kind != ERR_INVALID) {
                fail_msg("%s: %s", bad[i], err_kind_name(r.kind));
            }
            forwarded_release(&r);
        }
    }
    assert_int_equal(f->script.asked, 0);
}

static void server_below_a_path_is_forwarded_to_and_its_token_does_not_rotate(void **state)
{
    struct fixture *f = *state;
    put_file(f, "config",
             "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
             "clusters: [{name: c, cluster: {server: 'https://api.test:6443/k8s/x/'}}]\n"
             "users: [{name: u, user: {token: fixed}}]\n"
             "contexts: [{name: c, context: {cluster: c, user: u}}]\n");
    _cleanup_(free_cstr)
    char *path = xasprintf("%s/config", f->dir);
    struct kube_config *config = NULL;
    struct err err = ERR_INIT;
    must(kube_config_load(&(struct kube_config_options){.path = path, .clock = &f->clock.base},
                          &config, &err) == ERR_NONE);
    struct kube *kube = kube_new(&(struct kube_options){
        .transport = &f->script.base, .clock = &f->clock.base, .config = config});
    static const struct answer answers[] = {{.status = 401, .body = "no"}};
    for (int streamed = 0; streamed < 2; streamed++) {
        will_answer(f, answers, 1);
        struct forwarded r;
        forward(kube, (struct kube_forward){.method = "GET", .target = "/api/v1?x"}, streamed, &r);
        assert_int_equal(r.kind, ERR_NONE);
        assert_int_equal(r.status, 401);
        assert_string_equal(f->script.seen[0], "GET https://api.test:6443/k8s/x/api/v1?x\n"
                                               "Authorization: Bearer fixed\n\n");
        forwarded_release(&r);
    }
    kube_free(kube);
    kube_config_free(config);
    drop_file(f, "config");
}

#define WITH_KUBE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_KUBE(urls_address_what_is_meant),
        WITH_KUBE(names_that_address_something_else_are_refused),
        WITH_KUBE(request_carries_its_headers_and_body),
        WITH_KUBE(every_status_has_its_kind),
        WITH_KUBE(retry_after_is_read_in_all_its_forms),
        WITH_KUBE(status_message_is_cut_and_clean),
        WITH_KUBE(foreign_error_pages_are_not_quoted),
        WITH_KUBE(missing_kind_is_told_from_a_missing_object),
        WITH_KUBE(success_that_cannot_be_read_leaves_a_write_unknown),
        WITH_KUBE(failure_of_the_wire_passes_through),
        WITH_KUBE(raw_body_is_kept_as_text),
        WITH_KUBE(stream_is_handed_through),
        WITH_KUBE(metadata_request_never_yields_payloads),
        WITH_KUBE(token_is_read_afresh_and_the_request_tried_once_more_on_401),
        WITH_KUBE(second_401_is_the_answer),
        WITH_KUBE(token_file_is_read_again_each_minute),
        WITH_KUBE(without_any_token_nothing_is_sent),
        WITH_KUBE(server_clock_learns_from_every_status_but_not_from_caches),
        WITH_KUBE(each_of_many_has_its_own_result),
        WITH_KUBE(forwarded_request_passes_byte_for_byte),
        WITH_KUBE(forwarded_401_is_tried_again_once_with_a_fresh_token),
        WITH_KUBE(forwarded_failures_and_dates_are_handed_over),
        WITH_KUBE(targets_that_would_not_arrive_as_they_stand_are_refused),
        WITH_KUBE(server_below_a_path_is_forwarded_to_and_its_token_does_not_rotate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
