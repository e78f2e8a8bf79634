/* Which version does a reference mean: the index of a repository, kept fresh and scanned.
 *
 *   asked for NAME, index not older than T
 *     copy checked at or after T, NAME scanned     answer
 *     copy checked at or after T, NAME not scanned scan for all names that wait
 *     copy older, or none                          conditional GET; 304 or equal bytes: as before;
 *                                                  new bytes: scan for all names asked since the
 * last ones, then install One thread at a time does that for a repository (its flight); it owns fd
 * and stamp meanwhile. New bytes are installed only if they scan well, so that a broken index is
 * fetched again rather than revalidated. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "chart/chart_internal.h"
#include "chartref/chartref.h"

#define REPOS_MAX      256  /* repositories in memory; each holds an open file */
#define REPO_NAMES_MAX 4096 /* scanned names of one repository */
#define NEWEST_SHOWN   3

/* ---- repositories in memory ---- */

static void repo_name_free(void *value)
{
    struct repo_name *n = value;
    index_versions_unref(n->versions);
    free(n);
}

void repo_free(struct repo *r)
{
    if (r->fd >= 0) {
        (void)close(r->fd);
    }
    strmap_release(&r->names);
    access_release(&r->access);
    free(r->url);
    free(r->shown);
    free(r->path);
    free(r);
}

static struct repo *repo_new(const struct charts *c, const char *key, const char *url,
                             const char *shown)
{
    struct repo *r = xcalloc(1, sizeof(*r));
    char hash[SHA256_HEX];
    text_digest(key, hash);
    r->url = xstrdup(url);
    r->shown = xstrdup(shown);
    r->path = disk_path(&c->disk, "index", hash, "");
    r->fd = -1;
    r->names.free_value = repo_name_free;
    access_init(&r->access, c, url);
    return r;
}

/* Two spellings of a URL are one repository; two users of it are not: they may see different
 * indexes. */
static char *repo_key(const char *url)
{
    _cleanup_(free_cstr)
    char *normal = chart_repository_normal(url, true);
    _cleanup_(free_cstr)
    char *userpwd = url_userpwd(url);
    return xasprintf("%s\n%s", userpwd != NULL ? userpwd : "", normal);
}

static struct repo *repo_enter_locked(struct charts *c, const char *url, const char *shown)
{
    _cleanup_(free_cstr)
    char *key = repo_key(url);
    struct repo *r = strmap_get(&c->repos, key);
    if (r == NULL) {
        r = repo_new(c, key, url, shown);
        strmap_put(&c->repos, key, r);
    }
    r->flight.users++;
    r->used = ++c->ticks;
    return r;
}

/* The least recently used repository if there are too many or their indexes take half of the cache;
 * NULL if not. */
static struct repo *repo_take_idle_locked(struct charts *c)
{
    const char *key;
    void *value;
    const char *oldest_key = NULL;
    const struct repo *oldest = NULL;
    uint64_t bytes = 0;
    for (size_t it = 0; strmap_next(&c->repos, &it, &key, &value);) {
        const struct repo *r = value;
        bytes += r->index_bytes;
        if (r->flight.users == 0 && (oldest == NULL || r->used < oldest->used)) {
            oldest = r;
            oldest_key = key;
        }
    }
    if (oldest == NULL || (c->repos.count <= REPOS_MAX && bytes <= c->disk.bytes_max / 2)) {
        return NULL;
    }
    return strmap_take(&c->repos, oldest_key);
}

static void drop_idle(struct charts *c)
{
    for (;;) {
        mtx_lock(&c->lock);
        struct repo *r = repo_take_idle_locked(c);
        mtx_unlock(&c->lock);
        if (r == NULL) {
            return;
        }
        repo_free(r);
    }
}

static struct repo_name *repo_name_locked(struct repo *r, const char *name)
{
    struct repo_name *n = strmap_get(&r->names, name);
    if (n == NULL) {
        if (r->names.count >= REPO_NAMES_MAX) {
            /* Those who wait ask again. */
            strmap_release(&r->names);
            r->names = (struct strmap){.free_value = repo_name_free};
        }
        n = xcalloc(1, sizeof(*n));
        strmap_put(&r->names, name, n);
    }
    n->asked = true;
    return n;
}

/* ---- the work of a flight ---- */

struct refresh {
    struct charts *charts;
    struct repo *repo;
    struct waiter *waiter;
    bool fetch;           /* false: only scan what is there */
    struct strmap wanted; /* names without versions of the present generation */
    struct strmap asked;  /* names to scan a new generation for */
    /* Results. */
    bool new_generation; /* asked has the results, else wanted */
    struct mono sent;
    size_t chart_count;
};

static void versions_unref_all(struct strmap *names)
{
    void *value;
    for (size_t it = 0; strmap_next(names, &it, NULL, &value);) {
        index_versions_unref(value);
    }
    strmap_release(names);
}

static void refresh_init_locked(struct refresh *f)
{
    const char *name;
    void *value;
    for (size_t it = 0; strmap_next(&f->repo->names, &it, &name, &value);) {
        const struct repo_name *n = value;
        if (n->versions == NULL) {
            strmap_put(&f->wanted, name, NULL);
        }
        if (n->asked) {
            strmap_put(&f->asked, name, NULL);
        }
    }
}

static enum err_kind scan(struct refresh *f, int fd, struct strmap *names, struct err *err)
{
    const struct index_scan s = {
        .fd = fd,
        .offset = STAMP_BYTES,
        .clock = f->charts->options.clock,
        .deadline = f->waiter->deadline,
        .cancel = f->waiter->cancel,
    };
    if (names->count == 0) {
        return ERR_NONE;
    }
    if (index_scan(&s, names, &f->chart_count, err)) {
        return err_wrap(err, "read the index of %s", f->repo->shown);
    }
    return ERR_NONE;
}

static void look_on_disk(struct repo *r)
{
    struct stat st;
    if (r->looked_on_disk) {
        return;
    }
    r->looked_on_disk = true;
    r->fd = disk_hold(r->path, &st);
    if (r->fd >= 0 && !stamp_read(r->fd, true, &r->stamp)) {
        (void)close(r->fd);
        r->fd = -1;
    }
}

static void forget_index(struct repo *r)
{
    (void)unlink(r->path);
    (void)close(r->fd);
    r->fd = -1;
}

/* Scan the new bytes and, if they are an index, put them in place of the old ones. */
static enum err_kind install(struct refresh *f, struct downloaded *d, struct err *err)
{
    struct repo *r = f->repo;
    int fd = -1;
    if (scan(f, d->temp.fd, &f->asked, err)) {
        if (strcasestr(d->content_type, "html") != NULL) {
            err_hint(err, "the server sent %s, not an index: look at the URL", d->content_type);
        }
        return err->kind;
    }
    if (temp_commit(&f->charts->disk, &d->temp, &d->stamp, r->path, &fd, err)) {
        return err->kind;
    }
    if (r->fd >= 0) {
        (void)close(r->fd);
    }
    r->fd = fd;
    r->stamp = d->stamp;
    f->new_generation = true;
    disk_trim(&f->charts->disk, f->charts->disk.bytes_max);
    return ERR_NONE;
}

static enum err_kind fetch_index(struct refresh *f, struct err *err)
{
    struct repo *r = f->repo;
    _cleanup_(free_cstr)
    char *url = chart_index_url(r->url);
    must(url != NULL);
    const struct download what = {
        .transport = r->access.transport,
        .url = url,
        .userpwd = r->access.userpwd,
        .known = r->fd >= 0 ? &r->stamp : NULL,
        .bytes_max = LIMIT_INDEX_BYTES,
        .with_stamp = true,
        .deadline = f->waiter->deadline,
        .cancel = f->waiter->cancel,
    };
    struct downloaded d = {0};
    if (download(f->charts, &what, &d, err)) {
        if (err->kind == ERR_NOT_FOUND) {
            err_hint(err, "the URL is not that of a chart repository: there is no index.yaml");
        }
        return err->kind;
    }
    f->sent = d.sent;
    if (d.not_modified) {
        return ERR_NONE;
    }
    enum err_kind kind = ERR_NONE;
    if (r->fd >= 0 && strcmp(d.stamp.sha256, r->stamp.sha256) == 0) {
        /* A server without validators; the bytes are the old ones, so is what was scanned. */
        r->stamp = d.stamp;
    } else {
        kind = install(f, &d, err);
    }
    temp_discard(&d.temp);
    return kind;
}

static enum err_kind refresh_run(struct refresh *f, struct err *err)
{
    struct repo *r = f->repo;
    look_on_disk(r);
    f->fetch = f->fetch || r->fd < 0;
    if (f->fetch && (fetch_index(f, err) || f->new_generation)) {
        return err->kind;
    }
    if (scan(f, r->fd, &f->wanted, err) == ERR_NONE || err->kind == ERR_CANCELLED ||
        err->kind == ERR_TIMEOUT) {
        return err->kind;
    }
    /* New bytes are scanned before they are installed, so the file is spoilt, whatever the server
     * says of its validators. */
    forget_index(r);
    *err = (struct err)ERR_INIT;
    f->fetch = true;
    (void)fetch_index(f, err);
    return err->kind;
}

static void replace_versions(struct repo_name *n, struct index_versions *v)
{
    index_versions_unref(n->versions);
    n->versions = v != NULL ? index_versions_ref(v) : NULL;
}

static void refresh_install_locked(struct refresh *f)
{
    struct repo *r = f->repo;
    const struct strmap *results = f->new_generation ? &f->asked : &f->wanted;
    const char *name;
    void *value;
    for (size_t it = 0; strmap_next(&r->names, &it, &name, &value);) {
        struct repo_name *n = value;
        bool scanned = strmap_has(results, name);
        if (scanned) {
            replace_versions(n, strmap_get(results, name));
        } else if (f->new_generation && !n->asked) {
            (void)strmap_remove(&r->names, name);
            continue;
        } else if (f->new_generation) {
            replace_versions(n, NULL);
        }
        n->asked = n->asked && !f->new_generation;
    }
    if (results->count > 0) {
        r->chart_count = f->chart_count;
    }
    if (f->fetch) {
        r->checked = true;
        r->checked_at = f->sent;
        r->index_bytes = r->stamp.bytes;
    }
}

/* This thread has the flight. Gives up the lock meanwhile. */
static enum err_kind refresh_locked(struct charts *c, struct repo *r, struct waiter *w, bool fetch,
                                    struct err *err)
{
    struct refresh f = {.charts = c, .repo = r, .waiter = w, .fetch = fetch};
    struct err failure = ERR_INIT;
    refresh_init_locked(&f);
    mtx_unlock(&c->lock);
    enum err_kind kind = refresh_run(&f, &failure);
    mtx_lock(&c->lock);
    if (kind == ERR_NONE) {
        refresh_install_locked(&f);
    }
    flight_land_locked(&r->flight, w, kind ? &failure : NULL);
    versions_unref_all(&f.wanted);
    versions_unref_all(&f.asked);
    if (kind) {
        *err = failure;
    }
    return kind;
}

struct answer {
    struct index_versions *versions; /* a reference */
    size_t chart_count;
    struct mono checked_at;
};

static enum err_kind answer_locked(struct charts *c, struct repo *r, const char *name,
                                   struct mono fresh_after, struct waiter *w, struct answer *ret,
                                   struct err *err)
{
    bool fetched = false;
    for (;;) {
        const struct repo_name *n = repo_name_locked(r, name);
        /* What this call has fetched is as fresh as can be, even if fresh_after lies ahead. */
        bool fresh = r->checked && (fetched || !mono_before(r->checked_at, fresh_after));
        if (fresh && n->versions != NULL) {
            *ret = (struct answer){index_versions_ref(n->versions), r->chart_count, r->checked_at};
            return ERR_NONE;
        }
        bool mine = false;
        if (flight_join_locked(&r->flight, w, "the index", &mine, err)) {
            return err->kind;
        }
        if (mine && refresh_locked(c, r, w, !fresh, err)) {
            return err->kind;
        }
        fetched = fetched || (mine && !fresh);
    }
}

/* ---- choosing ---- */

struct choice {
    const struct index_version *version;
    struct semver parsed;
};

/* Keep best[0..n) in descending order; of equal ones the first of the index stays ahead, as with
 * helm. */
static void offer(struct choice *best, size_t n, const struct index_version *v,
                  const struct semver *parsed)
{
    size_t at = n;
    while (at > 0 &&
           (best[at - 1].version == NULL || semver_compare(parsed, &best[at - 1].parsed) > 0)) {
        at--;
    }
    if (at == n) {
        return;
    }
    memmove(best + at + 1, best + at, (n - at - 1) * sizeof(*best));
    best[at] = (struct choice){v, *parsed};
}

static const struct index_version *choose(const struct index_versions *all,
                                          const struct semver_range *range, const char *exact,
                                          struct choice *newest)
{
    struct choice winner = {0};
    for (size_t i = 0; i < all->count; i++) {
        const struct index_version *v = &all->items[i];
        struct semver parsed;
        if (strcmp(v->version, exact) == 0) {
            return v;
        }
        bool ok = semver_parse(v->version, &parsed);
        must(ok);
        offer(newest, NEWEST_SHOWN, v, &parsed);
        if (semver_range_matches(range, &parsed)) {
            offer(&winner, 1, v, &parsed);
        }
    }
    return winner.version;
}

static enum err_kind say_no_version(const struct chart_ref *ref, const char *shown,
                                    const struct choice *newest, struct err *err)
{
    char list[128 + NEWEST_SHOWN * 72] = "";
    size_t len = 0;
    bool pre_only = newest[0].version != NULL;
    for (size_t i = 0; i < NEWEST_SHOWN && newest[i].version != NULL; i++) {
        int n = snprintf(list + len, sizeof(list) - len, "%s%.64s", i > 0 ? ", " : "",
                         newest[i].version->version);
        must(n > 0 && (size_t)n < sizeof(list) - len);
        len += (size_t)n;
        pre_only = pre_only && newest[i].parsed.pre[0] != '\0';
    }
    bool any = ref->version == NULL || ref->version[0] == '\0';
    _cleanup_(free_cstr)
    char *asked = any ? xstrdup("is stable") : xasprintf("matches \"%.80s\"", ref->version);
    (void)err_set(err, ERR_NOT_FOUND, "no version in %s %s: newest %s %s", shown, asked,
                  newest[1].version != NULL ? "are" : "is", len > 0 ? list : "none");
    if (pre_only) {
        err_hint(err, "a pre-release is taken only if the range names one, such as >=0.0.0-0");
    }
    return err->kind;
}

static enum err_kind pick(const struct chart_ref *ref, const struct semver_range *range,
                          const char *shown, const struct answer *a, struct chart_resolved *ret,
                          struct err *err)
{
    struct choice newest[NEWEST_SHOWN] = {0};
    const char *exact = ref->version != NULL ? ref->version : "";
    must(a->versions != NULL);
    if (a->versions->too_many) {
        return err_set(err, ERR_LIMIT, "%s lists more than %d versions of it", shown, VERSIONS_MAX);
    }
    if (a->versions->bad_line > 0) {
        return err_set(err, ERR_UNAVAILABLE,
                       "its entry in the index of %s is not as it should be, see line %zu there",
                       shown, a->versions->bad_line);
    }
    if (a->versions->count == 0) {
        return err_set(err, ERR_NOT_FOUND, "%s has no chart of this name (its index lists %zu)",
                       shown, a->chart_count);
    }
    const struct index_version *v = choose(a->versions, range, exact, newest);
    if (v == NULL) {
        return say_no_version(ref, shown, newest, err);
    }
    char *url = v->url[0] != '\0' ? chart_url_resolve(ref->repository, v->url) : NULL;
    if (url == NULL) {
        _cleanup_(free_cstr)
        char *bad = url_redact(v->url);
        return err_set(err, ERR_INVALID,
                       "version %.64s in %s has the URL \"%s\"; only http(s) is served", v->version,
                       shown, bad);
    }
    *ret = (struct chart_resolved){
        .version = xstrdup(v->version),
        .digest = v->digest[0] != '\0' ? xasprintf("sha256:%s", v->digest) : xstrdup(""),
        .url = url,
        .resolved = a->checked_at,
    };
    return ERR_NONE;
}

/* ---- public ---- */

static enum err_kind resolve(struct charts *c, const struct chart_ref *ref,
                             const struct semver_range *range, struct mono fresh_after,
                             struct mono deadline, struct cancel *cancel,
                             struct chart_resolved *ret, struct err *err)
{
    _cleanup_(free_cstr)
    char *shown = NULL;
    struct answer a = {0};
    struct waiter w;
    if (repository_check(ref->repository, &shown, err)) {
        return err->kind;
    }
    waiter_init(&w, c, deadline, cancel);
    mtx_lock(&c->lock);
    struct repo *r = repo_enter_locked(c, ref->repository, shown);
    enum err_kind kind = answer_locked(c, r, ref->name, fresh_after, &w, &a, err);
    r->flight.users--;
    mtx_unlock(&c->lock);
    waiter_release(&w);
    drop_idle(c);
    if (kind) {
        return kind;
    }
    kind = pick(ref, range, shown, &a, ret, err);
    index_versions_unref(a.versions);
    return kind;
}

enum err_kind charts_resolve(struct charts *c, const struct chart_ref *ref, struct mono fresh_after,
                             struct mono deadline, struct cancel *cancel,
                             struct chart_resolved *ret, struct err *err)
{
    struct semver_range *range = NULL;
    _cleanup_(free_cstr)
    char *name = text_clean(ref->name, strlen(ref->name), 100);
    bool any = ref->version == NULL || ref->version[0] == '\0';
    if (semver_range_parse(any ? "*" : ref->version, &range, err)) {
        return err_wrap(err, "chart %s", name);
    }
    enum err_kind kind = resolve(c, ref, range, fresh_after, deadline, cancel, ret, err);
    semver_range_free(range);
    return kind == ERR_NONE ? ERR_NONE : err_wrap(err, "chart %s", name);
}

void chart_resolved_release(struct chart_resolved *r)
{
    free(r->version);
    free(r->digest);
    free(r->url);
    *r = (struct chart_resolved){0};
}
