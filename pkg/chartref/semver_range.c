/* Version ranges, with the meaning that Masterminds/semver v3.5 (helm's library) gives them.
 *
 * A range is groups joined by "||"; a group is comparators joined by blanks or commas, all of which
 * must hold; "a - b" is
 * ">= a, <= b". What differs from other semver libraries, and is checked against the real one:
 *   "1.2" means "~1.2" and "1.2.3" means "=1.2.3"        "^0" alone is >=0.0.0 <1.0.0, but "^*" is
 * 0.0.0 only
 *   ">1" is >=2.0.0, ">1.2" is >=1.3.0                   "<=1" is <2.0.0, "<=1.2" is <1.3.0
 *   "!=1" excludes all of 1.x.x                          "~0.0.0" is any version
 *   "<1.x" compares with 1.0.0, ">=1.x" too              "<=*" is 0.0.x
 *   parts behind a wildcard are not looked at ("x.5" is "*")
 *   a group without a pre-release in it matches no pre-release; one with it applies plain
 * precedence to all. */
#include "chartref/semver_scan.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

#define RANGE_MAX  512 /* bytes: semver.MaxConstraintLen */
#define GROUPS_MAX 32  /* semver.MaxConstraintGroups */

enum op { OP_EQ, OP_NE, OP_GT, OP_LT, OP_GE, OP_LE, OP_TILDE, OP_CARET };

struct comparator {
    enum op op;
    size_t group;
    int given;       /* parts that are numbers: 0 for "*", 1 for "1" or "1.x", 2, 3 */
    struct semver v; /* parts that are not given are 0 */
};

struct semver_range {
    struct comparator *comparators; /* in order of their groups */
    size_t count;
    size_t group_count;
    bool takes_pre[GROUPS_MAX]; /* the group names a pre-release */
};

/* Longest first, so that ">=" is not read as ">". */
static const struct {
    const char *text;
    enum op op;
} ops[] = {
    {"!=", OP_NE}, {">=", OP_GE}, {"=>", OP_GE}, {"<=", OP_LE},   {"=<", OP_LE},   {"~>", OP_TILDE},
    {"=", OP_EQ},  {">", OP_GT},  {"<", OP_LT},  {"~", OP_TILDE}, {"^", OP_CARET},
};

struct span {
    const char *at;
    size_t len;
};

/* One version with wildcards, as it stands in the text. */
struct pattern {
    const char *start;
    struct span parts[3]; /* without the dot; at NULL if missing */
    struct span pre;      /* with the dash */
    size_t len;           /* of all of it, build metadata too; 0: there is none at that place */
};

/* The library's expression for a part lets a single "|" in; as a part that is looked at it is
 * refused later. */
static size_t scan_part(const char *s)
{
    return strspn(s, "0123456789xX*|");
}

static size_t scan_blanks(const char *s)
{
    return strspn(s, " \t\n\f\r");
}

static size_t scan_suffix(const char *s, char mark)
{
    size_t len = *s == mark ? semver_scan_identifiers(s + 1) : 0;
    return len == 0 ? 0 : len + 1;
}

static struct pattern scan_pattern(const char *s)
{
    struct pattern p = {.start = s};
    const char *at = s + (*s == 'v');
    for (size_t i = 0; i < 3; i++) {
        size_t dot = i > 0;
        size_t len = i == 0 || *at == '.' ? scan_part(at + dot) : 0;
        if (len == 0) {
            break;
        }
        p.parts[i] = (struct span){at + dot, len};
        at += dot + len;
    }
    if (p.parts[0].at == NULL) {
        return p;
    }
    p.pre = (struct span){at, scan_suffix(at, '-')};
    at += p.pre.len;
    at += scan_suffix(at, '+');
    p.len = (size_t)(at - s);
    return p;
}

static bool is_number(struct span part)
{
    return part.at != NULL && !(part.len == 1 && strchr("xX*", part.at[0]) != NULL);
}

static bool pattern_version(const struct pattern *p, struct comparator *ret)
{
    int given = 0;
    while (given < 3 && is_number(p->parts[given])) {
        given++;
    }
    struct buf b = BUF_INIT(2 * RANGE_MAX);
    if (given == 3) {
        buf_add(&b, p->start, p->len);
    } else {
        for (int i = 0; i < 3; i++) {
            buf_add_str(&b, i == 0 ? "" : ".");
            buf_add(&b, i < given ? p->parts[i].at : "0", i < given ? p->parts[i].len : 1);
        }
        buf_add(&b, p->pre.at, p->pre.len);
    }
    ret->given = given;
    bool ok = !b.overflow && semver_parse(buf_str(&b), &ret->v);
    buf_release(&b);
    return ok;
}

/* "a - b" as ">= a, <= b ". It is a rewriting of text ahead of everything else in the library, so
 * it is one here: what it makes of "^1 - 2" or "1 - 2 - 3" is refused afterwards. */
static void expand_hyphens(const char *s, struct buf *out)
{
    while (*s != '\0') {
        size_t blanks = scan_blanks(s);
        struct pattern from = scan_pattern(s + blanks);
        const char *at = s + blanks + from.len;
        size_t before = scan_blanks(at);
        size_t after = at[before] == '-' ? scan_blanks(at + before + 1) : 0;
        struct pattern to = {0};
        if (from.len > 0 && before > 0 && after > 0) {
            to = scan_pattern(at + before + 1 + after);
        }
        if (to.len == 0) {
            buf_add_char(out, *s);
            s++;
            continue;
        }
        buf_add_str(out, ">= ");
        buf_add(out, from.start, from.len);
        buf_add_str(out, ", <= ");
        buf_add(out, to.start, to.len);
        buf_add_char(out, ' ');
        s = to.start + to.len;
        s += scan_blanks(s);
    }
}

static enum op take_op(const char **s)
{
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (text_has_prefix(*s, ops[i].text)) {
            *s += strlen(ops[i].text);
            return ops[i].op;
        }
    }
    return OP_EQ;
}

/* text is one group; false if it is none. */
static bool parse_group(struct semver_range *r, const char *text)
{
    size_t group = r->group_count++;
    const char *at = text + scan_blanks(text);
    for (;;) {
        struct comparator c = {.op = take_op(&at), .group = group};
        at += scan_blanks(at);
        struct pattern p = scan_pattern(at);
        if (p.len == 0 || !pattern_version(&p, &c)) {
            return false;
        }
        r->takes_pre[group] = r->takes_pre[group] || c.v.pre[0] != '\0';
        r->comparators = xrealloc(r->comparators, (r->count + 1) * sizeof(*r->comparators));
        r->comparators[r->count++] = c;

        at += p.len;
        size_t blanks = scan_blanks(at);
        at += blanks;
        if (*at == '\0') {
            return true;
        }
        if (*at == ',') {
            at++;
            at += scan_blanks(at);
        } else if (blanks == 0) {
            return false;
        }
    }
}

static bool parse_groups(struct semver_range *r, char *text)
{
    for (char *group = text;;) {
        if (r->group_count == GROUPS_MAX) {
            return false;
        }
        char *next = strstr(group, "||");
        if (next != NULL) {
            *next = '\0';
        }
        if (!parse_group(r, group)) {
            return false;
        }
        if (next == NULL) {
            return true;
        }
        group = next + 2;
    }
}

enum err_kind semver_range_parse(const char *s, struct semver_range **ret, struct err *err)
{
    struct semver_range *r = xcalloc(1, sizeof(*r));
    bool ok = false;
    if (strnlen(s, RANGE_MAX + 1) <= RANGE_MAX) {
        /* Each " - " of 3 bytes adds at most 6. */
        struct buf b = BUF_INIT(4 * RANGE_MAX);
        expand_hyphens(s, &b);
        must(!b.overflow);
        char *text = buf_take(&b);
        ok = parse_groups(r, text);
        free(text);
    }
    if (!ok) {
        semver_range_free(r);
        char *shown = text_clean(s, strnlen(s, RANGE_MAX), 80);
        (void)err_set(err, ERR_INVALID, "\"%s\" is no version and no version range", shown);
        free(shown);
        err_hint(
            err,
            "legal: 1.2.3, ^1.2, ~1.2, 1.x, *, >=1.0 <2.0, 1.2 - 1.4, A || B; at most %d bytes and "
            "%d alternatives",
            RANGE_MAX, GROUPS_MAX);
        return ERR_INVALID;
    }
    *ret = r;
    return ERR_NONE;
}

void semver_range_free(struct semver_range *r)
{
    if (r == NULL) {
        return;
    }
    free(r->comparators);
    free(r);
}

static int compare_given(const struct semver *v, const struct semver *c, int given)
{
    if (v->major != c->major || given < 2) {
        return (v->major > c->major) - (v->major < c->major);
    }
    return (v->minor > c->minor) - (v->minor < c->minor);
}

static bool tilde_holds(const struct comparator *c, const struct semver *v)
{
    if (semver_compare(v, &c->v) < 0) {
        return false;
    }
    bool zero = c->v.major == 0 && c->v.minor == 0 && c->v.patch == 0;
    if (zero && (c->given == 0 || c->given == 3)) {
        return true;
    }
    return v->major == c->v.major && (c->given == 1 || v->minor == c->v.minor);
}

/* The leftmost part that is not zero must stay; among parts that are not given, the last given one.
 */
static bool caret_holds(const struct comparator *c, const struct semver *v)
{
    if (semver_compare(v, &c->v) < 0 || v->major != c->v.major) {
        return false;
    }
    if (c->v.major > 0 || c->given == 1) {
        return true;
    }
    if (v->minor != c->v.minor) {
        return false;
    }
    return c->v.minor > 0 || c->given == 2 || v->patch == c->v.patch;
}

static bool differs(const struct comparator *c, const struct semver *v)
{
    if (c->given == 0 || c->given == 3) {
        return semver_compare(v, &c->v) != 0;
    }
    if (compare_given(v, &c->v, c->given) != 0) {
        return true;
    }
    return c->given == 2 && strcmp(v->pre, c->v.pre) != 0;
}

static bool comparator_holds(const struct comparator *c, const struct semver *v)
{
    bool parts_only = c->given == 1 || c->given == 2;
    switch (c->op) {
    case OP_EQ:
        return c->given < 3 ? tilde_holds(c, v) : semver_compare(v, &c->v) == 0;
    case OP_NE:
        return differs(c, v);
    case OP_GT:
        return parts_only ? compare_given(v, &c->v, c->given) > 0 : semver_compare(v, &c->v) > 0;
    case OP_LT:
        return semver_compare(v, &c->v) < 0;
    case OP_GE:
        return semver_compare(v, &c->v) >= 0;
    case OP_LE:
        if (c->given == 3) {
            return semver_compare(v, &c->v) <= 0;
        }
        return compare_given(v, &c->v, c->given == 1 ? 1 : 2) <= 0;
    case OP_TILDE:
        return tilde_holds(c, v);
    case OP_CARET:
        return caret_holds(c, v);
    }
    must(false);
    return false;
}

bool semver_range_matches(const struct semver_range *r, const struct semver *v)
{
    size_t i = 0;
    for (size_t group = 0; group < r->group_count; group++) {
        bool all = v->pre[0] == '\0' || r->takes_pre[group];
        for (; i < r->count && r->comparators[i].group == group; i++) {
            all = all && comparator_holds(&r->comparators[i], v);
        }
        if (all) {
            return true;
        }
    }
    return false;
}
