/* norm.train: batch normalisation in training and its gradient, channels last. Pixels (samples, if there are no axes
 * behind the channels) go in chunks of fixed size: a chunk's sums are f32, chunks come together in double, in their
 * order. The variance of a chunk is around its own mean, so that nothing cancels (Chan, Golub and LeVeque). */
#include <math.h>
#include <string.h>

#include "kernels/simd.h"
#include "kernels/simd_last.h"

#define CHUNK 256 /* pixels */
#define LANES 64  /* channels at a time */

struct job {
    struct host_call *c;
    int64_t pixels, channels, chunks;
    const float *x, *dy;
    float *y;
    double *parts;                  /* by chunk: two numbers a channel */
    float *a, *b, *shift, *average; /* of the pass that writes, by channel */
};

SIMD_CLONES static void sums(float *restrict s, const float *restrict x, int64_t step, int64_t rows, int64_t n)
{
    float acc[LANES] = {0};
    if (n == LANES)
        for (int64_t r = 0; r < rows; r++)
            for (int k = 0; k < LANES; k++)
                acc[k] += x[r * step + k];
    else
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < n; k++)
                acc[k] += x[r * step + k];
    memcpy(s, acc, sizeof(acc));
}

SIMD_CLONES static void squares(
    float *restrict s, const float *restrict x, const float *restrict mean, int64_t step, int64_t rows, int64_t n)
{
    float acc[LANES] = {0};
    if (n == LANES)
        for (int64_t r = 0; r < rows; r++)
            for (int k = 0; k < LANES; k++) {
                float v = x[r * step + k] - mean[k];
                acc[k] += v * v;
            }
    else
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < n; k++) {
                float v = x[r * step + k] - mean[k];
                acc[k] += v * v;
            }
    memcpy(s, acc, sizeof(acc));
}

/* s: of dy; d: of dy * (x - mean). */
SIMD_CLONES static void dots(float *restrict s, float *restrict d, const float *restrict dy, const float *restrict x,
    const float *restrict mean, int64_t step, int64_t rows, int64_t n)
{
    float one[LANES] = {0}, two[LANES] = {0};
    if (n == LANES)
        for (int64_t r = 0; r < rows; r++)
            for (int k = 0; k < LANES; k++) {
                float g = dy[r * step + k];
                one[k] += g;
                two[k] += g * (x[r * step + k] - mean[k]);
            }
    else
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < n; k++) {
                float g = dy[r * step + k];
                one[k] += g;
                two[k] += g * (x[r * step + k] - mean[k]);
            }
    memcpy(s, one, sizeof(one));
    memcpy(d, two, sizeof(two));
}

SIMD_CLONES static void scaled(float *restrict y, const float *restrict x, const float *restrict a,
    const float *restrict b, int64_t channels, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++, x += channels, y += channels)
        for (int64_t k = 0; k < channels; k++)
            y[k] = x[k] * a[k] + b[k];
}

SIMD_CLONES static void gradients(float *restrict dx, const float *restrict dy, const float *restrict x,
    const float *restrict a, const float *restrict b, const float *restrict shift, const float *restrict mean,
    int64_t channels, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++, x += channels, dy += channels, dx += channels)
        for (int64_t k = 0; k < channels; k++)
            dx[k] = dy[k] * a[k] + (x[k] - mean[k]) * b[k] + shift[k];
}

static int64_t rows_of(const struct job *j, int64_t chunk)
{
    return YK_MIN(CHUNK, j->pixels - chunk * CHUNK);
}

/* Mean and square sum of a chunk. */
static void train_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    int64_t rows = rows_of(j, i);
    for (int64_t c = 0; c < j->channels; c += LANES) {
        float s[LANES], q[LANES];
        int64_t n = YK_MIN(LANES, j->channels - c);
        const float *x = j->x + i * CHUNK * j->channels + c;
        sums(s, x, j->channels, rows, n);
        for (int k = 0; k < LANES; k++)
            s[k] /= (float)rows;
        squares(q, x, s, j->channels, rows, n);
        for (int64_t k = 0; k < n; k++) {
            j->parts[(i * 2) * j->channels + c + k] = (double)s[k];
            j->parts[(i * 2 + 1) * j->channels + c + k] = (double)q[k];
        }
    }
}

static void write_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    int64_t at = i * CHUNK * j->channels, rows = rows_of(j, i);
    if (j->dy)
        gradients(j->y + at, j->dy + at, j->x + at, j->a, j->b, j->shift, j->average, j->channels, rows);
    else
        scaled(j->y + at, j->x + at, j->a, j->b, j->channels, rows);
}

static void grad_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *j = arg;
    for (int64_t c = 0; c < j->channels; c += LANES) {
        float s[LANES], d[LANES];
        int64_t n = YK_MIN(LANES, j->channels - c), at = i * CHUNK * j->channels + c;
        dots(s, d, j->dy + at, j->x + at, j->average + c, j->channels, rows_of(j, i), n);
        for (int64_t k = 0; k < n; k++) {
            j->parts[(i * 2) * j->channels + c + k] = (double)s[k];
            j->parts[(i * 2 + 1) * j->channels + c + k] = (double)d[k];
        }
    }
}

static void put(struct host_call *c, int out, int64_t ch, double v)
{
    if (out < c->n_out && c->out[out].shape.dtype != DT_NONE)
        ((float *)c->out[out].data)[ch] = (float)v;
}

static double get(const struct host_call *c, int in, int64_t ch)
{
    return (double)((const float *)c->in[in].data)[ch];
}

static void train_channels(void *arg, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    struct host_call *c = j->c;
    double epsilon = (double)node_attr_f(c->node, "epsilon", 1e-5f);
    double keep = (double)node_attr_f(c->node, "momentum", 0.9f), count = (double)j->pixels;
    for (int64_t ch = begin; ch < end; ch++) {
        double mean = 0, around = 0;
        for (int64_t i = 0; i < j->chunks; i++)
            mean += j->parts[i * 2 * j->channels + ch] * (double)rows_of(j, i);
        mean /= count;
        for (int64_t i = 0; i < j->chunks; i++) {
            double off = j->parts[i * 2 * j->channels + ch] - mean;
            around += j->parts[(i * 2 + 1) * j->channels + ch] + off * off * (double)rows_of(j, i);
        }
        double inverse = 1 / sqrt(around / count + epsilon);
        /* By the statistics as they are given out, so that BatchNormalization with them makes the same bits again. */
        j->a[ch] = (float)(get(c, 1, ch) * (double)(float)inverse);
        j->b[ch] = (float)(get(c, 2, ch) - (double)(float)mean * (double)j->a[ch]);
        put(c, 1, ch, get(c, 3, ch) * keep + mean * (1 - keep));
        put(c, 2, ch, get(c, 4, ch) * keep + around / (count - 1) * (1 - keep));
        put(c, 3, ch, mean);
        put(c, 4, ch, inverse);
    }
}

static void grad_channels(void *arg, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    struct host_call *c = j->c;
    for (int64_t ch = begin; ch < end; ch++) {
        double sum = 0, along = 0, inverse = get(c, 4, ch), count = (double)j->pixels;
        for (int64_t i = 0; i < j->chunks; i++) {
            sum += j->parts[i * 2 * j->channels + ch];
            along += j->parts[(i * 2 + 1) * j->channels + ch];
        }
        along *= inverse;
        double a = get(c, 2, ch) * inverse;
        j->a[ch] = (float)a;
        j->b[ch] = (float)(-a * inverse * along / count);
        j->shift[ch] = (float)(-a * sum / count);
        put(c, 1, ch, along);
        put(c, 2, ch, sum);
    }
}

static int64_t round64(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    const struct shape *x = c->in[0];
    int64_t channels = YK_MAX(x->dims[1], 1), chunks = shape_count(x) / channels / CHUNK + 1;
    f->workspace_bytes = 3 * simd_last_bytes(x) + round64(chunks * 2 * channels * (int64_t)sizeof(double)) +
                         round64(3 * channels * (int64_t)sizeof(float));
}

static yk_err run(struct host_call *c)
{
    bool train = !strcmp(c->node->op->name, "BatchNormTrain");
    const struct shape *s = &c->in[0].shape;
    struct job j = {.c = c, .channels = s->dims[1], .pixels = tensor_count(&c->in[0]) / YK_MAX(s->dims[1], 1)};
    char *rest = c->workspace;
    bool wanted = c->out[0].shape.dtype != DT_NONE;
    j.chunks = (j.pixels + CHUNK - 1) / CHUNK;
    if (!train) {
        j.dy = simd_last_input(c, 0, &rest);
        j.average = (float *)(uintptr_t)c->in[3].data;
    }
    j.x = simd_last_input(c, train ? 0 : 1, &rest);
    if (wanted)
        j.y = simd_last_output(c, 0, &rest);
    j.parts = (double *)rest;
    rest += round64(j.chunks * 2 * j.channels * (int64_t)sizeof(double));
    j.a = (float *)rest;
    j.b = j.a + j.channels;
    j.shift = j.b + j.channels;
    pool_run(c->pool, j.chunks, train ? train_tile : grad_tile, &j);
    host_split(c, j.channels, j.chunks * 2 + 20, train ? train_channels : grad_channels, &j);
    if (wanted) {
        pool_run(c->pool, j.chunks, write_tile, &j);
        simd_last_output_end(c, 0, j.y);
    }
    return YK_OK;
}

#define ROW(name)                                                                                                   \
    {                                                                                                               \
        .domain = "ai.yoke", .op = name, .kind = "norm.train", .claim = simd_claim_f32, .sizes = sizes, .run = run, \
        .layout = HOST_ANY                                                                                          \
    }
static const struct host_kernel rows[] = {ROW("BatchNormTrain"), ROW("BatchNormGrad")};
const struct host_rows simd_norm_train = {rows, (int)YK_COUNT(rows)};
