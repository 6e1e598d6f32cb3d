/* Host backends: a segment is a list of kernels, each input and output a slot that says where its bytes are (a weight,
 * a border buffer, or a place in the scratch). Slots are resolved once in prepare; a run only adds addresses. */
#include "kernels/host.h"

#include "common/memplan.h"
#include "kernels/chain.h"
#include "kernels/layout.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct host {
    struct backend base;
    struct pool *pool;
    char isa[BACKEND_FORM_MAX];
    struct host_rows tables[HOST_MAX_TABLES];
    const char *isas[HOST_MAX_TABLES]; /* NULL: isa */
    int n_tables;
};

enum slot_kind { SLOT_ABSENT, SLOT_WEIGHT, SLOT_IN, SLOT_OUT, SLOT_PLACE };

struct slot {
    enum slot_kind kind;
    int32_t value;
    int64_t at; /* index of a border buffer, or offset in scratch */
    const void *data;
};

struct step {
    int32_t node;
    const struct host_kernel *kernel;
    struct slot *in, *out;
    void *packed;
    struct shape *shapes;       /* of inputs, then outputs, for packing again; NULL if nothing is packed again */
    uint64_t last_in, last_out; /* as in host_call */
    int span;                   /* steps from this one on that may run as one, 1: no others */
    uint32_t unread;            /* of them, as for chain_run */
};

struct segment {
    const struct graph *graph;
    struct step *steps;
    const struct host_kernel **kernels; /* by step */
    int32_t n_steps;
    int64_t workspace_offset;
    struct memplan plan; /* of its own, if the caller gave no places */
    bool planned;
    struct host_call call;
    struct host_call *calls; /* of a chain; NULL if there is none */
    struct yk_diag why;
    atomic_bool canceled;
};

yk_err host_open(const struct backend_ops *ops, const char *isa, const struct host_rows *tables, int n_tables,
    struct pool *pool, struct backend **out, struct yk_diag *why)
{
    if (n_tables > HOST_MAX_TABLES || strlen(isa) >= sizeof(((struct host *)0)->isa))
        return yk_fail(why, YK_INTERNAL, "backend %s: too many tables or too long an isa", ops->name);
    struct host *h = yk_xalloc(sizeof(*h));
    h->base.ops = ops;
    h->pool = pool;
    strcpy(h->isa, isa);
    memcpy(h->tables, tables, (size_t)n_tables * sizeof(*tables));
    h->n_tables = n_tables;
    *out = &h->base;
    return YK_OK;
}

void host_table_isa(struct backend *b, int table, const char *isa)
{
    ((struct host *)b)->isas[table] = isa;
}

void host_close(struct backend *b)
{
    free(b);
}

const char *host_isa(struct backend *b)
{
    return ((struct host *)b)->isa;
}

static bool row_is(const struct host_kernel *k, const struct op *op)
{
    return !strcmp(k->op, op->name) && !strcmp(k->domain, op->domain);
}

int host_kinds(const struct backend *b, const struct op *op, const char **out, int max)
{
    const struct host *h = (const struct host *)b;
    int n = 0;
    if (b->ops->forms != host_forms)
        return -1;
    for (int t = 0; t < h->n_tables; t++)
        for (int r = 0; r < h->tables[t].n; r++) {
            const struct host_kernel *k = &h->tables[t].rows[r];
            int at = 0;
            while (at < n && strcmp(out[at], k->kind) != 0)
                at++;
            if (row_is(k, op) && at == n && n < max)
                out[n++] = k->kind;
        }
    return n;
}

/* Kernels need every shape: what depends on data runs elsewhere. */
static bool shapes_known(const struct op_ctx *c)
{
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] && shape_bytes(c->in[i]) < 0)
            return false;
    for (int i = 0; i < c->n_out; i++)
        if (c->node->out[i] >= 0 && shape_bytes(&c->out[i]) < 0)
            return false;
    return true;
}

static void fill_form(
    const struct host *h, int table, const struct host_kernel *k, const struct op_ctx *c, struct backend_form *f)
{
    memset(f, 0, sizeof(*f));
    /* Both parts are bounded where they are made; a name that is cut would be found by nobody. */
    const char *isa = h->isas[table] ? h->isas[table] : h->isa;
    size_t n = strlen(k->kind), m = strlen(isa);
    if (n + 1 + m < sizeof(f->name)) {
        memcpy(f->name, k->kind, n);
        f->name[n] = '@';
        memcpy(f->name + n + 1, isa, m);
    }
    if (k->sizes)
        k->sizes(c, f);
}

int host_forms(struct backend *b, const struct op_ctx *node, struct backend_form *out, int max)
{
    struct host *h = (struct host *)b;
    if (!node->node->op || !shapes_known(node))
        return 0;
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int t = 0; t < h->n_tables; t++)
            for (int i = 0; i < h->tables[t].n && n < max; i++) {
                const struct host_kernel *k = &h->tables[t].rows[i];
                if (row_is(k, node->node->op) && (!k->claim || k->claim(node)) &&
                    (k->later && k->later(node)) == (pass == 1) && !(k->named && k->named(node)))
                    fill_form(h, t, k, node, &out[n++]);
            }
    return n;
}

static const struct host_kernel *find_row(
    struct host *h, const struct op_ctx *c, const char *name, struct backend_form *form)
{
    for (int t = 0; t < h->n_tables; t++)
        for (int i = 0; i < h->tables[t].n; i++) {
            const struct host_kernel *k = &h->tables[t].rows[i];
            if (!row_is(k, c->node->op) || (k->claim && !k->claim(c)))
                continue;
            fill_form(h, t, k, c, form);
            if (!strcmp(form->name, name))
                return k;
        }
    return NULL;
}

bool host_form_named(struct backend *b, const struct op_ctx *node, const char *name, struct backend_form *form)
{
    return b->ops->forms == host_forms && node->node->op && shapes_known(node) &&
           find_row((struct host *)b, node, name, form);
}

const struct host_kernel *host_kernel_of(struct backend *b, const struct op_ctx *c, struct backend_form *form)
{
    struct host *h = (struct host *)b;
    if (b->ops->forms != host_forms)
        return NULL;
    for (int t = 0; t < h->n_tables; t++)
        for (int i = 0; i < h->tables[t].n; i++) {
            const struct host_kernel *k = &h->tables[t].rows[i];
            if (k->pack || !row_is(k, c->node->op) || (k->claim && !k->claim(c)))
                continue;
            fill_form(h, t, k, c, form);
            return k;
        }
    return NULL;
}

struct pool *host_pool(struct backend *b)
{
    return b->ops->forms == host_forms ? ((struct host *)b)->pool : NULL;
}

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

yk_err host_prepare(struct backend *b, const struct backend_segment *seg, void **handle, int64_t *scratch_bytes,
    int64_t *packed_bytes, struct yk_diag *why)
{
    struct host *h = (struct host *)b;
    const struct graph *g = seg->graph;
    yk_err err = YK_NOMEM;
    int64_t packed = 0;
    struct memplan_node *table = yk_try_alloc((size_t)YK_MAX(g->n_nodes, 1), sizeof(*table));
    struct op_ctx *c = yk_try_alloc(1, sizeof(*c));
    struct segment *s = yk_try_alloc(1, sizeof(*s));
    if (!table || !c || !s)
        goto out;
    s->graph = g;
    s->steps = yk_try_alloc((size_t)YK_MAX(seg->n_nodes, 1), sizeof(*s->steps));
    s->kernels = yk_try_alloc((size_t)YK_MAX(seg->n_nodes, 1), sizeof(*s->kernels));
    if (!s->steps || !s->kernels)
        goto out;
    s->n_steps = seg->n_nodes;
    struct backend_form form;
    for (int32_t i = 0; i < seg->n_nodes; i++) {
        struct step *st = &s->steps[i];
        st->node = seg->nodes[i];
        shapes_node(g, seg->max, st->node, c);
        c->weights_vary = seg->weights_variable;
        st->kernel = find_row(h, c, seg->forms[i], &form);
        if (!st->kernel) {
            err = yk_fail(why, YK_UNSUPPORTED, "node %d '%s' (%s): backend %s has no form '%s'", (int)st->node,
                c->node->name, c->node->op->name, h->base.ops->name, seg->forms[i]);
            goto out;
        }
        s->kernels[i] = st->kernel;
        table[st->node].workspace_bytes = form.workspace_bytes;
        if (st->kernel->pack && form.packed_bytes > 0) {
            st->packed = yk_try_aligned((size_t)form.packed_bytes);
            if (!st->packed)
                goto out;
            packed += form.packed_bytes;
        }
    }
    const int64_t *place = seg->place;
    s->workspace_offset = seg->workspace_offset;
    if (!place) {
        err = plan_own(s, seg, table, why);
        if (err)
            goto out;
        place = s->plan.offset;
        s->workspace_offset = s->plan.workspace_offset;
    }
    for (int32_t i = 0; i < s->n_steps; i++) {
        struct step *st = &s->steps[i];
        const struct node *n = &g->nodes[st->node];
        err = YK_NOMEM;
        st->in = yk_try_alloc((size_t)YK_MAX(n->n_in, 1), sizeof(*st->in));
        st->out = yk_try_alloc((size_t)YK_MAX(n->n_out, 1), sizeof(*st->out));
        if (!st->in || !st->out)
            goto out;
        for (int k = 0; k < n->n_in; k++)
            if ((err = resolve(seg, place, n->in[k], &st->in[k], why)))
                goto out;
        for (int k = 0; k < n->n_out; k++)
            if ((err = resolve(seg, place, n->out[k], &st->out[k], why)))
                goto out;
        if (st->packed && seg->weights_variable) {
            shapes_node(g, seg->max, st->node, c);
            if ((err = keep_shapes(st, c)))
                goto out;
        }
    }
    if ((err = pack_all(h, s, seg, why)) || (err = choose_layouts(s, seg)) || (err = find_chains(s, seg)))
        goto out;
    *handle = s;
    *scratch_bytes = s->planned ? s->plan.arena_bytes : 0;
    *packed_bytes = packed;
    s = NULL;
    err = YK_OK;
out:
    if (err == YK_NOMEM)
        yk_fail(why, err, "no memory to prepare %d nodes on backend %s", (int)seg->n_nodes, h->base.ops->name);
    segment_free(s);
    free(c);
    free(table);
    return err;
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

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void *address(const struct slot *s, const struct backend_run *run)
{
    switch (s->kind) {
    case SLOT_ABSENT:
        return NULL;
    case SLOT_WEIGHT:
        return (void *)(uintptr_t)s->data; /* kernels do not write to inputs */
    case SLOT_IN:
        return run->in[s->at]->host;
    case SLOT_OUT:
        return run->out[s->at]->host;
    case SLOT_PLACE:
        return (char *)run->scratch + s->at;
    }
    return NULL;
}

static void fill_tensor(struct tensor *t, const struct slot *s, const struct backend_run *run)
{
    if (s->kind == SLOT_ABSENT) {
        t->shape.dtype = DT_NONE;
        t->shape.rank = -1;
        t->data = NULL;
        return;
    }
    t->shape = run->shapes->of[s->value];
    t->data = address(s, run);
}

/* What step st gets; false if it has nothing to make. */
static bool fill_call(
    struct host *h, struct segment *s, struct step *st, const struct backend_run *run, struct host_call *c)
{
    const struct node *n = &s->graph->nodes[st->node];
    c->graph = s->graph;
    c->node = n;
    c->n_in = n->n_in;
    c->n_out = n->n_out;
    c->packed = st->packed;
    c->last_in = st->last_in;
    c->last_out = st->last_out;
    c->workspace = run->scratch ? (char *)run->scratch + s->workspace_offset : NULL;
    c->pool = h->pool;
    c->seed = run->seed;
    c->why = &s->why;
    bool work = false;
    for (int k = 0; k < n->n_in; k++)
        fill_tensor(&c->in[k], &st->in[k], run);
    for (int k = 0; k < n->n_out; k++) {
        fill_tensor(&c->out[k], &st->out[k], run);
        work |= c->out[k].shape.dtype != DT_NONE && tensor_count(&c->out[k]) > 0;
    }
    return work;
}

static yk_err run_step(struct host *h, struct segment *s, struct step *st, const struct backend_run *run)
{
    if (!fill_call(h, s, st, run, &s->call))
        return YK_OK;
    s->why.text[0] = 0;
    yk_err err = st->kernel->run(&s->call);
    if (err)
        yk_wrap(&s->why, err, "node %d '%s' (%s)", (int)st->node, s->call.node->name, s->call.node->op->name);
    return err;
}

/* Runs the chain that begins with step i; false: its steps run one by one. */
static bool run_chain(struct host *h, struct segment *s, int32_t i, const struct backend_run *run)
{
    struct step *st = &s->steps[i];
    for (int k = 0; k < st->span; k++)
        if (!fill_call(h, s, st + k, run, &s->calls[k]))
            return false;
    return chain_run(s->calls, s->kernels + i, st->span, st->unread);
}

void host_submit(struct backend *b, void *handle, const struct backend_run *run,
    void (*done)(void *arg, yk_err err, const char *why), void *arg)
{
    struct host *h = (struct host *)b;
    struct segment *s = handle;
    yk_err err = YK_OK;
    /* A cancel that came too late for the last run is not meant for this one. */
    atomic_store(&s->canceled, false);
    double before = run->trace ? now_ms() : 0;
    for (int32_t i = 0; i < s->n_steps && !err;) {
        if (atomic_load_explicit(&s->canceled, memory_order_relaxed)) {
            err = yk_fail(&s->why, YK_CANCELED, "canceled");
            break;
        }
        /* A traced run takes nodes one by one: each has a time of its own, and its values where they belong. */
        int span = s->steps[i].span;
        if (run->trace || span == 1 || !run_chain(h, s, i, run)) {
            span = 1;
            err = run_step(h, s, &s->steps[i], run);
        }
        double after = run->trace ? now_ms() : 0;
        if (run->trace)
            run->trace(run->trace_arg, s->steps[i].node, after - before);
        for (int k = 0; k < span && !err && run->made; k++)
            run->made(run->made_arg, s->steps[i + k].node);
        before = run->trace ? now_ms() : 0;
        i += span;
    }
    done(arg, err, err ? s->why.text : "");
}

void host_cancel(struct backend *b, void *handle)
{
    (void)b;
    atomic_store(&((struct segment *)handle)->canceled, true);
}

void host_release(struct backend *b, void *handle)
{
    (void)b;
    segment_free(handle);
}

yk_err host_alloc(struct backend *b, int64_t bytes, struct backend_buffer *out)
{
    (void)b;
    void *p = yk_try_aligned((size_t)YK_MAX(bytes, 1));
    if (!p)
        return YK_NOMEM;
    *out = (struct backend_buffer){.host = p, .bytes = bytes};
    return YK_OK;
}

void host_free(struct backend *b, struct backend_buffer *buf)
{
    (void)b;
    free(buf->host);
    *buf = (struct backend_buffer){0};
}

yk_err host_write(struct backend *b, struct backend_buffer *dst, const void *src, int64_t bytes)
{
    (void)b;
    if (bytes < 0 || bytes > dst->bytes)
        return YK_LIMIT;
    if (bytes)
        memcpy(dst->host, src, (size_t)bytes);
    return YK_OK;
}

yk_err host_read(struct backend *b, const struct backend_buffer *src, void *dst, int64_t bytes)
{
    (void)b;
    if (bytes < 0 || bytes > src->bytes)
        return YK_LIMIT;
    if (bytes)
        memcpy(dst, src->host, (size_t)bytes);
    return YK_OK;
}

#define SPLIT_PIECES 16
#define SPLIT_LEAST_NS 8000 /* as estimated; vectors are several times faster */
#define SPLIT_MOST_NS 50000

struct split {
    void (*fn)(void *arg, int64_t begin, int64_t end);
    void *arg;
    int64_t count, step;
};

static void split_tile(void *arg, int64_t tile, int thread)
{
    (void)thread;
    struct split *s = arg;
    int64_t begin = tile * s->step;
    s->fn(s->arg, begin, YK_MIN(begin + s->step, s->count));
}

void host_split(
    struct host_call *c, int64_t count, int64_t cost, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg)
{
    /* Long against the start of a run, and so many that each thread works on what is in its own cache; of a long layer
     * about 50 us at most. */
    int64_t all = cost > INT64_MAX / YK_MAX(count, 1) ? INT64_MAX : YK_MAX(cost, 1) * count;
    int64_t ns = YK_MIN(YK_MAX(all / SPLIT_PIECES, SPLIT_LEAST_NS), SPLIT_MOST_NS);
    int64_t step = YK_MAX(ns / YK_MAX(cost, 1), 1);
    struct split s = {fn, arg, count, step};
    pool_run(c->pool, (count + step - 1) / step, split_tile, &s);
}
