/* Fleets with more agents than the exact solver takes. */
#ifndef YK_SOLVE_LARGE_H
#define YK_SOLVE_LARGE_H

#include "scheduler/solve.h"

/* Agents that can change places are one kind: the search over kinds finds chains and a bound for the whole fleet. Where
 * there are too many kinds, or links of one kind differ, the exact solver runs for the agents that promise most: the
 * source, those that cost least with the whole model and those with the most memory. Errors: as struct solver's. */
yk_err solve_large(const struct solve_request *req, const struct view *view, struct plan **out, struct yk_diag *why);

#endif
