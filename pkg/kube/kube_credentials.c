/* Credentials that change while we run: a token file is read again each minute, a plugin is run
 * again when what it gave has expired, and both when the API server said 401 (case 15).
 *
 *   idle --due, or its newest generation got a 401--> refreshing (one thread, outside the lock) -->
 * idle, generation + 1
 *
 * The others wait meanwhile. A 401 for an older generation than the newest is already answered:
 * they take that. */
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/must.h"
#include "effect/clock.h"
#include "kube/kube_config.h"
#include "base/text.h"

#define TOKEN_FILE_AGE_MAX_MS INT64_C(60000)

bool kube_config_rotates(const struct kube_config *c)
{
    return c->token_file != NULL || c->exec != NULL;
}

static bool due_locked(const struct kube_config *c)
{
    mtx_must_hold(&c->lock);
    if (c->generation == 0 || c->rejected) {
        return true;
    }
    if (c->token_file != NULL) {
        return mono_diff_ms(clock_mono(c->clock), c->read_at) >= TOKEN_FILE_AGE_MAX_MS;
    }
    return c->expires && clock_wall(c->clock).ns >= c->expires_ns;
}

static enum err_kind read_token_file(const struct kube_config *c, struct kube_exec_result *ret,
                                     struct err *err)
{
    char *token = NULL;
    enum err_kind kind = kube_file_read(c->token_file, &token, err);
    if (kind != ERR_NONE) {
        return err_wrap(err, "token file");
    }
    size_t len = strlen(token);
    while (len > 0 && strchr(" \t\r\n", token[len - 1]) != NULL) {
        token[--len] = '\0';
    }
    if (len == 0 || strpbrk(token, "\r\n") != NULL) {
        kube_wipe(token);
        return err_set(err, ERR_INVALID, "token file %s must hold one token", c->token_file);
    }
    *ret = (struct kube_exec_result){.token = token};
    return ERR_NONE;
}

static void adopt_locked(struct kube_config *c, struct kube_exec_result *r)
{
    mtx_must_hold(&c->lock);
    kube_wipe(c->current_token);
    c->current_token = take_ptr(&r->token);
    c->expires = r->expires;
    c->expires_ns = r->expires_ns;
    if (r->cert_data != NULL) {
        free(c->exec_cert);
        kube_wipe(c->exec_key);
        c->exec_cert = take_ptr(&r->cert_data);
        c->exec_key = take_ptr(&r->key_data);
    }
}

/* The lock is held on entry and exit, and not while the file is read or the plugin runs. */
static enum err_kind refresh_locked(struct kube_config *c, struct mono deadline, struct err *err)
{
    must(!c->refreshing);
    c->refreshing = true;
    mtx_unlock(&c->lock);
    struct kube_exec_result r = {0};
    struct err why = ERR_INIT;
    enum err_kind kind = c->token_file != NULL ? read_token_file(c, &r, &why)
                                               : kube_exec_run(c->exec, c, deadline, &r, &why);
    if (kind == ERR_NONE && r.cert_data != NULL && c->on_client_cert != NULL) {
        c->on_client_cert(c->on_client_cert_ctx, r.cert_data, r.key_data);
    }
    mtx_lock(&c->lock);
    if (kind == ERR_NONE) {
        adopt_locked(c, &r);
    } else if (c->token_file != NULL && c->current_token != NULL) {
        /* In the middle of kubelet's exchange of the file: the old one is the best there is. */
        kind = ERR_NONE;
    }
    if (kind == ERR_NONE) {
        c->generation++;
        c->rejected = false;
        c->read_at = clock_mono(c->clock);
    } else {
        *err = why;
    }
    c->refreshing = false;
    cond_broadcast(&c->changed);
    kube_exec_result_release(&r);
    return kind;
}

/* current_token is good when this returns ERR_NONE. */
static enum err_kind ensure_locked(struct kube_config *c, struct mono deadline, struct err *err)
{
    while (due_locked(c)) {
        if (!c->refreshing) {
            return refresh_locked(c, deadline, err);
        }
        if (!mono_before(clock_mono(c->clock), deadline)) {
            return err_set(err, ERR_TIMEOUT, "waiting for new credentials");
        }
        clock_wait(c->clock, &c->changed, &c->lock, deadline);
    }
    return ERR_NONE;
}

static char *basic_header(const struct kube_config *c)
{
    _cleanup_(kube_wipe_ptr)
    char *pair = xasprintf("%s:%s", c->username, c->password != NULL ? c->password : "");
    _cleanup_(kube_wipe_ptr)
    char *packed = kube_base64_encode(pair);
    return xasprintf("Basic %s", packed);
}

void kube_config_reject(struct kube_config *c, uint64_t generation)
{
    MTX_GUARD(&c->lock);
    c->rejected = c->rejected || generation == c->generation;
}

enum err_kind kube_config_authorization(struct kube_config *c, struct mono deadline, char **ret,
                                        uint64_t *ret_generation, struct err *err)
{
    char *header = NULL;
    uint64_t generation = 0;
    if (!text_has_prefix(c->server, "https://")) {
        header = xstrdup("");
    } else if (kube_config_rotates(c)) {
        MTX_GUARD(&c->lock);
        enum err_kind kind = ensure_locked(c, deadline, err);
        if (kind != ERR_NONE) {
            return kind;
        }
        header = c->current_token != NULL ? xasprintf("Bearer %s", c->current_token) : xstrdup("");
        generation = c->generation;
    } else if (c->token != NULL) {
        header = xasprintf("Bearer %s", c->token);
    } else {
        header = c->username != NULL ? basic_header(c) : xstrdup("");
    }
    *ret = header;
    *ret_generation = generation;
    return ERR_NONE;
}

enum err_kind kube_config_token(struct kube_config *c, char **ret, struct err *err)
{
    if (!kube_config_rotates(c)) {
        *ret = kube_dup(c->token);
        return ERR_NONE;
    }
    MTX_GUARD(&c->lock);
    enum err_kind kind = ensure_locked(c, MONO_NEVER, err);
    if (kind == ERR_NONE) {
        *ret = kube_dup(c->current_token);
    }
    return kind;
}
