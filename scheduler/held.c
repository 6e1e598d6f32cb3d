#include "scheduler/held.h"

#include "common/memplan.h"

#include <stdlib.h>
#include <string.h>

#define MOST_TURNS 4

struct holding {
    const struct graph *g;
    const struct shapes *shapes;
    const struct plan *p;
    int32_t pipeline, source;
    int32_t *agent_of; /* by stage */
    int64_t *by_agent;
};

static int32_t index_of(const struct view *v, const char *agent)
{
    for (int32_t i = 0; agent && i < v->n_agents; i++)
        if (strcmp(v->agents[i].name, agent) == 0 || strcmp(v->agents[i].id, agent) == 0)
            return i;
    return -1;
}

static int64_t body_of(const struct holding *h, const int32_t *values, int32_t n)
{
    int64_t sum = 0;
    for (int32_t k = 0; k < n; k++)
        sum += memplan_align(YK_MAX(shape_bytes(&h->shapes->of[values[k]]), (int64_t)0));
    return sum;
}

static void add(struct holding *h, int32_t agent, int64_t bytes)
{
    if (agent >= 0)
        h->by_agent[agent] += bytes;
}

/* A stage's memory counts a place of its own for whatever it reads; on one agent it reads where that was made. */
static void add_edge(struct holding *h, const struct cut_edge *e)
{
    int64_t depth = h->p->pipelines[h->pipeline].depth, body = body_of(h, e->values, e->n_values);
    int32_t from = e->from < 0 ? h->source : h->agent_of[e->from], to = e->to < 0 ? h->source : h->agent_of[e->to];
    if (from == to) {
        add(h, to, e->to < 0 ? 0 : -depth * body);
        return;
    }
    bool lossy = plan_codec_of(h->p, h->pipeline, e->from, e->to) != CODEC_FP32;
    add(h, to, depth * body * ((e->to < 0) + lossy));
    add(h, from, lossy ? 2 * body : 0);
}

static yk_err add_pipeline(struct holding *h, const struct view *v, struct yk_diag *why)
{
    const struct plan_pipeline *line = &h->p->pipelines[h->pipeline];
    int32_t *stage_of = yk_xalloc(((size_t)h->g->n_nodes + 1) * sizeof *stage_of);
    struct cut_edges edges;
    h->agent_of = yk_xalloc(((size_t)line->n_stages + 1) * sizeof *h->agent_of);
    for (int32_t s = 0; s < line->n_stages; s++) {
        h->agent_of[s] = index_of(v, line->stages[s].agent);
        add(h, h->agent_of[s], line->stages[s].memory_bytes);
    }
    add(h, h->source, line->depth * body_of(h, h->g->inputs, h->g->n_inputs));
    yk_err err = plan_stage_of(h->p, h->pipeline, h->g->n_nodes, stage_of, why);
    if (!err)
        err = cut_edges_find(h->g, h->shapes, stage_of, line->n_stages, &edges, why);
    if (!err) {
        for (int32_t i = 0; i < edges.n; i++)
            add_edge(h, &edges.at[i]);
        cut_edges_fini(&edges);
    }
    free(stage_of);
    free(h->agent_of);
    return err;
}

yk_err held_bytes(const struct graph *g, const int64_t *sizes, const struct plan *p, const struct view *v,
    int64_t *by_agent, struct yk_diag *why)
{
    struct shapes shapes;
    int64_t *at = yk_xalloc(((size_t)g->n_syms + 1) * sizeof *at);
    graph_sizes(g, sizes, p->microbatch, at);
    yk_err err = shapes_infer(g, at, NULL, &shapes, why);
    free(at);
    if (err)
        return err;
    struct holding h = {.g = g, .shapes = &shapes, .p = p, .source = index_of(v, p->source), .by_agent = by_agent};
    memset(by_agent, 0, (size_t)v->n_agents * sizeof *by_agent);
    for (h.pipeline = 0; h.pipeline < p->n_pipelines && !err; h.pipeline++)
        err = add_pipeline(&h, v, why);
    shapes_fini(&shapes);
    return err;
}

/* Takes what lacks from the room of agents with stages. False: there is enough, or nothing to take. */
static bool lower(const struct solve_request *req, struct view *v, const int64_t *room, const struct plan *p)
{
    int64_t *held = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *held);
    bool any = false;
    if (held_bytes(req->graph, req->sizes, p, v, held, NULL) == YK_OK)
        for (int32_t a = 0; a < v->n_agents; a++) {
            int64_t planned = 0;
            for (int32_t i = 0; i < p->n_pipelines; i++)
                for (int32_t k = 0; k < p->pipelines[i].n_stages; k++)
                    if (index_of(v, p->pipelines[i].stages[k].agent) == a)
                        planned += p->pipelines[i].stages[k].memory_bytes;
            if (planned == 0 || room[a] <= 0 || held[a] <= room[a])
                continue;
            v->agents[a].memory_bytes = YK_MAX(planned - (held[a] - room[a]), (int64_t)1);
            any = true;
        }
    free(held);
    return any;
}

yk_err held_plan(const struct solve_request *req, struct view *v, struct plan **out, struct yk_diag *why)
{
    struct plan *first = NULL, *p = NULL;
    yk_err err = solve_plan(req, v, &first, why);
    if (err || req->training || req->forced) {
        if (!err)
            *out = first;
        return err;
    }
    int64_t *room = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *room);
    for (int32_t a = 0; a < v->n_agents; a++)
        room[a] = v->agents[a].memory_bytes;
    p = first;
    for (int turn = 0; turn < MOST_TURNS && p && lower(req, v, room, p); turn++) {
        struct plan *other = NULL;
        if (p != first)
            plan_free(p);
        p = solve_plan(req, v, &other, NULL) == YK_OK ? other : NULL;
    }
    for (int32_t a = 0; a < v->n_agents; a++)
        v->agents[a].memory_bytes = room[a];
    free(room);
    if (p && p != first)
        plan_free(first);
    *out = p ? p : first; /* the agent has the last word */
    return YK_OK;
}
