/* Gradients of a convolution's input and weight, 1 to 3 spatial axes, grouped. */
#include "kernels/ref.h"

struct job {
    struct host_call *c;
    struct conv_dims d;
};

static double *as_doubles(const struct tensor *t, double *out)
{
    int64_t n = tensor_count(t);
    ref_load_d(out, t->data, t->shape.dtype, 0, 1, n);
    return out + n;
}

static int64_t work(const struct conv_dims *d, double pieces)
{
    double macs = (double)d->n * (double)d->oc * (double)(d->out[0] * d->out[1]) * (double)d->out[2] *
                  (double)(d->c / d->group) * (double)(d->k[0] * d->k[1]) * (double)d->k[2];
    double ns = 2 * macs / (pieces > 0 ? pieces : 1) + 10;
    return ns > 1e9 ? 1000000000 : (int64_t)ns;
}

/* ---- input: every element gathers the outputs that it went into ---- */

/* Output index that tap k of axis s takes input i to; -1 if there is none. */
static int64_t output_of(const struct conv_dims *d, int s, int64_t i, int64_t k)
{
    int64_t at = i + d->pad_begin[s] - k * d->dilation[s];
    return at < 0 || at % d->stride[s] != 0 || at / d->stride[s] >= d->out[s] ? -1 : at / d->stride[s];
}

static double input_sum(const struct job *j, int64_t n, int64_t ch, const int64_t *at)
{
    const struct conv_dims *d = &j->d;
    int64_t per = d->c / d->group, rows = d->oc / d->group, group = ch / per, taps = d->k[0] * d->k[1] * d->k[2];
    int64_t plane = d->out[0] * d->out[1] * d->out[2];
    const double *dy = j->c->workspace, *weights = dy + d->n * d->oc * plane;
    double sum = 0;
    for (int64_t oc = group * rows; oc < (group + 1) * rows; oc++) {
        const double *w = weights + (oc * per + ch % per) * taps, *from = dy + (n * d->oc + oc) * plane;
        for (int64_t a = 0; a < d->k[0]; a++) {
            int64_t p = output_of(d, 0, at[0], a);
            for (int64_t b = 0; b < d->k[1] && p >= 0; b++) {
                int64_t q = output_of(d, 1, at[1], b);
                for (int64_t e = 0; e < d->k[2] && q >= 0; e++) {
                    int64_t r = output_of(d, 2, at[2], e);
                    if (r >= 0)
                        sum += w[(a * d->k[1] + b) * d->k[2] + e] * from[(p * d->out[1] + q) * d->out[2] + r];
                }
            }
        }
    }
    return sum;
}

static void input_piece(void *arg, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct conv_dims *d = &j->d;
    struct tensor *dx = &j->c->out[0];
    for (int64_t p = begin; p < end; p++) {
        int64_t at[3], i = p * d->in[0] * d->in[1] * d->in[2];
        for (at[0] = 0; at[0] < d->in[0]; at[0]++)
            for (at[1] = 0; at[1] < d->in[1]; at[1]++)
                for (at[2] = 0; at[2] < d->in[2]; at[2]++, i++) {
                    double v = input_sum(j, p / d->c, p % d->c, at);
                    ref_store_d(dx->data, dx->shape.dtype, i, 1, &v, 1);
                }
    }
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    f->workspace_bytes = (shape_count(c->in[0]) + shape_count(c->in[1])) * (int64_t)sizeof(double);
}

static yk_err run_input(struct host_call *c)
{
    struct job j = {.c = c};
    yk_err err = op_conv_dims(c->node, &c->out[0].shape, &c->in[1].shape, &j.d, c->why);
    if (err)
        return err;
    as_doubles(&c->in[1], as_doubles(&c->in[0], c->workspace));
    int64_t planes = j.d.n * j.d.c;
    host_split(c, planes, work(&j.d, (double)planes), input_piece, &j);
    return YK_OK;
}

/* ---- weight: every tap sums over images and pixels ---- */

static double weight_sum(const struct job *j, int64_t oc, int64_t ch, const int64_t *tap)
{
    const struct conv_dims *d = &j->d;
    int64_t in = d->in[0] * d->in[1] * d->in[2], out = d->out[0] * d->out[1] * d->out[2], shift[3];
    const double *all = j->c->workspace, *dy = all + d->n * d->c * in;
    double sum = 0;
    for (int s = 0; s < 3; s++)
        shift[s] = tap[s] * d->dilation[s] - d->pad_begin[s];
    for (int64_t n = 0; n < d->n; n++) {
        const double *x = all + (n * d->c + ch) * in, *g = dy + (n * d->oc + oc) * out;
        for (int64_t a = 0; a < d->out[0]; a++)
            for (int64_t b = 0; b < d->out[1]; b++) {
                int64_t p = a * d->stride[0] + shift[0], q = b * d->stride[1] + shift[1];
                if (p < 0 || p >= d->in[0] || q < 0 || q >= d->in[1])
                    continue;
                for (int64_t e = 0; e < d->out[2]; e++) {
                    int64_t r = e * d->stride[2] + shift[2];
                    if (r >= 0 && r < d->in[2])
                        sum += x[(p * d->in[1] + q) * d->in[2] + r] * g[(a * d->out[1] + b) * d->out[2] + e];
                }
            }
    }
    return sum;
}

static void weight_piece(void *arg, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct conv_dims *d = &j->d;
    struct tensor *dw = &j->c->out[0];
    int64_t per = d->c / d->group, taps = d->k[0] * d->k[1] * d->k[2];
    for (int64_t p = begin; p < end; p++) {
        int64_t oc = p / per, ch = oc / (d->oc / d->group) * per + p % per, tap[3], i = p * taps;
        for (tap[0] = 0; tap[0] < d->k[0]; tap[0]++)
            for (tap[1] = 0; tap[1] < d->k[1]; tap[1]++)
                for (tap[2] = 0; tap[2] < d->k[2]; tap[2]++, i++) {
                    double v = weight_sum(j, oc, ch, tap);
                    ref_store_d(dw->data, dw->shape.dtype, i, 1, &v, 1);
                }
    }
}

static yk_err run_weight(struct host_call *c)
{
    struct job j = {.c = c};
    yk_err err = op_conv_dims(c->node, &c->in[0].shape, &c->out[0].shape, &j.d, c->why);
    if (err)
        return err;
    as_doubles(&c->in[1], as_doubles(&c->in[0], c->workspace));
    int64_t rows = j.d.oc * (j.d.c / j.d.group);
    host_split(c, rows, work(&j.d, (double)rows), weight_piece, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "ai.yoke", .op = "ConvGradInput", .kind = "ref", .sizes = sizes, .run = run_input},
    {.domain = "ai.yoke", .op = "ConvGradWeight", .kind = "ref", .sizes = sizes, .run = run_weight},
};
const struct host_rows ref_grad_conv = {rows, (int)YK_COUNT(rows)};
