/* graph_idle is a hint: data that left memory is there again when it is read, and data without a mapping stays. */
#include "common/onnx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL YOKE_SOURCE_DIR "/tests/data/fmnist_cnn.onnx"

static uint64_t sum_of(const struct value *v)
{
    uint64_t sum = 14695981039346656037u;
    for (int64_t i = 0; i < v->bytes; i++)
        sum = (sum ^ ((const uint8_t *)v->data)[i]) * 1099511628211u;
    return sum;
}

static void idle_changes_nothing(struct graph *g)
{
    uint64_t *before = calloc((size_t)g->n_values, sizeof *before);
    for (int32_t v = 0; v < g->n_values; v++)
        before[v] = sum_of(&g->values[v]);
    for (int32_t v = 0; v < g->n_values; v++)
        graph_idle(g, g->values[v].data, g->values[v].bytes);
    graph_idle(g, NULL, 0);
    graph_idle(g, before, (int64_t)sizeof *before); /* not of the file: not touched */
    graph_idle(g, g->values[0].data, -1);
    int weights = 0;
    for (int32_t v = 0; v < g->n_values; v++) {
        assert_true(before[v] == sum_of(&g->values[v]));
        weights += g->values[v].kind == VALUE_WEIGHT;
    }
    assert_true(weights > 0);
    free(before);
}

static void mapped(void **state)
{
    (void)state;
    struct graph *g;
    struct yk_diag why = {""};
    assert_int_equal(onnx_import(MODEL, &g, NULL, &why), YK_OK);
    idle_changes_nothing(g);
    graph_close(g);
}

static void in_memory(void **state)
{
    (void)state;
    struct graph *g;
    struct yk_diag why = {""};
    FILE *f = fopen(MODEL, "rb");
    assert_non_null(f);
    uint8_t *data = malloc(1 << 22);
    size_t len = fread(data, 1, 1 << 22, f);
    fclose(f);
    assert_int_equal(onnx_import_memory(data, len, &g, NULL, &why), YK_OK);
    idle_changes_nothing(g);
    graph_close(g);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mapped), cmocka_unit_test(in_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
