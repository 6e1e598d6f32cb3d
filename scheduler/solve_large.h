/* Fleets with more agents than the exact solver takes. */
#ifndef YK_SOLVE_LARGE_H
#define YK_SOLVE_LARGE_H

#include "scheduler/solve_dp.h"

/* What a search over a part of the fleet is told about the whole. */
struct solve_hints {
    const struct solve_chain *chains; /* worth a look; agents of this part */
    const int64_t *microbatch;        /* of each */
    int32_t n;
    bool search;     /* look for chains of its own too */
    double bound_ms; /* no pipeline of the whole fleet costs less */
    const char *solver;
};
/* In solve.c. */
yk_err solve_search(const struct solve_request *req, const struct view *v, const struct solve_hints *hints,
    struct plan **out, struct yk_diag *why);

/* Agents that can change places are one kind: the search over kinds finds chains and a bound for the whole fleet. Where
 * there are too many kinds, or links of one kind differ, the exact solver runs for the agents that promise most: the
 * source, those that cost least with the whole model and those with the most memory. Errors: as struct solver's. */
yk_err solve_large(const struct solve_request *req, const struct view *view, struct plan **out, struct yk_diag *why);

#endif
