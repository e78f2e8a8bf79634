/* The cache of snapshots: who owns what, and where an object stands in the index. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "cache/cache.h"
#include "jsonx/jsonx.h"

/* A snapshot that stands in the index under of (NULL: nowhere). */
static struct snap *make(const char *key, const char *version, const char *of)
{
    struct snap *s = xcalloc(1, sizeof(*s));
    atomic_init(&s->refs, 1);
    s->key = xstrdup(key);
    s->uid = xstrdup("uid");
    s->resource_version = xstrdup(version);
    s->object = of != NULL ? json_pack("{s:s}", "of", of) : NULL;
    return s;
}

static char *index_of(const struct snap *s)
{
    const char *of = jsonx_str(s->object, "of", NULL);
    return of != NULL ? xstrdup(of) : NULL;
}

static struct cache *new_cache(void)
{
    return cache_new(&(struct cache_options){.index_of = index_of});
}

/* The keys that share an index value, as "a b ". */
static void assert_index(struct cache *c, const char *index, const char *keys)
{
    char text[256] = "";
    struct snap **all = NULL;
    size_t n = cache_by_index(c, index, &all);
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s ", all[i]->key);
        snap_unref(all[i]);
    }
    free(all);
    assert_string_equal(text, keys);
}

static void an_update_moves_the_object_in_the_index(void **state)
{
    (void)state;
    struct cache *c = new_cache();
    assert_null(cache_put(c, make("a/x", "1", "one")));
    assert_null(cache_put(c, make("a/y", "1", "one")));
    assert_null(cache_put(c, make("a/z", "1", NULL)));
    assert_index(c, "one", "a/x a/y ");
    snap_unref(cache_put(c, make("a/x", "2", "two")));
    assert_index(c, "one", "a/y ");
    assert_index(c, "two", "a/x ");
    snap_unref(cache_put(c, make("a/x", "3", NULL)));
    assert_index(c, "two", "");
    snap_unref(cache_put(c, make("a/z", "2", "two")));
    assert_index(c, "two", "a/z ");
    snap_unref(cache_put(c, make("a/z", "3", "two"))); /* stays */
    assert_index(c, "two", "a/z ");
    assert_int_equal(cache_count(c), 3);
    cache_free(c);
}

static void the_replaced_version_is_handed_back(void **state)
{
    (void)state;
    struct cache *c = new_cache();
    struct snap *first = make("a/x", "1", "one");
    assert_null(cache_put(c, first));
    struct snap *before = cache_put(c, make("a/x", "2", "one"));
    assert_ptr_equal(before, first);
    assert_int_equal(atomic_load(&before->refs), 1);
    snap_unref(before);
    struct snap *now = cache_get(c, "a/x");
    assert_string_equal(now->resource_version, "2");
    snap_unref(now);
    cache_free(c);
}

static void a_removed_object_is_nowhere(void **state)
{
    (void)state;
    struct cache *c = new_cache();
    assert_null(cache_put(c, make("a/x", "1", "one")));
    assert_null(cache_put(c, make("a/y", "1", "one")));
    struct snap *gone = cache_remove(c, "a/x");
    assert_string_equal(gone->key, "a/x");
    snap_unref(gone);
    assert_null(cache_remove(c, "a/x"));
    assert_null(cache_get(c, "a/x"));
    assert_index(c, "one", "a/y ");
    assert_int_equal(cache_count(c), 1);
    snap_unref(cache_remove(c, "a/y"));
    assert_index(c, "one", "");
    cache_free(c);
}

static void the_key_of_a_snapshot_may_remove_it(void **state)
{
    (void)state;
    struct cache *c = new_cache();
    assert_null(cache_put(c, make("a/x", "1", "one")));
    struct snap *x = cache_get(c, "a/x");
    snap_unref(cache_remove(c, x->key));
    assert_int_equal(cache_count(c), 0);
    snap_unref(x);
    cache_free(c);
}

static void what_was_got_outlives_the_cache(void **state)
{
    (void)state;
    struct cache *c = new_cache();
    assert_null(cache_put(c, make("a/x", "1", "one")));
    struct snap *x = cache_get(c, "a/x");
    struct snap **all = NULL;
    assert_int_equal(cache_all(c, &all), 1);
    snap_unref(cache_put(c, make("a/x", "2", "one")));
    cache_free(c);
    assert_string_equal(x->resource_version, "1");
    assert_string_equal(jsonx_str(x->object, "of", ""), "one");
    assert_ptr_equal(all[0], x);
    snap_unref(all[0]);
    assert_int_equal(atomic_load(&x->refs), 1);
    snap_unref(x);
    free(all);
}

static void all_come_in_the_order_of_their_arrival(void **state)
{
    (void)state;
    struct cache *c = new_cache();
    struct snap **all = NULL;
    assert_int_equal(cache_all(c, &all), 0);
    free(all);
    static const char *const keys[] = {"z", "a", "m", "b"};
    for (size_t i = 0; i < 4; i++) {
        assert_null(cache_put(c, make(keys[i], "1", NULL)));
    }
    snap_unref(cache_put(c, make("z", "2", NULL)));
    assert_int_equal(cache_all(c, &all), 4);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(all[i]->key, keys[i]);
        snap_unref(all[i]);
    }
    free(all);
    assert_null(cache_get(c, "nobody"));
    assert_false(cache_is_synced(c));
    cache_set_synced(c);
    assert_true(cache_is_synced(c));
    cache_free(c);
    cache_free(NULL);
    snap_unref(NULL);
    assert_null(snap_ref(NULL));
}

/* ---- threads ---- */

#define ROUNDS 5000

static void *reader_main(void *arg)
{
    struct cache *c = arg;
    for (int i = 0; i < ROUNDS; i++) {
        struct snap *x = cache_get(c, "a/x");
        if (x != NULL) {
            must(text_eq(x->key, "a/x"));
            must(text_eq(jsonx_str(x->object, "of", ""), x->resource_version));
            snap_unref(x);
        }
        struct snap **all = NULL;
        size_t n = cache_by_index(c, "1", &all);
        for (size_t k = 0; k < n; k++) {
            must(text_eq(all[k]->resource_version, "1"));
            snap_unref(all[k]);
        }
        free(all);
    }
    return NULL;
}

static void readers_never_see_half_a_change(void **state)
{
    (void)state;
    struct cache *c = new_cache();
    pthread_t readers[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&readers[i], NULL, reader_main, c), 0);
    }
    for (int i = 0; i < ROUNDS; i++) {
        const char *version = i % 2 == 0 ? "1" : "2";
        snap_unref(i % 5 == 4 ? cache_remove(c, "a/x")
                              : cache_put(c, make("a/x", version, version)));
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(readers[i], NULL), 0);
    }
    cache_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_update_moves_the_object_in_the_index),
        cmocka_unit_test(the_replaced_version_is_handed_back),
        cmocka_unit_test(a_removed_object_is_nowhere),
        cmocka_unit_test(the_key_of_a_snapshot_may_remove_it),
        cmocka_unit_test(what_was_got_outlives_the_cache),
        cmocka_unit_test(all_come_in_the_order_of_their_arrival),
        cmocka_unit_test(readers_never_see_half_a_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
