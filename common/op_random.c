/* Shape rules of ops that draw random numbers (kernels/ref_random.c says how). */
#include "common/op_rules.h"

/* The type that attribute dtype names, or `otherwise`. */
static yk_err out_type(const struct op_ctx *c, enum dtype otherwise, unsigned allowed, enum dtype *out)
{
    const struct attr *a = node_attr(c->node, "dtype");
    int64_t onnx;
    yk_err err = op_attr_i(c, "dtype", 0, &onnx);
    if (err)
        return err;
    *out = a ? dtype_from_onnx(onnx) : otherwise;
    if (*out == DT_NONE || !(allowed & OP_BIT(*out)))
        return yk_fail(c->why, YK_INVAL, "attribute dtype is %lld (%s), which this op does not make", (long long)onnx,
            dtype_name(*out));
    return YK_OK;
}

static yk_err floats(const struct op_ctx *c)
{
    static const char *const names[] = {"mean", "scale", "low", "high", "seed"};
    float f;
    yk_err err;
    for (size_t i = 0; i < YK_COUNT(names); i++)
        if ((err = op_attr_f(c, names[i], 0, &f)) != YK_OK)
            return err;
    return YK_OK;
}

/* RandomNormal-1, RandomUniform-1 */
yk_err op_rule_random(struct op_ctx *c)
{
    const struct attr *shape = node_attr_ints(c->node, "shape");
    enum dtype t;
    yk_err err;
    if (!shape)
        return yk_fail(c->why, YK_INVAL, "attribute shape is not a list of sizes");
    if ((err = floats(c)) != YK_OK || (err = out_type(c, DT_F32, OP_FLOATS, &t)) != YK_OK)
        return err;
    if (shape->n > YK_MAX_RANK)
        return yk_fail(c->why, YK_LIMIT, "a shape of %zu axes, the limit is %d", shape->n, YK_MAX_RANK);
    for (size_t i = 0; i < shape->n; i++)
        if (shape->ints[i] < 0)
            return yk_fail(c->why, YK_INVAL, "size %zu of attribute shape is %lld", i, (long long)shape->ints[i]);
    op_out(c, 0, t, (int)shape->n, shape->ints);
    return YK_OK;
}

/* RandomNormalLike-1, RandomUniformLike-1 */
yk_err op_rule_random_like(struct op_ctx *c)
{
    enum dtype t;
    yk_err err;
    if ((err = floats(c)) != YK_OK || (err = out_type(c, c->in[0]->dtype, OP_FLOATS, &t)) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], t);
    return YK_OK;
}

/* Bernoulli-15 */
yk_err op_rule_bernoulli(struct op_ctx *c)
{
    enum dtype t;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = floats(c)) != YK_OK ||
        (err = out_type(c, c->in[0]->dtype, OP_ANY, &t)) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], t);
    return YK_OK;
}

/* Multinomial-7: logarithms of the classes' weights (rows, classes); class ids (rows, sample_size). */
yk_err op_rule_multinomial(struct op_ctx *c)
{
    enum dtype t;
    int64_t n;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want_rank(c, 0, 2, 2)) != YK_OK ||
        (err = floats(c)) != YK_OK || (err = op_attr_i(c, "sample_size", 1, &n)) != YK_OK ||
        (err = out_type(c, DT_I32, OP_INDEX, &t)) != YK_OK)
        return err;
    if (n < 1)
        return yk_fail(c->why, YK_INVAL, "attribute sample_size is %lld, it starts at 1", (long long)n);
    if (c->in[0]->dims[0] > 0 && c->in[0]->dims[1] < 1)
        return yk_fail(c->why, YK_INVAL, "no classes (axis 1 of input 0 is empty)");
    int64_t dims[2] = {c->in[0]->dims[0], n};
    op_out(c, 0, t, 2, dims);
    return YK_OK;
}
