/* What the files of the interpreter share. Private to dynamic*.c. */
#ifndef YK_DYNAMIC_PRIV_H
#define YK_DYNAMIC_PRIV_H

#include "kernels/dynamic.h"
#include "kernels/node_run.h"

/* What is prepared of each graph that may run: the stage's own and every graph inside. */
struct dynamic_graph {
    const struct graph *g;
    int32_t *free_start, *free_list; /* by node: values whose last user it is */
    struct dyn_value **weights;      /* by value id; NULL in the stage's own graph */
};

/* One activation of a graph. */
struct frame {
    struct frame *parent;
    const struct dynamic_graph *of;
    struct dyn_value **slot; /* by value id */
    uint64_t seed;
};

/* The backends of a form, ref last. */
struct dynamic_kernels {
    char form[BACKEND_FORM_MAX];
    struct backend *at[8];
    int n;
};
#define DYNAMIC_FORMS_MAX 16

struct dynamic {
    struct dynamic_config c;
    struct dynamic_graph *graphs; /* by address of g */
    int32_t n_graphs;
    struct dynamic_kernels kernels[DYNAMIC_FORMS_MAX];
    int n_kernels;
    uint8_t *kernels_of;                 /* by node of the stage's graph */
    const struct dynamic_kernels *using; /* by the node in progress */
    struct pool *pool;
    struct dyn_heap *heap;
    struct node_run *run;
    struct dynamic_run now;
    struct frame root;
    int64_t steps, held;
    double begun_ms;
};

/* A subgraph once: in and out by its inputs and outputs; the caller becomes a user of each out. trip: mixes the seed,
 * so that random nodes differ from trip to trip. */
yk_err dynamic_graph_run(struct dynamic *d, struct frame *parent, const struct graph *g, int64_t trip,
    struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why);

/* Shapes of what a subgraph would give, rank -1 where they are not known. */
yk_err dynamic_outputs(struct dynamic *d, struct frame *f, const struct graph *sub, const struct shape *in,
    struct shape *out, struct yk_diag *why);

/* dynamic_control.c, dynamic_sequence.c: a node of OP_CONTROL, OP_VALUES. in: NULL where absent. The caller becomes a
 * user of each out, also of those set before an error. */
yk_err dynamic_control(struct dynamic *d, struct frame *f, const struct node *n, struct dyn_value *const *in,
    struct dyn_value **out, struct yk_diag *why);
yk_err dynamic_sequence(
    struct dynamic *d, const struct node *n, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why);

/* Input i as a tensor, or an error that says what it is. */
yk_err dynamic_tensor(struct dyn_value *const *in, int i, const char *what, struct tensor **out, struct yk_diag *why);
/* The one integer or bool that input i holds. */
yk_err dynamic_int(struct dyn_value *const *in, int i, const char *what, int64_t *out, struct yk_diag *why);
yk_err dynamic_scalar(
    struct dynamic *d, enum dtype t, int rank, int64_t v, struct dyn_value **out, struct yk_diag *why);

/* Tensors along an axis: elements [at, at + n) of it; and n tensors put together, each with axis `axis` already there
 * (stack: without it; then all have one shape). reverse: last one first. */
yk_err dynamic_slice(struct dynamic *d, const struct tensor *t, int axis, int64_t at, int64_t n, bool keep_axis,
    struct dyn_value **out, struct yk_diag *why);
yk_err dynamic_join(struct dynamic *d, struct dyn_value *const *items, int64_t n, int64_t axis, bool stack,
    bool reverse, struct dyn_value **out, struct yk_diag *why);

#endif
