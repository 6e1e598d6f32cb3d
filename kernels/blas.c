/* Contractions in f32 on OpenBLAS, which is set to one thread and called once per tile; our pool spreads the tiles.
 *
 * A form's bits follow from the sizes and strides of each sgemm call, and those from the op's shape: the grid below
 * never asks for the number of threads. Each image of a convolution is a product of its own, so a sample does not
 * depend on its neighbours there. OpenBLAS packs operands, so their alignment does not matter (tests check it).
 *
 * Conv is im2col + sgemm over chunks of output pixels, so that the patch matrix stays near the cache; a 1x1 kernel of
 * stride 1 reads the input in place. */
#include <cblas.h>

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "kernels/blas.h"
#include "kernels/conv.h"
#include "kernels/iter.h"
#include "kernels/simd.h"

#define CHUNK_BYTES (2 << 20) /* patch matrix of one chunk */
#define CHUNK_MIN 64          /* output pixels */
#define TILE_FLOPS 4e6        /* about 50 us */
#define TILES_MAX 16          /* of one product: enough for the threads of a phone or a desktop */

/* How a product of m x n is cut into tiles. */
struct grid {
    int64_t m, n;   /* whole */
    int64_t tm, tn; /* of a tile */
    int64_t nm, nn; /* tiles */
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static struct grid grid_of(int64_t m, int64_t n, int64_t k)
{
    struct grid g = {.m = m, .n = n};
    double want = 2.0 * (double)m * (double)n * (double)k / TILE_FLOPS;
    int64_t tiles = want > TILES_MAX ? TILES_MAX : want < 1 ? 1 : (int64_t)want;
    /* Columns first: a tile that has all rows needs its own patches only. */
    g.nn = YK_MIN(tiles, YK_MAX(n / 96, 1));
    g.nm = YK_MIN(ceil_div(tiles, g.nn), YK_MAX(m / 64, 1));
    g.tn = ceil_div(ceil_div(n, g.nn), 16) * 16;
    g.tm = ceil_div(ceil_div(m, g.nm), 16) * 16;
    g.nn = ceil_div(n, g.tn);
    g.nm = ceil_div(m, g.tm);
    return g;
}

struct tile {
    int64_t m0, n0, m, n;
};

static struct tile tile_of(const struct grid *g, int64_t i)
{
    struct tile t = {.m0 = i / g->nn * g->tm, .n0 = i % g->nn * g->tn};
    t.m = YK_MIN(g->tm, g->m - t.m0);
    t.n = YK_MIN(g->tn, g->n - t.n0);
    return t;
}

/* sgemm wants int sizes; shapes beyond that are not claimed. */
static void product(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
    const float *b, int64_t ldb, float *y, int64_t ldy)
{
    if (k == 0) {
        for (int64_t i = 0; i < m; i++)
            memset(y + i * ldy, 0, (size_t)n * sizeof(float));
        return;
    }
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k,
        alpha, a, (int)lda, b, (int)ldb, 0, y, (int)ldy);
}

/* ---- Conv ---- */

struct conv_plan {
    struct conv_dims d;
    int64_t rows, k, pixels; /* rows: output channels of a group; k: taps of a group */
    int64_t chunk;           /* output pixels at a time */
    bool direct;             /* the input is the patch matrix */
};

static void plan_conv(const struct conv_dims *d, struct conv_plan *p)
{
    *p = (struct conv_plan){.d = *d, .rows = d->oc / d->group};
    p->k = d->c / d->group * d->k[0] * d->k[1] * d->k[2];
    p->pixels = d->out[0] * d->out[1] * d->out[2];
    p->direct = true;
    for (int i = 0; i < 3; i++)
        p->direct = p->direct && d->k[i] == 1 && d->stride[i] == 1 && d->pad_begin[i] == 0 && d->pad_end[i] == 0;
    int64_t most = YK_MAX(CHUNK_BYTES / (int64_t)sizeof(float) / (p->k * d->group), CHUNK_MIN);
    int64_t chunks = p->direct ? 1 : YK_MAX(ceil_div(p->pixels, most), 1);
    p->chunk = chunks == 1 ? p->pixels : ceil_div(ceil_div(p->pixels, chunks), 16) * 16;
}

struct conv_job {
    struct host_call *c;
    struct conv_plan p;
    struct conv_epilogue e;
    struct grid grid;
    int64_t image, first, count; /* of the chunk */
    float *patches;
    bool own_patches; /* a tile makes the patches of its columns */
};

/* Patches of one tap (row r of the matrix) for output pixels [first, first + n). */
static void patch_row(const struct conv_plan *p, const float *x, int64_t r, int64_t first, int64_t n, float *out)
{
    const struct conv_dims *d = &p->d;
    int64_t taps = d->k[0] * d->k[1] * d->k[2], ch = r / taps, tap = r % taps;
    int64_t kc = tap % d->k[2], kb = tap / d->k[2] % d->k[1], ka = tap / d->k[2] / d->k[1];
    int64_t stride = d->stride[2], shift = kc * d->dilation[2] - d->pad_begin[2];
    x += ch * d->in[0] * d->in[1] * d->in[2];
    while (n > 0) {
        int64_t col = first % d->out[2], line = first / d->out[2], run = YK_MIN(d->out[2] - col, n);
        int64_t a = line / d->out[1] * d->stride[0] + ka * d->dilation[0] - d->pad_begin[0];
        int64_t b = line % d->out[1] * d->stride[1] + kb * d->dilation[1] - d->pad_begin[1];
        if (a < 0 || a >= d->in[0] || b < 0 || b >= d->in[1]) {
            memset(out, 0, (size_t)run * sizeof(float));
        } else {
            const float *from = x + (a * d->in[1] + b) * d->in[2];
            /* Columns lo..hi of this run lie inside the input. */
            int64_t lo = shift < 0 ? (-shift + stride - 1) / stride : 0;
            int64_t hi = d->in[2] > shift ? (d->in[2] - shift - 1) / stride + 1 : 0;
            lo = YK_MIN(YK_MAX(lo - col, 0), run);
            hi = YK_MAX(YK_MIN(hi - col, run), lo);
            for (int64_t i = 0; i < lo; i++)
                out[i] = 0;
            const float *at = from + (col + lo) * stride + shift;
            if (stride == 1)
                memcpy(out + lo, at, (size_t)(hi - lo) * sizeof(float));
            else
                for (int64_t i = 0; i < hi - lo; i++)
                    out[lo + i] = at[i * stride];
            for (int64_t i = hi; i < run; i++)
                out[i] = 0;
        }
        out += run;
        first += run;
        n -= run;
    }
}

static const float *group_input(const struct conv_job *j, int64_t group)
{
    const struct conv_dims *d = &j->p.d;
    int64_t plane = d->in[0] * d->in[1] * d->in[2];
    return (const float *)j->c->in[0].data + (j->image * d->c + group * (d->c / d->group)) * plane;
}

static void patch_piece(void *arg, int64_t begin, int64_t end)
{
    const struct conv_job *j = arg;
    for (int64_t r = begin; r < end; r++)
        patch_row(&j->p, group_input(j, 0), r, j->first, j->count, j->patches + r * j->count);
}

static void conv_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct conv_job *j = arg;
    const struct conv_plan *p = &j->p;
    int64_t tiles = j->grid.nm * j->grid.nn, group = i / tiles;
    struct tile t = tile_of(&j->grid, i % tiles);
    int64_t oc = group * p->rows + t.m0;
    const float *w = (const float *)j->c->in[1].data + oc * p->k, *b;
    int64_t at = (j->image * p->d.oc + oc) * p->pixels + j->first + t.n0, ldb;
    float *y = (float *)j->c->out[0].data + at;
    if (p->direct) {
        b = group_input(j, group) + t.n0;
        ldb = p->pixels;
    } else if (j->own_patches) {
        /* The tile's columns as a dense block of the workspace. */
        float *block = j->patches + (group * j->count + t.n0) * p->k;
        for (int64_t r = 0; r < p->k; r++)
            patch_row(p, group_input(j, group), r, j->first + t.n0, t.n, block + r * t.n);
        b = block;
        ldb = t.n;
    } else {
        b = j->patches + t.n0;
        ldb = j->count;
    }
    product(false, false, t.m, t.n, p->k, 1, w, p->k, b, ldb, y, p->pixels);
    for (int64_t m = 0; m < t.m; m++)
        conv_epilogue_row(&j->e, y + m * p->pixels, oc + m, at + m * p->pixels, t.n);
}

static yk_err run_conv(struct host_call *c)
{
    struct conv_job j = {.c = c, .patches = c->workspace};
    struct conv_dims d;
    yk_err err = conv_setup(c, &d, &j.e);
    if (err)
        return err;
    plan_conv(&d, &j.p);
    for (j.image = 0; j.image < d.n; j.image++)
        for (j.first = 0; j.first < j.p.pixels; j.first += j.p.chunk) {
            j.count = YK_MIN(j.p.chunk, j.p.pixels - j.first);
            j.grid = grid_of(j.p.rows, j.count, j.p.k);
            if (d.group > 1) /* groups are tiles already: each makes its own patches */
                j.grid = (struct grid){j.p.rows, j.count, j.p.rows, j.count, 1, 1};
            j.own_patches = j.grid.nm == 1;
            if (!j.p.direct && !j.own_patches)
                host_split(c, j.p.k, YK_MAX(j.count / 4, 1), patch_piece, &j);
            pool_run(c->pool, d.group * j.grid.nm * j.grid.nn, conv_tile, &j);
        }
    return YK_OK;
}

static bool small_enough(const struct op_ctx *c)
{
    for (int i = 0; i < c->n_in; i++)
        for (int d = 0; c->in[i] && d < c->in[i]->rank; d++)
            if (c->in[i]->dims[d] > INT32_MAX)
                return false;
    return true;
}

/* All but depthwise: products with one channel of input have nothing to win. */
static bool claim_conv(const struct op_ctx *c)
{
    struct conv_dims d;
    if (!simd_claim_f32(c) || !small_enough(c) || op_conv_dims(c->node, c->in[0], c->in[1], &d, NULL))
        return false;
    int64_t k = d.c / d.group * d.k[0] * d.k[1] * d.k[2], pixels = d.out[0] * d.out[1] * d.out[2];
    return k <= INT32_MAX && pixels <= INT32_MAX && (d.group == 1 || d.c / d.group > 1);
}

static void sizes_conv(const struct op_ctx *c, struct backend_form *f)
{
    struct conv_dims d;
    struct conv_plan p;
    if (op_conv_dims(c->node, c->in[0], c->in[1], &d, NULL))
        return;
    conv_right_align(&d);
    plan_conv(&d, &p);
    if (!p.direct)
        f->workspace_bytes = d.group * p.k * p.chunk * (int64_t)sizeof(float);
}

/* ---- Gemm, MatMul ---- */

struct gemm_job {
    struct host_call *c;
    bool ta, tb;
    int64_t k, lda, ldb;
    float alpha, beta;
    struct conv_epilogue e;
    struct grid grid;
    const struct shape *bias; /* NULL: none */
    float *scaled;            /* beta * bias, NULL: as it is */
    struct iter batch;        /* MatMul: out, a, b over the leading axes */
};

static void gemm_bias_row(const struct gemm_job *j, float *y, int64_t m, int64_t n0, int64_t n)
{
    const float *bias = j->bias ? (j->scaled ? j->scaled : (const float *)j->c->in[2].data) : NULL;
    int64_t step = 0;
    if (bias) {
        int64_t cols = j->bias->rank ? j->bias->dims[j->bias->rank - 1] : 1;
        bool many = j->bias->rank >= 2 && j->bias->dims[j->bias->rank - 2] > 1;
        step = cols > 1 ? 1 : 0;
        bias += (many ? m * cols : 0) + (step ? n0 : 0);
    }
    conv_epilogue_bias(&j->e, y, bias, step, n);
}

static void gemm_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct gemm_job *j = arg;
    struct tile t = tile_of(&j->grid, i);
    const float *a = (const float *)j->c->in[0].data + (j->ta ? t.m0 : t.m0 * j->lda);
    const float *b = (const float *)j->c->in[1].data + (j->tb ? t.n0 * j->ldb : t.n0);
    float *y = (float *)j->c->out[0].data + t.m0 * j->grid.n + t.n0;
    if (t.m == 1 && j->grid.m == 1 && j->k > 0 && (!j->ta || j->lda == 1))
        cblas_sgemv(CblasRowMajor, j->tb ? CblasNoTrans : CblasTrans, (int)(j->tb ? t.n : j->k),
            (int)(j->tb ? j->k : t.n), j->alpha, b, (int)j->ldb, a, 1, 0, y, 1);
    else
        product(j->ta, j->tb, t.m, t.n, j->k, j->alpha, a, j->lda, b, j->ldb, y, j->grid.n);
    for (int64_t m = 0; m < t.m; m++)
        gemm_bias_row(j, y + m * j->grid.n, t.m0 + m, t.n0, t.n);
}

static void sizes_gemm(const struct op_ctx *c, struct backend_form *f)
{
    if (c->n_in > 2 && c->in[2] && node_attr_f(c->node, "beta", 1) != 1)
        f->workspace_bytes = shape_bytes(c->in[2]);
}

static yk_err run_gemm(struct host_call *c)
{
    const struct shape *a = &c->in[0].shape, *b = &c->in[1].shape, *y = &c->out[0].shape;
    struct gemm_job j = {.c = c, .ta = node_attr_i(c->node, "transA", 0), .tb = node_attr_i(c->node, "transB", 0)};
    int64_t n = y->dims[y->rank - 1], m = 1;
    for (int d = 0; d < y->rank - 1; d++)
        m *= y->dims[d];
    j.k = a->dims[j.ta ? 0 : a->rank - 1];
    j.lda = YK_MAX(a->dims[a->rank - 1], 1);
    j.ldb = YK_MAX(b->dims[1], 1);
    j.alpha = node_attr_f(c->node, "alpha", 1);
    j.beta = node_attr_f(c->node, "beta", 1);
    conv_epilogue_of(c->node, &j.e);
    if (c->n_in > 2 && c->in[2].data && j.beta != 0) {
        j.bias = &c->in[2].shape;
        if (j.beta != 1) {
            j.scaled = c->workspace;
            for (int64_t i = 0, count = tensor_count(&c->in[2]); i < count; i++)
                j.scaled[i] = j.beta * ((const float *)c->in[2].data)[i];
        }
    }
    j.grid = grid_of(m, n, j.k);
    pool_run(c->pool, j.grid.nm * j.grid.nn, gemm_tile, &j);
    return YK_OK;
}

static bool claim_gemm(const struct op_ctx *c)
{
    int64_t rows = 1;
    for (int d = 0; d < c->in[0]->rank - 1; d++)
        rows *= c->in[0]->dims[d];
    return simd_claim_f32(c) && small_enough(c) && rows <= INT32_MAX;
}

static void matmul_piece(void *arg, int64_t begin, int64_t end)
{
    const struct gemm_job *j = arg;
    int64_t at[3], m = j->grid.m, n = j->grid.n;
    for (int64_t i = begin; i < end; i++) {
        iter_at(&j->batch, i / j->batch.inner, at);
        int64_t pos = i % j->batch.inner;
        const float *a = (const float *)j->c->in[0].data + (at[1] + pos * iter_step(&j->batch, 1)) * m * j->k;
        const float *b = (const float *)j->c->in[1].data + (at[2] + pos * iter_step(&j->batch, 2)) * j->k * n;
        product(false, false, m, n, j->k, 1, a, YK_MAX(j->k, 1), b, n, (float *)j->c->out[0].data + i * m * n, n);
    }
}

static yk_err run_matmul(struct host_call *c)
{
    struct shape a = c->in[0].shape, b = c->in[1].shape, y = c->out[0].shape;
    struct gemm_job j = {.c = c, .alpha = 1};
    int64_t m = a.rank > 1 ? a.dims[a.rank - 2] : 1, n = b.rank > 1 ? b.dims[b.rank - 1] : 1;
    j.k = a.dims[a.rank - 1];
    j.lda = YK_MAX(j.k, 1);
    j.ldb = n;
    y.rank -= (a.rank > 1) + (b.rank > 1);
    a.rank = a.rank > 2 ? a.rank - 2 : 0;
    b.rank = b.rank > 2 ? b.rank - 2 : 0;
    int64_t products = shape_count(&y);
    if (shape_count(&b) == 1) {
        /* One right side: all rows are one product. */
        j.grid = grid_of(products * m, n, j.k);
        pool_run(c->pool, j.grid.nm * j.grid.nn, gemm_tile, &j);
        return YK_OK;
    }
    const struct shape *operands[] = {&y, &a, &b};
    iter_broadcast(&j.batch, operands, 3);
    j.grid = (struct grid){.m = m, .n = n};
    double ns = 2.0 * (double)m * (double)n * (double)j.k / 50 + 100;
    host_split(c, products, ns > 1e9 ? 1000000000 : (int64_t)ns, matmul_piece, &j);
    return YK_OK;
}

static bool claim_matmul(const struct op_ctx *c)
{
    return simd_claim_f32(c) && small_enough(c) && shape_count(c->in[0]) <= INT32_MAX;
}

static const struct host_kernel rows[] = {
    {.domain = "", .op = "Conv", .kind = "conv.im2col", .claim = claim_conv, .sizes = sizes_conv, .run = run_conv},
    {.domain = "ai.yoke",
        .op = "FusedConv",
        .kind = "conv.im2col",
        .claim = claim_conv,
        .sizes = sizes_conv,
        .run = run_conv},
    {.domain = "", .op = "Gemm", .kind = "gemm", .claim = claim_gemm, .sizes = sizes_gemm, .run = run_gemm},
    {.domain = "ai.yoke", .op = "FusedGemm", .kind = "gemm", .claim = claim_gemm, .sizes = sizes_gemm, .run = run_gemm},
    {.domain = "", .op = "MatMul", .kind = "matmul", .claim = claim_matmul, .run = run_matmul},
};

/* "blas-0.3.21-Zen": from "OpenBLAS 0.3.21 ..." and the core that OpenBLAS picked. */
static void isa_name(char *out, size_t size)
{
    const char *config = openblas_get_config(), *core = openblas_get_corename();
    const char *v = config ? strpbrk(config, "0123456789") : NULL;
    char version[24];
    size_t n = 0;
    while (v && n + 1 < sizeof(version) && (isdigit((unsigned char)v[n]) || v[n] == '.')) {
        version[n] = v[n];
        n++;
    }
    version[n] = 0;
    snprintf(out, size, "blas-%s-%.20s", n ? version : "unknown", core ? core : "unknown");
}

static yk_err blas_open(struct pool *pool, struct backend **out, struct yk_diag *why)
{
    const struct host_rows tables[] = {{rows, (int)YK_COUNT(rows)}, blas_attention, blas_deconv, blas_rnn};
    char isa[BACKEND_FORM_MAX];
    openblas_set_num_threads(1);
    isa_name(isa, sizeof(isa));
    return host_open(&backend_blas, isa, tables, (int)YK_COUNT(tables), pool, out, why);
}

const struct backend_ops backend_blas = HOST_OPS("blas", blas_open);
