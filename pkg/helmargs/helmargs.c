#include "helmargs/helmargs.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/must.h"

/* Longest flag list that the table below can give, plus program, verb, "--", two arguments and the
 * NULL. */
#define ARGS_MAX 40

/* Go's time.Duration holds less than this many seconds; helm refuses more. */
#define GO_DURATION_MAX_S INT64_C(9223372036)

#define VERB(v) (1U << (v))
#define RUN     (VERB(HELM_UPGRADE_INSTALL) | VERB(HELM_ROLLBACK))
#define UPGRADE VERB(HELM_UPGRADE_INSTALL)
#define ALL     (RUN | VERB(HELM_UNINSTALL) | VERB(HELM_TEST))

static bool always(const struct helmargs_options *o)
{
    (void)o;
    return true;
}

static bool waits(const struct helmargs_options *o)
{
    return o->verb == HELM_ROLLBACK ? o->spec->rollback.wait : o->spec->wait;
}

/* helm-operator's force had no effect on an install, and with helm it would replace adopted
 * objects. */
static bool forces(const struct helmargs_options *o)
{
    return o->spec->force_upgrade && !o->first_install;
}

static bool resets_values(const struct helmargs_options *o)
{
    return o->spec->reset_values;
}

static bool reuses_values(const struct helmargs_options *o)
{
    return !o->spec->reset_values;
}

static bool skips_crds(const struct helmargs_options *o)
{
    return o->spec->skip_crds;
}

static bool skips_validation(const struct helmargs_options *o)
{
    return o->spec->disable_openapi_validation && o->first_install;
}

static bool is_described(const struct helmargs_options *o)
{
    return o->description != NULL;
}

static bool skips_hooks(const struct helmargs_options *o)
{
    return o->no_hooks || (o->verb == HELM_ROLLBACK && o->spec->rollback.disable_hooks);
}

static bool recreates_pods(const struct helmargs_options *o)
{
    return o->spec->rollback.recreate;
}

static bool keeps_history(const struct helmargs_options *o)
{
    return o->keep_history;
}

static char *namespace_of(const struct helmargs_options *o)
{
    return xstrdup(o->spec->target_ns);
}

static char *standard_input(const struct helmargs_options *o)
{
    (void)o;
    return xstrdup("-");
}

/* Nothing or nonsense means the API's default: an object whose spec cannot be read must still be
 * uninstallable. */
static char *timeout_of(const struct helmargs_options *o)
{
    const struct hr_spec *spec = o->spec;
    int64_t s = o->verb == HELM_ROLLBACK ? spec->rollback.timeout_s
                : o->verb == HELM_TEST   ? spec->test.timeout_s
                                         : spec->timeout_s;
    s = s <= 0 ? HR_TIMEOUT_DEFAULT_S : s;
    return xasprintf("%" PRId64 "s", s > GO_DURATION_MAX_S ? GO_DURATION_MAX_S : s);
}

static char *history_of(const struct helmargs_options *o)
{
    int64_t n = o->spec->max_history < 0 ? HR_MAX_HISTORY_DEFAULT : o->spec->max_history;
    return xasprintf("%" PRId64, n > INT32_MAX ? INT64_C(0) : n);
}

static char *description_of(const struct helmargs_options *o)
{
    return xstrdup(o->description);
}

/* From `helm VERB --help` of 3.22.0 and 4.3.1. A row whose flag is NULL for a major says nothing to
 * that major. */
static const struct row {
    unsigned verbs;
    bool (*when)(const struct helmargs_options *o);
    const char *v3, *v4;
    char *(*value)(const struct helmargs_options
                       *o); /* the argument after the flag, on the heap; NULL: none */
} rows[] = {
    /* Always with --install: a plain upgrade refuses for ever after `uninstall --keep-history`. */
    {UPGRADE, always, "--install", "--install", NULL},
    {ALL, always, "--namespace", "--namespace", namespace_of},
    {UPGRADE, always, "-f", "-f", standard_input},
    {ALL, always, "--timeout", "--timeout", timeout_of},
    /* helm 4's own default ("watcher") judges readiness by other rules than helm 3 did. */
    {RUN, waits, "--wait", "--wait=legacy", NULL},
    /* helm 4 would apply on the server, and stop at fields that somebody else had set (a scaled
       Deployment). */
    {RUN, always, NULL, "--server-side=false", NULL},
    {UPGRADE, forces, "--force", "--force-replace", NULL},
    /* One of the two always: with neither, helm reuses the last values whenever the new ones are
       empty. */
    {UPGRADE, resets_values, "--reset-values", "--reset-values", NULL},
    {UPGRADE, reuses_values, "--reuse-values", "--reuse-values", NULL},
    {RUN, always, "--history-max", "--history-max", history_of},
    /* Concerns the install alone; said on upgrades too, in case the records vanish before helm
       looks. */
    {UPGRADE, skips_crds, "--skip-crds", "--skip-crds", NULL},
    {UPGRADE, skips_validation, "--disable-openapi-validation", "--disable-openapi-validation",
     NULL},
    {UPGRADE, is_described, "--description", "--description", description_of},
    {RUN | VERB(HELM_UNINSTALL), skips_hooks, "--no-hooks", "--no-hooks", NULL},
    {VERB(HELM_ROLLBACK), recreates_pods, "--recreate-pods", NULL, NULL},
    {VERB(HELM_UNINSTALL), keeps_history, "--keep-history", "--keep-history", NULL},
};

static const char *verb_word(enum helm_verb verb)
{
    switch (verb) {
    case HELM_UPGRADE_INSTALL:
        return "upgrade";
    case HELM_ROLLBACK:
        return "rollback";
    case HELM_UNINSTALL:
        return "uninstall";
    case HELM_TEST:
        return "test";
    }
    must(false);
    return NULL;
}

/* arg: on the heap, ownership moves in. */
static void add(struct helmargs *a, char *arg)
{
    must(a->count + 1 < ARGS_MAX);
    a->argv[a->count++] = arg;
}

void helmargs_build(const struct helmargs_options *o, struct helmargs *ret)
{
    must(o->helm_major == 3 || o->helm_major == 4);
    must(o->helm_path != NULL && o->helm_path[0] == '/');
    must(o->spec->release_name != NULL && o->spec->release_name[0] != '\0');
    must(o->spec->target_ns != NULL && o->spec->target_ns[0] != '\0');
    must(o->revision >= 0);

    struct helmargs a = {.argv = xcalloc(ARGS_MAX, sizeof(char *)), .count = 0};
    add(&a, xstrdup(o->helm_path));
    add(&a, xstrdup(verb_word(o->verb)));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *flag = o->helm_major == 3 ? rows[i].v3 : rows[i].v4;
        if (flag == NULL || (rows[i].verbs & VERB(o->verb)) == 0 || !rows[i].when(o)) {
            continue;
        }
        add(&a, xstrdup(flag));
        if (rows[i].value != NULL) {
            add(&a, rows[i].value(o));
        }
    }
    /* Whatever stands after it is no flag. */
    add(&a, xstrdup("--"));
    add(&a, xstrdup(o->spec->release_name));
    if (o->verb == HELM_UPGRADE_INSTALL) {
        must(o->chart_path != NULL && o->chart_path[0] == '/');
        add(&a, xstrdup(o->chart_path));
    } else if (o->verb == HELM_ROLLBACK && o->revision > 0) {
        add(&a, xasprintf("%" PRId64, o->revision));
    }
    *ret = a;
}

void helmargs_release(struct helmargs *a)
{
    for (size_t i = 0; i < a->count; i++) {
        free(a->argv[i]);
    }
    free(a->argv);
    *a = (struct helmargs){.argv = NULL, .count = 0};
}
