/* libyaml's events to JSON with an explicit stack.
 *
 * Aliases share the anchored tree, so a small document can stand for an exponentially large one: each node knows how large it
 * is when written out, and the total is bounded (an alias bomb ends in ERR_LIMIT with little memory used). */
#include "yamlx/yamlx.h"

#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/strmap.h"
#include "base/text.h"
#include "jsonx/jsonx.h"
#include "yamlx/scalar.h"

#define LONG_TAG_PREFIX "tag:yaml.org,2002:"
/* Nodes of the document with all aliases written out. */
#define NODES_MAX 500000

struct size {
    size_t nodes, bytes, depth; /* written out */
};

struct anchor {
    json_t *value;
    struct size size;
};

/* A container that is still open. */
struct frame {
    json_t *container;
    struct size size;
    char *anchor;
    char *key;      /* of the map's entry whose value comes next; NULL = a key comes next */
    bool merge;     /* that key is << */
};

struct parse {
    yaml_parser_t parser;
    struct frame stack[LIMIT_DEPTH];
    size_t depth;
    struct strmap anchors;
    json_t *root;
    struct err *err;
};

static void free_anchor(void *value)
{
    struct anchor *a = value;
    json_decref(a->value);
    free(a);
}

static enum err_kind fail(struct parse *p, enum err_kind kind, const yaml_mark_t *mark, const char *what)
{
    return err_set(p->err, kind, "line %zu: %s", mark->line + 1, what);
}

static void note_anchor(struct parse *p, const char *name, json_t *value, struct size size)
{
    if (name == NULL) {
        return;
    }
    struct anchor *a = xcalloc(1, sizeof(*a));
    a->value = json_incref(value);
    a->size = size;
    strmap_put(&p->anchors, name, a);
}

/* JSON's only keys are strings. NULL: this value cannot be one. */
static char *key_text(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return xstrdup(json_string_value(value));
    case JSON_INTEGER:
        return xasprintf("%lld", (long long)json_integer_value(value));
    case JSON_REAL:
        return jsonx_dump(value);
    case JSON_TRUE:
        return xstrdup("true");
    case JSON_FALSE:
        return xstrdup("false");
    case JSON_OBJECT:
    case JSON_ARRAY:
    case JSON_NULL:
        return NULL;
    }
    return NULL;
}

/* <<: a map, or a list of maps of which earlier ones win. Keys that the map had before are replaced, later ones replace. */
static bool merge_into(json_t *map, const json_t *value)
{
    if (json_is_object(value)) {
        return json_object_update(map, (json_t *)value) == 0;
    }
    if (!json_is_array(value)) {
        return false;
    }
    for (size_t i = json_array_size(value); i > 0; i--) {
        json_t *item = json_array_get(value, i - 1);
        if (!json_is_object(item) || json_object_update(map, item) != 0) {
            return false;
        }
    }
    return true;
}

static void grow(struct size *into, struct size by)
{
    into->nodes += by.nodes;
    into->bytes += by.bytes;
    into->depth = into->depth > by.depth + 1 ? into->depth : by.depth + 1;
}

/* A finished value (its reference is taken over) goes into the open container, or is the document. */
static enum err_kind attach(struct parse *p, json_t *value, struct size size, bool merge_key, const yaml_mark_t *mark)
{
    if (p->depth == 0) {
        json_decref(p->root);
        p->root = value;
        return ERR_NONE;
    }
    struct frame *f = &p->stack[p->depth - 1];
    grow(&f->size, size);
    if (f->size.nodes > NODES_MAX || f->size.bytes > LIMIT_VALUES_BYTES) {
        json_decref(value);
        return fail(p, ERR_LIMIT, mark, "the document is too large once its aliases are written out");
    }
    if (f->size.depth + p->depth > LIMIT_DEPTH) {
        json_decref(value);
        return fail(p, ERR_LIMIT, mark, "the document is nested too deeply");
    }
    if (json_is_array(f->container)) {
        must(json_array_append_new(f->container, value) == 0);
        return ERR_NONE;
    }
    if (f->key == NULL) {
        f->merge = merge_key;
        f->key = key_text(value);
        json_decref(value);
        return f->key != NULL ? ERR_NONE : fail(p, ERR_INVALID, mark, "a map's key must be a string, a number, true or false");
    }
    _cleanup_(free_cstr) char *key = take_ptr(&f->key);
    if (!f->merge) {
        must(json_object_set_new(f->container, key, value) == 0);
        return ERR_NONE;
    }
    bool merged = merge_into(f->container, value);
    json_decref(value);
    return merged ? ERR_NONE : fail(p, ERR_INVALID, mark, "<< merges a map, or a list of maps");
}

static enum err_kind open_container(struct parse *p, json_t *container, const yaml_char_t *anchor, const yaml_mark_t *mark)
{
    bool key_place = p->depth > 0 && json_is_object(p->stack[p->depth - 1].container) && p->stack[p->depth - 1].key == NULL;
    if (key_place || p->depth == LIMIT_DEPTH) {
        json_decref(container);
        return key_place ? fail(p, ERR_INVALID, mark, "a map's key must be a string, a number, true or false")
                         : fail(p, ERR_LIMIT, mark, "the document is nested too deeply");
    }
    p->stack[p->depth++] = (struct frame){.container = container,
                                          .size = {.nodes = 1, .bytes = 2},
                                          .anchor = anchor != NULL ? xstrdup((const char *)anchor) : NULL};
    return ERR_NONE;
}

static enum err_kind close_container(struct parse *p, const yaml_mark_t *mark)
{
    must(p->depth > 0);
    struct frame f = p->stack[--p->depth];
    p->stack[p->depth] = (struct frame){0};
    note_anchor(p, f.anchor, f.container, f.size);
    free(f.anchor);
    must(f.key == NULL);
    return attach(p, f.container, f.size, false, mark);
}

static enum err_kind on_scalar(struct parse *p, const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    size_t len = e->data.scalar.length;
    const char *tag = e->data.scalar.tag != NULL ? (const char *)e->data.scalar.tag : "";
    bool plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    char short_tag[32] = "";
    if (text_has_prefix(tag, LONG_TAG_PREFIX)) {
        (void)snprintf(short_tag, sizeof(short_tag), "!!%s", tag + strlen(LONG_TAG_PREFIX));
    } else if (tag[0] != '\0') {
        (void)snprintf(short_tag, sizeof(short_tag), "!!str"); /* "!" and private tags: text */
    }
    const char *why = NULL;
    json_t *value = scalar_resolve(text, len, short_tag, plain, &why);
    if (value == NULL) {
        return fail(p, ERR_INVALID, &e->start_mark, why);
    }
    struct size size = {.nodes = 1, .bytes = len + 3};
    note_anchor(p, (const char *)e->data.scalar.anchor, value, size);
    bool merge_key = plain && strcmp(text, "<<") == 0;
    return attach(p, value, size, merge_key, &e->start_mark);
}

static enum err_kind on_alias(struct parse *p, const yaml_event_t *e)
{
    const struct anchor *a = strmap_get(&p->anchors, (const char *)e->data.alias.anchor);
    if (a == NULL) {
        return fail(p, ERR_INVALID, &e->start_mark, "an alias to an anchor that is not in this document");
    }
    return attach(p, json_incref(a->value), a->size, false, &e->start_mark);
}

/* *ret_end: the first document is complete, or there is none. */
static enum err_kind on_event(struct parse *p, const yaml_event_t *e, bool *ret_end)
{
    switch (e->type) {
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_DOCUMENT_START_EVENT:
        return ERR_NONE;
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_END_EVENT:
        *ret_end = true;
        return ERR_NONE;
    case YAML_ALIAS_EVENT:
        return on_alias(p, e);
    case YAML_SCALAR_EVENT:
        return on_scalar(p, e);
    case YAML_SEQUENCE_START_EVENT:
        return open_container(p, json_array(), e->data.sequence_start.anchor, &e->start_mark);
    case YAML_MAPPING_START_EVENT:
        return open_container(p, json_object(), e->data.mapping_start.anchor, &e->start_mark);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return close_container(p, &e->start_mark);
    }
    return ERR_NONE;
}

static enum err_kind run(struct parse *p)
{
    bool end = false;
    enum err_kind kind = ERR_NONE;
    while (!end && kind == ERR_NONE) {
        yaml_event_t e;
        if (yaml_parser_parse(&p->parser, &e) == 0) {
            /* libyaml's words are fixed texts; none quotes the document. */
            const char *why = p->parser.problem != NULL ? p->parser.problem : "this is no YAML";
            yaml_mark_t mark = p->parser.problem_mark;
            return fail(p, ERR_INVALID, &mark, why);
        }
        kind = on_event(p, &e, &end);
        yaml_event_delete(&e);
    }
    return kind;
}

static void release(struct parse *p)
{
    while (p->depth > 0) {
        struct frame *f = &p->stack[--p->depth];
        json_decref(f->container);
        free(f->anchor);
        free(f->key);
    }
    strmap_release(&p->anchors);
    yaml_parser_delete(&p->parser);
}

enum err_kind yamlx_parse(const char *text, size_t len, json_t **ret, struct err *err)
{
    if (len > LIMIT_VALUES_BYTES) {
        return err_set(err, ERR_LIMIT, "the document has %zu bytes, at most %u are taken", len, LIMIT_VALUES_BYTES);
    }
    struct parse *p = xcalloc(1, sizeof(*p));
    p->anchors.free_value = free_anchor;
    p->err = err;
    must(yaml_parser_initialize(&p->parser) == 1);
    yaml_parser_set_input_string(&p->parser, (const unsigned char *)text, len);
    enum err_kind kind = run(p);
    release(p);
    json_t *root = p->root;
    free(p);
    if (kind != ERR_NONE) {
        json_decref(root);
        return kind;
    }
    *ret = root != NULL ? root : json_null();
    return ERR_NONE;
}
