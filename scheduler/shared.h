/* Weights of a training that stages on several agents use: they exchange the sums of their gradients. */
#ifndef YK_SHARED_H
#define YK_SHARED_H

#include "common/cut.h"
#include "common/grad.h"

/* Edges behind each step, added to edges: from every unit (a forward stage and its pair) that makes a gradient of a
 * weight to every other one that reads the weight. *n: how many there were before. YK_NOMEM. */
yk_err shared_edges(const struct graph *g, const struct grad_info *info, int32_t n_stages, const int32_t *stage_of,
    const int32_t *pair, struct cut_edges *edges, int32_t *n, struct yk_diag *why);

#endif
