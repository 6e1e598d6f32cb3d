/* Plans fit with all that agents hold for them, where there are such plans. */
#include "scheduler/held.h"
#include "tests/unit/plan_fleet.h"

/* An agent with a stage that holds more than it has. */
static int32_t over(const struct solve_request *q, const struct view *v, const struct plan *p)
{
    int64_t held[8];
    struct yk_diag why = {0};
    if (held_bytes(q->graph, NULL, p, v, held, &why))
        fail_msg("%s", why.text);
    for (int32_t i = 0; i < p->n_pipelines; i++)
        for (int32_t k = 0; k < p->pipelines[i].n_stages; k++)
            for (int32_t a = 0; a < v->n_agents; a++)
                if (strcmp(v->agents[a].name, p->pipelines[i].stages[k].agent) == 0 &&
                    held[a] > v->agents[a].memory_bytes)
                    return a;
    return -1;
}

static void plans_fit_with_all_that_is_held(void **state)
{
    (void)state;
    static const bool halves[] = {true, true, false};
    struct yk_rng r;
    int mended = 0, kept = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        yk_rng_seed(&r, seed);
        struct graph *g = pf_random_graph(&r);
        struct pf f;
        struct plan *p = NULL;
        pf_random_of(&f, g, &r, 3);
        struct solve_request q = {.graph = g,
            .model = "m",
            .job = "batch",
            .objective = SOLVE_THROUGHPUT,
            .batch = 1 + (int64_t)yk_rng_below(&r, 40),
            .source = 0,
            .codec_allowed = yk_rng_below(&r, 2) ? halves : NULL};
        for (int32_t a = 0; a < 3; a++)
            f.agents[a].memory_bytes = (int64_t)1 << 40;
        if (solve_plan(&q, &f.view, &p, NULL) == YK_OK) {
            int64_t held[8], planned[3] = {0};
            assert_int_equal(held_bytes(g, NULL, p, &f.view, held, NULL), YK_OK);
            for (int32_t k = 0; k < p->pipelines[0].n_stages; k++)
                planned[p->pipelines[0].stages[k].agent[1] - '0'] += p->pipelines[0].stages[k].memory_bytes;
            for (int32_t a = 0; a < 3; a++)
                if (planned[a] > 0 && held[a] > planned[a])
                    f.agents[a].memory_bytes = held[a] - 1;
            plan_free(p);
            p = NULL;
            bool lacks = solve_plan(&q, &f.view, &p, NULL) == YK_OK && over(&q, &f.view, p) >= 0;
            plan_free(p);
            p = NULL;
            int64_t before = f.agents[0].memory_bytes;
            if (lacks) {
                assert_int_equal(held_plan(&q, &f.view, &p, NULL), YK_OK);
                assert_int_equal(f.agents[0].memory_bytes, before);
                mended += over(&q, &f.view, p) < 0;
                kept += over(&q, &f.view, p) >= 0;
                plan_free(p);
            }
        }
        pf_fini(&f);
        graph_close(g);
    }
    print_message("%d plans that lacked memory were mended, %d not\n", mended, kept);
    assert_true(mended >= 10 && kept <= mended / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plans_fit_with_all_that_is_held)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
