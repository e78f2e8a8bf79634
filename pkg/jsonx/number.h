/* What jsonx says about numbers, in one place: an integer and a real are the same number exactly if
 * the real is whole, fits int64 and has that value. */
#ifndef BELAY_JSONX_NUMBER_H
#define BELAY_JSONX_NUMBER_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define INT64_END 9223372036854775808.0 /* 2^63: the first double that does not fit */

static inline bool number_is_integer(double d, int64_t *ret)
{
    bool fits = d == trunc(d) && d >= -INT64_END && d < INT64_END;
    if (fits) {
        *ret = (int64_t)d;
    }
    return fits;
}

#endif
