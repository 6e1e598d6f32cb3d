/* The .npy format of NumPy, versions 1 to 3: the header, in both directions. The data stays where it is.
 * Taken: little-endian f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1, C order. Refused by name: Fortran order, big-endian,
 * objects, records. Everything is checked against the real length before it is used. */
#ifndef YK_NPY_H
#define YK_NPY_H

#include "common/graph.h"

#define NPY_HEAD_LIMIT ((size_t)64 * 1024) /* header text that we read at most */

struct npy {
    struct shape shape;
    size_t offset; /* of the data */
    int64_t bytes; /* of the data */
};

/* data, len: the start of the file (all of it, or at least the header); file_bytes: length of the whole file.
 * Errors: YK_FORMAT (not .npy, malformed, shorter than its shape says, or longer), YK_UNSUPPORTED (names what),
 * YK_LIMIT (header, rank or size). Thread: any. */
yk_err npy_parse(const void *data, size_t len, int64_t file_bytes, struct npy *out, struct yk_diag *why);
/* Appends a version 1 header for a dense array of this shape; the data starts 64-byte aligned right behind it.
 * Errors: YK_UNSUPPORTED for bfloat16, YK_INVAL for an unknown dim. */
yk_err npy_header(const struct shape *shape, struct yk_buf *out);

#endif
