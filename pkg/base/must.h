/* Assertions that stay on in production.
 *
 * must(cond): a fact that only a bug can break. On failure one JSON line goes to stderr (file,
 * line, condition) and the process aborts; the lease of whatever it held expires by itself, so a
 * safety bug becomes a pause. Operating errors (network, input, helm) never assert: they are struct
 * err. */
#ifndef BELAY_BASE_MUST_H
#define BELAY_BASE_MUST_H

_Noreturn void must_fail(const char *file, int line, const char *cond);

#define must(cond)                                                                                 \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0)) {                                                        \
            must_fail(__FILE__, __LINE__, #cond);                                                  \
        }                                                                                          \
    } while (0)

#endif
