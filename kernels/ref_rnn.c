/* RNN, GRU and LSTM: one sample of one direction after the other, states in double. Steps behind a sample's length give
 * zeros; its last state is the one at its length (the initial state if that is 0). */
#include "kernels/ref.h"

#include <math.h>

#include "common/op_rnn.h"

struct rnn_job {
    struct host_call *c;
    struct rnn_dims d;
    const double *w, *r, *b, *p; /* NULL: none */
    double *rows;                /* scratch of each (direction, sample) */
    int64_t row_size;
};

static double apply(const struct rnn_act *a, double x)
{
    double alpha = (double)a->alpha, beta = (double)a->beta;
    switch (a->fn) {
    case RNN_SIGMOID:
        return 1 / (1 + exp(-x));
    case RNN_TANH:
        return tanh(x);
    case RNN_RELU:
        return x < 0 ? 0 : x;
    case RNN_AFFINE:
        return alpha * x + beta;
    case RNN_LEAKY_RELU:
        return x < 0 ? alpha * x : x;
    case RNN_THRESHOLDED_RELU:
        return x > alpha || isnan(x) ? x : 0;
    case RNN_SCALED_TANH:
        return alpha * tanh(beta * x);
    case RNN_HARD_SIGMOID:
        x = alpha * x + beta;
        return x < 0 ? 0 : x > 1 ? 1 : x;
    case RNN_ELU:
        return x < 0 ? alpha * expm1(x) : x;
    case RNN_SOFTSIGN:
        return x / (1 + fabs(x));
    case RNN_SOFTPLUS:
        return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
    }
    return x;
}

static double activate(const struct rnn_dims *d, const struct rnn_act *a, double x)
{
    if (d->clips) {
        double most = (double)d->clip;
        x = x > most ? most : x < -most ? -most : x;
    }
    return apply(a, x);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* The scratch of one row. */
struct row {
    double *x, *h, *c, *pre, *next, *rh; /* input, hidden, hidden, gates * hidden, hidden, hidden */
};

static void step_plain(const struct rnn_job *j, int64_t dir, const struct row *s)
{
    for (int64_t k = 0; k < j->d.hidden; k++)
        s->next[k] = activate(&j->d, &j->d.act[dir][0], s->pre[k]);
}

static void step_gru(const struct rnn_job *j, int64_t dir, const struct row *s)
{
    const struct rnn_dims *d = &j->d;
    int64_t n = d->hidden;
    double *z = s->pre, *r = s->pre + n, *h = s->pre + 2 * n; /* h: without its recurrent part */
    const double *rh = j->r + (dir * 3 + 2) * n * n, *rb = j->b ? j->b + dir * 6 * n + 5 * n : NULL;
    for (int64_t k = 0; k < n; k++) {
        z[k] = activate(d, &d->act[dir][0], z[k]);
        r[k] = activate(d, &d->act[dir][0], r[k]);
        s->rh[k] = r[k] * s->h[k];
    }
    for (int64_t k = 0; k < n; k++) {
        double bias = rb ? rb[k] : 0, sum;
        if (d->linear_before_reset)
            sum = h[k] + r[k] * (dot(rh + k * n, s->h, n) + bias);
        else
            sum = h[k] + dot(rh + k * n, s->rh, n) + bias;
        s->next[k] = (1 - z[k]) * activate(d, &d->act[dir][1], sum) + z[k] * s->h[k];
    }
}

static void step_lstm(const struct rnn_job *j, int64_t dir, const struct row *s)
{
    const struct rnn_dims *d = &j->d;
    int64_t n = d->hidden;
    const double *p = j->p ? j->p + dir * 3 * n : NULL;
    const struct rnn_act *act = d->act[dir];
    for (int64_t k = 0; k < n; k++) {
        double c = s->c[k], i = s->pre[k], o = s->pre[n + k], f = s->pre[2 * n + k], g = s->pre[3 * n + k];
        i = activate(d, &act[0], i + (p ? p[k] * c : 0));
        f = d->input_forget ? 1 - i : activate(d, &act[0], f + (p ? p[2 * n + k] * c : 0));
        c = f * c + i * activate(d, &act[1], g);
        o = activate(d, &act[0], o + (p ? p[n + k] * c : 0));
        s->c[k] = c;
        s->next[k] = o * apply(&act[2], c); /* clip is for the gates, as in ONNX Runtime */
    }
}

/* Sums that do not depend on what the cell does with them: all but the recurrent part of GRU's last gate. */
static void gates(const struct rnn_job *j, int64_t dir, const struct row *s)
{
    const struct rnn_dims *d = &j->d;
    int64_t n = d->hidden, rows = d->gates * n;
    const double *w = j->w + dir * rows * d->input, *r = j->r + dir * rows * n;
    const double *b = j->b ? j->b + dir * 2 * rows : NULL;
    for (int64_t k = 0; k < rows; k++) {
        bool recurrent = d->kind != RNN_GRU || k < 2 * n;
        double sum = dot(w + k * d->input, s->x, d->input);
        if (recurrent)
            sum += dot(r + k * n, s->h, n);
        if (b)
            sum += b[k] + (recurrent ? b[rows + k] : 0);
        s->pre[k] = sum;
    }
}

static void store(const struct host_call *c, int i, int64_t at, const double *v, int64_t n)
{
    if (i < c->n_out && !ref_absent(&c->out[i]))
        ref_store_d(c->out[i].data, c->out[i].shape.dtype, at, 1, v, n);
}

static void load_state(const struct host_call *c, int i, int64_t at, double *v, int64_t n)
{
    if (ref_has(c, i))
        ref_load_d(v, c->in[i].data, c->in[i].shape.dtype, at, 1, n);
    else
        for (int64_t k = 0; k < n; k++)
            v[k] = 0;
}

static void run_row(const struct rnn_job *j, int64_t dir, int64_t b, double *scratch)
{
    const struct rnn_dims *d = &j->d;
    const struct host_call *c = j->c;
    int64_t n = d->hidden, len = ref_has(c, RNN_LENS) ? ref_i(&c->in[RNN_LENS], b) : d->seq;
    struct row s = {.x = scratch};
    s.h = s.x + d->input;
    s.c = s.h + n;
    s.next = s.c + n;
    s.rh = s.next + n;
    s.pre = s.rh + n;
    load_state(c, RNN_H0, rnn_at_state(d, dir, b), s.h, n);
    load_state(c, RNN_C0, rnn_at_state(d, dir, b), s.c, n);
    for (int64_t i = 0; i < len; i++) {
        int64_t t = rnn_reversed(d, dir) ? len - 1 - i : i;
        ref_load_d(s.x, c->in[0].data, c->in[0].shape.dtype, rnn_at_x(d, t, b), 1, d->input);
        gates(j, dir, &s);
        if (d->kind == RNN_LSTM)
            step_lstm(j, dir, &s);
        else if (d->kind == RNN_GRU)
            step_gru(j, dir, &s);
        else
            step_plain(j, dir, &s);
        double *was = s.h;
        s.h = s.next;
        s.next = was;
        store(c, 0, rnn_at_y(d, t, dir, b), s.h, n);
    }
    store(c, 1, rnn_at_state(d, dir, b), s.h, n);
    store(c, 2, rnn_at_state(d, dir, b), s.c, n);
    for (int64_t k = 0; k < n; k++)
        s.next[k] = 0;
    for (int64_t t = len; t < d->seq; t++)
        store(c, 0, rnn_at_y(d, t, dir, b), s.next, n);
}

static void piece(void *arg, int64_t begin, int64_t end)
{
    const struct rnn_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        run_row(j, i / j->d.batch, i % j->d.batch, j->rows + i * j->row_size);
}

static int64_t row_size(const struct rnn_dims *d)
{
    return d->input + (4 + d->gates) * d->hidden;
}

static void sizes(const struct op_ctx *c, struct backend_form *f)
{
    struct rnn_dims d;
    if (op_rnn_dims(c->node, c->in, c->n_in, &d, NULL))
        return;
    int64_t n = d.dirs * d.batch * row_size(&d);
    for (int i = RNN_W; i < c->n_in; i++)
        if (c->in[i] && (i <= RNN_B || i == RNN_P))
            n += shape_count(c->in[i]);
    f->workspace_bytes = n * (int64_t)sizeof(double);
}

/* Input i as doubles at *at, which moves on; NULL if it is absent. */
static const double *doubles(const struct host_call *c, int i, double **at)
{
    if (!ref_has(c, i))
        return NULL;
    double *v = *at;
    ref_load_d(v, c->in[i].data, c->in[i].shape.dtype, 0, 1, tensor_count(&c->in[i]));
    *at += tensor_count(&c->in[i]);
    return v;
}

static yk_err run(struct host_call *c)
{
    struct rnn_job j = {.c = c};
    const struct shape *in[8];
    for (int i = 0; i < c->n_in; i++)
        in[i] = ref_has(c, i) ? &c->in[i].shape : NULL;
    yk_err err = op_rnn_dims(c->node, in, c->n_in, &j.d, c->why);
    if (err)
        return err;
    for (int64_t b = 0; ref_has(c, RNN_LENS) && b < j.d.batch; b++) {
        int64_t len = ref_i(&c->in[RNN_LENS], b);
        if (len < 0 || len > j.d.seq)
            return yk_fail(c->why, YK_INVAL, "sequence_lens[%lld] is %lld, allowed are 0 to %lld", (long long)b,
                (long long)len, (long long)j.d.seq);
    }
    double *at = c->workspace;
    j.w = doubles(c, RNN_W, &at);
    j.r = doubles(c, RNN_R, &at);
    j.b = doubles(c, RNN_B, &at);
    j.p = doubles(c, RNN_P, &at);
    j.rows = at;
    j.row_size = row_size(&j.d);
    double cost = (double)j.d.seq * (double)(j.d.gates * j.d.hidden) * (double)(j.d.input + j.d.hidden);
    host_split(c, j.d.dirs * j.d.batch, cost > 1e9 ? 1000000000 : (int64_t)cost, piece, &j);
    return YK_OK;
}

static const struct host_kernel rows[] = {
    {.domain = "", .op = "RNN", .kind = "ref", .sizes = sizes, .run = run},
    {.domain = "", .op = "GRU", .kind = "ref", .sizes = sizes, .run = run},
    {.domain = "", .op = "LSTM", .kind = "ref", .sizes = sizes, .run = run},
};
const struct host_rows ref_rnn = {rows, (int)YK_COUNT(rows)};
