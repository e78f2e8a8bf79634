/* A transport's options, and calls that are over when their function returns; replies that are read
 * piece by piece are in curl_stream.c. */
#include "transport_curl/transport_curl.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "transport_curl/curl_call.h"
#include "transport_curl/curl_loop.h"
#include "transport_curl/curl_slots.h"
#include "transport_curl/curl_stream.h"

static void transport_curl_perform_many(struct transport *base, struct http_call *http, size_t n)
{
    struct transport_curl *t = (struct transport_curl *)base;
    if (n == 0) {
        return;
    }
    struct curl_slot *slot = curl_slot_get(t);
    must(!slot->busy);
    slot->busy = true;
    curl_slot_reserve(slot, n);
    curl_slot_reset_user_timeout(slot);
    struct call *calls = xcalloc(n, sizeof(*calls));
    for (size_t i = 0; i < n; i++) {
        struct call *c = &calls[i];
        if (call_init(c, t, slot, slot->easies[i], http[i].request, &http[i].response,
                      /* pull= */ NULL, &http[i].err)) {
            loop_add(c);
        }
    }
    int64_t wait_ms;
    while ((wait_ms = loop_step(slot, calls, n)) >= 0) {
        loop_wait(slot, calls, n, wait_ms);
    }
    for (size_t i = 0; i < n; i++) {
        struct call *c = &calls[i];
        loop_remove(c);
        http[i].result = c->result;
        call_release(c);
    }
    free(calls);
    slot->busy = false;
}

static enum err_kind transport_curl_perform(struct transport *base, const struct http_request *req,
                                            struct http_response *ret, struct err *err)
{
    struct http_call call = {.request = req};
    transport_curl_perform_many(base, &call, 1);
    if (call.result != ERR_NONE) {
        *err = call.err;
        return call.result;
    }
    *ret = call.response;
    return ERR_NONE;
}

static const char *own(const char *s)
{
    return s != NULL ? xstrdup(s) : NULL;
}

static void disown(const char *s)
{
    free((void *)(uintptr_t)s);
}

static void wipe(char *s)
{
    if (s != NULL) {
        explicit_bzero(s, strlen(s));
        free(s);
    }
}

struct transport *transport_curl_new(const struct transport_curl_options *options)
{
    static const struct transport_ops ops = {.perform = transport_curl_perform,
                                             .perform_many = transport_curl_perform_many,
                                             .open = curl_stream_open,
                                             .read = curl_stream_read,
                                             .close = curl_stream_close};
    must((options->cert_data == NULL) == (options->key_data == NULL));
    must((options->cert_file == NULL) == (options->key_file == NULL));
    must(options->proxy != TRANSPORT_CURL_PROXY_URL || options->proxy_url != NULL);
    /* Counted by libcurl, and safe from several threads since 7.84. */
    must(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK);
    struct transport_curl *t = xcalloc(1, sizeof(*t));
    t->base.ops = &ops;
    t->options = *options;
    t->options.user_agent = own(options->user_agent);
    t->options.ca_file = own(options->ca_file);
    t->options.ca_data = own(options->ca_data);
    t->options.cert_file = own(options->cert_file);
    t->options.key_file = own(options->key_file);
    t->options.tls_server_name = own(options->tls_server_name);
    t->options.proxy_url = own(options->proxy_url);
    t->options.cert_data = NULL;
    t->options.key_data = NULL;
    mtx_init(&t->lock, "transport_curl");
    transport_curl_set_client_cert(&t->base, options->cert_data, options->key_data);
    proxy_env_read(&t->proxy_env);
    return &t->base;
}

void transport_curl_set_client_cert(struct transport *base, const char *cert_data,
                                    const char *key_data)
{
    struct transport_curl *t = (struct transport_curl *)base;
    must((cert_data == NULL) == (key_data == NULL));
    char *cert = cert_data != NULL ? xstrdup(cert_data) : NULL;
    char *key = key_data != NULL ? xstrdup(key_data) : NULL;
    mtx_lock(&t->lock);
    char *old_cert = t->cert_data;
    char *old_key = t->key_data;
    t->cert_data = cert;
    t->key_data = key;
    mtx_unlock(&t->lock);
    free(old_cert);
    wipe(old_key);
}

void transport_curl_free(struct transport *base)
{
    struct transport_curl *t = (struct transport_curl *)base;
    if (t == NULL) {
        return;
    }
    curl_slots_drop(t);
    disown(t->options.user_agent);
    disown(t->options.ca_file);
    disown(t->options.ca_data);
    disown(t->options.cert_file);
    disown(t->options.key_file);
    disown(t->options.tls_server_name);
    disown(t->options.proxy_url);
    free(t->cert_data);
    wipe(t->key_data);
    proxy_env_release(&t->proxy_env);
    mtx_release(&t->lock);
    free(t);
    curl_global_cleanup();
}
