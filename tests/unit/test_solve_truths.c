/* What is known of the best plan without any search: small fleets whose answer anybody can see. */
#include <math.h>

#include "scheduler/solve.h"
#include "tests/unit/plan_fleet.h"

#define PLENTY ((int64_t)1 << 40)

static struct plan *ask(struct pf *f, const struct solve_request *q)
{
    struct plan *p = NULL;
    struct yk_diag why = {0}, bad = {0};
    if (solve_plan(q, &f->view, &p, &why))
        fail_msg("%s", why.text);
    if (plan_check(p, q->graph, NULL, &bad))
        fail_msg("%s", bad.text);
    assert_true(p->bound_ms <= p->cost_ms * (1 + 1e-12) && p->gap >= 0);
    for (int i = 0; i < 3; i++) /* percents are for people */
        if (strstr(p->explanation, (const char *[]){"e+0", "e-0", "e-1"}[i]))
            fail_msg("%s", p->explanation);
    if (p->best_single)
        assert_true(p->step_ms <= p->best_single_ms * (1 + 1e-9));
    return p;
}

/* n products, one after another: of `ends` columns, and of `inside` between them. */
static struct graph *products(int n, int64_t ends, int64_t inside)
{
    struct graph *g = fx_open();
    graph_sym(g, "N");
    int32_t v = fx_input(g, "x", DT_F32, (const int64_t[]){-1, ends}, 2), w;
    char name[16];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "w%d", i);
        w = fx_weight(g, name, (const int64_t[]){i == 0 ? ends : inside, i == n - 1 ? ends : inside}, 2);
        snprintf(name, sizeof name, "v%d", i);
        v = fx_node(g, "MatMul", name, IDS(v, w));
    }
    fx_output(g, v);
    return g;
}

/* Any cut inside sends more than the input. */
static struct graph *wide_inside(void)
{
    return products(6, 64, 4096);
}

/* Every agent to every other. */
static void link_all(struct pf *f, double bytes_per_s, double latency_ms)
{
    for (int32_t i = 0; i < f->view.n_agents; i++)
        for (int32_t k = 0; k < i; k++)
            pf_both(f, i, k, bytes_per_s, latency_ms);
}

/* With plenty of memory. */
static void two(
    struct pf *f, const char *a, double a_gflops, const char *b, double b_gflops, double bytes_per_s, double latency_ms)
{
    pf_init(f);
    pf_agent(f, a, a_gflops, PLENTY);
    pf_agent(f, b, b_gflops, PLENTY);
    link_all(f, bytes_per_s, latency_ms);
}

/* Over 10 Mbit/s such a model is on one side whole: on the faster one if the raw input is worth sending. */
static void not_split_over_a_slow_link(void **state)
{
    (void)state;
    struct graph *g = wide_inside();
    for (int fast = 0; fast < 2; fast++) {
        struct pf f;
        two(&f, "phone", 2, "pc", fast ? 200 : 2.02, 10e6 / 8, 5);
        struct solve_request q = {.graph = g, .model = "m", .job = "infer", .batch = 1, .source = 0};
        struct plan *p = ask(&f, &q);
        assert_int_equal(p->pipelines[0].n_stages, 1);
        assert_string_equal(p->pipelines[0].stages[0].agent, fast ? "pc" : "phone");
        plan_free(p);
        pf_fini(&f);
    }
    graph_close(g);
}

static void slow_second_device(void **state)
{
    (void)state;
    struct graph *g = pf_chain(8, 4096);
    struct pf f;
    two(&f, "host", 10, "weak", 0.01, 1e7, 1);
    struct solve_request q = {.graph = g, .job = "batch", .batch = 16, .source = 0};
    struct plan *p = ask(&f, &q);
    assert_int_equal(p->pipelines[0].n_stages, 1);
    assert_string_equal(p->pipelines[0].stages[0].agent, "host");
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* Two links to one agent: the cable is taken, whichever comes first. */
static void cable_beats_wifi(void **state)
{
    (void)state;
    struct graph *g = pf_chain(8, 65536);
    double step[2];
    for (int order = 0; order < 2; order++) {
        struct pf f;
        two(&f, "phone", 0.1, "pc", 50, order ? 50e6 / 8 : 1e9 / 8, order ? 3 : 0.3);
        pf_both(&f, 0, 1, order ? 1e9 / 8 : 50e6 / 8, order ? 0.3 : 3);
        struct solve_request q = {.graph = g, .job = "batch", .batch = 16, .source = 0};
        struct plan *p = ask(&f, &q);
        assert_string_equal(p->pipelines[0].stages[p->pipelines[0].n_stages - 1].agent, "pc");
        step[order] = p->step_ms;
        plan_free(p);
        pf_fini(&f);
    }
    assert_true(fabs(step[0] - step[1]) < 1e-9);
    graph_close(g);
}

/* Data on both would be best; with all of it on one, over a slow link, each does whole samples of its share. */
static void slow_link_gives_replicas(void **state)
{
    (void)state;
    struct graph *g = wide_inside();
    struct pf f;
    two(&f, "a", 20, "b", 10, 1e6, 2);
    struct solve_request q = {.graph = g, .job = "batch", .batch = 300, .microbatch = 1, .source = 0, .replicas = true};
    struct plan *p = ask(&f, &q), *again;
    double shares = 0;
    assert_int_equal(p->n_pipelines, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(p->pipelines[i].n_stages, 1);
        shares += p->pipelines[i].share;
        bool fast = strcmp(p->pipelines[i].stages[0].agent, "a") == 0;
        assert_true(fabs(p->pipelines[i].share - (fast ? 2.0 : 1.0) / 3) < 0.02);
    }
    assert_true(fabs(shares - 1) < 1e-9);
    assert_true(p->step_ms < p->best_single_ms * 0.7); /* 2/3 and a little for the way */
    q.forced = p;
    again = ask(&f, &q);
    assert_true(fabs(again->cost_ms - p->cost_ms) <= 1e-9 * p->cost_ms);
    assert_true(fabs(again->step_ms - p->step_ms) <= 1e-9 * p->step_ms);
    plan_free(again);
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* Speeds of 10, 5 and 1: no less than 0.95 of what all of them can do. */
static void slowest_does_not_set_the_pace(void **state)
{
    (void)state;
    struct graph *g = wide_inside();
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "ten", 10, PLENTY);
    pf_agent(&f, "five", 5, PLENTY);
    pf_agent(&f, "one", 1, PLENTY);
    link_all(&f, 1e9, 0.1);
    struct solve_request q = {.graph = g, .job = "batch", .batch = 640, .microbatch = 1, .source = 0, .replicas = true};
    struct plan *p = ask(&f, &q);
    double all = p->best_single_ms * 10 / 16;
    if (!(p->step_ms <= all / 0.95))
        fail_msg("%g ms, all of them %g:\n%s", p->step_ms, all, p->explanation);
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* Of 40 equal devices eight take as long for 16 samples as nine do; but 16 of them take less. */
static void one_sample_each(void **state)
{
    (void)state;
    enum { DEVICES = 40 };
    static struct view_agent agents[DEVICES];
    static struct view_link links[DEVICES * DEVICES];
    struct graph *g = wide_inside();
    struct pf f = {.view = {.agents = agents, .links = links, .n_agents = DEVICES}};
    for (int32_t i = 0; i < DEVICES; i++) {
        agents[i] = (struct view_agent){.usable = true, .memory_bytes = PLENTY, .gflops = 10, .slow_factor = 1};
        snprintf(agents[i].name, sizeof agents[i].name, "a%d", i);
        for (int32_t k = 0; k < DEVICES; k++)
            if (k != i)
                links[f.view.n_links++] = (struct view_link){
                    .from = i, .to = k, .bytes_per_s = 1e8, .latency_ms = 0.1, .shared = -1, .origin = VIEW_MEASURED};
    }
    struct solve_request q = {.graph = g, .job = "batch", .batch = 16, .microbatch = 1, .source = 0, .replicas = true};
    struct plan *p = ask(&f, &q);
    assert_int_equal(p->n_pipelines, 16);
    assert_true(p->step_ms < p->best_single_ms / 16 * 1.1); /* and the way */
    plan_free(p);
    graph_close(g);
}

/* Where the planner picks the source, two alternatives that differ in nothing else say so. */
static void alternatives_name_their_source(void **state)
{
    (void)state;
    struct graph *g = wide_inside();
    struct pf f;
    two(&f, "a", 20, "b", 10, 1e7, 0.1);
    struct solve_request q = {.graph = g, .job = "infer", .batch = 1, .source = -1};
    struct plan *p = ask(&f, &q);
    bool elsewhere = false;
    assert_string_equal(p->source, "a");
    for (int32_t i = 0; i < p->n_alternatives; i++) {
        elsewhere = elsewhere || strcmp(p->alternatives[i].text, "a 0-5, source b") == 0;
        for (int32_t k = 0; k < i; k++)
            assert_string_not_equal(p->alternatives[i].text, p->alternatives[k].text);
    }
    assert_true(elsewhere);
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* Of equal devices the one that is nearer to yoked is the source and does the work, whichever comes first, for what is
 * sent there and for what comes back; a step's time has both ways, also in the event model. */
static void nearer_of_equals(void **state)
{
    (void)state;
    struct graph *g = wide_inside();
    double in = 512 + 64 * 4, out = in;
    for (int far = 0; far < 2; far++)
        for (int back = 0; back < 2; back++) {
            struct pf f;
            two(&f, "a", 10, "b", 10, 1e9, 0.1);
            for (int32_t a = 0; a < 2; a++) {
                pf_link(&f, -1, a, 1e8, a == far && !back ? 10 : 0.1);
                pf_link(&f, a, -1, 2e8, a == far && back ? 10 : 0.1);
            }
            static const char *const jobs[] = {"infer", "batch"};
            for (size_t k = 0; k < YK_COUNT(jobs); k++) {
                struct solve_request q = {.graph = g,
                    .job = jobs[k],
                    .objective = k ? SOLVE_THROUGHPUT : SOLVE_LATENCY,
                    .batch = 1,
                    .source = -1,
                    .answers = back || !k};
                struct plan *p = ask(&f, &q);
                assert_string_equal(p->source, far ? "a" : "b");
                assert_string_equal(p->pipelines[0].stages[0].agent, p->source);
                double ms = p->pipelines[0].stages[0].predicted_ms + in * 1e3 / 1e8 + 0.1;
                ms += q.answers ? out * 1e3 / 2e8 + 0.1 : 0;
                assert_true(fabs(p->step_ms - ms) < 1e-9 * ms && fabs(p->cost_ms - ms) < 1e-9 * ms);
                assert_non_null(strstr(p->explanation, "yoked -> source"));
                assert_true((strstr(p->explanation, "source -> yoked") != NULL) == q.answers);
                for (int32_t c = 0; c < p->n_cuts; c++) /* no stage has an end there */
                    assert_true(p->cuts[c].from >= -1 && p->cuts[c].to >= -1);
                plan_free(p);
            }
            pf_fini(&f);
        }
    graph_close(g);
}

/* Every pair is a medium of its own (half duplex): as many replicas as where nothing is shared. */
static void replicas_over_half_duplex_pairs(void **state)
{
    (void)state;
    struct graph *g = wide_inside();
    double step[2];
    for (int half = 0; half < 2; half++) {
        struct pf f;
        char name[16];
        pf_init(&f);
        for (int i = 0; i < 5; i++) {
            snprintf(name, sizeof name, "a%d", i);
            pf_agent(&f, name, 10, PLENTY);
        }
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < i; k++) {
                pf_both(&f, i, k, 1e6, 0.1);
                for (int end = 1; end <= 2 && half; end++)
                    f.links[f.view.n_links - end].shared = k * 5 + i;
            }
        struct solve_request q = {
            .graph = g, .job = "batch", .batch = 100, .microbatch = 1, .source = 0, .replicas = true};
        struct plan *p = ask(&f, &q);
        assert_int_equal(p->n_pipelines, 5);
        step[half] = p->step_ms;
        assert_true(p->step_ms < p->best_single_ms * 0.22);
        plan_free(p);
        pf_fini(&f);
    }
    assert_true(step[1] < step[0] * 1.02);
    graph_close(g);
}

/* What fits on no device alone, and on three only as 2 : 1 : 1, is found. */
static void memory_of_three(void **state)
{
    (void)state;
    struct graph *g = products(12, 512, 512);
    struct pf f;
    pf_init(&f);
    pf_agent(&f, "large", 10, 6 * (1 << 20) + 20000);
    pf_agent(&f, "small", 10, 3 * (1 << 20) + 20000);
    pf_agent(&f, "small2", 10, 3 * (1 << 20) + 20000);
    link_all(&f, 1e8, 0.1);
    struct solve_request q = {.graph = g, .job = "batch", .batch = 4, .microbatch = 1, .source = 0};
    struct plan *p = ask(&f, &q);
    assert_int_equal(p->pipelines[0].n_stages, 3);
    assert_null(p->best_single);
    for (int s = 0; s < 3; s++)
        assert_true(p->pipelines[0].stages[s].memory_bytes <=
                    (strcmp(p->pipelines[0].stages[s].agent, "large") == 0 ? 6 : 3) * (1 << 20) + 20000);
    plan_free(p);
    /* A byte of memory that nobody knows is no memory; the reply says so. */
    for (int i = 0; i < 3; i++)
        f.agents[i].memory_bytes = 0;
    struct yk_diag why = {0};
    assert_int_equal(solve_plan(&q, &f.view, &p, &why), YK_INFEASIBLE);
    assert_non_null(strstr(why.text, "small2"));
    assert_non_null(strstr(why.text, "memory"));
    pf_fini(&f);
    graph_close(g);
}

/* Over a link with latency a microbatch is long on its way: more are inside than there are stages. */
static void latency_wants_depth(void **state)
{
    (void)state;
    struct graph *g = pf_chain(8, 4096);
    struct pf f;
    static const double ms[8] = {10, 10, 10, 10, 10, 10, 10, 10};
    two(&f, "host", 1, "phone", 1, 1e9, 60);
    pf_profile(&f, 0, ms, 8);
    pf_profile(&f, 1, ms, 8);
    struct solve_request q = {.graph = g, .job = "batch", .batch = 64, .microbatch = 1, .source = 0};
    struct plan *p = ask(&f, &q);
    assert_int_equal(p->pipelines[0].n_stages, 2);
    assert_true(p->pipelines[0].depth > 2);
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

/* What must not leave the source keeps its ends there; the faster agent gets what is between, for one request and for
 * many. Both ends on the source at 2 ms are the least that the pins allow. */
static void both_ends_at_the_source(void **state)
{
    (void)state;
    struct graph *g = pf_chain(8, 4096);
    static const double slow[8] = {2, 10, 10, 10, 10, 10, 10, 2}, fast[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct pf f;
    two(&f, "phone", 1, "pc", 1, 1e9, 0.1);
    pf_profile(&f, 0, slow, 8);
    pf_profile(&f, 1, fast, 8);
    for (int many = 0; many < 2; many++) {
        struct solve_request q = {.graph = g, .job = many ? "batch" : "infer", .batch = many ? 16 : 1, .source = 0};
        q.objective = many ? SOLVE_THROUGHPUT : SOLVE_LATENCY;
        q.pin_first = q.pin_last = true;
        q.microbatch = many;
        struct plan *p = ask(&f, &q);
        const struct plan_pipeline *line = &p->pipelines[0];
        assert_int_equal(line->n_stages, 3);
        assert_string_equal(line->stages[0].agent, "phone");
        assert_string_equal(line->stages[1].agent, "pc");
        assert_string_equal(line->stages[2].agent, "phone");
        assert_int_equal(line->stages[1].nodes[0].first, 1);
        assert_int_equal(line->stages[1].nodes[0].last, 6);
        double way = (4096 * 4 + 512) / 1e9 * 1e3, once = 2 + 6 + 2 + 2 * (way + 0.1);
        assert_true(fabs(p->cost_ms - (once + (many ? 15 * 6 : 0))) < 1e-9);
        assert_true(fabs(p->gap) < 1e-9);
        plan_free(p);
    }
    pf_fini(&f);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(not_split_over_a_slow_link),
        cmocka_unit_test(slow_second_device),
        cmocka_unit_test(cable_beats_wifi),
        cmocka_unit_test(slow_link_gives_replicas),
        cmocka_unit_test(slowest_does_not_set_the_pace),
        cmocka_unit_test(one_sample_each),
        cmocka_unit_test(alternatives_name_their_source),
        cmocka_unit_test(nearer_of_equals),
        cmocka_unit_test(replicas_over_half_duplex_pairs),
        cmocka_unit_test(memory_of_three),
        cmocka_unit_test(latency_wants_depth),
        cmocka_unit_test(both_ends_at_the_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
