/* One model held open for compare.py: reads how often to run it, a number a line, and answers with the milliseconds of
 * each run on one line. After the first run the outputs are in OUT, f32, one behind the other.
 * Usage: bench_serve MODEL.onnx THREADS X.bin OUT.bin   (a model of fixed shapes; X.bin: its inputs, one behind the
 * other) */
#include <time.h>

#include "common/onnx.h"
#include "common/passes.h"
#include "kernels/fold.h"
#include "tests/graphs.h"

/* CPU in the environment: time of the processor, for one thread on a busy machine. */
static double now_ms(void)
{
    struct timespec t;
    clock_gettime(getenv("CPU") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int move(const char *path, const char *mode, struct tensor *t, int32_t n)
{
    FILE *f = fopen(path, mode);
    int bad = !f;
    for (int32_t i = 0; !bad && i < n; i++) {
        size_t bytes = (size_t)tensor_bytes(&t[i]);
        bad = (*mode == 'r' ? fread(t[i].data, 1, bytes, f) : fwrite(t[i].data, 1, bytes, f)) != bytes;
    }
    if (f && fclose(f))
        bad = 1;
    if (bad)
        fprintf(stderr, "%s: cannot %s it\n", path, *mode == 'r' ? "read" : "write");
    return bad;
}

int main(int argc, char **argv)
{
    struct yk_diag why = {""};
    struct graph *g;
    struct pool *pool;
    struct backends b;
    struct exec *e;
    struct graphs_io io;
    if (argc != 5) {
        fprintf(stderr, "usage: %s MODEL.onnx THREADS X.bin OUT.bin\n", argv[0]);
        return 2;
    }
    double before = now_ms();
    struct exec_config c = {.backends = &b};
    if (onnx_import(argv[1], &g, NULL, &why) || passes_infer(g, fold_eval, NULL, &why) ||
        pool_open(atoi(argv[2]), &pool, &why) || backends_open("auto", pool, &b, &why) ||
        (c.graph = g, exec_open(&c, &e, &why)) || graphs_io_init(&io, e, NULL, &why)) {
        fprintf(stderr, "%s: %s\n", argv[1], why.text);
        return 1;
    }
    if (move(argv[3], "rb", io.in, io.n_in))
        return 1;
    fprintf(stderr, "loaded in %.0f ms\n", now_ms() - before);
    char line[64];
    for (bool first = true; fgets(line, sizeof(line), stdin); first = false) {
        for (int n = atoi(line); n > 0; n--) {
            before = now_ms();
            if (exec_run(e, NULL, io.in, io.out, 0, &why)) {
                fprintf(stderr, "%s: %s\n", argv[1], why.text);
                return 1;
            }
            printf("%.4f%s", now_ms() - before, n > 1 ? " " : "\n");
        }
        if (first && move(argv[4], "wb", io.out, io.n_out))
            return 1;
        fflush(stdout);
    }
    graphs_io_fini(&io);
    exec_close(e);
    backends_close(&b);
    pool_close(pool);
    graph_close(g);
    return 0;
}
