#include "helmrec/helmrec.h"

#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "timeval/timeval.h"

#define NAME_PREFIX "sh.helm.release.v1."

static const char *const status_names[] = {
    [HELMREC_UNKNOWN] = "unknown",
    [HELMREC_DEPLOYED] = "deployed",
    [HELMREC_UNINSTALLED] = "uninstalled",
    [HELMREC_SUPERSEDED] = "superseded",
    [HELMREC_FAILED] = "failed",
    [HELMREC_UNINSTALLING] = "uninstalling",
    [HELMREC_PENDING_INSTALL] = "pending-install",
    [HELMREC_PENDING_UPGRADE] = "pending-upgrade",
    [HELMREC_PENDING_ROLLBACK] = "pending-rollback",
};

const char *helmrec_status_name(enum helmrec_status s)
{
    return status_names[s];
}

enum helmrec_status helmrec_status_of(const char *word)
{
    for (size_t i = 0; word != NULL && i < sizeof(status_names) / sizeof(status_names[0]); i++) {
        if (strcmp(word, status_names[i]) == 0) {
            return (enum helmrec_status)i;
        }
    }
    return HELMREC_UNKNOWN;
}

bool helmrec_status_is_pending(enum helmrec_status s)
{
    return s == HELMREC_PENDING_INSTALL || s == HELMREC_PENDING_UPGRADE ||
           s == HELMREC_PENDING_ROLLBACK;
}

/* The string at object.metadata.map[key]; not by jsonx_str, whose path is split at dots. Borrowed,
 * NULL if there is none. */
static const char *metadata_entry(const json_t *object, const char *map, const char *key)
{
    const json_t *metadata = json_object_get(object, "metadata");
    return json_string_value(json_object_get(json_object_get(metadata, map), key));
}

/* A decimal number as Go writes it: no leading zero, or "01" and "1" would be two records of one
 * revision. */
static bool revision_of(const char *text, int64_t *ret)
{
    return text != NULL && text[0] != '0' && text_to_int64(text, 1, INT64_MAX, ret);
}

/* Splits "sh.helm.release.v1.NAME.vN"; *ret_release is borrowed from name. NAME may hold dots. */
static bool name_split(const char *name, const char **ret_release, size_t *ret_len, int64_t *ret_n)
{
    if (name == NULL || !text_has_prefix(name, NAME_PREFIX)) {
        return false;
    }
    const char *release = name + strlen(NAME_PREFIX);
    const char *dot = strrchr(release, '.');
    if (dot == NULL || dot == release || dot[1] != 'v' || !revision_of(dot + 2, ret_n)) {
        return false;
    }
    *ret_release = release;
    *ret_len = (size_t)(dot - release);
    return true;
}

struct identity {
    const char *secret, *ns, *release; /* borrowed from the object */
    int64_t revision;
};

/* Is it a record, and of what? NULL if so, else what is wrong with it. */
static const char *identify(const json_t *object, struct identity *ret)
{
    struct identity id = {.secret = jsonx_str(object, "metadata.name", NULL),
                          .ns = jsonx_str(object, "metadata.namespace", NULL),
                          .release = metadata_entry(object, "labels", "name")};
    const char *release = NULL;
    size_t len = 0;
    if (!name_split(id.secret, &release, &len, &id.revision)) {
        return "its name is not " NAME_PREFIX "NAME.vN";
    }
    if (id.ns == NULL || id.ns[0] == '\0') {
        return "it has no namespace";
    }
    if (!text_eq(metadata_entry(object, "labels", "owner"), "helm")) {
        return "its label owner is not helm";
    }
    if (id.release == NULL || strlen(id.release) != len || strncmp(id.release, release, len) != 0) {
        return "its label name is not the one in its name";
    }
    int64_t labelled = 0;
    if (!revision_of(metadata_entry(object, "labels", "version"), &labelled) ||
        labelled != id.revision) {
        return "its label version is not the one in its name";
    }
    /* PartialObjectMetadata has none. */
    const char *type = jsonx_str(object, "type", NULL);
    if (type != NULL && strcmp(type, "helm.sh/release.v1") != 0) {
        return "its type is not helm.sh/release.v1";
    }
    *ret = id;
    return NULL;
}

static int64_t created_ns(const json_t *object)
{
    int64_t ns = 0;
    const char *created = jsonx_str(object, "metadata.creationTimestamp", NULL);
    return created != NULL && rfc3339_parse(created, &ns) ? ns : INT64_MIN;
}

static int64_t changed_ns(const json_t *object)
{
    int64_t newest = created_ns(object);
    int64_t ns = 0;
    size_t i;
    json_t *entry;
    json_array_foreach(jsonx_at(object, "metadata.managedFields"), i, entry)
    {
        const char *time = jsonx_str(entry, "time", NULL);
        if (time != NULL && rfc3339_parse(time, &ns) && ns > newest) {
            newest = ns;
        }
    }
    return newest;
}

/* Our annotations count only together and only for the revision that they name. */
static void claim_parse(const json_t *object, struct helmrec_meta *m)
{
    const char *digest = NULL, *owner = NULL, *owner_name = NULL;
    int64_t n = 0;
    int64_t epoch = 0;
    if (revision_of(metadata_entry(object, "annotations", HELMREC_ANNOTATION_REVISION), &n) &&
        n == m->revision) {
        digest = metadata_entry(object, "annotations", HELMREC_ANNOTATION_DIGEST);
        owner = metadata_entry(object, "annotations", HELMREC_ANNOTATION_OWNER);
        owner_name = metadata_entry(object, "annotations", HELMREC_ANNOTATION_OWNER_NAME);
        const char *text = metadata_entry(object, "annotations", HELMREC_ANNOTATION_EPOCH);
        if (text == NULL || !text_to_int64(text, 1, INT64_MAX, &epoch)) {
            epoch = 0;
        }
        m->repaired = metadata_entry(object, "annotations", HELMREC_ANNOTATION_REPAIRED_BY) != NULL;
        m->orphans_gone =
            text_eq(metadata_entry(object, "annotations", HELMREC_ANNOTATION_ORPHANS_GONE), "true");
    }
    m->digest = xstrdup(digest != NULL ? digest : "");
    m->owner = xstrdup(owner != NULL ? owner : "");
    m->owner_name = xstrdup(owner_name != NULL ? owner_name : "");
    m->epoch = epoch;
}

enum err_kind helmrec_meta_parse(const json_t *object, struct helmrec_meta **ret, struct err *err)
{
    struct identity id;
    const char *wrong = identify(object, &id);
    if (wrong != NULL) {
        return err_set(err, ERR_INVALID, "Secret %s is no Helm record: %s",
                       jsonx_str(object, "metadata.name", "without a name"), wrong);
    }
    struct helmrec_meta *m = xcalloc(1, sizeof(*m));
    m->secret_name = xstrdup(id.secret);
    m->ns = xstrdup(id.ns);
    m->release = xstrdup(id.release);
    m->uid = xstrdup(jsonx_str(object, "metadata.uid", ""));
    m->resource_version = xstrdup(jsonx_str(object, "metadata.resourceVersion", ""));
    m->revision = id.revision;
    m->status = helmrec_status_of(metadata_entry(object, "labels", "status"));
    claim_parse(object, m);
    m->created_ns = created_ns(object);
    m->changed_ns = changed_ns(object);
    *ret = m;
    return ERR_NONE;
}

void helmrec_meta_free(struct helmrec_meta *m)
{
    if (m == NULL) {
        return;
    }
    free(m->secret_name);
    free(m->ns);
    free(m->release);
    free(m->uid);
    free(m->resource_version);
    free(m->digest);
    free(m->owner);
    free(m->owner_name);
    free(m);
}

char *helmrec_index(const json_t *object)
{
    struct identity id;
    return identify(object, &id) == NULL ? xasprintf("%s/%s", id.ns, id.release) : NULL;
}
