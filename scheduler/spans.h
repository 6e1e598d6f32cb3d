/* What agents measured of a step: checked, and into the store. */
#ifndef YK_SPANS_TAKE_H
#define YK_SPANS_TAKE_H

#include "common/wire.h"

struct fleet_agent;
struct generation;
struct sched;

/* Spans that cannot be (another stage or peer, an end before the beginning, before the job's run) are left out. */
void spans_take(struct sched *s, const struct generation *g, const struct fleet_agent *a, const struct wire_spans *m);

#endif
