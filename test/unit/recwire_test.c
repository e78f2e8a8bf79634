/* Helm's records in both encodings; what JSON is amended to, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/text.h"
#include "recwire/recwire.h"

#define JSON "application/json"
#define PROTOBUF                                                                                   \
    "k8s\0\x0a\x0c\x0a\x02v1\x12\x06Secret"                                                        \
    "\x12\x17\x0a\x05\x0a\x03web\x12\x0e\x0a\x07release\x12\x03"                                   \
    "abc"
#define LIT(s)    s, sizeof(s) - 1
#define ROWS(r)   (sizeof(r) / sizeof((r)[0]))
#define BUF_LARGE BUF_INIT(16U << 20)

/* Single quotes stand for double ones. */
static char *quoted(const char *text)
{
    char *q = xstrdup(text);
    for (char *p = q; *p != '\0'; p++) {
        *p = *p == '\'' ? '"' : *p;
    }
    return q;
}

/* A copy of just these bytes, so that a sanitizer sees a step too far. */
static enum err_kind parse(const char *type, const char *bytes, size_t len, struct kpb_secret *ret)
{
    struct err err = ERR_INIT;
    char *copy = xmalloc(len);
    memcpy(copy, bytes, len);
    enum err_kind kind = recwire_parse(type, copy, len, ret, &err);
    free(copy);
    assert_int_equal(kind, err.kind);
    return kind;
}

static enum err_kind amend(const char *type, const char *bytes, size_t len, const char *version,
                           const struct kpb_annotation *a, size_t n, struct buf *ret)
{
    struct err err = ERR_INIT;
    char *copy = xmalloc(len);
    memcpy(copy, bytes, len);
    enum err_kind kind = recwire_amend(type, copy, len, version, a, n, ret, &err);
    free(copy);
    assert_int_equal(kind, err.kind);
    return kind;
}

/* ---- which encoding ---- */

static void the_content_type_names_the_encoding(void **state)
{
    (void)state;
    static const char json[] = "{\"metadata\":{\"name\":\"web\"},\"data\":{\"release\":\"YWJj\"}}";
    static const struct {
        const char *type;
        bool json, protobuf;
    } rows[] = {
        {"application/json", true, false},
        {"application/json;charset=utf-8", true, false},
        {" Application/JSON ; charset=utf-8", true, false},
        {"application/vnd.kubernetes.protobuf", false, true},
        {"application/vnd.kubernetes.protobuf;type=x", false, true},
        {"application/jsonx", false, false},
        {"application/json x", false, false},
        {"application/vnd.kubernetes.protobuf.v2", false, false},
        {"application/yaml", false, false},
        {"application/apply-patch+yaml", false, false},
        {"text/plain;application/json", false, false},
        {"", false, false},
        {NULL, false, false},
    };
    unsigned char hash[KPB_HASH_LEN] = {0};
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct kpb_secret s = {0};
        struct kpb_secret p = {0};
        assert_int_equal(parse(rows[i].type, LIT(json), &s), rows[i].json ? ERR_NONE : ERR_INVALID);
        assert_int_equal(parse(rows[i].type, LIT(PROTOBUF), &p),
                         rows[i].protobuf ? ERR_NONE : ERR_INVALID);
        /* One Secret in both: they read alike. */
        struct kpb_secret *any = rows[i].json ? &s : &p;
        if (any->name != NULL) {
            assert_string_equal(any->name, "web");
            assert_true(any->has_release);
            if (i > 0) {
                assert_memory_equal(any->release_hash, hash, sizeof(hash));
            }
            memcpy(hash, any->release_hash, sizeof(hash));
        }
        struct recwire_list *l = recwire_list_new(rows[i].type, NULL, NULL);
        assert_int_equal(l != NULL, rows[i].json || rows[i].protobuf);
        recwire_list_free(l);
        struct buf out = BUF_LARGE;
        assert_int_equal(amend(rows[i].type, LIT(json), "1", NULL, 0, &out),
                         rows[i].json ? ERR_NONE : ERR_INVALID);
        buf_reset(&out);
        assert_int_equal(amend(rows[i].type, LIT(PROTOBUF), "1", NULL, 0, &out),
                         rows[i].protobuf ? ERR_NONE : ERR_INVALID);
        buf_release(&out);
        kpb_secret_release(&s);
        kpb_secret_release(&p);
    }
}

/* ---- reading JSON ---- */

struct parse_row {
    const char *name, *text;
    const char
        *want; /* name/ns/uid/version/status/name label/first bytes of the hash; NULL: INVALID */
};

static const struct parse_row parse_rows[] = {
    {"as the server writes it",
     "{'kind':'Secret','apiVersion':'v1','metadata':{'name':'web.v4','namespace':'team','uid':'u-1'"
     ","
     "'resourceVersion':'417','labels':{'name':'web','owner':'helm','status':'deployed'},"
     "'managedFields':[{'fieldsV1':{'f:data':{'.':{},'f:release':{}}}}]},"
     "'data':{'release':'YWJj'},'type':'helm.sh/release.v1'}\n",
     "web.v4/team/u-1/417/deployed/web/ba7816bf"},
    {"nothing in it", "{}", "///////"},
    {"nulls", "{'metadata':{'name':null,'labels':null,'annotations':null},'data':null}", "///////"},
    {"null metadata", "{'metadata':null}", "///////"},
    {"blanks everywhere", " \t{ \r\n'metadata' : { 'name' : 'n' } , 'data' : { } } ", "n///////"},
    {"a null release is an empty one", "{'data':{'release':null}}", "//////e3b0c442"},
    {"an empty release", "{'data':{'release':''}}", "//////e3b0c442"},
    {"one byte", "{'data':{'release':'AA=='}}", "//////6e340b9c"},
    {"two bytes", "{'data':{'release':'YWI='}}", "//////fb8e20fc"},
    {"escapes in values", "{'metadata':{'name':'a\\u0062\\'c'}}", "ab\"c///////"},
    {"an integer over 64 bits", "{'metadata':{'name':'n','generation':18446744073709551616}}",
     "n///////"},
    {"the same keys elsewhere",
     "{'x':{'metadata':1,'metadata':2},'metadata':{'y':[{'name':1,'name':2}],'name':'n'}}",
     "n///////"},
    {"an array", "[]", NULL},
    {"a string", "'metadata'", NULL},
    {"no JSON", "{'metadata':}", NULL},
    {"two texts", "{}{}", NULL},
    {"nothing", "", NULL},
    {"another kind", "{'kind':'Status'}", NULL},
    {"a list", "{'kind':'SecretList','items':[]}", NULL},
    {"a kind that is a number", "{'kind':1}", NULL},
    {"another version", "{'apiVersion':'v2'}", NULL},
    {"metadata that is a text", "{'metadata':'x'}", NULL},
    {"metadata that is an array", "{'metadata':[]}", NULL},
    {"data that is an array", "{'data':[]}", NULL},
    {"labels that are a text", "{'metadata':{'labels':'x'}}", NULL},
    {"annotations that are an array", "{'metadata':{'annotations':[]}}", NULL},
    {"a name that is a number", "{'metadata':{'name':1}}", NULL},
    {"a uid that is a number", "{'metadata':{'uid':1}}", NULL},
    {"a namespace that is a number", "{'metadata':{'namespace':1}}", NULL},
    {"a version that is a number", "{'metadata':{'resourceVersion':417}}", NULL},
    {"a label that is a number", "{'metadata':{'labels':{'status':1}}}", NULL},
    {"a release that is an object", "{'data':{'release':{}}}", NULL},
    {"a release that is no base64", "{'data':{'release':'YW-j'}}", NULL},
    {"base64 without its padding", "{'data':{'release':'YWI'}}", NULL},
    {"base64 with padding inside", "{'data':{'release':'YW==YWJj'}}", NULL},
    {"base64 of padding alone", "{'data':{'release':'===='}}", NULL},
    {"base64 with three of padding", "{'data':{'release':'A==='}}", NULL},
    {"base64 with a line end", "{'data':{'release':'YWJj\\n'}}", NULL},
    {"base64 with blanks", "{'data':{'release':'    YWJj'}}", NULL},
    {"metadata twice", "{'metadata':{'name':'a'},'metadata':{'name':'b'}}", NULL},
    {"data twice", "{'data':{},'data':{}}", NULL},
    {"kind twice", "{'kind':'Secret','kind':'Secret'}", NULL},
    {"a name twice", "{'metadata':{'name':'a','uid':'u','name':'a'}}", NULL},
    {"labels twice", "{'metadata':{'labels':{},'labels':{}}}", NULL},
    {"a label twice", "{'metadata':{'labels':{'status':'a','status':'b'}}}", NULL},
    {"a release twice", "{'data':{'release':'','release':''}}", NULL},
    {"metadata with an escape in its name", "{'m\\u0065tadata':{}}", NULL},
    {"a name with an escape in its name", "{'metadata':{'n\\u0061me':'n'}}", NULL},
    {"a release with an escape in its name", "{'data':{'r\\u0065lease':''}}", NULL},
    {"a NUL in the name", "{'metadata':{'name':'a\\u0000b'}}", NULL},
    {"too deep",
     "{'x':[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
     "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}",
     NULL},
};

static void json_is_read_as_the_server_reads_it_or_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS(parse_rows); i++) {
        const struct parse_row *row = &parse_rows[i];
        _cleanup_(free_cstr)
        char *text = quoted(row->text);
        struct kpb_secret s = {0};
        enum err_kind kind = parse(JSON, text, strlen(text), &s);
        struct buf out = BUF_LARGE;
        bool base64 = strstr(row->name, "base64") != NULL; /* only read, not amended */
        enum err_kind amended = amend(JSON, text, strlen(text), "1", NULL, 0, &out);
        if (kind != (row->want != NULL ? ERR_NONE : ERR_INVALID) || (amended != kind && !base64)) {
            fail_msg("%s: %d, amended %d", row->name, kind, amended);
        }
        buf_release(&out);
        if (kind) {
            continue;
        }
        char hex[2 * KPB_HASH_LEN + 1] = "/";
        if (s.has_release) {
            text_hex(s.release_hash, KPB_HASH_LEN, hex);
        }
        _cleanup_(free_cstr)
        char *got = xasprintf("%s/%s/%s/%s/%s/%s/%.8s", s.name, s.ns, s.uid, s.resource_version,
                              s.label_status, s.label_name, hex);
        if (strcmp(got, row->want) != 0) {
            fail_msg("%s: %s", row->name, got);
        }
        kpb_secret_release(&s);
    }
}

static void a_raw_nul_and_too_many_bytes_are_refused(void **state)
{
    (void)state;
    struct kpb_secret s = {0};
    assert_int_equal(parse(JSON, LIT("{\"metadata\":{}}\0"), &s), ERR_INVALID);
    char *big = xmalloc(KPB_BYTES_MAX + 1);
    memset(big, ' ', KPB_BYTES_MAX + 1);
    memcpy(big, "{}", 2);
    assert_int_equal(parse(JSON, big, KPB_BYTES_MAX + 1, &s), ERR_LIMIT);
    assert_int_equal(parse(JSON, big, KPB_BYTES_MAX, &s), ERR_NONE);
    kpb_secret_release(&s);
    free(big);
}

static void every_cut_of_json_is_refused(void **state)
{
    (void)state;
    _cleanup_(free_cstr)
    char *text = quoted(parse_rows[0].text);
    struct kpb_secret s = {0};
    size_t whole = strlen(text) - 1; /* without its line end */
    for (size_t len = 0; len < whole; len++) {
        struct buf out = BUF_LARGE;
        assert_int_equal(parse(JSON, text, len, &s), ERR_INVALID);
        assert_int_equal(amend(JSON, text, len, "1", NULL, 0, &out), ERR_INVALID);
        assert_int_equal(out.len, 0);
        buf_release(&out);
    }
    assert_int_equal(parse(JSON, text, whole, &s), ERR_NONE);
    kpb_secret_release(&s);
}

/* ---- amending JSON ---- */

struct amend_row {
    const char *name, *text, *want; /* NULL: INVALID */
};

/* With resourceVersion 9 and the annotations b=B and c=C"; then with the version alone. */
static const struct amend_row both_rows[] = {
    {"no metadata", "{}",
     "{'metadata':{'resourceVersion':'9','annotations':{'b':'B','c':'C\\''}}}"},
    {"no metadata beside others", "{ 'kind':'Secret' }",
     "{'metadata':{'resourceVersion':'9','annotations':{'b':'B','c':'C\\''}}, 'kind':'Secret' }"},
    {"null metadata", "{'metadata': null}",
     "{'metadata': {'resourceVersion':'9','annotations':{'b':'B','c':'C\\''}}}"},
    {"empty metadata", "{'metadata':{ }}",
     "{'metadata':{'resourceVersion':'9','annotations':{'b':'B','c':'C\\''} }}"},
    {"no annotations", "{'metadata':{'name':'n'}}",
     "{'metadata':{'resourceVersion':'9','annotations':{'b':'B','c':'C\\''},'name':'n'}}"},
    {"null annotations", "{'metadata':{'annotations':null,'name':'n'}}",
     "{'metadata':{'resourceVersion':'9','annotations':{'b':'B','c':'C\\''},'name':'n'}}"},
    {"empty annotations", "{'metadata':{'annotations':{},'resourceVersion':'7'}}",
     "{'metadata':{'annotations':{'b':'B','c':'C\\''},'resourceVersion':'9'}}"},
    {"annotations of others", "{'metadata':{'annotations':{'a':'A'}}}",
     "{'metadata':{'resourceVersion':'9','annotations':{'b':'B','c':'C\\'','a':'A'}}}"},
    {"one of ours, and the version behind them",
     "{'metadata':{'annotations':{'a':'A','c':'old'},'resourceVersion':''}}",
     "{'metadata':{'annotations':{'b':'B','a':'A','c':'C\\''},'resourceVersion':'9'}}"},
    {"both of ours, in the other order",
     "{'metadata':{'resourceVersion' : null, 'annotations':{'c': 'x}' , 'b':null}}}",
     "{'metadata':{'resourceVersion' : '9', 'annotations':{'c': 'C\\'' , 'b':'B'}}}"},
    {"texts that look like structure",
     "{'data':{'x':'{\\'metadata\\':{'},'metadata':{'labels':{'annotations':'}'},'name':'\\\\'}}",
     "{'data':{'x':'{\\'metadata\\':{'},'metadata':{'resourceVersion':'9','annotations':{'b':'B','"
     "c'"
     ":'C\\''},'labels':{'annotations':'}'},'name':'\\\\'}}"},
    {"what a parser would change stays",
     "{'x':[0.10,1e2,18446744073709551616,'\\u00e4\\/'],'x':1 ,\n'metadata':{},'y':{'metadata':1}}",
     "{'x':[0.10,1e2,18446744073709551616,'\\u00e4\\/'],'x':1 "
     ",\n'metadata':{'resourceVersion':'9','annotations':{'b':'B','c':'C\\''}},'y':{'metadata':1}"
     "}"},
    {"a value of another type", "{'metadata':{'annotations':{'b':[1,{}],'c':true}}}",
     "{'metadata':{'resourceVersion':'9','annotations':{'b':'B','c':'C\\''}}}"},
    {"one of ours twice", "{'metadata':{'annotations':{'b':'1','b':'2'}}}", NULL},
    {"an annotation with an escape in its name", "{'metadata':{'annotations':{'\\u0062':'1'}}}",
     NULL},
    {"annotations twice", "{'metadata':{'annotations':{},'annotations':{}}}", NULL},
    {"the version twice", "{'metadata':{'resourceVersion':'1','resourceVersion':'1'}}", NULL},
};

static void check_amended(const char *name, const char *text, const char *version,
                          const struct kpb_annotation *a, size_t n, const char *want)
{
    _cleanup_(free_cstr)
    char *before = quoted(text);
    _cleanup_(free_cstr)
    char *after = want != NULL ? quoted(want) : NULL;
    struct buf out = BUF_LARGE;
    enum err_kind kind = amend(JSON, before, strlen(before), version, a, n, &out);
    if (kind != (want != NULL ? ERR_NONE : ERR_INVALID) ||
        strcmp(buf_str(&out), want != NULL ? after : "") != 0) {
        fail_msg("%s: %d, %s", name, kind, buf_str(&out));
    }
    buf_release(&out);
}

static void json_is_amended_in_its_metadata_alone(void **state)
{
    (void)state;
    static const struct kpb_annotation notes[] = {{"b", "B"}, {"c", "C\""}};
    for (size_t i = 0; i < ROWS(both_rows); i++) {
        check_amended(both_rows[i].name, both_rows[i].text, "9", notes, 2, both_rows[i].want);
    }
    check_amended("a version", "{'metadata':{'annotations':null}}", "9", NULL, 0,
                  "{'metadata':{'resourceVersion':'9','annotations':null}}");
    check_amended("an annotation", "{'metadata':{'resourceVersion':'7'}}", NULL, notes, 1,
                  "{'metadata':{'annotations':{'b':'B'},'resourceVersion':'7'}}");
    check_amended("nothing", "{ 'metadata':null}", NULL, NULL, 0, "{ 'metadata':null}");
    check_amended("nothing at all", "{}", NULL, NULL, 0, "{}");
}

static void an_amended_json_record_of_900_kb_keeps_its_release(void **state)
{
    (void)state;
    struct buf text = BUF_LARGE;
    buf_add_str(&text, "{\"data\":{\"release\":\"");
    for (size_t i = 0; i < 900000 / 4; i++) {
        buf_addf(&text, "%04zu", i % 10000);
    }
    buf_add_str(&text, "\"},\"metadata\":{\"name\":\"n\",\"resourceVersion\":\"7\"}}");
    static const struct kpb_annotation note = {"a", "b"};
    struct buf out = BUF_LARGE;
    assert_int_equal(amend(JSON, text.data, text.len, "8", &note, 1, &out), ERR_NONE);
    struct kpb_secret before = {0};
    struct kpb_secret after = {0};
    assert_int_equal(parse(JSON, text.data, text.len, &before), ERR_NONE);
    assert_int_equal(parse(JSON, out.data, out.len, &after), ERR_NONE);
    assert_string_equal(after.resource_version, "8");
    assert_memory_equal(after.release_hash, before.release_hash, KPB_HASH_LEN);
    kpb_secret_release(&before);
    kpb_secret_release(&after);
    buf_release(&text);
    buf_release(&out);
}

static void a_json_amendment_without_room_leaves_the_buffer_alone(void **state)
{
    (void)state;
    static const char text[] = "{\"metadata\":{\"name\":\"n\"}}";
    size_t whole = sizeof(text) - 1 + sizeof("\"resourceVersion\":\"9\",") - 1;
    for (size_t room = 1; room <= whole; room++) {
        struct buf out = BUF_INIT(room);
        enum err_kind kind = amend(JSON, LIT(text), "9", NULL, 0, &out);
        assert_int_equal(kind, room == whole ? ERR_NONE : ERR_LIMIT);
        assert_int_equal(out.len, room == whole ? whole : 0);
        buf_release(&out);
    }
    char *large = xcalloc(1, KPB_AMENDMENT_MAX + 1);
    memset(large, 'x', KPB_AMENDMENT_MAX);
    struct buf out = BUF_LARGE;
    const struct kpb_annotation note = {"k", large};
    assert_int_equal(amend(JSON, LIT(text), NULL, &note, 1, &out), ERR_LIMIT);
    static const char there[] = "{\"metadata\":{\"annotations\":{\"k\":\"v\"}}}";
    assert_int_equal(amend(JSON, LIT(there), NULL, &note, 1, &out), ERR_LIMIT);
    /* Each of them alone would pass. */
    large[KPB_AMENDMENT_MAX * 2 / 3] = '\0';
    static const char both[] = "{\"metadata\":{\"annotations\":{\"k\":\"v\",\"l\":\"v\"}}}";
    const struct kpb_annotation two[] = {{"k", large}, {"l", large}};
    assert_int_equal(amend(JSON, LIT(both), NULL, two, 2, &out), ERR_LIMIT);
    assert_int_equal(amend(JSON, LIT(both), NULL, two, 1, &out), ERR_NONE);
    memset(large, 'x', KPB_AMENDMENT_MAX);
    large[KPB_AMENDMENT_MAX - 100] = '\0';
    buf_reset(&out);
    assert_int_equal(amend(JSON, LIT(text), NULL, &note, 1, &out), ERR_NONE);
    buf_release(&out);
    free(large);
}

/* ---- lists ---- */

static void note_item(void *ctx, const struct kpb_secret *s)
{
    buf_addf(ctx, "[%s %s]", s->name, s->resource_version);
}

static char *feed(const char *type, const char *bytes, size_t len, size_t step)
{
    struct buf items = BUF_LARGE;
    struct recwire_list *l = recwire_list_new(type, note_item, &items);
    assert_non_null(l);
    bool good = true;
    for (size_t at = 0; at < len; at += step) {
        size_t n = len - at < step ? len - at : step;
        char *copy = xmalloc(n);
        memcpy(copy, bytes + at, n);
        bool now = recwire_list_feed(l, copy, n);
        free(copy);
        assert_false(now && !good);
        good = now;
    }
    recwire_list_free(l);
    buf_add_str(&items, good ? "" : "bad");
    return buf_take(&items);
}

static void assert_items(const char *name, const char *type, const char *bytes, size_t len,
                         const char *want)
{
    for (size_t step = 1; step <= len; step++) {
        _cleanup_(free_cstr)
        char *got = feed(type, bytes, len, step);
        if (strcmp(got, want) != 0) {
            fail_msg("%s, %zu bytes at a time: %s, not %s", name, step, got, want);
        }
    }
}

struct list_row {
    const char *name, *text, *want;
};

static const char list_text[] =
    "{'kind':'SecretList','apiVersion':'v1','metadata':{'resourceVersion':'99','x':['items',{}]},"
    "'items':[{'metadata':{'name':'a','resourceVersion':'1'},'data':{'release':'YWJj'}},"
    "{'metadata':{'name':'b\\'}]','resourceVersion':'2'}}]}\n";

static const struct list_row list_rows[] = {
    {"as the server writes it", list_text, "[a 1][b\"}] 2]"},
    {"metadata last",
     "{'items':[{'metadata':{'name':'a'}}],'metadata':{'x':1},'kind':'SecretList'}", "[a ]"},
    {"blanks everywhere",
     " \n{ 'x' : -1.5e3 ,\t'y' :true , 'z': null, 'items' : [ { } , {\r\n} ] , 'w' : 's' } \n",
     "[ ][ ]"},
    {"no items", "{'kind':'SecretList','items':[]}", ""},
    {"null items", "{'kind':'SecretList','items':null}", ""},
    {"no list", "{}", ""},
    {"cut", "{'items':[{'metadata':{'name':'a'}},{'metadata':{'name':'b'}", "[a ]"},
    {"items inside metadata are none", "{'metadata':{'items':[{}]}}", ""},
    {"a text that ends in a backslash", "{'x':'\\\\','y':'\\'','items':[{}]}", "[ ]"},
    {"a Secret", "{'kind':'Secret','metadata':{}}", "bad"},
    {"a Status", "{'kind':'Status'}", "bad"},
    {"a Table", "{'kind':'Table','rows':[]}", "bad"},
    {"the kind behind the items", "{'items':[{}],'kind':'Table'}", "[ ]bad"},
    {"a kind that is no text", "{'kind':{}}", "bad"},
    {"an item that is a number", "{'items':[{},1]}", "[ ]bad"},
    {"an item that is null", "{'items':[null]}", "bad"},
    {"an item of another kind", "{'items':[{'kind':'Pod'}]}", "bad"},
    {"an item that is no JSON", "{'items':[{'x'}]}", "bad"},
    {"items that are an object", "{'items':{}}", "bad"},
    {"items that are a text", "{'items':'null'}", "bad"},
    {"items twice", "{'items':[],'items':[]}", "bad"},
    {"kind twice", "{'kind':'SecretList','kind':'SecretList'}", "bad"},
    {"a key with an escape", "{'it\\u0065ms':[]}", "bad"},
    {"a key that is too long",
     "{'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx':1}", "bad"},
    {"a comma too many in the items", "{'items':[{},]}", "[ ]bad"},
    {"no comma in the items", "{'items':[{}{}]}", "[ ]bad"},
    {"a comma too many", "{'x':1,}", "bad"},
    {"no comma", "{'x':1 'y':2}", "bad"},
    {"no colon", "{'x' 1}", "bad"},
    {"no value", "{'x':,'y':1}", "bad"},
    {"a key that is a number", "{1:2}", "bad"},
    {"an array", "[]", "bad"},
    {"bytes behind it", "{} x", "bad"},
    {"protobuf", "k8s", "bad"},
};

static void a_json_list_gives_the_same_items_however_it_is_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS(list_rows); i++) {
        _cleanup_(free_cstr)
        char *text = quoted(list_rows[i].text);
        assert_items(list_rows[i].name, "application/json; charset=utf-8", text, strlen(text),
                     list_rows[i].want);
    }
}

static void a_raw_nul_in_a_json_list_is_refused(void **state)
{
    (void)state;
    assert_items("behind a value", JSON, LIT("{\"x\":1\0}"), "bad");
    assert_items("behind the list", JSON, LIT("{}\0"), "bad");
    assert_items("as a value", JSON, LIT("{\"x\":\0}"), "bad");
    assert_items("in a key", JSON, LIT("{\"items\0\":[]}"), "bad");
}

static void a_json_list_that_ends_early_gives_the_items_before(void **state)
{
    (void)state;
    _cleanup_(free_cstr)
    char *text = quoted(list_text);
    size_t items = 0;
    for (size_t len = 0; len <= strlen(text); len++) {
        _cleanup_(free_cstr)
        char *got = feed(JSON, text, len, 5);
        assert_memory_equal(got, "[a 1][b\"}] 2]", strlen(got));
        assert_true(strlen(got) >= items);
        items = strlen(got);
    }
    assert_int_equal(items, strlen("[a 1][b\"}] 2]"));
}

static void a_protobuf_list_is_read_too(void **state)
{
    (void)state;
    static const char bytes[] = "k8s\0\x0a\x10\x0a\x02v1\x12\x0aSecretList"
                                "\x12\x0c\x12\x0a\x0a\x08\x0a\x03web\x32\x01"
                                "7";
    assert_items("a list", KPB_CONTENT_TYPE, LIT(bytes), "[web 7]");
    assert_items("as JSON", JSON, LIT(bytes), "bad");
}

static void a_json_list_has_no_limit_but_its_items_have(void **state)
{
    (void)state;
    for (size_t over = 0; over < 2; over++) {
        struct buf items = BUF_LARGE;
        struct recwire_list *l = recwire_list_new(JSON, note_item, &items);
        char *item = xmalloc(KPB_BYTES_MAX + over);
        memset(item, ' ', KPB_BYTES_MAX + over);
        item[0] = '{';
        item[KPB_BYTES_MAX + over - 1] = '}';
        assert_true(recwire_list_feed(l, LIT("{\"items\":[")));
        for (int i = 0; i < 3 && over == 0; i++) {
            assert_true(recwire_list_feed(l, item, KPB_BYTES_MAX));
            assert_true(recwire_list_feed(l, ",", 1));
        }
        assert_int_equal(recwire_list_feed(l, item, KPB_BYTES_MAX + over), over == 0);
        assert_int_equal(recwire_list_feed(l, "]}", 2), over == 0);
        assert_string_equal(buf_str(&items), over == 0 ? "[ ][ ][ ][ ]" : "");
        recwire_list_free(l);
        free(item);
        buf_release(&items);
    }
    recwire_list_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_content_type_names_the_encoding),
        cmocka_unit_test(json_is_read_as_the_server_reads_it_or_refused),
        cmocka_unit_test(a_raw_nul_and_too_many_bytes_are_refused),
        cmocka_unit_test(every_cut_of_json_is_refused),
        cmocka_unit_test(json_is_amended_in_its_metadata_alone),
        cmocka_unit_test(an_amended_json_record_of_900_kb_keeps_its_release),
        cmocka_unit_test(a_json_amendment_without_room_leaves_the_buffer_alone),
        cmocka_unit_test(a_json_list_gives_the_same_items_however_it_is_cut),
        cmocka_unit_test(a_raw_nul_in_a_json_list_is_refused),
        cmocka_unit_test(a_json_list_that_ends_early_gives_the_items_before),
        cmocka_unit_test(a_protobuf_list_is_read_too),
        cmocka_unit_test(a_json_list_has_no_limit_but_its_items_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
