/* What semver.c and semver_range.c share; for this package only. */
#ifndef BELAY_CHARTREF_SEMVER_SCAN_H
#define BELAY_CHARTREF_SEMVER_SCAN_H

#include "chartref/chartref.h"

/* Length of the longest dot-separated list of identifiers at s ("rc.1" of "rc.1+b"); 0 if there is
 * none. */
size_t semver_scan_identifiers(const char *s);

#endif
