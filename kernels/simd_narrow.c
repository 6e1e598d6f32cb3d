/* conv.narrow: a convolution of few input channels (an image) as a product that reads its patches where they lie, in
 * planes or channels last: a term of a pixel is at the pixel plus an offset. Pixels at the edges have their patches
 * written out with zeros. */
#include <stdlib.h>

#include "kernels/simd_last.h"

#define CHANNELS_MOST 4
#define TERMS_MOST 1024
#define TILE_FLOPS 1e6

struct plan {
    int64_t k, bands, rows; /* terms; bands of an image, rows of a band */
    int64_t offsets, bytes; /* of the workspace: for the offsets, for the patches of a tile */
    int slots;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static void make_plan(const struct conv_dims *d, struct plan *p)
{
    *p = (struct plan){.k = d->c * d->k[1] * d->k[2]};
    double flops = 2.0 * (double)(d->out[2] * d->oc) * (double)p->k, rows = TILE_FLOPS / (flops + 1) + 1;
    p->rows = rows < (double)d->out[1] ? (int64_t)rows : YK_MAX(d->out[1], 1);
    p->bands = YK_MAX(ceil_div(d->out[1], p->rows), 1);
    p->offsets = ceil_div(p->k * (int64_t)sizeof(int64_t), 64) * 64;
    p->bytes = ceil_div(d->out[2] * p->k * (int64_t)sizeof(float), 64) * 64;
    p->slots = simd_last_slots(p->bytes, d->n * p->bands);
}

static bool claim(const struct op_ctx *c)
{
    struct conv_dims d;
    return simd_last_claim(c, &d) && d.group == 1 && d.c <= CHANNELS_MOST && d.k[1] * d.k[2] > 1 &&
           d.k[1] * d.k[2] * d.c <= TERMS_MOST;
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    struct conv_dims d;
    struct plan p;
    if (!simd_last_claim(c, &d))
        return;
    make_plan(&d, &p);
    f->packed_bytes = simd_packed(simd_isa_best(), p.k, d.oc) * (int64_t)sizeof(float);
    f->workspace_bytes = simd_last_workspace(c, &d) + p.offsets + simd_last_slots_most(p.bytes, d.n * p.bands);
}

static yk_err pack(const struct op_ctx *c, const void *const *in, void *packed, struct yk_diag *why)
{
    const struct shape *w = c->in[1];
    int64_t k = 1;
    for (int i = 1; i < w->rank; i++)
        k *= w->dims[i];
    if (!in[1])
        return yk_fail(why, YK_INTERNAL, "the weights of a packed form are not fixed");
    simd_isa_best()->pack(packed, in[1], k, w->dims[0], k, true);
    return YK_OK;
}

struct job {
    struct simd_last s;
    struct plan p;
    int64_t *offsets;
    int64_t channel, row, pixel; /* steps of the input */
    int64_t lo, hi;              /* columns that see only the inside */
    struct simd_slots slots;
};

/* Patches of pixels first..end of a row, each k floats. */
static void patches(const struct job *j, float *to, const float *x, int64_t oy, int64_t first, int64_t end)
{
    const struct conv_dims *d = &j->s.d;
    for (int64_t ox = first; ox < end; ox++)
        for (int64_t ic = 0; ic < d->c; ic++)
            for (int64_t ky = 0; ky < d->k[1]; ky++) {
                int64_t y = oy * d->stride[1] + ky * d->dilation[1] - d->pad_begin[1];
                for (int64_t kx = 0; kx < d->k[2]; kx++) {
                    int64_t at = ox * d->stride[2] + kx * d->dilation[2] - d->pad_begin[2];
                    bool in = y >= 0 && y < d->in[1] && at >= 0 && at < d->in[2];
                    *to++ = in ? x[ic * j->channel + y * j->row + at * j->pixel] : 0;
                }
            }
}

/* Pixels first..end of a row: in place, or from patches. */
static void pixels(const struct job *j, int64_t image, int64_t oy, int64_t first, int64_t end, float *scratch)
{
    const struct conv_dims *d = &j->s.d;
    const float *x = j->s.x + image * d->in[1] * d->in[2] * d->c;
    int64_t out = ((image * d->out[1] + oy) * d->out[2] + first) * d->oc;
    struct simd_gemm g = {.m = end - first, .n = d->oc, .k = j->p.k, .b = j->s.c->packed, .ldy = d->oc, .e = j->s.e};
    if (first >= end)
        return;
    if (scratch) {
        patches(j, scratch, x, oy, first, end);
        g.a = scratch;
        g.lda = j->p.k;
    } else {
        g.a = x + (oy * d->stride[1] - d->pad_begin[1]) * j->row + (first * d->stride[2] - d->pad_begin[2]) * j->pixel;
        g.lda = d->stride[2] * j->pixel;
        g.at = j->offsets;
    }
    g.y = j->s.y + out;
    g.e.add = g.e.add ? g.e.add + out : NULL;
    j->s.isa->gemm(&g);
}

static void tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    const struct conv_dims *d = &j->s.d;
    int64_t image = i / j->p.bands, first = i % j->p.bands * j->p.rows, end = YK_MIN(first + j->p.rows, d->out[1]);
    int slot = simd_last_take(&j->slots);
    float *scratch = simd_last_slot(&j->slots, slot);
    for (int64_t oy = first; oy < end; oy++) {
        int64_t y = oy * d->stride[1] - d->pad_begin[1];
        bool in = y >= 0 && y + (d->k[1] - 1) * d->dilation[1] < d->in[1];
        int64_t lo = in ? j->lo : d->out[2], hi = in ? j->hi : d->out[2];
        pixels(j, image, oy, 0, lo, scratch);
        pixels(j, image, oy, lo, hi, NULL);
        pixels(j, image, oy, hi, d->out[2], scratch);
    }
    simd_last_give(&j->slots, slot);
}

static yk_err run(struct host_call *c)
{
    struct job j;
    yk_err err = simd_last_begin_as_is(c, &j.s);
    if (err)
        return err;
    const struct conv_dims *d = &j.s.d;
    make_plan(d, &j.p);
    bool last = c->last_in & 1;
    j.channel = last ? 1 : d->in[1] * d->in[2];
    j.pixel = last ? d->c : 1;
    j.row = d->in[2] * j.pixel;
    j.offsets = (int64_t *)(void *)j.s.rest;
    int64_t *at = j.offsets, span = (d->k[2] - 1) * d->dilation[2] - d->pad_begin[2];
    for (int64_t ic = 0; ic < d->c; ic++)
        for (int64_t ky = 0; ky < d->k[1]; ky++)
            for (int64_t kx = 0; kx < d->k[2]; kx++)
                *at++ = ic * j.channel + ky * d->dilation[1] * j.row + kx * d->dilation[2] * j.pixel;
    j.lo = YK_MIN(ceil_div(d->pad_begin[2], d->stride[2]), d->out[2]);
    j.hi = d->in[2] - 1 < span ? 0 : (d->in[2] - 1 - span) / d->stride[2] + 1;
    j.hi = YK_MAX(YK_MIN(j.hi, d->out[2]), j.lo);
    simd_last_lend(&j.slots, j.s.rest + j.p.offsets, j.p.bytes, j.p.slots);
    pool_run(c->pool, d->n * j.p.bands, tile, &j);
    simd_last_end(&j.s);
    return YK_OK;
}

#define ROW(dom, name)                                                                                              \
    {                                                                                                               \
        .domain = dom, .op = name, .kind = "conv.narrow", .claim = claim, .sizes = sizes, .pack = pack, .run = run, \
        .layout = HOST_ANY                                                                                          \
    }
static const struct host_kernel rows[] = {ROW("ai.yoke", "FusedConv"), ROW("", "Conv")};
const struct host_rows simd_narrow = {rows, (int)YK_COUNT(rows)};
