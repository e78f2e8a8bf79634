/* What the files of pkg/helmrec share. */
#ifndef BELAY_HELMREC_HELMREC_INTERNAL_H
#define BELAY_HELMREC_HELMREC_INTERNAL_H

#include "helmrec/helmrec.h"

struct helmrec_bytes {
    unsigned char *data; /* heap */
    size_t len;
};
void helmrec_bytes_release(struct helmrec_bytes *b);
#define _cleanup_bytes_ __attribute__((cleanup(helmrec_bytes_release)))

/* secret -> the release's JSON text, which is not checked. */
enum err_kind helmrec_unpack(const json_t *secret, struct helmrec_bytes *ret,
                             struct err *err) MUST_CHECK;

#endif
