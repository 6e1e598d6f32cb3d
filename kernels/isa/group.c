/* Convolution in groups of few channels, depthwise among them: the lanes of a vector are output channels, so each needs
 * the input channel of its own group. Depthwise that is the pixel itself; for groups that are smaller than a vector,
 * its lanes permuted; for larger ones, one channel in all lanes. A vector so made serves all pixels of a row of output
 * that see it. Terms of a sum go by row of the kernel, channel of the group, column; columns in the padding add zeros,
 * rows are left out. */
#include "kernels/isa/act.h"

enum mode { OWN, PERMUTE, SPREAD };

/* Pixels of a tile: many, for few loads and long chains; the smaller ones for narrow rows. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILE_A 14
#define TILE_B 7
#define TILE_C 3
#else
#define TILE_A 7
#define TILE_B 4
#define TILE_C 2
#endif

struct row {
    const struct simd_group *g;
    int64_t oy, ky0, ky1; /* taps whose row is inside */
    int64_t c, n;         /* channels of this vector */
    int64_t from;         /* the first channel of the input that it needs */
    const float *taps;
    vf bias;
    vi lanes; /* the first channel of the group of each lane, behind `from` */
    struct act act;
};

static const float zeros[SIMD_GROUP_MOST];

/* `tile` pixels from ox on. */
INLINE void finish(const struct row *r, int64_t ox, vf *s, int tile)
{
    const struct simd_group *g = r->g;
    int64_t at = (r->oy * g->ow + ox) * g->c + r->c;
    if (g->e.bias) {
#pragma GCC unroll 14
        for (int t = 0; t < tile; t++)
            s[t] += r->bias;
    }
    if (g->e.add) {
        const float *add = g->e.add + at;
#pragma GCC unroll 14
        for (int t = 0; t < tile; t++, add += g->c)
            s[t] += vf_load_n(add, r->n);
    }
    if (r->act.kind == SIMD_CLAMP) {
#pragma GCC unroll 14
        for (int t = 0; t < tile; t++)
            s[t] = vf_min(r->act.hi, vf_max(r->act.lo, s[t]));
    }
    float *y = g->y + at;
#pragma GCC unroll 14
    for (int t = 0; t < tile; t++, y += g->c)
        vf_store_n(y, s[t], r->n);
}

/* What the lanes multiply with for channel ic of their groups. */
INLINE vf input(const struct row *r, const float *pixel, int64_t ic, enum mode mode)
{
    if (mode == SPREAD)
        return vf_set(pixel[ic]);
    vf v = vf_load_n(pixel, r->n);
    return mode == OWN ? v : vf_permute(v, r->lanes + (int32_t)ic);
}

/* `tile` pixels from ox on, whatever of their columns is inside. tile, stride and kw are known to the compiler. */
INLINE void run_tile(const struct row *r, int64_t ox, int tile, int stride, int kw, enum mode mode)
{
    const struct simd_group *g = r->g;
    int64_t per = mode == OWN ? 1 : g->per, ix = ox * stride - g->pad_left;
    vf acc[TILE_A];
#pragma GCC unroll 14
    for (int t = 0; t < tile; t++)
        acc[t] = (vf){0};
    for (int64_t ky = r->ky0; ky < r->ky1; ky++) {
        const float *line = g->x + ((r->oy * g->stride_h + ky * g->dil_h - g->pad_top) * g->w + ix) * g->c + r->from;
        for (int64_t ic = 0; ic < per; ic++) {
            const float *taps = r->taps + (ky * per + ic) * kw * VL, *p = line;
            vf w[5];
#pragma GCC unroll 5
            for (int kx = 0; kx < kw; kx++)
                w[kx] = vf_load(taps + kx * VL);
#pragma GCC unroll 31
            for (int i = 0; i < (tile - 1) * stride + kw; i++) {
                bool sure = i >= kw / 2 && i <= (tile - 1) * stride; /* tiles_of looks at the padding */
                bool in = sure || (uint64_t)(ix + i) < (uint64_t)g->w;
                vf v = input(r, in ? p : zeros, ic, mode);
                p += g->c;
#pragma GCC unroll 5
                for (int kx = 0; kx < kw; kx++)
                    if (i >= kx && (i - kx) % stride == 0 && (i - kx) / stride < tile)
                        acc[(i - kx) / stride] = vf_fma(v, w[kx], acc[(i - kx) / stride]);
            }
        }
    }
    finish(r, ox, acc, tile);
}

/* A pixel of any kernel. */
static void run_pixel(const struct row *r, int64_t ox)
{
    const struct simd_group *g = r->g;
    vf s = {0};
    for (int64_t ky = r->ky0; ky < r->ky1; ky++) {
        const float *line = g->x + (r->oy * g->stride_h + ky * g->dil_h - g->pad_top) * g->w * g->c + r->from;
        for (int64_t ic = 0; ic < g->per; ic++)
            for (int64_t kx = 0; kx < g->kw; kx++) {
                int64_t at = ox * g->stride_w + kx * g->dil_w - g->pad_left;
                const float *p = at >= 0 && at < g->w ? line + at * g->c : zeros;
                vf v = input(r, p, ic, g->per == 1 ? OWN : g->per < VL ? PERMUTE : SPREAD);
                s = vf_fma(v, vf_load(r->taps + ((ky * g->per + ic) * g->kw + kx) * VL), s);
            }
    }
    finish(r, ox, &s, 1);
}

typedef void tile_fn(const struct row *r, int64_t ox);
#define TILE(tile, stride, kw, mode)                                                                              \
    static __attribute__((noinline)) void tile_##tile##_##stride##_##kw##_##mode(const struct row *r, int64_t ox) \
    {                                                                                                             \
        run_tile(r, ox, tile, stride, kw, mode);                                                                  \
    }
#define TILES(stride, kw, mode)    \
    TILE(TILE_A, stride, kw, mode) \
    TILE(TILE_B, stride, kw, mode) \
    TILE(TILE_C, stride, kw, mode)
#define NAMES(stride, kw, mode)                                                     \
    {                                                                               \
        tile_TILE_A_##stride##_##kw##_##mode, tile_TILE_B_##stride##_##kw##_##mode, \
            tile_TILE_C_##stride##_##kw##_##mode                                    \
    }
TILES(1, 3, OWN)
TILES(2, 3, OWN)
TILES(1, 5, OWN)
TILES(2, 5, OWN)
TILES(1, 3, PERMUTE)
TILES(2, 3, PERMUTE)
TILES(1, 3, SPREAD)
TILES(2, 3, SPREAD)
static const int widths[3] = {TILE_A, TILE_B, TILE_C};
static tile_fn *const own3[2][3] = {NAMES(1, 3, OWN), NAMES(2, 3, OWN)};
static tile_fn *const own5[2][3] = {NAMES(1, 5, OWN), NAMES(2, 5, OWN)};
static tile_fn *const permute3[2][3] = {NAMES(1, 3, PERMUTE), NAMES(2, 3, PERMUTE)};
static tile_fn *const spread3[2][3] = {NAMES(1, 3, SPREAD), NAMES(2, 3, SPREAD)};

static tile_fn *const *tiles_of(const struct simd_group *g)
{
    /* Only the first kw / 2 columns that a row sees may be padding, and the last kw - 1. */
    int64_t behind = (g->ow - 1) * g->stride_w - g->pad_left + g->kw - g->w;
    if (g->pad_left > g->kw / 2 || behind > g->kw - 1)
        return NULL;
    if (g->dil_w != 1 || g->stride_w > 2 || (g->kw != 3 && (g->kw != 5 || g->per > 1)))
        return NULL;
    if (g->per == 1)
        return (g->kw == 3 ? own3 : own5)[g->stride_w - 1];
    return (g->per < VL ? permute3 : spread3)[g->stride_w - 1];
}

/* The last tile of a row may do pixels again that the one before has done. */
static void run_row(const struct row *r, tile_fn *const *tiles)
{
    int64_t ow = r->g->ow, ox = 0;
    for (int i = 0; tiles && i < 3 && ox < ow; i++)
        for (int64_t w = widths[i]; ow >= w && ox < ow; ox += w) {
            ox = ox + w > ow ? ow - w : ox;
            tiles[i](r, ox);
        }
    for (; ox < ow; ox++)
        run_pixel(r, ox);
}

void vec_fn(group)(const struct simd_group *g)
{
    struct row r = {.g = g, .act = act_of(&g->e)};
    tile_fn *const *tiles = tiles_of(g);
    for (r.c = g->first; r.c < g->last; r.c += VL) {
        r.n = g->last - r.c < VL ? g->last - r.c : VL;
        r.from = r.c / g->per * g->per;
        r.taps = g->taps + r.c * g->kh * g->per * g->kw;
        r.bias = g->e.bias ? vf_load_n(g->e.bias + r.c, r.n) : (vf){0};
        for (int i = 0; i < VL; i++)
            r.lanes[i] = (int32_t)(i / g->per * g->per);
        for (r.oy = g->first_row; r.oy < g->last_row; r.oy++) {
            int64_t y0 = r.oy * g->stride_h - g->pad_top;
            for (r.ky0 = 0; r.ky0 < g->kh && y0 + r.ky0 * g->dil_h < 0;)
                r.ky0++;
            for (r.ky1 = g->kh; r.ky1 > r.ky0 && y0 + (r.ky1 - 1) * g->dil_h >= g->h;)
                r.ky1--;
            run_row(&r, tiles);
            if (!act_is_clamp(&r.act))
                vec_fn(activate)(g->y + r.oy * g->ow * g->c + r.c, g->c, g->ow, r.n, &g->e);
        }
    }
}
