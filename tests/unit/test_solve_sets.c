/* Minimum cuts of two agents against brute force over all sets that are closed downwards.
 * YOKE_SEED chooses the seeds, YOKE_FULL=1 runs twenty times as many. */
#include <math.h>

#include "scheduler/cost.h"
#include "scheduler/solve_sets.h"
#include "tests/tier.h"
#include "tests/unit/plan_fleet.h"

struct reader {
    const struct graph *g;
    uint32_t set;
    int32_t node;
    bool open; /* the set has a reader of what it lacks */
};

static void look(void *arg, int32_t v)
{
    struct reader *r = arg;
    int32_t made = r->g->values[v].kind == VALUE_WEIGHT ? -1 : r->g->values[v].producer;
    r->open = r->open || (made >= 0 && !(r->set >> made & 1));
}

static bool closed(const struct graph *g, uint32_t set)
{
    struct reader r = {.g = g, .set = set};
    for (r.node = 0; r.node < g->n_nodes; r.node++)
        if (set >> r.node & 1)
            node_each_use(&g->nodes[r.node], look, &r);
    return !r.open;
}

/* By the closed form's own pricing. */
static double price(const struct cost_model *m, int32_t source, int32_t a, int32_t b, uint32_t set)
{
    int32_t n = m->graph->n_nodes, stage_of[16], agents[2], stages = 0, first = -1, second = -1;
    struct cost_line line;
    if (set)
        agents[first = stages++] = a;
    if (set != (1u << n) - 1)
        agents[second = stages++] = b;
    for (int32_t i = 0; i < n; i++)
        stage_of[i] = set >> i & 1 ? first : second;
    if (cost_price(m, source, agents, stages, stage_of, NULL, 0, &line, NULL))
        return INFINITY;
    double ms = line.first_ms;
    cost_line_fini(&line);
    return ms;
}

static void against_brute_force(void **state)
{
    (void)state;
    int split = 0, apart = 0, none = 0;
    for (uint64_t i = 0; i < tier_count(10000, 500); i++) {
        static const bool fp16[3] = {true, true, false};
        struct yk_rng r;
        struct pf f;
        struct cost_model m;
        int32_t form[64];
        yk_rng_seed(&r, tier_seed() + i);
        struct graph *g = pf_random_graph(&r);
        pf_random_of(&f, g, &r, 2);
        struct solve_request q = {.graph = g, .model = "m", .job = "infer", .objective = SOLVE_LATENCY};
        q.batch = 1 + (int64_t)yk_rng_below(&r, 24);
        q.source = yk_rng_below(&r, 3) ? 0 : -1;
        q.answers = yk_rng_below(&r, 2);
        q.codec_allowed = yk_rng_below(&r, 3) ? NULL : fp16;
        cost_choose_forms(&q, &f.view, form);
        assert_int_equal(cost_init(&m, &q, &f.view, form, q.batch, NULL), YK_OK);
        for (int order = 0; order < 4; order++) {
            int32_t source = order / 2, other = 1 - source;
            bool source_first = order % 2 == 0;
            uint8_t first[64];
            double least = INFINITY, bound, got;
            for (uint32_t set = 0; set < 1u << g->n_nodes; set++)
                if (closed(g, set))
                    least = YK_MIN(
                        least, price(&m, source, source_first ? source : other, source_first ? other : source, set));
            got = solve_sets_pair(&m, source, other, source_first, INFINITY, first, &bound);
            if (isinf(least) ? !isinf(got) : !(fabs(got - least) <= 1e-9 * least))
                fail_msg("YOKE_SEED=%llu order %d: cut %.15g, brute force %.15g", (unsigned long long)(tier_seed() + i),
                    order, got, least);
            none += isinf(least);
            if (isinf(least))
                continue;
            assert_true(bound <= least);
            /* the set itself has this price, and is no prefix now and then */
            uint32_t set = 0;
            bool prefix = true;
            for (int32_t k = 0; k < g->n_nodes; k++) {
                prefix = prefix && !(first[k] && k > 0 && !first[k - 1]);
                set |= (uint32_t)first[k] << k;
            }
            assert_true(closed(g, set));
            double again = price(&m, source, source_first ? source : other, source_first ? other : source, set);
            assert_true(fabs(again - got) <= 1e-9 * got);
            split += set && set != (1u << g->n_nodes) - 1;
            apart += !prefix;
            /* the same where something near is known already; and nothing is below it */
            double near = solve_sets_pair(&m, source, other, source_first, least * 1.02, first, NULL);
            assert_true(fabs(near - got) <= 1e-9 * got);
            assert_true(isinf(solve_sets_pair(&m, source, other, source_first, least * (1 - 1e-9), first, &bound)));
            assert_true(bound <= least);
        }
        cost_fini(&m);
        pf_fini(&f);
        graph_close(g);
    }
    print_message("%d cuts inside, %d of them no prefix; %d without a way\n", split, apart, none);
    int64_t n = 4 * (int64_t)tier_count(10000, 500);
    assert_true(tier_share(split, n, 0.03) && tier_share(apart, n, 0.01) && tier_share(none, n, 0.01));
}

/* Two branches behind a stem, one dear on the phone, the other dear on the pc: each goes where it is cheap. A chain
 * would have to send a branch there and back. */
static void branches_part(void **state)
{
    (void)state;
    struct graph *g = fx_open();
    struct pf f;
    struct plan *p;
    struct yk_diag why = {0};
    double on_phone[7], on_pc[7];
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, (const int64_t[]){-1, 64}, 2), w[2];
    int32_t stem = fx_node(g, "Relu", "stem", IDS(x)), at[2] = {stem, stem};
    for (int i = 0; i < 2; i++) /* in the canonical order the branches alternate */
        for (int b = 0; b < 2; b++) {
            char name[16];
            snprintf(name, sizeof name, "%c%d", 'a' + b, i);
            at[b] = fx_node(g, "Relu", name, IDS(at[b]));
            w[b] = at[b];
        }
    int32_t sum = fx_node(g, "Add", "sum", IDS(w[0], w[1]));
    fx_output(g, fx_node(g, "Relu", "y", IDS(sum)));
    assert_true(solve_sets_pays(g));
    pf_init(&f);
    pf_agent(&f, "phone", 1, (int64_t)1 << 40);
    pf_agent(&f, "pc", 1, (int64_t)1 << 40);
    for (int i = 0; i < 7; i++) { /* by name, whatever the order is */
        const char *name = g->nodes[i].name;
        bool pc = name[0] == 'a';
        on_phone[i] = pc ? 50 : 1;
        on_pc[i] = pc || name[0] == 's' || name[0] == 'y' ? 1 : 50;
        on_phone[i] = strcmp(name, "stem") == 0 ? 1 : on_phone[i];
        on_pc[i] = strcmp(name, "stem") == 0 ? 50 : on_pc[i];
    }
    pf_profile(&f, 0, on_phone, 7);
    pf_profile(&f, 1, on_pc, 7);
    pf_both(&f, 0, 1, 1e8, 0.5);
    struct solve_request q = {.graph = g, .model = "m", .job = "infer", .batch = 1, .source = 1};
    if (solve_plan(&q, &f.view, &p, &why))
        fail_msg("%s", why.text);
    int32_t stage_of[7];
    assert_int_equal(plan_check(p, g, NULL, NULL), YK_OK);
    assert_int_equal(plan_stage_of(p, 0, 7, stage_of, NULL), YK_OK);
    assert_int_equal(p->pipelines[0].n_stages, 2);
    assert_string_equal(p->pipelines[0].stages[0].agent, "phone");
    for (int i = 0; i < 7; i++)
        if (g->nodes[i].name[0] == 'a' || g->nodes[i].name[0] == 'b')
            assert_int_equal(stage_of[i], g->nodes[i].name[0] == 'a');
    assert_true(p->cost_ms < 60 && p->bound_ms <= p->cost_ms);
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

static void chains_need_no_sets(void **state)
{
    (void)state;
    struct graph *g = pf_chain(5, 16);
    assert_false(solve_sets_pays(g));
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_brute_force),
        cmocka_unit_test(branches_part),
        cmocka_unit_test(chains_need_no_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
