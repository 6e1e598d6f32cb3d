/* What yoked tells agents of a training graph (wire_training), as the grad_info that trainers and planner read. */
#ifndef YK_TRAIN_INFO_H
#define YK_TRAIN_INFO_H

#include "common/grad.h"
#include "common/wire.h"

/* g: the graph as its skeleton gives it. Sets g->n_staying, and in out everything but `of`, first_loss and warning,
 * which are not told; parameters are those that are trained. Owner: out's lists live in g's arena. Errors: YK_INVAL if
 * it names an input, an output, a node or a weight that g has not; YK_NOMEM. Thread: any. */
yk_err train_info_read(const struct wire_training *w, struct graph *g, struct grad_info *out, struct yk_diag *why);

#endif
