/* conv.gemm: a convolution as a product of pixels by weights. A tile gathers the patches of its own pixels into scratch
 * (channels are contiguous, so a patch is a few runs); a 1x1 kernel of stride 1 reads the input in place.
 * conv.trim: the same without the taps that see padding only, where the run packs the weights. */
#include <string.h>

#include "kernels/simd_last.h"
#include "kernels/simd_weights.h"

#define ROWS_SMALL 48 /* pixels of a tile when its weights stay in a near cache, else */
#define ROWS_LARGE 96
#define NEAR_BYTES (512 << 10)
#define SLOT_BYTES (1 << 20)
#define TILES_WANTED 16
#define TILE_FLOPS 2e6
#define ROWS_LEAST 16 /* and of products in place */
#define SMALL_WANTED 32
#define SMALL_FLOPS 1e6

struct plan {
    int64_t ic, oc, k;     /* of a group */
    int64_t m, rows;       /* pixels in all and of a tile */
    int64_t blocks, parts; /* of pixels, of columns */
    bool in_place;
    bool columns_first; /* tiles that follow each other have the same columns: where weights are more than pixels */
    int64_t lda, bytes; /* of the patches of a tile */
    int slots;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* More and smaller tiles cost a product that reads its pixels in place next to nothing. A thread's share of them is one
 * range of what there is more of: of the weights, or of the pixels, which it then finds where it made them. */
static void share_in_place(struct plan *p, int64_t panels)
{
    double tiles = 2.0 * (double)p->m * (double)p->k * (double)p->oc / SMALL_FLOPS;
    int64_t want = tiles > SMALL_WANTED ? SMALL_WANTED : tiles < 1 ? 1 : (int64_t)tiles;
    p->columns_first = (double)p->k * (double)p->oc > (double)p->m * (double)(p->k + p->oc);
    p->parts = p->columns_first ? YK_MIN(want, panels) : 1;
    p->blocks = YK_MAX(p->blocks, YK_MIN(ceil_div(want, p->parts), ceil_div(p->m, ROWS_LEAST)));
    p->rows = YK_MAX(ceil_div(p->m, p->blocks), 1);
    p->blocks = YK_MAX(ceil_div(p->m, p->rows), 1);
    if (!p->columns_first)
        p->parts = YK_MIN(ceil_div(want, p->blocks), panels);
}

static void make_plan(const struct conv_dims *d, struct plan *p)
{
    int nr = simd_isa_best()->nr;
    *p = (struct plan){.ic = d->c / d->group, .oc = d->oc / d->group, .m = d->n * d->out[1] * d->out[2]};
    p->k = p->ic * d->k[1] * d->k[2];
    p->in_place = true;
    for (int i = 1; i < 3; i++)
        p->in_place = p->in_place && d->k[i] == 1 && d->stride[i] == 1 && d->pad_begin[i] == 0 && d->pad_end[i] == 0;
    p->lda = p->in_place ? d->c : p->k % 256 == 0 ? p->k + 16 : p->k;
    p->rows = p->k * p->oc * (int64_t)sizeof(float) > NEAR_BYTES ? ROWS_LARGE : ROWS_SMALL;
    if (!p->in_place) {
        int64_t fit = SLOT_BYTES / (YK_MAX(p->lda, 1) * (int64_t)sizeof(float)) / 12 * 12;
        p->rows = YK_MAX(YK_MIN(p->rows, fit), 12);
    }
    /* Not by the rows and tiles that it comes to: for fewer pixels they may be more. */
    p->bytes = p->in_place ? 0 : (YK_MIN(p->rows, p->m) * p->lda * (int64_t)sizeof(float) + 127) / 64 * 64;
    p->blocks = YK_MAX(ceil_div(p->m, p->rows), 1);
    if (p->in_place) {
        share_in_place(p, ceil_div(p->oc, nr));
        return;
    }
    p->rows = ceil_div(ceil_div(YK_MAX(p->m, 1), p->blocks), 12) * 12;
    p->blocks = YK_MAX(ceil_div(p->m, p->rows), 1);
    double flops = 2.0 * (double)YK_MIN(p->rows, p->m) * (double)p->k * (double)p->oc;
    int64_t most = flops / TILE_FLOPS < 1 ? 1 : flops / TILE_FLOPS > 64 ? 64 : (int64_t)(flops / TILE_FLOPS);
    p->parts = YK_MIN(YK_MIN(ceil_div(TILES_WANTED, p->blocks), ceil_div(p->oc, nr)), most);
    p->slots = simd_last_slots(p->bytes, (p->blocks + TILES_WANTED) * d->group);
}

static bool claim(const struct op_ctx *c)
{
    struct conv_dims d;
    return simd_last_claim(c, &d) && (d.group == 1 || d.c / d.group > 1);
}

static int64_t packed_bytes(const struct conv_dims *d, const struct plan *p)
{
    return (d->group * simd_packed(simd_isa_best(), p->k, p->oc) * (int64_t)sizeof(float) + 63) / 64 * 64;
}

static void sizes_of(const struct op_ctx *c, bool trim, struct backend_form *f)
{
    struct conv_dims d;
    struct plan p;
    int64_t first[3];
    if (!simd_last_claim(c, &d))
        return;
    if (trim)
        conv_trim(&d, first);
    make_plan(&d, &p);
    f->workspace_bytes =
        simd_last_workspace(c, &d) + simd_last_slots_most(p.bytes, (p.blocks + TILES_WANTED) * d.group);
    *(c->weights_vary ? &f->workspace_bytes : &f->packed_bytes) += packed_bytes(&d, &p);
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    sizes_of(c, false, f);
}

static void sizes_trim(const struct op_ctx *c, struct backend_form *f)
{
    sizes_of(c, true, f);
}

/* Where some taps see padding only. Weights packed before would have to know the sizes of the run. */
static bool claim_trim(const struct op_ctx *c)
{
    struct conv_dims d, less;
    int64_t first[3];
    if (!c->weights_vary || !claim(c) || !simd_last_claim(c, &d))
        return false;
    less = d;
    conv_trim(&less, first);
    return less.k[1] < d.k[1] || less.k[2] < d.k[2];
}

/* Panel i of all groups. */
static void pack_panel(const struct simd_weights *w, int64_t i, float *packed)
{
    int64_t panels = simd_weights_panels(w), group = i / panels;
    simd_weights_panel(
        w, group, i % panels, packed + group * simd_packed(w->isa, simd_weights_k(w) * w->taps, simd_weights_n(w)));
}

static yk_err pack(const struct op_ctx *c, const void *const *in, void *packed, struct yk_diag *why)
{
    struct simd_weights w;
    if (!in[1])
        return yk_fail(why, YK_INTERNAL, "the weights of a packed form are not fixed");
    simd_weights_of(c->node, c->in[1], in[1], &w);
    for (int64_t i = 0; i < w.groups * simd_weights_panels(&w); i++)
        pack_panel(&w, i, packed);
    return YK_OK;
}

struct job {
    struct simd_last s;
    struct plan p;
    struct simd_slots slots;
    const float *b;              /* packed */
    struct simd_weights weights; /* that vary, and where they go */
    float *to;
};

static inline void copy(float *to, const float *from, int64_t n)
{
    for (; n >= 4; n -= 4, to += 4, from += 4)
        memcpy(to, from, 4 * sizeof(float));
    for (; n > 0; n--)
        *to++ = *from++;
}

/* One row of the kernel for output column ox: kw pixels of ic channels, zeros outside. */
static void patch_row(const struct job *j, float *to, const float *line, int64_t ox)
{
    const struct conv_dims *d = &j->s.d;
    int64_t ic = j->p.ic, x0 = ox * d->stride[2] - d->pad_begin[2];
    if (j->p.ic == d->c && d->dilation[2] == 1) {
        int64_t lo = YK_MIN(YK_MAX(-x0, 0), d->k[2]), hi = YK_MAX(YK_MIN(d->in[2] - x0, d->k[2]), lo);
        if (lo > 0)
            memset(to, 0, (size_t)(lo * ic) * sizeof(float));
        copy(to + lo * ic, line + (x0 + lo) * ic, (hi - lo) * ic);
        if (hi < d->k[2])
            memset(to + hi * ic, 0, (size_t)((d->k[2] - hi) * ic) * sizeof(float));
        return;
    }
    for (int64_t kx = 0; kx < d->k[2]; kx++, to += ic) {
        int64_t x = x0 + kx * d->dilation[2];
        if (x >= 0 && x < d->in[2])
            copy(to, line + x * d->c, ic);
        else
            memset(to, 0, (size_t)ic * sizeof(float));
    }
}

static void patches(const struct job *j, float *out, int64_t first, int64_t n, int64_t group)
{
    const struct conv_dims *d = &j->s.d;
    int64_t per = d->out[1] * d->out[2];
    for (int64_t i = 0; i < n; i++, out += j->p.lda) {
        int64_t at = first + i, oy = at % per / d->out[2], ox = at % d->out[2];
        const float *x = j->s.x + at / per * d->in[1] * d->in[2] * d->c + group * j->p.ic;
        float *to = out;
        for (int64_t ky = 0; ky < d->k[1]; ky++, to += d->k[2] * j->p.ic) {
            int64_t y = oy * d->stride[1] + ky * d->dilation[1] - d->pad_begin[1];
            if (y < 0 || y >= d->in[1])
                memset(to, 0, (size_t)(d->k[2] * j->p.ic) * sizeof(float));
            else
                patch_row(j, to, x + y * d->in[2] * d->c, ox);
        }
    }
}

static void tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    const struct plan *p = &j->p;
    const struct conv_dims *d = &j->s.d;
    int64_t group = i / p->parts / p->blocks, at = i % (p->parts * p->blocks);
    int64_t part = p->columns_first ? at / p->blocks : at % p->parts;
    int64_t block = p->columns_first ? at % p->blocks : at / p->parts;
    int64_t nr = j->s.isa->nr, panels = ceil_div(p->oc, nr), first = block * p->rows, m = YK_MIN(p->rows, p->m - first);
    int64_t begin = panels * part / p->parts * nr, end = YK_MIN(panels * (part + 1) / p->parts * nr, p->oc);
    int64_t oc = group * p->oc + begin;
    struct simd_gemm g = {.m = m, .n = end - begin, .k = p->k, .lda = p->lda, .ldy = d->oc, .e = j->s.e};
    if (m <= 0 || begin >= end)
        return;
    g.b = j->b + group * simd_packed(j->s.isa, p->k, p->oc) + begin * p->k;
    g.y = j->s.y + first * d->oc + oc;
    g.e.bias = g.e.bias ? g.e.bias + oc : NULL;
    g.e.add = g.e.add ? g.e.add + first * d->oc + oc : NULL;
    if (p->in_place) {
        g.a = j->s.x + first * d->c + group * p->ic;
        j->s.isa->gemm(&g);
        return;
    }
    int slot = simd_last_take(&j->slots);
    patches(j, simd_last_slot(&j->slots, slot), first, m, group);
    g.a = simd_last_slot(&j->slots, slot);
    j->s.isa->gemm(&g);
    simd_last_give(&j->slots, slot);
}

static void weights_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    pack_panel(&j->weights, i, j->to);
}

static yk_err run_with(struct host_call *c, bool trim)
{
    struct job j = {.b = c->packed};
    int64_t first_tap[3];
    yk_err err = simd_last_begin(c, &j.s);
    if (err)
        return err;
    if (trim)
        conv_trim(&j.s.d, first_tap);
    make_plan(&j.s.d, &j.p);
    if (!c->packed) { /* weights that vary */
        simd_weights_of(c->node, &c->in[1].shape, c->in[1].data, &j.weights);
        if (trim)
            simd_weights_trim(&j.weights, &j.s.d, first_tap);
        j.b = j.to = (float *)j.s.rest;
        j.s.rest += packed_bytes(&j.s.d, &j.p);
        pool_run(c->pool, j.weights.groups * simd_weights_panels(&j.weights), weights_tile, &j);
    }
    if (!j.p.in_place)
        simd_last_lend(&j.slots, j.s.rest, j.p.bytes, j.p.slots);
    pool_run(c->pool, j.p.blocks * j.p.parts * j.s.d.group, tile, &j);
    simd_last_end(&j.s);
    return YK_OK;
}

static yk_err run(struct host_call *c)
{
    return run_with(c, false);
}

static yk_err run_trim(struct host_call *c)
{
    return run_with(c, true);
}

#define ROW(dom, name, its_kind, claims, ask, packs, fn)                                                      \
    {                                                                                                         \
        .domain = dom, .op = name, .kind = its_kind, .claim = claims, .sizes = ask, .pack = packs, .run = fn, \
        .layout = HOST_ANY                                                                                    \
    }
#define ROWS(dom, name)                                                  \
    ROW(dom, name, "conv.trim", claim_trim, sizes_trim, NULL, run_trim), \
        ROW(dom, name, "conv.gemm", claim, sizes, pack, run)
static const struct host_kernel rows[] = {
    ROWS("ai.yoke", "FusedConv"), ROWS("", "Conv"), ROWS("ai.yoke", "ConvGradInput")};
const struct host_rows simd_direct = {rows, (int)YK_COUNT(rows)};
