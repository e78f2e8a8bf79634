/* What helm said last, for people: out of its stderr, one line, without its own prefixes, redacted.
 * Pure. */
#ifndef BELAY_HELM_MESSAGE_H
#define BELAY_HELM_MESSAGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct message_source {
    const char *text; /* helm's stderr */
    size_t len;
    bool truncated; /* there was more of it */
    const json_t *secrets;
    const char *const *keep; /* both as in redact.h */
};
/* At most LIMIT_MESSAGE_BYTES of valid UTF-8; "" if helm said nothing. Owned by the caller.
 * *ret_cancelled: helm says that it was cancelled (its answer to SIGINT and SIGTERM). */
char *message_read(const struct message_source *source, bool *ret_cancelled);

#endif
