/* preact.gemm: a pointwise convolution over relu(scale * x + shift) of inputs that lie side by side along the channels.
 * A tile makes the activations of its own pixels in scratch that stays near, reading every input once, and multiplies
 * them by the packed weights; no concatenation is ever made. Where the pixels are too few for tiles of their own, all
 * activations are made first and tiles split the columns. */
#include "kernels/simd_last.h"

#define ROWS_SMALL 48 /* pixels of a tile when its weights stay in a near cache, else */
#define ROWS_LARGE 96
#define NEAR_BYTES (512 << 10)
#define TILES_WANTED 16
#define TILE_FLOPS 2e6
#define ACTIVE_ROWS 12 /* pixels of a tile that makes activations alone */

struct plan {
    int64_t n, channels, oc, pixels;
    int64_t m, rows, blocks, parts, lda, bytes;
    int slots; /* 0: all activations first */
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t round64(int64_t floats)
{
    return ceil_div(floats * (int64_t)sizeof(float), 64) * 64;
}

static void make_plan(const struct shape *x, const struct shape *w, struct plan *p)
{
    int nr = simd_isa_best()->nr;
    *p = (struct plan){.n = x->dims[0], .channels = w->dims[1], .oc = w->dims[0], .pixels = 1};
    for (int d = 2; d < x->rank; d++)
        p->pixels *= x->dims[d];
    p->m = p->n * p->pixels;
    p->lda = p->channels % 256 == 0 ? p->channels + 16 : p->channels;
    p->rows = p->channels * p->oc * (int64_t)sizeof(float) > NEAR_BYTES ? ROWS_LARGE : ROWS_SMALL;
    p->blocks = YK_MAX(ceil_div(p->m, p->rows), 1);
    p->rows = ceil_div(ceil_div(YK_MAX(p->m, 1), p->blocks), ACTIVE_ROWS) * ACTIVE_ROWS;
    p->blocks = YK_MAX(ceil_div(p->m, p->rows), 1);
    double flops = 2.0 * (double)YK_MIN(p->rows, p->m) * (double)p->channels * (double)p->oc;
    int64_t most = flops / TILE_FLOPS < 1 ? 1 : flops / TILE_FLOPS > 64 ? 64 : (int64_t)(flops / TILE_FLOPS);
    p->parts = YK_MIN(YK_MIN(ceil_div(TILES_WANTED, p->blocks), ceil_div(p->oc, nr)), most);
    p->bytes = round64(YK_MIN(p->rows, p->m) * p->lda) + 64;
    p->slots = p->parts > 1 ? 0 : simd_last_slots(p->bytes, p->blocks);
}

static bool claim(const struct op_ctx *c)
{
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]->dtype != DT_F32)
            return false;
    return c->graph->values[c->node->in[1]].kind == VALUE_WEIGHT;
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    struct plan p;
    make_plan(c->in[0], c->in[1], &p);
    f->packed_bytes = simd_packed(simd_isa_best(), p.channels, p.oc) * (int64_t)sizeof(float);
    f->workspace_bytes = round64(p.m * p.oc) + (p.slots ? p.slots * p.bytes : round64(p.m * p.lda));
    for (int i = 0; i < c->n_in; i++)
        if (op_is_preact_input(i))
            f->workspace_bytes += round64(p.m * c->in[i]->dims[1]);
}

static yk_err pack(const struct op_ctx *c, const void *const *in, void *packed, struct yk_diag *why)
{
    if (!in[1])
        return yk_fail(why, YK_INTERNAL, "the weights of a packed form are not fixed");
    int64_t k = c->in[1]->dims[1];
    simd_isa_best()->pack(packed, in[1], k, c->in[1]->dims[0], k, true);
    return YK_OK;
}

struct job {
    struct host_call *c;
    const struct simd_isa *isa;
    struct plan p;
    const float *x[OP_MAX_IN]; /* channels last */
    float *y, *active;         /* active: of all pixels */
    struct simd_slots slots;
    struct simd_epilogue e;
};

/* The activations of m pixels. */
static void activate(const struct job *j, float *to, int64_t first, int64_t m)
{
    const struct host_call *c = j->c;
    int64_t at = 0;
    for (int i = 0; i < c->n_in; i = i == 0 ? 5 : i + 1) {
        int64_t n = c->in[i].shape.dims[1];
        j->isa->affine_relu(to + at, j->p.lda, j->x[i] + first * n, n, (const float *)c->in[3].data + at,
            (const float *)c->in[4].data + at, m, n);
        at += n;
    }
}

static void active_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    int64_t first = i * ACTIVE_ROWS;
    activate(j, j->active + first * j->p.lda, first, YK_MIN(ACTIVE_ROWS, j->p.m - first));
}

static void tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    const struct plan *p = &j->p;
    int64_t part = i % p->parts, first = i / p->parts * p->rows, m = YK_MIN(p->rows, p->m - first);
    int64_t nr = j->isa->nr, panels = ceil_div(p->oc, nr);
    int64_t begin = panels * part / p->parts * nr, end = YK_MIN(panels * (part + 1) / p->parts * nr, p->oc);
    if (m <= 0 || begin >= end)
        return;
    struct simd_gemm g = {.m = m, .n = end - begin, .k = p->channels, .lda = p->lda, .ldy = p->oc, .e = j->e};
    g.b = (const float *)j->c->packed + begin * p->channels;
    g.y = j->y + first * p->oc + begin;
    g.e.bias += begin;
    if (!p->slots) {
        g.a = j->active + first * p->lda;
        j->isa->gemm(&g);
        return;
    }
    int slot = simd_last_take(&j->slots);
    float *a = simd_last_slot(&j->slots, slot);
    activate(j, a, first, m);
    g.a = a;
    j->isa->gemm(&g);
    simd_last_give(&j->slots, slot);
}

static yk_err run(struct host_call *c)
{
    struct job j = {.c = c, .isa = simd_isa_best()};
    struct activation act = activation_of(c->node);
    char *rest = c->workspace;
    make_plan(&c->in[0].shape, &c->in[1].shape, &j.p);
    j.e = (struct simd_epilogue){.bias = c->in[2].data};
    simd_last_act(&j.e, &act);
    for (int i = 0; i < c->n_in; i = i == 0 ? 5 : i + 1) {
        int64_t channels = c->in[i].shape.dims[1];
        j.x[i] = c->in[i].data;
        if (c->last_in >> i & 1 || channels == 1 || j.p.pixels == 1)
            continue;
        simd_last_turn(c->pool, j.p.n, (float *)rest, j.x[i], channels, j.p.pixels, true);
        j.x[i] = (float *)rest;
        rest += round64(j.p.m * channels);
    }
    bool turns = !(c->last_out & 1) && j.p.oc > 1 && j.p.pixels > 1;
    j.y = turns ? (float *)rest : c->out[0].data;
    rest += turns ? round64(j.p.m * j.p.oc) : 0;
    if (j.p.slots) {
        simd_last_lend(&j.slots, rest, j.p.bytes, j.p.slots);
    } else {
        j.active = (float *)rest;
        pool_run(c->pool, ceil_div(j.p.m, ACTIVE_ROWS), active_tile, &j);
    }
    pool_run(c->pool, j.p.blocks * j.p.parts, tile, &j);
    if (turns)
        simd_last_turn(c->pool, j.p.n, c->out[0].data, j.y, j.p.oc, j.p.pixels, false);
    return YK_OK;
}

static const struct host_kernel rows[] = {{.domain = "ai.yoke",
    .op = "PreactConv",
    .kind = "preact.gemm",
    .claim = claim,
    .sizes = sizes,
    .pack = pack,
    .run = run,
    .layout = HOST_ANY}};
const struct host_rows simd_preact = {rows, (int)YK_COUNT(rows)};
