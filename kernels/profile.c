#include "kernels/profile_priv.h"
#include "kernels/simd_isa.h"

#include "kernels/dynamic.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPEATS 3
#define LONG_MS 20.0 /* a run this long is repeated once only */
#define FORMS_MAX 16
#define AGAIN_WITHIN 1.5  /* of the best form's time */
#define AGAIN_SHARE 0.002 /* of all nodes' */
#define REF_FLOPS 1e6     /* above: ref only where nothing else can */

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool done;
    yk_err err;
};

static void on_done(void *arg, yk_err err, const char *why)
{
    (void)why;
    struct waiter *w = arg;
    pthread_mutex_lock(&w->lock);
    w->done = true;
    w->err = err;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

static yk_err run_once(struct backend *b, void *handle, const struct backend_run *run, double *ms)
{
    struct waiter w = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};
    double before = now_ms();
    b->ops->submit(b, handle, run, on_done, &w);
    pthread_mutex_lock(&w.lock);
    while (!w.done)
        pthread_cond_wait(&w.wake, &w.lock);
    pthread_mutex_unlock(&w.lock);
    *ms = now_ms() - before;
    pthread_cond_destroy(&w.wake);
    pthread_mutex_destroy(&w.lock);
    return w.err;
}

/* Values in [-1, 1) for floats; known contents or zeros for the rest. */
void profile_fill(void *data, const struct shape *s, const int64_t *content, struct yk_rng *rng)
{
    int64_t n = shape_count(s), bytes = shape_bytes(s);
    if (s->dtype == DT_F32 || s->dtype == DT_F64) {
        /* A short table repeated: models have hundreds of megabytes of weights. */
        int64_t table = YK_MIN(n, 1 << 14);
        for (int64_t i = 0; i < table; i++) {
            double u = yk_rng_unit(rng), v = n == 1 ? 1 - u / 2 : 2 * u - 1; /* a scalar may be a divisor or a scale */
            if (s->dtype == DT_F32)
                ((float *)data)[i] = (float)v;
            else
                ((double *)data)[i] = v;
        }
        int64_t size = (int64_t)dtype_bytes(s->dtype), step = table * size;
        for (int64_t at = step; at < bytes; at += step)
            memcpy((char *)data + at, data, (size_t)YK_MIN(step, bytes - at));
        return;
    }
    memset(data, 0, (size_t)bytes);
    for (int64_t i = 0; content && i < n; i++) {
        if (s->dtype == DT_I64)
            ((int64_t *)data)[i] = content[i];
        else if (s->dtype == DT_I32)
            ((int32_t *)data)[i] = (int32_t)content[i];
        else if (s->dtype == DT_BOOL)
            ((uint8_t *)data)[i] = content[i] != 0;
    }
}

/* One node ready to run alone: its own weights, inputs and outputs. */
struct bed {
    const struct graph *g;
    const struct shapes *shapes;
    bool vary; /* weights change between runs */
    bool cold; /* timed in one form only, with nothing of it in the caches; its host copies go early */
    int32_t node;
    int32_t in[OP_MAX_IN], out[OP_MAX_OUT], n_in, n_out;
    void *host[OP_MAX_IN]; /* contents of in */
    const void **weights;
    void *made[OP_MAX_IN]; /* weights that had to be made or aligned */
    int n_made;
};

static void bed_fini(struct bed *b)
{
    for (int i = 0; i < b->n_in; i++)
        free(b->host[i]);
    for (int i = 0; i < b->n_made; i++)
        free(b->made[i]);
    free(b->weights);
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static bool listed(const int32_t *ids, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static yk_err bed_weight(struct bed *b, int32_t v, struct yk_rng *rng)
{
    const struct value *w = &b->g->values[v];
    int64_t bytes = shape_bytes(&w->shape);
    size_t size = dtype_bytes(w->shape.dtype);
    if (b->weights[v] || bytes <= 0)
        return YK_OK;
    if (w->data && (uintptr_t)w->data % size == 0) {
        b->weights[v] = w->data;
        return YK_OK;
    }
    void *p = yk_try_aligned((size_t)bytes);
    if (!p)
        return YK_NOMEM;
    if (w->data)
        memcpy(p, w->data, (size_t)bytes);
    else
        profile_fill(p, &w->shape, b->shapes->content[v], rng);
    b->made[b->n_made++] = p;
    b->weights[v] = p;
    return YK_OK;
}

static yk_err bed_init(struct bed *b, const struct graph *g, const struct shapes *s, int32_t node, bool vary)
{
    const struct node *n = &g->nodes[node];
    struct yk_rng rng;
    yk_rng_seed(&rng, 1);
    *b = (struct bed){.g = g, .shapes = s, .vary = vary, .node = node};
    b->weights = yk_try_alloc((size_t)g->n_values + 1, sizeof(*b->weights));
    if (!b->weights)
        return YK_NOMEM;
    for (int32_t i = 0; i < n->n_in; i++) {
        int32_t v = n->in[i];
        if (v < 0)
            continue;
        if (g->values[v].kind == VALUE_WEIGHT) {
            yk_err err = bed_weight(b, v, &rng);
            if (err)
                return err;
        } else if (!listed(b->in, b->n_in, v)) {
            b->in[b->n_in++] = v;
        }
    }
    qsort(b->in, (size_t)b->n_in, sizeof(*b->in), by_id);
    for (int32_t i = 0; i < b->n_in; i++) {
        const struct shape *x = &s->of[b->in[i]];
        if (!(b->host[i] = yk_try_aligned((size_t)YK_MAX(shape_bytes(x), 1))))
            return YK_NOMEM;
        profile_fill(b->host[i], x, s->content[b->in[i]], &rng);
    }
    for (int32_t i = 0; i < n->n_out; i++)
        if (n->out[i] >= 0)
            b->out[b->n_out++] = n->out[i];
    qsort(b->out, (size_t)b->n_out, sizeof(*b->out), by_id);
    return YK_OK;
}

struct timing {
    char form[BACKEND_FORM_MAX];
    double ms, prepare_ms;
    int64_t packed_bytes, workspace_bytes;
};

static double median(double *v, int n)
{
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && v[k] < v[k - 1]; k--) {
            double t = v[k];
            v[k] = v[k - 1];
            v[k - 1] = t;
        }
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Runs the bed's node in one form. quick: a single run, warm or not. */
static yk_err time_form(struct bed *b, struct backend *be, const struct backend_form *form, bool quick,
    struct timing *out, struct yk_diag *why)
{
    const struct backend_ops *ops = be->ops;
    const char *name = form->name;
    struct backend_buffer buffers[OP_MAX_IN + OP_MAX_OUT] = {{0}}, *pointers[OP_MAX_IN + OP_MAX_OUT];
    void *handle = NULL, *scratch = NULL;
    int32_t n = b->n_in + b->n_out, owned = 0;
    struct backend_segment seg = {.graph = b->g,
        .max = b->shapes,
        .nodes = &b->node,
        .n_nodes = 1,
        .forms = &name,
        .in = b->in,
        .out = b->out,
        .n_in = b->n_in,
        .n_out = b->n_out,
        .weights = b->weights,
        .weights_variable = b->vary};
    int64_t scratch_bytes = 0, packed_bytes = 0;
    double before = now_ms();
    yk_err err = ops->prepare(be, &seg, &handle, &scratch_bytes, &packed_bytes, why);
    if (err)
        return err;
    *out = (struct timing){
        .prepare_ms = now_ms() - before, .packed_bytes = packed_bytes, .workspace_bytes = form->workspace_bytes};
    memcpy(out->form, form->name, sizeof(out->form));
    if (scratch_bytes > 0 && !(scratch = yk_try_aligned((size_t)scratch_bytes)))
        err = YK_NOMEM;
    for (; !err && owned < n; owned++) {
        int32_t v = owned < b->n_in ? b->in[owned] : b->out[owned - b->n_in];
        int64_t bytes = shape_bytes(&b->shapes->of[v]);
        err = ops->alloc(be, bytes, &buffers[owned]);
        if (!err && owned < b->n_in)
            err = ops->write(be, &buffers[owned], b->host[owned], bytes);
        if (owned < b->n_in && b->cold) {
            free(b->host[owned]);
            b->host[owned] = NULL;
        }
        pointers[owned] = &buffers[owned];
        if (err)
            break;
    }
    struct backend_run run = {.shapes = b->shapes, .in = pointers, .out = pointers + b->n_in, .scratch = scratch};
    double ms[REPEATS], first = 0;
    int k = 0;
    if (!err)
        err = run_once(be, handle, &run, &first);
    int repeats = quick ? 0 : first > LONG_MS ? 1 : REPEATS;
    for (; !err && k < repeats; k++) {
        for (int32_t i = 0; b->cold && ops->host && i < owned; i++)
            profile_chill(buffers[i].host, shape_bytes(&b->shapes->of[i < b->n_in ? b->in[i] : b->out[i - b->n_in]]));
        err = run_once(be, handle, &run, &ms[k]);
    }
    out->ms = k > 0 ? median(ms, k) : first;
    for (int32_t i = 0; i < owned; i++)
        ops->free(be, &buffers[i]);
    free(scratch);
    ops->release(be, handle);
    return err;
}

void profile_signature(const struct op_ctx *c, struct yk_buf *out)
{
    const struct node *n = c->node;
    char text[160];
    out->len = 0;
    yk_buf_printf(out, "%s.%s", n->op->domain, n->op->name);
    if (c->weights_vary && graph_small_images(c->graph)) /* some forms are not for these */
        yk_buf_printf(out, "|small");
    for (int i = 0; i < n->n_attr; i++) {
        const struct attr *a = &n->attr[i];
        yk_buf_printf(out, "|%s=%d,%lld,%a,%s", a->name, (int)a->kind, (long long)(a->kind == ATTR_INT ? a->i : 0),
            (double)(a->kind == ATTR_FLOAT ? a->f : 0), a->kind == ATTR_STRING && a->s ? a->s : "");
        if (a->kind == ATTR_INTS)
            yk_buf_add(out, a->ints, a->n * sizeof(*a->ints));
        if (a->kind == ATTR_FLOATS)
            yk_buf_add(out, a->floats, a->n * sizeof(*a->floats));
    }
    for (int i = 0; i < c->n_in; i++) {
        if (c->in[i])
            shape_text(c->in[i], text, sizeof(text));
        yk_buf_printf(out, ";%s%s", c->in[i] ? text : "-",
            c->in[i] && c->graph->values[n->in[i]].kind == VALUE_WEIGHT ? c->weights_vary ? "v" : "w" : "");
        if (c->in[i] && c->content[i])
            yk_buf_add(out, c->content[i], (size_t)shape_count(c->in[i]) * sizeof(int64_t));
    }
    for (int i = 0; i < c->n_out; i++) {
        shape_text(&c->out[i], text, sizeof(text));
        yk_buf_printf(out, ">%s", n->out[i] >= 0 ? text : "-");
    }
}

struct memo {
    uint8_t *key;
    size_t len;
    uint64_t hash;
    int32_t node; /* the first one */
    int64_t size;
    int uses;
    bool quick;
    struct timing timing[FORMS_MAX];
    int n;
};

struct profiler {
    const struct graph *g;
    struct backends *backends;
    bool training;
    struct memo *memos;
    int n_memos, cap;
    struct yk_buf key;
    int64_t room; /* bytes that a node may take */
    double deadline;
    const volatile bool *cancel;
    struct op_ctx *ctx;
};

static uint64_t fnv(const uint8_t *p, size_t n)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static struct op_ctx *node_of(struct profiler *p, const struct shapes *s, int32_t node)
{
    shapes_node(p->g, s, node, p->ctx);
    p->ctx->weights_vary = p->training;
    return p->ctx;
}

/* Of a node; NULL: it was not timed. */
static struct memo *memo_of(struct profiler *p, const struct shapes *s, int32_t node, uint64_t *hash)
{
    profile_signature(node_of(p, s, node), &p->key);
    *hash = fnv(p->key.data, p->key.len);
    for (int i = 0; i < p->n_memos && !p->key.failed; i++)
        if (p->memos[i].hash == *hash && p->memos[i].len == p->key.len &&
            !memcmp(p->memos[i].key, p->key.data, p->key.len))
            return &p->memos[i];
    return NULL;
}

/* What a bed of the node takes, but for what its form wants. */
static int64_t bed_bytes(const struct graph *g, const struct shapes *s, int32_t node)
{
    const struct node *n = &g->nodes[node];
    int64_t bytes = 0;
    for (int32_t i = 0; i < n->n_in; i++) {
        int32_t v = n->in[i];
        if (v < 0 || listed(n->in, i, v))
            continue;
        bool weight = g->values[v].kind == VALUE_WEIGHT;
        if (!weight || !g->values[v].data)
            bytes += (weight ? 1 : 2) * YK_MAX(shape_bytes(weight ? &g->values[v].shape : &s->of[v]), 0);
    }
    for (int32_t i = 0; i < n->n_out; i++)
        bytes += n->out[i] >= 0 ? YK_MAX(shape_bytes(&s->of[n->out[i]]), 0) : 0;
    return bytes;
}

/* Times a node in every form, unless one like it was, or there is no room for it. */
static yk_err time_node(struct profiler *p, const struct shapes *s, int32_t node, int64_t size, struct yk_diag *why)
{
    uint64_t hash;
    struct memo *known = memo_of(p, s, node, &hash);
    if (p->key.failed)
        return yk_fail(why, YK_NOMEM, "no memory to profile");
    if (known) {
        known->uses++;
        return YK_OK;
    }
    if (p->n_memos == p->cap) {
        int cap = YK_MAX(2 * p->cap, 64);
        struct memo *more = yk_try_realloc(p->memos, (size_t)cap, sizeof(*more));
        if (!more)
            return yk_fail(why, YK_NOMEM, "no memory to profile");
        p->memos = more;
        p->cap = cap;
    }
    struct memo *m = &p->memos[p->n_memos];
    *m = (struct memo){.hash = hash, .len = p->key.len, .node = node, .size = size, .uses = 1};
    if (!(m->key = yk_try_alloc(p->key.len, 1)))
        return yk_fail(why, YK_NOMEM, "no memory to profile");
    memcpy(m->key, p->key.data, p->key.len);
    p->n_memos++;
    struct backend_form forms[FORMS_MAX];
    int n = backends_forms(p->backends, p->ctx, forms, FORMS_MAX);
    bool heavy = op_flops(p->ctx) > REF_FLOPS;
    struct bed bed;
    int64_t bytes = bed_bytes(p->g, s, node);
    if (bytes > p->room)
        n = 0;
    yk_err err = n > 0 ? bed_init(&bed, p->g, s, node, p->training) : YK_OK;
    for (int i = 0; !err && i < n; i++) {
        struct backend_form form;
        struct backend *be = backends_form_find(p->backends, p->ctx, forms[i].name, &form);
        if (!be || (heavy && i > 0 && !strcmp(be->ops->name, "ref")) ||
            bytes + form.workspace_bytes + form.packed_bytes > p->room)
            continue;
        m->quick = now_ms() > p->deadline;
        if (time_form(&bed, be, &form, m->quick, &m->timing[m->n], NULL) == YK_OK)
            m->n++;
    }
    if (n > 0)
        bed_fini(&bed);
    return err ? yk_fail(why, err, "no memory to profile node %d '%s'", (int)node, p->g->nodes[node].name) : YK_OK;
}

static double best_ms(const struct memo *m)
{
    double best = HUGE_VAL;
    for (int i = 0; i < m->n; i++)
        best = YK_MIN(best, m->timing[i].ms);
    return best;
}

/* Times the good forms of a node again. The less counts: something else may have run the first time, but never makes
 * anything faster, and in a model of equal layers one wrong figure is wrong for all of them. */
static yk_err time_again(struct profiler *p, const struct shapes *s, struct memo *m)
{
    struct bed bed;
    double limit = AGAIN_WITHIN * best_ms(m);
    yk_err err = bed_init(&bed, p->g, s, m->node, p->training);
    node_of(p, s, m->node);
    for (int i = 0; !err && i < m->n; i++) {
        struct backend_form form;
        struct timing t;
        struct backend *be =
            m->timing[i].ms <= limit ? backends_form_find(p->backends, p->ctx, m->timing[i].form, &form) : NULL;
        if (be && time_form(&bed, be, &form, false, &t, NULL) == YK_OK)
            m->timing[i].ms = YK_MIN(m->timing[i].ms, t.ms);
    }
    bed_fini(&bed);
    return err;
}

/* The same for all that counts at one size, while there is time. */
static void time_size_again(struct profiler *p, const struct shapes *s, int64_t size)
{
    double all = 0;
    for (int i = 0; i < p->n_memos; i++)
        if (p->memos[i].size == size && p->memos[i].n)
            all += p->memos[i].uses * best_ms(&p->memos[i]);
    for (int i = 0; i < p->n_memos; i++) {
        struct memo *m = &p->memos[i];
        if (m->size == size && m->n && !m->quick && m->uses * best_ms(m) >= AGAIN_SHARE * all &&
            now_ms() < p->deadline && !(p->cancel && *p->cancel))
            time_again(p, s, m);
    }
}

/* Nodes that run by their actual inputs: in the form of this machine and in the one that every machine has. */
static yk_err dynamic_entries(struct profiler *p, const struct shapes *s, int64_t size, const int64_t *sizes,
    void (*fn)(void *arg, const struct profile_entry *e), void *arg, struct yk_diag *why)
{
    char forms[2][BACKEND_FORM_MAX] = {DYNAMIC_GENERIC};
    double *ms = s->n_dynamic ? yk_try_alloc((size_t)p->g->n_nodes + 1, sizeof(*ms)) : NULL;
    yk_err err = YK_OK;
    if (s->n_dynamic == 0)
        return YK_OK;
    if (!ms)
        return yk_fail(why, YK_NOMEM, "no memory to profile");
    dynamic_form(p->backends, forms[1]);
    for (int f = 0; f < (strcmp(forms[0], forms[1]) ? 2 : 1) && !err; f++) {
        err = profile_dynamic(p->g, p->backends, s, sizes, forms[f], p->room, ms, why);
        for (int32_t i = 0; i < p->g->n_nodes && !err; i++)
            if (s->dynamic[i]) {
                struct profile_entry e = {.node = i, .form = forms[f], .size = size, .ms = ms[i]};
                fn(arg, &e);
            }
    }
    free(ms);
    return err;
}

static yk_err profile_size(struct profiler *p, int64_t size, const int64_t *sizes, bool smallest, bool *shaped,
    void (*fn)(void *arg, const struct profile_entry *e), void *arg, struct yk_diag *why)
{
    struct shapes s;
    int32_t timed = 0;
    yk_err err = shapes_infer(p->g, sizes, NULL, &s, why);
    *shaped = !err;
    if (err)
        return err;
    for (; !err && timed < p->g->n_nodes && (smallest || now_ms() <= p->deadline); timed++) {
        if (p->cancel && *p->cancel)
            err = yk_fail(why, YK_CANCELED, "canceled");
        else if (!s.dynamic[timed])
            err = time_node(p, &s, timed, size, why);
    }
    if (!err)
        time_size_again(p, &s, size);
    for (int32_t i = 0; i < timed && !err; i++) {
        uint64_t hash;
        const struct memo *m = s.dynamic[i] ? NULL : memo_of(p, &s, i, &hash);
        if (p->key.failed)
            err = yk_fail(why, YK_NOMEM, "no memory to profile");
        for (int k = 0; m && k < m->n; k++) {
            const struct timing *t = &m->timing[k];
            struct profile_entry e = {i, t->form, size, t->ms, t->prepare_ms, t->packed_bytes, t->workspace_bytes};
            fn(arg, &e);
        }
    }
    if (!err)
        err = dynamic_entries(p, &s, size, sizes, fn, arg, why);
    shapes_fini(&s);
    return err;
}

yk_err profile_graph(const struct graph *g, struct backends *b, const int64_t *sizes, int n_sizes,
    const int64_t *others, bool training, double budget_ms, int64_t room_bytes, const volatile bool *cancel,
    void (*fn)(void *arg, const struct profile_entry *e), void *arg, struct yk_diag *why)
{
    struct profiler p = {.g = g,
        .backends = b,
        .training = training,
        .room = room_bytes > 0 ? room_bytes : INT64_MAX,
        .deadline = now_ms() + budget_ms,
        .cancel = cancel};
    int64_t fixed, *dims = yk_try_alloc((size_t)g->n_syms + 1, sizeof(*dims));
    int64_t *order = yk_try_alloc((size_t)n_sizes + 1, sizeof(*order));
    int32_t batch = graph_batch_dim(g, &fixed);
    yk_err err = YK_OK;
    bool smallest = true;
    p.ctx = yk_try_alloc(1, sizeof(*p.ctx));
    if (!dims || !order || !p.ctx) {
        err = yk_fail(why, YK_NOMEM, "no memory to profile");
        goto out;
    }
    int n = 0;
    for (int i = 0; i < n_sizes; i++) {
        int k = n++;
        for (; k > 0 && order[k - 1] > sizes[i]; k--)
            order[k] = order[k - 1];
        order[k] = sizes[i];
    }
    if (batch < 0) { /* one size is all there is */
        n = 1;
        order[0] = fixed;
    }
    for (int i = 0; !err && i < n; i++) {
        for (int32_t k = 0; k < g->n_syms; k++)
            dims[k] = k == batch ? order[i] : others && others[k] > 0 ? others[k] : 1;
        bool shaped;
        err = profile_size(&p, order[i], dims, smallest, &shaped, fn, arg, why);
        if (err && !shaped && i + 1 < n) { /* some layers want more than one sample */
            err = YK_OK;
            continue;
        }
        smallest = false;
    }
out:
    for (int i = 0; i < p.n_memos; i++)
        free(p.memos[i].key);
    free(p.memos);
    free(p.ctx);
    yk_buf_free(&p.key);
    free(order);
    free(dims);
    return err;
}

/* ---- one op ---- */

double profile_op(struct backend *b, const char *name, int64_t n, bool cold, int64_t room_bytes)
{
    const struct op *op = op_find("", name);
    struct graph *g = op ? graph_open(0) : NULL;
    struct op_ctx *c = yk_try_alloc(1, sizeof(*c));
    double ms = 0;
    struct shapes s;
    struct bed bed;
    struct timing t;
    struct backend_form form;
    if (!g || !c)
        goto out;
    struct shape shape = {.dtype = DT_F32, .rank = 2, .dims = {n, n}};
    int32_t in[2] = {graph_add_value(g, "a", VALUE_INPUT, DT_F32), graph_add_value(g, "b", VALUE_INPUT, DT_F32)};
    int32_t y = graph_add_value(g, "y", VALUE_NODE, DT_F32);
    if (in[0] < 0 || in[1] < 0 || y < 0)
        goto out;
    g->inputs = in;
    g->n_inputs = 2;
    g->outputs = &y;
    g->n_outputs = 1;
    g->values[in[0]].rank = g->values[in[1]].rank = -1;
    const struct shape *given[2] = {&shape, &shape};
    if (graph_add_node(g, "n", op, in, 2, &y, 1) < 0 || shapes_infer(g, NULL, given, &s, NULL))
        goto out;
    shapes_node(g, &s, 0, c);
    int64_t bytes = 5 * n * n * (int64_t)sizeof(float); /* three tensors, and both inputs where they are made */
    if (b->ops->forms(b, c, &form, 1) == 1 && bytes + form.workspace_bytes <= room_bytes) {
        yk_err err = bed_init(&bed, g, &s, 0, false);
        bed.cold = cold;
        if (!err && time_form(&bed, b, &form, false, &t, NULL) == YK_OK)
            ms = t.ms;
        bed_fini(&bed);
    }
    shapes_fini(&s);
out:
    free(c);
    graph_close(g);
    return ms;
}
