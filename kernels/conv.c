#include "kernels/conv.h"

#include "kernels/simd.h"

#include <math.h>
#include <string.h>

static void shift(int64_t *v, int by, int64_t fill)
{
    for (int i = 2; i >= 0; i--)
        v[i] = i >= by ? v[i - by] : fill;
}

void conv_right_align(struct conv_dims *d)
{
    int by = 3 - d->spatial;
    shift(d->in, by, 1);
    shift(d->out, by, 1);
    shift(d->k, by, 1);
    shift(d->stride, by, 1);
    shift(d->dilation, by, 1);
    shift(d->pad_begin, by, 0);
    shift(d->pad_end, by, 0);
}

void conv_epilogue_of(const struct node *n, struct conv_epilogue *out)
{
    const char *kind = node_attr_s(n, "activation", "none");
    *out = (struct conv_epilogue){.activation = CONV_LINEAR, .lo = -INFINITY, .hi = INFINITY};
    if (!strcmp(kind, "relu")) {
        out->activation = CONV_RELU;
        out->lo = 0;
    } else if (!strcmp(kind, "clip")) {
        out->activation = CONV_CLIP;
        out->lo = node_attr_f(n, "min", -INFINITY);
        out->hi = node_attr_f(n, "max", INFINITY);
    }
}

yk_err conv_setup(struct host_call *c, struct conv_dims *d, struct conv_epilogue *e)
{
    yk_err err = op_conv_dims(c->node, &c->in[0].shape, &c->in[1].shape, d, c->why);
    if (err)
        return err;
    conv_right_align(d);
    conv_epilogue_of(c->node, e);
    e->bias = c->n_in > 2 ? c->in[2].data : NULL;
    e->residual = c->n_in > 3 ? c->in[3].data : NULL;
    return YK_OK;
}

SIMD_CLONES static void activate(const struct conv_epilogue *e, float *y, int64_t n)
{
    float lo = e->lo, hi = e->hi;
    if (e->activation == CONV_RELU) {
        for (int64_t i = 0; i < n; i++)
            y[i] = y[i] < 0 ? 0 : y[i];
    } else if (e->activation == CONV_CLIP) {
        for (int64_t i = 0; i < n; i++) {
            float v = y[i] < lo ? lo : y[i];
            y[i] = v > hi ? hi : v;
        }
    }
}

SIMD_CLONES static void add_const(float *restrict y, float b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += b;
}

SIMD_CLONES static void add_row(float *restrict y, const float *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += b[i];
}

void conv_epilogue_row(const struct conv_epilogue *e, float *y, int64_t oc, int64_t at, int64_t n)
{
    if (e->bias)
        add_const(y, e->bias[oc], n);
    if (e->residual)
        add_row(y, e->residual + at, n);
    activate(e, y, n);
}

void conv_epilogue_bias(const struct conv_epilogue *e, float *y, const float *bias, int64_t step, int64_t n)
{
    if (bias && step == 1)
        add_row(y, bias, n);
    else if (bias)
        add_const(y, *bias, n);
    activate(e, y, n);
}
