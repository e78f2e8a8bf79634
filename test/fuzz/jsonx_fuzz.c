/* Any bytes through the parser and the list splitter; what parses is written and read again as the same, canonically too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "jsonx/jsonx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool take_item(void *ctx, const char *item, size_t len)
{
    json_t *j = NULL;
    struct err err = ERR_INIT;
    (void)ctx;
    if (jsonx_parse(item, len, &j, &err) == ERR_NONE) {
        json_decref(j);
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    json_t *j = NULL;
    struct err err = ERR_INIT;
    json_t *rest = NULL;
    if (jsonx_split_items(text, size, take_item, NULL, &rest, &err) == ERR_NONE) {
        json_decref(rest);
    }
    if (jsonx_parse(text, size, &j, &err)) {
        return 0;
    }
    char *canonical = jsonx_dump_canonical(j);
    json_t *again = NULL;
    must(jsonx_parse(canonical, strlen(canonical), &again, &err) == ERR_NONE);
    must(jsonx_equal(j, again));
    char *twice = jsonx_dump_canonical(again);
    must(strcmp(canonical, twice) == 0);
    free(canonical);
    free(twice);
    json_decref(again);
    json_decref(j);
    return 0;
}
