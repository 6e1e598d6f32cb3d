/* The op table: one row per op. To add an op: a row here, its rule in the family's file, a kernel in ref, a template in
 * tests/conformance/op_templates.h.
 *
 * Own ops (domain ai.yoke), made by passes_fuse:
 *   FusedConv X W [B] [R]: Conv with its attributes, then + R (same shape as Y), then the activation.
 *   PreactConv X W B scale shift X2...: the inputs side by side along the channels, scale * x + shift by channel, relu,
 *     then a Conv of kernel 1, then the activation.
 *   FusedGemm A B [C]: Gemm with its attributes, then the activation; A may have more than two axes (the leading ones
 *     are rows; transA 0 then, and C has at most one axis).
 *   Attention Q K V [M]: softmax over keys of (scale * Q K' + M), times V; M broadcasts to batch, heads, queries, keys.
 *     layout "rows" (default): Q (batch, length, columns), K, V and Y likewise; "time": (length, batch, columns). There
 *     heads * size columns from q_at (k_at; heads * v_size from v_at) are used: Q, K and V may be one tensor.
 *     "heads": Q (batch, heads, length, size), no further attributes but scale.
 *   activation: "none" (default), "relu", "silu", ... with their parameters: the table in common/activation.c.
 * made by passes_train: Gelu X (with erf), Silu X.
 * made by grad; `shape` is an int64 list, Shape of what the gradient is of:
 *   ConvGradInput dY W shape, ConvGradWeight X dY (kernel_shape is required): with the attributes of Conv.
 *   MaxPoolGrad dY X: with those of MaxPool; the first maximum of a window takes it. AveragePoolGrad dY shape.
 *   BatchNormTrain X scale B mean var -> Y, new mean and var (unbiased; old * momentum + batch * (1 - momentum)), batch
 *     mean, 1 / sqrt(batch variance + epsilon). BatchNormGrad dY X scale, the last two -> dX dscale dB.
 *   ReluGrad dY Y: dY where Y is not <= 0.
 *   SumTo dY shape: the sum over what broadcasting repeated. ReduceGrad dY shape (axes, keepdims, mean): dY repeated.
 *   UnaryGrad dY V (of: the op, with its attributes): dY times the derivative; V is Y of Sigmoid, HardSigmoid, Tanh,
 *     Elu, Celu, Selu, Softplus, Softsign, Exp, Sqrt, Reciprocal, Tan, X of the others (LeakyRelu: X or Y).
 *   ClipGrad dY Y [min] [max]: dY where Y is inside. DropoutGrad dY mask [ratio] [training].
 *   SoftmaxGrad, LogSoftmaxGrad dY Y. ReduceProdGrad, LRNGrad dY X.
 *   LayerNormGrad, InstanceNormGrad dY X scale -> dX dscale dB.
 *   GatherGrad, SliceGrad, TileGrad, PadGrad, ResizeGrad dY shape, then the op's inputs from the second on.
 *   Loss scores target divisor (kind: cross-entropy, nll, mse, l1, bce; label_smoothing, ignore_index): the sum over
 *     class ids or the samples' means, divided. LossGrad, of the same inputs: its gradient. */
#include <string.h>

#include "common/op_rules.h"

#define VARIADIC OP_MAX_IN
#define VARIADIC_OUT OP_MAX_OUT

#define EW OP_ELEMENTWISE
#define MOVE (OP_SHAPE)
#define VIEW (OP_SHAPE | OP_VIEW)
#define TRAINING "ai.onnx.preview.training"

/* name, domain, inputs, outputs, since, flags, rule, flops */
static const struct op ops[] = {
    /* contractions */
    {"Conv", "", 2, 3, 1, 1, 11, OP_CONTRACTION, op_rule_conv, op_flops_conv},
    {"FusedConv", "ai.yoke", 2, 4, 1, 1, 1, OP_CONTRACTION, op_rule_conv, op_flops_conv},
    {"PreactConv", "ai.yoke", 5, VARIADIC, 1, 1, 1, OP_CONTRACTION, op_rule_preact, op_flops_preact},
    {"Gemm", "", 2, 3, 1, 1, 13, OP_CONTRACTION, op_rule_gemm, op_flops_gemm},
    {"FusedGemm", "ai.yoke", 2, 3, 1, 1, 1, OP_CONTRACTION, op_rule_fused_gemm, op_flops_gemm},
    {"Attention", "ai.yoke", 3, 4, 1, 1, 1, OP_CONTRACTION, op_rule_attention, op_flops_attention},
    {"MatMul", "", 2, 2, 1, 1, 13, OP_CONTRACTION, op_rule_matmul, op_flops_matmul},
    {"ConvTranspose", "", 2, 3, 1, 1, 11, OP_CONTRACTION, op_rule_deconv, op_flops_deconv},
    {"RNN", "", 3, 6, 1, 2, 14, OP_CONTRACTION, op_rule_rnn, op_flops_rnn},
    {"GRU", "", 3, 6, 1, 2, 14, OP_CONTRACTION, op_rule_rnn, op_flops_rnn},
    {"LSTM", "", 3, 8, 1, 3, 14, OP_CONTRACTION, op_rule_rnn, op_flops_rnn},
    {"Einsum", "", 1, VARIADIC, 1, 1, 12, OP_CONTRACTION, op_rule_einsum, op_flops_einsum},
    {"Resize", "", 1, 4, 1, 1, 13, 0, op_rule_resize, op_flops_resize},
    {"GridSample", "", 2, 2, 1, 1, 16, 0, op_rule_grid_sample, op_flops_grid_sample},
    {"RoiAlign", "", 3, 3, 1, 1, 16, 0, op_rule_roi_align, op_flops_roi_align},
    {"MaxRoiPool", "", 2, 2, 1, 1, 1, 0, op_rule_max_roi_pool, op_flops_input},
    {"MaxUnpool", "", 2, 3, 1, 1, 11, MOVE, op_rule_max_unpool, op_flops_zero},
    {"LpPool", "", 1, 1, 1, 1, 11, 0, op_rule_lp_pool, op_flops_pool},
    {"GlobalLpPool", "", 1, 1, 1, 1, 2, 0, op_rule_global_lp_pool, op_flops_input},
    {"ReverseSequence", "", 2, 2, 1, 1, 10, MOVE, op_rule_reverse_sequence, op_flops_zero},
    {"DFT", "", 1, 2, 1, 1, 17, 0, op_rule_dft, op_flops_dft},
    {"STFT", "", 2, 4, 1, 1, 17, 0, op_rule_stft, op_flops_dft},
    {"HannWindow", "", 1, 1, 1, 1, 17, 0, op_rule_window, NULL},
    {"HammingWindow", "", 1, 1, 1, 1, 17, 0, op_rule_window, NULL},
    {"BlackmanWindow", "", 1, 1, 1, 1, 17, 0, op_rule_window, NULL},
    {"MelWeightMatrix", "", 5, 5, 1, 1, 17, 0, op_rule_mel, NULL},
    /* pooling */
    {"MaxPool", "", 1, 1, 1, 2, 12, 0, op_rule_max_pool, op_flops_pool},
    {"AveragePool", "", 1, 1, 1, 1, 11, 0, op_rule_average_pool, op_flops_pool},
    {"GlobalAveragePool", "", 1, 1, 1, 1, 1, 0, op_rule_global_pool, op_flops_input},
    {"GlobalMaxPool", "", 1, 1, 1, 1, 1, 0, op_rule_global_pool, op_flops_input},
    /* normalisation */
    {"BatchNormalization", "", 5, 5, 1, 3, 15, 0, op_rule_batchnorm, NULL},
    {"LayerNormalization", "", 2, 3, 1, 3, 17, 0, op_rule_layernorm, op_flops_norm},
    {"InstanceNormalization", "", 3, 3, 1, 1, 6, 0, op_rule_instancenorm, op_flops_norm},
    {"Softmax", "", 1, 1, 1, 1, 13, 0, op_rule_softmax, op_flops_softmax},
    {"LogSoftmax", "", 1, 1, 1, 1, 13, 0, op_rule_softmax, op_flops_softmax},
    /* elementwise, one input */
    {"Relu", "", 1, 1, 1, 1, 14, EW, op_rule_relu, NULL},
    {"LeakyRelu", "", 1, 1, 1, 1, 16, EW, op_rule_unary_float, NULL},
    {"Elu", "", 1, 1, 1, 1, 6, EW, op_rule_unary_float, NULL},
    {"Celu", "", 1, 1, 1, 1, 12, EW, op_rule_unary_float, NULL},
    {"Selu", "", 1, 1, 1, 1, 6, EW, op_rule_unary_float, NULL},
    {"Shrink", "", 1, 1, 1, 1, 9, EW, op_rule_unary_float, NULL},
    {"Gelu", "ai.yoke", 1, 1, 1, 1, 1, EW, op_rule_unary_float, NULL},
    {"Silu", "ai.yoke", 1, 1, 1, 1, 1, EW, op_rule_unary_float, NULL},
    {"Softsign", "", 1, 1, 1, 1, 1, EW, op_rule_unary_float, NULL},
    {"ThresholdedRelu", "", 1, 1, 1, 1, 10, EW, op_rule_unary_float, NULL},
    {"PRelu", "", 2, 2, 1, 1, 16, EW, op_rule_prelu, NULL},
    {"Clip", "", 1, 3, 1, 1, 13, EW, op_rule_clip, NULL},
    {"Sigmoid", "", 1, 1, 1, 1, 13, EW, op_rule_unary_float, NULL},
    {"HardSigmoid", "", 1, 1, 1, 1, 6, EW, op_rule_unary_float, NULL},
    {"HardSwish", "", 1, 1, 1, 1, 14, EW, op_rule_unary_float, NULL},
    {"Tanh", "", 1, 1, 1, 1, 13, EW, op_rule_unary_float, NULL},
    {"Softplus", "", 1, 1, 1, 1, 1, EW, op_rule_unary_float, NULL},
    {"Erf", "", 1, 1, 1, 1, 13, EW, op_rule_unary_float, NULL},
    {"Exp", "", 1, 1, 1, 1, 13, EW, op_rule_unary_float, NULL},
    {"Log", "", 1, 1, 1, 1, 13, EW, op_rule_unary_float, NULL},
    {"Sqrt", "", 1, 1, 1, 1, 13, EW, op_rule_unary_float, NULL},
    {"Reciprocal", "", 1, 1, 1, 1, 13, EW, op_rule_unary_float, NULL},
    {"Sin", "", 1, 1, 1, 1, 7, EW, op_rule_unary_float, NULL},
    {"Cos", "", 1, 1, 1, 1, 7, EW, op_rule_unary_float, NULL},
    {"Tan", "", 1, 1, 1, 1, 7, EW, op_rule_unary_float, NULL},
    {"Acos", "", 1, 1, 1, 1, 7, EW, op_rule_unary_float, NULL},
    {"Asin", "", 1, 1, 1, 1, 7, EW, op_rule_unary_float, NULL},
    {"Atan", "", 1, 1, 1, 1, 7, EW, op_rule_unary_float, NULL},
    {"Sinh", "", 1, 1, 1, 1, 9, EW, op_rule_unary_float, NULL},
    {"Cosh", "", 1, 1, 1, 1, 9, EW, op_rule_unary_float, NULL},
    {"Asinh", "", 1, 1, 1, 1, 9, EW, op_rule_unary_float, NULL},
    {"Acosh", "", 1, 1, 1, 1, 9, EW, op_rule_unary_float, NULL},
    {"Atanh", "", 1, 1, 1, 1, 9, EW, op_rule_unary_float, NULL},
    {"Floor", "", 1, 1, 1, 1, 13, EW, op_rule_unary_float, NULL},
    {"Ceil", "", 1, 1, 1, 1, 13, EW, op_rule_unary_float, NULL},
    {"Round", "", 1, 1, 1, 1, 11, EW, op_rule_unary_float, NULL},
    {"Neg", "", 1, 1, 1, 1, 13, EW, op_rule_unary_signed, NULL},
    {"Abs", "", 1, 1, 1, 1, 13, EW, op_rule_unary_number, NULL},
    {"Sign", "", 1, 1, 1, 1, 13, EW, op_rule_unary_number, NULL},
    {"Not", "", 1, 1, 1, 1, 1, EW, op_rule_not, NULL},
    {"Cast", "", 1, 1, 1, 1, 13, EW, op_rule_cast, NULL},
    {"CastLike", "", 2, 2, 1, 1, 15, EW, op_rule_cast_like, NULL},
    {"IsNaN", "", 1, 1, 1, 1, 13, EW, op_rule_is_nan, NULL},
    {"IsInf", "", 1, 1, 1, 1, 10, EW, op_rule_is_nan, NULL},
    /* elementwise with broadcast */
    {"Add", "", 2, 2, 1, 1, 14, EW, op_rule_arith, NULL},
    {"Sub", "", 2, 2, 1, 1, 14, EW, op_rule_arith, NULL},
    {"Mul", "", 2, 2, 1, 1, 14, EW, op_rule_arith, NULL},
    {"Div", "", 2, 2, 1, 1, 14, EW, op_rule_arith, NULL},
    {"Pow", "", 2, 2, 1, 1, 15, EW, op_rule_pow, NULL},
    {"Mod", "", 2, 2, 1, 1, 13, EW, op_rule_mod, NULL},
    {"BitShift", "", 2, 2, 1, 1, 11, EW, op_rule_bit_shift, NULL},
    {"Min", "", 1, VARIADIC, 1, 1, 13, EW, op_rule_arith, op_flops_nary},
    {"Max", "", 1, VARIADIC, 1, 1, 13, EW, op_rule_arith, op_flops_nary},
    {"Sum", "", 1, VARIADIC, 1, 1, 13, EW, op_rule_arith_float, op_flops_nary},
    {"Mean", "", 1, VARIADIC, 1, 1, 13, EW, op_rule_arith_float, op_flops_nary},
    {"Equal", "", 2, 2, 1, 1, 13, EW, op_rule_equal, NULL},
    {"Greater", "", 2, 2, 1, 1, 13, EW, op_rule_compare, NULL},
    {"GreaterOrEqual", "", 2, 2, 1, 1, 16, EW, op_rule_compare, NULL},
    {"Less", "", 2, 2, 1, 1, 13, EW, op_rule_compare, NULL},
    {"LessOrEqual", "", 2, 2, 1, 1, 16, EW, op_rule_compare, NULL},
    {"And", "", 2, 2, 1, 1, 7, EW, op_rule_logic, NULL},
    {"Or", "", 2, 2, 1, 1, 7, EW, op_rule_logic, NULL},
    {"Xor", "", 2, 2, 1, 1, 7, EW, op_rule_logic, NULL},
    {"Where", "", 3, 3, 1, 1, 16, EW, op_rule_where, NULL},
    /* reductions */
    {"ReduceMean", "", 1, 1, 1, 1, 13, 0, op_rule_reduce, op_flops_input},
    {"ReduceSum", "", 1, 2, 1, 1, 13, 0, op_rule_reduce, op_flops_input},
    {"ReduceMax", "", 1, 1, 1, 1, 13, 0, op_rule_reduce, op_flops_input},
    {"ReduceMin", "", 1, 1, 1, 1, 13, 0, op_rule_reduce, op_flops_input},
    {"ReduceProd", "", 1, 1, 1, 1, 13, 0, op_rule_reduce, op_flops_input},
    {"ReduceSumSquare", "", 1, 1, 1, 1, 13, 0, op_rule_reduce, op_flops_input},
    {"ReduceL2", "", 1, 1, 1, 1, 13, 0, op_rule_reduce, op_flops_input},
    {"ReduceL1", "", 1, 1, 1, 1, 13, 0, op_rule_reduce, op_flops_input},
    {"ReduceLogSum", "", 1, 1, 1, 1, 13, 0, op_rule_reduce, op_flops_input},
    {"ReduceLogSumExp", "", 1, 1, 1, 1, 13, 0, op_rule_reduce, op_flops_input},
    {"ArgMax", "", 1, 1, 1, 1, 13, 0, op_rule_argmax, op_flops_input},
    {"ArgMin", "", 1, 1, 1, 1, 13, 0, op_rule_argmax, op_flops_input},
    {"CumSum", "", 2, 2, 1, 1, 14, 0, op_rule_cumsum, NULL},
    /* same bytes, other shape */
    {"Identity", "", 1, 1, 1, 1, 16, VIEW, op_rule_identity, NULL},
    {"Flatten", "", 1, 1, 1, 1, 13, VIEW, op_rule_flatten, NULL},
    {"Reshape", "", 2, 2, 1, 1, 14, VIEW, op_rule_reshape, NULL},
    {"Squeeze", "", 1, 2, 1, 1, 13, VIEW, op_rule_squeeze, NULL},
    {"Unsqueeze", "", 2, 2, 1, 1, 13, VIEW, op_rule_unsqueeze, NULL},
    /* moving and making */
    {"Dropout", "", 1, 3, 1, 2, 13, MOVE | OP_RANDOM, op_rule_dropout, op_flops_zero},
    {"Transpose", "", 1, 1, 1, 1, 13, MOVE, op_rule_transpose, op_flops_zero},
    {"Concat", "", 1, VARIADIC, 1, 1, 13, MOVE, op_rule_concat, op_flops_zero},
    {"Split", "", 1, 2, 1, VARIADIC_OUT, 13, MOVE, op_rule_split, op_flops_zero},
    {"Slice", "", 3, 5, 1, 1, 13, MOVE, op_rule_slice, op_flops_zero},
    {"Gather", "", 2, 2, 1, 1, 13, MOVE, op_rule_gather, op_flops_zero},
    {"GatherElements", "", 2, 2, 1, 1, 13, MOVE, op_rule_gather_elements, op_flops_zero},
    {"GatherND", "", 2, 2, 1, 1, 13, MOVE, op_rule_gather_nd, op_flops_zero},
    {"ScatterElements", "", 3, 3, 1, 1, 16, MOVE, op_rule_scatter_elements, op_flops_zero},
    {"ScatterND", "", 3, 3, 1, 1, 16, MOVE, op_rule_scatter_nd, op_flops_zero},
    {"Expand", "", 2, 2, 1, 1, 13, MOVE, op_rule_expand, op_flops_zero},
    {"Tile", "", 2, 2, 1, 1, 13, MOVE, op_rule_tile, op_flops_zero},
    {"Pad", "", 2, 3, 1, 1, 13, MOVE, op_rule_pad, op_flops_zero},
    {"DepthToSpace", "", 1, 1, 1, 1, 13, MOVE, op_rule_depth_to_space, op_flops_zero},
    {"SpaceToDepth", "", 1, 1, 1, 1, 13, MOVE, op_rule_space_to_depth, op_flops_zero},
    {"Trilu", "", 1, 2, 1, 1, 14, MOVE, op_rule_trilu, op_flops_zero},
    {"Shape", "", 1, 1, 1, 1, 15, MOVE, op_rule_shape, op_flops_zero},
    {"Size", "", 1, 1, 1, 1, 13, MOVE, op_rule_size, op_flops_zero},
    {"Constant", "", 0, 0, 1, 1, 13, MOVE, op_rule_constant, op_flops_zero},
    {"ConstantOfShape", "", 1, 1, 1, 1, 9, MOVE, op_rule_constant_of_shape, op_flops_zero},
    {"Range", "", 3, 3, 1, 1, 11, MOVE, op_rule_range, op_flops_zero},
    {"EyeLike", "", 1, 1, 1, 1, 9, MOVE, op_rule_eye_like, op_flops_zero},
    {"OneHot", "", 3, 3, 1, 1, 11, MOVE, op_rule_one_hot, op_flops_zero},
    /* control flow; sequences and optionals */
    {"If", "", 1, 1, 1, VARIADIC_OUT, 16, OP_CONTROL, op_rule_values, op_flops_zero},
    {"Loop", "", 2, VARIADIC, 1, VARIADIC_OUT, 16, OP_CONTROL, op_rule_values, op_flops_zero},
    {"Scan", "", 1, VARIADIC, 1, VARIADIC_OUT, 16, OP_CONTROL, op_rule_values, op_flops_zero},
    {"BatchScan", "ai.yoke", 2, VARIADIC, 1, VARIADIC_OUT, 1, OP_CONTROL, op_rule_values, op_flops_zero},
    {"SequenceMap", "", 1, VARIADIC, 1, VARIADIC_OUT, 17, OP_CONTROL, op_rule_values, op_flops_zero},
    {"SequenceConstruct", "", 1, VARIADIC, 1, 1, 11, OP_VALUES, op_rule_values, op_flops_zero},
    {"SequenceEmpty", "", 0, 0, 1, 1, 11, OP_VALUES, op_rule_values, op_flops_zero},
    {"SequenceInsert", "", 2, 3, 1, 1, 11, OP_VALUES, op_rule_values, op_flops_zero},
    {"SequenceErase", "", 1, 2, 1, 1, 11, OP_VALUES, op_rule_values, op_flops_zero},
    {"SequenceAt", "", 2, 2, 1, 1, 11, OP_VALUES, op_rule_values, op_flops_zero},
    {"SequenceLength", "", 1, 1, 1, 1, 11, OP_VALUES, op_rule_values, op_flops_zero},
    {"ConcatFromSequence", "", 1, 1, 1, 1, 11, OP_VALUES, op_rule_values, op_flops_zero},
    {"SplitToSequence", "", 1, 2, 1, 1, 11, OP_VALUES, op_rule_values, op_flops_zero},
    {"Optional", "", 0, 1, 1, 1, 15, OP_VALUES, op_rule_values, op_flops_zero},
    {"OptionalHasElement", "", 1, 1, 1, 1, 15, OP_VALUES, op_rule_values, op_flops_zero},
    {"OptionalGetElement", "", 1, 1, 1, 1, 15, OP_VALUES, op_rule_values, op_flops_zero},
    /* quantised */
    {"QuantizeLinear", "", 2, 3, 1, 1, 13, 0, op_rule_quantize, op_flops_input},
    {"DequantizeLinear", "", 2, 3, 1, 1, 13, 0, op_rule_dequantize, op_flops_input},
    {"DynamicQuantizeLinear", "", 1, 1, 3, 3, 11, 0, op_rule_dynamic_quantize, op_flops_input},
    {"MatMulInteger", "", 2, 4, 1, 1, 10, OP_CONTRACTION, op_rule_matmul_integer, op_flops_qlinear_matmul},
    {"QLinearMatMul", "", 8, 8, 1, 1, 10, OP_CONTRACTION, op_rule_qlinear_matmul, op_flops_qlinear_matmul},
    {"ConvInteger", "", 2, 4, 1, 1, 10, OP_CONTRACTION, op_rule_conv_integer, op_flops_qlinear_conv},
    {"QLinearConv", "", 8, 9, 1, 1, 10, OP_CONTRACTION, op_rule_qlinear_conv, op_flops_qlinear_conv},
    /* chosen by value */
    {"NonZero", "", 1, 1, 1, 1, 13, OP_DATA_SHAPE, op_rule_nonzero, op_flops_input},
    {"Compress", "", 2, 2, 1, 1, 11, OP_DATA_SHAPE, op_rule_compress, op_flops_zero},
    {"Unique", "", 1, 1, 1, 4, 11, OP_DATA_SHAPE, op_rule_unique, op_flops_sort},
    {"NonMaxSuppression", "", 2, 5, 1, 1, 11, OP_DATA_SHAPE, op_rule_nms, op_flops_nms},
    {"TopK", "", 2, 2, 2, 2, 11, 0, op_rule_topk, op_flops_sort},
    /* features */
    {"LRN", "", 1, 1, 1, 1, 13, 0, op_rule_lrn, op_flops_lrn},
    {"MeanVarianceNormalization", "", 1, 1, 1, 1, 13, 0, op_rule_mvn, op_flops_norm},
    {"LpNormalization", "", 1, 1, 1, 1, 1, 0, op_rule_lp_normalization, op_flops_norm},
    {"Hardmax", "", 1, 1, 1, 1, 13, 0, op_rule_softmax, op_flops_input},
    {"Det", "", 1, 1, 1, 1, 11, 0, op_rule_det, op_flops_det},
    {"TfIdfVectorizer", "", 1, 1, 1, 1, 9, 0, op_rule_tfidf, op_flops_input},
    /* losses and optimisers */
    {"NegativeLogLikelihoodLoss", "", 2, 3, 1, 1, 13, 0, op_rule_nll_loss, op_flops_input},
    {"SoftmaxCrossEntropyLoss", "", 2, 3, 1, 2, 13, 0, op_rule_sce_loss, op_flops_softmax},
    {"Adagrad", TRAINING, 5, VARIADIC, 1, VARIADIC_OUT, 1, 0, op_rule_adagrad, op_flops_optimiser},
    {"Adam", TRAINING, 6, VARIADIC, 1, VARIADIC_OUT, 1, 0, op_rule_adam, op_flops_optimiser},
    {"Momentum", TRAINING, 5, VARIADIC, 1, VARIADIC_OUT, 1, 0, op_rule_momentum, op_flops_optimiser},
    /* gradients */
    {"ConvGradInput", "ai.yoke", 3, 3, 1, 1, 1, OP_CONTRACTION, op_rule_conv_grad_input, op_flops_conv_grad},
    {"ConvGradWeight", "ai.yoke", 2, 2, 1, 1, 1, OP_CONTRACTION, op_rule_conv_grad_weight, op_flops_conv_grad},
    {"MaxPoolGrad", "ai.yoke", 2, 2, 1, 1, 1, 0, op_rule_max_pool_grad, op_flops_pool_grad},
    {"AveragePoolGrad", "ai.yoke", 2, 2, 1, 1, 1, 0, op_rule_average_pool_grad, op_flops_pool_grad},
    {"BatchNormTrain", "ai.yoke", 5, 5, 1, 5, 1, 0, op_rule_batchnorm_train, op_flops_batchnorm},
    {"BatchNormGrad", "ai.yoke", 5, 5, 1, 3, 1, 0, op_rule_batchnorm_grad, op_flops_batchnorm},
    {"ReluGrad", "ai.yoke", 2, 2, 1, 1, 1, EW, op_rule_relu_grad, NULL},
    {"SumTo", "ai.yoke", 2, 2, 1, 1, 1, 0, op_rule_sum_to, op_flops_input},
    {"UnaryGrad", "ai.yoke", 2, 2, 1, 1, 1, EW, op_rule_unary_grad, NULL},
    {"ClipGrad", "ai.yoke", 2, 4, 1, 1, 1, EW, op_rule_clip_grad, NULL},
    {"DropoutGrad", "ai.yoke", 2, 4, 1, 1, 1, EW, op_rule_dropout_grad, NULL},
    {"SoftmaxGrad", "ai.yoke", 2, 2, 1, 1, 1, 0, op_rule_softmax_grad, op_flops_softmax},
    {"LogSoftmaxGrad", "ai.yoke", 2, 2, 1, 1, 1, 0, op_rule_softmax_grad, op_flops_softmax},
    {"ReduceGrad", "ai.yoke", 2, 2, 1, 1, 1, 0, op_rule_reduce_grad, NULL},
    {"ReduceProdGrad", "ai.yoke", 2, 2, 1, 1, 1, 0, op_rule_reduce_prod_grad, NULL},
    {"LayerNormGrad", "ai.yoke", 3, 3, 1, 3, 1, 0, op_rule_layernorm_grad, op_flops_norm_grad},
    {"InstanceNormGrad", "ai.yoke", 3, 3, 1, 3, 1, 0, op_rule_instancenorm_grad, op_flops_norm_grad},
    {"LRNGrad", "ai.yoke", 2, 2, 1, 1, 1, 0, op_rule_lrn_grad, op_flops_lrn},
    {"GatherGrad", "ai.yoke", 3, 3, 1, 1, 1, 0, op_rule_move_grad, op_flops_input},
    {"SliceGrad", "ai.yoke", 4, 6, 1, 1, 1, MOVE, op_rule_move_grad, op_flops_zero},
    {"TileGrad", "ai.yoke", 3, 3, 1, 1, 1, 0, op_rule_move_grad, op_flops_input},
    {"PadGrad", "ai.yoke", 3, 3, 1, 1, 1, 0, op_rule_move_grad, op_flops_input},
    {"ResizeGrad", "ai.yoke", 2, 5, 1, 1, 1, 0, op_rule_move_grad, op_flops_input},
    {"Loss", "ai.yoke", 3, 3, 1, 1, 1, 0, op_rule_loss, op_flops_softmax},
    {"LossGrad", "ai.yoke", 3, 3, 1, 1, 1, 0, op_rule_loss_grad, op_flops_softmax},
    /* random numbers */
    {"RandomUniform", "", 0, 0, 1, 1, 1, OP_RANDOM, op_rule_random, NULL},
    {"RandomNormal", "", 0, 0, 1, 1, 1, OP_RANDOM, op_rule_random, NULL},
    {"RandomUniformLike", "", 1, 1, 1, 1, 1, OP_RANDOM, op_rule_random_like, NULL},
    {"RandomNormalLike", "", 1, 1, 1, 1, 1, OP_RANDOM, op_rule_random_like, NULL},
    {"Bernoulli", "", 1, 1, 1, 1, 15, OP_RANDOM, op_rule_bernoulli, NULL},
    {"Multinomial", "", 1, 1, 1, 1, 7, OP_RANDOM, op_rule_multinomial, op_flops_input},
};

const struct op *op_find(const char *domain, const char *name)
{
    if (strcmp(domain, "ai.onnx") == 0)
        domain = "";
    for (size_t i = 0; i < YK_COUNT(ops); i++)
        if (ops[i].name[0] == name[0] && strcmp(ops[i].name, name) == 0 && strcmp(ops[i].domain, domain) == 0)
            return &ops[i];
    return NULL;
}

int op_count(void)
{
    return (int)YK_COUNT(ops);
}

const struct op *op_at(int i)
{
    return i >= 0 && i < op_count() ? &ops[i] : NULL;
}

static yk_err check_inputs(const struct op_ctx *c)
{
    const struct op *op = c->node->op;
    if (c->n_in < op->min_in || c->n_in > op->max_in)
        return yk_fail(c->why, YK_INVAL, "%d inputs, wants %d to %d", c->n_in, op->min_in, op->max_in);
    if (c->n_out < op->min_out || c->n_out > op->max_out)
        return yk_fail(c->why, YK_INVAL, "%d outputs, wants %d to %d", c->n_out, op->min_out, op->max_out);
    /* Of a variadic list every member counts; else optional inputs come behind the required ones. */
    int required = op->max_in == VARIADIC ? c->n_in : op->min_in;
    for (int i = 0; i < c->n_in; i++) {
        if (!c->in[i]) {
            if (i < required)
                return yk_fail(c->why, YK_INVAL, "input %d is missing", i);
            continue;
        }
        if (c->in[i]->dtype == DT_NONE || c->in[i]->rank < 0)
            return yk_fail(c->why, YK_DEPENDS, "type or rank of input %d is not known", i);
        int64_t bytes = shape_bytes(c->in[i]);
        for (int k = 0; bytes < 0 && k < c->in[i]->rank; k++)
            if (c->in[i]->dims[k] < 0)
                return yk_fail(c->why, YK_DEPENDS, "axis %d of input %d has a size that depends on data", k, i);
        if (bytes < 0)
            return yk_fail(c->why, YK_LIMIT, "input %d is too large", i);
    }
    return YK_OK;
}

yk_err op_infer(struct op_ctx *c)
{
    yk_err err = check_inputs(c);
    if (err)
        return err;
    for (int i = 0; i < c->n_out; i++) {
        c->out[i] = (struct shape){.dtype = DT_NONE, .rank = 0};
        c->out_known[i] = false;
        c->most[i] = -1;
    }
    err = c->node->op->infer(c);
    if (err)
        return err;
    for (int i = 0; i < c->n_out; i++) {
        const struct shape *s = &c->out[i];
        if (s->rank > YK_MAX_RANK)
            return yk_fail(c->why, YK_LIMIT, "output %d would have %d axes, the limit is %d", i, s->rank, YK_MAX_RANK);
        if (s->dtype == DT_NONE)
            return yk_fail(c->why, YK_INTERNAL, "no type for output %d", i);
        if (shape_bytes(s) < 0 && !(c->node->op->flags & OP_DATA_SHAPE && c->most[i] >= 0))
            return yk_fail(c->why, YK_LIMIT, "output %d is too large", i);
        if (c->out_known[i] && shape_count(s) > OP_MAX_CONTENT)
            c->out_known[i] = false;
    }
    return YK_OK;
}

/* Flops of a node that runs by its actual inputs are not known. */
static bool is_sized(const struct op_ctx *c)
{
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] && (c->in[i]->rank < 0 || shape_bytes(c->in[i]) < 0))
            return false;
    for (int i = 0; i < c->n_out; i++)
        if (c->node->out[i] != YK_ABSENT && shape_bytes(&c->out[i]) < 0)
            return false;
    return true;
}

double op_flops(const struct op_ctx *c)
{
    const struct op *op = c->node->op;
    if (!is_sized(c))
        return 0;
    if (op->flops)
        return op->flops(c);
    if (op->flags & (OP_SHAPE | OP_VIEW))
        return 0;
    return (double)YK_MAX(shape_count(&c->out[0]), 0);
}

double op_bytes(const struct op_ctx *c)
{
    double bytes = 0;
    if (c->node->op->flags & OP_VIEW)
        return 0;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i])
            bytes += (double)YK_MAX(shape_bytes(c->in[i]), 0);
    for (int i = 0; i < c->n_out; i++)
        bytes += (double)YK_MAX(shape_bytes(&c->out[i]), 0);
    return bytes;
}
