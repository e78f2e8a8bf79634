/* Chart versions and URLs, by Helm's rules (Masterminds/semver v3; helm's repo/index.go). Pure. */
#ifndef BELAY_CHARTREF_CHARTREF_H
#define BELAY_CHARTREF_CHARTREF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct semver {
    uint64_t major, minor, patch;
    char pre[256];   /* "" if none */
    char build[256]; /* ignored when comparing */
};

/* As semver.NewVersion: a leading v, leading zeros and missing minor/patch are accepted, up to 256
 * bytes. False if it is none; *ret is untouched then. */
bool semver_parse(const char *s, struct semver *ret);
/* SemVer 2.0 precedence: -1, 0, 1. */
int semver_compare(const struct semver *a, const struct semver *b);

struct semver_range; /* parsed constraint: "^1.2", ">=1.0 <2.0 || 3.x", "1.2 - 1.4", "~1", "*",
                        "1.2.3" */
/* ERR_INVALID quotes the text (cut) and says what is legal; "" is none. Up to 512 bytes and 32
 * groups. */
enum err_kind semver_range_parse(const char *s, struct semver_range **ret,
                                 struct err *err) MUST_CHECK;
void semver_range_free(struct semver_range *r);
/* Pre-releases match only if a comparator of the same AND-group names one (Masterminds' rule). */
bool semver_range_matches(const struct semver_range *r, const struct semver *v);
/* Is the text one exact version ("1.2.3", not "1.2" and not "=1.2.3")? */
bool semver_is_exact(const char *s);

/* http and https only; everything below gives NULL (or false) for any other text. Owner of a
 * returned text: the caller. */

/* Join a chart URL of an index with the repository's base: RFC 3986 resolution; the base counts as
 * a directory whether or not it ends in a slash (case 36). The base's userinfo and query go along,
 * as with helm, but never to another origin. */
char *chart_url_resolve(const char *repository, const char *href);
/* "<repository>/index.yaml" with the query kept. */
char *chart_index_url(const char *repository);
/* What makes two spellings one repository: lower-case scheme and host, no default port, no trailing
 * slash, no userinfo. */
char *chart_repository_normal(const char *repository, bool with_query);
/* Same scheme, host and port: may credentials for a go to b? */
bool url_same_origin(const char *a, const char *b);
/* The userinfo, percent-decoded, as "user:password" for basic authentication; NULL if there is
 * none. */
char *url_userpwd(const char *url);
/* url without userinfo and fragment. */
char *url_without_userinfo(const char *url);
/* What may be shown: no userinfo, no fragment, query values blanked, valid UTF-8, cut. Takes any
 * text, never NULL. */
char *url_redact(const char *url);

#endif
