/* Take what is secret out of a text that people will read. Pure.
 *
 * Known secrets are found as they stand, at any depth of Go or JSON quoting, with white space
 * changed, in base64 (also inside a longer base64 text), percent-encoded, line by line, and as the
 * value of a KEY=VALUE or KEY: VALUE line. Regardless of them go: lists of byte numbers ([115 51 99
 * ...]), the data of a quoted object ("data":{...}), the user:password of a URL, and the shortened
 * `scalar...` of a YAML error. */
#ifndef BELAY_HELM_REDACT_H
#define BELAY_HELM_REDACT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define REDACT_MIN_BYTES 6           /* shorter values would blank half of every message */
#define REDACT_TEXT_MAX  (16U << 10) /* of text: sixteen times what a message shows */
#define REDACT_WORD      "[redacted]"

struct redact_options {
    /* Any tree: its strings, and its whole numbers of as many digits, are secret. NULL: none. */
    const json_t *secrets;
    /* Names that stay even if a secret is equal to one; NULL-terminated, NULL: none. */
    const char *const *keep;
    /* Text goes on after len: a secret that only begins in it is taken out, too. */
    bool truncated;
};

/* A copy of text[0..len), len <= REDACT_TEXT_MAX, with REDACT_WORD in place of each secret. Owned
 * by the caller. */
char *redact_text(const char *text, size_t len, const struct redact_options *options);

#endif
