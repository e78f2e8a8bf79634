#include "cache/cache.h"

#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/mtx.h"
#include "base/strmap.h"

struct snap *snap_ref(struct snap *s)
{
    if (s != NULL) {
        int before = atomic_fetch_add(&s->refs, 1);
        must(before > 0);
    }
    return s;
}

void snap_unref(struct snap *s)
{
    if (s == NULL || atomic_fetch_sub(&s->refs, 1) != 1) {
        return;
    }
    free(s->key);
    free(s->uid);
    free(s->resource_version);
    json_decref(s->object);
    free(s);
}

/* One object: its newest version and where it stands in the index. */
struct entry {
    struct snap *snap;
    char *index; /* NULL = in none */
};

struct cache {
    struct cache_options options;
    struct mtx lock;
    struct strmap entries; /* key -> struct entry; guarded by lock, as is all below */
    struct strmap indexes; /* index value -> struct strmap * of keys (values NULL) */
    bool synced;
};

static void free_keys(void *value)
{
    strmap_release(value);
    free(value);
}

static void free_entry(void *value)
{
    struct entry *e = value;
    snap_unref(e->snap);
    free(e->index);
    free(e);
}

struct cache *cache_new(const struct cache_options *options)
{
    struct cache *c = xcalloc(1, sizeof(*c));
    c->options = *options;
    mtx_init(&c->lock, "cache");
    c->entries.free_value = free_entry;
    c->indexes.free_value = free_keys;
    return c;
}

void cache_free(struct cache *c)
{
    if (c == NULL) {
        return;
    }
    strmap_release(&c->entries);
    strmap_release(&c->indexes);
    mtx_release(&c->lock);
    free(c);
}

static void index_remove(struct cache *c, const char *index, const char *key)
{
    struct strmap *keys = index != NULL ? strmap_get(&c->indexes, index) : NULL;
    if (keys == NULL) {
        return;
    }
    (void)strmap_remove(keys, key);
    if (keys->count == 0) {
        (void)strmap_remove(&c->indexes, index);
    }
}

static void index_add(struct cache *c, const char *index, const char *key)
{
    if (index == NULL) {
        return;
    }
    struct strmap *keys = strmap_get(&c->indexes, index);
    if (keys == NULL) {
        keys = xcalloc(1, sizeof(*keys));
        strmap_put(&c->indexes, index, keys);
    }
    strmap_put(keys, key, NULL);
}

struct snap *cache_put(struct cache *c, struct snap *s)
{
    must(atomic_load(&s->refs) > 0);
    char *index = c->options.index_of != NULL ? c->options.index_of(s) : NULL;
    MTX_GUARD(&c->lock);
    struct entry *e = strmap_get(&c->entries, s->key);
    if (e == NULL) {
        e = xcalloc(1, sizeof(*e));
        strmap_put(&c->entries, s->key, e);
    }
    struct snap *before = e->snap;
    index_remove(c, e->index, s->key);
    free(e->index);
    e->snap = s;
    e->index = index;
    index_add(c, index, s->key);
    return before;
}

struct snap *cache_remove(struct cache *c, const char *key)
{
    MTX_GUARD(&c->lock);
    struct entry *e = strmap_get(&c->entries, key);
    if (e == NULL) {
        return NULL;
    }
    index_remove(c, e->index, key);
    struct snap *before = take_ptr(&e->snap);
    (void)strmap_remove(&c->entries, key);
    return before;
}

struct snap *cache_get(struct cache *c, const char *key)
{
    MTX_GUARD(&c->lock);
    struct entry *e = strmap_get(&c->entries, key);
    return e != NULL ? snap_ref(e->snap) : NULL;
}

size_t cache_by_index(struct cache *c, const char *index, struct snap ***ret)
{
    MTX_GUARD(&c->lock);
    struct strmap *keys = strmap_get(&c->indexes, index);
    size_t n = 0;
    struct snap **all = xcalloc(keys != NULL ? keys->count : 0, sizeof(struct snap *));
    const char *key;
    for (size_t it = 0; keys != NULL && strmap_next(keys, &it, &key, NULL);) {
        struct entry *e = strmap_get(&c->entries, key);
        must(e != NULL);
        all[n++] = snap_ref(e->snap);
    }
    *ret = all;
    return n;
}

size_t cache_all(struct cache *c, struct snap ***ret)
{
    MTX_GUARD(&c->lock);
    struct snap **all = xcalloc(c->entries.count, sizeof(struct snap *));
    size_t n = 0;
    void *value;
    for (size_t it = 0; strmap_next(&c->entries, &it, NULL, &value);) {
        all[n++] = snap_ref(((struct entry *)value)->snap);
    }
    *ret = all;
    return n;
}

size_t cache_count(struct cache *c)
{
    MTX_GUARD(&c->lock);
    return c->entries.count;
}

void cache_set_synced(struct cache *c)
{
    MTX_GUARD(&c->lock);
    c->synced = true;
}

bool cache_is_synced(struct cache *c)
{
    MTX_GUARD(&c->lock);
    return c->synced;
}
