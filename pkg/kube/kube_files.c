#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/must.h"
#include "kube/kube_config.h"

static inline void close_ptr(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd);
    }
}

enum err_kind kube_file_read(const char *path, char **ret, struct err *err)
{
    _cleanup_(close_ptr)
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return err_set(err, ERR_UNAVAILABLE, "%s: %s", path, strerrordesc_np(errno));
    }
    _cleanup_(buf_release)
    struct buf b = BUF_INIT(LIMIT_CREDENTIAL_BYTES);
    char chunk[4096];
    ssize_t n;
    while ((n = read(fd, chunk, sizeof(chunk))) != 0 && !b.overflow) {
        if (n < 0 && errno != EINTR) {
            return err_set(err, ERR_UNAVAILABLE, "%s: %s", path, strerrordesc_np(errno));
        }
        if (n > 0) {
            buf_add(&b, chunk, (size_t)n);
        }
    }
    explicit_bzero(chunk, sizeof(chunk));
    if (b.overflow) {
        return err_set(err, ERR_LIMIT, "%s is larger than %u bytes", path, LIMIT_CREDENTIAL_BYTES);
    }
    if (b.len > 0 && memchr(b.data, '\0', b.len) != NULL) {
        return err_set(err, ERR_INVALID, "%s is not a text file", path);
    }
    *ret = buf_take(&b);
    return ERR_NONE;
}

char *kube_path_join(const char *dir, const char *path)
{
    if (path[0] == '/') {
        return xstrdup(path);
    }
    if (dir[0] == '/') {
        return xasprintf("%s/%s", dir, path);
    }
    char *cwd = getcwd(NULL, 0);
    char *joined = xasprintf("%s/%s/%s", cwd != NULL ? cwd : "", dir, path);
    free(cwd);
    return joined;
}

char *kube_base64_decode(const char *text)
{
    size_t len = strlen(text);
    char *packed = xmalloc(len + 1);
    size_t n = 0;
    for (const char *p = text; *p != '\0'; p++) {
        if (strchr(" \t\r\n", *p) == NULL) {
            packed[n++] = *p;
        }
    }
    packed[n] = '\0';
    unsigned char *out = xmalloc(n + 1);
    size_t pad = n >= 1 && packed[n - 1] == '=' ? (n >= 2 && packed[n - 2] == '=' ? 2 : 1) : 0;
    int got = n % 4 == 0 && n <= LIMIT_CREDENTIAL_BYTES
                  ? EVP_DecodeBlock(out, (const unsigned char *)packed, (int)n)
                  : -1;
    kube_wipe(packed);
    /* OpenSSL counts the padding as bytes of value 0. */
    if (got < 0 || (size_t)got < pad || memchr(out, '\0', (size_t)got - pad) != NULL) {
        free(out);
        return NULL;
    }
    out[(size_t)got - pad] = '\0';
    return (char *)out;
}

char *kube_base64_encode(const char *bytes)
{
    size_t len = strlen(bytes);
    must(len <= LIMIT_CREDENTIAL_BYTES);
    unsigned char *out = xmalloc((len + 2) / 3 * 4 + 1);
    (void)EVP_EncodeBlock(out, (const unsigned char *)bytes, (int)len);
    return (char *)out;
}

void kube_wipe(char *secret)
{
    if (secret != NULL) {
        explicit_bzero(secret, strlen(secret));
        free(secret);
    }
}
