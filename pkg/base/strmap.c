#include "base/strmap.h"

#include <string.h>

#include "base/mem.h"
#include "base/must.h"

struct strmap_entry {
    char *key;
    void *value;
    uint64_t hash;
};

/* A slot holds the index of an entry plus one, so that zeroed memory is empty. */
#define SLOT_EMPTY 0U

static uint64_t seed_0 = 0x9E3779B97F4A7C15U;
static uint64_t seed_1 = 0xC2B2AE3D27D4EB4FU;

void strmap_seed(uint64_t seed)
{
    seed_0 ^= seed;
    seed_1 += seed * 0xD6E8FEB86659FD93U;
}

static inline uint64_t rotl(uint64_t x, int b)
{
    return (x << b) | (x >> (64 - b));
}

/* One SipHash round (Aumasson and Bernstein, 2012). */
static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[0] = rotl(v[0], 32);
    v[2] += v[3];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[2] = rotl(v[2], 32);
}

/* SipHash-1-3 of the key without its NUL. */
uint64_t strmap_hash(const char *key)
{
    size_t len = strlen(key);
    uint64_t v[4] = {seed_0 ^ 0x736f6d6570736575U, seed_1 ^ 0x646f72616e646f6dU,
                     seed_0 ^ 0x6c7967656e657261U, seed_1 ^ 0x7465646279746573U};
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t word;
        memcpy(&word, key + i, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    uint64_t last = (uint64_t)len << 56;
    memcpy(&last, key + i, len - i);
    last |= (uint64_t)len << 56;
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xFF;
    sip_round(v);
    sip_round(v);
    sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The slot that holds key, or the empty slot where it would go. */
static size_t slot_of(const struct strmap *m, const char *key, uint64_t hash)
{
    size_t mask = m->slot_count - 1;
    size_t slot = (size_t)hash & mask;
    while (m->slots[slot] != SLOT_EMPTY) {
        const struct strmap_entry *e = &m->entries[m->slots[slot] - 1];
        /* A removed entry keeps its slot, so that probing goes on past it. */
        if (e->key != NULL && e->hash == hash && strcmp(e->key, key) == 0) {
            return slot;
        }
        slot = (slot + 1) & mask;
    }
    return slot;
}

static struct strmap_entry *find(const struct strmap *m, const char *key)
{
    if (m->slot_count == 0) {
        return NULL;
    }
    size_t slot = slot_of(m, key, strmap_hash(key));
    return m->slots[slot] == SLOT_EMPTY ? NULL : &m->entries[m->slots[slot] - 1];
}

/* Compact the entries (order kept) and rebuild the slots with room for one more entry. */
static void rebuild(struct strmap *m)
{
    size_t kept = 0;
    for (size_t i = 0; i < m->entry_count; i++) {
        if (m->entries[i].key != NULL) {
            m->entries[kept++] = m->entries[i];
        }
    }
    must(kept == m->count);
    m->entry_count = kept;
    size_t entry_cap = kept + kept / 2 + 8;
    size_t slot_count = 16;
    while (slot_count < entry_cap * 2) {
        slot_count *= 2;
    }
    m->entries = xrealloc(m->entries, entry_cap * sizeof(*m->entries));
    m->entry_cap = entry_cap;
    free(m->slots);
    m->slots = xcalloc(slot_count, sizeof(*m->slots));
    m->slot_count = slot_count;
    for (size_t i = 0; i < kept; i++) {
        m->slots[slot_of(m, m->entries[i].key, m->entries[i].hash)] = (uint32_t)i + 1;
    }
}

static void free_value(const struct strmap *m, void *value)
{
    if (m->free_value != NULL && value != NULL) {
        m->free_value(value);
    }
}

void *strmap_get(const struct strmap *m, const char *key)
{
    struct strmap_entry *e = find(m, key);
    return e != NULL ? e->value : NULL;
}

bool strmap_has(const struct strmap *m, const char *key)
{
    return find(m, key) != NULL;
}

void strmap_put(struct strmap *m, const char *key, void *value)
{
    struct strmap_entry *old = find(m, key);
    if (old != NULL) {
        if (old->value != value) {
            free_value(m, old->value);
        }
        old->value = value;
        return;
    }
    if (m->entry_count == m->entry_cap) {
        rebuild(m);
    }
    uint64_t hash = strmap_hash(key);
    size_t slot = slot_of(m, key, hash);
    m->entries[m->entry_count] =
        (struct strmap_entry){.key = xstrdup(key), .value = value, .hash = hash};
    m->entry_count++;
    m->count++;
    m->slots[slot] = (uint32_t)m->entry_count;
}

void *strmap_take(struct strmap *m, const char *key)
{
    struct strmap_entry *e = find(m, key);
    if (e == NULL) {
        return NULL;
    }
    free(e->key);
    e->key = NULL;
    m->count--;
    return take_ptr(&e->value);
}

bool strmap_remove(struct strmap *m, const char *key)
{
    if (!strmap_has(m, key)) {
        return false;
    }
    free_value(m, strmap_take(m, key));
    return true;
}

bool strmap_next(const struct strmap *m, size_t *it, const char **ret_key, void **ret_value)
{
    while (*it < m->entry_count) {
        const struct strmap_entry *e = &m->entries[(*it)++];
        if (e->key == NULL) {
            continue;
        }
        if (ret_key != NULL) {
            *ret_key = e->key;
        }
        if (ret_value != NULL) {
            *ret_value = e->value;
        }
        return true;
    }
    return false;
}

void strmap_release(struct strmap *m)
{
    for (size_t i = 0; i < m->entry_count; i++) {
        if (m->entries[i].key != NULL) {
            free_value(m, m->entries[i].value);
        }
        free(m->entries[i].key);
    }
    free(m->entries);
    free(m->slots);
    *m = (struct strmap){.free_value = m->free_value};
}
