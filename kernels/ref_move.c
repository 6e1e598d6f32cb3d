/* Data movement: bytes are copied by element size, so every dtype works. Sizes come from the inferred output shape;
 * starts and steps that are read from data are checked against it. */
#include "kernels/ref.h"

#include <stdlib.h>
#include <string.h>

static size_t element(const struct tensor *t)
{
    return dtype_bytes(t->shape.dtype);
}

/* Copies in[base + sum(i_d * step_d)] to out in row-major order over dims. */
struct strided {
    const char *in;
    char *out;
    size_t size;
    int rank;
    int64_t dims[YK_MAX_RANK], step[YK_MAX_RANK];
    int64_t base;
};

static void copy_run(char *out, const char *in, int64_t n, int64_t step, size_t size)
{
    if (step == 1) {
        memcpy(out, in, (size_t)n * size);
        return;
    }
#define RUN(T)                      \
    for (int64_t i = 0; i < n; i++) \
    ((T *)(void *)out)[i] = ((const T *)(const void *)in)[i * step]
    switch (size) {
    case 1:
        RUN(uint8_t);
        break;
    case 2:
        RUN(uint16_t);
        break;
    case 4:
        RUN(uint32_t);
        break;
    default:
        RUN(uint64_t);
        break;
    }
#undef RUN
}

static void strided_piece(void *arg, int64_t begin, int64_t end)
{
    const struct strided *s = arg;
    int64_t inner = s->dims[s->rank - 1];
    for (int64_t run = begin; run < end; run++) {
        int64_t at = s->base, left = run;
        for (int d = s->rank - 2; d >= 0; d--) {
            at += left % s->dims[d] * s->step[d];
            left /= s->dims[d];
        }
        copy_run(s->out + (size_t)(run * inner) * s->size, s->in + at * (int64_t)s->size, inner, s->step[s->rank - 1],
            s->size);
    }
}

/* Where the elements of a run lie apart and those of another axis lie together, both are walked in squares, so that
 * every line of cache is read once. */
#define SQUARE 16

struct turned {
    const struct strided *s;
    int axis;         /* whose elements lie together in the input */
    int64_t out_step; /* of that axis in the output */
    int64_t squares;  /* of that axis */
};

static void turned_piece(void *arg, int64_t begin, int64_t end)
{
    const struct turned *t = arg;
    const struct strided *s = t->s;
    int64_t n = s->dims[s->rank - 1], step = s->step[s->rank - 1], out_at[YK_MAX_RANK], at_out = n;
    for (int d = s->rank - 2; d >= 0; d--) {
        out_at[d] = at_out;
        at_out *= s->dims[d];
    }
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t first = piece % t->squares * SQUARE, left = piece / t->squares, in = s->base + first, out = 0;
        int64_t rows = YK_MIN(s->dims[t->axis] - first, SQUARE);
        for (int d = s->rank - 2; d >= 0; d--) {
            if (d == t->axis)
                continue;
            in += left % s->dims[d] * s->step[d];
            out += left % s->dims[d] * out_at[d];
            left /= s->dims[d];
        }
        out += first * t->out_step;
#define TURN(T)                                                 \
    for (int64_t j = 0; j < n; j += SQUARE)                     \
        for (int64_t i = 0; i < rows; i++)                      \
            for (int64_t k = j; k < YK_MIN(j + SQUARE, n); k++) \
    ((T *)(void *)s->out)[out + i * t->out_step + k] = ((const T *)(const void *)s->in)[in + i + k * step]
        switch (s->size) {
        case 1:
            TURN(uint8_t);
            break;
        case 2:
            TURN(uint16_t);
            break;
        case 4:
            TURN(uint32_t);
            break;
        default:
            TURN(uint64_t);
            break;
        }
#undef TURN
    }
}

static bool turned_copy(struct host_call *c, const struct strided *s)
{
    struct turned t = {.s = s, .axis = -1, .out_step = 1};
    int64_t others = 1;
    for (int d = 0; d < s->rank - 1; d++)
        if (s->step[d] == 1 && s->dims[d] >= SQUARE)
            t.axis = d;
    if (t.axis < 0 || s->step[s->rank - 1] == 1 || s->dims[s->rank - 1] < SQUARE)
        return false;
    for (int d = 0; d < s->rank - 1; d++)
        others *= d == t.axis ? 1 : s->dims[d];
    for (int d = t.axis + 1; d < s->rank; d++)
        t.out_step *= s->dims[d];
    t.squares = (s->dims[t.axis] + SQUARE - 1) / SQUARE;
    host_split(c, others * t.squares, SQUARE * s->dims[s->rank - 1], turned_piece, &t);
    return true;
}

/* Merges axes that lie behind each other, then copies. */
static void strided_copy(struct host_call *c, struct strided *s)
{
    int r = 0;
    for (int d = 0; d < s->rank; d++) {
        if (s->dims[d] == 1)
            continue;
        if (r > 0 && s->step[r - 1] == s->step[d] * s->dims[d]) {
            s->dims[r - 1] *= s->dims[d];
            s->step[r - 1] = s->step[d];
        } else {
            s->dims[r] = s->dims[d];
            s->step[r++] = s->step[d];
        }
    }
    if (r == 0) {
        s->dims[0] = s->step[0] = 1;
        r = 1;
    }
    s->rank = r;
    if (turned_copy(c, s))
        return;
    int64_t runs = 1;
    for (int d = 0; d < r - 1; d++)
        runs *= s->dims[d];
    host_split(c, runs, 20 + s->dims[r - 1], strided_piece, s);
}

static void row_steps(const struct shape *s, int64_t *step)
{
    int64_t at = 1;
    for (int d = s->rank - 1; d >= 0; d--) {
        step[d] = at;
        at *= s->dims[d];
    }
}

static yk_err run_view(struct host_call *c)
{
    int64_t bytes = tensor_bytes(&c->out[0]);
    if (bytes != tensor_bytes(&c->in[0]))
        return yk_fail(c->why, YK_INVAL, "%lld bytes do not make an output of %lld", (long long)tensor_bytes(&c->in[0]),
            (long long)bytes);
    if (c->out[0].data != c->in[0].data)
        memmove(c->out[0].data, c->in[0].data, (size_t)bytes);
    return YK_OK;
}

static yk_err run_transpose(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    const struct attr *perm = node_attr_ints(c->node, "perm");
    int64_t step[YK_MAX_RANK];
    row_steps(x, step);
    struct strided s = {.in = c->in[0].data, .out = c->out[0].data, .size = element(&c->in[0]), .rank = x->rank};
    for (int d = 0; d < x->rank; d++) {
        int from = perm ? (int)perm->ints[d] : x->rank - 1 - d;
        s.dims[d] = x->dims[from];
        s.step[d] = step[from];
    }
    strided_copy(c, &s);
    return YK_OK;
}

static yk_err run_expand(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    int64_t step[YK_MAX_RANK];
    row_steps(x, step);
    struct strided s = {.in = c->in[0].data, .out = c->out[0].data, .size = element(&c->in[0]), .rank = y->rank};
    for (int d = 0; d < y->rank; d++) {
        int from = d - (y->rank - x->rank);
        s.dims[d] = y->dims[d];
        s.step[d] = from < 0 || x->dims[from] == 1 ? 0 : step[from];
    }
    strided_copy(c, &s);
    return YK_OK;
}

/* Element by element: repeats wrap around. */
static yk_err run_tile(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    size_t size = element(&c->in[0]);
    int64_t xs[YK_MAX_RANK];
    row_steps(x, xs);
    for (int64_t i = 0, n = tensor_count(&c->out[0]); i < n; i++) {
        int64_t left = i, at = 0;
        for (int d = y->rank - 1; d >= 0; d--) {
            at += left % y->dims[d] % x->dims[d] * xs[d];
            left /= y->dims[d];
        }
        memcpy((char *)c->out[0].data + (size_t)i * size, (const char *)c->in[0].data + (size_t)at * size, size);
    }
    return YK_OK;
}

static void outer_inner(const struct shape *s, int64_t axis, int64_t *outer, int64_t *inner)
{
    *outer = *inner = 1;
    for (int d = 0; d < axis; d++)
        *outer *= s->dims[d];
    for (int d = (int)axis + 1; d < s->rank; d++)
        *inner *= s->dims[d];
}

static yk_err run_concat(struct host_call *c)
{
    const struct shape *y = &c->out[0].shape;
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", 0), y->rank), outer, inner;
    outer_inner(y, axis, &outer, &inner);
    size_t size = element(&c->out[0]);
    size_t row = (size_t)(y->dims[axis] * inner) * size, at = 0;
    for (int k = 0; k < c->n_in; k++) {
        size_t part = (size_t)(c->in[k].shape.dims[axis] * inner) * size;
        if (part)
            for (int64_t o = 0; o < outer; o++)
                memcpy((char *)c->out[0].data + (size_t)o * row + at, (const char *)c->in[k].data + (size_t)o * part,
                    part);
        at += part;
    }
    return YK_OK;
}

static yk_err run_split(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    int64_t axis = ref_axis(node_attr_i(c->node, "axis", 0), x->rank), outer, inner;
    outer_inner(x, axis, &outer, &inner);
    size_t size = element(&c->in[0]);
    size_t row = (size_t)(x->dims[axis] * inner) * size, at = 0;
    for (int k = 0; k < c->n_out; k++) {
        if (ref_absent(&c->out[k]))
            return yk_fail(c->why, YK_UNSUPPORTED, "output %d of Split is absent", k);
        size_t part = (size_t)(c->out[k].shape.dims[axis] * inner) * size;
        if (at + part > row)
            return yk_fail(c->why, YK_INVAL, "the parts are longer than axis %lld", (long long)axis);
        if (part)
            for (int64_t o = 0; o < outer; o++)
                memcpy((char *)c->out[k].data + (size_t)o * part, (const char *)c->in[0].data + (size_t)o * row + at,
                    part);
        at += part;
    }
    return YK_OK;
}

static yk_err run_slice(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    int64_t step[YK_MAX_RANK];
    row_steps(x, step);
    struct strided s = {.in = c->in[0].data, .out = c->out[0].data, .size = element(&c->in[0]), .rank = x->rank};
    for (int d = 0; d < x->rank; d++) {
        s.dims[d] = x->dims[d];
        s.step[d] = step[d];
    }
    int64_t n = tensor_count(&c->in[1]);
    for (int64_t k = 0; k < n; k++) {
        int64_t axis = ref_has(c, 3) ? ref_axis(ref_i(&c->in[3], k), x->rank) : k;
        if (axis < 0 || axis >= x->rank)
            return yk_fail(c->why, YK_INVAL, "axis %lld of a rank %d tensor", (long long)axis, x->rank);
        int64_t len = x->dims[axis], begin = ref_i(&c->in[1], k), end = ref_i(&c->in[2], k);
        int64_t by = ref_has(c, 4) ? ref_i(&c->in[4], k) : 1;
        if (by == 0)
            return yk_fail(c->why, YK_INVAL, "step 0 on axis %lld", (long long)axis);
        /* Values at the ends of int64 mean "to the end". */
        begin = begin < -len ? -len : begin > len ? len : begin;
        begin += begin < 0 ? len : 0;
        end = end < -len - 1 ? -len - 1 : end > len ? len : end;
        end += end < 0 ? len : 0;
        if (by < 0 && begin > len - 1)
            begin = len - 1;
        if (by > 0 && end < 0)
            end = 0;
        int64_t count = by > 0 ? (end > begin ? (end - begin - 1) / by + 1 : 0)
                               : (begin > end ? (begin - end - 1) / -YK_MAX(by, -INT64_MAX) + 1 : 0);
        s.base += begin * step[axis];
        s.step[axis] = count > 1 ? by * step[axis] : step[axis];
        s.dims[axis] = count;
    }
    for (int d = 0; d < x->rank; d++)
        if (s.dims[d] != y->dims[d])
            return yk_fail(c->why, YK_INVAL, "axis %d gives %lld elements where %lld were inferred", d,
                (long long)s.dims[d], (long long)y->dims[d]);
    strided_copy(c, &s);
    return YK_OK;
}

static yk_err run_shape(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    int64_t start = node_attr_i(c->node, "start", 0);
    start = start < 0 ? start + x->rank : start;
    start = YK_MIN(YK_MAX(start, 0), x->rank);
    int64_t n = tensor_count(&c->out[0]);
    if (start + n > x->rank)
        return yk_fail(
            c->why, YK_INTERNAL, "axes %lld to %lld of rank %d", (long long)start, (long long)(start + n), x->rank);
    memcpy(c->out[0].data, x->dims + start, (size_t)n * sizeof(int64_t));
    return YK_OK;
}

static yk_err run_size(struct host_call *c)
{
    *(int64_t *)c->out[0].data = tensor_count(&c->in[0]);
    return YK_OK;
}

static yk_err run_constant(struct host_call *c)
{
    const struct attr *a;
    struct tensor *y = &c->out[0];
    int64_t n = tensor_count(y);
    if ((a = node_attr(c->node, "value")) && a->kind == ATTR_TENSOR && a->tensor->data) {
        if (tensor_bytes(y) != a->tensor->bytes)
            return yk_fail(c->why, YK_INTERNAL, "value has %lld bytes", (long long)a->tensor->bytes);
        memcpy(y->data, a->tensor->data, (size_t)a->tensor->bytes);
    } else if ((a = node_attr(c->node, "value_int"))) {
        ref_store_i(y->data, y->shape.dtype, 0, 1, &a->i, 1);
    } else if ((a = node_attr(c->node, "value_float"))) {
        double v = (double)a->f;
        ref_store_d(y->data, y->shape.dtype, 0, 1, &v, 1);
    } else if ((a = node_attr(c->node, "value_ints")) && (int64_t)a->n == n) {
        ref_store_i(y->data, y->shape.dtype, 0, 1, a->ints, n);
    } else if ((a = node_attr(c->node, "value_floats")) && (int64_t)a->n == n) {
        for (int64_t i = 0; i < n; i++) {
            double v = (double)a->floats[i];
            ref_store_d(y->data, y->shape.dtype, i, 1, &v, 1);
        }
    } else {
        return yk_fail(c->why, YK_UNSUPPORTED, "a constant without a numeric value");
    }
    return YK_OK;
}

static yk_err run_constant_of_shape(struct host_call *c)
{
    const struct attr *a = node_attr(c->node, "value");
    struct tensor *y = &c->out[0];
    int64_t bytes = tensor_bytes(y);
    size_t size = element(y);
    if (!a || a->kind != ATTR_TENSOR || !a->tensor->data) {
        memset(y->data, 0, (size_t)bytes);
        return YK_OK;
    }
    if (a->tensor->bytes < (int64_t)size)
        return yk_fail(c->why, YK_INVAL, "the value is empty");
    for (int64_t at = 0; at < bytes; at += (int64_t)size)
        memcpy((char *)y->data + at, a->tensor->data, size);
    return YK_OK;
}

static yk_err run_range(struct host_call *c)
{
    struct tensor *y = &c->out[0];
    int64_t n = tensor_count(y);
    if (dtype_is_float(y->shape.dtype)) {
        double start = ref_d(&c->in[0], 0), delta = ref_d(&c->in[2], 0);
        for (int64_t i = 0; i < n; i++) {
            double v = start + (double)i * delta;
            ref_store_d(y->data, y->shape.dtype, i, 1, &v, 1);
        }
        return YK_OK;
    }
    uint64_t v = (uint64_t)ref_i(&c->in[0], 0), delta = (uint64_t)ref_i(&c->in[2], 0);
    for (int64_t i = 0; i < n; i++, v += delta) {
        int64_t w = (int64_t)v;
        ref_store_i(y->data, y->shape.dtype, i, 1, &w, 1);
    }
    return YK_OK;
}

/* Both are a transpose of six axes. */
static yk_err run_depth(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape;
    bool to_space = !strcmp(c->node->op->name, "DepthToSpace");
    int64_t b = node_attr_i(c->node, "blocksize", 1), n = x->dims[0], ch = x->dims[1], h = x->dims[2], w = x->dims[3];
    struct strided s = {.in = c->in[0].data, .out = c->out[0].data, .size = element(&c->in[0]), .rank = 6};
    if (to_space) {
        int64_t oc = ch / (b * b);
        bool crd = !strcmp(node_attr_s(c->node, "mode", "DCR"), "CRD");
        int64_t sc = crd ? b * b * h * w : h * w, sb1 = crd ? b * h * w : b * oc * h * w,
                sb2 = crd ? h * w : oc * h * w;
        int64_t dims[] = {n, oc, h, b, w, b}, step[] = {ch * h * w, sc, w, sb1, 1, sb2};
        memcpy(s.dims, dims, sizeof(dims));
        memcpy(s.step, step, sizeof(step));
    } else {
        int64_t dims[] = {n, b, b, ch, h / b, w / b}, step[] = {ch * h * w, w, 1, h * w, b * w, b};
        memcpy(s.dims, dims, sizeof(dims));
        memcpy(s.step, step, sizeof(step));
    }
    strided_copy(c, &s);
    return YK_OK;
}

static yk_err run_eye_like(struct host_call *c)
{
    struct tensor *y = &c->out[0];
    int64_t k = node_attr_i(c->node, "k", 0), rows_n = y->shape.dims[0], cols = y->shape.dims[1], one = 1;
    memset(y->data, 0, (size_t)tensor_bytes(y));
    for (int64_t r = 0; r < rows_n; r++)
        if (k > -rows_n - 1 && k < cols && r + k >= 0 && r + k < cols)
            ref_store_i(y->data, y->shape.dtype, r * cols + r + k, 1, &one, 1);
    return YK_OK;
}

#define ROW(name, fn)                                      \
    {                                                      \
        .domain = "", .op = name, .kind = "ref", .run = fn \
    }
static const struct host_kernel rows[] = {
    ROW("Identity", run_view),
    ROW("Reshape", run_view),
    ROW("Flatten", run_view),
    ROW("Squeeze", run_view),
    ROW("Unsqueeze", run_view),
    ROW("Transpose", run_transpose),
    ROW("Expand", run_expand),
    ROW("Tile", run_tile),
    ROW("Concat", run_concat),
    ROW("Split", run_split),
    ROW("Slice", run_slice),
    ROW("Shape", run_shape),
    ROW("Size", run_size),
    ROW("Constant", run_constant),
    ROW("ConstantOfShape", run_constant_of_shape),
    ROW("Range", run_range),
    ROW("DepthToSpace", run_depth),
    ROW("SpaceToDepth", run_depth),
    ROW("EyeLike", run_eye_like),
};
const struct host_rows ref_move = {rows, (int)YK_COUNT(rows)};
