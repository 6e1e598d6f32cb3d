/* Batch normalisation in its inference form is a scale and a shift per channel: behind a Conv or Gemm it goes into
 * their weights and bias, in double, rounded once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/passes_rewrite.h"

static bool const_floats(const struct graph *g, int32_t value, int64_t n)
{
    return pass_is_const(g, value) && g->values[value].dtype == DT_F32 && shape_count(&g->values[value].shape) == n;
}

yk_err pass_affine_batchnorm(const struct graph *g, const struct node *bn, struct pass_affine *out, bool *found)
{
    int64_t n = bn->in[1] == YK_ABSENT ? -1 : shape_count(&g->values[bn->in[1]].shape);
    float epsilon = node_attr_f(bn, "epsilon", 1e-5f);
    *found = n > 0;
    for (int k = 1; k < 5; k++)
        *found = *found && const_floats(g, bn->in[k], n);
    if (!*found)
        return YK_OK;
    out->scale = yk_try_alloc((size_t)n * 2, sizeof(double));
    if (!out->scale)
        return YK_NOMEM;
    out->shift = out->scale + n;
    out->n = n;
    const void *gamma = g->values[bn->in[1]].data, *beta = g->values[bn->in[2]].data;
    const void *mean = g->values[bn->in[3]].data, *var = g->values[bn->in[4]].data;
    for (int64_t i = 0; i < n; i++) {
        out->scale[i] = (double)pass_f32(gamma, i) / sqrt((double)pass_f32(var, i) + (double)epsilon);
        out->shift[i] = (double)pass_f32(beta, i) - (double)pass_f32(mean, i) * out->scale[i];
    }
    return YK_OK;
}

/* The contraction's bias, one element per channel, or absent. */
static bool bias_ok(const struct graph *g, const struct node *n, int64_t channels)
{
    if (n->n_in < 3 || n->in[2] == YK_ABSENT)
        return true;
    const struct shape *s = &g->values[n->in[2]].shape;
    return const_floats(g, n->in[2], channels) && s->dims[s->rank - 1] == channels;
}

/* Scales channel c of the weight: element e belongs to channel (e / inner) % channels. */
static yk_err scaled(
    struct graph *g, struct node *n, const struct pass_affine *a, int64_t inner, double alpha, double beta)
{
    const struct value *w = &g->values[n->in[1]];
    const void *from = w->data;
    struct shape shape = w->shape, bias_shape = {.dtype = DT_F32, .rank = 1, .dims = {a->n}};
    bool has_bias = n->n_in > 2 && n->in[2] != YK_ABSENT;
    const void *old_bias = has_bias ? g->values[n->in[2]].data : NULL;
    void *to, *bias;
    int32_t weight = pass_new_weight(g, w->name, &shape, &to);
    int32_t bias_id =
        weight == YK_ABSENT
            ? YK_ABSENT
            : pass_new_weight(g, has_bias ? g->values[n->in[2]].name : g->values[n->out[0]].name, &bias_shape, &bias);
    int32_t *in = yk_arena_alloc(g->arena, 3, sizeof *in);
    if (bias_id == YK_ABSENT || !in)
        return YK_NOMEM;
    int64_t count = shape_count(&shape);
    for (int64_t e = 0; e < count; e++)
        ((float *)to)[e] = (float)((double)pass_f32(from, e) * alpha * a->scale[e / inner % a->n]);
    for (int64_t c = 0; c < a->n; c++) {
        double b = old_bias ? (double)pass_f32(old_bias, c) * beta : 0;
        ((float *)bias)[c] = (float)(b * a->scale[c] + a->shift[c]);
    }
    in[0] = n->in[0];
    in[1] = weight;
    in[2] = bias_id;
    n->in = in;
    n->n_in = 3;
    return YK_OK;
}

yk_err pass_affine_fold(struct graph *g, struct node *n, const struct pass_affine *a, bool *folded)
{
    const struct value *w = n->n_in > 1 && n->in[1] != YK_ABSENT ? &g->values[n->in[1]] : NULL;
    bool conv = strcmp(n->op->name, "Conv") == 0, gemm = strcmp(n->op->name, "Gemm") == 0;
    bool deconv = strcmp(n->op->name, "ConvTranspose") == 0 && node_attr_i(n, "group", 1) == 1;
    *folded = false;
    if (!w || !(conv || deconv || gemm) || !pass_is_const(g, n->in[1]) || w->dtype != DT_F32 || !bias_ok(g, n, a->n))
        return YK_OK;
    bool trans = node_attr_i(n, "transB", 0) != 0;
    if (gemm ? w->shape.rank != 2 : w->shape.rank < 3)
        return YK_OK;
    if (w->shape.dims[conv || (gemm && trans) ? 0 : 1] != a->n)
        return YK_OK;
    int64_t inner = 1; /* elements of the weights behind the axis of the channels */
    for (int d = conv || (gemm && trans) ? 1 : 2; d < w->shape.rank; d++)
        inner *= w->shape.dims[d];
    double alpha = gemm ? (double)node_attr_f(n, "alpha", 1) : 1, beta = gemm ? (double)node_attr_f(n, "beta", 1) : 1;
    if (inner < 1)
        return YK_OK;
    yk_err err = scaled(g, n, a, inner, alpha, beta);
    if (!err && alpha != 1)
        err = graph_set_attr_f(g, n, "alpha", 1);
    if (!err && beta != 1)
        err = graph_set_attr_f(g, n, "beta", 1);
    *folded = !err;
    return err;
}

yk_err passes_fold_batchnorm(struct graph *g, struct yk_diag *why)
{
    yk_err err = graph_sort(g, why);
    if (err)
        return err;
    int32_t *uses = pass_uses(g);
    if (!uses)
        return yk_fail(why, YK_NOMEM, "no memory to fold");
    for (int32_t i = 0; !err && i < g->n_nodes; i++) {
        struct node *bn = &g->nodes[i];
        struct pass_affine a = {0};
        bool found = false, folded = false;
        if (strcmp(bn->op->name, "BatchNormalization") != 0 || bn->op->domain[0] || bn->n_in != 5 || bn->n_out != 1 ||
            node_attr_i(bn, "training_mode", 0) || bn->in[0] == YK_ABSENT)
            continue;
        int32_t x = bn->in[0], producer = g->values[x].producer;
        if (producer < 0 || !g->nodes[producer].op || uses[x] != 1 || g->nodes[producer].op->domain[0])
            continue;
        err = pass_affine_batchnorm(g, bn, &a, &found);
        if (!err && found)
            err = pass_affine_fold(g, &g->nodes[producer], &a, &folded);
        free(a.scale);
        if (!folded)
            continue;
        g->nodes[producer].out[0] = bn->out[0];
        g->values[bn->out[0]].producer = producer;
        bn->op = NULL;
    }
    free(uses);
    return err ? yk_fail(why, err, "no memory to fold batch normalisation") : pass_compact(g, why);
}
