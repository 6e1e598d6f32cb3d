/* Shape rules of gradients of elementwise ops, reductions, normalisations and losses, and of SumTo. */
#include <string.h>

#include "common/op_rules.h"

/* The shape that input i lists, of the type of input 0. */
yk_err op_listed_shape(const struct op_ctx *c, int i, struct shape *out)
{
    const int64_t *v = NULL;
    int n = 0;
    yk_err err = op_ints(c, i, "the shape", &v, &n);
    if (err)
        return err;
    if (n > YK_MAX_RANK)
        return yk_fail(c->why, YK_LIMIT, "the shape (input %d) has %d axes, the limit is %d", i, n, YK_MAX_RANK);
    *out = (struct shape){.dtype = c->in[0]->dtype, .rank = n};
    for (int k = 0; k < n; k++) {
        if (v[k] < 0)
            return yk_fail(c->why, YK_INVAL, "size %d of the shape (input %d) is %lld", k, i, (long long)v[k]);
        out->dims[k] = v[k];
    }
    return shape_bytes(out) < 0 ? yk_fail(c->why, YK_LIMIT, "the shape (input %d) is too large", i) : YK_OK;
}

static yk_err want_floats(const struct op_ctx *c, int n)
{
    yk_err err = YK_OK;
    for (int i = 0; !err && i < n; i++)
        if ((err = op_want(c, i, OP_FLOATS)) == YK_OK)
            err = op_want_same(c, 0, i);
    return err;
}

static yk_err want_shape(const struct op_ctx *c, int i, const struct shape *want, const char *what)
{
    char have[128], text[128];
    if (shape_equal(c->in[i], want))
        return YK_OK;
    shape_text(c->in[i], have, sizeof have);
    shape_text(want, text, sizeof text);
    return yk_fail(c->why, YK_INVAL, "input %d is %s, %s %s", i, have, what, text);
}

/* Undoes broadcasting: dY, Shape(X). */
yk_err op_rule_sum_to(struct op_ctx *c)
{
    struct shape x;
    yk_err err;
    if ((err = want_floats(c, 1)) != YK_OK || (err = op_listed_shape(c, 1, &x)) != YK_OK)
        return err;
    if (!op_broadcasts_to(&x, c->in[0])) {
        char have[128], text[128];
        shape_text(c->in[0], have, sizeof have);
        shape_text(&x, text, sizeof text);
        return yk_fail(c->why, YK_INVAL, "%s does not broadcast to %s", text, have);
    }
    op_out_like(c, 0, &x, x.dtype);
    return YK_OK;
}

/* Gradient of a function of one element: dY and X or Y. `of` names the function. */
yk_err op_rule_unary_grad(struct op_ctx *c)
{
    static const char *const names[] = {"LeakyRelu", "Elu", "Celu", "Selu", "Shrink", "Softsign", "ThresholdedRelu",
        "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Softplus", "Mish", "Gelu", "Silu", "Erf", "Exp", "Log", "Sqrt",
        "Reciprocal", "Sin", "Cos", "Tan", "Acos", "Asin", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Abs"};
    static const char *const floats[] = {"alpha", "beta", "gamma", "lambd", "bias"};
    int which;
    float f;
    yk_err err;
    if ((err = op_attr_word(c, "of", names, (int)YK_COUNT(names), -1, &which)) != YK_OK ||
        (err = want_floats(c, 2)) != YK_OK || (err = want_shape(c, 0, c->in[1], "what it is of is")) != YK_OK)
        return err;
    for (size_t i = 0; i < YK_COUNT(floats); i++)
        if ((err = op_attr_f(c, floats[i], 0, &f)) != YK_OK)
            return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

/* Gradient of Clip: dY, Y, and its bounds. */
yk_err op_rule_clip_grad(struct op_ctx *c)
{
    yk_err err = want_floats(c, 2);
    for (int i = 2; !err && i < c->n_in; i++) {
        err = op_want_same(c, 0, i);
        if (!err && c->in[i] && !op_is_scalar(c->in[i]))
            err = yk_fail(c->why, YK_INVAL, "bound (input %d) is not a scalar", i);
    }
    if (err || (err = want_shape(c, 0, c->in[1], "what it is of is")) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

/* Gradient of Dropout: dY, its mask, its ratio and whether it trains. */
yk_err op_rule_dropout_grad(struct op_ctx *c)
{
    yk_err err;
    if ((err = want_floats(c, 1)) != YK_OK || (err = op_want(c, 1, OP_BIT(DT_BOOL))) != YK_OK ||
        (err = op_want(c, 2, OP_FLOATS)) != YK_OK || (err = op_want(c, 3, OP_BIT(DT_BOOL))) != YK_OK)
        return err;
    for (int i = 2; i < c->n_in; i++)
        if (c->in[i] && !op_is_scalar(c->in[i]))
            return yk_fail(c->why, YK_INVAL, "input %d is not a scalar", i);
    struct shape mask = *c->in[0];
    mask.dtype = DT_BOOL;
    if ((err = want_shape(c, 1, &mask, "a mask is")) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

/* Gradient of Softmax and LogSoftmax: dY, Y. */
yk_err op_rule_softmax_grad(struct op_ctx *c)
{
    int axis;
    yk_err err;
    if ((err = want_floats(c, 2)) != YK_OK || (err = op_attr_axis(c, -1, c->in[0]->rank, &axis)) != YK_OK ||
        (err = want_shape(c, 0, c->in[1], "what it is of is")) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

/* ---- reductions: axes as attribute, all of them listed ---- */

static yk_err want_reduced(const struct op_ctx *c, const struct shape *x)
{
    const struct attr *a = node_attr_ints(c->node, "axes");
    bool gone[YK_MAX_RANK] = {false};
    int64_t keep;
    struct shape want = {.dtype = x->dtype, .rank = 0};
    int axis;
    yk_err err = op_attr_i(c, "keepdims", 1, &keep);
    if (err)
        return err;
    if (!a)
        return yk_fail(c->why, YK_INVAL, "attribute axes is missing");
    for (size_t i = 0; i < a->n; i++) {
        if ((err = op_axis(a->ints[i], x->rank, &axis, c->why)) != YK_OK)
            return err;
        if (gone[axis])
            return yk_fail(c->why, YK_INVAL, "axis %d is reduced twice", axis);
        gone[axis] = true;
    }
    for (int k = 0; k < x->rank; k++)
        if (!gone[k] || keep)
            want.dims[want.rank++] = gone[k] ? 1 : x->dims[k];
    return want_shape(c, 0, &want, "what it is of is");
}

/* dY, Shape(X): repeated over the axes; with mean=1 divided by how many elements became one. */
yk_err op_rule_reduce_grad(struct op_ctx *c)
{
    struct shape x;
    int64_t mean;
    yk_err err;
    if ((err = op_attr_i(c, "mean", 0, &mean)) != YK_OK || (err = want_floats(c, 1)) != YK_OK ||
        (err = op_listed_shape(c, 1, &x)) != YK_OK || (err = want_reduced(c, &x)) != YK_OK)
        return err;
    op_out_like(c, 0, &x, x.dtype);
    return YK_OK;
}

/* Of ReduceProd: dY, X. */
yk_err op_rule_reduce_prod_grad(struct op_ctx *c)
{
    yk_err err;
    if ((err = want_floats(c, 2)) != YK_OK || (err = want_reduced(c, c->in[1])) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[1], c->in[1]->dtype);
    return YK_OK;
}

/* ---- normalisation: dY, X, scale -> dX, dscale, dbias ---- */

static yk_err norm_grad(struct op_ctx *c)
{
    float epsilon;
    yk_err err;
    if ((err = op_attr_f(c, "epsilon", 1e-5f, &epsilon)) != YK_OK || (err = want_floats(c, 3)) != YK_OK ||
        (err = want_shape(c, 0, c->in[1], "what it is of is")) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[1], c->in[1]->dtype);
    op_out_like(c, 1, c->in[2], c->in[2]->dtype);
    op_out_like(c, 2, c->in[2], c->in[2]->dtype);
    return YK_OK;
}

yk_err op_rule_layernorm_grad(struct op_ctx *c)
{
    const struct shape *x = c->in[1];
    struct shape want = {.dtype = x->dtype};
    int axis;
    yk_err err = op_attr_axis(c, -1, x->rank, &axis);
    for (int k = axis; !err && k < x->rank; k++)
        want.dims[want.rank++] = x->dims[k];
    if (err || (err = want_shape(c, 2, &want, "the normalised axes are")) != YK_OK)
        return err;
    return norm_grad(c);
}

yk_err op_rule_instancenorm_grad(struct op_ctx *c)
{
    yk_err err = op_want_rank(c, 1, 3, YK_MAX_RANK);
    struct shape want = {.dtype = c->in[1]->dtype, .rank = 1, .dims = {c->in[1]->dims[1]}};
    if (err || (err = want_shape(c, 2, &want, "channels are")) != YK_OK)
        return err;
    return norm_grad(c);
}

double op_flops_norm_grad(const struct op_ctx *c)
{
    return 14 * (double)shape_count(c->in[0]);
}

/* Of LRN: dY, X. */
yk_err op_rule_lrn_grad(struct op_ctx *c)
{
    float f;
    int64_t size;
    yk_err err;
    if ((err = op_attr_i(c, "size", 0, &size)) != YK_OK || (err = op_attr_f(c, "alpha", 1e-4f, &f)) != YK_OK ||
        (err = op_attr_f(c, "beta", 0.75f, &f)) != YK_OK || (err = op_attr_f(c, "bias", 1, &f)) != YK_OK ||
        (err = want_floats(c, 2)) != YK_OK || (err = op_want_rank(c, 1, 2, YK_MAX_RANK)) != YK_OK)
        return err;
    if (size < 1)
        return yk_fail(c->why, YK_INVAL, "attribute size is %lld", (long long)size);
    if ((err = want_shape(c, 0, c->in[1], "what it is of is")) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

/* ---- losses: scores, target, divisor; the sum over the samples divided by the divisor, and its gradient ---- */

static yk_err check_loss(struct op_ctx *c)
{
    static const char *const kinds[] = {"cross-entropy", "nll", "mse", "l1", "bce"};
    const struct shape *x = c->in[0], *t = c->in[1];
    int kind;
    int64_t ignore;
    float smoothing;
    yk_err err;
    if ((err = op_attr_word(c, "kind", kinds, (int)YK_COUNT(kinds), -1, &kind)) != YK_OK ||
        (err = op_attr_i(c, "ignore_index", 0, &ignore)) != YK_OK ||
        (err = op_attr_f(c, "label_smoothing", 0, &smoothing)) != YK_OK || (err = want_floats(c, 1)) != YK_OK ||
        (err = op_want_same(c, 0, 2)) != YK_OK)
        return err;
    if (!op_is_scalar(c->in[2]))
        return yk_fail(c->why, YK_INVAL, "the divisor (input 2) is not a scalar");
    if (!(smoothing >= 0 && smoothing < 1) || (smoothing > 0 && kind != 0))
        return yk_fail(c->why, YK_INVAL, "label_smoothing %g", (double)smoothing);
    if (kind > 1)
        return (err = op_want_rank(c, 0, 1, YK_MAX_RANK)) != YK_OK ? err : want_shape(c, 1, x, "the scores are");
    if ((err = op_want(c, 1, OP_INDEX)) != YK_OK || (err = op_want_rank(c, 0, 2, YK_MAX_RANK)) != YK_OK)
        return err;
    struct shape want = {.dtype = t->dtype, .rank = 1, .dims = {x->dims[0]}};
    for (int k = 2; k < x->rank; k++)
        want.dims[want.rank++] = x->dims[k];
    if ((err = want_shape(c, 1, &want, "the scores without classes are")) != YK_OK)
        return err;
    if (x->dims[1] == 0 && shape_count(t) > 0)
        return yk_fail(c->why, YK_INVAL, "no classes (axis 1 of input 0 is empty)");
    return YK_OK;
}

yk_err op_rule_loss(struct op_ctx *c)
{
    yk_err err = check_loss(c);
    if (!err)
        op_out(c, 0, c->in[0]->dtype, 0, NULL);
    return err;
}

yk_err op_rule_loss_grad(struct op_ctx *c)
{
    yk_err err = check_loss(c);
    if (!err)
        op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return err;
}
