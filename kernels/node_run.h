/* One node on given tensors, outside of any segment: what the interpreter of dynamic nodes and constant folding share.
 * Use: node_run_inputs (checks by the op's shape rule, with contents of all inputs), read ctx.out and ctx.most, pick a
 * kernel, fill call.out, node_run_kernel. */
#ifndef YK_NODE_RUN_H
#define YK_NODE_RUN_H

#include "kernels/host.h"

struct node_run { /* large: on the heap, reused */
    struct op_ctx ctx;
    struct host_call call;
    int64_t content[OP_MAX_IN][OP_MAX_CONTENT];
    void *scratch; /* workspace and packed weights, grown as needed */
    int64_t scratch_bytes, scratch_limit;
};

struct node_run *node_run_open(int64_t scratch_limit); /* NULL when memory is gone */
void node_run_close(struct node_run *r);               /* NULL allowed */

/* in: dtype DT_NONE where absent; borrowed until the kernel ran. Errors: those of op_infer; YK_DEPENDS does not happen
 * to rules that ask for contents of up to OP_MAX_CONTENT integers or for data. */
yk_err node_run_inputs(
    struct node_run *r, const struct graph *g, const struct node *n, const struct tensor *in, struct yk_diag *why);
/* call.out is filled: shapes as ctx.out, dtype DT_NONE where not wanted. An output with a dim of -1 has room for
 * ctx.most elements; afterwards its dims are known and checked. */
yk_err node_run_kernel(struct node_run *r, const struct host_kernel *k, const struct backend_form *form,
    struct pool *pool, uint64_t seed, struct yk_diag *why);

#endif
