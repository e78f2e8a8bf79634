/* Repository URLs, helm's repositories.yaml, and who gets which credentials. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/text.h"
#include "chart/chart_internal.h"
#include "chartref/chartref.h"
#include "jsonx/jsonx.h"
#include "yamlx/yamlx.h"

enum err_kind repository_check(const char *url, char **ret_shown, struct err *err)
{
    static const char scheme_chars[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-";
    _cleanup_(free_cstr)
    char *shown = url_redact(url);
    _cleanup_(free_cstr)
    char *index = chart_index_url(url);
    if (index != NULL) {
        *ret_shown = take_ptr(&shown);
        return ERR_NONE;
    }
    size_t scheme = strspn(url, scheme_chars);
    bool http = strncasecmp(url, "http://", 7) == 0 || strncasecmp(url, "https://", 8) == 0;
    if (scheme > 0 && text_has_prefix(url + scheme, "://") && !http) {
        return err_set(err, ERR_INVALID,
                       "repository %s: %.*s:// is not served yet; use an http(s) chart repository",
                       shown, (int)(scheme < 32 ? scheme : 32), url);
    }
    return err_set(err, ERR_INVALID,
                   "repository %s is no URL; write it as https://host/path of a chart repository",
                   shown);
}

/* ---- access ---- */

static const struct repo_entry *find_entry(const struct charts *c, const char *repository)
{
    _cleanup_(free_cstr)
    char *normal = chart_repository_normal(repository, true);
    _cleanup_(free_cstr)
    char *sans_query = chart_repository_normal(repository, false);
    for (size_t i = 0; i < c->entry_count; i++) {
        if (text_eq(c->entries[i].normal, normal)) {
            return &c->entries[i];
        }
    }
    for (size_t i = 0; i < c->entry_count; i++) {
        if (text_eq(c->entries[i].normal_sans_query, sans_query)) {
            return &c->entries[i];
        }
    }
    return NULL;
}

void access_init(struct access *a, const struct charts *c, const char *repository)
{
    const struct repo_entry *e = find_entry(c, repository);
    *a = (struct access){.transport = c->options.transport, .userpwd = url_userpwd(repository)};
    if (e == NULL) {
        return;
    }
    a->pass_credentials_all = e->pass_credentials_all;
    if (e->transport != NULL) {
        a->transport = e->transport;
    }
    if (a->userpwd == NULL && e->userpwd != NULL) {
        a->userpwd = xstrdup(e->userpwd);
    }
}

void access_release(struct access *a)
{
    free(a->userpwd);
    a->userpwd = NULL;
}

const char *access_userpwd(const struct access *a, const char *repository, const char *url)
{
    return a->pass_credentials_all || url_same_origin(repository, url) ? a->userpwd : NULL;
}

/* ---- import ---- */

void repo_entry_release(struct repo_entry *e)
{
    free(e->normal);
    free(e->normal_sans_query);
    free(e->userpwd);
}

static enum err_kind read_file(const char *path, struct buf *ret, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return err_set(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_UNAVAILABLE, "read %s: %s", path,
                       strerror(errno));
    }
    char chunk[8192];
    ssize_t n;
    while ((n = read(fd, chunk, sizeof(chunk))) > 0 && !ret->overflow) {
        buf_add(ret, chunk, (size_t)n);
    }
    int number = errno;
    (void)close(fd);
    if (n < 0) {
        return err_set(err, ERR_UNAVAILABLE, "read %s: %s", path, strerror(number));
    }
    if (ret->overflow) {
        return err_set(err, ERR_LIMIT, "%s is larger than %zu bytes", path, ret->max_len);
    }
    return ERR_NONE;
}

/* A password of digits without quotes is a number in YAML; helm takes it as the text. "" if absent;
 * false if it is neither. */
static bool text_member(const json_t *entry, const char *name, char *out, size_t out_len)
{
    const json_t *v = json_object_get(entry, name);
    int n = 0;
    out[0] = '\0';
    if (json_is_string(v)) {
        n = snprintf(out, out_len, "%s", json_string_value(v));
    } else if (json_is_integer(v)) {
        n = snprintf(out, out_len, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    } else if (v != NULL && !json_is_null(v)) {
        return false;
    }
    return n >= 0 && (size_t)n < out_len;
}

struct entry_texts {
    char url[8192], username[1024], password[4096];
    char ca_file[4096], cert_file[4096], key_file[4096];
};

/* Never the value: it may be the password. */
static enum err_kind read_texts(const json_t *entry, struct entry_texts *t, struct err *err)
{
    const struct {
        const char *name;
        char *out;
        size_t len;
    } members[] = {
        {"url", t->url, sizeof(t->url)},
        {"username", t->username, sizeof(t->username)},
        {"password", t->password, sizeof(t->password)},
        {"caFile", t->ca_file, sizeof(t->ca_file)},
        {"certFile", t->cert_file, sizeof(t->cert_file)},
        {"keyFile", t->key_file, sizeof(t->key_file)},
    };
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        if (!text_member(entry, members[i].name, members[i].out, members[i].len)) {
            return err_set(err, ERR_INVALID, "%s is no text, or too long", members[i].name);
        }
    }
    return ERR_NONE;
}

static const char *path_or_null(const char *path)
{
    return path[0] != '\0' ? path : NULL;
}

static enum err_kind entry_transport(const struct charts *c, const struct entry_texts *t,
                                     bool insecure, struct transport **ret, struct err *err)
{
    const struct transport_tls tls = {
        .ca_file = path_or_null(t->ca_file),
        .cert_file = path_or_null(t->cert_file),
        .key_file = path_or_null(t->key_file),
        .insecure = insecure,
    };
    if ((tls.cert_file == NULL) != (tls.key_file == NULL)) {
        return err_set(err, ERR_INVALID, "certFile and keyFile go together");
    }
    if (tls.ca_file == NULL && tls.cert_file == NULL && !insecure) {
        *ret = NULL;
        return ERR_NONE;
    }
    struct transport *own = c->options.transport_for == NULL
                                ? NULL
                                : c->options.transport_for(c->options.transport_for_ctx, &tls);
    if (own == NULL) {
        return err_set(err, ERR_INVALID, "its TLS settings cannot be used");
    }
    *ret = own;
    return ERR_NONE;
}

static enum err_kind import_entry(const struct charts *c, const json_t *entry,
                                  struct repo_entry *ret, struct err *err)
{
    struct entry_texts *t = xcalloc(1, sizeof(*t));
    struct repo_entry e = {0};
    _cleanup_(free_cstr)
    char *shown = NULL;
    enum err_kind kind = read_texts(entry, t, err);
    if (kind == ERR_NONE) {
        kind = repository_check(t->url, &shown, err);
    }
    if (kind == ERR_NONE) {
        kind = entry_transport(c, t, jsonx_bool(entry, "insecure_skip_tls_verify", false),
                               &e.transport, err);
    }
    if (kind == ERR_NONE) {
        e.normal = chart_repository_normal(t->url, true);
        e.normal_sans_query = chart_repository_normal(t->url, false);
        e.pass_credentials_all = jsonx_bool(entry, "pass_credentials_all", false);
        e.userpwd = t->username[0] != '\0' || t->password[0] != '\0'
                        ? xasprintf("%s:%s", t->username, t->password)
                        : url_userpwd(t->url);
        *ret = e;
    }
    free(t);
    return kind;
}

enum err_kind charts_import_repositories(struct charts *c, const char *path, struct err *err)
{
    struct buf text = BUF_INIT(LIMIT_CREDENTIAL_BYTES);
    _cleanup_json_ json_t *doc = NULL;
    enum err_kind kind = read_file(path, &text, err);
    if (kind == ERR_NONE && yamlx_parse(buf_str(&text), text.len, &doc, err)) {
        kind = err_wrap(err, "%s", path);
    }
    buf_release(&text);
    if (kind) {
        return kind;
    }
    const json_t *list = jsonx_at(doc, "repositories");
    size_t i;
    json_t *entry;
    bool one_is_bad = false;
    json_array_foreach(list, i, entry)
    {
        struct repo_entry e;
        struct err bad = ERR_INIT;
        if (import_entry(c, entry, &e, &bad)) {
            if (!one_is_bad) {
                (void)err_wrap(&bad, "%s: repository \"%s\" is skipped", path,
                               jsonx_str(entry, "name", "(without a name)"));
                *err = bad;
            }
            one_is_bad = true;
            continue;
        }
        c->entries = xrealloc(c->entries, (c->entry_count + 1) * sizeof(*c->entries));
        c->entries[c->entry_count++] = e;
    }
    return ERR_NONE;
}
