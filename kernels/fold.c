#include "kernels/fold.h"

#include "kernels/node_run.h"
#include "kernels/ref.h"

#include <stdlib.h>
#include <string.h>

/* Inputs of the node as tensors; unaligned weights are copied into *copies (by input, caller frees). */
static yk_err gather_inputs(
    const struct graph *g, const struct node *n, struct tensor *in, void **copies, struct yk_diag *why)
{
    if (n->n_in > OP_MAX_IN)
        return yk_fail(why, YK_LIMIT, "%d inputs, the limit is %d", (int)n->n_in, OP_MAX_IN);
    for (int i = 0; i < n->n_in; i++) {
        struct tensor *t = &in[i];
        int32_t id = n->in[i];
        *t = (struct tensor){.shape = {.dtype = DT_NONE, .rank = -1}};
        if (id < 0)
            continue;
        const struct value *v = &g->values[id];
        if (v->kind != VALUE_WEIGHT || (!v->data && v->bytes > 0))
            return yk_fail(why, YK_UNSUPPORTED, "input '%s' has no data", v->name);
        t->shape = v->shape;
        t->data = (void *)(uintptr_t)v->data;
        size_t size = dtype_bytes(v->shape.dtype);
        if (v->data && size && (uintptr_t)v->data % size != 0) {
            copies[i] = yk_try_aligned((size_t)v->bytes);
            if (!copies[i])
                return yk_fail(why, YK_NOMEM, "no memory for weight '%s'", v->name);
            memcpy(copies[i], v->data, (size_t)v->bytes);
            t->data = copies[i];
        }
    }
    return YK_OK;
}

yk_err fold_eval(void *arg, const struct graph *g, int32_t node, const struct shape *out_shapes, void *const *out_data,
    struct yk_diag *why)
{
    (void)arg;
    const struct node *n = &g->nodes[node];
    const struct host_kernel *k = ref_kernel(n);
    if (!k)
        return yk_fail(why, YK_UNSUPPORTED, "node %d '%s' (%s): no reference kernel", (int)node, n->name, n->op->name);
    struct pool *pool = NULL;
    void *copies[OP_MAX_IN] = {NULL};
    struct tensor in[OP_MAX_IN];
    struct backend_form form = {.workspace_bytes = 0};
    struct node_run *r = node_run_open(INT64_MAX);
    yk_err err = r ? pool_open(1, &pool, why) : yk_fail(why, YK_NOMEM, "no memory to fold a constant");
    if (!err)
        err = gather_inputs(g, n, in, copies, why);
    if (!err)
        err = node_run_inputs(r, g, n, in, why);
    for (int i = 0; i < n->n_out && !err; i++) {
        r->call.out[i] = (struct tensor){.shape = {.dtype = DT_NONE, .rank = -1}};
        if (n->out[i] < 0)
            continue;
        if (!shape_equal(&r->ctx.out[i], &out_shapes[i]))
            err = yk_fail(why, YK_INTERNAL, "output %d has another shape than was asked for", i);
        r->call.out[i] = (struct tensor){out_shapes[i], out_data[i]};
    }
    if (!err && k->sizes)
        k->sizes(&r->ctx, &form);
    if (!err)
        err = node_run_kernel(r, k, &form, pool, 0, why);
    if (err && r)
        yk_wrap(why, err, "node %d '%s' (%s)", (int)node, n->name, n->op->name);
    for (int i = 0; i < OP_MAX_IN; i++)
        free(copies[i]);
    pool_close(pool);
    node_run_close(r);
    return err;
}
