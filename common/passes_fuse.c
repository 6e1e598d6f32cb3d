/* Fusion: a contraction takes in the bias, the residual and the activation that follow it, where nobody else reads the
 * value between. The fused node stands where the last of them stood, so all its inputs come before it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/activation.h"
#include "common/passes_rewrite.h"

struct fuse {
    struct graph *g;
    struct pass_probes probes;
    int32_t n_probed; /* values that the probes know */
    int32_t *uses;
    int32_t *reader; /* by value: a node that reads it (the only one where uses is 1), or -1 */
    int32_t node;
};

#define CHAIN_MOST 8

struct chain {                 /* what one fused node will be */
    int32_t nodes[CHAIN_MOST]; /* the first is the contraction; the last becomes the fused node */
    int n;
    int32_t out; /* value */
    int32_t bias, residual;
    struct activation act;
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

static int32_t last_of(const struct chain *c)
{
    return c->nodes[c->n - 1];
}

static void take(const struct fuse *f, struct chain *c, int32_t node)
{
    c->nodes[c->n++] = node;
    c->out = f->g->nodes[node].out[0];
}

static bool bound(const struct graph *g, const struct node *n, int32_t k, float absent, float *out)
{
    *out = absent;
    return k >= n->n_in || n->in[k] == YK_ABSENT || pass_const_f32(g, n->in[k], out);
}

/* Activations that are one node. */
static bool activation_node(const struct graph *g, const struct node *n, struct activation *out)
{
    *out = (struct activation){.kind = ACTIVATION_NONE};
    if (is_op(n, "Relu")) {
        out->kind = ACTIVATION_RELU;
    } else if (is_op(n, "Clip")) {
        if (bound(g, n, 1, -INFINITY, &out->a) && bound(g, n, 2, INFINITY, &out->b) && out->a <= out->b)
            out->kind = ACTIVATION_CLIP;
    } else if (is_op(n, "LeakyRelu")) {
        *out = (struct activation){ACTIVATION_LEAKY_RELU, node_attr_f(n, "alpha", 0.01f), 0};
    } else if (is_op(n, "Sigmoid")) {
        out->kind = ACTIVATION_SIGMOID;
    } else if (is_op(n, "HardSigmoid")) {
        *out =
            (struct activation){ACTIVATION_HARD_SIGMOID, node_attr_f(n, "alpha", 0.2f), node_attr_f(n, "beta", 0.5f)};
    } else if (is_op(n, "HardSwish")) {
        *out = (struct activation){ACTIVATION_HARD_SWISH, 1.0f / 6, 0.5f};
    }
    return out->kind != ACTIVATION_NONE;
}

/* The node that makes `value`, if it has that op and only one reads what it makes. */
static const struct node *made_by(const struct fuse *f, int32_t value, const char *op)
{
    int32_t at = value == YK_ABSENT || f->uses[value] != 1 ? -1 : f->g->values[value].producer;
    return at >= 0 && is_op(&f->g->nodes[at], op) ? &f->g->nodes[at] : NULL;
}

/* The operand of a node of two that is not `value`; YK_ABSENT if both are. */
static int32_t other_of(const struct node *n, int32_t value)
{
    if (n->in[0] == n->in[1])
        return YK_ABSENT;
    return n->in[n->in[0] == value ? 1 : n->in[1] == value ? 0 : 0];
}

static bool is_const(const struct graph *g, int32_t value, double want)
{
    float v;
    return value != YK_ABSENT && pass_const_f32(g, value, &v) && fabs((double)v - want) <= 1e-6 * want;
}

static int32_t index_of(const struct fuse *f, const struct node *n)
{
    return (int32_t)(n - f->g->nodes);
}

/* x * sigmoid(x), x * hard_sigmoid(x): the chain's value has these two readers. */
static bool take_gated(const struct fuse *f, struct chain *c, const struct node *mul)
{
    int32_t gate = other_of(mul, c->out);
    const struct node *n = made_by(f, gate, "Sigmoid");
    n = n ? n : made_by(f, gate, "HardSigmoid");
    if (!n || n->in[0] != c->out || !activation_node(f->g, n, &c->act))
        return false;
    c->act.kind = c->act.kind == ACTIVATION_SIGMOID ? ACTIVATION_SILU : ACTIVATION_HARD_SWISH;
    take(f, c, index_of(f, n));
    take(f, c, index_of(f, mul));
    return true;
}

/* x * (1 + erf(x / sqrt 2)) * 0.5 as PyTorch writes it. */
static bool take_gelu(const struct fuse *f, struct chain *c, const struct node *mul)
{
    const struct graph *g = f->g;
    const struct node *add = made_by(f, other_of(mul, c->out), "Add"), *erf = NULL, *scale = NULL;
    for (int i = 0; add && !erf && i < 2; i++)
        if (is_const(g, add->in[i], 1))
            erf = made_by(f, add->in[1 - i], "Erf");
    if (!erf)
        return false;
    if ((scale = made_by(f, erf->in[0], "Div")) && (scale->in[0] != c->out || !is_const(g, scale->in[1], sqrt(2))))
        return false;
    if (!scale &&
        ((scale = made_by(f, erf->in[0], "Mul")) == NULL || (scale->in[0] != c->out && scale->in[1] != c->out) ||
            !is_const(g, other_of(scale, c->out), sqrt(0.5))))
        return false;
    int32_t last = only_reader(f, mul->out[0]);
    const struct node *half = last >= 0 ? &g->nodes[last] : NULL;
    if (!half || !is_op(half, "Mul") || !is_const(g, other_of(half, mul->out[0]), 0.5) || half->out[0] >= f->n_probed ||
        !pass_same_shape(&f->probes, c->out, half->out[0]))
        return false;
    c->act = (struct activation){.kind = ACTIVATION_GELU};
    take(f, c, index_of(f, scale));
    take(f, c, index_of(f, erf));
    take(f, c, index_of(f, add));
    take(f, c, index_of(f, mul));
    take(f, c, last);
    return true;
}

/* The activation behind the chain: one node, or several that read its value and one another only. */
static void take_activation(const struct fuse *f, struct chain *c)
{
    int32_t next = f->reader[c->out];
    const struct node *n = next >= 0 ? &f->g->nodes[next] : NULL;
    if (!n || !n->op || n->n_out < 1)
        return;
    if (f->uses[c->out] == 1 && n->in[0] == c->out && activation_node(f->g, n, &c->act))
        take(f, c, next);
    else if (f->uses[c->out] == 2 && is_op(n, "Mul") && (n->in[0] == c->out || n->in[1] == c->out) &&
             !take_gated(f, c, n))
        take_gelu(f, c, n);
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
    if (producer > last_of(c) && is_op(&f->g->nodes[producer], "Conv") && f->uses[other] == 1)
        return;
    c->residual = other;
    take(f, c, add);
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
    take(f, c, add);
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
    struct node first = g->nodes[c->nodes[0]];
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
        err = activation_set(g, &fused, &c->act);
    if (err)
        return err;
    for (int i = 0; i < c->n - 1; i++)
        g->nodes[c->nodes[i]].op = NULL;
    g->nodes[last_of(c)] = fused;
    g->values[c->out].producer = last_of(c);
    for (int32_t k = 0; k < fused.n_in; k++) /* where their reader was one of these, it is the fused node now */
        for (int i = 0; ids[k] != YK_ABSENT && i < c->n; i++)
            if (f->reader[ids[k]] == c->nodes[i])
                f->reader[ids[k]] = last_of(c);
    return YK_OK;
}

static yk_err fuse_conv(struct fuse *f, int32_t index)
{
    struct chain c = {.bias = YK_ABSENT, .residual = YK_ABSENT, .nodes = {index}, .n = 1};
    c.out = f->g->nodes[index].out[0];
    if (c.out == YK_ABSENT || c.out >= f->n_probed || f->probes.n == 0 || f->probes.at[0].of[c.out].dtype != DT_F32)
        return YK_OK;
    take_residual(f, &c);
    take_activation(f, &c);
    return c.n == 1 ? YK_OK : build(f, &c, op_find("ai.yoke", "FusedConv"));
}

static yk_err fuse_gemm(struct fuse *f, int32_t index)
{
    struct node *n = &f->g->nodes[index];
    struct chain c = {.bias = YK_ABSENT, .residual = YK_ABSENT, .nodes = {index}, .n = 1};
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
    return c.n == 1 ? YK_OK : build(f, &c, op_find("ai.yoke", "FusedGemm"));
}

/* A FusedGemm that another pass made (over several axes) takes its activation too. */
static yk_err fuse_more(struct fuse *f, int32_t index)
{
    struct node *n = &f->g->nodes[index];
    struct chain c = {.bias = YK_ABSENT, .residual = YK_ABSENT, .nodes = {index}, .n = 1};
    c.out = n->out[0];
    if (c.out == YK_ABSENT || c.out >= f->n_probed || strcmp(node_attr_s(n, "activation", "none"), "none") != 0)
        return YK_OK;
    take_activation(f, &c);
    return c.n == 1 ? YK_OK : build(f, &c, n->op);
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
