/* Helm's records as they pass on the wire between helm and the API server, in either encoding:
 * older helms send Secrets as JSON, newer ones as protobuf (pkg/kpb). Pure; fuzzed.
 *
 * release_hash is over the bytes of data["release"] as the API server keeps them: those that
 * protobuf carries, and that JSON writes in base64. So it is the same in both encodings.
 *
 * JSON has more ways to say a thing than Helm and the API server use. Refused (INVALID): a member
 * that is read or written here and is there twice, keys with escapes beside it, a field of the
 * wrong type. */
#ifndef BELAY_RECWIRE_RECWIRE_H
#define BELAY_RECWIRE_RECWIRE_H

#include "kpb/kpb.h"

/* By content type: protobuf, or JSON (parameters after ';' are ignored). Any other, or NULL:
 * INVALID; the other errors are kpb_secret_parse's. JSON may leave out kind and apiVersion. */
enum err_kind recwire_parse(const char *content_type, const char *bytes, size_t len,
                            struct kpb_secret *ret, struct err *err) MUST_CHECK;
/* As kpb_secret_amend. JSON: metadata.resourceVersion is set, annotations are merged, the rest of
 * the text stays byte for byte as it was. */
enum err_kind recwire_amend(const char *content_type, const char *bytes, size_t len,
                            const char *resource_version, const struct kpb_annotation *annotations,
                            size_t n, struct buf *ret, struct err *err) MUST_CHECK;

/* A list as it streams by; JSON lists too, one item at a time (metadata first or last). */
struct recwire_list;
struct recwire_list *recwire_list_new(const char *content_type,
                                      void (*on_item)(void *ctx, const struct kpb_secret *s),
                                      void *ctx); /* NULL: not a type that is understood */
bool recwire_list_feed(struct recwire_list *l, const char *bytes, size_t len);
void recwire_list_free(struct recwire_list *l);

#endif
