/* Every split of a training over chains of agents, for small fleets and graphs: depth first, without what its own work
 * makes dearer than the best that is known. */
#include "scheduler/solve_train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLACK 0.25 /* splits that cost so much more than the best are not kept beside it */

struct walk {
    const struct cost_model *m;
    int32_t source, n_forward;
    double *ms;      /* [agent * (n_forward + 1) + f]: of a forward node with all that belongs to it; NaN: not there */
    double *rest;    /* [f]: of the nodes from f on, each on its best agent */
    int64_t *memory; /* [(p * (n_forward + 1) + q) * 2 + last]: of a block; -1 not known yet */
    uint8_t *in_stage;
    int32_t agent[SOLVE_CHAIN_STAGES], end[SOLVE_CHAIN_STAGES];
    double limit; /* of cost */
    struct solve_split *out;
    int32_t n, max;
    int64_t steps, priced, most_steps, most_priced;
    bool *taken;
    yk_err err;
    struct yk_diag *why;
};

double solve_train_chains(const struct cost_model *m)
{
    double all = 0, orders = 1, cuts = 1;
    int32_t n = m->req->training->n_forward, agents = 0;
    for (int32_t a = 0; a < m->view->n_agents; a++)
        agents += m->view->agents[a].usable;
    for (int32_t k = 1; k <= agents && k <= n; k++) {
        orders *= agents - k + 1;
        all += orders * cuts;
        cuts = cuts * (n - k) / k;
    }
    return all;
}

/* Bytes of nodes p..q-1 with all that belongs to them: two stages, or one if they are the last. */
static int64_t memory_of(struct walk *w, int32_t p, int32_t q)
{
    const struct solve_training *t = w->m->req->training;
    int32_t n = w->m->graph->n_nodes;
    bool last = q == w->n_forward;
    int64_t *need = &w->memory[(size_t)p * ((size_t)w->n_forward + 1) + (size_t)q];
    if (*need >= 0)
        return *need;
    *need = 0;
    if (t->info) {
        struct memtrain_part part[2];
        for (int32_t i = 0; i < n; i++)
            w->in_stage[i] = t->of[i] >= p && t->of[i] < q;
        yk_err err = cost_memory_unit(w->m, w->in_stage, last, part, w->why);
        w->err = w->err ? w->err : err;
        *need = err ? 0 : part[0].fixed + part[0].each + part[1].fixed + part[1].each;
        return *need;
    }
    for (int half = 0; half < (last ? 1 : 2); half++) {
        int64_t bytes = 0;
        bool any = false;
        for (int32_t i = 0; i < n; i++) {
            bool mine = t->of[i] >= p && t->of[i] < q && (last || (i < t->first_backward) == (half == 0));
            w->in_stage[i] = mine;
            any = any || mine;
        }
        yk_err err = any ? cost_memory(w->m, w->in_stage, 1, &bytes, w->why) : YK_OK;
        w->err = w->err ? w->err : err;
        *need += bytes;
    }
    return *need;
}

static void price(struct walk *w, int32_t blocks)
{
    const struct solve_request *req = w->m->req;
    struct solve_split s;
    struct cost_line line;
    solve_train_make(req->training, w->m->graph->n_nodes, w->agent, w->end, blocks, &s);
    bool pinned =
        (req->pin_first && s.agent[0] != w->source) || (req->pin_last && s.agent[s.n_stages - 1] != w->source);
    w->priced++;
    if (pinned || cost_price(w->m, w->source, s.agent, s.n_stages, s.stage_of, NULL, 0, &line, NULL)) {
        solve_train_fini(&s); /* a link is missing */
        return;
    }
    double worst = w->n < w->max ? w->limit * (1 + SLACK) : w->out[w->n - 1].cost_ms;
    s.cost_ms = line.cost_ms;
    s.bottleneck_ms = line.bottleneck_ms;
    cost_line_fini(&line);
    if (s.cost_ms >= worst) {
        solve_train_fini(&s);
        return;
    }
    w->limit = YK_MIN(w->limit, s.cost_ms);
    if (w->n == w->max)
        solve_train_fini(&w->out[--w->n]);
    int32_t at = w->n++;
    for (; at > 0 && w->out[at - 1].cost_ms > s.cost_ms; at--)
        w->out[at] = w->out[at - 1];
    w->out[at] = s;
}

static void visit(struct walk *w, int32_t blocks, int32_t from, double sum, double top)
{
    const struct view *v = w->m->view;
    double rate = (double)(w->m->count - 1);
    if (from == w->n_forward) {
        if (blocks > 1)
            price(w, blocks);
        return;
    }
    for (int32_t a = 0; a < v->n_agents && blocks < SOLVE_CHAIN_STAGES / 2; a++) {
        const double *ms = w->ms + (size_t)a * ((size_t)w->n_forward + 1);
        if (w->taken[a] || !v->agents[a].usable || v->agents[a].memory_bytes <= 0)
            continue;
        w->taken[a] = true;
        w->agent[blocks] = a;
        double block = 0;
        for (int32_t q = from + 1; q <= w->n_forward && !w->err; q++) {
            block += ms[q - 1];
            if (w->steps++ > w->most_steps || w->priced > w->most_priced || isnan(block))
                break;
            double least = sum + block + w->rest[q] + rate * YK_MAX(top, block);
            double worst = w->n < w->max ? w->limit * (1 + SLACK) : w->out[w->n - 1].cost_ms;
            if (least * (1 - 1e-11) >= worst)
                continue;
            if (memory_of(w, from, q) > v->agents[a].memory_bytes)
                continue;
            w->end[blocks] = q;
            visit(w, blocks + 1, q, sum + block, YK_MAX(top, block));
        }
        w->taken[a] = false;
    }
}

static void count_work(struct walk *w)
{
    const struct cost_model *m = w->m;
    const int32_t *of = m->req->training->of;
    size_t n = (size_t)w->n_forward + 1;
    for (int32_t a = 0; a < m->view->n_agents; a++) {
        double *ms = w->ms + (size_t)a * n;
        for (int32_t i = 0; i < m->graph->n_nodes; i++)
            ms[of[i]] += m->node_ms[(size_t)a * (size_t)m->graph->n_nodes + (size_t)i];
    }
    for (int32_t f = w->n_forward - 1; f >= 0; f--) {
        double least = INFINITY;
        for (int32_t a = 0; a < m->view->n_agents; a++) {
            double ms = w->ms[(size_t)a * n + (size_t)f];
            least = m->view->agents[a].usable && ms < least ? ms : least;
        }
        w->rest[f] = w->rest[f + 1] + least;
    }
}

yk_err solve_train_all(const struct cost_model *m, int32_t source, double limit_ms, double effort,
    struct solve_split *out, int32_t max, int32_t *n, bool *all, struct yk_diag *why)
{
    struct walk w = {.m = m,
        .source = source,
        .n_forward = m->req->training->n_forward,
        .limit = limit_ms,
        .out = out,
        .max = max,
        .most_steps = (int64_t)(effort * SOLVE_TRAIN_STEPS),
        .most_priced = (int64_t)(effort * SOLVE_TRAIN_PRICED),
        .why = why};
    size_t f = (size_t)w.n_forward + 1;
    *n = 0;
    *all = false;
    w.ms = yk_try_alloc(f * (size_t)m->view->n_agents, sizeof *w.ms);
    w.rest = yk_try_alloc(f, sizeof *w.rest);
    w.memory = yk_try_alloc(f * f, sizeof *w.memory);
    w.in_stage = yk_try_alloc((size_t)m->graph->n_nodes + 1, 1);
    w.taken = yk_try_alloc((size_t)m->view->n_agents + 1, sizeof *w.taken);
    if (!w.ms || !w.rest || !w.memory || !w.in_stage || !w.taken) {
        w.err = yk_fail(why, YK_NOMEM, "no memory to look at all splits of a training");
    } else {
        for (size_t i = 0; i < f * f; i++)
            w.memory[i] = -1;
        count_work(&w);
        visit(&w, 0, 0, 0, 0);
        *all = w.steps <= w.most_steps && w.priced <= w.most_priced;
        *n = w.n;
    }
    for (int32_t i = 0; i < w.n && w.err; i++)
        solve_train_fini(&out[i]);
    *n = w.err ? 0 : *n;
    free(w.ms);
    free(w.rest);
    free(w.memory);
    free(w.in_stage);
    free(w.taken);
    return w.err;
}
