/* conv.wino4, conv.wino2: 3x3 convolutions of stride 1 as (size + 2)^2 matrix products over transformed tiles. Few
 * multiplications, three passes. Two grids, by shape: with many blocks of tiles each block runs all three passes in its
 * own scratch; with few, the passes run one after the other over all threads. Bits depend on neither.
 * An infinity or NaN in the input may make any output of its tile NaN, where a direct sum might be infinite or finite.
 */
#include <string.h>

#include "kernels/simd_last.h"
#include "kernels/simd_weights.h"

#define BLOCKS_MIN 8 /* of tiles, for a block a thread */
#define SMALL_U (1 << 20)
#define FLY_BYTES (12 << 20)
#define FLY_FEW_BYTES (4 << 20) /* and where there are at most so many tiles */
#define FLY_FEW_TILES 128
#define FLY_TILES_BYTES (16 << 20)
#define FLY_ROWS SIMD_ROWS

struct plan {
    int size, points;
    int64_t rows, cols, tiles; /* cols: of tiles in a row; tiles: over all images */
    int64_t block, blocks;     /* tiles of a block */
    bool alone;                /* a block runs all passes */
    int64_t ldv, ldm, bytes;   /* bytes: of v and m of a block */
    int slots;
    bool vary, fly;
    int64_t fly_bytes; /* of a panel of u */
    int fly_slots;
};

static int64_t round64(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Rows start at different places in the cache: a power of two would meet itself. */
static int64_t row_of(int64_t n)
{
    int64_t padded = ceil_div(n, SIMD_PAD) * SIMD_PAD;
    return padded % 256 == 0 ? padded + SIMD_PAD : padded;
}

static void make_plan(const struct conv_dims *d, int size, struct plan *p)
{
    *p = (struct plan){.size = size, .points = (size + 2) * (size + 2)};
    p->rows = ceil_div(d->out[1], size);
    p->cols = ceil_div(d->out[2], size);
    p->tiles = d->n * p->rows * p->cols;
    p->ldv = row_of(d->c);
    p->ldm = row_of(d->oc);
    int64_t most = p->points * d->c * d->oc * (int64_t)sizeof(float) > SMALL_U ? 48 : 24;
    p->blocks = YK_MAX(ceil_div(p->tiles, most), 1);
    p->alone = p->blocks >= BLOCKS_MIN;
    p->block = YK_MAX(ceil_div(p->tiles, p->blocks), 1);
    /* Not by block: fewer tiles may make larger blocks. */
    p->bytes = round64(YK_MIN(p->tiles, most) * p->points * (p->ldv + p->ldm) * (int64_t)sizeof(float));
    p->slots = p->alone ? simd_last_slots(p->bytes, p->blocks) : 1;
}

/* Not by the batch: a form must be there for every size of it. */
static bool claim(const struct op_ctx *c)
{
    struct conv_dims d;
    if (!simd_last_claim(c, &d) || d.spatial != 2 || d.group != 1 || d.c < 8 || d.oc < 8)
        return false;
    for (int i = 1; i < 3; i++)
        if (d.k[i] != 3 || d.stride[i] != 1 || d.dilation[i] != 1)
            return false;
    return true;
}

/* The forward part of a training with small images: tiles of 4 round three to four times as far as a direct sum, so
 * that as many more ReLUs fall on the other side of 0, and where there are few activations one of them is much of the
 * gradient. Tiles of 2 round as far as PyTorch's convolution does. */
static bool exacting(const struct op_ctx *c)
{
    return c->weights_vary && strcmp(c->node->op->name, "ConvGradInput") != 0 && graph_small_images(c->graph);
}

/* Which is best: tiles of 4 or 2, or 0 for none. Wide tiles do not pay where there are few: their weights are read for
 * little work. Weights that vary are transformed for this run alone; what that costs for one pair of channels is
 * measured in multiplications. */
static int best(const struct op_ctx *c)
{
    struct conv_dims d;
    struct plan p4, p2;
    int64_t first[3];
    if (!simd_last_claim(c, &d))
        return 4;
    make_plan(&d, 4, &p4);
    if (!c->weights_vary)
        return p4.tiles < 12 ? 2 : 4;
    make_plan(&d, 2, &p2);
    int64_t wide = 36 * p4.tiles + 230, narrow = 16 * p2.tiles + 130, pixels = d.n * d.out[1] * d.out[2];
    conv_trim(&d, first);
    int64_t direct = d.k[1] * d.k[2] * (pixels + 20);
    if (exacting(c))
        return direct < narrow ? 0 : 2;
    return direct < wide && direct < narrow ? 0 : narrow < wide ? 2 : 4;
}

static bool later4(const struct op_ctx *c)
{
    return best(c) != 4;
}

static bool later2(const struct op_ctx *c)
{
    return best(c) != 2;
}

/* Floats from a point of u to the next. The points of a pair of channels are written together: powers of two apart they
 * would meet in the caches. */
static int64_t u_step(const struct simd_isa *isa, int64_t k, int64_t n)
{
    return simd_packed(isa, k, n) + SIMD_PAD;
}

/* Weights that vary are transformed by the run: all at once, or where that is too much, panel by panel between the
 * passes, FLY_ROWS rows at a time, and never written to far memory. */
static int64_t u_bytes(const struct conv_dims *d, const struct plan *p)
{
    return round64(p->points * u_step(simd_isa_best(), d->c, d->oc) * (int64_t)sizeof(float));
}

static void make_fly(const struct conv_dims *d, int64_t tiles, struct plan *p)
{
    int64_t row = p->points * (p->ldv + p->ldm) * (int64_t)sizeof(float), nr = simd_isa_best()->nr;
    int64_t most = YK_MAX(FLY_TILES_BYTES / row, 48);
    p->fly = true;
    p->alone = false;
    p->blocks = YK_MAX(ceil_div(tiles, most), 1);
    p->block = YK_MAX(ceil_div(tiles, p->blocks), 1);
    p->bytes = round64(YK_MIN(tiles, most) * row);
    p->slots = 1;
    p->fly_bytes = round64(p->points * (YK_MIN(d->c, FLY_ROWS) * nr + SIMD_PAD) * (int64_t)sizeof(float));
    p->fly_slots = simd_last_slots(p->fly_bytes, ceil_div(d->oc, nr));
}

/* few: on the fly if there were few tiles. */
static bool can_fly(const struct conv_dims *d, const struct plan *p, bool few)
{
    /* One partial sum at a time must be one partial sum of the product. */
    return p->vary && u_bytes(d, p) > (few ? FLY_FEW_BYTES : FLY_BYTES) && simd_kc(simd_kc(d->c)) == simd_kc(d->c);
}

static void make_plan_of(bool vary, const struct conv_dims *d, int size, struct plan *p)
{
    make_plan(d, size, p);
    p->vary = vary;
    if (can_fly(d, p, p->tiles <= FLY_FEW_TILES))
        make_fly(d, p->tiles, p);
}

static int64_t bytes_of(const struct conv_dims *d, const struct plan *p)
{
    return p->slots * p->bytes + (p->fly ? p->fly_slots * p->fly_bytes : p->vary ? u_bytes(d, p) : 0);
}

static void sizes(const struct op_ctx *c, struct backend_form *f, int size)
{
    struct conv_dims d;
    struct plan p;
    if (!simd_last_claim(c, &d))
        return;
    make_plan_of(c->weights_vary, &d, size, &p);
    int64_t bytes = bytes_of(&d, &p);
    if (!p.vary)
        f->packed_bytes += u_bytes(&d, &p);
    if (!p.fly && can_fly(&d, &p, true)) { /* a smaller batch may */
        make_fly(&d, FLY_FEW_TILES, &p);
        bytes = YK_MAX(bytes, bytes_of(&d, &p));
    }
    f->workspace_bytes = simd_last_workspace(c, &d) + bytes;
}

static void sizes4(const struct op_ctx *c, struct backend_form *f)
{
    sizes(c, f, 4);
}

static void sizes2(const struct op_ctx *c, struct backend_form *f)
{
    sizes(c, f, 2);
}

/* u = G w G^T, each point a matrix of c rows and oc columns, packed. */
static void pack_panel(const struct simd_weights *w, int size, int64_t panel, float *packed)
{
    int64_t k = simd_weights_k(w);
    simd_weights_wino(w, size, panel, 0, k, packed + panel * w->isa->nr * k, u_step(w->isa, k, simd_weights_n(w)));
}

static yk_err pack(const struct op_ctx *c, const void *const *in, void *packed, struct yk_diag *why, int size)
{
    struct simd_weights w;
    if (!in[1])
        return yk_fail(why, YK_INTERNAL, "the weights of a Winograd form are not fixed");
    simd_weights_of(c->node, c->in[1], in[1], &w);
    for (int64_t i = 0; i < simd_weights_panels(&w); i++)
        pack_panel(&w, size, i, packed);
    return YK_OK;
}

static yk_err pack4(const struct op_ctx *c, const void *const *in, void *packed, struct yk_diag *why)
{
    return pack(c, in, packed, why, 4);
}

static yk_err pack2(const struct op_ctx *c, const void *const *in, void *packed, struct yk_diag *why)
{
    return pack(c, in, packed, why, 2);
}

struct job {
    struct simd_last s;
    struct plan p;
    struct simd_slots slots;
    struct simd_weights weights; /* that vary */
    float *u;                    /* all of them; NULL: on the fly */
    struct simd_slots fly;
    struct simd_wino w; /* of the block, when passes run alone */
    int64_t parts;      /* of the columns of a point */
};

static struct simd_wino block_of(const struct job *j, int64_t block, float *scratch)
{
    const struct conv_dims *d = &j->s.d;
    const struct plan *p = &j->p;
    int64_t first = block * p->block;
    return (struct simd_wino){.size = p->size,
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
        .x = j->s.x,
        .v = scratch,
        .ldv = p->ldv,
        .v_step = p->block * p->ldv,
        .m = scratch + p->points * p->block * p->ldv,
        .ldm = p->ldm,
        .m_step = p->block * p->ldm,
        .y = j->s.y,
        .e = j->s.e};
}

/* Columns begin..end of point i; begin is the start of a panel. */
static void product(const struct job *j, const struct simd_wino *w, int64_t i, int64_t begin, int64_t end)
{
    struct simd_gemm g = {.m = w->count,
        .n = end - begin,
        .k = w->c,
        .a = w->v + i * w->v_step,
        .lda = w->ldv,
        .b = j->u + i * u_step(j->s.isa, w->c, w->oc) + begin * w->c,
        .y = w->m + i * w->m_step + begin,
        .ldy = w->ldm};
    j->s.isa->gemm(&g);
}

static void block_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    int slot = simd_last_take(&j->slots);
    struct simd_wino w = block_of(j, i, simd_last_slot(&j->slots, slot));
    if (w.count > 0) {
        j->s.isa->wino_in(&w, 0, w.c);
        for (int64_t q = 0; q < j->p.points; q++)
            product(j, &w, q, 0, w.oc);
        j->s.isa->wino_out(&w, 0, w.oc);
    }
    simd_last_give(&j->slots, slot);
}

static void in_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    j->s.isa->wino_in(&j->w, i * SIMD_PAD, YK_MIN((i + 1) * SIMD_PAD, j->w.c));
}

static void product_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    int64_t nr = j->s.isa->nr, panels = ceil_div(j->w.oc, nr), part = i % j->parts;
    int64_t begin = panels * part / j->parts * nr, end = YK_MIN(panels * (part + 1) / j->parts * nr, j->w.oc);
    if (begin < end)
        product(j, &j->w, i / j->parts, begin, end);
}

static void out_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    j->s.isa->wino_out(&j->w, i * SIMD_PAD, YK_MIN((i + 1) * SIMD_PAD, j->w.oc));
}

static void weights_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    pack_panel(&j->weights, j->p.size, i, j->u);
}

/* All points of a panel of columns. Rows of u come all at once or in the partial sums of the product, so the bits are
 * the same. */
static void fly_tile(void *arg, int64_t panel, int thread)
{
    (void)thread;
    struct job *j = arg;
    const struct simd_wino *w = &j->w;
    int64_t first = panel * j->s.isa->nr, width = simd_weights_width(&j->weights, panel);
    int slot = simd_last_take(&j->fly);
    float *u = simd_last_slot(&j->fly, slot);
    int64_t kc = w->c <= FLY_ROWS ? w->c : simd_kc(w->c); /* which divides FLY_ROWS */
    for (int64_t k = 0; k < w->c; k += FLY_ROWS) {
        int64_t n = YK_MIN(FLY_ROWS, w->c - k), step = n * width + SIMD_PAD;
        simd_weights_wino(&j->weights, j->p.size, panel, k, k + n, u, step);
        for (int64_t p = 0; p < j->p.points; p++)
            for (int64_t i = 0; i < n; i += kc) {
                struct simd_gemm g = {.m = w->count,
                    .n = YK_MIN(j->s.isa->nr, w->oc - first),
                    .k = YK_MIN(kc, n - i),
                    .a = w->v + p * w->v_step + k + i,
                    .lda = w->ldv,
                    .b = u + p * step + i * width,
                    .y = w->m + p * w->m_step + first,
                    .ldy = w->ldm};
                g.e.add = k + i ? g.y : NULL;
                g.e.ld_add = g.ldy;
                j->s.isa->gemm(&g);
            }
    }
    simd_last_give(&j->fly, slot);
}

/* Where u is before the tiles need it. */
static void begin_weights(struct job *j)
{
    const struct host_call *c = j->s.c;
    int64_t bytes = u_bytes(&j->s.d, &j->p);
    j->u = (float *)(uintptr_t)c->packed;
    if (!j->p.vary)
        return;
    simd_weights_of(c->node, &c->in[1].shape, c->in[1].data, &j->weights);
    if (j->p.fly) {
        simd_last_lend(&j->fly, j->s.rest, j->p.fly_bytes, j->p.fly_slots);
        j->s.rest += j->p.fly_slots * j->p.fly_bytes;
        return;
    }
    j->u = (float *)j->s.rest;
    j->s.rest += bytes;
    pool_run(c->pool, simd_weights_panels(&j->weights), weights_tile, j);
}

static yk_err run(struct host_call *c, int size)
{
    struct job j = {.u = NULL};
    yk_err err = simd_last_begin(c, &j.s);
    if (err)
        return err;
    struct pool *pool = c->pool;
    make_plan_of(!c->packed, &j.s.d, size, &j.p);
    begin_weights(&j);
    simd_last_lend(&j.slots, j.s.rest, j.p.bytes, j.p.slots);
    if (j.p.alone) {
        pool_run(pool, j.p.blocks, block_tile, &j);
    } else {
        j.parts = j.p.points >= 36 ? 1 : 2;
        for (int64_t b = 0; b < j.p.blocks; b++) {
            j.w = block_of(&j, b, (float *)j.s.rest);
            if (j.w.count <= 0)
                break;
            pool_run(pool, ceil_div(j.w.c, SIMD_PAD), in_tile, &j);
            if (j.p.fly)
                pool_run(pool, simd_weights_panels(&j.weights), fly_tile, &j);
            else
                pool_run(pool, j.p.points * j.parts, product_tile, &j);
            pool_run(pool, ceil_div(j.w.oc, SIMD_PAD), out_tile, &j);
        }
    }
    simd_last_end(&j.s);
    return YK_OK;
}

static yk_err run4(struct host_call *c)
{
    return run(c, 4);
}

static yk_err run2(struct host_call *c)
{
    return run(c, 2);
}

#define ROW(dom, name, size, asked)                                                                    \
    {                                                                                                  \
        .domain = dom, .op = name, .kind = "conv.wino" #size, .claim = claim, .sizes = sizes##size,    \
        .pack = pack##size, .run = run##size, .layout = HOST_ANY, .later = later##size, .named = asked \
    }
static const struct host_kernel rows[] = {ROW("ai.yoke", "FusedConv", 4, exacting), ROW("", "Conv", 4, exacting),
    ROW("ai.yoke", "ConvGradInput", 4, NULL), ROW("ai.yoke", "FusedConv", 2, NULL), ROW("", "Conv", 2, NULL),
    ROW("ai.yoke", "ConvGradInput", 2, NULL)};
const struct host_rows simd_winograd = {rows, (int)YK_COUNT(rows)};
