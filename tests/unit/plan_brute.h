/* Every chain of distinct agents over a small graph, priced: chains whose stages fit their agents and whose ends are
 * where the request pins them; one that began on the source may end there too. */
#ifndef YK_PLAN_BRUTE_H
#define YK_PLAN_BRUTE_H

#include "tests/unit/plan_fleet.h"

struct pb_walk {
    const struct cost_model *m;
    int32_t source;
    void (*each)(void *arg, const struct cost_line *line);
    void *arg;
    int32_t agents[PF_AGENTS + 1], ends[PF_AGENTS + 1];
};

static inline void pb_price(struct pb_walk *b, int32_t stages)
{
    const struct solve_request *req = b->m->req;
    int32_t stage_of[64] = {0};
    struct cost_line line;
    if ((req->pin_first && b->agents[0] != b->source) || (req->pin_last && b->agents[stages - 1] != b->source))
        return;
    for (int32_t s = 0, i = 0; s < stages; s++)
        for (; i < b->ends[s]; i++)
            stage_of[i] = s;
    if (!pf_fits(b->m, stage_of, b->agents, stages) ||
        cost_price(b->m, b->source, b->agents, stages, stage_of, NULL, 0, &line, NULL))
        return;
    b->each(b->arg, &line);
    cost_line_fini(&line);
}

static inline void pb_extend(struct pb_walk *b, int32_t stages)
{
    const struct cost_model *m = b->m;
    int32_t n = m->graph->n_nodes, from = stages ? b->ends[stages - 1] : 0;
    if (stages > 0 && from == n) {
        pb_price(b, stages);
        return;
    }
    for (int32_t a = 0; a < m->view->n_agents; a++) {
        bool used = false, home = stages > 1 && a == b->source && b->agents[0] == a && b->agents[stages - 1] != a;
        for (int32_t s = 0; s < stages; s++)
            used = used || b->agents[s] == a;
        if (!m->view->agents[a].usable || (used && !home))
            continue;
        for (b->agents[stages] = a, b->ends[stages] = used ? n : from + 1; b->ends[stages] <= n; b->ends[stages]++)
            pb_extend(b, stages + 1);
    }
}

static inline void pb_each(
    const struct cost_model *m, int32_t source, void (*each)(void *arg, const struct cost_line *line), void *arg)
{
    struct pb_walk b = {.m = m, .source = source, .each = each, .arg = arg};
    pb_extend(&b, 0);
}

#endif
