/* Rules of elementwise ops with several inputs: what broadcasting repeated is summed up again. */
#include <string.h>

#include "common/grad_priv.h"

static void add(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    for (int k = 0; k < n->n_in; k++)
        if (grad_needs(r, n, k))
            dx[k] = grad_sum_to(r, dy[0], n->out[0], n->in[k]);
}

static void mean(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int32_t d = grad_op2(r, "Mul", dy[0], grad_scalar(r, grad_type(r, n->out[0]), 1 / (double)n->n_in));
    add(r, n, &d, dx);
}

static void sub(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    if (grad_needs(r, n, 0))
        dx[0] = grad_sum_to(r, dy[0], n->out[0], n->in[0]);
    if (grad_needs(r, n, 1))
        dx[1] = grad_op1(r, "Neg", grad_sum_to(r, dy[0], n->out[0], n->in[1]));
}

static void mul(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    for (int k = 0; k < 2; k++)
        if (grad_needs(r, n, k))
            dx[k] = grad_sum_to(r, grad_op2(r, "Mul", dy[0], grad_in(r, n, 1 - k)), n->out[0], n->in[k]);
}

static void divide(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int32_t d = grad_op2(r, "Div", dy[0], grad_in(r, n, 1));
    if (grad_needs(r, n, 0))
        dx[0] = grad_sum_to(r, d, n->out[0], n->in[0]);
    if (grad_needs(r, n, 1))
        dx[1] = grad_op1(r, "Neg", grad_sum_to(r, grad_op2(r, "Mul", d, grad_keep(r, n->out[0])), n->out[0], n->in[1]));
}

/* A constant exponent, of whatever type. */
static bool exponent_of(const struct grad *r, int32_t value, double *out)
{
    const struct value *v = &r->fwd->values[value];
    if (v->kind == VALUE_WEIGHT && v->data && shape_count(&v->shape) == 1 && dtype_is_int(v->dtype)) {
        *out = (double)dtype_read_int(v->dtype, v->data, 0);
        return true;
    }
    return grad_const(r, value, out);
}

static void power(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    enum dtype t = grad_type(r, n->in[0]);
    int32_t x = n->in[0], e = n->in[1], d;
    double c;
    if (grad_needs(r, n, 0)) {
        if (exponent_of(r, e, &c) && !grad_needs(r, n, 1)) {
            int32_t factor = grad_scalar(r, t, c);
            if (c == 2)
                d = grad_op2(r, "Mul", grad_op2(r, "Mul", dy[0], grad_keep(r, x)), factor);
            else if (c == 0.5)
                d = grad_op2(r, "Div", grad_op2(r, "Mul", dy[0], factor), grad_keep(r, n->out[0]));
            else
                d = grad_op2(r, "Mul", dy[0],
                    grad_op2(r, "Mul", grad_op2(r, "Pow", grad_keep(r, x), grad_scalar(r, t, c - 1)), factor));
        } else if (grad_type(r, e) != t) {
            grad_fail(r, YK_UNSUPPORTED, "an exponent of type %s that is no constant", dtype_name(grad_type(r, e)));
            return;
        } else {
            int32_t less = grad_op2(r, "Sub", grad_keep(r, e), grad_scalar(r, t, 1));
            d = grad_op2(r, "Mul", grad_keep(r, e), grad_op2(r, "Pow", grad_keep(r, x), less));
            d = grad_op2(r, "Mul", dy[0], d);
        }
        dx[0] = grad_sum_to(r, d, n->out[0], x);
    }
    if (grad_needs(r, n, 1)) { /* 0 ^ e does not move with e */
        int32_t zero = grad_scalar(r, t, 0);
        d = grad_op2(r, "Mul", grad_keep(r, n->out[0]), grad_op1(r, "Log", grad_keep(r, x)));
        d = grad_op3(r, "Where", grad_op2(r, "Equal", grad_keep(r, x), zero), zero, grad_op2(r, "Mul", dy[0], d));
        if (grad_type(r, e) != t) {
            d = grad_op1(r, "Cast", d);
            grad_attr_i(r, "to", dtype_to_onnx(grad_type(r, e)));
        }
        dx[1] = grad_sum_to(r, d, n->out[0], e);
    }
}

/* Those that are the extreme share the gradient. */
static void extreme(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int32_t is[OP_MAX_IN], count = YK_ABSENT, y = n->out[0];
    if (n->n_in == 1) {
        dx[0] = dy[0];
        return;
    }
    for (int k = 0; k < n->n_in; k++) {
        is[k] = grad_op1(r, "Cast", grad_op2(r, "Equal", grad_keep(r, n->in[k]), grad_keep(r, y)));
        grad_attr_i(r, "to", dtype_to_onnx(grad_type(r, y)));
        count = k ? grad_op2(r, "Add", count, is[k]) : is[k];
    }
    int32_t d = grad_op2(r, "Div", dy[0], count);
    for (int k = 0; k < n->n_in; k++)
        if (grad_needs(r, n, k))
            dx[k] = grad_sum_to(r, grad_op2(r, "Mul", d, is[k]), y, n->in[k]);
}

static void where(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    int32_t zero = grad_scalar(r, grad_type(r, n->out[0]), 0), c = n->in[0];
    if (grad_needs(r, n, 1))
        dx[1] = grad_sum_to(r, grad_op3(r, "Where", grad_keep(r, c), dy[0], zero), n->out[0], n->in[1]);
    if (grad_needs(r, n, 2))
        dx[2] = grad_sum_to(r, grad_op3(r, "Where", grad_keep(r, c), zero, dy[0]), n->out[0], n->in[2]);
}

static void cast(struct grad *r, const struct node *n, const int32_t *dy, int32_t *dx)
{
    dx[0] = dy[0];
    if (grad_type(r, n->in[0]) == grad_type(r, n->out[0]))
        return;
    dx[0] = grad_op1(r, "Cast", dy[0]);
    grad_attr_i(r, "to", dtype_to_onnx(grad_type(r, n->in[0])));
}

static const struct grad_rule rows[] = {
    {"Add", "", 3u, 1u, add},
    {"Sub", "", 3u, 1u, sub},
    {"Mul", "", 3u, 1u, mul},
    {"Div", "", 3u, 1u, divide},
    {"Pow", "", 3u, 1u, power},
    {"Min", "", GRAD_ALL_INPUTS, 1u, extreme},
    {"Max", "", GRAD_ALL_INPUTS, 1u, extreme},
    {"Sum", "", GRAD_ALL_INPUTS, 1u, add},
    {"Mean", "", GRAD_ALL_INPUTS, 1u, mean},
    {"Where", "", 6u, 1u, where},
    {"Cast", "", 1u, 1u, cast},
    {"CastLike", "", 1u, 1u, cast},
};
const struct grad_rules grad_rules_math = {rows, (int)YK_COUNT(rows)};
