/* Whose is a release whose record names nobody? helm-operator marked the live objects:
 * helm.fluxcd.io/antecedent = NAMESPACE:helmrelease/NAME. If one of the first of them names another
 * HelmRelease, and that one exists, the release is that one's. */
#include "worker/worker_internal.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "manifest/manifest.h"

/* Objects that are looked at: the first may be gone, or be a person's. */
#define LOOKS_MAX 3

/* "NAMESPACE/NAME" of the antecedent that the object bears; NULL if it bears none. */
static char *antecedent_of(const json_t *live)
{
    const char *value = json_string_value(
        json_object_get(jsonx_at(live, "metadata.annotations"), ANNOTATION_ANTECEDENT));
    static const char middle[] = ":helmrelease/";
    const char *at = value != NULL ? strstr(value, middle) : NULL;
    if (at == NULL || at == value || at[strlen(middle)] == '\0') {
        return NULL;
    }
    return xasprintf("%.*s/%s", (int)(at - value), value, at + strlen(middle));
}

/* In doubt it does. */
static bool exists(struct sync *s, const char *key)
{
    const char *slash = strchr(key, '/');
    _cleanup_(free_cstr)
    char *ns = xstrndup(key, (size_t)(slash - key));
    struct kube_reply reply = KUBE_REPLY_INIT;
    struct err err = ERR_INIT;
    enum err_kind kind = kube_get(s->w->options.kube, &KUBE_HELMRELEASES, ns, slash + 1,
                                  mono_add_ms(clock_mono(s->w->options.clock), WORKER_READ_MS),
                                  held_cancel(s->held), &reply, &err);
    if (kind == ERR_NONE) {
        kube_reply_release(&reply);
    }
    return kind != ERR_NOT_FOUND;
}

static char *look(struct sync *s, const struct manifest *m)
{
    _cleanup_(free_cstr)
    char *own = xasprintf("%s/%s", s->hr->ns, s->hr->name);
    char *other = NULL;
    struct live live = live_begin(s);
    for (size_t i = 0; other == NULL && i < m->count && i < LOOKS_MAX; i++) {
        struct err ignored = ERR_INIT;
        bool namespaced = false;
        _cleanup_json_ json_t *object = NULL;
        _cleanup_(free_cstr)
        char *path = live_path(&live, &m->objects[i], &namespaced, &ignored);
        if (path == NULL ||
            live_ask(&live, "GET", path, KUBE_ACCEPT_METADATA, NULL, &object, &ignored)) {
            log_debug("owner", "an object of the release cannot be looked at",
                      LOG_S("err", ignored.msg));
            continue;
        }
        other = antecedent_of(object);
        if (other != NULL && (strcmp(other, own) == 0 || !exists(s, other))) {
            free(take_ptr(&other));
        }
    }
    live_end(&live);
    return other;
}

char *sync_antecedent(struct sync *s)
{
    struct helmrec_payload *payload = NULL;
    struct manifest m = MANIFEST_INIT;
    struct err err = ERR_INIT;
    char *other = NULL;
    enum err_kind kind = records_payload(
        s->w, s->newest, mono_add_ms(clock_mono(s->w->options.clock), WORKER_READ_MS),
        held_cancel(s->held), &payload, &err);
    if (kind == ERR_NONE) {
        kind = manifest_parse(payload->manifest, &m, &err);
        helmrec_payload_free(payload);
    }
    if (kind == ERR_NONE) {
        other = look(s, &m);
        manifest_release(&m);
    } else {
        log_debug("owner", "the release's manifest cannot be read", LOG_S("err", err.msg));
    }
    return other;
}
