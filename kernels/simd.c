#include "kernels/simd.h"

bool simd_claim_f32(const struct op_ctx *c)
{
    bool any = false;
    for (int i = 0; i < c->n_in; i++) {
        if (c->in[i] && c->in[i]->dtype != DT_F32)
            return false;
        any |= c->in[i] != NULL;
    }
    return any;
}

static yk_err simd_open(struct pool *pool, struct backend **out, struct yk_diag *why)
{
    const struct host_rows tables[] = {simd_math, simd_norm, simd_conv};
    return host_open(&backend_simd, "generic", tables, (int)YK_COUNT(tables), pool, out, why);
}

const struct backend_ops backend_simd = HOST_OPS("simd", simd_open);
