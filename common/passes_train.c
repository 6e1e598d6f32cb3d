/* The graph that training starts from, and the way back to inference. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/passes_rewrite.h"

static bool is_op(const struct node *n, const char *name)
{
    return n->op && !n->op->domain[0] && strcmp(n->op->name, name) == 0;
}

/* ---- activations that exporters write out: one node keeps one value for its gradient, not five ---- */

struct match {
    struct graph *g;
    const int32_t *uses;
    int32_t covered[8];
    int n;
};

/* The node that makes a value that has no other reader, if it is this op; noted as covered. */
static const struct node *made_by(struct match *m, int32_t value, const char *op)
{
    int32_t at = value == YK_ABSENT || m->uses[value] != 1 ? -1 : m->g->values[value].producer;
    if (at < 0 || !is_op(&m->g->nodes[at], op))
        return NULL;
    m->covered[m->n++] = at;
    return &m->g->nodes[at];
}

/* A rank 0 or one-element constant with about this value. */
static bool is_number(const struct graph *g, int32_t value, double want)
{
    double have = 0;
    if (!pass_is_const(g, value) || shape_count(&g->values[value].shape) != 1)
        return false;
    if (g->values[value].dtype == DT_F64)
        memcpy(&have, g->values[value].data, sizeof have);
    else if (g->values[value].dtype == DT_F32)
        have = (double)pass_f32(g->values[value].data, 0);
    return fabs(have - want) <= 1e-6 * fabs(want) && g->values[value].shape.rank == 0;
}

/* The operand beside such a constant, YK_ABSENT if there is none. */
static int32_t beside(const struct graph *g, const struct node *n, double want)
{
    for (int i = 0; n && i < 2; i++)
        if (is_number(g, n->in[i], want))
            return n->in[1 - i];
    return YK_ABSENT;
}

/* x * Sigmoid(x) */
static int32_t match_silu(struct match *m, const struct node *mul)
{
    for (int i = 0; i < 2; i++) {
        m->n = 0;
        const struct node *s = made_by(m, mul->in[i], "Sigmoid");
        if (s && s->in[0] == mul->in[1 - i])
            return s->in[0];
    }
    return YK_ABSENT;
}

/* 1 + Erf(x / sqrt 2) */
static int32_t match_erf(struct match *m, int32_t value)
{
    const struct graph *g = m->g;
    const struct node *add = made_by(m, value, "Add"), *erf = made_by(m, beside(g, add, 1), "Erf"), *n;
    if (!erf)
        return YK_ABSENT;
    if ((n = made_by(m, erf->in[0], "Div")))
        return is_number(g, n->in[1], sqrt(2)) ? n->in[0] : YK_ABSENT;
    return beside(g, made_by(m, erf->in[0], "Mul"), sqrt(0.5));
}

/* (x * (1 + Erf(x / sqrt 2))) * 0.5, or (x * 0.5) * (1 + Erf(x / sqrt 2)) */
static int32_t match_gelu(struct match *m, const struct node *last)
{
    const struct graph *g = m->g;
    m->n = 0;
    const struct node *mul = made_by(m, beside(g, last, 0.5), "Mul");
    for (int i = 0; mul && i < 2; i++) {
        m->n = 1;
        int32_t x = match_erf(m, mul->in[i]);
        if (x != YK_ABSENT && x == mul->in[1 - i])
            return x;
    }
    for (int i = 0; i < 2; i++) {
        m->n = 0;
        int32_t x = beside(g, made_by(m, last->in[i], "Mul"), 0.5);
        if (x != YK_ABSENT && match_erf(m, last->in[1 - i]) == x)
            return x;
    }
    return YK_ABSENT;
}

static yk_err put_together(struct graph *g, struct yk_diag *why)
{
    yk_err err = graph_sort(g, why);
    struct match m = {.g = g, .uses = err ? NULL : pass_uses(g)};
    if (!err && !m.uses)
        err = yk_fail(why, YK_NOMEM, "no memory to fuse");
    for (int32_t i = 0; i < g->n_nodes && !err; i++) {
        struct node *n = &g->nodes[i];
        if (!is_op(n, "Mul"))
            continue;
        bool gelu = false;
        int32_t x = match_silu(&m, n);
        if (x == YK_ABSENT) {
            x = match_gelu(&m, n);
            gelu = true;
        }
        if (x == YK_ABSENT)
            continue;
        n->op = op_find("ai.yoke", gelu ? "Gelu" : "Silu");
        n->in[0] = x;
        n->n_in = 1;
        for (int k = 0; k < m.n; k++)
            g->nodes[m.covered[k]].op = NULL;
    }
    free((void *)(uintptr_t)m.uses);
    return err ? err : pass_compact(g, why);
}

yk_err passes_train(struct graph *g, passes_eval eval, void *arg, struct yk_diag *why)
{
    yk_err err = pass_fold_and_inline(g, true, eval, arg, why);
    if (!err)
        err = pass_fuse_layernorm(g, why);
    if (!err)
        err = put_together(g, why);
    return err ? err : pass_compact(g, why);
}

/* Outputs that only training gives must not be read. */
static yk_err drop_outputs(struct graph *g, int32_t index, const int32_t *uses, struct yk_diag *why)
{
    struct node *n = &g->nodes[index];
    for (int32_t k = 1; k < n->n_out; k++)
        if (n->out[k] != YK_ABSENT && uses[n->out[k]] > 0)
            return yk_fail(why, YK_UNSUPPORTED, "node %d '%s' (%s): output '%s', which only training gives, is read",
                index, n->name, n->op->name, g->values[n->out[k]].name);
    n->n_out = 1;
    return YK_OK;
}

yk_err passes_eval_mode(struct graph *g, struct yk_diag *why)
{
    int32_t *uses = pass_uses(g);
    yk_err err = uses ? YK_OK : yk_fail(why, YK_NOMEM, "no memory to change the mode");
    for (int32_t i = 0; i < g->n_nodes && !err; i++) {
        struct node *n = &g->nodes[i];
        if (is_op(n, "BatchNormalization") && node_attr_i(n, "training_mode", 0)) {
            err = drop_outputs(g, i, uses, why);
            if (!err && graph_set_attr_i(g, n, "training_mode", 0))
                err = yk_fail(why, YK_NOMEM, "no memory to change the mode");
        } else if (is_op(n, "Dropout") && n->n_in > 2) {
            n->n_in = 2; /* the mask is all ones then, as it is without training */
        }
    }
    free(uses);
    return err ? err : pass_compact(g, why);
}
