/* Rules of normalisations and of pooling windows. */
#include <string.h>

#include "common/grad_priv.h"

/* The sum over all axes but channels. */
static int32_t channel_sum(struct grad *r, int32_t d, int rank)
{
    int64_t axes[YK_MAX_RANK];
    int count = 0;
    for (int k = 0; k < rank; k++)
        if (k != 1)
            axes[count++] = k;
    d = grad_op2(r, "ReduceSum", d, grad_ints(r, axes, count));
    grad_attr_i(r, "keepdims", 0);
    return d;
}

/* A vector with one element for each channel, so that it broadcasts over the axes behind them. */
static int32_t per_channel(struct grad *r, int32_t v, int rank)
{
    int64_t dims[YK_MAX_RANK];
    dims[0] = -1;
    for (int k = 1; k < rank - 1; k++)
        dims[k] = 1;
    return rank > 2 ? grad_reshape(r, v, dims, rank - 1) : v;
}

/* Statistics are constants: y = (x - mean) * (scale / sqrt(var + epsilon)) + bias. */
static void frozen_batchnorm(struct grad *r, const struct node *n, int32_t dy, int32_t *dx)
{
    int rank = grad_rank(r, n->in[0]);
    float epsilon = node_attr_f(n, "epsilon", 1e-5f);
    enum dtype t = grad_type(r, n->in[4]);
    int32_t std = YK_ABSENT;
    if (grad_needs(r, n, 0) || grad_needs(r, n, 1))
        std = grad_op1(r, "Sqrt", grad_op2(r, "Add", grad_in(r, n, 4), grad_scalar(r, t, (double)epsilon)));
    if (grad_needs(r, n, 0))
        dx[0] = grad_op2(r, "Mul", dy, per_channel(r, grad_op2(r, "Div", grad_in(r, n, 1), std), rank));
    if (grad_needs(r, n, 1)) {
        int32_t d = grad_op2(r, "Sub", grad_in(r, n, 0), per_channel(r, grad_in(r, n, 3), rank));
        dx[1] = grad_op2(r, "Div", channel_sum(r, grad_op2(r, "Mul", dy, d), rank), std);
    }
    if (grad_needs(r, n, 2))
        dx[2] = channel_sum(r, dy, rank);
}

/* dX, dscale, dbias of a node with these gradients; only those that are wanted. */
static void three(struct grad *r, const struct node *n, const char *op, const int32_t *in, int n_in, int32_t *dx)
{
    int32_t out[3];
    int n_out = 0;
    for (int k = 0; k < 3; k++) {
        out[k] = grad_needs(r, n, k) ? 0 : YK_ABSENT;
        n_out = out[k] == 0 ? k + 1 : n_out;
    }
    grad_node(r, op, in, n_in, out, n_out);
    for (int k = 0; k < n_out; k++)
        dx[k] = out[k];
}

static void batchnorm(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    if (r->o->bn_frozen) {
        frozen_batchnorm(r, n, dy[0], dx);
        return;
    }
    const int32_t *made = r->g->nodes[r->node].out;
    int32_t in[5] = {dy[0], grad_in(r, n, 0), grad_in(r, n, 1), made[3], made[4]};
    three(r, n, "ai.yoke.BatchNormGrad", in, 5, dx);
}

static void layernorm(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int32_t in[3] = {dy[0], grad_in(r, n, 0), grad_in(r, n, 1)};
    bool layer = strcmp(n->op->name, "LayerNormalization") == 0;
    three(r, n, layer ? "ai.yoke.LayerNormGrad" : "ai.yoke.InstanceNormGrad", in, 3, dx);
    grad_attr_f(r, "epsilon", node_attr_f(n, "epsilon", 1e-5f));
    if (layer)
        grad_attr_i(r, "axis", node_attr_i(n, "axis", -1));
}

/* y = x / |x|: with the norm over one axis. */
static void lp_normalization(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int64_t p = node_attr_i(n, "p", 2), axis = node_attr_i(n, "axis", -1);
    enum dtype t = grad_type(r, n->in[0]);
    int32_t x = grad_in(r, n, 0), y = grad_keep(r, n->out[0]), zero = grad_scalar(r, t, 0);
    int32_t norm = grad_op1(r, p == 1 ? "ReduceL1" : "ReduceL2", x);
    grad_attr_ints(r, "axes", &axis, 1);
    int32_t dot = grad_op2(r, "ReduceSum", grad_op2(r, "Mul", dy[0], y), grad_ints(r, &axis, 1));
    int32_t along = p == 1 ? grad_op1(r, "Sign", x) : y;
    int32_t d = grad_op2(r, "Div", grad_op2(r, "Sub", dy[0], grad_op2(r, "Mul", along, dot)), norm);
    dx[0] = grad_op3(r, "Where", grad_op2(r, "Equal", norm, zero), zero, d);
}

/* y = (x - mean) / deviation over some axes. */
static void mvn(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    static const int64_t usual[] = {0, 2, 3};
    const struct attr *a = node_attr_ints(n, "axes");
    const int64_t *axes = a ? a->ints : usual;
    int count = a ? (int)YK_MIN(a->n, YK_MAX_RANK) : 3;
    int32_t x = grad_in(r, n, 0), y = grad_keep(r, n->out[0]), parts[5];
    int32_t of[3] = {x, dy[0], grad_op2(r, "Mul", dy[0], y)};
    for (int k = 0; k < 3; k++) {
        parts[k] = grad_op1(r, "ReduceMean", of[k]);
        grad_attr_ints(r, "axes", axes, count);
    }
    int32_t d = grad_op2(r, "Sub", x, parts[0]);
    parts[3] = grad_op1(r, "ReduceMean", grad_op2(r, "Mul", d, d));
    grad_attr_ints(r, "axes", axes, count);
    d = grad_op2(r, "Sub", grad_op2(r, "Sub", dy[0], parts[1]), grad_op2(r, "Mul", y, parts[2]));
    dx[0] = grad_op2(r, "Div", d, grad_op1(r, "Sqrt", parts[3]));
}

/* Of y = (sum of |x| ^ p) ^ (1 / p) from g, what reaches x of dY * y ^ (1 - p): times sign(x) |x| ^ (p - 1). */
static int32_t lp_part(struct grad *r, const struct node *n, int32_t g)
{
    int64_t p = node_attr_i(n, "p", 2);
    int32_t x = grad_in(r, n, 0);
    if (p == 2)
        return grad_op2(r, "Mul", g, x);
    g = grad_op2(r, "Mul", g, grad_op1(r, "Sign", x));
    enum dtype t = grad_type(r, n->in[0]);
    return p == 1 ? g
                  : grad_op2(r, "Mul", g, grad_op2(r, "Pow", grad_op1(r, "Abs", x), grad_scalar(r, t, (double)p - 1)));
}

/* dY * y ^ (1 - p), 0 where y is. */
static int32_t lp_gradient(struct grad *r, const struct node *n, int32_t dy)
{
    int64_t p = node_attr_i(n, "p", 2);
    enum dtype t = grad_type(r, n->in[0]);
    int32_t y = grad_keep(r, n->out[0]), zero = grad_scalar(r, t, 0);
    if (p == 1)
        return dy;
    int32_t power = p == 2 ? y : grad_op2(r, "Pow", y, grad_scalar(r, t, (double)p - 1));
    return grad_op3(r, "Where", grad_op2(r, "Equal", y, zero), zero, grad_op2(r, "Div", dy, power));
}

static void lp_pool(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    const struct attr *k = node_attr_ints(n, "kernel_shape");
    double size = 1;
    for (size_t i = 0; k && i < k->n; i++)
        size *= (double)k->ints[i];
    if (node_attr_i(n, "ceil_mode", 0)) { /* its last windows have fewer elements */
        grad_fail(r, YK_UNSUPPORTED, "ceil_mode");
        return;
    }
    int32_t g = grad_op2(r, "ai.yoke.AveragePoolGrad", lp_gradient(r, n, dy[0]), grad_shape(r, n->in[0]));
    grad_attr_copy(r, n);
    grad_attr_i(r, "count_include_pad", 1);
    dx[0] = lp_part(r, n, grad_op2(r, "Mul", g, grad_scalar(r, grad_type(r, n->in[0]), size)));
}

static void global_lp_pool(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = lp_part(r, n, lp_gradient(r, n, dy[0]));
}

static void lrn(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = grad_op2(r, "ai.yoke.LRNGrad", dy[0], grad_in(r, n, 0));
    grad_attr_copy(r, n);
}

static void max_pool(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = grad_op2(r, "ai.yoke.MaxPoolGrad", dy[0], grad_in(r, n, 0));
    grad_attr_copy(r, n);
}

static void average_pool(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = grad_op2(r, "ai.yoke.AveragePoolGrad", dy[0], grad_shape(r, n->in[0]));
    grad_attr_copy(r, n);
}

static const struct grad_rule rows[] = {
    {"BatchNormalization", "", 7u, 1u, batchnorm},
    {"LayerNormalization", "", 7u, 1u, layernorm},
    {"InstanceNormalization", "", 7u, 1u, layernorm},
    {"LpNormalization", "", 1u, 1u, lp_normalization},
    {"LRN", "", 1u, 1u, lrn},
    {"MeanVarianceNormalization", "", 1u, 1u, mvn},
    {"LpPool", "", 1u, 1u, lp_pool},
    {"GlobalLpPool", "", 1u, 1u, global_lp_pool},
    {"MaxPool", "", 1u, 1u, max_pool},
    {"AveragePool", "", 1u, 1u, average_pool},
};
const struct grad_rules grad_rules_norm = {rows, (int)YK_COUNT(rows)};
