/* One run of a stage: its segments in order, each waited for. */
#include "kernels/exec_priv.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Smaller sizes nearly always mean smaller values; what a model does otherwise would leave its place in the plan. */
static yk_err check_fits(const struct exec *e, const struct shapes *s, struct yk_diag *why)
{
    const struct graph *g = e->graph;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = &g->nodes[i];
        if (!e->in_stage[i])
            continue;
        for (int32_t k = 0; k < n->n_in + n->n_out; k++) {
            int32_t v = k < n->n_in ? n->in[k] : n->out[k - n->n_in];
            if (v < 0 || !shapes_has(&e->max, v))
                continue;
            if (!shapes_has(s, v))
                return yk_fail(why, YK_UNSUPPORTED,
                    "the size of '%s' depends on data at these sizes, at those the stage was loaded for it does not",
                    g->values[v].name);
            if (shape_bytes(&s->of[v]) > shape_bytes(&e->max.of[v])) {
                char now[128], most[128];
                shape_text(&s->of[v], now, sizeof(now));
                shape_text(&e->max.of[v], most, sizeof(most));
                return yk_fail(
                    why, YK_LIMIT, "value '%s' would be %s; the stage was loaded for %s", g->values[v].name, now, most);
            }
        }
    }
    return YK_OK;
}

yk_err exec_sizes(struct exec *e, const int64_t *sizes, const struct shapes **out, struct yk_diag *why)
{
    const struct graph *g = e->graph;
    size_t bytes = (size_t)g->n_syms * sizeof(int64_t);
    if (!sizes)
        sizes = e->max_sizes;
    if (!e->has_actual || memcmp(sizes, e->sizes, bytes) != 0) {
        struct shapes s;
        for (int32_t i = 0; i < g->n_syms; i++)
            if (sizes[i] > e->max_sizes[i])
                return yk_fail(why, YK_LIMIT, "dimension '%s' is %lld; the stage was loaded for at most %lld",
                    g->syms[i], (long long)sizes[i], (long long)e->max_sizes[i]);
        yk_err err = shapes_infer(g, sizes, e->input_shapes, &s, why);
        if (err)
            return err;
        if ((err = check_fits(e, &s, why))) {
            shapes_fini(&s);
            return err;
        }
        if (e->has_actual)
            shapes_fini(&e->actual);
        e->actual = s;
        e->has_actual = true;
        memcpy(e->sizes, sizes, bytes);
    }
    *out = &e->actual;
    return YK_OK;
}

static yk_err check_tensor(const struct exec *e, const struct tensor *t, int32_t v, bool taken, struct yk_diag *why)
{
    const struct shape *want = &e->actual.of[v];
    if (!shape_equal(&t->shape, want)) {
        char got[128], text[128];
        shape_text(&t->shape, got, sizeof(got));
        shape_text(want, text, sizeof(text));
        return yk_fail(why, YK_INVAL, "'%s' is %s, wants %s", e->graph->values[v].name, got, text);
    }
    if (taken && !t->data)
        return YK_OK;
    if (shape_bytes(want) > 0 && (!t->data || (uintptr_t)t->data % dtype_bytes(want->dtype) != 0))
        return yk_fail(why, YK_INVAL, "'%s' has no aligned data", e->graph->values[v].name);
    return YK_OK;
}

static void *address(const struct exec *e, int32_t v, const struct tensor *in, const struct tensor *out)
{
    struct memplan_place p = memplan_place(&e->plan, e->graph, v);
    switch (p.where) {
    case MEMPLAN_ARENA:
        return e->arena + p.offset;
    case MEMPLAN_WEIGHT:
        return (void *)(uintptr_t)e->weights[p.root];
    case MEMPLAN_IN:
        return in[p.index].data;
    case MEMPLAN_OUT:
        if (out[p.index].data || p.offset < 0)
            return out[p.index].data;
        return e->kept[p.root] ? e->kept[p.root] : e->arena + p.offset;
    default:
        return NULL;
    }
}

struct tensor exec_peek(const struct exec *e, int32_t value)
{
    void *data = shapes_has(&e->actual, value) ? address(e, value, e->in, e->out) : NULL;
    return (struct tensor){e->actual.of[value], data};
}

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool done;
    yk_err err;
    char text[sizeof(((struct yk_diag *)0)->text)];
};

static void on_done(void *arg, yk_err err, const char *why)
{
    struct waiter *w = arg;
    pthread_mutex_lock(&w->lock);
    w->done = true;
    w->err = err;
    strncpy(w->text, why ? why : "", sizeof(w->text) - 1);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

static void on_node(void *arg, int32_t node, double ms)
{
    struct exec *e = arg;
    e->trace(e->trace_arg, node, e->forms[node], ms);
}

/* True if the run was canceled before this segment. */
static bool start(struct exec *e, struct exec_segment *seg)
{
    pthread_mutex_lock(&e->lock);
    bool canceled = atomic_load(&e->canceled);
    e->running = canceled ? NULL : seg;
    pthread_mutex_unlock(&e->lock);
    return canceled;
}

static void stop(struct exec *e)
{
    pthread_mutex_lock(&e->lock);
    e->running = NULL;
    pthread_mutex_unlock(&e->lock);
}

/* Where a value of known shape lies. */
static void place(void *arg, int32_t v, struct tensor *out)
{
    const struct exec *e = arg;
    *out = (struct tensor){e->actual.of[v], address(e, v, e->in, e->out)};
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Gives away what of a node's outputs is taken. */
static void on_made(void *arg, int32_t node)
{
    struct exec *e = arg;
    const struct node *n = &e->graph->nodes[node];
    for (int32_t k = 0; k < n->n_out; k++) {
        if (n->out[k] < 0 || !e->taken[n->out[k]])
            continue;
        struct memplan_place p = memplan_place(&e->plan, e->graph, n->out[k]);
        struct tensor made = {e->actual.of[n->out[k]], address(e, n->out[k], e->in, e->out)};
        if (p.where == MEMPLAN_OUT && !e->out[p.index].data)
            e->take(e->take_arg, p.index, &made);
    }
}

static int32_t position(const int32_t *ids, int32_t n, int32_t value)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == value)
            return i;
    return -1;
}

/* Behind a segment that ran elsewhere or all at once: its outputs, each read and given away before the next, in the
 * order in which they were made: in the arena, one that is taken may have the place of a later one. */
static yk_err fetch(struct exec *e, struct exec_segment *seg, struct yk_diag *why)
{
    const struct backend_ops *ops = seg->backend->ops;
    for (int32_t i = 0; i < seg->n_nodes; i++) {
        const struct node *n = &e->graph->nodes[seg->nodes[i]];
        for (int32_t k = 0; k < n->n_out && !ops->host; k++) {
            int32_t v = n->out[k], at = v < 0 ? -1 : position(seg->out, seg->n_out, v);
            yk_err err = at < 0 ? YK_OK
                                : ops->read(seg->backend, &seg->buffers[seg->n_in + at], address(e, v, e->in, e->out),
                                      shape_bytes(&e->actual.of[v]));
            if (err)
                return yk_fail(why, err, "cannot read '%s' from backend %s", e->graph->values[v].name, ops->name);
        }
        if (seg->takes)
            on_made(e, seg->nodes[i]);
    }
    return YK_OK;
}

static yk_err run_dynamic(struct exec *e, struct exec_segment *seg, struct yk_diag *why)
{
    yk_err err = YK_OK;
    double before = e->trace ? now_ms() : 0;
    for (int32_t i = 0; i < seg->n_nodes && !err; i++) {
        err = dynamic_node(e->dynamic, seg->nodes[i], why);
        if (!err && e->trace) {
            double after = now_ms();
            on_node(e, seg->nodes[i], after - before);
        }
        if (!err && seg->takes)
            on_made(e, seg->nodes[i]);
        before = e->trace ? now_ms() : 0;
    }
    return err;
}

static yk_err run_segment(struct exec *e, struct exec_segment *seg, const struct tensor *in, struct tensor *out,
    uint64_t seed, struct yk_diag *why)
{
    if (!seg->backend)
        return run_dynamic(e, seg, why);
    const struct backend_ops *ops = seg->backend->ops;
    yk_err err = YK_OK;
    for (int32_t i = 0; i < seg->n_in + seg->n_out; i++) {
        int32_t v = i < seg->n_in ? seg->in[i] : seg->out[i - seg->n_in];
        void *at = address(e, v, in, out);
        int64_t bytes = shape_bytes(&e->actual.of[v]);
        if (ops->host)
            seg->buffers[i] = (struct backend_buffer){.host = at, .bytes = bytes};
        else if (i < seg->n_in && (err = ops->write(seg->backend, &seg->buffers[i], at, bytes)))
            return yk_fail(why, err, "cannot write '%s' to backend %s", e->graph->values[v].name, ops->name);
    }
    struct backend_run run = {.shapes = &e->actual,
        .in = seg->pointers,
        .out = seg->pointers + seg->n_in,
        .scratch = ops->host ? e->arena : seg->scratch,
        .seed = seed,
        .trace = e->trace ? on_node : NULL,
        .trace_arg = e,
        .made = seg->takes && ops->steps ? on_made : NULL,
        .made_arg = e};
    struct waiter w = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};
    if (start(e, seg))
        return yk_fail(why, YK_CANCELED, "canceled");
    ops->submit(seg->backend, seg->handle, &run, on_done, &w);
    pthread_mutex_lock(&w.lock);
    while (!w.done)
        pthread_cond_wait(&w.wake, &w.lock);
    pthread_mutex_unlock(&w.lock);
    stop(e);
    pthread_cond_destroy(&w.wake);
    pthread_mutex_destroy(&w.lock);
    if (w.err)
        return yk_fail(why, w.err, "%s", w.text);
    return ops->steps ? YK_OK : fetch(e, seg, why);
}

/* A graph output that this stage makes on its heap. */
static bool is_made(const struct exec *e, int32_t v)
{
    int32_t producer = e->graph->values[v].producer;
    return e->graph->values[v].kind == VALUE_NODE && producer >= 0 && e->in_stage[producer] && !shapes_has(&e->max, v);
}

/* The run itself; all tensors are checked. values_in by graph input (NULL where it is a tensor of the plan) and
 * values_out by graph output (filled where the stage makes it on its heap). */
static yk_err run_all(struct exec *e, const struct tensor *in, struct tensor *out, struct dyn_value *const *values_in,
    struct dyn_value **values_out, uint64_t seed, struct yk_diag *why)
{
    const struct graph *g = e->graph;
    yk_err err = YK_OK;
    pthread_mutex_lock(&e->lock);
    e->busy = true;
    atomic_store(&e->canceled, false);
    pthread_mutex_unlock(&e->lock);
    e->in = in;
    e->out = out;
    if (e->dynamic) {
        struct dynamic_run run = {.shapes = &e->actual, .place = place, .arg = e, .seed = seed};
        dynamic_begin(e->dynamic, &run);
        for (int32_t k = 0; values_in && k < g->n_inputs; k++)
            if (!shapes_has(&e->max, g->inputs[k]))
                dynamic_set(e->dynamic, g->inputs[k], values_in[k]);
    }
    for (int32_t i = 0; !err && i < e->n_segments; i++)
        err = run_segment(e, &e->segments[i], in, out, seed, why);
    for (int32_t k = 0; !err && e->dynamic && values_out && k < g->n_outputs; k++)
        if (is_made(e, g->outputs[k]) && !(values_out[k] = dynamic_take(e->dynamic, g->outputs[k])))
            err = yk_fail(why, YK_INTERNAL, "graph output '%s' was not made", g->values[g->outputs[k]].name);
    if (e->dynamic)
        dynamic_end(e->dynamic);
    pthread_mutex_lock(&e->lock);
    e->busy = false;
    pthread_mutex_unlock(&e->lock);
    return err;
}

static yk_err check_tensors(
    struct exec *e, const int64_t *sizes, const struct tensor *in, struct tensor *out, struct yk_diag *why)
{
    const struct shapes *s;
    yk_err err = exec_sizes(e, sizes, &s, why);
    for (int32_t i = 0; !err && i < e->plan.n_in; i++)
        err = check_tensor(e, &in[i], e->plan.in[i], false, why);
    for (int32_t i = 0; !err && i < e->plan.n_out; i++)
        err = check_tensor(e, &out[i], e->plan.out[i], e->taken && e->taken[e->plan.out[i]], why);
    return err;
}

/* A value that exec_run does not take or (outputs) give, YK_ABSENT if there is none. */
static int32_t dynamic_border(const struct exec *e, bool outputs)
{
    const struct graph *g = e->graph;
    for (int32_t k = 0; k < g->n_inputs; k++)
        if (!shapes_has(&e->max, g->inputs[k]) && e->dynamic)
            return g->inputs[k];
    for (int32_t k = 0; outputs && k < g->n_outputs; k++)
        if (is_made(e, g->outputs[k]))
            return g->outputs[k];
    return YK_ABSENT;
}

yk_err exec_run_made(struct exec *e, const int64_t *sizes, const struct tensor *in, struct tensor *out,
    struct dyn_value **made, uint64_t seed, struct yk_diag *why)
{
    int32_t border = dynamic_border(e, made == NULL), n = e->graph->n_outputs;
    if (border != YK_ABSENT)
        return yk_fail(why, YK_UNSUPPORTED,
            "'%s' is a value whose size depends on data, which this way of running does "
            "not hand over",
            e->graph->values[border].name);
    yk_err err = check_tensors(e, sizes, in, out, why);
    if (made)
        memset(made, 0, (size_t)n * sizeof(*made));
    if (!err)
        err = run_all(e, in, out, NULL, made, seed, why);
    for (int32_t k = 0; err && made && k < n; k++) {
        dyn_unref(made[k]);
        made[k] = NULL;
    }
    return err;
}

yk_err exec_run(struct exec *e, const int64_t *sizes, const struct tensor *in, struct tensor *out, uint64_t seed,
    struct yk_diag *why)
{
    return exec_run_made(e, sizes, in, out, NULL, seed, why);
}

void exec_cancel(struct exec *e)
{
    pthread_mutex_lock(&e->lock);
    if (e->busy) {
        atomic_store(&e->canceled, true);
        if (e->running && e->running->backend)
            e->running->backend->ops->cancel(e->running->backend, e->running->handle);
    }
    pthread_mutex_unlock(&e->lock);
}

/* ---- values of any kind ---- */

/* A graph output that no node makes: an input, or a weight (copied, since it may outlive the exec). */
static yk_err unmade_output(
    const struct exec *e, int32_t v, struct dyn_value *const *in, struct dyn_value **out, struct yk_diag *why)
{
    const struct graph *g = e->graph;
    int32_t k = position(g->inputs, g->n_inputs, v);
    if (k >= 0) {
        *out = dyn_ref(in[k]);
        return YK_OK;
    }
    const struct value *w = &g->values[v];
    if (w->kind != VALUE_WEIGHT || (!w->data && w->bytes > 0))
        return yk_fail(why, YK_NOTFOUND, "graph output '%s' has no data here", w->name);
    yk_err err = dyn_tensor(NULL, &w->shape, out, why);
    if (!err && w->bytes > 0)
        memcpy((*out)->tensor.data, w->data, (size_t)w->bytes);
    return err;
}

yk_err exec_run_values(struct exec *e, const int64_t *sizes, struct dyn_value *const *in, struct dyn_value **out,
    uint64_t seed, struct yk_diag *why)
{
    const struct graph *g = e->graph;
    const struct memplan *m = &e->plan;
    const struct shapes *s;
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (!e->in_stage[i])
            return yk_fail(why, YK_INVAL, "node %d '%s' is not in this stage: values need the whole graph", (int)i,
                g->nodes[i].name);
    for (int32_t i = 0; i < g->n_inputs; i++)
        if (!in[i])
            return yk_fail(why, YK_INVAL, "graph input '%s' is not given", g->values[g->inputs[i]].name);
    struct tensor *args = yk_try_alloc((size_t)m->n_in + 1, sizeof(*args));
    struct tensor *outs = yk_try_alloc((size_t)m->n_out + 1, sizeof(*outs));
    struct dyn_value **made = yk_try_alloc((size_t)g->n_outputs + 1, sizeof(struct dyn_value *));
    yk_err err = args && outs && made ? exec_sizes(e, sizes, &s, why) : yk_fail(why, YK_NOMEM, "no memory to run");
    for (int32_t i = 0; !err && i < m->n_in; i++) {
        int32_t k = position(g->inputs, g->n_inputs, m->in[i]);
        if (k < 0 || in[k]->type != VALUE_TENSOR)
            err = yk_fail(why, YK_INVAL, "'%s' is not given as a tensor", g->values[m->in[i]].name);
        else
            args[i] = in[k]->tensor;
    }
    for (int32_t i = 0; !err && i < g->n_outputs; i++) {
        int32_t k = position(m->out, m->n_out, g->outputs[i]);
        if (k < 0 && g->values[g->outputs[i]].kind == VALUE_NODE) {
            continue; /* from the heap, when it is made */
        } else if (k < 0) {
            err = unmade_output(e, g->outputs[i], in, &made[i], why);
        } else if (!(err = dyn_tensor(NULL, &s->of[g->outputs[i]], &made[i], why))) {
            outs[k] = made[i]->tensor;
        }
    }
    if (!err)
        err = check_tensors(e, sizes, args, outs, why);
    if (!err)
        err = run_all(e, args, outs, in, made, seed, why);
    for (int32_t i = 0; made && i < g->n_outputs; i++) {
        if (err)
            dyn_unref(made[i]);
        else
            out[i] = made[i];
    }
    free(args);
    free(outs);
    free(made);
    return err;
}
