/* The frame around the solvers: forms, microbatch sizes, sources; scoring by the event model; the finished plan. */
#include "scheduler/solve.h"

#include "common/op.h"
#include "scheduler/candidate.h"
#include "scheduler/solve_dp.h"
#include "scheduler/solve_large.h"
#include "scheduler/solve_replicas.h"
#include "scheduler/solve_train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 8 /* looked at in any case */
#define DEEPEST 64
#define CHAINS 6  /* best chains kept of each search */
#define SPLITS 12 /* of a training */

static const char *const objective_names[] = {"latency", "throughput", "cloud-cost"};

bool solve_objective_find(const char *name, enum solve_objective *out)
{
    for (size_t i = 0; i < YK_COUNT(objective_names); i++)
        if (strcmp(name, objective_names[i]) == 0) {
            *out = (enum solve_objective)i;
            return true;
        }
    return false;
}

/* One microbatch size with everything that was found for it. */
struct size_pool {
    struct cost_model model;
    struct candidate *at;
    int32_t n;
    bool ready;
    bool whole_known;
    int64_t whole_fixed, whole_each; /* bytes of the whole model on one device, and for each of the depth */
};

struct pool {
    struct size_pool sizes[SOLVE_SIZES];
    int32_t n;
    double least_ms; /* cost of the best candidate so far */
    double bound_ms; /* no chain that was searched for costs less */
    double stop_ms;  /* 0: never */
};

static void pool_fini(struct pool *p)
{
    for (int32_t i = 0; i < p->n; i++) {
        for (int32_t k = 0; k < p->sizes[i].n; k++)
            candidate_fini(&p->sizes[i].at[k]);
        free(p->sizes[i].at);
        if (p->sizes[i].ready)
            cost_fini(&p->sizes[i].model);
    }
}

static struct candidate *pool_add(struct size_pool *p, struct cost_line *line)
{
    p->at = yk_xrealloc(p->at, ((size_t)p->n + 1) * sizeof *p->at);
    struct candidate *c = &p->at[p->n++];
    *c = (struct candidate){.n_lines = 1, .microbatch = p->model.microbatch, .count = p->model.count};
    c->lines = yk_xalloc(sizeof *c->lines);
    c->shares = yk_xalloc(sizeof *c->shares);
    c->lines[0] = *line;
    c->shares[0] = 1;
    c->cost_ms = line->cost_ms;
    return c;
}

static bool is_single(const struct candidate *c)
{
    return c->n_lines == 1 && c->lines[0].n_stages == 1;
}

/* ---- candidates ---- */

/* Statistics of few samples train another network than those of the batch: only a user asks for fewer. */
#define BATCH_NORM_LEAST 16

static bool has_batch_norm(const struct graph *g)
{
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].op->name, "BatchNormTrain") == 0)
            return true;
    return false;
}

int32_t solve_sizes(const struct solve_request *req, int64_t *sizes)
{
    int64_t fixed, batch = YK_MAX(req->batch, (int64_t)1);
    int32_t n = 0;
    if (graph_batch_dim(req->graph, &fixed) < 0) {
        sizes[n++] = fixed;
        return n;
    }
    if (req->microbatch > 0) {
        sizes[n++] = req->microbatch;
        return n;
    }
    /* A single request stays whole: its split would change the bits of forms whose tiles follow the batch. */
    if (strcmp(req->job, "infer") == 0) {
        sizes[n++] = batch;
        return n;
    }
    for (int64_t m = req->training && has_batch_norm(req->graph) ? BATCH_NORM_LEAST : 1;
         m < batch && n < SOLVE_SIZES - 1; m *= 2)
        sizes[n++] = m;
    sizes[n++] = batch;
    return n;
}

static yk_err add_chain(struct size_pool *p, const struct solve_chain *chain, struct yk_diag *why)
{
    int32_t n = p->model.graph->n_nodes, *stage_of = yk_xalloc(((size_t)n + 1) * sizeof *stage_of);
    struct cost_line line;
    for (int32_t s = 0, i = 0; s < chain->n_stages; s++)
        for (; i < chain->end[s]; i++)
            stage_of[i] = s;
    yk_err err = cost_price(&p->model, chain->source, chain->agent, chain->n_stages, stage_of, NULL, 0, &line, why);
    free(stage_of);
    if (!err)
        pool_add(p, &line);
    return err;
}

static yk_err add_splits(struct pool *pool, struct size_pool *p, int32_t source, struct yk_diag *why)
{
    struct solve_split splits[SPLITS];
    int32_t n = 0;
    yk_err err = solve_train_splits(&p->model, source, splits, SPLITS, &n, why);
    for (int32_t i = 0; i < n; i++) {
        struct cost_line line;
        if (!err && !cost_price(&p->model, source, splits[i].agent, splits[i].n_stages, splits[i].stage_of, NULL, 0,
                        &line, NULL)) /* a way over two cuts may have no link */
            pool_add(p, &line);
        solve_train_fini(&splits[i]);
    }
    pool->bound_ms = YK_MIN(pool->bound_ms, solve_train_bound(&p->model));
    return err;
}

/* The whole model takes the same on every device. */
static yk_err single_memory(struct size_pool *p, struct candidate *c, struct yk_diag *why)
{
    if (!p->whole_known) {
        uint8_t *all = yk_xalloc((size_t)p->model.graph->n_nodes + 1);
        memset(all, 1, (size_t)p->model.graph->n_nodes);
        yk_err err = cost_memory_parts(&p->model, all, &p->whole_fixed, &p->whole_each, why);
        free(all);
        if (err)
            return err;
        p->whole_known = true;
    }
    c->fixed = yk_xalloc(2 * sizeof *c->fixed);
    c->each = yk_xalloc(2 * sizeof *c->each);
    c->fixed[0] = p->whole_fixed;
    c->each[0] = p->whole_each;
    return candidate_memory(&p->model, c, 1, why);
}

/* Every single device, for every source that may be; the reasons why one cannot go to `reasons`. */
static void add_singles(struct size_pool *p, int32_t source, struct yk_buf *reasons)
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
        struct candidate *c = pool_add(p, &line);
        if (single_memory(p, c, &why)) {
            yk_buf_printf(reasons, "; %s", why.text);
            candidate_fini(c);
            p->n--;
        }
    }
    free(stage_of);
}

static yk_err search_size(struct pool *pool, struct size_pool *p, const struct solve_request *req,
    const struct solve_hints *hints, struct yk_buf *reasons, struct yk_diag *why)
{
    const struct view *v = p->model.view;
    for (int32_t source = 0; source < v->n_agents; source++) {
        struct solve_chain chains[CHAINS];
        int32_t n = 0;
        if ((req->source >= 0 && source != req->source) || (req->source < 0 && !v->agents[source].usable))
            continue;
        add_singles(p, source, reasons);
        for (int32_t i = 0; i < p->n; i++)
            pool->least_ms = YK_MIN(pool->least_ms, p->at[i].cost_ms);
        yk_err err = YK_OK;
        if (req->training) {
            if ((err = add_splits(pool, p, source, why)))
                return err;
            continue;
        }
        for (int32_t i = 0; hints && i < hints->n && !err; i++)
            if (hints->chains[i].source == source && hints->microbatch[i] == p->model.microbatch &&
                hints->chains[i].n_stages > 1) {
                err = add_chain(p, &hints->chains[i], why);
                pool->least_ms = err ? pool->least_ms : YK_MIN(pool->least_ms, p->at[p->n - 1].cost_ms);
            }
        if (err)
            return err;
        if (hints && (!hints->search || v->n_agents > SOLVE_DP_AGENTS))
            continue;
        double bound;
        err = solve_dp_chains(&p->model, source, pool->least_ms, &bound, chains, CHAINS, &n, why);
        if (!err)
            pool->bound_ms = YK_MIN(pool->bound_ms, bound);
        for (int32_t i = 0; i < n && !err; i++) {
            if (chains[i].n_stages > 1)
                err = add_chain(p, &chains[i], why);
            pool->least_ms = YK_MIN(pool->least_ms, chains[i].cost_ms);
        }
        if (err)
            return err;
    }
    return YK_OK;
}

/* Several pipelines of one source, if they are through earlier than any of them alone. */
static yk_err add_replicas(struct pool *pool, struct size_pool *p, int32_t source, struct yk_diag *why)
{
    const struct cost_line **lines = yk_xalloc(((size_t)p->n + 1) * sizeof *lines);
    int32_t chosen[SOLVE_REPLICAS], n_lines = 0;
    int64_t counts[SOLVE_REPLICAS];
    double cost;
    yk_err err = YK_OK;
    for (int32_t i = 0; i < p->n; i++)
        if (p->at[i].n_lines == 1 && p->at[i].lines[0].source == source)
            lines[n_lines++] = &p->at[i].lines[0];
    int32_t n = solve_replicas_choose(&p->model, lines, n_lines, chosen, counts, &cost);
    if (n > 1) {
        struct candidate c = {.microbatch = p->model.microbatch, .count = p->model.count, .cost_ms = cost};
        c.lines = yk_xalloc((size_t)n * sizeof *c.lines);
        c.shares = yk_xalloc((size_t)n * sizeof *c.shares);
        for (int32_t i = 0; i < n && !err; i++) {
            const struct cost_line *l = lines[chosen[i]];
            int32_t *agents = yk_xalloc(((size_t)l->n_stages + 1) * sizeof *agents);
            for (int32_t s = 0; s < l->n_stages; s++)
                agents[s] = l->stages[s].agent;
            err = cost_price(&p->model, source, agents, l->n_stages, l->stage_of, NULL, 0, &c.lines[i], why);
            c.n_lines += !err;
            c.shares[i] = (double)counts[i] / (double)c.count;
            free(agents);
        }
        if (err) {
            candidate_fini(&c);
        } else {
            p->at = yk_xrealloc(p->at, ((size_t)p->n + 1) * sizeof *p->at);
            p->at[p->n++] = c;
            pool->least_ms = YK_MIN(pool->least_ms, cost);
        }
    }
    free(lines);
    return err;
}

/* With as many microbatches inside as one takes bottlenecks to come through, none waits for another to leave. */
static int32_t most_depth(const struct candidate *c)
{
    double most = MAX_DEPTH;
    for (int32_t i = 0; i < c->n_lines; i++)
        if (c->lines[i].bottleneck_ms > 0)
            most = YK_MAX(most, ceil(c->lines[i].first_ms / c->lines[i].bottleneck_ms) + 1);
    return (int32_t)YK_MIN(most, (double)DEEPEST);
}

static int by_cost(const void *a, const void *b)
{
    const struct candidate *x = *(const struct candidate *const *)a, *y = *(const struct candidate *const *)b;
    return x->cost_ms < y->cost_ms ? -1 : x->cost_ms > y->cost_ms;
}

static int by_step(const void *a, const void *b)
{
    const struct candidate *x = *(const struct candidate *const *)a, *y = *(const struct candidate *const *)b;
    if (fabs(x->step_ms - y->step_ms) > 1e-9 * x->step_ms)
        return x->step_ms < y->step_ms ? -1 : 1;
    int32_t n = x->lines[0].n_stages - y->lines[0].n_stages; /* of equals the simpler */
    return n ? n : x->cost_ms < y->cost_ms ? -1 : x->cost_ms > y->cost_ms;
}

/* ---- the plan ---- */

static char *copy_or_null(const char *s)
{
    return s ? yk_xstrdup(s) : NULL;
}

static void put_stages(const struct cost_model *m, const struct candidate *c, struct plan *p)
{
    int32_t n = m->graph->n_nodes, memory_at = 0, n_cuts = 0;
    p->n_pipelines = c->n_lines;
    p->pipelines = yk_xalloc(((size_t)c->n_lines + 1) * sizeof *p->pipelines);
    for (int32_t i = 0; i < c->n_lines; i++)
        n_cuts += c->lines[i].n_edges;
    p->cuts = yk_xalloc(((size_t)n_cuts + 1) * sizeof *p->cuts);
    for (int32_t i = 0; i < c->n_lines; i++) {
        const struct cost_line *l = &c->lines[i];
        struct plan_pipeline *line = &p->pipelines[i];
        *line = (struct plan_pipeline){.share = c->shares[i], .depth = c->depth, .n_stages = l->n_stages};
        line->stages = yk_xalloc(((size_t)l->n_stages + 1) * sizeof *line->stages);
        for (int32_t s = 0; s < l->n_stages; s++, memory_at++) {
            struct plan_stage *st = &line->stages[s];
            st->agent = yk_xstrdup(m->view->agents[l->stages[s].agent].name);
            st->predicted_ms = l->stages[s].ms;
            st->memory_bytes = c->memory[memory_at];
            st->nodes = yk_xalloc(((size_t)n + 1) * sizeof *st->nodes);
            for (int32_t k = 0; k < n; k++) {
                if (l->stage_of[k] != s)
                    continue;
                if (st->n_nodes && st->nodes[st->n_nodes - 1].last == k - 1)
                    st->nodes[st->n_nodes - 1].last = k;
                else
                    st->nodes[st->n_nodes++] = (struct cut_range){k, k};
            }
        }
        for (int32_t e = 0; e < l->n_edges; e++) {
            const struct cost_edge *edge = &l->edges[e];
            if (edge->resource < 0 || edge->from < -1)
                continue;
            p->cuts[p->n_cuts++] = (struct plan_cut){.pipeline = i,
                .from = edge->from,
                .to = edge->to,
                .codec = edge->codec,
                .bytes = edge->bytes,
                .predicted_ms = edge->busy_ms + edge->latency_ms};
        }
    }
}

static struct plan *make_plan(const struct solve_request *req, const struct cost_model *m,
    const struct candidate *chosen, const struct candidate *single, const struct candidate *const *others,
    int32_t n_others, const char *solver)
{
    struct plan *p = yk_xalloc(sizeof *p);
    const struct view *v = m->view;
    p->model = copy_or_null(req->model ? req->model : "");
    p->graph_use = yk_xstrdup(req->training ? "train" : "infer");
    yk_hex(m->graph->hash, sizeof m->graph->hash, p->graph_hash);
    bool fixed = m->graph->n_nodes > 0;
    const char *const *given = req->forced && req->forced->forms ? (const char *const *)req->forced->forms : req->forms;
    for (int32_t i = 0; i < m->graph->n_nodes; i++)
        fixed = fixed && (m->form[i] >= 0 || (given && given[i] && given[i][0]));
    if (fixed) {
        p->n_forms = m->graph->n_nodes;
        p->forms = yk_xalloc(((size_t)p->n_forms + 1) * sizeof *p->forms);
        for (int32_t i = 0; i < p->n_forms; i++)
            p->forms[i] = yk_xstrdup(m->form[i] >= 0 ? v->forms[m->form[i]] : given[i]);
    }
    p->microbatch = chosen->microbatch;
    put_stages(m, chosen, p);
    p->job = copy_or_null(req->job);
    p->objective = yk_xstrdup(objective_names[req->objective]);
    p->source = yk_xstrdup(v->agents[chosen->lines[0].source].name);
    p->solver = yk_xstrdup(solver);
    p->batch = req->batch;
    p->step_ms = chosen->step_ms;
    p->cost_ms = p->bound_ms = chosen->cost_ms;
    p->bottleneck = yk_xstrdup(chosen->bottleneck);
    if (single) {
        p->best_single = yk_xstrdup(v->agents[single->lines[0].stages[0].agent].name);
        p->best_single_ms = single->step_ms;
    }
    p->alternatives = yk_xalloc(((size_t)n_others + 1) * sizeof *p->alternatives);
    for (; p->n_alternatives < n_others; p->n_alternatives++) {
        const struct candidate *o = others[p->n_alternatives];
        p->alternatives[p->n_alternatives] = (struct plan_alternative){
            .text = candidate_text(m, o), .step_ms = o->step_ms, .bottleneck = yk_xstrdup(o->bottleneck)};
    }
    p->explanation = candidate_explain(m, chosen, single, others, n_others, solver);
    return p;
}

/* ---- a plan that the user gave ---- */

static int32_t find_agent(const struct view *v, const char *name)
{
    for (int32_t i = 0; i < v->n_agents; i++)
        if (strcmp(v->agents[i].name, name) == 0 || strcmp(v->agents[i].id, name) == 0)
            return i;
    return -1;
}

/* What a pipeline takes of each resource for that many microbatches. */
static void add_load(const struct cost_line *l, double count, double *load)
{
    for (int32_t s = 0; s < l->n_stages; s++)
        load[l->stages[s].agent] += count * (l->stages[s].ms + l->stages[s].message_ms);
    for (int32_t e = 0; e < l->n_edges; e++)
        if (l->edges[e].resource >= 0)
            load[l->edges[e].resource] += count * l->edges[e].busy_ms;
}

/* A pin holds for a plan that was given too. */
static yk_err check_pins(const struct cost_model *m, const struct cost_line *l, int32_t line, struct yk_diag *why)
{
    const struct view_agent *agents = m->view->agents;
    int32_t first = l->stages[0].agent, last = l->stages[l->n_stages - 1].agent;
    bool bad_first = m->req->pin_first && first != l->source, bad_last = m->req->pin_last && last != l->source;
    if (!bad_first && !bad_last)
        return YK_OK;
    return yk_fail(why, YK_INVAL,
        "pipelines[%d].stages[%d] is on %s, --pin=%s wants it on the source, which is %s: leave out --pin, or plan "
        "again with it",
        line, bad_first ? 0 : l->n_stages - 1, agents[bad_first ? first : last].name, bad_first ? "first" : "last",
        agents[l->source].name);
}

static yk_err price_forced(
    struct size_pool *pool, const struct solve_request *req, int32_t source, struct candidate *c, struct yk_diag *why)
{
    const struct plan *f = req->forced;
    const struct cost_model *m = &pool->model;
    const struct view *v = m->view;
    int32_t *stage_of = yk_xalloc(((size_t)m->graph->n_nodes + 1) * sizeof *stage_of);
    *c = (struct candidate){.microbatch = m->microbatch, .count = m->count, .given = f};
    c->lines = yk_xalloc(((size_t)f->n_pipelines + 1) * sizeof *c->lines);
    c->shares = yk_xalloc(((size_t)f->n_pipelines + 1) * sizeof *c->shares);
    double *load = yk_xalloc(((size_t)m->n_resources + 1) * sizeof *load);
    yk_err err = YK_OK;
    for (int32_t i = 0; i < f->n_pipelines && !err; i++) {
        const struct plan_pipeline *line = &f->pipelines[i];
        int32_t *agents = yk_xalloc(((size_t)line->n_stages + 1) * sizeof *agents);
        for (int32_t s = 0; s < line->n_stages && !err; s++) {
            agents[s] = find_agent(v, line->stages[s].agent);
            if (agents[s] < 0)
                err = yk_fail(
                    why, YK_INFEASIBLE, "the plan names agent '%s', which is not in the fleet", line->stages[s].agent);
            else if (!v->agents[agents[s]].usable)
                err = yk_fail(
                    why, YK_INFEASIBLE, "agent %s: %s", v->agents[agents[s]].name, v->agents[agents[s]].why_not);
        }
        if (!err)
            err = plan_stage_of(f, i, m->graph->n_nodes, stage_of, why);
        if (!err)
            err = cost_price(m, source, agents, line->n_stages, stage_of, f, i, &c->lines[i], why);
        if (!err) {
            c->n_lines++;
            err = check_pins(m, &c->lines[i], i, why);
        }
        if (!err) {
            c->shares[i] = line->share;
            double count = YK_MAX(1.0, ceil(line->share * (double)m->count - 1e-6));
            double cost = c->lines[i].first_ms + (count - 1) * c->lines[i].bottleneck_ms;
            c->cost_ms = YK_MAX(c->cost_ms, cost);
            add_load(&c->lines[i], count, load);
        }
        free(agents);
    }
    for (int32_t r = 0; r < m->n_resources && c->n_lines > 1; r++)
        c->cost_ms = YK_MAX(c->cost_ms, load[r]);
    free(load);
    free(stage_of);
    return err;
}

static yk_err check_codecs(const struct solve_request *req, struct yk_diag *why)
{
    for (int32_t i = 0; i < req->forced->n_cuts; i++) {
        enum plan_codec codec = req->forced->cuts[i].codec;
        if (codec != CODEC_FP32 && !(req->codec_allowed && req->codec_allowed[codec]))
            return yk_fail(why, YK_INVAL,
                "the plan uses codec %s, which loses bits and was not allowed: add --codec=%s", plan_codec_name(codec),
                plan_codec_name(codec));
    }
    return YK_OK;
}

static yk_err check_forms(const struct solve_request *req, const struct view *v, struct yk_diag *why)
{
    const struct plan *f = req->forced;
    bool profiled = false;
    for (int32_t a = 0; a < v->n_agents; a++)
        profiled = profiled || v->agents[a].n_times > 0;
    for (int32_t i = 0; profiled && f->forms && i < f->n_forms; i++) {
        bool known = !f->forms[i][0];
        for (int32_t k = 0; k < v->n_forms && !known; k++)
            known = strcmp(v->forms[k], f->forms[i]) == 0;
        if (!known)
            return yk_fail(why, YK_INFEASIBLE, "no agent has form '%s' of node %d", f->forms[i], i);
    }
    return YK_OK;
}

/* Without a source that is asked for: the agent from which the plan costs least. */
static yk_err price_forced_anywhere(
    struct size_pool *pool, const struct solve_request *req, int32_t *source, struct candidate *c, struct yk_diag *why)
{
    const struct view *v = pool->model.view;
    int32_t first = find_agent(v, req->forced->pipelines[0].stages[0].agent);
    *source = req->source >= 0 ? req->source : YK_MAX(first, 0);
    yk_err err = price_forced(pool, req, *source, c, why);
    for (int32_t a = 0; req->source < 0 && a < v->n_agents; a++) {
        struct candidate other;
        if (a == first || !v->agents[a].usable)
            continue;
        yk_err bad = price_forced(pool, req, a, &other, NULL);
        if (!bad && (err || other.cost_ms < c->cost_ms)) {
            candidate_fini(c);
            *c = other;
            *source = a;
            err = YK_OK;
        } else {
            candidate_fini(&other);
        }
    }
    return err;
}

static yk_err solve_forced(
    const struct solve_request *req, const struct view *v, struct plan **out, struct yk_diag *why)
{
    struct pool pool = {.n = 1};
    struct size_pool *p = &pool.sizes[0];
    struct candidate *single = NULL, *chosen = NULL;
    struct yk_buf reasons = {0};
    int32_t *form = yk_xalloc(((size_t)req->graph->n_nodes + 1) * sizeof *form);
    int32_t source = 0;
    yk_err err = plan_check(req->forced, req->graph, NULL, why); /* before anything reads it */
    if (!err)
        err = check_codecs(req, why);
    if (!err)
        err = check_forms(req, v, why);
    if (err)
        goto out;
    cost_choose_forms(req, v, form);
    if ((err = cost_init(&p->model, req, v, form, req->forced->microbatch, why)))
        goto out;
    p->ready = true;
    if ((err = plan_check(req->forced, req->graph, &p->model.shapes, why)))
        goto out;
    struct candidate forced;
    err = price_forced_anywhere(p, req, &source, &forced, why);
    add_singles(p, source, &reasons);
    p->at = yk_xrealloc(p->at, ((size_t)p->n + 1) * sizeof *p->at);
    chosen = &p->at[p->n++];
    *chosen = forced;
    if (err)
        goto out;
    if ((err = candidate_score(&p->model, chosen, MAX_DEPTH, req->forced->pipelines[0].depth, why)))
        goto out;
    for (int32_t i = 0; i + 1 < p->n; i++) {
        struct candidate *c = &p->at[i];
        if (candidate_score(&p->model, c, MAX_DEPTH, 0, NULL) == YK_OK && (!single || c->step_ms < single->step_ms))
            single = c;
    }
    *out = make_plan(req, &p->model, chosen, single, NULL, 0, "given");
    for (int32_t i = 0; i < (*out)->n_pipelines; i++) {
        (*out)->pipelines[i].depth = req->forced->pipelines[i].depth;
        (*out)->pipelines[i].order = req->forced->pipelines[i].order;
    }
out:
    yk_buf_free(&reasons);
    free(form);
    pool_fini(&pool);
    return err;
}

/* ---- the search ---- */

#define SCORED 24
#define SHOWN 4

/* Says how far the plan may be from the best, and what was not looked at. */
static void explain_limits(const struct solve_request *req, bool stopped, struct plan *p)
{
    char *text = p->explanation;
    p->explanation =
        yk_xasprintf("%s\nNo plan costs less than %.4g ms by the closed form: this one is at most %.2g %% above it.",
            text, p->bound_ms, p->bound_ms > 0 ? 100 * (p->cost_ms / p->bound_ms - 1) : 0);
    free(text);
    text = p->explanation;
    if (req->graph->n_nodes > SOLVE_DP_FINE) {
        p->explanation =
            yk_xasprintf("%s\nThe graph has %d nodes, over %d: besides single devices only coarse cuts were looked at.",
                text, req->graph->n_nodes, SOLVE_DP_FINE);
        free(text);
        text = p->explanation;
    }
    if (stopped) {
        p->explanation = yk_xasprintf(
            "%s\nThe search was stopped after %g ms: this is the best that it had found.", text, req->budget_ms);
        free(text);
    }
}

/* The deadline is of the whole job: of its samples where their number is known, else of one batch. */
static yk_err check_deadline(const struct solve_request *req, const struct candidate *c, struct yk_diag *why)
{
    double batches = req->samples > 0 ? (double)req->samples / (double)YK_MAX(req->batch, (int64_t)1) : 1;
    double ms = c->step_ms * YK_MAX(batches, 1.0);
    if (req->deadline_ms <= 0 || ms <= req->deadline_ms)
        return YK_OK;
    if (batches > 1)
        return yk_fail(why, YK_INFEASIBLE,
            "the deadline of the job is %g ms; the best plan needs %.4g ms for %lld samples, bottleneck %s",
            req->deadline_ms, ms, (long long)req->samples, c->bottleneck);
    return yk_fail(why, YK_INFEASIBLE, "the deadline is %g ms; the best plan needs %.4g ms, bottleneck %s",
        req->deadline_ms, ms, c->bottleneck);
}

yk_err solve_search(const struct solve_request *req, const struct view *v, const struct solve_hints *hints,
    struct plan **out, struct yk_diag *why)
{
    struct pool *pool = yk_xalloc(sizeof *pool);
    struct yk_buf reasons = {0};
    int64_t sizes[SOLVE_SIZES];
    int32_t n_sizes = solve_sizes(req, sizes), n = 0, n_scored = 0;
    int32_t *form = yk_xalloc(((size_t)req->graph->n_nodes + 1) * sizeof *form);
    struct candidate **all = NULL, *single = NULL;
    yk_err err = YK_OK;
    bool stopped = false;
    double least_step = INFINITY;
    pool->least_ms = pool->bound_ms = INFINITY;
    pool->stop_ms = req->budget_ms > 0 ? cost_now_ms() + req->budget_ms : 0;
    cost_choose_forms(req, v, form);
    for (int32_t i = 0; i < n_sizes && !err; i++) {
        struct size_pool *p = &pool->sizes[pool->n++];
        if ((err = cost_init(&p->model, req, v, form, sizes[i], why)))
            break;
        p->ready = true;
        p->model.stop_ms = pool->stop_ms;
        /* Nothing needs less memory than the smallest size: its reasons are the ones to tell. */
        size_t told = reasons.len;
        err = search_size(pool, p, req, hints, &reasons, why);
        reasons.len = i ? told : reasons.len;
        n += p->n;
        if (n > 0 && cost_out_of_time(&p->model)) {
            stopped = true;
            break;
        }
    }
    for (int32_t i = 0; i < pool->n && !err && req->replicas && !req->training && !req->pin_first && !req->pin_last;
         i++) {
        struct size_pool *p = &pool->sizes[i];
        for (int32_t source = 0; source < v->n_agents && !err && p->ready; source++)
            if (req->source < 0 || source == req->source) {
                int32_t before = p->n;
                err = add_replicas(pool, p, source, why);
                n += p->n - before;
            }
        if (p->ready)
            pool->bound_ms = YK_MIN(pool->bound_ms, solve_replicas_bound(&p->model));
    }
    if (err)
        goto out;
    if (n == 0) {
        yk_buf_add(&reasons, "", 1);
        err = yk_fail(why, YK_INFEASIBLE, "no plan for %s: %s", req->model ? req->model : "the model",
            reasons.len > 2 && !reasons.failed ? (char *)reasons.data + 2 : "the fleet has no agents");
        goto out;
    }
    all = yk_xalloc((size_t)n * sizeof *all);
    for (int32_t i = 0, k = 0; i < pool->n; i++)
        for (int32_t c = 0; c < pool->sizes[i].n; c++)
            all[k++] = &pool->sizes[i].at[c];
    qsort(all, (size_t)n, sizeof *all, by_cost);
    /* The best few of the closed form, and every single device, by the event model. */
    for (int32_t i = 0; i < n; i++) {
        struct candidate *c = all[i];
        if (n_scored >= SCORED && !is_single(c))
            continue;
        /* Of the last microbatch's time at most one is counted too much. */
        if (n_scored > SHOWN && !is_single(c) && !req->training &&
            c->cost_ms * (1 - 1 / (double)YK_MAX(c->count, (int64_t)1)) > least_step)
            continue;
        if (single && cost_out_of_time(&pool->sizes[0].model)) {
            stopped = true;
            break;
        }
        for (int32_t k = 0; k < pool->n; k++)
            if (c >= pool->sizes[k].at && c < pool->sizes[k].at + pool->sizes[k].n &&
                candidate_score(&pool->sizes[k].model, c, most_depth(c), 0, NULL) == YK_OK) {
                struct candidate *keep = all[n_scored];
                all[n_scored++] = c;
                all[i] = keep;
                least_step = YK_MIN(least_step, c->step_ms);
                if (is_single(c) && (!single || by_step(&c, &single) < 0))
                    single = c;
            }
    }
    if (n_scored == 0) {
        err = yk_fail(
            why, YK_INFEASIBLE, "no plan for %s fits the fleet's memory", req->model ? req->model : "the model");
        goto out;
    }
    double least_cost = all[0]->cost_ms;
    qsort(all, (size_t)n_scored, sizeof *all, by_step);
    struct candidate *chosen = all[0];
    if ((err = check_deadline(req, chosen, why)))
        goto out;
    const struct cost_model *m = NULL;
    for (int32_t k = 0; k < pool->n; k++)
        if (chosen >= pool->sizes[k].at && chosen < pool->sizes[k].at + pool->sizes[k].n)
            m = &pool->sizes[k].model;
    *out = make_plan(req, m, chosen, single, (const struct candidate *const *)all + 1, YK_MIN(n_scored - 1, SHOWN),
        hints ? hints->solver : "dp");
    /* Of the closed form; the event model may prefer one that costs a little more. */
    (*out)->bound_ms =
        YK_MIN(hints ? YK_MIN(hints->bound_ms, pool->bound_ms) : pool->bound_ms, YK_MIN(least_cost, chosen->cost_ms));
    (*out)->gap = chosen->cost_ms > 0 ? (chosen->cost_ms - (*out)->bound_ms) / chosen->cost_ms : 0;
    explain_limits(req, stopped, *out);
out:
    free(all);
    free(form);
    yk_buf_free(&reasons);
    pool_fini(pool);
    free(pool);
    return err;
}

static yk_err solve_exact(const struct solve_request *req, const struct view *v, struct plan **out, struct yk_diag *why)
{
    return solve_search(req, v, NULL, out, why);
}

static const struct solver solver_dp = {"dp", solve_exact}, solver_kinds = {"kinds", solve_large};

const struct solver *const solvers[] = {&solver_dp, &solver_kinds, NULL};

const struct solver *solver_find(const char *name)
{
    for (int i = 0; solvers[i]; i++)
        if (strcmp(solvers[i]->name, name) == 0)
            return solvers[i];
    return NULL;
}

yk_err solve_plan(const struct solve_request *req, const struct view *view, struct plan **out, struct yk_diag *why)
{
    double start = cost_now_ms();
    if (req->objective == SOLVE_CLOUD_COST)
        return yk_fail(why, YK_UNSUPPORTED, "objective cloud-cost: the solver has latency and throughput");
    if (view->n_agents == 0)
        return yk_fail(why, YK_INFEASIBLE, "the fleet has no agents");
    if (req->source >= view->n_agents)
        return yk_fail(why, YK_INVAL, "the source is not an agent of the fleet");
    struct solve_request completed = *req;
    struct plan *forced = NULL;
    if (req->forced && req->training) {
        completed.forced = forced = plan_copy(req->forced);
        solve_train_complete(req->training, req->graph->n_nodes, forced);
        req = &completed;
    }
    yk_err err = req->forced                        ? solve_forced(req, view, out, why)
                 : view->n_agents > SOLVE_DP_AGENTS ? solve_large(req, view, out, why)
                                                    : solvers[0]->solve(req, view, out, why);
    plan_free(forced);
    if (!err)
        (*out)->solver_ms = cost_now_ms() - start;
    if (!err && req->training)
        (*out)->forward_nodes = req->training->first_loss;
    return err;
}
