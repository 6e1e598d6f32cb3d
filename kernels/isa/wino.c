/* Winograd transforms, a vector of channels at a time. Points 0, 1, -1, (2, -2,) infinity. The sources of the matrices:
 * Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks". */
#include "kernels/isa/act.h"

INLINE void in4(vf t[6], const vf d[6])
{
    vf four = vf_set(4), five = vf_set(-5), two = vf_set(2), less = vf_set(-2), minus = vf_set(-4);
    vf u = vf_fma(minus, d[2], d[4]), v = vf_fma(minus, d[1], d[3]), w = d[4] - d[2], z = d[3] - d[1];
    t[0] = vf_fma(four, d[0], vf_fma(five, d[2], d[4]));
    t[1] = u + v;
    t[2] = u - v;
    t[3] = vf_fma(two, z, w);
    t[4] = vf_fma(less, z, w);
    t[5] = vf_fma(four, d[1], vf_fma(five, d[3], d[5]));
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
    y[1] = vf_fma(vf_set(2), d, b);
    y[2] = vf_fma(vf_set(4), c, a);
    y[3] = vf_fma(vf_set(8), d, b) + m[5];
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
    vf even = y[0] + y[2], odd = y[1] + y[3];
    vf far = vf_fma(vf_set(4), y[2], y[0]), side = vf_fma(vf_set(8), y[3], vf_set(2) * y[1]);
    t[0] = y[0];
    t[1] = even + odd;
    t[2] = even - odd;
    t[3] = far + side;
    t[4] = far - side;
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

/* G^T, the transpose of what makes weights of taps. */
INLINE void gather4(vf w[3], const vf u[6])
{
    vf s = u[1] + u[2], d = u[1] - u[2], p = u[3] + u[4], q = u[3] - u[4];
    vf sixth = vf_set(-1.0f / 6), side = vf_set(1.0f / 24);
    w[0] = vf_fma(side, p, vf_fma(sixth, s, vf_set(0.25f) * u[0]));
    w[1] = vf_fma(vf_set(1.0f / 12), q, sixth * d);
    w[2] = vf_fma(vf_set(1.0f / 6), p, vf_fma(sixth, s, u[5]));
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
