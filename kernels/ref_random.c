/* Ops that draw random numbers, and Dropout. What element i gets is a function of the run's seed, the node (its index
 * and its attribute seed) and i alone: see random.h. Two runs with one seed are equal; so are two cuts of a graph. */
#include "kernels/random.h"
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

/* [0, 1) with no more bits than the type holds, so that rounding never gives 1. */
static double unit_of(const struct random *r, enum dtype t, int64_t i)
{
    double scale = t == DT_F64 ? 0x1p53 : t == DT_F32 ? 0x1p24 : t == DT_F16 ? 0x1p11 : 0x1p8;
    return floor(random_unit(r, (uint64_t)i, 0) * scale) / scale;
}

struct random_job {
    struct host_call *c;
    struct random r;
};

static void uniform_piece(void *arg, int64_t begin, int64_t end)
{
    const struct random_job *j = arg;
    struct tensor *y = &j->c->out[0];
    double low = (double)node_attr_f(j->c->node, "low", 0), high = (double)node_attr_f(j->c->node, "high", 1);
    for (int64_t i = begin; i < end; i++) {
        double v = low + (high - low) * unit_of(&j->r, y->shape.dtype, i);
        ref_store_d(y->data, y->shape.dtype, i, 1, &v, 1);
    }
}

/* Box and Muller's, one of the pair. */
static void normal_piece(void *arg, int64_t begin, int64_t end)
{
    const struct random_job *j = arg;
    struct tensor *y = &j->c->out[0];
    double mean = (double)node_attr_f(j->c->node, "mean", 0), scale = (double)node_attr_f(j->c->node, "scale", 1);
    for (int64_t i = begin; i < end; i++) {
        double a = random_unit(&j->r, (uint64_t)i, 0), b = random_unit(&j->r, (uint64_t)i, 1);
        double v = mean + scale * sqrt(-2 * log(1 - a)) * cos(6.283185307179586477 * b);
        ref_store_d(y->data, y->shape.dtype, i, 1, &v, 1);
    }
}

static void bernoulli_piece(void *arg, int64_t begin, int64_t end)
{
    const struct random_job *j = arg;
    struct tensor *y = &j->c->out[0];
    for (int64_t i = begin; i < end; i++) {
        int64_t v = random_unit(&j->r, (uint64_t)i, 0) < ref_d(&j->c->in[0], i);
        ref_store_i(y->data, y->shape.dtype, i, 1, &v, 1);
    }
}

static yk_err run_split(struct host_call *c, void (*piece)(void *arg, int64_t begin, int64_t end))
{
    struct random_job j = {c, random_of(c)};
    host_split(c, tensor_count(&c->out[0]), 60, piece, &j);
    return YK_OK;
}

static yk_err run_uniform(struct host_call *c)
{
    return run_split(c, uniform_piece);
}

static yk_err run_normal(struct host_call *c)
{
    return run_split(c, normal_piece);
}

static yk_err run_bernoulli(struct host_call *c)
{
    return run_split(c, bernoulli_piece);
}

/* Where a uniform number falls into the sums of the classes' weights, largest weight 1. */
static yk_err run_multinomial(struct host_call *c)
{
    const struct tensor *x = &c->in[0];
    struct tensor *y = &c->out[0];
    struct random r = random_of(c);
    int64_t classes = x->shape.dims[1], samples = y->shape.dims[1];
    for (int64_t row = 0; row < x->shape.dims[0]; row++) {
        double top = -INFINITY, total = 0;
        for (int64_t k = 0; k < classes; k++) {
            double v = ref_d(x, row * classes + k);
            if (isnan(v) || v == INFINITY)
                return yk_fail(
                    c->why, YK_INVAL, "the weight of class %lld in row %lld is %g", (long long)k, (long long)row, v);
            top = v > top ? v : top;
        }
        if (isinf(top))
            return yk_fail(c->why, YK_INVAL, "no class of row %lld has a weight", (long long)row);
        for (int64_t k = 0; k < classes; k++)
            total += exp(ref_d(x, row * classes + k) - top);
        for (int64_t s = 0; s < samples; s++) {
            double left = random_unit(&r, (uint64_t)(row * samples + s), 0) * total;
            int64_t chosen = -1;
            for (int64_t k = 0; k < classes && left >= 0; k++) {
                double p = exp(ref_d(x, row * classes + k) - top);
                if (p > 0)
                    chosen = k;
                left -= p;
            }
            ref_store_i(y->data, y->shape.dtype, row * samples + s, 1, &chosen, 1);
        }
    }
    return YK_OK;
}

struct dropout_job {
    struct host_call *c;
    struct random r;
    double ratio;
    uint8_t *mask; /* NULL: not wanted */
};

static void dropout_piece(void *arg, int64_t begin, int64_t end)
{
    const struct dropout_job *j = arg;
    const struct tensor *x = &j->c->in[0];
    struct tensor *y = &j->c->out[0];
    for (int64_t i = begin; i < end; i++) {
        bool stays = random_unit(&j->r, (uint64_t)i, 0) >= j->ratio;
        double v = stays ? ref_d(x, i) / (1 - j->ratio) : 0;
        if (!ref_absent(y))
            ref_store_d(y->data, y->shape.dtype, i, 1, &v, 1);
        if (j->mask)
            j->mask[i] = stays;
    }
}

/* Dropout-13: in training an element stays with probability 1 - ratio and is scaled by 1 / (1 - ratio). */
static yk_err run_dropout(struct host_call *c)
{
    const struct tensor *x = &c->in[0];
    struct tensor *y = &c->out[0];
    double ratio = ref_has(c, 1) ? ref_d(&c->in[1], 0) : 0.5;
    bool training = ref_has(c, 2) && ref_i(&c->in[2], 0), mask = c->n_out > 1 && !ref_absent(&c->out[1]);
    int64_t n = tensor_count(x);
    if (training && !(ratio >= 0 && ratio < 1))
        return yk_fail(c->why, YK_INVAL, "ratio is %g, allowed are 0 to less than 1", ratio);
    if (!training || ratio == 0) {
        if (!ref_absent(y) && y->data != x->data)
            memmove(y->data, x->data, (size_t)tensor_bytes(x));
        if (mask)
            memset(c->out[1].data, 1, (size_t)n);
        return YK_OK;
    }
    struct dropout_job j = {c, random_of(c), ratio, mask ? c->out[1].data : NULL};
    host_split(c, n, 30, dropout_piece, &j);
    return YK_OK;
}

#define ROW(name, fn)                                      \
    {                                                      \
        .domain = "", .op = name, .kind = "ref", .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("RandomUniform", run_uniform),
    ROW("RandomUniformLike", run_uniform),
    ROW("RandomNormal", run_normal),
    ROW("RandomNormalLike", run_normal),
    ROW("Bernoulli", run_bernoulli),
    ROW("Multinomial", run_multinomial),
    ROW("Dropout", run_dropout),
};
const struct host_rows ref_random = {rows, (int)YK_COUNT(rows)};
