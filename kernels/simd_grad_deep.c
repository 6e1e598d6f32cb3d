/* conv.deep: the gradient of the input of a depthwise convolution with strides. A row of dX is made phase by phase:
 * elements whose position has the same rest modulo the stride meet the same taps, each at one shift of a row of dY. */
#include <string.h>

#include "kernels/conv.h"
#include "kernels/simd.h"

#define ROW_MOST 4096 /* floats of a row of dX */

struct job {
    struct host_call *c;
    struct conv_dims d;
    int64_t each; /* outputs of a channel */
};

/* acc[j] += w * dy[j + shift] for 0 <= j < n where that is inside a row of `out` elements. */
static void add_row(float *restrict acc, const float *restrict dy, int64_t n, int64_t shift, int64_t out, float w)
{
    int64_t first = YK_MAX(0, -shift), last = YK_MIN(n, out - shift);
    for (int64_t j = first; j < last; j++)
        acc[j] += w * dy[j + shift];
}

static void plane(const struct job *j, int64_t p)
{
    const struct conv_dims *d = &j->d;
    int64_t channel = p % d->c, image = p / d->c, s = d->stride[2], width = (d->in[2] + s - 1) / s;
    float acc[ROW_MOST], *dx = (float *)j->c->out[0].data + p * d->in[1] * d->in[2];
    const float *w = (const float *)j->c->in[1].data + channel * j->each * d->k[1] * d->k[2];
    const float *dy = (const float *)j->c->in[0].data + (image * d->oc + channel * j->each) * d->out[1] * d->out[2];
    for (int64_t y = 0; y < d->in[1]; y++, dx += d->in[2]) {
        memset(acc, 0, (size_t)(s * width) * sizeof *acc);
        for (int64_t m = 0; m < j->each; m++)
            for (int64_t ky = 0; ky < d->k[1]; ky++) {
                int64_t from = y + d->pad_begin[1] - ky * d->dilation[1], oy = from / d->stride[1];
                if (from < 0 || from % d->stride[1] != 0 || oy >= d->out[1])
                    continue;
                for (int64_t kx = 0; kx < d->k[2]; kx++) { /* x = o * s + at */
                    int64_t at = kx * d->dilation[2] - d->pad_begin[2], phase = (at % s + s) % s;
                    add_row(acc + phase * width, dy + (m * d->out[1] + oy) * d->out[2], width, (phase - at) / s,
                        d->out[2], w[(m * d->k[1] + ky) * d->k[2] + kx]);
                }
            }
        for (int64_t phase = 0; phase < s; phase++)
            for (int64_t i = 0, x = phase; x < d->in[2]; i++, x += s)
                dx[x] = acc[phase * width + i];
    }
}

static void piece(void *arg, int64_t begin, int64_t end)
{
    for (int64_t p = begin; p < end; p++)
        plane(arg, p);
}

static bool claim(const struct op_ctx *c)
{
    struct conv_dims d;
    if (c->in[0]->dtype != DT_F32 || c->in[1]->dtype != DT_F32 ||
        op_conv_dims(c->node, &c->out[0], c->in[1], &d, NULL) || d.spatial > 2 || d.c != d.group)
        return false;
    conv_right_align(&d);
    return d.stride[1] * d.stride[2] > 1 && d.in[2] + d.stride[2] <= ROW_MOST;
}

static yk_err run(struct host_call *c)
{
    struct job j = {.c = c};
    yk_err err = op_conv_dims(c->node, &c->out[0].shape, &c->in[1].shape, &j.d, c->why);
    if (err)
        return err;
    conv_right_align(&j.d);
    const struct conv_dims *d = &j.d;
    j.each = d->oc / d->c;
    int64_t cost = d->in[1] * d->in[2] + d->out[1] * d->out[2] * d->k[1] * d->k[2] * j.each / 4;
    host_split(c, d->n * d->c, cost, piece, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "ai.yoke", .op = "ConvGradInput", .kind = "conv.deep", .claim = claim, .run = run}};
const struct host_rows simd_grad_deep = {rows, (int)YK_COUNT(rows)};
