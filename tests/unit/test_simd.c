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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_to_libm), cmocka_unit_test(at_the_ends), cmocka_unit_test(folds_in_a_fixed_tree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
