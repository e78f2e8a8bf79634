/* An envelope in one piece: reading and amending. Where this is stricter than the server's decoder
 * (wire types of map entries, tags over 32 bits, a second raw), it refuses: the two must never
 * understand the same bytes differently. */
#include "kpb/kpb.h"

#include <openssl/evp.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "kpb/kpb_internal.h"

/* ---- fields ---- */

enum kpb_step kpb_varint_feed(struct kpb_varint *v, unsigned char byte)
{
    must(v->count < 10); /* a tenth byte is the last, or it is bad */
    if (v->count == 9 && byte > 1) {
        return KPB_BAD;
    }
    v->value |= (uint64_t)(byte & 0x7f) << (7 * v->count);
    v->count++;
    return (byte & 0x80) != 0 ? KPB_MORE : KPB_WHOLE;
}

bool kpb_tag_split(uint64_t tag, uint32_t *ret_number, enum kpb_wire *ret_wire)
{
    uint64_t number = tag >> 3;
    uint64_t wire = tag & 7;
    if (number == 0 || number > KPB_FIELD_MAX ||
        (wire != KPB_VARINT && wire != KPB_FIXED64 && wire != KPB_BYTES && wire != KPB_FIXED32)) {
        return false;
    }
    *ret_number = (uint32_t)number;
    *ret_wire = (enum kpb_wire)wire;
    return true;
}

static bool read_varint(struct kpb_slice *in, uint64_t *ret)
{
    struct kpb_varint v = {0};
    enum kpb_step step = KPB_MORE;
    while (step == KPB_MORE && in->len > 0) {
        step = kpb_varint_feed(&v, in->at[0]);
        in->at++;
        in->len--;
    }
    *ret = v.value;
    return step == KPB_WHOLE;
}

struct field {
    uint32_t number;
    enum kpb_wire wire;
    struct kpb_slice value; /* KPB_BYTES: the content */
    struct kpb_slice whole; /* tag, length and all */
};

/* Take the field that *in begins with (in->len > 0). */
static bool next_field(struct kpb_slice *in, struct field *ret)
{
    uint64_t number = 0;
    uint64_t len = 0;
    ret->whole.at = in->at;
    if (!read_varint(in, &number) || !kpb_tag_split(number, &ret->number, &ret->wire)) {
        return false;
    }
    ret->value.at = in->at;
    switch (ret->wire) {
    case KPB_VARINT:
        if (!read_varint(in, &number)) {
            return false;
        }
        break; /* it is taken already */
    case KPB_FIXED64:
        len = 8;
        break;
    case KPB_FIXED32:
        len = 4;
        break;
    case KPB_BYTES:
        if (!read_varint(in, &len)) {
            return false;
        }
        ret->value.at = in->at;
        break;
    }
    if (len > in->len) {
        return false;
    }
    in->at += len;
    in->len -= (size_t)len;
    ret->value.len = (size_t)(in->at - ret->value.at);
    ret->whole.len = (size_t)(in->at - ret->whole.at);
    return true;
}

static bool slice_is(struct kpb_slice s, const char *text)
{
    return s.len == strlen(text) && (s.len == 0 || memcmp(s.at, text, s.len) == 0);
}

/* ---- messages ---- */

struct type_meta {
    struct kpb_slice api_version, kind;
};

static bool read_type_meta(struct kpb_slice in, struct type_meta *t)
{
    while (in.len > 0) {
        struct field f;
        if (!next_field(&in, &f) || (f.number <= 2 && f.wire != KPB_BYTES)) {
            return false;
        }
        if (f.number == 1) {
            t->api_version = f.value;
        } else if (f.number == 2) {
            t->kind = f.value;
        }
    }
    return true;
}

static bool type_is(const struct type_meta *t, const char *kind)
{
    return slice_is(t->api_version, "v1") && slice_is(t->kind, kind);
}

bool kpb_type_is(struct kpb_slice type_meta, const char *kind)
{
    struct type_meta t = {0};
    return read_type_meta(type_meta, &t) && type_is(&t, kind);
}

struct entry {
    struct kpb_slice key, value;
};

static bool read_entry(struct kpb_slice in, struct entry *e)
{
    *e = (struct entry){0};
    while (in.len > 0) {
        struct field f;
        if (!next_field(&in, &f) || (f.number <= 2 && f.wire != KPB_BYTES)) {
            return false;
        }
        if (f.number == 1) {
            e->key = f.value;
        } else if (f.number == 2) {
            e->value = f.value;
        }
    }
    return true;
}

/* What is kept of a Secret; borrowed from its bytes. */
struct view {
    struct kpb_slice name, ns, uid, resource_version, label_status, label_name, release;
    bool has_release;
};

static bool read_label(struct kpb_slice in, struct view *v)
{
    struct entry e;
    if (!read_entry(in, &e)) {
        return false;
    }
    if (slice_is(e.key, "status")) {
        v->label_status = e.value;
    } else if (slice_is(e.key, "name")) {
        v->label_name = e.value;
    }
    return true;
}

/* Where a field of v of this number goes; NULL: it is not kept. */
static struct kpb_slice *meta_place(struct view *v, uint32_t number)
{
    return number == 1   ? &v->name
           : number == 3 ? &v->ns
           : number == 5 ? &v->uid
           : number == 6 ? &v->resource_version
                         : NULL;
}

/* Into what v holds already: an ObjectMeta that comes again is merged. */
static bool read_object_meta(struct kpb_slice in, struct view *v)
{
    while (in.len > 0) {
        struct field f;
        if (!next_field(&in, &f)) {
            return false;
        }
        struct kpb_slice *place = meta_place(v, f.number);
        if (place == NULL && f.number != 11) {
            continue;
        }
        if (f.wire != KPB_BYTES || (f.number == 11 && !read_label(f.value, v))) {
            return false;
        }
        if (place != NULL) {
            *place = f.value;
        }
    }
    return true;
}

static bool read_data(struct kpb_slice in, struct view *v)
{
    struct entry e;
    if (!read_entry(in, &e)) {
        return false;
    }
    if (slice_is(e.key, "release")) {
        v->release = e.value;
        v->has_release = true;
    }
    return true;
}

static bool read_secret(struct kpb_slice in, struct view *v)
{
    while (in.len > 0) {
        struct field f;
        if (!next_field(&in, &f)) {
            return false;
        }
        if (f.number > 2) {
            continue;
        }
        if (f.wire != KPB_BYTES ||
            !(f.number == 1 ? read_object_meta(f.value, v) : read_data(f.value, v))) {
            return false;
        }
    }
    /* The texts become C strings: one that a NUL would cut is not the server's. */
    const struct kpb_slice *texts[] = {
        &v->name, &v->ns, &v->uid, &v->resource_version, &v->label_status, &v->label_name};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i]->len > 0 && memchr(texts[i]->at, '\0', texts[i]->len) != NULL) {
            return false;
        }
    }
    return true;
}

static char *text_of(struct kpb_slice s)
{
    return s.len == 0 ? xstrdup("") : xstrndup((const char *)s.at, s.len);
}

bool kpb_secret_read(struct kpb_slice raw, struct kpb_secret *ret)
{
    struct view v = {0};
    if (!read_secret(raw, &v)) {
        return false;
    }
    *ret = (struct kpb_secret){.name = text_of(v.name),
                               .ns = text_of(v.ns),
                               .uid = text_of(v.uid),
                               .resource_version = text_of(v.resource_version),
                               .label_status = text_of(v.label_status),
                               .label_name = text_of(v.label_name),
                               .has_release = v.has_release};
    if (v.has_release) {
        must(EVP_Digest(v.release.len > 0 ? (const void *)v.release.at : "", v.release.len,
                        ret->release_hash, NULL, EVP_sha256(), NULL) == 1);
    }
    return true;
}

void kpb_secret_release(struct kpb_secret *s)
{
    free(s->name);
    free(s->ns);
    free(s->uid);
    free(s->resource_version);
    free(s->label_status);
    free(s->label_name);
    *s = (struct kpb_secret){0};
}

/* ---- the envelope ---- */

struct envelope {
    struct type_meta type;
    bool has_raw;
    struct kpb_slice raw;    /* the content */
    struct kpb_slice before; /* the magic and the fields in front of raw */
    struct kpb_slice after;  /* the fields behind it */
};

/* What is wrong with it, NULL if nothing. */
static const char *read_envelope(struct kpb_slice in, struct envelope *e)
{
    const unsigned char *begin = in.at;
    if (in.len < KPB_MAGIC_LEN || memcmp(in.at, KPB_MAGIC, KPB_MAGIC_LEN) != 0) {
        return "it is no Kubernetes protobuf";
    }
    in.at += KPB_MAGIC_LEN;
    in.len -= KPB_MAGIC_LEN;
    while (in.len > 0) {
        struct field f;
        if (!next_field(&in, &f) || (f.number <= 4 && f.wire != KPB_BYTES) ||
            (f.number == 1 && !read_type_meta(f.value, &e->type))) {
            return "its envelope is malformed";
        }
        if (f.number == 3 && f.value.len > 0) {
            return "its content is encoded";
        }
        if (f.number == 2 && e->has_raw) {
            return "it holds two objects";
        }
        if (f.number == 2) {
            e->has_raw = true;
            e->raw = f.value;
            e->before = (struct kpb_slice){begin, (size_t)(f.whole.at - begin)};
            e->after = in;
        }
    }
    return e->has_raw ? NULL : "it holds no object";
}

/* The envelope of a v1 Secret, its own message not yet looked at. */
static enum err_kind open_secret(const char *bytes, size_t len, struct envelope *e, struct err *err)
{
    if (len > KPB_BYTES_MAX) {
        return err_set(err, ERR_LIMIT, "a Secret of %zu bytes, over %zu", len, KPB_BYTES_MAX);
    }
    const char *why = read_envelope((struct kpb_slice){(const unsigned char *)bytes, len}, e);
    if (why == NULL && !type_is(&e->type, "Secret")) {
        why = "it is no v1 Secret";
    }
    return why == NULL ? ERR_NONE : err_set(err, ERR_INVALID, "no Secret can be read: %s", why);
}

enum err_kind kpb_secret_parse(const char *bytes, size_t len, struct kpb_secret *ret,
                               struct err *err)
{
    struct envelope e = {0};
    if (open_secret(bytes, len, &e, err)) {
        return err->kind;
    }
    return kpb_secret_read(e.raw, ret) ? ERR_NONE
                                       : err_set(err, ERR_INVALID, "the Secret is malformed");
}

/* ---- amending ---- */

static void add_varint(struct buf *b, uint64_t value)
{
    for (; value > 0x7f; value >>= 7) {
        buf_add_char(b, (char)(value | 0x80));
    }
    buf_add_char(b, (char)value);
}

static size_t varint_len(uint64_t value)
{
    size_t len = 1;
    for (; value > 0x7f; value >>= 7) {
        len++;
    }
    return len;
}

/* number < 16: its tag is one byte. */
static void add_bytes(struct buf *b, unsigned number, const char *bytes, size_t len)
{
    must(number < 16);
    buf_add_char(b, (char)(number << 3 | KPB_BYTES));
    add_varint(b, len);
    buf_add(b, bytes, len);
}

static size_t bytes_len(size_t len)
{
    return 1 + varint_len(len) + len;
}

/* The field to append to a Secret; empty if there is nothing to say. */
static void add_object_meta(struct buf *b, const char *resource_version,
                            const struct kpb_annotation *annotations, size_t n)
{
    struct buf meta = BUF_INIT(KPB_AMENDMENT_MAX);
    if (resource_version != NULL) {
        add_bytes(&meta, 6, resource_version, strlen(resource_version));
    }
    for (size_t i = 0; i < n; i++) {
        size_t key_len = strlen(annotations[i].key);
        size_t value_len = strlen(annotations[i].value);
        buf_add_char(&meta, (char)(12 << 3 | KPB_BYTES));
        add_varint(&meta, bytes_len(key_len) + bytes_len(value_len));
        add_bytes(&meta, 1, annotations[i].key, key_len);
        add_bytes(&meta, 2, annotations[i].value, value_len);
    }
    if (meta.len > 0) {
        add_bytes(b, 1, buf_str(&meta), meta.len);
    }
    b->overflow = b->overflow || meta.overflow;
    buf_release(&meta);
}

static void buf_release_ptr(struct buf *b)
{
    buf_release(b);
}

enum err_kind kpb_secret_amend(const char *bytes, size_t len, const char *resource_version,
                               const struct kpb_annotation *annotations, size_t n, struct buf *ret,
                               struct err *err)
{
    struct envelope e = {0};
    if (open_secret(bytes, len, &e, err)) {
        return err->kind;
    }
    struct view checked = {0};
    if (!read_secret(e.raw, &checked)) {
        return err_set(err, ERR_INVALID, "the Secret is malformed");
    }
    _cleanup_(buf_release_ptr)
    struct buf meta = BUF_INIT(KPB_AMENDMENT_MAX);
    add_object_meta(&meta, resource_version, annotations, n);
    size_t room = ret->overflow ? 0 : ret->max_len - ret->len;
    size_t raw_len = e.raw.len + meta.len;
    if (meta.overflow || e.before.len + bytes_len(raw_len) + e.after.len > room) {
        return err_set(err, ERR_LIMIT, "what is to be added to the Secret is too long");
    }
    buf_add(ret, e.before.at, e.before.len);
    buf_add_char(ret, (char)(2 << 3 | KPB_BYTES));
    add_varint(ret, raw_len);
    buf_add(ret, e.raw.at, e.raw.len);
    buf_add(ret, buf_str(&meta), meta.len);
    buf_add(ret, e.after.at, e.after.len);
    return ERR_NONE;
}
