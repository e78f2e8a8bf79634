/* yaml2json FILE: what yamlx makes of a file, as canonical JSON on one line; "null" reads as no values at all. Numbers are
 * compared as doubles, as helm's templates see them. Exit 1 and "ERR kind: why" if it is refused. */
#include <stdio.h>
#include <stdlib.h>

#include "base/limits.h"
#include "base/mem.h"
#include "jsonx/jsonx.h"
#include "yamlx/yamlx.h"

/* Depth is bounded: yamlx refuses more than LIMIT_DEPTH. */
static json_t *with_doubles(json_t *j)
{
    if (json_is_integer(j)) {
        return json_real((double)json_integer_value(j));
    }
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_object(j)) {
        json_t *out = json_object();
        json_object_foreach(j, key, value)
        {
            (void)json_object_set_new(out, key, with_doubles(value));
        }
        return out;
    }
    if (json_is_array(j)) {
        json_t *out = json_array();
        json_array_foreach(j, i, value)
        {
            (void)json_array_append_new(out, with_doubles(value));
        }
        return out;
    }
    return json_incref(j);
}

int main(int argc, char **argv)
{
    FILE *f = argc == 2 ? fopen(argv[1], "re") : NULL;
    if (f == NULL) {
        (void)fprintf(stderr, "usage: yaml2json FILE\n");
        return 2;
    }
    char *text = xmalloc(LIMIT_VALUES_BYTES + 2);
    size_t len = fread(text, 1, LIMIT_VALUES_BYTES + 1, f);
    (void)fclose(f);
    _cleanup_json_ json_t *tree = NULL;
    struct err err = ERR_INIT;
    enum err_kind kind = yamlx_parse(text, len, &tree, &err);
    free(text);
    if (kind) {
        (void)printf("ERR %s: %s\n", err_kind_name(kind), err.msg);
        return 1;
    }
    if (!json_is_object(tree) && !json_is_null(tree)) {
        (void)printf("ERR no map\n");
        return 1;
    }
    _cleanup_json_ json_t *doubles = json_is_null(tree) ? json_object() : with_doubles(tree);
    _cleanup_(free_cstr) char *out = jsonx_dump_canonical(doubles);
    (void)printf("%s\n", out);
    return 0;
}
