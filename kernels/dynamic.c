#include "kernels/dynamic_priv.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/ref.h"

#define DYNAMIC "dynamic@"

/* ---- forms ---- */

static bool usable(const struct backend *b)
{
    return b->ops->host && host_pool((struct backend *)(uintptr_t)b) != NULL;
}

void dynamic_form(const struct backends *b, char out[BACKEND_FORM_MAX])
{
    size_t n = strlen(DYNAMIC);
    memcpy(out, DYNAMIC, n + 1);
    for (int i = 0; i < b->n; i++) {
        const char *isa = usable(b->at[i]) ? b->at[i]->ops->isa(b->at[i]) : "generic";
        size_t m = strlen(isa);
        bool first = n == strlen(DYNAMIC);
        if (!strcmp(isa, "generic") || n + m + 2 > BACKEND_FORM_MAX)
            continue;
        if (!first)
            out[n++] = '+';
        memcpy(out + n, isa, m + 1);
        n += m;
    }
    if (n == strlen(DYNAMIC))
        memcpy(out + n, "generic", sizeof("generic"));
}

static struct backend *by_isa(const struct backends *b, const char *isa, size_t n)
{
    for (int i = 0; i < b->n; i++)
        if (usable(b->at[i]) && strlen(b->at[i]->ops->isa(b->at[i])) == n &&
            !memcmp(b->at[i]->ops->isa(b->at[i]), isa, n))
            return b->at[i];
    return NULL;
}

/* The backends of a form, in its order; false if one is not here. */
static bool read_form(const struct backends *b, const char *form, struct dynamic_kernels *out)
{
    struct backend *ref = b->at[b->n - 1];
    if (strlen(form) >= BACKEND_FORM_MAX || strncmp(form, DYNAMIC, strlen(DYNAMIC)) != 0)
        return false;
    *out = (struct dynamic_kernels){.n = 0};
    strcpy(out->form, form);
    for (const char *p = form + strlen(DYNAMIC); *p;) {
        size_t len = strcspn(p, "+");
        struct backend *be = by_isa(b, p, len);
        if (!be || out->n == (int)YK_COUNT(out->at) - 1)
            return false;
        out->at[out->n++] = be;
        p += len + (p[len] == '+');
    }
    if (out->n == 0)
        return false;
    if (out->at[out->n - 1] != ref)
        out->at[out->n++] = ref;
    return true;
}

bool dynamic_form_here(const struct backends *b, const char *form)
{
    struct dynamic_kernels k;
    return read_form(b, form, &k);
}

/* ---- open ---- */

static int by_graph(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct dynamic_graph *)a)->g, y = (uintptr_t)((const struct dynamic_graph *)b)->g;
    return x < y ? -1 : x > y;
}

static const struct dynamic_graph *find_graph(const struct dynamic *d, const struct graph *g)
{
    struct dynamic_graph key = {.g = g};
    return bsearch(&key, d->graphs, (size_t)d->n_graphs, sizeof(key), by_graph);
}

static int32_t count_graphs(const struct graph *g, const uint8_t *in_stage)
{
    int32_t n = 1;
    for (int32_t i = 0; i < g->n_nodes; i++)
        for (int32_t a = 0; (!in_stage || in_stage[i]) && a < g->nodes[i].n_attr; a++)
            if (g->nodes[i].attr[a].kind == ATTR_GRAPH)
                n += count_graphs(g->nodes[i].attr[a].graph, NULL);
    return n;
}

struct last_use {
    int32_t node, *of;
};

static void note_use(void *arg, int32_t value)
{
    struct last_use *l = arg;
    l->of[value] = l->node;
}

/* Which values go after which node. root: only values that dynamic nodes make. */
static yk_err plan_frees(struct dynamic *d, struct dynamic_graph *p, bool root, struct yk_diag *why)
{
    const struct graph *g = p->g;
    struct last_use l = {.of = yk_try_alloc((size_t)g->n_values + 1, sizeof(*l.of))};
    p->free_start = yk_try_alloc((size_t)g->n_nodes + 2, sizeof(*p->free_start));
    p->free_list = yk_try_alloc((size_t)g->n_values + 1, sizeof(*p->free_list));
    if (!l.of || !p->free_start || !p->free_list) {
        free(l.of);
        return yk_fail(why, YK_NOMEM, "no memory to open a stage");
    }
    for (int32_t v = 0; v < g->n_values; v++)
        l.of[v] = g->values[v].kind == VALUE_NODE ? g->values[v].producer : -1;
    for (l.node = 0; l.node < g->n_nodes; l.node++)
        if (!root || (d->c.in_stage[l.node] && d->c.max->dynamic[l.node]))
            node_each_use(&g->nodes[l.node], note_use, &l);
    for (int32_t k = 0; k < g->n_outputs; k++)
        l.of[g->outputs[k]] = -1;
    for (int32_t v = 0; v < g->n_values; v++)
        if (l.of[v] >= 0)
            p->free_start[l.of[v] + 1]++;
    for (int32_t i = 0; i < g->n_nodes; i++)
        p->free_start[i + 1] += p->free_start[i];
    for (int32_t v = 0; v < g->n_values; v++)
        if (l.of[v] >= 0)
            p->free_list[p->free_start[l.of[v]]++] = v;
    for (int32_t i = g->n_nodes; i > 0; i--) /* the loop above moved each start to its end */
        p->free_start[i] = p->free_start[i - 1];
    p->free_start[0] = 0;
    free(l.of);
    return YK_OK;
}

/* Weights of a subgraph as values, aligned. */
static yk_err take_weights(struct dynamic *d, struct dynamic_graph *p, struct yk_diag *why)
{
    const struct graph *g = p->g;
    p->weights = yk_try_alloc((size_t)g->n_values + 1, sizeof(struct dyn_value *));
    yk_err err = p->weights ? YK_OK : yk_fail(why, YK_NOMEM, "no memory to open a stage");
    for (int32_t v = 0; !err && v < g->n_values; v++) {
        const struct value *w = &g->values[v];
        if (w->kind != VALUE_WEIGHT)
            continue;
        const void *data = w->data;
        int64_t bytes = shape_bytes(&w->shape);
        size_t size = dtype_bytes(w->shape.dtype);
        if (!data && bytes > 0 && d->c.inner_weight && (err = d->c.inner_weight(d->c.weight_arg, w, &data, why)))
            break;
        if (bytes < 0 || (!data && bytes > 0)) {
            err = yk_fail(why, YK_NOTFOUND, "weight '%s' of a subgraph has no data here", w->name);
        } else if (data && size && (uintptr_t)data % size != 0) {
            err = dyn_tensor(NULL, &w->shape, &p->weights[v], why);
            if (!err)
                memcpy(p->weights[v]->tensor.data, data, (size_t)bytes);
            d->held += bytes;
        } else {
            struct tensor t = {w->shape, (void *)(uintptr_t)data};
            err = dyn_borrow(NULL, &t, &p->weights[v], why);
        }
    }
    return err;
}

static yk_err add_graphs(
    struct dynamic *d, const struct graph *g, const uint8_t *in_stage, int depth, struct yk_diag *why)
{
    if (depth > 64)
        return yk_fail(why, YK_LIMIT, "graphs inside graphs go deeper than 64");
    struct dynamic_graph *p = &d->graphs[d->n_graphs++];
    p->g = g;
    yk_err err = plan_frees(d, p, in_stage != NULL, why);
    if (!err && !in_stage)
        err = take_weights(d, p, why);
    for (int32_t i = 0; !err && i < g->n_nodes; i++)
        for (int32_t a = 0; !err && (!in_stage || in_stage[i]) && a < g->nodes[i].n_attr; a++)
            if (g->nodes[i].attr[a].kind == ATTR_GRAPH)
                err = add_graphs(d, g->nodes[i].attr[a].graph, NULL, depth + 1, why);
    return err;
}

static yk_err read_forms(struct dynamic *d, struct yk_diag *why)
{
    const struct graph *g = d->c.graph;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        if (!d->c.in_stage[i] || !d->c.max->dynamic[i])
            continue;
        const char *form = d->c.forms[i];
        int k = 0;
        while (k < d->n_kernels && strcmp(d->kernels[k].form, form) != 0)
            k++;
        if (k == DYNAMIC_FORMS_MAX)
            return yk_fail(why, YK_LIMIT, "more than %d forms of nodes that depend on data", DYNAMIC_FORMS_MAX);
        if (k == d->n_kernels && !read_form(d->c.backends, form, &d->kernels[d->n_kernels++]))
            return yk_fail(why, YK_UNSUPPORTED, "node %d '%s': no backends here make the form '%s'", (int)i,
                g->nodes[i].name, form);
        d->kernels_of[i] = (uint8_t)k;
    }
    return YK_OK;
}

yk_err dynamic_open(const struct dynamic_config *config, struct dynamic **out, struct yk_diag *why)
{
    struct dynamic *d = yk_try_alloc(1, sizeof(*d));
    yk_err err = YK_OK;
    if (!d)
        return yk_fail(why, YK_NOMEM, "no memory to open a stage");
    d->c = *config;
    d->graphs = yk_try_alloc((size_t)count_graphs(config->graph, config->in_stage), sizeof(*d->graphs));
    d->heap = dyn_heap_open(config->heap_limit);
    d->run = node_run_open(config->heap_limit);
    d->root.slot = yk_try_alloc((size_t)config->graph->n_values + 1, sizeof(struct dyn_value *));
    d->kernels_of = yk_try_alloc((size_t)config->graph->n_nodes + 1, 1);
    if (!d->graphs || !d->heap || !d->run || !d->root.slot || !d->kernels_of)
        err = yk_fail(why, YK_NOMEM, "no memory to open a stage");
    if (!err)
        err = read_forms(d, why);
    struct backend *ref = config->backends->at[config->backends->n - 1];
    if (!err && !(d->pool = host_pool(ref)))
        err = yk_fail(why, YK_INTERNAL, "the last backend is not ref");
    if (!err)
        err = add_graphs(d, config->graph, config->in_stage, 0, why);
    if (!err) {
        qsort(d->graphs, (size_t)d->n_graphs, sizeof(*d->graphs), by_graph);
        d->root.of = find_graph(d, config->graph);
        *out = d;
        return YK_OK;
    }
    dynamic_close(d);
    return err;
}

static void clear(struct frame *f)
{
    for (int32_t v = 0; v < f->of->g->n_values; v++) {
        dyn_unref(f->slot[v]);
        f->slot[v] = NULL;
    }
}

void dynamic_close(struct dynamic *d)
{
    if (!d)
        return;
    if (d->root.of)
        clear(&d->root);
    free(d->root.slot);
    for (int32_t i = 0; i < d->n_graphs; i++) {
        struct dynamic_graph *p = &d->graphs[i];
        for (int32_t v = 0; p->weights && v < p->g->n_values; v++)
            dyn_unref(p->weights[v]);
        free(p->weights);
        free(p->free_start);
        free(p->free_list);
    }
    free(d->graphs);
    free(d->kernels_of);
    node_run_close(d->run);
    dyn_heap_close(d->heap);
    free(d);
}

int64_t dynamic_held_bytes(const struct dynamic *d)
{
    return d->held;
}

int64_t dynamic_peak_bytes(const struct dynamic *d)
{
    return dyn_heap_peak(d->heap);
}

/* ---- values of a frame ---- */

/* The value for one reader, who becomes a user of it. */
static yk_err get(struct dynamic *d, struct frame *f, int32_t v, struct dyn_value **out, struct yk_diag *why)
{
    const struct graph *g = f->of->g;
    while (g->values[v].kind == VALUE_CAPTURE && f->parent && g->values[v].capture != YK_ABSENT) {
        v = g->values[v].capture;
        f = f->parent;
        g = f->of->g;
    }
    if (f->slot[v]) {
        *out = dyn_ref(f->slot[v]);
        return YK_OK;
    }
    if (f->of->weights && f->of->weights[v]) {
        *out = dyn_ref(f->of->weights[v]);
        return YK_OK;
    }
    struct tensor t = {.shape = {.dtype = DT_NONE, .rank = -1}};
    if (!f->parent && g->values[v].kind == VALUE_WEIGHT)
        t = (struct tensor){g->values[v].shape, (void *)(uintptr_t)d->c.weights[v]};
    else if (!f->parent && shapes_has(d->now.shapes, v))
        d->now.place(d->now.arg, v, &t);
    if (t.shape.dtype == DT_NONE)
        return yk_fail(why, YK_INTERNAL, "'%s' is not there", g->values[v].name);
    return dyn_borrow(d->heap, &t, out, why);
}

struct captured {
    struct dynamic *d;
    struct frame *f;
};

static void capture_shape(void *arg, int32_t value, struct shape *out)
{
    struct captured *c = arg;
    struct dyn_value *v = NULL;
    if (get(c->d, c->f, value, &v, NULL) == YK_OK && v->type == VALUE_TENSOR)
        *out = v->tensor.shape;
    dyn_unref(v);
}

yk_err dynamic_outputs(struct dynamic *d, struct frame *f, const struct graph *sub, const struct shape *in,
    struct shape *out, struct yk_diag *why)
{
    struct captured c = {d, f};
    return shapes_subgraph(sub, in, capture_shape, &c, out, why);
}

yk_err dynamic_tensor(struct dyn_value *const *in, int i, const char *what, struct tensor **out, struct yk_diag *why)
{
    char text[160];
    if (!in[i])
        return yk_fail(why, YK_INVAL, "input %d (%s) is missing", i, what);
    if (in[i]->type != VALUE_TENSOR) {
        dyn_text(in[i], text, sizeof(text));
        return yk_fail(why, YK_INVAL, "input %d (%s) is no tensor: %s", i, what, text);
    }
    *out = &in[i]->tensor;
    return YK_OK;
}

yk_err dynamic_int(struct dyn_value *const *in, int i, const char *what, int64_t *out, struct yk_diag *why)
{
    struct tensor *t = NULL;
    char text[160];
    yk_err err = dynamic_tensor(in, i, what, &t, why);
    if (err)
        return err;
    if (tensor_count(t) != 1 || !(dtype_is_int(t->shape.dtype) || t->shape.dtype == DT_BOOL)) {
        shape_text(&t->shape, text, sizeof(text));
        return yk_fail(why, YK_INVAL, "input %d (%s) is %s, wants one integer or bool", i, what, text);
    }
    *out = dtype_read_int(t->shape.dtype, t->data, 0);
    return YK_OK;
}

yk_err dynamic_scalar(struct dynamic *d, enum dtype t, int rank, int64_t v, struct dyn_value **out, struct yk_diag *why)
{
    struct shape s = {.dtype = t, .rank = rank, .dims = {1}};
    yk_err err = dyn_tensor(d->heap, &s, out, why);
    if (!err)
        ref_store_i((*out)->tensor.data, t, 0, 1, &v, 1);
    return err;
}

/* ---- a node ---- */

static yk_err run_kernel(struct dynamic *d, struct frame *f, const struct node *n, struct dyn_value *const *in,
    struct dyn_value **out, struct yk_diag *why)
{
    struct tensor args[OP_MAX_IN];
    struct node_run *r = d->run;
    struct backend_form form;
    yk_err err;
    for (int i = 0; i < n->n_in; i++) {
        struct tensor *t = NULL;
        args[i] = (struct tensor){.shape = {.dtype = DT_NONE, .rank = -1}};
        if (in[i] && (err = dynamic_tensor(in, i, "a tensor", &t, why)))
            return err;
        if (t)
            args[i] = *t;
    }
    if ((err = node_run_inputs(r, f->of->g, n, args, why)))
        return err;
    if (n->op->flags & OP_VIEW)
        return dyn_view(d->heap, in[0], &r->ctx.out[0], &out[0], why);
    const struct host_kernel *k = NULL;
    for (int i = 0; i < d->using->n && !k; i++)
        k = host_kernel_of(d->using->at[i], &r->ctx, &form);
    if (!k)
        return yk_fail(why, YK_UNSUPPORTED, "no backend here can run it");
    for (int i = 0; i < n->n_out; i++) {
        struct shape room = r->ctx.out[i];
        r->call.out[i] = (struct tensor){.shape = {.dtype = DT_NONE, .rank = -1}};
        if (n->out[i] == YK_ABSENT)
            continue;
        if (shape_bytes(&room) < 0)
            room = (struct shape){.dtype = room.dtype, .rank = 1, .dims = {r->ctx.most[i]}};
        if ((err = dyn_tensor(d->heap, &room, &out[i], why)))
            return err;
        r->call.out[i] = (struct tensor){r->ctx.out[i], out[i]->tensor.data};
    }
    if ((err = node_run_kernel(r, k, &form, d->pool, f->seed, why)))
        return err;
    for (int i = 0; i < n->n_out; i++) {
        if (n->out[i] == YK_ABSENT || shape_bytes(&r->ctx.out[i]) >= 0)
            continue;
        /* What is much smaller than its room gives the room back. */
        struct tensor *said = &r->call.out[i];
        struct dyn_value *small;
        if (tensor_bytes(said) > tensor_bytes(&out[i]->tensor) / 2) {
            out[i]->tensor.shape = said->shape;
            continue;
        }
        if ((err = dyn_tensor(d->heap, &said->shape, &small, why)))
            return err;
        if (tensor_bytes(said) > 0)
            memcpy(small->tensor.data, said->data, (size_t)tensor_bytes(said));
        dyn_unref(out[i]);
        out[i] = small;
    }
    return YK_OK;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static yk_err check_going(struct dynamic *d, struct yk_diag *why)
{
    if (atomic_load_explicit(d->c.canceled, memory_order_relaxed))
        return yk_fail(why, YK_CANCELED, "canceled");
    if (++d->steps > d->c.step_limit)
        return yk_fail(why, YK_LIMIT, "the run took more than %lld steps (step_limit): does a Loop ever end?",
            (long long)d->c.step_limit);
    if (d->c.time_limit_ms > 0 && now_ms() - d->begun_ms > d->c.time_limit_ms)
        return yk_fail(why, YK_TIMEOUT, "the run took more than %.0f ms", d->c.time_limit_ms);
    return YK_OK;
}

/* Runs node i; out: by position, the caller becomes a user of each. */
static yk_err run_node(struct dynamic *d, struct frame *f, int32_t i, struct dyn_value **out, struct yk_diag *why)
{
    const struct node *n = &f->of->g->nodes[i];
    struct dyn_value *in[OP_MAX_IN] = {NULL};
    yk_err err = check_going(d, why);
    if (!err && (n->n_in > OP_MAX_IN || n->n_out > OP_MAX_OUT))
        err = yk_fail(why, YK_LIMIT, "%d inputs and %d outputs, the limits are %d and %d", (int)n->n_in, (int)n->n_out,
            OP_MAX_IN, OP_MAX_OUT);
    for (int32_t k = 0; !err && k < n->n_in; k++)
        if (n->in[k] != YK_ABSENT)
            err = get(d, f, n->in[k], &in[k], why);
    if (err) {
    } else if (n->op->flags & OP_CONTROL) {
        err = dynamic_control(d, f, n, in, out, why);
    } else if (n->op->flags & OP_VALUES) {
        err = dynamic_sequence(d, n, in, out, why);
    } else if (!strcmp(n->op->name, "Identity") && n->n_in == 1 && in[0]) {
        out[0] = dyn_ref(in[0]);
    } else {
        err = run_kernel(d, f, n, in, out, why);
    }
    for (int32_t k = 0; k < YK_MIN(n->n_in, OP_MAX_IN); k++)
        dyn_unref(in[k]);
    return err ? yk_wrap(why, err, "node %d '%s' (%s)", (int)i, n->name, n->op->name) : YK_OK;
}

/* Puts what node i made into the frame and lets go what nobody reads any more. */
static void keep(struct frame *f, int32_t i, struct dyn_value **out)
{
    const struct dynamic_graph *p = f->of;
    const struct node *n = &p->g->nodes[i];
    for (int32_t k = 0; k < n->n_out; k++) {
        if (n->out[k] == YK_ABSENT) {
            dyn_unref(out[k]);
            continue;
        }
        dyn_unref(f->slot[n->out[k]]);
        f->slot[n->out[k]] = out[k];
    }
    for (int32_t k = p->free_start[i]; k < p->free_start[i + 1]; k++) {
        dyn_unref(f->slot[p->free_list[k]]);
        f->slot[p->free_list[k]] = NULL;
    }
}

static void drop(struct dyn_value **out, int n)
{
    for (int k = 0; k < n; k++)
        dyn_unref(out[k]);
}

/* splitmix64's finish. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

yk_err dynamic_graph_run(struct dynamic *d, struct frame *parent, const struct graph *g, int64_t trip,
    struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    struct frame f = {.parent = parent, .of = find_graph(d, g)};
    f.seed = mix(parent->seed + mix((uint64_t)trip + 1));
    f.slot = yk_try_alloc((size_t)g->n_values + 1, sizeof(struct dyn_value *));
    yk_err err = f.of && f.slot ? YK_OK : yk_fail(why, YK_NOMEM, "no memory to run a subgraph");
    if (err) {
        free(f.slot);
        return err;
    }
    for (int32_t k = 0; k < g->n_inputs; k++)
        f.slot[g->inputs[k]] = dyn_ref(in[k]);
    if (g->n_nodes == 0) /* a loop around nothing still has to end */
        err = check_going(d, why);
    for (int32_t i = 0; !err && i < g->n_nodes; i++) {
        struct dyn_value *made[OP_MAX_OUT] = {NULL};
        err = run_node(d, &f, i, made, why);
        if (err)
            drop(made, OP_MAX_OUT);
        else
            keep(&f, i, made);
    }
    int32_t have = 0;
    for (; !err && have < g->n_outputs; have++)
        if ((err = get(d, &f, g->outputs[have], &out[have], why)))
            break;
    for (int32_t k = 0; err && k < have; k++) {
        dyn_unref(out[k]);
        out[k] = NULL;
    }
    clear(&f);
    free(f.slot);
    return err;
}

/* ---- the stage's own graph ---- */

void dynamic_begin(struct dynamic *d, const struct dynamic_run *run)
{
    d->now = *run;
    d->root.seed = run->seed;
    d->steps = 0;
    d->begun_ms = now_ms();
}

void dynamic_end(struct dynamic *d)
{
    clear(&d->root);
}

void dynamic_set(struct dynamic *d, int32_t value, struct dyn_value *v)
{
    dyn_unref(d->root.slot[value]);
    d->root.slot[value] = dyn_ref(v);
}

struct dyn_value *dynamic_take(struct dynamic *d, int32_t value)
{
    return d->root.slot[value] ? dyn_ref(d->root.slot[value]) : NULL;
}

/* Whether a value shows bytes that are not the heap's: of the memory plan, of a weight, of the caller. */
static bool borrows(const struct dyn_value *v)
{
    if (v->type == VALUE_TENSOR)
        return v->base ? borrows(v->base) : !v->owned;
    for (int64_t i = 0; i < v->n; i++)
        if (borrows(v->items[i]))
            return true;
    return false;
}

/* Such a value is not safe behind the node that made it: *v becomes a copy that owns its bytes. */
static yk_err settle(struct dynamic *d, struct dyn_value **v, struct yk_diag *why)
{
    struct dyn_value *old = *v, *copy = NULL;
    if (!borrows(old))
        return YK_OK;
    yk_err err = old->type == VALUE_TENSOR
                     ? dyn_tensor(d->heap, &old->tensor.shape, &copy, why)
                     : dyn_list(d->heap, old->type, old->tensor.shape.dtype, old->items, old->n, &copy, why);
    if (err)
        return err;
    if (old->type == VALUE_TENSOR && tensor_bytes(&old->tensor) > 0)
        memcpy(copy->tensor.data, old->tensor.data, (size_t)tensor_bytes(&old->tensor));
    for (int64_t i = 0; !err && i < copy->n; i++)
        err = settle(d, &copy->items[i], why);
    if (err) {
        dyn_unref(copy);
        return err;
    }
    dyn_unref(old);
    *v = copy;
    return YK_OK;
}

/* A result of known shape goes to its place in the memory plan. */
static yk_err deliver(struct dynamic *d, int32_t v, struct dyn_value *made, struct yk_diag *why)
{
    struct tensor t = {.shape = {.dtype = DT_NONE}};
    char got[160], want[160];
    d->now.place(d->now.arg, v, &t);
    if (made->type != VALUE_TENSOR || !shape_equal(&made->tensor.shape, &t.shape)) {
        dyn_text(made, got, sizeof(got));
        shape_text(&t.shape, want, sizeof(want));
        return yk_fail(why, YK_INVAL, "'%s' came out as %s; its graph says %s", d->c.graph->values[v].name, got, want);
    }
    if (tensor_bytes(&t) > 0)
        memmove(t.data, made->tensor.data, (size_t)tensor_bytes(&t));
    return YK_OK;
}

yk_err dynamic_node(struct dynamic *d, int32_t node, struct yk_diag *why)
{
    const struct graph *g = d->c.graph;
    const struct node *n = &g->nodes[node];
    struct dyn_value *out[OP_MAX_OUT] = {NULL};
    d->using = &d->kernels[d->kernels_of[node]];
    yk_err err = run_node(d, &d->root, node, out, why);
    for (int32_t k = 0; !err && k < n->n_out; k++) {
        int32_t v = n->out[k];
        if (v == YK_ABSENT || !out[k])
            continue;
        if (shapes_has(d->c.max, v)) {
            err = deliver(d, v, out[k], why);
            dyn_unref(out[k]);
            out[k] = NULL;
        } else {
            err = settle(d, &out[k], why);
        }
        if (err)
            yk_wrap(why, err, "node %d '%s' (%s)", (int)node, n->name, n->op->name);
    }
    if (err)
        drop(out, OP_MAX_OUT);
    else
        keep(&d->root, node, out);
    return err;
}
