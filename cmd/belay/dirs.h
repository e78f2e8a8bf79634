/* The directories of one process: the shared cache, and a private one for what must not outlive it
 * (helm's kubeconfig). */
#ifndef BELAY_CMD_DIRS_H
#define BELAY_CMD_DIRS_H

#include "base/err.h"

struct dirs {
    char *cache;      /* charts and indexes: shared, survives */
    char *home;       /* helm's HOME: shared, survives (discovery cache) */
    char *work;       /* this process' own; removed at the end */
    int work_lock_fd; /* held as long as we live: tells others that work is in use */
};

/* Make them (0700); work directories that dead processes left are removed. INVALID names the
 * directory and the reason. */
enum err_kind dirs_open(const char *cache_dir, struct dirs *ret, struct err *err) MUST_CHECK;
void dirs_close(struct dirs *d);

#endif
