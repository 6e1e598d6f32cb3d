/* Movement of f32 whose operands may be stored channels last: Concat, Split and Transpose by the order of the bytes.
 * Bits are copied. */
#include <string.h>

#include "kernels/layout.h"
#include "kernels/simd.h"

/* An axis of (N,C,H,W) in the order of the bytes N,H,W,C. */
static int turned_axis(int axis)
{
    static const int to[4] = {0, 3, 1, 2};
    return to[axis];
}

static int axis_of(const struct node *n, int64_t otherwise, int rank)
{
    int64_t axis = node_attr_i(n, "axis", otherwise);
    return (int)(axis < 0 ? axis + rank : axis);
}

/* Concat (one whole, many parts) and Split. */
struct parts {
    struct host_call *c;
    char *whole;
    bool split;
    int n;
    int64_t row;                                  /* bytes of the whole for one outer index */
    int64_t bytes[YK_MAX(OP_MAX_IN, OP_MAX_OUT)]; /* of a part */
    char *part[YK_MAX(OP_MAX_IN, OP_MAX_OUT)];
};

static void parts_piece(void *arg, int64_t begin, int64_t end)
{
    const struct parts *p = arg;
    for (int64_t o = begin; o < end; o++) {
        char *at = p->whole + o * p->row;
        for (int k = 0; k < p->n; k++) {
            if (p->split)
                memcpy(p->part[k] + o * p->bytes[k], at, (size_t)p->bytes[k]);
            else
                memcpy(at, p->part[k] + o * p->bytes[k], (size_t)p->bytes[k]);
            at += p->bytes[k];
        }
    }
}

static yk_err run_parts(struct host_call *c, bool split)
{
    const struct tensor *whole = split ? &c->in[0] : &c->out[0], *part = split ? c->out : c->in;
    bool last = ((split ? c->last_in : c->last_out) & 1) != 0;
    struct shape s = whole->shape;
    int axis = axis_of(c->node, 0, s.rank);
    struct parts p = {.c = c, .whole = whole->data, .split = split, .n = split ? c->n_out : c->n_in};
    for (int k = 0; !last && k < p.n; k++) /* the whole may be the same either way, and its parts not */
        last = ((split ? c->last_out : c->last_in) >> k & 1) != 0;
    if (last) {
        layout_turn(&whole->shape, &s);
        axis = turned_axis(axis);
    }
    int64_t outer = 1, inner = (int64_t)sizeof(float);
    for (int d = 0; d < axis; d++)
        outer *= s.dims[d];
    for (int d = axis + 1; d < s.rank; d++)
        inner *= s.dims[d];
    p.row = s.dims[axis] * inner;
    int64_t sum = 0;
    for (int k = 0; k < p.n; k++) {
        if (!part[k].data && part[k].shape.dtype == DT_NONE)
            return yk_fail(c->why, YK_UNSUPPORTED, "output %d of Split is absent", k);
        struct shape t = part[k].shape;
        if (last)
            layout_turn(&part[k].shape, &t);
        p.bytes[k] = t.dims[axis] * inner;
        p.part[k] = part[k].data;
        sum += p.bytes[k];
    }
    if (sum != p.row)
        return yk_fail(c->why, YK_INVAL, "the parts do not fill the axis they share");
    host_split(c, outer, YK_MAX(p.row / 16, 1), parts_piece, &p);
    return YK_OK;
}

static yk_err run_concat(struct host_call *c)
{
    return run_parts(c, false);
}

static yk_err run_split(struct host_call *c)
{
    return run_parts(c, true);
}

static bool claim_concat(const struct op_ctx *c)
{
    return simd_claim_f32(c) && c->in[0]->rank > 0;
}

static bool claim_split(const struct op_ctx *c)
{
    return c->in[0]->dtype == DT_F32 && c->in[0]->rank > 0;
}

/* ---- Transpose ---- */

struct turning {
    float *y;
    const float *x;
    int64_t dims[YK_MAX_RANK], step[YK_MAX_RANK]; /* of y in order; steps of x */
    int rank;
    int64_t inner; /* elements of the last axis */
};

static void turning_piece(void *arg, int64_t begin, int64_t end)
{
    const struct turning *t = arg;
    int64_t step = t->step[t->rank - 1];
    for (int64_t o = begin; o < end; o++) {
        int64_t left = o, at = 0;
        for (int d = t->rank - 2; d >= 0; d--) {
            at += left % t->dims[d] * t->step[d];
            left /= t->dims[d];
        }
        float *y = t->y + o * t->inner;
        const float *x = t->x + at;
        if (step == 1)
            memcpy(y, x, (size_t)t->inner * sizeof(float));
        else
            for (int64_t i = 0; i < t->inner; i++)
                y[i] = x[i * step];
    }
}

/* Axes that lie behind each other in both are one; axes of one element are none. */
static void simplify(struct turning *t)
{
    int n = 0;
    for (int d = 0; d < t->rank; d++) {
        if (t->dims[d] == 1)
            continue;
        if (n > 0 && t->step[n - 1] == t->dims[d] * t->step[d]) {
            t->dims[n - 1] *= t->dims[d];
            t->step[n - 1] = t->step[d];
        } else {
            t->dims[n] = t->dims[d];
            t->step[n++] = t->step[d];
        }
    }
    if (n == 0) {
        t->dims[0] = t->step[0] = 1;
        n = 1;
    }
    t->rank = n;
    t->inner = t->dims[n - 1];
}

static yk_err run_transpose(struct host_call *c)
{
    static const int order[4] = {0, 2, 3, 1}; /* axes in the order of the bytes */
    const struct shape *x = &c->in[0].shape;
    const struct attr *perm = node_attr_ints(c->node, "perm");
    struct turning t = {.y = c->out[0].data, .x = c->in[0].data, .rank = x->rank};
    int64_t steps[YK_MAX_RANK], step = 1; /* of x by its axes */
    for (int j = x->rank - 1; j >= 0; j--) {
        int axis = c->last_in & 1 ? order[j] : j;
        steps[axis] = step;
        step *= x->dims[axis];
    }
    for (int j = 0; j < x->rank; j++) {
        int axis = c->last_out & 1 ? order[j] : j, from = perm ? (int)perm->ints[axis] : x->rank - 1 - axis;
        t.dims[j] = x->dims[from];
        t.step[j] = steps[from];
    }
    simplify(&t);
    int64_t outer = 1;
    for (int d = 0; d < t.rank - 1; d++)
        outer *= t.dims[d];
    if (t.rank == 1 && t.step[0] == 1 && t.inner > 4096) { /* the same bytes: several threads copy */
        t = (struct turning){t.y, t.x, {t.inner / 1024, 1024}, {1024, 1}, 2, 1024};
        int64_t rest = tensor_count(&c->out[0]) - t.dims[0] * 1024;
        memcpy(t.y + t.dims[0] * 1024, t.x + t.dims[0] * 1024, (size_t)rest * sizeof(float));
        outer = t.dims[0];
    }
    host_split(c, outer, YK_MAX(t.inner / (t.step[t.rank - 1] == 1 ? 8 : 1), 1), turning_piece, &t);
    return YK_OK;
}

static bool claim_transpose(const struct op_ctx *c)
{
    return c->in[0]->dtype == DT_F32 && c->in[0]->rank > 0;
}

#define ROW(name, claims, fn, how)                                                          \
    {                                                                                       \
        .domain = "", .op = name, .kind = "move", .claim = claims, .run = fn, .layout = how \
    }
static const struct host_kernel rows[] = {
    ROW("Concat", claim_concat, run_concat, HOST_SAME),
    ROW("Split", claim_split, run_split, HOST_SAME),
    ROW("Transpose", claim_transpose, run_transpose, HOST_ANY),
};
const struct host_rows simd_move = {rows, (int)YK_COUNT(rows)};
