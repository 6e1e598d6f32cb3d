#include "agent/codec.h"

#include <math.h>
#include <string.h>

uint16_t codec_half(float f)
{
    uint32_t x;
    memcpy(&x, &f, sizeof x);
    uint32_t sign = x >> 16 & 0x8000u, mag = x & 0x7fffffffu;
    if (mag >= 0x7f800000u) /* infinity, NaN (kept quiet) */
        return (uint16_t)(sign | 0x7c00u | (mag > 0x7f800000u ? 0x200u | (mag >> 13 & 0x3ffu) : 0));
    if (mag >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (mag < 0x38800000u) { /* subnormal half: units of 2^-24 */
        if (mag < 0x33000000u)
            return (uint16_t)sign;
        uint32_t shift = 126 - (mag >> 23), m = (mag & 0x7fffffu) | 0x800000u;
        uint32_t h = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
        h += rest > half || (rest == half && (h & 1));
        return (uint16_t)(sign | h);
    }
    uint32_t h = (mag - 0x38000000u) >> 13, rest = mag & 0x1fffu;
    h += rest > 0x1000u || (rest == 0x1000u && (h & 1));
    return (uint16_t)(sign | h);
}

float codec_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 0x1fu, m = h & 0x3ffu, x;
    if (e == 0x1f)
        x = sign | 0x7f800000u | m << 13;
    else if (e)
        x = sign | (e + 112) << 23 | m << 13;
    else {
        float f = ldexpf((float)m, -24);
        memcpy(&x, &f, sizeof x);
        x |= sign;
    }
    float f;
    memcpy(&f, &x, sizeof f);
    return f;
}

/* Elements that share one int8 scale. */
static int64_t group_of(const struct shape *s)
{
    int64_t n = shape_count(s), scales = codec_scales(CODEC_INT8, s);
    return scales > 0 ? n / scales : n;
}

int64_t codec_scales(enum plan_codec codec, const struct shape *s)
{
    switch (codec) {
    case CODEC_FP16:
        return 1;
    case CODEC_INT8:
        return s->rank == 0 ? 1 : s->rank <= 2 ? s->dims[0] : s->dims[0] * s->dims[1];
    default:
        return 0;
    }
}

int64_t codec_bytes(enum plan_codec codec, const struct shape *s)
{
    int64_t n = shape_count(s);
    if (s->dtype != DT_F32)
        return shape_bytes(s);
    return codec == CODEC_FP16 ? 2 * n : codec == CODEC_INT8 ? n : 4 * n;
}

static float largest(const float *src, int64_t n, bool *finite)
{
    float top = 0;
    for (int64_t i = 0; i < n; i++) {
        *finite = *finite && isfinite(src[i]);
        top = fabsf(src[i]) > top ? fabsf(src[i]) : top;
    }
    return top;
}

yk_err codec_encode(
    enum plan_codec codec, const struct shape *s, const float *src, void *dst, double *scales, double *error)
{
    int64_t n = shape_count(s);
    bool finite = true;
    double lost = 0, all = 0;
    float top = largest(src, n, &finite);
    if (!finite)
        return YK_UNSUPPORTED;
    if (codec == CODEC_FP16) {
        /* The largest magnitude lands in [2^14, 2^15): room above, and the small ones keep most bits. */
        int exponent = 0;
        if (top > 0)
            frexpf(top, &exponent);
        float up = top > 0 ? ldexpf(1.0f, YK_MAX(-126, YK_MIN(126, 15 - exponent))) : 1.0f;
        scales[0] = 1.0 / (double)up;
        uint16_t *out = dst;
        for (int64_t i = 0; i < n; i++) {
            out[i] = codec_half(src[i] * up);
            double d = (double)codec_float(out[i]) * scales[0] - (double)src[i];
            lost += d * d;
            all += (double)src[i] * (double)src[i];
        }
    } else {
        int64_t group = group_of(s), groups = codec_scales(codec, s);
        int8_t *out = dst;
        for (int64_t g = 0; g < groups; g++) {
            float peak = largest(src + g * group, group, &finite);
            double scale = peak > 0 ? (double)peak / 127 : 1;
            scales[g] = scale;
            for (int64_t i = g * group; i < (g + 1) * group; i++) {
                double q = rint((double)src[i] / scale);
                out[i] = (int8_t)YK_MAX(-127.0, YK_MIN(127.0, q));
                double d = (double)(float)(out[i] * scale) - (double)src[i];
                lost += d * d;
                all += (double)src[i] * (double)src[i];
            }
        }
    }
    *error = all > 0 ? sqrt(lost / all) : 0;
    return YK_OK;
}

void codec_decode(enum plan_codec codec, const struct shape *s, const void *src, const double *scales, float *dst)
{
    int64_t n = shape_count(s);
    if (codec == CODEC_FP16) {
        const uint16_t *in = src;
        for (int64_t i = 0; i < n; i++)
            dst[i] = (float)((double)codec_float(in[i]) * scales[0]);
    } else {
        int64_t group = group_of(s);
        const int8_t *in = src;
        for (int64_t i = 0; i < n; i++)
            dst[i] = (float)(in[i] * scales[group ? i / group : 0]);
    }
}
