#include "kernels/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double half_to_d(uint16_t h)
{
    int e = (h >> 10) & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(m + 1024, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static uint16_t half_from_d(double v)
{
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    if (isnan(v))
        return sign | 0x7e00;
    double a = fabs(v);
    if (a >= 65520.0)
        return sign | 0x7c00;
    int e;
    frexp(a, &e);
    if (e < -13)
        e = -13;
    /* A unit in the last place is 2^(e-11); nearbyint rounds to nearest even. */
    double units = nearbyint(ldexp(a, 11 - e));
    double r = ldexp(units, e - 11);
    if (r == 0)
        return sign;
    frexp(r, &e);
    if (e < -13)
        return sign | (uint16_t)ldexp(r, 24);
    return sign | (uint16_t)((uint32_t)(e + 14) << 10 | ((uint32_t)ldexp(r, 11 - e) & 1023));
}

static double bf16_to_d(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return (double)f;
}

/* Rounds once: the float in between is rounded to odd, so that it decides no tie. */
static uint16_t bf16_from_d(double v)
{
    float f = (float)v;
    uint32_t u;
    if (fabs((double)f) > fabs(v))
        f = nextafterf(f, 0);
    memcpy(&u, &f, 4);
    if (isnan(v))
        return (uint16_t)(u >> 16 | 0x40);
    u |= (double)f != v;
    u += 0x7fff + (u >> 16 & 1);
    return (uint16_t)(u >> 16);
}

#define LOAD(T)                     \
    for (int64_t i = 0; i < n; i++) \
    dst[i] = (__typeof__(*dst))((const T *)src)[at + i * step]

void ref_load_d(double *dst, const void *src, enum dtype t, int64_t at, int64_t step, int64_t n)
{
    switch (t) {
    case DT_F32:
        LOAD(float);
        break;
    case DT_F64:
        LOAD(double);
        break;
    case DT_F16:
        for (int64_t i = 0; i < n; i++)
            dst[i] = half_to_d(((const uint16_t *)src)[at + i * step]);
        break;
    case DT_BF16:
        for (int64_t i = 0; i < n; i++)
            dst[i] = bf16_to_d(((const uint16_t *)src)[at + i * step]);
        break;
    case DT_I8:
        LOAD(int8_t);
        break;
    case DT_I16:
        LOAD(int16_t);
        break;
    case DT_I32:
        LOAD(int32_t);
        break;
    case DT_I64:
        LOAD(int64_t);
        break;
    case DT_U8:
    case DT_BOOL:
        LOAD(uint8_t);
        break;
    case DT_U16:
        LOAD(uint16_t);
        break;
    case DT_U32:
        LOAD(uint32_t);
        break;
    case DT_U64:
        LOAD(uint64_t);
        break;
    case DT_NONE:
    case DT_COUNT:
        break;
    }
}

/* Out of range saturates, NaN is 0: C leaves both undefined. */
static int64_t int_from_d(double v)
{
    if (isnan(v))
        return 0;
    if (v >= 9223372036854775808.0)
        return INT64_MAX;
    if (v <= -9223372036854775808.0)
        return INT64_MIN;
    return (int64_t)v;
}

void ref_load_i(int64_t *dst, const void *src, enum dtype t, int64_t at, int64_t step, int64_t n)
{
    switch (t) {
    case DT_I8:
        LOAD(int8_t);
        break;
    case DT_I16:
        LOAD(int16_t);
        break;
    case DT_I32:
        LOAD(int32_t);
        break;
    case DT_I64:
        LOAD(int64_t);
        break;
    case DT_U8:
    case DT_BOOL:
        LOAD(uint8_t);
        break;
    case DT_U16:
        LOAD(uint16_t);
        break;
    case DT_U32:
        LOAD(uint32_t);
        break;
    case DT_U64:
        LOAD(uint64_t);
        break;
    case DT_F32:
    case DT_F64:
    case DT_F16:
    case DT_BF16:
        for (int64_t i = 0; i < n; i++) {
            double v;
            ref_load_d(&v, src, t, at + i * step, 1, 1);
            dst[i] = int_from_d(v);
        }
        break;
    case DT_NONE:
    case DT_COUNT:
        break;
    }
}

#define STORE(T, EXPR)              \
    for (int64_t i = 0; i < n; i++) \
    ((T *)dst)[at + i * step] = (T)(EXPR)

static int64_t clamp_d(double v, int64_t lo, int64_t hi)
{
    int64_t x = int_from_d(v);
    return x < lo ? lo : x > hi ? hi : x;
}

void ref_store_d(void *dst, enum dtype t, int64_t at, int64_t step, const double *src, int64_t n)
{
    switch (t) {
    case DT_F32:
        STORE(float, src[i]);
        break;
    case DT_F64:
        STORE(double, src[i]);
        break;
    case DT_F16:
        STORE(uint16_t, half_from_d(src[i]));
        break;
    case DT_BF16:
        STORE(uint16_t, bf16_from_d(src[i]));
        break;
    case DT_I8:
        STORE(int8_t, clamp_d(src[i], INT8_MIN, INT8_MAX));
        break;
    case DT_I16:
        STORE(int16_t, clamp_d(src[i], INT16_MIN, INT16_MAX));
        break;
    case DT_I32:
        STORE(int32_t, clamp_d(src[i], INT32_MIN, INT32_MAX));
        break;
    case DT_I64:
        STORE(int64_t, int_from_d(src[i]));
        break;
    case DT_U8:
        STORE(uint8_t, clamp_d(src[i], 0, UINT8_MAX));
        break;
    case DT_U16:
        STORE(uint16_t, clamp_d(src[i], 0, UINT16_MAX));
        break;
    case DT_U32:
        STORE(uint32_t, clamp_d(src[i], 0, UINT32_MAX));
        break;
    case DT_U64:
        STORE(uint64_t, !(src[i] > 0) ? 0 : src[i] >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)src[i]);
        break;
    case DT_BOOL:
        STORE(uint8_t, src[i] != 0);
        break;
    case DT_NONE:
    case DT_COUNT:
        break;
    }
}

void ref_store_i(void *dst, enum dtype t, int64_t at, int64_t step, const int64_t *src, int64_t n)
{
    switch (t) {
    case DT_F32:
        STORE(float, src[i]);
        break;
    case DT_F64:
        STORE(double, src[i]);
        break;
    case DT_F16:
        STORE(uint16_t, half_from_d((double)src[i]));
        break;
    case DT_BF16:
        STORE(uint16_t, bf16_from_d((double)src[i]));
        break;
    case DT_I8:
    case DT_U8:
        STORE(uint8_t, src[i]);
        break;
    case DT_I16:
    case DT_U16:
        STORE(uint16_t, src[i]);
        break;
    case DT_I32:
    case DT_U32:
        STORE(uint32_t, src[i]);
        break;
    case DT_I64:
    case DT_U64:
        STORE(int64_t, src[i]);
        break;
    case DT_BOOL:
        STORE(uint8_t, src[i] != 0);
        break;
    case DT_NONE:
    case DT_COUNT:
        break;
    }
}

static const struct host_rows *const families[] = {&ref_math, &ref_move, &ref_index, &ref_reduce, &ref_norm, &ref_conv,
    &ref_pool, &ref_gemm, &ref_attention, &ref_rnn, &ref_resize, &ref_einsum, &ref_signal, &ref_roi, /* */
    &ref_quant, &ref_select, &ref_feature, &ref_loss, &ref_random, &ref_grad_conv, &ref_grad_pool, &ref_grad_act,
    &ref_grad_sum, &ref_grad_norm, &ref_grad_move, &ref_grad_loss};

const struct host_kernel *ref_kernel(const struct node *node)
{
    for (size_t f = 0; f < YK_COUNT(families); f++)
        for (int i = 0; i < families[f]->n; i++) {
            const struct host_kernel *k = &families[f]->rows[i];
            if (!strcmp(k->op, node->op->name) && !strcmp(k->domain, node->op->domain))
                return k;
        }
    return NULL;
}

static yk_err ref_open(struct pool *pool, struct backend **out, struct yk_diag *why)
{
    struct host_rows tables[YK_COUNT(families)];
    for (size_t f = 0; f < YK_COUNT(families); f++)
        tables[f] = *families[f];
    return host_open(&backend_ref, "generic", tables, (int)YK_COUNT(families), pool, out, why);
}

const struct backend_ops backend_ref = HOST_OPS("ref", ref_open);
