/* The memory plan of a stage: which values live in the arena, for how long and where.
 *
 * Time is the index of a node in canonical order. A buffer belongs to the root of a chain of views and lives from its
 * producer to the last reader of any value of the chain. Buffers are placed largest first (ties: earlier first), each
 * at the lowest offset that is free over its whole life; placed ones are kept in order of offset, so the search ends at
 * the first gap. */
#include "common/memplan.h"

#include <stdlib.h>
#include <string.h>

#define MEMPLAN_LIMIT ((int64_t)1 << 60)

enum { OUTSIDE_READ = 1, OUTSIDE_OUTPUT = 2, OUTSIDE_STAYS = 4 };

struct buffer {
    int32_t value;
    int32_t first, last; /* nodes, inclusive */
    int64_t size, offset;
};

struct plan {
    const struct graph *g;
    const uint8_t *in_stage;
    const uint8_t *taken; /* by value; may be NULL */
    int32_t node;         /* being visited */
    int32_t *last;        /* by value: last reader in the stage, -1 */
    uint8_t *outside;     /* by value: OUTSIDE_READ outside the stage, OUTSIDE_OUTPUT of the graph, OUTSIDE_STAYS of its
                             last ones */
    uint8_t *kept;        /* by value: weight that a node of the stage keeps */
    bool keeps;
};

static void visit_use(void *arg, int32_t value)
{
    struct plan *p = arg;
    if (!p->in_stage[p->node]) {
        p->outside[value] |= OUTSIDE_READ;
        return;
    }
    p->last[value] = p->node;
    if (p->keeps)
        p->kept[value] = 1;
}

static int by_size(const void *a, const void *b)
{
    const struct buffer *x = a, *y = b;
    if (x->size != y->size)
        return x->size < y->size ? 1 : -1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

static bool round_up(int64_t bytes, int64_t *out)
{
    if (!yk_add_i64(bytes, MEMPLAN_ALIGN - 1, out))
        return false;
    *out &= ~(int64_t)(MEMPLAN_ALIGN - 1);
    return true;
}

/* Places all; *end is what they take together. False on overflow. */
static bool place(struct buffer *b, int32_t n, int32_t *placed, int64_t *end)
{
    int32_t n_placed = 0;
    *end = 0;
    qsort(b, (size_t)n, sizeof *b, by_size);
    for (int32_t i = 0; i < n; i++) {
        int64_t at = 0, top;
        if (b[i].size == 0)
            continue;
        int32_t k = 0;
        for (; k < n_placed; k++) {
            const struct buffer *p = &b[placed[k]];
            if (p->offset >= at + b[i].size)
                break;
            if (p->first <= b[i].last && b[i].first <= p->last && p->offset + p->size > at)
                at = p->offset + p->size;
        }
        if (!yk_add_i64(at, b[i].size, &top) || top > MEMPLAN_LIMIT) /* keeps the sums above in range */
            return false;
        b[i].offset = at;
        *end = YK_MAX(*end, top);
        /* at may lie before or behind position k - 1: keep the order of offsets */
        while (k > 0 && b[placed[k - 1]].offset > at)
            k--;
        while (k < n_placed && b[placed[k]].offset <= at)
            k++;
        memmove(&placed[k + 1], &placed[k], (size_t)(n_placed - k) * sizeof *placed);
        placed[k] = i;
        n_placed++;
    }
    return true;
}

/* Bytes of a value, rounded, or an error that names it. */
static yk_err value_bytes(
    const struct graph *g, const struct shapes *s, int32_t value, int64_t *out, struct yk_diag *why)
{
    int64_t bytes = shape_bytes(&s->of[value]);
    if (bytes < 0)
        return yk_fail(why, YK_UNSUPPORTED, "the size of '%s' depends on data", g->values[value].name);
    return round_up(bytes, out) ? YK_OK : yk_fail(why, YK_LIMIT, "'%s' is too large", g->values[value].name);
}

static yk_err add_to(int64_t *sum, int64_t bytes, struct yk_diag *why)
{
    return yk_add_i64(*sum, bytes, sum) ? YK_OK : yk_fail(why, YK_LIMIT, "the stage takes more than can be counted");
}

/* What the table adds, and which weights stay. */
static yk_err add_table(
    struct plan *p, const struct memplan_node *table, struct memplan *m, int64_t *workspace, struct yk_diag *why)
{
    yk_err err = YK_OK;
    *workspace = 0;
    for (p->node = 0; !err && p->node < p->g->n_nodes; p->node++) {
        const struct memplan_node *t = table ? &table[p->node] : NULL;
        p->keeps = !t || !t->drops_weights;
        node_each_use(&p->g->nodes[p->node], visit_use, p);
        if (!t || !p->in_stage[p->node])
            continue;
        if (t->packed_bytes < 0 || t->workspace_bytes < 0)
            return yk_fail(why, YK_INVAL, "negative bytes in the profile of node %d", p->node);
        err = add_to(&m->packed_bytes, t->packed_bytes, why);
        *workspace = YK_MAX(*workspace, t->workspace_bytes);
    }
    for (int32_t i = 0; i < p->g->n_outputs; i++)
        p->outside[p->g->outputs[i]] |= i < p->g->n_outputs - p->g->n_staying ? OUTSIDE_OUTPUT : OUTSIDE_STAYS;
    return err;
}

/* A value whose size depends on data lives on the heap of one stage: it may come from and go to the caller of the whole
 * graph only. */
static yk_err check_dynamic(const struct plan *p, int32_t v, bool made, struct yk_diag *why)
{
    const struct value *value = &p->g->values[v];
    bool comes_in = !made && p->last[v] >= 0 && value->kind != VALUE_INPUT;
    bool goes_out = made && p->outside[v] & OUTSIDE_READ;
    if (!comes_in && !goes_out)
        return YK_OK;
    return yk_fail(why, YK_UNSUPPORTED,
        "'%s' would cross between stages, but its size depends on data: keep the nodes that make and read it together",
        value->name);
}

struct inner {
    int64_t bytes;
    bool overflow;
};

static void add_inner(void *arg, const struct value *w)
{
    struct inner *s = arg;
    s->overflow = s->overflow || !yk_add_i64(s->bytes, YK_MAX(shape_bytes(&w->shape), 0), &s->bytes);
}

/* Weights of subgraphs stay as they are. */
static yk_err add_inner_weights(const struct plan *p, struct memplan *m, struct yk_diag *why)
{
    struct inner s = {0};
    for (int32_t i = 0; i < p->g->n_nodes; i++)
        if (p->in_stage[i])
            node_each_inner_weight(&p->g->nodes[i], add_inner, &s);
    return s.overflow ? add_to(&m->weight_bytes, INT64_MAX, why) : add_to(&m->weight_bytes, s.bytes, why);
}

/* Values whose size depends on data have no place in the plan. For them a stage is counted to need twice what enters
 * and leaves their nodes otherwise, and MEMPLAN_HEAP_BYTES. */
static yk_err add_heap(const struct plan *p, const struct shapes *s, struct memplan *m, struct yk_diag *why)
{
    yk_err err = YK_OK;
    bool any = false;
    for (int32_t i = 0; !err && i < p->g->n_nodes; i++) {
        const struct node *n = &p->g->nodes[i];
        if (!p->in_stage[i] || !s->dynamic[i])
            continue;
        any = true;
        for (int32_t k = 0; !err && k < n->n_in + n->n_out; k++) {
            int32_t v = k < n->n_in ? n->in[k] : n->out[k - n->n_in];
            int64_t bytes = v == YK_ABSENT ? 0 : YK_MAX(shape_bytes(&s->of[v]), 0);
            if ((err = add_to(&m->heap_bytes, bytes, why)) == YK_OK)
                err = add_to(&m->heap_bytes, bytes, why);
        }
    }
    return err || !any ? err : add_to(&m->heap_bytes, MEMPLAN_HEAP_BYTES, why);
}

static bool is_taken(const struct plan *p, int32_t v)
{
    return p->taken && p->taken[v];
}

/* Sorts values into boundary, weights and roots of buffers; fills b and *n_b. */
static yk_err classify(
    struct plan *p, const struct shapes *s, struct memplan *m, struct buffer *b, int32_t *n_b, struct yk_diag *why)
{
    const struct graph *g = p->g;
    int32_t *buffer_of = yk_try_alloc((size_t)g->n_values + 1, sizeof *buffer_of);
    yk_err err = buffer_of ? YK_OK : yk_fail(why, YK_NOMEM, "no memory to plan");
    int64_t bytes;

    for (int32_t v = 0; !err && v < g->n_values; v++) {
        const struct value *value = &g->values[v];
        bool made = value->kind == VALUE_NODE && value->producer >= 0 && p->in_stage[value->producer];
        m->offset[v] = -1;
        m->root[v] = v;
        buffer_of[v] = -1;
        if (value->kind == VALUE_WEIGHT) {
            if (p->last[v] >= 0 && p->kept[v])
                err = add_to(&m->weight_bytes, YK_MAX(shape_bytes(&s->of[v]), 0), why);
        } else if (!shapes_has(s, v)) {
            err = check_dynamic(p, v, made, why);
        } else if (!made && p->last[v] >= 0) {
            m->in[m->n_in++] = v;
            if ((err = value_bytes(g, s, v, &bytes, why)) == YK_OK)
                err = add_to(&m->in_bytes, bytes, why);
        } else if (made && p->outside[v]) {
            m->out[m->n_out++] = v;
            if (!is_taken(p, v) && (err = value_bytes(g, s, v, &bytes, why)) == YK_OK)
                err = add_to(p->outside[v] == OUTSIDE_STAYS ? &m->stay_bytes : &m->out_bytes, bytes, why);
        }
    }
    /* Producers come before readers, so a view's input is resolved before the view. */
    for (int32_t i = 0; !err && i < g->n_nodes; i++) {
        const struct node *n = &g->nodes[i];
        if (!p->in_stage[i])
            continue;
        for (int32_t k = 0; !err && k < n->n_out; k++) {
            int32_t v = n->out[k];
            if (v == YK_ABSENT || (p->outside[v] && !is_taken(p, v)) || !shapes_has(s, v))
                continue;
            int32_t last = YK_MAX(p->last[v], i);
            if (k == 0 && !p->outside[v] && n->op->flags & OP_VIEW && n->in[0] != YK_ABSENT) {
                int32_t root = m->root[n->in[0]];
                m->root[v] = root;
                if (buffer_of[root] >= 0)
                    b[buffer_of[root]].last = YK_MAX(b[buffer_of[root]].last, last);
                continue;
            }
            if ((err = value_bytes(g, s, v, &bytes, why)) != YK_OK)
                break;
            buffer_of[v] = *n_b;
            b[(*n_b)++] = (struct buffer){.value = v, .first = i, .last = last, .size = bytes};
        }
    }
    free(buffer_of);
    return err;
}

static yk_err total(struct memplan *m, int32_t depth, int64_t workspace, struct yk_diag *why)
{
    int64_t boundary, sum = 0;
    if (!round_up(workspace, &workspace))
        return yk_fail(why, YK_LIMIT, "workspace is too large");
    m->workspace_offset = m->arena_bytes;
    if (!yk_add_i64(m->in_bytes, m->out_bytes, &boundary) || !yk_mul_i64(boundary, depth, &boundary))
        return yk_fail(why, YK_LIMIT, "the stage takes more than can be counted");
    yk_err err = add_to(&m->arena_bytes, workspace, why);
    if (err || (err = add_to(&sum, m->arena_bytes, why)) != YK_OK ||
        (err = add_to(&sum, m->weight_bytes, why)) != YK_OK || (err = add_to(&sum, m->packed_bytes, why)) != YK_OK ||
        (err = add_to(&sum, m->stay_bytes, why)) != YK_OK || (err = add_to(&sum, boundary, why)) != YK_OK ||
        (err = add_to(&sum, m->heap_bytes, why)) != YK_OK)
        return err;
    m->total_bytes = sum;
    return YK_OK;
}

yk_err memplan_make(const struct graph *g, const struct shapes *s, const uint8_t *in_stage,
    const struct memplan_node *table, int32_t depth, struct memplan *out, struct yk_diag *why)
{
    return memplan_make_taken(g, s, in_stage, table, NULL, depth, out, why);
}

yk_err memplan_make_taken(const struct graph *g, const struct shapes *s, const uint8_t *in_stage,
    const struct memplan_node *table, const uint8_t *taken, int32_t depth, struct memplan *out, struct yk_diag *why)
{
    size_t n_values = (size_t)g->n_values + 1;
    struct memplan m = {.arena = yk_arena_open(0)};
    struct plan p = {.g = g, .in_stage = in_stage, .taken = taken};
    struct buffer *b = NULL;
    int32_t n_b = 0, *placed = NULL;
    int64_t workspace;
    yk_err err = YK_OK;

    if (depth < 0) {
        yk_arena_close(m.arena);
        return yk_fail(why, YK_INVAL, "negative depth");
    }
    p.last = yk_try_alloc(n_values, sizeof *p.last);
    p.outside = yk_try_alloc(n_values, 1);
    p.kept = yk_try_alloc(n_values, 1);
    b = yk_try_alloc(n_values, sizeof *b);
    placed = yk_try_alloc(n_values, sizeof *placed);
    if (m.arena) {
        m.offset = yk_arena_alloc(m.arena, n_values, sizeof *m.offset);
        m.root = yk_arena_alloc(m.arena, n_values, sizeof *m.root);
        m.in = yk_arena_alloc(m.arena, n_values, sizeof *m.in);
        m.out = yk_arena_alloc(m.arena, n_values, sizeof *m.out);
    }
    if (!p.last || !p.outside || !p.kept || !b || !placed || !m.offset || !m.root || !m.in || !m.out) {
        err = yk_fail(why, YK_NOMEM, "no memory to plan");
        goto out;
    }
    for (size_t i = 0; i < n_values; i++)
        p.last[i] = -1;
    if ((err = add_table(&p, table, &m, &workspace, why)) != YK_OK ||
        (err = classify(&p, s, &m, b, &n_b, why)) != YK_OK || (err = add_heap(&p, s, &m, why)) != YK_OK ||
        (err = add_inner_weights(&p, &m, why)) != YK_OK)
        goto out;
    if (!place(b, n_b, placed, &m.arena_bytes)) {
        err = yk_fail(why, YK_LIMIT, "the stage takes more than can be counted");
        goto out;
    }
    for (int32_t i = 0; i < n_b; i++)
        m.offset[b[i].value] = b[i].offset;
    for (int32_t v = 0; v < g->n_values; v++)
        m.offset[v] = m.offset[m.root[v]];
    if ((err = total(&m, depth, workspace, why)) != YK_OK)
        goto out;
    *out = m;
out:
    free(p.last);
    free(p.outside);
    free(p.kept);
    free(b);
    free(placed);
    if (err)
        yk_arena_close(m.arena);
    return err;
}

static int32_t position(const int32_t *ids, int32_t n, int32_t value)
{
    int32_t lo = 0, hi = n - 1;
    while (lo <= hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (ids[mid] == value)
            return mid;
        if (ids[mid] < value)
            lo = mid + 1;
        else
            hi = mid - 1;
    }
    return -1;
}

struct memplan_place memplan_place(const struct memplan *m, const struct graph *g, int32_t value)
{
    struct memplan_place p = {.where = MEMPLAN_NOWHERE, .root = YK_ABSENT, .index = -1, .offset = -1};
    if (value < 0 || value >= g->n_values)
        return p;
    p.root = m->root[value];
    p.offset = m->offset[value];
    if (p.offset >= 0) {
        p.index = position(m->out, m->n_out, p.root);
        p.where = p.index >= 0 ? MEMPLAN_OUT : MEMPLAN_ARENA;
    } else if (g->values[p.root].kind == VALUE_WEIGHT) {
        p.where = MEMPLAN_WEIGHT;
    } else if ((p.index = position(m->in, m->n_in, p.root)) >= 0) {
        p.where = MEMPLAN_IN;
    } else if ((p.index = position(m->out, m->n_out, p.root)) >= 0) {
        p.where = MEMPLAN_OUT;
    }
    return p;
}

void memplan_fini(struct memplan *m)
{
    yk_arena_close(m->arena);
    memset(m, 0, sizeof *m);
}
