/* Quantised ops. Rounding is to nearest even, results saturate; what is accumulated in int32 wraps, as ONNX says. A
 * quotient x / scale is rounded to float32 before it is rounded to an integer, so that ties are those of a float32
 * division; NaN quantises to the zero point. */
#include "kernels/conv.h"
#include "kernels/iter.h"
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

/* Element at of an optional parameter; a scalar serves all. */
static double scale_at(const struct tensor *t, int64_t at)
{
    return ref_d(t, tensor_count(t) == 1 ? 0 : at);
}

static int64_t zero_at(const struct host_call *c, int i, int64_t at)
{
    return ref_has(c, i) ? ref_i(&c->in[i], tensor_count(&c->in[i]) == 1 ? 0 : at) : 0;
}

static void put_quantised(struct tensor *y, int64_t at, double v, int64_t zero)
{
    double r = isnan(v) ? (double)zero : nearbyint(v) + (double)zero; /* storing saturates */
    ref_store_d(y->data, y->shape.dtype, at, 1, &r, 1);
}

/* How many elements lie behind one index of the axis that has scales; all of them if there is one scale. */
static int64_t axis_run(const struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    int64_t run = 1;
    if (tensor_count(&c->in[1]) == 1)
        return YK_MAX(shape_count(x), 1);
    for (int d = (int)ref_axis(node_attr_i(c->node, "axis", 1), x->rank) + 1; d < x->rank; d++)
        run *= x->dims[d];
    return YK_MAX(run, 1);
}

static yk_err run_quantize(struct host_call *c)
{
    int64_t run = axis_run(c), scales = tensor_count(&c->in[1]);
    for (int64_t i = 0, n = tensor_count(&c->in[0]); i < n; i++) {
        int64_t k = i / run % scales;
        float q = (float)((double)(float)ref_d(&c->in[0], i) / ref_d(&c->in[1], k));
        put_quantised(&c->out[0], i, (double)q, zero_at(c, 2, k));
    }
    return YK_OK;
}

static yk_err run_dequantize(struct host_call *c)
{
    int64_t run = axis_run(c), scales = tensor_count(&c->in[1]);
    for (int64_t i = 0, n = tensor_count(&c->in[0]); i < n; i++) {
        int64_t k = i / run % scales;
        double v = (double)(ref_i(&c->in[0], i) - zero_at(c, 2, k)) * ref_d(&c->in[1], k);
        ref_store_d(c->out[0].data, DT_F32, i, 1, &v, 1);
    }
    return YK_OK;
}

/* The range always holds 0. Of zeros only (or nothing) the scale is 1. NaN does not count for the range. */
static yk_err run_dynamic_quantize(struct host_call *c)
{
    const float *x = c->in[0].data;
    float lo = 0, hi = 0;
    int64_t n = tensor_count(&c->in[0]);
    for (int64_t i = 0; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    float range = hi - lo, scale = range > 0 ? range / 255.0f : 1.0f, origin = (0.0f - lo) / scale;
    uint8_t zero;
    double z = isnan(origin) ? 0 : nearbyint((double)origin);
    ref_store_d(&zero, DT_U8, 0, 1, &z, 1);
    for (int64_t i = 0; i < n; i++)
        put_quantised(&c->out[0], i, (double)(x[i] / scale), zero);
    if (c->n_out > 1 && !ref_absent(&c->out[1]))
        *(float *)c->out[1].data = scale;
    if (c->n_out > 2 && !ref_absent(&c->out[2]))
        *(uint8_t *)c->out[2].data = zero;
    return YK_OK;
}

/* ---- products ---- */

/* Both operands as int16. */
static void sizes_operands(const struct op_ctx *c, struct backend_form *f)
{
    int64_t b = c->n_in > 4 ? 3 : 1;
    f->workspace_bytes = (shape_count(c->in[0]) + shape_count(c->in[b])) * (int64_t)sizeof(int16_t);
}

struct product {
    struct host_call *c;
    int a, b;           /* inputs */
    int a_zero, b_zero; /* inputs of zero points */
    int64_t m, n, k;
    struct iter batch; /* out, a, b over the leading axes */
    int16_t *left, *right;
};

/* Where a row's (column's) parameter lies: a scalar, one per row, or one per row of each matrix. */
static int64_t line_at(const struct host_call *c, int i, int64_t matrix, int64_t line, int64_t lines)
{
    const struct tensor *p = &c->in[i];
    if (!ref_has(c, i) || tensor_count(p) == 1)
        return 0;
    return p->shape.rank == 1 ? line : matrix * lines + line;
}

/* Both are in int16 by now, less their zero points; B with its columns as rows. */
static int32_t dot(const int16_t *a, const int16_t *b, int64_t n)
{
    uint32_t sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += (uint32_t)(a[k] * b[k]);
    return (int32_t)sum;
}

static void product_piece(void *arg, int64_t begin, int64_t end)
{
    const struct product *p = arg;
    struct host_call *c = p->c;
    bool quantised = c->n_in > 4;
    int64_t at[3];
    for (int64_t r = begin; r < end; r++) {
        int64_t batch = r / p->m, row = r % p->m, pos = batch % p->batch.inner;
        iter_at(&p->batch, batch / p->batch.inner, at);
        int64_t a = at[1] + pos * iter_step(&p->batch, 1), b = at[2] + pos * iter_step(&p->batch, 2);
        for (int64_t col = 0; col < p->n; col++) {
            int32_t sum = dot(p->left + (a * p->m + row) * p->k, p->right + (b * p->n + col) * p->k, p->k);
            if (!quantised) {
                ((int32_t *)c->out[0].data)[r * p->n + col] = sum;
                continue;
            }
            int64_t y = line_at(c, 6, batch, row, p->m);
            double scale = scale_at(&c->in[1], line_at(c, 1, a, row, p->m)) *
                           scale_at(&c->in[4], line_at(c, 4, b, col, p->n)) / scale_at(&c->in[6], y);
            put_quantised(&c->out[0], r * p->n + col, sum * scale, zero_at(c, 7, y));
        }
    }
}

static yk_err multiply(struct host_call *c, struct product *p)
{
    struct shape a = c->in[p->a].shape, b = c->in[p->b].shape, y = c->out[0].shape;
    p->k = a.dims[a.rank - 1];
    p->m = a.rank > 1 ? a.dims[a.rank - 2] : 1;
    p->n = b.rank > 1 ? b.dims[b.rank - 1] : 1;
    y.rank -= (a.rank > 1) + (b.rank > 1);
    a.rank = a.rank > 2 ? a.rank - 2 : 0;
    b.rank = b.rank > 2 ? b.rank - 2 : 0;
    const struct shape *operands[] = {&y, &a, &b};
    iter_broadcast(&p->batch, operands, 3);
    const struct tensor *ta = &c->in[p->a], *tb = &c->in[p->b];
    p->left = c->workspace;
    p->right = p->left + tensor_count(ta);
    for (int64_t i = 0, n = tensor_count(ta); i < n; i++) {
        int64_t line = i / p->k;
        int64_t zero = zero_at(c, p->a_zero, line_at(c, p->a_zero, line / p->m, line % p->m, p->m));
        p->left[i] = (int16_t)(ref_i(ta, i) - zero);
    }
    for (int64_t i = 0, n = tensor_count(tb); i < n; i++) {
        int64_t matrix = i / (p->k * p->n), row = i / p->n % p->k, col = i % p->n;
        int64_t zero = zero_at(c, p->b_zero, line_at(c, p->b_zero, matrix, col, p->n));
        p->right[(matrix * p->n + col) * p->k + row] = (int16_t)(ref_i(tb, i) - zero);
    }
    host_split(c, shape_count(&y) * p->m, p->n * (p->k / 8 + 10), product_piece, p);
    return YK_OK;
}

static yk_err run_matmul_integer(struct host_call *c)
{
    struct product p = {.c = c, .a = 0, .b = 1, .a_zero = 2, .b_zero = 3};
    return multiply(c, &p);
}

static yk_err run_qlinear_matmul(struct host_call *c)
{
    struct product p = {.c = c, .a = 0, .b = 3, .a_zero = 2, .b_zero = 5};
    return multiply(c, &p);
}

/* ---- convolution: padding has the value of the zero point, so it adds nothing ---- */

#define BLOCK 256 /* outputs of a row at a time */

struct conv_job {
    struct host_call *c;
    struct conv_dims d;
    int x, w, x_zero, w_zero; /* inputs */
    int16_t *image, *weight;  /* less their zero points */
};

/* Adds to sums what one tap gives to `n` outputs of a row from the first on. */
static void add_tap(
    const struct conv_dims *d, const int16_t *row, int16_t w, int64_t tap, int64_t first, int64_t n, uint32_t *sums)
{
    int64_t step = d->stride[2], off = tap * d->dilation[2] - d->pad_begin[2] + first * step;
    int64_t lo = off < 0 ? (-off + step - 1) / step : 0;
    int64_t hi = off < d->in[2] ? YK_MIN(n, (d->in[2] - 1 - off) / step + 1) : 0;
    for (int64_t l = lo; l < hi; l++)
        sums[l] += (uint32_t)(w * row[l * step + off]);
}

static void conv_row(
    const struct conv_job *j, int64_t n, int64_t oc, int64_t y, int64_t x, int64_t first, int64_t count, uint32_t *sums)
{
    const struct conv_dims *d = &j->d;
    int64_t per_group = d->c / d->group, plane = d->in[0] * d->in[1] * d->in[2];
    const int16_t *w = j->weight + oc * per_group * d->k[0] * d->k[1] * d->k[2];
    memset(sums, 0, (size_t)count * sizeof(*sums));
    for (int64_t ch = 0; ch < per_group; ch++) {
        const int16_t *from = j->image + (n * d->c + oc / (d->oc / d->group) * per_group + ch) * plane;
        for (int64_t a = 0; a < d->k[0]; a++) {
            int64_t i = y * d->stride[0] + a * d->dilation[0] - d->pad_begin[0];
            for (int64_t b = 0; b < d->k[1]; b++, w += d->k[2]) {
                int64_t k = x * d->stride[1] + b * d->dilation[1] - d->pad_begin[1];
                if (i < 0 || i >= d->in[0] || k < 0 || k >= d->in[1])
                    continue;
                for (int64_t e = 0; e < d->k[2]; e++)
                    add_tap(d, from + (i * d->in[1] + k) * d->in[2], w[e], e, first, count, sums);
            }
        }
    }
}

/* One piece is planes (image, output channel). */
static void conv_piece(void *arg, int64_t begin, int64_t end)
{
    const struct conv_job *j = arg;
    struct host_call *c = j->c;
    const struct conv_dims *d = &j->d;
    bool quantised = c->n_in > 4;
    int64_t plane = d->out[0] * d->out[1] * d->out[2];
    for (int64_t p = begin; p < end; p++) {
        int64_t n = p / d->oc, oc = p % d->oc, i = p * plane;
        double scale = quantised ? ref_d(&c->in[1], 0) * scale_at(&c->in[4], oc) / ref_d(&c->in[6], 0) : 0;
        uint32_t bias = ref_has(c, 8) ? (uint32_t)ref_i(&c->in[8], oc) : 0, sums[BLOCK];
        for (int64_t r = 0; r < d->out[0] * d->out[1]; r++)
            for (int64_t first = 0; first < d->out[2]; first += BLOCK) {
                int64_t count = YK_MIN(BLOCK, d->out[2] - first);
                conv_row(j, n, oc, r / d->out[1], r % d->out[1], first, count, sums);
                for (int64_t l = 0; l < count; l++, i++) {
                    int32_t sum = (int32_t)(sums[l] + bias);
                    if (quantised)
                        put_quantised(&c->out[0], i, sum * scale, zero_at(c, 7, 0));
                    else
                        ((int32_t *)c->out[0].data)[i] = sum;
                }
            }
    }
}

static yk_err convolve(struct host_call *c, struct conv_job *j)
{
    yk_err err = op_conv_dims(c->node, &c->in[j->x].shape, &c->in[j->w].shape, &j->d, c->why);
    if (err)
        return err;
    conv_right_align(&j->d);
    const struct tensor *x = &c->in[j->x], *w = &c->in[j->w];
    int64_t taps = j->d.c / j->d.group * j->d.k[0] * j->d.k[1] * j->d.k[2], zero = zero_at(c, j->x_zero, 0);
    j->image = c->workspace;
    j->weight = j->image + tensor_count(x);
    for (int64_t i = 0, n = tensor_count(x); i < n; i++)
        j->image[i] = (int16_t)(ref_i(x, i) - zero);
    for (int64_t i = 0, n = tensor_count(w); i < n; i++)
        j->weight[i] = (int16_t)(ref_i(w, i) - zero_at(c, j->w_zero, i / taps));
    host_split(c, j->d.n * j->d.oc, (taps + 10) * j->d.out[0] * j->d.out[1] * j->d.out[2], conv_piece, j);
    return YK_OK;
}

static yk_err run_conv_integer(struct host_call *c)
{
    struct conv_job j = {.c = c, .x = 0, .w = 1, .x_zero = 2, .w_zero = 3};
    return convolve(c, &j);
}

static yk_err run_qlinear_conv(struct host_call *c)
{
    struct conv_job j = {.c = c, .x = 0, .w = 3, .x_zero = 2, .w_zero = 5};
    return convolve(c, &j);
}

#define ROW(name, size_fn, fn)                                               \
    {                                                                        \
        .domain = "", .op = name, .kind = "ref", .sizes = size_fn, .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("QuantizeLinear", NULL, run_quantize),
    ROW("DequantizeLinear", NULL, run_dequantize),
    ROW("DynamicQuantizeLinear", NULL, run_dynamic_quantize),
    ROW("MatMulInteger", sizes_operands, run_matmul_integer),
    ROW("QLinearMatMul", sizes_operands, run_qlinear_matmul),
    ROW("ConvInteger", sizes_operands, run_conv_integer),
    ROW("QLinearConv", sizes_operands, run_qlinear_conv),
};
const struct host_rows ref_quant = {rows, (int)YK_COUNT(rows)};
