#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/text.h"
#include "chart/chart.h"

#define COUNT(a)   (sizeof(a) / sizeof((a)[0]))
#define REQUESTS   256
#define RESOURCES  32
#define DEADLINE_S 1000

/* ---- a world: clock, randomness and network that the test owns ---- */

struct resource {
    const char *url;
    int status;       /* 0: the connection fails */
    const char *body; /* of a 200; sent in pieces of 7 bytes */
    size_t repeat;    /* the body this many times more */
    const char *etag; /* answered with 304 if the request names it */
    const char *modified;
    const char *type;
    const char *retry_after;
};

struct request {
    char url[256];
    char userpwd[64];
    char etag[64];
    char modified[64];
    const struct transport *transport;
};

struct world {
    struct clock clock;
    struct rng rng;
    struct transport transport;
    struct transport tls_transport;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct resource resources[RESOURCES]; /* guarded by lock, like all below */
    size_t resource_count;
    struct request requests[REQUESTS];
    size_t request_count;
    int64_t now_ns;
    unsigned int waiting;    /* threads inside clock_wait */
    unsigned int hold_until; /* a request is answered when this many threads wait; 0: at once */
    uint64_t random;
    char tls[128]; /* the last settings asked for */
    bool tls_refused;
    char dir[64];
    struct charts *charts;
};

static struct world *world; /* of the running test */

static struct mono world_mono(struct clock *c)
{
    (void)c;
    pthread_mutex_lock(&world->lock);
    int64_t now = world->now_ns;
    pthread_mutex_unlock(&world->lock);
    return (struct mono){now};
}

static struct wall world_wall(struct clock *c)
{
    (void)c;
    return (struct wall){INT64_C(1900000000) * NS_PER_SEC};
}

static void world_wait(struct clock *c, struct cond *cond, struct mtx *m, struct mono deadline)
{
    if (!mono_before(world_mono(c), deadline)) {
        return;
    }
    pthread_mutex_lock(&world->lock);
    world->waiting++;
    pthread_cond_broadcast(&world->cond);
    pthread_mutex_unlock(&world->lock);
    cond_wait_ms(cond, m, 20);
    pthread_mutex_lock(&world->lock);
    world->waiting--;
    pthread_mutex_unlock(&world->lock);
}

static void world_fill(struct rng *r, void *bytes, size_t len)
{
    (void)r;
    pthread_mutex_lock(&world->lock);
    for (size_t i = 0; i < len; i++) {
        world->random = world->random * UINT64_C(6364136223846793005) + 1442695040888963407U;
        ((uint8_t *)bytes)[i] = (uint8_t)(world->random >> 33);
    }
    pthread_mutex_unlock(&world->lock);
}

static const char *header_of(const struct http_request *req, const char *name)
{
    for (size_t i = 0; i < req->header_count; i++) {
        if (strcmp(req->headers[i].name, name) == 0) {
            return req->headers[i].value;
        }
    }
    return "";
}

static void record(struct transport *t, const struct http_request *req)
{
    struct request *r = &world->requests[world->request_count++ % REQUESTS];
    (void)snprintf(r->url, sizeof(r->url), "%s", req->url);
    (void)snprintf(r->userpwd, sizeof(r->userpwd), "%s", req->userpwd != NULL ? req->userpwd : "");
    (void)snprintf(r->etag, sizeof(r->etag), "%s", header_of(req, "If-None-Match"));
    (void)snprintf(r->modified, sizeof(r->modified), "%s", header_of(req, "If-Modified-Since"));
    r->transport = t;
}

/* Hold the request back until as many threads wait as the test wants, so that no sleep is needed.
 */
static bool wait_for_company(const struct http_request *req)
{
    pthread_mutex_lock(&world->lock);
    while (world->waiting < world->hold_until && !cancel_is_raised(req->cancel)) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec += 1;
        pthread_cond_timedwait(&world->cond, &world->lock, &soon);
    }
    pthread_mutex_unlock(&world->lock);
    return !cancel_is_raised(req->cancel);
}

static struct resource find_resource(const char *url)
{
    struct resource found = {.status = 404};
    for (size_t i = 0; i < world->resource_count; i++) {
        if (strcmp(world->resources[i].url, url) == 0) {
            found = world->resources[i];
        }
    }
    return found;
}

static bool send_body(const struct http_request *req, const struct resource *res)
{
    for (size_t n = 0; n <= res->repeat; n++) {
        size_t piece = res->repeat > 0 ? 1U << 20 : 7;
        for (size_t at = 0, len = strlen(res->body); at < len; at += piece) {
            size_t now = len - at < piece ? len - at : piece;
            if (!req->on_data(req->ctx, res->body + at, now)) {
                return false;
            }
        }
    }
    return true;
}

static enum err_kind world_perform(struct transport *t, const struct http_request *req,
                                   struct http_response *ret, struct err *err)
{
    struct mono sent = world_mono(NULL);
    pthread_mutex_lock(&world->lock);
    record(t, req);
    pthread_mutex_unlock(&world->lock);
    if (!wait_for_company(req)) {
        return err_set(err, ERR_CANCELLED, "cancelled");
    }
    pthread_mutex_lock(&world->lock);
    struct resource res = find_resource(req->url);
    pthread_mutex_unlock(&world->lock);
    if (res.status == 0) {
        return err_set(err, ERR_UNAVAILABLE, "GET %s: connection refused", req->url);
    }
    struct http_response r = HTTP_RESPONSE_INIT;
    r.status = res.status;
    r.sent = sent;
    bool same = res.etag != NULL && strcmp(header_of(req, "If-None-Match"), res.etag) == 0;
    same = same ||
           (res.modified != NULL && strcmp(header_of(req, "If-Modified-Since"), res.modified) == 0);
    if (res.status == 200 && same) {
        r.status = 304;
    }
    (void)snprintf(r.etag, sizeof(r.etag), "%s", res.etag != NULL ? res.etag : "");
    (void)snprintf(r.last_modified, sizeof(r.last_modified), "%s",
                   res.modified != NULL ? res.modified : "");
    (void)snprintf(r.content_type, sizeof(r.content_type), "%s", res.type != NULL ? res.type : "");
    (void)snprintf(r.retry_after, sizeof(r.retry_after), "%s",
                   res.retry_after != NULL ? res.retry_after : "");
    if (r.status == 200 && res.body != NULL && !send_body(req, &res)) {
        return err_set(err, ERR_CANCELLED, "stopped by on_data");
    }
    *ret = r;
    return ERR_NONE;
}

static struct transport *world_transport_for(void *ctx, const struct transport_tls *tls)
{
    struct world *w = ctx;
    (void)snprintf(w->tls, sizeof(w->tls), "%s %s %s %d", tls->ca_file, tls->cert_file,
                   tls->key_file, tls->insecure);
    return w->tls_refused ? NULL : &w->tls_transport;
}

static void open_charts(uint64_t bytes_max)
{
    const struct charts_options o = {
        .clock = &world->clock,
        .rng = &world->rng,
        .transport = &world->transport,
        .cache_dir = world->dir,
        .user_agent = "belay-test",
        .transport_for = world_transport_for,
        .transport_for_ctx = world,
        .cache_bytes_max = bytes_max,
    };
    struct err err = ERR_INIT;
    assert_int_equal(charts_open(&o, &world->charts, &err), ERR_NONE);
}

static void restart(void)
{
    charts_close(world->charts);
    open_charts(0);
}

static int setup(void **state)
{
    static const struct clock_ops clock_ops = {
        .mono = world_mono, .wall = world_wall, .wait = world_wait};
    static const struct rng_ops rng_ops = {.fill = world_fill};
    static const struct transport_ops transport_ops = {.perform = world_perform};
    world = xcalloc(1, sizeof(*world));
    world->clock.ops = &clock_ops;
    world->rng.ops = &rng_ops;
    world->transport.ops = &transport_ops;
    world->tls_transport.ops = &transport_ops;
    world->now_ns = 100 * NS_PER_SEC;
    world->random = 7;
    pthread_mutex_init(&world->lock, NULL);
    pthread_cond_init(&world->cond, NULL);
    (void)snprintf(world->dir, sizeof(world->dir), "/tmp/belay-chart-test-XXXXXX");
    assert_non_null(mkdtemp(world->dir));
    open_charts(0);
    *state = world;
    return 0;
}

static void remove_tree(const char *path, int depth)
{
    DIR *d = depth < 4 ? opendir(path) : NULL;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            char *sub = xasprintf("%s/%s", path, e->d_name);
            remove_tree(sub, depth + 1);
            free(sub);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    (void)remove(path);
}

static int teardown(void **state)
{
    (void)state;
    charts_close(world->charts);
    remove_tree(world->dir, 0);
    pthread_cond_destroy(&world->cond);
    pthread_mutex_destroy(&world->lock);
    free(world);
    world = NULL;
    return 0;
}

/* A later one for the same URL wins. */
static void serve(struct resource r)
{
    pthread_mutex_lock(&world->lock);
    assert_true(world->resource_count < RESOURCES);
    world->resources[world->resource_count++] = r;
    pthread_mutex_unlock(&world->lock);
}

static void serve_index(const char *body)
{
    serve((struct resource){.url = "http://h/c/index.yaml", .status = 200, .body = body});
}

static struct mono now(void)
{
    return world_mono(NULL);
}

static void pass_s(int64_t s)
{
    pthread_mutex_lock(&world->lock);
    world->now_ns += s * NS_PER_SEC;
    pthread_mutex_unlock(&world->lock);
}

static size_t requests(void)
{
    pthread_mutex_lock(&world->lock);
    size_t n = world->request_count;
    pthread_mutex_unlock(&world->lock);
    return n;
}

static const struct request *last_request(void)
{
    assert_true(world->request_count > 0);
    return &world->requests[(world->request_count - 1) % REQUESTS];
}

static const struct mono any_age = {0};

static enum err_kind resolve(const char *repository, const char *name, const char *version,
                             struct mono fresh_after, struct chart_resolved *ret, struct err *err)
{
    const struct chart_ref ref = {.repository = repository, .name = name, .version = version};
    *err = (struct err)ERR_INIT;
    enum err_kind kind = charts_resolve(world->charts, &ref, fresh_after,
                                        mono_add_ms(now(), DEADLINE_S * 1000), NULL, ret, err);
    assert_int_equal(kind, err->kind);
    return kind;
}

static void assert_resolves(const char *repository, const char *name, const char *version,
                            struct mono fresh_after, const char *want)
{
    struct chart_resolved r = {0};
    struct err err;
    if (resolve(repository, name, version, fresh_after, &r, &err)) {
        fail_msg("%s %s: %s", name, version, err.msg);
    }
    if (strcmp(r.version, want) != 0) {
        fail_msg("%s %s: %s, not %s", name, version, r.version, want);
    }
    chart_resolved_release(&r);
}

static enum err_kind fetch(const struct chart_ref *ref, struct mono fresh_after,
                           struct chart_archive *ret, struct err *err)
{
    struct chart_resolved r = {0};
    *err = (struct err)ERR_INIT;
    struct mono deadline = mono_add_ms(now(), DEADLINE_S * 1000);
    if (charts_resolve(world->charts, ref, any_age, deadline, NULL, &r, err)) {
        return err->kind;
    }
    enum err_kind kind =
        charts_fetch(world->charts, ref, &r, fresh_after, deadline, NULL, ret, err);
    assert_int_equal(kind, err->kind);
    chart_resolved_release(&r);
    return kind;
}

static char *sha256_of(const char *text)
{
    uint8_t md[32];
    char hex[65];
    assert_int_equal(EVP_Digest(text, strlen(text), md, NULL, EVP_sha256(), NULL), 1);
    text_hex(md, sizeof(md), hex);
    return xstrdup(hex);
}

static char *content_of(const char *path)
{
    char text[4096] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    ssize_t n = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    return xstrndup(text, n > 0 ? (size_t)n : 0);
}

static size_t files_in(const char *sub)
{
    char *path = xasprintf("%s/%s", world->dir, sub);
    DIR *d = opendir(path);
    size_t n = 0;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        n += e->d_name[0] != '.';
    }
    closedir(d);
    free(path);
    return n;
}

/* ---- which version ---- */

static const char podinfo_index[] = "apiVersion: v1\n"
                                    "entries:\n"
                                    "  podinfo:\n"
                                    "  - name: podinfo\n"
                                    "    version: 6.4.0\n"
                                    "    urls: [podinfo-6.4.0.tgz]\n"
                                    "  - name: podinfo\n"
                                    "    version: 6.10.0\n"
                                    "    urls: [podinfo-6.10.0.tgz, http://other/x.tgz]\n"
                                    "  - name: podinfo\n"
                                    "    version: 7.0.0-rc1\n"
                                    "    urls: [podinfo-7.0.0-rc1.tgz]\n"
                                    "  - name: podinfo\n"
                                    "    version: 6.4.1\n"
                                    "    urls: [podinfo-6.4.1.tgz]\n"
                                    "  - name: podinfo\n"
                                    "    version: latest\n"
                                    "    urls: [podinfo-latest.tgz]\n"
                                    "  - name: podinfo\n"
                                    "    version: v5.0.0\n"
                                    "    urls: [podinfo-5.tgz]\n"
                                    "  pre:\n"
                                    "  - version: 1.0.0-a\n"
                                    "  - version: 1.0.0-b\n"
                                    "  empty: []\n"
                                    "  'null':\n"
                                    "  nourl:\n"
                                    "  - version: 1.0.0\n"
                                    "  oci:\n"
                                    "  - version: 1.0.0\n"
                                    "    urls: ['oci://u:s3cr3t@reg/oci']\n"
                                    "  builds:\n"
                                    "  - {version: 1.0.0+a, urls: [a.tgz]}\n"
                                    "  - {version: 1.0.0+b, urls: [b.tgz]}\n"
                                    "generated: 2026-01-01T00:00:00Z\n";

static void resolve_takes_the_highest_version_in_range(void **state)
{
    (void)state;
    static const struct {
        const char *name, *version, *want;
    } rows[] = {
        {"podinfo", "", "6.10.0"},
        {"podinfo", NULL, "6.10.0"},
        {"podinfo", "*", "6.10.0"},
        {"podinfo", "^6.4", "6.10.0"},
        {"podinfo", "~6.4.0", "6.4.1"},
        {"podinfo", "6.4.0", "6.4.0"},
        {"podinfo", "6.4", "6.4.1"},
        {"podinfo", "5.0.0", "v5.0.0"},
        {"podinfo", "v5.0.0", "v5.0.0"},
        {"podinfo", ">=6.0.0-0", "7.0.0-rc1"},
        {"podinfo", "7.0.0-rc1", "7.0.0-rc1"},
        {"podinfo", "<6.4.1 || >99", "6.4.0"},
        {"builds", "1.0.0", "1.0.0+a"},
        {"builds", "1.0.0+b", "1.0.0+b"},
    };
    serve_index(podinfo_index);
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_resolves("http://h/c", rows[i].name, rows[i].version, any_age, rows[i].want);
    }
    assert_int_equal(requests(), 1);
}

static void resolve_says_what_is_there_when_nothing_fits(void **state)
{
    (void)state;
    static const struct {
        const char *repository, *name, *version;
        enum err_kind kind;
        const char *msg;
    } rows[] = {
        {"http://u:s3cr3t@h/c?t=s3cr3t", "podinfo", "^9", ERR_NOT_FOUND,
         "chart podinfo: no version in http://h/c?t=*** matches \"^9\": newest are 7.0.0-rc1, "
         "6.10.0, 6.4.1"},
        {"http://h/c", "pre", "", ERR_NOT_FOUND,
         "chart pre: no version in http://h/c is stable: newest are 1.0.0-b, 1.0.0-a"},
        {"http://h/c", "empty", "", ERR_NOT_FOUND,
         "chart empty: http://h/c has no chart of this name (its index lists 7)"},
        {"http://h/c", "null", "", ERR_NOT_FOUND,
         "chart null: http://h/c has no chart of this name (its index lists 7)"},
        {"http://h/c", "pod", "", ERR_NOT_FOUND,
         "chart pod: http://h/c has no chart of this name (its index lists 7)"},
        {"http://h/c", "nourl", "", ERR_INVALID,
         "chart nourl: version 1.0.0 in http://h/c has the URL \"\"; only http(s) is served"},
        {"http://h/c", "oci", "", ERR_INVALID,
         "chart oci: version 1.0.0 in http://h/c has the URL \"(a text with an @ that is no "
         "http(s) URL)\"; only http(s) is served"},
        {"http://h/c", "podinfo", "newest", ERR_INVALID,
         "chart podinfo: \"newest\" is no version and no version range"},
        {"oci://h/c", "podinfo", "", ERR_INVALID,
         "chart podinfo: repository oci://h/c: oci:// is not served yet; use an http(s) chart "
         "repository"},
        {"s3://bucket/c", "podinfo", "", ERR_INVALID,
         "chart podinfo: repository s3://bucket/c: s3:// is not served yet; use an http(s) chart "
         "repository"},
        {"h/c", "podinfo", "", ERR_INVALID,
         "chart podinfo: repository h/c is no URL; write it as https://host/path of a chart "
         "repository"},
        {"http://nowhere/", "a\x01z", "", ERR_NOT_FOUND,
         "chart a?z: GET http://nowhere/index.yaml: HTTP 404"},
    };
    serve_index(podinfo_index);
    serve((struct resource){
        .url = "http://h/c/index.yaml?t=s3cr3t", .status = 200, .body = podinfo_index});
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct chart_resolved r = {.version = NULL};
        struct err err;
        assert_int_equal(
            resolve(rows[i].repository, rows[i].name, rows[i].version, any_age, &r, &err),
            rows[i].kind);
        assert_string_equal(err.msg, rows[i].msg);
        assert_null(strstr(err.hint, "s3cr3t"));
        assert_null(r.version);
    }
}

static void resolve_gives_digest_and_absolute_url(void **state)
{
    (void)state;
#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    serve((struct resource){.url = "http://h/c/index.yaml?t=1",
                            .status = 200,
                            .body = "entries:\n"
                                    "  a: [{version: 1.0.0, digest: " HEX ", urls: [a.tgz]}]\n"
                                    "  b: [{version: 1.0.0, digest: 'sha256:0123456789ABCDEF"
                                    "0123456789abcdef0123456789abcdef0123456789abcdef', "
                                    "urls: ['https://o/b.tgz']}]\n"
                                    "  c: [{version: 1.0.0, digest: md5-is-not-enough, "
                                    "urls: [/c.tgz]}]\n"});
    static const struct {
        const char *name, *digest, *url;
    } rows[] = {
        {"a", "sha256:" HEX, "http://u:p@h/c/a.tgz?t=1"},
        {"b", "sha256:" HEX, "https://o/b.tgz"},
        {"c", "", "http://u:p@h/c.tgz?t=1"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct chart_resolved r = {0};
        struct err err;
        assert_int_equal(resolve("http://u:p@h/c/?t=1", rows[i].name, "", any_age, &r, &err),
                         ERR_NONE);
        assert_string_equal(r.digest, rows[i].digest);
        assert_string_equal(r.url, rows[i].url);
        assert_int_equal(r.resolved.ns, 100 * NS_PER_SEC);
        chart_resolved_release(&r);
    }
}

/* ---- what an index may look like ---- */

static void index_forms_are_understood(void **state)
{
    (void)state;
    static const struct {
        const char *name, *body, *want; /* want NULL: no such chart */
    } rows[] = {
        {"block", "entries:\n  c:\n  - version: 1.0.0\n    urls:\n    - c.tgz\n", "1.0.0"},
        {"json",
         "{\"apiVersion\":\"v1\",\"entries\":{\"x\":[],\"c\":[{\"version\":\"1.0.0\",\"urls\":"
         "[\"c.tgz\"]}]}}",
         "1.0.0"},
        {"json with tabs",
         "{\n\t\"entries\": {\n\t\t\"c\": [ { \"version\": \"1.0.0\",\n\t\"urls\": [ "
         "\"c.tgz\" ] } ] }\n}\n",
         "1.0.0"},
        {"json with characters beyond the BMP",
         "{\"entries\":{\"c\":[{\"description\":\"\\ud83d\\ude00 \\\\ud83d \\/ \\u00e9\","
         "\"version\":\"1.0.0\",\"urls\":[\"c.tgz\"]}]}}",
         "1.0.0"},
        {"entries first and last",
         "entries:\n  c: [{version: 1.0.0, urls: [c.tgz]}]\nz: {entries: 1}\n", "1.0.0"},
        {"entries inside something else",
         "x:\n  entries:\n    c: [{version: 2.0.0, urls: [c.tgz]}]\n"
         "entries:\n  c: [{version: 1.0.0, urls: [c.tgz]}]\n",
         "1.0.0"},
        {"version inside dependencies",
         "entries:\n  c:\n  - dependencies: [{version: 9.0.0, urls: [z]}]\n    annotations: "
         "{version: "
         "8.0.0}\n    version: 1.0.0\n    urls: [c.tgz]\n",
         "1.0.0"},
        {"null entry", "entries:\n  c:\n  -\n  - ~\n  - {version: 1.0.0, urls: [c.tgz]}\n",
         "1.0.0"},
        {"complex keys",
         "? [a, b]\n: {entries: 1}\n? {entries: 2}\n: x\nentries:\n  ? [c]\n  : 1\n  c: "
         "[{version: 1.0.0, urls: [c.tgz]}]\n",
         "1.0.0"},
        {"aliases elsewhere",
         "x: &a [1]\ny: *a\n*a : 1\nentries:\n  c: [{keywords: *a, version: 1.0.0, "
         "urls: [c.tgz]}]\n  d: *a\n",
         "1.0.0"},
        {"chart twice",
         "entries:\n  c: [{version: 1.0.0, urls: [c]}]\n  c: [{version: 2.0.0, urls: "
         "[c]}]\n",
         "2.0.0"},
        {"crlf and bom",
         "\xef\xbb\xbf"
         "entries:\r\n  c:\r\n  - version: 1.0.0\r\n    urls: [c.tgz]\r\n",
         "1.0.0"},
        {"two documents",
         "entries:\n  c: [{version: 1.0.0, urls: [c]}]\n---\nentries:\n  c: [{version: "
         "2.0.0, urls: [c]}]\n",
         "1.0.0"},
        {"no charts", "entries: {}\n", NULL},
        {"null entries", "entries:\n", NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct chart_resolved r = {0};
        struct err err;
        world->resource_count = 0;
        serve_index(rows[i].body);
        pass_s(1);
        enum err_kind kind = resolve("http://h/c", "c", "", now(), &r, &err);
        if (kind != (rows[i].want != NULL ? ERR_NONE : ERR_NOT_FOUND) ||
            (rows[i].want != NULL && strcmp(rows[i].want, r.version) != 0)) {
            fail_msg("%s: %s %s", rows[i].name, r.version, err.msg);
        }
        chart_resolved_release(&r);
    }
}

static void a_broken_index_is_the_repositorys_fault(void **state)
{
    (void)state;
    static const struct {
        const char *name, *body, *msg;
    } rows[] = {
        {"empty", "", "chart c: GET http://h/c/index.yaml: the reply is empty"},
        {"comment", "# nothing\n", "chart c: read the index of http://h/c: it has no entries"},
        {"list", "- a\n",
         "chart c: read the index of http://h/c: line 1: an index is a mapping with a "
         "mapping \"entries\""},
        {"text", "s3cr3t\n",
         "chart c: read the index of http://h/c: line 1: an index is a mapping with "
         "a mapping \"entries\""},
        {"html", "<!DOCTYPE html>\n<html>: s3cr3t: x\n",
         "chart c: read the index of http://h/c: line 1: an index is a mapping with a mapping "
         "\"entries\""},
        {"no entries", "apiVersion: v1\n",
         "chart c: read the index of http://h/c: it has no entries"},
        {"entries a list", "entries: []\n",
         "chart c: read the index of http://h/c: line 1: an index is a mapping with a mapping "
         "\"entries\""},
        {"entries a text", "entries: s3cr3t\n",
         "chart c: read the index of http://h/c: line 1: entries is a text"},
        {"entries an alias", "x: &x {}\nentries: *x\n",
         "chart c: read the index of http://h/c: line 2: aliases for entries are not followed"},
        {"cut", "entries:\n  c: [{version: 1.0.0,\n",
         "chart c: read the index of http://h/c: line 3: did not find expected node content"},
        {"chart a mapping", "entries:\n  c: {version: 1.0.0}\n",
         "chart c: its entry in the index of http://h/c is not as it should be, see line 2 there"},
        {"urls a text", "entries:\n  c:\n  - version: 1.0.0\n    urls: c.tgz\n",
         "chart c: its entry in the index of http://h/c is not as it should be, see line 4 there"},
        {"version an alias", "x: &x 1.0.0\nentries:\n  c: [{version: *x}]\n",
         "chart c: its entry in the index of http://h/c is not as it should be, see line 3 there"},
        {"merged", "x: &x {version: 1.0.0}\nentries:\n  c: [{<<: *x}]\n",
         "chart c: its entry in the index of http://h/c is not as it should be, see line 3 there"},
        {"control character", "entries: {}\n\x01",
         "chart c: read the index of http://h/c: line 1: control characters are not allowed"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct chart_resolved r = {0};
        struct err err;
        world->resource_count = 0;
        serve_index(rows[i].body);
        pass_s(1);
        if (resolve("http://h/c", "c", "", now(), &r, &err) != ERR_UNAVAILABLE ||
            strcmp(err.msg, rows[i].msg) != 0) {
            fail_msg("%s: %s", rows[i].name, err.msg);
        }
    }
}

static void one_bad_chart_does_not_spoil_the_others(void **state)
{
    (void)state;
    serve_index("entries:\n  bad: text\n  c: [{version: 1.0.0, urls: [c.tgz]}]\n");
    struct chart_resolved r = {0};
    struct err err;
    assert_int_equal(resolve("http://h/c", "bad", "", any_age, &r, &err), ERR_UNAVAILABLE);
    assert_resolves("http://h/c", "c", "", any_age, "1.0.0");
    pass_s(1);
    assert_resolves("http://h/c", "c", "", now(), "1.0.0");
}

static void nesting_beyond_the_limit_is_refused(void **state)
{
    (void)state;
    char deep[400] = "x: ";
    memset(deep + 3, '[', LIMIT_DEPTH);
    serve_index(deep);
    struct chart_resolved r = {0};
    struct err err;
    assert_int_equal(resolve("http://h/c", "c", "", any_age, &r, &err), ERR_LIMIT);
}

static void an_index_over_the_limit_is_refused_and_leaves_nothing(void **state)
{
    (void)state;
    char *megabyte = xcalloc(1, (1U << 20) + 1);
    memset(megabyte, '#', 1U << 20);
    serve((struct resource){.url = "http://h/c/index.yaml",
                            .status = 200,
                            .body = megabyte,
                            .repeat = LIMIT_INDEX_BYTES >> 20});
    struct chart_resolved r = {0};
    struct err err;
    assert_int_equal(resolve("http://h/c", "c", "", any_age, &r, &err), ERR_LIMIT);
    assert_string_equal(err.msg,
                        "chart c: GET http://h/c/index.yaml: it is larger than 67108864 bytes");
    assert_int_equal(files_in("tmp"), 0);
    assert_int_equal(files_in("index"), 0);
    free(megabyte);
}

static void status_decides_the_kind_of_error(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *retry_after;
        enum err_kind kind;
        int64_t retry_after_ms;
    } rows[] = {
        {0, NULL, ERR_UNAVAILABLE, 0},     {401, NULL, ERR_DENIED, 0},
        {403, NULL, ERR_DENIED, 0},        {404, NULL, ERR_NOT_FOUND, 0},
        {429, "30", ERR_THROTTLED, 30000}, {500, NULL, ERR_UNAVAILABLE, 0},
        {503, "7", ERR_UNAVAILABLE, 7000}, {302, NULL, ERR_UNAVAILABLE, 0},
        {204, NULL, ERR_UNAVAILABLE, 0},   {304, NULL, ERR_UNAVAILABLE, 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct chart_resolved r = {0};
        struct err err;
        world->resource_count = 0;
        serve((struct resource){.url = "http://h/c/index.yaml",
                                .status = rows[i].status,
                                .retry_after = rows[i].retry_after});
        assert_int_equal(resolve("http://u:s3cr3t@h/c", "c", "", any_age, &r, &err), rows[i].kind);
        assert_int_equal(err.code, rows[i].status);
        assert_int_equal(err.retry_after_ms, rows[i].retry_after_ms);
        assert_null(strstr(err.msg, "s3cr3t"));
        assert_non_null(strstr(err.msg, "http://h/c/index.yaml"));
    }
}

/* ---- freshness ---- */

#define INDEX_1 "entries:\n  c:\n  - {version: 0.1.0, urls: [c-0.1.0.tgz]}\n"
#define INDEX_2 INDEX_1 "  - {version: 0.1.1, urls: [c-0.1.1.tgz]}\n"
#define INDEX_3 INDEX_2 "  - {version: 0.2.0-rc1, urls: [c-0.2.0-rc1.tgz]}\n"

static void an_index_is_asked_for_again_only_when_it_is_too_old(void **state)
{
    (void)state;
    serve((struct resource){
        .url = "http://h/c/index.yaml", .status = 200, .body = INDEX_1, .etag = "\"1\""});
    assert_resolves("http://h/c", "c", "^0.1.0", now(), "0.1.0");
    struct mono first = now();
    pass_s(10);
    assert_resolves("http://h/c/", "c", "^0.1.0", first, "0.1.0");
    assert_resolves("HTTP://H:80/c", "c", "^0.1.0", any_age, "0.1.0");
    assert_int_equal(requests(), 1);

    assert_resolves("http://h/c", "c", "^0.1.0", now(), "0.1.0");
    assert_int_equal(requests(), 2);
    assert_string_equal(last_request()->etag, "\"1\"");
    struct mono second = now();
    pass_s(10);
    assert_resolves("http://h/c", "c", "^0.1.0", second, "0.1.0");
    assert_int_equal(requests(), 2);
}

static void a_range_moves_when_the_index_does(void **state)
{
    (void)state;
    static const struct {
        const char *body, *etag, *want;
    } rows[] = {
        {INDEX_1, "\"1\"", "0.1.0"}, {INDEX_2, "\"2\"", "0.1.1"}, {INDEX_3, "\"3\"", "0.1.1"},
        {INDEX_3, "\"3\"", "0.1.1"}, {INDEX_1, NULL, "0.1.0"},    {INDEX_1, NULL, "0.1.0"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        serve((struct resource){.url = "http://h/c/index.yaml",
                                .status = 200,
                                .body = rows[i].body,
                                .etag = rows[i].etag});
        pass_s(5);
        assert_resolves("http://h/c", "c", "^0.1.0", now(), rows[i].want);
        assert_int_equal(requests(), i + 1);
    }
}

static void fresh_after_in_the_future_costs_one_request(void **state)
{
    (void)state;
    serve_index(INDEX_1);
    assert_resolves("http://h/c", "c", "", mono_add_ms(now(), 60000), "0.1.0");
    assert_int_equal(requests(), 1);
}

static void a_failure_is_not_remembered(void **state)
{
    (void)state;
    struct chart_resolved r = {0};
    struct err err;
    serve((struct resource){.url = "http://h/c/index.yaml", .status = 503});
    assert_int_equal(resolve("http://h/c", "c", "", now(), &r, &err), ERR_UNAVAILABLE);
    serve_index(INDEX_1);
    assert_resolves("http://h/c", "c", "", now(), "0.1.0");
    /* Too old now, and the repository fails: the old answer is none. */
    pass_s(1);
    serve((struct resource){.url = "http://h/c/index.yaml", .status = 503});
    assert_int_equal(resolve("http://h/c", "c", "", now(), &r, &err), ERR_UNAVAILABLE);
    assert_resolves("http://h/c", "c", "", any_age, "0.1.0");
    assert_int_equal(requests(), 3);
}

static void a_broken_index_does_not_take_the_place_of_a_good_one(void **state)
{
    (void)state;
    struct chart_resolved r = {0};
    struct err err;
    serve((struct resource){
        .url = "http://h/c/index.yaml", .status = 200, .body = INDEX_1, .etag = "\"1\""});
    assert_resolves("http://h/c", "c", "", any_age, "0.1.0");
    serve((struct resource){
        .url = "http://h/c/index.yaml", .status = 200, .body = "entries: [", .etag = "\"2\""});
    pass_s(1);
    assert_int_equal(resolve("http://h/c", "c", "", now(), &r, &err), ERR_UNAVAILABLE);
    assert_int_equal(resolve("http://h/c", "c", "", now(), &r, &err), ERR_UNAVAILABLE);
    assert_string_equal(last_request()->etag, "\"1\"");
    assert_resolves("http://h/c", "c", "", any_age, "0.1.0");
}

static void after_a_restart_the_index_on_disk_is_revalidated(void **state)
{
    (void)state;
    serve((struct resource){.url = "http://h/c/index.yaml",
                            .status = 200,
                            .body = INDEX_1,
                            .etag = "\"1\"",
                            .modified = "Mon, 01 Jan 2026 00:00:00 GMT"});
    assert_resolves("http://h/c", "c", "", any_age, "0.1.0");
    assert_int_equal(files_in("index"), 1);
    restart();
    assert_resolves("http://h/c", "c", "", any_age, "0.1.0");
    assert_int_equal(requests(), 2);
    assert_string_equal(last_request()->etag, "\"1\"");
    assert_string_equal(last_request()->modified, "Mon, 01 Jan 2026 00:00:00 GMT");
}

static char *only_file_in(const char *sub)
{
    char *dir = xasprintf("%s/%s", world->dir, sub);
    char *found = NULL;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] != '.') {
            assert_null(found);
            found = xasprintf("%s/%s", dir, e->d_name);
        }
    }
    closedir(d);
    assert_non_null(found);
    free(dir);
    return found;
}

static void overwrite(const char *path, off_t at, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, text, strlen(text), at), (ssize_t)strlen(text));
    (void)close(fd);
}

static void a_spoilt_index_on_disk_is_fetched_anew(void **state)
{
    (void)state;
    static const struct {
        off_t at;
        const char *text;
    } rows[] = {{0, "garbage"}, {1024, "x: [[[["}, {1024 + (off_t)sizeof(INDEX_1) - 1, "more"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        serve((struct resource){
            .url = "http://h/c/index.yaml", .status = 200, .body = INDEX_1, .etag = "\"1\""});
        pass_s(1);
        assert_resolves("http://h/c", "c", "", now(), "0.1.0");
        char *path = only_file_in("index");
        overwrite(path, rows[i].at, rows[i].text);
        free(path);
        restart();
        assert_resolves("http://h/c", "c", "", any_age, "0.1.0");
        assert_string_equal(last_request()->etag, "");
    }
}

/* ---- many threads ---- */

struct caller {
    pthread_t thread;
    const char *name;
    struct mono fresh_after;
    struct mono deadline;
    struct cancel *cancel;
    bool fetch;
    enum err_kind kind;
    struct err err;
    char version[32];
};

static void *caller_main(void *arg)
{
    struct caller *c = arg;
    struct chart_resolved r = {0};
    struct chart_archive a = {0};
    struct chart_ref ref = {.repository = "http://h/c", .name = c->name, .version = ""};
    c->err = (struct err)ERR_INIT;
    c->kind =
        charts_resolve(world->charts, &ref, c->fresh_after, c->deadline, c->cancel, &r, &c->err);
    if (c->kind == ERR_NONE && c->fetch) {
        c->kind = charts_fetch(world->charts, &ref, &r, c->fresh_after, c->deadline, c->cancel, &a,
                               &c->err);
    }
    if (c->kind == ERR_NONE) {
        (void)snprintf(c->version, sizeof(c->version), "%s", r.version);
    }
    chart_archive_release(world->charts, &a);
    chart_resolved_release(&r);
    return NULL;
}

static void start(struct caller *c)
{
    if (c->deadline.ns == 0) {
        c->deadline = mono_add_ms(now(), DEADLINE_S * 1000);
    }
    assert_int_equal(pthread_create(&c->thread, NULL, caller_main, c), 0);
}

#define THREADS 16

static void run_callers(struct caller *callers, unsigned int hold_until)
{
    world->hold_until = hold_until;
    for (size_t i = 0; i < THREADS; i++) {
        start(&callers[i]);
    }
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
    }
}

static void sixteen_threads_share_one_download(void **state)
{
    (void)state;
    struct caller callers[THREADS] = {0};
    for (size_t i = 0; i < THREADS; i++) {
        callers[i].name = i % 2 == 0 ? "c" : "d";
        callers[i].fresh_after = now();
    }
    serve_index(
        "entries:\n  c: [{version: 1.0.0, urls: [c]}]\n  d: [{version: 2.0.0, urls: [d]}]\n");
    run_callers(callers, THREADS - 1);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(callers[i].kind, ERR_NONE);
        assert_string_equal(callers[i].version, i % 2 == 0 ? "1.0.0" : "2.0.0");
    }
    assert_int_equal(requests(), 1);
    assert_int_equal(files_in("tmp"), 0);
}

static void those_who_wait_share_a_failure(void **state)
{
    (void)state;
    struct caller callers[THREADS] = {0};
    for (size_t i = 0; i < THREADS; i++) {
        callers[i].name = "c";
    }
    serve((struct resource){.url = "http://h/c/index.yaml", .status = 500});
    run_callers(callers, THREADS - 1);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(callers[i].kind, ERR_UNAVAILABLE);
        assert_int_equal(callers[i].err.code, 500);
        assert_string_equal(callers[i].err.msg, "chart c: GET http://h/c/index.yaml: HTTP 500");
    }
    assert_int_equal(requests(), 1);
}

static void one_archive_is_downloaded_once(void **state)
{
    (void)state;
    static const bool with_digest[] = {true, false};
    for (size_t row = 0; row < COUNT(with_digest); row++) {
        char *hex = sha256_of("\x1f\x8b chart");
        char *index = xasprintf("entries:\n  c: [{version: 1.0.0, digest: %s, urls: [c.tgz]}]\n",
                                with_digest[row] ? hex : "''");
        pass_s(1);
        serve_index(index);
        serve(
            (struct resource){.url = "http://h/c/c.tgz", .status = 200, .body = "\x1f\x8b chart"});
        world->hold_until = 0;
        assert_resolves("http://h/c", "c", "", now(), "1.0.0");
        size_t before = requests();
        struct caller callers[THREADS] = {0};
        for (size_t i = 0; i < THREADS; i++) {
            callers[i] = (struct caller){.name = "c", .fetch = true};
        }
        run_callers(callers, THREADS - 1);
        for (size_t i = 0; i < THREADS; i++) {
            assert_int_equal(callers[i].kind, ERR_NONE);
        }
        assert_int_equal(requests(), before + 1);
        world->hold_until = 0;
        free(index);
        free(hex);
        char *path = only_file_in("charts");
        (void)unlink(path);
        free(path);
    }
}

static void who_waits_gives_up_at_its_own_deadline(void **state)
{
    (void)state;
    struct caller first = {.name = "c"};
    struct caller second = {.name = "c", .deadline = mono_add_ms(now(), 5000)};
    serve_index(INDEX_1);
    world->hold_until = 100; /* for ever */
    start(&first);
    while (requests() == 0) {
        sched_yield();
    }
    start(&second);
    pthread_mutex_lock(&world->lock);
    while (world->waiting == 0) {
        pthread_cond_wait(&world->cond, &world->lock);
    }
    world->now_ns += 6 * NS_PER_SEC;
    pthread_mutex_unlock(&world->lock);
    assert_int_equal(pthread_join(second.thread, NULL), 0);
    assert_int_equal(second.kind, ERR_TIMEOUT);
    assert_string_equal(second.err.msg,
                        "chart c: no time left for the index, which another thread has begun");
    pthread_mutex_lock(&world->lock);
    world->hold_until = 0;
    pthread_cond_broadcast(&world->cond);
    pthread_mutex_unlock(&world->lock);
    assert_int_equal(pthread_join(first.thread, NULL), 0);
    assert_int_equal(first.kind, ERR_NONE);
}

static void one_who_is_told_to_stop_stops_nobody_else(void **state)
{
    (void)state;
    struct cancel cancels[2];
    cancel_init(&cancels[0]);
    cancel_init(&cancels[1]);
    /* The one that downloads, and one that waits for it. */
    struct caller first = {.name = "c", .cancel = &cancels[0]};
    struct caller second = {.name = "c", .cancel = &cancels[1]};
    struct caller third = {.name = "c"};
    serve_index(INDEX_1);
    world->hold_until = 100;
    start(&first);
    while (requests() == 0) {
        sched_yield();
    }
    start(&second);
    start(&third);
    cancel_raise(&cancels[1]);
    assert_int_equal(pthread_join(second.thread, NULL), 0);
    assert_int_equal(second.kind, ERR_CANCELLED);
    assert_int_equal(requests(), 1);
    cancel_raise(&cancels[0]);
    pthread_mutex_lock(&world->lock);
    world->hold_until = 0;
    pthread_cond_broadcast(&world->cond);
    pthread_mutex_unlock(&world->lock);
    assert_int_equal(pthread_join(first.thread, NULL), 0);
    assert_int_equal(pthread_join(third.thread, NULL), 0);
    assert_int_equal(third.kind, ERR_NONE);
    cancel_release(&cancels[0]);
    cancel_release(&cancels[1]);
}

/* ---- archives ---- */

#define ARCHIVE_1 "\x1f\x8b first"
#define ARCHIVE_2 "\x1f\x8b second"

static char *index_with_digest(const char *archive)
{
    char *hex = sha256_of(archive);
    char *index = xasprintf("entries:\n  c: [{version: 1.2.0, digest: %s, urls: [c.tgz]}]\n", hex);
    free(hex);
    return index;
}

static void assert_archive(const struct chart_archive *a, const char *content)
{
    char *got = content_of(a->path);
    char *hex = sha256_of(content);
    assert_non_null(got);
    assert_string_equal(got, content);
    assert_string_equal(a->digest + 7, hex);
    assert_int_equal(strncmp(a->digest, "sha256:", 7), 0);
    assert_string_equal(a->version, "1.2.0");
    free(hex);
    free(got);
}

static const struct chart_ref ref_c = {.repository = "http://h/c", .name = "c", .version = "^1"};

static void an_archive_with_digest_is_never_asked_for_again(void **state)
{
    (void)state;
    char *index = index_with_digest(ARCHIVE_1);
    struct chart_archive a = {0};
    struct chart_archive b = {0};
    struct err err;
    serve((struct resource){
        .url = "http://h/c/index.yaml", .status = 200, .body = index, .etag = "\"1\""});
    serve((struct resource){.url = "http://h/c/c.tgz", .status = 200, .body = ARCHIVE_1});
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_NONE);
    assert_archive(&a, ARCHIVE_1);
    assert_int_equal(requests(), 2);
    pass_s(1);
    assert_int_equal(fetch(&ref_c, now(), &b, &err), ERR_NONE);
    assert_string_equal(a.path, b.path);
    chart_archive_release(world->charts, &a);
    assert_archive(&b, ARCHIVE_1);
    chart_archive_release(world->charts, &b);
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_NONE);
    chart_archive_release(world->charts, &a);
    assert_int_equal(requests(), 2);

    restart();
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_NONE);
    assert_archive(&a, ARCHIVE_1);
    chart_archive_release(world->charts, &a);
    assert_int_equal(requests(), 3); /* the index */
    free(index);
}

static void a_spoilt_archive_is_noticed_after_a_restart(void **state)
{
    (void)state;
    char *index = index_with_digest(ARCHIVE_1);
    struct chart_archive a = {0};
    struct err err;
    serve_index(index);
    serve((struct resource){.url = "http://h/c/c.tgz", .status = 200, .body = ARCHIVE_1});
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_NONE);
    overwrite(a.path, 0, "spoilt");
    chart_archive_release(world->charts, &a);
    restart();
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_NONE);
    assert_archive(&a, ARCHIVE_1);
    /* Gone altogether, in the same process. */
    (void)unlink(a.path);
    chart_archive_release(world->charts, &a);
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_NONE);
    assert_archive(&a, ARCHIVE_1);
    chart_archive_release(world->charts, &a);
    free(index);
}

static void another_digest_than_the_indexs_is_refused(void **state)
{
    (void)state;
    char *index = index_with_digest(ARCHIVE_1);
    char *want = sha256_of(ARCHIVE_1);
    char *got = sha256_of(ARCHIVE_2);
    char *got_html = sha256_of("<html>");
    struct chart_archive a = {0};
    struct err err;
    struct chart_ref ref = ref_c;
    ref.repository = "http://u:s3cr3t@h/c";
    serve_index(index);
    serve((struct resource){.url = "http://h/c/c.tgz", .status = 200, .body = ARCHIVE_2});
    assert_int_equal(fetch(&ref, now(), &a, &err), ERR_INVALID);
    char *msg =
        xasprintf("chart c 1.2.0: the digest of http://h/c/c.tgz is sha256:%.12s, but the index "
                  "says sha256:%.12s",
                  got, want);
    assert_string_equal(err.msg, msg);
    free(msg);
    serve((struct resource){
        .url = "http://h/c/c.tgz", .status = 200, .body = "<html>", .type = "text/html"});
    assert_int_equal(fetch(&ref, now(), &a, &err), ERR_INVALID);
    msg =
        xasprintf("chart c 1.2.0: the digest of http://h/c/c.tgz is sha256:%.12s (no gzip archive; "
                  "Content-Type \"text/html\"), but the index says sha256:%.12s",
                  got_html, want);
    assert_string_equal(err.msg, msg);
    assert_null(a.path);
    assert_int_equal(files_in("charts"), 0);
    assert_int_equal(files_in("tmp"), 0);
    free(msg);
    free(got_html);
    free(got);
    free(want);
    free(index);
}

static void an_archive_without_digest_is_revalidated(void **state)
{
    (void)state;
    struct chart_archive a = {0};
    struct err err;
    serve_index("entries:\n  c: [{version: 1.2.0, urls: [c.tgz]}]\n");
    serve((struct resource){
        .url = "http://h/c/c.tgz", .status = 200, .body = ARCHIVE_1, .etag = "\"1\""});
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_NONE);
    assert_archive(&a, ARCHIVE_1);
    chart_archive_release(world->charts, &a);
    assert_int_equal(requests(), 2);
    struct mono first = now();
    pass_s(1);
    assert_int_equal(fetch(&ref_c, first, &a, &err), ERR_NONE);
    chart_archive_release(world->charts, &a);
    assert_int_equal(requests(), 2);
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_NONE); /* 304 */
    assert_archive(&a, ARCHIVE_1);
    assert_int_equal(requests(), 3);
    assert_string_equal(last_request()->etag, "\"1\"");

    /* Replaced while the old one is held: both stay readable. */
    struct chart_archive b = {0};
    pass_s(1);
    serve((struct resource){
        .url = "http://h/c/c.tgz", .status = 200, .body = ARCHIVE_2, .etag = "\"2\""});
    assert_int_equal(fetch(&ref_c, now(), &b, &err), ERR_NONE);
    assert_archive(&b, ARCHIVE_2);
    assert_archive(&a, ARCHIVE_1);
    chart_archive_release(world->charts, &a);
    chart_archive_release(world->charts, &b);

    restart();
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_NONE);
    assert_archive(&a, ARCHIVE_2);
    chart_archive_release(world->charts, &a);
    assert_string_equal(last_request()->etag, "\"2\"");
}

static void what_is_no_archive_is_refused_without_a_digest_too(void **state)
{
    (void)state;
    struct chart_archive a = {0};
    struct err err;
    serve_index("entries:\n  c: [{version: 1.2.0, urls: [c.tgz]}]\n");
    serve((struct resource){
        .url = "http://h/c/c.tgz", .status = 200, .body = "<html>", .type = "text/html"});
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_UNAVAILABLE);
    assert_string_equal(err.msg, "chart c 1.2.0: http://h/c/c.tgz is no chart (no gzip archive; "
                                 "Content-Type \"text/html\")");
    serve((struct resource){.url = "http://h/c/c.tgz", .status = 401});
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_DENIED);
    assert_string_equal(err.msg, "chart c 1.2.0: GET http://h/c/c.tgz: HTTP 401");
}

static void an_archive_over_the_limit_is_refused(void **state)
{
    (void)state;
    struct chart_archive a = {0};
    struct err err;
    char *megabyte = xcalloc(1, (1U << 20) + 1);
    memset(megabyte, 'x', 1U << 20);
    serve_index("entries:\n  c: [{version: 1.2.0, urls: [c.tgz]}]\n");
    serve((struct resource){.url = "http://h/c/c.tgz",
                            .status = 200,
                            .body = megabyte,
                            .repeat = LIMIT_CHART_BYTES >> 20});
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_LIMIT);
    assert_int_equal(files_in("tmp"), 0);
    free(megabyte);
}

/* ---- the disk ---- */

#define EVICTED 24

struct many {
    char name[8], url[64], body[16];
};

static char *serve_many(struct many *m)
{
    char *text = xstrdup("entries:\n");
    for (size_t i = 0; i < EVICTED; i++) {
        (void)snprintf(m[i].name, sizeof(m[i].name), "c%zu", i);
        (void)snprintf(m[i].url, sizeof(m[i].url), "http://h/c/c%zu.tgz", i);
        (void)snprintf(m[i].body, sizeof(m[i].body), "\x1f\x8b no %zu", i);
        serve((struct resource){.url = m[i].url, .status = 200, .body = m[i].body});
        char *hex = sha256_of(m[i].body);
        char *longer = xasprintf("%s  %s: [{version: 1.2.0, digest: %s, urls: [%s.tgz]}]\n", text,
                                 m[i].name, hex, m[i].name);
        free(hex);
        free(text);
        text = longer;
    }
    serve_index(text);
    return text;
}

static void fetch_many(const struct many *m, struct chart_archive *ret)
{
    const struct chart_ref ref = {.repository = "http://h/c", .name = m->name, .version = ""};
    struct err err;
    assert_int_equal(fetch(&ref, any_age, ret, &err), ERR_NONE);
    assert_archive(ret, m->body);
}

static void eviction_drops_the_oldest_that_nobody_holds(void **state)
{
    (void)state;
    charts_close(world->charts);
    open_charts(64 << 10); /* an archive here takes a block of 4 KB */
    struct many m[EVICTED];
    struct chart_archive held = {0};
    struct chart_archive a = {0};
    char *index = serve_many(m);
    for (size_t i = 0; i < EVICTED; i++) {
        const struct timespec used[2] = {{.tv_sec = 1000 + (time_t)i},
                                         {.tv_sec = 1000 + (time_t)i}};
        fetch_many(&m[i], &a);
        assert_int_equal(utimensat(AT_FDCWD, a.path, used, 0), 0);
        if (i == 0) {
            held = a;
        } else {
            chart_archive_release(world->charts, &a);
        }
    }
    size_t left = files_in("charts");
    assert_int_equal(left + files_in("index"), 16);
    assert_archive(&held, m[0].body);
    /* The youngest are there, the oldest are not, but for the one that is held. */
    size_t before = requests();
    fetch_many(&m[EVICTED - left + 1], &a);
    chart_archive_release(world->charts, &a);
    assert_int_equal(requests(), before);
    fetch_many(&m[EVICTED - left], &a);
    chart_archive_release(world->charts, &a);
    assert_int_equal(requests(), before + 1);
    chart_archive_release(world->charts, &held);
    free(index);
}

static void another_process_evicts_nothing_that_is_held_here(void **state)
{
    (void)state;
    struct chart_archive a = {0};
    struct err err;
    serve_index("entries:\n  c: [{version: 1.2.0, urls: [c.tgz]}]\n");
    serve((struct resource){.url = "http://h/c/c.tgz", .status = 200, .body = ARCHIVE_1});
    assert_int_equal(fetch(&ref_c, now(), &a, &err), ERR_NONE);
    struct charts *mine = world->charts;
    open_charts(1); /* a second one on the same directory, with room for nothing */
    charts_close(world->charts);
    world->charts = mine;
    assert_archive(&a, ARCHIVE_1);
    chart_archive_release(world->charts, &a);
    open_charts(1);
    charts_close(world->charts);
    world->charts = mine;
    assert_int_equal(files_in("charts"), 0);
}

static void many_repositories_do_not_pile_up(void **state)
{
    (void)state;
    charts_close(world->charts);
    open_charts(64 << 10);
    char filler[8 << 10] = "#";
    char urls[RESOURCES][64];
    memset(filler, '#', sizeof(filler) - 1);
    char *index = xasprintf("%s%s\n", INDEX_1, filler); /* takes three blocks */
    for (size_t i = 0; i < RESOURCES; i++) {
        (void)snprintf(urls[i], sizeof(urls[i]), "http://h%zu/index.yaml", i);
        serve((struct resource){.url = urls[i], .status = 200, .body = index});
        char *repository = xasprintf("http://h%zu/", i);
        assert_resolves(repository, "c", "", any_age, "0.1.0");
        free(repository);
    }
    assert_int_equal(requests(), RESOURCES);
    assert_true(files_in("index") <= 5);
    /* What was dropped is fetched again; the newest was not. */
    assert_resolves("http://h31", "c", "", any_age, "0.1.0");
    assert_int_equal(requests(), RESOURCES);
    assert_resolves("http://h0", "c", "", any_age, "0.1.0");
    assert_int_equal(requests(), RESOURCES + 1);
    free(index);
}

static void leftovers_of_dead_writers_are_removed_at_start(void **state)
{
    (void)state;
    char *dead = xasprintf("%s/tmp/dead", world->dir);
    char *alive = xasprintf("%s/tmp/alive", world->dir);
    int dead_fd = open(dead, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    int alive_fd = open(alive, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    const struct timespec young[2] = {{.tv_sec = 1900000000 - 60}, {.tv_sec = 1900000000 - 60}};
    const struct timespec old[2] = {{.tv_sec = 1900000000 - 3700}, {.tv_sec = 1900000000 - 3700}};
    assert_true(dead_fd >= 0 && alive_fd >= 0);
    assert_int_equal(futimens(alive_fd, young), 0);
    assert_int_equal(flock(alive_fd, LOCK_EX), 0);
    (void)close(dead_fd);
    restart();
    assert_int_equal(files_in("tmp"), 1);
    assert_int_equal(access(alive, F_OK), 0);
    assert_int_equal(futimens(alive_fd, old), 0);
    restart();
    assert_int_equal(files_in("tmp"), 0);
    (void)close(alive_fd);
    free(alive);
    free(dead);
}

static void a_disk_that_takes_no_more_fails_that_download_only(void **state)
{
    (void)state;
    struct chart_resolved r = {0};
    struct err err;
    struct rlimit limit;
    struct rlimit small;
    serve_index(INDEX_1);
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 1030;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum err_kind kind = resolve("http://h/c", "c", "", any_age, &r, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(kind, ERR_UNAVAILABLE);
    assert_non_null(strstr(err.msg, "File too large"));
    assert_int_equal(files_in("tmp"), 0);
    assert_int_equal(files_in("index"), 0);
    assert_resolves("http://h/c", "c", "", any_age, "0.1.0");
}

static void a_cache_directory_that_cannot_be_made_is_reported(void **state)
{
    (void)state;
    struct charts *c = NULL;
    struct err err = ERR_INIT;
    struct charts_options o = {.clock = &world->clock,
                               .rng = &world->rng,
                               .transport = &world->transport,
                               .cache_dir = "/dev/null/cache"};
    assert_int_equal(charts_open(&o, &c, &err), ERR_UNAVAILABLE);
    assert_null(c);
    assert_non_null(strstr(err.msg, "/dev/null"));
}

/* ---- credentials ---- */

static void import(const char *text, enum err_kind want, struct err *err)
{
    char *path = xasprintf("%s/repositories.yaml", world->dir);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    *err = (struct err)ERR_INIT;
    assert_int_equal(charts_import_repositories(world->charts, path, err), want);
    (void)unlink(path);
    free(path);
}

static void credentials_go_to_the_same_origin_only(void **state)
{
    (void)state;
    static const struct {
        const char *name, *repository, *entry, *chart_url, *index_userpwd, *chart_userpwd;
    } rows[] = {
        {"none", "http://h/c", "", "c.tgz", "", ""},
        {"userinfo, relative", "http://u:p@h/c", "", "c.tgz", "u:p", "u:p"},
        {"userinfo, absolute", "http://u:p@h/c", "", "http://h/c/c.tgz", "u:p", "u:p"},
        {"userinfo, other port", "http://u:p@h/c", "", "http://h:81/c.tgz", "u:p", ""},
        {"userinfo, other host", "http://u:p@h/c", "", "//o/c.tgz", "u:p", ""},
        {"userinfo, other scheme", "http://u:p@h/c", "", "https://h/c/c.tgz", "u:p", ""},
        {"userinfo of the chart's own", "http://u:p@h/c", "", "http://x:y@o/c.tgz", "u:p", "x:y"},
        {"entry", "http://h/c", "username: a, password: b", "c.tgz", "a:b", "a:b"},
        {"entry, slash", "http://h/c/", "username: a, password: b", "c.tgz", "a:b", "a:b"},
        {"entry, query", "http://h/c?t=1", "username: a, password: b", "c.tgz", "a:b", "a:b"},
        {"entry, other repository", "http://h/d", "username: a, password: b", "c.tgz", "", ""},
        {"entry, number as password", "http://h/c", "username: a, password: 123", "c.tgz", "a:123",
         "a:123"},
        {"entry, other host", "http://h/c", "username: a, password: b", "http://o/c.tgz", "a:b",
         ""},
        {"entry, other host, all", "http://h/c",
         "username: a, password: b, pass_credentials_all: true", "http://o/c.tgz", "a:b", "a:b"},
        {"userinfo before entry", "http://u:p@h/c", "username: a, password: b", "c.tgz", "u:p",
         "u:p"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct err err;
        struct chart_resolved r = {0};
        struct chart_archive a = {0};
        const struct chart_ref ref = {.repository = rows[i].repository, .name = "c", .version = ""};
        restart();
        char *yaml = xasprintf("repositories:\n- {name: n, url: 'http://h/c'%s%s}\n",
                               rows[i].entry[0] != '\0' ? ", " : "", rows[i].entry);
        import(yaml, ERR_NONE, &err);
        assert_string_equal(err.msg, "");
        char *index =
            xasprintf("entries: {c: [{version: 1.0.0, urls: ['%s']}]}", rows[i].chart_url);
        world->resource_count = 0;
        serve_index(index);
        serve((struct resource){.url = "http://h/c/index.yaml?t=1", .status = 200, .body = index});
        serve((struct resource){.url = "http://h/d/index.yaml", .status = 200, .body = index});
        if (resolve(rows[i].repository, "c", "", any_age, &r, &err)) {
            fail_msg("%s: %s", rows[i].name, err.msg);
        }
        assert_string_equal(last_request()->userpwd, rows[i].index_userpwd);
        assert_null(strchr(last_request()->url, '@'));
        err = (struct err)ERR_INIT;
        assert_int_equal(charts_fetch(world->charts, &ref, &r, any_age,
                                      mono_add_ms(now(), DEADLINE_S * 1000), NULL, &a, &err),
                         ERR_NOT_FOUND);
        if (strcmp(last_request()->userpwd, rows[i].chart_userpwd) != 0) {
            fail_msg("%s: %s", rows[i].name, last_request()->userpwd);
        }
        assert_null(strchr(last_request()->url, '@'));
        chart_resolved_release(&r);
        free(index);
        free(yaml);
    }
}

static void two_users_of_a_repository_do_not_share_its_index(void **state)
{
    (void)state;
    struct chart_resolved r = {0};
    struct err err;
    serve_index(INDEX_1);
    assert_resolves("http://u:p@h/c", "c", "", any_age, "0.1.0");
    serve((struct resource){.url = "http://h/c/index.yaml", .status = 401});
    assert_int_equal(resolve("http://h/c", "c", "", any_age, &r, &err), ERR_DENIED);
    assert_int_equal(resolve("http://u:q@h/c", "c", "", any_age, &r, &err), ERR_DENIED);
    assert_resolves("http://u:p@h/c", "c", "", any_age, "0.1.0");
}

static void tls_settings_are_used_for_index_and_archive(void **state)
{
    (void)state;
    struct err err;
    struct chart_archive a = {0};
    struct chart_ref ref = {.repository = "https://h/c/", .name = "c", .version = ""};
    import("repositories:\n"
           "- {name: n, url: https://h/c, caFile: /ca, certFile: /cert, keyFile: /key, "
           "insecure_skip_tls_verify: true}\n"
           "- {name: o, url: https://o/c}\n",
           ERR_NONE, &err);
    assert_string_equal(err.msg, "");
    assert_string_equal(world->tls, "/ca /cert /key 1");
    static const char index[] = "entries: {c: [{version: 1.2.0, urls: ['https://other/c.tgz']}]}";
    serve((struct resource){.url = "https://h/c/index.yaml", .status = 200, .body = index});
    serve((struct resource){.url = "https://o/c/index.yaml", .status = 200, .body = index});
    serve((struct resource){.url = "https://other/c.tgz", .status = 200, .body = ARCHIVE_1});
    assert_int_equal(fetch(&ref, any_age, &a, &err), ERR_NONE);
    assert_int_equal(requests(), 2);
    assert_ptr_equal(world->requests[0].transport, &world->tls_transport);
    assert_ptr_equal(world->requests[1].transport, &world->tls_transport);
    chart_archive_release(world->charts, &a);
    ref.repository = "https://o/c";
    assert_resolves("https://o/c", "c", "", any_age, "1.2.0");
    assert_ptr_equal(last_request()->transport, &world->transport);
}

static void a_bad_entry_is_skipped_and_named(void **state)
{
    (void)state;
    static const struct {
        const char *entry, *msg;
    } rows[] = {
        {"{name: bad}", "repository \"bad\" is skipped: repository  is no URL"},
        {"{name: bad, url: 'oci://u:s3cr3t@h/c'}", "is not served yet"},
        {"{name: bad, url: 'http://h/', password: {s3cr3t: s3cr3t}}",
         "repository \"bad\" is skipped: password is no text, or too long"},
        {"{name: bad, url: 'http://h/', certFile: /c}",
         "repository \"bad\" is skipped: certFile and keyFile go together"},
        {"{name: bad, url: 'http://h/', caFile: /c}",
         "repository \"bad\" is skipped: its TLS settings cannot be used"},
        {"s3cr3t", "repository \"(without a name)\" is skipped"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct err err;
        char *yaml =
            xasprintf("repositories:\n- %s\n- {name: good, url: 'http://h/c', username: u, "
                      "password: p}\n- {name: second}\n",
                      rows[i].entry);
        world->tls_refused = true;
        restart();
        import(yaml, ERR_NONE, &err);
        if (strstr(err.msg, rows[i].msg) == NULL || strstr(err.msg, "s3cr3t") != NULL) {
            fail_msg("%s: %s", rows[i].entry, err.msg);
        }
        serve_index(INDEX_1);
        assert_resolves("http://h/c", "c", "", any_age, "0.1.0");
        assert_string_equal(last_request()->userpwd, "u:p");
        free(yaml);
    }
}

static void repositories_that_cannot_be_read_are_an_error(void **state)
{
    (void)state;
    struct err err = ERR_INIT;
    assert_int_equal(charts_import_repositories(world->charts, "/nowhere/r.yaml", &err),
                     ERR_NOT_FOUND);
    import("repositories: [", ERR_INVALID, &err);
    import("", ERR_NONE, &err);
    import("repositories: 5", ERR_NONE, &err);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(resolve_takes_the_highest_version_in_range),
        TEST(resolve_says_what_is_there_when_nothing_fits),
        TEST(resolve_gives_digest_and_absolute_url),
        TEST(index_forms_are_understood),
        TEST(a_broken_index_is_the_repositorys_fault),
        TEST(one_bad_chart_does_not_spoil_the_others),
        TEST(nesting_beyond_the_limit_is_refused),
        TEST(an_index_over_the_limit_is_refused_and_leaves_nothing),
        TEST(status_decides_the_kind_of_error),
        TEST(an_index_is_asked_for_again_only_when_it_is_too_old),
        TEST(a_range_moves_when_the_index_does),
        TEST(fresh_after_in_the_future_costs_one_request),
        TEST(a_failure_is_not_remembered),
        TEST(a_broken_index_does_not_take_the_place_of_a_good_one),
        TEST(after_a_restart_the_index_on_disk_is_revalidated),
        TEST(a_spoilt_index_on_disk_is_fetched_anew),
        TEST(sixteen_threads_share_one_download),
        TEST(those_who_wait_share_a_failure),
        TEST(one_archive_is_downloaded_once),
        TEST(who_waits_gives_up_at_its_own_deadline),
        TEST(one_who_is_told_to_stop_stops_nobody_else),
        TEST(an_archive_with_digest_is_never_asked_for_again),
        TEST(a_spoilt_archive_is_noticed_after_a_restart),
        TEST(another_digest_than_the_indexs_is_refused),
        TEST(an_archive_without_digest_is_revalidated),
        TEST(what_is_no_archive_is_refused_without_a_digest_too),
        TEST(an_archive_over_the_limit_is_refused),
        TEST(eviction_drops_the_oldest_that_nobody_holds),
        TEST(another_process_evicts_nothing_that_is_held_here),
        TEST(many_repositories_do_not_pile_up),
        TEST(leftovers_of_dead_writers_are_removed_at_start),
        TEST(a_disk_that_takes_no_more_fails_that_download_only),
        TEST(a_cache_directory_that_cannot_be_made_is_reported),
        TEST(credentials_go_to_the_same_origin_only),
        TEST(two_users_of_a_repository_do_not_share_its_index),
        TEST(tls_settings_are_used_for_index_and_archive),
        TEST(a_bad_entry_is_skipped_and_named),
        TEST(repositories_that_cannot_be_read_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
