/* Whole models against PyTorch: outputs within 1e-5 relative of the same net in f64 (PyTorch's own f32 is up to 6e-6
 * away from it), as imported and after the passes. The Fashion-MNIST net
 * is always there; the golden models (tests/golden/make_models.py) are in the folder that YOKE_MODELS names.
 * YOKE_MODELS_SIZE=64 or 224 takes only the image models of that size.
 * Cut in two anywhere, a model has the bits of the whole: seeded cuts of each, all of them with YOKE_ALL_CUTS=1. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/passes.h"
#include "kernels/fold.h"
#include "kernels/simd_isa.h"
#include "tests/graphs.h"
#include "tests/models.h"

#define BOUND 1e-5

/* Relative error of a model over the samples of x.npy, one exec at the whole batch. */
static double model_error(
    const char *onnx, const char *x_path, const char *y_path, int64_t n, bool passes, const char *spec, int32_t *nodes)
{
    struct yk_diag why = {""};
    struct graph *g = NULL;
    struct pool *pool = NULL;
    struct backends b = {.n = 0};
    struct exec *e = NULL;
    int64_t nx = 0, ny = 0, count = 0, sizes[8] = {n, n, n, n, n, n, n, n};
    float *x = models_npy(x_path, &nx), *y = models_npy(y_path, &ny), *got = NULL;
    double error = 1e9;
    assert_non_null(x);
    assert_non_null(y);
    yk_err err = onnx_import(onnx, &g, NULL, &why);
    if (!err && passes)
        err = passes_infer(g, fold_eval, NULL, &why);
    if (!err)
        err = pool_open(2, &pool, &why);
    if (!err)
        err = backends_open(spec, pool, &b, &why);
    struct exec_config c = {.graph = g, .max_sizes = sizes, .backends = &b};
    if (!err)
        err = exec_open(&c, &e, &why);
    if (!err)
        err = models_run(e, g, n, x, &got, &count, &why);
    if (err)
        print_error("%s: %s\n", onnx, why.text);
    else if (count != ny)
        print_error("%s: %lld values where PyTorch has %lld\n", onnx, (long long)count, (long long)ny);
    else
        error = models_relative(got, y, count);
    if (g)
        *nodes = g->n_nodes;
    free(got);
    free(x);
    free(y);
    exec_close(e);
    backends_close(&b);
    pool_close(pool);
    graph_close(g);
    return error;
}

static void fashion_mnist(void **state)
{
    (void)state;
    static const char dir[] = YOKE_SOURCE_DIR "/tests/";
    char onnx[512], x[512], y[512];
    int64_t nx = 0;
    snprintf(onnx, sizeof(onnx), "%sdata/fmnist_cnn.onnx", dir);
    snprintf(x, sizeof(x), "%sgolden/fmnist_x.npy", dir);
    snprintf(y, sizeof(y), "%sgolden/fmnist_y.npy", dir);
    float *data = models_npy(x, &nx);
    assert_non_null(data);
    free(data);
    static const char *const specs[] = {"auto", "ref", "simd", "fake"};
    for (int passes = 0; passes < 2; passes++)
        for (size_t i = 0; i < YK_COUNT(specs); i++) {
            int32_t nodes = 0;
            double error = model_error(onnx, x, y, nx / (28 * 28), passes, specs[i], &nodes);
            print_message("fmnist_cnn %s, %d nodes: %.1e\n", specs[i], (int)nodes, error);
            assert_true(error <= BOUND);
        }
}

/* The form of a product for every convolution that has a Winograd form; the texts are freed by the caller. */
static yk_err direct_forms(const struct exec *e, const struct graph *g, char **text, int *changed)
{
    *changed = 0;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const char *form = exec_form(e, i), *isa = form ? strchr(form, '@') : NULL;
        text[i] = malloc(BACKEND_FORM_MAX);
        if (!text[i] || !isa)
            return YK_NOMEM;
        bool winograd = strncmp(form, "conv.wino", 9) == 0;
        snprintf(text[i], BACKEND_FORM_MAX, winograd ? "conv.gemm%s" : "%s", winograd ? isa : form);
        *changed += winograd;
    }
    return YK_OK;
}

/* sum (a - b)^2 / sum b^2 of ResNet-34 against the same net in f64, with the forms of this machine and without Winograd
 * ones; *winograd: how many convolutions have them. */
static void resnet34_errors(const char *folder, double *with, double *without, int *winograd)
{
    char path[3][700];
    static const char *const ends[] = {"onnx", "x.npy", "y64.npy"};
    struct yk_diag why = {""};
    struct graph *g;
    struct pool *pool;
    struct backends b;
    int64_t nx = 0, ny = 0, count = 0, sizes[8] = {2, 2, 2, 2, 2, 2, 2, 2};
    for (int k = 0; k < 3; k++)
        snprintf(path[k], sizeof(path[k]), "%.400s/resnet34_bn_224.%s", folder, ends[k]);
    float *x = models_npy(path[1], &nx), *y = models_npy(path[2], &ny);
    assert_non_null(x);
    assert_non_null(y);
    assert_int_equal(onnx_import(path[0], &g, NULL, &why), YK_OK);
    assert_int_equal(passes_infer(g, fold_eval, NULL, &why), YK_OK);
    assert_int_equal(pool_open(2, &pool, &why), YK_OK);
    assert_int_equal(backends_open("auto", pool, &b, &why), YK_OK);
    char **text = calloc((size_t)g->n_nodes, sizeof(*text));
    assert_non_null(text);
    for (int pass = 0; pass < 2; pass++) {
        struct exec_config c = {
            .graph = g, .max_sizes = sizes, .backends = &b, .forms = pass ? (const char *const *)text : NULL};
        struct exec *e;
        float *got = NULL;
        yk_err err = exec_open(&c, &e, &why);
        if (err || (err = models_run(e, g, 2, x, &got, &count, &why)))
            print_error("%s: %s\n", path[0], why.text);
        assert_int_equal(err, YK_OK);
        assert_int_equal(count, ny);
        double diff = 0, power = 0;
        for (int64_t i = 0; i < count; i++) {
            diff += ((double)got[i] - (double)y[i]) * ((double)got[i] - (double)y[i]);
            power += (double)y[i] * (double)y[i];
        }
        *(pass ? without : with) = diff / power;
        if (pass == 0)
            assert_int_equal(direct_forms(e, g, text, winograd), YK_OK);
        exec_close(e);
        free(got);
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        free(text[i]);
    free(text);
    free(x);
    free(y);
    backends_close(&b);
    pool_close(pool);
    graph_close(g);
}

static void accuracy_of_resnet34(void **state)
{
    (void)state;
    const char *folder = getenv("YOKE_MODELS");
    double with, without;
    int winograd;
    if (!folder) {
        print_message("YOKE_MODELS names no folder with golden models: skipped\n");
        skip();
    }
    resnet34_errors(folder, &with, &without, &winograd);
    print_message(
        "ResNet-34 against f64: NMSE %.2e with Winograd in %d convolutions, %.2e without\n", with, winograd, without);
    /* A set without a fused multiply-add rounds each term twice. */
    double looser = strcmp(simd_isa_best()->bits, "fma") ? 4 : 1;
    assert_true(with <= 1e-11 * looser);
    assert_true(without <= 1e-12 * looser);
}

static int onnx_files(const struct dirent *d)
{
    const char *dot = strrchr(d->d_name, '.'), *size = getenv("YOKE_MODELS_SIZE");
    if (!dot || strcmp(dot, ".onnx"))
        return 0;
    bool image = strstr(d->d_name, "_64.") || strstr(d->d_name, "_224.");
    char want[16];
    snprintf(want, sizeof(want), "_%.8s.", size ? size : "");
    return !size || !image || strstr(d->d_name, want);
}

static void golden(void **state)
{
    (void)state;
    const char *folder = getenv("YOKE_MODELS");
    struct dirent **names;
    int n = folder ? scandir(folder, &names, onnx_files, alphasort) : 0;
    if (n <= 0) {
        print_message("YOKE_MODELS names no folder with golden models: skipped\n");
        skip();
    }
    int bad = 0;
    for (int i = 0; i < n; i++) {
        char path[3][700];
        static const char *const ends[] = {"onnx", "x.npy", "y64.npy"};
        int stem = (int)(strrchr(names[i]->d_name, '.') - names[i]->d_name);
        for (int k = 0; k < 3; k++)
            snprintf(path[k], sizeof(path[k]), "%.400s/%.*s.%s", folder, YK_MIN(stem, 200), names[i]->d_name, ends[k]);
        for (int passes = 0; passes < 2; passes++) {
            int32_t nodes = 0;
            double error = model_error(path[0], path[1], path[2], 2, passes, "auto", &nodes);
            print_message("%.*s %s, %d nodes: %.1e\n", stem, names[i]->d_name, passes ? "after passes" : "as imported",
                (int)nodes, error);
            bad += !(error <= BOUND);
        }
        free(names[i]);
    }
    free(names);
    assert_int_equal(bad, 0);
}

/* The stage [first, last) at batch n; inputs by value id from `have`, outputs put there. */
static yk_err run_stage(const struct graph *g, struct backends *b, int32_t first, int32_t last, int64_t n,
    struct tensor *have, struct yk_diag *why)
{
    uint8_t *stage = calloc((size_t)g->n_nodes + 1, 1);
    int64_t sizes[8] = {n, n, n, n, n, n, n, n};
    struct graphs_io io = {.n_in = 0};
    struct exec *e = NULL;
    for (int32_t i = first; i < last; i++)
        stage[i] = 1;
    struct exec_config c = {.graph = g, .in_stage = stage, .max_sizes = sizes, .backends = b};
    yk_err err = exec_open(&c, &e, why);
    if (!err)
        err = graphs_io_init(&io, e, sizes, why);
    for (int32_t i = 0; !err && i < io.n_in; i++) {
        const struct tensor *t = &have[exec_plan(e)->in[i]];
        if (!t->data)
            err = yk_fail(why, YK_INTERNAL, "'%s' did not cross", g->values[exec_plan(e)->in[i]].name);
        else
            memcpy(io.in[i].data, t->data, (size_t)tensor_bytes(t));
    }
    if (!err)
        err = exec_run(e, sizes, io.in, io.out, 0, why);
    for (int32_t i = 0; !err && i < io.n_out; i++) {
        have[exec_plan(e)->out[i]] = io.out[i];
        io.out[i].data = NULL;
    }
    graphs_io_fini(&io);
    exec_close(e);
    free(stage);
    return err;
}

/* Data of the first graph output after running [0, cut) and [cut, end); NULL with why on error. */
static struct tensor run_two(
    const struct graph *g, struct backends *b, int32_t cut, int64_t n, const float *x, struct yk_diag *why)
{
    struct tensor *have = calloc((size_t)g->n_values, sizeof(*have)), out = {.data = NULL};
    int64_t sizes[8] = {n, n, n, n, n, n, n, n};
    struct shapes s;
    yk_err err = shapes_infer(g, sizes, NULL, &s, why);
    if (!err) {
        have[g->inputs[0]] = (struct tensor){s.of[g->inputs[0]], (void *)(uintptr_t)x};
        shapes_fini(&s);
        if (cut > 0)
            err = run_stage(g, b, 0, cut, n, have, why);
        if (!err && cut < g->n_nodes)
            err = run_stage(g, b, cut, g->n_nodes, n, have, why);
    }
    if (!err) {
        out = have[g->outputs[0]];
        have[g->outputs[0]].data = NULL;
    }
    have[g->inputs[0]].data = NULL;
    for (int32_t v = 0; v < g->n_values; v++)
        free(have[v].data);
    free(have);
    return out;
}

static void cuts(void **state)
{
    (void)state;
    const char *folder = getenv("YOKE_MODELS");
    static const char *const names[] = {"resnet34_64", "regnet_y_400mf_64", "mobilenet_v2_64", "encoder_2x64"};
    struct pool *pool[2];
    struct backends b[2];
    struct yk_rng r;
    if (!folder) {
        print_message("YOKE_MODELS names no folder with golden models: skipped\n");
        skip();
    }
    yk_rng_seed(&r, 11);
    for (int t = 0; t < 2; t++) {
        assert_int_equal(pool_open(t + 1, &pool[t], NULL), YK_OK);
        assert_int_equal(backends_open("auto", pool[t], &b[t], NULL), YK_OK);
    }
    for (size_t i = 0; i < YK_COUNT(names); i++) {
        char path[700];
        struct yk_diag why = {""};
        struct graph *g;
        int64_t nx = 0;
        snprintf(path, sizeof(path), "%.400s/%s.x.npy", folder, names[i]);
        float *x = models_npy(path, &nx);
        snprintf(path, sizeof(path), "%.400s/%s.onnx", folder, names[i]);
        assert_non_null(x);
        assert_int_equal(onnx_import(path, &g, NULL, &why), YK_OK);
        assert_int_equal(passes_infer(g, fold_eval, NULL, &why), YK_OK);
        struct tensor whole = run_two(g, &b[0], 0, 2, x, &why);
        assert_non_null(whole.data);
        int checked = 0;
        for (int32_t cut = 1; cut < g->n_nodes; cut++) {
            if (!getenv("YOKE_ALL_CUTS") && yk_rng_below(&r, (uint64_t)g->n_nodes) >= 8)
                continue;
            struct tensor two = run_two(g, &b[cut % 2], cut, 2, x, &why);
            if (!two.data)
                print_error("%s cut at %d: %s\n", names[i], (int)cut, why.text);
            assert_non_null(two.data);
            assert_true(shape_equal(&two.shape, &whole.shape));
            assert_memory_equal(two.data, whole.data, (size_t)tensor_bytes(&whole));
            free(two.data);
            checked++;
        }
        print_message("%s: %d cuts\n", names[i], checked);
        free(whole.data);
        free(x);
        graph_close(g);
    }
    for (int t = 0; t < 2; t++) {
        backends_close(&b[t]);
        pool_close(pool[t]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden), cmocka_unit_test(fashion_mnist),
        cmocka_unit_test(accuracy_of_resnet34), cmocka_unit_test(cuts)};
#ifdef YOKE_FEW_CASES /* where a processor is emulated */
    const struct CMUnitTest few[] = {tests[0]};
    return cmocka_run_group_tests(few, NULL, NULL);
#else
    return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
