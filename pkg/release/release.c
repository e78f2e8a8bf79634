#include "release/release.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

#define DIGEST_ALGORITHM "1:"
#define CLAIM_PREFIX     "belay "

void release_digest(const struct hr_spec *spec, const char *chart_digest, const json_t *values,
                    char *out)
{
    char values_digest[65];
    jsonx_digest(values, values_digest);
    json_t *all = json_pack("{s:s,s:s,s:s,s:s,s:b}", "chart", chart_digest, "values", values_digest,
                            "name", spec->release_name, "namespace", spec->target_ns, "reuseValues",
                            spec->reset_values ? 0 : 1);
    must(all != NULL);
    char hex[65];
    jsonx_digest(all, hex);
    json_decref(all);
    (void)snprintf(out, RELEASE_DIGEST_LEN, "%s%s", DIGEST_ALGORITHM, hex);
}

bool release_digest_known(const char *digest)
{
    return text_has_prefix(digest, DIGEST_ALGORITHM);
}

char *release_claim_format(const char *digest, int64_t epoch, const char *owner)
{
    return xasprintf(CLAIM_PREFIX "digest=%s epoch=%lld owner=%s", digest, (long long)epoch, owner);
}

/* Copy the word after "name=" into out; false if it is not there or too long. */
static bool claim_word(const char *text, const char *name, char *out, size_t size)
{
    const char *at = strstr(text, name);
    if (at == NULL || (at != text && at[-1] != ' ')) {
        return false;
    }
    at += strlen(name);
    size_t len = strcspn(at, " ");
    if (len == 0 || len >= size) {
        return false;
    }
    memcpy(out, at, len);
    out[len] = '\0';
    return true;
}

bool release_claim_parse(const char *description, char *ret_digest, int64_t *ret_epoch,
                         char *ret_owner, size_t owner_size)
{
    char epoch[32];
    return text_has_prefix(description, CLAIM_PREFIX) &&
           claim_word(description, "digest=", ret_digest, RELEASE_DIGEST_LEN) &&
           claim_word(description, "epoch=", epoch, sizeof(epoch)) &&
           text_to_int64(epoch, 0, INT64_MAX, ret_epoch) &&
           claim_word(description, "owner=", ret_owner, owner_size);
}

int64_t release_backoff_ms(int64_t failures)
{
    must(failures >= 1);
    int64_t ms = RELEASE_BACKOFF_FIRST_MS;
    for (int64_t i = 1; i < failures && ms < RELEASE_BACKOFF_MAX_MS; i++) {
        ms *= 2;
    }
    return ms < RELEASE_BACKOFF_MAX_MS ? ms : RELEASE_BACKOFF_MAX_MS;
}

bool release_count_upgrade(const struct hr *hr, struct srvtime server_now, int64_t *ret_upgrades,
                           int64_t *ret_window_ns)
{
    const struct hr_attempt *a = &hr->status.attempt;
    bool running = a->present && a->generation == hr->generation && a->window_ns != INT64_MIN &&
                   a->window_ns <= server_now.latest_ns &&
                   server_now.earliest_ns < ns_add_ms(a->window_ns, RELEASE_WINDOW_MS);
    *ret_upgrades = running ? a->upgrades + 1 : 1;
    *ret_window_ns = running ? a->window_ns : server_now.latest_ns;
    return *ret_upgrades <= RELEASE_UPGRADES_MAX;
}

/* Milliseconds until attempt.notBefore has certainly passed on the API server's clock; 0 = passed,
 * or no back-off. */
static int64_t backoff_left_ms(const struct release_question *q)
{
    const struct hr_attempt *attempt = &q->hr->status.attempt;
    if (!attempt->present || attempt->generation != q->hr->generation ||
        attempt->not_before_ns == INT64_MIN) {
        return 0;
    }
    if (!q->have_server_time) {
        return 1000;
    }
    /* Nobody of ours writes a time that far ahead: a hand or a wrong clock did, and it must not
     * hold the object for ever. */
    if (attempt->not_before_ns > ns_add_ms(q->server_now.latest_ns, 2 * RELEASE_WINDOW_MS)) {
        return 0;
    }
    if (q->server_now.earliest_ns >= attempt->not_before_ns) {
        return 0;
    }
    return (attempt->not_before_ns - q->server_now.earliest_ns) / NS_PER_MS + 1;
}

static struct release_answer due(const char *why)
{
    return (struct release_answer){.due = RELEASE_DUE, .why = why};
}

static struct release_answer not_due(const char *why, int64_t wait_ms)
{
    return (struct release_answer){.due = RELEASE_NOT_DUE, .why = why, .wait_ms = wait_ms};
}

/* ---- records that say that a helm is at work ---- */

static bool says_at_work(enum helmrec_status s)
{
    return helmrec_status_is_pending(s) || s == HELMREC_UNINSTALLING;
}

/* Written by a helm of ours: the annotations come from the gate, or from belay itself. */
static bool is_own(const struct helmrec_meta *m, const char *uid)
{
    return m->epoch > 0 && strcmp(m->owner, uid) == 0;
}

#define NEVER_MS INT64_MAX

/* Milliseconds until a record that names no owner has stood unchanged for so long that its helm is
 * certainly gone; 0 = it has. By times that the API server stamped, never a laptop's. */
static int64_t abandoned_in_ms(const struct helmrec_meta *m, int64_t patience_ms, bool have_time,
                               struct srvtime now)
{
    if (patience_ms <= 0 || m->changed_ns == INT64_MIN) {
        return NEVER_MS;
    }
    if (!have_time) {
        return 1000;
    }
    int64_t over_ns = ns_add_ms(m->changed_ns, patience_ms);
    return now.earliest_ns >= over_ns ? 0 : (over_ns - now.earliest_ns) / NS_PER_MS + 1;
}

/* Released=False, reason Pending: can anything be done about it now? */
static struct release_answer pending_answer(const struct release_question *q)
{
    const struct helmrec_meta *newest = q->newest;
    if (newest == NULL || !says_at_work(newest->status)) {
        return due("the other helm has ended");
    }
    if (is_own(newest, q->hr->uid)) {
        return due("a helm of belay died at the release");
    }
    int64_t left_ms =
        abandoned_in_ms(newest, q->foreign_pending_ms, q->have_server_time, q->server_now);
    return left_ms == 0
               ? due("the other helm is given up")
               : not_due("another helm is still at work", left_ms == NEVER_MS ? 0 : left_ms);
}

/* Released=True for this generation: does Helm's newest record still say so? */
static struct release_answer released_answer(const struct release_question *q)
{
    const struct helmrec_meta *newest = q->newest;
    if (newest == NULL) {
        return due("the release is gone");
    }
    if (says_at_work(newest->status) && is_own(newest, q->hr->uid)) {
        return due("a helm of belay died at the release");
    }
    if (says_at_work(newest->status) && q->newest_age_ms < RELEASE_PENDING_PATIENCE_MS) {
        return not_due("another helm is at work", RELEASE_PENDING_PATIENCE_MS - q->newest_age_ms);
    }
    if (newest->status != HELMREC_DEPLOYED) {
        return due("the newest record is not deployed");
    }
    if (newest->digest[0] == '\0') {
        return due("the newest record was not written by belay");
    }
    if (newest->owner[0] != '\0' && strcmp(newest->owner, q->hr->uid) != 0) {
        return due("the newest record belongs to another HelmRelease");
    }
    return (struct release_answer){
        .due = RELEASE_COMPARE, .why = "the desired state changed", .against = newest->digest};
}

struct release_answer release_is_due(const struct release_question *q)
{
    const struct hr *hr = q->hr;
    const struct hr_status *status = &hr->status;
    int64_t backoff_ms = backoff_left_ms(q);
    if (hr->deleting) {
        if (!hr->has_finalizer) {
            return not_due("it is being deleted, and nothing of ours is left", 0);
        }
        return backoff_ms > 0 && status->released.status == HR_FALSE
                   ? not_due("uninstall failed", backoff_ms)
                   : due("it is being deleted");
    }
    if (status->observed_generation != hr->generation) {
        return due("the spec changed");
    }
    if (hr->spec_err.kind != ERR_NONE) {
        bool told = status->released.status == HR_FALSE && status->stalled.status == HR_TRUE;
        return told ? not_due("the spec is bad", 0)
                    : due("the spec is bad and its status does not say so");
    }
    switch (status->released.status) {
    case HR_ABSENT:
    case HR_UNKNOWN:
        return due("no result is known for this generation");
    case HR_TRUE:
        return released_answer(q);
    case HR_FALSE:
        break;
    }
    if (strcmp(status->released.reason, "Interrupted") == 0) {
        return due("the last sync was interrupted");
    }
    if (strcmp(status->released.reason, "Pending") == 0) {
        return pending_answer(q);
    }
    /* A record that names nobody says nothing: the objects may name the other owner. */
    bool ours = q->newest == NULL || strcmp(q->newest->owner, hr->uid) == 0;
    if (strcmp(status->released.reason, "OwnedByOther") == 0 && ours) {
        return due("the other owner has let go");
    }
    /* Stalled for good, or until the ceiling's hour is over. */
    bool stalled = status->stalled.status == HR_TRUE && status->attempt.not_before_ns == INT64_MIN;
    if (backoff_ms == 0 && !stalled) {
        return due("the back-off after the last failure is over");
    }
    if (status->attempt.digest != NULL && status->attempt.digest[0] != '\0') {
        return (struct release_answer){.due = RELEASE_COMPARE,
                                       .why = "the desired state changed after a failure",
                                       .wait_ms = backoff_ms,
                                       .against = status->attempt.digest};
    }
    return not_due("waiting after a failure", backoff_ms);
}

static enum release_action decide_at_work(const struct release_situation *s)
{
    const struct helmrec_meta *newest = s->newest;
    if (is_own(newest, s->owner_uid)) {
        if (newest->epoch > s->epoch) {
            return RELEASE_PENDING;
        }
        return newest->status == HELMREC_UNINSTALLING ? RELEASE_FINISH_UNINSTALL : RELEASE_REPAIR;
    }
    /* What a person's uninstall has left is brought back by an upgrade; nothing more of it is
     * deleted. */
    bool abandoned =
        abandoned_in_ms(newest, s->foreign_pending_ms, s->have_server_time, s->server_now) == 0;
    return abandoned ? RELEASE_REPAIR : RELEASE_PENDING;
}

enum release_action release_decide(const struct release_situation *s)
{
    const struct helmrec_meta *newest = s->newest;
    if (newest == NULL) {
        return RELEASE_INSTALL;
    }
    if (newest->owner[0] != '\0' && strcmp(newest->owner, s->owner_uid) != 0) {
        return RELEASE_FOREIGN;
    }
    switch (newest->status) {
    case HELMREC_UNINSTALLED:
        return RELEASE_INSTALL;
    case HELMREC_PENDING_INSTALL:
    case HELMREC_PENDING_UPGRADE:
    case HELMREC_PENDING_ROLLBACK:
    case HELMREC_UNINSTALLING:
        return decide_at_work(s);
    case HELMREC_DEPLOYED:
        if (newest->digest[0] == '\0' || !release_digest_known(newest->digest)) {
            return RELEASE_READ;
        }
        return strcmp(newest->digest, s->desired_digest) == 0 ? RELEASE_NOTHING : RELEASE_UPGRADE;
    case HELMREC_FAILED:
    case HELMREC_SUPERSEDED:
    case HELMREC_UNKNOWN:
        return RELEASE_UPGRADE;
    }
    return RELEASE_UPGRADE;
}

bool release_payload_matches(const struct helmrec_payload *payload, const char *desired_digest,
                             const char *chart_name, const char *chart_version,
                             const json_t *values)
{
    if (payload->status != HELMREC_DEPLOYED) {
        return false;
    }
    char digest[RELEASE_DIGEST_LEN];
    char owner[128];
    int64_t epoch = 0;
    if (release_claim_parse(payload->description, digest, &epoch, owner, sizeof(owner)) &&
        release_digest_known(digest)) {
        return strcmp(digest, desired_digest) == 0;
    }
    return strcmp(payload->chart_name, chart_name) == 0 &&
           strcmp(payload->chart_version, chart_version) == 0 &&
           jsonx_equal(payload->config, values);
}
