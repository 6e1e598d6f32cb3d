/* Convolution, 1 to 3 spatial axes, grouped, with the epilogue of FusedConv, PreactConv, and transposed convolution. */
#include "common/activation.h"
#include "kernels/ref.h"

struct conv_job {
    struct host_call *c;
    struct conv_dims d;
    struct activation activation;
};

static double conv_sum(const struct conv_job *j, const double *w, int64_t n, int64_t group, const int64_t *at)
{
    const struct conv_dims *d = &j->d;
    const struct tensor *x = &j->c->in[0];
    int64_t per_group = d->c / d->group, plane = d->in[0] * d->in[1] * d->in[2];
    double sum = 0;
    for (int64_t ch = 0; ch < per_group; ch++) {
        int64_t base = (n * d->c + group * per_group + ch) * plane;
        for (int64_t a = 0; a < d->k[0]; a++) {
            int64_t i = at[0] * d->stride[0] + a * d->dilation[0] - d->pad_begin[0];
            for (int64_t b = 0; b < d->k[1]; b++) {
                int64_t k = at[1] * d->stride[1] + b * d->dilation[1] - d->pad_begin[1];
                for (int64_t e = 0; e < d->k[2]; e++, w++) {
                    int64_t l = at[2] * d->stride[2] + e * d->dilation[2] - d->pad_begin[2];
                    if (i < 0 || i >= d->in[0] || k < 0 || k >= d->in[1] || l < 0 || l >= d->in[2])
                        continue;
                    sum += *w * ref_d(x, base + (i * d->in[1] + k) * d->in[2] + l);
                }
            }
        }
    }
    return sum;
}

/* One piece is planes (image, output channel). */
static void conv_piece(void *arg, int64_t begin, int64_t end)
{
    const struct conv_job *j = arg;
    struct host_call *c = j->c;
    const struct conv_dims *d = &j->d;
    int64_t taps = d->c / d->group * d->k[0] * d->k[1] * d->k[2], plane = d->out[0] * d->out[1] * d->out[2];
    const double *w = c->workspace;
    for (int64_t p = begin; p < end; p++) {
        int64_t n = p / d->oc, oc = p % d->oc;
        const double *row = w + oc * taps;
        double bias = ref_has(c, 2) ? ref_d(&c->in[2], oc) : 0;
        int64_t at[3], i = p * plane;
        for (at[0] = 0; at[0] < d->out[0]; at[0]++)
            for (at[1] = 0; at[1] < d->out[1]; at[1]++)
                for (at[2] = 0; at[2] < d->out[2]; at[2]++, i++) {
                    double v = conv_sum(j, row, n, oc / (d->oc / d->group), at) + bias;
                    if (ref_has(c, 3))
                        v += ref_d(&c->in[3], i);
                    v = activation_apply(&j->activation, v);
                    ref_store_d(c->out[0].data, c->out[0].shape.dtype, i, 1, &v, 1);
                }
    }
}

/* The weights as doubles, so that the inner loop has one conversion. */
static void sizes_conv(const struct op_ctx *c, struct backend_form *f)
{
    f->workspace_bytes = shape_count(c->in[1]) * (int64_t)sizeof(double);
}

static yk_err run_conv(struct host_call *c)
{
    struct conv_job j = {.c = c, .activation = activation_of(c->node)};
    yk_err err = op_conv_dims(c->node, &c->in[0].shape, &c->in[1].shape, &j.d, c->why);
    if (err)
        return err;
    ref_load_d(c->workspace, c->in[1].data, c->in[1].shape.dtype, 0, 1, tensor_count(&c->in[1]));
    int64_t taps = j.d.c / j.d.group * j.d.k[0] * j.d.k[1] * j.d.k[2];
    host_split(c, j.d.n * j.d.oc, 2 * taps * j.d.out[0] * j.d.out[1] * j.d.out[2], conv_piece, &j);
    return YK_OK;
}

/* ---- PreactConv: all of relu(scale * x + shift) first, then the products ---- */

struct preact_job {
    struct host_call *c;
    int64_t n, channels, oc, pixels;
    double *weights, *active;
    struct activation activation;
};

/* One piece is planes (image, channel) of one input: the channels in front of it are counted. */
static void preact_piece(void *arg, int64_t begin, int64_t end)
{
    const struct preact_job *j = arg;
    for (int64_t p = begin; p < end; p++) {
        int64_t image = p / j->channels, channel = p % j->channels, at = channel;
        int i = 0;
        while (at >= j->c->in[i].shape.dims[1]) {
            at -= j->c->in[i].shape.dims[1];
            i = i == 0 ? 5 : i + 1;
        }
        const struct tensor *x = &j->c->in[i];
        double *y = j->active + p * j->pixels;
        double scale = ref_d(&j->c->in[3], channel), shift = ref_d(&j->c->in[4], channel);
        ref_load_d(y, x->data, x->shape.dtype, (image * x->shape.dims[1] + at) * j->pixels, 1, j->pixels);
        for (int64_t k = 0; k < j->pixels; k++) {
            y[k] = y[k] * scale + shift;
            y[k] = y[k] < 0 ? 0 : y[k];
        }
    }
}

static void pointwise_piece(void *arg, int64_t begin, int64_t end)
{
    const struct preact_job *j = arg;
    for (int64_t p = begin; p < end; p++) {
        const double *w = j->weights + p % j->oc * j->channels;
        double bias = ref_d(&j->c->in[2], p % j->oc);
        for (int64_t k = 0; k < j->pixels; k++) {
            const double *x = j->active + p / j->oc * j->channels * j->pixels + k;
            double sum = 0;
            for (int64_t ch = 0; ch < j->channels; ch++)
                sum += w[ch] * x[ch * j->pixels];
            sum = activation_apply(&j->activation, sum + bias);
            ref_store_d(j->c->out[0].data, j->c->out[0].shape.dtype, p * j->pixels + k, 1, &sum, 1);
        }
    }
}

static void sizes_preact(const struct op_ctx *c, struct backend_form *f)
{
    int64_t active = c->in[1]->dims[1] * c->in[0]->dims[0];
    for (int d = 2; d < c->in[0]->rank; d++)
        active *= c->in[0]->dims[d];
    f->workspace_bytes = (shape_count(c->in[1]) + active) * (int64_t)sizeof(double);
}

static yk_err run_preact(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *w = &c->in[1].shape;
    struct preact_job j = {.c = c, .n = x->dims[0], .channels = w->dims[1], .oc = w->dims[0], .pixels = 1};
    for (int d = 2; d < x->rank; d++)
        j.pixels *= x->dims[d];
    j.activation = activation_of(c->node);
    j.weights = c->workspace;
    j.active = j.weights + tensor_count(&c->in[1]);
    ref_load_d(j.weights, c->in[1].data, w->dtype, 0, 1, tensor_count(&c->in[1]));
    host_split(c, j.n * j.channels, 4 * j.pixels, preact_piece, &j);
    host_split(c, j.n * j.oc, 2 * j.channels * j.pixels, pointwise_piece, &j);
    return YK_OK;
}

/* ---- ConvTranspose: every output gathers what its taps would have scattered ---- */

/* Input index of tap k on axis s for output o; -1 if there is none. */
static int64_t deconv_source(const struct conv_dims *d, int s, int64_t o, int64_t k)
{
    int64_t i = o + d->pad_begin[s] - k * d->dilation[s];
    return i < 0 || i % d->stride[s] != 0 || i / d->stride[s] >= d->in[s] ? -1 : i / d->stride[s];
}

static double deconv_sum(const struct conv_job *j, int64_t n, int64_t oc, const int64_t *at)
{
    const struct conv_dims *d = &j->d;
    const double *weights = j->c->workspace;
    int64_t per = d->c / d->group, rows = d->oc / d->group, first = oc / rows * per;
    int64_t taps = d->k[0] * d->k[1] * d->k[2], plane = d->in[0] * d->in[1] * d->in[2];
    double sum = 0;
    for (int64_t ch = first; ch < first + per; ch++) {
        const double *w = weights + (ch * rows + oc % rows) * taps;
        int64_t base = (n * d->c + ch) * plane;
        for (int64_t a = 0; a < d->k[0]; a++) {
            int64_t i = deconv_source(d, 0, at[0], a);
            for (int64_t b = 0; b < d->k[1] && i >= 0; b++) {
                int64_t k = deconv_source(d, 1, at[1], b);
                for (int64_t e = 0; e < d->k[2] && k >= 0; e++) {
                    int64_t l = deconv_source(d, 2, at[2], e);
                    if (l >= 0)
                        sum += w[(a * d->k[1] + b) * d->k[2] + e] *
                               ref_d(&j->c->in[0], base + (i * d->in[1] + k) * d->in[2] + l);
                }
            }
        }
    }
    return sum;
}

static void deconv_piece(void *arg, int64_t begin, int64_t end)
{
    const struct conv_job *j = arg;
    struct host_call *c = j->c;
    const struct conv_dims *d = &j->d;
    int64_t plane = d->out[0] * d->out[1] * d->out[2];
    for (int64_t p = begin; p < end; p++) {
        int64_t n = p / d->oc, oc = p % d->oc, at[3], i = p * plane;
        double bias = ref_has(c, 2) ? ref_d(&c->in[2], oc) : 0;
        for (at[0] = 0; at[0] < d->out[0]; at[0]++)
            for (at[1] = 0; at[1] < d->out[1]; at[1]++)
                for (at[2] = 0; at[2] < d->out[2]; at[2]++, i++) {
                    double v = deconv_sum(j, n, oc, at) + bias;
                    ref_store_d(c->out[0].data, c->out[0].shape.dtype, i, 1, &v, 1);
                }
    }
}

static yk_err run_deconv(struct host_call *c)
{
    struct conv_job j = {.c = c};
    yk_err err = op_deconv_dims(c->node, &c->in[0].shape, &c->in[1].shape, &j.d, c->why);
    if (err)
        return err;
    ref_load_d(c->workspace, c->in[1].data, c->in[1].shape.dtype, 0, 1, tensor_count(&c->in[1]));
    double taps = (double)(j.d.c / j.d.group) * (double)(j.d.k[0] * j.d.k[1] * j.d.k[2]);
    double cost = 2 * taps * (double)(j.d.out[0] * j.d.out[1] * j.d.out[2]);
    host_split(c, j.d.n * j.d.oc, cost > 1e9 ? 1000000000 : (int64_t)cost, deconv_piece, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "", .op = "Conv", .kind = "ref", .sizes = sizes_conv, .run = run_conv},
    {.domain = "ai.yoke", .op = "FusedConv", .kind = "ref", .sizes = sizes_conv, .run = run_conv},
    {.domain = "ai.yoke", .op = "PreactConv", .kind = "ref", .sizes = sizes_preact, .run = run_preact},
    {.domain = "", .op = "ConvTranspose", .kind = "ref", .sizes = sizes_conv, .run = run_deconv},
};
const struct host_rows ref_conv = {rows, (int)YK_COUNT(rows)};
