#include "kernels/selftest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exec.h"
#include "kernels/host.h"
#include "kernels/plugin.h"

#define BATCH 3

struct make {
    struct graph *g;
    struct yk_rng rng;
    int n;
    bool failed;
};

static void *take(struct make *m, size_t count, size_t size)
{
    void *p = yk_arena_alloc(m->g->arena, count ? count : 1, size);
    m->failed |= !p;
    return p;
}

static int32_t good(struct make *m, int32_t id)
{
    m->failed |= id < 0;
    return id;
}

static void fill(struct make *m, float *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = (float)(2 * yk_rng_unit(&m->rng) - 1);
}

/* A float input; dims[0] is the batch where it is -1. */
static int32_t input(struct make *m, const char *name, int rank, const int64_t *dims)
{
    int32_t v = good(m, graph_add_value(m->g, name, VALUE_INPUT, DT_F32));
    int32_t *ids = take(m, (size_t)m->g->n_inputs + 1, sizeof(*ids));
    struct dim *d = take(m, (size_t)rank + 1, sizeof(*d));
    if (m->failed)
        return YK_ABSENT;
    for (int i = 0; i < rank; i++)
        d[i] = (struct dim){dims[i], dims[i] < 0 ? graph_sym(m->g, "N") : -1};
    m->g->values[v].rank = rank;
    m->g->values[v].dims = d;
    if (m->g->n_inputs)
        memcpy(ids, m->g->inputs, (size_t)m->g->n_inputs * sizeof(*ids));
    ids[m->g->n_inputs++] = v;
    m->g->inputs = ids;
    return v;
}

static int32_t weight(struct make *m, const char *name, int rank, const int64_t *dims)
{
    struct shape s = {.dtype = DT_F32, .rank = rank};
    for (int i = 0; i < rank; i++)
        s.dims[i] = dims[i];
    float *data = take(m, (size_t)shape_count(&s), sizeof(*data));
    if (m->failed)
        return YK_ABSENT;
    fill(m, data, shape_count(&s));
    return good(m, graph_add_weight(m->g, name, &s, data));
}

static int32_t ints(struct make *m, const char *name, const int64_t *v, int64_t n)
{
    struct shape s = {.dtype = DT_I64, .rank = 1, .dims = {n}};
    int64_t *data = take(m, (size_t)n, sizeof(*data));
    if (m->failed)
        return YK_ABSENT;
    memcpy(data, v, (size_t)n * sizeof(*v));
    return good(m, graph_add_weight(m->g, name, &s, data));
}

/* The node's output; *made (may be NULL) is the node, until the next one is added. */
static int32_t node(struct make *m, const char *domain, const char *op, const int32_t *in, int n, struct node **made)
{
    char name[16];
    const struct op *row = op_find(domain, op);
    snprintf(name, sizeof(name), "y%d", m->n++);
    int32_t y = good(m, graph_add_value(m->g, name, VALUE_NODE, DT_NONE));
    m->failed |= !row;
    if (m->failed || good(m, graph_add_node(m->g, name, row, in, n, &y, 1)) < 0)
        return YK_ABSENT;
    if (made)
        *made = &m->g->nodes[m->g->n_nodes - 1];
    return y;
}

#define DIMS(...) ((const int64_t[]){__VA_ARGS__})
#define IN(...) ((const int32_t[]){__VA_ARGS__})

static int32_t conv(struct make *m, int32_t x, const int64_t w[4], int64_t group, int64_t stride, bool fused)
{
    char weights[16], bias[16];
    struct node *n = NULL;
    snprintf(weights, sizeof(weights), "w%d", m->n);
    snprintf(bias, sizeof(bias), "b%d", m->n);
    int32_t in[3] = {x, weight(m, weights, 4, w), weight(m, bias, 1, w)};
    int32_t y = node(m, fused ? "ai.yoke" : "", fused ? "FusedConv" : "Conv", in, 3, &n);
    if (!n)
        return y;
    graph_set_attr_ints(m->g, n, "pads", DIMS(w[2] / 2, w[3] / 2, w[2] / 2, w[3] / 2), 4);
    graph_set_attr_ints(m->g, n, "strides", DIMS(stride, stride), 2);
    graph_set_attr_i(m->g, n, "group", group);
    if (fused)
        graph_set_attr_s(m->g, n, "activation", "relu");
    return y;
}

static int32_t conv_3x3(struct make *m)
{
    return conv(m, input(m, "x", 4, DIMS(-1, 5, 11, 9)), DIMS(7, 5, 3, 3), 1, 1, false);
}

static int32_t conv_strided(struct make *m)
{
    return conv(m, input(m, "x", 4, DIMS(-1, 3, 13, 12)), DIMS(8, 3, 5, 5), 1, 2, false);
}

static int32_t conv_1x1(struct make *m)
{
    return conv(m, input(m, "x", 4, DIMS(-1, 16, 7, 7)), DIMS(9, 16, 1, 1), 1, 1, false);
}

static int32_t conv_depthwise(struct make *m)
{
    return conv(m, input(m, "x", 4, DIMS(-1, 6, 9, 9)), DIMS(6, 1, 3, 3), 6, 1, false);
}

static int32_t conv_fused(struct make *m)
{
    return conv(m, input(m, "x", 4, DIMS(-1, 4, 8, 8)), DIMS(6, 4, 3, 3), 1, 1, true);
}

static int32_t gemm(struct make *m)
{
    struct node *n = NULL;
    int32_t in[3] = {input(m, "a", 2, DIMS(-1, 33)), weight(m, "b", 2, DIMS(17, 33)), weight(m, "c", 1, DIMS(17))};
    int32_t y = node(m, "", "Gemm", in, 3, &n);
    if (n) {
        graph_set_attr_i(m->g, n, "transB", 1);
        graph_set_attr_f(m->g, n, "alpha", 0.75f);
    }
    return y;
}

static int32_t gemm_fused(struct make *m)
{
    struct node *n = NULL;
    int32_t in[3] = {input(m, "a", 2, DIMS(-1, 20)), weight(m, "b", 2, DIMS(20, 12)), weight(m, "c", 1, DIMS(12))};
    int32_t y = node(m, "ai.yoke", "FusedGemm", in, 3, &n);
    if (n)
        graph_set_attr_s(m->g, n, "activation", "relu");
    return y;
}

static int32_t matmul(struct make *m)
{
    return node(m, "", "MatMul", IN(input(m, "a", 3, DIMS(-1, 7, 19)), weight(m, "b", 2, DIMS(19, 13))), 2, NULL);
}

static int32_t matmul_batch(struct make *m)
{
    return node(m, "", "MatMul", IN(input(m, "a", 4, DIMS(-1, 2, 5, 8)), input(m, "b", 4, DIMS(-1, 2, 8, 6))), 2, NULL);
}

static int32_t add_same(struct make *m)
{
    return node(m, "", "Add", IN(input(m, "a", 3, DIMS(-1, 5, 7)), input(m, "b", 3, DIMS(-1, 5, 7))), 2, NULL);
}

static int32_t add_broadcast(struct make *m)
{
    return node(m, "", "Add", IN(input(m, "a", 3, DIMS(-1, 5, 7)), weight(m, "b", 2, DIMS(5, 1))), 2, NULL);
}

static int32_t mul(struct make *m)
{
    return node(m, "", "Mul", IN(input(m, "a", 3, DIMS(-1, 4, 9)), input(m, "b", 3, DIMS(-1, 1, 9))), 2, NULL);
}

static int32_t sub(struct make *m)
{
    return node(m, "", "Sub", IN(input(m, "a", 2, DIMS(-1, 31)), input(m, "b", 2, DIMS(-1, 31))), 2, NULL);
}

static int32_t unary(struct make *m, const char *op)
{
    return node(m, "", op, IN(input(m, "x", 3, DIMS(-1, 3, 37))), 1, NULL);
}

static int32_t relu(struct make *m)
{
    return unary(m, "Relu");
}

static int32_t sigmoid(struct make *m)
{
    return unary(m, "Sigmoid");
}

static int32_t tanh_of(struct make *m)
{
    return unary(m, "Tanh");
}

static int32_t softmax(struct make *m)
{
    struct node *n = NULL;
    int32_t y = node(m, "", "Softmax", IN(input(m, "x", 3, DIMS(-1, 4, 10))), 1, &n);
    if (n)
        graph_set_attr_i(m->g, n, "axis", -1);
    return y;
}

static int32_t pool(struct make *m, const char *op)
{
    struct node *n = NULL;
    int32_t y = node(m, "", op, IN(input(m, "x", 4, DIMS(-1, 3, 9, 10))), 1, &n);
    if (n) {
        graph_set_attr_ints(m->g, n, "kernel_shape", DIMS(3, 2), 2);
        graph_set_attr_ints(m->g, n, "strides", DIMS(2, 2), 2);
        graph_set_attr_ints(m->g, n, "pads", DIMS(1, 0, 1, 0), 4);
    }
    return y;
}

static int32_t max_pool(struct make *m)
{
    return pool(m, "MaxPool");
}

static int32_t average_pool(struct make *m)
{
    return pool(m, "AveragePool");
}

static int32_t global_pool(struct make *m)
{
    return node(m, "", "GlobalAveragePool", IN(input(m, "x", 4, DIMS(-1, 6, 5, 7))), 1, NULL);
}

static int32_t layer_norm(struct make *m)
{
    int32_t in[3] = {input(m, "x", 3, DIMS(-1, 4, 24)), weight(m, "s", 1, DIMS(24)), weight(m, "b", 1, DIMS(24))};
    return node(m, "", "LayerNormalization", in, 3, NULL);
}

static int32_t reshape(struct make *m)
{
    return node(m, "", "Reshape", IN(input(m, "x", 3, DIMS(-1, 6, 4)), ints(m, "s", DIMS(0, -1), 2)), 2, NULL);
}

static int32_t transpose(struct make *m)
{
    struct node *n = NULL;
    int32_t y = node(m, "", "Transpose", IN(input(m, "x", 3, DIMS(-1, 5, 6))), 1, &n);
    if (n)
        graph_set_attr_ints(m->g, n, "perm", DIMS(0, 2, 1), 3);
    return y;
}

static int32_t concat(struct make *m)
{
    struct node *n = NULL;
    int32_t y = node(m, "", "Concat", IN(input(m, "a", 3, DIMS(-1, 5, 6)), input(m, "b", 3, DIMS(-1, 2, 6))), 2, &n);
    if (n)
        graph_set_attr_i(m->g, n, "axis", 1);
    return y;
}

/* Several nodes, so that a segment has inner values, and one that leaves and is read inside as well. */
static int32_t chain(struct make *m)
{
    int32_t x = input(m, "x", 4, DIMS(-1, 3, 8, 8));
    int32_t a = conv(m, x, DIMS(6, 3, 3, 3), 1, 1, false);
    int32_t b = node(m, "", "Relu", IN(a), 1, NULL);
    int32_t c = conv(m, b, DIMS(6, 6, 3, 3), 1, 1, false);
    int32_t d = node(m, "", "Add", IN(c, b), 2, NULL);
    int32_t e = node(m, "", "Relu", IN(d), 1, NULL);
    int32_t f = node(m, "", "Flatten", IN(e), 1, NULL);
    return node(m, "", "Gemm", IN(f, weight(m, "w", 2, DIMS(6 * 8 * 8, 10)), weight(m, "b", 1, DIMS(10))), 3, NULL);
}

static const struct {
    const char *name;
    int32_t (*build)(struct make *m);
} all[] = {
    {"Conv 3x3", conv_3x3},
    {"Conv 5x5, stride 2", conv_strided},
    {"Conv 1x1", conv_1x1},
    {"Conv, depthwise", conv_depthwise},
    {"FusedConv with relu", conv_fused},
    {"Gemm, B transposed", gemm},
    {"FusedGemm with relu", gemm_fused},
    {"MatMul by a weight", matmul},
    {"MatMul, batched", matmul_batch},
    {"Add", add_same},
    {"Add, broadcast", add_broadcast},
    {"Mul, broadcast", mul},
    {"Sub", sub},
    {"Relu", relu},
    {"Sigmoid", sigmoid},
    {"Tanh", tanh_of},
    {"Softmax", softmax},
    {"MaxPool", max_pool},
    {"AveragePool", average_pool},
    {"GlobalAveragePool", global_pool},
    {"LayerNormalization", layer_norm},
    {"Reshape", reshape},
    {"Transpose", transpose},
    {"Concat", concat},
    {"a chain of Conv, Relu, Add, Gemm", chain},
};

int selftest_count(void)
{
    return (int)YK_COUNT(all);
}

/* ---- running one ---- */

#define MOST_IN 2

struct io {
    struct tensor in[MOST_IN], out;
};

static void io_fini(struct io *io)
{
    for (int i = 0; i < MOST_IN; i++)
        free(io->in[i].data);
    free(io->out.data);
}

/* One run with these backends; claimed is set if a node has a form of isa. */
static yk_err run(
    struct make *m, struct backends *bs, int64_t n, const char *isa, bool *claimed, struct io *io, struct yk_diag *why)
{
    int64_t max = BATCH;
    struct exec_config c = {.graph = m->g, .max_sizes = &max, .backends = bs};
    struct exec *e;
    const struct shapes *s;
    struct yk_rng rng = m->rng;
    yk_err err = exec_open(&c, &e, why);
    if (err)
        return err;
    for (int32_t i = 0; i < m->g->n_nodes; i++) {
        const char *at = strchr(exec_form(e, i), '@');
        *claimed = *claimed || (at && !strcmp(at + 1, isa));
    }
    const struct memplan *plan = exec_plan(e);
    err = exec_sizes(e, &n, &s, why);
    if (!err && (plan->n_in > MOST_IN || plan->n_out != 1))
        err = yk_fail(why, YK_INTERNAL, "a case of %d inputs", (int)plan->n_in);
    for (int32_t i = 0; !err && i < plan->n_in; i++) {
        struct make filler = {.rng = rng};
        io->in[i].shape = s->of[plan->in[i]];
        io->in[i].data = yk_try_aligned((size_t)tensor_bytes(&io->in[i]));
        if (!io->in[i].data)
            err = yk_fail(why, YK_NOMEM, "no memory for the self-test");
        else
            fill(&filler, io->in[i].data, tensor_count(&io->in[i]));
        rng = filler.rng;
    }
    if (!err) {
        io->out.shape = s->of[plan->out[0]];
        io->out.data = yk_try_aligned((size_t)tensor_bytes(&io->out));
        err = io->out.data ? exec_run(e, &n, io->in, &io->out, 0, why) : yk_fail(why, YK_NOMEM, "no memory");
    }
    exec_close(e);
    return err;
}

static yk_err run_case(size_t k, struct backend *b, struct backend *ref, bool *claimed, struct yk_diag *why)
{
    struct backends both = {.at = {b, ref}, .n = 2}, one = {.at = {ref}, .n = 1};
    struct make m = {.g = graph_open(0)};
    yk_err err = YK_OK;
    if (!m.g)
        return yk_fail(why, YK_NOMEM, "no memory for the self-test");
    yk_rng_seed(&m.rng, k + 1);
    int32_t y = all[k].build(&m);
    if (m.failed) {
        graph_close(m.g);
        return yk_fail(why, YK_NOMEM, "no memory for the self-test");
    }
    m.g->outputs = &y;
    m.g->n_outputs = 1;
    for (int64_t n = BATCH; !err && n >= BATCH - 1; n--) { /* as loaded, then smaller */
        struct io got = {.out = {.data = NULL}}, want = {.out = {.data = NULL}};
        err = run(&m, &both, n, b->ops->isa(b), claimed, &got, why);
        if (err && !backends_lost(b, NULL))
            yk_wrap(why, err, "self-test '%s' failed", all[k].name);
        else if (err)
            yk_wrap(why, err, "self-test '%s'", all[k].name);
        if (!err && *claimed && (err = run(&m, &one, n, "", claimed, &want, why)) == YK_OK) {
            double far = plugin_distance(got.out.shape.dtype, got.out.data, want.out.data, tensor_count(&got.out));
            if (isinf(far))
                err = yk_fail(
                    why, YK_REFUSED, "self-test '%s': the answer has NaN or infinity where ref has none", all[k].name);
            else if (far > PLUGIN_RELATIVE)
                err = yk_fail(why, YK_REFUSED,
                    "self-test '%s': wrong answer, relative difference from ref %.3g (limit %g)", all[k].name, far,
                    PLUGIN_RELATIVE);
        }
        io_fini(&got);
        io_fini(&want);
        if (!*claimed)
            break;
    }
    graph_close(m.g);
    return err;
}

yk_err selftest(struct backend *b, struct pool *pool, int *cases, struct yk_diag *why)
{
    struct backend *ref;
    int n = 0;
    yk_err err = backend_ref.open(pool, &ref, why);
    if (err)
        return err;
    plugin_strict(b, true);
    for (size_t k = 0; !err && k < YK_COUNT(all); k++) {
        bool claimed = false;
        err = run_case(k, b, ref, &claimed, why);
        if (!err && backends_lost(b, why)) {
            yk_wrap(why, YK_REFUSED, "self-test '%s'", all[k].name);
            err = YK_REFUSED; /* it failed where it says what it can do */
        }
        n += claimed;
    }
    plugin_strict(b, false);
    backend_ref.close(ref);
    if (cases)
        *cases = n;
    return err;
}
