/* gemm, matmul: products whose right side is packed: once where it is a weight, else by the run, each matrix on its
 * own. Rows that share a right side are one product. */
#include <stdlib.h>
#include <string.h>

#include "kernels/iter.h"
#include "kernels/simd.h"
#include "kernels/simd_last.h"

#define ROWS 48
#define TILES_WANTED 16
#define TILE_FLOPS 2e6
#define TILE_BYTES 256e3

struct grid {
    int64_t m, n, k, rows, blocks, parts;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static void make_grid(int64_t m, int64_t n, int64_t k, struct grid *g)
{
    *g = (struct grid){.m = m, .n = n, .k = k};
    g->blocks = YK_MAX(ceil_div(m, ROWS), 1);
    g->rows = ceil_div(ceil_div(YK_MAX(m, 1), g->blocks), 12) * 12;
    g->blocks = YK_MAX(ceil_div(m, g->rows), 1);
    double most = 2.0 * (double)YK_MIN(g->rows, m) * (double)n * (double)k / TILE_FLOPS;
    most = YK_MAX(most, (double)n * (double)k * sizeof(float) / TILE_BYTES); /* of few rows the time is that of b */
    g->parts = most < 1 ? 1 : most > 64 ? 64 : (int64_t)most;
    g->parts = YK_MIN(YK_MIN(ceil_div(TILES_WANTED, g->blocks), ceil_div(n, simd_isa_best()->nr)), g->parts);
    g->parts = YK_MAX(g->parts, 1);
}

struct job {
    struct host_call *c;
    const struct simd_isa *isa;
    struct grid g;
    struct simd_epilogue e;
    struct iter batch; /* of MatMul without a weight */
    struct simd_slots slots;
};

/* Tile i of the one product a b. */
static void tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    int64_t block = i / j->g.parts, part = i % j->g.parts, first = block * j->g.rows;
    int64_t panels = ceil_div(j->g.n, j->isa->nr), m = YK_MIN(j->g.rows, j->g.m - first);
    int64_t begin = panels * part / j->g.parts * j->isa->nr;
    int64_t end = YK_MIN(panels * (part + 1) / j->g.parts * j->isa->nr, j->g.n);
    if (m <= 0 || begin >= end)
        return;
    struct simd_gemm g = {.m = m,
        .n = end - begin,
        .k = j->g.k,
        .a = (const float *)j->c->in[0].data + first * j->g.k,
        .lda = j->g.k,
        .b = (const float *)j->c->packed + begin * j->g.k,
        .y = (float *)j->c->out[0].data + first * j->g.n + begin,
        .ldy = j->g.n,
        .e = j->e};
    g.e.bias = j->e.bias ? j->e.bias + begin : NULL;
    j->isa->gemm(&g);
}

static bool is_weight(const struct op_ctx *c, int i)
{
    return c->node->in[i] >= 0 && c->graph->values[c->node->in[i]].kind == VALUE_WEIGHT;
}

/* b is a packed weight, a as it is, and what is added is one row. */
static bool claim_gemm(const struct op_ctx *c)
{
    if (!simd_claim_f32(c) || !is_weight(c, 1) || c->in[1]->rank != 2 || node_attr_i(c->node, "transA", 0) ||
        node_attr_f(c->node, "alpha", 1) != 1)
        return false;
    if (c->n_in < 3 || !c->in[2])
        return true;
    const struct shape *b = c->in[2];
    int64_t n = c->in[1]->dims[node_attr_i(c->node, "transB", 0) ? 0 : 1];
    return node_attr_f(c->node, "beta", 1) == 1 && b->rank > 0 && b->dims[b->rank - 1] == n && shape_count(b) == n;
}

static void sizes_gemm(const struct op_ctx *c, struct backend_form *f)
{
    bool turned = node_attr_i(c->node, "transB", 0);
    f->packed_bytes =
        simd_packed(simd_isa_best(), c->in[1]->dims[turned], c->in[1]->dims[!turned]) * (int64_t)sizeof(float);
}

static yk_err pack_gemm(const struct op_ctx *c, const void *const *in, void *packed, struct yk_diag *why)
{
    bool turned = node_attr_i(c->node, "transB", 0);
    if (!in[1])
        return yk_fail(why, YK_INTERNAL, "the weights of a packed form are not fixed");
    simd_isa_best()->pack(packed, in[1], c->in[1]->dims[turned], c->in[1]->dims[!turned], c->in[1]->dims[1], turned);
    return YK_OK;
}

static yk_err run_gemm(struct host_call *c)
{
    struct job j = {.c = c, .isa = simd_isa_best()};
    struct activation act = activation_of(c->node);
    const struct shape *a = &c->in[0].shape, *y = &c->out[0].shape;
    j.e.bias = c->n_in > 2 ? c->in[2].data : NULL;
    simd_last_act(&j.e, &act);
    int64_t n = y->dims[y->rank - 1], k = a->dims[a->rank - 1];
    make_grid(tensor_count(&c->out[0]) / n, n, k, &j.g);
    pool_run(c->pool, j.g.blocks * j.g.parts, tile, &j);
    return YK_OK;
}

/* ---- MatMul ---- */

static bool claim_weight(const struct op_ctx *c)
{
    return simd_claim_f32(c) && is_weight(c, 1) && c->in[1]->rank == 2;
}

static bool claim_matmul(const struct op_ctx *c)
{
    return simd_claim_f32(c) && !claim_weight(c) && c->in[0]->rank >= 2 && c->in[1]->rank >= 2;
}

struct dims {
    int64_t m, n, k, products;
};

static struct dims dims_of(const struct shape *a, const struct shape *b, const struct shape *y)
{
    struct dims d = {a->dims[a->rank - 2], b->dims[b->rank - 1], a->dims[a->rank - 1], 1};
    for (int i = 0; i < y->rank - 2; i++)
        d.products *= y->dims[i];
    return d;
}

static int64_t slot_bytes(const struct dims *d)
{
    return (simd_packed(simd_isa_best(), d->k, d->n) * (int64_t)sizeof(float) + 127) / 64 * 64;
}

static void sizes_matmul(const struct op_ctx *c, struct backend_form *f)
{
    struct dims d = dims_of(c->in[0], c->in[1], &c->out[0]);
    int64_t bytes = slot_bytes(&d);
    f->workspace_bytes = simd_last_slots_most(bytes, d.products);
}

static void product(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    int64_t at[3], m = j->g.m, n = j->g.n, k = j->g.k, pos = i % j->batch.inner;
    int slot = simd_last_take(&j->slots);
    float *packed = simd_last_slot(&j->slots, slot);
    iter_at(&j->batch, i / j->batch.inner, at);
    j->isa->pack(
        packed, (const float *)j->c->in[1].data + (at[2] + pos * iter_step(&j->batch, 2)) * k * n, k, n, n, false);
    struct simd_gemm g = {.m = m,
        .n = n,
        .k = k,
        .a = (const float *)j->c->in[0].data + (at[1] + pos * iter_step(&j->batch, 1)) * m * k,
        .lda = k,
        .b = packed,
        .y = (float *)j->c->out[0].data + i * m * n,
        .ldy = n};
    j->isa->gemm(&g);
    simd_last_give(&j->slots, slot);
}

static yk_err run_matmul(struct host_call *c)
{
    struct job j = {.c = c, .isa = simd_isa_best()};
    struct shape a = c->in[0].shape, b = c->in[1].shape, y = c->out[0].shape;
    struct dims d = dims_of(&a, &b, &y);
    const struct shape *operands[] = {&y, &a, &b};
    int64_t bytes = slot_bytes(&d);
    j.g = (struct grid){.m = d.m, .n = d.n, .k = d.k};
    y.rank -= 2;
    a.rank -= 2;
    b.rank -= 2;
    iter_broadcast(&j.batch, operands, 3);
    simd_last_lend(&j.slots, c->workspace, bytes, simd_last_slots(bytes, d.products));
    pool_run(c->pool, d.products, product, &j);
    return YK_OK;
}

#define PACKED(dom, name, kind_name, claims)                                                                   \
    {                                                                                                          \
        .domain = dom, .op = name, .kind = kind_name, .claim = claims, .sizes = sizes_gemm, .pack = pack_gemm, \
        .run = run_gemm                                                                                        \
    }
static const struct host_kernel rows[] = {
    PACKED("", "Gemm", "gemm", claim_gemm),
    PACKED("ai.yoke", "FusedGemm", "gemm", claim_gemm),
    PACKED("", "MatMul", "gemm", claim_weight),
    {.domain = "", .op = "MatMul", .kind = "matmul", .claim = claim_matmul, .sizes = sizes_matmul, .run = run_matmul},
};
const struct host_rows simd_products = {rows, (int)YK_COUNT(rows)};
