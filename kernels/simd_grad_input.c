/* conv.phases: the gradient of the input of a convolution with strides. Inputs whose position has the same rest modulo
 * the stride meet the same taps: each such phase is a convolution of dY of stride 1, as a product of gathered patches
 * by the weights of its taps. A phase without taps is zeros. */
#include <string.h>

#include "kernels/simd_last.h"
#include "kernels/simd_weights.h"

#define ROWS_MOST 96
#define SLOT_BYTES (1 << 20)
#define STRIDE_MOST 8
#define TAPS_MOST 16 /* of an axis */

/* One axis of a phase: input first + i * stride meets output i + offset[t] through tap[t]. */
struct axis {
    int64_t first, count;
    int taps;
    int64_t tap[TAPS_MOST], offset[TAPS_MOST];
};

struct phase {
    struct axis a[2]; /* height, width */
    int64_t taps, pixels, lda;
    int64_t tile, tiles; /* tile: the first one of this phase */
    int64_t packed;      /* floats before its weights in a group */
};

struct plan {
    int64_t ic, oc; /* of a group */
    int64_t rows;   /* pixels of a tile */
    int n_phases;
    struct phase phases[STRIDE_MOST * STRIDE_MOST];
    int64_t tiles;
    int64_t patch_bytes, slot_bytes, packed; /* packed: floats of a group */
    int slots;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t round64(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Inputs y with (y + pad) % stride == rest. */
static void make_axis(const struct conv_dims *d, int s, int64_t rest, struct axis *a)
{
    int64_t stride = d->stride[s], before = d->pad_begin[s] - rest; /* positions in front of the input */
    int64_t i = before > 0 ? ceil_div(before, stride) : 0;
    *a = (struct axis){.first = i * stride - before};
    a->count = a->first < d->in[s] ? (d->in[s] - 1 - a->first) / stride + 1 : 0;
    for (int64_t k = 0; k < d->k[s]; k++)
        if (k * d->dilation[s] % stride == rest) {
            a->tap[a->taps] = k;
            a->offset[a->taps++] = i + (rest - k * d->dilation[s]) / stride;
        }
}

static void make_plan(const struct conv_dims *d, struct plan *p)
{
    const struct simd_isa *isa = simd_isa_best();
    memset(p, 0, sizeof(*p));
    p->ic = d->c / d->group;
    p->oc = d->oc / d->group;
    int64_t most = 1;
    for (int64_t y = 0; y < d->stride[1]; y++)
        for (int64_t x = 0; x < d->stride[2]; x++) {
            struct phase *f = &p->phases[p->n_phases++];
            make_axis(d, 1, y, &f->a[0]);
            make_axis(d, 2, x, &f->a[1]);
            f->taps = f->a[0].taps * f->a[1].taps;
            f->pixels = d->n * f->a[0].count * f->a[1].count;
            f->lda = f->taps * p->oc;
            f->lda += f->lda % 256 == 0 ? 16 : 0;
            f->packed = p->packed;
            p->packed += simd_packed(isa, f->taps * p->oc, p->ic);
            most = YK_MAX(most, f->lda);
        }
    int64_t row = (most + p->ic) * (int64_t)sizeof(float);
    p->rows = YK_MAX(YK_MIN(ROWS_MOST, SLOT_BYTES / row / 12 * 12), 12);
    p->patch_bytes = round64(p->rows * most * (int64_t)sizeof(float));
    p->slot_bytes = p->patch_bytes + round64(p->rows * p->ic * (int64_t)sizeof(float));
    for (int i = 0; i < p->n_phases; i++) {
        p->phases[i].tile = p->tiles;
        p->phases[i].tiles = ceil_div(p->phases[i].pixels, p->rows);
        p->tiles += p->phases[i].tiles;
    }
    p->slots = simd_last_slots(p->slot_bytes, p->tiles * d->group);
}

static bool dims_of(const struct op_ctx *c, struct conv_dims *d)
{
    if (c->in[0]->dtype != DT_F32 || c->graph->values[c->node->in[1]].kind != VALUE_WEIGHT ||
        op_conv_dims(c->node, &c->out[0], c->in[1], d, NULL) || d->spatial > 2)
        return false;
    conv_right_align(d);
    return true;
}

static bool claim(const struct op_ctx *c)
{
    struct conv_dims d;
    if (!dims_of(c, &d) || (d.stride[1] == 1 && d.stride[2] == 1))
        return false;
    for (int i = 1; i < 3; i++)
        if (d.stride[i] > STRIDE_MOST || d.k[i] > TAPS_MOST)
            return false;
    return d.group == 1 || d.c / d.group > 1 || d.oc / d.group > 1;
}

static int64_t packed_bytes(const struct conv_dims *d, const struct plan *p)
{
    return round64(d->group * p->packed * (int64_t)sizeof(float));
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    struct conv_dims d;
    struct plan p;
    if (!dims_of(c, &d))
        return;
    make_plan(&d, &p);
    f->workspace_bytes = simd_last_bytes(c->in[0]) + simd_last_bytes(&c->out[0]) + p.slots * p.slot_bytes;
    *(c->weights_vary ? &f->workspace_bytes : &f->packed_bytes) += packed_bytes(&d, &p);
}

/* Panel i of all groups: every tap to its phase. */
static void pack_panel(
    const struct conv_dims *d, const struct plan *p, const struct simd_weights *w, int64_t i, float *packed)
{
    float *to[TAPS_MOST * TAPS_MOST];
    int64_t panels = simd_weights_panels(w), group = i / panels, panel = i % panels;
    int64_t width = simd_weights_width(w, panel), first = panel * w->isa->nr;
    for (int q = 0; q < p->n_phases; q++) {
        const struct phase *f = &p->phases[q];
        float *base = packed + group * p->packed + f->packed + first * f->taps * p->oc;
        for (int y = 0, t = 0; y < f->a[0].taps; y++)
            for (int x = 0; x < f->a[1].taps; x++, t++)
                to[f->a[0].tap[y] * d->k[2] + f->a[1].tap[x]] = base + t * p->oc * width;
    }
    simd_weights_taps(w, group, panel, to);
}

static yk_err pack(const struct op_ctx *c, const void *const *in, void *packed, struct yk_diag *why)
{
    struct simd_weights w;
    struct plan p;
    struct conv_dims d;
    /* Phases depend on the weight's own sizes and attributes alone. */
    struct shape x = {.dtype = DT_F32, .rank = c->in[1]->rank};
    if (!in[1])
        return yk_fail(why, YK_INTERNAL, "the weights of a packed form are not fixed");
    simd_weights_of(c->node, c->in[1], in[1], &w);
    for (int i = 0; i < x.rank; i++)
        x.dims[i] = i == 0 ? 1 : i == 1 ? w.ic * w.groups : (int64_t)1 << 40;
    yk_err err = op_conv_dims(c->node, &x, c->in[1], &d, why);
    if (err)
        return err;
    conv_right_align(&d);
    d.in[1] = d.in[2] = 1;
    make_plan(&d, &p);
    for (int64_t i = 0; i < w.groups * simd_weights_panels(&w); i++)
        pack_panel(&d, &p, &w, i, packed);
    return YK_OK;
}

struct job {
    struct conv_dims d;
    struct plan p;
    const struct simd_isa *isa;
    const float *dy;
    float *dx;
    const float *b;
    struct simd_weights weights;
    float *to;
    struct simd_slots slots;
};

static void weights_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    pack_panel(&j->d, &j->p, &j->weights, i, j->to);
}

/* Pixels first.. of a phase: where they are in the input. */
struct walk {
    int64_t image, y, x; /* counted in the phase */
};

static struct walk walk_at(const struct phase *f, int64_t first)
{
    int64_t per = f->a[0].count * f->a[1].count;
    return (struct walk){first / per, first % per / f->a[1].count, first % f->a[1].count};
}

static void walk_on(struct walk *w, const struct phase *f)
{
    if (++w->x < f->a[1].count)
        return;
    w->x = 0;
    if (++w->y < f->a[0].count)
        return;
    w->y = 0;
    w->image++;
}

static void patches(const struct job *j, const struct phase *f, float *out, int64_t first, int64_t n, int64_t group)
{
    const struct conv_dims *d = &j->d;
    struct walk w = walk_at(f, first);
    size_t bytes = (size_t)j->p.oc * sizeof(float);
    for (int64_t i = 0; i < n; i++, out += f->lda, walk_on(&w, f)) {
        const float *dy = j->dy + w.image * d->out[1] * d->out[2] * d->oc + group * j->p.oc;
        float *to = out;
        for (int a = 0; a < f->a[0].taps; a++) {
            int64_t y = w.y + f->a[0].offset[a];
            for (int b = 0; b < f->a[1].taps; b++, to += j->p.oc) {
                int64_t x = w.x + f->a[1].offset[b];
                if (y < 0 || y >= d->out[1] || x < 0 || x >= d->out[2])
                    memset(to, 0, bytes);
                else
                    memcpy(to, dy + (y * d->out[2] + x) * d->oc, bytes);
            }
        }
    }
}

static void tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    const struct plan *p = &j->p;
    const struct conv_dims *d = &j->d;
    int64_t group = i / p->tiles, t = i % p->tiles;
    const struct phase *f = p->phases;
    while (t >= f->tile + f->tiles)
        f++;
    int64_t first = (t - f->tile) * p->rows, n = YK_MIN(p->rows, f->pixels - first);
    int slot = simd_last_take(&j->slots);
    float *rows = simd_last_slot(&j->slots, slot), *y = (float *)((char *)rows + p->patch_bytes);
    if (f->taps) {
        patches(j, f, rows, first, n, group);
        struct simd_gemm g = {.m = n,
            .n = p->ic,
            .k = f->taps * p->oc,
            .a = rows,
            .lda = f->lda,
            .b = j->b + group * p->packed + f->packed,
            .y = y,
            .ldy = p->ic};
        j->isa->gemm(&g);
    }
    struct walk w = walk_at(f, first);
    for (int64_t k = 0; k < n; k++, walk_on(&w, f)) {
        int64_t at =
            (w.image * d->in[1] + f->a[0].first + w.y * d->stride[1]) * d->in[2] + f->a[1].first + w.x * d->stride[2];
        float *dx = j->dx + at * d->c + group * p->ic;
        if (f->taps)
            memcpy(dx, y + k * p->ic, (size_t)p->ic * sizeof(float));
        else
            memset(dx, 0, (size_t)p->ic * sizeof(float));
    }
    simd_last_give(&j->slots, slot);
}

static yk_err run(struct host_call *c)
{
    struct job j = {.isa = simd_isa_best(), .b = c->packed};
    char *rest = c->workspace;
    yk_err err = op_conv_dims(c->node, &c->out[0].shape, &c->in[1].shape, &j.d, c->why);
    if (err)
        return err;
    conv_right_align(&j.d);
    make_plan(&j.d, &j.p);
    j.dy = simd_last_input(c, 0, &rest);
    j.dx = simd_last_output(c, 0, &rest);
    if (!c->packed) {
        simd_weights_of(c->node, &c->in[1].shape, c->in[1].data, &j.weights);
        j.b = j.to = (float *)rest;
        rest += packed_bytes(&j.d, &j.p);
        pool_run(c->pool, j.weights.groups * simd_weights_panels(&j.weights), weights_tile, &j);
    }
    simd_last_lend(&j.slots, rest, j.p.slot_bytes, j.p.slots);
    pool_run(c->pool, j.p.tiles * j.d.group, tile, &j);
    simd_last_output_end(c, 0, j.dx);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "ai.yoke",
        .op = "ConvGradInput",
        .kind = "conv.phases",
        .claim = claim,
        .sizes = sizes,
        .pack = pack,
        .run = run,
        .layout = HOST_ANY},
};
const struct host_rows simd_grad_input = {rows, (int)YK_COUNT(rows)};
