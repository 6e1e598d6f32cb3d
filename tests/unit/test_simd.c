/* The functions of the portable backend against libm in double, over dense grids and at the ends. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/yk.h"
#include "kernels/simd.h"
#include "kernels/simd_fn.h"
#include "kernels/simd_last.h"
#include "tests/graphs.h"

/* Largest |f - g| / max(|g|, floor) over [lo, hi]. */
static double worst(float (*f)(float), double (*g)(double), double lo, double hi, double floor)
{
    double most = 0;
    for (int i = 0; i <= 400000; i++) {
        float x = (float)(lo + (hi - lo) * i / 400000.0);
        double want = g((double)x), err = fabs((double)f(x) - want) / fmax(fabs(want), floor);
        most = fmax(most, err);
    }
    return most;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void close_to_libm(void **state)
{
    (void)state;
    const double ulp = 1.1920929e-7;
    double e = worst(simd_exp, exp, -87, 88, 1e-300), t = worst(simd_tanh, tanh, -12, 12, 1e-3);
    double r = worst(simd_erf, erf, -6, 6, 1e-3), s = worst(simd_sigmoid, sigmoid, -80, 80, 1e-30);
    print_message("exp %.1f ulp, tanh %.1f, erf %.1f, sigmoid %.1f\n", e / ulp, t / ulp, r / ulp, s / ulp);
    assert_true(e < 2 * ulp);
    assert_true(t < 4 * ulp);
    assert_true(r < 5 * ulp);
    assert_true(s < 3 * ulp);
    /* Denormal results keep their absolute accuracy. */
    for (float x = -103.9f; x < -87; x += 0.01f)
        assert_true(fabs((double)simd_exp(x) - exp((double)x)) < 3e-45);
}

static void at_the_ends(void **state)
{
    (void)state;
    assert_true(isnan(simd_exp(NAN)) && isnan(simd_tanh(NAN)) && isnan(simd_erf(NAN)) && isnan(simd_sigmoid(NAN)));
    assert_true(isinf(simd_exp(INFINITY)) && simd_exp(-INFINITY) == 0);
    assert_true(isinf(simd_exp(88.8f)) && simd_exp(-200.0f) == 0 && simd_exp(0) == 1);
    assert_true(fabsf(simd_tanh(INFINITY) - 1) < 1e-6f && fabsf(simd_tanh(-INFINITY) + 1) < 1e-6f);
    assert_true(fabsf(simd_erf(INFINITY) - 1) < 1e-6f && simd_erf(0) == 0 && simd_tanh(0) == 0);
    assert_true(simd_sigmoid(INFINITY) == 1 && simd_sigmoid(-INFINITY) == 0);
}

static void folds_in_a_fixed_tree(void **state)
{
    (void)state;
    float lane[SIMD_LANES], sum = 0;
    for (int i = 0; i < SIMD_LANES; i++)
        lane[i] = (float)(1 << i);
    for (int i = 0; i < SIMD_LANES; i++)
        sum += lane[i];
    assert_true(simd_fold(lane) == sum);
}

/* A product of each instruction set against double, and bit for bit among sets that promise it. */
static void products_agree(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {
        {1, 1, 1}, {5, 3, 300}, {12, 32, 256}, {13, 33, 257}, {25, 70, 1000}, {7, 16, 0}};
    const struct simd_isa *isas[SIMD_ISAS_MAX];
    int n_isas = simd_isas(isas);
    struct yk_rng r;
    yk_rng_seed(&r, 7);
    for (size_t q = 0; q < YK_COUNT(sizes); q++) {
        int64_t m = sizes[q][0], n = sizes[q][1], k = sizes[q][2], lda = k + 3;
        float *a = yk_xalloc((size_t)(m * lda + 1) * 4), *b = yk_xalloc((size_t)(n * k + 1) * 4);
        float *bias = yk_xalloc((size_t)n * 4), *add = yk_xalloc((size_t)(m * n) * 4);
        float *first = yk_xalloc((size_t)(m * n) * 4), *y = yk_xalloc((size_t)(m * n) * 4);
        for (int64_t i = 0; i < m * lda; i++)
            a[i] = (float)yk_rng_unit(&r) - 0.5f;
        for (int64_t i = 0; i < n * k; i++)
            b[i] = (float)yk_rng_unit(&r) - 0.5f;
        for (int64_t i = 0; i < n; i++)
            bias[i] = (float)yk_rng_unit(&r);
        for (int64_t i = 0; i < m * n; i++)
            add[i] = (float)yk_rng_unit(&r);
        for (int s = 0; s < n_isas; s++) {
            float *packed = yk_xalloc((size_t)simd_packed(isas[s], k, n) * 4 + 4);
            isas[s]->pack(packed, b, k, n, n, false);
            if (s % 2) { /* b read as n rows of k instead: the same matrix */
                float *turned = yk_xalloc((size_t)(n * k) * 4 + 4);
                for (int64_t i = 0; i < k; i++)
                    for (int64_t j = 0; j < n; j++)
                        turned[j * k + i] = b[i * n + j];
                isas[s]->pack(packed, turned, k, n, k, true);
                free(turned);
            }
            struct simd_gemm g = {.m = m, .n = n, .k = k, .a = a, .lda = lda, .b = packed, .y = y, .ldy = n};
            g.e = (struct simd_epilogue){.bias = bias, .add = add, .ld_add = n, .act = SIMD_CLAMP, .lo = 0, .hi = 6};
            isas[s]->gemm(&g);
            double diff = 0, power = 0;
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < n; j++) {
                    double want = 0;
                    for (int64_t t = 0; t < k; t++)
                        want += (double)a[i * lda + t] * (double)b[t * n + j];
                    want = fmin(fmax(want + (double)bias[j] + (double)add[i * n + j], 0), 6);
                    diff += (want - (double)y[i * n + j]) * (want - (double)y[i * n + j]);
                    power += want * want;
                }
            assert_true(diff <= 1e-12 * power);
            if (s == 0)
                memcpy(first, y, (size_t)(m * n) * 4);
            else if (!strcmp(isas[s]->bits, isas[0]->bits))
                assert_memory_equal(first, y, (size_t)(m * n) * 4);
            free(packed);
        }
        free(a);
        free(b);
        free(bias);
        free(add);
        free(first);
        free(y);
    }
}

/* The activations behind a product, against double and bit for bit among sets that promise it. */
static void activations_agree(void **state)
{
    (void)state;
    static const struct activation acts[] = {{ACTIVATION_LEAKY_RELU, 0.1f, 0}, {ACTIVATION_HARD_SIGMOID, 0.2f, 0.5f},
        {ACTIVATION_HARD_SWISH, 1.0f / 6, 0.5f}, {ACTIVATION_SIGMOID, 0, 0}, {ACTIVATION_SILU, 0, 0},
        {ACTIVATION_GELU, 0, 0}, {ACTIVATION_CLIP, -1, 2}, {ACTIVATION_RELU, 0, 0}};
    enum { ROWS = 500, COLS = 77 }; /* the last vector is not whole */
    const struct simd_isa *isas[SIMD_ISAS_MAX];
    int n_isas = simd_isas(isas);
    float one = 1, *x = yk_xalloc(ROWS * COLS * 4), *row = yk_xalloc(COLS * 4), *first = yk_xalloc(ROWS * COLS * 4);
    float *y = yk_xalloc(ROWS * COLS * 4);
    static const float ends[] = {0, -0.0f, NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 100, -100, 88.9f, -88.9f};
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = i < (int)YK_COUNT(ends) ? ends[i] : ((float)i / (ROWS * COLS) - 0.5f) * (i % 2 ? 160 : 12);
    for (size_t q = 0; q < YK_COUNT(acts); q++)
        for (int s = 0; s < n_isas; s++) {
            float *packed = yk_xalloc((size_t)simd_packed(isas[s], 1, COLS) * 4);
            memset(row, 0, COLS * 4);
            isas[s]->pack(packed, row, 1, COLS, COLS, false);
            struct simd_gemm g = {.m = ROWS, .n = COLS, .k = 1, .a = &one, .b = packed, .y = y, .ldy = COLS};
            g.e = (struct simd_epilogue){.add = x, .ld_add = COLS};
            simd_last_act(&g.e, &acts[q]);
            isas[s]->gemm(&g);
            for (int i = 0; i < ROWS * COLS; i++) {
                double want = activation_apply(&acts[q], (double)x[i]);
                double small = 2.5e-7 * fmax(2, fabs(fmin((double)x[i], 6))); /* erf is good to a few ulp of 1 */
                bool same = isfinite(want) ? fabs((double)y[i] - want) <= 4e-7 * fabs(want) + small
                                           : (isnan(want) ? isnan(y[i]) : (double)y[i] == want);
                if (!same)
                    fail_msg("activation %d of %s at %g: %g, not %g", (int)acts[q].kind, isas[s]->name, (double)x[i],
                        (double)y[i], want);
            }
            if (s == 0)
                memcpy(first, y, ROWS * COLS * 4);
            else if (!strcmp(isas[s]->bits, isas[0]->bits))
                assert_memory_equal(first, y, ROWS * COLS * 4);
            free(packed);
        }
    free(x);
    free(row);
    free(first);
    free(y);
}

/* A graph of one node in the form `kind` of an instruction set, closed; the output is the caller's. */
static float *run_graph(struct graph *g, const struct simd_isa *isa, const char *kind, int64_t *count)
{
    struct yk_rng r;
    struct pool *pool;
    struct backends b;
    struct exec *e;
    struct graphs_io io;
    struct yk_diag why = {""};
    char form[BACKEND_FORM_MAX];
    const char *forms[1] = {form};
    simd_isa_use(isa);
    snprintf(form, sizeof(form), "%s@%s", kind, isa->bits);
    assert_int_equal(pool_open(2, &pool, &why), YK_OK);
    assert_int_equal(backends_open("simd", pool, &b, &why), YK_OK);
    struct exec_config c = {.graph = g, .forms = forms, .backends = &b};
    if (exec_open(&c, &e, &why) || graphs_io_init(&io, e, NULL, &why)) {
        print_error("%s\n", why.text);
        fail();
    }
    yk_rng_seed(&r, 4);
    for (int32_t i = 0; i < io.n_in; i++)
        graphs_fill(io.in[i].data, &io.in[i].shape, &r, false);
    assert_int_equal(exec_run(e, NULL, io.in, io.out, 0, &why), YK_OK);
    *count = tensor_count(&io.out[0]);
    float *y = yk_xalloc((size_t)*count * 4);
    memcpy(y, io.out[0].data, (size_t)*count * 4);
    graphs_io_fini(&io);
    exec_close(e);
    backends_close(&b);
    pool_close(pool);
    graph_close(g);
    simd_isa_use(NULL);
    return y;
}

static float *run_conv(const struct simd_isa *isa, const char *kind, int64_t ch, int64_t oc, int64_t group, int64_t k,
    int64_t stride, int64_t *count)
{
    struct graph *g = graph_open(0);
    struct yk_rng r;
    int64_t x[4] = {2, ch, 19, 21}, w[4] = {oc, ch / group, k, k}, pads[4] = {1, 0, 1, 2},
            strides[2] = {stride, stride};
    yk_rng_seed(&r, 3);
    int32_t in[3] = {graphs_input(g, "x", DT_F32, 4, x), graphs_weight(g, "w", DT_F32, 4, w, &r),
        graphs_weight(g, "b", DT_F32, 1, &oc, &r)};
    graphs_output(g, graphs_node(g, "ai.yoke", "FusedConv", "y", in, 3));
    graph_set_attr_s(g, &g->nodes[0], "activation", stride == 1 ? "silu" : "relu");
    graph_set_attr_i(g, &g->nodes[0], "group", group);
    graph_set_attr_ints(g, &g->nodes[0], "pads", pads, 4);
    graph_set_attr_ints(g, &g->nodes[0], "strides", strides, 2);
    return run_graph(g, isa, kind, count);
}

static float *run_preact(const struct simd_isa *isa, int64_t ch, int64_t oc, int64_t side, int64_t *count)
{
    struct graph *g = graph_open(0);
    struct yk_rng r;
    int64_t x[4] = {2, ch - 19, side, 21}, z[4] = {2, 19, side, 21}, w[4] = {oc, ch, 1, 1};
    yk_rng_seed(&r, 3);
    int32_t in[6] = {graphs_input(g, "x", DT_F32, 4, x), graphs_weight(g, "w", DT_F32, 4, w, &r),
        graphs_weight(g, "b", DT_F32, 1, &oc, &r), graphs_weight(g, "a", DT_F32, 1, &ch, &r),
        graphs_weight(g, "s", DT_F32, 1, &ch, &r), graphs_input(g, "z", DT_F32, 4, z)};
    graphs_output(g, graphs_node(g, "ai.yoke", "PreactConv", "y", in, 6));
    return run_graph(g, isa, "preact.gemm", count);
}

static float *run_deconv(const struct simd_isa *isa, int64_t ch, int64_t oc, int64_t k, int64_t *count)
{
    struct graph *g = graph_open(0);
    struct yk_rng r;
    int64_t x[4] = {2, ch, 9, 21}, w[4] = {ch, oc, k, k}, strides[2] = {k, k};
    yk_rng_seed(&r, 3);
    int32_t in[3] = {graphs_input(g, "x", DT_F32, 4, x), graphs_weight(g, "w", DT_F32, 4, w, &r),
        graphs_weight(g, "b", DT_F32, 1, &oc, &r)};
    graphs_output(g, graphs_node(g, "", "ConvTranspose", "y", in, 3));
    graph_set_attr_ints(g, &g->nodes[0], "strides", strides, 2);
    return run_graph(g, isa, "deconv.gemm", count);
}

static void forms_of_one_class_have_equal_bits(void **state)
{
    (void)state;
    static const struct {
        const char *kind;
        int64_t ch, oc, group, k, stride;
    } cases[] = {{"conv.wino4", 24, 37, 1, 3, 1}, {"conv.wino2", 17, 40, 1, 3, 1}, {"conv.gemm", 33, 70, 1, 3, 2},
        {"conv.gemm", 24, 40, 2, 5, 1}, {"conv.gemm", 40, 50, 1, 1, 1}, {"conv.depthwise", 37, 37, 37, 3, 2},
        {"conv.depthwise", 48, 48, 48, 5, 1}, {"conv.depthwise", 40, 40, 40, 5, 2},
        {"conv.depthwise", 21, 21, 21, 3, 1}, {"conv.depthwise", 18, 18, 18, 7, 3}, {"conv.narrow", 3, 40, 1, 3, 2},
        {"conv.narrow", 1, 20, 1, 5, 1}, {"conv.narrow", 4, 33, 1, 7, 2}, {"conv.group", 22, 22, 11, 3, 1},
        {"conv.group", 44, 44, 11, 3, 2}, {"conv.group", 104, 104, 13, 3, 1}, {"conv.group", 24, 24, 3, 3, 2},
        {"conv.group", 48, 48, 3, 3, 1}, {"conv.group", 80, 80, 5, 3, 2}, {"preact.gemm", 61, 37, 1, 3, 1},
        {"preact.gemm", 301, 64, 1, 33, 1}, {"deconv.gemm", 37, 24, 1, 2, 2}, {"deconv.gemm", 24, 1, 1, 2, 2}};
    const struct simd_isa *isas[SIMD_ISAS_MAX];
    int n_isas = simd_isas(isas);
    for (size_t i = 0; i < YK_COUNT(cases); i++) {
        int64_t n = 0;
        float *first = NULL;
        for (int s = 0; s < n_isas; s++) {
            const char *kind = cases[i].kind;
            int64_t ch = cases[i].ch, oc = cases[i].oc, k = cases[i].k;
            float *y = !strcmp(kind, "preact.gemm") ? run_preact(isas[s], ch, oc, k, &n)
                       : !strcmp(kind, "deconv.gemm")
                           ? run_deconv(isas[s], ch, oc, k, &n)
                           : run_conv(isas[s], kind, ch, oc, cases[i].group, k, cases[i].stride, &n);
            double diff = 0, power = 0;
            for (int64_t e = 0; first && e < n; e++) {
                diff += ((double)y[e] - (double)first[e]) * ((double)y[e] - (double)first[e]);
                power += (double)first[e] * (double)first[e];
            }
            assert_true(diff <= (strncmp(cases[i].kind, "conv.wino", 9) ? 1e-12 : 1e-10) * power);
            if (first && !strcmp(isas[s]->bits, isas[0]->bits))
                assert_memory_equal(first, y, (size_t)n * 4);
            if (first)
                free(y);
            else
                first = y;
        }
        free(first);
    }
}

/* Rows of a softmax of each instruction set against double, with a mask and what must not spread. */
static void soft_rows_agree(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 3, 15, 16, 17, 64, 129, 1000};
    const struct simd_isa *isas[SIMD_ISAS_MAX];
    int n_isas = simd_isas(isas);
    struct yk_rng r;
    yk_rng_seed(&r, 9);
    for (size_t q = 0; q < 4 * YK_COUNT(lengths); q++) {
        int64_t n = lengths[q / 4];
        int kind = (int)(q % 4); /* plain, a mask, one mask for all, an infinite mask at the end */
        float x[1000], mask[1000], y[1000], first[1000], sums[SIMD_ISAS_MAX];
        for (int64_t i = 0; i < n; i++) {
            x[i] = (float)(40 * yk_rng_unit(&r) - 20);
            mask[i] = kind == 3 ? (i > n / 2 ? -INFINITY : 0) : (float)(100 * yk_rng_unit(&r) - 100);
        }
        for (int s = 0; s < n_isas; s++) {
            double most = -INFINITY, sum = 0;
            sums[s] = isas[s]->soft(y, x, n, 0.5f, kind ? mask : NULL, kind == 2 ? 0 : 1);
            isas[s]->scale(y, 1 / sums[s], n);
            for (int pass = 0; pass < 3; pass++)
                for (int64_t i = 0; i < n; i++) {
                    double v = (double)x[i] * 0.5 + (kind ? (double)mask[kind == 2 ? 0 : i] : 0);
                    most = pass == 0 ? fmax(most, v) : most;
                    sum += pass == 1 ? exp(v - most) : 0;
                    if (pass == 2)
                        assert_true(fabs((double)y[i] - exp(v - most) / sum) <= 1e-5 * exp(v - most) / sum + 1e-37);
                    if (pass == 2 && kind == 3 && i > n / 2)
                        assert_true(y[i] == 0);
                }
            if (s == 0)
                memcpy(first, y, (size_t)n * 4);
            else if (!strcmp(isas[s]->bits, isas[0]->bits))
                assert_memory_equal(first, y, (size_t)n * 4);
        }
        x[n / 2] = NAN;
        for (int s = 0; s < n_isas; s++) {
            sums[s] = isas[s]->soft(x, x, n, 1, NULL, 0);
            assert_true(isnan(sums[s]));
        }
    }
}

/* Every piece is lent once, the lowest first. */
static void slots_are_lent(void **state)
{
    (void)state;
    char base[4 * 64];
    struct simd_slots s;
    assert_int_equal(simd_last_slots(1, 3), 3);
    assert_int_equal(simd_last_slots(1, 1000), SIMD_SLOTS_MAX);
    assert_int_equal(simd_last_slots((int64_t)1 << 40, 1000), 4);
    assert_int_equal(simd_last_slots(64, 0), 1);
    simd_last_lend(&s, base, 64, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(simd_last_take(&s), i);
    simd_last_give(&s, 2);
    simd_last_give(&s, 1);
    assert_int_equal(simd_last_take(&s), 1);
    assert_int_equal(simd_last_take(&s), 2);
    assert_ptr_equal(simd_last_slot(&s, 3), base + 192);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(close_to_libm), cmocka_unit_test(at_the_ends),
        cmocka_unit_test(folds_in_a_fixed_tree), cmocka_unit_test(products_agree), cmocka_unit_test(activations_agree),
        cmocka_unit_test(forms_of_one_class_have_equal_bits), cmocka_unit_test(soft_rows_agree),
        cmocka_unit_test(slots_are_lent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
