/* Random fleets and graphs for tests of the planner, and short ways to build both. */
#ifndef YK_TEST_PLAN_FLEET_H
#define YK_TEST_PLAN_FLEET_H

#include <stdio.h>
#include <stdlib.h>

#include "scheduler/cost.h"
#include "scheduler/solve.h"
#include "tests/unit/graph_fixture.h"

#define PF_AGENTS 8
#define PF_LINKS 96

struct pf {
    struct view view;
    struct view_agent agents[PF_AGENTS];
    struct view_link links[PF_LINKS];
    struct view_time *times[PF_AGENTS];
    char *forms[2];
};

static inline void pf_init(struct pf *f)
{
    memset(f, 0, sizeof *f);
    f->forms[0] = "ref@generic";
    f->forms[1] = "fast@x";
    f->view = (struct view){.agents = f->agents, .links = f->links, .forms = f->forms, .n_forms = 2};
}

static inline struct view_agent *pf_agent(struct pf *f, const char *name, double gflops, int64_t memory_bytes)
{
    assert_true(f->view.n_agents < PF_AGENTS);
    struct view_agent *a = &f->agents[f->view.n_agents++];
    snprintf(a->id, sizeof a->id, "id-%s", name);
    snprintf(a->name, sizeof a->name, "%s", name);
    a->usable = true;
    a->memory_bytes = memory_bytes;
    a->gflops = gflops;
    a->slow_factor = 1;
    return a;
}

static inline struct view_link *pf_link(struct pf *f, int32_t from, int32_t to, double bytes_per_s, double latency_ms)
{
    assert_true(f->view.n_links < PF_LINKS);
    struct view_link *l = &f->links[f->view.n_links++];
    *l = (struct view_link){.from = from,
        .to = to,
        .bytes_per_s = bytes_per_s,
        .latency_ms = latency_ms,
        .shared = -1,
        .origin = VIEW_MEASURED};
    return l;
}

static inline void pf_both(struct pf *f, int32_t a, int32_t b, double bytes_per_s, double latency_ms)
{
    pf_link(f, a, b, bytes_per_s, latency_ms);
    pf_link(f, b, a, bytes_per_s, latency_ms);
}

/* A profile that says ms for every node at size 1, proportional to the size. */
static inline void pf_profile(struct pf *f, int32_t agent, const double *ms, int32_t n)
{
    struct view_time *t = calloc((size_t)n + 1, sizeof *t);
    assert_non_null(t);
    for (int32_t i = 0; i < n; i++)
        t[i] = (struct view_time){.node = i, .form = 0, .size = 1, .ms = ms[i]};
    f->times[agent] = t;
    f->agents[agent].times = t;
    f->agents[agent].n_times = n;
}

static inline void pf_fini(struct pf *f)
{
    for (int i = 0; i < PF_AGENTS; i++)
        free(f->times[i]);
}

/* A chain of Relu over (N, width). */
static inline struct graph *pf_chain(int n_nodes, int64_t width)
{
    struct graph *g = fx_open();
    char name[32];
    assert_int_equal(graph_sym(g, "N"), 0);
    int32_t v = fx_input(g, "x", DT_F32, (const int64_t[]){-1, width}, 2);
    for (int i = 0; i < n_nodes; i++) {
        snprintf(name, sizeof name, "v%d", i);
        v = fx_node(g, "Relu", name, IDS(v));
    }
    fx_output(g, v);
    return g;
}

/* A chain or a DAG of Relu, Add and MatMul; widths differ so that cuts differ. */
static inline struct graph *pf_random_graph(struct yk_rng *r)
{
    static const int64_t widths[] = {16, 64, 256, 1024};
    struct graph *g = fx_open();
    int n = 1 + (int)yk_rng_below(r, 7), n_values = 0;
    int32_t ids[16];
    int64_t width[16];
    bool read[16] = {false};
    char name[32];
    graph_sym(g, "N");
    for (int i = 0, inputs = 1 + (yk_rng_below(r, 4) == 0); i < inputs; i++) {
        snprintf(name, sizeof name, "x%d", i);
        width[n_values] = widths[yk_rng_below(r, 4)];
        ids[n_values++] = fx_input(g, name, DT_F32, (const int64_t[]){-1, width[n_values]}, 2);
        width[n_values - 1] = g->values[ids[n_values - 1]].dims[1].value;
    }
    bool chain = yk_rng_below(r, 2);
    for (int i = 0; i < n; i++) {
        int a = chain && i ? n_values - 1 : (int)yk_rng_below(r, (uint64_t)n_values), b = -1;
        snprintf(name, sizeof name, "v%d", i);
        read[a] = true;
        for (int k = 0; !chain && k < n_values; k++)
            if (k != a && width[k] == width[a] && yk_rng_below(r, 2))
                b = k;
        if (b >= 0) {
            read[b] = true;
            ids[n_values] = fx_node(g, "Add", name, IDS(ids[a], ids[b]));
            width[n_values] = width[a];
        } else if (yk_rng_below(r, 2)) {
            char weight[40];
            int64_t to = widths[yk_rng_below(r, 4)];
            snprintf(weight, sizeof weight, "w%d", i);
            int32_t w = fx_weight(g, weight, (const int64_t[]){width[a], to}, 2);
            ids[n_values] = fx_node(g, "MatMul", name, IDS(ids[a], w));
            width[n_values] = to;
        } else {
            ids[n_values] = fx_node(g, "Relu", name, IDS(ids[a]));
            width[n_values] = width[a];
        }
        n_values++;
    }
    for (int k = g->n_inputs; k < n_values; k++)
        if (!read[k] || yk_rng_below(r, 8) == 0)
            fx_output(g, ids[k]);
    return g;
}

static inline double pf_spread(struct yk_rng *r, double low, double times)
{
    double x = low;
    for (uint64_t k = yk_rng_below(r, 7); k > 0; k--)
        x *= times;
    return x * (1 + yk_rng_unit(r));
}

/* n agents (pf_random: 1 to 3): profiles or rooflines, limits of memory, media that are shared, links that are missing
 * or unknown. */
static inline void pf_random_of(struct pf *f, const struct graph *g, struct yk_rng *r, int32_t n)
{
    pf_init(f);
    bool half = yk_rng_below(r, 3) == 0, uplink = yk_rng_below(r, 2);
    for (int32_t i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "a%d", i);
        int64_t memory = yk_rng_below(r, 3) ? (int64_t)1 << 40 : (int64_t)pf_spread(r, 20e3, 3);
        struct view_agent *a = pf_agent(f, name, pf_spread(r, 0.01, 3), memory);
        a->gbytes_per_s = yk_rng_below(r, 2) ? 1 : 0;
        a->slow_factor = yk_rng_below(r, 4) ? 1 : 1.5;
        a->busy_frac = yk_rng_below(r, 4) ? 0 : 0.5;
        a->message_ms = yk_rng_below(r, 3) ? 0 : 0.05 * (double)yk_rng_below(r, 40);
        if (yk_rng_below(r, 12) == 0) {
            a->usable = false;
            snprintf(a->why_not, sizeof a->why_not, "is hot");
        }
        if (yk_rng_below(r, 2)) {
            double ms[128];
            for (int32_t k = 0; k < g->n_nodes; k++)
                ms[k] = pf_spread(r, 0.01, 2);
            pf_profile(f, i, ms, g->n_nodes - (yk_rng_below(r, 12) == 0));
        }
    }
    for (int32_t from = -1; from < n; from++)
        for (int32_t to = -1; to < n; to++) {
            if (from == to || yk_rng_below(r, 10) == 0 || ((from < 0 || to < 0) && !uplink))
                continue;
            struct view_link *l = pf_link(f, from, to, pf_spread(r, 1e5, 5), yk_rng_unit(r) * 2);
            l->shared = half ? (int32_t)yk_rng_below(r, 2) : -1;
            l->cpu_ns_per_byte = yk_rng_below(r, 3) ? 0 : 2;
            if (yk_rng_below(r, 10) == 0)
                l->origin = VIEW_UNKNOWN;
        }
}

static inline void pf_random(struct pf *f, const struct graph *g, struct yk_rng *r)
{
    pf_random_of(f, g, r, 1 + (int32_t)yk_rng_below(r, 3));
}

/* n MatMul of 1 MiB of weights each (512 x 512 f32). */
static inline struct graph *pf_layers(int n)
{
    struct graph *g = fx_open();
    char name[16];
    graph_sym(g, "N");
    int32_t v = fx_input(g, "x", DT_F32, (const int64_t[]){-1, 512}, 2);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "w%d", i);
        int32_t w = fx_weight(g, name, (const int64_t[]){512, 512}, 2);
        snprintf(name, sizeof name, "fc%d", i);
        v = fx_node(g, "MatMul", name, IDS(v, w));
    }
    fx_output(g, v);
    return g;
}

/* No agent holds more than it has, all its stages together. */
static inline bool pf_fits(const struct cost_model *m, const int32_t *stage_of, const int32_t *agents, int32_t stages)
{
    int64_t sum[PF_AGENTS] = {0};
    for (int32_t s = 0; s < stages; s++) {
        uint8_t in_stage[64];
        int64_t need;
        for (int32_t i = 0; i < m->graph->n_nodes; i++)
            in_stage[i] = stage_of[i] == s;
        if (cost_memory(m, in_stage, 1, &need, NULL))
            return false;
        sum[agents[s]] += need;
        if (sum[agents[s]] > m->view->agents[agents[s]].memory_bytes)
            return false;
    }
    return true;
}

#endif
