/* Edits of status.conditions. */
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "hr/hr.h"
#include "jsonx/jsonx.h"

json_t *hr_conditions_find(const json_t *conditions, const char *type, size_t *ret_index)
{
    size_t i;
    json_t *c;
    json_array_foreach((json_t *)conditions, i, c)
    {
        if (text_eq(jsonx_str(c, "type", NULL), type)) {
            if (ret_index != NULL) {
                *ret_index = i;
            }
            return c;
        }
    }
    return NULL;
}

static void put(json_t *c, const char *name, json_t *value)
{
    must(value != NULL);
    must(json_object_set_new(c, name, value) == 0);
}

void hr_conditions_edit(json_t *conditions, const struct hr_condition_edit *e)
{
    must(json_is_array(conditions));
    size_t index = 0;
    json_t *c = hr_conditions_find(conditions, e->type, &index);
    if (e->status == NULL) {
        if (c != NULL) {
            must(json_array_remove(conditions, index) == 0);
        }
        return;
    }
    bool changed = c == NULL || !text_eq(jsonx_str(c, "status", ""), e->status);
    if (c == NULL) {
        c = json_pack("{s:s}", "type", e->type);
        must(c != NULL);
        must(json_array_append_new(conditions, c) == 0);
    }
    put(c, "status", json_string(e->status));
    const char *message = e->message != NULL ? e->message : "";
    _cleanup_(free_cstr)
    char *clean = text_clean(message, strlen(message), LIMIT_MESSAGE_BYTES);
    put(c, "reason", json_string(e->reason != NULL ? e->reason : "Unknown"));
    put(c, "message", json_string(clean));
    if (e->observed_generation >= 0) {
        put(c, "observedGeneration", json_integer(e->observed_generation));
    }
    put(c, "lastUpdateTime", json_string(e->now));
    if (changed || e->restamp || json_object_get(c, "lastTransitionTime") == NULL) {
        put(c, "lastTransitionTime", json_string(e->now));
    }
}

void hr_conditions_stamp_legacy(json_t *conditions, int64_t generation, const char *const *skip,
                                size_t skip_count)
{
    if (generation < 0) {
        return;
    }
    size_t i;
    json_t *c;
    json_array_foreach(conditions, i, c)
    {
        bool skipped = json_object_get(c, "observedGeneration") != NULL;
        for (size_t k = 0; k < skip_count; k++) {
            skipped = skipped || text_eq(jsonx_str(c, "type", ""), skip[k]);
        }
        if (!skipped) {
            put(c, "observedGeneration", json_integer(generation));
        }
    }
}
