#include "base/err.h"

#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "base/text.h"

enum err_kind err_vset(struct err *err, enum err_kind kind, const char *fmt, va_list ap)
{
    must(err != NULL);
    must(kind > ERR_NONE && kind < ERR_KIND_COUNT);
    char msg[sizeof(err->msg)];
    (void)vsnprintf(msg, sizeof(msg), fmt, ap);
    text_trim_utf8(msg);
    *err = (struct err){.kind = kind};
    memcpy(err->msg, msg, sizeof(msg));
    return kind;
}

enum err_kind err_set(struct err *err, enum err_kind kind, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)err_vset(err, kind, fmt, ap);
    va_end(ap);
    return kind;
}

enum err_kind err_wrap(struct err *err, const char *fmt, ...)
{
    must(err->kind != ERR_NONE);
    char prefix[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(prefix, sizeof(prefix), fmt, ap);
    va_end(ap);
    text_trim_utf8(prefix);
    char whole[sizeof(prefix) + sizeof(err->msg) + 2];
    (void)snprintf(whole, sizeof(whole), "%s: %s", prefix, err->msg);
    whole[sizeof(err->msg) - 1] = '\0';
    text_trim_utf8(whole);
    (void)snprintf(err->msg, sizeof(err->msg), "%.*s", (int)sizeof(err->msg) - 1, whole);
    return err->kind;
}

void err_hint(struct err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(err->hint, sizeof(err->hint), fmt, ap);
    va_end(ap);
    text_trim_utf8(err->hint);
}

const char *err_kind_name(enum err_kind kind)
{
    static const char *const names[] = {
        [ERR_NONE] = "NONE",
#define ERR_KIND(name, retryable) [ERR_##name] = #name,
#include "base/err_kind.def"
#undef ERR_KIND
    };
    must(kind < ERR_KIND_COUNT);
    return names[kind];
}

bool err_kind_retryable(enum err_kind kind)
{
    static const bool retryable_of[] = {
        [ERR_NONE] = false,
#define ERR_KIND(name, retryable) [ERR_##name] = (retryable),
#include "base/err_kind.def"
#undef ERR_KIND
    };
    must(kind < ERR_KIND_COUNT);
    return retryable_of[kind];
}
