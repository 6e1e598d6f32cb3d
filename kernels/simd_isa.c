#include "kernels/simd_isa.h"

#include <stdatomic.h>
#include <stddef.h>

static _Atomic(const struct simd_isa *) chosen;

int simd_isas(const struct simd_isa *out[SIMD_ISAS_MAX])
{
    int n = 0;
#ifdef SIMD_HAS_avx512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        out[n++] = &simd_isa_avx512;
#endif
#ifdef SIMD_HAS_avx2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        out[n++] = &simd_isa_avx2;
#endif
#ifdef SIMD_HAS_neon
    out[n++] = &simd_isa_neon;
#endif
#ifdef SIMD_HAS_generic
    out[n++] = &simd_isa_generic;
#endif
    return n;
}

const struct simd_isa *simd_isa_best(void)
{
    const struct simd_isa *isa = atomic_load_explicit(&chosen, memory_order_relaxed), *all[SIMD_ISAS_MAX];
    if (isa)
        return isa;
    simd_isas(all);
    return all[0];
}

void simd_isa_use(const struct simd_isa *isa)
{
    atomic_store(&chosen, isa);
}
