/* Shapes of all values of a graph for given sizes of its named dimensions.
 *
 * Some are not known before data is there: what a rule says YK_DEPENDS of, sequences and optionals, and all that is
 * made from them. Such a value has rank -1 or a dim of -1, and the nodes that read or make it are `dynamic`: they run
 * by their actual inputs (kernels/dynamic.h). Results of If, Loop and Scan whose shapes follow from the subgraphs are
 * known. */
#ifndef YK_SHAPES_H
#define YK_SHAPES_H

#include "common/op.h"

struct shapes {
    struct shape *of;  /* by value id */
    int64_t **content; /* by value id; NULL unless small integers are known */
    uint8_t *dynamic;  /* by node: 1 if it runs by its actual inputs */
    int32_t n_dynamic;
    struct yk_arena *arena;
};

/* The size of a value is known. */
static inline bool shapes_has(const struct shapes *s, int32_t value)
{
    return s->of[value].rank >= 0 && shape_bytes(&s->of[value]) >= 0;
}

/* sizes[i] is the size of graph->syms[i]; a named dimension that no input has may be -1. With shapes of inputs that are
 * given otherwise (undeclared ones), input_shapes[k] overrides input k where not NULL (array may be NULL).
 * Errors name the node ("node 12 'conv1' (Conv): ..."). Caller ends out with shapes_fini. Thread: any. */
yk_err shapes_infer(const struct graph *g, const int64_t *sizes, const struct shape *const *input_shapes,
    struct shapes *out, struct yk_diag *why);
void shapes_fini(struct shapes *s);

/* Shapes of the outputs of a subgraph from those of its inputs and of what it captures; rank -1 where they are not
 * known, also because the subgraph cannot run with these. capture fills the shape of a value of the graph around, if
 * known. */
yk_err shapes_subgraph(const struct graph *sub, const struct shape *in,
    void (*capture)(void *arg, int32_t value, struct shape *out), void *arg, struct shape *out, struct yk_diag *why);

/* Fills c->in, content and the outputs of one node from inferred shapes, so that op_flops and kernels can ask. */
void shapes_node(const struct graph *g, const struct shapes *s, int32_t node, struct op_ctx *c);

#endif
