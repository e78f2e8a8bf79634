/* yaml2json [FILE...]: what belay makes of each YAML file and hands to helm, as FILE with .json for
 * its ending; for a document that is refused, the reason on stdout and no file. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "jsonx/jsonx.h"
#include "yamlx/yamlx.h"

static char *json_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    must(dot != NULL);
    return xasprintf("%.*s.json", (int)(dot - path), path);
}

static void read_file(const char *path, struct buf *into)
{
    FILE *f = fopen(path, "rb");
    must(f != NULL);
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof(chunk), f)) > 0) {
        buf_add(into, chunk, n);
    }
    must(ferror(f) == 0);
    must(fclose(f) == 0);
    must(!into->overflow);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct buf text = BUF_INIT(LIMIT_BODY_BYTES);
        read_file(argv[i], &text);
        _cleanup_(free_cstr)
        char *out = json_name(argv[i]);
        _cleanup_json_ json_t *j = NULL;
        struct err err = ERR_INIT;
        if (yamlx_parse(buf_str(&text), text.len, &j, &err)) {
            (void)printf("%s: %s: %s\n", argv[i], err_kind_name(err.kind), err.msg);
            (void)remove(out);
        } else {
            _cleanup_(free_cstr)
            char *json = jsonx_dump(j);
            FILE *f = fopen(out, "wb");
            must(f != NULL);
            must(fputs(json, f) >= 0);
            must(fclose(f) == 0);
        }
        buf_release(&text);
    }
    return 0;
}
