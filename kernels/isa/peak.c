/* As many multiply-adds as a core can do, without memory: what times are a share of. */
#include "kernels/isa/vec.h"

#define CHAINS 12

float vec_fn(peak)(int64_t rounds)
{
    vf acc[CHAINS];
    const vf half = vf_set(0.5f), one = vf_set(1.0f);
    float sum = 0;
    for (int i = 0; i < CHAINS; i++)
        acc[i] = vf_set((float)i);
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            acc[i] = vf_fma(acc[i], half, one);
    for (int i = 0; i < CHAINS; i++)
        sum += acc[i][0];
    return sum;
}
