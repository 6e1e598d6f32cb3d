/* RNN, GRU and LSTM in f32 with their usual activations (sigmoid, tanh, relu), without clip, peepholes and coupled
 * gates: those are left to ref.
 *
 * Steps go in chunks. For a chunk the inputs of its steps are gathered and multiplied with W in one product; then every
 * step multiplies the state with R and applies the cell. Small cells run a chunk's steps in one tile for each direction
 * and block of samples; for large ones each step is split over blocks of hidden units. Chunks, blocks and that choice
 * follow from the shape alone. */
#include <cblas.h>

#include <string.h>

#include "common/op_rnn.h"
#include "kernels/blas.h"
#include "kernels/simd.h"
#include "kernels/simd_fn.h"

#define CHUNK_FLOATS (1 << 20) /* inputs and products of a chunk */
#define ROWS 64                /* of a tile of the input product */
#define COLS 256
#define SAMPLES 32         /* of a tile in small cells */
#define UNITS 64           /* hidden units of a tile in large cells */
#define LARGE (192 * 1024) /* weights of R from which a cell is large */

struct rnn_job {
    struct host_call *c;
    struct rnn_dims d;
    int64_t width;        /* gates * hidden */
    int64_t steps;        /* of a whole chunk */
    int64_t begin, count; /* steps of this chunk */
    float *bias, *reset;  /* (dirs, width): what is added to X W^T; (dirs, hidden): to GRU's last gate before reset */
    float *xs, *xw;       /* (dirs, steps * batch, input), (dirs, steps * batch, width) */
    float *pre, *rh;      /* (dirs, batch, width), (dirs, batch, hidden) */
    float *h[2], *cell;   /* (dirs, batch, hidden) each; h[step % 2] is read, the other written */
    bool split;
    int64_t step; /* of a split cell */
    int phase;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t step_floats(const struct rnn_dims *d)
{
    return d->batch * (d->input + d->gates * d->hidden);
}

static int64_t length(const struct rnn_job *j, int64_t b)
{
    const struct tensor *lens = &j->c->in[RNN_LENS];
    return j->c->n_in > RNN_LENS && lens->data ? ((const int32_t *)lens->data)[b] : j->d.seq;
}

static const float *input(const struct rnn_job *j, int i)
{
    return i < j->c->n_in ? j->c->in[i].data : NULL;
}

static float *output(const struct rnn_job *j, int i)
{
    return i < j->c->n_out ? j->c->out[i].data : NULL;
}

/* Where step i of sample b is in time; -1 behind its end. */
static int64_t time_of(const struct rnn_job *j, int64_t dir, int64_t i, int64_t b)
{
    int64_t len = length(j, b);
    return i >= len ? -1 : rnn_reversed(&j->d, dir) ? len - 1 - i : i;
}

/* y (m, n) = x (m, k) w (n, k)^T; ldy between rows of y. */
static void product(const float *x, const float *w, float *y, int64_t m, int64_t n, int64_t k, int64_t ldy)
{
    if (k == 0)
        for (int64_t i = 0; i < m; i++)
            memset(y + i * ldy, 0, (size_t)n * sizeof(float));
    else if (m == 1)
        cblas_sgemv(CblasRowMajor, CblasNoTrans, (int)n, (int)k, 1, w, (int)k, x, 1, 0, y, 1);
    else
        cblas_sgemm(
            CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1, x, (int)k, w, (int)k, 0, y, (int)ldy);
}

/* ---- inputs of a chunk ---- */

static void gather_piece(void *arg, int64_t begin, int64_t end)
{
    const struct rnn_job *j = arg;
    const struct rnn_dims *d = &j->d;
    int64_t rows = j->count * d->batch;
    for (int64_t r = begin; r < end; r++) {
        int64_t dir = r / rows, step = j->begin + r % rows / d->batch, b = r % d->batch;
        int64_t t = time_of(j, dir, step, b);
        float *to = j->xs + (dir * j->steps * d->batch + r % rows) * d->input;
        if (t < 0)
            memset(to, 0, (size_t)d->input * sizeof(float));
        else
            memcpy(to, (const float *)j->c->in[0].data + rnn_at_x(d, t, b), (size_t)d->input * sizeof(float));
    }
}

SIMD_CLONES static void add_row(float *restrict y, const float *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += b[i];
}

static void input_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct rnn_job *j = arg;
    const struct rnn_dims *d = &j->d;
    int64_t rows = j->count * d->batch, n_rows = ceil_div(rows, ROWS), n_cols = ceil_div(j->width, COLS);
    int64_t dir = i / (n_rows * n_cols), r0 = i / n_cols % n_rows * ROWS, c0 = i % n_cols * COLS;
    int64_t m = YK_MIN(ROWS, rows - r0), n = YK_MIN(COLS, j->width - c0), at = dir * j->steps * d->batch + r0;
    float *y = j->xw + at * j->width + c0;
    product(j->xs + at * d->input, input(j, RNN_W) + (dir * j->width + c0) * d->input, y, m, n, d->input, j->width);
    for (int64_t r = 0; r < m; r++)
        add_row(y + r * j->width, j->bias + dir * j->width + c0, n);
}

/* ---- cells: n hidden units of one sample ---- */

SIMD_CLONES static void sigmoids(float *restrict y, const float *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = simd_sigmoid(y[i] + b[i]);
}

SIMD_CLONES static void tanhs(float *restrict y, const float *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = simd_tanh(y[i] + b[i]);
}

SIMD_CLONES static void relus(float *restrict y, const float *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float v = y[i] + b[i];
        y[i] = v < 0 ? 0 : v;
    }
}

/* y = fn(y + b) */
static void activate(const struct rnn_act *a, float *y, const float *b, int64_t n)
{
    (a->fn == RNN_SIGMOID ? sigmoids : a->fn == RNN_TANH ? tanhs : relus)(y, b, n);
}

SIMD_CLONES static void lstm_state(
    float *restrict c, const float *restrict i, const float *restrict f, const float *restrict g, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        c[k] = f[k] * c[k] + i[k] * g[k];
}

SIMD_CLONES static void multiply(float *restrict y, const float *restrict a, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        y[k] *= a[k];
}

SIMD_CLONES static void gru_state(
    float *restrict y, const float *restrict z, const float *restrict g, const float *restrict h, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        y[k] = (1 - z[k]) * g[k] + z[k] * h[k];
}

/* A sample's n units; gates lie `hidden` apart. */
struct unit {
    float *pre;          /* state times R */
    const float *xw;     /* input times W, and the biases */
    const float *h;      /* state before */
    float *out, *c, *rh; /* state behind, LSTM's cell, r * h of GRU */
    const float *reset;  /* bias of GRU's last gate before reset */
    int64_t n;
};

static void lstm_unit(const struct rnn_act *act, int64_t hidden, const struct unit *u)
{
    static const float zeros[UNITS] = {0};
    float *i = u->pre, *o = i + hidden, *f = o + hidden, *g = f + hidden;
    activate(&act[0], i, u->xw, u->n);
    activate(&act[0], o, u->xw + hidden, u->n);
    activate(&act[0], f, u->xw + 2 * hidden, u->n);
    activate(&act[1], g, u->xw + 3 * hidden, u->n);
    lstm_state(u->c, i, f, g, u->n);
    memcpy(u->out, u->c, (size_t)u->n * sizeof(float));
    for (int64_t k = 0; k < u->n; k += UNITS)
        activate(&act[2], u->out + k, zeros, YK_MIN(UNITS, u->n - k));
    multiply(u->out, o, u->n);
}

/* Gates z and r; then r * h, or r times the recurrent part of the last gate. */
static void gru_gates(const struct rnn_act *act, int64_t hidden, const struct unit *u, bool behind)
{
    float *z = u->pre, *r = z + hidden, *g = r + hidden;
    activate(&act[0], z, u->xw, u->n);
    activate(&act[0], r, u->xw + hidden, u->n);
    if (behind) {
        add_row(g, u->reset, u->n);
        multiply(g, r, u->n);
    } else {
        memcpy(u->rh, u->h, (size_t)u->n * sizeof(float));
        multiply(u->rh, r, u->n);
    }
}

static void gru_unit(const struct rnn_act *act, int64_t hidden, const struct unit *u)
{
    float *g = u->pre + 2 * hidden;
    activate(&act[1], g, u->xw + 2 * hidden, u->n);
    gru_state(u->out, u->pre, g, u->h, u->n);
}

/* ---- steps ---- */

struct part {
    int64_t dir, b0, b1, k0, k1; /* samples and hidden units */
};

/* Gates [g0, g1) of a part: state times R into pre. */
static void recurrent(const struct rnn_job *j, const struct part *p, const float *state, int g0, int g1)
{
    const struct rnn_dims *d = &j->d;
    const float *r = input(j, RNN_R) + p->dir * j->width * d->hidden;
    int64_t row = p->dir * d->batch + p->b0, m = p->b1 - p->b0, n = p->k1 - p->k0;
    float *pre = j->pre + row * j->width;
    const float *h = state + row * d->hidden;
    if (n == d->hidden) /* the gates are one product */
        product(h, r + g0 * n * n, pre + g0 * n, m, (g1 - g0) * n, n, j->width);
    else
        for (int g = g0; g < g1; g++)
            product(h, r + (g * d->hidden + p->k0) * d->hidden, pre + g * d->hidden + p->k0, m, n, d->hidden, j->width);
}

/* GRU whose reset comes in front needs r * h of all units before its last product: phase 1. */
static int phases(const struct rnn_dims *d)
{
    return d->kind == RNN_GRU && !d->linear_before_reset ? 2 : 1;
}

static void run_part(const struct rnn_job *j, const struct part *p, int64_t step, int phase)
{
    const struct rnn_dims *d = &j->d;
    const struct rnn_act *act = d->act[p->dir];
    const float *state = j->h[step % 2];
    float *next = j->h[1 - step % 2], *y = output(j, 0);
    bool last = phase == phases(d) - 1;
    if (phase == 1)
        recurrent(j, p, j->rh, 2, 3);
    else
        recurrent(j, p, state, 0, last ? d->gates : 2);
    for (int64_t b = p->b0; b < p->b1; b++) {
        int64_t row = p->dir * d->batch + b, t = time_of(j, p->dir, step, b), at = row * d->hidden + p->k0;
        struct unit u = {.h = state + at, .out = next + at, .c = j->cell + at, .rh = j->rh + at, .n = p->k1 - p->k0};
        if (t < 0) { /* over: the state stays */
            memcpy(u.out, u.h, (size_t)u.n * sizeof(float));
            continue;
        }
        u.pre = j->pre + row * j->width + p->k0;
        u.xw = j->xw + ((p->dir * j->steps + step - j->begin) * d->batch + b) * j->width + p->k0;
        u.reset = j->reset + p->dir * d->hidden + p->k0;
        if (d->kind == RNN_LSTM) {
            lstm_unit(act, d->hidden, &u);
        } else if (d->kind == RNN_GRU) {
            if (phase == 0)
                gru_gates(act, d->hidden, &u, d->linear_before_reset);
            if (last)
                gru_unit(act, d->hidden, &u);
        } else {
            memcpy(u.out, u.pre, (size_t)u.n * sizeof(float));
            activate(&act[0], u.out, u.xw, u.n);
        }
        if (last && y)
            memcpy(y + rnn_at_y(d, t, p->dir, b) + p->k0, u.out, (size_t)u.n * sizeof(float));
    }
}

/* A small cell: all steps of the chunk for a block of samples. */
static void small_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct rnn_job *j = arg;
    int64_t blocks = ceil_div(j->d.batch, SAMPLES), b0 = i % blocks * SAMPLES;
    struct part p = {i / blocks, b0, YK_MIN(b0 + SAMPLES, j->d.batch), 0, j->d.hidden};
    for (int64_t step = j->begin; step < j->begin + j->count; step++)
        for (int phase = 0; phase < phases(&j->d); phase++)
            run_part(j, &p, step, phase);
}

/* A large cell: one phase of one step for a block of hidden units. */
static void large_tile(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct rnn_job *j = arg;
    int64_t blocks = ceil_div(j->d.hidden, UNITS), k0 = i % blocks * UNITS;
    struct part p = {i / blocks, 0, j->d.batch, k0, YK_MIN(k0 + UNITS, j->d.hidden)};
    run_part(j, &p, j->step, j->phase);
}

static void run_chunk(struct rnn_job *j)
{
    const struct rnn_dims *d = &j->d;
    int64_t rows = j->count * d->batch;
    host_split(j->c, d->dirs * rows, d->input / 4 + 1, gather_piece, j);
    pool_run(j->c->pool, d->dirs * ceil_div(rows, ROWS) * ceil_div(j->width, COLS), input_tile, j);
    if (!j->split) {
        pool_run(j->c->pool, d->dirs * ceil_div(d->batch, SAMPLES), small_tile, j);
        return;
    }
    for (j->step = j->begin; j->step < j->begin + j->count; j->step++)
        for (j->phase = 0; j->phase < phases(d); j->phase++)
            pool_run(j->c->pool, d->dirs * ceil_div(d->hidden, UNITS), large_tile, j);
}

/* ---- the whole ---- */

/* A state input or output is (dirs, batch, hidden), or (batch, dirs, hidden) with layout 1. */
static void load_state(const struct rnn_job *j, int slot, float *to)
{
    const struct rnn_dims *d = &j->d;
    const float *from = input(j, slot);
    for (int64_t r = 0; r < d->dirs * d->batch; r++)
        if (from)
            memcpy(to + r * d->hidden, from + rnn_at_state(d, r / d->batch, r % d->batch),
                (size_t)d->hidden * sizeof(float));
        else
            memset(to + r * d->hidden, 0, (size_t)d->hidden * sizeof(float));
}

static void store_state(const struct rnn_job *j, int slot, const float *from)
{
    const struct rnn_dims *d = &j->d;
    float *to = output(j, slot);
    for (int64_t r = 0; to && r < d->dirs * d->batch; r++)
        memcpy(
            to + rnn_at_state(d, r / d->batch, r % d->batch), from + r * d->hidden, (size_t)d->hidden * sizeof(float));
}

static void make_bias(const struct rnn_job *j)
{
    const struct rnn_dims *d = &j->d;
    const float *b = input(j, RNN_B);
    for (int64_t dir = 0; dir < d->dirs; dir++)
        for (int64_t k = 0; k < j->width; k++) {
            const float *w = b ? b + dir * 2 * j->width + k : NULL;
            bool behind = d->kind == RNN_GRU && d->linear_before_reset && k >= 2 * d->hidden;
            j->bias[dir * j->width + k] = !b ? 0 : behind ? w[0] : w[0] + w[j->width];
            if (behind)
                j->reset[dir * d->hidden + k - 2 * d->hidden] = b ? w[j->width] : 0;
        }
}

static yk_err check_lengths(const struct rnn_job *j)
{
    for (int64_t b = 0; b < j->d.batch; b++)
        if (length(j, b) < 0 || length(j, b) > j->d.seq)
            return yk_fail(j->c->why, YK_INVAL, "sequence_lens[%lld] is %lld, allowed are 0 to %lld", (long long)b,
                (long long)length(j, b), (long long)j->d.seq);
    return YK_OK;
}

/* Floats of a chunk for one direction; no less than any shorter or smaller run needs. */
static int64_t chunk_floats(const struct rnn_dims *d)
{
    int64_t step = step_floats(d), all;
    if (!yk_mul_i64(step, d->seq, &all) || all > CHUNK_FLOATS)
        all = CHUNK_FLOATS;
    return YK_MAX(step, all);
}

static int64_t kept_floats(const struct rnn_dims *d)
{
    return d->dirs * (d->gates + 1) * d->hidden * (d->batch + 1) + 3 * d->dirs * d->batch * d->hidden;
}

static yk_err run_rnn(struct host_call *c)
{
    struct rnn_job j = {.c = c};
    const struct shape *in[8];
    for (int i = 0; i < c->n_in; i++)
        in[i] = c->in[i].shape.dtype == DT_NONE ? NULL : &c->in[i].shape;
    yk_err err = op_rnn_dims(c->node, in, c->n_in, &j.d, c->why);
    if (err || (err = check_lengths(&j)) != YK_OK)
        return err;
    const struct rnn_dims *d = &j.d;
    int64_t states = d->dirs * d->batch * d->hidden;
    j.width = d->gates * d->hidden;
    j.split = j.width * d->hidden >= LARGE;
    j.steps = YK_MAX(YK_MIN(CHUNK_FLOATS / YK_MAX(step_floats(d), 1), d->seq), 1);
    j.bias = c->workspace;
    j.reset = j.bias + d->dirs * j.width;
    j.pre = j.reset + d->dirs * d->hidden;
    j.rh = j.pre + d->dirs * d->batch * j.width;
    j.h[0] = j.rh + states;
    j.h[1] = j.h[0] + states;
    j.cell = j.h[1] + states;
    j.xs = j.cell + states;
    j.xw = j.xs + d->dirs * j.steps * d->batch * d->input;
    make_bias(&j);
    memset(j.rh, 0, (size_t)states * sizeof(float));
    load_state(&j, RNN_H0, j.h[0]);
    load_state(&j, RNN_C0, j.cell);
    for (j.begin = 0; j.begin < d->seq && d->batch > 0; j.begin += j.steps) {
        j.count = YK_MIN(j.steps, d->seq - j.begin);
        run_chunk(&j);
    }
    store_state(&j, 1, j.h[d->seq % 2]);
    store_state(&j, 2, j.cell);
    for (int64_t b = 0; output(&j, 0) && b < d->batch; b++)
        for (int64_t t = length(&j, b); t < d->seq; t++)
            for (int64_t dir = 0; dir < d->dirs; dir++)
                memset(output(&j, 0) + rnn_at_y(d, t, dir, b), 0, (size_t)d->hidden * sizeof(float));
    return YK_OK;
}

static bool claim_rnn(const struct op_ctx *c)
{
    struct rnn_dims d;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] && i != RNN_LENS && c->in[i]->dtype != DT_F32)
            return false;
    if (op_rnn_dims(c->node, c->in, c->n_in, &d, NULL) || d.clips || d.input_forget ||
        (c->n_in > RNN_P && c->in[RNN_P]))
        return false;
    int acts = d.kind == RNN_LSTM ? 3 : d.kind == RNN_GRU ? 2 : 1;
    for (int i = 0; i < d.dirs * acts; i++) {
        enum rnn_fn fn = d.act[i / acts][i % acts].fn;
        if (fn != RNN_SIGMOID && fn != RNN_TANH && fn != RNN_RELU)
            return false;
    }
    return d.input <= INT32_MAX && d.hidden <= INT32_MAX / 4;
}

static void sizes_rnn(const struct op_ctx *c, struct backend_form *f)
{
    struct rnn_dims d;
    if (!op_rnn_dims(c->node, c->in, c->n_in, &d, NULL))
        f->workspace_bytes = (kept_floats(&d) + d.dirs * chunk_floats(&d)) * (int64_t)sizeof(float);
}

static const struct host_kernel rows[] = {
    {.domain = "", .op = "RNN", .kind = "rnn", .claim = claim_rnn, .sizes = sizes_rnn, .run = run_rnn},
    {.domain = "", .op = "GRU", .kind = "gru", .claim = claim_rnn, .sizes = sizes_rnn, .run = run_rnn},
    {.domain = "", .op = "LSTM", .kind = "lstm", .claim = claim_rnn, .sizes = sizes_rnn, .run = run_rnn},
};
const struct host_rows blas_rnn = {rows, (int)YK_COUNT(rows)};
