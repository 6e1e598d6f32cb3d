/* Forward values that the backward part reads: kept, or computed again from others that are kept anyway.
 *
 * With options.recompute grad_build builds twice. The first time it notes what rules read; grad_plan_again then drops
 * of that what cheap nodes make from what stays. Matrix products and convolutions are never run again, statistics of
 * batch normalisation and masks of Dropout are those of the forward part. A value that is computed again belongs to the
 * node whose rule reads it first, so that no stage waits for a later one. */
#include <stdlib.h>
#include <string.h>

#include "common/grad_priv.h"

/* A chain of nodes that are run again is no longer than this. */
#define AGAIN_DEPTH 8

static bool is_op(const struct node *n, const char *name)
{
    return !n->op->domain[0] && strcmp(n->op->name, name) == 0;
}

static bool is_cheap(const struct grad *r, const struct node *n)
{
    static const char *const also[] = {"LayerNormalization", "InstanceNormalization", "Softmax", "LogSoftmax",
        "MaxPool", "AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum", "LRN"};
    int outs = 0;
    for (int k = 0; k < n->n_out; k++)
        outs += n->out[k] != YK_ABSENT;
    if (n->op->flags & (OP_RANDOM | OP_DATA_SHAPE | OP_CONTROL | OP_VALUES | OP_CONTRACTION))
        return is_op(n, "Dropout") && outs == 1 && grad_needs(r, n, 0); /* by its mask */
    if (is_op(n, "BatchNormalization"))                                 /* by its statistics */
        return r->o->bn_frozen || (grad_needs(r, n, 0) || grad_needs(r, n, 1) || grad_needs(r, n, 2));
    if (outs != 1 && !is_op(n, "Split"))
        return false;
    for (size_t i = 0; i < YK_COUNT(also); i++)
        if (is_op(n, also[i]))
            return true;
    return n->op->flags & (OP_ELEMENTWISE | OP_SHAPE) && !is_op(n, "Constant");
}

yk_err grad_plan_again(struct grad *r, const uint8_t *saved)
{
    const struct graph *g = r->fwd;
    uint8_t *depth = yk_try_alloc((size_t)g->n_values + 1, 1); /* 0: is kept; 255: is gone */
    uint8_t *held = yk_try_alloc((size_t)g->n_values + 1, 1);
    r->again = yk_try_alloc((size_t)g->n_values + 1, 1);
    uint8_t *is_output = pass_outputs(g); /* those are made anyway, and last to the end */
    if (!depth || !held || !is_output || !r->again) {
        free(depth);
        free(held);
        free(is_output);
        return yk_fail(r->why, YK_NOMEM, "no memory for the training graph");
    }
    /* What a view shows is kept with it. */
    memcpy(held, saved, (size_t)g->n_values);
    for (int32_t i = g->n_nodes - 1; i >= 0; i--)
        if (g->nodes[i].op->flags & OP_VIEW && held[g->nodes[i].out[0]] && g->nodes[i].in[0] != YK_ABSENT)
            held[g->nodes[i].in[0]] = 1;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = &g->nodes[i];
        int chain = is_cheap(r, n) ? 1 : 255;
        for (int k = 0; k < n->n_in && chain < 255; k++) {
            int32_t v = n->in[k];
            if (v != YK_ABSENT && g->values[v].kind == VALUE_NODE)
                chain = YK_MAX(chain, depth[v] == 255 ? 255 : depth[v] + 1);
        }
        for (int k = 0; k < n->n_out; k++) {
            int32_t v = n->out[k];
            if (v == YK_ABSENT)
                continue;
            r->again[v] = chain <= AGAIN_DEPTH && shapes_has(&r->p->at[0], v) && !is_output[v];
            depth[v] = (uint8_t)(r->again[v] ? chain : held[v] || is_output[v] ? 0 : 255);
        }
    }
    free(is_output);
    free(depth);
    free(held);
    return YK_OK;
}

/* ---- running nodes again ---- */

static int32_t run_again(struct grad *r, int32_t value);

int32_t grad_keep(struct grad *r, int32_t value)
{
    if (r->err)
        return YK_ABSENT;
    if (r->saved)
        r->saved[value] = 1;
    return r->again && r->again[value] ? run_again(r, value) : value;
}

static int32_t at_hand(struct grad *r, int32_t value)
{
    return value != YK_ABSENT && r->again[value] ? run_again(r, value) : value;
}

/* y = (x - mean) * (scale * inv_std) + bias, with the statistics that the forward part has. */
static int32_t batchnorm_again(struct grad *r, const struct node *n, int32_t index, int32_t x)
{
    int32_t mean = r->g->nodes[index].out[3], inverse = r->g->nodes[index].out[4], y = 0;
    int32_t in[5] = {x, grad_op2(r, "Mul", n->in[1], inverse), n->in[2], mean, grad_ones(r, n->in[1])};
    grad_node(r, "BatchNormalization", in, 5, &y, 1);
    grad_attr_f(r, "epsilon", 0);
    return y;
}

static int32_t run_again(struct grad *r, int32_t value)
{
    int32_t index = r->fwd->values[value].producer, in[OP_MAX_IN], out[OP_MAX_OUT];
    const struct node *n = &r->fwd->nodes[index];
    if (r->err || r->copy[value] != YK_ABSENT)
        return r->err ? YK_ABSENT : r->copy[value];
    for (int k = 0; k < n->n_in; k++)
        in[k] = at_hand(r, n->in[k]);
    for (int k = 0; k < n->n_out; k++)
        out[k] = n->out[k] == YK_ABSENT ? YK_ABSENT : 0;
    if (is_op(n, "Dropout")) { /* what the mask does to a gradient it does to X */
        const struct node *made = &r->g->nodes[index];
        int32_t of[4] = {in[0], made->out[1], made->in[1], made->in[2]};
        grad_node(r, "ai.yoke.DropoutGrad", of, 4, out, 1);
    } else if (is_op(n, "BatchNormalization") && !r->o->bn_frozen) {
        out[0] = batchnorm_again(r, n, index, in[0]);
    } else {
        grad_node_of(r, r->g->nodes[index].op, in, n->n_in, out, n->n_out);
        grad_attr_copy(r, &r->g->nodes[index]);
    }
    for (int k = 0; k < n->n_out; k++)
        if (n->out[k] != YK_ABSENT)
            r->copy[n->out[k]] = out[k];
    return r->copy[value];
}
