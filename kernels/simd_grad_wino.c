/* gradw.wino4: the gradient of the weights of a 3x3 convolution of stride 1, the transpose of conv.wino4: per point of
 * the transform the products of input tiles by gradient tiles, summed over all tiles, come back as nine taps. Tiles go
 * in blocks that depend on the shape, each after the other; a unit of rows and columns adds the blocks in their order.
 * With one block a unit never leaves its scratch. */
#include "kernels/simd.h"
#include "kernels/simd_last.h"

#define POINTS 36
#define ROWS 48 /* input channels of a unit */
#define TILES_MIN 96
#define TILES_MAX 256
#define BLOCK_BYTES (3 << 20)

struct plan {
    int64_t rows, cols, tiles;
    int64_t block, blocks, most; /* tiles of a block */
    int64_t ldv, v_step, m_step; /* at the most tiles */
    int64_t unit, units_m, units_n;
    int64_t scratch; /* bytes of v and m */
    int64_t unit_bytes, taps_bytes;
    int slots;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t round64(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void make_plan(const struct conv_dims *d, struct plan *p)
{
    const struct simd_isa *isa = simd_isa_best();
    *p = (struct plan){.rows = ceil_div(d->out[1], 4), .cols = ceil_div(d->out[2], 4)};
    p->tiles = d->n * p->rows * p->cols;
    p->ldv = ceil_div(d->c, SIMD_PAD) * SIMD_PAD;
    p->ldv += p->ldv % 256 == 0 ? SIMD_PAD : 0;
    int64_t row = POINTS * (p->ldv + simd_packed(isa, 1, d->oc)) * (int64_t)sizeof(float);
    p->most = YK_MIN(YK_MAX(BLOCK_BYTES / row, TILES_MIN), TILES_MAX);
    p->blocks = YK_MAX(ceil_div(p->tiles, p->most), 1);
    p->block = YK_MAX(ceil_div(p->tiles, p->blocks), 1);
    p->most = YK_MIN(p->most, YK_MAX(p->tiles, 1));
    p->v_step = p->most * p->ldv;
    p->m_step = simd_packed(isa, p->most, d->oc);
    p->scratch = round64(POINTS * (p->v_step + p->m_step) * (int64_t)sizeof(float));
    p->units_m = ceil_div(d->c, ROWS);
    p->unit = ceil_div(d->c, p->units_m);
    p->units_n = ceil_div(d->oc, isa->nr);
    p->unit_bytes = round64(POINTS * p->unit * isa->nr * (int64_t)sizeof(float));
    p->taps_bytes = round64(9 * p->unit * isa->nr * (int64_t)sizeof(float));
    int64_t slot = p->taps_bytes + (p->blocks > 1 ? 0 : p->unit_bytes);
    p->slots = simd_last_slots(slot, p->units_m * p->units_n);
}

static bool dims_of(const struct op_ctx *c, struct conv_dims *d)
{
    if (!simd_claim_f32(c) || op_conv_dims(c->node, c->in[0], &c->out[0], d, NULL) || d->spatial != 2 || d->group != 1)
        return false;
    conv_right_align(d);
    return true;
}

static bool claim(const struct op_ctx *c)
{
    struct conv_dims d;
    if (!dims_of(c, &d) || d.c < 8 || d.oc < 8)
        return false;
    for (int i = 1; i < 3; i++)
        if (d.k[i] != 3 || d.stride[i] != 1 || d.dilation[i] != 1)
            return false;
    return true;
}

/* Small images: most of a tile is padding. */
static bool later(const struct op_ctx *c)
{
    struct conv_dims d;
    struct plan p;
    if (!dims_of(c, &d))
        return true;
    make_plan(&d, &p);
    return POINTS * p.rows * p.cols * 5 > 9 * d.out[1] * d.out[2] * 4;
}

static int64_t all_bytes(const struct plan *p)
{
    int64_t units = p->units_m * p->units_n;
    return p->scratch + (p->blocks > 1 ? units * p->unit_bytes + p->slots * p->taps_bytes
                                       : p->slots * (p->unit_bytes + p->taps_bytes));
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    struct conv_dims d;
    struct plan p;
    if (!dims_of(c, &d))
        return;
    make_plan(&d, &p);
    f->workspace_bytes =
        simd_last_bytes(c->in[0]) + simd_last_bytes(c->in[1]) + simd_last_bytes(&c->out[0]) + all_bytes(&p);
}

struct job {
    const struct simd_isa *isa;
    struct conv_dims d;
    struct plan p;
    struct simd_wino w; /* of the block */
    struct simd_slots slots;
    char *units; /* sums, if there are many blocks */
    float *dw;
    bool first, last; /* block */
};

static void in_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    int64_t of_x = ceil_div(j->w.c, SIMD_PAD), begin = (i < of_x ? i : i - of_x) * SIMD_PAD;
    if (i < of_x)
        j->isa->wino_in(&j->w, begin, YK_MIN(begin + SIMD_PAD, j->w.c));
    else
        j->isa->wino_dy(&j->w, begin, YK_MIN(begin + SIMD_PAD, j->w.oc));
}

static void unit_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    const struct simd_wino *w = &j->w;
    int64_t nr = j->isa->nr, row = i % j->p.units_m * j->p.unit, column = i / j->p.units_m * nr;
    int64_t m = YK_MIN(j->p.unit, w->c - row), n = YK_MIN(nr, w->oc - column);
    int64_t width = ceil_div(n, j->isa->vl) * j->isa->vl;
    if (m <= 0)
        return;
    int slot = j->units && !j->last ? -1 : simd_last_take(&j->slots);
    char *own = slot < 0 ? NULL : simd_last_slot(&j->slots, slot);
    float *du = (float *)(j->units ? j->units + i * j->p.unit_bytes : own + j->p.taps_bytes);
    for (int64_t p = 0; p < POINTS; p++) {
        struct simd_gemm g = {.m = m,
            .n = n,
            .k = w->count,
            .turned = true,
            .a = w->v + p * w->v_step + row,
            .lda = w->ldv,
            .b = w->m + p * w->m_step + column * w->count,
            .y = du + p * m * width,
            .ldy = width};
        g.e.add = j->first ? NULL : g.y;
        g.e.ld_add = width;
        j->isa->gemm(&g);
    }
    if (slot < 0)
        return;
    struct simd_wino_dw back = {.m = m, .n = width, .du = du, .du_step = m * width, .dw = (float *)own};
    j->isa->wino_dw(&back);
    j->isa->transpose(j->dw + (column * w->c + row) * 9, w->c * 9, back.dw, width, m * 9, n);
    simd_last_give(&j->slots, slot);
}

static yk_err run(struct host_call *c)
{
    struct job j = {.isa = simd_isa_best()};
    char *rest = c->workspace;
    yk_err err = op_conv_dims(c->node, &c->in[0].shape, &c->out[0].shape, &j.d, c->why);
    if (err)
        return err;
    conv_right_align(&j.d);
    const struct conv_dims *d = &j.d;
    struct plan *p = &j.p;
    make_plan(d, p);
    const float *x = simd_last_input(c, 0, &rest), *dy = simd_last_input(c, 1, &rest);
    j.dw = simd_last_dense(c, 0, &rest);
    float *v = (float *)rest;
    rest += p->scratch;
    if (p->blocks > 1) {
        j.units = rest;
        rest += p->units_m * p->units_n * p->unit_bytes;
    }
    simd_last_lend(&j.slots, rest, p->taps_bytes + (j.units ? 0 : p->unit_bytes), p->slots);
    for (int64_t b = 0; b < p->blocks; b++) {
        int64_t first = b * p->block;
        j.first = b == 0;
        j.last = (b + 1) * p->block >= p->tiles;
        j.w = (struct simd_wino){.size = 4,
            .h = d->in[1],
            .w = d->in[2],
            .c = d->c,
            .oh = d->out[1],
            .ow = d->out[2],
            .oc = d->oc,
            .pad_top = d->pad_begin[1],
            .pad_left = d->pad_begin[2],
            .rows = p->rows,
            .cols = p->cols,
            .first = first,
            .count = YK_MIN(p->block, p->tiles - first),
            .x = x,
            .v = v,
            .ldv = p->ldv,
            .v_step = p->v_step,
            .m = v + POINTS * p->v_step,
            .m_step = p->m_step,
            .y = (float *)(uintptr_t)dy};
        if (j.w.count < 0)
            break;
        pool_run(c->pool, ceil_div(d->c, SIMD_PAD) + ceil_div(d->oc, SIMD_PAD), in_tile, &j);
        pool_run(c->pool, p->units_m * p->units_n, unit_tile, &j);
        if (j.last)
            break;
    }
    simd_last_dense_end(c, 0, j.dw);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "ai.yoke",
        .op = "ConvGradWeight",
        .kind = "gradw.wino4",
        .claim = claim,
        .sizes = sizes,
        .run = run,
        .layout = HOST_ANY,
        .later = later},
};
const struct host_rows simd_grad_winograd = {rows, (int)YK_COUNT(rows)};
