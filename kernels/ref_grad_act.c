/* Gradients of elementwise ops, Dropout and softmax. */
#include <math.h>
#include <string.h>

#include "kernels/ref.h"

#define BLOCK 256

/* The derivative, from v: Y or X as common/op.c says. p: the op's two parameters. */
struct slope {
    const char *op, *attr[2];
    float otherwise[2];
    double (*f)(double v, const double *p);
};

#define F(name, expr)                             \
    static double name(double v, const double *p) \
    {                                             \
        (void)p;                                  \
        return expr;                              \
    }
#define SQRT1_2 0.70710678118654752440
#define TWO_BY_SQRT_PI 1.12837916709551257390
#define ONE_BY_SQRT_2PI 0.39894228040143267794
static double logistic(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}
static double mish(double x)
{
    double t = tanh(softplus(x));
    return t + x * (1 - t * t) * logistic(x);
}
F(s_leaky_relu, v > 0 ? 1 : p[0])
F(s_elu, v > 0 ? 1 : v + p[0])
F(s_celu, v > 0 ? 1 : v / p[0] + 1)
F(s_selu, v > 0 ? p[1] : v + p[0] * p[1])
F(s_shrink, v<-p[0] || v> p[0] ? 1 : 0)
F(s_softsign, (1 - fabs(v)) * (1 - fabs(v)))
F(s_thresholded_relu, v > p[0] ? 1 : 0)
F(s_sigmoid, v *(1 - v))
F(s_hard_sigmoid, v > 0 && v < 1 ? p[0] : 0)
F(s_hard_swish, v<-3 ? 0 : v> 3 ? 1 : v / 3 + 0.5)
F(s_tanh, 1 - v * v)
F(s_softplus, -expm1(-v))
F(s_mish, mish(v))
F(s_gelu, 0.5 * (1 + erf(v * SQRT1_2)) + v * ONE_BY_SQRT_2PI * exp(-0.5 * v * v))
F(s_silu, logistic(v) * (1 + v * (1 - logistic(v))))
F(s_erf, TWO_BY_SQRT_PI *exp(-v *v))
F(s_exp, v)
F(s_log, 1 / v)
F(s_sqrt, 0.5 / v)
F(s_reciprocal, -v *v)
F(s_sin, cos(v))
F(s_cos, -sin(v))
F(s_tan, 1 + v * v)
F(s_acos, -1 / sqrt(1 - v * v))
F(s_asin, 1 / sqrt(1 - v * v))
F(s_atan, 1 / (1 + v * v))
F(s_sinh, cosh(v))
F(s_cosh, sinh(v))
F(s_asinh, 1 / sqrt(v * v + 1))
F(s_acosh, 1 / sqrt(v * v - 1))
F(s_atanh, 1 / (1 - v * v))
F(s_abs, v > 0 ? 1 : v < 0 ? -1 : 0)
#undef F

static const struct slope slopes[] = {
    {.op = "LeakyRelu", .attr = {"alpha"}, .otherwise = {0.01f}, .f = s_leaky_relu},
    {.op = "Elu", .attr = {"alpha"}, .otherwise = {1}, .f = s_elu},
    {.op = "Celu", .attr = {"alpha"}, .otherwise = {1}, .f = s_celu},
    {.op = "Selu",
        .attr = {"alpha", "gamma"},
        .otherwise = {1.67326319217681884765625f, 1.05070102214813232421875f},
        .f = s_selu},
    {.op = "Shrink", .attr = {"lambd"}, .otherwise = {0.5f}, .f = s_shrink},
    {.op = "Softsign", .f = s_softsign},
    {.op = "ThresholdedRelu", .attr = {"alpha"}, .otherwise = {1}, .f = s_thresholded_relu},
    {.op = "Sigmoid", .f = s_sigmoid},
    {.op = "HardSigmoid", .attr = {"alpha"}, .otherwise = {0.2f}, .f = s_hard_sigmoid},
    {.op = "HardSwish", .f = s_hard_swish},
    {.op = "Tanh", .f = s_tanh},
    {.op = "Softplus", .f = s_softplus},
    {.op = "Mish", .f = s_mish},
    {.op = "Gelu", .f = s_gelu},
    {.op = "Silu", .f = s_silu},
    {.op = "Erf", .f = s_erf},
    {.op = "Exp", .f = s_exp},
    {.op = "Log", .f = s_log},
    {.op = "Sqrt", .f = s_sqrt},
    {.op = "Reciprocal", .f = s_reciprocal},
    {.op = "Sin", .f = s_sin},
    {.op = "Cos", .f = s_cos},
    {.op = "Tan", .f = s_tan},
    {.op = "Acos", .f = s_acos},
    {.op = "Asin", .f = s_asin},
    {.op = "Atan", .f = s_atan},
    {.op = "Sinh", .f = s_sinh},
    {.op = "Cosh", .f = s_cosh},
    {.op = "Asinh", .f = s_asinh},
    {.op = "Acosh", .f = s_acosh},
    {.op = "Atanh", .f = s_atanh},
    {.op = "Abs", .f = s_abs},
};

struct unary_job {
    struct host_call *c;
    const struct slope *s;
    double p[2];
};

static void unary_piece(void *arg, int64_t begin, int64_t end)
{
    const struct unary_job *j = arg;
    struct host_call *c = j->c;
    enum dtype t = c->in[0].shape.dtype;
    double d[BLOCK], v[BLOCK];
    for (int64_t i = begin; i < end; i += BLOCK) {
        int64_t n = YK_MIN(end - i, BLOCK);
        ref_load_d(d, c->in[0].data, t, i, 1, n);
        ref_load_d(v, c->in[1].data, t, i, 1, n);
        for (int64_t k = 0; k < n; k++)
            d[k] *= j->s->f(v[k], j->p);
        ref_store_d(c->out[0].data, t, i, 1, d, n);
    }
}

static yk_err run_unary(struct host_call *c)
{
    const char *of = node_attr_s(c->node, "of", "");
    struct unary_job j = {.c = c};
    for (size_t i = 0; i < YK_COUNT(slopes); i++)
        if (strcmp(slopes[i].op, of) == 0)
            j.s = &slopes[i];
    if (!j.s)
        return yk_fail(c->why, YK_INTERNAL, "no derivative of %s", of);
    for (int k = 0; k < 2; k++)
        j.p[k] = j.s->attr[k] ? (double)node_attr_f(c->node, j.s->attr[k], j.s->otherwise[k]) : 0;
    host_split(c, tensor_count(&c->in[0]), 20, unary_piece, &j);
    return YK_OK;
}

struct clip_job {
    struct host_call *c;
    double lo, hi;
};

static void clip_floats(
    float *restrict dx, const float *restrict dy, const float *restrict y, int64_t n, float lo, float hi)
{
    for (int64_t i = 0; i < n; i++) {
        float d = dy[i]; /* read in any case, so that this becomes a vector loop */
        dx[i] = (y[i] <= lo) | (y[i] >= hi) ? 0 : d;
    }
}

static void clip_piece(void *arg, int64_t begin, int64_t end)
{
    const struct clip_job *j = arg;
    struct host_call *c = j->c;
    enum dtype t = c->in[0].shape.dtype;
    double d[BLOCK], y[BLOCK];
    if (t == DT_F32) { /* the same, without a turn through double */
        clip_floats((float *)c->out[0].data + begin, (const float *)c->in[0].data + begin,
            (const float *)c->in[1].data + begin, end - begin, (float)j->lo, (float)j->hi);
        return;
    }
    for (int64_t i = begin; i < end; i += BLOCK) {
        int64_t n = YK_MIN(end - i, BLOCK);
        ref_load_d(d, c->in[0].data, t, i, 1, n);
        ref_load_d(y, c->in[1].data, t, i, 1, n);
        for (int64_t k = 0; k < n; k++)
            d[k] = y[k] <= j->lo || y[k] >= j->hi ? 0 : d[k];
        ref_store_d(c->out[0].data, t, i, 1, d, n);
    }
}

static yk_err run_clip(struct host_call *c)
{
    struct clip_job j = {
        c, ref_has(c, 2) ? ref_d(&c->in[2], 0) : -INFINITY, ref_has(c, 3) ? ref_d(&c->in[3], 0) : INFINITY};
    host_split(c, tensor_count(&c->in[0]), 4, clip_piece, &j);
    return YK_OK;
}

struct dropout_job {
    struct host_call *c;
    double keep;
};

static void dropout_piece(void *arg, int64_t begin, int64_t end)
{
    const struct dropout_job *j = arg;
    struct host_call *c = j->c;
    const uint8_t *mask = c->in[1].data;
    enum dtype t = c->in[0].shape.dtype;
    double d[BLOCK];
    for (int64_t i = begin; i < end; i += BLOCK) {
        int64_t n = YK_MIN(end - i, BLOCK);
        ref_load_d(d, c->in[0].data, t, i, 1, n);
        for (int64_t k = 0; k < n; k++)
            d[k] = mask[i + k] ? d[k] / j->keep : 0;
        ref_store_d(c->out[0].data, t, i, 1, d, n);
    }
}

/* As Dropout itself: without training, or with ratio 0, the mask is all ones and nothing is scaled. */
static yk_err run_dropout(struct host_call *c)
{
    double ratio = ref_has(c, 2) ? ref_d(&c->in[2], 0) : 0.5;
    bool training = ref_has(c, 3) && ref_i(&c->in[3], 0);
    if (training && !(ratio >= 0 && ratio < 1))
        return yk_fail(c->why, YK_INVAL, "ratio is %g, allowed are 0 to less than 1", ratio);
    struct dropout_job j = {c, training ? 1 - ratio : 1};
    host_split(c, tensor_count(&c->in[0]), 4, dropout_piece, &j);
    return YK_OK;
}

/* ---- softmax ---- */

struct softmax_job {
    struct host_call *c;
    int64_t len, inner;
    bool log;
};

static void softmax_piece(void *arg, int64_t begin, int64_t end)
{
    const struct softmax_job *j = arg;
    const struct tensor *dy = &j->c->in[0], *y = &j->c->in[1];
    enum dtype t = dy->shape.dtype;
    double d[BLOCK], v[BLOCK];
    for (int64_t i = begin; i < end; i++) {
        int64_t base = i / j->inner * j->len * j->inner + i % j->inner;
        double sum = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t k = 0; k < j->len; k += BLOCK) {
                int64_t n = YK_MIN(j->len - k, BLOCK), at = base + k * j->inner;
                ref_load_d(d, dy->data, t, at, j->inner, n);
                if (pass || !j->log)
                    ref_load_d(v, y->data, t, at, j->inner, n);
                for (int64_t l = 0; l < n && !pass; l++)
                    sum += j->log ? d[l] : d[l] * v[l];
                for (int64_t l = 0; l < n && pass; l++)
                    d[l] = j->log ? d[l] - exp(v[l]) * sum : v[l] * (d[l] - sum);
                if (pass)
                    ref_store_d(j->c->out[0].data, t, at, j->inner, d, n);
            }
    }
}

static yk_err run_softmax(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    struct softmax_job j = {c, 1, 1, !strcmp(c->node->op->name, "LogSoftmaxGrad")};
    int64_t outer = 1;
    if (x->rank > 0) {
        int64_t axis = ref_axis(node_attr_i(c->node, "axis", -1), x->rank);
        j.len = x->dims[axis];
        for (int d = 0; d < axis; d++)
            outer *= x->dims[d];
        for (int d = (int)axis + 1; d < x->rank; d++)
            j.inner *= x->dims[d];
    }
    host_split(c, outer * j.inner, (j.log ? 20 : 6) * j.len, softmax_piece, &j);
    return YK_OK;
}

#define ROW(name, fn)                                             \
    {                                                             \
        .domain = "ai.yoke", .op = name, .kind = "ref", .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("UnaryGrad", run_unary),
    ROW("ClipGrad", run_clip),
    ROW("DropoutGrad", run_dropout),
    ROW("SoftmaxGrad", run_softmax),
    ROW("LogSoftmaxGrad", run_softmax),
};
const struct host_rows ref_grad_act = {rows, (int)YK_COUNT(rows)};
