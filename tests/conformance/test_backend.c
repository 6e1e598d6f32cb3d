/* One suite for every backend: seeded random nodes of every op it claims, each of its forms against ref; odd sizes,
 * broadcasting, special values, batches smaller than loaded and empty ones; equal bits for 1, 2 and 3 threads.
 * A failure prints its seed; YOKE_CASE=N runs that one alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/host.h"
#include "tests/conformance/backend_gen.h"
#include "tests/tier.h"

#ifdef YOKE_FEW_CASES /* where a processor is emulated */
#define CASES 2
#define LARGE 0
#else
#define CASES 25 /* of each recipe */
#define LARGE 1
#endif
#define BATCH 3

static void gemm(struct gen *c, bool fused)
{
    bool ta = !fused && pick(c, 0, 1), tb = pick(c, 0, 1);
    int64_t k = odd(c) * pick(c, 1, 4), n = odd(c) * pick(c, 1, 4), m = odd(c);
    int rank = fused ? (int)pick(c, 2, 3) : 2;
    int64_t a[3] = {-1, rank == 3 ? m : k, k}, b[2] = {tb ? n : k, tb ? k : n};
    int64_t at[2] = {k, m}, bias[2] = {m, n};
    int32_t in[3] = {
        graphs_input(c->g, "a", DT_F32, ta ? 2 : rank, ta ? at : a), graphs_weight(c->g, "b", DT_F32, 2, b, &c->r), 0};
    int with = (int)pick(c, 0, 4);
    if (with == 1)
        in[2] = graphs_weight(c->g, "c", DT_F32, 1, &n, &c->r);
    else if (with == 2)
        in[2] = graphs_weight(c->g, "c", DT_F32, 0, NULL, &c->r);
    else if (with == 3 && ta)
        in[2] = graphs_weight(c->g, "c", DT_F32, 2, bias, &c->r);
    else if (with == 4 && ta)
        in[2] = graphs_weight(c->g, "c", DT_F32, 2, (int64_t[]){m, 1}, &c->r);
    else
        with = 0;
    finish(c, fused ? "ai.yoke" : "", fused ? "FusedGemm" : "Gemm", in, with ? 3 : 2);
    graph_set_attr_i(c->g, c->node, "transA", ta);
    graph_set_attr_i(c->g, c->node, "transB", tb);
    if (pick(c, 0, 1))
        graph_set_attr_f(c->g, c->node, "alpha", 0.75f);
    if (pick(c, 0, 1))
        graph_set_attr_f(c->g, c->node, "beta", -1.5f);
    if (fused)
        activation(c);
}

static void gen_gemm(struct gen *c)
{
    gemm(c, false);
}

static void gen_fused_gemm(struct gen *c)
{
    gemm(c, true);
}

static void gen_matmul(struct gen *c)
{
    int64_t m = odd(c), k = odd(c) * pick(c, 1, 3), n = odd(c), h = pick(c, 1, 4);
    int64_t a[4] = {-1, h, m, k}, flat[2] = {k, n}, heads[3] = {pick(c, 0, 1) ? 1 : h, k, n}, both[4] = {-1, h, k, n};
    int32_t in[2] = {graphs_input(c->g, "a", DT_F32, 4, a), 0};
    switch (pick(c, 0, 3)) {
    case 0:
        in[1] = graphs_weight(c->g, "b", DT_F32, 2, flat, &c->r);
        break;
    case 1:
        in[1] = graphs_weight(c->g, "b", DT_F32, 1, &k, &c->r);
        break;
    case 2:
        in[1] = graphs_input(c->g, "b", DT_F32, 3, heads);
        break;
    default:
        in[1] = graphs_input(c->g, "b", DT_F32, 4, both);
        break;
    }
    finish(c, "", "MatMul", in, 2);
}

/* Q, K and V are one tensor, two, or three; masks repeat along some axes. */
static void attention(struct gen *c, int64_t heads, int64_t lq, int64_t lk, int64_t size, int64_t v_size)
{
    int layout = (int)pick(c, 0, 2), b = layout == 1 ? 1 : 0;
    int64_t at[3] = {0}, extra = pick(c, 0, 5);
    bool one = layout < 2 && pick(c, 0, 1);
    int32_t in[4];
    lk = one ? lq : lk;
    for (int i = 0; i < 3; i++) {
        char name[2] = {"qkv"[i], 0};
        int64_t width = i == 2 ? v_size : size, length = i == 0 ? lq : lk;
        int64_t dims[4] = {-1, heads, length, width};
        at[i] = one ? extra + i * heads * size : layout < 2 ? extra : 0;
        if (layout < 2) {
            dims[b] = -1;
            dims[1 - b] = length;
            dims[2] = one ? 2 * extra + heads * (2 * size + v_size) : at[i] + heads * width + extra;
        }
        in[i] = one && i ? in[0] : graphs_input(c->g, name, DT_F32, layout == 2 ? 4 : 3, dims);
    }
    int masked = (int)pick(c, 0, 3);
    int64_t mask[4] = {masked == 3 ? -1 : 1, masked == 2 ? 1 : heads, masked == 1 ? 1 : lq, lk};
    if (masked)
        in[3] = graphs_input(c->g, "m", DT_F32, masked == 2 ? 2 : 4, masked == 2 ? mask + 2 : mask);
    finish(c, "ai.yoke", "Attention", in, masked ? 4 : 3);
    graph_set_attr_s(c->g, c->node, "layout", layout == 2 ? "heads" : layout == 1 ? "time" : "rows");
    graph_set_attr_f(c->g, c->node, "scale", 1.0f / sqrtf((float)size));
    if (layout == 2)
        return;
    graph_set_attr_i(c->g, c->node, "heads", heads);
    graph_set_attr_i(c->g, c->node, "size", size);
    graph_set_attr_i(c->g, c->node, "v_size", v_size);
    graph_set_attr_i(c->g, c->node, "q_at", at[0]);
    graph_set_attr_i(c->g, c->node, "k_at", at[1]);
    graph_set_attr_i(c->g, c->node, "v_at", at[2]);
}

static void gen_attention(struct gen *c)
{
    int64_t lq = odd(c), lk = odd(c), size = odd(c);
    attention(c, pick(c, 1, 4), lq, lk, size, odd(c));
}

/* Several blocks of queries, and more keys than a partial sum has terms. */
static void gen_attention_large(struct gen *c)
{
    attention(c, pick(c, 1, 2), pick(c, 40, 200), pick(c, 257, 700), 8, 9);
}

static void gen_deconv(struct gen *c)
{
    int spatial = (int)pick(c, 1, 3);
    int64_t group = pick(c, 0, 2) ? 1 : pick(c, 2, 4), per = pick(c, 1, 12), rows = pick(c, 1, 24), oc = rows * group;
    int64_t x[5] = {-1, per * group}, w[5] = {per * group, rows}, stride[3], dilation[3], extra[3], pads[6];
    for (int i = 0; i < spatial; i++) {
        x[2 + i] = pick(c, 1, spatial == 3 ? 4 : 11);
        w[2 + i] = pick(c, 1, 4);
        stride[i] = pick(c, 1, 3);
        dilation[i] = pick(c, 0, 2) ? 1 : 2;
        extra[i] = pick(c, 0, stride[i] - 1);
        pads[i] = pick(c, 0, w[2 + i] - 1);
        pads[spatial + i] = pick(c, 0, w[2 + i] - 1);
    }
    int32_t in[3] = {graphs_input(c->g, "x", DT_F32, spatial + 2, x),
        graphs_weight(c->g, "w", DT_F32, spatial + 2, w, &c->r), YK_ABSENT};
    if (pick(c, 0, 2))
        in[2] = graphs_weight(c->g, "b", DT_F32, 1, &oc, &c->r);
    finish(c, "", "ConvTranspose", in, 3);
    graph_set_attr_i(c->g, c->node, "group", group);
    graph_set_attr_ints(c->g, c->node, "strides", stride, (size_t)spatial);
    graph_set_attr_ints(c->g, c->node, "dilations", dilation, (size_t)spatial);
    graph_set_attr_ints(c->g, c->node, "output_padding", extra, (size_t)spatial);
    if (pick(c, 0, 3) == 0)
        graph_set_attr_s(c->g, c->node, "auto_pad", pick(c, 0, 1) ? "SAME_UPPER" : "SAME_LOWER");
    else
        graph_set_attr_ints(c->g, c->node, "pads", pads, (size_t)(2 * spatial));
}

/* Several blocks of channels and chunks of input. */
static void gen_deconv_large(struct gen *c)
{
    int64_t x[4] = {-1, 8, pick(c, 40, 50), pick(c, 40, 50)}, oc = pick(c, 20, 40), w[4] = {8, oc, 3, 4},
            stride[2] = {2, 2}, pads[4] = {1, 1, 1, 1};
    int32_t in[3] = {graphs_input(c->g, "x", DT_F32, 4, x), graphs_weight(c->g, "w", DT_F32, 4, w, &c->r),
        graphs_weight(c->g, "b", DT_F32, 1, &oc, &c->r)};
    finish(c, "", "ConvTranspose", in, 3);
    graph_set_attr_ints(c->g, c->node, "strides", stride, 2);
    graph_set_attr_ints(c->g, c->node, "pads", pads, 4);
}

static void gen_resize(struct gen *c)
{
    static const char *const coords[] = {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"};
    static const char *const modes[] = {"linear", "linear", "nearest"};
    static const float factors[] = {0.5f, 0.6f, 1, 1.5f, 2, 2.7f, 4};
    int64_t x[4] = {-1, pick(c, 1, 5), odd(c), odd(c)}, four = 4;
    int32_t in[3] = {
        graphs_input(c->g, "x", DT_F32, 4, x), YK_ABSENT, graphs_weight(c->g, "scales", DT_F32, 1, &four, &c->r)};
    float *scales = (float *)(uintptr_t)c->g->values[in[2]].data;
    scales[0] = 1;
    scales[1] = pick(c, 0, 5) ? 1 : 1.1f; /* keeps the size */
    for (int i = 2; i < 4; i++) {
        scales[i] = factors[pick(c, 0, (int64_t)YK_COUNT(factors) - 1)];
        if ((float)x[i] * scales[i] < 1)
            scales[i] = 1;
    }
    finish(c, "", "Resize", in, 3);
    graph_set_attr_s(c->g, c->node, "mode", modes[pick(c, 0, 2)]);
    graph_set_attr_s(c->g, c->node, "coordinate_transformation_mode", coords[pick(c, 0, 3)]);
}

static void rnn(struct gen *c, const char *op, int64_t gates, int64_t hidden, int64_t seq)
{
    static const char *const directions[] = {"forward", "reverse", "bidirectional"};
    int direction = (int)pick(c, 0, 2);
    int64_t dirs = direction == 2 ? 2 : 1, in_size = odd(c);
    int64_t x[3] = {-1, seq, in_size}, w[3] = {dirs, gates * hidden, in_size}, r[3] = {dirs, gates * hidden, hidden},
            b[2] = {dirs, 2 * gates * hidden};
    int32_t in[4] = {graphs_input(c->g, "x", DT_F32, 3, x), graphs_weight(c->g, "w", DT_F32, 3, w, &c->r),
        graphs_weight(c->g, "r", DT_F32, 3, r, &c->r), YK_ABSENT};
    if (pick(c, 0, 2))
        in[3] = graphs_weight(c->g, "b", DT_F32, 2, b, &c->r);
    /* As a trained cell: with larger weights a difference of an ulp would grow from step to step. */
    const struct value *v = &c->g->values[in[2]];
    for (int64_t i = 0, n = shape_count(&v->shape); i < n; i++)
        ((float *)(uintptr_t)v->data)[i] /= sqrtf((float)hidden);
    finish(c, "", op, in, 4);
    graph_set_attr_s(c->g, c->node, "direction", directions[direction]);
    graph_set_attr_i(c->g, c->node, "layout", 1); /* the batch is in front */
    graph_set_attr_i(c->g, c->node, "linear_before_reset", pick(c, 0, 1));
}

static void gen_rnn(struct gen *c)
{
    int kind = (int)pick(c, 0, 2);
    rnn(c, kind == 0 ? "LSTM" : kind == 1 ? "GRU" : "RNN", kind == 0 ? 4 : kind == 1 ? 3 : 1, odd(c), pick(c, 0, 9));
}

/* Steps split over hidden units. */
static void gen_rnn_large(struct gen *c)
{
    int kind = (int)pick(c, 0, 1);
    rnn(c, kind ? "GRU" : "LSTM", kind ? 3 : 4, pick(c, 260, 300), 2);
}

static void pool(struct gen *c, const char *op)
{
    int spatial = (int)pick(c, 1, 3);
    int64_t x[5] = {-1, pick(c, 1, 9)}, k[3];
    for (int i = 0; i < spatial; i++) {
        x[2 + i] = pick(c, 5, spatial == 3 ? 9 : 35);
        k[i] = pick(c, 1, 4);
    }
    int32_t in = graphs_input(c->g, "x", DT_F32, spatial + 2, x);
    finish(c, "", op, &in, 1);
    graph_set_attr_ints(c->g, c->node, "kernel_shape", k, (size_t)spatial);
    conv_attrs(c, spatial, k, !strcmp(op, "MaxPool"), 2);
    graph_set_attr_i(c->g, c->node, "ceil_mode", pick(c, 0, 1));
    if (op[0] == 'A')
        graph_set_attr_i(c->g, c->node, "count_include_pad", pick(c, 0, 1));
}

static void gen_max_pool(struct gen *c)
{
    pool(c, "MaxPool");
}

static void gen_average_pool(struct gen *c)
{
    pool(c, "AveragePool");
}

static void gen_global_pool(struct gen *c)
{
    int64_t x[4] = {-1, pick(c, 1, 20), odd(c), pick(c, 1, 9)};
    int32_t in = graphs_input(c->g, "x", DT_F32, (int)pick(c, 3, 4), x);
    finish(c, "", pick(c, 0, 1) ? "GlobalAveragePool" : "GlobalMaxPool", &in, 1);
}

static void gen_unary(struct gen *c)
{
    static const char *const ops[] = {"Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Erf", "Exp",
        "Sqrt", "Reciprocal", "Neg", "Abs"};
    int64_t x[3] = {-1, odd(c), odd(c) * pick(c, 1, 30)};
    int32_t in = graphs_input(c->g, "x", DT_F32, 3, x);
    finish(c, "", ops[pick(c, 0, (int64_t)YK_COUNT(ops) - 1)], &in, 1);
    if (!strcmp(c->node->op->name, "LeakyRelu"))
        graph_set_attr_f(c->g, c->node, "alpha", 0.3f);
    if (!strcmp(c->node->op->name, "HardSigmoid"))
        graph_set_attr_f(c->g, c->node, "alpha", 0.7f);
}

static void gen_clip(struct gen *c)
{
    int64_t x[2] = {-1, odd(c) * 7};
    int32_t in[3] = {graphs_input(c->g, "x", DT_F32, 2, x), YK_ABSENT, YK_ABSENT};
    if (pick(c, 0, 1))
        in[1] = graphs_weight(c->g, "lo", DT_F32, 0, NULL, &c->r);
    if (pick(c, 0, 1))
        in[2] = graphs_weight(c->g, "hi", DT_F32, 0, NULL, &c->r);
    finish(c, "", "Clip", in, 3);
}

static void gen_binary(struct gen *c)
{
    static const char *const ops[] = {"Add", "Sub", "Mul", "Div", "Pow"};
    int64_t a[4], b[4], n = pick(c, 1, 4);
    for (int i = 0; i < n; i++) {
        int64_t d = i == 0 ? -1 : odd(c) % 18 + 1;
        int one = (int)pick(c, 0, 4);
        a[i] = one == 1 && i ? 1 : d;
        b[i] = one == 2 && i ? 1 : d;
    }
    int skip = (int)pick(c, 0, n); /* leading axes that b does not have */
    const char *op = ops[pick(c, 0, 4)];
    int32_t in[2] = {graphs_input(c->g, "a", DT_F32, (int)n, a), 0};
    if (!strcmp(op, "Pow"))
        in[1] = graphs_weight(c->g, "b", DT_F32, 0, NULL, &c->r),
        *(float *)(uintptr_t)c->g->values[in[1]].data = (float)pick(c, 2, 4);
    else
        in[1] = graphs_input(c->g, "b", DT_F32, (int)n - skip, b + skip);
    finish(c, "", op, in, 2);
}

static void gen_softmax(struct gen *c)
{
    int64_t x[3] = {-1, odd(c), odd(c) * pick(c, 1, 9)};
    int32_t in = graphs_input(c->g, "x", DT_F32, 3, x);
    finish(c, "", pick(c, 0, 3) ? "Softmax" : "LogSoftmax", &in, 1);
    graph_set_attr_i(c->g, c->node, "axis", pick(c, 0, 3) ? -1 : 1);
}

static void gen_layer_norm(struct gen *c)
{
    int64_t x[3] = {-1, odd(c), odd(c) * 4};
    int axis = (int)pick(c, 1, 2);
    int32_t in[3] = {
        graphs_input(c->g, "x", DT_F32, 3, x), graphs_weight(c->g, "s", DT_F32, 3 - axis, x + axis, &c->r), YK_ABSENT};
    if (pick(c, 0, 1))
        in[2] = graphs_weight(c->g, "b", DT_F32, 3 - axis, x + axis, &c->r);
    finish(c, "", "LayerNormalization", in, in[2] < 0 ? 2 : 3);
    graph_set_attr_i(c->g, c->node, "axis", axis);
}

static void gen_batch_norm(struct gen *c)
{
    int64_t ch = pick(c, 1, 20), x[4] = {-1, ch, odd(c), pick(c, 1, 9)};
    int32_t in[5] = {graphs_input(c->g, "x", DT_F32, 4, x)};
    for (int i = 1; i < 5; i++)
        in[i] = graphs_weight(c->g, (char[]){(char)('a' + i), 0}, DT_F32, 1, &ch, &c->r);
    for (int64_t i = 0; i < ch; i++)
        ((float *)(uintptr_t)c->g->values[in[4]].data)[i] = 0.1f + (float)yk_rng_unit(&c->r);
    finish(c, "", "BatchNormalization", in, 5);
}

static void gen_reduce_mean(struct gen *c)
{
    int64_t x[4] = {-1, pick(c, 1, 9), odd(c), odd(c)}, axes[2] = {pick(c, 0, 1) ? -1 : 3, -2};
    int32_t in = graphs_input(c->g, "x", DT_F32, 4, x);
    finish(c, "", "ReduceMean", &in, 1);
    graph_set_attr_ints(c->g, c->node, "axes", axes, (size_t)pick(c, 1, 2));
    graph_set_attr_i(c->g, c->node, "keepdims", pick(c, 0, 1));
}

static void gen_move(struct gen *c)
{
    int64_t x[3] = {-1, odd(c), odd(c)}, perm[3] = {2, 0, 1};
    int32_t in[2] = {graphs_input(c->g, "x", DT_F32, 3, x), 0};
    switch (pick(c, 0, 3)) {
    case 0:
        in[1] = graphs_ints(c->g, "s", (int64_t[]){-1, x[1] * x[2]}, 2);
        finish(c, "", "Reshape", in, 2);
        break;
    case 1:
        finish(c, "", "Flatten", in, 1);
        break;
    case 2:
        finish(c, "", "Transpose", in, 1);
        graph_set_attr_ints(c->g, c->node, "perm", perm, 3);
        break;
    default:
        x[2] = odd(c);
        in[1] = graphs_input(c->g, "z", DT_F32, 3, x);
        finish(c, "", "Concat", in, 2);
        graph_set_attr_i(c->g, c->node, "axis", 2);
        break;
    }
}

enum nearness {
    EXACT, /* bit for bit where ref rounds once as well */
    ULPS,  /* |a - b| <= 4e-7 |b| + 2e-7: functions, sums in another order over few elements */
    NMSE,  /* sum (a - b)^2 <= 1e-12 sum b^2: contractions */
    WINO   /* 1e-10 of it: Winograd forms; around an infinity or NaN, finite values of ref may be NaN */
};

static const struct recipe {
    const char *name;
    void (*gen)(struct gen *c);
    enum nearness nearness;
    int cases;
} recipes[] = {
    {"Conv", gen_conv, NMSE, 3 * CASES},
    {"FusedConv", gen_fused_conv, NMSE, 3 * CASES},
    {"Conv, large", gen_conv_large, NMSE, 3},
    {"Gemm", gen_gemm, NMSE, 2 * CASES},
    {"FusedGemm", gen_fused_gemm, NMSE, 2 * CASES},
    {"MatMul", gen_matmul, NMSE, 2 * CASES},
    {"MaxPool", gen_max_pool, EXACT, 2 * CASES},
    {"AveragePool", gen_average_pool, ULPS, 2 * CASES},
    {"global pools", gen_global_pool, ULPS, CASES},
    {"unary", gen_unary, ULPS, 3 * CASES},
    {"Clip", gen_clip, EXACT, CASES},
    {"binary", gen_binary, ULPS, 3 * CASES},
    {"softmax", gen_softmax, ULPS, CASES},
    {"LayerNormalization", gen_layer_norm, NMSE, CASES},
    {"BatchNormalization", gen_batch_norm, ULPS, CASES},
    {"ReduceMean", gen_reduce_mean, ULPS, CASES},
    {"data movement", gen_move, EXACT, CASES},
    {"Conv 3x3", gen_conv3, NMSE, 3 * CASES},
    {"depthwise", gen_depthwise, NMSE, 2 * CASES},
    {"groups", gen_group, NMSE, CASES},
    {"Resize", gen_resize, ULPS, 3 * CASES},
    {"ConvTranspose", gen_deconv, NMSE, 2 * CASES},
    {"ConvTranspose, large", gen_deconv_large, NMSE, 2},
    {"RNN, GRU, LSTM", gen_rnn, NMSE, CASES},
    {"GRU, LSTM, large", gen_rnn_large, NMSE, 2},
    {"PreactConv", gen_preact, NMSE, 3 * CASES},
    {"PreactConv, large", gen_preact_large, NMSE, 2},
    {"ConvTranspose, apart", gen_deconv_apart, NMSE, 2 * CASES},
    {"attention", gen_attention, NMSE, 2 * CASES},
    {"attention, large", gen_attention_large, NMSE, 3},
};

static bool near_enough(const struct tensor *a, const struct tensor *b, enum nearness how)
{
    const float *x = a->data, *y = b->data;
    double diff = 0, power = 0;
    for (int64_t i = 0, n = tensor_count(a); i < n; i++) {
        if (isnan(x[i]) || isnan(y[i]) || isinf(x[i]) || isinf(y[i])) {
            bool spoilt = how == WINO && !(x[i] - x[i] == 0); /* but what ref has not finite is not finite here */
            if (!(isnan(x[i]) && isnan(y[i])) && x[i] != y[i] && !spoilt)
                return false;
            continue;
        }
        double d = (double)x[i] - (double)y[i];
        if (how == EXACT && x[i] != y[i])
            return false;
        if (how == ULPS && fabs(d) > 4e-7 * fabs((double)y[i]) + 2e-7)
            return false;
        diff += d * d;
        power += (double)y[i] * (double)y[i];
    }
    /* A single element may cancel; the mean of a whole tensor may not. */
    return how < NMSE || diff <= (how == WINO ? 1e-10 : 1e-12) * power + 1e-14 * (double)YK_MAX(tensor_count(a), 1);
}

/* Opens a stage of the one node in a form, runs it at batch n on the given inputs into *io. */
static void run_form(struct graph *g, struct backends *b, const char *form, int64_t max_n, int64_t n, uint64_t seed,
    bool special, struct graphs_io *io)
{
    struct yk_diag why = {""};
    int64_t max[1] = {max_n}, sizes[1] = {n};
    const char *forms[1] = {form};
    struct exec_config c = {.graph = g, .forms = forms, .max_sizes = max, .backends = b};
    struct exec *e;
    struct yk_rng r;
    yk_rng_seed(&r, seed);
    yk_err err = exec_open(&c, &e, &why);
    if (err)
        print_error("%s: %s\n", form, why.text);
    assert_int_equal(err, YK_OK);
    assert_int_equal(graphs_io_init(io, e, sizes, &why), YK_OK);
    for (int32_t i = 0; i < io->n_in; i++)
        graphs_fill(io->in[i].data, &io->in[i].shape, &r, special);
    err = exec_run(e, sizes, io->in, io->out, 0, &why);
    if (err)
        print_error("%s: %s\n", form, why.text);
    assert_int_equal(err, YK_OK);
    exec_close(e);
}

struct fixture {
    const char *name; /* of the backend */
    struct pool *pool[3];
    struct backends b[3];
};

static void describe(struct graph *g, const char *form, uint64_t seed)
{
    print_error("%s in form %s, YOKE_CASE=%llu:", g->nodes[0].op->name, form, (unsigned long long)seed);
    for (int i = 0; i < g->nodes[0].n_attr; i++) {
        const struct attr *a = &g->nodes[0].attr[i];
        print_error(" %s=%s", a->name, a->kind == ATTR_STRING ? a->s : "");
        for (size_t k = 0; a->kind == ATTR_INTS && k < a->n; k++)
            print_error("%s%lld", k ? "," : "", (long long)a->ints[k]);
        if (a->kind == ATTR_INT)
            print_error("%lld", (long long)a->i);
        if (a->kind == ATTR_FLOAT)
            print_error("%g", (double)a->f);
    }
    print_error("\n");
}

static void print_shapes(const struct graphs_io *a, const struct graphs_io *b)
{
    char text[128];
    for (int32_t i = 0; i < a->n_in; i++) {
        shape_text(&a->in[i].shape, text, sizeof(text));
        print_error("  in %s\n", text);
    }
    shape_text(&a->out[0].shape, text, sizeof(text));
    print_error("  out %s\n", text);
    const float *x = a->out[0].data, *y = b->out[0].data;
    for (int64_t i = 0, shown = 0; i < tensor_count(&a->out[0]) && shown < 5; i++)
        if (x[i] != y[i] && !(isnan(x[i]) && isnan(y[i]))) {
            print_error("  [%lld] %.9g, wants %.9g\n", (long long)i, (double)x[i], (double)y[i]);
            shown++;
        }
}

static const int64_t batches[] = {BATCH, 1, 0};

/* One form of one case: against ref (want, by batches), against itself with other threads and at smaller batches. */
static bool check_form(struct fixture *f, struct graph *g, const char *form, const struct graphs_io *want,
    enum nearness how, uint64_t seed, bool special)
{
    struct graphs_io got, again;
    bool ok = true;
    for (int at = 0; ok && at < (int)YK_COUNT(batches); at++) {
        int64_t n = batches[at];
        for (int t = 0; ok && t < 3; t++) {
            run_form(g, &f->b[t], form, BATCH, n, seed, special, t == 0 ? &got : &again);
            if (t == 0) {
                ok = near_enough(&got.out[0], &want[at].out[0], how);
            } else {
                ok = !memcmp(got.out[0].data, again.out[0].data, (size_t)tensor_bytes(&got.out[0]));
                if (!ok)
                    print_error("other bits with %d threads\n", t + 1);
                if (!ok)
                    print_shapes(&again, &got);
                graphs_io_fini(&again);
            }
        }
        if (ok && n > 0) { /* loaded for this size alone */
            run_form(g, &f->b[1], form, n, n, seed, special, &again);
            ok = !memcmp(got.out[0].data, again.out[0].data, (size_t)tensor_bytes(&got.out[0]));
            if (!ok)
                print_error("other bits when loaded for a batch of %lld\n", (long long)n);
            graphs_io_fini(&again);
        }
        if (!ok) {
            describe(g, form, seed);
            print_shapes(&got, &want[at]);
        }
        graphs_io_fini(&got);
    }
    return ok;
}

/* How many cases of a recipe run; the seed of the run says which. Of the large ones ref takes seconds each, so that a
 * third of them has one, and where sanitizers make that minutes none. */
static int cases_of(const struct recipe *r)
{
    bool large = strstr(r->name, "large") != NULL, turn = (tier_seed() + (uint64_t)(r - recipes)) % 3 == 0;
    if (getenv("YOKE_CASE") || CASES < 12)
        return r->cases;
    return large ? (int)tier_count((uint64_t)r->cases, turn && !getenv("YOKE_SANITIZED"))
                 : (int)tier_count((uint64_t)r->cases, (uint64_t)r->cases / 12);
}

static void suite(void **state)
{
    struct fixture *f = *state;
    const char *only = getenv("YOKE_CASE");
    struct op_ctx *ctx = calloc(1, sizeof(*ctx));
    int bad = 0, claimed = 0;
    for (size_t i = 0; i < YK_COUNT(recipes); i++)
        for (int at = 0; at < cases_of(&recipes[i]); at++) {
            int k = (int)((tier_seed() + (uint64_t)at) % (uint64_t)recipes[i].cases);
            if (!LARGE && strstr(recipes[i].name, "large"))
                break;
            uint64_t seed = i * 1000 + (uint64_t)k;
            if (strstr(recipes[i].name, "large") && (f->b[0].at[0]->ops == &backend_ref || !f->b[0].at[0]->ops->host))
                break; /* about tiles, and slow */
            if (only && strtoull(only, NULL, 10) != seed)
                continue;
            struct gen c = {.g = graph_open(0)};
            yk_rng_seed(&c.r, seed);
            c.special = k % 5 == 4;
            recipes[i].gen(&c);
            struct shapes s;
            struct yk_diag why = {""};
            int64_t n = BATCH;
            if (shapes_infer(c.g, &n, NULL, &s, &why)) { /* a window larger than its input */
                graph_close(c.g);
                continue;
            }
            shapes_node(c.g, &s, 0, ctx);
            struct backend_form forms[8];
            int n_forms = f->b[0].at[0]->ops->forms(f->b[0].at[0], ctx, forms, 8);
            shapes_fini(&s);
            struct graphs_io want[YK_COUNT(batches)];
            for (int j = 0; n_forms > 0 && j < (int)YK_COUNT(batches); j++)
                run_form(c.g, &f->b[0], "ref@generic", BATCH, batches[j], seed, c.special, &want[j]);
            for (int j = 0; j < n_forms; j++) {
                claimed++;
                bool wino = !strncmp(forms[j].name, "conv.wino", 9);
                bad += !check_form(f, c.g, forms[j].name, want, wino ? WINO : recipes[i].nearness, seed, c.special);
            }
            for (int j = 0; n_forms > 0 && j < (int)YK_COUNT(batches); j++)
                graphs_io_fini(&want[j]);
            graph_close(c.g);
        }
    free(ctx);
    print_message("%s: %d forms checked, %d wrong\n", f->name, claimed, bad);
    assert_int_equal(bad, 0);
    assert_true(only || claimed > 3);
}

/* Packed operands make alignment irrelevant: the same product at odd addresses has the same bits. */
static void alignment(void **state)
{
    struct fixture *f = *state;
    struct yk_diag why = {""};
    struct yk_rng r;
    for (int k = 0; k < 20; k++) {
        struct gen c = {.g = graph_open(0)};
        yk_rng_seed(&c.r, (uint64_t)k);
        (k % 2 ? gen_conv : gen_gemm)(&c);
        int64_t n = 2;
        struct exec_config config = {.graph = c.g, .max_sizes = &n, .backends = &f->b[0]};
        struct exec *e;
        struct graphs_io a;
        if (exec_open(&config, &e, &why) == YK_OK) {
            assert_int_equal(graphs_io_init(&a, e, &n, &why), YK_OK);
            yk_rng_seed(&r, (uint64_t)k);
            graphs_fill(a.in[0].data, &a.in[0].shape, &r, false);
            assert_int_equal(exec_run(e, &n, a.in, a.out, 0, &why), YK_OK);
            size_t in = (size_t)tensor_bytes(&a.in[0]), out = (size_t)tensor_bytes(&a.out[0]);
            char *x = malloc(in + 64), *y = malloc(out + 64);
            for (int at = 4; at <= 20; at += 8) {
                struct tensor tx = {a.in[0].shape, memcpy(x + at, a.in[0].data, in)}, ty = {a.out[0].shape, y + at};
                assert_int_equal(exec_run(e, &n, &tx, &ty, 0, &why), YK_OK);
                assert_memory_equal(y + at, a.out[0].data, out);
            }
            free(x);
            free(y);
            graphs_io_fini(&a);
            exec_close(e);
        }
        graph_close(c.g);
    }
}

static void buffers(void **state)
{
    struct fixture *f = *state;
    struct backend *b = f->b[0].at[0];
    struct backend_buffer buf;
    char text[16] = "some bytes", back[16] = "";
    assert_int_equal(b->ops->abi, BACKEND_ABI);
    if (!strchr(f->name, '/'))
        assert_string_equal(b->ops->name, f->name);
    assert_int_equal(b->ops->alloc(b, 16, &buf), YK_OK);
    assert_int_equal(buf.bytes, 16);
    assert_true(b->ops->host ? buf.host != NULL : buf.host == NULL);
    assert_int_equal(b->ops->write(b, &buf, text, 16), YK_OK);
    assert_int_equal(b->ops->write(b, &buf, text, 17), YK_LIMIT);
    assert_int_equal(b->ops->read(b, &buf, back, 17), YK_LIMIT);
    assert_int_equal(b->ops->read(b, &buf, back, 16), YK_OK);
    assert_string_equal(text, back);
    b->ops->free(b, &buf);
    assert_int_equal(b->ops->alloc(b, 0, &buf), YK_OK);
    b->ops->free(b, &buf);
}

static int open_fixture(struct fixture *f, const char *name)
{
    f->name = name;
    struct yk_diag why = {""};
    for (int t = 0; t < 3; t++)
        if (pool_open(t + 1, &f->pool[t], NULL) || backends_open(name, f->pool[t], &f->b[t], &why)) {
            print_error("%s\n", why.text);
            return 1;
        }
    return f->b[0].n_refused;
}

#ifdef YOKE_PLUGIN_DIR
/* From outside: the example in the build folder, and what YOKE_BACKENDS names (paths with commas). */
static const char *path;

static int setup_path(void **state)
{
    static struct fixture f;
    *state = &f;
    return open_fixture(&f, path);
}
#endif

#define FIXTURE(its_name)                     \
    static int setup_##its_name(void **state) \
    {                                         \
        static struct fixture f;              \
        *state = &f;                          \
        return open_fixture(&f, #its_name);   \
    }
FIXTURE(ref)
FIXTURE(simd)
#ifndef YOKE_WITHOUT_BLAS
FIXTURE(blas)
#endif
FIXTURE(fake)

static int teardown(void **state)
{
    struct fixture *f = *state;
    int lost = 0;
    for (int t = 0; t < 3; t++) {
        struct yk_diag why;
        if (backends_lost(f->b[t].at[0], &why)) { /* then the reference answered for it */
            print_error("%s was taken out: %s\n", f->name, why.text);
            lost = 1;
        }
        backends_close(&f->b[t]);
        pool_close(f->pool[t]);
    }
    return lost;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(suite), cmocka_unit_test(alignment), cmocka_unit_test(buffers)};
    int failed = 0;
    if (LARGE)
        failed += cmocka_run_group_tests_name("ref", tests, setup_ref, teardown);
    failed += cmocka_run_group_tests_name("simd", tests, setup_simd, teardown);
#ifndef YOKE_WITHOUT_BLAS
    failed += cmocka_run_group_tests_name("blas", tests, setup_blas, teardown);
#endif
    if (LARGE)
        failed += cmocka_run_group_tests_name("fake", tests, setup_fake, teardown);
#ifdef YOKE_PLUGIN_DIR
    const char *more = getenv("YOKE_BACKENDS");
    char *list =
        yk_xasprintf(YOKE_PLUGIN_DIR "/example.so," YOKE_PLUGIN_DIR "/fixed.so%s%s", more ? "," : "", more ? more : "");
    for (char *rest = list; (path = strsep(&rest, ","));)
        failed += cmocka_run_group_tests_name(path, tests, setup_path, teardown);
    free(list);
#endif
    return failed;
}
