/* Cuts: what crosses between sets of nodes, in exact bytes. */
#include "common/cut.h"

#include <stdlib.h>
#include <string.h>

/* Lists of crossing values may grow with the square of a hostile graph. */
#define LISTS_LIMIT_BYTES ((size_t)256 << 20)

static bool crosses_badly(const struct graph *g, const struct shapes *s, int32_t value)
{
    return g->values[value].type != VALUE_TENSOR || (s && !shapes_has(s, value));
}

static void add_bytes(const struct shapes *s, int32_t value, int64_t *bytes, int64_t *grad)
{
    int64_t b = YK_MAX(shape_bytes(&s->of[value]), 0);
    if (!yk_add_i64(*bytes, b, bytes))
        *bytes = INT64_MAX;
    if (dtype_is_float(s->of[value].dtype) && !yk_add_i64(*grad, b, grad))
        *grad = INT64_MAX;
}

/* ---- prefix cuts ---- */

struct last_use {
    int32_t node;
    int32_t *of; /* by value, -1 */
};

static void note_use(void *arg, int32_t value)
{
    struct last_use *l = arg;
    l->of[value] = l->node;
}

static yk_err record(
    const struct graph *g, const struct shapes *s, const int32_t *live, int32_t n, int32_t after, struct cuts *cuts)
{
    struct cut *c = &cuts->at[cuts->n++];
    int32_t *values = yk_arena_alloc(cuts->arena, (size_t)n + 1, sizeof *values);
    if (!values)
        return YK_NOMEM;
    *c = (struct cut){.after = after, .n_values = n, .values = values};
    for (int32_t i = 0; i < n; i++) {
        values[i] = live[i];
        c->forbidden = c->forbidden || crosses_badly(g, s, live[i]);
        add_bytes(s, live[i], &c->bytes, &c->grad_bytes);
    }
    return YK_OK;
}

static void insert(int32_t *live, int32_t *n, int32_t value)
{
    int32_t k = (*n)++;
    for (; k > 0 && live[k - 1] > value; k--)
        live[k] = live[k - 1];
    live[k] = value;
}

yk_err cut_all(const struct graph *g, const struct shapes *s, struct cuts *out, struct yk_diag *why)
{
    struct cuts cuts = {.arena = yk_arena_open(LISTS_LIMIT_BYTES)};
    struct last_use last = {.of = yk_try_alloc((size_t)g->n_values + 1, sizeof *last.of)};
    int32_t *live = yk_try_alloc((size_t)g->n_values + 1, sizeof *live), n = 0;
    yk_err err = YK_NOMEM;
    if (cuts.arena)
        cuts.at = yk_arena_alloc(cuts.arena, (size_t)g->n_nodes + 1, sizeof *cuts.at);
    if (!cuts.at || !last.of || !live)
        goto out;
    for (int32_t v = 0; v < g->n_values; v++)
        last.of[v] = -1;
    for (last.node = 0; last.node < g->n_nodes; last.node++)
        node_each_use(&g->nodes[last.node], note_use, &last);
    for (int32_t v = 0; v < g->n_values; v++)
        if (g->values[v].kind == VALUE_INPUT && last.of[v] >= 0)
            live[n++] = v;
    err = record(g, s, live, n, -1, &cuts);
    for (int32_t i = 0; !err && i < g->n_nodes; i++) {
        int32_t kept = 0;
        for (int32_t k = 0; k < n; k++)
            if (last.of[live[k]] > i)
                live[kept++] = live[k];
        n = kept;
        for (int32_t k = 0; k < g->nodes[i].n_out; k++) {
            int32_t v = g->nodes[i].out[k];
            if (v != YK_ABSENT && last.of[v] > i)
                insert(live, &n, v);
        }
        err = record(g, s, live, n, i, &cuts);
    }
out:
    free(last.of);
    free(live);
    if (err) {
        yk_arena_close(cuts.arena);
        return yk_fail(why, YK_LIMIT, "too many values cross the cuts of %d nodes", g->n_nodes);
    }
    *out = cuts;
    return YK_OK;
}

void cuts_fini(struct cuts *c)
{
    yk_arena_close(c->arena);
    memset(c, 0, sizeof *c);
}

/* ---- stages of any form ---- */

struct crossing { /* value goes from one stage to another; node is a reader, or -1 for a graph output */
    int32_t from, to, value, node;
};

struct crossings {
    const struct graph *g;
    const int32_t *stage_of;
    int32_t node;
    struct crossing *at;
    size_t n, cap;
    bool failed;
};

static void add_crossing(struct crossings *c, int32_t from, int32_t to, int32_t value)
{
    if (from == to || c->failed)
        return;
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 256;
        struct crossing *p = yk_try_realloc(c->at, cap, sizeof *p);
        if (!p) {
            c->failed = true;
            return;
        }
        c->at = p;
        c->cap = cap;
    }
    c->at[c->n++] = (struct crossing){from, to, value, c->node};
}

static int32_t maker(const struct crossings *c, int32_t value)
{
    int32_t producer = c->g->values[value].producer;
    return producer >= 0 ? c->stage_of[producer] : -1;
}

static void add_use(void *arg, int32_t value)
{
    struct crossings *c = arg;
    if (c->g->values[value].kind != VALUE_WEIGHT)
        add_crossing(c, maker(c, value), c->stage_of[c->node], value);
}

static int by_edge(const void *a, const void *b)
{
    const struct crossing *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

/* Everything that goes from stage to stage, sorted by (from, to, value, reader). Caller frees c->at. */
static yk_err find_crossings(
    const struct graph *g, const int32_t *stage_of, int32_t n_stages, struct crossings *c, struct yk_diag *why)
{
    *c = (struct crossings){.g = g, .stage_of = stage_of};
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (stage_of[i] < 0 || stage_of[i] >= n_stages)
            return yk_fail(
                why, YK_INVAL, "node %d '%s' is in stage %d of %d", i, g->nodes[i].name, stage_of[i], n_stages);
    for (c->node = 0; c->node < g->n_nodes; c->node++)
        node_each_use(&g->nodes[c->node], add_use, c);
    c->node = -1;
    for (int32_t i = 0; i < g->n_outputs - g->n_staying; i++)
        if (g->values[g->outputs[i]].kind == VALUE_NODE)
            add_crossing(c, maker(c, g->outputs[i]), -1, g->outputs[i]);
    if (c->failed) {
        free(c->at);
        c->at = NULL;
        return yk_fail(why, YK_NOMEM, "no memory for the edges of %d stages", n_stages);
    }
    if (c->n)
        qsort(c->at, c->n, sizeof *c->at, by_edge);
    return YK_OK;
}

/* What a stage cannot hand over. Between stages it may move into one; from the source there is no way. */
static yk_err check_crossing(
    const struct graph *g, const struct shapes *s, const struct crossing *e, struct yk_diag *why)
{
    const char *name = g->values[e->value].name;
    if (!crosses_badly(g, s, e->value))
        return YK_OK;
    if (e->from < 0)
        return yk_fail(why, YK_UNSUPPORTED,
            "graph input '%s' is not a tensor of known size: only `yoke local` runs this model", name);
    if (e->to < 0 && g->values[e->value].type == VALUE_TENSOR)
        return YK_OK;
    if (e->to < 0)
        return yk_fail(why, YK_UNSUPPORTED, "graph output '%s' is no tensor: only `yoke local` runs this model", name);
    return yk_fail(why, YK_INVAL,
        "'%s' cannot cross from stage %d to %d: its size depends on data; keep the nodes that make and read it in one "
        "stage",
        name, e->from, e->to);
}

#define WORDS ((CUT_MAX_STAGES + 63) / 64)

static bool bit(const uint64_t *reach, int32_t from, int32_t to)
{
    return reach[from * WORDS + to / 64] >> (to % 64) & 1;
}

static const struct crossing *between(const struct crossings *c, int32_t from, int32_t to)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->at[i].from == from && c->at[i].to == to)
            return &c->at[i];
    return NULL;
}

static yk_err cycle_error(
    const struct crossings *c, const uint64_t *reach, const struct crossing *e, struct yk_diag *why)
{
    const struct graph *g = c->g;
    const struct crossing *back = between(c, e->to, e->from);
    for (size_t i = 0; i < c->n && !back; i++) /* the edge by which the longer way comes back */
        if (c->at[i].to == e->from && c->at[i].from >= 0 && bit(reach, e->to, c->at[i].from))
            back = &c->at[i];
    if (!back)
        return yk_fail(why, YK_INVAL, "stages %d and %d wait for each other", e->from, e->to);
    return yk_fail(why, YK_INVAL,
        "stages %d and %d wait for each other: node %d '%s' (stage %d) reads from stage %d and node %d '%s' (stage %d) "
        "reads from stage %d",
        e->from, e->to, e->node, g->nodes[e->node].name, e->to, e->from, back->node, g->nodes[back->node].name,
        back->to, back->from);
}

yk_err cut_check(
    const struct graph *g, const struct shapes *s, const int32_t *stage_of, int32_t n_stages, struct yk_diag *why)
{
    struct crossings c = {0};
    uint64_t *reach = NULL;
    yk_err err;
    if (n_stages < 1 || n_stages > CUT_MAX_STAGES)
        return yk_fail(why, YK_LIMIT, "%d stages, allowed are 1 to %d", n_stages, CUT_MAX_STAGES);
    if ((err = find_crossings(g, stage_of, n_stages, &c, why)) != YK_OK)
        return err;
    reach = yk_try_alloc((size_t)n_stages * WORDS, sizeof *reach);
    uint8_t *used = yk_try_alloc((size_t)n_stages, 1);
    if (!reach || !used) {
        err = yk_fail(why, YK_NOMEM, "no memory to check %d stages", n_stages);
        goto out;
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        used[stage_of[i]] = 1;
    for (int32_t i = 0; i < n_stages; i++)
        if (!used[i]) {
            err = yk_fail(why, YK_INVAL, "stage %d has no nodes", i);
            goto out;
        }
    for (size_t i = 0; i < c.n; i++) {
        const struct crossing *e = &c.at[i];
        if (e->from < 0 || e->to < 0)
            continue;
        if ((err = check_crossing(g, s, e, why)))
            goto out;
        reach[e->from * WORDS + e->to / 64] |= (uint64_t)1 << (e->to % 64);
    }
    for (int32_t k = 0; k < n_stages; k++)
        for (int32_t i = 0; i < n_stages; i++)
            if (bit(reach, i, k))
                for (int32_t w = 0; w < (n_stages + 63) / 64; w++)
                    reach[i * WORDS + w] |= reach[k * WORDS + w];
    for (size_t i = 0; i < c.n && !err; i++)
        if (c.at[i].from >= 0 && c.at[i].to >= 0 && bit(reach, c.at[i].to, c.at[i].from))
            err = cycle_error(&c, reach, &c.at[i], why);
out:
    free(reach);
    free(used);
    free(c.at);
    return err;
}

yk_err cut_edges_find(const struct graph *g, const struct shapes *s, const int32_t *stage_of, int32_t n_stages,
    struct cut_edges *out, struct yk_diag *why)
{
    struct crossings c;
    struct cut_edges edges = {0};
    yk_err err = find_crossings(g, stage_of, n_stages, &c, why);
    if (err)
        return err;
    int32_t *values = NULL, n_values = 0;
    edges.arena = yk_arena_open(0);
    if (edges.arena) {
        edges.at = yk_arena_alloc(edges.arena, c.n + 1, sizeof *edges.at);
        values = yk_arena_alloc(edges.arena, c.n + 1, sizeof *values);
    }
    if (!edges.at || !values) {
        free(c.at);
        yk_arena_close(edges.arena);
        return yk_fail(why, YK_NOMEM, "no memory for the edges of %d stages", n_stages);
    }
    struct cut_edge *e = NULL;
    for (size_t i = 0; i < c.n; i++) {
        const struct crossing *x = &c.at[i];
        if ((err = check_crossing(g, s, x, why))) {
            free(c.at);
            yk_arena_close(edges.arena);
            return err;
        }
        if (!e || e->from != x->from || e->to != x->to) {
            e = &edges.at[edges.n++];
            *e = (struct cut_edge){.from = x->from, .to = x->to, .values = &values[n_values]};
        } else if (values[n_values - 1] == x->value) {
            continue; /* another reader in the same stage */
        }
        values[n_values++] = x->value;
        e->n_values++;
        if (s)
            add_bytes(s, x->value, &e->bytes, &e->grad_bytes);
    }
    free(c.at);
    *out = edges;
    return YK_OK;
}

/* Both ascending: what is in either, into out; returns how many there are, or 0 if they share nothing. */
static int32_t joined(const struct cut_edge *a, const struct cut_edge *b, int32_t *out)
{
    int32_t i = 0, k = 0, n = 0, same = 0;
    while (i < a->n_values || k < b->n_values) {
        int32_t x = i < a->n_values ? a->values[i] : INT32_MAX, y = k < b->n_values ? b->values[k] : INT32_MAX;
        out[n++] = YK_MIN(x, y);
        i += x <= y;
        k += y <= x;
        same += x == y;
    }
    return same ? n : 0;
}

yk_err cut_edges_join(
    struct cut_edges *e, const struct shapes *s, const int32_t *agent_of, int32_t n_stages, struct yk_diag *why)
{
    int32_t most = 0, kept = 0;
    for (int32_t i = 0; i < e->n; i++)
        most += e->at[i].n_values;
    int32_t *scratch = yk_try_alloc((size_t)most + 1, sizeof *scratch);
    int32_t *also = yk_arena_alloc(e->arena, (size_t)e->n * (size_t)n_stages + 1, sizeof *also);
    if (!scratch || !also) {
        free(scratch);
        return yk_fail(why, YK_NOMEM, "no memory for the edges of %d stages", n_stages);
    }
    for (int32_t i = 0; i < e->n; i++) {
        struct cut_edge *a = &e->at[i];
        a->also = &also[(size_t)i * (size_t)n_stages];
        for (int32_t k = i + 1; k < e->n && a->to >= 0; k++) {
            struct cut_edge *b = &e->at[k];
            if (b->from != a->from || b->to < 0 || b->n_values == 0 || agent_of[a->to] != agent_of[b->to])
                continue;
            int32_t n = joined(a, b, scratch);
            if (n == 0)
                continue;
            also[(size_t)i * (size_t)n_stages + (size_t)a->n_also++] = b->to;
            if (n > a->n_values) {
                int32_t *list = yk_arena_alloc(e->arena, (size_t)n, sizeof *list);
                if (!list) {
                    free(scratch);
                    return yk_fail(why, YK_NOMEM, "no memory for the edges of %d stages", n_stages);
                }
                memcpy(list, scratch, (size_t)n * sizeof *list);
                a->values = list;
                a->n_values = n;
            }
            b->n_values = 0;
            k = i; /* with more values it may share some with an edge that was passed over */
        }
    }
    for (int32_t i = 0; i < e->n; i++) {
        struct cut_edge *a = &e->at[i];
        if (a->n_values == 0)
            continue;
        a->bytes = a->grad_bytes = 0;
        for (int32_t k = 0; s && k < a->n_values; k++)
            add_bytes(s, a->values[k], &a->bytes, &a->grad_bytes);
        e->at[kept++] = *a;
    }
    e->n = kept;
    free(scratch);
    return YK_OK;
}

void cut_edges_fini(struct cut_edges *e)
{
    yk_arena_close(e->arena);
    memset(e, 0, sizeof *e);
}
