/* What only a broken revision made. helm compares a new revision with the last deployed one; an
 * object that a revision in between has made, and that died before it was deployed, is in neither,
 * and stays for ever. So after an upgrade over revisions that belay has marked failed, their
 * objects that the new one does not have are deleted.
 *
 * A crash in between loses nothing: Released stays Unknown then, the next holder syncs, finds the
 * record without its mark orphans-gone, and goes on here. */
#include "worker/worker_internal.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/strmap.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "manifest/manifest.h"

#define RELEASE_NAME_ANNOTATION "meta.helm.sh/release-name"
#define RELEASE_NS_ANNOTATION   "meta.helm.sh/release-namespace"

struct cleaner {
    struct sync *s;
    struct manifest stays;   /* of the newest record */
    struct strmap resources; /* apiVersion -> json_t *: its APIResourceList */
    int64_t deleted, failed;
    struct err why; /* of the last failure */
};

static void decref(void *j)
{
    json_decref(j);
}

static enum err_kind ask(struct cleaner *c, const char *method, const char *path,
                         const char *accept, const json_t *body, json_t **ret, struct err *err)
{
    struct worker *w = c->s->w;
    struct mono soon = mono_add_ms(clock_mono(w->options.clock), WORKER_READ_MS);
    struct kube_request req = {.method = method,
                               .raw_path = path,
                               .accept = accept,
                               .body = body,
                               .deadline = mono_min(soon, held_deadline(c->s->held)),
                               .cancel = held_lost(c->s->held)};
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

/* "/api/v1" or "/apis/GROUP/VERSION" */
static char *root_of(const char *api_version)
{
    return xasprintf("%s/%s", strchr(api_version, '/') != NULL ? "/apis" : "/api", api_version);
}

/* The path of an object in the API; NULL with *err if its kind is not served (NOT_FOUND: then there
 * is no such object either). */
static char *path_of(struct cleaner *c, const struct manifest_object *o, struct err *err)
{
    _cleanup_(free_cstr)
    char *root = root_of(o->api_version);
    json_t *list = strmap_get(&c->resources, o->api_version);
    if (list == NULL) {
        if (ask(c, "GET", root, NULL, NULL, &list, err)) {
            return NULL;
        }
        strmap_put(&c->resources, o->api_version, list);
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
        if (jsonx_bool(resource, "namespaced", false)) {
            buf_add_str(&path, "/namespaces/");
            buf_add_uri(&path, o->ns[0] != '\0' ? o->ns : c->s->hr->spec.target_ns);
        }
        buf_addf(&path, "/%s/", plural);
        buf_add_uri(&path, o->name);
        return buf_take(&path);
    }
    err_set(err, ERR_NOT_FOUND, "%s has no kind %s", o->api_version, o->kind);
    return NULL;
}

/* Helm marks what is a release's; anything else only has the name. */
static bool is_of_release(const struct cleaner *c, const json_t *live)
{
    const json_t *notes = jsonx_at(live, "metadata.annotations");
    const struct hr_spec *spec = &c->s->hr->spec;
    return text_eq(json_string_value(json_object_get(notes, RELEASE_NAME_ANNOTATION)),
                   spec->release_name) &&
           text_eq(json_string_value(json_object_get(notes, RELEASE_NS_ANNOTATION)),
                   spec->target_ns);
}

/* Delete exactly the object that was looked at. */
static enum err_kind delete_live(struct cleaner *c, const char *path, const json_t *live,
                                 struct err *err)
{
    _cleanup_json_ json_t *options =
        json_pack("{s:s, s:s, s:s, s:{s:s, s:s}}", "apiVersion", "v1", "kind", "DeleteOptions",
                  "propagationPolicy", "Background", "preconditions", "uid",
                  jsonx_str(live, "metadata.uid", ""), "resourceVersion",
                  jsonx_str(live, "metadata.resourceVersion", ""));
    must(options != NULL);
    return ask(c, "DELETE", path, NULL, options, NULL, err);
}

static enum err_kind delete_object(struct cleaner *c, const struct manifest_object *o,
                                   struct err *err)
{
    _cleanup_(free_cstr)
    char *path = path_of(c, o, err);
    _cleanup_json_ json_t *live = NULL;
    if (path == NULL || ask(c, "GET", path, KUBE_ACCEPT_METADATA, NULL, &live, err)) {
        return err->kind == ERR_NOT_FOUND ? ERR_NONE : err->kind;
    }
    if (!is_of_release(c, live) || jsonx_str(live, "metadata.deletionTimestamp", NULL) != NULL) {
        return ERR_NONE;
    }
    if (delete_live(c, path, live, err)) {
        return err->kind == ERR_NOT_FOUND ? ERR_NONE : err->kind;
    }
    c->deleted++;
    log_info("sync", "deleted an object that only a broken revision had made", LOG_S("path", path));
    return ERR_NONE;
}

static enum err_kind read_manifest(struct cleaner *c, const struct helmrec_meta *record,
                                   struct manifest *ret, struct err *err)
{
    struct helmrec_payload *payload = NULL;
    struct worker *w = c->s->w;
    if (records_payload(w, record, mono_add_ms(clock_mono(w->options.clock), WORKER_READ_MS),
                        held_lost(c->s->held), &payload, err)) {
        return err->kind;
    }
    enum err_kind kind = manifest_parse(payload->manifest, ret, err);
    helmrec_payload_free(payload);
    return kind;
}

/* The record's objects are dealt with. */
static enum err_kind mark_clean(struct cleaner *c, const struct helmrec_meta *record,
                                struct err *err)
{
    _cleanup_(free_cstr)
    char *path = xasprintf("/api/v1/namespaces/%s/secrets/%s", record->ns, record->secret_name);
    _cleanup_json_ json_t *body =
        json_pack("{s:{s:s, s:{s:s}}}", "metadata", "resourceVersion", record->resource_version,
                  "annotations", HELMREC_ANNOTATION_ORPHANS_GONE, "true");
    must(body != NULL);
    struct worker *w = c->s->w;
    struct mono soon = mono_add_ms(clock_mono(w->options.clock), WORKER_READ_MS);
    struct kube_request req = {.method = "PATCH",
                               .raw_path = path,
                               .query = "fieldManager=belay",
                               .body = body,
                               .content_type = KUBE_MERGE_PATCH,
                               .accept = KUBE_ACCEPT_METADATA,
                               .deadline = mono_min(soon, held_deadline(c->s->held)),
                               .cancel = held_lost(c->s->held)};
    struct kube_reply reply = KUBE_REPLY_INIT;
    if (kube_do(w->options.kube, &req, &reply, err)) {
        return err->kind;
    }
    kube_reply_release(&reply);
    return ERR_NONE;
}

static void note_failure(struct cleaner *c, const struct err *err)
{
    c->failed++;
    c->why = *err;
}

static void clean_record(struct cleaner *c, const struct helmrec_meta *record)
{
    struct manifest broken = MANIFEST_INIT;
    struct err err = ERR_INIT;
    int64_t failed_before = c->failed;
    if (read_manifest(c, record, &broken, &err)) {
        note_failure(c, &err);
        return;
    }
    for (size_t i = 0; i < broken.count && !held_is_lost(c->s->held); i++) {
        const struct manifest_object *o = &broken.objects[i];
        if (o->keep || manifest_has(&c->stays, o, c->s->hr->spec.target_ns)) {
            continue;
        }
        err = (struct err)ERR_INIT;
        if (delete_object(c, o, &err)) {
            note_failure(c, &err);
        }
    }
    manifest_release(&broken);
    if (c->failed == failed_before && !held_is_lost(c->s->held) && mark_clean(c, record, &err)) {
        note_failure(c, &err);
    }
}

static const struct helmrec_meta *record_before(const struct sync *s, int64_t revision)
{
    const struct helmrec_meta *found = NULL;
    for (size_t i = 0; i < s->older.count; i++) {
        const struct helmrec_meta *m = s->older.items[i];
        if (m->revision < revision && (found == NULL || m->revision > found->revision)) {
            found = m;
        }
    }
    return found;
}

static bool needs_cleaning(const struct helmrec_meta *m)
{
    return m->repaired && !m->orphans_gone;
}

static void tell(const struct cleaner *c)
{
    struct sync *s = c->s;
    if (c->failed == 0) {
        return;
    }
    log_warn("sync", "objects of a broken revision could not be deleted",
             LOG_I("objects", c->failed), LOG_S("err", c->why.msg));
    _cleanup_(free_cstr)
    char *note = xasprintf("objects that only a broken revision of release '%s' had made could not "
                           "be deleted: %s",
                           s->hr->spec.release_name, c->why.msg);
    event_emit(s->w->options.events, &(struct event){.ns = s->hr->ns,
                                                     .name = s->hr->name,
                                                     .uid = s->hr->uid,
                                                     .resource_version = s->hr->resource_version,
                                                     .warning = true,
                                                     .reason = "OrphansLeft",
                                                     .action = "Repair",
                                                     .note = note});
}

void sync_clean_orphans(struct sync *s)
{
    bool needed = false;
    const struct helmrec_meta *m = s->newest;
    bool deployed = m != NULL && m->status == HELMREC_DEPLOYED;
    while (deployed && (m = record_before(s, m->revision)) != NULL && m->status == HELMREC_FAILED) {
        needed = needed || needs_cleaning(m);
    }
    if (!needed) {
        return;
    }
    struct cleaner c = {.s = s, .resources = {.free_value = decref}};
    struct err err = ERR_INIT;
    if (read_manifest(&c, s->newest, &c.stays, &err)) {
        note_failure(&c, &err);
    } else {
        m = s->newest;
        while ((m = record_before(s, m->revision)) != NULL && m->status == HELMREC_FAILED) {
            if (needs_cleaning(m)) {
                clean_record(&c, m);
            }
        }
    }
    s->wrote.deleted += c.deleted;
    tell(&c);
    manifest_release(&c.stays);
    strmap_release(&c.resources);
}
