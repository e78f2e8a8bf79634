/* A SecretList as it streams by.
 *
 *   MAGIC -> TAG -> (LENGTH | NUMBER | CONTENT) -> TAG ... of the envelope, until raw begins;
 *   then the same for the list's own fields, until raw ends: DONE. BAD from anywhere. */
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "kpb/kpb_internal.h"

/* "v1" and "SecretList" and room: what is longer is another type. */
#define TYPE_META_MAX ((size_t)256)

enum state { MAGIC, TAG, LENGTH, NUMBER, CONTENT, DONE, BAD };

struct kpb_list {
    void (*on_item)(void *ctx, const struct kpb_secret *s);
    void *ctx;
    enum state state;
    size_t magic_count;
    bool typed;        /* the envelope said that it is a v1 SecretList */
    bool in_raw;       /* the fields are the list's, no more the envelope's */
    uint64_t raw_left; /* bytes of raw that are still to come */
    struct kpb_varint varint;
    uint32_t number; /* of the field at hand */
    uint64_t left;   /* CONTENT: bytes that are still to come */
    bool keep;       /* CONTENT: it is wanted, and gathered in held */
    struct buf held;
};

struct kpb_list *kpb_list_new(void (*on_item)(void *ctx, const struct kpb_secret *s), void *ctx)
{
    struct kpb_list *l = xcalloc(1, sizeof(*l));
    l->on_item = on_item;
    l->ctx = ctx;
    l->held = (struct buf)BUF_INIT(KPB_BYTES_MAX);
    return l;
}

void kpb_list_free(struct kpb_list *l)
{
    if (l != NULL) {
        buf_release(&l->held);
        free(l);
    }
}

static enum state next_tag(struct kpb_list *l)
{
    l->varint = (struct kpb_varint){0};
    return l->in_raw && l->raw_left == 0 ? DONE : TAG;
}

/* All of a field's content is there. */
static enum state end_content(struct kpb_list *l)
{
    struct kpb_slice held = {(const unsigned char *)buf_str(&l->held), l->held.len};
    if (l->keep && !l->in_raw) {
        if (l->typed || !kpb_type_is(held, "SecretList")) {
            return BAD;
        }
        l->typed = true;
    } else if (l->keep) {
        struct kpb_secret s = {0};
        if (!kpb_secret_read(held, &s)) {
            return BAD;
        }
        l->on_item(l->ctx, &s);
        kpb_secret_release(&s);
    }
    buf_reset(&l->held);
    return next_tag(l);
}

static enum state begin_content(struct kpb_list *l, uint64_t len, bool keep)
{
    if (l->in_raw && len > l->raw_left) {
        return BAD;
    }
    if (keep && len > (l->in_raw ? KPB_BYTES_MAX : TYPE_META_MAX)) {
        return BAD;
    }
    l->left = len;
    l->keep = keep;
    return len > 0 ? CONTENT : end_content(l);
}

static enum state on_length(struct kpb_list *l, uint64_t len)
{
    if (l->in_raw) {
        return begin_content(l, len, l->number == 2);
    }
    if (l->number == 2) {
        if (!l->typed) {
            return BAD; /* the server names the type first */
        }
        l->in_raw = true;
        l->raw_left = len;
        return next_tag(l);
    }
    if (l->number == 3 && len > 0) {
        return BAD; /* an encoded content */
    }
    return begin_content(l, len, l->number == 1);
}

static enum state on_tag(struct kpb_list *l, uint64_t tag)
{
    enum kpb_wire wire;
    if (!kpb_tag_split(tag, &l->number, &wire)) {
        return BAD;
    }
    if (l->number <= (l->in_raw ? 2U : 4U) && wire != KPB_BYTES) {
        return BAD;
    }
    l->varint = (struct kpb_varint){0};
    switch (wire) {
    case KPB_BYTES:
        return LENGTH;
    case KPB_VARINT:
        return NUMBER;
    case KPB_FIXED64:
        return begin_content(l, 8, false);
    case KPB_FIXED32:
        return begin_content(l, 4, false);
    }
    return BAD;
}

static enum state on_byte(struct kpb_list *l, unsigned char byte)
{
    if (l->state == MAGIC) {
        if (byte != (unsigned char)KPB_MAGIC[l->magic_count++]) {
            return BAD;
        }
        return l->magic_count == KPB_MAGIC_LEN ? TAG : MAGIC;
    }
    if (l->in_raw) {
        l->raw_left--;
    }
    enum kpb_step step = kpb_varint_feed(&l->varint, byte);
    if (step == KPB_MORE) {
        return l->in_raw && l->raw_left == 0 ? BAD : l->state;
    }
    if (step == KPB_BAD) {
        return BAD;
    }
    uint64_t value = l->varint.value;
    enum state next = l->state == TAG      ? on_tag(l, value)
                      : l->state == LENGTH ? on_length(l, value)
                                           : next_tag(l);
    /* A field that has begun needs another byte. */
    bool cut = l->in_raw && l->raw_left == 0 && (next == LENGTH || next == NUMBER);
    return cut ? BAD : next;
}

bool kpb_list_feed(struct kpb_list *l, const char *bytes, size_t len)
{
    while (len > 0 && l->state != DONE && l->state != BAD) {
        if (l->state != CONTENT) {
            l->state = on_byte(l, (unsigned char)bytes[0]);
            bytes++;
            len--;
            continue;
        }
        size_t take = l->left < len ? (size_t)l->left : len;
        if (l->keep) {
            buf_add(&l->held, bytes, take);
            must(!l->held.overflow);
        }
        bytes += take;
        len -= take;
        l->left -= take;
        l->raw_left -= l->in_raw ? take : 0;
        if (l->left == 0) {
            l->state = end_content(l);
        }
    }
    return l->state != BAD;
}
