/* What has to be done about a release: pure decisions over the spec, the status and Helm's newest
 * record. */
#ifndef BELAY_RELEASE_RELEASE_H
#define BELAY_RELEASE_RELEASE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "helmrec/helmrec.h"
#include "hr/hr.h"
#include "timeval/timeval.h"

/* ---- the desired state as one word ---- */

#define RELEASE_DIGEST_LEN 80 /* "1:" and 64 hex digits and NUL fit */
/* "1:" + sha256 over the chart's bytes (their digest), the merged values, name, namespace, and
 * whether old values are reused. The 1 names this algorithm; helm's and belay's versions, flags and
 * hosts are not in it (case 9). */
void release_digest(const struct hr_spec *spec, const char *chart_digest, const json_t *values,
                    char *out);
/* In status.attempt.digest in place of a digest: the inputs (values sources, chart) could not be
 * read, so what is desired is not known. A sync is due as soon as they can be read again. */
#define RELEASE_UNREADABLE "unreadable"
/* Can this version judge such a digest? False for another algorithm (a newer belay during a rolling
 * update). */
bool release_digest_known(const char *digest);

/* belay's claim in the description of the record that its helm wrote: helm stores it with the
 * record in one write, and no later upgrade or rollback by anybody copies it. So a result that was
 * lost can be told from the record alone. */
char *release_claim_format(const char *digest, int64_t epoch, const char *owner);
/* False if description is no claim. ret_digest[RELEASE_DIGEST_LEN]. */
bool release_claim_parse(const char *description, char *ret_digest, int64_t *ret_epoch,
                         char *ret_owner, size_t owner_size);

/* ---- back-off ---- */

#define RELEASE_BACKOFF_FIRST_MS INT64_C(10000)
#define RELEASE_BACKOFF_MAX_MS   INT64_C(300000)
/* A pending record of somebody else's helm is nothing to report before it has stood for this long.
 */
#define RELEASE_PENDING_PATIENCE_MS INT64_C(30000)
/* Before jitter: 10 s * 2^(failures-1), at most 5 min. failures >= 1. */
int64_t release_backoff_ms(int64_t failures);

/* ---- the ceiling ---- */

/* More revisions than this for one generation within an hour are a loop that nobody thought of (a
 * chart that changes at each look, two controllers that undo each other): belay stops, says so, and
 * tries once more when the hour is over. */
#define RELEASE_UPGRADES_MAX INT64_C(30)
#define RELEASE_WINDOW_MS    INT64_C(3600000)

/* The count for the next revision of hr's generation: *ret_upgrades (this one included) since
 * *ret_window_ns. False: the ceiling is reached, no revision may be made before *ret_window_ns +
 * RELEASE_WINDOW_MS. */
bool release_count_upgrade(const struct hr *hr, struct srvtime server_now, int64_t *ret_upgrades,
                           int64_t *ret_window_ns);

/* ---- is a sync due? (before the lock, from what is cached) ---- */

enum release_due {
    RELEASE_NOT_DUE, /* nothing to do until something changes (or, if wait_ms > 0, until then) */
    RELEASE_DUE,
    RELEASE_COMPARE, /* the status says done (or stalled, or in back-off): due if the desired digest
                        differs from *against */
};
struct release_question {
    const struct hr *hr;
    const struct helmrec_meta *newest; /* newest record of this release, NULL if there is none */
    int64_t newest_age_ms;             /* since this version of it was seen here */
    bool have_server_time;
    struct srvtime server_now;
    int64_t foreign_pending_ms; /* --foreign-pending-timeout; 0 = never */
};
struct release_answer {
    enum release_due due;
    int64_t wait_ms;     /* NOT_DUE and COMPARE: look again then; 0 = at the next resync */
    const char *why;     /* static text for the log: "the spec changed" */
    const char *against; /* COMPARE: the digest to compare with; borrowed from hr or newest */
};
struct release_answer release_is_due(const struct release_question *q);

/* ---- what to do (under the lock, from a fresh list) ---- */

enum release_action {
    RELEASE_INSTALL, /* no record, or uninstalled with its history kept */
    RELEASE_UPGRADE, /* there is one, and it is not what is desired */
    RELEASE_NOTHING, /* the newest record is deployed and carries the desired digest */
    RELEASE_READ,    /* the newest record carries no claim of ours: read its payload and compare */
    RELEASE_REPAIR,  /* whoever made the newest record is dead or fenced: mark it failed, then
                        upgrade */
    RELEASE_FINISH_UNINSTALL, /* an uninstall of ours has begun: finish it, then install */
    RELEASE_PENDING,          /* somebody's helm is at work, or died at it */
    RELEASE_FOREIGN,          /* it belongs to another HelmRelease */
};
struct release_situation {
    const struct helmrec_meta *newest; /* NULL if there is no record */
    const char *desired_digest;
    const char *owner_uid;
    int64_t epoch; /* of the lock: no helm of a lower one writes any more, nor one of this epoch
                      that has ended */
    bool have_server_time;
    struct srvtime server_now;
    int64_t foreign_pending_ms; /* a record that belay did not write and that says that helm is at
                                   work is abandoned after so long without a change; 0 = never */
};
enum release_action release_decide(const struct release_situation *s);
/* Does a payload without our annotation show what is desired? Either it carries our claim, or chart
 * name and version and the user-supplied values are equal (a release made by a person or by
 * helm-operator is adopted without an upgrade). */
bool release_payload_matches(const struct helmrec_payload *payload, const char *desired_digest,
                             const char *chart_name, const char *chart_version,
                             const json_t *values);

#endif
