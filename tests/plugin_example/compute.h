/* What the example's "device" can compute: plain loops that add in double. */
#ifndef COMPUTE_H
#define COMPUTE_H

#include <yoke/backend.h>

#define COMPUTE_IN 4

enum compute_kind { COMPUTE_NONE, COMPUTE_CONV, COMPUTE_GEMM, COMPUTE_MATMUL, COMPUTE_ADD, COMPUTE_RELU };

/* A node, compiled. */
struct compute {
    enum compute_kind kind;
    int n_in, in[COMPUTE_IN], out; /* indices of values; in: -1 if absent */
    int64_t pads[4], strides[2], dilations[2], group;
    int trans_a, trans_b;
    double alpha, beta;
    int activation; /* 0 none, 1 relu, 2 clip */
    double lo, hi;
};

/* COMPUTE_NONE in c->kind if this node is not for us. */
void compute_compile(const struct yoke_segment *s, int node, struct compute *c);
/* shapes and data by index of the segment's values. */
void compute_run(const struct compute *c, const struct yoke_shape *const *shapes, float *const *data);

int64_t compute_count(const struct yoke_shape *s);

#endif
