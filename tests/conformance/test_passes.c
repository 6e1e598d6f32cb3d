/* The passes keep what a graph computes: random graphs of what exporters write, run before and after. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/exec.h"
#include "kernels/fold.h"
#include "tests/unit/graph_fixture.h"

#define GRAPHS 250
#define CHANNELS 4
#define MAX_VALUES 128

struct maker {
    struct graph *g;
    struct yk_rng *r;
    int32_t same[MAX_VALUES]; /* values of (N, CHANNELS, 6, 6) */
    int n, made;
};

static const char *name_of(struct maker *m, char *text, size_t size)
{
    snprintf(text, size, "v%d", m->made++);
    return text;
}

static int32_t weight(struct maker *m, const int64_t *dims, int rank, double lo, double hi)
{
    char text[32];
    int32_t id = fx_weight(m->g, name_of(m, text, sizeof text), dims, rank);
    float *data = (float *)(uintptr_t)m->g->values[id].data;
    for (int64_t i = 0; i < shape_count(&m->g->values[id].shape); i++)
        data[i] = (float)(lo + (hi - lo) * yk_rng_unit(m->r));
    return id;
}

static int32_t op(struct maker *m, const char *name, const int32_t *in, int32_t n_in)
{
    char text[32];
    return fx_node(m->g, name, name_of(m, text, sizeof text), in, n_in);
}

static int32_t pick(struct maker *m)
{
    int recent = YK_MAX(0, m->n - 3);
    int from = yk_rng_below(m->r, 4) ? recent : 0;
    return m->same[from + (int)yk_rng_below(m->r, (uint64_t)(m->n - from))];
}

static int32_t conv(struct maker *m, int32_t x)
{
    int64_t k = yk_rng_below(m->r, 2) ? 3 : 1, pad = k / 2;
    bool bias = yk_rng_below(m->r, 2);
    int32_t w = weight(m, INTS(CHANNELS, CHANNELS, k, k), -0.5, 0.5);
    int32_t b = bias ? weight(m, INTS(CHANNELS), -1, 1) : YK_ABSENT;
    int32_t y = bias ? op(m, "Conv", IDS(x, w, b)) : op(m, "Conv", IDS(x, w));
    graph_set_attr_ints(m->g, fx_last(m->g), "pads", (const int64_t[]){pad, pad, pad, pad}, 4);
    return y;
}

static int32_t batchnorm(struct maker *m, int32_t x)
{
    int32_t p[4];
    for (int i = 0; i < 4; i++)
        p[i] = weight(m, INTS(CHANNELS), i == 3 || i == 0 ? 0.5 : -1, 1.5);
    return op(m, "BatchNormalization", IDS(x, p[0], p[1], p[2], p[3]));
}

static int32_t clip(struct maker *m, int32_t x)
{
    int32_t lo = weight(m, NULL, 0, -1, 0), hi = weight(m, NULL, 0, 1, 2);
    return yk_rng_below(m->r, 3) ? op(m, "Clip", IDS(x, lo, hi)) : op(m, "Clip", IDS(x, lo));
}

/* Convolutions of groups and transposed ones, all of (N, C, 6, 6). */
static int32_t other_conv(struct maker *m, int32_t x)
{
    int64_t groups = yk_rng_below(m->r, 2) ? CHANNELS : 2, pad = (int64_t)yk_rng_below(m->r, 2);
    bool turned = yk_rng_below(m->r, 2);
    int64_t k = pad ? 3 : 1;
    int32_t w = weight(m, INTS(CHANNELS, turned ? CHANNELS : CHANNELS / groups, k, k), -0.5, 0.5);
    int32_t b = weight(m, INTS(CHANNELS), -1, 1);
    int32_t y = op(m, turned ? "ConvTranspose" : "Conv", IDS(x, w, b));
    graph_set_attr_ints(m->g, fx_last(m->g), "pads", (const int64_t[]){pad, pad, pad, pad}, 4);
    if (!turned)
        graph_set_attr_i(m->g, fx_last(m->g), "group", groups);
    return y;
}

/* A constant factor or term: of every channel, or one number of some rank; now and then one that is neither. */
static int32_t affine(struct maker *m, int32_t x)
{
    static const char *const names[] = {"Mul", "Add", "Sub", "Div"};
    const char *name = names[yk_rng_below(m->r, 4)];
    bool plus = name[0] == 'D' || name[0] == 'M';
    double lo = plus ? 0.5 : -1;
    int32_t c;
    switch (yk_rng_below(m->r, 8)) {
    case 0:
        c = weight(m, INTS(1), lo, 1.5);
        break;
    case 1:
        c = weight(m, NULL, 0, lo, 1.5);
        break;
    case 2:
        c = weight(m, INTS(CHANNELS, 1, 1), lo, 1.5);
        break;
    case 3:
        c = weight(m, INTS(6, 6), lo, 1.5); /* by pixel */
        break;
    default:
        c = weight(m, INTS(1, CHANNELS, 1, 1), lo, 1.5);
    }
    return yk_rng_below(m->r, 3) || name[0] == 'D' ? op(m, name, IDS(x, c)) : op(m, name, IDS(c, x));
}

static int32_t chain(struct maker *m, int32_t x)
{
    for (int n = 1 + (int)yk_rng_below(m->r, 4); n > 0; n--)
        x = yk_rng_below(m->r, 5) ? affine(m, x) : batchnorm(m, x);
    return x;
}

/* x * clip(x + 3, 0, 6) / 6 */
static int32_t hard_swish(struct maker *m, int32_t x)
{
    int32_t three = weight(m, NULL, 0, 3, 3), zero = weight(m, NULL, 0, 0, 0), six = weight(m, NULL, 0, 6, 6);
    int32_t c = op(m, "Clip", IDS(op(m, "Add", IDS(x, three)), zero, six));
    int32_t p = yk_rng_below(m->r, 2) ? op(m, "Mul", IDS(x, c)) : op(m, "Mul", IDS(c, x));
    if (yk_rng_below(m->r, 2))
        return op(m, "Div", IDS(p, six));
    return op(m, "Mul", IDS(p, weight(m, NULL, 0, 1.0 / 6, 1.0 / 6)));
}

/* Pre-activation of several values side by side. */
static int32_t preact(struct maker *m, int32_t x)
{
    int32_t both = op(m, "Concat", IDS(x, pick(m)));
    graph_set_attr_i(m->g, fx_last(m->g), "axis", 1);
    int32_t p[4];
    for (int i = 0; i < 4; i++)
        p[i] = weight(m, INTS(2 * CHANNELS), i == 3 || i == 0 ? 0.5 : -1, 1.5);
    int32_t y = op(m, "Relu", IDS(op(m, "BatchNormalization", IDS(both, p[0], p[1], p[2], p[3]))));
    return op(m, "Conv", IDS(y, weight(m, INTS(CHANNELS, 2 * CHANNELS, 1, 1), -0.5, 0.5)));
}

/* Layer normalisation over the channels-last form, written out. */
static int32_t layernorm(struct maker *m, int32_t x)
{
    int32_t t = op(m, "Transpose", IDS(x));
    graph_set_attr_ints(m->g, fx_last(m->g), "perm", (const int64_t[]){0, 2, 3, 1}, 4);
    int32_t mean = op(m, "ReduceMean", IDS(t));
    graph_set_attr_ints(m->g, fx_last(m->g), "axes", (const int64_t[]){-1}, 1);
    int32_t d = op(m, "Sub", IDS(t, mean)), two = weight(m, NULL, 0, 2, 2), eps = weight(m, NULL, 0, 1e-3, 1e-3);
    int32_t v = op(m, "ReduceMean", IDS(op(m, "Pow", IDS(d, two))));
    graph_set_attr_ints(m->g, fx_last(m->g), "axes", (const int64_t[]){3}, 1);
    int32_t q = op(m, "Div", IDS(d, op(m, "Sqrt", IDS(op(m, "Add", IDS(v, eps))))));
    int32_t s = weight(m, INTS(CHANNELS), 0.5, 1.5), b = weight(m, INTS(CHANNELS), -1, 1);
    int32_t y =
        op(m, "MatMul", IDS(op(m, "Add", IDS(op(m, "Mul", IDS(q, s)), b)), weight(m, INTS(CHANNELS, CHANNELS), -1, 1)));
    y = op(m, "Relu", IDS(op(m, "Add", IDS(weight(m, INTS(CHANNELS), -1, 1), y))));
    y = op(m, "Transpose", IDS(y));
    graph_set_attr_ints(m->g, fx_last(m->g), "perm", (const int64_t[]){0, 3, 1, 2}, 4);
    return y;
}

/* (N, C, 6, 6) -> (N, C, 36) and back by the shape of the input, as exporters write it. */
static int32_t reshapes(struct maker *m, int32_t x)
{
    char a[32], b[32], c[32], d[32];
    int32_t shape = op(m, "Shape", IDS(x));
    int32_t n = op(m, "Gather", IDS(shape, fx_scalar_int(m->g, name_of(m, a, sizeof a), 0)));
    int32_t u = op(m, "Unsqueeze", IDS(n, fx_ints(m->g, name_of(m, b, sizeof b), INTS(0))));
    int32_t t = op(m, "Concat", IDS(u, fx_ints(m->g, name_of(m, c, sizeof c), INTS(CHANNELS, 36))));
    graph_set_attr_i(m->g, fx_last(m->g), "axis", 0);
    int32_t flat = op(m, "Relu", IDS(op(m, "Reshape", IDS(x, t))));
    int32_t back = op(m, "Concat", IDS(u, fx_ints(m->g, name_of(m, d, sizeof d), INTS(CHANNELS, 6, -1))));
    graph_set_attr_i(m->g, fx_last(m->g), "axis", 0);
    return op(m, "Reshape", IDS(flat, back));
}

static struct graph *make(struct yk_rng *r)
{
    struct maker m = {.g = fx_open(), .r = r};
    graph_sym(m.g, "N");
    m.same[m.n++] = fx_input(m.g, "x", DT_F32, INTS(-1, CHANNELS, 6, 6));
    int steps = 3 + (int)yk_rng_below(r, 12);
    while (steps-- > 0) {
        int32_t x = pick(&m), y;
        switch (yk_rng_below(r, 15)) {
        case 0:
            y = op(&m, "Relu", IDS(x));
            break;
        case 1:
            y = op(&m, "Add", IDS(x, pick(&m)));
            break;
        case 2:
            y = op(&m, "Identity", IDS(op(&m, "Dropout", IDS(x))));
            break;
        case 3:
            y = layernorm(&m, x);
            break;
        case 4:
            y = reshapes(&m, x);
            break;
        case 5:
            y = batchnorm(&m, x);
            break;
        case 6:
            y = clip(&m, conv(&m, x));
            break;
        case 7:
            y = op(&m, "Relu", IDS(op(&m, "Add", IDS(batchnorm(&m, conv(&m, x)), pick(&m)))));
            break;
        case 8:
            y = op(&m, "Relu", IDS(batchnorm(&m, conv(&m, x))));
            break;
        case 9:
            y = chain(&m, x);
            break;
        case 10:
            y = chain(&m, yk_rng_below(r, 2) ? conv(&m, x) : other_conv(&m, x));
            break;
        case 11:
            y = yk_rng_below(r, 2) ? conv(&m, chain(&m, x)) : other_conv(&m, chain(&m, x));
            break;
        case 12:
            y = hard_swish(&m, chain(&m, conv(&m, x)));
            break;
        case 13:
            y = preact(&m, x);
            break;
        default:
            y = conv(&m, x);
        }
        m.same[m.n++] = y;
    }
    int32_t flat = op(&m, "Flatten", IDS(m.same[m.n - 1]));
    int32_t w = weight(&m, INTS(CHANNELS * 36, 5), -0.1, 0.1);
    fx_output(m.g, op(&m, "Relu", IDS(op(&m, "Gemm", IDS(flat, w)))));
    int32_t extra = m.same[1 + yk_rng_below(r, (uint64_t)(m.n - 1))];
    fx_output(m.g, extra);
    return m.g;
}

/* Runs g at N = 3 on x; outs by graph output, malloc'd. */
static void run(struct graph *g, struct backends *b, const float *x, float *outs[2], int64_t count[2])
{
    struct exec *e;
    struct yk_diag why = {""};
    const int64_t sizes[] = {3};
    struct exec_config config = {.graph = g, .max_sizes = sizes, .backends = b};
    yk_err err = graph_sort(g, &why);
    if (!err)
        err = exec_open(&config, &e, &why);
    if (err)
        print_error("%s\n", why.text);
    assert_int_equal(err, YK_OK);
    const struct memplan *m = exec_plan(e);
    const struct shapes *s = exec_max_shapes(e);
    struct tensor in = {s->of[g->inputs[0]], (void *)(uintptr_t)x}, out[2];
    assert_int_equal(m->n_in, 1);
    for (int i = 0; i < m->n_out; i++) {
        out[i].shape = s->of[m->out[i]];
        out[i].data = yk_try_aligned((size_t)shape_bytes(&out[i].shape));
    }
    err = exec_run(e, sizes, &in, out, 0, &why);
    if (err)
        print_error("%s\n", why.text);
    assert_int_equal(err, YK_OK);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < m->n_out; i++)
            if (m->out[i] == g->outputs[k]) {
                outs[k] = out[i].data;
                count[k] = shape_count(&out[i].shape);
            }
    exec_close(e);
}

static void same_numbers(const char *backends)
{
    struct pool *pool;
    struct backends b;
    struct yk_diag why;
    int fused = 0, before = 0, after = 0;
    float *x = yk_try_aligned(3 * CHANNELS * 36 * sizeof *x);
    assert_int_equal(pool_open(1, &pool, &why), YK_OK);
    assert_int_equal(backends_open(backends, pool, &b, &why), YK_OK);
    for (uint64_t seed = 1; seed <= GRAPHS; seed++) {
        float *outs[2][2] = {{NULL}};
        int64_t count[2][2] = {{0}};
        struct yk_rng r;
        for (int k = 0; k < 2; k++) {
            yk_rng_seed(&r, seed);
            struct graph *g = make(&r);
            for (int i = 0; i < 3 * CHANNELS * 36; i++)
                x[i] = (float)(yk_rng_unit(&r) * 2 - 1);
            if (k == 0)
                before += g->n_nodes;
            if (k == 1) {
                yk_err err = passes_infer(g, fold_eval, NULL, &why);
                if (err)
                    print_error("seed %d: %s\n", (int)seed, why.text);
                assert_int_equal(err, YK_OK);
                after += g->n_nodes;
                assert_int_equal(fx_count(g, "Shape") + fx_count(g, "Dropout") + fx_count(g, "ReduceMean"), 0);
                fused += fx_count(g, "FusedConv") + fx_count(g, "FusedGemm") + fx_count(g, "LayerNormalization");
            }
            run(g, &b, x, outs[k], count[k]);
            graph_close(g);
        }
        for (int o = 0; o < 2; o++) {
            double worst = 0, most = 0;
            assert_int_equal(count[0][o], count[1][o]);
            for (int64_t i = 0; i < count[0][o]; i++) {
                double d = (double)outs[0][o][i] - (double)outs[1][o][i];
                worst = YK_MAX(worst, d < 0 ? -d : d);
                double a = (double)outs[0][o][i];
                most = YK_MAX(most, a < 0 ? -a : a);
            }
            if (!(worst <= 1e-5 * most))
                print_error("seed %d output %d: %g of %g\n", (int)seed, o, worst, most);
            assert_true(worst <= 1e-5 * most);
            for (int k = 0; k < 2; k++)
                if (o == 0 || outs[k][1] != outs[k][0])
                    free(outs[k][o]);
        }
    }
    print_message("%d nodes became %d, %d of them fused\n", before, after, fused);
    assert_true(fused > GRAPHS);
    free(x);
    backends_close(&b);
    pool_close(pool);
}

static void test_ref(void **state)
{
    (void)state;
    same_numbers("ref");
}

static void test_auto(void **state)
{
    (void)state;
    same_numbers("auto");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ref), cmocka_unit_test(test_auto)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
