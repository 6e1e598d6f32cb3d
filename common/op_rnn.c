#include "common/op_rnn.h"

#include <string.h>
#include <strings.h>

#include "common/op_rules.h"

/* Names, and how many of alpha and beta a function takes from the lists, with ONNX's defaults. */
static const struct {
    const char *name;
    enum rnn_fn fn;
    int params;
    float alpha, beta;
} functions[] = {
    {"Sigmoid", RNN_SIGMOID, 0, 0, 0},
    {"Tanh", RNN_TANH, 0, 0, 0},
    {"Relu", RNN_RELU, 0, 0, 0},
    {"Affine", RNN_AFFINE, 2, 1, 0},
    {"LeakyRelu", RNN_LEAKY_RELU, 1, 0.01f, 0},
    {"ThresholdedRelu", RNN_THRESHOLDED_RELU, 1, 1, 0},
    {"ScaledTanh", RNN_SCALED_TANH, 2, 1, 1},
    {"HardSigmoid", RNN_HARD_SIGMOID, 2, 0.2f, 0.5f},
    {"Elu", RNN_ELU, 1, 1, 0},
    {"Softsign", RNN_SOFTSIGN, 0, 0, 0},
    {"Softplus", RNN_SOFTPLUS, 0, 0, 0},
};

static yk_err int_attr(const struct node *n, const char *name, int64_t otherwise, int64_t *out, struct yk_diag *why)
{
    const struct attr *a = node_attr(n, name);
    if (a && a->kind != ATTR_INT)
        return yk_fail(why, YK_INVAL, "attribute %s is not an integer", name);
    *out = a ? a->i : otherwise;
    return YK_OK;
}

static yk_err direction(const struct node *n, struct rnn_dims *d, struct yk_diag *why)
{
    const struct attr *a = node_attr(n, "direction");
    const char *s = !a ? "forward" : a->kind == ATTR_STRING ? a->s : "?";
    d->dirs = 1;
    if (strcasecmp(s, "reverse") == 0)
        d->reverse = true;
    else if (strcasecmp(s, "bidirectional") == 0)
        d->dirs = 2;
    else if (strcasecmp(s, "forward") != 0)
        return yk_fail(why, YK_INVAL, "attribute direction is none of forward, reverse, bidirectional");
    return YK_OK;
}

/* A list of parameters, taken in the order of the functions that have one. */
struct params {
    const float *v;
    size_t n, used;
};

static yk_err params_attr(const struct node *n, const char *name, struct params *p, struct yk_diag *why)
{
    const struct attr *a = node_attr(n, name);
    *p = (struct params){.n = 0};
    if (!a || (a->kind == ATTR_INTS && a->n == 0)) /* an empty list has no type in a file */
        return YK_OK;
    if (a->kind != ATTR_FLOATS)
        return yk_fail(why, YK_INVAL, "attribute %s is not a list of numbers", name);
    p->v = a->floats;
    p->n = a->n;
    return YK_OK;
}

static yk_err activations(const struct node *n, struct rnn_dims *d, struct yk_diag *why)
{
    static const enum rnn_fn usual[3][3] = {
        [RNN_PLAIN] = {RNN_TANH}, [RNN_GRU] = {RNN_SIGMOID, RNN_TANH}, [RNN_LSTM] = {RNN_SIGMOID, RNN_TANH, RNN_TANH}};
    int per = d->kind == RNN_PLAIN ? 1 : d->kind == RNN_GRU ? 2 : 3;
    const struct attr *a = node_attr(n, "activations");
    struct params alpha, beta;
    yk_err err = params_attr(n, "activation_alpha", &alpha, why);
    if (err || (err = params_attr(n, "activation_beta", &beta, why)) != YK_OK)
        return err;
    bool given = a && !(a->kind == ATTR_INTS && a->n == 0);
    if (given && (a->kind != ATTR_STRINGS || a->n != (size_t)(per * d->dirs)))
        return yk_fail(why, YK_INVAL, "attribute activations is not a list of %d names", per * d->dirs);
    for (int i = 0; i < per * d->dirs; i++) {
        size_t f = 0;
        if (given)
            while (f < YK_COUNT(functions) && strcasecmp(functions[f].name, a->strings[i]) != 0)
                f++;
        else
            while (functions[f].fn != usual[d->kind][i % per])
                f++;
        if (f == YK_COUNT(functions))
            return yk_fail(why, YK_INVAL, "activation '%.40s' is not one of ONNX", a->strings[i]);
        struct rnn_act *act = &d->act[i / per][i % per];
        *act = (struct rnn_act){functions[f].fn, functions[f].alpha, functions[f].beta};
        if (functions[f].params > 0 && alpha.used < alpha.n)
            act->alpha = alpha.v[alpha.used++];
        if (functions[f].params > 1 && beta.used < beta.n)
            act->beta = beta.v[beta.used++];
    }
    return YK_OK;
}

/* Input i, if present, has exactly these sizes. */
static yk_err want_dims(const struct shape *const *in, int n_in, int i, int rank, int64_t a, int64_t b, int64_t c,
    const char *what, struct yk_diag *why)
{
    const int64_t want[3] = {a, b, c};
    if (i >= n_in || !in[i])
        return YK_OK;
    bool fits = in[i]->rank == rank;
    for (int k = 0; fits && k < rank; k++)
        fits = in[i]->dims[k] == want[k];
    if (fits)
        return YK_OK;
    char have[128], text[128];
    struct shape s = {.dtype = in[i]->dtype, .rank = rank, .dims = {a, b, c}};
    shape_text(in[i], have, sizeof have);
    shape_text(&s, text, sizeof text);
    return yk_fail(why, YK_INVAL, "%s (input %d) is %s, wants %s", what, i, have, text);
}

yk_err op_rnn_dims(
    const struct node *n, const struct shape *const *in, int n_in, struct rnn_dims *out, struct yk_diag *why)
{
    const char *name = n->op->name;
    struct rnn_dims d = {.kind = strcmp(name, "LSTM") == 0 ? RNN_LSTM : strcmp(name, "GRU") == 0 ? RNN_GRU : RNN_PLAIN};
    const struct shape *x = in[RNN_X], *r = in[RNN_R];
    int64_t layout = 0, hidden = -1, lbr = 0, forget = 0, rows;
    yk_err err;
    d.gates = d.kind == RNN_LSTM ? 4 : d.kind == RNN_GRU ? 3 : 1;
    if ((err = direction(n, &d, why)) != YK_OK || (err = int_attr(n, "layout", 0, &layout, why)) != YK_OK ||
        (err = int_attr(n, "hidden_size", -1, &hidden, why)) != YK_OK ||
        (err = int_attr(n, "linear_before_reset", 0, &lbr, why)) != YK_OK ||
        (err = int_attr(n, "input_forget", 0, &forget, why)) != YK_OK || (err = activations(n, &d, why)) != YK_OK)
        return err;
    if (layout != 0 && layout != 1)
        return yk_fail(why, YK_INVAL, "attribute layout is neither 0 nor 1");
    const struct attr *clip = node_attr(n, "clip");
    if (clip && (clip->kind != ATTR_FLOAT || !(clip->f >= 0)))
        return yk_fail(why, YK_INVAL, "attribute clip is not a number from 0 on");
    d.clips = clip && clip->f > 0;
    d.clip = d.clips ? clip->f : 0;
    d.batch_first = layout == 1;
    d.linear_before_reset = lbr != 0;
    d.input_forget = forget != 0;

    if (x->rank != 3 || r->rank != 3)
        return yk_fail(why, YK_INVAL, "X and R have %d and %d axes, want 3", x->rank, r->rank);
    d.seq = x->dims[layout];
    d.batch = x->dims[1 - layout];
    d.input = x->dims[2];
    d.hidden = r->dims[2];
    if (d.hidden < 1 || (hidden >= 0 && hidden != d.hidden))
        return yk_fail(
            why, YK_INVAL, "hidden_size is %lld, R has %lld columns", (long long)hidden, (long long)d.hidden);
    if (!yk_mul_i64(d.hidden, 16, &rows))
        return yk_fail(why, YK_LIMIT, "hidden_size is too large");
    rows = d.hidden * d.gates;
    int64_t first = d.batch_first ? d.batch : d.dirs, second = d.batch_first ? d.dirs : d.batch;
    if ((err = want_dims(in, n_in, RNN_W, 3, d.dirs, rows, d.input, "W", why)) != YK_OK ||
        (err = want_dims(in, n_in, RNN_R, 3, d.dirs, rows, d.hidden, "R", why)) != YK_OK ||
        (err = want_dims(in, n_in, RNN_B, 2, d.dirs, 2 * rows, 0, "B", why)) != YK_OK ||
        (err = want_dims(in, n_in, RNN_LENS, 1, d.batch, 0, 0, "sequence_lens", why)) != YK_OK ||
        (err = want_dims(in, n_in, RNN_H0, 3, first, second, d.hidden, "initial_h", why)) != YK_OK ||
        (err = want_dims(in, n_in, RNN_C0, 3, first, second, d.hidden, "initial_c", why)) != YK_OK ||
        (err = want_dims(in, n_in, RNN_P, 2, d.dirs, 3 * d.hidden, 0, "P", why)) != YK_OK)
        return err;
    /* What a kernel keeps for each sample; X may be empty along the other axes. */
    int64_t kept;
    if (!yk_add_i64(d.input, 16 * d.hidden, &kept) || !yk_mul_i64(kept, d.dirs, &kept) ||
        !yk_mul_i64(kept, d.batch, &kept) || kept > YK_MAX_COUNT)
        return yk_fail(why, YK_LIMIT, "a batch of %lld is too large", (long long)d.batch);
    *out = d;
    return YK_OK;
}

yk_err op_rule_rnn(struct op_ctx *c)
{
    struct rnn_dims d;
    yk_err err;
    for (int i = 0; i < c->n_in; i++) {
        if ((err = op_want(c, i, i == RNN_LENS ? OP_BIT(DT_I32) : OP_FLOATS)) != YK_OK ||
            (i != RNN_LENS && (err = op_want_same(c, 0, i)) != YK_OK))
            return err;
    }
    if ((err = op_rnn_dims(c->node, c->in, c->n_in, &d, c->why)) != YK_OK)
        return err;
    int64_t y[2][4] = {{d.seq, d.dirs, d.batch, d.hidden}, {d.batch, d.seq, d.dirs, d.hidden}};
    int64_t state[2][3] = {{d.dirs, d.batch, d.hidden}, {d.batch, d.dirs, d.hidden}};
    op_out(c, 0, c->in[0]->dtype, 4, y[d.batch_first]);
    op_out(c, 1, c->in[0]->dtype, 3, state[d.batch_first]);
    op_out(c, 2, c->in[0]->dtype, 3, state[d.batch_first]);
    return YK_OK;
}

double op_flops_rnn(const struct op_ctx *c)
{
    struct rnn_dims d;
    if (op_rnn_dims(c->node, c->in, c->n_in, &d, NULL))
        return 0;
    double rows = (double)d.gates * (double)d.hidden;
    double step = rows * 2 * ((double)d.input + (double)d.hidden) + 6 * rows;
    return (double)d.seq * (double)d.batch * (double)d.dirs * step;
}
