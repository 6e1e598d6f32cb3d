/* Layer normalisation as exporters before opset 17 write it out:
 *   d = x - ReduceMean(x); y = d / Sqrt(ReduceMean(d ^ 2) + epsilon) * scale + bias
 * becomes one LayerNormalization. */
#include <stdlib.h>
#include <string.h>

#include "common/passes_rewrite.h"

struct match {
    const struct graph *g;
    const struct pass_probes *p;
    const int32_t *uses;
    int32_t nodes[9]; /* what the pattern covers, in the order it is found; the last one of the graph first */
    int n;
};

/* The node that makes a value, if it is this op and its value has this many uses; noted as covered. */
static const struct node *made_by(struct match *m, int32_t value, const char *op, int32_t uses)
{
    int32_t at = value == YK_ABSENT ? -1 : m->g->values[value].producer;
    const struct node *n = at >= 0 ? &m->g->nodes[at] : NULL;
    if (!n || !n->op || n->op->domain[0] || strcmp(n->op->name, op) != 0 || (uses && m->uses[value] != uses))
        return NULL;
    m->nodes[m->n++] = at;
    return n;
}

/* Splits a commutative node's inputs into the constant and the other one. */
static bool split_const(const struct graph *g, const struct node *n, int32_t *constant, int32_t *other)
{
    int c = pass_is_const(g, n->in[0]) ? 0 : 1;
    *constant = n->in[c];
    *other = n->in[1 - c];
    return pass_is_const(g, *constant) && !pass_is_const(g, *other);
}

/* ReduceMean over the last axes with keepdims; the count of axes, 0 if it is another one. */
static int last_axes(const struct node *n, int rank)
{
    const struct attr *a = node_attr_ints(n, "axes");
    bool seen[YK_MAX_RANK] = {false};
    if (!a || a->n < 1 || a->n > (size_t)rank || node_attr_i(n, "keepdims", 1) == 0)
        return 0;
    for (size_t i = 0; i < a->n; i++) {
        int64_t axis = a->ints[i] < 0 ? a->ints[i] + rank : a->ints[i];
        if (axis < rank - (int64_t)a->n || axis >= rank || seen[axis])
            return 0;
        seen[axis] = true;
    }
    return (int)a->n;
}

/* A constant of the shape that the last k axes have at every size. */
static bool fits_axes(const struct match *m, int32_t constant, int32_t x, int k)
{
    const struct shape *s = &m->g->values[constant].shape;
    bool fits = s->dtype == DT_F32 && s->rank == k;
    for (int i = 0; fits && i < m->p->n; i++) {
        const struct shape *have = &m->p->at[i].of[x];
        fits = have->rank >= k; /* unknown where it depends on data */
        for (int d = 0; fits && d < k; d++)
            fits = s->dims[d] == have->dims[have->rank - k + d];
    }
    return fits;
}

static yk_err try_node(struct graph *g, struct match *m, int32_t last)
{
    int32_t scale, bias, q, g1, eps_id, v, squared, constant;
    float eps, two;
    m->n = 0;
    const struct node *add = made_by(m, g->nodes[last].out[0], "Add", 0);
    if (!add || !split_const(g, add, &bias, &g1))
        return YK_OK;
    const struct node *mul = made_by(m, g1, "Mul", 1);
    if (!mul || !split_const(g, mul, &scale, &q))
        return YK_OK;
    const struct node *div = made_by(m, q, "Div", 1), *root = div ? made_by(m, div->in[1], "Sqrt", 1) : NULL;
    const struct node *shift = root ? made_by(m, root->in[0], "Add", 1) : NULL;
    if (!shift || !split_const(g, shift, &eps_id, &v) || !pass_const_f32(g, eps_id, &eps))
        return YK_OK;
    const struct node *var = made_by(m, v, "ReduceMean", 1), *square = var ? made_by(m, var->in[0], "Pow", 1) : NULL;
    if (!square || !pass_is_const(g, square->in[1]))
        return YK_OK;
    squared = square->in[0];
    constant = square->in[1];
    if (squared != div->in[0] || !pass_const_f32(g, constant, &two) || two != 2)
        return YK_OK;
    const struct node *sub = made_by(m, squared, "Sub", 2),
                      *mean = sub ? made_by(m, sub->in[1], "ReduceMean", 1) : NULL;
    if (!mean || mean->in[0] != sub->in[0])
        return YK_OK;
    int32_t x = sub->in[0], ids[3] = {x, scale, bias};
    const struct shape *s = &m->p->at[0].of[x];
    int k = s->rank > 0 ? last_axes(mean, s->rank) : 0;
    if (k == 0 || k != last_axes(var, s->rank) || s->dtype != DT_F32 || !fits_axes(m, scale, x, k) ||
        !fits_axes(m, bias, x, k))
        return YK_OK;

    struct node *n = &g->nodes[last];
    int32_t *in = yk_arena_alloc(g->arena, 3, sizeof *in);
    if (!in)
        return YK_NOMEM;
    memcpy(in, ids, sizeof ids);
    *n = (struct node){
        .name = n->name, .op = op_find("", "LayerNormalization"), .in = in, .n_in = 3, .out = n->out, .n_out = 1};
    for (int i = 1; i < m->n; i++)
        g->nodes[m->nodes[i]].op = NULL;
    yk_err err = graph_set_attr_i(g, n, "axis", -k);
    return err ? err : graph_set_attr_f(g, n, "epsilon", eps);
}

yk_err pass_fuse_layernorm(struct graph *g, struct yk_diag *why)
{
    struct pass_probes p;
    yk_err err = graph_sort(g, why);
    if (err || (err = pass_probes_open(g, &p, why)) != YK_OK)
        return err;
    int32_t *uses = pass_uses(g);
    struct match m = {.g = g, .p = &p, .uses = uses};
    if (!uses)
        err = YK_NOMEM;
    for (int32_t i = 0; !err && p.n > 0 && i < g->n_nodes; i++)
        if (g->nodes[i].op && g->nodes[i].n_out == 1 && g->nodes[i].out[0] != YK_ABSENT)
            err = try_node(g, &m, i);
    free(uses);
    pass_probes_close(&p);
    return err ? yk_fail(why, err, "no memory to fuse") : pass_compact(g, why);
}
