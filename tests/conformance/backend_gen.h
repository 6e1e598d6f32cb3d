/* For test_backend.c: seeded random nodes, and those of convolutions. */
#ifndef TESTS_BACKEND_GEN_H
#define TESTS_BACKEND_GEN_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/activation.h"
#include "tests/graphs.h"

struct gen {
    struct graph *g;
    struct yk_rng r;
    struct node *node;
    bool special; /* inputs hold NaN, infinities, zeros */
};

static int64_t pick(struct gen *c, int64_t lo, int64_t hi)
{
    return lo + (int64_t)yk_rng_below(&c->r, (uint64_t)(hi - lo + 1));
}

/* Sizes that vector loops do not like. */
static int64_t odd(struct gen *c)
{
    static const int64_t sizes[] = {1, 2, 3, 7, 8, 13, 16, 17, 31, 33, 65};
    return sizes[yk_rng_below(&c->r, YK_COUNT(sizes))];
}

static void finish(struct gen *c, const char *domain, const char *op, const int32_t *in, int n)
{
    int32_t y = graphs_node(c->g, domain, op, "y", in, n);
    assert_true(y >= 0);
    c->node = &c->g->nodes[0];
    graphs_output(c->g, y);
}

static void activation(struct gen *c)
{
    static const struct activation kinds[] = {{.kind = ACTIVATION_NONE}, {.kind = ACTIVATION_RELU},
        {ACTIVATION_CLIP, -0.5f, 0.75f}, {ACTIVATION_LEAKY_RELU, 0.1f, 0}, {ACTIVATION_HARD_SIGMOID, 0.2f, 0.5f},
        {ACTIVATION_HARD_SWISH, 1.0f / 6, 0.5f}, {.kind = ACTIVATION_SIGMOID}, {.kind = ACTIVATION_SILU},
        {.kind = ACTIVATION_GELU}};
    activation_set(c->g, c->node, &kinds[yk_rng_below(&c->r, YK_COUNT(kinds))]);
}

static void conv_attrs(struct gen *c, int spatial, const int64_t *k, bool dilate, int64_t pad_most)
{
    int64_t stride[3], pads[6], dilation[3];
    for (int i = 0; i < spatial; i++) {
        stride[i] = pick(c, 1, 3);
        dilation[i] = dilate ? pick(c, 1, 2) : 1;
        pads[i] = pick(c, 0, YK_MIN(pad_most, k[i] - 1));
        pads[spatial + i] = pick(c, 0, YK_MIN(pad_most, k[i] - 1));
    }
    graph_set_attr_ints(c->g, c->node, "strides", stride, (size_t)spatial);
    graph_set_attr_ints(c->g, c->node, "dilations", dilation, (size_t)spatial);
    if (pick(c, 0, 3) == 0)
        graph_set_attr_s(c->g, c->node, "auto_pad", pick(c, 0, 1) ? "SAME_UPPER" : "SAME_LOWER");
    else
        graph_set_attr_ints(c->g, c->node, "pads", pads, (size_t)(2 * spatial));
}

static void conv(struct gen *c, bool fused)
{
    int spatial = (int)pick(c, 1, 3);
    bool depthwise = pick(c, 0, 2) == 0;
    int64_t group = depthwise ? pick(c, 2, 9) : pick(c, 0, 2) ? 1 : pick(c, 2, 3);
    int64_t per = depthwise ? 1 : pick(c, 1, 20), rows = pick(c, 1, depthwise ? 2 : 40), oc = rows * group;
    int64_t x[5] = {-1, per * group}, w[5] = {oc, per}, k[3];
    for (int i = 0; i < spatial; i++) {
        x[2 + i] = pick(c, 5, spatial == 3 ? 9 : 23);
        w[2 + i] = k[i] = pick(c, 1, 3);
    }
    int32_t in[4] = {graphs_input(c->g, "x", DT_F32, spatial + 2, x),
        graphs_weight(c->g, "w", DT_F32, spatial + 2, w, &c->r), YK_ABSENT, YK_ABSENT};
    if (pick(c, 0, 2))
        in[2] = graphs_weight(c->g, "b", DT_F32, 1, &oc, &c->r);
    bool residual = fused && pick(c, 0, 1);
    finish(c, fused ? "ai.yoke" : "", fused ? "FusedConv" : "Conv", in, residual ? 4 : 3);
    if (group > 1)
        graph_set_attr_i(c->g, c->node, "group", group);
    conv_attrs(c, spatial, k, true, 2);
    if (!fused)
        return;
    activation(c);
    if (residual) {
        struct conv_dims d;
        struct shape sx = {DT_F32, spatial + 2, {1, x[1], x[2], x[3], x[4]}};
        struct shape sw = {DT_F32, spatial + 2, {w[0], w[1], w[2], w[3], w[4]}};
        assert_int_equal(op_conv_dims(c->node, &sx, &sw, &d, NULL), YK_OK);
        int64_t y[5] = {-1, oc, d.out[0], d.out[1], d.out[2]};
        int32_t r = graphs_input(c->g, "r", DT_F32, spatial + 2, y);
        c->node->in[3] = r;
    }
}

static void gen_conv(struct gen *c)
{
    conv(c, false);
}

static void gen_fused_conv(struct gen *c)
{
    conv(c, true);
}

/* Large enough for several tiles and chunks. */
static void gen_conv_large(struct gen *c)
{
    int64_t ch = pick(c, 1, 2) * 32, x[4] = {-1, ch, pick(c, 30, 60), pick(c, 30, 60)};
    int64_t k = pick(c, 0, 1) ? 3 : 1, oc = pick(c, 60, 200), w[4] = {oc, ch, k, k},
            pads[4] = {k / 2, k / 2, k / 2, k / 2};
    int32_t in[3] = {graphs_input(c->g, "x", DT_F32, 4, x), graphs_weight(c->g, "w", DT_F32, 4, w, &c->r),
        graphs_weight(c->g, "b", DT_F32, 1, &oc, &c->r)};
    finish(c, "", "Conv", in, 3);
    graph_set_attr_ints(c->g, c->node, "pads", pads, 4);
}

/* What Winograd forms take: widths, heights and channels around the sizes of tiles and vectors. */
static void gen_conv3(struct gen *c)
{
    int64_t ch = pick(c, 8, 40), oc = pick(c, 8, 70), x[4] = {-1, ch, pick(c, 3, 30), pick(c, 3, 30)};
    int64_t w[4] = {oc, ch, 3, 3}, pads[4], r[4] = {-1, oc, 0, 0};
    for (int i = 0; i < 4; i++)
        pads[i] = pick(c, 0, 2);
    r[2] = x[2] + pads[0] + pads[2] - 2;
    r[3] = x[3] + pads[1] + pads[3] - 2;
    int32_t in[4] = {graphs_input(c->g, "x", DT_F32, 4, x), graphs_weight(c->g, "w", DT_F32, 4, w, &c->r),
        pick(c, 0, 3) ? graphs_weight(c->g, "b", DT_F32, 1, &oc, &c->r) : YK_ABSENT, YK_ABSENT};
    if (pick(c, 0, 1))
        in[3] = graphs_input(c->g, "r", DT_F32, 4, r);
    finish(c, "ai.yoke", "FusedConv", in, 4);
    graph_set_attr_ints(c->g, c->node, "pads", pads, 4);
    activation(c);
}

/* One to five inputs side by side, 1-D to 3-D. */
static void gen_preact(struct gen *c)
{
    int spatial = (int)pick(c, 1, 3);
    int n = (int)pick(c, 1, 5);
    int64_t channels = 0, oc = odd(c), x[5] = {-1}, w[5] = {oc, 0, 1, 1, 1};
    int32_t in[9] = {0};
    for (int i = 0; i < spatial; i++)
        x[2 + i] = pick(c, 1, spatial == 3 ? 5 : 23);
    for (int i = 0; i < n; i++) {
        channels += x[1] = odd(c);
        in[i == 0 ? 0 : 4 + i] = graphs_input(c->g, "x", DT_F32, spatial + 2, x);
    }
    w[1] = channels;
    in[1] = graphs_weight(c->g, "w", DT_F32, spatial + 2, w, &c->r);
    in[2] = graphs_weight(c->g, "b", DT_F32, 1, &oc, &c->r);
    in[3] = graphs_weight(c->g, "scale", DT_F32, 1, &channels, &c->r);
    in[4] = graphs_weight(c->g, "shift", DT_F32, 1, &channels, &c->r);
    finish(c, "ai.yoke", "PreactConv", in, n + 4);
    activation(c);
}

/* Transposed convolutions whose taps do not meet. */
static void gen_deconv_apart(struct gen *c)
{
    int spatial = (int)pick(c, 1, 2);
    int64_t ic = odd(c), oc = pick(c, 0, 2) ? odd(c) : pick(c, 1, 4), x[4] = {-1, ic}, w[4] = {ic, oc}, stride[2];
    for (int i = 0; i < spatial; i++) {
        x[2 + i] = pick(c, 1, 33);
        w[2 + i] = stride[i] = pick(c, 1, 3);
    }
    int32_t in[3] = {graphs_input(c->g, "x", DT_F32, spatial + 2, x),
        graphs_weight(c->g, "w", DT_F32, spatial + 2, w, &c->r),
        pick(c, 0, 1) ? graphs_weight(c->g, "b", DT_F32, 1, &oc, &c->r) : YK_ABSENT};
    finish(c, "", "ConvTranspose", in, 3);
    graph_set_attr_ints(c->g, c->node, "strides", stride, (size_t)spatial);
}

/* So that tiles make their own activations. */
static void gen_preact_large(struct gen *c)
{
    int64_t channels = 256 + 33, oc = 70, x[4] = {-1, 256, pick(c, 20, 40), 31}, w[4] = {oc, channels, 1, 1};
    int64_t z[4] = {-1, 33, x[2], x[3]};
    int32_t in[6] = {graphs_input(c->g, "x", DT_F32, 4, x), graphs_weight(c->g, "w", DT_F32, 4, w, &c->r),
        graphs_weight(c->g, "b", DT_F32, 1, &oc, &c->r), graphs_weight(c->g, "scale", DT_F32, 1, &channels, &c->r),
        graphs_weight(c->g, "shift", DT_F32, 1, &channels, &c->r), graphs_input(c->g, "z", DT_F32, 4, z)};
    finish(c, "ai.yoke", "PreactConv", in, 6);
    activation(c);
}

static void gen_depthwise(struct gen *c)
{
    int64_t ch = pick(c, 2, 70), k[2] = {pick(c, 0, 2) * 2 + 1, pick(c, 0, 2) * 2 + 1};
    int64_t x[4] = {-1, ch, pick(c, 6, 30), pick(c, 6, 30)}, w[4] = {ch, 1, k[0], k[1]};
    int32_t in[3] = {graphs_input(c->g, "x", DT_F32, 4, x), graphs_weight(c->g, "w", DT_F32, 4, w, &c->r),
        pick(c, 0, 3) ? graphs_weight(c->g, "b", DT_F32, 1, &ch, &c->r) : YK_ABSENT};
    finish(c, "ai.yoke", "FusedConv", in, 3);
    graph_set_attr_i(c->g, c->node, "group", ch);
    conv_attrs(c, 2, k, pick(c, 0, 1), 2);
    activation(c);
}

/* Groups of as many channels in as out, powers of two and others, in rows from one pixel to a few tiles. */
static void gen_group(struct gen *c)
{
    int64_t per = pick(c, 0, 3) ? (int64_t)1 << pick(c, 1, 5) : 6, group = pick(c, 2, 9), ch = per * group;
    int64_t k[2] = {pick(c, 0, 1) * 2 + 1, 3};
    int64_t x[4] = {-1, ch, pick(c, 5, 9), pick(c, 5, 40)}, w[4] = {ch, per, k[0], k[1]};
    int32_t in[3] = {graphs_input(c->g, "x", DT_F32, 4, x), graphs_weight(c->g, "w", DT_F32, 4, w, &c->r),
        pick(c, 0, 3) ? graphs_weight(c->g, "b", DT_F32, 1, &ch, &c->r) : YK_ABSENT};
    finish(c, "ai.yoke", "FusedConv", in, 3);
    graph_set_attr_i(c->g, c->node, "group", group);
    conv_attrs(c, 2, k, pick(c, 0, 3) == 0, 2);
    activation(c);
}

#endif
