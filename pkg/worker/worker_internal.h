/* What the files of pkg/worker share. */
#ifndef BELAY_WORKER_WORKER_INTERNAL_H
#define BELAY_WORKER_WORKER_INTERNAL_H

#include "base/strmap.h"
#include "helmrec/helmrec.h"
#include "manifest/manifest.h"
#include "release/release.h"
#include "worker/worker.h"

/* How long reads of one pass may take in all, before the lock. */
#define WORKER_READ_MS INT64_C(30000)
/* How long a chart's resolution and download may take under the lock (the heartbeat keeps it
 * meanwhile). */
#define WORKER_FETCH_MS INT64_C(300000)

struct unlocked {
    int64_t epoch;
    int64_t generation;
    struct mono when;
    struct mono runs_out; /* not freed but left to run out, until then; zero: freed */
};

struct worker {
    struct worker_options options;
    struct mtx lock;
    struct strmap sightings; /* key -> struct lease_sighting *; guarded by lock */
    struct strmap unlocked;  /* key -> struct unlocked *: what we freed, or left to run out, last;
                                guarded by lock */
    struct strmap turns; /* key -> struct mono *: since when another replica's turn is waited for;
                            guarded by lock */
    bool crd_bad;        /* guarded by lock */
    char crd_why[512];
    atomic_llong passes;
    atomic_llong helms; /* for the names of their kubeconfigs */
};

/* ---- inputs.c: what is desired ---- */

struct inputs {
    json_t *values;        /* merged; an object */
    json_t *secret_values; /* array of what came from Secrets, to be redacted in helm's words */
    struct chart_resolved resolved;
    struct chart_archive archive; /* path NULL if it was not needed */
    char chart_digest[72];
    char digest[RELEASE_DIGEST_LEN]; /* desired */
};
void inputs_release(struct worker *w, struct inputs *in);
/* Compose the values of hr: sources in order, then spec.values. INVALID names object and key, never
 * content. */
enum err_kind inputs_values(struct worker *w, const struct hr *hr, struct mono deadline,
                            struct cancel *cancel, json_t **ret_values, json_t **ret_secret_values,
                            struct err *err) MUST_CHECK;
/* Resolve the chart by an index not older than fresh_after; archive_too: have the bytes as well.
 * Fills chart_digest if it is known (an index without digests: only with the archive, or from
 * status.source if that names the same version). */
enum err_kind inputs_chart(struct worker *w, const struct hr *hr, struct mono fresh_after,
                           bool archive_too, struct mono deadline, struct cancel *cancel,
                           struct inputs *in, struct err *err) MUST_CHECK;
/* in->digest from the two. */
void inputs_digest(const struct hr *hr, struct inputs *in);

/* ---- records.c: Helm's records ---- */

/* Newest of the cached records of hr's release, NULL if there is none; owner: the caller.
 * *ret_epoch: the highest epoch that hr's own records name; *ret_age_ms: since that newest version
 * was seen here. */
struct helmrec_meta *records_newest_cached(struct worker *w, const struct hr *hr,
                                           int64_t *ret_epoch, int64_t *ret_age_ms);
/* Records of one release. */
struct record_list {
    struct helmrec_meta **items; /* in no order */
    size_t count;
};
void record_list_release(struct record_list *l);
/* From a fresh list. *ret_newest may be NULL. *ret_older (may be NULL): the others. *ret_epoch:
 * highest epoch that owner_uid's records name. */
enum err_kind records_newest(struct worker *w, const struct hr *hr, struct mono deadline,
                             struct cancel *cancel, struct helmrec_meta **ret_newest,
                             struct record_list *ret_older, int64_t *ret_epoch,
                             struct err *err) MUST_CHECK;
/* Read a record's payload. */
enum err_kind records_payload(struct worker *w, const struct helmrec_meta *record,
                              struct mono deadline, struct cancel *cancel,
                              struct helmrec_payload **ret, struct err *err) MUST_CHECK;
struct records_claim {
    const char *digest, *owner, *owner_name;
    int64_t epoch;
};
/* Annotate record, guarded by its resourceVersion. */
enum err_kind records_annotate(struct worker *w, const struct helmrec_meta *record,
                               const struct records_claim *claim, struct mono deadline,
                               struct err *err) MUST_CHECK;
/* Does the HelmRelease that the record names as its owner still live? Asked of the API server: this
 * replica may watch only a part of them. In doubt it lives. */
bool records_owner_lives(struct worker *w, const struct helmrec_meta *record, struct mono deadline,
                         struct cancel *cancel);
void records_meta_free_ptr(struct helmrec_meta **m);

/* ---- outcome.c: what a result writes ---- */

struct outcome {
    const char *phase;    /* of api/phase.def; NULL = unchanged */
    const char *released; /* "True", "False" */
    const char *reason;   /* of Released and Ready */
    char *message;        /* owned */
    bool terminal;        /* Stalled: nothing is tried again until an input changes */
    bool interrupted;     /* no failure: Ready=Unknown and Reconciling=True stay */
    const char *chart_fetched, *deployed; /* condition status to write, NULL = unchanged */
    const char *digest;                   /* what was tried; NULL or "" = not known */
    int64_t failures;                     /* 0 on success */
    int64_t not_before_ns;                /* INT64_MIN = none */
    int64_t upgrades, window_ns;          /* of status.attempt; upgrades 0 = as they were */
    const char *revision;                 /* NULL = unchanged */
    const char *attempted;                /* lastAttemptedRevision; NULL = unchanged */
    const char *release_status;           /* NULL = unchanged */
    const char *release_name;
    const char *target_ns;
    const struct inputs *source; /* status.source from it; NULL = unchanged */
};
/* held_build functions; ctx = struct outcome *. */
json_t *outcome_build_result(void *ctx, const json_t *object, const char *now, bool minimal);
json_t *outcome_build_progress(void *ctx, const json_t *object, const char *now, bool minimal);

/* ---- sync.c, uninstall.c ---- */

struct sync {
    struct worker *w;
    struct held *held;
    struct hr *hr;               /* of the object in the lock's reply */
    struct helmrec_meta *newest; /* of the fresh list; may be NULL */
    struct record_list older;    /* the rest of it */
    struct inputs in;
    struct mono started;
    bool from_own_pod; /* taken over from an earlier life of this pod: its lease may not be out */
    bool unlocked;     /* the result was written: the lock is free for certain */
    struct gate_report wrote; /* by the last helm; all zero without the gate */
    bool unanswered;          /* a write of helm may still be carried out: the lease must run out */
};
/* The sync of a locked object up to and including the unlocking. */
void sync_run(struct sync *s);
void sync_uninstall(struct sync *s);
/* An uninstall of ours that was begun, to its end. s->newest and s->older are fresh afterwards. */
enum err_kind sync_finish_uninstall(struct sync *s, struct err *err) MUST_CHECK;
/* repair.c: whoever made the newest record is dead or fenced. Wait for what of it is still under
 * way in the cluster, and mark the record failed, so that helm upgrades over it; s->newest is the
 * record as it is then. CONFLICT: somebody else changed it meanwhile. */
enum err_kind sync_repair(struct sync *s, struct err *err) MUST_CHECK;
/* After a restart within one pod the lease was not waited for: the last request of the process that
 * died may still arrive, but not after this. */
enum err_kind sync_wait_guard(struct sync *s, struct err *err) MUST_CHECK;
/* Report, unlock, count. Takes ownership of o->message. */
void sync_finish(struct sync *s, struct outcome *o);
/* A failure with back-off (or Stalled if err's kind is not retryable). phase and reason are the
 * same word. */
void sync_fail(struct sync *s, const char *phase, const struct err *err);
void sync_fail_with(struct sync *s, struct outcome *o, const struct err *err);
/* Told to stop, or the lock is lost, before anything was changed. */
void sync_interrupted(struct sync *s);
/* antecedent.c: mark what the last helm created as this HelmRelease's. A failure is logged. */
#define ANNOTATION_ANTECEDENT "helm.fluxcd.io/antecedent"
void sync_mark_created(struct sync *s);
/* live.c: objects of a manifest as the API serves them, asked under the lock. */
struct live {
    struct sync *s;
    struct strmap resources; /* apiVersion -> json_t *: its APIResourceList */
};
struct live live_begin(struct sync *s);
void live_end(struct live *l);
/* The object's path in the API, on the heap; NULL with *err if there is none (NOT_FOUND: its kind
 * is not served, so there is no such object either). */
char *live_path(struct live *l, const struct manifest_object *o, bool *ret_namespaced,
                struct err *err);
/* *ret (may be NULL): a new reference to the reply. */
enum err_kind live_ask(struct live *l, const char *method, const char *path, const char *accept,
                       const json_t *body, json_t **ret, struct err *err) MUST_CHECK;
/* owner.c: "namespace/name" of another HelmRelease that exists and whose the newest record's
 * objects are, by helm-operator's mark; NULL if there is none. On the heap. */
char *sync_antecedent(struct sync *s);
/* orphans.c: delete what only revisions that belay marked failed had made; newest is deployed,
 * newest and older are fresh. A failure is logged and told by an Event, and tried again at the next
 * sync. */
void sync_clean_orphans(struct sync *s);
/* child.c: run helm under the lock. CONFLICT: the gate stopped it. */
enum err_kind sync_helm(struct sync *s, const struct helmargs_options *args,
                        struct helm_result *ret, struct err *err) MUST_CHECK;

#endif
