/* The activations that a fused op applies to its result: attribute "activation" and its parameters, in one table. */
#ifndef YK_ACTIVATION_H
#define YK_ACTIVATION_H

#include <math.h>

#include "common/graph.h"

/* What y is for v; NaN passes. a and b are the two parameters of the kind. */
enum activation_kind {
    ACTIVATION_NONE,
    ACTIVATION_RELU,         /* max(v, 0) */
    ACTIVATION_CLIP,         /* v in [a, b] */
    ACTIVATION_LEAKY_RELU,   /* v < 0 ? a v : v */
    ACTIVATION_HARD_SIGMOID, /* a v + b in [0, 1] */
    ACTIVATION_HARD_SWISH,   /* v (a v + b in [0, 1]) */
    ACTIVATION_SIGMOID,      /* 1 / (1 + exp(-v)) */
    ACTIVATION_SILU,         /* v sigmoid(v) */
    ACTIVATION_GELU          /* v (1 + erf(v / sqrt 2)) / 2 */
};

struct activation {
    enum activation_kind kind;
    float a, b;
};

/* Of a node that passed the check; none where the attribute is absent. */
struct activation activation_of(const struct node *n);
/* YK_INVAL for a name that is not in the table or a parameter that is absent or no float. */
yk_err activation_check(const struct node *n, struct yk_diag *why);
/* Writes the attributes. */
yk_err activation_set(struct graph *g, struct node *n, const struct activation *a);

static inline double activation_clamp(double v, double lo, double hi)
{
    v = v < lo ? lo : v;
    return v > hi ? hi : v;
}

static inline double activation_apply(const struct activation *f, double v)
{
    double a = (double)f->a, b = (double)f->b;
    switch (f->kind) {
    case ACTIVATION_NONE:
        return v;
    case ACTIVATION_RELU:
        return v < 0 ? 0 : v;
    case ACTIVATION_CLIP:
        return activation_clamp(v, a, b);
    case ACTIVATION_LEAKY_RELU:
        return v < 0 ? a * v : v;
    case ACTIVATION_HARD_SIGMOID:
        return activation_clamp(a * v + b, 0, 1);
    case ACTIVATION_HARD_SWISH:
        return v * activation_clamp(a * v + b, 0, 1);
    case ACTIVATION_SIGMOID:
        return 1 / (1 + exp(-v));
    case ACTIVATION_SILU:
        return v / (1 + exp(-v));
    case ACTIVATION_GELU:
        return v * (0.5 * (1 + erf(v * 0.70710678118654752440)));
    }
    return v;
}

#endif
