/* Packing of weights in every set of instructions this processor has: transposes against the plain loop, the weights of
 * Winograd forms against G w G^T in double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/simd_weights.h"
#include "tests/graphs.h"

#define GUARD 12345.0f

static float *filled(int64_t n, struct yk_rng *r)
{
    struct shape s = {.dtype = DT_F32, .rank = 1, .dims = {n}};
    float *x = yk_xalloc((size_t)n * sizeof(*x));
    graphs_fill(x, &s, r, false);
    return x;
}

/* The last row of x is as long as cols: what is behind it may not be read (the sanitizers see that). gap: floats
 * between the rows of x and of y; back: the rows of y go backwards. */
static void check_transpose(const struct simd_isa *isa, int64_t rows, int64_t cols, int64_t gap, bool back)
{
    struct yk_rng r;
    int64_t ldx = cols + gap, ldy = rows + gap, all = cols * ldy + 1;
    yk_rng_seed(&r, (uint64_t)(rows * 1000 + cols));
    float *x = filled((rows - 1) * ldx + cols, &r), *y = yk_xalloc((size_t)all * sizeof(*y));
    for (int64_t i = 0; i < all; i++)
        y[i] = GUARD;
    if (back)
        isa->transpose(y + (cols - 1) * ldy, -ldy, x, ldx, rows, cols);
    else
        isa->transpose(y, ldy, x, ldx, rows, cols);
    for (int64_t c = 0; c < cols; c++)
        for (int64_t i = 0; i < ldy; i++) {
            float want = i < rows ? x[i * ldx + (back ? cols - 1 - c : c)] : GUARD;
            if (memcmp(&want, &y[c * ldy + i], sizeof(want)) != 0)
                fail_msg("%s: %lld rows of %lld, gap %lld: element %lld of row %lld", isa->name, (long long)rows,
                    (long long)cols, (long long)gap, (long long)i, (long long)c);
        }
    assert_true(y[all - 1] == GUARD);
    free(x);
    free(y);
}

static void transposes(void **state)
{
    (void)state;
    const struct simd_isa *isas[SIMD_ISAS_MAX];
    int n = simd_isas(isas);
    for (int s = 0; s < n; s++)
        for (int64_t rows = 1; rows <= 50; rows++)
            for (int64_t cols = 1; cols <= 34; cols++) {
                check_transpose(isas[s], rows, cols, 0, rows % 2);
                check_transpose(isas[s], rows, cols, 3, cols % 2);
            }
}

/* A row (1, t, t^2) / product of (t - other points), at each point t and at infinity. */
static void rows_of_g(int size, double g[6][3])
{
    static const double four[] = {0, 0.75, -0.75, 1.5, -1.5}, two[] = {0, 1, -1};
    const double *t = size == 4 ? four : two;
    for (int i = 0; i <= size; i++) {
        double by = 1;
        for (int k = 0; k <= size; k++)
            by *= k == i ? 1 : t[i] - t[k];
        /* The form for tiles of 2 is of the opposite sign at 0, on both sides. */
        by = size == 2 && i == 0 ? -by : by;
        for (int k = 0; k < 3; k++)
            g[i][k] = pow(t[i], k) / by;
    }
    g[size + 1][0] = g[size + 1][1] = 0;
    g[size + 1][2] = 1;
}

/* Rows k0..k1 of all panels; the caller frees what is returned: every point, by row and column. */
static float *check_wino(const struct simd_isa *isa, const struct simd_weights *of, int size, int64_t k0, int64_t k1)
{
    struct simd_weights s = *of;
    s.isa = isa;
    double g[6][3];
    int points = (size + 2) * (size + 2);
    int64_t n = simd_weights_n(&s), step = (k1 - k0) * isa->nr + 5;
    float *u = yk_xalloc((size_t)(points * step) * sizeof(*u)), *all = yk_xalloc((size_t)(points * (k1 - k0) * n) * 4);
    rows_of_g(size, g);
    for (int64_t panel = 0; panel < simd_weights_panels(&s); panel++) {
        int64_t width = simd_weights_width(&s, panel), first = panel * isa->nr;
        simd_weights_wino(&s, size, panel, k0, k1, u, step);
        for (int64_t k = k0; k < k1; k++)
            for (int64_t i = 0; i < width && first + i < n; i++)
                for (int p = 0; p < points; p++) {
                    const double *a = g[p / (size + 2)], *b = g[p % (size + 2)];
                    double want = 0, most = 0;
                    for (int t = 0; t < 9; t++) {
                        int64_t at = s.turned ? (k * s.ic + first + i) * 9 + 8 - t : ((first + i) * s.ic + k) * 9 + t;
                        double term = a[t / 3] * b[t % 3] * (double)s.w[at];
                        want += term;
                        most += fabs(term);
                    }
                    float got = u[p * step + (k - k0) * width + i];
                    if (!(fabs((double)got - want) <= 4e-7 * most))
                        fail_msg("%s, size %d, turned %d: point %d of (%lld, %lld) is %g, not %g", isa->name, size,
                            s.turned, p, (long long)k, (long long)(first + i), (double)got, want);
                    all[((k - k0) * n + first + i) * points + p] = got;
                }
    }
    free(u);
    return all;
}

static void wino_weights(void **state)
{
    (void)state;
    static const struct {
        int64_t oc, ic, k0, k1;
    } cases[] = {{40, 70, 0, 40}, {8, 8, 0, 8}, {37, 50, 3, 36}, {64, 64, 32, 64}};
    const struct simd_isa *isas[SIMD_ISAS_MAX];
    int n = simd_isas(isas);
    struct yk_rng r;
    yk_rng_seed(&r, 7);
    for (size_t i = 0; i < YK_COUNT(cases); i++)
        for (int way = 0; way < 4; way++) {
            float *w = filled(cases[i].oc * cases[i].ic * 9, &r), *first = NULL;
            struct simd_weights s = {.w = w,
                .groups = 1,
                .oc = cases[i].oc,
                .ic = cases[i].ic,
                .taps = 9,
                .turned = way & 1,
                .kh = 3,
                .kw = 3,
                .width = 3};
            int size = way & 2 ? 2 : 4;
            for (int k = 0; k < n; k++) {
                float *u = check_wino(isas[k], &s, size, cases[i].k0, cases[i].k1);
                int64_t floats = (size + 2) * (size + 2) * (cases[i].k1 - cases[i].k0) * simd_weights_n(&s);
                if (first && !strcmp(isas[k]->bits, isas[0]->bits))
                    assert_memory_equal(u, first, (size_t)floats * sizeof(*u));
                if (first)
                    free(u);
                else
                    first = u;
            }
            free(first);
            free(w);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(transposes), cmocka_unit_test(wino_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
