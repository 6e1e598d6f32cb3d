/* The matrix product: a register tile of MR rows and NV vectors of columns, all of k before the next tile. A panel of b
 * is read once from far away and then stays in the near caches for all rows. */
#include "kernels/isa/act.h"

struct tile {
    const float *a, *b;
    int64_t lda, k, n; /* n: columns that are there */
    const int64_t *at;
    float *y;
    int64_t ldy;
    const float *bias, *add;
    int64_t ld_add;
};

/* acc += rows of a times the panel, k terms. Rows go in threes from a few base addresses. */
INLINE void terms(vf acc[MR][NV], int mr, int nv, bool half, const float *a, int64_t lda, const float *b, int64_t k)
{
    const float *p[(MR + 2) / 3];
    for (int q = 0; q < (mr + 2) / 3; q++)
        p[q] = a + 3 * q * lda;
    for (; k > 0; k--) {
        vf x[NV];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            x[v] = half && v == nv - 1 ? vf_load_half(b + v * VL) : vf_load(b + v * VL);
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++) {
            vf s = vf_set(p[i / 3][i % 3 * lda]);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[i][v] = half && v == nv - 1 ? vf_fma_half(s, x[v], acc[i][v]) : vf_fma(s, x[v], acc[i][v]);
        }
#pragma GCC unroll 8
        for (int q = 0; q < (mr + 2) / 3; q++)
            p[q]++;
        b += nv * VL;
    }
}

/* The same where a is k rows of m: what a term needs of it lies side by side. */
INLINE void turned_terms(vf acc[MR][NV], int mr, int nv, const float *a, int64_t lda, const float *b, int64_t k)
{
    for (; k > 0; k--) {
        vf x[NV];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            x[v] = vf_load(b + v * VL);
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++) {
            vf s = vf_set(a[i]);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[i][v] = vf_fma(s, x[v], acc[i][v]);
        }
        a += lda;
        b += nv * VL;
    }
}

/* The same of terms that lie apart. */
INLINE void terms_at(
    vf acc[MR][NV], int mr, int nv, const float *a, int64_t lda, const int64_t *at, const float *b, int64_t k)
{
    const float *p[(MR + 2) / 3];
    for (int q = 0; q < (mr + 2) / 3; q++)
        p[q] = a + 3 * q * lda;
    for (; k > 0; k--, at++) {
        vf x[NV];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            x[v] = vf_load(b + v * VL);
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++) {
            vf s = vf_set(p[i / 3][*at + i % 3 * lda]);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[i][v] = vf_fma(s, x[v], acc[i][v]);
        }
        b += nv * VL;
    }
}

/* NARROW: the last vector has at most half of its columns. */
enum how { WHOLE, TURNED, NARROW };

INLINE void run_tile(const struct tile *t, const struct act *act, int mr, int nv, enum how how)
{
    vf acc[MR][NV], sum[MR][NV];
    const float *a = t->a, *b = t->b;
    int64_t left = t->k, kc = simd_kc(t->k);
    for (bool first = true; first || left > 0; first = false) {
        int64_t k = left < kc ? left : kc;
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[i][v] = (vf){0};
        if (how == TURNED)
            turned_terms(acc, mr, nv, a, t->lda, b, k);
        else if (t->at)
            terms_at(acc, mr, nv, t->a, t->lda, t->at + (t->k - left), b, k);
        else
            terms(acc, mr, nv, how == NARROW, a, t->lda, b, k);
        a += how == TURNED ? k * t->lda : k;
        b += k * nv * VL;
        left -= k;
        if (first && left == 0)
            break;
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) {
                if (!first)
                    acc[i][v] = sum[i][v] + acc[i][v];
                sum[i][v] = acc[i][v];
            }
    }
    /* acc holds the sums here. Only the last vector may lack columns. */
    int64_t n = t->n - (nv - 1) * VL;
    if (t->bias) {
        vf bias[NV];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            bias[v] = v < nv - 1 ? vf_load(t->bias + v * VL) : vf_load_n(t->bias + v * VL, n);
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[i][v] += bias[v];
    }
    if (t->add) {
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) {
                const float *p = t->add + i * t->ld_add + v * VL;
                acc[i][v] += v < nv - 1 ? vf_load(p) : vf_load_n(p, n);
            }
    }
    if (act->kind == SIMD_CLAMP) {
        vf lo = act->lo, hi = act->hi;
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[i][v] = vf_min(hi, vf_max(lo, acc[i][v]));
    }
    float *y = t->y;
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++, y += t->ldy) {
#pragma GCC unroll 4
        for (int v = 0; v < nv - 1; v++)
            vf_store(y + v * VL, acc[i][v]);
        vf_store_n(y + (nv - 1) * VL, acc[i][nv - 1], n);
    }
}

typedef void tile_fn(const struct tile *t, const struct act *act);
#if VEC_HALF
#define NARROW_TILE(mr, nv)                                                                               \
    static __attribute__((noinline)) void narrow_##mr##_##nv(const struct tile *t, const struct act *act) \
    {                                                                                                     \
        run_tile(t, act, mr, nv, NARROW);                                                                 \
    }
#else
#define NARROW_TILE(mr, nv)
#endif
#define TILE(mr, nv)                                                                                      \
    static __attribute__((noinline)) void tile_##mr##_##nv(const struct tile *t, const struct act *act)   \
    {                                                                                                     \
        run_tile(t, act, mr, nv, WHOLE);                                                                  \
    }                                                                                                     \
    static __attribute__((noinline)) void turned_##mr##_##nv(const struct tile *t, const struct act *act) \
    {                                                                                                     \
        run_tile(t, act, mr, nv, TURNED);                                                                 \
    }                                                                                                     \
    NARROW_TILE(mr, nv)
TILE(1, 1);
TILE(1, 2);
TILE(2, 1);
TILE(2, 2);
TILE(3, 1);
TILE(3, 2);
TILE(4, 1);
TILE(4, 2);
TILE(5, 1);
TILE(5, 2);
TILE(6, 1);
TILE(6, 2);
#if MR > 6
TILE(7, 1);
TILE(7, 2);
TILE(8, 1);
TILE(8, 2);
#endif
#if MR > 8
TILE(9, 1);
TILE(9, 2);
TILE(10, 1);
TILE(10, 2);
TILE(11, 1);
TILE(11, 2);
TILE(12, 1);
TILE(12, 2);
#endif
#define PAIR(name, mr)                   \
    {                                    \
        name##_##mr##_1, name##_##mr##_2 \
    }
#if MR > 8
#define PAIRS(name)                                                                                              \
    {                                                                                                            \
        PAIR(name, 1), PAIR(name, 2), PAIR(name, 3), PAIR(name, 4), PAIR(name, 5), PAIR(name, 6), PAIR(name, 7), \
            PAIR(name, 8), PAIR(name, 9), PAIR(name, 10), PAIR(name, 11), PAIR(name, 12)                         \
    }
#elif MR > 6
#define PAIRS(name)                                                                                              \
    {                                                                                                            \
        PAIR(name, 1), PAIR(name, 2), PAIR(name, 3), PAIR(name, 4), PAIR(name, 5), PAIR(name, 6), PAIR(name, 7), \
            PAIR(name, 8)                                                                                        \
    }
#else
#define PAIRS(name)                                                                              \
    {                                                                                            \
        PAIR(name, 1), PAIR(name, 2), PAIR(name, 3), PAIR(name, 4), PAIR(name, 5), PAIR(name, 6) \
    }
#endif
static tile_fn *const tiles[][MR][NV] = {
    PAIRS(tile),
    PAIRS(turned),
#if VEC_HALF
    PAIRS(narrow),
#endif
};

void vec_fn(gemm)(const struct simd_gemm *g)
{
    struct act act = act_of(&g->e);
    int64_t groups = (g->m + MR - 1) / MR;
    const float *b = g->b;
    for (int64_t j = 0; j < g->n; j += NV * VL) {
        int64_t n = g->n - j < NV * VL ? g->n - j : NV * VL;
        int nv = (int)((n + VL - 1) / VL);
        enum how how = g->turned ? TURNED : n - (nv - 1) * VL <= VEC_HALF ? NARROW : WHOLE;
        for (int64_t q = 0, i = 0; q < groups; q++) {
            int64_t mr = (g->m - i) / (groups - q); /* equal shares: a tile of one row is slow */
            struct tile t = {.a = g->a + (g->turned ? i : i * g->lda),
                .b = b,
                .lda = g->lda,
                .k = g->k,
                .n = n,
                .at = g->at,
                .y = g->y + i * g->ldy + j,
                .ldy = g->ldy,
                .bias = g->e.bias ? g->e.bias + j : NULL,
                .add = g->e.add ? g->e.add + i * g->e.ld_add + j : NULL,
                .ld_add = g->e.ld_add};
            tiles[how][mr - 1][nv - 1](&t, &act);
            if (!act_is_clamp(&act))
                vec_fn(activate)(t.y, t.ldy, mr, n, &g->e);
            i += mr;
        }
        b += g->k * nv * VL;
    }
}

void vec_fn(gemm_pack)(float *out, const float *b, int64_t k, int64_t n, int64_t ldb, bool transposed)
{
    for (int64_t j = 0; j < n; j += NV * VL) {
        int64_t have = n - j < NV * VL ? n - j : NV * VL, width = (have + VL - 1) / VL * VL;
        if (transposed) {
            vec_fn(transpose)(out, width, b + j * ldb, ldb, have, k);
            for (int64_t r = 0; have < width && r < k; r++)
                memset(out + r * width + have, 0, (size_t)(width - have) * sizeof(float));
            out += k * width;
        } else {
            for (int64_t r = 0; r < k; r++) {
                memcpy(out, b + r * ldb + j, (size_t)have * sizeof(float));
                memset(out + have, 0, (size_t)(width - have) * sizeof(float));
                out += width;
            }
        }
    }
}
