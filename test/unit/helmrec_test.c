#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <string.h>
#include <zlib.h>

#include "base/limits.h"
#include "base/mem.h"
#include "helmrec/helmrec.h"
#include "jsonx/jsonx.h"

static json_t *parse(const char *text)
{
    json_t *j = NULL;
    struct err err = ERR_INIT;
    if (jsonx_parse(text, strlen(text), &j, &err) != ERR_NONE) {
        fail_msg("%s in %s", err.msg, text);
    }
    return j;
}

/* A PartialObjectMetadata as the API serves it. */
static json_t *record(const char *name, const char *labels, const char *annotations)
{
    _cleanup_(free_cstr)
    char *text = xasprintf(
        "{\"kind\":\"PartialObjectMetadata\",\"metadata\":{\"name\":\"%s\",\"namespace\":\"shop\","
        "\"uid\":\"u-1\","
        "\"resourceVersion\":\"77\",\"creationTimestamp\":\"2026-12-01T10:00:00Z\",\"labels\":{%s},"
        "\"annotations\":{%s},\"managedFields\":[{\"manager\":\"helm\",\"time\":\"2026-12-01T10:00:"
        "05Z\"},"
        "{\"manager\":\"x\",\"time\":\"2026-12-01T10:00:02Z\"},{\"manager\":\"y\",\"time\":"
        "\"soon\"},3]}}",
        name, labels, annotations);
    return parse(text);
}

#define LABELS(name, version, status)                                                              \
    "\"owner\":\"helm\",\"name\":\"" name "\",\"version\":\"" version "\",\"status\":\"" status    \
    "\",\"modifiedAt\":\"1\""

static void a_record_gives_its_metadata(void **state)
{
    (void)state;
    _cleanup_json_ json_t *j =
        record("sh.helm.release.v1.web.v12", LABELS("web", "12", "pending-upgrade"),
               "\"belay.helm.fluxcd.io/digest\":\"1:ab\",\"belay.helm.fluxcd.io/epoch\":\"9\","
               "\"belay.helm.fluxcd.io/owner\":\"o\",\"belay.helm.fluxcd.io/revision\":\"12\"");
    struct helmrec_meta *m = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(helmrec_meta_parse(j, &m, &err), ERR_NONE);
    assert_string_equal(m->secret_name, "sh.helm.release.v1.web.v12");
    assert_string_equal(m->ns, "shop");
    assert_string_equal(m->release, "web");
    assert_string_equal(m->uid, "u-1");
    assert_string_equal(m->resource_version, "77");
    assert_int_equal(m->revision, 12);
    assert_int_equal(m->status, HELMREC_PENDING_UPGRADE);
    assert_string_equal(m->digest, "1:ab");
    assert_string_equal(m->owner, "o");
    assert_int_equal(m->epoch, 9);
    assert_int_equal(m->changed_ns, INT64_C(1796119205) * 1000000000);
    assert_int_equal(m->created_ns, INT64_C(1796119200) * 1000000000);
    helmrec_meta_free(m);
    _cleanup_(free_cstr)
    char *index = helmrec_index(j);
    assert_string_equal(index, "shop/web");
}

static const struct {
    const char *name, *secret, *labels;
    bool is_record;
    const char *index;
} identity_rows[] = {
    {"plain", "sh.helm.release.v1.web.v1", LABELS("web", "1", "deployed"), true, "shop/web"},
    {"dots in the release's name", "sh.helm.release.v1.a.v2.b.v3",
     LABELS("a.v2.b", "3", "deployed"), true, "shop/a.v2.b"},
    {"largest revision", "sh.helm.release.v1.web.v9223372036854775807",
     LABELS("web", "9223372036854775807", "deployed"), true, "shop/web"},
    {"revision overflows", "sh.helm.release.v1.web.v9223372036854775808",
     LABELS("web", "9223372036854775808", "deployed"), false, NULL},
    {"no prefix", "web.v1", LABELS("web", "1", "deployed"), false, NULL},
    {"no revision", "sh.helm.release.v1.web", LABELS("web", "1", "deployed"), false, NULL},
    {"empty revision", "sh.helm.release.v1.web.v", LABELS("web", "", "deployed"), false, NULL},
    {"revision 0", "sh.helm.release.v1.web.v0", LABELS("web", "0", "deployed"), false, NULL},
    {"leading zero", "sh.helm.release.v1.web.v01", LABELS("web", "01", "deployed"), false, NULL},
    {"sign", "sh.helm.release.v1.web.v+1", LABELS("web", "+1", "deployed"), false, NULL},
    {"empty release", "sh.helm.release.v1..v1", LABELS("", "1", "deployed"), false, NULL},
    {"label version differs", "sh.helm.release.v1.web.v2", LABELS("web", "1", "deployed"), false,
     NULL},
    {"label name differs", "sh.helm.release.v1.web.v2", LABELS("we", "2", "deployed"), false, NULL},
    {"label name is longer", "sh.helm.release.v1.web.v2", LABELS("web2", "2", "deployed"), false,
     NULL},
    {"label owner differs", "sh.helm.release.v1.web.v2",
     "\"owner\":\"me\",\"name\":\"web\",\"version\":\"2\"", false, NULL},
    {"no labels", "sh.helm.release.v1.web.v2", "", false, NULL},
    {"labels of another type", "sh.helm.release.v1.web.v2", "\"owner\":1,\"name\":[],\"version\":2",
     false, NULL},
};

static void only_a_consistent_record_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(identity_rows) / sizeof(identity_rows[0]); i++) {
        _cleanup_json_ json_t *j = record(identity_rows[i].secret, identity_rows[i].labels, "");
        _cleanup_(free_cstr)
        char *index = helmrec_index(j);
        struct helmrec_meta *m = NULL;
        struct err err = ERR_INIT;
        enum err_kind kind = helmrec_meta_parse(j, &m, &err);
        bool same = index == NULL ? identity_rows[i].index == NULL
                                  : identity_rows[i].index != NULL &&
                                        strcmp(index, identity_rows[i].index) == 0;
        if (kind != (identity_rows[i].is_record ? ERR_NONE : ERR_INVALID) || !same) {
            fail_msg("%s: kind %d (%s), index %s", identity_rows[i].name, (int)kind, err.msg,
                     index);
        }
        assert_true((m != NULL) == identity_rows[i].is_record);
        helmrec_meta_free(m);
    }
}

static void objects_without_metadata_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{}",
        "[]",
        "null",
        "{\"metadata\":3}",
        "{\"metadata\":{\"name\":null}}",
        "{\"metadata\":{\"name\":\"sh.helm.release.v1.a.v1\",\"labels\":{}}}"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        _cleanup_(free_cstr)
        char *wrapped = xasprintf("[%s]", texts[i]);
        _cleanup_json_ json_t *j = parse(wrapped);
        struct helmrec_meta *m = NULL;
        struct err err = ERR_INIT;
        assert_int_equal(helmrec_meta_parse(json_array_get(j, 0), &m, &err), ERR_INVALID);
        assert_null(helmrec_index(json_array_get(j, 0)));
    }
    assert_null(helmrec_index(NULL));
}

static void a_secret_of_another_type_is_refused(void **state)
{
    (void)state;
    _cleanup_json_ json_t *j =
        record("sh.helm.release.v1.web.v1", LABELS("web", "1", "deployed"), "");
    json_object_set_new(j, "type", json_string("helm.sh/release.v1"));
    _cleanup_(free_cstr)
    char *index = helmrec_index(j);
    assert_non_null(index);
    json_object_set_new(j, "type", json_string("Opaque"));
    assert_null(helmrec_index(j));
}

#define CLAIM(epoch, revision)                                                                     \
    "\"belay.helm.fluxcd.io/digest\":\"1:ab\",\"belay.helm.fluxcd.io/owner\":\"o\","               \
    "\"belay.helm.fluxcd.io/epoch\":" epoch ",\"belay.helm.fluxcd.io/revision\":" revision

static const struct {
    const char *name, *annotations, *digest, *owner;
    int64_t epoch;
} claim_rows[] = {
    {"its own revision", CLAIM("\"4\"", "\"3\""), "1:ab", "o", 4},
    {"no annotations", "", "", "", 0},
    {"another revision", CLAIM("\"4\"", "\"2\""), "", "", 0},
    {"no revision", "\"belay.helm.fluxcd.io/digest\":\"1:ab\",\"belay.helm.fluxcd.io/epoch\":\"4\"",
     "", "", 0},
    {"revision is no text", CLAIM("\"4\"", "3"), "", "", 0},
    {"revision with a leading zero", CLAIM("\"4\"", "\"03\""), "", "", 0},
    {"epoch is no number", CLAIM("\"four\"", "\"3\""), "1:ab", "o", 0},
    {"negative epoch", CLAIM("\"-4\"", "\"3\""), "1:ab", "o", 0},
    {"epoch overflows", CLAIM("\"9223372036854775808\"", "\"3\""), "1:ab", "o", 0},
    {"revision alone", "\"belay.helm.fluxcd.io/revision\":\"3\"", "", "", 0},
};

static void annotations_count_for_their_own_revision_only(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(claim_rows) / sizeof(claim_rows[0]); i++) {
        _cleanup_json_ json_t *j = record(
            "sh.helm.release.v1.web.v3", LABELS("web", "3", "deployed"), claim_rows[i].annotations);
        struct helmrec_meta *m = NULL;
        struct err err = ERR_INIT;
        assert_int_equal(helmrec_meta_parse(j, &m, &err), ERR_NONE);
        if (strcmp(m->digest, claim_rows[i].digest) != 0 ||
            strcmp(m->owner, claim_rows[i].owner) != 0 || m->epoch != claim_rows[i].epoch) {
            fail_msg("%s: digest %s, owner %s, epoch %lld", claim_rows[i].name, m->digest, m->owner,
                     (long long)m->epoch);
        }
        helmrec_meta_free(m);
    }
}

static void status_words_read_back(void **state)
{
    (void)state;
    for (int s = HELMREC_UNKNOWN; s <= HELMREC_PENDING_ROLLBACK; s++) {
        assert_int_equal(helmrec_status_of(helmrec_status_name((enum helmrec_status)s)), s);
        assert_int_equal(helmrec_status_is_pending((enum helmrec_status)s),
                         s >= HELMREC_PENDING_INSTALL);
    }
    assert_int_equal(helmrec_status_of("Deployed"), HELMREC_UNKNOWN);
    assert_int_equal(helmrec_status_of(""), HELMREC_UNKNOWN);
    assert_int_equal(helmrec_status_of(NULL), HELMREC_UNKNOWN);
    assert_false(helmrec_status_is_pending(HELMREC_UNINSTALLING));
}

static char *base64(const unsigned char *bytes, size_t len)
{
    char *out = xmalloc(len / 3 * 4 + 5);
    EVP_EncodeBlock((unsigned char *)out, bytes, (int)len);
    return out;
}

static unsigned char *gzip(const char *text, size_t len, size_t *ret_len)
{
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)text, .avail_in = (unsigned)len};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t cap = deflateBound(&z, len) + 64;
    unsigned char *out = xmalloc(cap);
    z.next_out = out;
    z.avail_out = (unsigned)cap;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    *ret_len = cap - z.avail_out;
    deflateEnd(&z);
    return out;
}

static json_t *secret_of(const unsigned char *packed, size_t len)
{
    _cleanup_(free_cstr)
    char *inner = base64(packed, len);
    _cleanup_(free_cstr)
    char *outer = base64((const unsigned char *)inner, strlen(inner));
    json_t *j = record("sh.helm.release.v1.web.v3", LABELS("web", "3", "deployed"), "");
    json_t *data = json_object();
    json_object_set_new(data, "release", json_string(outer));
    json_object_set_new(j, "data", data);
    return j;
}

static json_t *secret_with(const char *text, size_t text_len)
{
    size_t len = 0;
    unsigned char *packed = gzip(text, text_len, &len);
    json_t *j = secret_of(packed, len);
    free(packed);
    return j;
}

#define RELEASE                                                                                    \
    "{\"name\":\"web\",\"version\":3,\"info\":{\"status\":\"failed\",\"description\":\"d "         \
    "\\u00e9\"},"                                                                                  \
    "\"chart\":{\"metadata\":{\"name\":\"c\",\"version\":\"1.2.3\"}},\"config\":{\"a\":[1]},"      \
    "\"manifest\":\"m\",\"hooks\":[{\"kind\":\"Job\"}]}"

static void check_release(const json_t *secret)
{
    struct helmrec_payload *p = NULL;
    struct err err = ERR_INIT;
    if (helmrec_payload_decode(secret, &p, &err) != ERR_NONE) {
        fail_msg("%s", err.msg);
    }
    assert_int_equal(p->status, HELMREC_FAILED);
    assert_int_equal(p->revision, 3);
    assert_string_equal(p->description, "d \xc3\xa9");
    assert_string_equal(p->chart_name, "c");
    assert_string_equal(p->chart_version, "1.2.3");
    assert_int_equal(json_array_size(json_object_get(p->config, "a")), 1);
    assert_string_equal(p->manifest, "m");
    assert_int_equal(json_array_size(p->hooks), 1);
    helmrec_payload_free(p);
}

static void a_payload_is_unpacked(void **state)
{
    (void)state;
    _cleanup_json_ json_t *zipped = secret_with(RELEASE, strlen(RELEASE));
    check_release(zipped);
    _cleanup_json_ json_t *plain = secret_of((const unsigned char *)RELEASE, strlen(RELEASE));
    check_release(plain);
}

static void a_payload_without_values_has_an_empty_object(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"version\":1,\"info\":{\"status\":\"deployed\"}}",
        "{\"version\":1,\"info\":{\"status\":\"deployed\"},\"config\":null}",
        "{\"version\":1,\"info\":{\"status\":\"deployed\"},\"config\":[1],\"chart\":null}",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        _cleanup_json_ json_t *j = secret_with(texts[i], strlen(texts[i]));
        struct helmrec_payload *p = NULL;
        struct err err = ERR_INIT;
        assert_int_equal(helmrec_payload_decode(j, &p, &err), ERR_NONE);
        assert_true(json_is_object(p->config));
        assert_int_equal(json_object_size(p->config), 0);
        assert_string_equal(p->description, "");
        assert_string_equal(p->chart_name, "");
        assert_string_equal(p->manifest, "");
        assert_int_equal(json_array_size(p->hooks), 0);
        helmrec_payload_free(p);
    }
}

static enum err_kind decode_kind(const json_t *j)
{
    struct helmrec_payload *p = NULL;
    struct err err = ERR_INIT;
    enum err_kind kind = helmrec_payload_decode(j, &p, &err);
    assert_true((kind == ERR_NONE) == (p != NULL));
    assert_int_equal(err.kind, kind);
    assert_null(strstr(err.msg, "s3cr3t"));
    helmrec_payload_free(p);
    return kind;
}

static const struct {
    const char *name, *text;
} bad_rows[] = {
    {"empty", ""},
    {"no JSON", "s3cr3t"},
    {"cut JSON", "{\"version\":1,\"info\":{\"status\":\"s3cr3t"},
    {"an array", "[1]"},
    {"no status", "{\"version\":1,\"info\":{\"x\":\"s3cr3t\"}}"},
    {"status of another type", "{\"version\":1,\"info\":{\"status\":1}}"},
    {"no version", "{\"info\":{\"status\":\"deployed\"}}"},
    {"version 0", "{\"version\":0,\"info\":{\"status\":\"deployed\"}}"},
    {"version is text", "{\"version\":\"1\",\"info\":{\"status\":\"deployed\"}}"},
};

static void a_payload_that_cannot_be_read_is_invalid(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_rows) / sizeof(bad_rows[0]); i++) {
        _cleanup_json_ json_t *j = secret_with(bad_rows[i].text, strlen(bad_rows[i].text));
        if (decode_kind(j) != ERR_INVALID) {
            fail_msg("%s", bad_rows[i].name);
        }
    }
    static const char *const encodings[] = {"",          "YWJj",
                                            "YWJ",       "YW=j",
                                            "====",      "=",
                                            "YW JjZA==", "YWJj\\n",
                                            "WVdKag==",  "\\u00e9\\u00e9"};
    for (size_t i = 0; i < sizeof(encodings) / sizeof(encodings[0]); i++) {
        _cleanup_(free_cstr)
        char *text = xasprintf("{\"data\":{\"release\":\"%s\"}}", encodings[i]);
        _cleanup_json_ json_t *j = parse(text);
        if (decode_kind(j) != ERR_INVALID) {
            fail_msg("%s", encodings[i]);
        }
    }
    _cleanup_json_ json_t *none =
        record("sh.helm.release.v1.web.v3", LABELS("web", "3", "deployed"), "");
    assert_int_equal(decode_kind(none), ERR_INVALID);
}

static void a_damaged_stream_is_invalid_at_every_cut(void **state)
{
    (void)state;
    size_t len = 0;
    unsigned char *packed = gzip(RELEASE, strlen(RELEASE), &len);
    for (size_t cut = 0; cut < len; cut++) {
        _cleanup_json_ json_t *j = secret_of(packed, cut);
        assert_int_equal(decode_kind(j), ERR_INVALID);
    }
    packed[len - 1] ^= 0xff; /* the length that gzip notes at the end */
    _cleanup_json_ json_t *j = secret_of(packed, len);
    assert_int_equal(decode_kind(j), ERR_INVALID);
    free(packed);
}

static const struct {
    const char *name;
    size_t len; /* of the whole JSON text */
    enum err_kind want;
} size_rows[] = {
    {"exactly the limit", LIMIT_RECORD_BYTES, ERR_NONE},
    {"one more", (size_t)LIMIT_RECORD_BYTES + 1, ERR_LIMIT},
    {"a bomb", (size_t)64 << 20, ERR_LIMIT},
};

static void a_payload_over_the_limit_is_refused(void **state)
{
    (void)state;
    static const char head[] = "{\"version\":1,\"info\":{\"status\":\"deployed\",\"notes\":\"";
    for (size_t i = 0; i < sizeof(size_rows) / sizeof(size_rows[0]); i++) {
        char *text = xmalloc(size_rows[i].len);
        memset(text, 'x', size_rows[i].len);
        memcpy(text, head, strlen(head));
        memcpy(text + size_rows[i].len - 3, "\"}}", 3);
        _cleanup_json_ json_t *j = secret_with(text, size_rows[i].len);
        free(text);
        if (decode_kind(j) != size_rows[i].want) {
            fail_msg("%s", size_rows[i].name);
        }
    }
}

/* ---- splicing ---- */

static unsigned char *unbase64(const char *text, size_t len, size_t *ret_len)
{
    unsigned char *out = xmalloc(len / 4 * 3 + 1);
    assert_int_equal(EVP_DecodeBlock(out, (const unsigned char *)text, (int)len), len / 4 * 3);
    size_t pad = 0;
    while (pad < len && text[len - 1 - pad] == '=') {
        pad++;
    }
    *ret_len = len / 4 * 3 - pad;
    return out;
}

/* The text that data.release holds. */
static char *text_of(const char *release, size_t *ret_len)
{
    size_t inner_len = 0;
    size_t packed_len = 0;
    unsigned char *inner = unbase64(release, strlen(release), &inner_len);
    unsigned char *packed = unbase64((const char *)inner, inner_len, &packed_len);
    size_t cap = (size_t)LIMIT_RECORD_BYTES + 64;
    char *text = xmalloc(cap);
    z_stream z = {.next_in = packed,
                  .avail_in = (unsigned)packed_len,
                  .next_out = (unsigned char *)text,
                  .avail_out = (unsigned)cap};
    assert_int_equal(inflateInit2(&z, 16 + MAX_WBITS), Z_OK);
    assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
    *ret_len = cap - z.avail_out;
    inflateEnd(&z);
    free(inner);
    free(packed);
    return text;
}

static void check_splice(const char *name, const json_t *secret, const char *want, size_t want_len)
{
    char *release = NULL;
    struct err err = ERR_INIT;
    if (helmrec_payload_splice_status(secret, HELMREC_FAILED, &release, &err) != ERR_NONE) {
        fail_msg("%s: %s", name, err.msg);
    }
    size_t len = 0;
    _cleanup_(free_cstr)
    char *text = text_of(release, &len);
    if (len != want_len || memcmp(text, want, len) != 0) {
        fail_msg("%s: %.*s", name, (int)(len < 400 ? len : 400), text);
    }
    free(release);
}

/* before, the word, after. */
static const struct {
    const char *name, *before, *word, *after;
} splice_rows[] = {
    {"plain", "{\"name\":\"web\",\"info\":{\"first\":\"x\",\"status\":\"", "pending-upgrade",
     "\"},\"version\":3}"},
    {"numbers stay as they are",
     "{\"config\":{\"a\":0.1,\"b\":9223372036854775808,\"c\":1E300,"
     "\"d\":-0,\"e\":1.50},\"info\":{\"status\":\"",
     "pending-install", "\"},\"version\":3,\"x\":18446744073709551617}"},
    {"escapes stay as they are",
     "{\"config\":{\"a\":\"\\u003c\\/\\u00e9\\ud83d\\ude00\\\"\\\\\"},"
     "\"info\":{\"description\":\"\\u003e\",\"status\":\"",
     "pending-rollback", "\",\"notes\":\"\\\\\"}}"},
    {"space everywhere", " {\n\t\"info\" :\r\n { \"status\" : \"", "uninstalling",
     "\" , \"a\" : [ 1 , 2 ] } , \"version\" : 3 }\n"},
    {"the words in strings",
     "{\"manifest\":\"{\\\"info\\\":{\\\"status\\\":\\\"deployed\\\"}}\",\"name\":\"info\","
     "\"info\":{\"description\":\"\\\"status\\\":\\\"x\\\"\",\"status\":\"",
     "pending-upgrade", "\",\"notes\":\"\\\"status\\\":1\"}}"},
    {"the words in other objects",
     "{\"config\":{\"info\":{\"status\":\"a\"},\"status\":\"b\"},\"status\":\"c\","
     "\"hooks\":[{\"info\":{\"status\":\"d\"}}],\"info\":{\"a\":{\"status\":\"e\"},"
     "\"b\":[{\"status\":\"f\"}],\"status\":\"",
     "pending-upgrade", "\"},\"chart\":{\"info\":{\"status\":\"g\"}}}"},
    {"a status with escapes", "{\"info\":{\"status\":\"", "pending\\u002dupgrade\\\"", "\"}}"},
    {"an empty status", "{\"info\":{\"status\":\"", "", "\"}}"},
    {"strange keys elsewhere",
     "{\"config\":{\"st\\u0061tus\":1,\"\\u017ftatus\":2,\"a\xc3\xa9\":3},"
     "\"info\":{\"status\":\"",
     "pending-upgrade", "\"}}"},
};

static void nothing_but_the_status_changes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(splice_rows) / sizeof(splice_rows[0]); i++) {
        _cleanup_(free_cstr)
        char *text =
            xasprintf("%s%s%s", splice_rows[i].before, splice_rows[i].word, splice_rows[i].after);
        _cleanup_(free_cstr)
        char *want = xasprintf("%sfailed%s", splice_rows[i].before, splice_rows[i].after);
        _cleanup_json_ json_t *zipped = secret_with(text, strlen(text));
        check_splice(splice_rows[i].name, zipped, want, strlen(want));
        _cleanup_json_ json_t *plain = secret_of((const unsigned char *)text, strlen(text));
        check_splice(splice_rows[i].name, plain, want, strlen(want));
    }
}

static const struct {
    const char *name, *text;
} unspliceable_rows[] = {
    {"empty", ""},
    {"no JSON", "s3cr3t"},
    {"cut", "{\"info\":{\"status\":\"s3cr3t\"}"},
    {"more behind it", "{\"info\":{\"status\":\"s3cr3t\"}}}"},
    {"an array", "[{\"info\":{\"status\":\"s3cr3t\"}}]"},
    {"no info", "{\"version\":1}"},
    {"an empty object", "{}"},
    {"info is null", "{\"info\":null}"},
    {"info is text", "{\"info\":\"{\\\"status\\\":\\\"s3cr3t\\\"}\"}"},
    {"info is an array", "{\"info\":[{\"status\":\"s3cr3t\"}]}"},
    {"no status", "{\"info\":{\"x\":\"s3cr3t\"},\"status\":\"s3cr3t\"}"},
    {"status is a number", "{\"info\":{\"status\":1}}"},
    {"status is an object", "{\"info\":{\"status\":{\"status\":\"s3cr3t\"}}}"},
    {"two infos", "{\"info\":{\"status\":\"s3cr3t\"},\"info\":{\"status\":\"x\"}}"},
    {"two statuses", "{\"info\":{\"status\":\"s3cr3t\",\"status\":\"x\"}}"},
    {"info in another case", "{\"Info\":{\"status\":\"s3cr3t\"}}"},
    {"and in both", "{\"info\":{\"status\":\"s3cr3t\"},\"INFO\":{\"status\":\"x\"}}"},
    {"status in another case too", "{\"info\":{\"Status\":\"s3cr3t\",\"status\":\"x\"}}"},
    {"info in escapes", "{\"\\u0069nfo\":{\"status\":\"s3cr3t\"}}"},
    {"a long s, which Go takes for one", "{\"info\":{\"status\":\"s3cr3t\",\"\xc5\xbftatus\":1}}"},
    {"status in escapes too", "{\"info\":{\"status\":\"s3cr3t\",\"st\\u0061tus\":\"x\"}}"},
};

static enum err_kind splice_kind(const json_t *secret)
{
    char *release = NULL;
    struct err err = ERR_INIT;
    enum err_kind kind = helmrec_payload_splice_status(secret, HELMREC_FAILED, &release, &err);
    assert_true((kind == ERR_NONE) == (release != NULL));
    assert_int_equal(err.kind, kind);
    assert_null(strstr(err.msg, "s3cr3t"));
    free(release);
    return kind;
}

static void a_payload_that_is_not_clear_is_not_spliced(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(unspliceable_rows) / sizeof(unspliceable_rows[0]); i++) {
        const char *text = unspliceable_rows[i].text;
        _cleanup_json_ json_t *j = secret_with(text, strlen(text));
        if (splice_kind(j) != ERR_INVALID) {
            fail_msg("%s", unspliceable_rows[i].name);
        }
    }
    _cleanup_json_ json_t *none =
        record("sh.helm.release.v1.web.v3", LABELS("web", "3", "deployed"), "");
    assert_int_equal(splice_kind(none), ERR_INVALID);
}

static void a_large_payload_is_spliced_and_a_larger_one_refused(void **state)
{
    (void)state;
    static const char head[] = "{\"info\":{\"status\":\"", tail[] = "\"},\"manifest\":\"";
    static const struct {
        size_t filling;
        enum err_kind want;
    } rows[] = {{900U << 10, ERR_NONE}, {LIMIT_RECORD_BYTES, ERR_LIMIT}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_(free_cstr)
        char *filling = xmalloc(rows[i].filling + 1);
        uint32_t random = 1;
        for (size_t k = 0; k < rows[i].filling; k++) {
            random = random * 1664525U + 1013904223U;
            filling[k] = "abcdefghijklmnopqrstuvwxyz0123456789{}:, "[(random >> 8) % 41];
        }
        filling[rows[i].filling] = '\0';
        _cleanup_(free_cstr)
        char *text = xasprintf("%spending-upgrade%s%s\"}", head, tail, filling);
        _cleanup_(free_cstr)
        char *want = xasprintf("%sfailed%s%s\"}", head, tail, filling);
        _cleanup_json_ json_t *j = secret_with(text, strlen(text));
        assert_int_equal(splice_kind(j), rows[i].want);
        if (rows[i].want == ERR_NONE) {
            check_splice("large", j, want, strlen(want));
        }
    }
}

static void a_repair_counts_for_its_own_revision_only(void **state)
{
    (void)state;
    static const struct {
        const char *annotations;
        bool repaired, gone;
    } rows[] = {
        {"\"belay.helm.fluxcd.io/revision\":\"3\",\"belay.helm.fluxcd.io/repaired-by\":\"13\"",
         true, false},
        {"\"belay.helm.fluxcd.io/revision\":\"3\",\"belay.helm.fluxcd.io/repaired-by\":\"13\","
         "\"belay.helm.fluxcd.io/orphans-gone\":\"true\"",
         true, true},
        {"\"belay.helm.fluxcd.io/revision\":\"2\",\"belay.helm.fluxcd.io/repaired-by\":\"13\"",
         false, false},
        {"\"belay.helm.fluxcd.io/revision\":\"3\"", false, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        _cleanup_json_ json_t *j =
            record("sh.helm.release.v1.web.v3", LABELS("web", "3", "failed"), rows[i].annotations);
        struct helmrec_meta *m = NULL;
        struct err err = ERR_INIT;
        assert_int_equal(helmrec_meta_parse(j, &m, &err), ERR_NONE);
        assert_int_equal(m->repaired, rows[i].repaired);
        assert_int_equal(m->orphans_gone, rows[i].gone);
        helmrec_meta_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_gives_its_metadata),
        cmocka_unit_test(only_a_consistent_record_counts),
        cmocka_unit_test(objects_without_metadata_are_refused),
        cmocka_unit_test(a_secret_of_another_type_is_refused),
        cmocka_unit_test(annotations_count_for_their_own_revision_only),
        cmocka_unit_test(status_words_read_back),
        cmocka_unit_test(a_payload_is_unpacked),
        cmocka_unit_test(a_payload_without_values_has_an_empty_object),
        cmocka_unit_test(a_payload_that_cannot_be_read_is_invalid),
        cmocka_unit_test(a_damaged_stream_is_invalid_at_every_cut),
        cmocka_unit_test(a_payload_over_the_limit_is_refused),
        cmocka_unit_test(nothing_but_the_status_changes),
        cmocka_unit_test(a_payload_that_is_not_clear_is_not_spliced),
        cmocka_unit_test(a_large_payload_is_spliced_and_a_larger_one_refused),
        cmocka_unit_test(a_repair_counts_for_its_own_revision_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
