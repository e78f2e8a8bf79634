/* Secrets in Kubernetes' protobuf: read, amended, and as lists that stream by. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/text.h"
#include "kpb/kpb.h"

#define ENV(raw)                                                                                   \
    "k8s\0"                                                                                        \
    "\x0a\x0c\x0a\x02v1\x12\x06Secret" raw
/* A literal without its NUL. */
#define LIT(s)    s, sizeof(s) - 1
#define BIG       ((size_t)900 << 10)
#define ABC       "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define NOTHING   "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define ROWS(r)   (sizeof(r) / sizeof((r)[0]))
#define BUF_LARGE BUF_INIT(16U << 20)

/* ---- making bytes ---- */

static void put_varint(struct buf *b, uint64_t v)
{
    for (; v > 0x7f; v >>= 7) {
        buf_add_char(b, (char)(v | 0x80));
    }
    buf_add_char(b, (char)v);
}

static void put(struct buf *b, unsigned number, const void *bytes, size_t len)
{
    put_varint(b, number << 3 | 2);
    put_varint(b, len);
    buf_add(b, bytes, len);
}

static void put_text(struct buf *b, unsigned number, const char *text)
{
    put(b, number, text, strlen(text));
}

static void put_entry(struct buf *b, unsigned number, const char *key, const char *value,
                      size_t value_len)
{
    struct buf e = BUF_LARGE;
    put_text(&e, 1, key);
    put(&e, 2, value, value_len);
    put(b, number, e.data, e.len);
    buf_release(&e);
}

/* A record as the API server writes it, with fields that nobody here reads. */
static void put_record(struct buf *raw, const char *name, const char *version, const char *release,
                       size_t release_len)
{
    struct buf meta = BUF_LARGE;
    put_text(&meta, 1, name);
    put_text(&meta, 2, "");
    put_text(&meta, 3, "team");
    put_text(&meta, 5, "u-1");
    put_text(&meta, 6, version);
    put_varint(&meta, 7 << 3); /* generation */
    put_varint(&meta, 300);
    put_entry(&meta, 11, "name", "web", 3);
    put_entry(&meta, 11, "owner", "helm", 4);
    put_entry(&meta, 11, "status", "deployed", 8);
    put_entry(&meta, 12, "a", "1", 1);
    put(raw, 1, meta.data, meta.len);
    put_entry(raw, 2, "release", release, release_len);
    put_text(raw, 3, "helm.sh/release.v1");
    buf_release(&meta);
}

static void put_envelope(struct buf *b, const char *kind, const struct buf *raw)
{
    struct buf type = BUF_LARGE;
    put_text(&type, 1, "v1");
    put_text(&type, 2, kind);
    buf_add(b, "k8s\0", 4);
    put(b, 1, type.data, type.len);
    put(b, 2, buf_str(raw), raw->len);
    put_text(b, 3, "");
    put_text(b, 4, "");
    buf_release(&type);
}

/* ---- reading ---- */

/* A copy of just these bytes, so that a sanitizer sees a step too far. */
static enum err_kind parse(const char *bytes, size_t len, struct kpb_secret *ret)
{
    struct err err = ERR_INIT;
    char *copy = xmalloc(len);
    memcpy(copy, bytes, len);
    enum err_kind kind = kpb_secret_parse(copy, len, ret, &err);
    free(copy);
    assert_int_equal(kind, err.kind);
    return kind;
}

static void assert_hash(const struct kpb_secret *s, const char *want)
{
    char hex[2 * KPB_HASH_LEN + 1];
    text_hex(s->release_hash, KPB_HASH_LEN, hex);
    assert_string_equal(hex, want);
}

static void a_record_is_read(void **state)
{
    (void)state;
    struct buf raw = BUF_LARGE;
    struct buf bytes = BUF_LARGE;
    put_record(&raw, "sh.helm.release.v1.web.v4", "417", "abc", 3);
    put_envelope(&bytes, "Secret", &raw);
    struct kpb_secret s = {0};
    assert_int_equal(parse(bytes.data, bytes.len, &s), ERR_NONE);
    assert_string_equal(s.name, "sh.helm.release.v1.web.v4");
    assert_string_equal(s.ns, "team");
    assert_string_equal(s.uid, "u-1");
    assert_string_equal(s.resource_version, "417");
    assert_string_equal(s.label_status, "deployed");
    assert_string_equal(s.label_name, "web");
    assert_true(s.has_release);
    assert_hash(&s, ABC);
    kpb_secret_release(&s);
    assert_null(s.name);
    buf_release(&raw);
    buf_release(&bytes);
}

struct good_row {
    const char *name;
    const char *bytes;
    size_t len;
    const char *want; /* name/ns/uid/version/status/name label */
    const char *hash; /* NULL: no release */
};

static const struct good_row good_rows[] = {
    {"an empty Secret", LIT(ENV("\x12\x00")), "/////", NULL},
    {"the type behind the object",
     LIT("k8s\0\x12\x05\x0a\x03\x0a\x01n"
         "\x0a\x0c\x0a\x02v1\x12\x06Secret"),
     "n/////", NULL},
    {"the type in two pieces, merged",
     LIT("k8s\0\x0a\x04\x0a\x02v1"
         "\x0a\x08\x12\x06Secret\x12\x00"),
     "/////", NULL},
    {"metadata twice: scalars from the last, the others kept",
     LIT(ENV("\x12\x11\x0a\x06\x0a\x01n\x32\x01"
             "1\x0a\x07\x1a\x02ns\x32\x01"
             "2")),
     "n/ns//2//", NULL},
    {"a scalar twice in one metadata",
     LIT(ENV("\x12\x08\x0a\x06\x32\x01"
             "1\x32\x01"
             "2")),
     "///2//", NULL},
    {"labels in two metadata",
     LIT(ENV("\x12\x26"
             "\x0a\x15\x5a\x0b\x0a\x06status\x12\x01"
             "a\x5a\x06\x0a\x01x\x12\x01z"
             "\x0a\x0d\x5a\x0b\x0a\x04name\x12\x03web")),
     "////a/web", NULL},
    {"a label twice: the last",
     LIT(ENV("\x12\x1c\x0a\x1a"
             "\x5a\x0b\x0a\x06status\x12\x01"
             "a\x5a\x0b\x0a\x06status\x12\x01"
             "b")),
     "////b/", NULL},
    {"a label without a value", LIT(ENV("\x12\x0c\x0a\x0a\x5a\x08\x0a\x06status")), "/////", NULL},
    {"value before key",
     LIT(ENV("\x12\x0f\x0a\x0d\x5a\x0b\x12\x01"
             "a\x0a\x06status")),
     "////a/", NULL},
    {"a release of no bytes", LIT(ENV("\x12\x0d\x12\x0b\x0a\x07release\x12\x00")), "/////",
     NOTHING},
    {"a release without a value", LIT(ENV("\x12\x0b\x12\x09\x0a\x07release")), "/////", NOTHING},
    {"other data", LIT(ENV("\x12\x0e\x12\x0c\x0a\x08releases\x12\x00")), "/////", NULL},
    {"the release twice: the last",
     LIT(ENV("\x12\x1e\x12\x0c\x0a\x07release\x12\x01"
             "x\x12\x0e\x0a\x07release\x12\x03"
             "abc")),
     "/////", ABC},
    {"a NUL in the release is data", LIT(ENV("\x12\x0e\x12\x0c\x0a\x07release\x12\x01\0")), "/////",
     "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"},
    {"unknown fields of all types, in the envelope",
     LIT(ENV("\x28\x96\x01\x31"
             "12345678\x3a\x01x\x45"
             "1234\x12\x00")),
     "/////", NULL},
    {"unknown fields of all types, in the Secret and its metadata",
     LIT(ENV("\x12\x20\x28\x01\x31"
             "12345678\x0a\x0e\x21"
             "12345678\x3d"
             "1234\x45"
             "1234")),
     "/////", NULL},
    {"a length in more bytes than it needs",
     LIT(ENV("\x12\x88\x80\x00\x0a\x06\x0a\x83\x00"
             "web")),
     "web/////", NULL},
    {"the largest varint", LIT(ENV("\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x12\x00")),
     "/////", NULL},
};

static void check_good(const struct good_row *row)
{
    struct kpb_secret s = {0};
    if (parse(row->bytes, row->len, &s) != ERR_NONE) {
        fail_msg("%s: refused", row->name);
    }
    _cleanup_(free_cstr)
    char *got = xasprintf("%s/%s/%s/%s/%s/%s", s.name, s.ns, s.uid, s.resource_version,
                          s.label_status, s.label_name);
    if (strcmp(got, row->want) != 0 || s.has_release != (row->hash != NULL)) {
        fail_msg("%s: got %s, release %d", row->name, got, s.has_release);
    }
    if (row->hash != NULL) {
        assert_hash(&s, row->hash);
    }
    kpb_secret_release(&s);
}

static void what_the_server_may_write_is_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS(good_rows); i++) {
        check_good(&good_rows[i]);
    }
}

struct bad_row {
    const char *name;
    const char *bytes;
    size_t len;
};

static const struct bad_row bad_rows[] = {
    {"nothing", "", 0},
    {"JSON", LIT("{\"kind\":\"Secret\"}")},
    {"the magic alone", LIT("k8s\0")},
    {"another magic", LIT("k8t\0\x0a\x0c\x0a\x02v1\x12\x06Secret\x12\x00")},
    {"no object", LIT(ENV(""))},
    {"no type", LIT("k8s\0\x12\x00")},
    {"another kind", LIT("k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12\x00")},
    {"a longer kind", LIT("k8s\0\x0a\x0d\x0a\x02v1\x12\x07Secrets\x12\x00")},
    {"a list", LIT("k8s\0\x0a\x10\x0a\x02v1\x12\x0aSecretList\x12\x00")},
    {"another version", LIT("k8s\0\x0a\x0c\x0a\x02v2\x12\x06Secret\x12\x00")},
    {"two objects", LIT(ENV("\x12\x00\x12\x00"))},
    {"an encoded object", LIT(ENV("\x12\x00\x1a\x04gzip"))},
    {"an object that is a number", LIT(ENV("\x10\x00"))},
    {"an object of a fixed length", LIT(ENV("\x11\x28\x01\x28\x01\x28\x01\x28\x01"))},
    {"a content encoding that is a number", LIT(ENV("\x12\x00\x18\x00"))},
    {"a content type that is a number", LIT(ENV("\x12\x00\x20\x00"))},
    {"a type that is a number", LIT("k8s\0\x08\x01\x12\x00")},
    {"a kind that is a number", LIT("k8s\0\x0a\x06\x0a\x02v1\x10\x01\x12\x00")},
    {"an object longer than the bytes", LIT(ENV("\x12\x01"))},
    {"a length of 2^63", LIT(ENV("\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"))},
    {"a length over 64 bits", LIT(ENV("\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02"))},
    {"a varint of eleven bytes",
     LIT(ENV("\x12\x00\x28\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"))},
    {"a varint without its end", LIT(ENV("\x12\x00\x28\x80"))},
    {"a fixed64 that is cut", LIT(ENV("\x12\x00\x31"
                                      "1234567"))},
    {"a fixed32 that is cut", LIT(ENV("\x12\x00\x45"
                                      "123"))},
    {"field number 0", LIT(ENV("\x12\x00\x02\x00"))},
    {"a tag that a reader of 32 bits takes for another", LIT(ENV("\x92\x80\x80\x80\x80\x01\x00"))},
    {"a field number over 2^29", LIT(ENV("\x12\x00\x80\x80\x80\x80\x10\x00"))},
    {"a group", LIT(ENV("\x12\x00\x2b\x2c"))},
    {"wire type 6", LIT(ENV("\x12\x00\x2e"))},
    {"wire type 7", LIT(ENV("\x12\x00\x2f"))},
    {"metadata that is a number", LIT(ENV("\x12\x02\x08\x01"))},
    {"data that is a number", LIT(ENV("\x12\x02\x10\x01"))},
    {"a name that is a number", LIT(ENV("\x12\x04\x0a\x02\x08\x01"))},
    {"a resourceVersion of 8 bytes", LIT(ENV("\x12\x0b\x0a\x09\x31"
                                             "12345678"))},
    {"labels that are a number", LIT(ENV("\x12\x04\x0a\x02\x58\x01"))},
    {"a label's key that is a number", LIT(ENV("\x12\x06\x0a\x04\x5a\x02\x08\x01"))},
    {"a label longer than its metadata", LIT(ENV("\x12\x06\x0a\x02\x5a\x02\x0a\x00"))},
    {"metadata longer than the Secret", LIT(ENV("\x12\x02\x0a\x03\x1a\x03"
                                                "abc"))},
    {"a release longer than its entry", LIT(ENV("\x12\x0d\x12\x0b\x0a\x07release\x12\x01"))},
    {"a group in the Secret", LIT(ENV("\x12\x02\x2b\x2c"))},
    {"a NUL in the name", LIT(ENV("\x12\x07\x0a\x05\x0a\x03"
                                  "a\0b"))},
    {"a NUL in a label", LIT(ENV("\x12\x10\x0a\x0e\x5a\x0c\x0a\x06status\x12\x02"
                                 "a\0"))},
};

static void what_is_no_secret_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS(bad_rows); i++) {
        const struct bad_row *row = &bad_rows[i];
        struct kpb_secret s = {.has_release = true};
        if (parse(row->bytes, row->len, &s) != ERR_INVALID || !s.has_release || s.name != NULL) {
            fail_msg("%s: not refused", row->name);
        }
        struct buf out = BUF_LARGE;
        struct err err = ERR_INIT;
        if (kpb_secret_amend(row->bytes, row->len, "1", NULL, 0, &out, &err) != ERR_INVALID ||
            out.len != 0) {
            fail_msg("%s: amended", row->name);
        }
        buf_release(&out);
    }
}

static void every_cut_is_refused(void **state)
{
    (void)state;
    struct buf raw = BUF_LARGE;
    struct buf bytes = BUF_LARGE;
    put_record(&raw, "web.v4", "417", "abc", 3);
    put_envelope(&bytes, "Secret", &raw);
    bytes.len -= 4; /* the two empty fields behind the object */
    struct kpb_secret s = {0};
    for (size_t len = 0; len < bytes.len; len++) {
        if (parse(bytes.data, len, &s) != ERR_INVALID) {
            fail_msg("cut to %zu of %zu bytes", len, bytes.len);
        }
    }
    assert_int_equal(parse(bytes.data, bytes.len, &s), ERR_NONE);
    kpb_secret_release(&s);
    buf_release(&raw);
    buf_release(&bytes);
}

/* For the sanitizers, and that both ways agree. */
static void every_changed_byte_is_read_or_refused_alike(void **state)
{
    (void)state;
    struct buf raw = BUF_LARGE;
    struct buf bytes = BUF_LARGE;
    put_record(&raw, "web.v4", "417", "abc", 3);
    put_envelope(&bytes, "Secret", &raw);
    for (size_t i = 0; i < 256 * bytes.len; i++) {
        char *at = &bytes.data[i / 256];
        char old = *at;
        *at = (char)(i % 256);
        struct kpb_secret s = {0};
        struct buf out = BUF_LARGE;
        struct err err = ERR_INIT;
        enum err_kind kind = parse(bytes.data, bytes.len, &s);
        assert_int_equal(kind, kpb_secret_amend(bytes.data, bytes.len, "1", NULL, 0, &out, &err));
        kpb_secret_release(&s);
        buf_release(&out);
        *at = old;
    }
    buf_release(&raw);
    buf_release(&bytes);
}

static void three_mebibytes_are_read_and_no_more(void **state)
{
    (void)state;
    size_t len = KPB_BYTES_MAX + 1;
    char *bytes = xcalloc(1, len);
    /* One unknown field that fills the envelope: 5 bytes before its content, the empty object. */
    struct buf b = BUF_LARGE;
    buf_add(&b, LIT(ENV("\x12\x00")));
    buf_add(&b, "\x3a", 1);
    put_varint(&b, KPB_BYTES_MAX - b.len - 4);
    memcpy(bytes, b.data, b.len);
    assert_int_equal(b.len, 4 + 14 + 2 + 1 + 4);
    struct kpb_secret s = {0};
    assert_int_equal(parse(bytes, KPB_BYTES_MAX, &s), ERR_NONE);
    kpb_secret_release(&s);
    assert_int_equal(parse(bytes, KPB_BYTES_MAX + 1, &s), ERR_LIMIT);
    buf_release(&b);
    free(bytes);
}

/* ---- amending ---- */

static enum err_kind amend(const char *bytes, size_t len, const char *version,
                           const struct kpb_annotation *a, size_t n, struct buf *ret)
{
    struct err err = ERR_INIT;
    char *copy = xmalloc(len);
    memcpy(copy, bytes, len);
    enum err_kind kind = kpb_secret_amend(copy, len, version, a, n, ret, &err);
    free(copy);
    assert_int_equal(kind, err.kind);
    return kind;
}

struct amend_row {
    const char *name;
    const char *bytes;
    size_t len;
    const char *version;
    struct kpb_annotation annotations[2];
    size_t n;
    const char *want;
    size_t want_len;
};

static const struct amend_row amend_rows[] = {
    {"a version",
     LIT(ENV("\x12\x02\x1a\x00")),
     "417",
     {{0}},
     0,
     LIT(ENV("\x12\x09\x1a\x00\x0a\x05\x32\x03"
             "417"))},
    {"two annotations",
     LIT(ENV("\x12\x00")),
     NULL,
     {{"a", "xy"}, {"k", ""}},
     2,
     LIT(ENV("\x12\x12\x0a\x10\x62\x07\x0a\x01"
             "a\x12\x02xy\x62\x05\x0a\x01k\x12\x00"))},
    {"both",
     LIT(ENV("\x12\x05\x0a\x03\x0a\x01n")),
     "9",
     {{"k", "v"}},
     1,
     LIT(ENV("\x12\x12\x0a\x03\x0a\x01n\x0a\x0b\x32\x01"
             "9\x62\x06\x0a\x01k\x12\x01v"))},
    {"nothing", LIT(ENV("\x12\x02\x1a\x00")), NULL, {{0}}, 0, LIT(ENV("\x12\x02\x1a\x00"))},
    {"what stands around the object stays",
     LIT("k8s\0\x3a\x01x\x0a\x8c\x00\x0a\x02v1\x12\x06Secret\x12\x80\x00\x1a\x00\x22\x01t\x28\x01"),
     "7",
     {{0}},
     0,
     LIT("k8s\0\x3a\x01x\x0a\x8c\x00\x0a\x02v1\x12\x06Secret\x12\x05\x0a\x03\x32\x01"
         "7\x1a\x00\x22\x01t\x28\x01")},
};

static void an_amendment_adds_its_bytes_and_changes_no_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS(amend_rows); i++) {
        const struct amend_row *row = &amend_rows[i];
        struct buf out = BUF_LARGE;
        buf_add_str(&out, "before:");
        enum err_kind kind =
            amend(row->bytes, row->len, row->version, row->annotations, row->n, &out);
        if (kind || out.len != 7 + row->want_len ||
            memcmp(out.data + 7, row->want, row->want_len) != 0) {
            fail_msg("%s: %d, %zu bytes", row->name, kind, out.len);
        }
        buf_release(&out);
    }
}

static void a_long_annotation_is_added_with_the_lengths_that_it_has(void **state)
{
    (void)state;
    for (size_t len = 100; len < 20000; len += len < 200 ? 1 : 5000) {
        _cleanup_(free_cstr)
        char *value = xcalloc(1, len + 1);
        memset(value, 'v', len);
        struct buf meta = BUF_LARGE;
        struct buf raw = BUF_LARGE;
        struct buf before = BUF_LARGE;
        struct buf want = BUF_LARGE;
        struct buf got = BUF_LARGE;
        put_text(&raw, 3, "type");
        put_envelope(&before, "Secret", &raw);
        put_entry(&meta, 12, "key", value, len);
        put(&raw, 1, meta.data, meta.len);
        put_envelope(&want, "Secret", &raw);
        got.max_len = want.len; /* just enough */
        const struct kpb_annotation note = {"key", value};
        assert_int_equal(amend(before.data, before.len, NULL, &note, 1, &got), ERR_NONE);
        assert_int_equal(got.len, want.len);
        assert_memory_equal(got.data, want.data, want.len);
        buf_reset(&got);
        got.max_len = want.len - 1;
        assert_int_equal(amend(before.data, before.len, NULL, &note, 1, &got), ERR_LIMIT);
        buf_release(&meta);
        buf_release(&raw);
        buf_release(&before);
        buf_release(&want);
        buf_release(&got);
    }
}

static void an_amended_record_of_900_kib_keeps_all_but_its_version(void **state)
{
    (void)state;
    char *release = xmalloc(BIG);
    for (size_t i = 0; i < BIG; i++) {
        release[i] = (char)(i * 7 + i / 251);
    }
    struct buf raw = BUF_LARGE;
    struct buf bytes = BUF_LARGE;
    struct buf out = BUF_LARGE;
    put_record(&raw, "web.v4", "417", release, BIG);
    put_envelope(&bytes, "Secret", &raw);
    const struct kpb_annotation notes[] = {{"helm.fluxcd.io/epoch", "12"}, {"x", "y"}};
    assert_int_equal(amend(bytes.data, bytes.len, "500", notes, 2, &out), ERR_NONE);
    struct kpb_secret before = {0};
    struct kpb_secret after = {0};
    assert_int_equal(parse(bytes.data, bytes.len, &before), ERR_NONE);
    assert_int_equal(parse(out.data, out.len, &after), ERR_NONE);
    assert_string_equal(before.resource_version, "417");
    assert_string_equal(after.resource_version, "500");
    assert_string_equal(after.name, before.name);
    assert_string_equal(after.ns, before.ns);
    assert_string_equal(after.uid, before.uid);
    assert_string_equal(after.label_status, before.label_status);
    assert_string_equal(after.label_name, before.label_name);
    assert_memory_equal(after.release_hash, before.release_hash, KPB_HASH_LEN);
    assert_non_null(memmem(out.data, out.len, raw.data, raw.len));
    /* Amended again: the last one counts. */
    struct buf twice = BUF_LARGE;
    assert_int_equal(amend(out.data, out.len, "501", NULL, 0, &twice), ERR_NONE);
    kpb_secret_release(&after);
    assert_int_equal(parse(twice.data, twice.len, &after), ERR_NONE);
    assert_string_equal(after.resource_version, "501");
    kpb_secret_release(&before);
    kpb_secret_release(&after);
    buf_release(&raw);
    buf_release(&bytes);
    buf_release(&out);
    buf_release(&twice);
    free(release);
}

static void an_amendment_without_room_leaves_the_buffer_alone(void **state)
{
    (void)state;
    static const char bytes[] = ENV("\x12\x00");
    size_t whole = sizeof(bytes) - 1 + 7; /* 0a 05 32 03 417 */
    for (size_t room = 1; room <= whole; room++) {
        struct buf out = BUF_INIT(room + 1);
        buf_add_str(&out, "x");
        enum err_kind kind = amend(LIT(bytes), "417", NULL, 0, &out);
        assert_int_equal(kind, room == whole ? ERR_NONE : ERR_LIMIT);
        assert_int_equal(out.len, room == whole ? whole + 1 : 1);
        assert_false(out.overflow);
        buf_release(&out);
    }
    char *text = xcalloc(1, KPB_AMENDMENT_MAX + 1);
    memset(text, 'x', KPB_AMENDMENT_MAX);
    struct buf out = BUF_LARGE;
    const struct kpb_annotation note = {"k", text};
    assert_int_equal(amend(LIT(bytes), NULL, &note, 1, &out), ERR_LIMIT);
    assert_int_equal(out.len, 0);
    text[KPB_AMENDMENT_MAX - 100] = '\0';
    assert_int_equal(amend(LIT(bytes), NULL, &note, 1, &out), ERR_NONE);
    buf_release(&out);
    free(text);
}

/* ---- lists ---- */

static void note_item(void *ctx, const struct kpb_secret *s)
{
    char hex[2 * KPB_HASH_LEN + 1] = "";
    if (s->has_release) {
        text_hex(s->release_hash, KPB_HASH_LEN, hex);
    }
    buf_addf(ctx, "[%s %s %s %.8s]", s->name, s->resource_version, s->label_status, hex);
}

/* The items that so many bytes at a time give, or "bad" behind them. */
static char *feed(const char *bytes, size_t len, size_t step)
{
    struct buf items = BUF_LARGE;
    struct kpb_list *l = kpb_list_new(note_item, &items);
    bool good = true;
    for (size_t at = 0; at < len; at += step) {
        size_t n = len - at < step ? len - at : step;
        char *copy = xmalloc(n);
        memcpy(copy, bytes + at, n);
        bool now = kpb_list_feed(l, copy, n);
        free(copy);
        assert_false(now && !good);
        good = now;
    }
    kpb_list_free(l);
    buf_add_str(&items, good ? "" : "bad");
    return buf_take(&items);
}

static void assert_items(const char *name, const char *bytes, size_t len, const char *want)
{
    for (size_t step = 1; step <= len; step++) {
        _cleanup_(free_cstr)
        char *got = feed(bytes, len, step);
        if (strcmp(got, want) != 0) {
            fail_msg("%s, %zu bytes at a time: %s, not %s", name, step, got, want);
        }
    }
}

static void put_list(struct buf *b)
{
    struct buf raw = BUF_LARGE;
    struct buf item = BUF_LARGE;
    put(&raw, 1,
        LIT("\x12\x03"
            "999"));
    put_record(&item, "web.v1", "100", "abc", 3);
    put(&raw, 2, item.data, item.len);
    put_varint(&raw, 9 << 3);
    put_varint(&raw, UINT64_MAX);
    buf_reset(&item);
    put_record(&item, "web.v2", "200", "", 0);
    put(&raw, 2, item.data, item.len);
    put_text(&raw, 2, "");
    put_text(&raw, 17, "unknown");
    put_envelope(b, "SecretList", &raw);
    buf_release(&item);
    buf_release(&raw);
}

static void a_list_gives_the_same_items_however_it_is_cut(void **state)
{
    (void)state;
    struct buf b = BUF_LARGE;
    put_list(&b);
    assert_items("a list", b.data, b.len,
                 "[web.v1 100 deployed ba7816bf][web.v2 200 deployed e3b0c442][   ]");
    buf_release(&b);
}

static void a_list_that_ends_early_gives_the_items_before(void **state)
{
    (void)state;
    struct buf b = BUF_LARGE;
    put_list(&b);
    _cleanup_(free_cstr)
    char *whole = feed(b.data, b.len, b.len);
    size_t items = 0;
    for (size_t len = 0; len <= b.len; len++) {
        _cleanup_(free_cstr)
        char *got = feed(b.data, len, 7);
        assert_memory_equal(got, whole, strlen(got));
        assert_true(strlen(got) >= items);
        items = strlen(got);
    }
    assert_int_equal(items, strlen(whole));
    buf_release(&b);
}

#define LIST(raw)                                                                                  \
    "k8s\0"                                                                                        \
    "\x0a\x10\x0a\x02v1\x12\x0aSecretList" raw

struct list_row {
    const char *name;
    const char *bytes;
    size_t len;
    const char *want;
};

static const struct list_row list_rows[] = {
    {"an empty one", LIT(LIST("\x12\x00")), ""},
    {"one with metadata", LIT(LIST("\x12\x04\x0a\x02\x12\x00")), ""},
    {"what follows the object does not count", LIT(LIST("\x12\x02\x12\x00\xff\xff\xff")), "[   ]"},
    {"fields before the object",
     LIT(LIST("\x1a\x00\x22\x01t\x31"
              "12345678\x45"
              "1234\x28\x80\x01\x12\x02\x12\x00")),
     "[   ]"},
    {"fields in the list",
     LIT(LIST("\x12\x15\x31"
              "12345678\x45"
              "1234\x28\x80\x01\x3a\x00\x12\x00")),
     "[   ]"},
    {"a Secret", LIT(ENV("\x12\x02\x12\x00")), "bad"},
    {"a Status", LIT("k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12\x00"), "bad"},
    {"another list", LIT("k8s\0\x0a\x0d\x0a\x02v1\x12\x07PodList\x12\x00"), "bad"},
    {"JSON", LIT("{\"kind\":\"SecretList\"}"), "bad"},
    {"a type too long", LIT("k8s\0\x0a\x81\x02"), "bad"},
    {"two types", LIT(LIST("\x0a\x10\x0a\x02v1\x12\x0aSecretList")), "bad"},
    {"the object before its type", LIT("k8s\0\x12\x00"), "bad"},
    {"an encoded object", LIT(LIST("\x1a\x04gzip")), "bad"},
    {"an object that is a number", LIT(LIST("\x10\x00")), "bad"},
    {"an item that is a number", LIT(LIST("\x12\x02\x10\x01")), "bad"},
    {"an item longer than the list", LIT(LIST("\x12\x02\x12\x01")), "bad"},
    {"an item of 2^63 bytes", LIT(LIST("\x12\x0b\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")),
     "bad"},
    {"an item over 3 MiB", LIT(LIST("\x12\xff\xff\xff\xff\x7f\x12\x81\x80\xc0\x01")), "bad"},
    {"an item behind a good one is malformed", LIT(LIST("\x12\x06\x12\x00\x12\x02\x08\x01")),
     "[   ]bad"},
    {"a tag is cut by the object's end", LIT(LIST("\x12\x01\x92\x00")), "bad"},
    {"a length is missing", LIT(LIST("\x12\x01\x12\x00")), "bad"},
    {"a length is cut", LIT(LIST("\x12\x02\x12\x80\x00")), "bad"},
    {"a number is cut", LIT(LIST("\x12\x02\x28\x80\x00")), "bad"},
    {"a fixed64 is cut",
     LIT(LIST("\x12\x08\x31"
              "12345678")),
     "bad"},
    {"a group", LIT(LIST("\x12\x02\x2b\x2c")), "bad"},
    {"a varint too long", LIT(LIST("\x28\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00")), "bad"},
};

static void what_is_no_list_of_secrets_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS(list_rows); i++) {
        assert_items(list_rows[i].name, list_rows[i].bytes, list_rows[i].len, list_rows[i].want);
    }
}

static void a_list_has_no_limit_but_its_items_have(void **state)
{
    (void)state;
    struct buf items = BUF_LARGE;
    struct buf head = BUF_LARGE;
    buf_add(&head, LIT(LIST("\x12")));
    put_varint(&head, 5 * (KPB_BYTES_MAX + 5));
    struct kpb_list *l = kpb_list_new(note_item, &items);
    assert_true(kpb_list_feed(l, head.data, head.len));
    /* An item of exactly the limit: one unknown field. */
    char *item = xcalloc(1, KPB_BYTES_MAX);
    memcpy(item, "\x3a\xfb\xff\xbf\x01", 5);
    for (int i = 0; i < 5; i++) {
        assert_true(kpb_list_feed(l, "\x12\x80\x80\xc0\x01", 5));
        assert_true(kpb_list_feed(l, item, KPB_BYTES_MAX / 2 + 1));
        assert_true(
            kpb_list_feed(l, item + KPB_BYTES_MAX / 2 + 1, KPB_BYTES_MAX - KPB_BYTES_MAX / 2 - 1));
    }
    assert_string_equal(buf_str(&items), "[   ][   ][   ][   ][   ]");
    assert_true(kpb_list_feed(l, "more", 4));
    kpb_list_free(l);
    kpb_list_free(NULL);
    free(item);
    buf_release(&head);
    buf_release(&items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_is_read),
        cmocka_unit_test(what_the_server_may_write_is_read),
        cmocka_unit_test(what_is_no_secret_is_refused),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(every_changed_byte_is_read_or_refused_alike),
        cmocka_unit_test(three_mebibytes_are_read_and_no_more),
        cmocka_unit_test(an_amendment_adds_its_bytes_and_changes_no_others),
        cmocka_unit_test(a_long_annotation_is_added_with_the_lengths_that_it_has),
        cmocka_unit_test(an_amended_record_of_900_kib_keeps_all_but_its_version),
        cmocka_unit_test(an_amendment_without_room_leaves_the_buffer_alone),
        cmocka_unit_test(a_list_gives_the_same_items_however_it_is_cut),
        cmocka_unit_test(a_list_that_ends_early_gives_the_items_before),
        cmocka_unit_test(what_is_no_list_of_secrets_is_refused),
        cmocka_unit_test(a_list_has_no_limit_but_its_items_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
