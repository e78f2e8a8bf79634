/* From the API object to a checked view. spec.c reads the spec, this file metadata and status. */
#include "hr/hr.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "hr/hr_internal.h"
#include "jsonx/jsonx.h"
#include "timeval/timeval.h"

static int64_t time_at(const json_t *j, const char *path)
{
    int64_t ns = INT64_MIN;
    const char *text = jsonx_str(j, path, NULL);
    return text != NULL && rfc3339_parse(text, &ns) ? ns : INT64_MIN;
}

static char *text_at(const json_t *j, const char *path)
{
    return xstrdup(jsonx_str(j, path, ""));
}

static struct hr_condition read_condition(const json_t *conditions, const char *type)
{
    struct hr_condition c = {
        .status = HR_ABSENT, .observed_generation = -1, .last_transition_ns = INT64_MIN};
    const json_t *found = hr_conditions_find(conditions, type, &c.index);
    if (found == NULL) {
        return c;
    }
    const char *status = jsonx_str(found, "status", "");
    c.status = strcmp(status, "True") == 0    ? HR_TRUE
               : strcmp(status, "False") == 0 ? HR_FALSE
                                              : HR_UNKNOWN;
    c.observed_generation = jsonx_int(found, "observedGeneration", -1);
    c.last_transition_ns = time_at(found, "lastTransitionTime");
    (void)snprintf(c.last_transition, sizeof(c.last_transition), "%s",
                   jsonx_str(found, "lastTransitionTime", ""));
    (void)snprintf(c.reason, sizeof(c.reason), "%s", jsonx_str(found, "reason", ""));
    return c;
}

/* When the API server itself last saw belay change the status. */
static int64_t managed_time(const json_t *metadata)
{
    int64_t newest = INT64_MIN;
    size_t i;
    const json_t *entry;
    json_array_foreach(json_object_get(metadata, "managedFields"), i, entry)
    {
        bool ours = text_eq(jsonx_str(entry, "manager", ""), "belay") &&
                    text_eq(jsonx_str(entry, "subresource", ""), "status");
        int64_t ns = ours ? time_at(entry, "time") : INT64_MIN;
        newest = ns > newest ? ns : newest;
    }
    return newest;
}

static void read_lease(const json_t *status, struct hr_lease *ret)
{
    const json_t *lease = json_object_get(status, "lease");
    ret->acquire_ns = INT64_MIN;
    if (!json_is_object(lease)) {
        return;
    }
    ret->present = true;
    ret->holder = text_at(lease, "holderIdentity");
    int64_t duration_s = jsonx_int(lease, "leaseDurationSeconds", 0);
    ret->duration_s = duration_s > 0 ? duration_s : 0;
    ret->acquire_ns = time_at(lease, "acquireTime");
    ret->transitions = jsonx_int(lease, "leaseTransitions", 0);
}

static void read_status(const json_t *object, struct hr_status *ret)
{
    const json_t *status = json_object_get(object, "status");
    const json_t *conditions = json_object_get(status, "conditions");
    ret->observed_generation = jsonx_int(status, "observedGeneration", -1);
    ret->released = read_condition(conditions, "Released");
    ret->ready = read_condition(conditions, "Ready");
    ret->reconciling = read_condition(conditions, "Reconciling");
    ret->stalled = read_condition(conditions, "Stalled");
    ret->rolled_back = read_condition(conditions, "RolledBack");
    ret->tested = read_condition(conditions, "Tested");
    ret->chart_fetched = read_condition(conditions, "ChartFetched");
    ret->deployed = read_condition(conditions, "Deployed");
    read_lease(status, &ret->lease);
    const json_t *attempt = json_object_get(status, "attempt");
    ret->attempt.present = json_is_object(attempt);
    ret->attempt.digest = text_at(attempt, "digest");
    ret->attempt.generation = jsonx_int(attempt, "generation", 0);
    ret->attempt.failures = jsonx_int(attempt, "failures", 0);
    ret->attempt.not_before_ns = time_at(attempt, "notBefore");
    ret->attempt.upgrades = jsonx_int(attempt, "upgrades", 0);
    ret->attempt.window_ns = time_at(attempt, "windowStart");
    const json_t *source = json_object_get(status, "source");
    ret->source.revision = text_at(source, "revision");
    ret->source.digest = text_at(source, "digest");
    ret->source.resolved_ns = time_at(source, "resolvedAt");
    ret->phase = text_at(status, "phase");
    ret->release_name = text_at(status, "releaseName");
    ret->release_status = text_at(status, "releaseStatus");
    ret->revision = text_at(status, "revision");
    ret->last_attempted_revision = text_at(status, "lastAttemptedRevision");
    ret->rollback_count = jsonx_int(status, "rollbackCount", 0);
    ret->managed_ns = managed_time(json_object_get(object, "metadata"));
}

static void read_finalizers(const json_t *metadata, struct hr *hr)
{
    size_t i;
    const json_t *value;
    json_array_foreach(json_object_get(metadata, "finalizers"), i, value)
    {
        if (text_eq(json_string_value(value), HR_FINALIZER)) {
            hr->has_finalizer = true;
            hr->finalizer_index = i;
        }
    }
}

enum err_kind hr_parse(const json_t *object, struct hr **ret, struct err *err)
{
    const json_t *metadata = json_object_get(object, "metadata");
    const char *ns = jsonx_str(metadata, "namespace", NULL);
    const char *name = jsonx_str(metadata, "name", NULL);
    if (ns == NULL || name == NULL || jsonx_str(metadata, "uid", NULL) == NULL) {
        return err_set(err, ERR_INVALID, "no HelmRelease: metadata lacks namespace, name or uid");
    }
    struct hr *hr = xcalloc(1, sizeof(*hr));
    hr->ns = xstrdup(ns);
    hr->name = xstrdup(name);
    hr->uid = text_at(metadata, "uid");
    hr->resource_version = text_at(metadata, "resourceVersion");
    hr->generation = jsonx_int(metadata, "generation", 0);
    hr->deleting = jsonx_str(metadata, "deletionTimestamp", NULL) != NULL;
    read_finalizers(metadata, hr);
    read_status(object, &hr->status);
    hr_spec_read(json_object_get(object, "spec"), hr);
    *ret = hr;
    return ERR_NONE;
}

static void release_status(struct hr_status *s)
{
    free(s->lease.holder);
    free(s->attempt.digest);
    free(s->source.revision);
    free(s->source.digest);
    free(s->phase);
    free(s->release_name);
    free(s->release_status);
    free(s->revision);
    free(s->last_attempted_revision);
}

void hr_free(struct hr *hr)
{
    if (hr == NULL) {
        return;
    }
    free(hr->ns);
    free(hr->name);
    free(hr->uid);
    free(hr->resource_version);
    hr_spec_release(&hr->spec);
    release_status(&hr->status);
    free(hr);
}
