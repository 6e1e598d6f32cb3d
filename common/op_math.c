/* Shape rules and FLOPs of elementwise ops, MatMul, normalisation and reductions. */
#include <string.h>

#include "common/op_rules.h"

/* ---- elementwise ---- */

static yk_err unary(struct op_ctx *c, unsigned dtypes)
{
    yk_err err = op_want(c, 0, dtypes);
    if (err)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    op_content_elementwise(c);
    return YK_OK;
}

yk_err op_rule_unary_float(struct op_ctx *c)
{
    return unary(c, OP_FLOATS);
}

yk_err op_rule_unary_number(struct op_ctx *c)
{
    return unary(c, OP_NUMERIC);
}

yk_err op_rule_unary_signed(struct op_ctx *c)
{
    return unary(c, OP_FLOATS | OP_SIGNED);
}

yk_err op_rule_relu(struct op_ctx *c)
{
    return unary(c, OP_FLOATS | OP_SIGNED);
}

yk_err op_rule_not(struct op_ctx *c)
{
    return unary(c, OP_BIT(DT_BOOL));
}

yk_err op_rule_clip(struct op_ctx *c)
{
    yk_err err = op_want(c, 0, OP_NUMERIC);
    for (int i = 1; !err && i < c->n_in; i++) {
        err = op_want_same(c, 0, i);
        if (!err && c->in[i] && !op_is_scalar(c->in[i]))
            err = yk_fail(c->why, YK_INVAL, "bound (input %d) is not a scalar", i);
    }
    if (err)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

static yk_err broadcast(struct op_ctx *c, unsigned dtypes, enum dtype out)
{
    struct shape s;
    yk_err err;
    for (int i = 0; i < c->n_in; i++)
        if ((err = op_want(c, i, dtypes)) != YK_OK || (err = op_want_same(c, 0, i)) != YK_OK)
            return err;
    if ((err = op_broadcast(c->in, c->n_in, &s, c->why)) != YK_OK)
        return err;
    op_out_like(c, 0, &s, out == DT_NONE ? s.dtype : out);
    op_content_elementwise(c);
    return YK_OK;
}

yk_err op_rule_arith(struct op_ctx *c)
{
    return broadcast(c, OP_NUMERIC, DT_NONE);
}

yk_err op_rule_arith_float(struct op_ctx *c)
{
    return broadcast(c, OP_FLOATS, DT_NONE);
}

yk_err op_rule_compare(struct op_ctx *c)
{
    return broadcast(c, OP_NUMERIC, DT_BOOL);
}

yk_err op_rule_equal(struct op_ctx *c)
{
    return broadcast(c, OP_ANY, DT_BOOL);
}

yk_err op_rule_logic(struct op_ctx *c)
{
    return broadcast(c, OP_BIT(DT_BOOL), DT_BOOL);
}

yk_err op_rule_mod(struct op_ctx *c)
{
    int64_t fmod;
    yk_err err = op_attr_i(c, "fmod", 0, &fmod);
    if (!err && !fmod && dtype_is_float(c->in[0]->dtype))
        err = yk_fail(c->why, YK_INVAL, "Mod of floats without fmod=1");
    return err ? err : broadcast(c, OP_NUMERIC, DT_NONE);
}

/* The exponent may have another type; the result has the base's. */
yk_err op_rule_pow(struct op_ctx *c)
{
    struct shape s;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS | OP_INDEX)) != YK_OK || (err = op_want(c, 1, OP_NUMERIC)) != YK_OK ||
        (err = op_broadcast(c->in, 2, &s, c->why)) != YK_OK)
        return err;
    op_out_like(c, 0, &s, c->in[0]->dtype);
    return YK_OK;
}

yk_err op_rule_where(struct op_ctx *c)
{
    struct shape s;
    yk_err err;
    if ((err = op_want(c, 0, OP_BIT(DT_BOOL))) != YK_OK || (err = op_want_same(c, 1, 2)) != YK_OK ||
        (err = op_broadcast(c->in, 3, &s, c->why)) != YK_OK)
        return err;
    op_out_like(c, 0, &s, c->in[1]->dtype);
    op_content_elementwise(c);
    return YK_OK;
}

double op_flops_nary(const struct op_ctx *c)
{
    return (double)shape_count(&c->out[0]) * (double)YK_MAX(c->n_in - 1, 1);
}

double op_flops_zero(const struct op_ctx *c)
{
    (void)c;
    return 0;
}

double op_flops_input(const struct op_ctx *c)
{
    return (double)shape_count(c->in[0]);
}

/* ---- MatMul: numpy's, with 1-D operands ---- */

yk_err op_rule_matmul(struct op_ctx *c)
{
    const struct shape *a = c->in[0], *b = c->in[1];
    struct shape lead[2], out;
    const struct shape *leads[2] = {&lead[0], &lead[1]};
    yk_err err;
    for (int i = 0; i < 2; i++)
        if ((err = op_want(c, i, OP_FLOATS | OP_BIT(DT_I32) | OP_BIT(DT_I64) | OP_BIT(DT_U32) | OP_BIT(DT_U64))) !=
                YK_OK ||
            (err = op_want_rank(c, i, 1, YK_MAX_RANK)) != YK_OK)
            return err;
    if ((err = op_want_same(c, 0, 1)) != YK_OK)
        return err;
    int64_t ka = a->dims[a->rank - 1], kb = b->dims[b->rank > 1 ? b->rank - 2 : 0];
    if (ka != kb)
        return yk_fail(
            c->why, YK_INVAL, "cannot multiply: inner sizes are %lld and %lld", (long long)ka, (long long)kb);
    for (int i = 0; i < 2; i++) {
        lead[i] = *c->in[i];
        lead[i].rank = lead[i].rank > 2 ? lead[i].rank - 2 : 0;
    }
    if ((err = op_broadcast(leads, 2, &out, c->why)) != YK_OK)
        return err;
    if (a->rank > 1)
        out.dims[out.rank++] = a->dims[a->rank - 2];
    if (b->rank > 1)
        out.dims[out.rank++] = b->dims[b->rank - 1];
    op_out_like(c, 0, &out, a->dtype);
    return YK_OK;
}

double op_flops_matmul(const struct op_ctx *c)
{
    return 2 * (double)shape_count(&c->out[0]) * (double)c->in[0]->dims[c->in[0]->rank - 1];
}

/* ---- normalisation ---- */

yk_err op_rule_softmax(struct op_ctx *c)
{
    int axis;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_attr_axis(c, -1, c->in[0]->rank, &axis)) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

double op_flops_softmax(const struct op_ctx *c)
{
    return 5 * (double)shape_count(c->in[0]);
}

double op_flops_norm(const struct op_ctx *c)
{
    return 7 * (double)shape_count(c->in[0]);
}

/* Scale and bias (inputs 1, 2), mean and variance (3, 4) have one element per channel; two of a pair share a type. */
static yk_err channel_inputs(const struct op_ctx *c)
{
    yk_err err;
    for (int i = 1; i < c->n_in; i++) {
        if ((err = op_want(c, i, OP_FLOATS)) != YK_OK || (err = op_want_same(c, i - (i + 1) % 2, i)) != YK_OK)
            return err;
        if (c->in[i]->rank != 1 || c->in[i]->dims[0] != c->in[0]->dims[1])
            return yk_fail(c->why, YK_INVAL, "input %d does not have %lld elements", i, (long long)c->in[0]->dims[1]);
    }
    return YK_OK;
}

/* BatchNormalization-15. In training mode also the running mean and variance. */
yk_err op_rule_batchnorm(struct op_ctx *c)
{
    int64_t training;
    float f;
    yk_err err;
    if ((err = op_attr_i(c, "training_mode", 0, &training)) != YK_OK ||
        (err = op_attr_f(c, "epsilon", 1e-5f, &f)) != YK_OK || (err = op_attr_f(c, "momentum", 0.9f, &f)) != YK_OK)
        return err;
    if (!training && c->n_out > 1)
        return yk_fail(c->why, YK_INVAL, "%d outputs without training_mode", c->n_out);
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want_rank(c, 0, 2, YK_MAX_RANK)) != YK_OK ||
        (err = channel_inputs(c)) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    op_out_like(c, 1, c->in[3], c->in[3]->dtype);
    op_out_like(c, 2, c->in[4], c->in[4]->dtype);
    return YK_OK;
}

yk_err op_rule_instancenorm(struct op_ctx *c)
{
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want_rank(c, 0, 3, YK_MAX_RANK)) != YK_OK ||
        (err = op_want_same(c, 0, 1)) != YK_OK || (err = channel_inputs(c)) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

yk_err op_rule_layernorm(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    int axis;
    int64_t stash;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_attr_axis(c, -1, x->rank, &axis)) != YK_OK ||
        (err = op_attr_i(c, "stash_type", 1, &stash)) != YK_OK)
        return err;
    if (stash != 1)
        return yk_fail(c->why, YK_UNSUPPORTED, "stash_type %lld", (long long)stash);
    for (int i = 1; i < c->n_in; i++) {
        if (!c->in[i])
            continue;
        if ((err = op_want_same(c, 0, i)) != YK_OK)
            return err;
        bool same = c->in[i]->rank == x->rank - axis;
        for (int k = 0; same && k < c->in[i]->rank; k++)
            same = c->in[i]->dims[k] == x->dims[axis + k];
        if (!same)
            return yk_fail(c->why, YK_UNSUPPORTED, "input %d does not have the shape of the normalised axes", i);
    }
    struct shape mean = *x;
    for (int k = axis; k < x->rank; k++)
        mean.dims[k] = 1;
    op_out_like(c, 0, x, x->dtype);
    for (int i = 1; i < c->n_out; i++)
        op_out_like(c, i, &mean, DT_F32);
    return YK_OK;
}

/* ---- reductions ---- */

yk_err op_reduce_axes(const struct op_ctx *c, bool reduced[YK_MAX_RANK])
{
    const struct attr *a = node_attr(c->node, "axes");
    const int64_t *v = NULL;
    int n = 0, axis, rank = c->in[0]->rank;
    yk_err err;
    for (int i = 0; i < YK_MAX_RANK; i++)
        reduced[i] = false;
    if (strncmp(c->node->op->name, "Arg", 3) == 0) {
        err = op_attr_axis(c, 0, rank, &axis);
        if (!err)
            reduced[axis] = true;
        return err;
    }
    if (c->n_in > 1 && c->in[1]) {
        if ((err = op_ints(c, 1, "axes", &v, &n)) != YK_OK)
            return err;
    } else if (a) {
        if (a->kind != ATTR_INTS || a->n > YK_MAX_RANK)
            return yk_fail(c->why, YK_INVAL, "attribute axes is not a list of axes");
        v = a->ints;
        n = (int)a->n;
    }
    if (n == 0 && node_attr_i(c->node, "noop_with_empty_axes", 0) == 0)
        for (int i = 0; i < rank; i++)
            reduced[i] = true;
    for (int i = 0; i < n; i++) {
        if ((err = op_axis(v[i], rank, &axis, c->why)) != YK_OK)
            return err;
        if (reduced[axis])
            return yk_fail(c->why, YK_INVAL, "axis %d is reduced twice", axis);
        reduced[axis] = true;
    }
    return YK_OK;
}

static yk_err reduce(struct op_ctx *c, enum dtype out, bool wants_elements)
{
    bool reduced[YK_MAX_RANK];
    int64_t keep, dims[YK_MAX_RANK], n_out = 1, n_in = 1;
    int rank = 0;
    yk_err err;
    if ((err = op_attr_i(c, "keepdims", 1, &keep)) != YK_OK || (err = op_reduce_axes(c, reduced)) != YK_OK)
        return err;
    for (int i = 0; i < c->in[0]->rank; i++) {
        if (!reduced[i])
            dims[rank++] = c->in[0]->dims[i];
        else if (keep)
            dims[rank++] = 1;
        if (reduced[i])
            n_in = YK_MIN(n_in, c->in[0]->dims[i]);
        else
            n_out = YK_MIN(n_out, c->in[0]->dims[i]);
    }
    if (wants_elements && n_in == 0 && n_out > 0)
        return yk_fail(c->why, YK_INVAL, "no elements to reduce");
    op_out(c, 0, out, rank, dims);
    return YK_OK;
}

yk_err op_rule_reduce(struct op_ctx *c)
{
    const char *op = c->node->op->name;
    bool extreme = strcmp(op, "ReduceMax") == 0 || strcmp(op, "ReduceMin") == 0;
    bool mean = strcmp(op, "ReduceMean") == 0;
    yk_err err = op_want(c, 0, OP_NUMERIC);
    if (err || (err = reduce(c, c->in[0]->dtype, extreme || (mean && !dtype_is_float(c->in[0]->dtype)))) != YK_OK)
        return err;
    op_content_reduce(c);
    return YK_OK;
}

yk_err op_rule_argmax(struct op_ctx *c)
{
    int64_t last;
    yk_err err;
    if ((err = op_attr_i(c, "select_last_index", 0, &last)) != YK_OK || (err = op_want(c, 0, OP_NUMERIC)) != YK_OK)
        return err;
    return reduce(c, DT_I64, true);
}

yk_err op_rule_cumsum(struct op_ctx *c)
{
    const int64_t *v;
    int n, axis;
    int64_t flag;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS | OP_INDEX | OP_BIT(DT_U32) | OP_BIT(DT_U64))) != YK_OK ||
        (err = op_attr_i(c, "exclusive", 0, &flag)) != YK_OK || (err = op_attr_i(c, "reverse", 0, &flag)) != YK_OK ||
        (err = op_ints(c, 1, "axis", &v, &n)) != YK_OK)
        return err;
    if (n != 1)
        return yk_fail(c->why, YK_INVAL, "axis is not one integer");
    if ((err = op_axis(v[0], c->in[0]->rank, &axis, c->why)) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}
