/* The daemon and the runs. Requests are carried in exchange.c, read.c and write.c. */
#include "gate/gate_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "kube/kubeconfig.h"

/* helm opens one connection for each request that it makes at the same time: a few dozen for a
 * chart of many objects. More wait in the socket's backlog. */
#define CONNECTIONS_MAX       1024
#define MEMORY_PER_CONNECTION (48U << 10)
#define THREAD_STACK_BYTES    (1U << 20)

/* ---- start and stop ---- */

static int listen_on(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    int on = 1;
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool ok = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
              bind(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0 && listen(fd, SOMAXCONN) == 0;
    if (!ok) {
        int why = errno;
        (void)close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

static int port_of(int fd)
{
    struct sockaddr_in addr = {0};
    socklen_t len = sizeof(addr);
    must(getsockname(fd, (struct sockaddr *)&addr, &len) == 0);
    return ntohs(addr.sin_port);
}

enum err_kind gate_start(const struct gate_options *options, struct gate **ret, struct err *err)
{
    int fd = options->port > 0 ? listen_on(options->port) : -1;
    fd = fd >= 0 ? fd : listen_on(0);
    if (fd < 0) {
        return err_set(err, ERR_UNAVAILABLE, "helm's gate cannot listen on 127.0.0.1: %s",
                       strerrordesc_np(errno));
    }
    struct gate *g = xcalloc(1, sizeof(*g));
    g->options = *options;
    g->port = port_of(fd);
    mtx_init(&g->lock, "gate");
    cond_init(&g->changed);
    g->cache = apicache_new(options->kube, options->clock);
    g->daemon =
        MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                             MHD_USE_POLL | MHD_USE_SUPPRESS_DATE_NO_CLOCK,
                         0, NULL, NULL, exchange_handle, g, MHD_OPTION_LISTEN_SOCKET, fd,
                         MHD_OPTION_URI_LOG_CALLBACK, exchange_new, g, MHD_OPTION_NOTIFY_COMPLETED,
                         exchange_done, g, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_PER_CONNECTION,
                         MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK_BYTES, MHD_OPTION_END);
    if (g->daemon == NULL) {
        gate_stop(g);
        return err_set(err, ERR_UNAVAILABLE, "helm's gate cannot start its thread");
    }
    *ret = g;
    return ERR_NONE;
}

void gate_stop(struct gate *g)
{
    if (g == NULL) {
        return;
    }
    must(g->runs == NULL);
    if (g->daemon != NULL) {
        MHD_stop_daemon(g->daemon);
    }
    apicache_free(g->cache);
    cond_release(&g->changed);
    mtx_release(&g->lock);
    free(g);
}

int gate_port(const struct gate *g)
{
    return g->port;
}

/* ---- runs ---- */

struct gate_run *gate_admit(struct gate *g, const struct gate_run_options *options)
{
    struct gate_run *run = xcalloc(1, sizeof(*run));
    uint8_t bits[16];
    rng_fill(g->options.rng, bits, sizeof(bits));
    text_hex(bits, sizeof(bits), run->token);
    run->gate = g;
    run->held = options->held;
    run->refs = 1;
    run->versions.free_value = free;
    cancel_init(&run->cancel);
    fence_init(&run->fence, &options->fence, clock_mono(g->options.clock));
    MTX_GUARD(&g->lock);
    run->next = g->runs;
    g->runs = run;
    return run;
}

void gate_add_record(struct gate_run *run, int64_t revision, const char *resource_version,
                     const struct fence_claim *claim)
{
    MTX_GUARD(&run->gate->lock);
    fence_add_record(&run->fence, revision, resource_version, claim);
}

enum err_kind gate_write_kubeconfig(const struct gate_run *run, const char *path, struct err *err)
{
    _cleanup_(free_cstr)
    char *server = xasprintf("http://127.0.0.1:%d", run->gate->port);
    return kube_config_write_for_gate(server, run->token, path, err);
}

bool gate_is_latched(struct gate_run *run)
{
    MTX_GUARD(&run->gate->lock);
    return run->fence.latched;
}

struct gate_run *gate_run_find(struct gate *g, const char *token)
{
    MTX_GUARD(&g->lock);
    for (struct gate_run *run = g->runs; run != NULL; run = run->next) {
        if (strcmp(run->token, token) == 0) {
            run->refs++;
            return run;
        }
    }
    return NULL;
}

struct gate_run *gate_run_ref(struct gate_run *run)
{
    MTX_GUARD(&run->gate->lock);
    run->refs++;
    return run;
}

void gate_run_unref(struct gate_run *run)
{
    mtx_lock(&run->gate->lock);
    bool last = --run->refs == 0;
    mtx_unlock(&run->gate->lock);
    if (!last) {
        return;
    }
    fence_release(&run->fence);
    strmap_release(&run->versions);
    gate_report_release(&run->report);
    cancel_release(&run->cancel);
    free(run);
}

void gate_report_release(struct gate_report *r)
{
    for (size_t i = 0; i < r->created_target_count; i++) {
        free(r->created_targets[i]);
    }
    free(r->created_targets);
    *r = (struct gate_report){0};
}

static void unlink_run_locked(struct gate *g, struct gate_run *run)
{
    mtx_must_hold(&g->lock);
    struct gate_run **at = &g->runs;
    while (*at != run) {
        must(*at != NULL);
        at = &(*at)->next;
    }
    *at = run->next;
}

void gate_dismiss(struct gate_run *run, struct gate_report *ret)
{
    struct gate *g = run->gate;
    cancel_raise(&run->cancel);
    mtx_lock(&g->lock);
    run->closed = true;
    cond_broadcast(&g->changed); /* who waits for room for a body need not any more */
    /* A write ends with its answer, or at the hard deadline without one. */
    while (run->active > 0) {
        clock_wait(g->options.clock, &g->changed, &g->lock, MONO_NEVER);
    }
    unlink_run_locked(g, run);
    *ret = run->report;
    run->report = (struct gate_report){0};
    ret->latched = run->fence.latched;
    memcpy(ret->why, run->fence.why, sizeof(ret->why));
    ret->record_written = run->fence.created || run->fence.updated;
    mtx_unlock(&g->lock);
    gate_run_unref(run);
}
