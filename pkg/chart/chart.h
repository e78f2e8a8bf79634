/* Charts from HTTP repositories: index, resolution of a version range, download, digest check,
 * cache on disk.
 *
 * Shared by all releases and workers of the process; the directory survives restarts and may be
 * shared by replicas on one node (write to a temporary name, fsync, rename). Threads: any. One
 * download of one thing at a time, the others wait for it. Credentials come from the repository
 * URL's userinfo or from an imported repositories.yaml, and go to the same origin only unless
 * pass_credentials_all is set there (case 34). Nothing secret is in a path, message or log. */
#ifndef BELAY_CHART_CHART_H
#define BELAY_CHART_CHART_H

#include <stdbool.h>
#include <stdint.h>

#include "effect/clock.h"
#include "effect/rng.h"
#include "effect/transport.h"

struct charts;

/* TLS settings of one repositories.yaml entry. Borrowed for the call; paths, NULL if not set. */
struct transport_tls {
    const char *ca_file;
    const char *cert_file; /* both or none */
    const char *key_file;
    bool insecure; /* do not check the server's certificate */
};

struct charts_options {
    struct clock *clock;
    struct rng *rng;
    struct transport *transport; /* for repositories without TLS settings of their own */
    const char
        *cache_dir; /* created if missing, 0700; leftovers of dead downloads are removed at start */
    const char *user_agent;
    /* Makes the transport of an imported repository with TLS settings of its own; index and
     * archives go through it, on whatever host they are (case 35). It stays the maker's, who frees
     * it after charts_close. NULL (or a NULL result): such entries are bad ones. */
    struct transport *(*transport_for)(void *ctx, const struct transport_tls *tls);
    void *transport_for_ctx;
    uint64_t cache_bytes_max; /* on disk, not counting downloads under way; 0: LIMIT_CACHE_BYTES */
};
/* The options are copied, what they point to (but for the texts) is borrowed. ERR_UNAVAILABLE: the
 * directory. */
enum err_kind charts_open(const struct charts_options *options, struct charts **ret,
                          struct err *err) MUST_CHECK;
/* No call may be running and no archive be held. */
void charts_close(struct charts *c);
/* Import helm's repositories.yaml (name, url, username, password, caFile, certFile, keyFile,
 * insecure_skip_tls_verify, pass_credentials_all); before threads start. A bad entry is skipped and
 * named by err of the first one; returns ERR_NONE if the file could be read at all. A repository
 * URL gets the first entry with an equal one (case of scheme and host, default port and trailing
 * slash do not matter; the query only if it makes a difference); userinfo in it goes before the
 * entry's. */
enum err_kind charts_import_repositories(struct charts *c, const char *path,
                                         struct err *err) MUST_CHECK;

struct chart_ref {
    const char *repository; /* URL */
    const char *name;
    const char *version; /* exact or a range; "" or NULL = newest stable */
};

struct chart_resolved {
    char *version;        /* exact, as in the index */
    char *digest;         /* "sha256:<hex>" or "" if the index gives none */
    char *url;            /* absolute; may hold userinfo or a token: never log */
    struct mono resolved; /* when the index that said so was fetched or revalidated */
};
void chart_resolved_release(struct chart_resolved *r);

/* Which version does ref mean, by an index not older than fresh_after (a conditional GET if the
 * copy is older)? NOT_FOUND: the repository has no such chart or no version in range (message lists
 * up to 3 newest). INVALID: bad range or URL. UNAVAILABLE/TIMEOUT/DENIED/LIMIT: the repository's
 * fault. Blocks until deadline at most. */
enum err_kind charts_resolve(struct charts *c, const struct chart_ref *ref, struct mono fresh_after,
                             struct mono deadline, struct cancel *cancel,
                             struct chart_resolved *ret, struct err *err) MUST_CHECK;

struct chart_archive {
    char *path;      /* a .tgz on disk; it stays while the archive is held */
    char digest[72]; /* "sha256:<hex>" of the bytes */
    char version[260];
};
/* Have the archive on disk: from the cache if its digest is the one of the index (or, without one,
 * if it is younger than fresh_after or revalidates by ETag/Last-Modified), else by download. A
 * digest that differs from the index: INVALID. */
enum err_kind charts_fetch(struct charts *c, const struct chart_ref *ref,
                           const struct chart_resolved *resolved, struct mono fresh_after,
                           struct mono deadline, struct cancel *cancel, struct chart_archive *ret,
                           struct err *err) MUST_CHECK;
void chart_archive_release(struct charts *c, struct chart_archive *a);

#endif
