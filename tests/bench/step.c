/* One training held open for train.py: reads how many steps to do, a number a line, and answers each with the
 * milliseconds and the loss of every step on one line. Every step is on the same batch.
 * Usage: bench_step MODEL.onnx THREADS X.bin Y.bin N   (x: n samples of f32, y: n class ids of int64)
 * RECOMPUTE in the environment: as --recompute. OPS: where the time of the last steps went, by op and form, on standard
 * error at the end. */
#include <time.h>

#include "common/onnx.h"
#include "common/passes.h"
#include "kernels/fold.h"
#include "kernels/train.h"
#include "tests/graphs.h"

/* CPU in the environment: time of the processor, for one thread on a busy machine. */
static double now_ms(void)
{
    struct timespec t;
    clock_gettime(getenv("CPU") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int read_file(const char *path, void *data, size_t bytes)
{
    FILE *f = fopen(path, "rb");
    bool bad = !f || fread(data, 1, bytes, f) != bytes;
    if (f)
        fclose(f);
    if (bad)
        fprintf(stderr, "%s: cannot read it\n", path);
    return bad;
}

static struct form {
    char name[128];
    double ms;
    int64_t runs;
} forms[500];
static const struct graph *traced;

static void on_node(void *arg, int32_t node, const char *form, double ms)
{
    (void)arg;
    char name[128];
    size_t i = 0;
    snprintf(name, sizeof name, "%s %s", traced->nodes[node].op->name, form);
    while (i < YK_COUNT(forms) && forms[i].name[0] && strcmp(forms[i].name, name) != 0)
        i++;
    if (i == YK_COUNT(forms))
        return;
    strcpy(forms[i].name, name);
    forms[i].ms += ms;
    forms[i].runs++;
}

static int by_ms(const void *a, const void *b)
{
    double x = ((const struct form *)a)->ms, y = ((const struct form *)b)->ms;
    return x < y ? 1 : x > y ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct yk_diag why = {""};
    struct graph *fwd, *g = NULL;
    struct grad_info info;
    struct grad_options o;
    struct pool *pool;
    struct backends b;
    struct trainer *t;
    if (argc != 6) {
        fprintf(stderr, "usage: %s MODEL.onnx THREADS X.bin Y.bin N\n", argv[0]);
        return 2;
    }
    int64_t n = atoi(argv[5]), sizes[16];
    for (size_t i = 0; i < YK_COUNT(sizes); i++)
        sizes[i] = n;
    grad_options_init(&o);
    o.recompute = getenv("RECOMPUTE") != NULL;
    if (onnx_import(argv[1], &fwd, NULL, &why) || passes_train(fwd, fold_eval, NULL, &why) ||
        grad_build(fwd, &o, &g, &info, &why) || pool_open(atoi(argv[2]), &pool, &why) ||
        backends_open("auto", pool, &b, &why)) {
        fprintf(stderr, "%s: %s\n", argv[1], why.text);
        return 1;
    }
    struct trainer_config c = {
        .graph = g, .info = &info, .max_sizes = sizes, .backends = &b, .pool = pool, .optim = optim_default(OPTIM_SGD)};
    const struct shapes *s;
    if (trainer_open(&c, &t, &why) || trainer_shapes(t, sizes, &s, &why)) {
        fprintf(stderr, "%s: %s\n", argv[1], why.text);
        return 1;
    }
    const struct trainer_border *border = trainer_border(t, TRAINER_WHOLE);
    struct tensor in[GRAPHS_MAX_IO], out[GRAPHS_MAX_IO];
    float divisor = (float)n, loss = 0;
    for (int32_t i = 0; i < border->n_in && i < GRAPHS_MAX_IO; i++) {
        in[i].shape = s->of[border->in[i]];
        in[i].data = yk_try_aligned((size_t)tensor_bytes(&in[i]) + 1);
        const char *file = border->in[i] == g->inputs[info.target_input] ? argv[4] : argv[3];
        if (border->in[i] == g->inputs[info.divisor_input])
            *(float *)in[i].data = divisor;
        else if (read_file(file, in[i].data, (size_t)tensor_bytes(&in[i])))
            return 1;
    }
    fprintf(stderr, "holds %.1f MB\n", (double)trainer_held_bytes(t) / 1e6);
    char line[64];
    double flush_ms = 0;
    traced = g;
    if (getenv("OPS"))
        trainer_trace(t, on_node, NULL);
    for (int64_t step = 0; fgets(line, sizeof(line), stdin);) {
        memset(forms, 0, sizeof forms);
        for (int k = atoi(line); k > 0; k--) {
            double before = now_ms();
            yk_err err = trainer_run(t, TRAINER_WHOLE, 0, sizes, in, out, 0, &why);
            double ran = now_ms();
            if (!err)
                err = trainer_flush(t, 0.05, ++step, NULL, &why);
            flush_ms = now_ms() - ran;
            if (err) {
                fprintf(stderr, "%s: %s\n", argv[1], why.text);
                return 1;
            }
            for (int32_t i = 0; i < border->n_out; i++)
                if (border->out[i] == g->outputs[info.loss_output])
                    loss = *(const float *)out[i].data;
            printf("%.4f %.9g%s", now_ms() - before, (double)loss, k > 1 ? " " : "\n");
        }
        fflush(stdout);
    }
    if (getenv("OPS"))
        fprintf(stderr, "%9.2f ms      1  flush\n", flush_ms);
    qsort(forms, YK_COUNT(forms), sizeof *forms, by_ms);
    for (size_t i = 0; i < YK_COUNT(forms) && forms[i].runs; i++)
        fprintf(stderr, "%9.2f ms %6lld  %s\n", forms[i].ms, (long long)forms[i].runs, forms[i].name);
    for (int32_t i = 0; i < border->n_in; i++)
        free(in[i].data);
    trainer_close(t);
    backends_close(&b);
    pool_close(pool);
    graph_close(g);
    graph_close(fwd);
    return 0;
}
