/* Any bytes as a Secret and as a list in JSON. What can be amended stays JSON, with the version and
 * the annotations asked for and all else as it was. A list gives the same items in one piece and in
 * many, and those that a parser of the whole text finds. The first byte says how it is cut. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "jsonx/jsonx.h"
#include "recwire/recwire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define JSON "application/json"

static const struct kpb_annotation notes[] = {{"a", "\"A\n"}, {"b", ""}};

static json_t *object_at(json_t *parent, const char *key)
{
    if (!json_is_object(json_object_get(parent, key))) {
        must(json_object_set_new(parent, key, json_object()) == 0);
    }
    return json_object_get(parent, key);
}

/* The same change on the parsed text. */
static void check_amended(const char *text, size_t size, const struct buf *out)
{
    _cleanup_json_ json_t *want = NULL;
    _cleanup_json_ json_t *got = NULL;
    struct err err = ERR_INIT;
    must(jsonx_parse(text, size, &want, &err) == ERR_NONE);
    must(jsonx_parse(out->data, out->len, &got, &err) == ERR_NONE);
    json_t *meta = object_at(want, "metadata");
    must(json_object_set_new(meta, "resourceVersion", json_string("9")) == 0);
    json_t *annotations = object_at(meta, "annotations");
    for (size_t i = 0; i < 2; i++) {
        must(json_object_set_new(annotations, notes[i].key, json_string(notes[i].value)) == 0);
    }
    must(jsonx_equal(want, got));
}

static void check_secret(const char *text, size_t size)
{
    struct kpb_secret before = {0};
    struct kpb_secret after = {0};
    struct err err = ERR_INIT;
    struct buf out = BUF_INIT(size + 256);
    enum err_kind kind = recwire_parse(JSON, text, size, &before, &err);
    enum err_kind amended = recwire_amend(JSON, text, size, "9", notes, 2, &out, &err);
    must(amended != ERR_NONE || out.len > 0);
    if (amended == ERR_NONE) {
        check_amended(text, size, &out);
        must(recwire_parse(JSON, out.data, out.len, &after, &err) == kind);
    } else {
        must(out.len == 0);
    }
    if (kind == ERR_NONE && amended == ERR_NONE) {
        must(strcmp(after.resource_version, "9") == 0);
        must(strcmp(before.name, after.name) == 0);
        must(strcmp(before.label_status, after.label_status) == 0);
        must(before.has_release == after.has_release);
        must(memcmp(before.release_hash, after.release_hash, KPB_HASH_LEN) == 0);
    }
    kpb_secret_release(&before);
    kpb_secret_release(&after);
    buf_release(&out);
}

static void add_item(void *ctx, const struct kpb_secret *s)
{
    json_t *item = json_string(s->name);
    must(json_array_append_new(ctx, item != NULL ? item : json_null()) == 0);
}

static json_t *feed(const char *text, size_t size, size_t step, bool *ret_good)
{
    json_t *items = json_array();
    *ret_good = true;
    struct recwire_list *l = recwire_list_new(JSON, add_item, items);
    for (size_t at = 0; at < size; at += step) {
        bool now = recwire_list_feed(l, text + at, size - at < step ? size - at : step);
        must(*ret_good || !now);
        *ret_good = now;
    }
    recwire_list_free(l);
    return items;
}

static void check_list(const char *text, size_t size, size_t step)
{
    bool good = false;
    bool good_again = false;
    _cleanup_json_ json_t *items = feed(text, size, size, &good);
    _cleanup_json_ json_t *again = feed(text, size, step, &good_again);
    must(good == good_again && jsonx_equal(items, again));
    _cleanup_json_ json_t *whole = NULL;
    struct err err = ERR_INIT;
    if (!good || jsonx_parse(text, size, &whole, &err)) {
        return;
    }
    const json_t *want = json_object_get(whole, "items");
    must(json_array_size(want) == json_array_size(items));
    for (size_t i = 0; i < json_array_size(items); i++) {
        const char *name = jsonx_str(json_array_get(want, i), "metadata.name", "");
        must(strcmp(json_string_value(json_array_get(items, i)), name) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    check_secret((const char *)data + 1, size - 1);
    check_list((const char *)data + 1, size - 1, data[0] % 16 + 1U);
    return 0;
}
