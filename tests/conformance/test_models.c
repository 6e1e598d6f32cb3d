/* Whole models against PyTorch: outputs within 1e-5 relative of the same net in f64 (PyTorch's own f32 is up to 6e-6
 * away from it), as imported and after the passes. The Fashion-MNIST net
 * is always there; the golden models (tests/golden/make_models.py) are in the folder that YOKE_MODELS names.
 * YOKE_MODELS_SIZE=64 or 224 takes only the image models of that size. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/passes.h"
#include "kernels/fold.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fashion_mnist), cmocka_unit_test(golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
