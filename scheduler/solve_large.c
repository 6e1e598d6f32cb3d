#include "scheduler/solve_large.h"

#include "scheduler/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FAST 6  /* agents that are taken for what they cost alone */
#define ROOMY 3 /* and for their memory */

/* What an agent costs with the whole model, but for the way of the inputs: enough to rank agents by. */
static double alone_ms(const struct cost_model *m, int32_t source, int32_t agent)
{
    int32_t n = m->graph->n_nodes;
    double ms = 0, latency, way = 0;
    for (int32_t i = 0; i < n; i++)
        ms += m->node_ms[(size_t)agent * (size_t)n + (size_t)i];
    if (isnan(ms))
        return INFINITY;
    for (int32_t back = 0; back < 2 && source >= 0 && source != agent; back++) {
        int32_t link = back ? cost_link(m, agent, source) : cost_link(m, source, agent);
        int32_t count = back ? m->graph->n_outputs : m->graph->n_inputs;
        int64_t bytes = 0;
        for (int32_t i = 0; i < count; i++)
            bytes += cost_value_bytes(m, back ? m->graph->outputs[i] : m->graph->inputs[i], cost_codec(m));
        if (link < 0)
            return INFINITY;
        double busy = cost_transfer_ms(m, link, bytes, &latency);
        way = YK_MAX(way, busy);
        ms += (busy + latency) / (double)YK_MAX(m->count, (int64_t)1);
    }
    return YK_MAX(ms, way);
}

static void choose(const struct cost_model *m, bool *chosen)
{
    const struct view *v = m->view;
    double *cost = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *cost);
    if (m->req->source >= 0)
        chosen[m->req->source] = true;
    for (int32_t a = 0; a < v->n_agents; a++)
        cost[a] = alone_ms(m, m->req->source, a);
    for (int32_t k = 0; k < FAST + ROOMY; k++) {
        int32_t best = -1;
        for (int32_t a = 0; a < v->n_agents; a++) {
            if (chosen[a] || !v->agents[a].usable || v->agents[a].memory_bytes <= 0)
                continue;
            bool roomier = best >= 0 && v->agents[a].memory_bytes > v->agents[best].memory_bytes;
            if (best < 0 || (k < FAST ? cost[a] < cost[best] : roomier))
                best = a;
        }
        if (best >= 0)
            chosen[best] = true;
    }
    for (int32_t a = 0, n = 0; a < v->n_agents; a++) /* a fleet without any that can be used: its reasons are told */
        n += chosen[a] = chosen[a] || (n == 0 && a + 1 == v->n_agents);
    free(cost);
}

/* No pipeline of any agents costs less: the sum is at least every node on its best agent, the largest load at least
 * the work over the pace of all. */
static double bound_of(const struct cost_model *m)
{
    const struct view *v = m->view;
    int32_t n = m->graph->n_nodes;
    double *pace = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *pace), all = 0, sum = 0, work = 0;
    for (int32_t a = 0; a < v->n_agents; a++) {
        double ms = 0;
        for (int32_t i = 0; i < n; i++) {
            double node = m->node_ms[(size_t)a * (size_t)n + (size_t)i];
            ms += isnan(node) ? 0 : node;
        }
        pace[a] = v->agents[a].usable ? 1 / YK_MAX(ms, 1e-9) : 0;
        all += pace[a];
    }
    for (int32_t i = 0; i < n; i++) {
        double least = INFINITY, part = INFINITY;
        for (int32_t a = 0; a < v->n_agents; a++) {
            double node = m->node_ms[(size_t)a * (size_t)n + (size_t)i];
            if (isnan(node) || pace[a] <= 0)
                continue;
            least = YK_MIN(least, node);
            part = YK_MIN(part, node * pace[a]);
        }
        sum += least;
        work += part;
    }
    free(pace);
    return (sum + (double)(m->count - 1) * (all > 0 ? work / all : 0)) * (1 - 1e-9);
}

static void make_view(const struct view *v, const bool *chosen, struct view *sub, int32_t *place)
{
    *sub = (struct view){.forms = v->forms, .n_forms = v->n_forms};
    sub->agents = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *sub->agents);
    sub->links = yk_xalloc(((size_t)v->n_links + 1) * sizeof *sub->links);
    for (int32_t a = 0; a < v->n_agents; a++) {
        place[a] = chosen[a] ? sub->n_agents : -2;
        if (chosen[a])
            sub->agents[sub->n_agents++] = v->agents[a];
    }
    for (int32_t i = 0; i < v->n_links; i++) {
        struct view_link l = v->links[i];
        if (l.from < -1 || l.to < -1 || l.from >= v->n_agents || l.to >= v->n_agents)
            continue;
        l.from = l.from < 0 ? -1 : place[l.from];
        l.to = l.to < 0 ? -1 : place[l.to];
        if (l.from > -2 && l.to > -2)
            sub->links[sub->n_links++] = l;
    }
}

yk_err solve_large(const struct solver *exact, const struct solve_request *req, const struct view *view,
    struct plan **out, struct yk_diag *why)
{
    int32_t *form = yk_xalloc(((size_t)req->graph->n_nodes + 1) * sizeof *form);
    bool *chosen = yk_xalloc((size_t)view->n_agents + 1);
    int32_t *place = yk_xalloc(((size_t)view->n_agents + 1) * sizeof *place);
    struct view sub = {0};
    struct solve_request q = *req;
    const char **forms = yk_xalloc(((size_t)req->graph->n_nodes + 1) * sizeof *forms);
    double bound = INFINITY;
    cost_choose_forms(req, view, form);
    int64_t sizes[SOLVE_SIZES];
    int32_t n_sizes = solve_sizes(req, sizes);
    yk_err err = YK_OK;
    for (int32_t i = 0; i < n_sizes; i++) {
        struct cost_model m;
        if ((err = cost_init(&m, req, view, form, sizes[i], why)))
            goto out;
        bound = YK_MIN(bound, bound_of(&m));
        if (i + 1 == n_sizes)
            choose(&m, chosen);
        cost_fini(&m);
    }
    make_view(view, chosen, &sub, place);
    if (q.source >= 0)
        q.source = place[q.source];
    /* The forms of the whole fleet stay: other plans of it must give the same bits. */
    for (int32_t i = 0; i < req->graph->n_nodes; i++)
        forms[i] = form[i] >= 0 ? view->forms[form[i]] : req->forms ? req->forms[i] : NULL;
    q.forms = forms;
    err = exact->solve(&q, &sub, out, why);
    if (err)
        goto out;
    struct plan *p = *out;
    char *text = yk_xasprintf(
        "%s\nOf %d agents the %d that promise most were looked at.", p->explanation, view->n_agents, sub.n_agents);
    free(p->explanation);
    p->explanation = text;
    free(p->solver);
    p->solver = yk_xstrdup("dp-subset");
    p->bound_ms = YK_MIN(p->bound_ms, bound);
    p->gap = p->cost_ms > 0 ? (p->cost_ms - p->bound_ms) / p->cost_ms : 0;
out:
    free(sub.agents);
    free(sub.links);
    free(forms);
    free(place);
    free(chosen);
    free(form);
    return err;
}
