/* What RNN, GRU and LSTM say in attributes and shapes, resolved and checked once for the shape rule and all kernels. */
#ifndef YK_OP_RNN_H
#define YK_OP_RNN_H

#include "common/op.h"

enum rnn_kind { RNN_PLAIN, RNN_GRU, RNN_LSTM };

enum rnn_fn {
    RNN_SIGMOID,
    RNN_TANH,
    RNN_RELU,
    RNN_AFFINE,
    RNN_LEAKY_RELU,
    RNN_THRESHOLDED_RELU,
    RNN_SCALED_TANH,
    RNN_HARD_SIGMOID,
    RNN_ELU,
    RNN_SOFTSIGN,
    RNN_SOFTPLUS
};

struct rnn_act {
    enum rnn_fn fn;
    float alpha, beta; /* used by some */
};

/* Input and output slots: X W R [B] [sequence_lens] [initial_h] [initial_c] [P] -> [Y] [Y_h] [Y_c]. */
enum { RNN_X, RNN_W, RNN_R, RNN_B, RNN_LENS, RNN_H0, RNN_C0, RNN_P };

struct rnn_dims {
    enum rnn_kind kind;
    int gates;        /* 1, 3 (z r h) or 4 (i o f c) */
    int dirs;         /* 2: forward, then reverse */
    bool reverse;     /* of a single direction */
    bool batch_first; /* layout 1 */
    bool linear_before_reset, input_forget;
    bool clips;
    float clip;
    int64_t seq, batch, input, hidden;
    struct rnn_act act[2][3]; /* by direction: f, g, h */
};

/* in: the input shapes by slot (NULL: absent). Errors: YK_INVAL. */
yk_err op_rnn_dims(
    const struct node *n, const struct shape *const *in, int n_in, struct rnn_dims *out, struct yk_diag *why);

/* Element offsets of (direction, step, sample) in X, Y and the states, whatever the layout. */
static inline int64_t rnn_at_x(const struct rnn_dims *d, int64_t t, int64_t b)
{
    return (d->batch_first ? b * d->seq + t : t * d->batch + b) * d->input;
}
static inline int64_t rnn_at_y(const struct rnn_dims *d, int64_t t, int64_t dir, int64_t b)
{
    return (d->batch_first ? (b * d->seq + t) * d->dirs + dir : (t * d->dirs + dir) * d->batch + b) * d->hidden;
}
static inline int64_t rnn_at_state(const struct rnn_dims *d, int64_t dir, int64_t b)
{
    return (d->batch_first ? b * d->dirs + dir : dir * d->batch + b) * d->hidden;
}
static inline bool rnn_reversed(const struct rnn_dims *d, int64_t dir)
{
    return d->dirs == 2 ? dir == 1 : d->reverse;
}

#endif
