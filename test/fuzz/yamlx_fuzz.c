/* Any bytes: a JSON value, or an error of fixed words that quotes nothing. What was read is written
 * as JSON, and that is read as the same value by the JSON parser and, as helm will read it, as
 * YAML. */
#include <stdint.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "yamlx/yamlx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Letters that occur in no message of ours or of libyaml's. */
static void check_message(const struct err *err)
{
    must(err->kind == ERR_INVALID || err->kind == ERR_LIMIT);
    must(text_has_prefix(err->msg, "line ") || text_has_prefix(err->msg, "the document has "));
    must(strpbrk(err->msg, "@^`$#\\\n\t\r") == NULL);
    for (const char *p = err->msg; *p != '\0'; p++) {
        must(*p >= ' ' && *p <= '~');
    }
}

/* YAML has no key of more than 1024 characters. Depth is bounded: j was parsed. */
static bool has_long_key(const json_t *j)
{
    const char *key;
    json_t *value;
    size_t i;
    json_object_foreach((json_t *)j, key, value)
    {
        if (strlen(key) > 1000 || has_long_key(value)) {
            return true;
        }
    }
    json_array_foreach(j, i, value)
    {
        if (has_long_key(value)) {
            return true;
        }
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_json_ json_t *j = NULL;
    struct err err = ERR_INIT;
    if (yamlx_parse((const char *)data, size, &j, &err)) {
        must(j == NULL);
        check_message(&err);
        return 0;
    }
    must(err.kind == ERR_NONE);
    _cleanup_(free_cstr)
    char *text = jsonx_dump(j);
    _cleanup_json_ json_t *as_json = NULL;
    must(jsonx_parse(text, strlen(text), &as_json, &err) == ERR_NONE);
    must(jsonx_equal(j, as_json));
    if (!has_long_key(j)) {
        _cleanup_json_ json_t *as_yaml = NULL;
        must(yamlx_parse(text, strlen(text), &as_yaml, &err) == ERR_NONE);
        must(jsonx_equal(j, as_yaml));
    }
    return 0;
}
