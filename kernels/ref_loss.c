/* Losses, and the optimiser steps of domain ai.onnx.preview.training. Sums in double, in index order. */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

/* log(sum(exp)) of the classes of one position; where all are -infinity it is that. */
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

/* `raw`: the scores are not logarithms of probabilities yet. A mean over no weight at all is NaN, as 0 / 0 is. */
static yk_err run_loss(struct host_call *c, bool raw)
{
    const struct tensor *x = &c->in[0], *ids = &c->in[1];
    const struct attr *ignore = node_attr(c->node, "ignore_index");
    const char *reduction = node_attr_s(c->node, "reduction", "mean");
    bool each = !strcmp(reduction, "none"), logs = raw && c->n_out > 1 && !ref_absent(&c->out[1]);
    int64_t classes = x->shape.dims[1], inner = 1, n = tensor_count(ids);
    double sum = 0, weights = 0;
    for (int d = 2; d < x->shape.rank; d++)
        inner *= x->shape.dims[d];
    for (int64_t i = 0; i < n; i++) {
        int64_t id = ref_i(ids, i), base = i / inner * classes * inner + i % inner;
        double total = raw ? log_sum_exp(x, base, inner, classes) : 0, weight = 1, v = 0;
        for (int64_t k = 0; logs && k < classes; k++) {
            double p = ref_d(x, base + k * inner) - total;
            ref_store_d(c->out[1].data, c->out[1].shape.dtype, base + k * inner, 1, &p, 1);
        }
        if (ignore && id == ignore->i) {
            weight = 0;
        } else if (id < 0 || id >= classes) {
            return yk_fail(c->why, YK_INVAL, "class id %lld (element %lld) is outside %lld classes", (long long)id,
                (long long)i, (long long)classes);
        } else {
            weight = ref_has(c, 2) ? ref_d(&c->in[2], id) : 1;
            v = -weight * (ref_d(x, base + id * inner) - total);
        }
        if (each)
            ref_store_d(c->out[0].data, c->out[0].shape.dtype, i, 1, &v, 1);
        sum += v;
        weights += weight;
    }
    if (!each) {
        double v = strcmp(reduction, "mean") ? sum : sum / weights;
        ref_store_d(c->out[0].data, c->out[0].shape.dtype, 0, 1, &v, 1);
    }
    return YK_OK;
}

static yk_err run_nll(struct host_call *c)
{
    return run_loss(c, false);
}

static yk_err run_sce(struct host_call *c)
{
    return run_loss(c, true);
}

/* ---- optimisers ---- */

struct step {
    double rate, epsilon, norm, post, alpha, beta;
    bool nesterov;
};

/* One element: x and its states s[0], s[1] become new. */
static void adagrad(const struct step *p, double *x, double g, double *s)
{
    g += p->norm * *x;
    s[0] += g * g;
    *x -= p->rate * g / (sqrt(s[0]) + p->epsilon);
}

static void adam(const struct step *p, double *x, double g, double *s)
{
    g += p->norm * *x;
    s[0] = p->alpha * s[0] + (1 - p->alpha) * g;
    s[1] = p->beta * s[1] + (1 - p->beta) * g * g;
    *x = (1 - p->post) * (*x - p->rate * s[0] / (sqrt(s[1]) + p->epsilon));
}

static void momentum(const struct step *p, double *x, double g, double *s)
{
    g += p->norm * *x;
    s[0] = p->alpha * s[0] + p->beta * g;
    *x -= p->rate * (p->nesterov ? g + p->alpha * s[0] : s[0]);
}

static yk_err update(struct host_call *c, int states, const struct step *p,
    void (*fn)(const struct step *p, double *x, double g, double *s))
{
    int n = (c->n_in - 2) / (2 + states);
    for (int k = 0; k < n; k++)
        for (int64_t i = 0, count = tensor_count(&c->in[2 + k]); i < count; i++) {
            double x = ref_d(&c->in[2 + k], i), s[2] = {0, 0};
            for (int j = 0; j < states; j++)
                s[j] = ref_d(&c->in[2 + (2 + j) * n + k], i);
            fn(p, &x, ref_d(&c->in[2 + n + k], i), s);
            for (int j = 0; j <= states; j++) {
                struct tensor *y = &c->out[j * n + k];
                if (!ref_absent(y))
                    ref_store_d(y->data, y->shape.dtype, i, 1, j == 0 ? &x : &s[j - 1], 1);
            }
        }
    return YK_OK;
}

static double number(const struct host_call *c, const char *name, float otherwise)
{
    return (double)node_attr_f(c->node, name, otherwise);
}

static yk_err run_adagrad(struct host_call *c)
{
    double t = (double)ref_i(&c->in[1], 0);
    struct step p = {.epsilon = number(c, "epsilon", 1e-6f), .norm = number(c, "norm_coefficient", 0)};
    p.rate = ref_d(&c->in[0], 0) / (1 + t * number(c, "decay_factor", 0));
    return update(c, 1, &p, adagrad);
}

static yk_err run_adam(struct host_call *c)
{
    double t = (double)ref_i(&c->in[1], 0);
    struct step p = {.epsilon = number(c, "epsilon", 1e-6f),
        .norm = number(c, "norm_coefficient", 0),
        .post = number(c, "norm_coefficient_post", 0),
        .alpha = number(c, "alpha", 0.9f),
        .beta = number(c, "beta", 0.999f)};
    p.rate = ref_d(&c->in[0], 0);
    if (t > 0)
        p.rate *= sqrt(1 - pow(p.beta, t)) / (1 - pow(p.alpha, t));
    return update(c, 2, &p, adam);
}

static yk_err run_momentum(struct host_call *c)
{
    struct step p = {.norm = number(c, "norm_coefficient", 0),
        .alpha = number(c, "alpha", 0),
        .beta = ref_i(&c->in[1], 0) > 0 ? number(c, "beta", 0) : 1,
        .nesterov = !strcmp(node_attr_s(c->node, "mode", ""), "nesterov")};
    p.rate = ref_d(&c->in[0], 0);
    return update(c, 1, &p, momentum);
}

#define TRAINING "ai.onnx.preview.training"
#define ROW(dom, name, fn)                                  \
    {                                                       \
        .domain = dom, .op = name, .kind = "ref", .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("", "NegativeLogLikelihoodLoss", run_nll),
    ROW("", "SoftmaxCrossEntropyLoss", run_sce),
    ROW(TRAINING, "Adagrad", run_adagrad),
    ROW(TRAINING, "Adam", run_adam),
    ROW(TRAINING, "Momentum", run_momentum),
};
const struct host_rows ref_loss = {rows, (int)YK_COUNT(rows)};
