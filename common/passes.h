/* Graph rewrites before planning. Each keeps what the graph computes; names of graph inputs and outputs never change.
 */
#ifndef YK_PASSES_H
#define YK_PASSES_H

#include "common/graph.h"

/* Evaluates nodes whose inputs are all constant. Big results need kernels, which live above: the caller gives eval
 * (kernels' reference backend, see kernels/fold.h); NULL folds only what shape rules can (small integers).
 * Also removes Identity, Dropout (inference) and shape arithmetic that is known for every size of the named dims. */
typedef yk_err (*passes_eval)(void *arg, const struct graph *g, int32_t node, const struct shape *out_shapes,
    void *const *out_data, struct yk_diag *why);
yk_err passes_fold_constants(struct graph *g, passes_eval eval, void *arg, struct yk_diag *why);
/* BatchNormalization (inference form) after Conv/ConvTranspose/Gemm into its weights and bias, in double. */
yk_err passes_fold_batchnorm(struct graph *g, struct yk_diag *why);
/* passes_infer then folds constant factors and terms by channel likewise, also into the Conv behind them.
 * The written-out forms of layer normalisation and attention are put together by passes_infer before it fuses.
 * Conv + residual Add + activation (common/activation.h; x * Sigmoid(x) and the written-out GELU too): one ai.yoke
 * FusedConv node; Gemm/MatMul + bias Add + activation likewise (FusedGemm). Only where the values between have no other
 * use.
 * passes_infer then gives a pointwise Conv the BatchNormalization, Relu and Concat in front of it (PreactConv). */
yk_err passes_fuse(struct graph *g, struct yk_diag *why);
/* All of the above in order, with If of a known condition given way to its branch and large weights of subgraphs moved
 * to g, then sort and prune: the canonical inference graph. */
yk_err passes_infer(struct graph *g, passes_eval eval, void *arg, struct yk_diag *why);

/* The canonical graph for grad_build: If of a known condition inlined, constants folded that no float weight of the
 * file goes into, written-out layer normalisation, GELU and SiLU put together, sorted and pruned. Weights of the file
 * keep names and data; what folding made has value.constant set. Batch normalisation and Dropout stay as they are. */
yk_err passes_train(struct graph *g, passes_eval eval, void *arg, struct yk_diag *why);
/* Batch normalisation and Dropout of a graph that was exported for training take their inference form: what a trained
 * model is written and judged with. */
yk_err passes_eval_mode(struct graph *g, struct yk_diag *why);

#endif
