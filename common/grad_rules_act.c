/* Rules of functions of one element: activations and elementary maths. UnaryGrad(dY, V) is dY times the derivative;
 * V is Y where that says it, so that X may go. */
#include <string.h>

#include "common/grad_priv.h"

static void unary(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx, int32_t from)
{
    dx[0] = grad_op2(r, "ai.yoke.UnaryGrad", dy[0], grad_keep(r, from));
    grad_attr_copy(r, n);
    grad_attr_s(r, "of", n->op->name);
}

static void from_x(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    unary(r, n, dy, dx, n->in[0]);
}

static void from_y(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    unary(r, n, dy, dx, n->out[0]);
}

/* The sign of Y is that of X where alpha is positive. */
static void leaky(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    unary(r, n, dy, dx, node_attr_f(n, "alpha", 0.01f) > 0 ? n->out[0] : n->in[0]);
}

static void elu(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    if (node_attr_f(n, "alpha", 1) > 0 && node_attr_f(n, "gamma", 1) > 0)
        from_y(r, n, dy, dx);
    else
        grad_fail(r, YK_UNSUPPORTED, "alpha or gamma is not positive");
}

static void relu(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = grad_op2(r, "ai.yoke.ReluGrad", dy[0], grad_keep(r, n->out[0]));
}

static void clip(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int32_t in[4] = {dy[0], grad_keep(r, n->out[0]), grad_in(r, n, 1), grad_in(r, n, 2)};
    dx[0] = 0;
    grad_node(r, "ai.yoke.ClipGrad", in, 4, &dx[0], 1);
}

/* y = x > 0 ? x : slope * x */
static void prelu(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    enum dtype t = grad_type(r, n->in[0]);
    int32_t zero = grad_scalar(r, t, 0), x = grad_keep(r, n->in[0]);
    if (grad_needs(r, n, 0))
        dx[0] = grad_op3(
            r, "Where", grad_op2(r, "Greater", x, zero), dy[0], grad_op2(r, "Mul", dy[0], grad_keep(r, n->in[1])));
    if (grad_needs(r, n, 1))
        dx[1] = grad_sum_to(r, grad_op2(r, "Mul", dy[0], grad_op2(r, "Min", x, zero)), n->out[0], n->in[1]);
}

static void neg(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    (void)n;
    dx[0] = grad_op1(r, "Neg", dy[0]);
}

#define ROW(op, dom, fn)    \
    {                       \
        op, dom, 1u, 1u, fn \
    }
static const struct grad_rule rows[] = {
    ROW("Relu", "", relu),
    ROW("LeakyRelu", "", leaky),
    ROW("Elu", "", elu),
    ROW("Celu", "", elu),
    ROW("Selu", "", elu),
    ROW("Shrink", "", from_x),
    ROW("Softsign", "", from_y),
    ROW("ThresholdedRelu", "", from_x),
    {"PRelu", "", 3u, 1u, prelu},
    ROW("Clip", "", clip),
    ROW("Sigmoid", "", from_y),
    ROW("HardSigmoid", "", from_y),
    ROW("HardSwish", "", from_x),
    ROW("Tanh", "", from_y),
    ROW("Softplus", "", from_y),
    ROW("Mish", "", from_x),
    ROW("Gelu", "", from_x),
    ROW("Gelu", "ai.yoke", from_x),
    ROW("Silu", "ai.yoke", from_x),
    ROW("Erf", "", from_x),
    ROW("Exp", "", from_y),
    ROW("Log", "", from_x),
    ROW("Sqrt", "", from_y),
    ROW("Reciprocal", "", from_y),
    ROW("Sin", "", from_x),
    ROW("Cos", "", from_x),
    ROW("Tan", "", from_y),
    ROW("Acos", "", from_x),
    ROW("Asin", "", from_x),
    ROW("Atan", "", from_x),
    ROW("Sinh", "", from_x),
    ROW("Cosh", "", from_x),
    ROW("Asinh", "", from_x),
    ROW("Acosh", "", from_x),
    ROW("Atanh", "", from_x),
    ROW("Neg", "", neg),
    ROW("Abs", "", from_x),
};
const struct grad_rules grad_rules_act = {rows, (int)YK_COUNT(rows)};
