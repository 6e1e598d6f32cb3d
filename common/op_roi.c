/* Shape rules of ops that sample or put back by position: GridSample, RoiAlign, MaxRoiPool, MaxUnpool, LpPool,
 * ReverseSequence. */
#include <math.h>
#include <string.h>

#include "common/op_rules.h"

/* A string attribute that is one of the names (absent is fine). */
static yk_err one_of(const struct op_ctx *c, const char *name, const char *const *names, int n)
{
    const struct attr *a = node_attr(c->node, name);
    if (!a)
        return YK_OK;
    for (int i = 0; a->kind == ATTR_STRING && i < n; i++)
        if (strcmp(a->s, names[i]) == 0)
            return YK_OK;
    return yk_fail(c->why, YK_INVAL, "attribute %s has no known value%s%.40s", name, a->kind == ATTR_STRING ? ": " : "",
        a->kind == ATTR_STRING ? a->s : "");
}

static yk_err scale_attr(const struct op_ctx *c)
{
    const struct attr *a = node_attr(c->node, "spatial_scale");
    if (a && (a->kind != ATTR_FLOAT || !isfinite(a->f)))
        return yk_fail(c->why, YK_INVAL, "attribute spatial_scale is not a number");
    return YK_OK;
}

/* Image axes of input 0 hold something where the output does. */
static yk_err not_empty(const struct op_ctx *c)
{
    for (int i = 2; i < c->in[0]->rank; i++)
        if (c->in[0]->dims[i] < 1)
            return yk_fail(c->why, YK_INVAL, "axis %d of input 0 is empty", i);
    return YK_OK;
}

/* GridSample-16: X (N, C, H, W), grid (N, Ho, Wo, 2). */
yk_err op_rule_grid_sample(struct op_ctx *c)
{
    static const char *const modes[] = {"bilinear", "nearest", "bicubic"}, *const pads[] = {
                                                                               "zeros", "border", "reflection"};
    const struct shape *x = c->in[0], *grid = c->in[1];
    int64_t align;
    yk_err err;
    if ((err = op_want(c, 0, OP_NUMERIC)) != YK_OK || (err = op_want(c, 1, OP_FLOATS)) != YK_OK ||
        (err = op_want_rank(c, 0, 4, 4)) != YK_OK || (err = op_want_rank(c, 1, 4, 4)) != YK_OK ||
        (err = one_of(c, "mode", modes, YK_COUNT(modes))) != YK_OK ||
        (err = one_of(c, "padding_mode", pads, YK_COUNT(pads))) != YK_OK ||
        (err = op_attr_i(c, "align_corners", 0, &align)) != YK_OK || (err = not_empty(c)) != YK_OK)
        return err;
    if (grid->dims[0] != x->dims[0] || grid->dims[3] != 2)
        return yk_fail(c->why, YK_INVAL, "the grid is for %lld images with %lld numbers a point, wants %lld with 2",
            (long long)grid->dims[0], (long long)grid->dims[3], (long long)x->dims[0]);
    int64_t dims[4] = {x->dims[0], x->dims[1], grid->dims[1], grid->dims[2]};
    op_out(c, 0, x->dtype, 4, dims);
    return YK_OK;
}

/* Work per output element: 4 or 16 neighbours. */
double op_flops_grid_sample(const struct op_ctx *c)
{
    bool cubic = strcmp(node_attr_s(c->node, "mode", "bilinear"), "bicubic") == 0;
    return (cubic ? 40 : 10) * (double)YK_MAX(shape_count(&c->out[0]), 0);
}

static yk_err positive_attr(const struct op_ctx *c, const char *name, int64_t lo, int64_t otherwise, int64_t *out)
{
    yk_err err = op_attr_i(c, name, otherwise, out);
    if (err)
        return err;
    if (*out < lo || *out > INT32_MAX)
        return yk_fail(c->why, YK_INVAL, "attribute %s is %lld, allowed are %lld to %d", name, (long long)*out,
            (long long)lo, INT32_MAX);
    return YK_OK;
}

/* RoiAlign-16: X (N, C, H, W), rois (R, 4), batch_indices (R). */
yk_err op_rule_roi_align(struct op_ctx *c)
{
    static const char *const modes[] = {"avg", "max"}, *const coords[] = {"half_pixel", "output_half_pixel"};
    const struct shape *x = c->in[0], *rois = c->in[1], *images = c->in[2];
    int64_t h, w, ratio;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want_same(c, 0, 1)) != YK_OK ||
        (err = op_want(c, 2, OP_BIT(DT_I64))) != YK_OK || (err = op_want_rank(c, 0, 4, 4)) != YK_OK ||
        (err = op_want_rank(c, 1, 2, 2)) != YK_OK || (err = op_want_rank(c, 2, 1, 1)) != YK_OK ||
        (err = one_of(c, "mode", modes, YK_COUNT(modes))) != YK_OK ||
        (err = one_of(c, "coordinate_transformation_mode", coords, YK_COUNT(coords))) != YK_OK ||
        (err = scale_attr(c)) != YK_OK || (err = positive_attr(c, "output_height", 1, 1, &h)) != YK_OK ||
        (err = positive_attr(c, "output_width", 1, 1, &w)) != YK_OK ||
        (err = positive_attr(c, "sampling_ratio", 0, 0, &ratio)) != YK_OK || (err = not_empty(c)) != YK_OK)
        return err;
    if (rois->dims[1] != 4 || images->dims[0] != rois->dims[0])
        return yk_fail(c->why, YK_INVAL, "%lld regions of %lld numbers for %lld batch indices, a region has 4",
            (long long)rois->dims[0], (long long)rois->dims[1], (long long)images->dims[0]);
    int64_t dims[4] = {rois->dims[0], x->dims[1], h, w};
    op_out(c, 0, x->dtype, 4, dims);
    return YK_OK;
}

double op_flops_roi_align(const struct op_ctx *c)
{
    double ratio = (double)node_attr_i(c->node, "sampling_ratio", 0);
    return 10 * (ratio > 0 ? ratio * ratio : 4) * (double)YK_MAX(shape_count(&c->out[0]), 0);
}

/* MaxRoiPool-1: X (N, C, H, W), rois (R, 5). */
yk_err op_rule_max_roi_pool(struct op_ctx *c)
{
    const struct shape *x = c->in[0], *rois = c->in[1];
    const struct attr *size = node_attr(c->node, "pooled_shape");
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want_same(c, 0, 1)) != YK_OK ||
        (err = op_want_rank(c, 0, 4, 4)) != YK_OK || (err = op_want_rank(c, 1, 2, 2)) != YK_OK ||
        (err = scale_attr(c)) != YK_OK || (err = not_empty(c)) != YK_OK)
        return err;
    if (rois->dims[1] != 5)
        return yk_fail(c->why, YK_INVAL, "a region has %lld numbers, wants 5", (long long)rois->dims[1]);
    if (!size || size->kind != ATTR_INTS || size->n != 2 || size->ints[0] < 1 || size->ints[0] > INT32_MAX ||
        size->ints[1] < 1 || size->ints[1] > INT32_MAX)
        return yk_fail(c->why, YK_INVAL, "attribute pooled_shape is not a list of 2 positive integers");
    int64_t dims[4] = {rois->dims[0], x->dims[1], size->ints[0], size->ints[1]};
    op_out(c, 0, x->dtype, 4, dims);
    return YK_OK;
}

/* A list attribute of n integers in lo..INT32_MAX. */
static yk_err list_attr(const struct op_ctx *c, const char *name, int n, int64_t lo, bool required, int64_t *out)
{
    const struct attr *a = node_attr(c->node, name);
    if (!a && !required)
        return YK_OK;
    if (!a || a->kind != ATTR_INTS || a->n != (size_t)n)
        return yk_fail(c->why, YK_INVAL, "attribute %s is not a list of %d integers", name, n);
    for (int i = 0; i < n; i++) {
        if (a->ints[i] < lo || a->ints[i] > INT32_MAX)
            return yk_fail(c->why, YK_INVAL, "attribute %s has %lld, allowed are %lld to %d", name,
                (long long)a->ints[i], (long long)lo, INT32_MAX);
        out[i] = a->ints[i];
    }
    return YK_OK;
}

/* MaxUnpool-11: X, indices, [output_shape]. The indices count in the output. */
yk_err op_rule_max_unpool(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    int spatial = x->rank - 2, n = 0;
    int64_t k[YK_MAX_RANK], stride[YK_MAX_RANK], pads[2 * YK_MAX_RANK] = {0}, dims[YK_MAX_RANK];
    const int64_t *want = NULL;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want(c, 1, OP_BIT(DT_I64))) != YK_OK ||
        (err = op_want(c, 2, OP_BIT(DT_I64))) != YK_OK || (err = op_want_rank(c, 0, 3, YK_MAX_RANK)) != YK_OK)
        return err;
    for (int i = 0; i < spatial; i++)
        stride[i] = 1;
    if ((err = list_attr(c, "kernel_shape", spatial, 1, true, k)) != YK_OK ||
        (err = list_attr(c, "strides", spatial, 1, false, stride)) != YK_OK ||
        (err = list_attr(c, "pads", 2 * spatial, 0, false, pads)) != YK_OK)
        return err;
    struct shape like = *x;
    like.dtype = DT_I64;
    if (!shape_equal(&like, c->in[1]))
        return yk_fail(c->why, YK_INVAL, "the indices do not have the shape of X");
    if (c->n_in > 2 && c->in[2]) {
        if ((err = op_ints(c, 2, "output_shape", &want, &n)) != YK_OK)
            return err;
        if (n != x->rank || want[0] != x->dims[0] || want[1] != x->dims[1])
            return yk_fail(c->why, YK_INVAL, "output_shape does not have the batch and the channels of X");
    }
    for (int i = 0; i < x->rank; i++) {
        int64_t size = x->dims[i];
        if (want) {
            size = want[i];
        } else if (i >= 2) {
            if (size < 1)
                return yk_fail(c->why, YK_INVAL, "axis %d is empty", i);
            if (!yk_mul_i64(size - 1, stride[i - 2], &size) || size > YK_MAX_COUNT)
                return yk_fail(c->why, YK_LIMIT, "axis %d is too large", i);
            size += k[i - 2] - pads[i - 2] - pads[spatial + i - 2];
        }
        if (size < 0)
            return yk_fail(c->why, YK_INVAL, "axis %d of the output would have %lld elements", i, (long long)size);
        dims[i] = size;
    }
    op_out(c, 0, x->dtype, x->rank, dims);
    return YK_OK;
}

/* LpPool-11. */
yk_err op_rule_lp_pool(struct op_ctx *c)
{
    int64_t p;
    yk_err err = positive_attr(c, "p", 1, 2, &p);
    return err ? err : op_rule_average_pool(c);
}

/* GlobalLpPool-2. */
yk_err op_rule_global_lp_pool(struct op_ctx *c)
{
    int64_t p;
    yk_err err = positive_attr(c, "p", 1, 2, &p);
    return err ? err : op_rule_global_pool(c);
}

/* ReverseSequence-10: X, sequence_lens (batch). */
yk_err op_rule_reverse_sequence(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    int64_t batch, time;
    yk_err err;
    if ((err = op_want_rank(c, 0, 2, YK_MAX_RANK)) != YK_OK || (err = op_want(c, 1, OP_BIT(DT_I64))) != YK_OK ||
        (err = op_want_rank(c, 1, 1, 1)) != YK_OK || (err = op_attr_i(c, "batch_axis", 1, &batch)) != YK_OK ||
        (err = op_attr_i(c, "time_axis", 0, &time)) != YK_OK)
        return err;
    if ((batch != 0 && batch != 1) || (time != 0 && time != 1) || batch == time)
        return yk_fail(c->why, YK_INVAL, "batch_axis and time_axis are %lld and %lld, want 0 and 1 or 1 and 0",
            (long long)batch, (long long)time);
    if (c->in[1]->dims[0] != x->dims[batch])
        return yk_fail(c->why, YK_INVAL, "%lld sequence_lens for a batch of %lld", (long long)c->in[1]->dims[0],
            (long long)x->dims[batch]);
    op_out_like(c, 0, x, x->dtype);
    return YK_OK;
}
