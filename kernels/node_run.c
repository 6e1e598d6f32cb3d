#include "kernels/node_run.h"

#include <stdlib.h>
#include <string.h>

struct node_run *node_run_open(int64_t scratch_limit)
{
    struct node_run *r = yk_try_alloc(1, sizeof(*r));
    if (r)
        r->scratch_limit = scratch_limit;
    return r;
}

void node_run_close(struct node_run *r)
{
    if (!r)
        return;
    free(r->scratch);
    free(r);
}

yk_err node_run_inputs(
    struct node_run *r, const struct graph *g, const struct node *n, const struct tensor *in, struct yk_diag *why)
{
    struct op_ctx *c = &r->ctx;
    if (n->n_in > OP_MAX_IN || n->n_out > OP_MAX_OUT)
        return yk_fail(why, YK_LIMIT, "%d inputs and %d outputs, the limits are %d and %d", (int)n->n_in, (int)n->n_out,
            OP_MAX_IN, OP_MAX_OUT);
    c->graph = g;
    c->node = n;
    c->n_in = n->n_in;
    c->n_out = n->n_out;
    c->why = why;
    for (int i = 0; i < n->n_in; i++) {
        struct tensor *t = &r->call.in[i];
        *t = in[i];
        c->in[i] = NULL;
        c->content[i] = NULL;
        c->data[i] = NULL;
        if (t->shape.dtype == DT_NONE)
            continue;
        int64_t count = tensor_count(t);
        c->in[i] = &t->shape;
        c->data[i] = t->data;
        if (count < 0 || count > OP_MAX_CONTENT || !(dtype_is_int(t->shape.dtype) || t->shape.dtype == DT_BOOL))
            continue;
        for (int64_t k = 0; k < count; k++)
            r->content[i][k] = dtype_read_int(t->shape.dtype, t->data, k);
        c->content[i] = r->content[i];
    }
    return op_infer(c);
}

static yk_err need_scratch(struct node_run *r, int64_t bytes, struct yk_diag *why)
{
    if (bytes <= r->scratch_bytes)
        return YK_OK;
    if (bytes > r->scratch_limit)
        return yk_fail(why, YK_LIMIT, "it would work on %lld bytes of scratch; the limit is %lld (heap_limit)",
            (long long)bytes, (long long)r->scratch_limit);
    free(r->scratch);
    r->scratch_bytes = 0;
    if (!(r->scratch = yk_try_aligned((size_t)bytes)))
        return yk_fail(why, YK_NOMEM, "no memory for %lld bytes of scratch", (long long)bytes);
    r->scratch_bytes = bytes;
    return YK_OK;
}

/* The kernel said the dims of an output that had a dim of -1. */
static yk_err check_said(const struct op_ctx *c, int i, const struct shape *s, struct yk_diag *why)
{
    int64_t count = shape_count(s);
    bool same = s->rank == c->out[i].rank && s->dtype == c->out[i].dtype && count >= 0 && count <= c->most[i];
    for (int d = 0; same && d < s->rank; d++)
        same = c->out[i].dims[d] < 0 || c->out[i].dims[d] == s->dims[d];
    return same ? YK_OK : yk_fail(why, YK_INTERNAL, "the kernel left output %d with a shape that is none", i);
}

yk_err node_run_kernel(struct node_run *r, const struct host_kernel *k, const struct backend_form *form,
    struct pool *pool, uint64_t seed, struct yk_diag *why)
{
    struct op_ctx *c = &r->ctx;
    struct host_call *call = &r->call;
    const struct node *n = c->node;
    bool work = n->op->flags & OP_DATA_SHAPE;
    for (int i = 0; i < n->n_out; i++)
        work |= call->out[i].shape.dtype != DT_NONE && tensor_count(&call->out[i]) > 0;
    if (!work)
        return YK_OK;
    int64_t packed = k->pack ? (form->packed_bytes + 63) & ~(int64_t)63 : 0;
    yk_err err = need_scratch(r, packed + form->workspace_bytes, why);
    if (err)
        return err;
    c->why = why;
    if (packed) {
        const void *weights[OP_MAX_IN];
        for (int i = 0; i < n->n_in; i++)
            weights[i] = n->in[i] >= 0 && c->graph->values[n->in[i]].kind == VALUE_WEIGHT ? call->in[i].data : NULL;
        if ((err = k->pack(c, weights, r->scratch, why)))
            return err;
    }
    call->graph = c->graph;
    call->node = n;
    call->n_in = n->n_in;
    call->n_out = n->n_out;
    call->packed = packed ? r->scratch : NULL;
    call->workspace = r->scratch ? (char *)r->scratch + packed : NULL;
    call->pool = pool;
    call->seed = seed;
    call->why = why;
    err = k->run(call);
    for (int i = 0; !err && i < n->n_out; i++)
        if (call->out[i].shape.dtype != DT_NONE && shape_bytes(&c->out[i]) < 0)
            err = check_said(c, i, &call->out[i].shape, why);
    return err;
}
