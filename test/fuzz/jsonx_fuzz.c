/* Any bytes: what parses is written and read again as the same value, canonically too, and also by
 * a reader of YAML, as helm is one. A list that is split has the items that parsing it in one piece
 * gives. */
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/must.h"
#include "jsonx/jsonx.h"
#include "yamlx/yamlx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool take_item(void *ctx, const char *item, size_t len)
{
    json_t *items = ctx;
    json_t *j = NULL;
    struct err err = ERR_INIT;
    if (jsonx_parse(item, len, &j, &err) == ERR_NONE) {
        must(json_array_append_new(items, j) == 0);
    }
    return true;
}

/* whole: the text in one piece, or NULL if that is no JSON. */
static void check_split(const char *text, size_t size, const json_t *whole)
{
    _cleanup_json_ json_t *items = json_array();
    _cleanup_json_ json_t *rest = NULL;
    struct err err = ERR_INIT;
    enum err_kind kind = jsonx_split_items(text, size, take_item, items, &rest, &err);
    must((kind == ERR_NONE) == (rest != NULL));
    const json_t *want = json_object_get(whole, "items");
    /* Which of several "items" counts differs, and an escaped name is none: neither comes from an
     * API server. */
    const char *first = memmem(text, size, "\"items\"", 7);
    bool plain = first != NULL && memchr(text, '\\', size) == NULL &&
                 memmem(first + 7, size - (size_t)(first + 7 - text), "\"items\"", 7) == NULL;
    if (plain && json_is_array(want)) {
        must(kind == ERR_NONE);
        must(jsonx_equal(want, items));
    }
}

/* A writer's own bounds: YAML has no key of more than 1024 characters. */
static void check_yaml(const json_t *j, const char *text)
{
    _cleanup_json_ json_t *again = NULL;
    struct err err = ERR_INIT;
    if (yamlx_parse(text, strlen(text), &again, &err) == ERR_NONE) {
        must(jsonx_equal(j, again));
    } else {
        must(strlen(text) > 1000);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    _cleanup_json_ json_t *j = NULL;
    struct err err = ERR_INIT;
    enum err_kind kind = jsonx_parse(text, size, &j, &err);
    must((kind == ERR_NONE) == (j != NULL));
    check_split(text, size, j);
    if (kind) {
        must(strncmp(err.msg, "no valid JSON at line ", 22) == 0 ||
             strncmp(err.msg, "JSON nested deeper than ", 24) == 0);
        return 0;
    }
    _cleanup_(free_cstr)
    char *plain = jsonx_dump(j);
    _cleanup_(free_cstr)
    char *canonical = jsonx_dump_canonical(j);
    _cleanup_json_ json_t *again = NULL;
    _cleanup_json_ json_t *sorted = NULL;
    must(jsonx_parse(plain, strlen(plain), &again, &err) == ERR_NONE);
    must(jsonx_parse(canonical, strlen(canonical), &sorted, &err) == ERR_NONE);
    must(jsonx_equal(j, again));
    must(jsonx_equal(j, sorted));
    _cleanup_(free_cstr)
    char *twice = jsonx_dump_canonical(again);
    must(strcmp(canonical, twice) == 0);
    check_yaml(j, plain);
    return 0;
}
