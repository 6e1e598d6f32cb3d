/* A single request with a deadline has no time to wait for weights: where the plan that is fastest once it is loaded
 * would be late for that, devices that are warm are looked at. */
#ifndef YK_COLD_H
#define YK_COLD_H

#include "scheduler/solve.h"

/* As held_plan. Of an infer job with a deadline and a plan that would be late with what it takes to load: another one
 * over agents that take less, if that is in time or less late, and says so. v: its agents are as they were after the
 * call. */
yk_err cold_plan(const struct solve_request *req, struct view *v, struct plan **out, struct yk_diag *why);

#endif
