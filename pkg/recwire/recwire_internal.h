/* The JSON half: json.c reads and amends one Secret, json_list.c a list. */
#ifndef BELAY_RECWIRE_RECWIRE_INTERNAL_H
#define BELAY_RECWIRE_RECWIRE_INTERNAL_H

#include "recwire/recwire.h"

enum err_kind recwire_json_parse(const char *text, size_t len, struct kpb_secret *ret,
                                 struct err *err) MUST_CHECK;
enum err_kind recwire_json_amend(const char *text, size_t len, const char *resource_version,
                                 const struct kpb_annotation *annotations, size_t n,
                                 struct buf *ret, struct err *err) MUST_CHECK;

struct recwire_json_list;
struct recwire_json_list *
recwire_json_list_new(void (*on_item)(void *ctx, const struct kpb_secret *s), void *ctx);
bool recwire_json_list_feed(struct recwire_json_list *l, const char *bytes, size_t len);
void recwire_json_list_free(struct recwire_json_list *l);

#endif
