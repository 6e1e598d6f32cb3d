/* Packs weights of convolutions for the fast forms: of the convolution itself, or turned round for the gradient of its
 * input, where taps run backwards and input and output channels swap. A panel of columns at a time, so that a run whose
 * weights vary can do it on many threads, or piece by piece in a near cache. */
#ifndef YK_SIMD_WEIGHTS_H
#define YK_SIMD_WEIGHTS_H

#include "kernels/host.h"
#include "kernels/simd_isa.h"

struct simd_weights {
    const struct simd_isa *isa;
    const float *w;               /* (groups * oc, ic, taps) */
    int64_t groups, oc, ic, taps; /* oc and ic of a group, as stored; taps that are used */
    bool turned;
    int64_t kh, kw, first[2], width; /* stored taps; the first used ones (of the turned kernel); used taps of a row */
};
void simd_weights_of(const struct node *n, const struct shape *shape, const float *w, struct simd_weights *out);

/* Only the taps that conv_trim left. */
void simd_weights_trim(struct simd_weights *s, const struct conv_dims *d, const int64_t first[3]);
static inline int64_t simd_weights_stored(const struct simd_weights *s)
{
    return s->kh * s->kw;
}

/* Columns of the packed matrix and rows for each tap. */
static inline int64_t simd_weights_n(const struct simd_weights *s)
{
    return s->turned ? s->ic : s->oc;
}
static inline int64_t simd_weights_k(const struct simd_weights *s)
{
    return s->turned ? s->oc : s->ic;
}
static inline int64_t simd_weights_panels(const struct simd_weights *s)
{
    return (simd_weights_n(s) + s->isa->nr - 1) / s->isa->nr;
}
/* Floats of a row of a panel. */
static inline int64_t simd_weights_width(const struct simd_weights *s, int64_t panel)
{
    int64_t n = YK_MIN(simd_weights_n(s) - panel * s->isa->nr, s->isa->nr);
    return (n + s->isa->vl - 1) / s->isa->vl * s->isa->vl;
}

/* A panel of rows (tap, channel), at its place in what isa->pack makes of the whole of the group. */
void simd_weights_panel(const struct simd_weights *s, int64_t group, int64_t panel, float *packed);

/* Of a turned one, the taps apart: row o of tap t at to[t] + o * width. At most SIMD_WEIGHTS_TAPS taps. */
#define SIMD_WEIGHTS_TAPS 256
void simd_weights_taps(const struct simd_weights *s, int64_t group, int64_t panel, float *const *to);

/* Winograd, size 2 or 4, taps 9, one group: rows k0..k1 of a panel; point p at u + p * u_step. */
void simd_weights_wino(
    const struct simd_weights *s, int size, int64_t panel, int64_t k0, int64_t k1, float *u, int64_t u_step);

#endif
