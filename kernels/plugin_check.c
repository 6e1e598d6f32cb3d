/* How far a plug-in's answer is from the reference's. */
#include <math.h>
#include <string.h>

#include "kernels/plugin_priv.h"

#define FLOOR 1e-5 /* of max|b|: where everything cancelled, rounding is all that is left */

static float half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    float v = exponent == 31 ? (mantissa ? NAN : INFINITY)
              : exponent     ? ldexpf((float)(mantissa + 1024), exponent - 25)
                             : ldexpf((float)mantissa, -24);
    return h >> 15 ? -v : v;
}

static float brain_value(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float v;
    memcpy(&v, &bits, sizeof(v));
    return v;
}

static double value_at(enum dtype t, const void *data, int64_t i)
{
    switch (t) {
    case DT_F32:
        return (double)((const float *)data)[i];
    case DT_F64:
        return ((const double *)data)[i];
    case DT_F16:
        return (double)half_value(((const uint16_t *)data)[i]);
    case DT_BF16:
        return (double)brain_value(((const uint16_t *)data)[i]);
    case DT_U64:
        return (double)((const uint64_t *)data)[i];
    default:
        return (double)dtype_read_int(t, data, i);
    }
}

double plugin_distance(enum dtype t, const void *a, const void *b, int64_t count)
{
    double diff = 0, most = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = value_at(t, a, i), y = value_at(t, b, i);
        if (!isfinite(y))
            continue; /* overflow: where exactly it begins is nobody's promise */
        if (!isfinite(x))
            return INFINITY;
        diff = fmax(diff, fabs(x - y));
        most = fmax(most, fabs(y));
    }
    if (!dtype_is_float(t)) { /* rounding of quantised values may fall either way; a bool is right or wrong */
        return diff == 0 || (diff <= 1 && t != DT_BOOL) ? 0 : diff / fmax(most, 1);
    }
    double scale = t == DT_F16 ? 4 : t == DT_BF16 ? 32 : 1;
    return diff / fmax(most, FLOOR) / scale;
}

bool plugin_finite(enum dtype t, const void *data, int64_t count)
{
    uint32_t bad = 0;
    if (t == DT_F32) {
        const uint32_t *p = data;
        for (int64_t i = 0; i < count; i++)
            bad |= (p[i] & 0x7f800000u) == 0x7f800000u;
    } else if (t == DT_F64) {
        const double *p = data;
        for (int64_t i = 0; i < count; i++)
            bad |= !isfinite(p[i]);
    } else if (t == DT_F16 || t == DT_BF16) {
        const uint16_t *p = data, mask = t == DT_F16 ? 0x7c00 : 0x7f80;
        for (int64_t i = 0; i < count; i++)
            bad |= (p[i] & mask) == mask;
    }
    return !bad;
}
