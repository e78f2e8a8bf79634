/* Heap memory. Running out of it aborts (what keeps an outsider from getting us there is limits.h),
 * so no result is NULL. _cleanup_(fn) runs fn(&var) when var leaves its scope; take_ptr(&p) moves
 * ownership out of such a variable. */
#ifndef BELAY_BASE_MEM_H
#define BELAY_BASE_MEM_H

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#define _cleanup_(fn) __attribute__((cleanup(fn)))

void *xmalloc(size_t len) __attribute__((malloc, returns_nonnull, warn_unused_result));
void *xcalloc(size_t n, size_t size) __attribute__((malloc, returns_nonnull, warn_unused_result));
void *xrealloc(void *p, size_t len) __attribute__((returns_nonnull, warn_unused_result));
char *xstrdup(const char *s) __attribute__((malloc, returns_nonnull, nonnull, warn_unused_result));
char *xstrndup(const char *s, size_t len)
    __attribute__((malloc, returns_nonnull, nonnull, warn_unused_result));
char *xasprintf(const char *fmt, ...)
    __attribute__((format(printf, 1, 2), returns_nonnull, warn_unused_result));
char *xvasprintf(const char *fmt, va_list ap)
    __attribute__((format(printf, 1, 0), returns_nonnull, warn_unused_result));

static inline void *take_ptr_(void *pp)
{
    void **p = (void **)pp;
    void *v = *p;
    *p = NULL;
    return v;
}
/* p: the address of a pointer variable. Its value is returned and the variable set to NULL. */
#define take_ptr(p) ((__typeof__(*(p)))take_ptr_(p))

/* For _cleanup_(free_cstr) char *s = NULL; */
static inline void free_cstr(char **s)
{
    free(*s);
    *s = NULL;
}

#endif
