/* When what ran, measured: of some steps of a training and the first microbatches of a batch job the agent notes what
 * its stages, edges and the source did, and tells yoked, in yoked's time. Sampled are a generation's second step and
 * its 10th, 100th, 1000th, ...; of a training with one step left, that one. */
#ifndef YK_SPANS_H
#define YK_SPANS_H

#include "agent/pipeline.h"

enum span_kind { SPAN_FORWARD, SPAN_BACKWARD, SPAN_BOTH, SPAN_WAIT, SPAN_STEP, SPAN_READ, SPAN_SEND, SPAN_RECEIVE };
#define SPANS_MAX 4096 /* of a training's step on one agent; what comes later is left out */
#define SPANS_BATCH 64 /* microbatches of a batch job */

/* Notes it if its step is sampled, times on the agent's clock. m: NULL in a batch job, whose microbatch counts. stage:
 * that ran, or whose output travels. peer: other end of an edge (an agent's id), else "". */
void spans_add(struct pipeline *p, enum span_kind kind, int64_t stage, const char *peer, const struct micro *m,
    int64_t microbatch, int64_t begin_us, int64_t end_us);
void spans_send(struct pipeline *p); /* what was noted since the last time */
void spans_free(struct pipeline *p);

/* yoked's clock: each ping's answer may bring a better guess. */
void spans_pinged(struct agent *a);
void spans_pong(struct agent *a, const struct wire_pong *w);

#endif
