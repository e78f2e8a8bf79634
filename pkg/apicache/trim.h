/* An OpenAPI v3 document, reduced to what helm reads of it. Pure.
 *
 * helm (both majors) reads these documents for one question: does the PATCH of this kind take the
 * query parameter fieldValidation? (k8s.io/cli-runtime pkg/resource/query_param_verifier_v3.go.)
 * What can change its answer stays: of each path its PATCH, of that its
 * x-kubernetes-group-version-kind, its parameter of that name and its references to shared
 * parameters, and those. Schemas, 99 of 100 bytes, go. */
#ifndef BELAY_APICACHE_TRIM_H
#define BELAY_APICACHE_TRIM_H

#include "base/err.h"

#include <stddef.h>

/* A trimmed document; core/v1 has 6 KB, of 1.6 MB. */
#define TRIMMED_BYTES_MAX (2U << 20)

/* *ret: valid JSON, NUL-terminated, *ret_len bytes, owned by the caller. ERR_INVALID: no JSON
 * object with an object "paths", or cut short. ERR_LIMIT: the result were over TRIMMED_BYTES_MAX.
 * What is dropped is skipped, not judged, at any depth. */
enum err_kind trim_openapi(const char *text, size_t len, char **ret, size_t *ret_len,
                           struct err *err) MUST_CHECK;

#endif
