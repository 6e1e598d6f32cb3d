/* The weights of a Winograd form: u = G w G^T in double, rounded once, a vector of output channels at a time, straight
 * into the panels that the matrix product reads. */
#include "kernels/isa/vec.h"

#define CHUNK 8 /* input channels that are turned together */

typedef double vd __attribute__((vector_size(VL * 8)));

/* A macro: such wide vectors are not returned alike by all sets. */
#define WIDEN(p) __builtin_convertvector(vf_load(p), vd)

static const double g4[6][3] = {{1.0 / 4, 0, 0}, {-1.0 / 6, -1.0 / 6, -1.0 / 6}, {-1.0 / 6, 1.0 / 6, -1.0 / 6},
    {1.0 / 24, 1.0 / 12, 1.0 / 6}, {1.0 / 24, -1.0 / 12, 1.0 / 6}, {0, 0, 1}};
static const double g2[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};

/* VL output channels of one input channel: taps at f, `width` apart; points `step` apart. */
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

void vec_fn(wino_pack)(float *out, int64_t step, const float *w, int64_t ic, int64_t n, int size)
{
    float f[CHUNK * 9 * NV * VL] = {0};
    int64_t width = (n + VL - 1) / VL * VL;
    for (int64_t k = 0; k < ic; k += CHUNK) {
        int64_t count = ic - k < CHUNK ? ic - k : CHUNK;
        vec_fn(transpose)(f, width, w + k * 9, ic * 9, n, count * 9);
        for (int64_t i = 0; i < count; i++)
            for (int64_t v = 0; v < width; v += VL) {
                float *to = out + (k + i) * width + v;
                if (size == 4)
                    transform(to, step, f + i * 9 * width + v, width, g4, 6);
                else
                    transform(to, step, f + i * 9 * width + v, width, g2, 4);
            }
    }
}
