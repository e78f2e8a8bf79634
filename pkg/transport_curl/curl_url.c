#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "transport_curl/curl_setup.h"

/* A part as a string of our own; NULL if there is none. */
static char *url_part(CURLU *u, CURLUPart part, unsigned flags)
{
    char *text = NULL;
    if (curl_url_get(u, part, &text, flags) != CURLUE_OK) {
        return NULL;
    }
    char *own = xstrdup(text);
    curl_free(text);
    return own;
}

static char *without_brackets(char *host)
{
    size_t len = host != NULL ? strlen(host) : 0;
    if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
        memmove(host, host + 1, len - 2);
        host[len - 2] = '\0';
    }
    return host;
}

static char *take_userinfo(CURLU *u)
{
    _cleanup_(free_cstr)
    char *user = url_part(u, CURLUPART_USER, CURLU_URLDECODE);
    _cleanup_(free_cstr)
    char *password = url_part(u, CURLUPART_PASSWORD, CURLU_URLDECODE);
    bool any = user != NULL || password != NULL;
    (void)curl_url_set(u, CURLUPART_USER, NULL, 0);
    (void)curl_url_set(u, CURLUPART_PASSWORD, NULL, 0);
    return any ? xasprintf("%s:%s", user != NULL ? user : "", password != NULL ? password : "")
               : NULL;
}

static char *shown_form(CURLU *u)
{
    CURLU *copy = curl_url_dup(u);
    if (copy == NULL) {
        return NULL;
    }
    (void)curl_url_set(copy, CURLUPART_QUERY, NULL, 0);
    char *shown = url_part(copy, CURLUPART_URL, 0);
    curl_url_cleanup(copy);
    if (shown == NULL) {
        return NULL;
    }
    /* Our own text is short; a URL from outside need not be. */
    char *clean = text_clean(shown, strlen(shown), 256);
    free(shown);
    return clean;
}

static const char *fill(CURLU *u, bool from_redirect, struct call_url *ret)
{
    ret->userpwd = take_userinfo(u);
    if (from_redirect) {
        free_cstr(&ret->userpwd);
    }
    (void)curl_url_set(u, CURLUPART_FRAGMENT, NULL, 0);
    ret->whole = url_part(u, CURLUPART_URL, 0);
    ret->shown = shown_form(u);
    ret->scheme = url_part(u, CURLUPART_SCHEME, 0);
    ret->host = without_brackets(url_part(u, CURLUPART_HOST, 0));
    ret->port = url_part(u, CURLUPART_PORT, CURLU_DEFAULT_PORT);
    if (ret->whole == NULL || ret->shown == NULL || ret->scheme == NULL || ret->host == NULL ||
        ret->port == NULL || ret->host[0] == '\0') {
        return "not an absolute http or https URL";
    }
    if (strcmp(ret->scheme, "http") != 0 && strcmp(ret->scheme, "https") != 0) {
        return "only http and https URLs are understood";
    }
    return NULL;
}

const char *call_url_parse(const char *url, const char *base, struct call_url *ret)
{
    *ret = (struct call_url){0};
    CURLU *u = curl_url();
    const char *why = NULL;
    if (u == NULL || (base != NULL && curl_url_set(u, CURLUPART_URL, base, 0) != CURLUE_OK) ||
        curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK) {
        why = "not an absolute http or https URL";
    } else {
        why = fill(u, base != NULL, ret);
    }
    curl_url_cleanup(u);
    if (why != NULL) {
        call_url_release(ret);
    }
    return why;
}

static char *copy_or_null(const char *s)
{
    return s != NULL ? xstrdup(s) : NULL;
}

void call_url_copy(const struct call_url *from, struct call_url *to)
{
    *to = (struct call_url){.whole = copy_or_null(from->whole),
                            .shown = copy_or_null(from->shown),
                            .scheme = copy_or_null(from->scheme),
                            .host = copy_or_null(from->host),
                            .port = copy_or_null(from->port),
                            .userpwd = copy_or_null(from->userpwd)};
}

void call_url_release(struct call_url *u)
{
    free(u->whole);
    free(u->shown);
    free(u->scheme);
    free(u->host);
    free(u->port);
    free(u->userpwd);
    *u = (struct call_url){0};
}

bool call_url_same_origin(const struct call_url *a, const struct call_url *b)
{
    return strcmp(a->scheme, b->scheme) == 0 && strcasecmp(a->host, b->host) == 0 &&
           strcmp(a->port, b->port) == 0;
}
