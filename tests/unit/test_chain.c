/* Elementwise chains: bits equal those of the nodes one by one, whatever the threads, the layout and what is read
 * behind the chain; chains are found, and end where they must. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/chain.h"
#include "tests/graphs.h"

#define VALUES 40

static struct pool *pools[2];
static struct backends backends[2];

static int open_all(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        if (pool_open(t ? 3 : 1, &pools[t], NULL) || backends_open("simd", pools[t], &backends[t], NULL))
            return 1;
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        backends_close(&backends[t]);
        pool_close(pools[t]);
    }
    return 0;
}

static void no_trace(void *arg, int32_t node, const char *form, double ms)
{
    (void)node, (void)form, (void)ms;
    ++*(int *)arg;
}

/* Outputs of a run, one behind the other; the caller frees. A run that is traced takes nodes one by one. */
static uint8_t *outputs(const struct graph *g, int t, bool traced, const uint8_t *in_stage, int64_t *bytes)
{
    struct exec_config c = {.graph = g, .backends = &backends[t], .in_stage = in_stage};
    struct yk_diag why = {""};
    struct graphs_io io;
    struct exec *e;
    struct yk_rng r;
    int nodes = 0;
    yk_err err = exec_open(&c, &e, &why);
    if (err)
        print_error("%s\n", why.text);
    assert_int_equal(err, YK_OK);
    assert_int_equal(graphs_io_init(&io, e, NULL, &why), YK_OK);
    yk_rng_seed(&r, 11);
    for (int32_t i = 0; i < io.n_in; i++)
        graphs_fill(io.in[i].data, &io.in[i].shape, &r, true);
    if (traced)
        exec_trace(e, no_trace, &nodes);
    for (int twice = 0; twice < 2; twice++)
        assert_int_equal(exec_run(e, NULL, io.in, io.out, 0, &why), YK_OK);
    *bytes = 0;
    for (int32_t i = 0; i < io.n_out; i++)
        *bytes += tensor_bytes(&io.out[i]);
    uint8_t *all = malloc((size_t)*bytes + 1), *to = all;
    for (int32_t i = 0; i < io.n_out; i++) {
        memcpy(to, io.out[i].data, (size_t)tensor_bytes(&io.out[i]));
        to += tensor_bytes(&io.out[i]);
    }
    graphs_io_fini(&io);
    exec_close(e);
    return all;
}

static void same_bits(const struct graph *g, uint64_t seed)
{
    int64_t bytes, n;
    uint8_t *one_by_one = outputs(g, 0, true, NULL, &bytes);
    for (int k = 0; k < 3; k++) {
        uint8_t *got = outputs(g, k > 0, k == 2, NULL, &n);
        assert_int_equal(n, bytes);
        if (memcmp(got, one_by_one, (size_t)n))
            print_error("seed %llu: %s on %d threads\n", (unsigned long long)seed, k == 2 ? "nodes" : "chains",
                pool_threads(pools[k > 0]));
        assert_memory_equal(got, one_by_one, (size_t)n);
        free(got);
    }
    free(one_by_one);
}

/* How many nodes the first span from `at` on has, with the static forms. */
static int span_at(const struct graph *g, int32_t at)
{
    struct shapes s;
    struct op_ctx *c = calloc(1, sizeof(*c));
    struct backend_form form;
    const struct host_kernel *kernels[VALUES];
    int32_t nodes[VALUES];
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, NULL), YK_OK);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        nodes[i] = i;
        shapes_node(g, &s, i, c);
        kernels[i] = host_kernel_of(backends[0].at[0], c, &form);
        if (!kernels[i])
            kernels[i] = host_kernel_of(backends[0].at[1], c, &form);
        assert_non_null(kernels[i]);
    }
    int span = chain_span(g, nodes, kernels, g->n_nodes, at);
    shapes_fini(&s);
    free(c);
    return span;
}

static int32_t unary(struct graph *g, const char *domain, const char *op, int32_t x)
{
    char name[24];
    snprintf(name, sizeof(name), "v%d", (int)g->n_values);
    return graphs_node(g, domain, op, name, &x, 1);
}

static int32_t binary(struct graph *g, const char *op, int32_t a, int32_t b)
{
    char name[24];
    const int32_t in[] = {a, b};
    snprintf(name, sizeof(name), "v%d", (int)g->n_values);
    return graphs_node(g, "", op, name, in, 2);
}

/* A random graph of elementwise nodes over (2, 19, 13, 11), some behind a convolution, so that it is stored channels
 * last; values are read again later, leave the graph or broadcast. */
static struct graph *random_graph(uint64_t seed)
{
    static const struct {
        const char *domain, *op;
    } unaries[] = {{"", "Relu"}, {"", "Sigmoid"}, {"", "HardSwish"}, {"", "Tanh"}, {"", "Neg"}, {"", "Abs"},
        {"ai.yoke", "Gelu"}, {"ai.yoke", "Silu"}, {"", "Exp"}, {"", "LeakyRelu"}};
    static const char *const binaries[] = {"Add", "Sub", "Mul", "Div"};
    static const int64_t dims[] = {2, 19, 13, 11}, channel[] = {1, 19, 1, 1}, row[] = {11}, one[] = {1};
    static const int64_t image[] = {2, 3, 15, 13}, weights[] = {19, 3, 3, 3};
    struct graph *g = graph_open(0);
    struct yk_rng r;
    int32_t at[VALUES], n = 0, side[3];
    yk_rng_seed(&r, seed);
    at[n++] = graphs_input(g, "x", DT_F32, 4, dims);
    side[0] = graphs_input(g, "channel", DT_F32, 4, channel);
    side[1] = graphs_input(g, "row", DT_F32, 1, row);
    side[2] = graphs_input(g, "one", DT_F32, 1, one);
    if (seed % 2) {
        const int32_t in[] = {
            graphs_input(g, "image", DT_F32, 4, image), graphs_weight(g, "w", DT_F32, 4, weights, &r)};
        at[n++] = graphs_node(g, "", "Conv", "conv", in, 2);
    }
    int nodes = 3 + (int)yk_rng_below(&r, 12);
    for (int i = 0; i < nodes; i++) {
        /* Mostly the newest value, so that there are chains. */
        int32_t x = yk_rng_below(&r, 4) ? at[n - 1] : at[yk_rng_below(&r, (uint64_t)n)];
        uint64_t kind = yk_rng_below(&r, 5);
        if (kind < 2) {
            size_t u = yk_rng_below(&r, YK_COUNT(unaries));
            at[n] = unary(g, unaries[u].domain, unaries[u].op, x);
        } else {
            int32_t y = kind == 2 ? side[yk_rng_below(&r, 3)] : at[yk_rng_below(&r, (uint64_t)n)];
            bool turn = yk_rng_below(&r, 2);
            at[n] = binary(g, binaries[yk_rng_below(&r, 4)], turn ? y : x, turn ? x : y);
        }
        n++;
        if (yk_rng_below(&r, 6) == 0)
            graphs_output(g, at[n - 1]);
    }
    if (g->n_outputs == 0 || g->outputs[g->n_outputs - 1] != at[n - 1])
        graphs_output(g, at[n - 1]);
    return g;
}

static void random_chains(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct graph *g = random_graph(seed);
        same_bits(g, seed);
        graph_close(g);
    }
}

/* Every border between two nodes is a cut: each node as a stage of its own gives the bits of the chain. */
static void cut_anywhere(void **state)
{
    (void)state;
    static const int64_t dims[] = {3, 7, 384};
    int64_t whole_bytes, bytes;
    struct graph *g = graph_open(0);
    int32_t x = graphs_input(g, "x", DT_F32, 3, dims);
    int32_t v = unary(g, "", "Sigmoid", x);
    v = binary(g, "Mul", x, v);
    v = unary(g, "", "Tanh", v);
    graphs_output(g, binary(g, "Add", v, x));
    assert_int_equal(span_at(g, 0), 4);
    uint8_t *whole = outputs(g, 1, false, NULL, &whole_bytes);
    struct tensor made[8] = {{.data = NULL}};
    struct yk_rng r;
    yk_rng_seed(&r, 11);
    made[x].shape = (struct shape){.dtype = DT_F32, .rank = 3, .dims = {3, 7, 384}};
    made[x].data = malloc((size_t)tensor_bytes(&made[x]));
    graphs_fill(made[x].data, &made[x].shape, &r, true);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        uint8_t in_stage[VALUES] = {0};
        struct exec_config c = {.graph = g, .backends = &backends[0], .in_stage = in_stage};
        struct graphs_io io;
        struct exec *e;
        in_stage[i] = 1;
        assert_int_equal(exec_open(&c, &e, NULL), YK_OK);
        assert_int_equal(graphs_io_init(&io, e, NULL, NULL), YK_OK);
        for (int32_t k = 0; k < io.n_in; k++)
            memcpy(io.in[k].data, made[exec_plan(e)->in[k]].data, (size_t)tensor_bytes(&io.in[k]));
        assert_int_equal(exec_run(e, NULL, io.in, io.out, 0, NULL), YK_OK);
        int32_t y = exec_plan(e)->out[0];
        made[y].shape = io.out[0].shape;
        made[y].data = malloc((size_t)tensor_bytes(&io.out[0]));
        memcpy(made[y].data, io.out[0].data, (size_t)tensor_bytes(&io.out[0]));
        graphs_io_fini(&io);
        exec_close(e);
    }
    bytes = tensor_bytes(&made[g->outputs[0]]);
    assert_int_equal(bytes, whole_bytes);
    assert_memory_equal(made[g->outputs[0]].data, whole, (size_t)bytes);
    for (int32_t k = 0; k < 8; k++)
        free(made[k].data);
    free(whole);
    graph_close(g);
}

/* Batch normalisation, dense and channels last, then an activation; two of them need their factors at once. */
static void channels_in_chains(void **state)
{
    (void)state;
    for (int k = 0; k < 8; k++) {
        const int64_t channels = k & 1 ? 64 : 21;
        const int64_t dims[] = {2, channels, k & 2 ? 16 : 9, k & 2 ? 64 : 13}, weights[] = {channels, channels, 3, 3};
        struct graph *g = graph_open(0);
        struct yk_rng r;
        yk_rng_seed(&r, 4);
        int32_t x = graphs_input(g, "x", DT_F32, 4, dims);
        if (k & 4) {
            const int32_t in[] = {x, graphs_weight(g, "w", DT_F32, 4, weights, &r)};
            x = graphs_node(g, "", "Conv", "conv", in, 2);
        }
        int32_t in[] = {x, graphs_weight(g, "scale", DT_F32, 1, &channels, &r),
            graphs_weight(g, "bias", DT_F32, 1, &channels, &r), graphs_weight(g, "mean", DT_F32, 1, &channels, &r), -1};
        in[4] = unary(g, "", "Exp", graphs_weight(g, "var", DT_F32, 1, &channels, &r));
        in[0] = graphs_node(g, "", "BatchNormalization", "n1", in, 5);
        in[0] = graphs_node(g, "", "BatchNormalization", "n2", in, 5);
        graphs_output(g, binary(g, "Mul", in[0], unary(g, "", "Sigmoid", in[0])));
        same_bits(g, (uint64_t)k);
        graph_close(g);
    }
}

/* Residual, normalisation of rows, scale: rows stay whole in a piece. */
static void rows_in_chains(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 3000; n = n * 3 + 5) {
        const int64_t dims[] = {2, 37, n};
        struct graph *g = graph_open(0);
        struct yk_rng r;
        yk_rng_seed(&r, 4);
        int32_t x = graphs_input(g, "x", DT_F32, 3, dims), y = graphs_input(g, "y", DT_F32, 3, dims);
        int32_t v = binary(g, "Add", x, y);
        const int32_t in[] = {
            v, graphs_weight(g, "scale", DT_F32, 1, &n, &r), graphs_weight(g, "bias", DT_F32, 1, &n, &r)};
        int32_t normed = graphs_node(g, "", "LayerNormalization", "normed", in, 3);
        graphs_output(g, binary(g, "Mul", normed, v));
        assert_int_equal(span_at(g, 0), 3);
        same_bits(g, (uint64_t)n);
        graph_close(g);
    }
}

static void spans_end(void **state)
{
    (void)state;
    static const int64_t dims[] = {4, 50};
    struct graph *g = graph_open(0);
    int32_t x = graphs_input(g, "x", DT_F32, 2, dims), y = graphs_input(g, "y", DT_F32, 2, dims);
    int32_t a = unary(g, "", "Relu", x);
    unary(g, "", "Neg", y); /* does not follow */
    int32_t b = unary(g, "", "Exp", a);
    for (int i = 0; i < 8; i++)
        b = unary(g, "", "Abs", b);
    unary(g, "", "Softmax", b); /* not by element */
    assert_int_equal(span_at(g, 0), 1);
    assert_int_equal(span_at(g, 1), 1);
    assert_int_equal(span_at(g, 2), CHAIN_MOST);
    assert_int_equal(span_at(g, 2 + CHAIN_MOST), 9 - CHAIN_MOST);
    assert_int_equal(span_at(g, 11), 1);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_chains),
        cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(channels_in_chains),
        cmocka_unit_test(rows_in_chains),
        cmocka_unit_test(spans_end),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
