/* For tests of training graphs: runs a whole graph with the reference kernels, node by node, in the graph's own types
 * (float64 graphs run in double throughout), and builds forward graphs of one op from text. */
#ifndef YK_TEST_GRAD_RUN_H
#define YK_TEST_GRAD_RUN_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/grad.h"
#include "common/passes.h"
#include "common/shapes.h"
#include "kernels/ref.h"
#include "tests/unit/one_op.h"

static struct pool *pool;

/* Around all tests of a file. */
static inline int grad_setup(void **state)
{
    (void)state;
    return pool_open(2, &pool, NULL);
}

static inline int grad_teardown(void **state)
{
    (void)state;
    pool_close(pool);
    return 0;
}

struct grad_run {
    const struct graph *g;
    struct shapes shapes;
    void **data;    /* by value id; inputs and weights borrowed */
    uint8_t *owned; /* by value id */
    struct yk_diag why;
};

/* Shapes for these sizes of the named dimensions; memory of everything that nodes make. */
static inline yk_err grad_run_open(struct grad_run *r, const struct graph *g, const int64_t *sizes)
{
    *r = (struct grad_run){.g = g};
    yk_err err = shapes_infer(g, sizes, NULL, &r->shapes, &r->why);
    if (err)
        return err;
    r->data = yk_xalloc(((size_t)g->n_values + 1) * sizeof *r->data);
    r->owned = yk_xalloc((size_t)g->n_values + 1);
    for (int32_t v = 0; v < g->n_values; v++) {
        if (g->values[v].kind == VALUE_WEIGHT) {
            r->data[v] = (void *)(uintptr_t)g->values[v].data;
            if (!g->values[v].aligned) { /* of a mapped file */
                r->data[v] = malloc((size_t)g->values[v].bytes + 1);
                r->owned[v] = 1;
                memcpy(r->data[v], g->values[v].data, (size_t)g->values[v].bytes);
            }
        } else if (g->values[v].kind == VALUE_NODE && g->values[v].producer >= 0 && shapes_has(&r->shapes, v)) {
            r->data[v] = malloc((size_t)shape_bytes(&r->shapes.of[v]) + 1);
            r->owned[v] = 1;
        }
    }
    return YK_OK;
}

static inline void grad_run_close(struct grad_run *r)
{
    if (!r->data)
        return;
    for (int32_t v = 0; v < r->g->n_values; v++)
        if (r->owned[v])
            free(r->data[v]);
    free(r->data);
    free(r->owned);
    shapes_fini(&r->shapes);
}

static inline struct tensor grad_run_tensor(const struct grad_run *r, int32_t v)
{
    return (struct tensor){r->shapes.of[v], r->data[v]};
}

/* Runs nodes [0, end). */
static inline yk_err grad_run_nodes(struct grad_run *r, int32_t end, uint64_t seed)
{
    struct op_ctx *c = yk_xalloc(sizeof *c);
    struct host_call *call = yk_xalloc(sizeof *call);
    yk_err err = YK_OK;
    for (int32_t i = 0; i < end && !err; i++) {
        const struct node *n = &r->g->nodes[i];
        const struct host_kernel *k = ref_kernel(n);
        struct backend_form form = {.packed_bytes = 0};
        shapes_node(r->g, &r->shapes, i, c);
        assert_non_null(k);
        if (k->sizes)
            k->sizes(c, &form);
        *call = (struct host_call){
            .graph = r->g, .node = n, .n_in = n->n_in, .n_out = n->n_out, .pool = pool, .why = &r->why};
        call->seed = seed;
        for (int32_t j = 0; j < n->n_in; j++)
            call->in[j] = n->in[j] == YK_ABSENT ? (struct tensor){.shape = {.dtype = DT_NONE, .rank = -1}}
                                                : grad_run_tensor(r, n->in[j]);
        for (int32_t j = 0; j < n->n_out; j++) {
            call->out[j] = n->out[j] == YK_ABSENT ? (struct tensor){.shape = {.dtype = DT_NONE, .rank = -1}}
                                                  : grad_run_tensor(r, n->out[j]);
            if (n->out[j] != YK_ABSENT)
                memset(call->out[j].data, 0xa5, (size_t)tensor_bytes(&call->out[j]));
        }
        call->workspace = malloc((size_t)form.workspace_bytes + 1);
        err = k->run(call);
        if (err)
            yk_wrap(&r->why, err, "node %d '%s' (%s)", i, n->name, n->op->name);
        free(call->workspace);
    }
    free(call);
    free(c);
    return err;
}

static inline double grad_run_number(const struct grad_run *r, int32_t v, int64_t i)
{
    struct tensor t = grad_run_tensor(r, v);
    return ref_d(&t, i);
}

/* ---- forward graphs of one op ---- */

#define GRAD_IN 8

struct grad_case {
    const char *op;
    const char *in[GRAD_IN];
    const char *attrs;
    int n_out;  /* 0: 1 */
    int output; /* that the loss reads */
    int fixed;  /* 1: the first axis of the first input is no batch */
};

static inline double grad_draw(struct yk_rng *rng, char kind, int64_t i, const int64_t *order, int64_t n)
{
    double u = yk_rng_unit(rng), v = 2.4 * u - 1.2;
    switch (kind) {
    case '+':
        return 0.3 + 1.2 * u;
    case 'u':
        return 1.7 * u - 0.85;
    case 'g':
        return 1.2 + 1.3 * u;
    case '~':
        return ((double)order[i] - (double)n / 2) * 0.11 + 0.05;
    default:
        return fabs(v) < 0.05 ? v + 0.1 : v;
    }
}

/* A weight from text: kinds p + u g ~ are parameters of float64 (random, positive, within (-1, 1), above 1, apart from
 * each other), c a constant of float64, f one of float32, i of int64, b of bool; "kind:sizes" or "kind:sizes=values".
 */
static inline int32_t grad_weight(struct graph *g, const char *name, const char *text, struct yk_rng *rng)
{
    char kind = text[0], *end;
    struct shape s = {.dtype = kind == 'f' ? DT_F32 : kind == 'i' ? DT_I64 : kind == 'b' ? DT_BOOL : DT_F64};
    const char *at = text + 2;
    while (*at && *at != '=') {
        s.dims[s.rank++] = strtoll(at, &end, 10);
        at = *end == ',' ? end + 1 : end;
    }
    int64_t n = shape_count(&s), *order = yk_xalloc(((size_t)n + 1) * sizeof *order);
    void *data = graph_alloc_data(g, shape_bytes(&s));
    for (int64_t i = 0; i < n; i++) {
        int64_t j = (int64_t)yk_rng_below(rng, (uint64_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    at += *at == '=';
    for (int64_t i = 0; i < n; i++) {
        double v = *at ? strtod(at, &end) : grad_draw(rng, kind, i, order, n);
        if (*at)
            at = *end == ',' ? end + 1 : end;
        ref_store_d(data, s.dtype, i, 1, &v, 1);
    }
    free(order);
    int32_t id = graph_add_weight(g, name, &s, data);
    g->values[id].constant = strchr("cfib", kind) != NULL;
    return id;
}

/* dynamic: parameters with the first axis and rank of the first one become graph inputs with a named batch, plus such a
 * parameter without its first axis; *batch is its size. Returns NULL if the case has no such form. */
static inline struct graph *grad_case_graph(const struct grad_case *t, bool dynamic, uint64_t seed, int64_t *batch)
{
    struct graph *g = fx_open();
    struct yk_rng rng;
    int32_t in[GRAD_IN], out[OP_MAX_OUT];
    int n_in = 0, n_out = YK_MAX(t->n_out, 1);
    char name[32], domain[64] = "";
    const char *dot = strrchr(t->op, '.');
    int made = 0; /* rank of the first that was made dynamic */
    yk_rng_seed(&rng, seed);
    *batch = 1;
    for (; n_in < GRAD_IN && t->in[n_in]; n_in++) {
        const char *text = t->in[n_in];
        snprintf(name, sizeof name, "p%d", n_in);
        in[n_in] = YK_ABSENT;
        if (!strcmp(text, "-"))
            continue;
        const char *comma = strchr(text, ',');
        int64_t first = strtoll(text + 2, NULL, 10);
        int rank = 1;
        for (const char *at = text; *at; at++)
            rank += *at == ',';
        bool param = strchr("p+ug~", text[0]) && comma;
        if (dynamic && param && (!made || (first == *batch && rank == made))) {
            char rest[64], x_name[16], w_name[16];
            snprintf(rest, sizeof rest, "%c:%s", text[0], comma + 1);
            snprintf(x_name, sizeof x_name, "x%d", n_in);
            snprintf(w_name, sizeof w_name, "w%d", n_in);
            int64_t dims[YK_MAX_RANK] = {-1 - graph_sym(g, "N")};
            int k = 1;
            char *end = NULL;
            for (const char *at = comma + 1; *at; at = *end ? end + 1 : end)
                dims[k++] = strtoll(at, &end, 10);
            *batch = first;
            made = rank;
            int32_t x = fx_input(g, x_name, DT_F64, dims, rank);
            in[n_in] = fx_node(g, "Add", name, IDS(x, grad_weight(g, w_name, rest, &rng)));
        } else {
            in[n_in] = grad_weight(g, name, text, &rng);
        }
    }
    if (dynamic && (!made || t->fixed)) {
        graph_close(g);
        return NULL;
    }
    if (dot)
        snprintf(domain, sizeof domain, "%.*s", (int)(dot - t->op), t->op);
    const struct op *row = op_find(domain, dot ? dot + 1 : t->op);
    assert_non_null(row);
    for (int k = 0; k < n_out; k++) {
        snprintf(name, sizeof name, "y%d", k);
        out[k] = graph_add_value(g, name, VALUE_NODE, DT_NONE);
    }
    assert_true(graph_add_node(g, "n", row, in, n_in, out, n_out) >= 0);
    one_attrs(g, fx_last(g), t->attrs ? t->attrs : "");
    fx_output(g, out[t->output]);
    return g;
}

#endif
