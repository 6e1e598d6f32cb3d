/* Elementwise f32 ops. */
#include "kernels/iter.h"
#include "kernels/layout.h"
#include "kernels/simd.h"
#include "kernels/simd_fn.h"

#include <math.h>
#include <string.h>

struct unary_job {
    void (*fn)(float *restrict y, const float *restrict x, int64_t n, float p, float q);
    const float *x;
    float *y;
    float p, q;
};

#define UNARY(name, expr)                                                                                 \
    SIMD_CLONES static void name(float *restrict y, const float *restrict x, int64_t n, float p, float q) \
    {                                                                                                     \
        (void)p, (void)q;                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                                 \
            float v = x[i];                                                                               \
            y[i] = expr;                                                                                  \
        }                                                                                                 \
    }
static inline float clamp(float v, float lo, float hi)
{
    v = v < lo ? lo : v;
    return v > hi ? hi : v;
}
UNARY(u_relu, v < 0 ? 0 : v)
UNARY(u_leaky, v < 0 ? p * v : v)
UNARY(u_clip, clamp(v, p, q))
UNARY(u_sigmoid, simd_sigmoid(v))
UNARY(u_hard_sigmoid, clamp(p *v + q, 0, 1))
UNARY(u_hard_swish, v *clamp(v *(1.0f / 6) + 0.5f, 0, 1))
UNARY(u_tanh, simd_tanh(v))
UNARY(u_erf, simd_erf(v))
UNARY(u_gelu, 0.5f * v * (1 + simd_erf(v * 0.707106781f)))
UNARY(u_silu, v *simd_sigmoid(v))
UNARY(u_exp, simd_exp(v))
UNARY(u_sqrt, sqrtf(v))
UNARY(u_reciprocal, 1.0f / v)
UNARY(u_neg, -v)
UNARY(u_abs, fabsf(v))

static const struct {
    const char *op, *p, *q;
    float p_else, q_else;
    void (*fn)(float *restrict y, const float *restrict x, int64_t n, float p, float q);
    int cost;
} unaries[] = {
    {"Relu", NULL, NULL, 0, 0, u_relu, 1},
    {"LeakyRelu", "alpha", NULL, 0.01f, 0, u_leaky, 1},
    {"Sigmoid", NULL, NULL, 0, 0, u_sigmoid, 3},
    {"HardSigmoid", "alpha", "beta", 0.2f, 0.5f, u_hard_sigmoid, 1},
    {"HardSwish", NULL, NULL, 0, 0, u_hard_swish, 1},
    {"Tanh", NULL, NULL, 0, 0, u_tanh, 3},
    {"Erf", NULL, NULL, 0, 0, u_erf, 3},
    {"Gelu", NULL, NULL, 0, 0, u_gelu, 4},
    {"Silu", NULL, NULL, 0, 0, u_silu, 4},
    {"Exp", NULL, NULL, 0, 0, u_exp, 3},
    {"Sqrt", NULL, NULL, 0, 0, u_sqrt, 2},
    {"Reciprocal", NULL, NULL, 0, 0, u_reciprocal, 1},
    {"Neg", NULL, NULL, 0, 0, u_neg, 1},
    {"Abs", NULL, NULL, 0, 0, u_abs, 1},
};

static void unary_piece(void *arg, int64_t begin, int64_t end)
{
    const struct unary_job *j = arg;
    j->fn(j->y + begin, j->x + begin, end - begin, j->p, j->q);
}

static yk_err run_unary(struct host_call *c)
{
    struct unary_job j = {.x = c->in[0].data, .y = c->out[0].data};
    int cost = 1;
    for (size_t i = 0; i < YK_COUNT(unaries); i++)
        if (!strcmp(unaries[i].op, c->node->op->name)) {
            j.fn = unaries[i].fn;
            j.p = unaries[i].p ? node_attr_f(c->node, unaries[i].p, unaries[i].p_else) : 0;
            j.q = unaries[i].q ? node_attr_f(c->node, unaries[i].q, unaries[i].q_else) : 0;
            cost = unaries[i].cost;
        }
    if (!j.fn)
        return yk_fail(c->why, YK_INTERNAL, "no loop for %s", c->node->op->name);
    host_split(c, tensor_count(&c->out[0]), cost, unary_piece, &j);
    return YK_OK;
}

UNARY(u_square, v *v)
UNARY(u_cube, v *v *v)

/* The exponents that models use; others go through double. */
static void pow_piece(void *arg, int64_t begin, int64_t end)
{
    const struct unary_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        j->y[i] = (float)pow((double)j->x[i], (double)j->p);
}

static yk_err run_pow(struct host_call *c)
{
    struct unary_job j = {.x = c->in[0].data, .y = c->out[0].data, .p = *(const float *)c->in[1].data};
    int64_t n = tensor_count(&c->out[0]);
    j.fn = j.p == 2 ? u_square : j.p == 3 ? u_cube : NULL;
    host_split(c, n, j.fn ? 1 : 20, j.fn ? unary_piece : pow_piece, &j);
    return YK_OK;
}

static bool claim_pow(const struct op_ctx *c)
{
    return simd_claim_f32(c) && shape_count(c->in[1]) == 1 && c->in[1]->rank <= c->in[0]->rank;
}

static yk_err run_clip(struct host_call *c)
{
    struct unary_job j = {.fn = u_clip, .x = c->in[0].data, .y = c->out[0].data, .p = -INFINITY, .q = INFINITY};
    if (c->n_in > 1 && c->in[1].data)
        j.p = *(const float *)c->in[1].data;
    if (c->n_in > 2 && c->in[2].data)
        j.q = *(const float *)c->in[2].data;
    /* A bound that is NaN bounds nothing, as in ref: comparisons with it are false. */
    host_split(c, tensor_count(&c->out[0]), 1, unary_piece, &j);
    return YK_OK;
}

/* Rows of n: steps within a row, then from one to the next. */
struct binary_rows {
    int64_t rows, n, as, bs, a_row, b_row;
};
typedef void binary_fn(
    float *restrict y, const float *restrict a, const float *restrict b, const struct binary_rows *r);

/* Steps are 0 or 1 nearly always; each case is its own loop so that it becomes vectors. */
#define BINARY(name, expr)                                                                                \
    SIMD_CLONES static void name(                                                                         \
        float *restrict y, const float *restrict a, const float *restrict b, const struct binary_rows *r) \
    {                                                                                                     \
        int64_t n = r->n, as = r->as, bs = r->bs;                                                         \
        for (int64_t row = 0; row < r->rows; row++, y += n, a += r->a_row, b += r->b_row) {               \
            if (as == 1 && bs == 1) {                                                                     \
                for (int64_t i = 0; i < n; i++) {                                                         \
                    float u = a[i], v = b[i];                                                             \
                    y[i] = expr;                                                                          \
                }                                                                                         \
            } else if (as == 1 && bs == 0) {                                                              \
                float v = *b;                                                                             \
                for (int64_t i = 0; i < n; i++) {                                                         \
                    float u = a[i];                                                                       \
                    y[i] = expr;                                                                          \
                }                                                                                         \
            } else if (as == 0 && bs == 1) {                                                              \
                float u = *a;                                                                             \
                for (int64_t i = 0; i < n; i++) {                                                         \
                    float v = b[i];                                                                       \
                    y[i] = expr;                                                                          \
                }                                                                                         \
            } else {                                                                                      \
                for (int64_t i = 0; i < n; i++) {                                                         \
                    float u = a[i * as], v = b[i * bs];                                                   \
                    y[i] = expr;                                                                          \
                }                                                                                         \
            }                                                                                             \
        }                                                                                                 \
    }
BINARY(b_add, u + v)
BINARY(b_sub, u - v)
BINARY(b_mul, u *v)
BINARY(b_div, u / v)

struct binary_job {
    binary_fn *fn;
    struct iter it;
    const float *a, *b;
    float *y;
};

static void binary_piece(void *arg, int64_t begin, int64_t end)
{
    const struct binary_job *j = arg;
    const struct iter *it = &j->it;
    int64_t at[3], axis = it->rank - 2, per = axis < 0 ? 1 : it->dims[axis];
    struct binary_rows r = {.as = iter_step(it, 1), .bs = iter_step(it, 2)};
    r.a_row = axis < 0 ? 0 : it->step[1][axis];
    r.b_row = axis < 0 ? 0 : it->step[2][axis];
    while (begin < end) {
        int64_t run = begin / it->inner, pos = begin % it->inner;
        bool whole = pos == 0 && end - begin >= it->inner; /* then all rows of the axis that there are */
        r.n = whole ? it->inner : YK_MIN(it->inner - pos, end - begin);
        r.rows = whole ? YK_MIN(per - run % per, (end - begin) / it->inner) : 1;
        iter_at(it, run, at);
        j->fn(j->y + begin, j->a + at[1] + pos * r.as, j->b + at[2] + pos * r.bs, &r);
        begin += r.rows * r.n;
    }
}

static yk_err run_binary(struct host_call *c)
{
    static const struct {
        const char *op;
        binary_fn *fn;
    } ops[] = {{"Add", b_add}, {"Sub", b_sub}, {"Mul", b_mul}, {"Div", b_div}};
    struct binary_job j = {.a = c->in[0].data, .b = c->in[1].data, .y = c->out[0].data};
    for (size_t i = 0; i < YK_COUNT(ops); i++)
        if (!strcmp(ops[i].op, c->node->op->name))
            j.fn = ops[i].fn;
    if (!j.fn)
        return yk_fail(c->why, YK_INTERNAL, "no loop for %s", c->node->op->name);
    const struct shape *operands[] = {&c->out[0].shape, &c->in[0].shape, &c->in[1].shape};
    struct shape turned[3];
    for (int i = 0; (c->last_out & 1) && i < 3; i++) {
        layout_turn(operands[i], &turned[i]);
        operands[i] = &turned[i];
    }
    iter_broadcast(&j.it, operands, 3);
    host_split(c, tensor_count(&c->out[0]), 1, binary_piece, &j);
    return YK_OK;
}

#define OWN(name, kind_name, fn)                                                                                    \
    {                                                                                                               \
        .domain = "ai.yoke", .op = name, .kind = kind_name, .claim = simd_claim_f32, .run = fn, .layout = HOST_SAME \
    }
#define ROW(name, kind_name, fn)                                                                             \
    {                                                                                                        \
        .domain = "", .op = name, .kind = kind_name, .claim = simd_claim_f32, .run = fn, .layout = HOST_SAME \
    }
static const struct host_kernel rows[] = {
    ROW("Relu", "map", run_unary),
    ROW("LeakyRelu", "map", run_unary),
    ROW("Sigmoid", "map", run_unary),
    ROW("HardSigmoid", "map", run_unary),
    ROW("HardSwish", "map", run_unary),
    ROW("Tanh", "map", run_unary),
    ROW("Erf", "map", run_unary),
    OWN("Gelu", "map", run_unary),
    OWN("Silu", "map", run_unary),
    ROW("Exp", "map", run_unary),
    ROW("Sqrt", "map", run_unary),
    ROW("Reciprocal", "map", run_unary),
    ROW("Neg", "map", run_unary),
    ROW("Abs", "map", run_unary),
    ROW("Clip", "map", run_clip),
    {.domain = "", .op = "Pow", .kind = "map", .claim = claim_pow, .run = run_pow, .layout = HOST_SAME},
    ROW("Add", "map", run_binary),
    ROW("Sub", "map", run_binary),
    ROW("Mul", "map", run_binary),
    ROW("Div", "map", run_binary),
};
const struct host_rows simd_math = {rows, (int)YK_COUNT(rows)};
