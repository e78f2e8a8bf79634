#include "timeval/timeval.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

/* Rounds down where C rounds towards 0. b > 0. */
static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - (a % b != 0 && a < 0 ? 1 : 0);
}

static int64_t add_saturating(int64_t a, int64_t b)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return a < 0 ? INT64_MIN : INT64_MAX;
    }
    return sum;
}

static int64_t ms_to_ns(int64_t ms)
{
    int64_t ns;
    if (__builtin_mul_overflow(ms, NS_PER_MS, &ns)) {
        return ms < 0 ? INT64_MIN : INT64_MAX;
    }
    return ns;
}

struct mono mono_add_ms(struct mono t, int64_t ms)
{
    return t.ns == INT64_MAX ? t : (struct mono){add_saturating(t.ns, ms_to_ns(ms))};
}

int64_t mono_diff_ms(struct mono later, struct mono earlier)
{
    if (later.ns == INT64_MAX) {
        return INT64_MAX;
    }
    int64_t diff;
    if (__builtin_sub_overflow(later.ns, earlier.ns, &diff)) {
        return later.ns < 0 ? INT64_MIN : INT64_MAX;
    }
    return floor_div(diff, NS_PER_MS);
}

bool mono_before(struct mono a, struct mono b)
{
    return a.ns < b.ns;
}

struct mono mono_min(struct mono a, struct mono b)
{
    return a.ns < b.ns ? a : b;
}

int64_t ns_add_ms(int64_t ns, int64_t ms)
{
    return add_saturating(ns, ms_to_ns(ms));
}

/* ---- civil dates (proleptic Gregorian; H. Hinnant's "days from civil" arithmetic) ---- */

static int64_t days_from_civil(int64_t y, int64_t m, int64_t d)
{
    y -= m <= 2 ? 1 : 0;
    int64_t era = floor_div(y, 400);
    int64_t year_of_era = y - era * 400;
    int64_t day_of_year = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    return era * 146097 + day_of_era - 719468;
}

struct civil {
    int64_t year, month, day, hour, minute, second, nanos;
};

static struct civil civil_from_ns(int64_t ns)
{
    /* Not ns - sec * NS_PER_SEC: for INT64_MIN that product does not fit. */
    int64_t nanos = ns % NS_PER_SEC + (ns % NS_PER_SEC < 0 ? NS_PER_SEC : 0);
    int64_t sec = floor_div(ns, NS_PER_SEC);
    int64_t days = floor_div(sec, 86400);
    int64_t of_day = sec - days * 86400;
    int64_t z = days + 719468;
    int64_t era = floor_div(z, 146097);
    int64_t doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    int64_t mp = (5 * doy + 2) / 153;
    int64_t month = mp < 10 ? mp + 3 : mp - 9;
    return (struct civil){.year = yoe + era * 400 + (month <= 2 ? 1 : 0),
                          .month = month,
                          .day = doy - (153 * mp + 2) / 5 + 1,
                          .hour = of_day / 3600,
                          .minute = of_day / 60 % 60,
                          .second = of_day % 60,
                          .nanos = nanos};
}

static int64_t days_in_month(int64_t year, int64_t month)
{
    static const int64_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return month == 2 && leap ? 29 : days[month - 1];
}

/* False if a field is out of its range or the instant does not fit int64 nanoseconds. */
static bool civil_to_ns(const struct civil *c, int64_t offset_s, int64_t *ret_ns)
{
    bool ok = c->month >= 1 && c->month <= 12 && c->day >= 1 &&
              c->day <= days_in_month(c->year, c->month) && c->hour <= 23 && c->minute <= 59 &&
              c->second <= 60;
    if (!ok) {
        return false;
    }
    int64_t second = c->second == 60 ? 59 : c->second; /* a leap second */
    int64_t sec = days_from_civil(c->year, c->month, c->day) * 86400 + c->hour * 3600 +
                  c->minute * 60 + second - offset_s;
    int64_t ns;
    return !__builtin_mul_overflow(sec, NS_PER_SEC, &ns) &&
           !__builtin_add_overflow(ns, c->nanos, ret_ns);
}

void rfc3339_format(int64_t ns, char *out)
{
    struct civil c = civil_from_ns(ns);
    (void)snprintf(out, RFC3339_LEN, "%04d-%02d-%02dT%02d:%02d:%02dZ", (int)c.year, (int)c.month,
                   (int)c.day, (int)c.hour, (int)c.minute, (int)c.second);
}

void rfc3339_format_micro(int64_t ns, char *out)
{
    struct civil c = civil_from_ns(ns);
    (void)snprintf(out, RFC3339_LEN, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", (int)c.year,
                   (int)c.month, (int)c.day, (int)c.hour, (int)c.minute, (int)c.second,
                   (int)(c.nanos / 1000));
}

/* Read exactly n digits. */
static bool digits(const char **s, int n, int64_t *ret)
{
    int64_t v = 0;
    for (int i = 0; i < n; i++) {
        char c = (*s)[i];
        if (c < '0' || c > '9') {
            return false;
        }
        v = v * 10 + (c - '0');
    }
    *s += n;
    *ret = v;
    return true;
}

static bool literal(const char **s, char lower, char upper)
{
    bool ok = **s == lower || **s == upper;
    *s += ok ? 1 : 0;
    return ok;
}

static bool fraction(const char **s, int64_t *ret_nanos)
{
    int64_t nanos = 0;
    int64_t scale = NS_PER_SEC;
    const char *begin = *s;
    for (; **s >= '0' && **s <= '9'; (*s)++) {
        scale /= 10; /* beyond nanoseconds: 0, so further digits are dropped */
        nanos += (**s - '0') * scale;
    }
    *ret_nanos = nanos;
    return *s != begin;
}

static bool zone(const char **s, int64_t *ret_offset_s)
{
    if (literal(s, 'z', 'Z')) {
        *ret_offset_s = 0;
        return true;
    }
    int64_t sign = **s == '+' ? 1 : -1;
    if (!literal(s, '+', '-')) {
        return false;
    }
    int64_t hour, minute;
    if (!digits(s, 2, &hour) || !literal(s, ':', ':') || !digits(s, 2, &minute) || hour > 23 ||
        minute > 59) {
        return false;
    }
    *ret_offset_s = sign * (hour * 3600 + minute * 60);
    return true;
}

bool rfc3339_parse(const char *s, int64_t *ret_ns)
{
    struct civil c = {0};
    int64_t offset_s = 0;
    bool ok = digits(&s, 4, &c.year) && literal(&s, '-', '-') && digits(&s, 2, &c.month) &&
              literal(&s, '-', '-') && digits(&s, 2, &c.day) && literal(&s, 't', 'T') &&
              digits(&s, 2, &c.hour) && literal(&s, ':', ':') && digits(&s, 2, &c.minute) &&
              literal(&s, ':', ':') && digits(&s, 2, &c.second);
    if (ok && *s == '.') {
        s++;
        ok = fraction(&s, &c.nanos);
    }
    return ok && zone(&s, &offset_s) && *s == '\0' && civil_to_ns(&c, offset_s, ret_ns);
}

/* One of n three-letter names, starting at 0. */
static bool name_of(const char **s, const char *names, int n, int64_t *ret)
{
    for (int i = 0; i < n; i++) {
        if (strncmp(*s, names + (ptrdiff_t)3 * i, 3) == 0) {
            *s += 3;
            *ret = i;
            return true;
        }
    }
    return false;
}

static bool text(const char **s, const char *want)
{
    size_t len = strlen(want);
    bool ok = strncmp(*s, want, len) == 0;
    *s += ok ? len : 0;
    return ok;
}

bool httpdate_parse(const char *s, int64_t *ret_ns)
{
    struct civil c = {0};
    int64_t weekday = 0;
    bool ok = name_of(&s, "SunMonTueWedThuFriSat", 7, &weekday) && text(&s, ", ") &&
              digits(&s, 2, &c.day) && text(&s, " ") &&
              name_of(&s, "JanFebMarAprMayJunJulAugSepOctNovDec", 12, &c.month) && text(&s, " ") &&
              digits(&s, 4, &c.year) && text(&s, " ") && digits(&s, 2, &c.hour) && text(&s, ":") &&
              digits(&s, 2, &c.minute) && text(&s, ":") && digits(&s, 2, &c.second) &&
              text(&s, " GMT") && *s == '\0';
    c.month++;
    return ok && civil_to_ns(&c, 0, ret_ns);
}

/* ---- durations (the grammar and the rounding of Go's time.ParseDuration) ---- */

#define DURATION_NS_MAX ((uint64_t)1 << 63)

static const struct {
    const char *name;
    int64_t ns;
} units[] = {
    {"ns", 1},           {"us", 1000},      {"\xC2\xB5s", 1000}, /* micro sign */
    {"\xCE\xBCs", 1000},                                         /* Greek mu */
    {"ms", NS_PER_MS},   {"s", NS_PER_SEC}, {"m", 60 * NS_PER_SEC}, {"h", 3600 * NS_PER_SEC},
};

/* The digits at *s; false if their number does not fit. */
static bool whole_number(const char **s, uint64_t *ret)
{
    uint64_t v = 0;
    for (; **s >= '0' && **s <= '9'; (*s)++) {
        uint64_t digit = (uint64_t)(**s - '0');
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, digit, &v)) {
            return false;
        }
    }
    *ret = v;
    return true;
}

/* The digits at *s as a fraction *ret / *ret_scale; those that do not fit are dropped, as Go does.
 */
static void fraction_number(const char **s, uint64_t *ret, double *ret_scale)
{
    *ret = 0;
    *ret_scale = 1;
    bool full = false;
    for (; **s >= '0' && **s <= '9'; (*s)++) {
        full = full || *ret > (uint64_t)INT64_MAX / 10;
        if (!full) {
            *ret = *ret * 10 + (uint64_t)(**s - '0');
            *ret_scale *= 10;
        }
    }
}

/* Nanoseconds of the unit at *s, which ends at a digit, a dot or the end; 0 if there is none such.
 */
static uint64_t unit_ns(const char **s)
{
    size_t len = strcspn(*s, ".0123456789");
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strlen(units[i].name) == len && strncmp(*s, units[i].name, len) == 0) {
            *s += len;
            return (uint64_t)units[i].ns;
        }
    }
    return 0;
}

/* One "12.5m" at *s, in ns (at most 2^63). */
static bool duration_term(const char **s, uint64_t *ret_ns)
{
    uint64_t whole = 0;
    uint64_t part = 0;
    double scale = 1;
    const char *begin = *s;
    if (!whole_number(s, &whole)) {
        return false;
    }
    bool any = *s != begin;
    if (**s == '.') {
        (*s)++;
        begin = *s;
        fraction_number(s, &part, &scale);
        any = any || *s != begin;
    }
    uint64_t unit = any ? unit_ns(s) : 0;
    uint64_t ns;
    if (unit == 0 || __builtin_mul_overflow(whole, unit, &ns)) {
        return false;
    }
    /* part / scale < 1: less than an hour's nanoseconds, which cannot overflow once ns <= 2^63. */
    if (ns > DURATION_NS_MAX) {
        return false;
    }
    *ret_ns = ns + (uint64_t)((double)part * ((double)unit / scale));
    return *ret_ns <= DURATION_NS_MAX;
}

enum err_kind duration_parse(const char *s, int64_t *ret_ms, struct err *err)
{
    const char *at = s;
    bool negative = *at == '-';
    at += *at == '-' || *at == '+' ? 1 : 0;
    uint64_t total = 0;
    bool ok = *at != '\0';
    if (strcmp(at, "0") == 0) {
        at++;
    }
    while (ok && *at != '\0') {
        uint64_t term = 0;
        ok = duration_term(&at, &term);
        total += term;
        /* Both were <= 2^63: if the sum did not fit, it is 0 now and below term. */
        ok = ok && total >= term && total <= DURATION_NS_MAX;
    }
    /* Only the negative side reaches 2^63. */
    if (!ok || (!negative && total > (uint64_t)INT64_MAX)) {
        _cleanup_(free_cstr)
        char *shown = text_clean(s, strlen(s), 40);
        return err_set(err, ERR_INVALID,
                       "\"%s\" is no duration: use Go's form, such as 30s, 1m30s or 1h", shown);
    }
    int64_t ns = negative ? (int64_t)(0 - total) : (int64_t)total;
    *ret_ms = floor_div(ns, NS_PER_MS);
    return ERR_NONE;
}

/* "7", "7.25" and then "s"; nothing for 0. */
static void format_seconds(uint64_t ms, char *out, size_t size)
{
    int n = snprintf(out, size, "%u.%03u", (unsigned)(ms / 1000), (unsigned)(ms % 1000));
    while (n > 0 && (out[n - 1] == '0' || out[n - 1] == '.')) {
        n--;
        if (out[n] == '.') {
            break;
        }
    }
    (void)snprintf(out + n, size - (size_t)n, "s");
}

void duration_format(int64_t ms, char *out)
{
    const char *sign = ms < 0 ? "-" : "";
    uint64_t v = ms < 0 ? 0 - (uint64_t)ms : (uint64_t)ms;
    char hours[24] = "";
    char minutes[8] = "";
    char seconds[16] = "";
    if (v >= 3600000) {
        (void)snprintf(hours, sizeof(hours), "%lluh", (unsigned long long)(v / 3600000));
    }
    if (v / 60000 % 60 != 0) {
        (void)snprintf(minutes, sizeof(minutes), "%um", (unsigned)(v / 60000 % 60));
    }
    if (v > 0 && v < 1000) {
        (void)snprintf(seconds, sizeof(seconds), "%ums", (unsigned)v);
    } else if (v == 0) {
        (void)snprintf(seconds, sizeof(seconds), "0s");
    } else if (v % 60000 != 0) {
        format_seconds(v % 60000, seconds, sizeof(seconds));
    }
    (void)snprintf(out, 32, "%s%s%s%s", sign, hours, minutes, seconds);
}
