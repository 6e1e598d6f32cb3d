#include "agent/codec.h"

#include <math.h>
#include <string.h>

#define BLOCK 4096

/* ---- half precision: selects instead of branches, so that loops over it are vectorised ---- */

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint16_t to_half(float x)
{
    const uint32_t small = 113u << 23; /* 2^-14: below it the half is subnormal */
    const uint32_t magic = 126u << 23; /* 0.5: its ulp is the step of subnormal halves, so adding rounds */
    uint32_t u = bits_of(x), sign = u & 0x80000000u;
    u ^= sign;
    uint32_t normal = (u - (112u << 23) + 0xfffu + ((u >> 13) & 1u)) >> 13;
    uint32_t subnormal = bits_of(float_of(u) + float_of(magic)) - magic;
    uint32_t special = u > 0x7f800000u ? 0x7e00u | ((u >> 13) & 0x3ffu) : 0x7c00u;
    uint32_t h = u < small ? subnormal : normal;
    h = u >= (143u << 23) ? special : h; /* 65536 and more */
    return (uint16_t)(h | sign >> 16);
}

static inline float from_half(uint16_t h)
{
    const uint32_t exp_mask = 0x7c00u << 13;
    uint32_t o = (h & 0x7fffu) << 13, exp = o & exp_mask;
    uint32_t normal = o + (112u << 23);
    uint32_t special = o + (224u << 23);
    uint32_t subnormal = bits_of(float_of(o + (113u << 23)) - float_of(113u << 23));
    uint32_t u = exp == exp_mask ? special : exp == 0 ? subnormal : normal;
    return float_of(u | (uint32_t)(h & 0x8000u) << 16);
}

uint16_t codec_half(float f)
{
    return to_half(f);
}

float codec_float(uint16_t h)
{
    return from_half(h);
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
    uint32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = bits_of(src[i]) & 0x7fffffffu;
        top = u > top ? u : top;
    }
    *finite = *finite && top < 0x7f800000u;
    return float_of(top);
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
        const float down = (float)scales[0];
        for (int64_t at = 0; at < n; at += BLOCK) { /* short loops: the first one stays in the cache for the second */
            int64_t end = YK_MIN(n, at + BLOCK);
            for (int64_t i = at; i < end; i++)
                out[i] = to_half(src[i] * up);
            for (int64_t i = at; i < end; i++) {
                double d = (double)(from_half(out[i]) * down) - (double)src[i];
                lost += d * d;
                all += (double)src[i] * (double)src[i];
            }
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
        const float down = (float)scales[0];
        for (int64_t i = 0; i < n; i++)
            dst[i] = from_half(in[i]) * down;
    } else {
        int64_t group = group_of(s);
        const int8_t *in = src;
        for (int64_t i = 0; i < n; i++)
            dst[i] = (float)(in[i] * scales[group ? i / group : 0]);
    }
}
