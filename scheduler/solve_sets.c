#include "scheduler/solve_sets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- maximum flow (Dinic) ---- */

struct arc {
    int32_t to, next; /* arcs of one place; the reverse of arc i is i ^ 1 */
    double room;
};

struct flow {
    struct arc *arcs;
    int32_t n_arcs, cap_arcs;
    int32_t *head, *level, *at, *queue;
    int32_t n_places;
    double little; /* rooms below it are none: rounding */
};

enum { FROM = 0, TO = 1 };

static void add_half(struct flow *f, int32_t from, int32_t to, double room)
{
    if (f->n_arcs == f->cap_arcs) {
        f->cap_arcs = f->cap_arcs ? 2 * f->cap_arcs : 1024;
        f->arcs = yk_xrealloc(f->arcs, (size_t)f->cap_arcs * sizeof *f->arcs);
    }
    f->arcs[f->n_arcs] = (struct arc){to, f->head[from], room};
    f->head[from] = f->n_arcs++;
}

static void add_arc(struct flow *f, int32_t from, int32_t to, double room)
{
    if (room <= 0)
        return;
    add_half(f, from, to, room);
    add_half(f, to, from, 0);
}

static bool reach(struct flow *f)
{
    int32_t n = 0;
    memset(f->level, 0xff, (size_t)f->n_places * sizeof *f->level);
    f->level[FROM] = 0;
    f->queue[n++] = FROM;
    for (int32_t i = 0; i < n; i++)
        for (int32_t a = f->head[f->queue[i]]; a >= 0; a = f->arcs[a].next)
            if (f->arcs[a].room > f->little && f->level[f->arcs[a].to] < 0) {
                f->level[f->arcs[a].to] = f->level[f->queue[i]] + 1;
                f->queue[n++] = f->arcs[a].to;
            }
    return f->level[TO] >= 0;
}

/* One path to the end, by levels; what goes through it. queue holds its arcs. */
static double push(struct flow *f)
{
    int32_t n = 0, place = FROM;
    while (place != TO) {
        int32_t a = f->at[place];
        while (a >= 0 && !(f->arcs[a].room > f->little && f->level[f->arcs[a].to] == f->level[place] + 1))
            a = f->arcs[a].next;
        f->at[place] = a;
        if (a >= 0) {
            f->queue[n++] = a;
            place = f->arcs[a].to;
        } else if (n == 0) {
            return 0;
        } else {
            f->level[place] = -1; /* a dead end */
            place = f->arcs[f->queue[--n] ^ 1].to;
        }
    }
    double least = INFINITY;
    for (int32_t i = 0; i < n; i++)
        least = YK_MIN(least, f->arcs[f->queue[i]].room);
    for (int32_t i = 0; i < n; i++) {
        f->arcs[f->queue[i]].room -= least;
        f->arcs[f->queue[i] ^ 1].room += least;
    }
    return least;
}

/* Levels then say which side of the cut a place is on. INFINITY: nothing can be cut. */
static double run_flow(struct flow *f)
{
    double all = 0;
    while (reach(f)) {
        memcpy(f->at, f->head, (size_t)f->n_places * sizeof *f->at);
        for (double more = push(f); more > 0; more = push(f)) {
            all += more;
            if (isinf(more))
                return INFINITY;
        }
    }
    return all;
}

/* ---- the network ---- */

enum edge { INPUTS, BETWEEN, OUTPUTS, EDGES };

struct sets {
    const struct cost_model *m;
    int32_t source, other;
    bool source_first;
    double per_byte[EDGES], fixed[EDGES]; /* INFINITY: there is no link */
    struct flow f;
    uint32_t allowed; /* edges of this try */
    int32_t node;     /* of add_use */
    int32_t *with;    /* by node: one that it goes with in any case; itself: the place of all that do */
    double most_ms;   /* what a transfer may cost beside the least of all nodes */
    int32_t *seen;    /* by value: the node that was seen to read it last */
    bool *is_output;
};

static int32_t with(const struct sets *s, int32_t node)
{
    while (s->with[node] != node)
        node = s->with[node] = s->with[s->with[node]];
    return node;
}

static int32_t node_place(const struct sets *s, int32_t node)
{
    return 2 + with(s, node);
}

static int32_t value_place(const struct sets *s, int32_t value)
{
    return 2 + s->m->graph->n_nodes + value;
}

/* What value v costs on an edge; INFINITY where it must not travel. */
static double value_ms(const struct sets *s, enum edge e, int32_t v)
{
    const struct value *value = &s->m->graph->values[v];
    bool bad = value->type != VALUE_TENSOR || (e != OUTPUTS && !shapes_has(&s->m->shapes, v));
    if (bad || !(s->allowed >> e & 1) || isinf(s->per_byte[e]))
        return INFINITY;
    return (double)cost_value_bytes(s->m, v, cost_codec(s->m)) * s->per_byte[e];
}

static void add_use(void *arg, int32_t v)
{
    struct sets *s = arg;
    const struct value *value = &s->m->graph->values[v];
    int32_t node = node_place(s, s->node), place = value_place(s, v);
    if (s->seen[v] == s->node)
        return;
    s->seen[v] = s->node;
    if (value->kind == VALUE_INPUT && s->source_first) { /* the second set is away from it */
        add_arc(&s->f, place, node, INFINITY);
    } else if (value->kind == VALUE_INPUT) {
        add_arc(&s->f, node, place, INFINITY);
    } else if (value->kind != VALUE_WEIGHT && value->producer >= 0 && node_place(s, value->producer) != node) {
        add_arc(&s->f, place, node, INFINITY);
        add_arc(&s->f, node, node_place(s, value->producer), INFINITY); /* closed downwards */
    }
}

/* What is too dear to send is made and read in one place. */
static void join(void *arg, int32_t v)
{
    struct sets *s = arg;
    const struct value *value = &s->m->graph->values[v];
    if (value->kind != VALUE_INPUT && value->kind != VALUE_WEIGHT && value->producer >= 0 &&
        value_ms(s, BETWEEN, v) >= s->most_ms)
        s->with[with(s, value->producer)] = with(s, s->node);
}

static void make_network(struct sets *s)
{
    const struct graph *g = s->m->graph;
    struct flow *f = &s->f;
    int32_t n = g->n_nodes, a = s->source_first ? s->source : s->other, b = s->source_first ? s->other : s->source;
    f->n_arcs = 0;
    memset(f->head, 0xff, (size_t)f->n_places * sizeof *f->head);
    memset(s->seen, 0xff, ((size_t)g->n_values + 1) * sizeof *s->seen);
    for (int32_t v = 0; v < g->n_values; v++) {
        const struct value *value = &g->values[v];
        if (value->kind == VALUE_INPUT && s->source_first)
            add_arc(f, FROM, value_place(s, v), value_ms(s, INPUTS, v));
        else if (value->kind == VALUE_INPUT)
            add_arc(f, value_place(s, v), TO, value_ms(s, INPUTS, v));
        else if (value->kind != VALUE_WEIGHT && value->producer >= 0)
            add_arc(f, node_place(s, value->producer), value_place(s, v), value_ms(s, BETWEEN, v));
    }
    for (s->node = 0; s->node < n; s->node++) {
        const struct node *node = &g->nodes[s->node];
        double first = s->m->node_ms[(size_t)a * (size_t)n + (size_t)s->node];
        double second = s->m->node_ms[(size_t)b * (size_t)n + (size_t)s->node], back = 0;
        for (int32_t k = 0; k < node->n_out; k++)
            if (node->out[k] >= 0 && s->is_output[node->out[k]])
                back += value_ms(s, OUTPUTS, node->out[k]);
        *(s->source_first ? &second : &first) += back;
        add_arc(f, FROM, node_place(s, s->node), isnan(second) ? INFINITY : second);
        add_arc(f, node_place(s, s->node), TO, isnan(first) ? INFINITY : first);
        node_each_use(node, add_use, s);
    }
}

static void set_link(struct sets *s, enum edge e, int32_t from, int32_t to)
{
    const struct view *v = s->m->view;
    int32_t link = cost_link(s->m, from, to);
    s->per_byte[e] = s->fixed[e] = INFINITY;
    if (link < 0)
        return;
    const struct view_link *l = &v->links[link];
    s->per_byte[e] = 1e3 / l->bytes_per_s + l->cpu_ns_per_byte * 1e-6;
    s->fixed[e] = COST_HEADER_BYTES * s->per_byte[e] + l->latency_ms + YK_MAX(v->agents[from].message_ms, 0.0) +
                  YK_MAX(v->agents[to].message_ms, 0.0);
}

/* What every plan of this source costs: the result's message, uploaded inputs, and what goes back for them. */
static double always_ms(const struct cost_model *m, int32_t source)
{
    double message = YK_MAX(m->view->agents[source].message_ms, 0.0), ms = message;
    struct cost_edge e;
    if (cost_upload(m, source, &e))
        ms += e.busy_ms + e.latency_ms + message;
    if (cost_answer(m, source, &e))
        ms += e.busy_ms + e.latency_ms;
    return ms;
}

double solve_sets_pair(const struct cost_model *m, int32_t source, int32_t other, bool source_first, double below_ms,
    uint8_t *first, double *bound_ms)
{
    const struct graph *g = m->graph;
    struct sets s = {.m = m, .source = source, .other = other, .source_first = source_first};
    int32_t a = source_first ? source : other, b = source_first ? other : source;
    double always = always_ms(m, source), best = INFINITY, least = INFINITY;
    struct flow *f = &s.f;
    double alone = always;
    for (int32_t i = 0; i < g->n_nodes; i++) /* without any transfer */
        alone += fmin(m->node_ms[(size_t)source * (size_t)g->n_nodes + (size_t)i],
            m->node_ms[(size_t)other * (size_t)g->n_nodes + (size_t)i]);
    if (!(alone < below_ms)) {
        if (bound_ms)
            *bound_ms = below_ms;
        return INFINITY;
    }
    f->n_places = 2 + g->n_nodes + g->n_values;
    size_t places = (size_t)f->n_places;
    f->head = yk_xalloc(places * sizeof *f->head);
    f->level = yk_xalloc(places * sizeof *f->level);
    f->at = yk_xalloc(places * sizeof *f->at);
    f->queue = yk_xalloc((places + 1) * sizeof *f->queue);
    s.seen = yk_xalloc(((size_t)g->n_values + 1) * sizeof *s.seen);
    s.is_output = yk_xalloc((size_t)g->n_values + 1);
    for (int32_t i = 0; i < g->n_outputs; i++)
        s.is_output[g->outputs[i]] = true;
    set_link(&s, INPUTS, source, other);
    set_link(&s, BETWEEN, a, b);
    set_link(&s, OUTPUTS, other, source);
    f->little = 1e-12;
    s.allowed = (1u << EDGES) - 1;
    s.most_ms = below_ms - alone;
    s.with = yk_xalloc(((size_t)g->n_nodes + 1) * sizeof *s.with);
    for (int32_t i = 0; i < g->n_nodes; i++)
        s.with[i] = i;
    for (s.node = 0; s.node < g->n_nodes; s.node++)
        node_each_use(&g->nodes[s.node], join, &s);
    /* All edges for their bytes alone: a bound. Then for each choice of edges what they cost beside their bytes. */
    for (uint32_t tried = 0; tried <= 1u << EDGES; tried++) {
        double fixed = 0;
        s.allowed = tried == 0 ? (1u << EDGES) - 1 : tried - 1;
        for (int e = 0; e < EDGES; e++)
            fixed += s.allowed >> e & 1 ? s.fixed[e] : 0;
        if (tried > 0 && (isinf(fixed) || least + fixed >= YK_MIN(below_ms, best)))
            continue;
        make_network(&s);
        double ms = run_flow(f) + always;
        if (tried == 0) {
            least = ms;
            if (least >= below_ms)
                break;
            continue;
        }
        if (ms + fixed < YK_MIN(below_ms, best)) {
            best = ms + fixed;
            for (int32_t i = 0; i < g->n_nodes; i++)
                first[i] = f->level[node_place(&s, i)] >= 0;
        }
    }
    if (bound_ms)
        *bound_ms = YK_MIN(best, below_ms) * (1 - 1e-9);
    free(f->arcs);
    free(f->head);
    free(f->level);
    free(f->at);
    free(f->queue);
    free(s.with);
    free(s.seen);
    free(s.is_output);
    return best;
}

struct reads {
    int32_t *readers, *last; /* by value: nodes that read it, and the last of them */
    int32_t node;
};

static void count_read(void *arg, int32_t v)
{
    struct reads *r = arg;
    if (r->last[v] == r->node)
        return;
    r->last[v] = r->node;
    r->readers[v]++;
}

bool solve_sets_pays(const struct graph *g)
{
    struct reads r = {.readers = yk_xalloc(((size_t)g->n_values + 1) * sizeof *r.readers)};
    bool pays = false;
    r.last = yk_xalloc(((size_t)g->n_values + 1) * sizeof *r.last);
    memset(r.last, 0xff, ((size_t)g->n_values + 1) * sizeof *r.last);
    for (r.node = 0; r.node < g->n_nodes && g->n_nodes <= SOLVE_SETS_NODES; r.node++)
        node_each_use(&g->nodes[r.node], count_read, &r);
    for (int32_t v = 0; v < g->n_values && !pays; v++)
        pays = g->values[v].kind != VALUE_WEIGHT && r.readers[v] > 1;
    for (int32_t i = 0; i < g->n_nodes && !pays && g->n_nodes <= SOLVE_SETS_NODES; i++) {
        int32_t made = 0, before = 0;
        for (int32_t k = 0; k < g->nodes[i].n_in; k++) {
            int32_t v = g->nodes[i].in[k];
            made += v >= 0 && g->values[v].kind != VALUE_WEIGHT;
            before += v >= 0 && g->values[v].kind == VALUE_NODE && g->values[v].producer == i - 1;
        }
        pays = made > 1 || (i > 0 && before == 0); /* a branch of its own */
    }
    free(r.readers);
    free(r.last);
    return pays;
}
