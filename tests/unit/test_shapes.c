/* Inference over whole graphs: sizes of named dimensions, contents through shape arithmetic, errors that name a node.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/shapes.h"
#include "tests/unit/graph_fixture.h"

static const struct shape *shape_of(const struct graph *g, const struct shapes *s, const char *name)
{
    int32_t id = graph_find_value(g, name);
    assert_true(id >= 0);
    return &s->of[id];
}

static void test_sizes(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    struct shapes s;
    struct yk_diag why;
    graph_sym(g, "N");
    graph_sym(g, "unused");
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 3, 8, 8));
    int32_t y = fx_node(g, "Conv", "y", IDS(x, fx_weight(g, "w", INTS(5, 3, 3, 3))));
    fx_node(g, "Flatten", "z", IDS(y));
    assert_int_equal(shapes_infer(g, (const int64_t[]){7, -1}, NULL, &s, &why), YK_OK);
    assert_int_equal(shape_of(g, &s, "z")->dims[0], 7);
    assert_int_equal(shape_of(g, &s, "z")->dims[1], 5 * 36);
    shapes_fini(&s);
    assert_int_equal(shapes_infer(g, (const int64_t[]){0, -1}, NULL, &s, &why), YK_OK); /* an empty batch */
    assert_int_equal(shape_count(shape_of(g, &s, "z")), 0);
    shapes_fini(&s);
    assert_int_equal(shapes_infer(g, (const int64_t[]){-1, 2}, NULL, &s, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "'N'"));
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, &why), YK_INVAL);
    assert_int_equal(shapes_infer(g, (const int64_t[]){(int64_t)1 << 60, 1}, NULL, &s, &why), YK_LIMIT);
    graph_close(g);
}

static void test_given_shapes(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    struct shapes s;
    struct yk_diag why;
    int32_t x = graph_add_value(g, "x", VALUE_INPUT, DT_F32); /* no declared shape */
    g->inputs[g->n_inputs++] = x;
    int32_t y = fx_input(g, "y", DT_F32, INTS(2, 3));
    fx_node(g, "Add", "z", IDS(x, y));
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "'x'"));
    struct shape given = {.dtype = DT_F32, .rank = 3, .dims = {5, 1, 3}}, bad = given;
    assert_int_equal(shapes_infer(g, NULL, (const struct shape *const[]){&given, NULL}, &s, &why), YK_OK);
    assert_int_equal(shape_of(g, &s, "z")->dims[1], 2);
    shapes_fini(&s);
    bad.dtype = DT_I64;
    assert_int_equal(shapes_infer(g, NULL, (const struct shape *const[]){&bad, NULL}, &s, &why), YK_INVAL);
    bad = (struct shape){.dtype = DT_F32, .rank = 2, .dims = {2, 4}}; /* not what y declares */
    assert_int_equal(shapes_infer(g, NULL, (const struct shape *const[]){&given, &bad}, &s, &why), YK_INVAL);
    bad.dims[0] = -1;
    assert_int_equal(shapes_infer(g, NULL, (const struct shape *const[]){&bad, NULL}, &s, &why), YK_INVAL);
    graph_close(g);
}

/* What exporters write for x.view(x.size(0), -1): Shape, Gather, Unsqueeze, Concat, Reshape; and arithmetic on it. */
static void test_contents(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    struct shapes s;
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, INTS(-1, 4, 6));
    int32_t zero = fx_scalar_int(g, "zero", 0), axes = fx_ints(g, "axes", INTS(0)), two = fx_scalar_int(g, "two", 2);
    int32_t shape = fx_node(g, "Shape", "shape", IDS(x));
    int32_t n = fx_node(g, "Gather", "n", IDS(shape, zero));
    int32_t n2 = fx_node(g, "Mul", "n2", IDS(n, two));
    int32_t minus = fx_ints(g, "minus", INTS(-1));
    int32_t u = fx_node(g, "Unsqueeze", "u", IDS(n2, axes));
    int32_t target = fx_node(g, "Concat", "target", IDS(u, minus));
    graph_set_attr_i(g, fx_last(g), "axis", 0);
    fx_node(g, "Reshape", "y", IDS(x, target));
    int32_t tail = fx_node(g, "Slice", "tail",
        IDS(shape, fx_ints(g, "one", INTS(1)), fx_ints(g, "end", INTS(INT64_MAX)), fx_ints(g, "ax", INTS(0))));
    fx_node(g, "ReduceProd", "prod", IDS(tail));
    int32_t half = fx_node(g, "Div", "half", IDS(n, two));
    int32_t less = fx_node(g, "Less", "less", IDS(half, two));
    fx_node(g, "Where", "pick", IDS(less, zero, n));
    fx_node(g, "Range", "range", IDS(zero, n, two));
    fx_node(g, "ConstantOfShape", "zeros", IDS(tail));
    fx_node(g, "Cast", "small", IDS(n));
    graph_set_attr_i(g, fx_last(g), "to", 3); /* int8 */
    assert_int_equal(shapes_infer(g, (const int64_t[]){5}, NULL, &s, NULL), YK_OK);
    assert_int_equal(shape_of(g, &s, "y")->dims[0], 10);
    assert_int_equal(shape_of(g, &s, "y")->dims[1], 12);
    assert_int_equal(s.content[graph_find_value(g, "prod")][0], 24);
    assert_int_equal(s.content[graph_find_value(g, "half")][0], 2);
    assert_int_equal(s.content[graph_find_value(g, "pick")][0], 5);
    assert_int_equal(s.content[graph_find_value(g, "small")][0], 5);
    assert_int_equal(shape_of(g, &s, "range")->dims[0], 3);
    assert_int_equal(s.content[graph_find_value(g, "range")][2], 4);
    assert_int_equal(shape_of(g, &s, "zeros")->dims[1], 6);
    struct op_ctx *c = calloc(1, sizeof *c);
    shapes_node(g, &s, g->values[target].producer, c);
    assert_true(c->out_known[0] && c->out_content[0][0] == 10 && c->out_content[0][1] == -1);
    free(c);
    shapes_fini(&s);
    assert_int_equal(shapes_infer(g, (const int64_t[]){300}, NULL, &s, NULL), YK_OK);
    assert_null(s.content[graph_find_value(g, "small")]); /* does not fit int8: unknown, not wrong */
    shapes_fini(&s);
    graph_close(g);
}

/* Integer weights are read in place, aligned or not, of any integer type; a skeleton's missing data is unknown. */
static void test_weight_contents(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    struct shapes s;
    struct yk_diag why;
    uint8_t bytes[1 + 8] = {99, 3, 0, 0, 0, 4, 0, 0, 0};
    struct shape shape = {.dtype = DT_I32, .rank = 1, .dims = {2}};
    int32_t x = fx_input(g, "x", DT_F32, INTS(12));
    int32_t w = graph_add_weight(g, "w", &shape, bytes + 1);
    fx_node(g, "Tile", "t", IDS(x, fx_ints(g, "r", INTS(1))));
    fx_node(g, "Reshape", "y", IDS(x, w));
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, NULL), YK_OK);
    assert_int_equal(shape_of(g, &s, "y")->dims[1], 4);
    shapes_fini(&s);
    g->values[w].data = NULL;
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, &why), YK_OK);
    assert_false(shapes_has(&s, graph_find_value(g, "y")));
    assert_true(!s.dynamic[0] && s.dynamic[1] && s.n_dynamic == 1);
    shapes_fini(&s);
    graph_close(g);
}

static void test_limits(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    struct shapes s;
    struct yk_diag why;
    int32_t in[OP_MAX_IN + 1], x = fx_input(g, "x", DT_F32, INTS(2));
    for (size_t i = 0; i < YK_COUNT(in); i++)
        in[i] = x;
    fx_node(g, "Sum", "y", in, (int32_t)YK_COUNT(in));
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, &why), YK_LIMIT);
    g->nodes[0].n_in = OP_MAX_IN;
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, &why), YK_OK);
    shapes_fini(&s);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_given_shapes),
        cmocka_unit_test(test_contents), cmocka_unit_test(test_weight_contents), cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
