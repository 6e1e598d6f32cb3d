/* The weights of a Winograd form: u = G w G^T in double, rounded once, a vector of columns at a time. */
#include "kernels/isa/vec.h"

typedef double vd __attribute__((vector_size(VL * 8)));

/* A macro: such wide vectors are not returned alike by all sets. */
#define WIDEN(p) __builtin_convertvector(vf_load(p), vd)

/* A row (1, t, t^2) / product of (t - other points), at each point t; P and Q as in wino.c. */
#define P (double)WINO_P
#define Q (double)WINO_Q
#define AT_P (2 * P * P * (P * P - Q * Q))
#define AT_Q (2 * Q * Q * (Q * Q - P * P))
static const double g4[6][3] = {{1 / (P * P * Q * Q), 0, 0}, {1 / AT_P, P / AT_P, P *P / AT_P},
    {1 / AT_P, -P / AT_P, P *P / AT_P}, {1 / AT_Q, Q / AT_Q, Q *Q / AT_Q}, {1 / AT_Q, -Q / AT_Q, Q *Q / AT_Q},
    {0, 0, 1}};
static const double g2[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};

/* VL columns of one row: taps at f, `width` apart; points `step` apart. */
INLINE void transform(float *out, int64_t step, const float *f, int64_t width, const double (*g)[3], int taps)
{
    vd half[6][3];
    for (int b = 0; b < 3; b++) {
        vd f0 = WIDEN(f + b * width), f1 = WIDEN(f + (3 + b) * width), f2 = WIDEN(f + (6 + b) * width);
#pragma GCC unroll 6
        for (int a = 0; a < taps; a++)
            half[a][b] = g[a][0] * f0 + g[a][1] * f1 + g[a][2] * f2;
    }
    for (int a = 0; a < taps; a++)
#pragma GCC unroll 6
        for (int b = 0; b < taps; b++) {
            vd u = half[a][0] * g[b][0] + half[a][1] * g[b][1] + half[a][2] * g[b][2];
            vf_store(out + (a * taps + b) * step, __builtin_convertvector(u, vf));
        }
}

void vec_fn(wino_weights)(const struct simd_wino_weights *w)
{
    for (int64_t i = 0; i < w->k; i++)
        if (w->size == 4)
            transform(w->u + i * w->ldu, w->u_step, w->w + i * 9 * w->ldw, w->ldw, g4, 6);
        else
            transform(w->u + i * w->ldu, w->u_step, w->w + i * 9 * w->ldw, w->ldw, g2, 4);
}
