/* Any bytes as a Secret's envelope and as a list's. What is read can be amended, and then reads as
 * before but for its version; the added bytes can be found and taken out again. A list gives the
 * same items in one piece and in many. The first byte says how it is cut. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "kpb/kpb.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same(const struct kpb_secret *a, const struct kpb_secret *b)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->ns, b->ns) == 0 &&
           strcmp(a->uid, b->uid) == 0 && strcmp(a->label_status, b->label_status) == 0 &&
           strcmp(a->label_name, b->label_name) == 0 && a->has_release == b->has_release &&
           memcmp(a->release_hash, b->release_hash, KPB_HASH_LEN) == 0;
}

static void check_secret(const char *bytes, size_t size)
{
    /* 0a 10, 32 01 "9", 62 0b {0a 03 "abc", 12 04 "wxyz"} */
    static const char added[] = "\x0a\x10\x32\x01"
                                "9\x62\x0b\x0a\x03"
                                "abc\x12\x04wxyz";
    const struct kpb_annotation note = {"abc", "wxyz"};
    struct kpb_secret before = {0};
    struct kpb_secret after = {0};
    struct err err = ERR_INIT;
    struct buf out = BUF_INIT(size + 64);
    enum err_kind kind = kpb_secret_parse(bytes, size, &before, &err);
    must(kind == err.kind);
    must(kpb_secret_amend(bytes, size, "9", &note, 1, &out, &err) == kind);
    if (kind) {
        must(out.len == 0);
        return;
    }
    must(kpb_secret_parse(out.data, out.len, &after, &err) == ERR_NONE);
    must(strcmp(after.resource_version, "9") == 0);
    must(same(&before, &after));
    size_t added_len = sizeof(added) - 1;
    const char *at = memmem(out.data, out.len, added, added_len);
    must(at != NULL);
    /* Raw's length may take fewer bytes than before, or one more. */
    must(out.len <= size + added_len + 1);
    struct kpb_secret plain = {0};
    struct buf same_again = BUF_INIT(size + 64);
    must(kpb_secret_amend(bytes, size, NULL, NULL, 0, &same_again, &err) == ERR_NONE);
    must(same_again.len <= size);
    must(kpb_secret_parse(same_again.data, same_again.len, &plain, &err) == ERR_NONE);
    must(same(&before, &plain) && strcmp(before.resource_version, plain.resource_version) == 0);
    kpb_secret_release(&before);
    kpb_secret_release(&after);
    kpb_secret_release(&plain);
    buf_release(&same_again);
    buf_release(&out);
}

static void add_item(void *ctx, const struct kpb_secret *s)
{
    uint64_t *sum = ctx;
    const char *texts[] = {s->name,         s->ns,        s->uid, s->resource_version,
                           s->label_status, s->label_name};
    for (size_t i = 0; i < 6; i++) {
        for (const char *p = texts[i]; *p != '\0'; p++) {
            *sum = *sum * 31 + (uint8_t)*p;
        }
        *sum = *sum * 31 + 1;
    }
    *sum = *sum * 31 + s->has_release + s->release_hash[0];
}

static uint64_t feed(const char *bytes, size_t size, size_t step)
{
    uint64_t sum = 0;
    bool good = true;
    struct kpb_list *l = kpb_list_new(add_item, &sum);
    for (size_t at = 0; at < size; at += step) {
        bool now = kpb_list_feed(l, bytes + at, size - at < step ? size - at : step);
        must(good || !now);
        good = now;
    }
    kpb_list_free(l);
    return sum * 2 + good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    const char *bytes = (const char *)data + 1;
    check_secret(bytes, size - 1);
    must(feed(bytes, size - 1, size) == feed(bytes, size - 1, data[0] % 16 + 1U));
    return 0;
}
