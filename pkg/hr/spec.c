/* The spec with its defaults (helm-operator's), and what is legal in it. The CRD has checked types
 * on the way in, unless an old one did not: so each wrong type is an error that names the field,
 * never a crash. */
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/text.h"
#include "hr/hr_internal.h"
#include "jsonx/jsonx.h"

#define TIMEOUT_MAX_S INT64_C(86400)

static void bad(struct hr *hr, const char *field, const char *what)
{
    if (hr->spec_err.kind == ERR_NONE) {
        err_set(&hr->spec_err, ERR_INVALID, "%s: %s", field, what);
    }
}

/* Strings: NULL if absent. */
static char *text_of(struct hr *hr, const json_t *spec, const char *path)
{
    const json_t *v = jsonx_at(spec, path);
    if (v == NULL || json_is_null(v)) {
        return NULL;
    }
    if (!json_is_string(v)) {
        _cleanup_(free_cstr)
        char *field = xasprintf("spec.%s", path);
        bad(hr, field, "must be a string");
        return NULL;
    }
    const char *s = json_string_value(v);
    return s[0] != '\0' ? xstrdup(s) : NULL;
}

static bool bool_of(struct hr *hr, const json_t *spec, const char *path, bool fallback)
{
    const json_t *v = jsonx_at(spec, path);
    if (v == NULL || json_is_null(v)) {
        return fallback;
    }
    if (!json_is_boolean(v)) {
        _cleanup_(free_cstr)
        char *field = xasprintf("spec.%s", path);
        bad(hr, field, "must be true or false");
    }
    return json_is_true(v);
}

static int64_t number_of(struct hr *hr, const json_t *spec, const char *path, int64_t fallback,
                         int64_t max)
{
    const json_t *v = jsonx_at(spec, path);
    if (v == NULL || json_is_null(v)) {
        return fallback;
    }
    int64_t n = jsonx_int(spec, path, -1);
    if (n < 0 || n > max) {
        _cleanup_(free_cstr)
        char *field = xasprintf("spec.%s", path);
        _cleanup_(free_cstr)
        char *what = xasprintf("must be a whole number from 0 to %lld", (long long)max);
        bad(hr, field, what);
        return fallback;
    }
    return n;
}

/* A scalar where a map belongs would read as a map with nothing in it. */
static void check_map(struct hr *hr, const json_t *spec, const char *path)
{
    const json_t *v = jsonx_at(spec, path);
    if (v != NULL && !json_is_null(v) && !json_is_object(v)) {
        _cleanup_(free_cstr)
        char *field = xasprintf("spec.%s", path);
        bad(hr, field, "must be a map");
    }
}

static void read_chart(const json_t *spec, struct hr *hr)
{
    check_map(hr, spec, "chart");
    check_map(hr, spec, "chart.secretRef");
    check_map(hr, spec, "chart.chartPullSecret");
    struct hr_spec *s = &hr->spec;
    s->chart_repository = text_of(hr, spec, "chart.repository");
    s->chart_name = text_of(hr, spec, "chart.name");
    s->chart_version = text_of(hr, spec, "chart.version");
    s->chart_git = text_of(hr, spec, "chart.git");
    s->chart_ref = text_of(hr, spec, "chart.ref");
    s->chart_path = text_of(hr, spec, "chart.path");
    s->chart_secret_ns = text_of(hr, spec, "chart.secretRef.namespace");
    s->chart_secret_name = text_of(hr, spec, "chart.secretRef.name");
    s->chart_pull_secret = text_of(hr, spec, "chart.chartPullSecret.name");
    s->skip_dep_update = bool_of(hr, spec, "chart.skipDepUpdate", false);
    bool from_repository =
        s->chart_repository != NULL && s->chart_name != NULL && s->chart_version != NULL;
    /* Two complete sources: git wins, as in helm-operator. Half a git source beside half a
     * repository: whoever writes a git URL means git. */
    if (s->chart_git != NULL && (s->chart_path != NULL || !from_repository)) {
        bad(hr, "spec.chart.git",
            "git charts are not served yet by this version; use repository, name and version");
    } else if (s->chart_repository == NULL) {
        bad(hr, "spec.chart.repository", "missing: a chart needs repository, name and version");
    } else if (s->chart_name == NULL) {
        bad(hr, "spec.chart.name", "missing: a chart needs repository, name and version");
    } else if (s->chart_version == NULL) {
        bad(hr, "spec.chart.version",
            "missing: a chart needs repository, name and version (a range such as ^1.2 is fine)");
    }
}

/* Helm's rule for release names (chartutil.ValidateReleaseName): DNS labels joined by dots, at most
 * 53 characters. */
static bool is_release_name(const char *name)
{
    char before = '.';
    for (const char *p = name; *p != '\0'; p++) {
        bool alnum = (*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9');
        bool ok =
            alnum || (*p == '-' && before != '.') || (*p == '.' && before != '.' && before != '-');
        if (!ok) {
            return false;
        }
        before = *p;
    }
    return before != '.' && before != '-';
}

/* origin: how the name came about, if not from spec.releaseName. The messages leave room for the
 * advice, which comes last: struct err cuts at its end. */
static void check_release_name(struct hr *hr, const char *origin)
{
    const char *name = hr->spec.release_name;
    size_t len = strlen(name);
    _cleanup_(free_cstr)
    char *shown = text_clean(name, len, HR_RELEASE_NAME_MAX + 10);
    _cleanup_(free_cstr)
    char *what = NULL;
    if (len > HR_RELEASE_NAME_MAX) {
        what = xasprintf("\"%s\"%s has %zu characters, Helm takes at most %d: set "
                         "spec.releaseName to at most %d characters",
                         shown, origin, len, HR_RELEASE_NAME_MAX, HR_RELEASE_NAME_MAX);
    } else if (!is_release_name(name)) {
        what = xasprintf("\"%s\"%s is no release name: set spec.releaseName to lower-case letters, "
                         "digits, '-' and '.', with a letter or digit at both ends",
                         shown, origin);
    }
    if (what != NULL) {
        bad(hr, "spec.releaseName", what);
    }
}

static void read_names(const json_t *spec, struct hr *hr)
{
    struct hr_spec *s = &hr->spec;
    s->target_ns = text_of(hr, spec, "targetNamespace");
    if (s->target_ns == NULL) {
        s->target_ns = xstrdup(hr->ns);
    }
    s->release_name = text_of(hr, spec, "releaseName");
    bool given = s->release_name != NULL;
    if (!given) {
        s->release_name = strcmp(s->target_ns, hr->ns) == 0
                              ? xasprintf("%s-%s", hr->ns, hr->name)
                              : xasprintf("%s-%s-%s", hr->ns, s->target_ns, hr->name);
    }
    check_release_name(hr, given ? "" : ", made of namespaces and name,");
}

/* ---- values ---- */

static struct hr_values_source *add_source(struct hr_spec *s, enum hr_values_kind kind)
{
    s->values_from = xrealloc(s->values_from, (s->values_from_count + 1) * sizeof(*s->values_from));
    struct hr_values_source *src = &s->values_from[s->values_from_count++];
    *src = (struct hr_values_source){.kind = kind};
    return src;
}

/* A member of a source of values with another type than it has: a default in its place would
 * release something else. */
static void check_ref(struct hr *hr, const json_t *ref, const char *field)
{
    static const char *const texts[] = {"name", "namespace", "key", "url", "path"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const json_t *v = json_object_get(ref, texts[i]);
        if (v != NULL && !json_is_null(v) && !json_is_string(v)) {
            _cleanup_(free_cstr)
            char *where = xasprintf("%s.%s", field, texts[i]);
            bad(hr, where, "must be a string");
        }
    }
    const json_t *optional = json_object_get(ref, "optional");
    if (optional != NULL && !json_is_null(optional) && !json_is_boolean(optional)) {
        _cleanup_(free_cstr)
        char *where = xasprintf("%s.optional", field);
        bad(hr, where, "must be true or false");
    }
}

static void read_object_ref(struct hr *hr, const json_t *ref, enum hr_values_kind kind,
                            const char *field)
{
    check_ref(hr, ref, field);
    const char *name = jsonx_str(ref, "name", "");
    if (name[0] == '\0') {
        bad(hr, field, "needs a name");
        return;
    }
    struct hr_values_source *src = add_source(&hr->spec, kind);
    const char *ns = jsonx_str(ref, "namespace", "");
    const char *key = jsonx_str(ref, "key", "");
    src->name = xstrdup(name);
    src->ns = xstrdup(ns[0] != '\0' ? ns : hr->ns);
    src->key = xstrdup(key[0] != '\0' ? key : "values.yaml");
    src->optional = jsonx_bool(ref, "optional", false);
}

static void read_location_ref(struct hr *hr, const json_t *ref, enum hr_values_kind kind,
                              const char *member, const char *field)
{
    check_ref(hr, ref, field);
    const char *location = jsonx_str(ref, member, "");
    if (location[0] == '\0') {
        bad(hr, field, kind == HR_VALUES_URL ? "needs a url" : "needs a path");
        return;
    }
    if (kind == HR_VALUES_URL && !text_has_prefix(location, "http://") &&
        !text_has_prefix(location, "https://")) {
        bad(hr, field, "url must begin with http:// or https://");
        return;
    }
    struct hr_values_source *src = add_source(&hr->spec, kind);
    src->location = xstrdup(location);
    src->optional = jsonx_bool(ref, "optional", false);
}

static const json_t *given(const json_t *item, const char *name)
{
    const json_t *ref = json_object_get(item, name);
    return json_is_null(ref) ? NULL : ref;
}

/* If several refs are set, the order of precedence is helm-operator's. */
static void read_values_from(const json_t *item, size_t i, struct hr *hr)
{
    _cleanup_(free_cstr)
    char *field = xasprintf("spec.valuesFrom[%zu]", i);
    const json_t *ref;
    if ((ref = given(item, "configMapKeyRef")) != NULL) {
        read_object_ref(hr, ref, HR_VALUES_CONFIGMAP, field);
    } else if ((ref = given(item, "secretKeyRef")) != NULL) {
        read_object_ref(hr, ref, HR_VALUES_SECRET, field);
    } else if ((ref = given(item, "externalSourceRef")) != NULL) {
        read_location_ref(hr, ref, HR_VALUES_URL, "url", field);
    } else if ((ref = given(item, "chartFileRef")) != NULL) {
        read_location_ref(hr, ref, HR_VALUES_CHART_FILE, "path", field);
    } else {
        bad(hr, field,
            "needs one of configMapKeyRef, secretKeyRef, externalSourceRef, chartFileRef");
    }
}

static void check_list(struct hr *hr, const json_t *spec, const char *name)
{
    const json_t *v = json_object_get(spec, name);
    if (v != NULL && !json_is_null(v) && !json_is_array(v)) {
        _cleanup_(free_cstr)
        char *field = xasprintf("spec.%s", name);
        bad(hr, field, "must be a list");
    }
}

static void read_values(const json_t *spec, struct hr *hr)
{
    check_list(hr, spec, "valueFileSecrets");
    check_list(hr, spec, "valuesFrom");
    size_t i;
    const json_t *item;
    json_array_foreach(json_object_get(spec, "valueFileSecrets"), i, item)
    {
        read_object_ref(hr, item, HR_VALUES_SECRET, "spec.valueFileSecrets");
    }
    json_array_foreach(json_object_get(spec, "valuesFrom"), i, item)
    {
        read_values_from(item, i, hr);
    }
    json_t *values = json_object_get(spec, "values");
    if (values == NULL || json_is_null(values)) {
        hr->spec.values = json_object();
    } else if (json_is_object(values)) {
        hr->spec.values = json_incref(values);
    } else {
        hr->spec.values = json_object();
        bad(hr, "spec.values", "must be a map");
    }
}

static void read_options(const json_t *spec, struct hr *hr)
{
    struct hr_spec *s = &hr->spec;
    check_map(hr, spec, "rollback");
    check_map(hr, spec, "test");
    s->helm_version = text_of(hr, spec, "helmVersion");
    if (s->helm_version != NULL && strcmp(s->helm_version, "v3") != 0) {
        bad(hr, "spec.helmVersion",
            strcmp(s->helm_version, "v2") == 0
                ? "v2 (Helm 2, Tiller) is not served; migrate the release to Helm 3 and use v3"
                : "must be v3");
    }
    s->timeout_s = number_of(hr, spec, "timeout", HR_TIMEOUT_DEFAULT_S, TIMEOUT_MAX_S);
    s->force_upgrade = bool_of(hr, spec, "forceUpgrade", false);
    s->reset_values = bool_of(hr, spec, "resetValues", true);
    s->max_history = number_of(hr, spec, "maxHistory", HR_MAX_HISTORY_DEFAULT, INT32_MAX);
    s->skip_crds = bool_of(hr, spec, "skipCRDs", false);
    s->disable_openapi_validation = bool_of(hr, spec, "disableOpenAPIValidation", false);
    s->rollback = (struct hr_rollback){
        .enable = bool_of(hr, spec, "rollback.enable", false),
        .retry = bool_of(hr, spec, "rollback.retry", false),
        .disable_hooks = bool_of(hr, spec, "rollback.disableHooks", false),
        .recreate = bool_of(hr, spec, "rollback.recreate", false),
        .force = bool_of(hr, spec, "rollback.force", false),
        .wait = bool_of(hr, spec, "rollback.wait", false),
        .max_retries = number_of(hr, spec, "rollback.maxRetries", 5, INT32_MAX),
        .timeout_s = number_of(hr, spec, "rollback.timeout", HR_TIMEOUT_DEFAULT_S, TIMEOUT_MAX_S)};
    s->test = (struct hr_test){
        .enable = bool_of(hr, spec, "test.enable", false),
        .ignore_failures = bool_of(hr, spec, "test.ignoreFailures", false),
        .cleanup = bool_of(hr, spec, "test.cleanup", true),
        .timeout_s = number_of(hr, spec, "test.timeout", HR_TIMEOUT_DEFAULT_S, TIMEOUT_MAX_S)};
    s->wait = bool_of(hr, spec, "wait", s->rollback.enable || s->test.enable);
}

void hr_spec_read(const json_t *spec, struct hr *hr)
{
    if (!json_is_object(spec)) {
        bad(hr, "spec", "missing");
    }
    read_names(spec, hr);
    read_options(spec, hr);
    read_chart(spec, hr);
    read_values(spec, hr);
}

void hr_spec_release(struct hr_spec *s)
{
    char *texts[] = {s->release_name,      s->target_ns,         s->chart_repository,
                     s->chart_name,        s->chart_version,     s->chart_git,
                     s->chart_ref,         s->chart_path,        s->chart_secret_ns,
                     s->chart_secret_name, s->chart_pull_secret, s->helm_version};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        free(texts[i]);
    }
    for (size_t i = 0; i < s->values_from_count; i++) {
        free(s->values_from[i].ns);
        free(s->values_from[i].name);
        free(s->values_from[i].key);
        free(s->values_from[i].location);
    }
    free(s->values_from);
    json_decref(s->values);
}
