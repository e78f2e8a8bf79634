/* Helm's command lines for both majors: code that reads like a table. Pure. */
#ifndef BELAY_HELMARGS_HELMARGS_H
#define BELAY_HELMARGS_HELMARGS_H

#include <stddef.h>

#include "base/err.h"
#include "hr/hr.h"

enum helm_verb { HELM_UPGRADE_INSTALL, HELM_ROLLBACK, HELM_UNINSTALL, HELM_TEST };

struct helmargs_options {
    int helm_major; /* 3 or 4 */
    enum helm_verb verb;
    const struct hr_spec *spec;
    const char *helm_path;
    const char *chart_path; /* UPGRADE_INSTALL */
    const char
        *description; /* UPGRADE_INSTALL: what helm notes in the record of a success; NULL = none */
    int64_t revision; /* ROLLBACK: target; 0 = the one before */
    bool first_install; /* no record exists: what applies to installs only (validation), or not to
                           them (force) */
    bool no_hooks, keep_history;
};

struct helmargs {
    char **argv; /* NULL-terminated, heap; argv[0] = helm_path */
    size_t count;
};

/* helm_path and chart_path are absolute. Never a secret and never values: those go by stdin ("-f
 * -"). The release's name, then chart or revision, come last, behind "--": no name can read as a
 * flag. */
void helmargs_build(const struct helmargs_options *options, struct helmargs *ret);
void helmargs_release(struct helmargs *a);

#endif
