/* Archives on disk. With a digest in the index an archive is known by its bytes and never asked for
 * again; without one, by its URL: what the URL gave last is used while it is fresh enough, and
 * revalidated else. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "chart/chart_internal.h"
#include "chartref/chartref.h"

#define REMEMBERED_MAX                                                                             \
    4096 /* archives and URLs whose state is kept in memory while nobody uses them */
#define DIGEST_PREFIX "sha256:"
#define SHOWN_DIGITS  12

struct fetch {
    struct charts *charts;
    const struct chart_ref *ref;
    const struct chart_resolved *resolved;
    struct mono fresh_after;
    struct waiter *waiter;
    const char *digest; /* hex, of the index; NULL: it gives none */
    char url_hash[SHA256_HEX];
    /* What was known when the work began; then its results. */
    struct held known; /* of the archive that is looked for */
    struct url_state url;
    bool fresh; /* url needs no request */
    char hex[SHA256_HEX];
    int fd;
    struct stat st;
};

/* ---- state in memory ---- */

static struct held *held_locked(struct charts *c, const char *hex)
{
    const char *key;
    void *value;
    for (size_t it = 0;
         c->held.count >= REMEMBERED_MAX && strmap_next(&c->held, &it, &key, &value);) {
        if (((const struct held *)value)->refs == 0) {
            (void)strmap_remove(&c->held, key);
        }
    }
    struct held *h = strmap_get(&c->held, hex);
    if (h == NULL) {
        h = xcalloc(1, sizeof(*h));
        strmap_put(&c->held, hex, h);
    }
    return h;
}

/* Take over f->fd as what is held; returns a descriptor to close, or -1. The new one is the file
 * that the path names now, so it is the one whose lock counts. */
static int held_install_locked(struct charts *c, const struct fetch *f)
{
    struct held *h = held_locked(c, f->hex);
    int old = h->refs > 0 ? h->fd : -1;
    h->fd = f->fd;
    h->refs++;
    h->verified = true;
    h->dev = f->st.st_dev;
    h->ino = f->st.st_ino;
    return old;
}

static void url_remember_locked(struct charts *c, const struct fetch *f)
{
    struct url_state *u = strmap_get(&c->urls, f->url_hash);
    if (u == NULL) {
        if (c->urls.count >= REMEMBERED_MAX) {
            strmap_release(&c->urls);
            c->urls = (struct strmap){.free_value = free};
        }
        u = xcalloc(1, sizeof(*u));
        strmap_put(&c->urls, f->url_hash, u);
    }
    *u = f->url;
}

static struct flight *flight_enter_locked(struct charts *c, const char *key)
{
    struct flight *fl = strmap_get(&c->flights, key);
    if (fl == NULL) {
        fl = xcalloc(1, sizeof(*fl));
        strmap_put(&c->flights, key, fl);
    }
    fl->users++;
    return fl;
}

static void flight_leave_locked(struct charts *c, struct flight *fl, const char *key)
{
    fl->users--;
    if (fl->users == 0) {
        (void)strmap_remove(&c->flights, key);
    }
}

/* ---- work of a flight ---- */

static char *archive_path(const struct charts *c, const char *hex)
{
    return disk_path(&c->disk, "charts", hex, ".tgz");
}

/* Have the archive hex open in f->fd if it is cached and its bytes are right; -1 if not. */
static void open_cached(struct fetch *f, const char *hex)
{
    _cleanup_(free_cstr)
    char *path = archive_path(f->charts, hex);
    f->fd = disk_hold(path, &f->st);
    if (f->fd < 0) {
        return;
    }
    (void)snprintf(f->hex, sizeof(f->hex), "%s", hex);
    if (f->known.verified && f->known.dev == f->st.st_dev && f->known.ino == f->st.st_ino) {
        return;
    }
    char actual[SHA256_HEX] = "";
    if (!file_digest(f->fd, actual) || strcmp(actual, hex) != 0) {
        (void)unlink(path);
        (void)close(f->fd);
        f->fd = -1;
    }
}

static bool is_gzip(const struct temp *t)
{
    return t->bytes > sizeof(t->head) && t->head[0] == '\x1f' && t->head[1] == '\x8b';
}

static enum err_kind check_archive(const struct fetch *f, const struct downloaded *d,
                                   struct err *err)
{
    _cleanup_(free_cstr)
    char *shown = url_redact(f->resolved->url);
    _cleanup_(free_cstr)
    char *what = is_gzip(&d->temp)
                     ? xstrdup("")
                     : xasprintf(" (no gzip archive; Content-Type \"%.60s\")", d->content_type);
    if (f->digest != NULL && strcmp(f->digest, d->stamp.sha256) != 0) {
        (void)err_set(err, ERR_INVALID,
                      "the digest of %s is " DIGEST_PREFIX
                      "%.*s%s, but the index says " DIGEST_PREFIX "%.*s",
                      shown, SHOWN_DIGITS, d->stamp.sha256, what, SHOWN_DIGITS, f->digest);
        err_hint(err,
                 "the archive was replaced after the index was made, or is changed on its way; "
                 "make the index anew");
        return err->kind;
    }
    if (what[0] != '\0') {
        return err_set(err, ERR_UNAVAILABLE, "%s is no chart%s", shown, what);
    }
    return ERR_NONE;
}

static enum err_kind keep_archive(struct fetch *f, struct downloaded *d, struct err *err)
{
    struct charts *c = f->charts;
    _cleanup_(free_cstr)
    char *path = archive_path(c, d->stamp.sha256);
    if (check_archive(f, d, err) || temp_commit(&c->disk, &d->temp, NULL, path, &f->fd, err)) {
        return err->kind;
    }
    must(fstat(f->fd, &f->st) == 0);
    memcpy(f->hex, d->stamp.sha256, sizeof(f->hex));
    disk_trim(&c->disk, c->disk.bytes_max);
    return ERR_NONE;
}

static enum err_kind get_archive(struct fetch *f, const struct stamp *known, struct downloaded *ret,
                                 struct err *err)
{
    const char *url = f->resolved->url;
    struct access access;
    access_init(&access, f->charts, f->ref->repository);
    const struct download what = {
        .transport = access.transport,
        .url = url,
        .userpwd = access_userpwd(&access, f->ref->repository, url),
        .known = known,
        .bytes_max = LIMIT_CHART_BYTES,
        .deadline = f->waiter->deadline,
        .cancel = f->waiter->cancel,
    };
    enum err_kind kind = download(f->charts, &what, ret, err);
    access_release(&access);
    return kind;
}

static enum err_kind fetch_by_digest(struct fetch *f, struct err *err)
{
    struct downloaded d = {0};
    open_cached(f, f->digest);
    if (f->fd >= 0) {
        return ERR_NONE;
    }
    if (get_archive(f, NULL, &d, err)) {
        return err->kind;
    }
    enum err_kind kind = keep_archive(f, &d, err);
    temp_discard(&d.temp);
    return kind;
}

static void load_url_stamp(struct fetch *f)
{
    struct stat st;
    _cleanup_(free_cstr)
    char *path = disk_path(&f->charts->disk, "urls", f->url_hash, "");
    int fd = disk_hold(path, &st);
    if (fd >= 0) {
        (void)stamp_read(fd, false, &f->url.stamp);
        (void)close(fd);
    }
}

static enum err_kind take_new_archive(struct fetch *f, struct downloaded *d, struct err *err)
{
    if (f->fd >= 0) {
        (void)close(f->fd);
        f->fd = -1;
    }
    enum err_kind kind = keep_archive(f, d, err);
    temp_discard(&d->temp);
    if (kind) {
        return kind;
    }
    f->url.stamp = d->stamp;
    _cleanup_(free_cstr)
    char *path = disk_path(&f->charts->disk, "urls", f->url_hash, "");
    stamp_store(&f->charts->disk, &d->stamp, path);
    return ERR_NONE;
}

static enum err_kind fetch_by_url(struct fetch *f, struct err *err)
{
    struct downloaded d = {0};
    if (f->url.stamp.sha256[0] == '\0') {
        load_url_stamp(f);
    }
    if (f->url.stamp.sha256[0] != '\0') {
        open_cached(f, f->url.stamp.sha256);
    }
    if (f->fresh && f->fd >= 0) {
        return ERR_NONE;
    }
    enum err_kind kind = get_archive(f, f->fd >= 0 ? &f->url.stamp : NULL, &d, err);
    if (kind == ERR_NONE) {
        f->url.checked = true;
        f->url.checked_at = d.sent;
    }
    if (kind == ERR_NONE && !d.not_modified) {
        kind = take_new_archive(f, &d, err);
    }
    if (kind && f->fd >= 0) {
        (void)close(f->fd);
        f->fd = -1;
    }
    return kind;
}

/* This thread has the flight. Gives up the lock meanwhile. On success f->hex is held. */
static enum err_kind fetch_locked(struct fetch *f, struct flight *fl, struct err *err)
{
    struct charts *c = f->charts;
    struct err failure = ERR_INIT;
    mtx_unlock(&c->lock);
    enum err_kind kind =
        f->digest != NULL ? fetch_by_digest(f, &failure) : fetch_by_url(f, &failure);
    mtx_lock(&c->lock);
    int old = -1;
    if (kind == ERR_NONE) {
        old = held_install_locked(c, f);
        if (f->digest == NULL) {
            url_remember_locked(c, f);
        }
    }
    flight_land_locked(fl, f->waiter, kind ? &failure : NULL);
    if (old >= 0) {
        mtx_unlock(&c->lock);
        (void)close(old);
        mtx_lock(&c->lock);
    }
    if (kind) {
        *err = failure;
    }
    return kind;
}

/* Load what is known, and hold the archive if somebody holds it already. */
static bool hold_at_once_locked(struct fetch *f)
{
    struct charts *c = f->charts;
    const char *hex = f->digest;
    f->fd = -1;
    f->fresh = false;
    f->url = (struct url_state){0};
    f->known = (struct held){0};
    if (hex == NULL) {
        const struct url_state *u = strmap_get(&c->urls, f->url_hash);
        f->url = u != NULL ? *u : (struct url_state){0};
        f->fresh = f->url.checked && !mono_before(f->url.checked_at, f->fresh_after);
        hex = f->url.stamp.sha256;
    }
    struct held *h = strmap_get(&c->held, hex);
    if (h == NULL) {
        return false;
    }
    f->known = *h;
    if (h->refs == 0 || (f->digest == NULL && !f->fresh)) {
        return false;
    }
    h->refs++;
    (void)snprintf(f->hex, sizeof(f->hex), "%s", hex);
    return true;
}

static enum err_kind hold_locked(struct fetch *f, struct flight *fl, struct err *err)
{
    while (!hold_at_once_locked(f)) {
        bool mine = false;
        if (flight_join_locked(fl, f->waiter, "the archive", &mine, err)) {
            return err->kind;
        }
        if (mine) {
            return fetch_locked(f, fl, err);
        }
    }
    return ERR_NONE;
}

/* ---- public ---- */

static enum err_kind fetch_prepare(struct fetch *f, struct err *err)
{
    _cleanup_(free_cstr)
    char *shown = NULL;
    _cleanup_(free_cstr)
    char *url = url_without_userinfo(f->resolved->url);
    const char *digest = f->resolved->digest;
    if (repository_check(f->ref->repository, &shown, err)) {
        return err->kind;
    }
    if (url == NULL) {
        _cleanup_(free_cstr)
        char *bad = url_redact(f->resolved->url);
        return err_set(err, ERR_INVALID, "%s is no http(s) URL", bad);
    }
    text_digest(f->resolved->url, f->url_hash);
    if (digest[0] != '\0') {
        f->digest = digest + sizeof(DIGEST_PREFIX) - 1;
        must(text_has_prefix(digest, DIGEST_PREFIX) && strlen(f->digest) == SHA256_HEX - 1 &&
             strspn(f->digest, "0123456789abcdef") == SHA256_HEX - 1);
    }
    return ERR_NONE;
}

enum err_kind charts_fetch(struct charts *c, const struct chart_ref *ref,
                           const struct chart_resolved *resolved, struct mono fresh_after,
                           struct mono deadline, struct cancel *cancel, struct chart_archive *ret,
                           struct err *err)
{
    struct waiter w;
    struct fetch f = {.charts = c,
                      .ref = ref,
                      .resolved = resolved,
                      .fresh_after = fresh_after,
                      .waiter = &w,
                      .fd = -1};
    enum err_kind kind = fetch_prepare(&f, err);
    if (kind == ERR_NONE) {
        _cleanup_(free_cstr)
        char *key = xasprintf(
            "%s%s", f.digest != NULL ? "d:" : "u:", f.digest != NULL ? f.digest : f.url_hash);
        waiter_init(&w, c, deadline, cancel);
        mtx_lock(&c->lock);
        struct flight *fl = flight_enter_locked(c, key);
        kind = hold_locked(&f, fl, err);
        flight_leave_locked(c, fl, key);
        mtx_unlock(&c->lock);
        waiter_release(&w);
    }
    if (kind) {
        _cleanup_(free_cstr)
        char *name = text_clean(ref->name, strlen(ref->name), 100);
        return err_wrap(err, "chart %s %.64s", name, resolved->version);
    }
    *ret = (struct chart_archive){.path = archive_path(c, f.hex)};
    (void)snprintf(ret->digest, sizeof(ret->digest), DIGEST_PREFIX "%s", f.hex);
    (void)snprintf(ret->version, sizeof(ret->version), "%s", resolved->version);
    return ERR_NONE;
}

void chart_archive_release(struct charts *c, struct chart_archive *a)
{
    if (a->path == NULL) {
        return;
    }
    int fd = -1;
    mtx_lock(&c->lock);
    struct held *h = strmap_get(&c->held, a->digest + sizeof(DIGEST_PREFIX) - 1);
    must(h != NULL);
    must(h->refs > 0);
    h->refs--;
    if (h->refs == 0) {
        fd = h->fd;
    }
    mtx_unlock(&c->lock);
    if (fd >= 0) {
        (void)close(fd);
    }
    free(a->path);
    *a = (struct chart_archive){0};
}
