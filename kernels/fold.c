#include "kernels/fold.h"

#include "kernels/ref.h"

#include <stdlib.h>
#include <string.h>

/* Inputs of the node as tensors; unaligned weights are copied into *copies (by input, caller frees). */
static yk_err gather_inputs(const struct graph *g, struct host_call *c, void **copies, struct yk_diag *why)
{
    for (int i = 0; i < c->n_in; i++) {
        struct tensor *t = &c->in[i];
        int32_t id = c->node->in[i];
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

static yk_err workspace_of(const struct host_kernel *k, const struct host_call *c, void **out, struct yk_diag *why)
{
    struct backend_form form = {.workspace_bytes = 0};
    if (!k->sizes)
        return YK_OK;
    struct op_ctx *x = yk_try_alloc(1, sizeof(*x));
    if (!x)
        return yk_fail(why, YK_NOMEM, "no memory to fold a constant");
    x->graph = c->graph;
    x->node = c->node;
    x->n_in = c->n_in;
    x->n_out = c->n_out;
    for (int i = 0; i < c->n_in; i++)
        x->in[i] = c->in[i].shape.dtype == DT_NONE ? NULL : &c->in[i].shape;
    for (int i = 0; i < c->n_out; i++)
        x->out[i] = c->out[i].shape;
    k->sizes(x, &form);
    free(x);
    if (form.workspace_bytes > 0 && !(*out = yk_try_aligned((size_t)form.workspace_bytes)))
        return yk_fail(why, YK_NOMEM, "no memory to fold a constant");
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
    void *copies[OP_MAX_IN] = {NULL}, *workspace = NULL;
    bool work = false;
    struct host_call *c = yk_try_alloc(1, sizeof(*c));
    yk_err err = c ? pool_open(1, &pool, why) : yk_fail(why, YK_NOMEM, "no memory to fold a constant");
    if (err)
        goto out;
    c->graph = g;
    c->node = n;
    c->n_in = n->n_in;
    c->n_out = n->n_out;
    c->pool = pool;
    c->why = why;
    if ((err = gather_inputs(g, c, copies, why)))
        goto out;
    for (int i = 0; i < n->n_out; i++) {
        c->out[i] = (struct tensor){.shape = {.dtype = DT_NONE, .rank = -1}};
        if (n->out[i] < 0)
            continue;
        c->out[i] = (struct tensor){out_shapes[i], out_data[i]};
        work |= shape_count(&out_shapes[i]) > 0;
    }
    if (!work || (err = workspace_of(k, c, &workspace, why)))
        goto out;
    c->workspace = workspace;
    err = k->run(c);
    if (err)
        yk_wrap(why, err, "node %d '%s' (%s)", (int)node, n->name, n->op->name);
out:
    for (int i = 0; i < OP_MAX_IN; i++)
        free(copies[i]);
    free(workspace);
    pool_close(pool);
    free(c);
    return err;
}
