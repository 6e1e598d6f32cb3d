/* The activations of simd_epilogue on vectors. exp is our own polynomial: the same bits in every set that has a fused
 * multiply-add (division rounds correctly everywhere). NaN passes, infinities go to their limits. */
#ifndef YK_ISA_ACT_H
#define YK_ISA_ACT_H

#include "kernels/isa/vec.h"

typedef uint32_t vu __attribute__((vector_size(VL * 4)));

/* exp(-x), within 2 ulp for x in [-88, 87]; beyond that infinity and 1e-38. */
INLINE vf vf_exp_minus(vf x)
{
    vf c = vf_min(vf_set(87), vf_max(vf_set(-89), x));
    vf t = vf_fma(c, vf_set(-1.44269504088896341f), vf_set(12582912.0f)); /* an integer n in the low bits */
    vu n = (vu)t;
    t -= 12582912.0f;
    vf r = vf_fma(t, vf_set(0.693359375f), c);
    r = vf_fma(t, vf_set(-2.12194440e-4f), r); /* exp(-x) = 2^n exp(-r), |r| <= ln 2 / 2 */
    vf y = vf_set(-8.2902720656e-03f);
    y = vf_fma(y, r, vf_set(4.1898159641e-02f));
    y = vf_fma(y, r, vf_set(-1.6667638128e-01f));
    y = vf_fma(y, r, vf_set(4.9999147841e-01f));
    y = vf_fma(y, r, vf_set(-9.9999970631e-01f));
    y = vf_fma(y, r, vf_set(1));
    return y * (vf)((n + 127) << 23);
}

/* The rational approximation of simd_fn.h. */
INLINE vf vf_gelu(vf x)
{
    vf s = x * 0.70710678118654752440f, c = vf_min(vf_set(4), vf_max(vf_set(-4), s)), z = c * c;
    vf p = vf_set(-2.72614225801306e-10f), q = vf_set(-1.45660718464996e-05f);
    p = vf_fma(p, z, vf_set(2.77068142495902e-08f));
    p = vf_fma(p, z, vf_set(-2.10102402082508e-06f));
    p = vf_fma(p, z, vf_set(-5.69250639462346e-05f));
    p = vf_fma(p, z, vf_set(-7.34990630326855e-04f));
    p = vf_fma(p, z, vf_set(-2.95459980854025e-03f));
    p = vf_fma(p, z, vf_set(-1.60960333262415e-02f));
    q = vf_fma(q, z, vf_set(-2.13374055278905e-04f));
    q = vf_fma(q, z, vf_set(-1.68282697438203e-03f));
    q = vf_fma(q, z, vf_set(-7.37332916720468e-03f));
    q = vf_fma(q, z, vf_set(-1.42647390514189e-02f));
    vf e = c * p / q;
    e = vf_select(s <= -4.0f, vf_set(-1), e); /* exactly: x may be large */
    e = vf_select(s >= 4.0f, vf_set(1), e);
    return x * (0.5f * (1.0f + e));
}

struct act {
    vf lo, hi;
    enum simd_act kind;
};
INLINE struct act act_of(const struct simd_epilogue *e)
{
    struct act a = {vf_set(e->lo), vf_set(e->hi), e->act};
    return a;
}

/* Those that are a few operations without calls: cheap enough to be in every store. */
INLINE vf act_clamp(const struct act *a, vf v)
{
    return a->kind == SIMD_CLAMP ? vf_min(a->hi, vf_max(a->lo, v)) : v;
}
/* Whether act_clamp is all of it. */
INLINE bool act_is_clamp(const struct act *a)
{
    return a->kind <= SIMD_CLAMP;
}

INLINE vf act_apply(const struct act *a, vf v)
{
    switch (a->kind) {
    case SIMD_LINEAR:
        return v;
    case SIMD_CLAMP:
        return vf_min(a->hi, vf_max(a->lo, v));
    case SIMD_LEAKY:
        return vf_select(v < 0.0f, a->lo * v, v);
    case SIMD_HARD_SIGMOID:
        return vf_min(vf_set(1), vf_max(vf_set(0), a->lo * v + a->hi));
    case SIMD_HARD_SWISH:
        return v * vf_min(vf_set(1), vf_max(vf_set(0), a->lo * v + a->hi));
    case SIMD_SIGMOID:
        return 1.0f / (1.0f + vf_exp_minus(v));
    case SIMD_SILU:
        return v / (1.0f + vf_exp_minus(v));
    case SIMD_GELU:
        return vf_gelu(v);
    }
    return v;
}

#endif
