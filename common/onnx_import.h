/* What the files of the importer share. Private to onnx_import*.c.
 *
 * The model is walked several times, never copied: names and lists go to the graph's arena, weights stay in the
 * mapping. A graph is read in five passes (weights, inputs, what nodes make, nodes, outputs), so nodes may stand in any
 * order. A node is read into struct onnx_node, brought to its opset-17 form by onnx_import_upgrade, and emitted as one
 * or more graph nodes. What is not supported is noted with onnx_import_problem and reading goes on; what is malformed
 * ends it.
 */
#ifndef YK_ONNX_IMPORT_H
#define YK_ONNX_IMPORT_H

#include "common/onnx.h"
#include "common/op.h"
#include "common/pb.h"

#define ONNX_OPSET_MIN 6
#define ONNX_OPSET_MAX 17
/* A subgraph lies three messages below its parent (node, attribute, graph): 64 messages in all. */
#define ONNX_MAX_DEPTH 20
#define ONNX_MAX_SYMS 1024
#define ONNX_MAX_OPSETS 256
#define ONNX_MAX_FUNCTIONS 65536
#define ONNX_MAX_INLINED (1 << 20) /* nodes that functions may become */
#define ONNX_MARK "yoke.skeleton"  /* metadata: this file is a skeleton */
#define ONNX_IDS "yoke.ids"        /* metadata: value ids in file order, if they differ from it */

struct onnx_mapping { /* a mapped file; the graph's backing is a list of them */
    struct onnx_mapping *next;
    const uint8_t *data;
    size_t len;
    const char *location; /* relative to the model's folder; "" is the model itself */
};

struct onnx_opset {
    struct pb_text domain;
    int64_t version;
};

/* A name that a call of a function leaves out: reading it gives no input. */
#define ONNX_NOT_GIVEN (-2)

struct onnx_name {
    const char *name; /* NULL: a free slot */
    int32_t id;
};

struct onnx_names { /* open addressing */
    struct onnx_name *slots;
    size_t n_slots, n_used;
};

struct onnx_function {
    struct pb_text domain, name;
    struct pb body;
    bool open; /* being inlined: a call of it now is a cycle */
};

struct onnx_import {
    struct graph *root;
    const char *folder; /* real path; NULL: no external data */
    struct onnx_mapping **mappings;
    struct pb model;
    int64_t opset;  /* of ""; 0: outside what is supported, nodes are only listed */
    bool bad_opset; /* it is noted */
    struct onnx_opset *opsets;
    size_t n_opsets;
    bool skeleton;          /* marked, or has a weight by hash */
    struct onnx_names used; /* by all values of the model */
    unsigned n_renamed;
    struct onnx_function *functions; /* by domain and name */
    size_t n_functions;
    int32_t n_inlined; /* nodes that came out of functions */
    struct yk_buf *problems;
    struct yk_buf listing; /* the same lines, for why */
    int n_problems;
    struct yk_diag *why;
};

/* Names of one graph, and of the graphs around it. */
struct onnx_scope {
    struct onnx_scope *parent;
    struct graph *g;
    const char *path; /* "" or "node 3 'if' (If) then_branch: " */
    int depth;
    struct pb file; /* the GraphProto */
    struct onnx_names names;
    const struct onnx_call *call; /* of the body of a function: NULL else */
    uint8_t *read;                /* by value id, made when first asked for: somebody reads it */
    int32_t n_read;
};

struct onnx_node {
    int32_t index; /* in the file */
    const char *name, *op_type, *domain;
    int32_t *in, *out;
    int32_t n_in, n_out;
    struct attr *attr;
    int32_t n_attr;
};

/* What the nodes of a function's body see of the node that calls it. */
struct onnx_call {
    const struct attr *attr; /* the call's, and the function's defaults */
    int32_t n_attr;
    const struct pb_text *outputs; /* the function's names of them */
    const int32_t *out;            /* the call's, or YK_ABSENT */
    int32_t n_out;
};

/* onnx_import.c */
void onnx_import_problem(struct onnx_import *im, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void onnx_import_bad_opset(struct onnx_import *im, int64_t version); /* notes it once */
yk_err onnx_import_nomem(struct onnx_import *im);
yk_err onnx_import_opset(struct onnx_import *im, struct pb entry); /* adds to im->opsets, which has room */
yk_err onnx_import_check_opset(
    struct onnx_import *im, const char *what); /* sets im->opset, or notes a problem; what: of a call */
char *onnx_import_text(struct onnx_import *im, const struct pb_text *t); /* in the arena; NULL when memory is gone */

/* onnx_import_graph.c: one GraphProto into scope->g. */
yk_err onnx_import_graph(struct onnx_import *im, struct onnx_scope *scope, struct pb graph);
int32_t onnx_import_find(const struct onnx_scope *scope, const char *name, size_t len); /* in this scope only */
/* Gives a value that exists a name in this scope. */
yk_err onnx_import_bind(struct onnx_import *im, struct onnx_scope *scope, const char *name, int32_t id);
void onnx_import_names_free(struct onnx_names *t);
/* Adds a value under a name that means nothing in this scope yet; in the graph it gets a name that is its own in the
 * whole model, the same one wherever it can. */
yk_err onnx_import_value(struct onnx_import *im, struct onnx_scope *scope, const char *name, enum value_kind kind,
    enum dtype dtype, int32_t *id);
/* A weight for a node that is upgraded; "<name of the node's first output>/<role>", made unique. data is copied. */
yk_err onnx_import_const(struct onnx_import *im, struct onnx_scope *scope, const struct onnx_node *n, const char *role,
    const struct shape *shape, const void *data, int32_t *id);
/* A value between the nodes that an old node becomes. */
yk_err onnx_import_temp(
    struct onnx_import *im, struct onnx_scope *scope, const struct onnx_node *n, const char *role, int32_t *id);
/* The value that a name means here: YK_ABSENT if nothing, ONNX_NOT_GIVEN. A value of a graph around becomes a capture
 * of every graph between. */
yk_err onnx_import_resolve(struct onnx_import *im, struct onnx_scope *scope, const char *name, size_t len, int32_t *id);

/* onnx_import_node.c: a NodeProto, first what it makes (a Constant becomes a weight), later all of it. */
yk_err onnx_import_node_outputs(struct onnx_import *im, struct onnx_scope *scope, struct pb node, int32_t index);
yk_err onnx_import_node(struct onnx_import *im, struct onnx_scope *scope, struct pb node, int32_t index);
/* Adds the node as it stands, or notes that its op is not supported. Takes n->attr. */
yk_err onnx_import_emit(struct onnx_import *im, struct onnx_scope *scope, const struct onnx_node *n);
void onnx_import_node_text(const struct onnx_scope *scope, const struct onnx_node *n, char *out, size_t size);

/* One AttributeProto. *skip: it is of a kind that the IR has not (noted), or refers to what a call leaves out. */
yk_err onnx_import_attr(struct onnx_import *im, struct onnx_scope *scope, const struct onnx_node *n, struct pb attr,
    struct attr *a, bool *skip);

/* onnx_import_function.c: model-local functions, put in the place of the nodes that call them. */
yk_err onnx_import_functions(struct onnx_import *im); /* reads the list */
struct onnx_function *onnx_import_function_find(const struct onnx_import *im, const char *domain, const char *name);
yk_err onnx_import_call(
    struct onnx_import *im, struct onnx_scope *scope, const struct onnx_node *n, struct onnx_function *f);
/* The id that a node output of a function's body has: the call's output of that name, or YK_ABSENT. */
int32_t onnx_import_call_output(const struct onnx_scope *scope, const struct pb_text *name);

/* onnx_import_tensor.c: one TensorProto. Fills shape, dtype, data, bytes, hash, aligned of v (not its name).
 * A dtype that the IR has not is a problem, not an error: then *supported is false and v is empty. what: for messages.
 */
yk_err onnx_import_tensor(struct onnx_import *im, struct pb tensor, const char *what, struct value *v, bool *supported);
/* A Constant node's value_float, value_ints, ... as a tensor. */
yk_err onnx_import_scalar(struct onnx_import *im, const struct attr *a, const char *what, struct value *v);
yk_err onnx_import_map(const char *path, struct onnx_mapping **out, struct yk_diag *why);
void onnx_import_unmap(struct onnx_mapping *list);
void onnx_import_idle(const struct onnx_mapping *list, const void *data, int64_t bytes); /* as graph_idle says */

/* onnx_import_upgrade.c: brings the node from opset im->opset to its opset-17 form and emits it. */
yk_err onnx_import_upgrade(struct onnx_import *im, struct onnx_scope *scope, struct onnx_node *n);

#endif
