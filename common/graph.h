/* The one intermediate representation: forward graph, backward graph and the graph that a stage is cut from.
 *
 * A graph is a list of nodes in canonical order (a topological order, fixed at import) over a list of values. A value
 * is a graph input, a weight, a node's output or absent (id -1). Every value has a unique name; subgraphs (If, Loop,
 * Scan) refer to values of their parents by capture. Shapes of node outputs are not stored: shapes.h computes them for
 * given sizes of the named dimensions. Everything a graph points to lives in its arena, except weight data, which stays
 * in the mapped file. A graph is immutable after import and passes, and may then be read by any thread. */
#ifndef YK_GRAPH_H
#define YK_GRAPH_H

#include "common/yk.h"

#define YK_MAX_RANK 8
#define YK_ABSENT (-1)
#define YK_MAX_COUNT ((int64_t)1 << 56) /* elements of a tensor */

/* X(NAME, text, bytes): one list for enum, names (numpy's) and sizes. Values are ours, not ONNX's. */
#define YK_DTYPES(X)       \
    X(NONE, "none", 0)     \
    X(F32, "float32", 4)   \
    X(F64, "float64", 8)   \
    X(F16, "float16", 2)   \
    X(BF16, "bfloat16", 2) \
    X(I8, "int8", 1)       \
    X(I16, "int16", 2)     \
    X(I32, "int32", 4)     \
    X(I64, "int64", 8)     \
    X(U8, "uint8", 1)      \
    X(U16, "uint16", 2)    \
    X(U32, "uint32", 4)    \
    X(U64, "uint64", 8)    \
    X(BOOL, "bool", 1)

enum dtype {
#define X(name, text, bytes) DT_##name,
    YK_DTYPES(X)
#undef X
        DT_COUNT
};

size_t dtype_bytes(enum dtype t);
const char *dtype_name(enum dtype t);
enum dtype dtype_find(const char *name); /* DT_NONE if unknown */
bool dtype_is_float(enum dtype t);
bool dtype_is_int(enum dtype t);               /* signed or unsigned; not bool */
enum dtype dtype_from_onnx(int64_t data_type); /* TensorProto.DataType (also Cast's `to`); DT_NONE if not ours */
int64_t dtype_to_onnx(enum dtype t);           /* 0 for DT_NONE */

/* Element i of dense little-endian data that may be unaligned; integers and bool as int64 (u64 wraps). */
int64_t dtype_read_int(enum dtype t, const void *data, int64_t i);

/* Dense row-major shape. dims[i] == -1: known only when the data is (data-dependent). rank == -1: unknown rank. */
struct shape {
    enum dtype dtype;
    int rank;
    int64_t dims[YK_MAX_RANK];
};
int64_t shape_count(const struct shape *s); /* elements; -1 if a dim is unknown or over YK_MAX_COUNT */
int64_t shape_bytes(const struct shape *s); /* -1 likewise */
bool shape_equal(const struct shape *a, const struct shape *b);
void shape_text(const struct shape *s, char *out, size_t size); /* "float32[1,3,224,224]" */

/* A declared dimension of a graph input or output: a number, or a named dimension (sym >= 0 indexes graph.syms). */
struct dim {
    int64_t value; /* used if sym < 0; -1: unnamed and unknown */
    int32_t sym;
};

enum value_kind { VALUE_INPUT, VALUE_WEIGHT, VALUE_NODE, VALUE_CAPTURE };
enum value_type { VALUE_TENSOR, VALUE_SEQUENCE, VALUE_OPTIONAL };

struct value {
    const char *name;
    enum value_kind kind;
    enum value_type type;
    enum dtype dtype; /* DT_NONE until known (node outputs: shapes.h tells) */
    int32_t rank;     /* of dims; -1 undeclared */
    struct dim *dims;
    int32_t producer; /* node index, -1 */
    /* Weights: shape is in weight.dims; data is little-endian, dense; NULL in a skeleton where only the hash is known.
     */
    struct shape shape;
    const void *data;
    int64_t bytes;
    uint8_t hash[32]; /* SHA-256 of the bytes, if has_hash */
    bool has_hash;
    bool constant;   /* of a Constant node or made by a pass: no parameter of the model */
    bool aligned;    /* data is aligned for its dtype (unaligned in-place weights are copied by who needs it) */
    int32_t capture; /* VALUE_CAPTURE: value id in the parent graph */
};

enum attr_kind { ATTR_INT, ATTR_FLOAT, ATTR_STRING, ATTR_INTS, ATTR_FLOATS, ATTR_STRINGS, ATTR_TENSOR, ATTR_GRAPH };

struct graph;
struct graph_block;

struct attr {
    const char *name;
    enum attr_kind kind;
    int64_t i;
    float f;
    const char *s; /* NUL-ended; embedded NULs are refused at import */
    size_t n;      /* of the lists */
    const int64_t *ints;
    const float *floats;
    const char *const *strings;
    struct value *tensor; /* shape, data, bytes, dtype are set */
    struct graph *graph;
};

struct op;

struct node {
    const char *name; /* may be "" */
    const struct op *op;
    int32_t n_in, n_out, n_attr;
    int32_t *in;  /* value ids or YK_ABSENT */
    int32_t *out; /* value ids or YK_ABSENT (an optional output that is not wanted) */
    struct attr *attr;
};

struct graph {
    struct yk_arena *arena;
    const char *name;
    struct graph *parent; /* of a subgraph */
    struct value *values;
    int32_t n_values, cap_values;
    int32_t *index; /* values by name (graph_index.c) */
    uint32_t cap_index;
    struct node *nodes;
    int32_t n_nodes, cap_nodes;
    int32_t *inputs, n_inputs; /* value ids; weights are not among them */
    int32_t *outputs, n_outputs;
    int32_t n_staying; /* so many of the last outputs stay where they are made: of a training graph the gradients and
                          the next statistics. Not in the file; 0 otherwise */
    const char **syms;
    int32_t n_syms;
    uint8_t hash[32]; /* of the skeleton; set by onnx_export_skeleton / onnx_import of one */
    bool has_hash;
    struct graph_block *blocks; /* of graph_alloc_data */
    void *backing;              /* what keeps weight data alive (the importer's mapping); ended by backing_close */
    void (*backing_close)(void *backing);
    void (*backing_idle)(void *backing, const void *data, int64_t bytes); /* graph_idle; NULL: it holds no mapping */
};

struct graph *graph_open(size_t arena_limit_bytes); /* NULL when memory is gone */
void graph_close(struct graph *g);                  /* closes subgraphs' memory too (same arena); NULL allowed */

struct graph *graph_open_child(struct graph *parent); /* a subgraph in the parent's arena; NULL when memory is gone */

/* Zeroed memory for the data of weights that are made, 64-byte aligned, outside the arena's limit; lives as long as the
 * outermost graph (or until graph_sweep_data). NULL when memory is gone. */
void *graph_alloc_data(struct graph *g, int64_t bytes);
void graph_sweep_data(struct graph *top); /* frees such data that no value or attribute refers to */

/* A hint: weight data of a mapped file that nobody reads soon, because it was copied or packed, leaves resident memory;
 * it is read from the file again when somebody does. data NULL: all of it. Other data is not touched. Thread: any. */
void graph_idle(const struct graph *g, const void *data, int64_t bytes);

/* Builders, for importer, passes, grad and tests. Return an id or YK_ABSENT when memory is gone. Strings are copied. */
int32_t graph_add_value(struct graph *g, const char *name, enum value_kind kind, enum dtype dtype);
int32_t graph_add_weight(struct graph *g, const char *name, const struct shape *shape, const void *data); /* borrowed */
/* n_in inputs and n_out outputs are copied; sets producer of the outputs. */
int32_t graph_add_node(struct graph *g, const char *name, const struct op *op, const int32_t *in, int32_t n_in,
    const int32_t *out, int32_t n_out);
yk_err graph_set_attr_i(struct graph *g, struct node *n, const char *name, int64_t v);
yk_err graph_set_attr_f(struct graph *g, struct node *n, const char *name, float v);
yk_err graph_set_attr_s(struct graph *g, struct node *n, const char *name, const char *v);
yk_err graph_set_attr_ints(struct graph *g, struct node *n, const char *name, const int64_t *v, size_t count);
int32_t graph_sym(struct graph *g, const char *name); /* finds or adds a named dimension */

/* Names of values never change once added. */
int32_t graph_find_value(const struct graph *g, const char *name); /* YK_ABSENT if there is none */
int32_t graph_find_sym(const struct graph *g, const char *name);
const struct attr *node_attr(const struct node *n, const char *name); /* NULL if absent */
int64_t node_attr_i(const struct node *n, const char *name, int64_t otherwise);
float node_attr_f(const struct node *n, const char *name, float otherwise);
const char *node_attr_s(const struct node *n, const char *name, const char *otherwise);
const struct attr *node_attr_ints(const struct node *n, const char *name); /* NULL unless kind is ATTR_INTS */

bool graph_index_add(struct graph *g, int32_t value); /* graph_add_value calls it; false when memory is gone */
void graph_index_renew(struct graph *g);              /* after values were renumbered */

/* Everything a node reads: its inputs, and what its subgraphs capture from its graph. Absent inputs are left out; a
 * value may come twice. */
void node_each_use(const struct node *n, void (*fn)(void *arg, int32_t value), void *arg);
/* The weights of a node's subgraphs and of what is nested in those. */
void node_each_inner_weight(const struct node *n, void (*fn)(void *arg, const struct value *weight), void *arg);

/* Puts nodes into the canonical order: topological, ties by the order in which the nodes stand now. YK_FORMAT on a
 * cycle, a value used before anybody makes it, or made twice; why names it. */
yk_err graph_sort(struct graph *g, struct yk_diag *why);
/* Drops nodes and values that no graph output needs (graph inputs stay), and optional outputs that nobody reads;
 * renumbers. Ids from before are void. */
yk_err graph_prune(struct graph *g);

/* The named dimension that is the batch: dim 0 of the first input, if it is named and every input that has it has it in
 * front. -1 if the model has a fixed first dimension; then *fixed is that number (1 if the rank is 0
 * or there is no number). */
int32_t graph_batch_dim(const struct graph *g, int64_t *fixed);
/* Its images (inputs of rank 4 whose last three dimensions are numbers) have at most 32x32 pixels; false if there are
 * none. */
bool graph_small_images(const struct graph *g);
/* Sizes of the named dimensions into out[n_syms]: the batch (if there is one) takes `batch`, the others what `given`
 * has for them (NULL, or below 1: 1). */
void graph_sizes(const struct graph *g, const int64_t *given, int64_t batch, int64_t *out);

#endif
