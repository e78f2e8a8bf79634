/* Helm manifests as lists of objects. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "manifest/manifest.h"

#define CM(name) "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " name "}\n"

/* "kind ns/name[ keep];" of each. */
static char *listed(const struct manifest *m)
{
    struct buf b = BUF_INIT(65536);
    for (size_t i = 0; i < m->count; i++) {
        const struct manifest_object *o = &m->objects[i];
        buf_addf(&b, "%s %s %s/%s%s;", o->api_version, o->kind, o->ns, o->name,
                 o->keep ? " keep" : "");
    }
    return buf_take(&b);
}

static const struct {
    const char *name, *text, *list;
    enum err_kind kind;
} rows[] = {
    {"nothing", "", "", ERR_NONE},
    {"comments and empty documents", "# one\n---\n---\n# two\n--- \n", "", ERR_NONE},
    {"as helm writes it", "---\n# Source: a/b.yaml\n" CM("a") "---\n# Source: c\n" CM("b"),
     "v1 ConfigMap /a;v1 ConfigMap /b;", ERR_NONE},
    {"without a first marker", CM("a") "---\n" CM("b"), "v1 ConfigMap /a;v1 ConfigMap /b;",
     ERR_NONE},
    {"a document on the marker's line", "--- {apiVersion: v1, kind: X, metadata: {name: a}}\n",
     "v1 X /a;", ERR_NONE},
    {"CRLF", "---\r\napiVersion: v1\r\nkind: X\r\nmetadata:\r\n  name: a\r\n---\r\n", "v1 X /a;",
     ERR_NONE},
    {"dashes that are no marker",
     CM("a") "data:\n  x: |\n    ---\n    text\n  y: ----\n---\n" CM("b"),
     "v1 ConfigMap /a;v1 ConfigMap /b;", ERR_NONE},
    {"namespace and policy",
     "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\n  namespace: ns1\n  "
     "annotations: {helm.sh/resource-policy: keep}\n",
     "apps/v1 Deployment ns1/a keep;", ERR_NONE},
    {"a policy as helm reads it",
     "{apiVersion: v1, kind: X, metadata: {name: a, annotations: {helm.sh/resource-policy: \" Keep "
     "\"}}}\n---\n{apiVersion: v1, kind: X, metadata: {name: b, annotations: "
     "{helm.sh/resource-policy: keeper}}}",
     "v1 X /a keep;v1 X /b;", ERR_NONE},
    {"a list is unfolded",
     "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: X, metadata: {name: a}}\n- "
     "{apiVersion: v1, kind: Yard, metadata: {name: b}}\n",
     "v1 X /a;v1 Yard /b;", ERR_NONE},
    {"a kind that ends in List and has no items",
     "{apiVersion: x/v1, kind: AllowList, metadata: "
     "{name: a}}",
     "x/v1 AllowList /a;", ERR_NONE},
    {"a list without end",
     "{kind: List, items: [{kind: List, items: [{kind: List, items: [{kind: "
     "List, items: []}]}]}]}",
     NULL, ERR_LIMIT},
    {"no name", "{apiVersion: v1, kind: X}", NULL, ERR_INVALID},
    {"no YAML", CM("a") "---\n\t- x: [", NULL, ERR_INVALID},
    {"a scalar", "hello", NULL, ERR_INVALID},
};

static void a_manifest_names_its_objects(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct manifest m = MANIFEST_INIT;
        struct err err = ERR_INIT;
        print_message("  %s\n", rows[i].name);
        assert_int_equal(manifest_parse(rows[i].text, &m, &err), rows[i].kind);
        if (rows[i].kind == ERR_NONE) {
            _cleanup_(free_cstr)
            char *list = listed(&m);
            assert_string_equal(list, rows[i].list);
        }
        manifest_release(&m);
    }
}

static void in_doubt_two_names_are_one_object(void **state)
{
    (void)state;
    struct manifest m = MANIFEST_INIT;
    struct manifest other = MANIFEST_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(
        manifest_parse("{apiVersion: apps/v1, kind: X, metadata: {name: a}}\n---\n"
                       "{apiVersion: v1, kind: Yard, metadata: {name: b, namespace: ns1}}",
                       &m, &err),
        ERR_NONE);
    const struct {
        const char *text;
        bool has, has_anywhere;
    } asked[] = {
        {"{apiVersion: apps/v1beta2, kind: X, metadata: {name: a, namespace: dflt}}", true, true},
        {"{apiVersion: apps/v1, kind: X, metadata: {name: a, namespace: ns1}}", false, true},
        {"{apiVersion: extensions/v1, kind: X, metadata: {name: a}}", true, true},
        {"{apiVersion: v1, kind: X, metadata: {name: a}}", true, true},
        {"{apiVersion: apps/v1, kind: Yard, metadata: {name: a}}", false, false},
        {"{apiVersion: apps/v1, kind: X, metadata: {name: ab}}", false, false},
        {"{apiVersion: v1, kind: Yard, metadata: {name: b, namespace: ns1}}", true, true},
        {"{apiVersion: v1, kind: Yard, metadata: {name: b}}", false, true},
    };
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        assert_int_equal(manifest_parse(asked[i].text, &other, &err), ERR_NONE);
        assert_int_equal(manifest_has(&m, &other.objects[0], "dflt"), asked[i].has);
        assert_int_equal(manifest_has(&m, &other.objects[0], NULL), asked[i].has_anywhere);
        manifest_release(&other);
    }
    manifest_release(&m);
}

static void too_many_objects_are_refused(void **state)
{
    (void)state;
    struct buf b = BUF_INIT(8U << 20);
    for (int i = 0; i <= MANIFEST_OBJECTS_MAX; i++) {
        buf_addf(&b, "---\n{apiVersion: v1, kind: X, metadata: {name: n%d}}\n", i);
    }
    struct manifest m = MANIFEST_INIT;
    struct err err = ERR_INIT;
    assert_int_equal(manifest_parse(buf_str(&b), &m, &err), ERR_LIMIT);
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_manifest_names_its_objects),
        cmocka_unit_test(in_doubt_two_names_are_one_object),
        cmocka_unit_test(too_many_objects_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
