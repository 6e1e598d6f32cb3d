#include "scheduler/solve_train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PLACES 1024  /* at most, of two agents */
#define EFFORT 1.2e7 /* of one search, about: agents^2 * places^2 for each set of agents */

void solve_train_fini(struct solve_split *s)
{
    free(s->agent);
    free(s->stage_of);
    *s = (struct solve_split){0};
}

/* ---- what a cut costs ---- */

struct work {
    const struct cost_model *m;
    const struct solve_training *t;
    int32_t agents[SOLVE_TRAIN_AGENTS], n_agents;
    double *sum;  /* [agent * (n_forward + 1) + f]: forward nodes below f with their backward nodes */
    int32_t *bad; /* the same: how many of these nodes it cannot run */
    int64_t *forward_bytes, *backward_bytes; /* by forward node f: what crosses between those below f and the others */
    int32_t place[PLACES + 2], n_places;     /* ascending; first 0, last n_forward */
    double cap_ms;                           /* no resource may take longer; infinite: the least such time is wanted */
    int64_t input_bytes;
};

/* The forward nodes that a value is made and used by: lo and hi of their positions. */
struct span {
    int32_t made; /* -1: a graph input */
    int32_t least, most;
};

struct uses {
    const struct solve_training *t;
    struct span *span; /* by value */
    int32_t at;
};

static void add_use(void *arg, int32_t value)
{
    struct uses *u = arg;
    struct span *s = &u->span[value];
    s->least = YK_MIN(s->least, u->at);
    s->most = YK_MAX(s->most, u->at);
}

/* A value made at node k of the chain goes once to every later stage that reads it, forward or, of a gradient, back.
 * Between neighbours of a chain that is: it crosses every cut between where it is made and where it is read last. */
static void count_bytes(struct work *w)
{
    const struct graph *g = w->m->graph;
    int32_t n = w->t->n_forward;
    struct uses u = {w->t, yk_xalloc(((size_t)g->n_values + 1) * sizeof(struct span)), 0};
    for (int32_t v = 0; v < g->n_values; v++) {
        int32_t p = g->values[v].producer;
        u.span[v] = (struct span){p >= 0 ? w->t->of[p] : -1, n, -1};
    }
    for (int32_t i = 0; i < g->n_nodes; i++) {
        u.at = w->t->of[i];
        node_each_use(&g->nodes[i], add_use, &u);
    }
    int64_t *forward = yk_xalloc(((size_t)n + 2) * sizeof *forward), *back = yk_xalloc(((size_t)n + 2) * sizeof *back);
    for (int32_t v = 0; v < g->n_values; v++) {
        const struct span *s = &u.span[v];
        if (g->values[v].kind == VALUE_WEIGHT || s->made < 0)
            continue;
        int64_t bytes = cost_value_bytes(w->m, v, cost_codec(w->m));
        if (s->most > s->made) { /* cuts made+1 .. most */
            forward[s->made + 1] += bytes;
            forward[s->most + 1] -= bytes;
        }
        if (s->least < s->made) { /* cuts least+1 .. made */
            back[s->least + 1] += bytes;
            back[s->made + 1] -= bytes;
        }
    }
    for (int32_t f = 1; f <= n; f++) {
        w->forward_bytes[f] = w->forward_bytes[f - 1] + forward[f];
        w->backward_bytes[f] = w->backward_bytes[f - 1] + back[f];
    }
    for (int32_t i = 0; i < g->n_inputs; i++)
        w->input_bytes += cost_value_bytes(w->m, g->inputs[i], cost_codec(w->m));
    free(forward);
    free(back);
    free(u.span);
}

static double *sums_of(const struct work *w, int32_t agent)
{
    return &w->sum[(size_t)agent * ((size_t)w->t->n_forward + 1)];
}

static const int32_t *bad_of(const struct work *w, int32_t agent)
{
    return &w->bad[(size_t)agent * ((size_t)w->t->n_forward + 1)];
}

static void count_work(struct work *w, int32_t agent)
{
    const struct cost_model *m = w->m;
    int32_t n = m->graph->n_nodes;
    int32_t *bad = &w->bad[(size_t)agent * ((size_t)w->t->n_forward + 1)];
    double *sum = sums_of(w, agent);
    for (int32_t i = 0; i < n; i++) {
        double ms = m->node_ms[(size_t)agent * (size_t)n + (size_t)i];
        sum[w->t->of[i] + 1] += isnan(ms) ? 0 : ms;
        bad[w->t->of[i] + 1] += isnan(ms);
    }
    for (int32_t f = 1; f <= w->t->n_forward; f++) {
        sum[f] += sum[f - 1];
        bad[f] += bad[f - 1];
    }
}

/* All of them, or of as many equal parts of the work as there is time for the place with the least bytes. */
static void choose_places(struct work *w)
{
    int32_t n = w->t->n_forward;
    double each = (double)(1 << w->n_agents) * w->n_agents * w->n_agents / 2;
    int32_t most = (int32_t)YK_MIN(sqrt(EFFORT / each), (double)PLACES);
    const double *sum = sums_of(w, w->agents[0]);
    double all = sum[n];
    w->place[w->n_places++] = 0;
    for (int32_t f = 1; f < n && n <= most; f++)
        w->place[w->n_places++] = f;
    for (int32_t f = 1, part = -1; f < n && n > most; f++) {
        int32_t in = all > 0 ? (int32_t)(sum[f] / all * most) : (int32_t)((int64_t)f * most / n);
        int64_t bytes = w->forward_bytes[f] + w->backward_bytes[f];
        int32_t last = w->place[w->n_places - 1];
        if (in != part && w->n_places <= most)
            w->place[w->n_places++] = f;
        else if (bytes < w->forward_bytes[last] + w->backward_bytes[last])
            w->place[w->n_places - 1] = f;
        part = in;
    }
    w->place[w->n_places++] = n;
}

/* The largest load that a cut puts on a link or a medium between two agents; infinite if they have no link. In *sum_ms
 * what both ways take one after another. */
static double cut_ms(const struct work *w, int32_t from, int32_t to, int64_t forward, int64_t back, double *sum_ms)
{
    double there_ms = 0, here_ms = 0;
    int32_t there = cost_link(w->m, from, to), here = cost_link(w->m, to, from);
    *sum_ms = INFINITY;
    if ((forward > 0 && there < 0) || (back > 0 && here < 0))
        return INFINITY;
    double a = forward > 0 ? cost_transfer_ms(w->m, there, forward, &there_ms) : 0;
    double b = back > 0 ? cost_transfer_ms(w->m, here, back, &here_ms) : 0;
    *sum_ms = a + b + there_ms + here_ms;
    bool one = there >= 0 && here >= 0 && w->m->link_resource[there] == w->m->link_resource[here];
    return one ? a + b : YK_MAX(a, b);
}

/* ---- the search ---- */

struct state {
    double worst, sum;
    int32_t before_agent, before_place; /* positions; -1: the chain begins here */
};

/* Of an agent that cannot run everything: as if the rest took as long. */
static double all_ms(const struct work *w, int32_t agent)
{
    int32_t n = w->t->n_forward, nodes = w->m->graph->n_nodes, bad = bad_of(w, agent)[n];
    return bad < nodes ? sums_of(w, agent)[n] * nodes / (nodes - bad) : INFINITY;
}

static void choose_agents(struct work *w, int32_t source)
{
    const struct view *v = w->m->view;
    bool *taken = yk_xalloc((size_t)v->n_agents + 1);
    while (w->n_agents < SOLVE_TRAIN_AGENTS) {
        int32_t best = -1;
        for (int32_t a = 0; a < v->n_agents; a++) {
            bool good = !taken[a] && v->agents[a].usable && v->agents[a].memory_bytes > 0 && !isinf(all_ms(w, a));
            if (good && (best < 0 || a == source || (best != source && all_ms(w, a) < all_ms(w, best))))
                best = a;
        }
        if (best < 0)
            break;
        taken[best] = true;
        w->agents[w->n_agents++] = best;
    }
    free(taken);
}

static struct state *at(struct state *s, const struct work *w, int32_t mask, int32_t agent, int32_t place)
{
    return &s[((size_t)mask * (size_t)w->n_agents + (size_t)agent) * (size_t)w->n_places + (size_t)place];
}

static bool better(const struct work *w, const struct state *a, double worst, double sum)
{
    if (!isinf(w->cap_ms))
        return worst <= w->cap_ms && sum < a->sum;
    return worst < a->worst * (1 - 1e-12) || (worst <= a->worst * (1 + 1e-12) && sum < a->sum);
}

/* state(mask, agent, place): the agents of mask have the forward nodes below place, `agent` the last of them. */
static void search(struct work *w, int32_t source, struct state *s)
{
    int32_t masks = 1 << w->n_agents;
    for (int64_t i = 0; i < (int64_t)masks * w->n_agents * w->n_places; i++)
        s[i] = (struct state){INFINITY, INFINITY, -1, -1};
    for (int32_t a = 0; a < w->n_agents; a++) {
        double way = 0, in = w->agents[a] == source ? 0 : cut_ms(w, source, w->agents[a], w->input_bytes, 0, &way);
        if (w->m->req->pin_first && w->agents[a] != source)
            continue;
        for (int32_t p = 1; p < w->n_places && bad_of(w, w->agents[a])[w->place[p]] == 0; p++) {
            double ms = sums_of(w, w->agents[a])[w->place[p]];
            if (YK_MAX(in, ms) <= w->cap_ms)
                *at(s, w, 1 << a, a, p) = (struct state){YK_MAX(in, ms), way + ms, -1, -1};
        }
    }
    for (int32_t mask = 1; mask < masks; mask++)
        for (int32_t a = 0; a < w->n_agents; a++)
            for (int32_t p = 1; p + 1 < w->n_places && mask >> a & 1; p++) {
                const struct state *from = at(s, w, mask, a, p);
                int32_t f = w->place[p];
                if (isinf(from->worst))
                    continue;
                for (int32_t b = 0; b < w->n_agents; b++) {
                    if (mask >> b & 1)
                        continue;
                    double way,
                        cut = cut_ms(w, w->agents[a], w->agents[b], w->forward_bytes[f], w->backward_bytes[f], &way);
                    const double *sum = sums_of(w, w->agents[b]);
                    const int32_t *bad = bad_of(w, w->agents[b]);
                    for (int32_t q = p + 1; q < w->n_places && !isinf(cut) && bad[w->place[q]] == bad[f]; q++) {
                        double ms = sum[w->place[q]] - sum[f];
                        double worst = YK_MAX(from->worst, YK_MAX(cut, ms)), all = from->sum + way + ms;
                        struct state *to = at(s, w, mask | 1 << b, b, q);
                        if (better(w, to, worst, all))
                            *to = (struct state){worst, all, a, p};
                    }
                }
            }
}

void solve_train_make(const struct solve_training *t, int32_t n_nodes, const int32_t *agent, const int32_t *end,
    int32_t blocks, struct solve_split *out)
{
    int32_t *block_of = yk_xalloc(((size_t)t->n_forward + 1) * sizeof *block_of);
    int32_t *back = yk_xalloc(((size_t)blocks + 1) * sizeof *back); /* by block: its backward stage, 0: none */
    *out = (struct solve_split){.n_stages = blocks};
    out->agent = yk_xalloc(2 * (size_t)blocks * sizeof *out->agent);
    out->stage_of = yk_xalloc(((size_t)n_nodes + 1) * sizeof *out->stage_of);
    for (int32_t f = 0, b = 0; f < t->n_forward; f++) {
        b += f == end[b];
        block_of[f] = b;
    }
    memcpy(out->agent, agent, (size_t)blocks * sizeof *agent);
    for (int32_t i = t->first_backward; i < n_nodes; i++)
        back[block_of[t->of[i]]] = 1;
    for (int32_t b = blocks - 2; b >= 0; b--)
        if (back[b]) {
            out->agent[out->n_stages] = agent[b];
            back[b] = out->n_stages++;
        }
    for (int32_t i = 0; i < n_nodes; i++) {
        int32_t b = block_of[t->of[i]];
        out->stage_of[i] = i < t->first_backward || b == blocks - 1 ? b : back[b];
    }
    free(block_of);
    free(back);
}

static void take(const struct work *w, struct state *s, int32_t mask, int32_t agent, struct solve_split *out)
{
    int32_t chain[SOLVE_TRAIN_AGENTS], end[SOLVE_TRAIN_AGENTS], k = 0;
    int32_t a = agent, p = w->n_places - 1;
    const struct state *end_state = at(s, w, mask, a, p);
    double bottleneck = end_state->worst, cost = end_state->sum + (double)(w->m->count - 1) * end_state->worst;
    while (a >= 0) { /* from the last to the first */
        const struct state *st = at(s, w, mask, a, p);
        chain[k] = w->agents[a];
        end[k++] = w->place[p];
        mask &= ~(1 << a);
        a = st->before_agent;
        p = st->before_place;
    }
    for (int32_t i = 0; i < k / 2; i++) { /* from the first to the last */
        int32_t c = chain[i], e = end[i];
        chain[i] = chain[k - 1 - i];
        end[i] = end[k - 1 - i];
        chain[k - 1 - i] = c;
        end[k - 1 - i] = e;
    }
    solve_train_make(w->t, w->m->graph->n_nodes, chain, end, k, out);
    out->bottleneck_ms = bottleneck;
    out->cost_ms = cost;
}

static void close_work(struct work *w)
{
    free(w->sum);
    free(w->bad);
    free(w->forward_bytes);
    free(w->backward_bytes);
}

static yk_err open_work(struct work *w, const struct cost_model *m, struct yk_diag *why)
{
    *w = (struct work){.m = m, .t = m->req->training};
    size_t n = (size_t)w->t->n_forward + 1;
    w->sum = yk_try_alloc(n * (size_t)m->view->n_agents, sizeof *w->sum);
    w->bad = yk_try_alloc(n * (size_t)m->view->n_agents, sizeof *w->bad);
    w->forward_bytes = yk_try_alloc(n, sizeof *w->forward_bytes);
    w->backward_bytes = yk_try_alloc(n, sizeof *w->backward_bytes);
    if (!w->sum || !w->bad || !w->forward_bytes || !w->backward_bytes) {
        close_work(w);
        return yk_fail(why, YK_NOMEM, "no memory to split a training of %zu nodes", n - 1);
    }
    for (int32_t a = 0; a < m->view->n_agents; a++)
        count_work(w, a);
    count_bytes(w);
    return YK_OK;
}

static int by_cost(const void *a, const void *b)
{
    const struct solve_split *x = a, *y = b;
    if (x->cost_ms != y->cost_ms)
        return x->cost_ms < y->cost_ms ? -1 : 1;
    return x->n_stages - y->n_stages;
}

/* How far above the least possible time of a resource the searches go: what costs more there may have less to wait for
 * where microbatches are few. */
static const double caps[] = {1 + 1e-9, 1.02, 1.05, 1.1, 1.2, 1.4, 2, 4};

static bool is_new(const struct solve_split *all, int32_t n, const struct solve_split *s, int32_t n_nodes)
{
    for (int32_t i = 0; i < n; i++)
        if (all[i].n_stages == s->n_stages &&
            memcmp(all[i].agent, s->agent, (size_t)s->n_stages * sizeof *s->agent) == 0 &&
            memcmp(all[i].stage_of, s->stage_of, (size_t)n_nodes * sizeof *s->stage_of) == 0)
            return false;
    return true;
}

/* What a search has found, of each set of agents and each last one of it. */
static void collect(const struct work *w, struct state *s, struct solve_split *all, int32_t *found)
{
    for (int32_t mask = 1; mask < 1 << w->n_agents; mask++)
        for (int32_t a = 0; a < w->n_agents; a++) {
            if (!(mask & (mask - 1)) || isinf(at(s, w, mask, a, w->n_places - 1)->worst))
                continue;
            take(w, s, mask, a, &all[*found]);
            if (is_new(all, *found, &all[*found], w->m->graph->n_nodes))
                (*found)++;
            else
                solve_train_fini(&all[*found]);
        }
}

yk_err solve_train_splits(
    const struct cost_model *m, int32_t source, struct solve_split *out, int32_t max, int32_t *n, struct yk_diag *why)
{
    struct work w;
    *n = 0;
    yk_err err = open_work(&w, m, why);
    if (err)
        return err;
    choose_agents(&w, source);
    if (w.n_agents < 2 || w.t->n_forward < 2) {
        close_work(&w);
        return YK_OK;
    }
    choose_places(&w);
    int32_t most = (1 << w.n_agents) * w.n_agents, found = 0;
    struct state *s = yk_try_alloc((size_t)most * (size_t)w.n_places, sizeof *s);
    struct solve_split *all = yk_try_alloc((size_t)most * (YK_COUNT(caps) + 1), sizeof *all);
    if (!s || !all) {
        err = yk_fail(why, YK_NOMEM, "no memory to split a training over %d agents", w.n_agents);
    } else {
        double least = INFINITY;
        w.cap_ms = INFINITY;
        search(&w, source, s);
        collect(&w, s, all, &found);
        for (int32_t i = 0; i < found; i++)
            least = YK_MIN(least, all[i].bottleneck_ms);
        for (size_t c = 0; c < YK_COUNT(caps) && found > 0 && m->count > 1 && !cost_out_of_time(m); c++) {
            w.cap_ms = least * caps[c];
            search(&w, source, s);
            collect(&w, s, all, &found);
        }
        qsort(all, (size_t)found, sizeof *all, by_cost);
        for (int32_t i = 0; i < found; i++) {
            if (i < max)
                out[(*n)++] = all[i];
            else
                solve_train_fini(&all[i]);
        }
    }
    free(all);
    free(s);
    close_work(&w);
    return err;
}

double solve_train_bound(const struct cost_model *m)
{
    double work, least = cost_floor(m, &work);
    return (least + (double)(m->count - 1) * work) * (1 - 1e-9);
}

/* ---- plans that name forward nodes only ---- */

/* Which stage of the pipeline has a forward node; -1: none. */
static int32_t holder(const struct plan_pipeline *line, int32_t node)
{
    for (int32_t s = 0; s < line->n_stages; s++)
        for (int32_t r = 0; r < line->stages[s].n_nodes; r++)
            if (node >= line->stages[s].nodes[r].first && node <= line->stages[s].nodes[r].last)
                return s;
    return -1;
}

static bool forward_only(const struct plan_pipeline *line, int32_t first_loss)
{
    for (int32_t s = 0; s < line->n_stages; s++)
        for (int32_t r = 0; r < line->stages[s].n_nodes; r++)
            if (line->stages[s].nodes[r].last >= first_loss)
                return false;
    return line->n_stages > 0;
}

static void add_node(struct plan_stage *st, int32_t node)
{
    if (st->n_nodes && st->nodes[st->n_nodes - 1].last == node - 1) {
        st->nodes[st->n_nodes - 1].last = node;
        return;
    }
    st->nodes = yk_xrealloc(st->nodes, ((size_t)st->n_nodes + 1) * sizeof *st->nodes);
    st->nodes[st->n_nodes++] = (struct cut_range){node, node};
}

/* Cuts of stages that the plan gets only now are those of another plan: the stages were edited, the cuts were not. */
static yk_err forget_cuts(struct plan *p, int32_t line, struct yk_diag *why)
{
    int32_t n = p->pipelines[line].n_stages;
    for (int32_t k = 0; k < p->n_cuts; k++) {
        struct plan_cut *c = &p->cuts[k];
        if (c->pipeline != line || (c->from < n && c->to < n))
            continue;
        if (c->codec != CODEC_FP32)
            return yk_fail(why, YK_INVAL,
                "cuts[%d] names codec %s from stage %d to stage %d of pipeline %d, whose stages are 0..%d: leave it "
                "out, or all of \"cuts\": they only name codecs, and those of forward stages hold for gradients too",
                k, plan_codec_name(c->codec), c->from, c->to, line, n - 1);
        *c = (struct plan_cut){.pipeline = line, .from = -1, .to = -1}; /* keeps its place: errors name places */
    }
    return YK_OK;
}

yk_err solve_train_complete(const struct solve_training *t, const struct graph *g, struct plan *p, struct yk_diag *why)
{
    yk_err err = plan_check_graph(p, g, why); /* before its cuts are judged by its stages */
    int32_t n_nodes = g->n_nodes;
    for (int32_t i = 0; i < p->n_pipelines && !err; i++) {
        struct plan_pipeline *line = &p->pipelines[i];
        int32_t n = line->n_stages, *home = yk_xalloc(((size_t)t->n_forward + 1) * sizeof *home);
        int32_t *back = yk_xalloc(((size_t)n + 1) * sizeof *back); /* by forward stage: where its backward nodes go */
        if (!forward_only(line, t->first_loss) || (err = forget_cuts(p, i, why))) {
            free(home);
            free(back);
            continue;
        }
        for (int32_t s = 0; s < n; s++)
            back[s] = -1;
        for (int32_t k = 0; k < t->first_loss; k++)
            home[t->of[k]] = holder(line, k);
        for (int32_t k = t->first_loss; k < n_nodes; k++) {
            int32_t f = home[t->of[k]];
            if (f < 0) /* plan_check says which node is missing */
                continue;
            if (k < t->first_backward)
                back[f] = f;
            if (back[f] < 0) {
                line->stages = yk_xrealloc(line->stages, ((size_t)line->n_stages + 1) * sizeof *line->stages);
                line->stages[line->n_stages] = (struct plan_stage){.agent = yk_xstrdup(line->stages[f].agent)};
                back[f] = line->n_stages++;
            }
            add_node(&line->stages[back[f]], k);
        }
        for (int32_t c = 0, n_cuts = p->n_cuts; c < n_cuts; c++) { /* gradients come back in the same codec */
            struct plan_cut cut = p->cuts[c];
            if (cut.pipeline != i || cut.from < 0 || cut.to < 0 || cut.from >= n || cut.to >= n || back[cut.to] < 0 ||
                back[cut.from] < 0)
                continue;
            p->cuts = yk_xrealloc(p->cuts, ((size_t)p->n_cuts + 1) * sizeof *p->cuts);
            p->cuts[p->n_cuts++] =
                (struct plan_cut){.pipeline = i, .from = back[cut.to], .to = back[cut.from], .codec = cut.codec};
        }
        free(home);
        free(back);
    }
    return err;
}
