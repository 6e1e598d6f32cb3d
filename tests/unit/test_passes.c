/* What the passes leave of a graph. That the numbers stay is the kernels' test; here structure and made weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/passes.h"
#include "common/shapes.h"
#include "tests/unit/graph_fixture.h"

static const struct node *node_of(const struct graph *g, const char *value)
{
    int32_t id = graph_find_value(g, value);
    assert_true(id >= 0 && g->values[id].producer >= 0);
    return &g->nodes[g->values[id].producer];
}

static const struct value *in_of(const struct graph *g, const struct node *n, int k)
{
    assert_true(k < n->n_in && n->in[k] != YK_ABSENT);
    return &g->values[n->in[k]];
}

static void check(struct graph *g)
{
    struct shapes s;
    struct yk_diag why;
    int64_t sizes[8] = {5, 9, 3, 4, 5, 6, 7, 8};
    yk_err err = shapes_infer(g, sizes, NULL, &s, &why);
    if (err)
        print_error("%s\n", why.text);
    assert_int_equal(err, YK_OK);
    shapes_fini(&s);
}

static void test_noops(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 4, 8, 8));
    int32_t w = fx_node(g, "Identity", "w_alias", IDS(fx_weight(g, "w", INTS(4, 4, 1, 1))));
    int32_t v = fx_node(g, "Dropout", "d", IDS(x));
    v = fx_node(g, "Pad", "p", IDS(v, fx_ints(g, "pads", INTS(0, 0, 0, 0, 0, 0, 0, 0))));
    v = fx_node(g, "Cast", "c", IDS(v));
    graph_set_attr_i(g, fx_last(g), "to", 1);
    v = fx_node(g, "Conv", "conv", IDS(v, w));
    v = fx_node(g, "Identity", "i1", IDS(v));
    v = fx_node(g, "Reshape", "r", IDS(v, fx_ints(g, "same", INTS(0, 4, 8, 8))));
    v = fx_node(g, "Identity", "y", IDS(v));
    fx_output(g, v);
    int32_t passed = fx_node(g, "Identity", "x_again", IDS(x)); /* an output that is an input needs its node */
    fx_output(g, passed);
    assert_int_equal(passes_fold_constants(g, NULL, NULL, NULL), YK_OK);
    assert_int_equal(g->n_nodes, 2);
    assert_string_equal(node_of(g, "y")->op->name, "Conv"); /* the name of the output stays */
    assert_string_equal(in_of(g, node_of(g, "y"), 1)->name, "w");
    assert_string_equal(in_of(g, node_of(g, "y"), 0)->name, "x");
    assert_string_equal(node_of(g, "x_again")->op->name, "Identity");
    check(g);
    graph_close(g);
}

/* Pads that move elements without changing the size, and a reversed axis, are not no-ops. */
static void test_not_noops(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int32_t x = fx_input(g, "x", DT_F32, INTS(4));
    int32_t v = fx_node(g, "Pad", "p", IDS(x, fx_ints(g, "pads", INTS(1, -1))));
    v = fx_node(g, "Slice", "s",
        IDS(v, fx_ints(g, "st", INTS(-1)), fx_ints(g, "en", INTS(INT64_MIN)), fx_ints(g, "ax", INTS(0)),
            fx_ints(g, "sp", INTS(-1))));
    fx_output(g, v);
    assert_int_equal(passes_fold_constants(g, NULL, NULL, NULL), YK_OK);
    assert_int_equal(fx_count(g, "Pad"), 1);
    assert_int_equal(fx_count(g, "Slice"), 1);
    graph_close(g);
}

static yk_err eval_neg(void *arg, const struct graph *g, int32_t node, const struct shape *out_shapes,
    void *const *out_data, struct yk_diag *why)
{
    const struct node *n = &g->nodes[node];
    (void)why;
    ++*(int *)arg;
    if (strcmp(n->op->name, "Neg") != 0)
        return YK_UNSUPPORTED;
    for (int64_t i = 0; i < shape_count(&out_shapes[0]); i++)
        ((float *)out_data[0])[i] = -((const float *)g->values[n->in[0]].data)[i];
    return YK_OK;
}

static void test_fold_with_eval(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int calls = 0;
    int32_t x = fx_input(g, "x", DT_F32, INTS(3)), w = fx_weight(g, "w", INTS(3));
    int32_t neg = fx_node(g, "Neg", "neg", IDS(w)), neg2 = fx_node(g, "Neg", "neg2", IDS(neg));
    int32_t e = fx_node(g, "Exp", "e", IDS(neg2)); /* eval cannot: it stays */
    int32_t y = fx_node(g, "Sum", "y", IDS(x, neg, e));
    fx_output(g, y);
    fx_output(g, fx_node(g, "Neg", "const_out", IDS(w))); /* a constant output stays made by a node */
    assert_int_equal(passes_fold_constants(g, eval_neg, &calls, NULL), YK_OK);
    assert_true(calls >= 3);
    assert_int_equal(fx_count(g, "Neg"), 1);
    assert_int_equal(fx_count(g, "Exp"), 1);
    const struct value *folded = in_of(g, node_of(g, "y"), 1);
    assert_int_equal(folded->kind, VALUE_WEIGHT);
    assert_true(((const float *)folded->data)[1] == -0.5f);
    graph_close(g);
}

static void test_constant_nodes(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int32_t x = fx_input(g, "x", DT_F32, INTS(2, 3));
    float data[3] = {1, 2, 3};
    struct value tensor = {
        .shape = {.dtype = DT_F32, .rank = 1, .dims = {3}}, .dtype = DT_F32, .data = data, .bytes = 12};
    int32_t c = fx_node(g, "Constant", "c", NULL, 0);
    struct attr *a = yk_arena_alloc(g->arena, 1, sizeof *a);
    *a = (struct attr){.name = "value", .kind = ATTR_TENSOR, .tensor = &tensor};
    fx_last(g)->attr = a;
    fx_last(g)->n_attr = 1;
    int32_t f = fx_node(g, "Constant", "f", NULL, 0);
    graph_set_attr_f(g, fx_last(g), "value_float", 0.5f);
    int32_t n = fx_node(g, "Constant", "n", NULL, 0);
    graph_set_attr_ints(g, fx_last(g), "value_ints", (const int64_t[]){3, 2}, 2);
    int32_t y = fx_node(g, "Reshape", "y", IDS(fx_node(g, "Sum", "s", IDS(x, c, f)), n));
    fx_output(g, y);
    assert_int_equal(passes_fold_constants(g, NULL, NULL, NULL), YK_OK);
    assert_int_equal(g->n_nodes, 2);
    assert_ptr_equal(in_of(g, node_of(g, "s"), 1)->data, data); /* used where it lies */
    assert_true(*(const float *)in_of(g, node_of(g, "s"), 2)->data == 0.5f);
    assert_int_equal(((const int64_t *)in_of(g, node_of(g, "y"), 1)->data)[1], 2);
    check(g);
    graph_close(g);
}

static yk_err eval_size(void *arg, const struct graph *g, int32_t node, const struct shape *out_shapes,
    void *const *out_data, struct yk_diag *why)
{
    (void)g, (void)node, (void)out_data, (void)why;
    *(int64_t *)arg += shape_bytes(&out_shapes[0]);
    return YK_OK;
}

/* A hostile file cannot make folding fill the memory: the bytes that folding makes are bounded. */
static void test_fold_bounded(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int64_t made = 0;
    int32_t v = fx_weight(g, "w", INTS(256, 1024));
    char name[16];
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "c%d", i);
        v = fx_node(g, "Concat", name, IDS(v, v));
        graph_set_attr_i(g, fx_last(g), "axis", 0);
    }
    fx_output(g, fx_node(g, "Add", "y", IDS(fx_input(g, "x", DT_F32, INTS(1, 1024)), v)));
    assert_int_equal(passes_fold_constants(g, eval_size, &made, NULL), YK_OK);
    assert_true(made > (1 << 20) && made < (80 << 20));
    assert_true(fx_count(g, "Concat") > 10);
    graph_close(g);
}

/* Nor can it keep the importer busy: 100 products of one small weight would be 1.6e9 operations. */
static void test_fold_work_bounded(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int64_t made = 0;
    int32_t w = fx_weight(g, "w", INTS(200, 200)), v = w;
    char name[16];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "m%d", i);
        v = fx_node(g, "MatMul", name, IDS(v, w));
    }
    fx_output(g, fx_node(g, "Add", "y", IDS(fx_input(g, "x", DT_F32, INTS(1, 200)), v)));
    assert_int_equal(passes_fold_constants(g, eval_size, &made, NULL), YK_OK);
    assert_in_range(fx_count(g, "MatMul"), 60, 80);
    assert_int_equal(made, (100 - fx_count(g, "MatMul")) * 160000);
    graph_close(g);
}

/* x.view(x.size(0), -1), and (N, T, C) -> (N, T, heads, C / heads) with both N and T named. */
static void test_reshape_chains(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    graph_sym(g, "N");
    graph_sym(g, "T");
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1, -2, 12)), axes = fx_ints(g, "axes", INTS(0));
    int32_t shape = fx_node(g, "Shape", "shape", IDS(x));
    int32_t dim[3];
    char name[16];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "at%d", i);
        int32_t at = fx_scalar_int(g, name, i);
        snprintf(name, sizeof name, "g%d", i);
        dim[i] = fx_node(g, "Gather", name, IDS(shape, at));
    }
    int32_t d = fx_node(g, "Div", "d", IDS(dim[2], fx_scalar_int(g, "heads", 4)));
    int32_t parts[3];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "u%d", i);
        parts[i] = fx_node(g, "Unsqueeze", name, IDS(i < 2 ? dim[i] : d, axes));
    }
    int32_t four = fx_ints(g, "four", INTS(4));
    int32_t target = fx_node(g, "Concat", "target", IDS(parts[0], parts[1], four, parts[2]));
    graph_set_attr_i(g, fx_last(g), "axis", 0);
    int32_t split = fx_node(g, "Reshape", "split", IDS(x, target));
    int32_t relu = fx_node(g, "Relu", "relu", IDS(split));
    int32_t flat = fx_node(g, "Concat", "flat_target", IDS(parts[0], fx_ints(g, "rest", INTS(-1))));
    graph_set_attr_i(g, fx_last(g), "axis", 0);
    fx_output(g, fx_node(g, "Reshape", "y", IDS(relu, flat)));
    assert_int_equal(passes_fold_constants(g, NULL, NULL, NULL), YK_OK);
    assert_int_equal(g->n_nodes, 3); /* Reshape, Relu, Reshape */
    const int64_t *t = in_of(g, node_of(g, "split"), 1)->data;
    assert_true(t[0] == 0 && t[1] == 0 && t[2] == 4 && t[3] == 3);
    t = in_of(g, node_of(g, "y"), 1)->data;
    assert_true(t[0] == 0 && t[1] == -1);
    check(g);
    graph_close(g);
}

/* What really varies stays: min(N, 8) is equal at small sizes only, N / 2 cannot be written in a Reshape with N. */
static void test_varying_stays(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1)), axes = fx_ints(g, "axes", INTS(0));
    int32_t shape = fx_node(g, "Shape", "shape", IDS(x));
    int32_t least = fx_node(g, "Min", "least", IDS(shape, fx_ints(g, "eight", INTS(8))));
    int32_t y = fx_node(g, "Slice", "y", IDS(x, fx_ints(g, "zero", INTS(0)), least, axes));
    fx_output(g, y);
    assert_int_equal(passes_fold_constants(g, NULL, NULL, NULL), YK_OK);
    assert_int_equal(fx_count(g, "Min"), 1);
    assert_int_equal(fx_count(g, "Shape"), 1);
    check(g);
    graph_close(g);
}

/* (T, N h, d) -> (T N, E) -> Gemm -> (T, N, E): the Gemm takes all axes. */
static void test_gemm_over_axes(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    graph_sym(g, "T");
    graph_sym(g, "N");
    int32_t src = fx_input(g, "src", DT_F32, INTS(-1, -2, 8)), w = fx_weight(g, "w", INTS(8, 8));
    int32_t b = fx_floats(g, "b", (const float[]){1, 2, 3, 4, 5, 6, 7, 8}, 8);
    int32_t heads = fx_node(g, "Reshape", "heads", IDS(src, fx_ints(g, "t1", INTS(0, -1, 4))));
    int32_t rows = fx_node(g, "Reshape", "rows", IDS(heads, fx_ints(g, "t2", INTS(-1, 8))));
    int32_t gemm = fx_node(g, "Gemm", "gemm", IDS(rows, w, b));
    int32_t shape = fx_node(g, "Shape", "shape", IDS(src));
    fx_output(g, fx_node(g, "Relu", "y", IDS(fx_node(g, "Reshape", "back", IDS(gemm, shape)))));
    assert_int_equal(passes_infer(g, NULL, NULL, NULL), YK_OK);
    assert_int_equal(fx_count(g, "Shape"), 0);
    assert_int_equal(fx_count(g, "Reshape"), 2);
    const struct node *n = node_of(g, "y");
    assert_string_equal(n->op->name, "FusedGemm");
    assert_string_equal(node_attr_s(n, "activation", ""), "relu");
    const int64_t *t = in_of(g, node_of(g, "rows"), 1)->data;
    assert_true(t[0] == 0 && t[1] == -1 && t[2] == 8);
    check(g);
    graph_close(g);
}

static int32_t batchnorm(struct graph *g, const char *name, int32_t x, int n)
{
    float gamma[8], beta[8], mean[8], var[8];
    char text[4][32];
    for (int i = 0; i < n; i++) {
        gamma[i] = 1.5f + (float)i;
        beta[i] = 0.25f * (float)i;
        mean[i] = 0.5f - (float)i;
        var[i] = 0.1f + (float)i * (float)i;
    }
    const char *const parts[] = {"gamma", "beta", "mean", "var"};
    for (int i = 0; i < 4; i++)
        snprintf(text[i], sizeof text[i], "%s.%s", name, parts[i]);
    int32_t p[4] = {fx_floats(g, text[0], gamma, n), fx_floats(g, text[1], beta, n), fx_floats(g, text[2], mean, n),
        fx_floats(g, text[3], var, n)};
    return fx_node(g, "BatchNormalization", name, IDS(x, p[0], p[1], p[2], p[3]));
}

static void test_batchnorm(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int32_t x = fx_input(g, "x", DT_F32, INTS(2, 3, 4, 4));
    int32_t w = fx_weight(g, "w", INTS(4, 3, 1, 1));
    const float *before = g->values[w].data;
    float kept[12];
    memcpy(kept, before, sizeof kept);
    int32_t bias = fx_floats(g, "b", (const float[]){1, 2, 3, 4}, 4);
    int32_t a = batchnorm(g, "a", fx_node(g, "Conv", "c1", IDS(x, w, bias)), 4);
    int32_t b = batchnorm(g, "b1", fx_node(g, "Conv", "c2", IDS(x, w)), 4); /* shares the weight */
    int32_t c = fx_node(g, "Conv", "c3", IDS(x, w));
    int32_t d = batchnorm(g, "d", c, 4); /* c is read twice: stays */
    int32_t s = fx_node(g, "Sum", "y", IDS(a, b, c, d));
    fx_output(g, s);
    assert_int_equal(passes_fold_batchnorm(g, NULL), YK_OK);
    assert_int_equal(fx_count(g, "BatchNormalization"), 1);
    const struct node *first = node_of(g, "a"), *second = node_of(g, "b1"), *third = node_of(g, "c3");
    assert_string_equal(first->op->name, "Conv");
    assert_memory_equal(in_of(g, third, 1)->data, kept, sizeof kept); /* the shared weight is as it was */
    for (int o = 0; o < 4; o++) {
        double scale = (1.5 + o) / sqrt((double)(0.1f + (float)o * (float)o) + (double)1e-5f);
        double shift = 0.25 * o - (0.5 - o) * scale;
        for (int i = 0; i < 3; i++)
            assert_true(
                ((const float *)in_of(g, first, 1)->data)[o * 3 + i] == (float)((double)kept[o * 3 + i] * scale));
        assert_true(fabs((double)((const float *)in_of(g, first, 2)->data)[o] - ((1 + o) * scale + shift)) < 1e-5);
        assert_true(fabs((double)((const float *)in_of(g, second, 2)->data)[o] - shift) < 1e-6);
    }
    check(g);
    graph_close(g);
}

static void test_batchnorm_gemm(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int32_t x = fx_input(g, "x", DT_F32, INTS(2, 3)), w = fx_weight(g, "w", INTS(3, 4));
    int32_t y = fx_node(g, "Gemm", "g", IDS(x, w));
    graph_set_attr_f(g, fx_last(g), "alpha", 2);
    fx_output(g, batchnorm(g, "y", y, 4));
    assert_int_equal(passes_fold_batchnorm(g, NULL), YK_OK);
    const struct node *n = node_of(g, "y");
    assert_string_equal(n->op->name, "Gemm");
    assert_true(node_attr_f(n, "alpha", 0) == 1);
    double scale = 2.5 / sqrt((double)(0.1f + 1) + (double)1e-5f); /* column 1 */
    assert_true(fabs((double)((const float *)in_of(g, n, 1)->data)[5] - 2 * 1.5 * scale) < 1e-5);
    check(g);
    graph_close(g);
}

static void test_fuse_conv(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 3, 8, 8)), w = fx_weight(g, "w", INTS(3, 3, 1, 1));
    int32_t c1 = fx_node(g, "Conv", "c1", IDS(x, w));
    int32_t r1 = fx_node(g, "Relu", "r1", IDS(c1));
    int32_t c2 = fx_node(g, "Conv", "c2", IDS(r1, w));
    int32_t down = fx_node(g, "Conv", "down", IDS(x, w));
    int32_t sum = fx_node(g, "Add", "sum", IDS(c2, down));
    int32_t r2 = fx_node(g, "Relu", "r2", IDS(sum));
    int32_t c3 = fx_node(g, "Conv", "c3", IDS(r2, w));
    float six[] = {6}, zero[] = {0};
    int32_t lo = fx_floats(g, "lo", zero, 1), hi = fx_floats(g, "hi", six, 1);
    g->values[lo].shape.rank = g->values[hi].shape.rank = 0;
    int32_t clip = fx_node(g, "Clip", "clip", IDS(c3, lo, hi));
    int32_t c4 = fx_node(g, "Conv", "c4", IDS(clip, w));
    int32_t sum2 = fx_node(g, "Add", "sum2", IDS(r2, c4));
    int32_t c5 = fx_node(g, "Conv", "c5", IDS(sum2, w)); /* read twice: not fused */
    fx_output(g, fx_node(g, "Relu", "y", IDS(c5)));
    fx_output(g, c5);
    int32_t small = fx_node(g, "GlobalAveragePool", "small", IDS(sum2)); /* broadcasts: not a residual */
    fx_output(g, fx_node(g, "Add", "z", IDS(fx_node(g, "Conv", "c6", IDS(sum2, w)), small)));
    assert_int_equal(passes_fuse(g, NULL), YK_OK);
    assert_int_equal(fx_count(g, "FusedConv"), 4);
    assert_int_equal(fx_count(g, "Conv"), 3);
    assert_int_equal(fx_count(g, "Add"), 1);
    assert_int_equal(fx_count(g, "Relu"), 1);
    assert_int_equal(fx_count(g, "Clip"), 0);
    const struct node *n = node_of(g, "r2"); /* the later of the two convolutions takes the sum */
    assert_string_equal(n->op->name, "FusedConv");
    assert_string_equal(node_attr_s(n, "activation", ""), "relu");
    assert_int_equal(n->n_in, 4);
    assert_int_equal(n->in[2], YK_ABSENT);
    assert_string_equal(in_of(g, n, 3)->name, "c2");
    assert_string_equal(n->name, "down");
    n = node_of(g, "clip");
    assert_string_equal(node_attr_s(n, "activation", ""), "clip");
    assert_true(node_attr_f(n, "min", -1) == 0 && node_attr_f(n, "max", -1) == 6);
    n = node_of(g, "sum2");
    assert_string_equal(node_attr_s(n, "activation", ""), "none");
    assert_string_equal(in_of(g, n, 3)->name, "r2");
    check(g);
    graph_close(g);
}

/* A convolution and what follows it; `name` is the node's last output. */
static const struct node *fused_act(struct graph *g, const char *name, const char *activation)
{
    const struct node *n = node_of(g, name);
    assert_string_equal(n->op->name, "FusedConv");
    assert_string_equal(node_attr_s(n, "activation", ""), activation);
    return n;
}

static void test_fuse_activations(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 3, 8, 8)), w = fx_weight(g, "w", INTS(3, 3, 1, 1));
    float numbers[] = {1.41421356f, 1, 0.5f, 0.70710678f};
    int32_t root = fx_floats(g, "root", numbers, 1), one = fx_floats(g, "one", numbers + 1, 1);
    int32_t half = fx_floats(g, "half", numbers + 2, 1), inverse = fx_floats(g, "inverse", numbers + 3, 1);
    int32_t big = fx_floats(g, "big", numbers + 2, 1);
    for (int32_t *v = (int32_t[]){root, one, half, inverse, -1}; *v >= 0; v++)
        g->values[*v].shape.rank = 0;
    g->values[big].shape = (struct shape){.dtype = DT_F32, .rank = 5, .dims = {1, 1, 1, 1, 1}};
    /* silu, both orders of the product */
    int32_t c = fx_node(g, "Conv", "c1", IDS(x, w)), s = fx_node(g, "Sigmoid", "s1", IDS(c));
    int32_t silu = fx_node(g, "Mul", "silu", IDS(c, s));
    c = fx_node(g, "Conv", "c2", IDS(silu, w));
    s = fx_node(g, "Sigmoid", "s2", IDS(c));
    silu = fx_node(g, "Mul", "silu2", IDS(s, c));
    /* sigmoid, and a product of something else */
    s = fx_node(g, "Sigmoid", "s3", IDS(fx_node(g, "Conv", "c3", IDS(silu, w))));
    int32_t v = fx_node(g, "Mul", "gated", IDS(silu, s));
    /* hard swish in one piece and in two; leaky; hard sigmoid */
    v = fx_node(g, "HardSwish", "h1", IDS(fx_node(g, "Conv", "c4", IDS(v, w))));
    c = fx_node(g, "Conv", "c5", IDS(v, w));
    s = fx_node(g, "HardSigmoid", "hs", IDS(c));
    graph_set_attr_f(g, fx_last(g), "alpha", 0.25f);
    v = fx_node(g, "Mul", "h2", IDS(c, s));
    v = fx_node(g, "LeakyRelu", "leaky", IDS(fx_node(g, "Conv", "c6", IDS(v, w))));
    v = fx_node(g, "HardSigmoid", "h3", IDS(fx_node(g, "Conv", "c7", IDS(v, w))));
    /* gelu, behind a residual too */
    c = fx_node(g, "Add", "sum", IDS(fx_node(g, "Conv", "c8", IDS(v, w)), v));
    s = fx_node(g, "Add", "a1", IDS(fx_node(g, "Erf", "e1", IDS(fx_node(g, "Div", "d1", IDS(c, root)))), one));
    v = fx_node(g, "Mul", "g1", IDS(fx_node(g, "Mul", "m1", IDS(c, s)), half));
    c = fx_node(g, "Conv", "c9", IDS(v, w));
    s = fx_node(g, "Add", "a2", IDS(one, fx_node(g, "Erf", "e2", IDS(fx_node(g, "Mul", "d2", IDS(inverse, c))))));
    v = fx_node(g, "Mul", "g2", IDS(half, fx_node(g, "Mul", "m2", IDS(s, c))));
    /* not these: another number; one more rank; the gate is an output; the gate is of another value */
    c = fx_node(g, "Conv", "n1", IDS(v, w));
    s = fx_node(g, "Add", "a3", IDS(fx_node(g, "Erf", "e3", IDS(fx_node(g, "Div", "d3", IDS(c, one)))), one));
    fx_output(g, fx_node(g, "Mul", "g3", IDS(fx_node(g, "Mul", "m3", IDS(c, s)), half)));
    c = fx_node(g, "Conv", "n2", IDS(v, w));
    s = fx_node(g, "Add", "a4", IDS(fx_node(g, "Erf", "e4", IDS(fx_node(g, "Div", "d4", IDS(c, root)))), one));
    fx_output(g, fx_node(g, "Mul", "g4", IDS(fx_node(g, "Mul", "m4", IDS(c, s)), big)));
    c = fx_node(g, "Conv", "n3", IDS(v, w));
    s = fx_node(g, "Sigmoid", "s5", IDS(c));
    fx_output(g, s);
    fx_output(g, fx_node(g, "Mul", "m5", IDS(c, s)));
    c = fx_node(g, "Conv", "n4", IDS(v, w));
    s = fx_node(g, "Sigmoid", "s6", IDS(v));
    fx_output(g, fx_node(g, "Mul", "m6", IDS(c, s)));
    fx_output(g, c);
    assert_int_equal(passes_fuse(g, NULL), YK_OK);
    fused_act(g, "silu", "silu");
    fused_act(g, "silu2", "silu");
    fused_act(g, "s3", "sigmoid");
    assert_string_equal(node_of(g, "gated")->op->name, "Mul");
    const struct node *n = fused_act(g, "h1", "hard_swish");
    assert_true(node_attr_f(n, "act_alpha", 0) == 1.0f / 6 && node_attr_f(n, "act_beta", 0) == 0.5f);
    n = fused_act(g, "h2", "hard_swish");
    assert_true(node_attr_f(n, "act_alpha", 0) == 0.25f && node_attr_f(n, "act_beta", 0) == 0.5f);
    assert_true(node_attr_f(fused_act(g, "leaky", "leaky_relu"), "act_alpha", 0) == 0.01f);
    assert_true(node_attr_f(fused_act(g, "h3", "hard_sigmoid"), "act_alpha", 0) == 0.2f);
    n = fused_act(g, "g1", "gelu");
    assert_int_equal(n->n_in, 4);
    assert_string_equal(in_of(g, n, 3)->name, "h3");
    fused_act(g, "g2", "gelu");
    assert_int_equal(fx_count(g, "Conv"), 4);
    assert_int_equal(fx_count(g, "FusedConv"), 9);
    assert_int_equal(fx_count(g, "Erf"), 2);
    check(g);
    graph_close(g);
}

/* Normalised channels of values[0..n) through a relu. */
static int32_t preact(struct graph *g, const char *name, int32_t x, int64_t channels)
{
    char text[5][32];
    for (int i = 0; i < 5; i++)
        snprintf(text[i], sizeof text[i], "%s%d", name, i);
    int32_t v = fx_node(g, "BatchNormalization", text[4],
        IDS(x, fx_weight(g, text[0], INTS(channels)), fx_weight(g, text[1], INTS(channels)),
            fx_weight(g, text[2], INTS(channels)), fx_weight(g, text[3], INTS(channels))));
    return fx_node(g, "Relu", name, IDS(v));
}

static void test_fuse_preact(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 3, 8, 8)), z = fx_input(g, "z", DT_F32, INTS(-1, 2, 8, 8));
    int32_t w5 = fx_weight(g, "w5", INTS(4, 5, 1, 1)), w3 = fx_weight(g, "w3", INTS(4, 3, 1, 1));
    int32_t wide = fx_weight(g, "wide", INTS(4, 5, 3, 3));
    int32_t both = fx_node(g, "Concat", "both", IDS(x, z));
    graph_set_attr_i(g, fx_last(g), "axis", -3);
    int32_t c1 = fx_node(g, "Conv", "c1", IDS(preact(g, "p1", both, 5), w5)); /* all of it, with the relu behind */
    fx_output(g, fx_node(g, "Relu", "y1", IDS(c1)));
    int32_t shared = fx_node(g, "Concat", "shared", IDS(z, x)); /* has another reader: is an input */
    graph_set_attr_i(g, fx_last(g), "axis", 1);
    fx_output(g, fx_node(g, "Conv", "y2", IDS(preact(g, "p2", shared, 5), w5, fx_weight(g, "b", INTS(4)))));
    fx_output(g, shared);
    int32_t rows = fx_node(g, "Concat", "rows", IDS(x, x)); /* of another axis: is an input */
    graph_set_attr_i(g, fx_last(g), "axis", 2);
    fx_output(g, fx_node(g, "Conv", "y3", IDS(preact(g, "p3", rows, 3), w3)));
    fx_output(g, fx_node(g, "Conv", "y4", IDS(preact(g, "p4", shared, 5), wide))); /* not pointwise */
    int32_t seen = preact(g, "p5", x, 3);                                          /* read twice */
    fx_output(g, fx_node(g, "Conv", "y5", IDS(seen, w3)));
    fx_output(g, seen);
    int32_t down = preact(g, "p6", x, 3);
    fx_output(g, fx_node(g, "Conv", "y6", IDS(down, w3)));
    graph_set_attr_ints(g, fx_last(g), "strides", (int64_t[]){2, 2}, 2);
    assert_int_equal(passes_infer(g, NULL, NULL, NULL), YK_OK);
    assert_int_equal(fx_count(g, "PreactConv"), 3);
    assert_int_equal(fx_count(g, "Concat"), 2);
    assert_int_equal(fx_count(g, "BatchNormalization"), 3);
    const struct node *n = node_of(g, "y1");
    assert_string_equal(n->op->name, "PreactConv");
    assert_string_equal(node_attr_s(n, "activation", ""), "relu");
    assert_int_equal(n->n_in, 6);
    assert_string_equal(in_of(g, n, 0)->name, "x");
    assert_string_equal(in_of(g, n, 5)->name, "z");
    const float *zero = in_of(g, n, 2)->data, *scale = in_of(g, n, 3)->data, *shift = in_of(g, n, 4)->data;
    for (int i = 0; i < 5; i++) { /* fx_weight: all four parameters are (i + 1) / 4 */
        double v = (i + 1) * 0.25, f = v / sqrt(v + (double)1e-5f);
        assert_true(scale[i] == (float)f && shift[i] == (float)(v - v * f));
    }
    assert_true(zero[0] == 0 && zero[3] == 0);
    n = node_of(g, "y2");
    assert_int_equal(n->n_in, 5);
    assert_string_equal(in_of(g, n, 0)->name, "shared");
    assert_string_equal(in_of(g, n, 2)->name, "b");
    assert_string_equal(in_of(g, node_of(g, "y3"), 0)->name, "rows");
    assert_string_equal(node_of(g, "y4")->op->name, "Conv");
    assert_string_equal(node_of(g, "y5")->op->name, "Conv");
    assert_string_equal(node_of(g, "y6")->op->name, "Conv");
    check(g);
    graph_close(g);
}

/* As PaddleOCR's detector has it: learned factors and terms around convolutions, hard swish written out. */
static void test_affine(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    graph_sym(g, "N");
    float one[] = {0.5f}, three[] = {3}, zero[] = {0}, six[] = {6};
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 3, 8, 8)), w = fx_weight(g, "w", INTS(4, 3, 1, 1));
    int32_t half = fx_floats(g, "half", one, 1), c3 = fx_floats(g, "c3", three, 1), c0 = fx_floats(g, "c0", zero, 1),
            c6 = fx_floats(g, "c6", six, 1), by = fx_weight(g, "by", INTS(1, 4, 1, 1));
    g->values[c3].shape.rank = g->values[c0].shape.rank = g->values[c6].shape.rank = 0;
    int32_t v = fx_node(g, "Conv", "c1", IDS(x, w));
    v = fx_node(g, "Add", "a1", IDS(fx_node(g, "Mul", "m1", IDS(half, v)), by)); /* into c1 */
    int32_t clip = fx_node(g, "Clip", "clip", IDS(fx_node(g, "Add", "plus", IDS(v, c3)), c0, c6));
    v = fx_node(g, "Div", "swish", IDS(fx_node(g, "Mul", "product", IDS(v, clip)), c6));
    v = fx_node(g, "Add", "a2", IDS(fx_node(g, "Mul", "m2", IDS(v, half)), by)); /* stays: zeros around it */
    v = fx_node(g, "Conv", "c2", IDS(v, fx_weight(g, "w2", INTS(4, 1, 3, 3))));
    graph_set_attr_i(g, fx_last(g), "group", 4);
    graph_set_attr_ints(g, fx_last(g), "pads", (int64_t[]){1, 1, 1, 1}, 4);
    v = fx_node(g, "Relu", "relu", IDS(v));
    v = fx_node(g, "Sub", "a3", IDS(fx_node(g, "Mul", "m3", IDS(v, by)), half)); /* into c3 */
    fx_output(g, fx_node(g, "Conv", "y", IDS(v, fx_weight(g, "w3", INTS(2, 4, 1, 1)))));
    assert_int_equal(passes_infer(g, NULL, NULL, NULL), YK_OK);
    assert_int_equal(g->n_nodes, 4);
    assert_int_equal(fx_count(g, "FusedConv"), 2);
    assert_int_equal(fx_count(g, "BatchNormalization"), 1);
    const struct node *n = node_of(g, "swish");
    assert_string_equal(node_attr_s(n, "activation", ""), "hard_swish");
    const float *weights = in_of(g, n, 1)->data, *bias = in_of(g, n, 2)->data;
    for (int i = 0; i < 12; i++)
        assert_true(weights[i] == (float)(i % 7 + 1) * 0.125f);
    for (int i = 0; i < 4; i++)
        assert_true(bias[i] == (float)(i + 1) * 0.25f);
    n = node_of(g, "y");
    assert_int_equal(n->n_in, 3);
    bias = in_of(g, n, 2)->data; /* w3 is 1 2 3 4, 5 6 7 1 quarters; the term is -1/2 */
    assert_true(bias[0] == -1.25f && bias[1] == -2.375f);
    weights = in_of(g, n, 1)->data; /* times 1 2 3 4 quarters */
    assert_true(weights[0] == 0.0625f && weights[3] == 1.0f && weights[7] == 0.25f);
    check(g);
    graph_close(g);
}

static void test_fuse_gemm(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 5, 8)), w = fx_weight(g, "w", INTS(8, 8));
    int32_t b = fx_weight(g, "b", INTS(8)), rows = fx_weight(g, "rows", INTS(5, 1));
    int32_t v = fx_node(g, "Relu", "r", IDS(fx_node(g, "Add", "a", IDS(b, fx_node(g, "MatMul", "m", IDS(x, w))))));
    v = fx_node(g, "Add", "a2", IDS(fx_node(g, "MatMul", "m2", IDS(v, w)), rows)); /* not a bias per column */
    int32_t flat = fx_node(g, "Flatten", "flat", IDS(v)), w2 = fx_weight(g, "w2", INTS(3, 40));
    int32_t gm = fx_node(g, "Gemm", "gm", IDS(flat, w2));
    graph_set_attr_i(g, fx_last(g), "transB", 1);
    fx_output(g, fx_node(g, "Relu", "y", IDS(gm)));
    assert_int_equal(passes_fuse(g, NULL), YK_OK);
    assert_int_equal(fx_count(g, "FusedGemm"), 2);
    assert_int_equal(fx_count(g, "MatMul"), 1);
    assert_int_equal(fx_count(g, "Add"), 1);
    assert_int_equal(fx_count(g, "Relu"), 0);
    const struct node *n = node_of(g, "r");
    assert_string_equal(in_of(g, n, 2)->name, "b");
    assert_string_equal(node_attr_s(n, "activation", ""), "relu");
    n = node_of(g, "y");
    assert_int_equal(node_attr_i(n, "transB", 0), 1);
    assert_int_equal(n->n_in, 2);
    check(g);
    graph_close(g);
}

/* x - mean, squared mean, root, scale, bias: one node; with another power or axis it stays. */
static void test_layernorm(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct graph *g = fx_open();
        graph_sym(g, "N");
        int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 5, 8)), gamma = fx_weight(g, "gamma", INTS(8));
        int32_t beta = kind == 1 ? fx_weight(g, "beta", INTS(5, 8)) : fx_weight(g, "beta", INTS(8));
        int32_t two = fx_floats(g, "two", (const float[]){kind == 2 ? 3 : 2}, 1);
        int32_t eps = fx_floats(g, "eps", (const float[]){1e-5f}, 1);
        int32_t mean = fx_node(g, "ReduceMean", "mean", IDS(x));
        graph_set_attr_ints(g, fx_last(g), "axes", (const int64_t[]){-1}, 1);
        int32_t d = fx_node(g, "Sub", "d", IDS(x, mean));
        int32_t v = fx_node(g, "ReduceMean", "v", IDS(fx_node(g, "Pow", "sq", IDS(d, two))));
        graph_set_attr_ints(g, fx_last(g), "axes", (const int64_t[]){kind == 3 ? 1 : 2}, 1);
        int32_t q =
            fx_node(g, "Div", "q", IDS(d, fx_node(g, "Sqrt", "root", IDS(fx_node(g, "Add", "e", IDS(v, eps))))));
        fx_output(g, fx_node(g, "Add", "y", IDS(beta, fx_node(g, "Mul", "m", IDS(q, gamma)))));
        assert_int_equal(passes_infer(g, NULL, NULL, NULL), YK_OK);
        assert_int_equal(g->n_nodes, kind == 0 ? 1 : 9);
        if (kind == 0) {
            const struct node *n = node_of(g, "y");
            assert_string_equal(n->op->name, "LayerNormalization");
            assert_int_equal(node_attr_i(n, "axis", 0), -1);
            assert_true(node_attr_f(n, "epsilon", 0) == 1e-5f);
            assert_string_equal(in_of(g, n, 1)->name, "gamma");
            assert_string_equal(in_of(g, n, 2)->name, "beta");
        }
        check(g);
        graph_close(g);
    }
}

/* The same graph built twice gives the same nodes, names and data. */
static void test_same_again(void **state)
{
    (void)state;
    struct yk_rng r[2];
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct graph *g[2];
        for (int k = 0; k < 2; k++) {
            yk_rng_seed(&r[k], seed);
            g[k] = fx_random(&r[k], 40);
            assert_int_equal(passes_infer(g[k], NULL, NULL, NULL), YK_OK);
            check(g[k]);
        }
        assert_int_equal(g[0]->n_nodes, g[1]->n_nodes);
        assert_int_equal(g[0]->n_values, g[1]->n_values);
        for (int32_t i = 0; i < g[0]->n_nodes; i++) {
            assert_ptr_equal(g[0]->nodes[i].op, g[1]->nodes[i].op);
            assert_memory_equal(g[0]->nodes[i].in, g[1]->nodes[i].in, (size_t)g[0]->nodes[i].n_in * sizeof(int32_t));
        }
        int32_t n = g[0]->n_nodes;
        assert_int_equal(passes_infer(g[0], NULL, NULL, NULL), YK_OK); /* and once more changes nothing */
        assert_int_equal(g[0]->n_nodes, n);
        graph_close(g[0]);
        graph_close(g[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_noops), cmocka_unit_test(test_not_noops),
        cmocka_unit_test(test_fold_with_eval), cmocka_unit_test(test_constant_nodes),
        cmocka_unit_test(test_fold_bounded), cmocka_unit_test(test_fold_work_bounded),
        cmocka_unit_test(test_reshape_chains), cmocka_unit_test(test_varying_stays),
        cmocka_unit_test(test_gemm_over_axes), cmocka_unit_test(test_batchnorm), cmocka_unit_test(test_batchnorm_gemm),
        cmocka_unit_test(test_fuse_conv), cmocka_unit_test(test_fuse_activations), cmocka_unit_test(test_fuse_preact),
        cmocka_unit_test(test_affine), cmocka_unit_test(test_fuse_gemm), cmocka_unit_test(test_layernorm),
        cmocka_unit_test(test_same_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
