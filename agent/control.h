/* The connection to yoked: joining again and again, liveness both ways, term, and the dispatch of commands. */
#ifndef YK_CONTROL_H
#define YK_CONTROL_H

#include "agent/core.h"

void control_start(struct agent *a);
void control_stop(struct agent *a, const char *leave);                      /* says leave if there is a text */
yk_err control_send(struct agent *a, enum wire_type type, const void *msg); /* YK_CLOSED if not joined */
/* Looks whether a backend was taken out since the last hello; then joins again, so that yoked plans without it. */
void control_check_backends(struct agent *a);
void control_adopt(struct agent *a, struct chan *c); /* a connection that yoked dialled (listen mode); takes c */

#endif
