/* Which objects a Helm manifest names: the YAML documents that helm applied, as its records keep
 * them. Hooks are not among them. Pure. */
#ifndef BELAY_MANIFEST_MANIFEST_H
#define BELAY_MANIFEST_MANIFEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define MANIFEST_OBJECTS_MAX 10000

struct manifest_object {
    char *api_version; /* "apps/v1" */
    char *kind;
    char *ns;   /* "" if the manifest names none: the release's, or it is cluster-wide */
    char *name; /* never "" */
    bool keep;  /* helm.sh/resource-policy: keep */
};
struct manifest {
    struct manifest_object *objects; /* in the manifest's order; lists are unfolded */
    size_t count;
};
#define MANIFEST_INIT                                                                              \
    {                                                                                              \
        .objects = NULL, .count = 0                                                                \
    }

/* INVALID: a document is no YAML or no object with apiVersion, kind and metadata.name. LIMIT: over
 * MANIFEST_OBJECTS_MAX objects, or yamlx's limits for one document. Empty documents are skipped. */
enum err_kind manifest_parse(const char *text, struct manifest *ret, struct err *err) MUST_CHECK;
void manifest_release(struct manifest *m);
/* Does m name this object? An absent namespace is default_ns; default_ns NULL: namespaces do not
 * count (the kind has none, whatever a manifest says). Neither does the API group: one object may
 * be served by several (Ingress was), and what is taken for another one may be deleted. */
bool manifest_has(const struct manifest *m, const struct manifest_object *object,
                  const char *default_ns);
/* Does this object ask to be left alone: helm.sh/resource-policy: keep? As helm reads it. */
bool manifest_is_kept(const json_t *object);

#endif
