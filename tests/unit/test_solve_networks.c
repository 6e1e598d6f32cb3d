/* What is known of networks that people split: RegNet-Y's activations are larger than its input, and an encoder's are
 * as large everywhere. Over a link that takes its time neither is cut: the whole goes to the side that is faster with
 * all that it sends. */
#include <math.h>

#include "common/passes.h"
#include "scheduler/solve.h"
#include "tests/bench/plan_models.h"
#include "tests/unit/plan_fleet.h"

#define PLENTY ((int64_t)1 << 40)

static int32_t grouped(struct maker *b, int32_t x, int64_t width, int64_t group, int64_t stride)
{
    int32_t w = maker_weight(b, DT_F32, (const int64_t[]){width, group, 3, 3}, 4, NULL);
    int32_t bias = maker_weight(b, DT_F32, &width, 1, NULL);
    int32_t v = maker_node(b, "Conv", (const int32_t[]){x, w, bias}, 3);
    maker_ints(b, "kernel_shape", (const int64_t[]){3, 3}, 2);
    maker_ints(b, "strides", (const int64_t[]){stride, stride}, 2);
    maker_ints(b, "pads", (const int64_t[]){1, 1, 1, 1}, 4);
    graph_set_attr_i(b->g, &b->g->nodes[b->g->n_nodes - 1], "group", width / group);
    return v;
}

/* RegNet-Y-16GF by its table: squeeze and excitation in every block, normalisation folded in. */
static struct graph *make_regnet_y(struct maker *b)
{
    static const int64_t widths[] = {224, 448, 1232, 3024};
    static const int depths[] = {2, 4, 11, 1};
    enum { GROUP = 112 };
    maker_open(b, (int64_t)3024 * 1232 * 4);
    int32_t x = maker_input(b, (const int64_t[]){3, 224, 224}, 3);
    int64_t in = 32;
    x = maker_on(b, "Relu", maker_conv(b, x, 3, in, 3, 2), -1);
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < depths[stage]; i++) {
            int64_t out = widths[stage], stride = i == 0 ? 2 : 1, few = (in + 2) / 4;
            int32_t y = maker_on(b, "Relu", maker_conv(b, x, in, out, 1, 1), -1), se, skip = x;
            y = maker_on(b, "Relu", grouped(b, y, out, GROUP, stride), -1);
            se = maker_on(b, "Relu", maker_conv(b, maker_on(b, "GlobalAveragePool", y, -1), out, few, 1, 1), -1);
            se = maker_on(b, "Sigmoid", maker_conv(b, se, few, out, 1, 1), -1);
            y = maker_conv(b, maker_on(b, "Mul", y, se), out, out, 1, 1);
            if (stride > 1)
                skip = maker_conv(b, x, in, out, 1, stride);
            x = maker_on(b, "Relu", maker_on(b, "Add", y, skip), -1);
            in = out;
        }
    x = maker_on(b, "Flatten", maker_on(b, "GlobalAveragePool", x, -1), -1);
    int32_t w = maker_weight(b, DT_F32, (const int64_t[]){in, 1000}, 2, NULL);
    int32_t bias = maker_weight(b, DT_F32, (const int64_t[]){1000}, 1, NULL);
    return maker_end(b, maker_node(b, "Gemm", (const int32_t[]){x, w, bias}, 3));
}

static struct plan *solved(const struct solve_request *q, const struct view *v)
{
    struct plan *p = NULL;
    struct yk_diag why = {0};
    if (solve_plan(q, v, &p, &why))
        fail_msg("%s", why.text);
    return p;
}

/* One stage, on the better of the two sides, which take what each of them alone takes. Returns the side. */
static int check_whole(const struct graph *g, int64_t input_bytes, double phone_gflops, double pc_gflops,
    double bytes_per_s, double latency_ms)
{
    struct pf f;
    double alone[2];
    struct solve_request q = {
        .graph = g, .model = "m", .job = "infer", .objective = SOLVE_LATENCY, .batch = 1, .source = 0};
    pf_init(&f);
    pf_agent(&f, "phone", phone_gflops, PLENTY);
    pf_agent(&f, "pc", pc_gflops, PLENTY);
    pf_both(&f, 0, 1, bytes_per_s, latency_ms);
    for (int side = 0; side < 2; side++) {
        f.agents[1 - side].memory_bytes = 0;
        struct plan *p = solved(&q, &f.view);
        alone[side] = p->step_ms;
        f.agents[1 - side].memory_bytes = PLENTY;
        plan_free(p);
    }
    struct plan *p = solved(&q, &f.view);
    int side = alone[1] < alone[0];
    if (p->pipelines[0].n_stages != 1 || strcmp(p->pipelines[0].stages[0].agent, f.agents[side].name) != 0)
        fail_msg("phone alone %.1f ms, pc alone %.1f ms, and the plan is\n%s", alone[0], alone[1], p->explanation);
    assert_true(fabs(p->step_ms - alone[side]) <= 1e-9 * alone[side]);
    if (side) { /* the raw input goes, and nothing else comes back than the answer */
        assert_int_equal(p->n_cuts, 2);
        assert_int_equal(p->cuts[0].bytes, input_bytes);
    }
    plan_free(p);
    pf_fini(&f);
    return side;
}

static void regnet_over_10_mbit(void **state)
{
    (void)state;
    static const double phones[] = {1, 4, 15, 40, 60, 80, 150, 600};
    struct maker b;
    struct yk_diag why = {0};
    struct graph *g = make_regnet_y(&b);
    int sides[2] = {0};
    if (passes_infer(g, NULL, NULL, &why))
        fail_msg("%s", why.text);
    for (size_t i = 0; i < YK_COUNT(phones); i++)
        for (int k = 0; k < 2; k++)
            sides[check_whole(g, 3 * 224 * 224 * 4, phones[i], k ? 3000 : 300, 10e6 / 8, 10)]++;
    assert_true(sides[0] >= 4 && sides[1] >= 4);
    graph_close(g);
    free(b.zeros);
}

static void encoder_with_short_text(void **state)
{
    (void)state;
    static const double phones[] = {2, 10, 50, 200, 800};
    struct maker b;
    struct yk_diag why = {0};
    struct graph *g = make_encoder_of(&b, 6, 8);
    int sides[2] = {0};
    if (passes_infer(g, NULL, NULL, &why))
        fail_msg("%s", why.text);
    for (size_t i = 0; i < YK_COUNT(phones); i++)
        for (int k = 0; k < 2; k++)
            sides[check_whole(g, 8 * 1024 * 4, phones[i], k ? 2000 : 100, 100e6 / 8, 3)]++;
    assert_true(sides[0] >= 2 && sides[1] >= 2);
    graph_close(g);
    free(b.zeros);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regnet_over_10_mbit),
        cmocka_unit_test(encoder_with_short_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
