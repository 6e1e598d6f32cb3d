/* Fusion: a contraction takes in the bias, the residual and the activation that follow it, where nobody else reads the
 * value between. The fused node stands where the last of them stood, so all its inputs come before it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/passes_rewrite.h"

struct fuse {
    struct graph *g;
    struct pass_probes probes;
    int32_t n_probed; /* values that the probes know */
    int32_t *uses;
    int32_t *reader; /* by value: a node that reads it (the only one where uses is 1), or -1 */
    int32_t node;
};

struct chain {                /* what one fused node will be */
    int32_t first, mid, last; /* nodes; mid: an Add between, or -1 */
    int32_t out;              /* value */
    int32_t bias, residual;
    const char *activation;
    float min, max;
};

static bool is_op(const struct node *n, const char *name)
{
    return n->op && n->op->domain[0] == 0 && strcmp(n->op->name, name) == 0;
}

static void note_reader(void *arg, int32_t value)
{
    struct fuse *f = arg;
    f->reader[value] = f->node;
}

/* The only reader of a value, -1 if there are others or it is a graph output. */
static int32_t only_reader(const struct fuse *f, int32_t value)
{
    return f->uses[value] == 1 ? f->reader[value] : -1;
}

static bool bound(const struct graph *g, const struct node *n, int32_t k, float absent, float *out)
{
    *out = absent;
    return k >= n->n_in || n->in[k] == YK_ABSENT || pass_const_f32(g, n->in[k], out);
}

/* Relu or Clip behind the chain. */
static void take_activation(const struct fuse *f, struct chain *c)
{
    int32_t next = only_reader(f, c->out);
    const struct node *n = next >= 0 ? &f->g->nodes[next] : NULL;
    if (!n || n->n_out < 1 || n->in[0] != c->out)
        return;
    if (is_op(n, "Relu")) {
        c->activation = "relu";
    } else if (is_op(n, "Clip") && bound(f->g, n, 1, -INFINITY, &c->min) && bound(f->g, n, 2, INFINITY, &c->max) &&
               c->min <= c->max) {
        c->activation = "clip";
    } else {
        return;
    }
    if (c->last != c->first)
        c->mid = c->last;
    c->last = next;
    c->out = n->out[0];
}

/* The Add that alone reads the chain's value; *other is what it adds. */
static int32_t next_add(const struct fuse *f, const struct chain *c, int32_t *other)
{
    int32_t next = only_reader(f, c->out);
    const struct node *n = next >= 0 ? &f->g->nodes[next] : NULL;
    if (!n || !is_op(n, "Add") || n->in[0] == n->in[1])
        return -1;
    *other = n->in[n->in[0] == c->out ? 1 : 0];
    return next;
}

/* A residual: same shape at every size, made by a node or given, and not itself a chain that ends later: of two
 * convolutions that are added, the later one takes the sum. */
static void take_residual(const struct fuse *f, struct chain *c)
{
    int32_t other, add = next_add(f, c, &other);
    if (add < 0 || f->g->values[other].kind == VALUE_WEIGHT || other >= f->n_probed ||
        !pass_same_shape(&f->probes, c->out, other))
        return;
    int32_t producer = f->g->values[other].producer;
    if (producer > c->last && is_op(&f->g->nodes[producer], "Conv") && f->uses[other] == 1)
        return;
    c->residual = other;
    c->last = add;
    c->out = f->g->nodes[add].out[0];
}

/* MatMul + bias: a constant of one axis as long as the last of the product. */
static void take_bias(const struct fuse *f, struct chain *c, int64_t columns)
{
    int32_t other, add = next_add(f, c, &other);
    if (add < 0 || !pass_is_const(f->g, other))
        return;
    const struct value *v = &f->g->values[other];
    if (v->dtype != DT_F32 || v->shape.rank != 1 || v->shape.dims[0] != columns)
        return;
    c->bias = other;
    c->last = add;
    c->out = f->g->nodes[add].out[0];
}

static yk_err copy_attrs(struct graph *g, struct node *to, const struct node *from)
{
    struct attr *list = yk_arena_alloc(g->arena, (size_t)from->n_attr + 1, sizeof *list);
    if (!list)
        return YK_NOMEM;
    if (from->n_attr)
        memcpy(list, from->attr, (size_t)from->n_attr * sizeof *list);
    to->attr = list;
    to->n_attr = from->n_attr;
    return YK_OK;
}

/* Turns the last node of the chain into the fused one; the others are dead then. */
static yk_err build(struct fuse *f, const struct chain *c, const struct op *op)
{
    struct graph *g = f->g;
    struct node first = g->nodes[c->first];
    int32_t *ids = yk_arena_alloc(g->arena, 5, sizeof *ids);
    if (!ids)
        return YK_NOMEM;
    struct node fused = {.name = first.name, .op = op, .n_out = 1, .in = ids, .out = ids + 4};
    ids[0] = first.in[0];
    ids[1] = first.in[1];
    ids[2] = c->bias != YK_ABSENT ? c->bias : first.n_in > 2 ? first.in[2] : YK_ABSENT;
    ids[3] = c->residual;
    fused.n_in = c->residual != YK_ABSENT ? 4 : ids[2] != YK_ABSENT ? 3 : 2;
    ids[4] = c->out;
    yk_err err = copy_attrs(g, &fused, &first);
    if (!err)
        err = graph_set_attr_s(g, &fused, "activation", c->activation);
    if (!err && strcmp(c->activation, "clip") == 0) {
        err = graph_set_attr_f(g, &fused, "min", c->min);
        if (!err)
            err = graph_set_attr_f(g, &fused, "max", c->max);
    }
    if (err)
        return err;
    g->nodes[c->first].op = NULL;
    if (c->mid >= 0)
        g->nodes[c->mid].op = NULL;
    g->nodes[c->last] = fused;
    g->values[c->out].producer = c->last;
    for (int32_t k = 0; k < fused.n_in; k++) /* their reader is the fused node now */
        if (ids[k] != YK_ABSENT)
            f->reader[ids[k]] = c->last;
    return YK_OK;
}

static yk_err fuse_conv(struct fuse *f, int32_t index)
{
    struct chain c = {
        .first = index, .mid = -1, .last = index, .bias = YK_ABSENT, .residual = YK_ABSENT, .activation = "none"};
    c.out = f->g->nodes[index].out[0];
    if (c.out == YK_ABSENT || c.out >= f->n_probed || f->probes.n == 0 || f->probes.at[0].of[c.out].dtype != DT_F32)
        return YK_OK;
    take_residual(f, &c);
    take_activation(f, &c);
    return c.last == index ? YK_OK : build(f, &c, op_find("ai.yoke", "FusedConv"));
}

static yk_err fuse_gemm(struct fuse *f, int32_t index)
{
    struct node *n = &f->g->nodes[index];
    struct chain c = {
        .first = index, .mid = -1, .last = index, .bias = YK_ABSENT, .residual = YK_ABSENT, .activation = "none"};
    c.out = n->out[0];
    if (c.out == YK_ABSENT || c.out >= f->n_probed || f->probes.n == 0 || f->probes.at[0].of[c.out].dtype != DT_F32)
        return YK_OK;
    if (is_op(n, "MatMul")) {
        const struct shape *a = &f->probes.at[0].of[n->in[0]], *b = &f->probes.at[0].of[n->in[1]];
        if (a->rank < 2 || b->rank != 2 || !pass_is_const(f->g, n->in[1]))
            return YK_OK;
        take_bias(f, &c, b->dims[1]);
    }
    take_activation(f, &c);
    return c.last == index ? YK_OK : build(f, &c, op_find("ai.yoke", "FusedGemm"));
}

/* A FusedGemm that another pass made (over several axes) takes its activation too. */
static yk_err fuse_more(struct fuse *f, int32_t index)
{
    struct node *n = &f->g->nodes[index];
    struct chain c = {
        .first = index, .mid = -1, .last = index, .bias = YK_ABSENT, .residual = YK_ABSENT, .activation = "none"};
    c.out = n->out[0];
    if (c.out == YK_ABSENT || c.out >= f->n_probed || strcmp(node_attr_s(n, "activation", "none"), "none") != 0)
        return YK_OK;
    take_activation(f, &c);
    return c.last == index ? YK_OK : build(f, &c, n->op);
}

yk_err passes_fuse(struct graph *g, struct yk_diag *why)
{
    struct fuse f = {.g = g};
    yk_err err = graph_sort(g, why);
    if (err || (err = pass_probes_open(g, &f.probes, why)) != YK_OK)
        return err;
    f.n_probed = g->n_values;
    f.uses = pass_uses(g);
    f.reader = yk_try_alloc((size_t)g->n_values + 1, sizeof *f.reader);
    if (!f.uses || !f.reader) {
        err = YK_NOMEM;
        goto out;
    }
    for (int32_t v = 0; v < g->n_values; v++)
        f.reader[v] = -1;
    for (f.node = 0; f.node < g->n_nodes; f.node++)
        node_each_use(&g->nodes[f.node], note_reader, &f);
    for (int32_t i = 0; !err && i < g->n_nodes; i++) {
        const struct node *n = &g->nodes[i];
        if (!n->op)
            continue;
        if (is_op(n, "Conv"))
            err = fuse_conv(&f, i);
        else if (is_op(n, "Gemm") || is_op(n, "MatMul"))
            err = fuse_gemm(&f, i);
        else if (strcmp(n->op->domain, "ai.yoke") == 0 && strcmp(n->op->name, "FusedGemm") == 0)
            err = fuse_more(&f, i);
    }
out:
    free(f.uses);
    free(f.reader);
    pass_probes_close(&f.probes);
    return err ? yk_fail(why, err, "no memory to fuse") : pass_compact(g, why);
}
