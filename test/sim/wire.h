/* The simulated network and API server. HelmReleases are served by the in-memory server of
 * test/unit/fake_api.h over a struct transport; Helm's records and workloads by wire_call(), where
 * the caller says what the server does. Each message has a delay, and by chance is lost, answered
 * late, answered by a proxy, or carried out long after its sender has given up. */
#ifndef BELAY_TEST_SIM_WIRE_H
#define BELAY_TEST_SIM_WIRE_H

#include "effect/transport.h"
#include "fiber.h"

/* Chances are "once in n"; 0 = never. */
struct wire_faults {
    unsigned refuse;      /* 409, 429, 500 or 504 by a proxy: nothing has happened */
    unsigned lie;         /* 504 or 500, and it has happened */
    unsigned lose;        /* the request is lost */
    unsigned lose_reply;  /* it is carried out, the reply is lost */
    unsigned late;        /* carried out up to 20 s later, whoever still waits (lock PATCHes only) */
    unsigned slow;        /* a delay of up to 3 s each way instead of up to 30 ms */
    unsigned drop_watch;  /* a watch event is lost with its watch; a LIST follows */
    unsigned twice;       /* the request arrives a second time later (lock PATCHes only) */
};

struct wire {
    struct transport base; /* first: the vtable's instance; one per machine */
    struct machine *machine;
    int64_t cut_until_ns; /* partition: nothing passes either way */
};
void wire_init(struct wire *w, struct machine *m);

void wire_server_init(const struct wire_faults *faults);
void wire_server_free(void);
void wire_server_faults(const struct wire_faults *faults);
void wire_server_add(const char *text);
/* As it stands; a new reference, NULL if there is none. */
json_t *wire_server_object(const char *name);
/* Another client's edit of the object, now. */
void wire_server_edit(const char *name, void (*edit)(json_t *object, void *ctx), void *ctx);
/* No reply from now until then; what was on its way is lost. */
void wire_server_down(int64_t until_ns);

/* Called for each new version of an object, with the old one. */
typedef void (*wire_watcher)(void *ctx, const json_t *before, const json_t *after);
void wire_server_watch(wire_watcher fn, void *ctx);
/* Deliver versions of the objects to fn on w's machine: in order, delayed, now and then by a LIST
 * (live = false) after a gap. Begins with a LIST. */
typedef void (*wire_view)(void *ctx, json_t *object, bool live);
void wire_follow(struct wire *w, wire_view fn, void *ctx);

/* Have the server run fn(ctx) (once, or never), unless it arrives after the deadline: the sender's
 * kernel drops what it could not send by then. ERR_NONE: the answer is fn's own. UNKNOWN_OUTCOME:
 * no answer. ctx must outlive the message: allocate it, it is never freed. */
enum err_kind wire_call(struct wire *w, struct mono deadline, void (*fn)(void *ctx), void *ctx);

#endif
