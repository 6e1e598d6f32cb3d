/* A search that is stopped has a bound that is never above the optimum and a plan that more time never makes worse, by
 * the closed form or by the event model; and whatever is asked, no plan takes a byte more than an agent has, loses a
 * node or has one twice. The clock is a number of looks at it, so nothing depends on the machine. YOKE_SEED chooses the
 * seeds, YOKE_FULL=1 runs twenty times as many.
 */
#include "common/grad.h"
#include "tests/tier.h"
#include "tests/unit/plan_oracle.h"

/* ---- anytime ---- */

static struct plan *with_looks(
    const struct solver *solver, struct solve_request *q, const struct view *v, int64_t looks, uint64_t seed)
{
    struct plan *p = NULL;
    struct yk_diag why = {0};
    q->looks = &looks;
    yk_err err = solver->solve(q, v, &p, &why);
    q->looks = NULL;
    if (err && err != YK_INFEASIBLE)
        fail_msg("YOKE_SEED=%llu: %s", (unsigned long long)seed, why.text);
    return p;
}

static void anytime_one(uint64_t seed, const struct solver *solver, bool closed_form, int *better)
{
    static const int64_t looks[] = {1, 2, 3, 5, 8, 13, 30, 100, 1000, INT64_MAX};
    struct yk_rng r;
    struct pf f;
    struct plan *best = NULL, *before = NULL;
    struct yk_diag why = {0};
    yk_rng_seed(&r, seed);
    struct graph *g = yk_rng_below(&r, 3) ? pf_chain(4 + (int)yk_rng_below(&r, 50), 1 + (int64_t)yk_rng_below(&r, 2000))
                                          : pf_random_graph(&r);
    pf_random_of(&f, g, &r, 2 + (int32_t)yk_rng_below(&r, 5));
    struct solve_request q = {.graph = g,
        .model = "m",
        .job = "batch",
        .objective = SOLVE_THROUGHPUT,
        .closed_form = closed_form,
        .batch = 1 + (int64_t)yk_rng_below(&r, 40),
        .source = yk_rng_below(&r, 3) ? (int32_t)yk_rng_below(&r, (uint64_t)f.view.n_agents) : -1,
        .answers = yk_rng_below(&r, 2),
        .replicas = yk_rng_below(&r, 2)};
    yk_err err = solve_plan(&q, &f.view, &best, &why);
    for (size_t i = 0; i < YK_COUNT(looks); i++) {
        struct plan *p = with_looks(solver, &q, &f.view, looks[i], seed);
        if (!p && before)
            fail_msg("YOKE_SEED=%llu: with %lld looks there is no plan any more", (unsigned long long)seed,
                (long long)looks[i]);
        if (p && err)
            fail_msg(
                "YOKE_SEED=%llu: refused, but %lld looks find a plan", (unsigned long long)seed, (long long)looks[i]);
        if (p && p->bound_ms > best->bound_ms * (1 + 1e-9) && p->bound_ms > best->cost_ms * (1 + 1e-9))
            fail_msg("YOKE_SEED=%llu: %lld looks: bound %.15g, the best costs %.15g", (unsigned long long)seed,
                (long long)looks[i], p->bound_ms, best->cost_ms);
        double now = p ? (closed_form ? p->cost_ms : p->step_ms) : 0;
        double then = before ? (closed_form ? before->cost_ms : before->step_ms) : INFINITY;
        if (p && now > then * (1 + 1e-9))
            fail_msg("YOKE_SEED=%llu: %s: %lld looks: %.15g ms, with fewer %.15g ms\n%s\n%s", (unsigned long long)seed,
                solver->name, (long long)looks[i], now, then, before->explanation, p->explanation);
        *better += p && before && now < then * (1 - 1e-9);
        if (p) {
            plan_free(before);
            before = p;
        }
    }
    if (solver == solvers[0] && best && (!before || fabs(before->cost_ms - best->cost_ms) > 1e-9 * best->cost_ms))
        fail_msg("YOKE_SEED=%llu: all looks do not give the plan of no limit", (unsigned long long)seed);
    plan_free(before);
    plan_free(best);
    pf_fini(&f);
    graph_close(g);
}

static void anytime(void **state)
{
    (void)state;
    int better = 0;
    for (uint64_t i = 0; i < tier_count(2000, 100); i++)
        anytime_one(tier_seed() + i, (tier_seed() + i) % 4 < 3 ? solvers[0] : solver_find("kinds"),
            (tier_seed() + i) / 4 % 2, &better);
    print_message("more looks were better %d times\n", better);
    assert_true(tier_share(better, (int64_t)tier_count(2000, 100), 0.25));
}

/* ---- memory ---- */

static int64_t aligned(int64_t bytes)
{
    return (bytes + MEMPLAN_ALIGN - 1) / MEMPLAN_ALIGN * MEMPLAN_ALIGN;
}

/* What the agent of a stage allocates: each weight that the stage reads once, packed copies, the arena as far as it is
 * used, what stays with what the optimizer keeps of it, and so many microbatches of what enters and leaves. */
static int64_t allocates(const struct po *o, const int32_t *stage_of, int32_t stage, int32_t depth)
{
    const struct graph *g = o->g;
    uint8_t in_stage[PO_NODES] = {0};
    struct memplan p;
    int64_t fixed = 0, each = 0, workspace = 0, arena = 0;
    for (int32_t i = 0; i < g->n_nodes; i++)
        in_stage[i] = stage_of[i] == stage;
    assert_int_equal(memplan_make(g, &o->shapes, in_stage, o->table, depth, &p, NULL), YK_OK);
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (in_stage[i]) {
            fixed += o->table[i].packed_bytes;
            workspace = YK_MAX(workspace, o->table[i].workspace_bytes);
        }
    for (int32_t v = 0; v < g->n_values; v++) {
        int64_t bytes = shape_bytes(&o->shapes.of[v]);
        int32_t made = g->values[v].producer;
        bool reads = false, leaves = false, here = made >= 0 && in_stage[made];
        for (int32_t i = 0; i < g->n_nodes; i++)
            for (int32_t k = 0; k < g->nodes[i].n_in; k++)
                if (g->nodes[i].in[k] == v) {
                    reads = reads || in_stage[i];
                    leaves = leaves || (here && !in_stage[i]);
                }
        if (g->values[v].kind == VALUE_WEIGHT)
            fixed += reads ? bytes : 0;
        else if (!here)
            each += reads ? aligned(bytes) : 0;
        else if (leaves || (po_is_output(g, v) && !po_stays(g, v)))
            each += aligned(bytes);
        else if (po_stays(g, v))
            fixed += aligned(bytes) * (1 + (o->q->training ? o->q->training->state_bytes : 0));
        if (p.offset[v] >= 0)
            arena = YK_MAX(arena, p.offset[v] + bytes);
    }
    if (workspace > 0)
        arena = YK_MAX(arena, p.workspace_offset + workspace);
    memplan_fini(&p);
    return fixed + arena + depth * each;
}

struct odd {
    struct graph *forward, *g;
    struct grad_info info;
    struct solve_training training;
    struct pf f;
    struct solve_request q;
};

static void make_odd(struct odd *o, uint64_t seed)
{
    struct yk_rng r;
    struct grad_options options;
    memset(o, 0, sizeof *o);
    yk_rng_seed(&r, seed);
    grad_options_init(&options);
    options.loss = GRAD_MSE;
    o->g = pf_random_graph(&r);
    if (yk_rng_below(&r, 4) == 0) {
        o->forward = o->g;
        if (grad_build(o->forward, &options, &o->g, &o->info, NULL)) {
            o->g = o->forward;
            o->forward = NULL;
        }
    }
    o->training = (struct solve_training){.of = o->info.of,
        .n_forward = o->forward ? o->forward->n_nodes : 0,
        .first_loss = o->info.first_loss,
        .first_backward = o->info.first_backward,
        .state_bytes = (int64_t)yk_rng_below(&r, 3)};
    pf_random_of(&o->f, o->g, &r, 1 + (int32_t)yk_rng_below(&r, 6));
    for (int32_t a = 0; a < o->f.view.n_agents; a++)
        o->f.agents[a].memory_bytes = 1 + (int64_t)pf_spread(&r, 3e3, 4);
    o->q = (struct solve_request){.graph = o->g,
        .model = "m",
        .job = o->forward ? "train" : "batch",
        .objective = SOLVE_THROUGHPUT,
        .batch = 1 + (int64_t)yk_rng_below(&r, 33),
        .source = yk_rng_below(&r, 3) ? (int32_t)yk_rng_below(&r, (uint64_t)o->f.view.n_agents) : -1,
        .replicas = !o->forward && yk_rng_below(&r, 2),
        .training = o->forward ? &o->training : NULL};
}

static void memory_one(uint64_t seed, const struct odd *o, const struct plan *p, int *close)
{
    struct po po;
    int64_t need[PF_AGENTS] = {0};
    const char *bad;
    double cost = po_plan_cost(&o->q, &o->f.view, p, NULL, &bad); /* nodes, stages, pins, links */
    if (bad)
        fail_msg("YOKE_SEED=%llu: %s\n%s", (unsigned long long)seed, bad, p->explanation);
    assert_true(cost > 0);
    po_init(&po, &o->q, &o->f.view, p->microbatch);
    for (int32_t i = 0; i < p->n_pipelines; i++) {
        const struct plan_pipeline *line = &p->pipelines[i];
        int32_t stage_of[PO_NODES];
        for (int32_t s = 0; s < line->n_stages; s++)
            for (int32_t k = 0; k < line->stages[s].n_nodes; k++)
                for (int32_t n = line->stages[s].nodes[k].first; n <= line->stages[s].nodes[k].last; n++)
                    stage_of[n] = s;
        for (int32_t s = 0; s < line->n_stages; s++)
            for (int32_t a = 0; a < o->f.view.n_agents; a++)
                if (strcmp(o->f.agents[a].name, line->stages[s].agent) == 0)
                    need[a] += allocates(&po, stage_of, s, line->depth);
    }
    for (int32_t a = 0; a < o->f.view.n_agents; a++) {
        if (need[a] > o->f.agents[a].memory_bytes)
            fail_msg("YOKE_SEED=%llu: agent a%d allocates %lld of %lld bytes\n%s", (unsigned long long)seed, a,
                (long long)need[a], (long long)o->f.agents[a].memory_bytes, p->explanation);
        *close += need[a] > o->f.agents[a].memory_bytes * 9 / 10;
    }
    po_fini(&po);
}

/* The limits that the plan just keeps: with a byte less anywhere it is another plan or none. */
static void never_a_byte_over(void **state)
{
    (void)state;
    int plans = 0, refused = 0, close = 0, exact = 0;
    for (uint64_t seed = tier_seed(), end = seed + tier_count(10000, 500); seed < end; seed++) {
        struct odd o;
        struct yk_diag why = {0};
        make_odd(&o, seed);
        for (int round = 0; round < 3; round++) {
            struct plan *p = NULL;
            yk_err err = solve_plan(&o.q, &o.f.view, &p, &why);
            if (err && err != YK_INFEASIBLE)
                fail_msg("YOKE_SEED=%llu: %s", (unsigned long long)seed, why.text);
            plans += !err;
            refused += err != 0;
            if (err)
                break;
            memory_one(seed, &o, p, &close);
            for (int32_t a = 0; a < o.f.view.n_agents; a++) { /* what it takes, then a byte less */
                int64_t used = 0;
                for (int32_t i = 0; i < p->n_pipelines; i++)
                    for (int32_t s = 0; s < p->pipelines[i].n_stages; s++)
                        if (strcmp(p->pipelines[i].stages[s].agent, o.f.agents[a].name) == 0)
                            used += p->pipelines[i].stages[s].memory_bytes;
                if (used)
                    o.f.agents[a].memory_bytes = used - (round == 1);
                exact += used && round == 1;
            }
            plan_free(p);
        }
        pf_fini(&o.f);
        graph_close(o.g);
        if (o.forward)
            graph_close(o.forward);
    }
    print_message("%d plans, %d refused; %d agents nearly full, %d to the byte\n", plans, refused, close, exact);
    assert_true(tier_share(plans, plans + refused, 0.7) && tier_share(exact, plans, 0.2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anytime),
        cmocka_unit_test(never_a_byte_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
