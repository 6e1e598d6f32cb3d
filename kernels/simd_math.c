/* Elementwise f32 ops. */
#include "kernels/chain.h"
#include "kernels/layout.h"
#include "kernels/simd.h"
#include "kernels/simd_fn.h"

#include <math.h>
#include <string.h>

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

static void unary_piece(const struct chain_map *m, float *y, const float *const *in, int64_t begin, int64_t end)
{
    m->unary(y, in[0], end - begin, m->p, m->q);
}

static struct chain_map unary_map(int cost)
{
    return (struct chain_map){.unit = 1, .cost = cost, .full = 1, .piece = unary_piece};
}

static bool map_unary(const struct host_call *c, struct chain_map *m)
{
    for (size_t i = 0; i < YK_COUNT(unaries); i++)
        if (!strcmp(unaries[i].op, c->node->op->name)) {
            *m = unary_map(unaries[i].cost);
            m->unary = unaries[i].fn;
            m->p = unaries[i].p ? node_attr_f(c->node, unaries[i].p, unaries[i].p_else) : 0;
            m->q = unaries[i].q ? node_attr_f(c->node, unaries[i].q, unaries[i].q_else) : 0;
            return true;
        }
    return false;
}

static yk_err run_map(struct host_call *c, bool (*map)(const struct host_call *c, struct chain_map *out))
{
    struct chain_map m;
    if (!map(c, &m))
        return yk_fail(c->why, YK_INTERNAL, "no loop for %s", c->node->op->name);
    chain_run_map(c, &m);
    return YK_OK;
}

static yk_err run_unary(struct host_call *c)
{
    return run_map(c, map_unary);
}

UNARY(u_square, v *v)
UNARY(u_cube, v *v *v)

/* The exponents that models use; others go through double. */
static void u_pow(float *restrict y, const float *restrict x, int64_t n, float p, float q)
{
    (void)q;
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)pow((double)x[i], (double)p);
}

static bool map_pow(const struct host_call *c, struct chain_map *m)
{
    float p = *(const float *)c->in[1].data;
    bool known = p == 2 || p == 3;
    *m = unary_map(known ? 1 : 20);
    m->unary = p == 2 ? u_square : p == 3 ? u_cube : u_pow;
    m->p = p;
    return true;
}

static yk_err run_pow(struct host_call *c)
{
    return run_map(c, map_pow);
}

static bool claim_pow(const struct op_ctx *c)
{
    return simd_claim_f32(c) && shape_count(c->in[1]) == 1 && c->in[1]->rank <= c->in[0]->rank;
}

static bool map_clip(const struct host_call *c, struct chain_map *m)
{
    *m = unary_map(1);
    m->unary = u_clip;
    m->p = c->n_in > 1 && c->in[1].data ? *(const float *)c->in[1].data : -INFINITY;
    m->q = c->n_in > 2 && c->in[2].data ? *(const float *)c->in[2].data : INFINITY;
    /* A bound that is NaN bounds nothing, as in ref: comparisons with it are false. */
    return true;
}

static yk_err run_clip(struct host_call *c)
{
    return run_map(c, map_clip);
}

/* Steps are 0 or 1 nearly always; each case is its own loop so that it becomes vectors. */
#define BINARY(name, expr)                                                                               \
    SIMD_CLONES static void name(                                                                        \
        float *restrict y, const float *restrict a, const float *restrict b, const struct chain_rows *r) \
    {                                                                                                    \
        int64_t n = r->n, as = r->as, bs = r->bs;                                                        \
        for (int64_t row = 0; row < r->rows; row++, y += n, a += r->a_row, b += r->b_row) {              \
            if (as == 1 && bs == 1) {                                                                    \
                for (int64_t i = 0; i < n; i++) {                                                        \
                    float u = a[i], v = b[i];                                                            \
                    y[i] = expr;                                                                         \
                }                                                                                        \
            } else if (as == 1 && bs == 0) {                                                             \
                float v = *b;                                                                            \
                for (int64_t i = 0; i < n; i++) {                                                        \
                    float u = a[i];                                                                      \
                    y[i] = expr;                                                                         \
                }                                                                                        \
            } else if (as == 0 && bs == 1) {                                                             \
                float u = *a;                                                                            \
                for (int64_t i = 0; i < n; i++) {                                                        \
                    float v = b[i];                                                                      \
                    y[i] = expr;                                                                         \
                }                                                                                        \
            } else {                                                                                     \
                for (int64_t i = 0; i < n; i++) {                                                        \
                    float u = a[i * as], v = b[i * bs];                                                  \
                    y[i] = expr;                                                                         \
                }                                                                                        \
            }                                                                                            \
        }                                                                                                \
    }
BINARY(b_add, u + v)
BINARY(b_sub, u - v)
BINARY(b_mul, u *v)
BINARY(b_div, u / v)

/* Operands are full, or steps of the walk tell where they are. */
static void binary_piece(const struct chain_map *m, float *y, const float *const *in, int64_t begin, int64_t end)
{
    const struct iter *it = &m->it;
    int64_t at[3], axis = it->rank - 2, per = axis < 0 ? 1 : it->dims[axis], first = begin;
    struct chain_rows r = {.as = iter_step(it, 1), .bs = iter_step(it, 2)};
    r.a_row = axis < 0 ? 0 : it->step[1][axis];
    r.b_row = axis < 0 ? 0 : it->step[2][axis];
    while (begin < end) {
        int64_t run = begin / it->inner, pos = begin % it->inner;
        bool whole = pos == 0 && end - begin >= it->inner; /* then all rows of the axis that there are */
        r.n = whole ? it->inner : YK_MIN(it->inner - pos, end - begin);
        r.rows = whole ? YK_MIN(per - run % per, (end - begin) / it->inner) : 1;
        iter_at(it, run, at);
        m->binary(y + (begin - first), in[0] + (m->full & 1 ? begin - first : at[1] + pos * r.as),
            in[1] + (m->full & 2 ? begin - first : at[2] + pos * r.bs), &r);
        begin += r.rows * r.n;
    }
}

static bool map_binary(const struct host_call *c, struct chain_map *m)
{
    static const struct {
        const char *op;
        void (*fn)(float *restrict y, const float *restrict a, const float *restrict b, const struct chain_rows *r);
    } ops[] = {{"Add", b_add}, {"Sub", b_sub}, {"Mul", b_mul}, {"Div", b_div}};
    int64_t count = tensor_count(&c->out[0]);
    m->unit = 1;
    m->cost = 1;
    m->full = (tensor_count(&c->in[0]) == count ? 1 : 0) | (tensor_count(&c->in[1]) == count ? 2 : 0);
    m->piece = binary_piece;
    m->binary = NULL;
    m->made = NULL;
    for (size_t i = 0; i < YK_COUNT(ops); i++)
        if (!strcmp(ops[i].op, c->node->op->name))
            m->binary = ops[i].fn;
    const struct shape *operands[] = {&c->out[0].shape, &c->in[0].shape, &c->in[1].shape};
    struct shape turned[3];
    for (int i = 0; (c->last_out & 1) && i < 3; i++) {
        layout_turn(operands[i], &turned[i]);
        operands[i] = &turned[i];
    }
    iter_broadcast(&m->it, operands, 3);
    if (m->full != 3 && m->it.rank > 1 && m->it.inner % CHAIN_LINE)
        m->unit = m->it.inner; /* each row is a loop of its own */
    return m->binary != NULL;
}

static yk_err run_binary(struct host_call *c)
{
    return run_map(c, map_binary);
}

#define OWN(name, kind_name, way)                                                                      \
    {                                                                                                  \
        .domain = "ai.yoke", .op = name, .kind = kind_name, .claim = simd_claim_f32, .run = run_##way, \
        .map = map_##way, .layout = HOST_SAME                                                          \
    }
#define ROW(name, kind_name, way)                                                                                 \
    {                                                                                                             \
        .domain = "", .op = name, .kind = kind_name, .claim = simd_claim_f32, .run = run_##way, .map = map_##way, \
        .layout = HOST_SAME                                                                                       \
    }
static const struct host_kernel rows[] = {
    ROW("Relu", "map", unary),
    ROW("LeakyRelu", "map", unary),
    ROW("Sigmoid", "map", unary),
    ROW("HardSigmoid", "map", unary),
    ROW("HardSwish", "map", unary),
    ROW("Tanh", "map", unary),
    ROW("Erf", "map", unary),
    OWN("Gelu", "map", unary),
    OWN("Silu", "map", unary),
    ROW("Exp", "map", unary),
    ROW("Sqrt", "map", unary),
    ROW("Reciprocal", "map", unary),
    ROW("Neg", "map", unary),
    ROW("Abs", "map", unary),
    ROW("Clip", "map", clip),
    {.domain = "", .op = "Pow", .kind = "map", .claim = claim_pow, .run = run_pow, .map = map_pow, .layout = HOST_SAME},
    ROW("Add", "map", binary),
    ROW("Sub", "map", binary),
    ROW("Mul", "map", binary),
    ROW("Div", "map", binary),
};
const struct host_rows simd_math = {rows, (int)YK_COUNT(rows)};
