/* Several pipelines for one job: each takes a share of the microbatches; none shares an agent with another, but for
 * the source's part of the transfers. Their cost is that of cost.h: the pipeline that is through last, and no less than
 * what any resource has to do for all of them together.
 *
 * Where a fleet and a graph have few chains all sets of them are looked at (solve_replicas_all.c): the optimum. Else
 * the sets are made of the pipelines that were found so far: all such sets in a small fleet, what helps most in a large
 * one; then only a floor of the cost is known. */
#ifndef YK_SOLVE_REPLICAS_H
#define YK_SOLVE_REPLICAS_H

#include "scheduler/solve_dp.h"

#define SOLVE_REPLICAS 16         /* pipelines of a plan, at most */
#define SOLVE_REPLICAS_AGENTS 8   /* of a fleet whose sets are all looked at */
#define SOLVE_REPLICAS_NODES 16   /* of a graph whose chains may all be looked at */
#define SOLVE_REPLICAS_ALL 200000 /* chains of all searches of a plan, at most; some 0.2 us each */

/* Of n pipelines of one source, up to SOLVE_REPLICAS (indexes into lines) and the microbatches of each, so that all
 * microbatches are through as early as this finds. Returns how many; 0 or 1: one pipeline alone is as good. */
int32_t solve_replicas_choose(const struct cost_model *m, const struct cost_line *const *lines, int32_t n,
    int32_t *chosen, int64_t *counts, double *cost_ms);
/* What no plan of any number of pipelines costs less than. */
double solve_replicas_bound(const struct cost_model *m);

/* How many chains a search over all of them would look at; INFINITY: the graph or the fleet is too large. */
double solve_replicas_chains(const struct cost_model *m);
/* The best set of two pipelines or more among all chains from this source, if it costs less than limit_ms: chains and
 * counts of SOLVE_REPLICAS places, how many to *n (0: there is none), their cost to *cost_ms. *all false: the effort
 * ran out, the set is only the best that was found. Errors: as cut_all and cost_memory. */
yk_err solve_replicas_all(const struct cost_model *m, int32_t source, double limit_ms, struct solve_chain *chains,
    int64_t *counts, int32_t *n, double *cost_ms, bool *all, struct yk_diag *why);

/* ---- sets of pipelines ---- */

#define SOLVE_SHARED 8 /* resources that pipelines share: the source, its links from and to yoked, media */

struct solve_part { /* a pipeline as one of several */
    uint64_t agents;
    double first_ms, bottleneck_ms;
    double shared[SOLVE_SHARED];
    int32_t n_stages; /* of a chain that was made here */
    int8_t agent[SOLVE_REPLICAS_AGENTS + 1], end[SOLVE_REPLICAS_AGENTS + 1];
};
/* Which resources those are; false: there are more, and these are the first. */
bool solve_replicas_shared(const struct cost_model *m, int32_t source, int32_t *resource, int32_t *n);
/* The best set of parts with distinct agents that costs less than *cost_ms, which it changes: indexes to chosen.
 * Returns how many, 0: none. *all: every set was looked at, and shared out in the best way. */
int32_t solve_replicas_sets(const struct solve_part *parts, int32_t n, int32_t n_shared, int64_t microbatches,
    int32_t *chosen, int64_t *counts, double *cost_ms, bool *all);

#endif
