#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/must.h"
#include "kube/kube_wire.h"

#define URL_BYTES_MAX 16384

const struct kube_gvr KUBE_HELMRELEASES = {"helm.fluxcd.io", "v1", "helmreleases", true};
const struct kube_gvr KUBE_SECRETS = {"", "v1", "secrets", true};
const struct kube_gvr KUBE_CONFIGMAPS = {"", "v1", "configmaps", true};
const struct kube_gvr KUBE_EVENTS = {"events.k8s.io", "v1", "events", true};
const struct kube_gvr KUBE_CRDS = {"apiextensions.k8s.io", "v1", "customresourcedefinitions",
                                   false};
const struct kube_gvr KUBE_NAMESPACES = {"", "v1", "namespaces", false};
const struct kube_gvr KUBE_LEASES = {"coordination.k8s.io", "v1", "leases", true};

bool kube_is_write(const char *method)
{
    return strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0;
}

/* "/segment", percent-encoded. Dots are unreserved, but "." and ".." would address something else.
 */
static bool add_segment(struct buf *b, const char *segment)
{
    buf_add_char(b, '/');
    buf_add_uri(b, segment);
    return segment[0] != '\0' && strcmp(segment, ".") != 0 && strcmp(segment, "..") != 0;
}

static bool add_path(struct buf *b, const struct kube_request *req)
{
    const struct kube_gvr *gvr = req->gvr;
    bool ok = true;
    if (gvr->group[0] == '\0') {
        buf_add_str(b, "/api");
    } else {
        buf_add_str(b, "/apis");
        ok = add_segment(b, gvr->group);
    }
    ok = add_segment(b, gvr->version) && ok;
    if (gvr->namespaced && req->ns != NULL && req->ns[0] != '\0') {
        buf_add_str(b, "/namespaces");
        ok = add_segment(b, req->ns) && ok;
    }
    ok = add_segment(b, gvr->resource) && ok;
    if (req->name != NULL) {
        ok = add_segment(b, req->name) && ok;
    }
    if (req->subresource != NULL) {
        must(req->name != NULL);
        ok = add_segment(b, req->subresource) && ok;
    }
    return ok;
}

enum err_kind kube_url(const char *server, const struct kube_request *req, char **ret,
                       struct err *err)
{
    must((req->gvr == NULL) != (req->raw_path == NULL));
    _cleanup_(buf_release)
    struct buf b = BUF_INIT(URL_BYTES_MAX);
    buf_add_str(&b, server);
    bool ok = true;
    if (req->raw_path != NULL) {
        must(req->raw_path[0] == '/');
        buf_add_str(&b, req->raw_path);
    } else {
        must(req->gvr->namespaced || req->ns == NULL || req->ns[0] == '\0');
        /* One object of a namespaced kind has a namespace; without it the path would be another
         * one's. */
        ok = req->name == NULL || !req->gvr->namespaced || (req->ns != NULL && req->ns[0] != '\0');
        ok = add_path(&b, req) && ok;
    }
    if (req->query != NULL && req->query[0] != '\0') {
        buf_add_char(&b, '?');
        buf_add_str(&b, req->query);
    }
    if (!ok || b.overflow) {
        return err_set(err, ERR_INVALID, "no such object: namespace \"%.300s\", name \"%.300s\"",
                       req->ns != NULL ? req->ns : "", req->name != NULL ? req->name : "");
    }
    *ret = buf_take(&b);
    return ERR_NONE;
}
