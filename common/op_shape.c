/* Shape rules of ops that change or make shapes without touching elements. */
#include <string.h>

#include "common/op_rules.h"

yk_err op_rule_identity(struct op_ctx *c)
{
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    op_content_copy(c, 0, 0);
    return YK_OK;
}

/* Dropout-13: whether it trains may depend on data. */
yk_err op_rule_dropout(struct op_ctx *c)
{
    yk_err err;
    for (int i = 1; i < c->n_in; i++)
        if (c->in[i] && !op_is_scalar(c->in[i]))
            return yk_fail(c->why, YK_INVAL, "input %d is not a scalar", i);
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want(c, 1, OP_FLOATS)) != YK_OK ||
        (err = op_want(c, 2, OP_BIT(DT_BOOL))) != YK_OK)
        return err;
    op_out_like(c, 0, c->in[0], c->in[0]->dtype);
    op_out_like(c, 1, c->in[0], DT_BOOL);
    return YK_OK;
}

yk_err op_rule_cast(struct op_ctx *c)
{
    int64_t to;
    yk_err err = op_attr_i(c, "to", 0, &to);
    if (err)
        return err;
    enum dtype t = dtype_from_onnx(to);
    if (t == DT_NONE)
        return yk_fail(c->why, YK_UNSUPPORTED, "cast to data type %lld", (long long)to);
    op_out_like(c, 0, c->in[0], t);
    op_content_cast(c);
    return YK_OK;
}

yk_err op_rule_flatten(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    int64_t axis, dims[2] = {1, 1};
    yk_err err = op_attr_i(c, "axis", 1, &axis);
    if (err)
        return err;
    if (axis < -(int64_t)x->rank || axis > x->rank)
        return yk_fail(c->why, YK_INVAL, "axis %lld is out of range for %d axes", (long long)axis, x->rank);
    if (axis < 0)
        axis += x->rank;
    for (int i = 0; i < x->rank; i++)
        if (!yk_mul_i64(dims[i >= axis], x->dims[i], &dims[i >= axis]))
            return yk_fail(c->why, YK_LIMIT, "too large");
    op_out(c, 0, x->dtype, 2, dims);
    op_content_copy(c, 0, 0);
    return YK_OK;
}

/* The rank that a shape input asks for. */
static yk_err wanted_rank(const struct op_ctx *c, int i, int n)
{
    if (c->in[i]->rank != 1)
        return yk_fail(c->why, YK_INVAL, "the shape (input %d) does not have one axis", i);
    return n <= YK_MAX_RANK ? YK_OK : yk_fail(c->why, YK_LIMIT, "a shape of %d axes, the limit is %d", n, YK_MAX_RANK);
}

yk_err op_rule_reshape(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    const int64_t *v;
    int64_t allow_zero, dims[YK_MAX_RANK], product = 1, count = shape_count(x);
    int n, free_axis = -1;
    yk_err err;
    if ((err = op_attr_i(c, "allowzero", 0, &allow_zero)) != YK_OK || (err = op_ints(c, 1, "shape", &v, &n)) != YK_OK ||
        (err = wanted_rank(c, 1, n)) != YK_OK)
        return err;
    for (int i = 0; i < n; i++) {
        dims[i] = v[i];
        if (v[i] == -1) {
            if (free_axis >= 0)
                return yk_fail(c->why, YK_INVAL, "two sizes of the shape are -1");
            free_axis = i;
            continue;
        }
        if (v[i] == 0 && !allow_zero) {
            if (i >= x->rank)
                return yk_fail(c->why, YK_INVAL, "size %d of the shape is 0, but the input has %d axes", i, x->rank);
            dims[i] = x->dims[i];
        }
        if (dims[i] < 0)
            return yk_fail(c->why, YK_INVAL, "size %d of the shape is %lld", i, (long long)v[i]);
        if (!yk_mul_i64(product, dims[i], &product))
            return yk_fail(c->why, YK_LIMIT, "too large");
    }
    if (free_axis >= 0) {
        if (product == 0 || count % product != 0)
            return yk_fail(
                c->why, YK_INVAL, "%lld elements do not divide by %lld", (long long)count, (long long)product);
        dims[free_axis] = count / product;
    } else if (product != count) {
        return yk_fail(
            c->why, YK_INVAL, "%lld elements do not fit a shape of %lld", (long long)count, (long long)product);
    }
    op_out(c, 0, x->dtype, n, dims);
    op_content_copy(c, 0, 0);
    return YK_OK;
}

yk_err op_rule_transpose(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    const struct attr *perm = node_attr(c->node, "perm");
    bool seen[YK_MAX_RANK] = {false};
    int64_t dims[YK_MAX_RANK];
    if (perm && (perm->kind != ATTR_INTS || perm->n != (size_t)x->rank))
        return yk_fail(c->why, YK_INVAL, "attribute perm does not have %d axes", x->rank);
    for (int i = 0; i < x->rank; i++) {
        int64_t from = perm ? perm->ints[i] : x->rank - 1 - i;
        if (from < 0 || from >= x->rank || seen[from])
            return yk_fail(c->why, YK_INVAL, "attribute perm is not a permutation");
        seen[from] = true;
        dims[i] = x->dims[from];
    }
    op_out(c, 0, x->dtype, x->rank, dims);
    if (x->rank <= 1)
        op_content_copy(c, 0, 0);
    return YK_OK;
}

yk_err op_rule_squeeze(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    bool gone[YK_MAX_RANK] = {false};
    int64_t dims[YK_MAX_RANK];
    int n = 0, axis, rank = 0;
    yk_err err;
    if (c->n_in > 1 && c->in[1]) {
        const int64_t *v;
        if ((err = op_ints(c, 1, "axes", &v, &n)) != YK_OK)
            return err;
        for (int i = 0; i < n; i++) {
            if ((err = op_axis(v[i], x->rank, &axis, c->why)) != YK_OK)
                return err;
            if (gone[axis] || x->dims[axis] != 1)
                return yk_fail(c->why, YK_INVAL, "axis %d cannot be squeezed", axis);
            gone[axis] = true;
        }
    } else {
        for (int i = 0; i < x->rank; i++)
            gone[i] = x->dims[i] == 1;
    }
    for (int i = 0; i < x->rank; i++)
        if (!gone[i])
            dims[rank++] = x->dims[i];
    op_out(c, 0, x->dtype, rank, dims);
    op_content_copy(c, 0, 0);
    return YK_OK;
}

yk_err op_rule_unsqueeze(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    const int64_t *v;
    bool made[YK_MAX_RANK] = {false};
    int64_t dims[YK_MAX_RANK];
    int n, axis, from = 0;
    yk_err err = op_ints(c, 1, "axes", &v, &n);
    if (err)
        return err;
    int rank = x->rank + n;
    if (rank > YK_MAX_RANK)
        return yk_fail(c->why, YK_LIMIT, "%d axes, the limit is %d", rank, YK_MAX_RANK);
    for (int i = 0; i < n; i++) {
        if ((err = op_axis(v[i], rank, &axis, c->why)) != YK_OK)
            return err;
        if (made[axis])
            return yk_fail(c->why, YK_INVAL, "axis %d is made twice", axis);
        made[axis] = true;
    }
    for (int i = 0; i < rank; i++)
        dims[i] = made[i] ? 1 : x->dims[from++];
    op_out(c, 0, x->dtype, rank, dims);
    op_content_copy(c, 0, 0);
    return YK_OK;
}

/* Shape-15 with start and end. */
yk_err op_rule_shape(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    int64_t start, end;
    yk_err err;
    if ((err = op_attr_i(c, "start", 0, &start)) != YK_OK || (err = op_attr_i(c, "end", x->rank, &end)) != YK_OK)
        return err;
    start = start < 0 ? start + x->rank : start;
    end = end < 0 ? end + x->rank : end;
    start = YK_MIN(YK_MAX(start, 0), x->rank);
    end = YK_MIN(YK_MAX(end, 0), x->rank);
    int64_t n = YK_MAX(end - start, 0);
    op_out(c, 0, DT_I64, 1, &n);
    for (int64_t i = 0; i < n; i++)
        c->out_content[0][i] = x->dims[start + i];
    c->out_known[0] = true;
    return YK_OK;
}

yk_err op_rule_size(struct op_ctx *c)
{
    op_out(c, 0, DT_I64, 0, NULL);
    c->out_content[0][0] = shape_count(c->in[0]);
    c->out_known[0] = true;
    return YK_OK;
}

yk_err op_rule_constant(struct op_ctx *c)
{
    const struct node *n = c->node;
    const struct attr *a = n->n_attr == 1 ? &n->attr[0] : NULL;
    int64_t count = a ? (int64_t)a->n : 0;
    if (a && strcmp(a->name, "value") == 0 && a->kind == ATTR_TENSOR && a->tensor) {
        op_out_like(c, 0, &a->tensor->shape, a->tensor->shape.dtype);
        op_content_tensor(c, a->tensor);
    } else if (a && strcmp(a->name, "value_int") == 0 && a->kind == ATTR_INT) {
        op_out(c, 0, DT_I64, 0, NULL);
        c->out_content[0][0] = a->i;
        c->out_known[0] = true;
    } else if (a && strcmp(a->name, "value_ints") == 0 && a->kind == ATTR_INTS) {
        op_out(c, 0, DT_I64, 1, &count);
        c->out_known[0] = count <= OP_MAX_CONTENT;
        for (int64_t i = 0; i < count && count <= OP_MAX_CONTENT; i++)
            c->out_content[0][i] = a->ints[i];
    } else if (a && strcmp(a->name, "value_float") == 0 && a->kind == ATTR_FLOAT) {
        op_out(c, 0, DT_F32, 0, NULL);
    } else if (a && strcmp(a->name, "value_floats") == 0 && a->kind == ATTR_FLOATS) {
        op_out(c, 0, DT_F32, 1, &count);
    } else {
        return yk_fail(c->why, YK_UNSUPPORTED, "needs one of value, value_int(s), value_float(s)");
    }
    return YK_OK;
}

yk_err op_rule_constant_of_shape(struct op_ctx *c)
{
    const struct attr *a = node_attr(c->node, "value");
    const struct value *t = a && a->kind == ATTR_TENSOR ? a->tensor : NULL;
    const int64_t *v;
    int n;
    yk_err err;
    if (a && (!t || !t->data || shape_count(&t->shape) != 1))
        return yk_fail(c->why, YK_INVAL, "attribute value is not a tensor of one element");
    if ((err = op_ints(c, 0, "shape", &v, &n)) != YK_OK || (err = wanted_rank(c, 0, n)) != YK_OK)
        return err;
    for (int i = 0; i < n; i++)
        if (v[i] < 0)
            return yk_fail(c->why, YK_INVAL, "size %d of the shape is %lld", i, (long long)v[i]);
    op_out(c, 0, t ? t->shape.dtype : DT_F32, n, v);
    int64_t count = shape_count(&c->out[0]);
    if (t && count >= 0 && count <= OP_MAX_CONTENT && (dtype_is_int(t->shape.dtype) || t->shape.dtype == DT_BOOL)) {
        for (int64_t i = 0; i < count; i++)
            c->out_content[0][i] = dtype_read_int(t->shape.dtype, t->data, 0);
        c->out_known[0] = true;
    }
    return YK_OK;
}

/* How many steps from start to limit, for integers, without overflow. */
static bool range_count(int64_t start, int64_t limit, int64_t delta, int64_t *n)
{
    if (delta == 0)
        return false;
    if (delta > 0 ? start >= limit : start <= limit) {
        *n = 0;
        return true;
    }
    uint64_t span = delta > 0 ? (uint64_t)limit - (uint64_t)start : (uint64_t)start - (uint64_t)limit;
    uint64_t step = delta > 0 ? (uint64_t)delta : 0 - (uint64_t)delta;
    uint64_t count = (span - 1) / step + 1;
    *n = (int64_t)count;
    return count <= INT64_MAX;
}

yk_err op_rule_range(struct op_ctx *c)
{
    enum dtype t = c->in[0]->dtype;
    int64_t n = 0;
    double v[3];
    yk_err err = op_want(c, 0, OP_BIT(DT_F32) | OP_BIT(DT_F64) | OP_BIT(DT_I16) | OP_INDEX);
    for (int i = 0; !err && i < 3; i++) {
        err = op_want_same(c, 0, i);
        if (!err && !op_is_scalar(c->in[i]))
            err = yk_fail(c->why, YK_INVAL, "input %d is not a scalar", i);
        if (!err && !op_const_scalar(c, i, &v[i]))
            err = yk_fail(c->why, YK_DEPENDS, "input %d depends on data", i);
    }
    if (err)
        return err;
    if (dtype_is_int(t)) {
        if (!range_count(c->content[0][0], c->content[1][0], c->content[2][0], &n))
            return yk_fail(c->why, YK_INVAL, "delta is 0 or the range is too long");
    } else {
        double count = (v[1] - v[0]) / v[2];
        if (!(count > -1e18 && count < 1e15)) /* NaN too */
            return yk_fail(c->why, YK_INVAL, "delta is 0 or the range is too long");
        n = (int64_t)count;
        if ((double)n < count)
            n++;
        n = YK_MAX(n, 0);
    }
    op_out(c, 0, t, 1, &n);
    if (dtype_is_int(t) && n <= OP_MAX_CONTENT) {
        for (int64_t i = 0; i < n; i++)
            c->out_content[0][i] = c->content[0][0] + i * c->content[2][0];
        c->out_known[0] = true;
    }
    return YK_OK;
}
