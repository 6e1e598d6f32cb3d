/* deconv.gemm: a transposed convolution whose kernel is its stride, so that taps do not meet: a product of the pixels
 * by the weights. With channels last, the taps of one row of the kernel lie side by side in the output, and the product
 * goes there; where all taps of a pixel are few columns, one product makes them in scratch and rows are copied out. */
#include <stdlib.h>
#include <string.h>

#include "kernels/simd.h"
#include "kernels/simd_last.h"

#define ROWS 96 /* input pixels of a tile */

struct plan {
    struct conv_dims d; /* right-aligned */
    bool whole;         /* all taps in one product */
    int64_t n, parts;   /* columns and number of products of a pixel */
    int64_t pixels, spans, tiles, bytes;
    int slots;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t round64(int64_t floats)
{
    return ceil_div(floats * (int64_t)sizeof(float), 64) * 64;
}

static bool make_plan(const struct node *n, const struct shape *x, const struct shape *w, struct plan *p)
{
    if (op_deconv_dims(n, x, w, &p->d, NULL) || p->d.spatial > 2 || p->d.group != 1)
        return false;
    conv_right_align(&p->d);
    struct conv_dims *d = &p->d;
    for (int i = 1; i < 3; i++)
        if (d->k[i] != d->stride[i] || d->dilation[i] != 1 || d->pad_begin[i] != 0 ||
            d->out[i] != d->in[i] * d->stride[i])
            return false;
    p->whole = d->k[1] * d->k[2] * d->oc <= simd_isa_best()->nr;
    p->n = (p->whole ? d->k[1] : 1) * d->k[2] * d->oc;
    p->parts = p->whole ? 1 : d->k[1];
    p->pixels = d->in[1] * d->in[2];
    p->spans = ceil_div(d->in[2], ROWS);
    p->tiles = d->n * d->in[1] * p->spans;
    p->bytes = p->whole ? round64(YK_MIN(ROWS, d->in[2]) * p->n) : 0;
    p->slots = p->whole ? simd_last_slots(p->bytes, p->tiles) : 0;
    return true;
}

static bool claim(const struct op_ctx *c)
{
    struct plan p;
    return simd_claim_f32(c) && c->graph->values[c->node->in[1]].kind == VALUE_WEIGHT &&
           make_plan(c->node, c->in[0], c->in[1], &p);
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    struct plan p;
    if (!make_plan(c->node, c->in[0], c->in[1], &p))
        return;
    f->packed_bytes = p.parts * round64(simd_packed(simd_isa_best(), p.d.c, p.n));
    f->workspace_bytes = round64(p.d.n * p.d.c * p.pixels) + round64(p.d.n * p.d.oc * p.d.out[1] * p.d.out[2]) +
                         round64(p.n) + p.slots * p.bytes;
}

/* Weights (ic, oc, taps) to rows of (taps, oc), then packed by product. */
static yk_err pack(const struct op_ctx *c, const void *const *in, void *packed, struct yk_diag *why)
{
    const struct simd_isa *isa = simd_isa_best();
    struct plan p;
    if (!in[1] || !make_plan(c->node, c->in[0], c->in[1], &p))
        return yk_fail(why, YK_INTERNAL, "the weights of a packed form are not fixed");
    int64_t taps = p.d.k[1] * p.d.k[2], row = taps * p.d.oc;
    float *all = yk_try_alloc((size_t)YK_MAX(p.d.c * row, 1), sizeof(float));
    if (!all)
        return yk_fail(why, YK_NOMEM, "no memory to pack weights");
    for (int64_t i = 0; i < p.d.c; i++)
        isa->transpose(all + i * row, p.d.oc, (const float *)in[1] + i * row, taps, p.d.oc, taps);
    for (int64_t part = 0; part < p.parts; part++)
        isa->pack((float *)((char *)packed + part * round64(simd_packed(isa, p.d.c, p.n))), all + part * p.n, p.d.c,
            p.n, row, false);
    free(all);
    return YK_OK;
}

struct job {
    struct host_call *c;
    const struct simd_isa *isa;
    struct plan p;
    const float *x, *bias; /* bias: of the columns of a product */
    float *y;
    struct simd_slots slots;
};

/* A span of one row of input pixels. */
static void tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    struct job *j = arg;
    const struct plan *p = &j->p;
    const struct conv_dims *d = &p->d;
    int64_t line = i / p->spans, first = i % p->spans * ROWS, m = YK_MIN(ROWS, d->in[2] - first);
    int64_t image = line / d->in[1], row = line % d->in[1], wide = d->k[2] * d->oc;
    struct simd_gemm g = {.m = m, .n = p->n, .k = d->c, .a = j->x + (line * d->in[2] + first) * d->c, .lda = d->c};
    float *y = j->y + ((image * d->out[1] + row * d->k[1]) * d->out[2] + first * d->k[2]) * d->oc;
    g.e.bias = j->bias;
    if (!p->whole) {
        for (int64_t part = 0; part < p->parts; part++) {
            g.b = (const float *)((const char *)j->c->packed + part * round64(simd_packed(j->isa, d->c, p->n)));
            g.y = y + part * d->out[2] * d->oc;
            g.ldy = wide;
            j->isa->gemm(&g);
        }
        return;
    }
    int slot = simd_last_take(&j->slots);
    g.b = j->c->packed;
    g.y = simd_last_slot(&j->slots, slot);
    g.ldy = p->n;
    j->isa->gemm(&g);
    for (int64_t a = 0; a < d->k[1]; a++)
        for (int64_t q = 0; q < m; q++)
            for (int64_t k = 0; k < wide; k++)
                y[a * d->out[2] * d->oc + q * wide + k] = g.y[q * p->n + a * wide + k];
    simd_last_give(&j->slots, slot);
}

static yk_err run(struct host_call *c)
{
    struct job j = {.c = c, .isa = simd_isa_best(), .x = c->in[0].data, .y = c->out[0].data};
    if (!make_plan(c->node, &c->in[0].shape, &c->in[1].shape, &j.p))
        return yk_fail(c->why, YK_INTERNAL, "a transposed convolution whose taps meet");
    const struct conv_dims *d = &j.p.d;
    char *rest = c->workspace;
    int64_t out = d->out[1] * d->out[2];
    bool turns = !(c->last_out & 1) && d->oc > 1 && out > 1;
    if (!(c->last_in & 1) && d->c > 1 && j.p.pixels > 1) {
        simd_last_turn(c->pool, d->n, (float *)rest, j.x, d->c, j.p.pixels, true);
        j.x = (float *)rest;
        rest += round64(d->n * d->c * j.p.pixels);
    }
    if (turns) {
        j.y = (float *)rest;
        rest += round64(d->n * d->oc * out);
    }
    if (c->n_in > 2 && c->in[2].data) {
        float *bias = (float *)rest;
        for (int64_t k = 0; k < j.p.n; k++)
            bias[k] = ((const float *)c->in[2].data)[k % d->oc];
        j.bias = bias;
        rest += round64(j.p.n);
    }
    if (j.p.whole)
        simd_last_lend(&j.slots, rest, j.p.bytes, j.p.slots);
    pool_run(c->pool, j.p.tiles, tile, &j);
    if (turns)
        simd_last_turn(c->pool, d->n, c->out[0].data, j.y, d->oc, out, false);
    return YK_OK;
}

static const struct host_kernel rows[] = {{.domain = "",
    .op = "ConvTranspose",
    .kind = "deconv.gemm",
    .claim = claim,
    .sizes = sizes,
    .pack = pack,
    .run = run,
    .layout = HOST_ANY}};
const struct host_rows simd_deconv = {rows, (int)YK_COUNT(rows)};
