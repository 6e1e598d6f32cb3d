/* Codecs against the definition of a half, the compiler's own _Float16, and arithmetic in double. */
#include "agent/codec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What a half means, from its definition. */
static double half_value(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 0 ? ldexp(m, -24) : e == 31 ? (m ? NAN : INFINITY) : ldexp(1024 + m, e - 25);
    return h & 0x8000 ? -v : v;
}

static void every_half_decodes(void **state)
{
    (void)state;
    for (int h = 0; h < 65536; h++) {
        float got = codec_float((uint16_t)h);
        double want = half_value((uint16_t)h);
        if (isnan(want)) {
            assert_true(isnan(got));
            continue;
        }
        assert_true((double)got == want && !signbit(got) == !signbit(want));
        assert_int_equal(codec_half(got), h); /* and back */
    }
}

static void rounds_to_nearest_even(void **state)
{
    (void)state;
    for (int h = 0; h < 0x7c00; h++) { /* the tie above every finite half, and its neighbours */
        double low = half_value((uint16_t)h), high = h == 0x7bff ? 65536 : half_value((uint16_t)(h + 1));
        float tie = (float)((low + high) / 2);
        assert_true((double)tie == (low + high) / 2);
        assert_int_equal(codec_half(tie), h & 1 ? h + 1 : h);
        assert_int_equal(codec_half(nextafterf(tie, 0)), h);
        assert_int_equal(codec_half(nextafterf(tie, INFINITY)), h + 1);
        assert_int_equal(codec_half(-tie), (h & 1 ? h + 1 : h) | 0x8000);
    }
    assert_int_equal(codec_half(1e30f), 0x7c00);
    assert_int_equal(codec_half(-INFINITY), 0xfc00);
    assert_true(isnan(codec_float(codec_half(NAN))));
}

#if defined(__x86_64__) && __GNUC__ >= 12 && !defined(__clang__)
static void equals_the_compiler(void **state)
{
    (void)state;
    for (uint64_t u = 0; u < (uint64_t)1 << 32; u += 65421) {
        uint32_t bits = (uint32_t)u;
        float x;
        memcpy(&x, &bits, 4);
        if (isnan(x))
            continue;
        _Float16 c = (_Float16)x;
        uint16_t want;
        memcpy(&want, &c, 2);
        assert_int_equal(codec_half(x), want);
    }
}
#endif

static float *noise(const struct shape *s, double scale, uint64_t seed)
{
    struct yk_rng r;
    yk_rng_seed(&r, seed);
    float *x = yk_try_aligned((size_t)shape_bytes(s) + 64);
    for (int64_t i = 0; i < shape_count(s); i++)
        x[i] = (float)((yk_rng_unit(&r) * 2 - 1) * scale);
    return x;
}

/* Encodes, decodes, checks that the reported error is what was lost; returns it. */
static double round_trip(enum plan_codec f, const struct shape *s, const float *x)
{
    int64_t n = shape_count(s), n_scales = codec_scales(f, s);
    uint8_t *bytes = malloc((size_t)codec_bytes(f, s) + 1);
    double *scales = calloc((size_t)n_scales + 1, sizeof *scales), error = -1, e = 0, all = 0;
    float *back = malloc((size_t)n * 4 + 1);
    assert_int_equal(codec_encode(f, s, x, bytes, scales, &error), YK_OK);
    codec_decode(f, s, bytes, scales, back);
    for (int64_t i = 0; i < n; i++) {
        e += ((double)x[i] - back[i]) * ((double)x[i] - back[i]);
        all += (double)x[i] * x[i];
    }
    e = all > 0 ? sqrt(e / all) : 0;
    assert_true(fabs(e - error) <= 1e-9 + 1e-6 * e);
    free(bytes);
    free(scales);
    free(back);
    return e;
}

static void fp16_keeps_its_precision_at_any_scale(void **state)
{
    (void)state;
    struct shape s = {DT_F32, 4, {2, 5, 3, 701}};
    for (int e = -36; e <= 37; e++) {
        float *x = noise(&s, pow(10, e), (uint64_t)(e + 50));
        assert_true(round_trip(CODEC_FP16, &s, x) < 3e-4); /* half an ulp of 11 bits is 2.4e-4 */
        free(x);
    }
}

static void fp16_scale_is_a_power_of_two(void **state)
{
    (void)state;
    struct shape s = {DT_F32, 1, {4}};
    float x[4] = {3.0f, -0.5f, 0, 1.0f}, zero[4] = {0}, back[4];
    uint16_t h[4];
    double scale, error;
    assert_int_equal(codec_encode(CODEC_FP16, &s, x, h, &scale, &error), YK_OK);
    assert_true(scale == ldexp(1, 2 - 15)); /* 3 = 0.75 * 2^2 lands in [2^14, 2^15) */
    assert_true(codec_float(h[0]) == 24576.0f && error == 0);
    codec_decode(CODEC_FP16, &s, h, &scale, back);
    assert_memory_equal(back, x, sizeof x);
    assert_int_equal(codec_encode(CODEC_FP16, &s, zero, h, &scale, &error), YK_OK);
    codec_decode(CODEC_FP16, &s, h, &scale, back);
    assert_memory_equal(back, zero, sizeof zero);
    assert_true(error == 0);
}

static void int8_scales_per_sample_and_channel(void **state)
{
    (void)state;
    struct shape s = {DT_F32, 3, {2, 3, 50}}, flat = {DT_F32, 2, {4, 9}}, scalar = {DT_F32, 0, {0}};
    assert_int_equal(codec_scales(CODEC_INT8, &s), 6);
    assert_int_equal(codec_scales(CODEC_INT8, &flat), 4);
    assert_int_equal(codec_scales(CODEC_INT8, &scalar), 1);
    float *x = noise(&s, 1, 7);
    for (int g = 0; g < 6; g++)
        for (int i = 0; i < 50; i++)
            x[g * 50 + i] *= powf(10, (float)(g * 3 - 9)); /* one scale for all would lose five groups */
    int8_t q[300];
    double scales[6], error;
    assert_int_equal(codec_encode(CODEC_INT8, &s, x, q, scales, &error), YK_OK);
    for (int g = 0; g < 6; g++) {
        int top = 0;
        for (int i = 0; i < 50; i++) {
            assert_true(fabs(q[g * 50 + i] * scales[g] - (double)x[g * 50 + i]) <= scales[g] * 0.5001);
            assert_true(q[g * 50 + i] >= -127);
            top = abs(q[g * 50 + i]) > top ? abs(q[g * 50 + i]) : top;
        }
        assert_int_equal(top, 127); /* symmetric, the whole range */
    }
    free(x);
    x = noise(&flat, 1e-42, 3); /* denormal */
    assert_true(round_trip(CODEC_INT8, &flat, x) <= 0.2);
    free(x);
    x = noise(&flat, 100, 4);
    assert_true(round_trip(CODEC_INT8, &flat, x) < 0.01);
    free(x);
}

static void what_is_not_finite_is_not_encoded(void **state)
{
    (void)state;
    struct shape s = {DT_F32, 2, {2, 3}}, ints = {DT_I32, 2, {2, 3}};
    float x[6] = {1, 2, NAN, 4, 5, 6};
    uint8_t out[24];
    double scales[4], error;
    for (int f = CODEC_FP16; f <= CODEC_INT8; f++) {
        x[2] = NAN;
        assert_int_equal(codec_encode((enum plan_codec)f, &s, x, out, scales, &error), YK_UNSUPPORTED);
        x[2] = -INFINITY;
        assert_int_equal(codec_encode((enum plan_codec)f, &s, x, out, scales, &error), YK_UNSUPPORTED);
    }
    assert_int_equal(codec_bytes(CODEC_FP16, &s), 12);
    assert_int_equal(codec_bytes(CODEC_INT8, &s), 6);
    assert_int_equal(codec_bytes(CODEC_FP16, &ints), 24); /* integers travel as they are */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_decodes),
        cmocka_unit_test(rounds_to_nearest_even),
#if defined(__x86_64__) && __GNUC__ >= 12 && !defined(__clang__)
        cmocka_unit_test(equals_the_compiler),
#endif
        cmocka_unit_test(fp16_keeps_its_precision_at_any_scale),
        cmocka_unit_test(fp16_scale_is_a_power_of_two),
        cmocka_unit_test(int8_scales_per_sample_and_channel),
        cmocka_unit_test(what_is_not_finite_is_not_encoded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
