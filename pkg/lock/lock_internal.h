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
    struct cancel lost_cancel; /* raised with lost, and by nothing else */
    struct cancel_waker stop_waker;
    struct held *next;   /* guarded by locks->lock, as is all below */
    json_t *object;      /* newest version; replaced, never changed */
    struct mono granted; /* send time of the last confirmed grant */
    int64_t stamp_ns;    /* the newest stamp of ours that is known to stand there */
    struct mono tried; /* send time of the last write that stamped, and the stamp (INT64_MIN: none):
                          if it stands there */
    int64_t tried_stamp_ns; /* after all, it was a grant */
    int64_t sent_stamp_ns;  /* the newest stamp that was ever sent */
    bool renew_now;         /* the stamp was behind the server's own Date */
    bool look_first;        /* the last renewal failed: read the object before the next */
    struct child *child;
    char lost_why[256]; /* once lost */
    bool lost, unlocked, interrupted, soft_done;
    bool turn_taken;         /* somebody's write is on the wire */
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

/* ---- lock.c ---- */

struct held *held_new(struct locks *l, const struct lease_grant *grant, struct mono sent,
                      const json_t *object);
struct lease_grant held_grant(const struct held *h);
/* The lock is gone: stop what runs under it. Once; later calls do nothing. */
void held_lose(struct held *h, const char *why);
void held_lose_locked(struct held *h, const char *why);
/* A PATCH of the object's status with the deadline that one request of this lock may have. body is
 * borrowed. */
struct kube_request held_request(const struct held *h, const json_t *body,
                                 const char *content_type);
/* A PATCH; ERR_NONE only with the new object in *ret. */
enum err_kind locks_patch(struct locks *l, const struct kube_request *req, struct kube_reply *ret,
                          struct err *err) MUST_CHECK;
/* GET afresh (a quorum read), after an answer that said too little. */
enum err_kind locks_read_back(struct locks *l, const char *ns, const char *name, json_t **ret,
                              struct err *err) MUST_CHECK;

/* ---- write.c ---- */

struct write;
/* The turn to write: heartbeat and worker never write at the same time. */
void held_take_turn(struct held *h);
void held_give_turn(struct held *h);
/* Is it ours, by all that is known, and not past its hard deadline? */
bool held_in_time(struct held *h);
/* A pause that grows with tries, while the server or the way to it is in trouble. */
void held_pause(struct held *h, int tries);
/* Look again after a conflict or an unknown outcome of w (NULL: of a finalizer's patch). ERR_NONE:
 * the lock is still ours, and the newest object is noted; *ret_done: the object shows that w was
 * carried out. */
enum err_kind held_look_again(struct held *h, const struct write *w, bool *ret_done,
                              struct err *err) MUST_CHECK;
bool held_is_mine(struct held *h, const json_t *object);
void held_note_object(struct held *h, json_t *object);
void held_note_try_locked(struct held *h, struct mono sent, int64_t stamp_ns);
void held_note_grant(struct held *h, struct mono sent, int64_t stamp_ns);

/* ---- heartbeat.c ---- */

void locks_renew_now(struct held *h);

#endif
