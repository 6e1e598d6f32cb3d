/* Between image.c and the two decoders. */
#ifndef YK_IMAGE_PRIV_H
#define YK_IMAGE_PRIV_H

#include "agent/image.h"

/* Checks the size, allocates out->pixels for out->channels. */
yk_err image_alloc(struct image *out, struct yk_diag *why);
/* What convert("L") makes of n RGB pixels. */
void image_gray(const uint8_t *rgb, size_t n, uint8_t *gray);

/* out->channels is what is wanted; size_only: the header, no pixels. On error out->pixels may be set; the caller frees.
 */
yk_err image_jpeg(const uint8_t *data, size_t len, bool size_only, struct image *out, struct yk_diag *why);
yk_err image_png(const uint8_t *data, size_t len, bool size_only, struct image *out, struct yk_diag *why);

#endif
