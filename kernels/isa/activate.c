/* An activation over rows that have just been written and are still near: one loop each. */
#include "kernels/isa/act.h"

INLINE void rows_of(float *y, int64_t ldy, int64_t m, int64_t n, const struct simd_epilogue *e, enum simd_act kind)
{
    struct act act = act_of(e);
    act.kind = kind;
    for (int64_t i = 0; i < m; i++, y += ldy) {
        int64_t j = 0;
        for (; j + VL <= n; j += VL)
            vf_store(y + j, act_apply(&act, vf_load(y + j)));
        if (j < n)
            vf_store_n(y + j, act_apply(&act, vf_load_n(y + j, n - j)), n - j);
    }
}

void vec_fn(activate)(float *y, int64_t ldy, int64_t m, int64_t n, const struct simd_epilogue *e)
{
    if (n == ldy) { /* one long row has one end */
        n *= m;
        m = 1;
    }
    switch (e->act) {
    case SIMD_LINEAR:
        break;
    case SIMD_CLAMP:
        rows_of(y, ldy, m, n, e, SIMD_CLAMP);
        break;
    case SIMD_LEAKY:
        rows_of(y, ldy, m, n, e, SIMD_LEAKY);
        break;
    case SIMD_HARD_SIGMOID:
        rows_of(y, ldy, m, n, e, SIMD_HARD_SIGMOID);
        break;
    case SIMD_HARD_SWISH:
        rows_of(y, ldy, m, n, e, SIMD_HARD_SWISH);
        break;
    case SIMD_SIGMOID:
        rows_of(y, ldy, m, n, e, SIMD_SIGMOID);
        break;
    case SIMD_SILU:
        rows_of(y, ldy, m, n, e, SIMD_SILU);
        break;
    case SIMD_GELU:
        rows_of(y, ldy, m, n, e, SIMD_GELU);
        break;
    }
}
