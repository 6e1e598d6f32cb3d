/* The canonical order of a graph's nodes, and pruning of what no output needs. */
#include <stdlib.h>
#include <string.h>

#include "common/op.h"

/* ---- canonical order ---- */

struct edges { /* of values to the nodes that read them, as one flat list */
    const struct graph *g;
    int32_t node;
    int32_t *wait;  /* by node: producers not yet placed (counted per use) */
    int64_t *start; /* by node: first of its readers in list */
    int32_t *list;
    bool bad;
    int32_t bad_value;
};

static void count_use(void *arg, int32_t value)
{
    struct edges *e = arg;
    if (value < 0 || value >= e->g->n_values) {
        e->bad = true;
        e->bad_value = YK_ABSENT;
        return;
    }
    const struct value *v = &e->g->values[value];
    if (v->kind != VALUE_NODE)
        return;
    if (v->producer < 0) {
        e->bad = true;
        e->bad_value = value;
        return;
    }
    e->wait[e->node]++;
    e->start[v->producer + 1]++;
}

static void list_use(void *arg, int32_t value)
{
    struct edges *e = arg;
    const struct value *v = &e->g->values[value];
    if (v->kind == VALUE_NODE)
        e->list[e->start[v->producer]++] = e->node;
}

/* A binary min-heap of node indices. */
static void heap_push(int32_t *heap, int32_t *n, int32_t x)
{
    int32_t i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2] > x; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
}

static int32_t heap_pop(int32_t *heap, int32_t *n)
{
    int32_t top = heap[0], x = heap[--*n], i = 0;
    for (;;) {
        int32_t c = 2 * i + 1;
        if (c >= *n)
            break;
        if (c + 1 < *n && heap[c + 1] < heap[c])
            c++;
        if (heap[c] >= x)
            break;
        heap[i] = heap[c];
        i = c;
    }
    heap[i] = x;
    return top;
}

/* Sets the producers anew and finds values made twice. */
static yk_err set_producers(struct graph *g, struct yk_diag *why)
{
    for (int32_t i = 0; i < g->n_values; i++)
        g->values[i].producer = -1;
    for (int32_t i = 0; i < g->n_nodes; i++)
        for (int32_t k = 0; k < g->nodes[i].n_out; k++) {
            int32_t id = g->nodes[i].out[k];
            if (id == YK_ABSENT)
                continue;
            if (id < 0 || id >= g->n_values)
                return yk_fail(why, YK_FORMAT, "node %d '%s' has an output that does not exist", i, g->nodes[i].name);
            struct value *v = &g->values[id];
            if (v->producer >= 0 || v->kind != VALUE_NODE)
                return yk_fail(
                    why, YK_FORMAT, "value '%s' is made twice (again by node %d '%s')", v->name, i, g->nodes[i].name);
            v->producer = i;
        }
    return YK_OK;
}

yk_err graph_sort(struct graph *g, struct yk_diag *why)
{
    yk_err err = set_producers(g, why);
    if (err)
        return err;
    for (int32_t i = 0; i < g->n_outputs; i++) {
        const struct value *v = &g->values[g->outputs[i]];
        if (v->kind == VALUE_NODE && v->producer < 0)
            return yk_fail(why, YK_FORMAT, "graph output '%s' is made by no node", v->name);
    }
    size_t n = (size_t)g->n_nodes;
    struct edges e = {.g = g, .bad_value = YK_ABSENT};
    struct node *sorted = NULL;
    int32_t *heap = NULL, n_heap = 0, placed = 0;
    e.wait = yk_try_alloc(n + 1, sizeof *e.wait);
    e.start = yk_try_alloc(n + 2, sizeof *e.start);
    heap = yk_try_alloc(n + 1, sizeof *heap);
    sorted = yk_try_alloc(n + 1, sizeof *sorted);
    if (!e.wait || !e.start || !heap || !sorted) {
        err = yk_fail(why, YK_NOMEM, "no memory to sort %d nodes", g->n_nodes);
        goto out;
    }
    for (e.node = 0; e.node < g->n_nodes; e.node++) {
        node_each_use(&g->nodes[e.node], count_use, &e);
        if (e.bad) {
            err = yk_fail(why, YK_FORMAT, "node %d '%s' reads '%s', which nobody makes", e.node, g->nodes[e.node].name,
                e.bad_value >= 0 ? g->values[e.bad_value].name : "?");
            goto out;
        }
    }
    for (size_t i = 0; i < n; i++)
        e.start[i + 1] += e.start[i];
    e.list = yk_try_alloc((size_t)e.start[n] + 1, sizeof *e.list);
    if (!e.list) {
        err = yk_fail(why, YK_NOMEM, "no memory to sort %d nodes", g->n_nodes);
        goto out;
    }
    for (e.node = 0; e.node < g->n_nodes; e.node++)
        node_each_use(&g->nodes[e.node], list_use, &e);
    for (size_t i = n; i > 0; i--) /* list_use moved each start to its end */
        e.start[i] = e.start[i - 1];
    e.start[0] = 0;

    for (int32_t i = 0; i < g->n_nodes; i++)
        if (e.wait[i] == 0)
            heap_push(heap, &n_heap, i);
    while (n_heap > 0) {
        int32_t i = heap_pop(heap, &n_heap);
        sorted[placed++] = g->nodes[i];
        for (int64_t k = e.start[i]; k < e.start[i + 1]; k++)
            if (--e.wait[e.list[k]] == 0)
                heap_push(heap, &n_heap, e.list[k]);
    }
    if (placed < g->n_nodes) {
        int32_t i = 0;
        while (e.wait[i] <= 0)
            i++;
        err = yk_fail(why, YK_FORMAT, "the graph has a cycle through node %d '%s'", i, g->nodes[i].name);
        goto out;
    }
    if (n)
        memcpy(g->nodes, sorted, n * sizeof *sorted);
    err = set_producers(g, why);
out:
    free(e.wait);
    free(e.start);
    free(e.list);
    free(heap);
    free(sorted);
    return err;
}

/* ---- pruning ---- */

struct mark {
    const struct graph *g;
    uint8_t *value; /* needed */
    int32_t *stack; /* of values whose producer is not visited yet */
    int32_t n;
};

static void mark_value(void *arg, int32_t value)
{
    struct mark *m = arg;
    if (value < 0 || value >= m->g->n_values || m->value[value])
        return;
    m->value[value] = 1;
    m->stack[m->n++] = value;
}

static void renumber(int32_t *ids, int32_t n, const int32_t *new_id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] != YK_ABSENT)
            ids[i] = new_id[ids[i]];
}

/* Optional outputs that nobody reads go; those of ops with a free number of outputs carry meaning by their count. */
static void drop_outputs(struct node *n, const uint8_t *needed)
{
    if (!n->op || n->op->max_out >= OP_MAX_OUT)
        return;
    for (int32_t k = n->op->min_out; k < n->n_out; k++)
        if (n->out[k] != YK_ABSENT && !needed[n->out[k]])
            n->out[k] = YK_ABSENT;
    while (n->n_out > n->op->min_out && n->out[n->n_out - 1] == YK_ABSENT)
        n->n_out--;
}

yk_err graph_prune(struct graph *g)
{
    yk_err err = set_producers(g, NULL);
    if (err)
        return err;
    struct mark m = {.g = g};
    int32_t *new_id = yk_try_alloc((size_t)g->n_values + 1, sizeof *new_id);
    uint8_t *keep = yk_try_alloc((size_t)g->n_nodes + 1, 1);
    m.value = yk_try_alloc((size_t)g->n_values + 1, 1);
    m.stack = yk_try_alloc((size_t)g->n_values + 1, sizeof *m.stack);
    if (!new_id || !keep || !m.value || !m.stack) {
        err = YK_NOMEM;
        goto out;
    }
    for (int32_t i = 0; i < g->n_outputs; i++)
        mark_value(&m, g->outputs[i]);
    while (m.n > 0) {
        int32_t producer = g->values[m.stack[--m.n]].producer;
        if (producer >= 0 && !keep[producer]) {
            keep[producer] = 1;
            node_each_use(&g->nodes[producer], mark_value, &m);
        }
    }
    int32_t n_nodes = 0;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        if (!keep[i])
            continue;
        drop_outputs(&g->nodes[i], m.value);
        for (int32_t k = 0; k < g->nodes[i].n_out; k++)
            if (g->nodes[i].out[k] != YK_ABSENT)
                m.value[g->nodes[i].out[k]] = 1;
        g->nodes[n_nodes++] = g->nodes[i];
    }
    g->n_nodes = n_nodes;
    for (int32_t i = 0; i < g->n_inputs; i++)
        m.value[g->inputs[i]] = 1;
    int32_t n_values = 0;
    for (int32_t i = 0; i < g->n_values; i++) {
        new_id[i] = m.value[i] ? n_values : YK_ABSENT;
        if (m.value[i])
            g->values[n_values++] = g->values[i];
    }
    g->n_values = n_values;
    graph_index_renew(g);
    renumber(g->inputs, g->n_inputs, new_id);
    renumber(g->outputs, g->n_outputs, new_id);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = &g->nodes[i];
        renumber(n->in, n->n_in, new_id);
        renumber(n->out, n->n_out, new_id);
        for (int32_t a = 0; a < n->n_attr; a++) {
            struct graph *sub = n->attr[a].kind == ATTR_GRAPH ? n->attr[a].graph : NULL;
            for (int32_t k = 0; sub && k < sub->n_values; k++)
                if (sub->values[k].kind == VALUE_CAPTURE && sub->values[k].capture != YK_ABSENT)
                    sub->values[k].capture = new_id[sub->values[k].capture];
        }
    }
    err = set_producers(g, NULL);
    if (!g->parent)
        graph_sweep_data(g);
out:
    free(new_id);
    free(keep);
    free(m.value);
    free(m.stack);
    return err;
}
