/* Does the served CRD keep what the lock writes? Walks openAPIV3Schema along each path, by the rule
 * of structural schemas: what a schema names is checked and pruned by that schema; of what it does
 * not name, all is kept below x-kubernetes-preserve-unknown-fields, and nothing elsewhere. */
#include <string.h>

#include "base/text.h"
#include "hr/hr.h"
#include "jsonx/jsonx.h"

static const char *const paths[] = {
    "status.observedGeneration",
    "status.phase",
    "status.releaseName",
    "status.releaseStatus",
    "status.revision",
    "status.lastAttemptedRevision",
    "status.conditions.type",
    "status.conditions.status",
    "status.conditions.reason",
    "status.conditions.message",
    "status.conditions.observedGeneration",
    "status.conditions.lastUpdateTime",
    "status.conditions.lastTransitionTime",
    "status.lease.holderIdentity",
    "status.lease.leaseDurationSeconds",
    "status.lease.acquireTime",
    "status.lease.leaseTransitions",
    "status.attempt.digest",
    "status.attempt.generation",
    "status.attempt.failures",
    "status.attempt.notBefore",
    "status.attempt.upgrades",
    "status.attempt.windowStart",
    "status.source.revision",
    "status.source.digest",
    "status.source.resolvedAt",
};

static const char *const condition_types[] = {
#define CONDITION(type) #type,
#include "condition.def"
#undef CONDITION
};

static const char *const phases[] = {
#define PHASE(name) #name,
#include "phase.def"
#undef PHASE
};

/* The schema of the array's elements, of the field, or of any field (maps); NULL if it has none. */
static const json_t *schema_below(const json_t *schema, const char *field)
{
    const json_t *named = json_object_get(json_object_get(schema, "properties"), field);
    const json_t *any = json_object_get(schema, "additionalProperties");
    return named != NULL ? named : json_is_false(any) ? NULL : any;
}

/* The schema of the field at path, or NULL if none names it: then *ret_kept says whether it is kept
 * all the same. all_kept: this CRD prunes nothing. */
static const json_t *schema_at(const json_t *schema, const char *path, bool all_kept,
                               bool *ret_kept)
{
    *ret_kept = all_kept;
    while (*path != '\0') {
        const json_t *items = json_object_get(schema, "items");
        schema = items != NULL ? items : schema;
        char name[64];
        size_t len = strcspn(path, ".");
        if (len >= sizeof(name)) {
            return NULL;
        }
        memcpy(name, path, len);
        name[len] = '\0';
        const json_t *below = schema_below(schema, name);
        if (below == NULL) {
            *ret_kept =
                all_kept ||
                json_is_true(json_object_get(schema, "x-kubernetes-preserve-unknown-fields"));
            return NULL;
        }
        schema = below;
        path += len + (path[len] == '.' ? 1 : 0);
    }
    return schema;
}

static bool enum_takes(const json_t *schema, const char *word)
{
    const json_t *list = json_object_get(schema, "enum");
    size_t i;
    const json_t *value;
    json_array_foreach((json_t *)list, i, value)
    {
        if (text_eq(json_string_value(value), word)) {
            return true;
        }
    }
    return !json_is_array(list);
}

static enum err_kind fault(struct err *err, const char *what, const char *word)
{
    err_set(err, ERR_INVALID, "the HelmRelease CRD in the cluster does not take %s%s", what, word);
    err_hint(err, "apply the CRD of this version (api/crd.yaml, or the chart's crds/)");
    return ERR_INVALID;
}

static const json_t *served_v1(const json_t *crd)
{
    size_t i;
    const json_t *version;
    json_array_foreach(jsonx_at(crd, "spec.versions"), i, version)
    {
        if (text_eq(jsonx_str(version, "name", ""), "v1") && jsonx_bool(version, "served", false)) {
            return version;
        }
    }
    return NULL;
}

enum err_kind hr_crd_check(const json_t *crd, struct err *err)
{
    const json_t *version = served_v1(crd);
    if (version == NULL) {
        return fault(err, "version v1: it is not served", "");
    }
    if (!json_is_object(jsonx_at(version, "subresources.status"))) {
        return fault(err, "the status subresource", "");
    }
    /* A CRD from the days of apiextensions/v1beta1 may have this still. */
    bool all_kept = jsonx_bool(crd, "spec.preserveUnknownFields", false);
    const json_t *schema = jsonx_at(version, "schema.openAPIV3Schema");
    bool kept = false;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (schema_at(schema, paths[i], all_kept, &kept) == NULL && !kept) {
            return fault(err, "", paths[i]);
        }
    }
    const json_t *type = schema_at(schema, "status.conditions.type", all_kept, &kept);
    for (size_t i = 0; i < sizeof(condition_types) / sizeof(condition_types[0]); i++) {
        if (!enum_takes(type, condition_types[i])) {
            return fault(err, "condition type ", condition_types[i]);
        }
    }
    const json_t *phase = schema_at(schema, "status.phase", all_kept, &kept);
    for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]); i++) {
        if (!enum_takes(phase, phases[i])) {
            return fault(err, "phase ", phases[i]);
        }
    }
    return ERR_NONE;
}
