/* attention, rows: attention a block of queries at a time, so that scores stay in the near caches, and softmax along
 * the last axis. Operands are read where they are: heads are columns of Q, K and V, and of Y. */
#include "kernels/simd.h"
#include "kernels/simd_last.h"

#define ROWS 48
#define SCORES 32768 /* of a block, about */
#define PRODUCTS 8   /* from so many heads on, a head is a tile */

struct plan {
    int64_t products, rows, blocks; /* blocks of a product */
    int64_t k_floats, v_floats, s_floats;
    bool whole; /* a tile is a product */
    int slots;
    int64_t slot_bytes, packed_bytes; /* packed_bytes: of a product; all are packed first unless whole */
};

static int64_t round64(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void make_plan(const struct attention_dims *d, struct plan *p)
{
    const struct simd_isa *isa = simd_isa_best();
    *p = (struct plan){.products = d->batch * d->heads};
    int64_t most = SCORES / YK_MAX(d->lk, 1) / 12 * 12;
    p->rows = YK_MIN(YK_MAX(most, 12), ROWS);
    p->blocks = (d->lq + p->rows - 1) / p->rows;
    p->k_floats = (simd_packed(isa, d->d, d->lk) + 15) / 16 * 16;
    p->v_floats = (simd_packed(isa, d->lk, d->dv) + 15) / 16 * 16;
    p->s_floats = YK_MIN(p->rows, d->lq) * d->lk;
    p->packed_bytes = (p->k_floats + p->v_floats) * (int64_t)sizeof(float);
    p->whole = p->products >= PRODUCTS || p->blocks <= 1;
    p->slot_bytes = round64(p->s_floats * (int64_t)sizeof(float)) + 64 + (p->whole ? p->packed_bytes : 0);
    p->slots = simd_last_slots(p->slot_bytes, p->whole ? p->products : p->products * p->blocks);
}

struct job {
    const struct host_call *c;
    const struct simd_isa *isa;
    struct attention_dims d;
    struct plan p;
    struct simd_slots slots;
};

static const float *operand(const struct job *j, int in, int64_t at, const int64_t step[3], int64_t product)
{
    return (const float *)j->c->in[in].data + at + product / j->d.heads * step[0] + product % j->d.heads * step[1];
}

static void pack(const struct job *j, int64_t product, float *to)
{
    const struct attention_dims *d = &j->d;
    j->isa->pack(to, operand(j, 1, d->k_at, d->k, product), d->d, d->lk, d->k[2], true);
    j->isa->pack(to + j->p.k_floats, operand(j, 2, d->v_at, d->v, product), d->lk, d->dv, d->v[2], false);
}

static void block(const struct job *j, int64_t product, int64_t index, const float *packed, float *scores)
{
    const struct attention_dims *d = &j->d;
    int64_t first = index * j->p.rows, m = YK_MIN(j->p.rows, d->lq - first);
    int64_t b = product / d->heads, h = product % d->heads;
    const float *mask = j->c->n_in > 3 ? j->c->in[3].data : NULL;
    float *y = (float *)j->c->out[0].data + b * d->y[0] + h * d->y[1] + first * d->y[2];
    struct simd_gemm qk = {.m = m,
        .n = d->lk,
        .k = d->d,
        .a = operand(j, 0, d->q_at, d->q, product) + first * d->q[2],
        .lda = d->q[2],
        .b = packed,
        .y = scores,
        .ldy = d->lk};
    struct simd_gemm sv = {
        .m = m, .n = d->dv, .k = d->lk, .a = scores, .lda = d->lk, .b = packed + j->p.k_floats, .y = y, .ldy = d->y[2]};
    float sums[ROWS];
    j->isa->gemm(&qk);
    for (int64_t i = 0; i < m; i++)
        sums[i] = j->isa->soft(scores + i * d->lk, scores + i * d->lk, d->lk, d->scale,
            mask ? mask + b * d->m[0] + h * d->m[1] + (first + i) * d->m[2] : NULL, d->m[3]);
    j->isa->gemm(&sv);
    for (int64_t i = 0; i < m && d->lk > 0; i++)
        j->isa->scale(y + i * d->y[2], 1.0f / sums[i], d->dv);
}

static void product_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    int slot = simd_last_take(&j->slots);
    float *packed = simd_last_slot(&j->slots, slot);
    pack(j, i, packed);
    for (int64_t k = 0; k < j->p.blocks; k++)
        block(j, i, k, packed, packed + j->p.k_floats + j->p.v_floats);
    simd_last_give(&j->slots, slot);
}

static float *packed_of(const struct job *j, int64_t product)
{
    return (float *)j->c->workspace + product * (j->p.k_floats + j->p.v_floats);
}

static void pack_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    pack(arg, i, packed_of(arg, i));
}

static void block_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    int slot = simd_last_take(&j->slots);
    block(j, i / j->p.blocks, i % j->p.blocks, packed_of(j, i / j->p.blocks), simd_last_slot(&j->slots, slot));
    simd_last_give(&j->slots, slot);
}

static yk_err run_attention(struct host_call *c)
{
    struct job j = {.c = c, .isa = simd_isa_best()};
    const struct shape *mask = c->n_in > 3 && c->in[3].data ? &c->in[3].shape : NULL;
    yk_err err = op_attention_dims(c->node, &c->in[0].shape, &c->in[1].shape, &c->in[2].shape, mask, &j.d, c->why);
    if (err)
        return err;
    make_plan(&j.d, &j.p);
    char *base = c->workspace;
    if (j.p.whole) {
        simd_last_lend(&j.slots, base, j.p.slot_bytes, j.p.slots);
        pool_run(c->pool, j.p.products, product_tile, &j);
        return YK_OK;
    }
    simd_last_lend(&j.slots, base + j.p.products * j.p.packed_bytes, j.p.slot_bytes, j.p.slots);
    pool_run(c->pool, j.p.products, pack_tile, &j);
    pool_run(c->pool, j.p.products * j.p.blocks, block_tile, &j);
    return YK_OK;
}

static bool dims_of(const struct op_ctx *c, struct attention_dims *d)
{
    return !op_attention_dims(c->node, c->in[0], c->in[1], c->in[2], c->n_in > 3 ? c->in[3] : NULL, d, NULL);
}

/* Enough for all smaller sizes too, of which some take the other way: few heads in many blocks pack all heads first. */
static void sizes_attention(const struct op_ctx *c, struct backend_form *f)
{
    struct attention_dims d;
    struct plan p;
    if (!dims_of(c, &d))
        return;
    make_plan(&d, &p);
    int64_t slot = round64(YK_MIN(ROWS, d.lq) * d.lk * (int64_t)sizeof(float)) + 64 + p.packed_bytes;
    int64_t tiles = p.products * YK_MAX((d.lq + 11) / 12, 1);
    f->workspace_bytes = YK_MIN(p.products, PRODUCTS) * p.packed_bytes + simd_last_slots_most(slot, tiles);
}

/* ---- Softmax ---- */

struct soft_job {
    const struct simd_isa *isa;
    const float *x;
    float *y;
    int64_t n;
};

static void soft_piece(void *arg, int64_t begin, int64_t end)
{
    const struct soft_job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        float sum = j->isa->soft(j->y + r * j->n, j->x + r * j->n, j->n, 1, NULL, 0);
        j->isa->scale(j->y + r * j->n, 1.0f / sum, j->n);
    }
}

static bool claim_softmax(const struct op_ctx *c)
{
    int rank = c->in[0]->rank;
    int64_t axis = node_attr_i(c->node, "axis", -1);
    return simd_claim_f32(c) && rank > 0 && (axis == -1 || axis == rank - 1);
}

static yk_err run_softmax(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct soft_job j = {simd_isa_best(), c->in[0].data, c->out[0].data, x->dims[x->rank - 1]};
    host_split(c, tensor_count(&c->in[0]) / YK_MAX(j.n, 1), j.n, soft_piece, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "ai.yoke",
        .op = "Attention",
        .kind = "attention",
        .claim = simd_claim_f32,
        .sizes = sizes_attention,
        .run = run_attention},
    {.domain = "", .op = "Softmax", .kind = "rows", .claim = claim_softmax, .run = run_softmax},
};
const struct host_rows simd_attention = {rows, (int)YK_COUNT(rows)};
