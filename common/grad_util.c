/* What rules write nodes with. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grad_priv.h"

yk_err grad_fail(struct grad *r, yk_err err, const char *fmt, ...)
{
    char text[512];
    va_list args;
    if (r->err)
        return r->err;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const struct node *n = r->node >= 0 ? &r->fwd->nodes[r->node] : NULL;
    if (n)
        r->err = yk_fail(r->why, err, "node %d '%s' (%s): %s", r->node, n->name, n->op->name, text);
    else
        r->err = yk_fail(r->why, err, "%s", text);
    return r->err;
}

static void no_memory(struct grad *r)
{
    if (!r->err)
        r->err = yk_fail(r->why, YK_NOMEM, "no memory for the training graph");
}

/* ---- nodes ---- */

static int32_t new_value(struct grad *r, enum value_kind kind, enum dtype t)
{
    char name[64];
    do {
        snprintf(name, sizeof name, "grad/%d", r->names++);
    } while (graph_find_value(r->g, name) != YK_ABSENT);
    return graph_add_value(r->g, name, kind, t);
}

static bool note_node(struct grad *r)
{
    if (r->n_made == r->cap_made) {
        int32_t wider = r->cap_made ? 2 * r->cap_made : 64;
        struct grad_made *made =
            r->cap_made > INT32_MAX / 4 ? NULL : yk_try_realloc(r->made, (size_t)wider, sizeof *made);
        if (!made)
            return false;
        r->made = made;
        r->cap_made = wider;
    }
    r->made[r->n_made++] = (struct grad_made){r->part, r->node};
    return true;
}

bool grad_node_of(struct grad *r, const struct op *op, const int32_t *in, int n_in, int32_t *out, int n_out)
{
    char name[160];
    const struct node *of = &r->fwd->nodes[r->node];
    for (int k = 0; k < n_out && r->err; k++)
        out[k] = YK_ABSENT;
    if (r->err)
        return false;
    while (n_in > 0 && in[n_in - 1] == YK_ABSENT)
        n_in--;
    for (int k = 0; k < n_out; k++)
        if (out[k] != YK_ABSENT && (out[k] = new_value(r, VALUE_NODE, DT_NONE)) == YK_ABSENT)
            no_memory(r);
    snprintf(name, sizeof name, "%s%.140s", r->part == GRAD_LOSS_PART ? "loss/" : "grad/", of->name);
    if (!r->err && (!note_node(r) || graph_add_node(r->g, name, op, in, n_in, out, n_out) == YK_ABSENT))
        no_memory(r);
    return !r->err;
}

bool grad_node(struct grad *r, const char *op, const int32_t *in, int n_in, int32_t *out, int n_out)
{
    char domain[32] = "";
    const char *dot = strrchr(op, '.');
    if (dot)
        snprintf(domain, sizeof domain, "%.*s", (int)(dot - op), op);
    const struct op *row = op_find(domain, dot ? dot + 1 : op);
    if (!row)
        grad_fail(r, YK_INTERNAL, "no op %s", op);
    return grad_node_of(r, row, in, n_in, out, n_out);
}

int32_t grad_op1(struct grad *r, const char *op, int32_t a)
{
    int32_t y = 0;
    grad_node(r, op, &a, 1, &y, 1);
    return y;
}

int32_t grad_op2(struct grad *r, const char *op, int32_t a, int32_t b)
{
    int32_t y = 0, in[] = {a, b};
    grad_node(r, op, in, 2, &y, 1);
    return y;
}

int32_t grad_op3(struct grad *r, const char *op, int32_t a, int32_t b, int32_t c)
{
    int32_t y = 0, in[] = {a, b, c};
    grad_node(r, op, in, 3, &y, 1);
    return y;
}

struct node *grad_last(struct grad *r)
{
    return r->err ? NULL : &r->g->nodes[r->g->n_nodes - 1];
}

void grad_attr_i(struct grad *r, const char *name, int64_t v)
{
    if (!r->err && graph_set_attr_i(r->g, grad_last(r), name, v))
        no_memory(r);
}

void grad_attr_f(struct grad *r, const char *name, float v)
{
    if (!r->err && graph_set_attr_f(r->g, grad_last(r), name, v))
        no_memory(r);
}

void grad_attr_s(struct grad *r, const char *name, const char *v)
{
    if (!r->err && graph_set_attr_s(r->g, grad_last(r), name, v))
        no_memory(r);
}

void grad_attr_ints(struct grad *r, const char *name, const int64_t *v, int n)
{
    if (!r->err && graph_set_attr_ints(r->g, grad_last(r), name, v, (size_t)n))
        no_memory(r);
}

void grad_attr_copy(struct grad *r, const struct node *from)
{
    if (r->err)
        return;
    struct node *n = grad_last(r);
    struct attr *list = yk_arena_alloc(r->g->arena, (size_t)from->n_attr + 1, sizeof *list);
    if (!list) {
        no_memory(r);
        return;
    }
    if (from->n_attr)
        memcpy(list, from->attr, (size_t)from->n_attr * sizeof *list);
    n->attr = list;
    n->n_attr = from->n_attr;
}

/* ---- constants: one weight for each content ---- */

static int32_t constant(struct grad *r, const struct shape *shape, const void *data)
{
    int64_t bytes = shape_bytes(shape);
    if (r->err)
        return YK_ABSENT;
    for (int32_t i = 0; i < r->n_consts; i++) {
        const struct value *v = &r->g->values[r->consts[i]];
        if (shape_equal(&v->shape, shape) && (bytes == 0 || memcmp(v->data, data, (size_t)bytes) == 0))
            return r->consts[i];
    }
    if (r->n_consts == r->cap_consts) {
        int32_t wider = r->cap_consts ? 2 * r->cap_consts : 64, *list;
        list = yk_try_realloc(r->consts, (size_t)wider, sizeof *list);
        if (!list) {
            no_memory(r);
            return YK_ABSENT;
        }
        r->consts = list;
        r->cap_consts = wider;
    }
    void *copy = graph_alloc_data(r->g, bytes);
    int32_t id = copy ? new_value(r, VALUE_WEIGHT, shape->dtype) : YK_ABSENT;
    if (id == YK_ABSENT) {
        no_memory(r);
        return id;
    }
    if (bytes)
        memcpy(copy, data, (size_t)bytes);
    struct value *v = &r->g->values[id];
    v->shape = *shape;
    v->data = copy;
    v->bytes = bytes;
    v->aligned = v->constant = true;
    r->consts[r->n_consts++] = id;
    return id;
}

int32_t grad_ints(struct grad *r, const int64_t *v, int n)
{
    struct shape s = {.dtype = DT_I64, .rank = 1, .dims = {n}};
    return constant(r, &s, v);
}

int32_t grad_scalar(struct grad *r, enum dtype t, double v)
{
    struct shape s = {.dtype = t};
    float f = (float)v;
    uint8_t b = v != 0;
    if (t != DT_F32 && t != DT_F64 && t != DT_BOOL) {
        grad_fail(r, YK_UNSUPPORTED, "gradients of type %s", dtype_name(t));
        return YK_ABSENT;
    }
    return constant(r, &s, t == DT_F32 ? (void *)&f : t == DT_F64 ? (void *)&v : (void *)&b);
}

int32_t grad_ones(struct grad *r, int32_t value)
{
    const struct shape *s = grad_static(r, value);
    int64_t n = s ? shape_count(s) : -1;
    if (n < 0 || (s->dtype != DT_F32 && s->dtype != DT_F64)) {
        grad_fail(r, YK_UNSUPPORTED, "the size or type of '%s'", r->fwd->values[value].name);
        return YK_ABSENT;
    }
    void *data = yk_try_alloc((size_t)n + 1, dtype_bytes(s->dtype));
    if (!data)
        no_memory(r);
    for (int64_t i = 0; data && i < n; i++) {
        if (s->dtype == DT_F64)
            ((double *)data)[i] = 1;
        else
            ((float *)data)[i] = 1;
    }
    int32_t id = data ? constant(r, s, data) : YK_ABSENT;
    free(data);
    return id;
}

/* ---- forward values ---- */

bool grad_needs(const struct grad *r, const struct node *n, int k)
{
    return k < n->n_in && n->in[k] != YK_ABSENT && r->needs[n->in[k]];
}

int32_t grad_in(struct grad *r, const struct node *n, int k)
{
    return k < n->n_in && n->in[k] != YK_ABSENT ? grad_keep(r, n->in[k]) : YK_ABSENT;
}

enum dtype grad_type(const struct grad *r, int32_t value)
{
    return r->p->at[0].of[value].dtype;
}

int grad_rank(const struct grad *r, int32_t value)
{
    return r->p->at[0].of[value].rank;
}

bool grad_same(const struct grad *r, int32_t a, int32_t b)
{
    return pass_same_shape(r->p, a, b);
}

const struct shape *grad_static(const struct grad *r, int32_t value)
{
    const struct shape *s = &r->p->at[0].of[value];
    if (!shapes_has(&r->p->at[0], value))
        return NULL;
    for (int i = 1; i < r->p->n; i++)
        if (!shape_equal(s, &r->p->at[i].of[value]))
            return NULL;
    return s;
}

const int64_t *grad_content(const struct grad *r, int32_t value, int *n)
{
    const int64_t *v = pass_same_content(r->p, value);
    *n = v ? (int)shape_count(&r->p->at[0].of[value]) : 0;
    return v;
}

bool grad_const(const struct grad *r, int32_t value, double *out)
{
    const struct value *v = value == YK_ABSENT ? NULL : &r->fwd->values[value];
    if (!v || v->kind != VALUE_WEIGHT || !v->data || shape_count(&v->shape) != 1)
        return false;
    if (v->dtype == DT_F64)
        memcpy(out, v->data, sizeof *out);
    else if (v->dtype == DT_F32)
        *out = (double)pass_f32(v->data, 0);
    else
        return false;
    return true;
}

/* ---- shapes ---- */

int32_t grad_shape(struct grad *r, int32_t value)
{
    const struct shape *s = grad_static(r, value);
    if (s)
        return grad_ints(r, s->dims, s->rank);
    if (r->shape_of[value] != YK_ABSENT && r->shape_at[value] == r->node)
        return r->shape_of[value];
    enum grad_part part = r->part;
    r->part = GRAD_EARLY;
    r->shape_of[value] = grad_op1(r, "Shape", value);
    r->shape_at[value] = r->node;
    r->part = part;
    return r->shape_of[value];
}

int32_t grad_reshape(struct grad *r, int32_t d, const int64_t *dims, int n)
{
    return grad_op2(r, "Reshape", d, grad_ints(r, dims, n));
}

int32_t grad_transpose(struct grad *r, int32_t d, const int64_t *perm, int n)
{
    int32_t y = grad_op1(r, "Transpose", d);
    grad_attr_ints(r, "perm", perm, n);
    return y;
}

int32_t grad_like(struct grad *r, int32_t d, int32_t value)
{
    int64_t dims[YK_MAX_RANK];
    int rank = grad_rank(r, value), vary = 0;
    if (r->err)
        return YK_ABSENT;
    for (int k = 0; k < rank; k++) {
        dims[k] = r->p->at[0].of[value].dims[k];
        bool same = true;
        for (int i = 1; i < r->p->n; i++)
            same = same && r->p->at[i].of[value].dims[k] == dims[k];
        if (!same) {
            dims[k] = -1;
            vary++;
        }
        if (dims[k] == 0) /* a static empty axis: Reshape reads 0 as "copy" */
            vary = 2;
    }
    if (vary <= 1)
        return grad_reshape(r, d, dims, rank);
    d = grad_op2(r, "Reshape", d, grad_shape(r, value));
    grad_attr_i(r, "allowzero", 1);
    return d;
}

int32_t grad_sum_to(struct grad *r, int32_t d, int32_t from, int32_t to)
{
    return grad_same(r, from, to) ? d : grad_op2(r, "ai.yoke.SumTo", d, grad_shape(r, to));
}

int32_t grad_zeros(struct grad *r, int32_t value)
{
    enum dtype t = grad_type(r, value);
    int32_t y = grad_op1(r, "ConstantOfShape", grad_shape(r, value));
    struct node *n = grad_last(r);
    if (!n)
        return YK_ABSENT;
    struct shape one = {.dtype = t, .rank = 1, .dims = {1}};
    struct value *zero = yk_arena_alloc(r->g->arena, 1, sizeof *zero);
    void *data = yk_arena_alloc(r->g->arena, 1, 8);
    struct attr *a = yk_arena_alloc(r->g->arena, 1, sizeof *a);
    if (!zero || !data || !a) {
        no_memory(r);
        return YK_ABSENT;
    }
    *zero = (struct value){.name = "",
        .kind = VALUE_WEIGHT,
        .dtype = t,
        .rank = -1,
        .producer = -1,
        .shape = one,
        .data = data,
        .bytes = (int64_t)dtype_bytes(t),
        .aligned = true,
        .capture = YK_ABSENT};
    *a = (struct attr){.name = "value", .kind = ATTR_TENSOR, .tensor = zero};
    n->attr = a;
    n->n_attr = 1;
    return y;
}
