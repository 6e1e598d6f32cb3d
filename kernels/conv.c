#include "kernels/conv.h"

#include "kernels/simd.h"
#include "kernels/simd_fn.h"

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
    *out = (struct conv_epilogue){.act = activation_of(n)};
}

bool conv_is_grad_input(const struct node *n)
{
    return !strcmp(n->op->name, "ConvGradInput");
}

static void turn(struct conv_dims *d)
{
    int64_t channels = d->c;
    d->c = d->oc;
    d->oc = channels;
    for (int i = 0; i < 3; i++) {
        int64_t in = d->in[i], reach = (d->k[i] - 1) * d->dilation[i];
        d->in[i] = d->out[i];
        d->out[i] = in;
        d->pad_begin[i] = reach - d->pad_begin[i]; /* both may be negative: what is cut off */
        d->pad_end[i] = reach - d->pad_end[i];
    }
}

yk_err conv_dims_of(const struct node *n, const struct shape *x, const struct shape *w, const struct shape *y,
    struct conv_dims *d, struct yk_diag *why)
{
    bool grad = conv_is_grad_input(n);
    yk_err err = op_conv_dims(n, grad ? y : x, w, d, why);
    if (err)
        return err;
    for (int i = 0; grad && i < 3; i++)
        if (d->stride[i] != 1)
            return yk_fail(why, YK_UNSUPPORTED, "the gradient of a convolution with strides is none");
    conv_right_align(d);
    if (grad)
        turn(d);
    return YK_OK;
}

/* Whether tap t of axis s reads the input for any output. */
static bool tap_reads(const struct conv_dims *d, int s, int64_t t)
{
    int64_t shift = t * d->dilation[s] - d->pad_begin[s];
    int64_t o = shift < 0 ? (-shift + d->stride[s] - 1) / d->stride[s] : 0;
    return o < d->out[s] && o * d->stride[s] + shift < d->in[s];
}

void conv_trim(struct conv_dims *d, int64_t first[3])
{
    for (int s = 0; s < 3; s++) {
        first[s] = 0;
        while (d->k[s] > 1 && !tap_reads(d, s, d->k[s] - 1)) {
            d->k[s]--;
            d->pad_end[s] -= d->dilation[s];
        }
        while (d->k[s] > 1 && !tap_reads(d, s, 0)) {
            d->k[s]--;
            d->pad_begin[s] -= d->dilation[s];
            first[s]++;
        }
    }
}

yk_err conv_setup(struct host_call *c, struct conv_dims *d, struct conv_epilogue *e)
{
    yk_err err = conv_dims_of(c->node, &c->in[0].shape, &c->in[1].shape, &c->out[0].shape, d, c->why);
    if (err)
        return err;
    conv_epilogue_of(c->node, e);
    if (conv_is_grad_input(c->node))
        return YK_OK;
    e->bias = c->n_in > 2 ? c->in[2].data : NULL;
    e->residual = c->n_in > 3 ? c->in[3].data : NULL;
    return YK_OK;
}

static inline float clamp(float v, float lo, float hi)
{
    v = v < lo ? lo : v;
    return v > hi ? hi : v;
}

static inline float gelu(float v)
{
    float s = v * 0.70710678118654752440f, e = simd_erf(s);
    e = s <= -4.0f ? -1 : e; /* exactly: v may be large */
    e = s >= 4.0f ? 1 : e;
    return v * (0.5f * (1 + e));
}

#define EACH(expr)                    \
    for (int64_t i = 0; i < n; i++) { \
        float v = y[i];               \
        y[i] = expr;                  \
    }                                 \
    break
SIMD_CLONES static void activate(const struct activation *f, float *y, int64_t n)
{
    float a = f->a, b = f->b;
    switch (f->kind) {
    case ACTIVATION_NONE:
        break;
    case ACTIVATION_RELU:
        EACH(v < 0 ? 0 : v);
    case ACTIVATION_CLIP:
        EACH(clamp(v, a, b));
    case ACTIVATION_LEAKY_RELU:
        EACH(v < 0 ? a * v : v);
    case ACTIVATION_HARD_SIGMOID:
        EACH(clamp(a * v + b, 0, 1));
    case ACTIVATION_HARD_SWISH:
        EACH(v * clamp(a * v + b, 0, 1));
    case ACTIVATION_SIGMOID:
        EACH(simd_sigmoid(v));
    case ACTIVATION_SILU:
        EACH(v / (1.0f + simd_exp(-v)));
    case ACTIVATION_GELU:
        EACH(gelu(v));
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
    activate(&e->act, y, n);
}

void conv_epilogue_bias(const struct conv_epilogue *e, float *y, const float *bias, int64_t step, int64_t n)
{
    if (bias && step == 1)
        add_row(y, bias, n);
    else if (bias)
        add_const(y, *bias, n);
    activate(&e->act, y, n);
}
