/* Import of bytes that a test made, with what came of it. Included after cmocka.h. */
#ifndef YK_TESTS_ONNX_HELD_H
#define YK_TESTS_ONNX_HELD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/onnx.h"
#include "tests/unit/onnx_make.h"

static struct yk_diag why;

/* Imports the bytes from a block of exactly their size, so that a read past the end is seen. */
struct held {
    uint8_t *bytes;
    struct graph *g;
    struct yk_buf problems;
    yk_err err;
};

static inline yk_err load(struct held *h, struct yk_buf *b)
{
    *h = (struct held){0};
    h->bytes = malloc(b->len + 1);
    h->bytes = realloc(h->bytes, b->len ? b->len : 1);
    if (b->len)
        memcpy(h->bytes, b->data, b->len);
    size_t len = b->len;
    yk_buf_free(b);
    why.text[0] = '\0';
    yk_err err = h->err = onnx_import_memory(h->bytes, len, &h->g, &h->problems, &why);
    if (err)
        assert_null(h->g);
    yk_buf_add(&h->problems, "", 1);
    return err;
}

static inline void drop(struct held *h)
{
    graph_close(h->g);
    free(h->bytes);
    yk_buf_free(&h->problems);
}

/* Expects an error whose reason holds a text. */
static inline void refuse(struct yk_buf *b, yk_err err, const char *text)
{
    struct held h;
    yk_err got = load(&h, b);
    if (got != err || !strstr(why.text, text))
        fail_msg("expected %s with '%s', got %s: %s", yk_err_name(err), text, yk_err_name(got), why.text);
    drop(&h);
}

static inline struct graph *accept(struct held *h, struct yk_buf *b)
{
    yk_err err = load(h, b);
    if (err)
        fail_msg("%s: %s", yk_err_name(err), why.text);
    return h->g;
}

static inline const struct value *value(const struct graph *g, const char *name)
{
    int32_t id = graph_find_value(g, name);
    if (id == YK_ABSENT)
        fail_msg("no value '%s'", name);
    return &g->values[id];
}

static inline const struct value *input(const struct graph *g, int32_t node, int k)
{
    assert_true(k < g->nodes[node].n_in);
    assert_int_not_equal(g->nodes[node].in[k], YK_ABSENT);
    return &g->values[g->nodes[node].in[k]];
}

static inline void expect_i64(const struct value *v, const int64_t *want, int64_t n)
{
    assert_int_equal(v->kind, VALUE_WEIGHT);
    assert_int_equal(v->dtype, DT_I64);
    assert_int_equal(shape_count(&v->shape), n);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(dtype_read_int(DT_I64, v->data, i), want[i]);
}

static inline uint8_t *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*n);
    assert_int_equal(fread(data, 1, *n, f), *n);
    fclose(f);
    return data;
}

#endif
