/* MobileNetV2 (Sandler et al. 2018, width 1) with its own weights, as torchvision's exporter writes it: convolutions of
 * one channel a group, Clip for ReLU6, and batch-norm behind every convolution. For square images of any size. */
#ifndef YK_TEST_MOBILENET_H
#define YK_TEST_MOBILENET_H

#include "tests/graphs.h"

#include <math.h>

struct mobilenet {
    struct graph *g;
    struct yk_rng rng;
    int32_t none, six; /* bounds of Clip */
};

static inline int32_t mobilenet_values(struct mobilenet *m, const char *name, const char *what, int rank,
    const int64_t *dims, double deviation, float mean)
{
    char full[96];
    struct shape s = {.dtype = DT_F32, .rank = rank};
    memcpy(s.dims, dims, (size_t)rank * sizeof *dims);
    int64_t n = shape_count(&s);
    float *data = yk_arena_alloc(m->g->arena, (size_t)n + 1, sizeof *data);
    for (int64_t i = 0; i < n; i++) /* uniform, of this standard deviation */
        data[i] = mean + (float)((yk_rng_unit(&m->rng) - 0.5) * sqrt(12.0) * deviation);
    snprintf(full, sizeof full, "%.40s.%.40s", name, what);
    return graph_add_weight(m->g, full, &s, data);
}

static inline struct node *mobilenet_last(struct mobilenet *m)
{
    return &m->g->nodes[m->g->n_nodes - 1];
}

static inline int32_t mobilenet_conv(struct mobilenet *m, const char *name, int32_t x, int64_t in, int64_t out,
    int64_t k, int64_t stride, int64_t groups)
{
    static const struct {
        const char *name;
        float mean;
    } parts[] = {{"weight", 1}, {"bias", 0}, {"running_mean", 0}, {"running_var", 1}};
    char full[96];
    int64_t pad = k / 2;
    double deviation = sqrt(2 / (double)(in / groups * k * k));
    int32_t w = mobilenet_values(m, name, "conv.weight", 4, (const int64_t[]){out, in / groups, k, k}, deviation, 0);
    snprintf(full, sizeof full, "%s.conv", name);
    int32_t bn[5] = {graphs_node(m->g, "", "Conv", full, (const int32_t[]){x, w}, 2)};
    graph_set_attr_ints(m->g, mobilenet_last(m), "kernel_shape", (const int64_t[]){k, k}, 2);
    graph_set_attr_ints(m->g, mobilenet_last(m), "pads", (const int64_t[]){pad, pad, pad, pad}, 4);
    graph_set_attr_ints(m->g, mobilenet_last(m), "strides", (const int64_t[]){stride, stride}, 2);
    graph_set_attr_i(m->g, mobilenet_last(m), "group", groups);
    for (int i = 0; i < 4; i++) {
        snprintf(full, sizeof full, "bn.%s", parts[i].name);
        bn[1 + i] = mobilenet_values(m, name, full, 1, &out, i < 2 ? 0.05 : 0, parts[i].mean);
    }
    snprintf(full, sizeof full, "%s.bn", name);
    return graphs_node(m->g, "", "BatchNormalization", full, bn, 5);
}

static inline int32_t mobilenet_relu6(struct mobilenet *m, const char *name, int32_t x)
{
    char full[96];
    snprintf(full, sizeof full, "%s.relu6", name);
    return graphs_node(m->g, "", "Clip", full, (const int32_t[]){x, m->none, m->six}, 3);
}

/* An inverted residual: wide, depthwise, narrow. */
static inline int32_t mobilenet_block(
    struct mobilenet *m, int index, int32_t x, int64_t in, int64_t out, int64_t stride, int64_t expand)
{
    char name[32];
    int32_t y = x;
    int64_t wide = in * expand;
    if (expand > 1) {
        snprintf(name, sizeof name, "block%d.wide", index);
        y = mobilenet_relu6(m, name, mobilenet_conv(m, name, y, in, wide, 1, 1, 1));
    }
    snprintf(name, sizeof name, "block%d.depth", index);
    y = mobilenet_relu6(m, name, mobilenet_conv(m, name, y, wide, wide, 3, stride, wide));
    snprintf(name, sizeof name, "block%d.narrow", index);
    y = mobilenet_conv(m, name, y, wide, out, 1, 1, 1);
    if (stride > 1 || in != out)
        return y;
    snprintf(name, sizeof name, "block%d.sum", index);
    return graphs_node(m->g, "", "Add", name, (const int32_t[]){x, y}, 2);
}

/* graph_close() */
static inline struct graph *mobilenet_v2(int64_t size, int64_t classes, uint64_t seed)
{
    static const struct {
        int64_t expand, out, count, stride;
    } rows[] = {
        {1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    struct mobilenet m = {.g = graph_open(0)};
    const struct shape scalar = {.dtype = DT_F32, .rank = 0};
    float *bounds = yk_arena_alloc(m.g->arena, 2, sizeof *bounds);
    bounds[0] = 0;
    bounds[1] = 6;
    yk_rng_seed(&m.rng, seed);
    m.none = graph_add_weight(m.g, "none", &scalar, &bounds[0]);
    m.six = graph_add_weight(m.g, "six", &scalar, &bounds[1]);
    int32_t y = graphs_input(m.g, "x", DT_F32, 4, (const int64_t[]){-1, 3, size, size});
    y = mobilenet_relu6(&m, "first", mobilenet_conv(&m, "first", y, 3, 32, 3, 2, 1));
    int64_t in = 32;
    int index = 0;
    for (size_t k = 0; k < YK_COUNT(rows); k++)
        for (int64_t i = 0; i < rows[k].count; i++) {
            y = mobilenet_block(&m, index++, y, in, rows[k].out, i ? 1 : rows[k].stride, rows[k].expand);
            in = rows[k].out;
        }
    y = mobilenet_relu6(&m, "last", mobilenet_conv(&m, "last", y, in, 1280, 1, 1, 1));
    y = graphs_node(m.g, "", "GlobalAveragePool", "pool", &y, 1);
    y = graphs_node(m.g, "", "Flatten", "flat", &y, 1);
    int32_t w = mobilenet_values(&m, "classifier", "weight", 2, (const int64_t[]){classes, 1280}, 0.01, 0);
    int32_t b = mobilenet_values(&m, "classifier", "bias", 1, &classes, 0, 0);
    y = graphs_node(m.g, "", "Gemm", "logits", (const int32_t[]){y, w, b}, 3);
    graph_set_attr_i(m.g, mobilenet_last(&m), "transB", 1);
    graphs_output(m.g, y);
    return m.g;
}

#endif
