/* What the passes share: counts of uses, made weights, shapes at several sizes. Only passes*.c and grad*.c include
 * this.
 * A pass takes nodes out by clearing their op; pass_compact then closes the gaps, sorts and prunes. */
#ifndef YK_PASSES_REWRITE_H
#define YK_PASSES_REWRITE_H

#include "common/passes.h"
#include "common/shapes.h"

/* By value id: how many nodes (each use counts) and graph outputs read it. free() */
int32_t *pass_uses(const struct graph *g);
uint8_t *pass_outputs(const struct graph *g);             /* by value id: 1 for graph outputs; free() */
bool pass_is_const(const struct graph *g, int32_t value); /* a weight whose data is here */
/* to[v] stands for v, in nodes and captures, not in graph outputs; chains are followed. */
int32_t pass_resolve(const int32_t *to, int32_t value);
void pass_replace_uses(struct graph *g, const int32_t *to);
yk_err pass_compact(struct graph *g, struct yk_diag *why);

/* Makes node output `value` a weight; data is borrowed (graph_alloc_data or the mapping). The node loses that output.
 */
void pass_make_const(struct graph *g, int32_t value, const struct shape *shape, const void *data);
/* A new weight with a unique name that starts with `stem`; YK_ABSENT if memory is gone. *data is zeroed. */
int32_t pass_new_weight(struct graph *g, const char *stem, const struct shape *shape, void **data);
int32_t pass_new_ints(struct graph *g, const char *stem, const int64_t *v, int n);
void pass_write_int(enum dtype t, void *data, int64_t i, int64_t v);

float pass_f32(const void *data, int64_t i); /* element of maybe unaligned data */
/* Value of a one-element f32 weight. */
bool pass_const_f32(const struct graph *g, int32_t value, float *out);

/* The shapes at several assignments of sizes to the named dimensions; those where the graph cannot run are left out.
 * What is equal in all of them is taken as true for every size: sizes are distinct per dimension and assignment, with
 * ones, small primes, multiples of 32 and large ones among them. One assignment if there are no named dimensions. */
#define PASS_PROBES 10
#define PASS_PROBES_SMALL                                                                      \
    3 /* the last: sizes below 10, where too few others fit (a model with a limit on a length) \
       */
struct pass_probes {
    int n; /* 0: shapes cannot be known (undeclared inputs), or too few assignments to tell */
    struct shapes at[PASS_PROBES];
};
yk_err pass_probes_open(const struct graph *g, struct pass_probes *out, struct yk_diag *why);
void pass_probes_close(struct pass_probes *p);
bool pass_same_shape(const struct pass_probes *p, int32_t a, int32_t b); /* in all probes; false if there are none */
/* Contents of a value that are known and the same in all probes, else NULL. */
const int64_t *pass_same_content(const struct pass_probes *p, int32_t value);

/* passes_fold_constants; train: floats of the file are no constants, and Dropout stays where nothing says that it does
 * not train. */
yk_err pass_fold_constants(struct graph *g, bool train, passes_eval eval, void *arg, struct yk_diag *why);
/* That, with If of a known condition given way to its branch and large weights of subgraphs moved to g. */
yk_err pass_fold_and_inline(struct graph *g, bool train, passes_eval eval, void *arg, struct yk_diag *why);
/* y = scale * x + shift by channel, n of each. free(scale) */
struct pass_affine {
    double *scale, *shift;
    int64_t n;
};
/* What a BatchNormalization in inference form does; *found is false if its parameters are not all constant f32. */
yk_err pass_affine_batchnorm(const struct graph *g, const struct node *bn, struct pass_affine *out, bool *found);
/* Behind a Conv, ConvTranspose or Gemm: into its weights and bias, where these are constant. */
yk_err pass_affine_fold(struct graph *g, struct node *n, const struct pass_affine *a, bool *folded);
/* Constant factors and terms by channel go into convolutions before or behind them; a written-out hard swish becomes
 * HardSwish. */
yk_err pass_fold_affine(struct graph *g, struct yk_diag *why);
/* What is left of a chain of them becomes one BatchNormalization. */
yk_err pass_merge_affine(struct graph *g, struct yk_diag *why);

/* One round of each; *changed is set, never cleared. */
yk_err pass_drop_noops(struct graph *g, bool train, bool *changed, struct yk_diag *why);
yk_err pass_fuse_preact(struct graph *g, struct yk_diag *why);
yk_err pass_fuse_layernorm(struct graph *g, struct yk_diag *why);
yk_err pass_fuse_attention(struct graph *g, struct yk_diag *why);
yk_err pass_fold_shapes(struct graph *g, bool *changed, struct yk_diag *why);

/* passes_control.c. Weights of subgraphs above a few bytes become captures of weights of g. */
yk_err pass_hoist_weights(struct graph *g);
/* Every If of g itself whose condition is the same at every size becomes its branch. */
yk_err pass_inline_ifs(struct graph *g, bool *changed, struct yk_diag *why);

#endif
