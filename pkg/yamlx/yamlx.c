/* libyaml's events to JSON with an explicit stack.
 *
 * Aliases share the anchored tree, so a small document can stand for an exponentially large one:
 * each node knows how large it is when written out, and what aliases add is bounded (an alias bomb
 * ends in ERR_LIMIT with little memory used). What shares a tree must not change it: values_merge
 * copies. */
#include "yamlx/yamlx.h"

#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/strmap.h"
#include "base/text.h"
#include "yamlx/scalar.h"

#define LONG_TAG_PREFIX "tag:yaml.org,2002:"
/* Nodes of a document with all aliases written out: a tenth of what 4 MB of text could hold. */
#define NODES_MAX 500000
/* Those of them that aliases stand for. */
#define ALIAS_NODES_MAX 100000
/* libyaml compares each %TAG directive with all before it: 4 MB of them took 18 s. */
#define TAG_DIRECTIVES_MAX 1000

static const char bad_key[] = "a map's key must be a string, a number, true or false";

struct size {
    size_t nodes, bytes, depth; /* written out; depth: levels of containers */
};

/* A finished node. Whoever holds one frees value and key. */
struct node {
    json_t *value;   /* NULL: only its key can be had (.inf) */
    char *key;       /* its text as a map's key; NULL: it cannot be one */
    const char *why; /* value is NULL: the reason */
    struct size size;
    bool is_merge; /* << */
    bool is_alias;
};

/* What an anchor stands for. While its container is open, the value is not there yet. */
struct anchor {
    struct node node;
    size_t
        serial; /* of the place that set it: the name may be set anew inside of its own container */
};

/* A container that is still open. */
struct frame {
    json_t *container;
    struct size size;
    char *anchor;
    size_t serial;
    char *key;  /* of the map's entry whose value comes next; NULL = a key comes next */
    bool merge; /* that key is << */
};

struct parse {
    yaml_parser_t parser;
    struct frame stack[LIMIT_DEPTH];
    size_t depth;
    struct strmap anchors;
    size_t serial;
    size_t alias_nodes;
    const char *text; /* the whole input, for the line of what is no text at all */
    size_t len;
    json_t *root;
    struct err *err;
};

static void node_release(struct node *n)
{
    json_decref(n->value);
    free(n->key);
}

static void free_anchor(void *value)
{
    struct anchor *a = value;
    node_release(&a->node);
    free(a);
}

static enum err_kind fail(struct parse *p, enum err_kind kind, const yaml_mark_t *mark,
                          const char *what)
{
    return err_set(p->err, kind, "line %zu: %s", mark->line + 1, what);
}

/* node: what the name stands for from now on; borrowed. name may be NULL. */
static void note_anchor(struct parse *p, const char *name, size_t serial, const struct node *node)
{
    if (name == NULL) {
        return;
    }
    struct anchor *a = xcalloc(1, sizeof(*a));
    a->node = *node;
    a->node.value = json_incref(node->value);
    a->node.key = node->key != NULL ? xstrdup(node->key) : NULL;
    a->node.is_merge = false; /* *x is no <<, whatever it stands for */
    a->node.is_alias = true;
    a->serial = serial;
    strmap_put(&p->anchors, name, a);
}

/* <<: a map, or a list of maps of which earlier ones win. Keys that the map had before are
 * replaced, later ones replace. */
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

static enum err_kind check_size(struct parse *p, const struct frame *f, const struct node *n,
                                const yaml_mark_t *mark)
{
    if (f->size.nodes > NODES_MAX || f->size.bytes > LIMIT_VALUES_BYTES) {
        return fail(p, ERR_LIMIT, mark, "the document is too large, its aliases written out");
    }
    if (p->depth + n->size.depth > LIMIT_DEPTH) {
        return fail(p, ERR_LIMIT, mark, "the document is nested too deeply");
    }
    return ERR_NONE;
}

static enum err_kind set_entry(struct parse *p, struct frame *f, struct node *n,
                               const yaml_mark_t *mark)
{
    _cleanup_(free_cstr)
    char *key = take_ptr(&f->key);
    if (!f->merge) {
        must(json_object_set_new(f->container, key, take_ptr(&n->value)) == 0);
        return ERR_NONE;
    }
    /* helm's reader takes a list of aliases, but no alias of a list. */
    bool list_by_alias = n->is_alias && json_is_array(n->value);
    if (list_by_alias || !merge_into(f->container, n->value)) {
        return fail(p, ERR_INVALID, mark, "<< merges a map, or a list of maps");
    }
    return ERR_NONE;
}

/* A finished node goes into the open container, or is the document. */
static enum err_kind place(struct parse *p, struct node *n, const yaml_mark_t *mark)
{
    bool key_place = p->depth > 0 && json_is_object(p->stack[p->depth - 1].container) &&
                     p->stack[p->depth - 1].key == NULL;
    if (n->value == NULL && !(key_place && n->key != NULL)) {
        return fail(p, ERR_INVALID, mark, n->why);
    }
    if (p->depth == 0) {
        json_decref(p->root);
        p->root = take_ptr(&n->value);
        return ERR_NONE;
    }
    struct frame *f = &p->stack[p->depth - 1];
    grow(&f->size, n->size);
    if (check_size(p, f, n, mark)) {
        return p->err->kind;
    }
    if (json_is_array(f->container)) {
        must(json_array_append_new(f->container, take_ptr(&n->value)) == 0);
        return ERR_NONE;
    }
    if (!key_place) {
        return set_entry(p, f, n, mark);
    }
    f->merge = n->is_merge;
    f->key = take_ptr(&n->key);
    return f->key != NULL ? ERR_NONE : fail(p, ERR_INVALID, mark, bad_key);
}

/* place(), and n is used up. */
static enum err_kind attach(struct parse *p, struct node *n, const yaml_mark_t *mark)
{
    enum err_kind kind = place(p, n, mark);
    node_release(n);
    return kind;
}

static enum err_kind open_container(struct parse *p, json_t *container, const yaml_char_t *anchor,
                                    const yaml_mark_t *mark)
{
    must(container != NULL);
    bool key_place = p->depth > 0 && json_is_object(p->stack[p->depth - 1].container) &&
                     p->stack[p->depth - 1].key == NULL;
    if (key_place || p->depth == LIMIT_DEPTH) {
        json_decref(container);
        return key_place ? fail(p, ERR_INVALID, mark, bad_key)
                         : fail(p, ERR_LIMIT, mark, "the document is nested too deeply");
    }
    const char *name = (const char *)anchor;
    struct frame *f = &p->stack[p->depth++];
    *f = (struct frame){.container = container,
                        .size = {.nodes = 1, .bytes = 2, .depth = 1},
                        .anchor = name != NULL ? xstrdup(name) : NULL,
                        .serial = ++p->serial};
    const struct node open = {.why = "an alias to a container that holds it"};
    note_anchor(p, name, f->serial, &open);
    return ERR_NONE;
}

static enum err_kind close_container(struct parse *p, const yaml_mark_t *mark)
{
    must(p->depth > 0);
    struct frame f = p->stack[--p->depth];
    p->stack[p->depth] = (struct frame){0};
    must(f.key == NULL);
    struct node n = {.value = f.container, .size = f.size};
    const struct anchor *a = f.anchor != NULL ? strmap_get(&p->anchors, f.anchor) : NULL;
    if (a != NULL && a->serial == f.serial) {
        note_anchor(p, f.anchor, f.serial, &n);
    }
    free(f.anchor);
    return attach(p, &n, mark);
}

static enum err_kind on_scalar(struct parse *p, const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    size_t len = e->data.scalar.length;
    const char *tag = e->data.scalar.tag != NULL ? (const char *)e->data.scalar.tag : "";
    bool plain = e->data.scalar.plain_implicit != 0;
    char short_tag[32] = "";
    if (text_has_prefix(tag, LONG_TAG_PREFIX)) {
        (void)snprintf(short_tag, sizeof(short_tag), "!!%s", tag + strlen(LONG_TAG_PREFIX));
    } else if (tag[0] != '\0') {
        (void)snprintf(short_tag, sizeof(short_tag), "!!str"); /* private tags: text */
    }
    struct scalar s = scalar_resolve(text, len, short_tag, plain);
    struct node n = {.value = s.value,
                     .key = s.key,
                     .why = s.why,
                     .size = {.nodes = 1, .bytes = len + 3},
                     .is_merge =
                         strcmp(text, "<<") == 0 && (plain || strcmp(short_tag, "!!merge") == 0)};
    note_anchor(p, (const char *)e->data.scalar.anchor, ++p->serial, &n);
    return attach(p, &n, &e->start_mark);
}

static enum err_kind on_alias(struct parse *p, const yaml_event_t *e)
{
    const struct anchor *a = strmap_get(&p->anchors, (const char *)e->data.alias.anchor);
    if (a == NULL) {
        return fail(p, ERR_INVALID, &e->start_mark,
                    "an alias to an anchor that is not in this document");
    }
    p->alias_nodes += a->node.size.nodes;
    if (p->alias_nodes > ALIAS_NODES_MAX) {
        return fail(p, ERR_LIMIT, &e->start_mark,
                    "the document is too large, its aliases written out");
    }
    struct node n = a->node;
    n.value = json_incref(n.value);
    n.key = n.key != NULL ? xstrdup(n.key) : NULL;
    return attach(p, &n, &e->start_mark);
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

/* libyaml's words are fixed texts; none quotes the document. Its marks count lines for what was
 * read as text; for bytes that are none there is only an offset. */
static enum err_kind unreadable(struct parse *p)
{
    must(p->parser.error != YAML_MEMORY_ERROR);
    const char *why = p->parser.problem != NULL ? p->parser.problem : "this is no YAML";
    yaml_mark_t mark = p->parser.problem_mark;
    if (p->parser.error == YAML_READER_ERROR) {
        mark.line = 0;
        for (size_t i = 0; i < p->len && i < p->parser.problem_offset; i++) {
            mark.line += p->text[i] == '\n' ? 1 : 0;
        }
    }
    return fail(p, ERR_INVALID, &mark, why);
}

static enum err_kind run(struct parse *p)
{
    bool end = false;
    enum err_kind kind = ERR_NONE;
    while (!end && kind == ERR_NONE) {
        yaml_event_t e;
        if (yaml_parser_parse(&p->parser, &e) == 0) {
            return unreadable(p);
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

/* Does a line begin at text[at]? YAML 1.1 has five line breaks. */
static bool begins_line(const char *text, size_t at)
{
    return at == 0 || text[at - 1] == '\n' || text[at - 1] == '\r' ||
           (at >= 2 && memcmp(text + at - 2, "\xC2\x85", 2) == 0) ||
           (at >= 3 && (memcmp(text + at - 3, "\xE2\x80\xA8", 3) == 0 ||
                        memcmp(text + at - 3, "\xE2\x80\xA9", 3) == 0));
}

static bool has_too_many_directives(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t at = 0; at < len; at += 4) {
        const char *found = memmem(text + at, len - at, "%TAG", 4);
        if (found == NULL) {
            break;
        }
        at = (size_t)(found - text);
        n += begins_line(text, at) ? 1 : 0;
    }
    return n > TAG_DIRECTIVES_MAX;
}

enum err_kind yamlx_parse(const char *text, size_t len, json_t **ret, struct err *err)
{
    if (len > LIMIT_VALUES_BYTES) {
        return err_set(err, ERR_LIMIT, "the document has %zu bytes, at most %u are taken", len,
                       LIMIT_VALUES_BYTES);
    }
    if (has_too_many_directives(text, len)) {
        return err_set(err, ERR_LIMIT, "the document has more than %d %%TAG directives",
                       TAG_DIRECTIVES_MAX);
    }
    struct parse *p = xcalloc(1, sizeof(*p));
    p->anchors.free_value = free_anchor;
    p->err = err;
    p->text = text;
    p->len = len;
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
