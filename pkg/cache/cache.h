/* Immutable snapshots of API objects by key "namespace/name" ("name" for cluster-wide ones), with
 * one secondary index.
 *
 * Threads: all functions lock inside; snapshots are reference-counted and read-only, so a reader
 * keeps what it got for as long as it wants. The writer is the reflector. */
#ifndef BELAY_CACHE_CACHE_H
#define BELAY_CACHE_CACHE_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "timeval/timeval.h"

struct snap {
    atomic_int refs;
    char *key;
    char *uid;
    char *resource_version;
    json_t
        *object; /* never changed after creation; NULL if the object's own text could not be read */
    struct mono seen; /* when this version arrived here */
    bool live; /* arrived by WATCH, not by LIST: seen is then close to the moment of the write */
    struct err bad; /* why object is NULL: kind != ERR_NONE */
};

struct snap *snap_ref(struct snap *s); /* NULL stays NULL */
void snap_unref(struct snap *s);       /* NULL is fine */
static inline void snap_unref_ptr(struct snap **s)
{
    snap_unref(*s);
}

struct cache;
struct cache_options {
    /* The index value of a snapshot, on the heap, or NULL for none; e.g. "namespace/release" of a
     * Helm record. */
    char *(*index_of)(const struct snap *s);
};
struct cache *cache_new(const struct cache_options *options);
void cache_free(struct cache *c);

/* Takes over s's reference. Returns the version that was there before (caller unrefs) or NULL. */
struct snap *cache_put(struct cache *c, struct snap *s);
/* Returns what was removed (caller unrefs) or NULL. */
struct snap *cache_remove(struct cache *c, const char *key);
/* A new reference or NULL. */
struct snap *cache_get(struct cache *c, const char *key);
/* New references to all that share the index value; *ret is an array on the heap (free it), in no
 * order. */
size_t cache_by_index(struct cache *c, const char *index, struct snap ***ret);
/* New references to all, in insertion order. */
size_t cache_all(struct cache *c, struct snap ***ret);
size_t cache_count(struct cache *c);
/* Set once when the first LIST is complete. */
void cache_set_synced(struct cache *c);
bool cache_is_synced(struct cache *c);

#endif
