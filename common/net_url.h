/* Addresses as people give them in flags. */
#ifndef YK_NET_URL_H
#define YK_NET_URL_H

#include "common/yk.h"

/* SCHEME://HOST:PORT with scheme as given ("tcp", "http") and a loopback host (127.x.x.x, localhost, [::1]): without
 * TLS nothing else is used. Errors name the flag, the address and the form that is wanted: YK_INVAL, YK_PERM off
 * loopback. url may be NULL: nothing to check. */
yk_err net_url_check(const char *flag, const char *scheme, const char *url, struct yk_diag *why);

#endif
