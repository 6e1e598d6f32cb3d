/* ConvTranspose in f32: the weights transposed times the input give a column for every input element, which is added to
 * the output where its taps reach (col2im).
 *
 * A tile is a block of output channels of one image and group, so tiles write apart; inside it the input is taken in
 * chunks of elements, in order, so that the columns stay in the cache. Blocks and chunks follow from the shape alone.
 */
#include <cblas.h>

#include <string.h>

#include "kernels/blas.h"
#include "kernels/conv.h"
#include "kernels/simd.h"

#define COLUMN_FLOATS (128 << 10) /* of one chunk */
#define CHUNK_MIN 64              /* input elements */
#define ROUND 16                  /* tiles that may run at once: each has its columns in the workspace */

struct deconv_plan {
    struct conv_dims d;
    int64_t rows, per, taps; /* output and input channels of a group; elements of a kernel */
    int64_t in, out;         /* elements of a channel */
    int64_t block, n_blocks; /* output channels of a tile; tiles of a group */
    int64_t chunk, tiles;    /* input elements at a time; of the whole batch */
};

static void plan(const struct conv_dims *d, struct deconv_plan *p)
{
    *p = (struct deconv_plan){.d = *d, .rows = d->oc / d->group, .per = d->c / d->group};
    conv_right_align(&p->d);
    p->taps = d->k[0] * d->k[1] * d->k[2];
    p->in = d->in[0] * d->in[1] * d->in[2];
    p->out = d->out[0] * d->out[1] * d->out[2];
    /* The number of blocks does not depend on the input's size, so that the workspace grows with it. */
    int64_t least = YK_MIN((32 + p->taps - 1) / p->taps, p->rows); /* rows enough for a product */
    p->block = YK_MAX((p->rows + ROUND - 1) / ROUND, least);
    p->n_blocks = (p->rows + p->block - 1) / p->block;
    p->chunk = YK_MIN(YK_MAX(COLUMN_FLOATS / (p->block * p->taps), CHUNK_MIN), p->in);
    p->tiles = d->n * d->group * p->n_blocks;
}

struct deconv_job {
    struct host_call *c;
    struct deconv_plan p;
    int64_t first; /* tile of this round */
};

SIMD_CLONES static void add_line(float *restrict y, const float *restrict col, int64_t n, int64_t stride)
{
    if (stride == 1)
        for (int64_t i = 0; i < n; i++)
            y[i] += col[i];
    else
        for (int64_t i = 0; i < n; i++)
            y[i * stride] += col[i];
}

/* Adds the columns of one tap for input elements [first, first + n) to a channel of the output. */
static void add_tap(const struct deconv_plan *p, float *y, const float *col, int64_t tap, int64_t first, int64_t n)
{
    const struct conv_dims *d = &p->d;
    int64_t kc = tap % d->k[2], kb = tap / d->k[2] % d->k[1], ka = tap / d->k[2] / d->k[1];
    int64_t stride = d->stride[2], shift = kc * d->dilation[2] - d->pad_begin[2];
    while (n > 0) {
        int64_t at = first % d->in[2], line = first / d->in[2], run = YK_MIN(d->in[2] - at, n);
        int64_t a = line / d->in[1] * d->stride[0] + ka * d->dilation[0] - d->pad_begin[0];
        int64_t b = line % d->in[1] * d->stride[1] + kb * d->dilation[1] - d->pad_begin[1];
        if (a >= 0 && a < d->out[0] && b >= 0 && b < d->out[1]) {
            /* Elements lo..hi of the line reach into the output. */
            int64_t lo = shift < 0 ? (-shift + stride - 1) / stride : 0;
            int64_t hi = d->out[2] > shift ? (d->out[2] - shift - 1) / stride + 1 : 0;
            lo = YK_MAX(lo, at);
            hi = YK_MIN(hi, at + run);
            if (hi > lo)
                add_line(y + (a * d->out[1] + b) * d->out[2] + lo * stride + shift, col + (lo - at), hi - lo, stride);
        }
        col += run;
        first += run;
        n -= run;
    }
}

static void deconv_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct deconv_job *j = arg;
    const struct deconv_plan *p = &j->p;
    int64_t tile = j->first + i, block = tile % p->n_blocks, image = tile / p->n_blocks / p->d.group;
    int64_t group = tile / p->n_blocks % p->d.group, m0 = block * p->block, m = YK_MIN(p->block, p->rows - m0);
    float *cols = (float *)j->c->workspace + i * p->block * p->taps * p->chunk;
    const float *w = (const float *)j->c->in[1].data + (group * p->per * p->rows + m0) * p->taps;
    const float *x = (const float *)j->c->in[0].data + (image * p->d.c + group * p->per) * p->in;
    const float *bias = j->c->n_in > 2 ? j->c->in[2].data : NULL;
    int64_t oc = group * p->rows + m0;
    float *y = (float *)j->c->out[0].data + (image * p->d.oc + oc) * p->out;
    for (int64_t r = 0; r < m; r++)
        for (int64_t k = 0; k < p->out; k++)
            y[r * p->out + k] = bias ? bias[oc + r] : 0;
    for (int64_t first = 0; first < p->in; first += p->chunk) {
        int64_t n = YK_MIN(p->chunk, p->in - first);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)(m * p->taps), (int)n, (int)p->per, 1, w,
            (int)(p->rows * p->taps), x + first, (int)p->in, 0, cols, (int)n);
        for (int64_t r = 0; r < m; r++)
            for (int64_t t = 0; t < p->taps; t++)
                add_tap(p, y + r * p->out, cols + (r * p->taps + t) * n, t, first, n);
    }
}

static yk_err run_deconv(struct host_call *c)
{
    struct deconv_job j = {.c = c};
    struct conv_dims d;
    yk_err err = op_deconv_dims(c->node, &c->in[0].shape, &c->in[1].shape, &d, c->why);
    if (err)
        return err;
    plan(&d, &j.p);
    for (j.first = 0; j.first < j.p.tiles; j.first += ROUND)
        pool_run(c->pool, YK_MIN(ROUND, j.p.tiles - j.first), deconv_tile, &j);
    return YK_OK;
}

static bool claim_deconv(const struct op_ctx *c)
{
    struct conv_dims d;
    struct deconv_plan p;
    if (!simd_claim_f32(c) || op_deconv_dims(c->node, c->in[0], c->in[1], &d, NULL))
        return false;
    plan(&d, &p);
    return p.in <= INT32_MAX && p.per <= INT32_MAX && p.rows <= INT32_MAX / p.taps;
}

static void sizes_deconv(const struct op_ctx *c, struct backend_form *f)
{
    struct conv_dims d;
    struct deconv_plan p;
    if (op_deconv_dims(c->node, c->in[0], c->in[1], &d, NULL))
        return;
    plan(&d, &p);
    f->workspace_bytes = YK_MIN(ROUND, p.tiles) * p.block * p.taps * p.chunk * (int64_t)sizeof(float);
}

static const struct host_kernel rows[] = {
    {.domain = "",
        .op = "ConvTranspose",
        .kind = "deconv.col2im",
        .claim = claim_deconv,
        .sizes = sizes_deconv,
        .run = run_deconv},
};
const struct host_rows blas_deconv = {rows, (int)YK_COUNT(rows)};
