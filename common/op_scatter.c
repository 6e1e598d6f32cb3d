/* Shape rules of the rarer ops that move elements: by index tuples, by blocks, by comparison. */
#include <string.h>

#include "common/op_rules.h"

/* Attribute `name` is one of the words, the first by default. */
static yk_err one_of(const struct op_ctx *c, const char *name, const char *const *words, int n)
{
    const struct attr *a = node_attr(c->node, name);
    bool found = !a;
    for (int i = 0; a && a->kind == ATTR_STRING && i < n; i++)
        found = found || strcmp(a->s, words[i]) == 0;
    return found ? YK_OK : yk_fail(c->why, YK_UNSUPPORTED, "attribute %s has no known value", name);
}

/* Which of two is moved: channels into space or back. */
static yk_err block_size(const struct op_ctx *c, int64_t *b)
{
    yk_err err = op_want_rank(c, 0, 4, 4);
    if (err || (err = op_attr_i(c, "blocksize", 0, b)) != YK_OK)
        return err;
    if (*b < 1 || *b > INT32_MAX)
        return yk_fail(c->why, YK_INVAL, "attribute blocksize is %lld", (long long)*b);
    return YK_OK;
}

yk_err op_rule_depth_to_space(struct op_ctx *c)
{
    static const char *const modes[] = {"DCR", "CRD"};
    const int64_t *x = c->in[0]->dims;
    int64_t b, h, w;
    yk_err err = block_size(c, &b);
    if (err || (err = one_of(c, "mode", modes, 2)) != YK_OK)
        return err;
    if (x[1] % (b * b) != 0)
        return yk_fail(c->why, YK_INVAL, "%lld channels do not make blocks of %lld", (long long)x[1], (long long)b);
    if (!yk_mul_i64(x[2], b, &h) || !yk_mul_i64(x[3], b, &w))
        return yk_fail(c->why, YK_LIMIT, "too large");
    op_out(c, 0, c->in[0]->dtype, 4, (const int64_t[]){x[0], x[1] / (b * b), h, w});
    return YK_OK;
}

yk_err op_rule_space_to_depth(struct op_ctx *c)
{
    const int64_t *x = c->in[0]->dims;
    int64_t b, channels;
    yk_err err = block_size(c, &b);
    if (err)
        return err;
    if (x[2] % b != 0 || x[3] % b != 0)
        return yk_fail(c->why, YK_INVAL, "%lld x %lld is not made of blocks of %lld", (long long)x[2], (long long)x[3],
            (long long)b);
    if (!yk_mul_i64(x[1], b * b, &channels))
        return yk_fail(c->why, YK_LIMIT, "too large");
    op_out(c, 0, c->in[0]->dtype, 4, (const int64_t[]){x[0], channels, x[2] / b, x[3] / b});
    return YK_OK;
}

yk_err op_rule_eye_like(struct op_ctx *c)
{
    int64_t to, k;
    yk_err err;
    if ((err = op_want_rank(c, 0, 2, 2)) != YK_OK || (err = op_attr_i(c, "k", 0, &k)) != YK_OK ||
        (err = op_attr_i(c, "dtype", dtype_to_onnx(c->in[0]->dtype), &to)) != YK_OK)
        return err;
    enum dtype t = dtype_from_onnx(to);
    if (t == DT_NONE)
        return yk_fail(c->why, YK_UNSUPPORTED, "data type %lld", (long long)to);
    op_out_like(c, 0, c->in[0], t);
    return YK_OK;
}

yk_err op_rule_trilu(struct op_ctx *c)
{
    int64_t upper;
    yk_err err;
    if ((err = op_want_rank(c, 0, 2, YK_MAX_RANK)) != YK_OK || (err = op_attr_i(c, "upper", 1, &upper)) != YK_OK ||
        (err = op_want(c, 1, OP_BIT(DT_I64))) != YK_OK)
        return err;
    if (c->n_in > 1 && c->in[1] && !op_is_scalar(c->in[1]))
        return yk_fail(c->why, YK_INVAL, "k (input 1) is not a scalar");
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

yk_err op_rule_one_hot(struct op_ctx *c)
{
    const struct shape *idx = c->in[0];
    double depth;
    int64_t dims[YK_MAX_RANK + 1];
    int axis;
    yk_err err;
    if ((err = op_want(c, 0, OP_NUMERIC)) != YK_OK || (err = op_want(c, 1, OP_NUMERIC)) != YK_OK ||
        (err = op_attr_axis(c, -1, idx->rank + 1, &axis)) != YK_OK)
        return err;
    if (!op_is_scalar(c->in[1]))
        return yk_fail(c->why, YK_INVAL, "depth (input 1) is not a scalar");
    if (!op_const_scalar(c, 1, &depth))
        return yk_fail(c->why, YK_DEPENDS, "depth (input 1) depends on data");
    if (!(depth >= 0 && depth < 1e15))
        return yk_fail(c->why, YK_INVAL, "depth is %g", depth);
    if (c->in[2]->rank != 1 || c->in[2]->dims[0] != 2)
        return yk_fail(c->why, YK_INVAL, "values (input 2) are not two");
    for (int i = 0; i <= idx->rank; i++)
        dims[i] = i < axis ? idx->dims[i] : i == axis ? (int64_t)depth : idx->dims[i - 1];
    op_out(c, 0, c->in[2]->dtype, idx->rank + 1, dims);
    return YK_OK;
}

/* GatherND-13: the last axis of the indices holds tuples that reach into the data behind the batch axes. */
yk_err op_rule_gather_nd(struct op_ctx *c)
{
    const struct shape *x = c->in[0], *idx = c->in[1];
    int64_t batch, dims[2 * YK_MAX_RANK];
    int rank = 0;
    yk_err err;
    if ((err = op_want(c, 1, OP_BIT(DT_I64))) != YK_OK || (err = op_attr_i(c, "batch_dims", 0, &batch)) != YK_OK ||
        (err = op_want_rank(c, 0, 1, YK_MAX_RANK)) != YK_OK || (err = op_want_rank(c, 1, 1, YK_MAX_RANK)) != YK_OK)
        return err;
    if (batch < 0 || batch >= YK_MIN(x->rank, idx->rank))
        return yk_fail(c->why, YK_INVAL, "attribute batch_dims is %lld", (long long)batch);
    for (int64_t i = 0; i < batch; i++)
        if (x->dims[i] != idx->dims[i])
            return yk_fail(c->why, YK_INVAL, "data and indices differ in axis %lld", (long long)i);
    int64_t tuple = idx->dims[idx->rank - 1];
    if (tuple < 1 || tuple > x->rank - batch)
        return yk_fail(
            c->why, YK_INVAL, "tuples of %lld indices into %lld axes", (long long)tuple, (long long)(x->rank - batch));
    for (int i = 0; i < idx->rank - 1; i++)
        dims[rank++] = idx->dims[i];
    for (int64_t i = batch + tuple; i < x->rank; i++)
        dims[rank++] = x->dims[i];
    op_out(c, 0, x->dtype, rank, dims);
    return YK_OK;
}

static const char *const reductions[] = {"none", "add", "mul"};

/* ScatterND-16 */
yk_err op_rule_scatter_nd(struct op_ctx *c)
{
    const struct shape *x = c->in[0], *idx = c->in[1], *updates = c->in[2];
    yk_err err;
    if ((err = op_want(c, 1, OP_BIT(DT_I64))) != YK_OK || (err = op_want_same(c, 0, 2)) != YK_OK ||
        (err = op_want_rank(c, 0, 1, YK_MAX_RANK)) != YK_OK || (err = op_want_rank(c, 1, 1, YK_MAX_RANK)) != YK_OK ||
        (err = one_of(c, "reduction", reductions, 3)) != YK_OK)
        return err;
    int64_t tuple = idx->dims[idx->rank - 1];
    if (tuple < 1 || tuple > x->rank)
        return yk_fail(c->why, YK_INVAL, "tuples of %lld indices into %d axes", (long long)tuple, x->rank);
    bool fits = updates->rank == idx->rank - 1 + x->rank - tuple;
    for (int i = 0; fits && i < updates->rank; i++)
        fits = updates->dims[i] == (i < idx->rank - 1 ? idx->dims[i] : x->dims[tuple + i - (idx->rank - 1)]);
    if (!fits)
        return yk_fail(c->why, YK_INVAL, "the updates do not have the shape that data and indices give");
    op_out_like(c, 0, x, x->dtype);
    return YK_OK;
}

/* ScatterElements-16 */
yk_err op_rule_scatter_elements(struct op_ctx *c)
{
    const struct shape *x = c->in[0], *idx = c->in[1], *updates = c->in[2];
    int axis;
    yk_err err;
    if ((err = op_want(c, 1, OP_INDEX)) != YK_OK || (err = op_want_same(c, 0, 2)) != YK_OK ||
        (err = op_attr_axis(c, 0, x->rank, &axis)) != YK_OK || (err = one_of(c, "reduction", reductions, 3)) != YK_OK)
        return err;
    if (idx->rank != x->rank || updates->rank != x->rank)
        return yk_fail(c->why, YK_INVAL, "data, indices and updates differ in their number of axes");
    for (int i = 0; i < x->rank; i++) {
        if (idx->dims[i] != updates->dims[i])
            return yk_fail(c->why, YK_INVAL, "indices and updates differ in axis %d", i);
        if (i != axis ? idx->dims[i] > x->dims[i] : x->dims[i] == 0 && idx->dims[i] > 0)
            return yk_fail(c->why, YK_INVAL, "axis %d of the indices is larger than that of the data", i);
    }
    op_out_like(c, 0, x, x->dtype);
    return YK_OK;
}

/* ---- elementwise ---- */

yk_err op_rule_is_nan(struct op_ctx *c)
{
    yk_err err = op_want(c, 0, OP_FLOATS);
    if (err)
        return err;
    op_out_like(c, 0, c->in[0], DT_BOOL);
    return YK_OK;
}

yk_err op_rule_cast_like(struct op_ctx *c)
{
    op_out_like(c, 0, c->in[0], c->in[1]->dtype);
    op_content_cast(c);
    return YK_OK;
}

yk_err op_rule_prelu(struct op_ctx *c)
{
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS | OP_INDEX | OP_BIT(DT_U32) | OP_BIT(DT_U64))) != YK_OK ||
        (err = op_want_same(c, 0, 1)) != YK_OK)
        return err;
    if (!op_broadcasts_to(c->in[1], c->in[0]))
        return yk_fail(c->why, YK_INVAL, "the slope does not broadcast to the input");
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    return YK_OK;
}

yk_err op_rule_bit_shift(struct op_ctx *c)
{
    const struct attr *a = node_attr(c->node, "direction");
    struct shape s;
    yk_err err;
    if (!a || a->kind != ATTR_STRING || (strcmp(a->s, "LEFT") != 0 && strcmp(a->s, "RIGHT") != 0))
        return yk_fail(c->why, YK_INVAL, "attribute direction is neither LEFT nor RIGHT");
    if ((err = op_want(c, 0, OP_UNSIGNED)) != YK_OK || (err = op_want_same(c, 0, 1)) != YK_OK ||
        (err = op_broadcast(c->in, 2, &s, c->why)) != YK_OK)
        return err;
    op_out_like(c, 0, &s, s.dtype);
    return YK_OK;
}
