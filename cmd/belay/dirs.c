#include "dirs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"

#define WORK_PREFIX "run-"
#define LOCK_NAME   "lock"

/* A directory of ours, and of nobody else's: a name under /tmp can be taken by others. */
static enum err_kind make_dir(const char *path, struct err *err)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        return err_set(err, ERR_INVALID, "--cache-dir: cannot make %s: %s", path, strerror(errno));
    }
    struct stat st;
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        return err_set(err, ERR_INVALID, "--cache-dir: %s is no directory", path);
    }
    /* In a pod the volume may belong to root with our group's rights: what counts is that we may
     * write there. */
    if (access(path, W_OK | X_OK) != 0) {
        return err_set(err, ERR_INVALID, "--cache-dir: %s is not writable for user %u", path,
                       (unsigned)geteuid());
    }
    return ERR_NONE;
}

/* Empty and remove a directory without subdirectories. */
static void remove_flat(const char *path)
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return;
    }
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        (void)unlinkat(dirfd(dir), e->d_name, 0); /* "." and ".." refuse, which is right */
    }
    (void)closedir(dir);
    (void)rmdir(path);
}

static int open_lock(const char *work, int flags)
{
    _cleanup_(free_cstr)
    char *path = xasprintf("%s/" LOCK_NAME, work);
    int fd = open(path, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

/* Work directories whose lock nobody holds are left over from a process that died: they may hold
 * credentials. */
static void remove_dead(const char *cache)
{
    DIR *dir = opendir(cache);
    if (dir == NULL) {
        return;
    }
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (!text_has_prefix(e->d_name, WORK_PREFIX)) {
            continue;
        }
        _cleanup_(free_cstr)
        char *work = xasprintf("%s/%s", cache, e->d_name);
        int fd = open_lock(work, 0);
        if (fd >= 0) {
            remove_flat(work);
            (void)close(fd);
        }
    }
    (void)closedir(dir);
}

enum err_kind dirs_open(const char *cache_dir, struct dirs *ret, struct err *err)
{
    _cleanup_(free_cstr)
    char *cache =
        cache_dir[0] != '\0' ? xstrdup(cache_dir) : xasprintf("/tmp/belay-%u", (unsigned)geteuid());
    _cleanup_(free_cstr)
    char *home = xasprintf("%s/home", cache);
    _cleanup_(free_cstr)
    char *work = xasprintf("%s/" WORK_PREFIX "XXXXXX", cache);
    if (make_dir(cache, err) || make_dir(home, err)) {
        return err->kind;
    }
    remove_dead(cache);
    if (mkdtemp(work) == NULL) {
        return err_set(err, ERR_INVALID, "--cache-dir: cannot make a directory in %s: %s", cache,
                       strerror(errno));
    }
    int fd = open_lock(work, O_CREAT);
    if (fd < 0) {
        return err_set(err, ERR_INVALID, "--cache-dir: cannot lock %s: %s", work, strerror(errno));
    }
    *ret = (struct dirs){.cache = take_ptr(&cache),
                         .home = take_ptr(&home),
                         .work = take_ptr(&work),
                         .work_lock_fd = fd};
    return ERR_NONE;
}

void dirs_close(struct dirs *d)
{
    if (d->work != NULL) {
        remove_flat(d->work);
        (void)close(d->work_lock_fd);
    }
    free(d->cache);
    free(d->home);
    free(d->work);
    *d = (struct dirs){0};
}
