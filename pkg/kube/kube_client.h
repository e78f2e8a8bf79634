/* The inside of struct kube, for this package's files only. */
#ifndef BELAY_KUBE_KUBE_CLIENT_H
#define BELAY_KUBE_KUBE_CLIENT_H

#include "base/mtx.h"
#include "kube/kube.h"
#include "timeval/srvclock.h"

struct kube {
    struct transport *transport;
    struct clock *clock;
    struct kube_config *config;
    char *user_agent;
    struct mtx lock;
    struct srvclock server_clock; /* guarded by lock */
};

/* Feed the server clock; true if the reply's Date is the server's own. */
bool kube_note_date(struct kube *k, const struct http_response *http, int64_t *ret_date_ns);

#endif
