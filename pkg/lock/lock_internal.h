/* What lock.c and heartbeat.c share. */
#ifndef BELAY_LOCK_LOCK_INTERNAL_H
#define BELAY_LOCK_LOCK_INTERNAL_H

#include "base/cancel.h"
#include "base/mtx.h"
#include "lock/lock.h"

struct held {
    struct locks *locks;
    char *ns, *name, *reason, *doing; /* constant */
    int64_t epoch, acquire_ns, generation;
    struct mono acquired;
    struct cancel cancel;
    struct cancel_waker stop_waker;
    struct held *next; /* guarded by locks->lock, as is all below */
    json_t *object;    /* newest version; replaced, never changed */
    struct mono granted;   /* send time of the last confirmed grant */
    int64_t stamp_ns;      /* the newest stamp of ours that is known to stand there */
    struct mono tried;     /* send time of the last write that stamped, and the stamp (INT64_MIN: none): if it stands there */
    int64_t tried_stamp_ns; /* after all, it was a grant */
    int64_t sent_stamp_ns; /* the newest stamp that was ever sent */
    bool renew_now;        /* the stamp was behind the server's own Date */
    bool look_first;       /* the last renewal failed: read the object before the next */
    struct child *child;
    bool lost, unlocked, interrupted, soft_done;
    bool turn_taken; /* somebody's write is on the wire */
    struct mono renew_after; /* after a failed renewal: not before */
    struct cond turn_free;
};

struct locks {
    struct locks_options options;
    char *identity;
    struct mtx lock;
    struct cond changed; /* a lock came, went, or gave its turn back; or stop */
    struct held *first;  /* guarded by lock, as is all below */
    size_t count;
    bool stop, interrupt_all;
};

struct lease_grant held_grant(const struct held *h);
void held_lose_locked(struct held *h, const char *why);
void held_take_turn(struct held *h);
void held_give_turn(struct held *h);
bool held_is_mine(struct held *h, const json_t *object);
void held_note_object(struct held *h, json_t *object);
void held_note_try_locked(struct held *h, struct mono sent, int64_t stamp_ns);
void held_note_grant(struct held *h, struct mono sent, int64_t stamp_ns);
void locks_renew_now(struct held *h);

#endif
