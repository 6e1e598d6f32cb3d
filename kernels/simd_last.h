/* Channels-last operands of the fast convolutions, and the scratch of their tiles. */
#ifndef YK_SIMD_LAST_H
#define YK_SIMD_LAST_H

#include <stdatomic.h>

#include "common/activation.h"
#include "kernels/conv.h"
#include "kernels/simd_isa.h"

/* Scratch pieces that tiles borrow: as many tiles run at once as there are pieces, whichever threads run them. A tile
 * takes the lowest free one, so that few threads stay in few caches. */
#define SIMD_SLOTS_MAX 32
struct simd_slots {
    char *base;
    int64_t bytes; /* of one; a multiple of 64 */
    int n;
    atomic_uint free;
};
/* How many pieces of that size an op of so many tiles gets. */
int simd_last_slots(int64_t bytes, int64_t tiles);
int64_t simd_last_slots_most(int64_t bytes, int64_t tiles); /* bytes of all, for these and all smaller numbers */
void simd_last_lend(struct simd_slots *s, void *base, int64_t bytes, int n);
int simd_last_take(struct simd_slots *s);
void simd_last_give(struct simd_slots *s, int slot);
static inline void *simd_last_slot(const struct simd_slots *s, int slot)
{
    return s->base + slot * s->bytes;
}

/* Fills act, lo and hi. */
void simd_last_act(struct simd_epilogue *e, const struct activation *f);
/* y = x turned from (N,C,P) to (N,P,C), or back. */
void simd_last_turn(
    struct pool *pool, int64_t n, float *y, const float *x, int64_t channels, int64_t pixels, bool to_last);

/* A convolution with its operands channels last: those that are not are copied into the workspace first, the result
 * out of it at the end. */
struct simd_last {
    struct host_call *c;
    const struct simd_isa *isa;
    struct conv_dims d; /* right-aligned */
    const float *x;
    float *y;
    struct simd_epilogue e;
    bool copy_out;
    char *rest; /* workspace behind the copies */
};
/* 1-D or 2-D in f32, with weights that can be packed. */
bool simd_last_claim(const struct op_ctx *c, struct conv_dims *d);
int64_t simd_last_workspace(const struct op_ctx *c, const struct conv_dims *d); /* of the copies */
yk_err simd_last_begin(struct host_call *c, struct simd_last *out);
yk_err simd_last_begin_as_is(struct host_call *c, struct simd_last *out); /* x stays how it is stored */
void simd_last_end(struct simd_last *s);

/* For other ops on (N,C,W) or (N,C,H,W): input i channels last, in place or copied to *rest, which moves on; where
 * output i is to be made, and what brings it to where it belongs. Copies take simd_last_bytes. */
int64_t simd_last_bytes(const struct shape *s);
const float *simd_last_input(struct host_call *c, int i, char **rest);
float *simd_last_output(struct host_call *c, int i, char **rest);
void simd_last_output_end(struct host_call *c, int i, const float *made);
/* The same for an output that is made dense. */
float *simd_last_dense(struct host_call *c, int i, char **rest);
void simd_last_dense_end(struct host_call *c, int i, const float *made);

extern const struct host_rows simd_grad_input, simd_grad_weight, simd_grad_winograd;
extern const struct host_rows simd_attention, simd_deconv, simd_direct, simd_group, simd_narrow, simd_preact,
    simd_products, simd_winograd;

#endif
