/* The functions of this instruction set, the transpose that layouts and packing share, and the pre-activation. */
#include "kernels/isa/vec.h"

typedef float v4 __attribute__((vector_size(16)));
typedef float v4_any __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t i4 __attribute__((vector_size(16)));

#ifdef __clang__
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (i4){i, j, k, l})
#endif

INLINE void block(float *y, int64_t ldy, const float *x, int64_t ldx)
{
    v4 a = *(const v4_any *)x, b = *(const v4_any *)(x + ldx), c = *(const v4_any *)(x + 2 * ldx),
       d = *(const v4_any *)(x + 3 * ldx);
    v4 p = SHUFFLE(a, b, 0, 4, 1, 5), q = SHUFFLE(a, b, 2, 6, 3, 7);
    v4 r = SHUFFLE(c, d, 0, 4, 1, 5), s = SHUFFLE(c, d, 2, 6, 3, 7);
    *(v4_any *)y = SHUFFLE(p, r, 0, 1, 4, 5);
    *(v4_any *)(y + ldy) = SHUFFLE(p, r, 2, 3, 6, 7);
    *(v4_any *)(y + 2 * ldy) = SHUFFLE(q, s, 0, 1, 4, 5);
    *(v4_any *)(y + 3 * ldy) = SHUFFLE(q, s, 2, 3, 6, 7);
}

/* In bands of 16 rows, so that a line of y is written while it is near. */
void vec_fn(transpose)(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows, int64_t cols)
{
    for (int64_t band = 0; band < rows; band += 16) {
        int64_t end = band + 16 < rows ? band + 16 : rows, whole = band + (end - band) / 4 * 4, c = 0;
        for (; c + 4 <= cols; c += 4) {
            for (int64_t r = band; r < whole; r += 4)
                block(y + c * ldy + r, ldy, x + r * ldx + c, ldx);
            for (int64_t r = whole; r < end; r++)
                for (int64_t i = c; i < c + 4; i++)
                    y[i * ldy + r] = x[r * ldx + i];
        }
        for (; c < cols; c++)
            for (int64_t r = band; r < end; r++)
                y[c * ldy + r] = x[r * ldx + c];
    }
}

void vec_fn(affine_relu)(
    float *y, int64_t ldy, const float *x, int64_t ldx, const float *a, const float *b, int64_t rows, int64_t n)
{
    const vf zero = {0};
    int64_t c = 0;
    for (; c + 2 * VL <= n; c += 2 * VL) {
        vf a0 = vf_load(a + c), a1 = vf_load(a + c + VL), b0 = vf_load(b + c), b1 = vf_load(b + c + VL);
        for (int64_t r = 0; r < rows; r++) {
            const float *from = x + r * ldx + c;
            vf_store(y + r * ldy + c, vf_max(zero, vf_fma(vf_load(from), a0, b0)));
            vf_store(y + r * ldy + c + VL, vf_max(zero, vf_fma(vf_load(from + VL), a1, b1)));
        }
    }
    for (; c < n; c += VL) {
        int64_t k = n - c < VL ? n - c : VL;
        vf a0 = vf_load_n(a + c, k), b0 = vf_load_n(b + c, k);
        for (int64_t r = 0; r < rows; r++)
            vf_store_n(y + r * ldy + c, vf_max(zero, vf_fma(vf_load_n(x + r * ldx + c, k), a0, b0)), k);
    }
}

const struct simd_isa ISA_TABLE = {
    .name = ISA_NAME,
    .bits = ISA_BITS,
    .vl = VL,
    .mr = MR,
    .nr = NV * VL,
    .gemm = vec_fn(gemm),
    .pack = vec_fn(gemm_pack),
    .wino_in = vec_fn(wino_in),
    .wino_out = vec_fn(wino_out),
    .wino_dy = vec_fn(wino_dy),
    .wino_weights = vec_fn(wino_weights),
    .wino_dw = vec_fn(wino_dw),
    .group = vec_fn(group),
    .affine_relu = vec_fn(affine_relu),
    .transpose = vec_fn(transpose),
    .soft = vec_fn(soft),
    .scale = vec_fn(scale),
    .peak = vec_fn(peak),
};
