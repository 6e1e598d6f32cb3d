/* A stage's answer does not depend on where it is cut, on threads, on earlier runs or on whose memory it ran in; what a
 * stage holds is what its plan says; everything from outside is checked. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/passes.h"
#include "kernels/fold.h"
#include "kernels/profile.h"
#include "kernels/ref.h"
#include "tests/graphs.h"
#include "tests/models.h"

#define CNN YOKE_SOURCE_DIR "/tests/data/fmnist_cnn.onnx"

static struct pool *pool;
static struct backends backends, mixed;

static int setup(void **state)
{
    (void)state;
    return pool_open(2, &pool, NULL) || backends_open("auto", pool, &backends, NULL) ||
           backends_open("fake,blas,simd", pool, &mixed, NULL);
}

static int teardown(void **state)
{
    (void)state;
    backends_close(&mixed);
    backends_close(&backends);
    pool_close(pool);
    return 0;
}

static struct graph *cnn(void)
{
    struct graph *g;
    struct yk_diag why = {""};
    assert_int_equal(onnx_import(CNN, &g, NULL, &why), YK_OK);
    assert_int_equal(passes_infer(g, fold_eval, NULL, &why), YK_OK);
    return g;
}

/* Runs a graph in two stages at a cut; values travel as tensors. Returns the graph's outputs in *last. */
static void run_cut(struct graph *g, int32_t cut, struct backends *b, int64_t n, const struct graphs_io *whole_in,
    const struct memplan *whole_plan, struct graphs_io *last)
{
    uint8_t *stage = calloc((size_t)g->n_nodes + 1, 1);
    int64_t sizes[4] = {n, n, n, n};
    struct yk_diag why = {""};
    struct graphs_io io[2];
    struct exec *e[2];
    for (int s = 0; s < 2; s++) {
        for (int32_t i = 0; i < g->n_nodes; i++)
            stage[i] = s == 0 ? i < cut : i >= cut;
        struct exec_config c = {.graph = g, .in_stage = stage, .max_sizes = sizes, .backends = b};
        assert_int_equal(exec_open(&c, &e[s], &why), YK_OK);
        assert_int_equal(graphs_io_init(&io[s], e[s], sizes, &why), YK_OK);
        const struct memplan *m = exec_plan(e[s]);
        for (int32_t i = 0; i < m->n_in; i++) {
            const struct tensor *from = NULL;
            for (int32_t k = 0; k < whole_plan->n_in; k++)
                if (whole_plan->in[k] == m->in[i])
                    from = &whole_in->in[k];
            for (int32_t k = 0; s == 1 && k < exec_plan(e[0])->n_out; k++)
                if (exec_plan(e[0])->out[k] == m->in[i])
                    from = &io[0].out[k];
            assert_non_null(from);
            memcpy(io[s].in[i].data, from->data, (size_t)tensor_bytes(from));
        }
        assert_int_equal(exec_run(e[s], sizes, io[s].in, io[s].out, 0, &why), YK_OK);
    }
    /* All outputs of this model come from the second stage, unless it is empty. */
    int owner = cut < g->n_nodes ? 1 : 0;
    *last = io[owner];
    graphs_io_fini(&io[1 - owner]);
    exec_close(e[0]);
    exec_close(e[1]);
    free(stage);
}

static void every_cut_equals_whole(void **state)
{
    (void)state;
    struct graph *g = cnn();
    struct yk_diag why = {""};
    struct yk_rng r;
    yk_rng_seed(&r, 7);
    int64_t sizes[4] = {3, 3, 3, 3};
    struct exec_config c = {.graph = g, .max_sizes = sizes, .backends = &backends};
    struct exec *e;
    struct graphs_io io, part;
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    assert_int_equal(graphs_io_init(&io, e, sizes, &why), YK_OK);
    graphs_fill(io.in[0].data, &io.in[0].shape, &r, false);
    assert_int_equal(exec_run(e, sizes, io.in, io.out, 0, &why), YK_OK);
    for (int32_t cut = 1; cut < g->n_nodes; cut++) {
        run_cut(g, cut, &backends, 3, &io, exec_plan(e), &part);
        assert_int_equal(part.n_out, 1);
        assert_memory_equal(part.out[0].data, io.out[0].data, (size_t)tensor_bytes(&io.out[0]));
        graphs_io_fini(&part);
    }
    for (int threads = 1; threads <= 3; threads++) {
        struct pool *p;
        struct backends b;
        assert_int_equal(pool_open(threads, &p, NULL), YK_OK);
        assert_int_equal(backends_open("auto", p, &b, NULL), YK_OK);
        run_cut(g, 2, &b, 3, &io, exec_plan(e), &part);
        assert_memory_equal(part.out[0].data, io.out[0].data, (size_t)tensor_bytes(&io.out[0]));
        graphs_io_fini(&part);
        backends_close(&b);
        pool_close(p);
    }
    graphs_io_fini(&io);
    exec_close(e);
    graph_close(g);
}

/* Smaller batches on a loaded stage give what a stage of that size gives; none is as good as any. */
static void smaller_sizes_without_reload(void **state)
{
    (void)state;
    struct graph *g = cnn();
    struct yk_diag why = {""};
    struct yk_rng r;
    int64_t most[4] = {5, 5, 5, 5};
    struct exec_config c = {.graph = g, .max_sizes = most, .backends = &backends};
    struct exec *big, *e;
    struct graphs_io a, b;
    assert_int_equal(exec_open(&c, &big, &why), YK_OK);
    for (int64_t n = 5; n >= 0; n--) {
        int64_t sizes[4] = {n, n, n, n};
        struct exec_config small = {.graph = g, .max_sizes = sizes, .backends = &backends};
        yk_rng_seed(&r, (uint64_t)n);
        assert_int_equal(exec_open(&small, &e, &why), YK_OK);
        assert_int_equal(graphs_io_init(&a, big, sizes, &why), YK_OK);
        assert_int_equal(graphs_io_init(&b, e, sizes, &why), YK_OK);
        graphs_fill(a.in[0].data, &a.in[0].shape, &r, false);
        memcpy(b.in[0].data, a.in[0].data, (size_t)tensor_bytes(&a.in[0]));
        assert_int_equal(exec_run(big, sizes, a.in, a.out, 0, &why), YK_OK);
        assert_int_equal(exec_run(e, sizes, b.in, b.out, 0, &why), YK_OK);
        assert_int_equal(a.out[0].shape.dims[0], n);
        assert_memory_equal(a.out[0].data, b.out[0].data, (size_t)tensor_bytes(&a.out[0]));
        graphs_io_fini(&a);
        graphs_io_fini(&b);
        exec_close(e);
    }
    int64_t more[4] = {6, 6, 6, 6};
    const struct shapes *s;
    assert_int_equal(exec_sizes(big, more, &s, &why), YK_LIMIT);
    assert_non_null(strstr(why.text, "at most 5"));
    exec_close(big);
    graph_close(g);
}

/* Bytes of weights that are not aligned where the file has them. */
static int64_t unaligned(const struct graph *g)
{
    int64_t bytes = 0;
    for (int32_t v = 0; v < g->n_values; v++) {
        const struct value *w = &g->values[v];
        if (w->kind == VALUE_WEIGHT && w->data && (uintptr_t)w->data % dtype_bytes(w->shape.dtype) != 0)
            bytes += shape_bytes(&w->shape);
    }
    return bytes;
}

static void holds_what_the_plan_says(void **state)
{
    (void)state;
    struct graph *g = cnn();
    for (int64_t n = 1; n <= 64; n *= 4) {
        int64_t sizes[4] = {n, n, n, n};
        struct exec_config c = {.graph = g, .max_sizes = sizes, .backends = &backends};
        struct exec *e;
        assert_int_equal(exec_open(&c, &e, NULL), YK_OK);
        const struct memplan *m = exec_plan(e);
        assert_int_equal(exec_held_bytes(e), m->arena_bytes + m->packed_bytes + unaligned(g));
        assert_true(m->arena_bytes > 0);
        exec_close(e);
    }
    graph_close(g);
}

/* Relu -> Sigmoid -> Relu ...: the fake device takes every second node. */
static void backends_share_a_stage(void **state)
{
    (void)state;
    struct graph *g = graph_open(0);
    struct yk_diag why = {""};
    struct yk_rng r;
    yk_rng_seed(&r, 3);
    int32_t v = graphs_input(g, "x", DT_F32, 2, (int64_t[]){-1, 37});
    int32_t first = v = graphs_node(g, "", "Relu", "r0", &v, 1);
    v = graphs_node(g, "", "Sigmoid", "s0", &v, 1);
    v = graphs_node(g, "", "Add", "a0", (int32_t[]){v, first}, 2);
    int32_t shape = graphs_ints(g, "shape", (int64_t[]){37, -1}, 2);
    v = graphs_node(g, "", "Reshape", "t0", (int32_t[]){v, shape}, 2);
    v = graphs_node(g, "", "Tanh", "h0", &v, 1);
    v = graphs_node(g, "", "Relu", "r1", &v, 1);
    graphs_output(g, v);
    graphs_output(g, first);
    int64_t sizes[1] = {9};
    struct exec_config c = {.graph = g, .max_sizes = sizes, .backends = &mixed};
    struct exec *e, *plain;
    struct graphs_io a, b;
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    assert_string_equal(exec_form(e, 0), "device@fake");
    assert_string_equal(exec_form(e, 1), "map@generic");
    c.backends = &backends;
    assert_int_equal(exec_open(&c, &plain, &why), YK_OK);
    for (int64_t n = 9; n >= 0; n -= 3) {
        assert_int_equal(graphs_io_init(&a, e, &n, &why), YK_OK);
        assert_int_equal(graphs_io_init(&b, plain, &n, &why), YK_OK);
        graphs_fill(a.in[0].data, &a.in[0].shape, &r, true);
        memcpy(b.in[0].data, a.in[0].data, (size_t)tensor_bytes(&a.in[0]));
        assert_int_equal(exec_run(e, &n, a.in, a.out, 0, &why), YK_OK);
        assert_int_equal(exec_run(plain, &n, b.in, b.out, 0, &why), YK_OK);
        for (int i = 0; i < 2; i++)
            assert_memory_equal(a.out[i].data, b.out[i].data, (size_t)tensor_bytes(&a.out[i]));
        graphs_io_fini(&a);
        graphs_io_fini(&b);
    }
    exec_close(e);
    exec_close(plain);
    graph_close(g);
}

/* Views of a boundary input, of a weight and as a boundary output. */
static void views_at_the_border(void **state)
{
    (void)state;
    struct graph *g = graph_open(0);
    struct yk_diag why = {""};
    struct yk_rng r;
    yk_rng_seed(&r, 4);
    int32_t x = graphs_input(g, "x", DT_F32, 2, (int64_t[]){4, 6});
    int32_t w = graphs_weight(g, "w", DT_F32, 2, (int64_t[]){6, 4}, &r);
    int32_t s = graphs_ints(g, "s", (int64_t[]){24}, 1), t = graphs_ints(g, "t", (int64_t[]){2, 12}, 2);
    int32_t a = graphs_node(g, "", "Reshape", "a", (int32_t[]){x, s}, 2);
    int32_t b = graphs_node(g, "", "Reshape", "b", (int32_t[]){w, s}, 2);
    int32_t y = graphs_node(g, "", "Add", "y", (int32_t[]){a, b}, 2);
    int32_t z = graphs_node(g, "", "Reshape", "z", (int32_t[]){y, t}, 2);
    int32_t q = graphs_node(g, "", "Reshape", "q", (int32_t[]){x, t}, 2);
    graphs_output(g, z);
    graphs_output(g, y);
    graphs_output(g, q);
    graphs_output(g, b);
    struct exec_config c = {.graph = g, .backends = &backends};
    struct exec *e;
    struct graphs_io io;
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    assert_int_equal(graphs_io_init(&io, e, NULL, &why), YK_OK);
    graphs_fill(io.in[0].data, &io.in[0].shape, &r, false);
    assert_int_equal(exec_run(e, NULL, io.in, io.out, 0, &why), YK_OK);
    const float *fx = io.in[0].data, *fw = g->values[w].data;
    for (int32_t i = 0; i < io.n_out; i++) {
        const float *f = io.out[i].data;
        int32_t v = exec_plan(e)->out[i];
        for (int k = 0; k < 24; k++) {
            float want = v == q ? fx[k] : v == b ? fw[k] : fx[k] + fw[k];
            assert_true(f[k] == want);
        }
    }
    assert_int_equal(io.n_out, 4);
    graphs_io_fini(&io);
    exec_close(e);
    graph_close(g);
}

static yk_err give_weight(void *arg, int32_t value, const void **data, struct yk_diag *why)
{
    const struct graph *full = arg;
    if (value < 0 || value >= full->n_values || !full->values[value].data)
        return yk_fail(why, YK_NOTFOUND, "not in the cache");
    *data = full->values[value].data;
    return YK_OK;
}

/* A skeleton's weights come from the callback, unaligned ones are copied and counted. */
static void weights_from_outside(void **state)
{
    (void)state;
    struct graph *full = cnn(), *bare = cnn();
    struct yk_diag why = {""};
    struct yk_rng r;
    yk_rng_seed(&r, 5);
    int64_t sizes[4] = {2, 2, 2, 2}, copied;
    char *odd = NULL;
    for (int32_t v = 0; v < bare->n_values; v++) {
        struct value *w = &bare->values[v];
        if (w->kind != VALUE_WEIGHT || w->bytes < 256)
            continue;
        w->data = NULL;
        if (!odd) { /* one of them arrives at an odd address */
            odd = malloc((size_t)w->bytes + 1);
            memcpy(odd + 1, full->values[v].data, (size_t)w->bytes);
            full->values[v].data = odd + 1;
        }
    }
    struct exec_config c = {.graph = bare, .max_sizes = sizes, .backends = &backends};
    struct exec *e, *plain;
    assert_int_equal(exec_open(&c, &e, &why), YK_NOTFOUND);
    c.weight = give_weight;
    c.weight_arg = full;
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    copied = unaligned(bare);
    for (int32_t v = 0; v < bare->n_values; v++)
        if (bare->values[v].kind == VALUE_WEIGHT && !bare->values[v].data)
            copied += (uintptr_t)full->values[v].data % 4 ? full->values[v].bytes : 0;
    assert_int_equal(exec_held_bytes(e) - exec_plan(e)->arena_bytes - exec_plan(e)->packed_bytes, copied);
    struct graph *again = cnn();
    c = (struct exec_config){.graph = again, .max_sizes = sizes, .backends = &backends};
    assert_int_equal(exec_open(&c, &plain, &why), YK_OK);
    struct graphs_io a, b;
    assert_int_equal(graphs_io_init(&a, e, sizes, &why), YK_OK);
    assert_int_equal(graphs_io_init(&b, plain, sizes, &why), YK_OK);
    graphs_fill(a.in[0].data, &a.in[0].shape, &r, false);
    memcpy(b.in[0].data, a.in[0].data, (size_t)tensor_bytes(&a.in[0]));
    assert_int_equal(exec_run(e, sizes, a.in, a.out, 0, &why), YK_OK);
    assert_int_equal(exec_run(plain, sizes, b.in, b.out, 0, &why), YK_OK);
    assert_memory_equal(a.out[0].data, b.out[0].data, (size_t)tensor_bytes(&a.out[0]));
    graphs_io_fini(&a);
    graphs_io_fini(&b);
    exec_close(e);
    exec_close(plain);
    graph_close(again);
    graph_close(bare);
    graph_close(full);
    free(odd);
}

static void refuses_what_does_not_fit(void **state)
{
    (void)state;
    struct graph *g = cnn();
    struct yk_diag why = {""};
    int64_t sizes[4] = {2, 2, 2, 2};
    const char **forms = calloc((size_t)g->n_nodes + 1, sizeof(*forms));
    struct exec_config c = {.graph = g, .max_sizes = sizes, .forms = forms, .backends = &backends};
    struct exec *e = NULL;
    forms[0] = "conv.wino4@avx512";
    assert_int_equal(exec_open(&c, &e, &why), YK_UNSUPPORTED);
    assert_non_null(strstr(why.text, "conv.wino4@avx512"));
    assert_non_null(strstr(why.text, "node 0"));
    forms[0] = "no at sign";
    assert_int_equal(exec_open(&c, &e, &why), YK_UNSUPPORTED);
    forms[0] = "ref@generic";
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    assert_string_equal(exec_form(e, 0), "ref@generic");
    assert_null(exec_form(e, -1));
    assert_null(exec_form(e, g->n_nodes));
    struct graphs_io io;
    assert_int_equal(graphs_io_init(&io, e, sizes, &why), YK_OK);
    memset(io.in[0].data, 0, (size_t)tensor_bytes(&io.in[0]));
    io.in[0].shape.dims[0] = 1;
    assert_int_equal(exec_run(e, sizes, io.in, io.out, 0, &why), YK_INVAL);
    io.in[0].shape.dims[0] = 2;
    io.in[0].shape.dtype = DT_I32;
    assert_int_equal(exec_run(e, sizes, io.in, io.out, 0, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "int32"));
    io.in[0].shape.dtype = DT_F32;
    void *data = io.in[0].data;
    io.in[0].data = (char *)data + 1;
    assert_int_equal(exec_run(e, sizes, io.in, io.out, 0, &why), YK_INVAL);
    io.in[0].data = data;
    assert_int_equal(exec_run(e, sizes, io.in, io.out, 0, &why), YK_OK);
    graphs_io_fini(&io);
    exec_close(e);
    free(forms);
    graph_close(g);
}

static void indices_out_of_range(void **state)
{
    (void)state;
    struct graph *g = graph_open(0);
    struct yk_diag why = {""};
    int32_t x = graphs_input(g, "x", DT_F32, 2, (int64_t[]){5, 3});
    int32_t i = graphs_input(g, "i", DT_I64, 1, (int64_t[]){2});
    graphs_output(g, graphs_node(g, "", "Gather", "y", (int32_t[]){x, i}, 2));
    struct exec_config c = {.graph = g, .backends = &backends};
    struct exec *e;
    struct graphs_io io;
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    assert_int_equal(graphs_io_init(&io, e, NULL, &why), YK_OK);
    memset(io.in[0].data, 0, (size_t)tensor_bytes(&io.in[0]));
    int64_t *ids = io.in[1].data;
    ids[0] = -5;
    ids[1] = 4;
    assert_int_equal(exec_run(e, NULL, io.in, io.out, 0, &why), YK_OK);
    static const int64_t bad[] = {5, -6, INT64_MAX, INT64_MIN};
    for (int k = 0; k < 4; k++) {
        char text[32];
        ids[1] = bad[k];
        assert_int_equal(exec_run(e, NULL, io.in, io.out, 0, &why), YK_INVAL);
        snprintf(text, sizeof(text), "index %lld", (long long)bad[k]);
        assert_non_null(strstr(why.text, text));
        assert_non_null(strstr(why.text, "(Gather)"));
        assert_non_null(strstr(why.text, "axis of 5"));
    }
    graphs_io_fini(&io);
    exec_close(e);
    graph_close(g);
}

struct trace {
    int32_t last, count;
    double ms;
};

static void on_node(void *arg, int32_t node, const char *form, double ms)
{
    struct trace *t = arg;
    assert_true(node > t->last);
    assert_non_null(strchr(form, '@'));
    t->last = node;
    t->count++;
    t->ms += ms;
}

static void traces_every_node(void **state)
{
    (void)state;
    struct graph *g = cnn();
    int64_t sizes[4] = {1, 1, 1, 1};
    struct trace t = {.last = -1};
    struct exec_config c = {.graph = g, .max_sizes = sizes, .backends = &backends};
    struct exec *e;
    struct graphs_io io;
    assert_int_equal(exec_open(&c, &e, NULL), YK_OK);
    assert_int_equal(graphs_io_init(&io, e, sizes, NULL), YK_OK);
    memset(io.in[0].data, 0, (size_t)tensor_bytes(&io.in[0]));
    exec_trace(e, on_node, &t);
    assert_int_equal(exec_run(e, sizes, io.in, io.out, 0, NULL), YK_OK);
    assert_int_equal(t.count, g->n_nodes);
    assert_true(t.ms > 0);
    exec_trace(e, NULL, NULL);
    assert_int_equal(exec_run(e, sizes, io.in, io.out, 0, NULL), YK_OK);
    assert_int_equal(t.count, g->n_nodes);
    graphs_io_fini(&io);
    exec_close(e);
    graph_close(g);
}

static void *cancel_main(void *arg)
{
    usleep(20000);
    exec_cancel(arg);
    return NULL;
}

/* A long chain is canceled from another thread, and runs whole the next time. */
static void cancels(void **state)
{
    (void)state;
    struct graph *g = graph_open(0);
    struct yk_diag why = {""};
    int32_t v = graphs_input(g, "x", DT_F32, 2, (int64_t[]){256, 1024});
    for (int i = 0; i < 400; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n%d", i);
        v = graphs_node(g, "", i % 2 ? "Cos" : "Sin", name, &v, 1);
    }
    graphs_output(g, v);
    struct exec_config c = {.graph = g, .backends = &backends};
    struct exec *e;
    struct graphs_io io;
    pthread_t t;
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    assert_int_equal(graphs_io_init(&io, e, NULL, &why), YK_OK);
    memset(io.in[0].data, 0, (size_t)tensor_bytes(&io.in[0]));
    exec_cancel(e); /* nothing runs: nothing happens */
    pthread_create(&t, NULL, cancel_main, e);
    assert_int_equal(exec_run(e, NULL, io.in, io.out, 0, &why), YK_CANCELED);
    pthread_join(t, NULL);
    graphs_io_fini(&io);
    exec_close(e);
    graph_close(g);
}

static void set_of_backends(void **state)
{
    (void)state;
    struct backends b;
    struct yk_diag why = {""};
    assert_int_equal(backends_open("cuda", pool, &b, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "blas"));
    assert_int_equal(backends_open("", pool, &b, &why), YK_INVAL);
    assert_int_equal(backends_open("blas,,ref", pool, &b, &why), YK_INVAL);
    assert_int_equal(backends_open("ref,blas,blas", pool, &b, &why), YK_OK);
    assert_int_equal(b.n, 2);
    assert_string_equal(b.at[b.n - 1]->ops->name, "ref");
    backends_close(&b);
    assert_null(backend_find("nothing"));
    for (int i = 0; i < op_count(); i++) {
        struct node n = {.op = op_at(i)};
        if (n.op->flags & (OP_CONTROL | OP_VALUES)) /* the interpreter does them */
            continue;
        if (!ref_kernel(&n))
            print_error("no reference kernel for %s\n", op_at(i)->name);
        assert_non_null(ref_kernel(&n));
    }
}

struct profiled {
    int count, at_largest;
    const struct shapes *shapes; /* of the largest size; NULL: not looked at */
    const struct graph *g;
    int64_t room, largest;
    uint8_t seen[512];
    bool ordered;
    int64_t last_size;
};

static void on_entry(void *arg, const struct profile_entry *p)
{
    struct profiled *s = arg;
    s->count++;
    s->seen[p->node] = 1;
    assert_true(p->ms >= 0 && isfinite(p->ms));
    assert_non_null(strchr(p->form, '@'));
    s->ordered = s->ordered && p->size >= s->last_size;
    s->last_size = p->size;
    if (!s->shapes || p->size != s->largest)
        return;
    const struct node *n = &s->g->nodes[p->node]; /* what the node cannot do without fits */
    int64_t bytes = p->workspace_bytes + p->packed_bytes + shape_bytes(&s->shapes->of[n->out[0]]);
    for (int32_t i = 0; i < n->n_in; i++)
        bytes += s->g->values[n->in[i]].kind == VALUE_NODE ? shape_bytes(&s->shapes->of[n->in[i]]) : 0;
    assert_true(bytes <= s->room);
    s->at_largest++;
}

static void profiles_every_node(void **state)
{
    (void)state;
    struct graph *g = cnn();
    struct profiled s = {.ordered = true};
    struct yk_diag why = {""};
    int64_t sizes[] = {4, 1};
    volatile bool cancel = false;
    assert_int_equal(profile_graph(g, &backends, sizes, 2, NULL, false, 2000, 0, &cancel, on_entry, &s, &why), YK_OK);
    for (int32_t i = 0; i < g->n_nodes; i++)
        assert_true(s.seen[i]);
    assert_true(s.ordered && s.last_size == 4);
    assert_true(s.count >= 2 * g->n_nodes);
    struct profiled once = {.ordered = true};
    assert_int_equal(profile_graph(g, &backends, sizes, 2, NULL, false, 0, 0, &cancel, on_entry, &once, &why), YK_OK);
    assert_int_equal(once.last_size, 1);
    cancel = true;
    assert_int_equal(
        profile_graph(g, &backends, sizes, 2, NULL, false, 2000, 0, &cancel, on_entry, &once, &why), YK_CANCELED);
    double gflops, gbytes;
    for (int i = 0; i < backends.n; i++) {
        profile_device(backends.at[i], 256 << 10, &gflops, &gbytes); /* of little memory: smaller, and measured */
        assert_true(gflops > 0.001 && gbytes > 0.01);
        profile_device(backends.at[i], PROFILE_DEVICE_BYTES, &gflops, &gbytes);
        if (backends.at[i]->ops == &backend_blas)
            assert_true(gflops > 0.5);
        assert_true(gbytes > 0.1);
    }
    graph_close(g);
}

/* With little room every node has its times of the small size, and none is tried that takes more. */
static void profiles_within_its_room(void **state)
{
    (void)state;
    struct graph *g = cnn();
    struct shapes shapes;
    struct yk_diag why = {""};
    int64_t sizes[] = {1, 256}, big[4] = {256, 256, 256, 256}, largest = 0;
    assert_int_equal(shapes_infer(g, big, NULL, &shapes, &why), YK_OK);
    for (int32_t v = 0; v < g->n_values; v++)
        largest = YK_MAX(largest, g->values[v].kind == VALUE_NODE ? shape_bytes(&shapes.of[v]) : 0);
    struct profiled all = {.ordered = true, .g = g, .shapes = &shapes, .room = INT64_MAX, .largest = 256};
    struct profiled few = {.ordered = true, .g = g, .shapes = &shapes, .room = largest, .largest = 256};
    assert_int_equal(profile_graph(g, &backends, sizes, 2, NULL, false, 1e9, 0, NULL, on_entry, &all, &why), YK_OK);
    assert_int_equal(
        profile_graph(g, &backends, sizes, 2, NULL, false, 1e9, few.room, NULL, on_entry, &few, &why), YK_OK);
    assert_true(few.at_largest > 0 && few.at_largest < all.at_largest);
    for (int32_t i = 0; i < g->n_nodes; i++)
        assert_true(few.seen[i] && all.seen[i]);
    shapes_fini(&shapes);
    graph_close(g);
}

/* After exec_set_weights a stage answers as one that was opened with those weights; what did not change stays. */
static void variable_weights(void **state)
{
    (void)state;
    struct graph *g = cnn();
    struct yk_diag why = {""};
    struct backends *sets[] = {&backends, &mixed};
    int64_t sizes[1] = {5};
    struct yk_rng r;
    yk_rng_seed(&r, 3);
    for (int b = 0; b < 2; b++)
        for (int part = 0; part < 2; part++) {
            void **variable = calloc((size_t)g->n_values + 1, sizeof(*variable));
            uint8_t *changed = calloc((size_t)g->n_values + 1, 1);
            int n = 0;
            for (int32_t v = 0; v < g->n_values; v++)
                if (g->values[v].kind == VALUE_WEIGHT && g->values[v].dtype == DT_F32 && n++ >= 0) {
                    variable[v] = yk_try_aligned((size_t)g->values[v].bytes);
                    memcpy(variable[v], g->values[v].data, (size_t)g->values[v].bytes);
                }
            struct exec_config c = {.graph = g, .max_sizes = sizes, .backends = sets[b], .variable = variable};
            struct exec *e, *fresh;
            struct graphs_io io, want;
            assert_int_equal(exec_open(&c, &e, &why), YK_OK);
            assert_int_equal(graphs_io_init(&io, e, sizes, &why), YK_OK);
            graphs_fill(io.in[0].data, &io.in[0].shape, &r, false);
            assert_int_equal(exec_run(e, sizes, io.in, io.out, 0, &why), YK_OK);
            n = 0;
            for (int32_t v = 0; v < g->n_values; v++)
                if (variable[v] && (part == 0 || n++ % 2 == 0)) {
                    changed[v] = 1;
                    for (int64_t i = 0; i < g->values[v].bytes / 4; i++)
                        ((float *)variable[v])[i] *= 0.75f + 0.001f * (float)(i % 7);
                }
            assert_int_equal(exec_set_weights(e, part ? changed : NULL, &why), YK_OK);
            assert_int_equal(exec_run(e, sizes, io.in, io.out, 0, &why), YK_OK);
            assert_int_equal(exec_open(&c, &fresh, &why), YK_OK);
            assert_int_equal(graphs_io_init(&want, fresh, sizes, &why), YK_OK);
            memcpy(want.in[0].data, io.in[0].data, (size_t)tensor_bytes(&io.in[0]));
            assert_int_equal(exec_run(fresh, sizes, want.in, want.out, 0, &why), YK_OK);
            assert_memory_equal(io.out[0].data, want.out[0].data, (size_t)tensor_bytes(&io.out[0]));
            graphs_io_fini(&io);
            graphs_io_fini(&want);
            exec_close(e);
            exec_close(fresh);
            for (int32_t v = 0; v < g->n_values; v++)
                free(variable[v]);
            free(variable);
            free(changed);
        }
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_equals_whole),
        cmocka_unit_test(smaller_sizes_without_reload),
        cmocka_unit_test(holds_what_the_plan_says),
        cmocka_unit_test(backends_share_a_stage),
        cmocka_unit_test(views_at_the_border),
        cmocka_unit_test(weights_from_outside),
        cmocka_unit_test(variable_weights),
        cmocka_unit_test(refuses_what_does_not_fit),
        cmocka_unit_test(indices_out_of_range),
        cmocka_unit_test(traces_every_node),
        cmocka_unit_test(cancels),
        cmocka_unit_test(set_of_backends),
        cmocka_unit_test(profiles_every_node),
        cmocka_unit_test(profiles_within_its_room),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
