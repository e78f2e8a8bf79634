/* The registry of (thread, transport) slots.
 *
 * A thread reaches its slots through one pthread key, whose destructor closes them when the thread
 * ends; a transport reaches them through a list of all. Both ends can come at the same time on two
 * threads, so the registry holds entries: only its thread frees an entry, and whoever takes the
 * slot out of it, under the lock, closes the slot, outside it. One key for all transports, because
 * a process has only 1024 of them and charts may bring transports of their own. This is the one
 * piece of process-wide state here; it holds no policy, only who must clean up. */
#include "transport_curl/curl_slots.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/mtx.h"
#include "base/must.h"

/* Idle connections that a thread keeps: one for each renewal of a full heartbeat. */
#define CONNECTIONS_KEPT_MAX 64L
#define USER_TIMEOUT_MAX_MS  INT64_C(30000)

struct entry {
    struct curl_slot *slot;    /* NULL once the transport is gone; guarded by registry_lock */
    const void *owner;         /* the transport */
    struct entry *thread_next; /* only its thread looks at it */
    struct entry *prev, *next; /* guarded by registry_lock; linked while slot is set */
};

static struct mtx registry_lock = {.raw = PTHREAD_MUTEX_INITIALIZER, .name = "curl_slots"};
static struct entry *registry; /* guarded by registry_lock */
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;
static pthread_key_t registry_key; /* value: struct entry *, the thread's list */

static struct curl_slot *slot_new(void)
{
    struct curl_slot *slot = xcalloc(1, sizeof(*slot));
    slot->multi = curl_multi_init();
    must(slot->multi != NULL);
    must(curl_multi_setopt(slot->multi, CURLMOPT_MAXCONNECTS, CONNECTIONS_KEPT_MAX) == CURLM_OK);
    return slot;
}

static void slot_free(struct curl_slot *slot)
{
    if (slot == NULL) {
        return;
    }
    must(!slot->busy);
    for (size_t i = 0; i < slot->easy_count; i++) {
        curl_easy_cleanup(slot->easies[i]);
    }
    free(slot->easies);
    /* Closes the connections, through curl_slot_close_socket. */
    must(curl_multi_cleanup(slot->multi) == CURLM_OK);
    free(slot->sockets);
    free(slot);
}

static struct curl_slot *entry_take_slot_locked(struct entry *entry)
{
    mtx_must_hold(&registry_lock);
    if (entry->slot == NULL) {
        return NULL;
    }
    if (entry->prev != NULL) {
        entry->prev->next = entry->next;
    } else {
        registry = entry->next;
    }
    if (entry->next != NULL) {
        entry->next->prev = entry->prev;
    }
    return take_ptr(&entry->slot);
}

static void thread_ends(void *value)
{
    struct entry *entry = value;
    while (entry != NULL) {
        struct entry *next = entry->thread_next;
        mtx_lock(&registry_lock);
        struct curl_slot *slot = entry_take_slot_locked(entry);
        mtx_unlock(&registry_lock);
        slot_free(slot);
        free(entry);
        entry = next;
    }
}

static void registry_init(void)
{
    must(pthread_key_create(&registry_key, thread_ends) == 0);
}

/* The calling thread's slot for owner or NULL; drops what is left of transports that are gone. */
static struct curl_slot *thread_find(const void *owner)
{
    must(pthread_once(&registry_once, registry_init) == 0);
    struct entry *head = pthread_getspecific(registry_key);
    struct curl_slot *found = NULL;
    mtx_lock(&registry_lock);
    for (struct entry **at = &head; *at != NULL;) {
        struct entry *entry = *at;
        if (entry->slot == NULL) {
            *at = entry->thread_next;
            free(entry);
            continue;
        }
        if (entry->owner == owner) {
            found = entry->slot;
        }
        at = &entry->thread_next;
    }
    mtx_unlock(&registry_lock);
    must(pthread_setspecific(registry_key, head) == 0);
    return found;
}

struct curl_slot *curl_slot_get(const void *owner)
{
    must(owner != NULL);
    struct curl_slot *found = thread_find(owner);
    if (found != NULL) {
        return found;
    }
    struct entry *entry = xcalloc(1, sizeof(*entry));
    struct curl_slot *slot = slot_new();
    entry->slot = slot;
    entry->owner = owner;
    entry->thread_next = pthread_getspecific(registry_key);
    mtx_lock(&registry_lock);
    entry->next = registry;
    if (registry != NULL) {
        registry->prev = entry;
    }
    registry = entry;
    mtx_unlock(&registry_lock);
    must(pthread_setspecific(registry_key, entry) == 0);
    return slot;
}

void curl_slot_reserve(struct curl_slot *slot, size_t n)
{
    if (n <= slot->easy_count) {
        return;
    }
    slot->easies = xrealloc(slot->easies, n * sizeof(CURL *));
    while (slot->easy_count < n) {
        CURL *easy = curl_easy_init();
        must(easy != NULL);
        slot->easies[slot->easy_count++] = easy;
    }
}

void curl_slots_drop(const void *owner)
{
    struct curl_slot *slot;
    do {
        mtx_lock(&registry_lock);
        struct entry *entry = registry;
        while (entry != NULL && entry->owner != owner) {
            entry = entry->next;
        }
        slot = entry != NULL ? entry_take_slot_locked(entry) : NULL;
        mtx_unlock(&registry_lock);
        slot_free(slot);
    } while (slot != NULL);
    must(thread_find(owner) == NULL);
}

static void socket_set_user_timeout(int fd, int64_t ms)
{
    must(ms > 0 && ms <= USER_TIMEOUT_MAX_MS);
    unsigned value = (unsigned)ms;
    /* Advice to the kernel: a call has its own deadline, so a refusal costs nothing but promptness.
     */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, sizeof(value));
}

static void set_user_timeout(struct curl_slot *slot, int64_t ms)
{
    slot->user_timeout_ms = ms;
    for (size_t i = 0; i < slot->socket_count; i++) {
        socket_set_user_timeout(slot->sockets[i], ms);
    }
}

void curl_slot_reset_user_timeout(struct curl_slot *slot)
{
    set_user_timeout(slot, USER_TIMEOUT_MAX_MS);
}

void curl_slot_lower_user_timeout(struct curl_slot *slot, int64_t ms)
{
    if (ms < slot->user_timeout_ms) {
        set_user_timeout(slot, ms);
    }
}

curl_socket_t curl_slot_open_socket(void *clientp, curlsocktype purpose,
                                    struct curl_sockaddr *address)
{
    struct curl_slot *slot = clientp;
    (void)purpose;
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    if (fd < 0) {
        return CURL_SOCKET_BAD;
    }
    if (slot->socket_count == slot->socket_cap) {
        slot->socket_cap = slot->socket_cap == 0 ? 8 : slot->socket_cap * 2;
        slot->sockets = xrealloc(slot->sockets, slot->socket_cap * sizeof(int));
    }
    slot->sockets[slot->socket_count++] = fd;
    socket_set_user_timeout(fd, slot->user_timeout_ms);
    return fd;
}

int curl_slot_close_socket(void *clientp, curl_socket_t fd)
{
    struct curl_slot *slot = clientp;
    for (size_t i = 0; i < slot->socket_count; i++) {
        if (slot->sockets[i] == fd) {
            slot->sockets[i] = slot->sockets[--slot->socket_count];
            break;
        }
    }
    if (slot->aborting) {
        struct linger reset = {.l_onoff = 1, .l_linger = 0};
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    return close(fd);
}
