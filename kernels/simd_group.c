/* conv.depthwise, conv.group: convolutions in groups of as many channels in as out, one or a small power of two. A tile
 * is a band of rows and a run of channels: of a large image all channels, of a small one all rows. Bands come first,
 * since the products around it are cut by pixels too. */
#include "kernels/simd_last.h"

#define BAND_BYTES 192e3 /* of input that stays near while the channels of a band are done */
#define TILES_WANTED 16
#define ROWS_LEAST 4 /* of a band: it reads those of its neighbours too */
#define TILE_FLOPS 2e5

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t padded(int64_t c)
{
    return ceil_div(c, SIMD_PAD) * SIMD_PAD;
}

static bool square(const struct op_ctx *c, struct conv_dims *d)
{
    return simd_last_claim(c, d) && d->group > 1 && d->oc == d->c;
}

static bool claim_depthwise(const struct op_ctx *c)
{
    struct conv_dims d;
    return square(c, &d) && d.group == d.c;
}

/* What the kernels have vectors for; the others are products. */
static bool claim_group(const struct op_ctx *c)
{
    struct conv_dims d;
    if (!square(c, &d) || d.k[2] != 3 || d.dilation[2] != 1 || d.stride[2] > 2)
        return false;
    int64_t per = d.c / d.group;
    return per > 1 && per <= SIMD_GROUP_MOST && (per & (per - 1)) == 0;
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    struct conv_dims d;
    if (!simd_last_claim(c, &d))
        return;
    f->packed_bytes = padded(d.c) * d.k[1] * d.k[2] * (d.c / d.group) * (int64_t)sizeof(float);
    f->workspace_bytes = simd_last_workspace(c, &d);
}

/* The weight of output channel o for channel ic of its group and a tap; turned for the gradient of the input. */
static float weight_at(const float *w, bool turned, int64_t per, int64_t taps, int64_t o, int64_t ic, int64_t tap)
{
    return turned ? w[((o / per * per + ic) * per + o % per) * taps + taps - 1 - tap] : w[(o * per + ic) * taps + tap];
}

/* Weights (oc, per, ky, kx) to (oc / vl, ky, per, kx, vl). */
static yk_err pack(const struct op_ctx *c, const void *const *in, void *packed, struct yk_diag *why)
{
    const struct shape *w = c->in[1];
    int64_t vl = simd_isa_best()->vl, ch = w->dims[0], per = w->dims[1], kh = w->rank > 3 ? w->dims[2] : 1;
    int64_t kw = w->dims[w->rank - 1], taps = kh * kw;
    bool turned = conv_is_grad_input(c->node);
    float *out = packed;
    if (!in[1])
        return yk_fail(why, YK_INTERNAL, "the weights of a packed form are not fixed");
    for (int64_t v = 0; v < padded(ch); v += vl)
        for (int64_t ky = 0; ky < kh; ky++)
            for (int64_t ic = 0; ic < per; ic++)
                for (int64_t kx = 0; kx < kw; kx++)
                    for (int64_t o = v; o < v + vl; o++)
                        *out++ = o < ch ? weight_at(in[1], turned, per, taps, o, ic, ky * kw + kx) : 0;
    return YK_OK;
}

struct job {
    struct simd_last s;
    int64_t rows, bands, parts; /* rows of a band, bands of an image, parts of its channels */
};

static void make_grid(const struct conv_dims *d, struct job *j)
{
    int64_t per = d->c / d->group, blocks = ceil_div(d->c, SIMD_PAD), all = d->n * d->out[1];
    double line = (double)(d->in[2] * d->c * d->stride[1]) * sizeof(float);
    double flops = 2.0 * (double)(d->out[2] * d->c * per * d->k[1] * d->k[2]);
    double rows = BAND_BYTES / (line + 1), tiles = flops * (double)all / TILE_FLOPS; /* tiles that are worth it */
    int64_t want = tiles > TILES_WANTED ? TILES_WANTED : tiles < 1 ? 1 : (int64_t)tiles;
    j->rows = rows < 1e6 ? (int64_t)rows : 1000000;
    j->rows = YK_MIN(j->rows, ceil_div(d->out[1], YK_MAX(want / YK_MAX(d->n, 1), 1)));
    j->rows = YK_MIN(YK_MAX(j->rows, ROWS_LEAST), YK_MAX(d->out[1], 1));
    j->bands = YK_MAX(ceil_div(d->out[1], j->rows), 1);
    j->parts = YK_MAX(YK_MIN(ceil_div(want, YK_MAX(d->n * j->bands, 1)), blocks), 1);
}

static void tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    const struct simd_last *s = &j->s;
    const struct conv_dims *d = &s->d;
    int64_t part = i % j->parts, band = i / j->parts % j->bands, image = i / j->parts / j->bands;
    int64_t blocks = ceil_div(d->c, SIMD_PAD), out = image * d->out[1] * d->out[2] * d->c;
    struct simd_group g = {.h = d->in[1],
        .w = d->in[2],
        .c = d->c,
        .ow = d->out[2],
        .kh = d->k[1],
        .kw = d->k[2],
        .stride_h = d->stride[1],
        .stride_w = d->stride[2],
        .dil_h = d->dilation[1],
        .dil_w = d->dilation[2],
        .pad_top = d->pad_begin[1],
        .pad_left = d->pad_begin[2],
        .per = d->c / d->group,
        .x = s->x + image * d->in[1] * d->in[2] * d->c,
        .taps = s->c->packed,
        .y = s->y + out,
        .first_row = band * j->rows,
        .last_row = YK_MIN((band + 1) * j->rows, d->out[1]),
        .first = blocks * part / j->parts * SIMD_PAD,
        .last = YK_MIN(blocks * (part + 1) / j->parts * SIMD_PAD, d->c),
        .e = s->e};
    g.e.add = g.e.add ? g.e.add + out : NULL;
    s->isa->group(&g);
}

static yk_err run(struct host_call *c)
{
    struct job j;
    yk_err err = simd_last_begin(c, &j.s);
    if (err)
        return err;
    make_grid(&j.s.d, &j);
    pool_run(c->pool, j.s.d.n * j.bands * j.parts, tile, &j);
    simd_last_end(&j.s);
    return YK_OK;
}

#define ROWS(dom, name)                                                                                      \
    {.domain = dom,                                                                                          \
        .op = name,                                                                                          \
        .kind = "conv.depthwise",                                                                            \
        .claim = claim_depthwise,                                                                            \
        .sizes = sizes,                                                                                      \
        .pack = pack,                                                                                        \
        .run = run,                                                                                          \
        .layout = HOST_ANY},                                                                                 \
    {                                                                                                        \
        .domain = dom, .op = name, .kind = "conv.group", .claim = claim_group, .sizes = sizes, .pack = pack, \
        .run = run, .layout = HOST_ANY                                                                       \
    }
static const struct host_kernel rows[] = {
    ROWS("ai.yoke", "FusedConv"), ROWS("", "Conv"), ROWS("ai.yoke", "ConvGradInput")};
const struct host_rows simd_group = {rows, (int)YK_COUNT(rows)};
