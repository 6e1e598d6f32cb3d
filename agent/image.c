#include "agent/image_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t jpeg_magic[] = {0xff, 0xd8, 0xff};
static const uint8_t png_magic[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

static bool starts(const uint8_t *data, size_t len, const uint8_t *magic, size_t n)
{
    return len >= n && memcmp(data, magic, n) == 0;
}

bool image_known(const void *head, size_t len)
{
    return starts(head, len, jpeg_magic, sizeof jpeg_magic) || starts(head, len, png_magic, sizeof png_magic);
}

yk_err image_alloc(struct image *out, struct yk_diag *why)
{
    int64_t h = out->height, w = out->width, pixels = h * w; /* both have 31 bits at most */
    if (h < 1 || w < 1)
        return yk_fail(why, YK_FORMAT, "an image of %" PRId64 "x%" PRId64 " pixels", h, w);
    if (h > IMAGE_SIDE_LIMIT || w > IMAGE_SIDE_LIMIT || pixels > IMAGE_PIXELS_LIMIT)
        return yk_fail(why, YK_LIMIT,
            "an image of %" PRId64 "x%" PRId64 " pixels; the limit is %d on a side and %" PRId64
            " in all: make it smaller",
            h, w, IMAGE_SIDE_LIMIT, IMAGE_PIXELS_LIMIT);
    out->pixels = yk_try_alloc((size_t)pixels, (size_t)out->channels);
    if (!out->pixels)
        return yk_fail(why, YK_NOMEM, "no memory for %" PRId64 " pixels", pixels);
    return YK_OK;
}

void image_gray(const uint8_t *rgb, size_t n, uint8_t *gray)
{
    for (size_t i = 0; i < n; i++)
        gray[i] = (uint8_t)((rgb[3 * i] * 19595u + rgb[3 * i + 1] * 38470u + rgb[3 * i + 2] * 7471u + 0x8000u) >> 16);
}

static yk_err decode(const uint8_t *data, size_t len, bool size_only, struct image *m, struct yk_diag *why)
{
    if (len == 0)
        return yk_fail(why, YK_FORMAT, "the file is empty");
    if (starts(data, len, png_magic, sizeof png_magic))
        return image_png(data, len, size_only, m, why);
    if (starts(data, len, jpeg_magic, sizeof jpeg_magic))
        return image_jpeg(data, len, size_only, m, why);
    char hex[2 * 8 + 1];
    size_t n = YK_MIN(len, (size_t)8);
    yk_hex(data, n, hex);
    return yk_fail(why, YK_FORMAT, "neither JPEG nor PNG: it starts with %s", hex);
}

yk_err image_size(const void *data, size_t len, int64_t *height, int64_t *width, struct yk_diag *why)
{
    struct image m = {.channels = 3};
    yk_err err = decode(data, len, true, &m, why);
    if (!err) {
        *height = m.height;
        *width = m.width;
    }
    return err;
}

yk_err image_decode(const void *data, size_t len, int channels, struct image *out, struct yk_diag *why)
{
    struct image m = {.channels = channels};
    yk_err err = decode(data, len, false, &m, why);
    if (err)
        image_free(&m);
    else
        *out = m;
    return err;
}

void image_free(struct image *m)
{
    free(m->pixels);
    m->pixels = NULL;
}
