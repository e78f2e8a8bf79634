/* The gate's rules as tables: what one helm may still do, and what shuts the fence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "fence/fence.h"

#define SEC     NS_PER_SEC
#define SECRETS "/api/v1/namespaces/apps/secrets"
#define RECORD  SECRETS "/sh.helm.release.v1.web.v"
#define NOW     ((struct mono){100 * SEC})
#define HARD    ((struct mono){110 * SEC})

/* ---- what is it? ---- */

static const struct {
    const char *name, *method, *target, *body_name;
    enum fence_kind kind;
    const char *ns, *release;
    int64_t revision;
} classes[] = {
    {"a get reads", "GET", SECRETS, NULL, FENCE_READ, "", "", 0},
    {"a head reads", "HEAD", "/api", NULL, FENCE_READ, "", "", 0},
    {"a record is made", "POST", SECRETS "?fieldManager=helm", "sh.helm.release.v1.web.v4",
     FENCE_RECORD_CREATE, "apps", "web", 4},
    {"a release with dots in its name", "POST", SECRETS, "sh.helm.release.v1.we.b.v12",
     FENCE_RECORD_CREATE, "apps", "we.b", 12},
    {"a chart's own Secret", "POST", SECRETS, "password", FENCE_WRITE, "apps", "", 0},
    {"a chart's Secret with a generated name", "POST", SECRETS, "", FENCE_WRITE, "apps", "", 0},
    {"a Secret whose name could not be read", "POST", SECRETS, NULL, FENCE_FORBIDDEN, "apps", "",
     0},
    {"a record is updated", "PUT", RECORD "3", NULL, FENCE_RECORD_UPDATE, "apps", "web", 3},
    {"a record is deleted", "DELETE", RECORD "3?x=y", NULL, FENCE_RECORD_DELETE, "apps", "web", 3},
    {"helm never patches a record", "PATCH", RECORD "3", NULL, FENCE_FORBIDDEN, "apps", "web", 3},
    {"a record's subresource", "PUT", RECORD "3/status", NULL, FENCE_FORBIDDEN, "apps", "web", 3},
    {"a record's name without a number", "PUT", RECORD "x", NULL, FENCE_FORBIDDEN, "apps", "", 0},
    {"revision 0", "PUT", RECORD "0", NULL, FENCE_FORBIDDEN, "apps", "", 0},
    {"all Secrets at once", "DELETE", SECRETS "?labelSelector=a", NULL, FENCE_FORBIDDEN, "apps", "",
     0},
    {"a Secret of the chart is applied", "PATCH", SECRETS "/password", NULL, FENCE_WRITE, "apps",
     "", 0},
    {"a POST to a Secret", "POST", SECRETS "/password", "password", FENCE_FORBIDDEN, "apps", "", 0},
    {"Secrets without a namespace", "POST", "/api/v1/secrets", "x", FENCE_FORBIDDEN, "", "", 0},
    {"a Deployment", "PATCH", "/apis/apps/v1/namespaces/apps/deployments/web", NULL, FENCE_WRITE,
     "", "", 0},
    {"a namespace called secrets", "DELETE", "/api/v1/namespaces/secrets", NULL, FENCE_WRITE, "",
     "", 0},
    {"a CRD", "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", NULL, FENCE_CRD,
     "", "", 0},
    {"a CRD is applied", "PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/a.b.c",
     NULL, FENCE_CRD, "", "", 0},
    {"encoded bytes hide a record", "PUT", SECRETS "/sh.helm%2Erelease.v1.web.v3", NULL,
     FENCE_FORBIDDEN, "", "", 0},
    {"empty segments hide a record", "PUT", "/api/v1//namespaces/apps/secrets/x", NULL,
     FENCE_FORBIDDEN, "", "", 0},
    {"dots hide a record", "PUT", "/api/v1/x/../namespaces/apps/secrets/x", NULL, FENCE_FORBIDDEN,
     "", "", 0},
    {"no path", "PUT", "x", NULL, FENCE_FORBIDDEN, "", "", 0},
    {"a slash at the end", "PUT", SECRETS "/", NULL, FENCE_FORBIDDEN, "", "", 0},
};

static void a_request_is_what_its_path_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        struct fence_request r;
        print_message("  %s\n", classes[i].name);
        fence_classify(classes[i].method, classes[i].target, classes[i].body_name, &r);
        assert_int_equal(r.kind, classes[i].kind);
        if (r.kind != FENCE_FORBIDDEN) {
            assert_string_equal(r.ns, classes[i].ns);
            assert_string_equal(r.release, classes[i].release);
            assert_int_equal(r.revision, classes[i].revision);
        }
    }
    assert_true(fence_needs_name("POST", SECRETS "?a=b"));
    assert_false(fence_needs_name("POST", "/api/v1/namespaces/apps/configmaps"));
    assert_false(fence_needs_name("PUT", RECORD "3"));
}

/* ---- may it pass? ---- */

static const struct fence_claim ours = {
    .digest = "1:aa", .owner = "uid", .owner_name = "apps/web", .epoch = 7};

/* Newest record: v3, superseded v2; both listed under the lock. */
static void set_up(struct fence *f, bool makes_revision)
{
    const struct fence_options o = {.ns = "apps",
                                    .release = "web",
                                    .makes_revision = makes_revision,
                                    .may_delete_all = !makes_revision,
                                    .newest = 3,
                                    .claim = ours};
    struct fence_claim old = {
        .digest = "1:old", .owner = "uid", .owner_name = "apps/web", .epoch = 5};
    struct fence_claim none = {0};
    fence_init(f, &o, NOW);
    fence_add_record(f, 3, "300", &old);
    fence_add_record(f, 2, "200", &none);
}

static struct fence_request req(enum fence_kind kind, int64_t revision)
{
    struct fence_request r = {.kind = kind, .revision = revision};
    bool record =
        kind == FENCE_RECORD_CREATE || kind == FENCE_RECORD_UPDATE || kind == FENCE_RECORD_DELETE;
    (void)snprintf(r.ns, sizeof(r.ns), "apps");
    (void)snprintf(r.release, sizeof(r.release), "%s", record ? "web" : "");
    return r;
}

static struct kpb_secret secret(const char *name, const char *version, unsigned char hash)
{
    struct kpb_secret s = {.name = (char *)(uintptr_t)name,
                           .ns = (char *)(uintptr_t) "apps",
                           .uid = (char *)(uintptr_t) "",
                           .resource_version = (char *)(uintptr_t)version,
                           .label_status = (char *)(uintptr_t) "",
                           .label_name = (char *)(uintptr_t) "",
                           .has_release = true};
    memset(s.release_hash, hash, sizeof(s.release_hash));
    return s;
}

static const struct {
    const char *name;
    bool makes_revision, created;
    enum fence_kind kind;
    int64_t revision;
    int64_t silent_ms; /* since the last sign */
    enum fence_verdict verdict;
    const char *why;
} verdicts[] = {
    {"reads always pass", true, false, FENCE_READ, 0, 9000, FENCE_FORWARD, NULL},
    {"the successor, after a look", true, false, FENCE_RECORD_CREATE, 4, 0, FENCE_LOOK, NULL},
    {"not the one after it", true, false, FENCE_RECORD_CREATE, 5, 0, FENCE_REFUSE, "successor"},
    {"not the newest again", true, false, FENCE_RECORD_CREATE, 3, 0, FENCE_REFUSE, "successor"},
    {"not a second one", true, true, FENCE_RECORD_CREATE, 4, 0, FENCE_REFUSE, "second"},
    {"an uninstall makes none", false, false, FENCE_RECORD_CREATE, 4, 0, FENCE_REFUSE, "successor"},
    {"a listed record, after a look", true, true, FENCE_RECORD_UPDATE, 3, 0, FENCE_LOOK, NULL},
    {"the one it made, after a look", true, true, FENCE_RECORD_UPDATE, 4, 0, FENCE_LOOK, NULL},
    {"not one it has not made", true, false, FENCE_RECORD_UPDATE, 4, 0, FENCE_REFUSE, "not listed"},
    {"not one that was not listed", true, true, FENCE_RECORD_UPDATE, 1, 0, FENCE_REFUSE,
     "not listed"},
    {"old records are pruned, after a look", true, false, FENCE_RECORD_DELETE, 1, 0, FENCE_LOOK,
     NULL},
    {"the newest is not pruned", true, false, FENCE_RECORD_DELETE, 3, 0, FENCE_REFUSE, "newest"},
    {"an uninstall deletes the newest", false, false, FENCE_RECORD_DELETE, 3, 0, FENCE_LOOK, NULL},
    {"no workload before the record", true, false, FENCE_WRITE, 0, 0, FENCE_REFUSE, "before"},
    {"a CRD before the record, after a look", true, false, FENCE_CRD, 0, 0, FENCE_LOOK, NULL},
    {"a CRD after it", true, true, FENCE_CRD, 0, 999, FENCE_FORWARD, NULL},
    {"a workload after it", true, true, FENCE_WRITE, 0, 999, FENCE_FORWARD, NULL},
    {"a workload after a second of silence", true, true, FENCE_WRITE, 0, 1000, FENCE_LOOK, NULL},
    {"an uninstall's hook before its record", false, false, FENCE_WRITE, 0, 0, FENCE_LOOK, NULL},
    {"what helm has no business with", true, true, FENCE_FORBIDDEN, 0, 0, FENCE_REFUSE,
     "no business"},
};

static void a_write_passes_only_if_it_is_this_runs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(verdicts) / sizeof(verdicts[0]); i++) {
        struct fence f;
        print_message("  %s\n", verdicts[i].name);
        set_up(&f, verdicts[i].makes_revision);
        if (verdicts[i].created) {
            struct fence_request make = req(FENCE_RECORD_CREATE, 4);
            fence_sent(&f, &make);
            fence_answered(&f, &make, 201, NULL);
        }
        struct fence_request r = req(verdicts[i].kind, verdicts[i].revision);
        struct mono now = mono_add_ms(NOW, verdicts[i].silent_ms);
        assert_int_equal(fence_judge(&f, &r, now, HARD, false), verdicts[i].verdict);
        bool refused = verdicts[i].verdict == FENCE_REFUSE;
        assert_int_equal(f.latched, refused);
        if (refused) {
            assert_non_null(strstr(f.why, verdicts[i].why));
        } else {
            assert_int_equal(fence_judge(&f, &r, now, HARD, true), FENCE_FORWARD);
        }
        fence_release(&f);
    }
}

static void another_releases_record_is_never_touched(void **state)
{
    (void)state;
    const enum fence_kind kinds[] = {FENCE_RECORD_CREATE, FENCE_RECORD_UPDATE, FENCE_RECORD_DELETE};
    for (size_t i = 0; i < 6; i++) {
        struct fence f;
        set_up(&f, true);
        struct fence_request r = req(kinds[i % 3], i % 3 == 0 ? 4 : 2);
        (void)snprintf(i < 3 ? r.ns : r.release, 16, "other");
        assert_int_equal(fence_judge(&f, &r, NOW, HARD, true), FENCE_REFUSE);
        assert_true(f.latched);
        fence_release(&f);
    }
}

static void a_refusal_latches_all_writes_and_no_read(void **state)
{
    (void)state;
    struct fence f;
    set_up(&f, false);
    struct fence_request update = req(FENCE_RECORD_UPDATE, 3);
    struct fence_request read = req(FENCE_READ, 0);
    struct fence_request write = req(FENCE_WRITE, 0);
    assert_int_equal(fence_judge(&f, &update, HARD, HARD, true), FENCE_REFUSE);
    assert_non_null(strstr(f.why, "lease ran out"));
    assert_int_equal(fence_judge(&f, &update, NOW, HARD, true), FENCE_REFUSE);
    assert_int_equal(fence_judge(&f, &write, NOW, HARD, true), FENCE_REFUSE);
    assert_int_equal(fence_judge(&f, &read, NOW, HARD, false), FENCE_FORWARD);
    fence_latch(&f, "something else");
    assert_non_null(strstr(f.why, "lease ran out"));
    fence_release(&f);
}

static void a_create_that_is_under_way_is_the_only_one(void **state)
{
    (void)state;
    struct fence f;
    set_up(&f, true);
    struct fence_request make = req(FENCE_RECORD_CREATE, 4);
    assert_int_equal(fence_judge(&f, &make, NOW, HARD, true), FENCE_FORWARD);
    fence_sent(&f, &make);
    /* It certainly had no effect: helm may try again. */
    fence_answered(&f, &make, 503, NULL);
    assert_int_equal(fence_judge(&f, &make, NOW, HARD, true), FENCE_FORWARD);
    fence_sent(&f, &make);
    assert_int_equal(fence_judge(&f, &make, NOW, HARD, true), FENCE_REFUSE);
    fence_release(&f);
}

static void a_create_that_lost_or_is_unknown_latches(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct fence f;
        set_up(&f, true);
        struct fence_request make = req(FENCE_RECORD_CREATE, 4);
        fence_sent(&f, &make);
        fence_answered(&f, &make, i == 0 ? 409 : 0, NULL);
        assert_true(f.latched);
        assert_false(f.created);
        fence_release(&f);
    }
}

static void a_record_goes_out_with_what_belay_claims(void **state)
{
    (void)state;
    struct fence f;
    const char *version;
    const struct fence_claim *claim;
    set_up(&f, true);
    struct fence_request r = req(FENCE_RECORD_CREATE, 4);
    fence_amendment(&f, &r, &version, &claim);
    assert_null(version);
    assert_string_equal(claim->digest, "1:aa");
    assert_int_equal(claim->epoch, 7);
    fence_sent(&f, &r);
    struct kpb_secret made = secret("sh.helm.release.v1.web.v4", "400", 4);
    fence_answered(&f, &r, 201, &made);
    r = req(FENCE_RECORD_UPDATE, 4); /* its own: what it made last */
    fence_amendment(&f, &r, &version, &claim);
    assert_string_equal(version, "400");
    assert_string_equal(claim->digest, "1:aa");
    r = req(FENCE_RECORD_UPDATE, 3); /* an older one keeps what it said: helm's PUT wipes it */
    fence_amendment(&f, &r, &version, &claim);
    assert_string_equal(version, "300");
    assert_string_equal(claim->digest, "1:old");
    assert_int_equal(claim->epoch, 5);
    r = req(FENCE_RECORD_UPDATE, 2); /* no claim, no annotation */
    fence_amendment(&f, &r, &version, &claim);
    assert_string_equal(version, "200");
    assert_null(claim);
    fence_release(&f);
    set_up(&f, false); /* an uninstall says so in the newest */
    r = req(FENCE_RECORD_UPDATE, 3);
    fence_amendment(&f, &r, &version, &claim);
    assert_int_equal(claim->epoch, 7);
    fence_release(&f);
}

static void a_relabelled_record_is_sent_again_a_changed_one_latches(void **state)
{
    (void)state;
    struct fence f;
    const char *version;
    const struct fence_claim *claim;
    set_up(&f, true);
    struct kpb_secret read = secret("sh.helm.release.v1.web.v3", "300", 3);
    fence_saw_record(&f, &read); /* as helm listed it */
    struct fence_request r = req(FENCE_RECORD_UPDATE, 3);
    struct kpb_secret relabelled = secret("sh.helm.release.v1.web.v3", "301", 3);
    assert_true(fence_may_resend(&f, &r, &relabelled));
    fence_amendment(&f, &r, &version, &claim);
    assert_string_equal(version, "301");
    assert_false(f.latched);
    struct kpb_secret changed = secret("sh.helm.release.v1.web.v3", "302", 99);
    assert_false(fence_may_resend(&f, &r, &changed));
    assert_true(f.latched);
    fence_release(&f);
    set_up(&f, true); /* what helm read is not known: nothing to compare with */
    assert_false(fence_may_resend(&f, &r, &relabelled));
    assert_true(f.latched);
    fence_release(&f);
}

static void records_of_others_are_not_noted(void **state)
{
    (void)state;
    struct fence f;
    set_up(&f, true);
    struct kpb_secret other = secret("sh.helm.release.v1.other.v3", "999", 3);
    struct kpb_secret later = secret("sh.helm.release.v1.web.v4", "999", 3);
    fence_saw_record(&f, &other);
    fence_saw_record(&f, &later); /* not made by this run: a person's */
    assert_int_equal(f.record_count, 2);
    assert_string_equal(f.records[0].resource_version, "300");
    fence_release(&f);
}

static void the_api_servers_own_clock_shuts_the_fence(void **state)
{
    (void)state;
    struct fence f;
    set_up(&f, true);
    fence_note_date(&f, 50 * SEC, 60 * SEC, mono_add_ms(NOW, 5000));
    assert_false(f.latched);
    assert_int_equal(f.last_sign.ns, mono_add_ms(NOW, 5000).ns); /* and is a sign of life */
    fence_note_date(&f, 50 * SEC, 60 * SEC, NOW);
    assert_int_equal(f.last_sign.ns, mono_add_ms(NOW, 5000).ns); /* never an older one */
    fence_note_date(&f, 60 * SEC, 60 * SEC, mono_add_ms(NOW, 6000));
    assert_true(f.latched);
    fence_release(&f);
}

static void an_unsettled_answer_is_known(void **state)
{
    (void)state;
    const struct {
        int status;
        const char *body;
        bool unsettled;
    } rows[] = {
        {504, "", true},
        {500, "{\"message\":\"etcdserver: request timed out\"}", true},
        {500, "{\"message\":\"etcdserver: leader changed\"}", true},
        {500, "{\"message\":\"context deadline exceeded\"}", true},
        {500, "{\"message\":\"etcdserver: request is too large\"}", false},
        {500, "{\"message\":\"failed calling webhook\"}", false},
        {503, "{\"message\":\"apiserver is shutting down\"}", false},
        {409, "etcdserver", false},
        {200, "timed out", false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(fence_is_unsettled(rows[i].status, rows[i].body, strlen(rows[i].body)),
                         rows[i].unsettled);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_what_its_path_says),
        cmocka_unit_test(a_write_passes_only_if_it_is_this_runs),
        cmocka_unit_test(another_releases_record_is_never_touched),
        cmocka_unit_test(a_refusal_latches_all_writes_and_no_read),
        cmocka_unit_test(a_create_that_is_under_way_is_the_only_one),
        cmocka_unit_test(a_create_that_lost_or_is_unknown_latches),
        cmocka_unit_test(a_record_goes_out_with_what_belay_claims),
        cmocka_unit_test(a_relabelled_record_is_sent_again_a_changed_one_latches),
        cmocka_unit_test(records_of_others_are_not_noted),
        cmocka_unit_test(the_api_servers_own_clock_shuts_the_fence),
        cmocka_unit_test(an_unsettled_answer_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
