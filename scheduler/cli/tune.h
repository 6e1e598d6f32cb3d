/* Forms chosen by measurement on this machine (--tune), remembered by op and shapes in a file of the user's cache, so
 * that a model, or another with the same layers, loads without measuring again. */
#ifndef YK_TUNE_H
#define YK_TUNE_H

#include "common/grad.h"
#include "scheduler/cli/local.h"

/* Sets l->forms for the graph at l->sizes; training: of a training graph, whose parameters change between runs, else
 * NULL. Measures what is not remembered: seconds. The choice is among forms that the backend of the static rule has,
 * and replaces it where the whole graph is not slower by it. A cache that cannot be read or written is said in the log
 * and otherwise nothing. Errors: YK_NOMEM; what profile_graph says. */
yk_err tune_forms(struct local *l, const struct grad_info *training, struct yk_diag *why);

#endif
