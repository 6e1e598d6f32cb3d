/* Shapes of all values of a graph for given sizes of its named dimensions. */
#ifndef YK_SHAPES_H
#define YK_SHAPES_H

#include "common/op.h"

struct shapes {
    struct shape *of;  /* by value id */
    int64_t **content; /* by value id; NULL unless small integers are known */
    struct yk_arena *arena;
};

/* sizes[i] is the size of graph->syms[i]; a named dimension that no input has may be -1. With shapes of inputs that are
 * given otherwise (undeclared ones), input_shapes[k] overrides input k where not NULL (array may be NULL).
 * Errors name the node ("node 12 'conv1' (Conv): ..."). Caller ends out with shapes_fini. Thread: any. */
yk_err shapes_infer(const struct graph *g, const int64_t *sizes, const struct shape *const *input_shapes,
    struct shapes *out, struct yk_diag *why);
void shapes_fini(struct shapes *s);

/* Fills c->in, content and the outputs of one node from inferred shapes, so that op_flops and kernels can ask. */
void shapes_node(const struct graph *g, const struct shapes *s, int32_t node, struct op_ctx *c);

#endif
