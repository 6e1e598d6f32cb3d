/* Subgraphs: an If whose condition is the same at every size gives way to its branch, and large weights of subgraphs
 * move to the outermost graph, where they have an address of their own and are captured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/passes_rewrite.h"

/* ---- large weights ---- */

#define HOIST_BYTES 64 /* smaller ones stay: an export writes them inline anyway */

static yk_err hoist_from(struct graph *g, struct graph *sub)
{
    for (int32_t v = 0; v < sub->n_values; v++) {
        if (sub->values[v].kind != VALUE_WEIGHT || sub->values[v].bytes <= HOIST_BYTES)
            continue;
        char name[256];
        snprintf(name, sizeof name, "%.200s", sub->values[v].name);
        for (int i = 2; graph_find_value(g, name) != YK_ABSENT; i++)
            snprintf(name, sizeof name, "%.200s.%d", sub->values[v].name, i);
        int32_t id = graph_add_value(g, name, VALUE_WEIGHT, sub->values[v].dtype);
        if (id == YK_ABSENT)
            return YK_NOMEM;
        const char *own_name = g->values[id].name;
        g->values[id] = sub->values[v];
        g->values[id].name = own_name;
        sub->values[v] = (struct value){.name = sub->values[v].name,
            .kind = VALUE_CAPTURE,
            .dtype = sub->values[v].dtype,
            .rank = -1,
            .producer = -1,
            .capture = id};
    }
    return YK_OK;
}

/* From the inside out, one graph at a time. */
yk_err pass_hoist_weights(struct graph *g)
{
    yk_err err = YK_OK;
    for (int32_t i = 0; i < g->n_nodes; i++)
        for (int32_t a = 0; !err && a < g->nodes[i].n_attr; a++) {
            struct graph *sub = g->nodes[i].attr[a].kind == ATTR_GRAPH ? g->nodes[i].attr[a].graph : NULL;
            if (sub && !(err = pass_hoist_weights(sub)))
                err = hoist_from(g, sub);
        }
    return err;
}

/* ---- If with a known condition ---- */

/* 1 or 0 if the condition is that at every size, -1 else. */
static int condition_of(const struct graph *g, const struct pass_probes *p, int32_t value)
{
    if (pass_is_const(g, value))
        return shape_count(&g->values[value].shape) == 1
                   ? dtype_read_int(g->values[value].dtype, g->values[value].data, 0) != 0
                   : -1;
    const int64_t *v = pass_same_content(p, value);
    return v && shape_count(&p->at[0].of[value]) == 1 ? *v != 0 : -1;
}

static int32_t copy_value(struct graph *g, const struct value *from)
{
    char name[256];
    snprintf(name, sizeof name, "%.200s", from->name);
    for (int i = 2; graph_find_value(g, name) != YK_ABSENT; i++)
        snprintf(name, sizeof name, "%.200s.%d", from->name, i);
    int32_t id = graph_add_value(g, name, from->kind, from->dtype);
    if (id == YK_ABSENT)
        return id;
    const char *own_name = g->values[id].name;
    g->values[id] = *from;
    g->values[id].name = own_name;
    g->values[id].producer = -1;
    return id;
}

/* What the values of the branch are in g; the node's outputs stand for what makes them. */
static yk_err map_values(struct graph *g, const struct graph *b, const struct node *n, int32_t *to)
{
    for (int32_t v = 0; v < b->n_values; v++)
        to[v] = b->values[v].kind == VALUE_CAPTURE ? b->values[v].capture : YK_ABSENT;
    for (int32_t k = 0; k < n->n_out; k++) {
        int32_t v = b->outputs[k];
        if (n->out[k] != YK_ABSENT && b->values[v].kind == VALUE_NODE && to[v] == YK_ABSENT)
            to[v] = n->out[k];
    }
    for (int32_t v = 0; v < b->n_values; v++)
        if (to[v] == YK_ABSENT && b->values[v].kind != VALUE_CAPTURE && (to[v] = copy_value(g, &b->values[v])) < 0)
            return YK_NOMEM;
    return YK_OK;
}

static void move_attributes(struct graph *g, struct node *made, const struct node *from, const int32_t *to)
{
    made->attr = from->attr;
    made->n_attr = from->n_attr;
    for (int32_t a = 0; a < made->n_attr; a++) {
        struct graph *sub = made->attr[a].kind == ATTR_GRAPH ? made->attr[a].graph : NULL;
        for (int32_t k = 0; sub && k < sub->n_values; k++)
            if (sub->values[k].kind == VALUE_CAPTURE && sub->values[k].capture != YK_ABSENT)
                sub->values[k].capture = to[sub->values[k].capture];
        if (sub)
            sub->parent = g;
    }
}

static yk_err inline_branch(struct graph *g, int32_t index, const struct graph *b)
{
    const struct node n = g->nodes[index];
    int32_t *to = yk_try_alloc((size_t)b->n_values + 1, sizeof *to), in[OP_MAX_IN], out[OP_MAX_OUT];
    yk_err err = to ? map_values(g, b, &n, to) : YK_NOMEM;
    for (int32_t i = 0; i < b->n_nodes && !err; i++) {
        const struct node *from = &b->nodes[i];
        for (int32_t k = 0; k < from->n_in; k++)
            in[k] = from->in[k] == YK_ABSENT ? YK_ABSENT : to[from->in[k]];
        for (int32_t k = 0; k < from->n_out; k++)
            out[k] = from->out[k] == YK_ABSENT ? YK_ABSENT : to[from->out[k]];
        int32_t at = graph_add_node(g, from->name, from->op, in, from->n_in, out, from->n_out);
        if (at == YK_ABSENT)
            err = YK_NOMEM;
        else
            move_attributes(g, &g->nodes[at], from, to);
    }
    for (int32_t k = 0; k < n.n_out && !err; k++) /* a result that no node of the branch makes */
        if (n.out[k] != YK_ABSENT && to[b->outputs[k]] != n.out[k] &&
            graph_add_node(g, n.name, op_find("", "Identity"), &to[b->outputs[k]], 1, &n.out[k], 1) < 0)
            err = YK_NOMEM;
    g->nodes[index].op = NULL;
    free(to);
    return err;
}

yk_err pass_inline_ifs(struct graph *g, bool *changed, struct yk_diag *why)
{
    struct pass_probes p;
    yk_err err = pass_probes_open(g, &p, why);
    int32_t n_nodes = g->n_nodes;
    if (err)
        return err;
    for (int32_t i = 0; i < n_nodes && !err; i++) {
        const struct node *n = &g->nodes[i];
        if (!n->op || strcmp(n->op->name, "If") != 0 || n->op->domain[0])
            continue;
        int condition = condition_of(g, &p, n->in[0]);
        const struct attr *a = condition < 0 ? NULL : node_attr(n, condition ? "then_branch" : "else_branch");
        if (!a || a->kind != ATTR_GRAPH || a->graph->n_outputs != n->n_out)
            continue;
        bool fits = true; /* of nodes that no rule has seen yet */
        for (int32_t k = 0; k < a->graph->n_nodes; k++)
            fits = fits && a->graph->nodes[k].n_in <= OP_MAX_IN && a->graph->nodes[k].n_out <= OP_MAX_OUT;
        if (fits) {
            err = inline_branch(g, i, a->graph);
            *changed = true;
        }
    }
    pass_probes_close(&p);
    if (err)
        return yk_fail(why, err, "no memory for the branches of an If");
    return pass_compact(g, why);
}
