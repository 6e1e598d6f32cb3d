/* What the fast convolutions share: dimensions with the width last, and the epilogue of the fused ops. */
#ifndef YK_CONV_H
#define YK_CONV_H

#include "common/activation.h"
#include "kernels/host.h"

/* op_conv_dims puts the first spatial axis first; this moves them to the end, so that index 2 is the width always. */
void conv_right_align(struct conv_dims *d);

/* y = activate(y + bias + residual), in that order; a NaN passes. */
struct conv_epilogue {
    const float *bias;     /* by output channel, NULL: none */
    const float *residual; /* as the output, NULL: none */
    struct activation act;
};
void conv_epilogue_of(const struct node *n, struct conv_epilogue *out); /* the activation alone */
/* n elements of channel oc at y; `at` is the element offset of y in the output. */
void conv_epilogue_row(const struct conv_epilogue *e, float *y, int64_t oc, int64_t at, int64_t n);
/* A row of a matrix product: bias[i * step], step 0 or 1; NULL: none. */
void conv_epilogue_bias(const struct conv_epilogue *e, float *y, const float *bias, int64_t step, int64_t n);

/* A ConvGradInput of stride 1 is a convolution of dY: taps run backwards, input and output channels swap. */
bool conv_is_grad_input(const struct node *n);
/* Right-aligned dimensions of Conv and FusedConv, or of that convolution; YK_UNSUPPORTED if the stride is not 1. x is
 * the shape of input 0, y of output 0. */
yk_err conv_dims_of(const struct node *n, const struct shape *x, const struct shape *w, const struct shape *y,
    struct conv_dims *d, struct yk_diag *why);

/* Leaves out taps at the ends of the axes that read padding only (of a 3x3 kernel over one pixel all but the middle).
 * first: tap 0 of what is left, by right-aligned axis. */
void conv_trim(struct conv_dims *d, int64_t first[3]);

/* Of a Conv, FusedConv or such a ConvGradInput call: right-aligned dimensions and the epilogue. */
yk_err conv_setup(struct host_call *c, struct conv_dims *d, struct conv_epilogue *e);

#endif
