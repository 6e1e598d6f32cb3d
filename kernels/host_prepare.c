/* A segment is a list of kernels, each input and output a slot that says where its bytes are (a weight, a border
 * buffer, or a place in the scratch). Slots are resolved once, here; a run only adds addresses. */
#include "kernels/host_priv.h"

#include "kernels/chain.h"
#include "kernels/layout.h"

#include <stdlib.h>
#include <string.h>

static int32_t find_id(const int32_t *ids, int32_t n, int32_t id)
{
    int32_t lo = 0, hi = n;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (ids[mid] < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && ids[lo] == id ? lo : -1;
}

/* Where value v lives. A view without a place of its own has its input's. */
static yk_err resolve(
    const struct backend_segment *seg, const int64_t *place, int32_t v, struct slot *out, struct yk_diag *why)
{
    const struct graph *g = seg->graph;
    out->value = v;
    if (v < 0) {
        out->kind = SLOT_ABSENT;
        return YK_OK;
    }
    for (int32_t at = v;;) {
        const struct value *val = &g->values[at];
        int32_t k;
        if (val->kind == VALUE_WEIGHT) {
            out->kind = SLOT_WEIGHT;
            out->data = seg->weights ? seg->weights[at] : NULL;
            if (!out->data && val->bytes > 0)
                return yk_fail(why, YK_INTERNAL, "weight '%s' was not given", val->name);
            return YK_OK;
        }
        if ((k = find_id(seg->in, seg->n_in, at)) >= 0) {
            out->kind = SLOT_IN;
            out->at = k;
            return YK_OK;
        }
        if ((k = find_id(seg->out, seg->n_out, at)) >= 0) {
            out->kind = SLOT_OUT;
            out->at = k;
            return YK_OK;
        }
        if (place[at] >= 0) {
            out->kind = SLOT_PLACE;
            out->at = place[at];
            return YK_OK;
        }
        if (val->producer < 0 || !(g->nodes[val->producer].op->flags & OP_VIEW) ||
            find_id(seg->nodes, seg->n_nodes, val->producer) < 0)
            return yk_fail(why, YK_INTERNAL, "value '%s' has no place in the memory plan", val->name);
        at = g->nodes[val->producer].in[0];
        if (at < 0)
            return yk_fail(why, YK_INTERNAL, "value '%s' is a view of nothing", val->name);
    }
}

static void segment_free(struct segment *s)
{
    if (!s)
        return;
    for (int32_t i = 0; i < s->n_steps; i++) {
        free(s->steps[i].in);
        free(s->steps[i].out);
        free(s->steps[i].packed);
        free(s->steps[i].shapes);
    }
    free(s->steps);
    free(s->kernels);
    free(s->calls);
    if (s->planned)
        memplan_fini(&s->plan);
    free(s);
}

static yk_err pack_step(struct step *st, const struct op_ctx *c, struct yk_diag *why)
{
    const void *in[OP_MAX_IN];
    for (int i = 0; i < c->n_in; i++)
        in[i] = st->in[i].kind == SLOT_WEIGHT ? st->in[i].data : NULL;
    return st->kernel->pack(c, in, st->packed, why);
}

/* Packs the steps of a segment that have something to pack, side by side. Which error is told does not depend on the
 * threads: the first step that failed says it once more. */
struct packing {
    struct segment *s;
    const struct backend_segment *seg;
    yk_err *err; /* by step */
};

static yk_err pack_one(const struct packing *p, int64_t i, struct yk_diag *why)
{
    struct step *st = &p->s->steps[i];
    struct op_ctx *c = yk_try_alloc(1, sizeof(*c));
    if (!c)
        return YK_NOMEM;
    shapes_node(p->seg->graph, p->seg->max, st->node, c);
    yk_err err = pack_step(st, c, why);
    free(c);
    return err;
}

static void pack_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct packing *p = arg;
    if (p->s->steps[i].packed)
        p->err[i] = pack_one(p, i, NULL);
}

static yk_err pack_all(struct host *h, struct segment *s, const struct backend_segment *seg, struct yk_diag *why)
{
    struct packing p = {s, seg, yk_try_alloc((size_t)YK_MAX(s->n_steps, 1), sizeof(yk_err))};
    yk_err err = p.err ? YK_OK : YK_NOMEM;
    if (!err)
        pool_run(h->pool, s->n_steps, pack_tile, &p);
    for (int32_t i = 0; !err && i < s->n_steps; i++)
        if (p.err[i] && (err = pack_one(&p, i, why)) == YK_OK)
            err = p.err[i];
    free(p.err);
    return err;
}

static yk_err keep_shapes(struct step *st, const struct op_ctx *c)
{
    st->shapes = yk_try_alloc((size_t)(c->n_in + c->n_out) + 1, sizeof(*st->shapes));
    if (!st->shapes)
        return YK_NOMEM;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i])
            st->shapes[i] = *c->in[i];
    for (int i = 0; i < c->n_out; i++)
        st->shapes[c->n_in + i] = c->out[i];
    return YK_OK;
}

/* Packs the weights of a step again. */
static yk_err repack_step(const struct graph *g, struct step *st, struct op_ctx *c, struct yk_diag *why)
{
    const struct node *n = &g->nodes[st->node];
    memset(c, 0, sizeof(*c));
    c->graph = g;
    c->node = n;
    c->n_in = n->n_in;
    c->n_out = n->n_out;
    c->why = why;
    for (int k = 0; k < n->n_in; k++)
        c->in[k] = st->in[k].kind == SLOT_ABSENT ? NULL : &st->shapes[k];
    for (int k = 0; k < n->n_out; k++)
        c->out[k] = st->shapes[n->n_in + k];
    return pack_step(st, c, why);
}

static yk_err plan_own(
    struct segment *s, const struct backend_segment *seg, const struct memplan_node *table, struct yk_diag *why)
{
    uint8_t *in_stage = yk_try_alloc((size_t)YK_MAX(seg->graph->n_nodes, 1), 1);
    if (!in_stage)
        return yk_fail(why, YK_NOMEM, "no memory for a segment of %d nodes", (int)seg->n_nodes);
    for (int32_t i = 0; i < seg->n_nodes; i++)
        in_stage[seg->nodes[i]] = 1;
    yk_err err = memplan_make(seg->graph, seg->max, in_stage, table, 1, &s->plan, why);
    free(in_stage);
    s->planned = err == YK_OK;
    return err;
}

static uint64_t last_of(const int32_t *values, int32_t n, const uint8_t *last)
{
    uint64_t bits = 0;
    for (int32_t i = 0; i < n && i < 64; i++)
        if (values[i] >= 0 && last[values[i]])
            bits |= (uint64_t)1 << i;
    return bits;
}

static yk_err choose_layouts(struct segment *s, const struct backend_segment *seg)
{
    const struct graph *g = seg->graph;
    uint8_t *last = yk_try_alloc((size_t)YK_MAX(g->n_values, 1), 1);
    yk_err err = last ? YK_OK : YK_NOMEM;
    for (int32_t i = 0; !err && i < s->n_steps; i++) {
        const struct node *n = &g->nodes[s->steps[i].node];
        for (int k = 0; k < n->n_out; k++)
            if (s->steps[i].out[k].kind == SLOT_PLACE)
                last[n->out[k]] = 1;
    }
    if (!err)
        layout_choose(seg, s->kernels, last);
    for (int32_t i = 0; !err && i < s->n_steps; i++) {
        const struct node *n = &g->nodes[s->steps[i].node];
        s->steps[i].last_in = last_of(n->in, n->n_in, last);
        s->steps[i].last_out = last_of(n->out, n->n_out, last);
    }
    free(last);
    return err;
}

static bool is_taken(const struct backend_segment *seg, const struct node *n)
{
    for (int k = 0; seg->taken && k < n->n_out; k++)
        if (n->out[k] >= 0 && seg->taken[n->out[k]])
            return true;
    return false;
}

/* Finds the chains: what of them only they read is never written to its place. */
static yk_err find_chains(struct segment *s, const struct backend_segment *seg)
{
    const struct graph *g = seg->graph;
    int32_t *reader = yk_try_alloc((size_t)YK_MAX(g->n_values, 1), sizeof(*reader)); /* the last, by value */
    bool any = false;
    if (!reader)
        return YK_NOMEM;
    for (int32_t i = 0; i < s->n_steps; i++) {
        const struct node *n = &g->nodes[s->steps[i].node];
        s->steps[i].span = 1;
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] >= 0)
                reader[n->in[k]] = i;
    }
    for (int32_t i = 0; i < s->n_steps; i += s->steps[i].span) {
        int span = chain_span(g, seg->nodes, s->kernels, s->n_steps, i);
        for (int k = 0; k < span - 1; k++)
            if (is_taken(seg, &g->nodes[seg->nodes[i + k]]))
                span = k + 1; /* the place of what it makes may be needed by the next */
        s->steps[i].span = span;
        any |= span > 1;
        for (int k = 0; k < span - 1; k++) {
            const struct slot *out = &s->steps[i + k].out[0];
            if (out->kind == SLOT_PLACE && reader[out->value] < i + span)
                s->steps[i].unread |= 1u << k;
        }
    }
    free(reader);
    if (any)
        s->calls = yk_try_alloc(CHAIN_MOST, sizeof(*s->calls));
    return any && !s->calls ? YK_NOMEM : YK_OK;
}

/* The kernel of each step, and memory for what it packs; table: by node, for a plan of our own. */
static yk_err choose_kernels(struct host *h, struct segment *s, const struct backend_segment *seg,
    struct memplan_node *table, struct op_ctx *c, int64_t *packed_bytes, struct yk_diag *why)
{
    struct backend_form form;
    for (int32_t i = 0; i < s->n_steps; i++) {
        struct step *st = &s->steps[i];
        st->node = seg->nodes[i];
        shapes_node(seg->graph, seg->max, st->node, c);
        c->weights_vary = seg->weights_variable;
        st->kernel = host_find_row(h, c, seg->forms[i], &form);
        if (!st->kernel)
            return yk_fail(why, YK_UNSUPPORTED, "node %d '%s' (%s): backend %s has no form '%s'", (int)st->node,
                c->node->name, c->node->op->name, h->base.ops->name, seg->forms[i]);
        s->kernels[i] = st->kernel;
        table[st->node].workspace_bytes = form.workspace_bytes;
        if (st->kernel->pack && form.packed_bytes > 0) {
            st->packed = yk_try_aligned((size_t)form.packed_bytes);
            if (!st->packed)
                return YK_NOMEM;
            *packed_bytes += form.packed_bytes;
        }
    }
    return YK_OK;
}

static yk_err place_step(
    struct step *st, const struct backend_segment *seg, const int64_t *place, struct op_ctx *c, struct yk_diag *why)
{
    const struct node *n = &seg->graph->nodes[st->node];
    st->in = yk_try_alloc((size_t)YK_MAX(n->n_in, 1), sizeof(*st->in));
    st->out = yk_try_alloc((size_t)YK_MAX(n->n_out, 1), sizeof(*st->out));
    yk_err err = st->in && st->out ? YK_OK : YK_NOMEM;
    for (int k = 0; k < n->n_in && !err; k++)
        err = resolve(seg, place, n->in[k], &st->in[k], why);
    for (int k = 0; k < n->n_out && !err; k++)
        err = resolve(seg, place, n->out[k], &st->out[k], why);
    if (!err && st->packed && seg->weights_variable) {
        shapes_node(seg->graph, seg->max, st->node, c);
        err = keep_shapes(st, c);
    }
    return err;
}

static yk_err fill_segment(
    struct host *h, struct segment *s, const struct backend_segment *seg, int64_t *packed_bytes, struct yk_diag *why)
{
    struct memplan_node *table = yk_try_alloc((size_t)YK_MAX(seg->graph->n_nodes, 1), sizeof(*table));
    struct op_ctx *c = yk_try_alloc(1, sizeof(*c));
    yk_err err = table && c ? choose_kernels(h, s, seg, table, c, packed_bytes, why) : YK_NOMEM;
    s->workspace_offset = seg->workspace_offset;
    if (!err && !seg->place && !(err = plan_own(s, seg, table, why)))
        s->workspace_offset = s->plan.workspace_offset;
    for (int32_t i = 0; i < s->n_steps && !err; i++)
        err = place_step(&s->steps[i], seg, seg->place ? seg->place : s->plan.offset, c, why);
    free(c);
    free(table);
    if (!err)
        err = pack_all(h, s, seg, why);
    if (!err)
        err = choose_layouts(s, seg);
    return err ? err : find_chains(s, seg);
}

yk_err host_prepare(struct backend *b, const struct backend_segment *seg, void **handle, int64_t *scratch_bytes,
    int64_t *packed_bytes, struct yk_diag *why)
{
    struct host *h = (struct host *)b;
    int64_t packed = 0;
    yk_err err = YK_NOMEM;
    struct segment *s = yk_try_alloc(1, sizeof(*s));
    if (s) {
        s->graph = seg->graph;
        s->steps = yk_try_alloc((size_t)YK_MAX(seg->n_nodes, 1), sizeof(*s->steps));
        s->kernels = yk_try_alloc((size_t)YK_MAX(seg->n_nodes, 1), sizeof(*s->kernels));
    }
    if (s && s->steps && s->kernels) {
        s->n_steps = seg->n_nodes;
        err = fill_segment(h, s, seg, &packed, why);
    }
    if (err == YK_NOMEM)
        yk_fail(why, err, "no memory to prepare %d nodes on backend %s", (int)seg->n_nodes, h->base.ops->name);
    if (err) {
        segment_free(s);
        return err;
    }
    *handle = s;
    *scratch_bytes = s->planned ? s->plan.arena_bytes : 0;
    *packed_bytes = packed;
    return YK_OK;
}

yk_err host_set_weights(struct backend *b, void *handle, const void *const *weights, struct yk_diag *why)
{
    (void)b;
    struct segment *s = handle;
    struct op_ctx *c = yk_try_alloc(1, sizeof(*c));
    yk_err err = c ? YK_OK : yk_fail(why, YK_NOMEM, "no memory to set weights");
    for (int32_t i = 0; !err && i < s->n_steps; i++) {
        struct step *st = &s->steps[i];
        const struct node *n = &s->graph->nodes[st->node];
        bool changed = false;
        for (int k = 0; k < n->n_in; k++)
            if (st->in[k].kind == SLOT_WEIGHT && weights[st->in[k].value]) {
                st->in[k].data = weights[st->in[k].value];
                changed = true;
            }
        if (changed && st->packed && !st->shapes)
            err = yk_fail(
                why, YK_INTERNAL, "node %d '%s': its weights were not prepared as variable", (int)st->node, n->name);
        else if (changed && st->packed)
            err = repack_step(s->graph, st, c, why);
    }
    free(c);
    return err;
}

void host_release(struct backend *b, void *handle)
{
    (void)b;
    segment_free(handle);
}
