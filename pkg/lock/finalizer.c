/* The finalizer of a locked object: JSON Patch with tests, so that another controller's finalizers
 * are never touched. */
#include "lock/lock_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"
#include "jsonx/jsonx.h"

/* A finalizer's JSON Patch is not starved by edits; one that is refused this often is refused for
 * good. */
#define FINALIZER_TRIES_MAX 20

static void add_op(json_t *ops, const char *op, const char *path, json_t *value)
{
    json_t *entry = json_pack("{s:s,s:s}", "op", op, "path", path);
    must(entry != NULL);
    must(value == NULL || json_object_set_new(entry, "value", value) == 0);
    must(json_array_append_new(ops, entry) == 0);
}

/* The patch, or NULL if there is nothing to change. It tests that this is the same object and that
 * the lock on it is ours, for it may reach the server late; and what it replaces, or it would undo
 * another controller's finalizer. */
static json_t *finalizer_patch(const struct held *h, const json_t *object, const char *finalizer,
                               bool add)
{
    const json_t *list = jsonx_at(object, "metadata.finalizers");
    size_t i = 0;
    size_t n = json_array_size(list);
    while (i < n && !text_eq(json_string_value(json_array_get(list, i)), finalizer)) {
        i++;
    }
    if ((i < n) == add) {
        return NULL;
    }
    json_t *ops = json_array();
    must(ops != NULL);
    add_op(ops, "test", "/metadata/uid", json_string(jsonx_str(object, "metadata.uid", "")));
    add_op(ops, "test", "/status/lease/holderIdentity", json_string(h->locks->identity));
    add_op(ops, "test", "/status/lease/leaseTransitions", json_integer(h->epoch));
    if (!add) {
        char path[64];
        (void)snprintf(path, sizeof(path), "/metadata/finalizers/%zu", i);
        add_op(ops, "test", path, json_string(finalizer));
        add_op(ops, "remove", path, NULL);
    } else if (n != 0) {
        add_op(ops, "add", "/metadata/finalizers/-", json_string(finalizer));
    } else {
        /* A list that came meanwhile is not to be replaced: null is what a missing member tests as.
         */
        add_op(ops, "test", "/metadata/finalizers", json_null());
        add_op(ops, "add", "/metadata/finalizers", json_pack("[s]", finalizer));
    }
    return ops;
}

/* One try; ERR_NONE: it is as wanted. */
static enum err_kind try_finalizer(struct held *h, const char *finalizer, bool add, struct err *err)
{
    _cleanup_json_ json_t *object = held_object(h);
    _cleanup_json_ json_t *body = finalizer_patch(h, object, finalizer, add);
    if (body == NULL) {
        return ERR_NONE;
    }
    struct kube_request req = held_request(h, body, KUBE_JSON_PATCH);
    req.subresource = NULL;
    struct kube_reply reply = KUBE_REPLY_INIT;
    enum err_kind kind = locks_patch(h->locks, &req, &reply, err);
    if (kind == ERR_NONE) {
        held_note_object(h, reply.object);
        kube_reply_release(&reply);
    }
    return kind;
}

static enum err_kind edit_finalizer(struct held *h, const char *finalizer, bool add,
                                    struct err *err)
{
    for (int tries = 0; tries < FINALIZER_TRIES_MAX && held_in_time(h); tries++) {
        enum err_kind kind = try_finalizer(h, finalizer, add, err);
        if (kind == ERR_NONE || (kind == ERR_NOT_FOUND && !add)) {
            return ERR_NONE;
        }
        if (kind != ERR_INVALID &&
            kind != ERR_CONFLICT) { /* INVALID: as a rule a test that failed, so look and go on */
            held_pause(h, tries);
        }
        bool done = false;
        struct err look = ERR_INIT;
        enum err_kind looked = held_look_again(h, NULL, &done, &look);
        if (looked == ERR_NOT_FOUND && !add) {
            return ERR_NONE;
        }
        if (looked == ERR_LEASE_LOST || looked == ERR_NOT_FOUND) {
            *err = look;
            return err->kind = ERR_LEASE_LOST;
        }
        if (kind == ERR_DENIED) {
            return kind;
        }
    }
    return err->kind != ERR_NONE ? err->kind : err_set(err, ERR_LEASE_LOST, "the lease is out");
}

static enum err_kind edit_finalizer_in_turn(struct held *h, const char *finalizer, bool add,
                                            struct err *err)
{
    struct err tried = ERR_INIT;
    held_take_turn(h);
    enum err_kind kind = edit_finalizer(h, finalizer, add, &tried);
    if (kind == ERR_NONE && !add) {
        MTX_GUARD(&h->locks->lock);
        h->unlocked = true;
    }
    held_give_turn(h);
    if (kind != ERR_NONE) {
        *err = tried;
    }
    if (kind == ERR_LEASE_LOST) {
        held_lose(h, tried.msg);
    }
    return kind;
}

enum err_kind held_add_finalizer(struct held *h, const char *finalizer, struct err *err)
{
    return edit_finalizer_in_turn(h, finalizer, true, err);
}

enum err_kind held_remove_finalizer(struct held *h, const char *finalizer, struct err *err)
{
    return edit_finalizer_in_turn(h, finalizer, false, err);
}
