/* A SecretList as JSON, as it streams by. The list's own members are skipped by counting brackets;
 * of each item jsonx judges the text.
 *
 *   OPEN -> KEY -> COLON -> VALUE -> AFTER_VALUE -> KEY ... -> DONE
 *                   items:  ITEMS -> ITEM -> AFTER_ITEM -> ITEM ... -> AFTER_VALUE
 *   BAD from anywhere. */
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "recwire/recwire_internal.h"

/* Longer than any name of a list's member or of a kind that is looked at. */
#define WORD_MAX ((size_t)64)

enum state {
    OPEN,        /* the brace of the list */
    FIRST_KEY,   /* a key, or the end */
    KEY,         /* a key */
    COLON,       /* behind a key */
    VALUE,       /* the first byte of a value */
    AFTER_VALUE, /* a comma, or the end */
    FIRST_ITEM,  /* an item, or the end of the items */
    ITEM,        /* an item */
    AFTER_ITEM,  /* a comma, or the end of the items */
    INSIDE,      /* of a key, a value or an item; then `next` */
    DONE,
    BAD
};

struct recwire_json_list {
    void (*on_item)(void *ctx, const struct kpb_secret *s);
    void *ctx;
    enum state state;
    /* INSIDE */
    enum state next;
    size_t depth;
    bool in_string, escaped;
    bool keep; /* it is gathered in held */
    struct buf held;
    /* The member at hand. */
    bool is_items, is_kind;
    bool items_seen, kind_seen;
};

struct recwire_json_list *
recwire_json_list_new(void (*on_item)(void *ctx, const struct kpb_secret *s), void *ctx)
{
    struct recwire_json_list *l = xcalloc(1, sizeof(*l));
    l->on_item = on_item;
    l->ctx = ctx;
    l->held = (struct buf)BUF_INIT(KPB_BYTES_MAX);
    return l;
}

void recwire_json_list_free(struct recwire_json_list *l)
{
    if (l != NULL) {
        buf_release(&l->held);
        free(l);
    }
}

/* The byte that begins it is still to come. */
static enum state begin(struct recwire_json_list *l, enum state next, bool keep, size_t max_len)
{
    l->next = next;
    l->depth = 0;
    l->in_string = l->escaped = false;
    l->keep = keep;
    buf_reset(&l->held);
    l->held.max_len = max_len;
    return INSIDE;
}

static bool held_is(const struct recwire_json_list *l, const char *text)
{
    return strcmp(buf_str(&l->held), text) == 0;
}

static enum state end_key(struct recwire_json_list *l)
{
    if (strcspn(buf_str(&l->held), "\\") != l->held.len) {
        return BAD; /* an escape: it could be "items" without looking like it; or a NUL */
    }
    l->is_items = held_is(l, "\"items\"");
    l->is_kind = held_is(l, "\"kind\"");
    if ((l->is_items && l->items_seen) || (l->is_kind && l->kind_seen)) {
        return BAD;
    }
    l->items_seen = l->items_seen || l->is_items;
    l->kind_seen = l->kind_seen || l->is_kind;
    return COLON;
}

/* All of a key, a value or an item is there. */
static enum state end(struct recwire_json_list *l)
{
    if (l->next == COLON) {
        return end_key(l);
    }
    if (l->next == AFTER_VALUE) {
        return l->is_kind && !held_is(l, "\"SecretList\"") ? BAD
               : l->is_items && !held_is(l, "null")        ? BAD
                                                           : AFTER_VALUE;
    }
    struct kpb_secret s = {0};
    struct err ignored = ERR_INIT;
    if (recwire_json_parse(buf_str(&l->held), l->held.len, &s, &ignored)) {
        return BAD;
    }
    l->on_item(l->ctx, &s);
    kpb_secret_release(&s);
    return AFTER_ITEM;
}

/* How many of these bytes belong to what is inside; *ret_ended if it ends with them. */
static size_t inside(struct recwire_json_list *l, const char *bytes, size_t len, bool *ret_ended)
{
    for (size_t i = 0; i < len; i++) {
        char c = bytes[i];
        if (l->in_string) {
            l->in_string = l->escaped || c != '"';
            l->escaped = !l->escaped && c == '\\';
            if (!l->in_string && l->depth == 0) {
                *ret_ended = true;
                return i + 1;
            }
        } else if (c == '"') {
            l->in_string = true;
        } else if (c == '{' || c == '[') {
            l->depth++;
        } else if (l->depth > 0 && (c == '}' || c == ']')) {
            if (--l->depth == 0) {
                *ret_ended = true;
                return i + 1;
            }
        } else if (l->depth == 0 && strchr(",]} \n\r\t", c) != NULL) {
            *ret_ended = true; /* a literal, and a byte that is not of it */
            return i;
        }
    }
    return len;
}

/* A comma or a closing bracket. */
static enum state after(char c, enum state more, char closing, enum state closed)
{
    return c == ',' ? more : c == closing ? closed : BAD;
}

/* A value begins with c, which is not consumed unless it opens the items. */
static enum state begin_value(struct recwire_json_list *l, char c, bool *ret_consumed)
{
    if (l->is_items && c == '[') {
        *ret_consumed = true;
        return FIRST_ITEM;
    }
    if (strchr(":,]}", c) != NULL) {
        return BAD;
    }
    return begin(l, AFTER_VALUE, l->is_items || l->is_kind, WORD_MAX);
}

/* c is no blank, and between values. */
static enum state on_byte(struct recwire_json_list *l, char c, bool *ret_consumed)
{
    *ret_consumed = true;
    switch (l->state) {
    case OPEN:
        return c == '{' ? FIRST_KEY : BAD;
    case FIRST_KEY:
    case KEY:
        if (c == '}' && l->state == FIRST_KEY) {
            return DONE;
        }
        *ret_consumed = false;
        return c == '"' ? begin(l, COLON, true, WORD_MAX) : BAD;
    case COLON:
        return c == ':' ? VALUE : BAD;
    case VALUE:
        *ret_consumed = false;
        return begin_value(l, c, ret_consumed);
    case AFTER_VALUE:
        return after(c, KEY, '}', DONE);
    case FIRST_ITEM:
    case ITEM:
        if (c == ']' && l->state == FIRST_ITEM) {
            return AFTER_VALUE;
        }
        *ret_consumed = false;
        return c == '{' ? begin(l, AFTER_ITEM, true, KPB_BYTES_MAX) : BAD;
    case AFTER_ITEM:
        return after(c, ITEM, ']', AFTER_VALUE);
    case INSIDE:
    case DONE:
    case BAD:
        break;
    }
    return BAD;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

bool recwire_json_list_feed(struct recwire_json_list *l, const char *bytes, size_t len)
{
    while (len > 0 && l->state != BAD) {
        size_t take = 1;
        if (l->state == INSIDE) {
            bool ended = false;
            take = inside(l, bytes, len, &ended);
            if (l->keep) {
                buf_add(&l->held, bytes, take);
            }
            if (l->held.overflow) {
                l->state = BAD;
            } else if (ended) {
                l->state = end(l);
            }
        } else if (!is_blank(bytes[0])) {
            bool consumed = false;
            l->state = on_byte(l, bytes[0], &consumed);
            take = consumed ? 1 : 0;
        }
        bytes += take;
        len -= take;
    }
    if (l->state == BAD) {
        buf_release(&l->held);
    }
    return l->state != BAD;
}
