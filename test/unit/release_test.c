/* What is due, and what is to be done: one row per line of the decision tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "jsonx/jsonx.h"
#include "release/release.h"

#define NOW_NS (INT64_C(1796126400) * NS_PER_SEC)
#define DIGEST "1:aaaa"

struct row {
    const char *name;
    int64_t observed; /* generation is 5 */
    enum hr_truth released, stalled;
    const char *reason;
    bool deleting, finalizer, bad_spec;
    int64_t failures, not_before_s; /* relative to now; 0 = none */
    const char *tried;              /* attempt.digest */
    enum helmrec_status newest;     /* UNKNOWN = no record */
    const char *digest, *owner;     /* of the newest record */
    enum release_due due;
    const char *why;
};

static const struct row rows[] = {
    {"never touched", -1, HR_ABSENT, 0, "", 0, 0, 0, 0, 0, "", 0, "", "", RELEASE_DUE,
     "spec changed"},
    {"edited", 4, HR_TRUE, 0, "", 0, 1, 0, 0, 0, "", HELMREC_DEPLOYED, DIGEST, "me", RELEASE_DUE,
     "spec changed"},
    {"edited during back-off", 4, HR_FALSE, 0, "", 0, 1, 0, 3, 60, "1:b", HELMREC_FAILED, "", "",
     RELEASE_DUE, "spec changed"},
    {"in sync", 5, HR_TRUE, 0, "", 0, 1, 0, 0, 0, "", HELMREC_DEPLOYED, DIGEST, "me",
     RELEASE_COMPARE, ""},
    {"released, but a person's helm was there", 5, HR_TRUE, 0, "", 0, 1, 0, 0, 0, "",
     HELMREC_DEPLOYED, "", "", RELEASE_DUE, "not written by belay"},
    {"released, but the record failed", 5, HR_TRUE, 0, "", 0, 1, 0, 0, 0, "", HELMREC_FAILED,
     DIGEST, "me", RELEASE_DUE, "not deployed"},
    {"released, and another helm is at work", 5, HR_TRUE, 0, "", 0, 1, 0, 0, 0, "",
     HELMREC_PENDING_UPGRADE, "", "", RELEASE_NOT_DUE, "at work"},
    {"another helm was at work, and has ended", 5, HR_FALSE, 0, "Pending", 0, 1, 0, 1, 60, "1:b",
     HELMREC_DEPLOYED, "", "", RELEASE_DUE, "has ended"},
    {"another helm is still at work", 5, HR_FALSE, 0, "Pending", 0, 1, 0, 1, 0, "1:b",
     HELMREC_PENDING_UPGRADE, "", "", RELEASE_NOT_DUE, "still at work"},
    {"another helm is still at work, the back-off is over", 5, HR_FALSE, 0, "Pending", 0, 1, 0, 1,
     -1, "1:b", HELMREC_PENDING_UPGRADE, "", "", RELEASE_NOT_DUE, "still at work"},
    {"another helm still uninstalls", 5, HR_FALSE, 0, "Pending", 0, 1, 0, 1, -1, "1:b",
     HELMREC_UNINSTALLING, "", "", RELEASE_NOT_DUE, "still at work"},
    {"reported as pending, and it is ours", 5, HR_FALSE, 0, "Pending", 0, 1, 0, 1, 60, "1:b",
     HELMREC_PENDING_UPGRADE, DIGEST, "me", RELEASE_DUE, "died"},
    {"released, and a helm of ours died at it", 5, HR_TRUE, 0, "", 0, 1, 0, 0, 0, "",
     HELMREC_PENDING_UPGRADE, DIGEST, "me", RELEASE_DUE, "died"},
    {"released, and an uninstall of ours died", 5, HR_TRUE, 0, "", 0, 1, 0, 0, 0, "",
     HELMREC_UNINSTALLING, DIGEST, "me", RELEASE_DUE, "died"},
    {"released, and a person uninstalls it", 5, HR_TRUE, 0, "", 0, 1, 0, 0, 0, "",
     HELMREC_UNINSTALLING, "", "", RELEASE_NOT_DUE, "at work"},
    {"a holder died at it", 5, HR_UNKNOWN, 0, "", 0, 1, 0, 3, 60, "1:b", HELMREC_PENDING_UPGRADE,
     DIGEST, "me", RELEASE_DUE, "no result"},
    {"a helm that was killed, in back-off", 5, HR_FALSE, 0, "DeployFailed", 0, 1, 0, 1, 60, "1:b",
     HELMREC_PENDING_UPGRADE, DIGEST, "me", RELEASE_COMPARE, ""},
    {"a helm that was killed, back-off over", 5, HR_FALSE, 0, "DeployFailed", 0, 1, 0, 1, -1, "1:b",
     HELMREC_PENDING_UPGRADE, DIGEST, "me", RELEASE_DUE, "over"},
    {"another's by its objects alone", 5, HR_FALSE, 0, "OwnedByOther", 0, 1, 0, 1, 60, "1:b",
     HELMREC_DEPLOYED, "", "", RELEASE_COMPARE, ""},
    {"another's, who has let go", 5, HR_FALSE, 0, "OwnedByOther", 0, 1, 0, 1, 60, "1:b", 0, "", "",
     RELEASE_DUE, "let go"},
    {"another's still", 5, HR_FALSE, 0, "OwnedByOther", 0, 1, 0, 1, 60, "1:b", HELMREC_DEPLOYED,
     DIGEST, "other", RELEASE_COMPARE, ""},
    {"unreadable inputs are looked at again", 5, HR_FALSE, HR_TRUE, "Failed", 0, 1, 0, 1, 0,
     RELEASE_UNREADABLE, 0, "", "", RELEASE_COMPARE, ""},
    {"released, but gone", 5, HR_TRUE, 0, "", 0, 1, 0, 0, 0, "", 0, "", "", RELEASE_DUE, "gone"},
    {"released, but another's", 5, HR_TRUE, 0, "", 0, 1, 0, 0, 0, "", HELMREC_DEPLOYED, DIGEST,
     "other", RELEASE_DUE, "another"},
    {"a lost result", 5, HR_UNKNOWN, 0, "", 0, 1, 0, 0, 0, "", HELMREC_DEPLOYED, DIGEST, "me",
     RELEASE_DUE, "no result"},
    {"interrupted goes on at once", 5, HR_FALSE, 0, "Interrupted", 0, 1, 0, 0, 0, "",
     HELMREC_FAILED, "", "", RELEASE_DUE, "interrupted"},
    {"failed, in back-off", 5, HR_FALSE, 0, "DeployFailed", 0, 1, 0, 1, 60, "1:b", HELMREC_FAILED,
     "", "", RELEASE_COMPARE, ""},
    {"failed before anything was known, in back-off", 5, HR_FALSE, 0, "Failed", 0, 1, 0, 1, 60, "",
     0, "", "", RELEASE_NOT_DUE, ""},
    {"failed, back-off over", 5, HR_FALSE, 0, "DeployFailed", 0, 1, 0, 1, -1, "1:b", HELMREC_FAILED,
     "", "", RELEASE_DUE, "over"},
    {"a back-off nobody of ours wrote", 5, HR_FALSE, 0, "DeployFailed", 0, 1, 0, 1, 86400, "1:b",
     HELMREC_FAILED, "", "", RELEASE_DUE, "over"},
    {"stalled at the ceiling", 5, HR_FALSE, HR_TRUE, "TooManyRevisions", 0, 1, 0, 1, 60, "1:b",
     HELMREC_DEPLOYED, "", "", RELEASE_COMPARE, ""},
    {"the ceiling's hour is over", 5, HR_FALSE, HR_TRUE, "TooManyRevisions", 0, 1, 0, 1, -1, "1:b",
     HELMREC_DEPLOYED, "", "", RELEASE_DUE, "over"},
    {"stalled on an input", 5, HR_FALSE, HR_TRUE, "Failed", 0, 1, 0, 1, 0, "", 0, "", "",
     RELEASE_NOT_DUE, ""},
    {"bad spec, not told", 5, HR_TRUE, 0, "", 0, 1, 1, 0, 0, "", 0, "", "", RELEASE_DUE, "bad"},
    {"bad spec, told", 5, HR_FALSE, HR_TRUE, "Failed", 0, 1, 1, 1, 0, "", 0, "", "",
     RELEASE_NOT_DUE, ""},
    {"deleted", 5, HR_TRUE, 0, "", 1, 1, 0, 0, 0, "", HELMREC_DEPLOYED, DIGEST, "me", RELEASE_DUE,
     "deleted"},
    {"deleted, nothing of ours", 5, HR_TRUE, 0, "", 1, 0, 0, 0, 0, "", 0, "", "", RELEASE_NOT_DUE,
     ""},
    {"deleted, uninstall failed", 5, HR_FALSE, 0, "UninstallFailed", 1, 1, 0, 2, 60, "",
     HELMREC_DEPLOYED, "", "", RELEASE_NOT_DUE, ""},
};

static struct release_answer ask(const struct row *r)
{
    static char digest[64], tried[64], owner[16], uid[] = "me";
    (void)snprintf(digest, sizeof(digest), "%s", r->digest);
    (void)snprintf(tried, sizeof(tried), "%s", r->tried);
    (void)snprintf(owner, sizeof(owner), "%s", r->owner);
    static struct hr hr;
    hr = (struct hr){
        .uid = uid, .generation = 5, .deleting = r->deleting, .has_finalizer = r->finalizer};
    hr.spec_err.kind = r->bad_spec ? ERR_INVALID : ERR_NONE;
    hr.status.observed_generation = r->observed;
    hr.status.released.status = r->released;
    (void)snprintf(hr.status.released.reason, sizeof(hr.status.released.reason), "%s", r->reason);
    hr.status.stalled.status = r->stalled;
    hr.status.attempt = (struct hr_attempt){
        .present = r->failures > 0,
        .digest = tried,
        .generation = 5,
        .failures = r->failures,
        .not_before_ns = r->not_before_s != 0 ? NOW_NS + r->not_before_s * NS_PER_SEC : INT64_MIN};
    static struct helmrec_meta meta;
    meta = (struct helmrec_meta){.status = r->newest,
                                 .digest = digest,
                                 .owner = owner,
                                 .epoch = owner[0] != '\0' ? 4 : 0,
                                 .changed_ns = NOW_NS};
    return release_is_due(
        &(struct release_question){.hr = &hr,
                                   .newest = r->newest != HELMREC_UNKNOWN ? &meta : NULL,
                                   .have_server_time = true,
                                   .server_now = {NOW_NS, NOW_NS + NS_PER_SEC / 2}});
}

static void a_sync_is_due_exactly_when_the_table_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct release_answer a = ask(&rows[i]);
        if (a.due != rows[i].due || strstr(a.why, rows[i].why) == NULL) {
            fail_msg("%s: due %d because \"%s\"", rows[i].name, (int)a.due, a.why);
        }
        /* A wait ends: whatever waits for a time looks again then. */
        bool waits =
            rows[i].not_before_s > 0 && rows[i].not_before_s < 1000 && a.due != RELEASE_DUE;
        if (waits && (a.wait_ms <= 0 || a.wait_ms > rows[i].not_before_s * 1000 + 1)) {
            fail_msg("%s: wait %lld ms", rows[i].name, (long long)a.wait_ms);
        }
    }
}

static void a_pending_record_that_stands_for_long_is_reported(void **state)
{
    (void)state;
    char nobody[] = "", uid[] = "me";
    struct helmrec_meta meta = {.status = HELMREC_PENDING_INSTALL, .owner = nobody};
    struct hr hr = {.generation = 5, .uid = uid};
    hr.status.observed_generation = 5;
    hr.status.released.status = HR_TRUE;
    struct release_question q = {
        .hr = &hr, .newest = &meta, .newest_age_ms = RELEASE_PENDING_PATIENCE_MS - 1};
    struct release_answer a = release_is_due(&q);
    assert_int_equal(a.due, RELEASE_NOT_DUE);
    assert_int_equal(a.wait_ms, 1);
    q.newest_age_ms++;
    assert_int_equal(release_is_due(&q).due, RELEASE_DUE);
}

static void a_loop_of_revisions_meets_a_ceiling(void **state)
{
    (void)state;
    struct hr hr = {.generation = 5};
    struct srvtime now = {NOW_NS, NOW_NS + 1};
    int64_t upgrades = 0, window_ns = 0;
    for (int64_t i = 1; i <= RELEASE_UPGRADES_MAX; i++) {
        assert_true(release_count_upgrade(&hr, now, &upgrades, &window_ns));
        assert_int_equal(upgrades, i);
        hr.status.attempt = (struct hr_attempt){
            .present = true, .generation = 5, .upgrades = upgrades, .window_ns = window_ns};
    }
    assert_false(release_count_upgrade(&hr, now, &upgrades, &window_ns));
    assert_int_equal(window_ns, NOW_NS + 1);
    /* An hour later, and for another generation, counting starts anew. */
    struct srvtime later = {ns_add_ms(NOW_NS + 1, RELEASE_WINDOW_MS),
                            ns_add_ms(NOW_NS + 1, RELEASE_WINDOW_MS)};
    assert_true(release_count_upgrade(&hr, later, &upgrades, &window_ns));
    assert_int_equal(upgrades, 1);
    hr.generation = 6;
    assert_true(release_count_upgrade(&hr, now, &upgrades, &window_ns));
}

static void a_foreign_pending_record_is_looked_at_again_when_it_counts_as_abandoned(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t age_ms, patience_ms; /* since its last change, by the API server */
        bool have_time;
        enum release_due due;
        int64_t wait_ms;
    } table[] = {
        {"young", 1000, 60000, true, RELEASE_NOT_DUE, 59001},
        {"a moment before", 59999, 60000, true, RELEASE_NOT_DUE, 2},
        {"old enough", 60000, 60000, true, RELEASE_DUE, 0},
        {"never", INT64_C(1000000000), 0, true, RELEASE_NOT_DUE, 0},
        {"no server time yet", 60000, 60000, false, RELEASE_NOT_DUE, 1000},
    };
    char nobody[] = "", uid[] = "me";
    struct hr hr = {.generation = 5, .uid = uid};
    hr.status.observed_generation = 5;
    hr.status.released.status = HR_FALSE;
    (void)snprintf(hr.status.released.reason, sizeof(hr.status.released.reason), "Pending");
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct helmrec_meta meta = {.status = HELMREC_PENDING_INSTALL,
                                    .owner = nobody,
                                    .changed_ns = ns_add_ms(NOW_NS, -table[i].age_ms)};
        struct release_answer a =
            release_is_due(&(struct release_question){.hr = &hr,
                                                      .newest = &meta,
                                                      .have_server_time = table[i].have_time,
                                                      .server_now = {NOW_NS, NOW_NS + 1},
                                                      .foreign_pending_ms = table[i].patience_ms});
        if (a.due != table[i].due || a.wait_ms != table[i].wait_ms) {
            fail_msg("%s: due %d, wait %lld ms", table[i].name, (int)a.due, (long long)a.wait_ms);
        }
    }
}

/* The lock's epoch is 7; records changed 100 s ago. */
static const struct {
    const char *name;
    enum helmrec_status status;
    const char *digest, *owner;
    int64_t epoch, patience_s;
    enum release_action action;
} decisions[] = {
    {"in sync", HELMREC_DEPLOYED, DIGEST, "me", 3, 60, RELEASE_NOTHING},
    {"another digest", HELMREC_DEPLOYED, "1:old", "me", 3, 60, RELEASE_UPGRADE},
    {"a person's", HELMREC_DEPLOYED, "", "", 0, 60, RELEASE_READ},
    {"a newer belay's", HELMREC_DEPLOYED, "9:new", "me", 3, 60, RELEASE_READ},
    {"another's", HELMREC_DEPLOYED, DIGEST, "other", 3, 60, RELEASE_FOREIGN},
    {"another's, pending", HELMREC_PENDING_UPGRADE, "", "other", 3, 60, RELEASE_FOREIGN},
    {"another's, uninstalling", HELMREC_UNINSTALLING, "", "other", 3, 60, RELEASE_FOREIGN},
    {"failed", HELMREC_FAILED, DIGEST, "me", 3, 60, RELEASE_UPGRADE},
    {"uninstalled", HELMREC_UNINSTALLED, DIGEST, "me", 3, 60, RELEASE_INSTALL},
    {"superseded", HELMREC_SUPERSEDED, "", "", 0, 60, RELEASE_UPGRADE},
    {"a word nobody knows", HELMREC_UNKNOWN, "", "", 0, 60, RELEASE_UPGRADE},

    {"ours, a dead install", HELMREC_PENDING_INSTALL, DIGEST, "me", 3, 60, RELEASE_REPAIR},
    {"ours, a dead upgrade", HELMREC_PENDING_UPGRADE, DIGEST, "me", 6, 0, RELEASE_REPAIR},
    {"ours, a dead rollback", HELMREC_PENDING_ROLLBACK, "", "me", 3, 60, RELEASE_REPAIR},
    {"ours, of this epoch", HELMREC_PENDING_UPGRADE, DIGEST, "me", 7, 60, RELEASE_REPAIR},
    {"ours, of a later epoch", HELMREC_PENDING_UPGRADE, DIGEST, "me", 8, 60, RELEASE_PENDING},
    {"our name without an epoch", HELMREC_PENDING_UPGRADE, DIGEST, "me", 0, 0, RELEASE_PENDING},
    {"our uninstall", HELMREC_UNINSTALLING, "", "me", 3, 60, RELEASE_FINISH_UNINSTALL},
    {"our uninstall, later epoch", HELMREC_UNINSTALLING, "", "me", 8, 60, RELEASE_PENDING},

    {"foreign install", HELMREC_PENDING_INSTALL, "", "", 0, 101, RELEASE_PENDING},
    {"foreign install, abandoned", HELMREC_PENDING_INSTALL, "", "", 0, 100, RELEASE_REPAIR},
    {"foreign upgrade", HELMREC_PENDING_UPGRADE, "", "", 0, 101, RELEASE_PENDING},
    {"foreign upgrade, abandoned", HELMREC_PENDING_UPGRADE, "", "", 0, 100, RELEASE_REPAIR},
    {"foreign rollback", HELMREC_PENDING_ROLLBACK, "", "", 0, 101, RELEASE_PENDING},
    {"foreign rollback, abandoned", HELMREC_PENDING_ROLLBACK, "", "", 0, 1, RELEASE_REPAIR},
    {"foreign upgrade, never", HELMREC_PENDING_UPGRADE, "", "", 0, 0, RELEASE_PENDING},
    {"foreign uninstall", HELMREC_UNINSTALLING, "", "", 0, 101, RELEASE_PENDING},
    {"foreign uninstall, abandoned", HELMREC_UNINSTALLING, "", "", 0, 100, RELEASE_REPAIR},
};

static void under_the_lock_the_newest_record_decides(void **state)
{
    (void)state;
    struct release_situation s = {.desired_digest = DIGEST,
                                  .owner_uid = "me",
                                  .epoch = 7,
                                  .have_server_time = true,
                                  .server_now = {NOW_NS, NOW_NS + NS_PER_SEC}};
    assert_int_equal(release_decide(&s), RELEASE_INSTALL);
    for (size_t i = 0; i < sizeof(decisions) / sizeof(decisions[0]); i++) {
        char digest[16], owner[16];
        (void)snprintf(digest, sizeof(digest), "%s", decisions[i].digest);
        (void)snprintf(owner, sizeof(owner), "%s", decisions[i].owner);
        struct helmrec_meta meta = {.status = decisions[i].status,
                                    .digest = digest,
                                    .owner = owner,
                                    .epoch = decisions[i].epoch,
                                    .changed_ns = NOW_NS - 100 * NS_PER_SEC};
        s.newest = &meta;
        s.foreign_pending_ms = decisions[i].patience_s * 1000;
        if (release_decide(&s) != decisions[i].action) {
            fail_msg("%s: action %d", decisions[i].name, (int)release_decide(&s));
        }
    }
}

static void nothing_foreign_is_abandoned_while_its_age_is_not_known(void **state)
{
    (void)state;
    char nobody[] = "";
    struct helmrec_meta meta = {.status = HELMREC_PENDING_UPGRADE,
                                .digest = nobody,
                                .owner = nobody,
                                .changed_ns = NOW_NS - 100 * NS_PER_SEC};
    struct release_situation s = {.newest = &meta,
                                  .desired_digest = DIGEST,
                                  .owner_uid = "me",
                                  .epoch = 7,
                                  .server_now = {NOW_NS, NOW_NS},
                                  .foreign_pending_ms = 60000};
    assert_int_equal(release_decide(&s), RELEASE_PENDING);
    s.have_server_time = true;
    assert_int_equal(release_decide(&s), RELEASE_REPAIR);
    meta.changed_ns = INT64_MIN;
    assert_int_equal(release_decide(&s), RELEASE_PENDING);
}

static void the_digest_depends_on_what_shapes_the_release_alone(void **state)
{
    (void)state;
    char name[] = "x", ns[] = "ns", other[] = "y";
    struct hr_spec spec = {
        .release_name = name, .target_ns = ns, .reset_values = true, .timeout_s = 300};
    _cleanup_json_ json_t *values = json_pack("{s:i}", "a", 1);
    _cleanup_json_ json_t *same = json_pack("{s:f}", "a", 1.0);
    char first[RELEASE_DIGEST_LEN], second[RELEASE_DIGEST_LEN];
    release_digest(&spec, "sha256:00", values, first);
    assert_true(release_digest_known(first));
    assert_false(release_digest_known("2:abc"));
    spec.timeout_s = 301; /* how it is done is not what is wanted (case 52) */
    spec.wait = true;
    release_digest(&spec, "sha256:00", same, second);
    assert_string_equal(first, second);
    release_digest(&spec, "sha256:01", values, second);
    assert_string_not_equal(first, second);
    spec.release_name = other;
    release_digest(&spec, "sha256:00", values, second);
    assert_string_not_equal(first, second);
}

static void a_claim_is_read_back_and_nothing_else_is_one(void **state)
{
    (void)state;
    char digest[RELEASE_DIGEST_LEN], owner[64];
    int64_t epoch = 0;
    _cleanup_(free_cstr)
    char *claim = release_claim_format("1:abc", 12, "uid-1");
    assert_true(release_claim_parse(claim, digest, &epoch, owner, sizeof(owner)));
    assert_string_equal(digest, "1:abc");
    assert_string_equal(owner, "uid-1");
    assert_int_equal(epoch, 12);
    static const char *const others[] = {"Upgrade complete",
                                         "Rollback to 3",
                                         "",
                                         "belay ",
                                         "belay digest=1:a epoch=x owner=u",
                                         "belay digest=1:a epoch=3",
                                         "not belay digest=1:a epoch=3 owner=u"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        assert_false(release_claim_parse(others[i], digest, &epoch, owner, sizeof(owner)));
    }
}

static void a_release_made_by_hand_is_adopted_if_it_is_what_is_desired(void **state)
{
    (void)state;
    char name[] = "c", version[] = "1.0.0", done[] = "Upgrade complete",
         ours[] = "belay digest=1:aaaa epoch=3 owner=me";
    _cleanup_json_ json_t *config = json_pack("{s:f}", "n", 1000000.0);
    _cleanup_json_ json_t *same = json_pack("{s:i}", "n", 1000000);
    _cleanup_json_ json_t *different = json_pack("{s:i}", "n", 1);
    struct helmrec_payload p = {.status = HELMREC_DEPLOYED,
                                .description = done,
                                .chart_name = name,
                                .chart_version = version,
                                .config = config};
    assert_true(release_payload_matches(&p, DIGEST, "c", "1.0.0", same));
    assert_false(release_payload_matches(&p, DIGEST, "c", "1.0.1", same));
    assert_false(release_payload_matches(&p, DIGEST, "c", "1.0.0", different));
    p.status = HELMREC_FAILED;
    assert_false(release_payload_matches(&p, DIGEST, "c", "1.0.0", same));
    /* belay's own claim counts, whatever else is in the record. */
    p.status = HELMREC_DEPLOYED;
    p.description = ours;
    assert_true(release_payload_matches(&p, DIGEST, "c", "9.9.9", different));
    assert_false(release_payload_matches(&p, "1:bbbb", "c", "1.0.0", same));
}

static void back_off_doubles_up_to_five_minutes(void **state)
{
    (void)state;
    static const int64_t want_s[] = {10, 20, 40, 80, 160, 300, 300};
    for (size_t i = 0; i < sizeof(want_s) / sizeof(want_s[0]); i++) {
        assert_int_equal(release_backoff_ms((int64_t)i + 1), want_s[i] * 1000);
    }
    assert_int_equal(release_backoff_ms(INT64_MAX), 300000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sync_is_due_exactly_when_the_table_says),
        cmocka_unit_test(a_pending_record_that_stands_for_long_is_reported),
        cmocka_unit_test(a_loop_of_revisions_meets_a_ceiling),
        cmocka_unit_test(a_foreign_pending_record_is_looked_at_again_when_it_counts_as_abandoned),
        cmocka_unit_test(under_the_lock_the_newest_record_decides),
        cmocka_unit_test(nothing_foreign_is_abandoned_while_its_age_is_not_known),
        cmocka_unit_test(the_digest_depends_on_what_shapes_the_release_alone),
        cmocka_unit_test(a_claim_is_read_back_and_nothing_else_is_one),
        cmocka_unit_test(a_release_made_by_hand_is_adopted_if_it_is_what_is_desired),
        cmocka_unit_test(back_off_doubles_up_to_five_minutes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
