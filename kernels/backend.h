/* What runs nodes. A backend is more than a table of ops: it claims segments of a graph, prepares them (packing
 * weights, compiling) and runs them asynchronously, so that graph compilers of phones fit. Inside a segment the layout
 * is the backend's own; what crosses a segment is dense row-major in ONNX shape. Host backends that are a table of
 * kernels (ref, blas, simd) share kernels/host*.c, which implement this contract over struct host_kernel rows.
 *
 * Every function pointer is required. All calls come from one thread (the runner) unless said otherwise. */
#ifndef YK_BACKEND_H
#define YK_BACKEND_H

#include "common/shapes.h"
#include "kernels/pool.h"
#include "kernels/tensor.h"

#define BACKEND_ABI 1
#define BACKEND_FORM_MAX 64 /* bytes of a form name with its end */

struct backend;

/* One implementation of one node on this backend: "conv.im2col@blas-0.3.21-Zen". */
struct backend_form {
    char name[BACKEND_FORM_MAX];
    int64_t packed_bytes;    /* of weights in the form's own layout; 0 if it uses them as they are */
    int64_t workspace_bytes; /* host scratch while it runs, at the given shapes, whatever the thread count */
    bool drops_weights;      /* originals are not needed once prepared */
};

/* Memory that a backend's segments read and write. Host backends: host memory, export/import are the identity. */
struct backend_buffer {
    void *host;      /* host address if the backend can give one, else NULL */
    uint64_t handle; /* the backend's own */
    int64_t bytes;
};

/* A segment: nodes of the graph, ascending, that run as one submit. */
struct backend_segment {
    const struct graph *graph;
    const struct shapes *max; /* shapes at the maximum sizes */
    const int32_t *nodes;
    int32_t n_nodes;
    const char *const *forms; /* by position in nodes */
    const int32_t *in, *out;  /* value ids that cross the segment, ascending; weights are not among them */
    int32_t n_in, n_out;
    const void *const *weights; /* by value id: data of every weight the segment uses, dense, aligned for its dtype */
    bool weights_variable;      /* training: set_weights will come */
    const uint8_t *taken; /* by value id: outputs that lie in the scratch among inner values; NULL: none. See made */
    /* Host backends in a stage share its memory plan: place[v] is the offset of inner value v in backend_run.scratch
     * (-1: not there), workspace is at workspace_offset, and prepare asks no scratch of its own. NULL: the backend
     * plans inner values itself. Valid until release. */
    const int64_t *place;
    int64_t workspace_offset;
};

struct backend_run {
    const struct shapes *shapes;                   /* at the actual sizes, <= max */
    struct backend_buffer *const *in, *const *out; /* as in the segment */
    void *scratch; /* host memory of the segment's workspace and inner values, as prepare asked */
    uint64_t seed; /* of random ops: (seed, step, microbatch) mixed by the caller */
    /* Host backends call it after each node, in their order, from the thread that runs them. NULL: not wanted. */
    void (*trace)(void *arg, int32_t node, double ms);
    void *trace_arg;
    /* A backend that runs its nodes in steps calls it after each node, from the thread that runs them, before another
     * one begins: what of the node's outputs is taken may be gone afterwards. NULL: not wanted. */
    void (*made)(void *made_arg, int32_t node);
    void *made_arg;
};

struct backend_ops {
    const char *name; /* "ref"; letters and digits */
    uint32_t abi;
    bool exact; /* same forms, same bits, whatever threads and cut */
    bool host;  /* buffers are host memory */
    bool steps; /* host: runs one node after the other in the places it is given, and calls backend_run.made */

    yk_err (*open)(struct pool *pool, struct backend **out, struct yk_diag *why); /* pool is borrowed */
    void (*close)(struct backend *b);
    const char *(*isa)(struct backend *b); /* what follows '@' */

    /* Lists this backend's forms of a node, best first by its static rule; returns how many (0: cannot run it). Depends
     * on op, attributes, dtypes and shapes only, those of the graph's inputs included. Any thread. */
    int (*forms)(struct backend *b, const struct op_ctx *node, struct backend_form *out, int max);

    /* Sets *scratch_bytes (host, of one run) and *packed_bytes (what it holds for weights). Takes time: packs and
     * compiles. seg and its arrays are borrowed for the call, graph and weights until release. */
    yk_err (*prepare)(struct backend *b, const struct backend_segment *seg, void **handle, int64_t *scratch_bytes,
        int64_t *packed_bytes, struct yk_diag *why);
    /* By value id, NULL where a weight did not change. Between runs. */
    yk_err (*set_weights)(struct backend *b, void *handle, const void *const *weights, struct yk_diag *why);
    /* Starts a run; done comes once, from any thread, maybe before submit returns. Buffers are borrowed until then. */
    void (*submit)(struct backend *b, void *handle, const struct backend_run *run,
        void (*done)(void *arg, yk_err err, const char *why), void *arg);
    void (*cancel)(struct backend *b, void *handle); /* hurries a running submit; done still comes */
    void (*release)(struct backend *b, void *handle);

    yk_err (*alloc)(struct backend *b, int64_t bytes, struct backend_buffer *out);
    void (*free)(struct backend *b, struct backend_buffer *buf);
    yk_err (*write)(struct backend *b, struct backend_buffer *dst, const void *src, int64_t bytes); /* host -> buffer */
    yk_err (*read)(struct backend *b, const struct backend_buffer *src, void *dst, int64_t bytes);  /* buffer -> host */
};

struct backend {
    const struct backend_ops *ops;
};

/* The built-in ones; `fake` (asynchronous, own memory: for tests) is found by name only. NULL-ended. */
extern const struct backend_ops *const backend_builtin[];
const struct backend_ops *backend_find(const char *name);

/* The backends of one process, in order of preference; ref is always there and last. */
#define BACKENDS_MAX 8
struct backends {
    struct backend *at[BACKENDS_MAX];
    int n;
    struct backends_refused { /* from outside: failed the self-test, and are not in `at` */
        char name[20];
        bool hung;
        char text[480];
    } refused[BACKENDS_MAX];
    int n_refused;
};
struct backends_config { /* of those from outside */
    int64_t timeout_ms;  /* a call that takes longer hangs; 0: 10,000 */
    int64_t check_every; /* one run in so many is repeated with ref; 0: 256, negative: never. From 16 on, checks are
                            rarer where they would take more than a fifth of the time */
};
/* spec: "auto", or names separated by commas ("blas", "ref", "fake,blas"); a name with a '/' is the path of a shared
 * object (kernels/plugin.h). why lists what there is. A shared object that is none of ours is an error; one that fails
 * the self-test is in out->refused, and the others are opened. config may be NULL. */
yk_err backends_open_with(const char *spec, const struct backends_config *config, struct pool *pool,
    struct backends *out, struct yk_diag *why);
/* Whether a list names what there is; shared objects are not looked for. YK_INVAL. */
yk_err backends_check(const char *spec, struct yk_diag *why);
yk_err backends_open(const char *spec, struct pool *pool, struct backends *out, struct yk_diag *why);
/* True if b was taken out while it worked: it claims nothing any more. why may be NULL. Any thread. */
bool backends_lost(struct backend *b, struct yk_diag *why);
void backends_close(struct backends *b);
/* All forms of a node over all backends in order of the static rule; returns how many. */
int backends_forms(struct backends *b, const struct op_ctx *node, struct backend_form *out, int max);
/* The backend whose form this is, NULL if none here has it for that node; *form is filled. A host backend may have
 * forms that it does not list. */
struct backend *backends_form_find(
    struct backends *b, const struct op_ctx *node, const char *name, struct backend_form *form);

#endif
