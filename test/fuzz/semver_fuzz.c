/* Versions, ranges and URLs from a HelmRelease's spec and a repository's index. The input is up to
 * four texts with newlines between them: range, version, version, URL. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "chartref/chartref.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_order(const char *a_text, const char *b_text)
{
    struct semver a;
    struct semver b;
    if (!semver_parse(a_text, &a) || !semver_parse(b_text, &b)) {
        return;
    }
    must(semver_compare(&a, &a) == 0);
    must(semver_compare(&a, &b) == -semver_compare(&b, &a));
}

static void check_range(const char *text, const char *version)
{
    struct semver_range *r = NULL;
    struct err err = ERR_INIT;
    enum err_kind kind = semver_range_parse(text, &r, &err);
    must(kind == err.kind);
    must((kind == ERR_NONE) == (r != NULL));
    struct semver v;
    if (r != NULL && semver_parse(version, &v)) {
        bool matches = semver_range_matches(r, &v);
        /* One group more can only add versions. */
        _cleanup_(free_cstr)
        char *wider = xasprintf("%s||>=99", text);
        struct semver_range *w = NULL;
        struct err ignored = ERR_INIT;
        if (semver_range_parse(wider, &w, &ignored) == ERR_NONE) {
            must(!matches || semver_range_matches(w, &v));
        }
        semver_range_free(w);
    }
    semver_range_free(r);
    if (semver_is_exact(text)) {
        must(kind == ERR_NONE);
    }
}

static void check_url(const char *base, const char *href)
{
    _cleanup_(free_cstr)
    char *shown = url_redact(base);
    must(shown != NULL);
    _cleanup_(free_cstr)
    char *url = chart_url_resolve(base, href);
    _cleanup_(free_cstr)
    char *normal = chart_repository_normal(base, true);
    must(url == NULL || normal != NULL);
    if (url == NULL) {
        return;
    }
    _cleanup_(free_cstr)
    char *bare = url_without_userinfo(url);
    _cleanup_(free_cstr)
    char *none = bare == NULL ? NULL : url_userpwd(bare);
    must(bare != NULL && none == NULL);
    must(url_same_origin(url, bare));
    /* The repository's credentials are in the result only where they may go. */
    _cleanup_(free_cstr)
    char *own = url_userpwd(base);
    _cleanup_(free_cstr)
    char *sent = url_userpwd(url);
    if (own != NULL && sent != NULL && strcmp(own, sent) == 0 && strchr(href, '@') == NULL) {
        must(url_same_origin(base, url));
    }
    _cleanup_(free_cstr)
    char *again = chart_repository_normal(normal, true);
    must(again != NULL && strcmp(again, normal) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 20000) {
        return 0;
    }
    _cleanup_(free_cstr)
    char *text = xstrndup((const char *)data, strnlen((const char *)data, size));
    char *parts[4];
    char *at = text;
    for (size_t i = 0; i < 4; i++) {
        parts[i] = at;
        at += strcspn(at, "\n");
        if (*at != '\0' && i < 3) {
            *at = '\0';
            at++;
        }
    }
    check_range(parts[0], parts[1]);
    check_order(parts[1], parts[2]);
    check_url(parts[3], parts[0]);
    check_url(parts[0], parts[3]);
    return 0;
}
