/* Shape rules and FLOPs of convolution and pooling. */
#include <string.h>

#include "common/activation.h"
#include "common/op_rules.h"

/* A list attribute of exactly n integers in lo..INT32_MAX; leaves dst as it is if there is none. */
static yk_err ints_attr(
    const struct node *node, const char *name, int n, int64_t lo, int64_t *dst, bool *found, struct yk_diag *why)
{
    const struct attr *a = node_attr(node, name);
    *found = a != NULL;
    if (!a)
        return YK_OK;
    if (a->kind != ATTR_INTS || a->n != (size_t)n)
        return yk_fail(why, YK_INVAL, "attribute %s is not a list of %d integers", name, n);
    for (int i = 0; i < n; i++) {
        if (a->ints[i] < lo || a->ints[i] > INT32_MAX)
            return yk_fail(why, YK_INVAL, "attribute %s has %lld, allowed are %lld to %d", name, (long long)a->ints[i],
                (long long)lo, INT32_MAX);
        dst[i] = a->ints[i];
    }
    return YK_OK;
}

enum auto_pad { PAD_EXPLICIT, PAD_UPPER, PAD_LOWER, PAD_VALID };

static yk_err auto_pad(const struct node *n, enum auto_pad *out, struct yk_diag *why)
{
    static const char *const names[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};
    const struct attr *a = node_attr(n, "auto_pad");
    *out = PAD_EXPLICIT;
    if (!a)
        return YK_OK;
    for (int i = 0; a->kind == ATTR_STRING && i < (int)YK_COUNT(names); i++)
        if (strcmp(a->s, names[i]) == 0) {
            *out = (enum auto_pad)i;
            return YK_OK;
        }
    if (a->kind == ATTR_STRING && a->s[0] == 0) /* some exporters write it empty */
        return YK_OK;
    return yk_fail(why, YK_INVAL, "attribute auto_pad has no known value");
}

static yk_err out_size(struct conv_dims *d, int i, enum auto_pad pad, bool ceil_mode, struct yk_diag *why)
{
    int64_t reach = (d->k[i] - 1) * d->dilation[i] + 1; /* both below 2^31 */
    if (pad == PAD_UPPER || pad == PAD_LOWER) {
        int64_t out = d->in[i] / d->stride[i] + (d->in[i] % d->stride[i] != 0), need = 0, last = 0;
        if (out > 0 && (!yk_mul_i64(out - 1, d->stride[i], &last) || !yk_add_i64(last, reach, &need)))
            return yk_fail(why, YK_LIMIT, "axis %d is too large", i + 2);
        int64_t total = out > 0 ? YK_MAX(need - d->in[i], 0) : 0;
        d->out[i] = out;
        d->pad_begin[i] = pad == PAD_UPPER ? total / 2 : total - total / 2;
        d->pad_end[i] = total - d->pad_begin[i];
        return YK_OK;
    }
    if (pad == PAD_VALID)
        d->pad_begin[i] = d->pad_end[i] = 0;
    int64_t padded;
    if (!yk_add_i64(d->in[i], d->pad_begin[i] + d->pad_end[i], &padded))
        return yk_fail(why, YK_LIMIT, "axis %d is too large", i + 2);
    if (padded < reach)
        return yk_fail(why, YK_INVAL, "kernel of %lld is larger than axis %d with its padding (%lld)", (long long)reach,
            i + 2, (long long)padded);
    int64_t left = padded - reach;
    d->out[i] = left / d->stride[i] + 1;
    if (ceil_mode && left % d->stride[i] != 0 && d->out[i] * d->stride[i] < d->in[i] + d->pad_begin[i])
        d->out[i]++;
    return YK_OK;
}

yk_err op_conv_dims(
    const struct node *n, const struct shape *x, const struct shape *w, struct conv_dims *out, struct yk_diag *why)
{
    struct conv_dims d = {.spatial = x->rank - 2, .group = 1};
    enum auto_pad pad;
    bool found, ceil_mode = false;
    int64_t pads[6] = {0};
    yk_err err;

    if (d.spatial < 1 || d.spatial > 3)
        return yk_fail(why, x->rank > 5 ? YK_UNSUPPORTED : YK_INVAL, "input has %d axes, wants 3 to 5", x->rank);
    d.n = x->dims[0];
    d.c = x->dims[1];
    for (int i = 0; i < 3; i++) {
        d.in[i] = i < d.spatial ? x->dims[2 + i] : 1;
        d.out[i] = d.k[i] = d.stride[i] = d.dilation[i] = 1;
    }
    if ((err = ints_attr(n, "kernel_shape", d.spatial, 1, d.k, &found, why)) != YK_OK)
        return err;
    if (w) {
        const struct attr *group = node_attr(n, "group");
        if (group && group->kind != ATTR_INT)
            return yk_fail(why, YK_INVAL, "attribute group is not an integer");
        d.group = group ? group->i : 1;
        if (w->rank != x->rank)
            return yk_fail(why, YK_INVAL, "weight has %d axes, input %d", w->rank, x->rank);
        for (int i = 0; i < d.spatial; i++) {
            if (w->dims[2 + i] < 1 || w->dims[2 + i] > INT32_MAX || (found && w->dims[2 + i] != d.k[i]))
                return yk_fail(why, YK_INVAL, "kernel_shape and weight do not agree");
            d.k[i] = w->dims[2 + i];
        }
        int64_t want;
        d.oc = w->dims[0];
        if (d.group < 1 || d.oc < 1 || w->dims[1] < 1 || d.oc % d.group != 0)
            return yk_fail(why, YK_INVAL, "%lld output channels in %lld groups", (long long)d.oc, (long long)d.group);
        if (!yk_mul_i64(w->dims[1], d.group, &want) || want != d.c)
            return yk_fail(why, YK_INVAL, "input has %lld channels, the weight wants %lld x %lld groups",
                (long long)d.c, (long long)w->dims[1], (long long)d.group);
    } else {
        d.oc = d.c;
        if (!found)
            return yk_fail(why, YK_INVAL, "attribute kernel_shape is missing");
        const struct attr *a = node_attr(n, "ceil_mode");
        if (a && a->kind != ATTR_INT)
            return yk_fail(why, YK_INVAL, "attribute ceil_mode is not an integer");
        ceil_mode = a && a->i != 0;
    }
    if ((err = ints_attr(n, "strides", d.spatial, 1, d.stride, &found, why)) != YK_OK ||
        (err = ints_attr(n, "dilations", d.spatial, 1, d.dilation, &found, why)) != YK_OK ||
        (err = ints_attr(n, "pads", 2 * d.spatial, 0, pads, &found, why)) != YK_OK ||
        (err = auto_pad(n, &pad, why)) != YK_OK)
        return err;
    for (int i = 0; i < d.spatial; i++) {
        d.pad_begin[i] = pads[i];
        d.pad_end[i] = pads[d.spatial + i];
        if ((err = out_size(&d, i, pad, ceil_mode, why)) != YK_OK)
            return err;
        int64_t reach = (d.k[i] - 1) * d.dilation[i] + 1;
        if (!w && (d.pad_begin[i] >= reach || d.pad_end[i] >= reach))
            return yk_fail(why, YK_INVAL, "padding of axis %d is not smaller than the kernel", i + 2);
    }
    *out = d;
    return YK_OK;
}

/* Size and pads of axis i from output_shape (want >= 0) or the pads. */
static yk_err deconv_size(
    struct conv_dims *d, int i, enum auto_pad pad, int64_t extra, int64_t want, struct yk_diag *why)
{
    int64_t full, reach = (d->k[i] - 1) * d->dilation[i] + 1;
    if (d->in[i] < 1)
        return yk_fail(why, YK_INVAL, "axis %d is empty", i + 2);
    if (!yk_mul_i64(d->in[i] - 1, d->stride[i], &full) || full > YK_MAX_COUNT || (full += reach + extra) > YK_MAX_COUNT)
        return yk_fail(why, YK_LIMIT, "axis %d is too large", i + 2);
    if (want < 0 && (pad == PAD_UPPER || pad == PAD_LOWER) && !yk_mul_i64(d->in[i], d->stride[i], &want))
        return yk_fail(why, YK_LIMIT, "axis %d is too large", i + 2);
    if (want >= 0) { /* an odd rest goes to the end for SAME_UPPER, else to the front */
        int64_t total = YK_MAX(full - want, 0);
        d->pad_begin[i] = pad == PAD_UPPER ? total / 2 : total - total / 2;
        d->pad_end[i] = total - d->pad_begin[i];
        d->out[i] = want;
    } else {
        if (pad == PAD_VALID)
            d->pad_begin[i] = d->pad_end[i] = 0;
        d->out[i] = full - d->pad_begin[i] - d->pad_end[i];
    }
    if (d->out[i] < 1)
        return yk_fail(why, YK_INVAL, "axis %d of the output would have %lld elements", i + 2, (long long)d->out[i]);
    return YK_OK;
}

yk_err op_deconv_dims(
    const struct node *n, const struct shape *x, const struct shape *w, struct conv_dims *out, struct yk_diag *why)
{
    struct conv_dims d = {.spatial = x->rank - 2, .group = 1};
    enum auto_pad pad;
    bool found, sized;
    int64_t pads[6] = {0}, extra[3] = {0}, want[5] = {-1, -1, -1, -1, -1};
    const struct attr *group = node_attr(n, "group"), *size = node_attr(n, "output_shape");
    yk_err err;

    if (d.spatial < 1 || d.spatial > 3)
        return yk_fail(why, x->rank > 5 ? YK_UNSUPPORTED : YK_INVAL, "input has %d axes, wants 3 to 5", x->rank);
    if (w->rank != x->rank)
        return yk_fail(why, YK_INVAL, "weight has %d axes, input %d", w->rank, x->rank);
    if (group && group->kind != ATTR_INT)
        return yk_fail(why, YK_INVAL, "attribute group is not an integer");
    d.group = group ? group->i : 1;
    d.n = x->dims[0];
    d.c = x->dims[1];
    for (int i = 0; i < 3; i++) {
        d.in[i] = i < d.spatial ? x->dims[2 + i] : 1;
        d.out[i] = d.k[i] = d.stride[i] = d.dilation[i] = 1;
    }
    if (d.group < 1 || d.c < 1 || d.c % d.group != 0)
        return yk_fail(why, YK_INVAL, "%lld input channels in %lld groups", (long long)d.c, (long long)d.group);
    if (w->dims[0] != d.c)
        return yk_fail(
            why, YK_INVAL, "input has %lld channels, the weight wants %lld", (long long)d.c, (long long)w->dims[0]);
    if (w->dims[1] < 1 || !yk_mul_i64(w->dims[1], d.group, &d.oc))
        return yk_fail(why, YK_INVAL, "the weight has %lld output channels in each of %lld groups",
            (long long)w->dims[1], (long long)d.group);
    if ((err = ints_attr(n, "kernel_shape", d.spatial, 1, d.k, &found, why)) != YK_OK)
        return err;
    for (int i = 0; i < d.spatial; i++) {
        if (w->dims[2 + i] < 1 || w->dims[2 + i] > INT32_MAX || (found && w->dims[2 + i] != d.k[i]))
            return yk_fail(why, YK_INVAL, "kernel_shape and weight do not agree");
        d.k[i] = w->dims[2 + i];
    }
    /* output_shape may have the batch and the channels in front. */
    int front = size && size->kind == ATTR_INTS && size->n == (size_t)d.spatial + 2 ? 2 : 0;
    if ((err = ints_attr(n, "strides", d.spatial, 1, d.stride, &found, why)) != YK_OK ||
        (err = ints_attr(n, "dilations", d.spatial, 1, d.dilation, &found, why)) != YK_OK ||
        (err = ints_attr(n, "pads", 2 * d.spatial, 0, pads, &found, why)) != YK_OK ||
        (err = ints_attr(n, "output_padding", d.spatial, 0, extra, &found, why)) != YK_OK ||
        (err = ints_attr(n, "output_shape", d.spatial + front, 0, want, &sized, why)) != YK_OK ||
        (err = auto_pad(n, &pad, why)) != YK_OK)
        return err;
    for (int i = 0; i < d.spatial; i++) {
        d.pad_begin[i] = pads[i];
        d.pad_end[i] = pads[d.spatial + i];
        if ((err = deconv_size(&d, i, pad, extra[i], want[front + i], why)) != YK_OK)
            return err;
    }
    *out = d;
    return YK_OK;
}

/* ConvTranspose-11. */
yk_err op_rule_deconv(struct op_ctx *c)
{
    struct conv_dims d;
    yk_err err;
    for (int i = 0; i < c->n_in; i++)
        if ((err = op_want(c, i, OP_FLOATS)) != YK_OK || (err = op_want_same(c, 0, i)) != YK_OK)
            return err;
    if ((err = op_deconv_dims(c->node, c->in[0], c->in[1], &d, c->why)) != YK_OK)
        return err;
    if (c->n_in > 2 && c->in[2] && (c->in[2]->rank != 1 || c->in[2]->dims[0] != d.oc))
        return yk_fail(c->why, YK_INVAL, "bias does not have %lld elements", (long long)d.oc);
    int64_t dims[5] = {d.n, d.oc, d.out[0], d.out[1], d.out[2]};
    op_out(c, 0, c->in[0]->dtype, d.spatial + 2, dims);
    return YK_OK;
}

double op_flops_deconv(const struct op_ctx *c)
{
    struct conv_dims d;
    if (op_deconv_dims(c->node, c->in[0], c->in[1], &d, NULL))
        return 0;
    double in = (double)d.n * (double)d.c * (double)d.in[0] * (double)d.in[1] * (double)d.in[2];
    double taps = (double)(d.oc / d.group) * (double)d.k[0] * (double)d.k[1] * (double)d.k[2];
    return in * taps * 2 + (c->n_in > 2 && c->in[2] ? (double)shape_count(&c->out[0]) : 0);
}

/* Conv-11 and FusedConv. */
yk_err op_rule_conv(struct op_ctx *c)
{
    struct conv_dims d;
    yk_err err;
    for (int i = 0; i < c->n_in; i++)
        if ((err = op_want(c, i, OP_FLOATS)) != YK_OK || (err = op_want_same(c, 0, i)) != YK_OK)
            return err;
    if ((err = op_conv_dims(c->node, c->in[0], c->in[1], &d, c->why)) != YK_OK)
        return err;
    if (c->n_in > 2 && c->in[2] && (c->in[2]->rank != 1 || c->in[2]->dims[0] != d.oc))
        return yk_fail(c->why, YK_INVAL, "bias does not have %lld elements", (long long)d.oc);
    int64_t dims[5] = {d.n, d.oc, d.out[0], d.out[1], d.out[2]};
    op_out(c, 0, c->in[0]->dtype, d.spatial + 2, dims);
    if (c->n_in > 3 && c->in[3] && !shape_equal(c->in[3], &c->out[0]))
        return yk_fail(c->why, YK_INVAL, "the residual does not have the shape of the output");
    return activation_check(c->node, c->why);
}

double op_flops_conv(const struct op_ctx *c)
{
    struct conv_dims d;
    if (op_conv_dims(c->node, c->in[0], c->in[1], &d, NULL))
        return 0;
    double out = (double)d.n * (double)d.oc * (double)d.out[0] * (double)d.out[1] * (double)d.out[2];
    double k = (double)(d.c / d.group) * (double)d.k[0] * (double)d.k[1] * (double)d.k[2];
    double extra = 0; /* bias, residual, activation */
    for (int i = 2; i < c->n_in; i++)
        extra += c->in[i] ? 1 : 0;
    if (strcmp(node_attr_s(c->node, "activation", "none"), "none") != 0)
        extra += 1;
    return out * (2 * k + extra);
}

bool op_is_preact_input(int i)
{
    return i == 0 || i > 4;
}

/* PreactConv. */
yk_err op_rule_preact(struct op_ctx *c)
{
    const struct shape *x = c->in[0], *w = c->in[1];
    yk_err err;
    for (int i = 0; i < c->n_in; i++)
        if ((err = op_want(c, i, OP_FLOATS)) != YK_OK || (err = op_want_same(c, 0, i)) != YK_OK)
            return err;
    if ((err = op_want_rank(c, 0, 3, 5)) != YK_OK || (err = op_want_rank(c, 1, x->rank, x->rank)) != YK_OK)
        return err;
    int64_t channels = 0, dims[5] = {x->dims[0], w->dims[0]};
    for (int i = 0; i < c->n_in; i++) {
        if (!op_is_preact_input(i))
            continue;
        if ((err = op_want_rank(c, i, x->rank, x->rank)) != YK_OK)
            return err;
        for (int d = 0; d < x->rank; d++)
            if (d != 1 && c->in[i]->dims[d] != x->dims[d])
                return yk_fail(c->why, YK_INVAL, "inputs 0 and %d differ in size on axis %d (%lld, %lld)", i, d,
                    (long long)x->dims[d], (long long)c->in[i]->dims[d]);
        if (!yk_add_i64(channels, c->in[i]->dims[1], &channels))
            return yk_fail(c->why, YK_LIMIT, "the inputs have too many channels");
    }
    if (channels < 1 || w->dims[0] < 1 || w->dims[1] != channels)
        return yk_fail(c->why, YK_INVAL, "the inputs have %lld channels, the weight makes %lld of %lld",
            (long long)channels, (long long)w->dims[0], (long long)w->dims[1]);
    for (int d = 2; d < x->rank; d++) {
        if (w->dims[d] != 1)
            return yk_fail(
                c->why, YK_INVAL, "the kernel has size %lld on axis %d, must be 1", (long long)w->dims[d], d);
        dims[d] = x->dims[d];
    }
    for (int i = 2; i < 5; i++) {
        int64_t want = i == 2 ? w->dims[0] : channels;
        if (c->in[i]->rank != 1 || c->in[i]->dims[0] != want)
            return yk_fail(c->why, YK_INVAL, "input %d does not have %lld elements", i, (long long)want);
    }
    op_out(c, 0, x->dtype, x->rank, dims);
    return activation_check(c->node, c->why);
}

double op_flops_preact(const struct op_ctx *c)
{
    double pixels = (double)c->in[0]->dims[0], k = (double)c->in[1]->dims[1], oc = (double)c->in[1]->dims[0];
    for (int d = 2; d < c->in[0]->rank; d++)
        pixels *= (double)c->in[0]->dims[d];
    double extra = strcmp(node_attr_s(c->node, "activation", "none"), "none") != 0 ? 2 : 1;
    return pixels * (3 * k + oc * (2 * k + extra));
}

static yk_err pool(struct op_ctx *c, unsigned dtypes)
{
    struct conv_dims d;
    yk_err err = op_want(c, 0, dtypes);
    if (err || (err = op_conv_dims(c->node, c->in[0], NULL, &d, c->why)) != YK_OK)
        return err;
    int64_t dims[5] = {d.n, d.c, d.out[0], d.out[1], d.out[2]};
    for (int i = 0; i < c->n_out; i++)
        op_out(c, i, i == 0 ? c->in[0]->dtype : DT_I64, d.spatial + 2, dims);
    return YK_OK;
}

yk_err op_rule_max_pool(struct op_ctx *c)
{
    int64_t order;
    yk_err err = op_attr_i(c, "storage_order", 0, &order);
    if (err)
        return err;
    if (order != 0 && order != 1)
        return yk_fail(c->why, YK_INVAL, "attribute storage_order is neither 0 nor 1");
    return pool(c, OP_FLOATS | OP_BIT(DT_I8) | OP_BIT(DT_U8));
}

yk_err op_rule_average_pool(struct op_ctx *c)
{
    int64_t include;
    yk_err err = op_attr_i(c, "count_include_pad", 0, &include);
    return err ? err : pool(c, OP_FLOATS);
}

double op_flops_pool(const struct op_ctx *c)
{
    struct conv_dims d;
    if (op_conv_dims(c->node, c->in[0], NULL, &d, NULL))
        return 0;
    return (double)shape_count(&c->out[0]) * (double)d.k[0] * (double)d.k[1] * (double)d.k[2];
}

yk_err op_rule_global_pool(struct op_ctx *c)
{
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want_rank(c, 0, 2, YK_MAX_RANK)) != YK_OK)
        return err;
    int64_t dims[YK_MAX_RANK];
    for (int i = 0; i < c->in[0]->rank; i++) {
        if (i >= 2 && c->in[0]->dims[i] == 0)
            return yk_fail(c->why, YK_INVAL, "axis %d to pool over is empty", i);
        dims[i] = i < 2 ? c->in[0]->dims[i] : 1;
    }
    op_out(c, 0, c->in[0]->dtype, c->in[0]->rank, dims);
    return YK_OK;
}

/* ---- Gemm, here for its fused form ---- */

static yk_err gemm(struct op_ctx *c, bool fused)
{
    int64_t trans_a, trans_b;
    yk_err err;
    unsigned types = OP_FLOATS | (fused ? 0 : OP_BIT(DT_I32) | OP_BIT(DT_I64) | OP_BIT(DT_U32) | OP_BIT(DT_U64));
    for (int i = 0; i < c->n_in; i++)
        if ((err = op_want(c, i, types)) != YK_OK || (err = op_want_same(c, 0, i)) != YK_OK)
            return err;
    if ((err = op_attr_i(c, "transA", 0, &trans_a)) != YK_OK || (err = op_attr_i(c, "transB", 0, &trans_b)) != YK_OK ||
        (err = op_want_rank(c, 0, 2, fused ? YK_MAX_RANK : 2)) != YK_OK || (err = op_want_rank(c, 1, 2, 2)) != YK_OK)
        return err;
    const struct shape *a = c->in[0], *b = c->in[1], *bias = c->n_in > 2 ? c->in[2] : NULL;
    if (a->rank > 2 && (trans_a || (bias && bias->rank > 1)))
        return yk_fail(c->why, YK_INVAL, "transA or a bias with several axes for an input with %d axes", a->rank);
    int64_t k = a->dims[trans_a ? 0 : a->rank - 1], kb = b->dims[trans_b ? 1 : 0];
    if (k != kb)
        return yk_fail(c->why, YK_INVAL, "cannot multiply: inner sizes are %lld and %lld", (long long)k, (long long)kb);
    int64_t dims[YK_MAX_RANK];
    for (int i = 0; i < a->rank; i++)
        dims[i] = a->dims[i];
    if (a->rank == 2)
        dims[0] = a->dims[trans_a ? 1 : 0];
    dims[a->rank - 1] = b->dims[trans_b ? 0 : 1];
    op_out(c, 0, a->dtype, a->rank, dims);
    if (bias && !op_broadcasts_to(bias, &c->out[0]))
        return yk_fail(c->why, YK_INVAL, "the bias does not broadcast to the output");
    return YK_OK;
}

yk_err op_rule_gemm(struct op_ctx *c)
{
    return gemm(c, false);
}

yk_err op_rule_fused_gemm(struct op_ctx *c)
{
    yk_err err = gemm(c, true);
    return err ? err : activation_check(c->node, c->why);
}

double op_flops_gemm(const struct op_ctx *c)
{
    const struct shape *b = c->in[1];
    int64_t k = b->dims[node_attr_i(c->node, "transB", 0) ? 1 : 0];
    double extra = c->n_in > 2 && c->in[2] ? 1 : 0;
    if (strcmp(node_attr_s(c->node, "activation", "none"), "none") != 0)
        extra += 1;
    return (double)shape_count(&c->out[0]) * (2 * (double)k + extra);
}
