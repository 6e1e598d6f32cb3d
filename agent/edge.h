/* The two ends of an edge: connecting by ticket, microbatches as streams against credits, codecs. */
#ifndef YK_EDGE_H
#define YK_EDGE_H

#include "agent/pipeline.h"

/* Slots and buffers of every edge of p. Errors: YK_NOMEM. */
yk_err edge_alloc(struct pipeline *p, struct yk_diag *why);
void edge_connect(struct pipeline *p); /* dials what is ours to dial; local ones are up at once */
void edge_close(struct edge *e);       /* closes the connection, drops what waits; slots stay until edge_free */
void edge_free(struct edge *e);
bool edge_all_up(const struct pipeline *p);

/* A connection whose hello names an edge. True: it was taken, or refused and closed. False: not known (yet). */
bool edge_adopt(struct agent *a, struct chan *c, const struct wire_hello *h);

void edge_push(struct edge *e, struct out_slot *s); /* counts as one user of s until it is taken */
bool edge_feeds(const struct edge *e, const struct stage *reader);
/* One reader is done with it; the last one gives the credit back. */
void edge_consumed(struct in_slot *s, const struct stage *reader);
void edge_out_release(struct out_slot *s); /* one user less; frees the slot and wakes its owner */

/* The ready slot with this microbatch that the reader is not done with, or NULL. */
struct in_slot *edge_ready(struct edge *e, const struct stage *reader, int64_t microbatch);

#endif
