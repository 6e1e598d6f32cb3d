/* Vectors of f32 of the instruction set this file is built for. Only fused operations need a name of their own: the
 * rest is the compiler's vector extension. Nothing contracts by itself (-ffp-contract=off). */
#ifndef YK_ISA_VEC_H
#define YK_ISA_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/simd_isa.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define VL 16
#define MR 12
#define NV 2
#define ISA_NAME "avx512"
#define ISA_BITS "fma"
#define ISA_TABLE simd_isa_avx512
#define vec_fn(name) name##_avx512
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define VL 8
#define MR 6
#define NV 2
#define ISA_NAME "avx2"
#define ISA_BITS "fma"
#define ISA_TABLE simd_isa_avx2
#define vec_fn(name) name##_avx2
#elif defined(__aarch64__)
#include <arm_neon.h>
#define VL 4
#define MR 8
#define NV 2
#define ISA_NAME "neon"
#define ISA_BITS "fma"
#define ISA_TABLE simd_isa_neon
#define vec_fn(name) name##_neon
#else
#define VL 4
#define MR 6
#define NV 2
#define ISA_NAME "generic"
#define ISA_BITS "generic"
#define ISA_TABLE simd_isa_generic
#define vec_fn(name) name##_generic
#endif

typedef float vf __attribute__((vector_size(VL * 4)));
typedef float vf_any __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
#define INLINE static inline __attribute__((always_inline))

INLINE vf vf_load(const float *p)
{
    return *(const vf_any *)p;
}
INLINE void vf_store(float *p, vf v)
{
    *(vf_any *)p = v;
}
INLINE vf vf_set(float x)
{
    return x - (vf){0};
}
#if defined(__AVX2__) && !defined(__AVX512F__)
INLINE __m256i vec_first(int64_t n)
{
    return (__m256i)((vi){0, 1, 2, 3, 4, 5, 6, 7} < (int32_t)n);
}
#endif
/* The first n lanes, the others are 0 (load) or untouched (store); 0 <= n <= VL. */
INLINE vf vf_load_n(const float *p, int64_t n)
{
#if defined(__AVX512F__)
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif defined(__AVX2__)
    return _mm256_maskload_ps(p, vec_first(n));
#else
    vf v = {0};
    if (n >= VL)
        return vf_load(p);
    for (int i = 0; i < n; i++)
        v[i] = p[i];
    return v;
#endif
}
INLINE void vf_store_n(float *p, vf v, int64_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
#elif defined(__AVX2__)
    if (n >= VL) /* masked stores are slow on some */
        vf_store(p, v);
    else
        _mm256_maskstore_ps(p, vec_first(n), v);
#else
    if (n >= VL) {
        vf_store(p, v);
        return;
    }
    for (int i = 0; i < n; i++)
        p[i] = v[i];
#endif
}
/* Lane i of v is lane at[i]. */
INLINE vf vf_permute(vf v, vi at)
{
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps((__m512i)at, v);
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_permutevar8x32_ps(v, (__m256i)at);
#else
    vf out;
    for (int i = 0; i < VL; i++)
        out[i] = v[at[i]];
    return out;
#endif
}
/* a * b + c, rounded once where the set can. */
INLINE vf vf_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

/* Of the lower half alone, where that takes half as long; the upper is anything. */
#if defined(__AVX512F__)
#define VEC_HALF (VL / 2)
INLINE vf vf_load_half(const float *p)
{
    return _mm512_castps256_ps512(_mm256_loadu_ps(p));
}
INLINE vf vf_fma_half(vf a, vf b, vf c)
{
    return _mm512_castps256_ps512(
        _mm256_fmadd_ps(_mm512_castps512_ps256(a), _mm512_castps512_ps256(b), _mm512_castps512_ps256(c)));
}
#else
#define VEC_HALF 0
INLINE vf vf_load_half(const float *p)
{
    return vf_load(p);
}
INLINE vf vf_fma_half(vf a, vf b, vf c)
{
    return vf_fma(a, b, c);
}
#endif

INLINE vf vf_select(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}
/* lo > v ? lo : v, and hi < v ? hi : v: a NaN in v passes. */
INLINE vf vf_max(vf lo, vf v)
{
#if defined(__AVX512F__)
    return _mm512_max_ps(lo, v);
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_max_ps(lo, v);
#else
    return vf_select(lo > v, lo, v);
#endif
}
INLINE vf vf_min(vf hi, vf v)
{
#if defined(__AVX512F__)
    return _mm512_min_ps(hi, v);
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_min_ps(hi, v);
#else
    return vf_select(hi < v, hi, v);
#endif
}

/* The points of Winograd tiles of 4 are 0, P, -P, Q, -Q and infinity. */
#define WINO_P 0.75f
#define WINO_Q 1.5f

/* Defined in the files beside this one. */
void vec_fn(gemm)(const struct simd_gemm *g);
void vec_fn(gemm_pack)(float *out, const float *b, int64_t k, int64_t n, int64_t ldb, bool transposed);
void vec_fn(wino_in)(const struct simd_wino *w, int64_t begin, int64_t end);
void vec_fn(wino_out)(const struct simd_wino *w, int64_t begin, int64_t end);
/* y = act(y) on m rows of n; for activations that are more than a clamp. */
void vec_fn(activate)(float *y, int64_t ldy, int64_t m, int64_t n, const struct simd_epilogue *e);
void vec_fn(wino_dy)(const struct simd_wino *w, int64_t begin, int64_t end);
void vec_fn(wino_weights)(const struct simd_wino_weights *w);
void vec_fn(wino_dw)(const struct simd_wino_dw *w);
void vec_fn(group)(const struct simd_group *g);
void vec_fn(affine_relu)(
    float *y, int64_t ldy, const float *x, int64_t ldx, const float *a, const float *b, int64_t rows, int64_t n);
float vec_fn(peak)(int64_t rounds);
float vec_fn(soft)(float *y, const float *x, int64_t n, float scale, const float *mask, int64_t mask_step);
void vec_fn(scale)(float *y, float f, int64_t n);
void vec_fn(transpose)(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows, int64_t cols);

#endif
