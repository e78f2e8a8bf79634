/* URLs of chart repositories. One strict reading of what an http(s) URL is serves all functions
 * here, so that the one that decides where credentials go and the one that says where the request
 * goes cannot disagree. */
#include "chartref/chartref.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

#define URL_MAX  8192 /* bytes; RFC 9110 4.1 asks for 8000 */
#define SHOW_MAX 300  /* bytes of a URL in a message */

struct span {
    const char *at; /* NULL: not there */
    size_t len;
};

struct url {
    bool https;
    struct span scheme;
    struct span userinfo; /* without the @ */
    struct span host;     /* with the brackets of IPv6 */
    struct span port;     /* digits */
    struct span path;     /* "" or from the slash on */
    struct span query;    /* without the question mark */
};

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* No control characters anywhere: they are no part of any URL, and would end a header or a log
 * line. */
static bool is_clean(const char *s)
{
    size_t len = strnlen(s, URL_MAX + 1);
    if (len > URL_MAX) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f) {
            return false;
        }
    }
    return true;
}

static bool host_is_valid(struct span h)
{
    if (h.len == 0) {
        return false;
    }
    bool bracketed = h.at[0] == '[';
    if (bracketed && (h.len < 4 || h.at[h.len - 1] != ']')) {
        return false;
    }
    for (size_t i = bracketed; i < h.len - bracketed; i++) {
        bool ok = bracketed ? strchr("0123456789abcdefABCDEF:.", h.at[i]) != NULL
                            : is_alnum(h.at[i]) || strchr("-._", h.at[i]) != NULL;
        if (!ok) {
            return false;
        }
    }
    return true;
}

static bool port_is_valid(struct span p)
{
    char digits[8];
    int64_t port;
    if (p.at == NULL) {
        return true;
    }
    if (p.len == 0 || p.len >= sizeof(digits)) {
        return false;
    }
    (void)snprintf(digits, sizeof(digits), "%.*s", (int)p.len, p.at);
    return text_to_int64(digits, 1, 65535, &port);
}

static bool parse_authority(struct span a, struct url *u)
{
    const char *at = memrchr(a.at, '@', a.len);
    if (at != NULL) {
        u->userinfo = (struct span){a.at, (size_t)(at - a.at)};
        a.len -= u->userinfo.len + 1;
        a.at = at + 1;
    }
    u->host = a;
    const char *bracket = memrchr(a.at, ']', a.len);
    const char *from = bracket != NULL ? bracket : a.at;
    const char *colon = memchr(from, ':', a.len - (size_t)(from - a.at));
    if (colon != NULL) {
        u->host.len = (size_t)(colon - a.at);
        u->port = (struct span){colon + 1, a.len - u->host.len - 1};
    }
    return host_is_valid(u->host) && port_is_valid(u->port);
}

/* The spans point into s. */
static bool url_parse(const char *s, struct url *ret)
{
    struct url u = {0};
    if (!is_clean(s)) {
        return false;
    }
    u.https = strncasecmp(s, "https://", 8) == 0;
    if (!u.https && strncasecmp(s, "http://", 7) != 0) {
        return false;
    }
    u.scheme = (struct span){s, u.https ? 5 : 4};
    const char *at = s + u.scheme.len + 3;
    struct span authority = {at, strcspn(at, "/?#")};
    if (!parse_authority(authority, &u)) {
        return false;
    }
    at += authority.len;
    u.path = (struct span){at, strcspn(at, "?#")};
    at += u.path.len;
    if (*at == '?') {
        u.query = (struct span){at + 1, strcspn(at + 1, "#")};
    }
    *ret = u;
    return true;
}

static void add_span(struct buf *b, struct span s)
{
    buf_add(b, s.at, s.len);
}

/* Percent-encode what may not stand in a path or query as it is; "%" only where it encodes nothing.
 */
static void add_encoded(struct buf *b, struct span s)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.at[i];
        bool escape = c == '%' && i + 2 < s.len && strchr(hex, s.at[i + 1]) != NULL &&
                      strchr(hex, s.at[i + 2]) != NULL;
        if ((c == '%' && !escape) || c <= 0x20 || c >= 0x7f || strchr("\"<>\\^`{|}", c) != NULL) {
            buf_addf(b, "%%%02X", c);
        } else {
            buf_add_char(b, (char)c);
        }
    }
}

static void add_lower(struct buf *b, struct span s)
{
    for (size_t i = 0; i < s.len; i++) {
        char c = s.at[i];
        buf_add_char(b, c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c);
    }
}

static void add_origin(struct buf *b, const struct url *u, bool with_userinfo)
{
    add_span(b, u->scheme);
    buf_add_str(b, "://");
    if (with_userinfo && u->userinfo.at != NULL) {
        add_span(b, u->userinfo);
        buf_add_char(b, '@');
    }
    add_span(b, u->host);
    if (u->port.at != NULL) {
        buf_add_char(b, ':');
        add_span(b, u->port);
    }
}

static void add_query(struct buf *b, struct span query)
{
    if (query.at != NULL) {
        buf_add_char(b, '?');
        add_encoded(b, query);
    }
}

static char *take_url(struct buf *b)
{
    if (b->overflow) {
        buf_release(b);
        return NULL;
    }
    return buf_take(b);
}

/* RFC 3986 5.2.4 on an absolute path; the result keeps a trailing slash where "." or ".." stood
 * last. */
static void add_without_dots(struct buf *out, const char *path)
{
    struct buf b = BUF_INIT(4 * URL_MAX);
    while (*path != '\0') {
        size_t len = strcspn(path + 1, "/");
        const char *segment = path + 1;
        bool last = segment[len] == '\0';
        bool up = len == 2 && segment[0] == '.' && segment[1] == '.';
        if (up) {
            const char *slash = memrchr(buf_str(&b), '/', b.len);
            size_t keep = slash == NULL ? 0 : (size_t)(slash - buf_str(&b));
            char *head = xstrndup(buf_str(&b), keep);
            buf_reset(&b);
            buf_add_str(&b, head);
            free(head);
        }
        if (up || (len == 1 && segment[0] == '.')) {
            buf_add_str(&b, last ? "/" : "");
        } else {
            buf_add(&b, path, len + 1);
        }
        path += len + 1;
    }
    buf_add(out, buf_str(&b), b.len);
    buf_release(&b);
}

static bool has_scheme(const char *href)
{
    size_t len = strcspn(href, ":/?#");
    return len > 0 && href[len] == ':';
}

/* An absolute URL as the request needs it. */
static char *absolute_url(const char *s, bool with_userinfo)
{
    struct url u;
    if (!url_parse(s, &u)) {
        return NULL;
    }
    struct buf b = BUF_INIT(4 * URL_MAX);
    add_origin(&b, &u, with_userinfo);
    add_encoded(&b, u.path);
    add_query(&b, u.query);
    return take_url(&b);
}

/* The path of href on base, without its query. */
static void add_merged_path(struct buf *out, const struct url *base, struct span path)
{
    struct buf b = BUF_INIT(4 * URL_MAX);
    if (path.len == 0 || path.at[0] != '/') {
        add_encoded(&b, base->path);
        if (b.len == 0 || b.data[b.len - 1] != '/') {
            buf_add_char(&b, '/');
        }
    }
    add_encoded(&b, path);
    add_without_dots(out, buf_str(&b));
    out->overflow = out->overflow || b.overflow;
    buf_release(&b);
}

char *chart_url_resolve(const char *repository, const char *href)
{
    struct url base;
    if (!url_parse(repository, &base) || !is_clean(href)) {
        return NULL;
    }
    if (has_scheme(href)) {
        return absolute_url(href, true);
    }
    if (text_has_prefix(href, "//")) {
        /* Another host: the base's token is not for it, though helm would send it along. */
        char *url = xasprintf("%.*s:%s", (int)base.scheme.len, base.scheme.at, href);
        char *absolute = absolute_url(url, true);
        free(url);
        return absolute;
    }
    struct span path = {href, strcspn(href, "?#")};
    struct span query = base.query;
    if (query.at == NULL && href[path.len] == '?') {
        query = (struct span){href + path.len + 1, strcspn(href + path.len + 1, "#")};
    }
    struct buf b = BUF_INIT(4 * URL_MAX);
    add_origin(&b, &base, true);
    add_merged_path(&b, &base, path);
    add_query(&b, query);
    return take_url(&b);
}

char *chart_index_url(const char *repository)
{
    return chart_url_resolve(repository, "index.yaml");
}

static bool is_default_port(const struct url *u)
{
    struct span want = u->https ? (struct span){"443", 3} : (struct span){"80", 2};
    return u->port.at == NULL ||
           (u->port.len == want.len && memcmp(u->port.at, want.at, want.len) == 0);
}

char *chart_repository_normal(const char *repository, bool with_query)
{
    struct url u;
    if (!url_parse(repository, &u)) {
        return NULL;
    }
    struct buf b = BUF_INIT(4 * URL_MAX);
    buf_add_str(&b, u.https ? "https://" : "http://");
    add_lower(&b, u.host);
    if (!is_default_port(&u)) {
        buf_add_char(&b, ':');
        add_span(&b, u.port);
    }
    while (u.path.len > 0 && u.path.at[u.path.len - 1] == '/') {
        u.path.len--;
    }
    add_encoded(&b, u.path);
    buf_add_char(&b, '/');
    add_query(&b, with_query ? u.query : (struct span){0});
    return take_url(&b);
}

bool url_same_origin(const char *a, const char *b)
{
    struct url x;
    struct url y;
    if (!url_parse(a, &x) || !url_parse(b, &y)) {
        return false;
    }
    if (x.https != y.https || x.host.len != y.host.len ||
        strncasecmp(x.host.at, y.host.at, x.host.len) != 0) {
        return false;
    }
    if (is_default_port(&x) || is_default_port(&y)) {
        return is_default_port(&x) && is_default_port(&y);
    }
    return x.port.len == y.port.len && memcmp(x.port.at, y.port.at, x.port.len) == 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A "%00" stays as it is: no C string can hold what it means. */
static void add_decoded(struct buf *b, struct span s)
{
    for (size_t i = 0; i < s.len; i++) {
        int high = s.at[i] == '%' && i + 2 < s.len ? hex_digit(s.at[i + 1]) : -1;
        int low = high >= 0 ? hex_digit(s.at[i + 2]) : -1;
        if (low >= 0 && high + low > 0) {
            buf_add_char(b, (char)(high * 16 + low));
            i += 2;
        } else {
            buf_add_char(b, s.at[i]);
        }
    }
}

char *url_userpwd(const char *url)
{
    struct url u;
    if (!url_parse(url, &u) || u.userinfo.at == NULL || u.userinfo.len == 0) {
        return NULL;
    }
    struct span user = u.userinfo;
    struct span password = {0};
    const char *colon = memchr(user.at, ':', user.len);
    if (colon != NULL) {
        user.len = (size_t)(colon - user.at);
        password = (struct span){colon + 1, u.userinfo.len - user.len - 1};
    }
    struct buf b = BUF_INIT(2 * URL_MAX);
    add_decoded(&b, user);
    buf_add_char(&b, ':');
    add_decoded(&b, password);
    return take_url(&b);
}

char *url_without_userinfo(const char *url)
{
    return absolute_url(url, false);
}

/* "a=1&b" as "a=***&***": a name may be shown, a value or a bare word may be a token. */
static void add_blanked_query(struct buf *b, struct span query)
{
    const char *at = query.at;
    const char *end = query.at + query.len;
    while (at < end) {
        size_t len = strcspn(at, "&;#");
        len = len < (size_t)(end - at) ? len : (size_t)(end - at);
        const char *equals = memchr(at, '=', len);
        size_t name_len = equals != NULL ? (size_t)(equals - at) : 0;
        /* "c2VjcmV0==" is a token and its padding, not a name. */
        if (equals != NULL && name_len + strspn(equals, "=") < len) {
            buf_add(b, at, name_len + 1);
        }
        buf_add_str(b, "***");
        at += len;
        if (at < end) {
            buf_add_char(b, *at);
            at++;
        }
    }
}

char *url_redact(const char *url)
{
    struct url u;
    struct buf b = BUF_INIT(4 * URL_MAX);
    if (url_parse(url, &u)) {
        add_origin(&b, &u, false);
        add_span(&b, u.path);
        if (u.query.at != NULL) {
            buf_add_char(&b, '?');
            add_blanked_query(&b, u.query);
        }
    } else if (strchr(url, '@') != NULL) {
        /* Where the secret ends cannot be told in a text that is no URL. */
        buf_add_str(&b, "(a text with an @ that is no http(s) URL)");
    } else {
        size_t len = strcspn(url, "?#");
        buf_add(&b, url, len < URL_MAX ? len : URL_MAX);
    }
    char *shown = text_clean(buf_str(&b), b.len, SHOW_MAX);
    buf_release(&b);
    return shown;
}
