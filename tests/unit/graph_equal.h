/* Whether two graphs are the same: order, ids, names, attributes, weights. Prints the first difference. */
#ifndef YK_TESTS_GRAPH_EQUAL_H
#define YK_TESTS_GRAPH_EQUAL_H

#include <stdio.h>
#include <string.h>

#include "common/graph.h"
#include "common/hash.h"
#include "common/op.h"

#define GRAPH_DIFFER(...)                  \
    do {                                   \
        fprintf(stderr, "  " __VA_ARGS__); \
        fputc('\n', stderr);               \
        return false;                      \
    } while (0)

/* A weight's bytes, or its hash where one of the two has no bytes. */
static inline bool weight_equal(const struct value *a, const struct value *b)
{
    uint8_t ha[HASH_BYTES], hb[HASH_BYTES];
    if (!shape_equal(&a->shape, &b->shape) || a->dtype != b->dtype || a->bytes != b->bytes)
        return false;
    if (a->data && b->data)
        return a->bytes == 0 || memcmp(a->data, b->data, (size_t)a->bytes) == 0;
    if (a->data)
        hash_bytes(a->data, (size_t)a->bytes, ha);
    if (b->data)
        hash_bytes(b->data, (size_t)b->bytes, hb);
    return memcmp(a->data ? ha : a->hash, b->data ? hb : b->hash, HASH_BYTES) == 0;
}

static inline bool graph_equal(const struct graph *a, const struct graph *b);

static inline bool attr_equal(const struct attr *a, const struct attr *b)
{
    if (strcmp(a->name, b->name) || a->kind != b->kind || a->n != b->n)
        return false;
    switch (a->kind) {
    case ATTR_INT:
        return a->i == b->i;
    case ATTR_FLOAT:
        return memcmp(&a->f, &b->f, sizeof a->f) == 0;
    case ATTR_STRING:
        return strcmp(a->s, b->s) == 0;
    case ATTR_INTS:
        return a->n == 0 || memcmp(a->ints, b->ints, a->n * sizeof *a->ints) == 0;
    case ATTR_FLOATS:
        return a->n == 0 || memcmp(a->floats, b->floats, a->n * sizeof *a->floats) == 0;
    case ATTR_STRINGS:
        for (size_t i = 0; i < a->n; i++)
            if (strcmp(a->strings[i], b->strings[i]))
                return false;
        return true;
    case ATTR_TENSOR:
        return weight_equal(a->tensor, b->tensor);
    case ATTR_GRAPH:
        return graph_equal(a->graph, b->graph);
    }
    return false;
}

static inline bool graph_equal(const struct graph *a, const struct graph *b)
{
    if (a->n_values != b->n_values || a->n_nodes != b->n_nodes || a->n_inputs != b->n_inputs ||
        a->n_outputs != b->n_outputs || a->n_syms != b->n_syms)
        GRAPH_DIFFER("counts: %d %d values, %d %d nodes, %d %d inputs, %d %d outputs, %d %d syms", a->n_values,
            b->n_values, a->n_nodes, b->n_nodes, a->n_inputs, b->n_inputs, a->n_outputs, b->n_outputs, a->n_syms,
            b->n_syms);
    for (int32_t i = 0; i < a->n_syms; i++)
        if (strcmp(a->syms[i], b->syms[i]))
            GRAPH_DIFFER("named dimension %d: %s %s", i, a->syms[i], b->syms[i]);
    for (int32_t i = 0; i < a->n_values; i++) {
        const struct value *v = &a->values[i], *w = &b->values[i];
        if (strcmp(v->name, w->name) || v->kind != w->kind || v->type != w->type || v->producer != w->producer)
            GRAPH_DIFFER("value %d: '%s' '%s'", i, v->name, w->name);
        if (v->kind == VALUE_WEIGHT && !weight_equal(v, w))
            GRAPH_DIFFER("weight %d '%s'", i, v->name);
        if (v->kind == VALUE_CAPTURE && v->capture != w->capture)
            GRAPH_DIFFER("capture %d '%s'", i, v->name);
        if (v->kind == VALUE_INPUT && (v->rank != w->rank || v->dtype != w->dtype))
            GRAPH_DIFFER("type of input '%s'", v->name);
        for (int32_t d = 0; d < v->rank && v->kind == VALUE_INPUT; d++)
            if (v->dims[d].sym != w->dims[d].sym || (v->dims[d].sym < 0 && v->dims[d].value != w->dims[d].value))
                GRAPH_DIFFER("dim %d of input '%s'", d, v->name);
    }
    for (int32_t i = 0; i < a->n_inputs; i++)
        if (a->inputs[i] != b->inputs[i])
            GRAPH_DIFFER("input %d", i);
    for (int32_t i = 0; i < a->n_outputs; i++)
        if (a->outputs[i] != b->outputs[i])
            GRAPH_DIFFER("output %d", i);
    for (int32_t i = 0; i < a->n_nodes; i++) {
        const struct node *n = &a->nodes[i], *m = &b->nodes[i];
        if (strcmp(n->name, m->name) || n->op != m->op || n->n_in != m->n_in || n->n_out != m->n_out ||
            n->n_attr != m->n_attr)
            GRAPH_DIFFER("node %d '%s' (%s): '%s' (%s)", i, n->name, n->op->name, m->name, m->op->name);
        for (int32_t k = 0; k < n->n_in; k++)
            if (n->in[k] != m->in[k])
                GRAPH_DIFFER("input %d of node %d '%s'", k, i, n->name);
        for (int32_t k = 0; k < n->n_out; k++)
            if (n->out[k] != m->out[k])
                GRAPH_DIFFER("output %d of node %d '%s'", k, i, n->name);
        for (int32_t k = 0; k < n->n_attr; k++)
            if (!attr_equal(&n->attr[k], &m->attr[k]))
                GRAPH_DIFFER("attribute '%s' of node %d '%s'", n->attr[k].name, i, n->name);
    }
    return true;
}

#endif
