/* The planner against brute force over seeded small fleets, and what every plan of it promises.
 * YOKE_SEED chooses the seeds, YOKE_FULL=1 runs ten times as many. */
#include <math.h>
#include <time.h>

#include "scheduler/candidate.h"
#include "scheduler/solve_dp.h"
#include "tests/tier.h"
#include "tests/unit/plan_brute.h"

static const bool int8_too[3] = {true, true, true}, fp16_too[3] = {true, true, false};

static void random_request(struct solve_request *q, const struct graph *g, const struct pf *f, struct yk_rng *r)
{
    *q = (struct solve_request){.graph = g, .model = "m", .job = "batch", .objective = SOLVE_THROUGHPUT};
    q->batch = 1 + (int64_t)yk_rng_below(r, 24);
    q->microbatch = yk_rng_below(r, 2) ? 1 + (int64_t)yk_rng_below(r, (uint64_t)q->batch) : 0;
    q->source = yk_rng_below(r, 3) ? (int32_t)yk_rng_below(r, (uint64_t)f->view.n_agents) : -1;
    q->pin_first = yk_rng_below(r, 6) == 0;
    q->pin_last = yk_rng_below(r, 6) == 0;
    uint64_t codec = yk_rng_below(r, 4);
    q->codec_allowed = codec == 0 ? int8_too : codec == 1 ? fp16_too : NULL;
    q->answers = yk_rng_below(r, 2);
}

/* ---- brute force ---- */

static void keep_least(void *arg, const struct cost_line *line)
{
    double *least = arg;
    *least = YK_MIN(*least, line->cost_ms);
}

static void exact_one(uint64_t seed, int chain, int32_t agents)
{
    struct yk_rng r;
    struct pf f;
    struct solve_request q;
    struct cost_model m;
    int32_t form[64];
    yk_rng_seed(&r, seed);
    struct graph *g = chain ? pf_chain(chain, 256) : pf_random_graph(&r);
    if (agents)
        pf_random_of(&f, g, &r, agents);
    else
        pf_random(&f, g, &r);
    random_request(&q, g, &f, &r);
    cost_choose_forms(&q, &f.view, form);
    assert_int_equal(cost_init(&m, &q, &f.view, form, q.microbatch ? q.microbatch : YK_MIN(q.batch, 4), NULL), YK_OK);
    for (int32_t source = 0; source < f.view.n_agents; source++) {
        struct solve_chain chains[6];
        double best = INFINITY;
        int32_t n = 0;
        assert_int_equal(solve_dp_chains(&m, source, INFINITY, NULL, chains, 6, &n, NULL, NULL), YK_OK);
        pb_each(&m, source, keep_least, &best);
        double got = n ? chains[0].cost_ms : INFINITY;
        bool same = isinf(got) ? isinf(best) : fabs(got - best) <= 1e-9 * best;
        if (!same)
            fail_msg(
                "YOKE_SEED=%llu source %d: dp %.15g, brute force %.15g", (unsigned long long)seed, source, got, best);
        for (int32_t i = 1; i < n; i++)
            if (chains[i].cost_ms < chains[i - 1].cost_ms)
                fail_msg("YOKE_SEED=%llu: chains are not sorted", (unsigned long long)seed);
    }
    cost_fini(&m);
    pf_fini(&f);
    graph_close(g);
}

static void exact(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < tier_count(20000, 2000); i++)
        exact_one(tier_seed() + i, 0, 0);
}

/* Long enough for passes over few cuts before the one over all. */
static void exact_long(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < tier_count(20000, 2000) / 40; i++)
        exact_one(tier_seed() + i, 24 + (int)(i % 12), 0);
}

/* Up to five agents and twelve cuts; five sources each. */
static void exact_large(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < YK_MAX(tier_count(20000, 2000) / 66, (uint64_t)15); i++)
        exact_one(tier_seed() + i, 8 + (int)(i % 6), i % 3 ? 4 : 5);
}

/* ---- promises of plans ---- */

static int32_t agent_of(const struct pf *f, const char *name)
{
    for (int32_t i = 0; i < f->view.n_agents; i++)
        if (strcmp(f->agents[i].name, name) == 0)
            return i;
    return -1;
}

static const char *broken(const struct pf *f, const struct solve_request *q, const struct plan *p)
{
    static char text[1100];
    struct cost_model m;
    int32_t form[16], stage_of[16], agents[16];
    struct yk_diag why = {0};
    const char *bad = NULL;
    const struct plan_pipeline *line = &p->pipelines[0];
    cost_choose_forms(q, &f->view, form);
    if (cost_init(&m, q, &f->view, form, p->microbatch, NULL))
        return "its microbatch has no shapes";
    if (plan_check(p, q->graph, &m.shapes, &why)) {
        snprintf(text, sizeof text, "plan_check: %s", why.text);
        bad = text;
    } else if (p->n_pipelines != 1 || plan_stage_of(p, 0, q->graph->n_nodes, stage_of, NULL)) {
        bad = "not one pipeline";
    }
    for (int32_t s = 0; !bad && s < line->n_stages; s++) {
        uint8_t in_stage[16];
        int64_t need = 0;
        agents[s] = agent_of(f, line->stages[s].agent);
        for (int32_t i = 0; i < q->graph->n_nodes; i++)
            in_stage[i] = stage_of[i] == s;
        if (agents[s] < 0 || !f->agents[agents[s]].usable)
            bad = "a stage on an agent that is not usable";
        else if (cost_memory(&m, in_stage, line->depth, &need, NULL) || need > f->agents[agents[s]].memory_bytes)
            bad = "a stage over its agent's memory";
        else if (need != line->stages[s].memory_bytes)
            bad = "memory_bytes is not what memplan says";
    }
    int32_t source = agent_of(f, p->source);
    if (!bad && q->source >= 0 && source != q->source)
        bad = "another source";
    struct cost_line priced;
    if (!bad && cost_price(&m, source, agents, line->n_stages, stage_of, NULL, 0, &priced, &why)) {
        snprintf(text, sizeof text, "no price: %s", why.text); /* among others: a link that is unknown or missing */
        bad = text;
    } else if (!bad) {
        if (fabs(priced.cost_ms - p->cost_ms) > 1e-9 * p->cost_ms)
            bad = "cost_ms is not its price";
        cost_line_fini(&priced);
    }
    if (!bad && q->pin_first && agents[0] != source)
        bad = "the first stage left the source";
    if (!bad && q->pin_last && agents[line->n_stages - 1] != source)
        bad = "the last stage left the source";
    if (!bad && p->best_single && p->step_ms > p->best_single_ms * (1 + 1e-9))
        bad = "slower than the best single device";
    if (!bad && (!(p->step_ms > 0) || p->bound_ms > p->cost_ms * (1 + 1e-12) || !p->explanation[0] || !p->bottleneck))
        bad = "derived keys";
    cost_fini(&m);
    return bad;
}

static void promises(void **state)
{
    (void)state;
    int found = 0, split = 0, deep = 0, refused = 0;
    for (uint64_t seed = tier_seed(), end = seed + tier_count(20000, 2000); seed < end; seed++) {
        struct yk_rng r;
        struct pf f;
        struct solve_request q;
        struct plan *p = NULL, *again = NULL;
        struct yk_diag why = {0};
        yk_rng_seed(&r, seed);
        struct graph *g = pf_random_graph(&r);
        pf_random(&f, g, &r);
        random_request(&q, g, &f, &r);
        yk_err err = solve_plan(&q, &f.view, &p, &why);
        if (err && (err != YK_INFEASIBLE || !why.text[0]))
            fail_msg("YOKE_SEED=%llu: %s: %s", (unsigned long long)seed, yk_err_text(err), why.text);
        const char *bad = err ? NULL : broken(&f, &q, p);
        if (bad)
            fail_msg("YOKE_SEED=%llu: %s\n%s", (unsigned long long)seed, bad, p->explanation);
        refused += err != 0;
        found += !err;
        if (!err) {
            split += p->pipelines[0].n_stages > 1;
            deep += p->pipelines[0].depth > 1;
            /* the same plan, given back, has the same price */
            q.forced = p;
            if (solve_plan(&q, &f.view, &again, &why))
                fail_msg("YOKE_SEED=%llu: given back: %s", (unsigned long long)seed, why.text);
            if (q.source >= 0 && (fabs(again->cost_ms - p->cost_ms) > 1e-9 * p->cost_ms ||
                                     fabs(again->step_ms - p->step_ms) > 1e-9 * p->step_ms))
                fail_msg("YOKE_SEED=%llu: given back it costs %g, not %g", (unsigned long long)seed, again->step_ms,
                    p->step_ms);
            plan_free(again);
        }
        plan_free(p);
        pf_fini(&f);
        graph_close(g);
    }
    print_message("%d plans, %d split, %d deeper than 1; %d refused\n", found, split, deep, refused);
    int64_t n = found + refused;
    assert_true(tier_share(found, n, 0.7) && tier_share(split, n, 0.05) && tier_share(deep, n, 0.1));
}

/* ---- time ---- */

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void timing(void **state)
{
    (void)state;
    for (int nodes = 60; nodes <= 200; nodes += 140)
        for (int agents = 2; agents <= 4; agents += 2) {
            struct pf f;
            struct plan *p = NULL;
            struct graph *g = pf_chain(nodes, 4096);
            pf_init(&f);
            for (int32_t i = 0; i < agents; i++) {
                char name[16];
                snprintf(name, sizeof name, "a%d", i);
                pf_agent(&f, name, 0.05 * (i + 1), (int64_t)1 << 30);
                for (int32_t k = 0; k < i; k++)
                    pf_both(&f, i, k, 1e8, 0.3);
            }
            struct solve_request q = {.graph = g, .job = "batch", .batch = 16, .microbatch = 1, .source = 0};
            double start = now_ms();
            assert_int_equal(solve_plan(&q, &f.view, &p, NULL), YK_OK);
            print_message("%d nodes, %d agents: %.1f ms, %d stages, gap %g\n", nodes, agents, now_ms() - start,
                p->pipelines[0].n_stages, p->gap);
            plan_free(p);
            pf_fini(&f);
            graph_close(g);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact),
        cmocka_unit_test(exact_long),
        cmocka_unit_test(exact_large),
        cmocka_unit_test(promises),
        cmocka_unit_test(timing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
