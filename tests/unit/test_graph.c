/* The graph: dtypes, shapes, builders, canonical order, pruning, batch dimension. */
#include <stdio.h>

#include "tests/unit/graph_fixture.h"

static void test_dtypes(void **state)
{
    (void)state;
    for (int t = 1; t < DT_COUNT; t++) {
        assert_int_equal(dtype_find(dtype_name((enum dtype)t)), t);
        assert_int_equal(dtype_from_onnx(dtype_to_onnx((enum dtype)t)), t);
        assert_true(dtype_bytes((enum dtype)t) > 0);
    }
    assert_int_equal(dtype_from_onnx(1), DT_F32);
    assert_int_equal(dtype_from_onnx(7), DT_I64);
    assert_int_equal(dtype_from_onnx(8), DT_NONE); /* strings */
    assert_int_equal(dtype_from_onnx(-1), DT_NONE);
    assert_int_equal(dtype_find("string"), DT_NONE);
    assert_int_equal(dtype_bytes((enum dtype)99), 0);
    assert_true(dtype_is_int(DT_U8) && !dtype_is_int(DT_BOOL) && !dtype_is_float(DT_I32));
}

static void test_read_int(void **state)
{
    (void)state;
    const uint8_t bytes[] = {9, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2};
    assert_int_equal(dtype_read_int(DT_I64, bytes + 1, 0), -2);
    assert_int_equal(dtype_read_int(DT_I32, bytes + 1, 0), -2);
    assert_int_equal(dtype_read_int(DT_U32, bytes + 1, 0), 0xfffffffe);
    assert_int_equal(dtype_read_int(DT_I8, bytes, 1), -2);
    assert_int_equal(dtype_read_int(DT_U8, bytes, 1), 254);
    assert_int_equal(dtype_read_int(DT_BOOL, bytes, 9), 1);
    assert_int_equal(dtype_read_int(DT_I16, bytes + 1, 0), -2);
}

static void test_shapes(void **state)
{
    (void)state;
    struct shape s = {.dtype = DT_F32, .rank = 3, .dims = {2, 3, 4}};
    char text[64];
    assert_int_equal(shape_count(&s), 24);
    assert_int_equal(shape_bytes(&s), 96);
    shape_text(&s, text, sizeof text);
    assert_string_equal(text, "float32[2,3,4]");
    s.dims[1] = -1;
    assert_int_equal(shape_count(&s), -1);
    shape_text(&s, text, sizeof text);
    assert_string_equal(text, "float32[2,?,4]");
    shape_text(&s, text, 5); /* cut, not overrun */
    assert_string_equal(text, "floa");
    s.dims[1] = 0;
    assert_int_equal(shape_count(&s), 0);
    s.dims[0] = INT64_MAX;
    assert_int_equal(shape_count(&s), -1); /* strides would overflow though it is empty */
    s = (struct shape){.dtype = DT_F64, .rank = 2, .dims = {(int64_t)1 << 40, (int64_t)1 << 40}};
    assert_int_equal(shape_bytes(&s), -1);
    s.rank = -1;
    assert_int_equal(shape_count(&s), -1);
    s.rank = 0;
    assert_int_equal(shape_count(&s), 1);
}

static void test_attrs(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int32_t x = fx_input(g, "x", DT_F32, INTS(1, 2));
    fx_node(g, "Softmax", "y", IDS(x));
    struct node *n = fx_last(g);
    assert_int_equal(node_attr_i(n, "axis", -1), -1);
    assert_int_equal(graph_set_attr_i(g, n, "axis", 1), YK_OK);
    assert_int_equal(graph_set_attr_f(g, n, "f", 0.5f), YK_OK);
    assert_int_equal(graph_set_attr_s(g, n, "s", "text"), YK_OK);
    assert_int_equal(graph_set_attr_ints(g, n, "is", (const int64_t[]){4, 5}, 2), YK_OK);
    assert_int_equal(graph_set_attr_i(g, n, "axis", 0), YK_OK); /* again: replaced */
    assert_int_equal(n->n_attr, 4);
    assert_int_equal(node_attr_i(n, "axis", -1), 0);
    assert_true(node_attr_f(n, "f", 0) == 0.5f);
    assert_string_equal(node_attr_s(n, "s", ""), "text");
    assert_int_equal(node_attr_ints(n, "is")->ints[1], 5);
    assert_null(node_attr_ints(n, "axis"));              /* another kind */
    assert_int_equal(node_attr_i(n, "f", 7), 7);         /* another kind */
    assert_string_equal(node_attr_s(n, "is", "d"), "d"); /* another kind */
    assert_int_equal(graph_find_value(g, "y"), 1);
    assert_int_equal(graph_find_value(g, "z"), YK_ABSENT);
    assert_int_equal(graph_sym(g, "N"), 0);
    assert_int_equal(graph_sym(g, "T"), 1);
    assert_int_equal(graph_sym(g, "N"), 0);
    assert_int_equal(graph_find_sym(g, "T"), 1);
    assert_int_equal(graph_find_sym(g, "U"), -1);
    graph_close(g);
}

static void test_limit(void **state)
{
    (void)state;
    struct graph *g = graph_open(64 << 10);
    int32_t n = 0;
    assert_non_null(g);
    while (graph_add_value(g, "a name that takes some room", VALUE_INPUT, DT_F32) != YK_ABSENT)
        n++;
    assert_true(n > 10 && n < 2000);
    assert_non_null(graph_alloc_data(g, 1 << 20)); /* made weights are outside the limit */
    graph_close(g);
    graph_close(NULL);
}

static bool before(const struct graph *g, const char *a, const char *b)
{
    return g->values[graph_find_value(g, a)].producer < g->values[graph_find_value(g, b)].producer;
}

static void test_sort(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int32_t x = fx_input(g, "x", DT_F32, INTS(1, 2));
    int32_t c = graph_add_value(g, "c", VALUE_NODE, DT_NONE), b = graph_add_value(g, "b", VALUE_NODE, DT_NONE),
            a = graph_add_value(g, "a", VALUE_NODE, DT_NONE), d = graph_add_value(g, "d", VALUE_NODE, DT_NONE);
    const struct op *relu = op_find("", "Relu"), *add = op_find("", "Add");
    graph_add_node(g, "nc", add, IDS(b, b), IDS(c));
    graph_add_node(g, "nb", relu, IDS(a), IDS(b));
    graph_add_node(g, "nd", relu, IDS(x), IDS(d));
    graph_add_node(g, "na", relu, IDS(x), IDS(a));
    fx_output(g, c);
    fx_output(g, d);
    assert_int_equal(graph_sort(g, NULL), YK_OK);
    assert_true(before(g, "a", "b") && before(g, "b", "c"));
    /* ties by the order before: d stood before a, and both could run first */
    assert_string_equal(g->nodes[0].name, "nd");
    assert_string_equal(g->nodes[1].name, "na");
    assert_string_equal(g->nodes[2].name, "nb");
    struct node kept[4];
    memcpy(kept, g->nodes, sizeof kept);
    assert_int_equal(graph_sort(g, NULL), YK_OK); /* sorted stays as it is */
    assert_memory_equal(kept, g->nodes, sizeof kept);
    graph_close(g);
}

static void test_sort_bad(void **state)
{
    (void)state;
    struct yk_diag why;
    const struct op *relu = op_find("", "Relu"), *add = op_find("", "Add");

    struct graph *g = fx_open(); /* a cycle */
    int32_t x = fx_input(g, "x", DT_F32, INTS(1));
    int32_t a = graph_add_value(g, "a", VALUE_NODE, DT_NONE), b = graph_add_value(g, "b", VALUE_NODE, DT_NONE);
    graph_add_node(g, "first", add, IDS(x, b), IDS(a));
    graph_add_node(g, "second", relu, IDS(a), IDS(b));
    fx_output(g, b);
    assert_int_equal(graph_sort(g, &why), YK_FORMAT);
    assert_non_null(strstr(why.text, "cycle"));
    graph_close(g);

    g = fx_open(); /* nobody makes it */
    a = graph_add_value(g, "a", VALUE_NODE, DT_NONE);
    b = graph_add_value(g, "b", VALUE_NODE, DT_NONE);
    graph_add_node(g, "n", relu, IDS(a), IDS(b));
    assert_int_equal(graph_sort(g, &why), YK_FORMAT);
    assert_non_null(strstr(why.text, "'a'"));
    graph_close(g);

    g = fx_open(); /* made twice */
    x = fx_input(g, "x", DT_F32, INTS(1));
    b = graph_add_value(g, "b", VALUE_NODE, DT_NONE);
    graph_add_node(g, "n", relu, IDS(x), IDS(b));
    graph_add_node(g, "m", relu, IDS(x), IDS(b));
    assert_int_equal(graph_sort(g, &why), YK_FORMAT);
    assert_non_null(strstr(why.text, "twice"));
    graph_close(g);

    g = fx_open(); /* a graph input made by a node */
    x = fx_input(g, "x", DT_F32, INTS(1));
    graph_add_node(g, "n", relu, IDS(x), IDS(x));
    assert_int_equal(graph_sort(g, &why), YK_FORMAT);
    graph_close(g);

    g = fx_open(); /* an output that nobody makes, an id that is not there */
    fx_output(g, graph_add_value(g, "a", VALUE_NODE, DT_NONE));
    assert_int_equal(graph_sort(g, &why), YK_FORMAT);
    g->n_outputs = 0;
    b = graph_add_value(g, "b", VALUE_NODE, DT_NONE);
    graph_add_node(g, "n", relu, IDS(77), IDS(b));
    assert_int_equal(graph_sort(g, &why), YK_FORMAT);
    graph_close(g);
}

static void test_prune(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int32_t x = fx_input(g, "x", DT_F32, INTS(1, 4)), unused = fx_input(g, "unused", DT_F32, INTS(1));
    int32_t w = fx_weight(g, "w", INTS(4));
    fx_weight(g, "dead_w", INTS(1000));
    int32_t y = fx_node(g, "Add", "y", IDS(x, w));
    fx_node(g, "Relu", "dead", IDS(y));
    /* an optional output that nobody reads goes, those of Split stay */
    int32_t d = graph_add_value(g, "d", VALUE_NODE, DT_NONE), mask = graph_add_value(g, "mask", VALUE_NODE, DT_NONE);
    graph_add_node(g, "drop", op_find("", "Dropout"), IDS(y), IDS(d, mask));
    int32_t s0 = graph_add_value(g, "s0", VALUE_NODE, DT_NONE), s1 = graph_add_value(g, "s1", VALUE_NODE, DT_NONE);
    graph_add_node(g, "split", op_find("", "Split"), IDS(d), IDS(s0, s1));
    graph_set_attr_i(g, fx_last(g), "axis", 1);
    fx_output(g, s1);
    (void)unused;
    assert_int_equal(graph_sort(g, NULL), YK_OK);
    assert_int_equal(graph_prune(g), YK_OK);
    assert_int_equal(g->n_nodes, 3);
    assert_int_equal(graph_find_value(g, "dead"), YK_ABSENT);
    assert_int_equal(graph_find_value(g, "dead_w"), YK_ABSENT);
    assert_int_equal(graph_find_value(g, "mask"), YK_ABSENT);
    assert_int_equal(g->n_inputs, 2); /* the interface stays */
    assert_string_equal(g->values[g->inputs[1]].name, "unused");
    assert_int_equal(g->nodes[1].n_out, 1);
    assert_int_equal(g->nodes[2].n_out, 2);
    assert_string_equal(g->values[g->nodes[2].out[0]].name, "s0");
    assert_string_equal(g->values[g->outputs[0]].name, "s1");
    assert_int_equal(g->values[g->outputs[0]].producer, 2);
    assert_string_equal(g->values[g->nodes[0].in[1]].name, "w");
    assert_true(((const float *)g->values[g->nodes[0].in[1]].data)[0] == 0.25f); /* its data lives */
    graph_close(g);
}

/* A node with a subgraph needs what the subgraph captures: order and pruning know. */
static void test_captures(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    int32_t x = fx_input(g, "x", DT_F32, INTS(1));
    int32_t y = graph_add_value(g, "y", VALUE_NODE, DT_NONE), c = graph_add_value(g, "c", VALUE_NODE, DT_NONE);
    graph_add_node(g, "user", op_find("", "Relu"), IDS(x), IDS(y)); /* stands in for a control op */
    struct graph *sub = graph_open_child(g);
    assert_non_null(sub);
    int32_t in_sub = graph_add_value(sub, "c", VALUE_CAPTURE, DT_NONE);
    sub->values[in_sub].capture = c;
    struct attr *a = yk_arena_alloc(g->arena, 1, sizeof *a);
    *a = (struct attr){.name = "then_branch", .kind = ATTR_GRAPH, .graph = sub};
    g->nodes[0].attr = a;
    g->nodes[0].n_attr = 1;
    int32_t dead = fx_node(g, "Exp", "dead", IDS(x));
    (void)dead;
    graph_add_node(g, "makes_c", op_find("", "Neg"), IDS(x), IDS(c));
    fx_output(g, y);
    assert_int_equal(graph_sort(g, NULL), YK_OK);
    assert_true(before(g, "c", "y"));
    assert_int_equal(graph_prune(g), YK_OK);
    assert_int_equal(g->n_nodes, 2);
    assert_int_equal(sub->values[in_sub].capture, graph_find_value(g, "c"));
    graph_close(g);
}

static void test_batch_dim(void **state)
{
    (void)state;
    int64_t fixed;
    struct graph *g = fx_open();
    assert_int_equal(graph_batch_dim(g, &fixed), -1);
    assert_int_equal(fixed, 1);
    int32_t n = graph_sym(g, "N"), t = graph_sym(g, "T");
    fx_input(g, "x", DT_F32, INTS(-1, 3, -2));
    fx_input(g, "mask", DT_F32, INTS(-2, -2));
    fx_input(g, "y", DT_F32, INTS(-1));
    assert_int_equal(graph_batch_dim(g, &fixed), n);
    fx_input(g, "z", DT_F32, INTS(4, -1)); /* here it is not in front */
    assert_int_equal(graph_batch_dim(g, &fixed), -1);
    (void)t;
    graph_close(g);

    g = fx_open();
    fx_input(g, "x", DT_F32, INTS(4, 3));
    assert_int_equal(graph_batch_dim(g, &fixed), -1);
    assert_int_equal(fixed, 4);
    graph_close(g);

    g = fx_open();
    fx_input(g, "x", DT_F32, NULL, 0);
    assert_int_equal(graph_batch_dim(g, &fixed), -1);
    assert_int_equal(fixed, 1);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dtypes), cmocka_unit_test(test_read_int),
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_attrs), cmocka_unit_test(test_limit),
        cmocka_unit_test(test_sort), cmocka_unit_test(test_sort_bad), cmocka_unit_test(test_prune),
        cmocka_unit_test(test_captures), cmocka_unit_test(test_batch_dim)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
