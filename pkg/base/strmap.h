/* A map from strings to pointers that iterates in insertion order (the simulator needs one fixed
 * order).
 *
 * Hashing is SipHash-like with a seed of the process (strmap_seed, once, before threads), because
 * keys are names that outsiders choose. Keys are copied. Values belong to the caller unless
 * free_value is set (it is never called for NULL). Removing while iterating is allowed for the
 * current entry only. Not thread-safe.
 *
 *   for (size_t it = 0; strmap_next(&m, &it, &key, &value);) ...
 */
#ifndef BELAY_BASE_STRMAP_H
#define BELAY_BASE_STRMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct strmap_entry;

struct strmap {
    struct strmap_entry *entries; /* in insertion order; key NULL = removed */
    size_t entry_count;           /* including removed ones */
    size_t entry_cap;
    size_t count; /* live entries */
    uint32_t *slots;
    size_t slot_count; /* a power of two or 0 */
    void (*free_value)(void *value);
};

#define STRMAP_INIT                                                                                \
    {                                                                                              \
        0                                                                                          \
    }

void strmap_seed(uint64_t seed);
/* NULL if absent. */
void *strmap_get(const struct strmap *m, const char *key);
bool strmap_has(const struct strmap *m, const char *key);
/* Add or replace; a replaced value is freed by free_value if set. value may be NULL. */
void strmap_put(struct strmap *m, const char *key, void *value);
/* Remove; false if absent. The value is freed by free_value if set. */
bool strmap_remove(struct strmap *m, const char *key);
/* Remove and hand the value to the caller (NULL if absent). */
void *strmap_take(struct strmap *m, const char *key);
/* Step: *it starts at 0. Outputs may be NULL. False at the end. */
bool strmap_next(const struct strmap *m, size_t *it, const char **ret_key, void **ret_value);
void strmap_release(struct strmap *m);
uint64_t strmap_hash(const char *key);

#endif
