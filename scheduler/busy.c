#include "scheduler/busy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void busy_init(struct busy *b, const struct view *v)
{
    b->agent_frac = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *b->agent_frac);
    b->on_agent = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *b->on_agent);
    b->link_frac = yk_xalloc(((size_t)v->n_links + 1) * sizeof *b->link_frac);
    b->on_link = yk_xalloc(((size_t)v->n_links + 1) * sizeof *b->on_link);
}

static int32_t find_agent(const struct view *v, const char *name)
{
    for (int32_t i = 0; name && i < v->n_agents; i++)
        if (strcmp(v->agents[i].name, name) == 0 || strcmp(v->agents[i].id, name) == 0)
            return i;
    return -1;
}

/* The agent of a stage, -1 being the source. */
static int32_t agent_of(const struct view *v, const struct plan *p, int32_t pipeline, int32_t stage)
{
    const struct plan_pipeline *line = &p->pipelines[pipeline];
    if (stage >= line->n_stages)
        return -1;
    return find_agent(v, stage < 0 ? p->source : line->stages[stage].agent);
}

static void add(double *frac, int32_t *on, bool *seen, double part)
{
    if (!(part > 0))
        return;
    *frac += part;
    *on += !*seen;
    *seen = true;
}

void busy_add(struct busy *b, const struct view *v, const struct plan *p, int32_t pipeline)
{
    const struct plan_pipeline *line = &p->pipelines[pipeline];
    double batch = (double)YK_MAX(p->batch, p->microbatch);
    if (!(p->step_ms > 0) || p->microbatch <= 0)
        return;
    double often = line->share * ceil(batch / (double)p->microbatch) / p->step_ms; /* microbatches a millisecond */
    bool *seen = yk_xalloc((size_t)v->n_agents + 1), *seen_link = yk_xalloc((size_t)v->n_links + 1);
    for (int32_t s = 0; s < line->n_stages; s++) {
        int32_t a = find_agent(v, line->stages[s].agent);
        if (a >= 0)
            add(&b->agent_frac[a], &b->on_agent[a], &seen[a], often * line->stages[s].predicted_ms);
    }
    for (int32_t i = 0; i < p->n_cuts; i++) {
        const struct plan_cut *c = &p->cuts[i];
        int32_t from, to;
        if (c->pipeline != pipeline || (from = agent_of(v, p, pipeline, c->from)) < 0 ||
            (to = agent_of(v, p, pipeline, c->to)) < 0)
            continue;
        for (int32_t l = 0; l < v->n_links; l++)
            if (v->links[l].from == from && v->links[l].to == to)
                add(&b->link_frac[l], &b->on_link[l], &seen_link[l],
                    often * (c->predicted_ms - v->links[l].latency_ms));
    }
    free(seen);
    free(seen_link);
}

static double taken(double frac, int32_t n)
{
    return YK_MIN(frac, (double)n / (double)(n + 1));
}

void busy_apply(struct busy *b, struct view *v)
{
    for (int32_t a = 0; a < v->n_agents; a++)
        v->agents[a].busy_frac = taken(b->agent_frac[a], b->on_agent[a]);
    /* A medium that is shared is busy with either direction. */
    int32_t media = 0;
    for (int32_t l = 0; l < v->n_links; l++)
        media = YK_MAX(media, v->links[l].shared + 1);
    double *frac = yk_xalloc(((size_t)media + 1) * sizeof *frac);
    int32_t *n = yk_xalloc(((size_t)media + 1) * sizeof *n);
    for (int32_t l = 0; l < v->n_links; l++)
        if (v->links[l].shared >= 0) {
            frac[v->links[l].shared] += b->link_frac[l];
            n[v->links[l].shared] = YK_MAX(n[v->links[l].shared], b->on_link[l]);
        }
    for (int32_t l = 0; l < v->n_links; l++) {
        int32_t medium = v->links[l].shared;
        v->links[l].bytes_per_s *=
            1 - (medium >= 0 ? taken(frac[medium], n[medium]) : taken(b->link_frac[l], b->on_link[l]));
    }
    free(frac);
    free(n);
    free(b->agent_frac);
    free(b->link_frac);
    free(b->on_agent);
    free(b->on_link);
    *b = (struct busy){0};
}
