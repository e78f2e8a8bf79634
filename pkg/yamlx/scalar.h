/* Plain YAML scalars to JSON, by the rules of go-yaml v2 as sigs.k8s.io/yaml (helm's reader) uses it. */
#ifndef BELAY_YAMLX_SCALAR_H
#define BELAY_YAMLX_SCALAR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* text[0..len) with its tag ("" = none, short form "!!int"); plain: unquoted without a tag that fixes the type.
 * New reference, or NULL with *ret_why (static) if it cannot be had as JSON (.inf, .nan, a tag that does not fit). */
json_t *scalar_resolve(const char *text, size_t len, const char *tag, bool plain, const char **ret_why);

#endif
