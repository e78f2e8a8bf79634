/* Objects of a manifest as the API serves them: which path a kind has, and one request to it. */
#include "worker/worker_internal.h"

#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

static void decref(void *j)
{
    json_decref(j);
}

struct live live_begin(struct sync *s)
{
    return (struct live){.s = s, .resources = {.free_value = decref}};
}

void live_end(struct live *l)
{
    strmap_release(&l->resources);
}

enum err_kind live_ask(struct live *l, const char *method, const char *path, const char *accept,
                       const json_t *body, json_t **ret, struct err *err)
{
    struct worker *w = l->s->w;
    struct mono soon = mono_add_ms(clock_mono(w->options.clock), WORKER_READ_MS);
    struct kube_request req = {.method = method,
                               .raw_path = path,
                               .accept = accept,
                               .body = body,
                               .deadline = mono_min(soon, held_deadline(l->s->held)),
                               .cancel = held_lost(l->s->held)};
    struct kube_reply reply = KUBE_REPLY_INIT;
    if (kube_do(w->options.kube, &req, &reply, err)) {
        return err->kind;
    }
    if (ret != NULL) {
        *ret = json_incref(reply.object);
    }
    kube_reply_release(&reply);
    return ERR_NONE;
}

/* VERSION or GROUP/VERSION, and nothing that would lead elsewhere in a path. */
static bool is_api_version(const char *text)
{
    static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.";
    size_t len = strspn(text, legal);
    const char *version = text[len] == '/' ? text + len + 1 : text;
    return len > 0 && text[0] != '.' && version[0] != '.' && version[0] != '\0' &&
           version[strspn(version, legal)] == '\0';
}

/* "/api/v1" or "/apis/GROUP/VERSION" */
static char *root_of(const char *api_version)
{
    return xasprintf("%s/%s", strchr(api_version, '/') != NULL ? "/apis" : "/api", api_version);
}

char *live_path(struct live *l, const struct manifest_object *o, bool *ret_namespaced,
                struct err *err)
{
    if (!is_api_version(o->api_version)) {
        err_set(err, ERR_NOT_FOUND, "\"%.100s\" is no apiVersion", o->api_version);
        return NULL;
    }
    _cleanup_(free_cstr)
    char *root = root_of(o->api_version);
    json_t *list = strmap_get(&l->resources, o->api_version);
    if (list == NULL) {
        if (live_ask(l, "GET", root, NULL, NULL, &list, err)) {
            return NULL;
        }
        strmap_put(&l->resources, o->api_version, list);
    }
    size_t i;
    const json_t *resource;
    json_array_foreach(jsonx_at(list, "resources"), i, resource)
    {
        const char *plural = jsonx_str(resource, "name", "/");
        if (strchr(plural, '/') != NULL || !text_eq(jsonx_str(resource, "kind", ""), o->kind)) {
            continue;
        }
        struct buf path = BUF_INIT(4096);
        buf_add_str(&path, root);
        *ret_namespaced = jsonx_bool(resource, "namespaced", false);
        if (*ret_namespaced) {
            buf_add_str(&path, "/namespaces/");
            buf_add_uri(&path, o->ns[0] != '\0' ? o->ns : l->s->hr->spec.target_ns);
        }
        buf_addf(&path, "/%s/", plural);
        buf_add_uri(&path, o->name);
        return buf_take(&path);
    }
    err_set(err, ERR_NOT_FOUND, "%s has no kind %s", o->api_version, o->kind);
    return NULL;
}
