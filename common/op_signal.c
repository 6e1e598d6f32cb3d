/* Shape rules of DFT, STFT, the windows and MelWeightMatrix. */
#include <string.h>

#include "common/op_rules.h"

/* A scalar (or one-element list) of int32 or int64 that has to be known, in lo..hi. */
static yk_err known(const struct op_ctx *c, int i, const char *what, int64_t lo, int64_t hi, int64_t *out)
{
    const int64_t *v = NULL;
    int n = 0;
    yk_err err = op_ints(c, i, what, &v, &n);
    if (err)
        return err;
    if (n != 1)
        return yk_fail(c->why, YK_INVAL, "%s (input %d) is not one number", what, i);
    if (v[0] < lo || v[0] > hi)
        return yk_fail(c->why, YK_INVAL, "%s is %lld, allowed are %lld to %lld", what, (long long)v[0], (long long)lo,
            (long long)hi);
    *out = v[0];
    return YK_OK;
}

static bool present(const struct op_ctx *c, int i)
{
    return i < c->n_in && c->in[i];
}

/* A list of complex numbers of n points: all of them, or without the mirrored half. */
static int64_t bins(int64_t n, bool onesided)
{
    return onesided ? n / 2 + 1 : n;
}

/* DFT-17: (.., signal, .., 1 or 2) and an optional length. */
yk_err op_rule_dft(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    int64_t axis, inverse, onesided, n, dims[YK_MAX_RANK];
    int at;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want_rank(c, 0, 2, YK_MAX_RANK)) != YK_OK ||
        (err = op_attr_i(c, "axis", 1, &axis)) != YK_OK || (err = op_attr_i(c, "inverse", 0, &inverse)) != YK_OK ||
        (err = op_attr_i(c, "onesided", 0, &onesided)) != YK_OK || (err = op_axis(axis, x->rank, &at, c->why)) != YK_OK)
        return err;
    int64_t parts = x->dims[x->rank - 1];
    if (at == x->rank - 1)
        return yk_fail(c->why, YK_INVAL, "axis %lld is the one of the real and imaginary parts", (long long)axis);
    if (parts != 1 && parts != 2)
        return yk_fail(
            c->why, YK_INVAL, "the last axis has %lld elements, wants 1 (real) or 2 (complex)", (long long)parts);
    if (onesided && (inverse || parts == 2))
        return yk_fail(c->why, YK_INVAL, "onesided is for the transform of real numbers only");
    n = x->dims[at];
    if (present(c, 1) && (err = known(c, 1, "dft_length", 1, INT32_MAX, &n)) != YK_OK)
        return err;
    if (n < 1 || n > INT32_MAX)
        return yk_fail(c->why, YK_INVAL, "axis %d has %lld elements, allowed are 1 to %d", at, (long long)n, INT32_MAX);
    for (int i = 0; i < x->rank; i++)
        dims[i] = i == at ? bins(n, onesided != 0) : i == x->rank - 1 ? 2 : x->dims[i];
    op_out(c, 0, x->dtype, x->rank, dims);
    return YK_OK;
}

/* One multiplication for each pair of points, as the reference kernel does. */
double op_flops_dft(const struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    int axis;
    if (strcmp(c->node->op->name, "STFT") == 0)
        return 8 * (double)YK_MAX(shape_count(&c->out[0]), 0) * (double)c->out[0].dims[2];
    if (op_axis(node_attr_i(c->node, "axis", 1), x->rank, &axis, NULL))
        return 0;
    return 4 * (double)YK_MAX(shape_count(&c->out[0]), 0) * (double)x->dims[axis];
}

/* STFT-17: signal (batch, length, [1 or 2]), frame_step, [window], [frame_length]. */
yk_err op_rule_stft(struct op_ctx *c)
{
    const struct shape *x = c->in[0];
    int64_t onesided, step, frame = -1;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want_rank(c, 0, 2, 3)) != YK_OK ||
        (err = op_want_same(c, 0, 2)) != YK_OK || (err = op_want_rank(c, 2, 1, 1)) != YK_OK ||
        (err = op_attr_i(c, "onesided", 1, &onesided)) != YK_OK ||
        (err = known(c, 1, "frame_step", 1, INT32_MAX, &step)) != YK_OK)
        return err;
    int64_t parts = x->rank == 3 ? x->dims[2] : 1;
    if (parts != 1 && parts != 2)
        return yk_fail(
            c->why, YK_INVAL, "the last axis has %lld elements, wants 1 (real) or 2 (complex)", (long long)parts);
    if (onesided && parts == 2)
        return yk_fail(c->why, YK_INVAL, "onesided is for the transform of real numbers only");
    if (present(c, 2))
        frame = c->in[2]->dims[0];
    if (present(c, 3)) {
        int64_t length;
        if ((err = known(c, 3, "frame_length", 1, INT32_MAX, &length)) != YK_OK)
            return err;
        if (frame >= 0 && frame != length)
            return yk_fail(c->why, YK_INVAL, "frame_length is %lld, the window has %lld elements", (long long)length,
                (long long)frame);
        frame = length;
    }
    if (frame < 0)
        return yk_fail(c->why, YK_INVAL, "neither window nor frame_length is given");
    if (frame < 1 || frame > INT32_MAX || frame > x->dims[1])
        return yk_fail(
            c->why, YK_INVAL, "a frame of %lld in a signal of %lld", (long long)frame, (long long)x->dims[1]);
    int64_t dims[4] = {x->dims[0], (x->dims[1] - frame) / step + 1, bins(frame, onesided != 0), 2};
    op_out(c, 0, x->dtype, 4, dims);
    return YK_OK;
}

/* The type that attribute output_datatype asks for. */
static yk_err datatype(const struct op_ctx *c, enum dtype *out)
{
    int64_t type;
    yk_err err = op_attr_i(c, "output_datatype", 1, &type);
    if (err)
        return err;
    *out = dtype_from_onnx(type);
    if (*out == DT_NONE || *out == DT_BOOL)
        return yk_fail(c->why, YK_INVAL, "output_datatype %lld is not a number type", (long long)type);
    return YK_OK;
}

/* HannWindow, HammingWindow, BlackmanWindow: size. */
yk_err op_rule_window(struct op_ctx *c)
{
    enum dtype t;
    int64_t periodic, size;
    yk_err err;
    if ((err = datatype(c, &t)) != YK_OK || (err = op_attr_i(c, "periodic", 1, &periodic)) != YK_OK ||
        (err = known(c, 0, "size", 0, INT32_MAX, &size)) != YK_OK)
        return err;
    op_out(c, 0, t, 1, &size);
    return YK_OK;
}

/* MelWeightMatrix: num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz. */
yk_err op_rule_mel(struct op_ctx *c)
{
    enum dtype t;
    int64_t mels, length;
    yk_err err;
    for (int i = 2; i < 5; i++) {
        if ((err = op_want(c, i, i == 2 ? OP_INDEX : OP_FLOATS)) != YK_OK)
            return err;
        if (!op_is_scalar(c->in[i]))
            return yk_fail(c->why, YK_INVAL, "input %d is not one number", i);
    }
    if ((err = datatype(c, &t)) != YK_OK || (err = known(c, 0, "num_mel_bins", 1, INT32_MAX - 2, &mels)) != YK_OK ||
        (err = known(c, 1, "dft_length", 1, INT32_MAX, &length)) != YK_OK)
        return err;
    int64_t dims[2] = {bins(length, true), mels};
    op_out(c, 0, t, 2, dims);
    return YK_OK;
}
