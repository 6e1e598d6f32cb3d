/* The gradient of every rule against central differences, in double: one op, a squared error as loss, random shapes and
 * contents; once with parameters of fixed size as inputs, once behind a batch of a named dimension, where shapes are
 * known at run time only. */
#include "tests/unit/grad_run.h"

static void fill(struct grad_run *r, int32_t v, struct yk_rng *rng, bool small)
{
    const struct shape *s = &r->shapes.of[v];
    r->data[v] = malloc((size_t)shape_bytes(s) + 1);
    r->owned[v] = 1;
    for (int64_t i = 0; i < shape_count(s); i++) {
        double d = small ? 0.02 * yk_rng_unit(rng) : 2 * yk_rng_unit(rng) - 1;
        ref_store_d(r->data[v], s->dtype, i, 1, &d, 1);
    }
}

/* Elements of a parameter whose gradient is checked. */
#define SAMPLES 24

/* Gradients of a training graph of g against differences; how names it in messages. */
static bool check_graph(
    const struct graph *g, const struct grad_options *o, int64_t batch, uint64_t seed, bool all, const char *how)
{
    struct yk_diag why = {""};
    struct grad_info info;
    struct graph *train;
    struct grad_run r = {0};
    struct yk_rng rng;
    yk_err err = grad_build(g, o, &train, &info, &why);
    if (err) {
        print_error("%s: %s\n", how, why.text);
        return false;
    }
    bool ok = true;
    int64_t sizes[4] = {batch, batch, batch, batch};
    struct shapes fwd_shapes;
    assert_true(train->n_syms <= 4);
    assert_int_equal(shapes_infer(g, sizes, NULL, &fwd_shapes, &why), YK_OK);
    for (int32_t s = g->n_syms; s < train->n_syms; s++) /* target_<axis> */
        sizes[s] = fwd_shapes.of[g->outputs[0]].dims[atoi(train->syms[s] + strlen("target_"))];
    shapes_fini(&fwd_shapes);
    err = grad_run_open(&r, train, sizes);
    yk_rng_seed(&rng, seed + 1);
    for (int32_t i = 0; i < train->n_inputs && !err; i++)
        fill(&r, train->inputs[i], &rng, i + 2 < train->n_inputs);
    if (!err) {
        double two = 2;
        ref_store_d(r.data[train->inputs[info.divisor_input]], DT_F64, 0, 1, &two, 1);
        err = grad_run_nodes(&r, train->n_nodes, seed);
    }
    if (err) {
        print_error("%s: %s\n", how, r.why.text);
        ok = false;
    }
    int checked = 0;
    for (int32_t p = 0; p < info.n_params && ok; p++) {
        const struct grad_param *param = &info.params[p];
        double *w = (double *)(uintptr_t)train->values[param->value].data, g_max = 0;
        int64_t n = shape_count(&train->values[param->value].shape);
        double *sum = yk_xalloc((size_t)n * sizeof *sum);
        if (all && !param->trainable) {
            print_error("%s: '%s' is not trained\n", how, param->name);
            ok = false;
        }
        for (int32_t u = 0; u < param->n_uses; u++)
            for (int64_t i = 0; i < n; i++)
                sum[i] += grad_run_number(&r, train->outputs[param->uses[u]], i);
        for (int64_t i = 0; i < n; i++)
            g_max = YK_MAX(g_max, fabs(sum[i]));
        for (int s = 0; s < SAMPLES && s < n && ok; s++) {
            int64_t i = n <= SAMPLES ? s : (int64_t)yk_rng_below(&rng, (uint64_t)n);
            double keep = w[i], slope = 0;
            bool near = false;
            for (double h = 1e-5; h > 5e-8 && !near; h /= 10) { /* smaller steps where the curve is sharp */
                double loss[2];
                for (int side = 0; side < 2; side++) {
                    w[i] = side ? keep + h : keep - h;
                    assert_int_equal(grad_run_nodes(&r, info.first_backward, seed), YK_OK);
                    loss[side] = grad_run_number(&r, train->outputs[info.loss_output], 0);
                }
                slope = (loss[1] - loss[0]) / (2 * h);
                near = fabs(slope - sum[i]) <= 1e-7 * (g_max + fabs(slope)) + 2e-14 / h * YK_MAX(1, fabs(loss[0]));
            }
            w[i] = keep;
            checked++;
            if (!near) {
                print_error("%s: d/d%s[%lld] is %.12g, differences give %.12g\n", how, param->name, (long long)i,
                    sum[i], slope);
                ok = false;
            }
        }
        free(sum);
    }
    if (ok && checked == 0) {
        print_error("%s: no parameter\n", how);
        ok = false;
    }
    grad_run_close(&r);
    graph_close(train);
    return ok;
}

static bool check_case(const struct grad_case *t, bool dynamic, uint64_t seed, bool bn_frozen)
{
    struct grad_options o;
    char how[256];
    int64_t batch;
    struct graph *g = grad_case_graph(t, dynamic, seed, &batch);
    if (!g)
        return true;
    grad_options_init(&o);
    o.loss = GRAD_MSE;
    o.bn_frozen = bn_frozen;
    snprintf(how, sizeof how, "%s [%.150s] seed %llu%s", t->op, t->attrs ? t->attrs : "", (unsigned long long)seed,
        dynamic ? " dynamic" : "");
    assert_int_equal(graph_sort(g, NULL), YK_OK);
    bool ok = check_graph(g, &o, batch, seed, true, how);
    graph_close(g);
    return ok;
}

static void check_cases(const struct grad_case *cases, size_t n)
{
    int failed = 0;
    for (size_t i = 0; i < n; i++)
        for (uint64_t seed = 1; seed <= 3; seed++)
            for (int dynamic = 0; dynamic < 2; dynamic++)
                failed += !check_case(&cases[i], dynamic, 100 * i + seed, false);
    assert_int_equal(failed, 0);
}

static void test_linear(void **state)
{
    static const struct grad_case cases[] = {
        {.op = "Conv", .in = {"p:2,3,5,6", "p:4,3,3,2", "p:4"}, .attrs = "pads=ints:1,0,1,1 strides=ints:2,1"},
        {.op = "Conv",
            .in = {"p:2,4,5,5", "p:6,2,3,3", "p:6"},
            .attrs = "group=i:2 pads=ints:1,1,1,1 dilations=ints:2,1"},
        {.op = "Conv", .in = {"p:2,4,6,5", "p:4,1,3,3"}, .attrs = "group=i:4 strides=ints:2,2 auto_pad=s:SAME_UPPER"},
        {.op = "Conv", .in = {"p:2,3,9", "p:4,3,3", "p:4"}, .attrs = "strides=ints:2"},
        {.op = "Conv", .in = {"p:1,2,3,4,3", "p:2,2,2,2,2"}, .attrs = "pads=ints:1,0,0,0,1,0"},
        {.op = "ConvTranspose", .in = {"p:2,3,4,3", "p:3,4,3,2", "p:4"}, .attrs = "strides=ints:2,1 pads=ints:1,0,1,0"},
        {.op = "ConvTranspose",
            .in = {"p:2,4,3,3", "p:4,2,3,3", "p:4"},
            .attrs = "group=i:2 strides=ints:2,2 pads=ints:1,1,1,1 output_padding=ints:1,1"},
        {.op = "ConvTranspose", .in = {"p:2,3,5", "p:3,2,3"}, .attrs = "dilations=ints:2"},
        {.op = "Gemm", .in = {"p:3,4", "p:4,5", "p:5"}, .attrs = "alpha=f:0.5 beta=f:2"},
        {.op = "Gemm", .in = {"p:4,3", "p:5,4", "p:3,1"}, .attrs = "transA=i:1 transB=i:1", .fixed = 1},
        {.op = "Gemm", .in = {"p:3,4", "p:5,4", "p:1"}, .attrs = "transB=i:1"},
        {.op = "Gemm", .in = {"p:4,3", "p:4,5"}, .attrs = "transA=i:1 alpha=f:1.5", .fixed = 1},
        {.op = "ai.yoke.FusedGemm", .in = {"p:2,3,4", "p:5,4", "p:5"}, .attrs = "transB=i:1 alpha=f:0.5 beta=f:2"},
        {.op = "ai.yoke.FusedGemm", .in = {"p:2,3,4", "p:4,5"}},
        {.op = "MatMul", .in = {"p:3,4", "p:4,5"}},
        {.op = "MatMul", .in = {"p:2,3,4", "p:4,5"}},
        {.op = "MatMul", .in = {"p:2,3,4", "p:2,4,5"}},
        {.op = "MatMul", .in = {"p:2,1,3,4", "p:3,4,5"}},
        {.op = "MatMul", .in = {"p:3,4", "p:2,4,5"}, .fixed = 1},
        {.op = "MatMul", .in = {"p:4", "p:2,4,5"}, .fixed = 1},
        {.op = "MatMul", .in = {"p:2,3,4", "p:4"}},
        {.op = "MatMul", .in = {"p:3,4", "p:4"}},
        {.op = "MatMul", .in = {"p:4", "p:4,3"}, .fixed = 1},
        {.op = "Einsum", .in = {"p:2,3,4", "p:4,5"}, .attrs = "equation=s:bij,jk->bik"},
        {.op = "Einsum", .in = {"p:2,3,4", "p:2,5,4"}, .attrs = "equation=s:bid,bjd->bij"},
        {.op = "Einsum", .in = {"p:2,3,4"}, .attrs = "equation=s:bij->jb", .fixed = 1},
        {.op = "Einsum", .in = {"p:2,3,4", "p:2,4"}, .attrs = "equation=s:bij,bk->bk", .fixed = 1},
        {.op = "Einsum", .in = {"p:2,3,4", "p:3,2", "p:4,2"}, .attrs = "equation=s:bij,ik,jk->k", .fixed = 1},
        {.op = "Einsum", .in = {"p:2,3,1", "p:2,3,4"}, .attrs = "equation=s:bij,bij->bi"},
        {.op = "Einsum", .in = {"p:2,3,4", "p:3,2", "p:4,2"}, .attrs = "equation=s:bij,ik,jk->bk"},
        {.op = "Einsum", .in = {"p:2,3,4", "p:4,3"}, .attrs = "equation=s:...j,ji->...i"},
    };
    (void)state;
    check_cases(cases, YK_COUNT(cases));
}

static void test_norm(void **state)
{
    static const struct grad_case cases[] = {
        {.op = "BatchNormalization",
            .in = {"p:3,4,2,3", "p:4", "p:4", "c:4", "c:4=1,2,0.5,1"},
            .attrs = "epsilon=f:0.001"},
        {.op = "BatchNormalization", .in = {"p:5,4", "p:4", "p:4", "c:4", "c:4=1,2,0.5,1"}},
        {.op = "LayerNormalization", .in = {"p:2,3,5", "p:5", "p:5"}, .attrs = "epsilon=f:0.001"},
        {.op = "LayerNormalization", .in = {"p:2,3,4", "p:3,4"}, .attrs = "axis=i:1 epsilon=f:0.01"},
        {.op = "LayerNormalization", .in = {"p:3,2,3,2", "p:3,2", "p:3,2"}, .attrs = "axis=i:-2"},
        {.op = "InstanceNormalization", .in = {"p:2,3,4,3", "p:3", "p:3"}, .attrs = "epsilon=f:0.001"},
        {.op = "InstanceNormalization", .in = {"p:2,3,7", "p:3", "p:3"}},
        {.op = "LpNormalization", .in = {"p:3,4,2"}, .attrs = "axis=i:1"},
        {.op = "LpNormalization", .in = {"p:3,4"}, .attrs = "p=i:1 axis=i:-1"},
        {.op = "LRN", .in = {"p:2,5,3"}, .attrs = "size=i:3 alpha=f:0.5 beta=f:0.75 bias=f:1.5"},
        {.op = "LRN", .in = {"p:2,4,2,2"}, .attrs = "size=i:4 alpha=f:0.9"},
        {.op = "MaxPool", .in = {"~:2,2,5,4"}, .attrs = "kernel_shape=ints:2,3 strides=ints:1,2 pads=ints:0,1,1,1"},
        {.op = "MaxPool",
            .in = {"~:2,3,8"},
            .attrs = "kernel_shape=ints:3 strides=ints:2 dilations=ints:2 ceil_mode=i:1"},
        {.op = "AveragePool",
            .in = {"p:2,2,5,4"},
            .attrs = "kernel_shape=ints:2,3 pads=ints:0,1,1,1 count_include_pad=i:1"},
        {.op = "AveragePool",
            .in = {"p:2,2,5,4"},
            .attrs = "kernel_shape=ints:3,2 strides=ints:2,2 pads=ints:1,0,1,0 ceil_mode=i:1"},
        {.op = "MeanVarianceNormalization", .in = {"p:2,3,4,2"}},
        {.op = "MeanVarianceNormalization", .in = {"p:2,3,4"}, .attrs = "axes=ints:1,2"},
        {.op = "LpPool", .in = {"p:2,2,5,4"}, .attrs = "kernel_shape=ints:2,3 pads=ints:0,1,1,1 p=i:1"},
        {.op = "LpPool", .in = {"p:2,2,5,4"}, .attrs = "kernel_shape=ints:2,3 strides=ints:2,1 p=i:2"},
        {.op = "LpPool", .in = {"p:2,2,7"}, .attrs = "kernel_shape=ints:3 p=i:3"},
        {.op = "GlobalLpPool", .in = {"p:2,3,4,2"}, .attrs = "p=i:1"},
        {.op = "GlobalLpPool", .in = {"p:2,3,4,2"}},
        {.op = "GlobalLpPool", .in = {"p:2,3,4"}, .attrs = "p=i:3"},
        {.op = "GlobalAveragePool", .in = {"p:2,3,4,2"}},
        {.op = "GlobalMaxPool", .in = {"~:2,3,4,2"}},
    };
    (void)state;
    check_cases(cases, YK_COUNT(cases));
    for (int i = 0; i < 2; i++)
        for (int dynamic = 0; dynamic < 2; dynamic++)
            assert_true(check_case(&cases[i], dynamic, 77, true));
}

static void test_activations(void **state)
{
    static const struct grad_case cases[] = {
        {.op = "Relu", .in = {"p:3,4"}},
        {.op = "LeakyRelu", .in = {"p:3,4"}},
        {.op = "LeakyRelu", .in = {"p:3,4"}, .attrs = "alpha=f:-0.5"},
        {.op = "LeakyRelu", .in = {"p:3,4"}, .attrs = "alpha=f:0"},
        {.op = "Elu", .in = {"p:3,4"}, .attrs = "alpha=f:0.7"},
        {.op = "Celu", .in = {"p:3,4"}, .attrs = "alpha=f:0.7"},
        {.op = "Selu", .in = {"p:3,4"}},
        {.op = "Shrink", .in = {"p:3,7"}, .attrs = "lambd=f:0.4 bias=f:0.2"},
        {.op = "Softsign", .in = {"p:3,4"}},
        {.op = "ThresholdedRelu", .in = {"p:3,7"}, .attrs = "alpha=f:0.3"},
        {.op = "PRelu", .in = {"p:3,4,2", "p:4,1"}},
        {.op = "PRelu", .in = {"p:3,4", "p:1"}},
        {.op = "Clip", .in = {"~:3,7", "c:=-0.42", "c:=0.5"}},
        {.op = "Clip", .in = {"~:3,7", "-", "c:=0.5"}},
        {.op = "Clip", .in = {"~:3,7"}},
        {.op = "Sigmoid", .in = {"p:3,4"}},
        {.op = "HardSigmoid", .in = {"~:3,9"}, .attrs = "alpha=f:0.7 beta=f:0.5"},
        {.op = "HardSwish", .in = {"~:9,9"}},
        {.op = "Tanh", .in = {"p:3,4"}},
        {.op = "Softplus", .in = {"p:3,4"}},
        {.op = "ai.yoke.Gelu", .in = {"p:3,4"}},
        {.op = "ai.yoke.Silu", .in = {"p:3,4"}},
        {.op = "Erf", .in = {"p:3,4"}},
        {.op = "Exp", .in = {"p:3,4"}},
        {.op = "Log", .in = {"+:3,4"}},
        {.op = "Sqrt", .in = {"+:3,4"}},
        {.op = "Reciprocal", .in = {"p:3,4"}},
        {.op = "Sin", .in = {"p:3,4"}},
        {.op = "Cos", .in = {"p:3,4"}},
        {.op = "Tan", .in = {"p:3,4"}},
        {.op = "Acos", .in = {"u:3,4"}},
        {.op = "Asin", .in = {"u:3,4"}},
        {.op = "Atan", .in = {"p:3,4"}},
        {.op = "Sinh", .in = {"p:3,4"}},
        {.op = "Cosh", .in = {"p:3,4"}},
        {.op = "Asinh", .in = {"p:3,4"}},
        {.op = "Acosh", .in = {"g:3,4"}},
        {.op = "Atanh", .in = {"u:3,4"}},
        {.op = "Neg", .in = {"p:3,4"}},
        {.op = "Abs", .in = {"p:3,4"}},
    };
    (void)state;
    check_cases(cases, YK_COUNT(cases));
}

static void test_math(void **state)
{
    static const struct grad_case cases[] = {
        {.op = "Add", .in = {"p:3,4", "p:3,4"}},
        {.op = "Add", .in = {"p:3,4", "p:4"}},
        {.op = "Add", .in = {"p:2,3,4", "p:3,1"}},
        {.op = "Add", .in = {"p:2,3,1", "p:2,1,4"}},
        {.op = "Sub", .in = {"p:3,4", "p:3,1"}},
        {.op = "Sub", .in = {"p:4", "p:2,3,4"}, .fixed = 1},
        {.op = "Mul", .in = {"p:3,4", "p:3,4"}},
        {.op = "Mul", .in = {"p:3,1,4", "p:3,5,1"}},
        {.op = "Mul", .in = {"p:2,3,4,2", "p:3,1,1"}},
        {.op = "Div", .in = {"p:3,4", "+:4"}},
        {.op = "Div", .in = {"p:2,3,1", "+:2,1,4"}},
        {.op = "Pow", .in = {"p:3,4", "c:=2"}},
        {.op = "Pow", .in = {"+:3,4", "c:=0.5"}},
        {.op = "Pow", .in = {"p:3,4", "i:=3"}},
        {.op = "Pow", .in = {"+:3,4", "p:4"}},
        {.op = "Min", .in = {"p:3,4", "p:3,4"}},
        {.op = "Max", .in = {"p:3,4", "p:4", "p:3,1"}},
        {.op = "Max", .in = {"~:3,4"}},
        {.op = "Sum", .in = {"p:3,4", "p:4", "p:3,1"}},
        {.op = "Mean", .in = {"p:3,4", "p:4", "p:3,1"}},
        {.op = "Where", .in = {"b:3,4=1,0,0,1,1,1,0,1,0,1,0,0", "p:3,4", "p:4"}, .fixed = 1},
        {.op = "Where", .in = {"b:4=1,0,0,1", "p:3,1", "p:3,4"}},
        {.op = "Cast", .in = {"p:3,4"}, .attrs = "to=i:11"},
    };
    (void)state;
    check_cases(cases, YK_COUNT(cases));
}

static void test_reductions(void **state)
{
    static const struct grad_case cases[] = {
        {.op = "ReduceSum", .in = {"p:3,4,2", "i:1=1"}},
        {.op = "ReduceSum", .in = {"p:3,4,2", "i:2=-1,1"}, .attrs = "keepdims=i:0"},
        {.op = "ReduceSum", .in = {"p:3,4,2", "i:1=0"}, .attrs = "keepdims=i:0"},
        {.op = "ReduceSum", .in = {"p:3,4"}, .attrs = "noop_with_empty_axes=i:1"},
        {.op = "ReduceSum", .in = {"p:3,4"}},
        {.op = "ReduceMean", .in = {"p:3,4,2"}, .attrs = "axes=ints:1,2"},
        {.op = "ReduceMean", .in = {"p:3,4,2"}, .attrs = "axes=ints:-1 keepdims=i:0"},
        {.op = "ReduceMax", .in = {"~:3,4,2"}, .attrs = "axes=ints:1"},
        {.op = "ReduceMin", .in = {"~:3,4,2"}, .attrs = "axes=ints:1,2 keepdims=i:0"},
        {.op = "ReduceProd", .in = {"p:3,4,2"}, .attrs = "axes=ints:1"},
        {.op = "ReduceProd", .in = {"p:3,2,2"}, .attrs = "axes=ints:0,2 keepdims=i:0", .fixed = 1},
        {.op = "ReduceL1", .in = {"p:3,4,2"}, .attrs = "axes=ints:1"},
        {.op = "ReduceL2", .in = {"p:3,4,2"}, .attrs = "axes=ints:1 keepdims=i:0"},
        {.op = "ReduceSumSquare", .in = {"p:3,4,2"}, .attrs = "axes=ints:2"},
        {.op = "ReduceLogSum", .in = {"+:3,4,2"}, .attrs = "axes=ints:1"},
        {.op = "ReduceLogSumExp", .in = {"p:3,4,2"}, .attrs = "axes=ints:1 keepdims=i:0"},
        {.op = "Softmax", .in = {"p:3,4,2"}, .attrs = "axis=i:1"},
        {.op = "Softmax", .in = {"p:3,5"}},
        {.op = "LogSoftmax", .in = {"p:3,4,2"}, .attrs = "axis=i:-2"},
        {.op = "LogSoftmax", .in = {"p:3,5"}},
    };
    (void)state;
    check_cases(cases, YK_COUNT(cases));
}

static void test_moves(void **state)
{
    static const struct grad_case cases[] = {
        {.op = "Identity", .in = {"p:3,4"}},
        {.op = "Reshape", .in = {"p:3,4", "i:3=0,2,2"}},
        {.op = "Reshape", .in = {"p:3,4", "i:1=-1"}},
        {.op = "Flatten", .in = {"p:3,4,2"}},
        {.op = "Flatten", .in = {"p:3,4,2"}, .attrs = "axis=i:2"},
        {.op = "Squeeze", .in = {"p:3,1,4", "i:1=1"}},
        {.op = "Unsqueeze", .in = {"p:3,4", "i:2=0,-1"}},
        {.op = "Transpose", .in = {"p:3,4,2"}, .attrs = "perm=ints:2,0,1"},
        {.op = "Transpose", .in = {"p:3,4"}},
        {.op = "Expand", .in = {"p:3,1,2", "i:3=1,4,1"}},
        {.op = "Expand", .in = {"p:3,1", "i:3=2,1,4"}, .fixed = 1},
        {.op = "Tile", .in = {"p:3,2", "i:2=1,3"}},
        {.op = "Tile", .in = {"p:3,2,2", "i:3=2,1,2"}},
        {.op = "Concat", .in = {"p:3,2", "p:3,4"}, .attrs = "axis=i:1", .fixed = 1},
        {.op = "Concat", .in = {"p:3,2", "p:2,2", "p:1,2"}, .attrs = "axis=i:0"},
        {.op = "Split", .in = {"p:3,6", "i:3=1,2,3"}, .attrs = "axis=i:1", .n_out = 3, .output = 1},
        {.op = "Split", .in = {"p:3,6"}, .attrs = "axis=i:-1", .n_out = 2},
        {.op = "Slice", .in = {"p:3,6", "i:1=1", "i:1=9", "i:1=1"}},
        {.op = "Slice", .in = {"p:3,6", "i:1=-1", "i:1=-9", "i:1=1", "i:1=-2"}},
        {.op = "Slice", .in = {"p:4,6,3", "i:2=1,0", "i:2=4,2", "i:2=1,-1", "i:2=2,1"}},
        {.op = "Slice", .in = {"p:3,4", "i:2=0,1", "i:2=2,3"}},
        {.op = "Gather", .in = {"p:5,3", "i:2,3=0,4,2,2,-1,0"}, .fixed = 1},
        {.op = "Gather", .in = {"p:3,4,2", "i:3=3,0,3"}, .attrs = "axis=i:1"},
        {.op = "Gather", .in = {"p:3,4", "i:=2"}, .attrs = "axis=i:1"},
        {.op = "GatherElements", .in = {"p:3,4", "i:3,2=3,0,1,1,-1,2"}, .attrs = "axis=i:1"},
        {.op = "GatherND", .in = {"p:3,4,2", "i:4,2=0,1,2,3,0,1,1,-1"}},
        {.op = "ScatterElements", .in = {"p:3,4", "i:3,2=3,0,1,2,3,2", "p:3,2"}, .attrs = "axis=i:1", .fixed = 1},
        {.op = "ScatterElements",
            .in = {"p:3,4", "i:3,2=3,0,1,1,3,2", "p:3,2"},
            .attrs = "axis=i:1 reduction=s:add",
            .fixed = 1},
        {.op = "ScatterND", .in = {"p:4,3", "i:2,1=3,0", "p:2,3"}},
        {.op = "TopK", .in = {"~:3,5", "i:1=2"}, .n_out = 2},
        {.op = "TopK", .in = {"~:3,5", "i:1=3"}, .attrs = "axis=i:0 largest=i:0", .n_out = 2},
        {.op = "Pad", .in = {"p:3,4", "i:4=0,1,0,2"}},
        {.op = "Pad", .in = {"p:3,4,5", "i:6=0,-1,1,0,2,-2"}},
        {.op = "Pad", .in = {"p:3,4,5", "i:6=0,2,1,0,3,4"}, .attrs = "mode=s:reflect"},
        {.op = "Pad", .in = {"p:3,4,5", "i:6=0,2,1,0,3,6"}, .attrs = "mode=s:edge"},
        {.op = "Trilu", .in = {"p:2,4,4"}, .attrs = "upper=i:0"},
        {.op = "Trilu", .in = {"p:2,4,4", "i:=1"}},
        {.op = "ReverseSequence", .in = {"p:3,4,2", "i:4=1,3,2,3"}, .fixed = 1},
        {.op = "CumSum", .in = {"p:3,4", "i:=1"}},
        {.op = "CumSum", .in = {"p:3,4", "i:=1"}, .attrs = "exclusive=i:1 reverse=i:1"},
        {.op = "DepthToSpace", .in = {"p:2,8,2,3"}, .attrs = "blocksize=i:2"},
        {.op = "DepthToSpace", .in = {"p:2,8,2,3"}, .attrs = "blocksize=i:2 mode=s:CRD"},
        {.op = "SpaceToDepth", .in = {"p:2,2,4,6"}, .attrs = "blocksize=i:2"},
        {.op = "Dropout", .in = {"p:6,8", "c:=0.4", "b:=1"}},
        {.op = "Dropout", .in = {"p:6,8"}},
        {.op = "Dropout", .in = {"p:6,8", "c:=0.4", "b:=0"}},
        {.op = "Resize", .in = {"p:2,2,3,4", "-", "f:4=1,1,2,2"}, .attrs = "mode=s:nearest"},
        {.op = "Resize", .in = {"p:2,2,3,4", "-", "f:4=1,1,2,1.5"}, .attrs = "mode=s:linear"},
        {.op = "Resize",
            .in = {"p:2,2,3,4", "-", "-", "i:4=2,2,5,7"},
            .attrs = "mode=s:linear coordinate_transformation_mode=s:align_corners",
            .fixed = 1},
        {.op = "Resize", .in = {"p:2,2,4,4", "-", "f:4=1,1,0.5,2"}, .attrs = "mode=s:cubic"},
        {.op = "Resize",
            .in = {"p:2,2,5", "-", "f:3=1,1,0.6"},
            .attrs = "mode=s:nearest coordinate_transformation_mode=s:asymmetric nearest_mode=s:floor"},
    };
    (void)state;
    check_cases(cases, YK_COUNT(cases));
}

/* ---- graphs of many nodes: values and parameters with several uses ---- */

static struct graph *random_graph(uint64_t seed)
{
    static const char *const unary[] = {"Tanh", "Sigmoid", "ai.yoke.Silu", "Softplus", "Softmax", "Identity", "Neg"};
    static const char *const binary[] = {"Add", "Sub", "Mul", "Mul", "Max"};
    static const char *const sizes[] = {"p:4,4", "p:4,4", "p:8,4", "p:4", "p:4", "p:1,4"};
    struct graph *g = fx_open();
    struct yk_rng r;
    int32_t w[YK_COUNT(sizes)], v[40];
    int n = 0;
    char name[16];
    yk_rng_seed(&r, seed);
    graph_sym(g, "N");
    int32_t axes = fx_ints(g, "axes", INTS(1));
    v[n++] = fx_input(g, "x", DT_F64, INTS(-1, 4));
    for (size_t i = 0; i < YK_COUNT(sizes); i++) {
        snprintf(name, sizeof name, "w%zu", i);
        w[i] = grad_weight(g, name, sizes[i], &r);
    }
    while (n < 24) {
        int32_t a = v[yk_rng_below(&r, (uint64_t)n)], b = v[n - 1];
        char mid[16];
        snprintf(name, sizeof name, "v%d", n);
        snprintf(mid, sizeof mid, "m%d", n);
        switch (yk_rng_below(&r, 8)) {
        case 0:
            v[n++] = fx_node(g, "MatMul", name, IDS(b, w[yk_rng_below(&r, 2)]));
            break;
        case 1:
            v[n++] = fx_node(g, "Add", name, IDS(b, w[3 + yk_rng_below(&r, 3)]));
            break;
        case 2:
            v[n++] = fx_node(g, "LayerNormalization", name, IDS(b, w[3], w[4]));
            break;
        case 3:
            a = fx_node(g, "Concat", mid, IDS(a, b));
            graph_set_attr_i(g, fx_last(g), "axis", 1);
            v[n++] = fx_node(g, "MatMul", name, IDS(a, w[2]));
            break;
        case 4:
            a = fx_node(g, "ReduceSum", mid, IDS(a, axes));
            v[n++] = fx_node(g, "Mul", name, IDS(b, a));
            break;
        case 5:
            v[n++] = fx_node(g, binary[yk_rng_below(&r, YK_COUNT(binary))], name, IDS(a, b));
            break;
        default:
            v[n++] = fx_node(g, unary[yk_rng_below(&r, YK_COUNT(unary))], name, IDS(b));
            break;
        }
        if (n % 8 == 0) { /* so that nothing grows without bound */
            snprintf(name, sizeof name, "t%d", n);
            v[n - 1] = fx_node(g, "Tanh", name, IDS(v[n - 1]));
        }
    }
    fx_output(g, fx_node(g, "Tanh", "y", IDS(v[n - 1])));
    return g;
}

static void test_random_graphs(void **state)
{
    const char *full = getenv("YOKE_FULL");
    int failed = 0, rounds = full && *full == '1' ? 1000 : 60;
    (void)state;
    for (int i = 0; i < rounds; i++) {
        char how[64];
        struct grad_options o;
        struct graph *g = random_graph((uint64_t)i);
        assert_int_equal(graph_sort(g, NULL), YK_OK);
        grad_options_init(&o);
        o.loss = GRAD_MSE;
        for (int again = 0; again < 2; again++) {
            o.recompute = again;
            snprintf(how, sizeof how, "graph %d%s", i, again ? ", recompute" : "");
            struct grad_info info;
            struct graph *train;
            struct yk_diag why = {""};
            if (grad_build(g, &o, &train, &info, &why) == YK_INVAL && strstr(why.text, "no parameters"))
                continue;
            graph_close(train);
            failed += !check_graph(g, &o, 3, (uint64_t)i, false, how);
        }
        graph_close(g);
    }
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_math),
        cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_random_graphs),
    };
    return cmocka_run_group_tests(tests, grad_setup, grad_teardown);
}
