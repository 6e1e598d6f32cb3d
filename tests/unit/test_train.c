/* The trainer: its bits do not depend on threads, on whether forward and backward are one run, or on where the graph is
 * cut; sums of microbatches and uses are left folds; what it saved goes on as if nothing had been. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "common/passes.h"
#include "kernels/fold.h"
#include "kernels/train.h"
#include "scheduler/cli/networks.h"
#include "tests/graphs.h"

#define MAX_STAGES 4
#define MAX_MICROBATCHES 5
#define STEPS 3

struct model {
    struct graph *fwd, *g;
    struct grad_info info;
    int64_t sizes[8], x_elements, classes;
};

static struct pool *pools[3];
static struct backends backends[3];

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        if (pool_open(i + 1, &pools[i], NULL) || backends_open("auto", pools[i], &backends[i], NULL))
            return 1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        backends_close(&backends[i]);
        pool_close(pools[i]);
    }
    return 0;
}

static void take_graph(struct model *m, struct graph *g, const struct grad_options *o)
{
    struct yk_diag why = {""};
    m->fwd = g;
    if (passes_train(g, fold_eval, NULL, &why) || grad_build(g, o, &m->g, &m->info, &why))
        fail_msg("%s", why.text);
    m->x_elements = 1;
    const struct value *x = &g->values[g->inputs[0]];
    for (int i = 1; i < x->rank; i++)
        m->x_elements *= x->dims[i].value;
}

static bool recompute;           /* of what make() makes */
static struct backends *instead; /* of those by the number of threads, if not NULL */

static void make(struct model *m, const char *kind, bool bn_frozen, int64_t size)
{
    struct networks_options n = {.classes = 5, .channels = 2, .height = size, .width = size, .seed = 4};
    struct grad_options o;
    struct graph *g;
    struct yk_diag why = {""};
    grad_options_init(&o);
    o.bn_frozen = bn_frozen;
    o.recompute = recompute;
    if (networks_make(kind, &n, &g, &why))
        fail_msg("%s", why.text);
    m->classes = n.classes;
    take_graph(m, g, &o);
}

static void drop(struct model *m)
{
    graph_close(m->g);
    graph_close(m->fwd);
}

/* ---- a training over stages ---- */

struct setting {
    int n_stages;
    int32_t first[MAX_STAGES]; /* forward node with which a stage begins */
    int threads, in_flight;    /* of each stage; in_flight 0: one run, for a single stage */
    int64_t batch, microbatch;
    double clip_norm;
    enum optim_kind optim;
    int stop; /* steps after which all is saved, closed, opened and loaded; 0: never */
};

struct stages {
    struct trainer *t[MAX_STAGES];
    int n;
};

static void open_stages(struct model *m, const struct setting *s, struct stages *out)
{
    struct yk_diag why = {""};
    uint8_t *in_stage = calloc((size_t)m->g->n_nodes + 1, 1), *owned = calloc((size_t)m->info.n_params + 1, 1);
    uint8_t *taken = calloc((size_t)m->info.n_params + 1, 1);
    out->n = s->n_stages;
    for (int i = 0; i < m->g->n_syms; i++)
        m->sizes[i] = s->microbatch;
    /* A parameter belongs to the last stage that uses it, where the fold begins. */
    for (int i = s->n_stages - 1; i >= 0; i--) {
        int32_t end = i + 1 < s->n_stages ? s->first[i + 1] : INT32_MAX;
        memset(owned, 0, (size_t)m->info.n_params);
        for (int32_t k = 0; k < m->g->n_nodes; k++) {
            const struct node *n = &m->g->nodes[k];
            in_stage[k] = m->info.of[k] >= s->first[i] && m->info.of[k] < end;
            for (int32_t p = 0; in_stage[k] && p < m->info.n_params; p++)
                for (int32_t j = 0; j < n->n_in; j++)
                    if (n->in[j] == m->info.params[p].value && !taken[p])
                        owned[p] = 1;
        }
        for (int32_t p = 0; p < m->info.n_params; p++)
            taken[p] |= owned[p];
        struct trainer_config c = {.graph = m->g,
            .info = &m->info,
            .in_stage = in_stage,
            .max_sizes = m->sizes,
            .backends = instead ? instead : &backends[s->threads - 1],
            .pool = pools[s->threads - 1],
            .optim = optim_default(s->optim),
            .clip_norm = s->clip_norm,
            .in_flight = s->in_flight,
            .owned = owned};
        if (trainer_open(&c, &out->t[i], &why))
            fail_msg("stage %d: %s", i, why.text);
    }
    free(in_stage);
    free(owned);
    free(taken);
}

/* Values between the stages, by microbatch and value. */
struct wires {
    struct tensor *at[MAX_MICROBATCHES];
    int32_t n;
};

static void run_part(struct model *m, struct trainer *t, enum trainer_part part, int mb, struct wires *w, uint64_t seed)
{
    const struct trainer_border *b = trainer_border(t, part);
    struct tensor in[GRAPHS_MAX_IO], out[GRAPHS_MAX_IO];
    struct yk_diag why = {""};
    int slot = part == TRAINER_WHOLE ? 0 : mb;
    assert_true(b->n_in <= GRAPHS_MAX_IO && b->n_out <= GRAPHS_MAX_IO);
    for (int32_t i = 0; i < b->n_in; i++) {
        in[i] = w->at[mb][b->in[i]];
        if (!in[i].data)
            fail_msg("'%s' is not there yet", m->g->values[b->in[i]].name);
    }
    if (trainer_run(t, part, slot, m->sizes, in, out, seed, &why))
        fail_msg("%s", why.text);
    for (int32_t i = 0; i < b->n_out; i++) {
        struct tensor *to = &w->at[mb][b->out[i]];
        free(to->data);
        *to = out[i];
        to->data = yk_try_aligned((size_t)tensor_bytes(to) + 1);
        memcpy(to->data, out[i].data, (size_t)tensor_bytes(to));
    }
}

static void feed(struct model *m, struct wires *w, int mb, int64_t n, float divisor, struct yk_rng *r)
{
    const struct shapes *s;
    struct shapes now;
    for (int i = 0; i < m->g->n_syms; i++)
        m->sizes[i] = n;
    assert_int_equal(shapes_infer(m->g, m->sizes, NULL, &now, NULL), YK_OK);
    s = &now;
    w->n = m->g->n_values;
    w->at[mb] = calloc((size_t)w->n, sizeof(struct tensor));
    for (int32_t i = 0; i < m->g->n_inputs; i++) {
        int32_t v = m->g->inputs[i];
        struct tensor *to = &w->at[mb][v];
        to->shape = s->of[v];
        to->data = yk_try_aligned((size_t)tensor_bytes(to) + 1);
        graphs_fill(to->data, &to->shape, r, false);
        if (i == m->info.divisor_input)
            *(float *)to->data = divisor;
        for (int64_t k = 0; i == m->info.target_input && to->shape.dtype == DT_I64 && k < tensor_count(to); k++)
            ((int64_t *)to->data)[k] = (int64_t)yk_rng_below(r, (uint64_t)m->classes);
    }
    shapes_fini(&now);
}

static struct trainer_tensor *find(struct trainer *t, const char *name)
{
    int32_t n;
    const struct trainer_tensor *all = trainer_tensors(t, &n);
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(all[i].name, name))
            return (struct trainer_tensor *)&all[i];
    return NULL;
}

/* The end of a step over several stages, as kernels/train.h has it. */
static void flush(struct model *m, struct stages *s, const struct setting *set, int64_t step)
{
    double *squares = calloc((size_t)m->info.n_params + 1, sizeof *squares), sum = 0;
    struct yk_diag why = {""};
    if (s->n == 1) {
        assert_int_equal(trainer_flush(s->t[0], 0.05, step, NULL, &why), YK_OK);
        free(squares);
        return;
    }
    for (int32_t p = 0; p < m->info.n_params; p++)
        for (int32_t u = 0; u < m->info.params[p].n_uses; u++)
            for (int i = 0; i < s->n; i++)
                for (int k = 0; k < s->n; k++)
                    if (!trainer_owns(s->t[i], p) && trainer_use(s->t[i], p, u) && trainer_owns(s->t[k], p))
                        memcpy(trainer_use(s->t[k], p, u), trainer_use(s->t[i], p, u),
                            (size_t)m->g->values[m->info.params[p].value].bytes);
    for (int i = 0; i < s->n; i++)
        trainer_fold(s->t[i], squares);
    for (int32_t p = 0; p < m->info.n_params; p++)
        sum += squares[p];
    float scale = optim_clip_scale(set->clip_norm, sqrt(sum));
    for (int i = 0; i < s->n; i++)
        assert_int_equal(trainer_step(s->t[i], 0.05, step, scale, &why), YK_OK);
    for (int i = 0; i < s->n; i++) {
        int32_t n;
        const struct trainer_tensor *all = trainer_tensors(s->t[i], &n);
        for (int32_t k = 0; k < n; k++)
            for (int j = 0; !all[k].owned && j < s->n; j++) {
                struct trainer_tensor *from = find(s->t[j], all[k].name);
                if (from && from->owned)
                    memcpy(all[k].data, from->data, (size_t)shape_bytes(&from->shape));
            }
        assert_int_equal(trainer_renew(s->t[i], &why), YK_OK);
    }
    free(squares);
}

/* All owned tensors and the losses, one behind the other in the order of names that a whole trainer has. */
struct outcome {
    float *data;
    int64_t n;
    float loss[STEPS];
};

static void gather(struct model *m, struct stages *s, const struct setting *set, struct outcome *out)
{
    struct setting whole = *set;
    struct stages order;
    int32_t n;
    whole.n_stages = 1;
    whole.first[0] = 0;
    whole.in_flight = 0;
    open_stages(m, &whole, &order);
    const struct trainer_tensor *all = trainer_tensors(order.t[0], &n);
    out->n = 0;
    for (int32_t i = 0; i < n; i++)
        out->n += shape_count(&all[i].shape);
    out->data = calloc((size_t)out->n + 1, sizeof(float));
    int64_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        int found = 0;
        for (int k = 0; k < s->n; k++) {
            struct trainer_tensor *t = find(s->t[k], all[i].name);
            if (t && t->owned) {
                memcpy(out->data + at, t->data, (size_t)shape_bytes(&t->shape));
                found++;
            }
        }
        assert_int_equal(found, 1);
        at += shape_count(&all[i].shape);
    }
    trainer_close(order.t[0]);
}

static void reopen(struct model *m, struct stages *s, const struct setting *set)
{
    struct stages again;
    struct yk_diag why = {""};
    open_stages(m, set, &again);
    for (int i = 0; i < s->n; i++) {
        int32_t n;
        const struct trainer_tensor *all = trainer_tensors(again.t[i], &n);
        for (int32_t k = 0; k < n; k++)
            memcpy(all[k].data, find(s->t[i], all[k].name)->data, (size_t)shape_bytes(&all[k].shape));
        assert_int_equal(trainer_renew(again.t[i], &why), YK_OK);
        trainer_close(s->t[i]);
    }
    *s = again;
}

static void train(struct model *m, const struct setting *set, struct outcome *out)
{
    struct stages s;
    struct yk_rng r;
    int n_mb = (int)((set->batch + set->microbatch - 1) / set->microbatch);
    assert_true(n_mb <= MAX_MICROBATCHES);
    yk_rng_seed(&r, 17);
    open_stages(m, set, &s);
    for (int step = 0; step < STEPS; step++) {
        struct wires w = {0};
        int64_t n[MAX_MICROBATCHES];
        uint64_t seed[MAX_MICROBATCHES];
        if (step && step == set->stop)
            reopen(m, &s, set);
        for (int mb = 0; mb < n_mb; mb++) {
            n[mb] = YK_MIN(set->microbatch, set->batch - mb * set->microbatch);
            seed[mb] = trainer_seed(1, step, mb);
            feed(m, &w, mb, n[mb], (float)set->batch, &r);
        }
        /* Forward of all, then backward of all in microbatch order, or both at once. */
        for (int mb = 0; mb < n_mb; mb++) {
            for (int i = 0; i < m->g->n_syms; i++)
                m->sizes[i] = n[mb];
            for (int i = 0; i < s.n; i++)
                run_part(m, s.t[i], set->in_flight ? TRAINER_FORWARD : TRAINER_WHOLE, mb, &w, seed[mb]);
        }
        for (int mb = 0; set->in_flight && mb < n_mb; mb++) {
            for (int i = 0; i < m->g->n_syms; i++)
                m->sizes[i] = n[mb];
            for (int i = s.n - 1; i >= 0; i--)
                run_part(m, s.t[i], TRAINER_BACKWARD, mb, &w, seed[mb]);
        }
        out->loss[step] = 0;
        for (int mb = 0; mb < n_mb; mb++)
            out->loss[step] += *(float *)w.at[mb][m->g->outputs[m->info.loss_output]].data;
        flush(m, &s, set, step + 1);
        for (int mb = 0; mb < n_mb; mb++) {
            for (int32_t v = 0; v < w.n; v++)
                free(w.at[mb][v].data);
            free(w.at[mb]);
        }
    }
    gather(m, &s, set, out);
    for (int i = 0; i < s.n; i++)
        trainer_close(s.t[i]);
}

static void same(const struct outcome *a, const struct outcome *b, const char *what)
{
    assert_int_equal(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++)
        if (memcmp(&a->data[i], &b->data[i], sizeof(float)))
            fail_msg("%s: element %lld of %lld is %.9g and %.9g", what, (long long)i, (long long)a->n,
                (double)a->data[i], (double)b->data[i]);
    if (memcmp(a->loss, b->loss, sizeof a->loss))
        fail_msg("%s: losses %.9g %.9g and %.9g %.9g", what, (double)a->loss[0], (double)a->loss[1], (double)b->loss[0],
            (double)b->loss[1]);
}

static void compare(struct model *m, const struct setting *a, const struct setting *b, const char *what)
{
    struct outcome x, y;
    train(m, a, &x);
    train(m, b, &y);
    for (int64_t i = 0; i < x.n; i++)
        assert_true(isfinite(x.data[i]));
    same(&x, &y, what);
    free(x.data);
    free(y.data);
}

static const struct setting plain = {.n_stages = 1, .threads = 1, .batch = 7, .microbatch = 3, .clip_norm = 0.5};

static void same_bits_with_any_threads(void **state)
{
    (void)state;
    struct model m;
    for (int adam = 0; adam < 2; adam++) {
        make(&m, "cnn", false, 8);
        struct setting a = plain, b = plain;
        a.optim = b.optim = adam ? OPTIM_ADAMW : OPTIM_SGD;
        for (b.threads = 2; b.threads <= 3; b.threads++)
            compare(&m, &a, &b, "threads");
        drop(&m);
    }
}

static void same_bits_in_two_runs(void **state)
{
    (void)state;
    static const char *const kinds[] = {"mlp", "cnn", "resnet-small", "vit-tiny"};
    for (size_t i = 0; i < YK_COUNT(kinds); i++) {
        struct model m;
        struct setting b = plain;
        make(&m, kinds[i], false, 8);
        b.in_flight = 3;
        compare(&m, &plain, &b, kinds[i]);
        drop(&m);
    }
}

/* What --recompute makes anew has the bits of the first time, by simd's kernels and by ref's. */
static void same_bits_when_computed_again(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *backend;
        bool bn_frozen;
        int64_t size;
    } cases[] = {{"cnn", "auto", false, 20}, {"resnet-small", "auto", false, 20}, {"resnet-small", "ref", false, 8},
        {"resnet-small", "auto", true, 8}, {"vit-tiny", "auto", false, 8}};
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        struct backends b;
        struct model m;
        struct outcome x, y;
        int32_t nodes = 0;
        assert_int_equal(backends_open(cases[i].backend, pools[0], &b, NULL), YK_OK);
        instead = &b;
        for (int again = 0; again < 2; again++) {
            recompute = again;
            make(&m, cases[i].kind, cases[i].bn_frozen, cases[i].size);
            train(&m, &plain, again ? &y : &x);
            assert_true(!again || m.g->n_nodes > nodes);
            nodes = m.g->n_nodes;
            drop(&m);
        }
        same(&x, &y, cases[i].kind);
        recompute = false;
        instead = NULL;
        free(x.data);
        free(y.data);
        backends_close(&b);
    }
}

static void same_bits_after_a_stop(void **state)
{
    (void)state;
    struct model m;
    make(&m, "resnet-small", false, 8);
    for (int adam = 0; adam < 2; adam++)
        for (int stop = 1; stop < STEPS; stop++) {
            struct setting a = plain, b = plain;
            a.optim = b.optim = adam ? OPTIM_ADAMW : OPTIM_SGD;
            b.stop = stop;
            compare(&m, &a, &b, "stop");
        }
    drop(&m);
}

static void same_bits_at_every_cut(void **state)
{
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        struct model m;
        struct outcome want, got;
        make(&m, "cnn", frozen, 8);
        train(&m, &plain, &want);
        for (int32_t cut = 1; cut < m.fwd->n_nodes; cut++) {
            struct setting b = plain;
            b.n_stages = 2;
            b.first[1] = cut;
            b.in_flight = 3;
            train(&m, &b, &got);
            same(&want, &got, "cut");
            free(got.data);
        }
        free(want.data);
        drop(&m);
    }
}

static void same_bits_over_four_stages(void **state)
{
    (void)state;
    struct model m;
    struct yk_rng r;
    make(&m, "resnet-small", false, 8);
    yk_rng_seed(&r, 6);
    for (int round = 0; round < 4; round++) {
        struct setting b = plain;
        b.n_stages = 4;
        b.in_flight = 3;
        int32_t n = m.fwd->n_nodes / 4;
        for (int i = 1; i < 4; i++)
            b.first[i] = n * i + (int32_t)yk_rng_below(&r, (uint64_t)n);
        compare(&m, &plain, &b, "four stages");
    }
    drop(&m);
}

/* x w + w2 where w is used three times, with the uses in different stages. */
static void tied_weights(void **state)
{
    (void)state;
    struct model m = {.classes = 6};
    struct graph *g = graph_open(0);
    struct grad_options o;
    struct yk_rng r;
    yk_rng_seed(&r, 2);
    int32_t x = graphs_input(g, "x", DT_F32, 2, (const int64_t[]){-1, 6});
    int32_t w = graphs_weight(g, "w", DT_F32, 2, (const int64_t[]){6, 6}, &r);
    int32_t b = graphs_weight(g, "b", DT_F32, 1, (const int64_t[]){6}, &r);
    int32_t y = x;
    char name[16];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "m%d", i);
        y = graphs_node(g, "", "MatMul", name, (const int32_t[]){y, w}, 2);
        snprintf(name, sizeof name, "a%d", i);
        y = graphs_node(g, "", "Add", name, (const int32_t[]){y, b}, 2);
        snprintf(name, sizeof name, "t%d", i);
        y = graphs_node(g, "", "Tanh", name, &y, 1);
    }
    graphs_output(g, y);
    grad_options_init(&o);
    take_graph(&m, g, &o);
    for (int32_t p = 0; p < m.info.n_params; p++)
        assert_int_equal(m.info.params[p].n_uses, 3);
    for (int32_t cut = 1; cut < m.fwd->n_nodes; cut++) {
        struct setting s = plain;
        s.n_stages = 2;
        s.first[1] = cut;
        s.in_flight = 3;
        compare(&m, &plain, &s, "tied weights");
    }
    drop(&m);
}

/* Sums over microbatches are left folds: three of one sample are (g0 + g1) + g2. */
static void sums_are_left_folds(void **state)
{
    (void)state;
    struct model m;
    struct stages s;
    struct setting set = plain;
    struct yk_rng r;
    float *fold = NULL;
    int64_t n = 0;
    make(&m, "mlp", false, 4);
    set.microbatch = 1;
    for (int all = 0; all < 2; all++) {
        open_stages(&m, &set, &s);
        yk_rng_seed(&r, 1);
        for (int mb = 0; mb < 3; mb++) {
            struct wires w = {0};
            feed(&m, &w, 0, 1, 3, &r);
            run_part(&m, s.t[0], TRAINER_WHOLE, 0, &w, 0);
            const float *sum = trainer_use(s.t[0], 0, 0);
            n = m.g->values[m.info.params[0].value].bytes / 4;
            if (!all && !fold) {
                fold = malloc((size_t)n * sizeof *fold);
                memcpy(fold, sum, (size_t)n * sizeof *fold);
            } else if (!all) {
                for (int64_t i = 0; i < n; i++)
                    fold[i] += sum[i];
            }
            if (!all)
                trainer_drop(s.t[0]);
            for (int32_t v = 0; v < w.n; v++)
                free(w.at[0][v].data);
            free(w.at[0]);
        }
        if (all)
            assert_memory_equal(fold, trainer_use(s.t[0], 0, 0), (size_t)n * sizeof *fold);
        trainer_close(s.t[0]);
    }
    free(fold);
    drop(&m);
}

/* A backend with memory of its own adds gradients behind its segments: ref's bits, computed there. */
static void same_bits_from_a_device(void **state)
{
    (void)state;
    static const char *const specs[] = {"ref", "fake,ref"};
    struct outcome out[2];
    struct model m;
    make(&m, "cnn", false, 8);
    for (int i = 0; i < 2; i++) {
        struct backends b;
        assert_int_equal(backends_open(specs[i], pools[0], &b, NULL), YK_OK);
        instead = &b;
        train(&m, &plain, &out[i]);
        instead = NULL;
        backends_close(&b);
    }
    same(&out[0], &out[1], "a device");
    free(out[0].data);
    free(out[1].data);
    drop(&m);
}

struct canceling {
    struct trainer *t;
    int32_t at; /* node behind which the run is canceled */
};

static void cancel_at(void *arg, int32_t node, const char *form, double ms)
{
    struct canceling *c = arg;
    (void)form;
    (void)ms;
    if (node == c->at)
        trainer_cancel(c->t);
}

static yk_err run_again(struct model *m, struct trainer *t, const struct wires *w, struct yk_diag *why)
{
    const struct trainer_border *b = trainer_border(t, TRAINER_WHOLE);
    struct tensor in[8], out[GRAPHS_MAX_IO];
    for (int32_t i = 0; i < b->n_in; i++)
        in[i] = w->at[0][b->in[i]];
    return trainer_run(t, TRAINER_WHOLE, 0, m->sizes, in, out, 0, why);
}

/* Gradients are added while a run goes on: all microbatches take the same memory, and one that fails half way takes the
 * step with it, not the trainer. */
static void adds_as_it_goes(void **state)
{
    (void)state;
    struct model m;
    struct stages s;
    struct setting set = plain;
    struct wires w = {0};
    struct yk_rng r;
    struct yk_diag why = {""};
    make(&m, "cnn", false, 8);
    set.microbatch = 2;
    open_stages(&m, &set, &s);
    struct trainer *t = s.t[0];
    yk_rng_seed(&r, 1);
    feed(&m, &w, 0, 2, 4, &r);
    int64_t held = trainer_held_bytes(t), n = m.g->values[m.info.params[0].value].bytes;
    float *once = malloc((size_t)n), *twice = malloc((size_t)n);
    assert_int_equal(run_again(&m, t, &w, &why), YK_OK);
    memcpy(once, trainer_use(t, 0, 0), (size_t)n);
    assert_int_equal(run_again(&m, t, &w, &why), YK_OK);
    memcpy(twice, trainer_use(t, 0, 0), (size_t)n);
    for (int64_t i = 0; i < n / 4; i++)
        assert_true(twice[i] == once[i] + once[i]);
    assert_int_equal(trainer_held_bytes(t), held);
    for (int first = 0; first < 2; first++) { /* the run that is canceled is the step's first, or not */
        struct canceling c = {t, m.g->n_nodes - 2};
        trainer_drop(t);
        if (!first)
            assert_int_equal(run_again(&m, t, &w, &why), YK_OK);
        trainer_trace(t, cancel_at, &c);
        assert_int_equal(run_again(&m, t, &w, &why), YK_CANCELED);
        trainer_trace(t, NULL, NULL);
        if (!first) {
            assert_int_equal(run_again(&m, t, &w, &why), YK_STATE);
            assert_non_null(strstr(why.text, "failed with a part of its gradients added"));
            assert_int_equal(trainer_flush(t, 0.1, 1, NULL, &why), YK_STATE);
            trainer_drop(t);
        }
        assert_int_equal(run_again(&m, t, &w, &why), YK_OK);
        assert_memory_equal(once, trainer_use(t, 0, 0), (size_t)n);
        assert_int_equal(run_again(&m, t, &w, &why), YK_OK);
        assert_memory_equal(twice, trainer_use(t, 0, 0), (size_t)n);
    }
    trainer_close(t);
    /* Who says that a step is one microbatch gets no room for more. */
    struct trainer_config c = {.graph = m.g,
        .info = &m.info,
        .max_sizes = m.sizes,
        .backends = &backends[0],
        .pool = pools[0],
        .optim = optim_default(OPTIM_SGD),
        .single = true};
    assert_int_equal(trainer_open(&c, &t, &why), YK_OK);
    assert_true(trainer_held_bytes(t) <= held);
    for (int step = 1; step <= 2; step++) {
        assert_int_equal(run_again(&m, t, &w, &why), YK_OK);
        if (step == 1)
            assert_memory_equal(once, trainer_use(t, 0, 0), (size_t)n);
        assert_int_equal(run_again(&m, t, &w, &why), YK_STATE);
        assert_non_null(strstr(why.text, "one microbatch in a step"));
        assert_int_equal(trainer_flush(t, 0.1, step, NULL, &why), YK_OK);
    }
    trainer_close(t);
    free(once);
    free(twice);
    for (int32_t v = 0; v < w.n; v++)
        free(w.at[0][v].data);
    free(w.at[0]);
    drop(&m);
}

static void names_what_is_not_finite(void **state)
{
    (void)state;
    struct model m;
    struct stages s;
    struct wires w = {0};
    struct yk_rng r;
    struct tensor in[8];
    char text[300];
    make(&m, "mlp", false, 4);
    open_stages(&m, &plain, &s);
    yk_rng_seed(&r, 1);
    feed(&m, &w, 0, 3, 3, &r);
    const struct trainer_border *b = trainer_border(s.t[0], TRAINER_WHOLE);
    for (int32_t i = 0; i < b->n_in; i++)
        in[i] = w.at[0][b->in[i]];
    assert_false(trainer_blame(s.t[0], m.sizes, in, 0, text, sizeof text));
    float *x = w.at[0][m.g->inputs[0]].data, was = x[5];
    x[5] = NAN;
    assert_true(trainer_blame(s.t[0], m.sizes, in, 0, text, sizeof text));
    assert_non_null(strstr(text, "input 'x'"));
    x[5] = was;
    struct trainer_tensor *weight = find(s.t[0], "param/3.weight");
    assert_non_null(weight);
    weight->data[3] = NAN;
    assert_true(trainer_blame(s.t[0], m.sizes, in, 0, text, sizeof text));
    assert_non_null(strstr(text, "weight '3.weight'"));
    weight->data[3] = 3e38f;
    weight->data[4] = -3e38f;
    for (int i = 0; i < 16 * 2; i++)
        x[i] *= 1e3f;
    assert_int_equal(trainer_renew(s.t[0], NULL), YK_OK);
    assert_true(trainer_blame(s.t[0], m.sizes, in, 0, text, sizeof text));
    assert_non_null(strstr(text, "value '"));
    for (int32_t v = 0; v < w.n; v++)
        free(w.at[0][v].data);
    free(w.at[0]);
    trainer_close(s.t[0]);
    drop(&m);
}

static void refuses(void **state)
{
    (void)state;
    struct model m;
    struct trainer *t;
    struct yk_diag why = {""};
    const struct shapes *shapes;
    make(&m, "cnn", false, 4);
    int64_t sizes[8];
    for (int i = 0; i < 8; i++)
        sizes[i] = 4;
    struct trainer_config c = {.graph = m.g,
        .info = &m.info,
        .max_sizes = sizes,
        .backends = &backends[0],
        .pool = pools[0],
        .optim = optim_default(OPTIM_SGD)};
    c.in_flight = -1;
    assert_int_equal(trainer_open(&c, &t, &why), YK_INVAL);
    c.in_flight = 0;
    c.optim.momentum = 2;
    assert_int_equal(trainer_open(&c, &t, &why), YK_INVAL);
    c.optim.momentum = 0.9;
    assert_int_equal(trainer_open(&c, &t, &why), YK_OK);
    sizes[0] = 5;
    assert_int_equal(trainer_shapes(t, sizes, &shapes, &why), YK_LIMIT);
    sizes[0] = 4;
    assert_int_equal(trainer_run(t, TRAINER_WHOLE, 1, sizes, NULL, NULL, 0, &why), YK_INVAL);
    assert_true(trainer_held_bytes(t) > 0);
    trainer_close(t);
    drop(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_with_any_threads),
        cmocka_unit_test(same_bits_in_two_runs), cmocka_unit_test(same_bits_when_computed_again),
        cmocka_unit_test(same_bits_after_a_stop), cmocka_unit_test(same_bits_at_every_cut),
        cmocka_unit_test(same_bits_over_four_stages), cmocka_unit_test(tied_weights),
        cmocka_unit_test(sums_are_left_folds), cmocka_unit_test(adds_as_it_goes),
        cmocka_unit_test(same_bits_from_a_device), cmocka_unit_test(names_what_is_not_finite),
        cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
