/* Backends from shared objects: what is no backend is refused by name, what answers wrongly or hangs never decides an
 * answer. The objects are made from tests/plugin_example. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log.h"
#include "common/passes.h"
#include "kernels/fold.h"
#include "kernels/plugin.h"
#include "kernels/plugin_view.h"
#include "kernels/profile.h"
#include "kernels/selftest.h"
#include "tests/graphs.h"
#include "tests/models.h"

#define CNN YOKE_SOURCE_DIR "/tests/data/fmnist_cnn.onnx"
#define OBJECT(name) YOKE_PLUGIN_DIR "/" name ".so"
#define SHORT_MS 2000 /* long enough for what does not hang */
#define LONG_MS 60000 /* never reached: a slow machine must not look like a hang */

static struct pool *pool;

static int setup(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    return pool_open(2, &pool, NULL);
}

static int teardown(void **state)
{
    (void)state;
    pool_close(pool);
    return 0;
}

/* ---- what is refused at once ---- */

static void refused(const char *spec, yk_err err, const char *const *parts)
{
    struct backends b;
    struct yk_diag why = {""};
    assert_int_equal(backends_open(spec, pool, &b, &why), err);
    for (; *parts; parts++)
        if (!strstr(why.text, *parts))
            fail_msg("'%s' is not in: %s", *parts, why.text);
}

#define REFUSED(spec, err, ...) refused(spec, err, (const char *const[]){__VA_ARGS__, NULL})

static void what_is_no_backend_is_refused_by_name(void **state)
{
    (void)state;
    REFUSED(OBJECT("other_abi"), YK_VERSION, "other_abi.so", "version 2", "wants version 1");
    REFUSED(OBJECT("no_entry"), YK_FORMAT, "no_entry.so", "yoke_backend_entry", "version 1");
    REFUSED(OBJECT("no_submit"), YK_FORMAT, "no_submit.so", "no submit");
    REFUSED(OBJECT("small_table"), YK_FORMAT, "small_table.so", "bytes", "at least");
    REFUSED(OBJECT("bad_name"), YK_FORMAT, "bad_name.so", "not-a-name", "letters and digits");
    REFUSED(OBJECT("own_name"), YK_EXISTS, "own_name.so", "'blas'");
    REFUSED(OBJECT("bad_isa"), YK_FORMAT, "bad_isa.so", "with space");
    REFUSED(OBJECT("no_device"), YK_UNSUPPORTED, "no_device.so", "there is no such device");
    REFUSED(OBJECT("is_not_there"), YK_NOTFOUND, "is_not_there.so");
    REFUSED(YOKE_PLUGIN_DIR "/", YK_INVAL, "not a file");
    REFUSED(CNN, YK_FORMAT, "cannot be loaded", "fmnist_cnn.onnx");
    REFUSED("blas," OBJECT("other_abi") ",ref", YK_VERSION, "other_abi.so");
    REFUSED("example.so", YK_INVAL, "example.so", "with a '/'");
    REFUSED(OBJECT("example") ",,", YK_INVAL, "empty");
}

static void two_of_one_name(void **state)
{
    struct backends b;
    struct yk_diag why = {""};
    (void)state;
    char *copy = strdup("/tmp/yoke-plugin-XXXXXX");
    int fd = mkstemp(copy);
    assert_true(fd >= 0);
    close(fd);
    unlink(copy);
    assert_int_equal(symlink(OBJECT("example"), copy), 0);
    char *spec = yk_xasprintf(OBJECT("example") ",%s", copy);
    assert_int_equal(backends_open(spec, pool, &b, &why), YK_EXISTS);
    assert_non_null(strstr(why.text, "'example'"));
    free(spec);
    unlink(copy);
    free(copy);
    /* The same path twice is one. */
    assert_int_equal(backends_open(OBJECT("example") "," OBJECT("example"), pool, &b, &why), YK_OK);
    assert_int_equal(b.n, 2);
    backends_close(&b);
}

/* ---- self-test ---- */

static void wrong_answers_are_refused_by_case(void **state)
{
    static const struct {
        const char *object, *part;
    } bad[] = {{OBJECT("wrong"), "relative difference from ref"}, {OBJECT("nan"), "NaN or infinity"},
        {OBJECT("fail"), "the example fails"}};
    (void)state;
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        struct backends b;
        struct backends_config c = {.timeout_ms = LONG_MS};
        assert_int_equal(backends_open_with(bad[i].object, &c, pool, &b, NULL), YK_OK);
        assert_int_equal(b.n, 1); /* ref */
        assert_int_equal(b.n_refused, 1);
        assert_false(b.refused[0].hung);
        assert_string_equal(b.refused[0].name, "example");
        if (!strstr(b.refused[0].text, bad[i].part) || !strstr(b.refused[0].text, "Conv 3x3"))
            fail_msg("%s", b.refused[0].text);
        backends_close(&b);
    }
}

static void a_hang_is_quarantined(void **state)
{
    static const char *const objects[] = {OBJECT("hang"), OBJECT("stuck")};
    (void)state;
    for (size_t i = 0; i < YK_COUNT(objects); i++) {
        struct backends b;
        struct backends_config c = {.timeout_ms = SHORT_MS};
        char *spec = yk_xasprintf("%s,blas", objects[i]);
        assert_int_equal(backends_open_with(spec, &c, pool, &b, NULL), YK_OK);
        assert_int_equal(b.n, 2);
        assert_string_equal(b.at[0]->ops->name, "blas");
        assert_int_equal(b.n_refused, 1);
        assert_true(b.refused[0].hung);
        assert_non_null(strstr(b.refused[0].text, "quarantined"));
        backends_close(&b);
        free(spec);
    }
}

static void the_example_passes(void **state)
{
    struct backends b;
    struct backends_config c = {.timeout_ms = LONG_MS};
    struct backend *one;
    int cases = 0;
    (void)state;
    assert_int_equal(plugin_open(OBJECT("example"), &c, pool, &one, NULL), YK_OK);
    assert_int_equal(selftest(one, pool, &cases, NULL), YK_OK);
    assert_true(cases >= 13 && cases <= selftest_count());
    assert_string_equal(one->ops->name, "example");
    assert_string_equal(one->ops->isa(one), "example-1.0");
    assert_true(one->ops->exact);
    one->ops->close(one);
    assert_int_equal(
        backends_open_with(OBJECT("twice") ",ref", &c, pool, &b, NULL), YK_OK); /* a second done is nothing */
    assert_int_equal(b.n, 2);
    backends_close(&b);
}

/* ---- at work ---- */

static struct graph *cnn(void)
{
    struct graph *g;
    assert_int_equal(onnx_import(CNN, &g, NULL, NULL), YK_OK);
    assert_int_equal(passes_infer(g, fold_eval, NULL, NULL), YK_OK);
    return g;
}

static int forms_of(struct exec *e, const struct graph *g, const char *isa)
{
    int n = 0;
    for (int32_t i = 0; i < g->n_nodes; i++)
        n += strstr(exec_form(e, i), isa) != NULL;
    return n;
}

/* Runs the CNN at batches 4, 2, 3, 4, ... with a backend that misbehaves from the given run on. What comes out is right
 * every time, or, where `some` is allowed, until the sampled check sees it. */
static void misbehaves(
    const char *fault, const char *object, const struct backends_config *c, const char *part, bool some)
{
    struct backends b, ref;
    struct graph *g = cnn();
    struct yk_diag why = {""};
    int64_t max = 4;
    setenv("EXAMPLE_FAULT", fault, 1);
    assert_int_equal(backends_open_with(object, c, pool, &b, NULL), YK_OK);
    unsetenv("EXAMPLE_FAULT");
    assert_int_equal(b.n, 2);
    assert_int_equal(backends_open("blas", pool, &ref, NULL), YK_OK);
    struct exec_config config = {.graph = g, .max_sizes = &max, .backends = &b};
    struct exec *e, *w;
    assert_int_equal(exec_open(&config, &e, &why), YK_OK);
    assert_int_equal(forms_of(e, g, "@example-1.0") + forms_of(e, g, "@fixed-1.0"), 4);
    config.backends = &ref;
    assert_int_equal(exec_open(&config, &w, &why), YK_OK);
    int wrong = 0;
    struct yk_rng r;
    yk_rng_seed(&r, 7);
    for (int i = 0; i < 16; i++) {
        int64_t n = i % 3 == 0 ? 4 : 1 + i % 3;
        struct graphs_io got, want;
        assert_int_equal(graphs_io_init(&got, e, &n, &why), YK_OK);
        assert_int_equal(graphs_io_init(&want, w, &n, &why), YK_OK);
        graphs_fill(got.in[0].data, &got.in[0].shape, &r, false);
        memcpy(want.in[0].data, got.in[0].data, (size_t)tensor_bytes(&got.in[0]));
        assert_int_equal(exec_run(w, &n, want.in, want.out, 0, &why), YK_OK);
        if (exec_run(e, &n, got.in, got.out, 0, &why))
            fail_msg("%s", why.text);
        bool right = tensor_relative(&got.out[0], &want.out[0]) <= 1e-5;
        assert_true(right || some);
        wrong += !right;
        if (!part)
            assert_false(backends_lost(b.at[0], NULL));
        if (backends_lost(b.at[0], NULL))
            some = false; /* from here on ref answers */
        graphs_io_fini(&got);
        graphs_io_fini(&want);
    }
    exec_close(e);
    if (part) {
        assert_true(backends_lost(b.at[0], &why));
        if (!strstr(why.text, part))
            fail_msg("'%s' is not in: %s", part, why.text);
        /* It claims nothing any more. */
        config.backends = &b;
        assert_int_equal(exec_open(&config, &e, &why), YK_OK);
        assert_int_equal(forms_of(e, g, "@example-1.0"), 0);
        exec_close(e);
    } else {
        assert_int_equal(wrong, 0);
    }
    exec_close(w);
    backends_close(&ref);
    backends_close(&b);
    graph_close(g);
}

static void well_behaved(void **state)
{
    struct backends_config often = {.timeout_ms = LONG_MS, .check_every = 1},
                           never = {.timeout_ms = LONG_MS, .check_every = -1};
    (void)state;
    misbehaves("", OBJECT("example"), &often, NULL, false);
    misbehaves("", OBJECT("example"), &never, NULL, false);
    misbehaves("", OBJECT("fixed"), &often, NULL, false);
}

static void nan_never_gets_out(void **state)
{
    struct backends_config never = {.timeout_ms = LONG_MS, .check_every = -1};
    (void)state;
    misbehaves("nan:45", OBJECT("example"), &never, "not finite where ref is", false);
}

static void sampled_checks_find_wrong_numbers(void **state)
{
    struct backends_config often = {.timeout_ms = LONG_MS, .check_every = 1},
                           some = {.timeout_ms = LONG_MS, .check_every = 5};
    (void)state;
    misbehaves("wrong:45", OBJECT("example"), &often, "is wrong (relative difference", false);
    misbehaves("wrong:45", OBJECT("example"), &some, "is wrong (relative difference", true);
}

static void failing_runs_are_answered(void **state)
{
    struct backends_config c = {.timeout_ms = LONG_MS};
    (void)state;
    misbehaves("fail:45", OBJECT("example"), &c, "3 runs in a row failed", false);
}

static void a_hang_at_work_is_answered(void **state)
{
    struct backends_config c = {.timeout_ms = SHORT_MS};
    (void)state;
    misbehaves("hang:45", OBJECT("example"), &c, "quarantined", false);
    misbehaves("stuck:45", OBJECT("example"), &c, "quarantined", false);
}

/* NaN that the model itself makes is an answer like another. */
static void nan_of_the_model_is_right(void **state)
{
    struct backends b;
    struct backends_config c = {.timeout_ms = LONG_MS};
    struct graph *g = graph_open(0);
    int64_t dims[2] = {-1, 8}, n = 3;
    (void)state;
    int32_t in[2] = {graphs_input(g, "a", DT_F32, 2, dims), graphs_input(g, "b", DT_F32, 2, dims)};
    graphs_output(g, graphs_node(g, "", "Add", "y", in, 2));
    assert_int_equal(backends_open_with(OBJECT("example"), &c, pool, &b, NULL), YK_OK);
    struct exec_config config = {.graph = g, .max_sizes = &n, .backends = &b};
    struct exec *e;
    struct graphs_io io;
    assert_int_equal(exec_open(&config, &e, NULL), YK_OK);
    assert_string_equal(exec_form(e, 0), "device@example-1.0");
    for (int i = 0; i < 5; i++) {
        assert_int_equal(graphs_io_init(&io, e, &n, NULL), YK_OK);
        for (int k = 0; k < 24; k++) {
            ((float *)io.in[0].data)[k] = k % 2 ? INFINITY : 1;
            ((float *)io.in[1].data)[k] = -INFINITY;
        }
        assert_int_equal(exec_run(e, &n, io.in, io.out, 0, NULL), YK_OK);
        assert_true(isnan(((float *)io.out[0].data)[1]) && isinf(((float *)io.out[0].data)[0]));
        graphs_io_fini(&io);
    }
    assert_false(backends_lost(b.at[0], NULL));
    exec_close(e);
    backends_close(&b);
    graph_close(g);
}

struct seen {
    int device, ref;
};

static void on_entry(void *arg, const struct profile_entry *e)
{
    struct seen *s = arg;
    s->device += !strcmp(e->form, "device@example-1.0");
    s->ref += !strcmp(e->form, "ref@generic");
}

static void profiles_name_its_forms(void **state)
{
    struct backends b;
    struct backends_config c = {.timeout_ms = LONG_MS};
    struct graph *g = cnn();
    struct seen seen = {0, 0};
    int64_t size = 2;
    (void)state;
    assert_int_equal(backends_open_with(OBJECT("example"), &c, pool, &b, NULL), YK_OK);
    assert_int_equal(profile_graph(g, &b, &size, 1, NULL, false, 1e9, 0, NULL, on_entry, &seen, NULL), YK_OK);
    assert_int_equal(seen.device, 4);
    plugin_take_out(b.at[0], "for a test");
    seen = (struct seen){0, 0};
    assert_int_equal(profile_graph(g, &b, &size, 1, NULL, false, 1e9, 0, NULL, on_entry, &seen, NULL), YK_OK);
    assert_int_equal(seen.device, 0);
    assert_int_equal(seen.ref, g->n_nodes);
    backends_close(&b);
    graph_close(g);
}

static void on_done(void *arg, yk_err err, const char *why)
{
    (void)why;
    *(yk_err *)arg = err;
}

static void new_weights(void **state)
{
    struct backends b;
    struct backends_config c = {.timeout_ms = LONG_MS, .check_every = 1};
    struct graph *g = graph_open(0);
    struct yk_rng r;
    int64_t dims[2] = {-1, 4}, w[2] = {4, 2}, n = 1;
    (void)state;
    yk_rng_seed(&r, 3);
    int32_t in[2] = {graphs_input(g, "x", DT_F32, 2, dims), graphs_weight(g, "w", DT_F32, 2, w, &r)};
    int32_t y = graphs_output(g, graphs_node(g, "", "MatMul", "y", in, 2));
    assert_int_equal(backends_open_with(OBJECT("example"), &c, pool, &b, NULL), YK_OK);
    struct shapes s;
    assert_int_equal(shapes_infer(g, &n, NULL, &s, NULL), YK_OK);
    float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, x[4] = {1, 1, 1, 1}, out[2];
    const void *weights[3] = {NULL};
    int32_t node = 0;
    const char *form = "device@example-1.0";
    weights[in[1]] = g->values[in[1]].data;
    struct backend_segment seg = {.graph = g,
        .max = &s,
        .nodes = &node,
        .n_nodes = 1,
        .forms = &form,
        .in = &in[0],
        .out = &y,
        .n_in = 1,
        .n_out = 1,
        .weights = weights,
        .weights_variable = true};
    void *handle;
    int64_t scratch, packed;
    const struct backend_ops *ops = b.at[0]->ops;
    assert_int_equal(ops->prepare(b.at[0], &seg, &handle, &scratch, &packed, NULL), YK_OK);
    assert_true(packed > 0);
    weights[in[1]] = a;
    assert_int_equal(ops->set_weights(b.at[0], handle, weights, NULL), YK_OK);
    struct backend_buffer bx = {.host = x, .bytes = sizeof(x)}, by = {.host = out, .bytes = sizeof(out)};
    struct backend_buffer *ins[1] = {&bx}, *outs[1] = {&by};
    void *mem = yk_try_aligned((size_t)scratch + 1);
    struct backend_run run = {.shapes = &s, .in = ins, .out = outs, .scratch = mem};
    yk_err got = YK_INTERNAL;
    ops->submit(b.at[0], handle, &run, on_done, &got);
    assert_int_equal(got, YK_OK);
    assert_true(out[0] == 16 && out[1] == 20);
    assert_false(backends_lost(b.at[0], NULL));
    ops->release(b.at[0], handle);
    free(mem);
    shapes_fini(&s);
    backends_close(&b);
    graph_close(g);
}

/* ---- parts ---- */

static void distances(void **state)
{
    float a[4] = {1, 2, 3, NAN}, b[4] = {1, 2, 4, NAN}, c[4] = {1, INFINITY, 4, NAN}, zero[2] = {0, 0},
          tiny[2] = {1e-9f, 0};
    uint16_t h[2] = {0x3c00, 0x4000}, k[2] = {0x3c00, 0x4001}; /* 1, 2 and 1, 2.002 */
    int8_t i[2] = {3, 100}, j[2] = {4, 100}, far[2] = {6, 100};
    uint8_t yes[2] = {1, 0}, no[2] = {0, 0};
    (void)state;
    assert_true(plugin_distance(DT_F32, a, a, 4) == 0);
    assert_true(fabs(plugin_distance(DT_F32, a, b, 4) - 0.25) < 1e-12);
    assert_true(isinf(plugin_distance(DT_F32, c, b, 4))); /* infinite where b is finite */
    assert_true(plugin_distance(DT_F32, b, c, 4) == 0);   /* where b is not, nothing is promised */
    assert_true(plugin_distance(DT_F32, tiny, zero, 2) <= PLUGIN_RELATIVE);
    assert_true(plugin_distance(DT_F16, k, h, 2) <= PLUGIN_RELATIVE);
    assert_true(plugin_distance(DT_I8, i, j, 2) == 0);
    assert_true(plugin_distance(DT_I8, far, i, 2) > PLUGIN_RELATIVE);
    assert_true(plugin_distance(DT_BOOL, yes, no, 2) > PLUGIN_RELATIVE);
}

static void a_view_says_what_the_graph_says(void **state)
{
    struct graph *g = cnn();
    struct shapes s;
    struct op_ctx *c = calloc(1, sizeof(*c));
    struct plugin_view v;
    int64_t n = 3;
    (void)state;
    assert_int_equal(shapes_infer(g, &n, NULL, &s, NULL), YK_OK);
    int convs = 0;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        shapes_node(g, &s, i, c);
        if (!plugin_view_offers(c))
            continue;
        assert_int_equal(plugin_view_node(c, &v, NULL), YK_OK);
        const struct yoke_node *y = v.segment.nodes[0];
        assert_string_equal(y->op, g->nodes[i].op->name);
        assert_string_equal(y->domain, g->nodes[i].op->domain);
        assert_int_equal(v.segment.n_nodes, 1);
        for (int k = 0; k < y->n_in; k++) {
            if (y->in[k] < 0)
                continue;
            const struct yoke_value *x = v.segment.values[y->in[k]];
            assert_string_equal(x->name, g->values[g->nodes[i].in[k]].name);
            assert_int_equal(x->shape->rank, c->in[k]->rank);
            assert_int_equal(x->shape->dims[0], c->in[k]->dims[0]);
            assert_int_equal(
                x->kind, g->values[g->nodes[i].in[k]].kind == VALUE_WEIGHT ? YOKE_VALUE_WEIGHT : YOKE_VALUE_INPUT);
        }
        assert_int_equal(v.segment.values[y->out[0]]->kind, YOKE_VALUE_OUTPUT);
        if (!strcmp(y->op, "FusedConv")) {
            convs++;
            const struct attr *pads = node_attr_ints(&g->nodes[i], "pads");
            for (int k = 0; k < y->n_attr; k++)
                if (!strcmp(y->attr[k]->name, "pads")) {
                    assert_int_equal(y->attr[k]->kind, YOKE_ATTR_INTS);
                    assert_int_equal(y->attr[k]->n, pads->n);
                    assert_memory_equal(y->attr[k]->ints, pads->ints, pads->n * sizeof(int64_t));
                }
        }
        plugin_view_fini(&v);
    }
    assert_int_equal(convs, 2);
    /* Empty tensors are not offered. */
    shapes_fini(&s);
    n = 0;
    assert_int_equal(shapes_infer(g, &n, NULL, &s, NULL), YK_OK);
    shapes_node(g, &s, 0, c);
    assert_false(plugin_view_offers(c));
    shapes_fini(&s);
    free(c);
    graph_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_no_backend_is_refused_by_name),
        cmocka_unit_test(two_of_one_name), cmocka_unit_test(wrong_answers_are_refused_by_case),
        cmocka_unit_test(a_hang_is_quarantined), cmocka_unit_test(the_example_passes), cmocka_unit_test(well_behaved),
        cmocka_unit_test(nan_never_gets_out), cmocka_unit_test(sampled_checks_find_wrong_numbers),
        cmocka_unit_test(failing_runs_are_answered), cmocka_unit_test(a_hang_at_work_is_answered),
        cmocka_unit_test(nan_of_the_model_is_right), cmocka_unit_test(profiles_name_its_forms),
        cmocka_unit_test(new_weights), cmocka_unit_test(distances), cmocka_unit_test(a_view_says_what_the_graph_says)};
    return cmocka_run_group_tests_name("plugin", tests, setup, teardown);
}
