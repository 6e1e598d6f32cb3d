/* What edge*.c share. Loop thread. */
#ifndef YK_EDGE_PRIV_H
#define YK_EDGE_PRIV_H

#include "agent/edge.h"

/* edge.c */
struct in_slot *edge_free_slot(struct edge *e); /* NULL: all are taken, which credits prevent */
void edge_wake_reader(struct edge *e);          /* a slot is ready */

/* edge_send.c: sends what waits, as far as credits and the encode buffers go. */
void edge_go(struct edge *e);

/* edge_receive.c: chan_on.stream of an edge. Takes the message on success; else the connection ends, and so does the
 * pipeline where the microbatch is of its own generation. */
yk_err edge_on_stream(void *arg, struct chan *c, struct wire_msg *m, struct chan_sink *sink);

#endif
