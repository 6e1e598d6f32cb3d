/* Evaluates constant nodes for the passes with the ref backend. */
#ifndef YK_FOLD_H
#define YK_FOLD_H

#include "common/passes.h"

yk_err fold_eval(void *arg, const struct graph *g, int32_t node, const struct shape *out_shapes, void *const *out_data,
    struct yk_diag *why); /* arg unused; a passes_eval */

#endif
