#include "fence/fence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

static void claim_copy(struct fence_claim *to, const struct fence_claim *from)
{
    to->digest = xstrdup(from->digest != NULL ? from->digest : "");
    to->owner = xstrdup(from->owner != NULL ? from->owner : "");
    to->owner_name = xstrdup(from->owner_name != NULL ? from->owner_name : "");
    to->epoch = from->epoch;
}

static void claim_release(struct fence_claim *c)
{
    free(c->digest);
    free(c->owner);
    free(c->owner_name);
}

void fence_init(struct fence *f, const struct fence_options *o, struct mono now)
{
    *f = (struct fence){.ns = xstrdup(o->ns),
                        .release = xstrdup(o->release),
                        .makes_revision = o->makes_revision,
                        .may_delete_all = o->may_delete_all,
                        .newest = o->newest,
                        .last_sign = now};
    claim_copy(&f->claim, &o->claim);
}

void fence_release(struct fence *f)
{
    for (size_t i = 0; i < f->record_count; i++) {
        free(f->records[i].resource_version);
        claim_release(&f->records[i].claim);
    }
    free(f->records);
    claim_release(&f->claim);
    free(f->ns);
    free(f->release);
    *f = (struct fence){.latched = true};
}

static struct fence_record *record_find(const struct fence *f, int64_t revision)
{
    for (size_t i = 0; i < f->record_count; i++) {
        if (f->records[i].revision == revision) {
            return &f->records[i];
        }
    }
    return NULL;
}

static struct fence_record *record_add(struct fence *f, int64_t revision,
                                       const struct fence_claim *claim)
{
    f->records = xrealloc(f->records, (f->record_count + 1) * sizeof(*f->records));
    struct fence_record *r = &f->records[f->record_count++];
    *r = (struct fence_record){.revision = revision, .resource_version = xstrdup("")};
    claim_copy(&r->claim, claim);
    return r;
}

static void record_set_version(struct fence_record *r, const char *resource_version)
{
    char *copy = xstrdup(resource_version);
    free(r->resource_version);
    r->resource_version = copy;
}

void fence_add_record(struct fence *f, int64_t revision, const char *resource_version,
                      const struct fence_claim *claim)
{
    must(record_find(f, revision) == NULL);
    record_set_version(record_add(f, revision, claim), resource_version);
}

static bool is_successor(const struct fence *f, int64_t revision)
{
    return f->makes_revision && revision == f->newest + 1;
}

/* Of which record of this release is s? NULL: of none that this run may know. */
static struct fence_record *record_of(struct fence *f, const struct kpb_secret *s)
{
    struct fence_request r = {.kind = FENCE_READ};
    _cleanup_(free_cstr)
    char *target = xasprintf("/api/v1/namespaces/%s/secrets/%s", f->ns, s->name);
    fence_classify("DELETE", target, NULL, &r);
    bool ours = r.kind == FENCE_RECORD_DELETE && strcmp(r.release, f->release) == 0 &&
                strcmp(s->ns, f->ns) == 0;
    if (!ours) {
        return NULL;
    }
    struct fence_record *known = record_find(f, r.revision);
    if (known == NULL && f->created && is_successor(f, r.revision)) {
        known = record_add(f, r.revision, &f->claim);
    }
    return known;
}

void fence_saw_record(struct fence *f, const struct kpb_secret *s)
{
    struct fence_record *r = record_of(f, s);
    if (r == NULL || s->resource_version[0] == '\0' || !s->has_release) {
        return;
    }
    record_set_version(r, s->resource_version);
    memcpy(r->hash, s->release_hash, KPB_HASH_LEN);
    r->hash_known = true;
}

void fence_latch(struct fence *f, const char *why)
{
    if (!f->latched) {
        f->latched = true;
        (void)snprintf(f->why, sizeof(f->why), "%s", why);
        text_trim_utf8(f->why);
    }
}

void fence_note_sign(struct fence *f, struct mono sent)
{
    if (mono_before(f->last_sign, sent)) {
        f->last_sign = sent;
    }
}

/* ---- judging ---- */

/* Why this record may not be written, NULL if it may. */
static const char *judge_record(const struct fence *f, const struct fence_request *r)
{
    if (strcmp(r->ns, f->ns) != 0 || strcmp(r->release, f->release) != 0) {
        return "it writes a record of another release";
    }
    switch (r->kind) {
    case FENCE_RECORD_CREATE:
        if (f->creating || f->created) {
            return "it makes a second revision";
        }
        return is_successor(f, r->revision)
                   ? NULL
                   : "its revision is not the successor of the newest one that was listed under "
                     "the lock";
    case FENCE_RECORD_UPDATE:
        return record_find(f, r->revision) != NULL || (f->created && is_successor(f, r->revision))
                   ? NULL
                   : "it updates a record that was not listed under the lock";
    default:
        return f->may_delete_all || r->revision < f->newest
                   ? NULL
                   : "it deletes the newest record of a release that stays";
    }
}

/* Has this run shown in Helm's storage that it is at work? */
static bool has_begun(const struct fence *f)
{
    return f->makes_revision ? f->created : f->updated;
}

/* Why r may not pass at all, NULL if it may. */
static const char *judge_kind(const struct fence *f, const struct fence_request *r)
{
    switch (r->kind) {
    case FENCE_FORBIDDEN:
        return "it is a request that helm has no business with";
    case FENCE_RECORD_CREATE:
    case FENCE_RECORD_UPDATE:
    case FENCE_RECORD_DELETE:
        return judge_record(f, r);
    case FENCE_WRITE:
        /* In an uninstall and in a test, hooks come before the first write of the record. */
        return f->makes_revision && !f->created
                   ? "it comes before the record that announces the revision"
                   : NULL;
    case FENCE_READ:
    case FENCE_CRD:
        break;
    }
    return NULL;
}

enum fence_verdict fence_judge(struct fence *f, const struct fence_request *r, struct mono now,
                               struct mono hard, bool looked)
{
    if (r->kind == FENCE_READ) {
        return FENCE_FORWARD;
    }
    if (f->latched) {
        return FENCE_REFUSE;
    }
    const char *why =
        mono_before(now, hard) ? judge_kind(f, r) : "the lease ran out without being renewed";
    if (why != NULL) {
        fence_latch(f, why);
        return FENCE_REFUSE;
    }
    if (looked) {
        return FENCE_FORWARD;
    }
    bool plain = r->kind == FENCE_WRITE || r->kind == FENCE_CRD;
    bool fresh = mono_before(now, mono_add_ms(f->last_sign, FENCE_FRESH_MS));
    return plain && fresh && has_begun(f) ? FENCE_FORWARD : FENCE_LOOK;
}

/* ---- what is sent, and what becomes of it ---- */

void fence_amendment(const struct fence *f, const struct fence_request *r,
                     const char **ret_resource_version, const struct fence_claim **ret_claim)
{
    *ret_resource_version = NULL;
    *ret_claim = NULL;
    const struct fence_record *known = record_find(f, r->revision);
    if (r->kind == FENCE_RECORD_CREATE) {
        *ret_claim = &f->claim;
    } else if (r->kind == FENCE_RECORD_UPDATE) {
        if (known != NULL && known->resource_version[0] != '\0') {
            *ret_resource_version = known->resource_version;
        }
        /* An uninstall or a test of ours says so in the newest record; an older one keeps what it
         * said. */
        bool of_this_run = known == NULL || (!f->makes_revision && r->revision == f->newest);
        const struct fence_claim *claim = of_this_run ? &f->claim : &known->claim;
        *ret_claim = claim->owner[0] != '\0' ? claim : NULL;
    }
}

void fence_sent(struct fence *f, const struct fence_request *r)
{
    if (r->kind == FENCE_RECORD_CREATE) {
        f->creating = true;
    }
}

static void answered_create(struct fence *f, int status, const struct kpb_secret *written)
{
    f->creating = false;
    if (status / 100 == 2) {
        f->created = true;
        if (written != NULL) {
            fence_saw_record(f, written);
        }
    } else if (status == 409) {
        fence_latch(f, "somebody else made this revision of the release first");
    } else if (status == 0) {
        fence_latch(f, "the API server did not say whether the record was made");
    }
}

void fence_answered(struct fence *f, const struct fence_request *r, int status,
                    const struct kpb_secret *written)
{
    bool good = status / 100 == 2;
    if (r->kind == FENCE_RECORD_CREATE) {
        answered_create(f, status, written);
    } else if (r->kind == FENCE_RECORD_UPDATE && good) {
        f->updated = f->updated || r->revision >= f->newest;
        if (written != NULL) {
            fence_saw_record(f, written);
        }
    }
}

bool fence_may_resend(struct fence *f, const struct fence_request *r,
                      const struct kpb_secret *current)
{
    struct fence_record *known = record_find(f, r->revision);
    bool same = known != NULL && known->hash_known && current->has_release &&
                current->resource_version[0] != '\0' &&
                memcmp(known->hash, current->release_hash, KPB_HASH_LEN) == 0;
    if (!same) {
        fence_latch(f, "somebody else changed this release's record");
        return false;
    }
    record_set_version(known, current->resource_version);
    return true;
}

void fence_note_date(struct fence *f, int64_t date_ns, int64_t lease_end_ns, struct mono sent)
{
    if (date_ns >= lease_end_ns) {
        fence_latch(f, "the lease is out by the API server's own clock");
    } else {
        fence_note_sign(f, sent);
    }
}

static bool has_words(const char *body, size_t len, const char *words)
{
    return memmem(body, len, words, strlen(words)) != NULL;
}

bool fence_is_unsettled(int status, const char *body, size_t len)
{
    if (status == 504) {
        return true;
    }
    /* etcd also says "etcdserver: request is too large": that one is certain. */
    return status / 100 == 5 && body != NULL &&
           (has_words(body, len, "deadline exceeded") || has_words(body, len, "timed out") ||
            has_words(body, len, "leader changed"));
}
