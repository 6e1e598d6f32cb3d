/* Attention: a row of scores at a time, softmax and sums in double. */
#include <math.h>

#include "kernels/ref.h"

#define COLUMNS 64 /* of v at once */

struct attention_job {
    struct host_call *c;
    struct attention_dims d;
};

static double score(const struct attention_job *j, int64_t q, int64_t k, int64_t m)
{
    const struct tensor *tq = &j->c->in[0], *tk = &j->c->in[1];
    double sum = 0;
    for (int64_t i = 0; i < j->d.d; i++)
        sum += ref_d(tq, q + i) * ref_d(tk, k + i);
    sum *= (double)j->d.scale;
    return ref_has(j->c, 3) ? sum + ref_d(&j->c->in[3], m) : sum;
}

static void attention_piece(void *arg, int64_t begin, int64_t end)
{
    const struct attention_job *j = arg;
    const struct attention_dims *d = &j->d;
    struct host_call *c = j->c;
    for (int64_t r = begin; r < end; r++) {
        int64_t i = r % d->lq, h = r / d->lq % d->heads, b = r / d->lq / d->heads;
        int64_t q = d->q_at + b * d->q[0] + h * d->q[1] + i * d->q[2], k = d->k_at + b * d->k[0] + h * d->k[1];
        int64_t v = d->v_at + b * d->v[0] + h * d->v[1], y = b * d->y[0] + h * d->y[1] + i * d->y[2];
        int64_t m = b * d->m[0] + h * d->m[1] + i * d->m[2];
        double most = -INFINITY;
        for (int64_t t = 0; t < d->lk; t++) {
            double s = score(j, q, k + t * d->k[2], m + t * d->m[3]);
            most = s > most ? s : most;
        }
        for (int64_t first = 0; first < d->dv; first += COLUMNS) {
            double sum = 0, at[COLUMNS] = {0};
            int64_t n = YK_MIN(COLUMNS, d->dv - first);
            for (int64_t t = 0; t < d->lk; t++) {
                double e = exp(score(j, q, k + t * d->k[2], m + t * d->m[3]) - most);
                sum += e;
                for (int64_t x = 0; x < n; x++)
                    at[x] += e * ref_d(&c->in[2], v + t * d->v[2] + first + x);
            }
            for (int64_t x = 0; x < n; x++)
                at[x] = d->lk ? at[x] / sum : 0;
            ref_store_d(c->out[0].data, c->out[0].shape.dtype, y + first, 1, at, n);
        }
    }
}

static yk_err run_attention(struct host_call *c)
{
    struct attention_job j = {.c = c};
    yk_err err = op_attention_dims(c->node, &c->in[0].shape, &c->in[1].shape, &c->in[2].shape,
        ref_has(c, 3) ? &c->in[3].shape : NULL, &j.d, c->why);
    if (err)
        return err;
    int64_t cost = YK_MIN(j.d.lk * (2 * j.d.d + j.d.dv), 1000000000);
    host_split(c, j.d.batch * j.d.heads * j.d.lq, 3 * cost, attention_piece, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "ai.yoke", .op = "Attention", .kind = "ref", .run = run_attention},
};
const struct host_rows ref_attention = {rows, (int)YK_COUNT(rows)};
