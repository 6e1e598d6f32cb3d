/* Rules of reductions, global pooling and softmax. ReduceGrad(dY, shape) repeats dY over the axes that went, divided by
 * how many elements became one where mean is 1. */
#include <string.h>

#include "common/grad_priv.h"

/* The axes that a forward node reduces; false if they depend on data. */
static bool axes_of(struct grad *r, const struct node *n, int64_t *axes, int *count)
{
    int rank = grad_rank(r, n->in[0]), given = 0;
    const struct attr *a = node_attr_ints(n, "axes");
    const int64_t *v = a ? a->ints : NULL;
    if (a)
        given = (int)YK_MIN(a->n, YK_MAX_RANK);
    if (n->n_in > 1 && n->in[1] != YK_ABSENT) {
        v = grad_content(r, n->in[1], &given);
        if (!v || given > YK_MAX_RANK) {
            grad_fail(r, YK_UNSUPPORTED, "its axes depend on data");
            return false;
        }
    }
    *count = 0;
    for (int k = 0; k < given; k++)
        axes[(*count)++] = v[k] < 0 ? v[k] + rank : v[k];
    if (given == 0 && node_attr_i(n, "noop_with_empty_axes", 0) == 0)
        for (int k = 0; k < rank; k++)
            axes[(*count)++] = k;
    return true;
}

static int32_t spread_axes(
    struct grad *r, const struct node *n, int32_t d, const int64_t *axes, int count, bool keep, bool mean)
{
    d = grad_op2(r, "ai.yoke.ReduceGrad", d, grad_shape(r, n->in[0]));
    grad_attr_ints(r, "axes", axes, count);
    grad_attr_i(r, "keepdims", keep);
    if (mean)
        grad_attr_i(r, "mean", 1);
    return d;
}

/* d, of the shape of the output, with that of the input. */
static int32_t spread(struct grad *r, const struct node *n, int32_t d, bool mean)
{
    int64_t axes[YK_MAX_RANK];
    int count;
    if (!axes_of(r, n, axes, &count))
        return YK_ABSENT;
    return spread_axes(r, n, d, axes, count, node_attr_i(n, "keepdims", 1) != 0, mean);
}

static void sum(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = spread(r, n, dy[0], false);
}

static void mean(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = spread(r, n, dy[0], true);
}

static void sum_square(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int32_t d = grad_op2(r, "Mul", dy[0], grad_scalar(r, grad_type(r, n->in[0]), 2));
    dx[0] = grad_op2(r, "Mul", spread(r, n, d, false), grad_keep(r, n->in[0]));
}

static void l1(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = grad_op2(r, "Mul", spread(r, n, dy[0], false), grad_op1(r, "Sign", grad_keep(r, n->in[0])));
}

/* A norm of 0 has no gradient. */
static void l2(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int32_t zero = grad_scalar(r, grad_type(r, n->in[0]), 0), y = grad_keep(r, n->out[0]);
    int32_t d = grad_op3(r, "Where", grad_op2(r, "Equal", y, zero), zero, grad_op2(r, "Div", dy[0], y));
    dx[0] = grad_op2(r, "Mul", spread(r, n, d, false), grad_keep(r, n->in[0]));
}

static void log_sum(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = spread(r, n, grad_op2(r, "Div", dy[0], grad_op1(r, "Exp", grad_keep(r, n->out[0]))), false);
}

static void log_sum_exp(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int32_t y = spread(r, n, grad_keep(r, n->out[0]), false);
    int32_t p = grad_op1(r, "Exp", grad_op2(r, "Sub", grad_keep(r, n->in[0]), y));
    dx[0] = grad_op2(r, "Mul", spread(r, n, dy[0], false), p);
}

/* All elements that are the extreme share the gradient, as PyTorch's amax. */
static void extreme(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int64_t axes[YK_MAX_RANK];
    int count;
    if (!axes_of(r, n, axes, &count))
        return;
    int32_t is = grad_op2(r, "Equal", grad_keep(r, n->in[0]), spread(r, n, grad_keep(r, n->out[0]), false));
    is = grad_op1(r, "Cast", is);
    grad_attr_i(r, "to", dtype_to_onnx(grad_type(r, n->in[0])));
    int32_t many = is;
    if (count > 0) {
        many = grad_op2(r, "ReduceSum", is, grad_ints(r, axes, count));
        grad_attr_i(r, "keepdims", 1);
    }
    dx[0] = grad_op2(r, "Mul", spread(r, n, dy[0], false), grad_op2(r, "Div", is, many));
}

/* dY * product of the others. */
static void prod(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int64_t axes[YK_MAX_RANK];
    int count;
    if (!axes_of(r, n, axes, &count))
        return;
    dx[0] = grad_op2(r, "ai.yoke.ReduceProdGrad", dy[0], grad_keep(r, n->in[0]));
    grad_attr_ints(r, "axes", axes, count);
    grad_attr_i(r, "keepdims", node_attr_i(n, "keepdims", 1) != 0);
}

static int spatial_axes(const struct grad *r, const struct node *n, int64_t *axes)
{
    int rank = grad_rank(r, n->in[0]), count = 0;
    for (int k = 2; k < rank; k++)
        axes[count++] = k;
    return count;
}

static void global_average(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int64_t axes[YK_MAX_RANK];
    int count = spatial_axes(r, n, axes);
    dx[0] = spread_axes(r, n, dy[0], axes, count, true, true);
}

/* The first maximum takes it. */
static void global_max(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    static const int64_t flat[] = {0, 0, -1};
    int32_t x = grad_reshape(r, grad_keep(r, n->in[0]), flat, 3), zero, d, at;
    at = grad_op1(r, "ArgMax", x);
    grad_attr_i(r, "axis", 2);
    zero = grad_reshape(r, grad_zeros(r, n->in[0]), flat, 3);
    d = grad_op3(r, "ScatterElements", zero, at, grad_reshape(r, dy[0], flat, 3));
    grad_attr_i(r, "axis", 2);
    dx[0] = grad_like(r, d, n->in[0]);
}

static void softmax(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    bool log = strcmp(n->op->name, "LogSoftmax") == 0;
    dx[0] = grad_op2(r, log ? "ai.yoke.LogSoftmaxGrad" : "ai.yoke.SoftmaxGrad", dy[0], grad_keep(r, n->out[0]));
    grad_attr_copy(r, n);
}

#define ROW(op, fn)        \
    {                      \
        op, "", 1u, 1u, fn \
    }
static const struct grad_rule rows[] = {
    ROW("ReduceSum", sum),
    ROW("ReduceMean", mean),
    ROW("ReduceMax", extreme),
    ROW("ReduceMin", extreme),
    ROW("ReduceProd", prod),
    ROW("ReduceL1", l1),
    ROW("ReduceL2", l2),
    ROW("ReduceSumSquare", sum_square),
    ROW("ReduceLogSum", log_sum),
    ROW("ReduceLogSumExp", log_sum_exp),
    ROW("GlobalAveragePool", global_average),
    ROW("GlobalMaxPool", global_max),
    ROW("Softmax", softmax),
    ROW("LogSoftmax", softmax),
};
const struct grad_rules grad_rules_reduce = {rows, (int)YK_COUNT(rows)};
