/* Small helpers on text. All inputs are NUL-terminated unless a length is given. */
#ifndef BELAY_BASE_TEXT_H
#define BELAY_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the valid UTF-8 sequence that s[0..len) begins with, 0 if there is none (RFC 3629: no
 * surrogates, no overlong forms). */
size_t text_utf8_len(const char *s, size_t len);
/* Drop an incomplete UTF-8 sequence from the end of s, in place: what is left after a cut by bytes.
 */
void text_trim_utf8(char *s);
/* A copy of s[0..len) of at most max_bytes bytes in valid UTF-8: bad bytes and control characters
 * but \n and \t become '?'; if something was cut, the copy ends in "...". Owned by the caller.
 * max_bytes >= 4. */
char *text_clean(const char *s, size_t len, size_t max_bytes);
bool text_has_prefix(const char *s, const char *prefix);
bool text_has_suffix(const char *s, const char *suffix);
bool text_eq(const char *a, const char *b); /* NULL equals only NULL */
/* Lower-case hex of len bytes into out[2*len+1]. */
void text_hex(const uint8_t *bytes, size_t len, char *out);
/* A whole decimal number in [min, max]; false for anything else (a plus, spaces, overflow
 * included).
 */
bool text_to_int64(const char *s, int64_t min, int64_t max, int64_t *ret_value);

#endif
