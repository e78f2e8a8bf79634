/* Helm's release records: Secrets "sh.helm.release.v1.NAME.vN" (type helm.sh/release.v1; labels
 * owner=helm, name, status, version). Metadata as belay watches it, and, rarely, the payload
 * (base64 of base64 of gzip of JSON). Pure. Fuzzed.
 *
 * Annotations that only belay writes (labels would be copied by a person's `helm upgrade`;
 * annotations never are, and each PUT of stock helm wipes them): present means that the last writer
 * was belay (docs/lock.md 2). What a record says counts only for its own revision. */
#ifndef BELAY_HELMREC_HELMREC_H
#define BELAY_HELMREC_HELMREC_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define HELMREC_ANNOTATION_DIGEST   "belay.helm.fluxcd.io/digest"
#define HELMREC_ANNOTATION_EPOCH    "belay.helm.fluxcd.io/epoch"
#define HELMREC_ANNOTATION_OWNER    "belay.helm.fluxcd.io/owner"
#define HELMREC_ANNOTATION_REVISION "belay.helm.fluxcd.io/revision"
/* "namespace/name" of the owner: where to look whether it still lives. */
#define HELMREC_ANNOTATION_OWNER_NAME "belay.helm.fluxcd.io/owner-name"
/* The epoch that marked a record failed whose maker had died. */
#define HELMREC_ANNOTATION_REPAIRED_BY "belay.helm.fluxcd.io/repaired-by"
/* "true": what only that broken revision had made is deleted. */
#define HELMREC_ANNOTATION_ORPHANS_GONE "belay.helm.fluxcd.io/orphans-gone"

enum helmrec_status {
    HELMREC_UNKNOWN, /* also a word that we do not know */
    HELMREC_DEPLOYED,
    HELMREC_UNINSTALLED,
    HELMREC_SUPERSEDED,
    HELMREC_FAILED,
    HELMREC_UNINSTALLING,
    HELMREC_PENDING_INSTALL,
    HELMREC_PENDING_UPGRADE,
    HELMREC_PENDING_ROLLBACK,
};
const char *helmrec_status_name(enum helmrec_status s);
enum helmrec_status helmrec_status_of(const char *word);
bool helmrec_status_is_pending(
    enum helmrec_status s); /* the three pending ones, not uninstalling */

struct helmrec_meta {
    char *secret_name, *ns, *release, *uid, *resource_version;
    int64_t revision;           /* N, from the name; the label must agree */
    enum helmrec_status status; /* from the label: only a copy of the payload's */
    char *digest; /* our annotations; "" / 0 if absent or if the revision annotation is not N */
    char *owner;
    char *owner_name; /* "namespace/name"; "" if absent */
    int64_t epoch;
    bool repaired;      /* marked failed by belay, and */
    bool orphans_gone;  /* what it alone had made is deleted */
    int64_t created_ns; /* creationTimestamp; INT64_MIN if none */
    int64_t changed_ns; /* newest server-stamped time: managedFields or creationTimestamp; INT64_MIN
                           if none */
};
/* From a PartialObjectMetadata (or a whole Secret). INVALID if it is no record. */
enum err_kind helmrec_meta_parse(const json_t *object, struct helmrec_meta **ret,
                                 struct err *err) MUST_CHECK;
void helmrec_meta_free(struct helmrec_meta *m);
/* "namespace/release" of a record by a look at its name and labels, on the heap; NULL if it is
 * none. For cache indexes. */
char *helmrec_index(const json_t *object);

struct helmrec_payload {
    enum helmrec_status status; /* info.status: the truth */
    int64_t revision;
    char *description; /* info.description: belay's own runs leave their claim here */
    char *chart_name, *chart_version;
    json_t *config; /* user-supplied values; {} if none */
    char *manifest; /* what helm applied, as YAML documents; "" if none */
    json_t *hooks;  /* array of {name, kind, manifest, events, ...}; [] if none */
};
/* secret: the whole Secret object. LIMIT over LIMIT_RECORD_BYTES unpacked; INVALID if it cannot be
 * read. */
enum err_kind helmrec_payload_decode(const json_t *secret, struct helmrec_payload **ret,
                                     struct err *err) MUST_CHECK;
void helmrec_payload_free(struct helmrec_payload *p);
/* What data.release becomes when the word of info.status is replaced and every other byte of the
 * release's JSON stays (reading and writing it anew would change 0.1 and lose 2^63). On the heap.
 * Errors as for decode; INVALID also if info.status is not there exactly once. */
enum err_kind helmrec_payload_splice_status(const json_t *secret, enum helmrec_status status,
                                            char **ret_release, struct err *err) MUST_CHECK;

#endif
