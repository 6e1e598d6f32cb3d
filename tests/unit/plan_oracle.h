/* An oracle for the planner: its own words for the closed form of scheduler/cost.h and its own way through every plan.
 * It shares the types of graphs, plans and snapshots with the planner, and memplan (what an agent will allocate), but
 * nothing of cost, of a solver or of the edges between stages. Slow and plain on purpose: it tries everything. */
#ifndef YK_TEST_PLAN_ORACLE_H
#define YK_TEST_PLAN_ORACLE_H

#include <math.h>

#include "common/memplan.h"
#include "common/op.h"
#include "tests/unit/plan_fleet.h"

#define PO_NODES 128
#define PO_STAGES 16
#define PO_RESOURCES (PF_AGENTS + 2 * PF_LINKS)

struct po {
    const struct solve_request *q;
    const struct view *v;
    const struct graph *g;
    int64_t m, M;
    struct shapes shapes;
    struct memplan_node table[PO_NODES];
    double ms[PF_AGENTS][PO_NODES];                  /* NaN: cannot run there */
    int32_t best_link[PF_AGENTS + 1][PF_AGENTS + 1]; /* [from + 1][to + 1]; -1 none */
};

struct po_line { /* a pipeline and its price */
    int32_t source, n_stages;
    int32_t agent[PO_STAGES];
    int32_t stage_of[PO_NODES];
    double first, bottleneck, load[PO_RESOURCES];
};

/* ---- times of nodes ---- */

static inline const struct view_time *po_row(const struct view_agent *a, int32_t node, int32_t form, int k)
{
    for (int32_t i = 0; i < a->n_times; i++)
        if (a->times[i].node == node && a->times[i].form == form && k-- == 0)
            return &a->times[i];
    return NULL;
}

/* The form that most agents have; of those the one with the least mean time a sample at the largest size. */
static inline int32_t po_form(const struct view *v, int32_t node)
{
    int32_t best = -1, best_have = 0;
    double best_mean = 0;
    for (int32_t f = 0; f < v->n_forms; f++) {
        int32_t have = 0;
        double sum = 0;
        for (int32_t a = 0; a < v->n_agents; a++) {
            const struct view_time *last = NULL, *t;
            for (int k = 0; v->agents[a].usable && (t = po_row(&v->agents[a], node, f, k)); k++)
                last = t;
            if (last) {
                have++;
                sum += last->ms / (double)last->size;
            }
        }
        if (have > best_have || (have && have == best_have && sum / have < best_mean)) {
            best = f;
            best_have = have;
            best_mean = sum / have;
        }
    }
    return best;
}

static inline double po_profiled(const struct view_agent *a, int32_t node, int32_t form, double size)
{
    const struct view_time *low = NULL, *high = NULL, *t;
    for (int k = 0; (t = po_row(a, node, form, k)); k++) {
        if ((double)t->size <= size)
            low = t;
        if ((double)t->size >= size && !high)
            high = t;
    }
    if (!low && !high)
        return NAN;
    if (!low) /* half of the smallest is fixed */
        return high->ms / 2 + high->ms / 2 * size / (double)high->size;
    if (!high)
        return low->ms * size / (double)low->size;
    if (low == high)
        return low->ms;
    double part = (size - (double)low->size) / (double)(high->size - low->size);
    return low->ms * (1 - part) + high->ms * part;
}

static inline void po_times(struct po *o)
{
    struct op_ctx *ctx = calloc(1, sizeof *ctx);
    assert_non_null(ctx);
    for (int32_t i = 0; i < o->g->n_nodes; i++) {
        int32_t form = po_form(o->v, i);
        shapes_node(o->g, &o->shapes, i, ctx);
        for (int32_t k = 0; k < o->v->n_agents; k++) {
            const struct view_agent *a = &o->v->agents[k];
            double ms = NAN;
            if (a->n_times > 0) {
                ms = form < 0 ? NAN : po_profiled(a, i, form, (double)o->m);
                const struct view_time *t;
                for (int r = 0; form >= 0 && (t = po_row(a, i, form, r)); r++)
                    if (!po_row(a, i, form, r + 1)) { /* what the largest size needs */
                        o->table[i].packed_bytes = YK_MAX(o->table[i].packed_bytes, t->packed_bytes);
                        o->table[i].workspace_bytes = YK_MAX(o->table[i].workspace_bytes, t->workspace_bytes);
                    }
            } else if (a->gflops > 0) {
                ms = op_flops(ctx) / (a->gflops * 1e6);
                if (a->gbytes_per_s > 0)
                    ms += op_bytes(ctx) / (a->gbytes_per_s * 1e6);
            }
            o->ms[k][i] = ms * a->slow_factor / (1 - a->busy_frac);
        }
    }
    free(ctx);
}

static inline void po_init(struct po *o, const struct solve_request *q, const struct view *v, int64_t microbatch)
{
    int64_t sizes[8];
    memset(o, 0, sizeof *o);
    o->q = q;
    o->v = v;
    o->g = q->graph;
    o->m = microbatch;
    o->M = 0;
    for (int64_t done = 0; done < q->batch; done += microbatch)
        o->M++;
    assert_true(q->graph->n_nodes <= PO_NODES && v->n_agents <= PF_AGENTS && q->graph->n_syms <= 8);
    graph_sizes(q->graph, q->sizes, microbatch, sizes);
    assert_int_equal(shapes_infer(q->graph, sizes, NULL, &o->shapes, NULL), YK_OK);
    po_times(o);
    for (int32_t from = -1; from < v->n_agents; from++)
        for (int32_t to = -1; to < v->n_agents; to++) {
            int32_t best = -1;
            for (int32_t i = 0; i < v->n_links; i++) {
                const struct view_link *l = &v->links[i];
                if (l->from == from && l->to == to && l->origin != VIEW_UNKNOWN && l->bytes_per_s > 0 &&
                    (best < 0 || l->bytes_per_s > v->links[best].bytes_per_s))
                    best = i;
            }
            o->best_link[from + 1][to + 1] = best;
        }
}

static inline void po_fini(struct po *o)
{
    shapes_fini(&o->shapes);
}

/* ---- the price of a pipeline ---- */

/* What every edge may be encoded as: fp32 always, others where the request allows them; the best of all is taken. */
static inline double po_bytes(const struct po *o, int32_t value)
{
    const struct shape *s = &o->shapes.of[value];
    double n = 1, size = (double)dtype_bytes(s->dtype);
    for (int32_t d = 0; d < s->rank; d++)
        n *= (double)s->dims[d];
    const bool *allowed = o->q->codec_allowed;
    if (s->dtype == DT_F32 && allowed) {
        size = allowed[CODEC_FP16] ? YK_MIN(size, 2) : size;
        size = allowed[CODEC_INT8] ? YK_MIN(size, 1) : size;
    }
    return n * size;
}

static inline int32_t po_resource(const struct po *o, int32_t link)
{
    int32_t shared = o->v->links[link].shared; /* a medium is as good as its number */
    return shared >= 0 ? PF_AGENTS + PF_LINKS + shared : PF_AGENTS + link;
}

static inline void po_message(const struct po *o, struct po_line *l, int32_t agent)
{
    if (agent >= 0) {
        l->load[agent] += o->v->agents[agent].message_ms;
        l->first += o->v->agents[agent].message_ms;
    }
}

/* False: no link that is known. */
static inline bool po_send(const struct po *o, struct po_line *l, int32_t from, int32_t to, double bytes)
{
    if (from == to)
        return true;
    int32_t link = o->best_link[from + 1][to + 1];
    if (link < 0)
        return false;
    const struct view_link *k = &o->v->links[link];
    double all = bytes + 512, busy = 1e3 * all / k->bytes_per_s + all * k->cpu_ns_per_byte / 1e6;
    l->load[po_resource(o, link)] += busy;
    l->first += busy + k->latency_ms;
    po_message(o, l, from);
    po_message(o, l, to);
    return true;
}

static inline bool po_is_output(const struct graph *g, int32_t value)
{
    for (int32_t i = 0; i < g->n_outputs; i++)
        if (g->outputs[i] == value)
            return true;
    return false;
}

static inline bool po_stays(const struct graph *g, int32_t value)
{
    for (int32_t i = g->n_outputs - g->n_staying; i < g->n_outputs; i++)
        if (g->outputs[i] == value)
            return true;
    return false;
}

/* Whether stage s reads the value. */
static inline bool po_reads(const struct po *o, const struct po_line *l, int32_t s, int32_t value)
{
    for (int32_t i = 0; i < o->g->n_nodes; i++)
        for (int32_t k = 0; l->stage_of[i] == s && k < o->g->nodes[i].n_in; k++)
            if (o->g->nodes[i].in[k] == value)
                return true;
    return false;
}

/* From one stage (-1: the source) to all: what several stages of one agent read from it and share travels once. */
static inline bool po_send_from(const struct po *o, struct po_line *l, int32_t from)
{
    const struct graph *g = o->g;
    int32_t home = from < 0 ? l->source : l->agent[from], group[PO_STAGES];
    bool ok = true;
    for (int32_t s = 0; s < l->n_stages; s++)
        group[s] = s;
    for (int again = 1; again;) {
        again = 0;
        for (int32_t v = 0; v < g->n_values; v++) {
            int32_t p = g->values[v].producer;
            if (g->values[v].kind == VALUE_WEIGHT || (p >= 0 ? l->stage_of[p] : -1) != from)
                continue;
            for (int32_t s = 0; s < l->n_stages; s++)
                for (int32_t t = 0; t < l->n_stages; t++)
                    if (s != from && t != from && l->agent[s] == l->agent[t] && group[s] < group[t] &&
                        po_reads(o, l, s, v) && po_reads(o, l, t, v)) {
                        group[t] = group[s];
                        again = 1;
                    }
        }
    }
    for (int32_t s = 0; s < l->n_stages; s++) { /* one transfer a group */
        double bytes = 0;
        bool any = false;
        for (int32_t v = 0; v < g->n_values; v++) {
            int32_t p = g->values[v].producer;
            if (g->values[v].kind == VALUE_WEIGHT || (p >= 0 ? l->stage_of[p] : -1) != from)
                continue;
            bool read = false;
            for (int32_t t = 0; t < l->n_stages; t++)
                read = read || (t != from && group[t] == s && po_reads(o, l, t, v));
            bytes += read ? po_bytes(o, v) : 0;
            any = any || read;
        }
        if (any)
            ok = ok && po_send(o, l, home, l->agent[s], bytes);
    }
    if (from >= 0) { /* results */
        double bytes = 0;
        bool any = false;
        for (int32_t v = 0; v < g->n_values; v++) {
            int32_t p = g->values[v].producer;
            if (p >= 0 && l->stage_of[p] == from && po_is_output(g, v) && !po_stays(g, v)) {
                bytes += po_bytes(o, v);
                any = true;
            }
        }
        if (any)
            ok = ok && po_send(o, l, home, l->source, bytes);
    }
    return ok;
}

/* What yoked and a source that was chosen send each other goes as it is, on links that are known. The samples of a
 * training come once for all its epochs. */
static inline void po_upload(const struct po *o, struct po_line *l)
{
    int32_t link = o->q->source < 0 ? o->best_link[0][l->source + 1] : -1;
    double bytes = 512, part = o->q->upload_frac > 0 ? o->q->upload_frac : 1;
    if (link < 0)
        return;
    const struct view_link *k = &o->v->links[link];
    for (int32_t i = 0; i < o->g->n_inputs; i++)
        bytes += (double)shape_bytes(&o->shapes.of[o->g->inputs[i]]);
    double busy = part * (1e3 * bytes / k->bytes_per_s + bytes * k->cpu_ns_per_byte / 1e6);
    l->load[po_resource(o, link)] += busy;
    l->first += busy + part * k->latency_ms;
    po_message(o, l, l->source);
}

static inline bool po_answer(const struct po *o, struct po_line *l)
{
    double bytes = 0;
    if (o->q->source >= 0 || !o->q->answers || o->best_link[l->source + 1][0] < 0)
        return false;
    for (int32_t i = 0; i < o->g->n_outputs; i++)
        bytes += (double)shape_bytes(&o->shapes.of[o->g->outputs[i]]);
    return po_send(o, l, l->source, -1, bytes); /* with the message of the result */
}

/* source, agents and stages are set. False: a node or a link is missing. */
static inline bool po_price(const struct po *o, struct po_line *l)
{
    l->first = l->bottleneck = 0;
    memset(l->load, 0, sizeof l->load);
    for (int32_t i = 0; i < o->g->n_nodes; i++) {
        int32_t a = l->agent[l->stage_of[i]];
        if (isnan(o->ms[a][i]))
            return false;
        l->load[a] += o->ms[a][i];
        l->first += o->ms[a][i];
    }
    if (!po_answer(o, l))
        po_message(o, l, l->source); /* the result to yoked */
    po_upload(o, l);
    for (int32_t s = -1; s < l->n_stages; s++)
        if (!po_send_from(o, l, s))
            return false;
    for (int32_t r = 0; r < PO_RESOURCES; r++)
        l->bottleneck = YK_MAX(l->bottleneck, l->load[r]);
    return true;
}

static inline double po_cost(const struct po *o, const struct po_line *l)
{
    return l->first + (double)(o->M - 1) * l->bottleneck;
}

/* Several pipelines, each with so many microbatches. */
static inline double po_cost_all(const struct po_line *const *lines, const int64_t *counts, int32_t n)
{
    double worst = 0;
    for (int32_t i = 0; i < n; i++)
        worst = YK_MAX(worst, lines[i]->first + (double)(counts[i] - 1) * lines[i]->bottleneck);
    for (int32_t r = 0; r < PO_RESOURCES; r++) {
        double sum = 0;
        for (int32_t i = 0; i < n; i++)
            sum += (double)counts[i] * lines[i]->load[r];
        worst = YK_MAX(worst, sum);
    }
    return worst;
}

/* ---- memory ---- */

/* Bytes of a stage at a depth: memplan, and what an optimizer keeps. */
static inline int64_t po_memory(const struct po *o, const struct po_line *l, int32_t stage, int32_t depth)
{
    uint8_t in_stage[PO_NODES] = {0};
    struct memplan p;
    for (int32_t i = 0; i < o->g->n_nodes; i++)
        in_stage[i] = l->stage_of[i] == stage;
    assert_int_equal(memplan_make(o->g, &o->shapes, in_stage, o->table, depth, &p, NULL), YK_OK);
    int64_t bytes = p.total_bytes + (o->q->training ? p.stay_bytes * o->q->training->state_bytes : 0);
    memplan_fini(&p);
    return bytes;
}

static inline bool po_fits(const struct po *o, const struct po_line *l)
{
    int64_t need[PF_AGENTS] = {0};
    for (int32_t s = 0; s < l->n_stages; s++)
        need[l->agent[s]] += po_memory(o, l, s, 1);
    for (int32_t a = 0; a < o->v->n_agents; a++)
        if (need[a] > o->v->agents[a].memory_bytes)
            return false;
    return true;
}

/* ---- every plan ---- */

struct po_best {
    double cost_ms;
    double cloud_ms; /* objective cloud-cost: the least of a plan in time; cost_ms is the least of those */
    int64_t microbatch;
    int32_t source, n_lines; /* n_lines 0: nothing is possible */
    struct po_line line;     /* the best single pipeline of them, or the last of the pipelines */
};

/* Every pipeline of distinct agents over consecutive nodes, where the last may be the source again if the first is, for
 * one source: into lines, at most `most` of them; with
 * lines NULL only the best one, to *best, and then what its nodes alone make dearer is not gone into. */
struct po_walk {
    const struct po *o;
    int32_t source;
    struct po_line *lines;
    int32_t n, most;
    struct po_line now;
    struct po_best *best;
};

/* Objective cloud-cost within a deadline, of one batch. */
static inline bool po_thrift(const struct solve_request *q)
{
    return q->objective == SOLVE_CLOUD_COST && q->deadline_ms > 0;
}

/* What agents of class cloud compute of a step. */
static inline double po_cloud(const struct po *o, const struct po_line *l)
{
    double ms = 0;
    for (int32_t i = 0; i < o->g->n_nodes; i++)
        if (strcmp(o->v->agents[l->agent[l->stage_of[i]]].class_name, "cloud") == 0)
            ms += o->ms[l->agent[l->stage_of[i]]][i];
    return (double)o->M * ms;
}

static inline void po_found(struct po_walk *w)
{
    double cost = po_cost(w->o, &w->now);
    if (po_thrift(w->o->q)) {
        double cloud = po_cloud(w->o, &w->now), least = w->best->cloud_ms;
        if (cost > w->o->q->deadline_ms || cloud > least * (1 + 1e-12))
            return;
        if (cloud < least * (1 - 1e-12))
            w->best->cost_ms = INFINITY;
        w->best->cloud_ms = cloud;
    }
    if (w->lines) {
        assert_true(w->n < w->most);
        w->lines[w->n++] = w->now;
    }
    if (cost < w->best->cost_ms) {
        w->best->cost_ms = cost;
        w->best->microbatch = w->o->m;
        w->best->source = w->source;
        w->best->n_lines = 1;
        w->best->line = w->now;
    }
}

/* Of the stages so far: their nodes' times and the busiest agent. */
static inline bool po_hopeless(const struct po_walk *w, const int32_t *end, int32_t stages)
{
    double sum = 0, top = 0;
    for (int32_t s = 0, i = 0; s < stages && !w->lines; s++) {
        double ms = 0;
        for (; i < end[s]; i++)
            ms += w->o->ms[w->now.agent[s]][i];
        sum += ms;
        top = YK_MAX(top, ms);
    }
    double most = po_thrift(w->o->q) ? w->o->q->deadline_ms : w->best->cost_ms;
    return isnan(sum) || (sum + (double)(w->o->M - 1) * top) * (1 - 1e-9) > most;
}

static inline void po_visit(struct po_walk *w, int32_t *end, int32_t from)
{
    const struct po *o = w->o;
    struct po_line *l = &w->now;
    if (po_hopeless(w, end, l->n_stages))
        return;
    if (from == o->g->n_nodes) {
        bool pinned =
            (o->q->pin_first && l->agent[0] != w->source) || (o->q->pin_last && l->agent[l->n_stages - 1] != w->source);
        if (!pinned && po_price(o, l) && po_fits(o, l))
            po_found(w);
        return;
    }
    int32_t s = l->n_stages++;
    for (int32_t a = 0; a < o->v->n_agents; a++) {
        bool taken = !o->v->agents[a].usable || o->v->agents[a].memory_bytes <= 0;
        bool again = s > 1 && a == w->source && l->agent[0] == a; /* then it ends there */
        for (int32_t k = 0; k < s; k++)
            taken = taken || (l->agent[k] == a && !again);
        l->agent[s] = a;
        for (int32_t to = from + 1; !taken && to <= o->g->n_nodes; to++) {
            l->stage_of[to - 1] = s;
            if (again && to < o->g->n_nodes)
                continue;
            end[s] = to;
            po_visit(w, end, to);
        }
    }
    l->n_stages--;
}

/* The nodes of a training belong to blocks of consecutive forward nodes: a stage for what is before the backward part,
 * then, last block first, a stage for the rest of each block that has a rest; the last block is one stage. */
static inline void po_training_stages(
    const struct solve_training *t, int32_t n_nodes, const int32_t *end, int32_t blocks, struct po_line *l)
{
    int32_t stage[PO_STAGES];
    for (int32_t b = 0; b < blocks; b++)
        stage[b] = -1;
    l->n_stages = blocks;
    for (int32_t b = blocks - 1; b >= 0; b--)
        for (int32_t i = 0; i < n_nodes; i++) {
            int32_t home = 0;
            while (t->of[i] >= end[home])
                home++;
            if (home != b)
                continue;
            if (i < t->first_backward || b == blocks - 1) {
                l->stage_of[i] = b;
                continue;
            }
            if (stage[b] < 0) {
                l->agent[l->n_stages] = l->agent[b];
                stage[b] = l->n_stages++;
            }
            l->stage_of[i] = stage[b];
        }
}

static inline void po_visit_training(struct po_walk *w, int32_t *end, int32_t blocks, int32_t from)
{
    const struct po *o = w->o;
    const struct solve_training *t = o->q->training;
    if (from == t->n_forward) {
        struct po_line *l = &w->now;
        po_training_stages(t, o->g->n_nodes, end, blocks, l);
        bool pinned =
            (o->q->pin_first && l->agent[0] != w->source) || (o->q->pin_last && l->agent[l->n_stages - 1] != w->source);
        if (!pinned && po_price(o, l) && po_fits(o, l))
            po_found(w);
        return;
    }
    for (int32_t a = 0; a < o->v->n_agents; a++) {
        bool taken = !o->v->agents[a].usable || o->v->agents[a].memory_bytes <= 0;
        for (int32_t k = 0; k < blocks; k++)
            taken = taken || w->now.agent[k] == a;
        for (end[blocks] = from + 1; !taken && end[blocks] <= t->n_forward; end[blocks]++) {
            w->now.agent[blocks] = a;
            po_visit_training(w, end, blocks + 1, end[blocks]);
        }
    }
}

/* Every two sets of nodes, on the source and another agent, of which the second needs the first but not the other way
 * round. */
static inline void po_visit_sets(struct po_walk *w)
{
    const struct po *o = w->o;
    int32_t n = o->g->n_nodes;
    assert_true(n < 20);
    for (uint32_t first = 1; first + 1 < 1u << n; first++) {
        bool closed = true;
        for (int32_t i = 0; i < n && closed; i++)
            for (int32_t k = 0; k < o->g->nodes[i].n_in && first >> i & 1; k++) {
                int32_t made = o->g->values[o->g->nodes[i].in[k]].producer;
                closed = closed && (made < 0 || first >> made & 1);
            }
        for (int32_t a = 0; a < o->v->n_agents && closed; a++)
            for (int back = 0; back < 2; back++) {
                struct po_line *l = &w->now;
                if (a == w->source || !o->v->agents[a].usable || o->v->agents[a].memory_bytes <= 0 ||
                    !o->v->agents[w->source].usable || (o->q->pin_first && back) || (o->q->pin_last && !back))
                    continue;
                l->n_stages = 2;
                l->agent[back] = w->source;
                l->agent[!back] = a;
                for (int32_t i = 0; i < n; i++)
                    l->stage_of[i] = !(first >> i & 1);
                if (po_price(o, l) && po_cost(o, l) < w->best->cost_ms && po_fits(o, l))
                    po_found(w);
            }
    }
}

static inline bool po_apart(const struct po_line *a, const struct po_line *b)
{
    for (int32_t i = 0; i < a->n_stages; i++)
        for (int32_t k = 0; k < b->n_stages; k++)
            if (a->agent[i] == b->agent[k])
                return false;
    return true;
}

/* Every way to share `left` microbatches among the pipelines from `at` on. */
static inline double po_shares(
    const struct po_line *const *lines, int64_t *counts, int32_t n, int32_t at, int64_t left, double best)
{
    if (at == n - 1) {
        counts[at] = left;
        return left > 0 ? YK_MIN(best, po_cost_all(lines, counts, n)) : best;
    }
    for (counts[at] = 1; counts[at] < left; counts[at]++) {
        if (lines[at]->first + (double)(counts[at] - 1) * lines[at]->bottleneck >= best) /* more only takes longer */
            break;
        best = po_shares(lines, counts, n, at + 1, left - counts[at], best);
    }
    return best;
}

static inline double po_sets(
    const struct po_walk *w, const struct po_line **chosen, int32_t n, int32_t from, double best)
{
    int64_t counts[PF_AGENTS];
    if (n > 1 && n <= w->o->M)
        best = po_shares(chosen, counts, n, 0, w->o->M, best);
    for (int32_t i = from; i < w->n; i++) {
        bool good = w->lines[i].first < best;
        for (int32_t k = 0; k < n && good; k++)
            good = po_apart(chosen[k], &w->lines[i]);
        if (good) {
            chosen[n] = &w->lines[i];
            best = po_sets(w, chosen, n + 1, i + 1, best);
        }
    }
    return best;
}

/* The least cost of all plans; INFINITY: there is none. */
static inline void po_solve(const struct solve_request *q, const struct view *v, struct po_best *best)
{
    static struct po_line lines[4096];
    int64_t size = q->microbatch > 0 ? q->microbatch : strcmp(q->job, "infer") == 0 ? q->batch : 1;
    memset(best, 0, sizeof *best);
    best->cost_ms = best->cloud_ms = INFINITY;
    for (bool last = false; !last; size *= 2) {
        struct po o;
        last = q->microbatch > 0 || size >= q->batch;
        po_init(&o, q, v, q->microbatch > 0 ? size : YK_MIN(size, q->batch));
        for (int32_t source = 0; source < v->n_agents; source++) {
            if (q->source >= 0 ? source != q->source : !v->agents[source].usable)
                continue;
            bool several = q->replicas && !q->training && !q->pin_first && !q->pin_last;
            struct po_walk w = {.o = &o, .source = source, .most = (int32_t)YK_COUNT(lines), .best = best};
            w.lines = several ? lines : NULL;
            w.now.source = source;
            int32_t end[PO_STAGES];
            if (q->training)
                po_visit_training(&w, end, 0, 0);
            else
                po_visit(&w, end, 0);
            if (q->objective == SOLVE_LATENCY && o.M == 1 && !q->training)
                po_visit_sets(&w);
            if (several) {
                const struct po_line *chosen[PF_AGENTS + 1];
                double cost = po_sets(&w, chosen, 0, 0, best->cost_ms);
                if (cost < best->cost_ms) {
                    best->cost_ms = cost;
                    best->microbatch = o.m;
                    best->source = source;
                    best->n_lines = 2; /* or more */
                }
            }
        }
        po_fini(&o);
    }
}

/* What a plan costs by the same words, whoever made it; cloud_ms (of one pipeline) may be NULL. NaN: it is none: `bad`
 * says why. */
static inline double po_plan_cost(
    const struct solve_request *q, const struct view *v, const struct plan *p, double *cloud_ms, const char **bad)
{
    static struct po_line lines[PF_AGENTS];
    const struct po_line *at[PF_AGENTS];
    int64_t counts[PF_AGENTS], given = 0;
    int64_t need[PF_AGENTS] = {0};
    struct po o;
    double cost = NAN, shares = 0;
    int32_t source = -1;
    *bad = NULL;
    po_init(&o, q, v, p->microbatch);
    for (int32_t a = 0; a < v->n_agents; a++)
        if (strcmp(v->agents[a].name, p->source) == 0)
            source = a;
    if (source < 0 || p->n_pipelines > PF_AGENTS || p->n_pipelines < 1)
        *bad = "no source, or too many pipelines";
    for (int32_t i = 0; i < p->n_pipelines && !*bad; i++) {
        const struct plan_pipeline *line = &p->pipelines[i];
        struct po_line *l = &lines[i];
        *l = (struct po_line){.source = source, .n_stages = line->n_stages};
        for (int32_t k = 0; k < q->graph->n_nodes; k++)
            l->stage_of[k] = -1;
        for (int32_t s = 0; s < line->n_stages && !*bad; s++) {
            l->agent[s] = -1;
            for (int32_t a = 0; a < v->n_agents; a++)
                if (strcmp(v->agents[a].name, line->stages[s].agent) == 0)
                    l->agent[s] = a;
            if (l->agent[s] < 0 || !v->agents[l->agent[s]].usable)
                *bad = "a stage on an agent that is none, or not usable";
            int32_t had = 0;
            for (int32_t r = 0; r < line->stages[s].n_nodes && !*bad; r++)
                for (int32_t k = line->stages[s].nodes[r].first; k <= line->stages[s].nodes[r].last; k++, had++) {
                    if (k < 0 || k >= q->graph->n_nodes || l->stage_of[k] >= 0)
                        *bad = "a node twice, or one that is none";
                    else
                        l->stage_of[k] = s;
                }
            if (!*bad && !had)
                *bad = "an empty stage";
        }
        for (int32_t k = 0; k < q->graph->n_nodes && !*bad; k++)
            if (l->stage_of[k] < 0)
                *bad = "a node is lost";
        for (int32_t s = 0; s < line->n_stages && !*bad; s++) {
            int64_t bytes = po_memory(&o, l, s, line->depth);
            need[l->agent[s]] += bytes;
            if (bytes != line->stages[s].memory_bytes)
                *bad = "memory_bytes of a stage is not what its agent will allocate";
        }
        if (!*bad && ((q->pin_first && l->agent[0] != source) || (q->pin_last && l->agent[l->n_stages - 1] != source)))
            *bad = "a pin does not hold";
        if (!*bad && !po_price(&o, l))
            *bad = "it needs a node or a link that is not there";
        shares += line->share;
        int64_t until = i + 1 == p->n_pipelines ? o.M : (int64_t)llround(shares * (double)o.M);
        counts[i] = until - given;
        given = until;
        at[i] = l;
        if (!*bad && counts[i] < 1)
            *bad = "a pipeline without microbatches";
    }
    for (int32_t a = 0; a < v->n_agents && !*bad; a++)
        if (need[a] > YK_MAX(v->agents[a].memory_bytes, (int64_t)0))
            *bad = "an agent over its memory";
    if (!*bad && q->source >= 0 && source != q->source)
        *bad = "another source than was asked for";
    if (!*bad && cloud_ms)
        *cloud_ms = p->n_pipelines == 1 ? po_cloud(&o, at[0]) : NAN;
    if (!*bad)
        cost = p->n_pipelines == 1 ? po_cost(&o, at[0]) : po_cost_all(at, counts, p->n_pipelines);
    po_fini(&o);
    return cost;
}

#endif
