/* YAML scalars to JSON, by the rules of go-yaml v2 as sigs.k8s.io/yaml (helm's reader) uses it.
 * Pure. */
#ifndef BELAY_YAMLX_SCALAR_H
#define BELAY_YAMLX_SCALAR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct scalar {
    json_t *value;   /* new reference; NULL: it cannot be had as JSON, and why says the reason */
    const char *why; /* static */
    char *key;       /* its text as a map's key (owner: the caller); NULL: it cannot be one */
};

/* text[0..len], NUL-terminated, with its tag ("" = none, short form "!!int"). plain: neither quoted
 * nor tagged, so what it means is found from the text. */
struct scalar scalar_resolve(const char *text, size_t len, const char *tag, bool plain);

#endif
