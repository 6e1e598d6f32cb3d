/* Memory of a training, as agents hold it: a forward stage and its backward stage are two halves of one trainer, edges
 * between agents have a slot for each microbatch of the depth, and the source reads whole batches. */
#include "scheduler/candidate.h"
#include "scheduler/shared.h"

#include <stdlib.h>
#include <string.h>

struct parts {
    const struct cost_model *m;
    const struct cost_line *line;
    int32_t *pair;    /* by stage: the one with the other half of its work, itself if it has both */
    uint8_t *forward; /* by stage */
    int64_t *fixed, *each;
    int64_t source_fixed, source_each;
    bool overflow;
};

static void add(struct parts *p, int64_t *sum, int64_t bytes)
{
    p->overflow |= !yk_add_i64(*sum, bytes, sum);
}

static void find_pairs(struct parts *p)
{
    const struct solve_training *t = p->m->req->training;
    const int32_t *stage_of = p->line->stage_of;
    int32_t *home = yk_xalloc(((size_t)t->n_forward + 1) * sizeof *home);
    for (int32_t s = 0; s < p->line->n_stages; s++)
        p->pair[s] = s;
    for (int32_t k = 0; k < t->first_loss; k++) {
        home[t->of[k]] = stage_of[k];
        p->forward[stage_of[k]] = 1;
    }
    for (int32_t k = t->first_loss; k < p->m->graph->n_nodes; k++) {
        int32_t f = home[t->of[k]];
        if (stage_of[k] != f) {
            p->pair[f] = stage_of[k];
            p->pair[stage_of[k]] = f;
        }
    }
    free(home);
}

static yk_err add_units(struct parts *p, const struct memtrain_part *known, struct yk_diag *why)
{
    int32_t n = p->m->graph->n_nodes;
    uint8_t *nodes = yk_xalloc((size_t)n + 1);
    yk_err err = YK_OK;
    for (int32_t s = 0; s < p->line->n_stages && !err; s++) {
        struct memtrain_part half[2] = {{0}};
        bool whole = p->pair[s] == s;
        if (!p->forward[s] && !whole)
            continue;
        for (int32_t i = 0; i < n; i++)
            nodes[i] = p->line->stage_of[i] == s || p->line->stage_of[i] == p->pair[s];
        if (known)
            half[0] = *known;
        else
            err = cost_memory_unit(p->m, nodes, whole, half, why);
        add(p, &p->fixed[s], half[0].fixed);
        add(p, &p->each[s], half[0].each);
        if (whole) { /* its outputs are copied, so that the next microbatch need not wait for the wire */
            add(p, &p->each[s], half[0].out);
            continue;
        }
        add(p, &p->fixed[p->pair[s]], half[1].fixed);
        add(p, &p->each[p->pair[s]], half[1].each);
    }
    free(nodes);
    return err;
}

static int64_t body_of(const struct parts *p, const struct cut_edge *e)
{
    int64_t sum = 0;
    for (int32_t k = 0; k < e->n_values; k++)
        sum += memplan_align(YK_MAX(shape_bytes(&p->m->shapes.of[e->values[k]]), 0));
    return sum;
}

static int32_t agent_at(const struct parts *p, int32_t stage)
{
    return stage < 0 ? p->line->source : p->line->stages[stage].agent;
}

/* Slots of the receiver; what a codec makes needs room of its own at both ends. */
static void add_edge(struct parts *p, const struct cut_edge *e)
{
    int64_t body = body_of(p, e);
    bool lossy = false;
    if (agent_at(p, e->from) == agent_at(p, e->to))
        return;
    for (int32_t i = 0; i < p->line->n_edges; i++)
        if (p->line->edges[i].from == e->from && p->line->edges[i].to == e->to)
            lossy = lossy || p->line->edges[i].codec != CODEC_FP32;
    add(p, e->to < 0 ? &p->source_each : &p->each[e->to], lossy ? 2 * body : body);
    if (lossy)
        add(p, e->from < 0 ? &p->source_fixed : &p->fixed[e->from], 2 * body);
}

static yk_err add_edges(struct parts *p, struct yk_diag *why)
{
    const struct cost_model *m = p->m;
    int32_t n = p->line->n_stages, first_sums = 0;
    int32_t *agent_of = yk_xalloc(((size_t)n + 1) * sizeof *agent_of);
    struct cut_edges edges;
    yk_err err = cut_edges_find(m->graph, &m->shapes, p->line->stage_of, n, &edges, why);
    for (int32_t s = 0; s < n; s++)
        agent_of[s] = p->line->stages[s].agent;
    if (!err) {
        err = cut_edges_join(&edges, &m->shapes, agent_of, n, why);
        if (!err)
            err =
                shared_edges(m->graph, m->req->training->info, n, p->line->stage_of, p->pair, &edges, &first_sums, why);
        for (int32_t i = 0; i < edges.n && !err; i++) {
            const struct cut_edge *e = &edges.at[i];
            if (i < first_sums)
                add_edge(p, e);
            else if (agent_at(p, e->from) != agent_at(p, e->to))
                add(p, &p->fixed[e->to], body_of(p, e));
        }
        cut_edges_fini(&edges);
    }
    free(agent_of);
    return err;
}

/* The source's slots, and a batch of samples and of their truth. */
static void add_source(struct parts *p)
{
    const struct cost_model *m = p->m;
    const struct graph *g = m->graph;
    for (int32_t i = 0; i < g->n_inputs; i++) {
        int64_t bytes = YK_MAX(shape_bytes(&m->shapes.of[g->inputs[i]]), 0);
        add(p, &p->source_each, memplan_align(bytes));
        if (i != m->req->training->info->divisor_input)
            add(p, &p->source_fixed, bytes / m->microbatch * m->req->batch);
    }
}

yk_err candidate_train_memory(const struct cost_model *m, struct candidate *c, const struct memtrain_part *known,
    int64_t *fixed, int64_t *each, struct yk_diag *why)
{
    const struct cost_line *line = &c->lines[0];
    struct parts p = {.m = m, .line = line, .fixed = fixed, .each = each};
    p.pair = yk_xalloc(((size_t)line->n_stages + 1) * sizeof *p.pair);
    p.forward = yk_xalloc((size_t)line->n_stages + 1);
    find_pairs(&p);
    yk_err err = add_units(&p, known, why);
    if (!err)
        err = add_edges(&p, why);
    add_source(&p);
    c->source_fixed = p.source_fixed;
    c->source_each = p.source_each;
    for (int32_t s = 0; s < line->n_stages; s++)
        if (line->stages[s].agent == line->source) {
            add(&p, &fixed[s], p.source_fixed);
            add(&p, &each[s], p.source_each);
            c->source_fixed = c->source_each = 0;
            break;
        }
    if (!err && p.overflow)
        err = yk_fail(why, YK_LIMIT, "the memory of a stage overflows");
    free(p.pair);
    free(p.forward);
    return err;
}
