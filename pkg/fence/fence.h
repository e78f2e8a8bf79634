/* The rules of the gate, pure: what one helm, running under one lock, may still do to the API
 * server. docs/lock.md 7 is the law; pkg/gate carries requests and asks here about each.
 *
 *   struct fence_request r; fence_classify(...)      what is it?
 *   fence_judge(f, &r, now, hard)                    forward it, look at the HelmRelease first, or
 *                                                    refuse it
 *   fence_sent / fence_answered                      what became of it
 *
 * The fence latches: from the first refusal on every mutating request of this helm is refused, for
 * its reaction to one refusal cannot be relied on (helm uninstall whose record PUT got 409 deletes
 * everything and exits 0). Not thread-safe: one mutex per run, held by the caller. Time is the
 * caller's. */
#ifndef BELAY_FENCE_FENCE_H
#define BELAY_FENCE_FENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kpb/kpb.h"
#include "timeval/timeval.h"

/* A run's last sign from the API server counts for this long; then the HelmRelease is looked at
 * before anything mutating passes: a hypervisor can pause a guest without any guest clock noticing.
 */
#define FENCE_FRESH_MS INT64_C(1000)

enum fence_kind {
    FENCE_READ,          /* GET, HEAD, OPTIONS */
    FENCE_RECORD_CREATE, /* one of Helm's records */
    FENCE_RECORD_UPDATE,
    FENCE_RECORD_DELETE,
    FENCE_CRD,       /* comes before the record in helm install */
    FENCE_WRITE,     /* everything else */
    FENCE_FORBIDDEN, /* what helm never does, and what could touch records unseen */
};
struct fence_request {
    enum fence_kind kind;
    char ns[254];
    char release[254]; /* of a record */
    int64_t revision;  /* of a record */
};
/* Is it a write to Secrets whose object's name must be read from the body (a POST)? */
bool fence_needs_name(const char *method, const char *target);
/* method and target as in the request line; body_name: metadata.name of a posted Secret, NULL if
 * there was no need. */
void fence_classify(const char *method, const char *target, const char *body_name,
                    struct fence_request *ret);

struct fence_claim {
    char *digest, *owner, *owner_name; /* heap, "" if absent */
    int64_t epoch;
};

/* One record that this helm may update. */
struct fence_record {
    int64_t revision;
    char *resource_version;
    bool hash_known;
    unsigned char hash[KPB_HASH_LEN]; /* of data.release, as helm read or wrote it */
    struct fence_claim claim;         /* that it carried, and that an update keeps */
};

struct fence_options {
    const char *ns, *release;
    bool makes_revision; /* upgrade, install, rollback; false: uninstall, test */
    bool may_delete_all; /* uninstall: the newest records too */
    int64_t newest;      /* revision of the newest record of the fresh list; 0: there is none */
    struct fence_claim claim; /* of this run; copied */
};

struct fence {
    char *ns, *release;
    bool makes_revision, may_delete_all;
    int64_t newest;
    struct fence_claim claim;
    struct fence_record *records;
    size_t record_count;
    bool creating, created; /* the one successor */
    bool updated;           /* the newest record, by this run */
    bool latched;
    char why[256];         /* once latched */
    struct mono last_sign; /* when the API server was last known to hold the lock for us */
};

void fence_init(struct fence *f, const struct fence_options *o, struct mono now);
void fence_release(struct fence *f);
/* A record of the fresh list. */
void fence_add_record(struct fence *f, int64_t revision, const char *resource_version,
                      const struct fence_claim *claim);
/* A record as the API server showed it to helm (a list, a GET, the reply to a write). */
void fence_saw_record(struct fence *f, const struct kpb_secret *s);

enum fence_verdict { FENCE_FORWARD, FENCE_LOOK, FENCE_REFUSE };
/* now, hard: BOOTTIME now and the lock's hard deadline. looked: the HelmRelease was read for this
 * very request and showed holder and epoch. REFUSE latches (not for FENCE_READ); f->why says why.
 */
enum fence_verdict fence_judge(struct fence *f, const struct fence_request *r, struct mono now,
                               struct mono hard, bool looked);
/* The HelmRelease showed the lock as ours, in a reply to a request sent at sent. */
void fence_note_sign(struct fence *f, struct mono sent);
void fence_latch(struct fence *f, const char *why);

/* What to send with a record write: the resourceVersion (NULL: none) and the claim to annotate
 * (NULL: none). Valid until the next change. */
void fence_amendment(const struct fence *f, const struct fence_request *r,
                     const char **ret_resource_version, const struct fence_claim **ret_claim);

/* It was forwarded (call before it is sent). */
void fence_sent(struct fence *f, const struct fence_request *r);
/* Its answer. status: HTTP, 0 = none came (unknown outcome). written: the record as the reply shows
 * it, NULL if it is none. 409 to a record's update is decided by fence_may_resend before. */
void fence_answered(struct fence *f, const struct fence_request *r, int status,
                    const struct kpb_secret *written);
/* An update of a record got 409; current is what stands there now. True: only metadata changed (a
 * label, a reflector, a person): its resourceVersion is noted, send again. False: latched. */
bool fence_may_resend(struct fence *f, const struct fence_request *r,
                      const struct kpb_secret *current);
/* The Date of a reply to what was sent at sent (the API server's own clock) against the lease's end
 * by that clock: latches if it is out, else it is a sign. */
void fence_note_date(struct fence *f, int64_t date_ns, int64_t lease_end_ns, struct mono sent);

/* Is a reply with this status one that leaves open whether the write is carried out later? 504, and
 * 500 with a time-out's words in it. */
bool fence_is_unsettled(int status, const char *body, size_t len);

#endif
