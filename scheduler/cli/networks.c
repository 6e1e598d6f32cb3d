/* Builders add nodes one after the other; the first failure (memory) is kept and the rest does nothing of use. */
#include "scheduler/cli/networks.h"

#include "common/op.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 160

struct maker {
    struct graph *g;
    struct yk_rng rng;
    bool failed;
    int64_t h, w; /* of the picture as it stands */
};

/* ---- initial values ---- */

static double normal(struct yk_rng *r)
{
    double u = 1 - yk_rng_unit(r), v = yk_rng_unit(r);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

enum fill { ZEROS, ONES, UNIFORM, NORMAL, TRUNCATED };

/* UNIFORM: in [-scale, scale). NORMAL: of deviation scale. TRUNCATED: likewise, drawn again outside [-2, 2]. */
static void fill(struct yk_rng *r, float *out, int64_t n, enum fill how, double scale)
{
    for (int64_t i = 0; i < n; i++) {
        double x = how == ONES ? 1 : 0;
        if (how == UNIFORM)
            x = scale * (2 * yk_rng_unit(r) - 1);
        else if (how == NORMAL || how == TRUNCATED)
            do
                x = normal(r);
            while (how == TRUNCATED && fabs(x * scale) > 2);
        out[i] = (float)(how == NORMAL || how == TRUNCATED ? x * scale : x);
    }
}

/* ---- values and nodes ---- */

__attribute__((format(printf, 3, 4))) static void name_of(char *out, size_t size, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(out, size, fmt, args);
    va_end(args);
}

static int32_t weight(
    struct maker *m, const char *name, const struct shape *s, const void *data, enum fill how, double scale)
{
    void *own = graph_alloc_data(m->g, YK_MAX(shape_bytes(s), 1));
    if (!own) {
        m->failed = true;
        return YK_ABSENT;
    }
    if (data)
        memcpy(own, data, (size_t)shape_bytes(s));
    else
        fill(&m->rng, own, shape_count(s), how, scale);
    int32_t v = graph_add_weight(m->g, name, s, own);
    m->failed = m->failed || v == YK_ABSENT;
    return v;
}

static int32_t param(struct maker *m, const char *layer, const char *what, enum fill how, double scale, int rank,
    int64_t a, int64_t b, int64_t c, int64_t d)
{
    char name[NAME_MAX_BYTES];
    struct shape s = {.dtype = DT_F32, .rank = rank, .dims = {a, b, c, d}};
    name_of(name, sizeof name, "%s%s%s", layer, *layer ? "." : "", what);
    return weight(m, name, &s, NULL, how, scale);
}

static int32_t ints(struct maker *m, const char *name, const int64_t *v, int n)
{
    struct shape s = {.dtype = DT_I64, .rank = 1, .dims = {n}};
    int32_t found = graph_find_value(m->g, name);
    return found != YK_ABSENT ? found : weight(m, name, &s, v, ZEROS, 0);
}

static int32_t scalar(struct maker *m, const char *name, float x)
{
    struct shape s = {.dtype = DT_F32, .rank = 0};
    int32_t found = graph_find_value(m->g, name);
    return found != YK_ABSENT ? found : weight(m, name, &s, &x, ZEROS, 0);
}

static int32_t node(struct maker *m, const char *op, const char *name, const int32_t *in, int n_in)
{
    char out[NAME_MAX_BYTES + 16];
    name_of(out, sizeof out, "%s.out", name);
    int32_t y = m->failed ? YK_ABSENT : graph_add_value(m->g, out, VALUE_NODE, DT_NONE);
    if (y == YK_ABSENT || graph_add_node(m->g, name, op_find("", op), in, n_in, &y, 1) == YK_ABSENT)
        m->failed = true;
    return y;
}

static int32_t node2(struct maker *m, const char *op, const char *name, int32_t a, int32_t b)
{
    return node(m, op, name, (const int32_t[]){a, b}, b == YK_ABSENT ? 1 : 2);
}

static struct node *last(struct maker *m)
{
    return m->failed ? NULL : &m->g->nodes[m->g->n_nodes - 1];
}

static void set_i(struct maker *m, const char *name, int64_t v)
{
    m->failed = m->failed || graph_set_attr_i(m->g, last(m), name, v);
}

static void set_f(struct maker *m, const char *name, float v)
{
    m->failed = m->failed || graph_set_attr_f(m->g, last(m), name, v);
}

static void set_ints(struct maker *m, const char *name, const int64_t *v, size_t n)
{
    m->failed = m->failed || graph_set_attr_ints(m->g, last(m), name, v, n);
}

/* ---- layers ---- */

static int32_t relu(struct maker *m, const char *name, int32_t x)
{
    return node2(m, "Relu", name, x, YK_ABSENT);
}

/* torch.nn.Linear: weight (out, in) and bias within 1/sqrt(in). */
static int32_t linear(struct maker *m, const char *name, int32_t x, int64_t in, int64_t out)
{
    double bound = 1 / sqrt((double)in);
    int32_t w = param(m, name, "weight", UNIFORM, bound, 2, out, in, 0, 0);
    int32_t b = param(m, name, "bias", UNIFORM, bound, 1, out, 0, 0, 0);
    int32_t y = node(m, "Gemm", name, (const int32_t[]){x, w, b}, 3);
    set_i(m, "transB", 1);
    return y;
}

struct conv {
    int64_t in, out, k, stride, pad;
    bool bias;
    bool fan_out; /* torchvision's ResNets: normal by what leaves; else as torch.nn.Conv2d */
};

static int32_t conv(struct maker *m, const char *name, int32_t x, struct conv c)
{
    double fan_in = (double)(c.in * c.k * c.k), bound = 1 / sqrt(fan_in);
    double deviation = sqrt(2 / (double)(c.out * c.k * c.k));
    int32_t in[3] = {x,
        param(m, name, "weight", c.fan_out ? NORMAL : UNIFORM, c.fan_out ? deviation : bound, 4, c.out, c.in, c.k, c.k),
        c.bias ? param(m, name, "bias", UNIFORM, bound, 1, c.out, 0, 0, 0) : YK_ABSENT};
    int32_t y = node(m, "Conv", name, in, c.bias ? 3 : 2);
    set_ints(m, "kernel_shape", (const int64_t[]){c.k, c.k}, 2);
    set_ints(m, "pads", (const int64_t[]){c.pad, c.pad, c.pad, c.pad}, 4);
    set_ints(m, "strides", (const int64_t[]){c.stride, c.stride}, 2);
    m->h = (m->h + 2 * c.pad - c.k) / c.stride + 1;
    m->w = (m->w + 2 * c.pad - c.k) / c.stride + 1;
    return y;
}

static int32_t batchnorm(struct maker *m, const char *name, int32_t x, int64_t channels)
{
    int32_t in[5] = {x, param(m, name, "weight", ONES, 0, 1, channels, 0, 0, 0),
        param(m, name, "bias", ZEROS, 0, 1, channels, 0, 0, 0),
        param(m, name, "running_mean", ZEROS, 0, 1, channels, 0, 0, 0),
        param(m, name, "running_var", ONES, 0, 1, channels, 0, 0, 0)};
    int32_t y = node(m, "BatchNormalization", name, in, 5);
    set_f(m, "epsilon", 1e-5f);
    set_f(m, "momentum", 0.9f); /* what is kept: PyTorch's 0.1 is what is new */
    return y;
}

static int32_t maxpool(struct maker *m, const char *name, int32_t x, int64_t k, int64_t stride, int64_t pad)
{
    int32_t y = node2(m, "MaxPool", name, x, YK_ABSENT);
    set_ints(m, "kernel_shape", (const int64_t[]){k, k}, 2);
    set_ints(m, "pads", (const int64_t[]){pad, pad, pad, pad}, 4);
    set_ints(m, "strides", (const int64_t[]){stride, stride}, 2);
    m->h = (m->h + 2 * pad - k) / stride + 1;
    m->w = (m->w + 2 * pad - k) / stride + 1;
    return y;
}

static int32_t flatten(struct maker *m, const char *name, int32_t x)
{
    int32_t y = node2(m, "Flatten", name, x, YK_ABSENT);
    set_i(m, "axis", 1);
    return y;
}

/* ---- networks ---- */

/* torch.nn.Sequential(Flatten, Linear 256, ReLU, Linear 128, ReLU, Linear). */
static int32_t mlp(struct maker *m, const struct networks_options *o, int32_t x)
{
    int32_t y = linear(m, "1", flatten(m, "0", x), o->channels * o->height * o->width, 256);
    y = linear(m, "3", relu(m, "2", y), 256, 128);
    return linear(m, "5", relu(m, "4", y), 128, o->classes);
}

/* torch.nn.Sequential(Conv 5x5, BatchNorm, ReLU, MaxPool 2, the same again, Flatten, Linear 128, ReLU, Linear). */
static int32_t cnn(struct maker *m, const struct networks_options *o, int32_t x)
{
    int32_t y = conv(m, "0", x, (struct conv){o->channels, 16, 5, 1, 2, true, false});
    y = maxpool(m, "3", relu(m, "2", batchnorm(m, "1", y, 16)), 2, 2, 0);
    y = conv(m, "4", y, (struct conv){16, 32, 5, 1, 2, true, false});
    y = maxpool(m, "7", relu(m, "6", batchnorm(m, "5", y, 32)), 2, 2, 0);
    y = linear(m, "9", flatten(m, "8", y), 32 * m->h * m->w, 128);
    return linear(m, "11", relu(m, "10", y), 128, o->classes);
}

/* torchvision's BasicBlock. */
static int32_t block(struct maker *m, const char *name, int32_t x, int64_t in, int64_t out, int64_t stride)
{
    char part[64];
    int64_t h = m->h, w = m->w;
    int32_t skip = x;
    name_of(part, sizeof part, "%s.conv1", name);
    int32_t y = conv(m, part, x, (struct conv){in, out, 3, stride, 1, false, true});
    name_of(part, sizeof part, "%s.bn1", name);
    y = batchnorm(m, part, y, out);
    name_of(part, sizeof part, "%s.relu", name);
    y = relu(m, part, y);
    name_of(part, sizeof part, "%s.conv2", name);
    y = conv(m, part, y, (struct conv){out, out, 3, 1, 1, false, true});
    name_of(part, sizeof part, "%s.bn2", name);
    y = batchnorm(m, part, y, out);
    if (stride != 1 || in != out) {
        m->h = h;
        m->w = w;
        name_of(part, sizeof part, "%s.downsample.0", name);
        skip = conv(m, part, x, (struct conv){in, out, 1, stride, 0, false, true});
        name_of(part, sizeof part, "%s.downsample.1", name);
        skip = batchnorm(m, part, skip, out);
    }
    name_of(part, sizeof part, "%s.add", name);
    y = node2(m, "Add", part, y, skip);
    name_of(part, sizeof part, "%s.relu_1", name);
    return relu(m, part, y);
}

static int32_t resnet(
    struct maker *m, const struct networks_options *o, int32_t x, const int *blocks, int n_layers, bool small)
{
    int64_t width = small ? 16 : 64, in = width;
    struct conv stem = small ? (struct conv){o->channels, width, 3, 1, 1, false, true}
                             : (struct conv){o->channels, width, 7, 2, 3, false, true};
    int32_t y = relu(m, "relu", batchnorm(m, "bn1", conv(m, "conv1", x, stem), width));
    if (!small)
        y = maxpool(m, "maxpool", y, 3, 2, 1);
    for (int layer = 0; layer < n_layers; layer++)
        for (int i = 0; i < blocks[layer]; i++) {
            char name[32];
            int64_t out = width << layer;
            name_of(name, sizeof name, "layer%d.%d", layer + 1, i);
            y = block(m, name, y, in, out, layer > 0 && i == 0 ? 2 : 1);
            in = out;
        }
    y = flatten(m, "flatten", node2(m, "GlobalAveragePool", "avgpool", y, YK_ABSENT));
    return linear(m, "fc", y, in, o->classes);
}

/* ---- ViT-Tiny ---- */

struct vit {
    int64_t tokens, dim, heads;
};

static int32_t layernorm(struct maker *m, const char *name, int32_t x, int64_t dim)
{
    int32_t in[3] = {
        x, param(m, name, "weight", ONES, 0, 1, dim, 0, 0, 0), param(m, name, "bias", ZEROS, 0, 1, dim, 0, 0, 0)};
    int32_t y = node(m, "LayerNormalization", name, in, 3);
    set_f(m, "epsilon", 1e-6f);
    set_i(m, "axis", -1);
    return y;
}

/* A linear layer whose parameters have names and values of their own: y = x w' + b over rows. */
static int32_t rows_linear(struct maker *m, const char *name, int32_t x, int32_t w, int32_t b)
{
    int32_t y = node(m, "Gemm", name, (const int32_t[]){x, w, b}, 3);
    set_i(m, "transB", 1);
    return y;
}

static int32_t reshape(struct maker *m, const char *name, int32_t x, const char *shape, const int64_t *v, int n)
{
    return node2(m, "Reshape", name, x, ints(m, shape, v, n));
}

/* One of query, key and value: columns which * dim.. of qkv (rows, 3 dim), as (N, heads, tokens, width) or, for keys,
 * (N, heads, width, tokens). */
static int32_t head_part(struct maker *m, const char *layer, int32_t part, int which, struct vit v)
{
    static const char *const names[] = {"query", "key", "value"};
    char name[NAME_MAX_BYTES];
    name_of(name, sizeof name, "%s.%s.split", layer, names[which]);
    int32_t y = reshape(m, name, part, "heads_shape", (const int64_t[]){-1, v.tokens, v.heads, v.dim / v.heads}, 4);
    name_of(name, sizeof name, "%s.%s", layer, names[which]);
    y = node2(m, "Transpose", name, y, YK_ABSENT);
    set_ints(m, "perm", which == 1 ? (const int64_t[]){0, 2, 3, 1} : (const int64_t[]){0, 2, 1, 3}, 4);
    return y;
}

/* torch.nn.MultiheadAttention of rows with themselves. */
static int32_t attention(struct maker *m, const char *layer, int32_t x, struct vit v)
{
    char name[NAME_MAX_BYTES], out[NAME_MAX_BYTES + 16];
    double xavier = sqrt(6 / (double)(v.dim + 3 * v.dim));
    int32_t w = param(m, layer, "in_proj_weight", UNIFORM, xavier, 2, 3 * v.dim, v.dim, 0, 0);
    int32_t b = param(m, layer, "in_proj_bias", ZEROS, 0, 1, 3 * v.dim, 0, 0, 0);
    name_of(name, sizeof name, "%s.in_proj", layer);
    int32_t qkv = rows_linear(m, name, x, w, b), part[3];
    for (int i = 0; i < 3 && !m->failed; i++) {
        name_of(out, sizeof out, "%s.qkv.%d", layer, i);
        part[i] = graph_add_value(m->g, out, VALUE_NODE, DT_NONE);
        m->failed = part[i] == YK_ABSENT;
    }
    name_of(name, sizeof name, "%s.qkv", layer);
    int32_t split[2] = {qkv, ints(m, "qkv_sizes", (const int64_t[]){v.dim, v.dim, v.dim}, 3)};
    if (m->failed || graph_add_node(m->g, name, op_find("", "Split"), split, 2, part, 3) == YK_ABSENT) {
        m->failed = true;
        return YK_ABSENT;
    }
    set_i(m, "axis", 1);
    int32_t q = head_part(m, layer, part[0], 0, v), k = head_part(m, layer, part[1], 1, v);
    int32_t value = head_part(m, layer, part[2], 2, v);
    name_of(name, sizeof name, "%s.scaled", layer);
    q = node2(m, "Mul", name, q, scalar(m, "attention_scale", (float)(1 / sqrt((double)(v.dim / v.heads)))));
    name_of(name, sizeof name, "%s.scores", layer);
    int32_t y = node2(m, "MatMul", name, q, k);
    name_of(name, sizeof name, "%s.softmax", layer);
    y = node2(m, "Softmax", name, y, YK_ABSENT);
    set_i(m, "axis", -1);
    name_of(name, sizeof name, "%s.context", layer);
    y = node2(m, "MatMul", name, y, value);
    name_of(name, sizeof name, "%s.joined", layer);
    y = node2(m, "Transpose", name, y, YK_ABSENT);
    set_ints(m, "perm", (const int64_t[]){0, 2, 1, 3}, 4);
    name_of(name, sizeof name, "%s.rows", layer);
    y = reshape(m, name, y, "rows_shape", (const int64_t[]){-1, v.dim}, 2);
    name_of(name, sizeof name, "%s.out_proj", layer);
    w = param(m, name, "weight", UNIFORM, 1 / sqrt((double)v.dim), 2, v.dim, v.dim, 0, 0);
    b = param(m, name, "bias", ZEROS, 0, 1, v.dim, 0, 0, 0);
    return rows_linear(m, name, y, w, b);
}

/* x/2 (1 + erf(x / sqrt 2)), as PyTorch writes it out. */
static int32_t gelu(struct maker *m, const char *layer, int32_t x)
{
    char name[NAME_MAX_BYTES];
    name_of(name, sizeof name, "%s.div", layer);
    int32_t y = node2(m, "Div", name, x, scalar(m, "sqrt_2", (float)M_SQRT2));
    name_of(name, sizeof name, "%s.erf", layer);
    y = node2(m, "Erf", name, y, YK_ABSENT);
    name_of(name, sizeof name, "%s.add", layer);
    y = node2(m, "Add", name, y, scalar(m, "one", 1));
    name_of(name, sizeof name, "%s.mul", layer);
    y = node2(m, "Mul", name, x, y);
    name_of(name, sizeof name, "%s.half", layer);
    return node2(m, "Mul", name, y, scalar(m, "half", 0.5f));
}

static int32_t encoder_mlp(struct maker *m, const char *layer, int32_t x, int64_t dim)
{
    char name[NAME_MAX_BYTES];
    double xavier = sqrt(6 / (double)(5 * dim));
    name_of(name, sizeof name, "%s.mlp.0", layer);
    int32_t w = param(m, name, "weight", UNIFORM, xavier, 2, 4 * dim, dim, 0, 0);
    int32_t y = rows_linear(m, name, x, w, param(m, name, "bias", NORMAL, 1e-6, 1, 4 * dim, 0, 0, 0));
    name_of(name, sizeof name, "%s.mlp.1", layer);
    y = gelu(m, name, y);
    name_of(name, sizeof name, "%s.mlp.3", layer);
    w = param(m, name, "weight", UNIFORM, xavier, 2, dim, 4 * dim, 0, 0);
    return rows_linear(m, name, y, w, param(m, name, "bias", NORMAL, 1e-6, 1, dim, 0, 0, 0));
}

/* Patches of 16x16 from 96 pixels on, else of 4x4, as tokens behind the class token: (N, tokens, dim). */
static int32_t embed(struct maker *m, const struct networks_options *o, int32_t x, int64_t patch, struct vit v)
{
    int64_t count = v.tokens - 1;
    double deviation = sqrt(1 / (double)(o->channels * patch * patch));
    int32_t in[3] = {x, param(m, "conv_proj", "weight", TRUNCATED, deviation, 4, v.dim, o->channels, patch, patch),
        param(m, "conv_proj", "bias", ZEROS, 0, 1, v.dim, 0, 0, 0)};
    int32_t y = node(m, "Conv", "conv_proj", in, 3);
    set_ints(m, "kernel_shape", (const int64_t[]){patch, patch}, 2);
    set_ints(m, "strides", (const int64_t[]){patch, patch}, 2);
    y = reshape(m, "patches", y, "patches_shape", (const int64_t[]){-1, v.dim, count}, 3);
    y = node2(m, "Transpose", "tokens", y, YK_ABSENT);
    set_ints(m, "perm", (const int64_t[]){0, 2, 1}, 3);
    int32_t batch = node2(m, "Shape", "batch", x, YK_ABSENT);
    set_i(m, "start", 0);
    set_i(m, "end", 1);
    int32_t shape = node2(m, "Concat", "class_shape", batch, ints(m, "class_tail", (const int64_t[]){1, v.dim}, 2));
    set_i(m, "axis", 0);
    int32_t token = node2(m, "Expand", "class", param(m, "", "class_token", ZEROS, 0, 3, 1, 1, v.dim, 0), shape);
    y = node2(m, "Concat", "sequence", token, y);
    set_i(m, "axis", 1);
    int32_t place = param(m, "encoder", "pos_embedding", NORMAL, 0.02, 3, 1, v.tokens, v.dim, 0);
    return node2(m, "Add", "encoder.embedded", y, place);
}

/* torchvision's VisionTransformer of 12 layers, 192 wide with 3 heads; but the head starts as a plain Linear, so that
 * every layer learns from the first step on. */
static int32_t vit_tiny(struct maker *m, const struct networks_options *o, int32_t x)
{
    int64_t patch = YK_MIN(o->height, o->width) >= 96 ? 16 : 4;
    struct vit v = {(o->height / patch) * (o->width / patch) + 1, 192, 3};
    int32_t y = reshape(m, "encoder.rows", embed(m, o, x, patch, v), "rows_shape", (const int64_t[]){-1, v.dim}, 2);
    for (int i = 0; i < 12; i++) {
        char layer[64], name[NAME_MAX_BYTES];
        name_of(layer, sizeof layer, "encoder.layers.encoder_layer_%d", i);
        name_of(name, sizeof name, "%s.ln_1", layer);
        int32_t z = layernorm(m, name, y, v.dim);
        name_of(name, sizeof name, "%s.self_attention", layer);
        z = attention(m, name, z, v);
        name_of(name, sizeof name, "%s.add_1", layer);
        y = node2(m, "Add", name, z, y);
        name_of(name, sizeof name, "%s.ln_2", layer);
        z = encoder_mlp(m, layer, layernorm(m, name, y, v.dim), v.dim);
        name_of(name, sizeof name, "%s.add_2", layer);
        y = node2(m, "Add", name, y, z);
    }
    y = layernorm(m, "encoder.ln", y, v.dim);
    y = reshape(m, "encoder.out", y, "tokens_shape", (const int64_t[]){-1, v.tokens, v.dim}, 3);
    int64_t zero = 0;
    struct shape s = {.dtype = DT_I64, .rank = 0};
    y = node2(m, "Gather", "class_row", y, weight(m, "class_index", &s, &zero, ZEROS, 0));
    set_i(m, "axis", 1);
    return linear(m, "heads.head", y, v.dim, o->classes);
}

/* ---- all ---- */

static int32_t input(struct maker *m, const struct networks_options *o)
{
    struct graph *g = m->g;
    int32_t x = graph_add_value(g, "x", VALUE_INPUT, DT_F32), n = graph_sym(g, "N");
    struct dim *dims = yk_arena_alloc(g->arena, 4, sizeof *dims);
    int32_t *ids = yk_arena_alloc(g->arena, 1, sizeof *ids);
    if (x == YK_ABSENT || n == YK_ABSENT || !dims || !ids) {
        m->failed = true;
        return YK_ABSENT;
    }
    dims[0] = (struct dim){-1, n};
    dims[1] = (struct dim){o->channels, -1};
    dims[2] = (struct dim){o->height, -1};
    dims[3] = (struct dim){o->width, -1};
    g->values[x].rank = 4;
    g->values[x].dims = dims;
    ids[0] = x;
    g->inputs = ids;
    g->n_inputs = 1;
    return x;
}

/* The last node's output is the graph's and gets its name and its shape. */
static void output(struct maker *m, int64_t classes)
{
    struct graph *g = m->g;
    int32_t y = m->failed ? YK_ABSENT : graph_add_value(g, "logits", VALUE_NODE, DT_F32);
    struct dim *dims = yk_arena_alloc(g->arena, 2, sizeof *dims);
    int32_t *ids = yk_arena_alloc(g->arena, 1, sizeof *ids);
    if (y == YK_ABSENT || !dims || !ids) {
        m->failed = true;
        return;
    }
    last(m)->out[0] = y;
    dims[0] = (struct dim){-1, graph_sym(g, "N")};
    dims[1] = (struct dim){classes, -1};
    g->values[y].rank = 2;
    g->values[y].dims = dims;
    g->values[y].producer = g->n_nodes - 1;
    ids[0] = y;
    g->outputs = ids;
    g->n_outputs = 1;
}

static yk_err check(const char *kind, const struct networks_options *o, struct yk_diag *why)
{
    const struct {
        const char *what;
        int64_t value, most;
    } limits[] = {{"classes", o->classes, 1000000}, {"channels", o->channels, 4096}, {"height", o->height, 8192},
        {"width", o->width, 8192}};
    for (size_t i = 0; i < YK_COUNT(limits); i++)
        if (limits[i].value < 1 || limits[i].value > limits[i].most)
            return yk_fail(
                why, YK_INVAL, "%s %" PRId64 ": from 1 to %" PRId64, limits[i].what, limits[i].value, limits[i].most);
    int64_t least = strcmp(kind, "cnn") == 0 || strcmp(kind, "vit-tiny") == 0 ? 4 : 1;
    if (YK_MIN(o->height, o->width) < least)
        return yk_fail(why, YK_INVAL, "%s takes pictures from %" PRId64 "x%" PRId64 " on, not %" PRId64 "x%" PRId64,
            kind, least, least, o->height, o->width);
    int64_t patch = YK_MIN(o->height, o->width) >= 96 ? 16 : 4;
    if (strcmp(kind, "vit-tiny") == 0 && (o->height % patch || o->width % patch))
        return yk_fail(why, YK_INVAL,
            "vit-tiny cuts pictures into patches of %" PRId64 "x%" PRId64 ", which do not fill %" PRId64 "x%" PRId64,
            patch, patch, o->height, o->width);
    if (o->channels * o->height * o->width > (int64_t)1 << 28)
        return yk_fail(why, YK_LIMIT, "an input of %" PRId64 "x%" PRId64 "x%" PRId64 " is over 2^28 numbers",
            o->channels, o->height, o->width);
    return YK_OK;
}

yk_err networks_make(const char *kind, const struct networks_options *o, struct graph **out, struct yk_diag *why)
{
    static const int small[] = {2, 2, 2}, r18[] = {2, 2, 2, 2}, r34[] = {3, 4, 6, 3};
    static const char *const kinds[] = {"mlp", "cnn", "resnet-small", "resnet18", "resnet34", "vit-tiny"};
    size_t which = 0;
    while (which < YK_COUNT(kinds) && strcmp(kinds[which], kind) != 0)
        which++;
    if (which == YK_COUNT(kinds))
        return yk_fail(why, YK_NOTFOUND, "no kind of network is called '%s'; there are %s", kind, NETWORKS_KINDS);
    yk_err err = check(kind, o, why);
    if (err)
        return err;
    struct maker m = {.g = graph_open(0), .h = o->height, .w = o->width};
    if (!m.g)
        return yk_fail(why, YK_NOMEM, "no memory for a network");
    m.g->name = yk_arena_strdup(m.g->arena, kind);
    m.failed = !m.g->name;
    yk_rng_seed(&m.rng, o->seed);
    int32_t x = input(&m, o);
    if (!m.failed)
        switch (which) {
        case 0:
            mlp(&m, o, x);
            break;
        case 1:
            cnn(&m, o, x);
            break;
        case 2:
            resnet(&m, o, x, small, 3, true);
            break;
        case 3:
            resnet(&m, o, x, r18, 4, false);
            break;
        case 4:
            resnet(&m, o, x, r34, 4, false);
            break;
        default:
            vit_tiny(&m, o, x);
        }
    output(&m, o->classes);
    err = m.failed ? yk_fail(why, YK_NOMEM, "no memory for a network") : graph_sort(m.g, why);
    if (!err && (err = graph_prune(m.g)))
        yk_fail(why, err, "no memory for a network");
    if (err)
        graph_close(m.g);
    else
        *out = m.g;
    return err;
}
