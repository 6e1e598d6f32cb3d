/* The equation of Einsum, read once for the shape rule and all kernels. */
#ifndef YK_OP_EINSUM_H
#define YK_OP_EINSUM_H

#include "common/op.h"

#define EINSUM_LABELS (52 + YK_MAX_RANK) /* letters, and the axes of an ellipsis */

/* Labels are numbered: first those of the output, in its order, then those that are summed over. */
struct einsum {
    int n_labels, n_out;
    int64_t size[EINSUM_LABELS];
    int n_in;
    int rank[OP_MAX_IN];
    int label[OP_MAX_IN][YK_MAX_RANK]; /* of each axis; a label twice in one input is its diagonal */
};
/* Errors: YK_INVAL (what of the equation is wrong), YK_LIMIT. */
yk_err op_einsum(
    const struct node *n, const struct shape *const *in, int n_in, struct einsum *out, struct yk_diag *why);

#endif
