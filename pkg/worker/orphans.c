/* What only a broken revision made. helm compares a new revision with the last deployed one; an
 * object that a revision in between has made, and that died before it was deployed, is in neither,
 * and stays for ever. So after an upgrade over revisions that belay has marked failed, their
 * objects that the new one does not have are deleted: those that bear helm's mark of this release,
 * do not ask to be kept, and did not exist before the broken revision did. Each is deleted as it
 * was looked at (uid and resourceVersion), under a lock that was certainly ours a second ago.
 *
 * A crash in between loses nothing: Released stays Unknown then, the next holder syncs, finds the
 * record without its mark orphans-gone, and goes on here. */
#include "worker/worker_internal.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "manifest/manifest.h"

#define RELEASE_NAME_ANNOTATION "meta.helm.sh/release-name"
#define RELEASE_NS_ANNOTATION   "meta.helm.sh/release-namespace"
/* Two API servers' clocks may differ by so much, and each stamps what it creates. */
#define CLOCKS_DIFFER_MS INT64_C(2000)

struct cleaner {
    struct sync *s;
    struct live live;
    struct manifest stays; /* of the newest record */
    struct mono confirmed; /* when the lock was last asked for and was ours; zero: not yet */
    int64_t deleted, failed;
    struct err why; /* of the last failure */
};

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
    return live_ask(&c->live, "DELETE", path, NULL, options, NULL, err);
}

/* Did it exist before the revision that is said to have made it? */
static bool is_older(const json_t *live, const struct helmrec_meta *record)
{
    int64_t created_ns = 0;
    return record->created_ns == INT64_MIN ||
           !rfc3339_parse(jsonx_str(live, "metadata.creationTimestamp", ""), &created_ns) ||
           created_ns < ns_add_ms(record->created_ns, -CLOCKS_DIFFER_MS);
}

/* With these go objects of others; a person has to see to them. */
static bool takes_others_along(const struct manifest_object *o)
{
    return strcmp(o->kind, "Namespace") == 0 || strcmp(o->kind, "CustomResourceDefinition") == 0;
}

/* Another holder may have upgraded meanwhile, and made the object its own without changing it. */
static enum err_kind confirm_lock(struct cleaner *c, struct err *err)
{
    struct mono now = clock_mono(c->s->w->options.clock);
    bool fresh =
        c->confirmed.ns != 0 && mono_before(now, mono_add_ms(c->confirmed, FENCE_FRESH_MS));
    return fresh ? ERR_NONE : held_confirm(c->s->held, &c->confirmed, err);
}

/* o of record, which the newest revision may have all the same. */
static enum err_kind delete_object(struct cleaner *c, const struct helmrec_meta *record,
                                   const struct manifest_object *o, struct err *err)
{
    const char *target_ns = c->s->hr->spec.target_ns;
    if (manifest_has(&c->stays, o, target_ns)) {
        return ERR_NONE;
    }
    bool namespaced = true;
    _cleanup_(free_cstr)
    char *path = live_path(&c->live, o, &namespaced, err);
    if (path != NULL && !namespaced && manifest_has(&c->stays, o, NULL)) {
        return ERR_NONE;
    }
    _cleanup_json_ json_t *live = NULL;
    if (path == NULL || live_ask(&c->live, "GET", path, KUBE_ACCEPT_METADATA, NULL, &live, err)) {
        return err->kind == ERR_NOT_FOUND ? ERR_NONE : err->kind;
    }
    if (!is_of_release(c, live) || manifest_is_kept(live) || is_older(live, record) ||
        jsonx_str(live, "metadata.deletionTimestamp", NULL) != NULL) {
        return ERR_NONE;
    }
    if (takes_others_along(o)) {
        log_warn("sync", "an object that only a broken revision had made is left to a person",
                 LOG_S("path", path));
        return ERR_NONE;
    }
    if (confirm_lock(c, err)) {
        return err->kind;
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
        err = (struct err)ERR_INIT;
        if (!o->keep && delete_object(c, record, o, &err)) {
            note_failure(c, &err);
        }
    }
    manifest_release(&broken);
    if (c->failed == failed_before && !held_is_lost(c->s->held) && mark_clean(c, record, &err)) {
        note_failure(c, &err);
    }
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
    for (size_t i = 0; i < s->older.count; i++) {
        needed = needed || needs_cleaning(s->older.items[i]);
    }
    if (!needed || s->newest == NULL || s->newest->status != HELMREC_DEPLOYED) {
        return;
    }
    struct cleaner c = {.s = s, .live = live_begin(s)};
    struct err err = ERR_INIT;
    if (read_manifest(&c, s->newest, &c.stays, &err)) {
        note_failure(&c, &err);
    } else {
        for (size_t i = 0; i < s->older.count; i++) {
            if (needs_cleaning(s->older.items[i])) {
                clean_record(&c, s->older.items[i]);
            }
        }
    }
    s->wrote.deleted += c.deleted;
    tell(&c);
    manifest_release(&c.stays);
    live_end(&c.live);
}
