/* Two agents for one request: the source and another, each with a set of nodes. The least sum of all times and
 * transfers (the closed form's first_ms) over all sets that are closed downwards, so that a graph with branches is not
 * forced into a chain: a minimum cut whose arcs are node times, and for each value one arc that all its readers share.
 *
 * What an edge costs beside its bytes (header, latency, messages) is paid once or not at all; which edges there are is
 * tried out. Memory is not looked at here. */
#ifndef YK_SOLVE_SETS_H
#define YK_SOLVE_SETS_H

#include "scheduler/cost.h"

#define SOLVE_SETS_NODES 5000 /* of larger graphs chains only */

/* Some value is read by several nodes, or some node reads what several made: sets can do more than chains. */
bool solve_sets_pays(const struct graph *g);
/* The best first set and the rest, each on one of the two agents: the first is on the source if source_first. first: by
 * node, 1 for the first set; untouched if nothing costs less than below_ms. Returns the least cost, INFINITY if it is
 * not below. *bound_ms (may be NULL): no such sets cost less. */
double solve_sets_pair(const struct cost_model *m, int32_t source, int32_t other, bool source_first, double below_ms,
    uint8_t *first, double *bound_ms);

#endif
