/* Helm records from an untrusted Secret. Byte 0 picks how the rest is read: as a whole object's
 * JSON, as the text of data.release, or as the packed bytes (so that gzip and what is in it are
 * reached without luck). */
#include <openssl/evp.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "helmrec/helmrec.h"
#include "jsonx/jsonx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_splice(const json_t *secret);

static void check_payload(const json_t *secret)
{
    struct helmrec_payload *p = NULL;
    struct err err = ERR_INIT;
    enum err_kind kind = helmrec_payload_decode(secret, &p, &err);
    must(kind == err.kind);
    must((kind == ERR_NONE) == (p != NULL));
    if (p != NULL) {
        must(p->revision >= 1 && json_is_object(p->config) && p->description != NULL);
    }
    helmrec_payload_free(p);
    check_splice(secret);
}

/* A splice is read back as what it says, and splicing the old word into it again gives the same
 * payload: nothing else was touched. */
static void check_splice(const json_t *secret)
{
    struct err err = ERR_INIT;
    _cleanup_(free_cstr)
    char *failed = NULL;
    enum err_kind kind = helmrec_payload_splice_status(secret, HELMREC_FAILED, &failed, &err);
    must(kind == err.kind);
    must((kind == ERR_NONE) == (failed != NULL));
    if (failed == NULL) {
        return;
    }
    _cleanup_json_ json_t *after = json_pack("{s:{s:s}}", "data", "release", failed);
    struct helmrec_payload *p = NULL;
    if (helmrec_payload_decode(after, &p, &err) == ERR_NONE) { /* it may lack a version */
        must(p->status == HELMREC_FAILED);
    }
    helmrec_payload_free(p);
    _cleanup_(free_cstr)
    char *once = NULL;
    _cleanup_(free_cstr)
    char *twice = NULL;
    must(helmrec_payload_splice_status(secret, HELMREC_DEPLOYED, &once, &err) == ERR_NONE);
    must(helmrec_payload_splice_status(after, HELMREC_DEPLOYED, &twice, &err) == ERR_NONE);
    must(strcmp(once, twice) == 0);
}

static void check_object(const json_t *object)
{
    struct helmrec_meta *m = NULL;
    struct err err = ERR_INIT;
    enum err_kind kind = helmrec_meta_parse(object, &m, &err);
    _cleanup_(free_cstr)
    char *index = helmrec_index(object);
    must((kind == ERR_NONE) == (m != NULL));
    must((kind == ERR_NONE) == (index != NULL));
    if (m != NULL) {
        must(m->revision >= 1 && m->release[0] != '\0' && m->epoch >= 0);
        _cleanup_(free_cstr)
        char *name = xasprintf("sh.helm.release.v1.%s.v%lld", m->release, (long long)m->revision);
        must(strcmp(name, m->secret_name) == 0);
    }
    helmrec_meta_free(m);
    check_payload(object);
}

static json_t *secret_with(const char *text, size_t len)
{
    /* NULL if the text is not UTF-8: the API cannot serve that. */
    return json_pack("{s:{s:s#}}", "data", "release", text, len);
}

static char *base64(const uint8_t *bytes, size_t len)
{
    char *out = xmalloc(len / 3 * 4 + 5);
    EVP_EncodeBlock((unsigned char *)out, bytes, (int)len);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > (1U << 20)) {
        return 0;
    }
    const uint8_t *rest = data + 1;
    size_t len = size - 1;
    _cleanup_json_ json_t *object = NULL;
    struct err err = ERR_INIT;
    switch (data[0] % 3) {
    case 0:
        if (jsonx_parse((const char *)rest, len, &object, &err) == ERR_NONE) {
            check_object(object);
        }
        break;
    case 1:
        object = secret_with((const char *)rest, len);
        if (object != NULL) {
            check_payload(object);
        }
        break;
    default: {
        _cleanup_(free_cstr)
        char *inner = base64(rest, len);
        _cleanup_(free_cstr)
        char *outer = base64((const uint8_t *)inner, strlen(inner));
        object = secret_with(outer, strlen(outer));
        must(object != NULL);
        check_payload(object);
    }
    }
    return 0;
}
