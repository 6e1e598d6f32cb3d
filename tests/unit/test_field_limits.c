/* Memory to the byte: fleets that a model fills exactly, seeded odd limits against trying everything, and the pace of
 * unequal devices against trying everything. Sizes are scaled down a thousandfold: KB stands for MB. */
#include <math.h>

#include "scheduler/candidate.h"
#include "scheduler/solve_dp.h"
#include "tests/tier.h"
#include "tests/unit/plan_fleet.h"

#define KB 1000
#define PLENTY ((int64_t)1 << 40)

/* A chain of matrix products, each with a weight of bytes[i]: width 50, so 200 bytes a row and nothing else to hold. */
static struct graph *weights_chain(const int64_t *bytes, int n)
{
    struct graph *g = fx_open();
    char name[32];
    assert_int_equal(graph_sym(g, "N"), 0);
    int64_t width = 50;
    int32_t v = fx_input(g, "x", DT_F32, (const int64_t[]){-1, width}, 2);
    for (int i = 0; i < n; i++) {
        int64_t out = i % 2 ? 50 : bytes[i] / 4 / width; /* narrow and wide in turn */
        snprintf(name, sizeof name, "w%d", i);
        int32_t w = fx_weight(g, name, (const int64_t[]){width, out}, 2);
        snprintf(name, sizeof name, "v%d", i);
        v = fx_node(g, "MatMul", name, IDS(v, w));
        width = out;
    }
    fx_output(g, v);
    return g;
}

static struct graph *equal_chain(int n, int64_t bytes)
{
    int64_t each[64];
    for (int i = 0; i < n; i++)
        each[i] = bytes;
    return weights_chain(each, n);
}

static struct solve_request batch_of(const struct graph *g, int64_t batch)
{
    return (struct solve_request){
        .graph = g, .model = "m", .job = "batch", .objective = SOLVE_THROUGHPUT, .batch = batch};
}

static struct plan *solve_good(const struct solve_request *q, const struct pf *f)
{
    struct plan *p = NULL;
    struct yk_diag why = {0};
    if (solve_plan(q, &f->view, &p, &why) != YK_OK)
        fail_msg("%s", why.text);
    return p;
}

static void solve_says(const struct solve_request *q, const struct pf *f, const char *const *says)
{
    struct plan *p = NULL;
    struct yk_diag why = {0};
    assert_int_equal(solve_plan(q, &f->view, &p, &why), YK_INFEASIBLE);
    for (; *says; says++)
        if (!strstr(why.text, *says))
            fail_msg("'%s' does not say '%s'", why.text, *says);
}

static const struct plan_stage *stage_on(const struct plan *p, const char *agent)
{
    for (int32_t s = 0; s < p->pipelines[0].n_stages; s++)
        if (strcmp(p->pipelines[0].stages[s].agent, agent) == 0)
            return &p->pipelines[0].stages[s];
    return NULL;
}

static int32_t nodes_of(const struct plan_stage *s)
{
    int32_t n = 0;
    for (int32_t i = 0; s && i < s->n_nodes; i++)
        n += s->nodes[i].last - s->nodes[i].first + 1;
    return n;
}

/* The source may have a first and a last stage. */
static int32_t nodes_on(const struct plan *p, const char *agent)
{
    int32_t n = 0;
    for (int32_t s = 0; s < p->pipelines[0].n_stages; s++)
        n += strcmp(p->pipelines[0].stages[s].agent, agent) == 0 ? nodes_of(&p->pipelines[0].stages[s]) : 0;
    return n;
}

static void all_pairs(struct pf *f, double bytes_per_s)
{
    for (int32_t i = 0; i < f->view.n_agents; i++)
        for (int32_t k = 0; k < i; k++)
            pf_both(f, i, k, bytes_per_s, 0.5);
}

/* Counted by hand, without the memory plan: the weights of the nodes and the buffers of what crosses. */
static int64_t counted(const struct graph *g, const struct plan_stage *s, int64_t microbatch, int32_t depth)
{
    int64_t bytes = 0;
    for (int32_t r = 0; r < s->n_nodes; r++)
        for (int32_t i = s->nodes[r].first; i <= s->nodes[r].last; i++)
            bytes += g->values[g->nodes[i].in[1]].bytes;
    int32_t last = s->nodes[s->n_nodes - 1].last;
    int64_t in = g->values[g->nodes[s->nodes[0].first].in[1]].shape.dims[0];
    int64_t out = g->values[g->nodes[last].in[1]].shape.dims[1];
    return bytes + depth * microbatch * 4 * (in + out);
}

/* Of all stages there; what they were planned with goes to *planned. */
static int64_t counted_on(const struct graph *g, const struct plan *p, const char *agent, int64_t *planned)
{
    int64_t bytes = 0;
    *planned = 0;
    for (int32_t s = 0; s < p->pipelines[0].n_stages; s++)
        if (strcmp(p->pipelines[0].stages[s].agent, agent) == 0) {
            bytes += counted(g, &p->pipelines[0].stages[s], p->microbatch, p->pipelines[0].depth);
            *planned += p->pipelines[0].stages[s].memory_bytes;
        }
    return bytes;
}

/* Devices of limits[], a chain of n weights: a plan must exist, give each device `want` nodes and hold every limit. */
static void exact_fit(const int64_t *limits, int n_agents, int n_layers, int64_t layer_bytes, const int32_t *want)
{
    struct pf f;
    struct graph *g = equal_chain(n_layers, layer_bytes);
    struct solve_request q = batch_of(g, 1);
    pf_init(&f);
    for (int i = 0; i < n_agents; i++) {
        char name[16];
        snprintf(name, sizeof name, "d%d", i);
        pf_agent(&f, name, 1, limits[i]);
    }
    all_pairs(&f, 1e8);
    struct plan *p = solve_good(&q, &f);
    for (int i = 0; i < n_agents; i++) {
        int64_t planned, bytes = counted_on(g, p, f.agents[i].name, &planned);
        assert_int_equal(nodes_on(p, f.agents[i].name), want[i]);
        assert_true(planned <= limits[i] && bytes <= planned);
    }
    assert_null(p->best_single);
    plan_free(p);
    graph_close(g);
    /* one layer more is one too many, and every device says what it lacks */
    g = equal_chain(n_layers + 1, layer_bytes);
    q.graph = g;
    const char *const says[] = {"d0", "d1", "d2", "memory", "MB", NULL};
    solve_says(&q, &f, says);
    graph_close(g);
}

/* The spare layer must not go to the device that has no room for it. */
static void spare_layer(void **state)
{
    (void)state;
    exact_fit((const int64_t[]){128 * KB, 128 * KB, 256 * KB, 24 * KB}, 4, 12, 40 * KB, (const int32_t[]){3, 3, 6, 0});
}

static void nobody_swaps(void **state)
{
    (void)state;
    exact_fit((const int64_t[]){192 * KB, 128 * KB, 64 * KB}, 3, 12, 30 * KB, (const int32_t[]){6, 4, 2});
}

static void room_is_used(void **state)
{
    (void)state;
    exact_fit((const int64_t[]){24 * KB, 12 * KB, 12 * KB}, 3, 8, 5600, (const int32_t[]){4, 2, 2});
}

/* Odd limits, odd layers: no limit is passed by a byte, and a plan is found whenever trying everything finds one. */
static bool any_fit(const struct cost_model *m, int32_t from, uint32_t used, int32_t first, int64_t first_bytes)
{
    uint8_t in_stage[64] = {0};
    if (from == m->graph->n_nodes)
        return true;
    for (int32_t end = from + 1; end <= m->graph->n_nodes; end++) {
        int64_t need;
        in_stage[end - 1] = 1;
        assert_int_equal(cost_memory(m, in_stage, 1, &need, NULL), YK_OK);
        for (int32_t a = 0; a < m->view->n_agents; a++)
            if (!(used >> a & 1) && need <= m->view->agents[a].memory_bytes &&
                any_fit(m, end, used | 1u << a, first < 0 ? a : first, first < 0 ? need : first_bytes))
                return true;
        /* a chain may end on the source again if it began there */
        if (end == m->graph->n_nodes && first == m->req->source && (used & (used - 1)) &&
            need + first_bytes <= m->view->agents[first].memory_bytes)
            return true;
    }
    return false;
}

static void odd_limits(void **state)
{
    (void)state;
    uint64_t first = tier_seed(), count = tier_count(10000, 1000);
    int found = 0, none = 0;
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct yk_rng r;
        struct pf f;
        struct cost_model m;
        int64_t bytes[8], total = 0;
        int32_t form[8];
        yk_rng_seed(&r, seed);
        int n = 2 + (int)yk_rng_below(&r, 6), n_agents = 1 + (int)yk_rng_below(&r, 4);
        for (int i = 0; i < n; i++)
            total += bytes[i] = 400 * (1 + (int64_t)yk_rng_below(&r, 40));
        struct graph *g = weights_chain(bytes, n);
        pf_init(&f);
        for (int i = 0; i < n_agents; i++) {
            char name[16];
            snprintf(name, sizeof name, "d%d", i);
            pf_agent(&f, name, 0.01 + yk_rng_unit(&r), 1 + (int64_t)yk_rng_below(&r, (uint64_t)(3 * total / n_agents)));
        }
        all_pairs(&f, 1e8);
        struct solve_request q = batch_of(g, 1 + (int64_t)yk_rng_below(&r, 12));
        struct plan *p = NULL;
        cost_choose_forms(&q, &f.view, form);
        assert_int_equal(cost_init(&m, &q, &f.view, form, 1, NULL), YK_OK);
        bool may = any_fit(&m, 0, 0, -1, 0);
        cost_fini(&m);
        struct yk_diag why = {0};
        yk_err err = solve_plan(&q, &f.view, &p, &why);
        if ((err == YK_OK) != may)
            fail_msg("YOKE_SEED=%llu: %s, but trying everything %s", (unsigned long long)seed,
                err ? why.text : "a plan", may ? "fits" : "fails");
        for (int32_t a = 0; p && a < n_agents; a++) {
            int64_t limit = f.agents[a].memory_bytes, planned, held = counted_on(g, p, f.agents[a].name, &planned);
            if (planned > limit || held > limit)
                fail_msg("YOKE_SEED=%llu: %s holds %lld bytes, its limit is %lld", (unsigned long long)seed,
                    f.agents[a].name, (long long)planned, (long long)limit);
        }
        found += p != NULL;
        none += p == NULL;
        plan_free(p);
        graph_close(g);
    }
    print_message("%d fit, %d do not\n", found, none);
    assert_true(tier_share(found, found + none, 0.4) && tier_share(none, found + none, 0.1));
}

/* Tries every chain and depth with the event model. */
static void try_all(const struct cost_model *m, int32_t *agents, int32_t *ends, int32_t stages, double *best)
{
    int32_t n = m->graph->n_nodes, from = stages ? ends[stages - 1] : 0;
    assert_true(stages <= PF_AGENTS);
    if (from == n) {
        int32_t stage_of[64];
        struct candidate c = {.n_lines = 0, .microbatch = m->microbatch, .count = m->count};
        c.lines = yk_xalloc(sizeof *c.lines);
        c.shares = yk_xalloc(sizeof *c.shares);
        c.shares[0] = 1;
        for (int32_t s = 0, i = 0; s < stages; s++)
            for (; i < ends[s]; i++)
                stage_of[i] = s;
        if (cost_price(m, 0, agents, stages, stage_of, NULL, 0, &c.lines[0], NULL) == YK_OK) {
            c.n_lines = 1;
            if (candidate_score(m, &c, 8, 0, NULL) == YK_OK)
                *best = YK_MIN(*best, c.step_ms);
        }
        candidate_fini(&c);
        return;
    }
    for (int32_t a = 0; a < m->view->n_agents; a++) {
        bool used = false;
        for (int32_t s = 0; s < stages; s++)
            used = used || agents[s] == a;
        for (agents[stages] = a, ends[stages] = from + 1; !used && ends[stages] <= n; ends[stages]++)
            try_all(m, agents, ends, stages + 1, best);
    }
}

/* The slowest device must not set the pace: speeds 10 : 5 : 1. */
static void slowest_sets_no_pace(void **state)
{
    (void)state;
    static const double rates[] = {1e6, 2e7, 1e9};
    for (size_t k = 0; k < YK_COUNT(rates); k++) {
        struct pf f;
        struct graph *g = pf_chain(10, 20000);
        int32_t form[16], agents[PF_AGENTS + 1], ends[PF_AGENTS + 1];
        double best = INFINITY;
        pf_init(&f);
        pf_agent(&f, "ten", 0.10, PLENTY);
        pf_agent(&f, "five", 0.05, PLENTY);
        pf_agent(&f, "one", 0.01, PLENTY);
        all_pairs(&f, rates[k]);
        struct solve_request q = batch_of(g, 16);
        q.source = 0;
        struct plan *p = solve_good(&q, &f);
        cost_choose_forms(&q, &f.view, form);
        for (int64_t mb = 1; mb <= 16; mb *= 2) {
            struct cost_model m;
            assert_int_equal(cost_init(&m, &q, &f.view, form, mb, NULL), YK_OK);
            try_all(&m, agents, ends, 0, &best);
            cost_fini(&m);
        }
        print_message("%g B/s: %d stages, %.3f ms; of everything %.3f ms\n", rates[k], p->pipelines[0].n_stages,
            p->step_ms, best);
        if (best < 0.95 * p->step_ms)
            fail_msg("planned %g ms, possible %g ms: %s", p->step_ms, best, p->explanation);
        if (rates[k] == 1e9) { /* a fast link: better than the fastest alone, far from three times the slowest */
            assert_true(p->step_ms < 0.8 * p->best_single_ms);
            assert_int_equal(nodes_of(stage_on(p, "one")) <= 1, 1);
        }
        plan_free(p);
        graph_close(g);
    }
}

/* "Yes" to an op that it cannot run: an agent whose profile lacks a node's form does not get it, also when forced. */
static void missing_op(void **state)
{
    (void)state;
    struct pf f;
    struct graph *g = pf_chain(6, 2000);
    double ms[6] = {5, 5, 5, 5, 5, 5}, fast[6] = {1, 1, 1, 1, 1, 1};
    pf_init(&f);
    pf_agent(&f, "pc", 0, PLENTY);
    pf_agent(&f, "phone", 0, PLENTY);
    pf_profile(&f, 0, ms, 6);
    pf_profile(&f, 1, fast, 4); /* not the last two */
    all_pairs(&f, 1e9);
    struct solve_request q = batch_of(g, 8);
    q.source = 0;
    struct plan *p = solve_good(&q, &f);
    const struct plan_stage *s = stage_on(p, "phone");
    assert_true(!s || s->nodes[s->n_nodes - 1].last <= 3);
    assert_string_equal(p->best_single, "pc");
    assert_non_null(stage_on(p, "pc"));
    struct plan *edited = plan_copy(p);
    for (int32_t i = 0; i < edited->pipelines[0].n_stages; i++) {
        free(edited->pipelines[0].stages[i].agent);
        edited->pipelines[0].stages[i].agent = yk_xstrdup("phone");
    }
    edited->n_cuts = 0;
    q.forced = edited;
    const char *const says[] = {"phone", "node 4", "Relu", "ref@generic", NULL};
    solve_says(&q, &f, says);
    plan_free(edited);
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spare_layer),
        cmocka_unit_test(nobody_swaps),
        cmocka_unit_test(room_is_used),
        cmocka_unit_test(odd_limits),
        cmocka_unit_test(slowest_sets_no_pace),
        cmocka_unit_test(missing_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
