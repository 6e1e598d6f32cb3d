/* The op table: name, arity, and for given input shapes the output shapes, FLOPs and bytes.
 * One row per op, in its opset-17 form (importing upgrades older forms). The shape rule is the check: whatever passes
 * it is safe for every kernel to run, so it verifies ranks, axes, sizes and dtypes before anything is allocated. Own
 * ops (fusions, gradients) have domain "ai.yoke". */
#ifndef YK_OP_H
#define YK_OP_H

#include "common/graph.h"

#define OP_MAX_IN 64 /* variadic ops (Concat, Sum, Einsum) included */
#define OP_MAX_OUT 32
#define OP_MAX_CONTENT 64 /* integer elements whose contents the shape rules follow */

enum op_flag {
    OP_ELEMENTWISE = 1 << 0, /* broadcast of the inputs; out[i] depends on in[i] only */
    OP_SHAPE = 1 << 1,       /* moves or computes shapes, contents of a few integers: no arithmetic worth a device */
    OP_DATA_SHAPE = 1 << 2,  /* output shape depends on data */
    OP_CONTROL = 1 << 3,     /* has subgraphs */
    OP_RANDOM = 1 << 4,
    OP_VIEW = 1 << 5,        /* same bytes, other shape: may alias its first input */
    OP_CONTRACTION = 1 << 6, /* Conv, Gemm, MatMul: where the FLOPs are */
    OP_VALUES = 1 << 7,      /* of sequences and optionals: no kernel, kernels/dynamic.c runs it by its actual inputs */
};

/* What a shape rule sees and fills. Contents: int64 copies of small integer (or bool) tensors where they are known.
 * What a rule needs and does not know yet (contents, sizes) is YK_DEPENDS: such a node runs by its actual inputs, where
 * contents and data of all of them are known. */
struct op_ctx {
    const struct graph *graph;
    const struct node *node;
    int n_in, n_out;
    const struct shape *in[OP_MAX_IN];               /* NULL for an absent input */
    const int64_t *content[OP_MAX_IN];               /* NULL if unknown */
    const void *data[OP_MAX_IN];                     /* elements, maybe unaligned; NULL if not known now */
    struct shape out[OP_MAX_OUT];                    /* to fill */
    int64_t out_content[OP_MAX_OUT][OP_MAX_CONTENT]; /* may fill for outputs of <= OP_MAX_CONTENT integers */
    bool out_known[OP_MAX_OUT];
    int64_t
        most[OP_MAX_OUT]; /* OP_DATA_SHAPE: elements an output with a dim of -1 has at most; the kernel says the dims */
    bool weights_vary;    /* for forms: weights change between runs, so that a copy in another order may not pay */
    struct yk_diag *why;
};

struct op {
    const char *name;
    const char *domain; /* "" is ONNX */
    int min_in, max_in, min_out, max_out;
    int since; /* the opset whose form this is (for listings) */
    unsigned flags;
    /* Errors: YK_INVAL (why: what is wrong, without the node's name, which the caller adds), YK_LIMIT, YK_UNSUPPORTED.
     */
    yk_err (*infer)(struct op_ctx *c);
    /* Multiply and add count as two. in/out shapes are known. NULL: one per output element, or 0 for OP_SHAPE/VIEW. */
    double (*flops)(const struct op_ctx *c);
};

const struct op *op_find(const char *domain, const char *name); /* NULL if not supported; "ai.onnx" is "" */
int op_count(void);
const struct op *op_at(int i); /* for `yoke local ops` */

double op_flops(const struct op_ctx *c); /* 0 where a size is not known */
double op_bytes(const struct op_ctx *c); /* inputs read + outputs written, weights included */

/* Checks arity, absent inputs and known input shapes, calls the rule, and checks what it made (rank, non-negative dims,
 * bytes without overflow). Always goes through here. */
yk_err op_infer(struct op_ctx *c);

/* An OP_CONTROL node's subgraphs: there, with the inputs and outputs that the op wants of them. */
yk_err op_control_check(const struct node *n, struct yk_diag *why);
/* Scan, with its attributes resolved. The body has n_state inputs, then n_in scanned ones; n_state outputs, then n_out
 * stacked ones. BatchScan (opset 8) has the batch in front of every axis and an input of lengths before the others. */
#define OP_SCAN_MAX (OP_MAX_IN > OP_MAX_OUT ? OP_MAX_IN : OP_MAX_OUT)
struct scan_dims {
    bool batched;
    int first; /* the node's input of the first state */
    int n_state, n_in, n_out;
    int64_t in_axis[OP_SCAN_MAX], out_axis[OP_SCAN_MAX]; /* as given, negative ones too */
    bool in_reverse[OP_SCAN_MAX], out_reverse[OP_SCAN_MAX];
};
yk_err op_scan_dims(const struct node *n, struct scan_dims *out, struct yk_diag *why);

/* Arithmetic that shape rules and kernels share, so that both see the same numbers. */
struct conv_dims { /* of Conv, ConvTranspose and pooling; axes 0..spatial-1 are used, the others are 1 with pads 0 */
    int spatial;   /* 1..3 */
    int64_t n, c, oc, group;
    int64_t in[3], out[3], k[3], stride[3], pad_begin[3], pad_end[3], dilation[3];
};
/* auto_pad, strides, pads, dilations, ceil_mode resolved and checked. w is NULL for pooling (kernel_shape attr, oc = c,
 * group 1); there every pad is smaller than the dilated kernel, but a dilated window may still hold no element. With
 * ceil_mode no window starts behind the input and its front padding. */
yk_err op_conv_dims(
    const struct node *n, const struct shape *x, const struct shape *w, struct conv_dims *out, struct yk_diag *why);
/* Whether input i of a PreactConv is one of those side by side. */
bool op_is_preact_input(int i);
/* ConvTranspose: in[] are of x, out[] of y. output_padding and output_shape are resolved into out[] and the pads: tap k
 * of input i goes to output i * stride + k * dilation - pad_begin, where that is one. */
yk_err op_deconv_dims(
    const struct node *n, const struct shape *x, const struct shape *w, struct conv_dims *out, struct yk_diag *why);
yk_err op_broadcast(const struct shape *const *in, int n, struct shape *out, struct yk_diag *why);
/* Slice: per axis of input 0 the first index, the step (may be negative) and how many; starts.. come from contents. */
struct slice_dims {
    int64_t start[YK_MAX_RANK], step[YK_MAX_RANK], count[YK_MAX_RANK];
};
yk_err op_slice_dims(const struct op_ctx *c, struct slice_dims *out);
/* Reduce*, ArgMax: which axes of input 0 go, from attributes or the axes input. */
yk_err op_reduce_axes(const struct op_ctx *c, bool reduced[YK_MAX_RANK]);
yk_err op_axis(int64_t axis, int rank, int *out, struct yk_diag *why); /* negative axes resolved */
/* Attention (ai.yoke, see op.c): y[b,h,i] = softmax over j of (scale q[b,h,i].k[b,h,j] + m[b,h,i,j]), times v[b,h,j].
 * Steps in elements along batch, heads and length; along d and dv they are 1. Those of the mask also along keys, 0
 * where it repeats. Operands begin at q_at, k_at, v_at. mask is NULL if there is none. */
struct attention_dims {
    int64_t batch, heads, lq, lk, d, dv;
    int64_t q[3], k[3], v[3], y[3], m[4], q_at, k_at, v_at;
    float scale;
};
yk_err op_attention_dims(const struct node *n, const struct shape *q, const struct shape *k, const struct shape *v,
    const struct shape *mask, struct attention_dims *out, struct yk_diag *why);

#endif
