/* Yoke's contract with a backend that lives in a shared object: `--backend=/path/plugin.so`.
 *
 * Self-contained C11 (and C++): no other header of Yoke is needed, nothing of Yoke is linked. A plug-in exports one
 * function, yoke_backend_entry, which returns a table of functions. Yoke opens the backend, asks which nodes it can run
 * (claim), hands it segments of them to compile (prepare), and then runs these again and again (write inputs, submit,
 * done, read outputs).
 *
 * Threads. Every call of one opened backend comes from one thread that Yoke keeps for it, one call at a time, so a
 * device context that is bound to a thread works. yoke_backend_entry alone comes from the thread that loads. `done` may
 * be called from any thread, also from inside submit. cancel comes from Yoke's thread while a run is under way.
 *
 * Time. A call that does not come back in time (prepare: ten times the limit; submit: until done came; the rest: the
 * limit, which is 10 s unless set otherwise) makes Yoke give the backend up: no function of it is called again, no
 * memory that it was given is touched or freed, the work is done elsewhere.
 *
 * Trust. Before first use Yoke runs known cases and compares with its reference; while it works, runs are compared now
 * and then, and every run's outputs are looked at for NaN and infinities. Wrong answers take the backend out.
 *
 * Growth. Every struct begins with its size in bytes as its maker knew it; a reader uses no member beyond it. Members
 * are only added at the end. What would break that raises YOKE_BACKEND_ABI, and Yoke then refuses other versions.
 * All pointers that Yoke passes are valid for the call only, unless said otherwise; copy what is needed longer.
 * Numbers are in the machine's byte order. Tensors are dense, row-major, in ONNX shape. */
#ifndef YOKE_BACKEND_H
#define YOKE_BACKEND_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define YOKE_BACKEND_ABI 1
#define YOKE_BACKEND_ENTRY "yoke_backend_entry"
#define YOKE_MAX_RANK 8

enum yoke_status {
    YOKE_OK = 0,
    YOKE_INVALID = 1,     /* the arguments make no sense */
    YOKE_UNSUPPORTED = 2, /* cannot do that (any more); Yoke takes another backend */
    YOKE_NO_MEMORY = 3,   /* of the host or of the device */
    YOKE_CANCELED = 4,    /* the answer of a run that cancel ended */
    YOKE_FAILED = 5       /* anything else */
};

/* Element types: the numbers of ONNX TensorProto.DataType. */
enum yoke_dtype {
    YOKE_F32 = 1,
    YOKE_U8 = 2,
    YOKE_I8 = 3,
    YOKE_U16 = 4,
    YOKE_I16 = 5,
    YOKE_I32 = 6,
    YOKE_I64 = 7,
    YOKE_BOOL = 9, /* a byte: 0 or 1 */
    YOKE_F16 = 10,
    YOKE_F64 = 11,
    YOKE_U32 = 12,
    YOKE_U64 = 13,
    YOKE_BF16 = 16
};

/* Every dimension is known and at least 1: Yoke runs empty tensors itself. */
struct yoke_shape {
    uint32_t size;
    uint32_t dtype; /* enum yoke_dtype */
    uint32_t rank;  /* 0 .. YOKE_MAX_RANK; 0 is a scalar */
    uint32_t reserved;
    int64_t dims[YOKE_MAX_RANK];
};

/* ---- a segment: some nodes of a graph, seen from outside ---- */

enum yoke_value_kind {
    YOKE_VALUE_INPUT = 1,  /* comes from outside the segment: a buffer of each run */
    YOKE_VALUE_WEIGHT = 2, /* constant; may also change through set_weights */
    YOKE_VALUE_INNER = 3,  /* made and used inside only: where it lives is the backend's business */
    YOKE_VALUE_OUTPUT =
        4 /* made inside and wanted outside: a buffer of each run; nodes of the segment may read it too */
};

struct yoke_value {
    uint32_t size;
    uint32_t kind; /* enum yoke_value_kind */
    const char *name;
    const struct yoke_shape *shape; /* at the maximum sizes */
    /* Weights: the elements, dense, aligned for the type. NULL in claim where only the shape is known, and for other
     * kinds. */
    const void *data;
};

enum yoke_attr_kind {
    YOKE_ATTR_INT = 1,    /* i */
    YOKE_ATTR_FLOAT = 2,  /* f */
    YOKE_ATTR_STRING = 3, /* s */
    YOKE_ATTR_INTS = 4,   /* ints, n */
    YOKE_ATTR_FLOATS = 5, /* floats, n */
    YOKE_ATTR_STRINGS = 6 /* strings, n */
};

struct yoke_attr {
    uint32_t size;
    uint32_t kind; /* enum yoke_attr_kind */
    const char *name;
    int64_t i;
    double f;
    const char *s;
    int64_t n;
    const int64_t *ints;
    const float *floats;
    const char *const *strings;
};

/* One ONNX operator in its opset-17 form. Attributes that the model leaves out are left out: take ONNX's default.
 * domain "" is ONNX. Domain "ai.yoke" has the fused ones: FusedConv (inputs X, W, B?, residual?; attributes of Conv and
 * activation = none | relu | clip with min, max | others), FusedGemm (Gemm over the last axis of A and the same
 * activations), PreactConv (X, W, B, scale, shift, X2...: a Conv of kernel 1 over relu(scale * x + shift) of the
 * inputs side by side) and Attention (Q, K, V, mask?; attributes layout, heads, size, v_size, q_at, k_at, v_at, scale:
 * softmax(scale Q K' + mask) V of heads that are columns). The other activations grow in number: do not claim a node
 * with one that you do not know. Today: leaky_relu (act_alpha), hard_sigmoid and hard_swish (act_alpha, act_beta),
 * sigmoid, silu, gelu (with erf). Operators with subgraphs, random ones and those whose output shape depends on data
 * are never offered. */
struct yoke_node {
    uint32_t size;
    int32_t n_in, n_out, n_attr;
    const char *domain, *op, *name;
    const int32_t *in, *out; /* indices into the segment's values; -1: an optional one that is absent */
    const struct yoke_attr *const *attr;
};

struct yoke_segment {
    uint32_t size;
    int32_t n_nodes, n_values, n_in, n_out;
    uint32_t weights_variable;            /* set_weights will come */
    const struct yoke_node *const *nodes; /* in an order in which they can run */
    const struct yoke_value *const *values;
    const int32_t *in, *out; /* values that cross, as indices: buffers of a run come in this order; weights excluded */
};

/* ---- memory ---- */

struct yoke_buffer {
    uint32_t size;
    uint32_t reserved;
    uint64_t handle; /* the backend's own: an address, an index, an object */
    int64_t bytes;   /* as asked from alloc, at least 1 */
};

/* ---- a run ---- */

struct yoke_run {
    uint32_t size;
    uint32_t reserved;
    /* By index of the segment's values, at the sizes of this run: never larger than at prepare in any dimension that
     * depends on a named dimension (batch, sequence length). Types and ranks are the same. */
    const struct yoke_shape *const *shapes;
    /* As in the segment. A buffer is as large as its value at the maximum sizes; elements stand at its front. Inputs
     * are not written. Buffers and shapes stay valid until done came. */
    const struct yoke_buffer *const *in, *const *out;
    uint64_t seed;
};

/* To be called exactly once for each submit, from any thread. why: text for a person if status is not YOKE_OK, copied
 * before it returns; may be NULL. */
typedef void (*yoke_done)(void *arg, enum yoke_status status, const char *why);

/* ---- opening ---- */

struct yoke_config {
    uint32_t size;
    uint32_t threads;   /* how many the user allows for compute on the host */
    int64_t timeout_ms; /* the limit above */
};

enum yoke_flag {
    /* The same segment and inputs give the same bits, whatever ran before, at whatever time. */
    YOKE_EXACT = 1u << 0,
    /* A segment runs only at the very sizes it was prepared for (compilers without dynamic shapes): Yoke prepares it
     * again for other sizes. */
    YOKE_FIXED_SIZES = 1u << 1
};

/* What the opened backend says of itself. Strings stay valid until close. */
struct yoke_description {
    uint32_t size;
    uint32_t flags; /* enum yoke_flag */
    /* What the bits of its answers depend on: library version, chip. Letters, digits, '.', '_', '-'; 1 to 31. Times
     * that Yoke measured are kept under it, so a new version needs another one. */
    const char *isa;
    const char *text;     /* for people: device, driver, version; may be NULL */
    int64_t memory_bytes; /* of the device, 0 if it is the host's */
};

struct yoke_prepared {
    uint32_t size;
    uint32_t reserved;
    void *handle;       /* of the segment, until release; not NULL */
    int64_t held_bytes; /* memory it keeps for weights, code and inner values, on host and device */
};

/* ---- the backend ---- */

/* Every pointer is required. Functions that take `why` write a reason for people into it when they fail: at most
 * why_size bytes with the ending 0. Outputs are structs whose size member Yoke has set. */
struct yoke_backend {
    uint32_t size; /* sizeof(struct yoke_backend) */
    uint32_t abi;  /* YOKE_BACKEND_ABI */
    /* In lists and plans: 1 to 15 letters and digits, beginning with a letter, none of Yoke's own (auto, ref, simd,
     * blas, neon, metal, fake). */
    const char *name;

    /* Finds the device. May be called more than once: every opened state is its own. Fails if there is no device. */
    enum yoke_status (*open)(const struct yoke_config *config, void **state, char *why, uint32_t why_size);
    /* No handle or buffer is left, nothing runs. Frees the state. */
    void (*close)(void *state);
    enum yoke_status (*describe)(void *state, struct yoke_description *out);

    /* Sets claimed[i] to 1 for each node of seg that it can run, in whatever segment the node comes later; others are 0
     * already. Depends on operator, attributes, types and shapes only: the same question has the same answer. Fast: it
     * is asked for every node of a model. */
    enum yoke_status (*claim)(void *state, const struct yoke_segment *seg, uint8_t *claimed);

    /* Compiles a segment of claimed nodes and copies the weights it needs. Slow is fine. Any segment of claimed nodes
     * may come. seg->values[..]->data is valid for the call only. */
    enum yoke_status (*prepare)(
        void *state, const struct yoke_segment *seg, struct yoke_prepared *out, char *why, uint32_t why_size);
    /* New contents of weights, by index of the segment's values (NULL: unchanged, or not a weight). Nothing runs. */
    enum yoke_status (*set_weights)(
        void *state, void *handle, const void *const *weights, char *why, uint32_t why_size);
    /* Starts a run and returns; done comes later (or already did). One run of a backend at a time. A run that cannot
     * start calls done with its status. */
    void (*submit)(void *state, void *handle, const struct yoke_run *run, yoke_done done, void *arg);
    /* Asks the run of this handle to end early; done still comes, with YOKE_CANCELED or as if nothing was said. */
    void (*cancel)(void *state, void *handle);
    /* Frees a segment; it does not run. */
    void (*release)(void *state, void *handle);

    /* Memory that runs read and write: of the device, or the host's. bytes is at least 1. Sets handle and bytes. */
    enum yoke_status (*alloc)(void *state, int64_t bytes, struct yoke_buffer *out);
    void (*free)(void *state, struct yoke_buffer *buffer);
    /* Between the host and the front of a buffer; bytes <= buffer->bytes. Blocks until src may be changed, or dst
     * holds what the runs before have made. */
    enum yoke_status (*write)(void *state, struct yoke_buffer *buffer, const void *src, int64_t bytes);
    enum yoke_status (*read)(void *state, const struct yoke_buffer *buffer, void *dst, int64_t bytes);
};

#if defined(_WIN32)
#define YOKE_EXPORT __declspec(dllexport)
#else
#define YOKE_EXPORT __attribute__((visibility("default")))
#endif

/* The one exported symbol. abi: the version that this Yoke speaks. Returns a table that is valid for ever, or NULL if
 * there is none for that version. Does nothing else: devices are looked for in open. */
YOKE_EXPORT const struct yoke_backend *yoke_backend_entry(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif
