/* Gradients of rows: sums over all axes but the channels, means over pixels given back, layer norm, softmax and
 * activations. Sums over rows go in chunks of fixed size, chunks in double in their order. Within a chunk of a sum over
 * axes f32 adds SHORT rows: what is alike in all of them (the gradient of a mean) would round the same way each time.
 */
#include <math.h>
#include <string.h>

#include "kernels/simd.h"
#include "kernels/simd_fn.h"
#include "kernels/simd_last.h"

#define CHUNK 256
#define SHORT 16 /* divides CHUNK */
#define LANES 64

static int64_t round64(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---- sums over all axes but one: the last, or the channels of (N,C,H,W) ---- */

struct sum_job {
    const float *x;
    int64_t rows, channels, chunks;
    double *parts; /* by chunk and channel */
    float *y;
};

SIMD_CLONES static void sum_rows(double *restrict s, const float *restrict x, int64_t step, int64_t rows, int64_t n)
{
    memset(s, 0, (size_t)n * sizeof *s);
    for (int64_t first = 0; first < rows; first += SHORT) {
        float acc[LANES] = {0};
        for (int64_t r = first; r < YK_MIN(first + SHORT, rows); r++)
            for (int64_t k = 0; k < n; k++)
                acc[k] += x[r * step + k];
        for (int64_t k = 0; k < n; k++)
            s[k] += (double)acc[k];
    }
}

static void sum_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct sum_job *j = arg;
    int64_t first = i * CHUNK, rows = YK_MIN(CHUNK, j->rows - first);
    for (int64_t c = 0; c < j->channels; c += LANES)
        sum_rows(j->parts + i * j->channels + c, j->x + first * j->channels + c, j->channels, rows,
            YK_MIN(LANES, j->channels - c));
}

static void fold_piece(void *arg, int64_t begin, int64_t end)
{
    const struct sum_job *j = arg;
    for (int64_t c = begin; c < end; c++) {
        double sum = 0;
        for (int64_t i = 0; i < j->chunks; i++)
            sum += j->parts[i * j->channels + c];
        j->y[c] = (float)sum;
    }
}

/* Which single axis is kept, -1 if it is not one of those. y is right-aligned to x where sizes of 1 are left out. */
static int kept_axis(const bool reduced[YK_MAX_RANK], const struct shape *x)
{
    int kept = -1;
    for (int d = 0; d < x->rank; d++)
        if (!reduced[d]) {
            if (kept >= 0)
                return -1;
            kept = d;
        }
    /* Not the last of four: that may be stored anywhere. */
    bool channels = kept == 1 && (x->rank == 4 || x->rank == 3);
    bool last = kept == x->rank - 1 && x->rank > 1 && x->rank != 4;
    return channels || last ? kept : -1;
}

static int sum_to_axis(const struct shape *x, const struct shape *y)
{
    bool reduced[YK_MAX_RANK];
    for (int d = 0; d < x->rank; d++) {
        int k = d - (x->rank - y->rank);
        reduced[d] = k < 0 || y->dims[k] == 1;
    }
    return kept_axis(reduced, x);
}

static int reduce_axis(const struct shape *x, const int64_t *axes, int64_t n)
{
    bool reduced[YK_MAX_RANK] = {false};
    for (int64_t i = 0; i < n; i++) {
        int64_t axis = axes[i] < 0 ? axes[i] + x->rank : axes[i];
        if (axis < 0 || axis >= x->rank)
            return -1;
        reduced[axis] = true;
    }
    return kept_axis(reduced, x);
}

static bool claim_sum_to(const struct op_ctx *c)
{
    return c->in[0]->dtype == DT_F32 && sum_to_axis(c->in[0], &c->out[0]) >= 0;
}

static bool claim_reduce(const struct op_ctx *c)
{
    return c->in[0]->dtype == DT_F32 && c->n_in > 1 && c->in[1] && c->in[1]->dtype == DT_I64 && c->content[1] &&
           reduce_axis(c->in[0], c->content[1], shape_count(c->in[1])) >= 0;
}

static void sizes_sum(const struct op_ctx *c, struct backend_form *f)
{
    f->workspace_bytes =
        simd_last_bytes(c->in[0]) + 2 * simd_last_bytes(c->in[0]) / CHUNK + 16 * round64(shape_bytes(&c->out[0]));
}

static yk_err run_sum(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    char *rest = c->workspace;
    bool reduce = !strcmp(c->node->op->name, "ReduceSum");
    int kept = reduce ? reduce_axis(x, c->in[1].data, tensor_count(&c->in[1])) : sum_to_axis(x, &c->out[0].shape);
    if (kept < 0)
        return yk_fail(c->why, YK_INTERNAL, "other axes than those that were claimed");
    struct sum_job j = {.channels = x->dims[kept], .y = c->out[0].data};
    bool turns = kept != x->rank - 1;
    j.x = turns ? simd_last_input(c, 0, &rest) : c->in[0].data;
    j.rows = tensor_count(&c->in[0]) / YK_MAX(j.channels, 1);
    j.chunks = (j.rows + CHUNK - 1) / CHUNK;
    j.parts = (double *)rest;
    pool_run(c->pool, j.chunks, sum_tile, &j);
    host_split(c, j.channels, j.chunks + 1, fold_piece, &j);
    return YK_OK;
}

/* ---- ReduceGrad of the pixels of (N,C,H,W) ---- */

struct spread_job {
    const float *dy;
    float *dx;
    int64_t channels, pixels;
    float factor;
};

static bool claim_spread(const struct op_ctx *c)
{
    const struct attr *a = node_attr_ints(c->node, "axes");
    const struct shape *x = &c->out[0];
    if (c->in[0]->dtype != DT_F32 || x->rank != 4 || !a || a->n != 2)
        return false;
    bool gone[4] = {false};
    for (size_t i = 0; i < a->n; i++)
        gone[(a->ints[i] < 0 ? a->ints[i] + 4 : a->ints[i]) & 3] = true;
    return gone[2] && gone[3];
}

static void sizes_spread(const struct op_ctx *c, struct backend_form *f)
{
    f->workspace_bytes = simd_last_bytes(&c->out[0]);
}

static void spread_piece(void *arg, int64_t begin, int64_t end)
{
    const struct spread_job *j = arg;
    for (int64_t p = begin; p < end; p++) {
        const float *dy = j->dy + p / j->pixels * j->channels;
        float *dx = j->dx + p * j->channels;
        for (int64_t k = 0; k < j->channels; k++)
            dx[k] = dy[k] / j->factor;
    }
}

static yk_err run_spread(struct host_call *c)
{
    const struct shape *x = &c->out[0].shape;
    char *rest = c->workspace;
    struct spread_job j = {c->in[0].data, simd_last_output(c, 0, &rest), x->dims[1], x->dims[2] * x->dims[3], 1};
    if (node_attr_i(c->node, "mean", 0))
        j.factor = (float)j.pixels;
    host_split(c, x->dims[0] * j.pixels, j.channels / 4 + 1, spread_piece, &j);
    simd_last_output_end(c, 0, j.dx);
    return YK_OK;
}

/* ---- layer norm ---- */

struct norm_job {
    struct host_call *c;
    int64_t rows, len, chunks;
    float epsilon;
    double *parts; /* by chunk: dscale, dB */
};

SIMD_CLONES static float dot(const float *restrict a, const float *restrict b, int64_t n)
{
    float lane[SIMD_LANES] = {0};
    int64_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES)
        for (int k = 0; k < SIMD_LANES; k++)
            lane[k] += a[i + k] * b[i + k];
    for (int k = 0; i < n; i++, k++)
        lane[k] += a[i] * b[i];
    return simd_fold(lane);
}

SIMD_CLONES static float total(const float *restrict a, int64_t n)
{
    float lane[SIMD_LANES] = {0};
    int64_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES)
        for (int k = 0; k < SIMD_LANES; k++)
            lane[k] += a[i + k];
    for (int k = 0; i < n; i++, k++)
        lane[k] += a[i];
    return simd_fold(lane);
}

SIMD_CLONES static float spread_of(const float *restrict a, float mean, int64_t n)
{
    float lane[SIMD_LANES] = {0};
    int64_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES)
        for (int k = 0; k < SIMD_LANES; k++)
            lane[k] += (a[i + k] - mean) * (a[i + k] - mean);
    for (int k = 0; i < n; i++, k++)
        lane[k] += (a[i] - mean) * (a[i] - mean);
    return simd_fold(lane);
}

/* h = (x - mean) * inverse; g = dy * scale; what a row adds to the gradients of scale and bias. */
SIMD_CLONES static void norm_first(float *restrict h, float *restrict g, float *restrict ds, float *restrict db,
    const float *restrict x, const float *restrict dy, const float *restrict scale, float mean, float inverse,
    int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        h[i] = (x[i] - mean) * inverse;
        g[i] = dy[i] * scale[i];
        ds[i] += dy[i] * h[i];
        db[i] += dy[i];
    }
}

SIMD_CLONES static void norm_second(
    float *restrict dx, const float *restrict h, const float *restrict g, float inverse, float a, float b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = inverse * ((g[i] - a) - h[i] * b);
}

static void norm_of(const struct node *n, const struct shape *x, int64_t *rows, int64_t *len)
{
    int64_t axis = node_attr_i(n, "axis", -1);
    axis = axis < 0 ? axis + x->rank : axis;
    *rows = *len = 1;
    for (int d = 0; d < x->rank; d++)
        *(d < axis ? rows : len) *= x->dims[d];
}

/* Scratch of a chunk: four rows. */
static int64_t norm_slot(int64_t len)
{
    return round64(4 * len * (int64_t)sizeof(float));
}

static void sizes_norm(const struct op_ctx *c, struct backend_form *f)
{
    int64_t rows, len;
    norm_of(c->node, c->in[1], &rows, &len);
    int64_t chunks = (rows + CHUNK - 1) / CHUNK;
    f->workspace_bytes =
        round64(chunks * 2 * len * (int64_t)sizeof(double)) + norm_slot(len) * simd_last_slots(norm_slot(len), chunks);
}

struct norm_run {
    struct norm_job j;
    struct simd_slots slots;
};

static void norm_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct norm_run *r = arg;
    const struct norm_job *j = &r->j;
    struct host_call *c = j->c;
    int64_t len = j->len, end = YK_MIN((i + 1) * CHUNK, j->rows);
    int slot = simd_last_take(&r->slots);
    float *h = simd_last_slot(&r->slots, slot), *g = h + len, *ds = g + len, *db = ds + len;
    memset(ds, 0, (size_t)(2 * len) * sizeof(float));
    for (int64_t row = i * CHUNK; row < end; row++) {
        const float *x = (const float *)c->in[1].data + row * len, *dy = (const float *)c->in[0].data + row * len;
        float mean = total(x, len) / (float)len;
        float inverse = 1.0f / sqrtf(spread_of(x, mean, len) / (float)len + j->epsilon);
        norm_first(h, g, ds, db, x, dy, c->in[2].data, mean, inverse, len);
        if (c->out[0].shape.dtype != DT_NONE)
            norm_second((float *)c->out[0].data + row * len, h, g, inverse, total(g, len) / (float)len,
                dot(g, h, len) / (float)len, len);
    }
    for (int64_t k = 0; k < 2 * len; k++)
        j->parts[i * 2 * len + k] = (double)ds[k];
    simd_last_give(&r->slots, slot);
}

static void norm_fold(void *arg, int64_t begin, int64_t end)
{
    const struct norm_job *j = arg;
    for (int64_t k = begin; k < end; k++) {
        int out = k < j->len ? 1 : 2;
        double sum = 0;
        for (int64_t i = 0; i < j->chunks; i++)
            sum += j->parts[i * 2 * j->len + k];
        if (out < j->c->n_out && j->c->out[out].shape.dtype != DT_NONE)
            ((float *)j->c->out[out].data)[k % j->len] = (float)sum;
    }
}

static yk_err run_norm(struct host_call *c)
{
    struct norm_run r = {.j = {.c = c, .epsilon = node_attr_f(c->node, "epsilon", 1e-5f), .parts = c->workspace}};
    norm_of(c->node, &c->in[1].shape, &r.j.rows, &r.j.len);
    int64_t slot = norm_slot(r.j.len);
    r.j.chunks = (r.j.rows + CHUNK - 1) / CHUNK;
    char *rest = (char *)c->workspace + round64(r.j.chunks * 2 * r.j.len * (int64_t)sizeof(double));
    simd_last_lend(&r.slots, rest, slot, simd_last_slots(slot, r.j.chunks));
    pool_run(c->pool, r.j.chunks, norm_tile, &r);
    host_split(c, 2 * r.j.len, r.j.chunks + 1, norm_fold, &r.j);
    return YK_OK;
}

/* ---- softmax of the last axis ---- */

struct rows_job {
    const float *dy, *y;
    float *dx;
    int64_t len;
};

SIMD_CLONES static void softmax_row(
    float *restrict dx, const float *restrict dy, const float *restrict y, float sum, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = y[i] * (dy[i] - sum);
}

static void softmax_piece(void *arg, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        const float *dy = j->dy + r * j->len, *y = j->y + r * j->len;
        softmax_row(j->dx + r * j->len, dy, y, dot(dy, y, j->len), j->len);
    }
}

static bool claim_softmax(const struct op_ctx *c)
{
    int rank = c->in[0]->rank;
    int64_t axis = node_attr_i(c->node, "axis", -1);
    return simd_claim_f32(c) && rank > 0 && (axis == -1 || axis == rank - 1);
}

static yk_err run_softmax(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct rows_job j = {c->in[0].data, c->in[1].data, c->out[0].data, x->dims[x->rank - 1]};
    host_split(c, tensor_count(&c->in[0]) / YK_MAX(j.len, 1), j.len / 2 + 5, softmax_piece, &j);
    return YK_OK;
}

/* ---- activations: dY times the derivative, of Y (Sigmoid, Tanh, Exp, HardSigmoid, LeakyRelu) or X ---- */

#define SLOPE(name, expr)                                                                           \
    SIMD_CLONES static void name(                                                                   \
        float *restrict dx, const float *restrict dy, const float *restrict in, int64_t n, float p) \
    {                                                                                               \
        (void)p;                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                           \
            float v = in[i];                                                                        \
            dx[i] = dy[i] * (expr);                                                                 \
        }                                                                                           \
    }
static inline float slope_silu(float v)
{
    float s = simd_sigmoid(v);
    return s * (1 + v * (1 - s));
}
SLOPE(g_sigmoid, v *(1 - v))
SLOPE(g_tanh, 1 - v * v)
SLOPE(g_exp, v)
SLOPE(g_silu, slope_silu(v))
SLOPE(g_gelu, 0.5f * (1 + simd_erf(v * 0.70710678f)) + v * 0.39894228f * simd_exp(-0.5f * v * v))

SLOPE(g_leaky, v > 0 ? 1.0f : p)
SLOPE(g_hard_sigmoid, v > 0 && v < 1 ? p : 0.0f)
SLOPE(g_hard_swish, v<-3 ? 0.0f : v> 3 ? 1.0f : v *(1.0f / 3) + 0.5f)

static const struct {
    const char *of;
    void (*fn)(float *restrict dx, const float *restrict dy, const float *restrict in, int64_t n, float p);
    float alpha; /* p where the attribute is not there */
} slopes[] = {{"Sigmoid", g_sigmoid, 0}, {"Tanh", g_tanh, 0}, {"Exp", g_exp, 0}, {"Silu", g_silu, 0},
    {"Gelu", g_gelu, 0}, {"LeakyRelu", g_leaky, 0.01f}, {"HardSigmoid", g_hard_sigmoid, 0.2f},
    {"HardSwish", g_hard_swish, 0}};

static int slope_of(const struct node *n)
{
    const char *of = node_attr_s(n, "of", "");
    for (int i = 0; i < (int)YK_COUNT(slopes); i++)
        if (!strcmp(slopes[i].of, of))
            return i;
    return -1;
}

static bool claim_unary(const struct op_ctx *c)
{
    return simd_claim_f32(c) && slope_of(c->node) >= 0;
}

static void unary_piece(void *arg, int64_t begin, int64_t end)
{
    struct host_call *c = arg;
    int s = slope_of(c->node);
    slopes[s].fn((float *)c->out[0].data + begin, (const float *)c->in[0].data + begin,
        (const float *)c->in[1].data + begin, end - begin, node_attr_f(c->node, "alpha", slopes[s].alpha));
}

static yk_err run_unary(struct host_call *c)
{
    if (slope_of(c->node) < 0)
        return yk_fail(c->why, YK_INTERNAL, "no loop for this derivative");
    host_split(c, tensor_count(&c->out[0]), 4, unary_piece, c);
    return YK_OK;
}

#define ROW(dom, name, its_kind, claims, ask, fn, places)                                                       \
    {                                                                                                           \
        .domain = dom, .op = name, .kind = its_kind, .claim = claims, .sizes = ask, .run = fn, .layout = places \
    }
static const struct host_kernel rows[] = {
    ROW("ai.yoke", "SumTo", "rows", claim_sum_to, sizes_sum, run_sum, HOST_ANY),
    ROW("", "ReduceSum", "rows", claim_reduce, sizes_sum, run_sum, HOST_ANY),
    ROW("ai.yoke", "ReduceGrad", "rows", claim_spread, sizes_spread, run_spread, HOST_ANY),
    ROW("ai.yoke", "LayerNormGrad", "rows", simd_claim_f32, sizes_norm, run_norm, HOST_DENSE),
    ROW("ai.yoke", "SoftmaxGrad", "rows", claim_softmax, NULL, run_softmax, HOST_DENSE),
    ROW("ai.yoke", "UnaryGrad", "map", claim_unary, NULL, run_unary, HOST_SAME),
};
const struct host_rows simd_grad_rows = {rows, (int)YK_COUNT(rows)};
