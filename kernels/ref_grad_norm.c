/* Gradients of layer, instance and local response normalisation. Rows (of elements that share statistics) first, which
 * leave their statistics in the workspace, then what is summed over rows, in their order. */
#include <math.h>
#include <string.h>

#include "kernels/ref.h"

#define BLOCK 256

struct norm_job {
    struct host_call *c;
    int64_t rows, len, channels; /* channels 0: layer norm, a scale for each element of a row */
    double epsilon;
    double *stats; /* by row: mean, 1 / sqrt(variance + epsilon) */
};

static void load(double *dst, const struct tensor *t, int64_t at, int64_t n)
{
    ref_load_d(dst, t->data, t->shape.dtype, at, 1, n);
}

static void row_stats(const struct norm_job *j, int64_t base, double *mean, double *inverse)
{
    double v[BLOCK], sum = 0, squares = 0;
    for (int64_t i = 0; i < j->len; i += BLOCK) {
        int64_t n = YK_MIN(j->len - i, BLOCK);
        load(v, &j->c->in[1], base + i, n);
        for (int64_t k = 0; k < n; k++)
            sum += v[k];
    }
    *mean = sum / (double)j->len;
    for (int64_t i = 0; i < j->len; i += BLOCK) {
        int64_t n = YK_MIN(j->len - i, BLOCK);
        load(v, &j->c->in[1], base + i, n);
        for (int64_t k = 0; k < n; k++)
            squares += (v[k] - *mean) * (v[k] - *mean);
    }
    *inverse = 1 / sqrt(squares / (double)j->len + j->epsilon);
}

/* With g = dy * scale and h = (x - mean) * inverse: dx = inverse * (g - mean(g) - h * mean(g * h)). */
static void row_piece(void *arg, int64_t begin, int64_t end)
{
    const struct norm_job *j = arg;
    struct host_call *c = j->c;
    double x[BLOCK], g[BLOCK], s[BLOCK];
    for (int64_t r = begin; r < end; r++) {
        int64_t base = r * j->len;
        double mean, inverse, sum = 0, dot = 0, one = j->channels ? ref_d(&c->in[2], r % j->channels) : 1;
        row_stats(j, base, &mean, &inverse);
        j->stats[2 * r] = mean;
        j->stats[2 * r + 1] = inverse;
        for (int pass = 0; pass < 2 && !ref_absent(&c->out[0]); pass++)
            for (int64_t i = 0; i < j->len; i += BLOCK) {
                int64_t n = YK_MIN(j->len - i, BLOCK);
                load(x, &c->in[1], base + i, n);
                load(g, &c->in[0], base + i, n);
                if (!j->channels)
                    load(s, &c->in[2], i, n);
                for (int64_t k = 0; k < n; k++) {
                    x[k] = (x[k] - mean) * inverse;
                    g[k] *= j->channels ? one : s[k];
                }
                for (int64_t k = 0; k < n && !pass; k++) {
                    sum += g[k];
                    dot += g[k] * x[k];
                }
                for (int64_t k = 0; k < n && pass; k++)
                    g[k] = inverse * (g[k] - sum / (double)j->len - x[k] * (dot / (double)j->len));
                if (pass)
                    ref_store_d(c->out[0].data, c->out[0].shape.dtype, base + i, 1, g, n);
            }
    }
}

static bool wants(const struct host_call *c, int k)
{
    return k < c->n_out && !ref_absent(&c->out[k]);
}

/* Layer norm: elements [begin, end) of scale and bias. */
static void column_piece(void *arg, int64_t begin, int64_t end)
{
    const struct norm_job *j = arg;
    struct host_call *c = j->c;
    double x[BLOCK], g[BLOCK], scale[BLOCK], bias[BLOCK];
    for (int64_t i = begin; i < end; i += BLOCK) {
        int64_t n = YK_MIN(end - i, BLOCK);
        memset(scale, 0, sizeof scale);
        memset(bias, 0, sizeof bias);
        for (int64_t r = 0; r < j->rows; r++) {
            double mean = j->stats[2 * r], inverse = j->stats[2 * r + 1];
            load(x, &c->in[1], r * j->len + i, n);
            load(g, &c->in[0], r * j->len + i, n);
            for (int64_t k = 0; k < n; k++) {
                scale[k] += g[k] * ((x[k] - mean) * inverse);
                bias[k] += g[k];
            }
        }
        if (wants(c, 1))
            ref_store_d(c->out[1].data, c->out[1].shape.dtype, i, 1, scale, n);
        if (wants(c, 2))
            ref_store_d(c->out[2].data, c->out[2].shape.dtype, i, 1, bias, n);
    }
}

/* Instance norm: channels [begin, end). */
static void channel_piece(void *arg, int64_t begin, int64_t end)
{
    const struct norm_job *j = arg;
    struct host_call *c = j->c;
    double x[BLOCK], g[BLOCK];
    for (int64_t ch = begin; ch < end; ch++) {
        double scale = 0, bias = 0;
        for (int64_t r = ch; r < j->rows; r += j->channels)
            for (int64_t i = 0; i < j->len; i += BLOCK) {
                int64_t n = YK_MIN(j->len - i, BLOCK);
                load(x, &c->in[1], r * j->len + i, n);
                load(g, &c->in[0], r * j->len + i, n);
                for (int64_t k = 0; k < n; k++) {
                    scale += g[k] * ((x[k] - j->stats[2 * r]) * j->stats[2 * r + 1]);
                    bias += g[k];
                }
            }
        if (wants(c, 1))
            ref_store_d(c->out[1].data, c->out[1].shape.dtype, ch, 1, &scale, 1);
        if (wants(c, 2))
            ref_store_d(c->out[2].data, c->out[2].shape.dtype, ch, 1, &bias, 1);
    }
}

static struct norm_job job_of(const struct node *n, const struct shape *x)
{
    bool layer = !strcmp(n->op->name, "LayerNormGrad");
    struct norm_job j = {.rows = 1, .len = 1, .epsilon = (double)node_attr_f(n, "epsilon", 1e-5f)};
    int64_t axis = layer ? ref_axis(node_attr_i(n, "axis", -1), x->rank) : 2;
    for (int d = 0; d < x->rank; d++)
        *(d < axis ? &j.rows : &j.len) *= x->dims[d];
    j.channels = layer ? 0 : x->dims[1];
    return j;
}

static void norm_sizes(const struct op_ctx *c, struct backend_form *form)
{
    form->workspace_bytes += 2 * (int64_t)sizeof(double) * job_of(c->node, c->in[1]).rows;
}

static yk_err run_norm(struct host_call *c)
{
    struct norm_job j = job_of(c->node, &c->in[1].shape);
    j.c = c;
    j.stats = c->workspace;
    host_split(c, j.rows, 16 * j.len, row_piece, &j);
    if (!wants(c, 1) && !wants(c, 2))
        return YK_OK;
    if (j.channels)
        host_split(c, j.channels, 4 * (j.rows / j.channels) * j.len, channel_piece, &j);
    else
        host_split(c, j.len, 4 * j.rows, column_piece, &j);
    return YK_OK;
}

/* ---- LRN: y = x * s ^ -beta with s = bias + alpha / size * sum of x ^ 2 over the window ---- */

struct lrn_job {
    struct host_call *c;
    int64_t size, channels, inner;
    double alpha, beta, bias;
    double *power, *part; /* by element: s ^ -beta; dy * x * s ^ (-beta - 1) */
};

static void lrn_first_piece(void *arg, int64_t begin, int64_t end)
{
    const struct lrn_job *j = arg;
    const struct tensor *dy = &j->c->in[0], *x = &j->c->in[1];
    for (int64_t i = begin; i < end; i++) {
        int64_t ch = i / j->inner % j->channels, first = i - ch * j->inner;
        double sum = 0;
        for (int64_t k = YK_MAX(ch - (j->size - 1) / 2, 0); k <= YK_MIN(ch + j->size / 2, j->channels - 1); k++) {
            double v = ref_d(x, first + k * j->inner);
            sum += v * v;
        }
        sum = j->bias + j->alpha / (double)j->size * sum;
        j->power[i] = pow(sum, -j->beta);
        j->part[i] = ref_d(dy, i) * ref_d(x, i) * j->power[i] / sum;
    }
}

static void lrn_second_piece(void *arg, int64_t begin, int64_t end)
{
    const struct lrn_job *j = arg;
    const struct tensor *dy = &j->c->in[0], *x = &j->c->in[1];
    for (int64_t i = begin; i < end; i++) {
        int64_t ch = i / j->inner % j->channels, first = i - ch * j->inner;
        double sum = 0;
        for (int64_t k = YK_MAX(ch - j->size / 2, 0); k <= YK_MIN(ch + (j->size - 1) / 2, j->channels - 1); k++)
            sum += j->part[first + k * j->inner];
        double v = ref_d(dy, i) * j->power[i] - 2 * j->alpha * j->beta / (double)j->size * ref_d(x, i) * sum;
        ref_store_d(j->c->out[0].data, j->c->out[0].shape.dtype, i, 1, &v, 1);
    }
}

static void lrn_sizes(const struct op_ctx *c, struct backend_form *form)
{
    form->workspace_bytes += 2 * (int64_t)sizeof(double) * YK_MAX(shape_count(c->in[1]), 0);
}

static yk_err run_lrn(struct host_call *c)
{
    const struct shape *x = &c->in[1].shape;
    int64_t n = shape_count(x);
    struct lrn_job j = {.c = c, .size = node_attr_i(c->node, "size", 1), .channels = x->dims[1], .inner = 1};
    j.alpha = (double)node_attr_f(c->node, "alpha", 1e-4f);
    j.beta = (double)node_attr_f(c->node, "beta", 0.75f);
    j.bias = (double)node_attr_f(c->node, "bias", 1);
    j.power = c->workspace;
    j.part = j.power + n;
    for (int d = 2; d < x->rank; d++)
        j.inner *= x->dims[d];
    int64_t window = YK_MIN(j.size, j.channels);
    j.size = YK_MIN(j.size, INT64_MAX / 2);
    host_split(c, n, 50 + 3 * window, lrn_first_piece, &j);
    host_split(c, n, 10 + 3 * window, lrn_second_piece, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "ai.yoke", .op = "LayerNormGrad", .kind = "ref", .sizes = norm_sizes, .run = run_norm},
    {.domain = "ai.yoke", .op = "InstanceNormGrad", .kind = "ref", .sizes = norm_sizes, .run = run_norm},
    {.domain = "ai.yoke", .op = "LRNGrad", .kind = "ref", .sizes = lrn_sizes, .run = run_lrn},
};
const struct host_rows ref_grad_norm = {rows, (int)YK_COUNT(rows)};
