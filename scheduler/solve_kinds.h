/* The search over kinds of agents, for fleets with more agents than the exact solver takes. */
#ifndef YK_SOLVE_KINDS_H
#define YK_SOLVE_KINDS_H

#include "scheduler/solve_dp.h"

/* m: of a view with one agent for each kind, count[agent] of them. Puts up to `most` good chains into best (agents are
 * kinds; of none more than there are; sorted by what they cost about) and lowers *bound_ms to what no pipeline of these
 * agents costs less than. Nothing is looked at that costs at most `tolerance` of it less than *least_ms, what is known
 * to be possible; that is lowered too. Errors: as cut_all. */
yk_err solve_kinds_chains(const struct cost_model *m, int32_t source, const int32_t *count, double tolerance,
    double *least_ms, double *bound_ms, struct solve_chain *best, int32_t most, int32_t *n, struct solve_trail *trail,
    struct yk_diag *why);

#endif
