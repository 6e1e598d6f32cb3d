/* Reductions over axes, and softmax. Floats are summed in double in index order; integers wrap. */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

/* Axes of the reduction, checked against the inferred output. */
static yk_err reduced_axes(struct host_call *c, bool *reduced)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    const struct attr *a = node_attr_ints(c->node, "axes");
    bool data = ref_has(c, 1);
    int64_t n = data ? tensor_count(&c->in[1]) : a ? (int64_t)a->n : 0;
    bool all = n == 0 && node_attr_i(c->node, "noop_with_empty_axes", 0) == 0;
    for (int d = 0; d < YK_MAX_RANK; d++)
        reduced[d] = all && d < x->rank;
    for (int64_t k = 0; k < n; k++) {
        int64_t axis = ref_axis(data ? ref_i(&c->in[1], k) : a->ints[k], x->rank);
        if (axis < 0 || axis >= x->rank)
            return yk_fail(c->why, YK_INVAL, "axis %lld of a rank %d tensor", (long long)axis, x->rank);
        reduced[axis] = true;
    }
    int64_t count = 1;
    for (int d = 0; d < x->rank; d++)
        count *= reduced[d] ? 1 : x->dims[d];
    if (count != shape_count(y))
        return yk_fail(c->why, YK_INVAL, "the axes give %lld elements where %lld were inferred", (long long)count,
            (long long)shape_count(y));
    return YK_OK;
}

enum reduce_op { R_SUM, R_MEAN, R_MAX, R_MIN, R_PROD, R_L1, R_L2, R_SUM_SQUARE, R_LOG_SUM, R_LOG_SUM_EXP };
static const char *const reduce_names[] = {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd",
    "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"};

struct reduce_job {
    struct host_call *c;
    enum reduce_op op;
    int n_keep, n_red;
    int64_t keep_dim[YK_MAX_RANK], keep_step[YK_MAX_RANK], red_dim[YK_MAX_RANK], red_step[YK_MAX_RANK], count;
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

static double reduce_d(const struct reduce_job *j, int64_t base)
{
    const struct tensor *x = &j->c->in[0];
    double acc = j->op == R_PROD                            ? 1
                 : j->op == R_MAX || j->op == R_LOG_SUM_EXP ? -INFINITY
                 : j->op == R_MIN                           ? INFINITY
                                                            : 0;
    for (int64_t k = 0; k < j->count; k++) {
        double v = ref_d(x, base + offset_of(k, j->n_red, j->red_dim, j->red_step));
        switch (j->op) {
        case R_SUM:
        case R_MEAN:
        case R_LOG_SUM:
            acc += v;
            break;
        case R_L1:
            acc += fabs(v);
            break;
        case R_L2:
        case R_SUM_SQUARE:
            acc += v * v;
            break;
        case R_PROD:
            acc *= v;
            break;
        case R_MAX:
        case R_LOG_SUM_EXP:
            acc = isnan(acc) || acc > v ? acc : v;
            break;
        case R_MIN:
            acc = isnan(acc) || acc < v ? acc : v;
            break;
        }
    }
    switch (j->op) {
    case R_MEAN:
        return acc / (double)j->count;
    case R_L2:
        return sqrt(acc);
    case R_LOG_SUM:
        return log(acc);
    case R_LOG_SUM_EXP: {
        if (!isfinite(acc))
            return acc;
        double sum = 0;
        for (int64_t k = 0; k < j->count; k++)
            sum += exp(ref_d(x, base + offset_of(k, j->n_red, j->red_dim, j->red_step)) - acc);
        return acc + log(sum);
    }
    default:
        return acc;
    }
}

static int64_t reduce_i(const struct reduce_job *j, int64_t base)
{
    const struct tensor *x = &j->c->in[0];
    bool u64 = x->shape.dtype == DT_U64;
    uint64_t acc = j->op == R_PROD ? 1 : 0;
    for (int64_t k = 0; k < j->count; k++) {
        int64_t v = ref_i(x, base + offset_of(k, j->n_red, j->red_dim, j->red_step));
        uint64_t u = (uint64_t)v;
        bool less = u64 ? u < acc : v < (int64_t)acc;
        switch (j->op) {
        case R_SUM:
        case R_MEAN:
            acc += u;
            break;
        case R_L1:
            acc += v < 0 && !u64 ? 0 - u : u;
            break;
        case R_SUM_SQUARE:
            acc += u * u;
            break;
        case R_PROD:
            acc *= u;
            break;
        case R_MAX:
            acc = k && less ? acc : u;
            break;
        case R_MIN:
            acc = k && !less ? acc : u;
            break;
        default:
            break;
        }
    }
    if (j->op == R_MEAN && j->count)
        return u64 ? (int64_t)(acc / (uint64_t)j->count) : (int64_t)acc / j->count;
    return (int64_t)acc;
}

static void reduce_piece(void *arg, int64_t begin, int64_t end)
{
    const struct reduce_job *j = arg;
    struct tensor *y = &j->c->out[0];
    bool floats = dtype_is_float(j->c->in[0].shape.dtype) || j->op == R_L2 || j->op >= R_LOG_SUM;
    for (int64_t i = begin; i < end; i++) {
        int64_t base = offset_of(i, j->n_keep, j->keep_dim, j->keep_step);
        if (floats) {
            double v = reduce_d(j, base);
            ref_store_d(y->data, y->shape.dtype, i, 1, &v, 1);
        } else {
            int64_t v = reduce_i(j, base);
            ref_store_i(y->data, y->shape.dtype, i, 1, &v, 1);
        }
    }
}

static yk_err run_reduce(struct host_call *c)
{
    struct reduce_job j = {.c = c, .count = 1};
    for (int i = 0; i < (int)YK_COUNT(reduce_names); i++)
        if (!strcmp(reduce_names[i], c->node->op->name))
            j.op = (enum reduce_op)i;
    bool reduced[YK_MAX_RANK];
    yk_err err = reduced_axes(c, reduced);
    if (err)
        return err;
    const struct shape *x = &c->in[0].shape;
    int64_t step[YK_MAX_RANK], at = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        step[d] = at;
        at *= x->dims[d];
    }
    for (int d = 0; d < x->rank; d++) {
        if (reduced[d]) {
            j.red_dim[j.n_red] = x->dims[d];
            j.red_step[j.n_red++] = step[d];
            j.count *= x->dims[d];
        } else {
            j.keep_dim[j.n_keep] = x->dims[d];
            j.keep_step[j.n_keep++] = step[d];
        }
    }
    host_split(c, tensor_count(&c->out[0]), 8 * j.count, reduce_piece, &j);
    return YK_OK;
}

static yk_err run_arg(struct host_call *c)
{
    const struct tensor *x = &c->in[0];
    bool max = !strcmp(c->node->op->name, "ArgMax"), last = node_attr_i(c->node, "select_last_index", 0);
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", 0), x->shape.rank), outer = 1, inner = 1;
    for (int d = 0; d < axis; d++)
        outer *= x->shape.dims[d];
    for (int d = (int)axis + 1; d < x->shape.rank; d++)
        inner *= x->shape.dims[d];
    int64_t len = x->shape.dims[axis];
    bool floats = dtype_is_float(x->shape.dtype), u64 = x->shape.dtype == DT_U64;
    for (int64_t i = 0; i < outer * inner; i++) {
        int64_t base = i / inner * len * inner + i % inner, best = 0;
        for (int64_t k = 1; k < len; k++) {
            bool more, same;
            if (floats) {
                double a = ref_d(x, base + k * inner), b = ref_d(x, base + best * inner);
                more = (max ? a > b : a < b) || (isnan(a) && !isnan(b));
                same = a == b;
            } else {
                int64_t a = ref_i(x, base + k * inner), b = ref_i(x, base + best * inner);
                bool less = u64 ? (uint64_t)a < (uint64_t)b : a < b;
                same = a == b;
                more = max ? !less && !same : less;
            }
            if (more || (last && same))
                best = k;
        }
        ((int64_t *)c->out[0].data)[i] = best;
    }
    return YK_OK;
}

struct softmax_job {
    struct host_call *c;
    int64_t len, inner;
    bool log;
};

static void softmax_piece(void *arg, int64_t begin, int64_t end)
{
    const struct softmax_job *j = arg;
    const struct tensor *x = &j->c->in[0];
    struct tensor *y = &j->c->out[0];
    for (int64_t i = begin; i < end; i++) {
        int64_t base = i / j->inner * j->len * j->inner + i % j->inner;
        double max = -INFINITY, sum = 0;
        for (int64_t k = 0; k < j->len; k++) {
            double v = ref_d(x, base + k * j->inner);
            max = isnan(max) || max > v ? max : v;
        }
        for (int64_t k = 0; k < j->len; k++)
            sum += exp(ref_d(x, base + k * j->inner) - max);
        double log_sum = log(sum);
        for (int64_t k = 0; k < j->len; k++) {
            double v = ref_d(x, base + k * j->inner) - max;
            v = j->log ? v - log_sum : exp(v) / sum;
            ref_store_d(y->data, y->shape.dtype, base + k * j->inner, 1, &v, 1);
        }
    }
}

static yk_err run_softmax(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct softmax_job j = {c, 1, 1, !strcmp(c->node->op->name, "LogSoftmax")};
    int64_t outer = 1;
    if (x->rank > 0) {
        int64_t axis = ref_axis(node_attr_i(c->node, "axis", -1), x->rank);
        j.len = x->dims[axis];
        for (int d = 0; d < axis; d++)
            outer *= x->dims[d];
        for (int d = (int)axis + 1; d < x->rank; d++)
            j.inner *= x->dims[d];
    }
    host_split(c, outer * j.inner, 40 * j.len, softmax_piece, &j);
    return YK_OK;
}

#define ROW(name, fn)                                      \
    {                                                      \
        .domain = "", .op = name, .kind = "ref", .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("ReduceSum", run_reduce),
    ROW("ReduceMean", run_reduce),
    ROW("ReduceMax", run_reduce),
    ROW("ReduceMin", run_reduce),
    ROW("ReduceProd", run_reduce),
    ROW("ReduceL1", run_reduce),
    ROW("ReduceL2", run_reduce),
    ROW("ReduceSumSquare", run_reduce),
    ROW("ReduceLogSum", run_reduce),
    ROW("ReduceLogSumExp", run_reduce),
    ROW("ArgMax", run_arg),
    ROW("ArgMin", run_arg),
    ROW("Softmax", run_softmax),
    ROW("LogSoftmax", run_softmax),
};
const struct host_rows ref_reduce = {rows, (int)YK_COUNT(rows)};
