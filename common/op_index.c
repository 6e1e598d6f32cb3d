/* Shape rules of ops that move elements: joining, splitting, picking, repeating, padding. */
#include <string.h>

#include "common/op_rules.h"

yk_err op_rule_concat(struct op_ctx *c)
{
    int axis;
    yk_err err;
    if (!node_attr(c->node, "axis"))
        return yk_fail(c->why, YK_INVAL, "attribute axis is missing");
    if ((err = op_attr_axis(c, 0, c->in[0]->rank, &axis)) != YK_OK)
        return err;
    struct shape out = *c->in[0];
    for (int i = 1; i < c->n_in; i++) {
        const struct shape *s = c->in[i];
        if ((err = op_want_same(c, 0, i)) != YK_OK)
            return err;
        if (s->rank != out.rank)
            return yk_fail(c->why, YK_INVAL, "inputs 0 and %d have %d and %d axes", i, out.rank, s->rank);
        for (int k = 0; k < out.rank; k++)
            if (k != axis && s->dims[k] != out.dims[k])
                return yk_fail(c->why, YK_INVAL, "inputs 0 and %d differ in axis %d (%lld, %lld)", i, k,
                    (long long)out.dims[k], (long long)s->dims[k]);
        if (!yk_add_i64(out.dims[axis], s->dims[axis], &out.dims[axis]))
            return yk_fail(c->why, YK_LIMIT, "too large");
    }
    op_out_like(c, 0, &out, out.dtype);
    if (out.rank == 1 && out.dims[0] <= OP_MAX_CONTENT) {
        int64_t n = 0;
        for (int i = 0; i < c->n_in; i++) {
            if (!c->content[i] && c->in[i]->dims[0] > 0)
                return YK_OK;
            for (int64_t k = 0; k < c->in[i]->dims[0]; k++)
                c->out_content[0][n++] = c->content[i][k];
        }
        c->out_known[0] = dtype_is_int(out.dtype) || out.dtype == DT_BOOL;
    }
    return YK_OK;
}

yk_err op_rule_split(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    const int64_t *v = NULL;
    int64_t sum = 0;
    int axis, n = 0;
    yk_err err = op_attr_axis(c, 0, x->rank, &axis);
    if (err)
        return err;
    if (c->n_in > 1 && c->in[1]) {
        if ((err = op_ints(c, 1, "split", &v, &n)) != YK_OK)
            return err;
        if (n != c->n_out)
            return yk_fail(c->why, YK_INVAL, "%d sizes for %d outputs", n, c->n_out);
        for (int i = 0; i < n; i++)
            if (v[i] < 0 || !yk_add_i64(sum, v[i], &sum))
                return yk_fail(c->why, YK_INVAL, "size %d of split is %lld", i, (long long)v[i]);
        if (sum != x->dims[axis])
            return yk_fail(c->why, YK_INVAL, "split adds up to %lld, axis %d has %lld", (long long)sum, axis,
                (long long)x->dims[axis]);
    } else if (x->dims[axis] % c->n_out != 0) {
        return yk_fail(c->why, YK_INVAL, "axis %d of %lld does not split into %d equal parts", axis,
            (long long)x->dims[axis], c->n_out);
    }
    int64_t at = 0;
    for (int i = 0; i < c->n_out; i++) {
        struct shape s = *x;
        s.dims[axis] = v ? v[i] : x->dims[axis] / c->n_out;
        op_out_like(c, i, &s, s.dtype);
        if (x->rank == 1 && c->content[0]) {
            for (int64_t k = 0; k < s.dims[0]; k++)
                c->out_content[i][k] = c->content[0][at + k];
            c->out_known[i] = true;
        }
        at += s.dims[axis];
    }
    return YK_OK;
}

yk_err op_slice_dims(const struct op_ctx *c, struct slice_dims *out)
{
    const struct shape *x = c->in[0];
    const int64_t *starts, *ends, *axes = NULL, *steps = NULL;
    struct slice_dims d;
    bool seen[YK_MAX_RANK] = {false};
    int n, m;
    yk_err err;
    if ((err = op_ints(c, 1, "starts", &starts, &n)) != YK_OK || (err = op_ints(c, 2, "ends", &ends, &m)) != YK_OK)
        return err;
    if (n != m)
        return yk_fail(c->why, YK_INVAL, "%d starts and %d ends", n, m);
    if (c->n_in > 3 && c->in[3]) {
        if ((err = op_ints(c, 3, "axes", &axes, &m)) != YK_OK)
            return err;
        if (n != m)
            return yk_fail(c->why, YK_INVAL, "%d starts and %d axes", n, m);
    }
    if (c->n_in > 4 && c->in[4]) {
        if ((err = op_ints(c, 4, "steps", &steps, &m)) != YK_OK)
            return err;
        if (n != m)
            return yk_fail(c->why, YK_INVAL, "%d starts and %d steps", n, m);
    }
    for (int i = 0; i < x->rank; i++) {
        d.start[i] = 0;
        d.step[i] = 1;
        d.count[i] = x->dims[i];
    }
    for (int i = 0; i < n; i++) {
        int axis;
        if ((err = op_axis(axes ? axes[i] : i, x->rank, &axis, c->why)) != YK_OK)
            return err;
        int64_t step = steps ? steps[i] : 1, size = x->dims[axis];
        if (step == 0 || step == INT64_MIN)
            return yk_fail(c->why, YK_INVAL, "step of axis %d is %lld", axis, (long long)step);
        if (seen[axis])
            return yk_fail(c->why, YK_INVAL, "axis %d is sliced twice", axis);
        seen[axis] = true;
        int64_t start = starts[i] < 0 ? starts[i] + size : starts[i];
        int64_t end = ends[i] < 0 ? ends[i] + size : ends[i];
        int64_t lo = step > 0 ? 0 : -1, hi = step > 0 ? size : size - 1;
        start = YK_MIN(YK_MAX(start, lo), hi);
        end = YK_MIN(YK_MAX(end, lo), hi);
        d.step[axis] = step;
        d.count[axis] = step > 0 ? (end > start ? (end - start - 1) / step + 1 : 0)
                                 : (start > end ? (start - end - 1) / -step + 1 : 0);
        d.start[axis] = d.count[axis] > 0 ? start : 0;
    }
    *out = d;
    return YK_OK;
}

yk_err op_rule_slice(struct op_ctx *c)
{
    struct slice_dims d;
    yk_err err = op_slice_dims(c, &d);
    if (err)
        return err;
    op_out(c, 0, c->in[0]->dtype, c->in[0]->rank, d.count);
    if (c->in[0]->rank == 1 && c->content[0]) {
        for (int64_t i = 0; i < d.count[0]; i++)
            c->out_content[0][i] = c->content[0][d.start[0] + i * d.step[0]];
        c->out_known[0] = true;
    }
    return YK_OK;
}

/* Indices whose contents are known lie in -size..size-1; others are checked by the kernel. */
static yk_err check_indices(const struct op_ctx *c, int i, int64_t size)
{
    int64_t n = shape_count(c->in[i]);
    yk_err err = op_want(c, i, OP_INDEX);
    if (err)
        return err;
    if (size == 0 && n > 0)
        return yk_fail(c->why, YK_INVAL, "indices into an empty axis");
    for (int64_t k = 0; c->content[i] && k < n; k++)
        if (c->content[i][k] < -size || c->content[i][k] >= size)
            return yk_fail(c->why, YK_INVAL, "index %lld is out of range for a size of %lld",
                (long long)c->content[i][k], (long long)size);
    return YK_OK;
}

yk_err op_rule_gather(struct op_ctx *c)
{
    const struct shape *x = c->in[0], *idx = c->in[1];
    int axis, rank = 0;
    int64_t dims[2 * YK_MAX_RANK];
    yk_err err;
    if ((err = op_attr_axis(c, 0, x->rank, &axis)) != YK_OK || (err = check_indices(c, 1, x->dims[axis])) != YK_OK)
        return err;
    for (int i = 0; i < axis; i++)
        dims[rank++] = x->dims[i];
    for (int i = 0; i < idx->rank; i++)
        dims[rank++] = idx->dims[i];
    for (int i = axis + 1; i < x->rank; i++)
        dims[rank++] = x->dims[i];
    op_out(c, 0, x->dtype, rank, dims);
    int64_t n = shape_count(idx);
    if (x->rank == 1 && c->content[0] && c->content[1] && n <= OP_MAX_CONTENT) {
        for (int64_t i = 0; i < n; i++) {
            int64_t at = c->content[1][i];
            c->out_content[0][i] = c->content[0][at < 0 ? at + x->dims[0] : at];
        }
        c->out_known[0] = true;
    }
    return YK_OK;
}

yk_err op_rule_gather_elements(struct op_ctx *c)
{
    const struct shape *x = c->in[0], *idx = c->in[1];
    int axis;
    yk_err err;
    if ((err = op_attr_axis(c, 0, x->rank, &axis)) != YK_OK || (err = check_indices(c, 1, x->dims[axis])) != YK_OK)
        return err;
    if (idx->rank != x->rank)
        return yk_fail(c->why, YK_INVAL, "indices have %d axes, data %d", idx->rank, x->rank);
    for (int i = 0; i < x->rank; i++)
        if (i != axis && idx->dims[i] > x->dims[i])
            return yk_fail(c->why, YK_INVAL, "axis %d of the indices is larger than that of the data", i);
    op_out_like(c, 0, idx, x->dtype);
    return YK_OK;
}

yk_err op_rule_expand(struct op_ctx *c)
{
    const int64_t *v;
    struct shape want = {.dtype = c->in[0]->dtype}, out;
    const struct shape *both[2] = {c->in[0], &want};
    yk_err err = op_ints(c, 1, "shape", &v, &want.rank);
    if (err)
        return err;
    if (c->in[1]->rank != 1 || want.rank > YK_MAX_RANK)
        return yk_fail(c->why, YK_INVAL, "the shape is not a list of at most %d sizes", YK_MAX_RANK);
    for (int i = 0; i < want.rank; i++) {
        if (v[i] < 0)
            return yk_fail(c->why, YK_INVAL, "size %d of the shape is %lld", i, (long long)v[i]);
        want.dims[i] = v[i];
    }
    if ((err = op_broadcast(both, 2, &out, c->why)) != YK_OK)
        return err;
    op_out_like(c, 0, &out, out.dtype);
    int64_t n = shape_count(&out);
    if (c->content[0] && n >= 0 && n <= OP_MAX_CONTENT && (shape_count(c->in[0]) == 1 || n == shape_count(c->in[0]))) {
        for (int64_t i = 0; i < n; i++)
            c->out_content[0][i] = c->content[0][shape_count(c->in[0]) == 1 ? 0 : i];
        c->out_known[0] = true;
    }
    return YK_OK;
}

yk_err op_rule_tile(struct op_ctx *c)
{
    const int64_t *v;
    int n;
    struct shape out = *c->in[0];
    yk_err err = op_ints(c, 1, "repeats", &v, &n);
    if (err)
        return err;
    if (n != out.rank)
        return yk_fail(c->why, YK_INVAL, "%d repeats for %d axes", n, out.rank);
    for (int i = 0; i < n; i++)
        if (v[i] < 0 || !yk_mul_i64(out.dims[i], v[i], &out.dims[i]))
            return yk_fail(c->why, YK_INVAL, "repeat %d is %lld", i, (long long)v[i]);
    op_out_like(c, 0, &out, out.dtype);
    return YK_OK;
}

/* Pad-13. Negative pads cut, in constant mode. */
yk_err op_rule_pad(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    const struct attr *a = node_attr(c->node, "mode");
    const char *mode = !a ? "constant" : a->kind == ATTR_STRING ? a->s : "?";
    const int64_t *v;
    int64_t dims[YK_MAX_RANK];
    int n;
    yk_err err;
    bool constant = strcmp(mode, "constant") == 0, reflect = strcmp(mode, "reflect") == 0;
    if (!constant && !reflect && strcmp(mode, "edge") != 0)
        return yk_fail(c->why, YK_UNSUPPORTED, "attribute mode is none of constant, reflect, edge");
    if ((err = op_ints(c, 1, "pads", &v, &n)) != YK_OK || (err = op_want_same(c, 0, 2)) != YK_OK)
        return err;
    if (n != 2 * x->rank)
        return yk_fail(c->why, YK_INVAL, "%d pads for %d axes", n, x->rank);
    if (c->n_in > 2 && c->in[2] && !op_is_scalar(c->in[2]))
        return yk_fail(c->why, YK_INVAL, "the value to pad with is not a scalar");
    for (int i = 0; i < x->rank; i++) {
        int64_t lo = v[i], hi = v[x->rank + i];
        if (!constant && (lo < 0 || hi < 0))
            return yk_fail(c->why, YK_UNSUPPORTED, "negative pads in mode %s", mode);
        if (!constant && (lo > 0 || hi > 0) && (x->dims[i] < 1 || (reflect && YK_MAX(lo, hi) >= x->dims[i])))
            return yk_fail(
                c->why, YK_INVAL, "axis %d of %lld is too small for mode %s", i, (long long)x->dims[i], mode);
        if (!yk_add_i64(x->dims[i], lo, &dims[i]) || !yk_add_i64(dims[i], hi, &dims[i]))
            return yk_fail(c->why, YK_LIMIT, "too large");
        if (dims[i] < 0)
            return yk_fail(c->why, YK_INVAL, "pads cut more than axis %d has", i);
    }
    op_out(c, 0, x->dtype, x->rank, dims);
    return YK_OK;
}
