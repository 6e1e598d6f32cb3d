/* Indexes of the exact solver: who reads a value and when, times of ranges of nodes, links between agents and which
 * agents are alike, memory from above and from below. */
#include "scheduler/solve_search.h"

#include "common/memplan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REMEMBERED 32768
#define WEIGHT_MOST ((int64_t)1 << 31) /* counted of one weight, so that sums stay sums */

/* ---- the graph ---- */

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
    s->early = s->n > 1 && s->returns[s->n - 1] > 0;
    free(is_output);
}

/* First node from p on that reads the value; n if none does. */
static int32_t first_use(const struct search *s, int32_t value, int32_t p)
{
    int32_t low = s->use_at[value], high = s->use_at[value + 1], end = high;
    while (low < high) {
        int32_t mid = (low + high) / 2;
        if (s->uses[mid] < p)
            low = mid + 1;
        else
            high = mid;
    }
    return low < end ? s->uses[low] : s->n;
}

static int by_use(const void *a, const void *b)
{
    const struct live *x = a, *y = b;
    return x->use != y->use ? (x->use > y->use) - (x->use < y->use) : (x->k > y->k) - (x->k < y->k);
}

static void index_live(struct search *s)
{
    int32_t total = 0;
    s->live_at = yk_xalloc(((size_t)s->n + 2) * sizeof *s->live_at);
    for (int32_t i = 0; i <= s->n; i++) {
        s->live_at[i] = total;
        total += s->cuts.at[i].n_values;
        s->max_live = YK_MAX(s->max_live, s->cuts.at[i].n_values);
    }
    s->max_live = YK_MAX(s->max_live, 1);
    s->live = yk_xalloc(((size_t)total + 1) * sizeof *s->live);
    for (int32_t i = 0; i <= s->n; i++) {
        const struct cut *c = &s->cuts.at[i];
        struct live *live = s->live + s->live_at[i];
        for (int32_t k = 0; k < c->n_values; k++)
            live[k] = (struct live){first_use(s, c->values[k], i), k};
        if (c->n_values > 1)
            qsort(live, (size_t)c->n_values, sizeof *live, by_use);
    }
}

/* ---- agents ---- */

static void index_times(struct search *s)
{
    const struct view *v = s->m->view;
    size_t row = (size_t)s->n + 1, agents = (size_t)v->n_agents + 1;
    s->prefix = yk_xalloc(agents * row * sizeof *s->prefix);
    s->runs_to = yk_xalloc(agents * row * sizeof *s->runs_to);
    s->work = yk_xalloc(row * sizeof *s->work);
    s->weight = yk_xalloc(agents * sizeof *s->weight);
    s->turns = yk_xalloc(agents * sizeof *s->turns);
    s->pace = yk_xalloc(agents * sizeof *s->pace);
    s->by_pace = yk_xalloc(agents * sizeof *s->by_pace);
    for (int32_t a = 0; a < v->n_agents; a++) {
        double *p = s->prefix + (size_t)a * row;
        int32_t *to = s->runs_to + (size_t)a * row;
        const double *node = s->m->node_ms + (size_t)a * (size_t)s->n;
        for (int32_t i = 0; i < s->n; i++)
            p[i + 1] = p[i] + (isnan(node[i]) ? 0 : node[i]);
        to[s->n] = s->n;
        s->weight[a] = s->turns[a] = 1;
        for (int32_t i = s->n - 1; i >= 0; i--)
            to[i] = isnan(node[i]) ? i : to[i + 1];
        if (!v->agents[a].usable || v->agents[a].memory_bytes <= 0)
            continue;
        s->pace[a] = 1 / YK_MAX(p[s->n], 1e-9);
        int32_t k = s->n_by_pace++;
        for (; k > 0 && s->pace[s->by_pace[k - 1]] < s->pace[a]; k--)
            s->by_pace[k] = s->by_pace[k - 1];
        s->by_pace[k] = a;
    }
    for (int32_t i = s->n - 1; i >= 0; i--) {
        double work = INFINITY;
        for (int32_t k = 0; k < s->n_by_pace; k++) {
            int32_t a = s->by_pace[k];
            double ms = s->m->node_ms[(size_t)a * (size_t)s->n + (size_t)i];
            if (ms * s->pace[a] < work) /* not where it cannot run there */
                work = ms * s->pace[a];
        }
        s->work[i] = s->work[i + 1] + work;
    }
}

static void index_pairs(struct search *s)
{
    const struct view *v = s->m->view;
    size_t agents = (size_t)v->n_agents;
    s->pairs = yk_xalloc((agents + 1) * (agents + 1) * sizeof *s->pairs);
    s->ways = yk_xalloc((agents + 1) * (agents + 1) * sizeof *s->ways);
    s->way_of = yk_xalloc((agents + 1) * (agents + 1) * sizeof *s->way_of);
    s->in_per_byte = yk_xalloc((agents + 1) * sizeof *s->in_per_byte);
    s->in_latency = yk_xalloc((agents + 1) * sizeof *s->in_latency);
    for (int32_t to = 0; to < v->n_agents; to++) {
        s->in_per_byte[to] = s->in_latency[to] = INFINITY;
        for (int32_t from = -1; from < v->n_agents; from++) {
            int32_t link = cost_link(s->m, from, to); /* of kinds of agents also to itself */
            if (link < 0)
                continue;
            const struct view_link *l = &v->links[link];
            struct pair *pair = &s->pairs[(size_t)(from + 1) * agents + (size_t)to];
            *pair = (struct pair){.there = true,
                .per_byte_ms = 1e3 / l->bytes_per_s + l->cpu_ns_per_byte * 1e-6,
                .latency_ms = l->latency_ms,
                .resource = s->m->link_resource[link]};
            if (from >= 0) {
                s->in_per_byte[to] = YK_MIN(s->in_per_byte[to], pair->per_byte_ms);
                s->in_latency[to] = YK_MIN(s->in_latency[to], pair->latency_ms);
            }
        }
    }
}

static void index_resources(struct search *s)
{
    const struct view *v = s->m->view;
    s->grows = yk_xalloc(((size_t)s->m->n_resources + 1) * sizeof *s->grows);
    s->grow_agent = yk_xalloc((size_t)s->m->n_resources + 2);
    for (int32_t r = 0; r < s->m->n_resources; r++) {
        bool grows = r >= v->n_agents + v->n_links; /* a medium */
        if (r < v->n_agents)
            grows = v->agents[r].message_ms > 0;
        else if (r < v->n_agents + v->n_links)
            grows = s->early && v->links[r - v->n_agents].to == s->source;
        s->grows[r] = grows ? s->n_grow++ : -1;
        if (grows)
            s->grow_agent[s->grows[r]] = r < v->n_agents && r != s->source;
    }
}

/* The links cost the same, and load the same medium or one that nobody else loads in another step. */
static bool same_pair(const struct search *s, int32_t a_from, int32_t a_to, int32_t b_from, int32_t b_to)
{
    const struct pair *a = solve_search_pair(s, a_from, a_to), *b = solve_search_pair(s, b_from, b_to);
    if (!a->there || !b->there)
        return a->there == b->there;
    bool medium = a->resource >= s->m->view->n_agents + s->m->view->n_links ||
                  b->resource >= s->m->view->n_agents + s->m->view->n_links;
    return a->per_byte_ms == b->per_byte_ms && a->latency_ms == b->latency_ms &&
           (!medium || a->resource == b->resource);
}

static bool can_swap(const struct search *s, int32_t a, int32_t b)
{
    const struct view_agent *x = &s->m->view->agents[a], *y = &s->m->view->agents[b];
    size_t n = (size_t)s->n;
    if (a == s->source || b == s->source || x->usable != y->usable || x->memory_bytes != y->memory_bytes ||
        x->message_ms != y->message_ms || !same_pair(s, a, b, b, a) ||
        memcmp(s->m->node_ms + (size_t)a * n, s->m->node_ms + (size_t)b * n, n * sizeof(double)) != 0)
        return false;
    for (int32_t c = 0; c < s->n_agents; c++)
        if (c != a && c != b && (!same_pair(s, a, c, b, c) || !same_pair(s, c, a, c, b)))
            return false;
    return true;
}

/* As owners of values, once both are used. */
static bool speaks_alike(const struct search *s, int32_t a, int32_t b)
{
    if (a == s->source || b == s->source || s->early ||
        s->m->view->agents[a].message_ms != s->m->view->agents[b].message_ms)
        return false;
    for (int32_t c = 0; c < s->n_agents; c++)
        if (c != a && c != b && !same_pair(s, a, c, b, c))
            return false;
    return true;
}

static void index_classes(struct search *s)
{
    s->alike = yk_xalloc(((size_t)s->n_agents + 1) * sizeof *s->alike);
    s->speaks = yk_xalloc(((size_t)s->n_agents + 1) * sizeof *s->speaks);
    s->first_alike = yk_xalloc(((size_t)s->n_agents + 1) * sizeof *s->first_alike);
    s->twin = yk_xalloc((size_t)s->n_agents + 1);
    for (int32_t a = 0; a < s->n_agents; a++) {
        s->alike[a] = -1;
        s->speaks[a] = a;
        for (int32_t b = a - 1; b >= 0 && s->alike[a] < 0; b--)
            if (can_swap(s, a, b))
                s->alike[a] = b;
        s->first_alike[a] = s->alike[a] < 0 ? a : s->first_alike[s->alike[a]];
        s->twin[a] = false;
        if (s->alike[a] >= 0)
            s->twin[a] = s->twin[s->first_alike[a]] = true;
        for (int32_t b = 0; b < a && s->speaks[a] == a; b++) {
            bool all = s->speaks[b] == b; /* alike with every agent of its class */
            for (int32_t c = b; c < a && all; c++)
                all = s->speaks[c] != b || speaks_alike(s, a, c);
            if (all)
                s->speaks[a] = b;
        }
    }
}

/* ---- memory ---- */

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

static int64_t stage_bytes(struct search *s, int32_t p, int32_t q)
{
    struct remembered *r = &s->memory[((uint32_t)p * 2654435761u ^ (uint32_t)q * 40503u) % REMEMBERED];
    if (r->q != q || r->p != p) {
        memset(s->in_stage, 0, (size_t)s->n);
        memset(s->in_stage + p, 1, (size_t)(q - p));
        *r = (struct remembered){p, q, INT64_MAX};
        if (cost_memory(s->m, s->in_stage, 1, &r->bytes, NULL) != YK_OK)
            r->bytes = INT64_MAX;
        if (cost_out_of_time(s->m))
            s->effort = SOLVE_EFFORT;
        s->effort += s->n / 2 + (int64_t)(q - p) * (q - p) / 32; /* buffers are placed one by one among all */
    }
    return r->bytes;
}

bool solve_search_fits(struct search *s, int32_t agent, int32_t p, int32_t q)
{
    int64_t limit = s->m->view->agents[agent].memory_bytes;
    return surely_fits(s, limit, p, q) || stage_bytes(s, p, q) <= limit;
}

int64_t solve_search_held(struct search *s, int32_t p, int32_t q, int32_t r)
{
    int64_t limit = s->m->view->agents[s->source].memory_bytes, most;
    bool known = s->takes[s->n] < INT64_MAX && s->large[s->n] < INT64_MAX / 4;
    if (known && yk_add_i64(s->takes[q] - s->takes[p] + 2 * s->large[s->n], s->takes[s->n] - s->takes[r], &most) &&
        most <= limit - 8192)
        return 0;
    return stage_bytes(s, p, q);
}

bool solve_search_fits_both(struct search *s, int64_t held, int32_t p, int32_t q, int32_t r)
{
    int64_t limit = s->m->view->agents[s->source].memory_bytes, both;
    if (held == 0 || solve_search_held(s, p, q, r) == 0)
        return true;
    return yk_add_i64(held, stage_bytes(s, r, s->n), &both) && both <= limit;
}

/* ---- all of it ---- */

bool solve_search_is_cloud(const struct search *s, int32_t agent)
{
    return strcmp(s->m->view->agents[agent].class_name, "cloud") == 0;
}

void solve_search_around(struct search *s)
{
    s->around = true;
    s->turns[s->source] = 2;
    s->n_labels = s->cap_labels = 0; /* they get another size */
    if (s->grows[s->source] < 0 && s->m->count > 1) {
        s->grow_agent[s->n_grow] = 0;
        s->grows[s->source] = s->n_grow++;
        s->inbound = yk_xrealloc(s->inbound, ((size_t)s->n_grow + 1) * sizeof *s->inbound);
        s->loaded = yk_xrealloc(s->loaded, ((size_t)s->n_grow + 1) * sizeof *s->loaded);
    }
}

yk_err solve_search_index(struct search *s, struct yk_diag *why)
{
    yk_err err = cut_all(s->m->graph, &s->m->shapes, &s->cuts, why);
    if (err)
        return err;
    index_values(s);
    index_live(s);
    index_times(s);
    index_pairs(s);
    index_resources(s);
    index_classes(s);
    index_memory(s);
    size_t positions = (size_t)s->n + 1;
    s->stride = 1;
    s->in_stage = yk_xalloc(positions);
    s->inbound = yk_xalloc(((size_t)s->n_grow + 1) * sizeof *s->inbound);
    s->loaded = yk_xalloc(((size_t)s->n_grow + 1) * sizeof *s->loaded);
    s->stop = yk_xalloc((positions + 1) * sizeof *s->stop);
    s->stop_of = yk_xalloc((positions + 1) * sizeof *s->stop_of);
    s->group_of = yk_xalloc((positions + 1) * sizeof *s->group_of);
    s->groups.first = yk_xalloc((positions + 1) * sizeof *s->groups.first);
    s->groups.last = yk_xalloc((positions + 1) * sizeof *s->groups.last);
    for (int i = 0; i < 2; i++) {
        struct grid *g = i ? &s->groups : &s->fine;
        g->apart = yk_xalloc((positions + 1) * sizeof *g->apart);
        g->parts = yk_xalloc(positions * sizeof *g->parts);
        g->entry = yk_xalloc(((size_t)s->n_agents + 1) * positions * SOLVE_PARTS * sizeof *g->entry);
    }
    s->made_at = yk_xalloc((positions + 1) * sizeof *s->made_at);
    for (int i = 0; i < 2; i++) {
        struct relaxation *r = i ? &s->spare : &s->now;
        size_t each = ((size_t)s->n_agents + 1) * positions;
        r->relaxed = yk_xalloc(each * sizeof *r->relaxed);
        r->then = yk_xalloc(each * sizeof *r->then);
        r->ends = yk_xalloc(2 * each * sizeof *r->ends);
        r->blocks = yk_xalloc(2 * ((size_t)s->n_agents + 1) * (positions / SOLVE_BLOCK + 1) * sizeof *r->blocks);
        r->last_end = yk_xalloc(each * sizeof *r->last_end);
    }
    s->rent = yk_xalloc(((size_t)s->n_agents + 1) * sizeof *s->rent);
    s->fair = yk_xalloc(((size_t)s->n_agents + 1) * sizeof *s->fair);
    s->tolled = yk_xalloc(positions * sizeof *s->tolled);
    s->enter_least = yk_xalloc(positions * sizeof *s->enter_least);
    return YK_OK;
}

void solve_search_fini(struct search *s)
{
    for (int32_t i = 0; i < s->cap_rows; i++)
        free(s->rows[i].rest_ms);
    free(s->spare_row.rest_ms);
    void *const all[] = {s->paid, s->tolled, s->uses, s->use_at, s->live_at, s->live, s->bytes, s->returns, s->back,
        s->prefix, s->runs_to, s->pace, s->by_pace, s->work, s->pairs, s->alike, s->weight, s->turns, s->speaks,
        s->first_alike, s->twin, s->ways, s->way_of, s->group_of, s->groups.first, s->groups.last, s->fine.parts,
        s->fine.apart, s->groups.apart, s->made_at, s->fine.entry, s->groups.parts, s->groups.entry, s->now.relaxed,
        s->now.then, s->now.ends, s->now.blocks, s->now.last_end, s->spare.relaxed, s->spare.then, s->spare.ends,
        s->spare.blocks, s->spare.last_end, s->in_per_byte, s->in_latency, s->grows, s->grow_agent, s->memory, s->takes,
        s->large, s->least, s->in_stage, s->rent, s->fair, s->stop, s->stop_of, s->enter_least, s->rows, s->row_of,
        s->labels, s->loads, s->owners, s->keys, s->queue, s->state, s->inbound, s->loaded};
    for (size_t i = 0; i < YK_COUNT(all); i++)
        free(all[i]);
    if (s->cuts.at)
        cuts_fini(&s->cuts);
}
