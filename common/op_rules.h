/* Shape rules and FLOP counts by family (op_conv.c, op_math.c, op_shape.c, op_index.c, op_scatter.c, op_quant.c,
 * op_select.c, op_feature.c, op_loss.c, op_random.c, op_grad_conv.c), and what they share (op_util.c, op_content.c).
 * Only op*.c includes this; everybody else asks through op.h. */
#ifndef YK_OP_RULES_H
#define YK_OP_RULES_H

#include "common/op.h"

#define OP_BIT(t) (1u << (t))
#define OP_FLOATS (OP_BIT(DT_F32) | OP_BIT(DT_F64) | OP_BIT(DT_F16) | OP_BIT(DT_BF16))
#define OP_SIGNED (OP_BIT(DT_I8) | OP_BIT(DT_I16) | OP_BIT(DT_I32) | OP_BIT(DT_I64))
#define OP_UNSIGNED (OP_BIT(DT_U8) | OP_BIT(DT_U16) | OP_BIT(DT_U32) | OP_BIT(DT_U64))
#define OP_INDEX (OP_BIT(DT_I32) | OP_BIT(DT_I64))
#define OP_NUMERIC (OP_FLOATS | OP_SIGNED | OP_UNSIGNED)
#define OP_ANY (OP_NUMERIC | OP_BIT(DT_BOOL))

/* ---- op_util.c ---- */
yk_err op_want(const struct op_ctx *c, int i, unsigned dtypes);     /* input i, if present, has one of these dtypes */
yk_err op_want_same(const struct op_ctx *c, int i, int j);          /* inputs i and j, if present, share a dtype */
yk_err op_want_rank(const struct op_ctx *c, int i, int lo, int hi); /* of input i, if present */
/* An attribute of that name and kind, or the default; YK_INVAL if it has another kind. */
yk_err op_attr_i(const struct op_ctx *c, const char *name, int64_t otherwise, int64_t *out);
yk_err op_attr_f(const struct op_ctx *c, const char *name, float otherwise, float *out);
/* A string attribute that is one of n words: which. otherwise: which it is if absent; -1: it must be there. */
yk_err op_attr_word(const struct op_ctx *c, const char *name, const char *const *words, int n, int otherwise, int *out);
yk_err op_attr_axis(const struct op_ctx *c, int64_t otherwise, int rank, int *out); /* "axis" */
/* Contents of input i: a scalar or 1-D tensor of int32 or int64. YK_DEPENDS if it is computed from data. */
yk_err op_ints(const struct op_ctx *c, int i, const char *what, const int64_t **v, int *n);
/* Element k of input i as a double, if it is known now (f32, f64, integers, bool). */
bool op_number(const struct op_ctx *c, int i, int64_t k, double *out);
/* Value of input i if it has one element and is known now. */
bool op_const_scalar(const struct op_ctx *c, int i, double *out);
bool op_is_scalar(const struct shape *s);                                 /* rank 0, or one element of rank 1 */
bool op_broadcasts_to(const struct shape *s, const struct shape *target); /* unidirectional */
void op_out(struct op_ctx *c, int i, enum dtype dtype, int rank, const int64_t *dims);
void op_out_like(struct op_ctx *c, int i, const struct shape *s, enum dtype dtype);

/* The shape that input i lists, of the type of input 0 (op_grad.c). */
yk_err op_listed_shape(const struct op_ctx *c, int i, struct shape *out);

/* ---- op_content.c: integers that shape arithmetic follows ---- */
void op_content_copy(struct op_ctx *c, int from, int out); /* same elements, other shape */
void op_content_elementwise(struct op_ctx *c);             /* by the op's name; leaves it unknown if it cannot */
void op_content_cast(struct op_ctx *c);
void op_content_reduce(struct op_ctx *c);
void op_content_tensor(struct op_ctx *c, const struct value *t); /* of a weight or attribute into output 0 */
bool op_fits(enum dtype t, int64_t v);

/* ---- rules ---- */
/* clang-format off */
#define OP_RULES(X) \
    X(conv) X(preact) X(max_pool) X(average_pool) X(global_pool) X(gemm) X(fused_gemm) X(matmul) \
    X(unary_float) X(unary_number) X(unary_signed) X(relu) X(not) X(clip) X(is_nan) X(prelu) \
    X(arith) X(arith_float) X(pow) X(mod) X(bit_shift) X(compare) X(equal) X(logic) X(where) \
    X(softmax) X(batchnorm) X(layernorm) X(instancenorm) X(reduce) X(argmax) X(cumsum) \
    X(identity) X(dropout) X(cast) X(cast_like) X(flatten) X(reshape) X(transpose) X(squeeze) X(unsqueeze) \
    X(shape) X(size) X(constant) X(constant_of_shape) X(range) X(eye_like) X(trilu) X(one_hot) \
    X(concat) X(split) X(slice) X(gather) X(gather_elements) X(gather_nd) X(scatter_elements) X(scatter_nd) \
    X(expand) X(tile) X(pad) X(depth_to_space) X(space_to_depth) \
    X(deconv) X(rnn) X(einsum) X(resize) X(grid_sample) X(roi_align) X(max_roi_pool) X(max_unpool) X(lp_pool) \
    X(global_lp_pool) X(reverse_sequence) X(dft) X(stft) X(window) X(mel) \
    X(quantize) X(dequantize) X(dynamic_quantize) X(matmul_integer) X(qlinear_matmul) X(conv_integer) \
    X(qlinear_conv) X(nonzero) X(compress) X(unique) X(nms) X(topk) X(lrn) X(mvn) X(lp_normalization) \
    X(det) X(tfidf) X(nll_loss) X(sce_loss) X(adagrad) X(adam) X(momentum) \
    X(random) X(random_like) X(bernoulli) X(multinomial) X(attention) \
    X(conv_grad_input) X(conv_grad_weight) X(max_pool_grad) X(average_pool_grad) X(batchnorm_train) \
    X(batchnorm_grad) X(relu_grad) X(sum_to) X(unary_grad) X(clip_grad) X(dropout_grad) X(softmax_grad) \
    X(reduce_grad) X(reduce_prod_grad) X(layernorm_grad) X(instancenorm_grad) X(lrn_grad) X(move_grad) \
    X(loss) X(loss_grad)
/* clang-format on */
yk_err op_rule_values(struct op_ctx *c); /* op_control.c: runs by its actual inputs */
#define X(rule) yk_err op_rule_##rule(struct op_ctx *c);
OP_RULES(X)
#undef X

/* ---- FLOPs ---- */
double op_flops_conv(const struct op_ctx *c);
double op_flops_preact(const struct op_ctx *c);
double op_flops_pool(const struct op_ctx *c);
double op_flops_gemm(const struct op_ctx *c);
double op_flops_matmul(const struct op_ctx *c);
double op_flops_input(const struct op_ctx *c); /* one per element read */
double op_flops_nary(const struct op_ctx *c);  /* inputs - 1 per output element */
double op_flops_softmax(const struct op_ctx *c);
double op_flops_norm(const struct op_ctx *c);
double op_flops_zero(const struct op_ctx *c);
double op_flops_attention(const struct op_ctx *c);
double op_flops_deconv(const struct op_ctx *c);
double op_flops_rnn(const struct op_ctx *c);
double op_flops_einsum(const struct op_ctx *c);
double op_flops_resize(const struct op_ctx *c);
double op_flops_grid_sample(const struct op_ctx *c);
double op_flops_roi_align(const struct op_ctx *c);
double op_flops_dft(const struct op_ctx *c);
double op_flops_qlinear_matmul(const struct op_ctx *c); /* and MatMulInteger */
double op_flops_qlinear_conv(const struct op_ctx *c);   /* and ConvInteger */
double op_flops_sort(const struct op_ctx *c);
double op_flops_nms(const struct op_ctx *c);
double op_flops_lrn(const struct op_ctx *c);
double op_flops_det(const struct op_ctx *c);
double op_flops_norm_grad(const struct op_ctx *c);
double op_flops_optimiser(const struct op_ctx *c);
double op_flops_conv_grad(const struct op_ctx *c);
double op_flops_pool_grad(const struct op_ctx *c);
double op_flops_batchnorm(const struct op_ctx *c);

#endif
