/* helm's stderr with a secret in it: the first byte says how long the secret is, the secret and the
 * text follow. Whatever the text, the secret must not be in what is shown; nor may the text end the
 * process or take for ever. */
#include <stdint.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/must.h"
#include "helm/message.h"
#include "helm/redact.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Between the words that stand for secrets: one of them may itself be a piece of "[redacted]". */
static void must_not_show(const char *shown, const char *secret)
{
    const char *p = shown;
    while (*p != '\0') {
        const char *word = strstr(p, REDACT_WORD);
        size_t len = word != NULL ? (size_t)(word - p) : strlen(p);
        must(memmem(p, len, secret, strlen(secret)) == NULL);
        p += len + (word != NULL ? strlen(REDACT_WORD) : 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > (1U << 18)) {
        return 0;
    }
    size_t secret_len = data[0] % 64;
    if (size - 1 < secret_len || memchr(data + 1, '\0', secret_len) != NULL) {
        return 0;
    }
    _cleanup_(free_cstr)
    char *secret = xstrndup((const char *)data + 1, secret_len);
    json_t *secrets = json_pack("[s]", secret); /* NULL if it is not UTF-8 */
    if (secrets == NULL) {
        return 0;
    }
    /* A copy of its own length, so that a read past it is seen. */
    size_t len = size - 1 - secret_len;
    char *text = xmalloc(len + 1);
    memcpy(text, data + 1 + secret_len, len);

    if (len <= REDACT_TEXT_MAX && secret_len >= REDACT_MIN_BYTES &&
        strpbrk(secret, " \t\r\n") == NULL) {
        struct redact_options options = {.secrets = secrets};
        _cleanup_(free_cstr)
        char *shown = redact_text(text, len, &options);
        must_not_show(shown, secret);
    }
    struct message_source source = {
        .text = text, .len = len, .truncated = (data[0] & 64) != 0, .secrets = secrets};
    bool cancelled = false;
    _cleanup_(free_cstr)
    char *message = message_read(&source, &cancelled);
    must(strlen(message) <= LIMIT_MESSAGE_BYTES);
    must(strchr(message, '\n') == NULL);
    free(text);
    json_decref(secrets);
    return 0;
}
