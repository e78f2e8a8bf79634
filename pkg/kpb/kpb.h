/* The little of Kubernetes' protobuf that Helm's record traffic needs: read a Secret's metadata out
 * of an envelope, and add metadata to it without decoding what it carries. Pure; fuzzed.
 *
 * Envelope (application/vnd.kubernetes.protobuf): the four bytes "k8s\0", then a runtime.Unknown
 * {1: typeMeta {1: apiVersion, 2: kind}, 2: raw, 3: contentEncoding, 4: contentType}; raw is the
 * object's own message. v1.Secret {1: ObjectMeta, 2: data (map entries {1: key, 2: value}), ...}.
 * ObjectMeta {1: name, 3: namespace, 5: uid, 6: resourceVersion, 11: labels, 12: annotations}.
 * v1.SecretList {1: ListMeta, 2: items}. A singular message field that occurs again is merged by
 * the server, so appending one more ObjectMeta sets fields without touching the rest (seen on
 * kube-apiserver 1.37: annotation stored, a stale resourceVersion gave 409). */
#ifndef BELAY_KPB_KPB_H
#define BELAY_KPB_KPB_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"

#define KPB_CONTENT_TYPE "application/vnd.kubernetes.protobuf"
/* The API server takes 3,145,728 bytes. */
#define KPB_BYTES_MAX ((size_t)3 << 20)
#define KPB_HASH_LEN  32 /* sha256 */
/* What an amendment may add. */
#define KPB_AMENDMENT_MAX ((size_t)64 << 10)

/* What is read of a Secret; strings on the heap, "" if absent. */
struct kpb_secret {
    char *name, *ns, *uid, *resource_version;
    char *label_status, *label_name;          /* labels "status", "name" */
    bool has_release;                         /* data["release"] is there */
    unsigned char release_hash[KPB_HASH_LEN]; /* sha256 of its bytes */
};
void kpb_secret_release(struct kpb_secret *s);

/* From an envelope. INVALID: no envelope, no Secret, cut or malformed; LIMIT: over KPB_BYTES_MAX.
 */
enum err_kind kpb_secret_parse(const char *bytes, size_t len, struct kpb_secret *ret,
                               struct err *err) MUST_CHECK;

struct kpb_annotation {
    const char *key, *value;
};
/* The same envelope with one more ObjectMeta appended: resource_version (NULL: none) and
 * annotations (their keys differ). All other bytes of the object stay as they are. ret is appended
 * to, or left as it is on an error: INVALID as above; LIMIT also if over KPB_AMENDMENT_MAX would be
 * added, or ret has no room. */
enum err_kind kpb_secret_amend(const char *bytes, size_t len, const char *resource_version,
                               const struct kpb_annotation *annotations, size_t n, struct buf *ret,
                               struct err *err) MUST_CHECK;

/* A SecretList as it streams by, of any length: one item at a time is held, at most KPB_BYTES_MAX.
 */
struct kpb_list;
struct kpb_list *kpb_list_new(void (*on_item)(void *ctx, const struct kpb_secret *s), void *ctx);
/* The next bytes of the envelope. False once it is not a SecretList, malformed, or an item is too
 * long: then all later calls do nothing. */
bool kpb_list_feed(struct kpb_list *l, const char *bytes, size_t len);
void kpb_list_free(struct kpb_list *l);

#endif
