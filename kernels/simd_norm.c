/* Row-wise f32 ops: softmax, layer and batch normalisation, means over trailing axes. Sums run in SIMD_LANES lanes. */
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

SIMD_CLONES static void affine(float *restrict y, const float *restrict x, float a, float b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * a + b;
}

static void batch_piece(void *arg, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    const struct host_call *c = j->c;
    int64_t channels = c->in[0].shape.dims[1];
    const float *scale = c->in[1].data, *shift = c->in[2].data, *mean = c->in[3].data, *var = c->in[4].data;
    for (int64_t p = begin; p < end; p++) {
        int64_t ch = p % channels;
        double a = (double)scale[ch] / sqrt((double)var[ch] + (double)j->epsilon);
        affine((float *)c->out[0].data + p * j->inner, (const float *)c->in[0].data + p * j->inner, (float)a,
            (float)((double)shift[ch] - (double)mean[ch] * a), j->inner);
    }
}

static yk_err run_batch(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct rows_job j = {c, 1, node_attr_f(c->node, "epsilon", 1e-5f)};
    for (int d = 2; d < x->rank; d++)
        j.inner *= x->dims[d];
    host_split(c, x->dims[0] * x->dims[1], j.inner, batch_piece, &j);
    return YK_OK;
}

static void mean_piece(void *arg, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    for (int64_t r = begin; r < end; r++)
        ((float *)j->c->out[0].data)[r] =
            row_sum((const float *)j->c->in[0].data + r * j->inner, j->inner) / (float)j->inner;
}

static yk_err run_mean(struct host_call *c)
{
    struct rows_job j = {c, 1, 0};
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
    ROW("LayerNormalization", "rows", simd_claim_f32, run_layer),
    ROW("BatchNormalization", "affine", claim_inference, run_batch),
    ROW("ReduceMean", "rows", claim_mean, run_mean),
    ROW("GlobalAveragePool", "rows", simd_claim_f32, run_mean),
};
const struct host_rows simd_norm = {rows, (int)YK_COUNT(rows)};
