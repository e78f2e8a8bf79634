/* YAML text to JSON as helm reads it (sigs.k8s.io/yaml over go-yaml v2): YAML 1.1 booleans as
 * values and keys, merge keys, anchors, duplicate keys (last wins whole), non-string keys turned
 * into strings, BOM and CRLF accepted. Pure; libyaml events straight to JSON; aliases are expanded
 * under a budget of nodes and bytes (an alias bomb is ERR_LIMIT). */
#ifndef BELAY_YAMLX_YAMLX_H
#define BELAY_YAMLX_YAMLX_H

#include <jansson.h>
#include <stddef.h>

#include "base/err.h"

/* The FIRST document of the text (helm v3 and helm-operator read only that one; belay hands helm
 * one document so that both majors agree, case 26). An empty text or a null document gives JSON
 * null. Errors: ERR_INVALID with "line N: what", never a piece of the content (it may be a secret,
 * case 58); ERR_LIMIT. *ret is a new reference. Aliases share subtrees in it, so whoever changed
 * one would change the others: values_merge copies. */
enum err_kind yamlx_parse(const char *text, size_t len, json_t **ret, struct err *err) MUST_CHECK;

/* There is no emitter: helm gets JSON (jsonx_dump), which is YAML. */

#endif
