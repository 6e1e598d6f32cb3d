/* gradw.gemm: the gradient of a convolution's weights as a product of input patches by output gradients, summed over
 * all pixels. A unit is a block of rows (tap, channel) by a block of columns (output channel) for a part of the pixels;
 * it gathers its rows of the patches and adds SIMD_ROWS pixels at a time. Parts are added in their order at the end.
 * gradw.depthwise: one channel a group, channels are the lanes. */
#include <string.h>

#include "kernels/simd.h"
#include "kernels/simd_last.h"

#define ROWS 144
#define COLUMNS 256
#define UNITS_WANTED 16
#define PART_MIN 8 /* blocks of pixels */
#define TURN 16    /* columns that go to their place at a time */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t round64(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

struct plan {
    int64_t ic, oc, taps, m, n; /* of a group */
    int64_t pixels, blocks;     /* blocks of SIMD_ROWS pixels */
    int64_t rows, units_m, columns, units_n;
    int64_t parts, part; /* part: its blocks */
    int64_t ldn;
    bool in_place;
    int64_t sums_bytes, patch_bytes, slot_bytes;
    int slots;
};

static void make_plan(const struct conv_dims *d, struct plan *p)
{
    const struct simd_isa *isa = simd_isa_best();
    *p = (struct plan){.ic = d->c / d->group, .oc = d->oc / d->group, .taps = d->k[1] * d->k[2]};
    p->m = p->taps * p->ic;
    p->n = p->oc;
    p->pixels = d->n * d->out[1] * d->out[2];
    p->blocks = YK_MAX(ceil_div(p->pixels, SIMD_ROWS), 1);
    p->in_place = p->taps == 1;
    for (int i = 1; i < 3; i++)
        p->in_place = p->in_place && d->stride[i] == 1 && d->pad_begin[i] == 0 && d->pad_end[i] == 0;
    p->units_m = ceil_div(p->m, ROWS);
    p->rows = ceil_div(ceil_div(p->m, p->units_m), 12) * 12;
    p->units_m = ceil_div(p->m, p->rows);
    p->units_n = ceil_div(p->n, COLUMNS);
    p->columns = ceil_div(ceil_div(p->n, p->units_n), isa->nr) * isa->nr;
    p->units_n = ceil_div(p->n, p->columns);
    int64_t units = d->group * p->units_m * p->units_n;
    p->parts = YK_MAX(YK_MIN(ceil_div(UNITS_WANTED, units), p->blocks / PART_MIN), 1);
    p->part = ceil_div(p->blocks, p->parts);
    p->ldn = simd_packed(isa, 1, p->n);
    /* For the most parts: a smaller batch may have as many. */
    p->sums_bytes = round64(p->parts * d->group * p->m * p->ldn * (int64_t)sizeof(float));
    p->patch_bytes = p->in_place ? 0 : round64(SIMD_ROWS * p->rows * (int64_t)sizeof(float));
    p->slot_bytes = p->patch_bytes + round64(SIMD_ROWS * YK_MIN(p->columns, p->ldn) * (int64_t)sizeof(float));
    p->slot_bytes = YK_MAX(p->slot_bytes, round64(TURN * p->m * (int64_t)sizeof(float)));
    p->slots = simd_last_slots(p->slot_bytes, units * UNITS_WANTED);
}

static bool dims_of(const struct op_ctx *c, struct conv_dims *d)
{
    if (!simd_claim_f32(c) || op_conv_dims(c->node, c->in[0], &c->out[0], d, NULL) || d->spatial > 2)
        return false;
    conv_right_align(d);
    return true;
}

static bool claim(const struct op_ctx *c)
{
    struct conv_dims d;
    return dims_of(c, &d) && (d.group == 1 || d.c / d.group > 1 || d.oc / d.group > 1);
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    struct conv_dims d;
    struct plan p;
    int64_t first[3];
    if (!dims_of(c, &d))
        return;
    conv_trim(&d, first);
    make_plan(&d, &p);
    f->workspace_bytes = simd_last_bytes(c->in[0]) + simd_last_bytes(c->in[1]) + simd_last_bytes(&c->out[0]) +
                         p.sums_bytes + p.slots * p.slot_bytes;
}

struct job {
    const struct simd_isa *isa;
    struct conv_dims d; /* without taps that see padding only: their gradient is 0 */
    struct plan p;
    int64_t kh, kw, first[3]; /* of the kernel as it is */
    const float *x, *dy;
    float *sums, *dw;
    struct simd_slots slots;
};

/* Elements begin..end of a run of kw * ic that starts at pixel x0 of a line; zeros outside. */
static float *copy_run(const struct job *j, float *to, const float *line, int64_t x0, int64_t begin, int64_t end)
{
    int64_t ic = j->p.ic, lo = YK_MIN(YK_MAX(begin, -x0 * ic), end),
            hi = YK_MAX(YK_MIN(end, (j->d.in[2] - x0) * ic), lo);
    if (lo > begin)
        memset(to, 0, (size_t)(lo - begin) * sizeof(float));
    if (hi > lo)
        memcpy(to + (lo - begin), line + x0 * ic + lo, (size_t)(hi - lo) * sizeof(float));
    if (end > hi)
        memset(to + (hi - begin), 0, (size_t)(end - hi) * sizeof(float));
    return to + (end - begin);
}

/* Rows m0..m1 of (tap, channel) of n pixels from first on, a pixel after the other. */
static void patches(const struct job *j, float *to, int64_t group, int64_t first, int64_t n, int64_t m0, int64_t m1)
{
    const struct conv_dims *d = &j->d;
    int64_t ic = j->p.ic, per = d->out[1] * d->out[2];
    bool runs = d->group == 1 && d->dilation[2] == 1;
    int64_t step = runs ? d->k[2] * ic : ic; /* rows that come from one place */
    for (int64_t i = first; i < first + n; i++) {
        const float *x = j->x + i / per * d->in[1] * d->in[2] * d->c + group * ic;
        int64_t oy = i % per / d->out[2], x0 = i % d->out[2] * d->stride[2] - d->pad_begin[2];
        for (int64_t r = m0 / step * step; r < m1; r += step) {
            int64_t begin = YK_MAX(m0 - r, 0), end = YK_MIN(m1 - r, step), tap = r / ic;
            int64_t y = oy * d->stride[1] + tap / d->k[2] * d->dilation[1] - d->pad_begin[1];
            int64_t at = x0 + (runs ? 0 : tap % d->k[2] * d->dilation[2]);
            if (y < 0 || y >= d->in[1] || (!runs && (at < 0 || at >= d->in[2])))
                memset(to, 0, (size_t)(end - begin) * sizeof(float));
            else if (runs)
                copy_run(j, to, x + y * d->in[2] * d->c, at, begin, end);
            else
                memcpy(to, x + (y * d->in[2] + at) * d->c + begin, (size_t)(end - begin) * sizeof(float));
            to += end - begin;
        }
    }
}

static void unit_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    const struct plan *p = &j->p;
    const struct conv_dims *d = &j->d;
    int64_t m0 = i % p->units_m * p->rows, m1 = YK_MIN(m0 + p->rows, p->m);
    i /= p->units_m;
    int64_t n0 = i % p->units_n * p->columns, n1 = YK_MIN(n0 + p->columns, p->n);
    i /= p->units_n;
    int64_t group = i % d->group, part = i / d->group;
    int slot = simd_last_take(&j->slots);
    float *rows = simd_last_slot(&j->slots, slot), *b = (float *)((char *)rows + p->patch_bytes);
    float *y = j->sums + ((part * d->group + group) * p->m + m0) * p->ldn + n0;
    int64_t end = YK_MIN((part + 1) * p->part, p->blocks);
    for (int64_t k = part * p->part; k < end || k == part * p->part; k++) {
        int64_t first = YK_MIN(k * SIMD_ROWS, p->pixels), n = YK_MIN(SIMD_ROWS, p->pixels - first);
        struct simd_gemm g = {.m = m1 - m0,
            .n = n1 - n0,
            .k = n,
            .turned = true,
            .a = j->x + first * d->c + group * p->ic + m0,
            .lda = d->c,
            .b = b,
            .y = y,
            .ldy = p->ldn};
        if (!p->in_place) {
            patches(j, rows, group, first, n, m0, m1);
            g.a = rows;
            g.lda = m1 - m0;
        }
        j->isa->pack(b, j->dy + first * d->oc + group * p->oc + n0, n, n1 - n0, d->oc, false);
        g.e.add = k > part * p->part ? y : NULL;
        g.e.ld_add = p->ldn;
        j->isa->gemm(&g);
    }
    simd_last_give(&j->slots, slot);
}

SIMD_CLONES static void add(float *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void fold_piece(void *arg, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    int64_t all = j->d.group * j->p.m, ldn = j->p.ldn;
    for (int64_t part = 1; part < j->p.parts; part++)
        add(j->sums + begin * ldn, j->sums + (part * all + begin) * ldn, (end - begin) * ldn);
}

/* (tap, channel) rows of TURN columns to (output channel, channel, tap). */
static void turn_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    const struct plan *p = &j->p;
    int64_t bands = ceil_div(p->n, TURN), group = i / bands, first = i % bands * TURN, n = YK_MIN(TURN, p->n - first);
    const float *from = j->sums + group * p->m * p->ldn + first;
    int64_t stored = j->kh * j->kw;
    float *to = j->dw + (group * p->oc + first) * p->ic * stored;
    if (stored == 1) {
        j->isa->transpose(to, p->m, from, p->ldn, p->m, n);
        return;
    }
    int slot = simd_last_take(&j->slots);
    float *all = simd_last_slot(&j->slots, slot);
    j->isa->transpose(all, p->m, from, p->ldn, p->m, n);
    if (stored != p->taps)
        memset(to, 0, (size_t)(n * p->ic * stored) * sizeof(float));
    for (int64_t o = 0; o < n; o++) {
        if (stored == p->taps) {
            j->isa->transpose(to + o * p->m, p->taps, all + o * p->m, p->ic, p->taps, p->ic);
            continue;
        }
        for (int64_t t = 0; t < p->taps; t++) {
            int64_t y = j->first[1] + t / j->d.k[2], x = j->first[2] + t % j->d.k[2];
            float *at = to + o * p->ic * stored + y * j->kw + x;
            for (int64_t k = 0; k < p->ic; k++)
                at[k * stored] = all[o * p->m + t * p->ic + k];
        }
    }
    simd_last_give(&j->slots, slot);
}

static yk_err run(struct host_call *c)
{
    struct job j = {.isa = simd_isa_best()};
    char *rest = c->workspace;
    yk_err err = op_conv_dims(c->node, &c->in[0].shape, &c->out[0].shape, &j.d, c->why);
    if (err)
        return err;
    conv_right_align(&j.d);
    j.kh = j.d.k[1];
    j.kw = j.d.k[2];
    conv_trim(&j.d, j.first);
    make_plan(&j.d, &j.p);
    j.x = simd_last_input(c, 0, &rest);
    j.dy = simd_last_input(c, 1, &rest);
    j.dw = simd_last_dense(c, 0, &rest);
    j.sums = (float *)rest;
    simd_last_lend(&j.slots, rest + j.p.sums_bytes, j.p.slot_bytes, j.p.slots);
    int64_t units = j.p.units_m * j.p.units_n * j.d.group;
    pool_run(c->pool, units * j.p.parts, unit_tile, &j);
    if (j.p.parts > 1)
        host_split(c, j.d.group * j.p.m, j.p.ldn * j.p.parts / 8 + 1, fold_piece, &j);
    pool_run(c->pool, j.d.group * ceil_div(j.p.n, TURN), turn_tile, &j);
    simd_last_dense_end(c, 0, j.dw);
    return YK_OK;
}

/* ---- depthwise ---- */

#define LANES 64 /* channels of a unit */
#define DEPTH_PARTS 8

static bool claim_depthwise(const struct op_ctx *c)
{
    struct conv_dims d;
    return dims_of(c, &d) && d.group > 1 && d.group == d.c && d.oc == d.c;
}

static int64_t depth_bytes(const struct conv_dims *d)
{
    return round64(DEPTH_PARTS * d->k[1] * d->k[2] * ceil_div(d->c, LANES) * LANES * (int64_t)sizeof(double));
}

static void sizes_depthwise(const struct op_ctx *c, struct backend_form *f)
{
    struct conv_dims d;
    if (dims_of(c, &d))
        f->workspace_bytes =
            simd_last_bytes(c->in[0]) + simd_last_bytes(c->in[1]) + simd_last_bytes(&c->out[0]) + depth_bytes(&d);
}

struct depth_job {
    struct conv_dims d;
    const float *x, *dy;
    float *dw;
    double *sums; /* part, block of channels, tap, channel */
};

/* One row of outputs for one tap: n pixels, x step floats apart, dy c floats apart. */
SIMD_CLONES static void depth_row(double *restrict sum, const float *restrict x, int64_t step, const float *restrict dy,
    int64_t c, int64_t n, int64_t lanes)
{
    float s[LANES] = {0};
    if (lanes == LANES)
        for (int64_t i = 0; i < n; i++)
            for (int k = 0; k < LANES; k++)
                s[k] += x[i * step + k] * dy[i * c + k];
    else
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < lanes; k++)
                s[k] += x[i * step + k] * dy[i * c + k];
    for (int64_t k = 0; k < lanes; k++)
        sum[k] += (double)s[k];
}

static void depth_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct depth_job *j = arg;
    const struct conv_dims *d = &j->d;
    int64_t blocks = ceil_div(d->c, LANES), first = i % blocks * LANES, lanes = YK_MIN(LANES, d->c - first);
    int64_t part = i / blocks, rows = d->n * d->out[1], taps = d->k[1] * d->k[2];
    double *sums = j->sums + i * taps * LANES;
    memset(sums, 0, (size_t)(taps * LANES) * sizeof(*sums));
    for (int64_t r = rows * part / DEPTH_PARTS; r < rows * (part + 1) / DEPTH_PARTS; r++) {
        const float *x = j->x + r / d->out[1] * d->in[1] * d->in[2] * d->c + first;
        const float *dy = j->dy + r * d->out[2] * d->c + first;
        for (int64_t ky = 0; ky < d->k[1]; ky++) {
            int64_t y = r % d->out[1] * d->stride[1] + ky * d->dilation[1] - d->pad_begin[1];
            for (int64_t kx = 0; y >= 0 && y < d->in[1] && kx < d->k[2]; kx++) {
                int64_t shift = kx * d->dilation[2] - d->pad_begin[2], stride = d->stride[2];
                int64_t lo = shift < 0 ? (-shift + stride - 1) / stride : 0;
                int64_t hi = d->in[2] > shift ? YK_MIN((d->in[2] - shift - 1) / stride + 1, d->out[2]) : 0;
                if (lo < hi)
                    depth_row(sums + (ky * d->k[2] + kx) * LANES, x + (y * d->in[2] + lo * stride + shift) * d->c,
                        stride * d->c, dy + lo * d->c, d->c, hi - lo, lanes);
            }
        }
    }
}

static yk_err run_depthwise(struct host_call *c)
{
    struct depth_job j;
    char *rest = c->workspace;
    yk_err err = op_conv_dims(c->node, &c->in[0].shape, &c->out[0].shape, &j.d, c->why);
    if (err)
        return err;
    conv_right_align(&j.d);
    j.x = simd_last_input(c, 0, &rest);
    j.dy = simd_last_input(c, 1, &rest);
    j.dw = simd_last_dense(c, 0, &rest);
    j.sums = (double *)rest;
    int64_t blocks = ceil_div(j.d.c, LANES), taps = j.d.k[1] * j.d.k[2];
    pool_run(c->pool, blocks * DEPTH_PARTS, depth_tile, &j);
    for (int64_t ch = 0; ch < j.d.c; ch++)
        for (int64_t t = 0; t < taps; t++) {
            double sum = 0;
            for (int64_t part = 0; part < DEPTH_PARTS; part++)
                sum += j.sums[((part * blocks + ch / LANES) * taps + t) * LANES + ch % LANES];
            j.dw[ch * taps + t] = (float)sum;
        }
    simd_last_dense_end(c, 0, j.dw);
    return YK_OK;
}

#define ROW(its_kind, claims, ask, fn)                                                                           \
    {                                                                                                            \
        .domain = "ai.yoke", .op = "ConvGradWeight", .kind = its_kind, .claim = claims, .sizes = ask, .run = fn, \
        .layout = HOST_ANY                                                                                       \
    }
static const struct host_kernel rows[] = {
    ROW("gradw.depthwise", claim_depthwise, sizes_depthwise, run_depthwise),
    ROW("gradw.gemm", claim, sizes, run),
};
const struct host_rows simd_grad_weight = {rows, (int)YK_COUNT(rows)};
