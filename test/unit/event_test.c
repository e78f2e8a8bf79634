/* Events over the real client and a scripted wire: what is written, how often, and what is left
 * out. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "event/event.h"
#include "fake_wire.h"
#include "jsonx/jsonx.h"

/* A step is done when the sender waits: the clock goes on to at_ms, then the event is emitted. */
struct step {
    int64_t at_ms;
    const char *note; /* NULL: none */
};

struct scene {
    struct wire *wire;
    struct events *events;
    const struct step *steps;
    size_t step_count, done;
};

static const struct event plain = {.ns = "a",
                                   .name = "podinfo",
                                   .uid = "u-1",
                                   .resource_version = "77",
                                   .reason = "ReleaseSynced",
                                   .action = "Upgrade",
                                   .note = "done"};

static void emit(struct scene *s, const char *note)
{
    struct event ev = plain;
    ev.note = note;
    event_emit(s->events, &ev);
}

/* Let time pass as the sender wishes until the next step is due; after the last one the end comes.
 */
static void on_wait(void *ctx)
{
    struct scene *s = ctx;
    if (s->done == s->step_count) {
        cancel_raise(&s->wire->cancel);
        return;
    }
    const struct step *step = &s->steps[s->done++];
    struct mono at = mono_add_ms(WIRE_START, step->at_ms);
    must(mono_before(s->wire->now, at));
    s->wire->now = at;
    if (step->note != NULL) {
        emit(s, step->note);
    }
}

static struct scene *begin(const struct wire_answer *answers, size_t count)
{
    struct scene *s = xcalloc(1, sizeof(*s));
    s->wire = wire_new(answers, count);
    s->wire->repeat_last = true;
    s->wire->on_wait = on_wait;
    s->wire->wait_ctx = s;
    s->events = events_new(&(struct events_options){.kube = s->wire->kube,
                                                    .clock = &s->wire->clock,
                                                    .rng = &s->wire->rng,
                                                    .reporting_instance = "belay-0/uid/x",
                                                    .cancel = &s->wire->cancel});
    return s;
}

static void end(struct scene *s)
{
    events_free(s->events);
    wire_free(s->wire);
    free(s);
}

static const struct wire_answer created[] = {{.status = 201, .body = "{}"}};

static json_t *body_of(struct scene *s, size_t i)
{
    assert_true(i < s->wire->asked);
    const char *body = strstr(s->wire->seen[i], "\n\n") + 2;
    json_t *j = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(jsonx_parse(body, strlen(body), &j, &err), ERR_NONE);
    return j;
}

static void assert_asked(struct scene *s, size_t i, const char *prefix)
{
    assert_true(i < s->wire->asked);
    if (!text_has_prefix(s->wire->seen[i], prefix)) {
        fail_msg("request %zu: %s", i, s->wire->seen[i]);
    }
}

/* Request i is a POST of this note. */
static void assert_post(struct scene *s, size_t i, const char *note)
{
    assert_asked(s, i, "POST /apis/events.k8s.io/v1/namespaces/a/events\n");
    _cleanup_json_ json_t *j = body_of(s, i);
    assert_string_equal(jsonx_str(j, "note", ""), note);
}

static void assert_patch(struct scene *s, size_t i, int count, const char *last)
{
    assert_asked(s, i, "PATCH /apis/events.k8s.io/v1/namespaces/a/events/podinfo.");
    assert_non_null(strstr(s->wire->seen[i], "\nContent-Type: application/merge-patch+json\n"));
    _cleanup_json_ json_t *j = body_of(s, i);
    assert_int_equal(jsonx_int(j, "series.count", 0), count);
    assert_string_equal(jsonx_str(j, "series.lastObservedTime", ""), last);
}

/* ---- what is written ---- */

static void fields_are_those_of_events_v1(void **state)
{
    (void)state;
    struct scene *s = begin(created, 1);
    event_emit(s->events, &plain);
    events_run(s->events);
    assert_int_equal(s->wire->asked, 1);
    assert_asked(s, 0, "POST /apis/events.k8s.io/v1/namespaces/a/events\n");
    _cleanup_json_ json_t *j = body_of(s, 0);
    static const struct {
        const char *path, *want;
    } rows[] = {
        {"apiVersion", "events.k8s.io/v1"},
        {"kind", "Event"},
        {"metadata.namespace", "a"},
        {"eventTime", "2026-12-01T12:00:00.000000Z"},
        {"reportingController", "belay"},
        {"reportingInstance", "belay-0/uid/x"},
        {"action", "Upgrade"},
        {"reason", "ReleaseSynced"},
        {"note", "done"},
        {"type", "Normal"},
        {"regarding.apiVersion", "helm.fluxcd.io/v1"},
        {"regarding.kind", "HelmRelease"},
        {"regarding.namespace", "a"},
        {"regarding.name", "podinfo"},
        {"regarding.uid", "u-1"},
        {"regarding.resourceVersion", "77"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (!text_eq(jsonx_str(j, rows[i].path, NULL), rows[i].want)) {
            fail_msg("%s: %s", rows[i].path, jsonx_str(j, rows[i].path, "(none)"));
        }
    }
    const char *name = jsonx_str(j, "metadata.name", "");
    assert_true(text_has_prefix(name, "podinfo."));
    assert_int_equal(strspn(name + 8, "0123456789abcdef"), 16);
    assert_int_equal(strlen(name), 24);
    assert_null(jsonx_at(j, "series"));
    end(s);
}

static void a_warning_is_one_and_empty_words_are_filled(void **state)
{
    (void)state;
    struct scene *s = begin(created, 1);
    event_emit(s->events,
               &(struct event){.ns = "a", .name = "x", .warning = true, .reason = "", .note = ""});
    events_run(s->events);
    _cleanup_json_ json_t *j = body_of(s, 0);
    assert_string_equal(jsonx_str(j, "type", ""), "Warning");
    assert_string_not_equal(jsonx_str(j, "reason", ""), ""); /* the API refuses empty ones */
    assert_string_not_equal(jsonx_str(j, "action", ""), "");
    end(s);
}

static void a_long_note_is_cut_at_a_character(void **state)
{
    (void)state;
    struct scene *s = begin(created, 1);
    struct buf note = BUF_INIT(8192);
    buf_add_str(&note, "a\x01\xff");
    for (int i = 0; i < 2000; i++) {
        buf_add_str(&note, "\xe2\x82\xac"); /* 3 bytes each, so that 1024 falls into one */
    }
    emit(s, buf_str(&note));
    events_run(s->events);
    _cleanup_json_ json_t *j = body_of(s, 0); /* parses, so it is UTF-8 */
    const char *got = jsonx_str(j, "note", "");
    assert_true(strlen(got) <= 1024 && strlen(got) > 1015);
    assert_true(text_has_prefix(got, "a??\xe2\x82\xac"));
    assert_true(text_has_suffix(got, "\xe2\x82\xac..."));
    buf_release(&note);
    end(s);
}

static void a_long_name_gives_a_legal_one(void **state)
{
    (void)state;
    struct scene *s = begin(created, 1);
    char name[254];
    memset(name, 'a', sizeof(name) - 1);
    name[253] = '\0';
    name[198] = '.';
    name[199] = '-'; /* the cut is behind it */
    struct event ev = plain;
    ev.name = name;
    event_emit(s->events, &ev);
    events_run(s->events);
    _cleanup_json_ json_t *j = body_of(s, 0);
    const char *got = jsonx_str(j, "metadata.name", "");
    assert_int_equal(strlen(got), 198 + 17);
    assert_int_equal(got[198], '.');
    assert_int_equal(got[197], 'a');
    assert_string_equal(jsonx_str(j, "regarding.name", ""), name);
    end(s);
}

/* ---- series ---- */

static void what_happens_again_is_counted_and_written_once_a_minute(void **state)
{
    (void)state;
    static const struct step steps[] = {
        {1000, "same"},  {2000, "same"}, {3000, "other"}, {60000, NULL},
        {70000, "same"}, {120000, NULL}, {130000, NULL},
    };
    struct scene *s = begin(created, 1);
    s->steps = steps;
    s->step_count = sizeof(steps) / sizeof(steps[0]);
    emit(s, "same");
    events_run(s->events);
    assert_post(s, 0, "same");
    assert_post(s, 1, "other");
    assert_patch(s, 2, 3, "2026-12-01T12:00:02.000000Z");
    assert_patch(s, 3, 4, "2026-12-01T12:01:10.000000Z");
    assert_int_equal(s->wire->asked, 4);
    _cleanup_json_ json_t *first = body_of(s, 0);
    assert_non_null(strstr(s->wire->seen[2], jsonx_str(first, "metadata.name", "?")));
    end(s);
}

static void the_sender_sleeps_until_a_series_is_due_and_no_longer(void **state)
{
    (void)state;
    static const struct step steps[] = {{1000, "same"}};
    struct scene *s = begin(created, 1);
    s->steps = steps;
    s->step_count = 1;
    emit(s, "same");
    events_run(s->events);
    /* The end came while it waited for the minute to be over; at the end all is written. */
    assert_int_equal(s->wire->asked, 2);
    assert_patch(s, 1, 2, "2026-12-01T12:00:01.000000Z");
    end(s);
}

static void a_series_ends_after_6_minutes(void **state)
{
    (void)state;
    static const struct step steps[] = {
        {359000, "same"}, {359500, "same"}, {360001, "same"},
        {361000, NULL},   {800000, NULL},   {800001, "same"},
    };
    struct scene *s = begin(created, 1);
    s->steps = steps;
    s->step_count = sizeof(steps) / sizeof(steps[0]);
    emit(s, "same");
    events_run(s->events);
    assert_post(s, 0, "same");
    assert_patch(s, 1, 2, "2026-12-01T12:05:59.000000Z");
    assert_patch(s, 2, 3, "2026-12-01T12:05:59.500000Z"); /* what the old series still owed */
    assert_post(s, 3, "same");
    assert_post(s, 4, "same");
    assert_int_equal(s->wire->asked, 5);
    end(s);
}

static void another_object_or_reason_is_another_series(void **state)
{
    (void)state;
    struct scene *s = begin(created, 1);
    struct event ev[4] = {plain, plain, plain, plain};
    ev[1].uid = "u-2";
    ev[2].reason = "FailedReleaseSync";
    ev[3].action = "Install";
    for (size_t i = 0; i < 4; i++) {
        event_emit(s->events, &ev[i]);
    }
    events_run(s->events);
    assert_int_equal(s->wire->asked, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_post(s, i, "done");
    }
    end(s);
}

/* ---- what is left out ---- */

static void a_refused_event_is_counted_and_costs_the_next_one_nothing(void **state)
{
    (void)state;
    static const struct wire_answer answers[] = {
        {.status = 403,
         .body = "{\"kind\":\"Status\",\"message\":\"namespace a is being terminated\"}"},
        {.fails = ERR_UNAVAILABLE},
        {.status = 201, .body = "{}"},
    };
    struct scene *s = begin(answers, 3);
    emit(s, "one");
    emit(s, "two");
    emit(s, "two"); /* its first did not arrive: there is nothing to count up */
    events_run(s->events);
    assert_int_equal(s->wire->asked, 3);
    assert_post(s, 1, "two");
    assert_post(s, 2, "two");
    assert_int_equal(events_dropped(s->events), 2);
    end(s);
}

static void a_full_queue_drops_the_oldest(void **state)
{
    (void)state;
    struct scene *s = begin(created, 1);
    for (int i = 0; i < 1005; i++) {
        char note[16];
        (void)snprintf(note, sizeof(note), "n%d", i);
        emit(s, note);
    }
    assert_int_equal(events_dropped(s->events), 5);
    events_run(s->events);
    assert_int_equal(s->wire->asked, 1000);
    assert_post(s, 0, "n5");
    assert_post(s, 999, "n1004");
    assert_int_equal(events_dropped(s->events), 5);
    end(s);
}

static void a_second_round_is_counted_up_note_by_note(void **state)
{
    (void)state;
    struct scene *s = begin(created, 1);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 900; i++) {
            char note[16];
            (void)snprintf(note, sizeof(note), "n%d", i);
            emit(s, note);
        }
    }
    /* 800 of the 1800 were pushed out of the queue; the rest is one POST per note, counted up. */
    events_run(s->events);
    assert_int_equal(events_dropped(s->events), 800);
    size_t posts = 0;
    for (size_t i = 0; i < s->wire->asked; i++) {
        posts += text_has_prefix(s->wire->seen[i], "POST ") ? 1U : 0U;
    }
    assert_int_equal(posts, 900);
    assert_int_equal(s->wire->asked - posts, 100);
    end(s);
}

/* ---- threads ---- */

struct emitter {
    struct scene *scene;
    int number;
};

static void *emitter_main(void *arg)
{
    const struct emitter *e = arg;
    for (int i = 0; i < 250; i++) {
        char note[32];
        (void)snprintf(note, sizeof(note), "%d-%d", e->number, i);
        emit(e->scene, note);
    }
    return NULL;
}

static void any_thread_may_emit(void **state)
{
    (void)state;
    struct scene *s = begin(created, 1);
    struct emitter emitters[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        emitters[i] = (struct emitter){.scene = s, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, emitter_main, &emitters[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    events_run(s->events);
    assert_int_equal(s->wire->asked, 1000); /* all notes differ: none was lost or sent twice */
    assert_int_equal(events_dropped(s->events), 0);
    end(s);
}

/* ---- the end ---- */

static void the_end_sends_what_is_queued_for_2_s(void **state)
{
    (void)state;
    static const struct wire_answer slow[] = {{.status = 201, .body = "{}", .takes_ms = 900}};
    struct scene *s = begin(slow, 1);
    emit(s, "one");
    emit(s, "two");
    emit(s, "three");
    emit(s, "four");
    cancel_raise(&s->wire->cancel);
    events_run(s->events);
    assert_int_equal(s->wire->asked, 3); /* at 0, 0.9 and 1.8 s */
    assert_int_equal(s->wire->deadline_ms[0], 2000);
    assert_int_equal(s->wire->deadline_ms[1], 1100);
    assert_int_equal(s->wire->deadline_ms[2], 200);
    end(s);
}

static void before_the_end_a_request_has_5_s(void **state)
{
    (void)state;
    struct scene *s = begin(created, 1);
    emit(s, "one");
    events_run(s->events);
    assert_int_equal(s->wire->deadline_ms[0], 5000);
    end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_those_of_events_v1),
        cmocka_unit_test(a_warning_is_one_and_empty_words_are_filled),
        cmocka_unit_test(a_long_note_is_cut_at_a_character),
        cmocka_unit_test(a_long_name_gives_a_legal_one),
        cmocka_unit_test(what_happens_again_is_counted_and_written_once_a_minute),
        cmocka_unit_test(the_sender_sleeps_until_a_series_is_due_and_no_longer),
        cmocka_unit_test(a_series_ends_after_6_minutes),
        cmocka_unit_test(another_object_or_reason_is_another_series),
        cmocka_unit_test(a_refused_event_is_counted_and_costs_the_next_one_nothing),
        cmocka_unit_test(a_full_queue_drops_the_oldest),
        cmocka_unit_test(a_second_round_is_counted_up_note_by_note),
        cmocka_unit_test(any_thread_may_emit),
        cmocka_unit_test(the_end_sends_what_is_queued_for_2_s),
        cmocka_unit_test(before_the_end_a_request_has_5_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
