/* The weights of a Winograd form: u = G w G^T, a vector of columns at a time. Points P and -P share what is even and
 * what is odd of them. Factors that f32 does not hold come last, in one product a point: before it all are exact. */
#include "kernels/isa/vec.h"

#define P WINO_P
#define Q WINO_Q
#define P2 (P * P)
#define Q2 (Q * Q)

/* A row (1, t, t^2) at each point t, and what each is divided by: the product of t - other points. */
INLINE void at4(vf t[6], vf a, vf b, vf c)
{
    vf p = vf_fma(vf_set(P2), c, a), q = vf_fma(vf_set(Q2), c, a);
    t[0] = a;
    t[1] = vf_fma(vf_set(P), b, p);
    t[2] = vf_fma(vf_set(-P), b, p);
    t[3] = vf_fma(vf_set(Q), b, q);
    t[4] = vf_fma(vf_set(-Q), b, q);
    t[5] = c;
}
#define AT_0 ((double)P2 * Q2)
#define AT_P ((double)2 * P2 * (P2 - Q2))
#define AT_Q ((double)2 * Q2 * (Q2 - P2))
#define BY(x)                                                                                               \
    {                                                                                                       \
        (float)(1 / (AT_0 * x)), (float)(1 / (AT_P * x)), (float)(1 / (AT_P * x)), (float)(1 / (AT_Q * x)), \
            (float)(1 / (AT_Q * x)), (float)(1 / (x))                                                       \
    }
static const float by4[6][6] = {BY(AT_0), BY(AT_P), BY(AT_P), BY(AT_Q), BY(AT_Q), BY(1.0)};

INLINE void at2(vf t[4], vf a, vf b, vf c)
{
    vf half = vf_set(0.5f), even = half * (a + c);
    t[0] = a;
    t[1] = vf_fma(half, b, even);
    t[2] = vf_fma(-half, b, even);
    t[3] = c;
}

/* VL columns of one row: taps at f, `width` apart; points `step` apart. */
INLINE void transform(float *out, int64_t step, const float *f, int64_t width, int size)
{
    vf mid[6][3], t[6];
    int points = size + 2;
    for (int b = 0; b < 3; b++) {
        vf f0 = vf_load(f + b * width), f1 = vf_load(f + (3 + b) * width), f2 = vf_load(f + (6 + b) * width);
        if (size == 4)
            at4(t, f0, f1, f2);
        else
            at2(t, f0, f1, f2);
#pragma GCC unroll 6
        for (int a = 0; a < points; a++)
            mid[a][b] = t[a];
    }
#pragma GCC unroll 6
    for (int a = 0; a < points; a++) {
        if (size == 4)
            at4(t, mid[a][0], mid[a][1], mid[a][2]);
        else
            at2(t, mid[a][0], mid[a][1], mid[a][2]);
#pragma GCC unroll 6
        for (int b = 0; b < points; b++, out += step)
            vf_store(out, size == 4 && a + b < 10 ? t[b] * vf_set(by4[a][b]) : t[b]);
    }
}

/* Not inline: places of all points do not fit in registers, and need not be known before the first row. */
static __attribute__((noinline)) void transform4(float *out, int64_t step, const float *f, int64_t width)
{
    transform(out, step, f, width, 4);
}

static __attribute__((noinline)) void transform2(float *out, int64_t step, const float *f, int64_t width)
{
    transform(out, step, f, width, 2);
}

void vec_fn(wino_weights)(const struct simd_wino_weights *w)
{
    for (int64_t i = 0; i < w->k; i++)
        (w->size == 4 ? transform4 : transform2)(w->u + i * w->ldu, w->u_step, w->w + i * 9 * w->ldw, w->ldw);
}
