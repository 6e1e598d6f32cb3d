/* The reference backend: every op of the table in plain loops. Floats are computed in double and rounded once, sums run
 * in index order, integers wrap. It is the oracle of the other backends and the last one a node falls back to. Its bits
 * are the same everywhere but for functions of libm (log, sin ...): two libms may differ in the last bit of a double,
 * which shows in an f32 once in about 2^29 values. Split by family: ref_math (elementwise), ref_move (data movement),
 * ref_index (gather, scatter, pad), ref_reduce, ref_norm, ref_conv, ref_pool, ref_gemm, ref_attention, ref_rnn,
 * ref_resize, ref_einsum, ref_signal, ref_roi, ref_quant, ref_select (by value), ref_feature, ref_loss (and
 * optimisers), ref_random, ref_grad_conv, ref_grad_pool (and batch-norm in training), ref_grad_act (elementwise,
 * softmax), ref_grad_sum (broadcasting, reductions), ref_grad_norm, ref_grad_move, ref_grad_loss (and losses). */
#ifndef YK_REF_H
#define YK_REF_H

#include "kernels/host.h"

extern const struct host_rows ref_math, ref_move, ref_index, ref_reduce, ref_norm, ref_conv, ref_pool, ref_gemm;
extern const struct host_rows ref_attention;
extern const struct host_rows ref_quant, ref_select, ref_feature, ref_loss, ref_random;

extern const struct host_rows ref_grad_conv, ref_grad_pool, ref_grad_act, ref_grad_sum, ref_grad_norm, ref_grad_move;
extern const struct host_rows ref_grad_loss;
extern const struct host_rows ref_rnn, ref_resize, ref_einsum, ref_signal, ref_roi;

/* The reference kernel of a node (form "ref@generic"), NULL if the op has none. */
const struct host_kernel *ref_kernel(const struct node *node);

/* Elements of any numeric dtype as double or int64 (uint64 keeps its bits): src[at + i * step] for i < n. */
void ref_load_d(double *dst, const void *src, enum dtype t, int64_t at, int64_t step, int64_t n);
void ref_load_i(int64_t *dst, const void *src, enum dtype t, int64_t at, int64_t step, int64_t n);
/* Rounds to the dtype, to nearest even (floats), or wraps (integers); bool is != 0. */
void ref_store_d(void *dst, enum dtype t, int64_t at, int64_t step, const double *src, int64_t n);
void ref_store_i(void *dst, enum dtype t, int64_t at, int64_t step, const int64_t *src, int64_t n);

static inline double ref_d(const struct tensor *t, int64_t at)
{
    double v;
    ref_load_d(&v, t->data, t->shape.dtype, at, 1, 1);
    return v;
}
static inline int64_t ref_i(const struct tensor *t, int64_t at)
{
    int64_t v;
    ref_load_i(&v, t->data, t->shape.dtype, at, 1, 1);
    return v;
}
static inline bool ref_absent(const struct tensor *t)
{
    return t->shape.dtype == DT_NONE;
}
/* Input i is there. */
static inline bool ref_has(const struct host_call *c, int i)
{
    return i < c->n_in && !ref_absent(&c->in[i]);
}
static inline int64_t ref_axis(int64_t axis, int rank)
{
    return axis < 0 ? axis + rank : axis;
}

#endif
