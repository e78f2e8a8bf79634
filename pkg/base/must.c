#include "base/must.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void must_fail(const char *file, int line, const char *cond)
{
    /* Quotes inside the condition are replaced, so the line stays JSON without a writer that could
     * fail too. */
    char text[256];
    size_t i = 0;
    for (; cond[i] != '\0' && i < sizeof(text) - 1; i++) {
        text[i] = (cond[i] == '"' || cond[i] == '\\') ? '\'' : cond[i];
    }
    text[i] = '\0';
    (void)fprintf(stderr,
                  "{\"level\":\"fatal\",\"msg\":\"assertion "
                  "failed\",\"file\":\"%s\",\"line\":%d,\"cond\":\"%s\"}\n",
                  file, line, text);
    (void)fflush(stderr);
    abort();
}
