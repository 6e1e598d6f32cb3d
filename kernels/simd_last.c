#include "kernels/simd_last.h"

#include <math.h>
#include <string.h>

#include "kernels/simd.h"

#define SLOTS_BYTES (8 << 20)
#define BAND 256 /* pixels that a tile transposes */

int simd_last_slots(int64_t bytes, int64_t tiles)
{
    int64_t n = SLOTS_BYTES / YK_MAX(bytes, 1);
    n = YK_MIN(YK_MAX(n, 4), SIMD_SLOTS_MAX);
    return (int)YK_MAX(YK_MIN(n, tiles), 1);
}

int64_t simd_last_slots_most(int64_t bytes, int64_t tiles)
{
    int64_t most = YK_MAX(YK_MIN(SIMD_SLOTS_MAX * bytes, SLOTS_BYTES), 4 * bytes);
    return YK_MIN(most, bytes * YK_MAX(tiles, 1));
}

void simd_last_lend(struct simd_slots *s, void *base, int64_t bytes, int n)
{
    s->base = base;
    s->bytes = bytes;
    s->n = n;
    atomic_init(&s->free, n == 32 ? 0xffffffffu : (1u << n) - 1);
}

int simd_last_take(struct simd_slots *s)
{
    unsigned free = atomic_load_explicit(&s->free, memory_order_relaxed);
    for (;;) {
        if (!free) { /* more threads than pieces: wait for one */
            free = atomic_load_explicit(&s->free, memory_order_relaxed);
            continue;
        }
        int slot = __builtin_ctz(free);
        if (atomic_compare_exchange_weak_explicit(
                &s->free, &free, free & ~(1u << slot), memory_order_acquire, memory_order_relaxed))
            return slot;
    }
}

void simd_last_give(struct simd_slots *s, int slot)
{
    atomic_fetch_or_explicit(&s->free, 1u << slot, memory_order_release);
}

void simd_last_act(struct simd_epilogue *e, const struct activation *f)
{
    static const enum simd_act acts[] = {[ACTIVATION_NONE] = SIMD_LINEAR,
        [ACTIVATION_RELU] = SIMD_CLAMP,
        [ACTIVATION_CLIP] = SIMD_CLAMP,
        [ACTIVATION_LEAKY_RELU] = SIMD_LEAKY,
        [ACTIVATION_HARD_SIGMOID] = SIMD_HARD_SIGMOID,
        [ACTIVATION_HARD_SWISH] = SIMD_HARD_SWISH,
        [ACTIVATION_SIGMOID] = SIMD_SIGMOID,
        [ACTIVATION_SILU] = SIMD_SILU,
        [ACTIVATION_GELU] = SIMD_GELU};
    e->act = acts[f->kind];
    e->lo = f->kind == ACTIVATION_RELU ? 0 : f->a;
    e->hi = f->kind == ACTIVATION_RELU ? INFINITY : f->b;
}

static int64_t round64(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

bool simd_last_claim(const struct op_ctx *c, struct conv_dims *d)
{
    bool f32 = conv_is_grad_input(c->node) ? c->in[0]->dtype == DT_F32 : simd_claim_f32(c);
    return f32 && c->graph->values[c->node->in[1]].kind == VALUE_WEIGHT &&
           conv_dims_of(c->node, c->in[0], c->in[1], &c->out[0], d, NULL) == YK_OK && d->spatial <= 2;
}

int64_t simd_last_workspace(const struct op_ctx *c, const struct conv_dims *d)
{
    int64_t y = round64(d->n * d->oc * d->out[1] * d->out[2] * (int64_t)sizeof(float));
    return round64(d->n * d->c * d->in[1] * d->in[2] * (int64_t)sizeof(float)) + y + (c->n_in > 3 && c->in[3] ? y : 0);
}

struct turn {
    const struct simd_isa *isa;
    float *y;
    const float *x;
    int64_t channels, pixels, bands;
    bool to_last;
};

static void turn_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct turn *t = arg;
    int64_t image = i / t->bands * t->channels * t->pixels, first = i % t->bands * BAND;
    int64_t n = YK_MIN(BAND, t->pixels - first), inside = first * t->channels;
    if (t->to_last)
        t->isa->transpose(t->y + image + inside, t->channels, t->x + image + first, t->pixels, t->channels, n);
    else
        t->isa->transpose(t->y + image + first, t->pixels, t->x + image + inside, t->channels, n, t->channels);
}

void simd_last_turn(
    struct pool *pool, int64_t n, float *y, const float *x, int64_t channels, int64_t pixels, bool to_last)
{
    struct turn t = {simd_isa_best(), y, x, channels, pixels, (pixels + BAND - 1) / BAND, to_last};
    pool_run(pool, n * t.bands, turn_tile, &t);
}

int64_t simd_last_bytes(const struct shape *s)
{
    return round64(shape_bytes(s));
}

static int64_t pixels_of(const struct shape *s)
{
    int64_t n = 1;
    for (int i = 2; i < s->rank; i++)
        n *= s->dims[i];
    return n;
}

static bool is_last(const struct shape *s, uint64_t bits, int i)
{
    return (bits >> i & 1) || s->dims[1] <= 1 || pixels_of(s) <= 1;
}

const float *simd_last_input(struct host_call *c, int i, char **rest)
{
    const struct shape *s = &c->in[i].shape;
    float *copy = (float *)*rest;
    if (is_last(s, c->last_in, i))
        return c->in[i].data;
    *rest += simd_last_bytes(s);
    simd_last_turn(c->pool, s->dims[0], copy, c->in[i].data, s->dims[1], pixels_of(s), true);
    return copy;
}

static float *output(struct host_call *c, int i, bool there, char **rest)
{
    float *made = there ? c->out[i].data : (float *)*rest;
    if (!there)
        *rest += simd_last_bytes(&c->out[i].shape);
    return made;
}

float *simd_last_output(struct host_call *c, int i, char **rest)
{
    return output(c, i, is_last(&c->out[i].shape, c->last_out, i), rest);
}

void simd_last_output_end(struct host_call *c, int i, const float *made)
{
    const struct shape *s = &c->out[i].shape;
    if (made != c->out[i].data)
        simd_last_turn(c->pool, s->dims[0], c->out[i].data, made, s->dims[1], pixels_of(s), false);
}

float *simd_last_dense(struct host_call *c, int i, char **rest)
{
    return output(c, i, !(c->last_out >> i & 1), rest);
}

void simd_last_dense_end(struct host_call *c, int i, const float *made)
{
    const struct shape *s = &c->out[i].shape;
    if (made != c->out[i].data)
        simd_last_turn(c->pool, s->dims[0], c->out[i].data, made, s->dims[1], pixels_of(s), true);
}

static yk_err begin(struct host_call *c, struct simd_last *s, bool turn_x)
{
    struct conv_epilogue e;
    *s = (struct simd_last){.c = c, .isa = simd_isa_best(), .rest = c->workspace};
    yk_err err = conv_setup(c, &s->d, &e);
    if (err)
        return err;
    int64_t in = s->d.in[1] * s->d.in[2], out = s->d.out[1] * s->d.out[2];
    s->x = c->in[0].data;
    s->y = c->out[0].data;
    s->e = (struct simd_epilogue){.bias = e.bias, .add = e.residual, .ld_add = s->d.oc};
    simd_last_act(&s->e, &e.act);
    /* One channel, or one pixel, is the same either way. */
    bool x_turns = turn_x && !(c->last_in & 1) && s->d.c > 1 && in > 1, y_same = s->d.oc == 1 || out == 1;
    if (x_turns) {
        simd_last_turn(c->pool, s->d.n, (float *)s->rest, s->x, s->d.c, in, true);
        s->x = (float *)s->rest;
        s->rest += round64(s->d.n * s->d.c * in * (int64_t)sizeof(float));
    }
    int64_t bytes = round64(s->d.n * s->d.oc * out * (int64_t)sizeof(float));
    if (e.residual && !(c->last_in >> 3 & 1) && !y_same) {
        simd_last_turn(c->pool, s->d.n, (float *)s->rest, e.residual, s->d.oc, out, true);
        s->e.add = (float *)s->rest;
        s->rest += bytes;
    }
    if (!(c->last_out & 1) && !y_same) {
        s->copy_out = true;
        s->y = (float *)s->rest;
        s->rest += bytes;
    }
    return YK_OK;
}

yk_err simd_last_begin(struct host_call *c, struct simd_last *out)
{
    return begin(c, out, true);
}

yk_err simd_last_begin_as_is(struct host_call *c, struct simd_last *out)
{
    return begin(c, out, false);
}

void simd_last_end(struct simd_last *s)
{
    if (s->copy_out)
        simd_last_turn(s->c->pool, s->d.n, s->c->out[0].data, s->y, s->d.oc, s->d.out[1] * s->d.out[2], false);
}
