/* What --explain adds to a plan: what binds it, what another fleet or request would bring (each solved again), and the
 * planned step as bars. */
#ifndef YK_EXPLAIN_H
#define YK_EXPLAIN_H

#include "scheduler/solve.h"

struct explain_options {
    bool changes;     /* fills binds, changes and lines of the explanation; else only bars */
    double budget_ms; /* of all that is solved again; what there is no time for is said to be left out */
};

/* p: a plan of this request over this view. What cannot be found out is left out. Thread: any; pure. */
void explain_plan(
    const struct solve_request *req, const struct view *v, const struct explain_options *o, struct plan *p);

/* A copy of v with one more agent, like `agent`, behind links as it has (of media of their own) and one to it: the
 * fastest that it has, or 1 Gbit/s where it has none. NULL: no memory. End with view_free. */
struct view *explain_one_more(const struct view *v, int32_t agent);

#endif
