#include "agent/augment.h"

#include "agent/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 10 /* of a box that fits */
#define NARROWEST (3.0 / 4)
#define WIDEST (4.0 / 3)

enum { KEY_PAD = 3, KEY_FLIP = 4, KEY_BOX = 5 };

/* ---- draws ---- */

/* Each kind has its own stream. */
static void start(const struct augment_key *k, uint64_t kind, struct yk_rng *r)
{
    yk_rng_seed(r, sampler_key(sampler_key(k->seed, kind, 0), (uint64_t)k->epoch, (uint64_t)k->sample));
}

void augment_draw(const struct augment *a, const struct augment_key *k, struct augment_draw *out)
{
    struct yk_rng r;
    *out = (struct augment_draw){0};
    if (a->pad) {
        start(k, KEY_PAD, &r);
        out->down = (int64_t)yk_rng_below(&r, (uint64_t)(2 * a->pad + 1)) - a->pad;
        out->right = (int64_t)yk_rng_below(&r, (uint64_t)(2 * a->pad + 1)) - a->pad;
    }
    if (a->flip) {
        start(k, KEY_FLIP, &r);
        out->flip = yk_rng_next(&r) >> 63;
    }
}

static double between(struct yk_rng *r, double low, double high)
{
    return low + (high - low) * yk_rng_unit(r);
}

void augment_box(const struct augment *a, const struct augment_key *k, int64_t height, int64_t width, int64_t box[4])
{
    struct yk_rng r;
    double h = (double)height, w = (double)width;
    start(k, KEY_BOX, &r);
    for (int i = 0; i < TRIES; i++) {
        double area = h * w * between(&r, a->smallest, 1);
        double ratio = exp(between(&r, log(NARROWEST), log(WIDEST)));
        int64_t bw = (int64_t)rint(sqrt(area * ratio)), bh = (int64_t)rint(sqrt(area / ratio));
        if (bw < 1 || bh < 1 || bw > width || bh > height)
            continue;
        box[0] = (int64_t)yk_rng_below(&r, (uint64_t)(height - bh + 1));
        box[1] = (int64_t)yk_rng_below(&r, (uint64_t)(width - bw + 1));
        box[2] = bh;
        box[3] = bw;
        return;
    }
    box[2] = w / h >= NARROWEST ? height : YK_MAX((int64_t)rint(w / NARROWEST), 1);
    box[3] = w / h > WIDEST ? YK_MAX((int64_t)rint(h * WIDEST), 1) : width;
    box[0] = (height - box[2]) / 2;
    box[1] = (width - box[3]) / 2;
}

/* ---- pixels ---- */

/* n values of `element` bytes, `step` values apart at from. */
static void copy_row(uint8_t *to, const uint8_t *from, int64_t n, int64_t step, size_t element)
{
    if (step == 1) {
        memcpy(to, from, (size_t)n * element);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        memcpy(to + (size_t)i * element, from + i * step * (int64_t)element, element);
}

void augment_apply(
    const struct augment *a, const struct augment_draw *draw, const struct augment_view *v, const void *from, void *to)
{
    /* The pixel (r, c) comes from (r + down, c + right), mirrored; a flip before the crop mirrors the crop's move. */
    int64_t right = draw->flip && a->flip_first ? -draw->right : draw->right;
    int64_t planes = v->nhwc ? 1 : v->channels, group = v->nhwc ? v->channels : 1; /* values of a pixel */
    size_t pixel = (size_t)group * v->element, row = (size_t)v->width * pixel;
    /* columns of the source that are seen: first..last-1; before the flip */
    int64_t first = YK_MAX(right, 0), last = YK_MIN(v->width + right, v->width);
    for (int64_t p = 0; p < planes; p++) {
        const uint8_t *black = (const uint8_t *)v->black + (v->nhwc ? 0 : (size_t)p * v->element);
        for (int64_t r = 0; r < v->height; r++) {
            uint8_t *out = (uint8_t *)to + ((size_t)(p * v->height + r)) * row;
            int64_t y = r + draw->down;
            bool seen = y >= 0 && y < v->height && first < last;
            int64_t n = seen ? last - first : 0, at = seen ? first - right : 0;
            if (draw->flip)
                at = v->width - at - n;
            for (int64_t c = 0; c < at; c++)
                memcpy(out + (size_t)c * pixel, black, pixel);
            for (int64_t c = at + n; c < v->width; c++)
                memcpy(out + (size_t)c * pixel, black, pixel);
            if (!n)
                continue;
            const uint8_t *in = (const uint8_t *)from + ((size_t)(p * v->height + y)) * row;
            if (draw->flip)
                copy_row(out + (size_t)at * pixel, in + (size_t)(last - 1) * pixel, n, -1, pixel);
            else
                copy_row(out + (size_t)at * pixel, in + (size_t)first * pixel, n, 1, pixel);
        }
    }
}
