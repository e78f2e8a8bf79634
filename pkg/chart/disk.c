#include "chart/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

#define LEFTOVER_AGE_S INT64_C(3600) /* where flock does not work, age decides */
#define CHUNK_BYTES    65536
#define BLOCK_BYTES    4096 /* what a small file costs on most filesystems */
#define STAMP_MAGIC    "belay-stamp 1"

static const char *const cached_subs[] = {"index", "charts", "urls"};
#define CACHED_SUBS (sizeof(cached_subs) / sizeof(cached_subs[0]))

static inline void close_fd(const int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd);
    }
}

static enum err_kind fail_errno(struct err *err, const char *what, const char *path, int number)
{
    return err_set(err, ERR_UNAVAILABLE, "%s %s: %s", what, path, strerror(number));
}

/* ---- directory ---- */

char *disk_path(const struct disk *d, const char *sub, const char *name, const char *suffix)
{
    return xasprintf("%s/%s/%s%s", d->dir, sub, name, suffix);
}

static enum err_kind make_dir(const char *path, struct err *err)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        return fail_errno(err, "create the chart cache", path, errno);
    }
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        return fail_errno(err, "use the chart cache", path, ENOTDIR);
    }
    return ERR_NONE;
}

/* The cache directory may be several levels deep. */
static enum err_kind make_dirs(const char *path, struct err *err)
{
    _cleanup_(free_cstr)
    char *copy = xstrdup(path);
    for (char *slash = copy + (copy[0] == '/'); (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        enum err_kind kind = make_dir(copy, err);
        *slash = '/';
        if (kind) {
            return kind;
        }
    }
    return make_dir(path, err);
}

static void remove_if_left(const char *path, int64_t now_s)
{
    _cleanup_(close_fd)
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return;
    }
    bool writer_is_gone = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (writer_is_gone || now_s - (int64_t)st.st_mtim.tv_sec > LEFTOVER_AGE_S) {
        (void)unlink(path);
    }
}

static void remove_leftovers(const struct disk *d, struct clock *clock)
{
    _cleanup_(free_cstr)
    char *tmp = xasprintf("%s/tmp", d->dir);
    DIR *dir = opendir(tmp);
    if (dir == NULL) {
        return;
    }
    int64_t now_s = clock_wall(clock).ns / NS_PER_SEC;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        _cleanup_(free_cstr)
        char *path = disk_path(d, "tmp", e->d_name, "");
        remove_if_left(path, now_s);
    }
    (void)closedir(dir);
}

enum err_kind disk_open(struct disk *d, const char *dir, uint64_t bytes_max, struct clock *clock,
                        struct rng *rng, struct err *err)
{
    static const char *const subs[] = {"tmp", "index", "charts", "urls"};
    struct disk opened = {.dir = xstrdup(dir), .rng = rng, .bytes_max = bytes_max};
    enum err_kind kind = make_dirs(dir, err);
    for (size_t i = 0; kind == ERR_NONE && i < sizeof(subs) / sizeof(subs[0]); i++) {
        _cleanup_(free_cstr)
        char *path = xasprintf("%s/%s", dir, subs[i]);
        kind = make_dir(path, err);
    }
    if (kind) {
        disk_release(&opened);
        return kind;
    }
    remove_leftovers(&opened, clock);
    *d = opened;
    disk_trim(d, bytes_max);
    return ERR_NONE;
}

void disk_release(struct disk *d)
{
    free(d->dir);
    d->dir = NULL;
}

/* ---- eviction ---- */

struct cached {
    char *path;
    int64_t used_ns;
    uint64_t bytes;
};

struct listing {
    struct cached *files;
    size_t count;
    uint64_t bytes;
};

static void list_sub(const struct disk *d, const char *sub, struct listing *l)
{
    _cleanup_(free_cstr)
    char *name = xasprintf("%s/%s", d->dir, sub);
    DIR *dir = opendir(name);
    if (dir == NULL) {
        return;
    }
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        struct stat st;
        if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) {
            continue;
        }
        if ((l->count & (l->count - 1)) == 0) {
            size_t cap = l->count == 0 ? 1 : 2 * l->count;
            l->files = xrealloc(l->files, cap * sizeof(*l->files));
        }
        l->files[l->count++] = (struct cached){
            .path = disk_path(d, sub, e->d_name, ""),
            .used_ns = (int64_t)st.st_mtim.tv_sec * NS_PER_SEC + st.st_mtim.tv_nsec,
            .bytes = ((uint64_t)st.st_size + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES,
        };
        l->bytes += l->files[l->count - 1].bytes;
    }
    (void)closedir(dir);
}

static int older_first(const void *a, const void *b)
{
    const struct cached *x = a;
    const struct cached *y = b;
    return (x->used_ns > y->used_ns) - (x->used_ns < y->used_ns);
}

/* Whoever holds the file got LOCK_SH on it and looked afterwards whether it still had a name. */
static bool evict(const char *path)
{
    _cleanup_(close_fd)
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(path) == 0;
}

static uint64_t trim(const struct disk *d, uint64_t bytes_max)
{
    struct listing l = {0};
    for (size_t i = 0; i < CACHED_SUBS; i++) {
        list_sub(d, cached_subs[i], &l);
    }
    uint64_t total = l.bytes;
    if (total > bytes_max) {
        qsort(l.files, l.count, sizeof(*l.files), older_first);
    }
    for (size_t i = 0; i < l.count; i++) {
        if (l.bytes > bytes_max && evict(l.files[i].path)) {
            l.bytes -= l.files[i].bytes;
        }
        free(l.files[i].path);
    }
    free(l.files);
    return total;
}

void disk_trim(const struct disk *d, uint64_t bytes_max)
{
    (void)trim(d, bytes_max);
}

/* On a full disk the next attempt shall have room, at the cost of half of what is cached. */
static enum err_kind fail_write(const struct disk *d, int number, struct err *err)
{
    if (number == ENOSPC || number == EDQUOT) {
        disk_trim(d, trim(d, UINT64_MAX) / 2);
    }
    (void)fail_errno(err, "write to the chart cache", d->dir, number);
    err_hint(err, "give the cache directory more room or make its disk writable");
    return err->kind;
}

/* ---- temporary files ---- */

static int create_temp(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        return -1;
    }
    /* Between open and flock another process may have taken it for a leftover. */
    struct stat st;
    (void)flock(fd, LOCK_EX | LOCK_NB);
    if (fstat(fd, &st) != 0 || st.st_nlink == 0) {
        (void)close(fd);
        errno = EEXIST;
        return -1;
    }
    return fd;
}

enum err_kind temp_open(const struct disk *d, bool with_stamp, struct temp *ret, struct err *err)
{
    for (int attempt = 0; attempt < 8; attempt++) {
        uint8_t bytes[16];
        char name[2 * sizeof(bytes) + 1];
        rng_fill(d->rng, bytes, sizeof(bytes));
        text_hex(bytes, sizeof(bytes), name);
        _cleanup_(free_cstr)
        char *path = disk_path(d, "tmp", name, "");
        int fd = create_temp(path);
        if (fd < 0 && errno == EEXIST) {
            continue;
        }
        if (fd < 0 || (with_stamp && lseek(fd, STAMP_BYTES, SEEK_SET) < 0)) {
            int number = errno;
            close_fd(&fd);
            return fail_errno(err, "create", path, number);
        }
        *ret = (struct temp){.fd = fd, .path = take_ptr(&path), .md = EVP_MD_CTX_new()};
        must(ret->md != NULL);
        must(EVP_DigestInit_ex(ret->md, EVP_sha256(), NULL) == 1);
        return ERR_NONE;
    }
    return err_set(err, ERR_UNAVAILABLE, "no free name in %s/tmp", d->dir);
}

static enum err_kind write_all(const struct disk *d, int fd, const char *bytes, size_t len,
                               struct err *err)
{
    while (len > 0) {
        ssize_t n = write(fd, bytes, len);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return fail_write(d, errno, err);
        }
        bytes += n;
        len -= (size_t)n;
    }
    return ERR_NONE;
}

enum err_kind temp_write(const struct disk *d, struct temp *t, const void *bytes, size_t len,
                         struct err *err)
{
    for (size_t i = 0; i < len && t->bytes + i < sizeof(t->head); i++) {
        t->head[t->bytes + i] = ((const char *)bytes)[i];
    }
    t->bytes += len;
    must(EVP_DigestUpdate(t->md, bytes, len) == 1);
    return write_all(d, t->fd, bytes, len, err);
}

static void hex_digest(EVP_MD_CTX *md, char *out)
{
    uint8_t bytes[EVP_MAX_MD_SIZE];
    unsigned int len = 0;
    must(EVP_DigestFinal_ex(md, bytes, &len) == 1);
    must(len == 32);
    text_hex(bytes, len, out);
}

void temp_digest(struct temp *t, char *out)
{
    hex_digest(t->md, out);
}

void temp_discard(struct temp *t)
{
    if (t->path == NULL) {
        return;
    }
    (void)unlink(t->path);
    (void)close(t->fd);
    free(t->path);
    EVP_MD_CTX_free(t->md);
    *t = (struct temp){.fd = -1};
}

static void stamp_format(const struct stamp *s, char *out)
{
    memset(out, 0, STAMP_BYTES);
    int n = snprintf(out, STAMP_BYTES,
                     STAMP_MAGIC "\nsha256 %s\nbytes %" PRIu64 "\netag %s\nmodified %s\n",
                     s->sha256, s->bytes, s->etag, s->last_modified);
    must(n > 0 && n < STAMP_BYTES);
}

enum err_kind temp_commit(const struct disk *d, struct temp *t, const struct stamp *stamp,
                          const char *path, int *ret_fd, struct err *err)
{
    if (stamp != NULL) {
        char text[STAMP_BYTES];
        stamp_format(stamp, text);
        if (lseek(t->fd, 0, SEEK_SET) != 0) {
            return fail_errno(err, "write", t->path, errno);
        }
        if (write_all(d, t->fd, text, sizeof(text), err)) {
            return err->kind;
        }
    }
    /* From LOCK_EX to LOCK_SH before it has its name, so that eviction never sees it unlocked. */
    (void)flock(t->fd, LOCK_SH | LOCK_NB);
    if (fsync(t->fd) != 0 || rename(t->path, path) != 0) {
        return fail_write(d, errno, err);
    }
    *ret_fd = t->fd;
    free(t->path);
    EVP_MD_CTX_free(t->md);
    *t = (struct temp){.fd = -1};
    return ERR_NONE;
}

/* ---- cached files ---- */

int disk_hold(const char *path, struct stat *ret_stat)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return -1;
    }
    bool locked = flock(fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (!locked || fstat(fd, ret_stat) != 0 || ret_stat->st_nlink == 0 ||
        !S_ISREG(ret_stat->st_mode)) {
        (void)close(fd);
        return -1;
    }
    (void)futimens(fd, NULL);
    return fd;
}

/* The rest of the line that starts with name; false if *at is not such a line or its text does not
 * fit. */
static bool take_line(const char **at, const char *name, char *out, size_t out_len)
{
    size_t name_len = strlen(name);
    size_t len = strcspn(*at, "\n");
    if ((*at)[len] != '\n' || len < name_len || memcmp(*at, name, name_len) != 0 ||
        len - name_len >= out_len) {
        return false;
    }
    memcpy(out, *at + name_len, len - name_len);
    out[len - name_len] = '\0';
    *at += len + 1;
    return true;
}

bool stamp_read(int fd, bool has_content, struct stamp *ret)
{
    char text[STAMP_BYTES + 1] = {0};
    char none[1];
    char digits[24];
    struct stat st;
    struct stamp s = {0};
    int64_t bytes = 0;
    if (pread(fd, text, STAMP_BYTES, 0) != STAMP_BYTES || fstat(fd, &st) != 0) {
        return false;
    }
    const char *at = text;
    bool ok = take_line(&at, STAMP_MAGIC, none, sizeof(none)) &&
              take_line(&at, "sha256 ", s.sha256, sizeof(s.sha256)) &&
              take_line(&at, "bytes ", digits, sizeof(digits)) &&
              take_line(&at, "etag ", s.etag, sizeof(s.etag)) &&
              take_line(&at, "modified ", s.last_modified, sizeof(s.last_modified)) &&
              text_to_int64(digits, 0, INT64_MAX - STAMP_BYTES, &bytes) &&
              strspn(s.sha256, "0123456789abcdef") == SHA256_HEX - 1;
    if (!ok || (has_content && st.st_size != bytes + STAMP_BYTES)) {
        return false;
    }
    s.bytes = (uint64_t)bytes;
    *ret = s;
    return true;
}

void stamp_store(const struct disk *d, const struct stamp *s, const char *path)
{
    struct temp t = {0};
    struct err ignored = ERR_INIT;
    int fd = -1;
    if (temp_open(d, true, &t, &ignored) == ERR_NONE &&
        temp_commit(d, &t, s, path, &fd, &ignored) == ERR_NONE) {
        (void)close(fd);
    }
    temp_discard(&t);
}

bool file_digest(int fd, char *out)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    char *chunk = xmalloc(CHUNK_BYTES);
    must(md != NULL);
    must(EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1);
    ssize_t n;
    for (off_t at = 0; (n = pread(fd, chunk, CHUNK_BYTES, at)) > 0; at += n) {
        must(EVP_DigestUpdate(md, chunk, (size_t)n) == 1);
    }
    hex_digest(md, out);
    free(chunk);
    EVP_MD_CTX_free(md);
    return n == 0;
}

void text_digest(const char *text, char *out)
{
    uint8_t bytes[EVP_MAX_MD_SIZE];
    unsigned int len = 0;
    must(EVP_Digest(text, strlen(text), bytes, &len, EVP_sha256(), NULL) == 1);
    text_hex(bytes, len, out);
}
