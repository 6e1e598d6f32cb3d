/* Milliseconds of one inference, answers compared first.
 * Usage: bench_kernels FOLDER [NAME...]   (FOLDER as made by tests/golden/make_models.py)
 * A line: model batch threads ms relative-error GFLOP/s arena-MiB */
#include <time.h>

#include "common/passes.h"
#include "kernels/fold.h"
#include "tests/models.h"

/* CPU=1 in the environment: time of the processor, for one thread on a busy machine. */
static double now_ms(void)
{
    struct timespec t;
    clock_gettime(getenv("CPU") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

struct totals {
    const struct graph *g;
    double ms[256];
    const char *form[256];
};

static void on_node(void *arg, int32_t node, const char *form, double ms)
{
    struct totals *t = arg;
    const char *op = t->g->nodes[node].op->name;
    char name[128];
    snprintf(name, sizeof(name), "%s %s", op, form);
    for (int i = 0; i < 256; i++) {
        if (!t->form[i])
            t->form[i] = yk_xstrdup(name);
        if (!strcmp(t->form[i], name)) {
            t->ms[i] += ms;
            return;
        }
    }
}

static int bench(const char *folder, const char *name, int64_t n, int threads)
{
    char path[512];
    struct yk_diag why = {""};
    struct graph *g;
    struct pool *pool;
    struct backends b;
    struct exec *e;
    int64_t nx = 0, ny = 0, count = 0, sizes[8];
    snprintf(path, sizeof(path), "%s/%s.onnx", folder, name);
    if (onnx_import(path, &g, NULL, &why) || passes_infer(g, fold_eval, NULL, &why)) {
        fprintf(stderr, "%s: %s\n", name, why.text);
        return 1;
    }
    snprintf(path, sizeof(path), "%s/%s.x.npy", folder, name);
    float *x = models_npy(path, &nx), *got = NULL;
    snprintf(path, sizeof(path), "%s/%s.y.npy", folder, name);
    float *y = models_npy(path, &ny);
    for (int i = 0; i < 8; i++)
        sizes[i] = n;
    struct exec_config c = {.graph = g, .max_sizes = sizes, .backends = &b};
    if (!x || !y || pool_open(threads, &pool, &why) || backends_open("auto", pool, &b, &why) ||
        exec_open(&c, &e, &why) || models_run(e, g, n, x, &got, &count, &why)) {
        fprintf(stderr, "%s: %s\n", name, why.text);
        return 1;
    }
    double error = models_relative(got, y, count), best = 1e30, flops = 0;
    for (int i = 0; i < 10; i++) {
        free(got);
        double before = now_ms();
        if (models_run(e, g, n, x, &got, &count, &why))
            return 1;
        double ms = now_ms() - before;
        best = ms < best ? ms : best;
    }
    struct op_ctx *ctx = yk_xalloc(sizeof(*ctx));
    for (int32_t i = 0; i < g->n_nodes; i++) {
        shapes_node(g, exec_max_shapes(e), i, ctx);
        flops += op_flops(ctx);
    }
    free(ctx);
    printf("%s %lld %d %.1f %.1e %.1f %.1f\n", name, (long long)n, threads, best, error, flops / best / 1e6,
        (double)exec_plan(e)->arena_bytes / 1048576);
    if (getenv("OPS")) {
        struct totals t = {.g = g};
        free(got);
        exec_trace(e, on_node, &t);
        models_run(e, g, n, x, &got, &count, &why);
        for (int i = 0; i < 256 && t.form[i]; i++)
            printf("    %8.3f ms  %s\n", t.ms[i], t.form[i]);
    }
    free(got);
    free(x);
    free(y);
    exec_close(e);
    backends_close(&b);
    pool_close(pool);
    graph_close(g);
    return error > 1e-4;
}

int main(int argc, char **argv)
{
    static const char *const all[] = {"resnet34_224", "mobilenet_v2_224", "regnet_y_400mf_224", "encoder_6x384"};
    int bad = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER [NAME...]\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < (argc > 2 ? argc - 2 : (int)YK_COUNT(all)); i++)
        for (int threads = 1; threads <= 2; threads++)
            bad |= bench(argv[1], argc > 2 ? argv[i + 2] : all[i], 1, threads);
    return bad;
}
