/* Candidates of one microbatch size: single devices, chains, splits of a training, several pipelines. */
#include "scheduler/solve_pool.h"

#include "scheduler/solve_replicas.h"
#include "scheduler/solve_sets.h"
#include "scheduler/solve_train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPLITS 12 /* of a training */

void solve_pool_fini(struct pool *p)
{
    for (int32_t i = 0; i < p->n; i++) {
        for (int32_t k = 0; k < p->sizes[i].n; k++)
            candidate_fini(&p->sizes[i].at[k]);
        free(p->sizes[i].at);
        if (p->sizes[i].ready)
            cost_fini(&p->sizes[i].model);
    }
    free(p->trail.at);
}

struct candidate *solve_pool_add(struct size_pool *p, struct cost_line *line)
{
    p->at = yk_xrealloc(p->at, ((size_t)p->n + 1) * sizeof *p->at);
    struct candidate *c = &p->at[p->n++];
    *c = (struct candidate){.n_lines = 1, .microbatch = p->model.microbatch, .count = p->model.count};
    c->lines = yk_xalloc(sizeof *c->lines);
    c->shares = yk_xalloc(sizeof *c->shares);
    c->lines[0] = *line;
    c->shares[0] = 1;
    c->cost_ms = line->cost_ms;
    c->cloud_ms = (double)c->count * line->cloud_ms;
    return c;
}

bool solve_pool_single(const struct candidate *c)
{
    return c->n_lines == 1 && c->lines[0].n_stages == 1;
}

static yk_err price_chain(
    const struct cost_model *m, const struct solve_chain *chain, struct cost_line *line, struct yk_diag *why)
{
    int32_t *stage_of = yk_xalloc(((size_t)m->graph->n_nodes + 1) * sizeof *stage_of);
    for (int32_t s = 0, i = 0; s < chain->n_stages; s++)
        for (; i < chain->end[s]; i++)
            stage_of[i] = s;
    yk_err err = cost_price(m, chain->source, chain->agent, chain->n_stages, stage_of, NULL, 0, line, why);
    free(stage_of);
    return err;
}

yk_err solve_pool_chain(struct size_pool *p, const struct solve_chain *chain, struct yk_diag *why)
{
    struct cost_line line;
    yk_err err = price_chain(&p->model, chain, &line, why);
    if (!err)
        solve_pool_add(p, &line);
    return err;
}

/* Takes the splits. A way over two cuts may have no link. */
static void add_splits(struct size_pool *p, int32_t source, struct solve_split *splits, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        struct cost_line line;
        if (!cost_price(
                &p->model, source, splits[i].agent, splits[i].n_stages, splits[i].stage_of, NULL, 0, &line, NULL))
            solve_pool_add(p, &line);
        solve_train_fini(&splits[i]);
    }
}

/* For the source the same as an agent before it. */
static bool looked_at(const struct cost_model *m, int32_t source, int32_t agent)
{
    const struct view_agent *agents = m->view->agents;
    size_t row = (size_t)m->graph->n_nodes;
    for (int32_t a = 0; a < agent; a++) {
        double latency[4], ms[4];
        bool same = a != source && agents[a].usable && agents[a].memory_bytes >= agents[agent].memory_bytes &&
                    agents[a].message_ms == agents[agent].message_ms &&
                    memcmp(m->node_ms + (size_t)a * row, m->node_ms + (size_t)agent * row, row * sizeof(double)) == 0;
        for (int32_t k = 0; k < 4 && same; k++) {
            int32_t it = k & 1 ? a : agent, link = k & 2 ? cost_link(m, it, source) : cost_link(m, source, it);
            latency[k] = 0;
            ms[k] = link < 0 ? -1 : cost_transfer_ms(m, link, 1 << 20, &latency[k]);
        }
        if (same && ms[0] == ms[1] && ms[2] == ms[3] && latency[0] == latency[1] && latency[2] == latency[3])
            return true;
    }
    return false;
}

/* Takes line. False: it does not fit. */
static bool add_if_fits(struct pool *pool, struct size_pool *p, struct cost_line *line)
{
    struct candidate *c = solve_pool_add(p, line);
    if (candidate_memory(&p->model, c, 1, NULL)) {
        candidate_fini(c);
        p->n--;
        return false;
    }
    pool->least_ms = YK_MIN(pool->least_ms, c->cost_ms);
    return true;
}

#define SETS_NODES 10 /* of graphs whose sets are all looked at where the best does not fit */

struct closed {
    uint32_t set;
    const int32_t *producer; /* by value, -1 */
    bool is;
};

static void needs(void *arg, int32_t v)
{
    struct closed *c = arg;
    c->is = c->is && (c->producer[v] < 0 || c->set >> c->producer[v] & 1);
}

/* Memory and pins are no matter of cuts: every first set, in a small graph. In others a bound is all that is known. */
static void sets_that_fit(struct pool *pool, struct size_pool *p, int32_t source, const int32_t *agents)
{
    const struct cost_model *m = &p->model;
    const struct graph *g = m->graph;
    int32_t n = g->n_nodes, stage_of[SETS_NODES];
    if (n > SETS_NODES)
        return;
    int32_t *producer = yk_xalloc(((size_t)g->n_values + 1) * sizeof *producer);
    for (int32_t v = 0; v < g->n_values; v++)
        producer[v] = g->values[v].kind == VALUE_NODE ? g->values[v].producer : -1;
    for (uint32_t set = 1; set + 1 < 1u << n; set++) {
        struct closed c = {set, producer, true};
        struct cost_line line;
        double ms = 0;
        for (int32_t i = 0; i < n; i++) {
            stage_of[i] = !(set >> i & 1);
            ms += m->node_ms[(size_t)agents[stage_of[i]] * (size_t)n + (size_t)i];
            if (!stage_of[i])
                node_each_use(&g->nodes[i], needs, &c);
        }
        if (!c.is || !(ms < pool->least_ms) || cut_check(g, &m->shapes, stage_of, 2, NULL) ||
            cost_price(m, source, agents, 2, stage_of, NULL, 0, &line, NULL))
            continue;
        if (line.cost_ms < pool->least_ms)
            add_if_fits(pool, p, &line);
        else
            cost_line_fini(&line);
    }
    free(producer);
}

yk_err solve_pool_sets(struct pool *pool, struct size_pool *p, int32_t source, struct yk_diag *why)
{
    const struct cost_model *m = &p->model;
    int32_t n = m->graph->n_nodes, agents[2], *stage_of = yk_xalloc(((size_t)n + 1) * sizeof *stage_of);
    uint8_t *first = yk_xalloc((size_t)n + 1);
    yk_err err = YK_OK;
    bool may = m->view->agents[source].usable && m->view->agents[source].memory_bytes > 0;
    for (int32_t k = 0; k < 2 * m->view->n_agents && may && !err; k++) {
        bool source_first = k % 2 == 0;
        struct cost_line line;
        double bound;
        int32_t other = k / 2, n_first = 0;
        if (other == source || !m->view->agents[other].usable || m->view->agents[other].memory_bytes <= 0 ||
            (m->req->pin_first && !source_first) || (m->req->pin_last && source_first) || cost_out_of_time(m) ||
            looked_at(m, source, other))
            continue;
        double ms = solve_sets_pair(m, source, other, source_first, pool->least_ms, first, &bound);
        pool->bound_ms = YK_MIN(pool->bound_ms, bound);
        if (isinf(ms))
            continue;
        for (int32_t i = 0; i < n; i++) {
            stage_of[i] = !first[i];
            n_first += first[i];
        }
        agents[0] = source_first ? source : other;
        agents[1] = source_first ? other : source;
        if (n_first == 0 ||
            n_first == n) { /* one device, which is better than what is known: it may not be, or not fit */
            sets_that_fit(pool, p, source, agents);
            continue;
        }
        err = cost_price(m, source, agents, 2, stage_of, NULL, 0, &line, why);
        if (!err && !add_if_fits(pool, p, &line))
            sets_that_fit(pool, p, source, agents);
    }
    free(stage_of);
    free(first);
    return err;
}

static yk_err add_chains(struct size_pool *p, const struct solve_chain *chains, int32_t n, struct yk_diag *why)
{
    yk_err err = YK_OK;
    for (int32_t i = 0; i < n && !err; i++)
        if (chains[i].n_stages > 1)
            err = solve_pool_chain(p, &chains[i], why);
    return err;
}

yk_err solve_pool_thrift(struct pool *pool, struct size_pool *p, int32_t source, struct yk_diag *why)
{
    const struct view *v = p->model.view;
    struct cost_model without = p->model;
    struct view here = *v;
    struct solve_chain chains[SOLVE_POOL_CHAINS];
    int32_t n = 0;
    double bound, cloud = 0;
    here.agents = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *here.agents);
    for (int32_t a = 0; a < v->n_agents; a++) {
        here.agents[a] = v->agents[a];
        here.agents[a].usable = v->agents[a].usable && strcmp(v->agents[a].class_name, "cloud") != 0;
    }
    without.view = &here;
    yk_err err = solve_dp_chains(&without, source, pool->limit_ms, &bound, chains, SOLVE_POOL_CHAINS, &n, NULL, why);
    if (!err)
        err = add_chains(p, chains, n, why);
    bool found = n > 0 && chains[0].cost_ms <= pool->limit_ms;
    for (int32_t i = 0; i < p->n; i++)
        found = found || (p->at[i].cloud_ms <= 0 && p->at[i].cost_ms <= pool->limit_ms);
    if (!err && !found) {
        err = solve_dp_thrift(&p->model, source, pool->limit_ms, &cloud, chains, SOLVE_POOL_CHAINS, &n, why);
        if (!err)
            err = add_chains(p, chains, n, why);
        cloud *= (double)p->model.count;
    }
    pool->cloud_ms = YK_MIN(pool->cloud_ms, cloud);
    free(here.agents);
    return err;
}

yk_err solve_pool_splits(struct pool *pool, struct size_pool *p, int32_t source, int32_t searches, struct yk_diag *why)
{
    struct solve_split splits[SPLITS];
    int32_t n = 0;
    bool all = false;
    yk_err err = YK_OK;
    if (solve_train_chains(&p->model) * searches <= SOLVE_TRAIN_ALL) {
        err = solve_train_all(&p->model, source, pool->least_ms, 1.0 / searches, splits, SPLITS, &n, &all, why);
        for (int32_t i = 0; i < n; i++) {
            pool->least_ms = YK_MIN(pool->least_ms, splits[i].cost_ms);
            pool->bound_ms = YK_MIN(pool->bound_ms, splits[i].cost_ms);
        }
        add_splits(p, source, splits, n);
    }
    if (!err && !all) {
        err = solve_train_splits(&p->model, source, splits, SPLITS, &n, why);
        add_splits(p, source, splits, n);
        pool->bound_ms = YK_MIN(pool->bound_ms, solve_train_bound(&p->model));
    }
    return err;
}

/* The whole model takes the same on every device. */
static yk_err single_memory(struct size_pool *p, struct candidate *c, struct yk_diag *why)
{
    const struct solve_training *t = p->model.req->training;
    bool train = t && t->info;
    if (!p->whole_known) {
        uint8_t *all = yk_xalloc((size_t)p->model.graph->n_nodes + 1);
        memset(all, 1, (size_t)p->model.graph->n_nodes);
        yk_err err = train ? cost_memory_unit(&p->model, all, true, p->whole, why)
                           : cost_memory_parts(&p->model, all, &p->whole_fixed, &p->whole_each, why);
        free(all);
        if (err)
            return err;
        p->whole_known = true;
    }
    c->fixed = yk_xalloc(2 * sizeof *c->fixed);
    c->each = yk_xalloc(2 * sizeof *c->each);
    c->fixed[0] = train ? 0 : p->whole_fixed;
    c->each[0] = train ? 0 : p->whole_each;
    yk_err err = train ? candidate_train_memory(&p->model, c, p->whole, c->fixed, c->each, why) : YK_OK;
    if (err)
        return err;
    return candidate_memory(&p->model, c, 1, why);
}

/* Every single device, for every source that may be; the reasons why one cannot go to `reasons`. */
void solve_pool_singles(struct size_pool *p, int32_t source, struct yk_buf *reasons)
{
    const struct cost_model *m = &p->model;
    int32_t *stage_of = yk_xalloc(((size_t)m->graph->n_nodes + 1) * sizeof *stage_of);
    for (int32_t a = 0; a < m->view->n_agents; a++) {
        const struct view_agent *agent = &m->view->agents[a];
        struct yk_diag why = {0};
        struct cost_line line;
        if (!agent->usable) {
            yk_buf_printf(reasons, "; agent %s: %s", agent->name, agent->why_not);
            continue;
        }
        if ((m->req->pin_first || m->req->pin_last) && a != source)
            continue;
        if (cost_price(m, source, &a, 1, stage_of, NULL, 0, &line, &why)) {
            yk_buf_printf(reasons, "; %s", why.text);
            continue;
        }
        struct candidate *c = solve_pool_add(p, &line);
        if (single_memory(p, c, &why)) {
            yk_buf_printf(reasons, "; %s", why.text);
            candidate_fini(c);
            p->n--;
        }
    }
    free(stage_of);
}

/* Takes lines, of n places; frees them. */
static void add_several(
    struct pool *pool, struct size_pool *p, struct cost_line *lines, const int64_t *counts, int32_t n)
{
    const struct cost_model *m = &p->model;
    struct candidate c = {.lines = lines, .n_lines = n, .microbatch = m->microbatch, .count = m->count};
    double *load = yk_xalloc(((size_t)m->n_resources + 1) * sizeof *load);
    c.shares = yk_xalloc((size_t)n * sizeof *c.shares);
    for (int32_t i = 0; i < n; i++) {
        c.shares[i] = (double)counts[i] / (double)m->count;
        c.cloud_ms += (double)counts[i] * lines[i].cloud_ms;
        c.cost_ms = YK_MAX(c.cost_ms, lines[i].first_ms + (double)(counts[i] - 1) * lines[i].bottleneck_ms);
        for (int32_t r = 0; r < m->n_resources; r++)
            load[r] += (double)counts[i] * cost_line_load(&lines[i], r);
    }
    for (int32_t r = 0; r < m->n_resources; r++)
        c.cost_ms = YK_MAX(c.cost_ms, load[r]);
    free(load);
    p->at = yk_xrealloc(p->at, ((size_t)p->n + 1) * sizeof *p->at);
    p->at[p->n++] = c;
    pool->least_ms = YK_MIN(pool->least_ms, c.cost_ms);
}

static yk_err all_replicas(struct pool *pool, struct size_pool *p, int32_t source, bool *all, struct yk_diag *why)
{
    struct solve_chain *chains = yk_xalloc(SOLVE_REPLICAS * sizeof *chains);
    struct cost_line *lines = yk_xalloc(SOLVE_REPLICAS * sizeof *lines);
    int64_t counts[SOLVE_REPLICAS];
    int32_t n = 0, priced = 0;
    double cost;
    yk_err err =
        solve_replicas_all(&p->model, source, pool->least_ms * (1 - 1e-12), chains, counts, &n, &cost, all, why);
    for (; priced < n && !err; priced += !err)
        err = price_chain(&p->model, &chains[priced], &lines[priced], why);
    if (n > 0 && !err) {
        add_several(pool, p, lines, counts, n);
        pool->bound_ms = YK_MIN(pool->bound_ms, p->at[p->n - 1].cost_ms);
    } else {
        for (int32_t i = 0; i < priced; i++)
            cost_line_fini(&lines[i]);
        free(lines);
    }
    free(chains);
    return err;
}

static yk_err some_replicas(struct pool *pool, struct size_pool *p, int32_t source, bool cloudless, struct yk_diag *why)
{
    const struct cost_line **lines = yk_xalloc(((size_t)p->n + 1) * sizeof *lines);
    int32_t chosen[SOLVE_REPLICAS], n_lines = 0, priced = 0;
    int64_t counts[SOLVE_REPLICAS];
    double cost;
    yk_err err = YK_OK;
    for (int32_t i = 0; i < p->n; i++)
        if (p->at[i].n_lines == 1 && p->at[i].lines[0].source == source &&
            !(cloudless && p->at[i].lines[0].cloud_ms > 0))
            lines[n_lines++] = &p->at[i].lines[0];
    int32_t n = solve_replicas_choose(&p->model, lines, n_lines, chosen, counts, &cost);
    if (n > 1) {
        struct cost_line *copy = yk_xalloc((size_t)n * sizeof *copy);
        for (; priced < n && !err; priced += !err) {
            const struct cost_line *l = lines[chosen[priced]];
            int32_t *agents = yk_xalloc(((size_t)l->n_stages + 1) * sizeof *agents);
            for (int32_t s = 0; s < l->n_stages; s++)
                agents[s] = l->stages[s].agent;
            err = cost_price(&p->model, source, agents, l->n_stages, l->stage_of, NULL, 0, &copy[priced], why);
            free(agents);
        }
        if (!err) {
            add_several(pool, p, copy, counts, n);
        } else {
            for (int32_t i = 0; i < priced; i++)
                cost_line_fini(&copy[i]);
            free(copy);
        }
    }
    free(lines);
    return err;
}

yk_err solve_pool_replicas(
    struct pool *pool, struct size_pool *p, int32_t source, bool cloudless, bool *all, struct yk_diag *why)
{
    int32_t sources = p->model.req->source >= 0 ? 1 : p->model.view->n_agents;
    if (cloudless)
        return some_replicas(pool, p, source, true, why);
    *all = solve_replicas_chains(&p->model) * pool->n * sources <= SOLVE_REPLICAS_ALL;
    yk_err err = *all ? all_replicas(pool, p, source, all, why) : YK_OK;
    if (!*all && !err) {
        err = some_replicas(pool, p, source, false, why);
        pool->bound_ms = YK_MIN(pool->bound_ms, solve_replicas_bound(&p->model));
    }
    return err;
}
