/* Losses and their gradients: a row of scores (all classes of a position, or all elements of a sample) at a time, then
 * the sum over rows in index order. */
#include <math.h>
#include <string.h>

#include "kernels/ref.h"

enum loss_kind { L_CROSS_ENTROPY, L_NLL, L_MSE, L_L1, L_BCE };
static const char *const kinds[] = {"cross-entropy", "nll", "mse", "l1", "bce"};

struct loss_job {
    struct host_call *c;
    enum loss_kind kind;
    int64_t rows, len, inner; /* row r: len elements, inner apart */
    int64_t ignore;
    double smoothing, divisor;
    double *sums; /* by row, or NULL: the gradient is wanted */
};

static int64_t base_of(const struct loss_job *j, int64_t row)
{
    return row / j->inner * j->len * j->inner + row % j->inner;
}

static double log_sum_exp(const struct tensor *x, int64_t base, int64_t step, int64_t n)
{
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double v = ref_d(x, base + i * step);
        if (isnan(v))
            return v;
        top = v > top ? v : top;
    }
    if (isinf(top))
        return top;
    for (int64_t i = 0; i < n; i++)
        sum += exp(ref_d(x, base + i * step) - top);
    return top + log(sum);
}

static void store(const struct loss_job *j, int64_t at, double v)
{
    v /= j->divisor;
    ref_store_d(j->c->out[0].data, j->c->out[0].shape.dtype, at, 1, &v, 1);
}

/* Class ids: -(1 - s) log p[id] - s / classes * sum of log p. */
static void class_row(const struct loss_job *j, int64_t row)
{
    const struct tensor *x = &j->c->in[0];
    int64_t id = ref_i(&j->c->in[1], row), base = base_of(j, row);
    bool ignored = id == j->ignore;
    if (ignored || j->kind == L_NLL) {
        if (j->sums)
            j->sums[row] = ignored ? 0 : -ref_d(x, base + id * j->inner);
        for (int64_t k = 0; !j->sums && k < j->len; k++)
            store(j, base + k * j->inner, !ignored && k == id ? -1 : 0);
        return;
    }
    double total = log_sum_exp(x, base, j->inner, j->len), rest = j->smoothing / (double)j->len;
    if (j->sums) {
        double sum = (1 - j->smoothing) * (total - ref_d(x, base + id * j->inner));
        for (int64_t k = 0; j->smoothing > 0 && k < j->len; k++)
            sum += rest * (total - ref_d(x, base + k * j->inner));
        j->sums[row] = sum;
        return;
    }
    for (int64_t k = 0; k < j->len; k++) {
        double p = exp(ref_d(x, base + k * j->inner) - total);
        store(j, base + k * j->inner, p - rest - (k == id ? 1 - j->smoothing : 0));
    }
}

static double logistic(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

/* The mean over the elements of a sample. */
static void value_row(const struct loss_job *j, int64_t row)
{
    const struct tensor *x = &j->c->in[0], *t = &j->c->in[1];
    double sum = 0, n = (double)YK_MAX(j->len, 1);
    for (int64_t k = row * j->len; k < (row + 1) * j->len; k++) {
        double a = ref_d(x, k), b = ref_d(t, k), d = a - b;
        if (j->sums)
            sum += j->kind == L_MSE ? d * d : j->kind == L_L1 ? fabs(d) : fmax(a, 0) - a * b + log1p(exp(-fabs(a)));
        else
            store(j, k, (j->kind == L_MSE ? 2 * d : j->kind == L_L1 ? (d > 0) - (d < 0) : logistic(a) - b) / n);
    }
    if (j->sums)
        j->sums[row] = sum / n;
}

static void loss_piece(void *arg, int64_t begin, int64_t end)
{
    const struct loss_job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        if (j->kind <= L_NLL)
            class_row(j, r);
        else
            value_row(j, r);
    }
}

static yk_err prepare(struct host_call *c, struct loss_job *j)
{
    const struct shape *x = &c->in[0].shape;
    const struct attr *ignore = node_attr(c->node, "ignore_index");
    const char *kind = node_attr_s(c->node, "kind", "");
    *j = (struct loss_job){.c = c, .len = 1, .inner = 1, .ignore = ignore ? ignore->i : INT64_MIN};
    for (size_t i = 0; i < YK_COUNT(kinds); i++)
        if (strcmp(kinds[i], kind) == 0)
            j->kind = (enum loss_kind)i;
    j->smoothing = (double)node_attr_f(c->node, "label_smoothing", 0);
    j->divisor = ref_d(&c->in[2], 0);
    if (!(j->divisor > 0))
        return yk_fail(c->why, YK_INVAL, "the divisor is %g: nothing of the batch counts", j->divisor);
    if (j->kind > L_NLL) {
        j->rows = x->dims[0];
        for (int d = 1; d < x->rank; d++)
            j->len *= x->dims[d];
        return YK_OK;
    }
    j->len = x->dims[1];
    for (int d = 2; d < x->rank; d++)
        j->inner *= x->dims[d];
    j->rows = tensor_count(&c->in[1]);
    for (int64_t i = 0; i < j->rows; i++) {
        int64_t id = ref_i(&c->in[1], i);
        if (id != j->ignore && (id < 0 || id >= j->len))
            return yk_fail(c->why, YK_INVAL, "class id %lld (element %lld of the target) is outside %lld classes",
                (long long)id, (long long)i, (long long)j->len);
    }
    return YK_OK;
}

static int64_t cost(const struct loss_job *j)
{
    return (j->kind == L_CROSS_ENTROPY || j->kind == L_BCE ? 40 : 8) * j->len;
}

static void loss_sizes(const struct op_ctx *c, struct backend_form *form)
{
    form->workspace_bytes +=
        (int64_t)sizeof(double) * YK_MAX(shape_count(c->in[1]), c->in[1]->dims[0]); /* of no elements too */
}

static yk_err run_loss(struct host_call *c)
{
    struct loss_job j;
    double sum = 0;
    yk_err err = prepare(c, &j);
    if (err)
        return err;
    j.sums = c->workspace;
    host_split(c, j.rows, cost(&j), loss_piece, &j);
    for (int64_t i = 0; i < j.rows; i++)
        sum += j.sums[i];
    sum /= j.divisor;
    ref_store_d(c->out[0].data, c->out[0].shape.dtype, 0, 1, &sum, 1);
    return YK_OK;
}

static yk_err run_loss_grad(struct host_call *c)
{
    struct loss_job j;
    yk_err err = prepare(c, &j);
    if (err)
        return err;
    host_split(c, j.rows, cost(&j), loss_piece, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "ai.yoke", .op = "Loss", .kind = "ref", .sizes = loss_sizes, .run = run_loss},
    {.domain = "ai.yoke", .op = "LossGrad", .kind = "ref", .run = run_loss_grad},
};
const struct host_rows ref_grad_loss = {rows, (int)YK_COUNT(rows)};
