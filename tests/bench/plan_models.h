/* The graphs that planning is timed on, by their papers' tables: ResNets for 224 x 224 pixels with the normalisation
 * folded in, and an encoder of 24 layers of 1024. Weights share one block of zeros: only their sizes count. */
#ifndef YK_BENCH_PLAN_MODELS_H
#define YK_BENCH_PLAN_MODELS_H

#include "common/op.h"

#include <stdio.h>
#include <stdlib.h>

struct maker {
    struct graph *g;
    void *zeros;
    int32_t names;
};

static inline void maker_open(struct maker *b, int64_t zeros_bytes)
{
    *b = (struct maker){.g = graph_open(0), .zeros = calloc(1, (size_t)zeros_bytes)};
    if (!b->g || !b->zeros)
        exit(1);
    graph_sym(b->g, "N");
    b->g->inputs = yk_arena_alloc(b->g->arena, 1, sizeof *b->g->inputs);
    b->g->outputs = yk_arena_alloc(b->g->arena, 1, sizeof *b->g->outputs);
}

static inline int32_t maker_input(struct maker *b, const int64_t *dims, int rank)
{
    int32_t id = graph_add_value(b->g, "x", VALUE_INPUT, DT_F32);
    struct value *v = &b->g->values[id];
    v->rank = rank + 1;
    v->dims = yk_arena_alloc(b->g->arena, (size_t)rank + 1, sizeof *v->dims);
    v->dims[0] = (struct dim){.value = -1, .sym = 0};
    for (int i = 0; i < rank; i++)
        v->dims[i + 1] = (struct dim){.value = dims[i], .sym = -1};
    b->g->inputs[b->g->n_inputs++] = id;
    return id;
}

static inline int32_t maker_weight(struct maker *b, enum dtype t, const int64_t *dims, int rank, const void *data)
{
    struct shape s = {.dtype = t, .rank = rank};
    char name[24];
    snprintf(name, sizeof name, "w%d", b->names++);
    for (int i = 0; i < rank; i++)
        s.dims[i] = dims[i];
    return graph_add_weight(b->g, name, &s, data ? data : b->zeros);
}

static inline int32_t maker_node(struct maker *b, const char *op, const int32_t *in, int32_t n_in)
{
    char name[24];
    snprintf(name, sizeof name, "v%d", b->names++);
    int32_t out = graph_add_value(b->g, name, VALUE_NODE, DT_NONE);
    if (graph_add_node(b->g, name, op_find("", op), in, n_in, &out, 1) < 0)
        exit(1);
    return out;
}

static inline int32_t maker_on(struct maker *b, const char *op, int32_t x, int32_t y)
{
    return maker_node(b, op, (const int32_t[]){x, y}, y < 0 ? 1 : 2);
}

static inline void maker_ints(struct maker *b, const char *name, const int64_t *v, size_t n)
{
    graph_set_attr_ints(b->g, &b->g->nodes[b->g->n_nodes - 1], name, v, n);
}

static inline struct graph *maker_end(struct maker *b, int32_t out)
{
    b->g->outputs[b->g->n_outputs++] = out;
    return b->g;
}

static inline int32_t maker_conv(struct maker *b, int32_t x, int64_t in, int64_t out, int64_t kernel, int64_t stride)
{
    int64_t pad = kernel / 2;
    int32_t w = maker_weight(b, DT_F32, (const int64_t[]){out, in, kernel, kernel}, 4, NULL);
    int32_t bias = maker_weight(b, DT_F32, &out, 1, NULL);
    int32_t v = maker_node(b, "Conv", (const int32_t[]){x, w, bias}, 3);
    maker_ints(b, "kernel_shape", (const int64_t[]){kernel, kernel}, 2);
    maker_ints(b, "strides", (const int64_t[]){stride, stride}, 2);
    maker_ints(b, "pads", (const int64_t[]){pad, pad, pad, pad}, 4);
    return v;
}

static inline struct graph *make_resnet(struct maker *b, const int *blocks, bool wide)
{
    int64_t in = 64, out, mid;
    maker_open(b, (int64_t)4 << 22);
    int32_t x = maker_input(b, (const int64_t[]){3, 224, 224}, 3);
    x = maker_on(b, "Relu", maker_conv(b, x, 3, 64, 7, 2), -1);
    x = maker_on(b, "MaxPool", x, -1);
    maker_ints(b, "kernel_shape", (const int64_t[]){3, 3}, 2);
    maker_ints(b, "strides", (const int64_t[]){2, 2}, 2);
    maker_ints(b, "pads", (const int64_t[]){1, 1, 1, 1}, 4);
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < blocks[stage]; i++) {
            int64_t stride = stage > 0 && i == 0 ? 2 : 1;
            int32_t y, skip = x;
            mid = (int64_t)64 << stage;
            out = wide ? 4 * mid : mid;
            if (wide) {
                y = maker_on(b, "Relu", maker_conv(b, x, in, mid, 1, 1), -1);
                y = maker_on(b, "Relu", maker_conv(b, y, mid, mid, 3, stride), -1);
                y = maker_conv(b, y, mid, out, 1, 1);
            } else {
                y = maker_on(b, "Relu", maker_conv(b, x, in, mid, 3, stride), -1);
                y = maker_conv(b, y, mid, out, 3, 1);
            }
            if (stride > 1 || in != out)
                skip = maker_conv(b, x, in, out, 1, stride);
            x = maker_on(b, "Relu", maker_on(b, "Add", y, skip), -1);
            in = out;
        }
    x = maker_on(b, "Flatten", maker_on(b, "GlobalAveragePool", x, -1), -1);
    int32_t w = maker_weight(b, DT_F32, (const int64_t[]){in, 1000}, 2, NULL);
    int32_t bias = maker_weight(b, DT_F32, (const int64_t[]){1000}, 1, NULL);
    return maker_end(b, maker_node(b, "Gemm", (const int32_t[]){x, w, bias}, 3));
}

static inline int32_t maker_linear(struct maker *b, int32_t x, int64_t in, int64_t out)
{
    x = maker_on(b, "MatMul", x, maker_weight(b, DT_F32, (const int64_t[]){in, out}, 2, NULL));
    return maker_on(b, "Add", x, maker_weight(b, DT_F32, &out, 1, NULL));
}

static inline int32_t maker_norm(struct maker *b, int32_t x, int64_t width)
{
    int32_t scale = maker_weight(b, DT_F32, &width, 1, NULL), bias = maker_weight(b, DT_F32, &width, 1, NULL);
    return maker_node(b, "LayerNormalization", (const int32_t[]){x, scale, bias}, 3);
}

static inline struct graph *make_encoder_of(struct maker *b, int layers, int64_t text)
{
    enum { WIDTH = 1024, HEADS = 16 };
    static const int64_t split[] = {0, 0, HEADS, WIDTH / HEADS}, join[] = {0, 0, WIDTH};
    static const float one[] = {0.125f, 1.4142135f, 1, 0.5f};
    maker_open(b, (int64_t)WIDTH * WIDTH * 4 * 4);
    int32_t scalar[4], x = maker_input(b, (const int64_t[]){text, WIDTH}, 2);
    int32_t to_heads = maker_weight(b, DT_I64, (const int64_t[]){4}, 1, split);
    int32_t to_text = maker_weight(b, DT_I64, (const int64_t[]){3}, 1, join);
    for (int i = 0; i < 4; i++)
        scalar[i] = maker_weight(b, DT_F32, NULL, 0, &one[i]);
    for (int layer = 0; layer < layers; layer++) {
        int32_t part[3], y, z;
        for (int i = 0; i < 3; i++) {
            part[i] = maker_on(b, "Reshape", maker_linear(b, x, WIDTH, WIDTH), to_heads);
            part[i] = maker_on(b, "Transpose", part[i], -1);
            maker_ints(b, "perm", i == 1 ? (const int64_t[]){0, 2, 3, 1} : (const int64_t[]){0, 2, 1, 3}, 4);
        }
        y = maker_on(b, "Mul", maker_on(b, "MatMul", part[0], part[1]), scalar[0]);
        y = maker_on(b, "MatMul", maker_on(b, "Softmax", y, -1), part[2]);
        y = maker_on(b, "Transpose", y, -1);
        maker_ints(b, "perm", (const int64_t[]){0, 2, 1, 3}, 4);
        y = maker_linear(b, maker_on(b, "Reshape", y, to_text), WIDTH, WIDTH);
        x = maker_norm(b, maker_on(b, "Add", x, y), WIDTH);
        y = maker_linear(b, x, WIDTH, 4 * WIDTH);
        z = maker_on(b, "Add", maker_on(b, "Erf", maker_on(b, "Div", y, scalar[1]), -1), scalar[2]);
        y = maker_on(b, "Mul", maker_on(b, "Mul", y, z), scalar[3]);
        y = maker_linear(b, y, 4 * WIDTH, WIDTH);
        x = maker_norm(b, maker_on(b, "Add", x, y), WIDTH);
    }
    return maker_end(b, x);
}

static inline struct graph *make_encoder(struct maker *b, int layers)
{
    return make_encoder_of(b, layers, 128);
}

#endif
