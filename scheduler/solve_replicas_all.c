/* All chains of a small fleet and graph (the last agent may be the source again if the first is), as parts of sets: of
 * those on the same agents only such that no other is as early, as fast and as light on what is shared. Sums and loads
 * grow along a chain; what goes between two stages is looked up in tables over their ends. */
#include "scheduler/solve_replicas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PARTS 20000 /* kept, at most */

struct walk {
    const struct cost_model *m;
    int32_t source, n, n_agents;
    struct cuts cuts;
    double limit;
    /* by p * (n + 1) + q: nodes p..q-1. Bytes: -1 nothing */
    int64_t *input, *output, *memory; /* memory: -1 not known yet */
    double *ms;                       /* [agent * (n + 1)^2 + that]; NaN: cannot run there */
    int64_t *between;                 /* [that * (n + 1)^2 + that of the reader] */
    /* the chain */
    double *loads; /* [stage * n_resources] */
    double sum[SOLVE_REPLICAS_AGENTS + 2];
    int32_t agent[SOLVE_REPLICAS_AGENTS + 1], end[SOLVE_REPLICAS_AGENTS + 3];
    uint8_t *in_stage;
    /* what is kept */
    int32_t resource[SOLVE_SHARED], n_shared;
    struct solve_part *parts;
    int32_t n_parts, *next, head[1 << SOLVE_REPLICAS_AGENTS];
    bool all;
    yk_err err;
    struct yk_diag *why;
};

double solve_replicas_chains(const struct cost_model *m)
{
    int32_t n = m->graph->n_nodes, agents = 0;
    double all = 0, orders = 1, cuts = 1;
    if (m->view->n_agents > SOLVE_REPLICAS_AGENTS || n > SOLVE_REPLICAS_NODES)
        return INFINITY;
    for (int32_t a = 0; a < m->view->n_agents; a++)
        agents += m->view->agents[a].usable;
    for (int32_t k = 1; k <= agents && k <= n; k++) {
        orders *= agents - k + 1;
        all += orders * cuts;
        cuts = cuts * (n - k) / k;
        all += k > 1 ? orders / agents * cuts : 0; /* with the source again */
    }
    return all;
}

/* ---- tables ---- */

static size_t at(const struct walk *w, int32_t p, int32_t q)
{
    return (size_t)p * ((size_t)w->n + 1) + (size_t)q;
}

struct reader {
    struct walk *w;
    int32_t node;
    uint32_t *reads; /* by value: the nodes that read it */
};

static void add_reader(void *arg, int32_t value)
{
    struct reader *r = arg;
    r->reads[value] |= 1u << r->node;
}

static void add_bytes(int64_t *to, int64_t bytes)
{
    *to = YK_MAX(*to, (int64_t)0) + bytes;
}

static uint32_t nodes_of(int32_t p, int32_t q)
{
    return (uint32_t)(((uint64_t)1 << q) - ((uint64_t)1 << p));
}

static void count_bytes(struct walk *w, const uint32_t *reads)
{
    const struct graph *g = w->m->graph;
    int32_t n = w->n;
    size_t pairs = ((size_t)n + 1) * ((size_t)n + 1);
    for (int32_t v = 0; v < g->n_values; v++) {
        int32_t made = g->values[v].producer;
        int64_t bytes = cost_value_bytes(w->m, v, cost_codec(w->m));
        if (g->values[v].kind == VALUE_WEIGHT || !reads[v])
            continue;
        for (int32_t p = made + 1; p < n; p++)
            for (int32_t q = p + 1; q <= n; q++) {
                if (!(reads[v] & nodes_of(p, q)))
                    continue;
                if (made < 0)
                    add_bytes(&w->input[at(w, p, q)], bytes);
                for (int32_t from = 0; from <= made; from++)
                    for (int32_t to = made + 1; to <= p; to++)
                        add_bytes(&w->between[at(w, from, to) * pairs + at(w, p, q)], bytes);
            }
    }
    for (int32_t i = 0; i < g->n_outputs - g->n_staying; i++) {
        int32_t v = g->outputs[i], made = g->values[v].producer;
        bool twice = false;
        for (int32_t k = 0; k < i; k++)
            twice = twice || g->outputs[k] == v;
        for (int32_t p = 0; p <= made && !twice && g->values[v].kind == VALUE_NODE; p++)
            for (int32_t q = made + 1; q <= n; q++)
                add_bytes(&w->output[at(w, p, q)], cost_value_bytes(w->m, v, cost_codec(w->m)));
    }
}

static yk_err make_tables(struct walk *w)
{
    const struct cost_model *m = w->m;
    size_t pairs = ((size_t)w->n + 1) * ((size_t)w->n + 1);
    yk_err err = cut_all(m->graph, &m->shapes, &w->cuts, w->why);
    if (err)
        return err;
    w->input = yk_try_alloc(pairs, sizeof *w->input);
    w->output = yk_try_alloc(pairs, sizeof *w->output);
    w->memory = yk_try_alloc(pairs, sizeof *w->memory);
    w->between = yk_try_alloc(pairs * pairs, sizeof *w->between);
    w->ms = yk_try_alloc(pairs * (size_t)w->n_agents, sizeof *w->ms);
    w->loads = yk_try_alloc(((size_t)w->n_agents + 3) * ((size_t)m->n_resources + 1), sizeof *w->loads);
    w->in_stage = yk_try_alloc((size_t)w->n + 1, 1);
    w->parts = yk_try_alloc(PARTS, sizeof *w->parts);
    w->next = yk_try_alloc(PARTS, sizeof *w->next);
    uint32_t *reads = yk_try_alloc((size_t)m->graph->n_values + 1, sizeof *reads);
    if (!w->input || !w->output || !w->memory || !w->between || !w->ms || !w->loads || !w->in_stage || !w->parts ||
        !w->next || !reads) {
        free(reads);
        return yk_fail(w->why, YK_NOMEM, "no memory to look at all sets of pipelines");
    }
    for (size_t i = 0; i < pairs; i++)
        w->input[i] = w->output[i] = w->memory[i] = -1;
    for (size_t i = 0; i < pairs * pairs; i++)
        w->between[i] = -1;
    for (int32_t i = 0; i < w->n; i++) {
        struct reader r = {w, i, reads};
        node_each_use(&m->graph->nodes[i], add_reader, &r);
    }
    count_bytes(w, reads);
    free(reads);
    for (int32_t a = 0; a < w->n_agents; a++)
        for (int32_t p = 0; p < w->n; p++) {
            double ms = 0;
            for (int32_t q = p + 1; q <= w->n; q++) {
                ms += m->node_ms[(size_t)a * (size_t)w->n + (size_t)q - 1];
                w->ms[(size_t)a * pairs + at(w, p, q)] = ms;
            }
        }
    return YK_OK;
}

/* beside: bytes that the agent holds already. */
static bool fits(struct walk *w, int32_t agent, int32_t p, int32_t q, int64_t beside)
{
    int64_t *need = &w->memory[at(w, p, q)];
    if (*need < 0) {
        memset(w->in_stage, 0, (size_t)w->n);
        memset(w->in_stage + p, 1, (size_t)(q - p));
        yk_err err = cost_memory(w->m, w->in_stage, 1, need, w->why);
        if (err) {
            w->err = w->err ? w->err : err;
            return false;
        }
    }
    return *need <= w->m->view->agents[agent].memory_bytes - beside;
}

/* ---- chains ---- */

static double *loads_of(const struct walk *w, int32_t stage)
{
    return w->loads + (size_t)stage * (size_t)w->m->n_resources;
}

static void message(struct walk *w, int32_t stage, int32_t agent)
{
    double ms = agent >= 0 ? w->m->view->agents[agent].message_ms : 0;
    if (ms > 0) {
        w->sum[stage] += ms;
        loads_of(w, stage)[agent] += ms;
    }
}

/* bytes < 0: nothing goes there. */
static bool transfer(struct walk *w, int32_t stage, int32_t from, int32_t to, int64_t bytes)
{
    double latency;
    if (bytes < 0 || from == to)
        return true;
    int32_t link = cost_link(w->m, from, to);
    if (link < 0)
        return false;
    double busy = cost_transfer_ms(w->m, link, bytes, &latency);
    w->sum[stage] += busy + latency;
    loads_of(w, stage)[w->m->link_resource[link]] += busy;
    message(w, stage, from);
    message(w, stage, to);
    return true;
}

static bool no_worse(const struct solve_part *a, const struct solve_part *b, int32_t n_shared)
{
    if (a->first_ms > b->first_ms || a->bottleneck_ms > b->bottleneck_ms)
        return false;
    for (int32_t r = 0; r < n_shared; r++)
        if (a->shared[r] > b->shared[r])
            return false;
    return true;
}

static void keep(struct walk *w, int32_t n_stages, uint32_t used)
{
    const double *load = loads_of(w, n_stages);
    struct solve_part p = {.agents = used, .first_ms = w->sum[n_stages], .n_stages = n_stages};
    for (int32_t r = 0; r < w->m->n_resources; r++)
        p.bottleneck_ms = YK_MAX(p.bottleneck_ms, load[r]);
    for (int32_t r = 0; r < w->n_shared; r++)
        p.shared[r] = load[w->resource[r]];
    for (int32_t s = 0; s < n_stages; s++) {
        p.agent[s] = (int8_t)w->agent[s];
        p.end[s] = (int8_t)w->end[s + 1];
    }
    for (int32_t *i = &w->head[used]; *i >= 0;) {
        if (no_worse(&w->parts[*i], &p, w->n_shared))
            return;
        if (no_worse(&p, &w->parts[*i], w->n_shared)) {
            w->parts[*i].agents = 0; /* left out */
            *i = w->next[*i];
        } else {
            i = &w->next[*i];
        }
    }
    if (w->n_parts == PARTS) {
        w->all = false;
        return;
    }
    w->next[w->n_parts] = w->head[used];
    w->head[used] = w->n_parts;
    w->parts[w->n_parts++] = p;
}

/* Stage s on the agent with nodes up to q; false: there is no such chain, or it is of no use. */
static bool add_stage(struct walk *w, int32_t s, int32_t agent, int32_t q)
{
    const struct cost_model *m = w->m;
    int32_t p = w->end[s];
    size_t pairs = ((size_t)w->n + 1) * ((size_t)w->n + 1);
    double ms = w->ms[(size_t)agent * pairs + at(w, p, q)];
    memcpy(loads_of(w, s + 1), loads_of(w, s), (size_t)m->n_resources * sizeof *w->loads);
    w->sum[s + 1] = w->sum[s] + ms;
    loads_of(w, s + 1)[agent] += ms;
    bool good = transfer(w, s + 1, w->source, agent, w->input[at(w, p, q)]) &&
                transfer(w, s + 1, agent, w->source, w->output[at(w, p, q)]);
    for (int32_t k = 0; k < s && good; k++)
        good =
            transfer(w, s + 1, w->agent[k], agent, w->between[at(w, w->end[k], w->end[k + 1]) * pairs + at(w, p, q)]);
    w->agent[s] = agent;
    w->end[s + 1] = q;
    return good && w->sum[s + 1] < w->limit;
}

static void visit(struct walk *w, int32_t s, uint32_t used)
{
    const struct view *v = w->m->view;
    int32_t p = w->end[s];
    size_t pairs = ((size_t)w->n + 1) * ((size_t)w->n + 1);
    for (int32_t a = 0; a < w->n_agents; a++) {
        bool again = s > 1 && a == w->source && w->agent[0] == a; /* then it ends there */
        if (((used >> a & 1) && !again) || !v->agents[a].usable || v->agents[a].memory_bytes <= 0)
            continue;
        int64_t beside = again ? w->memory[at(w, 0, w->end[1])] : 0;
        for (int32_t q = again ? w->n : p + 1; q <= w->n && !w->err; q++) {
            if (isnan(w->ms[(size_t)a * pairs + at(w, p, q)]))
                break;
            if ((q < w->n && w->cuts.at[q].forbidden) || !fits(w, a, p, q, beside) || !add_stage(w, s, a, q))
                continue;
            if (q == w->n)
                keep(w, s + 1, used | 1u << a);
            else
                visit(w, s + 1, used | 1u << a);
        }
    }
}

static void begin(struct walk *w)
{
    struct cost_edge e;
    message(w, 0, w->source);
    if (cost_upload(w->m, w->source, &e)) {
        w->sum[0] += e.busy_ms + e.latency_ms;
        loads_of(w, 0)[e.resource] += e.busy_ms;
        message(w, 0, w->source);
    }
    if (cost_answer(w->m, w->source, &e)) {
        w->sum[0] += e.busy_ms + e.latency_ms;
        loads_of(w, 0)[e.resource] += e.busy_ms;
    }
    for (size_t i = 0; i < YK_COUNT(w->head); i++)
        w->head[i] = -1;
    visit(w, 0, 0);
}

yk_err solve_replicas_all(const struct cost_model *m, int32_t source, double limit_ms, struct solve_chain *chains,
    int64_t *counts, int32_t *n, double *cost_ms, bool *all, struct yk_diag *why)
{
    struct walk *w = yk_xalloc(sizeof *w);
    int32_t chosen[SOLVE_REPLICAS], left = 0;
    *w = (struct walk){.m = m, .source = source, .n = m->graph->n_nodes, .limit = limit_ms, .all = true, .why = why};
    w->n_agents = m->view->n_agents;
    *n = 0;
    *cost_ms = limit_ms;
    *all = isfinite(solve_replicas_chains(m)) && solve_replicas_shared(m, source, w->resource, &w->n_shared);
    yk_err err = *all && m->count > 1 ? make_tables(w) : YK_OK;
    if (!err && *all && m->count > 1) {
        begin(w);
        for (int32_t i = 0; i < w->n_parts; i++)
            if (w->parts[i].agents)
                w->parts[left++] = w->parts[i];
        err = w->err;
        bool sets = true;
        if (!err)
            *n = solve_replicas_sets(w->parts, left, w->n_shared, m->count, chosen, counts, cost_ms, &sets);
        *all = w->all && sets;
    }
    for (int32_t i = 0; i < *n && !err; i++) {
        const struct solve_part *p = &w->parts[chosen[i]];
        chains[i] = (struct solve_chain){.source = source, .n_stages = p->n_stages};
        for (int32_t s = 0; s < p->n_stages; s++) {
            chains[i].agent[s] = p->agent[s];
            chains[i].end[s] = p->end[s];
        }
    }
    cuts_fini(&w->cuts);
    free(w->input);
    free(w->output);
    free(w->memory);
    free(w->between);
    free(w->ms);
    free(w->loads);
    free(w->in_stage);
    free(w->parts);
    free(w->next);
    free(w);
    return err;
}
