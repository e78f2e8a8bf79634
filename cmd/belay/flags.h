/* belay's command line: one table, helm-operator's old names included. */
#ifndef BELAY_CMD_FLAGS_H
#define BELAY_CMD_FLAGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

#define FLAGS_IMPORTS_MAX 16

struct flags {
    const char *kubeconfig, *context;
    const char *allow_namespace, *selector;
    const char *helm, *cache_dir, *listen;
    const char *log_format, *log_level;
    const char *identity;
    const char *repository_import;
    int64_t lease_ms, interval_ms, shutdown_grace_ms, foreign_pending_ms;
    int64_t workers;
    bool version, help;
    bool gate;
    const char *ignored[32]; /* old flags that were given and mean nothing any more */
    int ignored_count;
};

/* Parse argv ("--name=value", "--name value", "--bool"). ERR_INVALID: one line that names the flag
 * and what is legal. Texts in *ret borrow argv. */
enum err_kind flags_parse(int argc, char **argv, struct flags *ret, struct err *err) MUST_CHECK;
void flags_usage(FILE *out);

#endif
