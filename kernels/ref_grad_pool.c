/* Gradients of pooling, of Relu and of batch normalisation in training, and the latter itself. */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

/* ---- pooling: a plane at a time, windows in order ---- */

struct pool_job {
    struct host_call *c;
    struct conv_dims d;
    bool max, include_pad;
};

/* How many taps of the window at `at` count on axis s: of the padded input, what ceil_mode adds behind it left out. */
static int64_t padded_taps(const struct conv_dims *d, int s, int64_t at)
{
    int64_t n = 0;
    for (int64_t k = 0; k < d->k[s]; k++)
        n += at * d->stride[s] - d->pad_begin[s] + k * d->dilation[s] < d->in[s] + d->pad_end[s];
    return n;
}

/* One window: its gradient g goes to the first maximum of x, or in equal parts to all that count. */
static void spread(const struct pool_job *j, double *dx, int64_t plane, const int64_t *at, double g)
{
    const struct conv_dims *d = &j->d;
    int64_t best_at = -1, seen = 0;
    double best = -INFINITY;
    for (int pass = j->max ? 1 : 0; pass < 2; pass++) {
        int64_t count = seen;
        if (j->include_pad)
            count = padded_taps(d, 0, at[0]) * padded_taps(d, 1, at[1]) * padded_taps(d, 2, at[2]);
        for (int64_t a = 0; a < d->k[0]; a++)
            for (int64_t b = 0; b < d->k[1]; b++)
                for (int64_t e = 0; e < d->k[2]; e++) {
                    int64_t p0 = at[0] * d->stride[0] - d->pad_begin[0] + a * d->dilation[0];
                    int64_t p1 = at[1] * d->stride[1] - d->pad_begin[1] + b * d->dilation[1];
                    int64_t p2 = at[2] * d->stride[2] - d->pad_begin[2] + e * d->dilation[2];
                    if (p0 < 0 || p0 >= d->in[0] || p1 < 0 || p1 >= d->in[1] || p2 < 0 || p2 >= d->in[2])
                        continue;
                    int64_t i = (p0 * d->in[1] + p1) * d->in[2] + p2;
                    if (!j->max) {
                        seen++;
                        dx[i] += pass == 1 ? g / (double)count : 0;
                        continue;
                    }
                    double v = ref_d(&j->c->in[1], plane * d->in[0] * d->in[1] * d->in[2] + i);
                    if (best_at < 0 || v > best || (isnan(v) && !isnan(best))) {
                        best = v;
                        best_at = i;
                    }
                }
    }
    if (best_at >= 0)
        dx[best_at] += g;
}

static void pool_piece(void *arg, int64_t begin, int64_t end)
{
    const struct pool_job *j = arg;
    const struct conv_dims *d = &j->d;
    int64_t in = d->in[0] * d->in[1] * d->in[2], at[3], i = begin * d->out[0] * d->out[1] * d->out[2];
    for (int64_t p = begin; p < end; p++) {
        double *dx = (double *)j->c->workspace + p * in;
        memset(dx, 0, (size_t)in * sizeof(*dx));
        for (at[0] = 0; at[0] < d->out[0]; at[0]++)
            for (at[1] = 0; at[1] < d->out[1]; at[1]++)
                for (at[2] = 0; at[2] < d->out[2]; at[2]++, i++)
                    spread(j, dx, p, at, ref_d(&j->c->in[0], i));
        ref_store_d(j->c->out[0].data, j->c->out[0].shape.dtype, p * in, 1, dx, in);
    }
}

/* The sums as doubles. */
static void sizes_pool(const struct op_ctx *c, struct backend_form *f)
{
    f->workspace_bytes = shape_count(&c->out[0]) * (int64_t)sizeof(double);
}

static yk_err run_pool(struct host_call *c)
{
    struct pool_job j = {.c = c, .max = !strcmp(c->node->op->name, "MaxPoolGrad")};
    yk_err err = op_conv_dims(c->node, &c->out[0].shape, NULL, &j.d, c->why);
    if (err)
        return err;
    j.include_pad = node_attr_i(c->node, "count_include_pad", 0) != 0;
    int64_t taps = j.d.out[0] * j.d.out[1] * j.d.out[2] * j.d.k[0] * j.d.k[1] * j.d.k[2];
    host_split(c, j.d.n * j.d.c, 8 * taps, pool_piece, &j);
    return YK_OK;
}

/* ---- Relu ---- */

static void relu_piece(void *arg, int64_t begin, int64_t end)
{
    struct host_call *c = arg;
    for (int64_t i = begin; i < end; i++) {
        double v = ref_d(&c->in[1], i) <= 0 ? 0 : ref_d(&c->in[0], i);
        ref_store_d(c->out[0].data, c->out[0].shape.dtype, i, 1, &v, 1);
    }
}

static yk_err run_relu(struct host_call *c)
{
    host_split(c, tensor_count(&c->out[0]), 8, relu_piece, c);
    return YK_OK;
}

/* ---- batch normalisation: one channel over all samples ---- */

struct batch_job {
    struct host_call *c;
    int64_t n, channels, inner;
    double epsilon, keep;
};

static int64_t place(const struct batch_job *j, int64_t ch, int64_t i)
{
    return (i / j->inner * j->channels + ch) * j->inner + i % j->inner;
}

static void give(struct host_call *c, int out, int64_t at, double v)
{
    if (out < c->n_out && !ref_absent(&c->out[out]))
        ref_store_d(c->out[out].data, c->out[out].shape.dtype, at, 1, &v, 1);
}

static double as_given(const struct host_call *c, double v)
{
    return c->in[1].shape.dtype == DT_F32 ? (double)(float)v : v;
}

static void train_piece(void *arg, int64_t begin, int64_t end)
{
    const struct batch_job *j = arg;
    struct host_call *c = j->c;
    int64_t count = j->n * j->inner;
    for (int64_t ch = begin; ch < end; ch++) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < count; i++)
            sum += ref_d(&c->in[0], place(j, ch, i));
        double mean = sum / (double)count;
        for (int64_t i = 0; i < count; i++) {
            double v = ref_d(&c->in[0], place(j, ch, i)) - mean;
            squares += v * v;
        }
        double inverse = 1 / sqrt(squares / (double)count + j->epsilon);
        /* By the statistics as they are given out, so that BatchNormalization with them makes the same bits again. */
        double given = as_given(c, mean), scale = as_given(c, ref_d(&c->in[1], ch) * as_given(c, inverse));
        double shift = ref_d(&c->in[2], ch);
        for (int64_t i = 0; i < count; i++) {
            int64_t at = place(j, ch, i);
            give(c, 0, at, (ref_d(&c->in[0], at) - given) * scale + shift);
        }
        give(c, 1, ch, ref_d(&c->in[3], ch) * j->keep + mean * (1 - j->keep));
        give(c, 2, ch, ref_d(&c->in[4], ch) * j->keep + squares / (double)(count - 1) * (1 - j->keep));
        give(c, 3, ch, mean);
        give(c, 4, ch, inverse);
    }
}

/* dB = sum of dY; dscale = sum of dY * x^; dX = scale * inverse * (dY - (dB + x^ * dscale) / count), where x^ is
 * (X - mean) * inverse. */
static void grad_piece(void *arg, int64_t begin, int64_t end)
{
    const struct batch_job *j = arg;
    struct host_call *c = j->c;
    int64_t count = j->n * j->inner;
    for (int64_t ch = begin; ch < end; ch++) {
        double mean = ref_d(&c->in[3], ch), inverse = ref_d(&c->in[4], ch), sum = 0, along = 0;
        for (int64_t i = 0; i < count; i++) {
            int64_t at = place(j, ch, i);
            double g = ref_d(&c->in[0], at);
            sum += g;
            along += g * (ref_d(&c->in[1], at) - mean) * inverse;
        }
        double scale = ref_d(&c->in[2], ch) * inverse;
        for (int64_t i = 0; i < count; i++) {
            int64_t at = place(j, ch, i);
            double x = (ref_d(&c->in[1], at) - mean) * inverse;
            give(c, 0, at, scale * (ref_d(&c->in[0], at) - (sum + x * along) / (double)count));
        }
        give(c, 1, ch, along);
        give(c, 2, ch, sum);
    }
}

static yk_err run_batch(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct batch_job j = {c, x->dims[0], x->dims[1], 1, (double)node_attr_f(c->node, "epsilon", 1e-5f),
        (double)node_attr_f(c->node, "momentum", 0.9f)};
    for (int d = 2; d < x->rank; d++)
        j.inner *= x->dims[d];
    bool train = !strcmp(c->node->op->name, "BatchNormTrain");
    host_split(c, j.channels, 30 * j.n * j.inner, train ? train_piece : grad_piece, &j);
    return YK_OK;
}

#define ROW(name, ask, fn)                                                      \
    {                                                                           \
        .domain = "ai.yoke", .op = name, .kind = "ref", .sizes = ask, .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("MaxPoolGrad", sizes_pool, run_pool),
    ROW("AveragePoolGrad", sizes_pool, run_pool),
    ROW("ReluGrad", NULL, run_relu),
    ROW("BatchNormTrain", NULL, run_batch),
    ROW("BatchNormGrad", NULL, run_batch),
};
const struct host_rows ref_grad_pool = {rows, (int)YK_COUNT(rows)};
