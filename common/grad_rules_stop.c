/* Ops whose derivative is zero or has no meaning: no gradient goes through them, and what is behind them needs none. */
#include "common/grad_priv.h"

#define STOP(op)           \
    {                      \
        op, "", 0, 0, NULL \
    }
static const struct grad_rule rows[] = {
    STOP("Shape"),
    STOP("Size"),
    STOP("Constant"),
    STOP("ConstantOfShape"),
    STOP("Range"),
    STOP("EyeLike"),
    STOP("OneHot"),
    STOP("Floor"),
    STOP("Ceil"),
    STOP("Round"),
    STOP("Sign"),
    STOP("Not"),
    STOP("And"),
    STOP("Or"),
    STOP("Xor"),
    STOP("Equal"),
    STOP("Greater"),
    STOP("GreaterOrEqual"),
    STOP("Less"),
    STOP("LessOrEqual"),
    STOP("IsNaN"),
    STOP("IsInf"),
    STOP("ArgMax"),
    STOP("ArgMin"),
    STOP("Hardmax"),
    STOP("NonZero"),
    STOP("NonMaxSuppression"),
    STOP("BitShift"),
    STOP("RandomUniform"),
    STOP("RandomNormal"),
    STOP("RandomUniformLike"),
    STOP("RandomNormalLike"),
    STOP("Bernoulli"),
    STOP("Multinomial"),
    STOP("HannWindow"),
    STOP("HammingWindow"),
    STOP("BlackmanWindow"),
    STOP("MelWeightMatrix"),
};
const struct grad_rules grad_rules_stop = {rows, (int)YK_COUNT(rows)};
