/* Contents of small integer tensors: what exporters compute shapes with (Shape, Gather, Mul, Concat ...).
 * A content is exact or unknown: an overflow, a division by zero or an op that is not followed makes it unknown. */
#include <string.h>

#include "common/op_rules.h"

bool op_fits(enum dtype t, int64_t v)
{
    switch (t) {
    case DT_BOOL:
        return v == 0 || v == 1;
    case DT_I8:
        return v >= INT8_MIN && v <= INT8_MAX;
    case DT_I16:
        return v >= INT16_MIN && v <= INT16_MAX;
    case DT_I32:
        return v >= INT32_MIN && v <= INT32_MAX;
    case DT_U8:
        return v >= 0 && v <= UINT8_MAX;
    case DT_U16:
        return v >= 0 && v <= UINT16_MAX;
    case DT_U32:
        return v >= 0 && v <= UINT32_MAX;
    case DT_U64:
        return v >= 0;
    default:
        return t == DT_I64;
    }
}

void op_content_copy(struct op_ctx *c, int from, int out)
{
    if (out >= c->n_out || !c->content[from] || shape_count(&c->out[out]) != shape_count(c->in[from]))
        return;
    memcpy(c->out_content[out], c->content[from], (size_t)shape_count(c->in[from]) * sizeof(int64_t));
    c->out_known[out] = true;
}

static bool f_add(int64_t a, int64_t b, int64_t *r)
{
    return yk_add_i64(a, b, r);
}
static bool f_sub(int64_t a, int64_t b, int64_t *r)
{
    return !__builtin_sub_overflow(a, b, r);
}
static bool f_mul(int64_t a, int64_t b, int64_t *r)
{
    return yk_mul_i64(a, b, r);
}
static bool f_div(int64_t a, int64_t b, int64_t *r)
{
    if (b == 0 || (a == INT64_MIN && b == -1))
        return false;
    *r = a / b;
    return true;
}
static bool f_mod(int64_t a, int64_t b, int64_t *r)
{
    if (b == 0 || b == -1) {
        *r = 0;
        return b == -1;
    }
    *r = a % b;
    if (*r != 0 && (*r < 0) != (b < 0)) /* the sign of the divisor, as Python */
        *r += b;
    return true;
}
static bool f_min(int64_t a, int64_t b, int64_t *r)
{
    *r = YK_MIN(a, b);
    return true;
}
static bool f_max(int64_t a, int64_t b, int64_t *r)
{
    *r = YK_MAX(a, b);
    return true;
}
#define COMPARISON(name, expr)                         \
    static bool name(int64_t a, int64_t b, int64_t *r) \
    {                                                  \
        *r = (expr);                                   \
        return true;                                   \
    }
COMPARISON(f_equal, a == b)
COMPARISON(f_greater, a > b)
COMPARISON(f_greater_equal, a >= b)
COMPARISON(f_less, a < b)
COMPARISON(f_less_equal, a <= b)
COMPARISON(f_and, a &&b)
COMPARISON(f_or, a || b)
COMPARISON(f_xor, !a != !b)

typedef bool (*binary_fn)(int64_t a, int64_t b, int64_t *r);

static const struct {
    const char *op;
    binary_fn fn;
} binaries[] = {{"Add", f_add}, {"Sum", f_add}, {"Sub", f_sub}, {"Mul", f_mul}, {"Div", f_div}, {"Mod", f_mod},
    {"Min", f_min}, {"Max", f_max}, {"Equal", f_equal}, {"Greater", f_greater}, {"GreaterOrEqual", f_greater_equal},
    {"Less", f_less}, {"LessOrEqual", f_less_equal}, {"And", f_and}, {"Or", f_or}, {"Xor", f_xor}};

/* Where element i of an output of shape out lies in a broadcast input of shape in. */
static int64_t broadcast_index(const struct shape *out, const struct shape *in, int64_t i)
{
    int64_t index = 0, step = 1;
    for (int d = out->rank - 1; d >= 0; d--) {
        int64_t at = i % out->dims[d];
        int k = d - (out->rank - in->rank);
        i /= out->dims[d];
        if (k < 0)
            continue;
        if (in->dims[k] != 1)
            index += at * step;
        step *= in->dims[k];
    }
    return index;
}

static bool unary(const char *op, int64_t a, int64_t *r)
{
    if (strcmp(op, "Neg") == 0)
        return f_sub(0, a, r);
    if (strcmp(op, "Abs") == 0)
        return a >= 0 ? (*r = a, true) : f_sub(0, a, r);
    if (strcmp(op, "Sign") == 0)
        return (*r = a > 0 ? 1 : a < 0 ? -1 : 0, true);
    if (strcmp(op, "Not") == 0)
        return (*r = !a, true);
    return false;
}

void op_content_elementwise(struct op_ctx *c)
{
    const char *op = c->node->op->name;
    const struct shape *out = &c->out[0];
    int64_t n = shape_count(out);
    binary_fn fn = NULL;
    bool where = strcmp(op, "Where") == 0;

    if (n < 0 || n > OP_MAX_CONTENT || !(dtype_is_int(out->dtype) || out->dtype == DT_BOOL))
        return;
    for (int k = 0; k < c->n_in; k++)
        if (!c->content[k])
            return;
    if (strcmp(op, "Mod") == 0 && node_attr_i(c->node, "fmod", 0))
        return;
    for (size_t k = 0; k < YK_COUNT(binaries); k++)
        if (strcmp(binaries[k].op, op) == 0)
            fn = binaries[k].fn;
    if (!fn && !where && c->n_in != 1)
        return;
    for (int64_t i = 0; i < n; i++) {
        int64_t r = c->content[0][broadcast_index(out, c->in[0], i)];
        if (where) {
            int from = r ? 1 : 2;
            r = c->content[from][broadcast_index(out, c->in[from], i)];
        } else if (!fn) {
            if (!unary(op, r, &r))
                return;
        }
        for (int k = 1; fn && k < c->n_in; k++)
            if (!fn(r, c->content[k][broadcast_index(out, c->in[k], i)], &r))
                return;
        if (!op_fits(out->dtype, r))
            return;
        c->out_content[0][i] = r;
    }
    c->out_known[0] = true;
}

void op_content_cast(struct op_ctx *c)
{
    const struct shape *out = &c->out[0];
    int64_t n = shape_count(out);
    if (!c->content[0] || n < 0 || n > OP_MAX_CONTENT || !(dtype_is_int(out->dtype) || out->dtype == DT_BOOL))
        return;
    for (int64_t i = 0; i < n; i++) {
        int64_t v = c->content[0][i];
        if (out->dtype == DT_BOOL)
            v = v != 0;
        if (!op_fits(out->dtype, v))
            return;
        c->out_content[0][i] = v;
    }
    c->out_known[0] = true;
}

void op_content_reduce(struct op_ctx *c)
{
    const char *op = c->node->op->name;
    bool reduced[YK_MAX_RANK];
    if (!c->content[0] || c->in[0]->rank > 1 || shape_count(&c->out[0]) != 1 || op_reduce_axes(c, reduced))
        return;
    binary_fn fn = strcmp(op, "ReduceProd") == 0  ? f_mul
                   : strcmp(op, "ReduceSum") == 0 ? f_add
                   : strcmp(op, "ReduceMax") == 0 ? f_max
                   : strcmp(op, "ReduceMin") == 0 ? f_min
                                                  : NULL;
    int64_t n = shape_count(c->in[0]);
    if (!fn)
        return;
    int64_t r = fn == f_mul ? 1 : 0;
    for (int64_t i = 0; i < n; i++)
        if (i == 0 && (fn == f_max || fn == f_min))
            r = c->content[0][0];
        else if (!fn(r, c->content[0][i], &r))
            return;
    if (!op_fits(c->out[0].dtype, r))
        return;
    c->out_content[0][0] = r;
    c->out_known[0] = true;
}

void op_content_tensor(struct op_ctx *c, const struct value *t)
{
    int64_t n = shape_count(&t->shape);
    if (!t->data || n < 0 || n > OP_MAX_CONTENT || !(dtype_is_int(t->shape.dtype) || t->shape.dtype == DT_BOOL))
        return;
    for (int64_t i = 0; i < n; i++)
        c->out_content[0][i] = dtype_read_int(t->shape.dtype, t->data, i);
    c->out_known[0] = true;
}
