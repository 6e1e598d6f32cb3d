/* What the stages of a plan take to be there: weights that are fetched, and prepared. */
#include "scheduler/candidate.h"

#include <stdlib.h>
#include <string.h>

struct lacking {
    const struct cost_model *m;
    const struct view_agent *agent;
    uint8_t *seen; /* by value */
    int64_t bytes;
};

static void use(void *arg, int32_t v)
{
    struct lacking *l = arg;
    if (l->seen[v])
        return;
    l->seen[v] = 1;
    if (v < l->agent->n_lacks && l->agent->lacks[v])
        l->bytes += l->m->graph->values[v].bytes;
}

static void walk(struct lacking *l, const struct cost_line *line, int32_t stage)
{
    for (int32_t i = 0; i < l->m->graph->n_nodes; i++)
        if (line->stage_of[i] == stage)
            node_each_use(&l->m->graph->nodes[i], use, l);
}

double candidate_load(
    const struct cost_model *m, const struct candidate *c, int32_t which, int32_t stage, int64_t *fetch_bytes)
{
    const struct cost_line *line = &c->lines[which];
    int32_t a = line->stages[stage].agent;
    double ms = 0;
    *fetch_bytes = 0;
    for (int32_t i = 0; i < m->graph->n_nodes; i++)
        if (line->stage_of[i] == stage)
            ms += cost_prepare_ms(m, a, i);
    if (!m->view->agents[a].lacks)
        return ms;
    struct lacking l = {m, &m->view->agents[a], yk_xalloc((size_t)m->graph->n_values + 1), 0};
    for (int32_t i = 0; i <= which; i++) /* what an earlier stage of the agent fetches is there */
        for (int32_t s = 0; s < (i < which ? c->lines[i].n_stages : stage); s++)
            if (c->lines[i].stages[s].agent == a)
                walk(&l, &c->lines[i], s);
    l.bytes = 0;
    walk(&l, line, stage);
    free(l.seen);
    *fetch_bytes = l.bytes;
    return ms + cost_fetch_ms(m, a, l.bytes);
}
