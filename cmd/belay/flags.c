#include "flags.h"

#include <stddef.h>
#include <string.h>

#include "base/must.h"
#include "base/text.h"
#include "timeval/timeval.h"

enum flag_kind {
    FLAG_TEXT,
    FLAG_DURATION,
    FLAG_DURATION_OR_ZERO,
    FLAG_NUMBER,
    FLAG_BOOL,
    FLAG_CHOICE,
    FLAG_IGNORED,
    FLAG_IGNORED_BOOL
};

struct flag {
    const char *name;
    enum flag_kind kind;
    size_t offset;       /* in struct flags */
    const char *initial; /* as on the command line */
    int64_t min, max;    /* durations in ms, numbers */
    const char
        *legal; /* said when the value is refused; for FLAG_CHOICE the words, separated by | */
    const char *help; /* NULL: not shown */
};

#define AT(field) offsetof(struct flags, field)
#define HOUR_MS   INT64_C(3600000)

static const struct flag table[] = {
    {"kubeconfig", FLAG_TEXT, AT(kubeconfig), "", 0, 0, "a path",
     "kubeconfig; else $KUBECONFIG, else in-cluster"},
    {"context", FLAG_TEXT, AT(context), "", 0, 0, "a context's name",
     "context of the kubeconfig; else its current one"},
    {"lease-timeout", FLAG_DURATION, AT(lease_ms), "30s", 5000, HOUR_MS, "5s to 1h",
     "how long a lock outlives its last renewal"},
    {"workers", FLAG_NUMBER, AT(workers), "4", 1, 64, "1 to 64",
     "syncs at the same time in this replica"},
    {"charts-sync-interval", FLAG_DURATION, AT(interval_ms), "3m", 1000, 24 * HOUR_MS, "1s to 24h",
     "how often each object is compared again (jittered)"},
    {"allow-namespace", FLAG_TEXT, AT(allow_namespace), "", 0, 0, "a namespace",
     "watch one namespace only"},
    {"watch-label-selector", FLAG_TEXT, AT(selector), "", 0, 0, "a label selector",
     "shard by label"},
    {"helm", FLAG_TEXT, AT(helm), "", 0, 0, "a path", "helm v3 or v4; found on PATH by default"},
    {"helm-repository-import", FLAG_TEXT, AT(repository_import), "", 0, 0,
     "a comma list of v3:PATH", "repositories.yaml files with credentials of chart repositories"},
    {"gate", FLAG_BOOL, AT(gate), "true", 0, 0, "true or false",
     "let helm reach the API server through belay only"},
    {"cache-dir", FLAG_TEXT, AT(cache_dir), "", 0, 0, "a directory",
     "charts and indexes; /tmp/belay-UID by default"},
    {"listen", FLAG_TEXT, AT(listen), ":3030", 0, 0, "HOST:PORT, :PORT or [V6]:PORT",
     "/metrics /healthz /readyz"},
    {"log-format", FLAG_CHOICE, AT(log_format), "fmt", 0, 0, "fmt|json",
     "form of the log lines on stderr"},
    {"log-level", FLAG_CHOICE, AT(log_level), "info", 0, 0, "debug|info|warn|error",
     "lowest level that is written"},
    {"shutdown-grace", FLAG_DURATION, AT(shutdown_grace_ms), "20s", 0, HOUR_MS, "0s to 1h",
     "what helm gets to end after SIGTERM before it is interrupted"},
    {"foreign-pending-timeout", FLAG_DURATION_OR_ZERO, AT(foreign_pending_ms), "1h", 60000,
     24 * 30 * HOUR_MS, "0, or 1m to 720h",
     "a release that somebody else's helm left pending is repaired after so long; 0 = never"},
    {"identity", FLAG_TEXT, AT(identity), "", 0, 0, "a name",
     "name in status.lease; else $POD_NAME, else the host's"},
    {"version", FLAG_BOOL, AT(version), "", 0, 0, "true or false", "print the version and exit"},
    {"help", FLAG_BOOL, AT(help), "", 0, 0, "true or false", "print this and exit"},
    /* helm-operator's flags that mean nothing here: taken, so that its manifests start, and named
       once in the log. */
    {"master", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"status-update-interval", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"log-release-diffs", FLAG_IGNORED_BOOL, 0, "", 0, 0, "", NULL},
    {"update-chart-deps", FLAG_IGNORED_BOOL, 0, "", 0, 0, "", NULL},
    {"git-timeout", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"git-poll-interval", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"git-default-ref", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"enabled-helm-versions", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"tiller-ip", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"tiller-port", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"tiller-namespace", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"tiller-tls-enable", FLAG_IGNORED_BOOL, 0, "", 0, 0, "", NULL},
    {"tiller-tls-verify", FLAG_IGNORED_BOOL, 0, "", 0, 0, "", NULL},
    {"tiller-tls-key-path", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"tiller-tls-cert-path", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"tiller-tls-ca-cert-path", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"tiller-tls-hostname", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
    {"convert-tiller-out-cluster", FLAG_IGNORED_BOOL, 0, "", 0, 0, "", NULL},
    {"convert-release-storage", FLAG_IGNORED, 0, "", 0, 0, "", NULL},
};
#define FLAG_COUNT (sizeof(table) / sizeof(table[0]))

static bool is_bool(const struct flag *f)
{
    return f->kind == FLAG_BOOL || f->kind == FLAG_IGNORED_BOOL;
}

static enum err_kind refuse(const struct flag *f, const char *value, struct err *err)
{
    return err_set(err, ERR_INVALID, "--%s: \"%s\" is not legal: use %s", f->name, value, f->legal);
}

static bool is_choice(const char *words, const char *value)
{
    size_t len = strlen(value);
    for (const char *at = words; len != 0 && at != NULL;
         at = strchr(at, '|'), at += at != NULL ? 1 : 0) {
        if (strncmp(at, value, len) == 0 && (at[len] == '|' || at[len] == '\0')) {
            return true;
        }
    }
    return false;
}

static enum err_kind set_duration(const struct flag *f, const char *value, int64_t *slot,
                                  struct err *err)
{
    struct err why = ERR_INIT;
    int64_t ms = 0;
    if (duration_parse(value, &ms, &why)) {
        return err_set(err, ERR_INVALID, "--%s: %s (%s)", f->name, why.msg, f->legal);
    }
    bool off = ms == 0 && f->kind == FLAG_DURATION_OR_ZERO;
    if (!off && (ms < f->min || ms > f->max)) {
        return refuse(f, value, err);
    }
    *slot = ms;
    return ERR_NONE;
}

static enum err_kind set(struct flags *flags, const struct flag *f, const char *value,
                         struct err *err)
{
    void *slot = (char *)flags + f->offset;
    switch (f->kind) {
    case FLAG_CHOICE:
        if (!is_choice(f->legal, value)) {
            return refuse(f, value, err);
        }
        *(const char **)slot = value;
        return ERR_NONE;
    case FLAG_TEXT:
        *(const char **)slot = value;
        return ERR_NONE;
    case FLAG_DURATION:
    case FLAG_DURATION_OR_ZERO:
        return set_duration(f, value, slot, err);
    case FLAG_NUMBER:
        return text_to_int64(value, f->min, f->max, slot) ? ERR_NONE : refuse(f, value, err);
    case FLAG_BOOL:
        if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0) {
            return refuse(f, value, err);
        }
        *(bool *)slot = strcmp(value, "true") == 0;
        return ERR_NONE;
    case FLAG_IGNORED:
    case FLAG_IGNORED_BOOL:
        if (flags->ignored_count < (int)(sizeof(flags->ignored) / sizeof(flags->ignored[0]))) {
            flags->ignored[flags->ignored_count++] = f->name;
        }
        return ERR_NONE;
    }
    return ERR_NONE;
}

static const struct flag *find(const char *name, size_t len)
{
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        if (strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

/* An RFC 1123 label, as the names of namespaces are. */
static bool is_label(const char *s)
{
    size_t len = strlen(s);
    return len <= 63 && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == len && s[0] != '-' &&
           s[len - 1] != '-';
}

enum err_kind flags_parse(int argc, char **argv, struct flags *ret, struct err *err)
{
    struct flags flags = {0};
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        bool has_initial = table[i].kind <= FLAG_NUMBER || table[i].kind == FLAG_CHOICE ||
                           (table[i].kind == FLAG_BOOL && table[i].initial[0] != '\0');
        must(!has_initial || set(&flags, &table[i], table[i].initial, err) == ERR_NONE);
    }
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        /* -l was helm-operator's short form of --listen. */
        const char *name = strcmp(arg, "-l") == 0   ? "listen"
                           : strcmp(arg, "-h") == 0 ? "help"
                                                    : arg + 2;
        if (name == arg + 2 && !text_has_prefix(arg, "--")) {
            return err_set(err, ERR_INVALID,
                           "unexpected argument \"%s\": only --flags are legal (see --help)", arg);
        }
        const char *eq = strchr(name, '=');
        size_t len = eq != NULL ? (size_t)(eq - name) : strlen(name);
        const struct flag *f = find(name, len);
        if (f == NULL) {
            return err_set(err, ERR_INVALID, "unknown flag --%.*s (see --help)", (int)len, name);
        }
        const char *value = eq != NULL     ? eq + 1
                            : is_bool(f)   ? "true"
                            : i + 1 < argc ? argv[++i]
                                           : NULL;
        if (value == NULL) {
            return err_set(err, ERR_INVALID, "--%s needs a value: %s", f->name, f->legal);
        }
        if (set(&flags, f, value, err)) {
            return err->kind;
        }
    }
    /* The identity is NAME/pod UID/incarnation: a slash would make one part look like another. */
    if (strchr(flags.identity, '/') != NULL) {
        return err_set(err, ERR_INVALID,
                       "--identity: \"%s\" is not legal: use a name without a slash",
                       flags.identity);
    }
    if (flags.allow_namespace[0] != '\0' && !is_label(flags.allow_namespace)) {
        return err_set(err, ERR_INVALID,
                       "--allow-namespace: \"%s\" is not legal: use one namespace's name (at most "
                       "63 of a-z, 0-9 and -), or none for all",
                       flags.allow_namespace);
    }
    *ret = flags;
    return ERR_NONE;
}

void flags_usage(FILE *out)
{
    (void)fprintf(out, "belay: a Helm operator whose lock is the HelmRelease's own "
                       "status\n\nusage: belay [flags]\n\n");
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        const struct flag *f = &table[i];
        if (f->help == NULL) {
            continue;
        }
        (void)fprintf(out, "  --%-24s %s", f->name, f->help);
        if (f->kind != FLAG_BOOL || f->initial[0] != '\0') {
            (void)fprintf(out, " [%s%s%s]", f->legal, f->initial[0] != '\0' ? "; default " : "",
                          f->initial);
        }
        (void)fprintf(out, "\n");
    }
}
