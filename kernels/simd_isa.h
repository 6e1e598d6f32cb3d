/* What the fast f32 kernels need of one instruction set. The files under kernels/isa are built once for each, with
 * their flags, and simd_isa_best() picks by what the processor says.
 *
 * Everything here works on channels-last data (NHWC): a pixel is a run of channels. A sum over k is made of partial
 * sums of simd_kc(k) terms, each term one fused multiply-add in ascending order from 0, partial sums added in order.
 * That does not mention vectors or tiles, so all sets that have a fused multiply-add give the same bits: their forms
 * are
 * "...@fma", on x86-64 and on aarch64. A processor without one has "...@generic". */
#ifndef YK_SIMD_ISA_H
#define YK_SIMD_ISA_H

#include <stdbool.h>
#include <stdint.h>

/* Short partial sums keep the error of long ones down: it grows with their length and their number. */
static inline int64_t simd_kc(int64_t k)
{
    return k <= 1152 ? 32 : 64;
}
#define SIMD_ROWS 256 /* terms that a kernel takes at a time where it makes its operands as it goes */

/* y = act(y + bias + add), by element in that order; NaN passes. */
enum simd_act {
    SIMD_LINEAR,
    SIMD_CLAMP, /* in [lo, hi] */
    SIMD_LEAKY, /* here and below, lo and hi are a and b of common/activation.h */
    SIMD_HARD_SIGMOID,
    SIMD_HARD_SWISH,
    SIMD_SIGMOID,
    SIMD_SILU,
    SIMD_GELU
};
struct simd_epilogue {
    const float *bias; /* by column (output channel); NULL: none */
    const float *add;  /* as y, rows ld_add apart; NULL: none */
    int64_t ld_add;
    enum simd_act act;
    float lo, hi;
};

/* y = act(a b + bias + add): a is m rows of k (turned: k rows of m), b is packed, y is m rows of n. add may be y. */
struct simd_gemm {
    int64_t m, n, k;
    bool turned;
    const float *a;
    int64_t lda;
    const int64_t *at; /* where the k terms of a row are; NULL: one behind the other */
    const float *b;
    float *y;
    int64_t ldy;
    struct simd_epilogue e;
};

/* Winograd F(size x size, 3x3), stride 1. Tiles are counted over all images, rows of tiles, columns. */
struct simd_wino {
    int size; /* 2 or 4 */
    int64_t h, w, c, oh, ow, oc, pad_top, pad_left;
    int64_t rows, cols;   /* of tiles in an image */
    int64_t first, count; /* of tiles in this block */
    const float *x;
    float *v; /* (size + 2)^2 matrices of count rows, ldv apart: v_step floats apart */
    int64_t ldv, v_step;
    float *m; /* the same of oc */
    int64_t ldm, m_step;
    float *y;
    struct simd_epilogue e;
};

/* Weights of a Winograd form, a vector of columns at a time: u = G w G^T. */
struct simd_wino_weights {
    int size;
    int64_t k;      /* rows; of each nine vectors, the taps, ldw floats apart */
    const float *w; /* tap t of row r at w + (r * 9 + t) * ldw */
    int64_t ldw;
    float *u; /* point p of row r at u + p * u_step + r * ldu */
    int64_t u_step, ldu;
};

/* Gradient of the weights, F(4x4, 3x3): dw = G^T (sum over tiles of A dy A^T times v) G. */
struct simd_wino_dw {
    int64_t m, n;    /* rows and columns, n a multiple of the vector length */
    const float *du; /* point p of (row, column) at du + p * du_step + row * n + column */
    int64_t du_step;
    float *dw; /* tap t of (row, column) at dw + (row * 9 + t) * n + column */
};

#define SIMD_GROUP_MOST 16 /* channels of a group: larger ones fill a product */

/* Convolution in groups of `per` channels, as many in as out: a power of two (1: depthwise) up to SIMD_GROUP_MOST. */
struct simd_group {
    int64_t h, w, c, ow, kh, kw, stride_h, stride_w, dil_h, dil_w, pad_top, pad_left, per;
    const float *x;                           /* the image */
    const float *taps;                        /* by vectors of channels: kh, per, kw vectors */
    float *y;                                 /* the image */
    int64_t first_row, last_row, first, last; /* of y: rows and channels; first is a multiple of SIMD_PAD */
    struct simd_epilogue e;
};

#define SIMD_PAD 16 /* channels of packed rows are rounded up to it */

struct simd_isa {
    const char *name; /* "avx512" */
    const char *bits; /* what follows '@' in its forms: equal for sets whose bits are equal */
    int vl, mr, nr;   /* floats of a vector; rows and columns of a register tile */
    void (*gemm)(const struct simd_gemm *g);
    /* b (k rows of n, ldb apart; or its transpose) into panels of nr columns; the last is as wide as it must be. */
    void (*pack)(float *out, const float *b, int64_t k, int64_t n, int64_t ldb, bool transposed);
    /* Channels begin..end (end - begin a multiple of SIMD_PAD but for the last) of all tiles of the block. */
    void (*wino_in)(const struct simd_wino *w, int64_t begin, int64_t end);
    void (*wino_out)(const struct simd_wino *w, int64_t begin, int64_t end);
    /* m = A dy A^T of the tiles, size 4, in panels of nr columns as pack makes them: dy is y, ldm is not used. */
    void (*wino_dy)(const struct simd_wino *w, int64_t begin, int64_t end);
    void (*wino_weights)(const struct simd_wino_weights *w);
    void (*wino_dw)(const struct simd_wino_dw *w);
    void (*group)(const struct simd_group *g);
    /* y = max(a x + b, 0) by column, in rows of n columns; NaN passes. */
    void (*affine_relu)(
        float *y, int64_t ldy, const float *x, int64_t ldx, const float *a, const float *b, int64_t rows, int64_t n);
    /* y (cols rows of rows) = transpose of x (rows rows of cols). */
    void (*transpose)(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows, int64_t cols);
    /* y = e^(v - the largest v) with v = scale x + mask, n elements; returns their sum. mask may be NULL; mask_step is
     * 0 or 1. y may be x. */
    float (*soft)(float *y, const float *x, int64_t n, float scale, const float *mask, int64_t mask_step);
    void (*scale)(float *y, float f, int64_t n);
    float (*peak)(int64_t rounds); /* 24 vl operations a round, as fast as a core can */
};

/* Floats of a packed b: columns are rounded up to the vector length. */
static inline int64_t simd_packed(const struct simd_isa *isa, int64_t k, int64_t n)
{
    return k * ((n + isa->vl - 1) / isa->vl * isa->vl);
}

extern const struct simd_isa simd_isa_generic, simd_isa_avx2, simd_isa_avx512, simd_isa_neon;

/* The sets this processor can run, best first; returns how many. */
#define SIMD_ISAS_MAX 4
int simd_isas(const struct simd_isa *out[SIMD_ISAS_MAX]);
/* The one in use: the best, unless a test has asked for another (NULL: the best again) before it opens a backend. */
const struct simd_isa *simd_isa_best(void);
void simd_isa_use(const struct simd_isa *isa);

#endif
