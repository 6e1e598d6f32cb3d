/* ONNX import of any bytes; what imports must have shapes or say why not, and survive export and import unchanged. */
#include <stdlib.h>
#include <string.h>

#include "common/onnx.h"
#include "common/shapes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(struct graph *g)
{
    struct yk_diag why;
    struct yk_buf a = {0}, b = {0};
    struct shapes s;
    struct graph *h = NULL;
    int64_t *sizes = calloc((size_t)g->n_syms + 1, sizeof *sizes);
    for (int32_t i = 0; sizes && i < g->n_syms; i++)
        sizes[i] = 2;
    if (sizes && shapes_infer(g, sizes, NULL, &s, &why) == YK_OK)
        shapes_fini(&s);
    free(sizes);
    if (graph_prune(g) == YK_OK && onnx_export_skeleton(g, &a, &why) == YK_OK) {
        if (onnx_import_memory(a.data, a.len, &h, NULL, &why) != YK_OK || h->n_nodes != g->n_nodes ||
            h->n_values != g->n_values)
            abort();
        if (onnx_export_skeleton(h, &b, &why) != YK_OK || a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
            abort();
        graph_close(h);
    }
    yk_buf_free(&a);
    yk_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct yk_buf problems = {0};
    struct yk_diag why;
    struct graph *g = NULL;
    if (onnx_import_memory(data, size, &g, &problems, &why) == YK_OK) {
        check(g);
        graph_close(g);
    } else if (g) {
        abort();
    }
    yk_buf_free(&problems);
    return 0;
}
