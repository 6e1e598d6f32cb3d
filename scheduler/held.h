/* What agents will hold for a plan beyond the memory of its stages: the source's buffers, and the second ones of
 * codecs. A plan that an agent would refuse for them is made anew with less room there. */
#ifndef YK_HELD_H
#define YK_HELD_H

#include "scheduler/solve.h"

/* by_agent: of all pipelines of the plan, stages and the rest, by agent of the view; sizes: of the request. Not of
 * trainings, whose plans count it all. Errors: of shapes_infer, plan_stage_of, cut_edges_find. */
yk_err held_bytes(const struct graph *g, const int64_t *sizes, const struct plan *p, const struct view *v,
    int64_t *by_agent, struct yk_diag *why);
/* As solve_plan; the plan fits with all that is held, if one is found so that does. v: its memory is as it was after
 * the call. */
yk_err held_plan(const struct solve_request *req, struct view *v, struct plan **out, struct yk_diag *why);

#endif
