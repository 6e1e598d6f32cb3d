/* Shape inference over a whole graph: the rules of op.h in canonical order, at concrete sizes. */
#include "common/shapes_priv.h"

#include <stdlib.h>
#include <string.h>

bool shapes_set_content(struct shapes *s, int32_t id, const int64_t *v, int64_t n)
{
    int64_t *c = yk_arena_alloc(s->arena, (size_t)n + 1, sizeof *c);
    if (!c)
        return false;
    memcpy(c, v, (size_t)n * sizeof *c);
    s->content[id] = c;
    return true;
}

/* Contents of a small integer weight; false if memory is gone. */
static bool weight_content(struct shapes *s, const struct value *v, int32_t id)
{
    enum dtype t = v->shape.dtype;
    int64_t n = shape_count(&v->shape);
    if (!v->data || n < 0 || n > OP_MAX_CONTENT || !(dtype_is_int(t) || t == DT_BOOL))
        return true;
    int64_t *c = yk_arena_alloc(s->arena, (size_t)n + 1, sizeof *c);
    if (!c)
        return false;
    for (int64_t i = 0; i < n; i++)
        c[i] = dtype_read_int(t, v->data, i);
    s->content[id] = c;
    return true;
}

/* The shape of graph input k from its declaration and the sizes, or from what the caller gave. */
static yk_err input_shape(const struct graph *g, int32_t k, const int64_t *sizes, const struct shape *given,
    struct shape *out, struct yk_diag *why)
{
    const struct value *v = &g->values[g->inputs[k]];
    struct shape s = {.dtype = v->dtype, .rank = v->rank};
    if (v->type != VALUE_TENSOR) { /* a sequence or an optional: known when it is there */
        *out = (struct shape){.dtype = v->dtype, .rank = -1};
        return YK_OK;
    }
    if (given) {
        bool fits = given->dtype == v->dtype && (v->rank < 0 || v->rank == given->rank);
        for (int32_t d = 0; fits && d < v->rank; d++)
            fits = v->dims[d].sym >= 0 || v->dims[d].value < 0 || v->dims[d].value == given->dims[d];
        if (!fits || shape_bytes(given) < 0) {
            char text[160];
            shape_text(given, text, sizeof text);
            return yk_fail(why, YK_INVAL, "%s does not fit graph input '%s'", text, v->name);
        }
        *out = *given;
        return YK_OK;
    }
    if (v->rank < 0 || v->rank > YK_MAX_RANK)
        return yk_fail(why, YK_INVAL, "graph input '%s' has no declared shape: give one", v->name);
    for (int32_t d = 0; d < v->rank; d++) {
        int32_t sym = v->dims[d].sym;
        s.dims[d] = sym < 0 ? v->dims[d].value : sizes ? sizes[sym] : -1;
        if (s.dims[d] >= 0)
            continue;
        if (sym >= 0)
            return yk_fail(why, YK_INVAL, "no size for dimension '%s' of graph input '%s'", g->syms[sym], v->name);
        return yk_fail(why, YK_INVAL, "axis %d of graph input '%s' has no size: give its shape", d, v->name);
    }
    if (shape_bytes(&s) < 0)
        return yk_fail(why, YK_LIMIT, "graph input '%s' is too large", v->name);
    *out = s;
    return YK_OK;
}

/* Data of a weight, also of a graph around. */
static const void *data_of(const struct graph *g, int32_t id)
{
    while (g->values[id].kind == VALUE_CAPTURE && g->parent && g->values[id].capture != YK_ABSENT) {
        id = g->values[id].capture;
        g = g->parent;
    }
    return g->values[id].kind == VALUE_WEIGHT ? g->values[id].data : NULL;
}

/* Points c at the inputs of a node. */
static void set_inputs(const struct graph *g, const struct shapes *s, const struct node *n, struct op_ctx *c)
{
    c->graph = g;
    c->node = n;
    c->n_in = n->n_in;
    c->n_out = n->n_out;
    c->why = NULL;
    for (int32_t i = 0; i < n->n_in; i++) {
        c->in[i] = n->in[i] == YK_ABSENT ? NULL : &s->of[n->in[i]];
        c->content[i] = n->in[i] == YK_ABSENT ? NULL : s->content[n->in[i]];
        c->data[i] = n->in[i] == YK_ABSENT ? NULL : data_of(g, n->in[i]);
    }
}

/* The element type of output i where the op tells without shapes; DT_NONE else. */
static enum dtype likely_dtype(const struct graph *g, const struct shapes *s, const struct node *n, int32_t i)
{
    static const char *const bools[] = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor",
        "Not", "IsNaN", "IsInf", "OptionalHasElement"};
    static const char *const longs[] = {"Shape", "Size", "NonZero", "ArgMax", "ArgMin", "SequenceLength"};
    if (g->values[n->out[i]].dtype != DT_NONE) /* what the file says of an output */
        return g->values[n->out[i]].dtype;
    for (size_t k = 0; k < YK_COUNT(bools); k++)
        if (strcmp(n->op->name, bools[k]) == 0)
            return DT_BOOL;
    for (size_t k = 0; k < YK_COUNT(longs); k++)
        if (strcmp(n->op->name, longs[k]) == 0)
            return DT_I64;
    if (strcmp(n->op->name, "Cast") == 0)
        return dtype_from_onnx(node_attr_i(n, "to", 0));
    int from = strcmp(n->op->name, "Where") == 0 ? 1 : 0;
    bool same = n->op->flags & (OP_ELEMENTWISE | OP_VIEW | OP_CONTRACTION) ||
                (n->op->flags & OP_SHAPE && strcmp(n->op->name, "ConstantOfShape") && strcmp(n->op->name, "OneHot") &&
                    strcmp(n->op->name, "EyeLike"));
    return i == 0 && same && n->n_in > from && n->in[from] != YK_ABSENT ? s->of[n->in[from]].dtype : DT_NONE;
}

/* What the node makes is not known now. */
static void leave_unknown(const struct graph *g, struct shapes *s, const struct node *n)
{
    for (int32_t i = 0; i < n->n_out; i++)
        if (n->out[i] != YK_ABSENT)
            s->of[n->out[i]] = (struct shape){.dtype = likely_dtype(g, s, n, i), .rank = -1};
}

static void mark_dynamic(struct shapes *s, int32_t node)
{
    s->n_dynamic += !s->dynamic[node];
    s->dynamic[node] = 1;
}

static yk_err infer_node(const struct graph *g, struct shapes *s, int32_t index, struct op_ctx *c, struct yk_diag *why)
{
    const struct node *n = &g->nodes[index];
    if (n->n_in > OP_MAX_IN || n->n_out > OP_MAX_OUT)
        return yk_fail(why, YK_LIMIT, "%d inputs and %d outputs, the limits are %d and %d", n->n_in, n->n_out,
            OP_MAX_IN, OP_MAX_OUT);
    if (n->op->flags & OP_CONTROL) {
        mark_dynamic(s, index);
        leave_unknown(g, s, n);
        return shapes_control(g, s, index, why);
    }
    set_inputs(g, s, n, c);
    c->why = why;
    yk_err err = op_infer(c);
    if (err == YK_DEPENDS) {
        mark_dynamic(s, index);
        leave_unknown(g, s, n);
        return YK_OK;
    }
    if (err)
        return err;
    for (int32_t i = 0; i < n->n_out; i++) {
        if (n->out[i] == YK_ABSENT)
            continue;
        s->of[n->out[i]] = c->out[i];
        if (shape_bytes(&c->out[i]) < 0)
            mark_dynamic(s, index);
        else if (c->out_known[i] && !shapes_set_content(s, n->out[i], c->out_content[i], shape_count(&c->out[i])))
            return yk_fail(why, YK_NOMEM, "no memory for shapes");
    }
    return YK_OK;
}

yk_err shapes_start(const struct graph *g, struct shapes *s, struct yk_diag *why)
{
    *s = (struct shapes){.arena = yk_arena_open(0)};
    if (!s->arena)
        return yk_fail(why, YK_NOMEM, "no memory for shapes");
    s->of = yk_arena_alloc(s->arena, (size_t)g->n_values + 1, sizeof *s->of);
    s->content = yk_arena_alloc(s->arena, (size_t)g->n_values + 1, sizeof *s->content);
    s->dynamic = yk_arena_alloc(s->arena, (size_t)g->n_nodes + 1, 1);
    if (!s->of || !s->content || !s->dynamic)
        return yk_fail(why, YK_NOMEM, "no memory for shapes");
    for (int32_t i = 0; i < g->n_values; i++) {
        s->of[i].rank = -1;
        if (g->values[i].kind != VALUE_WEIGHT)
            continue;
        s->of[i] = g->values[i].shape;
        if (!weight_content(s, &g->values[i], i))
            return yk_fail(why, YK_NOMEM, "no memory for shapes");
    }
    return YK_OK;
}

yk_err shapes_walk(const struct graph *g, struct shapes *s, struct yk_diag *why)
{
    struct op_ctx *c = yk_try_alloc(1, sizeof *c);
    yk_err err = c ? YK_OK : yk_fail(why, YK_NOMEM, "no memory for shapes");
    for (int32_t i = 0; !err && i < g->n_nodes; i++)
        if ((err = infer_node(g, s, i, c, why)) != YK_OK)
            yk_wrap(why, err, "node %d '%s' (%s)", i, g->nodes[i].name, g->nodes[i].op->name);
    free(c);
    return err;
}

yk_err shapes_infer(const struct graph *g, const int64_t *sizes, const struct shape *const *input_shapes,
    struct shapes *out, struct yk_diag *why)
{
    struct shapes s;
    yk_err err = shapes_start(g, &s, why);
    for (int32_t i = 0; !err && i < g->n_values; i++)
        if (g->values[i].kind == VALUE_CAPTURE)
            err = yk_fail(why, YK_UNSUPPORTED, "'%s' is captured from a parent graph", g->values[i].name);
    for (int32_t k = 0; !err && k < g->n_inputs; k++)
        err = input_shape(g, k, sizes, input_shapes ? input_shapes[k] : NULL, &s.of[g->inputs[k]], why);
    if (!err)
        err = shapes_walk(g, &s, why);
    if (err)
        shapes_fini(&s);
    else
        *out = s;
    return err;
}

void shapes_fini(struct shapes *s)
{
    yk_arena_close(s->arena);
    memset(s, 0, sizeof *s);
}

void shapes_node(const struct graph *g, const struct shapes *s, int32_t node, struct op_ctx *c)
{
    const struct node *n = &g->nodes[node];
    set_inputs(g, s, n, c);
    for (int32_t i = 0; i < n->n_out; i++) {
        c->out[i] = n->out[i] == YK_ABSENT ? (struct shape){.dtype = DT_NONE} : s->of[n->out[i]];
        c->out_known[i] = n->out[i] != YK_ABSENT && s->content[n->out[i]];
        if (c->out_known[i])
            memcpy(c->out_content[i], s->content[n->out[i]], (size_t)shape_count(&c->out[i]) * sizeof(int64_t));
    }
}
