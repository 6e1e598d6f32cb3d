/* Fleets with more agents than the exact solver takes. */
#ifndef YK_SOLVE_LARGE_H
#define YK_SOLVE_LARGE_H

#include "scheduler/solve.h"

/* Solves for the agents that promise most: the source, those that cost least with the whole model and those with the
 * most memory. The bound holds for the whole fleet. Errors: as struct solver's. */
yk_err solve_large(const struct solver *exact, const struct solve_request *req, const struct view *view,
    struct plan **out, struct yk_diag *why);

#endif
