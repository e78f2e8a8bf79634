#include <stdio.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "chart/chart_internal.h"

static void held_free(void *value)
{
    struct held *h = value;
    if (h->refs > 0) {
        (void)close(h->fd);
    }
    free(h);
}

static void repo_free_value(void *value)
{
    repo_free(value);
}

enum err_kind charts_open(const struct charts_options *options, struct charts **ret,
                          struct err *err)
{
    struct disk disk;
    uint64_t bytes_max =
        options->cache_bytes_max != 0 ? options->cache_bytes_max : LIMIT_CACHE_BYTES;
    if (disk_open(&disk, options->cache_dir, bytes_max, options->clock, options->rng, err)) {
        return err->kind;
    }
    struct charts *c = xcalloc(1, sizeof(*c));
    c->options = *options;
    c->options.cache_dir = NULL; /* disk has it */
    c->options.user_agent = options->user_agent != NULL ? xstrdup(options->user_agent) : NULL;
    c->disk = disk;
    c->repos.free_value = repo_free_value;
    c->held.free_value = held_free;
    c->flights.free_value = free;
    c->urls.free_value = free;
    mtx_init(&c->lock, "charts");
    cond_init(&c->changed);
    *ret = c;
    return ERR_NONE;
}

void charts_close(struct charts *c)
{
    if (c == NULL) {
        return;
    }
    strmap_release(&c->repos);
    strmap_release(&c->held);
    strmap_release(&c->flights);
    strmap_release(&c->urls);
    for (size_t i = 0; i < c->entry_count; i++) {
        repo_entry_release(&c->entries[i]);
    }
    free(c->entries);
    free((char *)c->options.user_agent);
    disk_release(&c->disk);
    cond_release(&c->changed);
    mtx_release(&c->lock);
    free(c);
}
