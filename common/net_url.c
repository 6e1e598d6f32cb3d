#include "common/net_url.h"

#include <stdlib.h>
#include <string.h>

static bool is_loopback(const char *host, size_t n)
{
    return (n > 4 && strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") >= n) ||
           (n == 9 && strncasecmp(host, "localhost", 9) == 0) || (n == 5 && strncmp(host, "[::1]", 5) == 0);
}

yk_err net_url_check(const char *flag, const char *scheme, const char *url, struct yk_diag *why)
{
    if (!url)
        return YK_OK;
    size_t n = strlen(scheme);
    const char *host = strncmp(url, scheme, n) == 0 && strncmp(url + n, "://", 3) == 0 ? url + n + 3 : "";
    const char *colon = strrchr(host, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : -1;
    if (!colon || colon == host || end == colon + 1 || *end || port < 0 || port > 65535 || colon[1] == '+' ||
        colon[1] == ' ')
        return yk_fail(why, YK_INVAL, "--%s=%s is not an address: %s://127.0.0.1:PORT", flag, url, scheme);
    if (!is_loopback(host, (size_t)(colon - host)))
        return yk_fail(why, YK_PERM,
            "--%s=%s is not loopback: without TLS and tokens only 127.0.0.1, localhost and [::1] are used", flag, url);
    return YK_OK;
}
