/* A dense row-major tensor in host memory: what kernels read and write. */
#ifndef YK_TENSOR_H
#define YK_TENSOR_H

#include "common/graph.h"

struct tensor {
    struct shape shape; /* dims are all known */
    void *data;         /* borrowed, aligned for the dtype; NULL only if shape_bytes is 0 */
};

static inline int64_t tensor_count(const struct tensor *t)
{
    return shape_count(&t->shape);
}
static inline int64_t tensor_bytes(const struct tensor *t)
{
    return shape_bytes(&t->shape);
}

/* max|a-b| / max|b| over float tensors of equal shape, "relative" as the project uses the word; 0 if both are zero or
 * empty, infinity if a value is NaN or infinite in one only. Integers: 0 if equal, else infinity. */
double tensor_relative(const struct tensor *a, const struct tensor *b);

#endif
