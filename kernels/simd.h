/* The portable f32 backend: loops that a compiler turns into vectors of any width. Every element is computed by the
 * same operations in the same order whatever the width (no contraction, sums in SIMD_LANES fixed lanes), so its forms
 * are "...@generic" everywhere. Functions like exp are polynomials of our own: libm differs between machines. */
#ifndef YK_SIMD_H
#define YK_SIMD_H

#include "kernels/host.h"

/* Hot loops are built for several instruction sets and picked at load time. Sanitizers do not like the resolvers. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && defined(__linux__) && defined(__OPTIMIZE__)
#define SIMD_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define SIMD_CLONES
#endif

#define SIMD_LANES 16

/* Lanes folded in a fixed tree. */
static inline float simd_fold(const float *lane)
{
    float a[SIMD_LANES];
    for (int i = 0; i < SIMD_LANES; i++)
        a[i] = lane[i];
    for (int n = SIMD_LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            a[i] += a[i + n];
    return a[0];
}

extern const struct host_rows simd_math, simd_norm, simd_conv, simd_resize, simd_move;
extern const struct host_rows simd_norm_train, simd_grad_pool, simd_grad_rows, simd_grad_deep;

/* Claims nodes all of whose inputs that are there are f32. */
bool simd_claim_f32(const struct op_ctx *c);

#endif
