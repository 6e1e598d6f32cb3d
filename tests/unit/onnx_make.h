/* Small ONNX models for tests, written field by field so that they can also be wrong.
 *   struct yk_buf b = {0};
 *   size_t m = make_model(&b, 13);            model and graph are open
 *   make_value(&b, 11, "x", 1, "N,3,?");      a graph input (11) or output (12)
 *   size_t n = make_node(&b, "Relu", "x", "y"); make_attr_i(&b, ...); pb_end(&b, n);
 *   make_end(&b, m); */
#ifndef YK_TESTS_ONNX_MAKE_H
#define YK_TESTS_ONNX_MAKE_H

#include <stdlib.h>
#include <string.h>

#include "common/pb.h"

static inline void make_opset(struct yk_buf *b, const char *domain, int64_t version)
{
    size_t o = pb_begin(b, 8);
    pb_put_text(b, 1, domain);
    pb_put_varint(b, 2, (uint64_t)version);
    pb_end(b, o);
}

static inline size_t make_model(struct yk_buf *b, int64_t opset)
{
    pb_put_varint(b, 1, 8);
    make_opset(b, "", opset);
    size_t g = pb_begin(b, 7);
    pb_put_text(b, 2, "g");
    return g;
}

static inline void make_end(struct yk_buf *b, size_t graph)
{
    pb_end(b, graph);
}

/* dims: "N,3,?": a name, a number, unknown; "-" leaves the shape out, "" is rank 0. */
static inline void make_value(struct yk_buf *b, uint32_t field, const char *name, int elem, const char *dims)
{
    size_t v = pb_begin(b, field);
    pb_put_text(b, 1, name);
    size_t type = pb_begin(b, 2), tensor = pb_begin(b, 1);
    pb_put_varint(b, 1, (uint64_t)elem);
    if (strcmp(dims, "-") != 0) {
        size_t shape = pb_begin(b, 2);
        for (const char *p = dims; *p;) {
            size_t n = strcspn(p, ","), dim = pb_begin(b, 1);
            if ((*p >= '0' && *p <= '9') || *p == '-')
                pb_put_varint(b, 1, (uint64_t)strtoll(p, NULL, 10));
            else if (*p != '?')
                pb_put_bytes(b, 2, p, n);
            pb_end(b, dim);
            p += n + (p[n] == ',');
        }
        pb_end(b, shape);
    }
    pb_end(b, tensor);
    pb_end(b, type);
    pb_end(b, v);
}

static inline void make_names(struct yk_buf *b, uint32_t field, const char *names)
{
    for (const char *p = names; *p;) {
        size_t n = strcspn(p, ",");
        pb_put_bytes(b, field, p, *p == '_' && n == 1 ? 0 : n); /* "_" is an absent one */
        p += n + (p[n] == ',');
    }
}

/* Left open for attributes: end it with pb_end. */
static inline size_t make_node(struct yk_buf *b, const char *op, const char *in, const char *out)
{
    size_t n = pb_begin(b, 1);
    make_names(b, 1, in);
    make_names(b, 2, out);
    pb_put_text(b, 3, out);
    pb_put_text(b, 4, op);
    return n;
}

static inline void make_plain(struct yk_buf *b, const char *op, const char *in, const char *out)
{
    pb_end(b, make_node(b, op, in, out));
}

static inline void make_attr_i(struct yk_buf *b, const char *name, int64_t v)
{
    size_t a = pb_begin(b, 5);
    pb_put_text(b, 1, name);
    pb_put_varint(b, 3, (uint64_t)v);
    pb_put_varint(b, 20, 2);
    pb_end(b, a);
}

static inline void make_attr_f(struct yk_buf *b, const char *name, float v)
{
    size_t a = pb_begin(b, 5);
    pb_put_text(b, 1, name);
    pb_put_f32(b, 2, v);
    pb_put_varint(b, 20, 1);
    pb_end(b, a);
}

static inline void make_attr_s(struct yk_buf *b, const char *name, const char *v, size_t n)
{
    size_t a = pb_begin(b, 5);
    pb_put_text(b, 1, name);
    pb_put_bytes(b, 4, v, n);
    pb_put_varint(b, 20, 3);
    pb_end(b, a);
}

static inline void make_attr_ints(struct yk_buf *b, const char *name, const int64_t *v, size_t n)
{
    size_t a = pb_begin(b, 5);
    pb_put_text(b, 1, name);
    for (size_t i = 0; i < n; i++)
        pb_put_varint(b, 8, (uint64_t)v[i]); /* as most exporters write it: not packed */
    pb_put_varint(b, 20, 7);
    pb_end(b, a);
}

/* A tensor left open for its data. */
static inline size_t make_tensor(
    struct yk_buf *b, uint32_t field, const char *name, int elem, const int64_t *dims, size_t rank)
{
    size_t t = pb_begin(b, field);
    for (size_t i = 0; i < rank; i++)
        pb_put_varint(b, 1, (uint64_t)dims[i]);
    pb_put_varint(b, 2, (uint64_t)elem);
    if (name)
        pb_put_text(b, 8, name);
    return t;
}

static inline void make_weight_f32(struct yk_buf *b, const char *name, int64_t n, const float *v)
{
    size_t t = make_tensor(b, 5, name, 1, &n, 1);
    pb_put_bytes(b, 9, v, (size_t)n * sizeof *v);
    pb_end(b, t);
}

static inline void make_pair(struct yk_buf *b, uint32_t field, const char *key, const char *value)
{
    size_t p = pb_begin(b, field);
    pb_put_text(b, 1, key);
    pb_put_text(b, 2, value);
    pb_end(b, p);
}

#endif
