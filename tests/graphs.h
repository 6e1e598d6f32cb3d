/* For tests: builds small graphs, fills tensors with seeded values and runs stages. */
#ifndef TESTS_GRAPHS_H
#define TESTS_GRAPHS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exec.h"

#define GRAPHS_MAX_IO 128

/* Adds a graph input; dims[0] < 0 makes it the batch dimension "N". */
static inline int32_t graphs_input(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dims)
{
    int32_t v = graph_add_value(g, name, VALUE_INPUT, t);
    g->values[v].rank = rank;
    g->values[v].dims = yk_arena_alloc(g->arena, (size_t)rank + 1, sizeof(struct dim));
    for (int i = 0; i < rank; i++)
        g->values[v].dims[i] = (struct dim){dims[i], dims[i] < 0 ? graph_sym(g, "N") : -1};
    int32_t *ids = yk_arena_alloc(g->arena, (size_t)g->n_inputs + 1, sizeof(*ids));
    if (g->n_inputs)
        memcpy(ids, g->inputs, (size_t)g->n_inputs * sizeof(*ids));
    ids[g->n_inputs++] = v;
    g->inputs = ids;
    return v;
}

static inline int32_t graphs_output(struct graph *g, int32_t v)
{
    int32_t *ids = yk_arena_alloc(g->arena, (size_t)g->n_outputs + 1, sizeof(*ids));
    if (g->n_outputs)
        memcpy(ids, g->outputs, (size_t)g->n_outputs * sizeof(*ids));
    ids[g->n_outputs++] = v;
    g->outputs = ids;
    return v;
}

/* Values in [-1, 1), integers in [-3, 3]; special: now and then NaN, infinities, zeros of both signs, a denormal. */
static inline void graphs_fill(void *data, const struct shape *s, struct yk_rng *r, bool special)
{
    static const float odd[] = {__builtin_nanf(""), __builtin_inff(), -__builtin_inff(), 0.0f, -0.0f, 1e-40f};
    for (int64_t i = 0, n = shape_count(s); i < n; i++) {
        double v = 2 * yk_rng_unit(r) - 1;
        int64_t k = (int64_t)yk_rng_below(r, 7) - 3;
        if (special && yk_rng_below(r, 20) == 0)
            v = (double)odd[yk_rng_below(r, 6)];
        switch (s->dtype) {
        case DT_F32:
            ((float *)data)[i] = (float)v;
            break;
        case DT_F64:
            ((double *)data)[i] = v;
            break;
        case DT_I64:
            ((int64_t *)data)[i] = k;
            break;
        case DT_I32:
            ((int32_t *)data)[i] = (int32_t)k;
            break;
        case DT_BOOL:
            ((uint8_t *)data)[i] = k > 0;
            break;
        default:
            ((uint8_t *)data)[i] = (uint8_t)k;
            break;
        }
    }
}

static inline int32_t graphs_weight(
    struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dims, struct yk_rng *r)
{
    struct shape s = {.dtype = t, .rank = rank};
    for (int i = 0; i < rank; i++)
        s.dims[i] = dims[i];
    void *data = yk_arena_alloc(g->arena, (size_t)shape_bytes(&s) + 1, 1);
    graphs_fill(data, &s, r, false);
    return graph_add_weight(g, name, &s, data);
}

static inline int32_t graphs_ints(struct graph *g, const char *name, const int64_t *v, int64_t n)
{
    struct shape s = {.dtype = DT_I64, .rank = 1, .dims = {n}};
    int64_t *data = yk_arena_alloc(g->arena, (size_t)n + 1, sizeof(*data));
    memcpy(data, v, (size_t)n * sizeof(*v));
    return graph_add_weight(g, name, &s, data);
}

/* One node; returns its (first) output. */
static inline int32_t graphs_node(
    struct graph *g, const char *domain, const char *op, const char *out, const int32_t *in, int n_in)
{
    int32_t y = graph_add_value(g, out, VALUE_NODE, DT_NONE);
    if (graph_add_node(g, out, op_find(domain, op), in, n_in, &y, 1) < 0)
        return YK_ABSENT;
    return y;
}

/* Tensors of a stage's boundary at given sizes. */
struct graphs_io {
    struct tensor in[GRAPHS_MAX_IO], out[GRAPHS_MAX_IO];
    int32_t n_in, n_out;
};

static inline void graphs_io_fini(struct graphs_io *io)
{
    for (int32_t i = 0; i < io->n_in; i++)
        free(io->in[i].data);
    for (int32_t i = 0; i < io->n_out; i++)
        free(io->out[i].data);
    memset(io, 0, sizeof(*io));
}

static inline yk_err graphs_io_init(struct graphs_io *io, struct exec *e, const int64_t *sizes, struct yk_diag *why)
{
    const struct memplan *m = exec_plan(e);
    const struct shapes *s;
    memset(io, 0, sizeof(*io));
    yk_err err = exec_sizes(e, sizes, &s, why);
    if (err)
        return err;
    io->n_in = m->n_in;
    io->n_out = m->n_out;
    for (int32_t i = 0; i < m->n_in; i++) {
        io->in[i].shape = s->of[m->in[i]];
        io->in[i].data = yk_try_aligned((size_t)tensor_bytes(&io->in[i]) + 1);
    }
    for (int32_t i = 0; i < m->n_out; i++) {
        io->out[i].shape = s->of[m->out[i]];
        io->out[i].data = yk_try_aligned((size_t)tensor_bytes(&io->out[i]) + 1);
        memset(io->out[i].data, 0xa5, (size_t)tensor_bytes(&io->out[i]));
    }
    return YK_OK;
}

#endif
