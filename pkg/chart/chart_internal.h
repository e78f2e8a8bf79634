/* What the files of pkg/chart share. Lock: charts.lock guards every field that says so; nothing is
 * read, written or waited for on disk or network under it. */
#ifndef BELAY_CHART_CHART_INTERNAL_H
#define BELAY_CHART_CHART_INTERNAL_H

#include "base/mtx.h"
#include "base/strmap.h"
#include "chart/chart.h"
#include "chart/disk.h"
#include "chart/index_scan.h"

/* One thread works on a thing, the others wait for it and share its failure (flight.c). */
struct flight {
    bool busy;
    uint64_t started; /* attempts so far */
    uint64_t failed;  /* number of the newest attempt whose failure may be shared */
    struct err err;   /* of that attempt */
    unsigned int
        users; /* threads between entering and leaving; the thing stays while there are any */
};

/* An entry of repositories.yaml; immutable after import. */
struct repo_entry {
    char *normal; /* chart_repository_normal with query */
    char *normal_sans_query;
    char *userpwd;               /* NULL: none */
    struct transport *transport; /* NULL: the common one */
    bool pass_credentials_all;
};

/* How a repository is reached. Immutable after creation; owned by the repo. */
struct access {
    struct transport *transport;
    char *userpwd; /* NULL: none */
    bool pass_credentials_all;
};

/* A name that was asked of a repository. */
struct repo_name {
    struct index_versions *versions; /* of the present generation; NULL: not looked for yet */
    bool asked;                      /* since the present generation was installed */
};

struct repo {
    char *url;   /* as first asked for: with userinfo and query */
    char *shown; /* for messages */
    char *path;  /* of the index on disk */
    struct access access;
    struct flight flight;   /* guarded by charts.lock; who is busy in it owns fd and stamp */
    int fd;                 /* the index, held; -1: none */
    struct stamp stamp;     /* of that */
    bool looked_on_disk;    /* has the copy of an earlier process been looked for? */
    bool checked;           /* guarded by lock: did this process fetch or revalidate it? */
    struct mono checked_at; /* guarded by lock: when that request was sent */
    size_t chart_count;     /* guarded by lock */
    uint64_t index_bytes;   /* guarded by lock */
    struct strmap names;    /* guarded by lock: struct repo_name */
    uint64_t used;          /* guarded by lock: charts.ticks at the last use */
};

/* An archive that is or was in use. */
struct held {
    int fd; /* open and locked while refs > 0 */
    unsigned int refs;
    bool verified; /* this process has seen that the bytes of file (dev, ino) have this digest */
    dev_t dev;
    ino_t ino;
};

/* A chart URL whose index gives no digest. */
struct url_state {
    struct stamp stamp; /* sha256 "": nothing known */
    bool checked;
    struct mono checked_at;
};

struct charts {
    struct charts_options options; /* texts owned */
    struct disk disk;
    struct repo_entry *entries;
    size_t entry_count;
    struct mtx lock;
    struct cond changed; /* some flight has landed, or a waiter was cancelled */
    struct strmap repos; /* guarded by lock: key -> struct repo */
    struct strmap held;  /* guarded by lock: hex sha256 -> struct held */
    struct strmap
        flights;        /* guarded by lock: archive key -> struct flight, while somebody is in it */
    struct strmap urls; /* guarded by lock: hex sha256 of a URL -> struct url_state */
    uint64_t ticks;     /* guarded by lock */
};

/* ---- flight.c ---- */

/* A call that may block: wakes its waits when cancel is raised. Not with charts.lock held. */
struct waiter {
    struct charts *charts;
    struct mono deadline;
    struct cancel *cancel;
    struct cancel_waker waker;
    uint64_t waited_for; /* 0, or the number of the attempt that was waited for */
};
void waiter_init(struct waiter *w, struct charts *c, struct mono deadline, struct cancel *cancel);
void waiter_release(struct waiter *w);
/* With charts.lock held. If nobody is busy, become it (*ret_mine = true); else wait for a change.
 * Fails with the failure of the attempt that was waited for, or TIMEOUT, CANCELLED. what: for the
 * message. */
enum err_kind flight_join_locked(struct flight *f, struct waiter *w, const char *what,
                                 bool *ret_mine, struct err *err) MUST_CHECK;
/* The work is over; err NULL: it succeeded. */
void flight_land_locked(struct flight *f, struct waiter *w, const struct err *err);

/* ---- download.c ---- */

struct download {
    struct transport *transport;
    const char *url;           /* may hold userinfo, which is used and taken off */
    const char *userpwd;       /* for a URL without userinfo; may be NULL */
    const struct stamp *known; /* if not NULL: only if it differs from this */
    uint64_t bytes_max;
    bool with_stamp; /* leave room in the file */
    struct mono deadline;
    struct cancel *cancel;
};
struct downloaded {
    bool not_modified;
    struct temp temp;   /* unless not_modified: complete, not committed yet */
    struct stamp stamp; /* of it */
    char content_type[128];
    struct mono sent;
};
/* One GET. DENIED, NOT_FOUND, THROTTLED, UNAVAILABLE, TIMEOUT, CANCELLED, LIMIT; the message names
 * the redacted URL. */
enum err_kind download(struct charts *c, const struct download *d, struct downloaded *ret,
                       struct err *err) MUST_CHECK;

/* ---- repositories.c ---- */

/* ERR_INVALID if the URL is not one of an http(s) repository; *ret_shown (owned by the caller) is
 * what may be shown. */
enum err_kind repository_check(const char *url, char **ret_shown, struct err *err) MUST_CHECK;
void access_init(struct access *a, const struct charts *c, const char *repository);
void access_release(struct access *a);
/* Credentials for url in this repository; NULL: none. Borrowed. */
const char *access_userpwd(const struct access *a, const char *repository, const char *url);
void repo_entry_release(struct repo_entry *e);

/* ---- resolve.c ---- */

void repo_free(struct repo *r);

#endif
