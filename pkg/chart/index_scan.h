/* Read a repository's index as a stream and keep what was asked for. For this package only. */
#ifndef BELAY_CHART_INDEX_SCAN_H
#define BELAY_CHART_INDEX_SCAN_H

#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/strmap.h"
#include "effect/clock.h"

struct index_version {
    char *version; /* as in the index; a version that semver_parse takes */
    char *url;     /* the first of urls, as in the index; "" if there is none */
    char *digest;  /* 64 lower-case hex digits, or "" */
};

/* The versions of one chart, in the order of the index. Immutable once built; counted, because
 * resolving goes on while the next index replaces them. */
struct index_versions {
    atomic_uint refs;
    struct index_version *items;
    size_t count;
    bool too_many;   /* there were more than VERSIONS_MAX; items are not all */
    size_t bad_line; /* > 0: there the entry is not what it should be; items are not all */
};
#define VERSIONS_MAX 50000

struct index_versions *index_versions_ref(struct index_versions *v);
void index_versions_unref(struct index_versions *v); /* NULL is allowed */

struct index_scan {
    int fd; /* read with pread: other threads may scan the same descriptor */
    off_t offset;
    struct clock *clock;
    struct mono deadline;
    struct cancel *cancel;
};
/* names: the charts asked for, a map without free_value; on success each key's value is a new
 * struct index_versions (empty if the index does not list it), on failure NULL. ERR_UNAVAILABLE:
 * this is no index (with the line); ERR_LIMIT: nested too deep; ERR_TIMEOUT, ERR_CANCELLED.
 * *ret_chart_count: charts in the index. Memory: what is kept, and libyaml's few buffers. */
enum err_kind index_scan(const struct index_scan *scan, struct strmap *names,
                         size_t *ret_chart_count, struct err *err) MUST_CHECK;

#endif
