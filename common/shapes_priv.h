/* What shapes.c and shapes_control.c share. Private to them. */
#ifndef YK_SHAPES_PRIV_H
#define YK_SHAPES_PRIV_H

#include "common/shapes.h"

/* Tables for g with its weights filled in; everything else unknown. The caller ends s with shapes_fini also on error.
 */
yk_err shapes_start(const struct graph *g, struct shapes *s, struct yk_diag *why);
/* The nodes in order, from the shapes of inputs and captures. Errors name the node. */
yk_err shapes_walk(const struct graph *g, struct shapes *s, struct yk_diag *why);
/* Contents known for value id: a copy of n numbers; false when memory is gone. */
bool shapes_set_content(struct shapes *s, int32_t id, const int64_t *v, int64_t n);

/* Outputs of an OP_CONTROL node into s, as far as they follow from its subgraphs; what does not stays unknown. */
yk_err shapes_control(const struct graph *g, struct shapes *s, int32_t node, struct yk_diag *why);

#endif
