/* The finished plan of a chosen candidate. */
#include "scheduler/solve_pool.h"

#include <stdlib.h>

static char *copy_or_null(const char *s)
{
    return s ? yk_xstrdup(s) : NULL;
}

static const char *edge_origin(const struct cost_model *m, const struct cost_line *l, const struct cost_edge *e)
{
    int32_t from = e->from < 0 ? l->source : l->stages[e->from].agent,
            to = e->to < 0 ? l->source : l->stages[e->to].agent;
    int32_t link = cost_link(m, from, to);
    return view_origin_name(link < 0 ? VIEW_UNKNOWN : m->view->links[link].origin);
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
            st->origin = view_origin_name(m->origin[l->stages[s].agent]);
            st->memory_bytes = c->memory[memory_at];
            st->load_ms = candidate_load(m, c, i, s, &st->fetch_bytes);
            st->nodes = yk_xalloc(((size_t)n + 1) * sizeof *st->nodes);
            double ms = 0, without = 0;
            for (int32_t k = 0; k < n; k++) {
                if (l->stage_of[k] != s)
                    continue;
                int32_t a = l->stages[s].agent;
                ms += m->node_ms[(size_t)a * (size_t)n + (size_t)k];
                without += m->node_ms[(size_t)a * (size_t)n + (size_t)k] / cost_extra(m, a, k);
                if (st->n_nodes && st->nodes[st->n_nodes - 1].last == k - 1)
                    st->nodes[st->n_nodes - 1].last = k;
                else
                    st->nodes[st->n_nodes++] = (struct cut_range){k, k};
            }
            st->slow_factor = m->view->agents[l->stages[s].agent].slow_factor * (without > 0 ? ms / without : 1);
        }
        for (int32_t e = 0; e < l->n_edges; e++) {
            const struct cost_edge *edge = &l->edges[e];
            if (edge->resource < 0 || edge->from < -1 || edge->to < -1)
                continue;
            p->cuts[p->n_cuts++] = (struct plan_cut){.pipeline = i,
                .from = edge->from,
                .to = edge->to,
                .codec = edge->codec,
                .bytes = edge->bytes,
                .predicted_ms = edge->busy_ms + edge->latency_ms,
                .origin = edge_origin(m, l, edge)};
        }
    }
}

struct plan *solve_pool_plan(const struct solve_request *req, const struct cost_model *m,
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
    p->objective = yk_xstrdup(solve_objective_name(req->objective));
    p->source = yk_xstrdup(v->agents[chosen->lines[0].source].name);
    p->solver = yk_xstrdup(solver);
    p->batch = req->batch;
    p->step_ms = chosen->step_ms;
    p->cloud_ms = chosen->cloud_ms;
    p->cost_ms = p->bound_ms = chosen->cost_ms;
    p->bottleneck = yk_xstrdup(chosen->bottleneck);
    if (single) {
        p->best_single = yk_xstrdup(v->agents[single->lines[0].stages[0].agent].name);
        p->best_single_ms = single->step_ms;
    }
    p->alternatives = yk_xalloc(((size_t)n_others + 1) * sizeof *p->alternatives);
    for (; p->n_alternatives < n_others; p->n_alternatives++) {
        const struct candidate *o = others[p->n_alternatives];
        p->alternatives[p->n_alternatives] =
            (struct plan_alternative){.text = candidate_text(m, o, chosen->lines[0].source),
                .step_ms = o->step_ms,
                .bottleneck = yk_xstrdup(o->bottleneck)};
    }
    p->explanation = candidate_explain(m, chosen, single, others, n_others, solver);
    return p;
}
