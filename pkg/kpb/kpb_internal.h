/* The wire format, as kpb.c and kpb_list.c read it. */
#ifndef BELAY_KPB_KPB_INTERNAL_H
#define BELAY_KPB_KPB_INTERNAL_H

#include <stdint.h>

#include "kpb/kpb.h"

#define KPB_MAGIC     "k8s" /* and its NUL */
#define KPB_MAGIC_LEN ((size_t)4)
#define KPB_FIELD_MAX ((UINT32_C(1) << 29) - 1)

enum kpb_wire { KPB_VARINT = 0, KPB_FIXED64 = 1, KPB_BYTES = 2, KPB_FIXED32 = 5 };

/* Borrowed bytes. */
struct kpb_slice {
    const unsigned char *at;
    size_t len;
};

/* A varint that comes byte by byte. */
struct kpb_varint {
    uint64_t value;
    unsigned count; /* bytes so far */
};
enum kpb_step { KPB_MORE, KPB_WHOLE, KPB_BAD };
/* KPB_BAD: over ten bytes, or over 64 bits. */
enum kpb_step kpb_varint_feed(struct kpb_varint *v, unsigned char byte);

/* False for a tag that this reader refuses: number 0 or too large, a group, an unknown type. */
bool kpb_tag_split(uint64_t tag, uint32_t *ret_number, enum kpb_wire *ret_wire);

/* Are these a TypeMeta's bytes that say v1 and this kind? */
bool kpb_type_is(struct kpb_slice type_meta, const char *kind);

/* A Secret's own message. False: malformed; *ret is untouched then. */
bool kpb_secret_read(struct kpb_slice raw, struct kpb_secret *ret);

#endif
