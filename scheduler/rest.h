/* REST: routes over http.h, JSON in and out, as config/openapi and the command use them. On loopback without tokens:
 * the Host must be loopback, a foreign Origin is refused, and bodies need Content-Type application/json. */
#ifndef YK_REST_H
#define YK_REST_H

#include "scheduler/sched.h"

struct rest;

/* url: "http://127.0.0.1:7711". Refuses to listen off loopback: YK_PERM says why. */
yk_err rest_open(struct net *net, const char *url, struct sched *sched, struct rest **out, struct yk_diag *why);
const char *rest_url(const struct rest *r);
void rest_close(struct rest *r);

#endif
