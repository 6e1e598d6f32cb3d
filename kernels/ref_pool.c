/* Pooling over 1 to 3 spatial axes. */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

struct pool_job {
    struct host_call *c;
    struct conv_dims d;
    bool max, include_pad, column_major;
    int64_t p; /* LpPool: the norm; else 0 */
};

/* Window of output `at` on axis s: [begin, begin + k * dilation) with what lies inside the input. */
static void window(const struct conv_dims *d, int s, int64_t at, int64_t *first, int64_t *lo, int64_t *hi)
{
    *first = at * d->stride[s] - d->pad_begin[s];
    *lo = *first < 0 ? (-*first + d->dilation[s] - 1) / d->dilation[s] : 0;
    *hi = d->k[s];
    while (*hi > *lo && *first + (*hi - 1) * d->dilation[s] >= d->in[s])
        (*hi)--;
}

static void pool_one(const struct pool_job *j, int64_t plane, const int64_t *at, int64_t out)
{
    const struct conv_dims *d = &j->d;
    const struct tensor *x = &j->c->in[0];
    int64_t first[3], lo[3], hi[3], best_at = -1, seen = 0;
    double best = -INFINITY, sum = 0;
    for (int s = 0; s < 3; s++)
        window(d, s, at[s], &first[s], &lo[s], &hi[s]);
    for (int64_t a = lo[0]; a < hi[0]; a++)
        for (int64_t b = lo[1]; b < hi[1]; b++)
            for (int64_t e = lo[2]; e < hi[2]; e++) {
                int64_t p0 = first[0] + a * d->dilation[0], p1 = first[1] + b * d->dilation[1],
                        p2 = first[2] + e * d->dilation[2];
                double v = ref_d(x, plane * d->in[0] * d->in[1] * d->in[2] + (p0 * d->in[1] + p1) * d->in[2] + p2);
                sum += j->p ? pow(fabs(v), (double)j->p) : v;
                seen++;
                if (best_at < 0 || v > best || (isnan(v) && !isnan(best))) {
                    best = v;
                    /* storage_order 1 counts the planes column by column. */
                    best_at =
                        j->column_major ? p0 + d->in[0] * (p1 + d->in[1] * p2) : (p0 * d->in[1] + p1) * d->in[2] + p2;
                }
            }
    double v = best;
    if (j->p) {
        v = pow(sum, 1 / (double)j->p);
    } else if (!j->max) {
        int64_t count = seen;
        if (j->include_pad) { /* of the padded input; what ceil_mode adds behind it does not count */
            count = 1;
            for (int s = 0; s < 3; s++) {
                int64_t n = 0;
                for (int64_t k = 0; k < d->k[s]; k++)
                    n += first[s] + k * d->dilation[s] < d->in[s] + d->pad_end[s];
                count *= n;
            }
        }
        v = count ? sum / (double)count : 0;
    }
    ref_store_d(j->c->out[0].data, j->c->out[0].shape.dtype, out, 1, &v, 1);
    if (j->max && j->c->n_out > 1 && !ref_absent(&j->c->out[1]))
        ((int64_t *)j->c->out[1].data)[out] = best_at < 0 ? 0 : plane * d->in[0] * d->in[1] * d->in[2] + best_at;
}

static void pool_piece(void *arg, int64_t begin, int64_t end)
{
    const struct pool_job *j = arg;
    int64_t per = j->d.out[0] * j->d.out[1] * j->d.out[2], at[3];
    for (int64_t p = begin; p < end; p++) {
        int64_t out = p * per;
        for (at[0] = 0; at[0] < j->d.out[0]; at[0]++)
            for (at[1] = 0; at[1] < j->d.out[1]; at[1]++)
                for (at[2] = 0; at[2] < j->d.out[2]; at[2]++)
                    pool_one(j, p, at, out++);
    }
}

static yk_err run_pool(struct host_call *c)
{
    struct pool_job j = {.c = c};
    yk_err err = op_conv_dims(c->node, &c->in[0].shape, NULL, &j.d, c->why);
    if (err)
        return err;
    j.max = !strcmp(c->node->op->name, "MaxPool");
    j.p = !strcmp(c->node->op->name, "LpPool") ? node_attr_i(c->node, "p", 2) : 0;
    j.include_pad = node_attr_i(c->node, "count_include_pad", 0) != 0;
    j.column_major = node_attr_i(c->node, "storage_order", 0) != 0;
    int64_t work = j.d.out[0] * j.d.out[1] * j.d.out[2] * j.d.k[0] * j.d.k[1] * j.d.k[2];
    host_split(c, j.d.n * j.d.c, 8 * work, pool_piece, &j);
    return YK_OK;
}

static yk_err run_global(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    bool max = !strcmp(c->node->op->name, "GlobalMaxPool");
    int64_t planes = x->dims[0] * x->dims[1], inner = 1;
    double norm = !strcmp(c->node->op->name, "GlobalLpPool") ? (double)node_attr_i(c->node, "p", 2) : 0;
    for (int d = 2; d < x->rank; d++)
        inner *= x->dims[d];
    for (int64_t p = 0; p < planes; p++) {
        double acc = max ? -INFINITY : 0;
        for (int64_t i = p * inner; i < (p + 1) * inner; i++) {
            double v = ref_d(&c->in[0], i);
            acc = norm > 0 ? acc + pow(fabs(v), norm) : !max ? acc + v : isnan(acc) || acc > v ? acc : v;
        }
        acc = norm > 0 ? pow(acc, 1 / norm) : max ? acc : acc / (double)inner;
        ref_store_d(c->out[0].data, c->out[0].shape.dtype, p, 1, &acc, 1);
    }
    return YK_OK;
}

#define ROW(name, fn)                                      \
    {                                                      \
        .domain = "", .op = name, .kind = "ref", .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("MaxPool", run_pool),
    ROW("AveragePool", run_pool),
    ROW("GlobalAveragePool", run_global),
    ROW("GlobalMaxPool", run_global),
    ROW("LpPool", run_pool),
    ROW("GlobalLpPool", run_global),
};
const struct host_rows ref_pool = {rows, (int)YK_COUNT(rows)};
