/* Shape inference over a whole graph: the rules of op.h in canonical order, at concrete sizes. */
#include "common/shapes.h"

#include <stdlib.h>
#include <string.h>

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
    if (v->type != VALUE_TENSOR)
        return yk_fail(why, YK_UNSUPPORTED, "graph input '%s' is not a tensor", v->name);
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
        c->data[i] = n->in[i] == YK_ABSENT ? NULL : g->values[n->in[i]].data;
    }
}

static yk_err infer_node(const struct graph *g, struct shapes *s, int32_t index, struct op_ctx *c, struct yk_diag *why)
{
    const struct node *n = &g->nodes[index];
    if (n->n_in > OP_MAX_IN || n->n_out > OP_MAX_OUT)
        return yk_fail(why, YK_LIMIT, "%d inputs and %d outputs, the limits are %d and %d", n->n_in, n->n_out,
            OP_MAX_IN, OP_MAX_OUT);
    set_inputs(g, s, n, c);
    c->why = why;
    yk_err err = op_infer(c);
    if (err)
        return err;
    for (int32_t i = 0; i < n->n_out; i++) {
        if (n->out[i] == YK_ABSENT)
            continue;
        s->of[n->out[i]] = c->out[i];
        if (!c->out_known[i])
            continue;
        int64_t count = shape_count(&c->out[i]);
        int64_t *content = yk_arena_alloc(s->arena, (size_t)count + 1, sizeof *content);
        if (!content)
            return yk_fail(why, YK_NOMEM, "no memory for shapes");
        memcpy(content, c->out_content[i], (size_t)count * sizeof *content);
        s->content[n->out[i]] = content;
    }
    return YK_OK;
}

yk_err shapes_infer(const struct graph *g, const int64_t *sizes, const struct shape *const *input_shapes,
    struct shapes *out, struct yk_diag *why)
{
    struct shapes s = {.arena = yk_arena_open(0)};
    struct op_ctx *c = NULL;
    yk_err err = YK_OK;
    if (!s.arena)
        return yk_fail(why, YK_NOMEM, "no memory for shapes");
    s.of = yk_arena_alloc(s.arena, (size_t)g->n_values + 1, sizeof *s.of);
    s.content = yk_arena_alloc(s.arena, (size_t)g->n_values + 1, sizeof *s.content);
    c = yk_try_alloc(1, sizeof *c);
    if (!s.of || !s.content || !c) {
        err = yk_fail(why, YK_NOMEM, "no memory for shapes");
        goto out;
    }
    for (int32_t i = 0; i < g->n_values; i++) {
        s.of[i].rank = -1;
        if (g->values[i].kind == VALUE_CAPTURE) {
            err = yk_fail(why, YK_UNSUPPORTED, "'%s' is captured from a parent graph", g->values[i].name);
            goto out;
        }
        if (g->values[i].kind != VALUE_WEIGHT)
            continue;
        s.of[i] = g->values[i].shape;
        if (!weight_content(&s, &g->values[i], i)) {
            err = yk_fail(why, YK_NOMEM, "no memory for shapes");
            goto out;
        }
    }
    for (int32_t k = 0; k < g->n_inputs; k++) {
        err = input_shape(g, k, sizes, input_shapes ? input_shapes[k] : NULL, &s.of[g->inputs[k]], why);
        if (err)
            goto out;
    }
    for (int32_t i = 0; i < g->n_nodes; i++) {
        err = infer_node(g, &s, i, c, why);
        if (err) {
            err = yk_wrap(why, err, "node %d '%s' (%s)", i, g->nodes[i].name, g->nodes[i].op->name);
            goto out;
        }
    }
    *out = s;
out:
    free(c);
    if (err)
        yk_arena_close(s.arena);
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
