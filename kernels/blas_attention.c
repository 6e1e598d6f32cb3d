/* Attention with two products a head and block of queries; operands are read where they are. */
#include <cblas.h>

#include <string.h>

#include "kernels/blas.h"
#include "kernels/simd.h"
#include "kernels/simd_last.h"

#define ROWS 64 /* of a block */

struct attention_job {
    struct host_call *c;
    struct attention_dims d;
    int64_t blocks;
    struct simd_slots slots;
};

static int64_t slot_bytes(const struct attention_dims *d)
{
    return (YK_MIN(ROWS, d->lq) * d->lk * (int64_t)sizeof(float) + 127) / 64 * 64;
}

static void tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct attention_job *j = arg;
    const struct attention_dims *d = &j->d;
    const struct host_call *c = j->c;
    const struct simd_isa *isa = simd_isa_best();
    int64_t first = i % j->blocks * ROWS, h = i / j->blocks % d->heads, b = i / j->blocks / d->heads;
    int64_t m = YK_MIN(ROWS, d->lq - first);
    const float *q = (const float *)c->in[0].data + d->q_at + b * d->q[0] + h * d->q[1] + first * d->q[2];
    const float *k = (const float *)c->in[1].data + d->k_at + b * d->k[0] + h * d->k[1];
    const float *v = (const float *)c->in[2].data + d->v_at + b * d->v[0] + h * d->v[1];
    const float *mask = c->n_in > 3 ? c->in[3].data : NULL;
    float *y = (float *)c->out[0].data + b * d->y[0] + h * d->y[1] + first * d->y[2], sums[ROWS];
    int slot = simd_last_take(&j->slots);
    float *scores = simd_last_slot(&j->slots, slot);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)d->lk, (int)d->d, 1, q, (int)YK_MAX(d->q[2], 1),
        k, (int)YK_MAX(d->k[2], 1), 0, scores, (int)d->lk);
    for (int64_t r = 0; r < m; r++)
        sums[r] = isa->soft(scores + r * d->lk, scores + r * d->lk, d->lk, d->scale,
            mask ? mask + b * d->m[0] + h * d->m[1] + (first + r) * d->m[2] : NULL, d->m[3]);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)d->dv, (int)d->lk, 1, scores, (int)d->lk, v,
        (int)d->v[2], 0, y, (int)d->y[2]);
    for (int64_t r = 0; r < m; r++)
        isa->scale(y + r * d->y[2], 1.0f / sums[r], d->dv);
    simd_last_give(&j->slots, slot);
}

static bool dims_of(const struct op_ctx *c, struct attention_dims *d)
{
    return !op_attention_dims(c->node, c->in[0], c->in[1], c->in[2], c->n_in > 3 ? c->in[3] : NULL, d, NULL);
}

/* Steps that the library can count, and something to multiply. */
static bool claim_attention(const struct op_ctx *c)
{
    struct attention_dims d;
    return simd_claim_f32(c) && dims_of(c, &d) && d.lk > 0 && d.d > 0 && d.dv > 0 && d.lk <= INT32_MAX &&
           d.q[2] <= INT32_MAX && d.k[2] <= INT32_MAX && d.v[2] <= INT32_MAX && d.y[2] <= INT32_MAX;
}

static void sizes_attention(const struct op_ctx *c, struct backend_form *f)
{
    struct attention_dims d;
    if (dims_of(c, &d))
        f->workspace_bytes =
            simd_last_slots_most(slot_bytes(&d), d.batch * d.heads * YK_MAX((d.lq + ROWS - 1) / ROWS, 1));
}

static yk_err run_attention(struct host_call *c)
{
    struct attention_job j = {.c = c};
    const struct shape *mask = c->n_in > 3 && c->in[3].data ? &c->in[3].shape : NULL;
    yk_err err = op_attention_dims(c->node, &c->in[0].shape, &c->in[1].shape, &c->in[2].shape, mask, &j.d, c->why);
    if (err)
        return err;
    j.blocks = (j.d.lq + ROWS - 1) / ROWS;
    int64_t tiles = j.d.batch * j.d.heads * j.blocks, bytes = slot_bytes(&j.d);
    if (j.d.lk == 0) { /* a size may be less than it was prepared for */
        memset(c->out[0].data, 0, (size_t)tensor_bytes(&c->out[0]));
        return YK_OK;
    }
    simd_last_lend(&j.slots, c->workspace, bytes, simd_last_slots(bytes, tiles));
    pool_run(c->pool, tiles, tile, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {{.domain = "ai.yoke",
    .op = "Attention",
    .kind = "attention",
    .claim = claim_attention,
    .sizes = sizes_attention,
    .run = run_attention}};
const struct host_rows blas_attention = {rows, (int)YK_COUNT(rows)};
