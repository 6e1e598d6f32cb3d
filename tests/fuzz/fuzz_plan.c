/* JSON as a plan: what was read is written and reads back as the same; and the plan against a small graph. */
#include "common/plan.h"

#include <stdlib.h>
#include <string.h>

#include "common/op.h"

static struct graph *graph;
static struct shapes shapes;

static void make_graph(void)
{
    int64_t size = 4;
    graph = graph_open(0);
    int32_t v = graph ? graph_add_value(graph, "x", VALUE_INPUT, DT_F32) : -1;
    if (v < 0 || graph_sym(graph, "N") != 0)
        abort();
    struct value *x = &graph->values[v];
    x->rank = 2;
    x->dims = yk_arena_alloc(graph->arena, 2, sizeof *x->dims);
    graph->inputs = yk_arena_alloc(graph->arena, 1, sizeof *graph->inputs);
    graph->outputs = yk_arena_alloc(graph->arena, 1, sizeof *graph->outputs);
    if (!x->dims || !graph->inputs || !graph->outputs)
        abort();
    x->dims[0] = (struct dim){.value = -1, .sym = 0};
    x->dims[1] = (struct dim){.value = 8, .sym = -1};
    graph->inputs[graph->n_inputs++] = v;
    for (int i = 0; i < 4; i++) {
        char name[3] = {'v', (char)('0' + i)};
        int32_t out = graph_add_value(graph, name, VALUE_NODE, DT_NONE);
        if (out < 0 || graph_add_node(graph, name, op_find("", "Relu"), &v, 1, &out, 1) < 0)
            abort();
        v = out;
    }
    graph->outputs[graph->n_outputs++] = v;
    if (shapes_infer(graph, &size, NULL, &shapes, NULL) != YK_OK)
        abort();
}

static struct yk_buf text_of(const struct plan *p)
{
    struct yk_buf b = {0};
    struct json_out o;
    json_out_init(&o, &b, 0);
    plan_to_json(p, &o);
    if (b.failed)
        abort();
    return b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json *j, *again;
    struct plan *p, *q;
    struct yk_diag why = {{0}};
    if (!graph)
        make_graph();
    if (json_parse((const char *)data, size, &j, &why) != YK_OK)
        return 0;
    yk_err err = plan_from_json(j, &p, &why);
    json_free(j);
    if (err) {
        if (!why.text[0])
            abort();
        return 0;
    }
    plan_check(p, graph, &shapes, &why);
    struct plan *copy = plan_copy(p);
    struct yk_buf a = text_of(copy);
    plan_free(copy);
    if (json_parse((const char *)a.data, a.len, &again, &why) != YK_OK || plan_from_json(again, &q, &why) != YK_OK)
        abort();
    struct yk_buf b = text_of(q);
    if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
        abort();
    yk_buf_free(&a);
    yk_buf_free(&b);
    json_free(again);
    plan_free(p);
    plan_free(q);
    return 0;
}
