/* ONNX in and out. Import reads a file in place: a bounded protobuf walker (depth <= 64, every length checked against
 * its parent before use), weights stay in the mapping. Nodes are upgraded to the opset-17 form of their op.
 * Everything that is not supported is listed, not only the first. */
#ifndef YK_ONNX_H
#define YK_ONNX_H

#include "common/graph.h"

#define ONNX_MAX_PROBLEMS 200

/* Maps path, imports; external data only from the file's own folder. The graph owns the mapping. YK_UNSUPPORTED: why
 * lists every node with its name, op, opset and what is supported (as far as they fit; `problems` has all, if given:
 * lines of text). Other errors: YK_FORMAT, YK_LIMIT (sizes), YK_IO, YK_NOTFOUND. */
yk_err onnx_import(const char *path, struct graph **out, struct yk_buf *problems, struct yk_diag *why);
/* The same from memory (borrowed: must outlive the graph); external data is refused except "sha256:<hex>" locations,
 * which make a skeleton: weights with a hash and no data. Sets graph->hash to the SHA-256 of the bytes if it is one. */
yk_err onnx_import_memory(
    const void *data, size_t len, struct graph **out, struct yk_buf *problems, struct yk_diag *why);

/* The ONNX file of a graph at opset 17 with its original names, weights inline. YK_LIMIT over 2 GiB. */
yk_err onnx_export(const struct graph *g, struct yk_buf *out, struct yk_diag *why);
/* The skeleton: weights over ONNX_INLINE_BYTES (and every float weight over 64 bytes) as "sha256:<hex>" references.
 * Computes missing hashes. Same graph, same bytes. Sets graph->hash. Reimporting gives equal ids and order. */
#define ONNX_INLINE_BYTES 1024
yk_err onnx_export_skeleton(struct graph *g, struct yk_buf *out, struct yk_diag *why);

#endif
