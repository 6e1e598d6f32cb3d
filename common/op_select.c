/* Shape rules of ops that choose elements by their values. What they give is as long as the data says: such a size is
 * -1, and `most` bounds the output, so that room for it can be made before. */
#include "common/op_rules.h"

/* Output i has these dims, one of them maybe unknown; at most `most` elements. */
static yk_err out_at_most(struct op_ctx *c, int i, enum dtype t, int rank, const int64_t *dims, int64_t most)
{
    if (i >= c->n_out)
        return YK_OK;
    if (most > YK_MAX_COUNT)
        return yk_fail(c->why, YK_LIMIT, "output %d is too large", i);
    op_out(c, i, t, rank, dims);
    c->most[i] = most;
    return YK_OK;
}

/* NonZero-13. As numpy, but a scalar gives (0, N). */
yk_err op_rule_nonzero(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    int64_t dims[2] = {x->rank, -1}, most;
    if (x->rank == 0)
        dims[1] = 0; /* no rows: how many columns says nothing */
    if (!yk_mul_i64(shape_count(x), x->rank, &most))
        return yk_fail(c->why, YK_LIMIT, "output 0 is too large");
    return out_at_most(c, 0, DT_I64, 2, dims, most);
}

/* Compress-11. A condition may be shorter than the axis: what is behind it is left out. */
yk_err op_rule_compress(struct op_ctx *c)
{
    const struct shape *x = c->in[0], *cond = c->in[1];
    bool flat = !node_attr(c->node, "axis");
    int64_t dims[YK_MAX_RANK], most = 1;
    int axis = 0, rank = flat ? 1 : x->rank;
    yk_err err;
    if ((err = op_want(c, 1, OP_BIT(DT_BOOL))) != YK_OK || (err = op_want_rank(c, 1, 1, 1)) != YK_OK)
        return err;
    if (!flat && (err = op_attr_axis(c, 0, x->rank, &axis)) != YK_OK)
        return err;
    for (int k = 0; k < rank; k++)
        dims[k] = flat ? shape_count(x) : x->dims[k];
    if (cond->dims[0] > dims[axis])
        return yk_fail(
            c->why, YK_INVAL, "a condition of %lld elements for %lld", (long long)cond->dims[0], (long long)dims[axis]);
    dims[axis] = cond->dims[0];
    for (int k = 0; k < rank; k++)
        most *= dims[k]; /* no more than x has */
    if (c->content[1]) {
        dims[axis] = 0;
        for (int64_t k = 0; k < cond->dims[0]; k++)
            dims[axis] += c->content[1][k] != 0;
    } else if (cond->dims[0] > 0) {
        dims[axis] = -1;
    }
    return out_at_most(c, 0, x->dtype, rank, dims, most);
}

/* Unique-11: values or slices, where each comes first, which of them each input is, how often each comes. */
yk_err op_rule_unique(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    bool flat = !node_attr(c->node, "axis");
    int64_t dims[YK_MAX_RANK], sorted, n;
    int axis = 0, rank = flat ? 1 : x->rank;
    yk_err err = op_attr_i(c, "sorted", 1, &sorted);
    if (!err && !flat)
        err = op_attr_axis(c, 0, x->rank, &axis);
    if (err)
        return err;
    for (int k = 0; k < rank; k++)
        dims[k] = flat ? shape_count(x) : x->dims[k];
    n = dims[axis];
    dims[axis] = -1;
    int64_t list = -1;
    if ((err = out_at_most(c, 0, x->dtype, rank, dims, shape_count(x))) != YK_OK ||
        (err = out_at_most(c, 1, DT_I64, 1, &list, n)) != YK_OK || (err = out_at_most(c, 2, DT_I64, 1, &n, n)) != YK_OK)
        return err;
    return out_at_most(c, 3, DT_I64, 1, &list, n);
}

/* NonMaxSuppression-11 */
yk_err op_rule_nms(struct op_ctx *c)
{
    const struct shape *boxes = c->in[0], *scores = c->in[1];
    int64_t centre, each, most, dims[2] = {-1, 3};
    yk_err err;
    if ((err = op_want(c, 0, OP_BIT(DT_F32))) != YK_OK || (err = op_want(c, 1, OP_BIT(DT_F32))) != YK_OK ||
        (err = op_want_rank(c, 0, 3, 3)) != YK_OK || (err = op_want_rank(c, 1, 3, 3)) != YK_OK ||
        (err = op_want(c, 2, OP_BIT(DT_I64))) != YK_OK || (err = op_want(c, 3, OP_BIT(DT_F32))) != YK_OK ||
        (err = op_want(c, 4, OP_BIT(DT_F32))) != YK_OK || (err = op_attr_i(c, "center_point_box", 0, &centre)) != YK_OK)
        return err;
    if (centre != 0 && centre != 1)
        return yk_fail(c->why, YK_INVAL, "attribute center_point_box is neither 0 nor 1");
    if (boxes->dims[2] != 4)
        return yk_fail(c->why, YK_INVAL, "boxes have %lld numbers each, want 4", (long long)boxes->dims[2]);
    if (boxes->dims[0] != scores->dims[0] || boxes->dims[1] != scores->dims[2])
        return yk_fail(c->why, YK_INVAL, "%lld x %lld boxes, but scores for %lld x %lld", (long long)boxes->dims[0],
            (long long)boxes->dims[1], (long long)scores->dims[0], (long long)scores->dims[2]);
    for (int i = 2; i < c->n_in; i++)
        if (c->in[i] && !op_is_scalar(c->in[i]))
            return yk_fail(c->why, YK_INVAL, "input %d is not a scalar", i);
    each = boxes->dims[1];
    if (c->n_in < 3 || !c->in[2])
        each = 0; /* the default of max_output_boxes_per_class */
    else if (c->content[2])
        each = YK_MIN(each, YK_MAX(c->content[2][0], 0));
    if (!yk_mul_i64(scores->dims[0] * scores->dims[1], each, &most) || !yk_mul_i64(most, 3, &most))
        return yk_fail(c->why, YK_LIMIT, "output 0 is too large");
    return out_at_most(c, 0, DT_I64, 2, dims, most);
}

/* TopK-11 */
yk_err op_rule_topk(struct op_ctx *c)
{
    const int64_t *k;
    int64_t flag;
    int n, axis;
    yk_err err;
    if ((err = op_want(c, 0, OP_NUMERIC)) != YK_OK || (err = op_want(c, 1, OP_BIT(DT_I64))) != YK_OK ||
        (err = op_attr_axis(c, -1, c->in[0]->rank, &axis)) != YK_OK ||
        (err = op_attr_i(c, "largest", 1, &flag)) != YK_OK || (err = op_attr_i(c, "sorted", 1, &flag)) != YK_OK ||
        (err = op_ints(c, 1, "K", &k, &n)) != YK_OK)
        return err;
    if (n != 1)
        return yk_fail(c->why, YK_INVAL, "K (input 1) is not one integer");
    if (k[0] < 0 || k[0] > c->in[0]->dims[axis])
        return yk_fail(
            c->why, YK_INVAL, "K is %lld for axis %d of %lld", (long long)k[0], axis, (long long)c->in[0]->dims[axis]);
    struct shape s = *c->in[0];
    s.dims[axis] = k[0];
    op_out_like(c, 0, &s, s.dtype);
    op_out_like(c, 1, &s, DT_I64);
    return YK_OK;
}

/* About log2(n) comparisons an element. */
double op_flops_sort(const struct op_ctx *c)
{
    double n = (double)shape_count(c->in[0]), steps = 1;
    for (double left = n; left > 2; left /= 2)
        steps++;
    return n * steps;
}

/* Every box against those that were chosen. */
double op_flops_nms(const struct op_ctx *c)
{
    return (double)shape_count(c->in[1]) * (double)c->in[0]->dims[1] * 10;
}
