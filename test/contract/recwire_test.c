/* Helm's records on a real API server: it merges what kpb and recwire add to a Secret, keeps the
 * rest, and refuses a stale version. Both encodings, and both of one Secret read alike. */
#include "base/buf.h"
#include "fixture.h"
#include "kube/kube_forward.h"
#include "recwire/recwire.h"

#define JSON     "application/json"
#define BODY_MAX ((size_t)8 << 20)
#define LIT(s)   s, sizeof(s) - 1

static const char *const encodings[] = {KPB_CONTENT_TYPE, JSON};
/* "abc" and "other" in base64 are the Secret's data. */
#define DATA "'data': {'release': 'YWJj', 'more': 'b3RoZXI='}"

/* ---- requests in either encoding ---- */

static int request(struct scene *s, const char *type, const char *method, const char *name,
                   const struct buf *body, struct buf *ret_body)
{
    _cleanup_(free_cstr)
    char *target = xasprintf("/api/v1/namespaces/%s/secrets%s%s", s->ns, name != NULL ? "/" : "",
                             name != NULL ? name : "");
    const struct http_header headers[] = {{"Accept", type}, {"Content-Type", type}};
    struct kube_forward f = {.method = method,
                             .target = target,
                             .headers = headers,
                             .header_count = body != NULL ? 2 : 1,
                             .body = body != NULL ? body->data : NULL,
                             .body_len = body != NULL ? body->len : 0,
                             .body_max = BODY_MAX,
                             .deadline = soon()};
    struct http_response reply = HTTP_RESPONSE_INIT;
    struct kube_forward_date date = {0};
    struct err err = ERR_INIT;
    if (kube_forward(s->client.kube, &f, &reply, &date, &err)) {
        fail_msg("%s %s: %s", method, target, err.msg);
    }
    int status = reply.status;
    if (status / 100 == 2) {
        assert_string_equal(reply.content_type, type);
    }
    buf_reset(ret_body);
    buf_add(ret_body, buf_str(&reply.body), reply.body.len);
    http_response_release(&reply);
    return status;
}

static struct kpb_secret read_secret(const char *type, const struct buf *body)
{
    struct kpb_secret s = {0};
    struct err err = ERR_INIT;
    if (recwire_parse(type, body->data, body->len, &s, &err)) {
        fail_msg("%s: %s", type, err.msg);
    }
    return s;
}

static void amend(const char *type, const struct buf *body, const char *version,
                  const struct kpb_annotation *a, size_t n, struct buf *ret)
{
    struct err err = ERR_INIT;
    buf_reset(ret);
    if (recwire_amend(type, body->data, body->len, version, a, n, ret, &err)) {
        fail_msg("%s: %s", type, err.msg);
    }
}

static json_t *get_secret(struct scene *s, const char *name)
{
    return call_ok(
        &s->client,
        &(struct call){.method = "GET", .gvr = &KUBE_SECRETS, .ns = s->ns, .name = name});
}

static void make_secret(struct scene *s, const char *name)
{
    _cleanup_(free_cstr)
    char *body =
        xasprintf("{'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': '%s', 'labels': "
                  "{'name': 'web', 'owner': 'helm', 'status': 'deployed'}, 'annotations': "
                  "{'example.org/theirs': 'kept', 'example.org/ours': 'old'}}, " DATA
                  ", 'type': 'helm.sh/release.v1'}",
                  name);
    call_do(&s->client,
            &(struct call){.method = "POST", .gvr = &KUBE_SECRETS, .ns = s->ns, .body = body});
}

static void assert_at(const json_t *object, const char *parent, const char *key, const char *want)
{
    /* The keys have dots in them. */
    const char *got = json_string_value(json_object_get(jsonx_at(object, parent), key));
    if (!text_eq(got, want)) {
        fail_msg("%s %s: %s, not %s", parent, key, got != NULL ? got : "nothing", want);
    }
}

static void assert_kept(const json_t *object)
{
    assert_at(object, "data", "release", "YWJj");
    assert_at(object, "data", "more", "b3RoZXI=");
    assert_at(object, "metadata.annotations", "example.org/theirs", "kept");
    assert_at(object, "metadata.labels", "owner", "helm");
    assert_string_equal(jsonx_str(object, "type", ""), "helm.sh/release.v1");
}

/* ---- the tests ---- */

static void amend_and_put(struct scene *s, const char *type, const char *name)
{
    struct buf got = BUF_INIT(BODY_MAX);
    struct buf amended = BUF_INIT(BODY_MAX);
    struct buf reply = BUF_INIT(BODY_MAX);
    const struct kpb_annotation notes[] = {{"example.org/ours", "new"}, {"example.org/more", "12"}};
    make_secret(s, name);
    assert_int_equal(request(s, type, "GET", name, NULL, &got), 200);
    struct kpb_secret before = read_secret(type, &got);
    amend(type, &got, before.resource_version, notes, 2, &amended);
    assert_int_equal(request(s, type, "PUT", name, &amended, &reply), 200);
    struct kpb_secret after = read_secret(type, &reply);
    assert_string_not_equal(after.resource_version, before.resource_version);
    assert_string_equal(after.uid, before.uid);
    assert_memory_equal(after.release_hash, before.release_hash, KPB_HASH_LEN);
    _cleanup_json_ json_t *object = get_secret(s, name);
    assert_kept(object);
    assert_at(object, "metadata.annotations", "example.org/ours", "new");
    assert_at(object, "metadata.annotations", "example.org/more", "12");
    assert_string_equal(jsonx_str(object, "metadata.resourceVersion", ""), after.resource_version);

    /* The same bytes once more: their version is stale by now. */
    assert_int_equal(request(s, type, "PUT", name, &amended, &reply), 409);
    /* Ours counts, not the one that the body had before. */
    amend(type, &got, after.resource_version, notes, 1, &amended);
    assert_int_equal(request(s, type, "PUT", name, &amended, &reply), 200);
    kpb_secret_release(&before);
    kpb_secret_release(&after);
    buf_release(&got);
    buf_release(&amended);
    buf_release(&reply);
}

static void an_amended_put_is_merged_and_a_stale_one_refused(void **state)
{
    amend_and_put(*state, KPB_CONTENT_TYPE, "put-protobuf");
    amend_and_put(*state, JSON, "put-json");
}

static void amend_and_post(struct scene *s, const char *type, const char *name, const char *bytes,
                           size_t len)
{
    struct buf body = BUF_INIT(BODY_MAX);
    struct buf amended = BUF_INIT(BODY_MAX);
    struct buf reply = BUF_INIT(BODY_MAX);
    const struct kpb_annotation note = {"example.org/ours", "\xc3\xa4 \"1\""};
    buf_add(&body, bytes, len);
    amend(type, &body, NULL, &note, 1, &amended);
    assert_int_equal(request(s, type, "POST", NULL, &amended, &reply), 201);
    struct kpb_secret made = read_secret(type, &reply);
    assert_string_equal(made.name, name);
    assert_string_equal(made.ns, s->ns);
    _cleanup_json_ json_t *object = get_secret(s, name);
    assert_at(object, "metadata.annotations", "example.org/ours", note.value);
    assert_at(object, "data", "release", "YWJj");
    assert_int_equal(request(s, type, "POST", NULL, &amended, &reply), 409);
    kpb_secret_release(&made);
    buf_release(&body);
    buf_release(&amended);
    buf_release(&reply);
}

static void an_amended_post_is_created_with_its_annotation(void **state)
{
    amend_and_post(*state, KPB_CONTENT_TYPE, "post-pb",
                   LIT("k8s\0\x0a\x0c\x0a\x02v1\x12\x06Secret\x12\x1b\x0a\x09\x0a\x07post-pb"
                       "\x12\x0e\x0a\x07release\x12\x03"
                       "abc\x1a\x00\x22\x00"));
    amend_and_post(*state, JSON, "post-json",
                   LIT("{\"metadata\":{\"name\":\"post-json\",\"annotations\":null},"
                       "\"data\":{\"release\":\"YWJj\"}}"));
}

struct items {
    size_t count, releases;
    unsigned char hash[KPB_HASH_LEN];
};

static void note_item(void *ctx, const struct kpb_secret *s)
{
    struct items *items = ctx;
    items->count++;
    if (strncmp(s->name, "list-", 5) == 0) {
        items->releases += s->has_release && strcmp(s->label_status, "deployed") == 0;
        memcpy(items->hash, s->release_hash, KPB_HASH_LEN);
    }
}

static void a_list_gives_the_records_of_its_namespace(void **state)
{
    struct scene *s = *state;
    make_secret(s, "list-1");
    make_secret(s, "list-2");
    struct buf body = BUF_INIT(BODY_MAX);
    struct items seen[2] = {{0}};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(request(s, encodings[i], "GET", NULL, NULL, &body), 200);
        struct recwire_list *l = recwire_list_new(encodings[i], note_item, &seen[i]);
        for (size_t at = 0; at < body.len; at += 100) {
            size_t len = body.len - at < 100 ? body.len - at : 100;
            assert_true(recwire_list_feed(l, body.data + at, len));
        }
        recwire_list_free(l);
        assert_int_equal(seen[i].releases, 2);
    }
    assert_int_equal(seen[0].count, seen[1].count);
    assert_memory_equal(seen[0].hash, seen[1].hash, KPB_HASH_LEN);
    /* A Secret is no list, and what the server says of an error is neither. */
    for (size_t i = 0; i < 2; i++) {
        struct items none = {0};
        const char *const names[] = {"list-1", "no-such"};
        for (size_t k = 0; k < 2; k++) {
            (void)request(s, encodings[i], "GET", names[k], NULL, &body);
            struct recwire_list *l = recwire_list_new(encodings[i], note_item, &none);
            assert_false(recwire_list_feed(l, body.data, body.len));
            recwire_list_free(l);
        }
        assert_int_equal(none.count, 0);
        struct kpb_secret secret = {0};
        struct err err = ERR_INIT;
        assert_int_equal(recwire_parse(encodings[i], body.data, body.len, &secret, &err),
                         ERR_INVALID);
    }
    buf_release(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_amended_put_is_merged_and_a_stale_one_refused),
        cmocka_unit_test(an_amended_post_is_created_with_its_annotation),
        cmocka_unit_test(a_list_gives_the_records_of_its_namespace),
    };
    return cmocka_run_group_tests(tests, scene_open, scene_close);
}
