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
    "\"chart\":{\"metadata\":{\"name\":\"c\",\"version\":\"1.2.3\"}},\"config\":{\"a\":[1]}}"

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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
