#include "values/values.h"

#include "base/limits.h"
#include "base/must.h"

static void merge_at(json_t *base, const json_t *over, int depth)
{
    must(depth > 0);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)over, key, value)
    {
        json_t *mine = json_object_get(base, key);
        if (json_is_object(mine) && json_is_object(value)) {
            merge_at(mine, value, depth - 1);
        } else {
            /* A copy: base is changed by later merges, and over belongs to somebody else. */
            must(json_object_set_new(base, key, json_deep_copy(value)) == 0);
        }
    }
}

void values_merge(json_t *base, const json_t *over)
{
    must(json_is_object(base) && json_is_object(over));
    merge_at(base, over, 2 * LIMIT_DEPTH);
}
