#include "kernels/optim.h"

#include <math.h>

#define LANES 8

struct optim optim_default(enum optim_kind kind)
{
    struct optim o = {.kind = kind, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    if (kind == OPTIM_SGD)
        o.momentum = 0.9;
    else
        o.weight_decay = 0.01;
    return o;
}

static bool in_range(double x, double lo, double hi)
{
    return x >= lo && x < hi; /* false for NaN */
}

yk_err optim_check(const struct optim *o, struct yk_diag *why)
{
    if (!in_range(o->weight_decay, 0, 1e6))
        return yk_fail(why, YK_INVAL, "weight decay %g: from 0 to below 1e6", o->weight_decay);
    if (o->kind == OPTIM_SGD) {
        if (!in_range(o->momentum, 0, 1))
            return yk_fail(why, YK_INVAL, "momentum %g: from 0 to below 1", o->momentum);
        if (o->nesterov && o->momentum <= 0)
            return yk_fail(why, YK_INVAL, "Nesterov needs a momentum above 0");
        return YK_OK;
    }
    if (!in_range(o->beta1, 0, 1) || !in_range(o->beta2, 0, 1))
        return yk_fail(why, YK_INVAL, "betas %g and %g: from 0 to below 1", o->beta1, o->beta2);
    if (!(o->eps >= 0 && o->eps < 1))
        return yk_fail(why, YK_INVAL, "eps %g: from 0 to below 1", o->eps);
    return YK_OK;
}

int optim_slots(const struct optim *o)
{
    if (o->kind == OPTIM_ADAMW)
        return 2;
    return o->momentum != 0 ? 1 : 0;
}

const char *optim_slot_name(const struct optim *o, int slot)
{
    if (o->kind == OPTIM_SGD)
        return "momentum";
    return slot == 0 ? "exp_avg" : "exp_avg_sq";
}

/* torch.optim._functional._single_tensor_sgd: d = g + decay p; buf = momentum buf + d; d += momentum buf (Nesterov) or
 * d = buf; p -= lr d. */
static void sgd(const struct optim *o, double lr, float scale, float *restrict p, const float *restrict g,
    float *restrict buf, int64_t n)
{
    float decay = (float)o->weight_decay, momentum = (float)o->momentum, rate = (float)-lr;
    if (!buf) {
        for (int64_t i = 0; i < n; i++)
            p[i] = p[i] + rate * (g[i] * scale + decay * p[i]);
    } else if (o->nesterov) {
        for (int64_t i = 0; i < n; i++) {
            float d = g[i] * scale + decay * p[i];
            float b = buf[i] * momentum + d;
            buf[i] = b;
            p[i] = p[i] + rate * (d + momentum * b);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            float b = buf[i] * momentum + (g[i] * scale + decay * p[i]);
            buf[i] = b;
            p[i] = p[i] + rate * b;
        }
    }
}

/* torch.optim.adamw._single_tensor_adamw. */
static void adamw(const struct optim *o, double lr, int64_t step, float scale, float *restrict p,
    const float *restrict g, float *restrict avg, float *restrict sq, int64_t n)
{
    double correction1 = 1 - pow(o->beta1, (double)step), correction2 = 1 - pow(o->beta2, (double)step);
    float keep = (float)(1 - lr * o->weight_decay), beta1 = (float)o->beta1, beta2 = (float)o->beta2;
    float new1 = (float)(1 - o->beta1), new2 = (float)(1 - o->beta2), eps = (float)o->eps;
    float root2 = (float)sqrt(correction2), rate = (float)-(lr / correction1);
    for (int64_t i = 0; i < n; i++) {
        float d = g[i] * scale;
        float m = avg[i] * beta1 + new1 * d;
        float v = sq[i] * beta2 + new2 * d * d;
        float denominator = sqrtf(v) / root2 + eps;
        avg[i] = m;
        sq[i] = v;
        p[i] = p[i] * keep + rate * m / denominator;
    }
}

void optim_step(const struct optim *o, double lr, int64_t step, float scale, float *p, const float *g,
    float *const *slots, int64_t n)
{
    if (o->kind == OPTIM_SGD)
        sgd(o, lr, scale, p, g, optim_slots(o) ? slots[0] : NULL, n);
    else
        adamw(o, lr, step, scale, p, g, slots[0], slots[1], n);
}

double optim_square_sum_block(const float *g, int64_t n)
{
    double lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            lane[k] += (double)g[i + k] * (double)g[i + k];
    for (int k = 0; i < n; i++, k++)
        lane[k] += (double)g[i] * (double)g[i];
    for (int k = 0; k < LANES; k++)
        sum += lane[k];
    return sum;
}

double optim_square_sum(const float *g, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += OPTIM_BLOCK)
        sum += optim_square_sum_block(g + i, YK_MIN(n - i, OPTIM_BLOCK));
    return sum;
}

float optim_clip_scale(double clip_norm, double norm)
{
    if (clip_norm <= 0)
        return 1;
    double scale = clip_norm / (norm + 1e-6);
    return scale < 1 ? (float)scale : 1; /* a norm that is NaN was found before, in the loss */
}

void optim_add(float *restrict acc, const float *restrict g, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] += g[i];
}

double optim_lr(const struct optim_schedule *s, int64_t step)
{
    if (step < s->warmup)
        return s->lr * (double)(step + 1) / (double)s->warmup;
    int64_t at = step - YK_MAX(s->warmup, 0), total = YK_MAX(s->total - YK_MAX(s->warmup, 0), 1);
    switch (s->curve) {
    case OPTIM_STEP:
        return s->lr * pow(s->gamma, (double)(at / YK_MAX(s->every, 1)));
    case OPTIM_COSINE:
        return s->floor + (s->lr - s->floor) * (1 + cos(M_PI * (double)YK_MIN(at, total) / (double)total)) / 2;
    default:
        return s->lr;
    }
}
