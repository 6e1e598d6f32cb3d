/* Short ways to build graphs in tests. Every helper fails the test when memory is gone. */
#ifndef YK_TEST_GRAPH_FIXTURE_H
#define YK_TEST_GRAPH_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/op.h"

#define IDS(...) ((const int32_t[]){__VA_ARGS__}), (int32_t)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))
#define INTS(...) ((const int64_t[]){__VA_ARGS__}), (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static inline struct graph *fx_open(void)
{
    struct graph *g = graph_open(0);
    assert_non_null(g);
    g->inputs = yk_arena_alloc(g->arena, 64, sizeof *g->inputs);
    g->outputs = yk_arena_alloc(g->arena, 64, sizeof *g->outputs);
    assert_true(g->inputs && g->outputs);
    return g;
}

/* An input; a size < 0 is the named dimension -1 - size. */
static inline int32_t fx_input(struct graph *g, const char *name, enum dtype t, const int64_t *dims, int rank)
{
    int32_t id = graph_add_value(g, name, VALUE_INPUT, t);
    assert_true(id >= 0 && g->n_inputs < 64);
    struct value *v = &g->values[id];
    v->rank = rank;
    v->dims = yk_arena_alloc(g->arena, (size_t)rank + 1, sizeof *v->dims);
    for (int i = 0; i < rank; i++)
        v->dims[i] = dims[i] < 0 ? (struct dim){.value = -1, .sym = (int32_t)(-1 - dims[i])}
                                 : (struct dim){.value = dims[i], .sym = -1};
    g->inputs[g->n_inputs++] = id;
    return id;
}

static inline int32_t fx_weight(struct graph *g, const char *name, const int64_t *dims, int rank)
{
    struct shape s = {.dtype = DT_F32, .rank = rank};
    for (int i = 0; i < rank; i++)
        s.dims[i] = dims[i];
    float *data = graph_alloc_data(g, shape_bytes(&s));
    assert_non_null(data);
    for (int64_t i = 0; i < shape_count(&s); i++)
        data[i] = (float)(i % 7 + 1) * 0.25f;
    return graph_add_weight(g, name, &s, data);
}

static inline int32_t fx_floats(struct graph *g, const char *name, const float *v, int n)
{
    struct shape s = {.dtype = DT_F32, .rank = 1, .dims = {n}};
    float *data = graph_alloc_data(g, shape_bytes(&s));
    assert_non_null(data);
    for (int i = 0; i < n; i++)
        data[i] = v[i];
    return graph_add_weight(g, name, &s, data);
}

static inline int32_t fx_ints(struct graph *g, const char *name, const int64_t *v, int n)
{
    struct shape s = {.dtype = DT_I64, .rank = 1, .dims = {n}};
    int64_t *data = graph_alloc_data(g, shape_bytes(&s));
    assert_non_null(data);
    for (int i = 0; i < n; i++)
        data[i] = v[i];
    return graph_add_weight(g, name, &s, data);
}

static inline int32_t fx_scalar_int(struct graph *g, const char *name, int64_t v)
{
    int32_t id = fx_ints(g, name, &v, 1);
    g->values[id].shape.rank = 0;
    return id;
}

static inline struct node *fx_last(struct graph *g)
{
    return &g->nodes[g->n_nodes - 1];
}

/* A node of op ("ai.yoke." in front for our own) with one output of that name; returns the output. */
static inline int32_t fx_node(struct graph *g, const char *op_name, const char *out, const int32_t *in, int32_t n_in)
{
    bool own = strncmp(op_name, "ai.yoke.", 8) == 0;
    const struct op *op = op_find(own ? "ai.yoke" : "", own ? op_name + 8 : op_name);
    assert_non_null(op);
    int32_t id = graph_add_value(g, out, VALUE_NODE, DT_NONE);
    assert_true(id >= 0);
    assert_true(graph_add_node(g, out, op, in, n_in, &id, 1) >= 0);
    return id;
}

static inline void fx_output(struct graph *g, int32_t value)
{
    assert_true(g->n_outputs < 64);
    g->outputs[g->n_outputs++] = value;
}

static inline int fx_count(const struct graph *g, const char *op_name)
{
    int n = 0;
    for (int32_t i = 0; i < g->n_nodes; i++)
        n += strcmp(g->nodes[i].op->name, op_name) == 0;
    return n;
}

/* A random DAG of elementwise ops over (N, 8): every node reads one or two earlier values; some are views. */
static inline struct graph *fx_random(struct yk_rng *r, int n_nodes)
{
    static const char *const unary[] = {"Relu", "Identity", "Exp", "Identity", "Neg"};
    struct graph *g = fx_open();
    int32_t n = graph_sym(g, "N");
    int32_t ids[256];
    int count = 0;
    char name[32];
    assert_true(n == 0 && n_nodes <= 200);
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "x%d", i);
        ids[count++] = fx_input(g, name, DT_F32, (const int64_t[]){-1, 8}, 2);
    }
    ids[count++] = fx_weight(g, "w", (const int64_t[]){1, 8}, 2);
    for (int i = 0; i < n_nodes; i++) {
        int recent = (int)yk_rng_below(r, 3) ? (int)YK_MAX(0, count - 6) : 0;
        int32_t a = ids[recent + (int)yk_rng_below(r, (uint64_t)(count - recent))];
        int32_t b = ids[recent + (int)yk_rng_below(r, (uint64_t)(count - recent))];
        snprintf(name, sizeof name, "v%d", i);
        bool two = yk_rng_below(r, 2);
        /* a weight alone would make values without the batch: add it to an input */
        if (a == ids[2])
            a = ids[0];
        ids[count++] = two ? fx_node(g, "Add", name, IDS(a, b))
                           : fx_node(g, unary[yk_rng_below(r, YK_COUNT(unary))], name, IDS(a));
    }
    fx_output(g, ids[count - 1]);
    for (int i = 3; i < count - 1; i++) { /* values that nobody reads, and a few that are, are outputs */
        bool read = false;
        for (int32_t k = 0; k < g->n_nodes; k++)
            for (int32_t j = 0; j < g->nodes[k].n_in; j++)
                read = read || g->nodes[k].in[j] == ids[i];
        if ((!read || yk_rng_below(r, 12) == 0) && g->n_outputs < 60)
            fx_output(g, ids[i]);
    }
    return g;
}

#endif
