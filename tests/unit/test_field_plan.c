/* What people report against systems that split models, as promises of ours: partition and memory, links. */
#include <math.h>

#include "scheduler/cost.h"
#include "tests/unit/plan_fleet.h"

#define MB ((int64_t)1 << 20)

static struct solve_request batch_of(const struct graph *g, int64_t batch, int64_t microbatch)
{
    return (struct solve_request){.graph = g,
        .model = "m",
        .job = "batch",
        .objective = SOLVE_THROUGHPUT,
        .batch = batch,
        .microbatch = microbatch};
}

static struct plan *solved(const struct solve_request *q, const struct pf *f)
{
    struct plan *p = NULL;
    struct yk_diag why = {0};
    if (solve_plan(q, &f->view, &p, &why))
        fail_msg("%s", why.text);
    return p;
}

static void full_mesh(struct pf *f, double bytes_per_s, double latency_ms)
{
    for (int32_t i = 0; i < f->view.n_agents; i++)
        for (int32_t k = 0; k < i; k++)
            pf_both(f, i, k, bytes_per_s, latency_ms);
}

static int32_t nodes_of(const struct plan *p, const char *agent)
{
    int32_t n = 0;
    for (int32_t s = 0; s < p->pipelines[0].n_stages; s++)
        for (int32_t r = 0; r < p->pipelines[0].stages[s].n_nodes; r++)
            if (strcmp(p->pipelines[0].stages[s].agent, agent) == 0)
                n += p->pipelines[0].stages[s].nodes[r].last - p->pipelines[0].stages[s].nodes[r].first + 1;
    return n;
}

/* 1, 2: sizes as in the reports at 1 MiB for 16 GB. Whatever the split, no stage is over the budget of its agent, as
 * the agent itself will count it: weights, intermediates and the buffers of all microbatches inside. */
static void within_budgets(void **state)
{
    (void)state;
    static const int64_t fleets[][4] = {{8, 8, 16, 1}, {12, 8, 4, 0}};
    struct graph *g = pf_layers(18);
    struct yk_rng r;
    yk_rng_seed(&r, 3);
    int found = 0;
    for (int round = 0; round < 60; round++) {
        struct pf f;
        struct plan *p = NULL;
        struct yk_diag why = {0};
        pf_init(&f);
        for (int i = 0; i < 4 && fleets[round % 2][i]; i++) {
            char name[16];
            snprintf(name, sizeof name, "n%d", i);
            int64_t spare = (int64_t)yk_rng_below(&r, 200000);
            pf_agent(&f, name, 1 + 20 * yk_rng_unit(&r), fleets[round % 2][i] * MB + spare);
        }
        full_mesh(&f, 1e8, 0.1);
        struct solve_request q = batch_of(g, 32, 1 + (int64_t)yk_rng_below(&r, 16));
        if (solve_plan(&q, &f.view, &p, &why) == YK_OK) {
            found++;
            for (int32_t a = 0; a < f.view.n_agents; a++) {
                int64_t bytes = 0; /* the source may have a first and a last stage */
                for (int32_t s = 0; s < p->pipelines[0].n_stages; s++)
                    bytes += strcmp(f.agents[a].name, p->pipelines[0].stages[s].agent) == 0
                                 ? p->pipelines[0].stages[s].memory_bytes
                                 : 0;
                assert_true(bytes <= f.agents[a].memory_bytes);
                assert_true(nodes_of(p, f.agents[a].name) * MB <= bytes);
            }
        }
        plan_free(p);
    }
    assert_int_equal(found, 60); /* 33 and 24 MiB are enough for 18 */
    graph_close(g);
}

/* 3: nobody knows a free byte: the answer names every agent and the constraint. */
static void no_memory_known(void **state)
{
    (void)state;
    struct graph *g = pf_layers(4);
    struct pf f;
    struct plan *p = NULL;
    struct yk_diag why = {0};
    pf_init(&f);
    pf_agent(&f, "mac", 10, 0);
    pf_agent(&f, "pi", 10, -1);
    pf_agent(&f, "tiny", 10, MB);
    struct view_agent *gone = pf_agent(&f, "gone", 10, 64 * MB);
    gone->usable = false;
    snprintf(gone->why_not, sizeof gone->why_not, "its last report is 90 s old");
    full_mesh(&f, 1e8, 0.1);
    struct solve_request q = batch_of(g, 4, 4);
    q.source = 0;
    assert_int_equal(solve_plan(&q, &f.view, &p, &why), YK_INFEASIBLE);
    assert_null(p);
    assert_non_null(strstr(why.text, "agent mac: memory is unknown"));
    assert_non_null(strstr(why.text, "agent pi: memory is unknown"));
    assert_non_null(strstr(why.text, "agent tiny: memory of its stages is"));
    assert_non_null(strstr(why.text, "agent gone: its last report is 90 s old"));
    graph_close(g);
}

/* 4: 24 + 12 + 12 for 40: the only splits that fit are found although the speeds ask for others. */
static void tight_split(void **state)
{
    (void)state;
    struct graph *g = pf_layers(40);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "slow24", 1, 24 * MB + MB / 2);
    pf_agent(&f, "fast12", 50, 12 * MB + MB / 2);
    pf_agent(&f, "mid12", 10, 12 * MB + MB / 2);
    full_mesh(&f, 1e8, 0.1);
    struct solve_request q = batch_of(g, 16, 2);
    struct plan *p = solved(&q, &f);
    assert_true(p->pipelines[0].n_stages >= 3);
    assert_int_equal(nodes_of(p, "fast12"), 12);
    assert_int_equal(nodes_of(p, "mid12"), 12);
    assert_int_equal(nodes_of(p, "slow24"), 16);
    assert_null(p->best_single);
    plan_free(p);
    graph_close(g);
}

/* 7: a weak helper that costs more than it brings stays out. */
static void weak_helper(void **state)
{
    (void)state;
    struct graph *g = pf_layers(12);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "host", 100, 64 * MB);
    pf_agent(&f, "weak", 1, 64 * MB);
    full_mesh(&f, 1e6, 5);
    struct solve_request q = batch_of(g, 64, 8);
    struct plan *p = solved(&q, &f);
    assert_int_equal(p->pipelines[0].n_stages, 1);
    assert_string_equal(p->pipelines[0].stages[0].agent, "host");
    assert_true(p->step_ms <= p->best_single_ms);
    assert_non_null(strstr(p->explanation, "one device is best"));
    plan_free(p);
    graph_close(g);
}

/* 8: speeds 10 : 5 : 1. The ideal is all three busy all the time, 16 together; the slowest must not set the pace. */
static void uneven_speeds(void **state)
{
    (void)state;
    struct graph *g = pf_layers(64);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "a10", 10, 128 * MB);
    pf_agent(&f, "b5", 5, 128 * MB);
    pf_agent(&f, "c1", 1, 128 * MB);
    full_mesh(&f, 1e10, 0.001);
    struct solve_request q = batch_of(g, 512, 1);
    struct plan *p = solved(&q, &f);
    double alone = p->best_single_ms, ideal = alone * 10 / 16;
    assert_int_equal(p->pipelines[0].n_stages, 3);
    assert_true(p->step_ms <= ideal / 0.95);
    assert_true(nodes_of(p, "a10") >= 39 && nodes_of(p, "a10") <= 41 && nodes_of(p, "c1") <= 4);
    plan_free(p);
    graph_close(g);
}

/* 10: more devices than nodes: nobody gets an empty stage. */
static void more_devices_than_nodes(void **state)
{
    (void)state;
    struct graph *g = pf_layers(2);
    struct pf f;
    pf_init(&f);
    for (int i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof name, "d%d", i);
        pf_agent(&f, name, 1, 64 * MB);
    }
    full_mesh(&f, 1e10, 0.001);
    struct solve_request q = batch_of(g, 64, 1);
    struct plan *p = solved(&q, &f);
    assert_int_equal(p->pipelines[0].n_stages, 2);
    for (int32_t s = 0; s < 2; s++)
        assert_int_equal(nodes_of(p, p->pipelines[0].stages[s].agent), 1);
    plan_free(p);
    graph_close(g);
}

/* 12: a heavy head, as the profile says it: equal devices get equal time, not equal numbers of nodes. */
static void heavy_head(void **state)
{
    (void)state;
    struct graph *g = pf_layers(20);
    double ms[20];
    struct pf f;
    for (int i = 0; i < 20; i++)
        ms[i] = i == 19 ? 10 : 1;
    pf_init(&f);
    pf_agent(&f, "one", 1, 64 * MB);
    pf_agent(&f, "two", 1, 64 * MB);
    pf_profile(&f, 0, ms, 20);
    pf_profile(&f, 1, ms, 20);
    full_mesh(&f, 1e10, 0.001);
    struct solve_request q = batch_of(g, 64, 1);
    struct plan *p = solved(&q, &f);
    assert_true(p->pipelines[0].n_stages >= 2);
    double a = 0, b = 0;
    for (int32_t s = 0; s < p->pipelines[0].n_stages; s++)
        *(strcmp(p->pipelines[0].stages[s].agent, "one") == 0 ? &a : &b) += p->pipelines[0].stages[s].predicted_ms;
    assert_true(fabs(a - b) <= 1.0 + 1e-9); /* one node's time: 14 and 15 */
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* 13: an accelerator ten times as fast that can run every other op. Each change of device is a hop with its price: the
 * planner counts them, and where they cost more than they bring the host does it all; where one run of ops is long
 * enough it goes there, with one hop each way. */
static void hops_cost(void **state)
{
    (void)state;
    enum { N = 24 };
    for (int run = 0; run < 2; run++) { /* the accelerator knows every other op; a run of them in the middle */
        struct graph *g = pf_layers(N);
        struct pf f;
        struct view_time fast[N] = {{0}}, slow[N] = {{0}};
        int n_fast = 0;
        pf_init(&f);
        pf_agent(&f, "host", 1, 64 * MB);
        pf_agent(&f, "npu", 1, 64 * MB);
        for (int i = 0; i < N; i++) {
            slow[i] = (struct view_time){.node = i, .size = 1, .ms = 1};
            if (run ? i >= 8 && i < 20 : i % 2)
                fast[n_fast++] = (struct view_time){.node = i, .size = 1, .ms = 0.1};
        }
        f.agents[0].times = slow;
        f.agents[0].n_times = N;
        f.agents[1].times = fast;
        f.agents[1].n_times = n_fast;
        f.agents[0].message_ms = f.agents[1].message_ms = 0.1;
        full_mesh(&f, 1e8, 0.5);
        struct solve_request q = batch_of(g, 1, 1);
        q.job = "infer";
        q.objective = SOLVE_LATENCY;
        q.source = 0;
        struct plan *p = solved(&q, &f);
        assert_string_equal(p->best_single, "host");
        for (int32_t s = 0; s < p->pipelines[0].n_stages; s++) /* never an op where it cannot run */
            for (int32_t r = 0; r < p->pipelines[0].stages[s].n_nodes; r++)
                for (int32_t k = p->pipelines[0].stages[s].nodes[r].first; k <= p->pipelines[0].stages[s].nodes[r].last;
                     k++)
                    assert_true(
                        strcmp(p->pipelines[0].stages[s].agent, "host") == 0 || (run ? k >= 8 && k < 20 : k % 2));
        if (run) {
            assert_int_equal(p->pipelines[0].n_stages, 3);
            assert_int_equal(nodes_of(p, "npu"), 12);
            assert_int_equal(p->n_cuts, 2);
            double saved = 12 * 0.9, hops = 2 * (0.5 + 2 * 0.1) + 2e3 * (512 * 4 + 512) / 1e8;
            assert_true(fabs(p->best_single_ms - p->step_ms - (saved - hops)) < 1e-9);
        } else {
            assert_int_equal(p->pipelines[0].n_stages, 1);
            assert_string_equal(p->pipelines[0].stages[0].agent, "host");
            assert_true(fabs(p->step_ms - (N + 0.1)) < 1e-9);
        }
        plan_free(p);
        graph_close(g);
    }
}

/* 15: a cable and Wi-Fi to the same agent: the cable, in whatever order they are listed; when it is pulled, Wi-Fi. */
static void cable_and_wifi(void **state)
{
    (void)state;
    struct graph *g = pf_layers(16);
    for (int order = 0; order < 3; order++) {
        struct pf f;
        pf_init(&f);
        pf_agent(&f, "host", 5, 64 * MB);
        pf_agent(&f, "phone", 5, 64 * MB);
        if (order != 1)
            pf_both(&f, 0, 1, 50e6 / 8, 2);
        if (order != 2)
            pf_both(&f, 0, 1, 1e9 / 8, 0.2);
        if (order == 1)
            pf_both(&f, 0, 1, 50e6 / 8, 2);
        struct solve_request q = batch_of(g, 64, 8);
        struct plan *p = solved(&q, &f);
        bool crosses = false;
        for (int32_t i = 0; i < p->n_cuts; i++) {
            double ms = p->cuts[i].predicted_ms, bytes = (double)p->cuts[i].bytes + 512;
            double want = order == 2 ? bytes / (50e6 / 8) * 1e3 + 2 : bytes / (1e9 / 8) * 1e3 + 0.2;
            assert_true(fabs(ms - want) <= 1e-9 * want);
            crosses = true;
        }
        assert_true(crosses || order == 2);
        plan_free(p);
    }
    graph_close(g);
}

/* 22: seen by discovery, but its connections are refused: no probed link, so no stage, and the reason is told. */
static void unreachable(void **state)
{
    (void)state;
    struct graph *g = pf_layers(16);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "host", 1, 64 * MB);
    pf_agent(&f, "ghost", 100, 64 * MB); /* it announces, nobody probed it */
    pf_link(&f, 0, 1, 1e9, 0.1)->origin = VIEW_UNKNOWN;
    pf_link(&f, 1, 0, 1e9, 0.1)->origin = VIEW_UNKNOWN;
    struct solve_request q = batch_of(g, 64, 8);
    q.source = 0;
    struct plan *p = solved(&q, &f);
    assert_int_equal(p->pipelines[0].n_stages, 1);
    assert_string_equal(p->pipelines[0].stages[0].agent, "host");
    plan_free(p);
    f.agents[0].memory_bytes = MB; /* and where nothing else is left, it says which link is missing */
    struct yk_diag why = {0};
    assert_int_equal(solve_plan(&q, &f.view, &p, &why), YK_INFEASIBLE);
    assert_non_null(strstr(why.text, "link host->ghost is not measured"));
    assert_non_null(strstr(why.text, "agent host: memory of its stages is"));
    f.agents[1].usable = false;
    snprintf(f.agents[1].why_not, sizeof f.agents[1].why_not, "unreachable: connection refused");
    f.agents[0].memory_bytes = 64 * MB;
    p = solved(&q, &f);
    assert_non_null(strstr(p->explanation, "not used: ghost, unreachable: connection refused"));
    plan_free(p);
    graph_close(g);
}

/* The raw input goes to a faster device as soon as that is worth it, and over slow links several are on their way. */
static void input_leaves_and_depth_helps(void **state)
{
    (void)state;
    struct graph *g = pf_layers(16);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "phone", 0.1, 64 * MB);
    pf_agent(&f, "pc", 100, 64 * MB);
    full_mesh(&f, 1e7, 20);
    struct solve_request q = batch_of(g, 64, 4);
    q.source = 0;
    struct plan *p = solved(&q, &f);
    assert_int_equal(p->pipelines[0].n_stages, 1);
    assert_string_equal(p->pipelines[0].stages[0].agent, "pc");
    assert_true(p->pipelines[0].depth > 2);
    plan_free(p);
    q.pin_first = true; /* but not if it must stay */
    p = solved(&q, &f);
    assert_string_equal(p->pipelines[0].stages[0].agent, "phone");
    plan_free(p);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(within_budgets),
        cmocka_unit_test(no_memory_known),
        cmocka_unit_test(tight_split),
        cmocka_unit_test(weak_helper),
        cmocka_unit_test(uneven_speeds),
        cmocka_unit_test(more_devices_than_nodes),
        cmocka_unit_test(heavy_head),
        cmocka_unit_test(hops_cost),
        cmocka_unit_test(cable_and_wifi),
        cmocka_unit_test(unreachable),
        cmocka_unit_test(input_leaves_and_depth_helps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
