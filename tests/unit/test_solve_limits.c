/* Graphs that are too large for the exact search, and searches that run out of time: a plan all the same, which says
 * what was not looked at. No test waits for a time: the budgets are far below or above what is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_many_nodes),
        cmocka_unit_test(out_of_time),
        cmocka_unit_test(too_many_agents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
