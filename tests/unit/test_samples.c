/* Which graphs mix the samples of a batch. Truth: what each op does along its axes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/onnx.h"
#include "common/passes.h"
#include "common/samples.h"

/* x [N,4,6] through one node with an optional weight and attributes. */
struct one {
    const char *op, *attr;
    int64_t value, list[3];
    int n_list, weight; /* weight: 0 none, 1 [6,6] f32, 2 [4,6] f32, 3 [6] f32, 4 int64 of `list`, 5 [4,6,6] */
    bool good;
};

static bool ask(const struct one *o, struct yk_diag *why)
{
    static float zeros[4 * 6 * 6];
    static int64_t ints[3];
    struct graph *g = graph_open(0);
    int32_t n = graph_sym(g, "N"), x = graph_add_value(g, "x", VALUE_INPUT, DT_F32);
    struct value *v = &g->values[x];
    v->rank = 3;
    v->dims = yk_arena_alloc(g->arena, 3, sizeof *v->dims);
    v->dims[0] = (struct dim){-1, n};
    v->dims[1] = (struct dim){4, -1};
    v->dims[2] = (struct dim){6, -1};
    g->inputs = yk_arena_alloc(g->arena, 1, sizeof *g->inputs);
    g->inputs[0] = x;
    g->n_inputs = 1;
    int32_t in[2] = {x, YK_ABSENT}, out = graph_add_value(g, "y", VALUE_NODE, DT_NONE);
    static const struct shape shapes[] = {{DT_NONE, 0, {0}}, {DT_F32, 2, {6, 6}}, {DT_F32, 2, {4, 6}}, {DT_F32, 1, {6}},
        {DT_I64, 1, {0}}, {DT_F32, 3, {4, 6, 6}}};
    if (o->weight) {
        struct shape s = shapes[o->weight];
        memcpy(ints, o->list, sizeof ints);
        if (o->weight == 4)
            s.dims[0] = o->n_list;
        in[1] = graph_add_weight(g, "w", &s, o->weight == 4 ? (void *)ints : (void *)zeros);
    }
    int32_t node = graph_add_node(g, "n", op_find("", o->op), in, o->weight ? 2 : 1, &out, 1);
    if (o->attr && o->n_list && o->weight != 4)
        graph_set_attr_ints(g, &g->nodes[node], o->attr, o->list, (size_t)o->n_list);
    else if (o->attr)
        graph_set_attr_i(g, &g->nodes[node], o->attr, o->value);
    g->outputs = yk_arena_alloc(g->arena, 1, sizeof *g->outputs);
    g->outputs[0] = out;
    g->n_outputs = 1;
    bool good = samples_independent(g, NULL, why);
    graph_close(g);
    return good;
}

static void ops(void **state)
{
    (void)state;
    static const struct one cases[] = {
        {.op = "Relu", .good = true},
        {.op = "Add", .weight = 2, .good = true},
        {.op = "MatMul", .weight = 1, .good = true},
        {.op = "MatMul", .weight = 5},
        {.op = "Softmax", .attr = "axis", .value = -1, .good = true},
        {.op = "Softmax", .attr = "axis", .value = 0},
        {.op = "ReduceMean", .attr = "axes", .list = {1, 2}, .n_list = 2, .good = true},
        {.op = "ReduceMean", .attr = "axes", .list = {0}, .n_list = 1},
        {.op = "ReduceMean"},
        {.op = "Transpose", .attr = "perm", .list = {0, 2, 1}, .n_list = 3, .good = true},
        {.op = "Transpose", .attr = "perm", .list = {1, 0, 2}, .n_list = 3},
        {.op = "Flatten", .attr = "axis", .value = 1, .good = true},
        {.op = "Flatten", .attr = "axis", .value = 2},
        {.op = "Reshape", .weight = 4, .list = {-1, 24}, .n_list = 2, .good = true},
        {.op = "Reshape", .weight = 4, .list = {0, 2, 12}, .n_list = 3, .good = true},
        {.op = "Reshape", .weight = 4, .list = {-1, 6}, .n_list = 2},
        {.op = "Reshape", .weight = 4, .list = {24, -1}, .n_list = 2},
        {.op = "ArgMax", .attr = "axis", .value = 2, .good = true},
        {.op = "ArgMax", .attr = "axis", .value = 0},
        {.op = "Unique"},
    };
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct yk_diag why = {0};
        bool good = ask(&cases[i], &why);
        if (good != cases[i].good || (!good && !why.text[0]))
            fail_msg("case %zu %s: %s: %s", i, cases[i].op, good ? "independent" : "mixed", why.text);
    }
}

/* Nets that people batch, with and without the passes. Those that need the golden models are left out without them. */
static void nets(void **state)
{
    (void)state;
    static const char *const names[] = {"resnet34_64", "regnet_y_400mf_64", "mobilenet_v2_64", "encoder_2x64"};
    const char *models = getenv("YOKE_MODELS");
    for (size_t i = 0; i <= 2 * YK_COUNT(names) + 1; i++) {
        char path[512];
        if (i < 2)
            snprintf(path, sizeof path, "%s", YOKE_SOURCE_DIR "/tests/data/fmnist_cnn.onnx");
        else
            snprintf(path, sizeof path, "%s/%s.onnx", models ? models : "", names[i / 2 - 1]);
        if (access(path, R_OK) != 0)
            continue;
        struct graph *g = NULL;
        struct yk_diag why = {0};
        assert_int_equal(onnx_import(path, &g, NULL, &why), YK_OK);
        if (i % 2)
            assert_int_equal(passes_infer(g, NULL, NULL, &why), YK_OK);
        if (!samples_independent(g, NULL, &why))
            fail_msg("%s: %s", path, why.text);
        graph_close(g);
    }
}

/* Every pair of small sizes: what is more than the batch, or not what the model takes, is refused with both numbers. */
static void splits(void **state)
{
    (void)state;
    for (int64_t fixed = 0; fixed < 6; fixed++)
        for (int64_t batch = 1; batch < 9; batch++)
            for (int64_t asked = 0; asked < 12; asked++) {
                struct yk_diag why = {0};
                char one[32], other[32];
                bool good = asked == 0 || (fixed ? asked == fixed : asked <= batch);
                assert_int_equal(samples_split_check(batch, asked, fixed, &why), good ? YK_OK : YK_INVAL);
                snprintf(one, sizeof one, "--microbatch=%d", (int)asked);
                snprintf(other, sizeof other, fixed ? "exactly %d " : "batch of %d ", (int)(fixed ? fixed : batch));
                assert_true(good ? !why.text[0] : strstr(why.text, one) && strstr(why.text, other) != NULL);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ops), cmocka_unit_test(nets), cmocka_unit_test(splits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
