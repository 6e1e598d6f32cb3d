/* Elementwise ops: blocks of elements go through double (floats) or int64 (integers), one function per op. */
#include "kernels/iter.h"
#include "kernels/ref.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define BLOCK 256

/* Unary. p: the op's two parameters. */
struct unary {
    const char *op, *attr[2];
    float otherwise[2];
    double (*f)(double x, const double *p);
    int64_t (*i)(int64_t x, const double *p);
};

#define F(name, expr)                             \
    static double name(double x, const double *p) \
    {                                             \
        (void)p;                                  \
        return expr;                              \
    }
F(f_abs, fabs(x))
F(f_acos, acos(x))
F(f_acosh, acosh(x))
F(f_asin, asin(x))
F(f_asinh, asinh(x))
F(f_atan, atan(x))
F(f_atanh, atanh(x))
F(f_ceil, ceil(x))
F(f_celu, fmax(0, x) + fmin(0, p[0] * expm1(x / p[0])))
F(f_cos, cos(x))
F(f_cosh, cosh(x))
F(f_elu, x < 0 ? p[0] * expm1(x) : x)
F(f_erf, erf(x))
F(f_exp, exp(x))
F(f_floor, floor(x))
F(f_gelu, 0.5 * x * (1 + erf(x * M_SQRT1_2)))
F(f_hard_sigmoid, isnan(x) ? x : fmax(0, fmin(1, p[0] * x + p[1])))
F(f_hard_swish, isnan(x) ? x : x *fmax(0, fmin(1, x / 6 + 0.5)))
F(f_leaky_relu, x < 0 ? p[0] * x : x)
F(f_log, log(x))
static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}
F(f_mish, x *tanh(softplus(x)))
F(f_neg, -x)
F(f_reciprocal, 1 / x)
F(f_relu, x < 0 ? 0 : x)
F(f_round, nearbyint(x))
F(f_selu, x > 0 ? p[1] * x : p[1] * p[0] * expm1(x))
F(f_sigmoid, x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)))
F(f_sign, x > 0 ? 1 : x < 0 ? -1 : x)
F(f_silu, x >= 0 ? x / (1 + exp(-x)) : x * exp(x) / (1 + exp(x)))
F(f_sin, sin(x))
F(f_sinh, sinh(x))
F(f_softplus, softplus(x))
F(f_softsign, x / (1 + fabs(x)))
F(f_shrink, x<-p[0] ? x + p[1] : x> p[0] ? x - p[1] : isnan(x) ? x : 0)
F(f_sqrt, sqrt(x))
F(f_tan, tan(x))
F(f_tanh, tanh(x))
F(f_thresholded_relu, x > p[0] ? x : isnan(x) ? x : 0)
#undef F

static int64_t wrap_neg(int64_t x)
{
    return (int64_t)(0 - (uint64_t)x);
}
#define I(name, expr)                               \
    static int64_t name(int64_t x, const double *p) \
    {                                               \
        (void)p;                                    \
        return expr;                                \
    }
I(i_abs, x < 0 ? wrap_neg(x) : x)
I(i_identity, x)
I(i_neg, wrap_neg(x))
I(i_not, !x)
I(i_relu, x < 0 ? 0 : x)
I(i_sign, (x > 0) - (x < 0))
#undef I

static const struct unary unaries[] = {
    {.op = "Abs", .f = f_abs, .i = i_abs},
    {.op = "Acos", .f = f_acos},
    {.op = "Acosh", .f = f_acosh},
    {.op = "Asin", .f = f_asin},
    {.op = "Asinh", .f = f_asinh},
    {.op = "Atan", .f = f_atan},
    {.op = "Atanh", .f = f_atanh},
    {.op = "Ceil", .f = f_ceil, .i = i_identity},
    {.op = "Celu", .attr = {"alpha"}, .otherwise = {1}, .f = f_celu},
    {.op = "Cos", .f = f_cos},
    {.op = "Cosh", .f = f_cosh},
    {.op = "Elu", .attr = {"alpha"}, .otherwise = {1}, .f = f_elu},
    {.op = "Erf", .f = f_erf},
    {.op = "Exp", .f = f_exp},
    {.op = "Floor", .f = f_floor, .i = i_identity},
    {.op = "Gelu", .f = f_gelu},
    {.op = "HardSigmoid", .attr = {"alpha", "beta"}, .otherwise = {0.2f, 0.5f}, .f = f_hard_sigmoid},
    {.op = "HardSwish", .f = f_hard_swish},
    {.op = "LeakyRelu", .attr = {"alpha"}, .otherwise = {0.01f}, .f = f_leaky_relu},
    {.op = "Log", .f = f_log},
    {.op = "Mish", .f = f_mish},
    {.op = "Neg", .f = f_neg, .i = i_neg},
    {.op = "Not", .f = NULL, .i = i_not},
    {.op = "Reciprocal", .f = f_reciprocal},
    {.op = "Relu", .f = f_relu, .i = i_relu},
    {.op = "Round", .f = f_round, .i = i_identity},
    {.op = "Selu",
        .attr = {"alpha", "gamma"},
        .otherwise = {1.67326319217681884765625f, 1.05070102214813232421875f},
        .f = f_selu},
    {.op = "Shrink", .attr = {"lambd", "bias"}, .otherwise = {0.5f, 0}, .f = f_shrink},
    {.op = "Sigmoid", .f = f_sigmoid},
    {.op = "Sign", .f = f_sign, .i = i_sign},
    {.op = "Silu", .f = f_silu},
    {.op = "Sin", .f = f_sin},
    {.op = "Sinh", .f = f_sinh},
    {.op = "Softplus", .f = f_softplus},
    {.op = "Softsign", .f = f_softsign},
    {.op = "Sqrt", .f = f_sqrt},
    {.op = "Tan", .f = f_tan},
    {.op = "Tanh", .f = f_tanh},
    {.op = "ThresholdedRelu", .attr = {"alpha"}, .otherwise = {1}, .f = f_thresholded_relu},
};

struct unary_job {
    const struct unary *u;
    const struct tensor *in, *out;
    double p[2];
};

static void unary_piece(void *arg, int64_t begin, int64_t end)
{
    const struct unary_job *j = arg;
    enum dtype t = j->in->shape.dtype;
    for (int64_t at = begin; at < end; at += BLOCK) {
        int64_t n = YK_MIN(BLOCK, end - at);
        if (dtype_is_float(t)) {
            double v[BLOCK];
            ref_load_d(v, j->in->data, t, at, 1, n);
            for (int64_t i = 0; i < n; i++)
                v[i] = j->u->f(v[i], j->p);
            ref_store_d(j->out->data, j->out->shape.dtype, at, 1, v, n);
        } else {
            int64_t v[BLOCK];
            ref_load_i(v, j->in->data, t, at, 1, n);
            for (int64_t i = 0; i < n; i++)
                if (t != DT_U64 || v[i] >= 0)
                    v[i] = j->u->i(v[i], j->p);
                else if (j->u->i == i_sign) /* 2^63 and more: not negative */
                    v[i] = 1;
            ref_store_i(j->out->data, j->out->shape.dtype, at, 1, v, n);
        }
    }
}

static yk_err no_dtype(struct host_call *c, enum dtype t)
{
    return yk_fail(c->why, YK_UNSUPPORTED, "no kernel for %s", dtype_name(t));
}

static yk_err run_unary(struct host_call *c)
{
    struct unary_job j = {NULL, &c->in[0], &c->out[0], {0, 0}};
    for (size_t i = 0; i < YK_COUNT(unaries); i++)
        if (!strcmp(unaries[i].op, c->node->op->name))
            j.u = &unaries[i];
    enum dtype t = c->in[0].shape.dtype;
    if (!j.u || (dtype_is_float(t) ? !j.u->f : !j.u->i))
        return no_dtype(c, t);
    for (int k = 0; k < 2; k++)
        if (j.u->attr[k])
            j.p[k] = (double)node_attr_f(c->node, j.u->attr[k], j.u->otherwise[k]);
    host_split(c, tensor_count(&c->out[0]), 10, unary_piece, &j);
    return YK_OK;
}

/* Binary and variadic ops: a left fold over the inputs, floats in double. */
enum fold_op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_POW,
    OP_MOD,
    OP_FMOD,
    OP_MIN,
    OP_MAX,
    OP_MEAN,
    OP_PRELU,
    OP_AND,
    OP_OR,
    OP_XOR,
    OP_SHL,
    OP_SHR,
    OP_EQUAL,
    OP_LESS,
    OP_LESS_EQUAL,
    OP_GREATER,
    OP_GREATER_EQUAL
};
static const struct {
    const char *name;
    enum fold_op op;
} fold_ops[] = {{"Add", OP_ADD}, {"Sum", OP_ADD}, {"Sub", OP_SUB}, {"Mul", OP_MUL}, {"Div", OP_DIV}, {"Pow", OP_POW},
    {"Mod", OP_MOD}, {"Min", OP_MIN}, {"Max", OP_MAX}, {"Mean", OP_MEAN}, {"PRelu", OP_PRELU}, {"And", OP_AND},
    {"Or", OP_OR}, {"Xor", OP_XOR}, {"Equal", OP_EQUAL}, {"Less", OP_LESS}, {"LessOrEqual", OP_LESS_EQUAL},
    {"Greater", OP_GREATER}, {"GreaterOrEqual", OP_GREATER_EQUAL}};

static double fold_d(enum fold_op op, double a, double b)
{
    switch (op) {
    case OP_ADD:
    case OP_MEAN:
        return a + b;
    case OP_SUB:
        return a - b;
    case OP_MUL:
        return a * b;
    case OP_DIV:
        return a / b;
    case OP_POW:
        return pow(a, b);
    case OP_MOD:
    case OP_FMOD:
        return fmod(a, b);
    case OP_MIN:
        return isnan(a) || a < b ? a : b;
    case OP_MAX:
        return isnan(a) || a > b ? a : b;
    case OP_PRELU:
        return a < 0 ? a * b : a;
    case OP_EQUAL:
        return a == b;
    case OP_LESS:
        return a < b;
    case OP_LESS_EQUAL:
        return a <= b;
    case OP_GREATER:
        return a > b;
    case OP_GREATER_EQUAL:
        return a >= b;
    default:
        return NAN;
    }
}

static int64_t pow_i(int64_t a, int64_t b, bool positive)
{
    if (b < 0 && !positive)
        return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    uint64_t r = 1, x = (uint64_t)a;
    for (uint64_t n = (uint64_t)b; n; n >>= 1, x *= x)
        if (n & 1)
            r *= x;
    return (int64_t)r;
}

/* is_u64: of the operands, of OP_POW the exponent. *zero turns true on a division by zero; the result is then 0. */
static int64_t fold_i(enum fold_op op, int64_t a, int64_t b, bool is_u64, bool *zero)
{
    uint64_t ua = (uint64_t)a, ub = (uint64_t)b;
    bool less = is_u64 ? ua < ub : a < b;
    switch (op) {
    case OP_ADD:
        return (int64_t)(ua + ub);
    case OP_SUB:
        return (int64_t)(ua - ub);
    case OP_MUL:
        return (int64_t)(ua * ub);
    case OP_DIV:
    case OP_MOD:
    case OP_FMOD: {
        if (b == 0) {
            *zero = true;
            return 0;
        }
        if (is_u64)
            return (int64_t)(op == OP_DIV ? ua / ub : ua % ub);
        if (b == -1)
            return op == OP_DIV ? (int64_t)(0 - ua) : 0;
        if (op == OP_DIV)
            return a / b;
        int64_t r = a % b;
        return op == OP_MOD && r && (r < 0) != (b < 0) ? r + b : r;
    }
    case OP_POW:
        return pow_i(a, b, is_u64);
    case OP_MIN:
        return less ? a : b;
    case OP_MAX:
        return less ? b : a;
    case OP_PRELU:
        return a < 0 && !is_u64 ? (int64_t)(ua * ub) : a;
    case OP_AND:
        return a & b;
    case OP_OR:
        return a | b;
    case OP_XOR:
        return a ^ b;
    case OP_SHL:
        return ub < 64 ? (int64_t)(ua << ub) : 0;
    case OP_SHR:
        return ub < 64 ? (int64_t)(ua >> ub) : 0;
    case OP_EQUAL:
        return a == b;
    case OP_LESS:
        return less;
    case OP_LESS_EQUAL:
        return less || a == b;
    case OP_GREATER:
        return !less && a != b;
    case OP_GREATER_EQUAL:
        return !less;
    default:
        return 0;
    }
}

struct fold_job {
    struct host_call *c;
    enum fold_op op;
    bool floats;
    struct iter it;
    atomic_bool zero;
};

static void fold_block(struct fold_job *j, const int64_t *at, int64_t out_at, int64_t n)
{
    const struct host_call *c = j->c;
    enum dtype to = c->out[0].shape.dtype;
    if (j->floats) {
        double a[BLOCK], b[BLOCK];
        ref_load_d(a, c->in[0].data, c->in[0].shape.dtype, at[1], iter_step(&j->it, 1), n);
        for (int k = 1; k < c->n_in; k++) {
            ref_load_d(b, c->in[k].data, c->in[k].shape.dtype, at[k + 1], iter_step(&j->it, k + 1), n);
            for (int64_t i = 0; i < n; i++)
                a[i] = fold_d(j->op, a[i], b[i]);
        }
        if (j->op == OP_MEAN)
            for (int64_t i = 0; i < n; i++)
                a[i] /= c->n_in;
        ref_store_d(c->out[0].data, to, out_at, 1, a, n);
        return;
    }
    int64_t a[BLOCK], b[BLOCK];
    bool zero = false;
    ref_load_i(a, c->in[0].data, c->in[0].shape.dtype, at[1], iter_step(&j->it, 1), n);
    for (int k = 1; k < c->n_in; k++) {
        ref_load_i(b, c->in[k].data, c->in[k].shape.dtype, at[k + 1], iter_step(&j->it, k + 1), n);
        for (int64_t i = 0; i < n; i++)
            a[i] = fold_i(j->op, a[i], b[i], c->in[j->op == OP_POW].shape.dtype == DT_U64, &zero);
    }
    if (zero)
        atomic_store(&j->zero, true);
    ref_store_i(c->out[0].data, to, out_at, 1, a, n);
}

static void fold_piece(void *arg, int64_t begin, int64_t end)
{
    struct fold_job *j = arg;
    int64_t at[ITER_MAX];
    while (begin < end) {
        int64_t run = begin / j->it.inner, pos = begin % j->it.inner;
        int64_t n = YK_MIN(j->it.inner - pos, end - begin);
        iter_at(&j->it, run, at);
        for (int64_t i = 0; i < n; i += BLOCK) {
            int64_t start[ITER_MAX];
            for (int k = 0; k < j->it.n; k++)
                start[k] = at[k] + (pos + i) * iter_step(&j->it, k);
            fold_block(j, start, begin + i, YK_MIN(BLOCK, n - i));
        }
        begin += n;
    }
}

static yk_err run_fold(struct host_call *c)
{
    struct fold_job j = {.c = c};
    bool found = false;
    for (size_t i = 0; i < YK_COUNT(fold_ops) && !found; i++)
        if (!strcmp(fold_ops[i].name, c->node->op->name)) {
            j.op = fold_ops[i].op;
            found = true;
        }
    if (!strcmp(c->node->op->name, "BitShift")) {
        j.op = !strcmp(node_attr_s(c->node, "direction", "LEFT"), "RIGHT") ? OP_SHR : OP_SHL;
        found = true;
    }
    enum dtype t = c->in[0].shape.dtype;
    j.floats = dtype_is_float(t);
    if (j.op == OP_MOD && node_attr_i(c->node, "fmod", 0))
        j.op = OP_FMOD;
    if (j.op == OP_POW && !j.floats && dtype_is_float(c->in[1].shape.dtype))
        j.floats = true;
    if (!found || (j.floats && j.op >= OP_AND && j.op <= OP_SHR))
        return no_dtype(c, t);
    const struct shape *operands[ITER_MAX];
    operands[0] = &c->out[0].shape;
    for (int k = 0; k < c->n_in; k++)
        operands[k + 1] = &c->in[k].shape;
    iter_broadcast(&j.it, operands, c->n_in + 1);
    host_split(c, tensor_count(&c->out[0]), 10 * c->n_in, fold_piece, &j);
    if (atomic_load(&j.zero))
        return yk_fail(c->why, YK_INVAL, "division of an integer by zero");
    return YK_OK;
}

static yk_err run_where(struct host_call *c)
{
    struct iter it;
    const struct shape *operands[] = {&c->out[0].shape, &c->in[0].shape, &c->in[1].shape, &c->in[2].shape};
    iter_broadcast(&it, operands, 4);
    size_t size = dtype_bytes(c->out[0].shape.dtype);
    const uint8_t *cond = c->in[0].data;
    int64_t at[ITER_MAX];
    for (int64_t run = 0; run < it.outer; run++) {
        iter_at(&it, run, at);
        for (int64_t i = 0; i < it.inner; i++) {
            int pick = cond[at[1] + i * iter_step(&it, 1)] ? 1 : 2;
            const char *src = c->in[pick].data;
            memcpy((char *)c->out[0].data + (size_t)(at[0] + i * iter_step(&it, 0)) * size,
                src + (size_t)(at[pick + 1] + i * iter_step(&it, pick + 1)) * size, size);
        }
    }
    return YK_OK;
}

static bool less_i(int64_t a, int64_t b, enum dtype t)
{
    return t == DT_U64 ? (uint64_t)a < (uint64_t)b : a < b;
}

static yk_err run_clip(struct host_call *c)
{
    enum dtype t = c->in[0].shape.dtype;
    int64_t count = tensor_count(&c->out[0]);
    bool lo = ref_has(c, 1), hi = ref_has(c, 2);
    double dlo = -INFINITY, dhi = INFINITY, d;
    int64_t ilo = INT64_MIN, ihi = INT64_MAX, v;
    if (lo)
        dlo = ref_d(&c->in[1], 0), ilo = ref_i(&c->in[1], 0);
    if (hi)
        dhi = ref_d(&c->in[2], 0), ihi = ref_i(&c->in[2], 0);
    for (int64_t i = 0; i < count; i++) {
        if (dtype_is_float(t)) {
            ref_load_d(&d, c->in[0].data, t, i, 1, 1);
            d = lo && d < dlo ? dlo : d;
            d = hi && d > dhi ? dhi : d;
            ref_store_d(c->out[0].data, t, i, 1, &d, 1);
        } else {
            ref_load_i(&v, c->in[0].data, t, i, 1, 1);
            v = lo && less_i(v, ilo, t) ? ilo : v;
            v = hi && less_i(ihi, v, t) ? ihi : v;
            ref_store_i(c->out[0].data, t, i, 1, &v, 1);
        }
    }
    return YK_OK;
}

static void cast_piece(void *arg, int64_t begin, int64_t end)
{
    const struct host_call *c = arg;
    enum dtype from = c->in[0].shape.dtype, to = c->out[0].shape.dtype;
    bool floats = dtype_is_float(from) || (from == DT_U64 && dtype_is_float(to));
    for (int64_t at = begin; at < end; at += BLOCK) {
        int64_t n = YK_MIN(BLOCK, end - at);
        if (floats) {
            double v[BLOCK];
            ref_load_d(v, c->in[0].data, from, at, 1, n);
            ref_store_d(c->out[0].data, to, at, 1, v, n);
        } else {
            int64_t v[BLOCK];
            ref_load_i(v, c->in[0].data, from, at, 1, n);
            ref_store_i(c->out[0].data, to, at, 1, v, n);
        }
    }
}

static yk_err run_cast(struct host_call *c)
{
    host_split(c, tensor_count(&c->out[0]), 4, cast_piece, c);
    return YK_OK;
}

static yk_err run_is(struct host_call *c)
{
    bool nan = !strcmp(c->node->op->name, "IsNaN");
    bool neg = node_attr_i(c->node, "detect_negative", 1), pos = node_attr_i(c->node, "detect_positive", 1);
    uint8_t *out = c->out[0].data;
    for (int64_t i = 0, n = tensor_count(&c->out[0]); i < n; i++) {
        double v = ref_d(&c->in[0], i);
        out[i] = (uint8_t)(nan ? isnan(v) != 0 : isinf(v) && (v > 0 ? pos : neg));
    }
    return YK_OK;
}

#define ROW(name, fn)                                      \
    {                                                      \
        .domain = "", .op = name, .kind = "ref", .run = fn \
    }
#define OWN(name, fn)                                             \
    {                                                             \
        .domain = "ai.yoke", .op = name, .kind = "ref", .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("Abs", run_unary),
    ROW("Acos", run_unary),
    ROW("Acosh", run_unary),
    ROW("Asin", run_unary),
    ROW("Asinh", run_unary),
    ROW("Atan", run_unary),
    ROW("Atanh", run_unary),
    ROW("Ceil", run_unary),
    ROW("Celu", run_unary),
    ROW("Cos", run_unary),
    ROW("Cosh", run_unary),
    ROW("Elu", run_unary),
    ROW("Erf", run_unary),
    ROW("Exp", run_unary),
    ROW("Floor", run_unary),
    ROW("Gelu", run_unary),
    OWN("Gelu", run_unary),
    OWN("Silu", run_unary),
    ROW("HardSigmoid", run_unary),
    ROW("HardSwish", run_unary),
    ROW("LeakyRelu", run_unary),
    ROW("Log", run_unary),
    ROW("Mish", run_unary),
    ROW("Neg", run_unary),
    ROW("Not", run_unary),
    ROW("Reciprocal", run_unary),
    ROW("Relu", run_unary),
    ROW("Round", run_unary),
    ROW("Selu", run_unary),
    ROW("Shrink", run_unary),
    ROW("Sigmoid", run_unary),
    ROW("Sign", run_unary),
    ROW("Sin", run_unary),
    ROW("Sinh", run_unary),
    ROW("Softplus", run_unary),
    ROW("Softsign", run_unary),
    ROW("Sqrt", run_unary),
    ROW("Tan", run_unary),
    ROW("Tanh", run_unary),
    ROW("ThresholdedRelu", run_unary),
    ROW("Add", run_fold),
    ROW("Sum", run_fold),
    ROW("Sub", run_fold),
    ROW("Mul", run_fold),
    ROW("Div", run_fold),
    ROW("Pow", run_fold),
    ROW("Mod", run_fold),
    ROW("Min", run_fold),
    ROW("Max", run_fold),
    ROW("Mean", run_fold),
    ROW("PRelu", run_fold),
    ROW("And", run_fold),
    ROW("Or", run_fold),
    ROW("Xor", run_fold),
    ROW("Equal", run_fold),
    ROW("Less", run_fold),
    ROW("LessOrEqual", run_fold),
    ROW("Greater", run_fold),
    ROW("GreaterOrEqual", run_fold),
    ROW("BitShift", run_fold),
    ROW("Where", run_where),
    ROW("Clip", run_clip),
    ROW("Cast", run_cast),
    ROW("CastLike", run_cast),
    ROW("IsNaN", run_is),
    ROW("IsInf", run_is),
};
const struct host_rows ref_math = {rows, (int)YK_COUNT(rows)};
