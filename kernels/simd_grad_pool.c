/* Gradients of pooling, channels last, and of Relu. An image after the other and its windows in order, so that sums of
 * windows that overlap have one order. */
#include <math.h>
#include <string.h>

#include "kernels/simd.h"
#include "kernels/simd_last.h"

#define LANES 64 /* channels of a unit */

struct job {
    struct host_call *c;
    struct conv_dims d;
    const float *dy, *x;
    float *dx;
    bool include_pad;
};

/* Whether x is a new first maximum: a NaN is one, but for those behind it. */
SIMD_CLONES static void better(
    float *restrict best, int32_t *restrict at, const float *restrict x, int32_t tap, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        bool take = (best[k] == best[k]) & !(x[k] <= best[k]);
        best[k] = take ? x[k] : best[k];
        at[k] = take ? tap : at[k];
    }
}

SIMD_CLONES static void add_where(
    float *restrict dx, const float *restrict dy, const int32_t *restrict at, int32_t tap, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        dx[k] += at[k] == tap ? dy[k] : 0.0f;
}

SIMD_CLONES static void add_scaled(float *restrict dx, const float *restrict dy, float f, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        dx[k] += dy[k] * f;
}

/* Taps lo..hi of an axis that are inside for output o; first: where tap 0 is. */
static void span(const struct conv_dims *d, int s, int64_t o, int64_t *first, int64_t *lo, int64_t *hi)
{
    *first = o * d->stride[s] - d->pad_begin[s];
    *lo = *first < 0 ? (-*first + d->dilation[s] - 1) / d->dilation[s] : 0;
    *hi = d->k[s];
    while (*hi > *lo && *first + (*hi - 1) * d->dilation[s] >= d->in[s])
        (*hi)--;
}

/* What a window counts on an axis with its padding, but not what ceil_mode adds behind it. */
static int64_t padded(const struct conv_dims *d, int s, int64_t first)
{
    int64_t n = 0;
    for (int64_t k = 0; k < d->k[s]; k++)
        n += first + k * d->dilation[s] < d->in[s] + d->pad_end[s];
    return n;
}

static void window(const struct job *j, int64_t oy, int64_t ox, const float *dy, const float *x, float *dx, int64_t n)
{
    const struct conv_dims *d = &j->d;
    int64_t y0, ylo, yhi, x0, xlo, xhi;
    span(d, 1, oy, &y0, &ylo, &yhi);
    span(d, 2, ox, &x0, &xlo, &xhi);
    if (ylo >= yhi || xlo >= xhi)
        return;
    int32_t at[LANES];
    float best[LANES];
    int64_t count = j->include_pad ? padded(d, 1, y0) * padded(d, 2, x0) : (yhi - ylo) * (xhi - xlo);
    float part = 1.0f / (float)count;
    for (int pass = x ? 0 : 1; pass < 2; pass++)
        for (int64_t ky = ylo; ky < yhi; ky++)
            for (int64_t kx = xlo; kx < xhi; kx++) {
                int64_t place = ((y0 + ky * d->dilation[1]) * d->in[2] + x0 + kx * d->dilation[2]) * d->c;
                int32_t tap = (int32_t)(ky * d->k[2] + kx);
                if (!x) {
                    add_scaled(dx + place, dy, part, n);
                } else if (pass) {
                    add_where(dx + place, dy, at, tap, n);
                } else if (ky == ylo && kx == xlo) {
                    memcpy(best, x + place, (size_t)n * sizeof(float));
                    for (int64_t k = 0; k < n; k++)
                        at[k] = tap;
                } else {
                    better(best, at, x + place, tap, n);
                }
            }
}

static void tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    const struct conv_dims *d = &j->d;
    int64_t blocks = (d->c + LANES - 1) / LANES, image = i / blocks, c = i % blocks * LANES,
            n = YK_MIN(LANES, d->c - c);
    int64_t in = d->in[1] * d->in[2], out = d->out[1] * d->out[2];
    float *dx = j->dx + image * in * d->c + c;
    for (int64_t p = 0; p < in; p++)
        memset(dx + p * d->c, 0, (size_t)n * sizeof(float));
    for (int64_t p = 0; p < out; p++)
        window(j, p / d->out[2], p % d->out[2], j->dy + (image * out + p) * d->c + c,
            j->x ? j->x + image * in * d->c + c : NULL, dx, n);
}

static bool claim(const struct op_ctx *c)
{
    struct conv_dims d;
    return c->in[0]->dtype == DT_F32 && op_conv_dims(c->node, &c->out[0], NULL, &d, NULL) == YK_OK && d.spatial <= 2 &&
           d.k[0] * d.k[1] <= INT32_MAX;
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    f->workspace_bytes = simd_last_bytes(c->in[0]) + 2 * simd_last_bytes(&c->out[0]);
}

static yk_err run(struct host_call *c)
{
    struct job j = {.c = c, .include_pad = node_attr_i(c->node, "count_include_pad", 0) != 0};
    char *rest = c->workspace;
    yk_err err = op_conv_dims(c->node, &c->out[0].shape, NULL, &j.d, c->why);
    if (err)
        return err;
    conv_right_align(&j.d);
    j.dy = simd_last_input(c, 0, &rest);
    if (!strcmp(c->node->op->name, "MaxPoolGrad"))
        j.x = simd_last_input(c, 1, &rest);
    j.dx = simd_last_output(c, 0, &rest);
    pool_run(c->pool, j.d.n * ((j.d.c + LANES - 1) / LANES), tile, &j);
    simd_last_output_end(c, 0, j.dx);
    return YK_OK;
}

SIMD_CLONES static void relu_grad(float *restrict dx, const float *restrict dy, const float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = y[i] <= 0 ? 0 : dy[i];
}

static void relu_piece(void *arg, int64_t begin, int64_t end)
{
    struct host_call *c = arg;
    relu_grad((float *)c->out[0].data + begin, (const float *)c->in[0].data + begin,
        (const float *)c->in[1].data + begin, end - begin);
}

static yk_err run_relu(struct host_call *c)
{
    host_split(c, tensor_count(&c->out[0]), 1, relu_piece, c);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "ai.yoke",
        .op = "MaxPoolGrad",
        .kind = "pool",
        .claim = claim,
        .sizes = sizes,
        .run = run,
        .layout = HOST_ANY},
    {.domain = "ai.yoke",
        .op = "AveragePoolGrad",
        .kind = "pool",
        .claim = claim,
        .sizes = sizes,
        .run = run,
        .layout = HOST_ANY},
    {.domain = "ai.yoke",
        .op = "ReluGrad",
        .kind = "map",
        .claim = simd_claim_f32,
        .run = run_relu,
        .layout = HOST_SAME},
};
const struct host_rows simd_grad_pool = {rows, (int)YK_COUNT(rows)};
