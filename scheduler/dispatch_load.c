/* Loading: what each agent of a plan is told to hold, and which edges it has. */
#include "scheduler/sched_priv.h"
#include "scheduler/shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loading { /* what the load messages of one pipeline are made from */
    struct sched *sched;
    struct generation *g;
    const struct plan_pipeline *line;
    struct fleet_agent **stage_agent;
    struct fleet_agent *source;
    struct cut_edges edges;
    uint8_t (*tickets)[16];
    int64_t **values, **also; /* by edge */
    int32_t *stage_of;
    int32_t *pair;      /* of a training: by stage, the stage with the other half of its work */
    int32_t first_sums; /* edges from here on carry sums of gradients behind each step */
};

static struct fleet_agent *end_of(const struct loading *l, int32_t stage)
{
    return stage < 0 ? l->source : l->stage_agent[stage];
}

static void fill_edge(
    const struct loading *l, int32_t i, const struct fleet_agent *self, struct wire_edge *out, const char **urls)
{
    const struct cut_edge *e = &l->edges.at[i];
    struct fleet_agent *from = end_of(l, e->from), *to = end_of(l, e->to);
    const struct fleet_agent *peer = self == from ? to : from;
    *out = (struct wire_edge){.id = i,
        .from = e->from,
        .to = e->to,
        .also = {l->also[i], (size_t)e->n_also},
        .values = {l->values[i], (size_t)e->n_values},
        .codec = plan_codec_name(
            i >= l->first_sums ? CODEC_FP32 : plan_codec_of(l->g->plan, l->g->pipeline, e->from, e->to)),
        .peer = peer->id,
        .ticket = {l->tickets[i], 16},
        .credits = i >= l->first_sums ? 1 : l->line->depth,
        .sums = i >= l->first_sums};
    /* The sender dials if the receiver can be dialled; else the receiver does. */
    bool receiver_listens = to->n_urls > 0;
    if (from != to && (self == from) == receiver_listens) {
        *urls = fleet_url(peer, self);
        out->urls.at = urls;
        out->urls.n = *urls != NULL;
    }
}

static yk_err send_load(const struct loading *l, struct fleet_agent *a)
{
    const struct graph *graph = l->g->model->graph;
    int32_t n_nodes = graph->n_nodes;
    char job[24];
    int64_t *at = yk_xalloc(((size_t)graph->n_syms + 1) * sizeof *at);
    snprintf(job, sizeof job, "%lld", (long long)l->g->job->id);
    struct wire_size *sizes = yk_xalloc(((size_t)graph->n_syms + 1) * sizeof *sizes);
    struct wire_stage *stages = yk_xalloc(((size_t)l->line->n_stages + 1) * sizeof *stages);
    struct wire_edge *edges = yk_xalloc(((size_t)l->edges.n + 1) * sizeof *edges);
    const char **urls = yk_xalloc(((size_t)l->edges.n + 1) * sizeof *urls);
    graph_sizes(graph, l->g->job->sizes, l->g->plan->microbatch, at);
    for (int32_t i = 0; i < graph->n_syms; i++)
        sizes[i] = (struct wire_size){graph->syms[i], at[i]};
    struct wire_load load = {.term = store_term(l->sched->store),
        .generation = l->g->id,
        .job = job,
        .kind = l->g->job->kind,
        .graph = l->g->model->graph_hash,
        .source = l->source->id,
        .depth = l->line->depth,
        .timeout_ms = job_state_deadline_ms(JOB_LOADING)};
    char *config = l->g->job->training ? training_config_text(&l->g->job->training->config) : NULL;
    if (config)
        jobs_train_load(l->g->job, config, &load.training);
    load.sizes.at = sizes;
    load.sizes.n = (size_t)graph->n_syms;
    load.stages.at = stages;
    for (int32_t s = 0; s < l->line->n_stages; s++) {
        if (l->stage_agent[s] != a)
            continue;
        struct wire_stage *st = &stages[load.stages.n++];
        struct wire_range *ranges = yk_xalloc(((size_t)l->line->stages[s].n_nodes + 1) * sizeof *ranges);
        for (int32_t r = 0; r < l->line->stages[s].n_nodes; r++)
            ranges[r] = (struct wire_range){l->line->stages[s].nodes[r].first, l->line->stages[s].nodes[r].last};
        *st = (struct wire_stage){.index = s, .depth = l->line->depth, .pair = l->pair ? l->pair[s] : s};
        st->nodes.at = ranges;
        st->nodes.n = (size_t)l->line->stages[s].n_nodes;
        if (l->g->plan->forms) {
            st->forms.at = yk_xalloc(((size_t)n_nodes + 1) * sizeof *st->forms.at);
            st->forms.n = (size_t)n_nodes;
            for (int32_t i = 0; i < n_nodes; i++)
                st->forms.at[i] = l->stage_of[i] == s ? l->g->plan->forms[i] : "";
        }
    }
    load.edges.at = edges;
    for (int32_t i = 0; i < l->edges.n; i++)
        if (end_of(l, l->edges.at[i].from) == a || end_of(l, l->edges.at[i].to) == a) {
            fill_edge(l, i, a, &edges[load.edges.n], &urls[load.edges.n]);
            load.edges.n++;
        }
    yk_err err = fleet_send(a, WIRE_TYPE_load, &load);
    for (size_t i = 0; i < load.stages.n; i++) {
        free(stages[i].nodes.at);
        free(stages[i].forms.at);
    }
    free(load.training.kept.at);
    free(config);
    free(at);
    free(sizes);
    free(stages);
    free(edges);
    free(urls);
    return err;
}

static yk_err add_member(struct generation *g, struct fleet_agent *a, int64_t bytes, struct yk_diag *why)
{
    struct generation_agent *m = sched_member(g, a->id);
    if (!m) {
        if (g->n_agents == (int)YK_COUNT(g->agents))
            return yk_fail(why, YK_LIMIT, "a pipeline over more than %zu agents", YK_COUNT(g->agents));
        m = &g->agents[g->n_agents++];
        snprintf(m->id, sizeof m->id, "%s", a->id);
        a->loaded++;
    }
    m->planned_bytes += bytes;
    m->reserved_bytes += bytes;
    a->reserved_bytes += bytes;
    return YK_OK;
}

static yk_err join_edges(struct loading *l, const struct shapes *shapes, struct yk_diag *why)
{
    int32_t n = l->line->n_stages, *agent_of = yk_xalloc(((size_t)n + 1) * sizeof *agent_of);
    for (int32_t s = 0; s < n; s++)
        while (l->stage_agent[agent_of[s]] != l->stage_agent[s])
            agent_of[s]++;
    yk_err err = cut_edges_join(&l->edges, shapes, agent_of, n, why);
    free(agent_of);
    /* What a forward stage keeps for its backward stage lies in their trainer. */
    for (int32_t i = 0; i < l->edges.n && l->pair && !err; i++) {
        struct cut_edge *e = &l->edges.at[i];
        if (e->from < 0 || e->to < 0 || l->pair[e->from] != e->to)
            continue;
        memmove(e, e + 1, (size_t)(--l->edges.n - i) * sizeof *e);
        i--;
    }
    return err;
}

static int64_t *widen(const int32_t *from, int32_t n)
{
    int64_t *to = yk_xalloc(((size_t)n + 1) * sizeof *to);
    for (int32_t k = 0; k < n; k++)
        to[k] = from[k];
    return to;
}

static yk_err find_edges(struct loading *l, struct yk_diag *why)
{
    const struct graph *graph = l->g->model->graph;
    struct shapes shapes;
    int64_t *sizes = yk_xalloc(((size_t)graph->n_syms + 1) * sizeof *sizes);
    graph_sizes(graph, l->g->job->sizes, l->g->plan->microbatch, sizes);
    yk_err err = shapes_infer(graph, sizes, NULL, &shapes, why);
    free(sizes);
    if (err)
        return err;
    err = plan_stage_of(l->g->plan, l->g->pipeline, graph->n_nodes, l->stage_of, why);
    if (!err)
        err = cut_edges_find(graph, &shapes, l->stage_of, l->line->n_stages, &l->edges, why);
    if (!err && l->g->job->training) {
        l->pair = yk_xalloc(((size_t)l->line->n_stages + 1) * sizeof *l->pair);
        err = training_pairs(l->g->job->training, l->line, l->stage_of, l->pair, why);
    }
    if (!err)
        err = join_edges(l, &shapes, why);
    l->first_sums = l->edges.n;
    if (!err && l->pair)
        err = shared_edges(
            graph, &l->g->job->training->info, l->line->n_stages, l->stage_of, l->pair, &l->edges, &l->first_sums, why);
    shapes_fini(&shapes);
    if (err)
        return err;
    l->tickets = yk_xalloc(((size_t)l->edges.n + 1) * sizeof *l->tickets);
    l->values = yk_xalloc(((size_t)l->edges.n + 1) * sizeof *l->values);
    l->also = yk_xalloc(((size_t)l->edges.n + 1) * sizeof *l->also);
    for (int32_t i = 0; i < l->edges.n; i++) {
        const struct cut_edge *e = &l->edges.at[i];
        net_random(l->sched->net, l->tickets[i], sizeof l->tickets[i]);
        l->values[i] = widen(e->values, e->n_values);
        l->also[i] = widen(e->also, e->n_also);
    }
    return YK_OK;
}

static void plan_pace(struct generation_agent *m, const struct plan_stage *st)
{
    if (!(st->slow_factor > 0) || !(st->predicted_ms > 0))
        return;
    m->planned_ms += st->predicted_ms;
    m->profiled_ms += st->predicted_ms / st->slow_factor;
    m->slow_factor = m->planned_ms / m->profiled_ms;
}

static yk_err load_pipeline(struct sched *s, struct generation *g, struct yk_diag *why)
{
    struct loading l = {.sched = s, .g = g, .line = &g->plan->pipelines[g->pipeline]};
    l.source = fleet_find(s->fleet, g->plan->source ? g->plan->source : "");
    l.stage_agent = yk_xalloc(((size_t)l.line->n_stages + 1) * sizeof *l.stage_agent);
    l.stage_of = yk_xalloc(((size_t)g->model->graph->n_nodes + 1) * sizeof *l.stage_of);
    yk_err err = YK_OK;
    if (!l.source || l.source->state != FLEET_ALIVE)
        err = yk_fail(why, YK_CLOSED, "source %s is away", g->plan->source ? g->plan->source : "?");
    if (!err) {
        snprintf(g->source, sizeof g->source, "%s", l.source->id);
        err = add_member(g, l.source, 0, why);
    }
    for (int32_t k = 0; k < l.line->n_stages && !err; k++) {
        l.stage_agent[k] = fleet_find(s->fleet, l.line->stages[k].agent);
        if (!l.stage_agent[k] || l.stage_agent[k]->state != FLEET_ALIVE)
            err = yk_fail(why, YK_CLOSED, "agent %s is away", l.line->stages[k].agent);
        else
            err = add_member(g, l.stage_agent[k], l.line->stages[k].memory_bytes, why);
        if (!err)
            sched_member(g, l.stage_agent[k]->id)->has_stage = true;
        if (!err)
            plan_pace(sched_member(g, l.stage_agent[k]->id), &l.line->stages[k]);
    }
    if (!err)
        err = find_edges(&l, why);
    if (!err && g->job->training)
        jobs_sets_plan(s, g);
    for (int i = 0; i < g->n_agents && !err; i++) {
        struct fleet_agent *a = fleet_find(s->fleet, g->agents[i].id);
        err = send_load(&l, a);
        if (err)
            yk_fail(why, err, "cannot tell agent %s to load: %s", a->name, yk_err_text(err));
    }
    for (int32_t i = 0; l.values && l.also && i < l.edges.n; i++) {
        free(l.values[i]);
        free(l.also[i]);
    }
    free(l.values);
    free(l.also);
    free(l.tickets);
    cut_edges_fini(&l.edges);
    free(l.pair);
    free(l.stage_agent);
    free(l.stage_of);
    return err;
}

yk_err dispatch_load(
    struct sched *s, struct job *j, struct model *m, const struct plan *plan, int64_t plan_id, struct yk_diag *why)
{
    for (int32_t i = 0; i < plan->n_pipelines; i++) {
        struct generation *g = yk_xalloc(sizeof *g);
        g->id = ++s->next_generation;
        g->job = j;
        g->job_id = j->id;
        g->model = m;
        g->plan = plan_copy(plan);
        g->plan_id = plan_id;
        g->pipeline = i;
        g->next = s->generations;
        s->generations = g;
        yk_err err = load_pipeline(s, g, why);
        if (err) {
            dispatch_drop(s, j);
            return err;
        }
    }
    return YK_OK;
}
