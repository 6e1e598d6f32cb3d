/* Graphs that are too large for the exact search, and searches that run out of time: a plan all the same, which says
 * what was not looked at. No test waits for a time: the budgets are far below or above what is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "scheduler/solve_dp.h"
#include "tests/unit/plan_fleet.h"

#define PLENTY ((int64_t)1 << 40)

static struct plan *ask(struct graph *g, double budget_ms)
{
    struct pf f;
    struct plan *p = NULL;
    struct yk_diag why = {0};
    pf_init(&f);
    pf_agent(&f, "pc", 50, PLENTY);
    pf_agent(&f, "phone", 10, PLENTY);
    pf_both(&f, 0, 1, 1e9, 0.1);
    struct solve_request q = {.graph = g,
        .model = "m",
        .job = "batch",
        .objective = SOLVE_THROUGHPUT,
        .batch = 64,
        .source = 0,
        .budget_ms = budget_ms};
    if (solve_plan(&q, &f.view, &p, &why))
        fail_msg("%s", why.text);
    pf_fini(&f);
    assert_non_null(p->best_single);
    assert_true(p->bound_ms <= p->cost_ms && p->gap >= 0);
    struct yk_diag bad = {0};
    if (plan_check(p, g, NULL, &bad))
        fail_msg("%s", bad.text);
    return p;
}

static void too_many_nodes(void **state)
{
    (void)state;
    struct graph *g = pf_chain(SOLVE_DP_FINE + 1, 8);
    struct plan *p = ask(g, 1);
    assert_non_null(strstr(p->explanation, "10001 nodes"));
    plan_free(p);
    graph_close(g);
}

static void out_of_time(void **state)
{
    (void)state;
    struct graph *g = pf_chain(200, 8);
    struct plan *p = ask(g, 1e-6);
    assert_non_null(strstr(p->explanation, "stopped after"));
    plan_free(p);
    p = ask(g, 1e9);
    assert_null(strstr(p->explanation, "stopped after"));
    assert_null(strstr(p->explanation, "nodes, over"));
    plan_free(p);
    graph_close(g);
}

/* More agents than the exact solver takes: still a plan, and one no slower than the fastest device alone. */
static void too_many_agents(void **state)
{
    (void)state;
    enum { AGENTS = 200 };
    struct view_agent *agents = calloc(AGENTS, sizeof *agents);
    struct view_link *links = calloc((size_t)2 * AGENTS, sizeof *links);
    struct view v = {.agents = agents, .links = links, .n_agents = AGENTS};
    struct graph *g = pf_chain(20, 4096);
    struct plan *p = NULL;
    struct yk_diag why = {0};
    assert_true(agents && links);
    for (int32_t i = 0; i < AGENTS; i++) {
        snprintf(agents[i].name, sizeof agents[i].name, "a%d", i);
        agents[i].usable = true;
        agents[i].memory_bytes = PLENTY;
        agents[i].gflops = i == 150 ? 4 : 0.05;
        agents[i].slow_factor = 1;
        for (int32_t back = 0; i > 0 && back < 2; back++)
            links[v.n_links++] = (struct view_link){.from = back ? i : 0,
                .to = back ? 0 : i,
                .bytes_per_s = 1e9,
                .latency_ms = 0.01,
                .shared = -1,
                .origin = VIEW_MEASURED};
    }
    struct solve_request q = {.graph = g, .job = "batch", .batch = 16, .microbatch = 1, .source = 0};
    if (solve_plan(&q, &v, &p, &why))
        fail_msg("%s", why.text);
    assert_string_equal(p->best_single, "a150");
    assert_true(p->step_ms <= p->best_single_ms * (1 + 1e-9));
    assert_true(p->bound_ms > 0 && p->bound_ms <= p->cost_ms && p->gap >= 0 && p->gap < 1);
    assert_non_null(strstr(p->explanation, "Of 200 agents"));
    assert_int_equal(plan_check(p, g, NULL, &why), YK_OK);
    plan_free(p);
    for (int32_t i = 0; i < AGENTS; i++)
        agents[i].usable = false;
    assert_int_equal(solve_plan(&q, &v, &p, &why), YK_INFEASIBLE);
    q.source = -1;
    assert_int_equal(solve_plan(&q, &v, &p, &why), YK_INFEASIBLE);
    graph_close(g);
    free(agents);
    free(links);
}

/* 200 layers over 8 devices, planned again as they slow down one after another: whatever the budget is there is a plan,
 * as good as any single device, and the bound is that of no limit or lower. The budget is a number of looks at the
 * clock, which comes between every two labels of the search. */
static void planned_again(void **state)
{
    (void)state;
    struct graph *g = pf_chain(200, 1024);
    struct pf f;
    pf_init(&f);
    for (int32_t i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "d%d", i);
        pf_agent(&f, name, 0.05 * (1 + i % 4), PLENTY);
        for (int32_t k = 0; k < i; k++)
            pf_both(&f, i, k, 1e8, 0.3);
    }
    for (int32_t round = 0; round < 4; round++) {
        double least = INFINITY, bound = 0;
        f.agents[round].slow_factor = 5;
        for (int64_t budget = 1; budget <= 10000; budget *= 100) {
            int64_t looks = budget;
            struct plan *p = NULL;
            struct yk_diag why = {0};
            struct solve_request q = {.graph = g,
                .model = "m",
                .job = "batch",
                .objective = SOLVE_THROUGHPUT,
                .closed_form = true,
                .batch = 16,
                .microbatch = 1,
                .source = 0,
                .looks = &looks};
            if (solve_plan(&q, &f.view, &p, &why))
                fail_msg("%s", why.text);
            assert_int_equal(plan_check(p, g, NULL, &why), YK_OK);
            assert_true(p->best_single && p->cost_ms <= least * (1 + 1e-12));
            assert_true(p->bound_ms <= p->cost_ms && p->bound_ms >= bound * (1 - 1e-9));
            least = p->cost_ms;
            bound = p->bound_ms;
            plan_free(p);
        }
    }
    pf_fini(&f);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_many_nodes),
        cmocka_unit_test(out_of_time),
        cmocka_unit_test(too_many_agents),
        cmocka_unit_test(planned_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
