/* The order of the replicas: equal everywhere, fair, and without the dead. The API server is a
 * small one of this file's own. */
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
#include "kube/kubeconfig.h"
#include "member/member.h"

#define SELF "a/-/00000000000000000000000000000001"

/* Time that passes when somebody sleeps; the run ends after so many sleeps. */
struct world {
    struct clock clock;
    struct transport transport;
    struct rng rng;
    struct mono now;
    struct cancel cancel;
    int sleeps_left;
    bool forbidden;
    int version_b, version_c; /* resourceVersions of two other members; b stops changing after
                                 freeze_b sleeps */
    int freeze_b;
    int patches, posts, deletes;
    const char *scope_c;
    const char *self, *b; /* identities; NULL: SELF, b/-/02 */
    char swept[256];      /* URL and body of a DELETE of another's Lease */
};

static struct world *world_of(void *member, size_t offset)
{
    return (struct world *)(void *)((char *)member - offset);
}

static struct mono world_mono(struct clock *c)
{
    return world_of(c, offsetof(struct world, clock))->now;
}

static struct wall world_wall(struct clock *c)
{
    (void)c;
    return (struct wall){0};
}

static void world_wait(struct clock *c, struct cond *cond, struct mtx *m, struct mono deadline)
{
    struct world *w = world_of(c, offsetof(struct world, clock));
    (void)cond;
    w->now = deadline;
    w->version_b += w->freeze_b-- > 0 ? 1 : 0;
    w->version_c++;
    if (--w->sleeps_left == 0) {
        /* The sleeper's own mutex is held here, and its waker takes it. */
        mtx_unlock(m);
        cancel_raise(&w->cancel);
        mtx_lock(m);
    }
}

static const struct clock_ops world_clock = {
    .mono = world_mono, .wall = world_wall, .wait = world_wait};

static void world_fill(struct rng *r, void *bytes, size_t len)
{
    (void)r;
    memset(bytes, 7, len);
}

static const struct rng_ops world_rng = {.fill = world_fill};

static enum err_kind world_perform(struct transport *t, const struct http_request *req,
                                   struct http_response *ret, struct err *err)
{
    struct world *w = world_of(t, offsetof(struct world, transport));
    (void)err;
    struct http_response r = {.status = w->forbidden ? 403 : 200,
                              .body = BUF_INIT(LIMIT_BODY_BYTES),
                              .sent = w->now,
                              .received = w->now};
    assert_non_null(strstr(req->url, "/apis/coordination.k8s.io/v1/namespaces/sys/leases"));
    if (strcmp(req->method, "PATCH") == 0) {
        r.status = w->forbidden ? 403 : w->posts == 0 ? 404 : 200;
        w->patches++;
    } else if (strcmp(req->method, "POST") == 0) {
        r.status = 201;
        w->posts++;
    } else if (strcmp(req->method, "DELETE") == 0) {
        w->deletes++;
        if (req->body != NULL) {
            (void)snprintf(w->swept, sizeof(w->swept), "%s %.*s", strrchr(req->url, '/'),
                           (int)req->body_len, req->body);
        }
    }
    if (strcmp(req->method, "GET") == 0) {
        assert_non_null(strstr(req->url, "labelSelector="));
        buf_addf(&r.body,
                 "{\"kind\":\"LeaseList\",\"items\":[{\"metadata\":{\"name\":\"lease-b\","
                 "\"resourceVersion\":\"%d\","
                 "\"annotations\":{\"belay.helm.fluxcd.io/scope\":"
                 "\"all\"}},\"spec\":{\"holderIdentity\":\"%s\"}},{\"metadata\":{"
                 "\"resourceVersion\":\"%d\",\"annotations\":{"
                 "\"belay.helm.fluxcd.io/scope\":\"%s\"}},\"spec\":{\"holderIdentity\":\"c/-/"
                 "03\"}},{\"metadata\":{\"resourceVersion\":\"1\"},"
                 "\"spec\":{\"holderIdentity\":\"" SELF "\"}}]}",
                 w->version_b, w->b != NULL ? w->b : "b/-/02", w->version_c, w->scope_c);
    } else {
        buf_add_str(&r.body, r.status < 400 ? "{\"kind\":\"Lease\"}"
                                            : "{\"kind\":\"Status\",\"message\":\"no\"}");
    }
    *ret = r;
    return ERR_NONE;
}

static const struct transport_ops world_transport = {.perform = world_perform};

/* Run membership for so many beats; what is left of it is in *ret. */
static struct members *run_world(struct world *w, struct kube **ret_kube,
                                 struct kube_config **ret_config)
{
    w->clock.ops = &world_clock;
    w->transport.ops = &world_transport;
    w->rng.ops = &world_rng;
    w->now = (struct mono){NS_PER_SEC};
    cancel_init(&w->cancel);
    char dir[] = "/tmp/belay-member-XXXXXX";
    must(mkdtemp(dir) != NULL);
    _cleanup_(free_cstr)
    char *path = xasprintf("%s/config", dir);
    FILE *f = fopen(path, "we");
    must(f != NULL);
    (void)fprintf(f, "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, "
                     "cluster: {server: \"https://api:1\"}}], users: [{name: u, "
                     "user: {}}], contexts: [{name: c, context: {cluster: c, user: u}}]}");
    (void)fclose(f);
    struct err err = ERR_INIT;
    if (kube_config_load(&(struct kube_config_options){.path = path, .clock = &w->clock},
                         ret_config, &err)) {
        fail_msg("%s", err.msg);
    }
    (void)unlink(path);
    (void)rmdir(dir);
    *ret_kube = kube_new(&(struct kube_options){
        .transport = &w->transport, .clock = &w->clock, .config = *ret_config, .user_agent = "t"});
    struct members *m =
        members_new(&(struct members_options){.kube = *ret_kube,
                                              .clock = &w->clock,
                                              .rng = &w->rng,
                                              .ns = "sys",
                                              .identity = w->self != NULL ? w->self : SELF,
                                              .scope = "all",
                                              .cancel = &w->cancel});
    members_run(m);
    return m;
}

static void end_world(struct world *w, struct members *m, struct kube *kube,
                      struct kube_config *config)
{
    members_free(m);
    kube_free(kube);
    kube_config_free(config);
    cancel_release(&w->cancel);
}

static void the_living_of_the_same_scope_are_in_the_order(void **state)
{
    (void)state;
    struct world w = {.sleeps_left = 5, .freeze_b = 100, .scope_c = "all"};
    struct kube *kube;
    struct kube_config *config;
    struct members *m = run_world(&w, &kube, &config);
    assert_int_equal(members_count(m), 3);
    assert_int_equal(w.posts, 1); /* made once, then renewed */
    assert_int_equal(w.patches, 5);
    assert_int_equal(w.deletes, 1); /* taken away at the end */
    for (int i = 0; i < 50; i++) {
        char uid[16];
        (void)snprintf(uid, sizeof(uid), "u%d", i);
        int before = (member_weight("b/-/02", uid, 0) > member_weight(SELF, uid, 0) ? 1 : 0) +
                     (member_weight("c/-/03", uid, 0) > member_weight(SELF, uid, 0) ? 1 : 0);
        assert_int_equal(members_rank(m, uid, 0), before);
    }
    end_world(&w, m, kube, config);
}

static void a_member_that_stopped_renewing_is_left_out(void **state)
{
    (void)state;
    struct world w = {.sleeps_left = 8, .freeze_b = 1, .scope_c = "all"};
    struct kube *kube;
    struct kube_config *config;
    struct members *m = run_world(&w, &kube, &config);
    assert_int_equal(members_count(m), 2);
    end_world(&w, m, kube, config);
}

static void an_earlier_life_of_this_pod_is_none_of_the_others(void **state)
{
    (void)state;
    struct world w = {.sleeps_left = 3,
                      .freeze_b = 100,
                      .scope_c = "another",
                      .self = "a/uid-1/01",
                      .b = "a/uid-1/00"};
    struct kube *kube;
    struct kube_config *config;
    struct members *m = run_world(&w, &kube, &config);
    for (int i = 0; i < 50; i++) {
        char uid[16];
        (void)snprintf(uid, sizeof(uid), "u%d", i);
        assert_int_equal(members_rank(m, uid, 0), 0);
    }
    end_world(&w, m, kube, config);
}

static void what_a_killed_member_left_is_swept_up(void **state)
{
    (void)state;
    struct world w = {.sleeps_left = 80, .freeze_b = 1, .scope_c = "all"};
    struct kube *kube;
    struct kube_config *config;
    struct members *m = run_world(&w, &kube, &config);
    assert_true(w.deletes < 80);
    assert_non_null(strstr(w.swept, "/lease-b "));
    assert_non_null(strstr(w.swept, "\"preconditions\":{\"resourceVersion\":\"1\"}"));
    end_world(&w, m, kube, config);
    struct world early = {.sleeps_left = 80, .freeze_b = 1000, .scope_c = "all"};
    m = run_world(&early, &kube, &config);
    assert_string_equal(early.swept, ""); /* the living are left alone */
    end_world(&early, m, kube, config);
}

static void a_member_that_serves_something_else_is_left_out(void **state)
{
    (void)state;
    struct world w = {.sleeps_left = 3, .freeze_b = 100, .scope_c = "another namespace"};
    struct kube *kube;
    struct kube_config *config;
    struct members *m = run_world(&w, &kube, &config);
    assert_int_equal(members_count(m), 2);
    end_world(&w, m, kube, config);
}

static void without_the_right_everybody_is_first(void **state)
{
    (void)state;
    struct world w = {.sleeps_left = 3, .forbidden = true, .scope_c = "all"};
    struct kube *kube;
    struct kube_config *config;
    struct members *m = run_world(&w, &kube, &config);
    assert_int_equal(members_count(m), 1);
    assert_int_equal(members_rank(m, "u", 0), 0);
    end_world(&w, m, kube, config);
}

static void objects_are_spread_evenly_and_a_retry_moves_on(void **state)
{
    (void)state;
    static const char *const ids[] = {"a/-/1", "b/-/2", "c/-/3"};
    int first[3] = {0};
    int moved = 0;
    for (int i = 0; i < 3000; i++) {
        char uid[16];
        (void)snprintf(uid, sizeof(uid), "u%d", i);
        int best[2] = {0, 0};
        for (int failures = 0; failures < 2; failures++) {
            for (int k = 1; k < 3; k++) {
                if (member_weight(ids[k], uid, failures) >
                    member_weight(ids[best[failures]], uid, failures)) {
                    best[failures] = k;
                }
            }
        }
        first[best[0]]++;
        moved += best[0] != best[1] ? 1 : 0;
    }
    for (int k = 0; k < 3; k++) {
        assert_in_range(first[k], 900, 1100);
    }
    assert_in_range(moved, 1800, 2200); /* two of three go elsewhere */
    /* Equal in every version, or replicas of two versions would not agree during a rolling update.
     */
    assert_int_equal(member_weight("a/-/1", "u", 0) >> 32, UINT64_C(0xe9d0d4a9));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_living_of_the_same_scope_are_in_the_order),
        cmocka_unit_test(a_member_that_stopped_renewing_is_left_out),
        cmocka_unit_test(an_earlier_life_of_this_pod_is_none_of_the_others),
        cmocka_unit_test(what_a_killed_member_left_is_swept_up),
        cmocka_unit_test(a_member_that_serves_something_else_is_left_out),
        cmocka_unit_test(without_the_right_everybody_is_first),
        cmocka_unit_test(objects_are_spread_evenly_and_a_retry_moves_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
