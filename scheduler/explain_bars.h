/* The planned step as bars: what of which microbatch occupies an agent or a link, and when. */
#ifndef YK_EXPLAIN_BARS_H
#define YK_EXPLAIN_BARS_H

#include "scheduler/candidate.h"

/* Runs the event model of a priced plan at its depth and fills p's bars, of the first microbatches if they are many.
 * busy_ms: of the whole step, by resource. Errors: as schedule_run. */
yk_err explain_bars(const struct cost_model *m, const struct candidate *c, const struct solve_training *training,
    struct plan *p, double *busy_ms);

#endif
