/* Random numbers by counter: element i of a node is a function of the run's seed, the node and i, whatever the order,
 * the tiles or the device. Philox4x32-10 (Salmon et al., SC11): the key is the seed, the counter is the element and
 * the stream. */
#ifndef YK_RANDOM_H
#define YK_RANDOM_H

#include "kernels/host.h"

struct random {
    uint64_t seed, stream;
};

/* The generator of a node: seed from the run, stream from the node's place in its graph and its attribute seed. */
struct random random_of(const struct host_call *c);

/* 128 bits of element i. */
void random_bits(const struct random *r, uint64_t i, uint32_t out[4]);

/* [0, 1) with 53 bits. which: 0 or 1, two independent ones. */
double random_unit(const struct random *r, uint64_t i, int which);

#endif
