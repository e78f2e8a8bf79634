#include "metrics/metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/mtx.h"
#include "base/must.h"
#include "base/strmap.h"
#include "base/text.h"

/* helm-operator's buckets, in seconds. */
static const double bounds[] = {1, 5, 10, 30, 60, 120, 180, 300, 600, 1800};
#define BOUNDS (sizeof(bounds) / sizeof(bounds[0]))

#define LABEL_BYTES_MAX  253  /* of one value, before escapes: a Kubernetes name */
#define LABELS_BYTES_MAX 4096 /* of all labels of a series */

struct histogram {
    int64_t buckets[BOUNDS]; /* cumulative only when written */
    int64_t count;
    double sum;
};

struct metrics {
    struct mtx lock;
    int64_t counters[METRICS_COUNTER_COUNT]; /* guarded by lock, as is all below */
    int64_t release_count, queue_length;
    struct histogram held;
    struct strmap conditions; /* label text -> int64_t * */
    struct strmap actions;    /* label text -> struct histogram * */
    struct strmap releases;   /* the deprecated family, label text -> struct histogram * */
};

static const struct {
    const char *name, *help;
} counters[] = {
#define COUNTER(id, name, help) {name, help},
#include "metrics/counters.def"
#undef COUNTER
};

struct metrics *metrics_new(void)
{
    struct metrics *m = xcalloc(1, sizeof(*m));
    mtx_init(&m->lock, "metrics");
    m->conditions.free_value = free;
    m->actions.free_value = free;
    m->releases.free_value = free;
    return m;
}

void metrics_free(struct metrics *m)
{
    if (m == NULL) {
        return;
    }
    strmap_release(&m->conditions);
    strmap_release(&m->actions);
    strmap_release(&m->releases);
    mtx_release(&m->lock);
    free(m);
}

void metrics_add(struct metrics *m, enum metrics_counter id, int64_t n)
{
    must(n >= 0 && id < METRICS_COUNTER_COUNT);
    MTX_GUARD(&m->lock);
    m->counters[id] += n;
}

int64_t metrics_get(struct metrics *m, enum metrics_counter id)
{
    MTX_GUARD(&m->lock);
    return m->counters[id];
}

static void observe(struct histogram *h, double seconds)
{
    h->count++;
    h->sum += seconds;
    for (size_t i = 0; i < BOUNDS; i++) {
        if (seconds <= bounds[i]) {
            h->buckets[i]++;
            return;
        }
    }
}

void metrics_lock_held(struct metrics *m, double seconds)
{
    MTX_GUARD(&m->lock);
    observe(&m->held, seconds);
}

/* name="value", with the escapes of the text format. A spec may hold any text as a name; no legal
 * one is longer than LABEL_BYTES_MAX. */
static void add_label(struct buf *out, const char *name, const char *value)
{
    _cleanup_(free_cstr)
    char *clean = text_clean(value, strlen(value), LABEL_BYTES_MAX);
    buf_addf(out, "%s%s=\"", out->len > 0 ? "," : "", name);
    for (const char *p = clean; *p != '\0'; p++) {
        if (*p == '\\' || *p == '"') {
            buf_add_char(out, '\\');
            buf_add_char(out, *p);
        } else if (*p == '\n') {
            buf_add_str(out, "\\n");
        } else {
            buf_add_char(out, *p);
        }
    }
    buf_add_char(out, '"');
    must(!out->overflow);
}

static struct histogram *histogram_of(struct strmap *family, const char *labels)
{
    struct histogram *h = strmap_get(family, labels);
    if (h == NULL) {
        h = xcalloc(1, sizeof(*h));
        strmap_put(family, labels, h);
    }
    return h;
}

void metrics_action(struct metrics *m, const char *action, bool success, const char *target_ns,
                    const char *release, double seconds)
{
    struct buf labels = BUF_INIT(LABELS_BYTES_MAX);
    add_label(&labels, "action", action);
    add_label(&labels, "success", success ? "true" : "false");
    add_label(&labels, "target_namespace", target_ns);
    add_label(&labels, "release_name", release);
    struct buf old = BUF_INIT(LABELS_BYTES_MAX);
    add_label(&old, "success", success ? "true" : "false");
    add_label(&old, "namespace", target_ns);
    add_label(&old, "release_name", release);
    mtx_lock(&m->lock);
    observe(histogram_of(&m->actions, buf_str(&labels)), seconds);
    if (strcmp(action, "sync") == 0) {
        observe(histogram_of(&m->releases, buf_str(&old)), seconds);
    }
    mtx_unlock(&m->lock);
    buf_release(&labels);
    buf_release(&old);
}

static void condition_labels(struct buf *out, const char *target_ns, const char *release,
                             const char *condition)
{
    add_label(out, "target_namespace", target_ns);
    add_label(out, "release_name", release);
    if (condition != NULL) {
        add_label(out, "condition", condition);
    }
}

void metrics_condition(struct metrics *m, const char *target_ns, const char *release,
                       const char *condition, int value)
{
    struct buf labels = BUF_INIT(LABELS_BYTES_MAX);
    condition_labels(&labels, target_ns, release, condition);
    mtx_lock(&m->lock);
    int64_t *slot = strmap_get(&m->conditions, buf_str(&labels));
    if (slot == NULL) {
        slot = xmalloc(sizeof(*slot));
        strmap_put(&m->conditions, buf_str(&labels), slot);
    }
    *slot = value;
    mtx_unlock(&m->lock);
    buf_release(&labels);
}

/* Series of a release that is gone. Its labels stand at the end of the histograms' label texts, at
 * the front of the gauges'. */
static void drop_release(struct metrics *m, const char *labels)
{
    struct strmap *families[] = {&m->conditions, &m->actions, &m->releases};
    _cleanup_(free_cstr)
    char *prefix = xasprintf("%s,", labels);
    const char *old_names = strchr(labels, '=');
    _cleanup_(free_cstr)
    char *old_suffix = xasprintf("namespace%s", old_names != NULL ? old_names : "");
    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
        const char *key;
        for (size_t it = 0; strmap_next(families[f], &it, &key, NULL);) {
            if (text_has_prefix(key, prefix) || text_has_suffix(key, labels) ||
                text_has_suffix(key, old_suffix)) {
                (void)strmap_remove(families[f], key);
            }
        }
    }
}

void metrics_condition_gone(struct metrics *m, const char *target_ns, const char *release,
                            const char *condition)
{
    struct buf labels = BUF_INIT(LABELS_BYTES_MAX);
    condition_labels(&labels, target_ns, release, condition);
    mtx_lock(&m->lock);
    if (condition != NULL) {
        (void)strmap_remove(&m->conditions, buf_str(&labels));
    } else {
        drop_release(m, buf_str(&labels));
    }
    mtx_unlock(&m->lock);
    buf_release(&labels);
}

void metrics_set_release_count(struct metrics *m, int64_t n)
{
    MTX_GUARD(&m->lock);
    m->release_count = n;
}

void metrics_set_queue_length(struct metrics *m, int64_t n)
{
    MTX_GUARD(&m->lock);
    m->queue_length = n;
}

/* ---- the text format ---- */

static void head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_histogram(struct buf *out, const char *name, const char *labels,
                            const struct histogram *h)
{
    const char *comma = labels[0] != '\0' ? "," : "";
    int64_t sum = 0;
    for (size_t i = 0; i < BOUNDS; i++) {
        sum += h->buckets[i];
        buf_addf(out, "%s_bucket{%s%sle=\"%g\"} %lld\n", name, labels, comma, bounds[i],
                 (long long)sum);
    }
    buf_addf(out, "%s_bucket{%s%sle=\"+Inf\"} %lld\n", name, labels, comma, (long long)h->count);
    const char *open = labels[0] != '\0' ? "{" : "";
    const char *close = labels[0] != '\0' ? "}" : "";
    buf_addf(out, "%s_sum%s%s%s %.6f\n", name, open, labels, close, h->sum);
    buf_addf(out, "%s_count%s%s%s %lld\n", name, open, labels, close, (long long)h->count);
}

static void write_histograms(struct buf *out, const char *name, const char *help,
                             const struct strmap *family)
{
    head(out, name, "histogram", help);
    const char *labels;
    void *value;
    for (size_t it = 0; strmap_next(family, &it, &labels, &value);) {
        write_histogram(out, name, labels, value);
    }
}

static void gauge(struct buf *out, const char *name, const char *type, const char *help,
                  double value)
{
    head(out, name, type, help);
    buf_addf(out, "%s %.15g\n", name, value);
}

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (dir != NULL && readdir(dir) != NULL) {
        n++;
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return n > 3 ? n - 3 : 0; /* ".", ".." and the directory itself */
}

/* process_* of the Prometheus client libraries, from /proc/self/stat (proc(5): field 3 follows the
 * last ')'). */
static void write_process(struct buf *out)
{
    char text[1024];
    FILE *f = fopen("/proc/self/stat", "re");
    size_t n = f != NULL ? fread(text, 1, sizeof(text) - 1, f) : 0;
    if (f != NULL) {
        (void)fclose(f);
    }
    text[n] = '\0';
    const char *rest = strrchr(text, ')');
    unsigned long long utime = 0, stime = 0, start = 0, vsize = 0;
    long long rss_pages = 0;
    if (rest == NULL || sscanf(rest + 1,
                               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d "
                               "%*d %*d %*d %llu %llu %lld",
                               &utime, &stime, &start, &vsize, &rss_pages) != 5) {
        return;
    }
    double hertz = (double)sysconf(_SC_CLK_TCK);
    gauge(out, "process_cpu_seconds_total", "counter", "User and system CPU time in seconds.",
          (double)(utime + stime) / hertz);
    gauge(out, "process_resident_memory_bytes", "gauge", "Resident memory in bytes.",
          (double)rss_pages * (double)sysconf(_SC_PAGESIZE));
    gauge(out, "process_virtual_memory_bytes", "gauge", "Virtual memory in bytes.", (double)vsize);
    gauge(out, "process_open_fds", "gauge", "Open file descriptors.", count_fds());
    struct rlimit fds;
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0) {
        gauge(out, "process_max_fds", "gauge", "Most file descriptors that may be open.",
              (double)fds.rlim_cur);
    }
    f = fopen("/proc/stat", "re");
    unsigned long long boot = 0;
    while (f != NULL && fgets(text, sizeof(text), f) != NULL) {
        if (sscanf(text, "btime %llu", &boot) == 1) {
            break;
        }
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    gauge(out, "process_start_time_seconds", "gauge", "Start time since the epoch in seconds.",
          (double)boot + (double)start / hertz);
}

void metrics_write(struct metrics *m, struct buf *out)
{
    mtx_lock(&m->lock);
    head(out, "belay_build_info", "gauge", "Version of belay.");
    buf_addf(out, "belay_build_info{version=\"%s\"} 1\n", BELAY_VERSION);
    gauge(out, "flux_helm_operator_release_count", "gauge", "HelmReleases that are watched.",
          (double)m->release_count);
    gauge(out, "flux_helm_operator_release_queue_length_count", "gauge",
          "HelmReleases that wait for a worker.", (double)m->queue_length);
    head(out, "flux_helm_operator_release_condition_info", "gauge",
         "Conditions: -1 False, 0 Unknown, 1 True.");
    const char *labels;
    void *value;
    for (size_t it = 0; strmap_next(&m->conditions, &it, &labels, &value);) {
        buf_addf(out, "flux_helm_operator_release_condition_info{%s} %lld\n", labels,
                 (long long)*(int64_t *)value);
    }
    write_histograms(out, "flux_helm_operator_release_action_duration_seconds",
                     "Duration of actions.", &m->actions);
    write_histograms(out, "flux_helm_operator_release_duration_seconds",
                     "Deprecated: duration of syncs.", &m->releases);
    for (size_t i = 0; i < METRICS_COUNTER_COUNT; i++) {
        gauge(out, counters[i].name, "counter", counters[i].help, (double)m->counters[i]);
    }
    head(out, "belay_lock_held_seconds", "histogram", "How long locks were held.");
    write_histogram(out, "belay_lock_held_seconds", "", &m->held);
    mtx_unlock(&m->lock);
    write_process(out);
}
