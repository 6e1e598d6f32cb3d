/* The search over kinds of agents against the exact one, on fleets that both take: its bound is never above the
 * optimum, its plan never below it, and both are near where links of a kind are alike. YOKE_SEED chooses the seeds. */
#include <math.h>

#include "scheduler/solve_large.h"
#include "tests/tier.h"
#include "tests/unit/plan_fleet.h"

/* Up to three kinds of up to three agents; links go by the kinds, or not at all by them. */
static bool kinds_of_agents(struct pf *f, const struct graph *g, struct yk_rng *r)
{
    double rate[4][4], latency[4][4], ms[3][64];
    int32_t kinds = 1 + (int32_t)yk_rng_below(r, 3), of[PF_AGENTS];
    bool alike = yk_rng_below(r, 4) > 0;
    pf_init(f);
    for (int32_t k = 0; k < kinds; k++) {
        int64_t memory = yk_rng_below(r, 3) ? (int64_t)1 << 40 : (int64_t)pf_spread(r, 20e3, 3);
        double gflops = pf_spread(r, 0.01, 3), message_ms = yk_rng_below(r, 3) ? 0 : yk_rng_unit(r);
        bool profile = yk_rng_below(r, 2);
        for (int32_t i = 0; i < g->n_nodes; i++)
            ms[k][i] = pf_spread(r, 0.01, 2);
        for (int32_t i = 0, n = 1 + (int32_t)yk_rng_below(r, 3); i < n && f->view.n_agents < 7; i++) {
            char name[28];
            snprintf(name, sizeof name, "k%d-%d", k, i);
            of[f->view.n_agents] = k;
            struct view_agent *a = pf_agent(f, name, gflops, memory);
            a->message_ms = message_ms;
            if (profile)
                pf_profile(f, f->view.n_agents - 1, ms[k], g->n_nodes);
        }
    }
    for (int32_t a = 0; a < kinds; a++)
        for (int32_t b = 0; b < kinds; b++) {
            rate[a][b] = yk_rng_below(r, 8) ? pf_spread(r, 1e5, 5) : 0;
            latency[a][b] = 2 * yk_rng_unit(r);
        }
    for (int32_t a = 0; a < f->view.n_agents; a++)
        for (int32_t b = 0; b < f->view.n_agents; b++)
            if (a != b && rate[of[a]][of[b]] > 0)
                pf_link(f, a, b, rate[of[a]][of[b]] * (alike ? 1 : 1 + yk_rng_unit(r)), latency[of[a]][of[b]]);
    return alike;
}

static void against_exact(void **state)
{
    (void)state;
    const struct solver *kinds = solver_find("kinds"), *exact = solver_find("dp");
    int found = 0, near = 0, alike = 0, lost = 0;
    assert_true(kinds && exact);
    for (uint64_t seed = tier_seed(), end = seed + tier_count(10000, 500); seed < end; seed++) {
        struct yk_rng r;
        struct pf f;
        struct yk_diag why = {0};
        struct plan *p = NULL, *best = NULL;
        yk_rng_seed(&r, seed);
        struct graph *g = yk_rng_below(&r, 2) ? pf_chain(3 + (int)yk_rng_below(&r, 10), 256) : pf_random_graph(&r);
        bool same = kinds_of_agents(&f, g, &r);
        struct solve_request q = {.graph = g, .model = "m", .job = "batch", .objective = SOLVE_THROUGHPUT};
        q.batch = 1 + (int64_t)yk_rng_below(&r, 24);
        q.microbatch = 1;
        q.source = yk_rng_below(&r, 4) ? (int32_t)yk_rng_below(&r, (uint64_t)f.view.n_agents) : -1;
        q.answers = yk_rng_below(&r, 2);
        q.pin_first = q.source >= 0 && yk_rng_below(&r, 6) == 0;
        q.pin_last = q.source >= 0 && yk_rng_below(&r, 6) == 0;
        yk_err err = exact->solve(&q, &f.view, &best, &why), bad = kinds->solve(&q, &f.view, &p, &why);
        if ((!bad && err) || (bad && bad != YK_INFEASIBLE))
            fail_msg("YOKE_SEED=%llu: kinds: %s, exact: %s: %s", (unsigned long long)seed, yk_err_text(bad),
                yk_err_text(err), why.text);
        lost += bad && !err;
        if (!bad && !err) {
            if (p->bound_ms > best->bound_ms * (1 + 1e-9) || p->cost_ms < best->bound_ms * (1 - 1e-9))
                fail_msg("YOKE_SEED=%llu: bound %.15g, cost %.15g, optimum %.15g", (unsigned long long)seed,
                    p->bound_ms, p->cost_ms, best->bound_ms);
            if (plan_check(p, g, NULL, &why))
                fail_msg("YOKE_SEED=%llu: %s", (unsigned long long)seed, why.text);
            found++;
            alike += same;
            near += same && p->cost_ms <= best->cost_ms * 1.05;
        }
        plan_free(p);
        plan_free(best);
        pf_fini(&f);
        graph_close(g);
    }
    print_message(
        "%d plans, %d of %d near the optimum where links are alike; %d not found\n", found, near, alike, lost);
    assert_true(tier_share(near, alike, 0.9) && tier_share(found, found + lost, 0.99));
}

/* With more time never a worse plan: the chains of kinds come first, and what more time finds is added to them. */
static void more_time(void **state)
{
    (void)state;
    for (uint64_t seed = tier_seed(), end = seed + 40; seed < end; seed++) {
        struct yk_rng r;
        struct pf f;
        double before = INFINITY;
        yk_rng_seed(&r, seed);
        struct graph *g = pf_chain(12, 1024);
        kinds_of_agents(&f, g, &r);
        struct solve_request q = {.graph = g, .model = "m", .job = "batch", .batch = 16, .microbatch = 1, .source = 0};
        for (int more = 0; more < 2; more++) {
            struct plan *p = NULL;
            q.budget_ms = more ? 1e6 : 0;
            if (solver_find("kinds")->solve(&q, &f.view, &p, NULL) == YK_OK) {
                if (p->step_ms > before * (1 + 1e-9))
                    fail_msg(
                        "YOKE_SEED=%llu: %g ms, with more time %g ms", (unsigned long long)seed, before, p->step_ms);
                before = p->step_ms;
            }
            plan_free(p);
        }
        pf_fini(&f);
        graph_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_exact),
        cmocka_unit_test(more_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
