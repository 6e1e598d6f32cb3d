/* exp, tanh, erf and friends for f32: polynomials without branches, so that loops over them become vectors. A few ulp
 * (tests/unit/test_simd.c holds the bounds); NaN passes, infinities go to their limits.
 * Sources: Cephes expf; rational approximations of tanh and erf as in Eigen's generic_fast_tanh_float and
 * generic_fast_erf_float. */
#ifndef YK_SIMD_FN_H
#define YK_SIMD_FN_H

#include <stdint.h>
#include <string.h>

static inline float simd_pow2(int32_t n)
{
    uint32_t bits = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline float simd_exp(float x)
{
    float c = x < -104.0f ? -104.0f : x;
    c = c > 89.0f ? 89.0f : c;
    c = c == c ? c : 0.0f;
    float n = c * 1.44269504088896341f + 12582912.0f; /* rounds to an integer in the low bits */
    n -= 12582912.0f;
    float r = c - n * 0.693359375f;
    r -= n * -2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    int32_t i = (int32_t)n, half = i / 2; /* two factors: 2^128 and denormals are out of reach of one */
    y = y * simd_pow2(half) * simd_pow2(i - half);
    return x == x ? y : x;
}

static inline float simd_tanh(float x)
{
    float c = x < -7.90531110763549805f ? -7.90531110763549805f : x;
    c = c > 7.90531110763549805f ? 7.90531110763549805f : c;
    float z = c * c;
    float p = -2.76076847742355e-16f;
    p = p * z + 2.00018790482477e-13f;
    p = p * z + -8.60467152213735e-11f;
    p = p * z + 5.12229709037114e-08f;
    p = p * z + 1.48572235717979e-05f;
    p = p * z + 6.37261928875436e-04f;
    p = p * z + 4.89352455891786e-03f;
    float q = 1.19825839466702e-06f;
    q = q * z + 1.18534705686654e-04f;
    q = q * z + 2.26843463243900e-03f;
    q = q * z + 4.89352518554385e-03f;
    return c * p / q;
}

static inline float simd_erf(float x)
{
    float c = x < -4.0f ? -4.0f : x;
    c = c > 4.0f ? 4.0f : c;
    float z = c * c;
    float p = -2.72614225801306e-10f;
    p = p * z + 2.77068142495902e-08f;
    p = p * z + -2.10102402082508e-06f;
    p = p * z + -5.69250639462346e-05f;
    p = p * z + -7.34990630326855e-04f;
    p = p * z + -2.95459980854025e-03f;
    p = p * z + -1.60960333262415e-02f;
    float q = -1.45660718464996e-05f;
    q = q * z + -2.13374055278905e-04f;
    q = q * z + -1.68282697438203e-03f;
    q = q * z + -7.37332916720468e-03f;
    q = q * z + -1.42647390514189e-02f;
    return c * p / q;
}

static inline float simd_sigmoid(float x)
{
    return 1.0f / (1.0f + simd_exp(-x));
}

#endif
