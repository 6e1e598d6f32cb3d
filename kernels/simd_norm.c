/* Row-wise f32 ops: softmax, layer and batch normalisation, means over trailing axes. Sums run in SIMD_LANES lanes. */
#include "kernels/chain.h"
#include "kernels/simd.h"
#include "kernels/simd_fn.h"

#include <math.h>
#include <string.h>

SIMD_CLONES static float row_sum(const float *restrict x, int64_t n)
{
    float lane[SIMD_LANES] = {0};
    int64_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES)
        for (int k = 0; k < SIMD_LANES; k++)
            lane[k] += x[i + k];
    for (int k = 0; i < n; i++, k++)
        lane[k] += x[i];
    return simd_fold(lane);
}

SIMD_CLONES static float row_squares(const float *restrict x, float mean, int64_t n)
{
    float lane[SIMD_LANES] = {0};
    int64_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES)
        for (int k = 0; k < SIMD_LANES; k++)
            lane[k] += (x[i + k] - mean) * (x[i + k] - mean);
    for (int k = 0; i < n; i++, k++)
        lane[k] += (x[i] - mean) * (x[i] - mean);
    return simd_fold(lane);
}

SIMD_CLONES static float row_max(const float *restrict x, int64_t n)
{
    float m = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        m = m > x[i] ? m : x[i]; /* a NaN may be lost here; exp(NaN - m) brings it back */
    return m;
}

SIMD_CLONES static void exp_minus(float *restrict y, const float *restrict x, float m, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = simd_exp(x[i] - m);
}

SIMD_CLONES static void scale_row(float *restrict y, float f, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] *= f;
}

struct rows_job {
    struct host_call *c;
    int64_t inner;
    float epsilon;
};

static void softmax_piece(void *arg, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)j->c->in[0].data + r * j->inner;
        float *y = (float *)j->c->out[0].data + r * j->inner;
        exp_minus(y, x, row_max(x, j->inner), j->inner);
        scale_row(y, 1.0f / row_sum(y, j->inner), j->inner);
    }
}

static bool claim_last_axis(const struct op_ctx *c)
{
    int rank = c->in[0]->rank;
    int64_t axis = node_attr_i(c->node, "axis", -1);
    return simd_claim_f32(c) && rank > 0 && (axis == -1 || axis == rank - 1);
}

static yk_err run_softmax(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct rows_job j = {c, x->dims[x->rank - 1], 0};
    host_split(c, tensor_count(&c->in[0]) / YK_MAX(j.inner, 1), 4 * j.inner, softmax_piece, &j);
    return YK_OK;
}

SIMD_CLONES static void norm_row(float *restrict y, const float *restrict x, const float *restrict scale,
    const float *restrict bias, float mean, float inverse, int64_t n)
{
    if (bias)
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * inverse * scale[i] + bias[i];
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * inverse * scale[i];
}

SIMD_CLONES static void shift_scale(
    float *restrict y, const float *restrict x, float mean, float scale, float bias, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * scale + bias;
}

static void layer_piece(void *arg, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    const struct host_call *c = j->c;
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)c->in[0].data + r * j->inner;
        float mean = row_sum(x, j->inner) / (float)j->inner;
        float inverse = 1.0f / sqrtf(row_squares(x, mean, j->inner) / (float)j->inner + j->epsilon);
        norm_row((float *)c->out[0].data + r * j->inner, x, c->in[1].data, c->n_in > 2 ? c->in[2].data : NULL, mean,
            inverse, j->inner);
        if (c->n_out > 1 && c->out[1].data)
            ((float *)c->out[1].data)[r] = mean;
        if (c->n_out > 2 && c->out[2].data)
            ((float *)c->out[2].data)[r] = inverse;
    }
}

static yk_err run_layer(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct rows_job j = {c, 1, node_attr_f(c->node, "epsilon", 1e-5f)};
    int64_t axis = node_attr_i(c->node, "axis", -1), rows = 1; /* counted: rows may be empty */
    axis = axis < 0 ? axis + x->rank : axis;
    for (int d = 0; d < (int)axis; d++)
        rows *= x->dims[d];
    for (int d = (int)axis; d < x->rank; d++)
        j.inner *= x->dims[d];
    host_split(c, rows, 3 * j.inner, layer_piece, &j);
    return YK_OK;
}

static void layer_rows(const struct chain_map *m, float *y, const float *const *in, int64_t begin, int64_t end)
{
    for (int64_t at = 0, n = m->unit; at < end - begin; at += n) {
        float mean = row_sum(in[0] + at, n) / (float)n;
        float inverse = 1.0f / sqrtf(row_squares(in[0] + at, mean, n) / (float)n + m->p);
        norm_row(y + at, in[0] + at, in[1], in[2], mean, inverse, n);
    }
}

/* As a part of a chain, where only the normalised values are wanted. */
static bool map_layer(const struct host_call *c, struct chain_map *m)
{
    const struct shape *x = &c->in[0].shape;
    int64_t axis = node_attr_i(c->node, "axis", -1);
    m->unit = 1;
    m->cost = 3;
    m->full = 1;
    m->piece = layer_rows;
    m->made = NULL;
    m->p = node_attr_f(c->node, "epsilon", 1e-5f);
    for (int64_t d = axis < 0 ? axis + x->rank : axis; d < x->rank; d++)
        m->unit *= x->dims[d];
    for (int i = 1; i < c->n_out; i++)
        if (c->out[i].data)
            return false;
    return c->n_in > 2 && m->unit > 0;
}

#define LONG_ROW 4096 /* sums of longer rows are added in double */
static void instance_piece(void *arg, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    const struct host_call *c = j->c;
    int64_t channels = c->in[0].shape.dims[1];
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)c->in[0].data + r * j->inner;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < j->inner; i += LONG_ROW)
            sum += (double)row_sum(x + i, YK_MIN(LONG_ROW, j->inner - i));
        float mean = (float)(sum / (double)j->inner);
        for (int64_t i = 0; i < j->inner; i += LONG_ROW)
            squares += (double)row_squares(x + i, mean, YK_MIN(LONG_ROW, j->inner - i));
        double inverse = 1 / sqrt(squares / (double)j->inner + (double)j->epsilon);
        shift_scale((float *)c->out[0].data + r * j->inner, x, mean,
            (float)(inverse * (double)((const float *)c->in[1].data)[r % channels]),
            ((const float *)c->in[2].data)[r % channels], j->inner);
    }
}

static yk_err run_instance(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct rows_job j = {c, 1, node_attr_f(c->node, "epsilon", 1e-5f)};
    for (int d = 2; d < x->rank; d++)
        j.inner *= x->dims[d];
    host_split(c, x->dims[0] * x->dims[1], 3 * j.inner, instance_piece, &j);
    return YK_OK;
}

SIMD_CLONES static void affine(float *restrict y, const float *restrict x, float a, float b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * a + b;
}

/* Pixels begin..end, channels last: factors and shifts of all channels are in the workspace. */
SIMD_CLONES static void affine_pixels(float *restrict y, const float *restrict x, const float *restrict a,
    const float *restrict b, int64_t channels, int64_t pixels)
{
    for (int64_t p = 0; p < pixels; p++, x += channels, y += channels)
        for (int64_t i = 0; i < channels; i++)
            y[i] = x[i] * a[i] + b[i];
}

static void batch_pixels_piece(void *arg, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    const struct host_call *c = j->c;
    int64_t channels = c->in[0].shape.dims[1];
    const float *a = c->workspace;
    affine_pixels((float *)c->out[0].data + begin * channels, (const float *)c->in[0].data + begin * channels, a,
        a + channels, channels, end - begin);
}

static void sizes_batch(const struct op_ctx *c, struct backend_form *f)
{
    f->workspace_bytes = c->in[0]->rank == 4 ? 2 * c->in[0]->dims[1] * (int64_t)sizeof(float) : 0;
}

/* Of channel ch: x, scale, shift, mean, variance in in. */
static void factors_of(const float *const *in, int64_t ch, float epsilon, float *a, float *b)
{
    double f = (double)in[1][ch] / sqrt((double)in[4][ch] + (double)epsilon);
    *a = (float)f;
    *b = (float)((double)in[2][ch] - (double)in[3][ch] * f);
}

static void batch_factors(const struct rows_job *j, int64_t ch, float *a, float *b)
{
    const struct host_call *c = j->c;
    const float *in[] = {NULL, c->in[1].data, c->in[2].data, c->in[3].data, c->in[4].data};
    factors_of(in, ch, j->epsilon, a, b);
}

static void batch_piece(void *arg, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    const struct host_call *c = j->c;
    int64_t channels = c->in[0].shape.dims[1];
    for (int64_t p = begin; p < end; p++) {
        float a, b;
        batch_factors(j, p % channels, &a, &b);
        affine((float *)c->out[0].data + p * j->inner, (const float *)c->in[0].data + p * j->inner, a, b, j->inner);
    }
}

static yk_err run_batch(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct rows_job j = {c, 1, node_attr_f(c->node, "epsilon", 1e-5f)};
    for (int d = 2; d < x->rank; d++)
        j.inner *= x->dims[d];
    if ((c->last_in | c->last_out) & 1) {
        float *a = c->workspace;
        for (int64_t i = 0; i < x->dims[1]; i++)
            batch_factors(&j, i, &a[i], &a[x->dims[1] + i]);
        host_split(c, x->dims[0] * j.inner, x->dims[1], batch_pixels_piece, &j);
        return YK_OK;
    }
    host_split(c, x->dims[0] * x->dims[1], j.inner, batch_piece, &j);
    return YK_OK;
}

/* In a chain: rows of a channel, factors as they come. */
static void batch_row_parts(const struct chain_map *m, float *y, const float *const *in, int64_t begin, int64_t end)
{
    int64_t inner = m->it.inner, first = begin;
    while (begin < end) {
        int64_t n = YK_MIN(inner - begin % inner, end - begin);
        float a, b;
        factors_of(in, begin / inner % m->it.outer, m->p, &a, &b);
        affine(y + (begin - first), in[0] + (begin - first), a, b, n);
        begin += n;
    }
}

/* The same channels last. */
static void batch_pixel_parts(const struct chain_map *m, float *y, const float *const *in, int64_t begin, int64_t end)
{
    int64_t channels = m->it.outer, first = begin;
    while (begin < end) {
        int64_t from = begin % channels, left = end - begin;
        int64_t n = from || left < channels ? YK_MIN(channels - from, left) : left / channels * channels;
        affine_pixels(y + (begin - first), in[0] + (begin - first), m->made + from, m->made + channels + from,
            YK_MIN(n, channels), from || left < channels ? 1 : left / channels);
        begin += n;
    }
}

static bool map_batch(const struct host_call *c, struct chain_map *m)
{
    const struct shape *x = &c->in[0].shape;
    const float *in[] = {NULL, c->in[1].data, c->in[2].data, c->in[3].data, c->in[4].data};
    bool last = (c->last_in | c->last_out) & 1;
    m->cost = 1;
    m->full = 1;
    m->p = node_attr_f(c->node, "epsilon", 1e-5f);
    m->piece = last ? batch_pixel_parts : batch_row_parts;
    m->made = NULL;
    m->it.outer = x->rank > 1 ? x->dims[1] : 1;
    m->it.inner = 1;
    for (int d = 2; d < x->rank; d++)
        m->it.inner *= x->dims[d];
    int64_t row = last ? m->it.outer : m->it.inner;
    m->unit = row % CHAIN_LINE ? row : 1;
    if (last) {
        float *a = c->workspace;
        for (int64_t i = 0; i < m->it.outer; i++)
            factors_of(in, i, m->p, &a[i], &a[m->it.outer + i]);
        m->made = a;
    }
    return x->rank > 1;
}

static void mean_piece(void *arg, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    for (int64_t r = begin; r < end; r++)
        ((float *)j->c->out[0].data)[r] =
            row_sum((const float *)j->c->in[0].data + r * j->inner, j->inner) / (float)j->inner;
}

/* Means over pixels with channels last, by blocks of channels: the lanes of row_sum, for each channel. */
#define MEAN_CHANNELS 64
SIMD_CLONES static void mean_block(
    float *restrict y, const float *restrict x, int64_t channels, int64_t pixels, int64_t n)
{
    float lane[SIMD_LANES][MEAN_CHANNELS] = {{0}};
    for (int64_t p = 0; p < pixels; p++) {
        float *l = lane[p % SIMD_LANES];
        for (int64_t i = 0; i < n; i++)
            l[i] += x[p * channels + i];
    }
    for (int half = SIMD_LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            for (int64_t i = 0; i < n; i++)
                lane[k][i] += lane[k + half][i];
    for (int64_t i = 0; i < n; i++)
        y[i] = lane[0][i] / (float)pixels;
}

static void mean_pixels_piece(void *arg, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    int64_t channels = j->c->in[0].shape.dims[1], blocks = (channels + MEAN_CHANNELS - 1) / MEAN_CHANNELS;
    for (int64_t i = begin; i < end; i++) {
        int64_t image = i / blocks, first = i % blocks * MEAN_CHANNELS;
        mean_block((float *)j->c->out[0].data + image * channels + first,
            (const float *)j->c->in[0].data + image * channels * j->inner + first, channels, j->inner,
            YK_MIN(MEAN_CHANNELS, channels - first));
    }
}

static yk_err run_mean_last(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct rows_job j = {c, x->dims[2] * x->dims[3], 0};
    int64_t blocks = (x->dims[1] + MEAN_CHANNELS - 1) / MEAN_CHANNELS;
    host_split(c, x->dims[0] * blocks, j.inner * MEAN_CHANNELS, mean_pixels_piece, &j);
    return YK_OK;
}

static yk_err run_mean(struct host_call *c)
{
    struct rows_job j = {c, 1, 0};
    if (c->last_in & 1)
        return run_mean_last(c);
    j.inner = tensor_count(&c->in[0]) / tensor_count(&c->out[0]);
    host_split(c, tensor_count(&c->out[0]), j.inner, mean_piece, &j);
    return YK_OK;
}

/* Whether the reduced axes are the trailing ones, so that each mean is over one run. */
static bool claim_mean(const struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    const struct attr *axes = node_attr_ints(c->node, "axes");
    bool reduced[YK_MAX_RANK] = {false};
    if (!simd_claim_f32(c) || c->n_in > 1 || !axes || axes->n == 0)
        return false;
    for (size_t k = 0; k < axes->n; k++) {
        int64_t axis = axes->ints[k] < 0 ? axes->ints[k] + x->rank : axes->ints[k];
        if (axis < 0 || axis >= x->rank)
            return false;
        reduced[axis] = true;
    }
    for (int d = 0; d < x->rank; d++)
        if (reduced[d] != (d >= x->rank - (int)axes->n))
            return false;
    return true;
}

static bool claim_inference(const struct op_ctx *c)
{
    return simd_claim_f32(c) && !node_attr_i(c->node, "training_mode", 0);
}

#define ROW(name, kind_name, claims, fn)                                        \
    {                                                                           \
        .domain = "", .op = name, .kind = kind_name, .claim = claims, .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("Softmax", "rows", claim_last_axis, run_softmax),
    {.domain = "",
        .op = "LayerNormalization",
        .kind = "rows",
        .claim = simd_claim_f32,
        .run = run_layer,
        .map = map_layer},
    {.domain = "",
        .op = "BatchNormalization",
        .kind = "affine",
        .claim = claim_inference,
        .sizes = sizes_batch,
        .run = run_batch,
        .map = map_batch,
        .layout = HOST_SAME},
    ROW("InstanceNormalization", "rows", simd_claim_f32, run_instance),
    ROW("ReduceMean", "rows", claim_mean, run_mean),
    {.domain = "",
        .op = "GlobalAveragePool",
        .kind = "rows",
        .claim = simd_claim_f32,
        .run = run_mean,
        .layout = HOST_SAME},
};
const struct host_rows simd_norm = {rows, (int)YK_COUNT(rows)};
