/* What is desired: the chart that the spec means now, and its merged values. */
#include "worker/worker_internal.h"

#include <openssl/evp.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "chartref/chartref.h"
#include "values/values.h"
#include "yamlx/yamlx.h"

void inputs_release(struct worker *w, struct inputs *in)
{
    json_decref(in->values);
    json_decref(in->secret_values);
    chart_resolved_release(&in->resolved);
    if (in->archive.path != NULL) {
        chart_archive_release(w->options.charts, &in->archive);
    }
    *in = (struct inputs){0};
}

/* Standard base64 of a Secret's data into *ret (NUL-terminated); false if it is none. */
static bool decode_base64(const char *text, char **ret, size_t *ret_len)
{
    size_t len = strlen(text);
    if (len % 4 != 0 || len > 2 * LIMIT_VALUES_BYTES) {
        return false;
    }
    char *out = xmalloc(len / 4 * 3 + 1);
    int n = EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)text, (int)len);
    if (n < 0) {
        free(out);
        return false;
    }
    size_t pad = len >= 2 ? (size_t)(text[len - 1] == '=') + (size_t)(text[len - 2] == '=') : 0;
    *ret_len = (size_t)n - pad;
    out[*ret_len] = '\0';
    *ret = out;
    return true;
}

struct fetched {
    char *text;
    size_t len;
    bool missing; /* no such object or key */
};

static enum err_kind missing(struct fetched *ret, struct err *err, const char *fmt, const char *ns,
                             const char *name, const char *key)
{
    ret->missing = true;
    return err_set(err, ERR_NOT_FOUND, fmt, ns, name, key);
}

static enum err_kind fetch_object(struct worker *w, const struct hr_values_source *src,
                                  struct mono deadline, struct cancel *cancel, struct fetched *ret,
                                  struct err *err)
{
    bool secret = src->kind == HR_VALUES_SECRET;
    struct kube_reply reply = KUBE_REPLY_INIT;
    enum err_kind kind = kube_get(w->options.kube, secret ? &KUBE_SECRETS : &KUBE_CONFIGMAPS,
                                  src->ns, src->name, deadline, cancel, &reply, err);
    if (kind == ERR_NOT_FOUND) {
        return missing(ret, err,
                       secret ? "Secret %s/%s does not exist (key %s)"
                              : "ConfigMap %s/%s does not exist (key %s)",
                       src->ns, src->name, src->key);
    }
    if (kind) {
        return err_wrap(err, "read %s %s/%s", secret ? "Secret" : "ConfigMap", src->ns, src->name);
    }
    const char *text = json_string_value(json_object_get(jsonx_at(reply.object, "data"), src->key));
    if (text == NULL) {
        kind = missing(ret, err,
                       secret ? "Secret %s/%s has no key %s" : "ConfigMap %s/%s has no key %s",
                       src->ns, src->name, src->key);
    } else if (!secret) {
        ret->text = xstrdup(text);
        ret->len = strlen(text);
    } else if (!decode_base64(text, &ret->text, &ret->len)) {
        kind = err_set(err, ERR_INVALID, "Secret %s/%s, key %s: not base64", src->ns, src->name,
                       src->key);
    }
    kube_reply_release(&reply);
    return kind;
}

static enum err_kind fetch_url(struct worker *w, const struct hr_values_source *src,
                               struct mono deadline, struct cancel *cancel, struct fetched *ret,
                               struct err *err)
{
    struct http_request req = {.method = "GET",
                               .url = src->location,
                               .deadline = deadline,
                               .body_max = LIMIT_VALUES_BYTES,
                               .cancel = cancel,
                               .follow_redirects = true};
    struct http_response resp = HTTP_RESPONSE_INIT;
    if (transport_perform(w->options.fetch, &req, &resp, err)) {
        return err->kind;
    }
    enum err_kind kind = ERR_NONE;
    if (resp.status == 200) {
        ret->len = resp.body.len;
        ret->text = buf_take(&resp.body);
    } else {
        kind = err_set(err, resp.status == 404 ? ERR_NOT_FOUND : ERR_UNAVAILABLE,
                       "the server answered %d", resp.status);
        ret->missing = true;
    }
    http_response_release(&resp);
    return kind;
}

/* Where a source is, for messages: no content, no credentials. */
static char *source_name(const struct hr_values_source *src)
{
    switch (src->kind) {
    case HR_VALUES_CONFIGMAP:
        return xasprintf("ConfigMap %s/%s, key %s", src->ns, src->name, src->key);
    case HR_VALUES_SECRET:
        return xasprintf("Secret %s/%s, key %s", src->ns, src->name, src->key);
    case HR_VALUES_URL:
        return url_redact(src->location);
    case HR_VALUES_CHART_FILE:
        return xasprintf("chart file %s", src->location);
    }
    return xstrdup("values source");
}

static enum err_kind fetch_source(struct worker *w, const struct hr_values_source *src,
                                  struct mono deadline, struct cancel *cancel, struct fetched *ret,
                                  struct err *err)
{
    switch (src->kind) {
    case HR_VALUES_CONFIGMAP:
    case HR_VALUES_SECRET:
        return fetch_object(w, src, deadline, cancel, ret, err);
    case HR_VALUES_URL:
        return fetch_url(w, src, deadline, cancel, ret, err);
    case HR_VALUES_CHART_FILE:
        return err_set(err, ERR_INVALID, "chartFileRef works for git charts only");
    }
    return err_set(err, ERR_BUG, "a values source of no known kind");
}

/* One source into *ret: an object, or NULL if it may be skipped. helm-operator's rule (case 30):
 * optional forgives a missing object, a missing key and unreadable content; for a URL any failure;
 * never 403, 5xx or a timeout of the API. */
static enum err_kind read_source(struct worker *w, const struct hr_values_source *src,
                                 struct mono deadline, struct cancel *cancel, json_t **ret,
                                 struct err *err)
{
    struct fetched f = {0};
    struct err cause = ERR_INIT;
    json_t *tree = NULL;
    bool forgivable = false;
    if (fetch_source(w, src, deadline, cancel, &f, &cause)) {
        forgivable = f.missing || src->kind == HR_VALUES_URL || src->kind == HR_VALUES_CHART_FILE;
    } else if (yamlx_parse(f.text, f.len, &tree, &cause)) {
        forgivable = true;
    } else if (json_is_null(tree)) {
        json_decref(tree);
        tree = json_object();
    } else if (!json_is_object(tree)) {
        json_decref(take_ptr(&tree));
        err_set(&cause, ERR_INVALID, "the document is no map of values");
        forgivable = true;
    }
    free(f.text);
    if (cause.kind == ERR_NONE) {
        *ret = tree;
        return ERR_NONE;
    }
    if (cancel_is_raised(cancel)) {
        return err_set(err, ERR_CANCELLED, "stopped while reading values");
    }
    if (src->optional && forgivable) {
        *ret = NULL;
        return ERR_NONE;
    }
    *err = cause;
    _cleanup_(free_cstr)
    char *name = source_name(src);
    bool named = src->kind == HR_VALUES_CONFIGMAP || src->kind == HR_VALUES_SECRET;
    return f.missing && named ? err->kind : err_wrap(err, "values from %s", name);
}

enum err_kind inputs_values(struct worker *w, const struct hr *hr, struct mono deadline,
                            struct cancel *cancel, json_t **ret_values, json_t **ret_secret_values,
                            struct err *err)
{
    _cleanup_json_ json_t *values = json_object();
    _cleanup_json_ json_t *secrets = json_array();
    must(values != NULL && secrets != NULL);
    for (size_t i = 0; i < hr->spec.values_from_count; i++) {
        _cleanup_json_ json_t *tree = NULL;
        if (read_source(w, &hr->spec.values_from[i], deadline, cancel, &tree, err)) {
            return err->kind;
        }
        if (tree == NULL) {
            continue;
        }
        values_merge(values, tree);
        if (hr->spec.values_from[i].kind == HR_VALUES_SECRET) {
            must(json_array_append(secrets, tree) == 0);
        }
    }
    values_merge(values, hr->spec.values);
    *ret_values = take_ptr(&values);
    *ret_secret_values = take_ptr(&secrets);
    return ERR_NONE;
}

enum err_kind inputs_chart(struct worker *w, const struct hr *hr, struct mono fresh_after,
                           bool archive_too, struct mono deadline, struct cancel *cancel,
                           struct inputs *in, struct err *err)
{
    struct chart_ref ref = {.repository = hr->spec.chart_repository,
                            .name = hr->spec.chart_name,
                            .version = hr->spec.chart_version};
    if (in->resolved.version == NULL && charts_resolve(w->options.charts, &ref, fresh_after,
                                                       deadline, cancel, &in->resolved, err)) {
        return err->kind;
    }
    const struct hr_source *known = &hr->status.source;
    if (in->resolved.digest[0] != '\0') {
        (void)snprintf(in->chart_digest, sizeof(in->chart_digest), "%s", in->resolved.digest);
    } else if (!archive_too && known->digest != NULL &&
               text_eq(known->revision, in->resolved.version)) {
        (void)snprintf(in->chart_digest, sizeof(in->chart_digest), "%s", known->digest);
    }
    if (!archive_too && in->chart_digest[0] != '\0') {
        return ERR_NONE;
    }
    if (!archive_too) {
        return err_set(err, ERR_NOT_FOUND,
                       "the repository's index has no digest of this chart, and none is known yet");
    }
    if (in->archive.path == NULL &&
        charts_fetch(w->options.charts, &ref, &in->resolved, fresh_after, deadline, cancel,
                     &in->archive, err)) {
        return err->kind;
    }
    (void)snprintf(in->chart_digest, sizeof(in->chart_digest), "%s", in->archive.digest);
    return ERR_NONE;
}

void inputs_digest(const struct hr *hr, struct inputs *in)
{
    must(in->chart_digest[0] != '\0');
    release_digest(&hr->spec, in->chart_digest, in->values, in->digest);
}
