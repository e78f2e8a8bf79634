/* What a sync writes into the status: phases, conditions and messages of helm-operator, plus what
 * kstatus needs.
 *
 *   outcome          Released   Ready    Reconciling  Stalled   attempt
 *   done             True       True     -            -         failures 0
 *   failed, retried  False      False    True         -         failures n, notBefore
 *   failed, terminal False      False    -            True      failures n
 *   interrupted      False      Unknown  True         -         unchanged
 */
#include "worker/worker_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

/* Bytes of a message that the API server refused once for whatever reason: short enough for any
 * limit. */
#define MESSAGE_MINIMAL_BYTES 160

static void put(json_t *status, const char *name, json_t *value)
{
    must(value != NULL);
    must(json_object_set_new(status, name, value) == 0);
}

struct writer {
    json_t *conditions;
    const struct outcome *o;
    const char *now;
    const char *message; /* cut */
    int64_t generation;
};

static void edit(const struct writer *wr, const char *type, const char *status, const char *reason,
                 const char *message)
{
    hr_conditions_edit(wr->conditions,
                       &(struct hr_condition_edit){.type = type,
                                                   .status = status,
                                                   .reason = reason,
                                                   .message = message,
                                                   .observed_generation = wr->generation,
                                                   .now = wr->now});
}

/* "Installation or upgrade succeeded for Helm release 'x' in 'y'.": helm-operator's ending of every
 * message. */
static void edit_gist(const struct writer *wr, const char *type, const char *status,
                      const char *reason, const char *gist)
{
    _cleanup_(free_cstr)
    char *message =
        xasprintf("%s for Helm release '%s' in '%s'.", gist, wr->o->release_name, wr->o->target_ns);
    edit(wr, type, status, reason, message);
}

static void edit_ready(const struct writer *wr)
{
    const struct outcome *o = wr->o;
    bool done = strcmp(o->released, "True") == 0;
    if (done) {
        edit(wr, "Ready", "True", o->reason, wr->message);
        edit(wr, "Reconciling", NULL, NULL, NULL);
        edit(wr, "Stalled", NULL, NULL, NULL);
    } else if (o->interrupted) {
        edit(wr, "Ready", "Unknown", o->reason, wr->message);
        edit(wr, "Reconciling", "True", o->reason, wr->message);
        edit(wr, "Stalled", NULL, NULL, NULL);
    } else if (o->terminal) {
        edit(wr, "Ready", "False", o->reason, wr->message);
        edit(wr, "Reconciling", NULL, NULL, NULL);
        edit(wr, "Stalled", "True", o->reason, wr->message);
    } else {
        edit(wr, "Ready", "False", o->reason, wr->message);
        edit(wr, "Reconciling", "True", "ProgressingWithRetry", wr->message);
        edit(wr, "Stalled", NULL, NULL, NULL);
    }
}

static void edit_steps(const struct writer *wr)
{
    const struct outcome *o = wr->o;
    if (o->chart_fetched != NULL) {
        bool ok = strcmp(o->chart_fetched, "True") == 0;
        if (ok) {
            edit_gist(wr, "ChartFetched", "True", "ChartFetched", "Chart fetch was successful");
        } else {
            edit(wr, "ChartFetched", "False", "ChartFetchFailed", wr->message);
        }
    }
    if (o->deployed == NULL) {
        return;
    }
    if (strcmp(o->deployed, "True") == 0) {
        edit_gist(wr, "Deployed", "True", "Deployed", "Installation or upgrade succeeded");
    } else if (strcmp(o->deployed, "False") == 0) {
        edit(wr, "Deployed", "False", "DeployFailed", wr->message);
    } else {
        bool install = text_eq(o->phase, "Installing");
        edit_gist(wr, "Deployed", "Unknown", o->phase,
                  install ? "Running installation" : "Running upgrade");
    }
}

static void put_texts(json_t *status, const struct outcome *o)
{
    /* status.releaseName is a release that exists: a deletion relies on it when the spec has become
     * unusable. */
    bool exists = text_eq(o->released, "True") || o->deployed != NULL;
    const struct {
        const char *name, *value;
    } texts[] = {
        {"phase", o->phase},
        {"revision", o->revision},
        {"lastAttemptedRevision", o->attempted},
        {"releaseStatus", o->release_status},
        {"releaseName", exists ? o->release_name : NULL},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i].value != NULL && texts[i].value[0] != '\0') {
            put(status, texts[i].name, json_string(texts[i].value));
        }
    }
}

static void put_source(json_t *status, const struct inputs *in, const char *now)
{
    if (in == NULL || in->resolved.version == NULL || in->chart_digest[0] == '\0') {
        return;
    }
    put(status, "source",
        json_pack("{s:s,s:s,s:s}", "revision", in->resolved.version, "digest", in->chart_digest,
                  "resolvedAt", now));
}

static json_t *time_or_null(int64_t ns)
{
    char text[RFC3339_LEN];
    if (ns == INT64_MIN) {
        return json_null();
    }
    rfc3339_format(ns, text);
    return json_string(text);
}

static void put_attempt(json_t *status, const struct outcome *o, const json_t *object,
                        int64_t generation)
{
    json_t *attempt =
        json_pack("{s:s,s:I,s:I,s:o}", "digest", o->digest != NULL ? o->digest : "", "generation",
                  (json_int_t)generation, "failures", (json_int_t)o->failures, "notBefore",
                  time_or_null(o->not_before_ns));
    must(attempt != NULL);
    if (o->upgrades > 0) {
        put(attempt, "upgrades", json_integer(o->upgrades));
        put(attempt, "windowStart", time_or_null(o->window_ns));
    } else if (jsonx_int(object, "status.attempt.generation", -1) != generation) {
        put(attempt, "upgrades", json_null()); /* another generation's count */
        put(attempt, "windowStart", json_null());
    }
    put(status, "attempt", attempt);
}

/* The conditions of object with what the outcome says; *ret_message is what wr->message borrows. */
static struct writer writer_of(const struct outcome *o, const json_t *object, const char *now,
                               bool minimal, char **ret_message)
{
    const json_t *old = jsonx_at(object, "status.conditions");
    json_t *conditions = json_is_array(old) ? json_deep_copy(old) : json_array();
    must(conditions != NULL);
    const char *message = o->message != NULL ? o->message : "";
    *ret_message =
        text_clean(message, strlen(message), minimal ? MESSAGE_MINIMAL_BYTES : LIMIT_MESSAGE_BYTES);
    return (struct writer){.conditions = conditions,
                           .o = o,
                           .now = now,
                           .message = *ret_message,
                           .generation = jsonx_int(object, "status.observedGeneration", -1)};
}

json_t *outcome_build_result(void *ctx, const json_t *object, const char *now, bool minimal)
{
    const struct outcome *o = ctx;
    _cleanup_(free_cstr)
    char *message = NULL;
    struct writer wr = writer_of(o, object, now, minimal, &message);
    edit_steps(&wr);
    edit(&wr, "Released", o->released, o->reason, wr.message);
    edit_ready(&wr);
    json_t *status = json_object();
    must(status != NULL);
    if (strcmp(o->released, "True") == 0) {
        edit(&wr, "RolledBack", NULL, NULL, NULL);
        put(status, "rollbackCount", json_null());
    }
    put(status, "conditions", wr.conditions);
    put_texts(status, o);
    put_source(status, o->source, now);
    if (!o->interrupted) {
        put_attempt(status, o, object, wr.generation);
    }
    return status;
}

json_t *outcome_build_progress(void *ctx, const json_t *object, const char *now, bool minimal)
{
    const struct outcome *o = ctx;
    _cleanup_(free_cstr)
    char *message = NULL;
    struct writer wr = writer_of(o, object, now, minimal, &message);
    edit_steps(&wr);
    json_t *status = json_object();
    must(status != NULL);
    put(status, "conditions", wr.conditions);
    put_texts(status, o);
    put_source(status, o->source, now);
    return status;
}
