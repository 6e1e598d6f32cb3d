/* What a plan takes to be there, against a count of its own; and single requests with a deadline over devices that lack
 * weights. */
#include "scheduler/cold.h"
#include "scheduler/held.h"
#include "tests/tier.h"
#include "tests/unit/plan_fleet.h"

#define SIDE 64 /* a weight of SIDE x SIDE floats */

/* A chain of products; some share their weight. */
static struct graph *layers(struct yk_rng *r, int n)
{
    struct graph *g = fx_open();
    int32_t weights[16], n_weights = 1 + (int32_t)yk_rng_below(r, (uint64_t)n);
    char name[16];
    graph_sym(g, "N");
    int32_t v = fx_input(g, "x", DT_F32, (const int64_t[]){-1, SIDE}, 2);
    for (int32_t i = 0; i < n_weights; i++) {
        snprintf(name, sizeof name, "w%d", i);
        weights[i] = fx_weight(g, name, (const int64_t[]){SIDE, SIDE}, 2);
    }
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "fc%d", i);
        v = fx_node(g, "MatMul", name, IDS(v, weights[yk_rng_below(r, (uint64_t)n_weights)]));
    }
    fx_output(g, v);
    return g;
}

struct cold {
    struct graph *g;
    struct pf f;
    struct solve_request q;
    uint8_t lacks[PF_AGENTS][64];
    double prepare_ms[PF_AGENTS];
};

static void make(struct cold *c, uint64_t seed, bool profiled)
{
    struct yk_rng r;
    yk_rng_seed(&r, seed);
    c->g = layers(&r, 2 + (int)yk_rng_below(&r, 9));
    assert_true(c->g->n_values <= 64);
    int32_t n = 1 + (int32_t)yk_rng_below(&r, 5);
    pf_init(&c->f);
    for (int32_t a = 0; a < n; a++) {
        char name[8];
        snprintf(name, sizeof name, "a%d", a);
        pf_agent(&c->f, name, pf_spread(&r, 0.01, 2), (int64_t)1 << 40);
        memset(c->lacks[a], 0, sizeof c->lacks[a]);
        uint64_t kind = yk_rng_below(&r, 4); /* unknown, warm, cold, some of it */
        for (int32_t v = 0; v < c->g->n_values; v++)
            c->lacks[a][v] = c->g->values[v].kind == VALUE_WEIGHT && (kind == 2 || (kind == 3 && yk_rng_below(&r, 2)));
        c->f.agents[a].lacks = kind ? c->lacks[a] : NULL;
        c->f.agents[a].n_lacks = kind ? c->g->n_values : 0;
        c->prepare_ms[a] = profiled ? (double)yk_rng_below(&r, 3) : 0;
        if (profiled) {
            double ms[16];
            for (int32_t k = 0; k < c->g->n_nodes; k++)
                ms[k] = pf_spread(&r, 0.05, 2);
            pf_profile(&c->f, a, ms, c->g->n_nodes);
            for (int32_t k = 0; k < c->g->n_nodes; k++)
                c->f.times[a][k].prepare_ms = c->prepare_ms[a];
        }
    }
    bool uplinks = yk_rng_below(&r, 2);
    for (int32_t from = -1; from < n; from++)
        for (int32_t to = 0; to < n; to++)
            if (from != to && (from >= 0 || uplinks) && yk_rng_below(&r, 8))
                pf_link(&c->f, from, to, pf_spread(&r, 1e5, 5), yk_rng_unit(&r));
    c->q = (struct solve_request){.graph = c->g,
        .model = "m",
        .job = "infer",
        .objective = SOLVE_LATENCY,
        .batch = 1 + (int64_t)yk_rng_below(&r, 3),
        .source = yk_rng_below(&r, 2) ? -1 : 0};
}

static void done(struct cold *c)
{
    pf_fini(&c->f);
    graph_close(c->g);
}

static int32_t agent_at(const struct cold *c, const char *name)
{
    int32_t a = 0;
    while (strcmp(c->f.agents[a].name, name) != 0)
        a++;
    return a;
}

/* Of a node on an agent: what it reads and lacks, once. */
static int64_t take(const struct cold *c, int32_t a, int32_t node, bool *have)
{
    int64_t bytes = 0;
    for (int32_t k = 0; k < c->g->nodes[node].n_in; k++) {
        int32_t v = c->g->nodes[node].in[k];
        if (c->g->values[v].kind != VALUE_WEIGHT || have[v])
            continue;
        have[v] = true;
        bytes += c->lacks[a][v] && c->f.agents[a].lacks ? SIDE * SIDE * 4 : 0;
    }
    return bytes;
}

static double fetch_ms(const struct cold *c, int32_t a, int64_t bytes)
{
    const struct view_link *best = NULL;
    bool yoked = false;
    for (int32_t i = 0; i < c->f.view.n_links; i++) {
        const struct view_link *l = &c->f.links[i];
        if (l->to != a || (yoked && l->from >= 0))
            continue;
        if (!best || (l->from < 0 && !yoked) || l->bytes_per_s > best->bytes_per_s)
            best = l;
        yoked = yoked || l->from < 0;
    }
    return best && bytes ? ((double)bytes + 512) * 1e3 / best->bytes_per_s + 2 * best->latency_ms : 0;
}

/* Bytes and times of every stage of every plan, as counted here. */
static void what_plans_fetch(void **state)
{
    (void)state;
    int64_t n = (int64_t)tier_count(4000, 400), fetches = 0, split = 0, plans = 0;
    for (uint64_t seed = tier_seed(), end = seed + (uint64_t)n; seed < end; seed++) {
        struct cold c;
        struct plan *p = NULL;
        make(&c, seed, seed % 2);
        if (solve_plan(&c.q, &c.f.view, &p, NULL)) {
            done(&c);
            continue;
        }
        bool have[PF_AGENTS][64] = {{0}};
        double of[PF_AGENTS] = {0}, most = 0;
        plans++;
        split += p->pipelines[0].n_stages > 1;
        assert_int_equal(p->n_pipelines, 1);
        for (int32_t s = 0; s < p->pipelines[0].n_stages; s++) {
            const struct plan_stage *st = &p->pipelines[0].stages[s];
            int32_t a = agent_at(&c, st->agent), nodes = 0;
            int64_t bytes = 0;
            for (int32_t k = 0; k < st->n_nodes; k++)
                for (int32_t i = (int32_t)st->nodes[k].first; i <= st->nodes[k].last; i++, nodes++)
                    bytes += take(&c, a, i, have[a]);
            double ms = fetch_ms(&c, a, bytes) + nodes * c.prepare_ms[a];
            if (st->fetch_bytes != bytes || fabs(st->load_ms - ms) > 1e-9 * (ms + 1))
                fail_msg("YOKE_SEED=%llu: stage %d on %s: %lld bytes and %.15g ms, counted %lld and %.15g",
                    (unsigned long long)seed, s, st->agent, (long long)st->fetch_bytes, st->load_ms, (long long)bytes,
                    ms);
            of[a] += ms;
            most = YK_MAX(most, of[a]);
            assert_true((strstr(p->explanation, "MB to fetch") != NULL) || bytes == 0);
            fetches += bytes > 0;
        }
        assert_true(fabs(plan_load_ms(p) - most) <= 1e-9 * (most + 1));
        plan_free(p);
        done(&c);
    }
    print_message(
        "%lld plans, %lld split, %lld stages that fetch\n", (long long)plans, (long long)split, (long long)fetches);
    assert_true(tier_share(fetches, n, 0.2) && tier_share(plans, n, 0.7));
}

static double whole_ms(const struct plan *p)
{
    return p->step_ms + plan_load_ms(p);
}

/* Never later than the plan that is fastest once it is loaded; in time if a device that has everything is; the same
 * plan where that one is in time. */
static void deadlines(void **state)
{
    (void)state;
    int64_t n = (int64_t)tier_count(4000, 300), moved = 0, in_time = 0;
    for (uint64_t seed = tier_seed(), end = seed + (uint64_t)n; seed < end; seed++) {
        struct cold c;
        struct plan *fast = NULL, *p = NULL;
        make(&c, seed, seed % 2);
        if (held_plan(&c.q, &c.f.view, &fast, NULL)) {
            done(&c);
            continue;
        }
        double warm = INFINITY; /* the best step of devices that are there already */
        for (int32_t a = 0; a < c.f.view.n_agents; a++)
            c.f.agents[a].usable = c.prepare_ms[a] <= 0 && !memchr(c.lacks[a], 1, sizeof c.lacks[a]);
        struct plan *other = NULL;
        if (held_plan(&c.q, &c.f.view, &other, NULL) == YK_OK) {
            warm = other->step_ms;
            plan_free(other);
        }
        for (int32_t a = 0; a < c.f.view.n_agents; a++)
            c.f.agents[a].usable = true;
        double least = YK_MIN(warm, whole_ms(fast)), most = whole_ms(fast);
        c.q.deadline_ms = seed % 3 == 0 ? least * 1.001 : seed % 3 == 1 ? (least + most) / 2 : most * 1.1;
        assert_int_equal(cold_plan(&c.q, &c.f.view, &p, NULL), YK_OK);
        for (int32_t a = 0; a < c.f.view.n_agents; a++)
            assert_true(c.f.agents[a].usable && !c.f.agents[a].why_not[0]);
        if (whole_ms(p) > whole_ms(fast) * (1 + 1e-9))
            fail_msg("YOKE_SEED=%llu: %.15g ms with loading, the fastest plan %.15g", (unsigned long long)seed,
                whole_ms(p), whole_ms(fast));
        if (whole_ms(fast) <= c.q.deadline_ms)
            assert_true(p->step_ms == fast->step_ms && strstr(p->explanation, "too late") == NULL);
        if (warm <= c.q.deadline_ms && whole_ms(p) > c.q.deadline_ms)
            fail_msg("YOKE_SEED=%llu: %.15g ms with loading is late for %.15g, warm devices take %.15g\n%s",
                (unsigned long long)seed, whole_ms(p), c.q.deadline_ms, warm, p->explanation);
        if (whole_ms(p) < whole_ms(fast) * (1 - 1e-9)) {
            moved++;
            assert_non_null(strstr(p->explanation, "too late for the deadline"));
        }
        in_time += whole_ms(p) <= c.q.deadline_ms;
        plan_free(p);
        /* What is no single request, and what was asked for as it is, does not weigh it. */
        c.q.job = "batch";
        other = NULL;
        p = NULL;
        assert_int_equal(cold_plan(&c.q, &c.f.view, &p, NULL), held_plan(&c.q, &c.f.view, &other, NULL));
        assert_true(!p == !other && (!p || p->step_ms == other->step_ms));
        plan_free(p);
        plan_free(other);
        plan_free(fast);
        done(&c);
    }
    print_message("%lld of %lld went elsewhere, %lld in time\n", (long long)moved, (long long)n, (long long)in_time);
    assert_true(tier_share(moved, n, 0.02) && tier_share(in_time, n, 0.3));
}

/* One device is twice as fast and has to fetch 4 MB over 1 MB/s. */
static void in_words(void **state)
{
    (void)state;
    struct graph *g = pf_layers(4);
    struct pf f;
    struct plan *p = NULL;
    uint8_t all[64];
    memset(all, 1, sizeof all);
    pf_init(&f);
    pf_agent(&f, "warm", 10, (int64_t)1 << 40);
    pf_agent(&f, "cold", 20, (int64_t)1 << 40);
    f.agents[1].lacks = all;
    f.agents[1].n_lacks = g->n_values;
    pf_both(&f, 0, 1, 1e9, 0.001);
    pf_link(&f, -1, 0, 1e6, 1);
    pf_link(&f, -1, 1, 1e6, 1);
    struct solve_request q = {.graph = g, .model = "m", .job = "infer", .batch = 1, .source = -1};
    assert_int_equal(cold_plan(&q, &f.view, &p, NULL), YK_OK);
    assert_string_equal(p->pipelines[0].stages[0].agent, "cold");
    assert_int_equal(p->pipelines[0].stages[0].fetch_bytes, 4 << 20);
    assert_non_null(strstr(p->explanation, "to load 4197 ms, 4.194 MB to fetch"));
    plan_free(p);
    q.deadline_ms = 1000;
    assert_int_equal(cold_plan(&q, &f.view, &p, NULL), YK_OK);
    assert_string_equal(p->pipelines[0].stages[0].agent, "warm");
    assert_non_null(strstr(p->explanation, "not used: cold, it would take 4197 ms to load its stages first"));
    plan_free(p);
    q.deadline_ms = 5000;
    assert_int_equal(cold_plan(&q, &f.view, &p, NULL), YK_OK);
    assert_string_equal(p->pipelines[0].stages[0].agent, "cold");
    plan_free(p);
    pf_fini(&f);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_plans_fetch),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
