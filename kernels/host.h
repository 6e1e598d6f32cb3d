/* The shared half of host backends: everything of struct backend_ops over a table of kernels. A host backend is then
 * a name, an isa and rows; a node runs in the first row that claims it.
 *
 * A kernel is safe for all shapes that passed the op's shape rule. What depends on data (indices, divisors, starts of a
 * slice) it checks itself and reports with value and limit. Its bits depend on op, attributes, shapes and inputs only:
 * it may split work over call->pool in a grid that depends on the shapes, never on pool_threads(). */
#ifndef YK_HOST_H
#define YK_HOST_H

#include "kernels/backend.h"

struct chain_map;

/* One node about to run. */
struct host_call {
    const struct graph *graph;
    const struct node *node;
    int n_in, n_out;
    struct tensor in[OP_MAX_IN];   /* dtype DT_NONE and data NULL if absent */
    struct tensor out[OP_MAX_OUT]; /* likewise if not wanted */
    uint64_t last_in, last_out;    /* bit i: in[i] / out[i] is stored channels last (NHWC), see enum host_layout */
    const void *packed;            /* what pack made; NULL if the row has no pack */
    void *workspace;               /* as sizes asked at the maximum shapes, aligned 64 */
    struct pool *pool;
    uint64_t seed;
    struct yk_diag *why;
};

/* What stays inside a segment may be stored channels last: 4-D f32 (N,C,H,W) with bytes in the order N,H,W,C. Shapes
 * stay logical. A kernel's bits do not depend on how its operands are stored. */
enum host_layout {
    HOST_DENSE, /* row-major only */
    HOST_ANY,   /* any mixture, as last_in and last_out say */
    HOST_SAME   /* results and operands all the same way, but for those that are the same bytes either way */
};

struct host_kernel {
    const char *domain, *op;
    const char *kind;                      /* the form's name before '@' */
    bool (*claim)(const struct op_ctx *c); /* dtypes, attributes and ranks it can do; NULL: all of the op */
    /* Adds packed_bytes, workspace_bytes, drops_weights for these shapes; monotone in the shapes. NULL: zeros. */
    void (*sizes)(const struct op_ctx *c, struct backend_form *form);
    /* Fills packed from the node's inputs that are weights (NULL: that input is not one). NULL: nothing to pack. */
    yk_err (*pack)(const struct op_ctx *c, const void *const *in, void *packed, struct yk_diag *why);
    yk_err (*run)(struct host_call *c);
    enum host_layout layout;
    /* Fills out for a call whose node is one loop over the elements; false at shapes where it is not. NULL: never is.
     * See kernels/chain.h. */
    bool (*map)(const struct host_call *c, struct chain_map *out);
    /* Whether other forms that claim the node are better at these shapes: it is then listed behind them. NULL: no. */
    bool (*later)(const struct op_ctx *c);
    /* Whether it is only for who asks for it by name: it is then not listed. NULL: no. */
    bool (*named)(const struct op_ctx *c);
};

struct host_rows {
    const struct host_kernel *rows;
    int n;
};

/* A host backend over up to HOST_MAX_TABLES tables, tried in order; tables and ops are borrowed for ever. */
#define HOST_MAX_TABLES 32
yk_err host_open(const struct backend_ops *ops, const char *isa, const struct host_rows *tables, int n_tables,
    struct pool *pool, struct backend **out, struct yk_diag *why);
/* Forms of that table get another isa than the backend's; isa is borrowed for ever. */
void host_table_isa(struct backend *b, int table, const char *isa);

/* The first row without packed weights that claims a node whose inputs have known shapes (outputs of OP_DATA_SHAPE ops
 * need none), for a run by node_run.h; form is filled. NULL: none, or b is no backend of this file. */
const struct host_kernel *host_kernel_of(struct backend *b, const struct op_ctx *c, struct backend_form *form);
/* The form of that name, listed or not. False: it is not there, or b is no backend of this file. */
bool host_form_named(struct backend *b, const struct op_ctx *node, const char *name, struct backend_form *form);
struct pool *host_pool(struct backend *b); /* NULL if b is no backend of this file */

/* The members of struct backend_ops that host*.c give. */
void host_close(struct backend *b);
const char *host_isa(struct backend *b);
int host_forms(struct backend *b, const struct op_ctx *node, struct backend_form *out, int max);
yk_err host_prepare(struct backend *b, const struct backend_segment *seg, void **handle, int64_t *scratch_bytes,
    int64_t *packed_bytes, struct yk_diag *why);
yk_err host_set_weights(struct backend *b, void *handle, const void *const *weights, struct yk_diag *why);
void host_submit(struct backend *b, void *handle, const struct backend_run *run,
    void (*done)(void *arg, yk_err err, const char *why), void *arg);
void host_cancel(struct backend *b, void *handle);
void host_release(struct backend *b, void *handle);
yk_err host_alloc(struct backend *b, int64_t bytes, struct backend_buffer *out);
void host_free(struct backend *b, struct backend_buffer *buf);
yk_err host_write(struct backend *b, struct backend_buffer *dst, const void *src, int64_t bytes);
yk_err host_read(struct backend *b, const struct backend_buffer *src, void *dst, int64_t bytes);

#define HOST_OPS(its_name, its_open)                                                                            \
    {                                                                                                           \
        .name = its_name, .abi = BACKEND_ABI, .exact = true, .host = true, .steps = true, .open = its_open,     \
        .close = host_close, .isa = host_isa, .forms = host_forms, .prepare = host_prepare,                     \
        .set_weights = host_set_weights, .submit = host_submit, .cancel = host_cancel, .release = host_release, \
        .alloc = host_alloc, .free = host_free, .write = host_write, .read = host_read                          \
    }

/* The kinds of the forms that a host backend's tables have for an op, in their order and each once; whether a row takes
 * a node is its claim's affair. Returns how many, -1 if b is not a host backend. */
int host_kinds(const struct backend *b, const struct op *op, const char **out, int max);

/* Runs fn over [begin, end) pieces of 0..count in a grid that depends on count and cost (about nanoseconds an element)
 * only. For kernels whose elements do not depend on each other. */
void host_split(
    struct host_call *c, int64_t count, int64_t cost, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg);

extern const struct backend_ops backend_ref, backend_simd, backend_blas, backend_fake;

#endif
