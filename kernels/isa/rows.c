/* Softmax of a row, in two passes. Sums run in 16 fixed lanes that are folded as a tree, so that sets of any width have
 * the same bits. */
#include <math.h>

#include "kernels/isa/vec.h"

#define LANES 16
#define PARTS (LANES / VL)

typedef uint32_t vbits __attribute__((vector_size(VL * 4)));

/* e^x for x <= 0, 0 where that is no normal number; NaN passes. The polynomial is that of Cephes expf. */
INLINE vf exp_down(vf x)
{
    const vf least = vf_set(-87.33654f), magic = vf_set(12582912.0f);
    vf c = vf_max(least, x);
    vf t = vf_fma(c, vf_set(1.44269504088896341f), magic); /* the integer is in its low bits */
    vf n = t - magic;
    vf r = vf_fma(n, vf_set(-0.693359375f), c);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf y = vf_set(1.9875691500e-4f);
    y = vf_fma(y, r, vf_set(1.3981999507e-3f));
    y = vf_fma(y, r, vf_set(8.3334519073e-3f));
    y = vf_fma(y, r, vf_set(4.1665795894e-2f));
    y = vf_fma(y, r, vf_set(1.6666665459e-1f));
    y = vf_fma(y, r, vf_set(5.0000001201e-1f));
    y = vf_fma(y * r, r, r) + vf_set(1.0f);
    y = (vf)((vbits)y + ((vbits)t << 23)); /* wraps where the result is left out */
    y = vf_select(x < least, vf_set(0), y);
    return vf_select(x == x, y, x);
}

INLINE float fold(const vf part[PARTS], bool most)
{
    float a[LANES];
    for (int p = 0; p < PARTS; p++)
        vf_store(a + p * VL, part[p]);
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            a[i] = !most ? a[i] + a[i + n] : a[i] > a[i + n] ? a[i] : a[i + n];
    return a[0];
}

INLINE int64_t lanes_left(int64_t n, int64_t i, int p)
{
    int64_t left = n - i - p * VL;
    return left < 0 ? 0 : left < VL ? left : VL;
}

float vec_fn(soft)(float *y, const float *x, int64_t n, float scale, const float *mask, int64_t mask_step)
{
    const vf low = vf_set(-INFINITY), f = vf_set(scale);
    vf part[PARTS];
    float same = mask && !mask_step ? *mask : 0;
    for (int p = 0; p < PARTS; p++)
        part[p] = low;
    for (int64_t i = 0; i < n; i += LANES)
        for (int p = 0; p < PARTS; p++) {
            int64_t k = i + p * VL, have = lanes_left(n, i, p);
            if (have == VL) {
                vf v = vf_fma(vf_load(x + k), f, mask && mask_step ? vf_load(mask + k) : vf_set(same));
                vf_store(y + k, v);
                part[p] = vf_max(part[p], v);
            } else if (have > 0) {
                vf v = vf_fma(vf_load_n(x + k, have), f, mask && mask_step ? vf_load_n(mask + k, have) : vf_set(same));
                vf_store_n(y + k, v, have);
                for (int64_t e = have; e < VL; e++)
                    v[e] = -INFINITY;
                part[p] = vf_max(part[p], v);
            }
        }
    const vf most = vf_set(fold(part, true));
    for (int p = 0; p < PARTS; p++)
        part[p] = vf_set(0);
    for (int64_t i = 0; i < n; i += LANES)
        for (int p = 0; p < PARTS; p++) {
            int64_t k = i + p * VL, have = lanes_left(n, i, p);
            if (have == VL) {
                vf v = exp_down(vf_load(y + k) - most);
                vf_store(y + k, v);
                part[p] += v;
            } else if (have > 0) {
                vf v = exp_down(vf_load_n(y + k, have) - most);
                for (int64_t e = have; e < VL; e++)
                    v[e] = 0;
                vf_store_n(y + k, v, have);
                part[p] += v;
            }
        }
    return fold(part, false);
}

void vec_fn(scale)(float *y, float f, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(y + i, vf_load(y + i) * vf_set(f));
    if (i < n)
        vf_store_n(y + i, vf_load_n(y + i, n - i) * vf_set(f), n - i);
}
