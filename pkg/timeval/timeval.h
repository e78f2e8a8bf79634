/* Time as three types that do not mix, and the text forms that the API and HTTP use. Pure.
 *
 *   struct mono     this machine's CLOCK_BOOTTIME: deadlines and waiting. Never compared between
 * machines. struct wall     this machine's idea of UTC: log lines only, never a decision about a
 * lock. struct srvtime  the API server's clock, known only as an interval [earliest, latest].
 * Durations are int64_t milliseconds named *_ms. Arithmetic saturates: INT64_MAX means "never". */
#ifndef BELAY_TIMEVAL_TIMEVAL_H
#define BELAY_TIMEVAL_TIMEVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define NS_PER_MS  INT64_C(1000000)
#define NS_PER_SEC INT64_C(1000000000)

struct mono {
    int64_t ns;
};
struct wall {
    int64_t ns; /* since 1970-01-01T00:00:00Z */
};
struct srvtime {
    int64_t earliest_ns; /* since 1970, <= latest_ns */
    int64_t latest_ns;
};

#define MONO_NEVER ((struct mono){INT64_MAX})

struct mono mono_add_ms(struct mono t, int64_t ms); /* ms may be negative; MONO_NEVER stays so */
int64_t mono_diff_ms(
    struct mono later,
    struct mono earlier); /* floor; negative if later < earlier; INT64_MAX from MONO_NEVER */
bool mono_before(struct mono a, struct mono b);
struct mono mono_min(struct mono a, struct mono b);
int64_t ns_add_ms(int64_t ns, int64_t ms); /* saturating, for wall and server nanoseconds */

#define RFC3339_LEN 32 /* "2026-12-01T12:00:01.250000Z" and its NUL fit */
/* metav1.Time: whole seconds UTC (floor). out[RFC3339_LEN]. Every int64 is in the years 1677 to
 * 2262. */
void rfc3339_format(int64_t ns, char *out);
/* metav1.MicroTime: six fraction digits. */
void rfc3339_format_micro(int64_t ns, char *out);
/* Any RFC 3339 date-time (offsets, fractions to ns, lower-case t/z, leap second as :59). False if
 * it is not one, or if its instant does not fit int64 nanoseconds (Go's zero time, year 1, does
 * not). */
bool rfc3339_parse(const char *s, int64_t *ret_ns);
/* An HTTP Date (IMF-fixdate, RFC 9110 5.6.7), always GMT. False if it is not one. */
bool httpdate_parse(const char *s, int64_t *ret_ns);

/* Go's time.ParseDuration: "1m30s", "300ms", "1.5h", "-2s", "0"; whole milliseconds, rounded down.
 * ERR_INVALID names what is legal. */
enum err_kind duration_parse(const char *s, int64_t *ret_ms, struct err *err) MUST_CHECK;
/* Go's form, shortest: "1m30s", "30s", "250ms", "0s". out[32]. */
void duration_format(int64_t ms, char *out);

#endif
