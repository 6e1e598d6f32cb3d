/* Walks tensors that broadcast against each other: adjacent axes are merged where all operands allow it, so most walks
 * are one long run. */
#ifndef YK_ITER_H
#define YK_ITER_H

#include "kernels/tensor.h"

#define ITER_MAX (64 + 1)

struct iter {
    int n, rank;
    int64_t dims[YK_MAX_RANK];
    int64_t step[ITER_MAX][YK_MAX_RANK]; /* elements; 0 where the operand repeats */
    int64_t outer, inner;                /* runs, and elements of a run (the last axis) */
};

/* Operand 0 is the result; every operand broadcasts to it (the shape rule has made sure). n <= ITER_MAX. */
void iter_broadcast(struct iter *it, const struct shape *const *operands, int n);
/* Element offsets of all operands at the start of a run. */
void iter_at(const struct iter *it, int64_t run, int64_t *offset);
/* Elements from one to the next inside a run. */
static inline int64_t iter_step(const struct iter *it, int operand)
{
    return it->step[operand][it->rank - 1];
}

#endif
