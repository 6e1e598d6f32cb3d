/* Any model that imports: a training graph of it has shapes where the model has them, or an error says why there is
 * none. The last byte chooses loss and options. */
#include <stdlib.h>
#include <string.h>

#include "common/grad.h"
#include "common/onnx.h"
#include "common/passes.h"
#include "common/shapes.h"
#include "kernels/fold.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct graph *g, uint8_t choice)
{
    struct grad_options o;
    struct grad_info info;
    struct graph *train;
    struct yk_diag why = {""};
    struct shapes s;
    grad_options_init(&o);
    o.loss = (enum grad_loss)(choice % GRAD_LOSS_COUNT);
    o.bn_frozen = choice & 8;
    o.recompute = choice & 16;
    yk_err err = grad_build(g, &o, &train, &info, &why);
    if (err) {
        if (err == YK_INTERNAL || !why.text[0])
            abort();
        return;
    }
    for (int32_t i = 0; i < train->n_nodes; i++)
        if (info.of[i] < 0 || info.of[i] >= g->n_nodes)
            abort();
    for (int32_t p = 0; p < info.n_params; p++)
        for (int32_t u = 0; u < info.params[p].n_uses; u++)
            if (info.params[p].uses[u] <= 0 || info.params[p].uses[u] >= train->n_outputs)
                abort();
    int64_t *sizes = calloc((size_t)train->n_syms + 1, sizeof *sizes);
    for (int32_t i = 0; sizes && i < train->n_syms; i++)
        sizes[i] = 4;
    if (sizes && shapes_infer(train, sizes, NULL, &s, &why) == YK_OK) {
        for (int32_t p = 0; p < info.n_params; p++)
            for (int32_t u = 0; u < info.params[p].n_uses; u++)
                if (!shape_equal(
                        &s.of[train->outputs[info.params[p].uses[u]]], &train->values[info.params[p].value].shape))
                    abort();
        shapes_fini(&s);
    }
    free(sizes);
    graph_close(train);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct yk_diag why = {""};
    struct graph *g = NULL;
    if (onnx_import_memory(data, size, &g, NULL, &why))
        return 0;
    if (passes_train(g, fold_eval, NULL, &why) == YK_OK)
        check(g, size ? data[size - 1] : 0);
    graph_close(g);
    return 0;
}
