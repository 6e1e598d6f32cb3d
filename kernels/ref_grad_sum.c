/* Gradients of broadcasting and of reductions. Sums in double, in index order. */
#include <string.h>

#include "kernels/ref.h"

#define BLOCK 256

/* ---- SumTo ---- */

/* Axes of the input by what becomes of them, neighbours of one kind merged; sizes and steps in the input. The last
 * merged run of reduced axes stands apart: it is contiguous where no kept axis is behind it. */
struct sum_job {
    struct host_call *c;
    int n_keep, n_red;
    int64_t keep_dim[YK_MAX_RANK], keep_step[YK_MAX_RANK], red_dim[YK_MAX_RANK], red_step[YK_MAX_RANK];
    int64_t reds, tail; /* combinations of red_dim; elements of the contiguous run behind all kept axes */
};

static int64_t offset_of(int64_t i, int n, const int64_t *dim, const int64_t *step)
{
    int64_t at = 0;
    for (int d = n - 1; d >= 0; d--) {
        at += i % dim[d] * step[d];
        i /= dim[d];
    }
    return at;
}

/* Rows four at a time, each in its order: additions do not wait for one another. Returns how many rows are done. */
static int64_t four_rows(double *acc, const float *x, int64_t step, int64_t n, int64_t len)
{
    int64_t k = 0;
    for (; k + 4 <= n; k += 4) {
        const float *a = x + k * step, *b = a + step, *c = b + step, *d = c + step;
        for (int64_t i = 0; i < len; i++) {
            acc[k] += (double)a[i];
            acc[k + 1] += (double)b[i];
            acc[k + 2] += (double)c[i];
            acc[k + 3] += (double)d[i];
        }
    }
    return k;
}

/* Outputs [begin, end): a run of the last kept axis at a time. */
static void sum_piece(void *arg, int64_t begin, int64_t end)
{
    const struct sum_job *j = arg;
    const struct tensor *x = &j->c->in[0];
    struct tensor *y = &j->c->out[0];
    int64_t row = j->n_keep ? j->keep_dim[j->n_keep - 1] : 1, step = j->n_keep ? j->keep_step[j->n_keep - 1] : 1;
    double acc[BLOCK], v[BLOCK];
    for (int64_t i = begin; i < end;) {
        int64_t n = YK_MIN(YK_MIN(end - i, row - i % row), BLOCK);
        int64_t base = offset_of(i, j->n_keep, j->keep_dim, j->keep_step);
        memset(acc, 0, (size_t)n * sizeof *acc);
        for (int64_t r = 0; r < j->reds; r++) {
            int64_t at = base + offset_of(r, j->n_red, j->red_dim, j->red_step);
            if (j->tail == 1) {
                ref_load_d(v, x->data, x->shape.dtype, at, step, n);
                for (int64_t k = 0; k < n; k++)
                    acc[k] += v[k];
                continue;
            }
            int64_t k = x->shape.dtype == DT_F32 ? four_rows(acc, (const float *)x->data + at, step, n, j->tail) : 0;
            for (; k < n; k++)
                for (int64_t t = 0; t < j->tail; t += BLOCK) {
                    int64_t m = YK_MIN(j->tail - t, BLOCK);
                    ref_load_d(v, x->data, x->shape.dtype, at + k * step + t, 1, m);
                    for (int64_t l = 0; l < m; l++)
                        acc[k] += v[l];
                }
        }
        ref_store_d(y->data, y->shape.dtype, i, 1, acc, n);
        i += n;
    }
}

static yk_err run_sum_to(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    struct sum_job j = {.c = c, .reds = 1, .tail = 1};
    int64_t step = 1;
    int last = -1; /* kind of the axis before, walking from the last: 0 kept, 1 reduced */
    if (tensor_count(&c->out[0]) == 0)
        return YK_OK;
    for (int d = x->rank - 1; d >= 0; d--) {
        int k = d - (x->rank - y->rank);
        bool reduced = k < 0 || (y->dims[k] == 1 && x->dims[d] != 1);
        if (x->dims[d] != 1 || reduced) {
            int *n = reduced ? &j.n_red : &j.n_keep;
            int64_t *dims = reduced ? j.red_dim : j.keep_dim, *steps = reduced ? j.red_step : j.keep_step;
            if (last == reduced) {
                dims[*n - 1] *= x->dims[d];
            } else {
                dims[*n] = x->dims[d];
                steps[(*n)++] = step;
            }
            last = reduced;
        }
        step *= x->dims[d];
    }
    if (j.n_red && j.red_step[0] == 1) { /* the first found is the last axis */
        j.tail = j.red_dim[0];
        memmove(j.red_dim, j.red_dim + 1, (size_t)--j.n_red * sizeof *j.red_dim);
        memmove(j.red_step, j.red_step + 1, (size_t)j.n_red * sizeof *j.red_step);
    }
    for (int l = 0; l < 2; l++) { /* outermost first */
        int n = l ? j.n_red : j.n_keep;
        int64_t *dims = l ? j.red_dim : j.keep_dim, *steps = l ? j.red_step : j.keep_step;
        for (int a = 0, b = n - 1; a < b; a++, b--) {
            int64_t dim = dims[a], s = steps[a];
            dims[a] = dims[b];
            steps[a] = steps[b];
            dims[b] = dim;
            steps[b] = s;
        }
    }
    for (int d = 0; d < j.n_red; d++)
        j.reds *= j.red_dim[d];
    if (j.tail == 0) {
        j.reds = 0;
        j.tail = 1;
    }
    host_split(c, tensor_count(&c->out[0]), 2 * j.reds * j.tail, sum_piece, &j);
    return YK_OK;
}

/* ---- ReduceGrad, ReduceProdGrad ---- */

struct spread_job {
    struct host_call *c;
    int rank;
    int64_t dims[YK_MAX_RANK], step[YK_MAX_RANK]; /* of X; steps in dY, 0 where it repeats */
    int64_t over;                                 /* elements of X that became one */
    double divisor;
};

static struct spread_job spread_of(struct host_call *c, const struct shape *x)
{
    struct spread_job j = {.c = c, .rank = x->rank, .over = 1, .divisor = 1};
    const struct attr *a = node_attr_ints(c->node, "axes");
    bool gone[YK_MAX_RANK] = {false};
    int64_t step = 1;
    for (size_t i = 0; a && i < a->n; i++)
        gone[ref_axis(a->ints[i], x->rank)] = true;
    for (int d = x->rank - 1; d >= 0; d--) {
        j.dims[d] = x->dims[d];
        j.step[d] = gone[d] ? 0 : step;
        step *= gone[d] ? 1 : x->dims[d];
        j.over *= gone[d] ? x->dims[d] : 1;
    }
    return j;
}

static void spread_piece(void *arg, int64_t begin, int64_t end)
{
    const struct spread_job *j = arg;
    const struct tensor *dy = &j->c->in[0];
    struct tensor *dx = &j->c->out[0];
    int64_t row = j->rank ? j->dims[j->rank - 1] : 1, step = j->rank ? j->step[j->rank - 1] : 0;
    double v[BLOCK];
    for (int64_t i = begin; i < end;) {
        int64_t n = YK_MIN(YK_MIN(end - i, row - i % row), BLOCK), at = offset_of(i, j->rank, j->dims, j->step);
        ref_load_d(v, dy->data, dy->shape.dtype, at, step, n);
        for (int64_t k = 0; k < n; k++)
            v[k] /= j->divisor;
        ref_store_d(dx->data, dx->shape.dtype, i, 1, v, n);
        i += n;
    }
}

static yk_err run_reduce_grad(struct host_call *c)
{
    struct spread_job j = spread_of(c, &c->out[0].shape);
    if (node_attr_i(c->node, "mean", 0))
        j.divisor = (double)j.over;
    host_split(c, tensor_count(&c->out[0]), 3, spread_piece, &j);
    return YK_OK;
}

/* The product of the others: with one zero among them only that one has a gradient. */
static yk_err run_reduce_prod_grad(struct host_call *c)
{
    const struct tensor *dy = &c->in[0], *x = &c->in[1];
    struct tensor *dx = &c->out[0];
    struct spread_job j = spread_of(c, &x->shape);
    int64_t n = tensor_count(dy), over_dim[YK_MAX_RANK], over_step[YK_MAX_RANK], step = 1, count = tensor_count(x);
    int64_t keep_dim[YK_MAX_RANK], keep_step[YK_MAX_RANK];
    int n_over = 0, n_keep = 0;
    int64_t steps[YK_MAX_RANK];
    if (count == 0)
        return YK_OK;
    for (int d = j.rank - 1; d >= 0; d--) {
        steps[d] = step;
        step *= j.dims[d];
    }
    const struct attr *a = node_attr_ints(c->node, "axes");
    bool gone[YK_MAX_RANK] = {false};
    for (size_t i = 0; a && i < a->n; i++)
        gone[ref_axis(a->ints[i], j.rank)] = true;
    for (int d = 0; d < j.rank; d++) {
        if (gone[d]) {
            over_dim[n_over] = j.dims[d];
            over_step[n_over++] = steps[d];
        } else {
            keep_dim[n_keep] = j.dims[d];
            keep_step[n_keep++] = steps[d];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t base = offset_of(i, n_keep, keep_dim, keep_step), zeros = 0;
        double product = 1, d = ref_d(dy, i);
        for (int64_t k = 0; k < j.over; k++) {
            double v = ref_d(x, base + offset_of(k, n_over, over_dim, over_step));
            zeros += v == 0;
            product *= v == 0 ? 1 : v;
        }
        for (int64_t k = 0; k < j.over; k++) {
            int64_t at = base + offset_of(k, n_over, over_dim, over_step);
            double v = ref_d(x, at), g = zeros == 0 ? d * product / v : zeros == 1 && v == 0 ? d * product : 0;
            ref_store_d(dx->data, dx->shape.dtype, at, 1, &g, 1);
        }
    }
    return YK_OK;
}

#define ROW(name, fn)                                             \
    {                                                             \
        .domain = "ai.yoke", .op = name, .kind = "ref", .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("SumTo", run_sum_to),
    ROW("ReduceGrad", run_reduce_grad),
    ROW("ReduceProdGrad", run_reduce_prod_grad),
};
const struct host_rows ref_grad_sum = {rows, (int)YK_COUNT(rows)};
