/* For tests and benches: golden models on disk (a .onnx, its .x.npy and .y.npy) and whole-model runs. */
#ifndef TESTS_MODELS_H
#define TESTS_MODELS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/onnx.h"
#include "kernels/exec.h"

/* The data of a .npy of f32 or f64 (rounded) whose shape the caller knows: *count elements; free(). NULL if it cannot
 * be read. */
static inline float *models_npy(const char *path, int64_t *count)
{
    FILE *f = fopen(path, "rb");
    uint8_t head[10];
    float *data = NULL;
    if (!f)
        return NULL;
    if (fread(head, 1, sizeof(head), f) == sizeof(head) && !memcmp(head, "\x93NUMPY\x01", 7)) {
        char text[512] = "";
        long at = 10 + head[8] + 256L * head[9];
        if (fread(text, 1, YK_MIN(sizeof(text) - 1, (size_t)at - 10), f) > 0 && !fseek(f, 0, SEEK_END)) {
            long size = strstr(text, "<f8") ? 8 : 4, n = (ftell(f) - at) / size;
            char *raw = n > 0 ? malloc((size_t)(n * size)) : NULL;
            data = raw ? yk_try_aligned((size_t)n * sizeof(float)) : NULL;
            if (data && !fseek(f, at, SEEK_SET) && fread(raw, (size_t)size, (size_t)n, f) == (size_t)n) {
                *count = n;
                for (long i = 0; i < n; i++)
                    data[i] = size == 8 ? (float)((double *)(void *)raw)[i] : ((float *)(void *)raw)[i];
            } else {
                free(data);
                data = NULL;
            }
            free(raw);
        }
    }
    fclose(f);
    return data;
}

/* One run of a whole graph with one f32 input and one f32 output at batch n; *y: free(). */
static inline yk_err models_run(
    struct exec *e, const struct graph *g, int64_t n, const float *x, float **y, int64_t *y_count, struct yk_diag *why)
{
    int64_t sizes[8], fixed;
    const struct shapes *s;
    int32_t batch = graph_batch_dim(g, &fixed);
    for (int32_t i = 0; i < g->n_syms && i < 8; i++)
        sizes[i] = i == batch ? n : 1;
    const struct memplan *m = exec_plan(e);
    yk_err err = exec_sizes(e, sizes, &s, why);
    if (err)
        return err;
    if (m->n_in != 1 || m->n_out != 1)
        return yk_fail(why, YK_INVAL, "%d inputs, %d outputs", (int)m->n_in, (int)m->n_out);
    struct tensor in = {s->of[m->in[0]], (void *)(uintptr_t)x};
    struct tensor out = {s->of[m->out[0]], NULL};
    *y_count = tensor_count(&out);
    *y = out.data = yk_try_aligned((size_t)tensor_bytes(&out) + 1);
    return exec_run(e, sizes, &in, &out, 0, why);
}

static inline double models_relative(const float *a, const float *b, int64_t n)
{
    struct tensor ta = {{DT_F32, 1, {n}}, (void *)(uintptr_t)a}, tb = {{DT_F32, 1, {n}}, (void *)(uintptr_t)b};
    return tensor_relative(&ta, &tb);
}

#endif
