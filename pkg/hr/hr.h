/* The HelmRelease as belay reads it: a checked view of spec and status over the API object's JSON,
 * and edits of its list of conditions. Pure. The API's shape is api/crd.yaml; the meaning of each
 * field is helm-operator's (docs/api.md).
 *
 * A view borrows nothing from the JSON it was made of, except values, rollback and test trees,
 * which it references. */
#ifndef BELAY_HR_HR_H
#define BELAY_HR_HR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define HR_FINALIZER           "helm.fluxcd.io/belay"
#define HR_RELEASE_NAME_MAX    53 /* helm's own limit (chartutil.ValidateReleaseName) */
#define HR_TIMEOUT_DEFAULT_S   300
#define HR_MAX_HISTORY_DEFAULT 10

enum hr_values_kind { HR_VALUES_CONFIGMAP, HR_VALUES_SECRET, HR_VALUES_URL, HR_VALUES_CHART_FILE };

struct hr_values_source {
    enum hr_values_kind kind;
    char *ns;       /* ConfigMap, Secret: never NULL (default: the HelmRelease's) */
    char *name;     /* ConfigMap, Secret */
    char *key;      /* ConfigMap, Secret: default "values.yaml" */
    char *location; /* URL, or path in the chart */
    bool optional;
};

struct hr_rollback {
    bool enable, retry, disable_hooks, recreate, force, wait;
    int64_t max_retries; /* default 5, 0 = unlimited */
    int64_t timeout_s;   /* default 300 */
};

struct hr_test {
    bool enable, ignore_failures, cleanup;
    int64_t timeout_s; /* default 300 */
};

struct hr_spec {
    char *release_name; /* resolved: spec.releaseName or <ns>-<name> or <ns>-<targetNs>-<name> */
    char *target_ns;    /* resolved */
    char *chart_repository; /* as in the spec, without a change; NULL for a git chart */
    char *chart_name;
    char *chart_version; /* exact or a range */
    char *chart_git, *chart_ref, *chart_path, *chart_secret_ns, *chart_secret_name;
    char *chart_pull_secret;
    bool skip_dep_update;
    char *helm_version; /* "v2", "v3" or NULL */
    int64_t timeout_s;
    bool wait; /* resolved: explicit, else rollback.enable || test.enable */
    bool force_upgrade;
    bool reset_values; /* default true; an explicit false reuses the last release's values */
    int64_t max_history;
    bool skip_crds, disable_openapi_validation;
    struct hr_values_source *values_from; /* valueFileSecrets first, then valuesFrom */
    size_t values_from_count;
    json_t *values; /* an object, possibly empty; own reference */
    struct hr_rollback rollback;
    struct hr_test test;
};

enum hr_truth { HR_ABSENT, HR_TRUE, HR_FALSE, HR_UNKNOWN };

struct hr_condition {
    enum hr_truth status;        /* HR_ABSENT: there is none */
    size_t index;                /* in status.conditions */
    int64_t observed_generation; /* -1 if absent */
    int64_t last_transition_ns;  /* INT64_MIN if absent or unreadable */
    char
        last_transition[40]; /* its text as served: what a JSON Patch test compares; "" if absent */
    char reason[64];         /* cut */
};

struct hr_lease {
    bool present;
    char *holder;        /* never NULL if present */
    int64_t duration_s;  /* > 0; 0 if absent or nonsense: the reader's own --lease-timeout counts */
    int64_t acquire_ns;  /* INT64_MIN if absent */
    int64_t transitions; /* the epoch; 0 if absent */
};

struct hr_attempt {
    bool present;
    char *digest;       /* "" if absent */
    int64_t generation; /* 0 if absent */
    int64_t failures;
    int64_t not_before_ns; /* INT64_MIN if null or absent */
    int64_t upgrades;      /* revisions made for this generation since window_ns */
    int64_t window_ns;     /* INT64_MIN if absent */
};

struct hr_source {
    char *revision;      /* "" if absent */
    char *digest;        /* "" if absent */
    int64_t resolved_ns; /* INT64_MIN if absent */
};

struct hr_status {
    int64_t observed_generation; /* -1 if absent */
    struct hr_condition released, ready, reconciling, stalled, rolled_back, tested, chart_fetched,
        deployed;
    struct hr_lease lease;
    struct hr_attempt attempt;
    struct hr_source source;
    char *phase, *release_name, *release_status, *revision,
        *last_attempted_revision; /* "" if absent */
    int64_t rollback_count;
    int64_t
        managed_ns; /* time of managedFields' entry (manager "belay", subresource "status");
                       INT64_MIN if none: stamped by the API server itself at each of our writes */
};

struct hr {
    char *ns, *name, *uid, *resource_version;
    int64_t generation;
    bool deleting;      /* metadata.deletionTimestamp is set */
    bool has_finalizer; /* HR_FINALIZER */
    size_t finalizer_index;
    struct hr_spec spec; /* valid only if spec_err.kind == ERR_NONE; else only
                            release_name/target_ns may be set */
    struct err
        spec_err; /* ERR_INVALID: which field, what is legal; ERR_NONE if the spec is sound */
    struct hr_status status;
};

/* Read object (kind HelmRelease). ERR_INVALID only if metadata or status are unusable; a bad spec
 * goes into spec_err, so that the object can still be locked, reported and deleted. *ret is freed
 * by hr_free. */
enum err_kind hr_parse(const json_t *object, struct hr **ret, struct err *err) MUST_CHECK;
void hr_free(struct hr *hr);
static inline void hr_free_ptr(struct hr **hr)
{
    hr_free(*hr);
}

/* One condition to write. */
struct hr_condition_edit {
    const char *type;            /* one of api/condition.def */
    const char *status;          /* "True", "False", "Unknown"; NULL removes the condition */
    const char *reason;          /* CamelCase */
    const char *message;         /* cut to LIMIT_MESSAGE_BYTES of valid UTF-8 */
    int64_t observed_generation; /* < 0: none */
    const char *now; /* RFC 3339: lastUpdateTime, and lastTransitionTime if the status changed or
                        restamp is set */
    bool restamp; /* lastTransitionTime = now even if the status is the same: the lock's grants */
};
/* Apply to conditions (a JSON array, changed in place; unknown types and fields are kept). A
 * condition that exists keeps its place in the list (the lock's JSON Patch tests address it by
 * index), a new one goes to the end. */
void hr_conditions_edit(json_t *conditions, const struct hr_condition_edit *edit);
/* Give each condition that has no observedGeneration the value generation (only if >= 0), except
 * those of type skip[]. */
void hr_conditions_stamp_legacy(json_t *conditions, int64_t generation, const char *const *skip,
                                size_t skip_count);
/* The condition of that type; borrowed or NULL. */
json_t *hr_conditions_find(const json_t *conditions, const char *type, size_t *ret_index);

/* Does the served CRD keep what the lock writes? crd is apiextensions.k8s.io/v1
 * CustomResourceDefinition. ERR_INVALID names the first field that would be pruned or the value
 * that would be refused ("status.lease.holderIdentity", condition type Ready, subresource status
 * missing, ...), with a hint to apply the CRD of this version (case 14). */
enum err_kind hr_crd_check(const json_t *crd, struct err *err) MUST_CHECK;

#endif
