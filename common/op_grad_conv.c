/* Shape rules of the gradients of convolution, pooling and batch normalisation. */
#include "common/op_rules.h"

static yk_err want_floats(const struct op_ctx *c, int n)
{
    yk_err err = YK_OK;
    for (int i = 0; !err && i < n; i++)
        if ((err = op_want(c, i, OP_FLOATS)) == YK_OK)
            err = op_want_same(c, 0, i);
    return err;
}

/* Whether input i is a gradient of the outputs that d says. */
static yk_err want_output(const struct op_ctx *c, int i, const struct conv_dims *d)
{
    int64_t dims[5] = {d->n, d->oc, d->out[0], d->out[1], d->out[2]};
    struct shape want = {.dtype = c->in[i]->dtype, .rank = d->spatial + 2};
    char have[128], text[128];
    for (int k = 0; k < want.rank; k++)
        want.dims[k] = dims[k];
    if (shape_equal(c->in[i], &want))
        return YK_OK;
    shape_text(c->in[i], have, sizeof(have));
    shape_text(&want, text, sizeof(text));
    return yk_fail(c->why, YK_INVAL, "the gradient (input %d) is %s, the output it is of %s", i, have, text);
}

/* Gradient of a convolution's input: dY, W, Shape(X). */
yk_err op_rule_conv_grad_input(struct op_ctx *c)
{
    struct conv_dims d;
    struct shape x;
    yk_err err;
    if ((err = want_floats(c, 2)) != YK_OK || (err = op_listed_shape(c, 2, &x)) != YK_OK ||
        (err = op_conv_dims(c->node, &x, c->in[1], &d, c->why)) != YK_OK || (err = want_output(c, 0, &d)) != YK_OK)
        return err;
    op_out_like(c, 0, &x, x.dtype);
    return YK_OK;
}

/* The shape of the weight from kernel_shape, group and the channels of X and dY. */
static yk_err weight_shape(const struct op_ctx *c, struct shape *out)
{
    const struct attr *k = node_attr(c->node, "kernel_shape");
    const struct shape *x = c->in[0], *dy = c->in[1];
    int64_t group;
    yk_err err = op_attr_i(c, "group", 1, &group);
    if (err || (err = op_want_rank(c, 0, 3, 5)) != YK_OK || (err = op_want_rank(c, 1, x->rank, x->rank)) != YK_OK)
        return err;
    if (group < 1 || x->dims[1] % group != 0)
        return yk_fail(c->why, YK_INVAL, "%lld channels in %lld groups", (long long)x->dims[1], (long long)group);
    if (!k || k->kind != ATTR_INTS || k->n != (size_t)(x->rank - 2))
        return yk_fail(c->why, YK_INVAL, "attribute kernel_shape is not a list of %d integers", x->rank - 2);
    *out = (struct shape){.dtype = x->dtype, .rank = x->rank, .dims = {dy->dims[1], x->dims[1] / group}};
    for (int i = 2; i < x->rank; i++)
        out->dims[i] = k->ints[i - 2];
    return YK_OK;
}

/* Gradient of a convolution's weight: X, dY. */
yk_err op_rule_conv_grad_weight(struct op_ctx *c)
{
    struct conv_dims d;
    struct shape w;
    yk_err err;
    if ((err = want_floats(c, 2)) != YK_OK || (err = weight_shape(c, &w)) != YK_OK ||
        (err = op_conv_dims(c->node, c->in[0], &w, &d, c->why)) != YK_OK || (err = want_output(c, 1, &d)) != YK_OK)
        return err;
    op_out_like(c, 0, &w, w.dtype);
    return YK_OK;
}

/* As many as the convolution itself. */
double op_flops_conv_grad(const struct op_ctx *c)
{
    bool input = c->node->op->max_in == 3;
    const struct shape *x = input ? &c->out[0] : c->in[0], *w = input ? c->in[1] : &c->out[0];
    struct conv_dims d;
    if (op_conv_dims(c->node, x, w, &d, NULL))
        return 0;
    double out = (double)d.n * (double)d.oc * (double)d.out[0] * (double)d.out[1] * (double)d.out[2];
    return out * 2 * (double)(d.c / d.group) * (double)d.k[0] * (double)d.k[1] * (double)d.k[2];
}

/* Gradient of MaxPool: dY, X. */
yk_err op_rule_max_pool_grad(struct op_ctx *c)
{
    struct conv_dims d;
    yk_err err;
    if ((err = want_floats(c, 2)) != YK_OK || (err = op_conv_dims(c->node, c->in[1], NULL, &d, c->why)) != YK_OK ||
        (err = want_output(c, 0, &d)) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[1], c->in[1]->dtype);
    return YK_OK;
}

/* Gradient of AveragePool: dY, Shape(X). */
yk_err op_rule_average_pool_grad(struct op_ctx *c)
{
    struct conv_dims d;
    struct shape x;
    int64_t include;
    yk_err err;
    if ((err = op_attr_i(c, "count_include_pad", 0, &include)) != YK_OK || (err = want_floats(c, 1)) != YK_OK ||
        (err = op_listed_shape(c, 1, &x)) != YK_OK || (err = op_conv_dims(c->node, &x, NULL, &d, c->why)) != YK_OK ||
        (err = want_output(c, 0, &d)) != YK_OK)
        return err;
    op_out_like(c, 0, &x, x.dtype);
    return YK_OK;
}

double op_flops_pool_grad(const struct op_ctx *c)
{
    struct conv_dims d;
    if (op_conv_dims(c->node, &c->out[0], NULL, &d, NULL))
        return 0;
    return (double)shape_count(c->in[0]) * (double)d.k[0] * (double)d.k[1] * (double)d.k[2];
}

/* Inputs from first on have one element for each of n channels. */
static yk_err want_channels(const struct op_ctx *c, int first, int64_t n)
{
    for (int i = first; i < c->n_in; i++)
        if (c->in[i]->rank != 1 || c->in[i]->dims[0] != n)
            return yk_fail(
                c->why, YK_INVAL, "input %d does not have one element for each of %lld channels", i, (long long)n);
    return YK_OK;
}

/* Statistics of one value do not exist: its variance is 0 and the unbiased one 0 / 0. */
static yk_err want_samples(const struct op_ctx *c, const struct shape *x)
{
    if (x->dims[1] == 0)
        return YK_OK;
    int64_t count = shape_count(x) / x->dims[1];
    if (count < 2)
        return yk_fail(c->why, YK_INVAL,
            "%lld values per channel: batch-norm in training wants 2 or more; take a larger microbatch or bn=frozen",
            (long long)count);
    return YK_OK;
}

/* BatchNormalization in training: X, scale, B, mean, var. */
yk_err op_rule_batchnorm_train(struct op_ctx *c)
{
    float epsilon, momentum;
    yk_err err;
    if ((err = op_attr_f(c, "epsilon", 1e-5f, &epsilon)) != YK_OK ||
        (err = op_attr_f(c, "momentum", 0.9f, &momentum)) != YK_OK || (err = want_floats(c, 5)) != YK_OK ||
        (err = op_want_rank(c, 0, 2, YK_MAX_RANK)) != YK_OK ||
        (err = want_channels(c, 1, c->in[0]->dims[1])) != YK_OK || (err = want_samples(c, c->in[0])) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    for (int i = 1; i < 5; i++)
        op_out_like(c, i, c->in[1], c->in[0]->dtype);
    return YK_OK;
}

/* Its gradients: dY, X, scale, batch mean, 1 / sqrt(batch variance + epsilon). */
yk_err op_rule_batchnorm_grad(struct op_ctx *c)
{
    yk_err err;
    if ((err = want_floats(c, 5)) != YK_OK || (err = op_want_rank(c, 1, 2, YK_MAX_RANK)) != YK_OK ||
        (err = want_channels(c, 2, c->in[1]->dims[1])) != YK_OK || (err = want_samples(c, c->in[1])) != YK_OK)
        return err;
    if (!shape_equal(c->in[0], c->in[1]))
        return yk_fail(c->why, YK_INVAL, "the gradient (input 0) does not have the shape of the input (input 1)");
    op_out_like(c, 0, c->in[1], c->in[1]->dtype);
    op_out_like(c, 1, c->in[2], c->in[1]->dtype);
    op_out_like(c, 2, c->in[2], c->in[1]->dtype);
    return YK_OK;
}

double op_flops_batchnorm(const struct op_ctx *c)
{
    return 8 * (double)shape_count(c->in[0]);
}

/* Gradient of Relu: dY, Y. */
yk_err op_rule_relu_grad(struct op_ctx *c)
{
    yk_err err = want_floats(c, 2);
    if (err)
        return err;
    if (!shape_equal(c->in[0], c->in[1]))
        return yk_fail(c->why, YK_INVAL, "the gradient (input 0) does not have the shape of the output (input 1)");
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}
