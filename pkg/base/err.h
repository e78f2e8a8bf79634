/* Errors as values on the caller's stack.
 *
 *   struct err err = ERR_INIT;
 *   if (thing_do(x, &err)) { err_wrap(&err, "do the thing for %s", key); return err.kind; }
 *
 * Contract of every function that takes a struct err: the return value is ERR_NONE (0) or
 * err->kind; on success err is untouched and the ret_* outputs are set, on failure err is filled
 * and the ret_* outputs are untouched. No allocation, so reporting a failure cannot fail. Messages
 * are UTF-8, cut at a character; they must never hold a secret.
 */
#ifndef BELAY_BASE_ERR_H
#define BELAY_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

enum err_kind {
    ERR_NONE = 0,
#define ERR_KIND(name, retryable) ERR_##name,
#include "base/err_kind.def"
#undef ERR_KIND
    ERR_KIND_COUNT
};

struct err {
    enum err_kind kind;
    int code;               /* HTTP status or exit status, 0 if none */
    int64_t retry_after_ms; /* > 0 only where a server asked for it */
    char msg[1024];         /* what failed, from the outermost step to the cause */
    char hint[256];         /* what a person can do about it; may be empty */
};

#define ERR_INIT                                                                                   \
    {                                                                                              \
        .kind = ERR_NONE                                                                           \
    }
#define MUST_CHECK __attribute__((warn_unused_result))

/* Fill *err and return kind. kind must not be ERR_NONE. A hint that was set before is cleared. */
enum err_kind err_set(struct err *err, enum err_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
enum err_kind err_vset(struct err *err, enum err_kind kind, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
/* Put "prefix: " before the message; returns err->kind, which must not be ERR_NONE. */
enum err_kind err_wrap(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Say what a person can change. */
void err_hint(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "UnknownOutcome"-like names for logs: the enum's own words, e.g. "UNKNOWN_OUTCOME"; "NONE" for
 * ERR_NONE. */
const char *err_kind_name(enum err_kind kind);
bool err_kind_retryable(enum err_kind kind);

#endif
