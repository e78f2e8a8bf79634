#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#include "base/must.h"

void *xmalloc(size_t len)
{
    void *p = malloc(len != 0 ? len : 1);
    must(p != NULL);
    return p;
}

void *xcalloc(size_t n, size_t size)
{
    void *p = calloc(n != 0 ? n : 1, size != 0 ? size : 1);
    must(p != NULL);
    return p;
}

void *xrealloc(void *old, size_t len)
{
    void *p = realloc(old, len != 0 ? len : 1);
    must(p != NULL);
    return p;
}

char *xstrndup(const char *s, size_t len)
{
    char *p = strndup(s, len);
    must(p != NULL);
    return p;
}

char *xstrdup(const char *s)
{
    char *p = strdup(s);
    must(p != NULL);
    return p;
}

char *xvasprintf(const char *fmt, va_list ap)
{
    char *p = NULL;
    int len = vasprintf(&p, fmt, ap);
    must(len >= 0);
    must(p != NULL);
    return p;
}

char *xasprintf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *p = xvasprintf(fmt, ap);
    va_end(ap);
    return p;
}
