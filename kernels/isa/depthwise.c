/* Depthwise convolution of one row of output: channels are the lanes, taps are added in the order of the kernel, taps
 * in the padding are left out. */
#include "kernels/isa/act.h"

#define AT_ONCE 4 /* pixels */

struct row {
    const struct simd_depthwise *d;
    int64_t ky0, ky1; /* taps whose row is inside */
    int64_t c, n;     /* channels of this vector */
    int64_t padded;   /* channels of a row of taps */
    vf bias;
    struct act act;
};

INLINE void finish(const struct row *r, int64_t ox, vf s)
{
    const struct simd_depthwise *d = r->d;
    if (d->e.bias)
        s += r->bias;
    if (d->e.add)
        s += vf_load_n(d->e.add + ox * d->e.ld_add + r->c, r->n);
    vf_store_n(d->y + ox * d->c + r->c, act_clamp(&r->act, s), r->n);
}

INLINE void edge(const struct row *r, int64_t ox)
{
    const struct simd_depthwise *d = r->d;
    vf s = {0};
    for (int64_t ky = r->ky0; ky < r->ky1; ky++) {
        const float *line = d->x + (d->oy * d->stride_h + ky * d->dil_h - d->pad_top) * d->w * d->c + r->c;
        for (int64_t kx = 0; kx < d->kw; kx++) {
            int64_t at = ox * d->stride_w + kx * d->dil_w - d->pad_left;
            if (at >= 0 && at < d->w)
                s = vf_fma(
                    vf_load_n(line + at * d->c, r->n), vf_load(d->taps + (ky * d->kw + kx) * r->padded + r->c), s);
        }
    }
    finish(r, ox, s);
}

/* AT_ONCE pixels whose columns are all inside. kw is known to the compiler where it can be. */
INLINE void middle(const struct row *r, int64_t ox, int64_t kw)
{
    const struct simd_depthwise *d = r->d;
    int64_t step = d->stride_w * d->c, dil = d->dil_w * d->c;
    vf s[AT_ONCE] = {{0}};
    for (int64_t ky = r->ky0; ky < r->ky1; ky++) {
        const float *p =
            d->x + ((d->oy * d->stride_h + ky * d->dil_h - d->pad_top) * d->w + ox * d->stride_w - d->pad_left) * d->c +
            r->c;
        const float *t = d->taps + ky * kw * r->padded + r->c;
#pragma GCC unroll 5
        for (int64_t kx = 0; kx < kw; kx++) {
            vf w = vf_load(t + kx * r->padded);
#pragma GCC unroll 4
            for (int q = 0; q < AT_ONCE; q++)
                s[q] = vf_fma(vf_load(p + q * step + kx * dil), w, s[q]);
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < AT_ONCE; q++)
        finish(r, ox + q, s[q]);
}

void vec_fn(depthwise)(const struct simd_depthwise *d)
{
    struct row r = {.d = d, .act = act_of(&d->e), .padded = (d->c + SIMD_PAD - 1) / SIMD_PAD * SIMD_PAD};
    int64_t y0 = d->oy * d->stride_h - d->pad_top;
    for (r.ky0 = 0; r.ky0 < d->kh && y0 + r.ky0 * d->dil_h < 0;)
        r.ky0++;
    for (r.ky1 = d->kh; r.ky1 > r.ky0 && y0 + (r.ky1 - 1) * d->dil_h >= d->h;)
        r.ky1--;
    /* Pixels lo..hi see all columns of the kernel. */
    int64_t lo = (d->pad_left + d->stride_w - 1) / d->stride_w, span = (d->kw - 1) * d->dil_w - d->pad_left;
    int64_t hi = d->w - 1 - span < 0 ? 0 : (d->w - 1 - span) / d->stride_w + 1;
    hi = hi < d->ow ? hi : d->ow;
    for (r.c = 0; r.c < d->c; r.c += VL) {
        r.n = d->c - r.c < VL ? d->c - r.c : VL;
        r.bias = d->e.bias ? vf_load_n(d->e.bias + r.c, r.n) : (vf){0};
        int64_t ox = 0;
        while (ox < d->ow) {
            if (r.n < VL || ox < lo || ox + AT_ONCE > hi) {
                edge(&r, ox++);
                continue;
            }
            if (d->kw == 3)
                middle(&r, ox, 3);
            else if (d->kw == 5)
                middle(&r, ox, 5);
            else
                middle(&r, ox, d->kw);
            ox += AT_ONCE;
        }
    }
    if (!act_is_clamp(&r.act))
        vec_fn(activate)(d->y, d->c, d->ow, d->c, &d->e);
}
