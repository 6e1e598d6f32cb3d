/* Pre-activation: BatchNormalization and Relu, often of a Concat, in front of a pointwise convolution go into it, where
 * nobody else reads the values between. A kernel then reads each input once and makes no copy that outlives a tile. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/activation.h"
#include "common/passes_rewrite.h"

struct preact {
    struct graph *g;
    int32_t *uses;
};

static bool is_op(const struct node *n, const char *domain, const char *name)
{
    return n->op && strcmp(n->op->domain, domain) == 0 && strcmp(n->op->name, name) == 0;
}

/* The node that makes v for one reader alone, NULL if it is another op or has more outputs. */
static struct node *sole(const struct preact *p, int32_t v, const char *name)
{
    int32_t producer = v == YK_ABSENT ? -1 : p->g->values[v].producer;
    struct node *n = producer < 0 ? NULL : &p->g->nodes[producer];
    return n && is_op(n, "", name) && n->n_out == 1 && p->uses[v] == 1 ? n : NULL;
}

static bool const_floats(const struct graph *g, int32_t v, int64_t n)
{
    return pass_is_const(g, v) && g->values[v].dtype == DT_F32 && shape_count(&g->values[v].shape) == n;
}

static bool all_are(const struct node *n, const char *name, int64_t want)
{
    const struct attr *a = node_attr_ints(n, name);
    for (size_t i = 0; a && i < a->n; i++)
        if (a->ints[i] != want)
            return false;
    return true;
}

/* Kernel 1, stride 1, no padding, one group, constant weights. *channels: of the input. */
static bool pointwise(const struct graph *g, const struct node *n, int64_t *channels)
{
    if (!is_op(n, "", "Conv") && !is_op(n, "ai.yoke", "FusedConv"))
        return false;
    if (n->n_in > 3 || n->in[0] == YK_ABSENT || !pass_is_const(g, n->in[1]) || g->values[n->in[1]].dtype != DT_F32)
        return false;
    const struct shape *w = &g->values[n->in[1]].shape;
    if (w->rank < 3 || w->rank > 5 || node_attr_i(n, "group", 1) != 1 || !all_are(n, "strides", 1) ||
        !all_are(n, "pads", 0))
        return false;
    for (int d = 2; d < w->rank; d++)
        if (w->dims[d] != 1)
            return false;
    *channels = w->dims[1];
    return n->n_in < 3 || n->in[2] == YK_ABSENT || const_floats(g, n->in[2], w->dims[0]);
}

static bool inference(const struct graph *g, const struct node *bn, int64_t channels)
{
    bool good = bn && bn->n_in == 5 && !node_attr_i(bn, "training_mode", 0);
    for (int k = 1; good && k < 5; k++)
        good = const_floats(g, bn->in[k], channels);
    return good;
}

/* What the normalisation does to a channel, in double, rounded once. */
static yk_err add_affine(struct graph *g, const struct node *bn, int64_t channels, int32_t *scale, int32_t *shift)
{
    struct shape shape = {.dtype = DT_F32, .rank = 1, .dims = {channels}};
    double epsilon = (double)node_attr_f(bn, "epsilon", 1e-5f);
    void *a, *b;
    *scale = pass_new_weight(g, g->values[bn->in[1]].name, &shape, &a);
    *shift = *scale == YK_ABSENT ? YK_ABSENT : pass_new_weight(g, g->values[bn->in[2]].name, &shape, &b);
    if (*shift == YK_ABSENT)
        return YK_NOMEM;
    for (int64_t i = 0; i < channels; i++) {
        const struct value *v = g->values;
        double f = (double)pass_f32(v[bn->in[1]].data, i) / sqrt((double)pass_f32(v[bn->in[4]].data, i) + epsilon);
        ((float *)a)[i] = (float)f;
        ((float *)b)[i] = (float)((double)pass_f32(v[bn->in[2]].data, i) - (double)pass_f32(v[bn->in[3]].data, i) * f);
    }
    return YK_OK;
}

static yk_err zero_bias(struct graph *g, const struct node *conv, int32_t *bias)
{
    const struct value *w = &g->values[conv->in[1]];
    struct shape shape = {.dtype = DT_F32, .rank = 1, .dims = {w->shape.dims[0]}};
    void *data;
    *bias = conv->n_in > 2 ? conv->in[2] : YK_ABSENT;
    if (*bias == YK_ABSENT)
        *bias = pass_new_weight(g, w->name, &shape, &data);
    return *bias == YK_ABSENT ? YK_NOMEM : YK_OK;
}

static yk_err fuse(const struct preact *p, int32_t index)
{
    struct graph *g = p->g;
    struct node *conv = &g->nodes[index];
    int64_t channels = 0;
    if (!pointwise(g, conv, &channels))
        return YK_OK;
    struct node *relu = sole(p, conv->in[0], "Relu");
    struct node *bn = relu ? sole(p, relu->in[0], "BatchNormalization") : NULL;
    if (!inference(g, bn, channels))
        return YK_OK;
    int64_t rank = g->values[conv->in[1]].shape.rank;
    struct node *concat = sole(p, bn->in[0], "Concat");
    int64_t axis = concat ? node_attr_i(concat, "axis", 0) : 0;
    if (concat && ((axis < 0 ? axis + rank : axis) != 1 || concat->n_in + 4 > OP_MAX_IN || concat->n_in < 1))
        concat = NULL;
    int32_t n = concat ? concat->n_in : 1;
    const int32_t *x = concat ? concat->in : bn->in;
    int32_t *ids = yk_arena_alloc(g->arena, (size_t)n + 5, sizeof *ids);
    if (!ids)
        return YK_NOMEM;
    struct node fused = {.name = conv->name, .op = op_find("ai.yoke", "PreactConv"), .n_in = n + 4, .n_out = 1};
    fused.in = ids;
    fused.out = ids + n + 4;
    ids[0] = x[0];
    ids[1] = conv->in[1];
    ids[n + 4] = conv->out[0];
    for (int32_t i = 1; i < n; i++)
        ids[4 + i] = x[i];
    struct activation act = activation_of(conv);
    yk_err err = activation_set(g, &fused, &act);
    if (err || (err = zero_bias(g, conv, &ids[2])) || (err = add_affine(g, bn, channels, &ids[3], &ids[4])))
        return err;
    relu->op = bn->op = NULL;
    if (concat)
        concat->op = NULL;
    *conv = fused;
    return YK_OK;
}

yk_err pass_fuse_preact(struct graph *g, struct yk_diag *why)
{
    struct preact p = {g, NULL};
    yk_err err = graph_sort(g, why);
    if (err)
        return err;
    p.uses = pass_uses(g);
    err = p.uses ? YK_OK : YK_NOMEM;
    for (int32_t i = 0; !err && i < g->n_nodes; i++)
        if (g->nodes[i].op)
            err = fuse(&p, i);
    free(p.uses);
    return err ? yk_fail(why, err, "no memory to fuse") : pass_compact(g, why);
}
