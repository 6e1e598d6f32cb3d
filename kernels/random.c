#include "kernels/random.h"

#include <string.h>

#define ROUNDS 10

void random_bits(const struct random *r, uint64_t i, uint32_t out[4])
{
    uint32_t x[4] = {(uint32_t)i, (uint32_t)(i >> 32), (uint32_t)r->stream, (uint32_t)(r->stream >> 32)};
    uint32_t k0 = (uint32_t)r->seed, k1 = (uint32_t)(r->seed >> 32);
    for (int n = 0; n < ROUNDS; n++) {
        uint64_t a = (uint64_t)x[0] * 0xD2511F53u, b = (uint64_t)x[2] * 0xCD9E8D57u;
        uint32_t y0 = (uint32_t)(b >> 32) ^ x[1] ^ k0, y2 = (uint32_t)(a >> 32) ^ x[3] ^ k1;
        x[0] = y0;
        x[1] = (uint32_t)b;
        x[2] = y2;
        x[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, x, sizeof(x));
}

double random_unit(const struct random *r, uint64_t i, int which)
{
    uint32_t x[4];
    random_bits(r, i, x);
    uint64_t bits = ((uint64_t)x[2 * which + 1] << 32 | x[2 * which]) >> 11;
    return (double)bits * 0x1p-53;
}

struct random random_of(const struct host_call *c)
{
    const struct attr *a = node_attr(c->node, "seed");
    uint32_t own = 0;
    if (a && a->kind == ATTR_FLOAT)
        memcpy(&own, &a->f, sizeof(own));
    else if (a && a->kind == ATTR_INT)
        own = (uint32_t)a->i ^ (uint32_t)((uint64_t)a->i >> 32);
    return (struct random){c->seed, (uint64_t)own << 32 | (uint32_t)(c->node - c->graph->nodes)};
}
