/* Shape rules of quantised ops: integers with scales and zero points, per tensor or per axis. */
#include "common/op_rules.h"

#define BYTES (OP_BIT(DT_U8) | OP_BIT(DT_I8))

/* The scale is float32, and the zero point, if present, has its shape. */
static yk_err scale_and_zero(const struct op_ctx *c, int scale, int zero, unsigned zero_types)
{
    yk_err err;
    if ((err = op_want(c, scale, OP_BIT(DT_F32))) != YK_OK || (err = op_want(c, zero, zero_types)) != YK_OK)
        return err;
    if (zero >= c->n_in || !c->in[zero])
        return YK_OK;
    const struct shape *s = c->in[scale], *z = c->in[zero];
    bool same = (op_is_scalar(s) && op_is_scalar(z)) || s->rank == z->rank;
    for (int k = 0; same && k < s->rank && k < z->rank; k++)
        same = s->dims[k] == z->dims[k];
    if (!same)
        return yk_fail(
            c->why, YK_INVAL, "the scale (input %d) and the zero point (input %d) differ in shape", scale, zero);
    return YK_OK;
}

static yk_err scalar_parameter(const struct op_ctx *c, int i)
{
    if (i >= c->n_in || !c->in[i] || op_is_scalar(c->in[i]))
        return YK_OK;
    return yk_fail(c->why, YK_INVAL, "input %d is not a scalar", i);
}

/* Scales of QuantizeLinear and DequantizeLinear: a scalar, or one for each index of the axis. */
static yk_err axis_scales(const struct op_ctx *c)
{
    const struct shape *x = c->in[0], *s = c->in[1];
    int axis;
    yk_err err;
    if (op_is_scalar(s))
        return YK_OK;
    if ((err = op_want_rank(c, 1, 1, 1)) != YK_OK || (err = op_attr_axis(c, 1, x->rank, &axis)) != YK_OK)
        return err;
    if (s->dims[0] != x->dims[axis])
        return yk_fail(c->why, YK_INVAL, "%lld scales (input 1) for axis %d of %lld", (long long)s->dims[0], axis,
            (long long)x->dims[axis]);
    return YK_OK;
}

/* QuantizeLinear-13 */
yk_err op_rule_quantize(struct op_ctx *c)
{
    yk_err err;
    if ((err = op_want(c, 0, OP_BIT(DT_F32) | OP_BIT(DT_I32))) != YK_OK ||
        (err = scale_and_zero(c, 1, 2, BYTES)) != YK_OK || (err = axis_scales(c)) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], c->n_in > 2 && c->in[2] ? c->in[2]->dtype : DT_U8);
    return YK_OK;
}

/* DequantizeLinear-13 */
yk_err op_rule_dequantize(struct op_ctx *c)
{
    yk_err err;
    if ((err = op_want(c, 0, BYTES | OP_BIT(DT_I32))) != YK_OK || (err = op_want_same(c, 0, 2)) != YK_OK ||
        (err = scale_and_zero(c, 1, 2, BYTES | OP_BIT(DT_I32))) != YK_OK || (err = axis_scales(c)) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], DT_F32);
    return YK_OK;
}

/* DynamicQuantizeLinear-11: y, its scale, its zero point. */
yk_err op_rule_dynamic_quantize(struct op_ctx *c)
{
    yk_err err = op_want(c, 0, OP_BIT(DT_F32));
    if (err)
        return err;
    op_out_like(c, 0, c->in[0], DT_U8);
    op_out(c, 1, DT_F32, 0, NULL);
    op_out(c, 2, DT_U8, 0, NULL);
    return YK_OK;
}

/* A parameter of a matrix: a scalar, one per row (of A) or column (of B) as a list, or with all axes and 1
 * in place of the one that is summed over. */
static yk_err matrix_parameter(const struct op_ctx *c, int i, const struct shape *m, bool columns)
{
    if (i >= c->n_in || !c->in[i])
        return YK_OK;
    const struct shape *p = c->in[i];
    int along = m->rank < 2 ? -1 : m->rank - (columns ? 1 : 2); /* the axis that may have one each */
    if (op_is_scalar(p))
        return YK_OK;
    bool fits = along >= 0 && p->rank == 1 && p->dims[0] == m->dims[along];
    if (!fits && m->rank >= 2 && p->rank == m->rank) {
        fits = true;
        for (int k = 0; k < m->rank; k++)
            fits = fits && p->dims[k] == (k == m->rank - (columns ? 2 : 1) ? 1 : m->dims[k]);
    }
    if (!fits)
        return yk_fail(
            c->why, YK_INVAL, "input %d is neither a scalar nor one number for each %s", i, columns ? "column" : "row");
    return YK_OK;
}

/* The product of A (input a) and B (input b), as numpy multiplies. */
static yk_err matrix_product(struct op_ctx *c, int a, int b, enum dtype out)
{
    const struct shape *sa = c->in[a], *sb = c->in[b];
    struct shape lead[2] = {*sa, *sb}, s;
    const struct shape *leads[2] = {&lead[0], &lead[1]};
    yk_err err;
    if ((err = op_want(c, a, BYTES)) != YK_OK || (err = op_want(c, b, BYTES)) != YK_OK ||
        (err = op_want_rank(c, a, 1, YK_MAX_RANK)) != YK_OK || (err = op_want_rank(c, b, 1, YK_MAX_RANK)) != YK_OK)
        return err;
    int64_t ka = sa->dims[sa->rank - 1], kb = sb->dims[sb->rank > 1 ? sb->rank - 2 : 0];
    if (ka != kb)
        return yk_fail(
            c->why, YK_INVAL, "cannot multiply: inner sizes are %lld and %lld", (long long)ka, (long long)kb);
    for (int i = 0; i < 2; i++)
        lead[i].rank = lead[i].rank > 2 ? lead[i].rank - 2 : 0;
    if ((err = op_broadcast(leads, 2, &s, c->why)) != YK_OK)
        return err;
    if (sa->rank > 1)
        s.dims[s.rank++] = sa->dims[sa->rank - 2];
    if (sb->rank > 1)
        s.dims[s.rank++] = sb->dims[sb->rank - 1];
    op_out_like(c, 0, &s, out);
    return YK_OK;
}

/* MatMulInteger-10: A B [zero of A] [zero of B] */
yk_err op_rule_matmul_integer(struct op_ctx *c)
{
    yk_err err;
    if ((err = matrix_product(c, 0, 1, DT_I32)) != YK_OK || (err = op_want_same(c, 0, 2)) != YK_OK ||
        (err = op_want_same(c, 1, 3)) != YK_OK || (err = matrix_parameter(c, 2, c->in[0], false)) != YK_OK)
        return err;
    return matrix_parameter(c, 3, c->in[1], true);
}

/* QLinearMatMul-10: a, its scale and zero; b, its scale and zero; scale and zero of y */
yk_err op_rule_qlinear_matmul(struct op_ctx *c)
{
    yk_err err;
    if ((err = op_want_same(c, 0, 2)) != YK_OK || (err = op_want_same(c, 3, 5)) != YK_OK ||
        (err = matrix_product(c, 0, 3, c->in[7]->dtype)) != YK_OK || (err = scale_and_zero(c, 1, 2, BYTES)) != YK_OK ||
        (err = scale_and_zero(c, 4, 5, BYTES)) != YK_OK || (err = scale_and_zero(c, 6, 7, BYTES)) != YK_OK ||
        (err = matrix_parameter(c, 1, c->in[0], false)) != YK_OK ||
        (err = matrix_parameter(c, 4, c->in[3], true)) != YK_OK)
        return err;
    if (c->in[0]->rank > 1 && c->in[3]->rank > 1)
        return matrix_parameter(c, 6, &c->out[0], false);
    return scalar_parameter(c, 6);
}

double op_flops_qlinear_matmul(const struct op_ctx *c)
{
    return 2 * (double)shape_count(&c->out[0]) * (double)c->in[0]->dims[c->in[0]->rank - 1];
}

/* A parameter of a convolution's weight: a scalar or one per output channel. */
static yk_err channel_parameter(const struct op_ctx *c, int i, int64_t channels)
{
    if (i >= c->n_in || !c->in[i] || op_is_scalar(c->in[i]))
        return YK_OK;
    if (c->in[i]->rank != 1 || c->in[i]->dims[0] != channels)
        return yk_fail(c->why, YK_INVAL, "input %d is neither a scalar nor one number for each of %lld channels", i,
            (long long)channels);
    return YK_OK;
}

static yk_err convolution(struct op_ctx *c, int x, int w, enum dtype out, struct conv_dims *d)
{
    yk_err err;
    if ((err = op_want(c, x, BYTES)) != YK_OK || (err = op_want(c, w, BYTES)) != YK_OK ||
        (err = op_conv_dims(c->node, c->in[x], c->in[w], d, c->why)) != YK_OK)
        return err;
    int64_t dims[5] = {d->n, d->oc, d->out[0], d->out[1], d->out[2]};
    op_out(c, 0, out, d->spatial + 2, dims);
    return YK_OK;
}

/* ConvInteger-10: x w [zero of x] [zero of w] */
yk_err op_rule_conv_integer(struct op_ctx *c)
{
    struct conv_dims d;
    yk_err err;
    if ((err = convolution(c, 0, 1, DT_I32, &d)) != YK_OK || (err = op_want_same(c, 0, 2)) != YK_OK ||
        (err = op_want_same(c, 1, 3)) != YK_OK || (err = scalar_parameter(c, 2)) != YK_OK)
        return err;
    return channel_parameter(c, 3, d.oc);
}

/* QLinearConv-10: x, its scale and zero; w, its scale and zero; scale and zero of y; [bias] */
yk_err op_rule_qlinear_conv(struct op_ctx *c)
{
    struct conv_dims d;
    yk_err err;
    if ((err = op_want_same(c, 0, 2)) != YK_OK || (err = op_want_same(c, 3, 5)) != YK_OK ||
        (err = convolution(c, 0, 3, c->in[7]->dtype, &d)) != YK_OK || (err = scale_and_zero(c, 1, 2, BYTES)) != YK_OK ||
        (err = scalar_parameter(c, 1)) != YK_OK || (err = op_want(c, 4, OP_BIT(DT_F32))) != YK_OK ||
        (err = channel_parameter(c, 4, d.oc)) != YK_OK || (err = channel_parameter(c, 5, d.oc)) != YK_OK ||
        (err = scale_and_zero(c, 6, 7, BYTES)) != YK_OK || (err = scalar_parameter(c, 6)) != YK_OK ||
        (err = op_want(c, 8, OP_BIT(DT_I32))) != YK_OK)
        return err;
    if (c->n_in > 8 && c->in[8] && (c->in[8]->rank != 1 || c->in[8]->dims[0] != d.oc))
        return yk_fail(c->why, YK_INVAL, "the bias (input 8) does not have %lld elements", (long long)d.oc);
    return YK_OK;
}

double op_flops_qlinear_conv(const struct op_ctx *c)
{
    struct conv_dims d;
    if (op_conv_dims(c->node, c->in[0], c->in[c->n_in > 4 ? 3 : 1], &d, NULL))
        return 0;
    return 2 * (double)shape_count(&c->out[0]) * (double)(d.c / d.group) * (double)d.k[0] * (double)d.k[1] *
           (double)d.k[2];
}
