/* Events on a real API server: that it takes them and their series, and what it refuses. */
#include "event/event.h"
#include "fixture.h"

#include "base/limits.h"
#include "effect/rng.h"

struct told {
    struct events *events;
    struct cancel cancel;
};

static void told_open(struct told *t, struct scene *s)
{
    cancel_init(&t->cancel);
    t->events = events_new(&(struct events_options){.kube = s->client.kube,
                                                    .clock = clock_os(),
                                                    .rng = rng_os(),
                                                    .reporting_instance = "belay-0/uid/life",
                                                    .cancel = &t->cancel});
}

/* Send all, as at the end of the process; the number of those that did not arrive. */
static int64_t told_close(struct told *t)
{
    cancel_raise(&t->cancel);
    events_run(t->events);
    int64_t dropped = events_dropped(t->events);
    events_free(t->events);
    cancel_release(&t->cancel);
    return dropped;
}

static json_t *events_about(struct scene *s, const char *name)
{
    _cleanup_json_ json_t *all =
        call_ok(&s->client, &(struct call){.method = "GET", .gvr = &KUBE_EVENTS, .ns = s->ns});
    json_t *ours = json_array();
    size_t i;
    const json_t *e;
    json_array_foreach(jsonx_at(all, "items"), i, e)
    {
        if (text_eq(jsonx_str(e, "regarding.name", NULL), name)) {
            json_array_append(ours, (json_t *)(uintptr_t)e);
        }
    }
    return ours;
}

static void what_happens_again_is_one_event_with_a_count(void **state)
{
    struct scene *s = *state;
    struct told t;
    told_open(&t, s);
    struct event ev = {.ns = s->ns,
                       .name = "again",
                       .uid = "0a0a0a0a-0000-4000-8000-000000000001",
                       .resource_version = "77",
                       .warning = true,
                       .reason = "FailedReleaseSync",
                       .action = "Upgrade",
                       .note = "it failed"};
    for (int i = 0; i < 3; i++) {
        event_emit(t.events, &ev);
    }
    assert_int_equal(told_close(&t), 0);
    _cleanup_json_ json_t *got = events_about(s, "again");
    assert_int_equal(json_array_size(got), 1);
    const json_t *e = json_array_get(got, 0);
    assert_int_equal(jsonx_int(e, "series.count", 0), 3);
    assert_string_not_equal(jsonx_str(e, "series.lastObservedTime", ""), "");
    assert_string_equal(jsonx_str(e, "reportingInstance", ""), "belay-0/uid/life");
    assert_string_equal(jsonx_str(e, "type", ""), "Warning");
    assert_string_equal(jsonx_str(e, "note", ""), "it failed");
}

static void the_longest_names_and_notes_are_taken(void **state)
{
    struct scene *s = *state;
    struct told t;
    told_open(&t, s);
    char name[254];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    memset(name + 198, '.', 1);
    struct buf note = BUF_INIT(8192);
    for (int i = 0; i < 1000; i++) {
        buf_add_str(&note, "\xe2\x82\xac\x01");
    }
    event_emit(t.events, &(struct event){.ns = s->ns, .name = name, .note = buf_str(&note)});
    event_emit(t.events, &(struct event){.ns = s->ns, .name = "empty", .note = ""});
    buf_release(&note);
    assert_int_equal(told_close(&t), 0);
    _cleanup_json_ json_t *got = events_about(s, name);
    assert_int_equal(json_array_size(got), 1);
    size_t len = strlen(jsonx_str(json_array_get(got, 0), "note", ""));
    assert_in_range(len, LIMIT_MESSAGE_BYTES - 6, LIMIT_MESSAGE_BYTES);
    _cleanup_json_ json_t *empty = events_about(s, "empty");
    assert_int_equal(json_array_size(empty), 1);
}

static void what_cannot_be_delivered_is_counted(void **state)
{
    struct scene *s = *state;
    struct told t;
    told_open(&t, s);
    event_emit(t.events, &(struct event){.ns = "no-such-namespace", .name = "x", .note = "lost"});
    event_emit(t.events, &(struct event){.ns = s->ns, .name = "after", .note = "not lost"});
    assert_int_equal(told_close(&t), 1);
    _cleanup_json_ json_t *got = events_about(s, "after");
    assert_int_equal(json_array_size(got), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_happens_again_is_one_event_with_a_count),
        cmocka_unit_test(the_longest_names_and_notes_are_taken),
        cmocka_unit_test(what_cannot_be_delivered_is_counted),
    };
    return cmocka_run_group_tests(tests, scene_open, scene_close);
}
