/* Winograd transforms, a vector of channels at a time, by the construction of Lavin & Gray, "Fast Algorithms for
 * Convolutional Neural Networks". Tiles of 2 use the points 0, 1, -1, infinity. Tiles of 4 use 0, P, -P, Q, -Q,
 * infinity with P = 3/4 and Q = 3/2: every factor is exact in f32, and the error (NMSE) is a fifth of that with 1
 * and 2. */
#include "kernels/isa/act.h"

#define P WINO_P
#define Q WINO_Q
#define P2 (P * P)
#define Q2 (Q * Q)

INLINE void in4(vf t[6], const vf d[6])
{
    vf pp = vf_set(-P2), qq = vf_set(-Q2), both = vf_set(P2 * Q2), less = vf_set(-P2 - Q2);
    vf u = vf_fma(qq, d[2], d[4]), v = vf_fma(qq, d[1], d[3]), w = vf_fma(pp, d[2], d[4]), z = vf_fma(pp, d[1], d[3]);
    t[0] = vf_fma(both, d[0], vf_fma(less, d[2], d[4]));
    t[1] = vf_fma(vf_set(P), v, u);
    t[2] = vf_fma(vf_set(-P), v, u);
    t[3] = vf_fma(vf_set(Q), z, w);
    t[4] = vf_fma(vf_set(-Q), z, w);
    t[5] = vf_fma(both, d[1], vf_fma(less, d[3], d[5]));
}

INLINE void in2(vf t[4], const vf d[4])
{
    t[0] = d[0] - d[2];
    t[1] = d[1] + d[2];
    t[2] = d[2] - d[1];
    t[3] = d[1] - d[3];
}

INLINE void out4(vf y[4], const vf m[6])
{
    vf a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], d = m[3] - m[4];
    y[0] = (m[0] + a) + c;
    y[1] = vf_fma(vf_set(Q), d, vf_set(P) * b);
    y[2] = vf_fma(vf_set(Q2), c, vf_set(P2) * a);
    y[3] = vf_fma(vf_set(Q2 * Q), d, vf_fma(vf_set(P2 * P), b, m[5]));
}

INLINE void out2(vf y[2], const vf m[4])
{
    y[0] = (m[0] + m[1]) + m[2];
    y[1] = (m[1] - m[2]) - m[3];
}

/* Where tile i of all images is: its image, and the first row and column of its output. */
struct place {
    int64_t image, row, col;
};
INLINE struct place place_of(const struct simd_wino *w, int64_t i)
{
    int64_t per = w->rows * w->cols;
    return (struct place){i / per, i % per / w->cols * w->size, i % per % w->cols * w->size};
}

INLINE void tile_in(const struct simd_wino *w, int64_t i, int64_t begin, int64_t end, int size)
{
    enum { MOST = 6 };
    struct place at = place_of(w, w->first + i);
    int taps = size + 2;
    int64_t y0 = at.row - w->pad_top, x0 = at.col - w->pad_left;
    const float *x = w->x + at.image * w->h * w->w * w->c;
    bool inside = y0 >= 0 && x0 >= 0 && y0 + taps <= w->h && x0 + taps <= w->w;
    for (int64_t c = begin; c < end; c += VL) {
        vf d[MOST], t[MOST], mid[MOST][MOST];
        int64_t n = end - c < VL ? end - c : VL;
        for (int q = 0; q < taps; q++) { /* columns */
            if (inside && n == VL) {
                const float *p = x + (y0 * w->w + x0 + q) * w->c + c;
#pragma GCC unroll 6
                for (int r = 0; r < taps; r++)
                    d[r] = vf_load(p + r * w->w * w->c);
            } else {
#pragma GCC unroll 6
                for (int r = 0; r < taps; r++) {
                    bool in = y0 + r >= 0 && y0 + r < w->h && x0 + q >= 0 && x0 + q < w->w;
                    d[r] = in ? vf_load_n(x + ((y0 + r) * w->w + x0 + q) * w->c + c, n) : (vf){0};
                }
            }
            if (size == 4)
                in4(t, d);
            else
                in2(t, d);
#pragma GCC unroll 6
            for (int r = 0; r < taps; r++)
                mid[r][q] = t[r];
        }
        float *v = w->v + i * w->ldv + c;
        for (int r = 0; r < taps; r++) {
            if (size == 4)
                in4(t, mid[r]);
            else
                in2(t, mid[r]);
#pragma GCC unroll 6
            for (int q = 0; q < taps; q++)
                vf_store(v + (r * taps + q) * w->v_step, t[q]);
        }
    }
}

INLINE void tile_out(const struct simd_wino *w, const struct act *act, int64_t i, int64_t begin, int64_t end, int size)
{
    struct place at = place_of(w, w->first + i);
    int taps = size + 2;
    int64_t rows = w->oh - at.row < size ? w->oh - at.row : size, cols = w->ow - at.col < size ? w->ow - at.col : size;
    int64_t pixel = (at.image * w->oh + at.row) * w->ow + at.col;
    for (int64_t c = begin; c < end; c += VL) {
        vf d[6], t[4], mid[4][6];
        int64_t n = end - c < VL ? end - c : VL;
        const float *m = w->m + i * w->ldm + c;
        for (int q = 0; q < taps; q++) {
#pragma GCC unroll 6
            for (int r = 0; r < taps; r++)
                d[r] = vf_load(m + (r * taps + q) * w->m_step);
            if (size == 4)
                out4(t, d);
            else
                out2(t, d);
#pragma GCC unroll 4
            for (int r = 0; r < size; r++)
                mid[r][q] = t[r];
        }
        vf bias = w->e.bias ? vf_load_n(w->e.bias + c, n) : (vf){0};
        for (int r = 0; r < rows; r++) {
            if (size == 4)
                out4(t, mid[r]);
            else
                out2(t, mid[r]);
            for (int q = 0; q < cols; q++) {
                int64_t p = pixel + r * w->ow + q;
                vf s = t[q];
                if (w->e.bias)
                    s += bias;
                if (w->e.add)
                    s += vf_load_n(w->e.add + p * w->e.ld_add + c, n);
                vf_store_n(w->y + p * w->oc + c, act_apply(act, s), n);
            }
        }
    }
}

void vec_fn(wino_in)(const struct simd_wino *w, int64_t begin, int64_t end)
{
    for (int64_t i = 0; i < w->count; i++)
        if (w->size == 4)
            tile_in(w, i, begin, end, 4);
        else
            tile_in(w, i, begin, end, 2);
}

void vec_fn(wino_out)(const struct simd_wino *w, int64_t begin, int64_t end)
{
    struct act act = act_of(&w->e);
    for (int64_t i = 0; i < w->count; i++)
        if (w->size == 4)
            tile_out(w, &act, i, begin, end, 4);
        else
            tile_out(w, &act, i, begin, end, 2);
}

/* ---- gradients ---- */

/* The transpose of out4. */
INLINE void spread4(vf t[6], const vf y[4])
{
    vf p = vf_fma(vf_set(P2), y[2], y[0]), q = vf_fma(vf_set(Q2), y[2], y[0]);
    vf u = vf_fma(vf_set(P2 * P), y[3], vf_set(P) * y[1]), v = vf_fma(vf_set(Q2 * Q), y[3], vf_set(Q) * y[1]);
    t[0] = y[0];
    t[1] = p + u;
    t[2] = p - u;
    t[3] = q + v;
    t[4] = q - v;
    t[5] = y[3];
}

void vec_fn(wino_dy)(const struct simd_wino *w, int64_t begin, int64_t end)
{
    for (int64_t i = 0; i < w->count; i++) {
        struct place at = place_of(w, w->first + i);
        int64_t rows = w->oh - at.row < 4 ? w->oh - at.row : 4, cols = w->ow - at.col < 4 ? w->ow - at.col : 4;
        const float *dy = w->y + ((at.image * w->oh + at.row) * w->ow + at.col) * w->oc;
        for (int64_t c = begin; c < end; c += VL) {
            int64_t n = end - c < VL ? end - c : VL, first = c / (NV * VL) * (NV * VL);
            int64_t left = w->oc - first < NV * VL ? w->oc - first : NV * VL, width = (left + VL - 1) / VL * VL;
            vf d[4], t[6], mid[6][4];
            for (int q = 0; q < 4; q++) { /* columns */
#pragma GCC unroll 4
                for (int r = 0; r < 4; r++)
                    d[r] = r < rows && q < cols ? vf_load_n(dy + (r * w->ow + q) * w->oc + c, n) : (vf){0};
                spread4(t, d);
#pragma GCC unroll 6
                for (int r = 0; r < 6; r++)
                    mid[r][q] = t[r];
            }
            float *m = w->m + first * w->count + i * width + (c - first);
            for (int r = 0; r < 6; r++) {
                spread4(t, mid[r]);
#pragma GCC unroll 6
                for (int q = 0; q < 6; q++)
                    vf_store(m + (r * 6 + q) * w->m_step, t[q]);
            }
        }
    }
}

/* G^T, the transpose of what makes weights of taps (wino_pack.c). */
#define AT_P (2 * P2 * (P2 - Q2))
#define AT_Q (2 * Q2 * (Q2 - P2))
INLINE void gather4(vf w[3], const vf u[6])
{
    vf s = u[1] + u[2], d = u[1] - u[2], p = u[3] + u[4], q = u[3] - u[4];
    w[0] = vf_fma(vf_set(1 / AT_Q), p, vf_fma(vf_set(1 / AT_P), s, vf_set(1 / (P2 * Q2)) * u[0]));
    w[1] = vf_fma(vf_set(Q / AT_Q), q, vf_set(P / AT_P) * d);
    w[2] = vf_fma(vf_set(Q2 / AT_Q), p, vf_fma(vf_set(P2 / AT_P), s, u[5]));
}

void vec_fn(wino_dw)(const struct simd_wino_dw *w)
{
    for (int64_t i = 0; i < w->m; i++)
        for (int64_t c = 0; c < w->n; c += VL) {
            const float *du = w->du + i * w->n + c;
            float *dw = w->dw + i * 9 * w->n + c;
            vf u[6], t[3], mid[3][6];
            for (int q = 0; q < 6; q++) { /* columns */
#pragma GCC unroll 6
                for (int r = 0; r < 6; r++)
                    u[r] = vf_load(du + (r * 6 + q) * w->du_step);
                gather4(t, u);
#pragma GCC unroll 3
                for (int r = 0; r < 3; r++)
                    mid[r][q] = t[r];
            }
#pragma GCC unroll 3
            for (int r = 0; r < 3; r++) {
                gather4(t, mid[r]);
#pragma GCC unroll 3
                for (int q = 0; q < 3; q++)
                    vf_store(dw + (r * 3 + q) * w->n, t[q]);
            }
        }
}
