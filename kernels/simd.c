#include "kernels/simd.h"

#include "kernels/simd_last.h"

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

/* Best first: a node runs in the first form that claims it. */
static yk_err simd_open(struct pool *pool, struct backend **out, struct yk_diag *why)
{
    const struct host_rows tables[] = {simd_winograd, simd_group, simd_narrow, simd_direct, simd_products, simd_preact,
        simd_deconv, simd_attention, simd_grad_input, simd_grad_winograd, simd_grad_weight, /* of an isa */
        simd_math, simd_norm, simd_conv, simd_resize, simd_move, simd_norm_train, simd_grad_pool, simd_grad_rows,
        simd_grad_deep};
    yk_err err = host_open(&backend_simd, "generic", tables, (int)YK_COUNT(tables), pool, out, why);
    for (int i = 0; !err && i < 11; i++)
        host_table_isa(*out, i, simd_isa_best()->bits);
    return err;
}

const struct backend_ops backend_simd = HOST_OPS("simd", simd_open);
