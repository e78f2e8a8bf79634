/* Any bytes: a JSON value or an error whose text quotes nothing; what was read can be written and read again as the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "jsonx/jsonx.h"
#include "yamlx/yamlx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *j = NULL;
    struct err err = ERR_INIT;
    if (yamlx_parse((const char *)data, size, &j, &err)) {
        must(err.msg[0] != '\0');
        return 0;
    }
    char *text = jsonx_dump(j);
    json_t *again = NULL;
    must(jsonx_parse(text, strlen(text), &again, &err) == ERR_NONE);
    must(jsonx_equal(j, again));
    free(text);
    json_decref(again);
    json_decref(j);
    return 0;
}
