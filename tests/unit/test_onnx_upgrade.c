/* ONNX import: nodes of opsets 6 to 16 become the form of opset 17. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/op.h"
#include "tests/unit/onnx_held.h"

static struct yk_buf old;
static size_t old_graph;

static void old_begin(int opset, const char *x_dims)
{
    old = (struct yk_buf){0};
    old_graph = make_model(&old, opset);
    make_value(&old, 11, "x", 1, x_dims);
}

static struct graph *old_end(struct held *h)
{
    make_value(&old, 12, "y", 1, "-");
    make_end(&old, old_graph);
    return accept(h, &old);
}

static void upgrade_attributes_to_inputs(void **state)
{
    const int64_t two[] = {1, -1}, pads[] = {0, 1, 0, 2};
    struct held h;
    (void)state;

    old_begin(10, "N,4"); /* Clip-6 */
    size_t n = make_node(&old, "Clip", "x", "y");
    make_attr_f(&old, "min", 0);
    make_attr_f(&old, "max", 6);
    pb_end(&old, n);
    struct graph *g = old_end(&h);
    assert_int_equal(g->nodes[0].n_in, 3);
    assert_int_equal(g->nodes[0].n_attr, 0);
    assert_true(*(const float *)input(g, 0, 1)->data == 0.0f && *(const float *)input(g, 0, 2)->data == 6.0f);
    assert_int_equal(input(g, 0, 2)->shape.rank, 0);
    drop(&h);

    old_begin(10, "N,4"); /* only max */
    n = make_node(&old, "Clip", "x", "y");
    make_attr_f(&old, "max", 6);
    pb_end(&old, n);
    g = old_end(&h);
    assert_int_equal(g->nodes[0].n_in, 3);
    assert_int_equal(g->nodes[0].in[1], YK_ABSENT);
    drop(&h);

    static const char *const axes_ops[] = {"Squeeze", "Unsqueeze", "ReduceSum"};
    for (size_t i = 0; i < YK_COUNT(axes_ops); i++) {
        old_begin(11, "1,4,1");
        n = make_node(&old, axes_ops[i], "x", "y");
        make_attr_ints(&old, "axes", two, 2);
        pb_end(&old, n);
        g = old_end(&h);
        expect_i64(input(g, 0, 1), two, 2);
        assert_null(node_attr(&g->nodes[0], "axes"));
        drop(&h);
    }

    old_begin(11, "N,4"); /* ReduceMean keeps its attribute up to opset 17 */
    n = make_node(&old, "ReduceMean", "x", "y");
    make_attr_ints(&old, "axes", two, 1);
    pb_end(&old, n);
    g = old_end(&h);
    assert_int_equal(g->nodes[0].n_in, 1);
    assert_non_null(node_attr_ints(&g->nodes[0], "axes"));
    drop(&h);

    old_begin(10, "N,4"); /* Pad-2 */
    n = make_node(&old, "Pad", "x", "y");
    make_attr_ints(&old, "pads", pads, 4);
    make_attr_f(&old, "value", 0.5f);
    make_attr_s(&old, "mode", "constant", 8);
    pb_end(&old, n);
    g = old_end(&h);
    expect_i64(input(g, 0, 1), pads, 4);
    assert_true(*(const float *)input(g, 0, 2)->data == 0.5f);
    assert_string_equal(node_attr_s(&g->nodes[0], "mode", ""), "constant");
    drop(&h);

    old_begin(9, "N,4"); /* Slice-1 */
    n = make_node(&old, "Slice", "x", "y");
    make_attr_ints(&old, "axes", two, 1);
    make_attr_ints(&old, "ends", two, 1);
    make_attr_ints(&old, "starts", pads, 1);
    pb_end(&old, n);
    g = old_end(&h);
    expect_i64(input(g, 0, 1), pads, 1);
    expect_i64(input(g, 0, 2), two, 1);
    expect_i64(input(g, 0, 3), two, 1);
    drop(&h);

    old_begin(11, "N,4"); /* Split-2 */
    n = make_node(&old, "Split", "x", "y,z");
    const int64_t parts[] = {1, 3};
    make_attr_ints(&old, "split", parts, 2);
    make_attr_i(&old, "axis", 1);
    pb_end(&old, n);
    g = old_end(&h);
    expect_i64(input(g, 0, 1), parts, 2);
    drop(&h);

    old_begin(11, "N,4"); /* Dropout-10 */
    n = make_node(&old, "Dropout", "x", "y,_");
    make_attr_f(&old, "ratio", 0.25f);
    pb_end(&old, n);
    g = old_end(&h);
    assert_true(*(const float *)input(g, 0, 1)->data == 0.25f);
    assert_int_equal(g->nodes[0].n_out, 1);
    drop(&h);
}

static void upgrade_softmax(void **state)
{
    static const char *const chain[] = {"Shape", "Flatten", "Softmax", "Reshape"};
    struct held h;
    (void)state;
    for (int rank2 = 0; rank2 < 2; rank2++) {
        old_begin(11, rank2 ? "N,4" : "N,4,5");
        make_plain(&old, "Relu", "x", "r");
        size_t n = make_node(&old, "Softmax", "r", "y");
        make_attr_i(&old, "axis", 1);
        pb_end(&old, n);
        struct graph *g = old_end(&h);
        assert_int_equal(g->n_nodes, rank2 ? 2 : 5); /* in two dimensions the forms agree */
        for (int i = 0; i < 4 && !rank2; i++)
            assert_string_equal(g->nodes[i + 1].op->name, chain[i]);
        assert_int_equal(node_attr_i(&g->nodes[rank2 ? 1 : 3], "axis", 0), -1);
        if (!rank2)
            assert_int_equal(node_attr_i(&g->nodes[2], "axis", 0), 1);
        assert_string_equal(g->values[g->outputs[0]].name, "y");
        drop(&h);
    }
    old_begin(11, "N,4,5"); /* the last axis */
    size_t n = make_node(&old, "LogSoftmax", "x", "y");
    make_attr_i(&old, "axis", -1);
    pb_end(&old, n);
    assert_int_equal(old_end(&h)->n_nodes, 1);
    drop(&h);
    old_begin(13, "N,4,5"); /* opset 13 is not touched: the default is the last axis */
    make_plain(&old, "Softmax", "x", "y");
    struct graph *g = old_end(&h);
    assert_int_equal(g->n_nodes, 1);
    assert_int_equal(g->nodes[0].n_attr, 0);
    drop(&h);
    old_begin(12, "N,4,5"); /* the old default is 1 */
    make_plain(&old, "Softmax", "x", "y");
    assert_int_equal(old_end(&h)->n_nodes, 4);
    drop(&h);
}

static void upgrade_batchnorm_and_broadcast(void **state)
{
    const float w[] = {1, 2, 3};
    struct held h;
    (void)state;
    old_begin(8, "N,3,4,4");
    make_weight_f32(&old, "w", 3, w);
    size_t n = make_node(&old, "BatchNormalization", "x,w,w,w,w", "y,m,v,sm,sv");
    make_attr_i(&old, "spatial", 1);
    make_attr_f(&old, "epsilon", 0.25f);
    pb_end(&old, n);
    struct graph *g = old_end(&h);
    assert_int_equal(g->nodes[0].n_out, 1);
    assert_null(node_attr(&g->nodes[0], "spatial"));
    assert_true(node_attr_f(&g->nodes[0], "epsilon", 0) == 0.25f);
    drop(&h);

    old_begin(8, "N,3,4,4"); /* the statistics are used: a training graph */
    make_weight_f32(&old, "w", 3, w);
    make_plain(&old, "BatchNormalization", "x,w,w,w,w", "z,m,v,sm,sv");
    make_plain(&old, "Relu", "m", "y");
    make_value(&old, 12, "y", 1, "-");
    make_end(&old, old_graph);
    refuse(&old, YK_UNSUPPORTED, "statistics");

    old_begin(6, "N,3,4,4"); /* Add-6 along axis 1: w becomes (3,1,1) */
    make_weight_f32(&old, "w", 3, w);
    n = make_node(&old, "Add", "x,w", "y");
    make_attr_i(&old, "broadcast", 1);
    make_attr_i(&old, "axis", 1);
    pb_end(&old, n);
    g = old_end(&h);
    assert_int_equal(g->n_nodes, 2);
    assert_string_equal(g->nodes[0].op->name, "Unsqueeze");
    expect_i64(input(g, 0, 1), (const int64_t[]){1, 2}, 2);
    assert_string_equal(g->nodes[1].op->name, "Add");
    assert_int_equal(g->nodes[1].n_attr, 0);
    drop(&h);

    old_begin(6, "N,3,4,4"); /* an axis that does not fit */
    make_weight_f32(&old, "w", 3, w);
    n = make_node(&old, "Add", "x,w", "y");
    make_attr_i(&old, "broadcast", 1);
    make_attr_i(&old, "axis", 4);
    pb_end(&old, n);
    make_value(&old, 12, "y", 1, "-");
    make_end(&old, old_graph);
    refuse(&old, YK_FORMAT, "broadcast axis");
}

/* Bounds take the dtype of what they bound, found along the producers. */
static void upgrade_clip_in_half(void **state)
{
    static const struct {
        float bound;
        uint16_t f16, bf16;
    } cases[] = {{1.5f, 0x3e00, 0x3fc0}, {-0.1f, 0xae66, 0xbdcd}, {65519, 0x7bff, 0x4780}, {65520, 0x7c00, 0x4780},
        {3e-8f, 0x0001, 0x3301}};
    (void)state;
    for (size_t i = 0; i < 2 * YK_COUNT(cases); i++) {
        struct held h;
        bool bf16 = i % 2;
        old = (struct yk_buf){0};
        old_graph = make_model(&old, 10);
        make_value(&old, 11, "x", bf16 ? 16 : 10, "N");
        make_plain(&old, "Relu", "x", "r");
        size_t n = make_node(&old, "Clip", "r", "y");
        make_attr_f(&old, "max", cases[i / 2].bound);
        pb_end(&old, n);
        struct graph *g = old_end(&h);
        const struct value *max = input(g, 1, 2);
        assert_int_equal(max->dtype, bf16 ? DT_BF16 : DT_F16);
        assert_int_equal(dtype_read_int(DT_U16, max->data, 0), bf16 ? cases[i / 2].bf16 : cases[i / 2].f16);
        drop(&h);
    }
}

static void constants(void **state)
{
    const int64_t ints[] = {3, -4};
    struct held h;
    (void)state;
    old_begin(13, "N");
    size_t n = make_node(&old, "Constant", "", "f");
    make_attr_f(&old, "value_float", 2.5f);
    pb_end(&old, n);
    n = make_node(&old, "Constant", "", "is");
    make_attr_ints(&old, "value_ints", ints, 2);
    pb_end(&old, n);
    n = make_node(&old, "Constant", "", "t");
    size_t a = pb_begin(&old, 5);
    pb_put_text(&old, 1, "value");
    size_t t = make_tensor(&old, 5, NULL, 7, ints, 0);
    pb_put_varint(&old, 7, 9);
    pb_end(&old, t);
    pb_end(&old, a); /* no type: as IR version 1 wrote it */
    pb_end(&old, n);
    make_plain(&old, "Add", "x,f", "y");
    struct graph *g = old_end(&h);
    assert_int_equal(g->n_nodes, 1);
    assert_int_equal(value(g, "f")->kind, VALUE_WEIGHT);
    assert_true(*(const float *)value(g, "f")->data == 2.5f);
    assert_int_equal(value(g, "f")->shape.rank, 0);
    expect_i64(value(g, "is"), ints, 2);
    expect_i64(value(g, "t"), (const int64_t[]){9}, 1);
    drop(&h);

    old_begin(13, "N"); /* two values in one Constant */
    n = make_node(&old, "Constant", "", "y");
    make_attr_f(&old, "value_float", 2.5f);
    make_attr_i(&old, "value_int", 2);
    pb_end(&old, n);
    make_value(&old, 12, "y", 1, "-");
    make_end(&old, old_graph);
    refuse(&old, YK_FORMAT, "2 attributes");
}

/* Upsample in its three forms, and the first Resize, become the Resize that they meant. */
static void upgrade_upsample(void **state)
{
    struct held h;
    (void)state;
    for (int form = 0; form < 4; form++) {
        const float scales[] = {1, 1, 2, 3};
        old_begin(form == 0 ? 6 : form == 1 ? 8 : form == 2 ? 9 : 10, "1,2,4,5");
        size_t n;
        if (form >= 2)
            make_weight_f32(&old, "s", 4, scales);
        n = make_node(&old, form == 3 ? "Resize" : "Upsample", form >= 2 ? "x,s" : "x", "y");
        make_attr_s(&old, "mode", form == 0 ? "bilinear" : "linear", form == 0 ? 8 : 6);
        if (form == 0) {
            make_attr_f(&old, "height_scale", 2);
            make_attr_f(&old, "width_scale", 3);
        } else if (form == 1) {
            size_t a = pb_begin(&old, 5);
            pb_put_text(&old, 1, "scales");
            for (int i = 0; i < 4; i++)
                pb_put_f32(&old, 7, scales[i]);
            pb_put_varint(&old, 20, 6);
            pb_end(&old, a);
        }
        pb_end(&old, n);
        struct graph *g = old_end(&h);
        const struct node *node = &g->nodes[g->n_nodes - 1];
        assert_string_equal(node->op->name, "Resize");
        assert_string_equal(node_attr_s(node, "mode", ""), "linear");
        assert_string_equal(node_attr_s(node, "coordinate_transformation_mode", ""), "asymmetric");
        assert_string_equal(node_attr_s(node, "nearest_mode", ""), "floor");
        assert_null(node_attr(node, "scales"));
        assert_null(node_attr(node, "height_scale"));
        assert_int_equal(node->n_in, 3);
        assert_int_equal(node->in[1], YK_ABSENT);
        const struct value *v = &g->values[node->in[2]];
        assert_int_equal(v->shape.dims[0], 4);
        assert_memory_equal(v->data, scales, sizeof scales);
        drop(&h);
    }
    old_begin(8, "1,2,4,5");
    make_plain(&old, "Upsample", "x", "y");
    make_value(&old, 12, "y", 1, "-");
    make_end(&old, old_graph);
    refuse(&old, YK_FORMAT, "no scales");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(upgrade_attributes_to_inputs),
        cmocka_unit_test(upgrade_softmax),
        cmocka_unit_test(upgrade_batchnorm_and_broadcast),
        cmocka_unit_test(upgrade_clip_in_half),
        cmocka_unit_test(constants),
        cmocka_unit_test(upgrade_upsample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
