/* Images: JPEG and PNG into bytes, and resizing. The pixels are those of Pillow: Image.open(f).convert("RGB" or "L")
 * and Image.resize(), to the byte, so that what torchvision makes of a file is what a model sees here. As there, alpha
 * is dropped, EXIF orientation is not applied, and 16-bit gray values above 255 are clipped. The kind of a file is
 * known by its first bytes, not its name. The home of libjpeg and libpng. Thread: any. */
#ifndef YK_IMAGE_H
#define YK_IMAGE_H

#include "common/preprocess.h"

#define IMAGE_PIXELS_LIMIT ((int64_t)1 << 27)
#define IMAGE_SIDE_LIMIT 65535
#define IMAGE_FILE_LIMIT ((size_t)256 << 20)
#define IMAGE_SCANS_LIMIT 500 /* of a progressive JPEG */

struct image {
    int64_t height, width;
    int channels; /* 1 gray or 3 RGB, interleaved */
    uint8_t *pixels;
};

bool image_known(const void *head, size_t len); /* 8 bytes are enough */
/* From the header alone; the file may still be broken behind it. */
yk_err image_size(const void *data, size_t len, int64_t *height, int64_t *width, struct yk_diag *why);
/* Errors: YK_FORMAT (neither JPEG nor PNG, cut, corrupt), YK_UNSUPPORTED, YK_LIMIT (pixels, scans), YK_NOMEM. */
yk_err image_decode(const void *data, size_t len, int channels, struct image *out, struct yk_diag *why);
/* Of the image resized to height x width: the rows from top and columns from left, as many as out has; what lies
 * outside is 0. out: height, width and channels set, pixels allocated by the caller. Only what is asked for is
 * computed. Errors: YK_NOMEM, YK_LIMIT (pixels between the passes). Source: Pillow 9.4, Resample.c and Geometry.c. */
yk_err image_resize(const struct image *in, int64_t height, int64_t width, enum preprocess_filter filter, int64_t top,
    int64_t left, struct image *out, struct yk_diag *why);
void image_free(struct image *m); /* zeroed ones allowed */

#endif
