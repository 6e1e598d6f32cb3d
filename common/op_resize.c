#include "common/op_resize.h"

#include <math.h>
#include <string.h>

#include "common/op_rules.h"

/* A string attribute out of a list; index 0 is the default. */
static yk_err choice(const struct node *n, const char *name, const char *const *names, int count, int otherwise,
    int *out, struct yk_diag *why)
{
    const struct attr *a = node_attr(n, name);
    *out = otherwise;
    if (!a)
        return YK_OK;
    for (int i = 0; a->kind == ATTR_STRING && i < count; i++)
        if (strcmp(a->s, names[i]) == 0) {
            *out = i;
            return YK_OK;
        }
    return yk_fail(why, YK_INVAL, "attribute %s has no known value%s%.40s", name, a->kind == ATTR_STRING ? ": " : "",
        a->kind == ATTR_STRING ? a->s : "");
}

static yk_err number(const struct node *n, const char *name, float otherwise, float *out, struct yk_diag *why)
{
    const struct attr *a = node_attr(n, name);
    if (a && a->kind != ATTR_FLOAT)
        return yk_fail(why, YK_INVAL, "attribute %s is not a number", name);
    *out = a ? a->f : otherwise;
    return YK_OK;
}

yk_err op_resize_attrs(const struct node *n, struct resize_attrs *out, struct yk_diag *why)
{
    static const char *const modes[] = {"nearest", "linear", "cubic"};
    static const char *const rounds[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
    static const char *const coords[] = {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_half_pixel_for_nn", "tf_crop_and_resize"};
    struct resize_attrs a = {.mode = RESIZE_NEAREST};
    int mode, round, coord;
    yk_err err;
    if ((err = choice(n, "mode", modes, YK_COUNT(modes), RESIZE_NEAREST, &mode, why)) != YK_OK ||
        (err = choice(n, "nearest_mode", rounds, YK_COUNT(rounds), RESIZE_PREFER_FLOOR, &round, why)) != YK_OK ||
        (err = choice(n, "coordinate_transformation_mode", coords, YK_COUNT(coords), RESIZE_HALF_PIXEL, &coord, why)) !=
            YK_OK ||
        (err = number(n, "cubic_coeff_a", -0.75f, &a.cubic_a, why)) != YK_OK ||
        (err = number(n, "extrapolation_value", 0, &a.extrapolation, why)) != YK_OK)
        return err;
    const struct attr *exclude = node_attr(n, "exclude_outside");
    if (exclude && exclude->kind != ATTR_INT)
        return yk_fail(why, YK_INVAL, "attribute exclude_outside is not an integer");
    a.mode = (enum resize_mode)mode;
    a.round = (enum resize_round)round;
    a.coord = (enum resize_coord)coord;
    a.exclude_outside = exclude && exclude->i != 0;
    *out = a;
    return YK_OK;
}

/* The coordinate in the input that output element i stands for. */
static double coordinate(const struct resize_attrs *a, const struct resize_axis *x, int64_t i)
{
    double at = (double)i, in = (double)x->in, out = (double)x->out;
    switch (a->coord) {
    case RESIZE_PYTORCH_HALF_PIXEL:
        if (x->out <= 1)
            return 0;
        /* fall through */
    case RESIZE_HALF_PIXEL:
        return (x->exact ? (at + 0.5) * in / out : (at + 0.5) / x->scale) - 0.5;
    case RESIZE_TF_HALF_PIXEL_FOR_NN:
        return x->exact ? (at + 0.5) * in / out : (at + 0.5) / x->scale;
    case RESIZE_ASYMMETRIC:
        return x->exact ? at * in / out : at / x->scale;
    case RESIZE_ALIGN_CORNERS:
        return x->out <= 1 ? 0 : at * (in - 1) / (out - 1);
    case RESIZE_TF_CROP:
        return x->out > 1 ? x->roi_begin * (in - 1) + at * (x->roi_end - x->roi_begin) * (in - 1) / (out - 1)
                          : 0.5 * (x->roi_begin + x->roi_end) * (in - 1);
    }
    return at;
}

static int64_t clamp(double v, int64_t n)
{
    return !(v > 0) ? 0 : v >= (double)n ? n - 1 : (int64_t)v;
}

/* Which element is nearest is decided in f32 where a scale was given, as exporters and runtimes do: in exact numbers
 * 3 / 0.6f is less than 5. */
static double coordinate_f32(const struct resize_attrs *a, const struct resize_axis *x, int64_t i)
{
    float scale = (float)x->scale, at = (float)i;
    if (x->exact || a->coord == RESIZE_ALIGN_CORNERS || a->coord == RESIZE_TF_CROP ||
        (a->coord == RESIZE_PYTORCH_HALF_PIXEL && x->out <= 1))
        return (double)(float)coordinate(a, x, i);
    if (a->coord == RESIZE_ASYMMETRIC)
        return (double)(at / scale);
    float half = (at + 0.5f) / scale;
    return (double)(a->coord == RESIZE_TF_HALF_PIXEL_FOR_NN ? half : half - 0.5f);
}

static int64_t nearest(enum resize_round round, double v, int64_t n)
{
    switch (round) {
    case RESIZE_PREFER_FLOOR:
        return clamp(ceil(v - 0.5), n);
    case RESIZE_PREFER_CEIL:
        return clamp(floor(v + 0.5), n);
    case RESIZE_FLOOR:
        return clamp(floor(v), n);
    case RESIZE_CEIL:
        return clamp(ceil(v), n);
    }
    return 0;
}

/* Keys' kernel around floor(at): the elements -1, 0, 1, 2 from there. */
static void cubic(const struct resize_attrs *attrs, double at, int64_t n, struct resize_at *out)
{
    double a = (double)attrs->cubic_a, first = floor(at), t = at - first, sum = 0;
    out->taps = 4;
    out->weight[0] = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a;
    out->weight[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
    out->weight[2] = ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1;
    out->weight[3] = ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a;
    for (int k = 0; k < 4; k++) {
        double p = first + k - 1;
        if (attrs->exclude_outside && (p < 0 || p >= (double)n))
            out->weight[k] = 0;
        out->index[k] = clamp(p, n);
        sum += out->weight[k];
    }
    for (int k = 0; k < 4 && attrs->exclude_outside && sum != 0; k++)
        out->weight[k] /= sum;
}

bool op_resize_at(const struct resize_attrs *a, const struct resize_axis *x, int64_t i, struct resize_at *out)
{
    double at = coordinate(a, x, i), last = (double)(x->in - 1);
    bool inside = a->coord != RESIZE_TF_CROP || (at >= 0 && at <= last);
    if (!isfinite(at))
        at = 0;
    if (a->mode == RESIZE_NEAREST) {
        out->taps = 1;
        at = coordinate_f32(a, x, i);
        out->index[0] = nearest(a->round, isfinite(at) ? at : 0, x->in);
        out->weight[0] = 1;
    } else if (a->mode == RESIZE_LINEAR) { /* outside, the edge goes on */
        at = at < 0 ? 0 : at > last ? last : at;
        double first = floor(at);
        out->taps = at > first ? 2 : 1;
        out->index[0] = clamp(first, x->in);
        out->index[1] = clamp(first + 1, x->in);
        out->weight[0] = 1 - (at - first);
        out->weight[1] = at - first;
    } else {
        cubic(a, at, x->in, out);
    }
    return inside;
}

bool op_resize_is_copy(const struct resize_attrs *a, const struct resize_axis *x)
{
    if (x->in != x->out || a->coord == RESIZE_TF_HALF_PIXEL_FOR_NN)
        return false;
    if (a->coord == RESIZE_TF_CROP)
        return x->roi_begin == 0 && x->roi_end == 1;
    return x->exact || x->scale == 1 || a->coord == RESIZE_ALIGN_CORNERS;
}

/* The list input i is there and not empty; it then has n elements. */
static yk_err list(const struct op_ctx *c, int i, int64_t n, const char *what, bool *there)
{
    *there = i < c->n_in && c->in[i] && shape_count(c->in[i]) > 0;
    if (*there && (c->in[i]->rank != 1 || c->in[i]->dims[0] != n))
        return yk_fail(c->why, YK_INVAL, "%s (input %d) is not a list of %lld numbers", what, i, (long long)n);
    return YK_OK;
}

/* Resize-13: X, [roi], [scales], [sizes]. */
yk_err op_rule_resize(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    struct resize_attrs a;
    bool roi, scales, sizes;
    yk_err err;
    if ((err = op_resize_attrs(c->node, &a, c->why)) != YK_OK ||
        (err = op_want(c, RESIZE_ROI, OP_BIT(DT_F32) | OP_BIT(DT_F64) | OP_BIT(DT_F16))) != YK_OK ||
        (err = op_want(c, RESIZE_SCALES, OP_BIT(DT_F32))) != YK_OK ||
        (err = op_want(c, RESIZE_SIZES, OP_BIT(DT_I64))) != YK_OK ||
        (err = list(c, RESIZE_ROI, 2 * x->rank, "roi", &roi)) != YK_OK ||
        (err = list(c, RESIZE_SCALES, x->rank, "scales", &scales)) != YK_OK ||
        (err = list(c, RESIZE_SIZES, x->rank, "sizes", &sizes)) != YK_OK)
        return err;
    if (x->rank > 0 && scales == sizes)
        return yk_fail(c->why, YK_INVAL, scales ? "both scales and sizes are given" : "neither scales nor sizes given");
    if (a.coord == RESIZE_TF_CROP && !roi)
        return yk_fail(c->why, YK_INVAL, "tf_crop_and_resize without roi");
    if (a.mode != RESIZE_NEAREST && x->dtype == DT_BOOL)
        return yk_fail(c->why, YK_INVAL, "a bool tensor has no values between its elements: use mode nearest");
    int64_t dims[YK_MAX_RANK];
    const int64_t *want = NULL;
    int n = 0;
    if (sizes && (err = op_ints(c, RESIZE_SIZES, "sizes", &want, &n)) != YK_OK)
        return err;
    for (int i = 0; i < x->rank; i++) {
        double scale;
        if (sizes) {
            dims[i] = want[i];
        } else {
            if (!op_number(c, RESIZE_SCALES, i, &scale))
                return yk_fail(c->why, YK_DEPENDS, "scales (input 2) depend on data");
            if (!(scale > 0) || !isfinite(scale))
                return yk_fail(c->why, YK_INVAL, "scale %g of axis %d is not a positive number", scale, i);
            /* As exporters and runtimes compute it: in f32. */
            float size = floorf((float)x->dims[i] * (float)scale);
            if (!(size <= (float)YK_MAX_COUNT))
                return yk_fail(c->why, YK_LIMIT, "axis %d would have %g elements", i, (double)size);
            dims[i] = (int64_t)size;
        }
        if (dims[i] < 0)
            return yk_fail(c->why, YK_INVAL, "sizes (input 3) has %lld for axis %d", (long long)dims[i], i);
        if (x->dims[i] == 0 && dims[i] > 0)
            return yk_fail(c->why, YK_INVAL, "axis %d is empty and cannot be resized to %lld", i, (long long)dims[i]);
    }
    op_out(c, 0, x->dtype, x->rank, dims);
    return YK_OK;
}

double op_flops_resize(const struct op_ctx *c)
{
    struct resize_attrs a;
    if (op_resize_attrs(c->node, &a, NULL))
        return 0;
    double taps = 1;
    for (int i = 0; i < c->in[0]->rank && i < c->out[0].rank; i++)
        if (c->in[0]->dims[i] != c->out[0].dims[i])
            taps *= a.mode == RESIZE_NEAREST ? 1 : a.mode == RESIZE_LINEAR ? 2 : 4;
    return (double)YK_MAX(shape_count(&c->out[0]), 0) * (a.mode == RESIZE_NEAREST ? 0 : 2 * taps);
}
