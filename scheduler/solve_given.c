/* A plan that the user gave: checked, priced and explained as it is. */
#include "scheduler/solve_pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    load[l->source] += count * l->source_ms;
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
            c->cloud_ms += line->share * (double)m->count * c->lines[i].cloud_ms;
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

yk_err solve_pool_given(const struct solve_request *req, const struct view *v, struct plan **out, struct yk_diag *why)
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
    solve_pool_singles(p, source, &reasons);
    p->at = yk_xrealloc(p->at, ((size_t)p->n + 1) * sizeof *p->at);
    chosen = &p->at[p->n++];
    *chosen = forced;
    if (err)
        goto out;
    if ((err = candidate_score(&p->model, chosen, SOLVE_DEPTH, req->forced->pipelines[0].depth, why)))
        goto out;
    for (int32_t i = 0; i + 1 < p->n; i++) {
        struct candidate *c = &p->at[i];
        if (candidate_score(&p->model, c, SOLVE_DEPTH, 0, NULL) == YK_OK && (!single || c->step_ms < single->step_ms))
            single = c;
    }
    *out = solve_pool_plan(req, &p->model, chosen, single, NULL, 0, "given");
    for (int32_t i = 0; i < (*out)->n_pipelines; i++) {
        (*out)->pipelines[i].depth = req->forced->pipelines[i].depth;
        (*out)->pipelines[i].order = req->forced->pipelines[i].order;
    }
out:
    yk_buf_free(&reasons);
    free(form);
    solve_pool_fini(&pool);
    return err;
}
