/* Which weights are parameters, and which values lie between them and the loss. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grad_priv.h"

static bool is_op(const struct node *n, const char *name)
{
    return !n->op->domain[0] && strcmp(n->op->name, name) == 0;
}

/* A weight of one element that the op's definition makes a parameter. */
static bool has_role(const struct grad *r, const struct node *n, int k)
{
    static const char *const ops[] = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "BatchNormalization",
        "LayerNormalization", "InstanceNormalization", "PRelu"};
    for (size_t i = 0; i < YK_COUNT(ops); i++)
        if (is_op(n, ops[i]))
            return true;
    if (!is_op(n, "Add"))
        return false;
    int32_t maker = n->in[1 - k] == YK_ABSENT ? -1 : r->fwd->values[n->in[1 - k]].producer;
    return maker >= 0 && is_op(&r->fwd->nodes[maker], "MatMul");
}

static bool is_frozen(const struct grad_options *o, const char *name)
{
    for (int i = 0; i < o->n_freeze; i++)
        if (fnmatch(o->freeze[i], name, 0) == 0)
            return true;
    return false;
}

void grad_find_params(const struct grad *r, uint8_t *params)
{
    for (int32_t i = 0; i < r->fwd->n_nodes; i++) {
        const struct node *n = &r->fwd->nodes[i];
        const struct grad_rule *rule = grad_rule_of(n->op);
        for (int k = 0; rule && rule->run && k < n->n_in; k++) {
            const struct value *v = n->in[k] == YK_ABSENT ? NULL : &r->fwd->values[n->in[k]];
            if (!v || v->kind != VALUE_WEIGHT || v->constant || !grad_rule_takes(rule, k) || v->shape.rank < 1 ||
                (v->dtype != DT_F32 && v->dtype != DT_F64))
                continue;
            if (shape_count(&v->shape) > 1 || (shape_count(&v->shape) == 1 && has_role(r, n, k)))
                params[n->in[k]] = is_frozen(r->o, v->name) ? 2 : 1;
        }
    }
}

yk_err grad_check_freeze(const struct grad *r, const uint8_t *params)
{
    for (int k = 0; k < r->o->n_freeze; k++) {
        const char *first = NULL;
        bool hit = false;
        for (int32_t v = 0; v < r->fwd->n_values && !hit; v++) {
            first = !first && params[v] ? r->fwd->values[v].name : first;
            hit = r->fwd->values[v].kind == VALUE_WEIGHT && fnmatch(r->o->freeze[k], r->fwd->values[v].name, 0) == 0;
        }
        if (!hit && first)
            return yk_fail(r->why, YK_INVAL, "freeze: no parameter is called '%s'; there are '%s' and others",
                r->o->freeze[k], first);
    }
    return YK_OK;
}

/* ---- ways ---- */

struct ways {
    struct grad *r;
    uint8_t *depends; /* by value: on a trained weight, through derivatives or ops that lack a rule */
    uint8_t *any;     /* by value: on a trained weight in whatever way */
    uint8_t *reaches; /* by value: the loss, likewise as depends */
    bool found;
};

static bool is_float(const struct ways *w, int32_t value)
{
    return value != YK_ABSENT && dtype_is_float(grad_type(w->r, value));
}

static void look_depends(void *arg, int32_t value)
{
    struct ways *w = arg;
    w->found = w->found || (w->depends[value] && is_float(w, value));
}

static void look_any(void *arg, int32_t value)
{
    struct ways *w = arg;
    w->found = w->found || w->any[value];
}

static void mark_reaches(void *arg, int32_t value)
{
    struct ways *w = arg;
    if (is_float(w, value))
        w->reaches[value] = 1;
}

static void go_forward(struct ways *w, const struct node *n)
{
    const struct grad_rule *rule = grad_rule_of(n->op);
    w->found = false;
    node_each_use(n, look_any, w);
    for (int k = 0; w->found && k < n->n_out; k++)
        if (n->out[k] != YK_ABSENT)
            w->any[n->out[k]] = 1;
    if (rule && !rule->run)
        return;
    w->found = false;
    if (!rule)
        node_each_use(n, look_depends, w);
    for (int k = 0; rule && k < n->n_in; k++)
        if (n->in[k] != YK_ABSENT && grad_rule_takes(rule, k))
            look_depends(w, n->in[k]);
    for (int k = 0; w->found && k < n->n_out; k++)
        if (is_float(w, n->out[k]) && (!rule || grad_rule_gives(rule, k)))
            w->depends[n->out[k]] = 1;
}

/* Whether a gradient that arrives at an output of n goes on to its inputs. */
static bool carries(const struct ways *w, const struct node *n)
{
    const struct grad_rule *rule = grad_rule_of(n->op);
    bool reached = false;
    for (int k = 0; k < n->n_out; k++)
        reached = reached || (n->out[k] != YK_ABSENT && w->reaches[n->out[k]] && (!rule || grad_rule_gives(rule, k)));
    return reached;
}

static void go_back(struct ways *w, const struct node *n)
{
    const struct grad_rule *rule = grad_rule_of(n->op);
    if ((rule && !rule->run) || !carries(w, n))
        return;
    if (!rule)
        node_each_use(n, mark_reaches, w);
    for (int k = 0; rule && k < n->n_in; k++)
        if (n->in[k] != YK_ABSENT && grad_rule_takes(rule, k))
            mark_reaches(w, n->in[k]);
}

/* Where what comes from a parameter last was a float, on the way to node i. */
static int32_t last_float(const struct ways *w, int32_t i)
{
    const struct graph *g = w->r->fwd;
    for (int32_t k = 0; k < g->nodes[i].n_in; k++) {
        int32_t v = g->nodes[i].in[k];
        if (v != YK_ABSENT && w->any[v] && !is_float(w, v) && g->values[v].producer >= 0) {
            i = g->values[v].producer;
            k = -1;
        }
    }
    return i;
}

/* The node next to the loss where the way to the parameters ends. */
static yk_err no_path(struct ways *w, int32_t scores, bool any_param, bool frozen)
{
    const struct graph *g = w->r->fwd;
    const char *output = g->values[scores].name;
    if (!any_param)
        return yk_fail(w->r->why, YK_INVAL,
            frozen ? "every parameter is frozen: there is nothing to train"
                   : "the model has no parameters: no float weight of it is used in a differentiable way");
    for (int32_t i = g->n_nodes - 1; i >= 0; i--) {
        const struct node *n = &g->nodes[i];
        w->found = false;
        node_each_use(n, look_any, w);
        bool reached = false;
        for (int k = 0; k < n->n_out; k++)
            reached = reached || (n->out[k] != YK_ABSENT && w->reaches[n->out[k]]);
        if (!w->found || !reached)
            continue;
        bool goes_on = false; /* a needed input further up is where the way is cut */
        const struct grad_rule *rule = grad_rule_of(n->op);
        for (int k = 0; rule && rule->run && k < n->n_in; k++)
            goes_on = goes_on ||
                      (n->in[k] != YK_ABSENT && grad_rule_takes(rule, k) && w->any[n->in[k]] && w->reaches[n->in[k]]);
        if (goes_on)
            continue;
        i = last_float(w, i);
        n = &g->nodes[i];
        return yk_fail(w->r->why, YK_INVAL,
            "no differentiable path leads from a parameter to output '%s': node %d '%s' (%s) cuts it", output, i,
            n->name, n->op->name);
    }
    return yk_fail(w->r->why, YK_INVAL, "output '%s' does not depend on any parameter that is not frozen", output);
}

/* Every node on the way whose op has no rule. */
static yk_err list_unsupported(struct ways *w)
{
    const struct graph *g = w->r->fwd;
    char list[800] = "";
    size_t at = 0;
    int n_bad = 0, left = 0;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = &g->nodes[i];
        if (grad_rule_of(n->op))
            continue;
        w->found = false;
        node_each_use(n, look_depends, w);
        if (!w->found || !carries(w, n))
            continue;
        n_bad++;
        char one[160];
        int len = snprintf(one, sizeof one, "%snode %d '%.60s' (%s)", n_bad > 1 ? ", " : "", i, n->name, n->op->name);
        if (left > 0 || at + (size_t)len + 40 > sizeof list) {
            left++;
            continue;
        }
        memcpy(list + at, one, (size_t)len + 1);
        at += (size_t)len;
    }
    if (left > 0)
        snprintf(list + at, sizeof list - at, " and %d more", left);
    if (n_bad == 0)
        return YK_OK;
    return yk_fail(w->r->why, YK_UNSUPPORTED, "training has no gradient for %s; freeze the parameters before %s", list,
        n_bad > 1 ? "them" : "it");
}

/* The node that ends the way of a weight to the loss, or -1: it leads elsewhere. */
static int32_t find_cut(struct ways *w, int32_t weight)
{
    const struct graph *g = w->r->fwd;
    memset(w->any, 0, (size_t)g->n_values);
    w->any[weight] = 1;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = &g->nodes[i];
        const struct grad_rule *rule = grad_rule_of(n->op);
        bool goes_on = false, reaches = false;
        w->found = false;
        node_each_use(n, look_any, w);
        if (!w->found)
            continue;
        for (int k = 0; rule && rule->run && k < n->n_in; k++)
            goes_on = goes_on || (n->in[k] != YK_ABSENT && grad_rule_takes(rule, k) && w->any[n->in[k]]);
        for (int k = 0; k < n->n_out; k++) {
            reaches = reaches || (n->out[k] != YK_ABSENT && w->reaches[n->out[k]]);
            if (n->out[k] != YK_ABSENT && goes_on)
                w->any[n->out[k]] = 1;
        }
        if (!goes_on && reaches)
            return i;
    }
    return -1;
}

/* Parameters that the loss does not learn from. */
static void warn(struct ways *w, const uint8_t *params)
{
    const struct graph *g = w->r->fwd;
    int32_t first = -1, more = -1;
    char text[400], cut[160] = "";
    for (int32_t v = 0; v < g->n_values; v++)
        if (params[v] == 1 && !w->r->needs[v]) {
            first = first < 0 ? v : first;
            more++;
        }
    if (first < 0)
        return;
    int32_t i = find_cut(w, first);
    if (i >= 0)
        snprintf(cut, sizeof cut, ": node %d '%.60s' (%s) cuts it", (int)i, g->nodes[i].name, g->nodes[i].op->name);
    snprintf(text, sizeof text,
        "no differentiable path leads from parameter '%.100s'%s to the loss%s; it stays as it is",
        g->values[first].name, more > 0 ? " (and others)" : "", cut);
    w->r->warning = yk_arena_strdup(w->r->g->arena, text);
}

yk_err grad_find_paths(struct grad *r, int32_t scores, const uint8_t *params)
{
    const struct graph *g = r->fwd;
    size_t n = (size_t)g->n_values;
    struct ways w = {.r = r, .depends = yk_try_alloc(n, 1), .any = yk_try_alloc(n, 1), .reaches = yk_try_alloc(n, 1)};
    bool any_param = false, frozen = false;
    yk_err err = YK_OK;
    if (!w.depends || !w.any || !w.reaches) {
        err = yk_fail(r->why, YK_NOMEM, "no memory for the training graph");
        goto out;
    }
    for (int32_t v = 0; v < g->n_values; v++) {
        w.depends[v] = w.any[v] = params[v] == 1;
        any_param = any_param || params[v] == 1;
        frozen = frozen || params[v] == 2;
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        go_forward(&w, &g->nodes[i]);
    w.reaches[scores] = 1;
    for (int32_t i = g->n_nodes - 1; i >= 0; i--)
        go_back(&w, &g->nodes[i]);
    if (!w.depends[scores])
        err = no_path(&w, scores, any_param, frozen);
    else
        err = list_unsupported(&w);
    for (int32_t v = 0; v < g->n_values && !err; v++)
        r->needs[v] = w.depends[v] && w.reaches[v];
    if (!err)
        warn(&w, params);
out:
    free(w.depends);
    free(w.any);
    free(w.reaches);
    return err;
}
