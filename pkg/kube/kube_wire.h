/* Between a kube_request and the wire: paths, and what a reply means. For this package's files
 * only. Pure. */
#ifndef BELAY_KUBE_KUBE_WIRE_H
#define BELAY_KUBE_KUBE_WIRE_H

#include "kube/kube.h"

bool kube_is_write(const char *method);

/* server + path + query. ERR_INVALID for a name that is no path segment ("", ".", ".."). Owner: the
 * caller. */
enum err_kind kube_url(const char *server, const struct kube_request *req, char **ret,
                       struct err *err) MUST_CHECK;

/* What a complete HTTP reply means: ERR_NONE for 2xx, and *ret is filled (object or text); else the
 * error kinds of kube.h. The times and Date of *ret are the caller's. */
enum err_kind kube_judge(const struct kube_request *req, struct http_response *http,
                         struct kube_reply *ret, struct err *err) MUST_CHECK;

/* The value of the top-level "kind" of a JSON object's text, without parsing it: into out (cut at
 * cap), false if there is none or the text ends before. */
bool kube_text_kind(const char *text, size_t len, char *out, size_t cap);

#endif
