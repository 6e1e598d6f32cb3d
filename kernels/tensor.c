#include "kernels/tensor.h"

#include <math.h>
#include <string.h>

static double value_at(const struct tensor *t, int64_t i)
{
    return t->shape.dtype == DT_F64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

double tensor_relative(const struct tensor *a, const struct tensor *b)
{
    enum dtype t = b->shape.dtype;
    int64_t n = tensor_count(a);
    if (a->shape.dtype != t || n != tensor_count(b))
        return INFINITY;
    if (t != DT_F32 && t != DT_F64)
        return n == 0 || memcmp(a->data, b->data, (size_t)tensor_bytes(a)) == 0 ? 0 : INFINITY;
    double diff = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = value_at(a, i), y = value_at(b, i);
        if (!isfinite(x) || !isfinite(y)) {
            if (x != y && !(isnan(x) && isnan(y)))
                return INFINITY;
            continue;
        }
        diff = fmax(diff, fabs(x - y));
        most = fmax(most, fabs(y));
    }
    return diff == 0 ? 0 : most == 0 ? INFINITY : diff / most;
}
