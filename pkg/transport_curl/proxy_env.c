#include "transport_curl/proxy_env.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/text.h"

/* An IPv4 address is kept in its IPv4-in-IPv6 form (Go's net.IP compares so too), so one compare
 * serves both. */
struct ip {
    uint8_t bytes[16];
    bool is_v4;
};

static bool ip_parse(const char *text, struct ip *ret)
{
    struct ip ip = {.is_v4 = true};
    struct in_addr v4;
    if (inet_pton(AF_INET, text, &v4) == 1) {
        ip.bytes[10] = 0xff;
        ip.bytes[11] = 0xff;
        memcpy(ip.bytes + 12, &v4, 4);
    } else if (inet_pton(AF_INET6, text, ip.bytes) == 1) {
        static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
        ip.is_v4 = memcmp(ip.bytes, mapped, sizeof(mapped)) == 0;
    } else {
        return false;
    }
    *ret = ip;
    return true;
}

static bool ip_is_loopback(const struct ip *ip)
{
    static const uint8_t v6_loopback[16] = {[15] = 1};
    return ip->is_v4 ? ip->bytes[12] == 127 : memcmp(ip->bytes, v6_loopback, 16) == 0;
}

static bool ip_in_block(const struct ip *ip, const struct ip *net, int bits)
{
    for (int i = 0; i < bits; i++) {
        uint8_t mask = (uint8_t)(0x80 >> (i % 8));
        if (((ip->bytes[i / 8] ^ net->bytes[i / 8]) & mask) != 0) {
            return false;
        }
    }
    return true;
}

/* "10.0.0.0/8" or "fd00::/8" -> true; then *ret_match says whether host (if it is an address) lies
 * in it. */
static bool match_cidr(const char *entry, const struct ip *host, bool *ret_match)
{
    const char *slash = strchr(entry, '/');
    if (slash == NULL) {
        return false;
    }
    _cleanup_(free_cstr)
    char *net_text = xstrndup(entry, (size_t)(slash - entry));
    struct ip net;
    int64_t bits;
    if (!ip_parse(net_text, &net) || !text_to_int64(slash + 1, 0, net.is_v4 ? 32 : 128, &bits)) {
        return false;
    }
    *ret_match = host != NULL && host->is_v4 == net.is_v4 &&
                 ip_in_block(host, &net, (int)bits + (net.is_v4 ? 96 : 0));
    return true;
}

/* Cut ":port" off entry, in place; NULL if there is none. "[v6]:port" loses its brackets, a bare v6
 * address stays. */
static const char *split_port(char *entry, char **ret_host)
{
    *ret_host = entry;
    char *colon = strrchr(entry, ':');
    if (entry[0] == '[') {
        char *end = strchr(entry, ']');
        if (end == NULL || end[1] != ':') {
            return NULL;
        }
        *end = '\0';
        *ret_host = entry + 1;
        return end + 2;
    }
    if (colon == NULL || strchr(entry, ':') != colon) {
        return NULL;
    }
    *colon = '\0';
    return colon + 1;
}

static bool match_domain(const char *pattern, const char *host)
{
    if (pattern[0] == '*' && pattern[1] == '.') {
        pattern++;
    }
    size_t pattern_len = strlen(pattern);
    size_t host_len = strlen(host);
    if (pattern[0] != '.' && strcasecmp(pattern, host) == 0) {
        return true;
    }
    if (host_len <= pattern_len) {
        return false;
    }
    const char *tail = host + (host_len - pattern_len);
    return strcasecmp(tail, pattern) == 0 && (pattern[0] == '.' || tail[-1] == '.');
}

static bool match_entry(char *entry, const char *host, const struct ip *host_ip, const char *port)
{
    bool match = false;
    if (match_cidr(entry, host_ip, &match)) {
        return match;
    }
    char *name;
    const char *entry_port = split_port(entry, &name);
    bool any_port = entry_port == NULL || entry_port[0] == '\0';
    if (name[0] == '\0' || (!any_port && strcmp(entry_port, port) != 0)) {
        return false;
    }
    struct ip ip;
    if (ip_parse(name, &ip)) {
        return host_ip != NULL && memcmp(ip.bytes, host_ip->bytes, sizeof(ip.bytes)) == 0;
    }
    return host_ip == NULL && match_domain(name, host);
}

bool proxy_env_is_exempt(const char *no_proxy, const char *host, const char *port)
{
    struct ip ip;
    const struct ip *host_ip = ip_parse(host, &ip) ? &ip : NULL;
    if (strcasecmp(host, "localhost") == 0 || (host_ip != NULL && ip_is_loopback(host_ip))) {
        return true;
    }
    for (const char *at = no_proxy; *at != '\0';) {
        size_t len = strcspn(at, ",");
        const char *start = at;
        size_t trimmed = len;
        while (trimmed > 0 && isspace((unsigned char)*start)) {
            start++;
            trimmed--;
        }
        while (trimmed > 0 && isspace((unsigned char)start[trimmed - 1])) {
            trimmed--;
        }
        _cleanup_(free_cstr)
        char *entry = xstrndup(start, trimmed);
        if (strcmp(entry, "*") == 0 || (trimmed > 0 && match_entry(entry, host, host_ip, port))) {
            return true;
        }
        at += len;
        at += *at == ',' ? 1 : 0;
    }
    return false;
}

const char *proxy_env_for(const struct proxy_env *env, const char *scheme, const char *host,
                          const char *port)
{
    const char *proxy = strcasecmp(scheme, "https") == 0 ? env->https_proxy : env->http_proxy;
    return proxy[0] == '\0' || proxy_env_is_exempt(env->no_proxy, host, port) ? "" : proxy;
}

static char *read_either(const char *upper, const char *lower)
{
    const char *value = getenv(upper);
    if (value == NULL || value[0] == '\0') {
        value = getenv(lower);
    }
    return xstrdup(value != NULL ? value : "");
}

void proxy_env_read(struct proxy_env *env)
{
    env->http_proxy = read_either("HTTP_PROXY", "http_proxy");
    env->https_proxy = read_either("HTTPS_PROXY", "https_proxy");
    env->no_proxy = read_either("NO_PROXY", "no_proxy");
}

void proxy_env_release(struct proxy_env *env)
{
    free_cstr(&env->http_proxy);
    free_cstr(&env->https_proxy);
    free_cstr(&env->no_proxy);
}
