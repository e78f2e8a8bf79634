/* The cache directory: what is in it, temporary files, hashing, eviction. For this package only.
 *
 *   DIR/tmp/<random>            written now; flock(LOCK_EX) says that the writer lives
 *   DIR/index/<key>             an index: a stamp of STAMP_BYTES, then the text as it came
 *   DIR/charts/<sha256>.tgz     archives by the digest of their bytes; flock(LOCK_SH) says that
 * somebody uses one DIR/urls/<key>              a stamp alone: which archive a URL without digest
 * in its index gave <key> is a sha256. Files are complete or absent (write, fsync, rename) and
 * never change, so several processes may share the directory. flock, unlike a process id, also
 * tells the truth between the containers of one node. */
#ifndef BELAY_CHART_DISK_H
#define BELAY_CHART_DISK_H

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/err.h"
#include "effect/clock.h"
#include "effect/rng.h"

#define STAMP_BYTES 1024
#define SHA256_HEX  65 /* with its NUL */

struct disk {
    char *dir;
    struct rng *rng;
    uint64_t bytes_max;
};

/* What is known about downloaded bytes. */
struct stamp {
    char sha256[SHA256_HEX]; /* "" in a stamp that holds nothing */
    uint64_t bytes;
    char etag[256]; /* "" if the server gave none */
    char last_modified[64];
};

/* Create what is missing and remove what dead writers have left. ERR_UNAVAILABLE. */
enum err_kind disk_open(struct disk *d, const char *dir, uint64_t bytes_max, struct clock *clock,
                        struct rng *rng, struct err *err) MUST_CHECK;
void disk_release(struct disk *d);
/* "DIR/sub/name" + suffix; owner: the caller. */
char *disk_path(const struct disk *d, const char *sub, const char *name, const char *suffix);
/* Remove the least recently used files that nobody holds until at most bytes_max bytes are left. */
void disk_trim(const struct disk *d, uint64_t bytes_max);

/* A file that is being written. Zero-initialised: nothing to discard. */
struct temp {
    int fd; /* valid while path is set */
    char *path;
    EVP_MD_CTX *md;
    uint64_t bytes; /* of content, the stamp's room not counted */
    char head[4];   /* the first bytes, to tell what it is */
};
/* with_stamp: leave room for a stamp. ERR_UNAVAILABLE; if the disk is full, half of what is cached
 * has been dropped. */
enum err_kind temp_open(const struct disk *d, bool with_stamp, struct temp *ret,
                        struct err *err) MUST_CHECK;
enum err_kind temp_write(const struct disk *d, struct temp *t, const void *bytes, size_t len,
                         struct err *err) MUST_CHECK;
/* Once, after the last byte: hex sha256 of the content. */
void temp_digest(struct temp *t, char *out);
/* Make it durable under its name, write the stamp into the room for it if one is given, and hand
 * over the open file, held with LOCK_SH. The caller closes it. */
enum err_kind temp_commit(const struct disk *d, struct temp *t, const struct stamp *stamp,
                          const char *path, int *ret_fd, struct err *err) MUST_CHECK;
void temp_discard(struct temp *t);

/* Open a cached file, hold it with LOCK_SH and mark it as used now; -1 if it is not there. */
int disk_hold(const char *path, struct stat *ret_stat);
/* The stamp at the start of an open file; false if there is none, or the content is not as long as
 * it says. */
bool stamp_read(int fd, bool has_content, struct stamp *ret);
/* Write a stamp of its own. Best effort: only the next process misses it. */
void stamp_store(const struct disk *d, const struct stamp *s, const char *path);
/* Hex sha256 of the rest of an open file; false if it cannot be read. */
bool file_digest(int fd, char *out);
void text_digest(const char *text, char *out);

#endif
