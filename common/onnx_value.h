/* Values in files of their own, as ONNX test data holds them: serialised TensorProto, SequenceProto and OptionalProto,
 * in both directions. A value is all in memory, with nothing borrowed from the file. */
#ifndef YK_ONNX_VALUE_H
#define YK_ONNX_VALUE_H

#include "common/graph.h"

#define ONNX_VALUE_MAX_BYTES ((int64_t)2 << 30) /* of a file: what protobuf takes */

struct onnx_value {
    enum value_type type;
    struct shape shape;       /* VALUE_TENSOR */
    void *data;               /* VALUE_TENSOR: dense, 64-byte aligned, never NULL */
    struct onnx_value *items; /* VALUE_SEQUENCE: n members; VALUE_OPTIONAL: what it holds, n is 0 or 1 */
    int64_t n;
};

/* The bytes do not tell a tensor from a sequence or an optional: type says what they are (a model's input or output
 * knows). Errors: YK_FORMAT, YK_LIMIT, YK_UNSUPPORTED (strings, complex numbers, maps, sparse tensors: names it),
 * YK_NOMEM. Owner: onnx_value_fini. Thread: any. */
yk_err onnx_value_decode(
    const void *data, size_t len, enum value_type type, struct onnx_value *out, struct yk_diag *why);
yk_err onnx_value_load(const char *path, enum value_type type, struct onnx_value *out, struct yk_diag *why);
/* Appends the value's message. Errors: YK_INVAL for a dtype that ONNX has not, or sequences that nest over 4 deep;
 * YK_LIMIT over 2 GiB; YK_NOMEM. */
yk_err onnx_value_encode(const struct onnx_value *v, const char *name, struct yk_buf *out, struct yk_diag *why);
void onnx_value_fini(struct onnx_value *v); /* a zeroed value is allowed */

/* "float32[2,3]", "sequence of 3 float32[2,3] ...", "optional, empty". */
void onnx_value_text(const struct onnx_value *v, char *out, size_t size);

#endif
