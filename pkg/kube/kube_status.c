/* What replies mean (api-conventions.md, "HTTP Status codes" and "Response Status Kind"). */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "kube/kube_wire.h"

/* A Status quotes the object that it refuses; this much of it helps. */
#define STATUS_MESSAGE_BYTES_MAX 900
#define RETRY_AFTER_S_MAX        INT64_C(3600)

static enum err_kind kind_of(int status, const char *reason, bool is_write)
{
    switch (status) {
    case 401:
    case 403:
        return ERR_DENIED;
    case 404:
        return ERR_NOT_FOUND;
    case 409:
        return strcmp(reason, "AlreadyExists") == 0 ? ERR_EXISTS : ERR_CONFLICT;
    case 410:
        return ERR_GONE;
    case 429:
        return ERR_THROTTLED;
    default:
        break;
    }
    /* 408: something before the API server gave up; what became of the request is not said. A 3xx
     * comes from no API server either, but whoever sent it did not carry the request out. */
    if (status >= 500 || status == 408) {
        return is_write ? ERR_UNKNOWN_OUTCOME : ERR_UNAVAILABLE;
    }
    return status >= 400 ? ERR_INVALID : ERR_UNAVAILABLE;
}

/* Retry-After is seconds or a date; a date is measured against the reply's own Date, so no clock of
 * ours takes part. */
static int64_t retry_after_ms(const struct http_response *http, const json_t *status)
{
    int64_t s = 0, at_ns, date_ns;
    if (text_to_int64(http->retry_after, 0, INT32_MAX, &s)) {
        s = s < RETRY_AFTER_S_MAX ? s : RETRY_AFTER_S_MAX;
    } else if (httpdate_parse(http->retry_after, &at_ns) && httpdate_parse(http->date, &date_ns)) {
        s = at_ns > date_ns ? (at_ns - date_ns) / NS_PER_SEC : 0;
    } else {
        s = jsonx_int(status, "details.retryAfterSeconds", 0);
    }
    s = s > 0 ? s : 0;
    return (s < RETRY_AFTER_S_MAX ? s : RETRY_AFTER_S_MAX) * 1000;
}

static enum err_kind refuse(const struct kube_request *req, const struct http_response *http,
                            struct err *err)
{
    _cleanup_json_ json_t *status = NULL;
    struct err parse = ERR_INIT; /* a body that is no Status says nothing, which is said below */
    if (jsonx_parse(buf_str(&http->body), http->body.len, &status, &parse) != ERR_NONE ||
        !text_eq(jsonx_str(status, "kind", NULL), "Status")) {
        jsonx_decref_ptr(&status);
        status = NULL;
    }
    const char *message = jsonx_str(status, "message", "");
    const char *reason = jsonx_str(status, "reason", "");
    enum err_kind kind = kind_of(http->status, reason, kube_is_write(req->method));
    if (message[0] != '\0') {
        _cleanup_(free_cstr)
        char *clean = text_clean(message, strlen(message), STATUS_MESSAGE_BYTES_MAX);
        (void)err_set(err, kind, "%s", clean);
    } else {
        (void)err_set(err, kind, "the server answered HTTP %d without saying why", http->status);
        if (http->status == 404 && req->gvr != NULL && req->gvr->group[0] != '\0') {
            /* A missing object comes with a Status; without one it is the kind that is not served.
             */
            err_hint(
                err,
                "the server does not know %s.%s/%s: is the CustomResourceDefinition installed?",
                req->gvr->resource, req->gvr->group, req->gvr->version);
        }
    }
    err->code = http->status;
    err->retry_after_ms = retry_after_ms(http, status);
    return kind;
}

/* A 2xx whose body is not what was asked for. A write has happened all the same, or may have. */
static enum err_kind unusable(const struct kube_request *req, struct err *err)
{
    if (kube_is_write(req->method)) {
        err->kind = ERR_UNKNOWN_OUTCOME;
    }
    return err->kind;
}

static size_t skip_string(const char *text, size_t len, size_t at)
{
    for (at++; at < len && text[at] != '"'; at++) {
        at += text[at] == '\\' ? 1 : 0;
    }
    return at + 1;
}

bool kube_text_kind(const char *text, size_t len, char *out, size_t cap)
{
    int depth = 0;
    bool at_key = false; /* a string that starts here is a key of the top-level object */
    for (size_t i = 0; i < len;) {
        char ch = text[i];
        if (ch == '"') {
            size_t end = skip_string(text, len, i);
            bool is_kind =
                at_key && end <= len && end - i == 6 && memcmp(text + i, "\"kind\"", 6) == 0;
            at_key = false;
            i = end;
            while (is_kind && i < len && strchr(" \t\r\n:", text[i]) != NULL) {
                i++;
            }
            size_t value_end = is_kind && i < len && text[i] == '"' ? skip_string(text, len, i) : 0;
            if (value_end != 0 && value_end <= len) {
                size_t n = value_end - i - 2 < cap - 1 ? value_end - i - 2 : cap - 1;
                memcpy(out, text + i + 1, n);
                out[n] = '\0';
                return true;
            }
            continue;
        }
        depth += ch == '{' || ch == '[' ? 1 : ch == '}' || ch == ']' ? -1 : 0;
        at_key =
            depth == 1 && (ch == '{' || ch == ',') ? true : at_key && strchr(" \t\r\n", ch) != NULL;
        i++;
    }
    return false;
}

/* There is one Accept type and no fallback, so another kind means that payloads are coming: refuse
 * before anybody reads them (a list of Secrets would be all of their data). */
static enum err_kind check_metadata(const struct kube_request *req,
                                    const struct http_response *http, struct err *err)
{
    if (req->accept == NULL || strstr(req->accept, "as=PartialObjectMetadata") == NULL) {
        return ERR_NONE;
    }
    char kind[64] = "";
    (void)kube_text_kind(buf_str(&http->body), http->body.len, kind, sizeof(kind));
    const char *wanted = strstr(req->accept, "as=PartialObjectMetadataList") != NULL
                             ? "PartialObjectMetadataList"
                             : "PartialObjectMetadata";
    if (strcmp(kind, wanted) == 0) {
        return ERR_NONE;
    }
    return err_set(err, ERR_INVALID,
                   "the server answered with another kind than the %s that was asked for", wanted);
}

enum err_kind kube_judge(const struct kube_request *req, struct http_response *http,
                         struct kube_reply *ret, struct err *err)
{
    if (http->status / 100 != 2) {
        return refuse(req, http, err);
    }
    struct kube_reply reply = {.status = http->status};
    if (req->on_data == NULL) {
        if (check_metadata(req, http, err) != ERR_NONE) {
            return unusable(req, err);
        }
        if (req->raw_body) {
            reply.text_len = http->body.len;
            reply.text = buf_take(&http->body);
        } else if (http->body.len > 0 && jsonx_parse(buf_str(&http->body), http->body.len,
                                                     &reply.object, err) != ERR_NONE) {
            (void)err_wrap(err, "the server's reply");
            return unusable(req, err);
        }
    }
    *ret = reply;
    return ERR_NONE;
}
