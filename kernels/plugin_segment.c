/* Segments of a plug-in: buffers of its memory, runs, checks, and the reference that answers where it does not. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "kernels/host.h"
#include "kernels/plugin_priv.h"

#define SLOWEST_FLOPS_PER_MS 1e5 /* a device of 0.1 GFLOP/s is not hung */
#define FAILURES 3               /* runs in a row that fail take the backend out */
#define CHECK_ALWAYS 16          /* who wants checks more often than this gets them, whatever they cost */
#define CHECK_SHARE 5.0          /* else they take a fifth of the time at most */

/* What the plug-in's thread may touch. Left alone for ever if that thread does not come back. */
struct plugin_device {
    struct plugin_device *next; /* of those that are left alone */
    struct plugin_view view;
    struct yoke_prepared prepared;
    bool is_prepared;
    int32_t n_in, n_out, n_buffers;      /* n_buffers: those that were allocated */
    struct yoke_buffer *buffers;         /* inputs, then outputs */
    const struct yoke_buffer **pointers; /* to them */
    void **bounce;                       /* by buffer: host memory between ours and theirs */
    int64_t *bytes, *most;               /* by buffer: of this run, at the maximum sizes */
    struct yoke_shape *shapes;           /* of this run */
    const struct yoke_shape **shape_at;  /* to them */
    struct yoke_run run;
    struct plugin_ticket *ticket;
    int64_t held;
};

struct plugin_segment {
    struct backend_segment desc; /* nodes, in, out are copies */
    struct plugin_device *max;   /* at the maximum sizes; NULL: the reference runs this segment */
    struct plugin_device *other; /* of a backend with fixed sizes: at the last other ones */
    void *ref;
    int32_t *same; /* by output: the input that it is a view of, -1 */
    double *flops; /* by node, at the maximum sizes */
    double all_flops;
    atomic_bool canceled;
};

/* ---- on the plug-in's thread ---- */

static void call_prepare(struct plugin *p, struct plugin_call *c)
{
    struct plugin_device *d = c->device;
    d->prepared.size = sizeof(d->prepared);
    c->status = p->api->prepare(p->state, &d->view.segment, &d->prepared, c->why, sizeof(c->why));
    c->why[sizeof(c->why) - 1] = 0;
    if (c->status == YOKE_OK && !d->prepared.handle) {
        c->status = YOKE_FAILED;
        strcpy(c->why, "it gave no handle");
    }
    d->is_prepared = c->status == YOKE_OK;
    for (int32_t i = 0; i < d->n_in + d->n_out && c->status == YOKE_OK; i++) {
        d->buffers[i].size = sizeof(d->buffers[i]);
        c->status = p->api->alloc(p->state, d->most[i], &d->buffers[i]);
        if (c->status != YOKE_OK)
            strcpy(c->why, "alloc failed");
        else
            d->n_buffers++;
    }
}

static void call_release(struct plugin *p, struct plugin_call *c)
{
    struct plugin_device *d = c->device;
    for (int32_t i = 0; i < d->n_buffers; i++)
        p->api->free(p->state, &d->buffers[i]);
    if (d->is_prepared)
        p->api->release(p->state, d->prepared.handle);
}

static void call_set_weights(struct plugin *p, struct plugin_call *c)
{
    c->status = p->api->set_weights(p->state, c->device->prepared.handle, c->weights, c->why, sizeof(c->why));
    c->why[sizeof(c->why) - 1] = 0;
}

static void call_run(struct plugin *p, struct plugin_call *c)
{
    struct plugin_device *d = c->device;
    for (int32_t i = 0; i < d->n_in; i++) {
        c->status = p->api->write(p->state, &d->buffers[i], d->bounce[i], d->bytes[i]);
        if (c->status != YOKE_OK) {
            strcpy(c->why, "write failed");
            return;
        }
    }
    p->api->submit(p->state, d->prepared.handle, &d->run, plugin_done, d->ticket);
}

static void call_read(struct plugin *p, struct plugin_call *c)
{
    struct plugin_device *d = c->device;
    for (int32_t i = d->n_in; i < d->n_in + d->n_out && c->status == YOKE_OK; i++) {
        c->status = p->api->read(p->state, &d->buffers[i], d->bounce[i], d->bytes[i]);
        if (c->status != YOKE_OK)
            strcpy(c->why, "read failed");
    }
}

/* ---- devices ---- */

static yk_err call(struct plugin *p, struct plugin_device *d, void (*fn)(struct plugin *p, struct plugin_call *c),
    const char *what, int64_t limit_ms, struct yk_diag *why)
{
    struct plugin_call *c = yk_xalloc(sizeof(*c));
    *c = (struct plugin_call){.fn = fn, .what = what, .device = d};
    yk_err err = plugin_do(p, c, limit_ms, why);
    if (err != YK_TIMEOUT)
        free(c);
    return err;
}

static void device_free(struct plugin_device *d)
{
    for (int32_t i = 0; d->bounce && i < d->n_in + d->n_out; i++)
        free(d->bounce[i]);
    plugin_view_fini(&d->view);
    free(d->buffers);
    free(d->pointers);
    free(d->bounce);
    free(d->bytes);
    free(d->most);
    free(d->shapes);
    free(d->shape_at);
    free(d);
}

static void device_close(struct plugin *p, struct plugin_device *d)
{
    if (!d)
        return;
    if ((d->is_prepared || d->n_buffers) && !plugin_is_hung(p))
        call(p, d, call_release, "release", p->config.timeout_ms, NULL);
    if (!plugin_is_hung(p)) {
        device_free(d);
        return;
    }
    pthread_mutex_lock(&p->lock); /* its thread may still use it */
    d->next = p->left_devices;
    p->left_devices = d;
    pthread_mutex_unlock(&p->lock);
}

static yk_err device_open(struct plugin *p, const struct backend_segment *seg, const struct shapes *shapes,
    struct plugin_device **out, struct yk_diag *why)
{
    size_t n = (size_t)(seg->n_in + seg->n_out) + 1;
    struct plugin_device *d = yk_xalloc(sizeof(*d));
    yk_err err = plugin_view_segment(seg, shapes, &d->view, why);
    if (err) {
        free(d);
        return err;
    }
    size_t n_values = (size_t)d->view.segment.n_values + 1;
    d->n_in = seg->n_in;
    d->n_out = seg->n_out;
    d->buffers = yk_try_alloc(n, sizeof(*d->buffers));
    d->pointers = yk_try_alloc(n, sizeof(*d->pointers));
    d->bounce = yk_try_alloc(n, sizeof(*d->bounce));
    d->bytes = yk_try_alloc(n, sizeof(*d->bytes));
    d->most = yk_try_alloc(n, sizeof(*d->most));
    d->shapes = yk_try_alloc(n_values, sizeof(*d->shapes));
    d->shape_at = yk_try_alloc(n_values, sizeof(*d->shape_at));
    bool ok = d->buffers && d->pointers && d->bounce && d->bytes && d->most && d->shapes && d->shape_at;
    for (int32_t i = 0; ok && i < seg->n_in + seg->n_out; i++) {
        d->most[i] = shape_bytes(&shapes->of[i < seg->n_in ? seg->in[i] : seg->out[i - seg->n_in]]);
        d->pointers[i] = &d->buffers[i];
        d->bounce[i] = d->most[i] > 0 ? yk_try_aligned((size_t)d->most[i]) : NULL;
        ok = d->bounce[i] != NULL;
        d->held += 2 * YK_MAX(d->most[i], 0);
    }
    if (!ok) {
        device_free(d);
        return yk_fail(why, YK_NOMEM, "no memory for the buffers of backend %s", p->name);
    }
    for (int32_t i = 0; i < d->view.segment.n_values; i++)
        d->shape_at[i] = &d->shapes[i];
    d->run = (struct yoke_run){
        .size = sizeof(d->run), .shapes = d->shape_at, .in = d->pointers, .out = d->pointers + d->n_in};
    err = call(p, d, call_prepare, "prepare", 10 * p->config.timeout_ms, why);
    if (err == YK_TIMEOUT)
        return err; /* d stays where it is */
    if (err) {
        device_close(p, d);
        return err;
    }
    plugin_view_drop_data(&d->view);
    d->held += YK_MAX(d->prepared.held_bytes, 0);
    *out = d;
    return YK_OK;
}

/* ---- segments ---- */

static int32_t *copy_ids(const int32_t *ids, int32_t n)
{
    int32_t *copy = yk_try_alloc((size_t)n + 1, sizeof(*copy));
    if (copy && n)
        memcpy(copy, ids, (size_t)n * sizeof(*copy));
    return copy;
}

/* The segment's input whose memory v is, -1 if it is its own. */
static int32_t view_of(const struct backend_segment *seg, int32_t v)
{
    const struct graph *g = seg->graph;
    for (;;) {
        for (int32_t i = 0; i < seg->n_in; i++)
            if (seg->in[i] == v)
                return i;
        int32_t maker = v >= 0 && g->values[v].kind == VALUE_NODE ? g->values[v].producer : -1;
        if (maker < 0 || !(g->nodes[maker].op->flags & OP_VIEW) || g->nodes[maker].n_in < 1)
            return -1;
        v = g->nodes[maker].in[0];
    }
}

static yk_err ref_prepare(
    struct plugin *p, struct plugin_segment *s, int64_t *scratch, int64_t *packed, struct yk_diag *why)
{
    const char **forms = yk_try_alloc((size_t)s->desc.n_nodes + 1, sizeof(*forms));
    struct op_ctx *x = yk_try_alloc(1, sizeof(*x));
    struct backend_form *form = yk_try_alloc((size_t)s->desc.n_nodes + 1, sizeof(*form));
    yk_err err = forms && x && form ? YK_OK : yk_fail(why, YK_NOMEM, "no memory to prepare a segment");
    for (int32_t i = 0; !err && i < s->desc.n_nodes; i++) {
        shapes_node(s->desc.graph, s->desc.max, s->desc.nodes[i], x);
        forms[i] = form[i].name;
        if (host_forms(p->ref, x, &form[i], 1) != 1)
            err = yk_fail(why, YK_UNSUPPORTED, "the reference has no %s for these types", x->node->op->name);
        s->flops[i] = YK_MAX(op_flops(x), 1.0);
        s->all_flops += s->flops[i];
    }
    struct backend_segment seg = s->desc;
    seg.forms = forms;
    if (!err)
        err = host_prepare(p->ref, &seg, &s->ref, scratch, packed, why);
    free(forms);
    free(form);
    free(x);
    return err;
}

void plugin_release(struct backend *b, void *handle)
{
    struct plugin *p = (struct plugin *)b;
    struct plugin_segment *s = handle;
    if (!s)
        return;
    device_close(p, s->other);
    device_close(p, s->max);
    if (s->ref)
        host_release(p->ref, s->ref);
    free((void *)(uintptr_t)s->desc.nodes);
    free((void *)(uintptr_t)s->desc.in);
    free((void *)(uintptr_t)s->desc.out);
    free(s->same);
    free(s->flops);
    free(s);
}

yk_err plugin_prepare(struct backend *b, const struct backend_segment *seg, void **handle, int64_t *scratch_bytes,
    int64_t *packed_bytes, struct yk_diag *why)
{
    struct plugin *p = (struct plugin *)b;
    struct plugin_segment *s = yk_xalloc(sizeof(*s));
    struct yk_diag text = {""};
    yk_err err = YK_OK;
    s->desc = *seg;
    s->desc.nodes = copy_ids(seg->nodes, seg->n_nodes);
    s->desc.in = copy_ids(seg->in, seg->n_in);
    s->desc.out = copy_ids(seg->out, seg->n_out);
    s->same = yk_try_alloc((size_t)seg->n_out + 1, sizeof(*s->same));
    s->flops = yk_try_alloc((size_t)seg->n_nodes + 1, sizeof(*s->flops));
    if (!s->desc.nodes || !s->desc.in || !s->desc.out || !s->same || !s->flops)
        err = yk_fail(why, YK_NOMEM, "no memory to prepare a segment");
    for (int32_t i = 0; !err && i < seg->n_out; i++)
        s->same[i] = view_of(&s->desc, seg->out[i]);
    if (!err)
        err = ref_prepare(p, s, scratch_bytes, packed_bytes, why);
    if (!err && !atomic_load(&p->out)) {
        yk_err failed = device_open(p, &s->desc, seg->max, &s->max, &text);
        if (failed && p->strict)
            err = yk_fail(why, failed, "%s", text.text);
        else if (failed && failed != YK_TIMEOUT)
            plugin_take_out(b, "%s", text.text);
        else if (!failed)
            *packed_bytes += s->max->held;
    }
    if (err) {
        plugin_release(b, s);
        return err;
    }
    s->desc.forms = NULL;
    *handle = s;
    return YK_OK;
}

static yk_err device_weights(struct plugin *p, struct plugin_device *d, const void *const *weights, struct yk_diag *why)
{
    int32_t n = d->view.segment.n_values;
    const void **mine = yk_try_alloc((size_t)n + 1, sizeof(*mine));
    struct plugin_call *c = yk_xalloc(sizeof(*c));
    if (!mine) {
        free(c);
        return yk_fail(why, YK_NOMEM, "no memory for new weights");
    }
    /* Copies: a plug-in that hangs may look at them for ever. */
    bool ok = true;
    for (int32_t i = 0; i < n; i++) {
        const struct yoke_value *v = d->view.segment.values[i];
        const void *data = weights[d->view.ids[i]];
        if (v->kind != YOKE_VALUE_WEIGHT || !data)
            continue;
        int64_t bytes = (int64_t)dtype_bytes(dtype_from_onnx(v->shape->dtype));
        for (uint32_t k = 0; k < v->shape->rank; k++)
            bytes *= v->shape->dims[k];
        void *copy = yk_try_aligned((size_t)YK_MAX(bytes, 1));
        ok = ok && copy;
        if (copy)
            memcpy(copy, data, (size_t)bytes);
        mine[i] = copy;
    }
    *c = (struct plugin_call){.fn = call_set_weights, .what = "set_weights", .device = d, .weights = mine};
    yk_err err =
        ok ? plugin_do(p, c, 10 * p->config.timeout_ms, why) : yk_fail(why, YK_NOMEM, "no memory for new weights");
    if (err == YK_TIMEOUT)
        return err;
    for (int32_t i = 0; i < n; i++)
        free((void *)(uintptr_t)mine[i]);
    free(mine);
    free(c);
    return err;
}

yk_err plugin_set_weights(struct backend *b, void *handle, const void *const *weights, struct yk_diag *why)
{
    struct plugin *p = (struct plugin *)b;
    struct plugin_segment *s = handle;
    struct yk_diag text = {""};
    yk_err err = host_set_weights(p->ref, s->ref, weights, why);
    if (err || !s->max || atomic_load(&p->out))
        return err;
    device_close(p, s->other); /* made again from desc.weights, which the caller keeps current */
    s->other = NULL;
    yk_err failed = device_weights(p, s->max, weights, &text);
    if (failed && p->strict)
        return yk_fail(why, failed, "%s", text.text);
    if (failed && failed != YK_TIMEOUT)
        plugin_take_out(b, "%s", text.text);
    return YK_OK;
}

void plugin_cancel(struct backend *b, void *handle)
{
    struct plugin *p = (struct plugin *)b;
    struct plugin_segment *s = handle;
    atomic_store(&s->canceled, true);
    host_cancel(p->ref, s->ref);
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->back);
    pthread_mutex_unlock(&p->lock);
}

/* ---- runs ---- */

struct ended {
    yk_err err;
    struct yk_diag why;
};

static void on_ref(void *arg, yk_err err, const char *why)
{
    struct ended *e = arg;
    e->err = err;
    if (err)
        yk_fail(&e->why, err, "%s", why);
}

static const struct shape *shape_now(const struct plugin_segment *s, const struct backend_run *run, int32_t i)
{
    return &run->shapes->of[i < s->desc.n_in ? s->desc.in[i] : s->desc.out[i - s->desc.n_in]];
}

static bool has_empty(const struct plugin_segment *s, const struct plugin_device *d, const struct backend_run *run)
{
    for (int32_t i = 0; i < d->view.segment.n_values; i++)
        if (shape_bytes(&run->shapes->of[d->view.ids[i]]) <= 0)
            return true;
    return s->desc.n_out == 0;
}

/* The device for these sizes. */
static yk_err device_at(struct plugin *p, struct plugin_segment *s, const struct backend_run *run,
    struct plugin_device **out, struct yk_diag *why)
{
    bool max = true, other = s->other != NULL;
    *out = s->max;
    if (!(p->flags & YOKE_FIXED_SIZES))
        return YK_OK;
    for (int32_t i = 0; i < s->max->view.segment.n_values; i++) {
        struct yoke_shape now;
        plugin_view_shape(&run->shapes->of[s->max->view.ids[i]], &now);
        max = max && !memcmp(&now, s->max->view.segment.values[i]->shape, sizeof(now));
        other = other && !memcmp(&now, s->other->view.segment.values[i]->shape, sizeof(now));
    }
    if (max)
        return YK_OK;
    if (!other) {
        device_close(p, s->other);
        s->other = NULL;
        yk_err err = device_open(p, &s->desc, run->shapes, &s->other, why);
        if (err)
            return err;
    }
    *out = s->other;
    return YK_OK;
}

/* One run on the device; the outputs are in *used's bounce memory then. */
static yk_err device_run(struct plugin *p, struct plugin_segment *s, const struct backend_run *run,
    struct plugin_device **used, struct yk_diag *why)
{
    struct plugin_device *d;
    yk_err err = device_at(p, s, run, &d, why);
    if (err)
        return err;
    *used = d;
    for (int32_t i = 0; i < d->view.segment.n_values; i++)
        plugin_view_shape(&run->shapes->of[d->view.ids[i]], &d->shapes[i]);
    for (int32_t i = 0; i < d->n_in + d->n_out; i++) {
        d->bytes[i] = shape_bytes(shape_now(s, run, i));
        if (d->bytes[i] > d->most[i])
            return yk_fail(why, YK_LIMIT, "a value is larger than it was loaded for");
        if (i < d->n_in)
            memcpy(d->bounce[i], run->in[i]->host, (size_t)d->bytes[i]);
        else
            memset(d->bounce[i], 0xff, (size_t)d->bytes[i]); /* NaN, if nobody writes it */
    }
    d->run.seed = run->seed;
    d->ticket = plugin_ticket_take(p);
    struct plugin_call *c = yk_xalloc(sizeof(*c));
    *c = (struct plugin_call){.fn = call_run, .what = "submit", .device = d, .handle = d->prepared.handle};
    int64_t limit = p->config.timeout_ms + (int64_t)YK_MIN(s->all_flops / SLOWEST_FLOPS_PER_MS, 1e9);
    err = plugin_wait(p, c, d->ticket, &s->canceled, limit, why);
    if (err != YK_TIMEOUT)
        free(c);
    if (!err)
        err = call(p, d, call_read, "read", limit, why);
    return err;
}

/* The worst distance over the outputs; *at is where. The reference's are in place, the plug-in's in the bounce memory.
 */
static double distance(
    const struct plugin_segment *s, const struct plugin_device *d, const struct backend_run *run, int32_t *at)
{
    double worst = 0;
    *at = 0;
    for (int32_t i = 0; i < d->n_out; i++) {
        const struct shape *x = shape_now(s, run, d->n_in + i);
        double far = plugin_distance(x->dtype, d->bounce[d->n_in + i], run->out[i]->host, shape_count(x));
        if (far > worst) {
            worst = far;
            *at = i;
        }
    }
    return worst;
}

static void trace(const struct plugin_segment *s, const struct backend_run *run, double ms)
{
    for (int32_t i = 0; run->trace && i < s->desc.n_nodes; i++)
        run->trace(run->trace_arg, s->desc.nodes[i], ms * s->flops[i] / s->all_flops);
}

static bool all_finite(const struct plugin_segment *s, const struct plugin_device *d, const struct backend_run *run)
{
    for (int32_t i = d->n_in; i < d->n_in + d->n_out; i++) {
        const struct shape *x = shape_now(s, run, i);
        if (!plugin_finite(x->dtype, d->bounce[i], shape_count(x)))
            return false;
    }
    return true;
}

static bool check_due(const struct plugin *p)
{
    int64_t every = p->config.check_every;
    return every > 0 && p->runs - p->checked_at >= every &&
           (every < CHECK_ALWAYS || p->check_ms * CHECK_SHARE <= p->run_ms);
}

/* The device answered. Repeats the run with the reference if it must, puts one of the two answers in place. */
static yk_err settle(struct plugin *p, struct plugin_segment *s, const struct plugin_device *d,
    const struct backend_run *run, struct yk_diag *why)
{
    bool finite = all_finite(s, d, run), due = check_due(p), right = true;
    if (!p->strict && (due || (!finite && p->runs >= p->excused_until))) {
        struct ended ref = {.err = YK_OK};
        struct backend_run again = *run;
        int32_t at;
        double before = plugin_now_ms();
        again.trace = NULL;
        host_submit(p->ref, s->ref, &again, on_ref, &ref);
        if (ref.err)
            return yk_fail(why, ref.err, "%s", ref.why.text);
        double far = distance(s, d, run, &at);
        const struct graph *g = s->desc.graph;
        int32_t v = s->desc.out[at], node = g->values[v].producer;
        right = far <= PLUGIN_RELATIVE;
        if (!right)
            plugin_take_out(&p->base,
                "run %lld: '%s' (%s) %s (relative difference from ref %.3g, the limit is %g); ref answered instead",
                (long long)p->runs, g->values[v].name, node >= 0 ? g->nodes[node].op->name : "",
                isinf(far) ? "is not finite where ref is" : "is wrong", far, PLUGIN_RELATIVE);
        else if (!finite) /* so is the reference: do not ask again at once */
            p->excused_until = p->runs + YK_MAX(p->config.check_every, 256);
        p->checked_at = p->runs;
        p->check_ms += plugin_now_ms() - before;
    }
    for (int32_t i = 0; right && i < d->n_out; i++) {
        void *to = run->out[i]->host;
        if (s->same[i] < 0 || run->in[s->same[i]]->host != to)
            memcpy(to, d->bounce[d->n_in + i], (size_t)d->bytes[d->n_in + i]);
    }
    return YK_OK;
}

void plugin_submit(struct backend *b, void *handle, const struct backend_run *run,
    void (*done)(void *arg, yk_err err, const char *why), void *arg)
{
    struct plugin *p = (struct plugin *)b;
    struct plugin_segment *s = handle;
    struct plugin_device *d = NULL;
    struct yk_diag why = {""};
    atomic_store(&s->canceled, false);
    if (!s->max || atomic_load(&p->out) || has_empty(s, s->max, run)) {
        if (p->strict && atomic_load(&p->out))
            done(arg, YK_STATE, p->lost.text);
        else
            host_submit(p->ref, s->ref, run, done, arg);
        return;
    }
    double before = plugin_now_ms();
    yk_err err = device_run(p, s, run, &d, &why);
    double ms = plugin_now_ms() - before;
    if (!err) {
        p->failures = 0;
        p->runs++;
        p->run_ms += ms;
        err = settle(p, s, d, run, &why);
        trace(s, run, ms);
        done(arg, err, why.text);
        return;
    }
    if (p->strict || (err == YK_CANCELED && atomic_load(&s->canceled))) {
        done(arg, err, why.text);
        return;
    }
    if (err != YK_TIMEOUT && ++p->failures >= FAILURES)
        plugin_take_out(b, "%d runs in a row failed, the last with: %s", p->failures, why.text);
    else if (err != YK_TIMEOUT)
        log_warn("%s; ref answers instead", why.text);
    host_submit(p->ref, s->ref, run, done, arg);
}
