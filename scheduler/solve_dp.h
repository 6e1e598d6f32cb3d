/* The exact solver: chains of distinct agents over the prefix cuts of the canonical order, of which the last may be the
 * source again if the first is, by dynamic programming.
 *
 * The bottlenecks that the optimum may have are looked at in narrow intervals; in each, a label is a prefix of the
 * nodes placed on some agents: position, agents used, who owns each value that is still needed, the sum of all times,
 * the largest load, and the loads that can still grow. A label is dropped if another of its position, agents and owners
 * is no worse, or if no completion in the interval can cost less than the best known (solve_bound.c). Agents of one
 * kind are taken in order; owners from which everything costs the same count as one. Since transfers go straight from
 * the owner of a value to each user, the owners are all of the past that the future can see: so the optimum of cost.h's
 * closed form over these chains is found. */
#ifndef YK_SOLVE_DP_H
#define YK_SOLVE_DP_H

#include "scheduler/cost.h"

#define SOLVE_DP_AGENTS 24
#define SOLVE_DP_FINE 10000 /* nodes; of a larger graph only coarse cuts are looked at */

#define SOLVE_CHAIN_STAGES 96
struct solve_chain {
    int32_t source, n_stages;
    int32_t agent[SOLVE_CHAIN_STAGES];
    int32_t end[SOLVE_CHAIN_STAGES]; /* nodes before it are in this stage or an earlier one */
    double cost_ms;
    double cloud_ms; /* of solve_dp_thrift: what one microbatch takes on devices of class cloud */
};

/* Chains that were the best known when they were found, each so much better than the one before: what a search that is
 * stopped has found is a beginning of what it finds with more time. */
#define SOLVE_TRAIL_STEP 0.01
struct solve_trail {
    struct solve_chain *at;
    int32_t n;
    double least_ms; /* what is known */
};
/* If it is so much better. */
void solve_dp_trail_add(struct solve_trail *t, const struct solve_chain *c);
bool solve_dp_same(const struct solve_chain *a, const struct solve_chain *b);

/* Puts up to `most` good chains for this model and source into best (sorted, *n of them; none if nothing fits). The
 * first is the optimum; the others are the best of those that no rule dropped.
 * limit_ms: what is known to be possible otherwise: chains that cost more are found by chance only (INFINITY: nothing).
 * bound_ms (may be NULL): no chain costs less than it or limit_ms. It is the optimum's cost, unless there are more than
 * 5 agents and 64 nodes and chains that end on the source again take long to look for (then those that save less than
 * 1 % may be left out), or the search came to its limit of effort, which depends on the input only, or to the time of
 * the model (stop_ms); then the best found so far is given. trail may be NULL. */
yk_err solve_dp_chains(const struct cost_model *m, int32_t source, double limit_ms, double *bound_ms,
    struct solve_chain *best, int32_t most, int32_t *n, struct solve_trail *trail, struct yk_diag *why);

/* Of the chains that cost at most deadline_ms the one that takes least of devices of class cloud; of equals the one
 * that costs least. Others that were found by the way are behind it, sorted so. *cloud_ms: no such chain takes less for
 * a microbatch (INFINITY: there is none; 0 where the search came to its limit). */
yk_err solve_dp_thrift(const struct cost_model *m, int32_t source, double deadline_ms, double *cloud_ms,
    struct solve_chain *best, int32_t most, int32_t *n, struct yk_diag *why);

#endif
