/* JSON: the only package that calls jansson's parser and dumper (others may use json_t accessors).
 * Pure.
 *
 * jansson traps that are met here: an integer above int64 in one object must not lose the whole
 * list (items are split before parsing, jsonx_split_items); depth is capped; numbers that do not
 * fit int64 become reals, as Go's decoder of untyped JSON makes them; a lone surrogate or NUL in a
 * string is an error of that one text, which names its place. Trees that other threads can see are
 * read-only. */
#ifndef BELAY_JSONX_JSONX_H
#define BELAY_JSONX_JSONX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

static inline void jsonx_decref_ptr(json_t **j)
{
    if (*j != NULL) {
        json_decref(*j);
    }
}
#define _cleanup_json_ __attribute__((cleanup(jsonx_decref_ptr)))

/* Parse one JSON text. Integers outside int64 are kept as reals. Depth over LIMIT_DEPTH, trailing
 * bytes, invalid UTF-8: ERR_INVALID with line and column. Duplicate keys: last wins. *ret is a new
 * reference. */
enum err_kind jsonx_parse(const char *text, size_t len, json_t **ret, struct err *err) MUST_CHECK;

/* Walk a Kubernetes List text without parsing its items: fn gets each element of the top-level
 * "items" array as text; false from fn stops. *ret_rest (may be NULL) receives the list object with
 * "items" emptied (kind, metadata, ...). An item is not checked: it may be no JSON. On an error fn
 * may have been called for some items: forget them. */
enum err_kind jsonx_split_items(const char *text, size_t len,
                                bool (*fn)(void *ctx, const char *item, size_t len), void *ctx,
                                json_t **ret_rest, struct err *err) MUST_CHECK;

/* Compact text on one line, keys in insertion order (canonical: sorted). Reals are written with the
 * fewest digits that read back as the same double (0.1, not 0.10000000000000001), and a real that
 * is a whole number within int64 as an integer. Every YAML 1.1 reader takes it back as the same
 * value: characters that YAML refuses or folds are escaped. (But YAML allows a key no more than
 * 1024 characters; helm refuses longer ones.) NaN and infinity cannot occur. The caller owns the
 * result. */
char *jsonx_dump(const json_t *j);
char *jsonx_dump_canonical(const json_t *j);
void jsonx_write(struct buf *out, const json_t *j, bool canonical);

/* Lower-case hex sha256 of the canonical text. out[65]. Equal values (jsonx_equal) and only they
 * give equal digests, in every version of belay: tested against fixed vectors. 1, 1.0 and 1e0 are
 * the same number. */
void jsonx_digest(const json_t *j, char *out);
/* Deep equality by value: numbers compare as doubles (helm knows no others), objects compare
 * regardless of order. */
bool jsonx_equal(const json_t *a, const json_t *b);

/* j.path by dots ("metadata.name"); NULL if any step is missing or no object. Borrowed. j may be
 * NULL. */
json_t *jsonx_at(const json_t *j, const char *path);
/* String at path, or fallback (may be NULL). Borrowed. */
const char *jsonx_str(const json_t *j, const char *path, const char *fallback);
int64_t jsonx_int(const json_t *j, const char *path, int64_t fallback); /* whole reals count too */
bool jsonx_bool(const json_t *j, const char *path, bool fallback);

#endif
