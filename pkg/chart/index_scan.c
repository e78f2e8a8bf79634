/* An index is one YAML mapping; what matters of it is
 *
 *   entries:            PLACE_ROOT
 *     NAME:             PLACE_ENTRIES
 *     - version: ...    PLACE_VERSIONS, PLACE_VERSION
 *       digest: ...
 *       urls: [...]     PLACE_URLS
 *
 * Everything else (descriptions, icons, annotations: nearly all of the bytes) is skipped event by
 * event: for what is skipped only the depth is counted. */
#include "chart/index_scan.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "chart/disk.h"
#include "chartref/chartref.h"

#define EVENTS_PER_LOOK 1024 /* at clock and cancel */
#define URL_BYTES_MAX   8192

enum place { PLACE_ROOT, PLACE_ENTRIES, PLACE_VERSIONS, PLACE_VERSION, PLACE_URLS, PLACE_COUNT };

enum field {
    FIELD_OTHER,
    FIELD_ENTRIES,
    FIELD_CHART,
    FIELD_VERSION,
    FIELD_DIGEST,
    FIELD_URLS,
    FIELD_MERGE
};

/* The places form one path, so a stack of them is an index into this path. */
struct level {
    bool in_value;    /* of a mapping: the key has been read */
    enum field field; /* which key it was */
};

struct scan {
    const struct index_scan *options;
    yaml_parser_t parser;
    off_t at;
    struct strmap *names;
    size_t chart_count;
    struct level levels[PLACE_COUNT];
    int depth;      /* of places: 0 outside of the root mapping */
    int skip_depth; /* of what is skipped below the place */
    bool has_entries;
    struct index_versions *chart; /* of the chart that is being read, or NULL */
    struct index_version version; /* being read */
};

/* ---- result ---- */

struct index_versions *index_versions_ref(struct index_versions *v)
{
    atomic_fetch_add(&v->refs, 1);
    return v;
}

static void version_release(struct index_version *v)
{
    free(v->version);
    free(v->url);
    free(v->digest);
    *v = (struct index_version){0};
}

void index_versions_unref(struct index_versions *v)
{
    if (v == NULL || atomic_fetch_sub(&v->refs, 1) > 1) {
        return;
    }
    for (size_t i = 0; i < v->count; i++) {
        version_release(&v->items[i]);
    }
    free(v->items);
    free(v);
}

/* An index may give "sha256:..." or capitals; anything else than a sha256 is as good as none. */
static char *normal_digest(const char *text)
{
    static const char prefix[] = "sha256:";
    if (text == NULL) {
        return xstrdup("");
    }
    text += strncmp(text, prefix, sizeof(prefix) - 1) == 0 ? sizeof(prefix) - 1 : 0;
    if (strlen(text) != SHA256_HEX - 1 ||
        strspn(text, "0123456789abcdefABCDEF") != SHA256_HEX - 1) {
        return xstrdup("");
    }
    char *digest = xstrdup(text);
    for (char *c = digest; *c != '\0'; c++) {
        *c = (char)(*c >= 'A' && *c <= 'F' ? *c - 'A' + 'a' : *c);
    }
    return digest;
}

/* helm drops entries whose version is none, and so do we. */
static void keep_version(struct scan *s)
{
    struct semver parsed;
    struct index_versions *chart = s->chart;
    bool ok = s->version.version != NULL && semver_parse(s->version.version, &parsed);
    if (ok && chart->count >= VERSIONS_MAX) {
        chart->too_many = true;
        ok = false;
    }
    if (!ok) {
        version_release(&s->version);
        return;
    }
    if ((chart->count & (chart->count - 1)) == 0) {
        size_t cap = chart->count == 0 ? 1 : 2 * chart->count;
        chart->items = xrealloc(chart->items, cap * sizeof(*chart->items));
    }
    _cleanup_(free_cstr)
    char *digest = take_ptr(&s->version.digest);
    s->version.digest = normal_digest(digest);
    if (s->version.url == NULL) {
        s->version.url = xstrdup("");
    }
    chart->items[chart->count++] = s->version;
    s->version = (struct index_version){0};
}

/* ---- input ---- */

/* JSON's "\ud83d\ude00" is one character in two escapes, which libyaml refuses. In what we keep
 * there is none, so every surrogate escape becomes one for "?". Returns how many bytes of b are
 * good: an escape cut by the end waits for more. */
static size_t blank_surrogates(unsigned char *b, size_t len)
{
    static const char question[] = "\\u003f";
    const size_t escape_len = sizeof(question) - 1;
    for (size_t i = 0; i < len; i++) {
        unsigned char *start = memchr(b + i, '\\', len - i);
        if (start == NULL) {
            return len;
        }
        i = (size_t)(start - b);
        if (len - i < escape_len) {
            return i;
        }
        bool surrogate = start[1] == 'u' && (start[2] | 0x20) == 'd' &&
                         strchr("89abcdefABCDEF", start[3]) != NULL && start[3] != '\0';
        if (surrogate) {
            memcpy(start, question, escape_len);
        }
    }
    return len;
}

static int read_index(void *ctx, unsigned char *buffer, size_t size, size_t *ret_len)
{
    struct scan *s = ctx;
    size_t len = 0;
    while (len < size) {
        ssize_t n = pread(s->options->fd, buffer + len, size - len, s->at + (off_t)len);
        if (n < 0) {
            return 0;
        }
        if (n == 0) {
            break;
        }
        len += (size_t)n;
    }
    bool at_end = len < size;
    size_t good = blank_surrogates(buffer, len);
    if (at_end || good == 0) {
        good = len;
    }
    s->at += (off_t)good;
    *ret_len = good;
    return 1;
}

/* ---- events ---- */

static enum place place_of(const struct scan *s)
{
    must(s->depth > 0);
    return (enum place)(s->depth - 1);
}

/* One chart's entry is wrong: that is no matter for those who want another chart. */
static void spoil_chart(struct scan *s, const yaml_event_t *e)
{
    if (s->chart->bad_line == 0) {
        s->chart->bad_line = e->start_mark.line + 1;
    }
}

static enum err_kind not_an_index(const yaml_event_t *e, const char *what, struct err *err)
{
    return err_set(err, ERR_UNAVAILABLE, "line %zu: %s", e->start_mark.line + 1, what);
}

/* Does the value that begins here lead to what is kept? Then it is the next place. */
static bool leads_on(const struct scan *s)
{
    if (s->depth == 0) {
        return true;
    }
    enum field field = s->levels[s->depth - 1].field;
    switch (place_of(s)) {
    case PLACE_ROOT:
        return field == FIELD_ENTRIES;
    case PLACE_ENTRIES:
        return field == FIELD_CHART;
    case PLACE_VERSIONS:
        return true;
    case PLACE_VERSION:
        return field == FIELD_URLS;
    case PLACE_URLS:
    case PLACE_COUNT:
        break;
    }
    return false;
}

static bool is_mapping(enum place p)
{
    return p == PLACE_ROOT || p == PLACE_ENTRIES || p == PLACE_VERSION;
}

/* The value at the present place is over: a mapping waits for its next key. */
static void value_done(struct scan *s)
{
    if (s->depth > 0) {
        s->levels[s->depth - 1].in_value = false;
    }
}

static enum err_kind on_start(struct scan *s, const yaml_event_t *e, struct err *err)
{
    if (s->depth + s->skip_depth >= LIMIT_DEPTH) {
        return err_set(err, ERR_LIMIT, "line %zu: nested deeper than %d levels",
                       e->start_mark.line + 1, LIMIT_DEPTH);
    }
    struct level *l = s->depth > 0 ? &s->levels[s->depth - 1] : NULL;
    if (s->skip_depth == 0 && l != NULL && is_mapping(place_of(s)) && !l->in_value) {
        /* A mapping or list as a key: it and its value mean nothing to us. */
        l->field = FIELD_OTHER;
    } else if (s->skip_depth == 0 && leads_on(s)) {
        enum place next = (enum place)s->depth;
        bool fits = (e->type == YAML_MAPPING_START_EVENT) == is_mapping(next);
        if (fits) {
            s->has_entries = s->has_entries || next == PLACE_ENTRIES;
            s->levels[s->depth++] = (struct level){0};
            return ERR_NONE;
        }
        if (next <= PLACE_ENTRIES) {
            return not_an_index(e, "an index is a mapping with a mapping \"entries\"", err);
        }
        spoil_chart(s, e);
    }
    s->skip_depth++;
    return ERR_NONE;
}

static void on_end(struct scan *s)
{
    if (s->skip_depth > 0) {
        s->skip_depth--;
    } else {
        if (place_of(s) == PLACE_VERSION) {
            keep_version(s);
        }
        s->depth--;
    }
    if (s->skip_depth == 0 && s->depth > 0) {
        struct level *l = &s->levels[s->depth - 1];
        /* What has just ended was a key or a value. */
        l->in_value = is_mapping(place_of(s)) && !l->in_value;
    }
}

static enum field field_of(struct scan *s, const char *key)
{
    if (strcmp(key, "<<") == 0) {
        return FIELD_MERGE;
    }
    switch (place_of(s)) {
    case PLACE_ROOT:
        return strcmp(key, "entries") == 0 ? FIELD_ENTRIES : FIELD_OTHER;
    case PLACE_ENTRIES:
        s->chart_count++;
        s->chart = strmap_get(s->names, key);
        return s->chart != NULL ? FIELD_CHART : FIELD_OTHER;
    case PLACE_VERSION:
        if (strcmp(key, "version") == 0) {
            return FIELD_VERSION;
        }
        if (strcmp(key, "digest") == 0) {
            return FIELD_DIGEST;
        }
        return strcmp(key, "urls") == 0 ? FIELD_URLS : FIELD_OTHER;
    case PLACE_VERSIONS:
    case PLACE_URLS:
    case PLACE_COUNT:
        break;
    }
    return FIELD_OTHER;
}

/* First one wins: of urls the first is taken. */
static void keep_text(char **at, const char *text)
{
    if (*at == NULL && strnlen(text, URL_BYTES_MAX + 1) <= URL_BYTES_MAX) {
        *at = xstrdup(text);
    }
}

static bool is_null(const yaml_event_t *e, const char *text)
{
    return e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (text[0] == '\0' || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0);
}

static enum err_kind on_scalar(struct scan *s, const yaml_event_t *e, struct err *err)
{
    const char *text = (const char *)e->data.scalar.value;
    if (s->skip_depth > 0) {
        return ERR_NONE;
    }
    if (s->depth == 0) {
        return not_an_index(e, "an index is a mapping with a mapping \"entries\"", err);
    }
    struct level *l = &s->levels[s->depth - 1];
    enum place place = place_of(s);
    if (is_mapping(place) && !l->in_value) {
        l->field = field_of(s, text);
        l->in_value = true;
        return ERR_NONE;
    }
    if (place == PLACE_URLS) {
        keep_text(&s->version.url, text);
    } else if (l->field == FIELD_VERSION) {
        keep_text(&s->version.version, text);
    } else if (l->field == FIELD_DIGEST) {
        keep_text(&s->version.digest, text);
    } else if (leads_on(s) && !is_null(e, text)) {
        if (place == PLACE_ROOT) {
            return not_an_index(e, "entries is a text", err);
        }
        spoil_chart(s, e);
    }
    s->has_entries = s->has_entries || (place == PLACE_ROOT && l->field == FIELD_ENTRIES);
    value_done(s);
    return ERR_NONE;
}

/* Only where it would have to be followed it matters. */
static enum err_kind on_alias(struct scan *s, const yaml_event_t *e, struct err *err)
{
    if (s->skip_depth > 0) {
        return ERR_NONE;
    }
    struct level *l = s->depth > 0 ? &s->levels[s->depth - 1] : NULL;
    bool key = l != NULL && is_mapping(place_of(s)) && !l->in_value;
    bool needed = l == NULL || (!key && (l->field != FIELD_OTHER || !is_mapping(place_of(s))));
    if (needed && (l == NULL || place_of(s) == PLACE_ROOT ||
                   (place_of(s) == PLACE_ENTRIES && l->field == FIELD_MERGE))) {
        return not_an_index(e, "aliases for entries are not followed", err);
    }
    if (needed) {
        spoil_chart(s, e);
    }
    l->field = FIELD_OTHER;
    l->in_value = key;
    return ERR_NONE;
}

static enum err_kind on_event(struct scan *s, const yaml_event_t *e, struct err *err)
{
    switch (e->type) {
    case YAML_MAPPING_START_EVENT:
    case YAML_SEQUENCE_START_EVENT:
        return on_start(s, e, err);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        on_end(s);
        return ERR_NONE;
    case YAML_SCALAR_EVENT:
        return on_scalar(s, e, err);
    case YAML_ALIAS_EVENT:
        return on_alias(s, e, err);
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_START_EVENT:
    case YAML_DOCUMENT_END_EVENT:
        break;
    }
    return ERR_NONE;
}

static enum err_kind look_around(const struct index_scan *o, struct err *err)
{
    if (cancel_is_raised(o->cancel)) {
        return err_set(err, ERR_CANCELLED, "told to stop");
    }
    if (!mono_before(clock_mono(o->clock), o->deadline)) {
        return err_set(err, ERR_TIMEOUT, "no time left to read it");
    }
    return ERR_NONE;
}

/* The first document, as helm does. */
static enum err_kind scan_events(struct scan *s, struct err *err)
{
    for (unsigned n = 0;; n++) {
        yaml_event_t e;
        if (n % EVENTS_PER_LOOK == 0 && look_around(s->options, err)) {
            return err->kind;
        }
        if (yaml_parser_parse(&s->parser, &e) == 0) {
            /* libyaml's problem texts are fixed: no piece of the document is in them. */
            return err_set(err, ERR_UNAVAILABLE, "line %zu: %s", s->parser.problem_mark.line + 1,
                           s->parser.problem != NULL ? s->parser.problem : "cannot be read");
        }
        bool last = e.type == YAML_DOCUMENT_END_EVENT || e.type == YAML_STREAM_END_EVENT;
        enum err_kind kind = on_event(s, &e, err);
        yaml_event_delete(&e);
        if (kind || last) {
            return kind;
        }
    }
}

static void fill_names(struct strmap *names)
{
    const char *name;
    for (size_t it = 0; strmap_next(names, &it, &name, NULL);) {
        struct index_versions *v = xcalloc(1, sizeof(*v));
        atomic_init(&v->refs, 1);
        strmap_put(names, name, v);
    }
}

static void empty_names(struct strmap *names)
{
    const char *name;
    void *value;
    for (size_t it = 0; strmap_next(names, &it, &name, &value);) {
        index_versions_unref(value);
        strmap_put(names, name, NULL);
    }
}

enum err_kind index_scan(const struct index_scan *scan, struct strmap *names,
                         size_t *ret_chart_count, struct err *err)
{
    struct scan s = {.options = scan, .at = scan->offset, .names = names};
    if (yaml_parser_initialize(&s.parser) == 0) {
        must(false);
    }
    yaml_parser_set_input(&s.parser, read_index, &s);
    fill_names(names);
    enum err_kind kind = scan_events(&s, err);
    if (kind == ERR_NONE && !s.has_entries) {
        kind = err_set(err, ERR_UNAVAILABLE, "it has no entries");
    }
    yaml_parser_delete(&s.parser);
    version_release(&s.version);
    if (kind) {
        empty_names(names);
        return kind;
    }
    *ret_chart_count = s.chart_count;
    return ERR_NONE;
}
