/* Nodes whose shapes depend on data: limits, cancel, borders of stages, and what is refused by name. That results are
 * right is shown with ONNX's and PyTorch's data (conformance/test_onnx_node.c). */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/cut.h"
#include "common/passes.h"
#include "kernels/dynamic.h"
#include "kernels/exec.h"
#include "kernels/fold.h"
#include "kernels/profile.h"
#include "tests/unit/onnx_held.h"

static struct pool *pool;
static struct backends backends;

/* ---- building ---- */

struct sub { /* a subgraph attribute that is open */
    size_t attr, graph;
};

static struct sub sub_begin(struct yk_buf *b, const char *name)
{
    struct sub s;
    s.attr = pb_begin(b, 5);
    pb_put_text(b, 1, name);
    pb_put_varint(b, 20, 5);
    s.graph = pb_begin(b, 6);
    pb_put_text(b, 2, name);
    return s;
}

static void sub_end(struct yk_buf *b, struct sub s)
{
    pb_end(b, s.graph);
    pb_end(b, s.attr);
}

static void make_ints(struct yk_buf *b, const char *name, const int64_t *v, int64_t n, bool scalar)
{
    size_t t = make_tensor(b, 5, name, 7, &n, scalar ? 0 : 1);
    pb_put_bytes(b, 9, v, (size_t)n * sizeof *v);
    pb_end(b, t);
}

static void make_bool(struct yk_buf *b, const char *name, bool v)
{
    size_t t = make_tensor(b, 5, name, 9, NULL, 0);
    uint8_t byte = v;
    pb_put_bytes(b, 9, &byte, 1);
    pb_end(b, t);
}

/* Loop(trips, on) over a body that carries h = h + x of the graph around and stacks it. */
static size_t begin_sum(struct yk_buf *b, int64_t trips, const char *dims)
{
    size_t m = make_model(b, 16);
    make_value(b, 11, "x", 1, dims);
    make_ints(b, "trips", &trips, 1, true);
    make_bool(b, "on", true);
    size_t n = make_node(b, "Loop", "trips,on,x", "h,all");
    struct sub s = sub_begin(b, "body");
    make_value(b, 11, "i", 7, "");
    make_value(b, 11, "c", 9, "");
    make_value(b, 11, "h_in", 1, "-");
    make_plain(b, "Identity", "c", "c_out");
    make_plain(b, "Add", "h_in,x", "h_out");
    make_value(b, 12, "c_out", 9, "");
    make_value(b, 12, "h_out", 1, "-");
    make_value(b, 12, "h_out", 1, "-");
    sub_end(b, s);
    pb_end(b, n);
    return m;
}

/* ---- running ---- */

struct run {
    struct held h;
    struct exec *e;
    struct dyn_value *in[8], *out[8];
};

static yk_err open_run(struct run *r, struct yk_buf *b, struct exec_config c)
{
    memset(r, 0, sizeof *r);
    c.graph = accept(&r->h, b);
    c.backends = &backends;
    return exec_open(&c, &r->e, &why);
}

static yk_err go(struct run *r)
{
    return exec_run_values(r->e, NULL, r->in, r->out, 0, &why);
}

static void close_run(struct run *r)
{
    exec_close(r->e);
    for (int i = 0; i < 8; i++) {
        dyn_unref(r->in[i]);
        dyn_unref(r->out[i]); /* values outlive the exec */
    }
    drop(&r->h);
}

static struct dyn_value *tensor(enum dtype t, const int64_t *dims, int rank, double first)
{
    struct shape s = {.dtype = t, .rank = rank};
    struct dyn_value *v;
    for (int i = 0; i < rank; i++)
        s.dims[i] = dims[i];
    assert_int_equal(dyn_tensor(NULL, &s, &v, NULL), YK_OK);
    for (int64_t i = 0; i < shape_count(&s); i++)
        if (t == DT_F32)
            ((float *)v->tensor.data)[i] = (float)(first + (double)i);
        else if (t == DT_I64)
            ((int64_t *)v->tensor.data)[i] = (int64_t)first + i;
        else
            ((uint8_t *)v->tensor.data)[i] = first != 0;
    return v;
}
#define DIMS(...) ((const int64_t[]){__VA_ARGS__}), (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static float element(const struct dyn_value *v, int64_t i)
{
    assert_true(v->type == VALUE_TENSOR && v->tensor.shape.dtype == DT_F32 && i < tensor_count(&v->tensor));
    return ((const float *)v->tensor.data)[i];
}

/* ---- loops ---- */

static void loop_results(void **state)
{
    (void)state;
    for (int64_t trips = -1; trips <= 3; trips++) {
        struct yk_buf b = {0};
        struct run r;
        size_t m = begin_sum(&b, trips, "2");
        make_value(&b, 12, "h", 1, "-");
        make_value(&b, 12, "all", 1, "-");
        make_end(&b, m);
        assert_int_equal(open_run(&r, &b, (struct exec_config){0}), YK_OK);
        int64_t n = trips < 0 ? 0 : trips;
        /* trips and shapes are known, so the results are planned */
        const struct shapes *s = exec_max_shapes(r.e);
        const struct shape *all = &s->of[r.h.g->outputs[1]];
        assert_int_equal(s->n_dynamic, 1);
        assert_true(all->rank == 2 && all->dims[0] == n && all->dims[1] == 2);
        assert_int_equal(exec_plan(r.e)->n_out, 2);
        r.in[0] = tensor(DT_F32, DIMS(2), 1);
        for (int again = 0; again < 2; again++) {
            if (go(&r))
                fail_msg("%lld trips: %s", (long long)trips, why.text);
            assert_true(element(r.out[0], 1) == (float)(2 * (n + 1)));
            assert_int_equal(r.out[1]->tensor.shape.dims[0], n);
            if (n > 0)
                assert_true(element(r.out[1], 2 * (n - 1)) == (float)(n + 1));
            dyn_unref(r.out[0]);
            dyn_unref(r.out[1]);
            r.out[0] = r.out[1] = NULL;
        }
        close_run(&r);
    }
}

/* Loop without end: no trips, no condition. grows: a sequence gets a member each trip. */
static void make_endless(struct yk_buf *b, bool grows)
{
    size_t m = make_model(b, 16);
    make_value(b, 11, "x", 1, "64");
    if (grows)
        make_plain(b, "SequenceConstruct", "x", "s");
    size_t n = make_node(b, "Loop", grows ? ",,s" : ",,x", "y");
    struct sub s = sub_begin(b, "body");
    make_value(b, 11, "i", 7, "");
    make_value(b, 11, "c", 9, "");
    size_t in = pb_begin(b, 11); /* a name and no type */
    pb_put_text(b, 1, "v");
    pb_end(b, in);
    make_plain(b, "Identity", "c", "c_out");
    if (grows)
        make_plain(b, "SequenceInsert", "v,x", "v_out");
    else
        make_plain(b, "Relu", "v", "v_out");
    make_value(b, 12, "c_out", 9, "");
    size_t out = pb_begin(b, 12);
    pb_put_text(b, 1, "v_out");
    pb_end(b, out);
    sub_end(b, s);
    pb_end(b, n);
    if (grows)
        make_plain(b, "SequenceLength", "y", "z");
    make_value(b, 12, grows ? "z" : "y", grows ? 7 : 1, "-");
    make_end(b, m);
}

static atomic_bool returned;

static void *cancel_soon(void *arg)
{
    while (!atomic_load(&returned)) {
        exec_cancel(arg);
        usleep(1000);
    }
    return NULL;
}

static void endless_loop_is_canceled(void **state)
{
    (void)state;
    struct yk_buf b = {0};
    struct run r;
    pthread_t t;
    make_endless(&b, false);
    assert_int_equal(open_run(&r, &b, (struct exec_config){0}), YK_OK);
    r.in[0] = tensor(DT_F32, DIMS(64), 1);
    atomic_store(&returned, false);
    assert_int_equal(pthread_create(&t, NULL, cancel_soon, r.e), 0);
    assert_int_equal(go(&r), YK_CANCELED);
    atomic_store(&returned, true);
    pthread_join(t, NULL);
    close_run(&r);
}

static void endless_loop_hits_a_limit(void **state)
{
    (void)state;
    struct yk_buf b = {0};
    struct run r;
    make_endless(&b, false);
    assert_int_equal(open_run(&r, &b, (struct exec_config){.step_limit = 5000}), YK_OK);
    r.in[0] = tensor(DT_F32, DIMS(64), 1);
    assert_int_equal(go(&r), YK_LIMIT);
    assert_non_null(strstr(why.text, "step_limit"));
    assert_non_null(strstr(why.text, "(Loop): node"));
    close_run(&r);
    make_endless(&b, false);
    assert_int_equal(open_run(&r, &b, (struct exec_config){.time_limit_ms = 20}), YK_OK);
    r.in[0] = tensor(DT_F32, DIMS(64), 1);
    assert_int_equal(go(&r), YK_TIMEOUT);
    close_run(&r);
    make_endless(&b, true);
    assert_int_equal(open_run(&r, &b, (struct exec_config){.heap_limit = 1 << 20}), YK_OK);
    r.in[0] = tensor(DT_F32, DIMS(64), 1);
    for (int again = 0; again < 2; again++) { /* the heap is empty again after the error */
        assert_int_equal(go(&r), YK_LIMIT);
        assert_non_null(strstr(why.text, "1048576 (heap_limit)"));
        assert_true(exec_heap_peak(r.e) <= 1 << 20);
    }
    close_run(&r);
}

/* A trip count of which nobody has the memory: known before the run it is refused there, else at the heap's limit. */
static void huge_trip_count(void **state)
{
    (void)state;
    struct yk_buf b = {0};
    struct run r;
    size_t m = begin_sum(&b, INT64_MAX / 2, "1024");
    make_value(&b, 12, "all", 1, "-");
    make_end(&b, m);
    r.e = NULL;
    yk_err err = open_run(&r, &b, (struct exec_config){.heap_limit = 4 << 20});
    r.in[0] = tensor(DT_F32, DIMS(1024), 1);
    if (!err)
        err = go(&r);
    assert_int_equal(err, YK_LIMIT);
    assert_true(exec_heap_peak(r.e) <= 4 << 20);
    close_run(&r);
}

/* ---- If ---- */

static void branch(struct yk_buf *b, const char *name, const char *op, int outputs)
{
    struct sub s = sub_begin(b, name);
    make_plain(b, op, "x", "inner"); /* both branches use the same name, which is the outer output's too */
    for (int i = 0; i < outputs; i++)
        make_value(b, 12, "inner", 1, "-");
    sub_end(b, s);
}

static void make_if(struct yk_buf *b, const char *then_op, const char *else_op, int then_outputs)
{
    size_t m = make_model(b, 16);
    make_value(b, 11, "c", 9, "");
    make_value(b, 11, "x", 1, "2,3");
    size_t n = make_node(b, "If", "c", "inner");
    branch(b, "then_branch", then_op, then_outputs);
    branch(b, "else_branch", else_op, 1);
    pb_end(b, n);
    make_value(b, 12, "inner", 1, "-");
    make_end(b, m);
}

static void if_shapes(void **state)
{
    (void)state;
    struct yk_buf b = {0}, file = {0};
    struct run r;
    make_if(&b, "Neg", "Abs", 1); /* same shape in both: known */
    assert_int_equal(open_run(&r, &b, (struct exec_config){0}), YK_OK);
    assert_int_equal(exec_plan(r.e)->n_out, 1);
    assert_int_equal(onnx_export(r.h.g, &file, &why), YK_OK);
    for (int c = 0; c < 2; c++) {
        r.in[0] = tensor(DT_BOOL, NULL, 0, c);
        r.in[1] = tensor(DT_F32, DIMS(2, 3), -2);
        assert_int_equal(go(&r), YK_OK);
        assert_true(element(r.out[0], 5) == (float)(c ? -3 : 3));
        for (int i = 0; i < 2; i++) {
            dyn_unref(r.in[i]);
            r.in[i] = NULL;
        }
        dyn_unref(r.out[0]);
        r.out[0] = NULL;
    }
    close_run(&r);
    /* Its export means the same: no name hides another. */
    assert_int_equal(open_run(&r, &file, (struct exec_config){0}), YK_OK);
    r.in[0] = tensor(DT_BOOL, NULL, 0, 1);
    r.in[1] = tensor(DT_F32, DIMS(2, 3), -2);
    assert_int_equal(go(&r), YK_OK);
    assert_true(element(r.out[0], 0) == 2);
    close_run(&r);
    make_if(&b, "Transpose", "Abs", 1); /* another shape: known at the run */
    assert_int_equal(open_run(&r, &b, (struct exec_config){0}), YK_OK);
    assert_int_equal(exec_plan(r.e)->n_out, 0);
    r.in[0] = tensor(DT_BOOL, NULL, 0, 1);
    r.in[1] = tensor(DT_F32, DIMS(2, 3), -2);
    assert_int_equal(go(&r), YK_OK);
    assert_int_equal(r.out[0]->tensor.shape.dims[0], 3);
    struct tensor in[2] = {r.in[0]->tensor, r.in[1]->tensor}, out[1];
    assert_int_equal(exec_run(r.e, NULL, in, out, 0, &why), YK_UNSUPPORTED);
    assert_non_null(strstr(why.text, "'inner'"));
    close_run(&r);
}

static void refused_at_import(void **state)
{
    (void)state;
    struct yk_buf b = {0};
    make_if(&b, "Neg", "Abs", 2);
    refuse(&b, YK_FORMAT, "subgraph 'then_branch' has 2 outputs, wants 1");
    size_t m = make_model(&b, 16);
    make_value(&b, 11, "c", 9, "");
    size_t n = make_node(&b, "If", "c", "y");
    branch(&b, "then_branch", "Neg", 1);
    pb_end(&b, n);
    make_value(&b, 12, "y", 1, "-");
    make_end(&b, m);
    refuse(&b, YK_FORMAT, "reads 'x', which nobody makes");
    m = make_model(&b, 16);
    make_value(&b, 11, "x", 1, "3");
    n = make_node(&b, "Loop", ",,x", "y");
    branch(&b, "body", "Neg", 2);
    pb_end(&b, n);
    make_value(&b, 12, "y", 1, "-");
    make_end(&b, m);
    refuse(&b, YK_FORMAT, "subgraph 'body' has 0 inputs, wants 3");
    m = make_model(&b, 16);
    make_value(&b, 11, "x", 1, "3");
    n = make_node(&b, "Scan", "x", "y");
    make_attr_i(&b, "num_scan_inputs", 2);
    branch(&b, "body", "Neg", 1);
    pb_end(&b, n);
    make_value(&b, 12, "y", 1, "-");
    make_end(&b, m);
    refuse(&b, YK_FORMAT, "'num_scan_inputs' is 2 of 1 inputs");
    m = make_model(&b, 16);
    make_value(&b, 11, "c", 9, "");
    pb_end(&b, make_node(&b, "If", "c", "y"));
    make_value(&b, 12, "y", 1, "-");
    make_end(&b, m);
    refuse(&b, YK_FORMAT, "it has no subgraph 'then_branch'");
}

/* If(c): x + w[32] by a Loop of two trips inside the branch, else x; w lives in the body. known: c is a constant. */
static void make_deep_weight(struct yk_buf *b, bool known)
{
    float w[32];
    int64_t trips = 2;
    for (int i = 0; i < 32; i++)
        w[i] = (float)i;
    size_t m = make_model(b, 16);
    make_value(b, 11, "x", 1, "32");
    if (known)
        make_bool(b, "c", true);
    else
        make_value(b, 11, "c", 9, "");
    size_t n = make_node(b, "If", "c", "y");
    struct sub s = sub_begin(b, "then_branch");
    make_ints(b, "trips", &trips, 1, true);
    size_t loop = make_node(b, "Loop", "trips,,x", "h");
    struct sub body = sub_begin(b, "body");
    make_value(b, 11, "i", 7, "");
    make_value(b, 11, "on", 9, "");
    make_value(b, 11, "v", 1, "-");
    make_weight_f32(b, "w", 32, w);
    make_plain(b, "Identity", "on", "on_out");
    make_plain(b, "Add", "v,w", "v_out");
    make_value(b, 12, "on_out", 9, "");
    make_value(b, 12, "v_out", 1, "-");
    sub_end(b, body);
    pb_end(b, loop);
    make_value(b, 12, "h", 1, "-");
    sub_end(b, s);
    s = sub_begin(b, "else_branch");
    make_plain(b, "Identity", "x", "same");
    make_value(b, 12, "same", 1, "-");
    sub_end(b, s);
    pb_end(b, n);
    make_value(b, 12, "y", 1, "-");
    make_end(b, m);
}

static yk_err weight_of(void *arg, int32_t value, const void **data, struct yk_diag *w)
{
    (void)value;
    (void)w;
    *data = arg;
    return YK_OK;
}

/* The weight ends in the outermost graph, where a skeleton addresses it by hash; an If of a known condition is gone. */
static void passes_reach_inside(void **state)
{
    (void)state;
    for (int known = 0; known < 2; known++) {
        struct yk_buf b = {0}, skeleton = {0};
        struct held h, again;
        struct run r = {.e = NULL};
        make_deep_weight(&b, known);
        struct graph *g = accept(&h, &b);
        assert_int_equal(passes_infer(g, fold_eval, NULL, &why), YK_OK);
        assert_string_equal(g->nodes[0].op->name, known ? "Loop" : "If");
        assert_int_equal(g->n_nodes, 1);
        int32_t w = graph_find_value(g, "w");
        assert_true(w >= 0 && g->values[w].kind == VALUE_WEIGHT);
        assert_int_equal(onnx_export_skeleton(g, &skeleton, &why), YK_OK);
        assert_true(skeleton.len < 700);
        struct graph *back = accept(&again, &skeleton);
        assert_memory_equal(back->hash, g->hash, sizeof g->hash);
        assert_null(back->values[graph_find_value(back, "w")].data);
        struct exec_config c = {.graph = back,
            .backends = &backends,
            .weight = weight_of,
            .weight_arg = (void *)(uintptr_t)g->values[w].data};
        assert_int_equal(exec_open(&c, &r.e, &why), YK_OK);
        r.in[0] = tensor(DT_F32, DIMS(32), 1);
        r.in[1] = tensor(DT_BOOL, NULL, 0, 1);
        assert_int_equal(go(&r), YK_OK);
        assert_true(element(r.out[0], 31) == 32 + 2 * 31);
        r.h = again;
        close_run(&r);
        drop(&h);
    }
}

/* ---- sequences and optionals ---- */

/* One node over x float32[2,3], its sequence of two, and positions; expects an error at the run. */
static void fails(const char *op, const char *in, const char *text, int64_t at)
{
    struct yk_buf b = {0};
    struct run r;
    size_t m = make_model(&b, 16);
    make_value(&b, 11, "x", 1, "2,3");
    make_value(&b, 11, "k", 7, "2");
    make_ints(&b, "at", &at, 1, true);
    make_plain(&b, "SequenceConstruct", "x,x", "s");
    make_plain(&b, "Optional", "", "o");
    make_plain(&b, "Transpose", "x", "xt");
    make_plain(&b, "SequenceInsert", "s,xt", "mixed");
    size_t n = make_node(&b, op, in, "y");
    if (!strcmp(op, "ConcatFromSequence"))
        make_attr_i(&b, "axis", at);
    pb_end(&b, n);
    make_plain(&b, "Optional", "y", "z");
    make_value(&b, 12, "z", 1, "-");
    make_end(&b, m);
    assert_int_equal(open_run(&r, &b, (struct exec_config){0}), YK_OK);
    r.in[0] = tensor(DT_F32, DIMS(2, 3), 0);
    r.in[1] = tensor(DT_I64, DIMS(2), 0);
    yk_err err = go(&r);
    if (err != YK_INVAL || !strstr(why.text, text))
        fail_msg("%s: %s: %s", op, yk_err_name(err), why.text);
    close_run(&r);
}

static void bad_values(void **state)
{
    (void)state;
    fails("SequenceAt", "s,at", "position 2 is outside a sequence of 2 places", 2);
    fails("SequenceAt", "s,at", "position -3 is outside", -3);
    fails("SequenceAt", "s,k", "wants one integer", 0);
    fails("SequenceAt", "x,at", "is no sequence: float32[2,3]", 0);
    fails("SequenceErase", "s,at", "position 5 is outside", 5);
    fails("SequenceInsert", "s,x,at", "position 3 is outside", 3);
    fails("SequenceInsert", "s,k", "int64[2] cannot be a member of a sequence of float32", 0);
    fails("SequenceInsert", "s,s", "cannot be a member", 0);
    fails("SequenceConstruct", "x,k", "cannot be a member", 0);
    fails("SequenceLength", "o", "is no sequence: optional, empty", 0);
    fails("ConcatFromSequence", "mixed", "member 2 is float32[3,2]", 0);
    fails("ConcatFromSequence", "s", "axis", 2);
    fails("SplitToSequence", "x,k", "1 elements", 0); /* 0 + 1 of 2 */
    fails("SplitToSequence", "x,at", "the split is 0", 0);
    fails("SplitToSequence", "s", "is no tensor: sequence of 2", 0);
    fails("OptionalGetElement", "o", "the optional is empty", 0);
    fails("Optional", "o", "cannot hold an optional", 0);
    fails("Relu", "s", "is no tensor: sequence of 2", 0);
    fails("Add", "x,o", "is no tensor: optional, empty", 0);
}

/* ---- borders ---- */

/* x -> Relu -> NonZero -> Cast -> ReduceSum (a known shape again) -> Neg. */
static void make_island(struct yk_buf *b)
{
    size_t m = make_model(b, 16);
    make_value(b, 11, "x", 1, "8");
    make_ints(b, "one", (const int64_t[]){1}, 1, false);
    make_plain(b, "Relu", "x", "a");
    make_plain(b, "NonZero", "a", "nz");
    size_t n = make_node(b, "Cast", "nz", "f");
    make_attr_i(b, "to", 1);
    pb_end(b, n);
    n = make_node(b, "ReduceSum", "f", "sum");
    make_attr_i(b, "keepdims", 0);
    pb_end(b, n);
    make_plain(b, "Reshape", "sum,one", "flat");
    make_plain(b, "Add", "flat,a", "y");
    make_value(b, 12, "y", 1, "-");
    make_end(b, m);
}

static void dynamic_values_stay_inside(void **state)
{
    (void)state;
    struct yk_buf b = {0};
    struct held h;
    struct shapes s;
    struct cuts cuts;
    struct cut_edges edges;
    make_island(&b);
    struct graph *g = accept(&h, &b);
    assert_int_equal(shapes_infer(g, NULL, NULL, &s, &why), YK_OK);
    assert_true(s.n_dynamic > 0 && !shapes_has(&s, graph_find_value(g, "nz")));
    assert_int_equal(cut_all(g, &s, &cuts, &why), YK_OK);
    assert_false(cuts.at[1].forbidden); /* behind Relu */
    assert_true(cuts.at[2].forbidden);  /* behind NonZero */
    int32_t stage[8] = {0};
    for (int32_t i = 0; i < g->n_nodes; i++)
        stage[i] = i >= 2;
    assert_int_equal(cut_check(g, &s, stage, 2, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "'nz'"));
    assert_int_equal(cut_edges_find(g, &s, stage, 2, &edges, &why), YK_INVAL);
    assert_non_null(strstr(why.text, "'nz'"));
    uint8_t in_stage[8] = {1, 1};
    struct exec *e;
    struct exec_config c = {.graph = g, .in_stage = in_stage, .backends = &backends};
    assert_int_equal(exec_open(&c, &e, &why), YK_UNSUPPORTED);
    assert_non_null(strstr(why.text, "'nz'"));
    /* A graph output of such a size goes to the source, with bytes that nobody knows. */
    for (int32_t i = 0; i < g->n_nodes; i++)
        stage[i] = 0;
    g->outputs[0] = graph_find_value(g, "f");
    assert_int_equal(cut_edges_find(g, &s, stage, 1, &edges, &why), YK_OK);
    assert_int_equal(edges.n, 2);
    assert_int_equal(edges.at[1].to, -1);
    assert_int_equal(edges.at[1].values[0], g->outputs[0]);
    assert_int_equal(edges.at[1].bytes, 0);
    cut_edges_fini(&edges);
    cuts_fini(&cuts);
    shapes_fini(&s);
    drop(&h);
}

static void forms(void **state)
{
    (void)state;
    struct yk_buf b = {0};
    struct held h;
    struct exec *e;
    const char *forms[8] = {NULL};
    make_island(&b);
    struct graph *g = accept(&h, &b);
    struct exec_config c = {.graph = g, .backends = &backends, .forms = forms};
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    assert_true(strncmp(exec_form(e, 1), "dynamic@", 8) == 0);
    char mine[BACKEND_FORM_MAX];
    strcpy(mine, exec_form(e, 1));
    exec_close(e);
    for (int32_t i = 0; i < g->n_nodes; i++)
        forms[i] = i == 0 ? NULL : "dynamic@generic";
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    exec_close(e);
    forms[2] = "dynamic@nowhere";
    assert_int_equal(exec_open(&c, &e, &why), YK_UNSUPPORTED);
    assert_non_null(strstr(why.text, "dynamic@nowhere"));
    forms[2] = mine; /* each node may have its own */
    assert_int_equal(exec_open(&c, &e, &why), YK_OK);
    assert_string_equal(exec_form(e, 1), "dynamic@generic");
    assert_string_equal(exec_form(e, 2), mine);
    exec_close(e);
    drop(&h);
}

struct seen {
    int generic[8], own[8];
};

static void on_profile(void *arg, const struct profile_entry *p)
{
    struct seen *s = arg;
    assert_true(p->ms >= 0 && p->node < 8);
    if (!strcmp(p->form, DYNAMIC_GENERIC))
        s->generic[p->node]++;
    else
        s->own[p->node]++;
}

/* Every node gets times; those that depend on data in the form that every machine has, and in this one's. */
static void profiles(void **state)
{
    (void)state;
    struct yk_buf b = {0};
    struct held h;
    struct seen seen = {{0}, {0}};
    volatile bool cancel = false;
    int64_t size = 1;
    make_island(&b);
    struct graph *g = accept(&h, &b);
    assert_int_equal(
        profile_graph(g, &backends, &size, 1, NULL, false, 2000, 0, &cancel, on_profile, &seen, &why), YK_OK);
    assert_true(!seen.generic[0] && seen.own[0]);
    for (int32_t i = 1; i < g->n_nodes; i++)
        assert_true(seen.generic[i] + seen.own[i] > 0);
    assert_true(seen.generic[1] == 1 && seen.own[1] <= 1);
    drop(&h);
    make_endless(&b, true); /* ends at the profile's limits, without a time */
    g = accept(&h, &b);
    memset(&seen, 0, sizeof seen);
    assert_int_equal(
        profile_graph(g, &backends, &size, 1, NULL, false, 2000, 0, &cancel, on_profile, &seen, &why), YK_OK);
    assert_int_equal(seen.generic[1], 1);
    drop(&h);
}

/* ---- functions ---- */

struct fn {
    size_t at;
};

static struct fn fn_begin(struct yk_buf *b, const char *name, const char *in, const char *out)
{
    struct fn f = {pb_begin(b, 25)};
    pb_put_text(b, 1, name);
    make_names(b, 4, in);
    make_names(b, 5, out);
    pb_put_text(b, 10, "mine");
    return f;
}

/* A node of the body; ref: attribute and the function's name for it, or NULL. */
static void fn_node(struct yk_buf *b, const char *domain, const char *op, const char *in, const char *out,
    const char *attr, const char *ref, int type)
{
    size_t n = pb_begin(b, 7);
    make_names(b, 1, in);
    make_names(b, 2, out);
    pb_put_text(b, 4, op);
    pb_put_text(b, 7, domain);
    if (attr) {
        size_t a = pb_begin(b, 5);
        pb_put_text(b, 1, attr);
        pb_put_text(b, 21, ref);
        pb_put_varint(b, 20, (uint64_t)type);
        pb_end(b, a);
    }
    pb_end(b, n);
}

static void call(struct yk_buf *b, const char *op, const char *in, const char *out, float alpha)
{
    size_t n = make_node(b, op, in, out);
    pb_put_text(b, 7, "mine");
    if (alpha >= 0)
        make_attr_f(b, "alpha", alpha);
    pb_end(b, n);
}

static size_t begin_calls(struct yk_buf *b)
{
    size_t m = make_model(b, 16);
    make_opset(b, "mine", 1);
    return m;
}

static void functions(void **state)
{
    (void)state;
    struct yk_buf b = {0};
    struct run r;
    pb_put_varint(&b, 1, 8);
    make_opset(&b, "", 16);
    make_opset(&b, "mine", 1);
    size_t m = pb_begin(&b, 7);
    make_value(&b, 11, "x", 1, "2");
    call(&b, "Leak", "x", "t,u", 0.5f); /* t = leaky(x), u = x; its inner names are used outside too */
    call(&b, "Leak", "t,_", "v", -1);   /* alpha by default: 0.25 */
    call(&b, "Leak", "x,t", "w", 0);    /* the optional input: + t */
    make_plain(&b, "Sum", "t,u,v,w", "y");
    make_value(&b, 12, "y", 1, "-");
    make_end(&b, m);
    struct fn f = fn_begin(&b, "Leak", "p,q", "t,same");
    size_t d = pb_begin(&b, 11); /* a default */
    pb_put_text(&b, 1, "alpha");
    pb_put_f32(&b, 2, 0.25f);
    pb_put_varint(&b, 20, 1);
    pb_end(&b, d);
    fn_node(&b, "", "LeakyRelu", "p", "x", "alpha", "alpha", 1);
    fn_node(&b, "", "Sum", "x", "t", NULL, NULL, 0);
    fn_node(&b, "", "Identity", "p", "same", NULL, NULL, 0);
    pb_end(&b, f.at);
    assert_int_equal(open_run(&r, &b, (struct exec_config){0}), YK_OK);
    r.in[0] = tensor(DT_F32, DIMS(2), -4);
    assert_int_equal(go(&r), YK_OK);
    /* t = -2, u = -4, v = -0.5, w = 0 */
    assert_true(element(r.out[0], 0) == -6.5f);
    close_run(&r);
}

static void bad_functions(void **state)
{
    (void)state;
    struct yk_buf b = {0};
    size_t m = begin_calls(&b);
    make_value(&b, 11, "x", 1, "2");
    call(&b, "A", "x", "y", -1);
    make_value(&b, 12, "y", 1, "-");
    make_end(&b, m);
    struct fn f = fn_begin(&b, "A", "p", "q");
    fn_node(&b, "mine", "B", "p", "q", NULL, NULL, 0);
    pb_end(&b, f.at);
    f = fn_begin(&b, "B", "p", "q");
    fn_node(&b, "mine", "A", "p", "q", NULL, NULL, 0);
    pb_end(&b, f.at);
    refuse(&b, YK_FORMAT, "node 0 '' (B): node 0 '' (A): the function calls itself");

    /* 2^30 nodes out of 30 functions */
    m = begin_calls(&b);
    make_value(&b, 11, "x", 1, "2");
    call(&b, "F0", "x", "y", -1);
    make_value(&b, 12, "y", 1, "-");
    make_end(&b, m);
    for (int i = 0; i < 15; i++) {
        char name[16], next[16];
        snprintf(name, sizeof name, "F%d", i);
        snprintf(next, sizeof next, "F%d", i + 1);
        f = fn_begin(&b, name, "p", "q");
        for (int k = 0; k < 4; k++) {
            char from[16], to[16];
            snprintf(from, sizeof from, k ? "v%d" : "p", k);
            snprintf(to, sizeof to, k < 3 ? "v%d" : "q", k + 1);
            fn_node(&b, i < 14 ? "mine" : "", i < 14 ? next : "Relu", from, to, NULL, NULL, 0);
        }
        pb_end(&b, f.at);
    }
    struct held h;
    yk_err err = load(&h, &b);
    assert_true(err == YK_LIMIT || err == YK_NOMEM);
    drop(&h);

    static const struct {
        const char *in, *out, *attr;
        int type;
        const char *text;
    } bad[] = {
        {"p,x", "q", NULL, 0, "reads 'x', which nobody makes"}, /* a function sees nothing around it */
        {"p", "r", NULL, 0, "no node of the function makes its output 'q'"},
        {"p", "p", NULL, 0, "value 'p' is defined twice"},
        {"p", "q", "alpha", 2, "another type"},
    };
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        m = begin_calls(&b);
        make_value(&b, 11, "x", 1, "2");
        call(&b, "A", "x", "y", 1);
        make_value(&b, 12, "y", 1, "-");
        make_end(&b, m);
        f = fn_begin(&b, "A", "p", "q");
        fn_node(&b, "", i == 0 ? "Add" : "LeakyRelu", bad[i].in, bad[i].out, bad[i].attr, "alpha", bad[i].type);
        pb_end(&b, f.at);
        refuse(&b, YK_FORMAT, bad[i].text);
    }
    m = begin_calls(&b);
    make_value(&b, 11, "x", 1, "2");
    call(&b, "A", "x,x", "y", 1);
    make_value(&b, 12, "y", 1, "-");
    make_end(&b, m);
    f = fn_begin(&b, "A", "p", "q");
    fn_node(&b, "", "Relu", "p", "q", NULL, NULL, 0);
    pb_end(&b, f.at);
    refuse(&b, YK_FORMAT, "has 2 inputs, the function takes 1");
}

static int setup(void **state)
{
    (void)state;
    return pool_open(2, &pool, NULL) || backends_open("auto", pool, &backends, NULL);
}

static int teardown(void **state)
{
    (void)state;
    backends_close(&backends);
    pool_close(pool);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loop_results),
        cmocka_unit_test(endless_loop_is_canceled),
        cmocka_unit_test(endless_loop_hits_a_limit),
        cmocka_unit_test(huge_trip_count),
        cmocka_unit_test(if_shapes),
        cmocka_unit_test(refused_at_import),
        cmocka_unit_test(passes_reach_inside),
        cmocka_unit_test(bad_values),
        cmocka_unit_test(dynamic_values_stay_inside),
        cmocka_unit_test(forms),
        cmocka_unit_test(profiles),
        cmocka_unit_test(functions),
        cmocka_unit_test(bad_functions),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
