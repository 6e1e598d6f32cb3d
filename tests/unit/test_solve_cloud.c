/* Objective cloud-cost against brute force over all chains, and what a person expects of it.
 * YOKE_SEED chooses the seeds, YOKE_FULL=1 runs twenty times as many. */
#include <math.h>

#include "scheduler/solve_dp.h"
#include "tests/tier.h"
#include "tests/unit/plan_brute.h"

#define PLENTY ((int64_t)1 << 40)

struct least {
    double deadline, cost, cloud; /* cost: of all; cloud: of those in time */
};

static void keep_least(void *arg, const struct cost_line *line)
{
    struct least *b = arg;
    b->cost = YK_MIN(b->cost, line->cost_ms);
    if (line->cost_ms <= b->deadline)
        b->cloud = YK_MIN(b->cloud, line->cloud_ms);
}

static void against_brute_force(void **state)
{
    (void)state;
    int none = 0, all = 0, some = 0;
    for (uint64_t i = 0; i < tier_count(20000, 1000); i++) {
        struct yk_rng r;
        struct pf f;
        struct cost_model m;
        int32_t form[64];
        yk_rng_seed(&r, tier_seed() + i);
        struct graph *g = pf_random_graph(&r);
        pf_random_of(&f, g, &r, 2 + (int32_t)yk_rng_below(&r, 2));
        for (int32_t a = 0; a < f.view.n_agents; a++)
            snprintf(
                f.agents[a].class_name, sizeof f.agents[a].class_name, "%s", yk_rng_below(&r, 2) ? "cloud" : "phone");
        struct solve_request q = {.graph = g, .model = "m", .job = "batch", .objective = SOLVE_CLOUD_COST};
        q.batch = 1 + (int64_t)yk_rng_below(&r, 24);
        q.source = 0;
        q.pin_first = yk_rng_below(&r, 6) == 0;
        q.pin_last = yk_rng_below(&r, 6) == 0;
        cost_choose_forms(&q, &f.view, form);
        assert_int_equal(
            cost_init(&m, &q, &f.view, form, yk_rng_below(&r, 3) ? YK_MIN(q.batch, 4) : q.batch, NULL), YK_OK);
        struct least b = {.deadline = 0, .cost = INFINITY};
        pb_each(&m, 0, keep_least, &b);
        for (int k = 0; k < 3 && b.cost < INFINITY; k++) {
            static const double wide[] = {0.9, 1.3, 3};
            struct solve_chain chains[4];
            int32_t n = 0;
            double bound;
            b.deadline = b.cost * wide[k];
            b.cloud = INFINITY;
            pb_each(&m, 0, keep_least, &b);
            assert_int_equal(solve_dp_thrift(&m, 0, b.deadline, &bound, chains, 4, &n, NULL), YK_OK);
            double got = n ? chains[0].cloud_ms : INFINITY;
            bool same = isinf(b.cloud) ? isinf(got) && isinf(bound)
                                       : fabs(got - b.cloud) <= 1e-9 * b.cloud && bound <= b.cloud * (1 + 1e-9);
            if (!same)
                fail_msg("YOKE_SEED=%llu deadline %g: %.15g of the cloud, bound %g; brute force %.15g",
                    (unsigned long long)(tier_seed() + i), b.deadline, got, bound, b.cloud);
            for (int32_t c = 0; c < n; c++)
                assert_true(chains[c].cost_ms <= b.deadline * (1 + 1e-9));
            none += isinf(b.cloud);
            all += b.cloud == 0;
            some += b.cloud > 0 && b.cloud < INFINITY;
        }
        cost_fini(&m);
        pf_fini(&f);
        graph_close(g);
    }
    print_message("%d without a way in time, %d without the cloud, %d with some of it\n", none, all, some);
    int64_t n = none + all + some;
    assert_true(tier_share(none, n, 0.2) && tier_share(all, n, 0.2) && tier_share(some, n, 0.2));
}

/* A phone that takes 10 ms a layer of up to eight, and a cloud that takes 1 ms. */
static void phone_and_cloud(struct pf *f, int32_t layers, double latency_ms)
{
    static const double slow[8] = {10, 10, 10, 10, 10, 10, 10, 10}, fast[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    pf_init(f);
    snprintf(pf_agent(f, "phone", 1, PLENTY)->class_name, 16, "phone");
    snprintf(pf_agent(f, "box", 1, PLENTY)->class_name, 16, "cloud");
    pf_profile(f, 0, slow, layers);
    pf_profile(f, 1, fast, layers);
    pf_both(f, 0, 1, 1e9, latency_ms);
}

/* The tighter the deadline, the more of the cloud. */
static void as_little_as_the_deadline_allows(void **state)
{
    (void)state;
    struct graph *g = pf_chain(8, 256);
    struct pf f;
    phone_and_cloud(&f, 8, 0.5);
    /* 8 layers on the phone 80 ms; k of them in the cloud save 9 k less two ways of about 0.5 ms */
    static const struct {
        double deadline, cloud;
    } cases[] = {{100, 0}, {80, 0}, {79, 1}, {63.5, 2}, {40, 5}, {10, 8}};
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct solve_request q = {.graph = g, .model = "m", .job = "infer", .batch = 1, .source = 0};
        struct plan *p = NULL;
        struct yk_diag why = {0};
        q.objective = SOLVE_CLOUD_COST;
        q.deadline_ms = cases[i].deadline;
        if (solve_plan(&q, &f.view, &p, &why))
            fail_msg("%g: %s", cases[i].deadline, why.text);
        if (fabs(p->cloud_ms - cases[i].cloud) > 1e-9 || p->step_ms > cases[i].deadline || fabs(p->gap) > 1e-9)
            fail_msg("deadline %g: %g ms of the cloud, not %g; %g ms, gap %g\n%s", cases[i].deadline, p->cloud_ms,
                cases[i].cloud, p->step_ms, p->gap, p->explanation);
        assert_string_equal(p->objective, "cloud-cost");
        assert_non_null(strstr(p->explanation, "class cloud"));
        plan_free(p);
    }
    struct solve_request q = {.graph = g, .model = "m", .job = "infer", .batch = 1, .source = 0, .deadline_ms = 5};
    struct plan *p = NULL;
    struct yk_diag why = {0};
    q.objective = SOLVE_CLOUD_COST;
    assert_int_equal(solve_plan(&q, &f.view, &p, &why), YK_INFEASIBLE);
    assert_non_null(strstr(why.text, "5 ms")); /* the limit, and what the best would take: 8 ms and two ways */
    assert_non_null(strstr(why.text, "9.0"));
    pf_fini(&f);
    graph_close(g);
}

/* Of many samples those that are behind the phone's pace go to the cloud, and a deadline of the whole job is shared out
 * over its batches. */
static void many_samples(void **state)
{
    (void)state;
    struct graph *g = pf_chain(4, 256);
    struct pf f;
    phone_and_cloud(&f, 4, 0.1);
    double last = INFINITY;
    for (double deadline = 200; deadline < 1600; deadline *= 1.5) {
        struct solve_request q = {.graph = g, .model = "m", .job = "batch", .batch = 16, .microbatch = 1, .source = 0};
        struct plan *p = NULL;
        struct yk_diag why = {0};
        q.objective = SOLVE_CLOUD_COST;
        q.samples = 32;
        q.deadline_ms = deadline;
        if (solve_plan(&q, &f.view, &p, &why))
            fail_msg("%s", why.text);
        assert_true(2 * p->step_ms <= deadline && p->cloud_ms <= last);
        last = p->cloud_ms;
        plan_free(p);
    }
    assert_true(last == 0); /* 32 samples of 40 ms fit 1,519 ms */
    pf_fini(&f);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_brute_force),
        cmocka_unit_test(as_little_as_the_deadline_allows),
        cmocka_unit_test(many_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
