/* Outputs that are taken as they are made: the same bits as in a buffer each, once, in the order of their nodes, with
 * backends that run nodes in steps, that have memory of their own, and that are done with a segment at once; and in no
 * more memory than the stage needs at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/exec.h"
#include "tests/graphs.h"

#define NODES 24
#define WIDTH 48
#define GRAPHS 12

static struct pool *pool;

static int setup(void **state)
{
    (void)state;
    return pool_open(2, &pool, NULL);
}

static int teardown(void **state)
{
    (void)state;
    pool_close(pool);
    return 0;
}

/* All values are outputs, all have the shape (N, WIDTH). */
static struct graph *random_graph(struct yk_rng *r)
{
    static const char *const ops[] = {"Relu", "Tanh", "Sigmoid", "Identity", "Softmax", "Add", "Mul", "Sub", "MatMul"};
    struct graph *g = graph_open(0);
    int32_t values[NODES + 1];
    values[0] = graphs_input(g, "x", DT_F32, 2, (const int64_t[]){-1, WIDTH});
    int32_t w = graphs_weight(g, "w", DT_F32, 2, (const int64_t[]){WIDTH, WIDTH}, r);
    for (int i = 1; i <= NODES; i++) {
        size_t op = yk_rng_below(r, YK_COUNT(ops));
        char name[16];
        int near = YK_MIN(i, 4);
        int32_t in[2] = {values[i - 1 - (int)yk_rng_below(r, (uint64_t)near)], w};
        if (op >= 5 && op < 8)
            in[1] = values[yk_rng_below(r, (uint64_t)i)];
        snprintf(name, sizeof name, "v%d", i);
        values[i] = graphs_node(g, "", ops[op], name, in, op >= 5 ? 2 : 1);
        graphs_output(g, values[i]);
    }
    return g;
}

struct taking {
    const struct graph *g;
    const struct memplan *plan;
    const struct graphs_io *truth; /* by position in the plan, as everywhere here */
    const struct graphs_io *run;
    int seen[GRAPHS_MAX_IO];
    int32_t last; /* node */
};

static void take(void *arg, int32_t out, const struct tensor *made)
{
    struct taking *t = arg;
    int32_t node = t->g->values[t->plan->out[out]].producer;
    assert_null(t->run->out[out].data);
    assert_true(node > t->last);
    t->last = node;
    t->seen[out]++;
    assert_true(shape_equal(&made->shape, &t->truth->out[out].shape));
    assert_memory_equal(made->data, t->truth->out[out].data, (size_t)tensor_bytes(made));
    /* Nobody reads it behind this but nodes of the stage; those that do may rely on it. */
}

static int64_t rounded(const struct tensor *x)
{
    return (tensor_bytes(x) + MEMPLAN_ALIGN - 1) / MEMPLAN_ALIGN * MEMPLAN_ALIGN;
}

static void run_one(struct graph *g, struct backends *b, int64_t n, struct yk_rng *r, bool steps)
{
    int64_t sizes[1] = {64}, now[1] = {n}, asked = 0;
    uint8_t taken[NODES + 8] = {0};
    struct yk_diag why = {""};
    struct taking t = {.g = g, .last = -1};
    struct exec_config c = {.graph = g, .max_sizes = sizes, .backends = b};
    struct exec *plain, *e;
    struct graphs_io truth, io;
    for (int32_t v = 0; v < g->n_values; v++)
        taken[v] = g->values[v].kind == VALUE_NODE && yk_rng_below(r, 3) != 0;
    if (exec_open(&c, &plain, &why))
        fail_msg("%s", why.text);
    c.taken = taken;
    c.take = take;
    c.take_arg = &t;
    if (exec_open(&c, &e, &why))
        fail_msg("%s", why.text);
    assert_int_equal(graphs_io_init(&truth, plain, now, &why), YK_OK);
    assert_int_equal(graphs_io_init(&io, e, now, &why), YK_OK);
    assert_int_equal(truth.n_out, io.n_out);
    t.plan = exec_plan(e);
    t.truth = &truth;
    t.run = &io;
    for (int again = 0; again < 2; again++) { /* not the same contents */
        graphs_fill(truth.in[0].data, &truth.in[0].shape, r, false);
        memcpy(io.in[0].data, truth.in[0].data, (size_t)tensor_bytes(&io.in[0]));
        for (int32_t i = 0; i < io.n_out; i++)
            if (io.out[i].data && taken[t.plan->out[i]] && yk_rng_below(r, 4) != 0) {
                free(io.out[i].data);
                io.out[i].data = NULL;
            }
        t.last = -1;
        assert_int_equal(exec_run(plain, now, truth.in, truth.out, 0, &why), YK_OK);
        if (exec_run(e, now, io.in, io.out, 0, &why))
            fail_msg("%s", why.text);
        for (int32_t i = 0; i < io.n_out; i++) {
            assert_int_equal(t.seen[i], io.out[i].data == NULL);
            t.seen[i] = 0;
            if (io.out[i].data)
                assert_memory_equal(io.out[i].data, truth.out[i].data, (size_t)tensor_bytes(&io.out[i]));
        }
    }
    for (int32_t i = 0; i < io.n_out && n == sizes[0]; i++)
        asked += taken[t.plan->out[i]] ? rounded(&truth.out[i]) : 0;
    if (n == sizes[0]) {
        const struct memplan *p = exec_plan(plain), *m = exec_plan(e);
        assert_int_equal(m->out_bytes, p->out_bytes - asked);
        assert_true(m->total_bytes <= p->total_bytes);
        if (steps) /* nothing beside the plan */
            assert_int_equal(exec_held_bytes(e) - m->arena_bytes, exec_held_bytes(plain) - p->arena_bytes);
    }
    graphs_io_fini(&truth);
    graphs_io_fini(&io);
    exec_close(plain);
    exec_close(e);
}

static void bits_of(const char *spec, int check_every, bool steps)
{
    struct backends b;
    struct backends_config config = {.check_every = check_every};
    struct yk_rng r;
    struct yk_diag why = {""};
    if (backends_open_with(spec, &config, pool, &b, &why))
        fail_msg("%s", why.text);
    for (uint64_t seed = 1; seed <= GRAPHS; seed++) {
        yk_rng_seed(&r, seed);
        struct graph *g = random_graph(&r);
        run_one(g, &b, seed % 3 ? 64 : 5, &r, steps);
        graph_close(g);
    }
    backends_close(&b);
}

static void in_steps(void **state)
{
    (void)state;
    bits_of("auto", 0, true);
    bits_of("ref", 0, true);
}

static void from_memory_of_its_own(void **state)
{
    (void)state;
    bits_of("fake,simd", 0, false);
    bits_of("fake", 0, false);
}

static void at_once(void **state)
{
    (void)state;
    bits_of(YOKE_PLUGIN_DIR "/example.so", -1, false);
    bits_of(YOKE_PLUGIN_DIR "/example.so", 1, false);
    bits_of("simd," YOKE_PLUGIN_DIR "/example.so", -1, false);
}

/* A long line of values, each needed by the next only: room for a few of them. */
static void takes_no_more_than_it_needs(void **state)
{
    (void)state;
    struct graph *g = graph_open(0);
    struct backends b;
    struct exec *e;
    struct yk_diag why = {""};
    uint8_t taken[64];
    int64_t sizes[1] = {4};
    memset(taken, 1, sizeof taken);
    int32_t v = graphs_input(g, "x", DT_F32, 2, (const int64_t[]){-1, 64});
    for (int i = 0; i < 40; i++) {
        char name[16];
        snprintf(name, sizeof name, "r%d", i);
        v = graphs_node(g, "", i % 2 ? "Softmax" : "Tanh", name, &v, 1);
        graphs_output(g, v);
    }
    assert_int_equal(backends_open("auto", pool, &b, &why), YK_OK);
    struct exec_config c = {.graph = g, .max_sizes = sizes, .backends = &b, .taken = taken, .take = take};
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    const struct memplan *m = exec_plan(e);
    assert_int_equal(m->n_out, 40);
    assert_int_equal(m->out_bytes, 0);
    assert_int_equal(m->workspace_offset, 2 * 4 * 64 * 4);
    exec_close(e);
    /* Only what is taken may be left without a buffer. */
    c.taken = NULL;
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    struct graphs_io io;
    assert_int_equal(graphs_io_init(&io, e, sizes, &why), YK_OK);
    graphs_fill(io.in[0].data, &io.in[0].shape, &(struct yk_rng){{1}}, false);
    free(io.out[7].data);
    io.out[7].data = NULL;
    assert_int_equal(exec_run(e, sizes, io.in, io.out, 0, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "has no aligned data"));
    graphs_io_fini(&io);
    exec_close(e);
    backends_close(&b);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_steps), cmocka_unit_test(from_memory_of_its_own),
        cmocka_unit_test(at_once), cmocka_unit_test(takes_no_more_than_it_needs)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
