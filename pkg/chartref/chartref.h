/* Chart versions and URLs, by Helm's rules (Masterminds/semver v3; helm's repo/index.go). Pure. */
#ifndef BELAY_CHARTREF_CHARTREF_H
#define BELAY_CHARTREF_CHARTREF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct semver {
    uint64_t major, minor, patch;
    char pre[128];   /* "" if none */
    char build[128]; /* ignored when comparing */
};

/* As semver.NewVersion: a leading v and missing minor/patch are accepted. False if it is none. */
bool semver_parse(const char *s, struct semver *ret);
/* SemVer 2.0 precedence: -1, 0, 1. */
int semver_compare(const struct semver *a, const struct semver *b);

struct semver_range; /* parsed constraint: "^1.2", ">=1.0 <2.0 || 3.x", "1.2 - 1.4", "~1", "*", "1.2.3" */
/* ERR_INVALID quotes the text (cut) and says what is legal. */
enum err_kind semver_range_parse(const char *s, struct semver_range **ret, struct err *err) MUST_CHECK;
void semver_range_free(struct semver_range *r);
/* Pre-releases match only if a comparator of the same AND-group names one (Masterminds' rule). */
bool semver_range_matches(const struct semver_range *r, const struct semver *v);
/* Is the text one exact version ("1.2.3", not "1.2" and not "=1.2.3")? */
bool semver_is_exact(const char *s);

/* Join a chart URL of an index with the repository's base (RFC 3986 resolution; the base counts as a directory whether or
 * not it ends in a slash; its query goes along: helm's rule, case 36). Owner of the result: the caller. NULL: not an http(s) URL. */
char *chart_url_resolve(const char *repository, const char *href);
/* "<repository>/index.yaml" with the query kept. */
char *chart_index_url(const char *repository);
/* Same scheme, host and port: may credentials for a go to b? */
bool url_same_origin(const char *a, const char *b);
/* url without userinfo and with query values blanked: what may be shown. Owner: the caller. */
char *url_redact(const char *url);

#endif
