/* Helm manifests: whatever a record holds is read or refused, and what is read has names. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "manifest/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(free_cstr)
    char *text = xstrndup((const char *)data, size);
    struct manifest m = MANIFEST_INIT;
    struct err err = ERR_INIT;
    enum err_kind kind = manifest_parse(text, &m, &err);
    must(kind == err.kind);
    for (size_t i = 0; i < m.count; i++) {
        const struct manifest_object *o = &m.objects[i];
        must(o->name[0] != '\0' && o->kind[0] != '\0' && o->api_version[0] != '\0');
        must(manifest_has(&m, o, "ns") && manifest_has(&m, o, NULL));
    }
    manifest_release(&m);
    return 0;
}
