/* The transpose that layouts and packing share: squares of a vector's length on both sides, in registers, so that a
 * line of x is read whole and a line of y written whole. What is left at the edges goes by fours, then one by one. */
#include "kernels/isa/vec.h"

typedef float v4 __attribute__((vector_size(16)));
typedef float v4_any __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t i4 __attribute__((vector_size(16)));

#ifdef __clang__
#define SHUFFLE(kind, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(kind, a, b, ...) __builtin_shuffle(a, b, (kind){__VA_ARGS__})
#endif

/* Each quarter of 16 bytes by itself. */
#if VL == 16
#define QUARTERS(a, b, c, d) \
    a, b, c, d, a + 4, b + 4, c + 4, d + 4, a + 8, b + 8, c + 8, d + 8, a + 12, b + 12, c + 12, d + 12
#elif VL == 8
#define QUARTERS(a, b, c, d) a, b, c, d, a + 4, b + 4, c + 4, d + 4
#else
#define QUARTERS(a, b, c, d) a, b, c, d
#endif

/* to[i] and to[4 i ..] of the quarters: column i of four rows. */
INLINE void fours(vf to[4], const vf r[4])
{
    vf p = SHUFFLE(vi, r[0], r[1], QUARTERS(0, VL, 1, VL + 1)),
       q = SHUFFLE(vi, r[0], r[1], QUARTERS(2, VL + 2, 3, VL + 3));
    vf s = SHUFFLE(vi, r[2], r[3], QUARTERS(0, VL, 1, VL + 1)),
       t = SHUFFLE(vi, r[2], r[3], QUARTERS(2, VL + 2, 3, VL + 3));
    to[0] = SHUFFLE(vi, p, s, QUARTERS(0, 1, VL, VL + 1));
    to[1] = SHUFFLE(vi, p, s, QUARTERS(2, 3, VL + 2, VL + 3));
    to[2] = SHUFFLE(vi, q, t, QUARTERS(0, 1, VL, VL + 1));
    to[3] = SHUFFLE(vi, q, t, QUARTERS(2, 3, VL + 2, VL + 3));
}

#if VL == 16
#define EVEN(a, b) SHUFFLE(vi, a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define ODD(a, b) SHUFFLE(vi, a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
#elif VL == 8
#define EVEN(a, b) SHUFFLE(vi, a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define ODD(a, b) SHUFFLE(vi, a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#endif

/* v[i] = column i of the rows v. */
INLINE void square(vf v[VL])
{
    vf f[VL / 4][4];
#pragma GCC unroll 4
    for (int g = 0; g < VL / 4; g++)
        fours(f[g], v + 4 * g);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
#if VL == 16
        vf a = EVEN(f[0][i], f[1][i]), b = EVEN(f[2][i], f[3][i]);
        vf c = ODD(f[0][i], f[1][i]), d = ODD(f[2][i], f[3][i]);
        v[i] = EVEN(a, b);
        v[4 + i] = EVEN(c, d);
        v[8 + i] = ODD(a, b);
        v[12 + i] = ODD(c, d);
#elif VL == 8
        v[i] = EVEN(f[0][i], f[1][i]);
        v[4 + i] = ODD(f[0][i], f[1][i]);
#else
        v[i] = f[0][i];
#endif
    }
}

/* VL rows of x, `have` columns of them: 1 to VL. */
INLINE void block(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t have)
{
    vf v[VL];
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++)
        v[i] = have == VL ? vf_load(x + i * ldx) : vf_load_n(x + i * ldx, have);
    square(v);
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++)
        if (i < have)
            vf_store(y + i * ldy, v[i]);
}

#if VL == 16
/* 16 rows of nine that lie one behind the other: the taps of 3x3. Nothing behind them is read: that would be a line
 * from far away. */
INLINE void nines(float *y, int64_t ldy, const float *x)
{
    vf v[VL];
#pragma GCC unroll 16
    for (int i = 0; i < VL - 1; i++)
        v[i] = vf_load(x + 9 * i);
    v4 last = {x[9 * 15 + 8]};
    v[15] = _mm512_insertf32x4(_mm512_castps256_ps512(_mm256_loadu_ps(x + 9 * 15)), last, 2);
    square(v);
#pragma GCC unroll 16
    for (int i = 0; i < 9; i++)
        vf_store(y + i * ldy, v[i]);
}
#endif

INLINE void block4(float *y, int64_t ldy, const float *x, int64_t ldx)
{
    v4 a = *(const v4_any *)x, b = *(const v4_any *)(x + ldx), c = *(const v4_any *)(x + 2 * ldx),
       d = *(const v4_any *)(x + 3 * ldx);
    v4 p = SHUFFLE(i4, a, b, 0, 4, 1, 5), q = SHUFFLE(i4, a, b, 2, 6, 3, 7);
    v4 r = SHUFFLE(i4, c, d, 0, 4, 1, 5), s = SHUFFLE(i4, c, d, 2, 6, 3, 7);
    *(v4_any *)y = SHUFFLE(i4, p, r, 0, 1, 4, 5);
    *(v4_any *)(y + ldy) = SHUFFLE(i4, p, r, 2, 3, 6, 7);
    *(v4_any *)(y + 2 * ldy) = SHUFFLE(i4, q, s, 0, 1, 4, 5);
    *(v4_any *)(y + 3 * ldy) = SHUFFLE(i4, q, s, 2, 3, 6, 7);
}

/* Rows that are too few for a vector. */
static void few_rows(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows, int64_t cols)
{
    int64_t whole = rows / 4 * 4, c = 0;
    for (; c + 4 <= cols; c += 4) {
        for (int64_t r = 0; r < whole; r += 4)
            block4(y + c * ldy + r, ldy, x + r * ldx + c, ldx);
        for (int64_t r = whole; r < rows; r++)
            for (int64_t i = c; i < c + 4; i++)
                y[i * ldy + r] = x[r * ldx + i];
    }
    for (; c < cols; c++)
        for (int64_t r = 0; r < rows; r++)
            y[c * ldy + r] = x[r * ldx + c];
}

/* In bands of 16 rows, so that a line of y is written while it is near. */
void vec_fn(transpose)(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows, int64_t cols)
{
    enum { BAND = 16, MASKED = VL > 4 ? 3 : VL }; /* columns from which a masked block is quicker than one by one */
    int64_t r = 0;
    for (; r + BAND <= rows; r += BAND) {
        const float *from = x + r * ldx;
        float *to = y + r;
        int64_t c = 0;
#if VL == 16
        if (cols == 9 && ldx == 9) {
            nines(to, ldy, from);
            continue;
        }
#endif
        for (; c + VL <= cols; c += VL)
            for (int i = 0; i < BAND; i += VL)
                block(to + c * ldy + i, ldy, from + i * ldx + c, ldx, VL);
        if (cols - c >= MASKED)
            for (int i = 0; i < BAND; i += VL)
                block(to + c * ldy + i, ldy, from + i * ldx + c, ldx, cols - c);
        else
            for (; c < cols; c++)
                for (int i = 0; i < BAND; i++)
                    to[c * ldy + i] = from[i * ldx + c];
    }
    if (r < rows)
        few_rows(y + r, ldy, x + r * ldx, ldx, rows - r, cols);
}
