/* Depthwise convolution and 2-D pooling in f32: whole output rows at a time, one tap after the other, so that each
 * element adds its taps in the order of the kernel. */
#include "kernels/conv.h"
#include "kernels/simd.h"

#include <math.h>
#include <string.h>

/* Outputs whose tap lies inside a row: at * stride + shift in [0, in). */
static inline void inside(int64_t shift, int64_t stride, int64_t in, int64_t out, int64_t *lo, int64_t *hi)
{
    *lo = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *hi = in - shift > 0 ? (in - shift - 1) / stride + 1 : 0;
    *hi = YK_MIN(*hi, out);
    *lo = YK_MIN(*lo, *hi);
}

static inline void row_axpy(float *restrict y, const float *restrict x, float w, int64_t stride, int64_t n)
{
    if (stride == 1)
        for (int64_t i = 0; i < n; i++)
            y[i] += w * x[i];
    else if (stride == 2)
        for (int64_t i = 0; i < n; i++)
            y[i] += w * x[2 * i];
    else
        for (int64_t i = 0; i < n; i++)
            y[i] += w * x[stride * i];
}

/* Three taps in one pass; the same additions in the same order as three row_axpy. */
static inline void row_axpy3(float *restrict y, const float *restrict x, const float *w, int64_t stride, int64_t n)
{
    float w0 = w[0], w1 = w[1], w2 = w[2];
    if (stride == 1)
        for (int64_t i = 0; i < n; i++)
            y[i] = y[i] + w0 * x[i] + w1 * x[i + 1] + w2 * x[i + 2];
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = y[i] + w0 * x[2 * i] + w1 * x[2 * i + 1] + w2 * x[2 * i + 2];
}

static inline void row_max(float *restrict y, const float *restrict x, int64_t stride, int64_t n)
{
    if (stride == 1)
        for (int64_t i = 0; i < n; i++)
            y[i] = y[i] != y[i] || y[i] > x[i] ? y[i] : x[i];
    else if (stride == 2)
        for (int64_t i = 0; i < n; i++)
            y[i] = y[i] != y[i] || y[i] > x[2 * i] ? y[i] : x[2 * i];
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = y[i] != y[i] || y[i] > x[stride * i] ? y[i] : x[stride * i];
}

struct conv_job {
    struct host_call *c;
    struct conv_dims d;
    struct conv_epilogue epilogue;
    bool max, include_pad;
};

/* Input row for output row (a, b) and taps (ka, kb); NULL outside. */
static inline const float *input_row(
    const struct conv_dims *d, const float *x, int64_t a, int64_t b, int64_t ka, int64_t kb)
{
    int64_t i = a * d->stride[0] + ka * d->dilation[0] - d->pad_begin[0];
    int64_t j = b * d->stride[1] + kb * d->dilation[1] - d->pad_begin[1];
    if (i < 0 || i >= d->in[0] || j < 0 || j >= d->in[1])
        return NULL;
    return x + (i * d->in[1] + j) * d->in[2];
}

/* What one row of taps adds to one output row. */
static inline void add_row(const struct conv_dims *d, float *row, const float *from, const float *w)
{
    int64_t lo, hi, stride = d->stride[2];
    if (d->k[2] == 3 && d->dilation[2] == 1 && stride <= 2) {
        /* Columns that see all three taps go in one pass, the few at the ends tap by tap. */
        int64_t first, last, shift = -d->pad_begin[2];
        inside(shift, stride, d->in[2], d->out[2], &first, &hi);
        inside(shift + 2, stride, d->in[2], d->out[2], &lo, &last);
        if (first < last) {
            row_axpy3(row + first, from + first * stride + shift, w, stride, last - first);
            for (int64_t i = 0; i < d->out[2]; i++) {
                if (i == first)
                    i = last;
                for (int64_t kc = 0; i < d->out[2] && kc < 3; kc++) {
                    int64_t at = i * stride + kc + shift;
                    if (at >= 0 && at < d->in[2])
                        row[i] += w[kc] * from[at];
                }
            }
            return;
        }
    }
    for (int64_t kc = 0; kc < d->k[2]; kc++) {
        int64_t shift = kc * d->dilation[2] - d->pad_begin[2];
        inside(shift, stride, d->in[2], d->out[2], &lo, &hi);
        row_axpy(row + lo, from + lo * stride + shift, w[kc], stride, hi - lo);
    }
}

SIMD_CLONES static void depthwise_plane(const struct conv_dims *d, float *y, const float *x, const float *taps)
{
    memset(y, 0, (size_t)(d->out[0] * d->out[1] * d->out[2]) * sizeof(float));
    for (int64_t a = 0; a < d->out[0]; a++)
        for (int64_t b = 0; b < d->out[1]; b++) {
            float *row = y + (a * d->out[1] + b) * d->out[2];
            const float *w = taps;
            for (int64_t ka = 0; ka < d->k[0]; ka++)
                for (int64_t kb = 0; kb < d->k[1]; kb++, w += d->k[2]) {
                    const float *from = input_row(d, x, a, b, ka, kb);
                    if (from)
                        add_row(d, row, from, w);
                }
        }
}

static void depthwise_piece(void *arg, int64_t begin, int64_t end)
{
    const struct conv_job *j = arg;
    const struct conv_dims *d = &j->d;
    int64_t in_plane = d->in[0] * d->in[1] * d->in[2], out_plane = d->out[0] * d->out[1] * d->out[2];
    int64_t taps = d->k[0] * d->k[1] * d->k[2];
    for (int64_t p = begin; p < end; p++) {
        int64_t n = p / d->oc, oc = p % d->oc;
        const float *x = (const float *)j->c->in[0].data + (n * d->c + oc / (d->oc / d->group)) * in_plane;
        float *y = (float *)j->c->out[0].data + p * out_plane;
        depthwise_plane(d, y, x, (const float *)j->c->in[1].data + oc * taps);
        conv_epilogue_row(&j->epilogue, y, oc, p * out_plane, out_plane);
    }
}

static bool claim_depthwise(const struct op_ctx *c)
{
    return simd_claim_f32(c) && c->in[1]->dims[1] == 1 && node_attr_i(c->node, "group", 1) > 1;
}

static yk_err run_depthwise(struct host_call *c)
{
    struct conv_job j = {.c = c};
    yk_err err = conv_setup(c, &j.d, &j.epilogue);
    if (err)
        return err;
    int64_t work = j.d.out[0] * j.d.out[1] * j.d.out[2] * (j.d.k[0] * j.d.k[1] * j.d.k[2] + 2);
    host_split(c, j.d.n * j.d.oc, YK_MAX(work / 4, 1), depthwise_piece, &j);
    return YK_OK;
}

static inline int64_t inside_count(const struct conv_dims *d, int s, int64_t at, bool padded)
{
    int64_t n = 0;
    for (int64_t k = 0; k < d->k[s]; k++) {
        int64_t i = at * d->stride[s] + k * d->dilation[s] - d->pad_begin[s];
        n += padded ? i < d->in[s] + d->pad_end[s] : i >= 0 && i < d->in[s];
    }
    return n;
}

SIMD_CLONES static void pool_plane(const struct conv_job *j, float *y, const float *x)
{
    const struct conv_dims *d = &j->d;
    int64_t lo, hi, out_plane = d->out[0] * d->out[1] * d->out[2];
    for (int64_t i = 0; i < out_plane; i++)
        y[i] = j->max ? -INFINITY : 0;
    for (int64_t a = 0; a < d->out[0]; a++)
        for (int64_t b = 0; b < d->out[1]; b++) {
            float *row = y + (a * d->out[1] + b) * d->out[2];
            for (int64_t ka = 0; ka < d->k[0]; ka++)
                for (int64_t kb = 0; kb < d->k[1]; kb++) {
                    const float *from = input_row(d, x, a, b, ka, kb);
                    for (int64_t kc = 0; from && kc < d->k[2]; kc++) {
                        int64_t shift = kc * d->dilation[2] - d->pad_begin[2];
                        inside(shift, d->stride[2], d->in[2], d->out[2], &lo, &hi);
                        if (j->max)
                            row_max(row + lo, from + lo * d->stride[2] + shift, d->stride[2], hi - lo);
                        else
                            row_axpy(row + lo, from + lo * d->stride[2] + shift, 1, d->stride[2], hi - lo);
                    }
                }
            if (j->max)
                continue;
            int64_t ab = inside_count(d, 0, a, j->include_pad) * inside_count(d, 1, b, j->include_pad);
            for (int64_t i = 0; i < d->out[2]; i++) {
                int64_t count = ab * inside_count(d, 2, i, j->include_pad);
                row[i] = count ? row[i] / (float)count : 0;
            }
        }
}

/* One row of output pixels, channels last; the taps of an element in the same order as above. */
SIMD_CLONES static void pool_pixels(const struct conv_job *j, float *y, const float *x, int64_t oy)
{
    const struct conv_dims *d = &j->d;
    int64_t ch = d->c;
    for (int64_t ox = 0; ox < d->out[2]; ox++, y += ch) {
        for (int64_t i = 0; i < ch; i++)
            y[i] = j->max ? -INFINITY : 0;
        for (int64_t kb = 0; kb < d->k[1]; kb++) {
            const float *line = input_row(d, x, 0, oy, 0, kb);
            if (!line)
                continue;
            line = x + (line - x) * ch;
            for (int64_t kc = 0; kc < d->k[2]; kc++) {
                int64_t at = ox * d->stride[2] + kc * d->dilation[2] - d->pad_begin[2];
                if (at < 0 || at >= d->in[2])
                    continue;
                if (j->max)
                    row_max(y, line + at * ch, 1, ch);
                else
                    row_axpy(y, line + at * ch, 1, 1, ch);
            }
        }
        if (j->max)
            continue;
        int64_t count = inside_count(d, 0, 0, j->include_pad) * inside_count(d, 1, oy, j->include_pad) *
                        inside_count(d, 2, ox, j->include_pad);
        for (int64_t i = 0; i < ch; i++)
            y[i] = count ? y[i] / (float)count : 0;
    }
}

static void pool_pixels_piece(void *arg, int64_t begin, int64_t end)
{
    const struct conv_job *j = arg;
    const struct conv_dims *d = &j->d;
    for (int64_t r = begin; r < end; r++)
        pool_pixels(j, (float *)j->c->out[0].data + r * d->out[2] * d->c,
            (const float *)j->c->in[0].data + r / d->out[1] * d->in[1] * d->in[2] * d->c, r % d->out[1]);
}

static void pool_piece(void *arg, int64_t begin, int64_t end)
{
    const struct conv_job *j = arg;
    const struct conv_dims *d = &j->d;
    int64_t in_plane = d->in[0] * d->in[1] * d->in[2], out_plane = d->out[0] * d->out[1] * d->out[2];
    for (int64_t p = begin; p < end; p++)
        pool_plane(j, (float *)j->c->out[0].data + p * out_plane, (const float *)j->c->in[0].data + p * in_plane);
}

static bool claim_pool(const struct op_ctx *c)
{
    return simd_claim_f32(c) && c->n_out == 1;
}

static yk_err run_pool(struct host_call *c)
{
    struct conv_job j = {.c = c};
    yk_err err = op_conv_dims(c->node, &c->in[0].shape, NULL, &j.d, c->why);
    if (err)
        return err;
    conv_right_align(&j.d);
    j.max = !strcmp(c->node->op->name, "MaxPool");
    j.include_pad = node_attr_i(c->node, "count_include_pad", 0) != 0;
    int64_t work = j.d.out[0] * j.d.out[1] * j.d.out[2] * j.d.k[0] * j.d.k[1] * j.d.k[2];
    if ((c->last_in | c->last_out) & 1)
        host_split(c, j.d.n * j.d.out[1], YK_MAX(work * j.d.c / YK_MAX(j.d.out[1], 1) / 4, 1), pool_pixels_piece, &j);
    else
        host_split(c, j.d.n * j.d.c, YK_MAX(work / 2, 1), pool_piece, &j);
    return YK_OK;
}

#define POOL(name)                                                                                          \
    {                                                                                                       \
        .domain = "", .op = name, .kind = "pool", .claim = claim_pool, .run = run_pool, .layout = HOST_SAME \
    }
#define ROW(dom, name, kind_name, claims, fn)                                    \
    {                                                                            \
        .domain = dom, .op = name, .kind = kind_name, .claim = claims, .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("", "Conv", "conv.depthwise", claim_depthwise, run_depthwise),
    ROW("ai.yoke", "FusedConv", "conv.depthwise", claim_depthwise, run_depthwise),
    POOL("MaxPool"),
    POOL("AveragePool"),
};
const struct host_rows simd_conv = {rows, (int)YK_COUNT(rows)};
