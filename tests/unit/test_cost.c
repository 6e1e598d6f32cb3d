/* The closed form against numbers worked out by hand. */
#include <math.h>

#include "scheduler/cost.h"
#include "tests/unit/plan_fleet.h"

#define HEADER 512 /* of a microbatch on the wire, as cost.c counts it */

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * (1 + fabs(want))))
        fail_msg("got %.17g, want %.17g", got, want);
}

static struct cost_model model(const struct solve_request *q, const struct pf *f, int64_t microbatch)
{
    struct cost_model m;
    int32_t form[64];
    cost_choose_forms(q, &f->view, form);
    assert_int_equal(cost_init(&m, q, &f->view, form, microbatch, NULL), YK_OK);
    return m;
}

static double ms_at(const struct solve_request *q, const struct pf *f, int64_t microbatch, int32_t agent, int32_t node)
{
    struct cost_model m = model(q, f, microbatch);
    double ms = m.node_ms[agent * m.graph->n_nodes + node];
    cost_fini(&m);
    return ms;
}

static void profiles(void **state)
{
    (void)state;
    struct graph *g = pf_chain(2, 16);
    struct pf f;
    pf_init(&f);
    struct view_agent *a = pf_agent(&f, "a", 1, 1 << 30);
    static const struct view_time rows[] = {{.node = 0, .form = 0, .size = 2, .ms = 4},
        {.node = 0, .form = 0, .size = 8, .ms = 10}, {.node = 0, .form = 1, .size = 8, .ms = 5},
        {.node = 1, .form = 0, .size = 4, .ms = 2, .packed_bytes = 100, .workspace_bytes = 7}};
    a->times = rows;
    a->n_times = 4;
    struct solve_request q = {.graph = g, .job = "batch", .batch = 8, .source = 0};
    /* node 0 has the faster form, known at 8 only: proportional behind it, half of it fixed before */
    near(ms_at(&q, &f, 8, 0, 0), 5);
    near(ms_at(&q, &f, 16, 0, 0), 10);
    near(ms_at(&q, &f, 4, 0, 0), 5 * (0.5 + 0.5 * 0.5));
    /* the form that the job has fixed: linear between the sizes, proportional behind the last */
    const char *const forms[] = {"ref@generic", "ref@generic"};
    q.forms = forms;
    near(ms_at(&q, &f, 2, 0, 0), 4);
    near(ms_at(&q, &f, 5, 0, 0), 7);
    near(ms_at(&q, &f, 8, 0, 0), 10);
    near(ms_at(&q, &f, 12, 0, 0), 15);
    near(ms_at(&q, &f, 1, 0, 0), 4 * 0.75);
    near(ms_at(&q, &f, 4, 0, 1), 2);
    /* corrections */
    a->slow_factor = 1.5;
    near(ms_at(&q, &f, 8, 0, 0), 15);
    a->busy_frac = 0.25;
    near(ms_at(&q, &f, 8, 0, 0), 20);
    a->busy_frac = 7; /* never without end */
    near(ms_at(&q, &f, 8, 0, 0), 15 / 0.05);
    a->busy_frac = 0;
    a->slow_factor = 0; /* unknown */
    near(ms_at(&q, &f, 8, 0, 0), 10);
    /* a form nobody has: it cannot run there */
    const char *const strange[] = {"what@x", "ref@generic"};
    q.forms = strange;
    assert_true(isnan(ms_at(&q, &f, 8, 0, 0)));
    /* a form that is not named is chosen */
    const char *const open[] = {"", "ref@generic"};
    q.forms = open;
    near(ms_at(&q, &f, 8, 0, 0), 5);
    graph_close(g);
}

static void roofline(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, (const int64_t[]){-1, 100}, 2);
    int32_t w = fx_weight(g, "w", (const int64_t[]){100, 50}, 2);
    fx_output(g, fx_node(g, "MatMul", "y", IDS(x, w)));
    struct pf f;
    pf_init(&f);
    struct view_agent *a = pf_agent(&f, "a", 2, 1 << 30);
    struct solve_request q = {.graph = g, .job = "batch", .batch = 4, .source = 0};
    near(ms_at(&q, &f, 4, 0, 0), 2.0 * 4 * 100 * 50 / 2e9 * 1e3);
    a->gbytes_per_s = 0.5; /* and its bytes: x, w and y once */
    near(ms_at(&q, &f, 4, 0, 0), 2.0 * 4 * 100 * 50 / 2e9 * 1e3 + 4.0 * (400 + 5000 + 200) / 0.5e9 * 1e3);
    a->gflops = 0; /* nothing is known: it runs nothing */
    assert_true(isnan(ms_at(&q, &f, 4, 0, 0)));
    graph_close(g);
}

/* Measured on two agents, ResNet-34 at 224: profiled 128.2 and 107.8 ms a microbatch before and behind node 80, the
 * second half took b 200.4; either alone takes 330. */
static void measured_in_part(void **state)
{
    (void)state;
    struct graph *g = pf_chain(2, 16);
    struct view_time rows[] = {{.node = 0, .form = 0, .size = 1, .ms = 64.1},
        {.node = 0, .form = 0, .size = 2, .ms = 128.2}, {.node = 0, .form = 1, .size = 2, .ms = 500},
        {.node = 1, .form = 0, .size = 2, .ms = 107.8}};
    struct solve_request q = {.graph = g, .job = "batch", .batch = 2, .source = 0};
    uint8_t late[2] = {0, 1}, both[2] = {1, 1}, none[2] = {0, 0};
    double slow = 200.4 / 107.8, part = 107.8 / (128.2 + 107.8);
    struct pf f;
    pf_init(&f);
    struct view_agent *a = pf_agent(&f, "b", 1, 1 << 30);
    a->times = rows;
    a->n_times = 4;
    a->slow_factor = view_spread(rows, 4, late, 2, slow);
    near(a->slow_factor, pow(slow, part));
    near(ms_at(&q, &f, 2, 0, 1), 200.4);
    double early = ms_at(&q, &f, 2, 0, 0), alone = early + 200.4;
    near(early, 128.2 * pow(slow, part));
    assert_true(alone > 330 && alone < 375); /* all at `slow` would be 439 */
    /* A stage's factor is that of its nodes. */
    struct cost_model m = model(&q, &f, 2);
    near(a->slow_factor * cost_extra(&m, 0, 1), slow);
    near(cost_extra(&m, 0, 0), 1);
    cost_fini(&m);
    /* All of it measured, or nothing of this model: the device. */
    for (int i = 0; i < 4; i++)
        rows[i].extra = 0;
    near(view_spread(rows, 4, both, 2, slow), slow);
    near(view_spread(rows, 4, none, 2, slow), slow);
    near(view_spread(rows, 4, late, 1, slow), slow);
    near(view_spread(rows, 0, late, 2, slow), slow);
    near(view_spread(rows, 4, late, 2, 1), 1);
    a->slow_factor = slow;
    near(ms_at(&q, &f, 2, 0, 0), 128.2 * slow);
    graph_close(g);
}

/* Of a training: w has 5000 elements. Its gradient is added in 3 of 4 microbatches (reads and writes 2 * 20000 bytes),
 * and a step reads it, and reads and writes w and one tensor of the optimizer: 5 * 20000 in 4 microbatches. */
static void gradients(void **state)
{
    (void)state;
    struct graph *g = fx_open(), *t = NULL;
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, (const int64_t[]){-1, 100}, 2);
    int32_t w = fx_weight(g, "w", (const int64_t[]){100, 50}, 2);
    fx_output(g, fx_node(g, "MatMul", "y", IDS(x, w)));
    struct grad_options o;
    struct grad_info info;
    struct pf f;
    grad_options_init(&o);
    o.loss = GRAD_MSE;
    assert_int_equal(grad_build(g, &o, &t, &info, NULL), YK_OK);
    pf_init(&f);
    struct view_agent *a = pf_agent(&f, "a", 2, 1 << 30);
    a->gbytes_per_s = 0.5;
    a->slow_factor = 2;
    struct solve_training training = {.of = info.of, .info = NULL, .state_bytes = 1};
    struct solve_request q = {.graph = t, .job = "train", .batch = 8, .source = 0, .training = &training};
    int32_t made = t->values[t->outputs[info.params[0].uses[0]]].producer;
    assert_int_equal(info.n_params, 1);
    for (int32_t i = 0; i < t->n_nodes; i++) {
        training.info = NULL;
        double plain = ms_at(&q, &f, 2, 0, i), whole = ms_at(&q, &f, 8, 0, i);
        training.info = &info;
        near(ms_at(&q, &f, 2, 0, i), plain + (i == made ? 2 * (3 * 2 + 5) * 20000.0 / 4 / 0.5e9 * 1e3 : 0));
        near(ms_at(&q, &f, 8, 0, i), whole + (i == made ? 2 * 5 * 20000.0 / 0.5e9 * 1e3 : 0));
    }
    graph_close(t);
    graph_close(g);
}

/* Three nodes over (N, 1000) f32: 8000 bytes at N = 2. a (the source) 1 ms a node, b 2 ms. */
static void two(struct pf *p)
{
    pf_init(p);
    pf_agent(p, "a", 0, 1 << 30);
    pf_agent(p, "b", 0, 1 << 30);
    pf_profile(p, 0, (const double[]){0.5, 0.5, 0.5}, 3);
    pf_profile(p, 1, (const double[]){1, 1, 1}, 3);
    pf_link(p, 0, 1, 1e6, 3);
    pf_link(p, 1, 0, 2e6, 4);
}

static struct cost_line price(const struct cost_model *m, const int32_t *agents, int32_t n, const int32_t *stage_of,
    const struct plan *forced, int32_t which)
{
    struct cost_line l;
    struct yk_diag why = {0};
    if (cost_price(m, 0, agents, n, stage_of, forced, which, &l, &why))
        fail_msg("%s", why.text);
    return l;
}

static void transfers(void **state)
{
    (void)state;
    struct graph *g = pf_chain(3, 1000);
    struct pf f;
    two(&f);
    char name[160];
    struct solve_request q = {.graph = g, .job = "batch", .batch = 9, .source = 0};
    struct cost_model m = model(&q, &f, 2);
    assert_int_equal(m.count, 5); /* the last is smaller and counted whole */
    double there = (8000 + HEADER) / 1e6 * 1e3, back = (8000 + HEADER) / 2e6 * 1e3;
    struct cost_line l = price(&m, (const int32_t[]){0, 1}, 2, (const int32_t[]){0, 1, 1}, NULL, 0);
    near(l.first_ms, 1 + there + 3 + 4 + back + 4);
    near(l.bottleneck_ms, there); /* latency occupies nothing */
    near(l.cost_ms, l.first_ms + 4 * there);
    cost_resource_name(&m, l.bottleneck, name);
    assert_string_equal(name, "link a->b");
    cost_line_fini(&l);
    /* half duplex: one medium carries both ways, whatever its number */
    f.links[0].shared = f.links[1].shared = 1000000;
    f.links[1].cpu_ns_per_byte = 100;
    cost_fini(&m);
    m = model(&q, &f, 2);
    assert_int_equal(m.n_resources, 2 + 2 + 1);
    back += (8000 + HEADER) * 100e-6;
    l = price(&m, (const int32_t[]){0, 1}, 2, (const int32_t[]){0, 1, 1}, NULL, 0);
    near(l.bottleneck_ms, there + back);
    cost_resource_name(&m, l.bottleneck, name);
    assert_string_equal(name, "link a<->b");
    cost_line_fini(&l);
    cost_fini(&m);
    /* a codec halves the values, not the header; two stages of one agent load it together, and no link between them */
    q.codec_allowed = (const bool[]){true, true, false};
    m = model(&q, &f, 2);
    l = price(&m, (const int32_t[]){1, 1}, 2, (const int32_t[]){0, 0, 1}, NULL, 0);
    double half = (4000 + HEADER) / 1e6 * 1e3 + (4000 + HEADER) / 2e6 * 1e3 + (4000 + HEADER) * 100e-6;
    near(l.first_ms, 6 + half + 7);
    near(l.bottleneck_ms, half);
    cost_line_fini(&l);
    cost_fini(&m);
    graph_close(g);
    pf_fini(&f);
}

static void refusals(void **state)
{
    (void)state;
    struct graph *g = pf_chain(3, 1000);
    struct pf f;
    two(&f);
    struct cost_line l;
    struct yk_diag why = {0};
    struct solve_request q = {.graph = g, .job = "batch", .batch = 9, .source = 0};
    f.links[1].origin = VIEW_UNKNOWN;
    f.agents[1].n_times = 2; /* of three nodes */
    struct cost_model m = model(&q, &f, 2);
    const int32_t ab[] = {0, 1}, aba[] = {0, 1, 0};
    assert_int_equal(cost_price(&m, 0, ab, 2, (const int32_t[]){0, 1, 1}, NULL, 0, &l, &why), YK_INFEASIBLE);
    assert_non_null(strstr(why.text, "agent b cannot run node 2"));
    assert_int_equal(cost_price(&m, 0, aba, 3, (const int32_t[]){0, 1, 2}, NULL, 0, &l, &why), YK_INFEASIBLE);
    assert_non_null(strstr(why.text, "link b->a is not measured"));
    cost_fini(&m);
    graph_close(g);
    pf_fini(&f);
}

/* A skip goes from its maker to each user; what yoked sends to a chosen source counts where that link is known. */
static void straight(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, (const int64_t[]){-1, 1000}, 2);
    int32_t u = fx_node(g, "Relu", "u", IDS(x)), v = fx_node(g, "Relu", "v", IDS(u));
    fx_output(g, fx_node(g, "Add", "w", IDS(u, v)));
    struct pf f;
    two(&f);
    pf_agent(&f, "c", 0, 1 << 30);
    pf_profile(&f, 2, (const double[]){1, 1, 1}, 3);
    pf_both(&f, 0, 2, 4e6, 0);
    pf_both(&f, 1, 2, 8e6, 0);
    pf_link(&f, -1, 0, 1e6, 10);
    struct solve_request q = {.graph = g, .job = "batch", .batch = 1, .source = -1};
    struct cost_model m = model(&q, &f, 1);
    struct cost_line l = price(&m, (const int32_t[]){0, 1, 2}, 3, (const int32_t[]){0, 1, 2}, NULL, 0);
    double ms = (4000 + HEADER) * 1e3;
    assert_int_equal(l.n_edges, 6); /* yoked -> a -> {stage 0} -> b -> c, a -> c, c -> a */
    near(l.first_ms, 0.5 + 1 + 1 + ms / 1e6 + 10 + ms / 1e6 + 3 + 2 * ms / 4e6 + ms / 8e6);
    near(l.cost_ms, l.first_ms);
    cost_line_fini(&l);
    cost_fini(&m);
    graph_close(g);
    pf_fini(&f);
}

/* A given plan of two whole copies: each takes its share, and what both send over one link adds up. */
static void pipelines(void **state)
{
    (void)state;
    struct graph *g = pf_chain(3, 1000);
    struct pf f;
    two(&f);
    struct plan *p = NULL, given = {.model = "m", .graph_use = "infer", .microbatch = 1};
    struct cut_range all[] = {{0, 2}};
    struct plan_stage on_a[] = {{.agent = "a", .nodes = all, .n_nodes = 1}},
                      on_b[] = {{.agent = "id-b", .nodes = all, .n_nodes = 1}};
    struct plan_pipeline lines[] = {{.share = 0.75, .depth = 2, .stages = on_a, .n_stages = 1},
        {.share = 0.25, .depth = 4, .stages = on_b, .n_stages = 1}};
    memset(given.graph_hash, '0', 64);
    given.pipelines = lines;
    given.n_pipelines = 2;
    struct solve_request q = {.graph = g, .job = "batch", .batch = 16, .source = 0, .forced = &given};
    struct yk_diag why = {0};
    if (solve_plan(&q, &f.view, &p, &why))
        fail_msg("%s", why.text);
    near(p->step_ms,
        4 * (4000.0 + HEADER) / 1e3 + 3 + 3 + 4 + (4000 + HEADER) / 2e3); /* the four of b, all inside at once */
    assert_string_equal(p->solver, "given");
    assert_string_equal(p->best_single, "a");
    near(p->best_single_ms, 24);
    plan_free(p);
    lines[1].stages = on_a; /* one agent, two copies: no faster than one */
    lines[0].share = lines[1].share = 0.5;
    assert_int_equal(solve_plan(&q, &f.view, &p, &why), YK_OK);
    near(p->step_ms, 24);
    plan_free(p);
    on_a[0].agent = "z";
    assert_int_equal(solve_plan(&q, &f.view, &p, &why), YK_INFEASIBLE);
    assert_non_null(strstr(why.text, "'z'"));
    graph_close(g);
    pf_fini(&f);
}

/* An agent that cannot run one node can still run the others: the floor stays below what the two of them reach. */
static void test_floor(void **state)
{
    (void)state;
    struct view_agent agents[2] = {{.usable = true}, {.usable = true}};
    const struct view view = {.agents = agents, .n_agents = 2};
    const struct graph graph = {.n_nodes = 2};
    double node_ms[] = {1, NAN, 4, 4}, work;
    struct cost_model m = {.view = &view, .graph = &graph, .node_ms = node_ms};
    double least = cost_floor(&m, &work);
    assert_true(least == 5);
    assert_true(work > 0 && work <= 4); /* node 0 on the first agent, node 1 on the second */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floor),
        cmocka_unit_test(profiles),
        cmocka_unit_test(roofline),
        cmocka_unit_test(gradients),
        cmocka_unit_test(measured_in_part),
        cmocka_unit_test(transfers),
        cmocka_unit_test(refusals),
        cmocka_unit_test(straight),
        cmocka_unit_test(pipelines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
