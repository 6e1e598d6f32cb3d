/* Which values of a segment are stored channels last, and that it never shows: a graph run whole has the bits of its
 * nodes run one by one, where every value is dense. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/layout.h"
#include "tests/graphs.h"

static void neutral_and_turned(void **state)
{
    (void)state;
    struct shape t, image = {DT_F32, 4, {2, 3, 4, 5}}, channels = {DT_F32, 3, {7, 1, 1}}, row = {DT_F32, 1, {9}};
    struct shape pixels = {DT_F32, 4, {2, 1, 4, 5}}, deep = {DT_F32, 5, {1, 1, 1, 1, 1}}, one = {DT_F32, 0, {0}};
    assert_false(layout_neutral(&image));
    assert_true(layout_neutral(&channels) && layout_neutral(&row) && layout_neutral(&pixels) && layout_neutral(&one));
    assert_false(layout_neutral(&deep));
    layout_turn(&image, &t);
    assert_int_equal(t.rank, 4);
    assert_true(t.dims[0] == 2 && t.dims[1] == 4 && t.dims[2] == 5 && t.dims[3] == 3);
    layout_turn(&channels, &t);
    assert_true(t.dims[0] == 1 && t.dims[1] == 1 && t.dims[2] == 1 && t.dims[3] == 7);
}

struct net {
    struct graph *g;
    struct yk_rng r;
};

static int32_t conv(struct net *n, int32_t x, int64_t ic, int64_t oc, int64_t group, int64_t k, int64_t stride)
{
    int64_t w[4] = {oc, ic / group, k, k}, pads[4] = {k / 2, k / 2, k / 2, k / 2}, strides[2] = {stride, stride};
    char name[32];
    snprintf(name, sizeof(name), "w%d", (int)n->g->n_values);
    int32_t in[2] = {x, graphs_weight(n->g, name, DT_F32, 4, w, &n->r)};
    int32_t y = graphs_node(n->g, "", "Conv", name + 1, in, 2);
    struct node *node = &n->g->nodes[n->g->n_nodes - 1];
    graph_set_attr_i(n->g, node, "group", group);
    graph_set_attr_ints(n->g, node, "pads", pads, 4);
    graph_set_attr_ints(n->g, node, "strides", strides, 2);
    return y;
}

static int32_t op(struct net *n, const char *name, const int32_t *in, int count)
{
    char out[32];
    snprintf(out, sizeof(out), "v%d", (int)n->g->n_values);
    return graphs_node(n->g, "", name, out, in, count);
}

static int32_t pool(struct net *n, const char *name, int32_t x, int64_t k, int64_t stride)
{
    int64_t kernel[2] = {k, k}, strides[2] = {stride, stride}, pads[4] = {1, 1, 0, 1};
    int32_t y = op(n, name, &x, 1);
    struct node *node = &n->g->nodes[n->g->n_nodes - 1];
    graph_set_attr_ints(n->g, node, "kernel_shape", kernel, 2);
    graph_set_attr_ints(n->g, node, "strides", strides, 2);
    graph_set_attr_ints(n->g, node, "pads", pads, 4);
    return y;
}

/* Twice as wide and high; then the channels are turned to the end and back, as some exporters do. */
static int32_t larger(struct net *n, int32_t v, int64_t ch, int which)
{
    int64_t w[4] = {ch, ch, 2, 2}, four[1] = {4}, two[2] = {2, 2};
    int32_t in[3] = {v, YK_ABSENT, YK_ABSENT}, y;
    char name[32];
    snprintf(name, sizeof(name), "up%d", which);
    if (which == 2) {
        in[1] = graphs_weight(n->g, name, DT_F32, 4, w, &n->r);
        y = op(n, "ConvTranspose", in, 2);
        graph_set_attr_ints(n->g, &n->g->nodes[n->g->n_nodes - 1], "strides", two, 2);
    } else {
        in[2] = graphs_weight(n->g, name, DT_F32, 1, four, &n->r);
        for (int i = 0; i < 4; i++)
            ((float *)(uintptr_t)n->g->values[in[2]].data)[i] = i < 2 ? 1 : 2;
        y = op(n, "Resize", in, 3);
        graph_set_attr_s(n->g, &n->g->nodes[n->g->n_nodes - 1], "mode", which ? "linear" : "nearest");
    }
    y = op(n, "Transpose", &y, 1);
    graph_set_attr_ints(n->g, &n->g->nodes[n->g->n_nodes - 1], "perm", (const int64_t[]){0, 2, 3, 1}, 4);
    y = op(n, "Relu", &y, 1);
    y = op(n, "Transpose", &y, 1);
    graph_set_attr_ints(n->g, &n->g->nodes[n->g->n_nodes - 1], "perm", (const int64_t[]){0, 3, 1, 2}, 4);
    return y;
}

/* Concat along an axis, then the same pieces in another order. */
static int32_t side_by_side(struct net *n, int32_t a, int32_t b, int64_t axis)
{
    int32_t in[2] = {a, b}, v = op(n, "Concat", in, 2);
    graph_set_attr_i(n->g, &n->g->nodes[n->g->n_nodes - 1], "axis", axis);
    int32_t parts[2] = {op(n, "Split", &v, 1), graph_add_value(n->g, axis == 1 ? "p" : "q", VALUE_NODE, DT_F32)};
    struct node *split = &n->g->nodes[n->g->n_nodes - 1];
    int32_t *out = yk_arena_alloc(n->g->arena, 2, sizeof(*out));
    memcpy(out, parts, sizeof(parts));
    split->out = out;
    split->n_out = 2;
    n->g->values[parts[1]].producer = n->g->n_nodes - 1;
    graph_set_attr_i(n->g, split, "axis", axis);
    in[0] = parts[1];
    in[1] = parts[0];
    v = op(n, "Concat", in, 2);
    graph_set_attr_i(n->g, &n->g->nodes[n->g->n_nodes - 1], "axis", axis);
    return v;
}

/* Every kernel that knows both layouts, and some that do not, between them. */
static void build(struct net *n)
{
    int64_t x[4] = {2, 3, 37, 41}, ch[1] = {20}, up[3] = {20, 1, 1};
    int32_t v = graphs_input(n->g, "x", DT_F32, 4, x), in[5];
    v = conv(n, v, 3, 20, 1, 7, 2);
    v = op(n, "Relu", &v, 1);
    int32_t a = pool(n, "MaxPool", v, 3, 2), b = conv(n, a, 20, 20, 1, 3, 1);
    in[0] = b;
    for (int i = 1; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof(name), "bn%d", i);
        in[i] = graphs_weight(n->g, name, DT_F32, 1, ch, &n->r);
        for (int64_t k = 0; i == 4 && k < ch[0]; k++) /* variances */
            ((float *)(uintptr_t)n->g->values[in[i]].data)[k] = 0.5f + (float)k / 20;
    }
    b = op(n, "BatchNormalization", in, 5);
    b = op(n, "Sigmoid", &b, 1);
    in[0] = a;
    in[1] = b;
    v = op(n, "Add", in, 2);
    int32_t gap = op(n, "GlobalAveragePool", &v, 1);
    gap = conv(n, gap, 20, 20, 1, 1, 1);
    in[0] = v;
    in[1] = gap;
    v = op(n, "Mul", in, 2); /* one factor a channel */
    in[0] = graphs_weight(n->g, "up", DT_F32, 3, up, &n->r);
    in[1] = v;
    v = op(n, "Sub", in, 2);
    v = conv(n, v, 20, 20, 20, 3, 1);
    v = pool(n, "AveragePool", v, 2, 1);
    for (int i = 0; i < 3; i++)
        v = pool(n, "MaxPool", larger(n, v, 20, i), 2, 2);
    in[0] = side_by_side(n, v, conv(n, v, 20, 20, 1, 1, 1), 1);
    v = conv(n, in[0], 40, 10, 1, 1, 1);
    v = side_by_side(n, v, conv(n, v, 10, 10, 1, 3, 1), 3);
    v = conv(n, v, 10, 20, 1, 1, 2);
    int32_t pre[6] = {v, 0, 0, 0, 0, conv(n, v, 20, 7, 1, 1, 1)};
    int64_t w[4] = {20, 27, 1, 1};
    pre[1] = graphs_weight(n->g, "pre1", DT_F32, 4, w, &n->r);
    pre[2] = graphs_weight(n->g, "pre2", DT_F32, 1, w, &n->r);
    pre[3] = graphs_weight(n->g, "pre3", DT_F32, 1, w + 1, &n->r);
    pre[4] = graphs_weight(n->g, "pre4", DT_F32, 1, w + 1, &n->r);
    v = graphs_node(n->g, "ai.yoke", "PreactConv", "pre", pre, 6);
    v = op(n, "Softmax", &v, 1); /* along the width: dense */
    v = conv(n, v, 20, 33, 1, 1, 1);
    in[0] = v;
    in[1] = conv(n, v, 33, 33, 3, 3, 1);
    graphs_output(n->g, op(n, "Add", in, 2));
}

/* The whole graph, or only the nodes of in_stage. */
static void run(struct graph *g, const uint8_t *in_stage, struct backends *b, float **of)
{
    struct exec *e;
    struct yk_diag why = {""};
    struct exec_config c = {.graph = g, .in_stage = in_stage, .backends = b};
    struct graphs_io io;
    yk_err err = exec_open(&c, &e, &why);
    if (err)
        print_error("%s\n", why.text);
    assert_int_equal(err, YK_OK);
    assert_int_equal(graphs_io_init(&io, e, NULL, &why), YK_OK);
    const struct memplan *p = exec_plan(e);
    for (int32_t i = 0; i < p->n_in; i++)
        memcpy(io.in[i].data, of[p->in[i]], (size_t)tensor_bytes(&io.in[i]));
    assert_int_equal(exec_run(e, NULL, io.in, io.out, 0, &why), YK_OK);
    for (int32_t i = 0; i < p->n_out; i++) {
        free(of[p->out[i]]);
        of[p->out[i]] = yk_xalloc((size_t)tensor_bytes(&io.out[i]));
        memcpy(of[p->out[i]], io.out[i].data, (size_t)tensor_bytes(&io.out[i]));
    }
    graphs_io_fini(&io);
    exec_close(e);
}

static void whole_has_the_bits_of_its_nodes(void **state)
{
    (void)state;
    struct net n = {.g = graph_open(0)};
    struct pool *pool;
    struct backends b;
    struct shapes s;
    struct yk_diag why = {""};
    yk_rng_seed(&n.r, 11);
    build(&n);
    assert_int_equal(pool_open(2, &pool, &why), YK_OK);
    assert_int_equal(backends_open("simd", pool, &b, &why), YK_OK);
    assert_int_equal(shapes_infer(n.g, NULL, NULL, &s, &why), YK_OK);
    float **of = yk_xalloc((size_t)n.g->n_values * sizeof(*of));
    uint8_t *stage = yk_xalloc((size_t)n.g->n_nodes);
    int32_t x = n.g->inputs[0], y = n.g->outputs[0];
    of[x] = yk_xalloc((size_t)shape_bytes(&s.of[x]));
    graphs_fill(of[x], &s.of[x], &n.r, false);
    run(n.g, NULL, &b, of);
    float *whole = of[y];
    of[y] = NULL;
    for (int32_t i = 0; i < n.g->n_nodes; i++) {
        stage[i] = 1;
        run(n.g, stage, &b, of);
        stage[i] = 0;
    }
    assert_memory_equal(whole, of[y], (size_t)shape_bytes(&s.of[y]));
    for (int32_t v = 0; v < n.g->n_values; v++)
        free(of[v]);
    free(whole);
    free(of);
    free(stage);
    shapes_fini(&s);
    backends_close(&b);
    pool_close(pool);
    graph_close(n.g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neutral_and_turned), cmocka_unit_test(whole_has_the_bits_of_its_nodes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
