/* Measures the path to a peer for yoked: round trip, rate each way, and both at once. Nothing counts before the first
 * bytes have arrived, and a sender never has more under way than the path took so far (its window grows as long as
 * acknowledgements come fast), so a slow link is not flooded. What could not be measured stays 0. */
#ifndef YK_LINK_H
#define YK_LINK_H

#include "agent/core.h"

void link_open(struct agent *a);
void link_close(struct agent *a);
void link_drop(struct agent *a);                        /* ends every probe; tickets are forgotten */
void link_probe(struct agent *a, struct wire_msg *msg); /* takes msg's arena */
void link_expect(struct agent *a, const struct wire_expect *w);
/* A connection whose hello says probe. True: taken or refused. False: its ticket is not known (yet). */
bool link_adopt(struct agent *a, struct chan *c, const struct wire_hello *h);

#endif
