/* Several pipelines for one job: each takes a share of the microbatches; none shares an agent with another, but for
 * the source's part of the transfers. */
#ifndef YK_SOLVE_REPLICAS_H
#define YK_SOLVE_REPLICAS_H

#include "scheduler/cost.h"

#define SOLVE_REPLICAS 16 /* pipelines of a plan, at most */

/* Of n pipelines of one source, up to SOLVE_REPLICAS (indexes into lines) and the microbatches of each, so that all
 * microbatches are through as early as this finds: it begins with each of the best few and adds whatever helps most.
 * Returns how many; 0 or 1: one pipeline alone is as good. */
int32_t solve_replicas_choose(const struct cost_model *m, const struct cost_line *const *lines, int32_t n,
    int32_t *chosen, int64_t *counts, double *cost_ms);
/* What no plan of any number of pipelines costs less than. */
double solve_replicas_bound(const struct cost_model *m);

#endif
