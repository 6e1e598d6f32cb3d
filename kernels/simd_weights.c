#include "kernels/simd_weights.h"

#include <string.h>

#include "kernels/conv.h"

#define CHUNK 2048 /* floats of a row that are turned at a time */

void simd_weights_of(const struct node *n, const struct shape *s, const float *w, struct simd_weights *out)
{
    int64_t group = YK_MAX(node_attr_i(n, "group", 1), 1);
    *out = (struct simd_weights){.isa = simd_isa_best(),
        .w = w,
        .groups = group,
        .oc = s->dims[0] / group,
        .ic = s->dims[1],
        .taps = 1,
        .turned = conv_is_grad_input(n)};
    for (int i = 2; i < s->rank; i++)
        out->taps *= s->dims[i];
    out->kw = out->width = s->rank > 2 ? s->dims[s->rank - 1] : 1;
    out->kh = out->taps / YK_MAX(out->kw, 1);
}

void simd_weights_trim(struct simd_weights *s, const struct conv_dims *d, const int64_t first[3])
{
    s->first[0] = first[1];
    s->first[1] = first[2];
    s->width = d->k[2];
    s->taps = d->k[1] * d->k[2];
}

/* A column's channel and used tap to a row each, where not all taps are used. */
static void few_taps(const struct simd_weights *s, const float *w, int64_t have, int64_t width, float *out)
{
    int64_t stored = simd_weights_stored(s), k = simd_weights_k(s);
    int64_t column = s->turned ? stored : s->ic * stored, row = s->turned ? s->ic * stored : stored;
    memset(out, 0, (size_t)(s->taps * k * width) * sizeof(float));
    for (int64_t t = 0; t < s->taps; t++) {
        int64_t y = s->first[0] + t / s->width, x = s->first[1] + t % s->width;
        const float *from = w + (s->turned ? (s->kh - 1 - y) * s->kw + s->kw - 1 - x : y * s->kw + x);
        /* Along what lies together. */
        for (int64_t r = 0; s->turned && r < k; r++)
            for (int64_t i = 0; i < have; i++)
                out[(t * k + r) * width + i] = from[i * column + r * row];
        for (int64_t i = 0; !s->turned && i < have; i++)
            for (int64_t r = 0; r < k; r++)
                out[(t * k + r) * width + i] = from[i * column + r * row];
    }
}

/* Rows begin..end of (channel, tap) of the columns first.. of a group, width floats each. */
static void forward_rows(
    const struct simd_weights *s, const float *w, int64_t have, int64_t width, int64_t begin, int64_t end, float *out)
{
    s->isa->transpose(out, width, w + begin, s->ic * s->taps, have, end - begin);
    for (int64_t r = 0; have < width && r < end - begin; r++)
        memset(out + r * width + have, 0, (size_t)(width - have) * sizeof(float));
}

/* The taps of one output channel, last first; step floats between taps. */
static void turned_rows(
    const struct simd_weights *s, const float *w, int64_t have, int64_t width, int64_t step, float *out)
{
    s->isa->transpose(out + (s->taps - 1) * step, -step, w, s->taps, have, s->taps);
    for (int64_t t = 0; have < width && t < s->taps; t++)
        memset(out + t * step + have, 0, (size_t)(width - have) * sizeof(float));
}

void simd_weights_panel(const struct simd_weights *s, int64_t group, int64_t panel, float *packed)
{
    int64_t nr = s->isa->nr, first = panel * nr, width = simd_weights_width(s, panel), k = simd_weights_k(s);
    int64_t have = YK_MIN(simd_weights_n(s) - first, nr);
    const float *w = s->w + group * s->oc * s->ic * simd_weights_stored(s);
    float *out = packed + first * k * s->taps;
    if (s->taps != simd_weights_stored(s)) {
        few_taps(s, w + first * simd_weights_stored(s) * (s->turned ? 1 : s->ic), have, width, out);
        return;
    }
    if (s->turned) {
        for (int64_t o = 0; o < s->oc; o++)
            turned_rows(s, w + (o * s->ic + first) * s->taps, have, width, k * width, out + o * width);
        return;
    }
    w += first * s->ic * s->taps;
    if (s->taps == 1) {
        forward_rows(s, w, have, width, 0, s->ic, out);
        return;
    }
    /* (channel, tap) to (tap, channel): through a piece that stays near. */
    float piece[CHUNK];
    int64_t rows = YK_MAX(CHUNK / width, 1), all = s->ic * s->taps;
    for (int64_t r = 0; r < all; r += rows) {
        int64_t n = YK_MIN(rows, all - r);
        forward_rows(s, w, have, width, r, r + n, piece);
        for (int64_t i = 0; i < n; i++) {
            int64_t channel = (r + i) / s->taps, tap = (r + i) % s->taps;
            memcpy(out + (tap * s->ic + channel) * width, piece + i * width, (size_t)width * sizeof(float));
        }
    }
}

void simd_weights_taps(const struct simd_weights *s, int64_t group, int64_t panel, float *const *to)
{
    enum { WIDTH = 32 };
    float piece[SIMD_WEIGHTS_TAPS * WIDTH];
    int64_t nr = s->isa->nr, first = panel * nr, width = simd_weights_width(s, panel);
    int64_t have = YK_MIN(simd_weights_n(s) - first, nr);
    for (int64_t o = 0; o < s->oc; o++) {
        turned_rows(s, s->w + ((group * s->oc + o) * s->ic + first) * s->taps, have, width, width, piece);
        for (int64_t t = 0; t < s->taps; t++)
            memcpy(to[t] + o * width, piece + (s->taps - 1 - t) * width, (size_t)width * sizeof(float));
    }
}

/* Starts to bring near part i of n of the taps of rows k.. of the columns first.. Inline, for the compiler takes a
 * function that does only this for one that does nothing. */
static inline __attribute__((always_inline)) void bring_near(
    const struct simd_weights *s, int64_t first, int64_t have, int64_t k, int64_t rows, int64_t i, int64_t n)
{
    enum { LINE = 64 / sizeof(float), NEAR_L2 = 2 };
    const float *from = s->w + (s->turned ? k * s->ic + first : first * s->ic + k) * 9;
    int64_t runs = s->turned ? rows : have, floats = (s->turned ? have : rows) * 9;
    for (int64_t r = runs * i / n; r < runs * (i + 1) / n; r++)
        for (int64_t at = 0; at < floats; at += LINE)
            __builtin_prefetch(from + r * s->ic * 9 + at, 0, NEAR_L2);
}

void simd_weights_wino(
    const struct simd_weights *s, int size, int64_t panel, int64_t k0, int64_t k1, float *u, int64_t u_step)
{
    enum { ROWS = 16, STEP = 2, WIDTH = 32 };
    float taps[ROWS * 9 * WIDTH];
    int64_t nr = s->isa->nr, first = panel * nr, width = simd_weights_width(s, panel), all = simd_weights_k(s);
    int64_t have = YK_MIN(simd_weights_n(s) - first, nr);
    for (int64_t k = k0; k < k1; k += ROWS) {
        int64_t n = YK_MIN(ROWS, k1 - k), next = YK_MIN(ROWS, all - k - n);
        if (s->turned)
            for (int64_t i = 0; i < n; i++)
                turned_rows(s, s->w + ((k + i) * s->ic + first) * 9, have, width, width, taps + i * 9 * width);
        else
            forward_rows(s, s->w + first * s->ic * 9, have, width, k * 9, (k + n) * 9, taps);
        /* The next rows are on their way while these are computed. */
        for (int64_t i = 0; i < n; i += STEP) {
            bring_near(s, first, have, k + n, next, i / STEP, (n + STEP - 1) / STEP);
            for (int64_t v = 0; v < width; v += s->isa->vl) {
                struct simd_wino_weights w = {.size = size,
                    .k = YK_MIN(STEP, n - i),
                    .w = taps + i * 9 * width + v,
                    .ldw = width,
                    .u = u + (k - k0 + i) * width + v,
                    .u_step = u_step,
                    .ldu = width};
                s->isa->wino_weights(&w);
            }
        }
    }
}
