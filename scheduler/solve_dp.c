#include "scheduler/solve_dp.h"

#include "common/memplan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EFFORT 20000000 /* labels made and compared in one search, some 50 ms: behind it the best so far is taken */
#define COARSE 12       /* cuts of the first pass */
#define SLACK 0.25      /* chains that cost so much more than the best are not kept beside it */

struct label {
    int32_t parent, next; /* label indexes; next: of the same position */
    int32_t pos, agent, stages;
    uint32_t used;
    bool dead;
    double sum, top; /* top: the largest load */
};

/* Memory plans that were made lately: a full table of all stages would grow with the square of the graph. */
#define REMEMBERED 32768
#define WEIGHT_MOST ((int64_t)1 << 31) /* counted of one weight, so that sums stay sums */
struct remembered {
    int32_t p, q; /* q 0: empty */
    int64_t bytes;
};

struct search {
    const struct cost_model *m;
    int32_t source;
    int32_t n; /* nodes */
    struct cuts cuts;
    int32_t *uses, *use_at;    /* consumers of value v: uses[use_at[v] .. use_at[v + 1]), ascending */
    int64_t *bytes;            /* by value, in the codec of the request */
    int32_t *returns;          /* [i]: outputs of the graph that the nodes before i make */
    int64_t *back;             /* [i]: their bytes */
    double *prefix;            /* [agent * (n + 1) + i]: time of the first i nodes that it can run */
    bool *blocked;             /* [agent * (n + 1) + i]: it cannot run node i - 1 */
    double *rest;              /* [i]: least time of nodes i.. on the best agent each */
    double *pace;              /* [agent]: 1 over its time of all nodes that it can run; 0 if it takes no part */
    double *work;              /* [i]: of nodes i.., the sum of the least pace[a] * time on a */
    struct remembered *memory; /* by a hash of (p, q) */
    int64_t *takes, *large;    /* [i]: bytes of the nodes before i, and the largest workspace: memory from above */
    int64_t *least;            /* [i]: weights that only one node reads, of the nodes before i: memory from below */
    uint8_t *in_stage;
    struct label *labels;
    int32_t n_labels, cap_labels;
    double *loads;  /* [label * n_resources] */
    int8_t *owners; /* [label * max_live]: by place in cuts.at[pos].values; -1 the source */
    int32_t max_live;
    int32_t *head;  /* by position: first label */
    bool *open;     /* by resource, for keep */
    int32_t stride; /* cuts of this pass: every so many nodes */
    double limit;
    int64_t effort;
    struct solve_chain *best;
    int32_t most, n_best;
};

struct use_note {
    struct search *s;
    int32_t node, total, *fill;
    int64_t *bytes;
};

static void count_use(void *arg, int32_t value)
{
    struct use_note *n = arg;
    n->s->use_at[value + 1]++;
    n->total++;
}

static void place_use(void *arg, int32_t value)
{
    struct use_note *n = arg;
    n->s->uses[n->s->use_at[value] + n->fill[value]++] = n->node;
}

/* Values of unknown size make the sum unknown. */
static void add_bytes(const struct search *s, int32_t value, int64_t times, int64_t *sum)
{
    const struct value *v = &s->m->graph->values[value];
    int64_t bytes = shape_bytes(v->kind == VALUE_WEIGHT ? &v->shape : &s->m->shapes.of[value]);
    bool known = bytes >= 0 && bytes < INT64_MAX / 4 && yk_add_i64(*sum, times * (bytes + MEMPLAN_ALIGN), sum);
    if (!known)
        *sum = INT64_MAX;
}

static void add_use(void *arg, int32_t value)
{
    struct use_note *n = arg;
    add_bytes(n->s, value, 1, n->bytes);
}

static void index_values(struct search *s)
{
    const struct graph *g = s->m->graph;
    enum plan_codec codec = cost_codec(s->m);
    size_t n_values = (size_t)g->n_values + 1;
    s->use_at = yk_xalloc((n_values + 1) * sizeof *s->use_at);
    bool *is_output = yk_xalloc(n_values);
    s->returns = yk_xalloc(((size_t)s->n + 1) * sizeof *s->returns);
    s->back = yk_xalloc(((size_t)s->n + 1) * sizeof *s->back);
    s->bytes = yk_xalloc(n_values * sizeof *s->bytes);
    struct use_note note = {.s = s};
    for (int32_t i = 0; i < g->n_nodes; i++)
        node_each_use(&g->nodes[i], count_use, &note);
    for (int32_t v = 0; v < g->n_values; v++) {
        s->use_at[v + 1] += s->use_at[v];
        s->bytes[v] = g->values[v].kind == VALUE_WEIGHT ? 0 : cost_value_bytes(s->m, v, codec);
    }
    s->uses = yk_xalloc(((size_t)note.total + 1) * sizeof *s->uses);
    note.fill = yk_xalloc(n_values * sizeof *note.fill);
    for (note.node = 0; note.node < g->n_nodes; note.node++)
        node_each_use(&g->nodes[note.node], place_use, &note);
    free(note.fill);
    for (int32_t i = 0; i < g->n_outputs; i++)
        is_output[g->outputs[i]] = true;
    for (int32_t i = 0; i < s->n; i++) {
        s->returns[i + 1] = s->returns[i];
        s->back[i + 1] = s->back[i];
        for (int32_t k = 0; k < g->nodes[i].n_out; k++) {
            int32_t v = g->nodes[i].out[k];
            if (v >= 0 && is_output[v]) {
                s->returns[i + 1]++;
                s->back[i + 1] += s->bytes[v];
            }
        }
    }
    free(is_output);
}

static void index_times(struct search *s)
{
    const struct view *v = s->m->view;
    s->prefix = yk_xalloc(((size_t)v->n_agents + 1) * ((size_t)s->n + 1) * sizeof *s->prefix);
    s->blocked = yk_xalloc(((size_t)v->n_agents + 1) * ((size_t)s->n + 1));
    s->rest = yk_xalloc(((size_t)s->n + 1) * sizeof *s->rest);
    s->work = yk_xalloc(((size_t)s->n + 1) * sizeof *s->work);
    s->pace = yk_xalloc(((size_t)v->n_agents + 1) * sizeof *s->pace);
    for (int32_t a = 0; a < v->n_agents; a++) {
        double *p = s->prefix + (size_t)a * ((size_t)s->n + 1);
        for (int32_t i = 0; i < s->n; i++) {
            double ms = s->m->node_ms[(size_t)a * (size_t)s->n + (size_t)i];
            p[i + 1] = p[i] + (isnan(ms) ? 0 : ms);
            s->blocked[(size_t)a * ((size_t)s->n + 1) + (size_t)i + 1] = isnan(ms);
        }
        s->pace[a] = v->agents[a].usable ? 1 / YK_MAX(p[s->n], 1e-9) : 0;
    }
    for (int32_t i = s->n - 1; i >= 0; i--) {
        double least = INFINITY, work = INFINITY;
        for (int32_t a = 0; a < v->n_agents; a++) {
            double ms = s->m->node_ms[(size_t)a * (size_t)s->n + (size_t)i];
            if (v->agents[a].usable && ms < least)
                least = ms;
            if (s->pace[a] > 0 && ms * s->pace[a] < work)
                work = ms * s->pace[a];
        }
        s->rest[i] = s->rest[i + 1] + least;
        s->work[i] = s->work[i + 1] + work;
    }
}

/* Time of nodes p..q-1 on an agent. */
static double stage_ms(const struct search *s, int32_t agent, int32_t p, int32_t q)
{
    const double *at = s->prefix + (size_t)agent * ((size_t)s->n + 1);
    return at[q] - at[p];
}

static bool used_between(const struct search *s, int32_t value, int32_t p, int32_t q)
{
    int32_t low = s->use_at[value], high = s->use_at[value + 1], end = high;
    while (low < high) {
        int32_t mid = (low + high) / 2;
        if (s->uses[mid] < p)
            low = mid + 1;
        else
            high = mid;
    }
    return low < end && s->uses[low] < q;
}

/* ---- labels ---- */

static double *loads_of(const struct search *s, int32_t label)
{
    return s->loads + (size_t)label * (size_t)s->m->n_resources;
}

static int8_t *owners_of(const struct search *s, int32_t label)
{
    return s->owners + (size_t)label * (size_t)s->max_live;
}

static int32_t new_label(struct search *s)
{
    if (s->n_labels == s->cap_labels) {
        s->cap_labels = s->cap_labels ? 2 * s->cap_labels : 256;
        size_t cap = (size_t)s->cap_labels;
        s->labels = yk_xrealloc(s->labels, cap * sizeof *s->labels);
        s->loads = yk_xrealloc(s->loads, cap * (size_t)s->m->n_resources * sizeof *s->loads);
        s->owners = yk_xrealloc(s->owners, cap * (size_t)s->max_live);
    }
    return s->n_labels++;
}

static double cost_of(struct search *s, int32_t label)
{
    const double *load = loads_of(s, label);
    double top = 0;
    for (int32_t r = 0; r < s->m->n_resources; r++)
        top = load[r] > top ? load[r] : top;
    s->labels[label].top = top;
    return s->labels[label].sum + (double)(s->m->count - 1) * top;
}

/* No completion costs less. For weights pace[a] of the agents that are left, the largest of their loads is at least the
 * weighted mean of them, and that at least work / sum of the weights; their sum is at least work / the largest weight.
 */
static double bound_of(struct search *s, int32_t label)
{
    const struct label *l = &s->labels[label];
    double all = 0, best = 0, cost = cost_of(s, label);
    if (l->pos == s->n)
        return cost;
    for (int32_t a = 0; a < s->m->view->n_agents; a++)
        if (!(l->used >> a & 1) && s->pace[a] > 0) {
            all += s->pace[a];
            best = YK_MAX(best, s->pace[a]);
        }
    if (all <= 0)
        return INFINITY;
    double work = s->work[l->pos] * (1 - 1e-12), rest = YK_MAX(s->rest[l->pos] * (1 - 1e-12), work / best);
    return cost + rest + (double)(s->m->count - 1) * YK_MAX(0.0, work / all - l->top);
}

/* One end of a message. */
static void message(struct search *s, int32_t label, int32_t agent)
{
    double ms = agent >= 0 ? s->m->view->agents[agent].message_ms : 0;
    if (ms > 0) {
        s->labels[label].sum += ms;
        loads_of(s, label)[agent] += ms;
    }
}

/* Adds an edge of bytes to the label; false if there is no link. */
static bool transfer(struct search *s, int32_t label, int32_t from, int32_t to, int64_t bytes)
{
    double latency;
    if (from == to)
        return true;
    int32_t link = cost_link(s->m, from, to);
    if (link < 0)
        return false;
    double busy = cost_transfer_ms(s->m, link, bytes, &latency);
    s->labels[label].sum += busy + latency;
    loads_of(s, label)[s->m->link_resource[link]] += busy;
    message(s, label, from);
    message(s, label, to);
    return true;
}

/* What the new stage [p, q) on agent takes from each owner, and what it gives back to the source. */
static bool add_transfers(struct search *s, int32_t from_label, int32_t label, int32_t agent, int32_t p, int32_t q)
{
    const struct cut *live = &s->cuts.at[p];
    const int8_t *owner = owners_of(s, from_label);
    int64_t by_owner[SOLVE_DP_AGENTS + 1] = {0};
    bool any[SOLVE_DP_AGENTS + 1] = {false};
    for (int32_t k = 0; k < live->n_values; k++)
        if (used_between(s, live->values[k], p, q)) {
            by_owner[owner[k] + 1] += s->bytes[live->values[k]];
            any[owner[k] + 1] = true;
        }
    for (int32_t o = 0; o <= SOLVE_DP_AGENTS; o++)
        if (any[o] && !transfer(s, label, o == 0 ? s->source : o - 1, agent, by_owner[o]))
            return false;
    return s->returns[q] == s->returns[p] || transfer(s, label, agent, s->source, s->back[q] - s->back[p]);
}

static void set_owners(struct search *s, int32_t from_label, int32_t label, int32_t agent, int32_t p, int32_t q)
{
    const struct cut *before = &s->cuts.at[p], *after = &s->cuts.at[q];
    const int8_t *old = owners_of(s, from_label);
    int8_t *owner = owners_of(s, label);
    for (int32_t k = 0, b = 0; k < after->n_values; k++) {
        while (b < before->n_values && before->values[b] < after->values[k])
            b++;
        bool known = b < before->n_values && before->values[b] == after->values[k];
        owner[k] = known ? old[b] : (int8_t)agent;
    }
}

/* What a memory plan cannot exceed, without making one: every weight, output and boundary value in a place of its own.
 * Values that cross are inputs of the stage or, if it makes them, outputs. */
static void index_memory(struct search *s)
{
    const struct graph *g = s->m->graph;
    s->takes = yk_xalloc(((size_t)s->n + 1) * sizeof *s->takes);
    s->large = yk_xalloc(((size_t)s->n + 1) * sizeof *s->large);
    s->least = yk_xalloc(((size_t)s->n + 1) * sizeof *s->least);
    s->memory = yk_xalloc(REMEMBERED * sizeof *s->memory);
    for (int32_t i = 0; i < s->n; i++) {
        const struct node *node = &g->nodes[i];
        int64_t sum = s->m->table[i].packed_bytes, own = 0;
        for (int32_t k = 0; k < node->n_in; k++) {
            int32_t v = node->in[k];
            if (v >= 0 && g->values[v].kind == VALUE_WEIGHT && s->use_at[v + 1] - s->use_at[v] == 1)
                own += YK_MIN(YK_MAX(g->values[v].bytes, (int64_t)0), WEIGHT_MOST);
        }
        s->least[i + 1] = s->least[i] + own;
        struct use_note note = {.s = s};
        note.bytes = &sum;
        node_each_use(node, add_use, &note);
        for (int32_t k = 0; k < node->n_out; k++)
            if (node->out[k] >= 0)
                add_bytes(s, node->out[k], 2, &sum); /* in the arena, and as an output */
        if (!yk_add_i64(s->takes[i], sum, &s->takes[i + 1]))
            s->takes[i + 1] = INT64_MAX;
        s->large[i + 1] = YK_MAX(s->large[i], s->m->table[i].workspace_bytes);
    }
}

static bool surely_fits(const struct search *s, int64_t limit, int32_t p, int32_t q)
{
    int64_t most;
    return s->takes[q] < INT64_MAX && yk_add_i64(s->takes[q] - s->takes[p], s->large[q], &most) && most <= limit - 4096;
}

static bool never_fits(const struct search *s, int64_t limit, int32_t p, int32_t q)
{
    return s->least[q] - s->least[p] > limit;
}

static bool fits(struct search *s, int32_t agent, int32_t p, int32_t q)
{
    int64_t limit = s->m->view->agents[agent].memory_bytes;
    if (surely_fits(s, limit, p, q))
        return true;
    struct remembered *r = &s->memory[((uint32_t)p * 2654435761u ^ (uint32_t)q * 40503u) % REMEMBERED];
    if (r->q != q || r->p != p) {
        memset(s->in_stage, 0, (size_t)s->n);
        memset(s->in_stage + p, 1, (size_t)(q - p));
        *r = (struct remembered){p, q, INT64_MAX};
        if (cost_memory(s->m, s->in_stage, 1, &r->bytes, NULL) != YK_OK)
            r->bytes = INT64_MAX;
        if (cost_out_of_time(s->m))
            s->effort = EFFORT;
        s->effort += s->n / 2 + (int64_t)(q - p) * (q - p) / 32; /* buffers are placed one by one among all */
    }
    return r->bytes <= limit;
}

/* The resources whose load can still grow behind a label: agents that are left, those that will send or receive, and
 * links that end at an agent that is left and begin at one or at an owner of a live value, or go back to the source. */
static void find_open(struct search *s, int32_t label)
{
    const struct cost_model *m = s->m;
    const struct label *l = &s->labels[label];
    const int8_t *owner = owners_of(s, label);
    uint32_t left = 0, holds = 0;
    memset(s->open, 0, (size_t)m->n_resources);
    for (int32_t a = 0; a < m->view->n_agents; a++)
        if (!(l->used >> a & 1) && m->view->agents[a].usable) {
            left |= 1u << a;
            s->open[a] = true;
        }
    for (int32_t k = 0; k < s->cuts.at[l->pos].n_values; k++)
        holds |= 1u << (owner[k] < 0 ? s->source : owner[k]);
    for (int32_t a = 0; a < m->view->n_agents; a++)
        if (m->view->agents[a].message_ms > 0 && (a == s->source || (holds >> a & 1)))
            s->open[a] = true;
    for (int32_t i = 0; i < m->view->n_links; i++) {
        int32_t from = m->view->links[i].from, to = m->view->links[i].to;
        if (from < 0 || to < 0 || from >= m->view->n_agents || to >= m->view->n_agents)
            continue;
        bool new_from = left >> from & 1, new_to = left >> to & 1;
        if ((new_from && (new_to || to == s->source)) || (new_to && (holds >> from & 1)))
            s->open[m->link_resource[i]] = true;
    }
}

/* For labels with the same position, agents and owners: of a load that cannot grow only the largest counts. */
static bool no_worse(const struct search *s, int32_t a, int32_t b)
{
    if (s->labels[a].sum > s->labels[b].sum)
        return false;
    if (s->m->count <= 1)
        return true;
    if (s->labels[a].top > s->labels[b].top)
        return false;
    const double *x = loads_of(s, a), *y = loads_of(s, b);
    for (int32_t r = 0; r < s->m->n_resources; r++)
        if (s->open[r] && x[r] > y[r])
            return false;
    return true;
}

/* Keeps the newest label if nobody at its position makes it useless; drops those that it makes useless. */
static bool keep(struct search *s, int32_t label)
{
    struct label *l = &s->labels[label];
    size_t live = (size_t)s->cuts.at[l->pos].n_values;
    find_open(s, label);
    for (int32_t k = s->head[l->pos]; k >= 0; k = s->labels[k].next) {
        struct label *o = &s->labels[k];
        s->effort++;
        if (o->dead || o->used != l->used || memcmp(owners_of(s, k), owners_of(s, label), live) != 0)
            continue;
        if (no_worse(s, k, label))
            return false;
        if (no_worse(s, label, k))
            o->dead = true;
    }
    l->next = s->head[l->pos];
    s->head[l->pos] = label;
    return true;
}

static void record(struct search *s, int32_t label)
{
    struct solve_chain c = {.source = s->source, .n_stages = s->labels[label].stages, .cost_ms = cost_of(s, label)};
    for (int32_t k = label, i = c.n_stages - 1; i >= 0; i--, k = s->labels[k].parent) {
        c.agent[i] = s->labels[k].agent;
        c.end[i] = s->labels[k].pos;
    }
    for (int32_t i = 0; i < s->n_best; i++) { /* found by an earlier pass */
        const struct solve_chain *b = &s->best[i];
        if (b->n_stages == c.n_stages && memcmp(b->agent, c.agent, (size_t)c.n_stages * sizeof c.agent[0]) == 0 &&
            memcmp(b->end, c.end, (size_t)c.n_stages * sizeof c.end[0]) == 0)
            return;
    }
    int32_t at = s->n_best < s->most ? s->n_best++ : s->most - 1;
    for (; at > 0 && s->best[at - 1].cost_ms > c.cost_ms; at--)
        s->best[at] = s->best[at - 1];
    s->best[at] = c;
    s->limit = YK_MIN(s->limit, s->best[0].cost_ms * (1 + SLACK));
    if (s->n_best == s->most)
        s->limit = YK_MIN(s->limit, s->best[s->most - 1].cost_ms);
}

static bool pins_hold(const struct search *s, bool first, bool last, int32_t agent)
{
    const struct solve_request *r = s->m->req;
    return !(first && r->pin_first && agent != s->source) && !(last && r->pin_last && agent != s->source);
}

static void extend(struct search *s, int32_t from, int32_t agent)
{
    const struct label l = s->labels[from];
    const struct view_agent *a = &s->m->view->agents[agent];
    if ((l.used >> agent & 1) || !a->usable || a->memory_bytes <= 0)
        return;
    for (int32_t q = l.pos + 1; q <= s->n && s->effort < EFFORT; q++) {
        if (s->blocked[(size_t)agent * ((size_t)s->n + 1) + (size_t)q])
            return; /* a node that it cannot run: nor any longer stage */
        if (never_fits(s, a->memory_bytes, l.pos, q))
            return;
        if ((q % s->stride && q != s->n) || s->cuts.at[q].forbidden || !pins_hold(s, l.pos == 0, q == s->n, agent))
            continue;
        double ms = stage_ms(s, agent, l.pos, q);
        int32_t label = new_label(s);
        s->effort += 4;
        memcpy(loads_of(s, label), loads_of(s, from), (size_t)s->m->n_resources * sizeof(double));
        s->labels[label] = (struct label){.parent = from,
            .next = -1,
            .pos = q,
            .agent = agent,
            .stages = l.stages + 1,
            .used = l.used | 1u << agent,
            .sum = l.sum + ms};
        loads_of(s, label)[agent] += ms;
        bool good = add_transfers(s, from, label, agent, l.pos, q);
        good = good && bound_of(s, label) < s->limit && fits(s, agent, l.pos, q);
        if (good && q == s->n) {
            record(s, label);
            good = false; /* complete ones need no place */
        } else if (good) {
            set_owners(s, from, label, agent, l.pos, q);
            good = keep(s, label);
        }
        if (!good)
            s->n_labels--;
    }
}

static void run_pass(struct search *s)
{
    s->n_labels = 0;
    for (int32_t i = 0; i <= s->n; i++)
        s->head[i] = -1;
    int32_t root = new_label(s);
    s->labels[root] = (struct label){.parent = -1, .next = -1, .agent = -1};
    memset(loads_of(s, root), 0, (size_t)s->m->n_resources * sizeof(double));
    memset(owners_of(s, root), 0xff, (size_t)s->max_live);
    message(s, root, s->source);
    if (s->m->req->source < 0 && cost_link(s->m, -1, s->source) >= 0) {
        int64_t bytes = 0;
        for (int32_t i = 0; i < s->m->graph->n_inputs; i++)
            bytes += cost_value_bytes(s->m, s->m->graph->inputs[i], CODEC_FP32);
        transfer(s, root, -1, s->source, bytes);
    }
    s->head[0] = root;
    for (int32_t p = 0; p < s->n; p++)
        for (int32_t k = s->head[p]; k >= 0 && s->effort < EFFORT; k = s->labels[k].next)
            for (int32_t a = 0; a < s->m->view->n_agents && !s->labels[k].dead; a++) {
                if (cost_out_of_time(s->m))
                    s->effort = EFFORT;
                extend(s, k, a);
            }
}

yk_err solve_dp_chains(const struct cost_model *m, int32_t source, double limit_ms, double *bound_ms,
    struct solve_chain *best, int32_t most, int32_t *n, struct yk_diag *why)
{
    struct search s = {.m = m, .source = source, .n = m->graph->n_nodes, .limit = limit_ms, .best = best, .most = most};
    bool coarse = false;
    *n = 0;
    if (m->view->n_agents > SOLVE_DP_AGENTS)
        return yk_fail(why, YK_LIMIT, "%d agents; the exact solver takes %d", m->view->n_agents, SOLVE_DP_AGENTS);
    if (s.n == 0)
        return yk_fail(why, YK_INVAL, "the graph has no nodes to place");
    yk_err err = cut_all(m->graph, &m->shapes, &s.cuts, why);
    if (err)
        return err;
    for (int32_t i = 0; i < s.cuts.n; i++)
        s.max_live = YK_MAX(s.max_live, s.cuts.at[i].n_values);
    s.max_live = YK_MAX(s.max_live, 1);
    index_values(&s);
    index_times(&s);
    index_memory(&s);
    size_t positions = (size_t)s.n + 1;
    s.in_stage = yk_xalloc(positions);
    s.head = yk_xalloc(positions * sizeof *s.head);
    s.open = yk_xalloc((size_t)m->n_resources + 1);
    /* Few cuts first: what they find bounds the search among all of them. */
    for (s.stride = YK_MAX(s.n / COARSE, 1);; s.stride = s.stride > 4 ? s.stride / 4 : 1) {
        run_pass(&s);
        coarse = s.n > SOLVE_DP_FINE;
        if (s.stride == 1 || coarse || s.effort >= EFFORT)
            break;
    }
    *n = s.n_best;
    if (bound_ms) {
        double least = s.n_best ? best[0].cost_ms : limit_ms;
        *bound_ms = s.effort < EFFORT && !coarse ? least : YK_MIN(least, bound_of(&s, 0));
    }
    cuts_fini(&s.cuts);
    free(s.uses);
    free(s.use_at);
    free(s.returns);
    free(s.back);
    free(s.bytes);
    free(s.prefix);
    free(s.blocked);
    free(s.rest);
    free(s.work);
    free(s.pace);
    free(s.memory);
    free(s.takes);
    free(s.large);
    free(s.least);
    free(s.in_stage);
    free(s.labels);
    free(s.loads);
    free(s.owners);
    free(s.head);
    free(s.open);
    return YK_OK;
}
