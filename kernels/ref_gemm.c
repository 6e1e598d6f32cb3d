/* Matrix products: Gemm, FusedGemm, MatMul. Floats sum in double along k, integers wrap. */
#include "common/activation.h"
#include "kernels/iter.h"
#include "kernels/ref.h"

struct gemm_job {
    struct host_call *c;
    int64_t m, n, k;
    int64_t am, ak, bk, bn; /* element steps of A and B */
    double alpha, beta;
    int64_t bias_m, bias_n; /* steps of the bias; 0 where it repeats */
    struct activation activation;
    struct iter batch; /* MatMul: out, a, b over the leading axes */
};

static void product(const struct gemm_job *j, int64_t a, int64_t b, int64_t row, int64_t col, int64_t out)
{
    struct host_call *c = j->c;
    const struct tensor *ta = &c->in[0], *tb = &c->in[1];
    enum dtype t = c->out[0].shape.dtype;
    int64_t bias_at = row * j->bias_m + col * j->bias_n;
    if (dtype_is_float(t)) {
        double sum = 0;
        for (int64_t k = 0; k < j->k; k++)
            sum += ref_d(ta, a + row * j->am + k * j->ak) * ref_d(tb, b + k * j->bk + col * j->bn);
        sum *= j->alpha;
        if (ref_has(c, 2))
            sum += j->beta * ref_d(&c->in[2], bias_at);
        sum = activation_apply(&j->activation, sum);
        ref_store_d(c->out[0].data, t, out, 1, &sum, 1);
        return;
    }
    uint64_t sum = 0;
    for (int64_t k = 0; k < j->k; k++)
        sum += (uint64_t)ref_i(ta, a + row * j->am + k * j->ak) * (uint64_t)ref_i(tb, b + k * j->bk + col * j->bn);
    int64_t v = (int64_t)sum;
    if (j->alpha != 1 || (ref_has(c, 2) && j->beta != 1)) {
        double scaled = j->alpha * (double)v + (ref_has(c, 2) ? j->beta * ref_d(&c->in[2], bias_at) : 0);
        ref_store_d(c->out[0].data, t, out, 1, &scaled, 1);
        return;
    }
    v = ref_has(c, 2) ? (int64_t)((uint64_t)v + (uint64_t)ref_i(&c->in[2], bias_at)) : v;
    ref_store_i(c->out[0].data, t, out, 1, &v, 1);
}

static void gemm_piece(void *arg, int64_t begin, int64_t end)
{
    const struct gemm_job *j = arg;
    for (int64_t row = begin; row < end; row++)
        for (int64_t col = 0; col < j->n; col++)
            product(j, 0, 0, row, col, row * j->n + col);
}

static yk_err run_gemm(struct host_call *c)
{
    const struct shape *a = &c->in[0].shape, *b = &c->in[1].shape, *y = &c->out[0].shape;
    struct gemm_job j = {.c = c, .activation = activation_of(c->node)};
    bool ta = node_attr_i(c->node, "transA", 0), tb = node_attr_i(c->node, "transB", 0);
    j.alpha = (double)node_attr_f(c->node, "alpha", 1);
    j.beta = (double)node_attr_f(c->node, "beta", 1);
    j.n = y->dims[y->rank - 1];
    j.m = 1;
    for (int d = 0; d < y->rank - 1; d++)
        j.m *= y->dims[d];
    j.k = a->dims[ta ? 0 : a->rank - 1];
    j.am = ta ? 1 : j.k;
    j.ak = ta ? a->dims[1] : 1;
    j.bk = tb ? 1 : b->dims[1];
    j.bn = tb ? b->dims[1] : 1;
    if (ref_has(c, 2)) {
        const struct shape *s = &c->in[2].shape;
        j.bias_n = s->rank >= 1 && s->dims[s->rank - 1] > 1 ? 1 : 0;
        j.bias_m = s->rank >= 2 && s->dims[s->rank - 2] > 1 ? s->dims[s->rank - 1] : 0;
    }
    host_split(c, j.m, 4 * j.n * j.k, gemm_piece, &j);
    return YK_OK;
}

static void matmul_piece(void *arg, int64_t begin, int64_t end)
{
    const struct gemm_job *j = arg;
    int64_t at[3];
    for (int64_t r = begin; r < end; r++) {
        int64_t batch = r / j->m, row = r % j->m;
        iter_at(&j->batch, batch / j->batch.inner, at);
        int64_t pos = batch % j->batch.inner;
        int64_t a = (at[1] + pos * iter_step(&j->batch, 1)) * j->m * j->k;
        int64_t b = (at[2] + pos * iter_step(&j->batch, 2)) * j->k * j->n;
        for (int64_t col = 0; col < j->n; col++)
            product(j, a, b, row, col, r * j->n + col);
    }
}

static yk_err run_matmul(struct host_call *c)
{
    struct shape a = c->in[0].shape, b = c->in[1].shape, y = c->out[0].shape;
    struct gemm_job j = {.c = c, .alpha = 1, .beta = 1};
    j.k = a.dims[a.rank - 1];
    j.m = a.rank > 1 ? a.dims[a.rank - 2] : 1;
    j.n = b.rank > 1 ? b.dims[b.rank - 1] : 1;
    j.am = j.k;
    j.ak = 1;
    j.bk = j.n;
    j.bn = 1;
    y.rank -= (a.rank > 1) + (b.rank > 1);
    a.rank = a.rank > 2 ? a.rank - 2 : 0;
    b.rank = b.rank > 2 ? b.rank - 2 : 0;
    const struct shape *operands[] = {&y, &a, &b};
    iter_broadcast(&j.batch, operands, 3);
    host_split(c, shape_count(&y) * j.m, 4 * j.n * j.k, matmul_piece, &j);
    return YK_OK;
}

#define ROW(dom, name, fn)                                  \
    {                                                       \
        .domain = dom, .op = name, .kind = "ref", .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("", "Gemm", run_gemm),
    ROW("ai.yoke", "FusedGemm", run_gemm),
    ROW("", "MatMul", run_matmul),
};
const struct host_rows ref_gemm = {rows, (int)YK_COUNT(rows)};
