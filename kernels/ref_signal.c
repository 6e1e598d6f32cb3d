/* DFT, STFT, the windows and MelWeightMatrix. Transforms are plain sums with a table of roots of unity. */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

#define TAU 6.283185307179586476925286766559

/* A transform of lines: n points in, `bins` points out. */
struct dft_job {
    struct host_call *c;
    int64_t n, bins, inner;      /* inner: elements between two points of a line, in and out */
    int64_t points, parts;       /* of the input: points of a line, numbers of a point */
    int64_t step, frames;        /* STFT: of a signal; else 0 and 1 */
    double scale, *roots, *line; /* roots: n pairs; line: n pairs for each line */
    const double *window;        /* NULL: none */
};

/* roots[k] = exp(sign * i * tau * k / n), with true zeros at the quarters. */
static void make_roots(double *roots, int64_t n, double sign)
{
    for (int64_t k = 0; k < n; k++) {
        double a = TAU * (double)k / (double)n;
        roots[2 * k] = 4 * k == n || 4 * k == 3 * n ? 0 : cos(a);
        roots[2 * k + 1] = 2 * k == n || k == 0 ? 0 : sign * sin(a);
    }
}

/* Transforms line, n pairs, and stores it from element `out` on, `step` numbers between its points. */
static void transform(const struct dft_job *j, const double *line, int64_t out, int64_t step)
{
    struct tensor *y = &j->c->out[0];
    for (int64_t k = 0; k < j->bins; k++) {
        double sum[2] = {0, 0};
        int64_t r = 0; /* i * k modulo n */
        for (int64_t i = 0; i < j->n; i++) {
            const double *w = j->roots + 2 * r, *x = line + 2 * i;
            sum[0] += x[0] * w[0] - x[1] * w[1];
            sum[1] += x[0] * w[1] + x[1] * w[0];
            r += k;
            r -= r >= j->n ? j->n : 0;
        }
        sum[0] *= j->scale;
        sum[1] *= j->scale;
        ref_store_d(y->data, y->shape.dtype, out + k * step, 1, sum, 2);
    }
}

static void dft_piece(void *arg, int64_t begin, int64_t end)
{
    const struct dft_job *j = arg;
    const struct tensor *x = &j->c->in[0];
    for (int64_t l = begin; l < end; l++) {
        double *line = j->line + l * 2 * j->n;
        int64_t outer = l / j->inner, at = l % j->inner, have = YK_MIN(j->points, j->n);
        memset(line, 0, (size_t)(2 * j->n) * sizeof(double));
        for (int64_t p = 0; p < j->parts; p++)
            for (int64_t i = 0; i < have; i++)
                line[2 * i + p] = ref_d(x, ((outer * j->points + i) * j->inner + at) * j->parts + p);
        transform(j, line, (outer * j->bins * j->inner + at) * 2, j->inner * 2);
    }
}

static int64_t dft_points(const struct host_call *c, const struct shape *x, int axis)
{
    if (ref_has(c, 1))
        return ref_i(&c->in[1], 0);
    return x->dims[axis];
}

/* Every line has a scratch of its own; the output has at least n / 2 + 1 pairs for it. */
static void sizes_dft(const struct op_ctx *c, struct backend_form *f)
{
    const struct shape *y = &c->out[0];
    int64_t axis = node_attr_i(c->node, "axis", 1), n, lines = 1;
    if (!strcmp(c->node->op->name, "STFT"))
        axis = 2;
    axis = ref_axis(axis, y->rank);
    n = y->dims[axis];
    if (node_attr_i(c->node, "onesided", !strcmp(c->node->op->name, "STFT")))
        n = 2 * n; /* at least what was asked for */
    for (int d = 0; d < y->rank - 1; d++)
        lines *= d == axis ? 1 : y->dims[d];
    f->workspace_bytes = (lines * 2 + 3) * n * (int64_t)sizeof(double);
}

static int64_t cost_of(const struct dft_job *j)
{
    double ns = 4 * (double)j->n * (double)j->bins;
    return ns > 1e9 ? 1000000000 : (int64_t)ns;
}

static yk_err run_dft(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    int axis = (int)ref_axis(node_attr_i(c->node, "axis", 1), x->rank);
    bool inverse = node_attr_i(c->node, "inverse", 0) != 0;
    struct dft_job j = {.c = c, .n = dft_points(c, x, axis), .bins = y->dims[axis], .inner = 1, .frames = 1};
    j.points = x->dims[axis];
    j.parts = x->dims[x->rank - 1];
    int64_t lines = 1;
    for (int d = 0; d < x->rank - 1; d++) {
        lines *= d == axis ? 1 : x->dims[d];
        j.inner *= d > axis ? x->dims[d] : 1;
    }
    j.scale = inverse ? 1 / (double)j.n : 1;
    j.roots = c->workspace;
    j.line = j.roots + 2 * j.n;
    make_roots(j.roots, j.n, inverse ? 1 : -1);
    host_split(c, lines, cost_of(&j), dft_piece, &j);
    return YK_OK;
}

static void stft_piece(void *arg, int64_t begin, int64_t end)
{
    const struct dft_job *j = arg;
    for (int64_t l = begin; l < end; l++) {
        double *line = j->line + l * 2 * j->n;
        int64_t first = (l / j->frames * j->points + l % j->frames * j->step) * j->parts;
        for (int64_t i = 0; i < j->n; i++) {
            double w = j->window ? j->window[i] : 1;
            line[2 * i] = w * ref_d(&j->c->in[0], first + i * j->parts);
            line[2 * i + 1] = j->parts == 2 ? w * ref_d(&j->c->in[0], first + i * 2 + 1) : 0;
        }
        transform(j, line, l * j->bins * 2, 2);
    }
}

static yk_err run_stft(struct host_call *c)
{
    const struct shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    struct dft_job j = {.c = c, .bins = y->dims[2], .inner = 1, .scale = 1, .frames = y->dims[1]};
    j.points = x->dims[1];
    j.parts = x->rank == 3 ? x->dims[2] : 1;
    j.step = ref_i(&c->in[1], 0);
    j.n = ref_has(c, 2) ? c->in[2].shape.dims[0] : ref_i(&c->in[3], 0);
    j.roots = c->workspace;
    double *window = j.roots + 2 * j.n;
    j.line = window + j.n;
    make_roots(j.roots, j.n, -1);
    if (ref_has(c, 2)) {
        ref_load_d(window, c->in[2].data, c->in[2].shape.dtype, 0, 1, j.n);
        j.window = window;
    }
    host_split(c, x->dims[0] * j.frames, cost_of(&j), stft_piece, &j);
    return YK_OK;
}

static yk_err run_window(struct host_call *c)
{
    const char *op = c->node->op->name;
    int64_t size = tensor_count(&c->out[0]);
    double n = (double)(node_attr_i(c->node, "periodic", 1) ? size : size - 1);
    for (int64_t i = 0; i < size; i++) {
        double a = n > 0 ? TAU * (double)i / n : TAU / 2, v;
        if (!strcmp(op, "HannWindow"))
            v = 0.5 - 0.5 * cos(a);
        else if (!strcmp(op, "HammingWindow"))
            v = 25.0 / 46.0 - 21.0 / 46.0 * cos(a);
        else
            v = 0.42 - 0.5 * cos(a) + 0.08 * cos(2 * a);
        ref_store_d(c->out[0].data, c->out[0].shape.dtype, i, 1, &v, 1);
    }
    return YK_OK;
}

/* Edge k of the triangles, as a row of the matrix. */
static double mel_edge(double k, double low, double step, double length, double rate)
{
    double hertz = 700 * (pow(10, (k * step + low) / 2595) - 1);
    return floor((length + 1) * hertz / rate);
}

static yk_err run_mel(struct host_call *c)
{
    struct tensor *y = &c->out[0];
    int64_t rows = y->shape.dims[0], mels = y->shape.dims[1];
    double length = ref_d(&c->in[1], 0), rate = ref_d(&c->in[2], 0);
    double low = 2595 * log10(1 + ref_d(&c->in[3], 0) / 700), high = 2595 * log10(1 + ref_d(&c->in[4], 0) / 700);
    double step = (high - low) / (double)(mels + 2);
    if (!(rate > 0))
        return yk_fail(c->why, YK_INVAL, "sample_rate is %g, wants a positive number", rate);
    if (!isfinite(low) || !isfinite(high) || high < low)
        return yk_fail(
            c->why, YK_INVAL, "the edges %g and %g Hz are not a band", ref_d(&c->in[3], 0), ref_d(&c->in[4], 0));
    for (int64_t m = 0; m < mels; m++) {
        double left = mel_edge((double)m, low, step, length, rate);
        double mid = mel_edge((double)m + 1, low, step, length, rate);
        double right = mel_edge((double)m + 2, low, step, length, rate);
        for (int64_t r = 0; r < rows; r++) {
            double at = (double)r, v = 0;
            if (at >= left && at <= mid)
                v = mid > left ? (at - left) / (mid - left) : 1;
            if (at >= mid && at < right)
                v = (right - at) / (right - mid);
            ref_store_d(y->data, y->shape.dtype, r * mels + m, 1, &v, 1);
        }
    }
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "", .op = "DFT", .kind = "ref", .sizes = sizes_dft, .run = run_dft},
    {.domain = "", .op = "STFT", .kind = "ref", .sizes = sizes_dft, .run = run_stft},
    {.domain = "", .op = "HannWindow", .kind = "ref", .run = run_window},
    {.domain = "", .op = "HammingWindow", .kind = "ref", .run = run_window},
    {.domain = "", .op = "BlackmanWindow", .kind = "ref", .run = run_window},
    {.domain = "", .op = "MelWeightMatrix", .kind = "ref", .run = run_mel},
};
const struct host_rows ref_signal = {rows, (int)YK_COUNT(rows)};
