#include "proc_posix/pod_socket.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/mtx.h"
#include "base/must.h"

struct pod_socket {
    struct mtx lock;
    struct sockaddr_un addr;
    socklen_t addr_len;
    int fd;     /* constant */
    bool bound; /* guarded by lock */
};

struct pod_socket *pod_socket_new(const char *uid)
{
    struct pod_socket *s = xcalloc(1, sizeof(*s));
    mtx_init(&s->lock, "pod_socket");
    s->fd = -1;
    s->addr.sun_family = AF_UNIX;
    /* A leading NUL makes the name abstract; its length is part of it. */
    int len = uid != NULL && uid[0] != '\0'
                  ? snprintf(s->addr.sun_path + 1, sizeof(s->addr.sun_path) - 1, "belay/%s", uid)
                  : 0;
    if (len <= 0 || (size_t)len >= sizeof(s->addr.sun_path) - 1) {
        return s;
    }
    s->addr_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return s;
}

bool pod_socket_bound(struct pod_socket *s)
{
    MTX_GUARD(&s->lock);
    if (!s->bound && s->fd >= 0) {
        s->bound = bind(s->fd, (const struct sockaddr *)&s->addr, s->addr_len) == 0;
    }
    return s->bound;
}

int pod_socket_fd(const struct pod_socket *s)
{
    return s->fd;
}

void pod_socket_free(struct pod_socket *s)
{
    if (s == NULL) {
        return;
    }
    if (s->fd >= 0) {
        (void)close(s->fd);
    }
    mtx_release(&s->lock);
    free(s);
}
