/* Resizing as Pillow does it: a horizontal pass, then a vertical one, each rounding to a byte, with weights of 22-bit
 * fixed point. The order of the sums does not matter (they are integers), so the answer is Pillow's to the byte. */
#include "agent/image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHT_BITS (32 - 8 - 2)

struct taps {
    int64_t first, count, *at, *n; /* outputs first..first+count-1: inputs at[i].. at[i]+n[i]-1 */
    int64_t width;                 /* weights of one output: row i of w */
    int32_t *w;
};

static double triangle(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static void taps_free(struct taps *t)
{
    free(t->at);
    free(t->n);
    free(t->w);
}

/* The weights of outputs first..first+count-1 of a line of in pixels that becomes out pixels. */
static yk_err taps_make(int64_t in, int64_t out, enum preprocess_filter kind, int64_t first, int64_t count,
    struct taps *t, struct yk_diag *why)
{
    bool bicubic = kind == PREPROCESS_BICUBIC;
    double scale = (double)in / (double)out, stretch = scale < 1.0 ? 1.0 : scale;
    double support = (bicubic ? 2.0 : 1.0) * stretch, inverse = 1.0 / stretch;
    *t = (struct taps){.first = first, .count = count, .width = (int64_t)ceil(support) * 2 + 1};
    t->at = yk_try_alloc((size_t)count + 1, sizeof *t->at);
    t->n = yk_try_alloc((size_t)count + 1, sizeof *t->n);
    t->w = yk_try_alloc((size_t)count + 1, (size_t)t->width * sizeof *t->w);
    double *k = yk_try_alloc((size_t)t->width, sizeof *k);
    if (!t->at || !t->n || !t->w || !k) {
        free(k);
        taps_free(t);
        return yk_fail(why, YK_NOMEM, "no memory for the weights of a resize from %lld to %lld pixels", (long long)in,
            (long long)out);
    }
    for (int64_t i = 0; i < count; i++) {
        double center = ((double)(first + i) + 0.5) * scale, sum = 0;
        int64_t lo = (int64_t)(center - support + 0.5), hi = (int64_t)(center + support + 0.5);
        lo = YK_MAX(lo, 0);
        hi = YK_MIN(hi, in);
        t->at[i] = lo;
        t->n[i] = hi - lo;
        for (int64_t x = 0; x < hi - lo; x++) {
            double at = ((double)(x + lo) - center + 0.5) * inverse;
            k[x] = bicubic ? cubic(at) : triangle(at);
            sum += k[x];
        }
        for (int64_t x = 0; x < hi - lo; x++) {
            double w = sum != 0.0 ? k[x] / sum : k[x];
            t->w[i * t->width + x] = (int32_t)((w < 0 ? -0.5 : 0.5) + w * (1 << WEIGHT_BITS));
        }
    }
    free(k);
    return YK_OK;
}

static uint8_t to_byte(int32_t v)
{
    v >>= WEIGHT_BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static void across(const struct taps *t, const uint8_t *row, int channels, uint8_t *to)
{
    for (int64_t i = 0; i < t->count; i++) {
        const int32_t *w = t->w + i * t->width;
        const uint8_t *p = row + t->at[i] * channels;
        if (channels == 1) {
            int32_t a = 1 << (WEIGHT_BITS - 1);
            for (int64_t x = 0; x < t->n[i]; x++)
                a += p[x] * w[x];
            *to++ = to_byte(a);
            continue;
        }
        int32_t a = 1 << (WEIGHT_BITS - 1), b = a, c = a;
        for (int64_t x = 0; x < t->n[i]; x++, p += 3) {
            a += p[0] * w[x];
            b += p[1] * w[x];
            c += p[2] * w[x];
        }
        *to++ = to_byte(a);
        *to++ = to_byte(b);
        *to++ = to_byte(c);
    }
}

/* Row i of the outputs of t, from rows of `bytes` bytes; sums has one value per byte. */
static void down(const struct taps *t, int64_t i, const uint8_t *rows, size_t bytes, int32_t *sums, uint8_t *to)
{
    for (size_t x = 0; x < bytes; x++)
        sums[x] = 1 << (WEIGHT_BITS - 1);
    for (int64_t k = 0; k < t->n[i]; k++) {
        const uint8_t *row = rows + (size_t)(t->at[i] + k) * bytes;
        int32_t w = t->w[i * t->width + k];
        for (size_t x = 0; x < bytes; x++)
            sums[x] += row[x] * w;
    }
    for (size_t x = 0; x < bytes; x++)
        to[x] = to_byte(sums[x]);
}

/* The part of [0, n) that a window of `size` from `first` shows. */
struct span {
    int64_t first, count, at; /* of the image; where it goes in the window */
};
static struct span visible(int64_t n, int64_t first, int64_t size)
{
    struct span s = {.first = YK_MAX(first, 0)};
    s.at = s.first - first;
    s.count = YK_MAX(YK_MIN(first + size, n) - s.first, 0);
    return s;
}

static yk_err filtered(const struct image *in, int64_t height, int64_t width, enum preprocess_filter filter,
    struct span rows, struct span cols, struct image *out, struct yk_diag *why)
{
    size_t step = (size_t)in->channels, line = (size_t)cols.count * step, in_line = (size_t)in->width * step;
    struct taps h = {0}, v = {0};
    uint8_t *between = NULL;
    int32_t *sums = NULL;
    int64_t lo = rows.first, hi = rows.first + rows.count; /* rows of the input that are needed */
    yk_err err = YK_OK;
    if (width != in->width)
        err = taps_make(in->width, width, filter, cols.first, cols.count, &h, why);
    if (!err && height != in->height)
        err = taps_make(in->height, height, filter, rows.first, rows.count, &v, why);
    if (err)
        goto out;
    if (v.w) {
        lo = v.at[0];
        hi = lo;
        for (int64_t i = 0; i < v.count; i++) {
            lo = YK_MIN(lo, v.at[i]);
            hi = YK_MAX(hi, v.at[i] + v.n[i]);
        }
        for (int64_t i = 0; i < v.count; i++)
            v.at[i] -= lo;
    }
    if ((hi - lo) * cols.count > IMAGE_PIXELS_LIMIT) {
        err = yk_fail(why, YK_LIMIT, "resizing %lldx%lld to %lldx%lld takes more than %lld pixels on the way",
            (long long)in->height, (long long)in->width, (long long)height, (long long)width,
            (long long)IMAGE_PIXELS_LIMIT);
        goto out;
    }
    between = yk_try_alloc((size_t)(hi - lo) + 1, line);
    sums = yk_try_alloc(line, sizeof *sums);
    if (!between || !sums) {
        err = yk_fail(why, YK_NOMEM, "no memory to resize an image");
        goto out;
    }
    for (int64_t y = lo; y < hi; y++) {
        const uint8_t *row = in->pixels + (size_t)y * in_line;
        if (h.w)
            across(&h, row, in->channels, between + (size_t)(y - lo) * line);
        else
            memcpy(between + (size_t)(y - lo) * line, row + (size_t)cols.first * step, line);
    }
    for (int64_t i = 0; i < rows.count; i++) {
        uint8_t *to = out->pixels + ((size_t)(rows.at + i) * (size_t)out->width + (size_t)cols.at) * step;
        if (v.w)
            down(&v, i, between, line, sums, to);
        else
            memcpy(to, between + (size_t)i * line, line);
    }
out:
    taps_free(&h);
    taps_free(&v);
    free(between);
    free(sums);
    return err;
}

/* Positions as Pillow steps through them, sums included. */
static void positions(int64_t in, int64_t out, struct span s, int64_t *at)
{
    double step = (double)in / (double)out, x = step * 0.5;
    for (int64_t i = 0; i < s.first + s.count; i++, x += step)
        if (i >= s.first)
            at[i - s.first] = YK_MIN((int64_t)x, in - 1);
}

static yk_err nearest(const struct image *in, int64_t height, int64_t width, struct span rows, struct span cols,
    struct image *out, struct yk_diag *why)
{
    size_t step = (size_t)in->channels;
    int64_t *xs = yk_try_alloc((size_t)(rows.count + cols.count) + 1, sizeof *xs);
    if (!xs)
        return yk_fail(why, YK_NOMEM, "no memory to resize an image");
    int64_t *ys = xs + cols.count;
    positions(in->width, width, cols, xs);
    positions(in->height, height, rows, ys);
    for (int64_t y = 0; y < rows.count; y++) {
        const uint8_t *from = in->pixels + (size_t)ys[y] * (size_t)in->width * step;
        uint8_t *to = out->pixels + ((size_t)(rows.at + y) * (size_t)out->width + (size_t)cols.at) * step;
        for (int64_t x = 0; x < cols.count; x++)
            memcpy(to + (size_t)x * step, from + (size_t)xs[x] * step, step);
    }
    free(xs);
    return YK_OK;
}

yk_err image_resize(const struct image *in, int64_t height, int64_t width, enum preprocess_filter filter, int64_t top,
    int64_t left, struct image *out, struct yk_diag *why)
{
    struct span rows = visible(height, top, out->height), cols = visible(width, left, out->width);
    if (rows.count < out->height || cols.count < out->width)
        memset(out->pixels, 0, (size_t)(out->height * out->width) * (size_t)in->channels);
    if (!rows.count || !cols.count)
        return YK_OK;
    if (filter == PREPROCESS_NEAREST)
        return nearest(in, height, width, rows, cols, out, why);
    return filtered(in, height, width, filter, rows, cols, out, why);
}
