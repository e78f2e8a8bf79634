#include "lease/lease.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t lease_renew_ms(int64_t lease_ms)
{
    return lease_ms / 3;
}

int64_t lease_request_ms(int64_t lease_ms)
{
    return min64(10000, lease_ms * 3 / 10);
}

int64_t lease_stop_ms(int64_t lease_ms)
{
    /* helm notes "failed" within 40 ms of a SIGINT (seen); a tenth of a lease is generous. */
    return min64(2000, lease_ms / 10);
}

int64_t lease_guard_ms(int64_t lease_ms)
{
    return min64(2000, lease_ms / 5);
}

static int64_t soft_ms(int64_t lease_ms)
{
    return lease_ms - lease_guard_ms(lease_ms) - lease_stop_ms(lease_ms);
}

int64_t lease_early_ms(int64_t lease_ms)
{
    int64_t slack_ms = lease_ms / 20; /* the heartbeat's own work, a slow machine */
    return max64(0, lease_renew_ms(lease_ms) + 2 * lease_request_ms(lease_ms) + slack_ms -
                        soft_ms(lease_ms));
}

bool lease_timing_holds(int64_t lease_ms)
{
    int64_t renew_ms = lease_renew_ms(lease_ms);
    int64_t request_ms = lease_request_ms(lease_ms);
    int64_t early_ms = lease_early_ms(lease_ms);
    return renew_ms + request_ms < soft_ms(lease_ms) && early_ms < renew_ms &&
           renew_ms - early_ms + 2 * request_ms < soft_ms(lease_ms);
}

struct lease_deadlines lease_deadlines_of(struct mono grant, int64_t lease_ms)
{
    must(lease_timing_holds(lease_ms));
    struct mono hard = mono_add_ms(grant, lease_ms - lease_guard_ms(lease_ms));
    return (struct lease_deadlines){
        .renew = mono_add_ms(grant, lease_renew_ms(lease_ms)),
        .soft = mono_add_ms(hard, -lease_stop_ms(lease_ms)),
        .hard = hard,
    };
}

void lease_sighting_release(struct lease_sighting *s)
{
    free(s->holder);
    *s = (struct lease_sighting){0};
}

void lease_sighting_note(struct lease_sighting *s, const struct hr_status *status, struct mono seen,
                         bool live)
{
    const char *holder = status->lease.present ? status->lease.holder : "";
    bool same = s->holder != NULL && strcmp(s->holder, holder) == 0 &&
                s->epoch == status->lease.transitions &&
                strcmp(s->stamp, status->released.last_transition) == 0 &&
                s->managed_ns == status->managed_ns;
    if (same) {
        return;
    }
    lease_sighting_release(s);
    s->holder = xstrdup(holder);
    s->epoch = status->lease.transitions;
    (void)snprintf(s->stamp, sizeof(s->stamp), "%s", status->released.last_transition);
    s->managed_ns = status->managed_ns;
    s->first_seen = seen;
    s->live = live;
}

/* How long until a lock that was found by a LIST may be taken early, by the API server's clock;
 * INT64_MAX if that clock cannot tell (no sample, or a stamp so far ahead that it must be wrong:
 * then only standing still for a whole lease counts). */
static int64_t wait_by_server_time(const struct lease_question *q, int64_t lease_ms,
                                   int64_t stood_ms)
{
    int64_t guard_ms = lease_guard_ms(lease_ms);
    /* The API server itself stamps managedFields at each of our writes: no holder can be wrong
     * about that one. */
    int64_t stamp_ns = max64(q->status->released.last_transition_ns, q->status->managed_ns);
    if (!q->have_server_time || stamp_ns == INT64_MIN) {
        return INT64_MAX;
    }
    if (stamp_ns > ns_add_ms(q->server_now.latest_ns, lease_ms)) {
        return INT64_MAX;
    }
    int64_t expiry_ns = ns_add_ms(stamp_ns, lease_ms + guard_ms);
    int64_t by_clock_ms = q->server_now.earliest_ns > expiry_ns
                              ? 0
                              : (expiry_ns - q->server_now.earliest_ns) / NS_PER_MS + 1;
    /* A live holder would have renewed within this time. */
    int64_t by_patience_ms = lease_renew_ms(lease_ms) + guard_ms - stood_ms;
    return max64(0, max64(by_clock_ms, by_patience_ms));
}

bool lease_same_pod(const char *a, const char *b)
{
    const char *uid_a = strchr(a, '/');
    const char *uid_b = strchr(b, '/');
    if (uid_a == NULL || uid_b == NULL) {
        return false;
    }
    size_t len = strcspn(uid_a + 1, "/");
    return len == strcspn(uid_b + 1, "/") && len > 1 && memcmp(uid_a, uid_b, len + 1) == 0;
}

enum lease_verdict lease_decide(const struct lease_question *q, int64_t *ret_wait_ms)
{
    must(q->self[0] != '\0');
    must(q->own_lease_ms >= LEASE_TIMEOUT_MIN_MS);
    must(!q->have_server_time || q->server_now.earliest_ns <= q->server_now.latest_ns);
    *ret_wait_ms = 0;
    const struct hr_status *status = q->status;
    if (status->released.status != HR_UNKNOWN) {
        return LEASE_FREE;
    }
    if (status->lease.present && strcmp(status->lease.holder, q->self) == 0) {
        return LEASE_OURS;
    }
    if (q->predecessor_dead && status->lease.present &&
        lease_same_pod(status->lease.holder, q->self)) {
        return LEASE_EXPIRED;
    }
    /* What the HOLDER promised counts; a promise over an hour is none that belay makes, and would
     * hold the lock for it. */
    int64_t lease_ms = status->lease.duration_s > 0
                           ? min64(status->lease.duration_s, LEASE_TIMEOUT_MAX_MS / 1000) * 1000
                           : q->own_lease_ms;
    int64_t stood_ms = max64(0, mono_diff_ms(q->now, q->sighting->first_seen));
    int64_t wait_ms = max64(0, lease_ms + lease_guard_ms(lease_ms) - stood_ms);
    if (!q->sighting->live) {
        wait_ms = min64(wait_ms, wait_by_server_time(q, lease_ms, stood_ms));
    }
    if (wait_ms == 0) {
        return LEASE_EXPIRED;
    }
    *ret_wait_ms = wait_ms;
    return LEASE_WAIT;
}

int64_t lease_stamp_ns(struct srvtime server_now, int64_t at_least_ns)
{
    int64_t up =
        server_now.latest_ns / NS_PER_SEC + (server_now.latest_ns % NS_PER_SEC > 0 ? 1 : 0);
    return max64(up * NS_PER_SEC, at_least_ns);
}

/* "pod-a upgrades podinfo; the lease runs out at 12:01:01Z unless renewed". The pod's name alone:
 * people read this. */
static char *grant_message(const struct lease_grant *g)
{
    char until[RFC3339_LEN];
    rfc3339_format(ns_add_ms(g->stamp_ns, g->lease_ms), until);
    const char *clock = strchr(until, 'T');
    return xasprintf("%.*s %s; the lease runs out at %s unless renewed",
                     (int)strcspn(g->holder, "/"), g->holder, g->doing,
                     clock != NULL ? clock + 1 : until);
}

static void edit(json_t *conditions, const char *type, const char *status,
                 const struct lease_grant *g, const char *reason, const char *message,
                 int64_t generation)
{
    char now[RFC3339_LEN];
    rfc3339_format(g->stamp_ns, now);
    hr_conditions_edit(conditions,
                       &(struct hr_condition_edit){.type = type,
                                                   .status = status,
                                                   .reason = reason,
                                                   .message = message,
                                                   .observed_generation = generation,
                                                   .now = now,
                                                   .restamp = strcmp(type, "Released") == 0});
}

static json_t *conditions_copy(const json_t *object)
{
    const json_t *old = jsonx_at(object, "status.conditions");
    json_t *copy = json_is_array(old) ? json_deep_copy(old) : json_array();
    must(copy != NULL);
    return copy;
}

void lease_restamp(json_t *conditions, const struct lease_grant *g, int64_t generation)
{
    _cleanup_(free_cstr)
    char *message = grant_message(g);
    edit(conditions, "Released", "Unknown", g, g->reason, message, generation);
    edit(conditions, "Ready", "Unknown", g, g->reason, message, generation);
    edit(conditions, "Reconciling", "True", g, g->reason, message, generation);
    edit(conditions, "Stalled", NULL, g, NULL, NULL, generation);
}

json_t *lease_acquire_patch(const json_t *object, const struct lease_grant *g)
{
    must(g->epoch > 0);
    int64_t generation = jsonx_int(object, "metadata.generation", 0);
    json_t *conditions = conditions_copy(object);
    /* Conditions that the lock does not speak of keep what they meant, or `kubectl wait
     * --for=condition=Tested` would be met before any test ran. */
    static const char *const stamped[] = {"Released", "Ready", "Reconciling", "Stalled"};
    hr_conditions_stamp_legacy(conditions, jsonx_int(object, "status.observedGeneration", -1),
                               stamped, 4);
    lease_restamp(conditions, g, generation);
    char acquired[RFC3339_LEN];
    rfc3339_format_micro(g->acquire_ns, acquired);
    json_t *patch =
        json_pack("{s:{s:s},s:{s:I,s:o,s:{s:s,s:I,s:s,s:I}}}", "metadata", "resourceVersion",
                  jsonx_str(object, "metadata.resourceVersion", ""), "status", "observedGeneration",
                  (json_int_t)generation, "conditions", conditions, "lease", "holderIdentity",
                  g->holder, "leaseDurationSeconds", (json_int_t)((g->lease_ms + 999) / 1000),
                  "acquireTime", acquired, "leaseTransitions", (json_int_t)g->epoch);
    must(patch != NULL);
    return patch;
}

static void add_op(json_t *patch, const char *op, const char *path, json_t *value)
{
    json_t *entry = json_pack("{s:s,s:s,s:o}", "op", op, "path", path, "value", value);
    must(entry != NULL);
    must(json_array_append_new(patch, entry) == 0);
}

json_t *lease_renew_patch(const json_t *object, const struct lease_grant *g)
{
    if (!lease_is_mine(object, g->holder, g->epoch, NULL)) {
        return NULL;
    }
    size_t index = 0;
    const json_t *released =
        hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", &index);
    char base[64];
    (void)snprintf(base, sizeof(base), "/status/conditions/%zu", index);
    char stamp[RFC3339_LEN];
    rfc3339_format(g->stamp_ns, stamp);
    _cleanup_(free_cstr)
    char *message = grant_message(g);
    json_t *patch = json_array();
    must(patch != NULL);
    add_op(patch, "test", "/status/lease/holderIdentity", json_string(g->holder));
    add_op(patch, "test", "/status/lease/leaseTransitions", json_integer(g->epoch));
    static const char *const tested[] = {"type", "status", "lastTransitionTime"};
    for (size_t i = 0; i < sizeof(tested) / sizeof(tested[0]); i++) {
        char path[96];
        (void)snprintf(path, sizeof(path), "%s/%s", base, tested[i]);
        json_t *value = json_object_get(released, tested[i]);
        add_op(patch, "test", path, json_incref(value));
    }
    static const char *const stamped[] = {"lastTransitionTime", "lastUpdateTime"};
    for (size_t i = 0; i < sizeof(stamped) / sizeof(stamped[0]); i++) {
        char path[96];
        (void)snprintf(path, sizeof(path), "%s/%s", base, stamped[i]);
        add_op(patch, "add", path, json_string(stamp));
    }
    char path[96];
    (void)snprintf(path, sizeof(path), "%s/message", base);
    add_op(patch, "add", path, json_string(message));
    return patch;
}

bool lease_is_mine(const json_t *object, const char *holder, int64_t epoch, const char *stamp)
{
    const json_t *released =
        hr_conditions_find(jsonx_at(object, "status.conditions"), "Released", NULL);
    return released != NULL && text_eq(jsonx_str(released, "status", ""), "Unknown") &&
           text_eq(jsonx_str(object, "status.lease.holderIdentity", ""), holder) &&
           jsonx_int(object, "status.lease.leaseTransitions", 0) == epoch &&
           (stamp == NULL || text_eq(jsonx_str(released, "lastTransitionTime", ""), stamp)) &&
           json_is_string(json_object_get(released, "lastTransitionTime"));
}

/* The same instant, to the second; the text itself is what later JSON Patches test. */
static bool echoes_stamp(const json_t *released, const struct lease_grant *g)
{
    int64_t ns = 0;
    return rfc3339_parse(jsonx_str(released, "lastTransitionTime", ""), &ns) &&
           ns / NS_PER_SEC == g->stamp_ns / NS_PER_SEC;
}

enum err_kind lease_check_echo(const json_t *reply, const struct lease_grant *g, struct err *err)
{
    const char *dropped = NULL;
    const json_t *conditions = jsonx_at(reply, "status.conditions");
    const json_t *released = hr_conditions_find(conditions, "Released", NULL);
    if (!text_eq(jsonx_str(reply, "status.lease.holderIdentity", ""), g->holder)) {
        dropped = "status.lease.holderIdentity";
    } else if (jsonx_int(reply, "status.lease.leaseTransitions", 0) != g->epoch) {
        dropped = "status.lease.leaseTransitions";
    } else if (jsonx_int(reply, "status.lease.leaseDurationSeconds", 0) <= 0) {
        dropped = "status.lease.leaseDurationSeconds";
    } else if (jsonx_int(reply, "status.observedGeneration", -1) !=
               jsonx_int(reply, "metadata.generation", -2)) {
        dropped = "status.observedGeneration";
    } else if (released == NULL || !text_eq(jsonx_str(released, "status", ""), "Unknown")) {
        dropped = "status.conditions[Released]";
    } else if (!echoes_stamp(released, g)) {
        dropped = "status.conditions[Released].lastTransitionTime";
    } else if (hr_conditions_find(conditions, "Ready", NULL) == NULL) {
        dropped = "status.conditions[Ready]";
    } else if (jsonx_int(released, "observedGeneration", -1) < 0) {
        dropped = "status.conditions[].observedGeneration";
    }
    if (dropped == NULL) {
        return ERR_NONE;
    }
    err_set(
        err, ERR_INVALID,
        "the API server dropped %s: the HelmRelease CRD in the cluster is older than this belay",
        dropped);
    err_hint(err, "apply the CRD of this version; nothing is synced until then");
    return ERR_INVALID;
}
