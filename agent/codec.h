/* Codecs of boundary tensors (float32 only; everything else travels raw).
 * fp16: IEEE half, round to nearest even, one power-of-two scale per tensor (decoded = half * scale).
 * int8: symmetric, one scale per (sample, axis-1 index), per sample for rank <= 2.
 * Non-finite input is not encoded: the caller sends it raw and counts it. */
#ifndef YK_CODEC_H
#define YK_CODEC_H

#include "common/graph.h"
#include "common/plan.h"

/* Bytes of the encoded form of a tensor of this shape. */
int64_t codec_bytes(enum plan_codec codec, const struct shape *s);
int64_t codec_scales(enum plan_codec codec, const struct shape *s); /* how many */
/* dst has codec_bytes, scales has codec_scales. error: relative RMS of what was lost. YK_UNSUPPORTED if src holds a
 * NaN or an infinity. Thread: any. */
yk_err codec_encode(
    enum plan_codec codec, const struct shape *s, const float *src, void *dst, double *scales, double *error);
void codec_decode(enum plan_codec codec, const struct shape *s, const void *src, const double *scales, float *dst);

uint16_t codec_half(float f); /* round to nearest even; overflow becomes infinity */
float codec_float(uint16_t h);

#endif
