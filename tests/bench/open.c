/* Weights in place: what opening and running a model costs in time and resident memory.
 *
 *   bench_open                     a model of 512 MiB that it makes itself (MatMul layers), in $TMPDIR
 *   bench_open MODEL.onnx [BATCH]
 *
 * Prints one line a step: milliseconds, and the resident memory of the process after it without what it had before. The
 * last line compares a run with its bound: resident weights (packed included) + memory plan + 16 MiB + 10 %. */
#include "common/onnx.h"
#include "common/passes.h"
#include "common/pb.h"
#include "kernels/exec.h"
#include "kernels/fold.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LAYERS 32
#define WIDTH 2048

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int64_t resident(void)
{
    long long total = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lld %lld", &total, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

static double step(const char *what, double start, int64_t before)
{
    printf("%-10s %9.2f ms  %8.1f MiB resident\n", what, now_ms() - start, (double)(resident() - before) / 1048576);
    return now_ms();
}

static void put_value(struct yk_buf *b, uint32_t field, const char *name)
{
    size_t info = pb_begin(b, field);
    pb_put_text(b, 1, name);
    size_t type = pb_begin(b, 2), tensor = pb_begin(b, 1);
    pb_put_varint(b, 1, 1);
    size_t shape = pb_begin(b, 2), dim = pb_begin(b, 1);
    pb_put_text(b, 2, "N");
    pb_end(b, dim);
    dim = pb_begin(b, 1);
    pb_put_varint(b, 1, WIDTH);
    pb_end(b, dim);
    pb_end(b, shape);
    pb_end(b, tensor);
    pb_end(b, type);
    pb_end(b, info);
}

/* x -> MatMul w0 -> MatMul w1 ...; weights are written one after another, never all in memory. */
static int write_model(const char *path)
{
    const size_t bytes = (size_t)WIDTH * WIDTH * sizeof(float);
    struct yk_buf graph = {0}, head = {0}, tensors[LAYERS] = {{0}};
    float *data = calloc(WIDTH, WIDTH * sizeof *data);
    FILE *f = fopen(path, "wb");
    if (!data || !f)
        return 1;
    char in[16] = "x", out[16], name[16];
    for (int i = 0; i < LAYERS; i++) {
        snprintf(out, sizeof out, i + 1 < LAYERS ? "h%d" : "y", i);
        snprintf(name, sizeof name, "w%d", i);
        size_t node = pb_begin(&graph, 1);
        pb_put_text(&graph, 1, in);
        pb_put_text(&graph, 1, name);
        pb_put_text(&graph, 2, out);
        pb_put_text(&graph, 4, "MatMul");
        pb_end(&graph, node);
        snprintf(in, sizeof in, "%s", out);
        struct yk_buf *t = &tensors[i];
        const int64_t dims[] = {WIDTH, WIDTH};
        pb_put_packed(t, 1, dims, 2);
        pb_put_varint(t, 2, 1);
        pb_put_text(t, 8, name);
        yk_buf_add(t, "\x4a", 1); /* raw_data: its length comes next, and then the file has its bytes */
        for (uint64_t v = bytes; v; v >>= 7)
            yk_buf_add(t, &(uint8_t){(uint8_t)(v & 127) | (v > 127 ? 128 : 0)}, 1);
    }
    pb_put_text(&graph, 2, "wide");
    put_value(&graph, 11, "x");
    put_value(&graph, 12, "y");
    size_t all = graph.len;
    struct yk_buf prefix[LAYERS] = {{0}};
    for (int i = 0; i < LAYERS; i++) {
        yk_buf_add(&prefix[i], "\x2a", 1);
        for (uint64_t v = tensors[i].len + bytes; v; v >>= 7)
            yk_buf_add(&prefix[i], &(uint8_t){(uint8_t)(v & 127) | (v > 127 ? 128 : 0)}, 1);
        all += prefix[i].len + tensors[i].len + bytes;
    }
    pb_put_varint(&head, 1, 8);
    size_t opset = pb_begin(&head, 8);
    pb_put_varint(&head, 2, 13);
    pb_end(&head, opset);
    yk_buf_add(&head, "\x3a", 1);
    for (uint64_t v = all; v; v >>= 7)
        yk_buf_add(&head, &(uint8_t){(uint8_t)(v & 127) | (v > 127 ? 128 : 0)}, 1);
    fwrite(head.data, 1, head.len, f);
    fwrite(graph.data, 1, graph.len, f);
    for (int i = 0; i < LAYERS; i++) {
        for (int k = 0; k < WIDTH; k++)
            data[(size_t)k * WIDTH + (size_t)((k + i) % WIDTH)] = 1; /* a rotation: the sum stays what it is */
        fwrite(prefix[i].data, 1, prefix[i].len, f);
        fwrite(tensors[i].data, 1, tensors[i].len, f);
        fwrite(data, 1, bytes, f);
        memset(data, 0, bytes);
        yk_buf_free(&prefix[i]);
        yk_buf_free(&tensors[i]);
    }
    yk_buf_free(&graph);
    yk_buf_free(&head);
    free(data);
    return fclose(f);
}

static int measure(const char *path, int64_t batch, bool rotates)
{
    struct yk_diag why = {""};
    struct graph *g = NULL;
    struct pool *pool = NULL;
    struct backends b = {0};
    struct exec *e = NULL;
    struct dyn_value *in[8] = {0}, *out[8] = {0};
    int64_t sizes[64], fixed;
    if (pool_open(2, &pool, &why) || backends_open("auto", pool, &b, &why))
        goto out;
    int64_t before = resident();
    double start = now_ms();
    if (onnx_import(path, &g, NULL, &why))
        goto out;
    start = step("import", start, before);
    if (passes_infer(g, fold_eval, NULL, &why))
        goto out;
    step("passes", start, before);
    int32_t dim = graph_batch_dim(g, &fixed);
    for (int i = 0; i < 64; i++)
        sizes[i] = i == dim ? batch : 1;
    struct exec_config config = {.graph = g, .max_sizes = sizes, .backends = &b};
    start = now_ms();
    if (g->n_syms > 64 || g->n_inputs > 8 || g->n_outputs > 8 || exec_open(&config, &e, &why))
        goto out;
    step("open", start, before);
    const struct memplan *m = exec_plan(e);
    for (int32_t i = 0; i < g->n_inputs; i++) {
        if (dyn_tensor(NULL, &exec_max_shapes(e)->of[g->inputs[i]], &in[i], &why))
            goto out;
        for (int64_t k = 0; k < tensor_count(&in[i]->tensor); k++)
            if (in[i]->tensor.shape.dtype == DT_F32)
                ((float *)in[i]->tensor.data)[k] = (float)(k % 17) - 8;
    }
    for (int run = 0; run < 2; run++) {
        start = now_ms();
        for (int32_t i = 0; i < g->n_outputs; i++) {
            dyn_unref(out[i]);
            out[i] = NULL;
        }
        if (exec_run_values(e, sizes, in, out, 0, &why))
            goto out;
        step("run", start, before);
    }
    if (rotates) { /* the answer first: every layer turns its input by one more place */
        const float *x = in[0]->tensor.data, *y = out[0]->tensor.data;
        for (int64_t k = 0, turn = LAYERS * (LAYERS - 1) / 2; k < WIDTH; k++)
            if (y[(k + turn) % WIDTH] != x[k])
                return fprintf(stderr, "the answer is wrong at %lld\n", (long long)k), 1;
    }
    double plan = (double)(m->weight_bytes + m->packed_bytes + m->arena_bytes + m->in_bytes + m->out_bytes);
    double bound = plan * 1.1 + (16 << 20), is = (double)(resident() - before);
    printf("%-10s weights %.1f, packed %.1f, arena %.1f, bound %.1f, resident %.1f MiB: %s\n", "memory",
        (double)m->weight_bytes / 1048576, (double)m->packed_bytes / 1048576, (double)m->arena_bytes / 1048576,
        bound / 1048576, is / 1048576, is <= bound ? "inside" : "OVER");
out:
    if (why.text[0])
        fprintf(stderr, "%s\n", why.text);
    for (int i = 0; i < 8; i++) {
        dyn_unref(in[i]);
        dyn_unref(out[i]);
    }
    exec_close(e);
    graph_close(g);
    backends_close(&b);
    pool_close(pool);
    return why.text[0] != '\0';
}

int main(int argc, char **argv)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 18); /* as the daemons do */
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1)
        return measure(argv[1], argc > 2 ? atoll(argv[2]) : 1, false);
    const char *folder = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%.400s/yoke-open-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    int bad = write_model(path);
    if (!bad)
        bad = measure(path, 1, true);
    unlink(path);
    return bad;
}
