/* Shape arithmetic that is the same for every size becomes constant; the rest moves into Reshape's own notation
 * (0 copies a size, -1 takes what is left), so that exporters' Shape, Gather and Concat chains fall away. */
#include <stdlib.h>
#include <string.h>

#include "common/passes_rewrite.h"

static yk_err make_ints(struct graph *g, int32_t value, const struct shape *shape, const int64_t *v)
{
    void *data = graph_alloc_data(g, shape_bytes(shape));
    if (!data)
        return YK_NOMEM;
    for (int64_t i = 0; i < shape_count(shape); i++)
        pass_write_int(shape->dtype, data, i, v[i]);
    struct shape copy = *shape;
    pass_make_const(g, value, &copy, data);
    return YK_OK;
}

/* A target of Reshape by element and probe, written with 0 and -1 where sizes vary. False if it cannot be. */
static bool write_target(const struct pass_probes *p, int32_t input, int n, int64_t (*v)[YK_MAX_RANK], int64_t *out)
{
    int varying = 0, left = -1, first_varying = -1;
    bool has_rest = false, has_zero = false;
    for (int i = 0; i < n; i++) {
        bool varies = false;
        for (int k = 1; k < p->n; k++)
            varies = varies || v[k][i] != v[0][i];
        out[i] = v[0][i];
        has_rest = has_rest || (!varies && out[i] == -1);
        has_zero = has_zero || (!varies && out[i] == 0);
        if (!varies)
            continue;
        if (varying++ == 0)
            first_varying = i;
    }
    if (varying == 1 && !has_rest && !has_zero) {
        out[first_varying] = -1;
        return true;
    }
    for (int i = 0; i < n; i++) {
        bool varies = false, copies = true;
        for (int k = 0; k < p->n; k++) {
            const struct shape *s = &p->at[k].of[input];
            varies = varies || v[k][i] != v[0][i];
            copies = copies && i < s->rank && s->dims[i] == v[k][i];
        }
        if (!varies)
            continue;
        if (copies) {
            out[i] = 0;
        } else {
            if (left >= 0 || has_rest)
                return false;
            left = i;
            out[i] = -1;
        }
    }
    return varying > 0;
}

static bool is_op(const struct node *n, const char *name)
{
    return n->op && strcmp(n->op->name, name) == 0;
}

/* Targets of a Reshape's shape input by probe; false if they are not known or vary in number. */
static bool read_targets(const struct pass_probes *p, int32_t value, int *n, int64_t (*v)[YK_MAX_RANK])
{
    for (int k = 0; k < p->n; k++) {
        const struct shape *s = &p->at[k].of[value];
        int64_t count = shape_count(s);
        if (!p->at[k].content[value] || count > YK_MAX_RANK || (k > 0 && count != *n))
            return false;
        *n = (int)count;
        memcpy(v[k], p->at[k].content[value], (size_t)count * sizeof(int64_t));
    }
    return p->n > 0;
}

static yk_err set_target(struct graph *g, struct node *reshape, const int64_t *v, int n)
{
    int32_t id = pass_new_ints(g, g->values[reshape->out[0]].name, v, n);
    if (id == YK_ABSENT)
        return YK_NOMEM;
    reshape->in[1] = id;
    return YK_OK;
}

/* Reshape to rows, Gemm, Reshape back: the Gemm takes all axes, and the first Reshape makes them. For graphs where
 * both leading axes vary: then only this form has a constant target. */
static yk_err gemm_over_axes(
    struct graph *g, const struct pass_probes *p, const int32_t *uses, struct node *back, bool *changed)
{
    int32_t gemm_index = g->values[back->in[0]].producer;
    struct node *gemm = gemm_index >= 0 ? &g->nodes[gemm_index] : NULL;
    if (!gemm || !is_op(gemm, "Gemm") || uses[back->in[0]] != 1 || node_attr_i(gemm, "transA", 0) ||
        gemm->in[0] == YK_ABSENT)
        return YK_OK;
    int32_t rows = gemm->in[0];
    struct node *to_rows = g->values[rows].producer >= 0 ? &g->nodes[g->values[rows].producer] : NULL;
    if (!to_rows || !is_op(to_rows, "Reshape") || uses[rows] != 1 || node_attr_i(to_rows, "allowzero", 0))
        return YK_OK;
    if (gemm->n_in > 2 && gemm->in[2] != YK_ABSENT && p->at[0].of[gemm->in[2]].rank > 1)
        return YK_OK;
    int64_t v[PASS_PROBES][YK_MAX_RANK], target[YK_MAX_RANK];
    int rank = p->at[0].of[back->out[0]].rank;
    for (int k = 0; k < p->n; k++) {
        const struct shape *out = &p->at[k].of[back->out[0]], *made = &p->at[k].of[back->in[0]];
        if (out->rank != rank || rank < 2 || out->dims[rank - 1] != made->dims[1])
            return YK_OK;
        if (shape_count(out) == 0) /* a target says 0 for something else */
            return YK_OK;
        memcpy(v[k], out->dims, sizeof v[k]);
        v[k][rank - 1] = p->at[k].of[rows].dims[1];
    }
    const struct op *fused = op_find("ai.yoke", "FusedGemm");
    if (!fused || !write_target(p, to_rows->in[0], rank, v, target))
        return YK_OK;
    yk_err err = set_target(g, to_rows, target, rank);
    if (err)
        return err;
    gemm->op = fused;
    gemm->out[0] = back->out[0];
    g->values[back->out[0]].producer = gemm_index;
    back->op = NULL;
    *changed = true;
    return YK_OK;
}

yk_err pass_fold_shapes(struct graph *g, bool *changed, struct yk_diag *why)
{
    struct pass_probes p;
    yk_err err = pass_probes_open(g, &p, why);
    int32_t n_values = g->n_values;
    if (err)
        return err;
    int32_t *uses = pass_uses(g);
    uint8_t *outputs = pass_outputs(g);
    if (!uses || !outputs)
        err = YK_NOMEM;
    for (int32_t i = 0; !err && i < n_values; i++) {
        const int64_t *v =
            g->values[i].kind == VALUE_NODE && g->values[i].producer >= 0 ? pass_same_content(&p, i) : NULL;
        if (!v || outputs[i] || g->nodes[g->values[i].producer].op->flags & OP_RANDOM)
            continue;
        err = make_ints(g, i, &p.at[0].of[i], v);
        *changed = true;
    }
    for (int32_t i = 0; !err && i < g->n_nodes && p.n > 0; i++) {
        struct node *n = &g->nodes[i];
        int64_t v[PASS_PROBES][YK_MAX_RANK], target[YK_MAX_RANK];
        int count = 0;
        if (!n->op || !is_op(n, "Reshape") || n->in[1] >= n_values || pass_is_const(g, n->in[1]) ||
            node_attr_i(n, "allowzero", 0) || !read_targets(&p, n->in[1], &count, v))
            continue;
        if (write_target(&p, n->in[0], count, v, target)) {
            err = set_target(g, n, target, count);
            *changed = true;
        } else {
            err = gemm_over_axes(g, &p, uses, n, changed);
        }
    }
    free(uses);
    free(outputs);
    pass_probes_close(&p);
    if (err)
        return yk_fail(why, err, "no memory to fold shapes");
    return pass_compact(g, why);
}
