/* A stage is cut into segments: maximal runs of consecutive nodes of the stage with one backend. Nodes whose shapes
 * depend on data make segments of their own (kernels/dynamic.h). Host backends work in the stage's memory plan
 * directly. Others get copies: what a segment reads is written to buffers of theirs before it starts, what leaves it is
 * read back into the plan's places afterwards. */
#include "kernels/exec_priv.h"

#include <stdlib.h>
#include <string.h>

const struct memplan *exec_plan(const struct exec *e)
{
    return &e->plan;
}

const char *exec_form(const struct exec *e, int32_t node)
{
    return node >= 0 && node < e->graph->n_nodes && e->in_stage[node] ? e->forms[node] : NULL;
}

const struct shapes *exec_max_shapes(const struct exec *e)
{
    return &e->max;
}

int64_t exec_held_bytes(const struct exec *e)
{
    return e->held;
}

int64_t exec_heap_peak(const struct exec *e)
{
    return e->dynamic ? dynamic_peak_bytes(e->dynamic) : 0;
}

void exec_trace(struct exec *e, void (*fn)(void *arg, int32_t node, const char *form, double ms), void *arg)
{
    e->trace = fn;
    e->trace_arg = arg;
}

/* ---- open ---- */

static yk_err copy_config(struct exec *e, const struct exec_config *c, struct yk_diag *why)
{
    const struct graph *g = c->graph;
    size_t n_nodes = (size_t)g->n_nodes + 1, n_values = (size_t)g->n_values + 1, n_syms = (size_t)g->n_syms + 1;
    e->in_stage = yk_try_alloc(n_nodes, 1);
    e->max_sizes = yk_try_alloc(n_syms, sizeof(int64_t));
    e->sizes = yk_try_alloc(n_syms, sizeof(int64_t));
    e->forms = yk_try_alloc(n_nodes, sizeof(*e->forms));
    e->weights = yk_try_alloc(n_values, sizeof(*e->weights));
    e->copies = yk_try_alloc(n_values, sizeof(*e->copies));
    e->given = yk_try_alloc((size_t)g->n_inputs + 1, sizeof(*e->given));
    e->input_shapes = yk_try_alloc((size_t)g->n_inputs + 1, sizeof(*e->input_shapes));
    if (!e->in_stage || !e->max_sizes || !e->sizes || !e->forms || !e->weights || !e->copies || !e->given ||
        !e->input_shapes)
        return yk_fail(why, YK_NOMEM, "no memory to open a stage");
    if (c->variable) {
        e->renewed = yk_try_alloc(n_values, sizeof(*e->renewed));
        e->variable = yk_try_alloc(n_values, 1);
        if (!e->renewed || !e->variable)
            return yk_fail(why, YK_NOMEM, "no memory to open a stage");
    }
    if (c->taken) {
        e->taken = yk_try_alloc(n_values, 1);
        e->kept = yk_try_alloc(n_values, sizeof(*e->kept));
        if (!e->taken || !e->kept)
            return yk_fail(why, YK_NOMEM, "no memory to open a stage");
        memcpy(e->taken, c->taken, (size_t)g->n_values);
        e->take = c->take;
        e->take_arg = c->take_arg;
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        e->in_stage[i] = c->in_stage ? c->in_stage[i] != 0 : 1;
    for (int32_t i = 0; i < g->n_syms; i++)
        e->max_sizes[i] = c->max_sizes ? c->max_sizes[i] : -1;
    for (int32_t i = 0; c->input_shapes && i < g->n_inputs; i++)
        if (c->input_shapes[i]) {
            e->given[i] = *c->input_shapes[i];
            e->input_shapes[i] = &e->given[i];
        }
    return shapes_infer(g, e->max_sizes, e->input_shapes, &e->max, why);
}

static yk_err pick_dynamic(struct exec *e, int32_t node, const char *want, struct yk_diag *why)
{
    const struct node *n = &e->graph->nodes[node];
    if (want && !dynamic_form_here(e->backends, want))
        return yk_fail(why, YK_UNSUPPORTED, "node %d '%s' (%s): no backends here make the form '%s'", (int)node,
            n->name, n->op->name, want);
    if (want)
        strcpy(e->forms[node], want);
    else
        dynamic_form(e->backends, e->forms[node]);
    return YK_OK;
}

/* Picks form and backend of every node of the stage; fills the table of the memory plan. */
static yk_err pick_forms(struct exec *e, const struct exec_config *c, struct backend **owner,
    struct memplan_node *table, struct yk_diag *why)
{
    const struct graph *g = e->graph;
    struct op_ctx *x = yk_try_alloc(1, sizeof(*x));
    yk_err err = x ? YK_OK : yk_fail(why, YK_NOMEM, "no memory to open a stage");
    for (int32_t i = 0; !err && i < g->n_nodes; i++) {
        if (!e->in_stage[i])
            continue;
        struct backend_form form;
        const char *want = c->forms ? c->forms[i] : NULL;
        if (e->max.dynamic[i]) {
            if ((err = pick_dynamic(e, i, want, why)))
                break;
            continue;
        }
        shapes_node(g, &e->max, i, x);
        x->weights_vary = c->variable != NULL;
        if (want) {
            owner[i] = backends_form_find(e->backends, x, want, &form);
            if (!owner[i])
                err = yk_fail(why, YK_UNSUPPORTED, "node %d '%s' (%s): no backend here has the form '%s'", (int)i,
                    g->nodes[i].name, g->nodes[i].op->name, want);
        } else if (backends_forms(e->backends, x, &form, 1) == 1) {
            owner[i] = backends_form_find(e->backends, x, form.name, &form);
        }
        if (!err && !owner[i])
            err = yk_fail(why, YK_UNSUPPORTED, "node %d '%s' (%s): no backend here can run it", (int)i,
                g->nodes[i].name, g->nodes[i].op->name);
        if (err)
            break;
        memcpy(e->forms[i], form.name, sizeof(e->forms[i]));
        table[i] = (struct memplan_node){form.packed_bytes, form.workspace_bytes, form.drops_weights};
    }
    free(x);
    return err;
}

static yk_err gather_weight(struct exec *e, const struct exec_config *c, int32_t v, struct yk_diag *why)
{
    const struct value *w = &e->graph->values[v];
    int64_t bytes = shape_bytes(&w->shape);
    const void *data = w->data;
    if (w->kind != VALUE_WEIGHT || e->weights[v])
        return YK_OK;
    if (c->variable && c->variable[v]) {
        e->weights[v] = c->variable[v];
        e->variable[v] = 1;
        return YK_OK;
    }
    if (!data && bytes > 0 && c->weight) {
        yk_err err = c->weight(c->weight_arg, v, &data, why);
        if (err)
            return yk_wrap(why, err, "weight '%s'", w->name);
    }
    if (!data && bytes > 0)
        return yk_fail(why, YK_NOTFOUND, "weight '%s' has no data here", w->name);
    size_t size = dtype_bytes(w->shape.dtype);
    if (data && size && (uintptr_t)data % size != 0) {
        if (!(e->copies[v] = yk_try_aligned((size_t)bytes)))
            return yk_fail(why, YK_NOMEM, "no memory for weight '%s' of %lld bytes", w->name, (long long)bytes);
        memcpy(e->copies[v], data, (size_t)bytes);
        graph_idle(e->graph, data, bytes); /* the original is not read again */
        e->held += bytes;
        data = e->copies[v];
    }
    e->weights[v] = data;
    return YK_OK;
}

struct gather {
    struct exec *e;
    const struct exec_config *c;
    struct yk_diag *why;
    yk_err err;
};

static void gather_use(void *arg, int32_t value)
{
    struct gather *g = arg;
    if (!g->err)
        g->err = gather_weight(g->e, g->c, value, g->why);
}

static yk_err gather_weights(struct exec *e, const struct exec_config *c, struct yk_diag *why)
{
    struct gather g = {.e = e, .c = c, .why = why};
    for (int32_t i = 0; i < e->graph->n_nodes && !g.err; i++)
        if (e->in_stage[i])
            node_each_use(&e->graph->nodes[i], gather_use, &g);
    return g.err;
}

/* What segment s reads from outside itself: seen[v] is set to s. */
struct crossing {
    const struct exec *e;
    const int32_t *maker;
    int32_t *seen, s, n;
    uint8_t *leaves;
};

static void cross_use(void *arg, int32_t v)
{
    struct crossing *c = arg;
    if (c->e->graph->values[v].kind == VALUE_WEIGHT || c->maker[v] == c->s || c->seen[v] == c->s ||
        !shapes_has(&c->e->max, v))
        return;
    c->seen[v] = c->s;
    c->leaves[v] = 1;
    c->n++;
}

/* Values that cross each segment. maker[v]: segment that makes v, -1 outside. */
static yk_err cross_values(struct exec *e, struct yk_diag *why)
{
    const struct graph *g = e->graph;
    size_t n = (size_t)g->n_values + 1;
    int32_t *maker = yk_try_alloc(n, sizeof(*maker)), *seen = yk_try_alloc(n, sizeof(*seen));
    uint8_t *leaves = yk_try_alloc(n, 1); /* read by another segment, or of the stage's boundary */
    yk_err err = YK_NOMEM;
    if (!maker || !seen || !leaves)
        goto out;
    for (int32_t v = 0; v < g->n_values; v++)
        maker[v] = seen[v] = -1;
    for (int32_t s = 0; s < e->n_segments; s++)
        for (int32_t i = 0; i < e->segments[s].n_nodes; i++) {
            const struct node *nd = &g->nodes[e->segments[s].nodes[i]];
            for (int32_t k = 0; k < nd->n_out; k++)
                if (nd->out[k] >= 0)
                    maker[nd->out[k]] = s;
        }
    for (int32_t k = 0; k < e->plan.n_out; k++)
        leaves[e->plan.out[k]] = 1;
    for (int32_t s = 0; s < e->n_segments; s++) {
        struct exec_segment *seg = &e->segments[s];
        struct crossing c = {.e = e, .maker = maker, .seen = seen, .s = s, .leaves = leaves};
        for (int32_t i = 0; i < seg->n_nodes; i++)
            node_each_use(&g->nodes[seg->nodes[i]], cross_use, &c);
        if (!(seg->in = yk_try_alloc((size_t)c.n + 1, sizeof(*seg->in))))
            goto out;
        for (int32_t v = 0; v < g->n_values; v++)
            if (seen[v] == s)
                seg->in[seg->n_in++] = v;
    }
    for (int32_t s = 0; s < e->n_segments; s++) {
        struct exec_segment *seg = &e->segments[s];
        int32_t most = 0;
        for (int32_t v = 0; v < g->n_values; v++)
            most += maker[v] == s && leaves[v];
        if (!(seg->out = yk_try_alloc((size_t)most + 1, sizeof(*seg->out))))
            goto out;
        for (int32_t v = 0; v < g->n_values; v++)
            if (maker[v] == s && leaves[v])
                seg->out[seg->n_out++] = v;
    }
    err = YK_OK;
out:
    if (err)
        yk_fail(why, err, "no memory to open a stage");
    free(maker);
    free(seen);
    free(leaves);
    return err;
}

static yk_err make_segments(struct exec *e, struct backend **owner, struct yk_diag *why)
{
    const struct graph *g = e->graph;
    const struct backend *last = NULL;
    e->segments = yk_try_alloc((size_t)g->n_nodes + 1, sizeof(*e->segments));
    int32_t *nodes = yk_try_alloc((size_t)g->n_nodes + 1, sizeof(*nodes));
    if (!e->segments || !nodes) {
        free(nodes);
        return yk_fail(why, YK_NOMEM, "no memory to open a stage");
    }
    e->segments[0].nodes = nodes; /* one allocation, the first segment frees it */
    int32_t at = 0;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        if (!e->in_stage[i])
            continue;
        if (e->n_segments == 0 || owner[i] != last) {
            e->segments[e->n_segments] = (struct exec_segment){.backend = owner[i], .nodes = nodes + at};
            e->n_segments++;
            last = owner[i];
        }
        nodes[at++] = i;
        e->segments[e->n_segments - 1].n_nodes++;
    }
    return cross_values(e, why);
}

/* Of the outputs that are taken. A host backend that is done with all at once needs them side by side. */
static yk_err keep_taken(struct exec *e, struct exec_segment *seg, struct yk_diag *why)
{
    for (int32_t i = 0; e->taken && i < seg->n_out; i++) {
        int32_t v = seg->out[i];
        if (!e->taken[v])
            continue;
        seg->takes = true;
        if (!seg->backend || !seg->backend->ops->host || seg->backend->ops->steps)
            continue;
        int64_t bytes = shape_bytes(&e->max.of[v]);
        if (!(e->kept[v] = yk_try_aligned((size_t)YK_MAX(bytes, 1))))
            return yk_fail(why, YK_NOMEM, "no memory for '%s' of %lld bytes on backend %s", e->graph->values[v].name,
                (long long)bytes, seg->backend->ops->name);
        e->held += bytes;
    }
    return YK_OK;
}

static yk_err prepare_segment(struct exec *e, struct exec_segment *seg, bool variable, struct yk_diag *why)
{
    yk_err err = keep_taken(e, seg, why);
    if (err || !seg->backend)
        return err;
    const struct backend_ops *ops = seg->backend->ops;
    int32_t n = seg->n_in + seg->n_out;
    const char **forms = yk_try_alloc((size_t)seg->n_nodes + 1, sizeof(*forms));
    seg->buffers = yk_try_alloc((size_t)n + 1, sizeof(*seg->buffers));
    seg->pointers = yk_try_alloc((size_t)n + 1, sizeof(*seg->pointers));
    if (!forms || !seg->buffers || !seg->pointers) {
        free(forms);
        return yk_fail(why, YK_NOMEM, "no memory to open a stage");
    }
    for (int32_t i = 0; i < seg->n_nodes; i++)
        forms[i] = e->forms[seg->nodes[i]];
    struct backend_segment desc = {.graph = e->graph,
        .max = &e->max,
        .nodes = seg->nodes,
        .n_nodes = seg->n_nodes,
        .forms = forms,
        .in = seg->in,
        .out = seg->out,
        .n_in = seg->n_in,
        .n_out = seg->n_out,
        .weights = e->weights,
        .weights_variable = variable,
        .taken = ops->steps ? e->taken : NULL,
        .place = ops->host ? e->plan.offset : NULL,
        .workspace_offset = e->plan.workspace_offset};
    int64_t scratch = 0, packed = 0;
    err = ops->prepare(seg->backend, &desc, &seg->handle, &scratch, &packed, why);
    free(forms);
    if (err)
        return err;
    e->held += packed;
    if (scratch > 0) {
        if (!(seg->scratch = yk_try_aligned((size_t)scratch)))
            return yk_fail(why, YK_NOMEM, "no memory for %lld bytes of backend %s", (long long)scratch, ops->name);
        e->held += scratch;
    }
    for (int32_t i = 0; i < n; i++) {
        seg->pointers[i] = &seg->buffers[i];
        if (ops->host)
            continue;
        int64_t bytes = shape_bytes(&e->max.of[i < seg->n_in ? seg->in[i] : seg->out[i - seg->n_in]]);
        if ((err = ops->alloc(seg->backend, bytes, &seg->buffers[i])))
            return yk_fail(why, err, "no memory for a buffer of %lld bytes on backend %s", (long long)bytes, ops->name);
        seg->n_owned++;
        e->held += bytes;
    }
    return YK_OK;
}

static yk_err open_dynamic(struct exec *e, const struct exec_config *c, struct yk_diag *why)
{
    struct dynamic_config d = {.graph = e->graph,
        .in_stage = e->in_stage,
        .max = &e->max,
        .weights = e->weights,
        .inner_weight = c->inner_weight,
        .weight_arg = c->weight_arg,
        .backends = e->backends,
        .forms = (const char(*)[BACKEND_FORM_MAX])e->forms,
        .heap_limit = c->heap_limit > 0 ? c->heap_limit : EXEC_HEAP_LIMIT,
        .step_limit = c->step_limit > 0 ? c->step_limit : EXEC_STEP_LIMIT,
        .time_limit_ms = c->time_limit_ms,
        .canceled = &e->canceled};
    bool any = false;
    for (int32_t s = 0; s < e->n_segments; s++)
        any |= !e->segments[s].backend;
    if (!any)
        return YK_OK;
    yk_err err = dynamic_open(&d, &e->dynamic, why);
    if (!err)
        e->held += dynamic_held_bytes(e->dynamic);
    return err;
}

yk_err exec_open(const struct exec_config *config, struct exec **out, struct yk_diag *why)
{
    const struct graph *g = config->graph;
    struct memplan_node *table = yk_try_alloc((size_t)g->n_nodes + 1, sizeof(*table));
    struct backend **owner = yk_try_alloc((size_t)g->n_nodes + 1, sizeof(*owner));
    struct exec *e = yk_xalloc(sizeof(*e));
    pthread_mutex_init(&e->lock, NULL);
    e->graph = g;
    e->backends = config->backends;
    yk_err err = table && owner ? copy_config(e, config, why) : yk_fail(why, YK_NOMEM, "no memory to open a stage");
    if (err)
        goto out;
    e->has_max = true;
    if ((err = pick_forms(e, config, owner, table, why)) ||
        (err = memplan_make_taken(g, &e->max, e->in_stage, table, e->taken, 1, &e->plan, why)))
        goto out;
    e->has_plan = true;
    e->arena = yk_try_aligned((size_t)YK_MAX(e->plan.arena_bytes, 1));
    if (!e->arena) {
        err = yk_fail(why, YK_NOMEM, "no memory for %lld bytes of intermediates (the stage takes %lld in all)",
            (long long)e->plan.arena_bytes, (long long)e->plan.total_bytes);
        goto out;
    }
    e->held += e->plan.arena_bytes;
    if ((err = gather_weights(e, config, why)) || (err = make_segments(e, owner, why)))
        goto out;
    err = open_dynamic(e, config, why);
    for (int32_t s = 0; !err && s < e->n_segments; s++)
        err = prepare_segment(e, &e->segments[s], config->variable != NULL, why);
    if (!err) {
        *out = e;
        e = NULL;
    }
out:
    free(table);
    free(owner);
    exec_close(e);
    return err;
}

yk_err exec_set_weights(struct exec *e, const uint8_t *changed, struct yk_diag *why)
{
    const struct graph *g = e->graph;
    yk_err err = YK_OK;
    if (!e->variable)
        return YK_OK;
    for (int32_t v = 0; v < g->n_values; v++)
        e->renewed[v] = e->variable[v] && (!changed || changed[v]) ? e->weights[v] : NULL;
    for (int32_t s = 0; !err && s < e->n_segments; s++) {
        struct exec_segment *seg = &e->segments[s];
        bool uses = false;
        for (int32_t i = 0; seg->backend && !uses && i < seg->n_nodes; i++) {
            const struct node *n = &g->nodes[seg->nodes[i]];
            for (int32_t k = 0; k < n->n_in; k++)
                uses |= n->in[k] >= 0 && e->renewed[n->in[k]];
        }
        if (uses)
            err = seg->backend->ops->set_weights(seg->backend, seg->handle, e->renewed, why);
    }
    return err;
}

void exec_close(struct exec *e)
{
    if (!e)
        return;
    for (int32_t s = 0; s < e->n_segments; s++) {
        struct exec_segment *seg = &e->segments[s];
        if (seg->handle)
            seg->backend->ops->release(seg->backend, seg->handle);
        for (int i = 0; i < seg->n_owned; i++)
            seg->backend->ops->free(seg->backend, &seg->buffers[i]);
        free(seg->buffers);
        free(seg->pointers);
        free(seg->scratch);
        free(seg->in);
        free(seg->out);
    }
    dynamic_close(e->dynamic);
    if (e->segments)
        free(e->segments[0].nodes);
    free(e->segments);
    for (int32_t v = 0; e->copies && v < e->graph->n_values; v++)
        free(e->copies[v]);
    free(e->copies);
    for (int32_t v = 0; e->kept && v < e->graph->n_values; v++)
        free(e->kept[v]);
    free(e->kept);
    free(e->taken);
    free(e->renewed);
    free(e->variable);
    free(e->weights);
    free(e->arena);
    if (e->has_plan)
        memplan_fini(&e->plan);
    if (e->has_actual)
        shapes_fini(&e->actual);
    if (e->has_max)
        shapes_fini(&e->max);
    free(e->given);
    free(e->input_shapes);
    free(e->forms);
    free(e->sizes);
    free(e->max_sizes);
    free(e->in_stage);
    pthread_mutex_destroy(&e->lock);
    free(e);
}
