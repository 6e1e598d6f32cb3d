/* The functions of this instruction set, and the pre-activation. */
#include "kernels/isa/vec.h"

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
