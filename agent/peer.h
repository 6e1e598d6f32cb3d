/* What other agents (and, in listen mode, yoked) dial: the first message says what a connection is. */
#ifndef YK_PEER_H
#define YK_PEER_H

#include "agent/core.h"

yk_err peer_open(struct agent *a, struct yk_diag *why); /* listens */
void peer_close(struct agent *a);
void peer_retry(struct agent *a); /* an edge or a ticket became known: looks at the connections that wait */
/* One hello of ours on a data connection that we dialled. */
void peer_hello(struct agent *a, struct chan *c, const char *purpose, struct wire_bin ticket);
void peer_refuse(struct chan *c, yk_err err, const char *text); /* says why, flushes and closes */

#endif
