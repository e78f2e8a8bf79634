/* The lock's protocol, pure: when may a lock be taken, when must it be renewed or given up, and
 * what each PATCH says. docs/lock.md is the law; this file and pkg/lock (which runs it) are the
 * only places that know it.
 *
 *            acquire (merge PATCH with resourceVersion)
 *   unlocked ------------------------------------------> locked --renew (JSON Patch with tests)-->
 * locked ^                                                  |  |
 *      +------------- result (one merge PATCH) -----------+  +--- not renewed for
 * leaseDurationSeconds --> expired
 *
 * locked means Released=Unknown, whatever the rest says; expired locks are taken like free ones, by
 * a higher epoch. */
#ifndef BELAY_LEASE_LEASE_H
#define BELAY_LEASE_LEASE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "hr/hr.h"
#include "timeval/timeval.h"

#define LEASE_TIMEOUT_MIN_MS     INT64_C(5000)
#define LEASE_TIMEOUT_MAX_MS     INT64_C(3600000)
#define LEASE_TIMEOUT_DEFAULT_MS INT64_C(30000)

/* Parts of a lease of lease_ms. They satisfy renew + request + stop + guard < lease for every legal
 * lease (asserted): renew: a live holder renews this often; request: the longest that one lock
 * request may take; stop: what helm gets between SIGINT and SIGKILL; guard: how much earlier than
 * the lease's end a holder stops, and how much later a thief begins. */
int64_t lease_renew_ms(int64_t lease_ms);
int64_t lease_request_ms(int64_t lease_ms);
int64_t lease_stop_ms(int64_t lease_ms);
int64_t lease_guard_ms(int64_t lease_ms);
/* A renewal goes out this much before it is due if another's does: it may have to wait for that
 * one's answer, and then for a slow one of its own round, and must still be known before the soft
 * deadline (asserted as well). Below lease_renew_ms. */
int64_t lease_early_ms(int64_t lease_ms);
bool lease_timing_holds(int64_t lease_ms);

/* The last instants for a holder whose last confirmed grant was SENT at grant (a grant counts from
 * before its request). */
struct lease_deadlines {
    struct mono renew; /* send the next renewal */
    struct mono soft;  /* interrupt helm (SIGINT): it cannot be renewed in time any more */
    struct mono hard;  /* SIGKILL; nothing of this epoch may begin after it */
};
struct lease_deadlines lease_deadlines_of(struct mono grant, int64_t lease_ms);

/* What one replica has seen of one lock: since when has exactly this (holder, epoch, stamp) stood
 * there? */
struct lease_sighting {
    char *holder; /* "" if the lock names none */
    int64_t epoch;
    char stamp[40];
    int64_t managed_ns;
    struct mono first_seen;
    bool live; /* seen to arrive by WATCH; false: found by a LIST, it may have stood there for long
                */
};
void lease_sighting_release(struct lease_sighting *s);
/* Take note of status as seen at seen; keeps first_seen if nothing of the lock changed. Zero value
 * = nothing seen yet. */
void lease_sighting_note(struct lease_sighting *s, const struct hr_status *status, struct mono seen,
                         bool live);

enum lease_verdict {
    LEASE_FREE,    /* unlocked: take it */
    LEASE_EXPIRED, /* locked, but its lease is certainly out, or its holder was an earlier life of
                      this very pod and is proven dead: read it afresh, then take it */
    LEASE_OURS,    /* this incarnation's name is on it */
    LEASE_WAIT,    /* somebody else's, alive as far as we know */
};
struct lease_question {
    const struct hr_status *status;
    const struct lease_sighting *sighting; /* of this very status */
    struct mono now;
    bool have_server_time;
    struct srvtime server_now;
    const char *self;      /* our identity, never empty */
    int64_t own_lease_ms;  /* counts where the status names no duration */
    bool predecessor_dead; /* proven: no earlier process of this very pod, nor a helm of one, is
                              alive */
};
/* Do two holders, "pod/uid/incarnation" each, name the same pod UID? Without one ("-") there is no
 * telling: false. */
bool lease_same_pod(const char *a, const char *b);
/* Equal questions give equal answers. *ret_wait_ms > 0 for LEASE_WAIT (advice for the queue), 0
 * otherwise. */
enum lease_verdict lease_decide(const struct lease_question *q, int64_t *ret_wait_ms);

/* The stamp of a grant: server_now.latest rounded up to whole seconds, but at least at_least_ns
 * (INT64_MIN: any). A grant whose stamp is the one that stands there already is none: watchers
 * count from when they first saw it. */
int64_t lease_stamp_ns(struct srvtime server_now, int64_t at_least_ns);

struct lease_grant {
    const char *holder;
    int64_t epoch;
    int64_t lease_ms;
    int64_t stamp_ns;   /* Released.lastTransitionTime */
    int64_t acquire_ns; /* status.lease.acquireTime */
    const char *reason; /* of Released: Installing, Upgrading, Uninstalling, ... */
    const char *doing;  /* "installs podinfo 6.5.0": the message's middle */
};

/* The body of the PATCH on .../status that takes the lock of object (its resourceVersion goes into
 * the body). New reference. */
json_t *lease_acquire_patch(const json_t *object, const struct lease_grant *grant);
/* What every grant writes into the conditions (changed in place): Released=Unknown with a new
 * stamp, Ready=Unknown, Reconciling=True, no Stalled. */
void lease_restamp(json_t *conditions, const struct lease_grant *grant, int64_t generation);
/* The JSON Patch that renews: tests on holder, epoch, and Released's type, status and stamp by
 * index, then the new stamp. object: the newest version known. New reference, or NULL if object
 * does not show the lock as held by grant's holder and epoch. */
json_t *lease_renew_patch(const json_t *object, const struct lease_grant *grant);
/* Mine: holder AND epoch AND Released=Unknown AND the stamp (stamp text as we wrote it; NULL =
 * any). */
bool lease_is_mine(const json_t *object, const char *holder, int64_t epoch, const char *stamp);
/* Does the reply to an acquire show everything that was written? ERR_INVALID names the first field
 * that the API server dropped (an old CRD, case 14). */
enum err_kind lease_check_echo(const json_t *reply, const struct lease_grant *grant,
                               struct err *err) MUST_CHECK;

#endif
