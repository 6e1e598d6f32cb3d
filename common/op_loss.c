/* Shape rules of losses and of the optimiser steps of domain ai.onnx.preview.training. */
#include <string.h>

#include "common/op_rules.h"

/* Scores (N, C, d...), class ids (N, d...), a weight for each class. Fills output 0: of one number, or like the ids. */
static yk_err loss(struct op_ctx *c)
{
    static const char *const reductions[] = {"mean", "sum", "none"};
    const struct shape *x = c->in[0], *ids = c->in[1], *w = c->n_in > 2 ? c->in[2] : NULL;
    int reduction;
    int64_t ignore;
    yk_err err;
    if ((err = op_want(c, 0, OP_FLOATS)) != YK_OK || (err = op_want(c, 1, OP_INDEX)) != YK_OK ||
        (err = op_want_same(c, 0, 2)) != YK_OK || (err = op_want_rank(c, 0, 2, YK_MAX_RANK)) != YK_OK ||
        (err = op_attr_word(c, "reduction", reductions, 3, 0, &reduction)) != YK_OK ||
        (err = op_attr_i(c, "ignore_index", 0, &ignore)) != YK_OK)
        return err;
    bool fits = ids->rank == x->rank - 1 && ids->dims[0] == x->dims[0];
    for (int k = 1; fits && k < ids->rank; k++)
        fits = ids->dims[k] == x->dims[k + 1];
    if (!fits)
        return yk_fail(c->why, YK_INVAL, "the class ids (input 1) do not have the shape of the scores without axis 1");
    if (w && (w->rank != 1 || w->dims[0] != x->dims[1]))
        return yk_fail(
            c->why, YK_INVAL, "the weights (input 2) are not one for each of %lld classes", (long long)x->dims[1]);
    if (shape_count(ids) > 0 && x->dims[1] == 0)
        return yk_fail(c->why, YK_INVAL, "no classes (axis 1 of input 0 is empty)");
    if (reduction == 2)
        op_out_like(c, 0, ids, x->dtype);
    else
        op_out(c, 0, x->dtype, 0, NULL);
    return YK_OK;
}

/* NegativeLogLikelihoodLoss-13 */
yk_err op_rule_nll_loss(struct op_ctx *c)
{
    return loss(c);
}

/* SoftmaxCrossEntropyLoss-13: the loss, and the logarithms of the probabilities. */
yk_err op_rule_sce_loss(struct op_ctx *c)
{
    yk_err err = loss(c);
    if (!err)
        op_out_like(c, 1, c->in[0], c->in[0]->dtype);
    return err;
}

/* ---- optimisers: R (rate), T (step), then all X, all G, all of each state; new X, new states ---- */

static yk_err optimiser(struct op_ctx *c, int states, const char *const *floats, int n_floats)
{
    int lists = 2 + states, n = (c->n_in - 2) / lists;
    float f;
    yk_err err;
    if (c->n_in - 2 != n * lists || c->n_out > n * (1 + states))
        return yk_fail(c->why, YK_INVAL, "%d inputs and %d outputs: want 2 + %d and at most %d for each tensor",
            c->n_in, c->n_out, lists, 1 + states);
    if ((err = op_want(c, 0, OP_BIT(DT_F32) | OP_BIT(DT_F64))) != YK_OK ||
        (err = op_want(c, 1, OP_BIT(DT_I64))) != YK_OK)
        return err;
    for (int i = 0; i < 2; i++)
        if (!op_is_scalar(c->in[i]))
            return yk_fail(c->why, YK_INVAL, "input %d is not a scalar", i);
    for (int i = 0; i < n_floats; i++)
        if ((err = op_attr_f(c, floats[i], 0, &f)) != YK_OK)
            return err;
    for (int i = 2; i < c->n_in; i++) {
        const struct shape *x = c->in[2 + (i - 2) % n];
        if ((err = op_want(c, i, OP_BIT(DT_F32) | OP_BIT(DT_F64))) != YK_OK)
            return err;
        if (!shape_equal(x, c->in[i]))
            return yk_fail(c->why, YK_INVAL, "input %d does not have type and shape of input %d", i, 2 + (i - 2) % n);
    }
    for (int i = 0; i < c->n_out; i++)
        op_out_like(c, i, c->in[2 + i % n], c->in[2 + i % n]->dtype);
    return YK_OK;
}

yk_err op_rule_adagrad(struct op_ctx *c)
{
    static const char *const floats[] = {"decay_factor", "epsilon", "norm_coefficient"};
    return optimiser(c, 1, floats, (int)YK_COUNT(floats));
}

yk_err op_rule_adam(struct op_ctx *c)
{
    static const char *const floats[] = {"alpha", "beta", "epsilon", "norm_coefficient", "norm_coefficient_post"};
    return optimiser(c, 2, floats, (int)YK_COUNT(floats));
}

yk_err op_rule_momentum(struct op_ctx *c)
{
    static const char *const floats[] = {"alpha", "beta", "norm_coefficient"}, *const modes[] = {
                                                                                   "standard", "nesterov"};
    int mode;
    yk_err err = op_attr_word(c, "mode", modes, 2, -1, &mode);
    for (int i = 0; !err && i < 3; i++)
        if (!node_attr(c->node, floats[i]))
            err = yk_fail(c->why, YK_INVAL, "attribute %s is missing", floats[i]);
    return err ? err : optimiser(c, 1, floats, (int)YK_COUNT(floats));
}

double op_flops_optimiser(const struct op_ctx *c)
{
    double sum = 0;
    for (int i = 0; i < c->n_out; i++)
        sum += 6 * (double)shape_count(&c->out[i]);
    return sum;
}
