#include "manifest/manifest.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "yamlx/yamlx.h"

/* A List in a List in a List is nobody's chart. */
#define LIST_DEPTH_MAX 3

void manifest_release(struct manifest *m)
{
    for (size_t i = 0; i < m->count; i++) {
        free(m->objects[i].api_version);
        free(m->objects[i].kind);
        free(m->objects[i].ns);
        free(m->objects[i].name);
    }
    free(m->objects);
    *m = (struct manifest)MANIFEST_INIT;
}

static bool same_ns(const char *a, const char *b, const char *default_ns)
{
    return default_ns == NULL ||
           strcmp(a[0] != '\0' ? a : default_ns, b[0] != '\0' ? b : default_ns) == 0;
}

bool manifest_has(const struct manifest *m, const struct manifest_object *object,
                  const char *default_ns)
{
    for (size_t i = 0; i < m->count; i++) {
        const struct manifest_object *o = &m->objects[i];
        if (strcmp(o->name, object->name) == 0 && strcmp(o->kind, object->kind) == 0 &&
            same_ns(o->ns, object->ns, default_ns)) {
            return true;
        }
    }
    return false;
}

/* ---- reading ---- */

bool manifest_is_kept(const json_t *object)
{
    /* The annotation's name has dots in it, so no path. */
    const char *policy = json_string_value(
        json_object_get(jsonx_at(object, "metadata.annotations"), "helm.sh/resource-policy"));
    if (policy == NULL) {
        return false;
    }
    static const char space[] = " \t\r\n";
    policy += strspn(policy, space);
    return strncasecmp(policy, "keep", 4) == 0 && policy[4 + strspn(policy + 4, space)] == '\0';
}

static enum err_kind add_one(const json_t *object, struct manifest *m, struct err *err)
{
    const char *api_version = jsonx_str(object, "apiVersion", "");
    const char *kind = jsonx_str(object, "kind", "");
    const char *name = jsonx_str(object, "metadata.name", "");
    if (api_version[0] == '\0' || kind[0] == '\0' || name[0] == '\0') {
        return err_set(err, ERR_INVALID,
                       "a document of the manifest lacks apiVersion, kind or metadata.name");
    }
    if (m->count == MANIFEST_OBJECTS_MAX) {
        return err_set(err, ERR_LIMIT, "the manifest has more than %d objects",
                       MANIFEST_OBJECTS_MAX);
    }
    m->objects = xrealloc(m->objects, (m->count + 1) * sizeof(*m->objects));
    m->objects[m->count++] =
        (struct manifest_object){.api_version = xstrdup(api_version),
                                 .kind = xstrdup(kind),
                                 .ns = xstrdup(jsonx_str(object, "metadata.namespace", "")),
                                 .name = xstrdup(name),
                                 .keep = manifest_is_kept(object)};
    return ERR_NONE;
}

static enum err_kind add(const json_t *object, int depth, struct manifest *m, struct err *err)
{
    const json_t *items = json_object_get(object, "items");
    bool is_list = text_has_suffix(jsonx_str(object, "kind", ""), "List") && json_is_array(items);
    if (!is_list) {
        return add_one(object, m, err);
    }
    if (depth == LIST_DEPTH_MAX) {
        return err_set(err, ERR_LIMIT, "the manifest has lists nested too deeply");
    }
    size_t i;
    const json_t *item;
    json_array_foreach(items, i, item)
    {
        if (add(item, depth + 1, m, err)) {
            return err->kind;
        }
    }
    return ERR_NONE;
}

static enum err_kind add_document(const char *text, size_t len, struct manifest *m, struct err *err)
{
    _cleanup_json_ json_t *object = NULL;
    if (yamlx_parse(text, len, &object, err)) {
        return err->kind;
    }
    return json_is_null(object) ? ERR_NONE : add(object, 0, m, err);
}

/* Where the next document's marker begins: a line that starts with "---" and then ends or has a
 * blank. Inside a scalar such a line cannot stand: YAML ends the document there. */
static const char *next_marker(const char *at)
{
    for (const char *line = at; line != NULL;) {
        if (strncmp(line, "---", 3) == 0 && strchr(" \t\r\n", line[3]) != NULL) {
            return line;
        }
        const char *end = strchr(line, '\n');
        line = end != NULL ? end + 1 : NULL;
    }
    return NULL;
}

enum err_kind manifest_parse(const char *text, struct manifest *ret, struct err *err)
{
    struct manifest m = MANIFEST_INIT;
    for (const char *at = text; at != NULL;) {
        const char *marker = next_marker(at);
        size_t len = marker != NULL ? (size_t)(marker - at) : strlen(at);
        if (add_document(at, len, &m, err)) {
            manifest_release(&m);
            return err->kind;
        }
        at = marker != NULL ? marker + 3 : NULL;
    }
    *ret = m;
    return ERR_NONE;
}
